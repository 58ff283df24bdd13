"""What `transform` gives: an array, or the frame that `set_output` asks for."""

from __future__ import annotations

from typing import Any, Literal, Self, get_args

import numpy as np
import pandas as pd
from sklearn import get_config  # type: ignore[attr-defined]
from sklearn.base import BaseEstimator, TransformerMixin

from daskprep.errors import ConfigError, did_you_mean

Container = Literal["default", "pandas", "polars"]
_CONFIG = "_sklearn_output_config"  # where scikit-learn's `clone` looks for it


class FrameOutput(TransformerMixin, BaseEstimator, auto_wrap_output_keys=None):
    """Gives tables of numbers in the container that was asked for; scikit-learn's own wrapper would compute Dask's."""

    def set_output(self, *, transform: Container | None = None) -> Self:
        """Set what `transform` gives.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"} or None
            "default" is an array: NumPy, and a lazy Dask array for Dask frames and paths. "pandas" is a frame with the
            names of `get_feature_names_out` and the index of the rows, of Dask frames and paths a lazy Dask frame.
            "polars" is for data in memory. None leaves it as it is. Until it is set,
            ``sklearn.set_config(transform_output=...)`` counts.
        """
        if transform is not None:
            if transform not in get_args(Container):
                raise ConfigError(
                    f'{type(self).__name__}: set_output(transform={transform!r}): give "default", "pandas" or "polars".'
                    + did_you_mean(transform, get_args(Container))
                )
            setattr(self, _CONFIG, {"transform": transform})
        return self

    def _put_out_as(self, other: FrameOutput) -> Self:
        return self.set_output(**getattr(other, _CONFIG, {}))

    def _contained(self: Any, table: Any, rows: Any) -> Any:
        """Return a table in the container that was asked for; `rows` are what it was made of."""
        container = getattr(self, _CONFIG, {}).get("transform") or get_config()["transform_output"]
        if container == "default":
            return table
        names = list(self.get_feature_names_out())
        if not isinstance(table, np.ndarray):
            if container == "polars":
                raise ConfigError(
                    f'{type(self).__name__}: set_output(transform="polars") is for data in memory: use "pandas", which '
                    "gives a lazy Dask frame"
                )
            return table.to_dask_dataframe(columns=names)
        if container == "pandas":
            return pd.DataFrame(table, rows.index if isinstance(rows, pd.DataFrame) else None, names)
        try:
            import polars as pl  # noqa: PLC0415
        except ImportError as error:
            raise ImportError('set_output(transform="polars") needs polars: pip install polars') from error
        return pl.from_numpy(table, schema=names, orient="row")
