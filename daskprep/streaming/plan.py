"""What is to be known of all partitions before one is streamed: what each is told, and how many rows it gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from daskprep import partitions
from daskprep.assignment import Assignment
from daskprep.balance import Balance
from daskprep.display.words import format_count, join_names
from daskprep.errors import ColumnError, ConfigError, warn
from daskprep.features import Feature
from daskprep.features.partition_context import PartitionReader, add_fold_assignments, fold_columns
from daskprep.features.table import PartitionContext, source_columns
from daskprep.permutation import Integers
from daskprep.sources import Source
from daskprep.split import Splitter
from daskprep.writing.placement import SPLITS, Placement

_MAX_NAMED = 5


@dataclass(frozen=True)
class StreamPlan:
    """What each partition of a source gives."""

    dropping: Mapping[str, Feature]  # the features that may leave rows out
    columns: list[str]  # what must be read to tell which rows these are
    contexts: list[PartitionContext]  # what each partition must know of the others
    placement: Placement  # rows of each partition, and those that it gives to each split, as often as given

    def sizes(self, split: str) -> Integers:
        """Return the rows that each partition gives to a split; ConfigError if no partition gives any."""
        sizes: Integers = self.placement.counts[:, SPLITS[split]]
        if not sizes.any():
            known = ", ".join(f"{name} ({rows:,})" for name, rows in self.placement.rows.items())
            raise ConfigError(f'split="{split}" has no rows; those with rows are: {known or "none"}')
        return sizes


def plan_stream(
    features: Mapping[str, Feature],
    learned: Mapping[str, Any],
    source: Source,
    split: Splitter | None,
    balance: Balance | None,
    output_features: Collection[str],
) -> StreamPlan:
    """Find out what each partition gives; nothing is read where the numbers of rows tell.

    `output_features` names the features whose outputs are given: only these are told what lies in other partitions.
    """
    if source.is_dask:
        partitions.check_independent_partitions(source, source.columns)
    assignment, rows = Assignment(features, split, balance, learned).bind_features(source), PartitionReader(source)
    border_features = {
        name: feature
        for name, feature in assignment.features.items()
        if feature.imputer is not None and name in output_features
    }
    folded = {name: feature for name, feature in assignment.features.items() if name in output_features}
    # What the others learned need not travel.
    needed_features = {**assignment.dropping, **border_features}
    assignment = dataclasses.replace(
        assignment, features=needed_features, learned={name: learned[name] for name in needed_features}
    )
    contexts, partition_counts = assignment.count_partitions(
        rows, add_fold_assignments(rows, folded, assignment.make_contexts(rows)), border_features
    )
    plan = StreamPlan(
        assignment.dropping,
        source_columns(assignment.dropping, [*assignment.columns, *fold_columns(folded)]),
        contexts,
        Placement.of([one.rows for one in partition_counts], [one.counts for one in partition_counts]),
    )
    if not (row_count := sum(plan.placement.source_rows)):
        raise ColumnError("the data has no rows: there is nothing to stream")
    if left_out := sum(one.left_out for one in partition_counts):
        reasons = [f"they are {split.exclusion_reason}"] if split is not None and split.exclusion_reason else []
        if names := join_names([f'"{name}"' for name in plan.dropping], _MAX_NAMED):
            reasons.append(
                f"a cell of {names} is missing or unusable, and these features drop such rows; to keep them, set "
                "another missing_value_strategy, outlier_strategy or on_error"
            )
        warn(f"{left_out:,} of {format_count(row_count, 'row')} are left out, because {', or '.join(reasons)}")
    return plan
