"""A dataset in an object store has the bytes of one in a local folder."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import daskprep as dp
from daskprep.dataset import Dataset, open_dataset
from daskprep.dataset.writing.parts import PartWriter
from daskprep.errors import ConfigError, CorruptDatasetError, IncompleteDatasetError
from daskprep.passes.scratch import SpillingParser
from daskprep.sources import read_files
from daskprep.storage import Folder

ROWS = 200


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    words = np.array(["alpha", "beta", "gamma"])
    return pd.DataFrame(
        {
            "price": pd.Series(rng.lognormal(size=ROWS)).mask(rng.random(ROWS) < 0.1),
            "city": rng.choice(["Oslo", "Rome"], ROWS),
            "review": [" ".join(rng.choice(words, rng.integers(0, 5))) for _ in range(ROWS)],
        }
    )


@pytest.fixture(scope="module")
def file(table, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("source") / "listings.parquet"
    table.to_parquet(path, row_group_size=50)
    return str(path)


@pytest.fixture(params=["s3", "memory"])
def store(request, tmp_path) -> Iterator[Any]:
    """A separate folder, in a bucket or in memory."""
    if request.param == "memory":
        url, options = f"memory://{tmp_path.name}", {}
    else:
        url, options = request.getfixturevalue("s3")
        url = f"{url}/{tmp_path.name}"
    yield url, options
    Folder.open(url, options).remove_all()


def prep(**parameters: Any) -> dp.Preprocessor:
    features = {"price": dp.Number(missing_value_strategy="fill_with_mean"), "city": "category", "review": "text"}
    return dp.Preprocessor(features, split=dp.StratifiedSplit("city"), **parameters)


def write(source: Any, url: str, options: dict[str, Any], **parameters: Any) -> Dataset:
    parameters = {"version": "1", "block_rows": 64, "shards": True, **parameters}
    return prep().fit_write(source, url, storage_options=options, **parameters)


def content(url: str | Path, options: dict[str, Any] | None = None) -> dict[str, bytes]:
    folder = Folder.open(url, options)
    return {name: folder.read(name) for name in folder.sizes()}


@pytest.fixture(scope="module")
def local(file, tmp_path_factory) -> Dataset:
    return write(file, str(tmp_path_factory.mktemp("written") / "local.dp"), {})


@pytest.fixture
def small_parts(sizes) -> None:
    """One block per part, for many parts."""
    sizes(part_bytes=1)


def failing_after(monkeypatch, parts: int) -> list[Any]:
    """Make a write fail after some parts; return the list of started parts."""
    started_parts: list[Any] = []
    original = PartWriter.__call__

    def write_part(self: PartWriter, part: Any, *made: Any) -> Any:
        started_parts.append(part)
        if len(started_parts) > parts:
            raise RuntimeError("the power is gone")
        return original(self, part, *made)

    monkeypatch.setattr(PartWriter, "__call__", write_part)
    return started_parts


def test_store_has_bytes_of_local_folder(file, local, store):
    write(file, f"{store[0]}/a.dp", store[1])
    assert content(f"{store[0]}/a.dp", store[1]) == content(local.url)


def test_dataset_in_store_equals_local_dataset(file, local, store):
    write(file, f"{store[0]}/a.dp", store[1])
    found = open_dataset(f"{store[0]}/a.dp", storage_options=store[1])
    assert found.metadata == local.metadata
    assert found.vocabulary("review").tokens == local.vocabulary("review").tokens
    for name, split in found.splits.items():
        assert split.table().equals(local[name].table())
        pd.testing.assert_frame_equal(split.head(), local[name].head())
        lazy, expected = split.to_dask(["row_id", *split.columns]), local[name].read(["row_id", *split.columns])
        for output, array in split.read(["row_id", *split.columns]).items():
            np.testing.assert_array_equal(array, expected[output])
            np.testing.assert_array_equal(lazy[output].compute(), expected[output])
        np.testing.assert_array_equal(split.arrays["review"][:], expected["review"])
    found.verify()


def test_rows_are_read_from_store(file, local, store):
    url, options = store
    Folder.open(url, options).write("data/listings.parquet", Path(file).read_bytes())
    write(f"{url}/data", f"{url}/a.dp", options)
    assert content(f"{url}/a.dp", options) == content(local.url)


def test_partitions_are_read_from_store(file, local, store, tmp_path):
    url, options = store
    Folder.open(url, options).write("listings.parquet", Path(file).read_bytes())
    source = read_files(f"{url}/listings.parquet", partition_bytes=1, storage_options=options)
    assert source.npartitions == ROWS // 50
    write(source, str(tmp_path / "b.dp"), options)
    assert content(tmp_path / "b.dp") == content(local.url)


@pytest.mark.parametrize(("store", "format"), [("s3", "csv"), ("memory", "jsonl")], indirect=["store"])
def test_text_files_are_read_from_store(table, store, tmp_path, format):
    url, options = store
    text = table.to_csv(index=False) if format == "csv" else table.to_json(orient="records", lines=True)
    Folder.open(url, options).write(f"listings.{format}", text.encode())
    (tmp_path / f"listings.{format}").write_text(text)
    write(f"{url}/*.{format}", f"{url}/a.dp", options)
    write(str(tmp_path / f"listings.{format}"), str(tmp_path / "b.dp"), {})
    assert content(f"{url}/a.dp", options) == content(tmp_path / "b.dp")


def test_rewriting_same_version_reads_and_writes_nothing(file, store, monkeypatch):
    url, options = store
    Folder.open(url, options).write("listings.parquet", Path(file).read_bytes())
    first = write(f"{url}/listings.parquet", f"{url}/a.dp", options, version=None)
    monkeypatch.setattr(PartWriter, "__call__", None)
    monkeypatch.setattr(SpillingParser, "parse", None)
    filesystem = Folder.open(url, options).filesystem
    monkeypatch.setattr(type(filesystem), "_pipe_file" if filesystem.async_impl else "pipe_file", None)
    again = write(f"{url}/listings.parquet", f"{url}/a.dp", options, version=None)
    assert again.version == first.version


def test_changed_source_in_store_is_rewritten(file, table, store):
    url, options = store
    source, folder = f"{url}/listings.parquet", Folder.open(url, options)
    folder.write("listings.parquet", Path(file).read_bytes())
    first = write(source, f"{url}/a.dp", options, version=None)
    changed = Path(file).with_name("changed.parquet")
    table[::-1].to_parquet(changed, row_group_size=50)
    folder.write("listings.parquet", changed.read_bytes())
    again = write(source, f"{url}/a.dp", options, version=None, overwrite=True)
    assert again.version != first.version
    assert {name.split("/")[0] for name in (folder / "a.dp").sizes()} == {again.version, "manifest.json"}


def test_overwrite_leaves_only_new_version(file, store):
    url, options = store
    first = write(file, f"{url}/a.dp", options)
    again = write(file, f"{url}/a.dp", options, overwrite=True)
    assert again.version == f"{first.version}-1"
    names = {name.split("/")[0] for name in content(f"{url}/a.dp", options)}
    assert names == {again.version, "manifest.json"}
    again.verify()


def test_interrupted_write_resumes_by_receipts(file, local, store, small_parts, monkeypatch, tmp_path):
    url, options = store
    url = f"{url}/a.dp"
    with monkeypatch.context() as patch:
        failing_after(patch, 3)
        with pytest.raises(RuntimeError, match="the power is gone"):
            write(file, url, options)
    with pytest.raises(IncompleteDatasetError):
        open_dataset(url, storage_options=options)
    receipts = [name for name in content(url, options) if "/receipts/" in name]
    assert len(receipts) == 3
    started_parts = failing_after(monkeypatch, 1000)
    written = write(file, url, options)
    assert len(started_parts) == sum(written.layout.parts(split) for split in written) - 3
    write(file, str(tmp_path / "parts.dp"), {})
    assert content(url, options) == content(tmp_path / "parts.dp")


@pytest.mark.slow
def test_old_dataset_is_kept_until_new_one_is_complete(file, store, small_parts, monkeypatch):
    url, options = store
    url = f"{url}/a.dp"
    first = write(file, url, options)
    with monkeypatch.context() as patch:
        failing_after(patch, 3)
        with pytest.raises(RuntimeError):
            write(file, url, options, version="2", overwrite=True)
    kept = open_dataset(url, storage_options=options)
    assert kept.version == first.version
    kept.verify()
    second = write(file, url, options, version="2", overwrite=True)
    assert {name.split("/")[0] for name in content(url, options)} == {second.version, "manifest.json"}


@pytest.mark.parametrize("store", ["memory"], indirect=True)
def test_receipt_without_file_is_ignored(file, store, small_parts, monkeypatch):
    url, options = store
    url = f"{url}/a.dp"
    with monkeypatch.context() as patch:
        failing_after(patch, 3)
        with pytest.raises(RuntimeError):
            write(file, url, options)
    [table, *_] = sorted(name for name in content(url, options) if "/table/" in name)
    Folder.open(url, options).remove(table)
    write(file, url, options).verify()


def test_dataset_written_by_another_process_is_visible(file, store):
    url, options = store
    url = f"{url}/a.dp"
    with pytest.raises(ConfigError, match="no dataset"):
        open_dataset(url, storage_options=options)
    # A separate instance of the file system, as in another process.
    write(file, url, {**options, "skip_instance_cache": True})
    assert len(open_dataset(url, storage_options=options)["train"]) > 0


def test_missing_or_altered_object_is_named(file, store):
    url, options = store
    dataset = write(file, f"{url}/a.dp", options)
    folder = Folder.open(f"{url}/a.dp/{dataset.version}", options)
    chunk, part = "train/arrays.zarr/review/c.0.0", "train/table/part-00000.parquet"
    folder.remove(chunk)
    folder.write(part, folder.read(part)[::-1])
    assert sorted(damage.file.partition("/")[2] for damage in dataset.damaged()) == [chunk, part]
    with pytest.raises(CorruptDatasetError, match=chunk):
        dataset["train"].read(["review"])
    with pytest.raises(CorruptDatasetError, match=chunk):
        dataset["train"].arrays["review"][:]
    with pytest.raises(CorruptDatasetError, match=part):
        dataset["train"].table()


def test_special_characters_in_folder_names(file, store):
    url, options = store
    written = write(file, f"{url}/Zürich a[1]*? +%20.dp/", options)
    written.verify()
    written["train"].arrays["review"][:]
    assert Folder.open(url, options).children() == ["Zürich a[1]*? +%20.dp"]


def test_empty_folder_marker_is_ignored(file, s3, tmp_path):
    # The S3 console creates folders as empty objects whose name ends with a slash.
    url = f"{s3.url}/{tmp_path.name}/a.dp"
    filesystem = fsspec.filesystem("s3", **s3.storage_options)
    filesystem.pipe_file(f"{url}/", b"")
    written = write(file, url, s3.storage_options)
    written.verify()
    assert write(file, url, s3.storage_options).version == written.version


def test_folder_with_other_objects_raises(file, store):
    url, options = store
    Folder.open(url, options).write("a.dp/notes.txt", b"mine")
    with pytest.raises(ConfigError, match=r"notes\.txt"):
        write(file, f"{url}/a.dp", options, overwrite=True)
    assert content(f"{url}/a.dp", options) == {"notes.txt": b"mine"}


def secrets(options: dict[str, Any]) -> list[bytes]:
    return [options["key"].encode(), options["secret"].encode()]


@pytest.mark.slow
def test_objects_contain_no_secrets(file, s3, small_parts, monkeypatch, tmp_path):
    url, options = f"{s3.url}/{tmp_path.name}", s3.storage_options
    Folder.open(url, options).write("listings.parquet", Path(file).read_bytes())
    objects = []
    with monkeypatch.context() as patch:
        failing_after(patch, 3)
        with pytest.raises(RuntimeError):
            write(f"{url}/listings.parquet", f"{url}/a.dp", options, version=None)
    objects += content(url, options).values()
    write(f"{url}/listings.parquet", f"{url}/a.dp", options, version=None)
    objects += content(url, options).values()
    assert len(objects) > 30
    assert not [data for data in objects for secret in secrets(options) if secret in data]


def test_reprs_contain_no_secrets(file, s3, tmp_path):
    dataset = write(file, f"{s3.url}/{tmp_path.name}/a.dp", s3.storage_options)
    shown = [repr(dataset), dataset._repr_html_(), repr(dataset.root), repr(dataset["train"]), repr(dataset.files)]
    shown += [repr(dataset["train"].to_dask()), repr(dataset["train"].to_xarray()), repr(dataset["train"].arrays)]
    shown += [
        repr(dataset["train"].block_reader("review")),
        repr(dataset.manifest),
        repr(dataset["train"].arrays.store),
    ]
    shown += [repr(prep()), repr(read_files(file, storage_options=s3.storage_options))]
    assert not [text for text in shown for secret in secrets(s3.storage_options) if secret.decode() in text]


def test_errors_contain_no_secrets(file, s3, tmp_path):
    url, options = f"{s3.url}/{tmp_path.name}/a.dp", s3.storage_options
    dataset = write(file, url, options)
    dataset.root.remove(f"{dataset.version}/metadata.json")
    closed = {**options, "client_kwargs": {"endpoint_url": "http://127.0.0.1:9"}, "attempts": 1}
    calls = [
        lambda: open_dataset(url, storage_options=options),
        lambda: open_dataset(url, storage_options=closed),
        lambda: write(file, url, closed),
        lambda: write(f"{s3.url}/none.parquet", url, options),
        lambda: write(file, "s3://no-such-bucket/a.dp", options),
    ]
    for call in calls:
        with pytest.raises((OSError, ConfigError, CorruptDatasetError)) as caught:
            call()
        # With the errors that it comes from.
        text = "".join(traceback.format_exception(caught.value))
        assert not [secret for secret in secrets(options) if secret.decode() in text]


def test_credentials_in_url_are_not_shown_or_stored(file, tmp_path):
    url = f"memory://AKIAOPENSESAME:hunter2@{tmp_path.name}/a.dp"
    dataset = write(file, url, {})
    assert "hunter2" not in repr(dataset) + dataset.url
    assert not [data for data in content(url).values() if b"hunter2" in data]
    Folder.open(url).remove_all()


def test_unwritable_store_raises_before_reading(file, s3, monkeypatch):
    monkeypatch.setattr(SpillingParser, "parse", None)
    with pytest.raises((ConfigError, FileNotFoundError), match="s3://no-such-bucket"):
        write(file, "s3://no-such-bucket/a.dp", s3.storage_options)


def test_scratch_of_store_is_local_and_removed(file, store, monkeypatch, temporary):
    seen = []
    original = PartWriter.__call__
    monkeypatch.setattr(
        PartWriter, "__call__", lambda self, *args: seen.append(self.scratch.url) or original(self, *args)
    )
    write(file, f"{store[0]}/a.dp", store[1])
    assert all(url.startswith(str(temporary)) for url in seen)
    assert seen
    assert list(temporary.iterdir()) == []


def test_tables_in_store_are_readable_by_pyarrow(file, local, store):
    url, options = store
    dataset = write(file, f"{url}/a.dp", options)
    filesystem = Folder.open(url, options).filesystem
    path = f"{Folder.open(url, options).path}/a.dp/{dataset.version}/train/table"
    assert pq.read_table(path, filesystem=filesystem).equals(local["train"].table())
