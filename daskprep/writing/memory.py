"""Keep a write under a ceiling of memory, or refuse it before it starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daskprep import partitions
from daskprep.display.words import size
from daskprep.errors import ConfigError
from daskprep.sources import FileSource, PandasSource, Source, as_source
from daskprep.sources.composed import by_split, splits_of
from daskprep.sources.file_source import PARTITION_BYTES

# Resident memory of a process that has imported what a write needs and done nothing yet, measured.
PROCESS_BYTES = 250_000_000
# What a task holds at most for each byte of its partition, measured on text alone, the worst case: raw cells, tokens,
# and the file that is being written; see docs/benchmarks.md.
TASK_FACTOR = 7
# What writing a part takes besides: its rows, and one compressed file.
PART_BYTES = 50_000_000
# Smaller partitions cost more than they save.
LEAST_PARTITION_BYTES = 1_000_000

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@dataclass(frozen=True)
class Ceiling:
    """What all processes of a write may hold together, and among how many it is shared."""

    given: str | int
    nbytes: int
    processes: int
    threads: int

    @classmethod
    def of(cls, memory: str | int) -> Ceiling:
        """Return the ceiling for the workers that will do the work."""
        processes, threads = partitions.worker_threads()
        # Besides the workers of a cluster, this process.
        return cls(memory, bytes_of(memory), processes + partitions.is_distributed(), threads)

    @property
    def partition_bytes(self) -> int:
        """Bytes that a partition may have in memory."""
        each = (self.nbytes - self.processes * PROCESS_BYTES) // self.threads - PART_BYTES
        return each // TASK_FACTOR

    def needed(self, partition_bytes: int) -> int:
        """Return the ceiling that partitions of this size need."""
        return self.processes * PROCESS_BYTES + self.threads * (PART_BYTES + TASK_FACTOR * partition_bytes)

    def refusal(self, partition_bytes: int, what: str, remedy: str) -> ConfigError:
        """Return the error for partitions that are too large."""
        processes = "1 process takes" if self.processes == 1 else f"{self.processes} processes take"
        return ConfigError(
            f"memory={self.given!r} is not enough: {what}, of which {self.threads} are worked on at once, each taking "
            f"up to {TASK_FACTOR} times that and {size(PART_BYTES)}, and {processes} {size(PROCESS_BYTES)} each: "
            f"{size(self.needed(partition_bytes))} in all; give as much, use fewer threads, or {remedy}"
        )


def plan_source(
    frame: Any, columns: Sequence[str] | None, memory: str | int | None, options: Mapping[str, Any]
) -> Source:
    """Return the source of a frame, in partitions that the memory allows; ConfigError if none can be small enough.

    `options` are those of `as_source`.
    """
    if memory is None:
        return as_source(frame, columns=columns, **options)
    if frames := splits_of(frame):
        return by_split(frames, columns, lambda one, own: plan_source(one, own, memory, options))
    ceiling = Ceiling.of(memory)
    allowed = ceiling.partition_bytes
    if allowed < LEAST_PARTITION_BYTES:
        least = f"partitions of {size(LEAST_PARTITION_BYTES)} are the smallest that make sense"
        raise ceiling.refusal(LEAST_PARTITION_BYTES, least, "leave memory out")
    wanted = min(allowed, options.get("partition_bytes", PARTITION_BYTES))
    source = as_source(frame, columns=columns, **{**options, "partition_bytes": wanted})
    if source.is_dask or source.prepared_by:
        raise ConfigError(
            "memory= cannot be kept for a Dask frame or prepared rows: how large partitions are is not known before "
            "they are computed; give the paths of the files, or leave memory out"
        )
    # As far as can be told before reading.
    if isinstance(source, PandasSource):
        largest = source.partition_bytes
    else:
        largest = max((piece.nbytes for piece in source.pieces), default=0)
    if largest > allowed:
        remedy = "write it to files"
        if isinstance(source, FileSource):
            cut = "give the paths, or a smaller partition_bytes to read_files, or "
            remedy = f"{cut if source is frame else ''}write the files with smaller row groups"
        raise ceiling.refusal(largest, f"the largest partition has {size(largest)}", remedy)
    return source


def bytes_of(memory: str | int, option: str = "memory") -> int:
    """Return the number of bytes that "2GB", "500 MiB" or a whole number means; `option` is what errors call it."""
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?i?)b?\s*", str(memory).lower())
    if not isinstance(memory, str) or found is None or found[2] not in _UNITS:
        raise ConfigError(f'{option}={memory!r}: expected bytes such as "2GB", "500MB" or 2_000_000_000')
    return int(float(found[1]) * _UNITS[found[2]])
