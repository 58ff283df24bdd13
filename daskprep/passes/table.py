"""Apply many features to the Arrow table of one partition: the work of a single task."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from daskprep.columns.kernels import valid_mask
from daskprep.columns.summaries import CellType, ColumnSummary, FoldedSummary, Rejects, TokenCounts
from daskprep.errors import RejectedValueError, UnfilledCellError
from daskprep.features.base import (
    Contract,
    Loss,
    SideColumns,
    all_outputs,
    check_arrow,
    drops_missing,
    keeps_missing,
    kind_with_article,
)
from daskprep.features.cells import one_array
from daskprep.features.checking import (
    check_outputs,
    check_same_layout,
    column_error_context,
    empty_arrays,
    encode_fill_value,
)
from daskprep.features.missing import NeighbourImputer
from daskprep.features.windows import WindowImputer
from daskprep.passes.borders import SavedRows
from daskprep.rows.base import MISSING, strip_null_values
from daskprep.rows.cells import is_missing
from daskprep.sources.arrow_types import cell_type
from daskprep.sources.balance import PartitionRepeats
from daskprep.sources.cells import as_text
from daskprep.sources.split import DROPPED, TEST, TRAIN, VALIDATION, PartitionAssignment
from daskprep.sources.split.rows import RandomAssignment
from daskprep.storage.checkpoint import checkpointable

_PARTITION_BITS = 40  # (partition, row) as one integer orders rows before the row counts of partitions are available

AnyFeature = TypeVar("AnyFeature", bound=Contract)


@dataclass(frozen=True)
class PartitionContext:
    """Information from other partitions that the task of one partition needs."""

    number: int = 0  # number of the partition, from 0
    first_row: int = 0  # row number in the source of its first row, once rows are counted
    # By feature, values of neighboring partitions from which its imputer fills cells at the borders.
    border_values: Mapping[str, Any] = field(default_factory=dict)
    assignment: PartitionAssignment | None = None  # assigns rows to splits; None: all rows are for training
    # Number of folds if `assignment` is cross-validation: rows are summarized by fold. Otherwise 0.
    n_folds: int = 0
    repeats: PartitionRepeats | None = None  # number of copies of each training row to write; None: one
    # By feature, assignment of rows to the folds in which they are encoded.
    cross_fit: Mapping[str, PartitionAssignment] = field(default_factory=dict)
    sample: RandomAssignment | None = None  # selects the rows to use, as training rows; None: all rows


@checkpointable
@dataclass(frozen=True)
class PartitionCensus:
    """Counts and borders of one partition, for the contexts of others."""

    rows: int
    borders: Mapping[str, Any]  # by feature, the result of `NeighbourImputer.find_border`
    split: Any = None  # result of `Splitter.census`; None without a split
    # Rows of train, validation and test, once assigned; a repeated row counts once per copy.
    counts: tuple[int, ...] = ()
    rejects: Any = 0  # in a write, the rejects stored: pairs of a dropped row and a reason
    left_out: int = 0  # rows that belong to no split, such as rows dropped for a missing or unreadable value
    tallies: Any = None
    """Counts of cells by feature, if the rows are compared with the rows of a fit."""


@dataclass(frozen=True)
class UnreadableCells:
    """Present but unreadable cells of a column: rows and texts."""

    rows: np.ndarray
    texts: pa.Array

    @classmethod
    def of(cls, column: pa.Array | pa.ChunkedArray, rows: np.ndarray) -> UnreadableCells:
        """Return the cells of a column at these row numbers, as text."""
        cells = one_array(column.take(pa.array(rows)))
        if not pa.types.is_nested(cells.type):
            return cls(rows, as_text(cells))
        return cls(rows, pa.array([str(_replace_nan(cell)) for cell in cells.to_pylist()], pa.string()))

    def take(self, rows: np.ndarray) -> UnreadableCells:
        """Return the unreadable cells of rows with these numbers."""
        is_taken = np.isin(self.rows, rows)
        return UnreadableCells(self.rows[is_taken], self.texts.filter(pa.array(is_taken)))


def _replace_nan(cell: Any) -> Any:
    """Return a cell or nested list with None for NaN."""
    return [_replace_nan(item) for item in cell] if isinstance(cell, list) else None if is_missing(cell) else cell


@dataclass(frozen=True)
class Parsed:
    """Parsed columns of one partition by feature."""

    rows: int
    columns: dict[str, pa.Array]
    unreadable: dict[str, UnreadableCells]  # unreadable cells by feature, for features that have any
    # Cell type or declared order of the raw column, by feature.
    cell_types: dict[str, str] = field(default_factory=dict)


class CompletedColumn(NamedTuple):
    """A parsed column with imputed cells, and which were missing."""

    cells: pa.Array
    is_missing: pa.Array | None


def get_fit_imputer(feature: Contract) -> NeighbourImputer | None:
    """Return a feature's imputer if it fills in a fit, or None."""
    imputer = feature.imputer
    return imputer if imputer is not None and imputer.used_in_fit else None


def source_columns(features: Mapping[str, Contract], others: Iterable[str] = ()) -> list[str]:
    """Return the columns that the features read, then `others`."""
    columns = [column for name, feature in features.items() for column in feature.reads(name)]
    return list(dict.fromkeys([*columns, *others]))


def learning_columns(features: Mapping[str, Contract]) -> list[str]:
    """Return columns, such as targets, that features learn from."""
    return list(dict.fromkeys(column for feature in features.values() for column in feature._learning_columns))


def select_dropping_features(features: Mapping[str, AnyFeature]) -> dict[str, AnyFeature]:
    """Return the features with "drop_row", which drop rows before learning."""
    return {name: feature for name, feature in features.items() if drops_missing(feature)}


def parse_columns(features: Mapping[str, Contract], table: pa.Table) -> Parsed:
    """Return the parsed columns of all features."""
    columns, unreadable, cell_types = {}, {}, {}
    for name, feature in features.items():
        with column_error_context(name):
            names = feature.reads(name)
            raw = [feature._read_column(table, key) for key in names]
            field = table.schema.field(names[0]).with_type(raw[0].type)
            cell_types[name] = feature._declared_order(raw[0]) or cell_type(field)
            if null_texts := strip_null_values(vars(feature)):
                raw = [pa.chunked_array([feature._mask_null_values(column, null_texts)]) for column in raw]
            columns[name] = feature._parse_columns(names, *raw)
            check_arrow(feature, "parse", columns[name], table.num_rows)
            cells = _find_unreadable(raw[0], columns[name]) if feature._reports_unreadable else None
            if cells is not None:
                unreadable[name] = cells
    return Parsed(table.num_rows, columns, unreadable, cell_types)


def _find_unreadable(raw: pa.ChunkedArray, parsed: pa.Array) -> UnreadableCells | None:
    """Return cells that became null in parsing; None if none."""
    if parsed.null_count == raw.null_count:
        return None
    present = raw.is_valid().to_numpy()
    if pa.types.is_floating(raw.type):  # files may contain NaN for missing numbers
        present &= ~np.isnan(raw.to_numpy())
    rows = np.flatnonzero(present & ~valid_mask(parsed))
    return UnreadableCells.of(raw, rows) if len(rows) else None


def kept_rows(features: Mapping[str, Contract], columns: Mapping[str, pa.Array]) -> np.ndarray | None:
    """Return a mask of the rows that "drop_row" keeps; None: all."""
    keep = None
    for name, feature in features.items():
        if drops_missing(feature) and columns[name].null_count:
            valid = valid_mask(columns[name])
            keep = valid if keep is None else keep & valid
    return keep


def count_rows(context: PartitionContext, parsed: Parsed, table: pa.Table) -> PartitionCensus:
    """Return a census of the rows alone."""
    return PartitionCensus(parsed.rows, {})


def take_census(
    features: Mapping[str, Contract],
    take_split_census: Callable[..., Any] | None,
    context: PartitionContext,
    parsed: Parsed,
    table: pa.Table,
) -> PartitionCensus:
    """Collect the split's census, and borders."""
    keep = kept_rows(features, parsed.columns)
    split_census = None if take_split_census is None else take_split_census(table, keep)
    return PartitionCensus(parsed.rows, collect_borders(features, parsed), split_census)


def collect_borders(
    features: Mapping[str, Contract],
    parsed: Parsed,
    learned: Mapping[str, Any] | None = None,
    splits: np.ndarray | None = None,
) -> dict[str, Any]:
    """Return the border values of one partition by feature.

    They are for learning, or for encoding with the fitted states in `learned`. With `splits`, imputers that fill within
    each split return borders by split.
    """
    borders = {}
    for name, feature in features.items():
        column = parsed.columns[name]
        if learned is None:
            if (imputer := get_fit_imputer(feature)) is not None:
                borders[name] = imputer.find_border(column)
        elif (imputer := feature.imputer) is not None:
            cells = learned[name].mask_unlearned(column)
            if splits is None or not imputer.per_split:
                borders[name] = imputer.find_border(cells, learned[name])
            else:
                hidden = {code: _mask_hidden(imputer, splits, code) for code in (TRAIN, VALIDATION, TEST, DROPPED)}
                borders[name] = {
                    code: imputer.find_border(imputer.hide(cells, mask), learned[name]) for code, mask in hidden.items()
                }
    return borders


def _mask_hidden(imputer: NeighbourImputer, splits: np.ndarray, code: int) -> np.ndarray:
    """Return a mask of the rows that the split `code` does not see; it sees dropped rows."""
    in_other_split = splits > code if imputer.sees_earlier_splits else splits != code
    hidden: np.ndarray = in_other_split & (splits != DROPPED)
    return hidden


def complete_column(
    imputer: NeighbourImputer, known: pa.Array, border_value: Any, learned: Any, splits: np.ndarray | None
) -> pa.Array:
    """Return cells with missing ones imputed, by split if needed."""
    if not len(known):
        return imputer.complete(known, None, learned)
    if isinstance(border_value, SavedRows) and isinstance(imputer, WindowImputer):
        return imputer.complete_shares(known, border_value.shares, border_value.read, learned)
    if splits is None or not (imputer.per_split and isinstance(border_value, dict)):
        return imputer.complete(known, border_value, learned)
    completed = []
    for code in sorted(set(splits.tolist())):
        hidden = imputer.hide(known, _mask_hidden(imputer, splits, code))
        completed.append(complete_column(imputer, hidden, border_value[code], learned, None).filter(splits == code))
    order = np.argsort(np.argsort(splits, kind="stable"), kind="stable")
    return pa.concat_arrays(completed).take(pa.array(order))


def summarize_columns(
    features: Mapping[str, Contract], context: PartitionContext, parsed: Parsed, table: pa.Table
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Summarize training rows by feature, removed from `parsed`, and count rows by split."""
    keep = kept_rows(features, parsed.columns)
    splits = None if context.assignment is None else context.assignment.assign(table, keep)
    # One subset, or one per fold and an empty one: the last summary also counts rows that belong to no fold.
    row_subsets: list[np.ndarray | None]
    if splits is not None and context.n_folds:
        ends = np.cumsum(np.bincount(splits, minlength=context.n_folds))[: context.n_folds]
        row_subsets = [*np.split(np.argsort(splits, kind="stable"), ends)[:-1], np.zeros(0, np.intp)]
    else:
        mask = keep if splits is None else splits == TRAIN
        row_subsets = [None if mask is None or mask.all() else np.flatnonzero(mask)]
    counts: tuple[int, ...] = ()
    if splits is None:
        counts = (parsed.rows if keep is None else int(np.count_nonzero(keep)), 0, 0)
    elif not context.n_folds:
        counts = tuple(int(np.count_nonzero(splits == code)) for code in (TRAIN, VALIDATION, TEST))
    masks = [mask for name, one in features.items() if (mask := one._find_decodable(parsed.columns[name])) is not None]
    if masks and not (decodable := np.all(masks, axis=0)).all():
        row_subsets = [np.flatnonzero(decodable) if rows is None else rows[decodable[rows]] for rows in row_subsets]
    columns: dict[str, Any] = {}
    weights = next((parsed.columns[name].to_numpy() for name, one in features.items() if one._weighs_rows), None)
    all_side_columns = SideColumns(table.select(learning_columns(features)), None, weights)
    shared_side_columns = [all_side_columns if rows is None else all_side_columns.take(rows) for rows in row_subsets]
    for name, feature in features.items():
        column, unreadable = parsed.columns.pop(name), parsed.unreadable.get(name)
        completed = column
        if (imputer := get_fit_imputer(feature)) is not None:
            completed = imputer.complete(column, context.border_values.get(name))
        seen, missing, unreadable_subsets = zip(
            *_count_subsets(row_subsets, column, unreadable, include_dropped=drops_missing(feature)), strict=True
        )
        rejects = [_collect_rejects(feature, name, one, context.number) for one in unreadable_subsets]
        with column_error_context(name):
            side_columns = shared_side_columns
            if name in context.cross_fit:
                folds = context.cross_fit[name].assign(table, None)
                side_columns = [
                    replace(shared, folds=folds if rows is None else folds[rows])
                    for rows, shared in zip(row_subsets, shared_side_columns, strict=True)
                ]
            values = feature._summarize_subsets(completed, row_subsets, side_columns)
            cells = [_count_cells(feature, completed, rows) for rows in row_subsets]
        rows = [len(completed) if one is None else len(one) for one in row_subsets]
        kinds = [CellType(parsed.cell_types[name])] * len(row_subsets)
        parts = tuple(map(ColumnSummary, rows, missing, rejects, values, cells, seen, kinds))
        columns[name] = (
            FoldedSummary(parts, getattr(context.assignment, "trained_on", None)) if context.n_folds else parts[0]
        )
    return counts, columns


def _count_subsets(
    row_subsets: Sequence[np.ndarray | None],
    column: pa.Array,
    unreadable: UnreadableCells | None,
    *,
    include_dropped: bool,
) -> list[tuple[int, int, UnreadableCells | None]]:
    """Return cells, missing and unreadable cells by subset.

    With `include_dropped`, the last subset counts all rows, since dropped rows have no split; others count none.
    """
    if include_dropped or row_subsets[-1] is None:
        return [*[(0, 0, None)] * (len(row_subsets) - 1), (len(column), column.null_count, unreadable)]
    is_missing = ~valid_mask(column)
    return [
        (len(rows), int(np.count_nonzero(is_missing[rows])), None if unreadable is None else unreadable.take(rows))
        for rows in row_subsets
        if rows is not None
    ]


def _count_cells(feature: Contract, parsed: pa.Array, rows: np.ndarray | None) -> TokenCounts | None:
    """Count distinct cells for "fill_with_mode", or None."""
    if feature.missing_value_strategy != "fill_with_mode":
        return None
    selected = parsed if rows is None else parsed.take(pa.array(rows))
    plain = feature.cells(selected.drop_null())
    return None if plain is None else TokenCounts.of_cells(plain)


def _collect_rejects(feature: Contract, name: str, unreadable: UnreadableCells | None, partition: int) -> Rejects:
    """Return unreadable cells as Rejects; RejectedValueError with invalid="raise"."""
    if unreadable is None or not len(unreadable.rows):
        return Rejects()
    if feature.invalid == "raise":
        raise RejectedValueError(
            f'column "{name}": {unreadable.texts[0].as_py()!r} cannot be read as {kind_with_article(feature)} '
            f'({len(unreadable.rows)} such cells in this partition); correct the data, or use invalid="missing"'
        )
    return Rejects.of(unreadable.rows + (partition << _PARTITION_BITS), unreadable.texts)


class PartitionOutputs(dict[str, Any]):
    """Encoded outputs of a partition; reading one that could not be encoded raises its error."""

    def __getitem__(self, output: str) -> Any:
        if isinstance(value := super().__getitem__(output), UnfilledCellError):
            raise value
        return value


def encode_columns(
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    context: PartitionContext,
    parsed: Parsed,
    table: pa.Table,
    losses: LossMasks | None = None,
    targets: Collection[str] = (),
) -> dict[str, np.ndarray]:
    """Encode all rows of every column, also rows to drop; `losses` is filled in as by `encoded_outputs`.

    Only reading the outputs of `targets` without a label raises.
    """
    columns, keep = completed_columns(features, learned, context, parsed, table), np.ones(parsed.rows, bool)
    outputs = PartitionOutputs()
    for name, feature in features.items():
        try:
            outputs.update(encoded_outputs({name: feature}, learned, columns, keep, losses=losses))
        except UnfilledCellError as error:
            if name not in targets:
                raise
            outputs.update(dict.fromkeys((name + output for output in all_outputs(feature)), error))
    return outputs


def completed_columns(
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    context: PartitionContext,
    parsed: Parsed,
    table: pa.Table | None = None,
    missing_codes: dict[str, np.ndarray] | None = None,
    splits: np.ndarray | None = None,
) -> dict[str, CompletedColumn]:
    """Return parsed columns with cells imputed from neighbors.

    Cells that the fitted state shows to be unreadable become missing. Columns are removed from `parsed`. With `splits`,
    imputers fill each split separately if borders were collected by split. `missing_codes` is filled in: by feature, an
    array with 1 for missing, 2 for unreadable and 3 for replaced cells, if there are any.
    """
    columns = {}
    for name, feature in features.items():
        readable = parsed.columns.pop(name)
        with column_error_context(name):
            column = known = learned[name].mask_unlearned(readable)
            if missing_codes is not None and known.null_count and not feature._drops_windows:
                missing_codes[name] = (~valid_mask(known)).astype(np.uint8) + (
                    valid_mask(readable) & ~valid_mask(known)
                )
                if (cells := parsed.unreadable.get(name)) is not None:
                    missing_codes[name][cells.rows] = 2
            is_missing = known.is_null() if feature.missing_indicator else None
            if (imputer := feature.imputer) is not None:
                replaced = None if missing_codes is None else imputer.mask_replaced(known, learned[name])
                if missing_codes is not None and replaced is not None:
                    codes = missing_codes.setdefault(name, np.zeros(len(known), np.uint8))
                    codes[replaced & (codes == 0)] = 3
                column = complete_column(imputer, known, context.border_values.get(name), learned[name], splits)
                check_arrow(feature, "imputer", column, len(readable))
        if feature.invalid == "raise":
            _collect_rejects(feature, name, parsed.unreadable.get(name), context.number)
            unlearned = np.flatnonzero(valid_mask(readable) & ~valid_mask(known))
            if len(unlearned):
                cells = readable if table is None else table[feature.reads(name)[0]]
                _collect_rejects(feature, name, UnreadableCells.of(cells, unlearned), context.number)
        columns[name] = CompletedColumn(column, is_missing)
    return columns


LossMasks: TypeAlias = dict[str, Mapping[Loss, np.ndarray]]
"""Masks of the rows whose encoding lacks information of the cell, by feature and cause."""


def encoded_outputs(
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    columns: dict[str, CompletedColumn],
    keep: np.ndarray,
    *,
    keep_media_cells: bool = False,
    missing_codes: Mapping[str, np.ndarray] | None = None,
    losses: LossMasks | None = None,
) -> Iterator[tuple[str, Any]]:
    """Yield the encoded arrays of the kept rows by output.

    With `keep_media_cells`, media are yielded as undecoded cells: a write decodes them in its parts. `losses` is filled
    in: by feature and cause, a mask of the kept rows, whose codes from `completed_columns` are `missing_codes`.
    """
    rows = None if keep.all() else pa.array(keep)
    for name, feature in features.items():
        column, is_missing = columns.pop(name)
        column = column if rows is None else column.filter(rows)
        with column_error_context(name):
            encoded: Mapping[str, Any] | None = None
            if keep_media_cells:
                encoded = feature._stored_cells(column, learned[name])
            if encoded is None:
                encoded = _encode(feature, column, learned[name])
            if losses is not None:
                own = feature._losses(column, encoded, learned[name])
                losses[name] = _mark_losses(own, (missing_codes or {}).get(name))
        del column
        for output, array in encoded.items():
            yield name + output, array
        if is_missing is not None:
            is_missing = is_missing if rows is None else is_missing.filter(rows)
            yield name + MISSING, is_missing.to_numpy(zero_copy_only=False).astype(np.uint8)


def _mark_losses(losses: Mapping[Loss, np.ndarray], codes: np.ndarray | None) -> Mapping[Loss, np.ndarray]:
    """Return losses by cause, with missing and unreadable cells."""
    if codes is None:
        return losses
    present, replaced = codes == 0, codes == 3
    others = {cause: mask & present for cause, mask in losses.items()}
    if replaced.any():
        others["clipped"] = others["clipped"] | replaced if "clipped" in others else replaced
    return {"missing": codes == 1, "unreadable": codes == 2, **others}


def _encode(feature: Contract, parsed: pa.Array, learned: Any) -> dict[str, np.ndarray]:
    """Encode a completed column, and fill its missing cells; UnfilledCellError without a fill value."""
    keeps = keeps_missing(feature)
    encoded = check_outputs(feature, feature.encode(parsed, learned), len(parsed))
    check_same_layout(feature, "encode", encoded, empty_arrays(feature, learned))
    if parsed.null_count and learned.fill_value is None and not keeps:
        raise UnfilledCellError(
            f"{parsed.null_count:,} cells are missing, and nothing was learned to fill them with: leave out the "
            'rows, or the column of a target, or use missing_value_strategy="fill_with_const" with a fill_value'
        )
    if parsed.null_count and not keeps:
        is_missing = ~valid_mask(parsed)
        for output, row in encode_fill_value(feature, learned).items():
            encoded[output][is_missing] = row
    return encoded
