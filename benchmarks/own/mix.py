"""Rows of a weighted mix of five datasets, per second and CPU second, compared with one loader of them, alternating.

    python -m benchmarks.own.mix [--rows 1000000] [--rounds 7]

Rates of a mix are divided by those of the loader in the same round. Ratios are medians, with the lowest and highest.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

import daskprep as dp

WEIGHTS = {"web": 50, "books": 20, "code": 15, "wiki": 10, "chat": 5}
TOKENS = 256


def make_table(kind: str, rows: int, seed: int) -> pa.Table:
    """Return rows of eight numbers and four categories, or of texts of tokens."""
    rng = np.random.default_rng(seed)
    if kind == "texts":
        words = np.array([f"w{number}" for number in range(5_000)])
        return pa.table({"text": [" ".join(row) for row in words[rng.integers(0, len(words), (rows, TOKENS))]]})
    columns = {f"n{number}": pa.array(rng.normal(size=rows)) for number in range(8)}
    cities = np.array([f"c{number}" for number in range(200)])
    return pa.table(columns | {f"c{number}": pa.array(cities[rng.integers(0, 200, rows)]) for number in range(4)})


def rates(batches: Iterable[dict]) -> np.ndarray:
    """Return the rows per second and per CPU second of an iteration."""
    began, rows = (time.perf_counter(), time.process_time()), 0
    for batch in batches:
        rows += len(next(iter(batch.values())))
    return rows / (np.array((time.perf_counter(), time.process_time())) - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="of tables; texts are a tenth")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    header = "rows", "batch size", "loader, rows/s", "mix, rows/s", "ratio", "ratio of processor time"
    print(f"| {' | '.join(header)} |\n{'|---' * len(header)}|")
    with tempfile.TemporaryDirectory() as name:
        for kind, rows in (("table", arguments.rows), ("texts", arguments.rows // 10)):
            features = (
                {"text": dp.Text(max_sequence_length=TOKENS)}
                if kind == "texts"
                else dp.infer_features(make_table(kind, 10_000, 0))
            )
            prep = dp.Preprocessor(features).fit(make_table(kind, 10_000, 0))
            paths = {one: Path(name) / kind / one for one in WEIGHTS}
            for seed, (one, path) in enumerate(paths.items()):
                prep.write(make_table(kind, rows * WEIGHTS[one] // 100, seed), path, progress=False)
            sources = {one: dp.open_dataset(path)["train"] for one, path in paths.items()}
            joined = dp.open_dataset(list(paths.values()))["train"]
            for batch_size in (256, 1024, 4096):
                loader = joined.loader(batch_size, drop_last=True)
                mix = dp.Mix(sources, batch_size, weights=WEIGHTS, until="first")
                rounds = np.array([(rates(loader), rates(mix)) for _ in range(arguments.rounds + 1)])[1:]
                ratios = np.sort(rounds[:, 1] / rounds[:, 0], axis=0)
                alone, mixed = np.median(rounds[..., 0], axis=0)
                cells = [f"{one[len(one) // 2]:.2f} ({one[0]:.2f} to {one[-1]:.2f})" for one in ratios.T]
                print(f"| {kind} | {batch_size:,} | {alone:,.0f} | {mixed:,.0f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
