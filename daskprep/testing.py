"""Checks of a feature type against its contract, as `check_estimator` of scikit-learn checks estimators."""

from __future__ import annotations

import functools
import json
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from daskprep.columns.parametrized import clone
from daskprep.columns.summaries import ColumnSummary
from daskprep.dataset.loader.batches import make_expanders
from daskprep.errors import ColumnError, ConfigError, ContractError, DaskprepError
from daskprep.extensions.media.audio import encode_wav
from daskprep.extensions.media.pixels import encode_png
from daskprep.features.base import Learned, validate
from daskprep.features.checking import decode_column
from daskprep.features.feature import Feature
from daskprep.passes.contexts import ContextPlan
from daskprep.passes.encoding import encode_source
from daskprep.passes.engine import PartitionReader, Pass, run_pass
from daskprep.passes.scanning import ScanPlan, scan_source
from daskprep.passes.table import parse_columns, summarize_columns
from daskprep.sources import TableSource, as_source

__all__ = ["check_feature"]

_NAME = "x"
_SHARED_PARAMETERS = ("missing_value_strategy", "fill_value", "invalid", "column")
_MISSING_EVERY = 4  # every fourth cell of `table_with_missing` is missing
_H3_CELLS = (
    "8928308280fffff", "8928308283bffff", "85283473fffffff", "8001fffffffffff", "821c07fffffffff", "85283447fffffff",
)  # fmt: skip
_CELL_ORDER = (0, 1, 0, 2, 3, 0, 1, 4, 5, 2, 0, 3)  # positions of six different cells, some of them repeated


def __dir__() -> list[str]:
    return __all__


def check_feature(feature: Feature, column: Any = None) -> None:
    """Raise `ContractError` if a custom feature type breaks the contract of feature types.

    Parameters
    ----------
    feature : Feature
        The feature to check, with its parameters.
    column : sequence or None
        About a dozen values that the feature can read, none of them missing. None: generated words, dates, vectors,
        numbers, images or audio, the first of these that the feature can read.

    Examples
    --------
    >>> from daskprep import Number
    >>> from daskprep.testing import check_feature
    >>> class Forgetful(Number):
    ...     def decode(self, encoded, learned):
    ...         return super().decode(encoded[::-1], learned)
    >>> check_feature(Number())
    >>> check_feature(Forgetful())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    daskprep.errors.ContractError: Forgetful fails the check "decode", which expects ... Found: ...
    """
    validate(feature)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # advice on columns is not useful for generated ones
        expected = "__init__ to store each parameter unchanged and to do nothing else"
        _run_check("parameters", feature, expected, lambda: _check_parameters(feature))
        feature = clone(feature).set_params(column=None)
        trial = _Trial(feature, _find_readable_table(feature) if column is None else _make_table(feature, column))
        for name, (check, expected) in _CHECKS.items():
            _run_check(name, feature, expected, functools.partial(check, trial))


class _Violation(Exception):  # noqa: N818
    pass


def _run_check(name: str, feature: Feature, expected: str, check: Callable[[], None]) -> None:
    """Run a check; raise ContractError for any exception."""
    try:
        check()
    except Exception as error:
        actual = str(error) if isinstance(error, _Violation) else f"{type(error).__name__}: {error}"
        raise ContractError(
            f'{type(feature).__name__} fails the check "{name}", which expects {expected}. Found: {actual}'
        ) from error


@dataclass(frozen=True)
class _Trial:
    """A feature, and a table of cells that it can read."""

    feature: Feature
    table: pa.Table

    @functools.cached_property
    def features(self) -> dict[str, Feature]:
        return {_NAME: self.feature}

    @functools.cached_property
    def learned(self) -> Learned:
        return self.learn([self.table])

    @functools.cached_property
    def table_with_missing(self) -> pa.Table:
        rows = np.arange(self.table.num_rows)
        return self.table.take(pa.array(rows, mask=rows % _MISSING_EVERY == _MISSING_EVERY - 1))

    def missing(self, *, typed: bool) -> pa.Table:
        rows = pa.nulls(3, pa.int64())
        return self.table.take(rows) if typed else pa.table({name: pa.nulls(3) for name in self.table.column_names})

    def learn(self, tables: Sequence[pa.Table]) -> Learned:
        return scan_source(ScanPlan(self.features), TableSource(tables)).states[0][_NAME]

    def summarize(self, tables: Sequence[pa.Table]) -> list[ColumnSummary]:
        reader = PartitionReader(TableSource(tables))
        work = Pass("scan", functools.partial(summarize_columns, self.features), self.features)
        summaries = run_pass(reader, work, ContextPlan(self.features).make_contexts(reader))
        return [by_column[_NAME] for _, by_column in summaries]

    def encode(self, tables: Sequence[pa.Table], learned: Learned) -> dict[str, np.ndarray]:
        return encode_source(self.features, {_NAME: learned}, TableSource(tables))

    def decode(self, encoded: dict[str, np.ndarray], learned: Learned) -> pa.Array:
        outputs = {output: encoded[_NAME + output] for output in self.feature.outputs}
        return decode_column(self.feature, outputs, learned)


def _make_table(feature: Feature, column: Any) -> pa.Table:
    """Return a table with the cells in each column to read; ConfigError for unreadable ones."""
    frame = pd.DataFrame({name: pd.Series(column).reset_index(drop=True) for name in feature.reads(_NAME)})
    source = as_source(frame)
    table = source.read(0, source.columns)
    if not table.num_rows or parse_columns({_NAME: feature}, table).columns[_NAME].null_count:
        raise ConfigError(f"{type(feature).__name__} cannot read all cells of the column: pass cells that it can read")
    return table


def _find_readable_table(feature: Feature) -> pa.Table:
    """Return the first generated table that it can read; ConfigError without one."""
    for cells in _generate_columns():
        # Cells that a type cannot read raise one of these, or become missing, which `_make_table` refuses.
        with suppress(ValueError, TypeError, NotImplementedError):
            trial = _Trial(feature, _make_table(feature, cells))
            trial.learn([trial.table])
            return trial.table
    raise ConfigError(
        f"{type(feature).__name__} reads none of the columns that check_feature generates: pass cells as column="
    )


def _generate_columns() -> Iterator[list[Any]]:
    """Yield cells of many kinds: text, numbers, files; of similar kinds, first the one that fewer types can read."""
    kinds: list[list[Any]] = [
        ["red fox", "blue", "blue hare", "red hare red", "grey", "fox grey blue"],
        ["yes", "no", "no", "yes", "yes", "no"],
        ["2021-03-05 10:20:30", "1999-12-31", "2024-02-29 23:59:59", "1970-01-01", "2010-10-10", "2001-07-01 01:02:03"],
        list(_H3_CELLS),
        ["0.5 1.25 -2", "3 0 1", "2.5 2.5 2.5", "-1 -2 -3", "0 0 0", "10 20 30"],
        [1.5, -2.0, 300.0, 0.0, 7.25, -40.5],
        [encode_png(pixels) for pixels in np.random.default_rng(0).integers(0, 256, (6, 4, 6, 3), np.uint8)],
        [encode_wav(samples, 1_000) for samples in np.random.default_rng(0).uniform(-1, 1, (6, 200))],
    ]
    for cells in kinds:
        yield [cells[index] for index in _CELL_ORDER]


def _check_parameters(feature: Feature) -> None:
    """Raise _Violation unless parameters are stored unchanged."""
    kind = type(feature)
    names = list(feature.get_params(deep=False))
    if lacking := [name for name in _SHARED_PARAMETERS if name not in names]:
        raise _Violation(f"no parameter {lacking[0]}, which all types have")
    marks: dict[str, Any] = {name: object() for name in names}
    created = kind(**marks)
    for name, mark in marks.items():
        if getattr(created, name, None) is not mark:
            raise _Violation(f"another {name} than was passed")
    if extra := sorted(vars(created).keys() - marks.keys()):
        raise _Violation(f"an attribute {extra[0]}, which is no parameter")
    copy = clone(feature)
    if copy.set_params(**feature.get_params(deep=False)) is not copy:
        raise _Violation("set_params that does not return the feature")


def _check_no_cells(trial: _Trial) -> None:
    """Check that a column without rows is learned and encoded."""
    for empty in (trial.table.slice(0, 0), trial.missing(typed=False).slice(0, 0)):
        trial.summarize([empty])
        trial.learn([empty, trial.table])
        encoded = trial.encode([empty], trial.learned)
        trial.decode(encoded, trial.learned)


def _check_encode(trial: _Trial) -> None:
    for tables in ([trial.table], [trial.table.slice(1)], _split_rows(trial.table, 1)):
        trial.encode(tables, trial.learned)


def _check_missing(trial: _Trial) -> None:
    """Check that partitions of missing cells are learned and encoded."""
    for missing in (trial.missing(typed=True), trial.missing(typed=False)):
        learned = trial.learn([missing, trial.table, missing])
        trial.encode([missing, trial.table, missing], learned)
        # A column without values may have nothing to learn or to impute.
        with suppress(DaskprepError):
            trial.encode([missing], trial.learn([missing]))


def _check_merge(trial: _Trial) -> None:
    """Raise _Violation if states depend on the order of merges."""
    tables = [*_split_rows(trial.table_with_missing, 1), trial.missing(typed=True)]
    parts = trial.summarize(tables)
    halves = [functools.reduce(operator.add, half) for half in (parts[::2], parts[1::2])]
    merged = [functools.reduce(operator.add, order) for order in (parts, parts[::-1], halves)]
    _compare_learned([trial.feature.learn_column(summary) for summary in merged])
    values = merged[0].values
    _compare_learned([trial.feature.learn(values + values), trial.feature.learn(values * 2)])


def _check_partitions(trial: _Trial) -> None:
    """Raise _Violation if states or rows depend on partitions."""
    table = trial.table_with_missing
    empty = table.slice(0, 0)
    cuts = [
        [table],
        _split_rows(table, 1),
        [empty, *_split_rows(table, 5), empty],
        [chunk for one in _split_rows(table, 3) for chunk in (one, empty)],
    ]
    learned = [trial.learn(tables) for tables in cuts]
    _compare_learned(learned)
    reference, *others = (trial.encode(tables, learned[0]) for tables in cuts)
    for other in others:
        for output, array in reference.items():
            if not np.array_equal(array, other[output], equal_nan=array.dtype.kind == "f"):
                raise _Violation(f"{_first_difference(array, other[output])} in other partitions")


def _check_state(trial: _Trial) -> None:
    """Raise _Violation if a state reads as another."""
    learned = trial.learn([trial.table_with_missing])
    read = trial.feature.learned_type.from_dict(json.loads(json.dumps(learned.to_dict(), allow_nan=False)))
    if read != learned:
        raise _Violation(f"{_shorten(read)} in place of {_shorten(learned)}")


def _check_decode(trial: _Trial) -> None:
    """Check that a decoded output encodes to the same row again."""
    encoded = trial.encode([trial.table], trial.learned)
    decoded = trial.decode(encoded, trial.learned)
    cells = trial.table.slice(0, len(decoded)).set_column(0, _NAME, decoded)
    try:
        reencoded = trial.encode([cells], trial.learned)
    except ColumnError:
        return  # a decoded value, such as a list of audio frames, need not be readable as a cell
    # With several outputs, decoding may use only one of them, so only one must be the same.
    if not any(_are_close(array, reencoded[output]) for output, array in encoded.items()):
        raise _Violation(
            f"{_first_difference(*(arrays[min(encoded)] for arrays in (encoded, reencoded)))}, decoded and encoded"
        )


def _check_expand(trial: _Trial) -> None:
    """Raise _Violation if rows expand otherwise than in a batch."""
    encoded = trial.encode([trial.table], trial.learned)
    for output, expand in make_expanders(trial.features, {_NAME: trial.learned}, encoded).items():
        expanded = expand(torch.from_numpy(encoded[output].copy()))
        order = torch.arange(len(encoded[output])).flip(0)
        for rows in (order, *order[:, None], order[:0]):
            expanded_rows = expand(torch.from_numpy(encoded[output][rows.numpy()]))  # torch 2.5 takes no rows of uint16
            are_close = torch.allclose(expanded_rows.double(), expanded[rows].double(), equal_nan=True)
            if expanded_rows.dtype != expanded.dtype or not are_close:
                raise _Violation(f"{_shorten(expanded_rows)} for rows that are {_shorten(expanded[rows])} in a batch")


def _check_transformer(trial: _Trial) -> None:
    """Raise _Violation for another fit than scikit-learn's."""
    feature, frame = clone(trial.feature), trial.table.to_pandas()
    initial = feature.get_params(deep=False)
    if feature.fit(frame) is not feature:
        raise _Violation("fit that returns another object")
    if changed := [name for name, value in feature.get_params(deep=False).items() if value is not initial[name]]:
        raise _Violation(f"another {changed[0]} after fit")
    shape, names = np.shape(feature.transform(frame)), feature.get_feature_names_out()
    if shape != (len(frame), len(names)):
        raise _Violation(f"an array of shape {shape} for {len(frame)} rows and {len(names)} names of columns")


# Function and expected result of each check, by its name in messages.
_CHECKS: dict[str, tuple[Callable[[_Trial], None], str]] = {
    "no cells": (_check_no_cells, "every function to support a partition without rows"),
    "encode": (
        _check_encode,
        "an array with one row for each cell, of a type and shape that depend on the fitted state alone",
    ),
    "missing cells": (
        _check_missing,
        "partitions with only missing cells to be learned and encoded, or refused with a DaskprepError",
    ),
    "merge": (_check_merge, "the same fitted state for any order in which summaries are merged"),
    "partitions": (_check_partitions, "the same fitted state and encoded rows for any partitioning"),
    "state": (_check_state, "the fitted state to be the same after it was written and read as JSON"),
    "decode": (_check_decode, "one value for each row, which encodes to the same row again"),
    "expand": (_check_expand, "a tensor with one row for each row of a batch, which depends on this row alone"),
    "transformer": (
        _check_transformer,
        "fit to return the transformer, and transform to return the columns of get_feature_names_out",
    ),
}


def _split_rows(table: pa.Table, rows: int) -> list[pa.Table]:
    return [table.slice(start, rows) for start in range(0, table.num_rows, rows)]


def _compare_learned(learned: Sequence[Learned]) -> None:
    """Raise _Violation unless all states are equal."""
    first = learned[0].to_dict()
    for other in learned[1:]:
        if (state := other.to_dict()) != first:
            key = next(key for key in first if state.get(key) != first[key])
            raise _Violation(f"{key} {_shorten(state.get(key))}, and {_shorten(first[key])} otherwise")


def _are_close(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether arrays are equal, floats up to rounding."""
    if one.dtype.kind != "f":
        return np.array_equal(one, other)
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)


def _first_difference(one: np.ndarray, other: np.ndarray) -> str:
    """Return other shapes, or the first row that differs, as text."""
    if one.shape != other.shape:
        return f"shape {one.shape}, and {other.shape}"
    row = np.argwhere((one != other) & ~((one != one) & (other != other)))[0][0]  # noqa: PLR0124 both NaN
    return f"{_shorten(one[row].tolist())} in row {row}, and {_shorten(other[row].tolist())}"


def _shorten(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 200 else f"{text[:200]}..."
