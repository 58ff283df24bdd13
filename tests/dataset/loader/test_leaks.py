"""Iterations leave no threads, files or shared memory, however they end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from daskprep.dataset.loader import pipeline
from daskprep.errors import StorageError


def resources():
    """Return names of threads, open files and shared memory."""
    gc.collect()  # what the test before left in cycles
    handles = list(Path("/proc/self/fd").iterdir())
    # The folder itself was open while it was listed.
    files = [str(handle.readlink()) for handle in handles if handle.is_symlink()]
    maps = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm" in line]
    threads = [thread.name for thread in threading.enumerate()]
    return sorted(threads), sorted(files), sorted(maps)


@pytest.fixture(scope="module", autouse=True)
def _few_objects():
    """Leave out objects of earlier tests from collections, which take most of the time of these tests."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def exhaust(loader):
    for _ in loader:
        pass


def stop_early(loader):
    for _ in loader:
        break


def stop_by_error(loader):
    def consume():
        for _ in loader:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()


def interrupt(loader):
    def consume():
        for _ in loader:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consume()


def delete(loader):
    batches = iter(loader)
    next(batches)
    del batches


def create_iterator(loader):
    iter(loader)


def close(loader):
    batches = iter(loader)
    next(batches)
    batches.close()


def stop_workers(loader):
    for _ in DataLoader(loader, batch_size=None, num_workers=2):
        break
    for thread in threading.enumerate():
        # torch's queues are closed by threads of their own, for which it does not wait.
        if thread.name.startswith("QueueFeeder"):
            thread.join(10)


def fork_and_exit(loader):
    """Fork with an open iteration: child and parent exit at once."""
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        del batches
        os._exit(threading.active_count() - 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(batches)) == len(loader) - 1


ENDS = [exhaust, stop_early, stop_by_error, interrupt, delete, create_iterator, close, stop_workers, fork_and_exit]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("options", [{}, pytest.param({"prefetch_size": 0}, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_iteration_does_not_leak(train, end, options):
    end(train.loader(48, **options))
    before = resources()
    loader = train.loader(48, **options)
    end(loader)
    assert resources() == before


@pytest.mark.slow
def test_epochs_do_not_leak(train):
    loader = train.loader(240, columns=["city"])
    exhaust(loader)
    before = resources()
    for _ in range(50):
        exhaust(loader)
    assert resources() == before
    assert loader.epoch == 50


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, SystemExit, MemoryError])
@pytest.mark.parametrize("options", [{}, {"prefetch_size": 0}, {"threads": 1}])
def test_reader_error_propagates_without_leak(stored, memory, error, options):
    train, before = stored["train"], resources()

    def fail(path, data):
        if path.endswith("/c.20.0"):
            raise error("out of reach")
        return data

    memory.answer = staticmethod(fail)
    raised, message = (StorageError, r"/c\.20\.0 cannot be read") if error is OSError else (error, "out of")
    with pytest.raises(raised, match=message):
        exhaust(train.loader(48, **options))
    assert resources() == before


@pytest.mark.slow
def test_interrupt_while_waiting_does_not_leak(train, monkeypatch):
    """Ctrl-C usually interrupts here."""
    before = resources()
    batches = iter(train.loader(48))
    next(batches)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline.Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(batches)
    assert resources() == before


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_iterator_in_forked_process_raises(train):
    batches = iter(train.loader(48))
    next(batches)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            next(batches)
        except RuntimeError as error:
            code = 0 if "start a new iteration" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_forked_process_can_start_new_iteration(train):
    loader = train.loader(48)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        os._exit(0 if len(list(loader)) == len(loader) else 1)
    assert os.waitpid(child, 0)[1] == 0


def array_bytes():
    """Return the bytes of NumPy's arrays."""
    of_numpy = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([of_numpy]).traces)


def test_memory_of_kept_batches_is_released(train):
    loader = train.loader(64, prefetch_bytes=1, columns=["review_char"], expand=False)
    list(loader)  # tables of scalars are kept
    tracemalloc.start()
    try:
        kept = list(loader)
        assert len(kept) > 15
        held = array_bytes()
        del kept
        assert array_bytes() <= held / 3
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_open_iteration_at_exit_prints_nothing(dataset):
    # With these imports in this order, modules are gone before the iterator is closed.
    code = f"""
import daskprep as dp, torch
loader = dp.open_dataset({dataset.url!r})["train"].loader(48)
batches = iter(loader)
next(batches)
import dask.dataframe
def function(): pass
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
