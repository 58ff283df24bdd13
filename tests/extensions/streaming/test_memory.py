"""The memory of a stream does not depend on the number of rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PARTITION = 1_000_000
WINDOW = 40_000_000
# What is gathered ahead, in arrays of 8 MB, what two threads work on, parsed as float64, and what malloc keeps.
MARGIN = 5 * 8_000_000 + 4 * 4 * PARTITION + 60_000_000


@pytest.mark.slow
def test_memory_stays_within_window():
    script = str(Path(__file__).with_name("memory_process.py"))
    code = f"import runpy; runpy.run_path({script!r}, run_name='__main__')"
    command = [sys.executable, "-c", code, "400", str(WINDOW)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert found["rows"] == 100_000
    assert found["windows"] <= WINDOW
    assert found["bytes"] < WINDOW + MARGIN, found
