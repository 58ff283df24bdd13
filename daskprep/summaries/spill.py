"""Token counts in Arrow files, sharded by the hash of the token."""

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
from daskprep.summaries.token_hash import token_hashes

# 256 shards of a billion distinct tokens are 4 million tokens each, which fit in memory again.
SHARDS = 256

Entries = tuple[pa.Array, np.ndarray]


@dataclass(frozen=True)
class SpilledCounts:
    """A file of tokens and counts: one Arrow record batch per shard, in shard order.

    The counts are to be read `times` times over.
    """

    path: str
    entries: int
    times: int = 1

    def read(self, shards: Iterable[int]) -> Iterator[Entries]:
        """Give the tokens and counts of some shards, shard by shard; empty ones are left out."""
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
    """Return the shard that each token belongs to, as uint8."""
    return (token_hashes(tokens) >> np.uint64(56)).astype(np.uint8)


def sort_by_shard(tokens: pa.Array, counts: np.ndarray) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """Return tokens and counts in shard order, and the 257 borders between the shards."""
    shards = shard_numbers(tokens)
    order = np.argsort(shards, kind="stable")
    borders = np.concatenate([[0], np.cumsum(np.bincount(shards, minlength=SHARDS))])
    return tokens.take(pa.array(order)), counts[order], borders


def spill(folder: str, tokens: pa.Array, counts: np.ndarray) -> SpilledCounts:
    """Write tokens and counts, one for each token or a row of several, to a new file in `folder`."""
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
            "room, or give Preprocessor another folder as scratch"
        ) from error
    return SpilledCounts(str(path), len(counts))


def shard_groups(files: Sequence[SpilledCounts], group_entries: int) -> Iterator[range]:
    """Cut the shards into runs that hold about `group_entries` entries of all files together."""
    entries = sum(file.entries for file in files)
    groups = min(SHARDS, max(1, -(-entries // group_entries)))
    borders = np.linspace(0, SHARDS, groups + 1).astype(int).tolist()
    yield from itertools.starmap(range, itertools.pairwise(borders))
