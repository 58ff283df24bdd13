"""The scikit-learn face of a feature: a frame of one or more columns in, a 2-D array out."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from daskprep.errors import ColumnError, ConfigError, did_you_mean
from daskprep.features.base import Learned, validate
from daskprep.features.fitting import learn_source, tabulate_source
from daskprep.features.matrix import column_names
from daskprep.features.output import FrameOutput
from daskprep.sources import Source, arrow_table, as_source, is_frame, table_to_pandas
from daskprep.sources.arrow_types import narrow_table


class Estimator(FrameOutput, auto_wrap_output_keys=None):
    """Fit and transform every column of a frame separately.

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
        # scikit-learn's set_output wrapper would compute a Dask frame to wrap it in a pandas one.
        kwargs.setdefault("auto_wrap_output_keys", None)
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit each column of a frame (pandas or Dask) or 2-D array."""
        feature: Any = self
        validate(feature)
        if learned_from := feature._learning_columns:
            raise ConfigError(
                f'{type(self).__name__} learns from the column "{learned_from[0]}" too: use it in a Preprocessor, '
                "since a transformer is not given this column"
            )
        if (read := feature.reads("")[0]) != "":
            raise ConfigError(
                f"{type(self).__name__}: column={read!r} is for features of a Preprocessor; "
                "a transformer reads the columns that it is given"
            )
        X = _framed(X)
        source = as_source(as_frame(self, X))
        features = dict.fromkeys(source.columns, feature)
        self.learned_: dict[str, Learned] = learn_source(features, source)[0]
        self.n_features_in_ = len(source.columns)
        if is_frame(X) and all(isinstance(name, str) for name in X.columns):
            self.feature_names_in_ = np.asarray(X.columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def transform(self, X: Any) -> Any:
        """Encode the columns seen in `fit`: NumPy, a lazy Dask array for Dask frames, or as `set_output` says."""
        check_is_fitted(self)
        X = _framed(X)
        source = self._checked_source(X)
        features: dict[str, Any] = dict.fromkeys(self.learned_, self)
        return self._contained(tabulate_source(features, self.learned_, source), X)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the columns that `transform` returns."""
        check_is_fitted(self)
        names = list(self.learned_)
        if input_features is not None:
            given = [str(name) for name in input_features]
            if hasattr(self, "feature_names_in_") and given != names:
                raise ValueError("input_features is not equal to feature_names_in_")
            if len(given) != len(names):
                raise ValueError(f"input_features should have length {len(names)}, the number of features in fit")
            names = given
        feature: Any = self
        columns = zip(names, self.learned_.values(), strict=True)
        return np.asarray([out for name, one in columns for out in column_names(feature, name, one)], dtype=object)

    def _checked_source(self, X: Any) -> Source:
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
        return as_source(frame)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[no-untyped-call]
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.transformer_tags.preserves_dtype = []
        return tags


def _framed(X: Any) -> Any:
    table = None if is_frame(X) else arrow_table(X)
    return X if table is None else table_to_pandas(narrow_table(table))


def as_frame(estimator: BaseEstimator, X: Any) -> Any:
    """Return frames as they are, and arrays as a pandas frame with columns x0, x1, ..."""
    if is_frame(X):
        if any(isinstance(name, str) for name in X.columns) or not len(X.columns):
            return X if len(X.columns) else check_array(X, estimator=estimator)
        return X.rename(columns={name: f"x{i}" for i, name in enumerate(X.columns)})
    array = check_array(X, dtype=None, ensure_all_finite=False, estimator=estimator)
    return pd.DataFrame(array, columns=[f"x{i}" for i in range(array.shape[1])])


def _name_mismatch(given: list[str], expected: list[str]) -> str:
    message = "The feature names should match those that were passed during fit."
    for name in expected:
        if name not in given:
            return f'{message} Column "{name}" is missing.{did_you_mean(name, given)}'
    if unseen := [name for name in given if name not in expected]:
        return f'{message} Column "{unseen[0]}" was not seen in fit.'
    return f"{message} Feature names must be in the same order as they were in fit: {', '.join(expected)}."
