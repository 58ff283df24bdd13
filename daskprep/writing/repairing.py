"""Repair of the damaged files of a dataset from its source."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from daskprep.balance import balance_from_dict
from daskprep.dataset import Damage, Dataset, FoldedDataset, open_dataset
from daskprep.errors import ColumnError, ConfigError, CorruptDatasetError
from daskprep.passes.assignment import take_sample
from daskprep.passes.table import source_columns
from daskprep.sources import Source, as_source, read_files
from daskprep.sources.composed import combine_splits
from daskprep.split import split_from_dict
from daskprep.steps.saved import error_context
from daskprep.storage import Folder
from daskprep.storage.layout import FOLD_PREFIX
from daskprep.storage.manifest import Manifest
from daskprep.storage.security import check_protocol, check_trusted_path
from daskprep.writing.versions import Options, Recipe, check_committed, clean
from daskprep.writing.write import rewrite


def repair(
    path: str | os.PathLike[str],
    frame: Any = None,
    *,
    progress: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    trusted: bool = False,
) -> Dataset:
    """Rewrite the damaged files of a dataset from its source, and remove files that are not part of it.

    Only parts with a damaged file are written. Each file must have the same bytes as before, so a source that has
    changed raises an error. The manifest, metadata.json and vocabularies cannot be repaired; without them, write the
    dataset again.

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
        _clean(root, dataset.manifest)
    else:
        _repair(dataset, root, damages, frame, progress, storage_options)
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
    """Repair one dataset in the folder `root` that has no folds, or one fold."""
    committed = dataset.manifest
    damaged = {damage.file.removeprefix(f"{committed.version}/") for damage in damages}
    lost = damaged & committed.files.keys()
    if not lost:
        _clean(root, committed)
        return
    if frame is None and not dataset.trusted:
        raise ConfigError(
            f"{dataset.url} is not trusted, so the files that it records as its source are not read: pass the rows "
            "as frame, or trusted=True if you trust the source of the dataset"
        )
    for learned in dataset.learned.values():
        check_trusted_path(getattr(learned, "base_dir", None), "The base_dir")
    state = dataset.metadata
    with error_context("metadata.json"):
        recipe = Recipe(
            dataset.features,
            split_from_dict(state["split"]),
            balance_from_dict(state["balance"]),
            state["fit_on"],
            dataset.learned,
            lambda learned: state,
        )
    columns = source_columns(recipe.features, recipe.raw_columns)
    if frame is not None:
        source = as_source(frame, columns=columns, storage_options=storage_options)
    else:
        source = _open_recorded_source(committed.source or {}, columns, storage_options)
    source = take_sample(source, state.get("sample"), state.get("sample_seed", 0))
    seed = committed.settings.get("shuffle_seed")
    options = Options(
        shuffle=seed is not None,
        seed=seed or 0,
        block_rows=committed.layout.block_rows,
        compression=committed.layout.compression,
        progress=progress,
        shards=committed.layout.sharded,
    )
    rewrite(recipe, source, root, options, committed, lost)


def _clean(root: Folder, committed: Manifest) -> None:
    with root.lock():
        check_committed(root, committed)
        clean(root, committed)


def _open_recorded_source(
    recorded: Mapping[str, Any], columns: list[str], storage_options: Mapping[str, Any] | None
) -> Source:
    """Return the source of the files that a manifest records; CorruptDatasetError if they have changed."""
    if "splits" in recorded:
        return combine_splits(
            recorded["splits"],
            columns,
            lambda one, own_columns: _open_recorded_source(one, own_columns, storage_options),
        )
    if not {"files", "format", "settings"} <= recorded.keys():
        raise ConfigError("the dataset does not record the files of its source: pass the frame to repair it from")
    for name, *_ in recorded["files"]:
        # fsspec also interprets "::" in paths that are not URLs.
        check_protocol(name if "::" not in name else f"{name}://")
    settings = {key: value for key, value in recorded["settings"].items() if key != "format"}
    try:
        source = read_files(
            [name for name, *_ in recorded["files"]],
            columns=columns,
            format=recorded["format"],
            storage_options=storage_options,
            **settings,
        )
    except ColumnError as error:
        raise ColumnError(f"{error}. If columns are read from folder names, pass the folder as frame") from error
    for before, now in zip(recorded["files"], source.fingerprint(), strict=True):
        if list(now) != list(before):
            raise CorruptDatasetError(
                f"{before[0]} has changed since the dataset was written; pass the original rows, or write the dataset "
                "again with overwrite=True"
            )
    return source
