// How search results are ranked: pages with the words of the query in their title come first, lists of pages and internals last.
// Words of other tools, and others that readers type, lead to the pages below although these may not contain them.
const TERMS = {
  "coming-from/index": ["pandas", "columntransformer", "column transformer", "sklearn", "hugging face"],
  "command-line": ["cli", "terminal"],
  "datasets": ["disable progress bar", "progress bar", "tqdm"],
  "files": ["excel", "xlsx", "pyspark", "spark", "csv without header", "read csv"],
  "how-to/cross-validate": ["leakage", "kfold", "validation over time"],
  "how-to/grow-a-dataset": ["incremental", "new rows", "partial fit", "delete", "gdpr"],
  "how-to/handle-class-imbalance": ["imbalanced", "imbalance", "oversampling", "smote"],
  "how-to/resume-training": ["resume", "checkpoint"],
  "how-to/serve-a-model": ["onnx", "docker", "fastapi", "rest api", "deploy"],
  "how-to/train-a-model": ["embedding size", "mlp", "tabular"],
  "install": ["install", "windows", "macos", "cuda", "extras", "pip"],
  "loading": ["dataloader", "padding", "attention mask", "num workers", "num_workers", "pin memory", "pin_memory"],
  "media": ["data augmentation", "augment", "flip"],
  "memory": ["out of memory", "oom", "killed"],
  "notebooks/index": ["notebook", "jupyter", "tutorial"],
  "object-stores": ["s3", "gcs", "bucket"],
  "performance": ["slow", "speed"],
  "predicting": ["inference", "class names", "predict", "predict new data"],
  "scikit-learn": ["feature names", "gridsearchcv", "sklearn pipeline"],
  "splits": ["duplicates"],
  "start": ["save load", "save", "quickstart"],
  "training": ["accelerate", "mixed precision", "amp", "multi gpu", "ddp", "gpu", "lightning"],
  "troubleshooting": ["version upgrade", "warning", "error", "compatibility"],
  "types/categories": ["one hot", "onehot", "label encoder", "ordinal encoder", "get dummies"],
  "types/dates-and-places": ["forecasting", "time series", "window"],
  "types/numbers": ["standard scaler", "min max", "scaling", "zscore", "normalize"],
};
const words = (text) => text.toLowerCase().split(/\W+/).filter((word) => word.length > 1);
// "vocabulary" is also in "Vocabularies".
const stem = (word) => word.slice(0, Math.max(4, word.length - 2));
const query = words((new URLSearchParams(window.location.search).get("q") || "").replaceAll("_", " "));

// Return the number of words of a term if all of them are in the query, 0 otherwise.
function match(term) {
  const parts = words(term.replaceAll("_", " "));
  return parts.every((part) => query.some((word) => stem(word) === stem(part))) ? parts.length : 0;
}

const search = Search.performTermsSearch;
Search.performTermsSearch = (terms, excluded) => {
  const { docnames, filenames, titles } = Search._index;
  const pages = docnames.flatMap((page, i) => {
    const best = Math.max(0, ...(TERMS[page] || []).map(match));
    return best ? [[page, titles[i], "", null, 100 * best, filenames[i], SearchResultKind.title]] : [];
  });
  return [...search(terms, excluded).filter(([page]) => !pages.some(([other]) => other === page)), ...pages];
};

var Scorer = {
  score: ([docname, title, anchor, description, score]) => {
    const matches = anchor ? 0 : query.filter((word) => title.toLowerCase().includes(stem(word))).length;
    const bonus = matches ? (20 * matches) / query.length + (5 * matches) / title.split(/\W+/).length : 0;
    const background = /index$|^(benchmarks|decisions|design|format|internals|saved-format|scale)$/.test(docname);
    return score + bonus - (background ? 10 : 0);
  },
  // The defaults of Sphinx.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
