"""The command `daskprep`.

In: arguments of a terminal. Out: lines of text, files, and an exit status. Modules here import their dependencies only
when a command runs, so that ``daskprep --help`` is fast.
"""

from __future__ import annotations

from daskprep.extensions.cli.program import main, program

__all__ = ["main", "program"]
