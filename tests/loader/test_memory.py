"""Memory stays within its limits, and slow storage is read in parallel."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import daskprep as dp
from daskprep.loader.pipeline import Settings
from daskprep.storage import reading

# Bytes of a block, as memory_process.py writes them.
BLOCK = 4096 * 4000
MARGIN = 200_000_000


OPTIONS = [
    {"batch_size": 1024, "prefetch_bytes": 32_000_000},
    {"batch_size": 1024, "prefetch_size": 0},
    {"batch_size": 1024, "prefetch_bytes": 100_000_000, "streams": 4},
    {"batch_size": 1024, "prefetch_bytes": 32_000_000, "shuffle": False},
]


@pytest.mark.slow
def test_peak_memory_is_prefetch_and_open_blocks(tmp_path):
    # All streams come to the end of a block at once.
    code = f"import runpy; runpy.run_path({str(Path(__file__).with_name('memory_process.py'))!r}, run_name='__main__')"
    command = [sys.executable, "-c", code, str(tmp_path), "48", json.dumps(OPTIONS)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    for options, peak in zip(OPTIONS, found, strict=True):
        open_blocks = 1 if options.get("shuffle") is False else options.get("streams", 16)
        assert peak < options.get("prefetch_bytes", 0) + open_blocks * BLOCK + MARGIN, (options, found)


class SlowStorage:
    """Counts the reads that run at once; each takes 50 ms longer."""

    def __init__(self, read):
        self.read = read
        self.lock = threading.Lock()
        self.running = 0
        self.counts = []

    def __call__(self, *arguments):
        with self.lock:
            self.running += 1
            self.counts.append(self.running)
        time.sleep(0.05)
        with self.lock:
            self.running -= 1
        return self.read(*arguments)


def test_slow_storage_is_read_by_all_threads(tmp_path, table, monkeypatch):
    prep = dp.Preprocessor({"city": "category", "tags": "set", "review": "text"})
    train = prep.fit_write(table, tmp_path / "slow.dp", block_rows=4)["train"]
    assert train.dataset.learned.keys() == {"city", "tags", "review"}
    assert train.dataset.targets == ()
    storage = SlowStorage(reading.read_exact)
    monkeypatch.setattr(reading, "read_exact", storage)
    threads = Settings.threads_for(local=False)
    assert threads >= 16
    monkeypatch.setattr(Settings, "threads_for", classmethod(lambda cls, *, local: threads))
    for _ in train.loader(48):
        pass
    # A table, as it is small, and two chunks for each block.
    assert len(storage.counts) == 1 + 2 * 251
    assert np.mean(storage.counts[threads:]) >= 0.8 * threads
