"""Stream the rows of a split to torch: exact, elastic, resumable.

In: a split, a seed, the rank and the number of ranks. Out: batches of tensors in an order that `order` computes, and a
state of a few numbers. Blocks are prefetched by threads, and decoded media cached.
"""

from daskprep.dataset.loader.batches import Batch as Batch
from daskprep.dataset.loader.batches import rows_for_model
from daskprep.dataset.loader.lengths import jagged
from daskprep.dataset.loader.loader import Loader
