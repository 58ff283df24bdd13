"""Scripts that print JSON lines, in alternating runs (A B A B ...), and the medians of their figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

Run = dict[str, Any]
Runs = dict[str, list[Run]]


@dataclass(frozen=True)
class Tool:
    """A script to run, each time in a fresh process.

    Parameters
    ----------
    name : str
        What tables call it.
    command : sequence
        Interpreter, script and options.
    folder : Path, optional
        Where it runs.
    is_needed : bool
        Whether nothing is to be measured without it; others are left out, with a note, when they fail.
    in_parts : bool
        Whether each of its lines is of a thing of its own, named by "peer"; else all lines together are of one run.
    """

    name: str
    command: Sequence[object]
    folder: Path | None = None
    is_needed: bool = False
    in_parts: bool = False


class FailedError(Exception):
    """A tool printed no figures."""


def run_once(tool: Tool) -> dict[str, Run]:
    """Run a tool and return its figures by name."""
    command = [str(part) for part in tool.command]
    done = subprocess.run(command, cwd=tool.folder, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    if done.returncode or not any("peer" in line and "error" not in line for line in lines):
        raise FailedError(f"{tool.name} failed with exit {done.returncode}:\n{done.stderr[-2000:]}{done.stdout[-500:]}")
    if tool.in_parts:
        return {f"{tool.name}, {line['peer']}": line for line in lines if "peer" in line and "error" not in line}
    run: Run = {}
    for line in lines:
        run |= line
    return {tool.name: run}


def run_in_turn(tools: Sequence[Tool], rounds: int, limit_s: float) -> Runs:
    """Run the tools in rounds, so that drift of the machine affects all of them equally.

    No round begins that would end behind the limit if it took as long as the longest before.
    """
    runs: Runs = {}
    left = list(tools)
    began, longest = time.perf_counter(), 0.0
    for round_number in range(rounds):
        start = time.perf_counter()
        if start - began + longest > limit_s:
            print(f"no time for more than {round_number} rounds", file=sys.stderr, flush=True)
            break
        for tool in list(left):
            try:
                found = run_once(tool)
            except FailedError as error:
                if tool.is_needed:
                    raise SystemExit(str(error)) from None
                print(str(error), file=sys.stderr, flush=True)
                left.remove(tool)
                continue
            for name, run in found.items():
                runs.setdefault(name, []).append(run)
            # Pending disk writes of one tool must not slow down the next.
            os.sync()
        longest = max(longest, time.perf_counter() - start)
        print(f"round {round_number + 1}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return runs


def chosen(tools: Sequence[Tool], words: Sequence[str] | None) -> list[Tool]:
    """Return the tools whose name has one of the words, all if there are none."""
    return [tool for tool in tools if not words or any(word in tool.name for word in words)]


def use_cores(count: int) -> None:
    """Limit this process and its children to a number of cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def middle(runs: Sequence[Run], key: str) -> float | None:
    """Return the median of a figure over the rounds, None if it was not measured."""
    found = [run[key] for run in runs if run.get(key) is not None]
    return float(median(found)) if found else None


def first_rate(runs: Sequence[Run]) -> float:
    """Return the median rate of the first epoch."""
    return float(median(run["epochs"][0] for run in runs))


def later_rate(runs: Sequence[Run]) -> float:
    """Return the median, over the rounds, of the median rates after the first epoch."""
    return float(median(run["median_after_first"] for run in runs))


def times_as_fast(ours: float | None, theirs: float) -> str:
    """Return a ratio as a cell of a table."""
    return "" if ours is None else f"{ours / theirs:.2f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
