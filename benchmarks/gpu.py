"""How well a loader feeds a GPU: rows and bytes a second into its memory, and how long it waits while a model trains.

    python benchmarks/gpu.py --rows 2000000 --only copy,load,expand,idle

Prints a JSON line per figure. `busy` sums what events on the GPU measure around each step; what is left of the time is
idle. With ``--device cpu`` the same code runs without a GPU, which tells that it works and nothing else.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

import daskprep as dp

BATCH, VECTOR, NUMBERS, SIDE = 8_192, 48, 8, 64
PHOTOS, PHOTO_BATCH = 4_096, 256


def make_table(rows: int, folder: Path) -> tuple[Path, dp.Preprocessor, dp.Dataset]:
    """Write a table of numbers, categories, tags and a vector, as a file and as a dataset."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {f"n{i}": rng.normal(size=rows).astype(np.float32) for i in range(NUMBERS)}
    columns |= {f"c{size}": rng.integers(0, size, rows).astype(str) for size in (10, 1_000)}
    columns["tags"] = rng.choice(["red", "red new", "new old", "old"], rows)
    columns["vector"] = list(rng.normal(size=(rows, VECTOR)).astype(np.float32))
    columns["label"] = rng.random(rows) < 0.5
    file = folder / "table.parquet"
    pd.DataFrame(columns).to_parquet(file, row_group_size=100_000)
    features: dict[str, Any] = {name: "number" for name in columns if name.startswith("n")}
    features |= {"c10": "category", "c1000": "category", "tags": "set", "vector": "vector", "label": "binary"}
    prep = dp.Preprocessor(features, targets=["label"])
    return file, prep, prep.fit_write(str(file), folder / "table.dp", progress=False)


def make_photos(folder: Path) -> dp.Dataset:
    """Write a dataset of images that are decoded while a model trains, then cached."""
    rng, photos = np.random.default_rng(1), folder / "photos"
    photos.mkdir()
    for number in range(64):
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(photos / f"{number}.jpg")
    paths = [str(photos / f"{number % 64}.jpg") for number in range(PHOTOS)]
    frame = pd.DataFrame({"photo": paths, "label": rng.random(PHOTOS) < 0.5})
    features = {"photo": dp.Image(height=SIDE, width=SIDE, mode="lazy_cached"), "label": "binary"}
    prep = dp.Preprocessor(features, targets=["label"])
    return prep.fit_write(frame, folder / "photos.dp", progress=False)


def synchronize(device: torch.device) -> None:
    """Wait for the GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """Return all tensors of a batch."""
    return [tensor for part in (batch if isinstance(batch, tuple) else (batch,)) for tensor in leaves(part)]


def leaves(part: Any) -> list[torch.Tensor]:
    """Return the tensors of inputs or of targets."""
    return list(part.values()) if isinstance(part, dict) else [part]


def copy_rate(device: torch.device) -> float:
    """Return the bytes a second that copies from pinned memory reach, the best of a few."""
    source, target = torch.empty(1 << 28, dtype=torch.uint8), torch.empty(1 << 28, dtype=torch.uint8, device=device)
    source = source.pin_memory() if device.type == "cuda" else source
    seconds = []
    for _ in range(5):
        synchronize(device)
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    return len(source) / min(seconds)


def epoch_rate(batches: Iterable[Any], device: torch.device, move: bool = False) -> tuple[float, float]:
    """Return rows and bytes a second of an epoch, counted as the tensors that arrive."""
    rows = size = 0
    began = time.perf_counter()
    for batch in batches:
        tensors = [tensor.to(device) for tensor in tensors_of(batch)] if move else tensors_of(batch)
        rows += len(tensors[0])
        size += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    synchronize(device)
    seconds = time.perf_counter() - began
    return rows / seconds, size / seconds


class Timer:
    """Sums the time that the device is busy with steps."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._spans: list[tuple[Any, Any]] = []

    def step(self, work: Callable[[], None]) -> None:
        """Run a step between two marks."""
        marks = self._mark(), work(), self._mark()
        self._spans.append((marks[0], marks[2]))

    def busy(self) -> float:
        """Return the seconds of all steps."""
        synchronize(self.device)
        if self.device.type != "cuda":
            return sum(end - begin for begin, end in self._spans)
        return sum(begin.elapsed_time(end) for begin, end in self._spans) / 1_000

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def idle_share(batches: Iterable[Any], model: torch.nn.Module, device: torch.device) -> dict[str, float]:
    """Train on an epoch; return the share of the time in which the device had no step to work on."""
    model = model.to(device)
    optimizer, timer = torch.optim.SGD(model.parameters(), lr=1e-3), Timer(device)
    wait = 0.0
    began = before = time.perf_counter()
    for inputs, target in batches:
        wait += time.perf_counter() - before
        label = leaves(target)[0]

        def work(inputs: Any = inputs, label: torch.Tensor = label) -> None:
            values = torch.cat(
                [
                    tensor.float().flatten(1) if tensor.ndim > 1 else tensor.float()[:, None]
                    for tensor in inputs.values()
                ],
                dim=1,
            )
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(values).squeeze(1), label.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        timer.step(work)
        before = time.perf_counter()
    busy, seconds = timer.busy(), time.perf_counter() - began
    steps = len(timer._spans)
    return {
        "idle": round(1 - busy / seconds, 3),
        "step_ms": round(busy / steps * 1_000, 3),
        "wait_ms": round(wait / steps * 1_000, 3),
    }


def models(inputs: int) -> Iterator[tuple[str, torch.nn.Module]]:
    """Give a model whose step takes a fraction of a millisecond on a large GPU, and one of some milliseconds."""
    for name, width, depth in (("small", 256, 1), ("medium", 4_096, 4)):
        hidden = [layer for _ in range(depth) for layer in (torch.nn.LazyLinear(width), torch.nn.ReLU())]
        model = torch.nn.Sequential(*hidden, torch.nn.LazyLinear(1))
        model(torch.zeros(1, inputs))
        yield name, model


def show(**figures: Any) -> None:
    """Print a line."""
    print(json.dumps(figures), flush=True)


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="copy,load,expand,idle")
    options = parser.parse_args()
    device, parts = torch.device(options.device), options.only.split(",")
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU: figures tell nothing"
    show(device=card, cuda_devices=torch.cuda.device_count(), torch=torch.__version__)
    rate = copy_rate(device)
    if "copy" in parts:
        show(part="copy", gigabytes_a_second=round(rate / 1e9, 2))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file, prep, dataset = make_table(options.rows, folder)
        train = dataset["train"]
        if "load" in parts:
            for expand in (False, True):
                loader = train.loader(BATCH, device=device, expand=expand)
                found = [epoch_rate(loader, device) for _ in range(3)][1:]
                rows, size = max(found)
                show(part="load", expand=expand, rows_a_second=round(rows), share_of_copy=round(size / rate, 3))
        if "expand" in parts:
            on_device = max(epoch_rate(train.loader(BATCH, device=device), device) for _ in range(2))
            on_cpu = max(epoch_rate(train.loader(BATCH), device, move=True) for _ in range(2))
            show(part="expand", on_device=round(on_device[0]), on_cpu=round(on_cpu[0]))
        if "idle" in parts:
            inputs = sum(tensor[0].numel() for tensor in next(iter(train.loader(2)))[0].values())
            for size, model in models(inputs):
                loader = train.loader(BATCH, device=device)
                idle_share(loader, model, device)  # the first epoch warms up
                show(part="idle", model=size, source="loader", **idle_share(loader, model, device))
                stream = prep.stream(str(file), BATCH, device=device)
                show(part="idle", model=size, source="stream", **idle_share(stream, model, device))
            photos = make_photos(folder)["train"]
            for size, model in models(3 * SIDE * SIDE):
                loader = photos.loader(PHOTO_BATCH, device=device)
                idle_share(loader, model, device)  # fills the cache
                show(part="idle", model=size, source="media cache", **idle_share(loader, model, device))


if __name__ == "__main__":
    main()
