"""Memory stays within its limits, and slow storage is read in parallel."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.columns.display import parse_bytes
from daskprep.dataset.loader.pipeline import Settings
from daskprep.errors import ConfigError
from daskprep.storage import Folder

# Bytes of a block, as memory_process.py writes them.
BLOCK = 4096 * 4000
MARGIN = 200_000_000


OPTIONS = [
    {"batch_size": 1024, "prefetch_bytes": 32_000_000},
    {"batch_size": 1024, "prefetch_size": 0},
    {"batch_size": 1024, "prefetch_bytes": 100_000_000, "streams": 4},
    {"batch_size": 1024, "prefetch_bytes": 32_000_000, "shuffle": False},
]


def peaks(folder, options):
    """Return the peak memory of an epoch with each of the options, in a process of its own."""
    code = f"import runpy; runpy.run_path({str(Path(__file__).with_name('memory_process.py'))!r}, run_name='__main__')"
    command = [sys.executable, "-c", code, str(folder), "48", json.dumps(options)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


LIMITED = [
    {"kind": "loader", "batch_size": 1024, "memory": "300MB"},
    {"kind": "loader", "batch_size": 1024, "memory": "500MB"},
    {"kind": "loader", "batch_size": 1024, "memory": "500MB", "streams": 4},
    {"kind": "loader", "batch_size": 1024, "memory": "300MB", "shuffle": False},
    {"kind": "mix", "batch_size": 1024, "memory": "400MB"},
    {"kind": "stream", "batch_size": 256, "memory": "300MB"},
]


@pytest.mark.slow
@pytest.mark.parametrize("options", LIMITED, ids=str)
def test_peak_memory_is_within_limit(tmp_path, options):
    [peak] = peaks(tmp_path, [options])
    assert 20_000_000 < peak <= parse_bytes(options["memory"])


def test_memory_determines_streams_and_prefetching(tmp_path):
    wide = dp.Preprocessor({"vector": "vector"}, split=None)
    frame = pd.DataFrame({"vector": list(np.ones((8_000, 1_000), np.float32))})
    split = wide.fit_write(frame, tmp_path / "wide.dp", block_rows=200, progress=False)["train"]
    limits = ("50MB", "60MB", "1GB")
    loaders = [split.loader(256, memory=one, threads=2) for one in limits]
    streams = [loader.streams for loader in loaders]
    assert streams == sorted(streams)
    assert len(set(streams)) == 3
    assert [loader.stats()["prefetch_blocks"] for loader in loaders][-1] > 16
    for make in (
        lambda **more: split.loader(256, **more),
        lambda **more: dp.Mix({"a": split, "b": split}, 256, **more),
        lambda **more: wide.stream(frame, 256, workers="threads", **more),
    ):
        with pytest.raises(ConfigError, match="memory='45MB' is not enough: this needs at least") as error:
            make(memory="45MB")
        smallest = parse_bytes(re.search(r"at least ([0-9.]+ [MG]B)", str(error.value))[1])
        batches = list(islice(iter(make(memory=smallest)), 3))
        assert sum(len(batch["vector"]) for batch in batches) == 768
    with pytest.raises(ConfigError, match="memory= determines prefetching: leave out prefetch_size"):
        split.loader(256, memory="1GB", prefetch_size=1)
    with pytest.raises(ConfigError, match="memory='much': expected bytes"):
        split.loader(256, memory="much")
    state = loaders[0].state_dict()
    with pytest.raises(ConfigError, match=r"streams=\d+, but this loader has 16"):
        loaders[2].load_state_dict(state)
    split.loader(256, memory="1GB", streams=streams[0]).load_state_dict(state)


@pytest.mark.slow
def test_peak_memory_is_prefetch_and_open_blocks(tmp_path):
    # All streams come to the end of a block at once.
    found = peaks(tmp_path, OPTIONS)
    for options, peak in zip(OPTIONS, found, strict=True):
        open_blocks = 1 if options.get("shuffle") is False else options.get("streams", 16)
        assert peak < options.get("prefetch_bytes", 0) + open_blocks * BLOCK + MARGIN, (options, found)


class SlowStorage:
    """Counts the reads that run at once; each takes 50 ms longer."""

    def __init__(self):
        self.lock = threading.Lock()
        self.running = 0
        self.counts = []

    def __call__(self, path, data):
        with self.lock:
            self.running += 1
            self.counts.append(self.running)
        time.sleep(0.05)
        with self.lock:
            self.running -= 1
        return data


def test_slow_storage_is_read_by_all_threads(tmp_path, table, memory):
    prep = dp.Preprocessor({"city": "category", "tags": "set", "review": "text"})
    train = prep.fit_write(table, f"memory://{tmp_path.name}.dp", block_rows=4, shards=False)["train"]
    assert train.dataset.learned.keys() == {"city", "tags", "review"}
    assert train.dataset.targets == ()
    memory.answer = storage = SlowStorage()
    memory.requests.clear()
    threads = Settings.threads_for(local=False)
    assert threads >= 16
    for _ in train.loader(48):
        pass
    # The footer and the rows of a table, as it is small, and two chunks for each block.
    read = Counter(path.split("/")[-2] for path in memory.requests)
    assert read == {"table": 2, "tags": 251, "review": 251}
    assert np.mean(storage.counts[threads:]) >= 0.8 * threads
    Folder.open(f"memory://{tmp_path.name}.dp").remove_all()
