"""Tables of scalars are deterministic, and a row group is a block."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daskprep.errors import CorruptDatasetError
from daskprep.storage.checksum import Buffer
from daskprep.storage.tables import CELL_TYPE, column_ranges, decode_table, encode_table, read_footer

COLUMNS = {
    "row_id": np.arange(10),
    "city": np.arange(10, dtype="uint8"),
    "a.b": np.linspace(0, 1, 10, dtype="float32"),
    "a": np.arange(10) % 3 == 0,
    "path": pa.array([f"{i}.jpg" for i in range(10)]),
    "bytes": pa.array([b"\0" * i for i in range(10)], pa.binary()),
}


def decoded(data: Buffer) -> pa.Table:
    footer = read_footer(data)
    return decode_table(data, footer.schema.to_arrow_schema().names, range(footer.num_row_groups), footer)


def test_encode_table_round_trips_in_order() -> None:
    table = decoded(encode_table([COLUMNS], 4))
    assert table.column_names == list(COLUMNS)
    assert not any(field.nullable for field in table.schema)
    for name, column in COLUMNS.items():
        expected = column if isinstance(column, pa.Array) else pa.array(column)
        assert table[name].combine_chunks() == expected


def test_row_group_is_block() -> None:
    data = encode_table([COLUMNS], 4)
    metadata = read_footer(data)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [4, 4, 2]
    assert decode_table(data, ["row_id"], [2, 0], metadata)["row_id"].to_pylist() == [8, 9, 0, 1, 2, 3]
    assert decode_table(data, ["row_id"], [], metadata).num_rows == 0


def test_decode_table_selects_columns_with_dots() -> None:
    data = encode_table([COLUMNS], 4)
    for columns in (["a", "row_id"], ["a.b"], []):
        assert decode_table(data, columns, [0, 1], read_footer(data)).column_names == columns


def test_table_bytes_are_deterministic() -> None:
    first = encode_table([COLUMNS], 4).to_pybytes()
    assert encode_table([dict(COLUMNS)], 4).to_pybytes() == first
    strided = {
        name: np.repeat(column, 2)[::2] if isinstance(column, np.ndarray) else column
        for name, column in COLUMNS.items()
    }
    sliced = {name: pa.concat_arrays([pa.array(column)[:1], pa.array(column)])[1:] for name, column in strided.items()}
    assert encode_table([strided], 4).to_pybytes() == first
    assert encode_table([sliced], 4).to_pybytes() == first
    assert b"pandas" not in first


def test_table_without_rows_has_types() -> None:
    table = decoded(encode_table([{"row_id": np.empty(0, "int64"), "a": np.empty(0, "float32")}], 4))
    assert (table.num_rows, table.schema.types) == (0, [pa.int64(), pa.float32()])


def test_nulls_raise() -> None:
    with pytest.raises(ValueError, match='column "a" has 1 nulls'):
        encode_table([{"row_id": np.arange(2), "a": pa.array([1, None])}], 4)


def test_altered_page_raises() -> None:
    data = encode_table([{"row_id": np.arange(1000)}], 1000).to_pybytes()
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(0)
    end = metadata.data_page_offset + metadata.total_compressed_size
    for position in range(end - 1, end - 500, -50):
        altered = bytearray(data)
        altered[position] ^= 1
        with pytest.raises(CorruptDatasetError, match="a table cannot be read: .*CRC"):
            decoded(bytes(altered))


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" * 10, b"{}"])
def test_invalid_table_raises(data: bytes) -> None:
    with pytest.raises(CorruptDatasetError, match="a table cannot be read"):
        decoded(data)


def test_truncated_table_raises() -> None:
    data = encode_table([COLUMNS], 4).to_pybytes()
    for length in range(0, len(data), 97):
        with pytest.raises(CorruptDatasetError, match="a table cannot be read"):
            decoded(data[:length])


def test_table_bytes_do_not_depend_on_pieces() -> None:
    whole = encode_table([COLUMNS], 4).to_pybytes()
    rows = len(COLUMNS["row_id"])
    pieces = ({name: column[start : start + 4] for name, column in COLUMNS.items()} for start in range(0, rows, 4))
    assert encode_table(pieces, 4).to_pybytes() == whole


def test_missing_media_cells_round_trip() -> None:
    cells = pa.array([{"bytes": b"GIF", "path": None}, None, {"bytes": None, "path": "a.png"}], CELL_TYPE)
    table = decoded(encode_table([{"row_id": np.arange(3), "photo": cells}], 2))
    assert table["photo"].combine_chunks().equals(cells)


def test_column_ranges_cover_only_selected_columns() -> None:
    numbers = {name: np.random.default_rng(0).normal(size=200) for name in ("a", "a.b", "c", "d")}
    data = encode_table([numbers], 100, "none")
    footer = read_footer(data)
    for columns, groups in ((["c"], [1]), (["a"], [0, 1]), (["a.b", "d"], [0]), (["c"], [])):
        ranges = column_ranges(footer, groups, columns, data.size, max_gap=0)
        assert sum(stop - start for start, stop in ranges) < 0.6 * data.size
        sparse = np.zeros(data.size, np.uint8)
        for start, stop in ranges:
            sparse[start:stop] = np.frombuffer(data, np.uint8)[start:stop]
        assert decode_table(sparse, columns, groups, footer).equals(decode_table(data, columns, groups, footer))
    assert len(column_ranges(footer, [0], ["a", "d"], data.size, max_gap=0)) == 2
    assert len(column_ranges(footer, [0], ["a", "d"], data.size, max_gap=2_000)) == 1
    with pytest.raises(CorruptDatasetError, match="is at bytes"):
        column_ranges(footer, [1], ["d"], data.size // 2, max_gap=0)
