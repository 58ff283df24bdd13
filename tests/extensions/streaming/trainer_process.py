"""One of several trainers on a cluster: save rows and state after each batch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from distributed import Client

import daskprep as dp
from daskprep.sources import read_files

BATCH_SIZE = 60
WINDOW = 30_000


def main(address: str, prep: str, rows: str, out: str, rank: str, world: str, stop: str) -> None:
    """Train until the end, or print "stopped" and hang after `stop` batches."""
    notes = Path(out)
    before = notes.read_text().splitlines() if notes.exists() else []
    with Client(address), notes.open("a") as file:
        source = read_files(rows, partition_bytes=1)
        stream = dp.Preprocessor.load(prep).stream(
            source, BATCH_SIZE, row_ids=True, window=WINDOW, epochs=2, rank=int(rank), world_size=int(world)
        )
        if before:
            stream.load_state_dict(json.loads(before[-1])["state"])
        for number, batch in enumerate(stream, start=1):
            file.write(json.dumps({"rows": batch["row_id"].tolist(), "state": stream.state_dict()}) + "\n")
            file.flush()
            if number == int(stop):
                print("stopped", flush=True)
                sys.stdin.read()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
