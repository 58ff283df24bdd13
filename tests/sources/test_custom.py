"""User-defined sources: required methods and supported features."""

from __future__ import annotations

import runpy
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import daskprep as dp
from daskprep.errors import ColumnError, DatasetExistsError
from daskprep.sources import Source, as_source

FRAME = pd.DataFrame({"n": np.arange(100) / 7, "c": [f"c{i % 7}" for i in range(100)]})
FEATURES = {"n": "number", "c": "category"}


class Slices(Source):
    """Slices of a frame, as a user-defined reader."""

    def __init__(self, *, counted: bool = True, mark: int = 0) -> None:
        self.columns = list(FRAME.columns)
        self.row_counts = [30, 30, 30, 10] if counted else None
        if not counted:
            self.npartitions = 4
        self.record = {"mark": mark}

    def read_rows(self, partition: int, columns: list[str]) -> Any:
        return FRAME[columns].iloc[30 * partition : 30 * partition + 30].to_dict("list")


class Returning(Source):
    """One partition of two rows that returns any object."""

    def __init__(self, made: Any) -> None:
        self.columns, self.row_counts, self.made = ["n"], [2], made

    def read_rows(self, partition: int, columns: list[str]) -> Any:
        return self.made


@pytest.mark.parametrize("scheduler", ["sync", "threads", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize("counted", [True, False])
def test_custom_source_fit_and_encode_equal_frame(scheduler: str, counted: bool) -> None:
    with dask.config.set(scheduler=scheduler):
        prep = dp.Preprocessor(FEATURES).fit(Slices(counted=counted))
        encoded = prep.encode(Slices(counted=counted))
        assert prep.to_dict() == dp.Preprocessor(FEATURES).fit(FRAME).to_dict()
        for name, array in prep.encode(FRAME).items():
            np.testing.assert_array_equal(np.asarray(encoded[name]), array)
    assert list(dp.infer_features(Slices(counted=counted))) == list(FEATURES)


def test_custom_source_stream_and_prepared() -> None:
    prep = dp.Preprocessor(FEATURES).fit(FRAME)
    rows = [len(batch["n"]) for batch in prep.stream(Slices(), 40, shuffle=False)]
    assert rows == [40, 40, 20]
    doubled = dp.prepared(Slices(), lambda frame: frame.assign(n=2 * frame["n"]))
    assert doubled.read(3, ["n"])["n"].to_pylist() == (2 * FRAME["n"][90:]).tolist()


def test_write_with_equal_record_is_skipped(tmp_path: Path) -> None:
    prep = dp.Preprocessor(FEATURES)
    digest = prep.fit_write(Slices(), tmp_path / "a.dp").digest
    again = prep.fit_write(Slices(), tmp_path / "a.dp")
    assert (again.digest, again.timings) == (digest, None)
    with pytest.raises(DatasetExistsError, match=r"written from rows of \{'mark': 0\}, not from rows of \{'mark': 1\}"):
        prep.fit_write(Slices(mark=1), tmp_path / "a.dp")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"n": [1]}, r"Returning\.read_rows\(0, \.\.\.\) returned 1 rows, but row_counts has 2"),
        ({"m": [1, 2]}, r'returned 0 columns "n", not one'),
        (None, r"returned no Arrow table"),
        ({"n": [1], "m": [1, 2]}, r"returned no Arrow table"),
    ],
)
def test_invalid_read_rows_result_raises(made: Any, message: str) -> None:
    with pytest.raises(ColumnError, match=message):
        as_source(Returning(made)).read(0, ["n"])


def test_read_rows_result_is_narrowed_and_selected() -> None:
    for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.large_string())):
        table = pa.table({"m": [0, 1], "n": pa.array(["a", None]).cast(kind)})
        read = Returning(table).read(0, ["n"])
        assert read.column_names == ["n"]
        assert read["n"].to_pylist() == ["a", None]
        assert read["n"].type in (pa.string(), pa.dictionary(pa.int32(), pa.string()))
    assert Returning(table).read(0, []).num_rows == 2


def test_missing_read_rows_raises() -> None:
    class Nothing(Source):
        columns, row_counts = ["n"], [1]

    with pytest.raises(NotImplementedError, match=r"Nothing has to define read_rows\(partition, columns\)"):
        Nothing().read(0, ["n"])


def write_record(path: Path, data: bytes, parts: Sequence[int] = ()) -> None:
    """Append a record as dmlc's RecordIO does, cut at some places where the magic number stands."""
    cuts = [0, *parts, len(data)]
    kinds = [0] if not parts else [1, *[2] * (len(parts) - 1), 3]
    with path.open("ab") as file:
        for kind, start, stop in zip(kinds, cuts, cuts[1:], strict=False):
            part = data[start + 4 * (start > 0) : stop]
            file.write(struct.pack("<II", 0xCED7230A, kind << 29 | len(part)) + part + bytes(-len(part) % 4))


def test_recordio_example_reads_split_records(tmp_path: Path) -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "recordio" / "stream.py"))
    path, magic = tmp_path / "a.rec", struct.pack("<I", 0xCED7230A)
    images = [b"x", b"12345678", b"", b"abcd" + magic + b"e", b"q" * 8 + magic + b"r" * 12 + magic + b"st"]
    for number, image in enumerate(images):
        data = struct.pack("<IfQQ", 0, number / 2, number, 0) + image
        write_record(path, data, [i for i in range(0, len(data), 4) if data[i : i + 4] == magic])
    source = example["RecordFile"](path, rows=2)
    assert source.row_counts == [2, 2, 1]
    read = pa.concat_tables([source.read(i, ["label", "image"]) for i in range(3)])
    assert read["image"].to_pylist() == images
    assert read["label"].to_pylist() == [0.0, 0.5, 1.0, 1.5, 2.0]
