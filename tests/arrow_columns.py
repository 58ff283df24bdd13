"""Encode whole columns, also of frames of a few rows, which `Preprocessor.encode` passes to row encoders.|"""

from __future__ import annotations

from typing import Any

import daskprep as dp
from daskprep.passes.encoding import encode_source
from daskprep.sources import as_source


def encode_columns(prep: dp.Preprocessor, frame: Any) -> dict[str, Any]:
    """Return what `Preprocessor.encode` returns for many rows."""
    return encode_source(prep.features_, prep.learned_, as_source(frame))
