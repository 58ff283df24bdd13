"""However an iteration ends: no thread, file or shared memory is left."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from daskprep.loader import pipeline
from daskprep.loader.groups import WindowArrays
from daskprep.loader.source import FileBlocks


def held():
    """Return what could be left over: threads, open files and shared memory by name."""
    handles = list(Path("/proc/self/fd").iterdir())
    # The folder itself was open while it was listed.
    files = [str(handle.readlink()) for handle in handles if handle.is_symlink()]
    maps = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm" in line]
    threads = [thread.name for thread in threading.enumerate()]
    return sorted(threads), sorted(files), sorted(maps)


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


def never_begin(loader):
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


def fork_and_go(loader):
    """A child that holds an iteration of its parent ends at once, and so does the parent's."""
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        del batches
        os._exit(threading.active_count() - 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(batches)) == len(loader) - 1


ENDS = [exhaust, stop_early, stop_by_error, interrupt, delete, never_begin, close, stop_workers, fork_and_go]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("options", [{}, {"prefetch_size": 0}])
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_nothing_is_left_over(train, end, options):
    end(train.loader(48, **options))
    before = held()
    loader = train.loader(48, **options)
    end(loader)
    assert held() == before


def test_nothing_is_left_over_by_50_epochs(train):
    loader = train.loader(240, columns=["city"])
    exhaust(loader)
    before = held()
    for _ in range(50):
        exhaust(loader)
    assert held() == before
    assert loader.epoch == 50


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, SystemExit, MemoryError])
@pytest.mark.parametrize("options", [{}, {"prefetch_size": 0}, {"threads": 1}])
def test_an_error_of_a_reader_comes_out_and_leaves_nothing(train, monkeypatch, error, options):
    plain, before = FileBlocks._read_matrix, held()

    def fail(files, group, block, target):
        if block == 20:
            raise error("out of reach")
        plain(files, group, block, target)

    monkeypatch.setattr(FileBlocks, "_read_matrix", fail)
    with pytest.raises(error, match="out of reach"):
        exhaust(train.loader(48, **options))
    assert held() == before


def test_an_error_while_waiting_leaves_nothing(train, monkeypatch):
    """As Ctrl-C does, most of the time."""
    before = held()
    batches = iter(train.loader(48))
    next(batches)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline.Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(batches)
    assert held() == before


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_batches_of_another_process_are_refused_and_do_not_hang(train):
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
def test_a_fork_in_the_middle_may_begin_its_own(train):
    loader = train.loader(48)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        os._exit(0 if len(list(loader)) == len(loader) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_the_memory_of_batches_that_were_kept_is_given_back(train):
    loader = train.loader(64, prefetch_bytes=1)
    kept = list(loader)
    windows = loader._buffers.take(WindowArrays, loader._buffers._buffers[WindowArrays][0], list)
    assert len(windows._allocated) <= 5 < len(kept)


@pytest.mark.slow
def test_an_iteration_that_is_open_at_exit_ends_without_a_message(dataset):
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
