"""Time, memory and stability of the features that "auto" proposes, by style.

    python -m benchmarks.own.proposals [--rows 10000000] [--folder FOLDER] [--styles trees,linear] [--write]

A table of ten columns is made in FOLDER. Each line is a style: whether the proposals equal those for a table of 10,000
rows, processor seconds of `infer_features`, and the peak memory of the process so far. With `--write`, a write with
"auto" is compared with one that has the same features from the start.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import daskprep as dp

BLOCK, FEW = 250_000, 10_000
WORDS = np.array(
    [
        "north", "blue", "city", "grand", "royal", "first", "bank", "foods", "motors", "clinic", "schools", "river",
        "stone", "field",
    ]
)  # fmt: skip
SHOPS = np.array([f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS])


def make_block(start: int, rows: int) -> pa.Table:
    """Return rows of skewed, even, mostly constant and far-tailed numbers, names, texts, labels and times."""
    rng = np.random.default_rng([7, start])
    seconds = rng.integers(0, 3 * 365 * 86_400, rows).astype("timedelta64[s]")
    return pa.table(
        {
            "price": rng.lognormal(0, 1, rows),
            "height": rng.normal(170, 10, rows),
            "visits": np.where(rng.random(rows) < 0.7, 0, rng.integers(1, 900, rows)),
            "change": np.where(rng.random(rows) < 0.7, 0.0, rng.standard_t(1.5, rows)),
            "age": pa.array(rng.integers(18, 90, rows), mask=rng.random(rows) < 0.05),
            "shop": SHOPS[rng.zipf(1.5, rows) % 300],
            "title": [" ".join(words) for words in WORDS[rng.integers(0, len(WORDS), (rows, 6))]],
            "kind": rng.choice(list("abcdef"), rows),
            "seen": (np.datetime64("2021-01-01") + seconds).astype("datetime64[us]"),
            "sold": rng.choice(["yes", "no"], rows),
        }
    )


def write_table(path: Path, rows: int) -> Path:
    if not path.exists():
        with pq.ParquetWriter(path, make_block(0, 1).schema) as writer:
            for start in range(0, rows, BLOCK):
                writer.write_table(make_block(start, min(BLOCK, rows - start)), row_group_size=BLOCK)
    return path


def infer(path: Path, style: Any) -> tuple[dict[str, Any], float]:
    """Return the proposals, and the processor seconds."""
    start = time.process_time()
    found = dp.infer_features(path, targets="sold", style=style, progress=False, workers="threads")
    return dict(found), time.process_time() - start


def seconds_to_write(path: Path, features: Any, style: Any = None) -> float:
    """Return the processor seconds of a fit and a write."""
    start = time.process_time()
    prep = dp.Preprocessor(features, style=style, targets="sold")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        prep.fit_write(path, f"{folder}/rows.dp", progress=False, workers="threads")
    return time.process_time() - start


def main() -> None:
    """Print a line for each style."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=Path("build"))
    parser.add_argument("--styles", type=lambda text: text.split(","), default=["trees", "linear", "network"])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    few, path = (write_table(options.folder / f"proposals_{rows}.parquet", rows) for rows in (FEW, options.rows))
    for style in options.styles:
        features, seconds = infer(path, style)
        are_equal = repr(features) == repr(infer(few, style)[0])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        outcome = "equal" if are_equal else "other"
        line = f"{style:8} {len(features)} features, {outcome}: {seconds:.1f} s, {peak:.0f} MiB"
        if options.write:
            auto, plain = seconds_to_write(path, "auto", style), seconds_to_write(path, features)
            line += f"; write {auto:.1f} s, with the same features {plain:.1f} s, ratio {auto / plain:.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
