"""Compare daskprep's loader on 1,000 JPEGs with other tools: alternating runs, ratios of medians, Markdown tables.

    python -m benchmarks.peers.media_data --media media --out bench-data
    python -m benchmarks.peers.images --data bench-data

Images become 224 by 224 pixels, uint8, in shuffled batches of 64. The first epoch begins when the loader is there: in
a fresh process, with an empty cache, and it writes that. The later ones read the cache, beside memory maps of the same
images. Tools that fail are left out with a note. Runs go one at a time, on two cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.common import PYTHON
from benchmarks.peers.media_runs import (
    Runs,
    Tool,
    chosen,
    first_rate,
    later_rate,
    middle,
    run_in_turn,
    table,
    times_as_fast,
    use_cores,
)

LAZY, CACHED, PACKED = "daskprep, lazy", "daskprep, lazy_cached", "daskprep, lazy, packed"
LOOP = "Pillow loop, 2 threads"
WAYS = "pil,pil_draft,pil_reducing_gap,pil_draft_gap"
IMAGES = 1000


def ours(arguments: argparse.Namespace, name: str, *options: object) -> Tool:
    """Return a run of daskprep; other options have the defaults of ours_images.py."""
    shared = ["--data", arguments.data / "images", "--out", arguments.data / "ours-images"]
    return Tool(
        name,
        [sys.executable, "-m", "benchmarks.peers.ours_images", *shared, *options],
        is_needed=name in {LAZY, CACHED},
    )


def cached_name(name: str, copies: int) -> str:
    """Return the name of later epochs in tables, for a number of images."""
    return name if copies == 1 else f"{name}, {copies * IMAGES:,} images"


def cache_folder(arguments: argparse.Namespace, copies: int) -> Path:
    """Return the folder of the memory maps for a number of images."""
    path: Path = arguments.data / f"imgcache-{copies}"
    return path


def tools_of(arguments: argparse.Namespace) -> list[Tool]:
    """Return all tools, in the order of a round."""
    images, python, copies = arguments.data / "images", arguments.python, arguments.copies
    loop = [
        python,
        "-m",
        "benchmarks.peers.img_decode",
        "--data",
        images,
        "--n",
        IMAGES,
        "--threads",
        2,
        "--ways",
        WAYS,
    ]
    tools = [
        ours(arguments, CACHED, "--mode", "lazy_cached", "--epochs", 6),
        ours(arguments, LAZY, "--mode", "lazy", "--epochs", 1),
        Tool(LOOP, loop, in_parts=True),
        ours(arguments, PACKED, "--mode", "lazy", "--pack", "--epochs", 1),
        ours(arguments, "daskprep, lazy, opencv", "--mode", "lazy", "--decoder", "opencv", "--epochs", 1),
        ours(arguments, f"{CACHED}, float32", "--mode", "lazy_cached", "--expand", "--epochs", 6),
        plain(arguments, "memmap, float32, sample by sample", cache_folder(arguments, 1) / "float32.npy", "samples"),
        plain(arguments, "memmap, float32", cache_folder(arguments, 1) / "float32.npy", "rows"),
        plain(arguments, "memmap, uint8, scaled to float32", cache_folder(arguments, 1) / "x.npy", "rows", "--scale"),
    ]
    for count in sorted({1, copies}):
        if count > 1:
            name = cached_name(CACHED, count)
            tools.append(ours(arguments, name, "--mode", "lazy_cached", "--epochs", 6, "--copies", count))
        for label, threads in (("memmap, uint8", 1), ("memmap, uint8, 2 threads", 2)):
            array = cache_folder(arguments, count) / "x.npy"
            tools.append(plain(arguments, cached_name(label, count), array, "rows", "--threads", threads))
    return chosen(tools, arguments.only)


def plain(arguments: argparse.Namespace, name: str, array: Path, way: str, *extra: object) -> Tool:
    """Return epochs over a memory map."""
    options = ["--way", way, "--array", array, "--epochs", 6, *extra]
    return Tool(name, [arguments.python, "-m", "benchmarks.peers.plain_media", *options])


def prepare(arguments: argparse.Namespace) -> None:
    """Create the input of the peers if it is missing."""
    for copies in sorted({1, arguments.copies}):
        array = cache_folder(arguments, copies) / "x.npy"
        if not array.exists():
            options = ["--data", arguments.data / "images", "--copies", copies, "--prepare"]
            subprocess.run(list(map(str, plain(arguments, "", array, "rows", *options).command)), check=True)


def others_of(runs: Runs, name: str) -> str:
    """Return the rates of other tools as a cell of a table."""
    others = middle(runs[name], "cpus_of_others")
    return "" if others is None else f"{others:.2f}"


def first_rates(runs: Runs) -> dict[str, float]:
    """Return images per second in the first epoch; for loops of Pillow the best of two, over files in memory."""
    rates = {}
    for name, done in runs.items():
        if name.startswith(LOOP):
            rates[name] = middle(done, "images_per_s_2t") or 0.0
        elif not name.startswith("memmap"):
            rates[name] = first_rate(done)
    return rates


def first_table(runs: Runs, rates: dict[str, float]) -> str:
    """Return the table of the first epoch."""
    head = [
        "tool",
        "images/s, epoch 1",
        "lazy, times as fast",
        "lazy_cached, times as fast",
        "rounds",
        "work of others",
    ]
    rows = [
        [
            name,
            f"{rate:,.0f}",
            times_as_fast(rates.get(LAZY), rate),
            times_as_fast(rates.get(CACHED), rate),
            str(len(runs[name])),
            others_of(runs, name),
        ]
        for name, rate in rates.items()
    ]
    return table(head, rows)


def cached_table(runs: Runs, arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return the table of later epochs, and its figures."""
    rows, figures = [], {}
    for name, done in runs.items():
        is_ours = name.startswith(CACHED)
        if not is_ours and not name.startswith("memmap"):
            continue
        many = name.endswith("images")
        rate, mine = later_rate(done), CACHED if not many else cached_name(CACHED, arguments.copies)
        if is_ours:
            size = middle(done, "cache_bytes") or 0.0
        else:
            folder = cache_folder(arguments, arguments.copies if many else 1)
            size = float((folder / ("float32.npy" if "float32" in name else "x.npy")).stat().st_size)
        figures[name] = {"images_per_s": rate, "bytes": size}
        against = times_as_fast(later_rate(runs[mine]) if mine in runs else None, rate)
        count = f"{arguments.copies * IMAGES if many else IMAGES:,}"
        cpu = f"{middle(done, 'cpu_us_after_first'):,.1f}"
        rows.append([name, count, f"{rate:,.0f}", against, cpu, f"{size / 1e6:,.0f}", others_of(runs, name)])
    head = ["tool", "images", "images/s, later epochs", "lazy_cached, times as fast"]
    head += ["CPU us an image", "MB on disk", "work of others"]
    return table(head, rows), figures


def stored_table(runs: Runs) -> str:
    """Return the table of files on disk."""
    rows = []
    for name in (LAZY, PACKED, CACHED):
        if name in runs:
            run = runs[name][-1]
            sizes = [run["original_bytes"], run["bytes"], run["cache_bytes"]]
            counts = [run["files"], run["cache_files"]]
            rows.append(
                [
                    name,
                    *(f"{size / 1e6:,.2f}" for size in sizes),
                    *map(str, counts),
                    f"{middle(runs[name], 'written_s')}",
                ]
            )
    head = [
        "mode",
        "originals, MB",
        "dataset, MB",
        "cache, MB",
        "files of the dataset",
        "of the cache",
        "written in, s",
    ]
    return table(head, rows)


def main() -> None:
    """Run all tools and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with images/; caches are made beside it")
    parser.add_argument("--python", default=PYTHON, help="interpreter that has the peers' packages")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--copies", type=int, default=4, help="cached epochs also of so many times the images")
    parser.add_argument("--limit", type=float, default=330, help="seconds that all rounds may take")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="tools whose name has one of these words")
    arguments = parser.parse_args()
    arguments.data = arguments.data.resolve()
    use_cores(arguments.cores)
    prepare(arguments)
    runs = run_in_turn(tools_of(arguments), arguments.rounds, arguments.limit)
    rates = first_rates(runs)
    cached, figures = cached_table(runs, arguments)
    loops = {name: rate for name, rate in rates.items() if name.startswith(LOOP)}
    print(first_table(runs, rates), cached, stored_table(runs), sep="\n\n", end="\n\n")
    line = {
        "fastest_loop": max(loops, key=lambda name: loops[name], default=None),
        "first_epoch": rates,
        "later_epochs": figures,
        "runs": runs,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
