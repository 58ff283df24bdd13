"""Open one dataset, or several that are read as one: the rows of each split are concatenated."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from daskprep.columns.parametrized import is_integer
from daskprep.dataset.dataset import Dataset, FoldedDataset, as_dataset
from daskprep.dataset.segments import Segment, open_segment, read_deleted
from daskprep.errors import ConfigError, CorruptDatasetError, IncompleteDatasetError
from daskprep.storage import Folder, read_manifest
from daskprep.storage.manifest import APPENDED, Versions, part_folder, read_versions

_MAX_CHARACTERS = 60  # of a value in a message


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
    if len(datasets) == 1:
        return datasets[0]
    segments = [segment for one in datasets for segment in one.segments]
    return Dataset(segments, functools.reduce(_choose_grown, datasets)._state)


def open_folder(root: Folder, base_dir: str | None, version: int | None = None, *, trusted: bool) -> Dataset:
    """Open the dataset in the folder `root` with its appended parts; ConfigError for an unknown version."""
    listed = read_versions(root)
    first = open_segment(root, base_dir, trusted=trusted, digest=listed.digests[0] if listed else None)
    versions = listed
    if listed is None or listed.digests[0] != first.manifest.digest:
        if listed and _is_changed(root, listed):
            return open_folder(root, base_dir, version, trusted=trusted)
        versions = Versions.of_parts([first.manifest.digest])  # nothing was appended since the dataset was written
    assert versions is not None
    states = versions.states
    present = [number for number, state in enumerate(states, start=1) if state is not None]
    state = states[-1] if version is None else states[version - 1] if 1 <= version <= len(states) else None
    if state is None:
        known = f"{present[0]} to {present[-1]}" if len(present) == present[-1] else ", ".join(map(str, present))
        raise ConfigError(
            f"{root.url} has no version {version}: its versions are {known}"
            + ("; purge or compact removed others" if len(present) < len(states) else "")
        )
    count, deleted = state
    try:
        parts = [first, *(_open_part(root, number, versions, base_dir, trusted) for number in range(1, count))]
        hidden = read_deleted(root, deleted, count)
    except (ConfigError, CorruptDatasetError, IncompleteDatasetError):
        if read_versions(root) == listed:
            raise
        return open_folder(root, base_dir, version, trusted=trusted)  # a writer has replaced parts meanwhile
    parts = [dataclasses.replace(part, hidden=own) if own else part for part, own in zip(parts, hidden, strict=True)]
    # `append` has compared each state with the one before; to parse all of them takes seconds.
    outputs = [[(one.name, one.shape, one.stores_cells) for one in part.layout.outputs] for part in parts]
    if wrong := [part.root.url for part, own in zip(parts, outputs, strict=True) if own != outputs[0]]:
        raise CorruptDatasetError(f"{wrong[0]} has other outputs than {root.url}: restore it from a copy")
    return as_dataset(parts)


def open_ends(root: Folder) -> tuple[Versions, Segment, Segment]:
    """Return the versions of the dataset in a folder, which is locked, with its first and its last part."""
    versions = read_versions(root)
    first = open_segment(root, None, trusted=True, digest=versions.digests[0] if versions else None)
    if versions is None or versions.digests[0] != first.manifest.digest:
        versions = Versions.of_parts([first.manifest.digest])
    number = len(versions.digests) - 1
    return versions, first, _open_part(root, number, versions, None, trusted=True) if number else first


def _open_part(root: Folder, number: int, versions: Versions, base_dir: str | None, trusted: bool) -> Segment:
    """Open an appended part; CorruptDatasetError if it is not the one that is listed."""
    folder, digest = root / part_folder(number), versions.digests[number]
    part = open_segment(folder, base_dir, trusted=trusted, digest=digest)
    if part.manifest.digest != digest:  # unless it was replaced after it was read
        part = open_segment(folder, base_dir, trusted=trusted, digest=digest)
    if part.manifest.digest != digest:
        raise CorruptDatasetError(
            f"{folder.url} is not the part that {APPENDED} lists: restore it from a copy, or open an older version "
            f"with version={number}"
        )
    return part


def _is_changed(root: Folder, versions: Versions) -> bool:
    """Return whether a writer has changed the list of versions since it was read, or the manifest."""
    manifest = read_manifest(root)
    return read_versions(root) != versions or (manifest is not None and manifest.digest == versions.digests[0])


def _choose_grown(first: Dataset, other: Dataset) -> Dataset:
    """Return the dataset whose fitted state has all tokens of both; ConfigError if neither state extends the other.

    Parameters are compared before learned states.
    """
    if first._state.state_entries == other._state.state_entries:
        return first
    one, two = ({name: dataset.metadata.get(name) for name in ("features", "targets")} for dataset in (first, other))
    # Parameters are compared first, because they cause the differences of learned states.
    own, others = ({**state, "features": _without_learned(state["features"])} for state in (one, two))
    difference = next(find_differences(own, others), None)
    if difference is None:
        for grown, origin in ((other, first), (first, other)):
            if all(state.extends(origin.learned[name]) for name, state in grown.learned.items()):
                return grown
        difference = next(find_differences(one, two), "metadata.json differs")
    raise ConfigError(
        f"{first.url} and {other.url} cannot be opened together, because different Preprocessors wrote them "
        f"({difference}); write both with the same fitted Preprocessor"
    )


def _without_learned(features: Any) -> dict[str, Any]:
    return {name: {key: value for key, value in state.items() if key != "learned"} for name, state in features.items()}


def find_differences(one: Any, two: Any, key_path: str = "") -> Iterator[str]:
    """Yield a text such as "split.seed is 1, not 2" for each dotted key of nested mappings with other values."""
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        for key in {**one, **two}:
            yield from find_differences(one.get(key), two.get(key), f"{key_path}.{key}" if key_path else f"{key}")
    elif one != two:
        own, other = (
            text if len(text := repr(value)) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."
            for value in (one, two)
        )
        yield f"{key_path} is {own}, not {other}"
