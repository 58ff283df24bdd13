"""Limits on the memory of a write: smaller partitions, or an error before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from daskprep.columns.display import format_bytes, format_count, parse_bytes
from daskprep.errors import ConfigError
from daskprep.features.base import Contract
from daskprep.sources import FileSource, PandasSource, Source, as_source, partitions
from daskprep.sources.file_source import PARTITION_BYTES
from daskprep.sources.opening import combine_splits, get_splits

# Resident memory of a process after the imports of a write, measured.
PROCESS_BYTES = 250_000_000
# Additional resident memory of each process of a cluster: its supervisor (Dask's nanny), measured.
_SUPERVISOR_BYTES = 85_000_000
# Maximum bytes of a task per byte of its partition, measured on text alone, the worst case (7.7): raw cells, tokens,
# and the file that is being written.
TASK_FACTOR = 8
# Maximum bytes of a task per byte of its windows as 32-bit numbers, measured on windows of 300 rows (2.5).
_WINDOW_FACTOR = 3
# Additional bytes to write a part: its rows, and one compressed file.
PART_BYTES = 50_000_000
# Below this size, the overhead of a partition exceeds the memory it saves.
MIN_PARTITION_BYTES = 1_000_000
# Partitions are not made smaller for more processes.
_COMFORTABLE_PARTITION_BYTES = 8_000_000


@dataclass(frozen=True)
class MemoryLimit:
    """The memory limit of all processes of a write together."""

    memory: str | int  # as the user passed it, for messages
    nbytes: int  # the limit
    processes: int
    threads: int  # that run tasks, in all processes together

    @classmethod
    def from_size(cls, memory: str | int) -> MemoryLimit:
        """Return the limit for the workers of the current scheduler."""
        processes, threads = partitions.worker_threads()
        # In addition to the workers of a cluster, count this process.
        return cls(memory, parse_bytes(memory), processes + (not partitions.is_in_process()), threads)

    @property
    def _process_bytes(self) -> int:
        return PROCESS_BYTES + _SUPERVISOR_BYTES * (self.processes > 1)

    @property
    def partition_bytes(self) -> int:
        """The maximum bytes of a partition in memory."""
        task_bytes = (self.nbytes - self.processes * self._process_bytes) // self.threads - PART_BYTES
        return task_bytes // TASK_FACTOR

    def required_bytes(self, partition_bytes: int) -> int:
        """Return the limit in bytes that partitions of a size need."""
        return self.processes * self._process_bytes + self.threads * (PART_BYTES + TASK_FACTOR * partition_bytes)

    def too_large_error(self, partition_bytes: int, reason: str, remedy: str) -> ConfigError:
        """Return the error for partitions of a size that is too large; its message contains `reason` and `remedy`."""
        fewer = "fewer workers" if self.processes > 1 else "fewer threads (dask.config.set(num_workers=1))"
        return ConfigError(
            f"memory={self.memory!r} is not enough: this needs at least "
            f"{format_bytes(self.required_bytes(partition_bytes))} "
            f"({format_count(self.processes, 'process', 'processes')} x {format_bytes(self._process_bytes)} + "
            f"{format_count(self.threads, 'thread')} x {format_bytes(PART_BYTES + TASK_FACTOR * partition_bytes)}), "
            f"since {reason}. Raise memory, use {fewer}, or {remedy}"
        )


@contextmanager
def on_workers(
    frame: Any, workers: partitions.Workers, memory: str | int | None = None, sent: object = None, **options: Any
) -> Iterator[None]:
    """Run the block on the processes that `WriteOptions.workers` chooses, as many as fit in the memory.

    `sent` is what tasks use besides rows; `options` are passed to `as_source`.
    """
    fitting = None
    if memory is not None:
        per_process = PROCESS_BYTES + _SUPERVISOR_BYTES + PART_BYTES + TASK_FACTOR * _COMFORTABLE_PARTITION_BYTES
        fitting = (parse_bytes(memory) - PROCESS_BYTES - _SUPERVISOR_BYTES) // per_process
    with partitions.on_workers(workers, frame, fitting, sent, **options):
        yield


def plan_source(
    frame: Any,
    columns: Sequence[str] | None,
    memory: str | int | None,
    options: Mapping[str, Any],
    features: Mapping[str, Contract] = MappingProxyType({}),
) -> Source:
    """Return the source of a frame, in partitions that fit in the memory; ConfigError if they cannot be small enough.

    `options` are passed to `as_source`. The windows of `features` count, if the numbers of rows are known.
    """
    if memory is None:
        return as_source(frame, columns=columns, **options)
    if frames := get_splits(frame):
        return combine_splits(frames, columns, lambda one, own: plan_source(one, own, memory, options, features))
    limit = MemoryLimit.from_size(memory)
    allowed = limit.partition_bytes
    if allowed < MIN_PARTITION_BYTES:
        reason = f"partitions have at least {format_bytes(MIN_PARTITION_BYTES)}"
        raise limit.too_large_error(MIN_PARTITION_BYTES, reason, "leave memory out")
    target_bytes = min(allowed, options.get("partition_bytes", PARTITION_BYTES))
    source = as_source(frame, columns=columns, **{**options, "partition_bytes": target_bytes})
    largest, row_counts = largest_partition(source), source.row_counts or ()
    window_bytes = sum(one._window_numbers * 4 for one in features.values())
    if largest and window_bytes and row_counts:
        added = max(row_counts) / largest * window_bytes * _WINDOW_FACTOR / TASK_FACTOR  # for each byte of a partition
        allowed = int(allowed / (1 + added))
        if largest > allowed and not hasattr(frame, "__arrow_c_stream__"):  # a stream cannot be opened again
            source = as_source(frame, columns=columns, **{**options, "partition_bytes": allowed})
            largest = largest_partition(source)
    if largest > allowed:
        remedy = "write it to files"
        if isinstance(source, FileSource):
            advice = "pass the paths, or a smaller partition_bytes to read_files, or "
            remedy = f"{advice if source is frame else ''}write the files with smaller row groups"
        raise limit.too_large_error(largest, f"the largest partition has {format_bytes(largest)}", remedy)
    return source


def largest_partition(source: Source) -> int:
    """Return the bytes of the largest partition, estimated; ConfigError for Dask frames and prepared rows."""
    if source.is_dask or source.prepared_by:
        raise ConfigError(
            "memory= cannot limit a Dask frame or prepared rows: the size of partitions is not known before "
            "they are computed; pass the paths of the files, or leave memory out"
        )
    if isinstance(source, PandasSource):
        return source.partition_bytes
    return max((fragment.nbytes for fragment in source.fragments), default=0)
