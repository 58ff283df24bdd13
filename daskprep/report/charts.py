"""Charts of a report as data, which are drawn as SVG or as matplotlib figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Base class of charts, with a title and a note that is shown below."""

    title: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Histogram(Chart):
    """Counts in bins between edges, by split.

    Attributes
    ----------
    edges : array
        Edges of the bins, one more than bins.
    counts : mapping of str to array
        Count of each bin, by split.
    totals : mapping of str to int
        Total count by split, including values outside of the edges.
    ticks : sequence of (float, str)
        Positions on the axis, and their labels.
    names : sequence of str
        Names of the bins.
    unit : str
        Noun for the counted items, in the singular.
    """

    edges: np.ndarray
    counts: Mapping[str, np.ndarray]
    totals: Mapping[str, int]
    ticks: Sequence[tuple[float, str]]
    names: Sequence[str]
    unit: str = "row"


@dataclass(frozen=True, kw_only=True)
class Bars(Chart):
    """Counts of labels by split; shares are relative to `totals`."""

    labels: Sequence[str]
    counts: Mapping[str, Sequence[int]]
    totals: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Band(Chart):
    """Mean at each position by split, and the range from `low` to `high` of the first split.

    If there are fewer points than `positions`, each point is the mean of neighboring positions.
    """

    positions: int
    means: Mapping[str, np.ndarray]
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True, kw_only=True)
class TableChart(Chart):
    """Table of values; the first row contains the column names, and the first column the row names."""

    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Pictures(Chart):
    """PNG files with captions; `is_audio`: drawings of audio over time, as wide as the page allows."""

    pictures: Sequence[tuple[bytes, str]]
    is_audio: bool = False
