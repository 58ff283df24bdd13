"""Runs of daskprep's streams on a made table; each prints one JSON line.

    python -m benchmarks.peers.ours_stream overlap --data bench-data/stream --rows 1000000 --model large
    python -m benchmarks.peers.ours_stream load --data bench-data/stream --rows 1000000 --window 100MB --step 0.001
    python -m benchmarks.peers.ours_stream memory --data bench-data/stream --rows 4000000 --window 60MB --workers 2

overlap: encoding alone, training steps of the same cost alone, and both, one thread each, or one process of a cluster
beside the trainer's with --workers 1. load: rows per second as a
model sees them, in one process tree, beside which another tool can be put. memory: what the trainer and each worker of
a cluster hold at most, over many windows.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import daskprep as dp
from benchmarks.peers.stream_data import CATEGORIES, NUMBERS, TEXT, TOKENS, Peak, table_path, timed


def preprocessor(path: Path, *, text: bool = False) -> dp.Preprocessor:
    features: dict[str, Any] = {name: dp.Number(normalization="zscore") for name in NUMBERS}
    features |= {name: dp.Category() for name in CATEGORIES}
    if text:
        features[TEXT] = dp.Sequence(max_sequence_length=TOKENS)
    return dp.Preprocessor({**features, "label": "binary"}).fit(str(path))


class Model:
    """Training steps that take a number of seconds per batch on average, with layers of some width."""

    def __init__(self, seconds: float, width: int) -> None:
        layers = [torch.nn.Linear(len(NUMBERS), width), torch.nn.ReLU()]
        layers += [torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 1)]
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        batch = {name: torch.zeros(1024) for name in NUMBERS} | {"label": torch.zeros(1024)}
        self.step(batch)
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < _CALIBRATION_SECONDS:
            self.step(batch)
            steps += 1
        self.steps_per_batch = seconds / ((time.perf_counter() - began) / steps)
        self.due = 0.0

    def __call__(self, batch: dict[str, torch.Tensor]) -> None:
        self.due += self.steps_per_batch
        while self.due >= 1:
            self.step(batch)
            self.due -= 1

    def step(self, batch: dict[str, torch.Tensor]) -> None:
        inputs = torch.stack([batch[name] for name in NUMBERS], 1)
        self.optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(self.model(inputs)[:, 0], batch["label"].float())
        loss.backward()
        self.optimizer.step()


class Waiting:
    """Waits a number of seconds per batch on average, as for a device."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.due = 0.0

    def __call__(self, batch: dict[str, torch.Tensor]) -> None:
        self.due += self.seconds
        if self.due > 0:
            began = time.perf_counter()
            time.sleep(self.due)
            self.due -= time.perf_counter() - began


_CALIBRATION_SECONDS = 0.5
MODELS: dict[str, Callable[[float], Callable[[Any], None]]] = {
    "device": Waiting,
    "large": lambda seconds: Model(seconds, 1024),
    "small": lambda seconds: Model(seconds, 128),
}


def overlap(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time encoding and training separately and together."""
    if not arguments.workers:
        return _overlap(arguments)
    from distributed import Client

    with Client(n_workers=arguments.workers, threads_per_worker=1, dashboard_address=":0"):
        return _overlap(arguments)


def _overlap(arguments: argparse.Namespace) -> dict[str, Any]:
    path = table_path(arguments.data, arguments.rows)
    prep = preprocessor(path, text=True)
    source = dp.read_files(str(path), partition_bytes=arguments.partition_bytes)

    def stream() -> Any:
        return prep.stream(source, arguments.batch, window=arguments.window, threads=1)

    began = time.perf_counter()
    next(iter(stream()))
    first_s = time.perf_counter() - began
    began = time.perf_counter()
    batches = list(stream())
    encoding = time.perf_counter() - began
    train = MODELS[arguments.model](encoding / len(batches))
    began = time.perf_counter()
    for batch in batches:
        train(batch)
    training = time.perf_counter() - began
    del batches
    began = time.perf_counter()
    for batch in stream():
        train(batch)
    both = time.perf_counter() - began
    return {
        "encoding_s": encoding,
        "training_s": training,
        "both_s": both,
        "to_the_longer": both / max(encoding, training),
        "first_batch_s": first_s,
    }


def load(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time the epochs of a model."""
    path = table_path(arguments.data, arguments.rows)
    source = dp.read_files(str(path), partition_bytes=arguments.partition_bytes)
    stream = preprocessor(path).stream(source, arguments.batch, window=arguments.window, threads=arguments.threads)
    with Peak() as peak:
        found = timed(lambda: iter(stream), arguments.epochs, arguments.step, "label")
    return {**found, "peak_mb": peak.tree_mb}


def memory(arguments: argparse.Namespace) -> dict[str, Any]:
    """Print the peak memory of the trainer and each worker."""
    from distributed import Client, LocalCluster

    path = table_path(arguments.data, arguments.rows)
    prep = preprocessor(path)
    source = dp.read_files(str(path), partition_bytes=arguments.partition_bytes)
    with (
        LocalCluster(n_workers=arguments.workers, threads_per_worker=1, dashboard_address=":0") as workers,
        Client(workers) as client,
    ):
        stream = prep.stream(source, arguments.batch, window=arguments.window)
        # Imports of workers do not count.
        client.run(importlib.import_module, "daskprep.extensions.streaming.encoding")
        pids = list(client.run(os.getpid).values())
        with Peak(pids) as peak:
            found = timed(lambda: iter(stream), arguments.epochs, arguments.step, "label")
        return {**found, **stream.stats(), "trainer_grew_mb": peak.grew_mb, "workers_grew_mb": peak.others_grew_mb}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["overlap", "load", "memory"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--window", default="100MB")
    parser.add_argument("--partition-bytes", type=int, default=4_000_000)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--workers", type=int, default=0, help="processes of a cluster that encode")
    parser.add_argument("--model", choices=list(MODELS), default="large")
    parser.add_argument("--step", type=float, default=0.0, help="seconds that a model takes for a batch")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {"overlap": overlap, "load": load, "memory": memory}[arguments.what](arguments)
    print(json.dumps({"tool": "daskprep", "what": arguments.what, **found}))


if __name__ == "__main__":
    main()
