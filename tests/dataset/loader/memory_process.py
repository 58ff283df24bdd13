"""Read a dataset of large blocks in a process of its own, and print how much memory that took."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import daskprep as dp
from daskprep.passes.state import state_files
from daskprep.storage import FileEntry, Folder, Layout, Manifest, Output
from daskprep.storage.manifest import MANIFEST

BLOCK_ROWS, WIDTH = 4096, 1000


def write(path: Path, blocks: int) -> None:
    """Write blocks of 16 MB that take next to nothing on disk."""
    made = runpy.run_path(str(Path(__file__).parents[2] / "dataset" / "conftest.py"))
    prep = dp.Preprocessor({"vector": "vector"}).fit(pd.DataFrame({"vector": [" ".join(["1"] * WIDTH)] * 2}))
    rows = BLOCK_ROWS * blocks
    layout = Layout((Output("vector", "float32", (WIDTH,)),), {"train": rows}, BLOCK_ROWS, 8, "lz4")
    vectors = np.broadcast_to(np.float32(1), (rows, WIDTH))
    files = state_files({**prep.to_state(), "rows": {"train": rows}})
    files |= made["split_files"](layout, "train", {"row_id": np.arange(rows), "vector": vectors})
    for name, data in files.items():
        Folder.open(path).write(f"0a/{name}", data, durable=False)
    entries = {name: FileEntry.from_data(name, data) for name, data in files.items()}
    Folder.open(path).write(MANIFEST, Manifest("0a", layout, entries, None, {}).to_bytes(), durable=False)


def anonymous_bytes() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def peak(path: Path, options: dict) -> int:
    """Return the peak memory of an epoch, less the memory in use at its start."""
    split, kind = dp.open_dataset(path, trusted=True)["train"], options.pop("kind", "loader")
    loader: Any = split.loader(**options) if kind == "loader" else None
    if kind == "mix":
        loader = dp.Mix({"one": split, "other": split}, until="first", **options)
    if kind == "stream":
        group = pa.table({"vector": list(np.ones((500, WIDTH), np.float32))})
        with pq.ParquetWriter(path / "rows.parquet", group.schema) as writer:  # all rows would count as in use
            for _ in range(40):
                writer.write_table(group)
        source = dp.read_files(str(path / "rows.parquet"), partition_bytes=2_000_000)
        loader = dp.Preprocessor.from_dataset(dp.open_dataset(path)).stream(source, workers="threads", **options)
    before, most = anonymous_bytes(), 0
    for _ in loader:
        most = max(most, anonymous_bytes())
    loader.audit()
    return most - before


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write(folder, int(sys.argv[2]))
    print(json.dumps([peak(folder, options) for options in json.loads(sys.argv[3])]))
