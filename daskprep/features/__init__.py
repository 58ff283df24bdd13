"""Feature types by their names in configurations."""

from __future__ import annotations

from daskprep.features.audio import Audio
from daskprep.features.base import Learned
from daskprep.features.binary import Binary
from daskprep.features.boxes import Boxes, Keypoints
from daskprep.features.category import Category
from daskprep.features.date import Date
from daskprep.features.embedding import Embedding
from daskprep.features.feature import Feature
from daskprep.features.h3 import H3
from daskprep.features.image import Image
from daskprep.features.number import Number
from daskprep.features.sequence import Sequence, Text
from daskprep.features.set import Bag, Set
from daskprep.features.target_encoding import TargetEncoding
from daskprep.features.text_components import TextComponents
from daskprep.features.timeseries import Timeseries
from daskprep.features.vector import Vector
from daskprep.features.weight import Weight

_TYPES: tuple[type[Feature], ...] = (
    Binary, Number, Category, TargetEncoding, Set, Bag, Sequence, Text, TextComponents, Timeseries, Vector, Date, H3,
    Image, Audio, Boxes, Keypoints, Embedding, Weight,
)  # fmt: skip
FEATURES: dict[str, type[Feature]] = {feature.kind: feature for feature in _TYPES}
USER_KINDS = tuple(kind for kind in FEATURES if kind != Weight.kind)  # weights have a parameter: Preprocessor(weight=)
