"""Batches of texts of different length: the share of padding, and rows per second, with and without trimming it.

    python -m benchmarks.peers.lengths [--rows 200000] [--rounds 5] [--peers trainer,trainer-2,streaming]

Reviews have 34 tokens on average, and one has 2,000. Each figure is the median of epochs that run in turn. `make peers`
installs what `trainer` needs; for `streaming`, install mosaicml-streaming in an environment and pass its interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

import daskprep as dp
from benchmarks.peers.common import PYTHON

WIDTH, BATCH = 2_000, 256
OPTIONS = {
    "whole rows": {},
    "trim": {"trim": True},
    "trim, group_by_length": {"trim": True, "group_by_length": "review"},
}
PART_ROWS, TOKENS = 16, 32_000


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


def write_ids(table: pa.Table, folder: Path) -> int:
    """Write the ids of all texts, and the ends of the rows, for the peers; return the number of ids."""
    words = [text.split() for text in table["review"].to_pylist()]
    np.save(folder / "ends.npy", np.cumsum([len(row) for row in words]))
    ids = np.array([int(word[1:]) + 1 for row in words for word in row])
    np.save(folder / "ids.npy", ids)
    return len(ids)


def run_peer(python: str, variant: str, folder: Path) -> tuple[float, float]:
    """Return the seconds of an epoch of a peer and its share of padding."""
    command = [
        python,
        "-m",
        "benchmarks.peers.peer_lengths",
        "--data",
        str(folder),
        "--batch",
        str(BATCH),
        "--variant",
        variant,
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    result = json.loads(done.stdout.splitlines()[-1])
    return result["seconds"], result["padding"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", default="", help="variants of peer_lengths.py, separated by commas")
    parser.add_argument("--peer-python", default=PYTHON, help="interpreter that has the packages of the peers")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        table = make_table(arguments.rows)
        prep = dp.Preprocessor({"review": dp.Text(max_sequence_length=WIDTH)}, split=None)
        train = prep.fit_write(table, Path(name) / "long.dp", progress=False)["train"]
        short = dp.Preprocessor({"review": dp.Text(max_sequence_length=64)}, split=None)
        cut = short.fit_write(table, Path(name) / "short.dp", progress=False)["train"]
        loaders = {text: train.loader(BATCH, seed=1, **options) for text, options in OPTIONS.items()}
        grouped = {"trim": True, "group_by_length": "review", "batch_tokens": TOKENS}
        loaders[f"trim, group_by_length, batch_tokens={TOKENS:,}"] = train.loader(PART_ROWS, seed=1, **grouped)
        loaders["written with 64 tokens, others lost"] = cut.loader(BATCH, seed=1)
        seconds: dict[str, list[float]] = {text: [] for text in loaders}
        padding = {}
        tokens, peers = write_ids(table, Path(name)), [one for one in arguments.peers.split(",") if one]
        for _ in range(arguments.rounds):
            for text, loader in loaders.items():
                began, places = time.perf_counter(), 0
                for batch in loader:
                    places += batch["review"].numel()
                seconds[text].append(time.perf_counter() - began)
                if text not in padding:
                    padding[text] = 1 - sum(int((batch["review"] != 0).sum()) for batch in loader) / places
            for variant in peers:
                time_of_epoch, padding[variant] = run_peer(arguments.peer_python, variant, Path(name))
                seconds.setdefault(variant, []).append(time_of_epoch)
    print("| batches | padding | rows/s | tokens/s | of whole rows |\n|---|---|---|---|---|")
    base = median(seconds["whole rows"])
    for text, times in seconds.items():
        rate = arguments.rows / median(times)
        own_tokens = f"{rate * tokens / arguments.rows:,.0f}"
        print(f"| {text} | {padding[text]:.2f} | {rate:,.0f} | {own_tokens} | {base / median(times):.1f} |")


if __name__ == "__main__":
    main()
