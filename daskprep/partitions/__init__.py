"""The only builder of Dask graphs: run a function over every partition of a source, and merge what it gives."""

from daskprep.partitions.block_arrays import blocks
from daskprep.partitions.graphs import Told
from daskprep.partitions.passes import Arguments, Function, arrays, chained, each, exchanged, fold, run
from daskprep.partitions.schedulers import is_distributed, is_in_process, on_every_worker, worker_threads

__all__ = [
    "Arguments",
    "Function",
    "Told",
    "arrays",
    "blocks",
    "chained",
    "each",
    "exchanged",
    "fold",
    "is_distributed",
    "is_in_process",
    "on_every_worker",
    "run",
    "worker_threads",
]
