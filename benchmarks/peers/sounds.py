"""Compare daskprep's loader on short WAV files with librosa and memory maps: alternating runs, ratios of medians.

    python -m benchmarks.peers.media_data --media media --out bench-data
    python -m benchmarks.peers.sounds --data bench-data

The first second of each clip becomes samples ("raw") or logarithms of mel bands ("fbank"), in shuffled batches of 64.
The first epoch begins when the loader is there: in a fresh process, with an empty cache, and it writes that. librosa
makes as much of each clip in a loop; the lines of `audio.py` are its rates for clips in lists, without batches.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.common import PYTHON
from benchmarks.peers.media_runs import (
    Runs,
    Tool,
    chosen,
    first_rate,
    later_rate,
    middle,
    run_in_turn,
    table,
    times_as_fast,
    use_cores,
)

TYPES = ("fbank", "raw")
LAZY, CACHED = "daskprep, lazy", "daskprep, lazy_cached"
PARTS = "audio.py"
# One thread for BLAS: more make librosa slower.
ENVIRONMENT = ["env", "OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1"]


def array_of(arguments: argparse.Namespace, kind: str) -> Path:
    """Return the memory map of a type."""
    path: Path = arguments.data / "soundcache" / f"{kind}.npy"
    return path


def plain(arguments: argparse.Namespace, name: str, kind: str, *options: object) -> Tool:
    """Return a loop of librosa, or epochs over a memory map."""
    shared = ["--data", arguments.data / "audio", "--type", kind]
    shared += ["--array", array_of(arguments, kind)]
    return Tool(
        f"{kind}: {name}", [*ENVIRONMENT, arguments.python, "-m", "benchmarks.peers.plain_media", *shared, *options]
    )


def ours(arguments: argparse.Namespace, name: str, kind: str, *options: object) -> Tool:
    """Return a run of daskprep."""
    shared = ["--data", arguments.data / "audio", "--out", arguments.data / "ours-sounds"]
    return Tool(
        f"{kind}: {name}",
        [sys.executable, "-m", "benchmarks.peers.ours_sounds", *shared, "--type", kind, *options],
        is_needed=True,
    )


def tools_of(arguments: argparse.Namespace) -> list[Tool]:
    """Return all tools, in the order of a round."""
    audio = [*ENVIRONMENT, arguments.python, "-m", "benchmarks.peers.audio", "--data", arguments.data / "audio"]
    tools = []
    for kind in TYPES:
        tools += [
            ours(arguments, CACHED, kind, "--mode", "lazy_cached", "--epochs", 6),
            ours(arguments, LAZY, kind, "--mode", "lazy", "--epochs", 1),
            plain(arguments, "librosa loop", kind, "--way", "librosa", "--epochs", 1),
            plain(arguments, "librosa loop, 2 threads", kind, "--way", "librosa", "--threads", 2, "--epochs", 1),
            plain(arguments, "memmap", kind, "--way", "rows", "--epochs", 6),
            plain(arguments, "memmap, sample by sample", kind, "--way", "samples", "--epochs", 6),
        ]
    tools.append(Tool(PARTS, audio, in_parts=True))
    return chosen(tools, arguments.only)


def prepare(arguments: argparse.Namespace) -> None:
    """Create missing memory maps."""
    for kind in TYPES:
        if not array_of(arguments, kind).exists():
            command = plain(arguments, "", kind, "--prepare").command
            subprocess.run([str(part) for part in command], check=True)


def best_of_threads(runs: Runs, name: str) -> float:
    """Return the median rate of a line of `audio.py`, with the fastest number of threads, 0 if it is missing."""
    return max((middle(runs.get(name, []), f"clips_per_s_{threads}t") or 0.0 for threads in (1, 2)), default=0.0)


def loops_of(runs: Runs) -> dict[str, float]:
    """Return the rates of `audio.py`."""
    names = {f"{kind}: {PARTS}": f"{PARTS}, {kind}" for kind in TYPES}
    return {name: best_of_threads(runs, part) for name, part in names.items() if part in runs}


def others_of(runs: Runs, name: str) -> str:
    """Return the rates of other tools as a cell of a table."""
    others = middle(runs.get(name, []), "cpus_of_others")
    return "" if others is None else f"{others:.2f}"


def first_rates(runs: Runs) -> dict[str, float]:
    """Return clips per second in the first epoch."""
    measured = {name: first_rate(done) for name, done in runs.items() if ": daskprep" in name or ": librosa" in name}
    return measured | loops_of(runs)


def first_table(runs: Runs, rates: dict[str, float]) -> str:
    """Return the table of the first epoch."""
    rows = []
    for name in sorted(rates):
        kind, rate = name.partition(":")[0], rates[name]
        against = [times_as_fast(rates.get(f"{kind}: {mode}"), rate) for mode in (LAZY, CACHED)]
        rows.append([name, f"{rate:,.0f}", *against, others_of(runs, name)])
    return table(
        ["tool", "clips/s, epoch 1", "lazy, times as fast", "lazy_cached, times as fast", "work of others"], rows
    )


def cached_table(runs: Runs, arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return the table of later epochs, and its figures."""
    rows, figures = [], {}
    for name in sorted(runs):
        kind = name.partition(":")[0]
        is_ours = name == f"{kind}: {CACHED}"
        if not is_ours and ": memmap" not in name:
            continue
        rate = later_rate(runs[name])
        array = array_of(arguments, kind)
        size = (middle(runs[name], "cache_bytes") or 0.0) if is_ours else float(array.stat().st_size)
        mine = runs.get(f"{kind}: {CACHED}")
        figures[name] = {"clips_per_s": rate, "bytes": size}
        against = times_as_fast(later_rate(mine) if mine else None, rate)
        rows.append([name, f"{rate:,.0f}", against, f"{size / 1e6:,.1f}", others_of(runs, name)])
    return table(
        ["tool", "clips/s, later epochs", "lazy_cached, times as fast", "MB on disk", "work of others"], rows
    ), figures


def main() -> None:
    """Run all tools and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with audio/; memory maps are made beside it")
    parser.add_argument("--python", default=PYTHON, help="interpreter that has the peers' packages")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=330, help="seconds that all rounds may take")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="tools whose name has one of these words")
    arguments = parser.parse_args()
    arguments.data = arguments.data.resolve()
    use_cores(arguments.cores)
    prepare(arguments)
    runs = run_in_turn(tools_of(arguments), arguments.rounds, arguments.limit)
    rates = first_rates(runs)
    cached, figures = cached_table(runs, arguments)
    print(first_table(runs, rates), cached, sep="\n\n", end="\n\n")
    print(json.dumps({"first_epoch": rates, "later_epochs": figures, "runs": runs}), flush=True)


if __name__ == "__main__":
    main()
