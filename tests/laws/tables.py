"""Random tables and features: columns with odd cells, keys, groups, times and labels, carried in several ways."""

from __future__ import annotations

import atexit
import functools
import inspect
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

import daskprep as dp

KEY = "key"
"""Column and output with another number in each row of a program, by which laws recognize rows."""
KEYS = ("group", "goal")
"""Columns that are keys of some Preprocessors."""
CARRIERS = ("pandas", "dask", "arrow", "parquet", "csv")


@dataclass(frozen=True)
class Kind:
    """Cells of a column, those that only new rows have, and the features that read it."""

    cells: tuple[Any, ...]
    new: tuple[Any, ...]
    features: tuple[Callable[..., dp.Feature], ...]


def embed(values: Sequence[str]) -> np.ndarray:
    """Return the vectors of texts, as the model of an `Embedding`."""
    return np.array([[len(one), sum(map(ord, one)) % 7] for one in values])


CACHE = tempfile.mkdtemp(prefix="laws-")
atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
LAST_ROWS = functools.partial(dp.Timeseries, window_size=3)
NEXT_ROWS = functools.partial(dp.Timeseries, horizon=2)
# Words of saved states, in case that a cell is mistaken for one.
STATE_WORDS = ("unknown", "padding", "size", "rows", "fill_value")
WORDS = ("a", "b", *STATE_WORDS, "<UNK>", "<PAD>", "é", "日本", "1", "True")
KINDS = {
    "number": Kind(
        (1.5, 0.0, -0.0, -3.25, 1e15, 1e-300, 0.1, None, np.nan), (7.0, -1e9), (dp.Number, dp.Number, LAST_ROWS)
    ),
    "wide number": Kind((1.0, 2.5, np.inf, -np.inf, 1e308, None), (1e300,), (dp.Number,)),
    "integer": Kind((3, 0, -7, 2**40, 2**53 + 1, None), (11,), (dp.Number, dp.Category, NEXT_ROWS)),
    "word": Kind(
        (*WORDS, " a", "", None, "x" * 300),
        ("fresh", "mode"),
        (dp.Category, dp.TargetEncoding, dp.TextComponents, dp.Set, dp.Embedding),
    ),
    "label": Kind(("yes", "no"), (), (dp.Binary, dp.Category)),
    "class": Kind(("red", "blue", "green"), (), (dp.Category,)),
    "phrase": Kind(
        ("a b", "b, B é!", "", None, "a a a a a a", " ".join(("a", *STATE_WORDS)), *STATE_WORDS),
        ("fresh a", "mean std"),
        (dp.Text, dp.TextComponents, dp.Sequence, dp.Set, dp.Bag),
    ),
    "day": Kind(
        (pd.Timestamp("2024-03-06"), pd.Timestamp("1969-12-31 23:59:59"), pd.Timestamp("2000-02-29 12:00"), None),
        (pd.Timestamp("2031-01-01"),),
        (dp.Date,),
    ),
    "place": Kind(
        ("8928308280fffff", "622236750694711295", "no cell", None), ("0x8928308280FFFFF",), (dp.H3, dp.Category)
    ),
    "vector": Kind(([1.0, 2.0], [0.5, -1.0], [0.0, 1e9], None), ([9.0, 9.0],), (dp.Vector,)),
    "series": Kind(([1.0], [], [2.0, 3.0, 4.0], [0.5] * 6, None), ([8.0, 9.0],), (dp.Timeseries,)),
}  # fmt: skip
UNREADABLE = (None, "maybe", "")  # as a label
NAMES = ("price", "price_missing", "a column", "review", "review_length", "city", "review_word", "rows", "é/x.y")
CLASHING = (("price", "price_missing"), ("review", "review_length"), ("review", "review_word"))

COUNTS = st.none() | st.integers(1, 4)
STRATEGIES = ("ffill", "bfill", "drop_row", "fill_with_mode", "fill_with_const")
PARAMETERS: dict[str, st.SearchStrategy[Any]] = {
    "missing_indicator": st.booleans(),
    "missing_value_strategy": st.sampled_from(STRATEGIES),
    "most_common": COUNTS,
    "min_frequency": COUNTS,
    "lowercase": st.booleans(),
    "max_size": COUNTS,
    "expand_to": st.sampled_from(["multi_hot", "ids"]),
    "tokenizer": st.sampled_from(["space", "characters", "comma", "space_punct"]),
    "max_sequence_length": st.none() | st.integers(3, 5),
    "sequence_length": st.none() | st.integers(3, 5),
    "padding": st.sampled_from(["left", "right"]),
    "truncation": st.sampled_from(["keep_start", "keep_end"]),
    "add_start_stop": st.booleans(),
    "level": st.sampled_from(["word", "char", "both"]),
    "compute_idf": st.booleans(),
    "normalization": st.sampled_from([None, "zscore", "minmax", "iq", "robust", "quantile_uniform"]),
    "clip_quantiles": st.sampled_from([None, [0.1, 0.9]]),
    "outlier_strategy": st.sampled_from([None, "fill_with_mean", "drop_row"]),
    "outlier_threshold": st.sampled_from([0.5, 3.0]),
    "hash_buckets": st.none() | st.integers(2, 5),
    "oov_buckets": st.integers(0, 2),
    "handle_unknown": st.sampled_from([None, "unk"]),
    "parts": st.sampled_from([None, ["year", "hour"]]),
    "smooth": st.sampled_from(["auto", 1.0]),
    "encoding": st.none(),
    "timeseries_length_limit": st.integers(1, 4),
}
WINDOWS = {
    "tokenizer": st.just("space"),
    "missing_value_strategy": st.sampled_from(["fill_with_const", "ffill", "bfill", "drop_row"]),
    "group_by": st.sampled_from([None, "group"]),
}
OWN_PARAMETERS: dict[Callable[..., dp.Feature], dict[str, st.SearchStrategy[Any]]] = {
    LAST_ROWS: WINDOWS
    | {
        "shift": st.integers(0, 2),
        "lags": st.sampled_from([None, None, [0, 2]]),
        "statistics": st.sampled_from([None, None, ["mean", "min", "max", "count", "last", "since"]]),
    },
    NEXT_ROWS: WINDOWS,
    dp.Embedding: {"function": st.just(f"{__name__}.embed"), "size": st.just(2), "cache_dir": st.just(CACHE)},
    dp.Binary: {
        "missing_value_strategy": st.sampled_from(["fill_with_true", "fill_with_false", *STRATEGIES[:4]]),
        "positive": st.sampled_from([None, "yes"]),
    },
    dp.Number: {
        "missing_value_strategy": st.sampled_from(["fill_with_mean", *STRATEGIES]),
        "encoding": st.sampled_from([None, None, "bins", "piecewise_linear"]),
        "bins": st.just(4),
    },
    dp.Date: {"missing_value_strategy": st.sampled_from(["fill_with_mean", *STRATEGIES])},
    dp.Timeseries: {"tokenizer": st.just("space")},
    dp.TextComponents: {
        "missing_value_strategy": st.sampled_from(["fill_with_const", "drop_row"]),
        "size": st.integers(1, 4),
    },
    dp.TargetEncoding: {
        "missing_value_strategy": st.sampled_from(["fill_with_const", "drop_row"]),
        "encoding": st.sampled_from(["target", "count", "frequency"]),
        "target": st.just("goal"),
    },
}


def feature_of(draw: st.DrawFn, feature: Callable[..., dp.Feature], column: str) -> dp.Feature:
    """Draw some of the parameters in the signature of a feature type."""
    known = {**PARAMETERS, **OWN_PARAMETERS.get(feature, {})}
    names = [name for name in inspect.signature(feature).parameters if name in known]
    chosen = draw(st.lists(st.sampled_from(names), max_size=3, unique=True))
    required = [name for name in ("target", "function", "size", "cache_dir") if name in names]
    return feature(column=column, **{name: draw(known[name]) for name in (*required, *chosen)})


@dataclass(frozen=True)
class Table:
    """The columns of a program: kinds and cells by name."""

    kinds: Mapping[str, str]
    cells: Mapping[str, tuple[Any, ...]]
    labels: tuple[Any, ...]  # of the column "label", which a target or a balance reads

    def rows(self, count: int, first: int, *, is_new: bool = False) -> pd.DataFrame:
        """Return rows with the keys from `first` on; new ones may have cells that the first ones lack."""
        random = np.random.default_rng(first)
        numbers = np.arange(first, first + count)
        columns: dict[str, Any] = {
            KEY: numbers,
            "id": [f"id{number:05d}z" for number in numbers],
            "group": random.choice(["g1", "g2", "g3", "g4", "g5"], count),
            "time": pd.Timestamp("2024-01-01") + pd.to_timedelta(random.integers(0, 40, count), "D"),
            "weight": random.choice([0.5, 1.0, 2.0], count),
            "goal": random.choice([0, 1], count),
            "split": random.choice(["train", "validation", "test"], count, p=[0.6, 0.2, 0.2]),
            "label": column(self.labels, random, count),
        }
        columns["split"][: min(2, count)] = "train"
        for name, kind in self.kinds.items():
            cells = (*self.cells[name], *KINDS[kind].new) if is_new else self.cells[name]
            columns[name] = column(cells, random, count)
        return pd.DataFrame(columns)


def column(cells: tuple[Any, ...], random: np.random.Generator, count: int) -> pd.Series[Any]:
    chosen = [cells[number] for number in random.integers(0, len(cells), count)]
    is_native = all(isinstance(cell, float | int | pd.Timestamp) for cell in cells)
    return pd.Series(chosen, dtype=None if is_native else object)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    # A feature whose own outputs have the name of the next column, in some tables.
    first = draw(st.sampled_from([(), (), *CLASHING]))
    names = [*first, *draw(st.lists(st.sampled_from(NAMES), min_size=not first, max_size=4, unique=True))]
    names = list(dict.fromkeys(names))
    kinds = {name: draw(st.sampled_from(sorted(KINDS))) for name in names}
    cells = {}
    for name, kind in kinds.items():
        cells[name] = tuple(draw(st.lists(st.sampled_from(KINDS[kind].cells), min_size=1, max_size=6, unique_by=repr)))
    unreadable = draw(st.lists(st.sampled_from(UNREADABLE), max_size=2))
    return Table(kinds, cells, ("yes", "no", "yes", *unreadable))


@st.composite
def features_of(draw: st.DrawFn, table: Table) -> dict[str, dp.Feature]:
    """Draw a feature for each column, one for the ids now and then, and `KEY`."""
    features: dict[str, dp.Feature] = {
        name: feature_of(draw, draw(st.sampled_from(KINDS[kind].features)), name) for name, kind in table.kinds.items()
    }
    if draw(st.booleans()):
        features["id"] = draw(st.sampled_from([dp.Category, dp.Text, dp.Set]))()
    return {**features, KEY: dp.Number(normalization=None)}


SHARES = st.sampled_from([(0.7, 0.1, 0.2), (0.5, 0.25, 0.25), (0.8, 0.2, 0.0), (1.0, 0.0, 0.0)])
SPLITS: dict[str, Any] = {
    "none": st.none(),
    "random": st.builds(dp.RandomSplit, SHARES, st.integers(0, 9)),
    "hash": st.builds(dp.HashSplit, st.just("id"), SHARES),
    "fixed": st.builds(dp.FixedSplit),
    "stratified": st.builds(dp.StratifiedSplit, st.just("group"), SHARES, on_small=st.just("train")),
    "group": st.builds(dp.GroupSplit, st.just("group"), SHARES),
    "datetime": st.builds(dp.DatetimeSplit, st.just("time"), SHARES),
}
BALANCES = st.sampled_from([None, None, None, dp.Oversample("label", ratio=0.8), dp.Undersample("label", ratio=0.8)])


@st.composite
def options_of(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, dp.Feature]]:
    """Draw the parameters of a Preprocessor, and the features of its targets."""
    options: dict[str, Any] = {
        "split": draw(st.sampled_from(sorted(SPLITS)).flatmap(SPLITS.__getitem__)),
        "balance": draw(BALANCES),
        "weight": draw(st.sampled_from([None, "weight"])),
        "keys": draw(st.lists(st.sampled_from(KEYS), unique=True)),
        "sample": draw(st.sampled_from([None, None, None, None, 0.7, 9])),
        "fit_on": draw(st.sampled_from(["train", "train", "train", "all"])),
    }
    target = draw(st.sampled_from([None, dp.Binary, dp.Category]))
    if target is None:
        return options, {}
    return {**options, "targets": "label"}, {"label": target()}


def carry(frame: pd.DataFrame, carrier: str, folder: Path, cuts: list[int]) -> Any:
    """Return the rows of a frame in another form, or the frame if that form cannot have its cells."""
    if carrier == "dask":
        bounds = [0, *sorted(min(cut, len(frame)) for cut in cuts), len(frame)]
        pieces = [frame.iloc[start:stop] for start, stop in pairwise(bounds)]
        # The name of the folder: Dask's tokens of frames whose columns of two types are exchanged are equal, and it
        # would take the earlier one.
        return dd.from_map(lambda piece, _=str(folder): piece, pieces, meta=frame.iloc[:0])
    name = f"rows{int(frame[KEY].iloc[0])}-{len(frame)}" if len(frame) else "none"
    if carrier == "csv":
        if any(isinstance(cell, list) or cell == "" for cells in frame.to_numpy() for cell in cells):
            return frame
        frame.to_csv(folder / f"{name}.csv", index=False)
        return dp.read_files(str(folder / f"{name}.csv"))
    if carrier == "pandas":
        return frame
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except pa.ArrowException:
        return frame
    if carrier == "arrow":
        return table
    pq.write_table(table, folder / f"{name}.parquet", row_group_size=max(1, len(frame) // 3))
    return dp.read_files(str(folder / f"{name}.parquet"), partition_bytes=1)
