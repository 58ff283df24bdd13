"""The memory of a fit depends on the size of partitions and on workers, not on rows; a write keeps its limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
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


def test_memory_grows_little_with_five_times_the_rows(tmp_path):
    small, large = tmp_path / "small", tmp_path / "large"
    for folder, parts in ((small, 4), (large, 20)):
        folder.mkdir()
        for part in range(parts):
            write_part(folder, part)
    assert peak_kb(large) <= 1.3 * peak_kb(small)


WRITE = """
import sys
from pathlib import Path
import dask
import daskprep as dp

with dask.config.set(num_workers=2):
    features = {"text": "text", "label": "binary"}
    dp.Preprocessor(features).fit_write(sys.argv[1], sys.argv[2], memory="600MB", progress=False)
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


@pytest.mark.parametrize("row_group_size", [30_000, 300_000])
def test_memory_of_repeated_long_texts_is_bounded(tmp_path: Path, row_group_size: int) -> None:
    rng = np.random.default_rng(0)
    texts = pa.array([" ".join(row) for row in rng.choice([f"w{i}" for i in range(900)], (2_000, 60))])
    codes = pa.array(rng.integers(0, 2_000, 300_000))
    table = pa.table({"text": texts.take(codes), "label": pa.array(rng.integers(0, 2, 300_000))})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=row_group_size)
    command = [sys.executable, "-c", WRITE, str(tmp_path / "rows.parquet"), str(tmp_path / "rows.dp")]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(run.stdout) * 1024 < 600_000_000
