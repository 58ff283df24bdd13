"""Write sources as datasets: one read, bounded memory, whole or not at all."""

from daskprep.writing.fit import fit_source
from daskprep.writing.memory import plan_source
from daskprep.writing.recipe import Options, Recipe
from daskprep.writing.repairing import repair
from daskprep.writing.write import write_source
