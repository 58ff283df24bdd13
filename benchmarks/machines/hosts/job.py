"""What runs on one host: ``python -m benchmarks.machines.hosts.job STEP [ARGUMENT ...]``. Its last line is JSON."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import torch
from distributed import Client
from PIL import Image

import daskprep as dp
from daskprep.storage import Folder

BUCKET = "s3://bucket"
RAW, DATASET, CACHE = f"{BUCKET}/raw", f"{BUCKET}/sales.dp", f"{BUCKET}/cache"
FILES, IMAGES, SIDE = 16, 32, 24


def make(rows: str) -> dict[str, Any]:
    """Write the source: a few files, and some images that many rows share."""
    fsspec.filesystem("s3").mkdir("bucket")
    rng = np.random.default_rng(0)
    for number in range(IMAGES):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(file, "PNG")
        with fsspec.open(f"{RAW}/images/{number}.png", "wb") as target:
            target.write(file.getvalue())
    words, each = np.array([f"word{i}" for i in range(2_000)]), int(rows) // FILES
    for number in range(FILES):
        frame = pd.DataFrame(
            {
                "price": rng.lognormal(size=each),
                "city": rng.choice(words, each),
                "review": [" ".join(row) for row in rng.choice(words, (each, 12))],
                "photo": [f"{RAW}/images/{one}.png" for one in rng.integers(0, IMAGES, each)],
                "sold": rng.choice(["yes", "no"], each),
            }
        )
        frame.to_parquet(f"{RAW}/{number:02}.parquet", row_group_size=max(each // 4, 1))
    return {"rows": each * FILES}


def preprocessor() -> dp.Preprocessor:
    """Return what every host uses."""
    photo = dp.Image(height=SIDE, width=SIDE, mode="lazy_cached")
    features = {"price": "number", "city": "category", "review": "text", "photo": photo, "sold": "binary"}
    return dp.Preprocessor(features, targets=["sold"], split=dp.RandomSplit((0.8, 0.1, 0.1)))


def source() -> dp.Source:
    """Return the files as many partitions."""
    return dp.read_files(f"{RAW}/*.parquet", partition_bytes=100_000)


def digests(url: str) -> dict[str, str]:
    """Return a digest of every file of a dataset."""
    folder = fsspec.get_mapper(url)
    names = (name for name in sorted(folder) if not name.startswith("cache/"))
    return {name: hashlib.sha256(folder[name]).hexdigest() for name in names}


def write(scheduler: str, target: str) -> dict[str, Any]:
    """Write on the workers; say so once there are parts, so that something can go wrong then."""

    def watch() -> None:
        store = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)
        while not any("/data/" in name or "/scratch/" in name for name in store.find(target)):
            time.sleep(0.05)
        print("under way", flush=True)

    threading.Thread(target=watch, daemon=True).start()
    began = time.perf_counter()
    with Client(scheduler) as client:
        client.wait_for_workers(2, timeout=300)
        hosts = len({worker["host"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()})
        dataset = preprocessor().fit_write(source(), target, block_rows=256, progress=False)
    return {"seconds": time.perf_counter() - began, "hosts": hosts, "rows": sum(map(len, dataset.splits.values()))}


def local() -> dict[str, Any]:
    """Write on threads into the folder of this host, and compare with what the workers wrote."""
    preprocessor().fit_write(source(), "local.dp", block_rows=256, shards=True, progress=False)
    return same(DATASET, str(Path("local.dp").resolve()))


def same(*urls: str) -> dict[str, Any]:
    """Compare the files of datasets with those of the first."""
    first, *others = map(digests, urls)
    different = {name for other in others for name in {*first, *other} if first.get(name) != other.get(name)}
    return {"files": len(first), "different": sorted(different)}


def cache(scheduler: str) -> dict[str, Any]:
    """Let all workers decode the images into one cache in the store."""
    dataset = dp.open_dataset(DATASET, trusted=True)
    with Client(scheduler) as client:
        client.wait_for_workers(2, timeout=300)
        dataset.cache_media(client, splits="train", cache_dir=CACHE, progress=False)
    found = dataset["train"].cache("photo", Folder.open(CACHE), None)
    return {"blocks": found.blocks, "cached": len(found.present())}


def train(meeting: str, rank: str) -> dict[str, Any]:
    """Train with another rank, from the shared cache; say which rows this one saw and what it learned."""
    torch.distributed.init_process_group("gloo", f"tcp://{meeting}:29500", rank=int(rank), world_size=2)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    split = dp.open_dataset(DATASET, trusted=True)["train"]
    seen: list[int] = []
    for inputs, sold in split.loader(256, rank=int(rank), world_size=2, row_ids=True, cache_dir=CACHE):
        seen += inputs.pop("row_id").tolist()
        values = torch.stack([inputs["price"], inputs["photo"].float().mean((1, 2, 3)) / 255], dim=1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(values).squeeze(1), sold.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = [round(float(one), 6) for one in model.module.weight.flatten()]
    torch.distributed.destroy_process_group()
    return {"rows": seen, "of": len(split), "weights": weights}


def stream(scheduler: str) -> dict[str, Any]:
    """Train from batches that the workers encode."""
    prep = dp.Preprocessor.from_dataset(dp.open_dataset(DATASET, trusted=True))
    with Client(scheduler) as client:
        client.wait_for_workers(2, timeout=300)
        began = time.perf_counter()
        rows = sum(len(sold) for _, sold in prep.stream(source(), 512))
    return {"rows": rows, "seconds": time.perf_counter() - began}


if __name__ == "__main__":
    steps = {
        "make": make,
        "write": write,
        "local": local,
        "same": same,
        "cache": cache,
        "train": train,
        "stream": stream,
    }
    print(json.dumps(steps[sys.argv[1]](*sys.argv[2:])), flush=True)
