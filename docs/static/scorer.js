// How search results are ranked: pages with the words of the query in their title come first, lists of pages and background last.
var Scorer = {
  score: ([docname, title, anchor, description, score]) => {
    const query = new URLSearchParams(window.location.search).get("q") || "";
    const words = query.toLowerCase().split(/\W+/).filter((word) => word.length > 1);
    // "vocabulary" is also in "Vocabularies".
    const stems = words.map((word) => word.slice(0, Math.max(4, word.length - 2)));
    const found = anchor ? 0 : stems.filter((stem) => title.toLowerCase().includes(stem)).length;
    const bonus = found ? (20 * found) / words.length + (5 * found) / title.split(/\W+/).length : 0;
    const background = /index$|^(benchmarks|decisions|design|format|saved-format)$/.test(docname);
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
