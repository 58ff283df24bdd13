"""Columns of every dtype and features with any parameters: equal results in every way, or a daskprep error."""

from __future__ import annotations

import datetime as dt
import functools
import tempfile
import warnings
import zoneinfo
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, event, given, note, settings
from hypothesis import strategies as st

import daskprep as dp
from daskprep.errors import DaskprepError
from daskprep.features.arrays import encode_small_frame
from daskprep.sources import as_source
from tests.amount import one_in
from tests.arrow_columns import encode_columns

NAME = "a column"
ROWS = 7
ZONES = [zoneinfo.ZoneInfo("Europe/Rome"), dt.UTC, dt.timezone(dt.timedelta(hours=-3, minutes=-30))]
UNITS = ["s", "ms", "us", "ns"]

# -- cells and their dtypes


@dataclass(frozen=True)
class Kind:
    """Values of one kind, their dtypes, and the features that read them in addition to those of text."""

    values: st.SearchStrategy[Any]
    dtypes: tuple[Any, ...]
    features: tuple[str, ...] = ()


def arrow(*kinds: pa.DataType) -> tuple[pd.ArrowDtype, ...]:
    return tuple(map(pd.ArrowDtype, kinds))


def moments(**limits: Any) -> st.SearchStrategy[dt.datetime]:
    return st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1), **limits)


def whole_seconds(moment: dt.datetime) -> dt.datetime:
    return moment.replace(microsecond=0)


DECIMALS = st.decimals(-(10**5), 10**5, places=3)
INTEGERS = st.integers(-100, 100) | st.sampled_from([2**31 - 1, -(2**40), 2**53 + 1, 2**63 - 1])
FLOATS = st.floats(width=32) | st.sampled_from([0.1, 1e15, 2.0**53, -0.0, 1e-7])
TEXT = st.sampled_from(["a", "b", " a", "A b", "", "1", "1.0", "True", "no", "Yes", "é", "2020-01-02", "1 2", "1,2"])
ZONED = st.builds(
    lambda moment, zone: moment.replace(tzinfo=zone), moments().map(whole_seconds), st.sampled_from(ZONES)
)
ZONED |= moments(timezones=st.just(ZONES[0]))
DURATIONS = st.timedeltas(dt.timedelta(-9), dt.timedelta(9))
WHOLE_DURATIONS = DURATIONS.map(lambda duration: dt.timedelta(duration.days, duration.seconds))
NUMERIC = ("number", "date", "h3")

KINDS = {
    "small integers": Kind(
        st.integers(0, 100),
        (
            *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
            *("Int8", "UInt64", "float16", "float32", "category", "Sparse[int]", object),
            *arrow(pa.int16(), pa.uint64(), pa.decimal128(9, 2), pa.dictionary(pa.int8(), pa.int64())),
        ),
        NUMERIC,
    ),
    "integers": Kind(INTEGERS, ("int64", "Int64", "category", object, *arrow(pa.int64())), NUMERIC),
    "large integers": Kind(st.integers(0, 2**64 - 1), ("uint64", "UInt64", object, *arrow(pa.uint64())), NUMERIC),
    "halves": Kind(st.floats(width=16), ("float16", *arrow(pa.float16())), NUMERIC),
    "singles": Kind(st.floats(width=32), ("float32", "Float32", *arrow(pa.float32())), NUMERIC),
    "floats": Kind(FLOATS, ("float64", "Float64", "category", object, *arrow(pa.float64())), NUMERIC),
    "booleans": Kind(
        st.booleans(), ("bool", "boolean", "category", object, *arrow(pa.bool_())), ("number",)
    ),
    "text": Kind(
        TEXT,
        (
            *(object, "str", "string[python]", "string[pyarrow]", "category"),
            *arrow(pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())),
        ),
        (*NUMERIC, "vector", "timeseries"),
    ),
    "bytes": Kind(
        st.binary(max_size=3) | TEXT.map(str.encode),
        (object, *arrow(pa.binary(), pa.large_binary())),
        NUMERIC,
    ),
    "decimals": Kind(
        DECIMALS,
        (object, *arrow(pa.decimal128(9, 3), pa.decimal128(30, 12), pa.decimal256(60, 9), pa.decimal64(15, 4))),
        NUMERIC,
    ),
    "dates": Kind(st.dates(), (object, *arrow(pa.date32(), pa.date64())), ("date",)),
    "times": Kind(
        moments(),
        (*(f"datetime64[{unit}]" for unit in ("us", "ns")), object, *arrow(pa.timestamp("us"), pa.timestamp("ns"))),
        ("date",),
    ),
    "seconds": Kind(
        moments().map(whole_seconds),
        (*(f"datetime64[{unit}]" for unit in UNITS), object, *arrow(*map(pa.timestamp, UNITS))),
        ("date",),
    ),
    "times with a zone": Kind(
        moments(timezones=st.just(ZONES[0])).map(whole_seconds),
        (
            *(f"datetime64[{unit}, Europe/Rome]" for unit in UNITS),
            object,
            *arrow(*(pa.timestamp(unit, "Europe/Rome") for unit in UNITS)),
        ),
        ("date",),
    ),
    "times with zones": Kind(ZONED, (object,), ("date",)),
    "times of day": Kind(st.times(), (object, *arrow(pa.time64("us"), pa.time64("ns")))),
    "durations": Kind(
        DURATIONS, ("timedelta64[us]", "timedelta64[ns]", object, *arrow(pa.duration("us"), pa.duration("ns")))
    ),
    "whole durations": Kind(
        WHOLE_DURATIONS, (*(f"timedelta64[{unit}]" for unit in UNITS), object, *arrow(*map(pa.duration, UNITS)))
    ),
    "UUIDs": Kind(st.uuids(), (object,)),
    "objects": Kind(
        st.one_of(INTEGERS, FLOATS, TEXT, st.booleans(), DECIMALS, st.dates(), ZONED, moments(), st.times(), DURATIONS),
        (object,),
    ),
    "numbers": Kind(st.one_of(INTEGERS, st.integers(0, 2**70), FLOATS, DECIMALS), (object,), ("number",)),
    "lists of text": Kind(
        st.lists(TEXT, max_size=4),
        (object, *arrow(pa.list_(pa.string()), pa.large_list(pa.large_string()))),
    ),
    "lists of integers": Kind(
        st.lists(st.integers(-9, 9), max_size=4),
        (object, *arrow(pa.list_(pa.int8()), pa.large_list(pa.int64()), pa.list_view(pa.int32()))),
        ("vector", "timeseries"),
    ),
    "lists of floats": Kind(
        st.lists(st.none() | st.floats(width=16), min_size=2, max_size=2),
        (object, *arrow(pa.large_list(pa.float64()), pa.list_(pa.float64(), 2))),
        ("vector", "timeseries"),
    ),
    "lists of decimals": Kind(
        st.lists(DECIMALS, max_size=3), (object, *arrow(pa.list_(pa.decimal128(9, 3)))), ("vector", "timeseries")
    ),
    "nothing": Kind(st.none(), (object, "float64", "Int64", "datetime64[us]", *arrow(pa.null(), pa.string())), NUMERIC),
}  # fmt: skip
TOKENS = ("category", "binary", "set", "bag", "sequence", "text")


@st.composite
def columns(draw: st.DrawFn) -> tuple[str, pd.Series[Any], pd.Series[Any]]:
    """Draw the name of a kind, a column of it, and the same cells in another dtype."""
    name = draw(st.sampled_from(sorted(KINDS)))
    kind = KINDS[name]
    dtype, other = draw(st.sampled_from(kind.dtypes)), draw(st.sampled_from(kind.dtypes))
    present = draw(st.sampled_from([kind.values, kind.values | st.none()]))
    # Few distinct values, so that some are frequent, and two labels.
    pool = draw(st.lists(present, min_size=1, max_size=4))
    cells = draw(st.lists(st.sampled_from(pool), max_size=ROWS))
    # All-missing columns have the kind of their dtype, and no kind if they are object columns.
    return name, series(cells, dtype), series(cells, other if any(cell is not None for cell in cells) else dtype)


def series(cells: list[Any], dtype: Any) -> pd.Series[Any]:
    """Return a column, in the closest dtype that supports missing cells."""
    if isinstance(dtype, pd.ArrowDtype):
        kind = dtype.pyarrow_dtype
        if pa.types.is_dictionary(kind):
            return pd.Series(pd.array(pa.array(cells, kind.value_type).dictionary_encode().cast(kind), dtype=dtype))
        return pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([pa.array(cells, kind)])))
    text = str(dtype)
    if None in cells and (text in ("bool", "Sparse[int]") or text.startswith(("int", "uint"))):
        dtype = object
    if "Float" in text or "float" in text:
        return pd.Series([np.nan if cell is None else cell for cell in cells], dtype="float64").astype(dtype)
    if "Rome" in text:
        return pd.Series(pd.to_datetime(pd.Series(cells, dtype=object), utc=True)).astype(dtype)
    return pd.Series(cells, dtype=dtype)


# -- features

COUNTS = st.none() | st.integers(1, 4)
FILLS = ["ffill", "bfill", "drop_row", "fill_with_mode", "fill_with_const"]
STRATEGIES = st.sampled_from(FILLS)
INVALID = st.sampled_from(["missing", "missing", "missing", "raise"])
COMMON: dict[str, Any] = {"missing_value_strategy": STRATEGIES, "invalid": INVALID}
LISTS: dict[str, Any] = {
    **COMMON,
    "tokenizer": st.sampled_from(["space", "characters", "comma", "space_punct"]),
    "most_common": COUNTS,
    "min_frequency": COUNTS,
    "lowercase": st.booleans(),
}
LENGTHS: dict[str, Any] = {
    "max_sequence_length": st.none() | st.integers(3, 5),
    "sequence_length": st.none() | st.integers(3, 5),
    "padding": st.sampled_from(["left", "right"]),
    "add_start_stop": st.booleans(),
}
PARAMETERS: dict[str, tuple[Callable[..., dp.Feature], dict[str, Any]]] = {
    "category": (
        dp.Category,
        {**COMMON, "most_common": COUNTS, "min_frequency": COUNTS, "lowercase": st.booleans(), "fill_value": TEXT},
    ),
    "binary": (
        dp.Binary,
        {
            "invalid": INVALID,
            "missing_value_strategy": st.sampled_from(["fill_with_true", "fill_with_false", *FILLS[:4]]),
        },
    ),
    "number": (
        dp.Number,
        {
            "invalid": INVALID,
            "normalization": st.sampled_from([None, "zscore", "minmax", "log1p", "iq"]),
            "outlier_strategy": st.none() | st.sampled_from([*FILLS, "fill_with_mean"]).filter("fill_with_mode".__ne__),
            "outlier_threshold": st.sampled_from([0.5, 1.0, 3.0]),
            "missing_value_strategy": st.sampled_from([*FILLS, "fill_with_mean"]),
        },
    ),
    "set": (dp.Set, {**LISTS, "max_size": COUNTS, "expand_to": st.sampled_from(["multi_hot", "ids"])}),
    "bag": (dp.Bag, {**LISTS, "max_size": COUNTS}),
    "sequence": (dp.Sequence, {**LISTS, **LENGTHS}),
    "text": (
        dp.Text,
        {**LISTS, **LENGTHS, "level": st.sampled_from(["word", "char", "both"]), "compute_idf": st.booleans()},
    ),
    "date": (dp.Date, {**COMMON, "datetime_format": st.none() | st.sampled_from(["%Y-%m-%d", "%d/%m/%y"])}),
    "h3": (dp.H3, COMMON),
    "vector": (dp.Vector, COMMON),
    "timeseries": (
        dp.Timeseries,
        {**COMMON, "timeseries_length_limit": st.integers(1, 4), "padding": st.sampled_from(["left", "right"])},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A frame, the same cells in another dtype, and a feature that reads them."""

    frame: pd.DataFrame
    other: pd.DataFrame
    feature: dp.Feature

    def tell(self) -> None:
        cells, dtypes = cells_of(self.frame[NAME]), (self.frame[NAME].dtype, self.other[NAME].dtype)
        note(f"{self.feature!r} of {dtypes[0]} (and {dtypes[1]}): {cells!r}")


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a frame, and a feature that may read its column; not every feature can."""
    kind, column, other = draw(columns())
    name = draw(st.sampled_from((*TOKENS, *KINDS[kind].features)))
    feature, parameters = PARAMETERS[name]
    given = draw(st.fixed_dictionaries({}, optional=parameters))
    return Case(pd.DataFrame({NAME: column}), pd.DataFrame({NAME: other}), feature(**given))


# -- checks


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings(), dask.config.set({"dataframe.convert-string": False, "scheduler": "sync"}):
        warnings.simplefilter("ignore", UserWarning)
        yield


def fitted(feature: dp.Feature, frame: Any) -> dp.Preprocessor | None:
    """Fit, or return None after an error, which must be a daskprep error that names the column."""
    return allowed(lambda: dp.Preprocessor({NAME: feature}).fit(frame))


def allowed(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except DaskprepError as error:
        message = str(error)
    assert f'"{NAME}"' in message
    return None


def in_partitions(frame: pd.DataFrame, cuts: list[int], *, as_objects: bool) -> dd.DataFrame:
    """Split a frame into partitions, some of them empty; every other one as an object column, if requested."""
    bounds = [0, *sorted(min(cut, len(frame)) for cut in cuts), len(frame)]
    pieces = [frame.iloc[start:stop] for start, stop in pairwise(bounds)]
    if as_objects:
        pieces = [
            pd.DataFrame({NAME: pd.Series(cells_of(piece[NAME]), dtype=object)}) if number % 2 else piece
            for number, piece in enumerate(pieces)
        ]
    return dd.from_map(lambda piece: piece, pieces, meta=frame.iloc[:0])


def as_lists(encoded: Any) -> dict[str, Any]:
    return {name: (str(array.dtype), np.asarray(array).tolist()) for name, array in dask.compute(encoded)[0].items()}


def cells_of(column: pd.Series[Any]) -> list[Any]:
    # Arrow 26.0.1 crashes if pandas converts some types to objects.
    return pa.array(column).to_pylist() if isinstance(column.dtype, pd.ArrowDtype) else column.tolist()


def written(column: pd.Series[Any]) -> tuple[Any, str]:
    return column.dtype, repr(cells_of(column))


def is_widened(column: pd.Series[Any]) -> bool:
    """Return whether cells change when converted to objects: 32-bit floats are shortened."""
    return (
        "16" in str(column.dtype)
        or "32" in str(column.dtype)
        or "halffloat" in str(column.dtype)
        or (str(column.dtype) == "float[pyarrow]")
    )


def without_type(prep: dp.Preprocessor) -> dict[str, Any]:
    """Return a state without the type of labels, which depends on the dtype of the column."""
    state = prep.to_dict()
    for feature in state["features"].values():
        feature["learned"].pop("cell_type", None)
    return state


def check_partitions(case: Case, cuts: list[int], *, as_objects: bool) -> None:
    frame, feature = case.frame, case.feature
    case.tell()
    before = written(frame[NAME])
    with quiet():
        prep = fitted(feature, frame)
        cut = in_partitions(frame, cuts, as_objects=as_objects and not is_widened(frame[NAME]))
        again = fitted(feature, cut)
        held = fitted(feature, case.other)
        assert (prep is None) == (again is None) == (held is None)
        event(f"{feature.kind}: {'refused' if prep is None else 'fitted'}")
        if prep is None or again is None or held is None:
            return
        assert again.to_dict() == prep.to_dict()
        assert without_type(held) == without_type(prep)
        encoded = allowed(lambda: as_lists(prep.encode(frame)))
        assert allowed(lambda: as_lists(prep.encode(cut))) == encoded
        assert allowed(lambda: as_lists(prep.encode(case.other))) == encoded
        with tempfile.TemporaryDirectory() as folder:
            prep.save(Path(folder) / "prep.json")
            loaded = dp.Preprocessor.load(Path(folder) / "prep.json")
        assert loaded.to_dict() == prep.to_dict()
        assert allowed(lambda: as_lists(loaded.encode(frame))) == encoded
    assert written(frame[NAME]) == before


def check_dataset(case: Case, row_group_rows: int) -> None:
    frame, feature = case.frame, case.feature
    assume(len(frame))
    case.tell()
    with quiet(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        try:
            if isinstance(frame[NAME].dtype, pd.SparseDtype):  # not supported by Arrow
                frame = pd.DataFrame({NAME: frame[NAME].sparse.to_dense()})
            table = pa.Table.from_pandas(frame, preserve_index=False)
            pq.write_table(table, path, row_group_size=row_group_rows)
            table = pq.read_table(path)
        except pa.ArrowException:
            return  # Parquet cannot store these cells
        frame = pd.DataFrame({NAME: pd.arrays.ArrowExtensionArray(table.column(NAME))})
        prep = fitted(feature, frame)
        source = dp.read_files(str(path), partition_bytes=1)
        writer = dp.Preprocessor({NAME: feature})
        dataset = allowed(lambda: writer.fit_write(source, Path(folder) / "rows.dp"))
        if dataset is None:
            # Rows that raise in encode are found in a write, not in a fit.
            assert prep is None or allowed(lambda: as_lists(prep.encode(frame))) is None
            return
        assert prep is not None
        assert writer.to_dict() == prep.to_dict()
        assert dp.Preprocessor.from_dataset(dataset).to_dict() == prep.to_dict()
        # `encode` returns all rows, a dataset has those that `drop_row` keeps.
        kept = prep.assign(frame)["split"] == 0
        encoded = as_lists({name: array[kept] for name, array in prep.encode(frame).items()})
        if "train" not in dataset.splits:
            assert all(not cells for _, cells in encoded.values())
            return
        rows = dataset["train"].read(list(encoded))
        assert as_lists(rows) == encoded


def check_few_rows(case: Case, others: pd.Series[Any]) -> None:
    """Check that few rows encode as by column, or raise the same error; also cells of other kinds than in fit."""
    case.tell()
    note(f"also {others.dtype}: {cells_of(others)!r}")
    with quiet():
        prep = fitted(case.feature, case.frame)
    if prep is None:
        return
    for frame in (case.frame, case.other, pd.DataFrame({NAME: others})):
        for rows in (frame, frame.iloc[:1], frame.iloc[1:2]):
            few = encode_small_frame(prep.features_, prep.learned_, as_source(rows))
            event(f"{case.feature.kind}: {'by columns' if few is None else 'by rows'}")
            assert outcome(prep.encode, rows) == outcome(functools.partial(encode_columns, prep), rows)


def outcome(encode: Callable[[Any], Any], frame: pd.DataFrame) -> Any:
    """Return the encoded rows, bit by bit, or the error."""
    try:
        return {name: (array.dtype, array.shape, array.tobytes()) for name, array in encode(frame).items()}
    except DaskprepError as error:
        return type(error), str(error)


CUTS = st.lists(st.integers(0, ROWS), max_size=4)
CALM = [HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.mark.slow
@settings(max_examples=50, derandomize=True, suppress_health_check=CALM)
@given(cases(), CUTS, st.booleans())
def test_partitions_and_saving_do_not_change_results(case: Case, cuts: list[int], as_objects: bool) -> None:
    check_partitions(case, cuts, as_objects=as_objects)


@settings(max_examples=20, derandomize=True, suppress_health_check=CALM)
@given(cases(), st.integers(1, ROWS))
def test_datasets_equal_encoded_arrays(case: Case, row_group_rows: int) -> None:
    check_dataset(case, row_group_rows)


@pytest.mark.slow
@settings(max_examples=50, derandomize=True, suppress_health_check=CALM)
@given(cases(), columns())
def test_few_rows_equal_columns(case: Case, others: tuple[str, pd.Series[Any], pd.Series[Any]]) -> None:
    check_few_rows(case, others[1])


@pytest.mark.slow
@pytest.mark.timeout(7200)
@settings(max_examples=1_000 // one_in(4), suppress_health_check=CALM)
@given(cases(), columns())
def test_few_rows_equal_columns_in_many_frames(case: Case, others: tuple[str, pd.Series[Any], pd.Series[Any]]) -> None:
    check_few_rows(case, others[1])


@pytest.mark.slow
@pytest.mark.timeout(7200)
@settings(max_examples=1_000 // one_in(4), suppress_health_check=CALM)
@given(cases(), CUTS, st.booleans())
def test_partitions_and_saving_do_not_change_results_of_many_frames(
    case: Case, cuts: list[int], as_objects: bool
) -> None:
    check_partitions(case, cuts, as_objects=as_objects)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@settings(max_examples=250 // one_in(2), suppress_health_check=CALM)
@given(cases(), st.integers(1, ROWS))
def test_datasets_equal_encoded_arrays_of_many_frames(case: Case, row_group_rows: int) -> None:
    check_dataset(case, row_group_rows)
