"""Counts of distinct tokens in bounded memory, for any number of tokens: hashes, order by bytes, and files."""

from __future__ import annotations

import hashlib
import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.display import format_bytes
from daskprep.columns.kernels import BYTE_MASKS, WORD_BYTES, plain_values, sliding_words
from daskprep.columns.permutation import mix
from daskprep.columns.summaries.base import Summary
from daskprep.errors import ColumnError, StorageFullError
from daskprep.storage.local_files import DISK_FULL_ERRNOS

STEP = np.uint64(0x9E3779B97F4A7C15)  # the increment of the SplitMix64 generator

CHUNK_TOKENS = 1 << 15  # the tokens of a chunk and their intermediate arrays stay in the CPU cache
# Longer tokens are hashed one by one: each pass over a chunk takes microseconds, even for a single token.
LONG_TOKEN_BYTES = 512


def token_hashes(tokens: pa.Array) -> np.ndarray:
    """Return a uint64 hash of each token, none of them null."""
    if not pa.types.is_string(tokens.type):
        return mix(tokens.to_numpy(zero_copy_only=False).view(np.uint64) + STEP)
    hashes = np.empty(len(tokens), np.uint64)
    for start in range(0, len(tokens), CHUNK_TOKENS):
        chunk = tokens.slice(start, CHUNK_TOKENS)
        hashes[start : start + len(chunk)] = _string_hashes(chunk)
    return hashes


def _string_hashes(tokens: pa.StringArray) -> np.ndarray:
    """Return a uint64 hash of each string."""
    _, offset_buffer, data = tokens.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(tokens) + 1, 4 * tokens.offset).astype(np.int64)
    lengths = np.diff(offsets)
    hashes = mix(lengths.astype(np.uint64) * STEP)
    if offsets[-1] == offsets[0]:
        return hashes
    text = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    offsets -= offsets[0]
    words = sliding_words(np.concatenate([text, np.zeros(WORD_BYTES, np.uint8)]))
    longest = min(int(lengths.max()), LONG_TOKEN_BYTES)
    for done in range(0, longest, 8):
        remaining = lengths - done
        rows: Any = slice(None) if int(remaining.min()) > 0 else np.flatnonzero(remaining > 0)
        word = words[offsets[:-1][rows] + done] & BYTE_MASKS[np.minimum(remaining[rows], 8)]
        hashes[rows] = mix(hashes[rows] ^ word)
    for long in np.flatnonzero(lengths > LONG_TOKEN_BYTES):
        digest = hashlib.blake2b(text[offsets[long] : offsets[long + 1]].tobytes(), digest_size=8).digest()
        hashes[long] = np.uint64(int.from_bytes(digest, "little"))
    return hashes


def argsort_bytes(tokens: pa.StringArray) -> np.ndarray:
    """Return the indices that sort tokens by their UTF-8 bytes.

    Integers of the first eight bytes after the common prefix take a tenth of the time of comparing strings, which only
    tokens with equal integers need.
    """
    if not len(tokens):
        return np.zeros(0, np.int64)
    keys = _leading_words(tokens)
    order = np.argsort(keys)
    equal = np.diff(keys[order]) == 0
    tied = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
    if len(tied):
        # Runs of equal keys are in the order of bytes already, so that one sort of all tied tokens orders every run.
        tied_rows = order[tied]
        order[tied] = tied_rows[pc.sort_indices(tokens.take(pa.array(tied_rows))).to_numpy()]
    return order


def _leading_words(tokens: pa.StringArray) -> np.ndarray:
    """Return eight bytes after the common prefix, as integers."""
    offsets = np.frombuffer(tokens.buffers()[1], np.int32)[tokens.offset : tokens.offset + len(tokens) + 1]
    text = np.frombuffer(tokens.buffers()[2] or b"", np.uint8)
    # A word starts at every byte: words overlap.
    words = sliding_words(np.concatenate([text[offsets[0] : offsets[-1]], np.zeros(WORD_BYTES, np.uint8)])).view(">u8")
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    shortest = int(lengths.min())
    skipped = 0
    while skipped + WORD_BYTES <= shortest:
        keys = words[starts + skipped]
        if (keys != keys[0]).any():
            plain: np.ndarray = keys.astype(np.uint64)
            return plain
        skipped += WORD_BYTES
    keys = words[starts + skipped].astype(np.uint64)
    missing = np.clip(WORD_BYTES - (lengths - skipped), 0, WORD_BYTES).astype(np.uint64) * np.uint64(8)
    # A shift by 64 is undefined in C: shift by half, twice.
    half, rest = missing >> np.uint64(1), missing - (missing >> np.uint64(1))
    masked: np.ndarray = (((keys >> half) >> rest) << half) << rest
    return masked


SHARDS = 256  # with a billion distinct tokens, each of 256 shards has 4 million, which fit in memory

Entries = tuple[pa.Array, np.ndarray]


@dataclass(frozen=True)
class SpilledCounts:
    """File of tokens and counts, with a record batch per shard."""

    path: str
    entries: int  # tokens
    times: int = 1  # factor that `read` multiplies counts by; rows of several counts stay the same

    def read(self, shards: Iterable[int]) -> Iterator[Entries]:
        """Yield tokens and counts of nonempty ones of `shards`."""
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
    """Return the shard number of each token."""
    return (token_hashes(tokens) >> np.uint64(56)).astype(np.uint8)


def sort_by_shard(tokens: pa.Array, counts: np.ndarray) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """Return tokens and counts in shard order, and the borders."""
    shards = shard_numbers(tokens)
    order = np.argsort(shards, kind="stable")
    borders = np.concatenate([[0], np.cumsum(np.bincount(shards, minlength=SHARDS))])
    return tokens.take(pa.array(order)), counts[order], borders


def spill(folder: str, tokens: pa.Array, counts: np.ndarray) -> SpilledCounts:
    """Write tokens, with a count or counts each, to a file in `folder`; StorageFullError without room."""
    path = Path(folder) / f"tokens-{uuid.uuid4().hex}.arrow"
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = pa.from_numpy_dtype(counts.dtype)
    count_type = pa.list_(kind, counts.shape[1]) if counts.ndim > 1 else kind
    schema = pa.schema([("token", tokens.type), ("count", count_type)])
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


def shard_groups(entries: int, group_entries: int) -> Iterator[range]:
    """Yield ranges of shards of about `group_entries` each."""
    groups = min(SHARDS, max(1, -(-entries // group_entries)))
    borders = np.linspace(0, SHARDS, groups + 1).astype(int).tolist()
    yield from itertools.starmap(range, itertools.pairwise(borders))


# Merging only collects chunks. `limit_memory` adds up equal tokens, which hashes every entry once; merging does so
# itself beyond these limits. Both wait until entries have doubled since the last time, so that merging eight
# summaries costs one pass over their entries.
COMPACT_ENTRIES = 1 << 22
COMPACT_CHUNKS = 64

# Limits on the tokens in memory if there is a folder to spill to, and on the tokens that ranking reads in one step.
SPILL_ENTRIES = 2_000_000
SPILL_BYTES = 64 << 20
GROUP_ENTRIES = 1_000_000
MAX_RANKED_BYTES = (1 << 31) - 1  # of tokens in one array of Arrow

# Several counts share one array of tokens if each uses at least this fraction: zero counts are cheaper than copies.
MIN_SHARED_FRACTION = 0.25


@dataclass(frozen=True, eq=False)
class TokenCounts(Summary):
    """Counts of distinct tokens: strings, or values of 64 bits such as int64, float64 or timestamps.

    In memory, Arrow limits the distinct tokens to 2 GiB of text. `limit_memory` with a folder removes this limit,
    except for the result of `rank`. A negative zero counts as zero.

    Examples
    --------
    >>> import numpy as np, pyarrow as pa
    >>> left = TokenCounts.of(pa.array(["b", "never", "a"]), np.array([2, 0, 2]))
    >>> right = TokenCounts.of(pa.array(["c", "a"]), np.array([1, 1]))
    >>> tokens, counts = (left + right).rank()
    >>> tokens.to_pylist(), counts.tolist()
    (['a', 'b', 'c'], [3, 2, 1])
    """

    token_type: pa.DataType
    # Pairs of tokens and counts in memory. A token may be in several chunks and files, and with a count of 0.
    chunks: tuple[Entries, ...] = ()
    spilled: tuple[SpilledCounts, ...] = ()  # files of more tokens and counts
    total: int = 0  # of all counts
    compacted_entries: int = 0  # entries after equal tokens were last added up
    in_order: bool = False  # whether the tokens are sorted by bytes or value, as `rank` orders ties

    @classmethod
    def of(cls, dictionary: pa.Array, counts: np.ndarray) -> TokenCounts:
        """Summarize distinct tokens and counts, without zeros."""
        kind = dictionary.type
        counts = np.ascontiguousarray(counts, dtype=np.int64)
        if kind == pa.float64():
            dictionary = pc.add(dictionary, 0.0)
        entries = (_copy_tokens(dictionary), counts)
        if not counts.all():
            entries = _filter_entries(counts != 0, dictionary, counts)
        return cls(kind, (entries,) if len(entries[1]) else (), total=int(counts.sum()))

    @classmethod
    def of_each(cls, dictionary: pa.StringArray, counts: Iterable[np.ndarray]) -> list[TokenCounts]:
        """Summarize several counts of the same tokens."""
        shared = _copy_tokens(dictionary)
        chunks = (_drop_unused(shared, part_counts, MIN_SHARED_FRACTION) for part_counts in counts)
        return [cls(shared.type, (chunk,) if len(chunk[1]) else (), total=int(chunk[1].sum())) for chunk in chunks]

    @classmethod
    def of_cells(cls, cells: pa.Array) -> TokenCounts:
        """Count cells that are one token each, without nulls."""
        if pa.types.is_dictionary(cells.type):
            codes = plain_values(cells.indices.drop_null() if cells.null_count else cells.indices)
            return cls.of(cells.dictionary, np.bincount(codes, minlength=len(cells.dictionary)))
        counts = cells.drop_null().value_counts()
        return cls.of(counts.field("values"), plain_values(counts.field("counts")))

    @property
    def entries(self) -> int:
        """Number of tokens in memory, once for each chunk that has them."""
        return sum(len(counts) for _, counts in self.chunks)

    def __mul__(self, times: int) -> TokenCounts:
        if not times:
            return TokenCounts(self.token_type)
        chunks = tuple((tokens, counts * times) for tokens, counts in self.chunks)
        spilled = tuple(replace(file, times=file.times * times) for file in self.spilled)
        return replace(self, chunks=chunks, spilled=spilled, total=self.total * times)

    def __add__(self, other: TokenCounts) -> TokenCounts:
        if not other.total:
            return self
        chunks, spilled = self.chunks + other.chunks, self.spilled + other.spilled
        compacted_entries = max(self.compacted_entries, other.compacted_entries)
        both = TokenCounts(self.token_type, chunks, spilled, self.total + other.total, compacted_entries)
        exceeds_limits = both.entries > COMPACT_ENTRIES or len(both.chunks) > COMPACT_CHUNKS
        return both.compact() if exceeds_limits and both._has_grown() else both

    def compact(self) -> TokenCounts:
        """Return equal counts, each token in memory only once."""
        if not self.chunks or self._is_compact:
            return self
        tokens, counts = _sum_chunks(self.chunks)
        return replace(self, chunks=((tokens, counts),), compacted_entries=len(counts))

    def limit_memory(self, folder: str | None) -> TokenCounts:
        """Return equal counts, in a file if there are too many tokens.

        `rank` and `frequencies` read the files, in any process with access to the folder. The caller removes them.
        """
        if folder is None or self._fits_in_memory():
            return self.compact() if self._has_grown() else self
        compact = self.compact()
        if compact._fits_in_memory():
            return compact
        file = spill(folder, *compact.chunks[0])
        return replace(compact, chunks=(), spilled=(*compact.spilled, file), compacted_entries=0)

    @property
    def _is_compact(self) -> bool:
        return len(self.chunks) == 1 and not self.spilled and self.entries == self.compacted_entries

    def _has_grown(self) -> bool:
        return len(self.chunks) > 1 and (self.entries > 2 * self.compacted_entries or len(self.chunks) > COMPACT_CHUNKS)

    def _fits_in_memory(self) -> bool:
        token_bytes = sum(tokens.get_total_buffer_size() for tokens, _ in self.chunks)
        return self.entries <= SPILL_ENTRIES and token_bytes <= SPILL_BYTES

    def rank(self, most_common: int | None = None, min_frequency: int | None = None) -> tuple[pa.Array, np.ndarray]:
        """Return the most frequent tokens and their counts, descending, ties by token; ColumnError for too many."""
        selected: list[Entries] = []
        for part in self.parts():
            # A token is in one part only, so its rank in the result cannot be better than in its part.
            entries = part[0] if self._is_compact else _sum_chunks(part)
            selected.append(_take_most_frequent(*entries, most_common, min_frequency))
            if most_common is None and sum(tokens.nbytes for tokens, _ in selected) > MAX_RANKED_BYTES:
                raise ColumnError(
                    f"has distinct values of more than {format_bytes(MAX_RANKED_BYTES)}, too many for a vocabulary: "
                    "set most_common or min_frequency, or hash_buckets of a Category"
                )
            if most_common is not None and len(selected) > 1:
                selected = [_take_most_frequent(*_concat_entries(selected), most_common, None)]
        if not selected:
            return pa.array([], self.token_type), np.zeros(0, np.int64)
        tokens, counts = _concat_entries(selected)
        order = np.arange(len(counts)) if self.in_order and not self.spilled else _argsort_tokens(tokens)
        # NumPy sorts integers of up to 16 bits by radix sort, which is faster.
        distance = counts.max(initial=0) - counts[order]
        order = order[np.argsort(distance.astype(np.min_scalar_type(distance.max(initial=0))), kind="stable")]
        return tokens.take(pa.array(order)), counts[order]

    def top(self) -> str | int | float | None:
        """Return the most frequent token, the least of several, or None without tokens."""
        tokens, _ = self.rank(most_common=1)
        value: str | int | float | None = tokens[0].as_py() if len(tokens) else None
        return value

    def frequencies(self, tokens: pa.Array) -> np.ndarray:
        """Return the count of each distinct token, 0 if unknown."""
        tokens = tokens.cast(self.token_type)
        totals = np.zeros(len(tokens), np.int64)
        shards = np.unique(shard_numbers(tokens)).tolist() if self.spilled else []
        for entries in (self.chunks, *(tuple(file.read(shards)) for file in self.spilled)):
            if entries:
                codes = pc.index_in(pa.chunked_array([entry_tokens for entry_tokens, _ in entries]), value_set=tokens)
                counts = np.concatenate([counts for _, counts in entries])[codes.is_valid().to_numpy()]
                totals += _sum_by_code(codes.drop_null().to_numpy(), counts, len(tokens))
        return totals

    def parts(self) -> Iterator[tuple[Entries, ...]]:
        """Yield entries in parts; a token is in one part only, perhaps repeated."""
        if not self.spilled:
            if self.chunks:
                yield tuple(_drop_unused(*chunk) for chunk in self.chunks)
            return
        empty = (pa.array([], self.token_type), np.zeros(0, np.int64))
        tokens, counts, borders = sort_by_shard(*_sum_chunks((empty, *self.chunks)))
        for shards in shard_groups(sum(file.entries for file in self.spilled), GROUP_ENTRIES):
            start, end = int(borders[shards.start]), int(borders[shards.stop])
            in_memory = (tokens.slice(start, end - start), counts[start:end])
            yield (in_memory, *(entries for file in self.spilled for entries in file.read(shards)))


def _copy_tokens(tokens: pa.Array) -> pa.Array:
    """Return a copy of tokens, since a slice would keep its array or memory map alive."""
    return pa.concat_arrays([tokens, tokens.slice(0, 0)])


def fit_in_memory(parts: Sequence[TokenCounts]) -> bool:
    """Return whether several counts can be merged in memory."""
    return sum(part.entries for part in parts) <= COMPACT_ENTRIES and not any(part.spilled for part in parts)


def limit_memory_together(parts: Sequence[TokenCounts], folder: str | None) -> list[TokenCounts]:
    """Return counts after `limit_memory`, sharing tokens if all fit."""
    all_fit = fit_in_memory(parts) and all(part._fits_in_memory() for part in parts)
    if not all_fit or not any(part._has_grown() for part in parts):
        return [part.limit_memory(folder) for part in parts]
    tokens, encoded_parts = _encode_parts(parts)
    chunks = [
        _drop_unused(tokens, _sum_by_code(*encoded, len(tokens)), MIN_SHARED_FRACTION) for encoded in encoded_parts
    ]
    return [
        replace(part, chunks=(chunk,), compacted_entries=len(chunk[1])) if part.chunks else part
        for part, chunk in zip(parts, chunks, strict=True)
    ]


def leave_one_out_counts(parts: Sequence[TokenCounts]) -> Iterator[TokenCounts]:
    """Yield the sum of all parts, then the sums without one part; the last is in all."""
    tokens, encoded_parts = _encode_parts(parts)
    total = sum((_sum_by_code(*encoded, len(tokens)) for encoded in encoded_parts), np.zeros(len(tokens), np.int64))
    order = _argsort_tokens(tokens)
    ordered = tokens.take(pa.array(order))
    for left_out in (
        np.zeros(len(tokens), np.int64),
        *(_sum_by_code(*encoded, len(tokens)) for encoded in encoded_parts[:-1]),
    ):
        counts = TokenCounts.of(ordered, (total - left_out)[order])
        yield replace(counts, compacted_entries=counts.entries, in_order=True)


def _drop_unused(tokens: pa.Array, counts: np.ndarray, min_fraction: float = 1.0) -> Entries:
    """Drop tokens with a count of 0, unless few tokens have one."""
    if np.count_nonzero(counts) >= min_fraction * len(counts):
        return tokens, counts
    return _filter_entries(counts != 0, tokens, counts)


def _sum_chunks(chunks: Sequence[Entries]) -> Entries:
    """Return distinct tokens of chunks, and summed counts."""
    tokens, codes = _encode_arrays([tokens for tokens, _ in chunks])
    return _drop_unused(tokens, _sum_by_code(codes, np.concatenate([counts for _, counts in chunks]), len(tokens)))


def _encode_parts(parts: Sequence[TokenCounts]) -> tuple[pa.Array, list[tuple[np.ndarray, np.ndarray]]]:
    """Return distinct tokens, and codes and counts of each part."""
    empty = pa.array([], parts[0].token_type)
    tokens, codes = _encode_arrays([empty, *(tokens for part in parts for tokens, _ in part.chunks)])
    counts = [np.concatenate([np.zeros(0, np.int64), *(counts for _, counts in part.chunks)]) for part in parts]
    ends = list(accumulate(map(len, counts), initial=0))
    return tokens, [(codes[start:end], part) for (start, end), part in zip(pairwise(ends), counts, strict=True)]


def _encode_arrays(arrays: Sequence[pa.Array]) -> tuple[pa.Array, np.ndarray]:
    """Return distinct tokens of arrays, and a code per token."""
    shared = {id(array): array for array in arrays}
    encoded = pa.chunked_array(list(shared.values())).dictionary_encode().chunks
    codes = np.concatenate([np.zeros(0, np.int32), *(plain_values(chunk.indices) for chunk in encoded)])
    cuts = np.split(codes, np.cumsum([len(array) for array in shared.values()])[:-1])
    by_array = dict(zip(shared, cuts, strict=True))
    return (encoded[0].dictionary if encoded else arrays[0]), np.concatenate([by_array[id(part)] for part in arrays])


def _sum_by_code(codes: np.ndarray, counts: np.ndarray, tokens: int) -> np.ndarray:
    # Sums of integers are exact in float64 below 2**53, far above any count of tokens.
    return np.bincount(codes, weights=counts, minlength=tokens).astype(np.int64)


def _concat_entries(entries: list[Entries]) -> Entries:
    counts = np.concatenate([counts for _, counts in entries])
    return pa.concat_arrays([tokens for tokens, _ in entries]), counts


def _take_most_frequent(
    tokens: pa.Array, counts: np.ndarray, most_common: int | None, min_frequency: int | None
) -> Entries:
    """Return the `most_common` of entries of `min_frequency`, ties by token, in any order."""
    if min_frequency is not None and min_frequency > 1:
        tokens, counts = _filter_entries(counts >= min_frequency, tokens, counts)
    if most_common is None or most_common >= len(counts):
        return tokens, counts
    if most_common <= 0:
        return tokens.slice(0, 0), counts[:0]
    threshold = int(np.partition(counts, len(counts) - most_common)[len(counts) - most_common])
    greater = _filter_entries(counts > threshold, tokens, counts)
    tied = tokens.filter(pa.array(counts == threshold))
    indices = pc.select_k_unstable(tied, most_common - len(greater[1]), [("token", "ascending")])
    return _concat_entries([greater, (tied.take(indices), np.full(len(indices), threshold, np.int64))])


def _filter_entries(mask: np.ndarray, tokens: pa.Array, counts: np.ndarray) -> Entries:
    return tokens.filter(pa.array(mask)), counts[mask]


def _argsort_tokens(tokens: pa.Array) -> np.ndarray:
    order: np.ndarray = argsort_bytes(tokens) if pa.types.is_string(tokens.type) else pc.sort_indices(tokens).to_numpy()
    return order
