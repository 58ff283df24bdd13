"""The passes that read a source before its rows are encoded: census, learning, and comparison with an earlier fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from daskprep.errors import ColumnError
from daskprep.features.base import Contract, Learned
from daskprep.passes.contexts import ContextPlan, add_first_rows, unparsed_columns
from daskprep.passes.engine import PartitionReader, begin_stage, run_pass
from daskprep.passes.fitting import bind_features, learn_partitions
from daskprep.passes.reviewing import OnFindings, review_rows, with_tallies
from daskprep.passes.scratch import SpillingParser, parsing_checkpoint, scratch_reader
from daskprep.passes.table import PartitionCensus, PartitionContext
from daskprep.progress import Progress
from daskprep.sources import Source
from daskprep.split import Splitter
from daskprep.storage.checkpoint import Checkpoint
from daskprep.storage.files import Folder


class Scan(NamedTuple):
    """The results of the passes before rows are encoded."""

    states: Sequence[Mapping[str, Learned]]  # by feature: of all training rows, and with folds also without each fold
    contexts: list[PartitionContext]  # by partition, for encoding if rows are spilled
    census: Sequence[PartitionCensus]  # by partition, if rows are spilled


def scan_source(
    features: Mapping[str, Contract],
    source: Source,
    split: Splitter | None = None,
    *,
    fits_all: bool = False,
    columns: Sequence[str] | None = None,
    learned: Mapping[str, Learned] | None = None,
    compares: bool = False,
    on_findings: OnFindings | None = None,
    spill: Folder | None = None,
    kept: Folder | None = None,
    scratch: str | None = None,
    progress: Progress | None = None,
) -> Scan:
    """Learn every feature from the training rows of a source, unless states are `learned`, in as few passes as needed.

    All rows are training rows if `fits_all`, or without a `split`. With `spill`, each row is read and parsed once:
    parsed rows, and `columns` of the source, are saved in this folder. They are read from there if training rows depend
    on a census, or for encoding. With `compares`, rows are compared with `learned`, as `review_rows` does. The folder
    `kept` has the results of tasks that an interrupted call finished. Summaries spill to files below `scratch`.
    """
    columns = unparsed_columns(features, split) if columns is None else columns
    features = bind_features(features, source, columns)
    plan = ContextPlan(features, split)
    training = ContextPlan(features) if fits_all else plan
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
        options: Any = {"scratch": scratch, "checkpoint": checkpoint(name)}
        advance = begin_stage(progress, stage, reader.source)
        return learn_partitions(reader, features, columns, contexts, census=census, advance=advance, **options)

    if spill is not None and (states or training.needs_reading(source)):
        work = with_tallies(plan.census, features, states[0], on_findings) if compares else plan.census
        advance = begin_stage(progress, "reading", source)
        census = run_pass(spilling, work, checkpoint=checkpoint("scan"), advance=advance)
    else:
        contexts = training.make_contexts(reader, progress=progress)
        if spill is None:
            return Scan(learn(reader, contexts, "learning", "scan")[1], contexts, census)
        census, states = learn(spilling, contexts, "reading and learning", "scan", plan.census.map)
    rows = [one.rows for one in census]
    if not sum(rows):
        raise ColumnError(f"the data has no rows: there is nothing to {'fit on' if learned is None else 'write'}")
    if compares:
        states = [review_rows(on_findings, features, states[0], census)]
    parsed = scratch_reader(spill, rows, list(features), columns)
    if not contexts or fits_all:
        contexts = plan.make_contexts(parsed, census)
    if not states:
        learning = [replace(context, assignment=None) for context in contexts] if fits_all else contexts
        _, states = learn(parsed, learning, "learning", "learn")
    return Scan(states, add_first_rows(contexts, rows), census)
