"""Turn whatever `fit` is given into a source."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from daskprep.errors import ConfigError
from daskprep.sources.base import Source
from daskprep.sources.composed import by_split, splits_of
from daskprep.sources.file_source import PARTITION_BYTES, read_files
from daskprep.sources.frames import DaskSource, PandasSource, is_dask_frame
from daskprep.sources.huggingface import HuggingFaceSource, is_dataset

_ACCEPTED = (
    "a pandas or Dask DataFrame, a Hugging Face Dataset, a Source, or paths, globs, folders or URLs of Parquet, CSV, "
    "TSV, JSON lines, Feather or Arrow IPC files, one or a list of them, or a dict of these by split"
)


def as_source(
    frame: Any,
    *,
    columns: Iterable[str] | None = None,
    partition_bytes: int = PARTITION_BYTES,
    partitions: int | None = None,
    **options: Any,
) -> Source:
    """Return the source of the rows of a frame or of files; a source is returned as it is.

    Parameters
    ----------
    frame : DataFrame, Dask DataFrame, datasets.Dataset, Source, str, path, list of paths, or dict of these by split
        Where the rows are. The options of `read_files` are for files alone. Of a dict, "split" is a column too.
    columns : iterable of str, optional
        The columns that will be read. The others may then be anything, and do not count towards
        `partition_bytes`.
    partition_bytes : int
        Of files and Hugging Face datasets: bytes of rows in memory that a partition holds at most, unless one row
        group or record holds more.
    partitions : int, optional
        Of these: in how many partitions they are read at least.
    **options
        Of files: what `read_files` takes besides.

    Examples
    --------
    >>> import pandas as pd
    >>> source = as_source(pd.DataFrame({"city": ["Rome", None], "price": [1.5, float("nan")]}))
    >>> source.row_counts
    [2]
    >>> source.read(0, ["price"]).to_pydict()
    {'price': [1.5, None]}
    """
    wanted = None if columns is None else list(dict.fromkeys(columns))
    if (frames := splits_of(frame)) and not isinstance(frame, Source):
        how: Any = {"partition_bytes": partition_bytes, "partitions": partitions, **options}
        return by_split(frames, wanted, lambda one, own: as_source(one, columns=own, **how))
    if isinstance(frame, Source):
        if wanted is not None:
            frame.require(wanted)
        return frame
    if isinstance(frame, pd.DataFrame):
        return PandasSource(frame, wanted)
    if is_dask_frame(frame):
        return DaskSource(frame, wanted)
    if is_dataset(frame):
        return HuggingFaceSource(frame, wanted, partition_bytes, partitions)
    listed = frame if isinstance(frame, list | tuple | set) else [frame]
    if all(isinstance(item, str | os.PathLike) for item in listed):
        return read_files(frame, columns=wanted, partition_bytes=partition_bytes, partitions=partitions, **options)
    raise ConfigError(f"{_described(frame)} is no source of rows; accepted are {_ACCEPTED}{_remedy(frame)}")


def _described(frame: Any) -> str:
    kind = type(frame)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(frame, list | tuple) and frame:
        return f"a {name} of {type(frame[0]).__qualname__}"
    return f"a {name}"


def _remedy(frame: Any) -> str:
    if hasattr(frame, "to_frame"):
        return "; for a single column use .to_frame()"
    if hasattr(frame, "to_pandas"):
        return "; use .to_pandas()"
    if type(frame).__module__.startswith("daskprep."):
        return "; the rows of a dataset are encoded already: iterate over the loader of a split"
    if hasattr(frame, "shape"):
        return "; use pandas.DataFrame(array, columns=[...])"
    if isinstance(frame, Mapping):
        return "; for one row use pandas.DataFrame([row])"
    if isinstance(frame, list | tuple) and frame and isinstance(frame[0], Mapping):
        return "; for rows use pandas.DataFrame(rows)"
    return ""
