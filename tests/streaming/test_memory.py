"""A stream takes the memory of its window, however many rows there are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PARTITION = 1_000_000
WINDOW = 40_000_000
# What is gathered ahead, in arrays of 8 MB, what two threads work on, parsed as float64, and what malloc keeps.
BESIDES = 5 * 8_000_000 + 4 * 4 * PARTITION + 60_000_000


@pytest.mark.slow
def test_ten_times_the_window_take_the_memory_of_the_window():
    script = str(Path(__file__).with_name("memory_process.py"))
    code = f"import runpy; runpy.run_path({script!r}, run_name='__main__')"
    command = [sys.executable, "-c", code, "400", str(WINDOW)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert found["rows"] == 100_000
    assert found["windows"] <= WINDOW
    assert found["bytes"] < WINDOW + BESIDES, found
