"""Streams on a cluster equal those on threads, also with several, killed or slow trainers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, Nanny, Scheduler, SpecCluster, get_task_stream, get_worker

import daskprep as dp
from daskprep.extensions.media.pixels import encode_png
from daskprep.sources import read_files

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:.* are left out:UserWarning"),
]

# As in trainer_process.py.
BATCH_SIZE, WINDOW = 60, 30_000
OPTIONS = {"row_ids": True, "window": WINDOW}


def counted_frame(table, log: Path, kill: Path | None = None):
    """Return a frame that logs reads; the worker that reads the fifth partition is killed once."""

    def read(piece):
        if piece == 4 and kill is not None and get_worker():
            try:
                os.close(os.open(kill, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        with log.open("a") as file:
            file.write(f"{piece}\n")
        return table.iloc[piece * 100 : (piece + 1) * 100]

    return dd.from_map(read, range(11), meta=table.iloc[:0])


def equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def wait_for(condition):
    """Wait for a condition that other threads change."""
    pause, deadline = threading.Event(), time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.02)


@pytest.fixture(scope="module")
def expected(simple, path):
    """Return the global batches of two epochs of one trainer on threads."""
    source = read_files(path, partition_bytes=1)
    return [batch["row_id"].numpy().copy() for batch in simple.stream(source, BATCH_SIZE, epochs=2, **OPTIONS)]


@pytest.mark.slow
def test_cluster_yields_same_batches_as_threads(cluster, prep, parts, table, numbers, joined):
    frame = dd.from_pandas(table, npartitions=7, sort=False)
    for source in (parts, frame):
        stream = prep.stream(source, 48, client=cluster, epochs=2, **OPTIONS)
        with get_task_stream(cluster) as tasks:
            found = list(stream)
        assert tasks.data
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("daskprep.sources.partitions.executors.active_client", lambda: None)
            on_threads = list(prep.stream(source, 48, epochs=2, **OPTIONS))
        equal(numbers(found), numbers(on_threads))
        values, wanted = joined(found), joined(on_threads)
        assert all(np.array_equal(values[name], wanted[name], equal_nan=True) for name in wanted)


@pytest.mark.slow
@pytest.mark.parametrize("decode_on", ["trainer", "workers"])
def test_images_on_cluster_equal_images_on_threads(cluster, tmp_path, joined, decode_on):
    rng = np.random.default_rng(0)
    photos = [encode_png(rng.integers(0, 255, (8, 8, 3), np.uint8)) for _ in range(60)]
    frame = pd.DataFrame({"photo": photos})
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=9)
    source = read_files(tmp_path / "rows.parquet", partition_bytes=1)
    prep = dp.Preprocessor({"photo": dp.Image(height=8, width=8, num_channels=3)}).fit(frame)
    options = {"row_ids": True, "window": "1MB"}
    streams = [
        prep.stream(source, 8, client=cluster, decode_on=decode_on, rank=rank, world_size=2, **options)
        for rank in range(2)
    ]
    found = joined([batch for stream in streams for batch in stream])
    assert np.array_equal(found["photo"], joined(prep.stream(frame, 8, **options))["photo"])
    assert sum(stream.stats()["decoded"] for stream in streams) == (60 if decode_on == "trainer" else 0)


def test_workers_import_no_torch(cluster, prep, parts):
    list(prep.stream(parts, 48, window="1MB"))
    assert set(cluster.run(lambda: "torch" in sys.modules).values()) == {False}


def test_large_state_is_not_in_graph(cluster, tmp_path):
    frame = pd.DataFrame({"user": [f"user {i}" for i in range(20_000)]})
    frame.to_parquet(tmp_path / "rows.parquet")
    prep = dp.Preprocessor({"user": "category"}).fit(frame)
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "100 kB"}):
        batches = list(prep.stream(tmp_path / "rows.parquet", 10_000, client=cluster))
    assert [len(batch["user"]) for batch in batches] == [10_000, 10_000]


def test_no_future_remains_after_iteration(cluster, simple, parts):
    list(simple.stream(parts, 48, **OPTIONS))
    for _ in simple.stream(parts, 48, **OPTIONS):
        break
    for rank in range(2):
        next(iter(simple.stream(parts, 48, rank=rank, world_size=2, **OPTIONS)))
    wait_for(lambda: not cluster.futures)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("daskprep")]


def test_task_error_names_partition(cluster, simple, table):
    def read(piece):
        if piece == 3:
            raise OSError("the disk is broken")
        return table.iloc[piece * 100 : (piece + 1) * 100]

    frame = dd.from_map(read, range(11), meta=table.iloc[:0])
    # Counting rows must not read it.
    stream = simple.stream(dd.from_map(lambda piece: table.iloc[piece * 100 :][:100], range(11), meta=table[:0]), 48)
    stream.source.frame = frame
    with pytest.raises(OSError, match="disk is broken") as caught:
        list(stream)
    assert "while partition 3 was read and encoded" in caught.value.__notes__


@pytest.mark.slow
def test_trainers_share_encoded_partitions(cluster, simple, table, tmp_path, expected):
    log = tmp_path / "log"
    frame = counted_frame(table, log)
    address = cluster.scheduler.address
    with Client(address, set_as_default=False) as one, Client(address, set_as_default=False) as other:
        streams = [
            simple.stream(frame, BATCH_SIZE, client=client, rank=rank, world_size=2, epochs=2, **OPTIONS)
            for rank, client in enumerate((one, other))
        ]
        log.write_text("")
        with ThreadPoolExecutor(2) as pool:
            # In step, like trainers that share gradients.
            step = threading.Barrier(2)

            def train(stream):
                seen_rows = []
                for batch in stream:
                    seen_rows.append(batch["row_id"].numpy().copy())
                    step.wait(60)
                return seen_rows

            ranks = list(pool.map(train, streams))
        wait_for(lambda: not one.futures and not other.futures)
    equal([np.concatenate(shares) for shares in zip(*ranks, strict=True)], expected)
    # Less than once per trainer; the last partition of an epoch may still be in memory for the next.
    reads = np.bincount([int(line) for line in log.read_text().split()], minlength=11)
    assert ((reads == 1) | (reads == 2)).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_killed_worker_does_not_change_batches(simple, table, tmp_path, numbers, expected):
    kill = tmp_path / "killed"
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as workers,
        Client(workers),
    ):
        frame = counted_frame(table, tmp_path / "log")
        stream = simple.stream(frame, BATCH_SIZE, epochs=2, **OPTIONS)
        stream.source.frame = counted_frame(table, tmp_path / "log", kill)
        found = numbers(stream)
    assert kill.exists()
    equal(found, expected)


def start(cluster, simple, path, folder, rank, world, stop=0):
    """Start a trainer that hangs after some batches or runs to the end."""
    simple.save(folder / "prep.json")
    script = str(Path(__file__).with_name("trainer_process.py"))
    code = f"import runpy; runpy.run_path({script!r}, run_name='__main__')"
    arguments = [cluster.scheduler.address, folder / "prep.json", path, folder / f"{rank}.jsonl", rank, world, stop]
    command = [str(part) for part in (sys.executable, "-c", code, *arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_killed_trainer_resumes_from_state(cluster, simple, path, tmp_path, expected):
    trainers = [start(cluster, simple, path, tmp_path, rank, 2, stop=9 * (1 - rank)) for rank in range(2)]
    assert trainers[0].stdout.readline() == "stopped\n"
    trainers[0].kill()
    trainers[0].wait()
    # The other trainer does not depend on it and continues.
    again = start(cluster, simple, path, tmp_path, 0, 2)
    for trainer in (again, trainers[1]):
        out, _ = trainer.communicate(timeout=500)
        assert (trainer.returncode, out) == (0, "done\n")
    trainers[0].communicate()
    notes = [[json.loads(one) for one in (tmp_path / f"{rank}.jsonl").read_text().splitlines()] for rank in range(2)]
    pairs = zip(*notes, strict=True)
    equal([np.concatenate([one["rows"], other["rows"]]) for one, other in pairs], expected)


@pytest.mark.slow
def test_stalled_trainer_pauses_cluster_and_continues(cluster, simple, table, tmp_path, numbers):
    log = tmp_path / "log"
    stream = simple.stream(counted_frame(table, log), 50, window=12_000, row_ids=True, epochs=3)
    log.write_text("")
    stream.set_epoch(1)
    batches = iter(stream)
    seen_rows = numbers([next(batches)])
    seen = -1
    while seen != (seen := len(log.read_text().split())):
        # Longer than a read takes.
        threading.Event().wait(1)
    # Windows of two partitions: one yielded, and one waiting.
    assert seen == 4
    wait_for(lambda: len(cluster.futures) == 1)  # what tasks share
    seen_rows += numbers(batches)
    np.testing.assert_array_equal(np.sort(np.concatenate(seen_rows)), np.repeat(np.arange(1003), 3))


@pytest.mark.slow
def test_trainers_share_prepared_partitions(cluster, simple, path, tmp_path):
    log = tmp_path / "log"

    def noted(rows):
        if len(rows):
            with log.open("a") as file:
                file.write("read\n")
        return rows

    def streams(function, **options):
        source = read_files(path, partition_bytes=1)
        return [
            simple.stream(source, BATCH_SIZE, client=cluster, rank=rank, world_size=2, prepare=function, **options)
            for rank in range(2)
        ]

    ranks = streams(noted)
    log.write_text("")
    for _ in zip(*ranks, strict=True):
        pass
    assert len(log.read_text().split()) == ranks[0].source.npartitions
    marks = {"a", "b"}
    ranks = streams(lambda rows: rows.assign(mark=len(marks)))
    with pytest.warns(UserWarning, match="every rank encodes all partitions separately"):
        next(iter(ranks[0]))


@pytest.mark.slow
def test_stream_respects_dask_annotations(simple, path):
    def pids(rows):
        return rows.assign(price=float(os.getpid()))

    options = {name: {"nthreads": 1, "name": name, "resources": {name: 1}} for name in ("CPU", "GPU")}
    workers = {name: {"cls": Nanny, "options": one} for name, one in options.items()}
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": ":0", "host": "127.0.0.1"}}
    with SpecCluster(workers=workers, scheduler=scheduler) as nodes, Client(nodes) as client:
        client.wait_for_workers(2)
        found = client.run(os.getpid)
        own = {worker["name"]: float(found[address]) for address, worker in client.scheduler_info()["workers"].items()}
        for name, where in (("CPU", {"resources": {"CPU": 1}}), ("GPU", {"workers": ["GPU"]})):
            with dask.annotate(**where):
                stream = simple.stream(read_files(path, partition_bytes=1), BATCH_SIZE, prepare=pids, columns=["price"])
            seen_rows = np.concatenate([batch["price"].numpy() for batch in stream])
            assert np.unique(seen_rows).tolist() == [own[name]]
