"""One run of daskprep on the table that the peers' scripts work on; prints one JSON line shaped like theirs.

    python benchmarks/ours_prep.py --data data/1m --rows 1000000 --out bench-out [--cols num,label,...]

`digest` holds, per column, the vocabulary's size, its first tokens, the sum of the ids and how many are not
special, as the peers print it: equal digests are equal work. Mode fit_write writes a dataset, as the peers write
their files, and reads it again for the digest, outside the time that is measured. Nothing is written in mode
fit_encode: every array is computed, one partition at a time, and summed, so that no work is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow.parquet as pq
from dask.delayed import delayed

import daskprep as dp

GROUPS = {
    "num": ["f0", "f1", "f2", "f3", "f4", "f5", "i0", "i1"],
    "label": ["label"],
    "cat": ["c10", "c1k", "c100k", "c2m"],
    "set": ["tags"],
    "text": ["text"],
    "ts": ["ts"],
    "date": ["time"],
}
SPECIAL_IDS = {"c10": 1, "c1k": 1, "c100k": 1, "c2m": 1, "tags": 2, "text": 2}


def feature_of(group: str) -> dp.Feature:
    """Give the feature that does what the peers do to the columns of a group."""
    match group:
        case "num":
            return dp.Number(normalization="zscore", missing_value_strategy="fill_with_mean")
        case "label":
            return dp.Binary()
        case "cat":
            return dp.Category(most_common=None)
        case "set":
            return dp.Set(max_size=8, most_common=None)
        case "text":
            return dp.Text(
                tokenizer="space_punct",
                lowercase=True,
                most_common=20_000,
                max_sequence_length=64,
                fill_value="",
            )
        case "ts":
            return dp.Timeseries(timeseries_length_limit=16)
        case _:
            return dp.Date()


def first_files(folder: Path, rows: int) -> list[str]:
    """Name the first whole files that hold exactly `rows` rows, and read them once into the page cache."""
    names, seen = [], 0
    for path in sorted(folder.glob("part-*.parquet")):
        if seen == rows:
            break
        seen += pq.ParquetFile(path).metadata.num_rows
        path.read_bytes()
        names.append(str(path))
    if seen != rows:
        raise SystemExit(f"{folder} cannot give exactly {rows:,} rows in whole files (got {seen:,})")
    return names


def peak_memory_mb() -> int:
    """Highest resident memory of this process so far, from the kernel's own mark."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) >> 10


def machine_busy_s() -> float:
    """CPU time that the whole machine has worked since it started."""
    first_line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    ticks = [int(field) for field in first_line.split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def own_cpu_s() -> float:
    """CPU time of this process, in user and system mode."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Meter:
    """Times stages and, from its making to `result`, the whole."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}
        self._start = (time.perf_counter(), own_cpu_s(), machine_busy_s())

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of a block to a stage."""
        start = time.perf_counter()
        yield
        self.stages[name] = round(self.stages.get(name, 0.0) + time.perf_counter() - start, 3)

    def result(self) -> dict[str, float]:
        """Give seconds, megabytes, and what the rest of the machine did meanwhile."""
        end = (time.perf_counter(), own_cpu_s(), machine_busy_s())
        wall, cpu, busy = (now - then for now, then in zip(end, self._start, strict=True))
        return {
            "wall_s": round(wall, 2),
            "peak_rss_mb": peak_memory_mb(),
            "cpu_s": round(cpu, 2),
            "other_cpu_s": round(max(busy - cpu, 0.0), 1),
        }


def checksum(block: np.ndarray, special_ids: int | None) -> tuple[int, float, int]:
    """Give rows, the sum over all elements, and how many are not special ids."""
    accumulator = np.float64 if block.dtype.kind == "f" else np.int64
    real = 0 if special_ids is None else int(np.count_nonzero(block >= special_ids))
    return len(block), block.sum(dtype=accumulator).item(), real


def consume(arrays: dict[str, Any]) -> dict[str, tuple[int, float, int]]:
    """Compute every array, partition by partition, and keep nothing but sums."""
    # Optimized one array at a time, each would encode all columns of every partition again.
    sums = {
        name: [
            delayed(checksum)(block, SPECIAL_IDS.get(name)) for block in array.to_delayed(optimize_graph=False).ravel()
        ]
        for name, array in arrays.items()
    }
    (computed,) = dask.compute(sums)
    totals = {}
    for name, parts in computed.items():
        rows, total, real = (sum(column) for column in zip(*parts, strict=True))
        totals[name] = (rows, total, real)
    return totals


def digest_of(prep: dp.Preprocessor, totals: dict[str, tuple[int, float, int]]) -> dict[str, dict[str, Any]]:
    """Give the fingerprints that the peers print for columns with a vocabulary."""
    digest = {}
    for name, special in SPECIAL_IDS.items():
        if name in totals:
            tokens = prep.learned_[name].vocabulary.tokens
            _, total, real = totals[name]
            digest[name] = {
                "vocab": len(tokens) - special,
                "top": tokens.slice(special, 4).to_pylist(),
                "sum": int(total),
                "real": real,
            }
    return digest


def fit_encode(prep: dp.Preprocessor, files: list[str], meter: Meter) -> dict[str, tuple[int, float, int]]:
    """Learn, then encode everything; each reads the source once."""
    with meter.stage("fit"):
        prep.fit(files)
    with meter.stage("encode"):
        return consume(prep.encode(files))


def fit_write(prep: dp.Preprocessor, files: list[str], out: Path, meter: Meter) -> dp.Dataset:
    """Learn and write a dataset, reading the source once."""
    with meter.stage("fit_write"):
        return prep.fit_write(files, out, progress=False)


def written(dataset: dp.Dataset) -> dict[str, tuple[int, float, int]]:
    """Read a dataset block by block, and keep nothing but sums."""
    split, sums = dataset["train"], {}
    for name in split.columns:
        blocks = (dataset.layout.block_range("train", i) for i in range(dataset.layout.blocks("train")))
        parts = (split.read([name], rows.start, rows.stop)[name] for rows in blocks)
        sums[name] = checksum_sum(checksum(part, SPECIAL_IDS.get(name)) for part in parts)
    return sums


def checksum_sum(parts: Iterator[tuple[int, float, int]]) -> tuple[int, float, int]:
    """Add up the sums of all blocks."""
    rows, total, real = (sum(column) for column in zip(*parts, strict=True))
    return rows, total, real


def main() -> None:
    """Do the job once and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cols", default="all", help=f"all, or a comma list of {' '.join(GROUPS)}")
    parser.add_argument("--mode", choices=["fit_write", "fit_encode"], default="fit_write")
    arguments = parser.parse_args()
    groups = list(GROUPS) if arguments.cols == "all" else arguments.cols.split(",")
    shutil.rmtree(arguments.out, ignore_errors=True)
    files = first_files(arguments.data, arguments.rows)
    prep = dp.Preprocessor({name: feature_of(group) for group in groups for name in GROUPS[group]})

    meter = Meter()
    if arguments.mode == "fit_write":
        dataset = fit_write(prep, files, arguments.out, meter)
        measured = meter.result()
        totals = written(dataset)
    else:
        totals = fit_encode(prep, files, meter)
        measured = meter.result()

    if any(rows != arguments.rows for rows, _, _ in totals.values()):
        raise SystemExit(f"rows were lost: {totals}")
    line = {
        "peer": "daskprep",
        "mode": arguments.mode,
        "rows": arguments.rows,
        "cols": arguments.cols,
        **measured,
        "rows_per_s": round(arguments.rows / measured["wall_s"]),
        "stages": meter.stages,
        "digest": digest_of(prep, totals),
        "notes": f"threads; {arguments.mode}",
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
