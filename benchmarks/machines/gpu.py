"""Throughput of a loader to a GPU: rows and bytes per second into its memory, and the idle share while a model trains.

    python -m benchmarks.machines.gpu --images bench-data/images [--rows 2000000]
        [--only copy,load,expand,augment,jpeg,idle]

Prints a JSON line per figure. `busy` sums what events on the GPU measure around each step; what is left of the time,
from the first batch on, is idle. `gather` is where windows are gathered: on the device from copies of blocks, or in
memory as streams do it. With ``--device cpu`` the same code runs without a GPU, which tells that it works and nothing
else.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import daskprep as dp
from daskprep.dataset.loader import loader as loader_module
from daskprep.dataset.loader.groups import DeviceTransfer

GATHERS = ("memory", "device")
BATCH, VECTOR, NUMBERS = 8_192, 48, 8
PHOTO_BATCH, STEP_PHOTOS, SMALL_SIDE, SIDE = 256, 64, 64, 224
WIDTHS = (512, 1_024, 1_536, 2_048, 3_072, 4_096, 6_144, 8_192)  # of the layers of models
STEP_MS = 5.0


class ChosenTransfer(DeviceTransfer):
    """A transfer of loaders that gathers at `place`, in memory or on the device, also without a GPU."""

    place = GATHERS[1]

    def __init__(self, device: torch.device | None, *, gathers: bool = False) -> None:
        super().__init__(device)
        self.gathers = self.place == "device"


def make_table(rows: int, folder: Path) -> tuple[Path, dp.Preprocessor, dp.Dataset]:
    """Write a table of numbers, categories, tags and a vector, as a file and as a dataset."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {f"n{i}": rng.normal(size=rows).astype(np.float32) for i in range(NUMBERS)}
    columns |= {f"c{size}": rng.integers(0, size, rows).astype(str) for size in (10, 1_000)}
    columns["tags"] = rng.choice(["red", "red new", "new old", "old"], rows)
    columns["vector"] = pa.FixedSizeListArray.from_arrays(rng.standard_normal(rows * VECTOR, np.float32), VECTOR)
    columns["label"] = rng.random(rows) < 0.5
    file = folder / "table.parquet"
    pq.write_table(pa.table(columns), file, row_group_size=100_000)
    features: dict[str, Any] = {name: "number" for name in columns if name.startswith("n")}
    features |= {"c10": "category", "c1000": "category", "tags": "set", "vector": "vector", "label": "binary"}
    prep = dp.Preprocessor(features, targets=["label"])
    return file, prep, prep.fit_write(str(file), folder / "table.dp", progress=False)


def make_photos(images: Path, count: int, side: int, folder: Path, **options: Any) -> dp.Dataset:
    """Write a dataset of paths of images, each file several times."""
    files = [str(path.resolve()) for path in sorted(images.iterdir())]
    frame = pd.DataFrame({"photo": [files[row % len(files)] for row in range(count)]})
    frame["label"] = np.random.default_rng(1).random(count) < 0.5
    features = {"photo": dp.Image(height=side, width=side, num_channels=3, **options), "label": "binary"}
    prep = dp.Preprocessor(features, targets=["label"])
    return prep.fit_write(frame, folder / f"photos-{len(list(folder.iterdir()))}.dp", progress=False)


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


def memory_rate() -> float:
    """Return the bytes per second of memory copies in torch with all cores, the best of a few."""
    source, target = torch.ones(1 << 28, dtype=torch.uint8), torch.ones(1 << 28, dtype=torch.uint8)
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - began)
    return len(source) / min(seconds)


def copy_rate(device: torch.device) -> float:
    """Return the bytes per second of copies from pinned memory, the best of a few."""
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
    """Return rows and bytes per second of an epoch, counted from the yielded tensors."""
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
    """Sums the time of steps on the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._spans: list[tuple[Any, Any]] = []

    def step(self, work: Callable[[], None]) -> None:
        """Run a step between two events."""
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
    """Train for an epoch; return the idle share of the device, from the first batch on."""
    model = model.to(device)
    optimizer, timer = torch.optim.SGD(model.parameters(), lr=1e-3), Timer(device)
    first = 0.0
    started = time.perf_counter()
    for inputs, target in batches:
        if not first:
            first = time.perf_counter() - started
            began = time.perf_counter()
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
    busy, seconds = timer.busy(), time.perf_counter() - began
    steps = len(timer._spans)
    return {
        "idle": round(1 - busy / seconds, 3),
        "step_ms": round(busy / steps * 1_000, 3),
        "first_batch_ms": round(first * 1_000, 1),
    }


def models(inputs: int, batch: int, device: torch.device) -> Iterator[tuple[str, torch.nn.Module]]:
    """Return a model whose step takes a fraction of a millisecond on a large GPU, and one of some milliseconds."""
    yield "small", perceptron(inputs, 256, 1)
    for width in WIDTHS if device.type == "cuda" else WIDTHS[:1]:
        model = perceptron(inputs, width, 3)
        rows = torch.randn(batch, inputs, device=device)
        example = [({"inputs": rows}, {"label": torch.ones(batch, device=device)})] * 20
        idle_share(example, model, device)
        if idle_share(example, model, device)["step_ms"] >= STEP_MS:
            break
    yield f"3 layers of {width}", model


def perceptron(inputs: int, width: int, depth: int) -> torch.nn.Module:
    """Return layers of one width, and a single output."""
    sizes = [inputs, *[width] * depth]
    hidden = [
        layer
        for before, after in itertools.pairwise(sizes)
        for layer in (torch.nn.Linear(before, after), torch.nn.ReLU())
    ]
    return torch.nn.Sequential(*hidden, torch.nn.Linear(width, 1))


def show(**figures: Any) -> None:
    """Print a line."""
    print(json.dumps(figures), flush=True)


def load_part(train: Any, images: Path | None, count: int, folder: Path, device: torch.device, copied: float) -> None:
    """Measure epochs without a model: of the table, and of images from a cache."""
    choices = [(False, None), (True, None), *((False, threads) for threads in (1, 2, 4, 8, 16))]
    for (expand, threads), gather in itertools.product(choices, GATHERS):
        ChosenTransfer.place = gather
        loader = train.loader(BATCH, device=device, expand=expand, threads=threads)
        rows, size = max([epoch_rate(loader, device) for _ in range(3)][1:])
        figures = {"rows_a_second": round(rows), "share_of_copy": round(size / copied, 3)}
        seconds = {name: loader.stats()[name] for name in ("waiting", "reading", "gathering")}
        show(part="load", source="table", gather=gather, expand=expand, threads=threads, **figures, **seconds)
    if images is None:
        return
    photos = make_photos(images, count, SIDE, folder, mode="lazy_cached", expand_to="uint8")["train"]
    for threads in (None, 8, 16):
        loader = photos.loader(PHOTO_BATCH, device=device, threads=threads)
        rows, size = max([epoch_rate(loader, device) for _ in range(4)][1:])
        figures = {"rows_a_second": round(rows), "share_of_copy": round(size / copied, 3)}
        show(part="load", source="media cache", threads=threads, **figures)


def augment_part(images: Path, count: int, folder: Path, device: torch.device, copied: float) -> None:
    """Measure epochs of images that are stored decoded: cropped, mirrored and normalized on the device."""
    photos = make_photos(images, count, SMALL_SIDE, folder, mode="eager", pixel_statistics="channels")["train"]
    crop = dp.RandomCrop(SMALL_SIDE - 8, SMALL_SIDE - 8)
    for (name, steps), gather in itertools.product(
        {"none": (), "all": (crop, dp.Mirror(), dp.Normalize())}.items(), GATHERS
    ):
        ChosenTransfer.place = gather
        loader = photos.loader(PHOTO_BATCH, device=device, augment={"photo": steps} if steps else None)
        rows = max([epoch_rate(loader, device)[0] for _ in range(4)][1:])
        # Pixels are transferred as bytes, and yielded as floats.
        figures = {"images_a_second": round(rows), "share_of_copy": round(rows * 3 * SMALL_SIDE**2 / copied, 3)}
        show(part="augment", steps=name, gather=gather, **figures)


def jpeg_part(images: Path, count: int, folder: Path, device: torch.device) -> None:
    """Measure epochs in which JPEG files are decoded."""
    for decoder in ("pillow", "opencv", "gpu"):
        if decoder == "gpu" and device.type != "cuda":
            continue
        try:
            photos = make_photos(images, count, SIDE, folder, mode="lazy", expand_to="uint8", jpeg_decoder=decoder)
            loader = photos["train"].loader(PHOTO_BATCH, device=device)
            before, rates = os.times(), [epoch_rate(loader, device)[0] for _ in range(2)]
            after = os.times()
        except ImportError as error:
            show(part="jpeg", decoder=decoder, error=str(error))
            continue
        user, system = (
            (now - then) / len(rates) / count * 1e3 for now, then in zip(after[:2], before[:2], strict=True)
        )
        figures = {"user_ms": round(user, 2), "system_ms": round(system, 2)}
        show(part="jpeg", decoder=decoder, images_a_second=round(max(rates)), **figures)


def idle_part(prep: dp.Preprocessor, file: Path, train: Any, device: torch.device) -> None:
    """Measure how long the GPU waits for rows of the table."""
    inputs = sum(tensor[0].numel() for tensor in next(iter(train.loader(2)))[0].values())
    for size, model in models(inputs, BATCH, device):
        for gather in GATHERS:
            ChosenTransfer.place = gather
            loader = train.loader(BATCH, device=device)
            idle_share(loader, model, device)  # the first epoch warms up
            show(part="idle", model=size, source="loader", gather=gather, **idle_share(loader, model, device))
        stream = prep.stream(str(file), BATCH, device=device)
        show(part="idle", model=size, source="stream", **idle_share(stream, model, device))


def idle_photos_part(images: Path, count: int, folder: Path, device: torch.device) -> None:
    """Measure how long the GPU waits for images, from a cache and decoded in the loader."""
    cached = make_photos(images, count, SMALL_SIDE, folder, mode="lazy_cached")["train"]
    on_gpu = {"decoded on the GPU": {"jpeg_decoder": "gpu"}} if device.type == "cuda" else {}
    lazy = {"decoded by Pillow": {}, **on_gpu}
    sources = {
        name: make_photos(images, count // 2, SMALL_SIDE, folder, mode="lazy", **how)["train"]
        for name, how in lazy.items()
    }
    for size, model in models(3 * SMALL_SIDE * SMALL_SIDE, STEP_PHOTOS, device):
        for source, train in {"media cache": cached, **sources}.items():
            loader = train.loader(STEP_PHOTOS, device=device)
            idle_share(loader, model, device)  # fills the cache
            show(part="idle", model=size, source=source, **idle_share(loader, model, device))


def main() -> None:
    """Run the selected parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--images", type=Path, help="a folder of JPEG files; without it, no images are loaded")
    parser.add_argument("--photos", type=int, default=8_192, help="how many rows of images there are")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="copy,load,expand,augment,jpeg,idle")
    options = parser.parse_args()
    device, parts = torch.device(options.device), options.only.split(",")
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU: figures tell nothing"
    show(device=card, cuda_devices=torch.cuda.device_count(), torch=torch.__version__, cores=os.cpu_count())
    loader_module.DeviceTransfer = ChosenTransfer  # type: ignore[misc]
    rate = copy_rate(device)
    if "copy" in parts:
        show(part="copy", gigabytes_a_second=round(rate / 1e9, 2), within_memory=round(memory_rate() / 1e9, 2))
    with tempfile.TemporaryDirectory() as name:
        folder, images, count = Path(name), options.images, options.photos
        file, prep, dataset = make_table(options.rows, folder)
        train = dataset["train"]
        if "load" in parts:
            load_part(train, images, count, folder, device, rate)
        ChosenTransfer.place = "device"
        if "augment" in parts and images is not None:
            augment_part(images, count, folder, device, rate)
            ChosenTransfer.place = "device"
        if "expand" in parts:
            on_device = max(epoch_rate(train.loader(BATCH, device=device), device) for _ in range(2))
            on_cpu = max(epoch_rate(train.loader(BATCH), device, move=True) for _ in range(2))
            show(part="expand", on_device=round(on_device[0]), on_cpu=round(on_cpu[0]))
        if "jpeg" in parts and images is not None:
            jpeg_part(images, count, folder, device)
        if "idle" in parts:
            idle_part(prep, file, train, device)
            if images is not None:
                idle_photos_part(images, 2 * count, folder, device)


if __name__ == "__main__":
    main()
