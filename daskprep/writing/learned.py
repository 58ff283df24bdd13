"""Hand learned state to tasks by the folder it was saved in: vocabularies may be too large for a graph."""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from daskprep.state import state_from_files

if TYPE_CHECKING:
    from daskprep.features import Feature, Learned
    from daskprep.storage.files import Folder

__all__ = ["SavedLearned"]

# Of the last few writes that this process works for; each may hold large vocabularies.
_MOST_KEPT = 2
_kept: OrderedDict[str, Mapping[str, Learned]] = OrderedDict()
_lock = threading.Lock()


@dataclass(frozen=True)
class SavedLearned:
    """What features learned, saved in the folder of a version.

    The random `key` tells one write from another in the memory of a process: a folder may be written again.
    """

    version: Folder
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    learned: Mapping[str, Learned] | None = field(default=None, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return SavedLearned, (self.version, self.key)

    def load(self, features: Mapping[str, Feature]) -> Mapping[str, Learned]:
        """Return what each feature learned; processes other than that which learned read it once."""
        if self.learned is not None:
            return self.learned
        with _lock:
            if self.key not in _kept:
                described: Mapping[str, Any] = state_from_files(self.version.read)["features"]
                types = {name: feature.learned_type for name, feature in features.items()}
                self._keep({name: kind.from_dict(described[name]["learned"]) for name, kind in types.items()})
            return _kept[self.key]

    def _keep(self, learned: Mapping[str, Learned]) -> None:
        _kept[self.key] = learned
        _kept.move_to_end(self.key)
        while len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
