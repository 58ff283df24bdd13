"""Preprocessing of mixed data larger than memory: arrays on disk, and batches of tensors for torch.

Names are imported on first use, so that ``import daskprep`` is fast.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from daskprep.dataset import Dataset, FoldedDataset, open_dataset
    from daskprep.dataset.loader import jagged
    from daskprep.dataset.loader.augment import CenterCrop, MeanSubtraction, Mirror, Normalize, RandomCrop
    from daskprep.dataset.loader.mix import Mix
    from daskprep.dataset.loader.packing import Packing
    from daskprep.dataset.writing import repair
    from daskprep.extensions.column_types import infer_features
    from daskprep.extensions.erasing import erase
    from daskprep.extensions.media.audio_feature import Audio
    from daskprep.extensions.media.boxes import Boxes, Keypoints
    from daskprep.extensions.media.image_feature import Image
    from daskprep.extensions.training import DataModule, Manager
    from daskprep.features import (
        H3,
        Bag,
        Binary,
        Category,
        Date,
        Embedding,
        Feature,
        History,
        Number,
        Sequence,
        Set,
        TargetEncoding,
        Text,
        TextComponents,
        Timeseries,
        Vector,
    )
    from daskprep.preprocessor import Preprocessor
    from daskprep.sources import prepared, read_files
    from daskprep.sources.balance import Oversample, Undersample
    from daskprep.sources.split import (
        DatetimeSplit,
        FixedSplit,
        GroupSplit,
        HashSplit,
        KFold,
        RandomSplit,
        StratifiedSplit,
        TimeSeriesSplit,
    )

__version__ = "0.2.0"

_HOMES = {
    "sources.balance": ("Oversample", "Undersample"),
    "extensions.column_types": ("infer_features",),
    "extensions.erasing": ("erase",),
    "dataset": ("Dataset", "FoldedDataset", "open_dataset"),
    "features": (
        "Bag", "Binary", "Category", "Date", "Embedding", "Feature", "Number", "Sequence", "Set", "TargetEncoding",
        "Text", "TextComponents", "Vector",
    ),
    "extensions.media.audio_feature": ("Audio",),
    "extensions.media.boxes": ("Boxes", "Keypoints"),
    "features.h3": ("H3",),
    "features.history": ("History",),
    "extensions.media.image_feature": ("Image",),
    "features.timeseries": ("Timeseries",),
    "dataset.loader": ("jagged",),
    "dataset.loader.augment": ("CenterCrop", "MeanSubtraction", "Mirror", "Normalize", "RandomCrop"),
    "dataset.loader.mix": ("Mix",),
    "dataset.loader.packing": ("Packing",),
    "preprocessor": ("Preprocessor",),
    "sources": ("prepared", "read_files"),
    "sources.split": (
        "DatetimeSplit", "FixedSplit", "GroupSplit", "HashSplit", "KFold", "RandomSplit", "StratifiedSplit",
        "TimeSeriesSplit",
    ),
    "extensions.training": ("DataModule", "Manager"),
    "dataset.writing": ("repair",),
}  # fmt: skip
_HOME = {name: f"daskprep.{home}" for home, names in _HOMES.items() for name in names}

_SUBMODULES = ("errors", "lightning", "nn", "serving", "testing")

# A literal, because type checkers do not evaluate expressions.
__all__ = [
    "Audio", "Bag", "Binary", "Boxes", "Category", "CenterCrop", "DataModule", "Dataset", "Date", "DatetimeSplit",
    "Embedding", "Feature", "FixedSplit", "FoldedDataset", "GroupSplit", "H3", "HashSplit", "History", "Image", "KFold",
    "Keypoints", "Manager", "MeanSubtraction", "Mirror", "Mix", "Normalize", "Number", "Oversample", "Packing",
    "Preprocessor", "RandomCrop", "RandomSplit", "Sequence", "Set", "StratifiedSplit", "TargetEncoding", "Text",
    "TextComponents", "TimeSeriesSplit", "Timeseries", "Undersample", "Vector", "erase", "infer_features", "jagged",
    "open_dataset", "prepared", "read_files", "repair",
]  # fmt: skip


if not _typing.TYPE_CHECKING:  # else type checkers would accept any name

    def __getattr__(name: str) -> _typing.Any:
        """Import a public name at first access; raise AttributeError with a hint for unknown names."""
        if name in _SUBMODULES:
            return _importlib.import_module(f"daskprep.{name}")
        if name not in _HOME:
            from daskprep.errors import did_you_mean  # noqa: PLC0415 keeps ``import daskprep`` fast

            hint = did_you_mean(name, __all__) or " dir(daskprep) lists its names"
            raise AttributeError(f"module 'daskprep' has no attribute {name!r}.{hint}")
        value = getattr(_importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBMODULES, "__version__"])
