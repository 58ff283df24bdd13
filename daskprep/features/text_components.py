"""Feature type for texts as a few numbers: leading directions of hashed n-grams of characters."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.kernels import make_list_array, offsets_from_lengths, plain_values, valid_mask
from daskprep.columns.summaries import DistinctTexts
from daskprep.errors import ConfigError
from daskprep.features.base import Learned, Loss
from daskprep.features.cells import as_dictionary, take_by_code
from daskprep.features.checking import memoize
from daskprep.features.directions import leading_directions
from daskprep.features.feature import Feature, with_parameters
from daskprep.features.vector import matrix_to_lists
from daskprep.rows.components import (
    BUCKETS,
    FRACTION_BITS,
    MAX_SIZE,
    Grams,
    Projection,
    TextComponentsParameters,
    count_grams,
    decode_array,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_BLOCK_CHARACTERS = 1 << 17  # the arrays of a block stay in the CPU cache
_ROW_LENGTH = 1 << 12
_IDF_FACTOR = 64  # weights have 10 bits
_ROWS_PER_FREQUENCY, _MAX_FREQUENCY = 100, 3
_SCALE_BITS = 16
_NO_CHARACTERS = np.full(2, ord(" "), np.uint32), np.zeros(2, np.uint32)


class _Block(NamedTuple):
    """N-grams of some texts, whose number is `size`."""

    start: int
    size: int
    rows: np.ndarray
    buckets: np.ndarray
    log_counts: np.ndarray


def _iterate_blocks(texts: pa.StringArray) -> Iterator[_Block]:
    """Yield the n-grams of texts block by block."""
    ends = np.cumsum(plain_values(pc.utf8_length(texts)) + 1, dtype=np.int64)
    cuts = np.searchsorted(ends, np.arange(_BLOCK_CHARACTERS, ends[-1] if len(ends) else 0, _BLOCK_CHARACTERS))
    for start, stop in pairwise(np.unique([0, *cuts, len(texts)]).tolist()):
        lengths = np.diff(ends[start:stop], prepend=ends[start - 1] if start else 0)
        joined = pc.binary_join(make_list_array(np.array([0, stop - start]), texts[start:stop]), " ")[0].as_py()
        rows = np.repeat(np.arange(stop - start, dtype=np.uint32), lengths)
        points = np.frombuffer(f" {joined} ".encode("utf-32-le"), "<u4")
        yield _Block(start, stop - start, *count_grams(points, np.append(np.uint32(0), rows)))


def _concatenate(texts: pa.StringArray) -> Grams:
    """Return the n-grams of all texts."""
    blocks = [Grams(block.rows + block.start, block.buckets, block.log_counts) for block in _iterate_blocks(texts)]
    return Grams(*map(np.concatenate, zip(*blocks, strict=True))) if blocks else count_grams(*_NO_CHARACTERS)


def _sparse(rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int]) -> csr_array:
    """Return a sparse matrix of values in the order of their rows."""
    from scipy.sparse import csr_array  # noqa: PLC0415 SciPy is slow to import

    return csr_array((values, columns, offsets_from_lengths(np.bincount(rows, minlength=shape[0]))), shape)


@dataclass(frozen=True, kw_only=True)
class LearnedTextComponents(Learned):
    """Weights and directions of buckets with n-grams; no text."""

    grams: np.ndarray  # numbers of the buckets, uint16
    weights: np.ndarray  # inverse document frequencies, uint16
    directions: np.ndarray  # int16 of shape (buckets, size), in units of 2**-15
    scale: float  # of all components: the sum of their variances over the sample is 1

    def to_state(self) -> dict[str, Any]:
        arrays = {"grams": self.grams, "weights": self.weights, "directions": self.directions}
        # As strings, because JSON takes ten times as long for lists of numbers.
        return super().to_state() | {
            name: base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()
            for name, array in arrays.items()
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LearnedTextComponents:
        """Return the state with arrays; ValueError for other lengths."""
        grams, weights = (decode_array(data[name], "<u2").astype(np.uint16) for name in ("grams", "weights"))
        directions = decode_array(data["directions"], "<i2").astype(np.int16)
        if len(weights) != len(grams):
            raise ValueError("grams and weights have different lengths")
        directions = directions.reshape(len(grams), -1) if len(grams) else directions.reshape(0, 0)
        return super().from_dict({**data, "grams": grams, "weights": weights, "directions": directions})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LearnedTextComponents) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]


@with_parameters
class TextComponents(TextComponentsParameters, Feature[DistinctTexts, LearnedTextComponents]):
    """Encode texts as numbers; texts that share parts of words are near.

    For linear models, trees and networks that read texts, or categories in many spellings. Each text becomes counts of
    its n-grams of 3 and 4 characters, hashed and weighted by their inverse document frequency. The numbers are the
    leading directions of these counts, as of tf-idf with a truncated SVD.

    Parameters
    ----------
    size : int
        Number of components, 1 to 256. Data with fewer directions has zeros in the last ones.
    lowercase : bool
        Whether to ignore case.
    null_values : list of str or None
        Texts that mark missing values, such as "?".
    missing_value_strategy : {"fill_with_const", "drop_row"}
        Whether missing values become `fill_value`, or drop the row.
    fill_value : str
        Text that replaces missing values. The empty text is all zeros.
    missing_indicator, column
        As for `Feature`.
    invalid : {"missing", "raise"}
        Without effect, since all values can be read.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> import daskprep as dp
    >>> jobs = pd.DataFrame({"job": ["bus driver", "truck driver", "school teacher", "head teacher", None]})
    >>> prep = dp.Preprocessor({"job": dp.TextComponents(size=2)}).fit(jobs)
    >>> a, b, c, empty = prep.encode(pd.DataFrame({"job": ["bus drivre", "taxi driver", "teachers", None]}))["job"]
    >>> bool(a @ b > a @ c), empty.tolist()
    (True, [0.0, 0.0])
    """

    _loss_remedies: ClassVar[Mapping[Loss, str]] = {"unknown": "fit on more rows"}
    kind = "text_components"
    semantic_type = "numbers"

    def check(self) -> None:
        if self.size > MAX_SIZE:
            raise ConfigError(f"TextComponents: size={self.size} is more than {MAX_SIZE}: use a smaller size")

    def parse(self, column: pa.Array) -> pa.Array:
        return as_dictionary(column, lowercase=self.lowercase)

    def summarize(self, parsed: pa.DictionaryArray) -> DistinctTexts:
        codes = plain_values(parsed.indices.drop_null() if parsed.null_count else parsed.indices)
        counts = np.bincount(codes, minlength=len(parsed.dictionary))
        return DistinctTexts.of(parsed.dictionary.filter(pa.array(counts > 0)), counts[counts > 0])

    def learn(self, summary: DistinctTexts) -> LearnedTextComponents:
        """Learn weights of n-grams and leading directions of texts."""
        texts = summary.texts
        counts = summary.counts[: len(texts)]
        rows, buckets, log_counts = _concatenate(texts)
        # Most n-grams of a few rows are typos.
        min_frequency = min(max(int(counts.sum()) // _ROWS_PER_FREQUENCY, 1), _MAX_FREQUENCY)
        grams = np.flatnonzero(np.bincount(buckets, counts[rows], BUCKETS) >= min_frequency)
        documents = np.bincount(buckets, minlength=BUCKETS)[grams]
        weights = np.rint(_IDF_FACTOR * (np.log((1 + len(texts)) / (1 + documents)) + 1))
        columns = np.full(BUCKETS, -1)
        columns[grams] = np.arange(len(grams))
        is_known = columns[buckets] >= 0
        rows, columns = rows[is_known], columns[buckets[is_known]]
        values = log_counts[is_known] * weights[columns]
        norms = np.sqrt(np.maximum(np.bincount(rows, values * values, len(texts)), 1))
        matrix = _sparse(rows, columns, values, (len(texts), len(grams)))
        # The squares of these factors are on average 1, and grow with the square root of the count.
        roots = np.sqrt(counts.astype(np.float64))
        importance = np.sqrt(roots / (math.fsum(roots.tolist()) / max(len(roots), 1) or 1.0))
        scaled = matrix.copy()
        scaled.data = np.rint(values * _ROW_LENGTH / norms[rows] * importance[rows])
        directions = leading_directions(scaled, self.size)
        return LearnedTextComponents(
            grams=grams.astype(np.uint16),
            weights=weights.astype(np.uint16),
            directions=directions,
            scale=_inverse_deviation(matrix @ directions.astype(np.float64) / norms[:, None]),
        )

    def _check_learned(self, learned: LearnedTextComponents) -> None:
        """Raise ValueError for other than `size` components."""
        if learned.directions.size != len(learned.grams) * self.size:
            raise ValueError(f"the fitted state has {learned.directions.shape[1]} components, but size={self.size}")
        _make_projection(self, learned)

    def encode(self, parsed: pa.DictionaryArray, learned: LearnedTextComponents) -> np.ndarray:
        """Return float32 components of texts, zeros if missing."""
        table = _make_projection(self, learned)
        texts = np.zeros((len(parsed.dictionary) + 1, self.size), np.float32)  # the last row is for null
        for start, size, rows, buckets, log_counts in _iterate_blocks(parsed.dictionary):
            weights = log_counts * table.weights[buckets]
            sums = _sparse(rows, buckets, weights, (size, BUCKETS)) @ table.directions
            texts[start : start + size] = table.to_components(sums, np.bincount(rows, weights * weights, size))
        codes = plain_values(parsed.indices)
        encoded: np.ndarray = texts[np.where(valid_mask(parsed.indices), codes, -1) if parsed.null_count else codes]
        return encoded

    def _losses(
        self, parsed: pa.Array, encoded: Mapping[str, np.ndarray], learned: LearnedTextComponents
    ) -> Mapping[Loss, np.ndarray]:
        unknown = self._mask_unknown(parsed, encoded[""])
        return {"unknown": unknown} if unknown.any() else {}

    def _mask_unseen(self, parsed: pa.Array, learned: LearnedTextComponents, *, encodes: bool = True) -> np.ndarray:
        if not encodes:
            return np.zeros(len(parsed), bool)
        return self._mask_unknown(parsed, self.encode(parsed, learned))

    def _mask_unknown(self, parsed: pa.DictionaryArray, encoded: np.ndarray) -> np.ndarray:
        """Return a mask of texts without a known n-gram."""
        has_text = plain_values(pc.binary_length(parsed.dictionary)) > 0
        mask: np.ndarray = ~encoded.any(axis=1) & take_by_code(parsed, has_text, False)
        return mask

    def decode(self, encoded: np.ndarray, learned: LearnedTextComponents) -> pa.Array:
        return matrix_to_lists(encoded)


@memoize
def _make_projection(feature: TextComponents, learned: LearnedTextComponents) -> Projection:
    return Projection.of(vars(learned), feature.size)


def _inverse_deviation(components: np.ndarray) -> float:
    """Return the factor by which variances of columns add up to 1."""
    unit = 2.0**-FRACTION_BITS
    integers = np.rint(np.ldexp(components * unit, _SCALE_BITS))
    rows = max(len(integers), 1)
    variances = (rows * (integers * integers).sum(axis=0) - integers.sum(axis=0) ** 2) / rows**2
    deviation = math.sqrt(math.fsum(variances.tolist()))
    return unit * 2.0**_SCALE_BITS / deviation if deviation > 0 else unit
