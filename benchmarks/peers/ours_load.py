"""One run of daskprep's loader on the table that the peers' scripts load; prints a JSON line shaped like theirs,
and one with the seconds to the first batch in the middle of an epoch.

    python -m benchmarks.peers.ours_load --data bench-data/tab --batch 1024 --epochs 4

The dataset is made on the first run from the .npy columns, with the types that they have, so that every tool gives the
same bytes to the model; with --smallest, integers have the smallest types that hold them, as daskprep writes them.
`peers/common.py` times the loop and checks that each epoch gives each row once.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import daskprep as dp
from benchmarks.peers import common
from daskprep.storage import Folder, Layout, Output
from daskprep.storage.arrays import chunk_name, encode_chunk
from daskprep.storage.manifest import MANIFEST, FileEntry, Manifest
from daskprep.storage.tables import encode_table


def to_smallest_dtype(column: np.ndarray) -> np.ndarray:
    """Return numbers starting at 0 in their smallest dtype; other columns unchanged."""
    return column.astype(np.min_scalar_type(column.max())) if column.dtype.kind == "i" else column


def encoded_features(columns: dict[str, np.ndarray]) -> dp.Preprocessor:
    """Return features for encoded columns: numbers and vectors, which a loader yields unchanged."""
    features = {name: "vector" if array.ndim > 1 else "number" for name, array in columns.items()}
    some = pd.DataFrame({name: list(array[:2].astype(np.float64)) for name, array in columns.items()})
    return dp.Preprocessor(features).fit(some)


def write_dataset(columns: dict[str, np.ndarray], path: Path, compression: Any, block_rows: int | None) -> None:
    """Write encoded columns as a dataset with one split, like the last pass of a write."""
    outputs = [Output(name, str(array.dtype), array.shape[1:]) for name, array in columns.items()]
    rows = len(next(iter(columns.values())))
    layout = Layout.choose(outputs, {"train": rows}, block_rows=block_rows, compression=compression)
    root = Folder.open(path)
    version, files = root / "loadbench", {}

    def write(name: str, data: Any, count: int | None = None) -> None:
        version.write(name, data)
        files[name] = FileEntry.from_data(name, data, count)

    write("metadata.json", json.dumps(encoded_features(columns).to_dict()).encode())
    for name, data in layout.metadata_files("train").items():
        write(name, data)
    for part in range(layout.parts("train")):
        within = layout.part_range("train", part)
        scalars = {output.name: columns[output.name][within.start : within.stop] for output in layout.scalars}
        table = {"row_id": np.arange(within.start, within.stop), **scalars}
        name = f"train/table/part-{part:05d}.parquet"
        write(name, encode_table([table], layout.block_rows, compression), len(within))
        for block in layout.part_block_range("train", part):
            some = layout.block_range("train", block)
            for output in layout.matrices:
                chunk = encode_chunk(columns[output.name][some.start : some.stop], layout.block_rows, compression)
                write(f"train/arrays.zarr/{chunk_name(output, block)}", chunk, len(some))
    root.write(MANIFEST, Manifest("loadbench", layout, files, None, {}).to_bytes())


def time_resume(loader: Any) -> float:
    """Return the seconds to the first batch after loading a state in the middle of an epoch."""
    state = {**loader.state_dict(), "rows_given": len(loader) // 2 * loader.batch_size}
    began = time.perf_counter()
    loader.load_state_dict(state)
    batches = iter(loader)
    next(batches)
    seconds = time.perf_counter() - began
    batches.close()
    return seconds


def main() -> None:
    """Load some epochs and print the figures."""
    parser = common.parser(epochs=4)
    parser.add_argument("--compression", default="lz4")
    parser.add_argument("--block-rows", type=int)
    parser.add_argument("--smallest", action="store_true")
    parser.add_argument("--prefetch-bytes", type=int)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    options = [arguments.compression, str(arguments.block_rows or "auto"), *["smallest"] * arguments.smallest]
    path = Path(arguments.data) / f"daskprep-{'-'.join(options)}.dp"
    if not (path / MANIFEST).exists():
        columns = common.load_npy(arguments.data)
        if arguments.smallest:
            columns = {name: to_smallest_dtype(column) for name, column in columns.items()}
        write_dataset(columns, path, arguments.compression, arguments.block_rows)
    train = dp.open_dataset(path)["train"]
    loader = train.loader(
        arguments.batch, expand=False, prefetch_bytes=arguments.prefetch_bytes, threads=arguments.threads
    )

    def epochs(epoch: int) -> Any:
        loader.set_epoch(epoch)
        return loader

    common.main("daskprep", arguments, epochs, rows=len(train), notes=", ".join(options))
    print(loader.stats(), file=sys.stderr)
    print(json.dumps({"resumed_s": round(time_resume(loader), 4)}))


if __name__ == "__main__":
    main()
