"""A dataset with a column of every type, written once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.dataset import Dataset
from daskprep.extensions.media.audio import encode_wav
from daskprep.extensions.media.pixels import encode_png

ROWS = 300
NASTY = "<script>alert(1)</script>"
TOKENS = ['<img src=x onerror="alert(2)">', "a&b", "</style>", "plain"]

FEATURES: dict[str, Any] = {
    "price": dp.Number(missing_value_strategy="fill_with_mean"),
    "rooms": dp.Number(normalization="minmax"),
    "area": dp.Number(normalization="log1p"),
    "city": "category",
    "tags": "set",
    "bag": dp.Bag(column="tags"),
    "steps": dp.Sequence(column="tags"),
    "review": dp.Text(level="both", column="tags"),
    "curve": "timeseries",
    "point": "vector",
    "listed": "date",
    "cell": "h3",
    "photo": dp.Image(height=6, width=8, num_channels=3),
    "thumb": dp.Image(height=6, width=8, num_channels=1, mode="eager", column="photo"),
    "noise": dp.Audio(type="raw", audio_file_length_limit_in_s=0.1),
    "bands": dp.Audio(column="noise", audio_file_length_limit_in_s=0.2, num_filter_bands=8, mode="eager"),
    "sold": "binary",
    NASTY: "category",
    # Wider than a phone screen, without a place to break.
    "long" * 20: dp.Number(column="area"),
}


def make_frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (ROWS, 6, 8, 3), dtype=np.uint8)
    waves = rng.normal(size=(ROWS, 1600)).astype(np.float32) / 8
    return pd.DataFrame(
        {
            "price": pd.Series(rng.lognormal(4, 0.5, ROWS).round(2)).mask(rng.random(ROWS) < 0.1),
            "rooms": rng.integers(1, 8, ROWS),
            "area": rng.lognormal(3, 1, ROWS),
            "city": rng.choice(["Oslo", "Rome", "Lima"], ROWS, p=[0.6, 0.3, 0.1]),
            "tags": [" ".join(rng.choice(["red", "green", "blue"], rng.integers(0, 4))) for _ in range(ROWS)],
            "curve": [" ".join(map(str, row)) for row in rng.normal(size=(ROWS, 5)).round(2)],
            "point": [" ".join(map(str, row)) for row in rng.normal(size=(ROWS, 2)).round(2)],
            "listed": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 200 * 24, ROWS), unit="h"),
            "cell": rng.choice(["8928308280fffff", "622236750694711295"], ROWS),
            "photo": [encode_png(one) for one in pixels],
            "noise": [encode_wav(one, 8000) for one in waves],
            "sold": rng.choice(["yes", "no"], ROWS, p=[0.2, 0.8]),
            NASTY: rng.choice(TOKENS, ROWS),
        }
    )


@pytest.fixture(scope="session")
def frame() -> pd.DataFrame:
    return make_frame()


@pytest.fixture(scope="session")
def path(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "made.dp"
    balance = dp.Oversample("sold", ratio=0.8)
    prep = dp.Preprocessor(FEATURES, split=dp.RandomSplit(seed=0), balance=balance)
    prep.fit_write(frame, folder, shuffle=True, block_rows=16)
    return folder


@pytest.fixture
def dataset(path: Path) -> Dataset:
    return dp.open_dataset(path, trusted=True)
