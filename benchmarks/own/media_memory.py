"""Peak memory of preparing and loading images of 64 by 64 pixels, for two numbers of images; a Markdown table.

    python -m benchmarks.own.media_memory

Each figure is of a process of its own that does one thing once: `fit_write`, lazy or eager; one epoch of the loader
over what was written; or all images decoded to a list of float32 arrays and stacked, as Ludwig holds eager images.
Allocations of Python and NumPy are traced in one process, and resident memory is measured in another, as tracing takes
memory too. Arrow's buffers are no allocations of Python, and are in the resident memory alone; traced are also pages
that nothing was written to. Both begin after the imports and after the same was done once with 16 images, so that what
is imported late and made once does not count.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Picture

from benchmarks.peers.media_runs import Tool, middle, run_in_turn, table, use_cores

SIDE, WARM_UP, BATCH = 64, 16, 64
PNG_NAME = "{:06d}.png"
THINGS = {
    "fit_write, lazy": "prepare-lazy",
    "fit_write, eager": "prepare-eager",
    "one epoch, lazy": "load-lazy",
    "one epoch, lazy_cached": "load-lazy_cached",
    "one epoch, eager": "load-eager",
}
STACK = "all decoded to float32 and stacked"
KEYS = ("traced_mb", "resident_mb", "before_mb")


def make_images(folder: Path, count: int) -> list[str]:
    """Create missing PNG files of noise on a gradient, and return the given number of them."""
    folder.mkdir(parents=True, exist_ok=True)
    ramp = np.arange(SIDE * SIDE * 3, dtype=np.int64).reshape(SIDE, SIDE, 3) // 60
    files = [folder / PNG_NAME.format(number) for number in range(count)]

    def make(number: int) -> None:
        if not files[number].exists():
            noise = np.random.default_rng(number).integers(0, 40, ramp.shape)
            Picture.fromarray((ramp + noise).astype(np.uint8)).save(files[number])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(make, range(count)))
    return list(map(str, files))


def prepare(files: list[str], path: Path, mode: Any) -> None:
    """Write a dataset of images."""
    import pandas as pd

    import daskprep as dp

    prep = dp.Preprocessor({"image": dp.Image(height=SIDE, width=SIDE, num_channels=3, mode=mode)})
    prep.fit_write(pd.DataFrame({"image": files}), path, progress=False)


def load(path: Path) -> int:
    """Load one epoch, and return its number of images."""
    import daskprep as dp

    return sum(len(batch["image"]) for batch in dp.open_dataset(path, trusted=True)["train"].loader(BATCH))


def decode_all(files: list[str]) -> int:
    """Keep all images as float32 and stack them."""

    def decode(file: str) -> np.ndarray:
        return np.asarray(Picture.open(file).convert("RGB"), np.float32)

    return len(np.stack([decode(file) for file in files]))


def status_mb(key: str) -> float:
    """Return a figure of this process in MB: VmRSS for its current resident memory, VmHWM for the peak."""
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise SystemExit(f"this system does not tell {key}")
    return int(found[1]) * 1024 / 1e6


def child(arguments: argparse.Namespace) -> None:
    """Run one task for a few images and then once for all, and print the peak."""
    files = make_images(arguments.scratch / "png", arguments.images)
    what, mode = arguments.child.split("-")
    written, few = arguments.scratch / f"{mode}-{arguments.images}.dp", arguments.scratch / f"few-{os.getpid()}.dp"

    def act(some: list[str], path: Path) -> None:
        if what == "prepare":
            shutil.rmtree(path, ignore_errors=True)
            prepare(some, path, mode)
        elif what == "load":
            load(path)
        else:
            decode_all(some)

    if what == "load":
        # The process that loads writes neither. An existing cache would not be filled again.
        if mode == "lazy_cached":
            shutil.rmtree(written, ignore_errors=True)
        for some, path in ((files[:WARM_UP], few), (files, written)):
            if not path.exists():
                script = [
                    sys.executable,
                    "-m",
                    "benchmarks.own.media_memory",
                    "--child",
                    f"write-{mode}",
                    "--scratch",
                    str(arguments.scratch),
                ]
                subprocess.run([*script, "--images", str(len(some)), "--out", str(path)], check=True)
    act(files[:WARM_UP], few)
    shutil.rmtree(few, ignore_errors=True)
    gc.collect()
    before = status_mb("VmRSS")
    if arguments.trace:
        tracemalloc.start()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    act(files, written)
    line: dict[str, Any] = {"peer": arguments.child}
    if arguments.trace:
        line["traced_mb"] = round(tracemalloc.get_traced_memory()[1] / 1e6, 2)
    else:
        line |= {"resident_mb": round(status_mb("VmHWM") - before, 1), "before_mb": round(before, 1)}
    print(json.dumps(line), flush=True)


def tool(name: str, what: str, images: int, arguments: argparse.Namespace, trace: bool) -> Tool:
    """Return a process that runs one task, with or without tracing."""
    options = ["--child", what, "--images", images, "--scratch", arguments.scratch, *["--trace"] * trace]
    return Tool(f"{name}, {images}", [sys.executable, "-m", "benchmarks.own.media_memory", *options], is_needed=True)


def main() -> None:
    """Measure each task in separate processes, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=1000, help="the smaller number; the larger is ten times as many")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=330, help="seconds that all rounds may take")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--scratch", type=Path, help="where images and datasets go; default: a temporary folder")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child and arguments.child.startswith("write-"):
        files = make_images(arguments.scratch / "png", arguments.images)
        prepare(files, arguments.out, arguments.child.partition("-")[2])
        return
    if arguments.child:
        child(arguments)
        return
    use_cores(arguments.cores)
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
        arguments.scratch = Path(folder)
        report(arguments)


def report(arguments: argparse.Namespace) -> None:
    """Print the table and the figures."""
    few, many = arguments.images, 10 * arguments.images
    make_images(arguments.scratch / "png", many)
    wanted = [(name, what, count) for name, what in THINGS.items() for count in (few, many)]
    wanted.append((STACK, "decode-all", few))
    tools = [tool(*one, arguments, trace) for one in wanted for trace in (True, False)]
    runs = run_in_turn(tools, arguments.rounds, arguments.limit)
    figures = {
        (name, count): {key: middle(runs[f"{name}, {count}"], key) or 0.0 for key in KEYS} for name, _, count in wanted
    }
    rows = []
    for (name, count), found in figures.items():
        small = figures[name, few]
        shares = [found[key] / figures[STACK, few][key] for key in ("traced_mb", "resident_mb")]
        rows.append(
            [
                name,
                f"{count:,}",
                *(f"{found[key]:,.1f}" for key in KEYS),
                *(f"{found[key] / max(small[key], 0.1):.2f}" for key in ("traced_mb", "resident_mb")),
                *(f"{share:.3f}" for share in shares),
            ]
        )
    head = [
        *("what", "images", "traced peak, MB", "resident peak above before, MB", "resident before, MB"),
        *(f"traced, times that of {few:,}", f"resident, times that of {few:,}"),
        *(f"traced, share of {few:,} stacked", f"resident, share of {few:,} stacked"),
    ]
    print(table(head, rows), end="\n\n")
    print(json.dumps({f"{name}, {count}": found for (name, count), found in figures.items()}), flush=True)


if __name__ == "__main__":
    main()
