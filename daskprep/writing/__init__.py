"""Writes of sources as datasets: one read of the source, bounded memory, and an atomic commit."""

from daskprep.writing.fit import fit_source
from daskprep.writing.memory import on_workers, plan_source
from daskprep.writing.recipe import Options, Recipe, WriteOptions
from daskprep.writing.repairing import repair
from daskprep.writing.write import write_source
