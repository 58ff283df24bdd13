"""Data of managers: examples that are not rows of a dataset, and results of functions that write or find data."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from itertools import islice
from typing import Any

import numpy as np
import torch.distributed
from torch.utils.data import DataLoader, IterableDataset, default_collate
from torch.utils.data import Dataset as TorchDataset

from daskprep.columns.permutation import make_key, permute
from daskprep.dataset import Dataset, Split
from daskprep.dataset.loader.batch_iterator import Ranks, check_same_options, check_state, is_distributed
from daskprep.dataset.loader.order import divide_rest, rank_bounds
from daskprep.dataset.options import check_count, check_flags, check_seed
from daskprep.errors import ConfigError, DaskprepError
from daskprep.extensions.training.batches import BatchSource
from daskprep.sources.frames import is_instance_of

_FORMAT = 1
_CHUNK_ROWS = 65_536  # number of row numbers that are permuted in one call


class Examples:
    """Batches of examples, which ranks share as rows."""

    def __init__(self, data: Any, batch_size: int, ranks: Ranks, *, seed: int = 0, shuffle: bool = False) -> None:
        check_count("batch_size", batch_size, 1)
        check_flags(shuffle=shuffle)
        if shuffle and not is_indexable(data):
            raise ConfigError(f"shuffle=True needs a length and rows by number, which {data!r:.200} does not have")
        self.rank, self.world_size = ranks.resolve(batch_size)
        if isinstance(data, Set) and self.world_size > 1:
            raise ConfigError(f"data={data!r:.200} is a set, which has another order on each rank: pass a list")
        self.seed, self.shuffle = check_seed(seed), shuffle
        self._data, self._batch_size = data, batch_size
        self._go_to(0)

    def _go_to(self, epoch: int, rows_yielded: int = 0) -> None:
        """Move to the position after `rows_yielded` rows of an epoch."""
        self.epoch, self._rows_yielded = epoch, rows_yielded
        self._begun = self._is_over = False

    def __len__(self) -> int:
        last = divide_rest(len(self._data), self._batch_size, self.world_size)
        return (len(self._data) - sum(last)) // self._batch_size + len(last)

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield this rank's share of each batch from the position on; ConfigError for fewer rows than ranks."""
        if self._begun:
            self._go_to(self.epoch + 1)
        if hasattr(self._data, "set_epoch"):
            self._data.set_epoch(self.epoch)
        rows_yielded, by_index = self._rows_yielded, is_indexable(self._data)
        rows = self._iterate_indices(rows_yielded) if by_index else islice(iter(self._data), rows_yielded, None)
        batch = list(islice(rows, self._batch_size))
        while batch:
            ahead = list(islice(rows, self.world_size))
            if ahead and len(ahead) < self.world_size:  # every rank needs a row of the last batch
                size, *_ = divide_rest(len(batch) + len(ahead), self._batch_size, self.world_size)
                batch, ahead = (batch + ahead)[:size], (batch + ahead)[size:]
            if len(batch) < self.world_size:
                raise ConfigError(
                    f"{len(batch)} examples are too few for {self.world_size} ranks: add examples, or use fewer ranks"
                )
            rows_yielded += len(batch)
            self._begun, self._rows_yielded, self._is_over = True, rows_yielded, not ahead
            share = batch[slice(*rank_bounds(len(batch), self.rank, self.world_size))]
            yield self._read(share) if by_index else share
            batch = ahead and ahead + list(islice(rows, self._batch_size - len(ahead)))

    def _iterate_indices(self, first: int) -> Iterator[int]:
        """Yield the row numbers of this epoch from `first` on."""
        rows, key = len(self._data), make_key(self.seed, "examples", self.epoch)
        for start in range(first, rows, _CHUNK_ROWS):
            indices = np.arange(start, min(start + _CHUNK_ROWS, rows))
            yield from (permute(indices, rows, key) if self.shuffle else indices).tolist()

    def _read(self, indices: list[int]) -> list[Any]:
        # torch's DataLoader also prefers `__getitems__` if a dataset has it.
        getitems = getattr(self._data, "__getitems__", None)
        return [self._data[index] for index in indices] if getitems is None else list(getitems(indices))

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch or self._begun:
            self._go_to(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON, in rows over all ranks."""
        return {
            "format": _FORMAT,
            "epoch": self.epoch,
            "rows_given": self._rows_yielded,
            "is_over": self._is_over,
            "rows": len(self._data) if is_indexable(self._data) else None,
            "seed": self.seed,
            "shuffle": self.shuffle,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of the same rows and order."""
        current = self.state_dict()
        check_state(state, current, ("epoch", "rows_given"), _FORMAT, "manager of examples")
        check_same_options(state, {name: current[name] for name in ("rows", "seed", "shuffle")}, "manager")
        self._go_to(*((state["epoch"] + 1,) if state["is_over"] else (state["epoch"], state["rows_given"])))


def is_indexable(data: Any) -> bool:
    """Return whether examples can be read by number, as in a list."""
    # A torch IterableDataset inherits a method that raises.
    is_iterable = isinstance(data, IterableDataset) or is_instance_of(data, "datasets", "IterableDataset")
    return not is_iterable and hasattr(data, "__getitem__") and hasattr(data, "__len__")


def is_stream(data: Any) -> bool:
    """Return whether data is a source of batches."""
    return isinstance(data, BatchSource) and not is_instance_of(data, "datasets", "IterableDataset")


def is_encoded(data: Any) -> bool:
    """Return whether data is a dataset, its path, or a stream."""
    return isinstance(data, Dataset | Split | str | os.PathLike) or is_stream(data)


def process_examples(processors: Iterable[Callable[[Any], Any]], batch: Any, *, as_list: bool) -> Any:
    """Return processed examples, as a list or collated."""
    column = batch
    while isinstance(column, Mapping | tuple):
        column = next(iter(column.values() if isinstance(column, Mapping) else column))
    examples = batch if isinstance(batch, list) else [_select_row(batch, row) for row in range(len(column))]
    for processor in processors:
        examples = [processor(example) for example in examples]
    return examples if as_list else default_collate(examples)


def check_examples(data: Any, prefix: str = "data=") -> None:
    """Raise ConfigError if data is no collection of examples."""
    if isinstance(data, Iterator):
        raise ConfigError(f"{prefix}{data!r} is an iterator, which yields its examples only once: pass a list")
    if isinstance(data, DataLoader):
        raise ConfigError(f"{prefix}{data!r} forms batches itself: pass its dataset, with batch_size")
    if isinstance(data, list | tuple) and any(
        isinstance(one, Dataset | Split) or str(one).endswith(".dp") for one in data[:1]
    ):
        raise ConfigError(f"{prefix}{data!r:.200}: to read several datasets as one, pass open_dataset([...])")
    is_frame = hasattr(data, "iloc") or hasattr(data, "__arrow_c_stream__")
    if isinstance(data, Mapping | bytes) or is_frame or not (isinstance(data, Iterable) or is_indexable(data)):
        raise ConfigError(
            f"{prefix}{data!r:.80}: expected a split, a dataset or its path, a function that returns one of these, a "
            "stream, a dataset of torch, or an iterable of examples"
        )


def _select_row(batch: Any, row: int) -> Any:
    """Return one row of a batch, as a dict or tuple of values."""
    if isinstance(batch, Mapping):
        return {name: _select_row(value, row) for name, value in batch.items()}
    return tuple(_select_row(value, row) for value in batch) if isinstance(batch, tuple) else batch[row]


class PreparedData:
    """Results of functions of data, each called once for all its managers, on rank 0.

    Each call writes a frame in memory again, and the new dataset would replace the one that other ranks have open.
    """

    def __init__(self) -> None:
        # Keeping the function prevents another one from getting its id. None replaces a stream, because each manager
        # of each rank needs a separate one, and a torch dataset on several ranks, because it may not be picklable.
        self._results: dict[tuple[int, int], tuple[Any, Any]] = {}

    def call(self, all_data: Iterable[Any]) -> None:
        """Call the functions of data on this rank that take no rank."""
        for data in all_data:
            if _is_function(data) and not _rank_parameters(data):
                self._call_once(data)

    def result(self, data: Any, ranks: Ranks) -> Any:
        """Return the data of a manager, or of its function, which may take `rank` and `world_size`."""
        if not _is_function(data):
            return data
        rank_parameters = _rank_parameters(data)
        if rank_parameters:
            result = _check_result(data, data(**{name: getattr(ranks, name) for name in rank_parameters}))
            if not is_encoded(result):
                raise ConfigError(
                    f"data: {data!r} takes {rank_parameters[0]} and returned examples, which ranks share: leave it out"
                )
            return result
        result = run_on_first_rank(lambda: self._call_once(data))
        return _check_result(data, data()) if result is None else result

    def _call_once(self, function: Callable[[], Any]) -> Any:
        """Return a function's result; None if each rank calls it."""
        # Each access to a bound method creates a new object, with another id.
        key = id(getattr(function, "__self__", None)), id(getattr(function, "__func__", function))
        if key not in self._results:
            result = _check_result(function, function())
            is_per_rank = is_stream(result) or (isinstance(result, TorchDataset) and is_distributed())
            self._results[key] = function, None if is_per_rank else result
        return self._results[key][1]

    def __getstate__(self) -> dict[str, Any]:
        return {"_results": {}}  # ids are valid in one process only


def run_on_first_rank(make: Callable[[], Any]) -> Any:
    """Return the result of a function of rank 0 on all ranks; if it fails, DaskprepError on other ranks."""
    if not is_distributed():
        return make()
    sent: list[Any] = [None, None]
    try:
        if torch.distributed.get_rank() == 0:
            sent[0] = make()
    except BaseException as error:
        sent[1] = f"{type(error).__name__}: {error}"
        raise
    finally:
        # Also after an error, because other ranks wait for the broadcast.
        torch.distributed.broadcast_object_list(sent, src=0)
    if sent[1] is not None:
        raise DaskprepError(f"rank 0 failed to prepare the data: {sent[1]}")
    return sent[0]


def _is_function(data: Any) -> bool:
    return callable(data) and not is_encoded(data)


def _rank_parameters(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters
    return [name for name in ("rank", "world_size") if name in parameters]


def _check_result(function: Callable[..., Any], result: Any) -> Any:
    """Return a dataset or examples, or raise ConfigError."""
    if not is_encoded(result):
        check_examples(result, f"data: {function!r} returned ")
    return result
