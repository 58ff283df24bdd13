"""The Preprocessor: fit one feature per column of a table, then encode, split, write and stream its rows."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final, Literal, Self, Unpack, overload

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from daskprep.columns.display import join_names
from daskprep.columns.parametrized import check_is_fitted, clone
from daskprep.dataset import Dataset, FoldedDataset, open_dataset
from daskprep.dataset.methods import PreprocessorMethods
from daskprep.dataset.options import Redundant, Style, WriteOptions, check_flags, list_options
from daskprep.dataset.writing import Options, Recipe, fit_source, on_workers, plan_source, write_source
from daskprep.dataset.writing.erased import ErasedKeys
from daskprep.errors import ColumnError, ConfigError, MissingColumnError, check_names, did_you_mean, warn
from daskprep.features import Binary, Feature, Key, Learned
from daskprep.features.arrays import (
    EncodedArrays,
    column_names,
    decode_arrays,
    encode_small_frame,
    tabulate,
    tabulate_sparse,
)
from daskprep.features.base import class_count, cross_fit_folds, fills_with_one_value, rows_seen
from daskprep.features.feature import with_y
from daskprep.features.parameter_values import check_outputs, make_features, match_folds_to_split
from daskprep.passes.assignment import Assignment, check_row_parameters, resolve_split, take_sample
from daskprep.passes.contexts import assignment_columns, fold_columns
from daskprep.passes.encoding import tabulate_cross_fitted, tabulate_source, with_history
from daskprep.passes.losses import count_left_out, tabulate_learned_losses, tabulate_losses, warn_about_losses
from daskprep.passes.reviewing import encode_new_rows
from daskprep.passes.state import SerializationMixin
from daskprep.passes.table import learning_columns, source_columns
from daskprep.sources import (
    LazyRows,
    Rows,
    RowsInMemory,
    Source,
    StreamSource,
    TableSource,
    as_source,
    frame_of_array,
    is_array,
    wrap_single_row,
)
from daskprep.sources.balance import balanced_weights
from daskprep.sources.opening import SPLIT
from daskprep.sources.partitions import Workers
from daskprep.sources.partitions.progress import Progress
from daskprep.sources.split import FixedSplit, GroupSplit, Splitter
from daskprep.sources.split.times import TimeSplitter
from daskprep.storage import Folder
from daskprep.storage.layout import SPLITS

_AUTO: Final = "auto"


class Preprocessor(PreprocessorMethods, SerializationMixin):
    """Fit and apply one feature per column of a table that may be larger than memory.

    Parameters
    ----------
    features : dict of str to Feature or str, or "auto"
        Features by name, such as {"price": "number"}. A feature reads the column of its name, unless its `column` names
        another. A string is a feature type with its defaults: "binary", "number", "category", "set", "bag", "sequence",
        "text", "timeseries", "vector", "date", "h3", "image", "audio". "auto" infers a feature for every column of the
        training data, as `infer_features` does, in one more pass over all rows.
    style : {"network", "linear", "trees"} or None
        With "auto": kind of model for which encodings are proposed, as by `infer_features`. None: no proposals.
    redundant : {"skip", "keep"}
        With "auto": whether to leave out columns that repeat a target or another column, as `infer_features` does.
    targets : str, iterable of str or None
        Names of the features that a model predicts. New rows need not have their columns, `transform` leaves them out,
        and loaders and streams yield them apart from the inputs. None: the targets of `infer_features` if it returned
        the features, otherwise no targets. (): no targets.
    weight : str or None
        Column of row weights, each at least 0. They affect means, standard deviations and target encodings, but not
        vocabularies, quantiles or ranges. They are written and loaded, but are not an input: new rows need no weights.
    keys : list of str
        Columns by which `Dataset.delete` finds rows, such as the number of a customer. They are written, but are no
        inputs, and loaders leave them out: whole numbers unchanged, other values as a hash of their text.
    split : RandomSplit, StratifiedSplit, GroupSplit, FixedSplit, DatetimeSplit, HashSplit, KFold or None
        How to split rows into training, validation and test, or into folds. None: all rows are for training.
    balance : Oversample, Undersample or None
        How to repeat or drop training rows against class imbalance. Statistics are computed before balancing.
    sample : float, int or None
        Share of the rows, such as 0.1, or maximum number of rows, that fitting, writing and streaming use. `encode` and
        `transform` use all rows. None: all rows.
    sample_seed : int
        Seed of the sample.
    fit_on : {"train", "all"}
        Whether to fit on training rows only, which avoids leakage, or on all rows.
    scratch : str or None
        Folder for temporary files: counts that do not fit in memory, rows of streams, and rows between passes. None:
        the system's temporary folder, or the dataset's folder for a write. Workers on several machines need a folder
        that all of them can access.
    sparse_output : bool
        Whether `transform` returns a SciPy CSR matrix, for one-hot columns of many values. It is not saved.

    Attributes
    ----------
    learned_ : dict of str to Learned
        The fitted state of each feature.
    targets_ : tuple of str
        Names of the targets.
    feature_names_in_ : ndarray of str
        Columns that the inputs read.
    inferred_ : InferredFeatures
        With "auto": the inferred features, the `reasons`, and the `skipped` columns.

    Examples
    --------
    >>> import pandas as pd
    >>> import daskprep as dp
    >>> frame = pd.DataFrame({"city": ["Rome", "Oslo", "Rome"], "price": [1.0, 2.0, 3.0]})
    >>> prep = dp.Preprocessor({"city": "category", "price": dp.Number(normalization="minmax")}).fit(frame)
    >>> prep.encode(pd.DataFrame({"city": ["Rome", "Bern"], "price": [2.0, None]}))["city"]
    array([1, 0], dtype=uint8)
    """

    def __init__(
        self,
        features: Mapping[str, Any] | Literal["auto"],
        *,
        style: Style | None = None,
        redundant: Redundant = "skip",
        targets: str | Iterable[str] | None = None,
        weight: str | None = None,
        keys: Sequence[str] = (),
        split: Any = None,
        balance: Any = None,
        sample: float | None = None,
        sample_seed: int = 42,
        fit_on: Literal["train", "all"] = "train",
        scratch: str | None = None,
        sparse_output: bool = False,
    ) -> None:
        """Store the parameters unchanged; `targets` may be inferred."""
        self.features = features
        self.style = style
        self.redundant = redundant
        self.targets = getattr(features, "targets", None) if targets is None else targets
        self.weight = weight
        self.keys = keys
        self.split = split
        self.balance = balance
        self.sample = sample
        self.sample_seed = sample_seed
        self.fit_on = fit_on
        self.scratch = scratch
        self.sparse_output = sparse_output

    def fit(self, frame: Rows, y: Any = None, *, workers: Workers = None, progress: bool | None = False) -> Self:
        """Fit every feature on the training rows.

        To resume a fit of files that was killed, call it again with the same arguments; this requires `scratch`.

        Parameters
        ----------
        frame : pandas or Dask DataFrame, array, Arrow data, path, glob, URL, list of those, Source, or dict by split
            The data. An array has columns x0, x1, x2, ...; integers that name columns become text. Files of Parquet,
            CSV, TSV, JSON lines, Feather and ORC are read partition by partition. A dict
            such as ``{"train": frame, "test": "test.csv"}`` defines the rows of each split, in place of `split`.
        y : array, Series or None
            Target of each row, for a `TargetEncoding` and bins whose `target` is None; other features ignore it.
        workers : int, "threads" or None
            Where to run, as in `fit_write`.
        progress : bool or None
            Whether to show progress bars. None: on terminals and in notebooks. The default is False, because a
            parameter search may fit a thousand times.
        """
        width = 0
        if is_array(frame):
            frame = frame_of_array(frame, self)
            width = len(frame.columns)
        split = self._resolve_split(frame)
        if self._is_auto:
            frame = as_source(frame, scratch=self.scratch)
        options = Options(workers=workers, progress=progress, scratch=self._scratch)
        with on_workers(frame, workers, sent=self.get_params(deep=False), **options.source_options):
            features, frame = self._resolve_features(frame, split, options, y)
            try:
                source = as_source(frame, columns=self._columns(features, split), scratch=self.scratch)
            except MissingColumnError as error:
                if y is None or not self._target_names:
                    raise
                raise MissingColumnError(
                    f"{error}. y is for the model of a pipeline: leave out targets, or add their columns to the frame"
                ) from error
            source = take_sample(source, self.sample, self.sample_seed)
            with Progress(progress) as bars:
                learned, *folds = fit_source(self._recipe(features, split, None), source, self._scratch, bars)
        self._set_learned(features, learned, folds)
        if width and not self.targets_:  # new arrays may lack the columns of targets
            self.n_features_in_: int = width
        warn_about_losses(self.losses_, self.features_, learned, self.targets_, fitted=True, call="prep.losses_")
        self._warn_about_targets(split)
        self._warn_about_time_order(split)
        return self

    def _set_learned(
        self,
        features: Mapping[str, Feature],
        learned: Mapping[str, Learned],
        folds: Sequence[Mapping[str, Learned]] = (),
    ) -> None:
        """Set the fitted attributes from features and their learned states, and the states by fold."""
        self.learned_: dict[str, Learned] = dict(learned)
        self.learned_by_fold_ = [dict(fold) for fold in folds]
        self.features_ = dict(features)
        self.targets_ = self._select_targets(features)
        self.feature_names_in_ = np.asarray(source_columns(self._inputs), dtype=object)
        self.n_features_in_ = len(self.feature_names_in_)

    def fold(self, number: int) -> Self:
        """Return the Preprocessor fitted without the rows of fold `number`, which become the validation rows.

        Only for a fit with a `KFold` or `TimeSeriesSplit`; otherwise, raise `ConfigError`.

        Examples
        --------
        >>> import pandas as pd
        >>> import daskprep as dp
        >>> frame = pd.DataFrame({"price": [1.0, 2.0, 3.0, 4.0], "day": pd.date_range("2024-01-01", periods=4)})
        >>> prep = dp.Preprocessor({"price": "number"}, split=dp.KFold(2, time="day")).fit(frame)
        >>> prep.fold(1).learned_["price"].mean, prep.learned_["price"].mean
        (1.5, 2.5)
        """
        check_is_fitted(self)
        folds = 0 if self.split is None else self.split.folds
        if number not in range(len(self.learned_by_fold_)):
            reason = f"the folds are 0 to {folds - 1}" if folds else "use split=KFold(5), and fit again"
            if folds and not self.learned_by_fold_:
                reason = (
                    "a file, or a dataset with folds, holds only the state of all rows: use "
                    f"Preprocessor.from_dataset(dataset.fold({number})), or fit again, and save each with "
                    f"prep.fold({number}).save(path)"
                )
            raise ConfigError(f"Preprocessor: no state without fold {number!r}: {reason}")
        fitted: Self = clone(self).set_params(split__fold=number)
        fitted._set_learned(self.features_, self.learned_by_fold_[number])
        return fitted

    def transform(self, frame: Rows) -> Any:
        """Return all inputs as one 2-D table, with a row per input row and columns as in `get_feature_names_out`.

        The result is a NumPy array for data in memory, and a lazy Dask array for Dask frames, paths and streams. After
        `set_output`, it is a frame with column names, and with `sparse_output` a sparse matrix. ConfigError without
        inputs.
        """
        check_is_fitted(self)
        if not (features := self._inputs):
            raise ConfigError("Preprocessor: all features are targets, so there is nothing to transform")
        source = as_source(self._as_rows(frame), columns=source_columns(features), scratch=self.scratch)
        self._check_sparse(source)
        if small_frame := encode_small_frame(features, self.learned_, source):
            combine = tabulate_sparse if self.sparse_output else tabulate
            return self._wrap_output(combine(features, self.learned_, small_frame), frame)
        table = tabulate_source(features, self.learned_, source, is_sparse=self.sparse_output)
        return self._wrap_output(table, frame)

    def _check_sparse(self, source: Source) -> None:
        """Raise ConfigError for `sparse_output` with lazy data or `set_output`."""
        check_flags(sparse_output=self.sparse_output)
        if self.sparse_output and (not source.in_memory or self._output_container != "default"):
            raise ConfigError(
                "Preprocessor: sparse_output=True is for data in memory, without set_output: use sparse_output=False"
            )

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit, and return the table of `transform`, but with training rows cross-fitted, as in datasets.

        The two differ for a `TargetEncoding` only: `transform` encodes all rows as new rows.
        """
        self.fit(X, y, **fit_params)
        if not cross_fit_folds(self._inputs):
            return self.transform(X)
        if self.sample is not None:
            raise ConfigError("Preprocessor: fit_transform does not cross-fit a sample: use sample=None, or fit_write")
        split = self._resolve_split(X)
        rows = with_y(self.features_, X, y)
        source = as_source(rows, columns=self._columns(self.features_, split), scratch=self.scratch)
        if split is not None and split.folds:
            split = None  # a KFold without a fold has no validation rows: the state was learned from all rows
        self._check_sparse(source)
        inputs, is_sparse = list(self._inputs), self.sparse_output
        table = tabulate_cross_fitted(self.features_, self.learned_, inputs, source, split, is_sparse=is_sparse)
        return self._wrap_output(table, X)

    @overload
    def encode(self, frame: LazyRows) -> MutableMapping[str, Any]: ...
    @overload
    def encode(self, frame: RowsInMemory) -> MutableMapping[str, NDArray[Any]]: ...
    @overload
    def encode(self, frame: Rows) -> MutableMapping[str, Any]: ...
    def encode(self, frame: Rows) -> MutableMapping[str, Any]:
        """Return compact arrays by output, with a row per input row; a dict of cells is one row.

        The result has NumPy arrays for data in memory, and lazy Dask arrays for Dask frames, paths and streams. For
        Arrow and polars tables, Arrow can read the result as a table. Rows that lack a target column are encoded
        without targets, and rows in memory without a target if a label is missing that nothing replaces. The lazy array
        of such a target raises `UnfilledCellError`. No row is dropped: a missing value of an
        input that a write would drop becomes `Learned.fill_value`.
        """
        check_is_fitted(self)
        features, source = self._open_new_rows(self._as_rows(frame), Options(scratch=self._scratch))
        arrays = encode_new_rows(features, self.learned_, source, self._inputs)
        return EncodedArrays(arrays) if isinstance(source, TableSource) else arrays

    def with_history(self, frame: Rows) -> Self:
        """Return a copy whose windows over past rows also have the rows of a frame, before all others.

        `encode`, `predict`, `write`, `append` and `stream` of the copy return or write only the rows that they get. Of
        each group, the copy keeps the rows that windows need; `frame` may have more, in order of time. ConfigError
        without these.

        Examples
        --------
        >>> import pandas as pd
        >>> import daskprep as dp
        >>> days = pd.DataFrame({"load": [1, 2, 3, 4]})
        >>> prep = dp.Preprocessor({"load": dp.Timeseries(window_size=3)}).fit(days)
        >>> prep.with_history(days).encode(pd.DataFrame({"load": [5]}))["load"]
        array([[3., 4., 5.]], dtype=float32)
        """
        check_is_fitted(self)
        windows = {name: feature for name, feature in self.features_.items() if feature._past is not None}
        if not windows:
            raise ConfigError("with_history: no feature has windows over past rows: call encode without it")
        source = as_source(frame, columns=source_columns(windows), scratch=self.scratch)
        after = copy.copy(self)
        after.features_ = {**self.features_, **with_history(windows, self.learned_, source)}
        return after

    def decode(self, arrays: Mapping[str, Any]) -> pd.DataFrame:
        """Return human-readable values for encoded arrays by output; outputs without an array are left out."""
        check_is_fitted(self)
        return decode_arrays(self.features_, self.learned_, arrays)

    @overload
    def assign(self, frame: LazyRows) -> dict[str, Any]: ...
    @overload
    def assign(self, frame: RowsInMemory) -> dict[str, NDArray[Any]]: ...
    @overload
    def assign(self, frame: Rows) -> dict[str, Any]: ...
    def assign(self, frame: Rows) -> dict[str, Any]:
        """Return the split of each row, as "split", and how often the row is written, as "repeats".

        A split is 0 for train, 1 for validation, 2 for test, 255 for a dropped row; with a `KFold`, it is the number
        of the fold. With a balance and a `KFold`, call ``prep.fold(0).assign(frame)`` instead. Arrays are NumPy arrays
        for pandas, and lazy Dask arrays for Dask frames and paths.
        """
        features = self.features_ if hasattr(self, "learned_") else self._validate_features()
        split = self._resolve_split(frame)
        if self.balance is not None:
            self._check_one_fold("assign")
        assignment = Assignment(features, split, self.balance, getattr(self, "learned_", None))
        source = as_source(frame, columns=self._columns(features, split), scratch=self.scratch)
        return assignment.arrays(source, self.sample, self.sample_seed)

    @list_options(WriteOptions, Options)
    def fit_write(self, frame: Rows, path: str | os.PathLike[str], **options: Unpack[WriteOptions]) -> Dataset:
        """Fit on a table and write it as a dataset, reading it once.

        A write either completes or leaves the previous dataset unchanged. After an interruption, call it again with the
        same arguments to resume. The same rows and parameters produce the same bytes, for any partitioning.

        Parameters
        ----------
        frame : pandas or Dask DataFrame, Arrow data, path, glob, URL, list of those, Source, or dict of these by split
            The data, as for `fit`.
        path : str or path
            Folder of the dataset, local or a URL for fsspec, as ``s3://bucket/listings.dp``, without other files.
        shuffle : bool, default False
            Whether to shuffle the rows of each split; use it if rows are sorted.
        seed : int, default 0
            Seed of the shuffle; any integer.
        block_rows : int or None
            Rows of a block, the unit of reading. None: as many as fit in 16 MB for the widest array, or in 4 MB with
            shards, but few enough for 64 blocks in the largest split.
        compression : {"lz4", "zstd", "none"}, default "lz4"
            Compression of arrays and tables.
        shards : bool or None
            Whether the blocks of an array share a few large files, instead of one file per block. None: True in object
            stores, where each file takes a request; local files are faster to read one by one.
        overwrite : bool, default False
            Whether to write even if this version already exists, or if the existing dataset cannot be read.
        allow_erased : bool, default False
            Whether to write rows with keys that `erase` removed from this path. They raise an error otherwise.
        version : str or None
            Name for the version of the rows, in place of their files or cells. Without it, Dask frames, streams and
            frames with media are written each time. For `append`, a new name adds rows that the dataset has once more.
        memory : str, int or None
            Memory limit of all processes of the write together, such as "2GB". Partitions of files are sized to fit. A
            write that cannot fit raises an error before it starts.
        workers : int, "threads" or None
            Number of processes of this machine that are started for the write; "threads" of this process. None: one
            process per core if the write then ends sooner. A Dask client or scheduler that is set is used instead.
        progress : bool or None
            Whether to show progress bars. None: on terminals and in notebooks.
        storage_options : mapping or None
            Options for fsspec to open `path`, and `frame` if it is a path, such as credentials. They are not stored.

        Returns
        -------
        Dataset
            The dataset at `path`.
        """
        return self._write("fit_write", frame, path, options)

    @list_options(WriteOptions, Options)
    def write(self, frame: Rows, path: str | os.PathLike[str], **options: Unpack[WriteOptions]) -> Dataset:
        """Write a table as a dataset with the fitted state, reading the table once; see `fit_write`.

        Rows that lack a target column are written without targets.

        Parameters
        ----------
        frame, path
            As for `fit_write`.
        **options
            Options of the write, such as `block_rows`: see `fit_write`.
        """
        check_is_fitted(self)
        self._check_one_fold("write")
        return self._write("write", frame, path, options)

    def _check_one_fold(self, method: str) -> None:
        """Raise ConfigError if the split has several folds."""
        if self.split is not None and self.split.folds:
            raise ConfigError(
                f"Preprocessor: {method} needs one fold, but {type(self.split).__name__} has {self.split.folds}: use "
                f"prep.fold(0).{method}(...), or fit_write for the datasets of all folds"
            )

    @property
    def _scratch(self) -> Any:
        return os.fspath(self.scratch) if isinstance(self.scratch, os.PathLike) else self.scratch

    def _write(self, method: str, frame: Any, path: str | os.PathLike[str], values: WriteOptions) -> Dataset:
        """Write a frame as the dataset at `path`, after a fit or with the fitted state."""
        check_names(method, values, WriteOptions.__annotations__)
        options = Options(**values, scratch=self._scratch)
        Folder.open(path, options.storage_options)  # raises an error if `frame` and `path` are swapped
        with on_workers(frame, options.workers, options.memory, self.get_params(deep=False), **options.source_options):
            if method == "write":
                return self._write_rows(None, frame, path, options)
            features, frame = self._resolve_features(frame, self._resolve_split(frame), options)
            return self._write_rows(features, frame, path, options)

    def _write_rows(
        self, features: Mapping[str, Feature] | None, frame: Any, path: str | os.PathLike[str], options: Options
    ) -> Dataset:
        """Write a frame: fit `features` first, or use the fitted state if they are None."""
        options.check()
        folder = Folder.open(path, options.storage_options)
        split = self._resolve_split(frame, is_fitted=features is None)
        erased = ErasedKeys.read(folder, ignored=options.allow_erased)
        with erased.name_in_errors():
            if features is None:
                columns = [*assignment_columns(split, self.balance), *erased.columns]
                used, source = self._open_new_rows(frame, options, columns, is_written=True)
            else:
                used, columns = features, [*self._columns(features, split), *erased.columns]
                columns = list(dict.fromkeys(columns))
                source = plan_source(frame, columns, options.memory, options.source_options, features)
        recipe = self._recipe(used, split, self.learned_ if features is None else None)
        source = take_sample(source, self.sample, self.sample_seed)
        erased.refuse(source)
        result = write_source(recipe, source, folder, options)
        dataset = open_dataset(path, version=1, storage_options=options.storage_options, trusted=True)
        dataset.clear_cache(unused=True)
        if result is not None:
            dataset.timings = result.seconds
        if features is not None:
            folds = list(dataset) if isinstance(dataset, FoldedDataset) else []
            states = [written.learned for written in (dataset, *folds)] if result is None else result.states
            self._set_learned(features, states[0], states[1:])
            self._warn_about_targets(split)
            self._warn_about_time_order(split)
            self._warn_about_empty_splits(split, dataset)
        else:
            self._warn_about_changed_rows(used, dataset)
        self._warn_about_losses(dataset, fitted=features is not None)
        return dataset

    def _resolve_split(self, frame: Any, *, is_fitted: bool = False) -> Splitter | None:
        """Return the split, or the one that the keys of a dict of frames define; check the parameters about rows."""
        check_row_parameters(self.split, self.balance, self.fit_on, self.sample, self.sample_seed)
        return resolve_split(frame, self.split, is_fitted=is_fitted)

    def _recipe(
        self, features: Mapping[str, Feature], split: Splitter | None, learned: Mapping[str, Learned] | None
    ) -> Recipe:
        """Return features, split, balance and states for a pass; `learned` None: before a fit; or ConfigError."""
        check_outputs(features)  # also of a state that was saved before a name was reserved
        if split is not self.split and SPLIT in source_columns(features):
            raise ConfigError(
                f'a feature reads column "{SPLIT}", the name of the column with the split of rows that are passed by '
                "split: rename it in the data"
            )
        known_states = None if learned is None else {name: learned[name] for name in features}
        make_state = functools.partial(self._state, features, split)
        targets = self._select_targets(features)
        return Recipe(features, split, self.balance, self.fit_on, known_states, make_state, targets)

    def _open_new_rows(
        self,
        frame: Any,
        options: Options,
        assignment_columns: Iterable[str] | None = None,
        *,
        is_written: bool = False,
    ) -> tuple[Mapping[str, Feature], Source]:
        """Return features and the source of their columns; only the inputs if rows lack a target.

        Rows that are written need keys, too.
        """
        keys = {name for name, one in self.features_.items() if isinstance(one, Key)}
        features = {name: one for name, one in self.features_.items() if is_written or name not in keys}
        inputs = {name: one for name, one in features.items() if name in self._inputs or name in keys}

        def open_columns(features: Mapping[str, Feature]) -> Source:
            others = () if assignment_columns is None else (*assignment_columns, *fold_columns(features))
            columns = source_columns(features, others)
            return plan_source(frame, columns, options.memory, options.source_options, features)

        try:
            return features, open_columns(features)
        except MissingColumnError:
            try:
                return inputs, open_columns(inputs)
            except MissingColumnError as error:
                if error.column in source_columns(inputs):
                    raise
                raise MissingColumnError(
                    f"{error}. The split or balance reads it: for rows without it, use encode, predict, or, without a "
                    'balance, write({"test": rows}, path)'
                ) from error

    def _as_rows(self, frame: Any) -> Any:
        """Return an array as a frame, and a dict as one row; ColumnError for an array that lacks columns."""
        if not is_array(frame):
            return wrap_single_row(frame)
        rows, names = frame_of_array(frame, self), self.feature_names_in_.tolist()
        if (count := len(rows.columns)) < self.n_features_in_:
            raise ColumnError(
                f"X has {count} features, but Preprocessor is expecting {self.n_features_in_} features as input"
            )
        if not set(names) <= set(rows.columns):
            raise ColumnError(
                f"an array has the columns x0, x1, ...: pass a frame with the columns {join_names(names, 5)}"
            )
        return rows

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the columns of `transform`; ConfigError if one repeats."""
        check_is_fitted(self)
        owners: dict[str, str] = {}
        for name, feature in self._inputs.items():
            for column in column_names(feature, name, self.learned_[name]):
                if column in owners:
                    raise ConfigError(
                        f'features "{owners[column]}" and "{name}" both return the column "{column}": pass one of them '
                        f'under another name, such as "{name}_2" with column="{name}"'
                    )
                owners[column] = name
        return np.asarray(list(owners), dtype=object)

    @property
    def losses_(self) -> pd.DataFrame:
        """Cells of the training rows whose encoding lacks information, as far as the fit counted them.

        It has the columns of `Dataset.losses`, which counts the cells of all rows that were written.
        """
        check_is_fitted(self)
        return tabulate_learned_losses(self.features_, self.learned_)

    def num_classes(self, name: str) -> int:
        """Return the number of classes of the `Category` or `Binary` feature `name`; all its ids are smaller."""
        check_is_fitted(self)
        if name not in self.features_:
            raise ConfigError(f'Preprocessor: no feature "{name}".{did_you_mean(name, self.features_)}')
        return class_count(name, self.features_[name], self.learned_[name])

    def class_weights(self, name: str) -> NDArray[np.float32]:
        """Return a weight for each class of a `Category` or `Binary`, indexed by id, as `Dataset.class_weights` does.

        Weights are computed from the rows of the fit, before balancing. ConfigError if classes were not counted.
        """
        check_is_fitted(self)
        learned = self.learned_.get(name)
        counts = None if learned is None else learned.class_counts()
        if counts is None:
            raise ConfigError(
                f'Preprocessor: a fit does not count the classes of "{name}": name a Category without buckets or a '
                "Binary whose missing values are not filled by neighbours, or call class_weights of a dataset"
            )
        return balanced_weights(counts)

    def _columns(self, features: Mapping[str, Feature], split: Splitter | None) -> list[str]:
        """Return the columns that features, split and balance read, and the extra columns that features learn from."""
        return source_columns(features, [*assignment_columns(split, self.balance), *learning_columns(features)])

    @property
    def _inputs(self) -> dict[str, Feature]:
        """The features that are neither targets nor the weight."""
        features = self.features_.items()
        return {name: one for name, one in features if name not in self.targets_ and one._is_input}

    @property
    def _target_names(self) -> list[str]:
        """Names of targets without repeats; or ConfigError."""
        targets = [self.targets] if isinstance(self.targets, str) else self.targets
        if not isinstance(targets, Iterable | None) or not all(isinstance(name, str) for name in targets or ()):
            raise ConfigError(f"Preprocessor: targets must be names of features, not {self.targets!r}")
        return list(dict.fromkeys(targets or ()))

    def _select_targets(self, features: Mapping[str, Feature]) -> tuple[str, ...]:
        return tuple(name for name in self._target_names if name in features)

    @property
    def _is_auto(self) -> bool:
        return isinstance(self.features, str) and self.features == _AUTO

    def _resolve_features(
        self, frame: Any, split: Splitter | None, options: Options, y: Any = None
    ) -> tuple[dict[str, Feature], Any]:
        """Return the features to fit, passed or inferred, and the frame with `y`, or its stream."""
        if not self._is_auto:
            features = match_folds_to_split(self._validate_features(), split, self.fit_on)
            return features, with_y(features, frame, y)
        excluded = {split.column: "contains the split of each row"} if isinstance(split, FixedSplit) else {}
        if self.weight is not None:
            excluded[self.weight] = "is the weight of each row"
        excluded |= dict.fromkeys(self.keys, "is a key of each row")
        source = plan_source(frame, None, options.memory, options.source_options)
        rows = take_sample(source, self.sample, self.sample_seed)
        with Progress(options.progress) as bars:
            self.inferred_ = self._infer(rows, excluded, bars)
        features = make_features(self.inferred_, self._target_names, self.weight, self.keys)
        return match_folds_to_split(features, split, self.fit_on), source if isinstance(source, StreamSource) else frame

    def _validate_features(self) -> dict[str, Feature]:
        """Return the features passed, or after a fit with "auto" the inferred ones, checked; or ConfigError."""
        if self._is_auto:
            if not hasattr(self, "features_"):
                raise ConfigError('Preprocessor: with features="auto", fit infers the features: call fit first')
            return make_features(self.features_, self._target_names)
        for name, default in (("style", None), ("redundant", "skip")):
            if (value := getattr(self, name)) != default:
                raise ConfigError(f'Preprocessor: {name}={value!r} is for features="auto": leave it out')
        check_row_parameters(self.split, self.balance, self.fit_on, self.sample, self.sample_seed)
        return make_features(self.features, self._target_names, self.weight, self.keys)

    @classmethod
    def from_dataset(cls, dataset: Dataset | str | os.PathLike[str]) -> Self:
        """Create the fitted Preprocessor that wrote a dataset, to encode more rows in the same way.

        Files, folders and tokenizers that the dataset names are used only if it was opened as trusted. The path of a
        dataset is opened without trust.
        """
        if isinstance(dataset, str | os.PathLike):
            dataset = open_dataset(dataset)
        _ = dataset.features  # raises an error if they do not match the dataset
        return cls.from_dict(dataset.state(), trusted=dataset.trusted)

    def _warn_about_targets(self, split: Splitter | None) -> None:
        """Warn about targets with imputed labels or incomplete horizons, and about an inferred positive label."""
        for name in self.targets_:
            learned, feature = self.learned_[name], self.features_[name]
            if name not in self._feature_specs and isinstance(feature, Binary) and feature.positive is not None:
                warn(
                    f'target "{name}": {feature.positive!r} is taken as the positive label; to choose, pass the '
                    f'features that infer_features returns, with "{name}": Binary(positive=...)'
                )
            is_complete = feature._drops_windows or self.weight is not None
            horizon, padding = (getattr(feature, one, 0) for one in ("horizon", "padding_number"))
            if horizon and not is_complete:
                warn(
                    f'target "{name}": the horizon of the last {horizon:,} rows of each series is incomplete, '
                    f"and models learn {padding} as if it were true: leave these rows out by "
                    'missing_value_strategy="drop_row"'
                )
            step, gap = getattr(feature, "step", None), getattr(split, "gap", None)
            is_short = gap is None or (step is not None and pd.Timedelta(gap) < horizon * pd.Timedelta(step))
            if horizon and isinstance(split, TimeSplitter) and is_short:
                warn(
                    f'target "{name}": the last {horizon:,} rows of each series and split have an incomplete horizon '
                    f"and are left out: {type(split).__name__}(gap=...) of that length keeps those before a border"
                )
            if learned.missing and fills_with_one_value(feature):
                warn(
                    f'target "{name}": {learned.missing:,} of {rows_seen(feature, learned):,} labels are missing, and '
                    f"models are trained as if they were {learned.fill_value!r}: leave these rows out by "
                    'missing_value_strategy="drop_row"'
                )

    def _warn_about_time_order(self, split: Splitter | None) -> None:
        """Warn about a random split of dates in order."""
        dates = [name for name, learned in self.learned_.items() if getattr(learned, "in_order", False)]
        if dates and split is not None and split.draws_rows:
            column = self.features_[dates[0]].reads(dates[0])[0]
            warn(
                f'rows look ordered by time in column "{column}", so a random split may leak: test rows fall between '
                f'training rows. To test on the newest rows, use split=DatetimeSplit("{column}"), or split: '
                f"{{type: datetime, column: {column}}} in a configuration"
            )

    def _warn_about_empty_splits(self, split: Splitter | None, dataset: Dataset) -> None:
        """Warn if a GroupSplit has left a split without rows that should have some."""
        rows = {name: len(dataset.splits.get(name, ())) for name in SPLITS}
        if not isinstance(split, GroupSplit) or not any(rows.values()):
            return
        shares = zip(rows, split._shares(), strict=True)
        if empty := [f'"{name}"' for name, share in shares if share and not rows[name]]:
            warn(
                f'{type(split).__name__}: column "{split.column}" has too few values for {split.shares}, so '
                f"{join_names(empty, 3)} has no rows ({', '.join(f'{name}: {n:,}' for name, n in rows.items())}): use "
                "other shares, or a column with more values"
            )

    def _warn_about_changed_rows(self, features: Mapping[str, Feature], dataset: Dataset) -> None:
        """Warn if a dataset has more or fewer training rows than the fit, so that cross-fitting used other folds."""
        cross_fitted = cross_fit_folds(features)
        if not cross_fitted or self.balance is not None:
            return
        rows, left_out = len(dataset.splits.get("train", ())), len(dataset.rejects())
        learned = {name: self.learned_[name].rows for name in cross_fitted}
        mismatched = [f'"{name}"' for name in cross_fitted if rows and not rows <= learned[name] <= rows + left_out]
        if mismatched:
            warn(
                f"feature{'s' * (len(mismatched) > 1)} {join_names(mismatched, 5)}: cross-fitted for other rows: "
                f"{max(learned.values()):,} training rows were in the fit, and {rows:,} were written, some of them "
                "encoded by their own target. Write the rows of the fit in the same order, use fit_write, or name the "
                'split of other rows, as in {"test": frame}'
            )

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
