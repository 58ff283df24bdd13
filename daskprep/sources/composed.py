"""Sources composed of other sources: the concatenation of one source per split, and selected rows of a source."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
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
from daskprep.sources.frames import DaskSource
from daskprep.storage.layout import SPLITS

SPLIT = "split"

Mask = Callable[[int], np.ndarray]


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
