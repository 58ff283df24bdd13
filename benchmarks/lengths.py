"""Batches of texts of different length: the share of padding, and rows per second, with and without cutting it.

    python benchmarks/lengths.py [--rows 200000] [--rounds 5]

Reviews have 34 tokens on average, and one has 2,000. Each figure is the median of epochs that run in turn.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

import daskprep as dp

WIDTH, BATCH = 2_000, 256
OPTIONS = {
    "whole rows": {},
    "trim": {"trim": True},
    "trim, group_by_length": {"trim": True, "group_by_length": "review"},
}


def make_table(rows: int) -> pa.Table:
    """Return texts of log-normal lengths: half have 30 tokens or less, one in a hundred has more than 95."""
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(3.4, 0.5, rows)), 1, 150).astype(int)
    lengths[rows // 2] = WIDTH
    words = np.array([f"w{number}" for number in range(20_000)])
    texts = [
        " ".join(words[row]) for row in np.split(rng.integers(0, len(words), lengths.sum()), np.cumsum(lengths)[:-1])
    ]
    return pa.table({"review": texts})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        table = make_table(arguments.rows)
        prep = dp.Preprocessor({"review": dp.Text(max_sequence_length=WIDTH)}, split=None)
        train = prep.fit_write(table, Path(name) / "long.dp", progress=False)["train"]
        short = dp.Preprocessor({"review": dp.Text(max_sequence_length=64)}, split=None)
        cut = short.fit_write(table, Path(name) / "short.dp", progress=False)["train"]
        loaders = {text: train.loader(BATCH, seed=1, **options) for text, options in OPTIONS.items()}
        loaders["written with 64 tokens, others lost"] = cut.loader(BATCH, seed=1)
        seconds: dict[str, list[float]] = {text: [] for text in loaders}
        padding = {}
        for _ in range(arguments.rounds):
            for text, loader in loaders.items():
                began, places = time.perf_counter(), 0
                for batch in loader:
                    places += batch["review"].numel()
                seconds[text].append(time.perf_counter() - began)
                if text not in padding:
                    padding[text] = 1 - sum(int((batch["review"] != 0).sum()) for batch in loader) / places
    print("| batches | padding | rows/s | of whole rows |\n|---|---|---|---|")
    base = median(seconds["whole rows"])
    for text, times in seconds.items():
        rate = arguments.rows / median(times)
        print(f"| {text} | {padding[text]:.2f} | {rate:,.0f} | {base / median(times):.1f} |")


if __name__ == "__main__":
    main()
