"""Write a dataset larger than memory on two workers with a memory limit, and measure the whole process tree.

    python -m benchmarks.own.out_of_core --data data/20m --rows 20000000 --out bench-out [--memory 2GB] [--workers 2]

Prints one JSON line: seconds, rows/s, the peak of the summed resident memory of this process and all its children
(pages that several processes share are counted in each), and of the summed anonymous memory, without file pages.
"""

from __future__ import annotations

import argparse
import json
import shutil
import threading
import time
from pathlib import Path

import psutil
from distributed import Client, LocalCluster

import daskprep as dp
from benchmarks.peers.common import GROUPS, first_files
from benchmarks.peers.ours_prep import feature_of


class TreeMemory:
    """Samples the memory of this process and its children."""

    def __init__(self, interval_s: float = 0.05) -> None:
        self.resident = self.anonymous = 0
        self._interval = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        root = psutil.Process()
        while not self._stopped.wait(self._interval):
            resident = anonymous = 0
            for process in [root, *root.children(recursive=True)]:
                try:
                    memory = process.memory_info()
                except psutil.NoSuchProcess:
                    continue
                resident += memory.rss
                anonymous += memory.rss - memory.shared
            self.resident, self.anonymous = max(self.resident, resident), max(self.anonymous, anonymous)

    def stop(self) -> None:
        """Stop sampling."""
        self._stopped.set()
        self._thread.join()


def main() -> None:
    """Write once and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--workers", type=int, default=2, help="0 for threads of this process")
    parser.add_argument("--split", action="store_true", help="a stratified split by the label")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.out, ignore_errors=True)
    files = first_files(arguments.data, arguments.rows)
    features = {name: feature_of(group) for group, names in GROUPS.items() for name in names}
    prep = dp.Preprocessor(features, split=dp.StratifiedSplit("label") if arguments.split else None)
    memory = TreeMemory()
    if arguments.workers:
        cluster = LocalCluster(n_workers=arguments.workers, threads_per_worker=1, dashboard_address=":0")
        client = Client(cluster)
    start = time.perf_counter()
    dataset = prep.fit_write(files, arguments.out, memory=arguments.memory, progress=False)
    seconds = time.perf_counter() - start
    memory.stop()
    if arguments.workers:
        client.close()
        cluster.close()
    line = {
        "rows": arguments.rows,
        "workers": arguments.workers,
        "memory": arguments.memory,
        "seconds": round(seconds, 1),
        "rows_per_s": round(arguments.rows / seconds),
        "peak_resident_mb": memory.resident >> 20,
        "peak_anonymous_mb": memory.anonymous >> 20,
        "splits": {name: len(split) for name, split in dataset.splits.items()},
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
