"""What scripts of daskprep and of the alternatives share, so that both measure alike: columns, timing, digests.

Needs no daskprep.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

PEERS = Path(__file__).parent
# `make peers` makes this environment.
PYTHON = str(PEERS / ".venv/bin/python") if (PEERS / ".venv/bin/python").exists() else sys.executable

# The table that is preprocessed: columns by kind, and how many special ids precede a vocabulary.
GROUPS = {
    "num": ["f0", "f1", "f2", "f3", "f4", "f5", "i0", "i1"],
    "label": ["label"],
    "cat": ["c10", "c1k", "c100k", "c2m"],
    "set": ["tags"],
    "text": ["text"],
    "ts": ["ts"],
    "date": ["time"],
}
SPECIAL_IDS = {"c10": 1, "c1k": 1, "c100k": 1, "c2m": 1, "tags": 2, "text": 2}
TEXT_WORDS, TEXT_LENGTH, SET_LENGTH, SERIES_LENGTH = 20_000, 64, 8, 16

# The encoded table that is loaded: the type and the shape of a row. `f0` holds the number of the row.
ENCODED: dict[str, tuple[str, tuple[int, ...]]] = {
    **{f"f{i}": ("float32", ()) for i in range(8)},
    **{f"c{i}": ("int32", ()) for i in range(6)},
    "text": ("int32", (TEXT_LENGTH,)),
    "ts": ("float32", (SERIES_LENGTH,)),
    "label": ("bool", ()),
}


def load_npy(folder: str | Path, mmap_mode: Any = None) -> dict[str, np.ndarray]:
    """Return the columns of the encoded table."""
    return {name: np.load(Path(folder) / "npy" / f"{name}.npy", mmap_mode) for name in ENCODED}


def first_files(folder: Path, rows: int) -> list[str]:
    """Return the first whole files that hold exactly `rows` rows, after reading them once into the page cache."""
    import pyarrow.parquet as pq

    names, seen = [], 0
    for path in sorted(folder.glob("part-*.parquet")):
        if seen == rows:
            break
        seen += pq.ParquetFile(path).metadata.num_rows
        path.read_bytes()
        names.append(str(path))
    if seen != rows:
        raise SystemExit(f"{folder} cannot give exactly {rows:,} rows in whole files (got {seen:,})")
    return names


def peak_memory_mb() -> int:
    """Return the highest resident memory of this process so far, from the kernel's own mark."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) >> 10


def machine_busy_s() -> float:
    """Return the CPU time that the whole machine has worked since it started."""
    first_line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    ticks = [int(field) for field in first_line.split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def own_cpu_s() -> float:
    """Return the CPU time of this process, in user and system mode."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Meter:
    """Times stages and, from its making to `result`, the whole."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}
        self._start = (time.perf_counter(), own_cpu_s(), machine_busy_s())

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of a block to a stage."""
        start = time.perf_counter()
        yield
        self.stages[name] = round(self.stages.get(name, 0.0) + time.perf_counter() - start, 3)

    def result(self) -> dict[str, float]:
        """Return seconds, megabytes, and what the rest of the machine did meanwhile."""
        end = (time.perf_counter(), own_cpu_s(), machine_busy_s())
        wall, cpu, busy = (now - then for now, then in zip(end, self._start, strict=True))
        return {
            "wall_s": round(wall, 2),
            "peak_rss_mb": peak_memory_mb(),
            "cpu_s": round(cpu, 2),
            "other_cpu_s": round(max(busy - cpu, 0.0), 1),
        }


def checksum(block: np.ndarray, special_ids: int | None) -> tuple[int, float, int]:
    """Return rows, the sum over all elements, and how many are not special ids."""
    accumulator = np.float64 if block.dtype.kind == "f" else np.int64
    real = 0 if special_ids is None else int(np.count_nonzero(block >= special_ids))
    return len(block), block.sum(dtype=accumulator).item(), real


def prep_parser(description: str) -> argparse.ArgumentParser:
    """Return the options of a script that fits, encodes and writes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cols", default="all", help=f"all, or a comma list of {' '.join(GROUPS)}")
    return parser


def groups_of(arguments: argparse.Namespace) -> list[str]:
    """Return the kinds of columns that are chosen."""
    return list(GROUPS) if arguments.cols == "all" else arguments.cols.split(",")


def print_run(name: str, arguments: argparse.Namespace, meter: Meter, measured: dict[str, float], **more: Any) -> None:
    """Print the JSON line of a script that fits, encodes and writes."""
    run = {"peer": name, "rows": arguments.rows, "cols": arguments.cols, **measured, "stages": meter.stages}
    print(json.dumps({**run, "rows_per_s": round(arguments.rows / max(measured["wall_s"], 0.01)), **more}), flush=True)


def parser(**defaults: Any) -> argparse.ArgumentParser:
    """Return the options of a script that loads batches."""
    options = argparse.ArgumentParser()
    options.add_argument("--data", default="bench-data/tab")
    options.add_argument("--batch", type=int, default=1024)
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--max-s", type=float, default=25.0, help="seconds after which an epoch is cut short")
    options.add_argument("--variant")
    options.set_defaults(**defaults)
    return options


def main(
    name: str,
    arguments: argparse.Namespace,
    epochs: Callable[[int], Iterable[dict[str, Any]]],
    *,
    rows: int,
    key: str = "f0",
    unit: str = "rows",
    notes: str = "",
) -> None:
    """Time epochs of batches, and print one JSON line. Each epoch must yield each row once, by the numbers in `key`."""
    from benchmarks.peers.stream_data import Peak

    rates, firsts, spreads, cpus = [], [], [], []
    start = (time.perf_counter(), own_cpu_s(), machine_busy_s())
    with Peak() as peak:
        for epoch in range(arguments.epochs):
            numbers: list[np.ndarray] = []
            began, cpu_before = time.perf_counter(), own_cpu_s()
            for batch in epochs(epoch):
                if not numbers:
                    firsts.append(time.perf_counter() - began)
                numbers.append(np.array(batch[key]).ravel())
                if time.perf_counter() - began > arguments.max_s:
                    break
            seconds = time.perf_counter() - began
            cpu_seconds = own_cpu_s() - cpu_before
            every = np.concatenate(numbers).astype(np.int64)
            rates.append(len(every) / seconds)
            cpus.append(1e6 * cpu_seconds / len(every))
            if len(np.unique(every)) != (len(every) if seconds > arguments.max_s else rows):
                raise SystemExit(f"epoch {epoch} of {name} lacks or repeats some of {rows:,} rows")
            # 1 is the spread of rows that are drawn from the whole table.
            spreads.append(float(np.mean([batch.std() for batch in numbers]) / (rows / np.sqrt(12))))
    end = (time.perf_counter(), own_cpu_s(), machine_busy_s())
    wall, cpu, busy = (now - then for now, then in zip(end, start, strict=True))
    line = {
        "peer": name,
        f"{unit}_per_s": round(max(rates)),
        "first_batch_s": round(firsts[0], 4),
        "peak_anon_mb": round(peak.tree_mb),
        "median_after_first": round(float(np.median(rates[1:] or rates))),
        "epochs": [round(rate) for rate in rates],
        "cpu_us_after_first": round(float(np.median(cpus[1:] or cpus)), 1),
        "mix": [round(spreads[-1], 3)],
        "cpus_of_others": round(max(busy - cpu, 0.0) / wall, 2),
        "notes": notes,
    }
    print(json.dumps(line), flush=True)


def fastest(job: Callable[[], object], count: int, repeats: int = 2) -> tuple[float, float]:
    """Return how many a second a job does at best, and the cores that others used meanwhile."""
    runs = []
    for _ in range(repeats):
        meter = Meter()
        began = time.perf_counter()
        job()
        seconds = time.perf_counter() - began
        runs.append((count / seconds, round(meter.result()["other_cpu_s"] / seconds, 2)))
    return max(runs)
