"""Encode one row in microseconds, in a process that has nothing but the standard library and NumPy.

What `Preprocessor.save` wrote is all that it needs. Rows become the very arrays that `Preprocessor.encode` gives for a
frame of them.
"""

from __future__ import annotations

from daskprep.serving.encoder import Encoder, load

__all__ = ["Encoder", "load"]
