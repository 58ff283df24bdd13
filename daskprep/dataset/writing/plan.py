"""The plan of a write: the rows of each partition in each split, the layout, and learned states, saved to resume."""

from __future__ import annotations

import functools
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from daskprep.dataset.writing.versions import Options
from daskprep.features import Feature, Learned
from daskprep.features.arrays import empty_outputs
from daskprep.features.media import MediaFeature
from daskprep.passes.state import state_from_files
from daskprep.sources.split import TEST, TRAIN, VALIDATION
from daskprep.storage import layout
from daskprep.storage.arrays import Output
from daskprep.storage.checkpoint import checkpointable, read_checkpoint, write_checkpoint
from daskprep.storage.files import Folder
from daskprep.storage.layout import Layout

SPLITS = dict(zip(layout.SPLITS, (TRAIN, VALIDATION, TEST), strict=True))


class Run(NamedTuple):
    """Consecutive rows of one split in the file of a partition: `rows` rows from the row number `first`."""

    partition: int
    first: int
    rows: int


@checkpointable
@dataclass(frozen=True)
class Placement:
    """The number of rows of each partition in the source, and in each split."""

    source_rows: tuple[int, ...]  # the number of source rows of each partition
    counts: np.ndarray  # the number of written rows, including repeats, of each partition in train, validation and test

    @classmethod
    def from_counts(cls, source_rows: Sequence[int], counts: Sequence[Sequence[int]]) -> Placement:
        """Return a placement from the two sequences, with a number or counts for each partition."""
        return cls(tuple(source_rows), np.array(counts, np.int64).reshape(len(source_rows), len(SPLITS)))

    @property
    def rows(self) -> dict[str, int]:
        """The number of rows of each split, without empty splits."""
        totals = self.counts.sum(axis=0).tolist()
        return {name: total for name, total in zip(SPLITS, totals, strict=True) if total}

    def starts(self, split: str) -> np.ndarray:
        """Return the position in a split of the first row of each partition, followed by the rows of the split."""
        starts: np.ndarray = self._starts[:, SPLITS[split]]
        return starts

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        return np.concatenate((np.zeros((1, len(SPLITS)), np.int64), np.cumsum(self.counts, axis=0)))

    def offset(self, partition: int, split: str) -> int:
        """Return the row number in the file of a partition at which a split starts."""
        return int(self._offsets[partition, SPLITS[split]])

    @functools.cached_property
    def _offsets(self) -> np.ndarray:
        offsets: np.ndarray = np.cumsum(self.counts, axis=1) - self.counts
        return offsets

    def runs(self, split: str, rows: range) -> Iterator[Run]:
        """Yield the runs that contain a range of rows of a split, in order."""
        starts = self.starts(split)
        first = max(0, int(np.searchsorted(starts, rows.start, side="right")) - 1)
        partition_slice = slice(first, int(np.searchsorted(starts, rows.stop)))
        run_starts = np.maximum(starts[partition_slice], rows.start)
        counts = np.minimum(starts[1:][partition_slice], rows.stop) - run_starts
        first_rows = self._offsets[partition_slice, SPLITS[split]] + run_starts - starts[partition_slice]
        for partition, (first_row, count) in enumerate(
            zip(first_rows.tolist(), counts.tolist(), strict=True), start=first
        ):
            if count:
                yield Run(partition, first_row, count)

    @functools.cached_property
    def source_starts(self) -> np.ndarray:
        """The row number in the source of the first row of each partition, followed by the number of rows."""
        return np.concatenate(([0], np.cumsum(np.array(self.source_rows, np.int64))))


CHECKPOINT_FILE = "checkpoint.kept"
_LEARNED_FILE = "learned.kept"

# Learned states of the last writes of this process; each may have large vocabularies. All tasks of a process share
# them. The lock is held while they are read, so that other tasks wait instead of reading them, too.
_MAX_CACHED = 2
_lock = threading.Lock()


def choose_layout(
    features: Mapping[str, Feature],
    learned: Mapping[str, Learned],
    rows: Mapping[str, int],
    options: Options | None = None,
) -> Layout:
    """Return the layout for features, with their learned states, and the number of rows of each split."""
    media = {name: feature for name, feature in features.items() if isinstance(feature, MediaFeature)}
    cell_bytes = {name: feature.cell_bytes(learned[name]) for name, feature in media.items()}
    outputs = [
        Output(name, str(array.dtype), array.shape[1:], cell_bytes.get(name))
        for name, array in empty_outputs(features, learned).items()
    ]
    carried_bytes = sum(feature.carried_bytes(learned[name]) for name, feature in media.items())
    write_options = options or Options()
    layout_options: Any = {
        "block_rows": write_options.block_rows,
        "compression": write_options.compression,
        "sharded": bool(write_options.shards),
    }
    return Layout.choose(outputs, rows, carried_bytes=carried_bytes, **layout_options)


@checkpointable
@dataclass(frozen=True)
class WritePlan:
    """The positions of rows in the dataset and in scratch, and the number of rejects of each partition."""

    layout: Layout
    placement: Placement
    rejects: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class SavedLearned(Mapping[str, Any]):
    """The learned states by feature, saved in the version folder, which other processes read once."""

    version: Folder  # the folder with the saved states
    scratch: Folder  # has a checkpoint of the states, which is faster to read
    types: Mapping[str, type[Learned]]  # of the states.
    # A random key of the write in the cache of a process: a folder may be written again.
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    # The states, in the process that learned them; None: read them from the files.
    learned: Mapping[str, Learned] | None = field(default=None, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return SavedLearned, (self.version, self.scratch, self.types, self.key)

    def save_checkpoint(self) -> bool:
        """Write the checkpoint of the states and return True; False if a state has values of unsupported types."""
        return write_checkpoint(self.scratch, _LEARNED_FILE, dict(self))

    def __getitem__(self, name: str) -> Learned:
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)

    @functools.cached_property
    def _loaded(self) -> Mapping[str, Learned]:
        """The learned states by feature, read from the files at the first use in a process that did not learn them."""
        if self.learned is not None:
            return self.learned
        with _lock:
            loaded: Mapping[str, Learned] = _read_learned(
                self.key, self.version, self.scratch, tuple(self.types.items())
            )
        return loaded


@functools.lru_cache(_MAX_CACHED)
def _read_learned(key: str, version: Folder, scratch: Folder, types: tuple[tuple[str, type[Learned]], ...]) -> Any:
    if (checkpoint := read_checkpoint(scratch, _LEARNED_FILE)) is not None:
        return checkpoint
    state: Mapping[str, Any] = state_from_files(version.read)["features"]
    return {name: kind.from_dict(state[name]["learned"]) for name, kind in types}
