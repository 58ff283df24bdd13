"""Options of writes, loaders and streams: types, defaults and checks."""

from __future__ import annotations

import dataclasses
import inspect
import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

import numpy as np

from daskprep.columns.parametrized import is_integer
from daskprep.errors import ConfigError
from daskprep.sources.balance import Balance
from daskprep.sources.partitions.progress import Progress
from daskprep.storage.layout import Layout

if TYPE_CHECKING:
    import torch

    from daskprep.sources.partitions import Workers
    from daskprep.storage.arrays import Compression

Function = TypeVar("Function", bound=Callable[..., Any])

Style = Literal["network", "linear", "trees"]
Redundant = Literal["skip", "keep"]


def check_count(name: str, value: object, minimum: int) -> None:
    """Raise ConfigError if the option `name` is neither None nor an integer of at least `minimum`."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < minimum):
        raise ConfigError(f"{name}={value!r}: expected an integer from {minimum}")


def check_flags(**flags: object) -> None:
    """Raise ConfigError for the first flag that is neither True nor False; other values, such as "no", are truthy."""
    for name, value in flags.items():
        if np.ndim(value) or value not in (True, False):  # type: ignore[arg-type]
            raise ConfigError(f"{name}={value!r}: expected True or False")


def list_options(known: type[Any], values: type[Any] | None = None) -> Callable[[Function], Function]:
    """Return a decorator that lists the keys of a TypedDict in the signature of a function with ``**options``.

    So `help` and completion show them. The dataclass `values` has their defaults; other options have ``...``.
    """

    def set_signature(function: Function) -> Function:
        signature = inspect.signature(function)
        defaults = {} if values is None else {one.name: one.default for one in dataclasses.fields(values)}
        kind = inspect.Parameter.KEYWORD_ONLY
        options = [
            inspect.Parameter(name, kind, default=defaults.get(name, ...), annotation=hint.__forward_arg__)
            for name, hint in known.__annotations__.items()
        ]
        *own, _ = signature.parameters.values()
        function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        return function

    return set_signature


def check_seed(seed: object) -> int:
    """Return a seed as an int, or raise ConfigError if it is not an integer."""
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise ConfigError(f"seed={seed!r}: expected an integer, such as 0")
    return int(seed)


@dataclass(frozen=True)
class Packing:
    """Fill rows of one length with concatenated documents instead of padding each document.

    Parameters
    ----------
    block_size : int
        Length of a row in tokens.
    columns : str or iterable of str
        Output whose rows are the documents; it belongs to a `Sequence` or `Text`.

    Examples
    --------
    >>> import tempfile, pandas as pd
    >>> import daskprep as dp
    >>> frame = pd.DataFrame({"steps": ["a b c", "a", "b c a c b"]})
    >>> train = dp.Preprocessor({"steps": "sequence"}).fit_write(frame, tempfile.mkdtemp() + "/steps.dp")["train"]
    >>> packing = dp.Packing(block_size=4, columns=["steps"])
    >>> for batch in train.loader(batch_size=2, shuffle=False, pack=packing):
    ...     print(batch["steps"].tolist(), batch["position_ids"].tolist(), batch["document_ids"].tolist())
    [[2, 3, 4, 2], [3, 4, 2, 4]] [[0, 1, 2, 0], [0, 1, 2, 3]] [[0, 0, 0, 1], [0, 0, 0, 0]]
    [[3, 0, 0, 0]] [[4, 0, 0, 0]] [[0, -1, -1, -1]]
    """

    block_size: int
    columns: str | Iterable[str]


class WriteOptions(TypedDict, total=False):
    """Options of a write; `Preprocessor.fit_write` documents them."""

    shuffle: bool
    seed: int
    block_rows: int | None
    compression: Compression
    shards: bool | None
    overwrite: bool
    allow_erased: bool
    version: str | None
    memory: str | int | None
    workers: Workers
    progress: bool | None
    storage_options: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Options:
    """Values of `WriteOptions`, and folder for temporary files."""

    shuffle: bool = False
    seed: int = 0
    block_rows: int | None = None
    compression: Compression = "lz4"
    shards: bool | None = None
    overwrite: bool = False
    allow_erased: bool = False
    version: str | None = None
    memory: str | int | None = None
    workers: Workers = None
    progress: bool | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)  # credentials
    scratch: str | None = None

    def check(self) -> None:
        """Raise ConfigError for the first option that is invalid."""
        Layout.choose([], {}, block_rows=self.block_rows, compression=self.compression)
        Progress(self.progress)
        is_local = self.scratch is None or (isinstance(self.scratch, str) and "://" not in self.scratch)
        for name, is_valid, expected in (
            ("scratch", is_local, "a local folder that all workers can access"),
            ("shuffle", isinstance(self.shuffle, bool), "True or False"),
            ("overwrite", isinstance(self.overwrite, bool), "True or False"),
            ("allow_erased", isinstance(self.allow_erased, bool), "True or False"),
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


class BatchOptions(TypedDict, total=False):
    """Options that loaders, mixtures and streams share; `Loader` documents them."""

    shuffle: bool
    seed: int
    drop_last: bool
    columns: Iterable[str] | None
    targets: str | Iterable[str] | None
    expand: bool
    row_ids: bool
    to: Literal["torch", "numpy"]
    transform: Callable[[Any], Any] | None
    augment: Mapping[Any, Any] | None
    trim: bool
    pad_to_multiple_of: int | None
    rank: int | None
    world_size: int | None
    uneven: bool
    device: str | torch.device | None
    threads: int | None
    memory: str | int | None


class LoaderOptions(BatchOptions, total=False):
    """Options of a loader; `Loader` documents them."""

    streams: int | None
    prefetch_size: int | None
    prefetch_bytes: int | None
    balance: Balance | None
    weights: Mapping[str, Mapping[Any, float]] | None
    group_by_length: str | None
    batch_tokens: int | None
    overfit_batches: int | None
    pack: Packing | None
    cache: bool | None
    cache_dir: str | os.PathLike[str] | None
    cache_limit: int | None


class StreamOptions(BatchOptions, total=False):
    """Options of a stream; `Stream` documents them."""

    split: str
    epochs: int | None
    window: str | int
    client: Any
    workers: Workers
    decode_on: Literal["trainer", "workers"]


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """Values of `BatchOptions`, checked, and the number of rows of a batch over all ranks."""

    batch_size: int
    shuffle: bool = True
    seed: int = 0
    drop_last: bool = False
    columns: Iterable[str] | None = None
    targets: str | Iterable[str] | None = None
    expand: bool = True
    row_ids: bool = False
    to: Literal["torch", "numpy"] = "torch"
    transform: Callable[[Any], Any] | None = None
    augment: Mapping[Any, Any] | None = None
    trim: bool = False
    pad_to_multiple_of: int | None = None
    rank: int | None = None
    world_size: int | None = None
    uneven: bool = False
    device: str | torch.device | None = None
    threads: int | None = None
    memory: str | int | None = None

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size, 1)
        check_count("threads", self.threads, 1)
        check_count("pad_to_multiple_of", self.pad_to_multiple_of, 1)
        flags = ("shuffle", "drop_last", "expand", "row_ids", "uneven", "trim")
        check_flags(**{name: getattr(self, name) for name in flags})
        if not (self.transform is None or callable(self.transform)):
            raise ConfigError(f"transform={self.transform!r}: expected a function of a batch")
        if self.to not in ("torch", "numpy"):
            raise ConfigError(f'to={self.to!r}: expected "torch" or "numpy"')
        if self.to == "numpy" and str(self.device or "cpu") != "cpu":
            raise ConfigError(f'to="numpy" is for main memory, and device={str(self.device)!r} is not: leave one out')
        if self.pad_to_multiple_of is not None and not self.trim:
            raise ConfigError(f"pad_to_multiple_of={self.pad_to_multiple_of} needs trim=True, which cuts padding")
