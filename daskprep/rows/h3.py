"""Row encoder of `H3`, and the bit layout of H3 cells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskprep.rows.base import Arrays, Parameters, RowEncoder, Strategy
from daskprep.rows.cells import BOOLEAN_TYPES, MAX_EXACT_INTEGER, TIME_TYPES, reject_types, text_of

CELL_PATTERN = "0*[0-9]{1,19}|0[xX][0-9a-fA-F]{1,16}|[0-9a-fA-F]{15,16}"
DEFAULT_CELL = 576495936675512319  # mode 1, resolution 0, base cell 0
MAX_CELL = 2**63 - 1  # the highest bit is reserved
DIGITS, NO_DIGIT = 15, 7
# Positions and widths of mode, edge, resolution and base cell.
SHIFTS = (59, 56, 52, 45)
BITS = (4, 3, 4, 7)

_CELL = re.compile(CELL_PATTERN)
_NON_CELL_TYPES = (*TIME_TYPES, *BOOLEAN_TYPES)
_FIELDS = tuple((shift, (1 << bits) - 1) for shift, bits in zip(SHIFTS, BITS, strict=True))
_ALL_DIGITS = (1 << 3 * DIGITS) - 1
_DIGIT_VALUES = bytes.maketrans(b"01234567", bytes(range(8)))
_NO_DIGITS = bytes([NO_DIGIT]) * DIGITS


@dataclass(kw_only=True, eq=False, repr=False)
class H3Parameters(Parameters):
    """Parameters of `H3`."""

    missing_value_strategy: Strategy = "fill_with_const"
    fill_value: int | str | None = DEFAULT_CELL


class H3RowEncoder(RowEncoder):
    """Row encoder of `H3`."""

    def read(self, cell: Any) -> bytes | None:
        """Return an H3 index's 19 bytes; None if missing or invalid."""
        number = self._to_integer(cell)
        if number is None or not 0 <= number <= MAX_CELL:
            return None
        mode, edge, resolution, base_cell = (number >> shift & mask for shift, mask in _FIELDS)
        digits = (b"%015o" % (number & _ALL_DIGITS)).translate(_DIGIT_VALUES)
        return bytes((mode, edge, resolution, base_cell)) + digits[:resolution] + _NO_DIGITS[resolution:]

    def _to_integer(self, cell: Any) -> int | None:
        """Return the 64-bit index of a cell, or None; ColumnError for other types."""
        if not isinstance(cell, str):
            reject_types(cell, _NON_CELL_TYPES, "H3 cell")
            if isinstance(cell, (int, np.integer)):
                return int(cell)
            if isinstance(cell, (float, np.floating)):
                number = float(cell)
                return int(number) if 0 <= number < MAX_EXACT_INTEGER and number.is_integer() else None
        text = text_of(cell)
        text = None if text is None else text.strip()
        if text is None or _CELL.fullmatch(text) is None:
            return None
        return int(text[-19:]) if text.isdecimal() else int(text, 16)

    def to_arrays(self, values: Sequence[bytes]) -> Arrays:
        return {self.name: np.frombuffer(b"".join(values), np.uint8).reshape(-1, len(SHIFTS) + DIGITS).copy()}
