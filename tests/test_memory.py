"""What a fit holds depends on the size of partitions and on workers, not on rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.slow

FIT = """
import sys
from pathlib import Path
import daskprep as dp
from daskprep.sources import read_files

source = read_files(sys.argv[1], partition_bytes=8_000_000)
features = {"x": "number", "city": dp.Category(most_common=None), "text": "text"}
dp.Preprocessor(features, split=dp.RandomSplit()).fit(source)
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""
ROWS = 50_000


def write_part(folder: Path, part: int) -> None:
    rng = np.random.default_rng(part)
    words = np.array([f"word{i}" for i in range(5_000)])
    text = rng.choice(words, (ROWS, 20))
    pd.DataFrame(
        {
            "x": rng.lognormal(size=ROWS),
            "city": rng.integers(0, 100_000, ROWS).astype(str),
            "text": [" ".join(row) for row in text],
        }
    ).to_parquet(folder / f"part-{part:02}.parquet", row_group_size=25_000)


def peak_kb(folder: Path) -> int:
    run = subprocess.run([sys.executable, "-c", FIT, str(folder)], check=True, capture_output=True, text=True)
    return int(run.stdout)


def test_five_times_the_rows_take_little_more_memory(tmp_path):
    small, large = tmp_path / "small", tmp_path / "large"
    for folder, parts in ((small, 4), (large, 20)):
        folder.mkdir()
        for part in range(parts):
            write_part(folder, part)
    assert peak_kb(large) <= 1.3 * peak_kb(small)
