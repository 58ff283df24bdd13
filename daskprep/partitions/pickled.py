"""Lists that are sent to workers and back as one pickle."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import cloudpickle

# Below 1, since even unrelated items share names of classes and folders in a pickle.
_MIN_SEPARATE_RATIO = 0.8


class Pickled(Sequence[Any]):
    """A list that is pickled to a single bytes object, and unpickled at the first access to it.

    Dask sends every item of a list and every array as a separate frame, which costs 0.05 ms. Its scheduler would also
    unpickle and pickle all objects in a graph.
    """

    def __init__(self, items: list[Any] | None, data: bytes = b"") -> None:
        self._items = items
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return Pickled, (None, self._data or _dump(self._items))

    def _unpickle(self) -> list[Any]:
        if self._items is None:
            self._items = pickle.loads(self._data)  # noqa: S301 arguments or results of tasks of this job
        return self._items

    def __len__(self) -> int:
        return len(self._unpickle())

    def __getitem__(self, index: Any) -> Any:
        return self._unpickle()[index]


def share_little(lists: Sequence[list[Any]]) -> bool:
    """Return whether pickles of lists share little: the first two are about as large together as separately."""
    sample = lists[:2]
    return len(_dump(sample)) >= _MIN_SEPARATE_RATIO * sum(len(_dump(items)) for items in sample)


def _dump(items: Any) -> bytes:
    """Pickle like Dask: by value if workers cannot import a class or function, which takes four times as long."""
    try:
        data = pickle.dumps(items, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        return bytes(cloudpickle.dumps(items))
    return data if b"__main__" not in data else bytes(cloudpickle.dumps(items))
