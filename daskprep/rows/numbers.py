"""Row encoder of `Number`: notations such as "$1,299.50", "1.299,50 €", "12 %" and "1h 30m", outliers, and encodings.

The regular expressions match the same texts in Python's `re` and in RE2, which Arrow applies to columns.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from daskprep.errors import ConfigError, DaskprepError
from daskprep.rows.base import (
    NEIGHBOUR_STRATEGIES,
    Arrays,
    Parameters,
    RowEncoder,
    RowMappings,
    changed_parameters,
    fill_from_neighbours,
    smallest_uint,
)
from daskprep.rows.cells import NUMBER_TYPES, is_missing, number_of, text_of
from daskprep.rows.normalization import MAX_FLOAT32, NORMALIZATIONS, Normalization
from daskprep.rows.typed import CellKind, Count, NonNegative, later

MAX_CHARACTERS = 64  # longer texts are not numbers
AMBIGUOUS = "[+-]?[1-9][0-9]{0,2}[.][0-9]{3}"  # "1.299" is a decimal, or thousands in a notation with decimal commas
POWERS = {"k": "e3", "K": "e3", "M": "e6", "B": "e9"}
# A number with the last letter of its unit; an "e" right after digits would be an exponent.
_POWER = "([0-9].*(?:[A-DF-Za-df-z]|[^0-9.][eE]))"
# Replacements by the usual form: "m2" by "m²", "(5)" by "-5", and "$-5" by "-$5".
REPLACEMENTS = (
    ("[\u00a0\u2000-\u200a\u202f\u205f\u3000]", " "), ("\u2019", "'"), ("\u2212", "-"),
    (f"{_POWER}2$", "\\1\u00b2"), (f"{_POWER}3$", "\\1\u00b3"),
    (r"^([^()0-9]*)\(([^()]+)\)$", r"-\1\2"), (r"^([^0-9+-]*[^0-9A-Za-z.+-])([+-])", r"\2\1"),
)  # fmt: skip
NON_ASCII_REPLACEMENTS = 3  # the first ones, which only apply to text beyond ASCII
# Characters of a unit: letters and symbols, but no spaces, digits, fractions, dashes and arithmetic operators.
_LETTERS = (
    "A-Za-z$\u00a1-\u00b0\u00b4-\u00b8\u00ba\u00bb\u00bf-\u00d6\u00d8-\u00f6\u00f8-\u1fff\u200b-\u200f\u2016-\u2018"
    "\u201a-\u202e\u2030-\u205e\u20a0-\u214f\u2190-\u21ff\u2300-\u2fff\u3001-\uff0f\uff1a-\U0010ffff"
)
_WORD = f"/?[%{_LETTERS}][%{_LETTERS}./^*]*[\u00b2\u00b3]?"
_UNIT = f"(?:{_WORD}(?: {_WORD}){{0,2}}|[+#\"'])"
_INDIAN = "[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3}"
_GROUPS = "|".join(f"(?:{mark}[0-9]{{3}})+" for mark in (",", r"\.", "'", " "))
_SIGN, _CLOCK = "(?P<sign>[+-]?)", "(?P<h>[0-9]{1,4}):(?P<m>[0-5][0-9])"
_EXPONENT = "(?:[eE][+-]?[0-9]+)?"
AMOUNT = (
    rf"{_SIGN} ?(?:(?P<before>[{_LETTERS}]*[{_LETTERS}]\.|[{_LETTERS}]+) ?)?"
    rf"(?P<number>(?:(?:[1-9][0-9]{{0,2}}(?:{_GROUPS})|{_INDIAN}|[0-9]+)(?:[.,][0-9]+)?|[.,][0-9]+){_EXPONENT})"
    rf"(?:(?P<times>[kKMB])(?: (?P<then>{_UNIT}))?| ?(?P<behind>{_UNIT}))?"
)
SECONDS = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}
_WORDS = {"w": "w|weeks?", "d": "d|days?", "h": "h|hrs?|hours?", "m": "m|mins?|minutes?", "s": "s|secs?|seconds?"}
_DECIMAL = r"[0-9]+(?:\.[0-9]+)?"
HOURS = _SIGN + _CLOCK
CLOCK = rf"{_SIGN}(?:(?P<d>[0-9]+) ?(?:d|days?),? ?(?P<plus>\+?))?{_CLOCK}:(?P<s>[0-5][0-9](?:\.[0-9]+)?)"
ISO = (
    rf"{_SIGN}P(?:(?P<w>{_DECIMAL})W)?(?:(?P<d>{_DECIMAL})D)?"
    rf"(?:T(?:(?P<h>{_DECIMAL})H)?(?:(?P<m>{_DECIMAL})M)?(?:(?P<s>{_DECIMAL})S)?)?"
)
DURATION_PATTERNS = (
    CLOCK,
    ISO,
    _SIGN + "".join(f"(?:(?P<{key}>{_DECIMAL}) ?(?:{_WORDS[key]}),? ?)?" for key in SECONDS),
)


class Notation(NamedTuple):
    """Notation of the numbers of a column."""

    patterns: tuple[str, ...]  # of the texts: one for numbers, several for durations
    decimal: str = "."
    thousands: str = ","  # mark between thousands
    # Characters that may occur before and after digits; None if numbers contain one of them too.
    affix_characters: str | None = None

    @property
    def is_duration(self) -> bool:
        return len(self.patterns) > 1


def digits_pattern(decimal: str, thousands: str) -> str:
    """Return the pattern of digits with patterns of their marks."""
    integer_pattern = f"{f'{_INDIAN}|' * (',' in thousands)}[1-9][0-9]{{0,2}}(?:{thousands}[0-9]{{3}})+|[0-9]+"
    return f"(?:(?:{integer_pattern})(?:{decimal}[0-9]+)?|{decimal}[0-9]+){_EXPONENT}"


def parse_amount(text: str) -> dict[str, str] | None:
    """Return the groups of `AMOUNT` in a text ("" for absent ones) and its "unit"; None if it is no amount."""
    matched = None if full_match(ISO, text) else full_match(AMOUNT, text)
    if matched is None or (matched["before"] and (matched["then"] or matched["behind"])):
        return None
    suffix = matched["then"] or matched["behind"] or ""
    unit = re.sub("(?<=[A-Za-z]{2})s$", "", matched["before"] or suffix)
    return {**matched.groupdict(""), "behind": suffix, "unit": unit}


@functools.lru_cache(1024)
def derive_notation(example: str) -> Notation:
    """Return the marks, the unit or the form of durations of an example; ConfigError if it is no number."""
    text = _tidy(example)
    amount = parse_amount(text)
    if amount is None:
        notation = Notation((*DURATION_PATTERNS, HOURS) if full_match(HOURS, text) else DURATION_PATTERNS)
    else:
        decimal, thousands = _find_marks(amount["number"])
        unit = re.escape(amount["unit"]) + "s?" * (re.search("[A-Za-z]{2}$", amount["unit"]) is not None)
        number = f"(?P<number>{digits_pattern(re.escape(decimal), re.escape(thousands))})"
        times = "".join(POWERS) * bool(amount["times"])
        number += f"(?P<times>{f'[{times}]?' * bool(times)})"
        either = f"(?:{unit} ?)?{number}(?: ?{unit})?" if unit else number
        affix_characters = None if set(amount["unit"]) & {*".,'", *times} else f"{amount['unit']}s +-"
        notation = Notation((f"{_SIGN} ?{either}",), decimal, thousands, affix_characters)
    if parse_number(example, notation) is None:
        raise ConfigError(
            f'{example!r} is not a number, so it cannot show the notation: use an example such as "$1,234.50", '
            '"1.234,5 kg" or "1:30:00"'
        )
    return notation


def _find_marks(number: str) -> tuple[str, str]:
    """Return the decimal mark and the mark between thousands; (".", ",") without any."""
    marks = re.findall("[,.' ]", number)
    if len(set(marks)) == 2:
        return marks[-1], marks[0]
    if marks and (len(marks) > 1 or marks[0] in "' " or re.fullmatch("[1-9][0-9]{0,2},[0-9]{3}", number)):
        return "," if marks[0] == "." else ".", marks[0]
    return (",", ".") if marks == [","] else (".", ",")


def parse_number(text: str, notation: Notation) -> float | None:
    """Parse a number in a notation, durations as seconds, or None."""
    text = _tidy(text)
    matched = next(filter(None, (full_match(pattern, text) for pattern in notation.patterns)), None)
    if matched is None or not re.search("[0-9]", text):
        return None
    if notation.is_duration:
        fields = matched.groupdict("0")
        weeks, days, hours, minutes, seconds = (float(fields.get(key, "0")) * unit for key, unit in SECONDS.items())
        clock = hours + minutes + seconds  # in the order of columns; `sum` of Python 3.12 rounds differently
        if fields["sign"] != "-":
            return weeks + days + clock
        return (clock if fields.get("plus") == "+" else -clock) - (weeks + days)  # "plus" exempts the clock from "-"
    digits = matched["number"].replace(notation.thousands, "").replace(notation.decimal, ".")
    return number_of(matched["sign"] + digits + POWERS.get(matched["times"], ""))


def _tidy(text: str) -> str:
    """Return a text in the usual form, "" if it is too long."""
    text = text.strip()
    if len(text) > MAX_CHARACTERS:
        return ""
    for pattern, replacement in REPLACEMENTS[NON_ASCII_REPLACEMENTS:] if text.isascii() else REPLACEMENTS:
        text = _compiled(pattern).sub(replacement, text)
    return text


def full_match(pattern: str, text: str) -> re.Match[str] | None:
    """Return the match of a pattern with a complete text, or None."""
    return _compiled(pattern).fullmatch(text)


_compiled = functools.lru_cache(1024)(re.compile)


_SAFE_EDGE_FLOAT32 = 2.0**103  # subtracting less than this from a float32 cannot overflow

BinStrategy = Literal["quantile", "uniform", "target"]
OutlierStrategy = Literal["fill_with_const", "fill_with_mean", "fill_with_mode", "bfill", "ffill", "drop_row"]
MissingStrategy = OutlierStrategy | Literal["fill_with_median", "keep"]


@dataclass(frozen=True, kw_only=True)
class NumberValues:
    """Learned values of `Number`; one is None if no parameter needs it."""

    written: str | None = later(None)  # example such as "$1,234.5"; None: plain numbers
    mean: float | None = None
    std: float | None = None
    min: float | None = None  # as `max`, or the quantile at which numbers are clipped
    max: float | None = None
    q1: float | None = None
    q2: float | None = None
    q3: float | None = None
    outlier_fill_value: float | None = None
    quantiles: tuple[float, ...] | None = later(None)  # of a quantile transform
    power: float | None = later(None)  # of a power transform
    power_mean: float | None = later(None)  # of the transformed numbers
    power_std: float | None = later(None)
    power_range: tuple[float, float] | None = later(None)  # numbers beyond it count as its ends; None in older states
    edges: tuple[float, ...] | None = later(None)
    cell_type: CellKind | None = later(None)  # "integer": all are integers, and the column has no float type
    # Training rows that are stored as the largest float32, and those with an integer that float32 rounds.
    clipped: int | None = later(None)
    rounded: int | None = later(None)
    value_edges: tuple[float, ...] | None = later(None)  # of bins of about equal counts, and
    value_counts: tuple[int, ...] | None = later(None)  # the training rows in each


@dataclass(kw_only=True, eq=False, repr=False)
class NumberParameters(Parameters):
    """Parameters of `Number`."""

    normalization: Normalization | None = "zscore"
    clip_quantiles: Sequence[float] | None = later(None, rows=True)
    encoding: Literal["bins", "piecewise_linear"] | None = later(None, rows=True)
    bins: Count | Sequence[float] = later(48, rows=True)
    bin_strategy: BinStrategy = later("quantile", rows=True)
    target: str | None = later(None, rows=True)
    target_type: Literal["number", "class"] = later("number", rows=True)
    outlier_strategy: OutlierStrategy | None = None
    outlier_threshold: NonNegative = 3.0
    missing_value_strategy: MissingStrategy = "fill_with_mean"
    fill_value: float | None = 0.0
    null_values: list[str] | None = later(None, rows=True)
    written: str | None = later(None, rows=True)


MAX_EXACT_FLOAT32 = 2**24
"""The largest integer up to which float32 represents every integer."""


class Outliers:
    """Numbers far from the mean, in standard deviations."""

    def __init__(self, params: NumberParameters, learned: Mapping[str, Any]) -> None:
        self.mean, self.max_distance = 0.0, math.inf
        if params.outlier_strategy is not None and learned["std"]:
            self.mean, self.max_distance = learned["mean"], params.outlier_threshold * learned["std"]

    def contain(self, values: Any) -> Any:
        """Return whether a number is an outlier; of arrays, a mask."""
        return abs(values - self.mean) > self.max_distance


def find_lossy_numbers(
    params: NumberParameters, learned: Mapping[str, Any], values: np.ndarray, stored: np.ndarray
) -> dict[str, np.ndarray]:
    """Return masks of "clipped" and of "rounded" numbers, if any, by their encodings `stored`."""
    if params.encoding == "bins":
        return {}
    clipped = np.abs(stored) >= np.float32(MAX_FLOAT32)
    low, high = (learned["min"], learned["max"]) if params.clip_quantiles is not None else (None, None)
    if ends := learned.get("quantiles") or learned.get("power_range"):
        low, high = ends[0], ends[-1]
    if low is not None and high is not None:
        clipped |= (values < low) | (values > high)
    if learned["outlier_fill_value"] is not None:
        clipped |= Outliers(params, learned).contain(values)
    losses = {"clipped": clipped} if clipped.any() else {}
    if params.normalization is None and np.fmax.reduce(np.abs(values), initial=0) > MAX_EXACT_FLOAT32:
        losses["rounded"] = (values == np.floor(values)) & (stored != values) & ~clipped
    return losses


class Values:
    """Encoding of numbers as normalized values."""

    def __init__(self, params: NumberParameters, learned: Mapping[str, Any]) -> None:
        self.normalizer = NORMALIZATIONS[params.normalization](learned)
        self.edges: Sequence[float] | None = learned.get("edges")
        clips = params.clip_quantiles is not None and learned["min"] is not None
        self._ends = (learned["min"], learned["max"]) if clips else None

    def encode(self, values: np.ndarray) -> np.ndarray:
        return self.normalizer.transform(self._clip(values))

    def decode(self, encoded: np.ndarray) -> np.ndarray:
        return self.normalizer.inverse_transform(encoded)

    def expand(self, batch: Any) -> Any:
        """Return a batch, an array or a tensor, as a model receives it."""
        return batch

    def _clip(self, values: np.ndarray) -> np.ndarray:
        return values if self._ends is None else np.clip(values, *self._ends)


class Bins(Values):
    """Encoding of numbers as ids of bins, also outside the edges."""

    def encode(self, values: np.ndarray) -> np.ndarray:
        inner = np.array(self.edges or ())[1:-1]
        return np.searchsorted(inner, self._clip(values), side="right").astype(smallest_uint(len(inner) + 1))

    def decode(self, encoded: np.ndarray) -> np.ndarray:
        return bin_middles(self.edges).take(encoded)

    def expand(self, batch: Any) -> Any:
        return batch.astype(np.int64) if isinstance(batch, np.ndarray) else batch.long()


class PiecewiseLinear(Values):
    """Encoding of numbers as shares of bins below, in batches."""

    def expand(self, batch: Any) -> Any:
        """Return (rows, bins): the share of each bin below the number, unbounded below the first and above the last."""
        start, scale, low, high, unit = (
            self._bins if isinstance(batch, np.ndarray) else map(batch.new_tensor, self._bins)
        )
        with np.errstate(over="ignore"):  # infinite results are clipped
            return ((batch[:, None] * unit - start) * scale).clip(low, high)

    @functools.cached_property
    def _bins(self) -> tuple[np.ndarray, ...]:
        """Start, scale and bounds of each bin, and a safe factor."""
        edges = self.normalizer.transform(np.array(self.edges or (0.0, 0.0)))
        widths = np.diff(edges.astype(np.float64))
        unit = np.float32(1.0 if np.abs(edges).max() < _SAFE_EDGE_FLOAT32 else 0.5)
        inverse = np.divide(1.0, widths, out=np.zeros(len(widths)), where=widths > 0)
        with np.errstate(over="ignore"):  # infinite scales are clipped
            scale = np.minimum(inverse.astype(np.float32) / unit, np.float32(MAX_FLOAT32))
        low, high = np.zeros(len(widths), np.float32), np.ones(len(widths), np.float32)
        low[0], high[-1] = -MAX_FLOAT32, MAX_FLOAT32
        return edges[:-1] * unit, scale, low, high, np.asarray(unit)


def bin_middles(edges: Sequence[float] | None) -> np.ndarray:
    """Return the midpoints of bins; a single 0 without `edges`."""
    if edges is None:
        return np.zeros(1)
    ends = np.array(edges)
    return np.asarray(ends[:-1] / 2 + ends[1:] / 2)


ENCODINGS: dict[str | None, type[Values]] = {None: Values, "bins": Bins, "piecewise_linear": PiecewiseLinear}


_NORMALIZED_PARAMETERS = """
    missing_indicator invalid column normalization encoding bins bin_strategy target target_type outlier_strategy
    outlier_threshold missing_value_strategy fill_value null_values written
"""
"""Parameters that leave all arithmetic to the normalizer, which is faster for lists."""
_STEPS = frozenset(
    {"missing_indicator", "invalid", "outlier_strategy", "null_values", "drop_row", *NEIGHBOUR_STRATEGIES}
)
"""Parameters, and strategies of imputation, with more steps for numbers within the range of the fit."""


class NumberRowEncoder(RowEncoder):
    """Row encoder of `Number`."""

    values = (NumberValues,)

    def prepare(self) -> None:
        learned, params = self.learned, self.params
        self.outliers, self.encoding = Outliers(params, learned), ENCODINGS[params.encoding](params, learned)
        self.outlier_fill = learned["outlier_fill_value"]
        edges = learned.get("value_edges")
        self.extent = (edges[0], edges[-1]) if edges else None
        example = learned.get("written")
        self.notation = None if example is None else derive_notation(example)
        self.has_comma = self.notation is not None and self.notation.decimal == ","
        self.is_notation_set = params.written is not None
        self.uses_neighbours = params.outlier_strategy in NEIGHBOUR_STRATEGIES
        changed = changed_parameters(params)
        is_normalized_only = params.encoding != "bins" and changed <= {*_NORMALIZED_PARAMETERS.split()}
        self.transform = self.encoding.normalizer.transform_list if is_normalized_only else None
        if self.notation is None:
            self.read = number_of  # type: ignore[method-assign]
        is_scaled_only = (
            is_normalized_only and changed.isdisjoint(_STEPS) and params.missing_value_strategy not in _STEPS
        )
        self.scaling = self.encoding.normalizer.find_scaling(edges[0], edges[-1]) if edges and is_scaled_only else None

    def encode(self, rows: RowMappings, first: int = 0) -> Arrays:
        """Return arrays; numbers within the range of the fit need no step but scaling."""
        if self.scaling is None or first:
            return super().encode(rows, first)
        column, (low, high, center, scale) = self.column, self.scaling
        scaled: list[float] = []
        others: list[int] = []
        for row in rows:
            cell = row[column]
            if (type(cell) is float or type(cell) is int) and low <= cell <= high:
                scaled.append((cell - center) * scale)
            else:
                others.append(len(scaled))
                scaled.append(0.0)
        array = np.array(scaled, np.float32)
        if others:
            try:
                array[others] = super().encode([rows[number] for number in others])[self.name]
            except DaskprepError:
                return super().encode(rows)  # which names the row
        return {self.name: array}

    def read(self, cell: Any) -> float | None:
        """Return a number, also in the learned notation; else None."""
        number = number_of(cell)
        if self.notation is None or (number is not None and not self.has_comma):
            return number
        if is_missing(cell) or isinstance(cell, NUMBER_TYPES):
            return number
        text = text_of(cell) or ""
        if number is not None and not self.is_notation_set and full_match(AMBIGUOUS, text.strip()) is None:
            return number
        parsed = parse_number(text, self.notation)
        return number if parsed is None and not self.is_notation_set else parsed

    def apply_neighbours(self, values: list[Any]) -> list[Any]:
        strategies = self.params.missing_value_strategy, self.params.outlier_strategy
        if not set(strategies) & set(NEIGHBOUR_STRATEGIES):
            return values
        without_outliers = [None if value is None or self.outliers.contain(value) else value for value in values]
        filled = [
            fill_from_neighbours(without_outliers, strategy) if strategy in NEIGHBOUR_STRATEGIES else values
            for strategy in strategies
        ]
        return [
            missing_fill if value is None else outlier_fill if kept is None else value
            for value, kept, missing_fill, outlier_fill in zip(values, without_outliers, *filled, strict=True)
        ]

    def to_arrays(self, values: Sequence[float]) -> Arrays:
        if self.outlier_fill is not None:
            values = [self.outlier_fill if self.outliers.contain(value) else value for value in values]
        if self.transform is not None:
            return {self.name: self.transform(values)}
        return {self.name: self.encoding.encode(np.array(values, np.float64))}

    def losses(self, cell: Any) -> list[str]:
        values = np.array([self.read(cell)], np.float64)
        masks = find_lossy_numbers(self.params, self.learned, values, self.to_arrays(values.tolist())[self.name])
        return [cause for cause, mask in masks.items() if mask.any()]

    def expand(self, encoded: np.ndarray) -> np.ndarray:
        return np.asarray(self.encoding.expand(encoded))
