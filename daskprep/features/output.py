"""Containers for the results of `transform`: an array, or the frame that `set_output` chose."""

from __future__ import annotations

from collections import UserDict
from typing import Any, Literal, Self, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
from sklearn import get_config
from sklearn.base import BaseEstimator, TransformerMixin

from daskprep.display import EstimatorCard
from daskprep.errors import ConfigError, did_you_mean
from daskprep.storage.tables import arrow_column

Container = Literal["default", "pandas", "polars"]
CONFIG = "_sklearn_output_config"  # the attribute that scikit-learn's `clone` copies


class EncodedArrays(UserDict[str, Any]):
    """Encoded arrays by output, which Arrow, polars and DuckDB read as a table: `pyarrow.table(arrays)`."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        table = pa.table({name: arrow_column(array) for name, array in self.data.items()})
        return table.__arrow_c_stream__(requested_schema)


class FrameOutput(EstimatorCard, TransformerMixin, BaseEstimator, auto_wrap_output_keys=None):
    """Mixin that returns tables in the container that `set_output` chose; scikit-learn's wrapper would compute Dask."""

    def set_output(self, *, transform: Container | None = None) -> Self:
        """Set the container that `transform` returns.

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
            setattr(self, CONFIG, {"transform": transform})
        return self

    def _wrap_output(self: Any, table: Any, rows: Any) -> Any:
        """Return a table in the chosen container; `rows` are the input, whose index a pandas frame keeps."""
        container = getattr(self, CONFIG, {}).get("transform") or get_config()["transform_output"]
        if container == "default":
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
