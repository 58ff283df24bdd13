"""Apply many features to one Arrow table: what a single task does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from daskprep.errors import ColumnError, DaskprepError, RejectedValueError
from daskprep.features.cells import as_text, one_array
from daskprep.features.missing import valid_mask
from daskprep.summaries import FrameSummary, Rejects

if TYPE_CHECKING:
    from daskprep.features.base import Feature

__all__ = [
    "PartitionCensus",
    "RowChooser",
    "Surroundings",
    "census_table",
    "encode_table",
    "kept_rows",
    "naming",
    "read_columns",
    "scan_table",
    "source_columns",
]

_TRAIN = 0
_PARTITION_BITS = 40  # orders rows by (partition, row) in one integer where global row numbers are not known


class RowChooser(Protocol):
    """Tells the split of each row of one partition: 0 train, 1 validation, 2 test, 255 dropped."""

    def assign(self, table: pa.Table, keep: np.ndarray | None) -> np.ndarray: ...


@dataclass(frozen=True)
class Surroundings:
    """What the task of one partition must know of the others."""

    number: int = 0
    carries: Mapping[str, Any] = field(default_factory=dict)
    rows: RowChooser | None = None


@dataclass(frozen=True)
class PartitionCensus:
    """What the other partitions must know of one."""

    rows: int
    edges: Mapping[str, Any]
    split: Any = None


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Put the column's name in front of errors that come from reading it."""
    try:
        yield
    except DaskprepError as error:
        raise type(error)(f'column "{name}": {error}') from error
    except pa.ArrowException as error:
        raise ColumnError(f'column "{name}": cannot be read: {error}') from error


def source_columns(features: Mapping[str, Feature]) -> list[str]:
    """Return the columns that the features read, each once."""
    return list(dict.fromkeys(column for name, feature in features.items() for column in feature.reads(name)))


def read_columns(
    features: Mapping[str, Feature], table: pa.Table
) -> tuple[dict[str, pa.Array], dict[str, np.ndarray | None]]:
    """Return parsed columns, and for each a mask of the cells that could not be read (None: all could)."""
    parsed, unreadable = {}, {}
    for name, feature in features.items():
        with naming(name):
            parsed[name] = feature.read(table, name)
            unreadable[name] = _unreadable(table[feature.reads(name)[0]], parsed[name])
    return parsed, unreadable


def _unreadable(raw: pa.ChunkedArray, parsed: pa.Array) -> np.ndarray | None:
    if parsed.null_count == raw.null_count:
        return None
    present = raw.is_valid().to_numpy()
    if pa.types.is_floating(raw.type):  # files may hold NaN where a number is missing
        present &= ~np.isnan(raw.to_numpy())
    mask = present & ~valid_mask(parsed)
    return mask if mask.any() else None


def kept_rows(features: Mapping[str, Feature], parsed: Mapping[str, pa.Array]) -> np.ndarray | None:
    """Return which rows stay, given the features that drop rows (None: all of them)."""
    keep = None
    for name, column in parsed.items():
        if features[name].drops_rows and column.null_count:
            valid = valid_mask(column)
            keep = valid if keep is None else keep & valid
    return keep


def census_table(
    features: Mapping[str, Feature], split: Any, table: pa.Table, learned: Mapping[str, Any] | None = None
) -> PartitionCensus:
    """Look at the few columns that decide which rows count, and at what crosses partition borders."""
    parsed, _ = read_columns(features, table)
    edges = {}
    for name, column in parsed.items():
        feature = features[name]
        if learned is None and feature.learns_around:
            edges[name] = feature.edge(column)
        elif learned is not None and feature.looks_around:
            edges[name] = feature.edge(feature.recognize(column, learned[name]), learned[name])
    chosen = None if split is None else split.census(table, kept_rows(features, parsed))
    return PartitionCensus(table.num_rows, edges, chosen)


def scan_table(features: Mapping[str, Feature], around: Surroundings, table: pa.Table) -> FrameSummary:
    """Parse every column of a table and summarize the rows that are learned from."""
    parsed, unreadable = read_columns(features, table)
    keep = kept_rows(features, parsed)
    if around.rows is not None:
        keep = around.rows.assign(table, keep) == _TRAIN
    rows = None if keep is None or keep.all() else pa.array(keep)
    columns = {}
    for name, feature in features.items():
        column = parsed.pop(name)
        # Rows that a feature drops belong to no split, so all of them count.
        missing = (column if rows is None or feature.drops_rows else column.filter(rows)).null_count
        if feature.learns_around:
            column = feature.look_around(column, around.carries.get(name))
        column = column if rows is None else column.filter(rows)
        rejects = _rejects(feature, name, table, unreadable[name], keep, around.number)
        with naming(name):
            columns[name] = feature.summarize_column(column, missing, rejects)
    return FrameSummary(columns)


def _rejects(
    feature: Feature,
    name: str,
    table: pa.Table,
    unreadable: np.ndarray | None,
    keep: np.ndarray | None,
    partition: int,
) -> Rejects:
    if unreadable is not None and keep is not None and not feature.drops_rows:
        unreadable = unreadable & keep
    if unreadable is None or not unreadable.any():
        return Rejects()
    rows = np.flatnonzero(unreadable)
    cells = one_array(table[feature.reads(name)[0]]).take(pa.array(rows))
    texts = as_text(cells) if not pa.types.is_nested(cells.type) else pa.array(map(str, cells.to_pylist()))
    if feature.invalid == "raise":
        raise RejectedValueError(
            f'column "{name}": {texts[0].as_py()!r} cannot be read as a {feature.kind} '
            f'({len(rows)} such cells in this partition); mend the data or use invalid="missing"'
        )
    return Rejects.of(rows + (partition << _PARTITION_BITS), texts)


def encode_table(
    features: Mapping[str, Feature], learned: Mapping[str, Any], around: Surroundings, table: pa.Table
) -> dict[str, np.ndarray]:
    """Parse and encode every column of a table; rows that a feature drops are left out of all arrays."""
    parsed, unreadable = read_columns(features, table)
    keep = np.ones(table.num_rows, bool)
    for name, feature in features.items():
        with naming(name):
            readable = parsed[name]
            column = parsed[name] = feature.recognize(readable, learned[name])
        if feature.invalid == "raise":
            for odd in (unreadable[name], valid_mask(readable) & ~valid_mask(column)):
                _rejects(feature, name, table, odd, None, around.number)
        with naming(name):
            if feature.looks_around:
                column = parsed[name] = feature.look_around(column, around.carries.get(name), learned[name])
            dropped = feature.dropped(column, learned[name])
        if dropped is not None:
            keep &= ~dropped
    rows = None if keep.all() else pa.array(keep)
    arrays: dict[str, np.ndarray] = {}
    for name, feature in features.items():
        column = parsed.pop(name) if rows is None else parsed.pop(name).filter(rows)
        with naming(name):
            encoded = feature.encode_column(column, learned[name])
        arrays.update({name + output: array for output, array in encoded.items()})
    return arrays
