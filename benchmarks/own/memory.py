"""Peak memory of a fit over data of two sizes in partitions of one size; prints one JSON line for each.

python -m benchmarks.own.memory data/1m data/5m
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import daskprep as dp
from benchmarks.peers.common import GROUPS, peak_memory_mb
from benchmarks.peers.ours_prep import feature_of


def fit_once(folder: Path) -> None:
    """Fit over all files of a folder in this process, and print its peak."""
    files = [str(path) for path in sorted(folder.glob("part-*.parquet"))]
    before = peak_memory_mb()
    dp.Preprocessor({name: feature_of(group) for group, names in GROUPS.items() for name in names}).fit(files)
    print(json.dumps({"data": folder.name, "peak_rss_mb": peak_memory_mb(), "after_imports_mb": before}), flush=True)


def main() -> None:
    """Measure each folder in a separate process."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path)
    folders = parser.parse_args().folders
    if len(folders) == 1:
        fit_once(folders[0])
        return
    for folder in folders:
        subprocess.run([sys.executable, "-m", "benchmarks.own.memory", str(folder)], check=True)


if __name__ == "__main__":
    main()
