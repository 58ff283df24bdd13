"""Sources whose rows a custom function prepares before all other steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import pandas as pd
import pyarrow as pa

from daskprep.errors import ColumnError, ConfigError
from daskprep.sources.base import Fragment, FragmentListSource, FunctionFragment, Source, content_key
from daskprep.sources.composed import combine_splits, get_splits
from daskprep.sources.frames import DaskSource, PandasSource, column_names, table_from_pandas, table_to_pandas
from daskprep.sources.opening import as_source

Prepare: TypeAlias = Callable[[pd.DataFrame], pd.DataFrame]


def prepared(frame: Any, function: Prepare, *, storage_options: Mapping[str, Any] | None = None) -> Source:
    """Return a source whose rows a function prepares, partition by partition.

    Parameters
    ----------
    frame : DataFrame, Dask DataFrame, datasets.Dataset, Source, str, path or list of paths
        The raw rows. With a dict of these by split, the function is called with rows of one split at a time.
    function : callable
        Takes a pandas frame and returns one with a row for each row, in the same order. The result of a row may not
        depend on other rows, because partitions may start at any row. It runs where partitions are read: on threads
        or on the workers of a cluster. A first call with an empty frame determines the columns of the result.
    storage_options : mapping or None
        Options for fsspec to open URLs, for files.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"price": [300.0, 200.0], "rooms": [3, 1]})
    >>> source = prepared(frame, lambda rows: rows.assign(each=rows["price"] / rows["rooms"]))
    >>> source.columns, source.read(0, ["each"])["each"].to_pylist()
    (['price', 'rooms', 'each'], [100.0, 200.0])
    """
    if not callable(function):
        raise ConfigError(f"prepare={function!r}: expected a function from a pandas frame to a pandas frame")
    if frames := get_splits(frame):
        source = combine_splits(
            frames, None, lambda split_frame, _: prepared(split_frame, function, storage_options=storage_options)
        )
        source.prepared_by = function_name(function)
        return source
    raw = as_source(frame, storage_options=storage_options)
    if not raw.is_dask:
        return PreparedSource(raw, function)
    result = raw.frame.map_partitions(_apply_to_dask, function, meta=_apply(function, raw.frame._meta))
    source = DaskSource(result)
    source.prepared_by = function_name(function)
    return source


class PreparedSource(FragmentListSource):
    """The results of a function for the rows of another source, `raw`, partition by partition."""

    reads_all = True

    def __init__(self, raw: Source, function: Prepare) -> None:
        self.raw = raw
        self._function = function
        self.prepared_by = function_name(function)
        self.in_memory = raw.in_memory
        starts = list(accumulate(raw.row_counts or (), initial=0))
        if isinstance(raw, PandasSource):
            empty = raw.frame.iloc[:0]
        else:
            empty = table_to_pandas(raw.read(0, raw.columns).slice(0, 0) if raw.in_memory else raw.schema.empty_table())
        result = _apply(function, empty)
        fragments = []
        for number, fragment in enumerate(raw.fragments):
            rows: Any = fragment
            if isinstance(raw, PandasSource):
                rows = raw.frame.iloc[starts[number] : starts[number + 1]]
            read_function = functools.partial(_read_prepared, function, rows, raw.columns, number)
            fragments.append(FunctionFragment(read_function, fragment.rows, fragment.nbytes))
        super().__init__(table_from_pandas(result, column_names(result.columns, None)).schema, fragments)

    def identity(self) -> Any:
        rows, function = self.raw.identity(), content_key(self._function)
        return None if rows is None or function is None else [rows, self.raw.columns, function]

    @property
    def folders(self) -> tuple[str, ...]:
        return self.raw.folders


def function_name(function: Any) -> str:
    """Return the module and qualified name of a function, or of the class of a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    owner = function if hasattr(function, "__qualname__") else type(function)
    return f"{owner.__module__}.{owner.__qualname__}"


def _apply_to_dask(frame: pd.DataFrame, function: Prepare, partition_info: Any = None) -> pd.DataFrame:
    return _apply(function, frame, f"partition {(partition_info or {}).get('number')}")


def _read_prepared(
    function: Prepare, rows: Fragment | pd.DataFrame, raw: Sequence[str], partition: int, columns: Sequence[str]
) -> pa.Table:
    """Return columns of the function's result for a partition, which is read with the `raw` columns."""
    frame = rows if isinstance(rows, pd.DataFrame) else table_to_pandas(rows.read(raw))
    result = _apply(function, frame, f"partition {partition}")
    if missing := [column for column in columns if column not in result]:
        raise ColumnError(
            f'{function_name(function)} returned no column "{missing[0]}" for partition {partition}, but did for a '
            "frame without rows: return the same columns for all frames"
        )
    return table_from_pandas(result, columns)


def _apply(function: Prepare, frame: pd.DataFrame, where: str = "a frame without rows") -> pd.DataFrame:
    """Return the result of the function for a frame, called `where` in messages; ColumnError for an invalid result."""
    name = function_name(function)
    try:
        result = function(frame.copy(deep=False))
    except Exception as error:
        error.add_note(f"while {name} prepared {where}")
        raise
    if not isinstance(result, pd.DataFrame) or len(result) != len(frame):
        returned = f"{len(result):,} rows" if isinstance(result, pd.DataFrame) else f"a {type(result).__name__}"
        raise ColumnError(
            f"{name} returned {returned} for {where}, which has {len(frame):,} rows. Return a pandas frame with a row "
            "for each, in the same order; to drop rows, set a cell to a missing value, and use missing_value_strategy="
            '"drop_row" for its feature'
        )
    if _is_reordered(frame.index, result.index):
        raise ColumnError(
            f"{name} changed the order of the rows of {where}: return them in the same order, for example with "
            ".sort_index(); the order may not depend on the partitions"
        )
    return result


def _is_reordered(before: pd.Index[Any], after: pd.Index[Any]) -> bool:
    """Return whether an index shows that rows were reordered; with new labels, it does not show that."""
    if after.equals(before) or not (before.is_unique and after.is_unique):
        return False
    return bool((before.get_indexer(after) >= 0).all())
