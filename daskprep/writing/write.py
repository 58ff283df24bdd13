"""Write a source as a dataset, or make files of one again."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import uuid
from collections.abc import Iterator, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from daskprep import partitions
from daskprep.errors import ColumnError, ConfigError, RejectedValueError, StorageFullError
from daskprep.features import Learned
from daskprep.features.base import all_outputs
from daskprep.features.fitting import bind_features
from daskprep.progress import Progress
from daskprep.sources import Source
from daskprep.storage import Folder
from daskprep.storage.arrays import ROW_ID
from daskprep.storage.manifest import Manifest
from daskprep.writing.differences import differences
from daskprep.writing.folds import FoldedJob
from daskprep.writing.job import WriteJob
from daskprep.writing.parts import RECEIPTS
from daskprep.writing.recipe import Options, Recipe, digest_of_write
from daskprep.writing.versions import SCRATCH, check_committed, choose_version, clean, finish_cleaning, short_digest


class WriteResult(NamedTuple):
    """What a write learned, with folds also without each of them, and how many seconds each of its stages took."""

    states: list[dict[str, Learned]]
    seconds: dict[str, float]


def write_source(recipe: Recipe, source: Source, root: Folder, options: Options) -> WriteResult | None:
    """Write a dataset to `root`; return what came of it, or None if the very version was there already."""
    recipe = _resolve_recipe(recipe, source)
    if options.shards is None:
        options = dataclasses.replace(options, shards=not root.is_local)
    for name, feature in recipe.features.items():
        if ROW_ID.name in (name + output for output in all_outputs(feature)):
            raise ConfigError(
                f'a feature is called "{ROW_ID.name}", as the column of the rows\' numbers is: give it another name, '
                f'and column="{name}"'
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
            differences=lambda committed: differences(root, committed, recipe, fingerprint, options),
        )
        if committed is not None:
            finish_cleaning(root, committed)
            if options.scratch is not None:  # what a write that was killed right after its commit has left
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
                # The same would happen again: nothing is worth keeping.
                scratch.remove_all()
                if not (version / RECEIPTS).children():
                    version.remove_all()
                raise
        return WriteResult(states, progress.seconds)


def _resolve_recipe(recipe: Recipe, source: Source) -> Recipe:
    """Return the recipe for a source that has all that it reads."""
    return dataclasses.replace(recipe, features=bind_features(recipe.features, source, recipe.raw_columns))


@contextmanager
def _lock_folder(root: Folder) -> Iterator[None]:
    """Hold the folder; ConfigError if there can be none."""
    with ExitStack() as stack:
        try:
            stack.enter_context(root.lock())
        except OSError as error:
            reason = "it is a file" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
            raise ConfigError(f"{root.url} cannot be a dataset's folder: {reason}; give another path") from error
        yield


def rewrite(
    recipe: Recipe, source: Source, root: Folder, options: Options, committed: Manifest, damaged: Set[str]
) -> None:
    """Make damaged files of a committed version again; `recipe` holds what was learned."""
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


@contextlib.contextmanager
def scratch_folder(version: Folder, path: str | None) -> Iterator[Folder]:
    """Give the folder for rows between passes.

    Beside the parts, so that a write that was killed goes on from there; for object stores in a temporary folder,
    unless workers on other machines must see it.
    """
    if path is not None:
        scratch = Folder.open(Path(path).resolve()) / f"daskprep-{short_digest({'version': version.url})}"
        yield scratch
        with contextlib.suppress(OSError):
            scratch.remove_all()
    elif version.is_local or partitions.is_distributed():
        yield version / SCRATCH
    else:
        with tempfile.TemporaryDirectory(prefix="daskprep-") as folder:
            yield Folder.open(folder)


def check_folders(*folders: Folder) -> None:
    """Raise ConfigError, before a row is read, for a folder that cannot be written to or that workers do not see."""
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
                f"the workers do not see {folder.url}, where this process writes: "
                "give a path that all of them share, such as a network folder or an object store"
            )


def _check_visible(folders: list[Folder], name: str) -> list[bool]:
    return [folder.size(name) is not None for folder in folders]
