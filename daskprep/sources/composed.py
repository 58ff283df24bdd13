"""Sources composed of other sources: one for each split in sequence, selected rows, and rows of a function."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

from daskprep.errors import ColumnError, ConfigError, DaskprepError, MissingColumnError, did_you_mean
from daskprep.sources.base import (
    Fragment,
    FragmentListSource,
    FunctionFragment,
    ReadFunction,
    Source,
    content_key,
    repeat_text,
)
from daskprep.sources.frames import DaskSource, PandasSource, column_names, table_from_pandas, table_to_pandas
from daskprep.storage.layout import SPLITS

SPLIT = "split"

Mask = Callable[[int], np.ndarray]
Prepare: TypeAlias = Callable[[pd.DataFrame], pd.DataFrame]


class ComposedSource(FragmentListSource):
    """Fragments derived from fragments of other sources; if one source is in memory, this process reads all.

    Attributes
    ----------
    sources : mapping
        The underlying sources, by split or with the single key "".
    masks : sequence of callable
        For each partition, a function from its number of rows to a mask of the selected rows; empty: all rows.
    """

    def __init__(
        self, columns: list[str], fragments: Sequence[Fragment], sources: Mapping[str, Source], *, splits: bool
    ) -> None:
        """Take the fragments of the partitions; with `splits`, each of the `sources` is the source of a split."""
        super().__init__(columns, fragments)
        self.in_memory = any(source.in_memory for source in sources.values())
        self.reads_all = any(source.reads_all for source in sources.values())
        self.files = tuple(file for source in sources.values() for file in source.files)
        self.sources = sources
        self.masks: Sequence[Mask] = ()
        self.splits = sources if splits else {}
        self._first = next(iter(sources.values()))

    @property
    def record(self) -> Mapping[str, Any] | None:  # type: ignore[override]
        # A property, as the record of rows in memory is a digest of all cells, which only a write needs.
        if not self.splits:
            return self._first.record
        records = {name: source.record for name, source in self.splits.items()}
        return None if None in records.values() else {"splits": records}

    def identity(self) -> Any:
        """Return the identities of the sources and a digest of the masks; None if either is not available."""
        rows = {name: source.identity() for name, source in self.sources.items()}
        mask_key = content_key(self.masks)
        return None if None in rows.values() or mask_key is None else [rows, mask_key]

    @property
    def schema(self) -> pa.Schema:
        """The schema of the first source, with the column `SPLIT`."""
        return self._first.schema.append(pa.field(SPLIT, pa.string()))


def get_splits(frame: Any) -> Mapping[str, Any]:
    """Return the rows by split if `frame` is a mapping from splits or a source of one; otherwise an empty mapping."""
    if isinstance(frame, Source):
        return frame.splits
    return frame if isinstance(frame, Mapping) and any(name in frame for name in SPLITS) else {}


def combine_splits(
    frames: Mapping[str, Any], columns: Iterable[str] | None, open_source: Callable[..., Source]
) -> Source:
    """Return a source of the rows of all splits, train first, with a column `SPLIT`.

    ``open_source(frame, columns)`` opens one split. `columns` None: the columns of the first split. ColumnError for a
    column that only some splits have.
    """
    for name in frames:
        if name not in SPLITS:
            raise ConfigError(f"no split {name!r}.{did_you_mean(name, SPLITS)} Splits are: {', '.join(SPLITS)}")
    wanted = None if columns is None else [name for name in columns if name != SPLIT]
    sources: dict[str, Source] = {}
    failed: list[tuple[str, DaskprepError]] = []
    for name in (name for name in SPLITS if name in frames):
        try:
            sources[name] = open_source(frames[name], wanted)
        except DaskprepError as error:
            failed.append((name, error))
    for name, reason in failed:
        # A column absent from all splits may be a target, which new rows need not have: callers catch the error.
        error_type = ColumnError if sources and isinstance(reason, MissingColumnError) else type(reason)
        raise error_type(f'split "{name}": {reason}') from reason
    data_columns = (
        [name for name in next(iter(sources.values())).columns if name != SPLIT] if wanted is None else wanted
    )
    dask_frames = {name: source.frame for name, source in sources.items() if source.is_dask}
    if len(dask_frames) == len(sources):
        frames_with_split = [frame[data_columns].assign(**{SPLIT: name}) for name, frame in dask_frames.items()]
        joined: Source = DaskSource(sys.modules["dask.dataframe"].concat(frames_with_split), [*data_columns, SPLIT])
        joined.splits = sources
        return joined
    for name in dask_frames:
        raise ConfigError(f'split "{name}" is a Dask frame, but another is not: pass all as Dask frames, or as files')
    fragments = [
        FunctionFragment(functools.partial(_add_split_column, name, fragment.read), fragment.rows, fragment.nbytes)
        for name, source in sources.items()
        for fragment in source.fragments
    ]
    return ComposedSource([*data_columns, SPLIT], fragments, sources, splits=True)


def select_rows(source: Source, masks: Sequence[Mask], rows: Sequence[int]) -> Source:
    """Return a source of the rows of another that `masks` select; `rows` are their numbers by partition."""
    if source.is_dask:
        select = functools.partial(_select_frame_rows, masks)
        selected: Source = DaskSource(source.frame.map_partitions(select, meta=source.frame._meta), source.columns)
        selected.prepared_by = source.prepared_by
        return selected
    fragments = [
        FunctionFragment(functools.partial(_select_rows, mask, fragment.read), count, fragment.nbytes)
        for fragment, mask, count in zip(source.fragments, masks, rows, strict=True)
    ]
    selected = ComposedSource(source.columns, fragments, {"": source}, splits=False)
    selected.masks = list(masks)
    selected.prepared_by = source.prepared_by
    return selected


def _add_split_column(name: str, read: ReadFunction, columns: Sequence[str]) -> pa.Table:
    table = read([column for column in columns if column != SPLIT])
    return table.append_column(SPLIT, repeat_text(name, table.num_rows)).select(list(columns))


def _select_rows(mask: Mask, read: ReadFunction, columns: Sequence[str]) -> pa.Table:
    table = read(columns)
    return table.filter(pa.array(mask(table.num_rows)))


def _select_frame_rows(masks: Sequence[Mask], frame: Any, partition_info: Any = None) -> Any:
    return frame if partition_info is None else frame[masks[partition_info["number"]](len(frame))]


class PreparedSource(FragmentListSource):
    """The results of a function for the rows of another source, `raw`, partition by partition."""

    reads_all = True

    def __init__(self, raw: Source, function: Prepare) -> None:
        """Call the function once with a frame without rows, to determine the columns."""
        self.raw = raw
        self._function = function
        self.prepared_by = function_name(function)
        self.in_memory = raw.in_memory
        starts = list(accumulate(raw.row_counts or (), initial=0))
        if isinstance(raw, PandasSource):
            empty = raw.frame.iloc[:0]
        else:
            empty = table_to_pandas(raw.read(0, raw.columns).slice(0, 0) if raw.in_memory else raw.schema.empty_table())
        result = apply_function(function, empty)
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


def prepare_partition(frame: pd.DataFrame, function: Prepare, partition_info: Any = None) -> pd.DataFrame:
    """Return the result of the function for a partition of a Dask frame, whose number Dask passes."""
    return apply_function(function, frame, f"partition {(partition_info or {}).get('number')}")


def _read_prepared(
    function: Prepare, rows: Fragment | pd.DataFrame, raw: Sequence[str], partition: int, columns: Sequence[str]
) -> pa.Table:
    """Return columns of the function's result for a partition, which is read with the `raw` columns."""
    frame = rows if isinstance(rows, pd.DataFrame) else table_to_pandas(rows.read(raw))
    result = apply_function(function, frame, f"partition {partition}")
    if missing := [column for column in columns if column not in result]:
        raise ColumnError(
            f'{function_name(function)} returned no column "{missing[0]}" for partition {partition}, but did for a '
            "frame without rows: return the same columns for all frames"
        )
    return table_from_pandas(result, columns)


def apply_function(function: Prepare, frame: pd.DataFrame, where: str = "a frame without rows") -> pd.DataFrame:
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
