"""Stream the rows of a split to torch: exact, elastic, resumable."""

from daskprep.loader.augment import CenterCrop, MeanSubtraction, Mirror, Normalize, RandomCrop
from daskprep.loader.batches import Batch as Batch
from daskprep.loader.batches import rows_for_model
from daskprep.loader.lengths import jagged
from daskprep.loader.loader import Loader
from daskprep.loader.mix import Mix
from daskprep.loader.packing import Packing
