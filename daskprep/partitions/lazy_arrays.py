"""Lazy arrays of encoded rows; functions import this module, since `dask.array` takes half a second to import."""

from __future__ import annotations

import dask.array as da

from daskprep.errors import with_attribute_hints


@with_attribute_hints(**{name: f"compute().{name}()" for name in ("tolist", "tobytes")})
class LazyArray(da.Array):
    """Lazy array of encoded rows, whose errors name `compute` for methods of NumPy arrays."""
