"""Errors are raised before rows are read, or on iteration."""

from __future__ import annotations

import dask.dataframe as dd
import pandas as pd
import pytest
from torch.utils.data import DataLoader

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError, CorruptDatasetError, RejectedValueError


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"split": "trian"}, 'Did you mean "train"'),
        ({"split": "test"}, r"no rows; splits with rows are: train \(1,003\)"),
        ({"columns": ["prise"]}, 'Did you mean "price"'),
        ({"targets": "prise"}, 'Did you mean "price"'),
        ({"window": "much"}, "window='much'"),
        ({"window": 100}, "too small: partition 0 has 100 rows"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"shuffle": "no"}, "shuffle='no': expected True or False"),
        ({"seed": 1.9}, "seed=1.9"),
        ({"epochs": 0}, "epochs=0"),
        ({"threads": 0}, "threads=0"),
        ({"batch_size": 50, "rank": 0, "world_size": 3}, "not divisible by 3 ranks; use batch_size=51"),
        ({"rank": 0}, "pass both rank and world_size"),
        ({"rank": 2, "world_size": 2}, "ranks are 0 to 1"),
        ({"batch_size": 2000, "rank": 0, "world_size": 2000}, "too few for 2000 ranks"),
        ({"decode_on": "gpu"}, "decode_on='gpu'"),
        ({"augment": {"city": dp.Mirror()}}, "expected images"),
        ({"epochs": None, "drop_last": True, "batch_size": 2000}, "use a smaller batch_size"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(simple, parts, options, words):
    with pytest.raises(ConfigError, match=words):
        simple.stream(parts, **options)


def test_unfitted_preprocessor_raises(parts):
    with pytest.raises(ValueError, match="not fitted"):
        dp.Preprocessor({"price": "number"}).stream(parts)


def test_missing_column_raises(simple, table):
    with pytest.raises(ColumnError, match="city"):
        simple.stream(table.drop(columns="city"))


def test_data_without_rows_raises(simple, table):
    with pytest.raises(ColumnError, match="no rows"):
        simple.stream(table.iloc[:0])


def test_data_loader_workers_raise(simple, parts):
    loader = DataLoader(simple.stream(parts, 48), batch_size=None, num_workers=1)
    with pytest.raises(ConfigError, match="num_workers=0"):
        list(loader)


@pytest.mark.slow
def test_read_error_names_partition(simple, gated):
    gated.broken = {7}
    stream = simple.stream(gated, 100)
    with pytest.raises(OSError, match="disk is broken") as caught:
        list(stream)
    assert caught.value.__notes__ == ["while partition 7 was read and encoded"]


def test_rejected_value_error_names_column(tmp_path):
    prep = dp.Preprocessor({"n": dp.Number(invalid="raise")}).fit(pd.DataFrame({"n": ["1", "2"]}))
    with pytest.raises(RejectedValueError, match="column \"n\": 'x' cannot be read"):
        list(prep.stream(pd.DataFrame({"n": ["1", "x"]})))


def test_too_few_remaining_rows_for_ranks_raises(simple, table):
    stream = simple.stream(table, 1002, window="1MB")
    next(iter(stream))
    ranks = simple.stream(table, 1002, window="1MB", rank=0, world_size=2)
    with pytest.raises(ConfigError, match="1 rows are left of epoch 0"):
        ranks.load_state_dict(stream.state_dict()) or iter(ranks)


@pytest.mark.parametrize(("world", "rows"), [(1, 99), (1, 1), (2, 99), (2, 101)])
def test_source_changed_during_stream_raises(simple, table, world, rows):
    counted = False

    def read(start, token=(world, rows)):
        found = table.iloc[start : start + 100]
        return pd.concat([found] * 2).iloc[: token[1]] if counted else found

    # Dask would take an earlier frame of an equal function, which has counted already.
    frame = dd.from_map(read, range(0, len(table), 100), meta=table.iloc[:0])
    stream = simple.stream(frame, 100, rank=0 if world > 1 else None, world_size=world if world > 1 else None)
    counted = True
    with pytest.raises(CorruptDatasetError, match=f"it has {rows} rows, but had (100|3) when they were counted"):
        list(stream)


@pytest.mark.parametrize("is_persisted", [True, False])
def test_dependent_partitions_must_be_persisted(simple, table, is_persisted):
    frame = dd.from_pandas(table[["price", "city"]], npartitions=4)
    joined = frame.merge(frame[["price"]], on="price")
    if is_persisted:
        joined = joined.persist()
        assert sum(len(batch["price"]) for batch in simple.stream(joined, 100)) == len(table)
        return
    with pytest.raises(ConfigError, match=r"computed from one another.*persist\(\)"):
        simple.stream(joined, 100)


def test_batch_with_failing_transform_is_not_counted(simple, parts):
    def check(batch):
        taken.append(len(batch["price"]))
        if len(taken) == 3:
            raise ValueError("no more")
        return batch

    taken = []
    stream = simple.stream(parts, 50, transform=check)
    with pytest.raises(ValueError, match="no more"):
        list(stream)
    assert stream.state_dict()["rows_given"] == 100
    assert stream.audit() == {"rows": 100, "batches": 2}
