"""Contexts of partitions, and the passes that they need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import daskprep as dp
from daskprep.passes.assignment import Assignment
from daskprep.passes.contexts import ContextPlan, census_of_rows
from daskprep.passes.engine import PartitionReader, Pass, make_columnless_rows, run_pass
from daskprep.passes.table import Parsed, PartitionContext
from daskprep.sources import Source
from daskprep.sources.split import DROPPED, TRAIN

ROWS, PARTITION_ROWS = 60, 7


class Pieces(Source):
    """Partitions in memory that record the columns read."""

    in_memory = True

    def __init__(self, table: pa.Table, *, counted: bool = True) -> None:
        self.tables = [table.slice(start, PARTITION_ROWS) for start in range(0, table.num_rows, PARTITION_ROWS)]
        self.columns = table.column_names
        self.npartitions = len(self.tables)
        self.row_counts = [len(piece) for piece in self.tables] if counted else None
        self.reads: list[tuple[int, tuple[str, ...]]] = []

    def _read(self, partition: int, columns: Sequence[str]) -> pa.Table:
        self.reads.append((partition, tuple(columns)))
        return self.tables[partition].select(list(columns))

    @property
    def passes(self) -> list[set[str]]:
        """Return the columns of each pass over all partitions."""
        self.reads.sort(key=lambda read: read[1])
        by_columns = [columns for partition, columns in self.reads if partition == 0]
        assert len(self.reads) == len(by_columns) * self.npartitions
        return [set(columns) for columns in by_columns]


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.Table.from_pandas(
        pd.DataFrame(
            {
                "age": pd.Series(rng.normal(size=ROWS)).mask(rng.random(ROWS) < 0.2),
                "area": pd.Series(rng.normal(size=ROWS)).mask(rng.random(ROWS) < 0.3),
                "city": rng.choice(["Oslo", "Rome"], ROWS, p=[0.3, 0.7]),
                "day": pd.date_range("2020-01-01", periods=ROWS, freq="h"),
            }
        )
    )


DROPPING = {"age": dp.Number(missing_value_strategy="drop_row"), "city": dp.Category()}
FILLING = {"area": dp.Number(missing_value_strategy="ffill"), "city": dp.Category()}
PLAIN = {"city": dp.Category()}

SURVEYS: list[tuple[Any, Any, bool, list[set[str]]]] = [
    (PLAIN, None, False, []),
    (PLAIN, dp.RandomSplit(), True, []),
    (PLAIN, dp.RandomSplit(), False, [{"age"}]),
    (PLAIN, dp.HashSplit("day"), False, []),
    (PLAIN, dp.StratifiedSplit("city"), True, [{"city"}]),
    (DROPPING, None, True, []),
    (DROPPING, dp.RandomSplit(), True, [{"age"}]),
    (FILLING, None, True, [{"area"}]),
    (FILLING, dp.StratifiedSplit("city"), True, [{"area", "city"}]),
]


@pytest.mark.parametrize(("features", "split", "counted", "passes"), SURVEYS)
def test_contexts_read_only_needed_columns(table, features, split, counted, passes):
    source = Pieces(table, counted=counted)
    contexts = ContextPlan(features, split).make_contexts(PartitionReader(source))
    assert source.passes == passes
    assert [one.number for one in contexts] == list(range(source.npartitions))
    assert all((one.assignment is None) == (split is None) for one in contexts)


def test_two_pass_split_uses_only_kept_rows(table, sizes):
    sizes(class_buckets=16)
    source = Pieces(table)
    contexts = ContextPlan(DROPPING, dp.DatetimeSplit("day")).make_contexts(PartitionReader(source))
    assert source.passes == [{"age", "day"}] * 2
    splits = np.concatenate([splits_of(one, piece) for one, piece in zip(contexts, source.tables, strict=True)])
    kept = splits[splits != DROPPED]
    assert len(kept) == len(table) - table["age"].null_count
    assert (np.diff(kept.astype(int)) >= 0).all()


def splits_of(context: PartitionContext, piece: pa.Table) -> np.ndarray:
    dropping = {"age": DROPPING["age"]}
    parsed = Parsed(len(piece), {"age": piece["age"].combine_chunks()}, {})
    return Assignment(dropping).assign(context, parsed, piece)[0]


def test_pass_receives_parsed_features_and_columns(table):
    def question(context: PartitionContext, parsed: Parsed, rows: pa.Table) -> Any:
        return context.number, list(parsed.columns), rows.column_names, parsed.rows

    source = Pieces(table)
    found = run_pass(PartitionReader(source), Pass("test", question, FILLING, ["day", "city"]))
    assert found[0] == (0, ["area", "city"], ["area", "city", "day"], PARTITION_ROWS)
    assert [number for number, *_ in found] == list(range(source.npartitions))


COUNTS: list[tuple[Any, Any, Any, bool, int]] = [
    (PLAIN, None, None, True, 0),
    (PLAIN, dp.RandomSplit(), None, True, 0),
    (PLAIN, None, None, False, 1),
    (PLAIN, dp.HashSplit("day"), None, True, 1),
    (DROPPING, None, None, True, 1),
    (DROPPING, dp.StratifiedSplit("city"), dp.Oversample("city", ratio=0.9), True, 1),
]


@pytest.mark.parametrize(("features", "split", "balance", "counted", "passes"), COUNTS)
def test_counted_rows_equal_assigned_rows(table, features, split, balance, counted, passes):
    source = Pieces(table, counted=counted)
    assignment, rows = Assignment(features, split, balance), PartitionReader(source)
    contexts = assignment.make_contexts(rows)
    source.reads.clear()
    _, found = assignment.count_partitions(rows, contexts)
    assert len(source.passes) == passes
    assigned = dp.Preprocessor(features, split=split, balance=balance).assign(table.to_pandas())
    totals = [assigned["repeats"][assigned["split"] == code].sum() for code in range(3)]
    assert np.sum([one.counts for one in found], axis=0).tolist() == totals
    assert [one.rows for one in found] == [len(piece) for piece in source.tables]


def test_columns_are_filled_from_other_partitions(table):
    fitted = dp.Preprocessor(FILLING).fit(table.to_pandas())
    source = Pieces(table)
    assignment, rows = Assignment(FILLING, learned=fitted.learned_), PartitionReader(source)
    contexts, _ = assignment.count_partitions(rows, assignment.make_contexts(rows), {"area": FILLING["area"]})
    assert source.passes == [{"area"}]
    area = table["area"].to_pandas()
    before = [area[: number * PARTITION_ROWS].dropna() for number in range(1, source.npartitions)]
    assert [one.border_values["area"][0] for one in contexts[1:]] == [known.iloc[-1] for known in before]


def test_store_rejects_receives_assignment(table):
    source = Pieces(table)
    assignment, rows = Assignment(DROPPING), PartitionReader(source)

    def store_rejects(
        context: PartitionContext, parsed: Parsed, splits: np.ndarray, repeats: np.ndarray, dropped
    ) -> int:
        assert (splits == np.where(parsed.columns["age"].is_valid(), TRAIN, DROPPED)).all()
        assert (repeats == (splits == TRAIN)).all()
        return int((splits == DROPPED).sum())

    _, found = assignment.count_partitions(rows, assignment.make_contexts(rows), store_rejects=store_rejects)
    assert sum(one.rejects for one in found) == table["age"].null_count


@pytest.mark.parametrize("split", [None, dp.RandomSplit()])
def test_row_counts_assign_like_rows(table, split):
    counts = [PARTITION_ROWS, 0, 20]
    reader = PartitionReader(Pieces(table))
    contexts = ContextPlan({}, split).make_contexts(reader, census_of_rows(counts))
    found = [
        Assignment({}).assign(one, *make_columnless_rows(rows)) for one, rows in zip(contexts, counts, strict=True)
    ]
    assert [len(splits) for splits, _ in found] == counts
    expected = dp.Preprocessor(PLAIN, split=split).assign(table[: sum(counts)].to_pandas())
    assert np.concatenate([splits for splits, _ in found]).tolist() == expected["split"].tolist()


@pytest.mark.parametrize("fit_on", ["train", "all"])
@pytest.mark.parametrize(
    ("name", "example"), [("split", r"RandomSplit\(\(0.7, 0.1, 0.2\)\)"), ("balance", "Oversample")]
)
def test_invalid_split_or_balance_error_shows_example(fit_on, name, example):
    prep = dp.Preprocessor({"price": "number"}, fit_on=fit_on, **{name: (0.8, 0.2)})
    with pytest.raises(dp.errors.ConfigError, match=rf"{name} must be an object such as {example}.* not \(0.8, 0.2\)"):
        prep.fit({"price": [1, 2]})
