"""Cells that are Python objects: each kind of column has one documented result."""

from __future__ import annotations

import datetime as dt
import io
import pathlib
import subprocess
import sys
import uuid
import zoneinfo
from decimal import Decimal
from typing import Any

import dateutil.tz
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from daskprep.columns.deferred.cells import CELL_TYPE, convert_media_objects
from daskprep.columns.kernels import MIXED, unwrap_mixed_column
from daskprep.errors import ColumnError, RejectedValueError
from daskprep.sources.cells import Cells, cell_kind, cell_texts


def objects(values: list[Any]) -> np.ndarray:
    return pd.Series(values, dtype=object).to_numpy()


def converted(values: list[Any], kind: str | None = None) -> pa.Array:
    cells = objects(values)
    return Cells(cells, "c", kind or cell_kind(cells), 0).to_arrow()


PICTURE = Image.new("RGB", (2, 3), (255, 0, 0))
PIXELS = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
WAVE = np.linspace(-0.5, 0.5, 8, dtype=np.float32)
MISSING = [None, np.nan, pd.NA, pd.NaT]
ROME = zoneinfo.ZoneInfo("Europe/Rome")
DAY, NOON = dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 12)


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (["a", np.str_("b")], pa.string(), ["a", "b"]),
        ([True, np.False_], pa.bool_(), [True, False]),
        ([1, np.int8(2)], pa.int64(), [1, 2]),
        ([1.5, np.float64(2.5), float("inf")], pa.float64(), [1.5, 2.5, float("inf")]),
        ([np.float32(1.5), np.float16(2.5)], pa.float32(), [1.5, 2.5]),
        ([1, 2.5], pa.float64(), [1.0, 2.5]),
        ([b"\xff", bytearray(b"a")], pa.binary(), [b"\xff", b"a"]),
        ([Decimal("1.5"), Decimal("NaN"), Decimal("sNaN")], pa.decimal128(2, 1), [Decimal("1.5"), None, None]),
        ([DAY], pa.date32(), [DAY]),
        ([NOON, pd.Timestamp(NOON)], pa.timestamp("us"), [NOON, NOON]),
        ([dt.time(1)], pa.time64("us"), [dt.time(1)]),
        ([dt.timedelta(1), pd.Timedelta("1D")], pa.duration("us"), [dt.timedelta(1)] * 2),
        ([[1, 2], (3,), np.arange(2)], pa.list_(pa.int64()), [[1, 2], [3], [0, 1]]),
        ([[1], [2.5, None]], pa.list_(pa.float64()), [[1.0], [2.5, None]]),
        ([{"b", "a"}, frozenset({"c"})], pa.list_(pa.string()), [["a", "b"], ["c"]]),
        ([[1, "a"], [np.nan, True]], pa.list_(pa.string()), [["1", "a"], [None, "True"]]),
        ([[NOON], [NOON.replace(tzinfo=ROME)]], pa.list_(pa.string()), [[str(NOON)], [f"{NOON}+01:00"]]),
        (
            [[NOON.replace(tzinfo=dt.UTC)], [NOON.replace(tzinfo=ROME)]],
            pa.list_(pa.string()),
            [[f"{NOON}+00:00"], [f"{NOON}+01:00"]],
        ),
        ([[pd.Timestamp(1)]], pa.list_(pa.string()), [["1970-01-01 00:00:00.000000001"]]),
        ([[dt.time(1, tzinfo=dt.UTC)]], pa.list_(pa.string()), [["01:00:00+00:00"]]),
        ([[uuid.UUID(int=1)]], pa.list_(pa.string()), [[str(uuid.UUID(int=1))]]),
        ([pd.Series([1, 2], index=[5, 6])], pa.list_(pa.int64()), [[1, 2]]),
    ],
)
def test_cells_of_one_type_keep_type(values: list[Any], kind: pa.DataType, expected: list[Any]) -> None:
    array = converted([*values, *MISSING])
    assert array.type == kind
    assert array.to_pylist() == [*expected, *[None] * len(MISSING)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, "a"], ["1", "a"]),
        ([1, True], ["1", "True"]),
        ([0.1, np.float32(0.1)], ["0.1", "0.1"]),
        ([1.0, True, 2.5, 1e15], ["1", "True", "2.5", "1000000000000000"]),
        ([2**70], [str(2**70)]),
        ([2**60 + 1, 0.5], [str(2**60 + 1), "0.5"]),
        (["a", b"b"], ["a", "b"]),
        ([Decimal("1.50"), 1], ["1.5", "1"]),
        ([Decimal("Infinity"), Decimal(1)], ["inf", "1"]),
        ([Decimal("1e80"), Decimal("1.50e-80"), None], ["1" + "0" * 80, "1.5e-80", None]),
        ([DAY, NOON], ["2020-01-01", "2020-01-01 12:00:00"]),
        ([NOON, NOON.replace(tzinfo=dt.UTC)], ["2020-01-01 12:00:00", "2020-01-01 12:00:00+00:00"]),
        (
            [NOON.replace(tzinfo=zone) for zone in (dt.UTC, ROME)],
            ["2020-01-01 12:00:00+00:00", "2020-01-01 12:00:00+01:00"],
        ),
        ([NOON.replace(tzinfo=dateutil.tz.tzoffset("X", 3600))], ["2020-01-01 12:00:00+01:00"]),
        ([dt.time(1, tzinfo=dt.UTC)], ["01:00:00+00:00"]),
        ([pd.Timestamp(1)], ["1970-01-01 00:00:00.000000001"]),
        ([pd.Timedelta(1), dt.timedelta(1)], ["0 days 00:00:00.000000001", "1 days 00:00:00"]),
        ([np.datetime64("2020-01-01")], ["2020-01-01"]),
        ([uuid.UUID(int=1)], ["00000000-0000-0000-0000-000000000001"]),
        ([pathlib.PurePosixPath("a/b")], ["a/b"]),
    ],
)
def test_cells_of_mixed_types_become_text(values: list[Any], expected: list[str]) -> None:
    array = converted([*values, *MISSING])
    assert array.type == MIXED
    assert array.null_count == [*expected, *MISSING].count(None) + 3
    text = unwrap_mixed_column(pa.chunked_array([array]))
    assert text.type == pa.string()
    assert text.to_pylist() == [*expected, *[None] * len(MISSING)]


def test_numbers_among_mixed_cells_are_kept() -> None:
    cells = ["1.5", 1.234, Decimal("0.1"), np.float32(0.1), 2**70, True, float("inf"), 10**400, None, np.nan]
    cells += [DAY, np.timedelta64(1, "D")]
    numbers = [None, 1.234, 0.1, float(np.float32(0.1)), 2.0**70, 1.0, *[None] * 6]
    assert converted(cells).field(1).to_pylist() == numbers


@pytest.mark.parametrize("values", [[], MISSING])
def test_columns_of_missing_cells_are_null(values: list[Any]) -> None:
    assert converted(values).equals(pa.nulls(len(values)))


CELLS = st.none() | st.booleans() | st.integers() | st.floats() | st.text("ab", max_size=2)


@given(st.lists(CELLS, max_size=8), st.integers(0, 8))
def test_conversion_does_not_depend_on_partitioning(values: list[Any], cut: int) -> None:
    kind = cell_kind(objects(values))
    parts = [converted(part, kind) for part in (values[:cut], values[cut:])]
    assert pa.concat_arrays(parts).equals(converted(values))


@given(st.lists(CELLS, min_size=1, max_size=8))
def test_cell_text_does_not_depend_on_neighbors(values: list[Any]) -> None:
    assert cell_texts(values) == [cell_texts([value])[0] for value in values]


@given(st.floats(allow_nan=False))
def test_float_text_round_trips(value: float) -> None:
    assert float(cell_texts([value])[0] or "") == value


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            ["x", {"k": 1}],
            r"row 1: a cell of type dict cannot be read: \{'k': 1\}; put its values in separate columns",
        ),
        ([None, object()], "row 1: a cell of type object cannot be read"),
        ([1j], "row 0: a cell of type complex"),
        ([pd.Interval(0, 1)], "row 0: a cell of type Interval"),
        ([[1], 2], "row 1: a cell of type int in a column of lists: 2; make all cells lists, or all text"),
        (["x", [1]], "row 0: a cell of type str in a column of lists"),
        ([[1], [{"k": 1}]], "row 1: a dict in a list cannot be read"),
        ([[1], [object()]], "row 1: a object in a list cannot be read"),
        ([[1], np.zeros((2, 2))], "row 1: an array of 2 dimensions cannot be read"),
        ([{"k": 1}, {"k": 2}], "row 0: a cell of type dict cannot be read"),
        ([PICTURE, "a.png", 3.5], r"row 2: this cell cannot be read as an image \(float\); accepted are text, bytes"),
        ([PIXELS, np.zeros((1, 2, 3, 4))], r"row 1: this cell cannot be read as an image \(ndarray: .* of shape"),
        ([{"bytes": b"x"}, {"k": 1}], r"row 1: this cell cannot be read as an image \(dict: it has k"),
        ([(WAVE, 8000), PICTURE], r"row 1: this cell cannot be read as audio \(\w+\); accepted are .*samples, rate"),
        ([None, (WAVE, 8000.5)], r"row 1: this cell cannot be read as audio \(tuple: a sampling rate of 8000.5"),
    ],
)
def test_unsupported_cells_raise(values: list[Any], message: str) -> None:
    with pytest.raises(ColumnError, match=f'column "c", {message}'):
        converted(values)


@pytest.mark.parametrize("values", [["a", "\ud800"], [1, "\ud800"], ["a", b"\xff"], [["a"], ["\ud800"]]])
def test_invalid_text_raises(values: list[Any]) -> None:
    with pytest.raises(RejectedValueError, match=r'column "c", row 1: .* is not UTF-8 text'):
        converted(values)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([PICTURE], "image"),
        ([PIXELS, PIXELS[..., 0]], "image"),
        ([torch.from_numpy(PIXELS)], "image"),
        ([np.zeros(2), np.zeros((1, 2))], "image"),  # or sounds, as the feature says
        ([torch.zeros(3)], "image"),
        ([{"bytes": b"x", "path": None}, {"path": "a.png"}], "image"),
        ([pathlib.Path("a.png"), PICTURE, "b.png", b"x", PIXELS], "image"),
        (["a.png", b"\x89PNG\r\n\x1a\n\0\0\0\r"], "image"),
        ([(WAVE, 8000)], "audio"),
        ([(torch.zeros(2, 8), np.int64(8000)), ([0.0, 0.5], 8000), "a.wav"], "audio"),
        ([{"bytes": b"x"}, {"array": WAVE, "sampling_rate": 8000}], "audio"),
    ],
)
def test_media_objects_become_structs(values: list[Any], kind: Any) -> None:
    assert cell_kind(objects([*values, *MISSING])) == kind
    array = converted([*values, *MISSING])
    assert array.type == CELL_TYPE
    assert array.equals(convert_media_objects([*values, *[None] * len(MISSING)], kind)[0])
    assert array.null_count == len(MISSING)


def test_media_path_and_bytes_are_preserved() -> None:
    array = converted(["a.png", PICTURE, b"x", Decimal("NaN")])
    assert array.field("path").to_pylist() == ["a.png", None, None, None]
    picture = Image.open(io.BytesIO(array.field("bytes")[1].as_py()))
    assert (picture.size, picture.getpixel((0, 0))) == ((2, 3), (255, 0, 0))
    assert array.field("bytes")[2].as_py() == b"x"


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a.png", "b.png"], "text"),
        ([b"\0\xff", bytearray(b"x")], "bytes"),
        ([np.zeros(2), np.zeros(3)], "list"),
        ([(1, 2), (3, 4)], "list"),
        ([pathlib.Path("a.png")], "mixed"),
        (["a", "ä".encode("latin-1")], "mixed"),
        (["a", b"b\0"], "mixed"),
    ],
)
def test_columns_without_media_objects_keep_kind(values: list[Any], kind: str) -> None:
    assert cell_kind(objects([*values, None])) == kind


def test_parts_of_media_column_have_same_type() -> None:
    cells = [None, "a.png", b"x", PICTURE]
    parts = [converted(part, cell_kind(objects(cells))) for part in (cells[:1], cells[1:2], cells[2:])]
    assert pa.concat_arrays(parts).equals(converted(cells))


def test_torch_and_pillow_are_imported_only_for_media() -> None:
    code = """if True:
        import sys, numpy, pandas
        from daskprep.sources import as_source
        cells = pandas.Series(["a", b"b", None], dtype=object)
        as_source(pandas.DataFrame({"c": cells})).read(0, ["c"])
        print({"torch", "PIL", "datasets"} & set(sys.modules))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
