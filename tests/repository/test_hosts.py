"""Hosts that share only a bucket return the same results as one host; see benchmarks/machines/hosts."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.machines.hosts.network import obstacle


@pytest.mark.slow
@pytest.mark.cluster
def test_hosts_write_cache_train_and_stream_after_losing_two():
    if (why := obstacle()) is not None:
        pytest.skip(why)
    command = [sys.executable, "-m", "benchmarks.machines.hosts.run", "--rows", "1600"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line)["step"] for line in done.stdout.splitlines()]
    assert steps == ["make", "write", "local", "cache", "train", "train", "stream", "write", "write", "same"]
