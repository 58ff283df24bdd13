"""Learn many features from the training rows of a source."""

from __future__ import annotations

import functools
import operator
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from daskprep.columns.display import join_names
from daskprep.columns.summaries import ColumnSummary, FoldedSummary
from daskprep.columns.summaries.column_summary import MAX_SAMPLE_CHARACTERS
from daskprep.errors import ColumnError, did_you_mean, warn
from daskprep.features.base import Contract, Learned, kind_with_article, rows_seen
from daskprep.features.checking import column_error_context
from daskprep.passes.engine import MapPartition, PartitionReader, Pass, run_pass
from daskprep.passes.table import AnyFeature, Parsed, PartitionCensus, PartitionContext, count_rows, summarize_columns
from daskprep.sources import Source
from daskprep.storage.checkpoint import Checkpoint
from daskprep.storage.local_files import make_folder

_NUMBERS = re.compile(r"-?[0-9][0-9,.e+-]*( numbers?)?")
_ANOTHER_TYPE = 'use another type, such as "category" or "text"'
_MAX_COLUMNS = 5  # columns with sample cells in one warning
_MAX_SAMPLES = 1  # sample cells of each column, if there are several columns


def bind_features(
    features: Mapping[str, AnyFeature], source: Source, columns: Sequence[str] = ()
) -> dict[str, AnyFeature]:
    """Return the features, with media paths relative to the files of a source.

    Raise ColumnError if the source lacks a column of a feature, or one of `columns`, which split and balance read.
    """
    known = set(source.columns)
    for name, feature in features.items():
        for column in feature.reads(name):
            if column not in known:
                raise ColumnError(
                    f'feature "{name}" reads column "{column}", which the data does not have.'
                    f"{did_you_mean(column, source.columns)} Its columns are: {join_names(source.columns, 20)}"
                )
    source.require(columns)
    return with_base_folders(features, source)


def with_base_folders(features: Mapping[str, AnyFeature], source: Source) -> dict[str, AnyFeature]:
    """Return features with media paths relative to a source; boxes and keypoints get their image's."""
    bound = {name: feature._with_base_folders(source.folders) for name, feature in features.items()}
    return {name: feature._bind(bound) for name, feature in bound.items()}


def learn_partitions(
    reader: PartitionReader,
    features: Mapping[str, Contract],
    columns: Sequence[str],
    contexts: Sequence[PartitionContext],
    *,
    census: MapPartition | None = None,
    scratch: str | None = None,
    checkpoint: Checkpoint | None = None,
    advance: Callable[[Any], None] | None = None,
) -> tuple[list[PartitionCensus], list[dict[str, Learned]]]:
    """Learn every feature in one pass, which also takes a census.

    Return the census of each partition, if there is a `census` or `advance`, and the states by feature: of all training
    rows, and with a split into folds also without each fold. The split reads `columns`.
    """
    features = dict(features)

    def summarize(context: PartitionContext, parsed: Parsed, table: pa.Table) -> tuple[Any, dict[str, ColumnSummary]]:
        # The census first, because summarizing frees columns.
        counted: PartitionCensus = (census or count_rows)(context, parsed, table)
        counts, summaries = summarize_columns(features, context, parsed, table)
        return replace(counted, counts=counts), summaries

    if census is not None:
        advance = advance or (lambda counted: None)  # without it, a cluster keeps the census
    parent = None if scratch is None else make_folder(scratch, "scratch")
    with tempfile.TemporaryDirectory(prefix="daskprep-", dir=parent, ignore_cleanup_errors=True) as folder:
        merge, finish = functools.partial(_merge, folder), functools.partial(_learn, folder, features)
        work = Pass("scan", summarize, features, columns, merge, finish)
        learned: dict[str, list[Learned]]
        counts, learned = run_pass(reader, work, contexts, checkpoint=checkpoint, advance=advance)
    # The state of all rows, or if it deserves no warning, the first one without a fold that does.
    notable = {
        name: next((one for one in states if one.invalid or features[name].advice(one)), states[0])
        for name, states in learned.items()
    }
    _warn(features, notable)
    return counts, [dict(zip(learned, state, strict=True)) for state in zip(*learned.values(), strict=True)]


def _merge(folder: str, summaries: Sequence[ColumnSummary]) -> ColumnSummary:
    """Add summaries, which spill to files in `folder`."""
    return functools.reduce(operator.add, summaries).limit_memory(folder)


def _learn(
    folder: str, features: Mapping[str, Contract], name: str, summaries: Sequence[ColumnSummary]
) -> list[Learned]:
    """Return the states of a feature: of all rows, then by fold; ColumnError without rows."""
    column = functools.reduce(operator.add, summaries)
    if not column.rows:
        raise ColumnError(
            f'column "{name}": no training rows to fit on: the data or its train split is empty; check '
            'the file, filter or split that the rows come from (fit_on="all" fits on every split)'
        )
    with column_error_context(name):
        sums_per_fold = column.sums_per_fold(folder) if isinstance(column, FoldedSummary) else [column]
        return [features[name].learn_column(state.limit_memory(folder)) for state in sums_per_fold]


def _warn(features: Mapping[str, Contract], learned: Mapping[str, Learned]) -> None:
    """Warn once per advice, and once of unreadable cells."""
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
    columns = []
    for name, state in unreadable.items():
        cells = [f"{one!r}{'...' * (len(one) == MAX_SAMPLE_CHARACTERS)}" for one in state.invalid_samples[:limit]]
        columns.append(
            f'column "{name}": {state.invalid:,} of {rows_seen(features[name], state):,} cells cannot be read as '
            f"{kind_with_article(features[name])}, such as {', '.join(cells)}"
        )
    more = f"; and {len(columns) - _MAX_COLUMNS:,} more columns" if len(columns) > _MAX_COLUMNS else ""
    remedies = dict.fromkeys(
        features[name]._remedy(state) if state.invalid < rows_seen(features[name], state) else _ANOTHER_TYPE
        for name, state in unreadable.items()
    )
    warn(
        f"{'; '.join(columns[:_MAX_COLUMNS])}{more}, and counted as missing; {', '.join(remedies)}, or use "
        'invalid="raise" to stop at the first'
    )
