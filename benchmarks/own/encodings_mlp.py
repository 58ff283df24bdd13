"""Test scores of one small network trained on z-scores, and on other encodings of the same columns.

    python -m benchmarks.own.encodings_mlp --tables FOLDER [--seeds 5] [--rows 100000] [--only diamonds]

FOLDER holds adult.csv and diamonds.csv of the usual collections; the third table is made here. Each row of the output
is one encoding of one table: mean and standard deviation over seeds of a metric of the test rows. A seed decides the
first weights and the order of batches. The split is the same for all. The epoch with the least loss of the validation
rows counts.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

import daskprep as dp

MANY = 50  # number of values from which on a category is target-encoded
BATCH, EPOCHS, WIDTH, MOST_DIMENSIONS = 1024, 10, 128, 16
TARGETS = {"adult": "income", "diamonds": "price", "made": "spent"}


def make_table(rows: int) -> pd.DataFrame:
    """Return customers: skewed and periodic numbers, informative missing cells, a category of 20,000 values."""
    rng = np.random.default_rng(0)
    income, age = rng.lognormal(10, 1, rows), rng.uniform(18, 90, rows)
    hour, load = rng.uniform(0, 24, rows), rng.standard_t(2, rows)
    shop = rng.zipf(1.2, rows) % 20_000
    gone = rng.random(rows) < np.where(income > 40_000, 0.3, 0.05)
    spent = (
        np.log(income) + np.sin(hour * np.pi / 6) + (age > 65) + 0.5 * np.tanh(load) + rng.normal(0, 1, 20_000)[shop]
    )
    return pd.DataFrame(
        {
            "income": np.where(gone, np.nan, income),
            "age": age,
            "hour": hour,
            "load": load,
            "shop": [f"shop {number}" for number in shop],
            "device": rng.choice(["phone", "web", "till"], rows),
            "spent": spent + rng.normal(0, 0.5, rows),
        }
    )


def encodings(frame: pd.DataFrame, target: str) -> dict[str, dict[str, Any]]:
    """Return features by name of encoding; types are inferred once, so that only encodings differ."""
    plain = dict(dp.infer_features(frame, targets=target, redundant="keep", progress=False))
    styled = dict(dp.infer_features(frame, targets=target, style="network", redundant="keep", progress=False))
    target_type = "number" if plain[target].kind == "number" else "class"

    def changed(kind: str, change: Callable[[Any], Any], features: Mapping[str, Any] = plain) -> dict[str, Any]:
        return {
            name: change(feature) if name != target and feature.kind == kind else feature
            for name, feature in features.items()
        }

    def with_params(**params: Any) -> Callable[[Any], Any]:
        return lambda feature: type(feature)(**{**feature.get_params(), **params})

    by_target = {
        name: dp.TargetEncoding(target=target, target_type=target_type)
        if feature.kind == "category" and frame[name].nunique() > MANY
        else feature
        for name, feature in styled.items()
    }
    found = {
        "z-scores": plain,
        "quantile normal": changed("number", with_params(normalization="quantile_normal")),
        "piecewise linear": changed("number", with_params(encoding="piecewise_linear")),
        'style="network"': styled,
    }
    return found | ({"the same, large categories by target": by_target} if by_target != styled else {})


class Network(nn.Module):
    """Two hidden layers over numbers and an embedding of each category."""

    def __init__(self, inputs: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict(
            {name: nn.Embedding(size, min(MOST_DIMENSIONS, (size + 1) // 2)) for name, size in sizes.items()}
        )
        width = self.together({name: column[:1] for name, column in inputs.items()}).shape[1]
        self.layers = nn.Sequential(
            nn.Linear(width, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)
        )

    def together(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        columns = [
            self.embeddings[name](column) if name in self.embeddings else column.float().reshape(len(column), -1)
            for name, column in batch.items()
        ]
        return torch.cat(columns, 1)

    def forward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.layers(self.together(batch))[:, 0]


def tensors(split: Any, target: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return all rows of a split as a batch of a loader."""
    batches = list(split.loader(8192, shuffle=False, targets=target))
    inputs = {name: torch.cat([batch[name] for batch, _ in batches]) for name in batches[0][0]}
    return inputs, torch.cat([labels for _, labels in batches]).float()


def rows_of(inputs: Mapping[str, torch.Tensor], rows: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: column[rows] for name, column in inputs.items()}


def standardized(parts: dict[str, Any], encoded: set[str]) -> None:
    """Scale target encodings, which are in the units of the target."""
    for name in encoded:
        column = parts["train"][0][name]
        mean, deviation = column.mean(), column.std()
        for inputs, _ in parts.values():
            inputs[name] = (inputs[name] - mean) / deviation


def score(parts: dict[str, Any], sizes: Mapping[str, int], seed: int, *, is_class: bool) -> float:
    """Train once, and return the metric of the test rows."""
    torch.manual_seed(seed)
    inputs, labels = parts["train"]
    mean, deviation = (labels.mean(), labels.std()) if not is_class else (0.0, 1.0)
    model = Network(inputs, sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    loss_of = nn.BCEWithLogitsLoss() if is_class else nn.MSELoss()
    best, kept = np.inf, torch.zeros(0)
    for _ in range(EPOCHS):
        model.train()
        for rows in torch.randperm(len(labels)).split(BATCH):
            optimizer.zero_grad()
            loss = loss_of(model(rows_of(inputs, rows)), (labels[rows] - mean) / deviation)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            watched, answers = parts["validation"]
            loss = float(loss_of(model(watched), (answers - mean) / deviation))
            if loss < best:
                best, kept = loss, model(parts["test"][0])
    answers = parts["test"][1]
    if is_class:
        return float(nn.BCEWithLogitsLoss()(kept, answers))
    return float((kept * deviation + mean - answers).square().mean().sqrt())


def measure(table: str, frame: pd.DataFrame, seeds: int) -> None:
    target = TARGETS[table]
    for name, features in encodings(frame, target).items():
        with tempfile.TemporaryDirectory() as folder:
            prep = dp.Preprocessor(features, targets=target, split=dp.RandomSplit(seed=0))
            dataset = prep.fit_write(frame, f"{folder}/rows.dp", progress=False)
            parts = {split: tensors(dataset[split], target) for split in ("train", "validation", "test")}
            sizes = {
                one: dataset.learned[one].num_embeddings
                for one, feature in features.items()
                if feature.kind == "category" and one != target
            }
        standardized(parts, {one for one, feature in features.items() if feature.kind == "target_encoding"})
        is_class = features[target].kind == "binary"
        found = [score(parts, sizes, seed, is_class=is_class) for seed in range(seeds)]
        width = Network(parts["train"][0], sizes).layers[0].in_features
        metric = "log loss" if is_class else "RMSE"
        print(f"{table:9}{name:37}{width:4} inputs   {metric} {np.mean(found):.4g} +- {np.std(found, ddof=1):.2g}")


def main() -> None:
    """Measure all tables, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, required=True, help="folder with adult.csv and diamonds.csv")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=100_000, help="of the table that is made")
    parser.add_argument("--only", choices=list(TARGETS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for table in TARGETS if arguments.only is None else [arguments.only]:
        frame = make_table(arguments.rows)
        if table != "made":
            frame = pd.read_csv(arguments.tables / f"{table}.csv", skipinitialspace=True)
        measure(table, frame, arguments.seeds)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(f"{used.ru_utime + used.ru_stime:.0f} processor seconds")


if __name__ == "__main__":
    main()
