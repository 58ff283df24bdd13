"""Bounds of reading, memory and threads with slow sources and consumers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

ROW_BYTES = 4 + 1 + 24  # price, city, and what is kept of each row


def threads_of_streams():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("daskprep")]


def test_first_batch_waits_for_one_partition(simple, gated):
    gated.allow(1)
    batches = iter(simple.stream(gated, 50, threads=1))
    assert len(next(batches)["price"]) == 50
    gated.allow(np.inf)
    batches.close()


def test_paused_consumer_stops_reading(simple, gated):
    # Two partitions are half a window: one window is yielded, and one waits.
    stream = simple.stream(gated, 50, window=4 * 100 * ROW_BYTES, threads=2, epochs=None)
    stream.set_epoch(1)
    batches = iter(stream)
    next(batches)
    with gated.changed:
        assert gated.changed.wait_for(lambda: len(gated.read_partitions) == 4, timeout=60)
        # Longer than a read takes.
        assert not gated.changed.wait_for(lambda: len(gated.read_partitions) > 4, timeout=0.5)
    assert stream.stats()["peak_bytes"] <= 4 * 100 * ROW_BYTES
    for _ in range(4):
        next(batches)
    with gated.changed:
        assert gated.changed.wait_for(lambda: len(gated.read_partitions) > 4, timeout=60)
    batches.close()


def test_slow_source_reads_one_partition_per_thread(simple, gated):
    gated.allow(0)
    batches = iter(simple.stream(gated, 50, threads=2))
    consumer = threading.Thread(target=lambda: next(batches))
    consumer.start()
    with gated.changed:
        assert gated.changed.wait_for(lambda: len(gated.read_partitions) == 2, timeout=60)
        assert not gated.changed.wait_for(lambda: len(gated.read_partitions) > 2, timeout=0.2)
    gated.allow(np.inf)
    consumer.join(60)
    assert gated.most_at_once <= 2
    batches.close()


def test_windows_stay_within_limit(simple, gated):
    stream = simple.stream(gated, 70, window=5 * 100 * ROW_BYTES, threads=3, epochs=4)
    assert sum(len(batch["price"]) for batch in stream) == 4 * 1003
    assert stream.stats()["peak_bytes"] <= 5 * 100 * ROW_BYTES


def test_partition_larger_than_half_window_is_separate_window(simple, gated, numbers):
    stream = simple.stream(gated, 70, window=int(1.5 * 100 * ROW_BYTES), row_ids=False, epochs=2)
    assert sum(len(batch["price"]) for batch in stream) == 2 * 1003
    assert stream.stats()["windows"] == 22
    # Of the window in which a batch starts, only its rows are kept with the next window.
    assert stream.stats()["peak_bytes"] <= (100 + 70) * ROW_BYTES + 4 * 100


@pytest.mark.parametrize("way", ["exhaust", "break", "error", "interrupt", "close", "broken"])
def test_no_thread_remains_after_iteration(simple, gated, way):
    gated.broken = {5} if way == "broken" else set()
    stream = simple.stream(gated, 48, window=4 * 100 * ROW_BYTES)

    def consume():
        for number, _ in enumerate(stream):
            if number == 2 and way in ("error", "interrupt"):
                raise {"error": ZeroDivisionError, "interrupt": KeyboardInterrupt}[way]
            if number == 2 and way == "break":
                break

    if way == "close":
        batches = iter(stream)
        next(batches)
        batches.close()
    elif way in ("error", "interrupt", "broken"):
        with pytest.raises((ZeroDivisionError, KeyboardInterrupt, OSError)):
            consume()
    else:
        consume()
    assert threads_of_streams() == []


def test_unused_iterator_starts_nothing(simple, gated):
    iter(simple.stream(gated, 48))
    assert (threads_of_streams(), gated.read_partitions) == ([], [])


@pytest.mark.parametrize(
    "client",
    ["None", pytest.param("Client(processes=False, n_workers=1, dashboard_address=':0')", marks=pytest.mark.slow)],
)
def test_abandoned_iterator_does_not_block_interpreter_exit(path, client):
    code = f"""
import logging
import daskprep as dp
from daskprep.sources import read_files
from distributed import Client

logging.disable()
client = {client}
rows = read_files({str(path)!r}, partition_bytes=1)
batches = iter(dp.Preprocessor({{"price": "number"}}).fit(rows).stream(rows, 50, window=10_000, epochs=None))
next(batches)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_iterator_in_forked_process_raises(simple, gated):
    batches = iter(simple.stream(gated, 48, window=4 * 100 * ROW_BYTES))
    next(batches)
    child = os.fork()
    if not child:
        code = 1
        try:
            list(batches)
        except RuntimeError as error:
            code = 0 if "another process" in str(error) else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sum(len(batch["price"]) for batch in batches) == 1003 - 48


def test_kept_batches_are_not_overwritten(simple, gated):
    stream = simple.stream(gated, 50, row_ids=True, window=4 * 100 * ROW_BYTES * 2)
    kept = list(stream)
    for batch in kept:
        np.testing.assert_array_equal(batch["price"].numpy(), batch["row_id"].numpy())
