"""Feature types by their names in configurations.

In: cells of a column, as Arrow arrays. Out: their summary, the state learned from it, and arrays of encoded rows. Types
of images, audio, places and time series may be taken out of the package; all others belong to the core.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING

from daskprep.features.base import Learned
from daskprep.features.binary import Binary
from daskprep.features.category import Category
from daskprep.features.date import Date
from daskprep.features.embedding import Embedding
from daskprep.features.feature import Feature
from daskprep.features.key import Key
from daskprep.features.number import Number
from daskprep.features.sequence import Sequence, Text
from daskprep.features.set import Bag, Set
from daskprep.features.target_encoding import TargetEncoding
from daskprep.features.text_components import TextComponents
from daskprep.features.vector import Vector
from daskprep.features.weight import Weight

if TYPE_CHECKING:
    from daskprep.features.h3 import H3
    from daskprep.features.history import History
    from daskprep.features.timeseries import Timeseries

_EXTENSIONS = {
    "daskprep.features.history": ("History",), "daskprep.features.timeseries": ("Timeseries",),
    "daskprep.features.h3": ("H3",), "daskprep.extensions.media.image_feature": ("Image",),
    "daskprep.extensions.media.audio_feature": ("Audio",), "daskprep.extensions.media.boxes": ("Boxes", "Keypoints"),
}  # fmt: skip
_NAMES = (
    "Binary", "Number", "Category", "TargetEncoding", "Set", "Bag", "Sequence", "History", "Text", "TextComponents",
    "Timeseries", "Vector", "Date", "H3", "Image", "Audio", "Boxes", "Keypoints", "Embedding", "Weight", "Key",
)  # fmt: skip

for _module, _names in _EXTENSIONS.items():
    if all(map(find_spec, accumulate(_module.split("."), "{}.{}".format))):
        globals().update((_name, getattr(importlib.import_module(_module), _name)) for _name in _names)

FEATURES: dict[str, type[Feature]] = {globals()[name].kind: globals()[name] for name in _NAMES if name in globals()}
# Weights and keys have parameters: Preprocessor(weight=, keys=).
USER_KINDS = tuple(kind for kind in FEATURES if kind not in (Weight.kind, Key.kind))
