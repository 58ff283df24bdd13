"""What a partition costs however few rows it has: write the same rows cut into 1,000 and into 10,000 partitions.

    python benchmarks/partitions.py [--partitions 1000 10000] [--kind dask files]

Each partition has 10 rows of a number, a category and a text; each run is a fresh process. Printed are seconds,
milliseconds for each partition, and the ratio of the longest run to the shortest.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROWS = 10


def partition(number: int) -> Any:
    """Make the rows of one partition."""
    import pandas as pd

    rows = range(number * ROWS, (number + 1) * ROWS)
    return pd.DataFrame(
        {
            "price": [row / 7 for row in rows],
            "city": [f"city {row % 100}" for row in rows],
            "review": [f"good {row % 1000}, really" for row in rows],
            "sold": [row % 3 == 0 for row in rows],
        }
    )


def source(kind: str, partitions: int, folder: Path) -> Any:
    """Give a Dask frame, or the folder of as many Parquet files, each a partition."""
    if kind == "dask":
        import dask.dataframe as dd

        return dd.from_map(partition, range(partitions), meta=partition(0).iloc[:0])
    import daskprep as dp

    for number in range(partitions):
        partition(number).to_parquet(folder / f"part-{number:05d}.parquet")
    return dp.read_files(folder, partition_bytes=1)


def run(kind: str, partitions: int) -> None:
    """Write once in this process, and print the figures."""
    import daskprep as dp

    features = {"price": "number", "city": "category", "review": "text", "sold": "binary"}
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "files"
        files.mkdir()
        frame = source(kind, partitions, files)
        prep = dp.Preprocessor(features, split=dp.StratifiedSplit("sold"))
        start = time.perf_counter()
        prep.fit_write(frame, Path(folder) / "out.dp", progress=False)
        print(json.dumps({"kind": kind, "partitions": partitions, "seconds": time.perf_counter() - start}))


def main() -> None:
    """Run each case in a fresh process and compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--partitions", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--kind", choices=["dask", "files"], nargs="+", default=["dask", "files"])
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        run(arguments.kind[0], arguments.partitions[0])
        return
    for kind in arguments.kind:
        seconds = []
        for partitions in arguments.partitions:
            command = [sys.executable, __file__, "--one", "--kind", kind, "--partitions", str(partitions)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds.append(json.loads(done.stdout.splitlines()[-1])["seconds"])
            each = 1000 * seconds[-1] / partitions
            print(f"{kind}: {partitions:,} partitions, {seconds[-1]:.1f} s, {each:.2f} ms each", flush=True)
        print(f"{kind}: the last takes {seconds[-1] / seconds[0]:.1f} times the first")


if __name__ == "__main__":
    main()
