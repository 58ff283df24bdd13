"""Join small pieces that follow each other, so that no partition is much smaller than it should be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from daskprep.sources.base import FilePiece, JoinedPiece, Piece

# Rows of few narrow columns take little memory as they are, but parsing gives each row more.
MOST_ROWS = 1 << 20

P = TypeVar("P", bound=Piece)
F = TypeVar("F", bound=FilePiece)


def grouped(
    pieces: Sequence[P],
    partition_bytes: int,
    join: Callable[[list[P]], Piece],
    *,
    alone: Callable[[P], bool] | None = None,
    partitions: int | None = None,
) -> list[Piece]:
    """Join pieces that follow each other as long as they stay within `partition_bytes` together.

    There are as many `partitions` at least, if there are so many pieces.
    """
    groups: list[list[P]] = []
    for cuts in ((), _even_cuts([piece.nbytes for piece in pieces], partitions or 1)):
        if groups and len(groups) >= (partitions or 1):
            break
        groups, room, rows = [], 0, 0
        for i, piece in enumerate(pieces):
            apart = alone is not None and alone(piece)
            if apart or piece.nbytes > room or (piece.rows or 0) > rows or not groups or i in cuts:
                groups.append([])
                room, rows = (0, 0) if apart else (partition_bytes, MOST_ROWS)
            groups[-1].append(piece)
            room, rows = room - piece.nbytes, rows - (piece.rows or 0)
    return [group[0] if len(group) == 1 else join(group) for group in groups]


def _even_cuts(sizes: Sequence[int], parts: int) -> list[int]:
    """Return before which pieces to cut them into parts of about the same size, none of them empty."""
    ends, steps = np.cumsum(sizes), np.arange(1, min(parts, len(sizes)))
    cuts = np.searchsorted(ends - np.asarray(sizes) / 2, steps * (ends[-1] / (len(steps) + 1)))
    found: list[int] = (np.maximum.accumulate(cuts - steps).clip(0, len(sizes) - 1 - len(steps)) + steps).tolist()
    return found


def evenly(start: int, stop: int, partition_bytes: int) -> list[int]:
    """Return the positions that cut a range into equal parts of at most `partition_bytes`."""
    parts = max(1, -(-(stop - start) // partition_bytes))
    return [start + (stop - start) * i // parts for i in range(1, parts)]


def join_files(pieces: list[F], more: Callable[[list[F]], dict[str, Any]]) -> Piece:
    """Join pieces of files, those of one file to one piece; `more` says what it has besides rows and bytes."""
    parts: list[Piece] = []
    for _, group in groupby(pieces, key=lambda piece: piece.file):
        same = list(group)
        rows, nbytes = sum(piece.rows or 0 for piece in same), sum(piece.nbytes for piece in same)
        parts.append(replace(same[0], rows=rows, nbytes=nbytes, **more(same)))
    return parts[0] if len(parts) == 1 else JoinedPiece.of(parts)
