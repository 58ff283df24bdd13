"""A dataset of three splits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.dataset import Dataset

ROWS = 200

Rows = Callable[[Iterable[Any]], list[list[int]]]


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a dataset of 160 training, 20 validation and 20 test rows."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "price": np.arange(ROWS) * 1.0,
            "area": rng.normal(size=ROWS),
            "steps": [" ".join(rng.choice(list("abc"), length)) for length in rng.integers(1, 9, ROWS)],
            "sold": rng.choice([True, False], ROWS),
        }
    )
    features = {"price": "number", "area": "number", "steps": dp.Sequence(), "sold": "binary"}
    folder: Path = tmp_path_factory.mktemp("training") / "listings.dp"
    prep = dp.Preprocessor(features, split=dp.RandomSplit((0.8, 0.1, 0.1)))
    prep.fit_write(table, folder, block_rows=8)
    return folder


@pytest.fixture(scope="session")
def dataset(path: Path) -> Dataset:
    return dp.open_dataset(path)


@pytest.fixture(scope="session")
def rows() -> Rows:
    """Return the row ids of each batch."""

    def rows_of(batches: Iterable[Any]) -> list[list[int]]:
        return [batch["row_id"].tolist() for batch in batches]

    return rows_of
