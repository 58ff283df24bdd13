"""The layout of a dataset: the computation of the file and position of each row."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from daskprep.errors import ConfigError
from daskprep.rows.typed import Amount, read_fields
from daskprep.storage.arrays import MAX_CHUNK_BYTES, Compression, Output, chunk_name, group_metadata
from daskprep.storage.checkpoint import checkpointable

SPLITS = ("train", "validation", "test")
FOLD_PREFIX = "fold-"
"""The prefix of the folders of a cross-validation's datasets, before the number of the fold."""
CACHE_FOLDER = "cache"
"""The folder of decoded media within a dataset; it is not part of the dataset and may be removed at any time."""

_ROW_ID_BYTES = 8
_CHUNK_BYTES = 16_000_000
# Chunks in shards are smaller: the first batch waits for one of each stream. Transferring 4 MB takes longer than the
# latency of its request.
_SHARD_CHUNK_BYTES = 4_000_000
_PART_BYTES = 32_000_000
# Shuffling needs many blocks, but a file should have at least this many rows or bytes.
_TARGET_BLOCKS = 64
_MIN_FILE_ROWS = 256
_MIN_FILE_BYTES = 4_000_000
# Reading a row group requires the footer of the table, which describes all of them, column by column.
MAX_PART_BLOCKS = 256
_WIDE_COLUMNS, _MAX_FOOTER_COLUMNS = 128, 4096
_MAX_DEFAULT_BLOCK_ROWS = 1 << 20
_MAX_BLOCK_ROWS = 1 << 24


@checkpointable
@dataclass(frozen=True)
class Layout:
    """The assignment of the rows of all outputs to files.

    A block of a split is `block_rows` rows: one chunk of every array, and one row group of the table. A part is
    `part_blocks` blocks, which one task writes.
    """

    outputs: tuple[Output, ...]
    rows: Mapping[str, Amount]  # by split, in the order of SPLITS, without empty splits.
    block_rows: Amount  # the last block of a split may have fewer
    part_blocks: Amount  # the last part of a split may have fewer
    compression: Compression  # of chunks and tables
    sharded: bool = False  # a file has all chunks of a part.
    # If blocks differ in size: the starts of the blocks of each split. Each block is then a part, and `block_rows` the
    # maximum.
    block_starts: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict, compare=False)

    @classmethod
    def concatenate(cls, layouts: Sequence[Layout], outputs: tuple[Output, ...]) -> Layout:
        """Return a layout with the blocks of several layouts."""
        rows = _sort_splits({name: sum(layout.rows.get(name, 0) for layout in layouts) for name in SPLITS})
        starts = {name: join_starts([one.starts(name) for one in layouts if name in one.rows]) for name in rows}
        max_rows = max(layout.block_rows for layout in layouts)
        return cls(outputs, rows, max_rows, 1, layouts[0].compression, block_starts=starts)

    def hide(self, hidden: Mapping[str, npt.NDArray[np.int64]]) -> Layout:
        """Return a layout without the row numbers `hidden` by split, and empty blocks."""
        starts = {}
        for split in self.rows:
            sizes = np.diff(self.starts(split))
            sizes -= np.bincount(hidden.get(split, np.empty(0, np.int64)) // self.block_rows, minlength=len(sizes))
            starts[split] = np.append(0, sizes[sizes > 0].cumsum())
        rows = _sort_splits({split: int(one[-1]) for split, one in starts.items()})
        return replace(self, rows=rows, part_blocks=1, block_starts=starts)

    @classmethod
    def choose(
        cls,
        outputs: Iterable[Output],
        rows: Mapping[str, int],
        *,
        block_rows: int | None,
        compression: Compression,
        carried_bytes: int = 0,
        sharded: bool = False,
    ) -> Layout:
        """Return a layout for outputs and rows; `carried_bytes` of a row are not stored: media files."""
        outputs = tuple(outputs)
        widest = max([1, *(max(output.row_bytes, output.stored_bytes) for output in outputs)])
        if block_rows is None:
            min_rows = min(_MIN_FILE_ROWS, _MIN_FILE_BYTES // widest)
            target_rows = max(max(rows.values(), default=0) // _TARGET_BLOCKS, min_rows)
            chunk_bytes = _SHARD_CHUNK_BYTES if sharded else _CHUNK_BYTES
            max_rows = max(1, min(chunk_bytes // widest, target_rows, _MAX_DEFAULT_BLOCK_ROWS))
            unit = 1 << max(max_rows.bit_length() - 3, 0)  # round down to three significant binary digits
            block_rows = max_rows // unit * unit
        _check_block_rows(compression, block_rows, widest)
        block_rows = int(block_rows)
        row_bytes = sum(output.stored_bytes for output in outputs) + _ROW_ID_BYTES + carried_bytes
        part_blocks = max(1, min(MAX_PART_BLOCKS, _PART_BYTES // (block_rows * row_bytes)))
        if (columns := sum(output.is_scalar for output in outputs)) > _WIDE_COLUMNS:
            part_blocks = min(part_blocks, max(1, _MAX_FOOTER_COLUMNS // columns))
        if sharded:  # the index of every shard has room for `part_blocks` chunks, also in a small dataset
            part_blocks = min(part_blocks, max(1, -(-max(rows.values(), default=0) // block_rows)))
        return cls(outputs, _sort_splits(rows), block_rows, part_blocks, compression, sharded)

    @property
    def scalars(self) -> tuple[Output, ...]:
        return tuple(output for output in self.outputs if output.is_scalar)

    @property
    def matrices(self) -> tuple[Output, ...]:
        return tuple(output for output in self.outputs if not output.is_scalar and not output.stores_cells)

    @property
    def cells(self) -> tuple[Output, ...]:
        return tuple(output for output in self.outputs if output.stores_cells)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row before compression, including its row id."""
        return sum(output.stored_bytes for output in self.outputs) + _ROW_ID_BYTES

    def blocks(self, split: str) -> int:
        if self.block_starts:
            return len(self.block_starts[split]) - 1
        return -(-self.rows[split] // self.block_rows)

    def starts(self, split: str) -> npt.NDArray[np.int64]:
        """Return the starts of the blocks of a split, and its end."""
        if self.block_starts:
            return self.block_starts[split]
        if split not in self._starts:
            self._starts[split] = np.minimum(np.arange(self.blocks(split) + 1) * self.block_rows, self.rows[split])
        return self._starts[split]

    @cached_property
    def _starts(self) -> dict[str, npt.NDArray[np.int64]]:
        return {}

    def block_range(self, split: str, block: int) -> range:
        """Return the rows of a block, as positions within the split."""
        return self._row_range(split, range(block, block + 1))

    def parts(self, split: str) -> int:
        return -(-self.blocks(split) // self.part_blocks)

    def part_range(self, split: str, part: int) -> range:
        return self._row_range(split, self.part_block_range(split, part))

    def part_block_range(self, split: str, part: int) -> range:
        """Return the blocks of a part, or raise IndexError."""
        if not 0 <= part < self.parts(split):
            raise IndexError(f'no part {part} in split "{split}", which has {self.parts(split)} parts')
        start = part * self.part_blocks
        return range(start, min(start + self.part_blocks, self.blocks(split)))

    def _row_range(self, split: str, blocks: range) -> range:
        """Return the rows of a range of blocks; IndexError if absent."""
        if not 0 <= blocks.start < self.blocks(split):
            raise IndexError(f'no block {blocks.start} in split "{split}", which has {self.blocks(split)} blocks')
        if self.block_starts:
            return range(*self.starts(split)[[blocks.start, blocks.stop]].tolist())
        return range(blocks.start * self.block_rows, min(blocks.stop * self.block_rows, self.rows[split]))

    def table_file(self, split: str, part: int) -> str:
        return f"{split}/table/part-{part:05d}.parquet"

    def array_file(self, split: str, output: Output, number: int) -> str:
        """Return the name of the chunk of a block, or the shard of a part."""
        return f"{split}/arrays.zarr/{chunk_name(output, number)}"

    def metadata_files(self, split: str) -> dict[str, bytes]:
        shard_blocks = self.part_blocks if self.sharded else None
        metadata = group_metadata(self.matrices, self.rows[split], self.block_rows, self.compression, shard_blocks)
        return {f"{split}/arrays.zarr/{name}": data for name, data in metadata.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, but `block_starts`, and `sharded` if it is False."""
        return {
            "outputs": [output.to_dict() for output in self.outputs],
            "rows": dict(self.rows),
            "block_rows": self.block_rows,
            "part_blocks": self.part_blocks,
            "compression": self.compression,
            **({"sharded": True} if self.sharded else {}),
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Layout:
        """Return the layout that `to_dict` described; ValueError or ConfigError if invalid."""
        values = read_fields(cls, {**state, "outputs": tuple(map(Output.from_dict, state["outputs"]))})
        layout = cls(**values | {"rows": _sort_splits(values["rows"])})
        if len({output.name for output in layout.outputs}) < len(layout.outputs):
            raise ValueError("two outputs with the same name")
        # The same bounds as in `choose`: a reader allocates memory for a full block.
        widest = max([1, *(max(output.row_bytes, output.stored_bytes) for output in layout.outputs)])
        _check_block_rows(layout.compression, layout.block_rows, widest)
        if not 1 <= layout.part_blocks <= MAX_PART_BLOCKS:
            raise ValueError(f"parts of {layout.part_blocks:,} blocks")
        return layout


def join_starts(starts: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Return the starts of the blocks of concatenated splits."""
    return np.concatenate(([0], *map(np.diff, starts))).cumsum()


def _check_block_rows(compression: str, block_rows: int, widest: int) -> None:
    """Raise ConfigError for invalid options, or too large blocks."""
    if compression not in get_args(Compression):
        raise ConfigError(f'compression={compression!r}: expected "lz4", "zstd" or "none"')
    is_integer = isinstance(block_rows, numbers.Integral) and not isinstance(block_rows, bool)
    if not is_integer or not 1 <= block_rows <= _MAX_BLOCK_ROWS:
        raise ConfigError(f"block_rows={block_rows!r}: expected an integer from 1 to {_MAX_BLOCK_ROWS:,}")
    if block_rows * widest > MAX_CHUNK_BYTES:
        raise ConfigError(
            f"block_rows={block_rows:,}: the widest output has {widest:,} bytes per row, so its blocks would have more "
            f"than {MAX_CHUNK_BYTES:,} bytes; use at most {MAX_CHUNK_BYTES // widest:,} rows"
        )


def _sort_splits(rows: Mapping[str, int]) -> dict[str, int]:
    """Return rows of nonempty splits in the order of SPLITS; ValueError for others."""
    if unknown := set(rows) - set(SPLITS):
        raise ValueError(f"unknown splits {sorted(unknown)}; the splits are {SPLITS}")
    return {split: rows[split] for split in SPLITS if rows.get(split, 0) > 0}
