"""The account of losses: cells whose encoding lacks information, counted by hand for destructive settings."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import daskprep as dp
from daskprep.serving import Encoder

ROWS = 400
RNG = np.random.default_rng(0)
SIZES = RNG.integers(1, 12, ROWS)

TABLE = pd.DataFrame(
    {
        "row": np.arange(float(ROWS)),
        "city": RNG.choice([f"c{i}" for i in range(40)], ROWS),
        "price": RNG.lognormal(0, 2, ROWS).round(2),
        "big": RNG.integers(0, 2**26, ROWS),
        "gaps": pd.Series(RNG.random(ROWS)).mask(RNG.random(ROWS) < 0.3),
        "cells": np.where(RNG.random(ROWS) < 0.2, "n/k", RNG.random(ROWS).round(3).astype(str)),
        "flag": pd.Series(RNG.choice(["yes", "no"], ROWS)).mask(RNG.random(ROWS) < 0.1),
        "day": pd.Series(pd.date_range("2024-01-01", periods=ROWS)).mask(RNG.random(ROWS) < 0.25),
        "doc": [" ".join(f"w{i}" for i in RNG.integers(0, 60, n)) for n in SIZES],
        "series": [" ".join(map(str, range(n))) for n in SIZES],
        "vector": pd.Series(["1 2"] * ROWS).mask(RNG.random(ROWS) < 0.15),
        "label": pd.Series(RNG.choice(["a", "b"], ROWS)).mask(RNG.random(ROWS) < 0.12),
    }
)
DISTINCT = TABLE["doc"].map(lambda text: len(set(text.split())))


def rare(column: str, keep: int, *, unique: bool = False) -> pd.Series:
    """Return a mask of the cells with a word that is not among the most frequent ones; ties are ordered by bytes."""
    words = TABLE[column].str.split()
    counts = (words.map(set).map(list) if unique else words).explode().value_counts()
    kept = sorted(counts.index, key=lambda word: (-counts[word], word.encode()))[:keep]
    return ~TABLE[column].map(lambda text: set(text.split()) <= set(kept))


def seldom(column: str, count: int) -> pd.Series:
    words = TABLE[column].str.split().explode()
    return TABLE[column].map(lambda text: any(words.eq(word).sum() < count for word in set(text.split())))


def outside(low: float, high: float) -> pd.Series:
    return (TABLE["price"] < TABLE["price"].quantile(low)) | (TABLE["price"] > TABLE["price"].quantile(high))


def distant(threshold: float) -> pd.Series:
    price = TABLE["price"]
    return (price - price.mean()).abs() > threshold * price.std(ddof=0)


def na(column: str) -> pd.Series:
    return TABLE[column].isna()


SIZE = pd.Series(SIZES)
# Feature, cause, and the cells that are counted by hand.
SETTINGS: list[tuple[str, Any, str, Callable[[], pd.Series]]] = [
    ("city", dp.Category(most_common=5), "unknown", lambda: rare("city", 5)),
    ("city", dp.Category(min_frequency=12), "unknown", lambda: seldom("city", 12)),
    ("city", dp.Category(order=["c1", "c2"]), "unknown", lambda: ~TABLE["city"].isin(["c1", "c2"])),
    ("city", dp.Category(most_common=5, oov_buckets=3), "hashed", lambda: rare("city", 5)),
    ("city", dp.Category(hash_buckets=4), "hashed", lambda: TABLE["row"] >= 0),
    ("label", dp.Category(missing_value_strategy="fill_with_mode"), "missing", lambda: na("label")),
    ("label", dp.Category(missing_value_strategy="drop_row"), "left out", lambda: na("label")),
    ("gaps", dp.Number(), "missing", lambda: na("gaps")),
    ("gaps", dp.Number(missing_value_strategy="drop_row"), "left out", lambda: na("gaps")),
    ("gaps", dp.Number(missing_value_strategy="ffill"), "missing", lambda: na("gaps")),
    ("cells", dp.Number(), "unreadable", lambda: TABLE["cells"] == "n/k"),
    ("cells", dp.Number(null_values=["n/k"]), "missing", lambda: TABLE["cells"] == "n/k"),
    ("big", dp.Number(normalization=None), "rounded", lambda: TABLE["big"].astype(np.float32) != TABLE["big"]),
    ("price", dp.Number(clip_quantiles=[0.1, 0.9]), "clipped", lambda: outside(0.1, 0.9)),
    (
        "price",
        dp.Number(outlier_strategy="fill_with_mean", outlier_threshold=1.0),
        "clipped",
        lambda: distant(1.0),
    ),
    (
        "price",
        dp.Number(outlier_strategy="drop_row", outlier_threshold=1.0),
        "left out",
        lambda: distant(1.0),
    ),
    (
        "price",
        dp.Number(outlier_strategy="ffill", outlier_threshold=1.0),
        "clipped",
        lambda: distant(1.0),
    ),
    ("flag", dp.Binary(), "missing", lambda: na("flag")),
    ("flag", dp.Binary(missing_value_strategy="drop_row"), "left out", lambda: na("flag")),
    ("day", dp.Date(), "missing", lambda: na("day")),
    ("day", dp.Date(missing_value_strategy="bfill"), "missing", lambda: na("day")),
    ("doc", dp.Text(max_sequence_length=4), "cut", lambda: SIZE > 4),
    ("doc", dp.Text(sequence_length=6, truncation="keep_end"), "cut", lambda: SIZE > 6),
    ("doc", dp.Text(max_sequence_length=5, add_start_stop=True, padding="left"), "cut", lambda: SIZE > 3),
    ("doc", dp.Text(most_common=20), "unknown", lambda: rare("doc", 20)),
    ("doc", dp.Text(min_frequency=40, max_sequence_length=3), "unknown", lambda: seldom("doc", 40)),
    (
        "doc",
        dp.Text(level="char", char_max_sequence_length=9),
        "cut",
        lambda: TABLE["doc"].str.len() > 9,
    ),
    ("doc", dp.Text(level="both", char_max_sequence_length=9), "cut", lambda: TABLE["doc"].str.len() > 9),
    ("doc", dp.Sequence(max_sequence_length=2), "cut", lambda: SIZE > 2),
    ("doc", dp.Set(max_size=3), "cut", lambda: DISTINCT > 3),
    ("doc", dp.Set(most_common=10), "unknown", lambda: rare("doc", 10, unique=True)),
    ("doc", dp.Bag(max_size=3), "cut", lambda: DISTINCT > 3),
    ("doc", dp.Bag(min_frequency=50), "unknown", lambda: seldom("doc", 50)),
    ("series", dp.Timeseries(timeseries_length_limit=5), "cut", lambda: SIZE > 5),
    ("vector", dp.Vector(), "missing", lambda: na("vector")),
    ("row", dp.Timeseries(window_size=9), "padded", lambda: TABLE["row"] < 8),
    ("row", dp.Timeseries(horizon=5), "padded", lambda: TABLE["row"] >= ROWS - 5),
]
IDS = [f"{feature}-{cause}" for _, feature, cause, _ in SETTINGS]
WRITES = pytest.mark.parametrize(
    ("partitions", "options"), [(1, {"shuffle": False}), (5, {"shuffle": True, "block_rows": 64})]
)


@WRITES
@pytest.mark.parametrize(("column", "feature", "cause", "mask"), SETTINGS, ids=IDS)
def test_losses_are_those_counted_by_hand(tmp_path, column, feature, cause, mask, partitions, options):
    expected = np.asarray(mask(), bool)
    prep = dp.Preprocessor({"row": "number", "x": feature.set_params(column=column)}, split=None)
    rows = dd.from_pandas(TABLE, npartitions=partitions)
    # Hashing is what its parameter asks for, and a fit has reported unreadable cells.
    is_named = cause not in ("hashed", "unreadable")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = prep.fit_write(rows, tmp_path / "a.dp", **options)
        table = dataset.losses()
    messages = [str(one.message) for one in caught]
    own = table[(table["feature"] == "x") & (table["cause"] == cause)]
    assert own["cells"].tolist() == [expected.sum()]
    assert own["share"].tolist() == pytest.approx([expected.mean()])
    assert sum("information is lost" in one and '"x"' in one for one in messages) == is_named


@pytest.mark.parametrize("normalization", ["yeo_johnson", "quantile_normal", "zscore"])
def test_new_numbers_that_a_transform_clips_are_counted(tmp_path, normalization):
    prep = dp.Preprocessor({"price": dp.Number(normalization=normalization)}, split=None).fit(TABLE)
    new = pd.DataFrame({"price": [TABLE["price"].max() * 2, TABLE["price"].max(), TABLE["price"].min() - 1]})
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        losses = prep.write(new, tmp_path / "new.dp").losses()
    assert losses[["cause", "cells"]].to_numpy().tolist() == [["clipped", 2]] * (normalization != "zscore")
    cells = Encoder(prep.to_dict()).encode({"price": 1e9}, report=True)[1]
    assert ("clipped" in str(cells)) == (normalization != "zscore")


def lost_by(*causes: str) -> dict[str, Any]:
    """Return features of all settings that lose information by one of the causes."""
    settings = zip(IDS, SETTINGS, strict=True)
    return {name: clone(one).set_params(column=column) for name, (column, one, cause, _) in settings if cause in causes}


CAUSES = [("left out",), ("missing", "unreadable"), ("unknown", "hashed"), ("cut", "clipped", "rounded", "padded")]


def is_warned(caught: list[warnings.WarningMessage], causes: tuple[str, ...]) -> bool:
    """Return whether one warning names one of the causes; no cause is named by two."""
    texts = [text for one in caught if "information is lost" in (text := str(one.message))]
    assert len(texts) <= 1
    return any(f"%) {cause}" in text for text in texts for cause in causes)


@pytest.mark.slow
@pytest.mark.parametrize("causes", CAUSES, ids=str)
def test_streams_have_the_losses_of_a_write(tmp_path, causes):
    features, balance = {**lost_by(*causes), "flag": "binary"}, dp.Oversample("flag", ratio=0.8)
    prep = dp.Preprocessor(features, targets="flag", split=dp.RandomSplit((0.6, 0.2, 0.2)), balance=balance)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        written = prep.fit(TABLE).write(TABLE, tmp_path / "a.dp").losses()
        for partitions, rank, ranks, split in [(1, 0, 1, "validation"), (5, 0, 2, "train"), (5, 1, 2, "train")]:
            caught.clear()
            rows = dd.from_pandas(TABLE, npartitions=partitions)
            stream = prep.stream(rows, 32, epochs=2, rank=rank, world_size=ranks, split=split)
            for _ in stream:
                pass
            expected = written[written["split"].isin([split, ""])].reset_index(drop=True)
            pd.testing.assert_frame_equal(stream.losses(), expected)
            is_named = rank == 0 and causes != ("left out",) and ("unknown" not in causes or split == "train")
            assert is_warned(caught, causes) == is_named


@pytest.mark.parametrize("causes", CAUSES[1:], ids=str)
def test_predictions_have_the_losses_of_a_write(tmp_path, causes):
    labeled = TABLE[TABLE["flag"].notna()].reset_index(drop=True)
    features = {name: one for name, one in lost_by(*causes).items() if one.column != "label"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        prep = dp.Preprocessor({**features, "n": dp.Number(column="row"), "flag": "binary"}, targets="flag", split=None)
        written = prep.fit(labeled).write(labeled, tmp_path / "a.dp").losses()
        caught.clear()
        predicted = prep.predict(labeled, lambda batch: batch["n"])
    assert predicted.attrs["losses"] == written.drop(columns="split").to_dict("records")
    assert is_warned(caught, causes) == ("cut" in causes)


def test_losses_of_a_stream_that_was_left_early():
    rows = dd.from_pandas(TABLE, npartitions=8)
    prep = dp.Preprocessor({"gaps": "number"}, split=None)
    with pytest.warns(UserWarning, match="prep.losses_ lists all"):
        prep.fit(rows)
    stream = prep.stream(rows, 16, shuffle=False, window="3KB")
    assert stream.losses().empty
    next(iter(stream))
    [(_, _, _, cells, share)] = stream.losses().to_numpy().tolist()
    counted = round(cells / share)
    assert 16 <= counted < ROWS
    assert cells == TABLE["gaps"].head(counted).isna().sum()


@pytest.mark.parametrize(("column", "feature", "cause", "mask"), SETTINGS, ids=IDS)
def test_fit_alone_counts_all_or_what_the_docs_name(column, feature, cause, mask):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prep = dp.Preprocessor({"x": clone(feature).set_params(column=column)}, split=None).fit(TABLE)
    own = prep.losses_.query("cause == @cause")["cells"].tolist()
    is_text, is_bag = isinstance(feature, dp.Text | dp.Sequence), isinstance(feature, dp.Set | dp.Bag)
    not_counted = (
        (cause == "unknown" and (is_text or is_bag))
        or (cause == "cut" and is_bag)
        or cause in ("hashed", "padded")
        or getattr(feature, "clip_quantiles", None)
        or getattr(feature, "outlier_strategy", None)
    )
    assert own == ([] if not_counted else [mask().sum()])


@pytest.mark.parametrize("seed", range(20))
def test_clean_tables_have_no_losses(tmp_path, seed):
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(200, 600))
    frame = pd.DataFrame(
        {
            "price": rng.lognormal(0, 1 + seed % 3, rows),
            "count": rng.integers(0, 10 ** (seed % 7 + 1), rows),
            "city": rng.choice([f"c{i}" for i in range(2 + seed)], rows),
            "day": pd.date_range("2020-01-01", periods=rows, freq=["D", "h", "s"][seed % 3]),
            "doc": [" ".join(rng.choice(list("abcdefgh"), rng.integers(1, 9))) for _ in range(rows)],
            "flag": rng.choice(["yes", "no"], rows),
            "embedding": list(rng.random((rows, 4)).astype(np.float32)),
            "label": rng.choice(["x", "y", "z"], rows),
        }
    )
    kinds = {"price": "number", "count": "number", "city": "category", "day": "date", "doc": ["text", "set"][seed % 2]}
    kinds |= {"flag": "binary", "embedding": "vector", "label": "category"}
    features: Any = "auto" if seed % 4 == 3 else kinds
    prep = dp.Preprocessor(features, targets="label", split=dp.RandomSplit(seed=seed))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = prep.fit_write(frame, tmp_path / "a.dp")
        prep.fit(frame)
    assert not [str(one.message) for one in caught if "information is lost" in str(one.message)]
    assert dataset.losses().query("split == 'train'").empty


def test_losses_of_appended_parts_are_added(tmp_path):
    frame = pd.DataFrame({"city": ["a", "b", "c", "c"], "price": [1.0, None, 3.0, 4.0]})
    prep = dp.Preprocessor({"city": dp.Category(most_common=1), "price": "number"}, split=None)
    prep.fit_write(frame, tmp_path / "a.dp")
    dataset = prep.append(frame.assign(price=None, city="c"), tmp_path / "a.dp")
    assert dataset.losses().values.tolist() == [
        ["city", "train", "unknown", 2, 0.25],
        ["price", "train", "missing", 5, 0.625],
    ]
    assert dp.open_dataset(tmp_path / "a.dp", version=1).losses()["cells"].tolist() == [2, 1]
    assert dataset.delete([0], part=0).losses() is None


@pytest.mark.parametrize(("column", "feature", "cause", "mask"), SETTINGS, ids=IDS)
def test_services_report_the_losses_of_rows(column, feature, cause, mask):
    if cause not in ("cut", "clipped", "rounded") or getattr(feature, "outlier_strategy", None) == "ffill":
        pytest.skip("a service has other names for these cells, and no rows before them")
    prep = dp.Preprocessor({"x": clone(feature).set_params(column=column)}, split=None).fit(TABLE)
    _, report = Encoder(prep.to_dict()).encode(TABLE[[column]].to_dict("records"), report=True)
    assert sorted(report["x"][cause]) == np.flatnonzero(mask()).tolist()


def test_losses_of_an_added_feature(tmp_path):
    frame = pd.DataFrame({"city": ["a", "b", "c", "c"], "price": [1.0, None, 3.0, 4.0]})
    dataset = dp.Preprocessor({"price": "number"}, split=None).fit_write(frame, tmp_path / "a.dp")
    with pytest.warns(UserWarning, match='"city": 2 cells .* unknown'):
        dataset = dataset.add("city", dp.Category(most_common=1), frame)
    assert dataset.losses().values.tolist() == [
        ["price", "train", "missing", 1, 0.25],
        ["city", "train", "unknown", 2, 0.5],
    ]


@pytest.mark.filterwarnings("ignore:.*cannot be read as")
def test_losses_of_a_fit():
    frame = pd.DataFrame({"city": ["a", "b", "c", "c"], "doc": ["x", "x y", "x y z", None], "y": ["1", None, "0", "?"]})
    features = {"city": dp.Category(most_common=1), "doc": dp.Text(max_sequence_length=1), "y": "binary"}
    message = '"y": 2 rows .* without a readable label .* "city": 1 cell .* unknown: .* "doc": 1 cell .* cut'
    with pytest.warns(UserWarning, match=message):
        prep = dp.Preprocessor(features, targets="y", split=None).fit(frame)
    assert prep.losses_.values.tolist() == [
        ["city", "train", "unknown", 1, pytest.approx(1 / 3)],
        ["doc", "train", "missing", 1, pytest.approx(1 / 3)],
        ["doc", "train", "cut", 1, pytest.approx(1 / 3)],
        ["y", "", "left out", 2, 0.5],
    ]
