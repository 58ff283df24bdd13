"""Rows deleted from a dataset, and later purged from its files."""

from __future__ import annotations

import io
import itertools
import json
import pickle
import shutil
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image

import daskprep as dp
from daskprep.dataset import Dataset, segments
from daskprep.errors import ConfigError, CorruptDatasetError, FormatVersionError
from daskprep.storage import Folder
from daskprep.storage.checksum import crc32c
from daskprep.storage.manifest import read_versions

ROWS = 400
DELETED = [0, 1, 5, 77, 399, *range(100, 180)]


def sales(number=0, rows=ROWS):
    rng = np.random.default_rng(number)
    return pd.DataFrame(
        {
            "city": rng.choice(["Rome", "Oslo", "Bern"], rows),
            "review": [f"w{row % 7} x{row % 5}" for row in range(rows)],
            "price": rng.normal(size=rows),
            "number": np.arange(rows),
        }
    )


FEATURES = {"city": "category", "review": "text", "price": "number", "number": dp.Number(normalization=None)}
COLUMNS = ["row_id", "city", "review", "price", "number"]


def written(path, parts=1, **options):
    prep = dp.Preprocessor(FEATURES, split=dp.RandomSplit())
    dataset = prep.fit_write(sales(), path, block_rows=16, progress=False, **options)
    for number in range(1, parts):
        dataset = prep.append(sales(number), path, progress=False)
    return prep, dataset


def kept_rows(dataset, part, rows):
    """The rows of all splits as arrays, without some rows of a part."""
    found = {}
    for name, split in dataset.splits.items():
        pieces = [one.read(COLUMNS) for one in split.joined]
        keep = ~np.isin(pieces[part]["row_id"], rows)
        pieces[part] = {column: array[keep] for column, array in pieces[part].items()}
        found[name] = {column: np.concatenate([piece[column] for piece in pieces]) for column in COLUMNS}
    return found


def check_readers(dataset, expected):
    for name, split in dataset.splits.items():
        rows = expected[name]
        assert len(split) == len(rows["row_id"])
        assert all(np.array_equal(split.read(column)[column], rows[column]) for column in COLUMNS)
        assert np.array_equal(split[[3, 0, -1]]["review"], rows["review"][[3, 0, -1]])
        assert np.array_equal(split.read("review", 2, 9)["review"], rows["review"][2:9])
        assert split.table("number")["number"].to_pylist() == rows["number"].tolist()
        assert split.to_arrow(["row_id"]).read_all()["row_id"].to_pylist() == rows["row_id"].tolist()
        assert np.array_equal(np.asarray(split.to_dask("review")["review"]), rows["review"])
        assert [row["number"] for row in split] == rows["number"].tolist()
        batches = list(split.loader(32))
        assert sorted(np.concatenate([batch["number"] for batch in batches])) == sorted(rows["number"])
    assert dataset.layout.rows == {name: len(rows["row_id"]) for name, rows in expected.items()}


@pytest.mark.slow
@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
def test_readers_skip_deleted_rows(tmp_path, parts, shards):
    prep, dataset = written(tmp_path / "a.dp", parts, shards=shards)
    expected = kept_rows(dataset, parts - 1, DELETED)
    deleted = dataset.delete(DELETED, part=parts - 1)
    check_readers(deleted, expected)
    check_readers(pickle.loads(pickle.dumps(deleted)), expected)
    assert len(dp.open_dataset(tmp_path / "a.dp", version=parts)["train"]) == len(dataset["train"])
    receipt = deleted.purge()
    assert receipt["row_ids"][parts - 1] == sorted(DELETED)
    purged = dp.open_dataset(tmp_path / "a.dp")
    purged.verify()
    check_readers(purged, expected)
    more = prep.append(sales(9), tmp_path / "a.dp", progress=False)
    assert sum(map(len, more.splits.values())) == sum(map(len, purged.splits.values())) + ROWS
    assert f"{len(purged['train']):,}" in purged.description.text()
    assert purged.report().html.count(f"{sum(map(len, purged.splits.values())):,}") >= 1


def test_purge_rewrites_only_files_with_deleted_rows(tmp_path):
    _, dataset = written(tmp_path / "a.dp")
    rows = dataset["train"].read("row_id")["row_id"][20:24]
    before = dict(dataset.manifest.files)
    receipt = dataset.delete(rows).purge()
    after = dp.open_dataset(tmp_path / "a.dp").manifest
    changed = {name for name, entry in after.files.items() if before[name] != entry}
    assert changed == {"train/table/part-00000.parquet", "train/arrays.zarr/review/c.1.0"}
    assert {name.partition("/")[2] for name in receipt["files"]} == changed
    assert json.loads((tmp_path / "a.dp" / "purge-00001.json").read_bytes()) == receipt
    assert [one.name for one in (tmp_path / "a.dp").iterdir() if one.is_dir()] == [after.version]
    assert dp.open_dataset(tmp_path / "a.dp").purge()["files"] == {}


def test_purge_removes_versions_with_purged_rows(tmp_path):
    _, dataset = written(tmp_path / "a.dp", parts=3)
    dataset.delete([3], part=1).purge()
    for version in (2, 3):
        with pytest.raises(ConfigError, match=r"its versions are 1, 4; purge or compact removed others"):
            dp.open_dataset(tmp_path / "a.dp", version=version)
    versions = {number: dp.open_dataset(tmp_path / "a.dp", version=number) for number in (1, 4)}
    sizes = {number: sum(map(len, one.splits.values())) for number, one in versions.items()}
    assert sizes == {1: ROWS, 4: 3 * ROWS - 1}


def png(color):
    file = io.BytesIO()
    Image.effect_noise((24, 24), 90).convert("RGB").point(lambda value: (value * color) % 251).save(file, "png")
    return file.getvalue()


def occurrences(folder, needle):
    return [file.name for file in folder.rglob("*") if file.is_file() and needle in file.read_bytes()]


@pytest.mark.parametrize("mode", ["lazy", "lazy_cached", "eager"])
@pytest.mark.filterwarnings("ignore:column .size.:UserWarning")
def test_purge_removes_every_byte_of_row(tmp_path, mode):
    path, pictures = tmp_path / "a.dp", [png(color) for color in range(1, 41)]
    rare = 12.345678912345
    frame = pd.DataFrame(
        {
            "price": [rare if row == 17 else float(row) for row in range(40)],
            "picture": pictures,
            "size": ["unreadable-secret" if row == 21 else str(row) for row in range(40)],
            "city": ["secretville" if row == 17 else f"city{row % 3}" for row in range(40)],
            "review": ["good day" if row != 17 else "good whistleblower day" for row in range(40)],
            "bag": ["one two" if row != 17 else "one one sackcloth" for row in range(40)],
        }
    )
    features = {
        "price": dp.Number(normalization=None),
        "picture": dp.Image(height=24, width=24, mode=mode, pack=mode != "eager"),
        "size": dp.Number(missing_value_strategy="drop_row"),
        "city": "category",
        "review": dp.Text(level="both"),
        "bag": "bag",
    }
    prep = dp.Preprocessor(features, split=None)
    dataset = prep.fit_write(frame, path, block_rows=8, compression="none", progress=False)
    if mode == "lazy_cached":
        dataset.cache_media(progress=False)
    pixels = dataset["train"].read("picture")["picture"][17].tobytes()
    secrets = [
        np.float32(rare).tobytes(),
        pixels if mode != "lazy" else pictures[17],
        b"unreadable-secret",
        b"secretville",
    ]
    secrets += [b"whistleblower", b"sackcloth"]
    assert all(occurrences(path, secret) for secret in secrets)
    deleted = dataset.delete([17, 21])
    assert len(deleted.rejects()) == 0
    if mode == "lazy_cached":
        deleted.cache_media(progress=False)
    columns = ["picture", "price", "city", "review_word", "bag"]
    rest, cities = deleted["train"].read(columns), deleted["train"].head(40)["city"].tolist()
    tokens_before = dataset.vocabulary("city").tokens.to_pylist()
    receipt = deleted.purge()
    assert not [occurrences(path, secret) for secret in [*secrets, pictures[17], pixels] if occurrences(path, secret)]
    purged = dp.open_dataset(path)
    purged.verify()
    assert all(np.array_equal(array, rest[name]) for name, array in purged["train"].read([*rest]).items())
    assert sum(len(batch["city"]) for batch in purged["train"].loader(8)) == 38
    assert purged["train"].head(40)["city"].tolist() == cities
    tokens = purged.vocabulary("city").tokens.to_pylist()
    assert tokens == [*tokens_before[:-1], f"<REMOVED {len(tokens) - 1}>"]
    letters = set("whistleblower") - set("good day")
    assert receipt["removed_tokens"] == {"city": 1, "review": 1 + len(letters), "bag": 1}
    with pytest.raises(ConfigError, match="from_dataset"):
        prep.append(frame, path, progress=False)
    again = dp.Preprocessor.from_dataset(purged)
    assert again.encode(frame)["city"][17] == 0
    assert len(again.append(frame[:3], path, progress=False)["train"]) == 41


def test_delete_all_rows_of_block_and_split(tmp_path):
    _, dataset = written(tmp_path / "a.dp")
    rows = dataset["train"].read("row_id")["row_id"]
    deleted = dataset.delete([*rows[16:48], *dataset["test"].read("row_id")["row_id"]])
    assert list(deleted.splits) == ["train", "validation"]
    assert np.array_equal(deleted["train"].read("row_id")["row_id"], np.delete(rows, slice(16, 48)))
    assert deleted["train"].layout.blocks("train") == dataset["train"].layout.blocks("train") - 2
    assert list(deleted.delete(rows).splits) == ["validation"]


def test_deleting_deleted_rows_creates_no_version(tmp_path):
    _, dataset = written(tmp_path / "a.dp")
    dataset.delete([4, 7])
    before = (tmp_path / "a.dp" / "appended.json").read_bytes()
    assert sum(map(len, dataset.delete([7, 4, 4]).splits.values())) == ROWS - 2
    assert (tmp_path / "a.dp" / "appended.json").read_bytes() == before


@pytest.mark.parametrize(
    ("rows", "part", "message"),
    [
        ([ROWS], 0, "has no row 400: pass row ids of its splits or rejects"),
        ([-1], 0, "has no row -1"),
        ([1], None, r"has 2 parts, each with rows from 0: pass part=0 to 1"),
        ([1], 2, "part=2"),
        ([True, False], 0, r"np.flatnonzero\(mask\)"),
        (["1"], 0, "is no list of row ids"),
        (1, 0, "is no list of row ids"),
    ],
)
def test_delete_invalid_rows_raises(tmp_path, rows, part, message):
    _, dataset = written(tmp_path / "a.dp", parts=2)
    with pytest.raises(ConfigError, match=message):
        dataset.delete(rows, part=part)


def test_delete_from_unsupported_datasets_raises(tmp_path):
    folded = dp.Preprocessor({"price": "number"}, split=dp.KFold(2)).fit_write(
        sales(), tmp_path / "f.dp", progress=False
    )
    _, grown = written(tmp_path / "a.dp", parts=2)
    joined = dp.open_dataset([tmp_path / "a.dp" / "part-00001"] * 2)
    for dataset, message in (
        (folded, "has folds"),
        (folded.fold(0), "is a part of a dataset"),
        (grown.datasets[1], "is a part of a dataset"),
        (joined, "needs a single dataset"),
    ):
        with pytest.raises(ConfigError, match=message):
            dataset.delete([1])
        with pytest.raises(ConfigError, match=message):
            dataset.purge()


def test_arrays_of_split_with_deleted_rows_raise(tmp_path):
    _, dataset = written(tmp_path / "a.dp")
    with pytest.raises(ConfigError, match=r"use read\(\) or to_dask\(\)"):
        dataset.delete([1])["train"].arrays  # noqa: B018


def test_altered_list_of_deleted_rows_raises(tmp_path):
    _, dataset = written(tmp_path / "a.dp")
    dataset.delete([1])
    [file] = (tmp_path / "a.dp").glob("deleted-*")
    data = file.read_bytes()
    file.write_bytes(data[:-1] + b"x")
    with pytest.raises(CorruptDatasetError, match=r"deleted-.* is damaged: its bytes do not match its name"):
        dp.open_dataset(tmp_path / "a.dp")
    file.write_bytes(data)
    appended = tmp_path / "a.dp" / "appended.json"
    text = json.dumps(json.loads(appended.read_bytes())["appended"] | {"format": 99}).encode()
    appended.write_bytes(b'{"checksum":"%08x","appended":%s}\n' % (crc32c(text), text))
    with pytest.raises(FormatVersionError, match="upgrade"):
        dp.open_dataset(tmp_path / "a.dp")


def test_overwrite_clears_deleted_rows(tmp_path):
    prep, dataset = written(tmp_path / "a.dp", parts=2)
    dataset.delete([1, 2], part=0)
    whole = prep.write(sales(5), tmp_path / "a.dp", overwrite=True, progress=False)
    assert sum(map(len, whole.splits.values())) == ROWS
    assert not list((tmp_path / "a.dp").glob("deleted-*"))


def test_purge_in_object_store():
    _, dataset = written("memory://deleting/a.dp")
    deleted = dataset.delete(DELETED)
    expected = kept_rows(deleted, 0, [])
    deleted.purge()
    purged = dp.open_dataset("memory://deleting/a.dp")
    purged.verify()
    check_readers(purged, expected)


def test_mix_with_deleted_rows(tmp_path):
    _, dataset = written(tmp_path / "a.dp")
    deleted, other = dataset.delete(DELETED), written(tmp_path / "b.dp")[1]
    sources = {"a": deleted["train"], "b": other["train"]}
    mix = dp.Mix(sources, 16, until="first")
    assert sum(len(batch["number"]) for batch in mix) > 0


class Killed(BaseException):
    """Ends a call as a kill would: nothing handles it."""


def count_steps(monkeypatch, kill_at=None):
    """Return a list with the number of changes of files since the call; the change number `kill_at` is not made."""
    steps = [0]

    def counted(call):
        def step(*args, **options):
            if steps[0] == kill_at:
                raise Killed
            steps[0] += 1
            return call(*args, **options)

        return step

    for name in ("write", "link", "remove", "remove_all"):
        monkeypatch.setattr(Folder, name, counted(getattr(Folder, name)))
    return steps


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_rows_deleted_between_killed_purges_are_removed(tmp_path, monkeypatch, share):
    frame = pd.DataFrame({"c": [f"word{row}" for row in range(12)], "n": np.arange(12.0)})
    features = {"c": "category", "n": dp.Number(normalization=None), "t": dp.TargetEncoding(column="c", target="n")}
    prep = dp.Preprocessor(features, split=None)
    prep.fit_write(frame, tmp_path / "a.dp", progress=False).delete([2])
    prep.append(frame.assign(n=frame["n"] + 100), tmp_path / "a.dp", progress=False, on_findings="ignore")
    shutil.copytree(tmp_path / "a.dp", tmp_path / "whole.dp")
    with monkeypatch.context() as patch:
        steps = count_steps(patch)
        dp.open_dataset(tmp_path / "whole.dp").purge()
    for number in range(0, steps[0], share):
        path = tmp_path / f"{number}.dp"
        shutil.copytree(tmp_path / "a.dp", path)
        with monkeypatch.context() as patch:
            count_steps(patch, number)
            with pytest.raises(Killed):
                dp.open_dataset(path).purge()
        dp.open_dataset(path).delete([5], part=0)
        dp.open_dataset(path).delete([7], part=1)
        last = dp.open_dataset(path).purge()
        receipts = [json.loads(file.read_bytes()) for file in sorted(path.glob("purge-*.json"))]
        assert last == receipts[-1], number
        assert all(receipt["finished"] for receipt in receipts), number
        ids = [sorted(np.concatenate(own).tolist()) for own in zip(*(one["row_ids"] for one in receipts), strict=True)]
        assert ids == [[2, 5], [7]], number
        dataset = dp.open_dataset(path)
        dataset.verify()
        assert dataset["train"].read("n")["n"].tolist() == [*{*range(12)} - {2, 5}, *{*range(100, 112)} - {107}], number
        stored = [pq.read_table(file, columns=["n"])["n"].to_pylist() for file in path.rglob("train/table/*.parquet")]
        assert not {2.0, 5.0, 107.0} & {*itertools.chain.from_iterable(stored)}, number
        assert not list(path.rglob("next.json")), number
        lists = {state[1] for state in read_versions(dataset.root).states if state}
        assert {file.name for file in path.glob("deleted-*")} == lists, number


RECEIPT = {"row_ids": [[1]], "files": {}, "removed_versions": [1], "manifests": [], "finished": None}
NO_RECEIPTS = {
    "empty": b"",
    "cut": json.dumps(RECEIPT).encode()[:40],
    "list": b"[]",
    "text": b'"purged"',
    "keys": b'{"finished": null}',
    "types": json.dumps({**RECEIPT, "removed_versions": [None, "1", 10**30]}).encode(),
    "nested": b"[" * 100_000,
    "bytes": b"\xff\xfe",
    "forged": json.dumps(RECEIPT).encode(),
    "forged_versions": json.dumps({**RECEIPT, "removed_versions": []}).encode(),
    "finished": json.dumps({**RECEIPT, "finished": "2026-01-01T00:00:00+00:00"}).encode(),
}


@pytest.mark.parametrize("name", ["purge-1.json", "purge-00007.json"])
def test_purge_does_not_trust_receipts(tmp_path, name):
    prep = dp.Preprocessor({"c": "category"}, split=None)
    prep.fit_write(pd.DataFrame({"c": [*"abc"]}), tmp_path / "a.dp", progress=False).delete([2])
    for case, content in NO_RECEIPTS.items():
        path = tmp_path / f"{case}.dp"
        shutil.copytree(tmp_path / "a.dp", path)
        (path / name).write_bytes(content)
        receipt = dp.open_dataset(path).purge()
        assert receipt["row_ids"] == [[2]], case
        assert receipt["removed_tokens"] == {"c": 1}, case
        # A purge that was not committed has no receipt; other files stay.
        assert "forged" in case or (path / name).read_bytes() == content, case
        assert receipt in [json.loads(file.read_bytes()) for file in path.glob("purge-*") if file.name != name], case
        assert dp.open_dataset(path).purge()["files"] == {}, case


def test_folder_and_earlier_receipts_are_not_replaced(tmp_path):
    _, dataset = written(tmp_path / "a.dp")
    (tmp_path / "a.dp" / "purge-00003.json").mkdir()
    dataset.delete([3]).purge()
    assert (tmp_path / "a.dp" / "purge-00004.json").is_file()
    (tmp_path / "a.dp" / "purge-00005.json").write_bytes(b"{}")
    (tmp_path / "a.dp" / "purge-00004.json").unlink()
    dp.open_dataset(tmp_path / "a.dp").delete([4])
    dp.open_dataset(tmp_path / "a.dp").purge()
    assert (tmp_path / "a.dp" / "purge-00006.json").is_file()


@pytest.mark.parametrize("purge", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
def test_readers_without_rows_name_remedy(tmp_path, parts, purge):
    _, dataset = written(tmp_path / "a.dp", parts)
    for part in range(parts):
        dataset = dataset.delete(np.arange(ROWS), part=part)
    if purge:
        dataset.purge()
        dataset = dp.open_dataset(tmp_path / "a.dp")
    calls = [
        lambda: dataset["train"],
        lambda: dataset["test"],
        dataset.report,
        dataset.plot,
        lambda: dataset.plot(split=None),
    ]
    for call in calls:
        with pytest.raises(
            ConfigError, match="has no rows, since all were deleted: append rows, or open an older version"
        ):
            call()
    assert "0 rows" in repr(dataset)
    prep = dp.Preprocessor.from_dataset(dataset)
    again = prep.append(sales(9), tmp_path / "a.dp", progress=False, on_findings="ignore")
    assert sum(map(len, again.splits.values())) == ROWS
    again.report()


@pytest.mark.parametrize("carrier", ["frame", "file"])
def test_writes_of_purged_source_name_remedy(tmp_path, carrier):
    frame, path = pd.DataFrame({"c": [*"abac"]}), tmp_path / "a.dp"
    frame.to_csv(tmp_path / "a.csv", index=False)
    rows = frame if carrier == "frame" else tmp_path / "a.csv"
    prep = dp.Preprocessor({"c": "category"}, split=None)
    prep.fit_write(rows, path, progress=False).delete([3])
    assert len(prep.fit_write(rows, path, progress=False)["train"]) == 4
    dp.open_dataset(path).purge()
    with pytest.raises(
        ConfigError, match=r"purge removed some of them: open it with open_dataset\(path\), or .*overwrite=True"
    ):
        prep.fit_write(rows, path, progress=False)
    prep = dp.Preprocessor.from_dataset(path)
    with pytest.warns(
        UserWarning, match="has these rows already, but those that purge removed, so that they are not appended"
    ):
        assert len(prep.append(rows, path, progress=False)["train"]) == 3
    with pytest.warns(UserWarning, match="append: purge removed rows of .*, and they return if .* still has them"):
        prep.append(rows, path, version="again", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prep.append(pd.DataFrame({"c": [*"bb"]}), path, progress=False)
    assert len(prep.fit_write(rows, path, overwrite=True, progress=False)["train"]) == 4


@pytest.mark.parametrize("splits", [False, True])
def test_append_of_changed_file_warns_of_purged_rows(tmp_path, splits):
    def rows(cells: str, file: str) -> Any:
        pd.DataFrame({"c": [*cells]}).to_csv(tmp_path / file, index=False)
        return {"train": tmp_path / file} if splits else tmp_path / file

    prep, path = dp.Preprocessor({"c": "category"}), tmp_path / "a.dp"
    prep.fit_write(rows("abacc", "a.csv"), path, progress=False).delete([1])
    dp.open_dataset(path).purge()
    prep = dp.Preprocessor.from_dataset(path)
    with pytest.warns(UserWarning, match=r'append: purge removed rows .*, and they return if .*a\.csv" still has them'):
        prep.append(rows("abaccc", "a.csv"), path, progress=False, on_findings="ignore")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prep.append(rows("ac", "b.csv"), path, progress=False, on_findings="ignore")


def test_list_of_deleted_rows_is_read_in_any_order(tmp_path, monkeypatch):
    _, dataset = written(tmp_path / "a.dp", parts=2)
    dataset.delete(range(0, ROWS, 3), part=0).delete(range(5, 90), part=1)
    [_, name] = sorted((file.stat().st_mtime_ns, file.name) for file in (tmp_path / "a.dp").glob("deleted-*"))
    hidden = segments.read_deleted(dataset.root, name[1], 2)
    table = pq.read_table(tmp_path / "a.dp" / name[1])
    mixed = table.take(np.random.default_rng(0).permutation(np.repeat(np.arange(len(table)), 2)))
    monkeypatch.setattr(segments, "read_bounded_table", lambda *_: mixed)
    for one, two in zip(hidden, segments.read_deleted(dataset.root, name[1], 2), strict=True):
        assert one.keys() == two.keys()
        assert all(np.array_equal(one[split], two[split]) for split in one)
    assert segments.encode_deleted(hidden)[0] == name[1]


def test_receipt_of_earlier_version_is_completed(tmp_path, monkeypatch):
    _, dataset = written(tmp_path / "a.dp")
    dataset.delete([3])

    def kill(*_, **options):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Dataset, "clear_cache", kill)
        with pytest.raises(Killed):
            dp.open_dataset(tmp_path / "a.dp").purge()
    file = tmp_path / "a.dp" / "purge-00001.json"
    receipt = json.loads(file.read_bytes())
    assert receipt.pop("kept")
    assert receipt.pop("removed_samples") == {}
    file.write_text(json.dumps(receipt))
    finished = dp.open_dataset(tmp_path / "a.dp").purge()
    assert finished == json.loads(file.read_bytes())
    assert finished.pop("finished")
    assert {**finished, "finished": None} == receipt


def test_purge_removes_what_killed_writes_left(tmp_path):
    _, dataset = written(tmp_path / "a.dp", parts=2)
    left = tmp_path / "a.dp" / f"{dataset.datasets[0].version}-7" / "scratch"
    left.mkdir(parents=True)
    (left / "rows.arrow").write_bytes(b"secretville")
    dataset.delete([3], part=1).purge()
    assert not left.parent.exists()
