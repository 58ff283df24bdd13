"""Fits on a source, writes of it as a dataset, and of damaged files of a dataset."""

from __future__ import annotations

import dataclasses
import tempfile
import uuid
from collections.abc import Iterator, Set
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from daskprep import partitions
from daskprep.errors import ColumnError, ConfigError, RejectedValueError, StorageFullError
from daskprep.features import Learned
from daskprep.features.base import all_outputs
from daskprep.passes.contexts import ContextPlan
from daskprep.passes.fitting import bind_features, learn_source
from daskprep.progress import Progress
from daskprep.sources import Source
from daskprep.sources.locations import has_room
from daskprep.storage.arrays import ROW_ID
from daskprep.storage.checkpoint import Checkpoint
from daskprep.storage.files import Folder
from daskprep.storage.local_files import make_folder
from daskprep.storage.manifest import Manifest
from daskprep.writing.job import FoldedJob, WriteJob
from daskprep.writing.versions import (
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
    short_digest,
)


class WriteResult(NamedTuple):
    """The learned states of a write, with folds also without each fold, and the seconds of each stage."""

    states: list[dict[str, Learned]]
    seconds: dict[str, float]


def write_source(recipe: Recipe, source: Source, root: Folder, options: Options) -> WriteResult | None:
    """Write a dataset to `root` and return the result; None if the same version is already committed."""
    recipe = _resolve_recipe(recipe, source)
    if options.shards is None:
        options = dataclasses.replace(options, shards=not root.is_local)
    for name, feature in recipe.features.items():
        if ROW_ID.name in (name + output for output in all_outputs(feature)):
            raise ConfigError(
                f'a feature is called "{ROW_ID.name}", the name of the column of row numbers: rename it and pass '
                f'column="{name}"'
            )
    fingerprint = source.record if options.version is None else {"version": options.version}
    digest = digest_of_write(recipe, fingerprint, options)
    repeatable = fingerprint is not None
    with _lock_folder(root):
        name, committed = choose_version(
            root,
            digest,
            repeatable=repeatable,
            overwrite=options.overwrite,
            differences=lambda committed: describe_differences(root, committed, recipe, fingerprint, options),
        )
        if committed is not None:
            finish_cleaning(root, committed)
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
            except (ColumnError, ConfigError, RejectedValueError):
                # The same error would occur again: a checkpoint would be useless.
                scratch.remove_all()
                if not (version / RECEIPTS).children():
                    version.remove_all()
                raise
        return WriteResult(states, progress.seconds)


def _resolve_recipe(recipe: Recipe, source: Source) -> Recipe:
    """Return a recipe with its features bound to a source; ColumnError if the source lacks a column."""
    return dataclasses.replace(recipe, features=bind_features(recipe.features, source, recipe.raw_columns))


@contextmanager
def _lock_folder(root: Folder) -> Iterator[None]:
    """Create and lock a folder for the block; ConfigError if it cannot be created."""
    with ExitStack() as stack:
        try:
            stack.enter_context(root.lock())
        except OSError as error:
            reason = "it is a file" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
            raise ConfigError(f"{root.url} cannot be a dataset's folder: {reason}; use another path") from error
        yield


def rewrite(
    recipe: Recipe, source: Source, root: Folder, options: Options, committed: Manifest, damaged: Set[str]
) -> None:
    """Write damaged files of a committed version again; `recipe` has the learned states, `damaged` are file names."""
    recipe = _resolve_recipe(recipe, source)
    with (
        root.lock(),
        scratch_folder(root / committed.version, options.scratch) as scratch,
        Progress(options.progress) as progress,
    ):
        check_committed(root, committed)
        check_folders(root / committed.version, scratch)
        scratch.remove_all()
        job = WriteJob(
            recipe, source, root, committed.version, scratch, options, progress, committed.source, committed.files
        )
        job.repair(committed, damaged)
        clean(root, committed)


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


def fit_source(recipe: Recipe, source: Source, scratch: str | None, progress: Progress) -> list[dict[str, Learned]]:
    """Return the states learned from the training rows of a source; with folds, followed by a state without each.

    Results of tasks are saved in the folder `scratch`, from which the same fit resumes if this one is killed.
    """
    split, features = recipe.split if recipe.fit_on == "train" else None, recipe.features
    with _open_checkpoint(recipe, source, scratch) as checkpoint, ExitStack() as stack:
        # Columns would be parsed twice: to count rows, and to learn from them.
        needs_parsing = source.reads_all and not source.in_memory and not source.is_dask
        if (
            needs_parsing
            and ContextPlan(features, split).needs_reading(source)
            and (scratch is not None or partitions.is_in_process())
        ):
            if scratch is not None:
                make_folder(scratch, "scratch")
            if has_room(scratch or tempfile.gettempdir(), sum(fragment.nbytes for fragment in source.fragments)):
                folder = stack.enter_context(_temporary_folder(scratch)) if checkpoint is None else checkpoint.folder
                try:
                    check_folders(folder)
                    return learn_source(
                        features,
                        source,
                        split=split,
                        spill=folder,
                        scratch=folder.path,
                        checkpoint=checkpoint,
                        progress=progress,
                    )
                except StorageFullError:
                    folder.remove_all()
        return learn_source(features, source, split=split, scratch=scratch, checkpoint=checkpoint, progress=progress)


@contextmanager
def _temporary_folder(scratch: str | None) -> Iterator[Folder]:
    parent = scratch and Path(scratch).resolve()
    with tempfile.TemporaryDirectory(prefix="daskprep-", dir=parent, ignore_cleanup_errors=True) as folder:
        yield Folder.open(folder)


@contextmanager
def _open_checkpoint(recipe: Recipe, source: Source, scratch: str | None) -> Iterator[Checkpoint | None]:
    """Yield the checkpoint of a fit, removed when it succeeds; None without `scratch`, or if it cannot resume."""
    if scratch is None or source.in_memory or source.record is None:
        yield None
        return
    fit_settings = {"fit": digest_of_write(recipe, source.record, Options()), "cutting": digest_of_partitioning(source)}
    folder = Folder.open(Path(scratch).resolve()) / f"daskprep-fit-{short_digest(fit_settings)}"
    try:
        yield Checkpoint(folder, "scan")
    except (ColumnError, ConfigError, RejectedValueError):
        folder.remove_all()  # the same error would occur again
        raise
    folder.remove_all()
