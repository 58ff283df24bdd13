"""Scores of models on the features of "auto", compared with skrub and with a ColumnTransformer by hand.

    pip install --no-deps -r benchmarks/peers/quality-requirements.txt
    python -m benchmarks.peers.quality run [--results FILE] [--only jobs,cars] [--models linear] [--tools daskprep]
    python -m benchmarks.peers.quality show [--results FILE]

"run" adds a line to FILE for each table, model and tool that has none, so that an interrupted run resumes; `--again`
measures those of `--tools` anew. "show" prints all rows as a Markdown table, and a summary. `--tables FOLDER` adds
adult.csv, agnews.csv, diamonds.csv, taxis.csv and titanic.csv of a folder.

Each table has at most 2,000 rows, and five folds, which are the same for all. The score is R2 of a number, AUC of two
classes, and accuracy of more. Tools learn from the training rows of a fold only. Models are gradient boosting, a linear
model, and a network of two hidden layers of 128, trained for 400 batches, with three seeds (`--seeds`). Nothing is
tuned, and nothing stops early. Networks read `daskprep.nn.Inputs`, or the numbers of the other tools.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import skrub
import torch
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import LabelEncoder, OneHotEncoder, OrdinalEncoder, StandardScaler, TargetEncoder
from torch import nn

import daskprep as dp
from benchmarks.peers.quality_tables import CONFIRM, DERIVE, Table, from_folder, load
from daskprep.nn import Inputs, Outputs

ROWS, FOLDS, WIDTH, BATCH = 2000, 5, 128, 128
STEPS, MOST_EPOCHS = 400, 100
LEAST = 0.005  # difference of scores that does not matter
METRICS = {"number": "R2", "binary": "AUC", "classes": "accuracy"}
MODELS = ("trees", "linear", "network")
TOOLS = ("daskprep", "tabular_pipeline", "TableVectorizer", "by hand")


Rows = tuple[np.ndarray, np.ndarray]  # positions of training and held rows


def kind_of(table: Table) -> str:
    """Return what a table's target is: a number, one of two classes, or one of several."""
    values = table.frame[table.target]
    if pd.api.types.is_numeric_dtype(values):
        return "number"
    return "binary" if values.nunique() == 2 else "classes"


def folds(table: Table) -> list[Rows]:
    splitter = KFold if kind_of(table) == "number" else StratifiedKFold
    return list(splitter(FOLDS, shuffle=True, random_state=0).split(table.frame, table.frame[table.target]))


def score(truth: np.ndarray, predicted: np.ndarray, kind: str) -> float:
    """Return R2 of numbers, AUC of the share of the second class, or the accuracy of shares of classes."""
    if kind == "classes":
        return float(accuracy_score(truth, predicted.argmax(1)))
    return float(r2_score(truth, predicted) if kind == "number" else roc_auc_score(truth, predicted))


def estimator(model: str, kind: str) -> Any:
    if kind == "number":
        models: Mapping[str, Any] = {
            "trees": HistGradientBoostingRegressor(random_state=0),
            "linear": RidgeCV(alphas=(0.1, 1, 10, 100)),
            "network": MLPRegressor(),
        }
    else:
        models = {
            "trees": HistGradientBoostingClassifier(random_state=0),
            "linear": LogisticRegression(max_iter=1000),
            "network": MLPClassifier(),
        }
    return models[model]


class Mlp(nn.Sequential):
    """Two hidden layers."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())


def train(model: nn.Module, loss_of: Callable[[torch.Tensor], torch.Tensor], rows: int) -> None:
    """Train a network; `loss_of` returns the loss of the rows with these numbers."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    for _ in range(min(MOST_EPOCHS, -(-STEPS * BATCH // rows))):
        for batch in torch.randperm(rows).split(BATCH):
            optimizer.zero_grad()
            loss_of(batch).backward()
            optimizer.step()
    model.eval()


def network_of_matrix(inputs: np.ndarray, truth: np.ndarray, new: np.ndarray, kind: str, seed: int) -> np.ndarray:
    """Return the predictions of a network over a matrix."""
    torch.manual_seed(seed)
    rows, rows_to_predict = (torch.tensor(np.asarray(part, np.float32)) for part in (inputs, new))
    classes = int(truth.max()) + 1 if kind == "classes" else 1
    model = nn.Sequential(Mlp(rows.shape[1]), nn.Linear(WIDTH, classes))
    center, scale = (truth.mean(), truth.std()) if kind == "number" else (0.0, 1.0)
    labels = torch.tensor((truth - center) / scale, dtype=torch.float32)

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        found = model(rows[batch])
        if kind == "classes":
            return nn.functional.cross_entropy(found, labels[batch].long())
        loss = nn.functional.mse_loss if kind == "number" else nn.functional.binary_cross_entropy_with_logits
        return loss(found[:, 0], labels[batch])

    train(model, loss_of, len(rows))
    with torch.no_grad():
        found = model(rows_to_predict).numpy()
    return found if kind == "classes" else found[:, 0] * scale + center


def propose(frame: pd.DataFrame, target: str, model: str) -> dict[str, Any]:
    """Return the features that "auto" proposes for a model by the training rows."""
    return dict(dp.infer_features(frame, targets=target, style=model, progress=False))


def network_of_daskprep(table: Table, rows: Rows, kind: str, seeds: int) -> list[float]:
    """Return the scores of `Inputs`, the same layers and `Outputs`, by seed."""
    frame = table.frame.assign(part="test")
    frame.loc[rows[0], "part"] = "train"
    features = propose(table.frame.iloc[rows[0]], table.target, "network")
    if kind != "binary":
        features[table.target] = dp.Category() if kind == "classes" else dp.Number(normalization=None)
    prep = dp.Preprocessor(features, targets=table.target, split=dp.FixedSplit("part"))
    with tempfile.TemporaryDirectory() as folder:
        dataset = prep.fit_write(frame, f"{folder}/rows.dp", progress=False)
        parts = [next(iter(dataset[part].loader(len(frame), shuffle=False))) for part in ("train", "test")]
    return [score_of_seed(prep, parts, table.target, kind, seed) for seed in range(seeds)]


def score_of_seed(prep: dp.Preprocessor, parts: list[Any], target: str, kind: str, seed: int) -> float:
    """Train a network over `Inputs`, and return its score."""
    (inputs, labels), (new, truth) = parts
    torch.manual_seed(seed)
    encoder, outputs = Inputs(prep), Outputs(prep, WIDTH)
    hidden = nn.Sequential(encoder, Mlp(encoder.width))

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        return outputs.loss(hidden({name: column[batch] for name, column in inputs.items()}), labels[batch])

    train(nn.ModuleList([hidden, outputs]), loss_of, len(labels))
    with torch.no_grad():
        return score(truth.numpy(), outputs(hidden(new))[target].numpy(), kind)


def ours(table: Table, rows: Rows, model: str, kind: str, seeds: int) -> list[float]:
    """Return the scores of a fold with the features of "auto", by seed."""
    if model == "network":
        return network_of_daskprep(table, rows, kind, seeds)
    learn, held = (table.frame.iloc[part] for part in rows)
    prep = dp.Preprocessor(propose(learn, table.target, model), targets=table.target)
    inputs, new = prep.fit_transform(learn), prep.transform(held.drop(columns=table.target))
    return [fit_and_score(estimator(model, kind), inputs, new, labels_of(table, kind), rows, kind)]


def labels_of(table: Table, kind: str) -> np.ndarray:
    values = table.frame[table.target]
    return values.to_numpy(float) if kind == "number" else LabelEncoder().fit_transform(values)


def fit_and_score(model: Any, inputs: Any, new: Any, truth: np.ndarray, rows: Rows, kind: str) -> float:
    """Return the score of an estimator, or of a pipeline that ends with one, on a fold."""
    model.fit(inputs, truth[rows[0]])
    predicted = model.predict(new) if kind == "number" else model.predict_proba(new)
    return score(truth[rows[1]], predicted[:, 1] if kind == "binary" else predicted, kind)


def by_hand(frame: pd.DataFrame, model: str) -> Any:
    """Return what people write first: scaled numbers, one-hot or target-encoded labels, weights of words."""
    texts = frame.select_dtypes(["object", "string", "category"])
    words = {name: texts[name].astype(str).str.split().str.len().mean() for name in texts}
    distinct = {name: texts[name].nunique() for name in texts}
    prose = [name for name in texts if words[name] >= 3 and distinct[name] > len(frame) / 2]
    many = [name for name in texts if name not in prose and distinct[name] > 50]
    few = [name for name in texts if name not in (*prose, *many)]
    number = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    label = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    if model == "trees":
        number, label = "passthrough", OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    means = [(make_pipeline(TargetEncoder(random_state=0), StandardScaler()), many)] if many else []
    return make_column_transformer(
        (number, list(frame.select_dtypes(["number", "bool"]))),
        (label, few),
        *means,
        *((TfidfVectorizer(max_features=300), name) for name in prose),
        sparse_threshold=0,
    )


def with_date_parts(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with the year, month, weekday, hour and day of the year of its dates, read by hand."""
    parts = frame.fillna(dict.fromkeys(frame.select_dtypes(["object", "string"]), ""))
    for name in frame:
        values = frame[name]
        is_text = not pd.api.types.is_numeric_dtype(values) and values.astype(str).str.match(r"\d+[-/]\d+[-/]\d+").all()
        if is_text or pd.api.types.is_datetime64_any_dtype(values):
            day_first = bool(values.astype(str).str.match(r"\d\d/").all())
            dates = pd.to_datetime(values, dayfirst=day_first).dt
            for part in ("year", "month", "dayofweek", "hour", "dayofyear"):
                parts[f"{name} {part}"] = getattr(dates, part)
            parts = parts.drop(columns=name)
    return parts


def theirs(table: Table, rows: Rows, model: str, kind: str, tool: str, seeds: int) -> list[float]:
    """Return the scores of a fold with the features of another tool, by seed."""
    frame, truth = table.frame.drop(columns=table.target), labels_of(table, kind)
    frame = with_date_parts(frame) if tool == "by hand" else frame
    learn, new = (frame.iloc[part] for part in rows)
    scaled = [] if model == "trees" else [SimpleImputer(), StandardScaler()]
    if tool == "tabular_pipeline":
        whole = skrub.tabular_pipeline(estimator(model, kind))
    elif tool == "TableVectorizer":
        whole = make_pipeline(skrub.TableVectorizer(), *scaled, estimator(model, kind))
    else:
        whole = make_pipeline(by_hand(learn, model), estimator(model, kind))
    if model != "network":
        return [fit_and_score(whole, learn, new, truth, rows, kind)]
    steps = clone(whole[:-1])
    inputs, new_inputs = steps.fit_transform(learn, truth[rows[0]]), steps.transform(new)
    return [
        score(truth[rows[1]], network_of_matrix(inputs, truth[rows[0]], new_inputs, kind, seed), kind)
        for seed in range(seeds)
    ]


def measure(table: Table, model: str, tool: str, seeds: int) -> list[list[float]]:
    """Return the scores by fold and seed."""
    kind = kind_of(table)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            ours(table, rows, model, kind, seeds)
            if tool == "daskprep"
            else theirs(table, rows, model, kind, tool, seeds)
            for rows in folds(table)
        ]


def read_results(path: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return the last line of each table, model and tool."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {(line["table"], line["model"], line["tool"]): line for line in map(json.loads, lines)}


def run(options: argparse.Namespace, tables: Mapping[str, Callable[[], Table]]) -> None:
    """Measure what the file of results lacks."""
    torch.set_num_threads(1)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    done: Iterable[Any] = read_results(options.results)
    for name, make in tables.items():
        cells = [(name, model, tool) for model in options.models for tool in options.tools]
        if not (cells := [cell for cell in cells if options.again or cell not in done]):
            continue
        table = load(make, ROWS)
        for _, model, tool in cells:
            start = time.process_time()
            scores = measure(table, model, tool, options.seeds)
            line = {"table": name, "model": model, "tool": tool, "metric": METRICS[kind_of(table)]}
            line |= {"scores": scores, "seconds": round(time.process_time() - start, 1)}
            with options.results.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{name:12}{model:9}{tool:18}{np.mean(scores):8.3f}{line['seconds']:8.1f} s", flush=True)


def compare(ours: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Return the mean difference of folds, and its standard error."""
    differences = ours - other
    return float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(len(differences)))


def show(results: Mapping[tuple[str, str, str], Mapping[str, Any]], names: Iterable[str]) -> None:
    """Print all rows as a Markdown table, and a summary of the cells that all tools have."""
    print(f"| table | score | model | {' | '.join(TOOLS)} | difference to the best |")
    print("|---" * (len(TOOLS) + 4) + "|")
    summary: dict[str, list[tuple[bool, bool, float, str]]] = defaultdict(list)
    for name in names:
        for model in MODELS:
            lines = [results.get((name, model, tool)) for tool in TOOLS]
            if not all(lines):
                continue
            scores = [np.array(line["scores"]).mean(1) for line in lines if line]
            means = [float(one.mean()) for one in scores]
            best = int(np.argmax(means[1:])) + 1
            difference, error = compare(scores[0], scores[1])
            cells = [f"{mean:.3f}" if mean > -10 else f"{mean:.1g}" for mean in means]
            cells = [f"**{cell}**" if mean == max(means) else cell for cell, mean in zip(cells, means, strict=True)]
            to_best, error_best = compare(scores[0], scores[best])
            metric = lines[0]["metric"] if lines[0] else ""
            print(f"| {name} | {metric} | {model} | {' | '.join(cells)} | {to_best:+.3f} ± {error_best:.3f} |")
            cell = (difference >= -LEAST - error, to_best >= -LEAST, to_best, f"{name}, {model}")
            for group in (model, "tables of DERIVE" if name in DERIVE else "other tables", "all"):
                summary[group].append(cell)
    print("\n| cells | number | as good as tabular_pipeline | as good as the best | mean difference | worst |")
    print("|---|---|---|---|---|---|")
    for group, cells_of in summary.items():
        first, second, differences, _ = zip(*cells_of, strict=True)
        worst = min(cells_of, key=lambda cell: cell[2])
        shares = f"{np.mean(first):.2f} | {np.mean(second):.2f} | {np.mean(differences):+.3f}"
        print(f"| {group} | {len(cells_of)} | {shares} | {worst[2]:+.3f} ({worst[3]}) |")


def main() -> None:
    """Measure, or print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "show"])
    parser.add_argument("--results", type=Path, default=Path("build/quality.jsonl"))
    parser.add_argument("--tables", type=Path, help="folder with more tables")
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of tables, separated by commas")
    parser.add_argument("--models", type=lambda text: text.split(","), default=MODELS)
    parser.add_argument("--tools", type=lambda text: text.split(","), default=TOOLS)
    parser.add_argument("--seeds", type=int, default=3, help="of each network")
    parser.add_argument("--again", action="store_true", help="measure what the file has, too")
    options = parser.parse_args()
    tables = DERIVE | CONFIRM | ({} if options.tables is None else from_folder(options.tables))
    if options.only:
        tables = {name: tables[name] for name in options.only}
    if options.command == "run":
        run(options, tables)
    else:
        results = read_results(options.results)
        show(
            results,
            [name for name in dict.fromkeys(name for name, *_ in results) if not options.only or name in tables],
        )


if __name__ == "__main__":
    main()
