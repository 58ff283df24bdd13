"""Hashed n-grams of characters, their projection, and the row encoder of `TextComponents`.

Counts, weights and projections are integers, whose sums are exact in any order. So a row has the bits of a column.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from daskprep.rows.base import Arrays, Parameters, RowEncoder
from daskprep.rows.cells import text_of
from daskprep.rows.typed import AtLeast, later

BUCKET_BITS = 13
BUCKETS = 1 << BUCKET_BITS
FRACTION_BITS = 15  # of a projection
MAX_SIZE = 256
# A universal hash: products of characters, which have 21 bits, spread evenly over the high bits of a sum.
_MULTIPLIERS = np.array([0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F], np.uint32)
_SHIFT = np.uint32(32 - BUCKET_BITS)
_ROW_SHIFT, _BUCKET_MASK, _NO_GRAM = np.uint32(BUCKET_BITS), np.uint32(BUCKETS - 1), np.uint32(0xFFFFFFFF)
_LAST_SPACE = 0x3000
_SPACES = np.array([chr(point).isspace() for point in range(_LAST_SPACE + 2)])  # the last entry is for all others
_LOG_COUNTS = np.rint(256 * np.log1p(np.arange(256)))


class Grams(NamedTuple):
    """Distinct n-grams of texts: text, bucket and log count of each."""

    rows: np.ndarray
    buckets: np.ndarray
    log_counts: np.ndarray  # integers, as float64


def count_grams(points: np.ndarray, rows: np.ndarray) -> Grams:
    """Return the log counts of the n-grams of 3 and 4 characters of each text, hashed to buckets.

    White space may be the first and the last character of an n-gram only. N-grams of a text in the same bucket are
    counted together, up to 255.

    `points` are characters as uint32: texts with white space between them, before the first and after the last one.
    `rows` has the text of each character as uint32, below 2**19, and for white space between texts either one.
    """
    spaces = _SPACES.take(points, mode="clip")
    points = np.where(spaces, np.uint32(ord(" ")), points)
    shorter, longer = max(len(points) - 2, 0), max(len(points) - 3, 0)  # windows of 3 and of 4 characters
    hashes = points[:shorter] * _MULTIPLIERS[0]
    hashes += points[1 : 1 + shorter] * _MULTIPLIERS[1]
    hashes += points[2:] * _MULTIPLIERS[2]
    keys = np.empty(shorter + longer, np.uint32)
    np.right_shift(hashes, _SHIFT, out=keys[:shorter])
    np.right_shift(hashes[:longer] + points[3:] * _MULTIPLIERS[3], _SHIFT, out=keys[shorter:])
    firsts = rows[1 : 1 + shorter] << _ROW_SHIFT
    keys[:shorter] |= firsts
    keys[shorter:] |= firsts[:longer]
    np.putmask(keys[:shorter], spaces[1 : 1 + shorter], _NO_GRAM)
    np.putmask(keys[shorter:], spaces[1 : 1 + longer] | spaces[2 : 2 + longer], _NO_GRAM)
    keys.sort()
    keys = keys[: np.searchsorted(keys, _NO_GRAM)]
    is_first = np.ones(len(keys) + 1, bool)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:-1])
    starts = np.flatnonzero(is_first)
    distinct = keys[starts[:-1]]
    log_counts = _LOG_COUNTS.take(starts[1:] - starts[:-1], mode="clip")
    return Grams((distinct >> _ROW_SHIFT).view(np.int32), (distinct & _BUCKET_MASK).view(np.int32), log_counts)


class Projection(NamedTuple):
    """Learned table: weight and direction of each bucket."""

    weights: np.ndarray
    directions: np.ndarray  # of shape (buckets, size)
    scale: float

    @classmethod
    def of(cls, learned: Mapping[str, Any], size: int) -> Projection:
        """Read the table of a fitted state; ValueError for invalid or repeated buckets."""
        grams, weights = decode_array(learned["grams"], "<u2"), np.zeros(BUCKETS)
        directions = decode_array(learned["directions"], "<i2").reshape(len(grams), size)
        if len(grams) and (int(grams.max()) >= BUCKETS or len(np.unique(grams)) < len(grams)):
            raise ValueError("grams are no distinct buckets")
        weights[grams] = decode_array(learned["weights"], "<u2").reshape(grams.shape)
        table = np.zeros((BUCKETS, size))
        table[grams] = directions
        return cls(weights, table, float(learned["scale"]))

    def to_components(self, sums: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """Return float32 rows, zeros without known n-grams."""
        norms = np.sqrt(np.where(squares > 0, squares, 1.0))
        components: np.ndarray = (sums / norms[:, None] * self.scale).astype(np.float32)
        return components


def decode_array(array: np.ndarray | str, dtype: str) -> np.ndarray:
    """Return an array, also from base64 of little-endian bytes."""
    return np.frombuffer(base64.b64decode(array, validate=True), dtype) if isinstance(array, str) else array


@dataclass(kw_only=True, eq=False, repr=False)
class TextComponentsParameters(Parameters):
    """Parameters of `TextComponents`."""

    size: Annotated[int, AtLeast(1)] = 30
    lowercase: bool = True
    null_values: list[str] | None = later(None, rows=True)
    missing_value_strategy: Literal["fill_with_const", "drop_row"] = "fill_with_const"
    fill_value: str | None = ""


class TextComponentsRowEncoder(RowEncoder):
    """Row encoder of `TextComponents`."""

    has_vocabulary = True

    def prepare(self) -> None:
        self.projection = Projection.of(self.learned, self.params.size)

    def read(self, cell: Any) -> tuple[np.ndarray, float, bool] | None:
        """Return directions and squares of weights, summed, and if text has only zero weights; None if missing."""
        text = text_of(cell)
        if text is None:
            return None
        text = (text.lower() if self.params.lowercase else text).strip()
        points = np.frombuffer(f" {text} ".encode("utf-32-le"), "<u4")
        grams, table = count_grams(points, np.zeros(len(points), np.uint32)), self.projection
        weights = grams.log_counts * table.weights[grams.buckets]
        square = float(weights @ weights)
        return weights @ table.directions[grams.buckets], square, not square and bool(text)

    def is_unknown(self, value: tuple[np.ndarray, float, bool]) -> bool:
        return value[2]

    def to_arrays(self, values: Sequence[tuple[np.ndarray, float, bool]]) -> Arrays:
        sums = np.array([value[0] for value in values]).reshape(len(values), self.params.size)
        return {self.name: self.projection.to_components(sums, np.array([value[1] for value in values]))}
