"""What a loader and a stream share: which rank they are for, where they stand, and the proof of what they gave."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch.utils.data import IterableDataset, Sampler

from daskprep.display.words import format_count, join_names
from daskprep.errors import ConfigError
from daskprep.loader.audit import RowTally, verify_tally
from daskprep.loader.batches import BatchBuilder
from daskprep.loader.device import DeviceTransfer
from daskprep.loader.media import Times
from daskprep.loader.order import Schedule
from daskprep.loader.pipeline import Pipeline
from daskprep.loader.ranks import Ranks, check_count

_MAX_OUTPUTS = 40  # that a notebook shows


# Names of the classes of accelerate and transformers that share out the batches of an IterableDataset among ranks.
_RESHARDING_CLASSES = ("DataLoaderDispatcher", "IterableDatasetShard")


def refuse_sharing(caller: FrameType) -> None:
    """Raise ConfigError if what sets an epoch would share out the share of a rank once more, and so lose rows."""
    # accelerate sets the epoch before each iteration, on every rank. A dataset is not told otherwise what is around it.
    outer = caller.f_locals.get("self")
    if type(outer).__name__ not in _RESHARDING_CLASSES:
        return
    if (ranks := getattr(getattr(outer, "state", outer), "num_processes", 1)) > 1:
        raise ConfigError(
            f"accelerate would share out batches among {ranks} ranks that this loader has shared out already, and lose "
            "rows. Do not wrap it in a DataLoader: pass the loader itself to accelerator.prepare(...), or return it "
            "from get_train_dataloader() of a Trainer, with loader(device=accelerator.device)"
        )


class PlaceholderSampler(Sampler[Any]):
    """The samplers of a loader, which chooses its rows itself: no other DataLoader can be made of them."""

    def __init__(self, rows: int, batch_size: int, *, drop_last: bool) -> None:
        self._rows = rows
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[Any]:
        raise ConfigError(
            "this loader chooses its rows itself, so that no other DataLoader can be made of its sampler: iterate over "
            "the loader. To resume, use load_state_dict() instead of skip_first_batches(), and "
            "TrainingArguments(ignore_data_skip=True) for a Trainer"
        )


def refuse_collation(caller: FrameType) -> None:
    """Raise ConfigError if what iterates is a DataLoader of torch that would make batches of batches."""
    # An IterableDataset is not told: torch 2 has it as an argument of the fetcher, which calls iter.
    if caller.f_locals.get("auto_collation"):
        raise ConfigError(
            "this DataLoader would collate batches of batches. Iterate over the loader itself, and pass batch_size to "
            "loader(batch_size=...); for worker processes, use DataLoader(loader, batch_size=None, num_workers=...). A "
            "Trainer of Hugging Face returns the loader from get_train_dataloader()"
        )


class BatchIterator(IterableDataset[Any]):
    """Gives the batches of epochs, and knows at any time which were given.

    A batch counts as given once the consumer has it. Of several iterators of one object, the one begun last tells
    where it stands. It has the attributes of a DataLoader, which tools look for.
    """

    batch_size: int
    dataset: Any
    device: torch.device | None
    drop_last: bool
    _ranks: Ranks

    # Those of a torch DataLoader without workers: threads of this object read and decode, and make whole batches.
    num_workers = 0
    collate_fn = generator = multiprocessing_context = prefetch_factor = worker_init_fn = None
    pin_memory = persistent_workers = False
    pin_memory_device = ""
    timeout = 0
    in_order = True

    def __init__(self) -> None:
        self.epoch = 0  # that is given, or that comes next
        self._rows_yielded = 0  # of the epoch
        self._begun = False
        self._current_iteration: object = None  # the iteration that tells where this stands
        self._audited: tuple[Schedule, range, RowTally] | None = None
        self._times = Times()

    @property
    def rank(self) -> int:
        return self._resolve_ranks()[0]

    @property
    def world_size(self) -> int:
        return self._resolve_ranks()[1]

    @property
    def sampler(self) -> PlaceholderSampler:
        """What stands for the samplers of a DataLoader; it cannot be iterated over."""
        return PlaceholderSampler(self._rows, self.batch_size, drop_last=self.drop_last)

    @property
    def batch_sampler(self) -> PlaceholderSampler:
        """The same as `sampler`."""
        return self.sampler

    @property
    def _rows(self) -> int:
        """Rows of an epoch."""
        raise NotImplementedError

    def _resolve_ranks(self) -> tuple[int, int]:
        """Return rank and number of ranks, or raise ConfigError if they cannot share the rows."""
        rank, world = self._ranks.resolve(self.batch_size)
        if (rows := self._rows) < world:
            raise ConfigError(
                f"{rows} rows are too few for {world} ranks: some would have none; give world_size={rows} or less"
            )
        return rank, world

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration start with this epoch, or resume it if a state was loaded."""
        refuse_sharing(sys._getframe(1))
        check_count("epoch", epoch, 0)
        if epoch != self.epoch or self._begun:
            self._go_to(epoch)

    def _go_to(self, epoch: int, rows_yielded: int = 0) -> None:
        self.epoch, self._rows_yielded = epoch, rows_yielded
        self._begun, self._current_iteration = False, None

    def _iterate_pipeline(
        self, pipeline: Pipeline, transfer: DeviceTransfer, builder: BatchBuilder, iteration: object
    ) -> Iterator[Any]:
        self._times = pipeline.times
        schedule, batches, tally, yielded = None, range(0), RowTally(), 0
        for window, tensors in transfer.move_windows(pipeline):
            if window.schedule is not schedule:
                schedule, batches, tally, yielded = window.schedule, window.epoch, RowTally(), 0
            for batch, batch_tally in builder(window, tensors, schedule.blocks.epoch):
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
        """Note that the batches of an epoch up to some number were given, so that `state_dict` tells it."""
        self.epoch, self._rows_yielded = schedule.blocks.epoch, schedule.rows_yielded(stop)

    def audit(self) -> dict[str, int]:
        """Prove that the batches of the latest epoch held the rows that the order says.

        Raises
        ------
        CorruptDatasetError
            A row was missed, or yielded too often.
        """
        return {"rows": 0, "batches": 0} if self._audited is None else verify_tally(*self._audited)

    def stats(self) -> dict[str, float]:
        """Return where the last iteration spent its time, in seconds summed over threads, and what it did."""
        return {name: round(value, 4) for name, value in dataclasses.asdict(self._times).items()}

    def _describe_settings(self, order: str, outputs: list[str]) -> dict[str, str]:
        return {
            "batch_size": f"{self.batch_size:,}{' over all ranks' * (self.world_size > 1)}",
            "order": order,
            "rank": f"{self.rank} of {self.world_size}",
            "epoch": f"{self.epoch}, {format_count(self._rows_yielded, 'row')} given",
            "device": "in memory" if self.device is None else str(self.device),
            "outputs": join_names(outputs, _MAX_OUTPUTS),
        }
