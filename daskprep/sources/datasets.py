"""Datasets of Hugging Face, Arrow, Delta Lake and Lance, read in fragments: row groups of Parquet, or row ranges."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pds

from daskprep.errors import ColumnError, ConfigError
from daskprep.kernels import unwrap_mixed_table
from daskprep.sources.arrow_types import add_class_names, narrow_schema, narrow_table
from daskprep.sources.base import (
    Fragment,
    FragmentListSource,
    FunctionFragment,
    JoinedFragment,
    content_key,
    group_fragments,
)
from daskprep.sources.frames import (
    choose_columns,
    frame_of_columns,
    is_instance_of,
    max_slice_rows,
    slice_lengths,
    table_from_pandas,
)
from daskprep.storage.threads import map_in_threads

# Rows of a stream in one batch.
_BATCH_ROWS = 256
# Rows in the sample for the mean size of a row.
_SAMPLE_ROWS = 1_000


class HuggingFaceSource(FragmentListSource):
    """A `datasets.Dataset`; slices of rows are read without decoding of media.

    Images and audio arrive as structs of bytes and path, classes as integers with the class names as metadata. If the
    rows or their order are in memory, not in files, this process reads them.
    """

    def __init__(self, dataset: Any, columns: list[str] | None, partition_bytes: int, partitions: int | None) -> None:
        names = choose_columns(dataset.column_names, columns, "the dataset")
        rows = len(dataset)
        # A dataset without columns loses its number of rows.
        chosen = (dataset.select_columns(names) if names else dataset).with_format("arrow")
        self.in_memory = not _is_on_disk(chosen)
        stored = chosen.data
        row_bytes = stored.nbytes / max(len(stored), 1) if names else 0.0
        max_rows = max_slice_rows(stored.schema, row_bytes, partition_bytes)
        max_rows = max(1, min(max_rows, -(-rows // (partitions or 1))))
        fragments = [
            FunctionFragment(functools.partial(_read_rows, chosen, i * max_rows, count), count, int(count * row_bytes))
            for i, count in enumerate(slice_lengths(rows, max_rows))
        ]
        super().__init__(narrow_schema(stored.schema, names), fragments)
        # The fingerprint changes with the rows and with every transformation.
        fingerprint = getattr(dataset, "_fingerprint", None)
        self.record = {"fingerprint": fingerprint} if isinstance(fingerprint, str) else None

    def identity(self) -> Any:
        return None if self.in_memory else content_key(list(self.fragments))


def _read_rows(dataset: Any, start: int, rows: int, columns: Sequence[str]) -> pa.Table:
    """Return `rows` rows of a dataset from row `start`; its pickle contains only the paths of its files."""
    table = dataset.select_columns(list(columns))[start : start + rows]
    # In a shuffled dataset every row is a separate Arrow chunk.
    return _add_class_names(narrow_table(table.combine_chunks()).select(list(columns)), dataset.features)


def _add_class_names(table: pa.Table, features: Any) -> pa.Table:
    """Return the table with the class names of `ClassLabel` columns as metadata."""
    schema = table.schema
    for column_index, field in enumerate(schema):
        names = getattr(features.get(field.name), "names", None)
        if names and names != [str(number) for number in range(len(names))]:
            schema = schema.set(column_index, add_class_names(field, names))
    return table.cast(schema)


def is_dataset(frame: object) -> bool:
    """Return whether an object is a `datasets.Dataset`, without an import; ColumnError for a dict of datasets."""
    for name in ("DatasetDict", "IterableDatasetDict"):
        if is_instance_of(frame, "datasets", name):
            raise ColumnError(
                f'a datasets.{name} is not a table of rows: pass one of its splits, such as dataset["train"]'
            )
    return is_instance_of(frame, "datasets", "Dataset")


def stream_schema(dataset: Any) -> pa.Schema:
    """Return the schema of an `IterableDataset`; if it declares no features, the columns of its first row, as nulls."""
    if dataset.features is not None:
        return _add_class_names(dataset.features.arrow_schema.empty_table(), dataset.features).schema
    return pa.schema([(name, pa.null()) for name in next(iter(dataset), ())])


def stream_tables(dataset: Any, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield tables of the stored cells of an `IterableDataset`; without declared features, of its Python objects."""
    if dataset.features is not None:
        for table in dataset.select_columns(list(columns)).with_format("arrow").iter(_BATCH_ROWS):
            yield _add_class_names(table, dataset.features)
        return
    for batch in dataset.iter(_BATCH_ROWS):
        rows = len(next(iter(batch.values())))
        cells = {name: batch.get(name, [None] * rows) for name in columns}
        yield unwrap_mixed_table(table_from_pandas(frame_of_columns(cells), columns))


def _is_on_disk(dataset: Any) -> bool:
    """Return whether a pickle of the dataset contains only paths, neither rows nor row numbers."""
    # datasets has no public attribute for the selected row numbers.
    row_indices = getattr(dataset, "_indices", None)
    return _is_memory_mapped(dataset.data) and (row_indices is None or _is_memory_mapped(row_indices))


def _is_memory_mapped(table: Any) -> bool:
    from datasets.table import MemoryMappedTable  # noqa: PLC0415 a dataset exists, so it is imported

    blocks = getattr(table, "blocks", None)
    if blocks is not None:
        return all(_is_memory_mapped(block) for row in blocks for block in row)
    return isinstance(table, MemoryMappedTable)


def open_arrow_dataset(
    dataset: pds.Dataset, wanted: list[str] | None, partition_bytes: int
) -> FragmentListSource | None:
    """Return the source of a dataset of Parquet files or of Lance; None for a filtered dataset and other formats."""
    columns = choose_columns(dataset.schema.names, wanted, "the dataset")
    try:
        arrow_fragments = list(dataset.get_fragments())
    except ValueError:  # a filtered dataset
        return None
    is_supported = is_instance_of(dataset, "lance", "LanceDataset") or {type(one) for one in arrow_fragments} == {
        pds.ParquetFileFragment
    }
    if not is_supported:
        return None
    sample = narrow_table(dataset.head(_SAMPLE_ROWS, columns=columns, batch_size=_SAMPLE_ROWS))
    row_bytes = max(1.0, sample.nbytes / max(len(sample), 1))
    max_rows = max(1, int(partition_bytes / row_bytes))
    fragments = [
        FunctionFragment(
            functools.partial(_read_arrow_fragment, arrow_fragment, dataset.schema, rows, start),
            rows,
            int(rows * row_bytes),
        )
        for row_ranges in map_in_threads(
            lambda arrow_fragment: _split_arrow_fragment(arrow_fragment, max_rows), arrow_fragments, local=False
        )
        for arrow_fragment, rows, start in row_ranges
    ]
    joined = group_fragments(fragments, partition_bytes, JoinedFragment.of)
    return ArrowDatasetSource(narrow_schema(dataset.schema, columns), joined, dataset) if joined else None


class ArrowDatasetSource(FragmentListSource):
    """An Arrow dataset of Parquet files, or a Lance dataset; its identity has sizes and modification times of files."""

    def __init__(self, schema: pa.Schema, fragments: Sequence[Fragment], dataset: Any) -> None:
        super().__init__(schema, fragments)
        stored = dataset.filesystem.get_file_info(dataset.files) if isinstance(dataset, pds.FileSystemDataset) else []
        self._stamps = [[info.path, info.size, info.mtime_ns] for info in stored]

    def identity(self) -> Any:
        if not self._stamps or any(None in stamp for stamp in self._stamps):
            return None
        key = content_key(list(self.fragments))
        return None if key is None else [self._stamps, key]


def _read_arrow_fragment(
    arrow_fragment: Any, schema: pa.Schema, rows: int, start: int | None, columns: Sequence[str]
) -> pa.Table:
    """Return a row group of a Parquet file, or `rows` rows of a Lance fragment from row `start`."""
    scan_options = {"schema": schema, "use_threads": False} if start is None else {"offset": start, "limit": rows}
    try:
        table = arrow_fragment.to_table(columns=list(columns), **scan_options)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"{arrow_fragment!r}: cannot be read: {error}; create the dataset again") from error
    if table.num_rows != rows:
        raise ConfigError(f"{arrow_fragment!r}: its rows changed since it was listed; create the dataset again")
    return narrow_table(table).select(list(columns))


def _split_arrow_fragment(arrow_fragment: Any, max_rows: int) -> list[tuple[Any, int, int | None]]:
    """Return (fragment, number of rows, first row) for each row group of Parquet or row range of Lance.

    The first row is None for Parquet, as there the fragment itself is the row group.
    """
    if isinstance(arrow_fragment, pds.ParquetFileFragment):
        return [
            (part, sum(group.num_rows for group in part.row_groups), None)
            for part in arrow_fragment.split_by_row_group()
        ]
    rows = arrow_fragment.count_rows()
    return [(arrow_fragment, min(max_rows, rows - start), start) for start in range(0, rows, max_rows)]
