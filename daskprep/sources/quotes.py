"""Ends of records in delimited text: newlines in quotes belong to a cell.

A quote opens a quoted part only at the start of a cell. Inside a quoted part, a doubled quote is a literal quote, and
a single quote ends the part. Anywhere else a quote is a normal character. So a run of 2n quotes never changes whether
the next character is quoted. A run of 2n + 1 quotes toggles the state after a delimiter or newline, and ends the quoted
part after any other character. The states after all runs are a cumulative sum that restarts at runs of the last kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

_NEWLINE, _RETURN = 10, 13


class _QuoteTracker:
    """The state of the quotes in a text that is read in blocks."""

    def __init__(self, delimiter: str, quote: str | None) -> None:
        self._delimiter = ord(delimiter)
        self._quote = None if quote is None else ord(quote)
        self._before = _NEWLINE
        self.inside = False  # whether the end of the last block is in quotes, opened at `opened_at`
        self.opened_at = 0

    def follow(self, block: np.ndarray, position: int) -> tuple[np.ndarray, np.ndarray]:
        """Return positions in a block where the state may change, and whether the text after each is quoted.

        The first position is -1, with the state before the block, which starts at `position` in the text. A block must
        not end inside a run of quotes.
        """
        changes = self._uneven_runs(block)
        inside = np.empty(1 + len(changes), bool)
        inside[::2], inside[1::2] = self.inside, not self.inside
        # If every run expected to open a part may open one, the runs open and close in turn: the common case.
        if not self._may_open(block, changes[int(self.inside) :: 2]).all():
            opens = self._may_open(block, changes)
            toggles = np.cumsum(opens) + self.inside
            restarts = np.maximum.accumulate(np.where(opens, -1, np.arange(len(changes))))
            inside[1:] = (toggles - np.where(restarts >= 0, toggles[restarts], 0)) & 1
        self.inside = bool(inside[-1])
        if self.inside and len(opened := np.flatnonzero(inside[1:] & ~inside[:-1])):
            self.opened_at = position + int(changes[opened[-1]])
        if len(block):
            self._before = int(block[-1])
        return np.concatenate([[-1], changes]), inside

    def _uneven_runs(self, block: np.ndarray) -> np.ndarray:
        """Return the start of each run of 2n + 1 quotes."""
        if self._quote is None or not (marks := block == self._quote).any():  # any() is far faster than flatnonzero
            return np.empty(0, np.int64)
        quotes = np.flatnonzero(marks)
        follows = np.diff(quotes, prepend=-2) == 1
        if not follows.any():
            return quotes
        first = np.flatnonzero(~follows)
        run_starts: np.ndarray = quotes[first[np.diff(first, append=len(quotes)) & 1 == 1]]
        return run_starts

    def _may_open(self, block: np.ndarray, runs: np.ndarray) -> np.ndarray:
        """Return a mask of the runs that may open a quoted part, which are at the start of a cell."""
        before = block[runs - 1]
        if len(runs) and runs[0] == 0:
            before[0] = self._before
        can_open: np.ndarray = (before == self._delimiter) | (before == _NEWLINE) | (before == _RETURN)
        return can_open


def _outside_quotes(positions: np.ndarray, changes: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return the `positions` in a block outside of quotes, with `changes` and `inside` from `follow`."""
    if len(changes) == 1:
        return positions[:0] if inside[0] else positions
    outside: np.ndarray = positions[~inside[np.searchsorted(changes, positions) - 1]]
    return outside


def join_quote_runs(blocks: Iterable[bytes], quote: str | None) -> Iterator[bytes]:
    """Yield the same bytes in blocks that do not end inside a run of quotes."""
    mark = b"" if quote is None else quote.encode()
    rest = b""
    for raw_block in blocks:
        block = rest + raw_block if rest else raw_block
        complete = len(block.rstrip(mark)) if mark else len(block)
        rest = block[complete:]
        if complete:
            yield block[:complete] if rest else block
    if rest:
        yield rest


def _join_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in blocks of complete lines, except for the last line."""
    waiting: list[bytes] = []
    for block in blocks:
        if end := max(block.rfind(b"\n"), block.rfind(b"\r")) + 1:
            yield b"".join([*waiting, block[:end]])
            waiting = []
        waiting.append(block[end:])
    yield b"".join(waiting)


def blank_out_comments(blocks: Iterable[bytes], delimiter: str, quote: str | None, comment: str) -> Iterator[bytes]:
    """Yield blocks with comment lines overwritten by carriage returns, so that positions stay the same."""
    quotes, line = (
        _QuoteTracker(delimiter, quote),
        re.compile(rb"(?<![^\r\n])" + re.escape(comment.encode()) + rb"[^\r\n]*"),
    )
    for block in _join_lines(blocks):
        view, out, start = np.frombuffer(block, np.uint8), bytearray(block), 0
        for match in line.finditer(block):
            quotes.follow(view[start : match.start()], 0)
            start = match.start()
            if not quotes.inside:
                start = match.end()
                out[slice(*match.span())] = b"\r" * len(match[0])
        quotes.follow(view[start:], 0)
        yield bytes(out)


class RecordCuts(NamedTuple):
    """Positions at which a text is split between records.

    Attributes
    ----------
    positions : list of int
        Positions after the ends of records.
    counts : list of int or None
        Number of records before each position, and in total; None for texts with quotes, carriage returns or blank
        lines, in which a newline may not end a record.
    unclosed_quote : int or None
        Position of a quote that is never closed.
    """

    positions: list[int]
    counts: list[int] | None
    unclosed_quote: int | None


def cut_records(
    blocks: Iterable[bytes], start: int, targets: Sequence[int], delimiter: str, quote: str | None
) -> RecordCuts:
    """Return the first end of a record at or after each of the `targets`, which are ascending positions.

    `start` is the position of the first byte of the first block.
    """
    quotes, positions, waiting = _QuoteTracker(delimiter, quote), list[int](), list(targets)[::-1]
    counts, lines, at_start, plain = list[int](), 0, True, True
    for block in join_quote_runs(blocks, quote):
        view = np.frombuffer(block, np.uint8)
        changes, inside = quotes.follow(view, start)
        ends = view == _NEWLINE
        blank = (at_start and ends[0]) or (ends[1:] & ends[:-1]).any()
        plain = plain and len(changes) == 1 and b"\r" not in block and not blank
        if waiting and waiting[-1] <= start + len(view):
            new_positions = take_ends(start + 1 + _outside_quotes(np.flatnonzero(ends), changes, inside), waiting)
            counts += [lines + int(np.count_nonzero(ends[: position - start])) for position in new_positions]
            positions += new_positions
        lines, at_start = lines + int(np.count_nonzero(ends)), bool(ends[-1])
        start += len(view)
    counts.append(lines + (not at_start))
    return RecordCuts(positions, counts if plain else None, quotes.opened_at if quotes.inside else None)


def take_ends(ends: np.ndarray, waiting: list[int]) -> list[int]:
    """Return the first end at or after each target, and remove these targets from `waiting`, a descending list."""
    taken: list[int] = []
    while waiting and (reached := int(np.searchsorted(ends, waiting[-1]))) < len(ends):
        taken.append(int(ends[reached]))
        while waiting and waiting[-1] <= taken[-1]:
            waiting.pop()
    return taken


def record_starts(text: bytes, delimiter: str, quote: str | None) -> np.ndarray:
    """Return the start of each record that is not a blank line."""
    view = np.frombuffer(text, np.uint8)
    changes, inside = _QuoteTracker(delimiter, quote).follow(view, 0)
    starts = np.concatenate([[0], _outside_quotes(np.flatnonzero(view == _NEWLINE), changes, inside) + 1])
    ends = np.append(starts[1:], len(view))
    return starts[[bool(text[a:b].strip(b"\r\n")) for a, b in zip(starts, ends, strict=True)]]


def first_record_end(text: bytes, delimiter: str, quote: str | None) -> int | None:
    """Return the position after the first record and its newline, or None if no newline ends it."""
    view = np.frombuffer(text, np.uint8)
    changes, inside = _QuoteTracker(delimiter, quote).follow(view, 0)
    ends = _outside_quotes(np.flatnonzero((view == _NEWLINE) | (view == _RETURN)), changes, inside)
    if not len(ends):
        return None
    end = int(ends[0]) + 1
    return end + 1 if text[end - 1 : end + 1] == b"\r\n" else end
