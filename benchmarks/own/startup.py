"""Startup time of daskprep: its import, and the first fit of 1,000 rows, each in fresh processes.

    python -m benchmarks.own.startup [--rounds 7]

Every sample is a new interpreter that has imported pandas and Dask before the clock starts. The last line
names the heavy packages that were loaded before the first fit, some of which should not be.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import median

PROGRAM = """
import json, sys, time
import dask, dask.array, dask.dataframe, numpy as np, pandas as pd

start = time.perf_counter()
import daskprep as dp
imported = time.perf_counter()
dp.Preprocessor, dp.Number, dp.Category, dp.Text, dp.Set, dp.Binary, dp.Date
resolved = time.perf_counter()
heavy = ("torch", "librosa", "PIL", "zarr", "sklearn", "distributed")
early = [name for name in heavy if name in sys.modules]

rng = np.random.default_rng(0)
frame = pd.DataFrame({
    "price": rng.normal(size=1000), "city": rng.choice(["Oslo", "Rome", "Lima"], 1000),
    "tags": rng.choice(["a b", "b", "c a", ""], 1000),
    "review": rng.choice(["Calm, lovely.", "Too loud!"], 1000),
    "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 365, 1000), unit="D"),
    "sold": rng.random(1000) < 0.5,
})
prep = dp.Preprocessor({
    "price": dp.Number(normalization="zscore"), "city": dp.Category(), "tags": dp.Set(), "review": dp.Text(),
    "day": dp.Date(), "sold": dp.Binary(),
})
began = time.perf_counter()
prep.fit(frame)
first = time.perf_counter()
prep.fit(frame)
second = time.perf_counter()
print(json.dumps({
    "import daskprep": imported - start, "first use of its names": resolved - imported,
    "first fit of 1,000 rows": first - began, "second fit": second - first, "early": early,
}))
"""


def sample() -> dict[str, float | list[str]]:
    """Measure one fresh interpreter; seconds by step, and the modules loaded before the fit."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    measured: dict[str, float | list[str]] = json.loads(done.stdout)
    return measured


def main() -> None:
    """Print medians and the fastest sample, in milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    samples = [sample() for _ in range(parser.parse_args().rounds)]
    print("| beyond pandas and Dask | median, ms | fastest, ms |\n|---|---|---|")
    for step in [name for name in samples[0] if name != "early"]:
        times = [1000 * one[step] for one in samples]
        print(f"| {step} | {median(times):.1f} | {min(times):.1f} |")
    print(f"\nloaded before the first fit: {', '.join(samples[0]['early']) or 'none'}")


if __name__ == "__main__":
    main()
