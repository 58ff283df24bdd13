"""Every row belongs to one block, one part, and one file of each kind."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskprep.errors import ConfigError
from daskprep.storage import Layout, Output

OUTPUTS = (Output("age", "float32"), Output("review", "uint16", (8,)), Output("photo", "uint8", (3, 2, 2)))


def layout(rows: dict[str, int], block_rows: int | None = None) -> Layout:
    return Layout.choose(OUTPUTS, rows, block_rows=block_rows, compression="lz4")


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 5))
def test_blocks_and_parts_contain_every_row_once(rows: int, block_rows: int, part_blocks: int) -> None:
    made = Layout(OUTPUTS, {"train": rows}, block_rows, part_blocks, "lz4")
    blocks = [made.block_range("train", block) for block in range(made.blocks("train"))]
    parts = [made.part_range("train", part) for part in range(made.parts("train"))]
    assert [row for block in blocks for row in block] == list(range(rows))
    assert [row for part in parts for row in part] == list(range(rows))
    assert all(part.start % block_rows == 0 for part in parts)


def test_files_are_named_by_part_and_block() -> None:
    made = Layout(OUTPUTS, {"train": 10, "test": 1}, 2, 2, "lz4")
    assert made.table_file("train", 2) == "train/table/part-00002.parquet"
    arrays = {made.array_file("train", output, 4) for output in made.matrices}
    assert arrays == {"train/arrays.zarr/review/c.4.0", "train/arrays.zarr/photo/c.4.0.0.0"}
    assert list(made.part_block_range("train", 1)) == [2, 3]
    assert list(made.metadata_files("test")) == [
        "test/arrays.zarr/photo/zarr.json",
        "test/arrays.zarr/review/zarr.json",
        "test/arrays.zarr/zarr.json",
    ]
    assert json.loads(made.metadata_files("train")["train/arrays.zarr/review/zarr.json"])["shape"] == [10, 8]


def test_out_of_range_raises_index_error() -> None:
    made = layout({"train": 10}, 4)
    for method in (made.block_range, made.part_range):
        for wrong in (-1, 3):
            with pytest.raises(IndexError, match="train"):
                method("train", wrong)


def test_empty_splits_are_dropped_and_order_is_fixed() -> None:
    made = layout({"test": 3, "validation": 0, "train": 5})
    assert list(made.rows.items()) == [("train", 5), ("test", 3)]
    assert layout({}).rows == {}
    with pytest.raises(ValueError, match=r"unknown splits \['other'\]"):
        layout({"other": 3})


def test_scalars_matrices_and_row_bytes() -> None:
    made = layout({"train": 5})
    assert [output.name for output in made.scalars] == ["age"]
    assert [output.name for output in made.matrices] == ["review", "photo"]
    assert made.row_bytes == 4 + 16 + 12 + 8


@pytest.mark.parametrize(
    ("row_bytes", "rows", "expected"),
    [
        (1, 0, 256),
        (1, 10, 256),
        (1, 64 * 1000, 896),
        (1, 10**9, 2**20),
        (256, 10**9, 57344),
        (150_528, 10**6, 96),
        (16_000_001, 10**6, 1),
    ],
)
def test_default_block_rows(row_bytes: int, rows: int, expected: int) -> None:
    outputs = [Output("x", "uint8", (row_bytes,)), Output("y", "uint8")]
    made = Layout.choose(outputs, {"train": rows, "test": 1}, block_rows=None, compression="none")
    assert made.block_rows == expected
    assert made.part_blocks == max(1, min(256, 32_000_000 // (expected * (row_bytes + 9))))


def test_layout_without_outputs_has_row_numbers() -> None:
    made = Layout.choose([], {"train": 3}, block_rows=None, compression="lz4")
    assert (made.row_bytes, made.block_rows) == (8, 256)
    assert list(made.metadata_files("train")) == ["train/arrays.zarr/zarr.json"]


@pytest.mark.parametrize("wrong", [0, -1, 2**24 + 1, 1.5, True, "8"])
def test_invalid_block_rows_raise(wrong: object) -> None:
    with pytest.raises(ConfigError, match=r"block_rows=.*expected an integer from 1 to 16,777,216"):
        layout({"train": 5}, wrong)  # type: ignore[arg-type]


def test_block_too_large_for_chunk_raises() -> None:
    outputs = [Output("photo", "uint8", (3, 224, 224))]
    with pytest.raises(ConfigError, match=r"block_rows=100,000: .* use at most 14,2\d\d"):
        Layout.choose(outputs, {"train": 5}, block_rows=100_000, compression="lz4")


def test_unknown_compression_raises() -> None:
    with pytest.raises(ConfigError, match='compression=\'gzip\': expected "lz4", "zstd" or "none"'):
        Layout.choose(OUTPUTS, {"train": 5}, block_rows=None, compression="gzip")  # type: ignore[arg-type]


def test_layout_round_trips_as_dict() -> None:
    made = layout({"train": 1000, "validation": 5, "test": 7})
    again = Layout.from_dict(json.loads(json.dumps(made.to_dict(), sort_keys=True)))
    assert again == made
    assert list(again.rows) == ["train", "validation", "test"]


@pytest.mark.parametrize("change", [{"compression": "gzip"}, {"block_rows": 0}, {"part_blocks": 0}, {"rows": {"a": 1}}])
def test_invalid_layout_dict_raises(change: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError), match=r"gzip|block_rows=0|parts of 0 blocks|unknown splits"):
        Layout.from_dict({**layout({"train": 1}).to_dict(), **change})


def test_large_cells_make_small_blocks() -> None:
    outputs = [Output("photo", "uint8", (3, 32, 32), cell_bytes=500_000)]
    made = Layout.choose(outputs, {"train": 10**6}, block_rows=None, compression="none")
    assert made.block_rows * 500_000 <= 16_000_000
    with pytest.raises(ConfigError, match="block_rows"):
        Layout.choose(outputs, {"train": 10**6}, block_rows=10_000, compression="none")


def test_carried_bytes_make_small_parts() -> None:
    outputs = [Output("photo", "uint8", (3, 4, 4))]
    light, heavy = (
        Layout.choose(outputs, {"train": 10**5}, block_rows=64, compression="none", carried_bytes=size)
        for size in (0, 100_000)
    )
    assert heavy.part_blocks * 64 * 100_000 <= 32_000_000 < light.part_blocks * 64 * 100_000


def test_shard_layout_has_smaller_blocks() -> None:
    outputs = (Output("age", "float32"), Output("vector", "float32", (50,)))
    sizes = {"train": 1_000_000_000, "test": 10}
    chunks, shards = (
        Layout.choose(outputs, sizes, block_rows=None, compression="lz4", sharded=sharded) for sharded in (False, True)
    )
    assert 8_000_000 < chunks.block_rows * 200 <= 16_000_000
    assert 2_000_000 < shards.block_rows * 200 <= 4_000_000
    assert shards.part_blocks > 1
    assert shards.array_file("train", shards.matrices[0], 3) == "train/arrays.zarr/vector/c.3.0"
    small = Layout.choose(outputs, {"train": 100}, block_rows=30, compression="lz4", sharded=True)
    assert (small.part_blocks, small.parts("train")) == (4, 1)
    assert Layout.from_dict(small.to_dict()) == small
    assert "sharded" not in chunks.to_dict()


@pytest.mark.parametrize(("columns", "part_blocks"), [(200, 20), (1000, 4), (5000, 1)])
def test_footers_of_wide_tables_describe_few_columns(columns: int, part_blocks: int) -> None:
    outputs = [Output(f"c{i}", "float32") for i in range(columns)]
    made = Layout.choose(outputs, {"train": 20_000}, block_rows=256, compression="lz4")
    assert made.part_blocks <= part_blocks
    assert made.part_blocks * columns <= 4096 or made.part_blocks == 1
