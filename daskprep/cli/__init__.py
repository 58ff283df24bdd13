"""The command `daskprep`.

Modules here import what they need only when a command runs, so that ``daskprep --help`` is quick.
"""

from __future__ import annotations

from daskprep.cli.program import main, program

__all__ = ["main", "program"]
