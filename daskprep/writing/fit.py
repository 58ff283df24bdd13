"""Fits on a source, with as few reads as possible; a killed fit resumes."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from daskprep import partitions
from daskprep.errors import ColumnError, ConfigError, RejectedValueError, StorageFullError
from daskprep.features import Learned
from daskprep.features.fitting import bind_features, learn_partitions, learn_source
from daskprep.features.partition_context import (
    PartitionReader,
    add_fold_assignments,
    begin_stage,
    contexts_from_census,
    contexts_without_reading,
    run_pass,
    select_census_features,
)
from daskprep.features.table import take_census
from daskprep.progress import Progress
from daskprep.sources import Source
from daskprep.sources.locations import has_room
from daskprep.split import Splitter
from daskprep.storage.checkpoint import Checkpoint
from daskprep.storage.files import Folder
from daskprep.storage.local_files import make_folder
from daskprep.writing.passes import ParseAndSpill
from daskprep.writing.recipe import Options, Recipe, digest_of_partitioning, digest_of_write
from daskprep.writing.scratch import ScannedRows, ScratchSource, scratch_name
from daskprep.writing.versions import short_digest
from daskprep.writing.write import check_folders


def fit_source(recipe: Recipe, source: Source, scratch: str | None, progress: Progress) -> list[dict[str, Learned]]:
    """Return the states learned from the training rows of a source; with folds, followed by a state without each.

    Results of tasks are saved in the folder `scratch`, from which the same fit resumes if this one is killed.
    """
    split = recipe.split if recipe.fit_on == "train" else None
    with _open_checkpoint(recipe, source, scratch) as checkpoint, contextlib.ExitStack() as stack:
        if _parses_twice(recipe, source, split) and (scratch is not None or partitions.is_in_process()):
            if scratch is not None:
                make_folder(scratch, "scratch")
            if has_room(scratch or tempfile.gettempdir(), sum(fragment.nbytes for fragment in source.fragments)):
                folder = stack.enter_context(_temporary_folder(scratch)) if checkpoint is None else checkpoint.folder
                try:
                    return _learn_parsed(recipe, source, split, folder, checkpoint, progress)
                except StorageFullError:
                    folder.remove_all()
        return learn_source(
            recipe.features, source, split=split, scratch=scratch, checkpoint=checkpoint, progress=progress
        )


@contextlib.contextmanager
def _temporary_folder(scratch: str | None) -> Iterator[Folder]:
    parent = scratch and Path(scratch).resolve()
    with tempfile.TemporaryDirectory(prefix="daskprep-", dir=parent, ignore_cleanup_errors=True) as folder:
        yield Folder.open(folder)


def _parses_twice(recipe: Recipe, source: Source, split: Splitter | None) -> bool:
    """Return whether a fit would parse all columns twice: to count rows, and to learn from them."""
    needs_parsing = source.reads_all and not source.in_memory and not source.is_dask
    return needs_parsing and contexts_without_reading(PartitionReader(source), recipe.features, split) is None


def _learn_parsed(
    recipe: Recipe,
    source: Source,
    split: Splitter | None,
    folder: Folder,
    checkpoint: Checkpoint | None,
    progress: Progress,
) -> list[dict[str, Learned]]:
    """Return the same as `learn_source`, but parse rows only once: save them in `folder` when they are counted."""
    check_folders(folder)
    columns = recipe.raw_columns
    features = bind_features(recipe.features, source, columns)
    map_partition = functools.partial(take_census, select_census_features(features, split), split)
    report_progress = begin_stage(progress, "reading", source)
    advance = None if report_progress is None else lambda one: report_progress(rows=one.rows)
    parse_checkpoint = (
        None if checkpoint is None else Checkpoint(folder, "census", functools.partial(scratch_name, "parsed"))
    )
    rows = PartitionReader(source, ParseAndSpill(columns, folder))
    census = run_pass(rows, "census", map_partition, features, columns, checkpoint=parse_checkpoint, advance=advance)
    parsed = ScannedRows(ScratchSource(folder, [one.rows for one in census], list(features), columns))
    contexts = add_fold_assignments(parsed, features, contexts_from_census(census, features, split, parsed))
    advance = begin_stage(progress, "learning", source)
    return learn_partitions(
        parsed, features, columns, contexts, scratch=folder.path, checkpoint=checkpoint, advance=advance
    )


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
