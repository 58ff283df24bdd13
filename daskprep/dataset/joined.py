"""Open one dataset, or several that are read as one: the rows of each split are concatenated."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from daskprep.columns.parametrized import is_integer
from daskprep.dataset.dataset import Dataset, FoldedDataset, open_single
from daskprep.dataset.filtered import FilteredDataset, read_deleted
from daskprep.dataset.split import RowSelection, Split
from daskprep.dataset.stored import Damage
from daskprep.errors import ConfigError, CorruptDatasetError
from daskprep.sources import partitions
from daskprep.storage import Folder, Layout, Manifest, Output, read_manifest
from daskprep.storage.manifest import APPENDED, LossCounts, Versions, add_losses, part_folder, read_versions


def open_dataset(
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    version: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    base_dir: str | os.PathLike[str] | None = None,
    trusted: bool = False,
) -> Dataset:
    """Open a dataset for reading, or several as one.

    Nothing outside its folder and `base_dir` is opened unless it is `trusted`.

    Parameters
    ----------
    path : str, path, or iterable of these
        Folder, or a URL that fsspec supports. Several datasets written by one fitted Preprocessor, which may have
        grown in between, are read as one: the rows of each split are concatenated in the order of the datasets.
    version : int or None
        Number of the version to open: 1 is the dataset without appended rows. Each `Preprocessor.append` and
        `Dataset.delete` adds 1. None: the latest version.
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
    is_single = isinstance(path, str | os.PathLike) or not isinstance(path, Iterable)
    is_single |= hasattr(path, "columns") or isinstance(path, Dataset)
    paths: list[Any] = [path] if is_single else list(path)  # type: ignore[arg-type]
    if wrong := [one for one in paths if not isinstance(one, str | os.PathLike)]:
        raise ConfigError(
            f"path must be the path or URL of a dataset, not {type(wrong[0]).__name__}: pass the path first; rows are "
            "written with Preprocessor.fit_write(frame, path)"
        )
    if version is not None and (not is_integer(version) or len(paths) != 1):
        raise ConfigError(f"version={version!r}: expected the number of a version of a single dataset")
    datasets = [
        open_folder(Folder.open(one, storage_options, follow_links=trusted), base, version, trusted=trusted)
        for one in paths
    ]
    if len(datasets) > 1 and (folded := [one for one in datasets if isinstance(one, FoldedDataset)]):
        raise ConfigError(f"{folded[0].url} has folds: open it alone, or folds by their dataset.fold(0).url")
    if not datasets:
        raise ConfigError("the list of datasets is empty: pass at least one path")
    return datasets[0] if len(datasets) == 1 else JoinedDataset(datasets, functools.reduce(_choose_grown, datasets))


def open_folder(root: Folder, base_dir: str | None, version: int | None = None, *, trusted: bool) -> Dataset:
    """Open the dataset in the folder `root` with its appended parts, as `open_dataset`."""
    listed = read_versions(root)
    first = open_single(root, base_dir, trusted=trusted, digest=listed.digests[0] if listed else None)
    versions = listed
    if listed is None or listed.digests[0] != first.digest:
        if listed and _is_changed(root, listed, 0):
            return open_folder(root, base_dir, version, trusted=trusted)
        versions = Versions.of_parts([first.digest])  # nothing was appended since the dataset was written
    assert versions is not None
    states = versions.states
    present = [number for number, state in enumerate(states, start=1) if state is not None]
    state = states[-1] if version is None else states[version - 1] if 1 <= version <= len(states) else None
    if state is None:
        known = f"{present[0]} to {present[-1]}" if len(present) == present[-1] else ", ".join(map(str, present))
        raise ConfigError(
            f"{root.url} has no version {version}: its versions are {known}"
            + ("; purge removed others" if len(present) < len(states) else "")
        )
    count, deleted = state
    parts = [first]
    for number, digest in enumerate(versions.digests[1:count], start=1):
        part = open_single(root / part_folder(number), base_dir, trusted=trusted, digest=digest)
        if part.digest != digest:
            if _is_changed(root, versions, number):
                return open_folder(root, base_dir, version, trusted=trusted)
            raise CorruptDatasetError(
                f"{part.url} is not the part that {APPENDED} lists: restore it from a copy, or open an older version "
                f"with version={number}"
            )
        parts.append(part)
    hidden = read_deleted(root, deleted, count)
    parts = [
        FilteredDataset(*one) if any(map(len, one[1].values())) else one[0] for one in zip(parts, hidden, strict=True)
    ]
    if count == 1:
        return parts[0]
    # `append` has compared each state with the one before; to parse all of them takes seconds.
    outputs = [[(one.name, one.shape, one.stores_cells) for one in part.layout.outputs] for part in parts]
    if wrong := [part.url for part, own in zip(parts, outputs, strict=True) if own != outputs[0]]:
        raise CorruptDatasetError(f"{wrong[0]} has other outputs than {root.url}: restore it from a copy")
    return GrownDataset(parts, parts[-1])


def _is_changed(root: Folder, versions: Versions, part: int) -> bool:
    """Return whether a writer has changed the list of versions since it was read, or the manifest of a part."""
    manifest = read_manifest(root / part_folder(part) if part else root)
    return read_versions(root) != versions or (manifest is not None and manifest.digest == versions.digests[part])


class JoinedDataset(Dataset):
    """Several datasets read as one; `datasets` are the single ones, also of datasets that are joined themselves."""

    def __init__(self, datasets: Sequence[Dataset], grown: Dataset) -> None:
        """Read several datasets as one, with features and fitted state of `grown`, which is one of them.

        If vocabularies have grown from one dataset to another, `grown` is the dataset whose state has all tokens.
        """
        parts = (one.datasets if isinstance(one, JoinedDataset) else (one,) for one in datasets)
        self.datasets: tuple[Dataset, ...] = tuple(itertools.chain.from_iterable(parts))
        self._grown, first = grown, self.datasets[0]
        super().__init__(first.root, first.manifest, first.base_dir, trusted=first.trusted)
        self.files = self._grown.files
        self.splits = {name: JoinedSplit(self, name) for name in self.layout.rows}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return type(self), (self.datasets, self._grown)

    @property
    def manifests(self) -> list[Manifest]:
        return [one.manifest for one in self.datasets]

    @property
    def loss_counts(self) -> dict[str, LossCounts] | None:
        totals: dict[str, LossCounts] = {}
        for one in self.datasets:
            if (counts := one.loss_counts) is None:
                return None
            totals |= {split: add_losses(totals.get(split, {}), own) for split, own in counts.items()}
        return totals

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
        """Rows and blocks of all datasets; only the layout of each dataset locates its files."""
        return Layout.concatenate([one.layout for one in self.datasets], self._grown.layout.outputs)

    def single_dataset_error(self, call: str) -> ConfigError:
        """Return the error for a `call` that only a single dataset supports."""
        return ConfigError(
            f"{call} needs a single dataset, not {len(self.datasets)} ({self.url}): use one of dataset.datasets"
        )

    def rejects(self) -> pa.Table:
        """Return the rejects of all datasets; "dataset" is the index of the dataset whose source has the row."""
        tables = [one.rejects() for one in self.datasets]
        numbers = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
        return pa.concat_tables(tables).add_column(0, "dataset", pa.array(numbers))

    def cache_media(self, client: Any = None, **options: Any) -> None:
        for one in self.datasets:
            one.cache_media(client, **options)

    def clear_cache(self, *, unused: bool = False) -> None:
        for one in self.datasets:
            one.clear_cache(unused=unused)

    def damaged(self) -> list[Damage]:
        return [Damage(f"{one.url}/{bad.file}", bad.problem) for one in self.datasets for bad in one.damaged()]


class GrownDataset(JoinedDataset):
    """A dataset with appended parts: `datasets` are the rows written first, and each part."""

    @property
    def url(self) -> str:
        return self.datasets[0].url


class JoinedSplit(Split):
    """Split of several datasets: its rows are concatenated in the order of the datasets."""

    dataset: JoinedDataset

    @cached_property
    def joined(self) -> tuple[Split, ...]:
        return tuple(one[self.name] for one in self.dataset.datasets if self.name in one.splits)

    @cached_property
    def _ends(self) -> np.ndarray:
        """Cumulative numbers of blocks and rows up to the end of each dataset (datasets, 2)."""
        sizes = [(one.layout.blocks(one.name), len(one)) for one in self.joined]
        return np.cumsum(sizes, axis=0)

    def locate_block(self, block: int) -> tuple[Split, int]:
        ends = self._ends[:, 0]
        index = int(np.searchsorted(ends, block, side="right"))
        return self.joined[index], block - (int(ends[index - 1]) if index else 0)

    def _fill(self, outputs: Sequence[Output], rows: RowSelection, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the selected rows into `arrays`, read from the datasets that contain them."""
        numbers, indices = np.asarray(rows), np.searchsorted(self._ends[:, 1], rows, side="right")
        for index in np.unique(indices).tolist():
            split, positions = self.joined[index], np.flatnonzero(indices == index)
            own_rows: RowSelection = numbers[positions] - (self._ends[index, 1] - len(split))
            if isinstance(rows, range):
                own_rows = range(own_rows[0], own_rows[-1] + 1)
            for name, values in split._read([output.name for output in outputs], own_rows).items():
                arrays[name][positions] = values

    @property
    def arrays(self) -> Any:
        raise self.dataset.single_dataset_error("arrays")

    def to_dask(self, columns: Iterable[str] | str | None = None) -> dict[str, Any]:
        names = [output.name for output in self._select_outputs(columns)]
        split_arrays = [split.to_dask(names) for split in self.joined]
        return {name: partitions.concatenate_arrays([arrays[name] for arrays in split_arrays]) for name in names}


def _choose_grown(first: Dataset, other: Dataset) -> Dataset:
    """Return the dataset whose fitted state has all tokens of both; ConfigError if neither state extends the other.

    Parameters are compared before learned states.
    """
    if first.state_entries == other.state_entries:
        return first
    one, two = ({name: dataset.metadata.get(name) for name in ("features", "targets")} for dataset in (first, other))
    # Parameters are compared first, because they cause the differences of learned states.
    own, others = ({**state, "features": _without_learned(state["features"])} for state in (one, two))
    difference = next(find_differences(own, others), None)
    if difference is None:
        for grown, origin in ((other, first), (first, other)):
            if all(state.extends(origin.learned[name]) for name, state in grown.learned.items()):
                return grown
        difference = next(find_differences(one, two), "metadata.json")
    raise ConfigError(
        f"{first.url} and {other.url} cannot be opened together, because different Preprocessors wrote them "
        f"(they differ in {difference}); write both with the same fitted Preprocessor"
    )


def _without_learned(features: Any) -> dict[str, Any]:
    return {name: {key: value for key, value in state.items() if key != "learned"} for name, state in features.items()}


def find_differences(one: Any, two: Any, key_path: str = "") -> Iterator[str]:
    """Yield the dotted keys of nested mappings where the values differ, with both values."""
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        for key in {**one, **two}:
            yield from find_differences(one.get(key), two.get(key), f"{key_path}.{key}")
    elif isinstance(one, Mapping) or isinstance(two, Mapping):
        yield f"{key_path[1:]}, which only one has"
    elif one != two:
        yield f"{key_path[1:]}: {one!s:.60} and {two!s:.60}"
