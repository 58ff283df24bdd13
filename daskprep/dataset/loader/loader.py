"""The loader: batches of a split as tensors, exact, elastic and resumable."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from torch.utils.data import get_worker_info

from daskprep.columns.display import escape_unprintable, format_count
from daskprep.columns.permutation import Integers
from daskprep.dataset import Split
from daskprep.dataset.loader.batch_iterator import check_same_options
from daskprep.dataset.loader.batches import SOURCE_ID, BatchBuilder, bind_augment, make_expanders, select_outputs
from daskprep.dataset.loader.by_length import LengthSchedule, TokenBatches, TokenSchedule
from daskprep.dataset.loader.cached import CachedBlocks, CachePolicy, CopiedBlocks, DeviceBlocks, max_prefetch_size
from daskprep.dataset.loader.groups import Buffers, DeviceTransfer, Group, current_gpu, group_outputs, make_cuda_stream
from daskprep.dataset.loader.lengths import Trimming, find_padding, read_lengths
from daskprep.dataset.loader.media import Medium
from daskprep.dataset.loader.memory import LoaderMemory
from daskprep.dataset.loader.order import MAX_STREAMS, MIN_STREAMS, EpochBlocks, Schedule, default_streams
from daskprep.dataset.loader.pipeline import Pipeline, RowTally, Settings
from daskprep.dataset.loader.replay import RecordedIterator
from daskprep.dataset.loader.sampling import Sampling, make_sampling
from daskprep.dataset.loader.source import BlockSource, FileBlocks, LoaderTimes
from daskprep.dataset.options import BatchOptions, SharedOptions, check_count, list_options
from daskprep.errors import ConfigError, warn
from daskprep.features.media import find_regions
from daskprep.sources.balance import Balance
from daskprep.storage import Output

if TYPE_CHECKING:
    from daskprep.dataset.loader.packing import Documents, Packer, Packing, PackingPosition

AHEAD_BYTES = 256_000_000
_DIGEST_DIGITS = 16
# Per stream. Encoded media are small, so that `AHEAD_BYTES` would read blocks long before their rows can be decoded.
_MAX_CELL_BLOCKS = 2


class Loader(RecordedIterator):
    """Batches of a split as dicts of tensors, prefetched by threads.

    An epoch yields every row exactly once, in an order that depends on seed and epoch alone. The global batches are the
    same for any number of ranks, any number of workers, and any amount of prefetching. Iterating again yields the next
    epoch. Worker processes of a torch DataLoader count epochs only if they are persistent; otherwise call `set_epoch`
    before each epoch. To save their state, use torchdata's StatefulDataLoader.

    Parameters
    ----------
    split : Split
        The rows.
    batch_size : int
        Rows of a batch over all ranks together; each rank gets ``batch_size / world_size`` of them (see `uneven`).
    shuffle : bool, default True
        Whether to shuffle rows in each epoch; a stream shuffles its partitions, and the rows of a window. False: the
        order on disk or in the source.
    seed : int, default 0
        Seed of the shuffle.
    drop_last : bool, default False
        Whether to drop rows that do not fill a batch. Otherwise they form a smaller batch, shared evenly. If there are
        fewer rows than ranks, the batch before is smaller, too, so that each rank has a row of both.
    columns : iterable of str or None
        Outputs in the batches. None: all.
    targets : str, iterable of str or None
        Outputs that are separated: batches are then ``(inputs, target)``, or ``(inputs, dict of targets)`` for several.
        None: the Preprocessor's `targets` that are among `columns`. ``()``: no targets. With weights of rows, batches
        are ``(inputs, target, weights)``; without targets, weights are in the batch under the name of their column.
    expand : bool, default True
        Whether to expand compact rows to model inputs (ids int64, sets multi-hot, labels bool). False: as in a dataset.
    row_ids : bool, default False
        Whether batches contain "row_id", the number of each row in the source, and "source_id", of its dataset.
    to : {"torch", "numpy"}, default "torch"
        Kind of the arrays in a batch. NumPy arrays share the memory of the tensors.
    transform : callable or None
        Function applied to every batch, last.
    augment : mapping or None
        Random augmentation of images by output: ``{"photo": [RandomCrop(24, padding=4), Mirror()]}``. It depends on
        seed, epoch and row, and is applied before `expand`. The key ``("photo", "mask")`` augments both outputs alike.
    trim : bool, default False
        Whether to cut padded outputs to the longest row of each batch of this rank, and to add the lengths of its rows
        as "<name>_length". These are token ids, time series, frames of audio, and ids of sets and bags that are not
        expanded. Padding is cut on its side.
    pad_to_multiple_of : int or None
        With `trim`, round widths up to a multiple of this, for kernels that need one.
    rank, world_size : int or None
        Share of each batch for distributed training (DDP). None: from torch.distributed if it runs, else 0 of 1.
    uneven : bool, default False
        Whether ranks may share a batch that they do not divide: their shares then differ by one row. False: an error.
    device : str, torch.device or None
        Device of the tensors; a batch is copied while the previous one is used. None: main memory.
    threads : int or None
        Threads of this process that read, encode and decode. None: one per core for a stream. For a loader, up to 4 for
        local files and 48 for remote ones. A loader that decodes media has one per core, up to 8 for images and 16 for
        audio, and 32 if their files are remote.
    memory : str, int or None
        Maximum bytes that the iteration takes in this process, such as "500MB": it determines the prefetched blocks and
        the number of streams that are not set, or the window of a stream. Fewer streams are another order of rows.
    streams : int or None
        Number of streams of shuffled rows that are mixed in a batch; each keeps a block in memory. None: 16, or
        another divisor of the batch size from 8 to 256, or 16 if there is none. More than 64 cause a warning.
    balance : Oversample, Undersample or None
        How to sample the rows of each class in an epoch, against class imbalance. Seed and epoch choose the rows.
    weights : mapping or None
        Alternative to `balance`: ``{"sold": {"yes": 3.0}}`` yields rows of that class three times as often.
    group_by_length : str or None
        Output that `trim` cuts: rows of similar length are batched together, so that little padding is left. They are
        sorted within groups of batches, so that the order still depends on seed, epoch and row alone. The lengths
        of all rows are read once, and up to three blocks of each stream are in memory.
    batch_tokens : int or None
        With `trim` and `group_by_length`, the maximum of a batch's rows times its longest row, over all ranks together.
        A batch has as many times `batch_size` rows as fit.
    overfit_batches : int or None
        Yield only this many batches of epoch 0, in every epoch, to check that a model can overfit them.
    pack : Packing or None
        Join the documents of one output into rows of one length, which `batch_size` then counts.
    prefetch_size : int or None
        Blocks prefetched for each stream; 0 reads without prefetching, in the calling thread. None: the largest
        `prefetch_size` of the image and audio features, or as many as fit in `prefetch_bytes`.
    prefetch_bytes : int or None
        Bytes of prefetched blocks, in addition to the current blocks of the streams. None: 256 MB. Images and audio
        that are decoded per batch count with their stored size.
    cache : bool or None
        Whether to cache decoded images and audio on disk, block by block, for later epochs, and the blocks of a
        dataset in an object store if `cache_dir` is on this machine. None: only images and audio with
        ``mode="lazy_cached"``.
    cache_dir : str, path or None
        Folder of the cache, which all ranks of a machine may share. None: within the dataset, which must be writable.
    cache_limit : int or None
        Maximum bytes of the cache. Blocks that do not fit are decoded, or read from the store, again in each epoch.

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

    # States of older versions have no digest: only the version of the dataset is compared.
    _optional_keys = frozenset({"packing", "digest", "grouping", "run"})

    @list_options(BatchOptions, SharedOptions)
    def __init__(  # noqa: PLR0915 one statement or two for each option
        self,
        split: Split,
        batch_size: int = 1024,
        *,
        streams: int | None = None,
        balance: Balance | None = None,
        weights: Mapping[str, Mapping[Any, float]] | None = None,
        group_by_length: str | None = None,
        batch_tokens: int | None = None,
        overfit_batches: int | None = None,
        pack: Packing | None = None,
        prefetch_size: int | None = None,
        prefetch_bytes: int | None = None,
        cache: bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_limit: int | None = None,
        **options: Unpack[BatchOptions],
    ) -> None:
        """Check all options, read the classes for `balance` or `weights`, and start at epoch 0; no thread starts."""
        shared = SharedOptions(batch_size=batch_size, **options)
        super().__init__(shared)
        check_count("streams", streams, 1)
        check_count("prefetch_size", prefetch_size, 0)
        check_count("prefetch_bytes", prefetch_bytes, 0)
        check_count("overfit_batches", overfit_batches, 1)
        check_count("cache_limit", cache_limit, 1)
        check_count("batch_tokens", batch_tokens, 1)
        self.split = self.dataset = split
        self.shuffle = shared.shuffle and overfit_batches is None
        # To pack, enough documents for every stream are read as one batch, even for small batches.
        self._read_batch_size = batch_size if pack is None else math.lcm(batch_size, streams or 16)
        choices = ([streams] if streams else self._stream_choices()) if self.shuffle else [1]
        self.streams = choices[0]
        if streams is None and shared.memory is None and self.streams > MAX_STREAMS:
            warn(
                f"batch_size={batch_size} has no divisor from {MIN_STREAMS} to {MAX_STREAMS}, so that {self.streams} "
                f"streams keep blocks in memory: use batch_size={-(-batch_size // 16) * 16} or streams=16, or "
                f"streams={self.streams} to silence this warning"
            )
        self.prefetch_size = prefetch_size
        self.prefetch_bytes = prefetch_bytes
        self.overfit_batches = overfit_batches
        dataset = split.dataset
        targets = dataset.targets if pack is None else ()
        self.names, self._batch_format = select_outputs(shared, split.columns, split.shape, dataset.features, targets)
        if self.row_ids and self._source_ends is not None and SOURCE_ID in self.names:
            raise ConfigError(
                f'row_ids=True: batches already have an output "{SOURCE_ID}": rename it, or leave it out with columns='
            )
        self._cache_policy = CachePolicy.of(cache, cache_dir, cache_limit)
        self._cache_policy.prepare(split, [split.output(name) for name in self.names])
        shapes = {name: (split.output(name).dtype, split.shape(name)) for name in self.names}
        self._regions = find_regions(dataset.features)
        learned = {} if shared.augment is None else dataset.learned
        self._augment = bind_augment(shared.augment, shapes, learned, self._regions)
        self._sampling: Sampling | None = make_sampling(split, balance, weights, self.seed)
        self._packer: Packer | None = None
        if pack is not None:
            from daskprep.dataset.loader.packing import Packer, check_options  # noqa: PLC0415 most loaders do without it

            check_options(shared, overfit_batches)
            self._packer = Packer(split, pack, batch_size, drop_last=self.drop_last)
        self._trimming: Trimming | None = None
        if shared.trim and pack is None:
            multiple = shared.pad_to_multiple_of
            self._trimming = Trimming.of(dataset.features, dataset.learned, self.names, multiple, expand=self.expand)
        self.group_by_length = group_by_length
        self._limit = None if shared.memory is None else self._measure(shared.memory)
        if self._limit is not None:
            self.streams = self._limit.choose_streams(choices)
        if group_by_length is not None:
            self._check_grouping(group_by_length, pack)
        if batch_tokens is not None and (group_by_length is None or not shared.trim):
            raise ConfigError(f"batch_tokens={batch_tokens} needs trim=True and group_by_length=")
        self.batch_tokens = batch_tokens
        self._token_batches: tuple[int, TokenBatches] | None = None  # epoch, and its batches
        self._packing_position: PackingPosition | None = None  # None: the start
        self._first_batch = 0
        self._buffers = Buffers()
        self._last_settings: Settings | None = None  # settings of the last iteration, for `stats`
        self._resolve_ranks()
        self._run, self._start = [] if pack is None and overfit_batches is None else None, self._start_part()

    _blocks_per_stream = 2  # at the change from one block to the next

    def _stream_choices(self) -> list[int]:
        """Return the default number of streams, and smaller ones that divide a batch as well."""
        size, default = self._read_batch_size, default_streams(self._read_batch_size)
        return [default, *(number for number in range(default - 1, 0, -1) if size % number == 0)]

    def _measure(self, memory: str | int) -> LoaderMemory:
        """Return the sizes of what the loader holds, which do not depend on the number of ranks."""
        if self.prefetch_size is not None or self.prefetch_bytes is not None:
            raise ConfigError("memory= determines prefetching: leave out prefetch_size and prefetch_bytes")
        groups, layout = self._make_groups(), self.split.layout
        return LoaderMemory(
            memory,
            layout.block_rows * (sum(group.resident_bytes for group in groups) + 8),  # with the order of rows
            self._read_batch_size * (sum(group.row_bytes for group in groups) + 8),
            layout.blocks(self.split.name),
            self._count_threads(groups, self._cache_policy.undecoded_names(self.split, groups)),
            self._blocks_per_stream * (1 if self.group_by_length is None else 2),
        )

    def _check_grouping(self, column: str, pack: Packing | None) -> None:
        """Raise ConfigError if an output has no lengths, or with options that determine batches in another way."""
        option = f"group_by_length={column!r}"
        self._grouped_padding = find_padding(self.split, column, option, expand=self.expand)
        if not self.shuffle or pack is not None:
            other = "pack" if pack else "shuffle=False" if self.overfit_batches is None else "overfit_batches"
            raise ConfigError(f"{option} cannot be used together with {other}: it changes the order of rows")
        if self.batch_size % self.streams:
            raise ConfigError(
                f"{option}: batch_size={self.batch_size} is no multiple of streams={self.streams}: pass others"
            )

    @cached_property
    def _lengths(self) -> np.ndarray | None:
        """Length of each row in `group_by_length`; None without it."""
        column = self.group_by_length
        return None if column is None else read_lengths(self.split, column, self._grouped_padding)

    def __getstate__(self) -> dict[str, Any]:
        ranks = self._ranks.freeze(self.batch_size)
        return {**self.__dict__, "_current_iteration": None, "_buffers": Buffers(), "_ranks": ranks}

    def _go_to(self, epoch: int, rows_yielded: int = 0, first_batch: int = 0) -> None:
        self._run = self._recorded_run()
        super()._go_to(epoch, rows_yielded)
        self._first_batch, self._packing_position = first_batch, None
        self._start = self._start_part()

    @property
    def _rows(self) -> int:
        return len(self.split) if self._sampling is None else int(self._sampling.sizes.sum())

    def _make_schedule(self, rows_before: int = 0) -> Schedule:
        """Return the schedule of this rank in the current epoch, after `rows_before` rows; epoch 0 to overfit."""
        rank, world = self._resolve_ranks()
        epoch = 0 if self.overfit_batches is not None else self.epoch
        sizes = np.diff(self._starts) if self._sampling is None else self._sampling.sizes
        block_rows = self.split.layout.block_rows
        blocks = EpochBlocks(sizes, block_rows, self.seed, epoch, self.shuffle, self._starts[:-1], self._sampling)
        drop_last = self.drop_last and self._packer is None  # `drop_last` then drops packed rows, not documents
        options = (blocks, self._read_batch_size, self.streams, rank, world, drop_last, rows_before)
        if self._lengths is None:
            return Schedule(*options)
        if self.batch_tokens is None:
            return LengthSchedule(*options, lengths=self._lengths)
        return self._cut_by_tokens(TokenSchedule(*options, lengths=self._lengths))

    def _cut_by_tokens(self, schedule: TokenSchedule) -> TokenSchedule:
        """Return the schedule with batches of at most `batch_tokens` padded tokens; ConfigError if none may fit."""
        assert self.batch_tokens and self._trimming  # noqa: PT018
        assert self._lengths is not None
        if self._token_batches is None or self._token_batches[0] != schedule.blocks.epoch:
            multiple, rows = self._trimming.multiple, max((self.batch_size, *schedule.last_sizes))
            width = max(1, -(-int(self._lengths.max()) // multiple)) * multiple
            if rows * width > self.batch_tokens:
                raise ConfigError(
                    f"batch_tokens={self.batch_tokens}: a batch of {rows} rows with the longest, {width} tokens, has "
                    f"{rows * width}: use batch_tokens={rows * width} or a smaller batch_size than {self.batch_size}"
                )
            self._token_batches = schedule.blocks.epoch, schedule.cut_epoch(self.batch_tokens, multiple)
        return replace(schedule, token_batches=self._token_batches[1])

    @cached_property
    def _starts(self) -> Integers:
        """Number of the first row of each block, and the end."""
        return self.split.layout.starts(self.split.name)

    def _count_batches(self) -> int:
        if self._packer is not None:
            return self._packer.count(self._make_schedule())
        batches = len(self._make_schedule())
        return batches if self.overfit_batches is None else min(batches, self.overfit_batches)

    def _iterate(self) -> Iterator[Any]:
        """Return the batches left; in a worker process, each n-th. ConfigError for fewer rows than ranks."""
        worker = get_worker_info()
        step, offset = (1, 0) if worker is None else (worker.num_workers, worker.id)
        if self._packer is not None:
            self._begun = True
            return self._iterate_packed(self._packer, self._make_schedule(), step, offset)
        base = 0 if self.overfit_batches is not None else self._rows_yielded
        schedule = self._make_schedule(base)
        if not self.drop_last:
            self._check_rows_left(self._rows - base)
        total = len(schedule) if self.overfit_batches is None else min(len(schedule), self.overfit_batches)
        first = self._first_batch + (offset - self._first_batch) % step
        batches = range(first, total, step)
        self._current_iteration = schedule
        # StatefulDataLoader creates iterators that it never advances: they must not use up the epoch.
        self._begun = not batches
        return self._iterate_batches(schedule, batches)

    def _iterate_batches(self, schedule: Schedule, batches: range) -> Iterator[Any]:
        """Yield the batches with the numbers `batches` from a new pipeline, which is closed at the end."""
        # The next epoch uses the same CUDA stream, for which torch keeps memory, unless another GPU is current.
        gpu = (self.device, current_gpu())
        transfer = self._buffers.take(DeviceTransfer, gpu, lambda: DeviceTransfer(self.device, gathers=True))
        pipeline = self._make_pipeline(self._make_groups(), schedule, batches, transfer)
        dataset, names = self.split.dataset, [output.name for output in self._outputs]
        expand = make_expanders(dataset.features, dataset.learned, self.names if self.expand else ())
        ends = self._source_ends if self.row_ids else None
        parts = (self._augment, expand, self._batch_format, self._trimming, ends, self._regions)
        builder = BatchBuilder(names, self.seed, *parts)
        try:
            yield from self._iterate_pipeline(pipeline, builder, schedule)
        finally:
            pipeline.close()
            self._buffers.put_back(gpu, transfer)

    @property
    def _source_ends(self) -> Integers | None:
        """Row at which each of several datasets ends; None for one."""
        joined = self.split.joined
        return np.cumsum([len(one) for one in joined]) if len(joined) > 1 else None

    @property
    def _outputs(self) -> list[Output]:
        """Outputs to read, with any row numbers."""
        if self._packer is not None:
            return [self._packer.output]
        return [self.split.output(name) for name in dict.fromkeys([*self.names, *(["row_id"] * self.row_ids)])]

    def _make_groups(self) -> list[Group]:
        return group_outputs(self._outputs, self._cache_policy.cached_names(self.split, self._outputs))

    def _make_pipeline(
        self, groups: Sequence[Group], schedule: Schedule, batches: range, transfer: DeviceTransfer
    ) -> Pipeline:
        """Return the pipeline of windows of `batches`, with caches in front of the files if they are enabled."""
        self._last_settings = settings = self._settings_for(groups, schedule)
        times, current = LoaderTimes(), schedule.open_blocks
        budget = current + settings.prefetch_blocks
        # Copies of complete blocks take a fifth to a half of the time of copies of as many rows in random order.
        decoded = self._cache_policy.decoded_caches(self.split, groups) if transfer.gathers else {}
        as_arrays = {group.name: group for _, group in decoded}
        copied = [group for group in groups if group.name not in as_arrays]
        groups = [as_arrays.get(group.name, group) for group in groups]
        source: BlockSource[Any] = FileBlocks(
            self.split,
            groups,
            times,
            self._buffers,
            budget,
            2 * current,
            schedule.blocks.max_rows,
            transfer.make_block_array,
            decoded,
        )
        if (copy_folder := self._cache_policy.copy_folder(self.split)) is not None:
            source = CopiedBlocks(source, self.split, copied, copy_folder, self._cache_policy.limit)
        if transfer.gathers:
            source = DeviceBlocks(source, self.split, transfer)
        media = [Medium(group, self.split.dataset.decoder(group.name)) for group in groups if group.stores_cells]
        cached_media = [medium for medium in media if medium.group.is_cached]
        if cached_media:
            caches = {
                split: [(medium, self._cache_policy.open_cache(split, medium.group.name)) for medium in cached_media]
                for split in self.split.joined
            }
            for index, medium in enumerate(cached_media):
                are_plain = all(pairs[index][1].is_plain for pairs in caches.values())
                medium.is_late = are_plain and not settings.decodes and transfer.device is None
            # Each DataLoader worker decodes a part of every block, and so does each rank if there are fewer streams.
            ranks = -(-schedule.world_size // schedule.streams)
            sharer_index = schedule.rank % ranks * batches.step + batches.start % batches.step
            source = CachedBlocks(source, self.split, caches, self._buffers, sharer_index, ranks * batches.step)
        epochs = [(schedule, batches)]
        return Pipeline(source, groups, media, epochs, settings, times=times, transfer=transfer, buffers=self._buffers)

    def _iterate_packed(self, packer: Packer, schedule: Schedule, step: int, offset: int) -> Iterator[Any]:
        """Yield every `step`-th packed batch, and advance the position; ranks stop with the shortest one."""
        [group] = groups = self._make_groups()
        position = self._packing_position or packer.start
        unread = range(position.read, len(schedule))
        make_cuda_stream(self.device)
        pipeline = self._make_pipeline(groups, schedule, unread, DeviceTransfer(None))
        self._times = pipeline.times
        tally = RowTally()
        self._audited = (schedule, unread[:0], tally)

        def documents() -> Iterator[Documents]:
            for window in pipeline:
                tally.add(*window.tallies)
                self._audited = (schedule, range(unread.start, window.batches[-1] + 1), tally)
                yield window.arrays[group][: len(window.rows)], window.sizes

        batches_before, first_batch = self._rows_yielded // self.batch_size, self._first_batch
        # Ranks have different numbers of tokens: all of them stop with the rank that has the fewest.
        stop = max(0, packer.count(schedule) - batches_before - first_batch) if schedule.world_size > 1 else None
        batches = enumerate(packer.batches(documents(), position, schedule), start=first_batch)
        try:
            for number, (arrays, next_position) in islice(batches, (offset - first_batch) % step, stop, step):
                if get_worker_info() is not None:
                    self._first_batch = number + 1
                else:
                    self._rows_yielded, self._first_batch = (batches_before + number + 1) * self.batch_size, 0
                self._packing_position = next_position
                yield self._batch_format(packer.tensors(arrays, self.device))
        finally:
            pipeline.close()

    def _advance(self, schedule: Schedule, stop: int) -> None:
        """Set the position to after the batches below `stop`, by worker in a DataLoader; not to overfit."""
        if self.overfit_batches is not None:
            return
        if get_worker_info() is not None:
            # Each worker resumes with its own batches, counted from the common start of all workers.
            self._rows_yielded, self._first_batch = schedule.rows_before, stop
        else:
            self._rows_yielded, self._first_batch = schedule.rows_yielded(stop), 0

    def _settings_for(self, groups: Sequence[Group], schedule: Schedule) -> Settings:
        """Return prefetching and threads: the options of this loader, or defaults for the outputs and the schedule."""
        size = self.prefetch_size
        if size is None and self.prefetch_bytes is None:
            size = max_prefetch_size(self.split, groups)
        if size == 0:
            return Settings(0, 0)
        undecoded_names = self._cache_policy.undecoded_names(self.split, groups)
        threads = self._count_threads(groups, undecoded_names)
        current = schedule.open_blocks
        if self._limit is not None:
            prefetch_bytes, window_bytes = self._limit.divide(self.streams)
            blocks = min(prefetch_bytes, AHEAD_BYTES) // self._limit.block_bytes
            # The pool has two blocks for each stream: as many as are needed without prefetching.
            return Settings(current + blocks, threads, decodes=bool(undecoded_names), window_bytes=window_bytes)
        if size is not None:
            return Settings(size * current, threads, decodes=bool(undecoded_names))
        block_bytes = max(1, sum(group.resident_bytes for group in groups) * self.split.layout.block_rows)
        blocks = (AHEAD_BYTES if self.prefetch_bytes is None else self.prefetch_bytes) // block_bytes
        if any(group.stores_cells for group in groups):
            blocks = min(blocks, _MAX_CELL_BLOCKS * current)
        return Settings(max(1, blocks), threads, decodes=bool(undecoded_names))

    def _count_threads(self, groups: Sequence[Group], undecoded_names: Sequence[str]) -> int:
        """Return the threads: the option, or as many as reads and decoding use."""
        local = self.split.is_local or (not undecoded_names and self._cache_policy.has_all_copies(self.split, groups))
        decode_threads = self._cache_policy.threads(self.split, undecoded_names)
        return self.threads or max(Settings.threads_for(local=local), decode_threads)

    def stats(self) -> dict[str, float]:
        """Return where the last iteration spent its time, in seconds summed over threads, and what it did.

        `prefetch_blocks` and `threads` are the numbers in use: the options of this loader, or the defaults.
        """
        return super().stats() | self._prefetch_settings()

    def _prefetch_settings(self) -> dict[str, int]:
        settings = self._last_settings or self._settings_for(self._make_groups(), self._make_schedule())
        return {"prefetch_blocks": settings.prefetch_blocks, "threads": settings.threads}

    @property
    def _grouping(self) -> list[Any] | None:
        """The options for the order by length; None without it."""
        if self.group_by_length is None:
            return None
        tokens = [self.batch_tokens, self._trimming.multiple] if self._trimming and self.batch_tokens else []
        return [self.group_by_length, self.batch_size, *tokens]

    @property
    def _digest(self) -> str:
        return self.split.dataset.digest[:_DIGEST_DIGITS]

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loader as JSON values; it counts batches yielded, not batches prefetched."""
        packer, position = self._packer, self._packing_position
        packing = packer and {"packing": packer.state(position or packer.start, self._make_schedule())}
        return {
            "format": self._state_format,
            "version": self.split.dataset.version,
            "digest": self._digest,
            "split": self.split.name,
            "seed": self.seed,
            "epoch": self.epoch,
            "rows_given": self._rows_yielded,
            "first_batch": self._first_batch,
            "streams": self.streams,
            "shuffle": self.shuffle,
            "sampling": None if self._sampling is None else self._sampling.digest,
            **(packing or {}),
            **({} if self.group_by_length is None else {"grouping": self._grouping}),
            **self._run_state,
        }

    def _resume(self, state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Go to a saved position; ConfigError for other options."""
        if state["sampling"] != own["sampling"]:
            raise ConfigError(
                "the state was saved with a different balance= or weights=: use the same ones, or restart the epoch"
            )
        if (saved := state.get("grouping")) != self._grouping:
            raise ConfigError(
                f"the state was saved with group_by_length and batch_size (and others) {saved or 'unset'}, not "
                f"{self._grouping or 'unset'}: use the same ones, or restart the epoch"
            )
        epoch, rows_before = state["epoch"], state["rows_given"]
        if self._packer is not None:
            self._go_to(epoch, rows_before, state["first_batch"])
            batches = rows_before // self.batch_size + self._first_batch
            self._packing_position = self._packer.restore_position(state["packing"], self._make_schedule(), batches)
            return
        self._check_rows_yielded(rows_before)
        self._go_to(epoch, rows_before, state["first_batch"])
        if rows_before == self._rows or not len(self._make_schedule(rows_before)):
            self._go_to(epoch + 1)

    def _check_origin(self, state: Mapping[str, Any]) -> None:
        """Raise ConfigError for another split, version or packing."""
        version, digest = self.split.dataset.version, state.get("digest", self._digest)
        if (state["version"], digest) == (version, self._digest) and state["split"] != self.split.name:
            raise ConfigError(
                f'the state belongs to split "{state["split"]}", but this loader reads "{self.split.name}": '
                f"load it into a loader of dataset[{state['split']!r}]"
            )
        if (state["version"], digest, state["split"]) != (version, self._digest, self.split.name):
            raise ConfigError(
                f'the state belongs to split "{state["split"]}" of version {state["version"]} (digest {digest}), but '
                f'this is "{self.split.name}" of version {version} (digest {self._digest}). Rows would be skipped or '
                "repeated: open the dataset that the state was saved for (after an append: open_dataset(path, "
                "version=number)), or restart the epoch"
            )
        if (packing := state.get("packing")) is not None and self._packer is not None:
            check_same_options(packing, self._packer.settings(self._make_schedule()))
        elif packing is not None or self._packer is not None:
            was, now = ("with", "without") if self._packer is None else ("without", "with")
            raise ConfigError(
                f"the state was saved {was} pack=, but this loader was created {now} it: use the same options"
            )

    def __repr__(self) -> str:
        return f"Loader({self.split!r}, batch_size={self.batch_size}, epoch={self.epoch})"

    def _repr_html_(self) -> str:
        order = f"shuffled, {format_count(self.streams, 'stream')}, seed {self.seed}" if self.shuffle else "as on disk"
        blocks, threads = self._prefetch_settings().values()
        prefetch = f"{format_count(blocks, 'block')}, {format_count(threads, 'thread')}" if threads else "none"
        rows, url = format_count(len(self.split), "row"), escape_unprintable(self.split.dataset.url)
        title = f'Loader of split "{self.split.name}" of {url}: {rows}'
        return self._card(title, order, self.names, prefetch=prefetch)
