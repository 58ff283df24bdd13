"""Rows appended to a dataset: a separate part, and the list of all parts, which is written last."""

from __future__ import annotations

from daskprep.dataset import Dataset
from daskprep.dataset.dataset import open_single
from daskprep.errors import DatasetExistsError, warn
from daskprep.sources import Source
from daskprep.storage.files import Folder
from daskprep.storage.manifest import APPENDED, Versions, part_folder
from daskprep.writing.deleting import listed_versions, stored_parts
from daskprep.writing.versions import Options, Recipe, finish_cleaning, roll_forward
from daskprep.writing.write import source_record, write_source


def append_source(dataset: Dataset, recipe: Recipe, source: Source, root: Folder, options: Options) -> None:
    """Write rows as a further part of the dataset in `root`, which is locked; a part with these rows is kept.

    Killed before the list of parts is written, it leaves a folder that the next call continues or replaces.
    """
    roll_forward(root)
    parts = stored_parts(dataset)
    record = source_record(source, options)
    if record is not None and any(part.manifest.source == record for part in parts):
        finish_cleaning(root, parts[0].manifest)
        warn(f"{root.url} has these rows already, so that they are not appended: pass other rows, or another version=")
        return
    folder = root / part_folder(len(parts))
    try:
        write_source(recipe, source, folder, options)
    except DatasetExistsError:  # other rows, of an append that was killed before the list was written
        folder.remove_all()
        write_source(recipe, source, folder, options)
    part = open_single(folder, None, trusted=True)
    versions = listed_versions(root, parts)
    state = versions.states[-1]
    versions = Versions((*versions.digests, part.digest), (*versions.states, (len(parts) + 1, state and state[1])))
    root.write(APPENDED, versions.to_bytes())
    finish_cleaning(root, parts[0].manifest)
