"""A small table of many column types, and helpers to compare written files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import daskprep as dp

ROWS = 600


def make_table(rows: int = ROWS, seed: int = 0) -> pd.DataFrame:
    """Make rows with missing and unreadable cells."""
    rng = np.random.default_rng(seed)
    price = pd.Series(rng.normal(size=rows)).astype(object)
    price[::17] = None
    price[11] = "abc"
    return pd.DataFrame(
        {
            "price": price,
            "city": rng.choice(np.array(["Rome", "Oslo", "Bern", None], object), rows),
            "tags": [" ".join(rng.choice(list("abcdef"), rng.integers(0, 4))) for _ in range(rows)],
            "review": [" ".join(rng.choice(["good", "bad", "Fine!"], rng.integers(0, 9))) for _ in range(rows)],
            "sold": rng.choice(["yes", "no"], rows, p=[0.2, 0.8]),
            "when": pd.date_range("2020", periods=rows, freq="h").astype(str)[
                np.random.default_rng(9).permutation(rows)
            ],
            "walk": rng.normal(size=rows),
        }
    )


def make_prep(**options: Any) -> dp.Preprocessor:
    """Make a Preprocessor for the table."""
    return dp.Preprocessor(
        {
            "price": dp.Number(missing_value_strategy="drop_row", normalization="zscore"),
            "city": "category",
            "tags": "set",
            "review": dp.Text(level="both"),
            "sold": "binary",
            "when": "date",
            "walk": dp.Timeseries(window_size=3, missing_value_strategy="ffill", across_splits=True),
        },
        **options,
    )


def tree(folder: Path) -> dict[str, bytes]:
    """Read every file below a folder."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def table() -> pd.DataFrame:
    return make_table()


@pytest.fixture
def prep() -> Callable[..., dp.Preprocessor]:
    return make_prep
