"""The specification of a write: its preprocessing and options, and a digest that identifies it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from daskprep.balance import Balance
from daskprep.errors import ConfigError
from daskprep.features import Feature, Learned
from daskprep.features.media import MediaFeature
from daskprep.parametrized import is_integer
from daskprep.partitions import Workers
from daskprep.passes.contexts import assignment_columns, fold_columns
from daskprep.passes.table import learning_columns
from daskprep.progress import Progress
from daskprep.sources import Source
from daskprep.split import Splitter
from daskprep.state import state_files
from daskprep.storage.arrays import Compression
from daskprep.storage.layout import Layout
from daskprep.writing.versions import short_digest

# Increase it when the same features and rows result in other bytes than before: then digests differ, too.
ENCODING_VERSION = 1


@dataclass(frozen=True)
class Recipe:
    """The preprocessing of the rows: the parameters and states of a Preprocessor.

    Attributes
    ----------
    features, split, balance, fit_on, targets : mapping, Splitter, Balance, str, tuple
        The parameters of the Preprocessor.
    learned : mapping or None
        The learned states by feature; None: learn them from the rows.
    describe : callable
        Returns the JSON state of the Preprocessor for learned states, or for None.
    """

    features: Mapping[str, Feature]
    split: Splitter | None
    balance: Balance | None
    fit_on: str
    learned: Mapping[str, Learned] | None
    describe: Callable[[Mapping[str, Learned] | None], dict[str, Any]]
    targets: tuple[str, ...] = ()

    @property
    def media(self) -> dict[str, MediaFeature]:
        """The media features: their cells are decoded when parts are written, or by the loader."""
        return {name: feature for name, feature in self.features.items() if isinstance(feature, MediaFeature)}

    @property
    def raw_columns(self) -> list[str]:
        """The columns that are needed unparsed: for split, balance and folds, and to learn."""
        feature_columns = fold_columns(self.features) if self.learned is not None else learning_columns(self.features)
        return list(dict.fromkeys([*assignment_columns(self.split, self.balance), *feature_columns]))


class WriteOptions(TypedDict, total=False):
    """Options of a write.

    Parameters
    ----------
    shuffle : bool
        Whether to shuffle the rows of each split; use it if rows are sorted.
    seed : int
        Seed of the shuffle; any integer.
    block_rows : int or None
        Rows of a block, the unit of reading. None: as many as fit in 16 MB for the widest array, or in 4 MB with
        shards, but few enough for 64 blocks in the largest split.
    compression : {"lz4", "zstd", "none"}
        Compression of arrays and tables.
    shards : bool or None
        Whether the blocks of an array share a few large files, instead of one file per block. None: True in object
        stores, where each file takes a request; local files are faster to read one by one.
    overwrite : bool
        Whether to write even if this version already exists, or if the existing dataset cannot be read.
    version : str or None
        Name for the version of rows that are not read from files. In-memory and Dask frames are written each time,
        unless a dataset with this version name already exists.
    memory : str, int or None
        Memory limit of all processes of the write together, such as "2GB". Partitions of files are sized to fit. A
        write that cannot fit raises an error before it starts.
    workers : int, "threads" or None
        Number of processes of this machine that are started for the write; "threads" of this process. None: one process
        per core if the write then ends sooner. A Dask client or scheduler that is set is used instead.
    progress : bool or None
        Whether to show progress bars. None: on terminals and in notebooks.
    storage_options : mapping or None
        Options for fsspec to open `path`, and `frame` if it is a path, such as credentials. They are not stored.
    """

    shuffle: bool
    seed: int
    block_rows: int | None
    compression: Compression
    shards: bool | None
    overwrite: bool
    version: str | None
    memory: str | int | None
    workers: Workers
    progress: bool | None
    storage_options: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Options:
    """Values of `WriteOptions`, and the folder for temporary files."""

    shuffle: bool = False
    seed: int = 0
    block_rows: int | None = None
    compression: Compression = "lz4"
    shards: bool | None = None
    overwrite: bool = False
    version: str | None = None
    memory: str | int | None = None
    workers: Workers = None
    progress: bool | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)  # credentials
    scratch: str | None = None

    def check(self) -> None:
        """Raise ConfigError for an invalid option."""
        Layout.choose([], {}, block_rows=self.block_rows, compression=self.compression)
        Progress(self.progress)
        is_local = self.scratch is None or (isinstance(self.scratch, str) and "://" not in self.scratch)
        for name, is_valid, expected in (
            ("scratch", is_local, "a local folder that all workers can access"),
            ("shuffle", isinstance(self.shuffle, bool), "True or False"),
            ("overwrite", isinstance(self.overwrite, bool), "True or False"),
            ("shards", isinstance(self.shards, bool | None), "True, False, or None to choose by the store"),
            ("seed", is_integer(self.seed), "an integer"),
            ("version", isinstance(self.version, str | None), 'text, for example "2024-06-01"'),
        ):
            if not is_valid:
                raise ConfigError(f"{name}={getattr(self, name)!r}: expected {expected}")

    @property
    def source_options(self) -> dict[str, Any]:
        """Options for `as_source`."""
        return {"storage_options": self.storage_options, "scratch": self.scratch}

    @property
    def settings(self) -> dict[str, Any]:
        """The options that determine the bytes of the dataset, as JSON values."""
        return {
            "block_rows": self.block_rows,
            "compression": self.compression,
            "shuffle_seed": int(self.seed) if self.shuffle else None,
            **({"shards": True} if self.shards else {}),
        }


def digest_of_write(recipe: Recipe, fingerprint: Mapping[str, Any] | None, options: Options) -> str:
    """Return a digest of all inputs that determine the bytes of the dataset."""
    state = recipe.describe(recipe.learned)
    learned = {}
    if recipe.learned is not None:
        learned = {name: hashlib.sha256(data).hexdigest() for name, data in state_files(state).items()}
        state = recipe.describe(None)
    description = {
        "encoding": ENCODING_VERSION,
        # As text, because order matters: of features, for the outputs, and of special symbols, for their ids.
        "state": json.dumps(state, ensure_ascii=True, allow_nan=False),
        "learned": learned,
        "files": {name: feature.fingerprint() for name, feature in recipe.features.items()},
        "source": fingerprint,
        "settings": options.settings,
    }
    return short_digest(description)


def digest_of_partitioning(source: Source) -> str:
    """Return a digest of the partitions of a source: their number, rows and bytes."""
    sizes = [fragment.nbytes for fragment in source.fragments] if source.files else None
    return short_digest({"rows": source.row_counts, "partitions": source.npartitions, "bytes": sizes})
