"""Base class of loaders and streams: position in the epoch, audit of the rows yielded; ranks, and checks of states."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.distributed
from torch.utils.data import IterableDataset, Sampler

from daskprep.columns.display import Markup, format_count, join_names, settings_card
from daskprep.dataset.loader.batches import BatchBuilder
from daskprep.dataset.loader.groups import as_device
from daskprep.dataset.loader.media import Times
from daskprep.dataset.loader.order import Schedule
from daskprep.dataset.loader.pipeline import Pipeline, RowTally, verify_tally
from daskprep.dataset.options import SharedOptions, check_count, check_seed
from daskprep.errors import ConfigError, FormatVersionError
from daskprep.rows.metrics import prometheus_text

_MAX_OUTPUTS = 40  # in the HTML representation
# Classes of accelerate and transformers that distribute the batches of an IterableDataset over ranks.
_RESHARDING_CLASSES = ("DataLoaderDispatcher", "IterableDatasetShard")


@dataclass(frozen=True)
class Ranks:
    """Rank of this process, and number of ranks; None: from torch.distributed, otherwise 0 of 1."""

    rank: int | None = None
    world_size: int | None = None
    uneven: bool = False  # whether the shares of a batch may differ by one row

    def __post_init__(self) -> None:
        if (self.rank is None) != (self.world_size is None):
            raise ConfigError("pass both rank and world_size, or neither")

    def resolve(self, batch_size: int) -> tuple[int, int]:
        """Return rank and number of ranks as integers; raise ConfigError if the ranks cannot share a batch."""
        rank, world = self.rank, self.world_size
        if rank is None or world is None:
            distributed = torch.distributed
            rank, world = (distributed.get_rank(), distributed.get_world_size()) if is_distributed() else (0, 1)
        check_count("world_size", world, 1)
        if not isinstance(rank, int) or not 0 <= rank < world:
            raise ConfigError(f"rank={rank!r} of world_size={world}: ranks are 0 to {world - 1}")
        if batch_size < world or (batch_size % world and not self.uneven):
            uneven = ", or uneven=True for shares that differ by one row" if batch_size > world else ""
            raise ConfigError(
                f"batch_size={batch_size} is the total over all ranks, but not divisible by {world} ranks; use "
                f"batch_size={-(-batch_size // world) * world}{uneven}"
            )
        return rank, world

    def freeze(self, batch_size: int) -> Ranks:
        """Return ranks with resolved numbers for a spawned process, in which torch.distributed is not initialized."""
        return Ranks(*self.resolve(batch_size), self.uneven) if is_distributed() else self


def check_state(state: Any, names: Iterable[str], counts: Iterable[str], newest: int, kind: str = "loader") -> None:
    """Raise ConfigError unless a state has the keys `names`, and integers from 0 as "format" and `counts`.

    Raise FormatVersionError for a format above `newest`.
    """
    if not isinstance(state, Mapping) or not set(names) <= state.keys():
        raise ConfigError(f"not a state of a {kind}: {str(state)[:200]}; pass the result of its state_dict()")
    for name in ("format", *counts):
        check_count(f"state: {name}", "nothing" if state[name] is None else state[name], 0)
    if state["format"] > newest:
        raise FormatVersionError(f"the state has format {state['format']}, and this daskprep reads up to {newest}")


def check_same_options(state: Mapping[str, Any], options: Mapping[str, Any], kind: str = "loader") -> None:
    """Raise ConfigError for an option that differs in the state."""
    for name, value in options.items():
        if state[name] != value:
            origin = ", which depends on batch_size" if name == "streams" else ""
            raise ConfigError(
                f"the state was saved with {name}={state[name]!r}, but this {kind} has {value!r}{origin}: "
                f"create the {kind} with {name}={state[name]!r}, or restart the epoch with set_epoch"
            )


def is_distributed() -> bool:
    """Return whether torch.distributed is initialized."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def refuse_sharing(caller: FrameType) -> None:
    """Raise ConfigError if accelerate, in the stack frame `caller`, would distribute batches of a rank again."""
    # accelerate calls set_epoch before each iteration, on every rank. Only the stack shows a dataset its DataLoader.
    outer = caller.f_locals.get("self")
    if type(outer).__name__ not in _RESHARDING_CLASSES:
        return
    if (ranks := getattr(getattr(outer, "state", outer), "num_processes", 1)) > 1:
        raise ConfigError(
            f"accelerate would distribute batches over {ranks} ranks that this loader has already distributed, and "
            "lose rows. Do not wrap it in a DataLoader: pass the loader itself to accelerator.prepare(...), or return "
            "it from get_train_dataloader() of a Trainer, with loader(device=accelerator.device)"
        )


class PlaceholderSampler(Sampler[Any]):
    """Sampler with the attributes that tools read; iterating raises ConfigError, as the loader chooses its rows."""

    def __init__(self, rows: int, batch_size: int, *, drop_last: bool) -> None:
        self._rows = rows
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[Any]:
        """Raise ConfigError, with the alternatives to this sampler."""
        raise ConfigError(
            "this loader chooses its rows itself, so its sampler cannot be used in another DataLoader: iterate over "
            "the loader. To resume, use load_state_dict() instead of skip_first_batches(), and "
            "TrainingArguments(ignore_data_skip=True) for a Trainer"
        )


def refuse_collation(caller: FrameType) -> None:
    """Raise ConfigError if the stack frame `caller` belongs to a torch DataLoader that would collate batches."""
    # An IterableDataset cannot detect collation otherwise: torch 2 passes it to the fetcher, which calls iter.
    if caller.f_locals.get("auto_collation"):
        raise ConfigError(
            "this DataLoader would collate batches of batches. Iterate over the loader itself, and pass batch_size to "
            "loader(batch_size=...); for worker processes, use DataLoader(loader, batch_size=None, num_workers=...). A "
            "Trainer of Hugging Face returns the loader from get_train_dataloader()"
        )


class BatchIterator(IterableDataset[Any]):
    """Base class of iterables over the batches of epochs, with a position to resume from.

    A batch counts as yielded once the consumer has received it. If one object has several iterators, the one started
    last determines the position. The class has the attributes of a torch DataLoader that tools read.
    """

    dataset: Any
    _kind = "loader"  # in messages
    _state_format = 1
    _state_counts: tuple[str, ...] = ("epoch", "rows_given", "first_batch")  # keys of a state with integers from 0
    _optional_keys: frozenset[str] = frozenset()  # that states of older versions, or of other options, lack

    # Attributes of a torch DataLoader without worker processes: threads of this object create complete batches.
    num_workers = 0
    collate_fn = generator = multiprocessing_context = prefetch_factor = worker_init_fn = None
    pin_memory = persistent_workers = False
    pin_memory_device = ""
    timeout = 0
    in_order = True

    def __init__(self, options: SharedOptions) -> None:
        """Copy the options to attributes, and start at epoch 0; raise ConfigError for an invalid seed or device."""
        self.batch_size = options.batch_size
        self.shuffle = options.shuffle
        self.seed = check_seed(options.seed)
        self.drop_last = options.drop_last
        self.expand = options.expand
        self.row_ids = options.row_ids
        self.device = as_device(options.device)
        self.threads = options.threads
        self._ranks = Ranks(options.rank, options.world_size, options.uneven)
        self.epoch = 0  # the current epoch, or the next one
        self._rows_yielded = 0  # rows of the epoch, over all ranks
        self._begun = False
        self._current_iteration: object = None  # the iteration that determines the position
        self._audited: tuple[Schedule, range, RowTally] | None = None  # batches yielded in the latest epoch
        self._times = Times()

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError('batches have an order, but no positions: use next(iter(loader)), or dataset["train"][rows]')

    def __len__(self) -> int:
        """Return the number of batches of an iteration, the same on every rank; raise TypeError without an end."""
        refuse_sharing(sys._getframe(1))
        return self._count_batches()

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the remaining batches of the epoch, or of the next one if this one has begun.

        A worker process of a DataLoader iterates over every n-th batch; a stream refuses workers.
        """
        refuse_collation(sys._getframe(1))
        self._begin_iteration()
        return self._iterate()

    def _begin_iteration(self) -> None:
        """Move to the next epoch if this one has begun."""
        if self._begun:
            self._go_to(self.epoch + 1)

    def _iterate(self) -> Iterator[Any]:
        raise NotImplementedError

    def _count_batches(self) -> int:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of `state_dict`, on any number of ranks that fits the batch, with any number of threads.

        A state that was saved after the last batch of an epoch resumes with the next epoch. In a stream, the current
        window is encoded again, and a state that was saved after the last epoch starts another iteration of `epochs`
        epochs. A mix accepts other weights and more sources; counts then start again.
        """
        own = self.state_dict()
        check_state(state, own.keys() - self._optional_keys, self._state_counts, self._state_format, self._kind)
        self._check_origin(state)
        names = [name for name in ("streams", "seed", "shuffle") if name in own]
        check_same_options(state, {name: own[name] for name in names}, self._kind)
        self._resume(state, own)

    def _check_origin(self, state: Mapping[str, Any]) -> None:
        """Raise ConfigError if a state is of other rows."""
        raise NotImplementedError

    def _resume(self, state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Move to the position of a state, or raise ConfigError if it cannot continue `own`, the current state."""
        raise NotImplementedError

    def _check_rows_yielded(self, rows: int) -> None:
        if rows > self._rows:
            raise ConfigError(f"state: rows_given={rows}: an epoch has {self._rows} rows")

    def _check_rows_left(self, rows: int) -> None:
        """Raise ConfigError if `rows`, the remaining rows of the epoch, are less than one for each rank but not 0."""
        if 0 < rows < self.world_size:
            raise ConfigError(
                f"{rows} rows are left of epoch {self.epoch}, too few for {self.world_size} ranks: some would have "
                f"none; continue with world_size={rows} or less, or with set_epoch({self.epoch + 1})"
            )

    @property
    def rank(self) -> int:
        return self._resolve_ranks()[0]

    @property
    def world_size(self) -> int:
        return self._resolve_ranks()[1]

    @property
    def sampler(self) -> PlaceholderSampler:
        """Placeholder for a sampler, which cannot be iterated over."""
        return PlaceholderSampler(self._rows, self.batch_size, drop_last=self.drop_last)

    batch_sampler = sampler

    @property
    def _rows(self) -> int:
        """Number of rows of an epoch."""
        raise NotImplementedError

    def _resolve_ranks(self) -> tuple[int, int]:
        """Return rank and number of ranks; raise ConfigError if they cannot share a batch, or outnumber the rows."""
        rank, world = self._ranks.resolve(self.batch_size)
        if (rows := self._rows) < world:
            raise ConfigError(
                f"{rows} rows are too few for {world} ranks: some would have none; use world_size={rows} or less"
            )
        return rank, world

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration yields, from its start; the epoch of a loaded state is resumed."""
        refuse_sharing(sys._getframe(1))
        check_count("epoch", epoch, 0)
        if epoch != self.epoch or self._begun:
            self._go_to(epoch)

    def _go_to(self, epoch: int, rows_yielded: int = 0) -> None:
        self.epoch, self._rows_yielded = epoch, rows_yielded
        self._begun, self._current_iteration = False, None

    def _iterate_pipeline(self, pipeline: Pipeline, builder: BatchBuilder, iteration: object) -> Iterator[Any]:
        """Yield and tally the batches of a pipeline; advance the position if `iteration` is current."""
        self._times = pipeline.times
        schedule, batches, tally, yielded = None, range(0), RowTally(), 0
        for window, tensors in pipeline.transfer.move_windows(pipeline):
            if window.schedule is not schedule:
                schedule, batches, tally, yielded = window.schedule, window.epoch, RowTally(), 0
            for batch, batch_tally in builder(window, tensors, schedule.blocks.epoch, pipeline.arrays):
                yielded += 1
                tally.add(batch_tally)
                self._audited = (schedule, batches[:yielded], tally)
                if self._current_iteration is iteration:
                    self._begun = True
                    self._advance(schedule, batches[:yielded][-1] + 1)
                yield batch
        if schedule is not None:
            self._audited = (schedule, batches, tally)

    def _advance(self, schedule: Schedule, stop: int) -> None:
        """Set the position for `state_dict` to after the batches of the schedule with numbers below `stop`."""
        self.epoch, self._rows_yielded = schedule.blocks.epoch, schedule.rows_yielded(stop)

    def audit(self) -> dict[str, int]:
        """Verify that the batches of the latest epoch contained the expected rows; return the number of both.

        Raises
        ------
        CorruptDatasetError
            A row was missed, or yielded too often.
        """
        return {"rows": 0, "batches": 0} if self._audited is None else verify_tally(*self._audited)

    def stats(self) -> dict[str, float]:
        """Return where the last iteration spent its time, in seconds summed over threads, and what it did."""
        return {name: round(value, 4) for name, value in dataclasses.asdict(self._times).items()}

    def to_prometheus(self) -> str:
        """Return `stats` in the text format of Prometheus, as the gauge ``daskprep_loader`` with the rank."""
        samples = [({"name": name, "rank": self.rank}, value) for name, value in self.stats().items()]
        return prometheus_text("daskprep_loader", "gauge", "Seconds and counts of the last iteration.", samples)

    def _card(self, title: str, order: str, outputs: list[str], **more: str) -> Markup:
        """Return a card of the settings as HTML."""
        settings = {
            "batch_size": f"{self.batch_size:,}{' over all ranks' * (self.world_size > 1)}",
            "order": order,
            "rank": f"{self.rank} of {self.world_size}",
            "epoch": f"{self.epoch}, {format_count(self._rows_yielded, 'row')} yielded",
            "device": "in memory" if self.device is None else str(self.device),
            "outputs": join_names(outputs, _MAX_OUTPUTS),
        }
        return settings_card(settings | more, title)
