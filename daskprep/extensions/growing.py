"""Rows that arrive after the fit: growth of vocabularies, and appends to datasets."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from daskprep.columns.parametrized import check_is_fitted
from daskprep.dataset import Dataset, FoldedDataset
from daskprep.dataset.dataset import as_dataset, open_single
from daskprep.dataset.opening import open_ends, open_folder
from daskprep.dataset.options import WriteOptions
from daskprep.dataset.writing import Options, on_workers
from daskprep.dataset.writing.append import append_source
from daskprep.dataset.writing.erased import ErasedKeys
from daskprep.dataset.writing.versions import roll_forward
from daskprep.errors import ColumnError, ConfigError, check_names, warn
from daskprep.passes.assignment import resolve_split, take_sample
from daskprep.passes.contexts import assignment_columns
from daskprep.passes.reviewing import OnFindings, find_ranges, join_ranges
from daskprep.passes.scanning import ScanPlan, scan_source
from daskprep.passes.state import METADATA, feature_params, state_files
from daskprep.sources import Rows
from daskprep.sources.partitions import Workers
from daskprep.sources.partitions.progress import Progress
from daskprep.sources.split import DatetimeSplit, GroupSplit, TimeSeriesSplit
from daskprep.storage import Folder

if TYPE_CHECKING:
    from daskprep.dataset.segments import Segment
    from daskprep.features import Feature, Learned
    from daskprep.preprocessor import Preprocessor
    from daskprep.sources.split import Splitter

NewTokens = dict[str, dict[str, int]]
"""New tokens by output, with their frequencies in the new rows, in the order of their ids."""


def grow(
    prep: Preprocessor, frame: Rows, storage_options: Mapping[str, Any] | None, workers: Workers, progress: bool | None
) -> NewTokens:
    """Add the tokens of new rows to the vocabularies, as `Preprocessor.grow` does."""
    check_is_fitted(prep)
    prep._check_one_fold("grow")
    options = Options(storage_options=storage_options, workers=workers, progress=progress, scratch=prep._scratch)
    with on_workers(frame, workers, sent=prep.get_params(deep=False), **options.source_options):
        features, source = prep._open_new_rows(frame, options)
        growing = {name: feature for name, feature in features.items() if feature._grows}
        ranges = {name: one for name, one in features.items() if getattr(prep.learned_[name], "value_edges", None)}
        fresh: Mapping[str, Learned] = {}
        if growing:
            with Progress(progress) as bars:
                [fresh] = scan_source(ScanPlan(growing), source, scratch=prep._scratch, progress=bars).states
        grown = find_ranges(ranges, prep.learned_, source)
    new_tokens = NewTokens()
    for name, learned in fresh.items():
        grown[name], counts = prep.learned_[name].grow(learned)
        new_tokens |= {name + output: tokens for output, tokens in counts.items()}
    prep._set_learned(prep.features_, grown)
    return new_tokens


def append(
    prep: Preprocessor, frame: Rows, path: str | os.PathLike[str], on_findings: OnFindings, options: WriteOptions
) -> Dataset:
    """Add rows to the dataset at `path`, as `Preprocessor.append` does; ColumnError if the rows lack a feature."""
    check_is_fitted(prep)
    prep._check_one_fold("append")
    if on_findings not in ("warn", "raise", "ignore"):
        raise ConfigError(f'append: on_findings={on_findings!r}: expected "warn", "raise" or "ignore"')
    check_names("append", options, WriteOptions.__annotations__)
    if options.get("overwrite"):
        raise ConfigError("append adds rows: leave overwrite out, or call write to replace the dataset")
    storage_options = options.get("storage_options")
    root = Folder.open(path, storage_options)
    layout = open_single(root, None, trusted=True).manifest.layout  # of the first part
    same = WriteOptions(block_rows=layout.block_rows, compression=layout.compression, shards=layout.sharded)
    chosen = Options(**(same | options), scratch=prep._scratch)
    chosen.check()
    readable = Folder.open(path, storage_options, follow_links=True)
    with (
        root.lock(),
        on_workers(frame, chosen.workers, chosen.memory, prep.get_params(deep=False), **chosen.source_options),
    ):
        roll_forward(root, 1)
        versions, first, last = open_ends(readable)
        split = resolve_split(frame, None) or prep._resolve_split(frame)
        learned = _join_states(prep, as_dataset([last]), split, root.url)
        _warn_about_earlier_rows(split, prep.features_)
        erased = ErasedKeys.read(root, ignored=chosen.allow_erased)
        with erased.name_in_errors():
            columns = [*assignment_columns(split, prep.balance), *erased.columns]
            features, source = prep._open_new_rows(frame, chosen, columns, is_written=True)
        if len(features) < len(prep.features_):
            missing = ", ".join(f'"{name}"' for name in prep.features_.keys() - features.keys())
            raise ColumnError(f"the rows lack {missing}, which the dataset at {root.url} has: add these columns")
        # The saved Preprocessor keeps its own split.
        recipe = prep._recipe(features, prep.split or split, learned)
        recipe = dataclasses.replace(recipe, split=split, on_findings=on_findings)
        sampled = take_sample(source, prep.sample, prep.sample_seed)
        erased.refuse(sampled)
        appended = append_source(versions, first, recipe, sampled, root, chosen)
        part, states = appended or (last, learned)
        prep._set_learned(prep.features_, join_ranges(prep.learned_, states))
    if appended is not None:
        prep._warn_about_losses(Dataset([part]), fitted=False)
    version = len(versions.states) + (appended is not None)
    return Dataset(functools.partial(_open_version, readable, version, part.manifest.digest))


def _open_version(root: Folder, version: int, digest: str) -> tuple[Segment, ...]:
    """Return the parts of a version if the last one has this manifest; ConfigError if not."""
    segments = open_folder(root, None, version, trusted=True).segments
    if segments[-1].manifest.digest != digest:
        raise ConfigError(f"{root.url} was written again meanwhile: open it again")
    return segments


def _join_states(prep: Preprocessor, dataset: Dataset, split: Splitter | None, url: str) -> Mapping[str, Learned]:
    """Return the fitted state with the ranges of a dataset, the last part at `url`; ConfigError if rows do not fit."""
    remedy = "append with Preprocessor.from_dataset(path), or write the rows to another path"
    if isinstance(dataset, FoldedDataset):
        raise ConfigError(f"{url} has folds, which cannot be appended to: write it again with all rows")
    files = state_files(prep._state(prep.features_, prep.split or split, prep.learned_))
    if files[METADATA] == dataset.files.read(METADATA):  # restoring an equal state takes longer
        return prep.learned_
    if list(dataset.features) != list(prep.features_) or set(dataset.targets) != set(prep.targets_):
        raise ConfigError(f"{url} has other features or targets than this Preprocessor: {remedy}")
    for name, feature in prep.features_.items():
        stored = dataset.features[name]
        if feature.kind != stored.kind or feature_params(name, feature) != feature_params(name, stored):
            raise ConfigError(f'{url}: feature "{name}" has other parameters there: {remedy}')
        if not prep.learned_[name].extends(dataset.learned[name]):
            raise ConfigError(f'{url}: the fitted state of "{name}" is another one, not one that has grown: {remedy}')
    return join_ranges(prep.learned_, dataset.learned)


def _warn_about_earlier_rows(split: Splitter | None, features: Mapping[str, Feature]) -> None:
    """Warn if appended rows are split or encoded otherwise than together with the rows of the dataset."""
    group = split.column if isinstance(split, GroupSplit) else getattr(split, "group", None)
    problem = None
    if isinstance(split, DatetimeSplit | TimeSeriesSplit):
        problem = "test rows may be older than training rows:"
    elif group is not None:
        problem = f'a group of "{group}" may be in several splits: use HashSplit("{group}") from the first write on, or'
    if problem:
        warn(f'append splits new rows separately, so {problem} name the split, as in append({{"train": rows}}, path)')
    windows = [f'"{name}"' for name, one in features.items() if one._past is not None and not one._before]
    if windows:
        warn(
            f"windows of {', '.join(windows)} do not reach from appended rows to earlier ones, which are padding: pass "
            "the earlier rows of their groups, as in prep.with_history(earlier).append(rows, path)"
        )
