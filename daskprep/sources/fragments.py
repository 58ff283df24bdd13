"""Datasets of Arrow, and thereby of Delta Lake and Lance: row groups of Parquet files and ranges of rows are pieces."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pds

from daskprep.errors import ConfigError
from daskprep.sources.arrow_types import narrow_schema, narrow_table
from daskprep.sources.base import JoinedPiece, MadePiece, PieceSource, grouped, rows_alone
from daskprep.sources.frames import chosen_columns, is_of
from daskprep.storage.threads import in_threads

# Rows that tell how many bytes a row takes in the mean.
_SAMPLE_ROWS = 1_000


class FragmentSource(PieceSource):
    """A dataset of Arrow that lies in Parquet files, or one of Lance."""


def open_fragments(dataset: pds.Dataset, wanted: list[str] | None, partition_bytes: int) -> FragmentSource | None:
    """Return the source of a dataset; None where it cannot be cut, as where it is filtered, or lies in other files."""
    columns = chosen_columns(dataset.schema.names, wanted, "the dataset")
    try:
        fragments = list(dataset.get_fragments())
    except ValueError:  # it is filtered
        return None
    known = is_of(dataset, "lance", "LanceDataset") or {type(one) for one in fragments} == {pds.ParquetFileFragment}
    if not known:
        return None
    sample = narrow_table(dataset.head(_SAMPLE_ROWS, columns=columns, batch_size=_SAMPLE_ROWS))
    row_bytes = max(1.0, sample.nbytes / max(len(sample), 1))
    most = max(1, int(partition_bytes / row_bytes))
    pieces = [
        MadePiece(functools.partial(_some_rows, fragment, dataset.schema, rows, start), rows, int(rows * row_bytes))
        for parts in in_threads(lambda fragment: _parts(fragment, most), fragments, local=False)
        for fragment, rows, start in parts
    ]
    joined = grouped(pieces, partition_bytes, JoinedPiece.of)
    return FragmentSource(narrow_schema(dataset.schema, columns), joined) if joined else None


def _some_rows(fragment: Any, schema: pa.Schema, rows: int, start: int | None, columns: Sequence[str]) -> pa.Table:
    """Return one row group of a Parquet file, or of a fragment of Lance the rows from `start` on."""
    if not columns:
        return rows_alone(rows)
    how = {"schema": schema, "use_threads": False} if start is None else {"offset": start, "limit": rows}
    try:
        table = fragment.to_table(columns=list(columns), **how)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"{fragment!r}: cannot be read: {error}; create the dataset again") from error
    if table.num_rows != rows:
        raise ConfigError(f"{fragment!r}: has other rows than when it was listed; create the dataset again")
    return narrow_table(table).select(list(columns))


def _parts(fragment: Any, most: int) -> list[tuple[Any, int, int | None]]:
    """Return row groups of a Parquet file, or ranges of rows of a fragment of Lance; of each its rows and the first."""
    if isinstance(fragment, pds.ParquetFileFragment):
        return [(one, sum(group.num_rows for group in one.row_groups), None) for one in fragment.split_by_row_group()]
    rows = fragment.count_rows()
    return [(fragment, min(most, rows - start), start) for start in range(0, rows, most)]
