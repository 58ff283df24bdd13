"""Writes of sources as datasets: one read of the source, bounded memory, and an atomic commit."""

from daskprep.writing.memory import on_workers, plan_source
from daskprep.writing.versions import Options, Recipe
from daskprep.writing.write import fit_source, repair, write_source
