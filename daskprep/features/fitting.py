"""Learn and apply many features over a whole source: which passes are needed, and what each partition is told."""

from __future__ import annotations

import functools
import operator
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa

from daskprep import partitions
from daskprep.classes import RowCounts
from daskprep.errors import ColumnError, ConfigError, did_you_mean
from daskprep.features.base import MediaContract, noun_of
from daskprep.features.checking import decode_column, empty_arrays
from daskprep.features.matrix import side_by_side
from daskprep.features.missing import drops_missing, may_drop_rows
from daskprep.features.table import (
    PartitionCensus,
    Surroundings,
    around_while_learning,
    census_table,
    encode_table,
    kept_rows,
    naming,
    read_columns,
    scan_table,
    source_columns,
)
from daskprep.summaries import FrameSummary

if TYPE_CHECKING:
    from daskprep.features.base import Contract, Learned
    from daskprep.progress import Advance, Progress
    from daskprep.sources import Source

__all__ = [
    "beside",
    "check_columns",
    "decode_arrays",
    "empty_outputs",
    "encode_source",
    "learn_partitions",
    "learn_source",
    "surroundings",
    "survey",
    "tabulate_source",
    "told_ahead",
    "told_by_numbers",
]


AnyFeature = TypeVar("AnyFeature", bound="Contract")


def check_columns(features: Mapping[str, Contract], source: Source) -> None:
    """Raise ColumnError for a column that a feature reads and the source does not have."""
    for name, feature in features.items():
        for column in feature.reads(name):
            if column not in source.columns:
                raise ColumnError(
                    f'feature "{name}" reads column "{column}", which the data does not have.'
                    f"{did_you_mean(column, source.columns)} Its columns are: {_listed(source.columns)}"
                )


def beside(features: Mapping[str, AnyFeature], source: Source) -> dict[str, AnyFeature]:
    """Return features that read relative paths where the files of a source lie, or else in the current folder."""
    return {
        name: feature.beside(source.folders) if isinstance(feature, MediaContract) else feature
        for name, feature in features.items()
    }


def _listed(names: Sequence[str], most: int = 20) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def survey(
    features: Mapping[str, Contract], source: Source, split: Any = None, progress: Progress | None = None
) -> list[Surroundings]:
    """Take the census, if one is needed, and return what each partition must know of the others."""
    if (told := told_ahead(features, source, split)) is not None:
        return told
    around = _surveyed(features, split)
    columns = list(dict.fromkeys([*source_columns(around), *(split.columns if split is not None else ())]))
    source.require(columns)
    function, numbers = functools.partial(_census, around), range(source.npartitions)
    tell = _advance(progress, "counting", source)
    census = partitions.each(
        source,
        "census",
        function,
        columns or source.columns[:1],
        split,
        numbers,
        advance=None if tell is None else lambda one: tell(rows=one.rows),
    )
    return surroundings(around, census, split, functools.partial(_read_again, source, around, columns))


def told_ahead(features: Mapping[str, Contract], source: Source, split: Any = None) -> list[Surroundings] | None:
    """Return what each partition must know of the others if no census is needed for it, else None."""
    if _surveyed(features, split):
        return None
    if split is not None and (split.columns or (split.counts_rows and source.row_counts is None)):
        return None
    return told_by_numbers(source.row_counts or [0] * source.npartitions, split)


def told_by_numbers(rows: Sequence[int], split: Any) -> list[Surroundings]:
    """Return what partitions of so many rows must know where no cell decides: the numbers of their rows say all."""
    return surroundings({}, [PartitionCensus(count, {}, RowCounts(count, count)) for count in rows], split, None)


def _surveyed(features: Mapping[str, Contract], split: Any) -> dict[str, Contract]:
    return {
        name: feature
        for name, feature in features.items()
        if around_while_learning(feature) or (split is not None and drops_missing(feature))
    }


def surroundings(
    around: Mapping[str, Contract], census: Sequence[PartitionCensus], split: Any, read_again: Any
) -> list[Surroundings]:
    """Turn what the census found into what each partition must know; `read_again` is that of `Split.plan`."""
    told = _tell(around, census)
    if split is None:
        return told
    rows = split.plan([one.split for one in census], read_again)
    return [Surroundings(one.number, one.carries, chooser) for one, chooser in zip(told, rows, strict=True)]


def _census(around: Mapping[str, Contract], split: Any, number: int, table: pa.Table) -> PartitionCensus:
    del number
    return census_table(around, split, table)


def _read_again(
    source: Source, around: Mapping[str, Contract], columns: Sequence[str], function: Callable[..., Any]
) -> list[Any]:
    call = functools.partial(_look_again, around)
    return partitions.each(source, "census-again", call, columns, function, range(source.npartitions))


def _look_again(around: Mapping[str, Contract], function: Callable[..., Any], number: int, table: pa.Table) -> Any:
    del number
    return function(table, kept_rows(around, read_columns(around, table).columns))


def _tell(around: Mapping[str, Contract], census: Sequence[PartitionCensus]) -> list[Surroundings]:
    """Turn what every partition said of its edges into what each is told."""
    columns = {
        name: neighbours.carries([one.edges[name] for one in census])
        for name, feature in around.items()
        if census and name in census[0].edges and (neighbours := feature.around) is not None
    }
    return [Surroundings(i, {name: told[i] for name, told in columns.items()}) for i in range(len(census))]


def learn_source(
    features: Mapping[str, Contract],
    source: Source,
    *,
    split: Any = None,
    scratch: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Learned]:
    """Learn every feature from the training rows of a source, in one pass over its partitions."""
    check_columns(features, source)
    features = beside(features, source)
    told = survey(features, source, split, progress)
    columns = list(dict.fromkeys([*source_columns(features), *(split.assign_columns if split is not None else ())]))
    source.require(columns)
    tell = _advance(progress, "learning", source)
    advance = None if tell is None else lambda rows: tell(rows=rows)
    return learn_partitions(features, source, columns, _scan, dict(features), told, scratch=scratch, advance=advance)


def learn_partitions(
    features: Mapping[str, Contract],
    source: Source,
    columns: Sequence[str],
    summarize: partitions.Function,
    shared: Any,
    told: Sequence[Surroundings],
    *,
    scratch: str | None = None,
    measure: Callable[[Any], Any] | None = None,
    advance: Callable[[Any], None] | None = None,
) -> dict[str, Learned]:
    """Learn every feature from the summaries that ``summarize(shared, told, table)`` gives of the partitions.

    `advance` is called with what `measure` makes of each of them: the rows that were learned from, unless told.
    """
    with _scratch_folder(scratch) as folder:
        learned: dict[str, Learned] = partitions.fold(
            source,
            "scan",
            summarize,
            columns,
            shared,
            told,
            merge=functools.partial(_merge, folder),
            finish=functools.partial(_learn, folder, dict(features)),
            keys=list(features),
            measure=measure or _rows_learned,
            advance=advance,
        )
    for name, one in learned.items():
        _warn(name, features[name], one)
    return learned


def _advance(progress: Progress | None, stage: str, source: Source) -> Advance | None:
    """Begin a stage, if it is to be shown: then, results of partitions travel one by one."""
    if progress is None or not progress.enabled:
        return None
    return progress.stage(stage, total=source.npartitions, unit="partitions")


def _rows_learned(summary: FrameSummary) -> int:
    return max((column.rows for column in summary.columns.values()), default=0)


def _scan(features: Mapping[str, Contract], around: Surroundings, table: pa.Table) -> FrameSummary:
    return scan_table(features, around, table)


def _merge(folder: str, summaries: Sequence[FrameSummary]) -> FrameSummary:
    return functools.reduce(operator.add, summaries).bounded(folder)


def _learn(folder: str, features: Mapping[str, Contract], name: str, summaries: Sequence[FrameSummary]) -> Learned:
    column = functools.reduce(operator.add, [summary.columns[name] for summary in summaries]).bounded(folder)
    if not column.rows:
        raise ColumnError(f'column "{name}": there is no row to learn from (0 training rows)')
    with naming(name):
        learned: Learned = features[name].learn_column(column)
    return learned


def _warn(name: str, feature: Contract, learned: Learned) -> None:
    if advice := feature.advice(learned):
        warnings.warn(f'column "{name}" {advice}', UserWarning, stacklevel=2)
    if learned.invalid:
        samples = ", ".join(repr(sample) for sample in learned.invalid_samples)
        count = "1 cell" if learned.invalid == 1 else f"{learned.invalid} cells"
        warnings.warn(
            f'column "{name}": {count} cannot be read as {noun_of(feature)}, such as {samples}, and counted as missing'
            '; mend the data, or use invalid="raise" to stop at the first',
            UserWarning,
            stacklevel=2,
        )


@contextmanager
def _scratch_folder(parent: str | None) -> Iterator[str]:
    if parent is not None:
        parent = str(Path(parent).resolve())
        Path(parent).mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="daskprep-", dir=parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def empty_outputs(features: Mapping[str, Contract], learned: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return one array of 0 rows for each output, which tells its type and shape."""
    found: dict[str, np.ndarray] = {}
    for name, feature in features.items():
        with naming(name):
            found |= {name + output: array for output, array in empty_arrays(feature, learned[name]).items()}
    return found


def encode_source(features: Mapping[str, Contract], learned: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """Return the encoded arrays of a source by output: NumPy for data in memory, lazy Dask arrays for the rest."""
    check_columns(features, source)
    return _apply(_encode, features, learned, source, empty_outputs(features, learned))


def tabulate_source(features: Mapping[str, Contract], learned: Mapping[str, Any], source: Source) -> Any:
    """Return all encoded features of a source side by side in one 2-D array, NumPy or lazy Dask."""
    check_columns(features, source)
    empty = tabulate(features, learned, empty_outputs(features, learned))
    return _apply(_tabulate, features, learned, source, {"table": empty})["table"]


def tabulate(
    features: Mapping[str, Contract], learned: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Put encoded arrays side by side in one 2-D array of the smallest type that holds them all."""
    tables = [
        side_by_side(feature, {output: arrays[name + output] for output in feature.outputs}, learned[name])
        for name, feature in features.items()
    ]
    return tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1)


def decode_arrays(
    features: Mapping[str, Contract], learned: Mapping[str, Any], arrays: Mapping[str, Any]
) -> pd.DataFrame:
    """Turn encoded arrays back into values a person reads; arrays that are not given are left out."""
    if not isinstance(arrays, Mapping):
        raise ConfigError(f"arrays to decode must be given by output, as a mapping, not {type(arrays).__name__}")
    known = {name + output for name, feature in features.items() for output in feature.outputs}
    for key in arrays:
        if key not in known:
            raise ConfigError(f'there is no output "{key}" to decode.{did_you_mean(key, known)}')
    columns = {}
    for name, feature in features.items():
        given = {output: arrays[name + output] for output in feature.outputs if name + output in arrays}
        if len(given) == len(feature.outputs):
            with naming(name):
                columns[name] = decode_column(feature, given, learned[name])
    rows = {name: len(column) for name, column in columns.items()}
    if len(set(rows.values())) > 1:
        raise ConfigError(f"arrays to decode have different numbers of rows: {rows}")
    frame: pd.DataFrame = pa.table(columns).to_pandas()
    return frame


def _apply(
    function: partitions.Function,
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    source: Source,
    like: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    placed = beside(features, source)
    return partitions.arrays(
        source,
        function,
        source_columns(features),
        (placed, dict(learned)),
        _neighbourhood(placed, learned, source),
        like=like,
        rows=None if any(may_drop_rows(feature) for feature in features.values()) else source.row_counts,
    )


def _neighbourhood(
    features: Mapping[str, Contract], learned: Mapping[str, Any], source: Source
) -> partitions.Arguments:
    around = {name: feature for name, feature in features.items() if feature.around is not None}
    if not around:
        return [Surroundings(i) for i in range(source.npartitions)]
    combine = functools.partial(_tell, around)
    return partitions.exchanged(source, "census", _edges, source_columns(around), (around, dict(learned)), combine)


def _edges(state: tuple[Any, Any], number: int, table: pa.Table) -> PartitionCensus:
    del number
    features, learned = state
    return census_table(features, None, table, learned)


def _encode(state: tuple[Any, Any], around: Surroundings, table: pa.Table) -> dict[str, np.ndarray]:
    features, learned = state
    return encode_table(features, learned, around, table)


def _tabulate(state: tuple[Any, Any], around: Surroundings, table: pa.Table) -> dict[str, np.ndarray]:
    features, learned = state
    return {"table": tabulate(features, learned, encode_table(features, learned, around, table))}
