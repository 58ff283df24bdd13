"""Files of token counts in Arrow format, sharded by the hash of the token."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from daskprep.errors import StorageFullError
from daskprep.storage.local_files import DISK_FULL_ERRNOS
from daskprep.summaries.token_bytes import token_hashes

# With a billion distinct tokens, each of 256 shards has 4 million, which fit in memory.
SHARDS = 256

Entries = tuple[pa.Array, np.ndarray]


@dataclass(frozen=True)
class SpilledCounts:
    """File of tokens and counts: one Arrow record batch per shard, in shard order.

    Attributes
    ----------
    path : str
        Path of the file.
    entries : int
        Number of tokens.
    times : int
        Factor that `read` multiplies counts by; rows of several counts stay the same.
    """

    path: str
    entries: int
    times: int = 1

    def read(self, shards: Iterable[int]) -> Iterator[Entries]:
        """Yield the tokens and counts of each nonempty shard among `shards`."""
        # Plain reads: the pages of a memory map would count as memory of this process.
        with pa.OSFile(self.path, "rb") as source, pa.ipc.open_file(source) as reader:
            for shard in shards:
                batch = reader.get_batch(shard)
                if batch.num_rows:
                    counts = batch.column(1)
                    if pa.types.is_fixed_size_list(counts.type):
                        rows = counts.flatten().to_numpy().reshape(len(counts), -1)
                    else:
                        rows = counts.to_numpy() * self.times
                    yield batch.column(0), rows


def shard_numbers(tokens: pa.Array) -> np.ndarray:
    """Return the shard number of each token, as uint8."""
    return (token_hashes(tokens) >> np.uint64(56)).astype(np.uint8)


def sort_by_shard(tokens: pa.Array, counts: np.ndarray) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """Return tokens and counts in shard order, and the 257 borders between the shards."""
    shards = shard_numbers(tokens)
    order = np.argsort(shards, kind="stable")
    borders = np.concatenate([[0], np.cumsum(np.bincount(shards, minlength=SHARDS))])
    return tokens.take(pa.array(order)), counts[order], borders


def spill(folder: str, tokens: pa.Array, counts: np.ndarray) -> SpilledCounts:
    """Write tokens and counts, a number or a row of numbers per token, to a new file in `folder`.

    Raise StorageFullError, and remove the file, if the disk is full.
    """
    path = Path(folder) / f"tokens-{uuid.uuid4().hex}.arrow"
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = pa.from_numpy_dtype(counts.dtype)
    schema = pa.schema(
        [("token", tokens.type), ("count", pa.list_(kind, counts.shape[1]) if counts.ndim > 1 else kind)]
    )
    tokens, counts, borders = sort_by_shard(tokens, counts)
    try:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for start, stop in itertools.pairwise(borders.tolist()):
                rows = pa.array(counts[start:stop].ravel())
                rows = pa.FixedSizeListArray.from_arrays(rows, counts.shape[1]) if counts.ndim > 1 else rows
                columns = [tokens.slice(start, stop - start), rows]
                writer.write_batch(pa.record_batch(columns, schema=schema))
    except OSError as error:
        if error.errno not in DISK_FULL_ERRNOS:
            raise
        path.unlink(missing_ok=True)
        raise StorageFullError(
            f"{path}: no room for {tokens.nbytes + counts.nbytes:,} bytes of counted tokens ({error.strerror}); make "
            "room, or pass another folder as scratch to Preprocessor"
        ) from error
    return SpilledCounts(str(path), len(counts))


def shard_groups(files: Sequence[SpilledCounts], group_entries: int) -> Iterator[range]:
    """Yield ranges of shards with about `group_entries` entries in all files together."""
    entries = sum(file.entries for file in files)
    groups = min(SHARDS, max(1, -(-entries // group_entries)))
    borders = np.linspace(0, SHARDS, groups + 1).astype(int).tolist()
    yield from itertools.starmap(range, itertools.pairwise(borders))
