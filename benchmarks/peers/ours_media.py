"""One run of daskprep on a column of images or audio, for both kinds of media.

The dataset is written by a process of its own, so that the loader begins in a fresh one, with an empty cache.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import daskprep as dp
from benchmarks.peers import common

NAME = "medium"


def parse_arguments(add_options: Callable[[argparse.ArgumentParser], None]) -> argparse.Namespace:
    """Return the options."""
    parser = common.parser(batch=64, max_s=120.0)
    parser.add_argument("--out", type=Path, required=True, help="where the dataset is written, and removed again")
    parser.add_argument("--mode", choices=["lazy", "lazy_cached", "eager"], default="lazy_cached")
    parser.add_argument("--pack", action="store_true")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--copies", type=int, default=1, help="times that each file is a row")
    parser.add_argument("--expand", action="store_true", help="yield float32 for models instead of stored values")
    parser.add_argument("--write", action="store_true", help="write the dataset and nothing else")
    add_options(parser)
    return parser.parse_args()


def write(feature: dp.Feature, files: list[str], path: Path) -> None:
    """Write the dataset, and print the seconds."""
    shutil.rmtree(path, ignore_errors=True)
    start = time.perf_counter()
    dp.Preprocessor({NAME: feature}).fit_write(pd.DataFrame({NAME: files}), path, progress=False)
    print(json.dumps({"written_s": round(time.perf_counter() - start, 3)}), flush=True)


def stored_size(path: Path) -> dict[str, int]:
    """Return the files and bytes of a dataset, and those of its caches."""
    files = [file for file in path.rglob("*") if file.is_file()]
    cached = [file for file in files if "cache" in file.relative_to(path).parts]
    cached_bytes = sum(file.stat().st_size for file in cached)
    return {
        "files": len(files) - len(cached),
        "bytes": sum(file.stat().st_size for file in files) - cached_bytes,
        "cache_files": len(cached),
        "cache_bytes": cached_bytes,
    }


def measure(feature: dp.Feature, files: list[str], arguments: argparse.Namespace, *, unit: str, notes: str) -> None:
    """Write the files as a dataset, load some epochs, and print the figures."""
    files = files * arguments.copies
    if arguments.write:
        write(feature, files, arguments.out)
        return
    subprocess.run([sys.executable, *sys.argv, "--write"], check=True)
    torch.set_num_threads(1)
    train = dp.open_dataset(arguments.out, trusted=True)["train"]
    row_bytes = train.output(NAME).row_bytes
    loader = train.loader(arguments.batch, expand=arguments.expand, row_ids=True, threads=arguments.threads)
    after_first: dict[str, int] = {}

    def epochs(epoch: int) -> Iterator[Any]:
        loader.set_epoch(epoch)
        yield from loader
        if epoch == 0:
            after_first.update(stored_size(arguments.out))

    common.main(
        f"daskprep {unit}, {notes}",
        arguments,
        epochs,
        rows=len(files),
        key="row_id",
        unit=unit,
        notes=notes,
    )
    print(loader.stats(), file=sys.stderr)
    line = {
        "row_bytes": row_bytes,
        "block_rows": train.layout.block_rows,
        "blocks": train.layout.blocks("train"),
        "cache_bytes_after_first": after_first["cache_bytes"],
        "original_bytes": sum(Path(file).stat().st_size for file in files),
        **stored_size(arguments.out),
    }
    print(json.dumps(line), flush=True)
    shutil.rmtree(arguments.out)
