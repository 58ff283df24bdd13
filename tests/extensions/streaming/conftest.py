"""Rows in many partitions, fitted preprocessors, and helpers for batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import daskprep as dp
from daskprep.sources import FileSource, Source, read_files, table_from_pandas

ROWS = 1003
PARTITION_ROWS = 100
FEATURES: dict[str, Any] = {
    "price": dp.Number(normalization=None),
    "area": dp.Number(missing_value_strategy="bfill"),
    "age": dp.Number(missing_value_strategy="drop_row"),
    "city": "category",
    "tags": "set",
    "words": "bag",
    "steps": "sequence",
    "review": dp.Text(level="both"),
    "curve": "timeseries",
    "point": "vector",
    "day": "date",
    "cell": "h3",
    "sold": "binary",
}

Batches = Iterable[dict[str, torch.Tensor]]
Columns = dict[str, torch.Tensor]


@pytest.fixture(scope="session")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    words = ["alpha", "beta", "gamma", "delta"]
    return pd.DataFrame(
        {
            "price": np.arange(ROWS) * 1.0,
            "area": pd.Series(rng.normal(size=ROWS)).mask(rng.random(ROWS) < 0.3),
            "age": pd.Series(rng.normal(size=ROWS)).mask(rng.random(ROWS) < 0.1),
            "city": rng.choice(["Rome", "Oslo", "Bern"], ROWS, p=[0.7, 0.2, 0.1]),
            "tags": rng.choice(["a b", "b", "c d e"], ROWS),
            "words": rng.choice(["x x y", "y", "z"], ROWS),
            "steps": [" ".join(rng.choice(words, rng.integers(1, 6))) for _ in range(ROWS)],
            "review": rng.choice(["Nice one!", "bad", "so so"], ROWS),
            "curve": [" ".join(map(str, rng.integers(0, 9, 4))) for _ in range(ROWS)],
            "point": [" ".join(map(str, rng.integers(0, 9, 2))) for _ in range(ROWS)],
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 999, ROWS), unit="D"),
            "cell": rng.choice([622236750694711295, 617700169958293503], ROWS),
            "sold": rng.choice([True, False], ROWS, p=[0.1, 0.9]),
        }
    )


@pytest.fixture(scope="session")
def prep(table: pd.DataFrame) -> dp.Preprocessor:
    """A fitted Preprocessor with dropped, filled, split and repeated rows."""
    balance = dp.Oversample("sold", ratio=0.5)
    return dp.Preprocessor(FEATURES, split=dp.StratifiedSplit("city"), balance=balance).fit(table)


@pytest.fixture(scope="session")
def simple(table: pd.DataFrame) -> dp.Preprocessor:
    """A fitted Preprocessor that needs nothing from other partitions."""
    return dp.Preprocessor({"price": dp.Number(normalization=None), "city": "category"}).fit(table)


@pytest.fixture(scope="session")
def path(table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of many row groups."""
    file: Path = tmp_path_factory.mktemp("streaming") / "rows.parquet"
    table.to_parquet(file, row_group_size=PARTITION_ROWS)
    return file


@pytest.fixture
def parts(path: Path) -> FileSource:
    """The file, each row group a partition."""
    return read_files(path, partition_bytes=1)


class Gated(Source):
    """Partitions in memory that record reads, and wait until they are allowed."""

    in_memory = True

    def __init__(self, table: pd.DataFrame, rows: int = PARTITION_ROWS) -> None:
        self.columns = list(table.columns)
        self._pieces = [table.iloc[start : start + rows] for start in range(0, len(table), rows)]
        self.npartitions = len(self._pieces)
        self.row_counts = [len(piece) for piece in self._pieces]
        self.read_partitions: list[int] = []
        self.most_at_once = 0
        self.broken: set[int] = set()
        self._reading = 0
        self._lock = threading.Lock()
        self.changed = threading.Condition()
        self._allowed: float = float("inf")

    def allow(self, partitions: float) -> None:
        """Allow reads of `count` partitions in total; further ones wait."""
        with self.changed:
            self._allowed = partitions
            self.changed.notify_all()

    def read_rows(self, partition: int, columns: Sequence[str]) -> pa.Table:
        with self.changed:
            self.read_partitions.append(partition)
            self.changed.notify_all()
            turn = len(self.read_partitions)
            assert self.changed.wait_for(lambda: turn <= self._allowed, timeout=60)
        if partition in self.broken:
            raise OSError("the disk is broken")
        with self._lock:
            self._reading += 1
            self.most_at_once = max(self.most_at_once, self._reading)
        read = table_from_pandas(self._pieces[partition], list(columns))
        with self._lock:
            self._reading -= 1
        return read


@pytest.fixture
def gated(table: pd.DataFrame) -> Gated:
    return Gated(table)


@pytest.fixture(scope="session")
def joined() -> Callable[[Batches], Columns]:
    """Return the outputs of all batches, sorted by row."""

    def join(batches: Batches) -> Columns:
        parts = list(batches)
        columns = {name: torch.cat([batch[name] for batch in parts]) for name in parts[0]}
        order = columns["row_id"].sort(stable=True).indices
        return {name: column[order] for name, column in columns.items()}

    return join


@pytest.fixture(scope="session")
def numbers() -> Callable[[Batches], list[np.ndarray]]:
    """Return the row ids of each batch."""

    def rows_of(batches: Batches) -> list[np.ndarray]:
        return [batch["row_id"].numpy().copy() for batch in batches]

    return rows_of
