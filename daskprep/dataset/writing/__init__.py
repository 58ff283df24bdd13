"""Writes of sources as datasets: one read of the source, bounded memory, and an atomic commit.

In: a source, features and their learned state. Out: files of parts, their manifest, and versions of a dataset. A write
that was killed continues from its checkpoints.
"""

from daskprep.dataset.writing.memory import on_workers, plan_source
from daskprep.dataset.writing.versions import Options, Recipe
from daskprep.dataset.writing.write import fit_source, repair, write_source
