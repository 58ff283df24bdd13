"""A write reads every partition of its source once, for any features, split and balance."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.dataset import Dataset
from daskprep.dataset.writing import rejects, write
from daskprep.dataset.writing.parts import PartWriter
from daskprep.errors import ConfigError, StorageFullError
from daskprep.passes import contexts, scratch
from daskprep.sources import as_source, frames, partitions, read_files

ROWS = 240


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    words = np.array(["alpha", "beta", "gamma"])
    hours = pd.date_range("2020-01-01", periods=ROWS, freq="h").strftime("%Y-%m-%dT%H:%M:%S")
    return pd.DataFrame(
        {
            "price": pd.Series(rng.lognormal(size=ROWS)).mask(rng.random(ROWS) < 0.2),
            "city": rng.choice(["Oslo", "Rome"], ROWS, p=[0.2, 0.8]),
            "review": [" ".join(rng.choice(words, rng.integers(1, 5))) for _ in range(ROWS)],
            "listed": rng.permutation(hours),
        }
    )


@pytest.fixture(autouse=True)
def no_flushing(monkeypatch) -> None:
    """Skip fsync, which takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


Counted = tuple[Any, "list[int]"]


def counted_pieces(path: Path, partition_bytes: int, patch: pytest.MonkeyPatch) -> Counted:
    source, reads = read_files(path, partition_bytes=partition_bytes), []
    fragments = list(source.fragments)
    kind = type(fragments[0])
    original = kind.read

    def read(self: Any, columns: Any) -> Any:
        reads.append(next(number for number, fragment in enumerate(fragments) if fragment is self))
        return original(self, columns)

    patch.setattr(kind, "read", read)
    return source, reads


def counted_parquet(table: pd.DataFrame, folder: Path, patch: pytest.MonkeyPatch) -> Counted:
    table.to_parquet(folder / "rows.parquet", row_group_size=40)
    return counted_pieces(folder / "rows.parquet", 1, patch)


def counted_csv(table: pd.DataFrame, folder: Path, patch: pytest.MonkeyPatch) -> Counted:
    table.to_csv(folder / "rows.csv", index=False)
    return counted_pieces(folder / "rows.csv", 2000, patch)


def counted_json_lines(table: pd.DataFrame, folder: Path, patch: pytest.MonkeyPatch) -> Counted:
    table.to_json(folder / "rows.jsonl", orient="records", lines=True)
    return counted_pieces(folder / "rows.jsonl", 2000, patch)


def counted_pandas(table: pd.DataFrame, folder: Path, patch: pytest.MonkeyPatch) -> Counted:
    reads: list[int] = []
    original = frames.PandasSource._read

    def read(self: Any, partition: int, columns: Any) -> Any:
        reads.append(partition)
        return original(self, partition, columns)

    patch.setattr(frames.PandasSource, "_read", read)
    return table, reads


def counted_dask(table: pd.DataFrame, folder: Path, patch: pytest.MonkeyPatch) -> Counted:
    reads: list[int] = []

    def read(partition: int) -> pd.DataFrame:
        reads.append(partition)
        return table.iloc[partition * 40 : (partition + 1) * 40]

    # Dask names frames by their function and may reuse the frame of an earlier test.
    return dd.from_map(read, range(6), meta=table.iloc[:0], label=f"read-{uuid.uuid4().hex}"), reads


COUNTED = {
    "parquet": counted_parquet,
    "csv": counted_csv,
    "json lines": counted_json_lines,
    "pandas": counted_pandas,
    "dask": counted_dask,
}


@pytest.fixture(params=COUNTED)
def counted(request, table, tmp_path, monkeypatch, sizes) -> Counted:
    """A source of several partitions, and the list of partitions read."""
    sizes(frame_slice_rows=50)
    source, reads = COUNTED[request.param](table, tmp_path, monkeypatch)
    reads.clear()
    return source, reads


def each_once(source: Any) -> dict[int, int]:
    partitions = as_source(source).npartitions
    assert partitions > 3
    return dict.fromkeys(range(partitions), 1)


def plain(**parameters: Any) -> dp.Preprocessor:
    features = {"price": dp.Number(normalization="zscore"), "city": "category", "review": "text"}
    return dp.Preprocessor(features, **parameters)


def balanced() -> dp.Preprocessor:
    return plain(split=dp.StratifiedSplit("city"), balance=dp.Oversample("city", ratio=0.7))


def at_random() -> dp.Preprocessor:
    return plain(split=dp.RandomSplit())


def by_time() -> dp.Preprocessor:
    return plain(split=dp.DatetimeSplit("listed"))


def carried() -> dp.Preprocessor:
    features = {"price": dp.Number(missing_value_strategy="ffill"), "city": "category", "review": "text"}
    return dp.Preprocessor(features, split=dp.StratifiedSplit("city"), balance=dp.Undersample("city", ratio=0.9))


def dropping() -> dp.Preprocessor:
    features = {"price": dp.Number(missing_value_strategy="drop_row"), "review": "text"}
    return dp.Preprocessor(features, split=dp.DatetimeSplit("listed"))


PREPROCESSORS = [plain, balanced, by_time, carried, dropping]


@pytest.fixture
def small_censuses(monkeypatch, sizes) -> list[int]:
    """Make a split by time read its rows twice, and return a list with an entry per second read."""
    sizes(class_buckets=16)
    second_reads: list[int] = []
    original = contexts.kept_rows

    def kept_rows(*arguments: Any) -> Any:
        second_reads.append(1)
        return original(*arguments)

    # Called there only by a second read.
    monkeypatch.setattr(contexts, "kept_rows", kept_rows)
    return second_reads


def expected_reads(source: Any) -> Counter[int]:
    """Return once for each partition; rows in memory are read once more, for the digest of their content."""
    once = each_once(source)
    return Counter(once) + Counter(once if as_source(source).in_memory else {})


@pytest.mark.parametrize("make", PREPROCESSORS)
def test_fit_write_reads_each_partition_once(counted, small_censuses, tmp_path, make):
    source, reads = counted
    make().fit_write(source, tmp_path / "a.dp", shuffle=True, seed=1)
    assert Counter(reads) == expected_reads(source)
    assert bool(small_censuses) == (make in (by_time, dropping))


@pytest.mark.parametrize("make", [balanced, by_time, carried])
def test_write_of_fitted_preprocessor_reads_each_partition_once(counted, table, small_censuses, tmp_path, make):
    source, reads = counted
    fitted = make().fit(table)
    reads.clear()
    fitted.write(source, tmp_path / "a.dp")
    assert Counter(reads) == expected_reads(source)


def test_only_needed_columns_are_read(table, tmp_path, monkeypatch):
    source, _ = counted_parquet(table, tmp_path, monkeypatch)
    kind, selected = type(source.fragments[0]), []
    original = kind.read
    monkeypatch.setattr(kind, "read", lambda self, columns: selected.append(list(columns)) or original(self, columns))
    features = {"price": "number", "again": dp.Number(column="price")}
    dp.Preprocessor(features, split=dp.StratifiedSplit("city")).fit_write(source, tmp_path / "a.dp")
    assert selected == [["price", "city"]] * 6


@pytest.mark.parametrize(("make", "times"), [(plain, 1), (at_random, 1), (balanced, 4), (dropping, 3)])
def test_scratch_is_reread_only_for_cell_dependent_splits(table, tmp_path, monkeypatch, make, times):
    source, _ = counted_parquet(table, tmp_path, monkeypatch)
    reads, placed = [], []
    read, place = scratch.ScratchFragment.read, rejects.AssignSplits.__call__
    monkeypatch.setattr(
        scratch.ScratchFragment, "read", lambda self, names: reads.append(self.name) or read(self, names)
    )
    monkeypatch.setattr(rejects.AssignSplits, "__call__", lambda self, *args: placed.append(args) or place(self, *args))
    make().fit_write(source, tmp_path / "a.dp")
    assert set(Counter(reads).values()) == {times}
    assert bool(placed) == (times > 1)


@pytest.mark.parametrize("make", [plain, at_random, balanced])
def test_write_killed_after_placement_rereads_nothing(counted, tmp_path, monkeypatch, make):
    source, reads = counted

    def write() -> Dataset:
        return make().fit_write(source, tmp_path / "a.dp", version="1")

    with monkeypatch.context() as patch:
        patch.setattr(PartWriter, "__call__", None)
        with pytest.raises(TypeError):
            write()
    write().verify()
    assert Counter(reads) == each_once(source)


def test_same_version_reads_nothing(counted, tmp_path):
    source, reads = counted
    first = balanced().fit_write(source, tmp_path / "a.dp", version="1")
    reads.clear()
    assert balanced().fit_write(source, tmp_path / "a.dp", version="1").version == first.version
    assert reads == []


@pytest.mark.parametrize("make", [balanced, by_time, carried, dropping])
def test_fit_parses_text_once(table, small_censuses, tmp_path, temporary, monkeypatch, make):
    source, reads = counted_csv(table, tmp_path, monkeypatch)
    fitted = make().fit(source)
    assert Counter(reads) == expected_reads(source)
    assert bool(small_censuses) == (make in (by_time, dropping))
    assert not list(temporary.iterdir())
    monkeypatch.setattr(write, "has_room", lambda folder, nbytes: False)
    twice = make().fit(source)
    assert len(reads) >= 3 * source.npartitions
    assert fitted.to_dict() == twice.to_dict()


def test_cross_fit_parses_text_once(table, tmp_path, monkeypatch):
    source, reads = counted_csv(table, tmp_path, monkeypatch)
    features = {"city": dp.TargetEncoding(target="price", folds=3, fold_group="review")}
    prep = dp.Preprocessor(features).fit(source)
    assert Counter(reads) == expected_reads(source)
    assert prep.to_dict() == dp.Preprocessor(features).fit(table).to_dict()


def test_fit_prepares_rows_once(table, tmp_path):
    table.to_parquet(tmp_path / "rows.parquet", row_group_size=40)
    rows: list[int] = []
    raw = read_files(tmp_path / "rows.parquet", partition_bytes=1)
    source = dp.prepared(raw, lambda frame: rows.append(len(frame)) or frame)
    balanced().fit(source)
    assert sorted(rows) == [0] + [40] * 6


@pytest.mark.parametrize("shared", [True, False])
def test_workers_keep_parsed_text_in_shared_scratch(table, tmp_path, temporary, monkeypatch, shared):
    source, reads = counted_csv(table, tmp_path, monkeypatch)
    monkeypatch.setattr(partitions, "is_in_process", lambda: False)
    balanced().set_params(scratch=str(tmp_path / "new" / "scratch") if shared else None).fit(source)
    assert len(reads) == source.npartitions * (1 if shared else 2)
    assert not list(temporary.iterdir())
    assert not shared or not list((tmp_path / "new" / "scratch").iterdir())


def test_scratch_invisible_to_workers_raises(table, tmp_path, monkeypatch):
    source, reads = counted_csv(table, tmp_path, monkeypatch)
    monkeypatch.setattr(partitions, "is_in_process", lambda: False)
    monkeypatch.setattr(partitions, "run_on_every_worker", lambda *_: [[True], [False]])
    with pytest.raises(ConfigError, match=r"the workers cannot access .*scratch.*a path that all of them share"):
        balanced().set_params(scratch=str(tmp_path / "scratch")).fit(source)
    assert not reads
    assert not list((tmp_path / "scratch").iterdir())


def test_fit_reparses_text_if_disk_is_full(table, tmp_path, monkeypatch):
    source, reads = counted_csv(table, tmp_path, monkeypatch)
    saved: list[int] = []

    def save(folder: Any, partition: int, *rows: Any) -> None:
        saved.append(partition)
        if len(saved) == 3:
            raise StorageFullError(28, "no room")
        scratch.save_parsed(folder, partition, *rows)

    monkeypatch.setattr(scratch, "save_parsed", save)
    prep = balanced().fit(source)
    assert len(saved) >= 3
    assert len(reads) > source.npartitions
    assert prep.to_dict() == balanced().fit(table).to_dict()
