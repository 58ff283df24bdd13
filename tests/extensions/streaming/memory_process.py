"""Stream rows of ten times the window in a separate process, and print the peak memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

import daskprep as dp
from daskprep.sources import Source

ROWS, WIDTH = 250, 1000


class Made(Source):
    """Partitions of 1 MB that are made when they are read."""

    in_memory = True

    def __init__(self, partitions: int) -> None:
        self.columns = ["vector"]
        self.npartitions = partitions
        self.row_counts = [ROWS] * partitions

    def _read(self, partition: int, columns: Sequence[str]) -> pa.Table:
        numbers = np.full(ROWS * WIDTH, partition, np.float32)
        offsets = np.arange(ROWS + 1, dtype=np.int32) * WIDTH
        return pa.table({name: pa.ListArray.from_arrays(offsets, numbers) for name in columns})


def anonymous_bytes() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def main(partitions: int, window: int) -> None:
    prep = dp.Preprocessor({"vector": "vector"}).fit(pd.DataFrame({"vector": [" ".join(["1"] * WIDTH)] * 2}))
    stream = prep.stream(Made(partitions), 100, window=window, threads=2)
    before, most, rows = anonymous_bytes(), 0, 0
    for batch in stream:
        most = max(most, anonymous_bytes())
        rows += len(batch["vector"])
    stream.audit()
    print(json.dumps({"rows": rows, "bytes": most - before, "windows": stream.stats()["peak_bytes"]}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
