"""The plan of a write and its learned states, saved so that a killed write resumes after learning."""

from __future__ import annotations

import functools
import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from daskprep.features import Feature, Learned
from daskprep.features.arrays import empty_outputs
from daskprep.features.media import MediaFeature
from daskprep.state import state_from_files
from daskprep.storage.arrays import Output
from daskprep.storage.checkpoint import checkpointable, read_checkpoint, write_checkpoint
from daskprep.storage.files import Folder
from daskprep.storage.layout import Layout
from daskprep.writing.placement import Placement
from daskprep.writing.recipe import Options

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
    """The learned states by feature, saved in the version folder, which other processes read once.

    Attributes
    ----------
    version : Folder
        The version folder, with the saved states.
    scratch : Folder
        The folder of scratch files, with a checkpoint of the states, which is faster to read.
    types : mapping
        The class of each state.
    key : str
        A random key of the write in the cache of a process: a folder may be written again.
    learned : mapping or None
        The states, in the process that learned them; None: read them from the files.
    """

    version: Folder
    scratch: Folder
    types: Mapping[str, type[Learned]]
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
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
