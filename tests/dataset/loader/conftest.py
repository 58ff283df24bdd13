"""A dataset of a few dozen blocks and the row ids of its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.dataset import Dataset, Split
from daskprep.storage import Folder

ROWS = 1003
FEATURES: dict[str, Any] = {
    "price": dp.Number(),
    "area": dp.Number(),
    "city": dp.Category(),
    "tags": dp.Set(),
    "review": dp.Text(level="both"),
    "sold": dp.Binary(),
}

Rows = Callable[[Iterable[Any]], list[np.ndarray]]


@pytest.fixture(scope="session")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "price": np.arange(ROWS) * 1.0,
            "area": rng.normal(size=ROWS),
            "city": rng.choice(["Rome", "Oslo", "Bern"], ROWS, p=[0.7, 0.2, 0.1]),
            "tags": rng.choice(["a b", "b", "c d e"], ROWS),
            "review": rng.choice(["Nice one!", "bad", "so so"], ROWS),
            "sold": rng.choice([True, False], ROWS, p=[0.1, 0.9]),
        }
    )


@pytest.fixture(scope="session")
def path(table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of the shared dataset; tests that damage it copy it."""
    folder: Path = tmp_path_factory.mktemp("loader") / "listings.dp"
    dp.Preprocessor(FEATURES).fit_write(table, folder, block_rows=32)
    return folder


@pytest.fixture(scope="session")
def dataset(path: Path) -> Dataset:
    return dp.open_dataset(path, trusted=True)


@pytest.fixture(scope="session")
def train(dataset: Dataset) -> Split:
    return dataset["train"]


@pytest.fixture
def stored(path: Path, memory: object, tmp_path: Path) -> Iterator[Dataset]:
    """The dataset in a store, whose requests are counted by `memory`."""
    url = f"memory://{tmp_path.name}/listings.dp"
    fsspec.filesystem("memory").put(str(path), url, recursive=True)
    yield dp.open_dataset(url, trusted=True)
    Folder.open(f"memory://{tmp_path.name}").remove_all()


@pytest.fixture(scope="session")
def rows() -> Rows:
    """Return the row ids of each batch."""

    def rows_of(batches: Iterable[Any]) -> list[np.ndarray]:
        return [batch["row_id"].numpy().copy() for batch in batches]

    return rows_of
