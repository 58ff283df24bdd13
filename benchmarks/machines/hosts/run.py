"""Several hosts, a bucket between them: write, lose a host, cache, train on two hosts, stream.

    python -m benchmarks.machines.hosts.run --rows 20000

Prints a JSON line per step, and fails where a step gives something else than a single machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

from benchmarks.machines.hosts.job import BUCKET, DATASET
from benchmarks.machines.hosts.network import Network, obstacle

# A host that is cut off says nothing: how long the others wait for it is their choice.
PATIENCE = {
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "30s",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "15s",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "30s",
}


class Cluster:
    """A store, a scheduler, and workers on hosts of their own."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.scheduler = f"tcp://{network.address('scheduler')}:8786"
        store = network.address("store")
        keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}
        threads = {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "cable",
            "PYTHONPATH": ":".join(filter(None, sys.path)),
        }
        self.environment = {**PATIENCE, **keys, **threads, "AWS_ENDPOINT_URL": f"http://{store}:5000"}
        self._start("store", "moto.server", "-H", store, "-p", "5000")
        self._start(
            "scheduler", "distributed.cli.dask_scheduler", "--host", network.address("scheduler"), "--no-dashboard"
        )
        for host in ("one", "two", "three"):
            self.add_worker(host)

    def add_worker(self, host: str) -> None:
        """Start a worker of one thread on a host."""
        options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", self.network.address(host))
        self._start(host, "distributed.cli.dask_worker", self.scheduler, *options)

    def step(self, host: str, *words: str) -> dict[str, Any]:
        """Run a step of the job on a host, and return what it says."""
        command = [sys.executable, "-m", "benchmarks.machines.hosts.job", *words]
        return self._show(host, words[0], self.network.run(host, command, self.environment))

    def begin(self, host: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a step, and return once the write is under way."""
        said = self.network.log(host).count("under way")
        process = self.network.start(
            host, [sys.executable, "-m", "benchmarks.machines.hosts.job", *words], self.environment
        )
        while self.network.log(host).count("under way") == said:
            if process.poll() is not None:
                raise RuntimeError(f"{words} ended with {process.returncode}:\n{self.network.log(host)}")
            time.sleep(0.05)
        return process

    def result(self, host: str, words: str, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Wait for a step that was started, and return what it says."""
        if process.wait(timeout=900):
            raise RuntimeError(f"{words} ended with {process.returncode}:\n{self.network.log(host)}")
        return self._show(host, words, self.network.log(host))

    def _show(self, host: str, step: str, printed: str) -> dict[str, Any]:
        found = json.loads([line for line in printed.splitlines() if line.startswith("{")][-1])
        shown = {name: value for name, value in found.items() if name != "rows" or isinstance(value, int)}
        print(json.dumps({"step": step, "host": host, **shown}), flush=True)
        return dict(found)

    def _start(self, host: str, module: str, *words: str) -> None:
        self.network.start(host, [sys.executable, "-m", module, *words], self.environment)


def main() -> None:
    """Run all steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="20000")
    rows = parser.parse_args().rows
    if (why := obstacle()) is not None:
        raise SystemExit(why)
    with Network(["store", "scheduler", "one", "two", "three", "client"]) as network:
        cluster = Cluster(network)
        expected = cluster.step("client", "make", rows)["rows"]

        written = cluster.step("client", "write", cluster.scheduler, DATASET)
        assert (written["rows"], written["hosts"]) == (expected, 3), written
        compared = cluster.step("client", "local")
        assert not compared["different"], compared

        cached = cluster.step("client", "cache", cluster.scheduler)
        assert cached["cached"] == cached["blocks"], cached

        meeting = network.address("one")
        second = network.start(
            "two", [sys.executable, "-m", "benchmarks.machines.hosts.job", "train", meeting, "1"], cluster.environment
        )
        first = cluster.step("one", "train", meeting, "0")
        other = cluster.result("two", "train", second)
        rows_seen = first["rows"] + other["rows"]
        assert len(rows_seen) == len(set(rows_seen)) == first["of"], "each row once, on one of the hosts"
        assert first["weights"] == other["weights"]

        assert cluster.step("client", "stream", cluster.scheduler)["rows"] == first["of"]

        # A worker's host is lost in the middle of a write: the others complete it.
        lost = cluster.begin("client", "write", cluster.scheduler, f"{BUCKET}/lost.dp")
        network.cut_off("three")
        assert cluster.result("client", "write", lost)["rows"] == expected

        # Then that of the caller: another host goes on.
        halted = cluster.begin("client", "write", cluster.scheduler, f"{BUCKET}/resumed.dp")
        network.cut_off("client")
        halted.kill()
        assert cluster.step("one", "write", cluster.scheduler, f"{BUCKET}/resumed.dp")["rows"] == expected
        same = cluster.step("one", "same", DATASET, f"{BUCKET}/lost.dp", f"{BUCKET}/resumed.dp")
        assert not same["different"], same


if __name__ == "__main__":
    main()
