"""Where an iteration spends its time."""

from __future__ import annotations

from dataclasses import dataclass

from daskprep.loader.media import Decoded


@dataclass
class Times:
    """Seconds spent, summed over threads, and what the consumer waited for.

    Of media: how many rows were decoded, for how many of these a fill value stands, and how many blocks were cached.
    """

    gathering: float = 0.0
    decoding: float = 0.0
    waiting: float = 0.0
    decoded: int = 0
    filled: int = 0
    cached: int = 0

    def add(self, part: Decoded) -> None:
        """Count what a task has decoded."""
        self.decoding += part.seconds
        self.decoded += part.rows
        self.filled += part.filled
        self.cached += part.cached


@dataclass
class LoaderTimes(Times):
    """Of files: seconds of reading, and how many blocks were read."""

    reading: float = 0.0
    blocks: int = 0


@dataclass
class StreamTimes(Times):
    """Of partitions: how many came, how many windows they made, and the most bytes of these that were held."""

    partitions: int = 0
    windows: int = 0
    peak_bytes: int = 0
