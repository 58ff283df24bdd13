"""Methods that open a part of the package that the core works without.

In: an object of the core, such as a Dataset, and the arguments of a method. Out: what the part returns. Each part is
imported when its method is called, here alone, so that a folder or file that is taken out is missed by nothing else.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack, overload

import numpy as np
import pandas as pd

from daskprep.dataset.options import LoaderOptions, Options, SharedOptions, StreamOptions, WriteOptions, list_options
from daskprep.errors import check_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from daskprep.dataset import Dataset
    from daskprep.dataset.loader import Loader
    from daskprep.extensions.column_types import InferredFeatures
    from daskprep.extensions.growing import NewTokens
    from daskprep.extensions.report import Report
    from daskprep.extensions.streaming.stream import Stream
    from daskprep.features import Feature
    from daskprep.passes.checking import CheckResult, Severity
    from daskprep.passes.reviewing import OnFindings
    from daskprep.sources import LazyRows, Rows, RowsInMemory, Source
    from daskprep.sources.partitions import Workers
    from daskprep.sources.partitions.progress import Progress

Method = TypeVar("Method", bound=Callable[..., Any])
Model = Callable[[dict[str, Any]], Any]
Where = Mapping[str, Any] | Callable[[pd.DataFrame], Any]


class _WithTargets:
    """Method of a Preprocessor that one without targets lacks; scikit-learn takes what has `predict` for a model."""

    def __init__(self, method: Any) -> None:
        functools.update_wrapper(self, method)  # type: ignore[arg-type]  # has no __call__
        self._method = method

    def __get__(self, prep: Any, owner: type) -> Any:
        if prep is None:
            return self._method
        if not prep._target_names:
            raise AttributeError(
                f"{self._method.__name__}: no feature is a target: use Preprocessor(features, targets=[...])"
            )
        return self._method.__get__(prep, owner)


if TYPE_CHECKING:

    def _with_targets(method: Method) -> Method: ...

else:
    _with_targets = _WithTargets


class _PredictOptions(TypedDict, total=False):
    batch_size: int
    ids: str | Sequence[str] | None
    device: Any
    logits: bool
    threshold: float | Mapping[str, float]
    top_k: int | None
    probabilities: bool


class PreprocessorMethods:
    """Methods of a Preprocessor for predictions, new rows, streams, configurations, ONNX and notebooks."""

    inferred_: InferredFeatures

    def predictions(
        self: Any,
        outputs: Any,
        *,
        logits: bool = True,
        threshold: float | Mapping[str, float] = 0.5,
        top_k: int | None = None,
        probabilities: bool = False,
    ) -> pd.DataFrame:
        """Return labels, tokens and numbers in their original units for the outputs of a model, one row per input row.

        Parameters
        ----------
        outputs : array, tensor, list, mapping of these by target, or iterable of batches of them
            Outputs of the model for its targets; a single array if it has one target. An iterator, or a list of arrays
            or mappings, consists of batches, such as the batches of an epoch.
        logits : bool
            Whether outputs for classes are logits. False: they are probabilities.
        threshold : float, or mapping of target to float
            Probability from which a Binary is True, and a token belongs to a Set.
        top_k : int or None
            Number of classes to list for a Category, the most probable first.
        probabilities : bool
            Whether to include the probabilities of all classes.

        Returns
        -------
        DataFrame
            For each target ``<target>_predictions``. For two classes also ``<target>_probability_<class>`` of the
            positive one, for more classes and tokens ``<target>_probability``. The page "Predict new data" lists all
            columns, and the accepted shapes of outputs.

        Examples
        --------
        >>> import pandas as pd
        >>> import daskprep as dp
        >>> frame = pd.DataFrame({"size": [1, 2, 3], "sort": ["a", "b", "a"]})
        >>> prep = dp.Preprocessor({"size": "number", "sort": "category"}, targets="sort").fit(frame)
        >>> prep.predictions([[1, 3], [2, 2]], top_k=2)["sort_predictions_top_k"].tolist()
        [['b', 'a'], ['a', 'b']]
        """
        from daskprep.extensions.predictions import decode_outputs
        from daskprep.rows.predictions import PredictionOptions

        return decode_outputs(self, outputs, PredictionOptions(logits, threshold, top_k, probabilities))

    @overload
    def predict(self: Any, frame: LazyRows, model: Model, **options: Unpack[_PredictOptions]) -> Any: ...
    @overload
    def predict(self: Any, frame: RowsInMemory, model: Model, **options: Unpack[_PredictOptions]) -> pd.DataFrame: ...
    @overload
    def predict(self: Any, frame: Rows, model: Model, **options: Unpack[_PredictOptions]) -> Any: ...
    @_with_targets
    def predict(
        self: Any,
        frame: Rows,
        model: Model,
        *,
        batch_size: int = 1024,
        ids: str | Sequence[str] | None = None,
        device: Any = None,
        logits: bool = True,
        threshold: float | Mapping[str, float] = 0.5,
        top_k: int | None = None,
        probabilities: bool = False,
    ) -> Any:
        """Encode rows, run a model on them batch by batch (inference), and return its predictions.

        Parameters
        ----------
        frame : pandas or Dask DataFrame, Arrow data, path, glob, URL, list of those, or Source
            Rows with the columns of the inputs.
        model : callable
            Takes a dict of tensors by output, as in the batches of a loader. It returns a tensor for a single target,
            or a mapping of tensors by target. A torch module runs in evaluation mode; its mode is restored afterwards.
        batch_size : int
            Maximum number of rows in a batch.
        ids : str, sequence of str or None
            Columns to copy to the front of the predictions.
        device : str, torch.device or None
            Device of the batches. None: the device of the model's parameters.
        logits, threshold, top_k, probabilities
            As for `predictions`.

        Returns
        -------
        DataFrame
            The columns of `predictions`, one row per input row, in order. A pandas frame for pandas, and a lazy Dask
            DataFrame with the same partitions for Dask frames and files; both have the index of the frame. For rows in
            memory, ``attrs["losses"]`` has the records of the table of `Dataset.losses`.

        Examples
        --------
        >>> import pandas as pd
        >>> import daskprep as dp
        >>> frame = pd.DataFrame({"size": [1.0, 2.0, 3.0], "price": [10.0, 20.0, 30.0]})
        >>> prep = dp.Preprocessor({"size": "number", "price": "number"}, targets="price").fit(frame)
        >>> prep.predict(pd.DataFrame({"size": [2.0, 4.0]}, index=["a", "b"]), lambda batch: batch["size"])
           price_predictions
        a               20.0
        b               40.0
        """
        from daskprep.extensions.predictions import predict
        from daskprep.rows.predictions import PredictionOptions

        options = PredictionOptions(logits, threshold, top_k, probabilities)
        return predict(self, frame, model, options, batch_size, ids, device)

    def cell_counts(self: Any, frame: Rows) -> pd.DataFrame:
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
        from daskprep.extensions.checks import count_cells

        return count_cells(self, frame)

    def check(
        self: Any,
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
        workers, storage_options
            As for `fit_write`.

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
        from daskprep.extensions.checks import check

        return check(self, frame, raise_on, columns, ignore, workers, storage_options)

    def grow(
        self: Any,
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
        storage_options, workers, progress
            As for `fit_write`.

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
        from daskprep.extensions.growing import grow

        return grow(self, frame, storage_options, workers, progress)

    @list_options(WriteOptions, Options)
    def append(
        self: Any,
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
            The options of `fit_write`, except `overwrite`. Layout options default to the dataset's.

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
        from daskprep.extensions.growing import append

        return append(self, frame, path, on_findings, options)

    @list_options(StreamOptions, SharedOptions)
    def stream(
        self: Any,
        frame: Rows,
        batch_size: int = 1024,
        *,
        storage_options: Mapping[str, Any] | None = None,
        prepare: Callable[[pd.DataFrame], pd.DataFrame] | None = None,
        **options: Unpack[StreamOptions],
    ) -> Stream:
        """Return an iterable of batches of tensors for torch, encoded while a model trains; nothing is written.

        Rows that lack a target column are yielded without targets.

        Parameters
        ----------
        frame : pandas or Dask DataFrame, Arrow data, path, glob, URL, list of those, Source, or dict of these by split
            The data, as for `fit`.
        batch_size : int
            Rows of a batch, over all ranks together.
        storage_options : mapping or None
            Options for fsspec to open `frame` if it is a path, such as credentials.
        prepare : callable or None
            Function called with the rows of each partition, as in `prepared`; it returns a pandas frame to encode.
        **options
            Options of the stream, such as `shuffle` and `window`: see `Stream`.

        Returns
        -------
        Stream
            An iterable of batches.
        """
        from daskprep.extensions.streaming.stream import open_stream

        return open_stream(self, frame, batch_size, storage_options, prepare, options)

    def _infer(self: Any, rows: Source, excluded: Mapping[str, str], progress: Progress) -> InferredFeatures:
        from daskprep.extensions.column_types import infer_source

        return infer_source(rows, self._target_names, excluded, self.style, self.redundant, progress=progress)

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Create a Preprocessor from a Ludwig-style configuration: a dict, YAML text, or the path of a YAML file."""
        from daskprep.extensions.config import read_config

        return cls(**read_config(config))

    def to_config(self: Any) -> dict[str, Any]:
        """Return the configuration that `from_config` reads."""
        from daskprep.columns.parametrized import to_json_value
        from daskprep.extensions.config import write_config

        features = {name: feature for name, feature in self._validate_features().items() if feature._is_input}
        targets = self._select_targets(features)
        sample, seed = to_json_value(self.sample), to_json_value(self.sample_seed)
        rows = self.fit_on, targets, sample, seed, self.weight, self.keys
        return write_config(features, self.split, self.balance, *rows)

    def to_onnx(self: Any, path: str | os.PathLike[str], *, columns: Iterable[str] | None = None) -> None:
        """Write a model in ONNX, which encodes columns as `encode` does, in onnxruntime alone.

        It has an input for each column, and an output "encoded/name" for each output of `encode`. Numbers are float64,
        vectors float32, dates nanoseconds since 1970 in int64, and all other columns text. Missing are NaN, the
        smallest int64 and the empty text. Raise `ConfigError` that names all features without an equivalent in ONNX.

        Parameters
        ----------
        path : str or path
            The file, local or at a URL of fsspec.
        columns : iterable of str or None
            Names of the features to export. None: all but targets and weights.
        """
        from daskprep.extensions.onnx import export
        from daskprep.passes.state import open_parent_folder
        from daskprep.storage.security import path_text

        content = export(self.to_dict(), columns)
        folder, name = open_parent_folder(path_text(path, "file"))
        folder.write(name, content)

    def _repr_html_(self: Any) -> str:
        from daskprep.extensions.summary_html import describe_preprocessor

        return describe_preprocessor(self).html()


class DatasetMethods:
    """Methods of a Dataset for reports, and for versions with other outputs or fewer rows."""

    def report(self: Any, path: str | os.PathLike[str] | None = None) -> Report:
        """Read all rows once, block by block, and return an HTML report on the distribution of each feature.

        Parameters
        ----------
        path : str, path or None
            File to write: one HTML file that needs no other file and no network. None: no file.
        """
        from daskprep.extensions.report import make_report

        self._check_not_empty()
        return make_report(self, path)

    def plot(self: Any, name: str | None = None, split: str | None = "train") -> Figure:
        """Return a matplotlib figure of the distribution of a feature or an output.

        Parameters
        ----------
        name : str or None
            Name of the feature or the output. None: an overview, the first chart of each of up to 48 outputs.
        split : str or None
            Split whose rows are counted. None: all splits, next to each other.
        """
        from daskprep.extensions.report import make_plot

        self._check_not_empty()
        return make_plot(self, name, split)

    def add(
        self: Any,
        name: str,
        feature: Feature | str,
        rows: Any,
        *,
        memory: str | int | None = None,
        workers: Workers = None,
        progress: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Fit another feature and add its outputs to all rows, without encoding other outputs again.

        Files of the other outputs are linked, or copied where links are not possible; tables are written again. The new
        version replaces this one at once when it is complete: open loaders need to be created again. If the call is
        killed, the dataset stays as it was, and the same call continues.

        Parameters
        ----------
        name : str
            Name of the feature.
        feature : Feature or str
            The feature, or the name of its type. It may not drop rows, and media are decoded now: ``mode="eager"``.
        rows : DataFrame, path, glob, URL, Source, dict of these by split, or callable
            The rows that the dataset was written from, in the same order, with the column of the feature. Or a function
            of a pandas frame with decoded rows, which returns a value for each row, or a frame with the column: it is
            called block by block. The feature is fitted on the rows, and with the weights, of a write with the feature;
            for a function, on the training rows of the dataset. A source row takes a byte of memory.
        memory, workers, progress, storage_options
            As for `Preprocessor.write`.

        Returns
        -------
        Dataset
            The dataset with the new outputs. Versions of earlier appends and deletions have them, too.

        Raises
        ------
        ConfigError
            The name is taken, the dataset has other rows, or folds, appended rows or a sample.

        Examples
        --------
        >>> import tempfile
        >>> import pandas as pd
        >>> import daskprep as dp
        >>> frame = pd.DataFrame({"area": [30.0, 60.0, 90.0], "rent": [600.0, 900.0, 900.0]})
        >>> dataset = dp.Preprocessor({"area": "number"}, split=None).fit_write(frame, tempfile.mkdtemp() + "/flats.dp")
        >>> dataset = dataset.add("rent", "number", frame)
        >>> dataset["train"].columns
        ['area', 'rent']
        >>> dataset = dataset.add("per_area", "number", lambda rows: rows["rent"] / rows["area"])
        >>> dataset["train"].head()["per_area"].tolist()
        [20.0, 15.0, 10.0]
        """
        from daskprep.dataset.writing.adding import add_output

        options = Options(memory=memory, workers=workers, progress=progress, storage_options=storage_options)
        return add_output(self, name, feature, rows, options)

    def delete(self: Any, rows: Any = None, *, where: Where | None = None, part: int | None = None) -> Dataset:
        """Hide rows at once, in a new version of the dataset; `purge` then removes them from the disk.

        Parameters
        ----------
        rows : array of int
            Row ids: the numbers of the rows in the source, as "row_id" of `Split.read`. A row is deleted from its split
            as often as a balance repeats it, and from `rejects`. None: the rows of `where`.
        where : dict of str to value or list, callable or None
            Values by key: a column of ``Preprocessor(keys=)``, or a feature whose decoded rows are compared. Rows that
            match all of them are deleted, in all parts. Or a function that is called with a frame of the keys and the
            decoded features for each block, and returns a boolean for each row.
        part : int or None
            Part of the rows, as index of `datasets`: appends count row ids from 0. None: with `where` all parts,
            otherwise the only part.

        Returns
        -------
        Dataset
            The new version, without the rows. This dataset and loaders that are open still have them.

        Examples
        --------
        >>> import tempfile
        >>> import pandas as pd
        >>> import daskprep as dp
        >>> path = tempfile.mkdtemp() + "/sales.dp"
        >>> dataset = dp.Preprocessor({"city": "category"}, split=None).fit_write(
        ...     pd.DataFrame({"city": ["Rome", "Oslo", "Rome"]}), path
        ... )
        >>> dataset.delete([1])["train"].head()["city"].tolist()
        ['Rome', 'Rome']
        >>> dp.open_dataset(path).purge()["row_ids"]
        [[1]]
        >>> dp.open_dataset(path).delete(where={"city": "Rome"}).splits
        {}
        """
        from daskprep.dataset.writing.deleting import delete_rows

        return delete_rows(self, rows, where, part)

    def purge(self: Any) -> dict[str, Any]:
        """Remove deleted rows from the files of the dataset, with all older versions that have them.

        Only blocks, tables and rejects with such rows are written again; other files are kept. Tokens that no other row
        has become "<REMOVED id>" in the vocabularies, so that all ids stay, and samples of unreadable cells are
        removed. Other statistics, such as means and quantiles, stay as fitted. Unused caches of decoded media are
        removed. Open the dataset again afterwards.

        Returns
        -------
        dict
            The receipt, which is also stored as "purge-00001.json". "row_ids" are listed by part. "files" are those
            that were written again, with their SHA-256 before and after. "removed_versions", the number of
            "removed_tokens" and "removed_samples" by feature, the fields of the fitted states that are "kept" and the
            time at which it "finished" follow. Without rows to remove, no file is written.
        """
        from daskprep.dataset.writing.deleting import purge_rows

        return purge_rows(self)

    def compact(self: Any) -> Dataset:
        """Merge the parts of appends into one with blocks of full size, for all readers at once, and return it.

        All stored rows keep their order and their encoding, deleted ones too, which a later `purge` removes. Row ids
        count on from part to part: the first of a part follows the largest of the parts before. The merged dataset is a
        new version, and older versions are gone. Loaders that are open must be created again, and their states are
        refused, as after an append. A dataset without appended rows is unchanged.

        Examples
        --------
        >>> import tempfile
        >>> import pandas as pd
        >>> import daskprep as dp
        >>> path = tempfile.mkdtemp() + "/sales.dp"
        >>> prep = dp.Preprocessor({"price": dp.Number(normalization=None)}, split=None)
        >>> dataset = prep.fit_write(pd.DataFrame({"price": [1.0, 2.0]}), path)
        >>> dataset = prep.append(pd.DataFrame({"price": [2.0, 1.0]}), path).compact()
        >>> dataset["train"].read("row_id")["row_id"].tolist(), len(dataset.datasets)
        ([0, 1, 2, 3], 1)
        """
        from daskprep.dataset.writing.compacting import compact_parts

        return compact_parts(self)


class SplitMethods:
    """Methods of a Split that return tensors."""

    @list_options(LoaderOptions, SharedOptions)
    def loader(self: Any, batch_size: int = 1024, **options: Unpack[LoaderOptions]) -> Loader:
        """Return batches of tensors for torch, shuffled and prefetched.

        Parameters
        ----------
        batch_size : int
            Rows of a batch over all ranks together; each rank gets ``batch_size / world_size`` of them.
        **options
            Options of the loader, such as `shuffle` and `columns`: see `Loader`.
        """
        from daskprep.dataset.loader import Loader

        check_names("loader", options, LoaderOptions.__annotations__)
        return Loader(self, batch_size, **options)

    def _for_model(self: Any, rows: Mapping[str, np.ndarray]) -> list[Any]:
        from daskprep.dataset.loader import rows_for_model

        return rows_for_model(self.dataset, rows)
