"""Writes of sources as datasets: one read of the source, bounded memory, and an atomic commit."""

from daskprep.dataset.writing.memory import on_workers, plan_source
from daskprep.dataset.writing.versions import Options, Recipe
from daskprep.dataset.writing.write import fit_source, repair, write_source
