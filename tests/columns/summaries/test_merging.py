from __future__ import annotations

import math
import operator
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskprep.columns.summaries import (
    ColumnSummary,
    FileSample,
    Lengths,
    Moments,
    Quantiles,
    Range,
    Rejects,
    Summary,
    TokenCounts,
)
from daskprep.columns.summaries.base import SummaryT, finite_doubles
from daskprep.columns.summaries.target_sums import TargetSums, ValueSums, split_into_digits
from daskprep.storage.checkpoint import deserialize, serialize
from tests.sizes import Sizes

Row = tuple[int, float]
finite = st.floats(allow_nan=False, allow_infinity=False)
some_floats = finite | st.sampled_from([0.0, -0.0, 1.0, 5e-324, -1e308, 1e308])


def doubles(rows: list[Row]) -> np.ndarray:
    return np.array([value for _, value in rows], np.float64)


def texts(rows: list[Row]) -> pa.Array:
    return pa.array([f"{value:.1e}" for _, value in rows], pa.string())


def rejects(rows: list[Row]) -> Rejects:
    return Rejects.of(np.array([row for row, _ in rows], np.int64), texts(rows))


def token_counts(rows: list[Row]) -> TokenCounts:
    return TokenCounts.of(texts(rows), np.ones(len(rows)))


def number_counts(rows: list[Row]) -> TokenCounts:
    return TokenCounts.of(pa.array(doubles(rows)), np.ones(len(rows)))


def column(rows: list[Row]) -> ColumnSummary:
    return ColumnSummary(len(rows), 0, rejects(rows), Moments.of(doubles(rows)), token_counts(rows))


def file_sample(rows: list[Row]) -> FileSample:
    paths = pa.array([None if row % 3 else text for (row, _), text in zip(rows, texts(rows).to_pylist(), strict=True)])
    data = [f"{row % 5}".encode() if row % 3 else None for row, _ in rows]
    return FileSample.of(paths.cast(pa.string()), pa.array(data, pa.large_binary()), 4, bytes)


def value_sums(rows: list[Row]) -> ValueSums:
    folds = np.array([row % 3 for row, _ in rows], np.uint8)
    return ValueSums.of(texts(rows).dictionary_encode(), folds, 3, {"rows": np.ones(len(rows)), "y": doubles(rows)})


def class_sums(rows: list[Row]) -> TargetSums:
    classes, codes = np.unique(np.array([f"{row % 4}" for row, _ in rows], str), return_inverse=True)
    return TargetSums.of(doubles(rows), codes, tuple(classes.tolist()))


def bits(*values: float) -> list[str]:
    return [value.hex() for value in values]


def arrow_report(summary: TokenCounts) -> Any:
    tokens, counts = summary.rank()
    return [str(token) for token in tokens.to_pylist()], counts.tolist(), summary.total, str(summary.top())


def column_report(summary: ColumnSummary) -> Any:
    assert isinstance(summary.values, Moments)
    assert summary.cells is not None
    return summary.rows, summary.rejects, summary.values, arrow_report(summary.cells)


def value_report(summary: ValueSums) -> Any:
    parts = ((part, part.values.to_pylist(), part.digits.tolist()) for part in summary.parts())
    return sorted((*sums, part.labels) for part, *columns in parts for sums in zip(*columns, strict=True))


KINDS: dict[str, tuple[Callable[[list[Row]], Any], Callable[[Any], Any]]] = {
    "moments": (lambda rows: Moments.of(doubles(rows)), lambda s: (s, bits(s.mean(), s.std(1)))),
    "range": (lambda rows: Range.of(doubles(rows)), lambda s: bits(s.min, s.max)),
    "quantiles": (
        lambda rows: Quantiles.of(doubles(rows)),
        lambda s: (s.exact, s.count, bits(*(s.quantile(q) for q in (0, 0.1, 0.5, 1)))),
    ),
    "lengths": (
        lambda rows: Lengths.of(np.array([row for row, _ in rows])),
        lambda s: (s.count, s.total, s.max, s.quantile(0.99)),
    ),
    "rejects": (rejects, lambda s: (s.count, s.samples)),
    "token counts": (token_counts, arrow_report),
    "number counts": (number_counts, arrow_report),
    "value sums": (value_sums, value_report),
    "target sums": (lambda rows: TargetSums.of(doubles(rows), *split_into_digits(doubles(rows))), lambda s: s),
    "class sums": (class_sums, lambda s: s),
    "file sample": (file_sample, lambda s: s),
    "column": (column, column_report),
}


@pytest.fixture
def small_limits(sizes: Sizes) -> None:
    """Make summaries compact, spill and become inexact with a handful of values."""
    sizes(
        compact_entries=4,
        compact_chunks=3,
        spill_entries=5,
        spill_group_entries=7,
        sum_spill_bytes=250,
        sum_group_bytes=2_000,
        quantile_buckets=6,
    )


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("kind", KINDS)
def test_merging_does_not_depend_on_order_and_grouping(kind: str, tmp_path_factory: Any) -> None:
    of, report = KINDS[kind]
    folder = str(tmp_path_factory.mktemp("spill"))

    @settings(max_examples=50)
    @given(values=st.lists(some_floats, max_size=30), data=st.data())
    def check(values: list[float], data: st.DataObject) -> None:
        rows = list(enumerate(values))
        parts: list[list[Row]] = [[] for _ in range(data.draw(st.integers(1, 6)))]
        for row in data.draw(st.permutations(rows)):
            parts[data.draw(st.integers(0, len(parts) - 1))].append(row)
        summaries = [of(part) for part in parts]
        while len(summaries) > 1:
            left = summaries.pop(data.draw(st.integers(0, len(summaries) - 1)))
            right = summaries.pop(data.draw(st.integers(0, len(summaries) - 1)))
            merged = (left + right).limit_memory(data.draw(st.sampled_from([None, folder])))
            summaries.append(pickle.loads(pickle.dumps(merged)))
        assert report(summaries[0]) == report(of(rows))

    check()


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("times", [0, 1, 3])
def test_multiplying_equals_repeated_addition(kind: str, times: int) -> None:
    of, report = KINDS[kind]
    rows = list(enumerate([0.5, -2.0, 0.5, 1e300, 7.0, 8.0, 9.0, 10.0, 11.0]))
    repeated = of([])
    for _ in range(times):
        repeated += of(rows)
    assert report(of(rows) * times) == report(repeated)


def test_field_missing_on_one_side_is_dropped() -> None:
    bare = ColumnSummary(1, 0, Rejects(), Range(1.0, 1.0))
    counted = ColumnSummary(2, 1, Rejects(), Range(0.0, 0.0), token_counts([(0, 1.0)]))
    assert bare + counted == ColumnSummary(3, 1, Rejects(), Range(0.0, 1.0), None)
    assert counted + bare == bare + counted
    assert (bare * 2).cells is None


def test_equality_compares_type_and_fields() -> None:
    assert Range(1.0, 2.0) == Range(1.0, 2.0)
    assert Range(1.0, 2.0) != Range(1.0, 3.0)
    assert Range(1.0, 2.0) != Rejects()
    assert Rejects() != Range(1.0, 2.0)
    lengths = Lengths.of(np.array([1, 2]))
    assert lengths == Lengths.of(np.array([2, 1]))
    assert lengths != lengths * 2  # only the counts differ
    assert lengths != Rejects()


def test_custom_summary_can_be_generic_and_serialized() -> None:
    @dataclass(frozen=True)
    class Named(Summary, Generic[SummaryT]):
        name: str
        values: SummaryT

    named = Named[Range]("a", Range(1.0, 2.0))
    assert deserialize(b"".join(serialize(named))) == named


def test_limit_memory_returns_small_summaries_unchanged() -> None:
    summary = ColumnSummary(1, 0, Rejects(), Range(1.0, 1.0))
    assert summary.limit_memory("never made") is summary


@pytest.mark.usefixtures("small_limits")
def test_limit_memory_applies_to_cells_of_a_column(tmp_path: Path) -> None:
    cells = column(list(enumerate(range(20)))).limit_memory(str(tmp_path)).cells
    assert cells is not None
    assert cells.spilled


def test_finite_doubles_flattens_and_raises_for_other_numbers() -> None:
    found = finite_doubles(np.array([[1, 2], [3, 4]], np.int32))
    assert (found.dtype, found.tolist()) == (np.float64, [1.0, 2.0, 3.0, 4.0])
    for odd in (math.nan, math.inf):
        with pytest.raises(ValueError, match=f"Summaries take finite numbers, not {odd}: "):
            Moments.of(np.array([1.0, odd]))


def test_merging_different_types_raises() -> None:
    left: Summary = Rejects()
    with pytest.raises(TypeError):
        operator.add(Moments(), left)
