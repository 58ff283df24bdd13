"""Samples of files that do not depend on the partitioning."""

from __future__ import annotations

import base64
import hashlib
import io
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.errors import MediaError
from daskprep.storage.checkpoint import checkpointable
from daskprep.summaries.base import Summary, add_fields
from daskprep.summaries.token_counts import token_hashes


@checkpointable
class SampledFile(NamedTuple):
    """File of a sample: the hash and the path, or, for bytes in memory, the hash of the bytes, "" and their facts."""

    digest: int
    path: str
    facts: Any = None


@dataclass(frozen=True, eq=False)
class PixelSums(Summary):
    """Exact sums over uint8 images: of each pixel or channel, and of the squares of each channel."""

    images: int
    sums: np.ndarray  # by pixel, of shape (channels, height, width), or by channel
    squares: np.ndarray  # sums of squares, by channel

    @classmethod
    def of(cls, images: np.ndarray, *, by_pixel: bool) -> PixelSums:
        """Summarize uint8 images of shape (images, channels, height, width)."""
        sums = images.sum(axis=0 if by_pixel else (0, 2, 3), dtype=np.int64)
        return cls(len(images), sums, np.square(images, dtype=np.uint32).sum(axis=(0, 2, 3), dtype=np.int64))

    def statistics(self, pixels: int) -> dict[str, Any]:
        """Return the mean and standard deviation of each channel as shares of 255, and the mean image as base64.

        `pixels` is the number of pixels of an image. The mean image is None without sums by pixel.
        """
        if not self.images:
            raise MediaError("no image to learn pixel_statistics from: leave it out")
        count, channels = self.images * pixels, len(self.squares)
        totals = self.sums.reshape(channels, -1).sum(axis=1).tolist()
        roots = [
            math.sqrt(count * square_sum - pixel_sum**2)
            for square_sum, pixel_sum in zip(self.squares.tolist(), totals, strict=True)
        ]
        mean, deviation = ([number / (255 * count) for number in part] for part in (totals, roots))
        file = io.BytesIO()
        np.save(file, (self.sums / (255 * self.images)).astype(np.float32))
        image = base64.b64encode(file.getvalue()).decode() if self.sums.ndim == 3 else None
        return {"mean": mean, "deviation": deviation, "mean_image": image}


def mean_image(text: str) -> np.ndarray:
    """Decode the mean image of `PixelSums.statistics` to float32 of shape (channels, height, width)."""
    file: np.ndarray = np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
    return file


@dataclass(frozen=True)
class FileSample(Summary):
    """Sample of the `limit` distinct files with the smallest hashes, and the total size of all cells.

    Examples
    --------
    >>> import pyarrow as pa
    >>> paths = pa.array(["a.png", "b.png", "c.png", "a.png"])
    >>> whole = FileSample.of(paths, pa.nulls(4, pa.large_binary()), 2, len)
    >>> parts = [FileSample.of(paths[k : k + 2], pa.nulls(2, pa.large_binary()), 2, len) for k in (0, 2)]
    >>> parts[0] + parts[1] == parts[1] + parts[0] == whole
    True
    >>> whole.cells, whole.bytes, len(whole.files)
    (4, 20, 2)
    """

    limit: int = 0  # of files
    cells: int = 0
    bytes: int = 0  # size of the cells: of paths, or of bytes in memory
    files: tuple[SampledFile, ...] = field(default=())  # the sample, by ascending hash of the path or the bytes
    pixels: PixelSums | None = None  # sums over pixels of images, if requested

    @classmethod
    def of(cls, path: pa.Array, data: pa.Array, limit: int, read_facts: Callable[[pa.Buffer], Any]) -> FileSample:
        """Summarize cells, each with a path or bytes.

        ``read_facts(bytes)`` returns the facts to keep for a file; it is called only for bytes of the sample.
        """
        sizes = [pc.sum(pc.binary_length(column)).as_py() or 0 for column in (path, data)]
        files: list[SampledFile] = []
        if limit:
            contents = [content.as_buffer() for content in data.drop_null()]
            digests = [hashlib.blake2b(content, digest_size=8).digest() for content in contents]
            hashes = np.array([int.from_bytes(digest, "little") for digest in digests], np.uint64)
            files += [SampledFile(key, "", read_facts(contents[row])) for key, row in _take_smallest(hashes, limit)]
            paths = path.drop_null()
            files += [SampledFile(key, paths[row].as_py()) for key, row in _take_smallest(token_hashes(paths), limit)]
        return cls(limit, len(path), sum(sizes), _take_first(files, limit))

    def __add__(self, other: FileSample) -> FileSample:
        """Return the files with the smallest hashes of both, and sums of cells, bytes and pixels."""
        if type(other) is not type(self):
            return NotImplemented
        limit = max(self.limit, other.limit)
        files = _take_first([*self.files, *other.files], limit)
        pixels = add_fields(self.pixels, other.pixels)
        return FileSample(limit, self.cells + other.cells, self.bytes + other.bytes, files, pixels)

    def __mul__(self, times: int) -> FileSample:
        pixels = None if self.pixels is None else self.pixels * times
        return FileSample(self.limit, self.cells * times, self.bytes * times, self.files if times else (), pixels)


def _take_smallest(hashes: np.ndarray, limit: int) -> list[tuple[int, int]]:
    """Return the smallest distinct hashes, at most `limit`, and the first row of each."""
    digests, rows = np.unique(hashes, return_index=True)
    return list(zip(digests[:limit].tolist(), rows[:limit].tolist(), strict=True))


def _take_first(files: list[SampledFile], limit: int) -> tuple[SampledFile, ...]:
    """Return the distinct files with the smallest hashes, at most `limit`."""
    # Facts are not compared: files of the same hash and path have the same facts.
    distinct = {(file.digest, file.path): file for file in files}
    return tuple(distinct[key] for key in sorted(distinct)[:limit])
