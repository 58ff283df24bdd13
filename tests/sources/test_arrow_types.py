"""Types that sources return, and common types of several files."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskprep.sources.arrow_types import TEXT_CODES, common_type, narrow_column, narrow_type
from daskprep.sources.base import split_evenly
from tests.sizes import Sizes


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.string()])
@pytest.mark.parametrize("start", [0, 1, 3])
def test_narrow_text_at_any_offset(kind: pa.DataType, start: int) -> None:
    cells = ["a", None, "", "déf", None, "x"]
    array = pa.array(cells).cast(kind).slice(start)
    narrowed = narrow_column(array)
    narrowed.validate(full=True)
    assert narrowed.type == pa.string()
    assert narrowed.to_pylist() == cells[start:]


def test_narrow_text_is_zero_copy() -> None:
    array = pa.array(["abc", "def"], pa.large_string())
    assert narrow_column(array.slice(1)).chunk(0).buffers()[2].address == array.buffers()[2].address + 3


def test_narrow_text_splits_long_arrays(sizes: Sizes) -> None:
    sizes(text_offset=10)
    cells = ["abcdef", "ghi", None, "jklmnopq", "r", "stuvw"]
    narrowed = narrow_column(pa.array(cells, pa.large_string()))
    assert narrowed.to_pylist() == cells
    assert narrowed.num_chunks > 1
    assert all(len(chunk.buffers()[2] or b"") <= 10 for chunk in narrowed.chunks)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.dictionary(pa.int8(), pa.large_string()), TEXT_CODES),
        (pa.dictionary(pa.int8(), pa.int64()), pa.int64()),
        (pa.large_list(pa.large_string()), pa.list_(pa.string())),
        (pa.list_(pa.large_string(), 2), pa.list_(pa.string(), 2)),
        (pa.float16(), pa.float32()),
        (pa.large_binary(), pa.binary()),
        (pa.timestamp("ns", "UTC"), pa.timestamp("ns", "UTC")),
        (pa.decimal32(5, 2), pa.decimal128(5, 2)),
        (pa.list_(pa.decimal64(12, 2)), pa.list_(pa.decimal128(12, 2))),
        (pa.run_end_encoded(pa.int32(), pa.large_string()), pa.string()),
        (pa.uuid(), pa.string()),
        (pa.list_(pa.uuid()), pa.list_(pa.string())),
        (pa.bool8(), pa.bool_()),
        (pa.json_(), pa.string()),
    ],
)
def test_narrow_types(kind: pa.DataType, expected: pa.DataType) -> None:
    assert narrow_type(kind) == expected
    narrowed = narrow_column(pa.nulls(3, kind))
    assert narrowed.type == expected
    assert narrowed.null_count == 3


@pytest.mark.parametrize("make", [pa.list_, pa.large_list, pa.list_view, pa.large_list_view])
@pytest.mark.parametrize("start", [0, 1, 2])
def test_narrow_lists_at_any_offset(make: Callable[..., pa.DataType], start: int) -> None:
    cells = [["ab"], None, [], ["c", None]]
    narrowed = narrow_column(pa.array(cells, make(pa.large_string())).slice(start))
    narrowed.validate(full=True)
    assert narrowed.type == pa.list_(pa.string())
    assert narrowed.to_pylist() == cells[start:]


@pytest.mark.parametrize("start", [0, 1, 2])
def test_narrow_fixed_size_lists_and_structs_at_any_offset(start: int) -> None:
    lists = [["a", "b"], None, ["c", None], ["d", "e"]]
    media = [{"bytes": b"x", "path": "a"}, None, {"bytes": None, "path": "b"}, {"bytes": b"y", "path": None}]
    views = pa.struct([("bytes", pa.binary_view()), ("path", pa.string_view())])
    for cells, kind, expected in [
        (lists, pa.list_(pa.string_view(), 2), pa.list_(pa.string(), 2)),
        (media, views, pa.struct([("bytes", pa.large_binary()), ("path", pa.string())])),
    ]:
        narrowed = narrow_column(pa.array(cells, kind).slice(start))
        narrowed.validate(full=True)
        assert narrowed.type == expected
        assert narrowed.to_pylist() == cells[start:]


@pytest.mark.slow
@given(st.lists(st.none() | st.uuids()), st.integers(0, 3))
def test_uuids_become_text(cells: list[uuid.UUID | None], start: int) -> None:
    stored = pa.array([cell and cell.bytes for cell in cells], pa.binary(16))
    narrowed = narrow_column(pa.ExtensionArray.from_storage(pa.uuid(), stored).slice(start))
    assert narrowed.to_pylist() == [cell and str(cell) for cell in cells[start:]]


def test_bool8_becomes_bool() -> None:
    array = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None], pa.int8()))
    assert narrow_column(array).to_pylist() == [True, False, None]


def test_narrow_keeps_text_dictionaries_and_decodes_others() -> None:
    text = pa.array(["b", None, "a", "b"]).dictionary_encode()
    assert narrow_column(text).chunk(0).dictionary.to_pylist() == ["b", "a"]
    assert narrow_column(pa.array([5, None, 5]).dictionary_encode()).to_pylist() == [5, None, 5]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.int64(), pa.float32(), pa.float64()),
        (pa.null(), TEXT_CODES, TEXT_CODES),
        (TEXT_CODES, pa.string(), pa.string()),
        (pa.list_(pa.null()), pa.list_(pa.int8()), pa.list_(pa.int8())),
        (pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("ns")),
        (pa.timestamp("s"), pa.timestamp("s", "UTC"), None),
        (pa.string(), pa.binary(), None),
        (pa.bool_(), pa.int8(), None),
        (pa.list_(pa.int8()), pa.int8(), None),
        (pa.list_(pa.int8()), pa.list_(pa.string()), None),
        (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.string())]), None),
    ],
)
def test_common_types(one: pa.DataType, other: pa.DataType, expected: pa.DataType | None) -> None:
    assert common_type(one, other) == expected
    assert common_type(other, one) == expected


@pytest.mark.parametrize("total", [0, 1, 99, 100, 101, 250])
def test_split_evenly_respects_limit(total: int) -> None:
    bounds = [7, *split_evenly(7, 7 + total, 100), 7 + total]
    sizes = [b - a for a, b in pairwise(bounds)]
    assert sum(sizes) == total
    assert max(sizes) <= 100
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == max(1, -(-total // 100))
