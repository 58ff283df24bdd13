"""Samples of distinct values and of files by the smallest hashes, which do not depend on the partitioning."""

from __future__ import annotations

import base64
import hashlib
import io
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.kernels import string_buffers
from daskprep.columns.summaries.base import Summary, add_fields
from daskprep.columns.summaries.token_counts import token_hashes
from daskprep.errors import MediaError
from daskprep.storage.checkpoint import checkpointable

# Only the values with the smallest hashes are kept, 256 KiB a column. The largest of these hashes estimates the number
# of distinct values, with a standard error of 0.8 %.
_MAX_VALUES = 1 << 14
MAX_TEXTS = 1 << 10
MAX_TEXT_BYTES = 1 << 22
_MAX_TEXT_CHARACTERS = 1000
_HASH_SPACE = 2.0**64


@dataclass(frozen=True, eq=False)
class DistinctValues(Summary):
    """Distinct values with the smallest hashes, and their counts.

    A value that is in the result was kept in every partition that has it, so its count is exact, and so is a text.

    Examples
    --------
    >>> import numpy as np, pyarrow as pa
    >>> left = DistinctValues.of(pa.array(["b", "a"]), np.array([2, 1]))
    >>> both = left + DistinctValues.of(pa.array(["c", "a"]), np.array([1, 1]))
    >>> both.count, both.is_exact, both.total, sorted(both.texts.to_pylist())
    (3, True, 5, ['a', 'b', 'c'])
    """

    max_texts: ClassVar[int] = MAX_TEXTS

    # Ascending hashes, and the number of cells of each.
    hashes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    # Texts of the first values, at most `max_texts` and 4 MiB.
    texts: pa.StringArray = field(default_factory=lambda: pa.array([], pa.string()))
    total: int = 0  # cells

    @classmethod
    def of(cls, values: pa.Array, counts: np.ndarray, texts: pa.Array | None = None) -> Self:
        """Summarize values with counts, and the `texts` to display; None: the values."""
        total = int(counts.sum())
        hashes = token_hashes(values)
        display_values = values if texts is None else texts
        selections = [np.arange(len(hashes))]
        if len(hashes) > 2 * _MAX_VALUES:
            # Partitioning is faster than sorting. If repeated values leave too few distinct ones, all are sorted.
            is_small = hashes <= np.partition(hashes, 2 * _MAX_VALUES)[2 * _MAX_VALUES]
            selections.insert(0, np.flatnonzero(is_small))
        for rows in selections:
            smallest, sums, first = _take_smallest(hashes[rows], counts[rows])
            if len(smallest) == _MAX_VALUES:
                break
        kept_texts = display_values.take(pa.array(rows[first[: cls.max_texts]])).cast(pa.string())
        texts = _limit_bytes(pc.utf8_slice_codeunits(kept_texts, 0, _MAX_TEXT_CHARACTERS))
        return cls(smallest, sums, texts, total)

    @property
    def is_exact(self) -> bool:
        return len(self.hashes) < _MAX_VALUES

    @property
    def count(self) -> int:
        """Number of distinct values; an estimate unless `is_exact`."""
        if self.is_exact:
            return len(self.hashes)
        return min(round((_MAX_VALUES - 1) * _HASH_SPACE / float(self.hashes[-1])), self.total)

    @property
    def all_unique(self) -> bool:
        return bool((self.counts == 1).all())

    def __add__(self, other: DistinctValues) -> Self:
        # The first texts of both are among the first texts of each. If bytes limit the texts of one, a value after its
        # last text exceeds the limit in both, too.
        counts = np.concatenate([self.counts, other.counts])
        hashes, counts, first = _take_smallest(np.concatenate([self.hashes, other.hashes]), counts)
        first = first[: self.max_texts]
        is_other = first >= len(self.hashes)
        positions = first - np.where(is_other, len(self.hashes), 0)
        is_kept = positions < np.where(is_other, len(other.texts), len(self.texts))
        first = np.where(is_other, positions + len(self.texts), positions)[: np.append(is_kept, False).argmin()]
        texts = _limit_bytes(pa.concat_arrays([self.texts, other.texts]).take(pa.array(first)))
        return type(self)(hashes, counts, texts, self.total + other.total)

    def __mul__(self, times: int) -> Self:
        if not times:
            return type(self)()
        return type(self)(self.hashes, self.counts * times, self.texts, self.total * times)


class DistinctTexts(DistinctValues):
    """Distinct texts with the smallest hashes, up to 4 MiB of text."""

    max_texts = _MAX_VALUES


def _limit_bytes(texts: pa.StringArray) -> pa.StringArray:
    """Return the first texts of at most `MAX_TEXT_BYTES` together."""
    return texts.slice(0, int(np.searchsorted(string_buffers(texts)[0][1:], MAX_TEXT_BYTES, side="right")))


def _take_smallest(hashes: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the smallest distinct hashes, their counts, and first positions."""
    distinct, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    sums = np.bincount(inverse, counts).astype(np.int64)  # exact below 2**53
    return distinct[:_MAX_VALUES], sums[:_MAX_VALUES], first[:_MAX_VALUES]


@checkpointable
class SampledFile(NamedTuple):
    """File of a sample: hash, path (or "") and facts of its bytes."""

    digest: int
    path: str
    facts: Any = None


@dataclass(frozen=True, eq=False)
class PixelSums(Summary):
    """Exact sums over uint8 images, and sums of squares."""

    images: int
    sums: np.ndarray  # by pixel, of shape (channels, height, width), or by channel
    squares: np.ndarray  # sums of squares, by channel

    @classmethod
    def of(cls, images: np.ndarray, *, by_pixel: bool) -> PixelSums:
        sums = images.sum(axis=0 if by_pixel else (0, 2, 3), dtype=np.int64)
        return cls(len(images), sums, np.square(images, dtype=np.uint32).sum(axis=(0, 2, 3), dtype=np.int64))

    def statistics(self, pixels: int) -> dict[str, Any]:
        """Return mean and deviation by channel, 0 to 1, and any mean image as text; MediaError without images."""
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
    """Decode the mean image of `PixelSums.statistics`."""
    file: np.ndarray = np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
    return file


@dataclass(frozen=True)
class FileSample(Summary):
    """Sample of files with the smallest hashes, and total size."""

    limit: int = 0  # of files
    cells: int = 0
    bytes: int = 0  # size of the cells: of paths, or of bytes in memory
    files: tuple[SampledFile, ...] = field(default=())  # the sample, by ascending hash of the path or the bytes
    pixels: PixelSums | None = None  # sums over pixels of images, if requested

    @classmethod
    def of(cls, path: pa.Array, data: pa.Array, limit: int, read_facts: Callable[[pa.Buffer], Any]) -> FileSample:
        """Summarize cells, each with a path or bytes; a `limit` of 0 keeps no sample."""
        sizes = [pc.sum(pc.binary_length(column)).as_py() or 0 for column in (path, data)]
        files: list[SampledFile] = []
        if limit:
            contents = [content.as_buffer() for content in data.drop_null()]
            digests = [hashlib.blake2b(content, digest_size=8).digest() for content in contents]
            hashes = np.array([int.from_bytes(digest, "little") for digest in digests], np.uint64)
            files += [SampledFile(key, "", read_facts(contents[row])) for key, row in _find_smallest(hashes, limit)]
            paths = path.drop_null()
            files += [SampledFile(key, paths[row].as_py()) for key, row in _find_smallest(token_hashes(paths), limit)]
        return cls(limit, len(path), sum(sizes), _keep_files(files, limit))

    def __add__(self, other: FileSample) -> FileSample:
        limit = max(self.limit, other.limit)
        files = _keep_files([*self.files, *other.files], limit)
        pixels = add_fields(self.pixels, other.pixels)
        return FileSample(limit, self.cells + other.cells, self.bytes + other.bytes, files, pixels)

    def __mul__(self, times: int) -> FileSample:
        pixels = None if self.pixels is None else self.pixels * times
        return FileSample(self.limit, self.cells * times, self.bytes * times, self.files if times else (), pixels)


def _find_smallest(hashes: np.ndarray, limit: int) -> list[tuple[int, int]]:
    digests, rows = np.unique(hashes, return_index=True)
    return list(zip(digests[:limit].tolist(), rows[:limit].tolist(), strict=True))


def _keep_files(files: list[SampledFile], limit: int) -> tuple[SampledFile, ...]:
    # Facts are not compared: files of the same hash and path have the same facts.
    distinct = {(file.digest, file.path): file for file in files}
    return tuple(distinct[key] for key in sorted(distinct)[:limit])
