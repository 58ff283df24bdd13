"""Where records of delimited text end: newlines in quotes belong to a cell.

A quote opens a quoted part only at the beginning of a cell; inside one, a doubled quote stands for itself
and a single one ends it; anywhere else a quote is a character like others. So a run of quotes of even length
never changes whether what follows is quoted, and a run of odd length either toggles that (it follows a
delimiter or newline) or ends it (it follows anything else). The state after every run comes from one running
sum that restarts at the latter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

_NEWLINE, _RETURN = 10, 13


class _QuoteTracker:
    """Follow the quotes of a text that comes in blocks."""

    def __init__(self, delimiter: str, quote: str | None) -> None:
        self._delimiter = ord(delimiter)
        self._quote = None if quote is None else ord(quote)
        self._before = _NEWLINE
        self.inside = False  # whether the text so far ends in quotes, which opened at `opened_at`
        self.opened_at = 0

    def follow(self, block: np.ndarray, position: int) -> tuple[np.ndarray, np.ndarray]:
        """Return where in the block the state may change, and whether text is quoted from there on.

        A first entry at -1 holds the state at the beginning. A block must not end amid a run of quotes.
        """
        at = self._odd_runs(block)
        inside = np.empty(1 + len(at), bool)
        inside[::2], inside[1::2] = self.inside, not self.inside
        # Where all runs that are to open a part may do so, they open and close in turn.
        if not self._may_open(block, at[int(self.inside) :: 2]).all():
            opens = self._may_open(block, at)
            toggles = np.cumsum(opens) + self.inside
            restarts = np.maximum.accumulate(np.where(opens, -1, np.arange(len(at))))
            inside[1:] = (toggles - np.where(restarts >= 0, toggles[restarts], 0)) & 1
        self.inside = bool(inside[-1])
        if self.inside and len(began := np.flatnonzero(inside[1:] & ~inside[:-1])):
            self.opened_at = position + int(at[began[-1]])
        if len(block):
            self._before = int(block[-1])
        return np.concatenate([[-1], at]), inside

    def _odd_runs(self, block: np.ndarray) -> np.ndarray:
        """Return where runs of an odd number of quotes begin."""
        if self._quote is None or not (marks := block == self._quote).any():  # far faster than to look for none
            return np.empty(0, np.int64)
        at = np.flatnonzero(marks)
        follows = np.diff(at, prepend=-2) == 1
        if not follows.any():
            return at
        first = np.flatnonzero(~follows)
        odd_runs: np.ndarray = at[first[np.diff(first, append=len(at)) & 1 == 1]]
        return odd_runs

    def _may_open(self, block: np.ndarray, runs: np.ndarray) -> np.ndarray:
        """Tell of each run whether it may open a quoted part."""
        before = block[runs - 1]
        if len(runs) and runs[0] == 0:
            before[0] = self._before
        can_open: np.ndarray = (before == self._delimiter) | (before == _NEWLINE) | (before == _RETURN)
        return can_open


def _outside_quotes(positions: np.ndarray, at: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return those places of a block that are not in quotes."""
    if len(at) == 1:
        return positions[:0] if inside[0] else positions
    outside: np.ndarray = positions[~inside[np.searchsorted(at, positions) - 1]]
    return outside


def join_quote_runs(blocks: Iterable[bytes], quote: str | None) -> Iterator[bytes]:
    """Move the quotes at the end of each block to the next one."""
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
    waiting: list[bytes] = []
    for block in blocks:
        if end := max(block.rfind(b"\n"), block.rfind(b"\r")) + 1:
            yield b"".join([*waiting, block[:end]])
            waiting = []
        waiting.append(block[end:])
    yield b"".join(waiting)


def blank_out_comments(blocks: Iterable[bytes], delimiter: str, quote: str | None, comment: str) -> Iterator[bytes]:
    """Put carriage returns in place of lines that begin with a mark and not in quotes; all else keeps its place."""
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
    """Positions between records, how many there are before each and in all, and where a quote opens that never closes.

    Records are counted where every newline ends one: there are no quotes, carriage returns or blank lines.
    """

    positions: list[int]
    counts: list[int] | None
    unclosed_quote: int | None


def cut_records(
    blocks: Iterable[bytes], start: int, targets: Sequence[int], delimiter: str, quote: str | None
) -> RecordCuts:
    """Return the first end of a record at or after each of the `targets`, positions in rising order.

    `start` is the position of the first block's first byte.
    """
    quotes, positions, waiting = _QuoteTracker(delimiter, quote), list[int](), list(targets)[::-1]
    counts, lines, at_start, plain = list[int](), 0, True, True
    for block in join_quote_runs(blocks, quote):
        view = np.frombuffer(block, np.uint8)
        at, inside = quotes.follow(view, start)
        ends = view == _NEWLINE
        blank = (at_start and ends[0]) or (ends[1:] & ends[:-1]).any()
        plain = plain and len(at) == 1 and b"\r" not in block and not blank
        if waiting and waiting[-1] <= start + len(view):
            new_positions = take_ends(start + 1 + _outside_quotes(np.flatnonzero(ends), at, inside), waiting)
            counts += [lines + int(np.count_nonzero(ends[: position - start])) for position in new_positions]
            positions += new_positions
        lines, at_start = lines + int(np.count_nonzero(ends)), bool(ends[-1])
        start += len(view)
    counts.append(lines + (not at_start))
    return RecordCuts(positions, counts if plain else None, quotes.opened_at if quotes.inside else None)


def take_ends(ends: np.ndarray, waiting: list[int]) -> list[int]:
    """Return the first end at or after each target, which are removed from those `waiting`, the next one last."""
    taken: list[int] = []
    while waiting and (reached := int(np.searchsorted(ends, waiting[-1]))) < len(ends):
        taken.append(int(ends[reached]))
        while waiting and waiting[-1] <= taken[-1]:
            waiting.pop()
    return taken


def record_starts(text: bytes, delimiter: str, quote: str | None) -> np.ndarray:
    """Return where each record that is not a blank line begins."""
    view = np.frombuffer(text, np.uint8)
    at, inside = _QuoteTracker(delimiter, quote).follow(view, 0)
    starts = np.concatenate([[0], _outside_quotes(np.flatnonzero(view == _NEWLINE), at, inside) + 1])
    ends = np.append(starts[1:], len(view))
    return starts[[bool(text[a:b].strip(b"\r\n")) for a, b in zip(starts, ends, strict=True)]]


def first_record_end(text: bytes, delimiter: str, quote: str | None) -> int | None:
    """Return the position after the first record and its newline, or None if no newline ends it."""
    view = np.frombuffer(text, np.uint8)
    at, inside = _QuoteTracker(delimiter, quote).follow(view, 0)
    ends = _outside_quotes(np.flatnonzero((view == _NEWLINE) | (view == _RETURN)), at, inside)
    if not len(ends):
        return None
    end = int(ends[0]) + 1
    return end + 1 if text[end - 1 : end + 1] == b"\r\n" else end
