"""The table of stream benchmarks, and timing of runs: for daskprep's script and for those of others."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NUMBERS = [f"f{i}" for i in range(8)]
CATEGORIES = [f"c{i}" for i in range(4)]
TEXT, TOKENS = "text", 20
GROUP_ROWS = 25_000


def table_path(folder: Path, rows: int) -> Path:
    """Return a Parquet file with a number of rows, created if it is missing."""
    path = folder / f"stream-{rows}.parquet"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        words = np.array([f"word-{i:04d}" for i in range(1000)])
        writer = None
        made = path.with_suffix(".tmp")
        for start in range(0, rows, GROUP_ROWS):
            count = min(GROUP_ROWS, rows - start)
            columns: dict[str, Any] = {name: rng.normal(size=count) for name in NUMBERS}
            columns |= {name: words[rng.integers(0, 1000, count)] for name in CATEGORIES}
            columns[TEXT] = pa.array([" ".join(row) for row in words[rng.integers(0, 1000, (count, TOKENS))].tolist()])
            table = pa.table({**columns, "label": rng.random(count) < 0.1})
            writer = writer or pq.ParquetWriter(made, table.schema)
            writer.write_table(table, row_group_size=GROUP_ROWS)
        if writer is not None:
            writer.close()
        made.rename(path)
    return path


def timed(epoch: Callable[[], Iterable[Any]], epochs: int, step: float, label: str) -> dict[str, float]:
    """Load some epochs, with a model that takes a number of seconds per batch, and return the rates."""
    rows = 0
    began = time.perf_counter()
    first = 0.0
    for _ in range(epochs):
        for batch in epoch():
            first = first or time.perf_counter() - began
            rows += len(batch[label])
            if step:
                time.sleep(step)
    seconds = time.perf_counter() - began
    return {"rows": rows, "seconds": seconds, "rows_per_s": rows / seconds, "first_batch_s": first}


class Peak:
    """The peak anonymous memory of this process, of its tree, and of some others, while a block runs."""

    def __init__(self, others: Iterable[int] = ()) -> None:
        self._others = list(others)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.tree_mb = 0.0
        self.grew_mb = 0.0
        self.others_grew_mb: list[float] = []

    def __enter__(self) -> Self:
        self._before = [anonymous_mb(pid) for pid in (os.getpid(), *self._others)]
        self._most = list(self._before)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        grew = [most - before for most, before in zip(self._most, self._before, strict=True)]
        self.grew_mb, self.others_grew_mb = grew[0], grew[1:]

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            now = [anonymous_mb(pid) for pid in (os.getpid(), *self._others)]
            self._most = [max(pair) for pair in zip(self._most, now, strict=True)]
            self.tree_mb = max(self.tree_mb, sum(map(anonymous_mb, tree(os.getpid()))))


def anonymous_mb(pid: int) -> float:
    """Return the memory of a process without files: private and shared pages; 0 after it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    fields = dict(line.split(":", 1) for line in lines)
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem") if name in fields) / 1000


def tree(pid: int) -> Iterator[int]:
    """Yield a process and its children."""
    yield pid
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield from tree(child)
