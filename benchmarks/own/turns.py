"""Releases of Python's lock during a write and an epoch of a loader, for a million rows, by stage and by line.

    python -m benchmarks.own.turns --data data/1m --rows 1000000 [--lines 30]

Each release is a turn: the thread waits until it has the lock again, the longer the more threads there are. The number
of turns does not depend on the machine, so two cores show what sixteen will feel. It needs a C compiler and a Python
with a shared library; turns.c counts. Prints a JSON line for each stage, and one for each line with many turns.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LIBRARY = "DASKPREP_TURNS"


def compile_counter(folder: Path) -> Path:
    """Return the compiled library with the counter."""
    library = folder / "turns.so"
    include = f"-I{sysconfig.get_path('include')}"
    source = Path(__file__).with_name("turns.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", include, "-o", library, source, "-ldl"], check=True)
    return library


class Turns:
    """Counts of releases of the lock since the last `take`."""

    def __init__(self) -> None:
        path = os.environ[_LIBRARY]
        self._total = ctypes.CDLL(path).turns_total
        self._total.restype = ctypes.c_ulong
        # PyDLL: the calling thread keeps the lock.
        self._by_line = ctypes.PyDLL(path).turns_by_line
        self._by_line.restype = ctypes.py_object
        self._before: tuple[int, Counter[str]] = (0, Counter())

    def take(self) -> tuple[int, Counter[str]]:
        """Return the number of turns since the last call, in total and by line of the package."""
        total, lines = self._total(), Counter[str]()
        for code, line, count in self._by_line():
            lines[f"{code.co_filename.rpartition('/daskprep/')[2]}:{line} {code.co_qualname}"] += count
        before, self._before = self._before, (total, lines)
        return total - before[0], lines - before[1]


def main() -> None:
    """Compile the counter, and run the jobs in a process that preloads it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that prep.py reads")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--lines", type=int, default=0, help="number of lines of the package to print for each stage")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if _LIBRARY not in os.environ:
            library = str(compile_counter(Path(folder)))
            subprocess.run(
                [sys.executable, *sys.argv], check=True, env=os.environ | {_LIBRARY: library, "LD_PRELOAD": library}
            )
            return
        count_stages(options, Path(folder))


def count_stages(options: argparse.Namespace, folder: Path) -> None:
    """Print the turns of each stage of a write, and of an epoch of a loader."""
    import daskprep as dp
    from benchmarks.peers.common import GROUPS, first_files
    from benchmarks.peers.ours_prep import feature_of
    from daskprep.sources.partitions.progress import Progress

    files, counted = first_files(options.data, options.rows), Turns()
    features = {name: feature_of(group) for group, names in GROUPS.items() for name in names}

    def write() -> None:
        dp.Preprocessor(features).fit_write(files, folder / "a.dp", progress=False, overwrite=True, workers="threads")

    def report(stage: str) -> None:
        turns, lines = counted.take()
        print(json.dumps({"stage": stage, "turns": turns, "per_million_rows": round(turns / options.rows * 1e6)}))
        for line, number in lines.most_common(options.lines):
            print(json.dumps({"stage": stage, "line": line, "turns": number}))

    write()  # warm up imports
    counted.take()
    stages: list[str] = []
    original: Callable[..., Any] = Progress.stage

    def stage(self: Progress, name: str, **options: Any) -> Any:
        report(stages[-1] if stages else "planning")
        stages.append(name)
        return original(self, name, **options)

    Progress.stage = stage  # type: ignore[method-assign]
    write()
    report(stages[-1])
    loader = dp.open_dataset(folder / "a.dp")["train"].loader(1024, expand=False)
    for _ in loader:
        pass
    counted.take()
    for _ in loader:
        pass
    report("loading an epoch")


if __name__ == "__main__":
    main()
