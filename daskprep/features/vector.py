"""Feature type for vectors: lists of numbers, of one length in all cells."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.kernels import (
    float_values,
    list_offsets,
    make_list_array,
    make_string_array,
    null_mask,
    only_where,
    parse_float_lists,
    string_buffers,
    valid_mask,
)
from daskprep.columns.summaries import ColumnSummary, Lengths
from daskprep.errors import ColumnError, ConfigError, RejectedValueError
from daskprep.features.base import Learned
from daskprep.features.cells import as_numbers, is_text
from daskprep.features.feature import Feature, with_parameters
from daskprep.rows.series import VectorParameters, VectorValues
from daskprep.sources.cells import as_text

_MAX_SAMPLED = 1000  # numbers in a sample cell; as a vector of more numbers, it counts as missing


@dataclass(frozen=True, kw_only=True)
class LearnedVector(VectorValues, Learned):
    """Fitted state of a vector column: the length of a vector."""


@with_parameters
class Vector(VectorParameters, Feature[Lengths, LearnedVector]):
    """Read vectors of one length, such as embeddings, as rows of a float32 matrix.

    A value is a list or array, a single number, or text such as "0.5 1e-3" or "[0.5, 1e-3]". A value that is empty,
    or has an item that is not a finite number, cannot be read.

    Parameters
    ----------
    vector_size : int or None
        Length of a vector; values of another length cannot be read. None: learned from the data, where different
        lengths raise `RejectedValueError`.
    missing_value_strategy : str
        Imputation: "fill_with_const" (with `fill_value`), "fill_with_mode", "ffill", "bfill" or "drop_row".
    fill_value : str or float
        Vector that "fill_with_const" imputes for missing values: one number for all positions, or all the numbers of a
        vector ("0 0 1"). An empty text means zeros.
    missing_indicator, invalid, column
        As for `Feature`.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskprep import Vector
    >>> frame = pd.DataFrame({"point": ["1 2.5", "[3, 4]", None]})
    >>> Vector(fill_value=-1).fit_transform(frame)
    array([[ 1. ,  2.5],
           [ 3. ,  4. ],
           [-1. , -1. ]], dtype=float32)
    """

    kind = "vector"
    semantic_type = "series"
    _edge_case_cells = ("", "no vector")

    def check(self) -> None:
        if self.fill_value is not None:
            self._parse_fill_numbers(self.fill_value, self.vector_size)

    def parse(self, column: pa.Array) -> pa.Array:
        """Return lists; null for other sizes, empty ones and missing items."""
        lists = parse_number_lists(column)
        sizes = np.diff(list_offsets(lists))
        wrong_size = sizes == 0 if self.vector_size is None else sizes != self.vector_size
        return mask_rows(lists, wrong_size | any_in_row(lists, np.isnan))

    def summarize(self, parsed: pa.Array) -> Lengths:
        sizes = np.diff(list_offsets(parsed.drop_null()))
        return Lengths.of(sizes[sizes > 0])

    def learn(self, summary: Lengths) -> LearnedVector:
        """Learn the length; RejectedValueError for several."""
        if len(summary.lengths) > 1:
            first, second = np.argsort(-summary.counts, kind="stable")[:2]
            size, n_more = summary.lengths[first], len(summary.lengths) - 2
            raise RejectedValueError(
                f"holds vectors of different lengths: {summary.counts[first]} have {size} numbers, "
                f"{summary.counts[second]} have {summary.lengths[second]}"
                + (f", and {n_more} other lengths occur" if n_more else "")
                + f"; correct them, or set vector_size={size} to count other lengths as missing"
            )
        return LearnedVector(vector_size=summary.max or self.vector_size or 1)

    def learn_column(self, summary: ColumnSummary[Lengths]) -> LearnedVector:
        """Learn the state, with a fill value of as many numbers."""
        learned = super().learn_column(summary)
        if learned.fill_value is None:
            return learned
        return dataclasses.replace(
            learned, fill_value=self._parse_fill_numbers(learned.fill_value, learned.vector_size)
        )

    def parse_fill(self, value: object) -> pa.Array:
        """Return the numbers as a cell; a single number fits any size."""
        numbers = self._parse_fill_numbers(value, self.vector_size)
        # A single number is repeated to the size of a vector, so the summary must not count it as a length.
        is_scalar = len(numbers) == 1 and self.vector_size is None and not isinstance(value, list)
        return pa.array([[] if is_scalar else numbers], pa.list_(pa.float32()))

    def _parse_fill_numbers(self, value: object, size: int | None) -> list[float]:
        """Return the numbers of a fill value, a single one repeated; ConfigError if they do not fit."""
        if isinstance(value, str) and not value.strip():
            value = 0.0
        lists = parse_number_lists(pa.array([value]))
        if lists.null_count or not len(lists[0]) or any_in_row(lists, np.isnan).any():
            raise ConfigError(f"Vector: fill_value {value!r} cannot be read as numbers")
        numbers: list[float] = lists[0].as_py()
        if size is None or len(numbers) == size:
            return numbers
        if len(numbers) > 1:
            raise ConfigError(f"Vector: fill_value {value!r} has {len(numbers)} numbers, but a vector has {size}")
        return numbers * size

    def cells(self, parsed: pa.Array) -> pa.Array:
        return pc.binary_join(parsed.cast(pa.list_(pa.string())), " ")

    def encode(self, parsed: pa.Array, learned: LearnedVector) -> np.ndarray:
        """Return float32 rows, zeros if missing; RejectedValueError for another length."""
        size = learned.vector_size
        sizes = np.diff(list_offsets(parsed))
        present = valid_mask(parsed)
        wrong = np.flatnonzero(present & (sizes != size))
        if len(wrong):
            raise RejectedValueError(
                f"row {wrong[0]} of this partition holds a vector of {sizes[wrong[0]]} numbers, not {size} "
                f"as learned; correct it, or fit with vector_size={size} to count it as missing"
            )
        numbers: np.ndarray = parsed.flatten().to_numpy().reshape(np.count_nonzero(present), size)
        if len(numbers) == len(parsed):
            return numbers.copy()
        out = np.zeros((len(parsed), size), np.float32)
        out[present] = numbers
        return out

    def _sample_cells(self, learned: LearnedVector) -> list[str | None]:
        numbers = [str(index - 0.3) for index in range(min(learned.vector_size, _MAX_SAMPLED))]
        return [*super()._sample_cells(learned), " ".join(numbers), f"[{', '.join(numbers)}]"]

    def decode(self, encoded: np.ndarray, learned: LearnedVector) -> pa.Array:
        return matrix_to_lists(encoded)


def parse_number_lists(column: pa.Array, separator: str | None = None) -> pa.Array:
    """Return cells as float32 lists, with NaN for missing items.

    A missing cell is null, and so is a cell with an infinite number or an item that is not a number. Text is split at
    `separator`, or else at white space, commas and brackets. A number becomes a list of one item.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return parse_number_lists(column.dictionary, separator).take(column.indices)
    if is_text(kind) or pa.types.is_null(kind):
        text = as_text(column)
        lists = _parse_text(text) if separator is None else parse_float_lists(text, separator)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lists = _parse_lists(column)
    else:
        # Integers are rounded once, directly to float32, as in text; `as_numbers` would round them to doubles first.
        numbers = column if pa.types.is_integer(kind) else as_numbers(column)
        numbers = numbers.cast(pa.float32(), safe=False)
        missing = null_mask(numbers)
        lists = make_list_array(np.append(0, np.cumsum(~missing)), numbers.drop_null(), missing)
    return mask_rows(lists, any_in_row(lists, np.isinf))


def _parse_lists(column: pa.Array) -> pa.Array:
    """Return lists as lists of float32, NaN for null items; ColumnError if nested."""
    values = column.flatten()
    if pa.types.is_nested(values.type):
        raise ColumnError(f"holds values of type {column.type}, which are not lists of numbers: flatten them first")
    missing = null_mask(column)
    if is_text(values.type):
        texts = make_list_array(list_offsets(column), pc.fill_null(values, "nan"), missing)
        return parse_float_lists(pc.binary_join(texts, " "))
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.string())  # Arrow 26.0.1 does not cast decimals to the nearest float
    numbers = pc.fill_null(values.cast(pa.float32(), safe=False), np.nan)
    return make_list_array(list_offsets(column), numbers, missing)


def matrix_to_lists(matrix: np.ndarray) -> pa.Array:
    """Return each row of a matrix as a list of float32."""
    rows, size = matrix.shape
    return make_list_array(np.arange(rows + 1) * size, pa.array(np.asarray(matrix, np.float32).reshape(-1)))


def any_in_row(lists: pa.Array, predicate: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return a mask of lists with a number (NaN for null) that fits the predicate."""
    passed = predicate(float_values(lists.flatten()))
    if not passed.any():
        return np.zeros(len(lists), bool)
    offsets = list_offsets(lists)
    # One more, since lists at the end may be empty. Sums up to each number would take eight times as much memory.
    any_passed: np.ndarray = np.logical_or.reduceat(np.append(passed, False), offsets[:-1]) & (np.diff(offsets) > 0)
    return any_passed


def mask_rows(lists: pa.Array, rows: np.ndarray) -> pa.Array:
    """Return lists with null in the masked rows."""
    return pc.if_else(pa.array(~rows), lists, pa.scalar(None, lists.type)) if rows.any() else lists


def _parse_text(text: pa.Array) -> pa.Array:
    """Return texts as float32 lists, null if unevenly separated."""
    offsets, data = string_buffers(text)
    marks = {mark: np.flatnonzero(data == ord(mark)) for mark in ",[]()"}
    if not any(map(len, marks.values())):
        return parse_float_lists(text)
    data = data.copy()
    for positions in marks.values():
        data[positions] = ord(" ")
    lists = parse_float_lists(only_where(text.is_valid(), make_string_array(offsets, data)))
    commas = np.diff(np.searchsorted(marks[","], offsets))
    return mask_rows(lists, (commas > 0) & (np.diff(list_offsets(lists)) != commas + 1))
