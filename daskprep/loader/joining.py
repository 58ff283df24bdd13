"""Join documents into rows of one length, without torch and without files.

A rank's documents arrive in the order in which the loader yields rows. Their padding is removed, and the concatenated
tokens are cut wherever a row is full, so that no token is lost or repeated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from daskprep.permutation import Integers

_CHUNK_TOKENS = 1 << 18  # a chunk, its mask and its positions fit in a core's cache

Arrays = dict[str, np.ndarray]
Documents = tuple[np.ndarray, Sequence[int]]


@dataclass(frozen=True)
class Padding:
    """The token id that pads short rows, and whether it is on their left side."""

    token: int
    left: bool = False

    def lengths(self, ids: np.ndarray) -> Integers:
        """Return the number of tokens of each row; padding ids within or on the other side of a row are tokens."""
        is_token = ids != self.token
        # Only one side is cut, because some tokenizers use the end-of-sentence symbol as padding.
        padded = (is_token if self.left else is_token[:, ::-1]).argmax(axis=1)
        lengths: Integers = np.where(is_token.any(axis=1), ids.shape[1] - padded, 0)
        return lengths


@dataclass(frozen=True)
class PackingPosition:
    """Position of a rank: `read` batches of documents were yielded completely, and `tokens` of the next batch."""

    read: int = 0
    tokens: int = 0


class Joiner:
    """Joins the documents of one rank and cuts them into batches of `rows` rows of `block_size` tokens.

    The first documents passed to `batches` must belong to batch number ``position.read``.
    """

    def __init__(self, block_size: int, rows: int, padding: Padding, position: PackingPosition) -> None:
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
        """Yield tokens, position ids and document ids of each batch, and the position to resume from after it.

        A window is an array of token ids of the shape (documents, width), and the number of documents of each batch.
        """
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
        """Append the tokens of documents, without padding, to the pending tokens."""
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
        """Return all pending tokens and their position ids, and clear them."""
        tokens = np.concatenate([chunk for chunk, _ in self._chunks])
        positions = np.concatenate([chunk for _, chunk in self._chunks])
        self._chunks.clear()
        self._pending = 0
        return tokens, positions

    def _cut_batches(self) -> Iterator[tuple[Arrays, PackingPosition]]:
        """Yield the full batches of the pending tokens, and keep the remaining tokens."""
        tokens, positions = self._join_pending()
        stop = len(tokens) - len(tokens) % self.batch_tokens
        # Copied, so that a few tokens do not keep the complete chunk in memory.
        self._chunks.append((tokens[stop:].copy(), positions[stop:].copy()))
        self._pending = len(tokens) - stop
        for start in range(0, stop, self.batch_tokens):
            batch = slice(start, start + self.batch_tokens)
            yield self._make_batch(tokens[batch], positions[batch])

    def _make_batch(self, tokens: np.ndarray, positions: np.ndarray) -> tuple[Arrays, PackingPosition]:
        """Return a padded batch of tokens, with the position to resume from after it."""
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
