"""Lists that travel to workers and back in one piece."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import cloudpickle

# The names of classes and folders are in each, too.
_MIN_SEPARATE_RATIO = 0.8


class Pickled(Sequence[Any]):
    """A list that is pickled as one run of bytes, and unpickled only when it is first looked into.

    Dask sends every item of a list and every array as a frame of its own, which costs 0.05 ms, and its scheduler makes
    all that a graph holds, only to pickle it again.
    """

    def __init__(self, items: list[Any] | None, data: bytes = b"") -> None:
        self._items = items
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return Pickled, (None, self._data or _dump(self._items))

    def _unpickle(self) -> list[Any]:
        if self._items is None:
            self._items = pickle.loads(self._data)  # noqa: S301 what a task of this job was given, or gave
        return self._items

    def __len__(self) -> int:
        return len(self._unpickle())

    def __getitem__(self, index: Any) -> Any:
        return self._unpickle()[index]


def share_little(lists: Sequence[list[Any]]) -> bool:
    """Tell of lists of a kind whether they are as large together as each by itself, going by the first two."""
    sample = lists[:2]
    return len(_dump(sample)) >= _MIN_SEPARATE_RATIO * sum(len(_dump(one)) for one in sample)


def _dump(items: Any) -> bytes:
    """Pickle as Dask does: what workers cannot import travels whole, which takes four times as long."""
    try:
        data = pickle.dumps(items, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        return bytes(cloudpickle.dumps(items))
    return data if b"__main__" not in data else bytes(cloudpickle.dumps(items))
