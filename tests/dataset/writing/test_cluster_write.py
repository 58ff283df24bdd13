"""A cluster writes the same files as threads, also if a worker dies, and the client reads no rows."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, get_worker, worker_client

import daskprep as dp
from daskprep.dataset import Dataset, open_dataset
from daskprep.dataset.writing import encoded, parts, plan, rejects
from daskprep.errors import ConfigError, IncompleteDatasetError
from daskprep.passes import scratch
from daskprep.sources import base, partitions, read_files
from daskprep.storage import Folder, files

pytestmark = pytest.mark.cluster

ROWS = 400


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    words = np.array(["alpha", "Beta", "gamma,", "delta"])
    return pd.DataFrame(
        {
            "price": pd.Series(rng.lognormal(size=ROWS)).mask(rng.random(ROWS) < 0.2),
            "city": rng.choice(["Bern", "Oslo", "Rome"], ROWS, p=[0.1, 0.3, 0.6]),
            "review": [" ".join(rng.choice(words, rng.integers(0, 9))) for _ in range(ROWS)],
        }
    )


@pytest.fixture(scope="module")
def file(table, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("source") / "listings.parquet"
    table.to_parquet(path, row_group_size=50)
    return str(path)


@pytest.fixture(autouse=True)
def small_parts(sizes) -> None:
    """One block per part, for many parts."""
    sizes(part_bytes=1)


def prep(missing: str = "fill_with_mean", **parameters: Any) -> dp.Preprocessor:
    features = {"price": dp.Number(missing_value_strategy=missing), "city": "category", "review": "text"}
    parameters = {"balance": dp.Oversample("city", ratio=0.5), **parameters}
    return dp.Preprocessor(features, split=dp.StratifiedSplit("city"), **parameters)


def write(source: Any, url: Any, preprocessor: dp.Preprocessor | None = None, **parameters: Any) -> Dataset:
    return (preprocessor or prep()).fit_write(source, url, **{"version": "1", "block_rows": 64, **parameters})


def write_on_threads(
    source: Any, url: Path, preprocessor: dp.Preprocessor | None = None, **parameters: Any
) -> dict[str, bytes]:
    with dask.config.set(scheduler="threads"):
        write(source, url, preprocessor, **parameters)
    return content(url)


def content(url: str | Path, options: dict[str, Any] | None = None) -> dict[str, bytes]:
    folder = Folder.open(url, options)
    return {name: folder.read(name) for name in folder.sizes()}


def pieces(file: str, **options: Any) -> Any:
    return read_files(file, partition_bytes=1, **options)


def refuse(*arguments: Any) -> Any:
    raise AssertionError("this process reads no row")


@pytest.fixture
def reads_nothing(monkeypatch) -> None:
    """Make every read of rows fail in this process, but not on workers."""
    for kind in (base.FileFragment, base.JoinedFragment, scratch.ScratchFragment):
        monkeypatch.setattr(kind, "read", refuse)
    monkeypatch.setattr(partitions.graphs, "table_from_pandas", refuse)
    monkeypatch.setattr(scratch.SpillingParser, "parse", refuse)
    for task in (rejects.AssignSplits, encoded.Encode, parts.PartWriter):
        monkeypatch.setattr(task, "__call__", refuse)


@pytest.mark.parametrize("shuffle", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_paths_are_read_only_by_workers(cluster, file, tmp_path, request, shuffle):
    expected = write_on_threads(file, tmp_path / "threads.dp", shuffle=shuffle)
    request.getfixturevalue("reads_nothing")
    write(pieces(file), tmp_path / "cluster.dp", shuffle=shuffle)
    assert content(tmp_path / "cluster.dp") == expected


@pytest.mark.slow
def test_workers_read_learned_state_from_version_without_checkpoint(cluster, file, tmp_path, monkeypatch):
    expected = write_on_threads(file, tmp_path / "threads.dp")
    monkeypatch.setattr(plan.SavedLearned, "save_checkpoint", lambda self: False)
    write(pieces(file), tmp_path / "cluster.dp")
    assert content(tmp_path / "cluster.dp") == expected


def test_dask_frames_are_read_only_by_workers(cluster, table, file, tmp_path, request):
    expected = write_on_threads(table, tmp_path / "threads.dp", prep("ffill"))
    frame = dd.read_parquet(file, split_row_groups=True)
    assert frame.npartitions > 1
    request.getfixturevalue("reads_nothing")
    write(frame, tmp_path / "cluster.dp", prep("ffill"))
    assert content(tmp_path / "cluster.dp") == expected


def test_pandas_frames_are_written_in_this_process(cluster, table, tmp_path, monkeypatch):
    expected = write_on_threads(table, tmp_path / "threads.dp")
    for task in (rejects.AssignSplits, encoded.Encode, parts.PartWriter):
        monkeypatch.setattr(task, "__call__", refuse)
    write(table, tmp_path / "cluster.dp")
    assert content(tmp_path / "cluster.dp") == expected


@pytest.mark.slow
def test_fitted_preprocessor_writes_on_workers(cluster, table, file, tmp_path, request):
    with dask.config.set(scheduler="threads"):
        fitted = prep().fit(table)
        fitted.write(table, tmp_path / "threads.dp", version="1", block_rows=64)
    request.getfixturevalue("reads_nothing")
    fitted.write(pieces(file), tmp_path / "cluster.dp", version="1", block_rows=64)
    assert content(tmp_path / "cluster.dp") == content(tmp_path / "threads.dp")


def on_workers(
    client: Client, module: Any, name: str, method: str, make: Callable[[Any], Any], *, workers: Any = None
) -> Callable[[], None]:
    """Replace ``module.name.method`` on workers by the result of `make`; return a function that undoes it."""
    path = module.__name__

    def replace() -> None:
        import importlib

        owner = importlib.import_module(path)
        owner = getattr(owner, name) if name else owner
        owner.__replaced__ = getattr(owner, method)
        setattr(owner, method, make(owner.__replaced__))

    def undo() -> None:
        import importlib

        owner = importlib.import_module(path)
        owner = getattr(owner, name) if name else owner
        setattr(owner, method, owner.__replaced__)

    client.run(replace, workers=workers)
    return lambda: client.run(undo, workers=workers)


def dying(flag: str, call: int) -> Callable[[Any], Any]:
    """Return a function that kills its process at a call, unless another process was killed."""

    def make(original: Any) -> Any:
        calls = []

        def die(*arguments: Any) -> Any:
            calls.append(1)
            if len(calls) == call and get_worker():
                try:
                    os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    pass
                else:
                    os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments)

        return die

    return make


def process_ids(client: Client) -> set[int]:
    client.wait_for_workers(2)
    return set(client.run(os.getpid).values())


# A receipt is written after the files of its part.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "owner", "function"), [(encoded, "", "save_encoded"), (parts, "Receipt", "to_bytes")]
)
def test_killed_worker_does_not_change_files(cluster, table, file, tmp_path, module, owner, function):
    expected = write_on_threads(table, tmp_path / "threads.dp")
    before = process_ids(cluster)
    on_workers(cluster, module, owner, function, dying(str(tmp_path / "killed"), 2))
    write(pieces(file), tmp_path / "cluster.dp")
    assert (tmp_path / "killed").exists()
    after = process_ids(cluster)
    assert len(before & after) == 1
    assert content(tmp_path / "cluster.dp") == expected


@pytest.mark.slow
def test_write_inside_worker_task(cluster, table, tmp_path):
    table.to_parquet(tmp_path / "listings.parquet")
    preprocessor = prep()

    def job(path: Path) -> None:
        with worker_client():
            preprocessor.fit_write(tmp_path / "listings.parquet", path, block_rows=64)

    cluster.submit(job, tmp_path / "task.dp").result()
    found, expected = open_dataset(tmp_path / "task.dp"), write(table, tmp_path / "here.dp")
    for name, array in expected["train"].read(["row_id", "price", "review"]).items():
        np.testing.assert_array_equal(found["train"].read([name])[name], array)


def counting_frame(table: pd.DataFrame, folder: Path) -> dd.DataFrame:
    """Return a frame whose partitions create a file when they are read."""

    def read(number: int) -> pd.DataFrame:
        (folder / str(number)).touch()
        return table.iloc[number * 100 : (number + 1) * 100]

    return dd.from_map(read, range(4), meta=table.iloc[:0])


@pytest.mark.parametrize("with_scratch", [False, True])
def test_memory_url_on_cluster_raises_before_reading(cluster, table, tmp_path, with_scratch):
    (tmp_path / "read").mkdir()
    preprocessor = prep(scratch=str(tmp_path / "scratch") if with_scratch else None)
    with pytest.raises(ConfigError, match=r"workers cannot access memory://.*object store"):
        write(counting_frame(table, tmp_path / "read"), f"memory://{tmp_path.name}.dp", preprocessor)
    assert list((tmp_path / "read").iterdir()) == []
    assert content(f"memory://{tmp_path.name}.dp") == {}


@pytest.mark.slow
@pytest.mark.parametrize("worker", [0, 1])
def test_folder_invisible_to_a_worker_raises(cluster, file, tmp_path, worker):
    address = list(cluster.scheduler_info()["workers"])[worker]

    def blind(original: Any) -> Any:
        return lambda self, name: None

    undo = on_workers(cluster, files, "Folder", "size", blind, workers=[address])
    try:
        with pytest.raises(ConfigError, match="workers cannot access"):
            write(file, tmp_path / "a.dp")
    finally:
        undo()


@pytest.mark.slow
def test_workers_read_and_write_s3(cluster, s3, table, file, tmp_path, request):
    expected = write_on_threads(file, tmp_path / "threads.dp", shards=True)
    url, options = f"{s3.url}/{tmp_path.name}", s3.storage_options
    Folder.open(url, options).write("listings.parquet", Path(file).read_bytes())
    request.getfixturevalue("reads_nothing")
    written = write(pieces(f"{url}/listings.parquet", storage_options=options), f"{url}/a.dp", storage_options=options)
    assert content(f"{url}/a.dp", options) == expected
    local = open_dataset(tmp_path / "threads.dp")["train"].read(["review", "price"])
    for name, array in dask.compute(written["train"].to_dask(["review", "price"]))[0].items():
        np.testing.assert_array_equal(array, local[name])


@pytest.mark.slow
def test_interrupted_s3_write_resumes(cluster, s3, file, tmp_path):
    expected = write_on_threads(file, tmp_path / "threads.dp", shards=True)
    url, options = f"{s3.url}/{tmp_path.name}/a.dp", s3.storage_options

    def fail(original: Any) -> Any:
        def write_part(self: Any, part: Any) -> Any:
            if part.split == "test":
                raise RuntimeError("the power is gone")
            return original(self, part)

        return write_part

    undo = on_workers(cluster, parts, "PartWriter", "__call__", fail)
    try:
        with pytest.raises(RuntimeError, match="the power is gone"):
            write(pieces(file), url, storage_options=options)
    finally:
        undo()
    left = content(url, options)
    assert any("/scratch/" in name for name in left)
    # A worker logs the arguments of what failed.
    left["the logs"] = str(cluster.get_worker_logs()).encode()
    assert b"the power is gone" in left["the logs"]
    secrets = [options["key"].encode(), options["secret"].encode()]
    assert not [name for name, data in left.items() for secret in secrets if secret in data]
    with pytest.raises(IncompleteDatasetError):
        open_dataset(url, storage_options=options)
    write(pieces(file), url, storage_options=options)
    assert content(url, options) == expected
