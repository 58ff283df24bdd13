"""Feature type for H3 cells: the fields of their 64-bit integers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.kernels import only_where
from daskprep.columns.summaries import ColumnSummary, Summary
from daskprep.columns.summaries.column_facts import ColumnFacts
from daskprep.errors import ColumnError
from daskprep.features.base import Bounds, Learned, Tensor
from daskprep.features.cells import is_text
from daskprep.features.feature import Feature, with_parameters
from daskprep.rows.cells import MAX_EXACT_INTEGER
from daskprep.rows.h3 import BITS, CELL_PATTERN, DIGITS, MAX_CELL, NO_DIGIT, SHIFTS, H3Parameters
from daskprep.sources.cells import as_text

PARTS = ("mode", "edge", "resolution", "base_cell", *(f"digit_{i}" for i in range(1, DIGITS + 1)))

_MAX_CELL = pa.scalar(MAX_CELL, pa.uint64())
_BLOCK_ROWS = 1 << 13
_SHIFTS = np.array([*SHIFTS, *(45 - 3 * position for position in range(1, DIGITS + 1))], np.uint64)
_MASKS = np.array([(1 << bits) - 1 for bits in BITS] + [NO_DIGIT] * DIGITS, np.uint64)
_VALID_RANGE = (0x8001FFFFFFFFFFF, 0x8FFFFFFFFFFFFFF)
_NUM_BASE_CELLS = 122
_MIN_SHARE = 0.95  # of cells that must be valid to guess H3, so that a few invalid ones do not matter


@with_parameters
class H3(H3Parameters, Feature[Summary, Learned]):
    """Split H3 indexes into mode, edge, resolution, base cell and digits.

    Indexes are integers or text: hexadecimal ("8928308280fffff", with or without "0x"), or decimal if the text has only
    digits, which no hexadecimal index has. Floats above 2**53 cannot be read, since they lost digits.

    Parameters
    ----------
    missing_value_strategy : str
        Imputation: "fill_with_const" (with `fill_value`), "fill_with_mode", "ffill", "bfill" or "drop_row".
    fill_value : int or str
        Index that "fill_with_const" imputes for missing values.
    missing_indicator, invalid, column
        As for `Feature`.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskprep import H3
    >>> frame = pd.DataFrame({"place": ["8928308280fffff", "622236750694711295", None]})
    >>> H3().fit_transform(frame)[:, :12]
    array([[ 1,  0,  9, 20,  0,  6,  0,  4,  0,  5,  0,  0],
           [ 1,  0, 10, 21,  0,  2,  0,  3,  4,  5,  3,  2],
           [ 1,  0,  0,  0,  7,  7,  7,  7,  7,  7,  7,  7]], dtype=uint8)
    """

    kind = "h3"
    semantic_type = "places"
    _edge_case_cells = ("8928308280fffff", "0x8928308280FFFFF", "622236750694711295", "0", "no cell")

    def check(self) -> None:
        if self.fill_value is not None:
            self.parse_fill(self.fill_value)

    def parse(self, column: pa.Array) -> pa.Array:
        """Return cells as uint64, null if unreadable; ColumnError for other types."""
        kind = column.type
        if pa.types.is_dictionary(kind):
            return self.parse(column.dictionary).take(column.indices)
        if pa.types.is_integer(kind):
            readable = (
                pc.greater_equal(column, 0) if pa.types.is_signed_integer(kind) else pc.less_equal(column, _MAX_CELL)
            )
            return pc.if_else(readable, column, None).cast(pa.uint64())
        if pa.types.is_floating(kind):
            column = column.cast(pa.float64())
            exact = pc.and_(pc.greater_equal(column, 0.0), pc.less(column, MAX_EXACT_INTEGER))
            return pc.if_else(pc.and_(exact, pc.equal(column, pc.floor(column))), column, None).cast(pa.uint64())
        if pa.types.is_decimal(kind) or is_text(kind) or pa.types.is_null(kind):
            return _parse_text(as_text(column))
        raise ColumnError(f"holds values of type {kind}, which are not H3 cells: integers or hexadecimal text")

    def summarize(self, parsed: pa.Array) -> Summary:
        return Summary()

    def learn(self, summary: Summary) -> Learned:
        return Learned()

    def cells(self, parsed: pa.Array) -> pa.Array:
        return parsed.cast(pa.string())

    def learn_fill(self, summary: ColumnSummary[Summary]) -> int:
        return int(super().learn_fill(summary))

    def advice(self, learned: Learned) -> str | None:
        # Text of 16 to 18 digits would have been read, so the samples were floats.
        """Return a warning if samples of unreadable cells show that integers became floats, or None.

        Such samples have 16 to 18 digits, which text could have been read from.
        """
        if any(re.fullmatch(r"\d{16,18}", sample) for sample in learned.invalid_samples):
            return (
                "holds H3 cells as floating point numbers, which have lost digits (pandas turns integers "
                'into them where a cell is missing): read the column as "Int64", "UInt64" or text'
            )
        return None

    @classmethod
    def guess(cls, facts: ColumnFacts) -> tuple[Self, str] | None:
        """Return a feature for H3 cells, and the reason, or None."""
        low, high = _VALID_RANGE
        integers = (
            facts.integers == facts.numbers == facts.usable and facts.range.min >= low and facts.range.max <= high
        )
        if not (integers or facts.text.h3 >= _MIN_SHARE * facts.usable):
            return None
        feature = cls()
        parts = feature.encode(feature.parse(facts.distinct.texts).drop_null(), Learned())
        resolution, digits = parts[:, 2], parts[:, len(SHIFTS) :]
        unused_digits = np.arange(1, DIGITS + 1) > resolution[:, None]
        valid = (parts[:, 0] == 1) & (parts[:, 1] == 0) & (parts[:, 3] < _NUM_BASE_CELLS)
        valid &= ((digits == NO_DIGIT) == unused_digits).all(axis=1)
        if valid.sum() < _MIN_SHARE * len(facts.distinct.texts):
            return None
        return feature, f"H3 cells of resolution {resolution.min()} to {resolution.max()}"

    def encode(self, parsed: pa.Array, learned: Learned) -> np.ndarray:
        """Return bytes of mode, edge, resolution, base cell and digits; 0 if missing."""
        cells = pc.fill_null(parsed, 0).to_numpy()
        out = np.empty((len(cells), len(PARTS)), np.uint8)
        for start in range(0, len(cells), _BLOCK_ROWS):
            out[start : start + _BLOCK_ROWS] = _split_fields(cells[start : start + _BLOCK_ROWS]).T
        return out

    def expand(self, batch: Tensor, learned: Learned) -> Tensor:
        return batch.long()

    def limits(self, learned: Learned) -> Mapping[str, Bounds]:
        return {"": (0, _MASKS.tolist())}

    def decode(self, encoded: np.ndarray, learned: Learned) -> pa.Array:
        """Return the cells as uint64."""
        parts = np.asarray(encoded)
        cells = np.zeros(len(parts), np.uint64)
        for part, shift in zip(parts.T, _SHIFTS, strict=True):
            cells |= part.astype(np.uint64) << shift
        return pa.array(cells)

    def tabulated_names(self, name: str, learned: Learned) -> list[str]:
        return [f"{name}_{part}" for part in PARTS]


def _split_fields(cells: np.ndarray) -> np.ndarray:
    """Return the fields of cells, a row for each of `PARTS`."""
    out = np.empty((len(PARTS), len(cells)), np.uint8)
    for row, shift, mask in zip(out, _SHIFTS, _MASKS, strict=True):
        row[:] = cells >> shift & mask
    for position in range(1, DIGITS + 1):
        out[position + len(SHIFTS) - 1] |= (out[2] < position) * np.uint8(NO_DIGIT)
    return out


def _parse_text(text: pa.Array) -> pa.Array:
    """Return hexadecimal or decimal text as H3 indexes, else null."""
    text = pc.utf8_trim_whitespace(text)
    try:
        cells = _cast_text(text)
    except pa.ArrowInvalid:
        cells = _cast_text(only_where(pc.match_substring_regex(text, f"^({CELL_PATTERN})$"), text))
    return pc.if_else(pc.less_equal(cells, _MAX_CELL), cells, None)


def _cast_text(text: pa.Array) -> pa.Array:
    """Return digits, and other text as hexadecimal; null if shorter than 15."""
    # Arrow reads text with the prefix "0x" as hexadecimal. Short text without it, such as "1e3", may be a number.
    needs_no_prefix = pc.or_(pc.ascii_is_decimal(text), pc.starts_with(text, "0x", ignore_case=True))
    text = only_where(pc.or_(needs_no_prefix, pc.greater_equal(pc.binary_length(text), 15)), text)
    return pc.binary_join_element_wise(pc.if_else(needs_no_prefix, "", "0x"), text, "").cast(pa.uint64())
