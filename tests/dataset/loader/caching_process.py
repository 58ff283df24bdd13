"""Load the share of a rank in a separate process, which may kill itself on the way."""

from __future__ import annotations

import json
import os
import signal
import sys

import daskprep as dp


def main(path: str, options: dict, die_after: int) -> None:
    loader = dp.open_dataset(path, trusted=True)["train"].loader(32, columns=["photo"], **options)
    for number, _ in enumerate(loader, start=1):
        if number == die_after:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.stdout.write(json.dumps(loader.stats()))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))
