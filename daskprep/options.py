"""Options of loaders and streams: types, defaults, checks, and their documentation."""

from __future__ import annotations

import inspect
import numbers
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from textwrap import indent
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

import numpy as np

from daskprep.balance import Balance
from daskprep.errors import ConfigError, with_parameter_hints

if TYPE_CHECKING:
    import torch

    from daskprep.partitions import Workers

T = TypeVar("T", bound=Callable[..., Any])
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def check_count(name: str, value: object, minimum: int) -> None:
    """Raise ConfigError if the option `name` is neither None nor an integer of at least `minimum`."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < minimum):
        raise ConfigError(f"{name}={value!r}: expected an integer from {minimum}")


def check_flags(**flags: object) -> None:
    """Raise ConfigError for the first flag that is neither True nor False; other values, such as "no", are truthy."""
    for name, value in flags.items():
        if np.ndim(value) or value not in (True, False):  # type: ignore[arg-type]
            raise ConfigError(f"{name}={value!r}: expected True or False")


def check_seed(seed: object) -> int:
    """Return a seed as an int, or raise ConfigError if it is not an integer."""
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise ConfigError(f"seed={seed!r}: expected an integer, such as 0")
    return int(seed)


def parse_bytes(memory: str | int, option: str = "memory") -> int:
    """Return bytes from text like "2GB" or "500 MiB", or a whole number; `option` is the parameter's name in errors."""
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?i?)b?\s*", str(memory).lower())
    if not isinstance(memory, str) or match is None or match[2] not in _UNITS:
        raise ConfigError(f'{option}={memory!r}: expected bytes such as "2GB", "500MB" or 2_000_000_000')
    return int(float(match[1]) * _UNITS[match[2]])


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


class BatchOptions(TypedDict, total=False):
    """Options that loaders and streams share.

    Parameters
    ----------
    shuffle : bool
        Whether to shuffle rows in each epoch; a stream shuffles its partitions, and the rows of a window. False: the
        order on disk or in the source.
    seed : int
        Seed of the shuffle.
    drop_last : bool
        Whether to drop rows that do not fill a batch. Otherwise they form a smaller batch, shared evenly. If there are
        fewer rows than ranks, the batch before is smaller, too, so that each rank has a row of both.
    columns : iterable of str or None
        Outputs in the batches. None: all.
    targets : str, iterable of str or None
        Outputs that are separated: batches are then ``(inputs, target)``, or ``(inputs, dict of targets)`` for several.
        None: the Preprocessor's `targets` that are among `columns`. ``()``: no targets. With weights of rows, batches
        are ``(inputs, target, weights)``; without targets, weights are in the batch under the name of their column.
    expand : bool
        Whether to expand compact rows to model inputs (ids int64, sets multi-hot, labels bool). False: as in a dataset.
    row_ids : bool
        Whether batches contain "row_id", the number of each row in the source, and for several datasets "source_id",
        the number of its dataset.
    to : {"torch", "numpy"}
        Kind of the arrays in a batch. NumPy arrays share the memory of the tensors.
    transform : callable or None
        Function applied to every batch, last.
    augment : mapping or None
        Random augmentation of images by output: ``{"photo": [RandomCrop(24, padding=4), Mirror()]}``. It depends on
        seed, epoch and row, and is applied before `expand`. The key ``("photo", "mask")`` augments both outputs alike.
    trim : bool
        Whether to cut padded outputs to the longest row of each batch of this rank, and to add the lengths of its rows
        as "<name>_length". These are token ids, time series, frames of audio, and ids of sets and bags that are not
        expanded. Padding is cut on its side.
    pad_to_multiple_of : int or None
        With `trim`, round widths up to a multiple of this, for kernels that need one.
    rank, world_size : int or None
        Share of each batch for distributed training (DDP). None: taken from torch.distributed if it runs, otherwise 0
        of 1.
    uneven : bool
        Whether ranks may share a batch that they do not divide: their shares then differ by one row. False: an error.
    device : str, torch.device or None
        Device of the tensors; a batch is copied while the previous one is used. None: main memory.
    threads : int or None
        Threads of this process that read, encode and decode. None: one per core for a stream. For a loader, up to 4 for
        local files and 48 for remote ones. A loader that decodes media has one per core, up to 8 for images and 16 for
        audio, and 32 if their files are remote.
    memory : str, int or None
        Maximum bytes that the iteration takes in this process, such as "500MB": it determines the prefetched blocks and
        the number of streams that are not set, or the window of a stream. Fewer streams are another order of rows.
    """

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
    """Options of a loader.

    Parameters
    ----------
    streams : int or None
        Number of streams of shuffled rows that are mixed in a batch; each keeps a block in memory. None: 16, or
        another divisor of the batch size from 8 to 256, or 16 if there is none. More than 64 cause a warning.
    balance : Oversample, Undersample or None
        How to sample the rows of each class in an epoch, against class imbalance. Seed and epoch choose the rows.
    weights : mapping or None
        Alternative to `balance`: ``{"sold": {"yes": 3.0}}`` yields rows of that class three times as often.
    group_by_length : str or None
        Output that `trim` cuts: rows of similar length are batched together, so that little padding is left. They are
        sorted within groups of batches, so that the order still depends on seed, epoch and row alone. The lengths
        of all rows are read once, and up to three blocks of each stream are in memory.
    batch_tokens : int or None
        With `trim` and `group_by_length`, the maximum of a batch's rows times its longest row, over all ranks together.
        A batch has as many times `batch_size` rows as fit.
    overfit_batches : int or None
        Yield only this many batches of epoch 0, in every epoch, to check that a model can overfit them.
    pack : Packing or None
        Join the documents of one output into rows of one length, which `batch_size` then counts.
    prefetch_size : int or None
        Blocks prefetched for each stream; 0 reads without prefetching, in the calling thread. None: the largest
        `prefetch_size` of the image and audio features, or as many as fit in `prefetch_bytes`.
    prefetch_bytes : int or None
        Bytes of prefetched blocks, in addition to the current blocks of the streams. None: 256 MB. Images and audio
        that are decoded per batch count with their stored size.
    cache : bool or None
        Whether to cache decoded images and audio on disk, block by block, for later epochs, and the blocks of a
        dataset in an object store if `cache_dir` is on this machine. None: only images and audio with
        ``mode="lazy_cached"``.
    cache_dir : str, path or None
        Folder of the cache, which all ranks of a machine may share. None: within the dataset, which must then be
        writable.
    cache_limit : int or None
        Maximum bytes of the cache. Blocks that do not fit are decoded, or read from the store, again in each epoch.
    """

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
    """Options of a stream.

    Parameters
    ----------
    split : {"train", "validation", "test"}
        Split whose rows are yielded, balanced as set in the Preprocessor.
    epochs : int or None
        Number of epochs in one iteration, without a pause between them. None: endless.
    window : str or int
        Maximum bytes of encoded rows in memory, such as "2GB". Rows are shuffled within half of them while the other
        half is encoded. If a single partition takes more than half, the rows of a batch may be added on top.
    client : distributed.Client or None
        Dask client whose workers read and encode. None: the active client, or threads of this process. Frames in memory
        are always encoded in this process.
    workers : int, "threads" or None
        Number of processes of this machine that are started for an iteration, without a client; "threads" of this
        process. None: one process per core if an iteration then ends sooner and there are no other ranks.
    decode_on : {"trainer", "workers"}
        Where to decode images and audio: in this process, for the next batches, or where they are read.
    """

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


def with_options(options: Any, defaults: type[Any], **own_defaults: Any) -> Callable[[T], T]:
    """Return a decorator for a class or function with ``**options``, the items of the TypedDict `options`.

    Signature and docstring then show each option, with its default in `own_defaults` or in the dataclass `defaults`
    (else None) and the text of `options`, and errors for other options have hints.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    values = {name: parameter.default for name, parameter in inspect.signature(defaults).parameters.items()}
    shown = {
        name: inspect.Parameter(
            name, keyword, default=(values | own_defaults).get(name), annotation=getattr(kind, "__forward_arg__", kind)
        )
        for name, kind in options.__annotations__.items()
    }
    shared = [BatchOptions] if BatchOptions.__annotations__.keys() < shown.keys() else []  # a TypedDict has no bases
    text = "\n".join((inspect.getdoc(one) or "").partition("----------\n")[2] for one in (options, *shared))

    def decorate(target: Any) -> Any:
        """Set signature and docstring of a class or function, and return it or its wrapper with hints."""
        is_class = inspect.isclass(target)
        hinted: Any = with_parameter_hints(target.__init__ if is_class else target)
        signature = inspect.signature(hinted)
        explicit = list(signature.parameters.values())[:-1]
        added = [one for name, one in shown.items() if name not in signature.parameters]
        hinted.__signature__ = signature.replace(parameters=explicit + added)
        documented = target if is_class else hinted
        documented.__doc__ = re.sub(
            r"(?m)^( *)\*\*options\n.*\n", lambda match: indent(text, match[1]) + "\n", target.__doc__ or ""
        )
        if is_class:
            target.__init__ = hinted
        return documented

    return decorate
