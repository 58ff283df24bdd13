"""Passes over new rows: encoded arrays and tables, counts of missing, unreadable and unseen cells, and golden rows.

Golden rows are sample cells and their encodings, saved with a Preprocessor to check that it still encodes alike.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from daskprep.columns.kernels import valid_mask
from daskprep.errors import DaskprepError
from daskprep.features.arrays import empty_outputs, tabulate, tabulate_sparse
from daskprep.features.base import Contract, Learned, all_outputs
from daskprep.features.checking import column_error_context
from daskprep.passes.contexts import ContextPlan, add_fold_numbers, assignment_columns, exchange_borders, fold_columns
from daskprep.passes.engine import MapPartition, PartitionReader, Pass, run_pass
from daskprep.passes.fitting import bind_features
from daskprep.passes.table import (
    AnyFeature,
    Parsed,
    PartitionContext,
    collect_borders,
    completed_columns,
    encode_columns,
    encoded_outputs,
    kept_rows,
    select_dropping_features,
)
from daskprep.rows.base import CELL_KINDS
from daskprep.rows.saved import check_golden
from daskprep.sources import PandasSource, Source, partitions
from daskprep.sources.split import TRAIN, Splitter


def encode_source(
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    source: Source,
    wrap: Callable[[MapPartition], MapPartition] = lambda encode: encode,
) -> dict[str, Any]:
    """Return the encoded arrays of a source by output.

    `wrap` is called with the function that encodes a partition, and returns the one to call instead.
    """
    features, reader = bind_features(features, source), PartitionReader(source)
    work = Pass("encode", wrap(functools.partial(encode_columns, features, dict(learned))), features)
    contexts = find_encoding_contexts(features, learned, reader)
    return partitions.build_arrays(reader.work(work, contexts), like=lambda: empty_outputs(features, learned))


def tabulate_source(
    features: Mapping[str, Contract], learned: Mapping[str, Any], source: Source, *, is_sparse: bool = False
) -> Any:
    """Return the encoded features of a source as one matrix, lazy unless its rows are in memory."""
    features, reader = bind_features(features, source), PartitionReader(source)
    contexts = find_encoding_contexts(features, learned, reader)
    return _tabulate(reader, contexts, features, learned, features, is_sparse=is_sparse)


def tabulate_cross_fitted(
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    inputs: Sequence[str],
    source: Source,
    split: Splitter | None,
    *,
    is_sparse: bool = False,
) -> Any:
    """Return the table with training rows encoded as in datasets.

    Features that cross-fit encode each training row by other folds, and imputers fill each split separately; `features`
    are all features, because dropped rows decide splits.
    """
    columns = [*assignment_columns(split), *fold_columns(features)]
    features, reader = bind_features(features, source, columns), PartitionReader(source)
    contexts = ContextPlan(features, split).make_contexts(reader)
    work = _border_pass(features, learned, select_dropping_features(features), assignment_columns(split))
    if any(feature.imputer is not None for feature in features.values()):
        contexts = exchange_borders(features, run_pass(reader, work, contexts), contexts)
    used = {name: features[name] for name in inputs}
    return _tabulate(reader, contexts, features, learned, used, columns, is_sparse=is_sparse)


def _tabulate(
    reader: PartitionReader,
    contexts: partitions.Arguments,
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    inputs: Mapping[str, Contract],
    columns: Sequence[str] = (),
    *,
    is_sparse: bool,
) -> Any:
    """Return the table of the features `inputs`."""
    learned = dict(learned)

    def combine(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return arrays if is_sparse else {"table": tabulate(inputs, learned, arrays)}

    def tabulate_partition(context: PartitionContext, parsed: Parsed, table: pa.Table) -> dict[str, np.ndarray]:
        splits = _assign_splits(context, features, parsed, table)
        completed = completed_columns(features, learned, context, parsed, table, splits=splits)
        all_rows = np.ones(parsed.rows, bool)
        add_fold_numbers(features, context, table, completed, all_rows if splits is None else splits == TRAIN)
        return combine(dict(encoded_outputs(inputs, learned, completed, all_rows)))

    work = reader.work(Pass("encode", tabulate_partition, features, columns), contexts)
    arrays = partitions.build_arrays(work, like=lambda: combine(empty_outputs(inputs, learned)))
    return tabulate_sparse(inputs, learned, arrays) if is_sparse else arrays["table"]


def find_encoding_contexts(
    features: Mapping[str, Contract], learned: Mapping[str, Any], reader: PartitionReader
) -> partitions.Arguments:
    """Return contexts with the borders that imputers need; lazy unless rows are in memory."""
    contexts = [*map(PartitionContext, range(reader.source.npartitions))]
    work = _border_pass(features, learned)
    if not work.features:
        return contexts
    combine = functools.partial(exchange_borders, work.features)
    return partitions.exchange_results(reader.work(work, contexts), work.name, combine)


def with_history(
    features: Mapping[str, AnyFeature], learned: Mapping[str, Any], source: Source
) -> dict[str, AnyFeature]:
    """Return copies of features with windows, which have the rows of a source before others."""
    borders = run_pass(PartitionReader(source), _border_pass(features, learned))
    after = {name: copy.copy(feature) for name, feature in features.items()}
    for name, feature in after.items():
        imputer: Any = feature.imputer
        feature._before = [imputer.join_borders([*feature._before, *(border[name] for border in borders)])]
    return after


def _border_pass(
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    dropping: Mapping[str, Contract] = MappingProxyType({}),
    columns: Sequence[str] = (),
) -> Pass:
    """Return the pass that collects the borders of imputers."""
    border_features = {name: feature for name, feature in features.items() if feature.imputer is not None}
    states = {name: learned[name] for name in border_features}
    dropping = dict(dropping)

    def collect(context: PartitionContext, parsed: Parsed, table: pa.Table) -> dict[str, Any]:
        return collect_borders(border_features, parsed, states, _assign_splits(context, dropping, parsed, table))

    return Pass("census", collect, {**dropping, **border_features}, columns)


def _assign_splits(
    context: PartitionContext, features: Mapping[str, Contract], parsed: Parsed, table: pa.Table
) -> np.ndarray | None:
    return None if context.assignment is None else context.assignment.assign(table, kept_rows(features, parsed.columns))


def rows_by_kind(
    features: Mapping[str, Contract], learned: Mapping[str, Any], source: Source
) -> dict[str, dict[str, list[int]]]:
    """Return ascending row numbers by feature and kind in `CELL_KINDS`."""
    learned = dict(learned)

    def mask(context: PartitionContext, parsed: Parsed, table: pa.Table) -> dict[str, tuple[np.ndarray, ...]]:
        return {name: mask_cells(name, feature, learned[name], parsed)[1:] for name, feature in features.items()}

    parts = run_pass(PartitionReader(source), Pass("cells", mask, features))
    joined = {name: map(np.concatenate, zip(*(part[name] for part in parts), strict=True)) for name in features}
    return {
        name: {kind: np.flatnonzero(mask).tolist() for kind, mask in zip(CELL_KINDS, masks, strict=True)}
        for name, masks in joined.items()
    }


def mask_cells(
    name: str, feature: Contract, learned: Any, parsed: Parsed, *, encodes: bool = True
) -> tuple[pa.Array, np.ndarray, np.ndarray, np.ndarray]:
    """Return a column, removed from `parsed`, and masks of missing, unreadable and unseen cells.

    Cells that the fitted state shows to be unreadable are missing in it. `encodes` False saves the time to encode
    columns whose unseen cells only their encoding shows.
    """
    column = parsed.columns.pop(name)
    with column_error_context(name):
        readable = learned.mask_unlearned(column)
    present = valid_mask(readable)
    unreadable = valid_mask(column) & ~present
    if name in parsed.unreadable:
        unreadable[parsed.unreadable[name].rows] = True
    return readable, ~present, unreadable, feature._mask_unseen(readable, learned, encodes=encodes)


_MAX_CELLS = 8
_MAX_NUMBERS = 1 << 16  # of all golden rows of a feature; rows longer than this have none
# Errors that methods of a custom type may raise for text.
_ENCODING_ERRORS = (
    DaskprepError,
    pa.ArrowException,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


def make_golden_rows(features: Mapping[str, Contract], learned: Mapping[str, Any]) -> dict[str, Any]:
    """Return sample cells and their encodings, by feature."""
    return {name: _make_golden(name, feature, learned[name]) for name, feature in features.items()}


def check_golden_rows(name: str, feature: Contract, learned: Learned, golden: Any) -> None:
    """Raise CorruptDatasetError if golden cells encode otherwise."""
    saved = {"type": feature.kind, "learned": learned.to_state(), "golden": golden}
    check_golden(name, saved, lambda cells: _encode(name, feature, learned, cells))


def _make_golden(name: str, feature: Contract, learned: Learned) -> dict[str, Any]:
    """Return up to 8 sample cells and their encodings as JSON."""
    cells = feature._sample_cells(learned)[:_MAX_CELLS] if len(feature.reads(name)) == 1 else []
    arrays = _try_encode(name, feature, learned, cells)
    if not arrays:
        cells = [cell for cell in cells if _try_encode(name, feature, learned, [cell])]
        arrays = _try_encode(name, feature, learned, cells)
    numbers = sum(array[0].size for array in arrays.values())
    if len(cells) * numbers > _MAX_NUMBERS:
        cells = cells[: _MAX_NUMBERS // numbers]
        arrays = _try_encode(name, feature, learned, cells)
    return {
        "cells": cells if arrays else [],
        "arrays": {output: {"dtype": array.dtype.name, "rows": array.tolist()} for output, array in arrays.items()},
    }


def _try_encode(name: str, feature: Contract, learned: Learned, cells: Sequence[str | None]) -> dict[str, np.ndarray]:
    """Return the encodings of cells by output, or {} if one fails."""
    try:
        arrays = _encode(name, feature, learned, cells) if cells else {}
    except _ENCODING_ERRORS:
        return {}
    is_plain = all(array.dtype.kind in "biuf" and np.isfinite(array).all() for array in arrays.values())
    return arrays if is_plain else {}


def _encode(name: str, feature: Contract, learned: Learned, cells: Sequence[str | None]) -> dict[str, np.ndarray]:
    """Return the arrays of text cells by output."""
    [column] = feature.reads(name)
    source = PandasSource(pd.DataFrame({column: pd.Series(list(cells), dtype=object)}))
    encoded = encode_source({name: feature}, {name: learned}, source)
    return {output: np.asarray(encoded[name + output]) for output in all_outputs(feature)}
