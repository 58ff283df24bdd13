"""Stream the rows of a split to torch: exact, elastic, resumable."""

from daskprep.dataset.loader.batches import Batch as Batch
from daskprep.dataset.loader.batches import rows_for_model
from daskprep.dataset.loader.lengths import jagged
from daskprep.dataset.loader.loader import Loader
