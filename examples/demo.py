"""Encode a small dataset of mixed columns, made on the spot, write it to disk, and read it back."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import daskprep as dp

ROWS = 1_000
CITIES = np.array(["Oslo", "Rome", "Lagos", "Lima", "Hanoi"])
TAGS = np.array(["sauna", "view", "pool", "garden", "lift"])
WORDS = np.array(["calm", "bright", "rooms", "are", "Lovely", "and", "quiet", "but", "small", "great"])


def blank(values: np.ndarray, share: float, rng: np.random.Generator) -> pd.Series:
    """Remove a share of the values."""
    column = pd.Series(values)
    return column.mask(rng.random(len(column)) < share)


def joined(choices: np.ndarray, fewest: int, most: int, rng: np.random.Generator) -> list[str]:
    """Join a random number of random choices with spaces, once per row."""
    return [" ".join(rng.choice(choices, rng.integers(fewest, most + 1))) for _ in range(ROWS)]


def listings() -> pd.DataFrame:
    """Make the dataset: every column type once, with missing values where real data has them."""
    rng = np.random.default_rng(0)
    nights = rng.normal(size=(ROWS, 7)).cumsum(axis=1)
    return pd.DataFrame(
        {
            "price": blank(rng.lognormal(4, 0.5, ROWS).round(2), 0.1, rng),
            "city": blank(rng.choice(CITIES, ROWS, p=[0.4, 0.3, 0.15, 0.1, 0.05]), 0.02, rng),
            "tags": joined(TAGS, 0, 4, rng),
            "review": blank(np.array([f"{text}." for text in joined(WORDS, 3, 12, rng)]), 0.05, rng),
            "demand": [" ".join(f"{value:.2f}" for value in row) for row in nights],
            "listed": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 365 * 24, ROWS), unit="h"),
            "sold": rng.random(ROWS) < 0.3,
        }
    )


def shown(value: object) -> str:
    """Cut long values short."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = " ".join(value) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def learned_lines(prep: dp.Preprocessor) -> list[str]:
    """Tell in one line per feature what was learned of it."""
    telling = ("mean", "std", "idx2str", "max_set_size", "max_sequence_length", "max_timeseries_length")
    telling += ("first", "last", "bool2str")
    lines = []
    for name, learned in prep.learned_.items():
        facts = {key: shown(value) for key, value in learned.to_dict().items() if key in telling}
        missing = f"{learned.missing} of {learned.rows:,} missing"
        lines.append(f"{name:8} {missing:21} " + ", ".join(f"{key}: {value}" for key, value in facts.items()))
    return lines


def main() -> None:
    """Write rows to Parquet, learn from them, write them as a dataset, and show what came of it."""
    prep = dp.Preprocessor(
        {
            "price": dp.Number(normalization="zscore", missing_value_strategy="fill_with_mean"),
            "city": dp.Category(),
            "tags": dp.Set(),
            "review": dp.Text(max_sequence_length=12),
            "demand": dp.Timeseries(),
            "listed": dp.Date(),
            "sold": "binary",
        },
        split=dp.StratifiedSplit("sold", seed=0),
    )
    frame = listings()
    print("The first rows:", frame.head(3).T.to_string(max_colwidth=50), sep="\n", end="\n\n")
    with tempfile.TemporaryDirectory() as folder:
        source, path = Path(folder) / "listings.parquet", Path(folder) / "listings.dp"
        frame.to_parquet(source, row_group_size=250)
        prep.fit_write(source, path, shuffle=True, seed=0)
        print("Learned from the training rows:", *learned_lines(prep), sep="\n", end="\n\n")
        show_dataset(dp.open_dataset(path))


def show_dataset(dataset: dp.Dataset) -> None:
    """Show what was written, as it lies on disk and as a person reads it."""
    print(dataset, end="\n\n")
    train = dataset["train"]
    print("The first training row, as it lies on disk:")
    for name, array in train.read(stop=1).items():
        print(f"{name:8} {array.dtype!s:8} {array[0]}")
    print("\nThe first training rows, decoded:", train.head(3).T.to_string(max_colwidth=50), sep="\n")


if __name__ == "__main__":
    main()
