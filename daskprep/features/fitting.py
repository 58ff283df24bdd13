"""Learn and apply many features over all partitions of a source."""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from daskprep import partitions
from daskprep.display.words import join_names
from daskprep.errors import ColumnError, ConfigError, did_you_mean, warn
from daskprep.features.base import Contract, Learned, MediaContract, all_outputs, kind_with_article, rows_seen
from daskprep.features.checking import all_empty_arrays, decode_column, empty_arrays
from daskprep.features.partition_context import (
    AnyFeature,
    MapPartition,
    PartitionReader,
    add_fold_assignments,
    add_fold_numbers,
    assignment_columns,
    begin_stage,
    default_contexts,
    exchange_borders,
    fold_columns,
    plan_contexts,
    run_pass,
    select_dropping_features,
)
from daskprep.features.table import (
    Parsed,
    PartitionContext,
    collect_borders,
    column_error_context,
    completed_columns,
    encode_columns,
    encoded_outputs,
    kept_rows,
    learning_columns,
    summarize_columns,
)
from daskprep.progress import Progress
from daskprep.sources import Source
from daskprep.split import TRAIN, Splitter
from daskprep.steps.base import MISSING
from daskprep.storage.checkpoint import Checkpoint
from daskprep.storage.local_files import make_folder
from daskprep.summaries import ColumnSummary, FoldedSummary
from daskprep.summaries.rejects import MAX_SAMPLE_CHARACTERS

_NUMBERS = re.compile(r"-?[0-9][0-9,.e+-]*( numbers?)?")
_MAX_COLUMNS = 5  # columns with sample cells in one warning
_MAX_SAMPLES = 1  # sample cells of each column, if there are several columns


def bind_features(
    features: Mapping[str, AnyFeature], source: Source, columns: Sequence[str] = ()
) -> dict[str, AnyFeature]:
    """Return the features, with media paths relative to the files of a source.

    Raise ColumnError if the source lacks a column of a feature, or one of `columns`, which split and balance read.
    """
    for name, feature in features.items():
        for column in feature.reads(name):
            if column not in source.columns:
                raise ColumnError(
                    f'feature "{name}" reads column "{column}", which the data does not have.'
                    f"{did_you_mean(column, source.columns)} Its columns are: {join_names(source.columns, 20)}"
                )
    source.require(columns)
    return with_base_folders(features, source)


def with_base_folders(features: Mapping[str, AnyFeature], source: Source) -> dict[str, AnyFeature]:
    """Return the features, with media paths relative to the folders of a source's files, or to the current folder."""
    return {
        name: feature.with_base_folders(source.folders) if isinstance(feature, MediaContract) else feature
        for name, feature in features.items()
    }


def learn_source(
    features: Mapping[str, Contract],
    source: Source,
    *,
    split: Splitter | None = None,
    scratch: str | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Learned]]:
    """Learn every feature from the training rows of a source, in one pass over its partitions.

    Return the fitted states by feature: one dict of all training rows. With a split into folds, one more dict for each
    fold follows, learned without that fold. `checkpoint` has the results of tasks that an interrupted fit finished.
    """
    columns = list(dict.fromkeys([*assignment_columns(split), *learning_columns(features)]))
    features, reader = bind_features(features, source, columns), PartitionReader(source)
    contexts = add_fold_assignments(reader, features, plan_contexts(reader, features, split, progress))
    advance = begin_stage(progress, "learning", source)
    return learn_partitions(
        reader, features, columns, contexts, scratch=scratch, checkpoint=checkpoint, advance=advance
    )


def learn_partitions(
    reader: PartitionReader,
    features: Mapping[str, Contract],
    columns: Sequence[str],
    contexts: Sequence[PartitionContext],
    *,
    map_partition: MapPartition | None = None,
    scratch: str | None = None,
    checkpoint: Checkpoint | None = None,
    advance: Callable[[Any], None] | None = None,
) -> list[dict[str, Learned]]:
    """Learn every feature from the summaries of all partitions; see `learn_source`.

    The split reads `columns`. `map_partition` returns a small result and the summaries of one partition; by default,
    the small result is the number of training rows. `advance` is called with each small result.
    """
    map_partition = map_partition or functools.partial(_summarize, dict(features))
    parent = None if scratch is None else make_folder(scratch, "scratch")
    with tempfile.TemporaryDirectory(prefix="daskprep-", dir=parent, ignore_cleanup_errors=True) as folder:
        learned: dict[str, list[Learned]] = partitions.map_reduce(
            reader.make_pass(map_partition, features, columns, contexts),
            "scan",
            merge=functools.partial(_merge, folder),
            finish=functools.partial(_learn, folder, dict(features)),
            keys=list(features),
            checkpoint=checkpoint,
            advance=advance,
        )
    _warn(features, {name: from_all_rows for name, (from_all_rows, *_) in learned.items()})
    return [dict(zip(learned, state, strict=True)) for state in zip(*learned.values(), strict=True)]


def _summarize(features: Mapping[str, Contract], *partition: Any) -> tuple[int, dict[str, ColumnSummary]]:
    """Return the number of training rows of one partition, and the summaries of its columns."""
    columns = summarize_columns(features, *partition)
    return max((column.rows for column in columns.values()), default=0), columns


def _merge(folder: str, summaries: Sequence[ColumnSummary]) -> ColumnSummary:
    """Add summaries, which spill to files in `folder` beyond their memory limit."""
    return functools.reduce(operator.add, summaries).limit_memory(folder)


def _learn(
    folder: str, features: Mapping[str, Contract], name: str, summaries: Sequence[ColumnSummary]
) -> list[Learned]:
    """Return the states of one feature from the summaries of its column: of all rows, then without each fold."""
    column = functools.reduce(operator.add, summaries)
    if not column.rows:
        raise ColumnError(f'column "{name}": no training rows to fit on: add some, or use fit_on="all"')
    with column_error_context(name):
        sums_per_fold = column.sums_per_fold(folder) if isinstance(column, FoldedSummary) else [column]
        return [features[name].learn_column(state.limit_memory(folder)) for state in sums_per_fold]


def _warn(features: Mapping[str, Contract], learned: Mapping[str, Learned]) -> None:
    """Warn once per advice, listing its columns, and once for the unreadable cells of all columns."""
    advised: dict[str, dict[str, str]] = {}
    for name, state in learned.items():
        if state.invalid < state.rows and (advice := features[name].advice(state)):
            advised.setdefault(_NUMBERS.sub("", advice), {})[f'"{name}"'] = advice
    for same_advice in advised.values():
        (first, advice), *other_columns = same_advice.items()
        if other_columns and len(set(same_advice.values())) == 1:
            warn(f"each of the columns {join_names(list(same_advice), _MAX_COLUMNS)} {advice}")
        else:
            more = f"; also {join_names([name for name, _ in other_columns], _MAX_COLUMNS)}" if other_columns else ""
            warn(f"column {first} {advice}{more}")
    unreadable = {name: state for name, state in learned.items() if state.invalid}
    if not unreadable:
        return
    limit = _MAX_SAMPLES if len(unreadable) > 1 else None
    columns = [
        f'column "{name}": {state.invalid:,} of {rows_seen(features[name], state):,} cells cannot be read as '
        f"{kind_with_article(features[name])}, such as {', '.join(map(_format_cell, state.invalid_samples[:limit]))}"
        for name, state in unreadable.items()
    ]
    more = f"; and {len(columns) - _MAX_COLUMNS:,} more columns" if len(columns) > _MAX_COLUMNS else ""
    remedies = dict.fromkeys(features[name]._remedy(state) for name, state in unreadable.items())
    warn(
        f"{'; '.join(columns[:_MAX_COLUMNS])}{more}, and counted as missing; {', '.join(remedies)}, or use "
        'invalid="raise" to stop at the first'
    )


def _format_cell(cell: str) -> str:
    return f"{cell!r}{'...' * (len(cell) == MAX_SAMPLE_CHARACTERS)}"


def empty_outputs(features: Mapping[str, Contract], learned: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return an array of 0 rows for each output, with its type and shape."""
    arrays: dict[str, np.ndarray] = {}
    for name, feature in features.items():
        with column_error_context(name):
            arrays |= {name + output: array for output, array in all_empty_arrays(feature, learned[name]).items()}
    return arrays


def encode_source(features: Mapping[str, Contract], learned: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """Return the encoded arrays of a source by output: NumPy for data in memory, otherwise lazy Dask arrays."""
    return _apply(encode_columns, features, learned, source, empty_outputs)


def tabulate_source(features: Mapping[str, Contract], learned: Mapping[str, Any], source: Source) -> Any:
    """Return all encoded features of a source as columns of one 2-D array, NumPy or lazy Dask."""
    return _apply(_tabulate, features, learned, source, _empty_table)["table"]


def tabulate_cross_fitted(
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    inputs: Sequence[str],
    source: Source,
    split: Splitter | None,
) -> Any:
    """Return the 2-D array of the features named by `inputs`, with training rows encoded as in datasets.

    Features that cross-fit encode each training row by other folds, and imputers fill each split separately; `features`
    are all features, because dropped rows decide splits.
    """
    columns = [*assignment_columns(split), *fold_columns(features)]
    features, reader = bind_features(features, source, columns), PartitionReader(source)
    contexts = add_fold_assignments(reader, features, plan_contexts(reader, features, split))
    if border_features := {name: feature for name, feature in features.items() if feature.imputer is not None}:
        dropping = select_dropping_features(features)
        map_partition = functools.partial(_collect_borders, border_features, dict(learned), dropping)
        census = run_pass(
            reader, "census", map_partition, {**dropping, **border_features}, assignment_columns(split), contexts
        )
        border_contexts = exchange_borders(border_features, census)
        contexts = [
            dataclasses.replace(context, border_values=border_context.border_values)
            for context, border_context in zip(contexts, border_contexts, strict=True)
        ]
    input_features = {name: features[name] for name in inputs}
    map_partition = functools.partial(_tabulate_cross_fitted, input_features, features, dict(learned))
    empty = functools.partial(_empty_table, input_features, learned)
    return partitions.build_arrays(reader.make_pass(map_partition, features, columns, contexts), like=empty)["table"]


def _tabulate_cross_fitted(
    inputs: Mapping[str, Contract],
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    context: PartitionContext,
    parsed: Parsed,
    table: pa.Table,
) -> dict[str, np.ndarray]:
    """Return the 2-D array of one partition; training rows of features that cross-fit are encoded by other folds."""
    splits = _assign_splits(context, features, parsed, table)
    columns = completed_columns(features, learned, context, parsed, table, splits=splits)
    training = np.ones(parsed.rows, bool) if splits is None else splits == TRAIN
    add_fold_numbers(features, context, table, columns, training)
    arrays = dict(encoded_outputs(inputs, learned, columns, np.ones(parsed.rows, bool)))
    return {"table": tabulate(inputs, learned, arrays)}


def tabulate(
    features: Mapping[str, Contract], learned: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Concatenate encoded arrays as columns of one 2-D array, of the smallest type that holds all values.

    A feature type may define its own columns in a method `tabulate`, and their names in `tabulated_names`.
    """
    tables: list[np.ndarray] = []
    for name, feature in features.items():
        with column_error_context(name):
            own_arrays = {output: arrays[name + output] for output in all_outputs(feature)}
            if (own_tabulate := getattr(feature, "tabulate", None)) is not None:
                tables.append(own_tabulate(own_arrays, learned[name]))
            else:
                tables += [
                    own_arrays[output].reshape(len(own_arrays[output]), _width(own_arrays[output]))
                    for output in feature.outputs
                ]
            if feature.missing_indicator:
                tables.append(own_arrays[MISSING][:, None])
    return tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1)


def column_names(feature: Contract, name: str, learned: Learned) -> list[str]:
    """Return the names of the columns that `tabulate` creates for a feature."""
    indicators = [name + MISSING] * feature.missing_indicator
    if (own_names := getattr(feature, "tabulated_names", None)) is not None:
        return [*own_names(name, learned), *indicators]
    names = []
    for output, array in empty_arrays(feature, learned).items():
        names += [name + output] if array.ndim == 1 else [f"{name}{output}_{i}" for i in range(_width(array))]
    return names + indicators


def _width(array: np.ndarray) -> int:
    """Return the number of columns of an array's rows when flattened."""
    return int(np.prod(array.shape[1:]))


def decode_arrays(
    features: Mapping[str, Contract], learned: Mapping[str, Any], arrays: Mapping[str, Any]
) -> pd.DataFrame:
    """Decode encoded arrays by output to a frame of human-readable values; features without arrays are omitted."""
    if not isinstance(arrays, Mapping):
        raise ConfigError(
            f"arrays to decode must be a mapping by output, not {type(arrays).__name__}: decode the inputs and the "
            "targets of a batch separately"
        )
    known_outputs = {name + output for name, feature in features.items() for output in all_outputs(feature)}
    for key in arrays:
        if key not in known_outputs:
            raise ConfigError(f'no output "{key}" to decode.{did_you_mean(key, known_outputs)}')
    columns = {}
    for name, feature in features.items():
        own_arrays = {output: arrays[name + output] for output in all_outputs(feature) if name + output in arrays}
        if all(output in own_arrays for output in feature.outputs):
            with column_error_context(name):
                columns[name] = decode_column(feature, own_arrays, learned[name])
    rows = {name: len(column) for name, column in columns.items()}
    if len(set(rows.values())) > 1:
        raise ConfigError(f"arrays to decode have different numbers of rows: {rows}")
    frame: pd.DataFrame = pa.table(columns).to_pandas(integer_object_nulls=True)
    return frame


def _apply(
    function: Callable[..., dict[str, np.ndarray]],
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    source: Source,
    empty: Callable[..., dict[str, np.ndarray]],
) -> dict[str, Any]:
    """Apply a function to every partition, and return its arrays; `empty` returns arrays of the same types."""
    features, reader = bind_features(features, source), PartitionReader(source)
    map_partition = functools.partial(function, features, dict(learned))
    work = reader.make_pass(map_partition, features, (), find_encoding_contexts(features, learned, reader))
    return partitions.build_arrays(work, like=functools.partial(empty, features, learned))


def find_encoding_contexts(
    features: Mapping[str, Contract], learned: Mapping[str, Any], reader: PartitionReader
) -> partitions.Arguments:
    """Return the context of each partition for encoding: border values for imputers, from a census if there are any."""
    border_features = {name: feature for name, feature in features.items() if feature.imputer is not None}
    contexts = default_contexts(reader.source.npartitions)
    if not border_features:
        return contexts
    map_partition = functools.partial(
        _collect_borders, border_features, {name: learned[name] for name in border_features}, {}
    )
    work = reader.make_pass(map_partition, border_features, (), contexts)
    return partitions.exchange_results(work, "census", functools.partial(exchange_borders, border_features))


def _collect_borders(
    border_features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    dropping: Mapping[str, Contract],
    context: PartitionContext,
    parsed: Parsed,
    table: pa.Table,
) -> dict[str, Any]:
    """Return the border values of one partition, by split if it has an assignment."""
    return collect_borders(border_features, parsed, learned, _assign_splits(context, dropping, parsed, table))


def _assign_splits(
    context: PartitionContext, features: Mapping[str, Contract], parsed: Parsed, table: pa.Table
) -> np.ndarray | None:
    return None if context.assignment is None else context.assignment.assign(table, kept_rows(features, parsed.columns))


def _tabulate(features: Mapping[str, Contract], learned: Mapping[str, Any], *partition: Any) -> dict[str, np.ndarray]:
    return {"table": tabulate(features, learned, encode_columns(features, learned, *partition))}


def _empty_table(features: Mapping[str, Contract], learned: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {"table": tabulate(features, learned, empty_outputs(features, learned))}
