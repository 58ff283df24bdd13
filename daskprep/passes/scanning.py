"""The passes that read a source before its rows are encoded: census, learning, and comparison with an earlier fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from daskprep.errors import ColumnError
from daskprep.features.base import Contract, Learned
from daskprep.passes.contexts import ContextPlan, add_first_rows, unparsed_columns
from daskprep.passes.engine import PartitionReader, begin_stage, run_pass
from daskprep.passes.fitting import bind_features, learn_partitions
from daskprep.passes.reviewing import OnFindings, review_rows, with_tallies
from daskprep.passes.scratch import SpillingParser, parsing_checkpoint, scratch_reader
from daskprep.passes.table import PartitionCensus, PartitionContext, count_rows
from daskprep.sources import Source
from daskprep.sources.partitions.progress import Progress
from daskprep.sources.split import Splitter
from daskprep.storage.checkpoint import Checkpoint
from daskprep.storage.files import Folder


@dataclass(frozen=True)
class ScanPlan:
    """The rows to learn from and to compare, before encoding."""

    features: Mapping[str, Contract]
    split: Splitter | None = None
    fits_all: bool = False  # all rows are training rows
    # Unparsed columns to save with parsed rows; None: those that split and features read.
    columns: Sequence[str] | None = None
    learned: Mapping[str, Learned] | None = None  # states of an earlier fit; None: learn them
    compares: bool = False  # compares rows with the states in `learned`, as `review_rows` does
    on_findings: OnFindings | None = None


class Scan(NamedTuple):
    """The results of the passes before rows are encoded."""

    states: Sequence[Mapping[str, Learned]]  # by feature: of all training rows, and with folds also without each fold
    contexts: list[PartitionContext]  # by partition, for encoding if rows are spilled
    census: Sequence[PartitionCensus]  # by partition, if rows are spilled; with `counts` of the rows that were learned


def scan_source(
    plan: ScanPlan,
    source: Source,
    *,
    spill: Folder | None = None,
    kept: Folder | None = None,
    scratch: str | None = None,
    progress: Progress | None = None,
) -> Scan:
    """Run the passes of a plan over a source, as few as needed.

    With `spill`, each row is read and parsed once: parsed rows, and `columns` of the source, are saved in this folder.
    They are read from there if training rows depend on a census, or for encoding. The folder `kept` has the results of
    tasks that an interrupted call finished. Summaries spill to files below `scratch`. ColumnError without rows.
    """
    split, fits_all, learned = plan.split, plan.fits_all, plan.learned
    columns = unparsed_columns(plan.features, split) if plan.columns is None else plan.columns
    features = bind_features(plan.features, source, columns)
    context_plan = ContextPlan(features, split)
    training = ContextPlan(features, None if fits_all else split)
    reader = PartitionReader(source)
    spilling = reader if spill is None else PartitionReader(source, SpillingParser(features, columns, spill))
    states: Sequence[Mapping[str, Learned]] = [] if learned is None else [learned]
    contexts: list[PartitionContext] = []
    census: Sequence[PartitionCensus] = []

    def checkpoint(name: str) -> Checkpoint | None:
        if kept is None:
            return None
        return Checkpoint(kept, name) if spill is None else parsing_checkpoint(kept, name)

    def learn(
        reader: PartitionReader, contexts: list[PartitionContext], stage: str, name: str, census: Any = None
    ) -> tuple[list[PartitionCensus], list[dict[str, Learned]]]:
        advance = begin_stage(progress, stage, reader.source)
        options: Any = {"scratch": scratch, "checkpoint": checkpoint(name), "advance": advance}
        return learn_partitions(reader, features, columns, contexts, census=census, **options)

    if spill is not None and (states or training.needs_reading(source)):
        work = context_plan.census
        work = with_tallies(work, features, states[0], plan.on_findings) if plan.compares else work
        advance = begin_stage(progress, "reading", source)
        census = run_pass(spilling, work, checkpoint=checkpoint("scan"), advance=advance)
    else:
        contexts = training.make_contexts(reader, progress=progress)
        if spill is None:
            return Scan(learn(reader, contexts, "learning", "scan")[1], contexts, census)
        census, states = learn(spilling, contexts, "reading and learning", "scan", context_plan.census.map)
    rows = [one.rows for one in census]
    if not sum(rows):
        raise ColumnError(f"the data has no rows: there is nothing to {'fit on' if learned is None else 'write'}")
    if plan.compares:
        states = [review_rows(plan.on_findings, features, states[0], census)]
    parsed = scratch_reader(spill, rows, list(features), columns)
    if not contexts or fits_all:
        contexts = context_plan.make_contexts(parsed, census)
    if not states:
        learning = [replace(context, assignment=None) for context in contexts] if fits_all else contexts
        census, states = learn(parsed, learning, "learning", "learn", count_rows)
    return Scan(states, add_first_rows(contexts, rows), census)
