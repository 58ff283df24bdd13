"""The cost of a saved Preprocessor: its bytes, saving and loading it, and loading it to serve rows, in fresh processes.

    python -m benchmarks.own.saved [--rounds 5] [--values 20000]

It has four categories and a text of so many values each, a set, eight numbers, a date and a binary. Milliseconds are of
the clock and of the processor; memory is that of `serving.load` beyond an interpreter with NumPy.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from statistics import median
from typing import Any

TIMED = """
import json, os, sys, time
import numpy as np
def memory():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
before = memory()
path = sys.argv[1]
if sys.argv[2] == "serve":
    from daskprep import serving
    work = lambda: serving.load(path)
else:
    import daskprep as dp
    prep = dp.Preprocessor.load(path)
    work = (lambda: prep.save(path + ".copy")) if sys.argv[2] == "save" else lambda: dp.Preprocessor.load(path)
clock, processor = time.perf_counter(), time.process_time()
kept = work()
spent = time.perf_counter() - clock, time.process_time() - processor
print(json.dumps([1000 * spent[0], 1000 * spent[1], memory() - before]))
"""


def save(path: Path, values: int) -> None:
    """Fit a Preprocessor and save it."""
    import numpy as np
    import pandas as pd

    import daskprep as dp

    rng, rows = np.random.default_rng(0), 2 * values
    frame: dict[str, Any] = {f"n{i}": rng.normal(size=rows) for i in range(8)}
    frame |= {f"c{i}": [f"value {i} {number:06d}" for number in np.arange(rows) % values] for i in range(4)}
    frame["tags"] = [f"t{a} t{b}" for a, b in rng.integers(0, 5000, (rows, 2))]
    frame["text"] = [f"word{number % values} and more" for number in range(rows)]
    frame["date"] = pd.date_range("2020-01-01", periods=rows, freq="min").astype(str)
    frame["binary"] = rng.choice(["yes", "no"], rows)
    features: dict[str, Any] = {f"n{i}": "number" for i in range(8)}
    features |= {f"c{i}": dp.Category(most_common=values) for i in range(4)}
    features |= {"tags": "set", "text": dp.Text(most_common=values), "date": "date", "binary": "binary"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dp.Preprocessor(features).fit(pd.DataFrame(frame)).save(path)


def timed(path: Path, work: str) -> list[float]:
    """Return wall-clock and CPU milliseconds, and megabytes, in a fresh process."""
    done = subprocess.run([sys.executable, "-c", TIMED, str(path), work], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    figures: list[float] = json.loads(done.stdout)
    return figures


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--values", type=int, default=20_000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prep.json"
        save(path, chosen.values)
        print(f"{path.stat().st_size:,} bytes\n\n| | ms | ms of the processor | MB |\n|---|---|---|---|")
        for work, name in (("save", "save"), ("load", "Preprocessor.load"), ("serve", "serving.load")):
            figures = zip(*(timed(path, work) for _ in range(chosen.rounds)), strict=True)
            clock, processor, memory = (median(one) for one in figures)
            print(f"| {name} | {clock:.0f} | {processor:.0f} | {f'{memory:.0f}' if work == 'serve' else ''} |")


if __name__ == "__main__":
    main()
