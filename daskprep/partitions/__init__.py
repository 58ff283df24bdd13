"""The only builder of Dask graphs: run a function over every partition of a source, and merge what it gives."""

from daskprep.partitions.feeding import Asked, Feed, Job, check_apart, current_annotations, open_feed
from daskprep.partitions.graphs import Arguments, Pass, blocks, end_to_end, labelled
from daskprep.partitions.passes import arrays, chained, each, exchanged, fold, frames, run
from daskprep.partitions.schedulers import is_distributed, is_in_process, on_every_worker, scheduled_on, worker_threads
