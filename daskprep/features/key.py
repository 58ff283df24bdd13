"""Keys of rows, such as the number of a customer, by which rows are deleted."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.permutation import hash_strings, make_key
from daskprep.columns.summaries import Summary
from daskprep.features.base import Invalid, Learned
from daskprep.features.feature import Feature, with_parameters
from daskprep.sources.cells import as_text

_INTEGER = "^(0|[1-9][0-9]{0,17})$"
_SIGN = np.int64(-(2**63))
MISSING_KEY = -1
"""The key of a row whose cell is missing."""


@with_parameters
class Key(Feature[Summary, Learned]):
    """The key of each row as an integer: the feature that ``Preprocessor(keys=)`` adds.

    Whole numbers from 0 to 10**18 - 1 are stored unchanged, missing cells as -1, and other values as the hash of
    their text, which is negative. So 17, 17.0 and "17" are one key, and the text "17.0" of a CSV file is another.

    Parameters
    ----------
    column : str or None
        Column to read, if its name differs from the feature's.
    """

    kind = "key"
    _is_input = False
    missing_value_strategy = "fill_with_const"  # `parse` returns no missing cell
    fill_value = MISSING_KEY
    invalid: ClassVar[Invalid] = "raise"  # type: ignore[misc] # no parameter here

    def parse(self, column: pa.Array) -> pa.Array:
        if pa.types.is_signed_integer(column.type):
            keys = column.cast(pa.int64()).fill_null(MISSING_KEY)
            ends = pc.min_max(column).as_py()
            if (ends["min"] or 0) >= 0 and (ends["max"] or 0) < 10**18:
                return keys  # as the text would be
        text = as_text(column)
        is_integer = pc.match_substring_regex(text, _INTEGER)
        hashes = pa.array(hash_strings(text, make_key(0, "key")).view(np.int64) | _SIGN)
        integers = pc.if_else(is_integer, text, "0").cast(pa.int64())
        return pc.if_else(is_integer, integers, hashes).fill_null(MISSING_KEY)

    def summarize(self, parsed: pa.Array) -> Summary:
        return Summary()

    def learn(self, summary: Summary) -> Learned:
        return Learned()

    def encode(self, parsed: pa.Array, learned: Learned) -> np.ndarray:
        keys: np.ndarray = parsed.to_numpy(zero_copy_only=False)
        return keys

    def decode(self, encoded: np.ndarray, learned: Learned) -> pa.Array:
        return pa.array(encoded)
