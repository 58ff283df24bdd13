"""Pillow in a loop over JPEG files that are in memory, by threads: 224 by 224 pixels; a JSON line for each way.

python -m benchmarks.peers.img_decode --data bench-data/images --threads 2 --ways pil,pil_draft
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.peers.common import fastest

SIZE = (224, 224)
# Whether the decoder may leave out detail, and `reducing_gap` of Pillow's resize.
WAYS = {
    "pil": (False, None),
    "pil_draft": (True, None),
    "pil_reducing_gap": (False, 2.0),
    "pil_draft_gap": (True, 2.0),
}


def decode(data: bytes, *, draft: bool, gap: float | None) -> np.ndarray:
    """Return the pixels of a file."""
    image = Image.open(io.BytesIO(data))
    if draft:
        image.draft("RGB", SIZE)
    return np.asarray(image.convert("RGB").resize(SIZE, Image.Resampling.BILINEAR, reducing_gap=gap))


def run(pool: ThreadPoolExecutor, job: Callable[[bytes], np.ndarray], files: list[bytes]) -> None:
    """Decode all files, and keep none of the images."""
    for _ in pool.map(job, files):
        pass


def main() -> None:
    """Decode all files in each way, and print images a second, the better of two times."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ways", default=",".join(WAYS))
    arguments = parser.parse_args()
    files = [path.read_bytes() for path in sorted(arguments.data.glob("*.JPEG"))[: arguments.n]]
    for way in arguments.ways.split(","):
        draft, gap = WAYS[way]
        job = partial(decode, draft=draft, gap=gap)
        with ThreadPoolExecutor(arguments.threads) as pool:
            rate, others = fastest(partial(run, pool, job, files), len(files))
        line = {"peer": way, f"images_per_s_{arguments.threads}t": round(rate, 1), "cpus_of_others": others}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
