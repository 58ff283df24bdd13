"""The command `daskprep`, as ``python -m daskprep``."""

from __future__ import annotations

import sys

from daskprep.extensions.cli import main

# The guard is needed because worker processes of a cluster import this module again.
if __name__ == "__main__":
    sys.exit(main())
