"""What a report shows, apart from how it is drawn: the same charts become SVG and figures of matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What all charts have: a title, and what has to be said below."""

    title: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Histogram(Chart):
    """How many of what was counted lie between two edges, by split."""

    edges: np.ndarray
    counts: Mapping[str, np.ndarray]
    totals: Mapping[str, int]  # of each split: more than the sum where some lie beyond the edges
    ticks: Sequence[tuple[float, str]]  # where on the axis of the edges something is written
    names: Sequence[str]  # what is between two edges each time
    unit: str = "row"  # what was counted


@dataclass(frozen=True, kw_only=True)
class Bars(Chart):
    """How often each of a few labels occurs, by split; shares are those of `totals`."""

    labels: Sequence[str]
    counts: Mapping[str, Sequence[int]]
    totals: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Band(Chart):
    """The mean at each position by split, and how far the numbers of the first split lie around it.

    There may be fewer points than there are positions, which then are means of neighbours.
    """

    positions: int
    means: Mapping[str, np.ndarray]
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True, kw_only=True)
class TableChart(Chart):
    """A few values by name; the first row holds the names of the columns."""

    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Pictures(Chart):
    """PNG files with a caption each: images, or sounds from left to right, which are as wide as the page allows."""

    pictures: Sequence[tuple[bytes, str]]
    of_sounds: bool = False
