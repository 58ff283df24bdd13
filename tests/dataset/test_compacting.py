"""Parts of a dataset merged into one."""

from __future__ import annotations

import pickle
import shutil

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.errors import ConfigError, CorruptDatasetError
from daskprep.storage.manifest import read_versions
from tests.dataset.test_deleting import COLUMNS, FEATURES, Killed, count_steps, sales, written

TYPES = {
    "city": dp.Category(most_common=None),
    "tags": dp.Set(column="review"),
    "review": dp.Text(level="both"),
    "photo": dp.Image(height=4, width=4, num_channels=1, pack=True),
    "lazy": dp.Image(height=4, width=4, num_channels=1, mode="lazy", column="photo"),
    "price": dp.Number(missing_value_strategy="drop_row"),
    "number": dp.Number(normalization=None),
}


def rows_of(dataset):
    return {name: split.read(COLUMNS[1:]) for name, split in dataset.splits.items()}


def same(one, other):
    assert one.keys() == other.keys()
    for name, arrays in one.items():
        assert all(np.array_equal(array, other[name][column]) for column, array in arrays.items())


@pytest.mark.parametrize("shards", [False, True])
def test_compacted_files_are_those_of_a_write_of_all_rows(tmp_path, shards):
    frames = [sales(number, rows) for number, rows in enumerate((300, 1, 500, 40))]
    prep = dp.Preprocessor(FEATURES, split=None).fit(frames[0])
    prep.write(pd.concat(frames, ignore_index=True), tmp_path / "all.dp", progress=False, shards=shards)
    prep.write(frames[0], tmp_path / "parts.dp", progress=False, shards=shards)
    for frame in frames[1:]:
        prep.append(frame, tmp_path / "parts.dp", progress=False, on_findings="ignore")
    compacted, whole = dp.open_dataset(tmp_path / "parts.dp").compact(), dp.open_dataset(tmp_path / "all.dp")
    assert compacted.layout == whole.layout
    expected = {name: entry for name, entry in whole.manifest.files.items() if name != "metadata.json"}
    assert {name: compacted.manifest.files[name] for name in expected} == expected
    assert compacted.manifest.files.keys() == whole.manifest.files.keys()
    assert compacted.loss_counts == whole.loss_counts
    assert compacted.manifest.missing_cells == whole.manifest.missing_cells
    compacted.verify()


@pytest.mark.parametrize("shards", [False, True])
def test_grown_ids_media_and_rejects_are_merged(tmp_path, shards):
    def day(number, rows=70):
        frame = sales(number, rows)
        frame["city"] = [f"city{number} {row}" for row in range(rows)]
        frame.loc[3 * number, "price"] = None
        pixels = np.arange(rows, dtype=np.uint8)[:, None, None, None] + np.uint8(number)
        return frame.assign(photo=list(np.broadcast_to(pixels, (rows, 4, 4, 1))))

    prep = dp.Preprocessor(TYPES, split=dp.RandomSplit())
    dataset = prep.fit_write(day(0), tmp_path / "a.dp", block_rows=16, shards=shards, progress=False)
    for number in range(1, 6):
        prep.grow(day(number))
        dataset = prep.append(day(number), tmp_path / "a.dp", progress=False, on_findings="ignore")
    assert {one.layout.outputs[0].dtype for one in dataset.datasets} == {"uint8", "uint16"}
    columns = [output.name for output in dataset.layout.outputs]
    before = {name: split.read(columns) for name, split in dataset.splits.items()}
    compacted = dataset.compact()
    compacted.verify()
    assert pickle.loads(pickle.dumps(compacted)).digest == compacted.digest
    same(before, {name: split.read(columns) for name, split in compacted.splits.items()})
    ids = np.concatenate([split.read("row_id")["row_id"] for split in compacted.splits.values()])
    rejected = compacted.rejects()["row_id"].to_pylist()
    assert rejected == [73 * number for number in range(6)]
    assert sorted([*ids.tolist(), *rejected]) == [*range(420)]
    assert [len(one) for one in compacted["train"].joined] == [len(compacted["train"])]
    assert prep.append(day(9), tmp_path / "a.dp", progress=False, on_findings="ignore")["train"].head(2).shape[0] == 2


def test_deleted_and_purged_rows_stay_so(tmp_path):
    _, dataset = written(tmp_path / "a.dp", parts=4)
    dataset.delete([0, 399], part=1).delete([5], part=0).purge()
    dataset = dp.open_dataset(tmp_path / "a.dp").delete([7, 9, 398], part=1).delete([1], part=3)
    before, ids = rows_of(dataset), [one.read("row_id")["row_id"] for one in dataset["train"].joined]
    compacted = dataset.compact()
    same(before, rows_of(compacted))
    starts = np.array([0, 400, 799, 1199])  # the last row of the second part was purged
    expected = np.concatenate([own + start for own, start in zip(ids, starts, strict=True)])
    assert np.array_equal(compacted["train"].read("row_id")["row_id"], expected)
    assert compacted.purge()["row_ids"] == [[407, 409, 798, 1200]]
    after = dp.open_dataset(tmp_path / "a.dp")
    after.verify()
    same(before, rows_of(after))
    assert sorted(one.name for one in (tmp_path / "a.dp").glob("*-0*")) == ["purge-00001.json", "purge-00002.json"]


def test_older_versions_and_open_readers(tmp_path):
    _, dataset = written(tmp_path / "a.dp", parts=3)
    loader = dataset["train"].loader(32)
    state = loader.state_dict()
    compacted = dp.open_dataset(tmp_path / "a.dp").compact()
    assert compacted.compact().digest == compacted.digest
    for version in (1, 2, 3):
        with pytest.raises(ConfigError, match="its versions are 4; purge or compact removed others"):
            dp.open_dataset(tmp_path / "a.dp", version=version)
    with pytest.raises(CorruptDatasetError, match="open it again"):
        dataset["train"].read("city")
    with pytest.raises(ConfigError):
        compacted["train"].loader(32).load_state_dict(state)
    assert len(dp.open_dataset(tmp_path / "a.dp", version=4)["train"]) == len(compacted["train"])


def test_sources_of_merged_parts_are_known(tmp_path):
    prep, _ = written(tmp_path / "a.dp", parts=3)
    compacted = dp.open_dataset(tmp_path / "a.dp").compact()
    for number in range(3):
        with pytest.warns(UserWarning, match="has these rows already, so that they"):
            prep.append(sales(number), tmp_path / "a.dp", progress=False)
    again = prep.append(sales(5), tmp_path / "a.dp", progress=False).compact()
    assert len(again.manifest.source["parts"]) == 4
    with pytest.raises(ConfigError, match="compact has merged its parts: pass a function"):
        compacted.add("more", "number", sales(0).rename(columns={"price": "more"}))
    before = rows_of(again)
    same(before, rows_of(again.add("more", "number", lambda rows: rows["number"] * 2)))


@pytest.mark.parametrize("share", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_compaction_loses_nothing(tmp_path, monkeypatch, share):
    _, dataset = written(tmp_path / "a.dp", parts=3)
    dataset = dataset.delete([1, 50], part=1)
    before = rows_of(dataset)
    shutil.copytree(tmp_path / "a.dp", tmp_path / "whole.dp")
    with monkeypatch.context() as patch:
        steps = count_steps(patch)
        whole = dp.open_dataset(tmp_path / "whole.dp").compact()
    for number in range(0, steps[0], share):
        path = tmp_path / f"{number}.dp"
        shutil.copytree(tmp_path / "a.dp", path)
        with monkeypatch.context() as patch:
            count_steps(patch, number)
            with pytest.raises(Killed):
                dp.open_dataset(path).compact()
        same(before, rows_of(dp.open_dataset(path)))
        if number % 2:
            dp.Preprocessor.from_dataset(path).append(sales(7), path, progress=False, on_findings="ignore")
            assert len(dp.open_dataset(path)["train"]) > len(whole["train"])
        compacted = dp.open_dataset(path).compact()
        compacted.verify()
        if not number % 2:
            assert compacted.digest == whole.digest, number
        assert sorted({one.name.partition("-")[0] for one in path.iterdir() if one.suffix != ".parquet"}) == sorted(
            {"appended.json", "manifest.json", compacted.version.partition("-")[0]}
        ), number
        lists = {state[1] for state in read_versions(compacted.root).states if state}
        assert {file.name for file in path.glob("deleted-*")} == lists, number


def test_reader_opens_again_if_parts_are_merged_meanwhile(tmp_path, monkeypatch):
    from daskprep.dataset import opening

    _, dataset = written(tmp_path / "a.dp", parts=3)
    original, calls = opening._open_part, []

    def open_part(*values):
        calls.append(values)
        if len(calls) == 2:  # after one part was opened
            monkeypatch.setattr(opening, "_open_part", original)
            dataset.compact()
        return original(*values)

    before = rows_of(dataset)
    monkeypatch.setattr(opening, "_open_part", open_part)
    same(before, rows_of(dp.open_dataset(tmp_path / "a.dp")))
    assert len(dp.open_dataset(tmp_path / "a.dp").segments) == 1
