"""The stream: batches for torch directly from a source, encoded while a model trains."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Unpack

import pandas as pd
from torch.utils.data import get_worker_info

from daskprep.columns.display import format_bytes, format_count, parse_bytes
from daskprep.columns.parametrized import check_is_fitted
from daskprep.columns.permutation import Integers
from daskprep.dataset.loader.batch_iterator import BatchIterator, check_same_options
from daskprep.dataset.loader.batches import BatchBuilder, bind_augment, make_expanders
from daskprep.dataset.loader.groups import DeviceTransfer
from daskprep.dataset.loader.lengths import Trimming
from daskprep.dataset.loader.media import Medium
from daskprep.dataset.loader.memory import WINDOWS, not_enough
from daskprep.dataset.loader.order import Schedule
from daskprep.dataset.loader.pipeline import SMALL_BYTES, Epoch, Pipeline, Settings
from daskprep.dataset.options import BatchOptions, SharedOptions, StreamOptions, check_count, list_options
from daskprep.dataset.writing.memory import TASK_FACTOR, largest_partition
from daskprep.dataset.writing.plan import SPLITS
from daskprep.dataset.writing.versions import Options, Recipe
from daskprep.errors import ConfigError, check_names, did_you_mean, warn
from daskprep.extensions.streaming.plan import (
    StreamContents,
    digest_stream,
    fingerprint_source,
    plan_stream,
    select_stream_outputs,
)
from daskprep.extensions.streaming.windows import StreamOrder, StreamTimes, WindowBlocks, check_window
from daskprep.features.media import find_regions
from daskprep.passes.assignment import take_sample
from daskprep.passes.contexts import assignment_columns
from daskprep.passes.fitting import with_base_folders
from daskprep.passes.losses import LEFT_OUT, tabulate_losses, warn_about_losses
from daskprep.sources import Rows, Source, partitions, prepared
from daskprep.storage.manifest import LossCounts, add_losses

if TYPE_CHECKING:
    from daskprep.preprocessor import Preprocessor


class Stream(BatchIterator):
    """Batches of a split as dicts of tensors, read and encoded from their source while a model trains.

    Created by `Preprocessor.stream`. An epoch yields every row exactly once, in an order that depends on seed, epoch,
    window and the rows of the partitions. The global batches are the same for any number of ranks, on threads or a
    cluster, in whatever order partitions arrive. An iteration yields `epochs` epochs, the next one those after them.

    Parameters
    ----------
    recipe, source
        The fitted Preprocessor's encoding, and the rows.
    batch_size : int
        Rows of a batch over all ranks together; each rank gets ``batch_size / world_size`` of them (see `uneven`).
    split : {"train", "validation", "test"}
        Split whose rows are yielded, balanced as set in the Preprocessor.
    epochs : int or None
        Number of epochs in one iteration, without a pause between them. None: endless.
    window : str or int
        Maximum bytes of encoded rows in memory, such as "2GB". Rows are shuffled within half of them while the other
        half is encoded. If a single partition takes more than half, the rows of a batch may be added on top.
    client : distributed.Client or None
        Dask client whose workers read and encode. None: the active client, or threads of this process. Frames in memory
        are always encoded in this process.
    workers : int, "threads" or None
        Number of processes of this machine that are started for an iteration, without a client; "threads" of this
        process. None: one process per core if an iteration then ends sooner and there are no other ranks.
    decode_on : {"trainer", "workers"}
        Where to decode images and audio: in this process, for the next batches, or where they are read.
    **options
        Options that all loaders share, from `shuffle` to `memory`: see `Loader`.

    Examples
    --------
    >>> import pandas as pd
    >>> import daskprep as dp
    >>> frame = pd.DataFrame({"price": [1.0, 2.0, 3.0], "sold": [True, False, True]})
    >>> prep = dp.Preprocessor({"price": dp.Number(normalization=None), "sold": "binary"}).fit(frame)
    >>> for inputs, sold in prep.stream(frame, batch_size=2, shuffle=False, targets="sold"):
    ...     print(inputs["price"].tolist(), sold.tolist())
    [1.0, 2.0] [True, False]
    [3.0] [True]
    """

    _kind = "stream"
    _state_counts = ("epoch", "first_epoch", "rows_given")
    # In states of older versions, "source" is missing, or None for separate splits and samples.
    _optional_keys = frozenset({"source", "prepare"})

    @list_options(BatchOptions, SharedOptions)
    def __init__(
        self,
        recipe: Recipe,
        source: Source,
        batch_size: int = 1024,
        *,
        split: str = "train",
        epochs: int | None = 1,
        window: str | int = "2GB",
        client: Any = None,
        workers: partitions.Workers = None,
        decode_on: Literal["trainer", "workers"] = "trainer",
        **options: Unpack[BatchOptions],
    ) -> None:
        """Check all options, and count the rows of partitions, which may read them; nothing is encoded yet."""
        shared = SharedOptions(batch_size=batch_size, **options)
        super().__init__(shared)
        check_count("epochs", epochs, 1)
        if split not in SPLITS:
            raise ConfigError(f"split={split!r}: expected one of {', '.join(SPLITS)}.{did_you_mean(split, SPLITS)}")
        if decode_on not in ("trainer", "workers"):
            raise ConfigError(f'decode_on={decode_on!r}: expected "trainer" or "workers"')
        self.window_bytes = parse_bytes(window, "window")
        self.memory = shared.memory
        recipe = dataclasses.replace(recipe, features=with_base_folders(recipe.features, source))
        self.source = self.dataset = source
        self.split = split
        self.epochs = epochs
        self.window = window
        self._client = client
        self._workers: partitions.Workers = workers
        self._annotations = partitions.current_annotations()
        names, batch_format = select_stream_outputs(recipe, shared)
        self._contents = contents = StreamContents(recipe, source, split, tuple(names), decode_on, self.row_ids)
        shapes = {output.name: (output.dtype, output.shape) for output in contents.outputs}
        expanders = make_expanders(recipe.features, contents.learned, shapes if self.expand else ())
        regions = find_regions(recipe.features)
        augment = bind_augment(shared.augment, shapes, contents.learned, regions)
        trimming = None
        if shared.trim:
            trimming = Trimming.of(
                recipe.features, contents.learned, contents.names, shared.pad_to_multiple_of, expand=shared.expand
            )
        self._builder = BatchBuilder(
            contents.names, self.seed, augment, expanders, batch_format, trimming, regions=regions
        )
        # With numbers of rows, the plan reads few columns, or none.
        planning_workers: partitions.Workers = workers if source.row_counts is None else "threads"
        with partitions.use_client(client), partitions.on_workers(planning_workers, source, sent=contents):
            self._plan = plan_stream(
                recipe.features, contents.learned, source, recipe.split, recipe.balance, contents.features
            )
        sizes = self._plan.sizes(split)
        if shared.memory is not None:
            self.window_bytes = self._fit_window(shared.memory, sizes)
        window_rows = check_window(sizes, contents.row_bytes, self.window_bytes, window)
        self._order = StreamOrder(sizes, window_rows, self.seed, self.shuffle)
        self._digest = digest_stream(recipe, self._plan)
        self._source_fingerprint = fingerprint_source(source, recipe.features)
        self._resolve_ranks()
        if epochs is None and self.drop_last and self._rows < batch_size:
            raise ConfigError(
                f"{self._rows:,} rows fill no batch of {batch_size:,}, so drop_last drops all: use a smaller batch_size"
            )
        self._first_epoch = 0
        self._losses: dict[int, LossCounts] = {}  # of the partitions encoded so far
        self._is_warned = False

    @property
    def _rows(self) -> int:
        return self._order.rows

    @property
    def columns(self) -> list[str]:
        """Names of the outputs in the batches."""
        return self._contents.names

    def _fit_window(self, memory: str | int, sizes: Integers) -> int:
        """Return the bytes of windows that the memory leaves besides batches and encoding; ConfigError if too few."""
        row_bytes, threads = self._contents.row_bytes, partitions.worker_threads()[1]
        largest = int(sizes.max()) * row_bytes
        batches = WINDOWS * (self.batch_size * row_bytes + SMALL_BYTES)
        encoding = threads * (TASK_FACTOR * largest_partition(self.source) + 2 * largest)
        needed = batches + encoding + 2 * largest
        if (left := parse_bytes(memory) - batches - encoding) < 2 * largest:
            raise ConfigError(
                f"{not_enough(memory, needed)}, "
                f"for {WINDOWS} windows of batches ({format_bytes(batches)}), {format_count(threads, 'thread')} that "
                f"encode partitions ({format_bytes(encoding)}), and the rows of two partitions "
                f"({format_bytes(2 * largest)}). Raise memory, use fewer threads (dask.config.set(num_workers=1)), or "
                "smaller partitions: read_files(..., partition_bytes=...)"
            )
        return min(left, self.window_bytes)

    def _go_to(self, epoch: int, rows_yielded: int = 0, first_epoch: int | None = None) -> None:
        super()._go_to(epoch, rows_yielded)
        self._first_epoch = epoch if first_epoch is None else first_epoch

    def _make_schedule(self, epoch: int, rows_before: int = 0) -> Schedule:
        rank, world = self._resolve_ranks()
        return Schedule(self._order.epoch(epoch), self.batch_size, 1, rank, world, self.drop_last, rows_before)

    def _count_batches(self) -> int:
        """Return the batches of all epochs; TypeError if endless."""
        if self.epochs is None:
            raise TypeError("a stream with epochs=None is endless and has no length")
        return self.epochs * len(self._make_schedule(0))

    def _begin_iteration(self) -> None:
        """Raise ConfigError in worker processes of a DataLoader."""
        if get_worker_info() is not None:
            raise ConfigError(
                "a stream cannot be iterated over in the worker processes of a DataLoader, because each of them would "
                "read the entire source: iterate over the stream itself, or use num_workers=0"
            )
        super()._begin_iteration()

    def _iterate(self) -> Iterator[Any]:
        """Return the batches left of `epochs` epochs."""
        if not self.drop_last:
            self._check_rows_left(self._rows - self._rows_yielded)
        self._current_iteration = iteration = object()
        # The state may be from a stream with more epochs.
        stop = None if self.epochs is None else max(self.epoch + 1, self._first_epoch + self.epochs)
        return self._iterate_batches(self.epoch, stop, self._rows_yielded, iteration)

    def _epochs(self, epoch: int, stop: int | None, rows_before: int) -> Iterator[Epoch]:
        """Yield the epochs below `stop`; the first one starts after the `rows_before` rows yielded earlier."""
        while stop is None or epoch < stop:
            schedule = self._make_schedule(epoch, rows_before)
            yield schedule, range(len(schedule))
            epoch, rows_before = epoch + 1, 0

    def _iterate_batches(self, epoch: int, stop: int | None, rows_before: int, iteration: object) -> Iterator[Any]:
        """Yield the batches of the epochs from `epoch` to below `stop`, or without end if it is None."""
        # When the interpreter exits, modules may be gone before an abandoned iterator is closed.
        getpid, is_finalizing = os.getpid, sys.is_finalizing
        process = getpid()
        contents, times = self._contents, StreamTimes()
        groups = contents.groups
        decoders = {group: contents.decoder(group.name) for group in groups if group.stores_cells}
        threads = self.threads or Settings.threads_to_decode(decoders.values())
        job = contents.job(self._plan, self._digest)
        task_annotations = {**self._annotations, **partitions.current_annotations()}
        cleanup = contextlib.ExitStack()
        try:
            client = self._client or cleanup.enter_context(self._local_workers())
            executor = partitions.open_executor(job, client, self.threads, task_annotations)
            cleanup.callback(executor.close)
            if job.digest is None and executor.is_distributed and self._resolve_ranks()[1] > 1:
                self._warn_unshared()
            contexts, row_bytes = self._plan.contexts, contents.row_bytes
            source = WindowBlocks(executor, contexts, groups, row_bytes, self.window_bytes, times, self._losses)
            media = [Medium(group, decoder) for group, decoder in decoders.items()]
            settings = Settings(0, threads, decodes=bool(media), single_block_windows=True)
            epochs, transfer = self._epochs(epoch, stop, rows_before), DeviceTransfer(self.device)
            pipeline = Pipeline(source, groups, media, epochs, settings, times=times, transfer=transfer)
            cleanup.callback(pipeline.close)
            yield from self._iterate_pipeline(pipeline, self._builder, iteration)
        finally:
            # A forked process has none of these threads, and when Python exits, they no longer respond.
            if getpid() == process and not is_finalizing():
                cleanup.close()

    def _local_workers(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context that yields a client of processes for an iteration; None on threads."""
        is_alone = self._resolve_ranks()[1] == 1  # ranks on one machine share its cores
        return partitions.local_workers(
            "threads" if self._workers is None and not is_alone else self._workers, self.source, sent=self._contents
        )

    def _warn_unshared(self) -> None:
        """Warn that ranks cannot share encoded partitions."""
        cause = "nothing identifies its rows in other processes"
        remedy = "stream Parquet files"
        if made_by := self.source.prepared_by:
            cause = f"{made_by} or the rows that it prepares cannot be identified in other processes"
            remedy = "define the function in a separate module, without sets, and stream files"
        warn(f"{self.source!r}: every rank encodes all partitions separately, since {cause}; {remedy} to share them")

    def losses(self) -> pd.DataFrame:
        """Return the losses of the rows encoded so far, over all ranks: of all rows after an epoch.

        It has the columns of `Dataset.losses`. Files of images and audio that cannot be decoded are not in it, but
        counted in `stats`. A warning at the end of the first epoch names the largest losses.
        """
        return self._tabulate_losses()[0]

    def _tabulate_losses(self) -> tuple[pd.DataFrame, dict[str, int]]:
        """Return the table of losses, and its rows by split."""
        counted = dict(self._losses)
        sizes = self._order.sizes
        rows = {self.split: sum(int(sizes[number]) for number in counted)}
        totals: LossCounts = functools.reduce(add_losses, counted.values(), {})
        features = self._contents.features
        return tabulate_losses(features, self._contents.learned, {self.split: totals}, rows, self._plan.left_out), rows

    def _advance(self, schedule: Schedule, stop: int) -> None:
        """Advance; warn of losses once, after a whole epoch."""
        super()._advance(schedule, stop)
        if stop == len(schedule) and not schedule.rows_before and schedule.rank == 0 and not self._is_warned:
            self._is_warned = True
            table, rows = self._tabulate_losses()
            # A warning about rows left out precedes the first epoch.
            table, is_new = table[table["cause"] != LEFT_OUT], self.split != "train"
            features, learned = self._contents.features, self._contents.learned
            call = "stream.losses()"
            warn_about_losses(table, features, learned, fitted=False, compared=is_new, rows=rows, call=call)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the stream as JSON values; it counts batches yielded, not batches prefetched."""
        return {
            "format": self._state_format,
            "digest": self._digest,
            "source": self._source_fingerprint,
            **({} if self.source.prepared_by is None else {"prepare": self.source.prepared_by}),
            "split": self.split,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "window_rows": self._order.window_rows,
            "epoch": self.epoch,
            "first_epoch": self._first_epoch,
            "rows_given": self._rows_yielded,
        }

    def _resume(self, state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Go to a saved position; ConfigError for other windows."""
        if state["window_rows"] != own["window_rows"]:
            raise ConfigError(
                f"the state was saved with windows of {state['window_rows']:,} rows, but this stream has "
                f"{own['window_rows']:,}: use the same window=, columns= and decode_on="
            )
        self._check_rows_yielded(state["rows_given"])
        epoch, first, rows_before = state["epoch"], state["first_epoch"], state["rows_given"]
        if rows_before == self._rows or not len(self._make_schedule(epoch, rows_before)):
            epoch, rows_before = epoch + 1, 0
            if self.epochs is not None and epoch >= first + self.epochs:
                first = epoch
        self._go_to(epoch, rows_before, first)

    def _check_origin(self, state: Mapping[str, Any]) -> None:
        """Raise ConfigError for a state of another stream or source."""
        check_same_options({"prepare": None, **state}, {"prepare": self.source.prepared_by}, "stream")
        if (state["digest"], state["split"]) != (self._digest, self.split):
            raise ConfigError(
                f'the state belongs to split "{state["split"]}" of stream {state["digest"]}, not to "{self.split}" '
                f"of {self._digest}. The Preprocessor or the partitions differ, so rows would be skipped or repeated: "
                "use the Preprocessor and the source that the state was saved for, or restart the epoch"
            )
        if state.get("source") not in (None, self._source_fingerprint):
            raise ConfigError(
                f"the state belongs to another source than {self.source!r}, or the source has changed, so rows would "
                "be skipped or repeated. Stream the source that the state was saved for, or restart the epoch (a state "
                'without "source" is accepted for any source)'
            )

    def __repr__(self) -> str:
        return f"Stream({self.source!r}, split={self.split!r}, batch_size={self.batch_size}, epoch={self.epoch})"

    def _repr_html_(self) -> str:
        order = f"shuffled within windows, seed {self.seed}" if self.shuffle else "as in the source"
        title = f'Stream of split "{self.split}": {format_count(self._rows, "row")}'
        return self._card(title, order, self.columns, window=str(self.window))


def open_stream(
    prep: Preprocessor,
    frame: Rows,
    batch_size: int,
    storage_options: Mapping[str, Any] | None,
    prepare: Callable[[pd.DataFrame], pd.DataFrame] | None,
    options: StreamOptions,
) -> Stream:
    """Return a stream of the rows of a frame, as `Preprocessor.stream` does."""
    check_names("stream", options, StreamOptions.__annotations__)
    check_is_fitted(prep)
    prep._check_one_fold("stream")
    split = prep._resolve_split(frame, is_fitted=True)
    if prepare is not None:
        frame = prepared(frame, prepare, storage_options=storage_options)
    settings = Options(storage_options=storage_options, scratch=prep._scratch)
    features, source = prep._open_new_rows(frame, settings, assignment_columns(split, prep.balance))
    source = take_sample(source, prep.sample, prep.sample_seed)
    return Stream(prep._recipe(features, split, prep.learned_), source, batch_size, **options)
