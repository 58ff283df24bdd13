"""Examples that are no rows of a dataset, such as prompts to predict with, and functions of single examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from torch.utils.data import default_collate

from daskprep.errors import ConfigError


class Examples:
    """Batches of what an iterable, or a dataset of torch, gives: a source of batches without an order of its own.

    Parameters
    ----------
    data : iterable
        Gives the same examples each time.
    processors : sequence of callable
        Each from an example to an example.
    as_lists : bool
        Whether batches are lists of examples; else what torch's `default_collate` makes of these.
    """

    epoch = 0

    def __init__(
        self,
        data: Any,
        batch_size: int,
        processors: Sequence[Callable[[Any], Any]],
        ranks: tuple[int | None, int | None],
        *,
        as_lists: bool,
    ) -> None:
        self.rank, self.world_size = ranks[0] or 0, ranks[1] or 1
        if batch_size % self.world_size:
            raise ConfigError(f"batch_size={batch_size} is for all ranks together: {self.world_size} cannot share it")
        self._data, self._size, self._processors, self._as_lists = data, batch_size, tuple(processors), as_lists

    def __len__(self) -> int:
        return math.ceil(len(self._data) / self._size)

    def __iter__(self) -> Iterator[Any]:
        given = self._data
        # A dataset of torch may take any number: its length tells where it ends.
        examples = iter(given) if hasattr(given, "__iter__") else (given[row] for row in range(len(given)))
        own = self._size // self.world_size
        while batch := list(islice(examples, self._size)):
            if share := batch[self.rank * own : (self.rank + 1) * own]:
                made = [_through(self._processors, one) for one in share]
                yield made if self._as_lists else default_collate(made)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch = state["epoch"]


class EachExample:
    """Takes a batch apart, puts each example through functions, and makes a batch of them again."""

    def __init__(self, processors: Sequence[Callable[[Any], Any]]) -> None:
        self._processors = tuple(processors)

    def __call__(self, batch: Any) -> Any:
        return default_collate([_through(self._processors, _row(batch, row)) for row in range(_rows(batch))])


def check_examples(data: object, where: str = "data=") -> None:
    """Raise ConfigError for what gives no examples, or gives them only once."""
    if isinstance(data, Iterator):
        raise ConfigError(f"{where}{data!r} gives its examples once: give a list of them, or what can be iterated over")
    is_sized = hasattr(data, "__getitem__") and hasattr(data, "__len__")  # as a dataset of torch
    if isinstance(data, Mapping | bytes) or not (isinstance(data, Iterable) or is_sized):
        raise ConfigError(
            f"{where}{data!r}: expected a split, a dataset or its path, a function that returns one of these, a "
            "stream, or, to predict, an iterable of examples"
        )


def _through(processors: Sequence[Callable[[Any], Any]], example: Any) -> Any:
    for processor in processors:
        example = processor(example)
    return example


def _row(batch: Any, row: int) -> Any:
    if isinstance(batch, Mapping):
        return {name: _row(value, row) for name, value in batch.items()}
    return tuple(_row(value, row) for value in batch) if isinstance(batch, tuple) else batch[row]


def _rows(batch: Any) -> int:
    while isinstance(batch, Mapping | tuple):
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    return len(batch)
