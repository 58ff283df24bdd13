"""Learn from a source, in as few reads as will do, and go on where a fit was killed."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from daskprep import partitions
from daskprep.errors import ColumnError, ConfigError, RejectedValueError, StorageFullError
from daskprep.features import Learned
from daskprep.features.fitting import learn_rows, learn_source, located
from daskprep.features.surroundings import Rows, ask, begin, surveyed, tell_folds, told_after, told_unread
from daskprep.features.table import take_census
from daskprep.progress import Progress
from daskprep.sources import Source
from daskprep.sources.spool import has_room
from daskprep.split import Splitter
from daskprep.storage.files import Folder
from daskprep.storage.kept import Kept
from daskprep.storage.local_files import make_folder
from daskprep.writing.passes import Scan
from daskprep.writing.recipe import Options, Recipe, digest_of_cutting, digest_of_write
from daskprep.writing.scratch import ScannedRows, ScratchSource, scratch_name
from daskprep.writing.versions import digest_of
from daskprep.writing.write import check_folders


def fit_source(recipe: Recipe, source: Source, scratch: str | None, progress: Progress) -> list[dict[str, Learned]]:
    """Learn from the training rows of a source; with folds, other states follow, each without one of them.

    What tasks found is kept in `scratch`, where the same fit goes on if this one is killed.
    """
    split = recipe.split if recipe.fit_on == "train" else None
    with _kept(recipe, source, scratch) as kept, contextlib.ExitStack() as stack:
        if _parses_twice(recipe, source, split) and (scratch is not None or partitions.is_in_process()):
            if scratch is not None:
                make_folder(scratch, "scratch")
            if has_room(scratch or tempfile.gettempdir(), sum(piece.nbytes for piece in source.pieces)):
                folder = stack.enter_context(_temporary(scratch)) if kept is None else kept.folder
                try:
                    return _learn_parsed(recipe, source, split, folder, kept, progress)
                except StorageFullError:
                    folder.remove_all()
        return learn_source(recipe.features, source, split=split, scratch=scratch, kept=kept, progress=progress)


@contextlib.contextmanager
def _temporary(scratch: str | None) -> Iterator[Folder]:
    parent = scratch and Path(scratch).resolve()
    with tempfile.TemporaryDirectory(prefix="daskprep-", dir=parent, ignore_cleanup_errors=True) as folder:
        yield Folder.open(folder)


def _parses_twice(recipe: Recipe, source: Source, split: Splitter | None) -> bool:
    """Tell whether all columns would be read once to count rows, and once more to learn from them."""
    whole = source.reads_all and not source.in_memory and not source.is_dask
    return whole and told_unread(Rows(source), recipe.features, split) is None


def _learn_parsed(
    recipe: Recipe, source: Source, split: Splitter | None, folder: Folder, kept: Kept | None, progress: Progress
) -> list[dict[str, Learned]]:
    """Learn as `learn_source` does, from rows that are kept in a folder as they were parsed to be counted."""
    check_folders(folder)
    columns = recipe.assigning
    features = located(recipe.features, source, columns)
    question = functools.partial(take_census, surveyed(features, split), split)
    tell = begin(progress, "reading", source)
    advance = None if tell is None else lambda one: tell(rows=one.rows)
    parsing = None if kept is None else Kept(folder, "census", functools.partial(scratch_name, "parsed"))
    rows = Rows(source, Scan(columns, folder))
    census = ask(rows, "census", question, features, columns, kept=parsing, advance=advance)
    parsed = ScannedRows(ScratchSource(folder, [one.rows for one in census], list(features), columns))
    told = tell_folds(parsed, features, told_after(census, features, split, parsed))
    advance = begin(progress, "learning", source)
    return learn_rows(parsed, features, columns, told, scratch=folder.path, kept=kept, advance=advance)


@contextlib.contextmanager
def _kept(recipe: Recipe, source: Source, scratch: str | None) -> Iterator[Kept | None]:
    if scratch is None or source.in_memory or source.record is None:
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
