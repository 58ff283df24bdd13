"""Latency of serving: milliseconds to encode one row, a hundred and a thousand rows.

    python -m benchmarks.peers.serving [--calls 2000] [--fit-rows 200000]

The table has 16 features: 8 numbers, 4 categories of up to 20,000 values, a set, a text of 20 words, a date and a
binary. All are fitted on the same rows, and encode other rows, with some missing cells and some new categories. The
functions alternate in one process, a twentieth of the calls at a time. Prints a Markdown table of medians and of the
99th percentile.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder, StandardScaler

import daskprep as dp
from daskprep.serving import Encoder

NUMBERS = [f"number_{i}" for i in range(8)]
CATEGORIES = {"country": 200, "city": 20_000, "product": 20_000, "customer": 20_000}
PARTS = ("year", "month", "day", "day_of_week", "day_of_year", "hour", "minute", "second")
MISSING = 0.02
ROUNDS = 20
Call = Callable[[], Any]


def make_frame(rows: int, seed: int = 0) -> pd.DataFrame:
    """Return rows of 16 columns; other seeds have other rows of the same values."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {name: rng.normal(10 * i, 1 + i, rows) for i, name in enumerate(NUMBERS)}
    for name, distinct in CATEGORIES.items():
        columns[name] = [f"{name}-{i}" for i in np.minimum(rng.zipf(1.2, rows), distinct)]
    tags = rng.integers(0, 100, (rows, 4))
    columns["tags"] = [" ".join(f"tag{i}" for i in row) for row in tags]
    words = np.minimum(rng.zipf(1.3, (rows, 20)), 5_000)
    columns["review"] = [" ".join(f"word{i}" for i in row) for row in words]
    columns["seen"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 10**8, rows), unit="s")
    columns["sold"] = rng.choice(["yes", "no"], rows)
    frame = pd.DataFrame(columns)
    for name in (*NUMBERS, *CATEGORIES):
        frame.loc[rng.random(rows) < MISSING, name] = None
    return frame


def preprocessor() -> dp.Preprocessor:
    """Return the features of the table."""
    return dp.Preprocessor(
        {
            **{name: dp.Number(missing_value_strategy="fill_with_mean") for name in NUMBERS},
            **{name: dp.Category(most_common=None) for name in CATEGORIES},
            "tags": dp.Set(),
            "review": dp.Text(),
            "seen": dp.Date(),
            "sold": dp.Binary(),
        }
    )


def pipeline() -> ColumnTransformer:
    """Return the equivalent scikit-learn pipeline; all columns are encoded, in one sparse or dense matrix."""
    parts = FunctionTransformer(lambda dates: np.stack([getattr(dates["seen"].dt, part) for part in PARTS], axis=1))
    ordinal = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-1)
    return ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), NUMBERS),
            ("categories", ordinal, [*CATEGORIES, "sold"]),
            ("tags", CountVectorizer(tokenizer=str.split, token_pattern=None, binary=True), "tags"),
            ("review", CountVectorizer(max_features=20_000), "review"),
            ("seen", parts, ["seen"]),
        ]
    )


class ByHand:
    """The same job in plain Python, for rows as dicts: typical handwritten code for one model."""

    def __init__(self, prep: dp.Preprocessor) -> None:
        learned = prep.learned_
        self.scales = {name: (learned[name].mean, learned[name].std, learned[name].fill_value) for name in NUMBERS}
        self.ids = {name: _ids(learned[name]) for name in (*CATEGORIES, "tags", "review")}
        self.tags, self.words = learned["tags"].size, learned["review"].max_sequence_length

    def encode(self, rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        """Return one array per column."""
        found: dict[str, np.ndarray] = {}
        for name, (mean, std, fill) in self.scales.items():
            values = [fill if math.isnan(row[name]) else row[name] for row in rows]
            found[name] = np.array([(value - mean) / std for value in values], np.float32)
        for name in CATEGORIES:
            get = self.ids[name].get
            found[name] = np.array([get(row[name], 0) for row in rows])
        tags = [list(dict.fromkeys(row["tags"].split())) for row in rows]
        found["tags"] = _padded(tags, self.ids["tags"], self.tags)
        words = [re.findall(r"\w+|[^\w\s]", row["review"].lower()) for row in rows]
        found["review"] = _padded(words, self.ids["review"], self.words)
        found["seen"] = np.array([_date_parts(row["seen"]) for row in rows], np.int32)
        found["sold"] = np.array([row["sold"] == "yes" for row in rows], np.uint8)
        return found


def _ids(learned: Any) -> dict[str, int]:
    ids: dict[str, int] = learned.vocabulary.to_dict()["str2idx"]
    return ids


def _padded(tokens: list[list[str]], ids: dict[str, int], length: int) -> np.ndarray:
    out = np.zeros((len(tokens), length), np.int64)
    for i, row in enumerate(tokens):
        out[i, : len(row)] = [ids.get(token, 1) for token in row[:length]]
    return out


def _date_parts(when: Any) -> tuple[int, ...]:
    clock = when.hour * 3600 + when.minute * 60 + when.second
    day_of_year = when.timetuple().tm_yday
    return when.year, when.month, when.day, when.weekday(), day_of_year, when.hour, when.minute, when.second, clock


def ways(prep: dp.Preprocessor, fitted: ColumnTransformer, rows: pd.DataFrame) -> dict[str, Call]:
    """Return the functions to measure for some rows, by name."""
    by_hand, served, records = ByHand(prep), Encoder(prep.to_dict()), rows.to_dict("records")
    return {
        "`serving.Encoder.encode`, dicts": lambda: served.encode(records),
        "`Preprocessor.encode`, a frame": lambda: prep.encode(rows),
        "scikit-learn's `ColumnTransformer`, a frame": lambda: fitted.transform(rows),
        "plain Python by hand, dicts": lambda: by_hand.encode(records),
    }


def check(prep: dp.Preprocessor, rows: pd.DataFrame) -> None:
    """Raise AssertionError unless the handwritten code has the same result."""
    ours, theirs = prep.encode(rows), ByHand(prep).encode(rows.to_dict("records"))
    served = Encoder(prep.to_dict()).encode(rows.to_dict("records"))
    for name, array in ours.items():
        np.testing.assert_array_equal(array, served[name], err_msg=name)
        np.testing.assert_allclose(array, theirs[name], rtol=1e-5, atol=1e-6, err_msg=name)


def milliseconds(calls: dict[str, Call], times: int) -> dict[str, np.ndarray]:
    """Return the duration of each call, by name; the functions alternate."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            for _ in range(times // ROUNDS):
                began = time.perf_counter()
                call()
                taken[name].append(1_000 * (time.perf_counter() - began))
    return {name: np.array(one) for name, one in taken.items()}


def main() -> None:
    """Measure all functions for 1, 100 and 1,000 rows, and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--fit-rows", type=int, default=200_000)
    arguments = parser.parse_args()
    frame, others = make_frame(arguments.fit_rows), make_frame(1_000, seed=1)
    prep, fitted = preprocessor().fit(frame), pipeline().fit(frame)
    check(prep, others)
    print("| rows | what | p50, ms | p99, ms |\n|---|---|---|---|")
    for rows, times in ((1, arguments.calls), (100, arguments.calls), (1_000, arguments.calls // 10)):
        calls = ways(prep, fitted, others.iloc[:rows].copy())
        for name, taken in milliseconds(calls, times).items():
            p50, p99 = np.percentile(taken, (50, 99))
            print(f"| {rows:,} | {name} | {p50:.3f} | {p99:.3f} |", flush=True)


if __name__ == "__main__":
    main()
