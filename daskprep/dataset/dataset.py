"""Dataset on disk: its splits, media cache, checks and report; the splits of several datasets are concatenated."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from daskprep.columns.display import Description, escape_unprintable, format_bytes, format_count
from daskprep.columns.parametrized import is_integer
from daskprep.dataset.cache import BlockCache, MediaBlocks
from daskprep.dataset.describing import describe_dataset, describe_rows
from daskprep.dataset.methods import DatasetMethods
from daskprep.dataset.segments import Segment, open_segment
from daskprep.dataset.split import Split
from daskprep.dataset.stored import Damage, StoredDataset, find_damage, raise_damage
from daskprep.errors import ConfigError, did_you_mean
from daskprep.features.base import class_count
from daskprep.sources import partitions
from daskprep.sources.balance import balanced_weights
from daskprep.sources.partitions.progress import Progress
from daskprep.storage import Folder
from daskprep.storage.layout import CACHE_FOLDER, FOLD_PREFIX, SPLITS
from daskprep.storage.manifest import MANIFEST
from daskprep.storage.reading import BlockLocation

_Key = tuple[int, str]
_Media = Mapping[_Key, tuple[MediaBlocks, BlockCache]]
"""Media and cache of each output, by number of the split and output; sent to workers."""

_COUNTED_ROWS = 1 << 20


def open_single(root: Folder, base_dir: str | None, *, trusted: bool) -> Dataset:
    """Return the dataset in a folder, without appended parts, as `open_segment`."""
    return as_dataset([open_segment(root, base_dir, trusted=trusted)])


def as_dataset(segments: Sequence[Segment], state: Segment | None = None) -> Dataset:
    """Return the dataset of segments, of all folds if it is a cross-validation."""
    return (FoldedDataset if segments[0].manifest.settings.get("folds") else Dataset)(segments, state)


# What readers of files and writers of reports use: completion shows the other attributes.
_FOR_TOOLS = frozenset((
    "decoder", "description", "file_entries", "is_joined", "layout", "loss_counts", "manifests", "missing_counts",
    "single_dataset_error", "state",
))  # fmt: skip


class Dataset(DatasetMethods, StoredDataset):
    """A dataset on disk: its splits and the fitted state that wrote them.

    Opening a dataset reads its manifest and checks the files of the fitted state. Nothing is unpickled or evaluated,
    and no file stays open. A dataset may therefore be used in threads and forked processes, and pickled: its path is
    opened again.

    Attributes
    ----------
    url : str
        Path or URL, without credentials.
    version : str
        Digest of the sources and settings, with a number if the dataset was written again.
    splits : dict of str to Split
        The splits that have rows.
    layout : Layout
        How rows are stored in blocks, and blocks in files.
    trusted : bool
        Whether the dataset may name files and URLs outside its folder.
    timings : mapping or None
        Seconds of each stage of the write that returned this dataset. None if it existed already or was opened. They
        are not stored: the same rows result in the same bytes.
    repaired : list of Damage
        Files that `repair` wrote again or removed, and what was wrong with each.

    Examples
    --------
    >>> from daskprep.dataset import open_dataset
    >>> dataset = open_dataset("listings.dp")  # doctest: +SKIP
    >>> dataset["train"].num_embeddings("city")  # doctest: +SKIP
    10001
    """

    def __init__(
        self, segments: Sequence[Segment] | Callable[[], Sequence[Segment]], state: Segment | None = None
    ) -> None:
        super().__init__(segments, state)
        self.timings: Mapping[str, float] | None = None
        self.repaired: list[Damage] = []

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return type(self), (self.segments, self._state)

    @cached_property
    def splits(self) -> dict[str, Split]:  # type: ignore[override]
        return {name: Split(self, name) for name in self.layout.rows}

    if not TYPE_CHECKING:  # else type checkers would accept any attribute

        def __getattr__(self, name: str) -> Any:
            hint = f'["{name}"]' if name in SPLITS else f'["train"].{name}' if hasattr(Split, name) else ""
            if not hint or hasattr(type(self), name):
                return object.__getattribute__(self, name)  # raises the original error, also of properties
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}: use dataset{hint}")

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _FOR_TOOLS]

    def __getitem__(self, split: str) -> Split:
        """Return a split by name; raise ConfigError for an unknown name or a split without rows."""
        if isinstance(split, str) and split in self.splits:
            return self.splits[split]
        if split in SPLITS:
            self._check_not_empty()
            raise ConfigError(f'split "{split}" of {self.url} has no rows; those with rows: {", ".join(self.splits)}')
        hint = (
            ' For rows, use dataset["train"][rows].' if isinstance(split, int | slice) else did_you_mean(split, SPLITS)
        )
        raise ConfigError(f"no split {split!r}.{hint} Splits are: {', '.join(self.splits)}")

    def _check_not_empty(self) -> None:
        """Raise ConfigError if no split has rows."""
        if not self.splits:
            raise ConfigError(
                f"{self.url} has no rows, since all were deleted: append rows, or open an older version with version="
            )

    def __iter__(self) -> Iterator[str]:
        return iter(self.splits)

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        raise TypeError('each split has a length: use len(dataset["train"]), or len(dataset.splits)')

    def num_classes(self, output: str) -> int:
        """Return the number of classes of a `Category` or `Binary`: its ids are below it."""
        return class_count(output, *self._find_learned(output))

    def class_weights(self, output: str) -> NDArray[np.float32]:
        """Return a weight for each class id of a `Category` or `Binary`, against class imbalance.

        The weight is rows / (classes * rows of the class) over the training rows, as "balanced" in scikit-learn, or 0
        for a class without rows. Pass the weights to ``CrossEntropyLoss(weight=)``. For a `Binary`, the second weight
        divided by the first is the ``pos_weight`` of ``BCEWithLogitsLoss``.
        """
        counts = np.zeros(self.num_classes(output), np.int64)
        train = self["train"]
        for start in range(0, len(train), _COUNTED_ROWS):
            counts += np.bincount(train.read(output, start, start + _COUNTED_ROWS)[output], minlength=len(counts))
        return balanced_weights(counts)

    def cache_media(
        self,
        client: Any = None,
        *,
        splits: Iterable[str] | str | None = None,
        columns: Iterable[str] | str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_limit: int | None = None,
        workers: partitions.Workers = None,
        progress: bool | None = None,
    ) -> None:
        """Decode images and audio on all workers, and cache them for loaders; cached blocks are kept.

        Parameters
        ----------
        client : distributed.Client or None
            Dask client whose workers decode. None: the active client, or threads.
        splits, columns : str, iterable of str or None
            Splits and outputs to decode. None: all.
        cache_dir, cache_limit
            As for a loader; pass the same values to both.
        workers : int, "threads" or None
            Number of processes of this machine that are started to decode. None or "threads": threads of this process,
            since decoders release Python's lock. A Dask client or scheduler that is set is used instead.
        progress : bool or None
            Whether to show a progress bar. None: on terminals only.

        Raises
        ------
        MediaError
            A file cannot be decoded, and the feature does not fill it. A block with filled values is not cached.
        """
        folder = None if cache_dir is None else Folder.open(cache_dir)
        with partitions.use_client(client), partitions.on_workers(workers, None), Progress(progress) as progress_bar:
            names = [splits] if isinstance(splits, str) else self.splits if splits is None else dict.fromkeys(splits)
            outputs, chosen = self._media_outputs(columns), [one for name in names for one in self[name].joined]
            media = {
                (number, output): (one.media(output), one.cache(output, folder, cache_limit))
                for number, one in enumerate(chosen)
                for output in outputs
            }
            if partitions.is_distributed() and any(cache.parent.is_process_local for _, cache in media.values()):
                raise ConfigError(
                    "the workers of a cluster cannot cache in memory://, which is private to a process: pass cache_dir"
                )
            for _, cache in media.values():
                cache.prepare()
            tasks = [
                (key, chosen[key[0]].block(key[1], block), block)
                for key, (_, cache) in media.items()
                for block in sorted(set(range(cache.blocks)) - set(cache.present()))
            ]
            advance = progress_bar.stage("caching", total=len(tasks), unit="blocks")
            partitions.run_tasks("cache-media", _cache_block, media, tasks, advance=advance)

    def _media_outputs(self, columns: Iterable[str] | str | None) -> list[str]:
        """Return the selected media outputs, None: all; ConfigError for outputs that are not decoded while loading."""
        known = [output.name for output in self.layout.cells]
        names = known if columns is None else [columns] if isinstance(columns, str) else list(dict.fromkeys(columns))
        for name in names:
            if name not in known:
                raise ConfigError(
                    f'"{name}" is not an output of images or audio that are decoded while loading.'
                    f"{did_you_mean(name, known)} Those are: {', '.join(known) or 'none'}"
                )
        return names

    def clear_cache(self, *, unused: bool = False) -> None:
        """Remove the decoded media cached within the dataset.

        A `cache_dir` is not touched. With `unused`, remove only caches that no loader of this dataset version uses.
        """
        for one in self.datasets:
            one._clear_cache(unused)

    def _clear_cache(self, unused: bool) -> None:
        """Remove all caches within the dataset, or only unused ones."""
        cache = self.root / CACHE_FOLDER
        if names := cache.children():
            used = {split.cache(one.name).name for split in self.splits.values() for one in self.layout.cells if unused}
            # Concurrent writers wait for the lock: without it, each of their writes could fail again.
            with cache.lock():
                for folder in [cache / name for name in names if name not in used] if used else [cache]:
                    folder.remove_all()
        elif CACHE_FOLDER in self.root.children():
            # A link has no children and is removed itself. An empty folder stays: a process may be about to use it.
            with suppress(IsADirectoryError):
                self.root.remove(CACHE_FOLDER)

    def damaged(self) -> list[Damage]:
        """Read every byte and return the files that are missing, changed, or not part of the dataset.

        Files next to manifest.json, such as a README, are ignored.
        """
        damages = [(one.root.url, bad) for one in self.segments for bad in find_damage(one.root, one.manifest)]
        if len(self.segments) == 1:
            return [bad for _, bad in damages]
        return [Damage(f"{url}/{bad.file}", bad.problem) for url, bad in damages]

    def verify(self) -> None:
        """Read every byte; raise `CorruptDatasetError` with the first files that are damaged."""
        raise_damage(self.url, self.damaged())

    @property
    def description(self) -> Description:
        """Summary of rows, splits and outputs, as lines and tables."""
        return describe_dataset(self.url, self.layout, self.manifests, self.duplicates)

    def __repr__(self) -> str:
        return self.description.text()

    def _repr_html_(self) -> str:
        splits = islice(self.splits.values(), 1)
        return describe_dataset(
            self.url, self.layout, self.manifests, self.duplicates, *map(describe_rows, splits)
        ).html()


def _cache_block(media: _Media, task: tuple[_Key, BlockLocation, int]) -> int:
    """Decode and cache a block (key, location, number) unless it is cached or a file is broken; return its rows."""
    key, location, block = task
    blocks, cache = media[key]
    if not cache.has(block):
        rows = blocks.output.empty(location.rows)
        # A block with fill values is not cached, because the broken files may be repaired.
        if not blocks.decode(location, slice(None), rows):
            cache.write(block, rows)
    return location.rows


class FoldedDataset(Dataset):
    """Dataset that `fit_write` writes with a `KFold`: `fold` and iteration return one dataset per fold.

    Its own fitted state is learned from all rows. It has no splits: folds have the methods on rows, such as `rejects`.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> import daskprep as dp
    >>> prep = dp.Preprocessor({"price": "number"}, split=dp.KFold(3))
    >>> dataset = prep.fit_write(pd.DataFrame({"price": range(9)}), f"{tempfile.mkdtemp()}/folds.dp")
    >>> [(len(fold["train"]), len(fold["validation"])) for fold in dataset]
    [(6, 3), (6, 3), (6, 3)]
    """

    @property
    def folds(self) -> int:
        """Number of folds."""
        return int(self.manifest.settings["folds"])

    def fold(self, number: int) -> Dataset:
        """Return the dataset with this fold for validation, encoded by the state of other folds; or ConfigError."""
        if number not in range(self.folds):
            raise ConfigError(f"{self.url} has no fold {number!r}: its folds are 0 to {self.folds - 1}")
        name = f"{FOLD_PREFIX}{int(number)}"
        self.files.read(f"{name}/{MANIFEST}")  # raises if the manifest of the fold was altered
        return open_single(self.root / self.version / name, self.base_dir, trusted=self.trusted)

    def __len__(self) -> int:
        return self.folds

    def __iter__(self) -> Iterator[Dataset]:  # type: ignore[override]
        return map(self.fold, range(self.folds))

    def __getitem__(self, split: str) -> Split:
        raise self._choose_fold_error("" if is_integer(split) else f"[{split!r}]")

    def _choose_fold_error(self, call: str) -> ConfigError:
        return ConfigError(f"{self.url} has {self.folds} folds: choose one, as in dataset.fold(0){call}")

    def rejects(self) -> pa.Table:
        raise self._choose_fold_error(".rejects()")

    def class_weights(self, output: str) -> NDArray[np.float32]:
        raise self._choose_fold_error(f".class_weights({output!r})")

    def cache_media(self, client: Any = None, **options: Any) -> None:
        """Decode and cache the images and audio of every fold, with the options of `Dataset.cache_media`."""
        for fold in self:
            fold.cache_media(client, **options)

    def clear_cache(self, *, unused: bool = False) -> None:
        for fold in self:
            fold.clear_cache(unused=unused)

    def report(self, path: object = None) -> None:  # type: ignore[override]
        raise self._choose_fold_error(".report()")

    def plot(self, name: str | None = None, split: str | None = "train") -> None:  # type: ignore[override]
        raise self._choose_fold_error(f".plot({name!r})")

    @property
    def description(self) -> Description:
        stored = format_bytes(sum(entry.bytes for entry in self.manifest.files.values()))
        line = f"Dataset at {escape_unprintable(self.url)}: {format_count(self.folds, 'fold')}, {stored}"
        return Description([f"{line}. fold(number) opens one of them"], [])

    def _repr_html_(self) -> str:
        return self.description.html()
