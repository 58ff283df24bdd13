"""Write a source as a dataset, or make files of one again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Set
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from daskprep.errors import ColumnError, ConfigError, RejectedValueError
from daskprep.features import Learned
from daskprep.features.base import all_outputs
from daskprep.features.fitting import located
from daskprep.progress import Progress
from daskprep.sources import Source
from daskprep.storage import Folder
from daskprep.storage.arrays import ROW_ID
from daskprep.storage.manifest import Manifest
from daskprep.writing.folders import check_folders, scratch_folder
from daskprep.writing.folds import FoldedJob
from daskprep.writing.job import WriteJob
from daskprep.writing.parts import RECEIPTS
from daskprep.writing.recipe import Options, Recipe, digest_of_write
from daskprep.writing.versions import check_committed, choose_version, clean, tidy


class Written(NamedTuple):
    """What a write learned, with folds also without each of them, and how many seconds each of its stages took."""

    states: list[dict[str, Learned]]
    seconds: dict[str, float]


def write_source(recipe: Recipe, source: Source, root: Folder, options: Options) -> Written | None:
    """Write a dataset to `root`; return what came of it, or None if the very version was there already."""
    recipe = _located(recipe, source)
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
    with _opened(root):
        name, committed = choose_version(root, digest, repeatable=repeatable, overwrite=options.overwrite)
        if committed is not None:
            tidy(root, committed)
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
        return Written(states, progress.seconds)


def _located(recipe: Recipe, source: Source) -> Recipe:
    """Return the recipe for a source that has all that it reads."""
    return dataclasses.replace(recipe, features=located(recipe.features, source, recipe.assigning))


@contextmanager
def _opened(root: Folder) -> Iterator[None]:
    """Hold the folder; ConfigError if there can be none."""
    with ExitStack() as stack:
        try:
            stack.enter_context(root.locked())
        except OSError as error:
            reason = "it is a file" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
            raise ConfigError(f"{root.url} cannot be a dataset's folder: {reason}; give another path") from error
        yield


def rewrite(
    recipe: Recipe, source: Source, root: Folder, options: Options, committed: Manifest, damaged: Set[str]
) -> None:
    """Make damaged files of a committed version again; `recipe` holds what was learned."""
    recipe = _located(recipe, source)
    with (
        root.locked(),
        scratch_folder(root / committed.version, options.scratch) as scratch,
        Progress(options.progress) as progress,
    ):
        check_committed(root, committed)
        check_folders(root / committed.version, scratch)
        scratch.remove_all()
        write = WriteJob(
            recipe, source, root, committed.version, scratch, options, progress, committed.source, committed.files
        )
        write.repair(committed, damaged)
        clean(root, committed)
