"""One split of a dataset: the same rows as NumPy, Arrow, Zarr, Dask and xarray."""

from __future__ import annotations

import dataclasses
import json
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from daskprep import partitions
from daskprep.dataset.cache import BlockCache, cache_name
from daskprep.dataset.describing import describe_split
from daskprep.dataset.media import MediaBlocks, read_media_block
from daskprep.dataset.stored import StoredDataset
from daskprep.errors import ConfigError, CorruptDatasetError, did_you_mean
from daskprep.storage import Folder, Layout, Output
from daskprep.storage.arrays import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    ROW_ID,
    check_header,
    chunk_name,
    folder_name,
    open_group,
)
from daskprep.storage.layout import CACHE
from daskprep.storage.reading import (
    REMEDY,
    Block,
    BlockReader,
    TablePiece,
    column_array,
    read_block,
    read_table,
    read_table_block,
)
from daskprep.storage.tables import CELL_TYPE, arrow_column
from daskprep.storage.threads import in_threads

if TYPE_CHECKING:
    import xarray
    import zarr

    from daskprep.loader import Loader

_MOST_NAMED = 20


class Split:
    """The rows of one split, in the order in which they lie on disk.

    Nothing is kept open between calls, so a split may be used on threads, in forked processes, and pickled.

    Attributes
    ----------
    name : str
        "train", "validation" or "test".
    dataset : Dataset
        What it is a split of.

    Examples
    --------
    >>> from daskprep.dataset import open_dataset
    >>> train = open_dataset("listings.dp")["train"]  # doctest: +SKIP
    >>> train.read(["row_id", "city"], stop=2)  # doctest: +SKIP
    {'row_id': array([0, 3]), 'city': array([1, 2], dtype=uint8)}
    """

    def __init__(self, dataset: StoredDataset, name: str) -> None:
        self.dataset = dataset
        self.name = name

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return operator.getitem, (self.dataset, self.name)

    def __len__(self) -> int:
        return self.layout.rows[self.name]

    def __repr__(self) -> str:
        return f"Split({self.name!r}: {len(self):,} rows of {self.dataset.url})"

    def _repr_html_(self) -> str:
        return describe_split(self.dataset.url, self.dataset.manifest, self.name).html()

    @property
    def layout(self) -> Layout:
        """How rows lie in blocks, and blocks in files."""
        return self.dataset.layout

    @property
    def columns(self) -> list[str]:
        """Names of the outputs."""
        return [output.name for output in self.layout.outputs]

    def shape(self, output: str) -> tuple[int, ...]:
        """Return the shape of one row of an output; that of a scalar is ()."""
        return self.output(output).shape

    def num_embeddings(self, output: str) -> int:
        """Return how many rows an embedding of an output's ids needs."""
        return len(self.dataset.vocabulary(self.output(output).name))

    # -- in memory

    def read(
        self, columns: Iterable[str] | str | None = None, start: int | None = 0, stop: int | None = None
    ) -> dict[str, np.ndarray]:
        """Return encoded rows as NumPy arrays by output; media that are stored as files are decoded.

        Parameters
        ----------
        columns : iterable of str, str or None
            Outputs; "row_id" is the number that each row has in the source. None: all outputs.
        start, stop : int or None
            Which rows, as in a slice.
        """
        outputs, rows, folder = self._outputs(columns), range(len(self))[start:stop], self.dataset.files.folder
        arrays = {output.name: output.empty(len(rows)) for output in outputs}
        scalars = [output for output in outputs if output.is_scalar]

        def fill_scalars(part: tuple[TablePiece, slice, slice]) -> None:
            piece, inside, at = part
            table = read_table(folder, piece, scalars)
            for output in scalars:
                arrays[output.name][at] = column_array(table, output)[inside]

        def fill(part: tuple[Output, int, slice, slice]) -> None:
            output, block, inside, at = part
            where, target = self.block(output.name, block), arrays[output.name][at]
            if output.is_cells:
                self.media(output.name).decode(where, inside, target)
                return
            found = read_block(self.block_reader(output.name), where, target)
            # A whole block was decoded where it belongs.
            if not np.may_share_memory(found, target):
                target[...] = found[inside]

        local = folder.is_local
        if scalars:
            in_threads(fill_scalars, self._table_pieces(rows), local=local)
        others = [output for output in outputs if output.is_cells or not output.is_scalar]
        in_threads(fill, [(output, *one) for output in others for one in self._overlaps(rows)], local=local)
        return arrays

    def table(self, columns: Iterable[str] | str | None = None) -> pa.Table:
        """Return scalars, and paths or files of media, as an Arrow table of all rows; None: "row_id" and all those."""
        stored = [output for output in self.layout.outputs if output.is_scalar or output.is_cells]
        outputs = [ROW_ID, *stored] if columns is None else self._outputs(columns)
        for output in outputs:
            if not output.is_scalar and not output.is_cells:
                raise ConfigError(
                    f'output "{output.name}" has rows of shape {output.shape}, which a table cannot hold: '
                    "use read(), to_dask() or arrays"
                )
        folder = self.dataset.files.folder
        pieces = [piece for piece, _, _ in self._table_pieces(range(len(self)))]
        return pa.concat_tables(
            in_threads(lambda piece: read_table(folder, piece, outputs), pieces, local=folder.is_local)
        )

    def to_arrow(self, columns: Iterable[str] | str | None = None) -> pa.RecordBatchReader:
        """Return a stream of Arrow, one batch for each block: what `table` gives, and arrays as lists of a fixed size.

        None: "row_id" and all outputs. A split is such a stream itself, for all that reads `__arrow_c_stream__`.
        """
        outputs = [ROW_ID, *self.layout.outputs] if columns is None else self._outputs(columns)
        schema = pa.schema(
            [(one.name, CELL_TYPE if one.is_cells else arrow_column(one.empty(0)).type) for one in outputs]
        )
        blocks = range(self.layout.blocks(self.name))
        return pa.RecordBatchReader.from_batches(schema, (self._batch(outputs, schema, block) for block in blocks))

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def _batch(self, outputs: list[Output], schema: pa.Schema, block: int) -> pa.RecordBatch:
        rows = self.layout.block_range(self.name, block)
        tabled = [output for output in outputs if output.is_scalar or output.is_cells]
        arrays = self.read([output.name for output in outputs if output not in tabled], rows.start, rows.stop)
        columns = {name: arrow_column(array) for name, array in arrays.items()}
        if tabled:
            where = self.block(tabled[0].name, block)
            table = read_table_block(self.dataset.files.folder, where, tabled).combine_chunks()
            columns |= {name: table[name].chunk(0) for name in table.column_names}
        return pa.record_batch([columns[name] for name in schema.names], schema=schema)

    def head(self, n: int = 5) -> pd.DataFrame:
        """Return the first rows as values a person reads."""
        return self.dataset.decode(self.read(stop=max(n, 0)))

    # -- in batches

    def loader(self, batch_size: int = 1024, **options: Any) -> Loader:
        """Return batches of tensors for torch, shuffled and read ahead; all options are those of `Loader`."""
        from daskprep.loader import Loader  # noqa: PLC0415 a layer above, and torch takes seconds to import

        return Loader(self, batch_size, **options)

    # -- where they lie

    @property
    def arrays(self) -> zarr.Group:
        """The outputs whose rows are no scalars, as a Zarr group that cannot be written to."""
        folder = f"{self.name}/arrays.zarr"
        # Zarr takes a missing chunk for one of zeros, and its metadata have no checksum.
        self.dataset.files.check_sizes(folder)
        for name in ["zarr.json", *(f"{folder_name(output.name)}/zarr.json" for output in self.layout.matrices)]:
            self.dataset.files.read(f"{folder}/{name}")
        if not self.dataset.trusted:
            self._check_zarr()
        return open_group(self.dataset.files.folder / folder)

    def _check_zarr(self) -> None:
        """Raise CorruptDatasetError for what zarr would believe: metadata of other arrays, sizes in headers."""
        for name, expected in self.layout.fixed_files(self.name).items():
            try:
                same = json.loads(self.dataset.files.read(name)) == json.loads(expected)
            except (ValueError, RecursionError):
                same = False
            if not same:
                raise CorruptDatasetError(
                    f"{self.dataset.files.folder.url}/{name} was altered: it tells of other arrays than the manifest; "
                    f"{REMEDY}"
                )
        if self.layout.compression == "none":
            return
        blocks = range(self.layout.blocks(self.name))
        chunks = [(output, self.block(output.name, block)) for output in self.layout.matrices for block in blocks]
        folder = self.dataset.files.folder

        def check(chunk: tuple[Output, Block]) -> None:
            output, where = chunk
            shape = (self.layout.block_rows, *(max(1, size) for size in output.shape))
            nbytes = math.prod(shape) * np.dtype(output.dtype).itemsize
            check_header(folder.read(where.file, 0, HEADER_BYTES), where.entry.bytes - CHECKSUM_BYTES, nbytes, output)

        in_threads(check, chunks, local=folder.is_local)

    def to_dask(self, columns: Iterable[str] | str | None = None) -> dict[str, Any]:
        """Return lazy Dask arrays by output, one chunk for each block; None: all outputs."""
        numbers = range(self.layout.blocks(self.name))
        rows = [len(self.layout.block_range(self.name, number)) for number in numbers]
        return {
            output.name: partitions.blocks(
                f"read-{output.name}",
                read_media_block if output.is_cells else read_block,
                self.media(output.name) if output.is_cells else self.block_reader(output.name),
                [self.block(output.name, number) for number in numbers],
                rows=rows,
                like=output.empty(0),
            )
            for output in self._outputs(columns)
        }

    def to_xarray(self) -> xarray.Dataset:
        """Return a lazy xarray.Dataset over `to_dask`, with the numbers of the rows in the source as coordinate."""
        try:
            import xarray  # noqa: PLC0415
        except ImportError as error:
            raise ImportError("to_xarray needs a package: pip install xarray") from error
        names = {ROW_ID.name, *self.columns}
        row = _free("row", names)
        variables = {}
        for name, array in self.to_dask([ROW_ID.name, *self.columns]).items():
            dimensions = [row, *(_free(f"{name}_{axis}", names) for axis in range(1, array.ndim))]
            variables[name] = (dimensions, array)
        return xarray.Dataset(variables).set_coords(ROW_ID.name)

    # -- blocks

    def block_reader(self, output: str) -> BlockReader:
        """Return what `read_block` needs for the blocks of one output."""
        layout = self.layout
        return BlockReader(self.dataset.files.folder, self.output(output), layout.block_rows, layout.compression)

    def block(self, output: str, block: int) -> Block:
        """Return where a block of an output lies."""
        one, rows = self.output(output), len(self.layout.block_range(self.name, block))
        if one.is_scalar or one.is_cells:
            part, group = divmod(block, self.layout.part_blocks)
            file = self._table_file(part)
            return Block(file, self.dataset.files.entry(file), rows, group)
        file = f"{self.name}/arrays.zarr/{chunk_name(one, block)}"
        return Block(file, self.dataset.files.entry(file), rows)

    def media(self, output: str) -> MediaBlocks:
        """Return what reads and decodes an output of media that is stored as paths or files."""
        return MediaBlocks(self.dataset.files.folder, self.output(output), self.dataset.decoder(output))

    def cache(self, output: str, folder: Folder | None = None, limit: int | None = None) -> BlockCache:
        """Return the cache of decoded blocks of an output of media: in a folder of caches, or within the dataset."""
        one, layout = self.output(output), self.layout
        decoder = self.dataset.decoder(output)
        facts = {
            "dataset": self.dataset.digest,
            "split": self.name,
            "output": output,
            "decoder": decoder.digest(),
            "base": decoder.reader.base,
        }
        return BlockCache(
            self.dataset.files.folder / CACHE if folder is None else folder,
            cache_name(**facts),
            dataclasses.replace(one, cell_bytes=None),
            len(self),
            layout.block_rows,
            # Pixels hardly shrink, and are read twice as fast as they are.
            "none" if one.dtype == "uint8" else layout.compression,
            limit,
        )

    def _overlaps(self, rows: range) -> Iterator[tuple[int, slice, slice]]:
        """Give the blocks that hold some of the rows: number, which rows of the block, and where they go."""
        if not rows:
            return
        size = self.layout.block_rows
        for block in range(rows.start // size, -(-rows.stop // size)):
            first, stop = max(rows.start, block * size), min(rows.stop, (block + 1) * size)
            inside = slice(first - block * size, stop - block * size)
            yield block, inside, slice(first - rows.start, stop - rows.start)

    def _table_pieces(self, rows: range) -> Iterator[tuple[TablePiece, slice, slice]]:
        """Give the row groups of each table that hold some of the rows: which of theirs, and where they go."""
        if not rows:
            return
        size = self.layout.block_rows
        part_rows = size * self.layout.part_blocks
        for part in range(rows.start // part_rows, -(-rows.stop // part_rows)):
            within = self.layout.part_range(self.name, part)
            first, stop = max(rows.start, within.start), min(rows.stop, within.stop)
            groups = range((first - within.start) // size, -(-(stop - within.start) // size))
            start = within.start + groups.start * size
            held = min(within.start + groups.stop * size, within.stop) - start
            file = self._table_file(part)
            piece = TablePiece(file, self.dataset.files.entry(file), tuple(groups), held)
            yield piece, slice(first - start, stop - start), slice(first - rows.start, stop - rows.start)

    def _table_file(self, part: int) -> str:
        return self.layout.table_file(self.name, part)

    # -- names

    def _outputs(self, columns: Iterable[str] | str | None) -> list[Output]:
        if columns is None:
            return list(self.layout.outputs)
        names = [columns] if isinstance(columns, str) else columns
        return [self.output(name) for name in dict.fromkeys(names)]

    @cached_property
    def _by_name(self) -> dict[str, Output]:
        return {output.name: output for output in (ROW_ID, *self.layout.outputs)}

    def output(self, name: str) -> Output:
        """Return what is known of an output, or of "row_id"."""
        if name in self._by_name:
            return self._by_name[name]
        raise ConfigError(
            f'there is no output "{name}" in {self.dataset.url}.{did_you_mean(name, self.columns)} '
            f"Outputs are: {', '.join(self.columns[:_MOST_NAMED])}{' ...' * (len(self.columns) > _MOST_NAMED)}"
        )


def _free(name: str, taken: set[str]) -> str:
    """Return a name for a dimension that no output has: xarray would make an index of that output."""
    return _free(f"{name}_", taken) if name in taken else name
