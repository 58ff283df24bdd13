"""Split of a dataset, with its rows as NumPy, Arrow, Zarr, Dask and xarray, selected by index."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

from daskprep.columns.parametrized import is_integer
from daskprep.columns.permutation import Integers
from daskprep.dataset.cache import BlockCache, MediaBlocks, digest_content, make_cache_name, read_media_block
from daskprep.dataset.describing import describe_rows, describe_split
from daskprep.dataset.methods import SplitMethods
from daskprep.dataset.stored import StoredDataset
from daskprep.errors import ConfigError, CorruptDatasetError, did_you_mean
from daskprep.features.base import class_count
from daskprep.sources import partitions
from daskprep.storage import Folder, Layout, Output
from daskprep.storage.arrays import HEADER_BYTES, ROW_ID, check_header, chunk_shape, folder_name, open_group
from daskprep.storage.checksum import CHECKSUM_BYTES
from daskprep.storage.layout import CACHE_FOLDER
from daskprep.storage.reading import (
    REMEDY,
    BlockLocation,
    BlockReader,
    chunk_span,
    column_array,
    read_block,
    read_table,
)
from daskprep.storage.tables import CELL_TYPE, arrow_column
from daskprep.storage.threads import map_in_threads

if TYPE_CHECKING:
    import xarray
    import zarr


RowSelection: TypeAlias = range | Integers
"""Row positions in a split: a range, or an array in any order."""
BlockSelection: TypeAlias = tuple[int, slice | Integers, slice | Integers]
"""Block number, positions of the selected rows in the block, and their positions in the result."""


def resolve_rows(index: Any, rows: int, label: str) -> RowSelection:
    """Return the positions that an index selects from `rows` rows, as in NumPy; `label` names the split in errors.

    The index is a slice, a sequence of positions (negative ones count from the end), or a boolean mask. IndexError for
    positions out of range, ConfigError for other indexes.
    """
    if isinstance(index, slice) and all(hasattr(bound, "__index__") for bound in (index.start, index.stop) if bound):
        selected = range(rows)[index]
        return selected if selected.step == 1 else np.array(selected, np.int64)
    indices = np.asarray(None if isinstance(index, slice) else index)
    if indices.dtype == bool and indices.shape == (rows,):
        return np.flatnonzero(indices)
    if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
        remedy = f"use read({index!r:.80}) for columns, and for rows" if indices.dtype.kind == "U" else "use"
        raise ConfigError(
            f"{label} has {rows:,} rows: {index!r:.80} is not a valid index; {remedy} a number, a list of numbers, a "
            f"slice, or a boolean mask of {rows:,} values"
        )
    outside = indices[(indices < -rows) | (indices >= rows)] if indices.size else indices
    if outside.size:
        raise IndexError(f"row {outside[0]} is out of range: {label} has {rows:,} rows")
    numbers: Integers = np.where(indices < 0, indices + rows, indices).astype(np.int64)
    return numbers


def split_by_block(rows: RowSelection, block_rows: int) -> Iterator[BlockSelection]:
    """Yield number, rows and target positions of each block with selected rows; in order, if `rows` is a range."""
    if isinstance(rows, range):
        for block in range(rows.start // block_rows, -(-rows.stop // block_rows)) if rows else ():
            start = block * block_rows
            first, stop = max(rows.start, start), min(rows.stop, start + block_rows)
            yield block, slice(first - start, stop - start), slice(first - rows.start, stop - rows.start)
        return
    order = np.argsort(rows, kind="stable")
    blocks, within = np.divmod(rows[order], block_rows)
    bounds = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(rows)] if len(rows) else []
    for start, stop in pairwise(bounds):
        yield int(blocks[start]), within[start:stop], order[start:stop]


_MAX_NAMED = 20
_NO_ROWS = np.empty(0, np.int64)
_MAX_ROW_BYTES = 1_024  # larger table rows contain media bytes: caches are then named by the checksums of the tables


# What loaders and reports use: completion shows the other attributes.
_FOR_TOOLS = frozenset(
    ("block", "block_reader", "block_row_counts", "is_local", "joined", "layout", "locate_block", "media")
)


class Split(SplitMethods):
    """The rows of one split, in their order on disk.

    No file stays open between calls, so a split may be used in threads and forked processes, and pickled.

    Attributes
    ----------
    name : str
        "train", "validation" or "test".
    dataset : Dataset
        The dataset of the split.

    Examples
    --------
    >>> from daskprep.dataset import open_dataset
    >>> train = open_dataset("listings.dp")["train"]  # doctest: +SKIP
    >>> train.read(["row_id", "city"], stop=2)  # doctest: +SKIP
    {'row_id': array([0, 3]), 'city': array([1, 2], dtype=uint8)}
    >>> train[[7, 0]]["city"]  # doctest: +SKIP
    array([3, 1], dtype=uint8)
    """

    def __init__(self, dataset: StoredDataset, name: str) -> None:
        self.dataset = dataset
        self.name = name
        self._contents: dict[str, tuple[str, bytes]] = {}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return operator.getitem, (self.dataset, self.name)

    if not TYPE_CHECKING:  # else type checkers would accept any attribute

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or hasattr(type(self), name):
                return object.__getattribute__(self, name)  # raises the original error, also of properties
            hint = did_you_mean(name, dir(type(self)))
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}.{hint}")

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _FOR_TOOLS]

    def __len__(self) -> int:
        return self.layout.rows[self.name]

    def __repr__(self) -> str:
        return f"Split({self.name!r}: {len(self):,} rows of {self.dataset.url})"

    def _repr_html_(self) -> str:
        rows = describe_rows(self)
        return describe_split(self.dataset.url, self.layout, self.dataset.manifests, self.name, rows).html()

    @cached_property
    def joined(self) -> tuple[Split, ...]:
        """The splits of the segments: the split itself, unless several segments are read as one."""
        if len(self.dataset.segments) == 1:
            return (self,)
        return tuple(one.splits[self.name] for one in self.dataset.datasets if self.name in one.splits)

    @cached_property
    def _ends(self) -> np.ndarray:
        """Cumulative numbers of blocks and rows up to the end of each segment (segments, 2)."""
        return np.cumsum([(one.layout.blocks(one.name), len(one)) for one in self.joined], axis=0)

    def locate_block(self, block: int) -> tuple[Split, int]:
        """Return the split of the segment that contains a block, and the block number in that split."""
        if len(self.joined) == 1:
            return self.joined[0], block
        ends = self._ends[:, 0]
        index = int(np.searchsorted(ends, block, side="right"))
        return self.joined[index], block - (int(ends[index - 1]) if index else 0)

    @property
    def layout(self) -> Layout:
        """Assignment of rows to blocks, and of blocks to files."""
        return self.dataset.layout

    @property
    def _stored_layout(self) -> Layout:
        """The layout of all stored rows of a single segment, deleted ones as well."""
        return self.dataset.manifest.layout

    @cached_property
    def _hidden(self) -> Integers:
        """Positions of the deleted rows of a single segment among the stored ones."""
        [segment, *others] = self.dataset.segments
        return _NO_ROWS if others else segment.hidden.get(self.name, _NO_ROWS)

    @cached_property
    def _block_numbers(self) -> Integers:
        """Numbers of the stored blocks with rows that are not deleted."""
        deleted = np.bincount(
            self._hidden // self._stored_layout.block_rows, minlength=self._stored_layout.blocks(self.name)
        )
        return np.flatnonzero(np.diff(self._stored_layout.starts(self.name)) > deleted)

    @property
    def block_row_counts(self) -> tuple[int, ...]:
        """Number of rows of each block; empty if only the last block may have less than `block_rows`."""
        return tuple(np.diff(self.layout.starts(self.name)).tolist()) if len(self._hidden) else ()

    @property
    def columns(self) -> list[str]:
        """Names of the outputs."""
        return [output.name for output in self.layout.outputs]

    @property
    def is_local(self) -> bool:
        """Whether all files are on disks of this machine."""
        return all(split.dataset.files.folder.is_local for split in self.joined)

    def shape(self, output: str) -> tuple[int, ...]:
        """Return the shape of one row of an output; () for a scalar."""
        return self.output(output).shape

    def num_embeddings(self, output: str) -> int:
        """Return the rows of an embedding for an output's ids."""
        _, learned = self.dataset._find_learned(name := self.output(output).name)
        return getattr(learned, "num_embeddings", 0) or len(self.dataset.vocabulary(name))

    def num_classes(self, output: str) -> int:
        """Return the number of classes of a `Category` or `Binary`: its ids are below it."""
        return class_count(output, *self.dataset._find_learned(output))

    # -- in memory

    def read(
        self, columns: Iterable[str] | str | None = None, start: int | None = 0, stop: int | None = None
    ) -> dict[str, np.ndarray]:
        """Return encoded rows as NumPy arrays by output; media that are stored as files are decoded.

        Parameters
        ----------
        columns : iterable of str, str or None
            Outputs; "row_id" is the row number in the source. None: all outputs.
        start, stop : int or None
            Range of row positions, as in a slice.
        """
        if isinstance(start, str):
            raise ConfigError(
                f"read: start={start!r}: expected a row number; pass columns as a list, such as {[columns, start]}"
            )
        return self._read(columns, range(len(self))[start:stop])

    def __getitem__(self, index: Any) -> dict[str, Any]:
        """Return encoded rows by output: one row for a position, or arrays for a list, slice or boolean mask.

        Rows are in the order of the index. Only the blocks that contain them are read. Use `read` to select columns.
        """
        label = f'split "{self.name}" of {self.dataset.url}'
        is_single = not isinstance(index, slice | str) and not np.ndim(index)
        arrays = self._read(None, resolve_rows([index] if is_single else index, len(self), label))
        return {name: rows[0] for name, rows in arrays.items()} if is_single else arrays

    def __getitems__(self, rows: Sequence[int]) -> list[Any]:
        """Return a list of rows in the format for models, which a torch DataLoader collates."""
        label = f'split "{self.name}" of {self.dataset.url}'
        return self._for_model(self._read(None, resolve_rows(rows, len(self), label)))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each row as encoded values by output, reading a block at a time."""
        for block in range(self.layout.blocks(self.name)):
            rows = self.layout.block_range(self.name, block)
            arrays = self._read(None, rows)
            for row in range(len(rows)):
                yield {name: array[row] for name, array in arrays.items()}

    def _read(self, columns: Iterable[str] | str | None, rows: RowSelection) -> dict[str, np.ndarray]:
        """Return new arrays of outputs for the selected rows."""
        outputs = self._select_outputs(columns)
        arrays = {output.name: output.empty(len(rows)) for output in outputs}
        self._fill(outputs, rows, arrays)
        return arrays

    def _fill(self, outputs: Sequence[Output], rows: RowSelection, arrays: Mapping[str, np.ndarray]) -> None:
        """Write selected rows of outputs into `arrays`, by name."""
        if self.joined[0] is not self:
            numbers, indices = np.asarray(rows), np.searchsorted(self._ends[:, 1], rows, side="right")
            for index in np.unique(indices).tolist():
                split, positions = self.joined[index], np.flatnonzero(indices == index)
                own_rows: RowSelection = numbers[positions] - (self._ends[index, 1] - len(split))
                if isinstance(rows, range):
                    own_rows = range(own_rows[0], own_rows[-1] + 1)
                for name, values in split._read([output.name for output in outputs], own_rows).items():
                    arrays[name][positions] = values
            return
        self._fill_stored(outputs, self._find_stored(rows), arrays)

    def _find_stored(self, rows: RowSelection) -> RowSelection:
        """Return the positions of rows among the stored ones: a row moves by the number of deleted rows before it."""
        if not len(self._hidden):
            return rows
        numbers = np.asarray(rows, np.int64)
        moved = numbers + np.searchsorted(self._hidden - np.arange(len(self._hidden)), numbers, side="right")
        is_range = isinstance(rows, range) and len(rows) and moved[-1] - moved[0] == len(rows) - 1
        return range(int(moved[0]), int(moved[-1]) + 1) if is_range else moved

    def _fill_stored(self, outputs: Sequence[Output], rows: RowSelection, arrays: Mapping[str, np.ndarray]) -> None:
        """Write selected stored rows of one segment into `arrays`."""
        folder = self.dataset.files.folder
        scalars = [output for output in outputs if output.is_scalar]

        def fill_scalars(selection: tuple[BlockLocation, slice | Integers, slice | Integers]) -> None:
            row_groups, source_rows, target_rows = selection
            table = read_table(folder, row_groups, scalars)
            for output in scalars:
                arrays[output.name][target_rows] = column_array(table, output)[source_rows]

        def fill(selection: tuple[Output, int, slice | Integers, slice | Integers]) -> None:
            """Write the rows of one block of an array or media output into its array."""
            output, block, source_rows, target_rows = selection
            location, array = self._locate(output.name, block), arrays[output.name]
            # Scattered rows need the full block, from which they are selected.
            target = array[target_rows] if isinstance(target_rows, slice) else None
            if output.stores_cells:
                values = output.empty(len(target_rows)) if target is None else target  # type: ignore[arg-type]
                self.media(output.name).decode(location, source_rows, values)
            else:
                values = read_block(self.block_reader(output.name), location, target)
                # `read_block` decodes a full block directly into `target`.
                values = values if np.may_share_memory(values, array) else values[source_rows]
            if not np.may_share_memory(values, array):
                array[target_rows] = values

        local = folder.is_local
        if scalars:
            map_in_threads(fill_scalars, self._select_row_groups(rows), local=local)
        others = [output for output in outputs if output.stores_cells or not output.is_scalar]
        blocks = list(split_by_block(rows, self._stored_layout.block_rows))
        map_in_threads(fill, [(output, *one) for output in others for one in blocks], local=local)

    def table(self, columns: Iterable[str] | str | None = None) -> pa.Table:
        """Return all rows of scalars and media cells (paths or bytes) as an Arrow table; ConfigError for other outputs.

        None: "row_id" and all scalars and media cells.
        """
        stored = [output for output in self.layout.outputs if output.is_scalar or output.stores_cells]
        outputs = [ROW_ID, *stored] if columns is None else self._select_outputs(columns)
        if wide := next((one for one in outputs if one not in {ROW_ID, *stored}), None):
            raise ConfigError(
                f'output "{wide.name}" has rows of shape {wide.shape}, which a table cannot contain: use read(), '
                "to_dask() or arrays"
            )
        row_groups = [
            (split.dataset.files.folder, row_group, [split.output(output.name) for output in outputs])
            for split in self.joined
            for row_group in split._list_tables()
        ]
        tables = map_in_threads(lambda one: read_table(*one), row_groups, local=self.is_local)
        return pa.concat_tables(tables, promote_options="permissive")  # ids of grown vocabularies may be wider

    def to_arrow(self, columns: Iterable[str] | str | None = None) -> pa.RecordBatchReader:
        """Return an Arrow stream of encoded rows, one batch per block.

        Arrays are lists of a fixed size. None: "row_id" and all outputs. Readers of `__arrow_c_stream__`, such as
        polars, accept the split.
        """
        outputs = [ROW_ID, *self.layout.outputs] if columns is None else self._select_outputs(columns)
        schema = pa.schema(
            [(one.name, CELL_TYPE if one.stores_cells else arrow_column(one.empty(0)).type) for one in outputs]
        )
        locate_block = map(self.locate_block, range(self.layout.blocks(self.name)))
        batches = (split._read_batch(outputs, schema, block) for split, block in locate_block)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def _read_batch(self, outputs: list[Output], schema: pa.Schema, block: int) -> pa.RecordBatch:
        """Return a block as an Arrow batch of the schema's columns."""
        outputs = [self.output(output.name) for output in outputs]
        rows = self.layout.block_range(self.name, block)
        table_outputs = [output for output in outputs if output.is_scalar or output.stores_cells]
        arrays = self.read([output.name for output in outputs if output not in table_outputs], rows.start, rows.stop)
        columns = {name: arrow_column(array) for name, array in arrays.items()}
        if table_outputs:
            location = self.block(table_outputs[0].name, block)
            table = read_table(self.dataset.files.folder, location, table_outputs).combine_chunks()
            columns |= {name: table[name].chunk(0) for name in table.column_names}
        return pa.record_batch([columns[field.name].cast(field.type) for field in schema], schema=schema)

    def head(self, n: int = 5) -> pd.DataFrame:
        """Return the first rows as human-readable values; ConfigError for n below 0."""
        if not is_integer(n) or n < 0:
            raise ConfigError(f"head: n={n!r}: expected a number of rows from 0")
        return self.dataset.decode(self.read(stop=n))

    # -- in batches

    # -- lazy

    @property
    def arrays(self) -> zarr.Group:
        """The non-scalar outputs, as a read-only Zarr group; ConfigError after `delete` or `append`."""
        if len(self.dataset.segments) > 1:
            raise self.dataset.single_dataset_error("arrays")
        if len(self._hidden):
            raise ConfigError(
                f"{self.dataset.url} has deleted rows, which its Zarr arrays still contain: use read() or to_dask()"
            )
        folder = f"{self.name}/arrays.zarr"
        # Zarr reads a missing chunk as zeros, and Zarr metadata have no checksum.
        self.dataset.files.check_sizes(folder)
        for name in ["zarr.json", *(f"{folder_name(output.name)}/zarr.json" for output in self.layout.matrices)]:
            self.dataset.files.read(f"{folder}/{name}")
        if not self.dataset.trusted:
            self._check_zarr()
        return open_group(self.dataset.files.folder / folder)

    def _check_zarr(self) -> None:
        """Raise CorruptDatasetError for altered metadata, or sizes in chunk headers, that zarr would not detect."""
        for name, expected in self._stored_layout.metadata_files(self.name).items():
            try:
                is_same = json.loads(self.dataset.files.read(name)) == json.loads(expected)
            except (ValueError, RecursionError):
                is_same = False
            if not is_same:
                raise CorruptDatasetError(
                    f"{self.dataset.files.folder.url}/{name} was altered: its arrays differ from the manifest; {REMEDY}"
                )
        if self.layout.compression == "none":
            return
        blocks = range(self.layout.blocks(self.name))
        chunks = [(output, self.block(output.name, block)) for output in self.layout.matrices for block in blocks]
        folder = self.dataset.files.folder

        def check_chunk(chunk: tuple[Output, BlockLocation]) -> None:
            """Raise CorruptDatasetError if a chunk's header has another size than a full block."""
            output, location = chunk
            nbytes = math.prod(chunk_shape(output.shape, self.layout.block_rows)) * np.dtype(output.dtype).itemsize
            start, stop, _ = chunk_span(folder, location)
            header = folder.read(location.file, start, start + HEADER_BYTES)
            check_header(header, stop - start - CHECKSUM_BYTES, nbytes, output)

        map_in_threads(check_chunk, chunks, local=folder.is_local)

    def to_dask(self, columns: Iterable[str] | str | None = None) -> dict[str, Any]:
        """Return lazy Dask arrays by output, with one chunk per block; None: all outputs."""
        if self.joined[0] is not self:
            names = [output.name for output in self._select_outputs(columns)]
            split_arrays = [split.to_dask(names) for split in self.joined]
            return {name: partitions.concatenate_arrays([arrays[name] for arrays in split_arrays]) for name in names}
        numbers = range(self.layout.blocks(self.name))
        rows = [len(self.layout.block_range(self.name, number)) for number in numbers]
        return {
            output.name: partitions.build_chunked_array(
                f"read-{output.name}",
                read_media_block if output.stores_cells else read_block,
                self.media(output.name) if output.stores_cells else self.block_reader(output.name),
                [self.block(output.name, number) for number in numbers],
                rows=rows,
                like=output.empty(0),
            )
            for output in self._select_outputs(columns)
        }

    def to_xarray(self) -> xarray.Dataset:
        """Return a lazy xarray.Dataset from `to_dask`, with row numbers in the source as coordinate."""
        try:
            import xarray  # noqa: PLC0415
        except ImportError as error:
            raise ImportError("to_xarray needs a package: pip install xarray") from error
        names = {ROW_ID.name, *self.columns}
        row = _unused_name("row", names)
        variables = {}
        for name, array in self.to_dask([ROW_ID.name, *self.columns]).items():
            dimensions = [row, *(_unused_name(f"{name}_{axis}", names) for axis in range(1, array.ndim))]
            variables[name] = (dimensions, array)
        return xarray.Dataset(variables).set_coords(ROW_ID.name)

    # -- blocks

    def block_reader(self, output: str) -> BlockReader:
        """Return the reader of an output's blocks, for `read_block`."""
        layout = self.layout
        return BlockReader(self.dataset.files.folder, self.output(output), layout.block_rows, layout.compression)

    def block(self, output: str, block: int) -> BlockLocation:
        """Return the location of a block of an output: file, row group or chunk, and number of rows."""
        if not len(self._hidden):
            return self._locate(output, block)
        number = int(self._block_numbers[block])
        location, start = self._locate(output, number), number * self._stored_layout.block_rows
        first, stop = np.searchsorted(self._hidden, (start, start + location.rows)).tolist()
        hidden = tuple((self._hidden[first:stop] - start).tolist())
        return dataclasses.replace(location, rows=location.rows - len(hidden), hidden=hidden)

    def _locate(self, output: str, block: int) -> BlockLocation:
        """Return the location of a stored block of a single segment, with its deleted rows."""
        one, layout = self.output(output), self._stored_layout
        rows, (part, within) = len(layout.block_range(self.name, block)), divmod(block, layout.part_blocks)
        if one.is_scalar or one.stores_cells:
            file = layout.table_file(self.name, part)
            return BlockLocation(file, self.dataset.files.entry(file), rows, (within,))
        number, chunk = (part, within) if layout.sharded else (block, 0)
        file = layout.array_file(self.name, one, number)
        return BlockLocation(file, self.dataset.files.entry(file), rows, chunk=chunk)

    def media(self, output: str) -> MediaBlocks:
        """Return the reader and decoder of a media output that is stored as paths or bytes."""
        return MediaBlocks(self.dataset.files.folder, self.output(output), self.dataset.decoder(output))

    def cache(self, output: str, folder: Folder | None = None, limit: int | None = None) -> BlockCache:
        """Return the cache of decoded blocks of a media output, without outdated blocks.

        It is in `folder`; None: within the dataset. `limit` is the maximum bytes of all caches in the folder.
        """
        one, layout = self.output(output), self.layout
        decoder = self.dataset.decoder(output)
        content, stamps = self._digest_content(output)
        facts: dict[str, Any] = {"content": content, "rows": [len(self), layout.block_rows], "output": output}
        facts |= {"decoder": decoder.digest(), "base": decoder.reader.base}
        cache = BlockCache(
            self.dataset.root / CACHE_FOLDER if folder is None else folder,
            make_cache_name(**facts),
            dataclasses.replace(one, cell_bytes=None),
            len(self),
            layout.block_rows,
            # Pixels hardly compress, and are read twice as fast uncompressed.
            "none" if one.dtype == "uint8" else layout.compression,
            limit,
            self.dataset.digest,
            stamps,
            self.block_row_counts,
        )
        cache.remove_outdated()
        return cache

    def _digest_content(self, output: str) -> tuple[str, bytes]:
        """Return a digest of the media cells of all rows, and the current stamps of all blocks (empty: no stamps)."""
        if output not in self._contents:
            blocks = [self.block(output, block) for block in range(self.layout.blocks(self.name))]
            entries = list({block.file: block.entry for block in blocks}.values())
            if sum(entry.bytes for entry in entries) > _MAX_ROW_BYTES * len(self):
                self._contents[output] = hashlib.sha256(repr(entries).encode()).hexdigest(), b""
            else:
                self._contents[output] = digest_content(self.media(output), blocks)
        return self._contents[output]

    def _list_tables(self) -> list[BlockLocation]:
        """Return the locations of all rows in tables: of tables, or of blocks if rows are deleted."""
        if len(self._hidden):
            return [self.block(ROW_ID.name, block) for block in range(self.layout.blocks(self.name))]
        return [row_groups for row_groups, _, _ in self._select_row_groups(range(len(self)))]

    def _select_row_groups(
        self, rows: RowSelection
    ) -> Iterator[tuple[BlockLocation, slice | Integers, slice | Integers]]:
        """Yield, for each table, the row groups with selected stored rows, their positions there, and in the result."""
        layout = self._stored_layout
        size, part_blocks = layout.block_rows, layout.part_blocks
        for part, source_rows, target_rows in split_by_block(rows, size * part_blocks):
            if isinstance(source_rows, slice):
                groups = list(range(source_rows.start // size, -(-source_rows.stop // size)))
                first = groups[0] * size
                within: slice | Integers = slice(source_rows.start - first, source_rows.stop - first)
            else:
                needed = np.unique(source_rows // size)
                groups = needed.tolist()
                within = np.searchsorted(needed, source_rows // size) * size + source_rows % size
            row_count = sum(
                len(self._stored_layout.block_range(self.name, part * part_blocks + group)) for group in groups
            )
            file = layout.table_file(self.name, part)
            yield BlockLocation(file, self.dataset.files.entry(file), row_count, tuple(groups)), within, target_rows

    # -- names

    def _select_outputs(self, columns: Iterable[str] | str | None) -> list[Output]:
        """Return outputs by name without repeats, or all."""
        if columns is None:
            return list(self.layout.outputs)
        names = [columns] if isinstance(columns, str) else columns
        return [self.output(name) for name in dict.fromkeys(names)]

    @cached_property
    def _outputs_by_name(self) -> dict[str, Output]:
        return {output.name: output for output in (ROW_ID, *self.layout.outputs)}

    def output(self, name: str) -> Output:
        """Return the name, dtype and row shape of an output, or of "row_id"; ConfigError for other names."""
        if name in self._outputs_by_name:
            return self._outputs_by_name[name]
        raise ConfigError(
            f'no output "{name}" in {self.dataset.url}.{did_you_mean(name, self.columns)} '
            f"Outputs are: {', '.join(self.columns[:_MAX_NAMED])}{' ...' * (len(self.columns) > _MAX_NAMED)}"
        )


def _unused_name(name: str, used_names: set[str]) -> str:
    """Return `name`, with underscores appended until no output has it: xarray would index an output of that name."""
    return _unused_name(f"{name}_", used_names) if name in used_names else name
