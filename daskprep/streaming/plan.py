"""Plan of a stream, made before the first partition is encoded: contexts and numbers of rows of all partitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from daskprep import partitions
from daskprep.balance import Balance
from daskprep.display.words import format_count, join_names
from daskprep.errors import ColumnError, ConfigError, warn
from daskprep.features import Feature
from daskprep.passes.assignment import Assignment
from daskprep.passes.contexts import add_first_rows, fold_columns
from daskprep.passes.engine import PartitionReader
from daskprep.passes.table import PartitionContext
from daskprep.permutation import Integers
from daskprep.sources import Source
from daskprep.split import Splitter
from daskprep.writing.placement import SPLITS, Placement

_MAX_NAMED = 5


@dataclass(frozen=True)
class StreamPlan:
    """Contexts and numbers of rows of the partitions of a source.

    Attributes
    ----------
    dropping : mapping of str to Feature
        Features that may drop rows.
    columns : list of str
        Columns that determine split, repeats and folds.
    contexts : list of PartitionContext
        Context of each partition: the values that it needs from other partitions.
    placement : Placement
        Rows of each partition in the source, and in each split with repeats.
    """

    dropping: Mapping[str, Feature]
    columns: list[str]
    contexts: list[PartitionContext]
    placement: Placement

    def sizes(self, split: str) -> Integers:
        """Return the rows of each partition in a split, or raise ConfigError if the split has no rows."""
        sizes: Integers = self.placement.counts[:, SPLITS[split]]
        if not sizes.any():
            nonempty = ", ".join(f"{name} ({rows:,})" for name, rows in self.placement.rows.items())
            raise ConfigError(f'split="{split}" has no rows; splits with rows are: {nonempty or "none"}')
        return sizes


def plan_stream(
    features: Mapping[str, Feature],
    learned: Mapping[str, Any],
    source: Source,
    split: Splitter | None,
    balance: Balance | None,
    output_features: Collection[str],
) -> StreamPlan:
    """Return the plan of a stream; partitions are read only if their numbers of rows do not suffice.

    `output_features` names the features of the outputs: contexts contain values of other partitions only for these.
    Raises ColumnError if the source has no rows, and warns if rows are dropped.
    """
    if source.is_dask:
        partitions.check_independent_partitions(source, source.columns)
    assignment, reader = Assignment(features, split, balance, learned).bind_features(source), PartitionReader(source)
    outputs = {name: feature for name, feature in assignment.features.items() if name in output_features}
    border_features = {name: feature for name, feature in outputs.items() if feature.imputer is not None}
    # Tasks do not need the learned state of other features, which would be sent to the workers.
    needed_features = {**assignment.dropping, **border_features}
    assignment = dataclasses.replace(
        assignment, features=needed_features, learned={name: learned[name] for name in needed_features}
    )
    contexts, partition_counts = assignment.count_partitions(
        reader, assignment.make_contexts(reader, outputs), border_features
    )
    rows = [part.rows for part in partition_counts]
    plan = StreamPlan(
        assignment.dropping,
        [*assignment.columns, *fold_columns(outputs)],
        add_first_rows(contexts, rows),
        Placement.from_counts(rows, [part.counts for part in partition_counts]),
    )
    if not (row_count := sum(rows)):
        raise ColumnError("the data has no rows: nothing to stream")
    if left_out := sum(part.left_out for part in partition_counts):
        reasons = [f"they are {split.exclusion_reason}"] if split is not None and split.exclusion_reason else []
        if names := join_names([f'"{name}"' for name in plan.dropping], _MAX_NAMED):
            reasons.append(
                f"a cell of {names} is missing or unusable, and these features drop its row; to keep these rows, set "
                "another missing_value_strategy, outlier_strategy or on_error"
            )
        warn(f"{left_out:,} of {format_count(row_count, 'row')} are left out, because {', or '.join(reasons)}")
    return plan
