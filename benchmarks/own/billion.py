"""Write a table of any number of rows while the job is killed at random seconds, and read an epoch on 1 and 4 ranks.

    python -m benchmarks.own.billion --rows 1e9 --memory 16GB --kills 100 --out /large/disk

Nothing is downloaded: 40 columns are generated, with ids of 10,000,000 values. The job runs in a process of its own,
which SIGKILL ends `--kills` times; started again, it resumes. Prints one JSON line: rows/s of the run with kills, and
its digest, which is that of any other run with the same rows, its peak memory, and the sizes of what it writes. With
`--whole`, a run without kills is compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import daskprep as dp
from benchmarks.own.out_of_core import TreeMemory

FILE_ROWS = 1_000_000
IDS = 10_000_000
CATEGORIES = [10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000]
FEATURES = {
    **{f"number_{i}": "number" for i in range(16)},
    **{f"count_{i}": "number" for i in range(8)},
    **{f"category_{i}": dp.Category(most_common=None) for i in range(len(CATEGORIES))},
    **{f"flag_{i}": "binary" for i in range(3)},
    "user": dp.Category(most_common=None), "item": dp.Category(most_common=None), "note": "text", "label": "binary",
}  # fmt: skip


def make_file(number: int, rows: int) -> pa.Table:
    """Return the rows of a file, which depend on its number alone."""
    rng = np.random.default_rng(number)
    columns: dict[str, object] = {}
    for i in range(16):
        columns[f"number_{i}"] = pa.array(rng.normal(i, 1 + i, rows).astype(np.float32), mask=rng.random(rows) < 0.02)
    for i in range(8):
        columns[f"count_{i}"] = rng.poisson(2 + i, rows).astype(np.int32)
    for i, size in enumerate(CATEGORIES):
        columns[f"category_{i}"] = (size * rng.random(rows) ** 2).astype(np.int32)
    for i in range(3):
        columns[f"flag_{i}"] = rng.random(rows) < 0.1 * (i + 1)
    columns["user"] = (IDS * rng.random(rows) ** 1.5).astype(np.int64)
    columns["item"] = (IDS // 100 * rng.random(rows) ** 2).astype(np.int64)
    words = pa.array(["calm", "loud", "sunny", "new", "big", "old", "small", "near"])
    picked = [words.take(pa.array(rng.integers(0, len(words), rows))) for _ in range(3)]
    columns["note"] = pc.binary_join_element_wise(*picked, " ")
    columns["label"] = columns["user"] % 7 + columns["count_0"] > 6  # type: ignore[operator]
    return pa.table(columns)


def write(source: Path, target: Path, memory: str) -> None:
    """Fit and write all rows, or continue an earlier call."""
    split = dp.RandomSplit((0.98, 0.01, 0.01), seed=0)
    dp.Preprocessor(FEATURES, targets=["label"], split=split).fit_write(source, target, memory=memory, progress=False)


def run(source: Path, target: Path, memory: str, kills: int, mean_life: float) -> tuple[float, int, int]:
    """Write in a process that is killed `kills` times; return the seconds, the kills, and the bytes of scratch."""
    command = [sys.executable, "-m", "benchmarks.own.billion", "--write", str(source), str(target), memory]
    chance, began, killed, scratch = random.Random(0), time.perf_counter(), 0, 0
    while True:
        process = subprocess.Popen(command)
        life = chance.uniform(0.5, 1.5) * mean_life if killed < kills else math.inf
        ends = time.perf_counter() + life
        while process.poll() is None and time.perf_counter() < ends:
            time.sleep(0.2)
            scratch = max(scratch, count_bytes(target, "scratch"))
        if process.returncode is None:
            process.kill()
            process.wait()
            killed += 1
        elif process.returncode:
            raise SystemExit(f"the job ended with {process.returncode}")
        else:
            return time.perf_counter() - began, killed, scratch


def count_bytes(target: Path, part: str) -> int:
    """Return the bytes of the files whose path holds `part`, while other processes write and remove some."""
    total = 0
    for folder, _, files in os.walk(target):
        for file in files:
            if part in f"{folder}/{file}":
                with suppress(FileNotFoundError):
                    total += (Path(folder) / file).stat().st_size
    return total


def digest_files(target: Path) -> str:
    """Return a digest of all files of the written version."""
    dataset = dp.open_dataset(target)
    root, digest = Path(dataset.url) / dataset.version, hashlib.sha256()
    for file in sorted(root.rglob("*")):
        if file.is_file():
            digest.update(file.relative_to(root).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def read_epoch(target: Path, ranks: int) -> float:
    """Return the rows per second of an epoch whose ranks are read one after the other, each row once."""
    train, rows, began = dp.open_dataset(target)["train"], 0, time.perf_counter()
    for rank in range(ranks):
        loader = train.loader(4_096, rank=rank, world_size=ranks, memory="500MB")
        rows += sum(len(labels) for _, labels in loader)
    assert rows == len(train)
    return rows / (time.perf_counter() - began)


def main() -> None:
    """Generate, write and read; print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=float, default=2e6)
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--mean-life", type=float, default=15.0, help="mean seconds from a start to a kill")
    parser.add_argument("--out", type=Path, default=Path("billion"))
    parser.add_argument("--whole", action="store_true", help="write again without kills, and compare the digests")
    parser.add_argument("--write", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        source, target, memory = options.write
        return write(Path(source), Path(target), memory)
    rows, source = int(options.rows), options.out / "rows"
    source.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, rows, FILE_ROWS)):
        path = source / f"{number:05}.parquet"
        if not path.exists():
            pq.write_table(
                make_file(number, min(FILE_ROWS, rows - start)), path.with_suffix(".part"), row_group_size=100_000
            )
            path.with_suffix(".part").rename(path)
    figures: dict[str, object] = {"rows": rows, "memory": options.memory}
    kinds = [("killed", options.kills), *([("whole", 0)] if options.whole else [])]
    for kind, kills in kinds:
        target = options.out / f"{kind}.dp"
        shutil.rmtree(target, ignore_errors=True)
        memory = TreeMemory()
        seconds, killed, scratch = run(source, target, options.memory, kills, options.mean_life)
        memory.stop()
        figures[kind] = {
            "kills": killed, "rows_per_second": round(rows / seconds), "peak_mb": memory.anonymous // 10**6,
            "scratch_mb": scratch // 10**6, "dataset_mb": count_bytes(target, "") // 10**6,
            "vocabularies_mb": count_bytes(target, "/vocab") // 10**6,
            "metadata_kb": count_bytes(target, "/metadata") // 10**3,
            "manifest_kb": count_bytes(target, "/manifest") // 10**3,
            "digest": digest_files(target),
        }  # fmt: skip
    figures["epoch"] = {ranks: round(read_epoch(options.out / "killed.dp", ranks)) for ranks in (1, 4)}
    print(json.dumps(figures))
    return None


if __name__ == "__main__":
    main()
