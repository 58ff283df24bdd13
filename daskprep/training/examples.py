"""Examples that are no rows of a dataset, such as prompts to predict with, and functions of single examples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from torch.utils.data import default_collate

from daskprep.errors import ConfigError
from daskprep.loader.order import bounds_of
from daskprep.loader.standing import Ranks, check_count


class Examples:
    """Lists of the examples that an iterable, or a dataset of torch, gives: a source of batches in one order."""

    epoch = 0

    def __init__(self, data: Any, batch_size: int, ranks: Ranks) -> None:
        check_count("batch_size", batch_size, 1)
        # Nothing waits for the other ranks in a prediction.
        self.rank, self.world_size = dataclasses.replace(ranks, uneven=True).position(batch_size)
        self._data, self._size = data, batch_size

    def __len__(self) -> int:
        return math.ceil(len(self._data) / self._size)

    def __iter__(self) -> Iterator[list[Any]]:
        given = self._data
        # A dataset of torch may take any number: its length tells where it ends.
        examples = iter(given) if hasattr(given, "__iter__") else (given[row] for row in range(len(given)))
        while batch := list(islice(examples, self._size)):
            if share := batch[slice(*bounds_of(self._size, self.rank, self.world_size))]:
                yield share

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch = state["epoch"]


def each_example(processors: Iterable[Callable[[Any], Any]], batch: Any, *, as_list: bool) -> Any:
    """Put each example of a batch through functions, and return what torch makes of them, or a list."""
    examples = batch if isinstance(batch, list) else [_row(batch, row) for row in range(_rows(batch))]
    for processor in processors:
        examples = [processor(example) for example in examples]
    return examples if as_list else default_collate(examples)


def check_examples(data: object, where: str = "data=") -> None:
    """Raise ConfigError for what gives no examples, or gives them only once."""
    if isinstance(data, Iterator):
        raise ConfigError(f"{where}{data!r} is an iterator, which yields its examples only once: pass a list")
    is_sized = hasattr(data, "__getitem__") and hasattr(data, "__len__")  # as a dataset of torch
    if isinstance(data, Mapping | bytes) or not (isinstance(data, Iterable) or is_sized):
        raise ConfigError(
            f"{where}{data!r}: expected a split, a dataset or its path, a function that returns one of these, a "
            "stream, or, to predict, an iterable of examples"
        )


def _row(batch: Any, row: int) -> Any:
    if isinstance(batch, Mapping):
        return {name: _row(value, row) for name, value in batch.items()}
    return tuple(_row(value, row) for value in batch) if isinstance(batch, tuple) else batch[row]


def _rows(batch: Any) -> int:
    while isinstance(batch, Mapping | tuple):
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    return len(batch)
