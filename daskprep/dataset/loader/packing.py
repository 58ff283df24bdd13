"""Packing for the training of language models: documents of a split joined into rows of one length.

A rank's documents arrive in the order in which the loader yields rows. Their padding is removed, and the concatenated
tokens are cut wherever a row is full, so that no token is lost or repeated.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from daskprep.columns.permutation import Integers
from daskprep.dataset import Split
from daskprep.dataset.loader.groups import to_device
from daskprep.dataset.loader.lengths import Padding, find_padding, read_lengths
from daskprep.dataset.loader.order import Schedule, rank_bounds
from daskprep.dataset.options import Packing, SharedOptions, check_count
from daskprep.errors import ConfigError

_EXTRA_OUTPUTS = ("position_ids", "document_ids")
_WINDOW_ROWS = 4_000_000
_CHUNK_TOKENS = 1 << 18  # a chunk, its mask and its positions fit in a core's cache

Arrays = dict[str, np.ndarray]
Documents = tuple[np.ndarray, Sequence[int]]  # token ids (documents, width), and the documents of each batch


@dataclass(frozen=True)
class PackingPosition:
    """Position of a rank: `read` batches of documents were yielded completely, and `tokens` of the next batch."""

    read: int = 0
    tokens: int = 0


class Joiner:
    """Joins the documents of one rank from batch ``position.read`` on, and cuts them into batches."""

    def __init__(self, block_size: int, rows: int, padding: Padding, position: PackingPosition) -> None:
        """Start at a position; earlier tokens are skipped."""
        self.block_size = block_size
        self.batch_tokens = block_size * rows
        self.padding = padding
        self._skip = self._tokens_yielded = position.tokens
        self._chunks: deque[tuple[np.ndarray, np.ndarray]] = deque()
        self._pending = 0
        # Start of each batch of documents in the sequence of tokens, from the batch of the next token on.
        self._first_batch = position.read
        self._starts: Integers = np.zeros(1, np.int64)

    def batches(self, windows: Iterable[Documents], *, drop_last: bool) -> Iterator[tuple[Arrays, PackingPosition]]:
        """Yield tokens, position ids and document ids of each batch, and the position to resume from after it."""
        for ids, sizes in windows:
            lengths = self.padding.lengths(ids)
            self._record_starts(lengths, sizes)
            step = max(1, _CHUNK_TOKENS // ids.shape[1])
            for start in range(0, len(ids), step):
                self._add(ids[start : start + step], lengths[start : start + step])
                if self._pending >= self.batch_tokens:
                    yield from self._cut_batches()
        if self._pending and not drop_last:
            yield self._make_batch(*self._join_pending())

    def _record_starts(self, lengths: Integers, sizes: Sequence[int]) -> None:
        """Add the starts of the batches of a window, and drop the starts of batches that were yielded completely."""
        before = int(np.searchsorted(self._starts, self._tokens_yielded, side="right")) - 1
        ends = np.concatenate(([0], np.cumsum(lengths)))[np.cumsum(sizes)]
        self._starts = np.concatenate((self._starts[before:], self._starts[-1] + ends))
        self._first_batch += before

    def _add(self, ids: np.ndarray, lengths: Integers) -> None:
        """Append the tokens of documents (documents, width) and their positions, without padding."""
        width = ids.shape[1]
        positions = np.arange(width, dtype=np.int32)[None, :]
        if self.padding.left:
            positions = positions - (width - lengths).astype(np.int32)[:, None]
            inside = positions >= 0
        else:
            inside = positions < lengths[:, None]
        tokens, token_positions = ids[inside], np.broadcast_to(positions, ids.shape)[inside]
        skipped = min(self._skip, len(tokens))
        self._skip -= skipped
        self._chunks.append((tokens[skipped:], token_positions[skipped:]))
        self._pending += len(tokens) - skipped

    def _join_pending(self) -> tuple[np.ndarray, np.ndarray]:
        """Return and clear pending tokens and position ids."""
        tokens = np.concatenate([chunk for chunk, _ in self._chunks])
        positions = np.concatenate([chunk for _, chunk in self._chunks])
        self._chunks.clear()
        self._pending = 0
        return tokens, positions

    def _cut_batches(self) -> Iterator[tuple[Arrays, PackingPosition]]:
        """Yield full batches of pending tokens, and keep the rest."""
        tokens, positions = self._join_pending()
        stop = len(tokens) - len(tokens) % self.batch_tokens
        # Copied, so that a few tokens do not keep the complete chunk in memory.
        self._chunks.append((tokens[stop:].copy(), positions[stop:].copy()))
        self._pending = len(tokens) - stop
        for start in range(0, stop, self.batch_tokens):
            batch = slice(start, start + self.batch_tokens)
            yield self._make_batch(tokens[batch], positions[batch])

    def _make_batch(self, tokens: np.ndarray, positions: np.ndarray) -> tuple[Arrays, PackingPosition]:
        """Return tokens in rows of `block_size`, position ids, document ids (padding: -1), and the position."""
        count = len(tokens)
        shape = (-(-count // self.block_size), self.block_size)
        ids = np.full(shape, self.padding.token, np.int64)
        ids.reshape(-1)[:count] = tokens
        position_ids = np.zeros(shape, np.int64)
        position_ids.reshape(-1)[:count] = positions
        documents = np.cumsum(position_ids == 0, axis=1)
        documents -= documents[:, :1].copy()
        documents.reshape(-1)[count:] = -1
        self._tokens_yielded += count
        index = int(np.searchsorted(self._starts, self._tokens_yielded, side="right")) - 1
        position = PackingPosition(self._first_batch + index, self._tokens_yielded - int(self._starts[index]))
        return {"tokens": ids, "position_ids": position_ids, "document_ids": documents}, position


class Packer:
    """Packing of the documents of a split, for a loader."""

    start = PackingPosition()

    def __init__(self, split: Split, packing: Packing, batch_size: int, *, drop_last: bool) -> None:
        """Find the output to pack and its padding; raise ConfigError if `packing` does not suit the split."""
        self.split = split
        if not isinstance(packing, Packing):
            raise ConfigError(f'pack={packing!r}: expected Packing(block_size=512, columns=["review"])')
        check_count("Packing: block_size", packing.block_size or 0, 1)
        self.block_size = packing.block_size
        self.column = _select_column(split, packing)
        self.output = split.output(self.column)
        self.padding = find_padding(split, self.column, "Packing")
        self.batch_size = batch_size
        self.drop_last = drop_last
        self._cached_count: tuple[tuple[int, int], int] | None = None

    def settings(self, schedule: Schedule) -> dict[str, Any]:
        """Return the values on which packed rows depend, besides the order."""
        sizes = {"block_size": self.block_size, "batch_size": self.batch_size, "world_size": schedule.world_size}
        return {"column": self.column, **sizes}

    def batches(
        self, windows: Iterable[Documents], position: PackingPosition, schedule: Schedule
    ) -> Iterator[tuple[Arrays, PackingPosition]]:
        """Yield a rank's batches from `position` on, each with the position after it; see `Joiner.batches`."""
        joiner = Joiner(self.block_size, self._batch_rows(schedule), self.padding, position)
        return joiner.batches(windows, drop_last=self.drop_last)

    def tensors(self, arrays: Arrays, device: torch.device | None) -> dict[str, torch.Tensor]:
        """Return a batch as tensors on `device`, named by output."""
        return {self.column if name == "tokens" else name: to_device(array, device) for name, array in arrays.items()}

    @cached_property
    def lengths(self) -> np.ndarray:
        return read_lengths(self.split, self.column, self.padding)

    def count(self, schedule: Schedule) -> int:
        """Return the fewest batches that a rank has in the schedule's epoch; the last result is cached."""
        key = (schedule.blocks.epoch, schedule.world_size)
        if self._cached_count is None or self._cached_count[0] != key:
            counts = []
            for own in (dataclasses.replace(schedule, rank=rank) for rank in range(schedule.world_size)):
                tokens = sum(int(tokens.sum()) for _, tokens in self._iterate_token_counts(own))
                full, rest = divmod(tokens, self._batch_tokens(own))
                counts.append(full + (rest > 0 and not self.drop_last))
            self._cached_count = key, min(counts)
        return self._cached_count[1]

    def locate(self, schedule: Schedule, batches: int) -> PackingPosition:
        """Return the position of the schedule's rank after `batches` packed batches, from the lengths of documents."""
        remaining = batches * self._batch_tokens(schedule)
        for window, tokens in self._iterate_token_counts(schedule):
            if remaining < tokens.sum():
                ends = np.cumsum(tokens)
                index = int(np.searchsorted(ends, remaining, side="right"))
                return PackingPosition(window[index], remaining - int(ends[index] - tokens[index]))
            remaining -= int(tokens.sum())
        return PackingPosition(len(schedule))

    def _batch_rows(self, schedule: Schedule) -> int:
        start, stop = rank_bounds(self.batch_size, schedule.rank, schedule.world_size)
        return stop - start

    def _batch_tokens(self, schedule: Schedule) -> int:
        return self._batch_rows(schedule) * self.block_size

    def _iterate_token_counts(self, schedule: Schedule) -> Iterator[tuple[range, Integers]]:
        """Yield ranges of batches of documents of the schedule's rank, with the number of tokens of each batch."""
        step = max(1, _WINDOW_ROWS * schedule.world_size // schedule.batch_size)
        for batches, sizes, rows in schedule.row_numbers(range(len(schedule)), step):
            ends = np.concatenate(([0], np.cumsum(self.lengths[rows])))[np.cumsum((0, *sizes))]
            yield batches, np.diff(ends)

    def state(self, position: PackingPosition, schedule: Schedule) -> dict[str, Any]:
        """Return the position of the schedule's rank, and the options it depends on, as JSON values."""
        return {**self.settings(schedule), "rank": schedule.rank, "read": position.read, "tokens": position.tokens}

    def restore_position(self, state: Mapping[str, Any], schedule: Schedule, batches: int) -> PackingPosition:
        """Return the position of the schedule's rank from the state of any rank, saved after `batches` batches."""
        is_own = state["rank"] == schedule.rank
        return PackingPosition(state["read"], state["tokens"]) if is_own else self.locate(schedule, batches)


def check_options(options: SharedOptions, overfit_batches: int | None) -> None:
    """Raise ConfigError for the first option of a loader that cannot be used together with packing."""
    for name, is_set, remedy in (
        ("columns", options.columns is not None, "Packing(columns=...) selects the output to pack"),
        ("targets", options.targets is not None, "compute them from the tokens with transform="),
        ("row_ids", options.row_ids, "a packed row has no number; document_ids distinguish documents"),
        ("expand", not options.expand, "packed tokens are always int64"),
        ("overfit_batches", overfit_batches is not None, "keep the first batches in a list, and iterate over that"),
        ("augment", options.augment is not None, "tokens are not augmented"),
        ("trim", options.trim, "only the last packed row has padding"),
    ):
        if is_set:
            raise ConfigError(f"{name} cannot be used together with pack: {remedy}")


def _select_column(split: Split, packing: Packing) -> str:
    """Return the name of the output to pack; raise ConfigError for several, an unknown one, or a reserved name."""
    columns = [packing.columns] if isinstance(packing.columns, str) else list(packing.columns)
    if len(columns) != 1:
        raise ConfigError(
            f"Packing: columns={columns!r}: expected one output: create a loader for each, or join their texts"
        )
    output = split.output(columns[0])
    if taken := next((name for name in _EXTRA_OUTPUTS if name in split.columns), None):
        raise ConfigError(
            f'Packing: "{taken}" of documents would replace an output of the dataset: pass it under another name'
        )
    return output.name
