"""Numbers: normalized, outliers tamed."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.errors import ConfigError, RejectedValueError
from daskprep.features.base import Invalid, Learned
from daskprep.features.feature import Feature, with_parameters
from daskprep.features.missing import (
    Edge,
    Neighbours,
    carries,
    drops_missing,
    fill_from_neighbours,
    neighbour_strategy,
)
from daskprep.features.parameters import NonNegative
from daskprep.features.written import (
    Tally,
    as_cells,
    learn_style,
    numbers_in_style,
    numbers_or_texts,
    numbers_stated,
    tally,
)
from daskprep.serving.units import center_and_scale, original_units
from daskprep.serving.written import style_of
from daskprep.summaries import ColumnSummary, Moments, Quantiles, Range, Rejects, Summary, TokenCounts
from daskprep.summaries.rejects import SAMPLE_CHARACTERS, SAMPLES

Normalization = Literal["zscore", "minmax", "log1p", "iq"]
OutlierStrategy = Literal["fill_with_const", "fill_with_mean", "fill_with_mode", "bfill", "ffill", "drop_row"]


_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class NumberSummary(Summary):
    """Moments and range of plain numbers; quantiles and counts of equal ones where a parameter needs them.

    `fractions` is above 0 if one of them is not whole. `written` counts the texts that may be other numbers: which
    they are, all of them tell together.
    """

    moments: Moments
    range: Range
    quantiles: Quantiles | None
    counts: TokenCounts | None
    fractions: int = 0
    written: TokenCounts = field(default_factory=lambda: TokenCounts(pa.string()))

    def mean(self) -> float:
        return self.moments.mean()

    def mode(self) -> Any:
        assert self.counts is not None
        return self.counts.top()


@dataclass(frozen=True, kw_only=True)
class LearnedNumber(Learned):
    """Moments, range and quartiles, each None where no parameter asks for it.

    `written` is a number as those of the column are written, None if all are plain.
    """

    written: str | None = None
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    q1: float | None = None
    q2: float | None = None
    q3: float | None = None
    outlier_fill_value: float | None = None

    def to_state(self) -> dict[str, Any]:
        state = super().to_state()
        if self.written is None:  # as in states from before there was one
            del state["written"]
        return state

    def recognize(self, parsed: pa.Array) -> pa.Array:
        if not pa.types.is_struct(parsed.type):
            return parsed
        numbers, texts = parsed.flatten()
        if self.written is None:
            return numbers
        cells = texts.dictionary_encode()
        return pc.coalesce(numbers_stated(cells.dictionary, style_of(self.written)).take(cells.indices), numbers)


@with_parameters
class Number(Feature[NumberSummary, LearnedNumber]):
    """Normalize numbers; statistics use double precision, and the result is float32.

    Text that holds a number is read as one. Infinities and text that is not a number count as missing and are reported.
    Notations such as "$1,299.50", "1.299,50 €", "12 %" and "1h 30m" are learned from all rows: one unit, one decimal
    mark and one thousands separator per column. Times and durations become seconds.

    Parameters
    ----------
    normalization : {"zscore", "minmax", "log1p", "iq"} or None
        "zscore": ``(x - mean) / std`` with the sample standard deviation. "minmax": ``(x - min) / (max - min)``.
        "log1p": ``log(1 + x)``. "iq": ``(x - median) / (q3 - q1)``. None: the number unchanged. A constant column
        becomes 0.
    outlier_strategy : str or None
        How to replace values that are further than `outlier_threshold` standard deviations from the mean. Mean and
        standard deviation include the outliers of the training rows.
    outlier_threshold : float
        Distance from the mean, in standard deviations.
    missing_value_strategy : str
        Imputation of missing values: "fill_with_const" (with `fill_value`), "fill_with_mean", "fill_with_mode",
        "ffill", "bfill" or "drop_row".
    fill_value : float
        Value that "fill_with_const" imputes for missing values and outliers. It is included in the statistics.
    written : str or None
        An example of the notation, such as "1.234,5 €", for ambiguous columns. None: learned from the data.
    invalid : {"missing", "raise"}
        Whether a value that is not a number counts as missing or raises `RejectedValueError`.
    column : str or None
        Column to read, if its name differs from that of the feature.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskprep import Number
    >>> frame = pd.DataFrame({"price": ["1", "3", None, "5"]})
    >>> Number(normalization="minmax", missing_value_strategy="fill_with_mean").fit_transform(frame).ravel()
    array([0. , 0.5, 0.5, 1. ], dtype=float32)
    """

    kind = "number"
    holds = "numbers"
    _odd_cells = (" -1.5e-1\n", "no number")

    normalization: Normalization | None = "zscore"
    outlier_strategy: OutlierStrategy | None = None
    outlier_threshold: NonNegative = 3.0
    missing_value_strategy: OutlierStrategy = "fill_with_const"
    fill_value: float | None = 0.0
    written: str | None = None
    invalid: Invalid = "missing"
    column: str | None = None

    def check(self) -> None:
        if self.outlier_strategy == "fill_with_const" and self.fill_value is None:
            raise ConfigError('Number: outlier_strategy "fill_with_const" needs a fill_value')
        if self.written is not None:
            style_of(self.written)

    def parse(self, column: pa.Array) -> pa.Array:
        if self.written is None:
            return numbers_or_texts(column)
        return numbers_in_style(column, style_of(self.written))

    def summarize(self, parsed: pa.Array) -> NumberSummary:
        if not pa.types.is_struct(parsed.type):
            return self._summarize(parsed)
        numbers, texts = parsed.flatten()
        sure = numbers.filter(texts.is_null()).drop_null()
        if _has_fraction(sure.to_numpy()):  # there is no decimal comma, and "1.234" is sure
            sure, texts = numbers, texts.filter(numbers.is_null())
        summary, counted = self._summarize(sure), texts.drop_null().value_counts()
        counts = TokenCounts.of(counted.field("values"), counted.field("counts").to_numpy())
        return dataclasses.replace(summary, written=counts)

    def _summarize(self, numbers: pa.Array) -> NumberSummary:
        present = numbers.drop_null()
        values = present.to_numpy(zero_copy_only=False)
        quantiles = Quantiles.of(values) if self.normalization == "iq" else None
        counts = None
        if "fill_with_mode" in (self.missing_value_strategy, self.outlier_strategy):
            counted = present.value_counts()
            counts = TokenCounts.of(counted.field("values"), counted.field("counts").to_numpy())
        return NumberSummary(Moments.of(values), Range.of(values), quantiles, counts, int(_has_fraction(values)))

    def cells(self, parsed: pa.Array) -> None:
        return None

    def learn_fill(self, summary: ColumnSummary[NumberSummary]) -> Any:
        return summary.values.mean() if self.missing_value_strategy == "fill_with_mean" else summary.values.mode()

    def _learn_fallback(self, summary: ColumnSummary[NumberSummary]) -> float:
        return summary.values.mean()

    def learn(self, summary: NumberSummary) -> LearnedNumber:
        if not summary.moments.count:
            return LearnedNumber()
        low, high = summary.range.min, summary.range.max
        if self.normalization == "log1p" and low <= -1 and self.outlier_strategy is None:
            raise _no_logarithm(low)
        cuts = summary.quantiles
        q1, q2, q3 = (None if cuts is None else cuts.quantile(quarter / 4) for quarter in (1, 2, 3))
        # Of the lowest and the largest double it is no double, and JSON has no infinity.
        std = min(summary.moments.std(ddof=1), _LARGEST) if summary.moments.count > 1 else 0.0
        return LearnedNumber(mean=summary.moments.mean(), std=std, min=low, max=high, q1=q1, q2=q2, q3=q3)

    def learn_column(self, summary: ColumnSummary[NumberSummary]) -> LearnedNumber:
        summary, written = self._read(summary)
        learned = dataclasses.replace(super().learn_column(summary), written=written)
        if self.outlier_strategy == "fill_with_const":
            return dataclasses.replace(learned, outlier_fill_value=self.fill_value)
        if self.outlier_strategy == "fill_with_mean":
            return dataclasses.replace(learned, outlier_fill_value=learned.mean)
        if self.outlier_strategy == "fill_with_mode":
            return dataclasses.replace(learned, outlier_fill_value=summary.values.mode())
        return learned

    def _read(self, summary: ColumnSummary[NumberSummary]) -> tuple[ColumnSummary[NumberSummary], str | None]:
        """Return the summary with the numbers that texts were found to be, and how these are written."""
        values = summary.values
        if not values.written.total:
            return summary, self.written
        plain = values.moments.count if values.range.min or values.range.max else 0
        told = Tally(Counter(), plain, values.fractions, 0)
        for chunk in itertools.chain.from_iterable(values.written.parts()):
            told = Tally(*map(operator.add, told, tally(*chunk)))
        found = learn_style(told)
        style = None if found is None else style_of(found.example)
        odd, samples = 0, list[str]()
        for texts, counts in itertools.chain.from_iterable(values.written.parts()):
            numbers = numbers_stated(texts, style)
            unread = np.array(numbers.is_null(), bool)
            odd += int(counts[unread].sum())
            samples += texts.filter(pa.array(unread)).sort().slice(0, SAMPLES).to_pylist()
            if not unread.all():
                values = values + self._weighted(numbers.drop_null(), counts[~unread])
        samples = [sample[:SAMPLE_CHARACTERS] for sample in sorted(set(samples))[:SAMPLES]]
        if odd and self.invalid == "raise":
            raise RejectedValueError(
                f"{samples[0]!r} cannot be read as a number ({odd} such cells); correct the data, or use "
                'invalid="missing"'
            )
        rejects = summary.rejects + Rejects(odd, tuple(enumerate(samples, 1 << 62)))  # behind those with a row
        rows = summary.rows - odd * drops_missing(self)
        summary = dataclasses.replace(summary, rows=rows, missing=summary.missing + odd, rejects=rejects, values=values)
        return summary, None if found is None else found.example

    def _weighted(self, numbers: pa.Array, counts: np.ndarray) -> NumberSummary:
        """Return the summary of numbers that occur so often."""
        order = np.argsort(counts, kind="stable")
        starts = np.flatnonzero(np.diff(counts[order], prepend=0))
        ordered = np.split(numbers.take(pa.array(order)).to_numpy(), starts[1:])
        parts = (
            self._summarize(pa.array(one)) * int(counts[order[at]]) for one, at in zip(ordered, starts, strict=True)
        )
        return functools.reduce(operator.add, parts)

    def encode(self, parsed: pa.Array, learned: LearnedNumber) -> np.ndarray:
        values = learned.recognize(parsed).to_numpy(zero_copy_only=False)
        outliers = self.outliers(values, learned)
        if outliers is not None and learned.outlier_fill_value is not None:
            values = np.where(outliers, learned.outlier_fill_value, values)
        if self.normalization == "log1p":
            return _to_float32(_log1p(values))
        center, scale = center_and_scale(self.normalization, vars(learned))
        if center == 0.0 and scale == 1.0:
            return _to_float32(values)
        if scale == 0.0:
            return np.zeros(len(values), np.float32)
        out = np.empty(len(values), np.float64)
        np.subtract(values, center, out=out)
        with np.errstate(over="ignore"):  # bounded below
            np.multiply(out, scale, out=out)
        return _to_float32(out)

    def decode(self, encoded: np.ndarray, learned: LearnedNumber) -> pa.Array:
        return pa.array(original_units(encoded, self.normalization, vars(learned)))

    def advice(self, learned: LearnedNumber) -> str | None:
        if not center_and_scale(self.normalization, vars(learned))[1]:
            return f'is constant, so normalization "{self.normalization}" makes it 0 everywhere'
        return None

    # -- outliers, which only exist once mean and standard deviation are known

    @property
    def around(self) -> Neighbours | None:
        strategies = self.missing_value_strategy, self.outlier_strategy
        return _NumbersAround(self) if any(map(neighbour_strategy, strategies)) else None

    @property
    def drops(self) -> Callable[[pa.Array, LearnedNumber], np.ndarray | None] | None:
        return self._outlying if self.outlier_strategy == "drop_row" else None

    def cell_of(self, value: Any) -> object:
        return (value["text"] or value["number"]) if isinstance(value, dict) else value

    def _outlying(self, parsed: pa.Array, learned: LearnedNumber) -> np.ndarray | None:
        return self.outliers(parsed.to_numpy(zero_copy_only=False), learned)

    def outliers(self, values: np.ndarray, learned: LearnedNumber | None) -> np.ndarray | None:
        """Return which values are too far from the mean (None: none, or that is not known yet)."""
        if self.outlier_strategy is None or learned is None or not learned.std:
            return None
        with np.errstate(invalid="ignore", over="ignore"):
            far: np.ndarray = np.abs(values - learned.mean) > self.outlier_threshold * learned.std
        return far


class _NumbersAround(Neighbours):
    """Fills gaps, and puts neighbours in place of outliers, which fill nothing themselves."""

    def __init__(self, number: Number) -> None:
        self._number = number
        self._gaps = neighbour_strategy(number.missing_value_strategy)
        self._outliers = neighbour_strategy(number.outlier_strategy)
        self.learns = self._gaps is not None

    def _smooth(self, parsed: pa.Array, learned: LearnedNumber | None) -> pa.Array:
        if learned is None:  # when texts are not numbers yet
            return parsed
        outliers = self._number.outliers(parsed.to_numpy(zero_copy_only=False), learned)
        return parsed if outliers is None else pc.if_else(pa.array(outliers), pa.scalar(None, pa.float64()), parsed)

    def edge(self, parsed: pa.Array, learned: Any = None) -> Edge:
        return Edge.of(self._smooth(parsed, learned))

    def carries(self, edges: Sequence[Edge]) -> list[Any]:
        return list(zip(carries(edges, "ffill"), carries(edges, "bfill"), strict=True))

    def complete(self, parsed: pa.Array, carry: Any, learned: Any = None) -> pa.Array:
        carry = carry or (None, None)
        if any(isinstance(one, dict) for one in carry):  # texts beside numbers, as `as_cells` has them
            parsed = as_cells(parsed)
        if pa.types.is_struct(parsed.type):
            carry = [{"number": one} if isinstance(one, float) else one for one in carry]
        carried = dict(zip(("ffill", "bfill"), carry, strict=True))
        smooth = self._smooth(parsed, learned)
        filled = parsed
        if self._gaps is not None:
            filled = fill_from_neighbours(smooth, self._gaps, carried[self._gaps])
            filled = filled if smooth is parsed else pc.coalesce(parsed, filled)
        if smooth is not parsed and self._outliers is not None:
            patch = fill_from_neighbours(smooth, self._outliers, carried[self._outliers])
            outliers = pc.and_(parsed.is_valid(), smooth.is_null())
            filled = pc.if_else(outliers, patch, filled)
        return filled


def _has_fraction(values: np.ndarray) -> bool:
    """Tell whether a number is not whole, which of most columns the first few tell."""
    return any((part != np.floor(part)).any() for part in np.split(values, [1024]))


def _log1p(values: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        outside = np.flatnonzero(values <= -1)
    if len(outside):
        raise _no_logarithm(values[outside[0]])
    logarithms: np.ndarray = np.log1p(values)
    return logarithms


def _no_logarithm(value: float) -> RejectedValueError:
    return RejectedValueError(f"{value:g} has no log1p, which needs values above -1: use another normalization")


def _to_float32(values: np.ndarray) -> np.ndarray:
    # Brought within bounds before: what overflows would have to be looked for.
    narrow: np.ndarray = np.maximum(np.minimum(values, _LARGEST_FLOAT32), -_LARGEST_FLOAT32).astype(np.float32)
    return narrow
