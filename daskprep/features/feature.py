"""The base class of feature types: the contract as a scikit-learn estimator."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar, get_args

import numpy as np
import pandas as pd

from daskprep.columns.parametrized import OUTPUT, Estimator, check_is_fitted
from daskprep.columns.summaries.base import SummaryT
from daskprep.errors import ColumnError, ConfigError, did_you_mean
from daskprep.features.arrays import column_names, decode_arrays, untabulate
from daskprep.features.base import Contract, Learned, LearnedT, Y, cross_fit_folds, learners_from_y, validate
from daskprep.sources import Source, arrow_table, as_pandas, as_source, frame_of_array, is_frame, table_to_pandas
from daskprep.sources.arrow_types import narrow_table

AnyFeature = TypeVar("AnyFeature", bound="Feature[Any, Any]")
Container = Literal["default", "pandas", "polars"]


class FrameOutput(Estimator):
    """Mixin that returns tables in the container of `set_output`."""

    def set_output(self, *, transform: Container | None = None) -> Self:
        """Set the container that `transform` returns.

        ConfigError for others.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"} or None
            "default": a NumPy array, or a lazy Dask array for Dask frames and paths. "pandas": a frame with the names
            of `get_feature_names_out` and the index of the rows, lazy (Dask) for Dask frames and paths. "polars": a
            polars frame, for data in memory. None: unchanged. Until it is set,
            ``sklearn.set_config(transform_output=...)`` applies.
        """
        if transform is not None:
            if transform not in get_args(Container):
                raise ConfigError(
                    f'{type(self).__name__}: set_output(transform={transform!r}): use "default", "pandas" or "polars".'
                    + did_you_mean(transform, get_args(Container))
                )
            setattr(self, OUTPUT, {"transform": transform})
        return self

    @property
    def _output_container(self) -> Container:
        """Return the container of `set_output`, or scikit-learn's."""
        chosen: Container | None = getattr(self, OUTPUT, {}).get("transform")
        if chosen is None and "sklearn" in sys.modules:  # else nobody has set its configuration
            chosen = sys.modules["sklearn"].get_config()["transform_output"]
        return chosen or "default"

    def inverse_transform(self: Any, X: Any) -> pd.DataFrame:
        """Return human-readable values for the result of `transform`.

        As from `decode`, unseen categories are ``<UNK>``, and imputed cells stay without an indicator. ConfigError for
        lazy arrays.
        """
        from sklearn.utils import check_array  # noqa: PLC0415 it takes a second to import

        check_is_fitted(self)
        if hasattr(X, "compute"):
            raise ConfigError(f"{type(self).__name__}: inverse_transform is for data in memory: call X.compute() first")
        table = check_array(X, accept_sparse=True, dtype=None, ensure_all_finite=False, ensure_min_samples=0)
        table = table.toarray() if hasattr(table, "toarray") else table
        decoded = decode_arrays(self._inputs, self.learned_, untabulate(self._inputs, self.learned_, table))
        return decoded.set_axis(X.index) if isinstance(X, pd.DataFrame) else decoded

    def _wrap_output(self: Any, table: Any, rows: Any) -> Any:
        """Return a table in the container of `set_output`; ConfigError for a lazy one as polars."""
        if (container := self._output_container) == "default":
            return table
        names = list(self.get_feature_names_out())
        if not isinstance(table, np.ndarray):
            if container == "polars":
                raise ConfigError(
                    f'{type(self).__name__}: set_output(transform="polars") is for data in memory: use "pandas", which '
                    "returns a lazy Dask frame"
                )
            return table.to_dask_dataframe(columns=names)
        if container == "pandas":
            return pd.DataFrame(table, rows.index if isinstance(rows, pd.DataFrame) else None, names)
        try:
            import polars as pl  # noqa: PLC0415
        except ImportError as error:
            raise ImportError('set_output(transform="polars") needs polars: pip install polars') from error
        return pl.from_numpy(table, schema=names, orient="row")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.required = bool(learners_from_y(getattr(self, "_feature_specs", {"": self})))
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.transformer_tags.preserves_dtype = []
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class Feature(Contract[SummaryT, LearnedT], FrameOutput):
    """Base class of every feature type.

    ``Feature[S, L]`` summarizes to `S` and learns `L`, so that a type checker can follow values between its methods.
    A subclass stores its parameters in `__init__`, unchanged, and implements pure functions of Arrow and NumPy arrays.
    Missing cells are null in a parsed column. The base class fills them after `encode`, which may write any value.

    Parameters
    ----------
    missing_indicator : bool
        Whether a second output, "_missing", marks cells that were missing or unreadable.
    invalid : {"missing", "raise"}
        Whether a cell that cannot be read counts as missing or raises `RejectedValueError`.
    column : str or None
        Column to read, if its name differs from the feature's.

    Attributes
    ----------
    learned_ : dict of str to Learned
        The fitted state, by column.
    n_features_in_ : int
        Number of columns seen in `fit`.
    feature_names_in_ : ndarray of str
        Their names, if `fit` received a frame.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Set `learned_type`, and check parameters."""
        super().__init_subclass__(**kwargs)
        for type_argument in (arg for base in vars(cls).get("__orig_bases__", ()) for arg in typing.get_args(base)):
            if (
                isinstance(type_argument, type)
                and issubclass(type_argument, Learned)
                and "learned_type" not in vars(cls)
            ):
                cls.learned_type = type_argument
        if "kind" in vars(cls) and "semantic_type" not in vars(cls):
            cls.semantic_type = "others"  # a new type may decode to other values than the type that it extends
        _check_parameters(cls)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn each column of a frame, Arrow table or 2-D array."""
        from daskprep.passes.losses import tabulate_learned_losses, warn_about_losses  # noqa: PLC0415 passes import features
        from daskprep.passes.scanning import ScanPlan, scan_source  # noqa: PLC0415 as above

        validate(self)
        if extra_columns := [name for name in self._learning_columns if name != Y]:
            raise ConfigError(
                f'{type(self).__name__} learns from the column "{extra_columns[0]}" too: use it in a Preprocessor, '
                "since a transformer does not receive this column"
            )
        if (read := self.reads("")[0]) != "":
            raise ConfigError(
                f"{type(self).__name__}: column={read!r} is for features of a Preprocessor; "
                "a transformer reads the columns that it receives"
            )
        X = _to_frame(X)
        source = self._make_training_source(X, y)
        names = [name for name in source.columns if name != Y]
        features = dict.fromkeys(names, self)
        self.learned_: dict[str, Learned] = dict(scan_source(ScanPlan(features), source).states[0])
        warn_about_losses(tabulate_learned_losses(features, self.learned_), features, self.learned_, fitted=True)
        self.n_features_in_ = len(names)
        if is_frame(X) and all(isinstance(name, str) for name in X.columns):
            self.feature_names_in_ = np.asarray(X.columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def transform(self, X: Any) -> Any:
        """Encode the columns seen in `fit`."""
        from daskprep.passes.encoding import tabulate_source  # noqa: PLC0415 as above

        check_is_fitted(self)
        X = _to_frame(X)
        table = tabulate_source(dict.fromkeys(self.learned_, self), self.learned_, self._make_source(X))
        return self._wrap_output(table, X)

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit, and return the table of `transform`, cross-fitted."""
        from daskprep.passes.encoding import tabulate_cross_fitted  # noqa: PLC0415 as above

        X = _to_frame(X)
        features = dict.fromkeys(self.fit(X, y, **fit_params).learned_, self)
        if not cross_fit_folds(features):
            return self.transform(X)
        source = self._make_training_source(X, y)
        return self._wrap_output(tabulate_cross_fitted(features, self.learned_, list(features), source, None), X)

    @property
    def _inputs(self) -> dict[str, Self]:
        return dict.fromkeys(self.learned_, self)

    def _make_training_source(self, X: Any, y: Any) -> Source:
        return as_source(with_y({type(self).__name__: self}, as_frame(self, X), y))

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the columns of `transform`; ValueError if input_features differ."""
        check_is_fitted(self)
        names = list(self.learned_)
        if input_features is not None:
            input_names = [str(name) for name in input_features]
            if hasattr(self, "feature_names_in_") and input_names != names:
                raise ValueError("input_features is not equal to feature_names_in_")
            if len(input_names) != len(names):
                raise ValueError(f"input_features should have length {len(names)}, the number of features in fit")
            names = input_names
        columns = zip(names, self.learned_.values(), strict=True)
        return np.asarray([out for name, state in columns for out in column_names(self, name, state)], dtype=object)

    def _make_source(self, X: Any) -> Source:
        """Return a source of `X` with the columns seen in `fit`; ColumnError for others."""
        frame = as_frame(self, X)
        names = list(frame.columns)
        if len(names) != self.n_features_in_:
            raise ColumnError(
                f"X has {len(names)} features, but {type(self).__name__} is expecting {self.n_features_in_} features "
                f"as input"
            )
        if hasattr(self, "feature_names_in_") and is_frame(X) and names != list(self.feature_names_in_):
            raise ColumnError(_name_mismatch(names, list(self.feature_names_in_)))
        if names != list(self.learned_):
            frame = frame.rename(columns=dict(zip(names, self.learned_, strict=True)))
        return as_source(frame, columns=self.learned_)


@typing.dataclass_transform(eq_default=False, kw_only_default=True)
def with_parameters(cls: type[AnyFeature]) -> type[AnyFeature]:
    """Turn annotated fields of a class into keyword parameters."""
    feature_type = dataclass(kw_only=True, eq=False, repr=False)(cls)
    _check_parameters(feature_type)
    return feature_type


def _check_parameters(cls: type[Feature]) -> None:
    """Raise TypeError for a parameter that hides a method."""
    base_parameters = vars(Feature)["__dataclass_fields__"]
    for name in (name for name in inspect.signature(cls.__init__).parameters if name not in base_parameters):
        attribute = inspect.getattr_static(cls, name, None)
        if name == "kind" or hasattr(Feature, name) or inspect.isroutine(attribute) or isinstance(attribute, property):
            owner = next((base for base in cls.__mro__ if name in vars(base) and base is not Contract), Feature)
            raise TypeError(
                f'{cls.__name__}: the parameter "{name}" of __init__ hides {owner.__name__}.{name}, which daskprep '
                "uses: rename the parameter"
            )


def _to_frame(X: Any) -> Any:
    """Return a Series and Arrow data as pandas frames."""
    if isinstance(X, pd.Series):
        return X.to_frame("x0" if X.name is None else X.name)
    table = None if is_frame(X) else arrow_table(X)
    return X if table is None else table_to_pandas(narrow_table(table))


def with_y(features: Mapping[str, Contract], rows: Any, y: Any) -> Any:
    """Return rows with `y` as column `Y` if a feature needs it.

    Raise ConfigError if `y` is needed and is None, or if the rows are not in memory and no Dask frame.
    """
    if not (names := learners_from_y(features)):
        return rows
    if y is None:
        raise ConfigError(
            f'feature "{names[0]}" requires y to be passed, but the target y is None: use fit(X, y), or set target= '
            "of the feature to the name of a column, also of one in targets. A TargetEncoding of classes needs "
            'target_type="class" too'
        )
    frame = rows if is_frame(rows) else as_pandas(_to_frame(rows))
    if frame is None:
        raise ConfigError(
            f'feature "{names[0]}" cannot learn from y for rows of type {type(rows).__name__}: use target= with the '
            "name of a column"
        )
    if Y in frame.columns:
        raise ColumnError(f'the column "{Y}" has the name of the column for y: rename it')
    if isinstance(frame, pd.DataFrame):
        from sklearn.utils import check_consistent_length, column_or_1d  # noqa: PLC0415 as above

        y = y.array if isinstance(y, pd.Series) else column_or_1d(y, warn=True)
        check_consistent_length(frame, y)
    return frame.assign(**{Y: y})


def as_frame(estimator: Estimator, X: Any) -> Any:
    """Return a frame with named columns: x0, x1, ... for arrays."""
    if is_frame(X):
        if any(isinstance(name, str) for name in X.columns) or not len(X.columns):
            return X if len(X.columns) else frame_of_array(X, estimator)
        return X.rename(columns={name: f"x{i}" for i, name in enumerate(X.columns)})
    return frame_of_array(X, estimator)


def _name_mismatch(names: list[str], expected: list[str]) -> str:
    """Return scikit-learn's message about other columns than in `fit`."""
    message = "The feature names should match those that were passed during fit."
    for name in expected:
        if name not in names:
            return f'{message} Column "{name}" is missing.{did_you_mean(name, names)}'
    return f"{message} Feature names must be in the same order as they were in fit: {', '.join(expected)}."
