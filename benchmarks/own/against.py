"""Compare this checkout with another one of daskprep, such as the previous commit: alternating runs, ratios of medians.

    git worktree add ../before HEAD~1
    python -m benchmarks.own.against ../before --rounds 5

Each run is a process of its own that writes a table of seven columns, reads it and a stream of it in epochs, encodes
rows by a service and by `encode`, and reads images, lazy and from a cache. A ratio above 1 means that the other
checkout takes longer or more memory. The time of others on the same machine shows in the spread: rounds in which a
ratio was above 1.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROWS, IMAGES = 400_000, 400


def make_data(folder: Path, rows: int) -> None:
    """Write the table and the images that all runs read."""
    import numpy as np
    import pandas as pd
    from PIL import Image

    rng = np.random.default_rng(0)
    words = np.array([f"word{number}" for number in range(20_000)])
    table = pd.DataFrame(
        {
            "price": np.where(rng.random(rows) < 0.03, np.nan, rng.lognormal(size=rows)),
            "city": rng.choice(words[:500], rows),
            "sold": rng.random(rows) < 0.2,
            "tags": [" ".join(row) for row in rng.choice(words[:300], (rows, 3))],
            "review": [" ".join(row) for row in rng.choice(words, (rows, 8))],
            "series": [" ".join(map(str, row)) for row in rng.integers(0, 99, (rows, 6))],
            "day": (pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 9e7, rows), "s")).astype(str),
        }
    )
    table.to_parquet(folder / "table.parquet", row_group_size=rows // 10)
    (folder / "images").mkdir()
    for number in range(IMAGES):
        pixels = np.kron(rng.integers(0, 256, (28, 28, 3), dtype=np.uint8), np.ones((8, 8, 1), np.uint8))
        Image.fromarray(pixels).save(folder / "images" / f"{number}.jpg")


def measure(folder: Path) -> dict[str, float]:
    """Return the seconds of every job, and the peak memory of the write, of the imported daskprep."""
    import pandas as pd

    import daskprep as dp
    from daskprep import serving

    warnings.simplefilter("ignore")
    out = Path(tempfile.mkdtemp(dir=folder))
    kinds = {"price": "number", "city": "category", "sold": "binary", "tags": "set", "review": "text"}
    prep = dp.Preprocessor({**kinds, "series": "timeseries", "day": "date"}, split=dp.RandomSplit(seed=1))
    seconds, source = {}, str(folder / "table.parquet")

    def timed(name: str, job: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = job()
        seconds[name] = time.perf_counter() - started
        return result

    dataset = timed("fit_write", lambda: prep.fit_write(source, out / "table.dp", progress=False))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loader = dataset["train"].loader(512, seed=1)
    for name in ("load, the first 4 epochs", "load, 4 epochs"):
        timed(name, lambda: [sum(1 for _ in loader) for _ in range(4)])
    timed("stream", lambda: sum(1 for _ in prep.stream(source, 512, seed=1)))
    frame = pd.read_parquet(source).head(100_000)
    prep.save(out / "prep.json")
    encoder = serving.load(out / "prep.json")
    row = frame.astype(object).iloc[0].to_dict()
    encoder.encode(row)
    timed("serve one row, 2,000 times", lambda: [encoder.encode(row) for _ in range(2_000)])
    for rows, times in ((1, 200), (100, 100), (100_000, 1)):
        few = frame.head(rows)
        prep.encode(few)
        timed(f"encode {rows:,}", lambda few=few, times=times: [prep.encode(few) for _ in range(times)])
    paths = pd.DataFrame({"photo": [str(file) for file in sorted((folder / "images").iterdir())]})
    for mode in ("lazy", "lazy_cached"):
        images = dp.Preprocessor({"photo": dp.Image(height=112, width=112, mode=mode)}, split=None)
        photos = images.fit_write(paths, out / f"{mode}.dp", progress=False)["train"].loader(
            64, seed=1, cache=mode == "lazy_cached", cache_dir=out / "cache"
        )
        sum(1 for _ in photos)
        timed(f"images, {mode}", lambda photos=photos: [sum(1 for _ in photos) for _ in range(2)])
    return {**seconds, "peak memory of fit_write": float(peak)}


def run(checkout: Path, folder: Path) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "measure", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        raise SystemExit(f"{checkout} failed:\n{done.stderr[-3000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    if sys.argv[1] == "measure":
        print(json.dumps(measure(Path(sys.argv[2]))))
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=ROWS)
    arguments = parser.parse_args()
    here = Path(__file__).parents[2]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder, arguments.rows)
        rounds = []
        for number in range(arguments.rounds):
            # Alternating, since the second of a pair finds files in the page cache.
            order = (here, arguments.other) if number % 2 else (arguments.other, here)
            figures = {checkout: run(checkout, folder) for checkout in order}
            rounds.append((figures[here], figures[arguments.other]))
    print(
        f"| {arguments.rounds} rounds | here, s or kB | other / here, of medians | rounds above 1 |\n|---|---|---|---|"
    )
    for name in rounds[0][0]:
        ours, others = ([one[name] for one in side] for side in zip(*rounds, strict=True))
        above = sum(other > our for our, other in zip(ours, others, strict=True))
        print(f"| {name} | {median(ours):,.4g} | {median(others) / median(ours):.3f} | {above} |")


if __name__ == "__main__":
    main()
