"""Stream the rows of a split to torch: exact, elastic, resumable."""

from daskprep.loader.loader import Loader
from daskprep.loader.packing import Packing

__all__ = ["Loader", "Packing"]
