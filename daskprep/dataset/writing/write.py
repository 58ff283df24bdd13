"""Fits on a source, writes of it as a dataset, and repairs of the damaged files of a dataset."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from daskprep.dataset import Damage, Dataset, FoldedDataset, open_dataset
from daskprep.dataset.options import WriteOptions
from daskprep.dataset.writing.job import FoldedJob, WriteJob
from daskprep.dataset.writing.rewriting import read_recipe, stored_options
from daskprep.dataset.writing.versions import (
    RECEIPTS,
    SCRATCH,
    Options,
    Recipe,
    check_committed,
    choose_version,
    clean,
    describe_differences,
    digest_of_partitioning,
    digest_of_write,
    finish_cleaning,
    is_purged,
    lost_files_error,
    resolved_record,
    short_digest,
)
from daskprep.errors import (
    CheckError,
    ColumnError,
    ConfigError,
    CorruptDatasetError,
    DatasetExistsError,
    FormatVersionError,
    RejectedValueError,
    StorageFullError,
)
from daskprep.features import Learned
from daskprep.passes.assignment import take_sample
from daskprep.passes.contexts import ContextPlan
from daskprep.passes.fitting import bind_features
from daskprep.passes.scanning import ScanPlan, scan_source
from daskprep.passes.table import source_columns
from daskprep.sources import Source, as_source, partitions, read_files
from daskprep.sources.locations import has_room
from daskprep.sources.opening import combine_splits
from daskprep.sources.partitions.progress import Progress
from daskprep.storage.files import Folder
from daskprep.storage.layout import FOLD_PREFIX
from daskprep.storage.local_files import make_folder
from daskprep.storage.manifest import Manifest, part_folder, read_manifest, read_versions
from daskprep.storage.security import check_protocol, check_trusted_path


class WriteResult(NamedTuple):
    """The learned states of a write, with folds also without each fold, and the seconds of each stage."""

    states: list[dict[str, Learned]]
    seconds: dict[str, float]


def write_source(recipe: Recipe, source: Source, root: Folder, options: Options) -> WriteResult | None:
    """Write a dataset to `root` and return the result; None if the same version is already committed."""
    recipe = _resolve_recipe(recipe, source)
    if options.shards is None:
        options = dataclasses.replace(options, shards=not root.is_local)
    fingerprint = source_record(source, options)
    repeatable = fingerprint is not None
    with _lock_folder(root, options.scratch):
        with suppress(CorruptDatasetError, FormatVersionError):  # which `choose_version` raises
            committed = read_manifest(root)
            if committed is not None and resolved_record(committed.source) == resolved_record(fingerprint):
                fingerprint = committed.source  # the digest depends on the spelling of paths
        digest = digest_of_write(recipe, fingerprint, options)
        name, committed = choose_version(
            root,
            digest,
            repeatable=repeatable,
            overwrite=options.overwrite,
            differences=lambda committed: describe_differences(root, committed, recipe, fingerprint, options),
        )
        if committed is not None:
            finish_cleaning(root, committed)
            versions = read_versions(root)
            if versions is not None and versions.states[0] is None and is_purged(root, versions):
                raise ConfigError(
                    f"{root.url} was written from these rows, and purge removed some of them: open it with "
                    "open_dataset(path), or write all rows again, also the purged ones, with overwrite=True"
                )
            if options.scratch is not None:  # remove files of a write that was killed right after its commit
                with scratch_folder(root / name, options.scratch):
                    pass
            return None
        version = root / name
        if not repeatable:
            version.remove_all()
        with scratch_folder(version, options.scratch) as scratch, Progress(options.progress) as progress:
            check_folders(version, scratch)
            if not repeatable:
                scratch.remove_all()
            try:
                kind = FoldedJob if recipe.split is not None and recipe.split.folds else WriteJob
                states = kind(recipe, source, root, name, scratch, options, progress, fingerprint).run()
            except (CheckError, ColumnError, ConfigError, RejectedValueError):
                # The same error would occur again: a checkpoint would be useless.
                scratch.remove_all()
                if not (version / RECEIPTS).children():
                    version.remove_all()
                raise
        return WriteResult(states, progress.seconds)


def source_record(source: Source, options: Options) -> Mapping[str, Any] | None:
    """Return the record of the rows for a manifest: the files, or the version that the user names; None if unknown."""
    return source.record if options.version is None else {"version": options.version}


def _resolve_recipe(recipe: Recipe, source: Source) -> Recipe:
    """Return a recipe with its features bound to a source; ColumnError if the source lacks a column."""
    return dataclasses.replace(recipe, features=bind_features(recipe.features, source, recipe.raw_columns))


@contextmanager
def _lock_folder(root: Folder, scratch: str | None) -> Iterator[None]:
    """Create and lock a folder for the block; ConfigError if it cannot be created.

    Raise CorruptDatasetError if the block does not find a file in it or in the folder `scratch`, which another process
    can only remove where the file system has no locks.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(root.lock())
        except OSError as error:
            reason = "it is a file" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
            raise ConfigError(f"{root.url} cannot be a dataset's folder: {reason}; use another path") from error
        try:
            yield
        except FileNotFoundError as error:
            own = (root.path, *([] if scratch is None else [os.path.realpath(scratch)]))
            if not str(error.filename).startswith(own):
                raise
            raise lost_files_error(root, [error.filename]) from error


@contextmanager
def scratch_folder(version: Folder, path: str | None) -> Iterator[Folder]:
    """Yield the folder for scratch files of a write; `path` is the parent that the user specified, or None.

    By default it is in the version folder, so that a killed write resumes. For object stores it is a temporary folder,
    unless workers on other machines need access.
    """
    if path is not None:
        scratch = Folder.open(Path(path).resolve()) / f"daskprep-{short_digest({'version': version.url})}"
        yield scratch
        with suppress(OSError):
            scratch.remove_all()
    elif version.is_local or partitions.is_distributed():
        yield version / SCRATCH
    else:
        with tempfile.TemporaryDirectory(prefix="daskprep-") as folder:
            yield Folder.open(folder)


def check_folders(*folders: Folder) -> None:
    """Raise ConfigError, before rows are read, for a folder that is not writable or that workers cannot access."""
    in_process = partitions.is_in_process()
    probed, probe = [folder for folder in folders if not (in_process and folder.is_local)], f"probe-{uuid.uuid4().hex}"
    with ExitStack() as cleanup:
        for folder in probed:
            try:
                folder.write(probe, b"")
            except StorageFullError:
                raise
            except OSError as error:
                raise ConfigError(
                    f"{folder.url} cannot be written to: {error}; check the path, and the credentials in "
                    "storage_options"
                ) from error
            cleanup.callback(folder.remove, probe)
        visible = partitions.run_on_every_worker(_check_visible, probed, probe) if probed else []
    for index, folder in enumerate(probed):
        if not all(one[index] for one in visible):
            raise ConfigError(
                f"the workers cannot access {folder.url}, where this process writes: "
                "use a path that all of them share, such as a network folder or an object store"
            )


def _check_visible(folders: list[Folder], name: str) -> list[bool]:
    return [folder.size(name) is not None for folder in folders]


def fit_source(
    recipe: Recipe, source: Source, scratch: str | None, progress: Progress
) -> Sequence[Mapping[str, Learned]]:
    """Return the states learned from the training rows of a source; with folds, followed by a state without each.

    Results of tasks are saved in the folder `scratch`, from which the same fit resumes if this one is killed.
    """
    plan = ScanPlan(recipe.features, recipe.split if recipe.fit_on == "train" else None)
    with _open_checkpoint(recipe, source, scratch) as kept, ExitStack() as stack:
        scan = partial(scan_source, plan, source, kept=kept, progress=progress)
        # Columns would be parsed twice: to count rows, and to learn from them.
        needs_parsing = source.reads_all and not source.in_memory and not source.is_dask
        if (
            needs_parsing
            and ContextPlan(plan.features, plan.split).needs_reading(source)
            and (scratch is not None or partitions.is_in_process())
        ):
            parent = None if scratch is None else str(make_folder(scratch, "scratch"))
            if has_room(parent or tempfile.gettempdir(), sum(fragment.nbytes for fragment in source.fragments)):
                if (folder := kept) is None:
                    temporary = tempfile.TemporaryDirectory(prefix="daskprep-", dir=parent, ignore_cleanup_errors=True)
                    folder = Folder.open(stack.enter_context(temporary))
                try:
                    check_folders(folder)
                    return scan(spill=folder, scratch=folder.path).states
                except StorageFullError:
                    folder.remove_all()
        return scan(scratch=scratch).states


@contextmanager
def _open_checkpoint(recipe: Recipe, source: Source, scratch: str | None) -> Iterator[Folder | None]:
    """Yield the folder of an interrupted fit, removed after its success; None if there is none."""
    if scratch is None or source.in_memory or source.record is None:
        yield None
        return
    fit_settings = {"fit": digest_of_write(recipe, source.record, Options()), "cutting": digest_of_partitioning(source)}
    folder = Folder.open(Path(scratch).resolve()) / f"daskprep-fit-{short_digest(fit_settings)}"
    try:
        yield folder
    except (ColumnError, ConfigError, RejectedValueError):
        folder.remove_all()  # the same error would occur again
        raise
    folder.remove_all()


def repair(
    path: str | os.PathLike[str],
    frame: Any = None,
    *,
    progress: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    trusted: bool = False,
) -> Dataset:
    """Rewrite the damaged files of a dataset from its source, and remove files that are not part of it.

    If a file is damaged, the dataset is written once more, next to its files, which takes as long as `write`. Each file
    must have the same bytes as before, so a source that has changed raises an error. The manifest, metadata.json and
    vocabularies cannot be repaired; without them, write the dataset again.

    Parameters
    ----------
    path : str or path
        Folder of the dataset.
    frame : DataFrame, path, dict of these by split, or None
        The rows that the dataset was written from. None: the files that the dataset records as its source, if they are
        unchanged; this requires `trusted`.
    progress : bool or None
        As for `Preprocessor.write`.
    storage_options : mapping or None
        As for `Preprocessor.write`.
    trusted : bool
        As for `open_dataset`; the returned dataset is trusted too.

    Returns
    -------
    Dataset
        The repaired dataset; `repaired` lists the files.

    Examples
    --------
    >>> import tempfile, pandas as pd
    >>> from pathlib import Path
    >>> import daskprep as dp
    >>> frame, folder = pd.DataFrame({"price": [1.0, 2.0]}), tempfile.mkdtemp()
    >>> dataset = dp.Preprocessor({"price": "number"}).fit_write(frame, f"{folder}/a.dp")
    >>> _ = next(Path(folder).rglob("part-00000.parquet")).write_bytes(b"")
    >>> [Path(damage.file).name for damage in dataset.damaged()]
    ['part-00000.parquet']
    >>> dp.repair(f"{folder}/a.dp", frame).damaged()
    []
    """
    dataset = open_dataset(path, storage_options=storage_options, trusted=trusted)
    root, damages = Folder.open(path, storage_options), dataset.damaged()
    if isinstance(dataset, FoldedDataset):
        for number in range(dataset.folds):
            fold_folder = f"{dataset.version}/{FOLD_PREFIX}{number}"
            if any(damage.file.startswith(f"{fold_folder}/") for damage in damages):
                fold = dataset.fold(number)
                _repair(fold, root / fold_folder, fold.damaged(), frame, progress, storage_options)
        with root.lock():
            check_committed(root, dataset.manifest)
            clean(root, dataset.manifest)
    else:
        folders = [root, *(root / part_folder(number) for number in range(1, len(dataset.segments)))]
        is_single = len(dataset.segments) == 1
        damages_by_part = [damages] if is_single else [part.damaged() for part in dataset.datasets]
        if frame is not None and sum(map(bool, damages_by_part)) > 1:
            raise ConfigError(
                f"{root.url}: {len(damages):,} files of several parts are damaged, so that frame is ambiguous: repair "
                "the dataset without frame, or restore the files from a copy"
            )
        for part, folder, own_damages in zip(dataset.datasets, folders, damages_by_part, strict=True):
            _repair(part, folder, own_damages, frame, progress, storage_options)
    dataset = open_dataset(path, storage_options=storage_options, trusted=trusted)
    dataset.verify()
    dataset.repaired = damages
    return dataset


def _repair(
    dataset: Dataset,
    root: Folder,
    damages: Sequence[Damage],
    frame: Any,
    progress: bool | None,
    storage_options: Mapping[str, Any] | None,
) -> None:
    """Replace the damaged files of a dataset or fold, from `frame` or its recorded source, and remove other files."""
    committed = dataset.manifest
    damaged = {damage.file.removeprefix(f"{committed.version}/") for damage in damages}
    lost = sorted(damaged & committed.files.keys())
    if lost and frame is None and not dataset.trusted:
        raise ConfigError(
            f"{dataset.url} is not trusted, so the files that it records as its source are not read: pass the rows "
            "as frame, or trusted=True if you trust the source of the dataset"
        )
    version = root / committed.version
    with root.lock(), scratch_folder(version, None) as scratch:
        check_committed(root, committed)
        if lost:
            copy, entries = scratch / "copy", _write_copy(dataset, scratch / "copy", frame, progress, storage_options)
            if other := [name for name in lost if entries.files.get(name) != committed.files[name]]:
                raise CorruptDatasetError(
                    f"{other[0]} cannot be repaired: the source, or other versions of pyarrow and zarr, result in "
                    "other bytes than were written; repair it from the original source, or write the dataset again "
                    "with overwrite=True"
                )
            version.remove(*lost)
            for name in lost:
                version.link(name, copy / entries.version)
            version.sync(lost)
        clean(root, committed)


def _write_copy(
    dataset: Dataset, folder: Folder, frame: Any, progress: bool | None, storage_options: Mapping[str, Any] | None
) -> Manifest:
    """Write a dataset again to another folder, from `frame` or its recorded source, and return the manifest there."""
    for learned in dataset.learned.values():
        check_trusted_path(getattr(learned, "base_dir", None), "The base_dir")
    committed, state = dataset.manifest, dataset.metadata
    recipe = dataclasses.replace(read_recipe(dataset), on_findings="ignore")
    columns = source_columns(recipe.features, recipe.raw_columns)
    if frame is not None:
        source = as_source(frame, columns=columns, storage_options=storage_options)
    else:
        source = _open_recorded_source(committed.source or {}, columns, storage_options)
    source = take_sample(source, state.get("sample"), state.get("sample_seed", 0))
    options: WriteOptions = {**stored_options(dataset), "progress": progress}
    write_again(recipe, source, folder, Options(**options))
    copied = read_manifest(folder)
    assert copied is not None
    if copied.layout != committed.layout:
        raise CorruptDatasetError(
            f"the source has other rows than the dataset ({dict(copied.layout.rows)}, not "
            f"{dict(committed.layout.rows)} by split): pass the original source, or write the dataset again "
            "with overwrite=True"
        )
    return copied


def write_again(recipe: Recipe, source: Source, root: Folder, options: Options) -> WriteResult | None:
    """Write a dataset as `write_source`, in place of another one that a killed call left in the folder."""
    try:
        return write_source(recipe, source, root, options)
    except DatasetExistsError:
        root.remove_all()
        return write_source(recipe, source, root, options)


def _open_recorded_source(
    recorded: Mapping[str, Any], columns: list[str], storage_options: Mapping[str, Any] | None
) -> Source:
    """Return the source of the files that a manifest records; CorruptDatasetError if they have changed."""
    if "splits" in recorded:
        open_split = partial(_open_recorded_source, storage_options=storage_options)
        return combine_splits(recorded["splits"], columns, open_split)
    if not {"files", "format", "settings"} <= recorded.keys():
        raise ConfigError("the dataset does not record the files of its source: pass the frame to repair it from")
    for name, *_ in recorded["files"]:
        # fsspec also interprets "::" in paths that are not URLs.
        check_protocol(name if "::" not in name else f"{name}://")
    settings = {key: value for key, value in recorded["settings"].items() if key != "format"}
    try:
        options: Any = {"format": recorded["format"], "storage_options": storage_options, **settings}
        source = read_files([name for name, *_ in recorded["files"]], columns=columns, **options)
    except ColumnError as error:
        raise ColumnError(f"{error}. If columns are read from folder names, pass the folder as frame") from error
    for before, now in zip(recorded["files"], source.fingerprint(), strict=True):
        if list(now) != list(before):
            raise CorruptDatasetError(
                f"{before[0]} has changed since the dataset was written; pass the original rows, or write the dataset "
                "again with overwrite=True"
            )
    return source
