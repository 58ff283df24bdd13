"""Frames and arrays as sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from daskprep.columns.deferred.cells import CELL_TYPE, convert_media_column
from daskprep.columns.kernels import unwrap_mixed_table
from daskprep.errors import ColumnError
from daskprep.sources import (
    DaskSource,
    PandasSource,
    as_source,
    is_frame,
    table_from_pandas,
)

CODES = pa.dictionary(pa.int32(), pa.string())


def column(values: Any, dtype: Any = None) -> pa.ChunkedArray:
    """Convert one column as a slice of a pandas frame, and as a Dask partition; both must agree."""
    frame = pd.DataFrame({"c": pd.Series(values, dtype=dtype).set_axis(range(5, 5 + len(values)))})
    read = as_source(frame).read(0, ["c"])["c"]
    assert unwrap_mixed_table(table_from_pandas(frame, ["c"]))["c"].equals(read)
    return read


@pytest.mark.parametrize(
    ("values", "dtype", "kind", "expected"),
    [
        (["a", None], "str", pa.string(), ["a", None]),
        (["a", None], "string[python]", pa.string(), ["a", None]),
        (["a", None], "string[pyarrow]", pa.string(), ["a", None]),
        ([1, 2], "uint64", pa.uint64(), [1, 2]),
        ([1.5, np.nan], "float32", pa.float32(), [1.5, None]),
        ([1.5, np.inf], "float16", pa.float32(), [1.5, np.inf]),
        ([1, None], "Int64", pa.int64(), [1, None]),
        ([1.5, None], "Float64", pa.float64(), [1.5, None]),
        ([True, None], "boolean", pa.bool_(), [True, None]),
        ([1, None], "int64[pyarrow]", pa.int64(), [1, None]),
        ([[1], None], pd.ArrowDtype(pa.large_list(pa.int64())), pa.list_(pa.int64()), [[1], None]),
        (["b", None, "a"], "category", CODES, ["b", None, "a"]),
        ([3, None, 3], "category", pa.int64(), [3, None, 3]),
        ([1.5], "category", pa.float64(), [1.5]),
        ([3, "a"], "category", CODES, ["3", "a"]),
        ([1, "1", None], "category", pa.string(), ["1", "1", None]),
        ([], "category", pa.null(), []),
        ([0, 1], "Sparse[int]", pa.int64(), [0, 1]),
        ([np.nan, 1], "Sparse[float]", pa.float64(), [None, 1.0]),
    ],
)  # fmt: skip
def test_dtype_conversion(values: list[Any], dtype: Any, kind: pa.DataType, expected: list[Any]) -> None:
    assert column(values, dtype).type == kind
    assert column(values, dtype).to_pylist() == expected


@pytest.mark.parametrize("dtype", ["datetime64[ns]", "datetime64[s]", "datetime64[us, Europe/Rome]"])
def test_timestamps_keep_time_zone(dtype: str) -> None:
    values = pd.Series(["2020-01-01 05:00", None], dtype=dtype)
    read = column(values, dtype)
    assert read.null_count == 1
    assert read.type.tz == ("Europe/Rome" if "Rome" in dtype else None)
    assert pd.Timestamp(read[0].as_py()) == values[0]


@pytest.mark.parametrize(
    ("values", "dtype", "message"),
    [
        ([1j], None, r"dtype complex128, which no feature reads: make two columns"),
        (pd.interval_range(0, 2), None, r"interval\[int64, right\].*\.astype\(str\)"),
        (["2020"], "period[D]", r"period\[D\].*\.to_timestamp\(\)"),
        (pd.cut([1, 2], 2), None, "interval"),
    ],
)
def test_unsupported_dtypes_raise(values: Any, dtype: Any, message: str) -> None:
    with pytest.raises(ColumnError, match=f'column "c" has .*{message}'):
        column(values, dtype)


def test_partitions_are_zero_copy_slices() -> None:
    numbers = np.arange(300_000, dtype=float)
    frame = pd.DataFrame({"a": numbers, "b": pd.Series(numbers.astype(int).astype(str))}, copy=False)
    source = as_source(frame)
    assert source.row_counts == [131_072, 131_072, 37_856]
    assert source.in_memory
    assert not source.is_dask
    parts = [source.read(i, ["b", "a"]) for i in range(3)]
    assert pa.concat_tables(parts)["a"].to_pylist() == numbers.tolist()
    assert pa.concat_tables(parts)["b"].to_pylist() == frame["b"].tolist()
    address = parts[1]["a"].chunk(0).buffers()[1].address
    start = frame["a"].to_numpy().__array_interface__["data"][0]
    assert start <= address < start + numbers.nbytes


def test_object_column_has_one_type_in_all_partitions() -> None:
    cells = [1] * 131_072 + ["x", 2.5, None]
    source = as_source(pd.DataFrame({"c": pd.Series(cells, dtype=object)}))
    parts = [source.read(i, ["c"])["c"] for i in range(2)]
    assert [part.type for part in parts] == [pa.string()] * 2
    assert parts[0].unique().to_pylist() == ["1"]
    assert parts[1].to_pylist() == ["x", "2.5", None]


def test_error_names_row_of_frame() -> None:
    cells = pd.Series(["x"] * 131_075, dtype=object)
    cells[131_073] = {"k": 1}
    source = as_source(pd.DataFrame({"c": cells}))
    with pytest.raises(ColumnError, match='column "c", row 131073: a cell of type dict cannot be read'):
        source.read(1, ["c"])


@pytest.mark.parametrize("cell", [b"\0\xff", {"bytes": b"x", "path": None}])
def test_partitions_of_large_cells_have_fewer_rows(cell: Any) -> None:
    cells = pd.Series([None] * 100 + [cell] * 1_000 + ["a.png" if isinstance(cell, dict) else cell] * 948, dtype=object)
    source = as_source(pd.DataFrame({"c": cells, "n": range(2_048)}))
    assert source.row_counts == [1_024, 1_024]
    parts = [source.read(i, ["c", "n"]) for i in range(2)]
    assert parts[0]["c"].type == parts[1]["c"].type
    assert pa.concat_tables(parts)["n"].to_pylist() == list(range(2_048))
    assert as_source(pd.DataFrame({"c": cells, "n": range(2_048)}), columns=["n"]).row_counts == [2_048]


def test_media_error_names_row_of_frame() -> None:
    cells = pd.Series([{"bytes": b"x"}] * 1_030, dtype=object)
    cells[1_025] = 7
    with pytest.raises(ColumnError, match=r'column "c", row 1025: this cell cannot be read as an image \(int\)'):
        as_source(pd.DataFrame({"c": cells})).read(1, ["c"])


def test_dask_partitions_of_media_and_paths_convert_identically() -> None:
    cells = [{"bytes": b"x", "path": None}, None, "a.png", "b.png"]
    with dask.config.set({"dataframe.convert-string": False}):
        frame = dd.from_pandas(pd.DataFrame({"c": pd.Series(cells, dtype=object)}), npartitions=2)
        source = as_source(frame)
        parts = [source.read(i, ["c"])["c"] for i in range(source.npartitions)]
    assert [part.type for part in parts] == [CELL_TYPE, pa.string()]
    read = pa.concat_arrays([convert_media_column(part, "image") for part in parts])
    assert read.field("path").to_pylist() == [None, None, "a.png", "b.png"]
    assert read.field("bytes").to_pylist() == [b"x", None, None, None]


@pytest.mark.parametrize(
    "made",
    [
        lambda frame: dd.from_pandas(frame, npartitions=2),
        lambda frame: dd.from_pandas(frame, npartitions=2).query("n > 0")[["n", "c", "t"]],
        lambda frame: dd.from_delayed([dask.delayed(frame)]),
        lambda frame: dd.from_map(lambda part: frame, [1, 2]),
    ],
)
@pytest.mark.parametrize("cell", [["a", "b"], np.ones((2, 2)), {"bytes": b"x", "path": None}])
def test_lists_and_media_converted_to_text_by_dask_raise(made: Any, cell: Any) -> None:
    frame = pd.DataFrame({"c": pd.Series([None, cell, cell, None], dtype=object), "t": "['a']", "n": range(4)})
    remedy = r'column "c" of the Dask frame: .*dask\.config\.set\(\{"dataframe\.convert-string": False\}\) before'
    with pytest.raises(ColumnError, match=remedy):
        as_source(made(frame), columns=["c"])
    with pytest.raises(ColumnError, match=remedy):
        as_source(made(frame)).read(0, ["t", "c"])
    assert set(as_source(made(frame), columns=["t"]).read(0, ["t"])["t"].to_pylist()) == {"['a']"}
    with dask.config.set({"dataframe.convert-string": False}):
        as_source(made(frame), columns=["c"])


def test_replaced_dask_columns_are_read() -> None:
    frame = dd.from_pandas(pd.DataFrame({"c": [["a", "b"], ["c"]], "n": [1, 2]}), npartitions=1)
    assert as_source(frame.assign(c=frame["c"].str[2:3])).read(0, ["c"])["c"].to_pylist() == ["a", "c"]
    assert as_source(frame[["n"]].rename(columns={"n": "c"})).read(0, ["c"])["c"].to_pylist() == [1, 2]


def test_empty_frame_is_one_partition() -> None:
    source = as_source(pd.DataFrame({"a": pd.Series([], dtype="float64"), "b": pd.Series([], dtype="str")}))
    assert source.row_counts == [0]
    assert source.read(0, ["b", "a"]).schema.types == [pa.string(), pa.float64()]


def test_empty_selection_keeps_row_count() -> None:
    frame = pd.DataFrame({"a": [1, 2, 3]})
    assert as_source(frame).read(0, []).num_rows == table_from_pandas(frame, []).num_rows == 3


def test_frame_is_not_modified() -> None:
    frame = pd.DataFrame({"a": [[1, "x"], None], "b": ["x", 1], "c": [1.5, np.nan]}, index=[7, 7])
    before = frame.copy(deep=True)
    as_source(frame).read(0, ["a", "b", "c"])
    pd.testing.assert_frame_equal(frame, before)


@pytest.mark.parametrize("dask", [False, True])
@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", 1.5], r"column 1.5 of the frame is named by a float.*frame\.columns\.astype\(str\)"),
        (["a", "a"], r'2 columns are named "a" \(numbers 0, 1, counted from 0\)'),
    ],
)
def test_invalid_column_names_raise(names: Any, message: str, dask: bool) -> None:
    frame = pd.DataFrame([[1, 2]], columns=names)
    with pytest.raises(ColumnError, match=message):
        as_source(dd.from_pandas(frame, npartitions=1) if dask else frame)


def test_multiindex_columns_raise() -> None:
    frame = pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", "x"), ("a", "y")]))
    with pytest.raises(ColumnError, match=r'named by a tuple.*"_"\.join'):
        as_source(frame)
    with pytest.raises(ColumnError, match=r'named by a tuple.*"_"\.join'):
        as_source(frame, columns=["x"])
    frame.columns = ["_".join(map(str, name)) for name in frame.columns]
    assert as_source(frame).columns == ["a_x", "a_y"]


def test_unselected_columns_may_have_any_name() -> None:
    frame = pd.DataFrame([[1, 2, 3, 4]], columns=["a", 5, "b", "b"])
    source = as_source(frame, columns=["a"])
    assert source.columns == ["a"]
    assert source.read(0, ["a"]).to_pydict() == {"a": [1]}
    with pytest.raises(ColumnError, match='2 columns are named "b"'):
        as_source(frame, columns=["b"])
    with pytest.raises(ColumnError, match=r'column "aa" is not in the data\. Did you mean "a"'):
        as_source(frame, columns=["aa"])


def test_dask_frame_is_used_directly(tmp_path: Path) -> None:
    frame = dd.from_pandas(pd.DataFrame({"a": range(10), "b": list("abcdefghij")}), npartitions=3)
    source = as_source(frame)
    assert isinstance(source, DaskSource)
    assert source.is_dask
    assert not source.in_memory
    assert source.frame is frame
    assert (source.columns, source.npartitions, source.row_counts) == (["a", "b"], 3, None)
    assert [cell for i in range(3) for cell in source.read(i, ["b"])["b"].to_pylist()] == list("abcdefghij")
    pandas = pd.DataFrame({"a": [1]})
    assert as_source(pandas).frame is pandas
    pandas.to_csv(tmp_path / "a.csv")
    assert not hasattr(as_source(tmp_path / "a.csv"), "frame")


def test_error_names_row_of_partition() -> None:
    with pytest.raises(ColumnError, match='column "c", row 1 of a partition: a cell of type dict'):
        table_from_pandas(pd.DataFrame({"c": ["x", {}]}), ["c"])


def test_importing_sources_does_not_import_dask() -> None:
    code = "import sys, daskprep.sources; print({'dask', 'distributed'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_is_frame() -> None:
    frame = pd.DataFrame({"a": [1]})
    assert is_frame(frame)
    assert is_frame(dd.from_pandas(frame, npartitions=1))
    assert not is_frame(frame["a"])
    assert not is_frame(dd.from_pandas(frame, npartitions=1)["a"])
    assert not is_frame("a.csv")


def test_repr_shows_size() -> None:
    assert repr(PandasSource(pd.DataFrame({"a": [1, 2]}))) == "<PandasSource: 2 rows, 1 columns>"
