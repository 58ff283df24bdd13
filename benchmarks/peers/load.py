"""Compare daskprep's loader with others on one table: alternating runs, ratios of medians, a Markdown table.

    python -m benchmarks.peers.gen --encoded --rows 2000000 --data bench-data/tab
    python -m benchmarks.peers.load --data bench-data/tab --rounds 3
    python -m benchmarks.peers.load --data bench-data/tab --mixing

Each tool is a script that prints JSON lines. Runs go one at a time, each in a fresh process. With --mixing, the labels
of rows sorted by label are compared with those of a full permutation, batch by batch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import daskprep as dp

Run = dict[str, Any]

OURS = "daskprep, lz4"
# The script and its options; daskprep's scripts are next to this file.
TOOLS = {
    OURS: ["ours_load"],
    "daskprep, not compressed": ["ours_load", "--compression", "none"],
    "daskprep, lz4, smallest types": ["ours_load", "--smallest"],
    "memmap, packed": ["peer_memmap", "--variant", "packed"],
    "memmap, columns": ["peer_memmap", "--variant", "columns"],
    "memmap, sorted columns": ["peer_memmap", "--variant", "sorted-columns"],
    "torch": ["peer_memmap", "--variant", "torch", "--max-s", "20", "--epochs", "1"],
}
TABLE_HEAD = (
    "| tool | rows/s | ours, times as fast | first batch, s | in the middle, s | peak anonymous memory, MB | mix "
    "| work of others, cores |\n|---|---|---|---|---|---|---|---|"
)


def run_once(name: str, arguments: argparse.Namespace) -> Run:
    """Run one tool in a fresh process and read its JSON line."""
    script, *options = TOOLS[name]
    shared = ["--data", arguments.data, "--epochs", arguments.epochs, "--batch", arguments.batch]
    command = [str(part) for part in [sys.executable, "-m", f"benchmarks.peers.{script}", *shared, *options]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    if done.returncode or not lines:
        raise SystemExit(f"{name} failed with exit {done.returncode}:\n{done.stderr[-2000:]}")
    run: Run = {}
    for line in lines:
        run |= line
    return run


def run_in_turn(arguments: argparse.Namespace) -> dict[str, list[Run]]:
    """Run the tools in rounds, so that drift of the machine affects all of them equally."""
    runs: dict[str, list[Run]] = {name: [] for name in TOOLS if not arguments.only or name in arguments.only}
    for round_number in range(arguments.rounds):
        for name, done in runs.items():
            done.append(run_once(name, arguments))
            figures = {key: done[-1].get(key) for key in ("epochs", "first_batch_s", "resumed_s", "cpus_of_others")}
            print(f"round {round_number + 1} {name:25} {figures}", file=sys.stderr, flush=True)
    return runs


def table_row(name: str, runs: dict[str, list[Run]]) -> str:
    """Return one line of the table: medians of a tool, and the speedup of daskprep in the same rounds."""

    def middle(tool: str, key: str) -> float:
        return float(median(run[key] for run in runs[tool]))

    rate = middle(name, "median_after_first")
    cells = [
        name,
        f"{rate:,.0f}",
        f"{middle(OURS, 'median_after_first') / rate:.2f}" if OURS in runs else "",
        f"{middle(name, 'first_batch_s'):.3f}",
        f"{middle(name, 'resumed_s'):.3f}" if "resumed_s" in runs[name][0] else "",
        f"{middle(name, 'peak_anon_mb'):,.0f}",
        f"{median(run['mix'][0] for run in runs[name]):.3f}",
        f"{middle(name, 'cpus_of_others'):.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def mixing_row(name: str, labels: list[np.ndarray], classes: int) -> str:
    """Return one line of the mixing table: variation of classes, and correlation of consecutive batches."""
    shares = np.array([np.bincount(batch, minlength=classes) / len(batch) for batch in labels])
    expected = np.sqrt((1 - 1 / classes) / classes / len(labels[0]))
    after = [np.corrcoef(shares[:-1, label], shares[1:, label])[0, 1] for label in range(classes)]
    present = np.mean([len(np.unique(batch)) for batch in labels])
    return (
        f"| {name} | {present:.1f} of {classes} | {shares.std(axis=0).mean() / expected:.2f} | {np.mean(after):+.3f} |"
    )


def mixing(rows: int, batch: int, classes: int = 10) -> None:
    """Print how well batches of rows sorted by label are mixed."""
    from benchmarks.peers.ours_load import write_dataset

    columns = {"label": np.arange(rows) * classes // rows, "row": np.arange(rows)}
    print("| order | classes in a batch | spread of their shares, against chance | correlation of successive batches |")
    print("|---|---|---|---|")
    shuffled = np.random.default_rng(0).permutation(columns["label"])
    print(mixing_row("full permutation", np.split(shuffled, range(batch, rows, batch))[:-1], classes))
    with tempfile.TemporaryDirectory() as folder:
        for block_rows in (None, 4096):
            path = Path(folder) / f"{block_rows}.dp"
            write_dataset(columns, path, "lz4", block_rows)
            train = dp.open_dataset(path)["train"]
            for streams in (16, 64):
                loader = train.loader(batch, streams=streams, expand=False, drop_last=True)
                labels = [given["label"].numpy().copy() for given in loader]
                name = f"{streams} streams, blocks of {train.layout.block_rows:,} rows"
                print(mixing_row(name, labels, classes), flush=True)


def main() -> None:
    """Run all tools and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with npy/ and packed/")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(TOOLS), help="a part of the tools")
    parser.add_argument("--mixing", action="store_true", help="measure how well rows are mixed, and nothing else")
    arguments = parser.parse_args()
    arguments.data = arguments.data.resolve()
    if arguments.mixing:
        mixing(2_000_000, arguments.batch)
        return
    runs = run_in_turn(arguments)
    print(TABLE_HEAD)
    for name in runs:
        print(table_row(name, runs))
    print(json.dumps(runs), file=sys.stderr)


if __name__ == "__main__":
    main()
