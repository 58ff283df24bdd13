"""Open datasets, one, or several as one: the rows of each split one dataset after the other."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from daskprep import partitions
from daskprep.dataset.checking import Damage
from daskprep.dataset.dataset import Dataset, FoldedDataset, open_one
from daskprep.dataset.places import Rows
from daskprep.dataset.split import Split
from daskprep.errors import ConfigError, hints_parameters
from daskprep.storage import Folder, Layout, Manifest, Output


@hints_parameters
def open_dataset(
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    storage_options: Mapping[str, Any] | None = None,
    base_dir: str | os.PathLike[str] | None = None,
    trusted: bool = False,
) -> Dataset:
    """Open a dataset for reading, or several as one.

    Nothing outside its folder and `base_dir` is opened unless it is `trusted`.

    Parameters
    ----------
    path : str, path, or iterable of these
        Folder, or a URL that fsspec knows. Several datasets that one fitted Preprocessor wrote are read as one: the
        rows of each split are concatenated in the order of the datasets.
    storage_options : mapping or None
        Options for the file system of a URL, such as credentials.
    base_dir : str, path or None
        Folder that relative paths of images and audio start from, if they were moved after the write. Only files below
        it and below the folder of the dataset may be opened.
    trusted : bool
        Whether the dataset may name files and URLs anywhere, which are then read with your rights: images and audio
        that are decoded while loading, tokenizers, and links. Trust only datasets whose author you trust. A dataset
        that this process wrote is trusted.

    Raises
    ------
    ConfigError
        No dataset exists at `path`, or several datasets have different fitted states.
    IncompleteDatasetError
        The dataset was never finished.
    CorruptDatasetError
        A file was changed.
    FormatVersionError
        A newer version of daskprep wrote the dataset.
    """
    base = None if base_dir is None else os.fspath(base_dir)
    alone = isinstance(path, str | os.PathLike) or not isinstance(path, Iterable) or hasattr(path, "columns")
    paths: list[Any] = [path] if alone else list(path)  # type: ignore[arg-type]
    if wrong := [one for one in paths if not isinstance(one, str | os.PathLike)]:
        raise ConfigError(f"path must be the path or URL of a dataset, not {type(wrong[0]).__name__}")
    found = [open_one(Folder.open(one, storage_options, follows=trusted), base, trusted=trusted) for one in paths]
    if len(found) > 1 and (folded := [one for one in found if isinstance(one, FoldedDataset)]):
        raise ConfigError(f"{folded[0].url} has folds: open it alone, or folds by their dataset.fold(0).url")
    if not found:
        raise ConfigError("the list of datasets is empty: give at least one path")
    return found[0] if len(found) == 1 else JoinedDataset(found)


class JoinedDataset(Dataset):
    """Datasets of one Preprocessor, made apart. What one alone can tell is asked of that one, among `datasets`."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        first, *others = self.datasets = tuple(datasets)
        for other in others:
            _check_same(first, other)
        super().__init__(first.root, first.manifest, first.base_dir, trusted=first.trusted)
        self.splits = {name: JoinedSplit(self, name) for name in self.layout.rows}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return JoinedDataset, (self.datasets,)

    @property
    def manifests(self) -> list[Manifest]:
        return [one.manifest for one in self.datasets]

    @property
    def url(self) -> str:
        return ", ".join(one.url for one in self.datasets)

    @property
    def version(self) -> str:
        return ", ".join(one.version for one in self.datasets)

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(" ".join(one.digest for one in self.datasets).encode()).hexdigest()

    @cached_property
    def layout(self) -> Layout:
        """The blocks of all datasets; in which files they lie, the layout of each tells."""
        return Layout.joined([one.layout for one in self.datasets])

    def of_one(self, what: str) -> ConfigError:
        """Return the error for what only one dataset has."""
        return ConfigError(
            f"{what} needs a single dataset, not {len(self.datasets)} ({self.url}): open one of them alone"
        )

    def rejects(self) -> pa.Table:
        raise self.of_one("rejects()")

    def report(self, path: Any = None) -> Any:
        raise self.of_one("report()")

    def plot(self, name: str, split: str | None = "train") -> Any:
        raise self.of_one("plot()")

    def cache_media(self, client: Any = None, **options: Any) -> None:
        for one in self.datasets:
            one.cache_media(client, **options)

    def clear_cache(self, *, unused: bool = False) -> None:
        for one in self.datasets:
            one.clear_cache(unused=unused)

    def damaged(self) -> list[Damage]:
        return [Damage(f"{one.url}/{bad.file}", bad.problem) for one in self.datasets for bad in one.damaged()]


class JoinedSplit(Split):
    """The rows of a split of several datasets, one after the other."""

    dataset: JoinedDataset

    @cached_property
    def joined(self) -> tuple[Split, ...]:
        return tuple(one[self.name] for one in self.dataset.datasets if self.name in one.splits)

    @cached_property
    def _ends(self) -> np.ndarray:
        """Blocks and rows up to the end of each dataset."""
        sizes = [(one.layout.blocks(self.name), len(one)) for one in self.joined]
        return np.cumsum(sizes, axis=0)

    def located(self, block: int) -> tuple[Split, int]:
        ends = self._ends[:, 0]
        place = int(np.searchsorted(ends, block, side="right"))
        return self.joined[place], block - (int(ends[place - 1]) if place else 0)

    def _fill(self, outputs: Sequence[Output], rows: Rows, arrays: Mapping[str, np.ndarray]) -> None:
        numbers, places = np.asarray(rows), np.searchsorted(self._ends[:, 1], rows, side="right")
        for place in np.unique(places).tolist():
            split, at = self.joined[place], np.flatnonzero(places == place)
            own: Rows = numbers[at] - (self._ends[place, 1] - len(split))
            if isinstance(rows, range):
                own = range(own[0], own[-1] + 1)
            for name, found in split._read([output.name for output in outputs], own).items():
                arrays[name][at] = found

    @property
    def arrays(self) -> Any:
        raise self.dataset.of_one("arrays")

    def to_dask(self, columns: Iterable[str] | str | None = None) -> dict[str, Any]:
        names = [output.name for output in self._outputs(columns)]
        found = [split.to_dask(names) for split in self.joined]
        return {name: partitions.end_to_end([arrays[name] for arrays in found]) for name in names}


def _check_same(first: Dataset, other: Dataset) -> None:
    """Raise ConfigError for the first difference between what two datasets were made by: parameters come first."""
    one, two = ({name: made.metadata.get(name) for name in ("features", "targets")} for made in (first, other))
    if found := sorted(_differences(one, two), key=lambda difference: ".learned." in difference):
        raise ConfigError(
            f"{first.url} and {other.url} cannot be opened together, because different Preprocessors wrote them "
            f"({found[0]}); write both with the same fitted Preprocessor"
        )


def _differences(one: Any, two: Any, place: str = "") -> Iterator[str]:
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        for key in {**one, **two}:
            yield from _differences(one.get(key), two.get(key), f"{place}.{key}")
    elif one != two:
        yield f"{place[1:]} ({one!s:.60}, {two!s:.60})"
