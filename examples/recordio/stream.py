"""Read a format that daskprep does not know, MXNet's RecordIO, and train on its rows while more are read ahead.

    python examples/recordio/stream.py

It creates its own file in a temporary folder, and needs no network.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import torch
from torch import nn

import daskprep as dp
from daskprep.extensions.media.pixels import encode_png
from daskprep.sources import Source

MAGIC = 0xCED7230A
WHOLE, FIRST, MIDDLE, LAST = range(4)  # how much of a record a part is
LABEL = struct.Struct("<IfQQ")  # the number of further labels, the label, and two numbers of the record
ROWS = 600


class RecordFile(Source):
    """Labels and images of a RecordIO file, as im2rec writes them, `rows` of them in a partition."""

    def __init__(self, path: Path, rows: int = 1_000) -> None:
        self.path, self.rows = path, rows
        self.columns = ["label", "image"]
        with path.open("rb") as file:
            self.starts = [start for start, kind, _ in parts(file) if kind in (WHOLE, FIRST)]
        found = len(self.starts)
        self.row_counts = [min(rows, found - start) for start in range(0, max(found, 1), rows)]
        status = path.stat()
        self.record = {"recordio": str(path), "stamp": [status.st_size, status.st_mtime_ns]}

    def read_rows(self, partition: int, columns: list[str]) -> pa.Table:
        """Return labels and bytes of images."""
        first = partition * self.rows
        with self.path.open("rb") as file:
            records = [self._record(file, start) for start in self.starts[first : first + self.rows]]
        labels = [LABEL.unpack_from(record)[1] for record in records]
        images = [record[LABEL.size + 4 * LABEL.unpack_from(record)[0] :] for record in records]
        return pa.table({"label": pa.array(labels, pa.float32()), "image": pa.array(images, pa.binary())})

    def _record(self, file: BinaryIO, start: int) -> bytes:
        file.seek(start)
        data = []
        for _, kind, length in parts(file):
            file.seek(-(length + -length % 4), 1)
            data.append(file.read(length))
            file.seek(-length % 4, 1)
            if kind in (WHOLE, LAST):
                break
        # A record is cut where its bytes look like the start of another.
        return struct.pack("<I", MAGIC).join(data)


def parts(file: BinaryIO) -> Iterator[tuple[int, int, int]]:
    """Yield start, kind and length of the parts of records from here on; the file is then behind that part."""
    while header := file.read(8):
        magic, word = struct.unpack("<II", header)
        kind, length = word >> 29, word & (1 << 29) - 1
        if magic != MAGIC:
            raise ValueError(f"no record begins at {file.tell() - 8}")
        start = file.tell() - 8
        file.seek(length + -length % 4, 1)  # parts end at multiples of 4
        yield start, kind, length


def write_records(path: Path, rows: int) -> None:
    """Write images that are bright where the label is 1, as MXNet does."""
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for i in range(rows):
            pixels = rng.integers(0, 128, (8, 8, 3)) + 64 * (i % 2)
            data = LABEL.pack(0, i % 2, i, 0) + encode_png(pixels.astype(np.uint8))
            file.write(struct.pack("<II", MAGIC, len(data)) + data + bytes(-len(data) % 4))


def train(batches: Any) -> float:
    """Train on a stream, and return the share of rows of the last batches whose label is predicted."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    right = []
    for inputs, labels in batches:
        logits = model(inputs["image"] - 0.5).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right.append(((logits > 0) == labels).float().mean().item())
    return sum(right[-10:]) / len(right[-10:])


def main() -> None:
    """Write a file, fit, and train on a stream of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "photos.rec"
        write_records(path, ROWS)
        source = RecordFile(path, rows=100)
        features = {"image": dp.Image(height=8, width=8, num_channels=3), "label": "binary"}
        prep = dp.Preprocessor(features, targets="label").fit(source)
        print(source)
        print(f"{train(prep.stream(source, 50, epochs=5)):.0%} of the last rows are predicted")


if __name__ == "__main__":
    main()
