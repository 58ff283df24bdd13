"""A dataset on disk: what its manifest lists, what was learned, and its splits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from daskprep import partitions
from daskprep.balance import balanced_weights
from daskprep.dataset.cache import BlockCache
from daskprep.dataset.checking import Damage, find_damage, raise_damage
from daskprep.dataset.describing import describe_dataset, describe_rows
from daskprep.dataset.media import MediaBlocks
from daskprep.dataset.split import Split
from daskprep.dataset.stored import StoredDataset
from daskprep.display.tables import Description
from daskprep.display.words import escape_unprintable, format_bytes, format_count
from daskprep.errors import ConfigError, CorruptDatasetError, IncompleteDatasetError, did_you_mean, with_attribute_hints
from daskprep.features.base import class_count
from daskprep.progress import Progress
from daskprep.state import METADATA
from daskprep.storage import Folder, Manifest, read_manifest
from daskprep.storage.layout import CACHE_FOLDER, FOLD_PREFIX, SPLITS
from daskprep.storage.manifest import MANIFEST
from daskprep.storage.reading import BlockLocation
from daskprep.storage.safe_versions import require_safe, require_safe_url

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure

    from daskprep.report import Report

_Key = tuple[str, str]
_Media = Mapping[_Key, tuple[MediaBlocks, BlockCache]]
"""What workers need of each output of each split, to cache it."""

_COUNTED_ROWS = 1 << 20
# What the folder of a version holds before there is a manifest.
_UNFINISHED_FILES = frozenset({METADATA, "receipts", "scratch"})


def open_single(root: Folder, base_dir: str | None, *, trusted: bool) -> Dataset:
    """Open the dataset in a folder."""
    if not trusted:
        remedy = ", or open the dataset with trusted=True if you trust who made it"
        require_safe("pyarrow", remedy)
        if not root.is_local and not root.is_process_local:
            require_safe_url(root.url.partition("://")[0], remedy)
    manifest = read_manifest(root)
    if manifest is None:
        raise _missing_dataset_error(root)
    dataset_class = FoldedDataset if manifest.settings.get("folds") else Dataset
    dataset = dataset_class(root, manifest, base_dir, trusted=trusted)
    try:
        for name in manifest.files:
            if name == METADATA or name.startswith("vocab/"):
                dataset.files.read(name)
    except CorruptDatasetError:
        # It may have been written anew since its manifest was read.
        current = read_manifest(root)
        if current is None or current.to_bytes() == manifest.to_bytes():
            raise
        return open_single(root, base_dir, trusted=trusted)
    dataset.files.entry(METADATA)
    return dataset


def _missing_dataset_error(root: Folder) -> Exception:
    unfinished = [name for name in root.children() if _UNFINISHED_FILES & set((root / name).children())]
    if not unfinished:
        return ConfigError(f"there is no dataset at {root.url}: check the path, or write one there")
    return IncompleteDatasetError(
        f"the dataset at {root.url} was never finished: it has no manifest, only {', '.join(unfinished)}; "
        "run the write again to resume it"
    )


def _reopen(
    root: Folder, version: str, base_dir: str | None, digest: str | None = None, trusted: bool = False
) -> Dataset:
    dataset = open_single(root, base_dir, trusted=trusted)
    # Pickles of older versions have no digest.
    if dataset.version != version or digest not in (None, dataset.digest):
        raise ConfigError(
            f"the dataset at {root.url} is another than the one that was pickled (version {dataset.version}, not "
            f"{version}, or other files under the same name): it was written again; open it again"
        )
    return dataset


@with_attribute_hints(
    **dict.fromkeys(("loader", "train_dataloader", "dataloader"), 'dataset["train"].loader(batch_size)'),
    **{name: f'dataset["{name}"]' for name in ("train", "validation", "test")},
    to_pandas='dataset["train"].head(rows) for decoded rows, or dataset["train"].table().to_pandas()',
    shape='len(dataset["train"])',
    num_embeddings='dataset["train"].num_embeddings(name)',
)
class Dataset(StoredDataset):
    """A dataset on disk: its splits and the fitted state that wrote them.

    Opening a dataset reads its manifest and checks the files of the fitted state. Nothing is unpickled or evaluated,
    and no file stays open. A dataset may therefore be used in threads and forked processes, and pickled; unpickling
    opens it again by its path.

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
        are not stored: the same rows give the same bytes.
    repaired : list of Damage
        Files that `repair` wrote again or removed, and what was wrong with each.

    Examples
    --------
    >>> from daskprep.dataset import open_dataset
    >>> dataset = open_dataset("listings.dp")  # doctest: +SKIP
    >>> dataset["train"].num_embeddings("city")  # doctest: +SKIP
    10001
    """

    def __init__(self, root: Folder, manifest: Manifest, base_dir: str | None = None, *, trusted: bool = False) -> None:
        super().__init__(root, manifest, base_dir, trusted=trusted)
        self.splits = {name: Split(self, name) for name in manifest.layout.rows}
        self.timings: Mapping[str, float] | None = None
        self.repaired: list[Damage] = []

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _reopen, (self.root, self.version, self.base_dir, self.digest, self.trusted)

    def __getitem__(self, split: str) -> Split:
        if split in self.splits:
            return self.splits[split]
        if split in SPLITS:
            raise ConfigError(f'split "{split}" of {self.url} has no rows; those with rows: {", ".join(self.splits)}')
        raise ConfigError(
            f"there is no split {split!r}.{did_you_mean(split, self.splits)} Splits are: {', '.join(self.splits)}"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.splits)

    def num_classes(self, output: str) -> int:
        """Return the number of classes of a `Category` or `Binary`: its ids are below it."""
        return class_count(output, *self._find_learned(output))

    def class_weights(self, output: str) -> NDArray[np.float32]:
        """Return a weight for each class of a `Category` or `Binary` by its id, against class imbalance.

        A class weighs rows / (classes * rows of the class) of the training rows, as "balanced" in scikit-learn, and 0
        if it has none. They are for ``CrossEntropyLoss(weight=)``. Of a `Binary`, the second over the first is the
        ``pos_weight`` of ``BCEWithLogitsLoss``.
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
        progress: bool | None = None,
    ) -> None:
        """Decode images and audio on all workers, and cache them for loaders; what is cached already is kept.

        Parameters
        ----------
        client : distributed.Client or None
            Dask client whose workers decode. None: the active client, or threads.
        splits, columns : str, iterable of str or None
            Splits and outputs to decode. None: all.
        cache_dir, cache_limit
            As for a loader; give both the same values.
        progress : bool or None
            Whether to show a progress bar. None: on terminals only.

        Raises
        ------
        MediaError
            A file cannot be decoded, and the feature does not fill it. A block with filled values is not cached.
        """
        folder = None if cache_dir is None else Folder.open(cache_dir)
        with nullcontext() if client is None else client.as_current(), Progress(progress) as progress_bar:
            names = [splits] if isinstance(splits, str) else self.splits if splits is None else dict.fromkeys(splits)
            outputs = self._media_outputs(columns)
            media = {
                (name, output): (self[name].media(output), self[name].cache(output, folder, cache_limit))
                for name in names
                for output in outputs
            }
            if partitions.is_distributed() and any(cache.parent.is_process_local for _, cache in media.values()):
                raise ConfigError(
                    "the workers of a cluster cannot cache in memory://, which one process sees: give cache_dir"
                )
            for _, cache in media.values():
                cache.prepare()
            tasks = [
                (key, self[key[0]].block(key[1], block), block)
                for key, (_, cache) in media.items()
                for block in sorted(set(range(cache.blocks)) - set(cache.present()))
            ]
            advance = progress_bar.stage("caching", total=len(tasks), unit="blocks")
            partitions.run_tasks("cache-media", _cache_block, media, tasks, advance=advance)

    def _media_outputs(self, columns: Iterable[str] | str | None) -> list[str]:
        """Return the outputs of media that are asked for; ConfigError for those that are not decoded while loading."""
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
        """Remove the decoded media cached within the dataset; a `cache_dir` is not touched.

        With `unused`, remove only caches that a later write has made useless.
        """
        cache = self.root / CACHE_FOLDER
        if names := cache.children():
            used = {split.cache(one.name).name for split in self.splits.values() for one in self.layout.cells if unused}
            # Who writes to it meanwhile waits, rather than to lose every race.
            with cache.lock():
                for folder in [cache / name for name in names if name not in used] if used else [cache]:
                    folder.remove_all()
        elif CACHE_FOLDER in self.root.children():
            # A link holds nothing, and goes itself. A folder stays: somebody may be about to write to it.
            with suppress(IsADirectoryError):
                self.root.remove(CACHE_FOLDER)

    def report(self, path: str | os.PathLike[str] | None = None) -> Report:
        """Read all rows once, block by block, and return an HTML report on the distribution of each feature.

        Parameters
        ----------
        path : str, path or None
            File to write: one HTML file that needs no other file and no network. None: no file.
        """
        from daskprep.report import make_report  # noqa: PLC0415 a layer above, not needed to read a dataset

        return make_report(self, path)

    def plot(self, name: str, split: str | None = "train") -> Figure:
        """Return a matplotlib figure of the distribution of a feature or an output.

        Parameters
        ----------
        name : str
            Name of the feature or the output.
        split : str or None
            Split whose rows are counted. None: all splits, next to each other.
        """
        from daskprep.report import make_plot  # noqa: PLC0415 as above

        return make_plot(self, name, split)

    def damaged(self) -> list[Damage]:
        """Read every byte and return the files that are missing, changed, or not part of the dataset."""
        return find_damage(self.root, self.manifest)

    def verify(self) -> None:
        """Read every byte; raise `CorruptDatasetError` with the first files that are damaged."""
        raise_damage(self.url, self.damaged())

    @property
    def description(self) -> Description:
        """Lines and tables that say what it holds."""
        return describe_dataset(self.url, self.layout, self.manifests)

    def __repr__(self) -> str:
        return self.description.text()

    def _repr_html_(self) -> str:
        splits = islice(self.splits.values(), 1)
        return describe_dataset(self.url, self.layout, self.manifests, *map(describe_rows, splits)).html()


def _cache_block(media: _Media, task: tuple[_Key, BlockLocation, int]) -> int:
    key, location, block = task
    blocks, cache = media[key]
    if not cache.has(block):
        rows = blocks.output.empty(location.rows)
        # What stands for a broken file is no data, and the file may be mended.
        if not blocks.decode(location, slice(None), rows):
            cache.write(block, rows)
    return location.rows


class FoldedDataset(Dataset):
    """What `fit_write` makes with a `KFold`: its `fold` returns a dataset, and so does iteration, for each fold.

    Its own fitted state is that of all rows. It has no splits: ask a fold for what concerns rows, such as `rejects`.

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
        """How many folds there are."""
        return int(self.manifest.settings["folds"])

    def fold(self, number: int) -> Dataset:
        """Return the dataset that validates on this fold, encoded by the fitted state of the others."""
        if number not in range(self.folds):
            raise ConfigError(f"{self.url} has no fold {number!r}: its folds are 0 to {self.folds - 1}")
        name = f"{FOLD_PREFIX}{int(number)}"
        self.files.read(f"{name}/{MANIFEST}")  # an error, if it is not that of this dataset
        return open_single(self.root / self.version / name, self.base_dir, trusted=self.trusted)

    def __len__(self) -> int:
        return self.folds

    def __iter__(self) -> Iterator[Dataset]:  # type: ignore[override]
        return map(self.fold, range(self.folds))

    def __getitem__(self, split: str) -> Split:
        raise self._choose_fold_error(f"[{split!r}]")

    def _choose_fold_error(self, call: str) -> ConfigError:
        return ConfigError(f"{self.url} has {self.folds} folds: choose one, as in dataset.fold(0){call}")

    def rejects(self) -> pa.Table:
        raise self._choose_fold_error(".rejects()")

    def class_weights(self, output: str) -> NDArray[np.float32]:
        raise self._choose_fold_error(f".class_weights({output!r})")

    def cache_media(self, client: Any = None, **options: Any) -> None:
        """Decode and cache the images and audio of every fold, with the options of `Dataset.cache_media`."""
        for one in self:
            one.cache_media(client, **options)

    def clear_cache(self, *, unused: bool = False) -> None:
        for one in self:
            one.clear_cache(unused=unused)

    def report(self, path: object = None) -> None:  # type: ignore[override]
        raise self._choose_fold_error(".report()")

    def plot(self, name: str, split: str | None = "train") -> None:  # type: ignore[override]
        raise self._choose_fold_error(f".plot({name!r})")

    @property
    def description(self) -> Description:
        stored = format_bytes(sum(entry.bytes for entry in self.manifest.files.values()))
        line = f"Dataset at {escape_unprintable(self.url)}: {format_count(self.folds, 'fold')}, {stored}"
        return Description([f"{line}. fold(number) opens one of them"], [])

    def _repr_html_(self) -> str:
        return self.description.html()
