"""Ray Data on the table of `ours_stream.py load`: the same preprocessing, shuffled within a buffer; one JSON line.

python -m benchmarks.peers.peer_ray_stream --data bench-data/stream --rows 1000000 --buffer 500000
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from pathlib import Path

os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
import torch
from ray.data.preprocessors import Chain, OrdinalEncoder, StandardScaler

from benchmarks.peers.stream_data import CATEGORIES, NUMBERS, Peak, table_path, timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--buffer", type=int, default=500_000, help="rows that are shuffled together")
    parser.add_argument("--step", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = table_path(arguments.data, arguments.rows)
    ray.init(
        num_cpus=arguments.threads,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=2 << 30,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = ray.data.read_parquet(str(path), columns=[*NUMBERS, *CATEGORIES, "label"])
    chain = Chain(StandardScaler(NUMBERS), OrdinalEncoder(CATEGORIES))
    chain.fit(rows)
    encoded = chain.transform(rows)

    def epoch():
        return encoded.iter_torch_batches(
            batch_size=arguments.batch, local_shuffle_buffer_size=arguments.buffer, prefetch_batches=4
        )

    with Peak() as peak:
        found = timed(epoch, arguments.epochs, arguments.step, "label")
    print(json.dumps({"tool": f"Ray Data {ray.__version__}", "what": "load", **found, "peak_mb": peak.tree_mb}))
    ray.shutdown()


if __name__ == "__main__":
    main()
