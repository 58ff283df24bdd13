"""Datasets of Arrow, and thereby of Delta Lake and Lance: row groups of Parquet files and ranges of rows are pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pds

from daskprep.errors import ConfigError
from daskprep.sources.arrow_types import narrow_schema, narrow_table
from daskprep.sources.base import JoinedPiece, Piece, PieceSource, rows_alone
from daskprep.sources.frames import chosen_columns, is_of
from daskprep.sources.joining import evenly, grouped
from daskprep.storage.threads import in_threads

# Rows of which the mean tells how many bytes a row takes.
_SAMPLE_ROWS = 1_000


@dataclass(frozen=True, eq=False)
class FragmentPiece(Piece):
    """Some rows of a dataset: one row group of a Parquet file, or of a fragment of Lance those from `start` on."""

    fragment: Any
    schema: pa.Schema
    rows: int
    nbytes: int
    start: int | None = None

    def read(self, columns: Sequence[str]) -> pa.Table:
        if not columns:
            return rows_alone(self.rows)
        try:
            table = _table(self.fragment, self.schema, columns, self.start, self.rows)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ConfigError(f"{self.fragment!r}: cannot be read: {error}; make the dataset anew") from error
        if table.num_rows != self.rows:
            raise ConfigError(f"{self.fragment!r}: has other rows than when it was listed; make the dataset anew")
        return narrow_table(table).select(list(columns))


class FragmentSource(PieceSource):
    """A dataset of Arrow that lies in Parquet files, or one of Lance."""

    def __init__(self, schema: pa.Schema, columns: list[str], pieces: Sequence[Piece]) -> None:
        self.columns = columns
        self.schema = narrow_schema(schema, columns)
        self.npartitions = len(pieces)
        self.row_counts = [piece.rows or 0 for piece in pieces]
        self._pieces = pieces

    def __repr__(self) -> str:
        return f"<FragmentSource: {sum(self.row_counts or ()):,} rows, {len(self.columns)} columns>"


def open_fragments(dataset: pds.Dataset, wanted: list[str] | None, partition_bytes: int) -> FragmentSource | None:
    """Return the source of a dataset; None where it cannot be cut, as where it is filtered, or lies in other files."""
    columns = chosen_columns(dataset.schema.names, wanted, "the dataset")
    try:
        fragments = list(dataset.get_fragments())
    except ValueError:  # it is filtered
        return None
    if not fragments or not all(_can_cut(fragment) for fragment in fragments):
        return None
    schema, limit = dataset.schema, partition_bytes
    row_bytes = _row_bytes(fragments[0], schema, columns)
    cut = in_threads(lambda one: _pieces(one, schema, row_bytes, limit), fragments, local=False)
    pieces = grouped([piece for some in cut for piece in some], limit, JoinedPiece.of)
    return FragmentSource(schema, columns, pieces) if pieces else None


def _is_lance(fragment: Any) -> bool:
    return is_of(fragment, "lance.fragment", "LanceFragment")


def _can_cut(fragment: Any) -> bool:
    return _is_lance(fragment) or isinstance(fragment, pds.ParquetFileFragment)


def _pieces(fragment: Any, schema: pa.Schema, row_bytes: float, partition_bytes: int) -> list[FragmentPiece]:
    if not _is_lance(fragment):
        groups = [(one, sum(group.num_rows for group in one.row_groups)) for one in fragment.split_by_row_group()]
        return [FragmentPiece(one, schema, rows, int(rows * row_bytes)) for one, rows in groups]
    whole = fragment.count_rows()
    starts = [0, *evenly(0, whole, max(1, int(partition_bytes / max(row_bytes, 1)))), whole]
    return [
        FragmentPiece(fragment, schema, stop - start, int((stop - start) * row_bytes), start)
        for start, stop in pairwise(starts)
        if stop > start
    ]


def _row_bytes(fragment: Any, schema: pa.Schema, columns: Sequence[str]) -> float:
    if _is_lance(fragment):
        rows = _table(fragment, schema, columns, 0, _SAMPLE_ROWS)
    else:
        # Read ahead, it would hold many more rows than these.
        sizes = {"batch_size": _SAMPLE_ROWS, "batch_readahead": 1, "fragment_readahead": 1}
        rows = fragment.scanner(schema=schema, columns=list(columns), **sizes).head(_SAMPLE_ROWS)
    return float(narrow_table(rows).nbytes / max(len(rows), 1))


def _table(fragment: Any, schema: pa.Schema, columns: Sequence[str], start: int | None, rows: int) -> pa.Table:
    if start is None:
        return fragment.to_table(schema=schema, columns=list(columns), use_threads=False)
    return fragment.to_table(columns=list(columns), offset=start, limit=rows)
