"""Compare daskprep with other tools on one job: alternating runs, ratios of medians, a Markdown table.

    python -m benchmarks.peers.prep --data data/1m --rows 1000000

Each peer is a script `peer_<name>.py` that takes --data, --rows, --out, --cols and prints
one JSON line. Runs go one at a time, each in a fresh process. The peers write their result to
disk, as our mode fit_write does (in blocks, with checksums, flushed to the disk); mode fit_encode writes nothing.
Of the digests, `tags.sum` and `tags.real` differ by nature: a set holds each item once, the peers keep repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.common import PYTHON

Run = dict[str, Any]

OURS = "daskprep"
TABLE_HEAD = (
    "| rows | columns | tool | rows/s | peak memory, MB | time, ours as a share | memory, ours as a share "
    "| rounds | work of others, cores |\n|---|---|---|---|---|---|---|---|---|"
)


def command(name: str, arguments: argparse.Namespace, out: Path) -> list[str]:
    """Return the command line of one run."""
    if name == OURS:
        script, python, extra = "ours_prep", sys.executable, ["--mode", arguments.mode]
    else:
        script, python, extra = f"peer_{name}", arguments.peer_python, []
    options = ["--data", arguments.data, "--rows", arguments.rows, "--out", out, "--cols", arguments.cols]
    return [str(part) for part in [python, "-m", f"benchmarks.peers.{script}", *options, *extra]]


def run_once(name: str, arguments: argparse.Namespace, out: Path) -> Run:
    """Run one tool in a fresh process and read its JSON line."""
    done = subprocess.run(
        command(name, arguments, out),
        capture_output=True,
        text=True,
        check=False,
        timeout=arguments.limit,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"peer"')]
    if done.returncode or not lines:
        raise SystemExit(f"{name} failed with exit {done.returncode}:\n{done.stderr[-2000:]}")
    run: Run = json.loads(lines[-1])
    return run


def run_in_turn(arguments: argparse.Namespace) -> dict[str, list[Run]]:
    """Run the tools in rounds, so that drift of the machine affects all of them equally."""
    runs: dict[str, list[Run]] = {name: [] for name in [OURS, *arguments.against]}
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
        for round_number in range(arguments.rounds):
            for name in runs:
                out = Path(folder) / name
                run = run_once(name, arguments, out)
                shutil.rmtree(out, ignore_errors=True)
                # Pending disk writes of one tool must not slow down the next.
                os.sync()
                runs[name].append(run)
                print(
                    f"round {round_number + 1} {name:10} {run['wall_s']:.2f} s, {run['rows_per_s']:,} rows/s "
                    f"{run['peak_rss_mb']:,} MB, others {run['other_cpu_s']} s, stages {run['stages']}",
                    file=sys.stderr,
                    flush=True,
                )
    return runs


def middle(runs: list[Run], key: str) -> float:
    """Return the median of a figure over the rounds."""
    return float(median(run[key] for run in runs))


def differences(ours: Run, theirs: Run) -> list[str]:
    """Describe differences between two digests, for the columns that both report."""
    shared = [name for name in ours["digest"] if name in theirs["digest"]]
    return [
        f"{name}.{key}: {ours['digest'][name][key]} here, {theirs['digest'][name][key]} in {theirs['peer']}"
        for name in shared
        for key in ours["digest"][name]
        if ours["digest"][name][key] != theirs["digest"][name].get(key)
    ]


def table_row(name: str, runs: dict[str, list[Run]], arguments: argparse.Namespace) -> str:
    """Return one line of the table: medians of a tool, and those of daskprep as a share of them."""
    theirs, ours = runs[name], runs[OURS]
    wall, memory = middle(theirs, "wall_s"), middle(theirs, "peak_rss_mb")
    others = median(run["other_cpu_s"] / max(run["wall_s"], 0.01) for run in theirs)
    label = f"{name}, {arguments.mode}" if name == OURS else f"{name}, fit, encode, write"
    cells = [
        f"{arguments.rows:,}",
        arguments.cols,
        label,
        f"{arguments.rows / wall:,.0f}",
        f"{memory:,.0f}",
        f"{middle(ours, 'wall_s') / wall:.2f}",
        f"{middle(ours, 'peak_rss_mb') / memory:.2f}",
        str(len(theirs)),
        f"{others:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run all tools and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--cols", default="all")
    parser.add_argument("--against", nargs="*", default=["polars"])
    parser.add_argument("--mode", choices=["fit_write", "fit_encode"], default="fit_write")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-python", default=PYTHON, help="interpreter that has the peers' packages")
    parser.add_argument("--scratch", type=Path, help="where outputs go for a moment; default: the temporary folder")
    parser.add_argument("--limit", type=float, default=600, help="seconds after which a run is stopped")
    arguments = parser.parse_args()
    arguments.data = arguments.data.resolve()

    runs = run_in_turn(arguments)
    print(TABLE_HEAD)
    for name in runs:
        print(table_row(name, runs, arguments))
    print()
    for name in arguments.against:
        differing = differences(runs[OURS][-1], runs[name][-1])
        print(f"results against {name}: " + ("; ".join(differing) or "equal digests"))
    print(json.dumps(runs), file=sys.stderr)


if __name__ == "__main__":
    main()
