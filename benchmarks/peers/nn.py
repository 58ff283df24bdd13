"""Test scores of a network of `daskprep.nn`, compared with gradient boosting and a network written by hand.

    python -m benchmarks.peers.nn --tables FOLDER [--seeds 5] [--rows 50000] [--only adult] [--epochs 20]

FOLDER holds adult.csv, diamonds.csv and taxis.csv of the usual collections; two more tables are made here. Each line is
a model of a table: mean and standard deviation over seeds of a metric of the test rows, and processor seconds of one
seed. A seed decides the first weights, the order of batches, and the rows by which gradient boosting stops early. The
split is the same for all. Networks have two hidden layers of 128, and keep the epoch with the least loss of the
validation rows. The one by hand has standardized numbers with flags for gaps, and embeddings of (n + 1) // 2 numbers,
at most 50.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.metrics import log_loss, root_mean_squared_error
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder, StandardScaler, TargetEncoder
from torch import nn

import daskprep as dp
from daskprep.nn import Inputs, Outputs

BATCH, WIDTH, MANY = 256, 128, 255  # MANY: the most values of a category in HistGradientBoosting
TARGETS = {"adult": "income", "diamonds": "price", "taxis": "fare", "customers": "spent", "reviews": "liked"}
LEAKS = {"taxis": ["total", "tip", "tolls", "dropoff"]}
Batch = dict[str, torch.Tensor]


def make_customers(rows: int) -> pd.DataFrame:
    """Return customers: skewed and periodic numbers, informative missing cells, a category of 20,000 values."""
    rng = np.random.default_rng(0)
    income, age, hour = rng.lognormal(10, 1, rows), rng.uniform(18, 90, rows), rng.uniform(0, 24, rows)
    shop = rng.zipf(1.2, rows) % 20_000
    gone = rng.random(rows) < np.where(income > 40_000, 0.3, 0.05)
    spent = np.log(income) + np.sin(hour * np.pi / 6) + (age > 65) + rng.normal(0, 1, 20_000)[shop]
    return pd.DataFrame(
        {
            "income": np.where(gone, np.nan, income), "age": age, "hour": hour,
            "shop": [f"shop {number}" for number in shop], "spent": spent + rng.normal(0, 0.5, rows),
        }
    )  # fmt: skip


def make_reviews(rows: int) -> pd.DataFrame:
    """Return reviews: words with a sentiment that depends on the kind of the product, a price, and the label."""
    rng = np.random.default_rng(0)
    words, kind = rng.zipf(1.3, (rows, 12)) % 600, rng.integers(0, 12, rows)
    feeling = rng.normal(0, 1, (3, 600))[kind[:, None] % 3, words].mean(1)
    price = rng.lognormal(3, 1, rows)
    liked = 4 * feeling - 0.5 * (np.log(price) - 3) + rng.normal(0, 0.7, rows) > 0
    text = [" ".join(f"word{word}" for word in row) for row in words]
    kinds = [f"kind {number}" for number in kind]
    return pd.DataFrame({"text": text, "kind": kinds, "price": price, "liked": np.where(liked, "yes", "no")})


class Mlp(nn.Sequential):
    """Two hidden layers."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())


def rows_of(batch: Mapping[str, torch.Tensor], rows: torch.Tensor) -> Batch:
    return {name: column[rows] for name, column in batch.items()}


def train(
    model: nn.Module, loss_of: Callable[[Batch, torch.Tensor], torch.Tensor], parts: Mapping[str, Any], epochs: int
) -> torch.Tensor:
    """Train a network, and return its outputs for the test rows at the epoch with the least validation loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    inputs, labels = parts["train"]
    best, kept = np.inf, torch.zeros(0)
    for _ in range(epochs):
        model.train()
        for rows in torch.randperm(len(labels)).split(BATCH):
            optimizer.zero_grad()
            loss_of(rows_of(inputs, rows), labels[rows]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            if (loss := float(loss_of(*parts["validation"]))) < best:
                best, kept = loss, model(parts["test"][0])
    return kept


def score(truth: np.ndarray, predicted: np.ndarray, *, is_class: bool) -> float:
    return float(log_loss(truth, predicted) if is_class else root_mean_squared_error(truth, predicted))


def run_ours(frame: pd.DataFrame, features: Any, target: str, seed: int, epochs: int) -> float:
    """Return the score of Inputs, hidden layers and Outputs."""
    with tempfile.TemporaryDirectory() as folder:
        prep = dp.Preprocessor(features, targets=target, split=dp.RandomSplit(seed=0))
        dataset = prep.fit_write(frame, f"{folder}/rows.dp", progress=False)
        parts = {name: next(iter(split.loader(len(split), shuffle=False))) for name, split in dataset.splits.items()}
    torch.manual_seed(seed)
    inputs, outputs = Inputs(prep), Outputs(prep, WIDTH)
    hidden = nn.Sequential(inputs, Mlp(inputs.width))
    outcome = train(
        nn.Sequential(hidden, outputs), lambda batch, truth: outputs.loss(hidden(batch), truth), parts, epochs
    )[target]  # type: ignore[call-overload]
    truth = parts["test"][1].numpy()
    is_class = features[target].kind == "binary"
    return score(truth, (outcome.sigmoid() if is_class else outcome).numpy(), is_class=is_class)


def split_frame(
    frame: pd.DataFrame, target: str, kinds: Mapping[str, str]
) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """Return inputs and truth by split, as the split of `run_ours`; dates become numbers."""
    splits = dp.Preprocessor({target: "category"}, split=dp.RandomSplit(seed=0)).fit(frame).assign(frame)["split"]
    truth = frame.pop(target)
    truth = truth.isin(["yes", ">50K"]).to_numpy(float) if kinds[target] == "binary" else truth.to_numpy(float)
    for name in [name for name, kind in kinds.items() if kind == "date"]:
        day = pd.to_datetime(frame.pop(name)).dt
        frame = frame.assign(
            **{f"{name}_hour": day.hour, f"{name}_weekday": day.day_of_week, f"{name}_day": day.day_of_year}
        )
    masks = {name: splits == number for number, name in enumerate(("train", "validation", "test"))}
    return {name: frame[mask] for name, mask in masks.items()}, {name: truth[mask] for name, mask in masks.items()}


def run_boosting(frame: pd.DataFrame, kinds: Mapping[str, str], target: str, seed: int) -> float:
    """Return the score of gradient boosting: native categories, target encodings of large ones, counts of words."""
    is_class = kinds[target] == "binary"
    rows, truth = split_frame(frame, target, kinds)
    flat = [name for name in rows["train"] if kinds.get(name) in ("category", "binary")]
    large = [name for name in flat if rows["train"][name].nunique() > MANY]
    small = [name for name in flat if name not in large]
    texts = [name for name in rows["train"] if kinds.get(name) == "text"]
    numbers = [name for name in rows["train"] if name not in (*flat, *texts)]
    ordinal = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan, max_categories=MANY - 1)
    table = make_column_transformer(
        (ordinal, small),
        (TargetEncoder(), large),
        *((CountVectorizer(min_df=5), name) for name in texts),
        ("passthrough", numbers),
        sparse_threshold=0,
    )
    model = HistGradientBoostingClassifier if is_class else HistGradientBoostingRegressor
    estimator = model(
        max_iter=1000, early_stopping=True, n_iter_no_change=20, random_state=seed,
        categorical_features=list(range(len(small))),
    )  # fmt: skip
    inputs = table.fit_transform(rows["train"], truth["train"])
    estimator.fit(inputs, truth["train"])
    test = table.transform(rows["test"])
    predicted = estimator.predict_proba(test)[:, 1] if is_class else estimator.predict(test)
    return score(truth["test"], predicted, is_class=is_class)


class ByHand(nn.Module):
    """Standardized numbers, an embedding of each category, and the mean embedding of the words of each text."""

    def __init__(self, numbers: int, sizes: Mapping[str, int], words: Mapping[str, int]) -> None:
        super().__init__()
        dimensions = {name: min(50, (size + 1) // 2) for name, size in {**sizes, **words}.items()}
        self.embeddings = nn.ModuleDict({name: nn.Embedding(size, dimensions[name]) for name, size in sizes.items()})
        self.words = nn.ModuleDict(
            {name: nn.Linear(size, dimensions[name], bias=False) for name, size in words.items()}
        )
        self.layers = nn.Sequential(Mlp(numbers + sum(dimensions.values())), nn.Linear(WIDTH, 1))

    def forward(self, batch: Batch) -> torch.Tensor:
        columns = [batch["numbers"], *(one(batch[name]) for name, one in self.embeddings.items())]
        columns += [one(batch[name]) for name, one in self.words.items()]
        return self.layers(torch.cat(columns, 1))[:, 0]


def run_by_hand(frame: pd.DataFrame, kinds: Mapping[str, str], target: str, seed: int, epochs: int) -> float:
    """Return the score of a network over tables of scikit-learn."""
    is_class = kinds[target] == "binary"
    rows, truth = split_frame(frame, target, kinds)
    flat = [name for name in rows["train"] if kinds.get(name) in ("category", "binary")]
    texts = [name for name in rows["train"] if kinds.get(name) == "text"]
    numbers = [name for name in rows["train"] if name not in (*flat, *texts)]
    scaler = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()).fit(rows["train"][numbers])
    ordinal = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-1)
    ordinal.fit(rows["train"][flat])
    counters = {name: CountVectorizer(min_df=2).fit(rows["train"][name]) for name in texts}
    center, scale = (0.0, 1.0) if is_class else (truth["train"].mean(), truth["train"].std())
    parts = {}
    for split, table in rows.items():
        batch = {"numbers": torch.tensor(scaler.transform(table[numbers]), dtype=torch.float32)}
        ids = torch.tensor(ordinal.transform(table[flat]) + 1).long()
        batch |= {name: ids[:, number] for number, name in enumerate(flat)}
        for name, counter in counters.items():
            counts = counter.transform(table[name]).toarray()
            batch[name] = torch.tensor(counts / counts.sum(1, keepdims=True).clip(1), dtype=torch.float32)
        parts[split] = batch, torch.tensor((truth[split] - center) / scale, dtype=torch.float32)
    torch.manual_seed(seed)
    sizes = {name: len(values) + 1 for name, values in zip(flat, ordinal.categories_, strict=True)}
    words = {name: len(counter.vocabulary_) for name, counter in counters.items()}
    model = ByHand(parts["train"][0]["numbers"].shape[1], sizes, words)
    error = nn.BCEWithLogitsLoss() if is_class else nn.MSELoss()
    outcome = train(model, lambda batch, labels: error(model(batch), labels), parts, epochs)
    predicted = outcome.sigmoid().numpy() if is_class else outcome.numpy() * scale + center
    return score(truth["test"], predicted, is_class=is_class)


def measure(table: str, frame: pd.DataFrame, seeds: int, epochs: int) -> None:
    """Print a line for each model of a table."""
    target = TARGETS[table]
    plain = dict(dp.infer_features(frame, targets=target, redundant="keep", progress=False))
    styled = dict(dp.infer_features(frame, targets=target, style="network", redundant="keep", progress=False))
    plain[target] = styled[target] = dp.Binary() if plain[target].kind == "binary" else dp.Number(normalization=None)
    if table == "adult":
        plain[target] = styled[target] = dp.Binary(positive=">50K")
    kinds = {name: feature.kind for name, feature in plain.items()}
    print(f"{table}: {len(frame):,} rows of {', '.join(f'{name} ({kind})' for name, kind in kinds.items())}")
    models: dict[str, Callable[[int], float]] = {
        "HistGradientBoosting": lambda seed: run_boosting(frame.copy(), kinds, target, seed),
        "network by hand": lambda seed: run_by_hand(frame.copy(), kinds, target, seed, epochs),
        "daskprep.nn": lambda seed: run_ours(frame, plain, target, seed, epochs),
        'daskprep.nn, style="network"': lambda seed: run_ours(frame, styled, target, seed, epochs),
    }
    metric = "log loss" if kinds[target] == "binary" else "RMSE"
    for name, run in models.items():
        start = time.process_time()
        found = [run(seed) for seed in range(seeds)]
        seconds = (time.process_time() - start) / seeds
        print(f"  {name:30}{metric} {np.mean(found):.4g} +- {np.std(found, ddof=1):.2g}   {seconds:.0f} s", flush=True)


def main() -> None:
    """Measure all tables, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, required=True, help="folder with adult.csv, diamonds.csv and taxis.csv")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=50_000, help="of the tables that are made")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--only", choices=list(TARGETS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    makers = {"customers": make_customers, "reviews": make_reviews}
    for table in TARGETS if arguments.only is None else [arguments.only]:
        if table in makers:
            frame = makers[table](arguments.rows)
        else:
            frame = pd.read_csv(arguments.tables / f"{table}.csv", skipinitialspace=True, na_values=["?"])
        measure(table, frame.drop(columns=LEAKS.get(table, [])), arguments.seeds, arguments.epochs)


if __name__ == "__main__":
    main()
