"""Encode all partitions of a source, as arrays or as one table."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from daskprep import partitions
from daskprep.features.arrays import empty_outputs, tabulate
from daskprep.features.base import Contract
from daskprep.passes.contexts import ContextPlan, add_fold_numbers, assignment_columns, exchange_borders, fold_columns
from daskprep.passes.engine import PartitionReader, Pass, default_contexts, run_pass
from daskprep.passes.fitting import bind_features
from daskprep.passes.table import (
    Parsed,
    PartitionContext,
    collect_borders,
    completed_columns,
    encode_columns,
    encoded_outputs,
    kept_rows,
    select_dropping_features,
)
from daskprep.sources import Source
from daskprep.split import TRAIN, Splitter


def encode_source(features: Mapping[str, Contract], learned: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """Return the encoded arrays of a source by output: NumPy for data in memory, otherwise lazy Dask arrays."""
    features, reader = bind_features(features, source), PartitionReader(source)
    work = Pass("encode", functools.partial(encode_columns, features, dict(learned)), features)
    contexts = find_encoding_contexts(features, learned, reader)
    return partitions.build_arrays(reader.work(work, contexts), like=lambda: empty_outputs(features, learned))


def tabulate_source(features: Mapping[str, Contract], learned: Mapping[str, Any], source: Source) -> Any:
    """Return all encoded features of a source as columns of one 2-D array, NumPy or lazy Dask."""
    features, reader = bind_features(features, source), PartitionReader(source)
    return _tabulate(reader, find_encoding_contexts(features, learned, reader), features, learned, features)


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
    contexts = ContextPlan(features, split).make_contexts(reader)
    work = _border_pass(features, learned, select_dropping_features(features), assignment_columns(split))
    if any(feature.imputer is not None for feature in features.values()):
        contexts = exchange_borders(features, run_pass(reader, work, contexts), contexts)
    return _tabulate(reader, contexts, features, learned, {name: features[name] for name in inputs}, columns)


def _tabulate(
    reader: PartitionReader,
    contexts: partitions.Arguments,
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    inputs: Mapping[str, Contract],
    columns: Sequence[str] = (),
) -> Any:
    """Return the 2-D array of the features `inputs`, whose contexts may have splits, folds and borders."""
    learned = dict(learned)

    def tabulate_partition(context: PartitionContext, parsed: Parsed, table: pa.Table) -> dict[str, np.ndarray]:
        """Encode a partition, with splits and folds from its context, as one 2-D array."""
        splits = _assign_splits(context, features, parsed, table)
        completed = completed_columns(features, learned, context, parsed, table, splits=splits)
        all_rows = np.ones(parsed.rows, bool)
        add_fold_numbers(features, context, table, completed, all_rows if splits is None else splits == TRAIN)
        return {"table": tabulate(inputs, learned, dict(encoded_outputs(inputs, learned, completed, all_rows)))}

    work = reader.work(Pass("encode", tabulate_partition, features, columns), contexts)
    tables = partitions.build_arrays(
        work, like=lambda: {"table": tabulate(inputs, learned, empty_outputs(inputs, learned))}
    )
    return tables["table"]


def find_encoding_contexts(
    features: Mapping[str, Contract], learned: Mapping[str, Any], reader: PartitionReader
) -> partitions.Arguments:
    """Return the context of each partition for encoding: border values for imputers, from a census if there are any."""
    contexts = default_contexts(reader.source.npartitions)
    work = _border_pass(features, learned)
    if not work.features:
        return contexts
    combine = functools.partial(exchange_borders, work.features)
    return partitions.exchange_results(reader.work(work, contexts), work.name, combine)


def _border_pass(
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    dropping: Mapping[str, Contract] = MappingProxyType({}),
    columns: Sequence[str] = (),
) -> Pass:
    """Return the pass that collects the borders of features that impute across partitions, by split if assigned."""
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
