"""Files that hold one JSON array: cut between its elements, and each brought to a line of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from daskprep.errors import RejectedValueError
from daskprep.sources.quotes import take_ends, whole_runs
from daskprep.sources.text import BLOCK_BYTES, TextFile

# What an opening or closing bracket does to the number of those that are open.
STEPS = np.zeros(256, np.int8)
STEPS[list(b"[{")], STEPS[list(b"]}")] = 1, -1
_MARKS = np.isin(np.arange(256), list(b"[{]},\n"))


def _follow(blocks: Iterable[bytes]) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Follow strings and brackets from where an element may begin.

    Gives blocks, with the places in each of newlines outside of strings, of commas between elements, and of brackets
    that close the array.
    """
    inside, depth = False, 0
    small = (block[i : i + BLOCK_BYTES] for block in blocks for i in range(0, len(block), BLOCK_BYTES))
    for block in whole_runs(small, "\\"):
        view = np.frombuffer(block, np.uint8)
        quotes = np.flatnonzero(view == ord('"'))
        if b'\\"' in block:
            # A quote after an odd number of backslashes is a part of its string.
            others = np.maximum.accumulate(np.where(view == ord("\\"), -1, np.arange(len(view))))
            quotes = quotes[(quotes - np.where(quotes, others[quotes - 1], -1)) & 1 == 1]
        marks = np.flatnonzero(_MARKS[view])
        marks = marks[(np.searchsorted(quotes, marks) + inside) & 1 == 0]
        levels = depth + np.cumsum(STEPS[view[marks]], dtype=np.int64)
        commas = marks[(view[marks] == ord(",")) & (levels == 0)]
        yield view, marks[view[marks] == ord("\n")], commas, marks[levels < 0]
        inside ^= bool(len(quotes) & 1)
        depth = int(levels[-1]) if len(levels) else depth


def cut_elements(text: TextFile, start: int, targets: Sequence[int]) -> list[tuple[int, int]]:
    """Return where parts of an array begin and end: at the first comma at or after each target."""
    cuts, waiting, position = [], list(targets)[::-1], start
    for view, _, commas, ends in _follow(text.blocks(start)):
        last = int(ends[0]) if len(ends) else len(view)
        cuts += take_ends(position + commas[commas < last], waiting)
        position += last
        if len(ends):
            break
    rest = b"".join(block.strip() for block in text.blocks(position))
    if rest != b"]":
        what = f"after its end comes {rest[1:9]!r}" if rest else "it is never closed"
        raise RejectedValueError(
            f"{text.file.name}, line {text.line_at(position)}: not a JSON array: {what}; correct the file, or write "
            "one object a line"
        )
    return list(zip([start, *(cut + 1 for cut in cuts)], [*cuts, position], strict=True))


def as_lines(data: bytes) -> bytes:
    """Return the elements of a part of an array, one in a line; whatever else is there stays in its place."""
    parts = []
    for view, newlines, commas, _ in _follow([data]):
        block = view.copy()
        block[newlines], block[commas] = ord(" "), ord("\n")
        parts.append(block.tobytes())
    return b"".join(parts)
