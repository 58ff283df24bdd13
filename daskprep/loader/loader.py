"""Batches of a split for torch: exact, elastic, resumable."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from daskprep.dataset import Split
from daskprep.display.tables import settings_card
from daskprep.display.words import count, printable
from daskprep.errors import ConfigError, CorruptDatasetError, hints_parameters, warn
from daskprep.loader.audit import GivenRows
from daskprep.loader.augment import check_augment
from daskprep.loader.batches import Finish, Form, chosen_names, expansions, is_one, target_outputs, weight_output
from daskprep.loader.cached import CachedBlocks, Caching, CopiedBlocks, prefetch_of
from daskprep.loader.device import Mover, as_device, stream_of
from daskprep.loader.files import FileBlocks, LoaderTimes
from daskprep.loader.groups import Buffers, Group, groups_of
from daskprep.loader.joining import Documents, PackingPosition
from daskprep.loader.media import Medium
from daskprep.loader.order import LEAST_STREAMS, MOST_STREAMS, Blocks, Schedule, default_streams
from daskprep.loader.packing import Packer, Packing, check_options, rows_read
from daskprep.loader.packing import check_state as check_packed
from daskprep.loader.pipeline import Pipeline, Settings
from daskprep.loader.sampling import Sampling, sampling_of
from daskprep.loader.shell import BatchIterator, refuse_collation, refuse_sharing
from daskprep.loader.source import BlockSource
from daskprep.loader.standing import Ranks, check_count, check_flags, check_left, check_same, check_seed, check_state
from daskprep.permutation import Integers
from daskprep.storage import Output

FORMAT = 1
AHEAD_BYTES = 256_000_000
_DIGEST_DIGITS = 16
# Of each stream: cells are small, and are read long before the rows of their blocks can be decoded.
_MOST_CELL_BLOCKS = 2


class Loader(BatchIterator):
    """Batches of a split as dicts of tensors, prefetched by threads.

    An epoch yields every row exactly once, in an order that depends on seed and epoch alone. The global batches are the
    same for any number of ranks, any number of workers, and any amount of prefetching. Iterating
    again yields the next epoch. Worker processes of a torch DataLoader count epochs only if they are persistent;
    otherwise call `set_epoch` before each epoch. To save their state, use torchdata's StatefulDataLoader rather than
    this object.

    Parameters
    ----------
    split : Split
        The rows.
    batch_size : int
        Rows of a batch over all ranks together; each rank gets ``batch_size / world_size`` of them (see `uneven`).
    shuffle : bool
        Whether to shuffle rows in each epoch. False: the order on disk.
    seed : int
        Seed of the shuffle.
    streams : int or None
        Number of streams of shuffled rows that are mixed in a batch; each keeps a block in memory. None: 16, or
        another divisor of the batch size from 8 to 256, or 16 if there is none. More than 64 give a warning.
    drop_last : bool
        Whether to drop rows that do not fill a batch. Otherwise they form a smaller batch, shared evenly. If there are
        fewer rows than streams or ranks (without `shuffle`, than ranks), they join the last batch, so that no rank is
        left empty.
    columns : iterable of str or None
        Outputs that batches hold. None: all.
    targets : str, iterable of str or None
        Outputs that are separated: batches are then ``(inputs, target)``, or ``(inputs, dict of targets)`` for several.
        None: the dataset's `targets` that are among `columns`. ``()``: no targets. If the dataset has weights, batches
        are ``(inputs, target, weights)``; without targets, weights are in the batch under the name of their column.
    expand : bool
        Whether to expand compact rows to what a model reads (ids int64, sets multi-hot, labels bool). False: as on
        disk.
    row_ids : bool
        Whether batches hold "row_id", the number of each row in the source.
    transform : callable or None
        Function applied to every batch, last.
    rank, world_size : int or None
        Share of each batch for distributed training (DDP). None: taken from torch.distributed if it runs, otherwise 0
        of 1.
    uneven : bool
        Whether ranks may share a batch that they do not divide: their shares then differ by one row. False: an error.
    device : str, torch.device or None
        Device of the tensors; a batch is copied while the previous one is used. None: main memory.
    prefetch_size : int or None
        Blocks prefetched for each stream; 0 reads without prefetching, in the calling thread. None: the largest number
        that image and audio features ask for, or as many as fit in `prefetch_bytes`.
    prefetch_bytes : int or None
        Bytes of prefetched blocks, besides the current blocks of the streams. None: 256 MB. Images and audio that are
        decoded per batch count with their stored size.
    threads : int or None
        Threads that read and decode. None: up to 4 for local files and 48 for remote ones; if media are decoded, one
        per core, up to 8 for images and 16 for audio, and 32 if their files are remote.
    balance : Oversample, Undersample or None
        How to sample the rows of each class in an epoch, against class imbalance. Seed and epoch choose the rows.
    weights : mapping or None
        Alternative to `balance`: ``{"sold": {"yes": 3.0}}`` yields rows of that class three times as often.
    overfit_batches : int or None
        Yield only this many batches of epoch 0, in every epoch, to check that a model can overfit them.
    pack : Packing or None
        Join the documents of one output into rows of one length, which `batch_size` then counts.
    cache : bool or None
        Whether to cache decoded images and audio on disk, block by block, for later epochs, and the blocks of a
        dataset in an object store if `cache_dir` is on this machine. None: only images and audio with
        ``mode="lazy_cached"``.
    cache_dir : str, path or None
        Folder of the cache, which all ranks of a machine may share. None: within the dataset, which must then be
        writable.
    cache_limit : int or None
        Maximum bytes of the cache; what does not fit is decoded, or read from the store, again in each epoch.
    augment : mapping or None
        Random augmentation of images by output: ``{"photo": [RandomCrop(24, padding=4), Mirror()]}``. It depends on
        seed, epoch and row, and is applied before `expand`. The key ``("photo", "mask")`` augments both outputs alike.

    Examples
    --------
    >>> import tempfile, pandas as pd
    >>> import daskprep as dp
    >>> frame = pd.DataFrame({"price": [1.0, 2.0, 3.0], "sold": [True, False, True]})
    >>> prep = dp.Preprocessor({"price": dp.Number(normalization=None), "sold": "binary"})
    >>> train = prep.fit_write(frame, tempfile.mkdtemp() + "/listings.dp")["train"]
    >>> for inputs, sold in train.loader(batch_size=2, shuffle=False, targets="sold"):
    ...     print(inputs["price"].tolist(), sold.tolist())
    [1.0, 2.0] [True, False]
    [3.0] [True]
    """

    @hints_parameters
    def __init__(
        self,
        split: Split,
        batch_size: int = 1024,
        *,
        shuffle: bool = True,
        seed: int = 0,
        streams: int | None = None,
        drop_last: bool = False,
        columns: Iterable[str] | None = None,
        targets: str | Iterable[str] | None = None,
        expand: bool = True,
        row_ids: bool = False,
        transform: Callable[[Any], Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: bool = False,
        device: str | torch.device | None = None,
        prefetch_size: int | None = None,
        prefetch_bytes: int | None = None,
        threads: int | None = None,
        balance: Any = None,
        weights: Mapping[str, Mapping[Any, float]] | None = None,
        overfit_batches: int | None = None,
        pack: Packing | None = None,
        cache: bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_limit: int | None = None,
        augment: Mapping[Any, Any] | None = None,
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("streams", streams, 1),
            ("prefetch_size", prefetch_size, 0),
            ("prefetch_bytes", prefetch_bytes, 0),
            ("threads", threads, 1),
            ("overfit_batches", overfit_batches, 1),
            ("cache_limit", cache_limit, 1),
        ):
            check_count(name, value, least)
        check_flags(shuffle=shuffle, drop_last=drop_last, expand=expand, row_ids=row_ids, uneven=uneven)
        self.split = self.dataset = split
        self.batch_size = batch_size
        self.shuffle = shuffle and overfit_batches is None
        self.seed = check_seed(seed)
        self._read_rows = batch_size if pack is None else rows_read(batch_size, streams)
        self.streams = (streams or default_streams(self._read_rows)) if self.shuffle else 1
        if streams is None and self.streams > MOST_STREAMS:
            warn(
                f"batch_size={batch_size} has no divisor from {LEAST_STREAMS} to {MOST_STREAMS}, so that a batch mixes "
                f"rows of {self.streams} streams, each of which keeps a block in memory; give "
                f"batch_size={-(-batch_size // 16) * 16} or streams=16 for less memory, or streams={self.streams} to "
                "silence this"
            )
        self.drop_last = drop_last
        self.expand = expand
        self.row_ids = row_ids
        self.device = as_device(device)
        self.prefetch_size = prefetch_size
        self.prefetch_bytes = prefetch_bytes
        self.threads = threads
        self.overfit_batches = overfit_batches
        self.names = chosen_names(columns, split.columns, split.shape)
        if targets is None and pack is None:
            dataset = split.dataset
            wanted = target_outputs(dataset.targets, dataset.features, self.names)
        else:
            wanted = chosen_names(targets or (), split.columns, split.shape)
        self.names += [target for target in wanted if target not in self.names]
        weight = weight_output(split.dataset.features, self.names)
        self._form = Form(tuple(wanted), is_one(targets, wanted), transform, weight)
        self._caching = Caching.of(cache, cache_dir, cache_limit)
        self._caching.prepare(split, [split.output(name) for name in self.names])
        shapes = {name: (split.output(name).dtype, split.shape(name)) for name in self.names}
        self._augment = check_augment(augment, shapes, {} if augment is None else split.dataset.learned)
        self._sampling: Sampling | None = sampling_of(split, balance, weights, self.seed)
        self._ranks = Ranks(rank, world_size, uneven)
        self._packer: Packer | None = None
        if pack is not None:
            check_options(
                columns=columns is not None,
                targets=targets is not None,
                row_ids=row_ids,
                expand=not expand,
                overfit_batches=overfit_batches is not None,
                augment=augment is not None,
            )
            self._packer = Packer(split, pack, batch_size, drop_last=drop_last)
        self._place = PackingPosition()
        self._first_batch = 0
        self._buffers = Buffers()
        self._reading: Settings | None = None  # of the last iteration
        self._position()

    def __getstate__(self) -> dict[str, Any]:
        ranks = self._ranks.fixed(self.batch_size)
        return {**self.__dict__, "_running": None, "_buffers": Buffers(), "_ranks": ranks}

    def _go_to(self, epoch: int, rows_given: int = 0, first_batch: int = 0) -> None:
        super()._go_to(epoch, rows_given)
        self._first_batch, self._place = first_batch, PackingPosition()

    @property
    def _rows(self) -> int:
        return len(self.split) if self._sampling is None else int(self._sampling.sizes.sum())

    def _schedule(self, given: int = 0) -> Schedule:
        rank, world = self._position()
        epoch = 0 if self.overfit_batches is not None else self.epoch
        sizes = np.diff(self._starts) if self._sampling is None else self._sampling.sizes
        block_rows = self.split.layout.block_rows
        blocks = Blocks(sizes, block_rows, self.seed, epoch, self.shuffle, self._sampling, self._starts[:-1])
        # Packed rows are dropped, not documents.
        drop_last = self.drop_last and self._packer is None
        return Schedule(blocks, self._read_rows, self.streams, rank, world, drop_last, given)

    @cached_property
    def _starts(self) -> Integers:
        """The first row of each block, and where the last one ends."""
        return self.split.layout.starts(self.split.name)

    def __len__(self) -> int:
        """Return the number of batches of an epoch, the same on every rank."""
        refuse_sharing(sys._getframe(1))
        if self._packer is not None:
            return self._packer.count(self._schedule())
        batches = len(self._schedule())
        return batches if self.overfit_batches is None else min(batches, self.overfit_batches)

    def __iter__(self) -> Iterator[Any]:
        refuse_collation(sys._getframe(1))
        if self._begun:
            self._go_to(self.epoch + 1)
        worker = get_worker_info()
        step, offset = (1, 0) if worker is None else (worker.num_workers, worker.id)
        if self._packer is not None:
            self._begun = True
            return self._packed(self._packer, self._schedule(), step, offset)
        base = 0 if self.overfit_batches is not None else self._rows_given
        schedule = self._schedule(base)
        if not self.drop_last:
            check_left(self._rows - base, schedule.world_size, self.epoch)
        total = len(schedule) if self.overfit_batches is None else min(len(schedule), self.overfit_batches)
        first = self._first_batch + (offset - self._first_batch) % step
        batches = range(first, total, step)
        self._running = schedule
        # StatefulDataLoader makes iterators that it asks for nothing: they leave the epoch to the next one.
        self._begun = not batches
        return self._batches(schedule, batches)

    def _batches(self, schedule: Schedule, batches: range) -> Iterator[Any]:
        mover = Mover(self.device)
        pipeline = self._pipeline(self._groups(), schedule, batches, mover)
        dataset, names = self.split.dataset, [output.name for output in self._outputs]
        expand = expansions(dataset.features, dataset.learned, self.names if self.expand else ())
        finish = Finish(names, self.seed, self._augment, expand, self._form)
        try:
            yield from self._iterate(pipeline, mover, finish, schedule)
        finally:
            pipeline.close()

    @property
    def _outputs(self) -> list[Output]:
        """The outputs that are read."""
        if self._packer is not None:
            return [self._packer.output]
        return [self.split.output(name) for name in dict.fromkeys([*self.names, *(["row_id"] * self.row_ids)])]

    def _groups(self) -> list[Group]:
        return groups_of(self._outputs, self._caching.names(self.split, self._outputs))

    def _pipeline(self, groups: Sequence[Group], schedule: Schedule, batches: range, mover: Mover) -> Pipeline:
        self._reading = settings = self._settings_for(groups, schedule)
        times = LoaderTimes()
        lanes = len(schedule.lanes)
        source: BlockSource[Any] = FileBlocks(
            self.split, groups, times, self._buffers, budget=lanes + settings.ahead_blocks, spare=2 * lanes
        )
        copies = self._caching.copies(self.split)
        if copies is not None:
            source = CopiedBlocks(source, self.split, groups, copies, self._caching.limit)
        media = [Medium(group, self.split.dataset.decoder(group.name)) for group in groups if group.is_cells]
        cached = [one for one in media if one.group.is_cached]
        if cached:
            caches = {
                split: [(one, self._caching.cache(split, one.group.name)) for one in cached]
                for split in self.split.joined
            }
            # Workers, and ranks where there are fewer streams, decode some rows of every block.
            ranks = -(-schedule.world_size // schedule.streams)
            sharer = schedule.rank % ranks * batches.step + batches.start % batches.step
            source = CachedBlocks(source, self.split, caches, self._buffers, sharer, ranks * batches.step)
        return Pipeline(
            source,
            groups,
            media,
            [(schedule, batches)],
            settings,
            times=times,
            make_array=mover.make_array,
            begin_thread=mover.begin_thread,
            buffers=self._buffers,
        )

    def _packed(self, packer: Packer, schedule: Schedule, step: int, offset: int) -> Iterator[Any]:
        """Give batches of packed rows; a worker reads all rows and gives every so many-th batch."""
        [group] = groups = self._groups()
        place = self._place
        unread = range(place.read, len(schedule))
        stream_of(self.device)
        pipeline = self._pipeline(groups, schedule, unread, Mover(None))
        self._times = pipeline.times
        tally = GivenRows()
        self._audited = (schedule, unread[:0], tally)

        def documents() -> Iterator[Documents]:
            for window in pipeline:
                tally.join(*window.tallies)
                self._audited = (schedule, range(unread.start, window.batches[-1] + 1), tally)
                yield window.arrays[group][: len(window.rows)], window.sizes

        base, known = self._rows_given // self.batch_size, self._first_batch
        # Ranks have different numbers of tokens: all stop with the one that has the fewest.
        stop = max(0, packer.count(schedule) - base - known) if schedule.world_size > 1 else None
        batches = enumerate(packer.batches(documents(), place, schedule), start=known)
        try:
            for number, (arrays, reached) in islice(batches, (offset - known) % step, stop, step):
                if get_worker_info() is not None:
                    self._first_batch = number + 1
                else:
                    self._rows_given, self._first_batch = (base + number + 1) * self.batch_size, 0
                self._place = reached
                yield self._form(packer.tensors(arrays, self.device))
        finally:
            pipeline.close()

    def _advance(self, schedule: Schedule, stop: int) -> None:
        if self.overfit_batches is not None:
            return
        if get_worker_info() is not None:
            # Each worker goes on with its own batches: they are counted from where all of them began.
            self._rows_given, self._first_batch = schedule.given, stop
        else:
            self._rows_given, self._first_batch = schedule.rows_given(stop), 0

    def _settings_for(self, groups: Sequence[Group], schedule: Schedule) -> Settings:
        size = self.prefetch_size
        if size is None and self.prefetch_bytes is None:
            size = prefetch_of(self.split, groups)
        if size == 0:
            return Settings(0, 0)
        undecoded = self._caching.undecoded(self.split, groups)
        local = self.split.is_local or (not undecoded and self._caching.all_copied(self.split, groups))
        threads = self.threads or max(
            Settings.threads_for(local=local),
            self._caching.threads(self.split, undecoded),
        )
        lanes = len(schedule.lanes)
        if size is not None:
            return Settings(size * lanes, threads, decodes=bool(undecoded), local=local)
        block_bytes = max(1, sum(group.resident_bytes for group in groups) * self.split.layout.block_rows)
        ahead = (AHEAD_BYTES if self.prefetch_bytes is None else self.prefetch_bytes) // block_bytes
        if any(group.is_cells for group in groups):
            ahead = min(ahead, _MOST_CELL_BLOCKS * lanes)
        return Settings(max(1, ahead), threads, decodes=bool(undecoded), local=local)

    def stats(self) -> dict[str, float]:
        """Return where the last iteration spent its time, in seconds summed over threads, and what it did.

        `prefetch_blocks` and `threads` are what this loader uses, as its options or defaults say.
        """
        return {**super().stats(), **self._prefetching()}

    def _prefetching(self) -> dict[str, int]:
        settings = self._reading or self._settings_for(self._groups(), self._schedule())
        return {"prefetch_blocks": settings.ahead_blocks, "threads": settings.threads}

    @property
    def _digest(self) -> str:
        return self.split.dataset.digest[:_DIGEST_DIGITS]

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loader as JSON values; it counts batches yielded, not batches prefetched."""
        packed = {} if self._packer is None else {"packing": self._packer.state(self._place, self._schedule())}
        return {
            "format": FORMAT,
            "version": self.split.dataset.version,
            "digest": self._digest,
            "split": self.split.name,
            "seed": self.seed,
            "epoch": self.epoch,
            "rows_given": self._rows_given,
            "first_batch": self._first_batch,
            "streams": self.streams,
            "shuffle": self.shuffle,
            "sampling": None if self._sampling is None else self._sampling.digest,
            **packed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state, on any number of ranks that fits the batch, and with any number of threads.

        A state that was taken after the last batch resumes with the next epoch.
        """
        self._check_state(state)
        epoch, given = state["epoch"], state["rows_given"]
        if self._packer is not None:
            self._go_to(epoch, given, state["first_batch"])
            batches = given // self.batch_size + self._first_batch
            self._place = self._packer.place_in(state["packing"], self._schedule(), batches)
        elif given == self._rows or not len(self._schedule(given)):
            self._go_to(epoch + 1)
        else:
            self._go_to(epoch, given, state["first_batch"])

    def _check_state(self, state: Mapping[str, Any]) -> None:
        # States of older versions have no digest: the version must do.
        names = self.state_dict().keys() - {"packing", "digest"}
        check_state(state, names, ("epoch", "rows_given", "first_batch"), FORMAT)
        version, digest = self.split.dataset.version, state.get("digest", self._digest)
        if (state["version"], digest, state["split"]) != (version, self._digest, self.split.name):
            raise CorruptDatasetError(
                f'the state belongs to split "{state["split"]}" of version {state["version"]} (digest {digest}), but '
                f'this is "{self.split.name}" of version {version} (digest {self._digest}): rows would be skipped or '
                "repeated; open the dataset that the state was saved for, or restart the epoch"
            )
        check_packed(self._packer, state.get("packing"), self._schedule())
        check_same(state, {name: getattr(self, name) for name in ("streams", "seed", "shuffle")})
        if state["sampling"] != self.state_dict()["sampling"]:
            raise ConfigError(
                "the state was saved with a different balance= or weights=, which yields other rows: use the same "
                "ones, or restart the epoch"
            )
        if self._packer is None and (given := state["rows_given"]) > self._rows:
            raise ConfigError(f"state: rows_given={given}: an epoch has {self._rows} rows")

    def __repr__(self) -> str:
        return f"Loader({self.split!r}, batch_size={self.batch_size}, epoch={self.epoch})"

    def _repr_html_(self) -> str:
        order = f"shuffled, {count(self.streams, 'stream')}, seed {self.seed}" if self.shuffle else "as on disk"
        settings = self._settings(order, self.names)
        blocks, threads = self._prefetching().values()
        settings["prefetch"] = f"{count(blocks, 'block')}, {count(threads, 'thread')}" if threads else "none"
        if self.overfit_batches is not None:
            settings["overfit_batches"] = f"{self.overfit_batches:,}"
        rows, url = count(len(self.split), "row"), printable(self.split.dataset.url)
        return settings_card(settings, f'Loader of split "{self.split.name}" of {url}: {rows}')
