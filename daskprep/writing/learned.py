"""Hand learned state to tasks by the folder it was saved in: vocabularies may be too large for a graph."""

from __future__ import annotations

import functools
import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from daskprep.features import Learned
from daskprep.state import state_from_files
from daskprep.storage.files import Folder

# Of the last few writes that this process works for; each may hold large vocabularies. All tasks of a process share
# them, so that the lock is held while they are read: those that come meanwhile wait, and need not read them again.
_MOST_KEPT = 2
_lock = threading.Lock()


@dataclass(frozen=True, eq=False)
class SavedLearned(Mapping[str, Any]):
    """What features learned, by their names, saved in the folder of a version.

    Processes other than that which learned read it once. `types` are those of what each feature learned. The random
    `key` tells one write from another in the memory of a process: a folder may be written again.
    """

    version: Folder
    types: Mapping[str, type[Learned]]
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    learned: Mapping[str, Learned] | None = field(default=None, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return SavedLearned, (self.version, self.types, self.key)

    def __getitem__(self, name: str) -> Learned:
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)

    @functools.cached_property
    def _loaded(self) -> Mapping[str, Learned]:
        if self.learned is not None:
            return self.learned
        with _lock:
            return _read(self.key, self.version, tuple(self.types.items()))


@functools.lru_cache(_MOST_KEPT)
def _read(key: str, version: Folder, types: tuple[tuple[str, type[Learned]], ...]) -> Mapping[str, Learned]:
    described: Mapping[str, Any] = state_from_files(version.read)["features"]
    return {name: kind.from_dict(described[name]["learned"]) for name, kind in types}
