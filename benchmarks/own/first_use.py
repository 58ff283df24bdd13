"""CPU time to compute which step uses a row first, for an epoch of many rows, without data

    python -m benchmarks.own.first_use [--rows 100000000] [--rounds 20]

The layout has no files: what is measured is the arithmetic of the order, with nothing cached. Medians, with the lowest
and highest.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from daskprep.dataset.loader.mixing import MixBlocks, MixSchedule, Quotas, count_round_epochs
from daskprep.dataset.loader.order import EpochBlocks, Schedule
from daskprep.dataset.loader.sampling import Sampling

SHARES = (50, 20, 15, 10, 5)
BATCH = 1024


def make_blocks(rows: int, block_rows: int, sampling: Sampling | None = None) -> EpochBlocks:
    firsts = np.arange(0, rows, block_rows)
    sizes = np.minimum(block_rows, rows - firsts) if sampling is None else sampling.sizes
    return EpochBlocks(sizes, block_rows, 0, 0, shuffle=True, firsts=firsts, sampling=sampling)


def make_schedule(rows: int, block_rows: int, sampling: Sampling | None = None) -> Schedule:
    return Schedule(make_blocks(rows, block_rows, sampling), BATCH, 16, 0, 1, drop_last=False)


def make_mix(rows: int, block_rows: int) -> MixSchedule:
    """Return the schedule of five sources, which repeats the small ones as their shares are equal to begin with."""
    parts = [make_blocks(rows * share // 100, block_rows) for share in SHARES]
    sizes = np.concatenate([part.sizes for part in parts])
    counts = [len(part.sizes) for part in parts]
    blocks = MixBlocks(
        sizes,
        block_rows,
        0,
        0,
        shuffle=True,
        firsts=np.cumsum(sizes) - sizes,
        names=tuple("abcde"),
        block_borders=tuple(np.cumsum([0, *counts]).tolist()),
        round_epochs=tuple(count_round_epochs(part.rows, count) for part, count in zip(parts, counts, strict=True)),
    )
    quotas = Quotas.of((3, 2, 2, 2, 1), BATCH)
    return MixSchedule(blocks, BATCH, 8, 0, 1, drop_last=True, quotas=quotas, batch_count=1 << 40)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    rows, rng = arguments.rows, np.random.default_rng(0)
    sampling = Sampling(
        rng.integers(0, 3, rows, np.uint8), np.array([rows // 9, rows // 3, rows // 3]), np.arange(0, rows, 65_536), 0
    )
    if sampling.starts[-1] < rows:
        sampling = Sampling(sampling.codes, sampling.targets, np.append(sampling.starts, rows), 0)
    _ = sampling.sizes  # counted once for a loader
    kinds: dict[str, Callable[[], Schedule]] = {
        "blocks of 65,536 rows": lambda: make_schedule(rows, 65_536),
        "blocks of 1,048,576 rows": lambda: make_schedule(rows, 1_048_576),
        "blocks of 256 rows": lambda: make_schedule(rows, 256),
        "`balance` of three classes": lambda: make_schedule(rows, 65_536, sampling),
        "mix of five sources": lambda: make_mix(rows, 65_536),
    }
    print("| order | 1 row, ms | 1,000 rows, ms |\n|---|---|---|")
    for name, make in kinds.items():
        cells = []
        for count in (1, 1000):
            times = []
            for _ in range(arguments.rounds):
                schedule, wanted = make(), np.sort(rng.choice(rows, count))
                start = time.process_time()
                schedule.first_batches(wanted)
                times.append(1000 * (time.process_time() - start))
            cells.append(f"{np.median(times):.1f} ({min(times):.1f} to {max(times):.1f})")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
