"""Rows that arrive after the fit: checks, growth of vocabularies, and appends to datasets."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

import pandas as pd

from daskprep.dataset import Dataset, FoldedDataset, open_dataset
from daskprep.dataset.dataset import open_single
from daskprep.dataset.joined import GrownDataset
from daskprep.errors import ColumnError, ConfigError, MissingColumnError, check_names, warn
from daskprep.options import list_options
from daskprep.parametrized import check_is_fitted
from daskprep.partitions import Workers
from daskprep.passes.assignment import resolve_split, take_sample
from daskprep.passes.checking import (
    CheckResult,
    Severity,
    check_source,
    count_cells,
    select_checked,
)
from daskprep.passes.contexts import assignment_columns
from daskprep.passes.losses import count_left_out, tabulate_learned_losses, tabulate_losses, warn_about_losses
from daskprep.passes.reviewing import OnFindings, find_ranges, join_ranges
from daskprep.passes.scanning import ScanPlan, scan_source
from daskprep.passes.table import source_columns
from daskprep.progress import Progress
from daskprep.sources import Rows, wrap_single_row
from daskprep.split import DatetimeSplit, GroupSplit, TimeSeriesSplit
from daskprep.state import SerializationMixin, feature_params
from daskprep.storage import Folder
from daskprep.writing import Options, WriteOptions, append_source, on_workers, plan_source

if TYPE_CHECKING:
    from daskprep.features import Feature, Learned
    from daskprep.sources import Source
    from daskprep.split import Splitter
    from daskprep.writing import Recipe

NewTokens = dict[str, dict[str, int]]
"""New tokens by output, with their frequencies in the new rows, in the order of their ids."""


class NewRowsMixin(SerializationMixin, auto_wrap_output_keys=None):
    """The methods of a Preprocessor for rows that arrive after the fit."""

    if TYPE_CHECKING:
        targets_: tuple[str, ...]
        _scratch: Any

        @property
        def _inputs(self) -> dict[str, Feature]: ...

        def _as_rows(self, frame: Any) -> Any: ...

        def _check_one_fold(self, method: str) -> None: ...

        def _resolve_split(self, frame: Any) -> Splitter | None: ...

        def _recipe(
            self, features: Mapping[str, Feature], split: Splitter | None, learned: Mapping[str, Learned] | None
        ) -> Recipe: ...

        def _open_new_rows(
            self, frame: Any, options: Options, assignment_columns: Iterable[str] | None = None
        ) -> tuple[Mapping[str, Feature], Source]: ...

    @property
    def losses_(self) -> pd.DataFrame:
        """Cells of the training rows whose encoding lacks information, as far as the fit counted them.

        It has the columns of `Dataset.losses`, which counts the cells of all rows that were written.
        """
        check_is_fitted(self)
        return tabulate_learned_losses(self.features_, self.learned_)

    def _warn_about_losses(self, dataset: Dataset, *, fitted: bool) -> None:
        """Warn about the losses of rows that were written; with folds, about the losses of all training rows."""
        if isinstance(dataset, FoldedDataset):
            table, options = self.losses_, dict[str, Any](call="prep.losses_")
        elif (counts := dataset.loss_counts) is not None:
            rows = dataset.layout.rows
            # Not `Dataset.losses`, which would read the fitted state again.
            left_out = count_left_out(self.features_, dataset.rejects(), sum(rows.values()))
            table = tabulate_losses(self.features_, self.learned_, counts, rows, left_out)
            options = {"rows": rows, "call": "dataset.losses()"}
        else:
            return
        warn_about_losses(table, self.features_, self.learned_, self.targets_, fitted=fitted, **options)

    def cell_counts(self, frame: Rows) -> pd.DataFrame:
        """Count missing, unreadable and unseen values in new rows, in a separate pass.

        Returns
        -------
        DataFrame
            A row for each feature with its number of "rows" and of "missing", "unreadable" and "unseen" values.
            Unreadable values are present but cannot be read as their type, or are neither of the labels of a Binary.
            Unseen values have a category or token without an id (out of vocabulary). Images and audio files are
            opened, and are unreadable if they cannot be decoded.

        Examples
        --------
        >>> import pandas as pd
        >>> import daskprep as dp
        >>> frame = pd.DataFrame({"city": ["Rome", "Oslo"], "price": [1.0, 2.0]})
        >>> prep = dp.Preprocessor({"city": "category", "price": "number"}).fit(frame)
        >>> prep.cell_counts(pd.DataFrame({"city": ["Rome", "Bern", None], "price": ["$3", "4", None]}))
               rows  missing  unreadable  unseen
        city      3        1           0       1
        price     3        2           1       0
        """
        check_is_fitted(self)
        features, source = self._open_new_rows(self._as_rows(frame), Options(scratch=self._scratch))
        return count_cells(features, self.learned_, source)

    def check(
        self,
        frame: Rows,
        *,
        raise_on: Severity | None = None,
        columns: str | Iterable[str] | None = None,
        ignore: str | Iterable[str] = (),
        workers: Workers = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> CheckResult:
        """Compare new rows with the rows of the fit, in one pass.

        A difference is a finding only if chance does not explain it: among rows that did not change, at most one check
        in 1,000 has any finding, for any number of rows and columns. The result is the same for any partitioning.

        Parameters
        ----------
        frame : pandas or Dask DataFrame, Arrow data, path, glob, URL, list of those, Source, or dict of these by split
            The new rows, as for `write`. They need no targets and no weights.
        raise_on : {"error", "warning"} or None
            Raise `CheckError` for a finding of this severity, or of a higher one. None: return all findings.
        columns : str, iterable of str or None
            Columns or features to compare. None: all.
        ignore : str or iterable of str
            Columns, features and kinds of findings to leave out, such as "hours".
        workers : int, "threads" or None
            Where to run, as in `fit_write`.
        storage_options : mapping or None
            Options for fsspec to open `frame` if it is a path, such as credentials.

        Returns
        -------
        CheckResult
            The `findings`: columns that are missing or of another type, shares of missing, unreadable and unseen
            values, values outside the range of the fit, and values or hours that are distributed differently. Dates
            that move on are no finding.

        Examples
        --------
        >>> import numpy as np
        >>> import pandas as pd
        >>> import daskprep as dp
        >>> frame = pd.DataFrame({"price": np.arange(1, 401) / 4})
        >>> prep = dp.Preprocessor({"price": "number"}).fit(frame)
        >>> prep.check(frame[::2])
        0 findings in 200 rows
        >>> [finding.kind for finding in prep.check(frame * 100).findings]
        ['range', 'values']
        """
        check_is_fitted(self)
        if raise_on not in (None, "error", "warning"):
            raise ConfigError(f'check: raise_on={raise_on!r}: expected "error", "warning" or None')
        options = Options(workers=workers, storage_options=storage_options, scratch=self._scratch)
        frame = wrap_single_row(frame)
        with on_workers(frame, workers, sent=self.get_params(deep=False), **options.source_options):
            features = {name: feature for name, feature in self.features_.items() if name != self.weight}
            features, ignored = select_checked(features, columns, ignore)
            try:
                source = plan_source(frame, source_columns(features), None, options.source_options)
            except MissingColumnError:
                source = plan_source(frame, None, None, options.source_options)
            absent = {
                name: column
                for name, feature in features.items()
                for column in feature.reads(name)
                if column not in source.columns
            }
            expected = {name: one for name, one in features.items() if name in self._inputs or name not in absent}
            result = check_source(expected, self.learned_, source, absent, ignored)
        if raise_on is not None:
            result.raise_for(raise_on)
        return result

    def grow(
        self,
        frame: Rows,
        *,
        storage_options: Mapping[str, Any] | None = None,
        workers: Workers = None,
        progress: bool | None = False,
    ) -> NewTokens:
        """Add the tokens of new rows to the vocabularies, behind the old ones, and move the ranges that `check` uses.

        All else stays as fitted. Old ids do not change, so that old and new datasets can be read as one, and embeddings
        get further rows. New tokens are ranked by their frequency in the new rows; `most_common` and `min_frequency` of
        a feature apply to these alone. Vocabularies from files, pretrained tokenizers, subwords, hash buckets, `order`
        and document frequencies do not grow. The same holds for a `Category` with one-hot or ordinal `transform`.
        Numbers and dates are read in a separate pass.

        Parameters
        ----------
        frame : pandas or Dask DataFrame, Arrow data, path, glob, URL, list of those, or Source
            The new rows; columns of targets may be absent.
        storage_options : mapping or None
            Options for fsspec to open `frame` if it is a path, such as credentials.
        workers, progress
            As for `fit`.

        Returns
        -------
        dict
            The new tokens by output, each with its number of occurrences in the new rows.

        Examples
        --------
        >>> import pandas as pd
        >>> import daskprep as dp
        >>> prep = dp.Preprocessor({"city": "category"}).fit(pd.DataFrame({"city": ["Rome", "Oslo", "Rome"]}))
        >>> monday = pd.DataFrame({"city": ["Bern", "Rome", "Bern", "Kyiv"]})
        >>> prep.grow(monday)
        {'city': {'Bern': 2, 'Kyiv': 1}}
        >>> prep.encode(monday)["city"]
        array([3, 1, 3, 4], dtype=uint8)
        """
        check_is_fitted(self)
        self._check_one_fold("grow")
        options = Options(storage_options=storage_options, workers=workers, progress=progress, scratch=self._scratch)
        with on_workers(frame, workers, sent=self.get_params(deep=False), **options.source_options):
            features, source = self._open_new_rows(frame, options)
            growing = {name: feature for name, feature in features.items() if feature._grows}
            ranges = {name: one for name, one in features.items() if getattr(self.learned_[name], "value_edges", None)}
            fresh: Mapping[str, Learned] = {}
            if growing:
                with Progress(progress) as bars:
                    [fresh] = scan_source(ScanPlan(growing), source, scratch=self._scratch, progress=bars).states
            grown = find_ranges(ranges, self.learned_, source)
        new_tokens = NewTokens()
        for name, learned in fresh.items():
            grown[name], counts = self.learned_[name].grow(learned)
            new_tokens |= {name + output: tokens for output, tokens in counts.items()}
        self._set_learned(self.features_, grown)
        return new_tokens

    @list_options(WriteOptions, Options)
    def append(
        self,
        frame: Rows,
        path: str | os.PathLike[str],
        *,
        on_findings: OnFindings = "warn",
        **options: Unpack[WriteOptions],
    ) -> Dataset:
        """Add rows to the dataset at `path`, which this Preprocessor wrote, also if it has grown since.

        The rows become a separate part. A list of the parts is written last, so that readers see all new rows or
        none. Loaders and datasets that are open keep the version that they opened; `open_dataset` with `version=`
        opens older ones. Each part is split separately, and windows do not reach into other parts: a warning says so
        where it matters. Rows that the dataset already has are not added again, with a warning: files by their path and
        modification time, frames by their cells. A list of files with some of these raises an error. `version=` with a
        new name adds them once more.

        Parameters
        ----------
        frame, path
            As for `write`; all columns of the dataset are needed. A dict such as ``{"train": frame}`` defines the
            splits of the rows, in place of `split`.
        on_findings : {"warn", "raise", "ignore"}
            What to do if `check` would have findings: warn once with all of them, raise `CheckError` and append
            nothing, or append the rows without a warning. The pass that reads the rows finds them. Afterwards, the
            ranges that `check` compares include the appended rows.
        **options
            The options of `fit_write`, except `overwrite`. By default, rows of a block, compression and shards are as
            in the dataset.

        Examples
        --------
        >>> import tempfile
        >>> import pandas as pd
        >>> import daskprep as dp
        >>> path = tempfile.mkdtemp() + "/sales.dp"
        >>> prep = dp.Preprocessor({"city": "category"})
        >>> dataset = prep.fit_write(pd.DataFrame({"city": ["Rome", "Oslo", "Rome"]}), path)
        >>> monday = pd.DataFrame({"city": ["Bern", "Rome"]})
        >>> prep.grow(monday)
        {'city': {'Bern': 1}}
        >>> prep.append(monday, path)["train"].head()["city"].tolist()
        ['Rome', 'Oslo', 'Rome', 'Bern', 'Rome']
        >>> len(dp.open_dataset(path, version=1)["train"])
        3
        """
        check_is_fitted(self)
        self._check_one_fold("append")
        if on_findings not in ("warn", "raise", "ignore"):
            raise ConfigError(f'append: on_findings={on_findings!r}: expected "warn", "raise" or "ignore"')
        check_names("append", options, WriteOptions.__annotations__)
        if options.get("overwrite"):
            raise ConfigError("append adds rows: leave overwrite out, or call write to replace the dataset")
        storage_options = options.get("storage_options")
        root = Folder.open(path, storage_options)
        layout = open_single(root, None, trusted=True).manifest.layout  # of the first part
        same = WriteOptions(block_rows=layout.block_rows, compression=layout.compression, shards=layout.sharded)
        chosen = Options(**(same | options), scratch=self._scratch)
        chosen.check()
        with (
            root.lock(),
            on_workers(frame, chosen.workers, chosen.memory, self.get_params(deep=False), **chosen.source_options),
        ):
            dataset = open_dataset(path, storage_options=storage_options, trusted=True)
            self._check_appendable(dataset)
            split = resolve_split(frame, None) or self._resolve_split(frame)
            _warn_about_earlier_rows(split, self.features_)
            features, source = self._open_new_rows(frame, chosen, assignment_columns(split, self.balance))
            if len(features) < len(self.features_):
                missing = ", ".join(f'"{name}"' for name in self.features_.keys() - features.keys())
                raise ColumnError(f"the rows lack {missing}, which the dataset at {root.url} has: add these columns")
            # The saved Preprocessor keeps its own split.
            learned = join_ranges(self.learned_, dataset.learned)
            recipe = self._recipe(features, self.split or split, learned)
            recipe = dataclasses.replace(recipe, split=split, on_findings=on_findings)
            grown = append_source(dataset, recipe, take_sample(source, self.sample, self.sample_seed), root, chosen)
            self._set_learned(self.features_, join_ranges(self.learned_, grown.learned))
        if grown is not dataset and isinstance(grown, GrownDataset):
            self._warn_about_losses(grown.datasets[-1], fitted=False)
        return grown

    def _check_appendable(self, dataset: Dataset) -> None:
        """Raise ConfigError unless rows encoded by this Preprocessor can be read as one with a dataset."""
        remedy = "append with Preprocessor.from_dataset(path), or write the rows to another path"
        if isinstance(dataset, FoldedDataset):
            raise ConfigError(f"{dataset.url} has folds, which cannot be appended to: write it again with all rows")
        if list(dataset.features) != list(self.features_) or set(dataset.targets) != set(self.targets_):
            raise ConfigError(f"{dataset.url} has other features or targets than this Preprocessor: {remedy}")
        for name, feature in self.features_.items():
            stored = dataset.features[name]
            if feature.kind != stored.kind or feature_params(name, feature) != feature_params(name, stored):
                raise ConfigError(f'{dataset.url}: feature "{name}" has other parameters there: {remedy}')
            if not self.learned_[name].extends(dataset.learned[name]):
                raise ConfigError(
                    f'{dataset.url}: the fitted state of "{name}" is another one there, and not one that has grown: '
                    f"{remedy}"
                )


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
    windows = [f'"{name}"' for name, feature in features.items() if getattr(feature, "is_windowed", False)]
    if windows:
        warn(
            f"windows of {', '.join(windows)} do not reach from appended rows to earlier ones, which are padding. "
            "Write all rows again, or append the earlier rows of the windows too, and delete them from the new part"
        )
