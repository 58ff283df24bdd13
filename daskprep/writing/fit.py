"""Fits on a source, with as few reads as possible; a killed fit resumes."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from daskprep import partitions
from daskprep.errors import ColumnError, ConfigError, RejectedValueError, StorageFullError
from daskprep.features import Learned
from daskprep.passes.contexts import ContextPlan
from daskprep.passes.fitting import learn_source
from daskprep.progress import Progress
from daskprep.sources import Source
from daskprep.sources.locations import has_room
from daskprep.storage.checkpoint import Checkpoint
from daskprep.storage.files import Folder
from daskprep.storage.local_files import make_folder
from daskprep.writing.recipe import Options, Recipe, digest_of_partitioning, digest_of_write
from daskprep.writing.versions import short_digest
from daskprep.writing.write import check_folders


def fit_source(recipe: Recipe, source: Source, scratch: str | None, progress: Progress) -> list[dict[str, Learned]]:
    """Return the states learned from the training rows of a source; with folds, followed by a state without each.

    Results of tasks are saved in the folder `scratch`, from which the same fit resumes if this one is killed.
    """
    split, features = recipe.split if recipe.fit_on == "train" else None, recipe.features
    with _open_checkpoint(recipe, source, scratch) as checkpoint, contextlib.ExitStack() as stack:
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


@contextlib.contextmanager
def _temporary_folder(scratch: str | None) -> Iterator[Folder]:
    parent = scratch and Path(scratch).resolve()
    with tempfile.TemporaryDirectory(prefix="daskprep-", dir=parent, ignore_cleanup_errors=True) as folder:
        yield Folder.open(folder)


@contextlib.contextmanager
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
