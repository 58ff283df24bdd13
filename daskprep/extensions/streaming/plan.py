"""Plan of a stream before the first partition is encoded: outputs, their encoding, contexts and rows of partitions."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np

from daskprep.columns.deferred.decoders import MediaDecoder
from daskprep.columns.display import format_count, join_names
from daskprep.columns.permutation import Integers
from daskprep.dataset.loader.batches import BatchFormat, select_outputs
from daskprep.dataset.loader.groups import Group, group_outputs
from daskprep.dataset.options import SharedOptions
from daskprep.dataset.writing.plan import SPLITS, Placement
from daskprep.dataset.writing.rejects import list_rejects
from daskprep.dataset.writing.versions import Recipe
from daskprep.errors import ColumnError, ConfigError, did_you_mean, warn
from daskprep.extensions.streaming.encoding import Encoding, select_own_rows
from daskprep.features import Feature
from daskprep.features.arrays import empty_outputs
from daskprep.features.base import Contract, all_outputs
from daskprep.features.media import MediaFeature
from daskprep.passes.assignment import Assignment, DroppedCells
from daskprep.passes.contexts import add_first_rows, fold_columns
from daskprep.passes.engine import PartitionReader, Pass
from daskprep.passes.losses import LeftOut, count_left_out
from daskprep.passes.state import state_files
from daskprep.passes.table import Parsed, PartitionContext, source_columns
from daskprep.sources import FileSource, PreparedSource, Source, partitions
from daskprep.sources.balance import Balance
from daskprep.sources.frames import PandasSource
from daskprep.sources.opening import ComposedSource
from daskprep.sources.split import DROPPED, Splitter
from daskprep.storage.arrays import ROW_ID, Output

_MAX_NAMED = 5
# Per row, in addition to its outputs: its row numbers in the split and in the source, and its slot in the window.
_ROW_BYTES = 24
_FINGERPRINT_ROWS = 100


@dataclass(frozen=True)
class StreamContents:
    """The outputs of a stream, and how they are encoded."""

    recipe: Recipe
    source: Source
    split: str  # whose rows are yielded
    columns: tuple[str, ...]  # outputs of the batches, targets included
    decode_on: Literal["trainer", "workers"]  # where images and audio are decoded
    row_ids: bool  # whether batches contain row numbers

    @property
    def learned(self) -> Mapping[str, Any]:
        return cast("Mapping[str, Any]", self.recipe.learned)

    @cached_property
    def outputs(self) -> list[Output]:
        """The outputs with type and shape; media to decode in this process also have the estimated bytes of a cell."""
        outputs = {}
        for name, feature in self.recipe.features.items():
            learned = self.learned[name]
            as_cells = isinstance(feature, MediaFeature) and self.decode_on == "trainer"
            file_bytes = max(1, learned.file_bytes) if as_cells else None
            for output, array in empty_outputs({name: feature}, self.learned).items():
                cell_bytes = file_bytes if output == name else None
                outputs[output] = Output(output, str(array.dtype), array.shape[1:], cell_bytes)
        return [outputs[name] for name in self.columns]

    @property
    def features(self) -> dict[str, Feature]:
        """Features with an output in the batches."""
        names = {output.name for output in self.outputs}
        return {
            name: feature
            for name, feature in self.recipe.features.items()
            if any(name + suffix in names for suffix in all_outputs(feature))
        }

    @property
    def names(self) -> list[str]:
        names = [output.name for output in self.outputs]
        return [*names, ROW_ID.name] if self.row_ids else names

    @cached_property
    def groups(self) -> list[Group]:
        """Groups of outputs, and of row numbers if they are needed, that share an array."""
        groups = group_outputs(self.outputs)
        # Row numbers also identify media that cannot be decoded, in errors and warnings.
        return [Group((ROW_ID,)), *groups] if self.row_ids or any(group.stores_cells for group in groups) else groups

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in a window."""
        return _ROW_BYTES + sum(output.stored_bytes for output in self.outputs)

    def job(self, plan: StreamPlan, digest: str) -> partitions.Job:
        """Return the job that encodes partitions; its key, if rows can be identified, is common to ranks."""
        features = self.features
        groups = [tuple(output.name for output in group.outputs) for group in self.groups]
        learned = {name: self.learned[name] for name in {**features, **plan.dropping}}
        decodes = self.decode_on == "workers"
        encoding = Encoding(features, dict(plan.dropping), learned, SPLITS[self.split], groups, decodes)
        one = Pass("stream", encoding, {**plan.dropping, **features}, plan.columns)
        work, rows = PartitionReader(self.source).work(one, plan.contexts), self.source.identity()
        key = None
        if rows is not None:
            facts = [digest, self.split, groups, decodes, work.columns, rows]
            key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
        return partitions.Job(work, select_own_rows, key)

    def decoder(self, name: str) -> MediaDecoder:
        """Return a decoder for the images or audio of the output `name`, after importing its packages."""
        decoder = cast("MediaFeature", self.recipe.features[name]).decoder(self.learned[name])
        decoder.prepare()
        return decoder


def select_stream_outputs(recipe: Recipe, options: SharedOptions) -> tuple[list[str], BatchFormat]:
    """Return the outputs of batches, targets included, and their form; raise ConfigError for an unknown name."""
    names = [name + suffix for name, feature in recipe.features.items() for suffix in all_outputs(feature)]

    def check(name: str) -> None:
        if name not in names:
            raise ConfigError(f'no output "{name}".{did_you_mean(name, names)} Outputs are: {", ".join(names)}')

    return select_outputs(options, names, check, recipe.features, recipe.targets)


def digest_stream(recipe: Recipe, plan: StreamPlan) -> str:
    """Return a digest of the fitted state and of the rows per partition, the same in every process."""
    digest = hashlib.sha256()
    for name, data in sorted(state_files(recipe.describe(recipe.learned)).items()):
        digest.update(f"{name} {len(data)} ".encode())
        digest.update(data)
    digest.update(np.array(plan.placement.source_rows, np.int64).tobytes())
    digest.update(plan.placement.counts.tobytes())
    return digest.hexdigest()[:16]


def fingerprint_source(source: Source, features: Mapping[str, Feature]) -> str | None:
    """Return a digest that distinguishes sources with the same number of rows, or None if there is no basis for one.

    For files, it covers sizes and modification times, but not paths. For a frame in memory, it covers the start of a
    sample of cells, except images and audio, which would have to be written to files. For separate splits and samples,
    it combines the digests of their sources.
    """
    raw = source.raw if isinstance(source, PreparedSource) else source
    if isinstance(raw, FileSource):
        facts: Any = [[stamp for _, *stamp in raw.fingerprint()], str(raw.settings)]
    elif isinstance(source, PandasSource):
        features = {name: feature for name, feature in features.items() if not isinstance(feature, MediaFeature)}
        present = set(source.columns)  # a frame that is one of several separate splits has no column for the split
        sample = source.sample([name for name in source_columns(features) if name in present], _FINGERPRINT_ROWS)
        # Arrow formats all types, in bounded time; Python objects cannot represent the range of Arrow's timestamps.
        limits = {"window": _FINGERPRINT_ROWS, "container_window": _FINGERPRINT_ROWS}
        facts = [column.to_string(**limits) for column in sample.columns]
    elif isinstance(raw, ComposedSource):
        facts = {name: fingerprint_source(member, features) for name, member in raw.sources.items()}
        if not any(facts.values()):
            return None
    else:
        return None
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class StreamPlan:
    """Contexts and numbers of rows of the partitions of a source."""

    dropping: Mapping[str, Contract]  # features that may drop rows
    columns: list[str]  # that determine split, repeats and folds
    contexts: list[PartitionContext]  # of each partition: the values that it needs from other partitions
    placement: Placement  # rows of each partition in the source, and in each split with repeats
    left_out: LeftOut

    def sizes(self, split: str) -> Integers:
        """Return the number of rows of each partition in a split; raise ConfigError if the split has no rows."""
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
    """Return a stream's plan; partitions are read only if row counts do not suffice; ColumnError without rows."""
    if source.is_dask:
        partitions.check_independent_partitions(source, source.columns)
    assignment, reader = Assignment(features, split, balance, learned).bind_features(source), PartitionReader(source)
    outputs = {name: feature for name, feature in assignment.features.items() if name in output_features}
    border_features = {name: feature for name, feature in outputs.items() if feature.imputer is not None}
    # Tasks do not need the learned state of other features, which would be sent to the workers.
    needed_features = {**assignment.dropping, **border_features}
    needed_state = {name: learned[name] for name in needed_features}
    assignment = dataclasses.replace(assignment, features=needed_features, learned=needed_state)
    contexts = assignment.make_contexts(reader, outputs)

    def count_rejects(
        context: PartitionContext,
        parsed: Parsed,
        splits: Integers,
        repeats: Integers,
        dropped: Mapping[str, DroppedCells],
    ) -> Counter[str]:
        if not (splits == DROPPED).any():
            return Counter()
        rejects = list_rejects(assignment.dropping, dropped, parsed, 0, splits, split)
        return Counter(count_left_out(assignment.dropping, rejects, 0).columns)

    contexts, partition_counts = assignment.count_partitions(reader, contexts, border_features, count_rejects)
    rows = [part.rows for part in partition_counts]
    placement = Placement.from_counts(rows, [part.counts for part in partition_counts])
    left_out = sum(part.left_out for part in partition_counts)
    columns = sum((part.rejects for part in partition_counts), Counter[str]())
    plan = StreamPlan(
        assignment.dropping,
        [*assignment.columns, *fold_columns(outputs)],
        add_first_rows(contexts, rows),
        placement,
        LeftOut(columns, sum(placement.rows.values()) + left_out),
    )
    if not (row_count := sum(rows)):
        raise ColumnError("the data has no rows: nothing to stream")
    if left_out:
        reasons = [f"they are {split.exclusion_reason}"] if split is not None and split.exclusion_reason else []
        if names := join_names([f'"{name}"' for name in plan.dropping], _MAX_NAMED):
            reasons.append(
                f"a cell of {names} is missing or unusable, and these features drop its row; to keep these rows, set "
                "another missing_value_strategy, outlier_strategy or on_error"
            )
        warn(f"{left_out:,} of {format_count(row_count, 'row')} are left out, because {', or '.join(reasons)}")
    return plan
