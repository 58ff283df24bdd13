"""The memory of a loader within a limit: the number of streams, of prefetched blocks, and the size of windows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from daskprep.columns.display import format_bytes, format_count, parse_bytes
from daskprep.errors import ConfigError

WINDOWS = 4  # windows in memory: two are gathered, one is yielded, and a batch of another may still be in use
_FIXED_BYTES = 40_000_000  # cached columns of single numbers, and what threads and allocators take


def not_enough(memory: str | int, required_bytes: int) -> str:
    """Return the start of the error for a limit of less than `required_bytes`, rounded up."""
    unit = 10**6 if required_bytes < 10**9 else 10**8
    needed = format_bytes(-(-required_bytes // unit) * unit)
    return f"memory={memory!r} is not enough: this needs at least {needed}"


@dataclass(frozen=True)
class LoaderMemory:
    """The memory limit of a loader, and the sizes of its parts."""

    memory: str | int  # as the user passed it, for messages
    block_bytes: int
    batch_bytes: int
    blocks: int  # of the split
    threads: int
    blocks_per_stream: int  # in memory at once; of all sources of a mix together

    def _required_bytes(self, streams: int) -> int:
        """Return the bytes for blocks and reads of some streams, without prefetching, and for small windows."""
        slots = min(self.blocks, streams * self.blocks_per_stream)
        return (slots + self.threads) * self.block_bytes + WINDOWS * self.batch_bytes + _FIXED_BYTES

    def choose_streams(self, choices: Iterable[int]) -> int:
        """Return the first of descending numbers of streams that fits; ConfigError if none does."""
        limit, streams = parse_bytes(self.memory), 1
        for streams in choices:
            if self._required_bytes(streams) <= limit:
                return streams
        raise ConfigError(
            f"{not_enough(self.memory, self._required_bytes(streams))}, "
            f"for {format_count(streams, 'stream')} of {self.blocks_per_stream} blocks and {self.threads} reads of "
            f"{format_bytes(self.block_bytes)} each, and {WINDOWS} batches of {format_bytes(self.batch_bytes)}. Raise "
            "memory, select fewer outputs with columns=, use fewer threads or streams, or write the dataset with a "
            "smaller block_rows"
        )

    def divide(self, streams: int) -> tuple[int, int]:
        """Return the bytes for prefetched blocks, and for each window, besides the blocks of all streams."""
        rest = max(0, parse_bytes(self.memory) - self._required_bytes(streams))
        window_bytes = self.batch_bytes + rest // (2 * WINDOWS)
        return rest // 2, window_bytes
