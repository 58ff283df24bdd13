"""Streams of daskprep: overlap of encoding and training, bounded memory, and speed compared with Ray Data.

    python -m benchmarks.peers.stream --data bench-data/stream

Each run is a fresh process, one at a time. After `make peers`, Ray Data reads the same file with the same
preprocessing, in turn with ours, shuffled within a buffer of as many rows as half our window.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.common import PYTHON

Run = dict[str, Any]

# An encoded row of the table: 8 floats, 4 ids of 2 bytes, a label, and the overhead of a stream.
ROW_BYTES = 8 * 4 + 4 * 2 + 1 + 24
# 20 ids of 2 bytes.
TEXT_BYTES = 40


def run_once(python: str | Path, script: str, *options: object) -> Run:
    """Run a script in a fresh process and read its JSON line."""
    command = [str(part) for part in (python, "-m", f"benchmarks.peers.{script}", *options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"tool"')]
    if done.returncode or not lines:
        raise SystemExit(f"{script} failed with exit {done.returncode}:\n{done.stderr[-2000:]}")
    run: Run = lines[-1]
    print(f"{script}: { {key: run[key] for key in list(run)[:8]} }", file=sys.stderr, flush=True)
    return run


def middle(runs: list[Run], key: str) -> float:
    return float(median(run[key] for run in runs))


def overlap(arguments: argparse.Namespace) -> None:
    """Print the time of encoding and training separately and together."""
    # Twenty windows: training on the last one cannot overlap with encoding.
    window = arguments.rows * (ROW_BYTES + TEXT_BYTES) // 10
    options = ("overlap", "--data", arguments.data, "--rows", arguments.rows, "--window", window)
    kinds = [(model, workers) for model in ("device", "large", "small") for workers in (0, 1)]
    runs: dict[tuple[str, int], list[Run]] = {kind: [] for kind in kinds}
    for _ in range(arguments.rounds):
        for model, workers in kinds:
            chosen = ("--model", model, "--workers", workers)
            runs[model, workers].append(run_once(sys.executable, "ours_stream", *options, *chosen))
    print("| encoded by | a step | encoding, s | training, s | both, s | both, times the longer | first batch, s |")
    print("|---|---|---|---|---|---|---|")
    names = ("encoding_s", "training_s", "both_s", "to_the_longer", "first_batch_s")
    for (model, workers), found in runs.items():
        cells = [f"{middle(found, name):.2f}" for name in names]
        ratios = sorted(run["to_the_longer"] for run in found)
        cells[3] += f" ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"| {'a worker process' if workers else 'a thread'} | {model} | {' | '.join(cells)} |")


def memory(arguments: argparse.Namespace) -> None:
    """Print the memory of a trainer and the workers over ten windows."""
    window = arguments.rows * ROW_BYTES // 10
    options = ("memory", "--data", arguments.data, "--rows", arguments.rows, "--window", window, "--workers", 2)
    print("| model | window, MB | trainer grew, MB | a worker grew, MB |\n|---|---|---|---|")
    for name, step in (("fast", 0.0), ("slow", 0.01)):
        run = run_once(sys.executable, "ours_stream", *options, "--step", step, "--epochs", 1)
        workers = max(run["workers_grew_mb"])
        print(f"| {name} | {window / 1e6:.0f} | {run['trainer_grew_mb']:.0f} | {workers:.0f} |")


def compare_with_ray(arguments: argparse.Namespace) -> None:
    """Print the rate of batches, alternating with Ray Data."""
    window = 2 * arguments.buffer * ROW_BYTES
    shared = ("--data", arguments.data, "--rows", arguments.rows)
    runs: dict[str, list[Run]] = {"daskprep": [], "Ray Data": []}
    for _ in range(arguments.rounds):
        runs["daskprep"].append(run_once(sys.executable, "ours_stream", "load", *shared, "--window", window))
        options = (*shared, "--buffer", arguments.buffer)
        runs["Ray Data"].append(run_once(arguments.python, "peer_ray_stream", *options))
    print("| tool | rows/s | first batch, s | peak anonymous memory, MB |\n|---|---|---|---|")
    for name, found in runs.items():
        cells = (middle(found, "rows_per_s"), middle(found, "first_batch_s"), middle(found, "peak_mb"))
        print(f"| {name} | {cells[0]:,.0f} | {cells[1]:.2f} | {cells[2]:,.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder for the table, which is made on the first run")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", default=PYTHON, help="an interpreter that has ray and torch")
    parser.add_argument("--buffer", type=int, default=250_000, help="rows that are shuffled together")
    parser.add_argument("--only", choices=["overlap", "memory", "ray"])
    arguments = parser.parse_args()
    if arguments.only in (None, "overlap"):
        overlap(arguments)
    if arguments.only in (None, "memory"):
        memory(arguments)
    if arguments.python != sys.executable and arguments.only in (None, "ray"):
        compare_with_ray(arguments)


if __name__ == "__main__":
    main()
