"""Where rows lie between the passes of a write, and whether all who work on them see it."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from daskprep import partitions
from daskprep.errors import ColumnError, ConfigError, RejectedValueError, StorageFullError
from daskprep.sources import Source
from daskprep.storage import Folder
from daskprep.storage.kept import Kept
from daskprep.writing.recipe import Options, Recipe, digest_of_cutting, digest_of_write
from daskprep.writing.versions import SCRATCH, digest_of


@contextlib.contextmanager
def scratch_folder(version: Folder, given: str | None) -> Iterator[Folder]:
    """Give the folder for rows between passes.

    Beside the parts, so that a write that was killed goes on from there; for object stores in a temporary folder,
    unless workers on other machines must see it.
    """
    if given is not None:
        scratch = Folder.open(Path(given).resolve()) / f"daskprep-{digest_of({'version': version.url})}"
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
    for folder in folders:
        if partitions.is_in_process() and folder.is_local:
            continue
        probe = f"probe-{uuid.uuid4().hex}"
        try:
            folder.write(probe, b"")
        except StorageFullError:
            raise
        except OSError as error:
            raise ConfigError(
                f"{folder.url} cannot be written to: {error}; check the path, and the credentials in storage_options"
            ) from error
        try:
            seen = partitions.on_every_worker(_sees, folder, probe)
        finally:
            folder.remove(probe)
        if not all(seen):
            raise ConfigError(
                f"the workers do not see {folder.url}, where this process writes: "
                "give a path that all of them share, such as a network folder or an object store"
            )


def _sees(folder: Folder, name: str) -> bool:
    return folder.size(name) is not None


@contextlib.contextmanager
def kept_fit(recipe: Recipe, source: Source, scratch: str | None) -> Iterator[Kept | None]:
    """Give where tasks of a fit keep what they found, from which the same fit goes on if this one is killed."""
    if scratch is None or source.record is None:
        yield None
        return
    fit = {"fit": digest_of_write(recipe, source.record, Options()), "cutting": digest_of_cutting(source)}
    folder = Folder.open(Path(scratch).resolve()) / f"daskprep-fit-{digest_of(fit)}"
    try:
        yield Kept(folder, "scan")
    except (ColumnError, ConfigError, RejectedValueError):
        folder.remove_all()  # the same would happen again
        raise
    folder.remove_all()
