"""How many cases the longest tests check: a fixed share, or with DASKPREP_THOROUGH all of them.|"""

from __future__ import annotations

import os


def one_in(step: int) -> int:
    """Return the step between the cases to check: 1 for a thorough run."""
    return 1 if os.environ.get("DASKPREP_THOROUGH") else step
