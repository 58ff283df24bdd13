"""Learn and apply many features over a whole source."""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from daskprep import partitions
from daskprep.display.words import listed
from daskprep.errors import ColumnError, ConfigError, did_you_mean, warn
from daskprep.features.base import Contract, Learned, MediaContract, all_outputs, noun_of, rows_seen
from daskprep.features.checking import all_empty_arrays, decode_column, empty_arrays
from daskprep.features.surroundings import (
    AnyFeature,
    Question,
    Rows,
    ask,
    assigning_columns,
    begin,
    dropping_missing,
    fold_columns,
    put_in_folds,
    survey,
    tell_folds,
    told_edges,
    untold,
)
from daskprep.features.table import (
    Parsed,
    Surroundings,
    completed_columns,
    edges_of,
    encode_columns,
    encoded_outputs,
    kept_rows,
    learning_columns,
    naming,
    summarize_columns,
)
from daskprep.progress import Progress
from daskprep.serving.base import MISSING
from daskprep.sources import Source
from daskprep.split import TRAIN, Splitter
from daskprep.storage.kept import Kept
from daskprep.storage.local_files import make_folder
from daskprep.summaries import ColumnSummary, FoldedSummary
from daskprep.summaries.rejects import SAMPLE_CHARACTERS

_NUMBERS = re.compile(r"-?[0-9][0-9,.e+-]*( numbers?)?")
_COLUMNS = 5  # of which one warning shows the cells
_SAMPLES = 1  # of each, if they are several


def located(features: Mapping[str, AnyFeature], source: Source, columns: Sequence[str] = ()) -> dict[str, AnyFeature]:
    """Return features that read what lies beside the files of a source; ColumnError for what the source does not have.

    `columns` are read besides, by split and balance.
    """
    for name, feature in features.items():
        for column in feature.reads(name):
            if column not in source.columns:
                raise ColumnError(
                    f'feature "{name}" reads column "{column}", which the data does not have.'
                    f"{did_you_mean(column, source.columns)} Its columns are: {listed(source.columns, 20)}"
                )
    source.require(columns)
    return beside(features, source)


def beside(features: Mapping[str, AnyFeature], source: Source) -> dict[str, AnyFeature]:
    """Return features that read relative paths where the files of a source lie, or else in the current folder."""
    return {
        name: feature.beside(source.folders) if isinstance(feature, MediaContract) else feature
        for name, feature in features.items()
    }


def learn_source(
    features: Mapping[str, Contract],
    source: Source,
    *,
    split: Splitter | None = None,
    scratch: str | None = None,
    kept: Kept | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Learned]]:
    """Learn every feature from the training rows of a source, in one pass over its partitions.

    With folds, the first state is of all rows, and those that follow are each without a fold. What tasks gave that a
    fit had finished before it was killed is taken from `kept`.
    """
    columns = list(dict.fromkeys([*assigning_columns(split), *learning_columns(features)]))
    features, rows = located(features, source, columns), Rows(source)
    told = tell_folds(rows, features, survey(rows, features, split, progress))
    advance = begin(progress, "learning", source)
    return learn_rows(rows, features, columns, told, scratch=scratch, kept=kept, advance=advance)


def learn_rows(
    rows: Rows,
    features: Mapping[str, Contract],
    columns: Sequence[str],
    told: Sequence[Surroundings],
    *,
    question: Question | None = None,
    scratch: str | None = None,
    kept: Kept | None = None,
    advance: Callable[[Any], None] | None = None,
) -> list[dict[str, Learned]]:
    """Learn every feature from the summaries of all partitions, of which the split reads `columns`; see `learn_source`.

    `question` gives something small and the summaries of the columns, in place of `_summarize`, and `advance` is called
    with the small thing of each partition: the rows that were learned from.
    """
    question = question or functools.partial(_summarize, dict(features))
    parent = None if scratch is None else make_folder(scratch, "scratch")
    with tempfile.TemporaryDirectory(prefix="daskprep-", dir=parent, ignore_cleanup_errors=True) as folder:
        learned: dict[str, list[Learned]] = partitions.fold(
            rows.asked(question, features, columns, told),
            "scan",
            merge=functools.partial(_merge, folder),
            finish=functools.partial(_learn, folder, dict(features)),
            keys=list(features),
            kept=kept,
            advance=advance,
        )
    _warn(features, {name: whole for name, (whole, *_) in learned.items()})
    return [dict(zip(learned, state, strict=True)) for state in zip(*learned.values(), strict=True)]


def _summarize(features: Mapping[str, Contract], *partition: Any) -> tuple[int, dict[str, ColumnSummary]]:
    columns = summarize_columns(features, *partition)
    return max((column.rows for column in columns.values()), default=0), columns


def _merge(folder: str, summaries: Sequence[ColumnSummary]) -> ColumnSummary:
    return functools.reduce(operator.add, summaries).bounded(folder)


def _learn(
    folder: str, features: Mapping[str, Contract], name: str, summaries: Sequence[ColumnSummary]
) -> list[Learned]:
    column = functools.reduce(operator.add, summaries)
    if not column.rows:
        raise ColumnError(f'column "{name}": there are no training rows to fit on: add some, or fit_on="all"')
    with naming(name):
        states = column.states(folder) if isinstance(column, FoldedSummary) else [column]
        return [features[name].learn_column(state.bounded(folder)) for state in states]


def _warn(features: Mapping[str, Contract], learned: Mapping[str, Learned]) -> None:
    """Warn once of all columns with one piece of advice, and once of all unreadable cells."""
    advised: dict[str, dict[str, str]] = {}
    for name, one in learned.items():
        if one.invalid < one.rows and (advice := features[name].advice(one)):
            advised.setdefault(_NUMBERS.sub("", advice), {})[f'"{name}"'] = advice
    for alike in advised.values():
        (first, advice), *others = alike.items()
        if others and len(set(alike.values())) == 1:
            warn(f"each of the columns {listed(list(alike), _COLUMNS)} {advice}")
        else:
            more = f"; likewise {listed([name for name, _ in others], _COLUMNS)}" if others else ""
            warn(f"column {first} {advice}{more}")
    unreadable = {name: one for name, one in learned.items() if one.invalid}
    if not unreadable:
        return
    most = _SAMPLES if len(unreadable) > 1 else None
    columns = [
        f'column "{name}": {one.invalid:,} of {rows_seen(features[name], one):,} cells cannot be read as '
        f"{noun_of(features[name])}, such as {', '.join(map(_shown, one.invalid_samples[:most]))}"
        for name, one in unreadable.items()
    ]
    more = f"; and {len(columns) - _COLUMNS:,} more columns" if len(columns) > _COLUMNS else ""
    remedies = dict.fromkeys(features[name]._remedy(one) for name, one in unreadable.items())
    warn(
        f"{'; '.join(columns[:_COLUMNS])}{more}, and counted as missing; {', '.join(remedies)}, or use "
        'invalid="raise" to stop at the first'
    )


def _shown(cell: str) -> str:
    return f"{cell!r}{'...' * (len(cell) == SAMPLE_CHARACTERS)}"


def empty_outputs(features: Mapping[str, Contract], learned: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return one array of 0 rows for each output, which tells its type and shape."""
    found: dict[str, np.ndarray] = {}
    for name, feature in features.items():
        with naming(name):
            found |= {name + output: array for output, array in all_empty_arrays(feature, learned[name]).items()}
    return found


def encode_source(features: Mapping[str, Contract], learned: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """Return the encoded arrays of a source by output: NumPy for data in memory, lazy Dask arrays for the rest."""
    return _apply(encode_columns, features, learned, source, empty_outputs)


def tabulate_source(features: Mapping[str, Contract], learned: Mapping[str, Any], source: Source) -> Any:
    """Return all encoded features of a source side by side in one 2-D array, NumPy or lazy Dask."""
    return _apply(_tabulate, features, learned, source, _empty_table)["table"]


def tabulate_cross_fitted(
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    inputs: Sequence[str],
    source: Source,
    split: Splitter | None,
) -> Any:
    """Return what `tabulate_source` does of some features, but of training rows what datasets hold of them."""
    columns = [*assigning_columns(split), *fold_columns(features)]
    features, rows = located(features, source, columns), Rows(source)
    told = tell_folds(rows, features, survey(rows, features, split))
    if around := {name: feature for name, feature in features.items() if feature.around is not None}:
        dropping = dropping_missing(features)
        question = functools.partial(_edges, around, dict(learned), dropping)
        census = ask(rows, "census", question, {**dropping, **around}, assigning_columns(split), told)
        edges = told_edges(around, census)
        told = [dataclasses.replace(one, carries=edge.carries) for one, edge in zip(told, edges, strict=True)]
    wanted = {name: features[name] for name in inputs}
    question = functools.partial(_tabulate_cross_fitted, wanted, features, dict(learned))
    like = functools.partial(_empty_table, wanted, learned)
    return partitions.arrays(rows.asked(question, features, columns, told), like=like)["table"]


def _tabulate_cross_fitted(
    inputs: Mapping[str, Contract],
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    told: Surroundings,
    parsed: Parsed,
    table: pa.Table,
) -> dict[str, np.ndarray]:
    splits = _splits(told, features, parsed, table)
    columns = completed_columns(features, learned, told, parsed, table, splits=splits)
    training = np.ones(parsed.rows, bool) if splits is None else splits == TRAIN
    put_in_folds(features, told, table, columns, training)
    arrays = dict(encoded_outputs(inputs, learned, columns, np.ones(parsed.rows, bool)))
    return {"table": tabulate(inputs, learned, arrays)}


def tabulate(
    features: Mapping[str, Contract], learned: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Put encoded arrays side by side in one 2-D array of the smallest type that holds them all.

    A type may put something else there by a method `tabulate`, and give other names by `tabulated_names`.
    """
    tables: list[np.ndarray] = []
    for name, feature in features.items():
        with naming(name):
            given = {output: arrays[name + output] for output in all_outputs(feature)}
            if (own := getattr(feature, "tabulate", None)) is not None:
                tables.append(own(given, learned[name]))
            else:
                tables += [
                    given[output].reshape(len(given[output]), _width(given[output])) for output in feature.outputs
                ]
            if feature.missing_indicator:
                tables.append(given[MISSING][:, None])
    return tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1)


def column_names(feature: Contract, name: str, learned: Learned) -> list[str]:
    """Return the names of the columns that `tabulate` makes of a feature."""
    marks = [name + MISSING] * feature.missing_indicator
    if (own := getattr(feature, "tabulated_names", None)) is not None:
        return [*own(name, learned), *marks]
    names = []
    for output, array in empty_arrays(feature, learned).items():
        names += [name + output] if array.ndim == 1 else [f"{name}{output}_{i}" for i in range(_width(array))]
    return names + marks


def _width(array: np.ndarray) -> int:
    return int(np.prod(array.shape[1:]))


def decode_arrays(
    features: Mapping[str, Contract], learned: Mapping[str, Any], arrays: Mapping[str, Any]
) -> pd.DataFrame:
    """Turn encoded arrays back into human-readable values; arrays that are not given are left out."""
    if not isinstance(arrays, Mapping):
        raise ConfigError(
            f"arrays to decode must be given by output, as a mapping, not {type(arrays).__name__}: of a batch of "
            "inputs and targets, each by itself"
        )
    known = {name + output for name, feature in features.items() for output in all_outputs(feature)}
    for key in arrays:
        if key not in known:
            raise ConfigError(f'there is no output "{key}" to decode.{did_you_mean(key, known)}')
    columns = {}
    for name, feature in features.items():
        given = {output: arrays[name + output] for output in all_outputs(feature) if name + output in arrays}
        if all(output in given for output in feature.outputs):
            with naming(name):
                columns[name] = decode_column(feature, given, learned[name])
    rows = {name: len(column) for name, column in columns.items()}
    if len(set(rows.values())) > 1:
        raise ConfigError(f"arrays to decode have different numbers of rows: {rows}")
    frame: pd.DataFrame = pa.table(columns).to_pandas(integer_object_nulls=True)
    return frame


def _apply(
    function: Callable[..., dict[str, np.ndarray]],
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    source: Source,
    empty: Callable[..., dict[str, np.ndarray]],
) -> dict[str, Any]:
    """Return what a function makes of every partition; `empty` makes arrays of the same types without rows."""
    features, rows = located(features, source), Rows(source)
    question = functools.partial(function, features, dict(learned))
    work = rows.asked(question, features, (), neighbourhood(features, learned, rows))
    return partitions.arrays(work, like=functools.partial(empty, features, learned))


def neighbourhood(features: Mapping[str, Contract], learned: Mapping[str, Any], rows: Rows) -> partitions.Arguments:
    """Return what the task of each partition must know of the others to encode its rows."""
    around = {name: feature for name, feature in features.items() if feature.around is not None}
    told = untold(rows.source.npartitions)
    if not around:
        return told
    question = functools.partial(_edges, around, {name: learned[name] for name in around}, {})
    work = rows.asked(question, around, (), told)
    return partitions.exchanged(work, "census", functools.partial(told_edges, around))


def _edges(
    around: Mapping[str, Contract],
    learned: Mapping[str, Any],
    dropping: Mapping[str, Contract],
    told: Surroundings,
    parsed: Parsed,
    table: pa.Table,
) -> dict[str, Any]:
    return edges_of(around, parsed, learned, _splits(told, dropping, parsed, table))


def _splits(told: Surroundings, features: Mapping[str, Contract], parsed: Parsed, table: pa.Table) -> np.ndarray | None:
    return None if told.rows is None else told.rows.assign(table, kept_rows(features, parsed.columns))


def _tabulate(features: Mapping[str, Contract], learned: Mapping[str, Any], *given: Any) -> dict[str, np.ndarray]:
    return {"table": tabulate(features, learned, encode_columns(features, learned, *given))}


def _empty_table(features: Mapping[str, Contract], learned: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {"table": tabulate(features, learned, empty_outputs(features, learned))}
