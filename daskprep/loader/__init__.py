"""Stream the rows of a split to torch: exact, elastic, resumable."""

from daskprep.loader.batches import Batch as Batch
from daskprep.loader.batches import rows_for_model
from daskprep.loader.lengths import jagged
from daskprep.loader.loader import Loader
