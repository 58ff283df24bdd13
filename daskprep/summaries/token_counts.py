"""Counts of distinct tokens, in bounded memory for any number of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.summaries.base import Summary
from daskprep.summaries.spill import Entries, SpilledCounts, shard_groups, shard_numbers, sort_by_shard, spill
from daskprep.summaries.token_bytes import argsort_bytes

# Merging only collects chunks. `limit_memory` adds up equal tokens, which hashes every entry once; merging does so
# itself beyond these limits. Both wait until entries have doubled since the last time, so that merging eight
# summaries costs one pass over their entries.
COMPACT_ENTRIES = 1 << 22
COMPACT_CHUNKS = 64

# Limits on the tokens in memory if there is a folder to spill to, and on the tokens that ranking reads in one step.
SPILL_ENTRIES = 2_000_000
SPILL_BYTES = 64 << 20
GROUP_ENTRIES = 1_000_000

# Several counts share one array of tokens if each uses at least this fraction: zero counts are cheaper than copies.
MIN_SHARED_FRACTION = 0.25


@dataclass(frozen=True, eq=False)
class TokenCounts(Summary):
    """Counts of distinct tokens: strings, or values of 64 bits such as int64, float64 or timestamps.

    In memory, Arrow limits the distinct tokens to 2 GiB of text. `limit_memory` with a folder removes this limit,
    except for the result of `rank`. A negative zero counts as zero.

    Attributes
    ----------
    token_type : pa.DataType
        Type of the tokens.
    chunks : tuple
        Pairs of tokens and counts in memory. A token may be in several chunks and files, and with a count of 0.
    spilled : tuple of SpilledCounts
        Files of more tokens and counts.
    total : int
        Sum of all counts.
    compacted_entries : int
        Number of entries after equal tokens were last added up.
    in_order : bool
        Whether the tokens are sorted by bytes or value, as `rank` orders ties.

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
    chunks: tuple[Entries, ...] = ()
    spilled: tuple[SpilledCounts, ...] = ()
    total: int = 0
    compacted_entries: int = 0
    in_order: bool = False

    @classmethod
    def of(cls, dictionary: pa.Array, counts: np.ndarray) -> TokenCounts:
        """Summarize distinct tokens, such as the dictionary of a column, with the count of each; zeros are dropped."""
        kind = dictionary.type
        if not (pa.types.is_string(kind) or (pa.types.is_primitive(kind) and kind.bit_width == 64)):
            raise TypeError(f"Tokens are strings or values of 64 bits, not {kind}: cast them first.")
        counts = np.ascontiguousarray(counts, dtype=np.int64)
        if dictionary.null_count or len(dictionary) != len(counts) or (len(counts) and counts.min() < 0):
            raise ValueError("Counting takes one count of at least 0 for each token, and no null tokens.")
        if kind == pa.float64():
            dictionary = pc.add(dictionary, 0.0)
        dictionary, counts = (
            (_copy_tokens(dictionary), counts) if counts.all() else _filter_entries(counts != 0, dictionary, counts)
        )
        total = int(counts.sum())
        chunks = ((dictionary, counts),) if len(counts) else ()
        return cls(kind, chunks, total=total)

    @classmethod
    def of_each(cls, dictionary: pa.StringArray, counts: Iterable[np.ndarray]) -> list[TokenCounts]:
        """Summarize several counts of the same tokens, such as by fold; they share one array, which is hashed once."""
        shared = _copy_tokens(dictionary)
        chunks = (_drop_unused(shared, part_counts, MIN_SHARED_FRACTION) for part_counts in counts)
        return [cls(shared.type, (chunk,) if len(chunk[1]) else (), total=int(chunk[1].sum())) for chunk in chunks]

    @classmethod
    def of_cells(cls, cells: pa.Array) -> TokenCounts:
        """Summarize cells that are a token each; missing cells are left out."""
        if pa.types.is_dictionary(cells.type):
            codes = cells.indices.drop_null().to_numpy()
            return cls.of(cells.dictionary, np.bincount(codes, minlength=len(cells.dictionary)))
        counts = cells.drop_null().value_counts()
        return cls.of(counts.field("values"), counts.field("counts").to_numpy())

    @property
    def entries(self) -> int:
        """Number of tokens in memory; a token counts once for each chunk that it is in."""
        return sum(len(counts) for _, counts in self.chunks)

    def __mul__(self, times: int) -> TokenCounts:
        """Return the counts multiplied by `times`, also of files when they are read; empty for 0."""
        if not times:
            return TokenCounts(self.token_type)
        chunks = tuple((tokens, counts * times) for tokens, counts in self.chunks)
        spilled = tuple(replace(file, times=file.times * times) for file in self.spilled)
        return replace(self, chunks=chunks, spilled=spilled, total=self.total * times)

    def __add__(self, other: TokenCounts) -> TokenCounts:
        """Collect chunks and files of both; beyond limits, add up equal tokens. TypeError for other types of tokens."""
        if self.token_type != other.token_type:
            raise TypeError(f"Cannot merge counts of {self.token_type} and of {other.token_type} tokens.")
        if not other.total:
            return self
        both = TokenCounts(
            self.token_type,
            self.chunks + other.chunks,
            self.spilled + other.spilled,
            self.total + other.total,
            max(self.compacted_entries, other.compacted_entries),
        )
        exceeds_limits = both.entries > COMPACT_ENTRIES or len(both.chunks) > COMPACT_CHUNKS
        return both.compact() if exceeds_limits and both._has_grown() else both

    def compact(self) -> TokenCounts:
        """Return equal counts in which every token in memory occurs once."""
        if not self.chunks or self._is_compact:
            return self
        tokens, counts = _sum_chunks(self.chunks)
        return replace(self, chunks=((tokens, counts),), compacted_entries=len(counts))

    def limit_memory(self, folder: str | None) -> TokenCounts:
        """Return equal counts with at most two million tokens, and 64 MB, in memory and the rest in `folder`.

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
        token_bytes = sum(tokens.nbytes for tokens, _ in self.chunks)
        return self.entries <= SPILL_ENTRIES and token_bytes <= SPILL_BYTES

    def rank(self, most_common: int | None = None, min_frequency: int | None = None) -> tuple[pa.Array, np.ndarray]:
        """Return distinct tokens and counts, by count descending, then by UTF-8 bytes or value ascending.

        `most_common` limits the number of tokens, `min_frequency` their count.
        """
        selected: list[Entries] = []
        for part in self.parts():
            # A token is in one part only, so its rank in the result cannot be better than in its part.
            entries = part[0] if self._is_compact else _sum_chunks(part)
            selected.append(_take_most_frequent(*entries, most_common, min_frequency))
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
        """Return the most frequent token, the first by bytes or value among ties; None without tokens."""
        tokens, _ = self.rank(most_common=1)
        value: str | int | float | None = tokens[0].as_py() if len(tokens) else None
        return value

    def frequencies(self, tokens: pa.Array) -> np.ndarray:
        """Return the count of each of an array of distinct tokens, 0 for tokens that do not occur."""
        tokens = tokens.cast(self.token_type)
        totals = np.zeros(len(tokens), np.int64)
        shards = np.unique(shard_numbers(tokens)).tolist()
        for entries in (self.chunks, *(tuple(file.read(shards)) for file in self.spilled)):
            if entries:
                codes = pc.index_in(pa.chunked_array([entry_tokens for entry_tokens, _ in entries]), value_set=tokens)
                counts = np.concatenate([counts for _, counts in entries])[codes.is_valid().to_numpy()]
                totals += _sum_by_code(codes.drop_null().to_numpy(), counts, len(tokens))
        return totals

    def parts(self) -> Iterator[tuple[Entries, ...]]:
        """Yield all entries in parts; each token is in one part only."""
        if not self.spilled:
            if self.chunks:
                yield tuple(_drop_unused(*chunk) for chunk in self.chunks)
            return
        empty = (pa.array([], self.token_type), np.zeros(0, np.int64))
        tokens, counts, borders = sort_by_shard(*_sum_chunks((empty, *self.chunks)))
        for shards in shard_groups(self.spilled, GROUP_ENTRIES):
            start, end = int(borders[shards.start]), int(borders[shards.stop])
            in_memory = (tokens.slice(start, end - start), counts[start:end])
            yield (in_memory, *(entries for file in self.spilled for entries in file.read(shards)))


def _copy_tokens(tokens: pa.Array) -> pa.Array:
    """Return a copy of tokens, since a slice would keep its array or memory map alive."""
    return pa.concat_arrays([tokens, tokens.slice(0, 0)])


def fit_in_memory(parts: Sequence[TokenCounts]) -> bool:
    """Return whether the tokens of several counts are in memory, and few enough to merge them there."""
    return sum(part.entries for part in parts) <= COMPACT_ENTRIES and not any(part.spilled for part in parts)


def limit_memory_together(parts: Sequence[TokenCounts], folder: str | None) -> list[TokenCounts]:
    """Return several counts after `limit_memory`; all tokens are hashed in one pass, and the results share them."""
    if not (
        fit_in_memory(parts)
        and all(part._fits_in_memory() for part in parts)
        and any(part._has_grown() for part in parts)
    ):
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
    """Yield the sum of all parts, then the sums without each part but the last; tokens are hashed in one pass."""
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
    """Drop tokens with a count of 0, unless the fraction of other tokens is at least `min_fraction`."""
    if np.count_nonzero(counts) >= min_fraction * len(counts):
        return tokens, counts
    return _filter_entries(counts != 0, tokens, counts)


def _sum_chunks(chunks: Sequence[Entries]) -> Entries:
    """Return the distinct tokens of chunks, with the sum of their counts."""
    tokens, codes = _encode_arrays([tokens for tokens, _ in chunks])
    return _drop_unused(tokens, _sum_by_code(codes, np.concatenate([counts for _, counts in chunks]), len(tokens)))


def _encode_parts(parts: Sequence[TokenCounts]) -> tuple[pa.Array, list[tuple[np.ndarray, np.ndarray]]]:
    """Return the distinct tokens of several counts, and for each part the codes and counts of its entries.

    A code is the position of a token among the distinct ones.
    """
    empty = pa.array([], parts[0].token_type)
    tokens, codes = _encode_arrays([empty, *(tokens for part in parts for tokens, _ in part.chunks)])
    counts = [np.concatenate([np.zeros(0, np.int64), *(counts for _, counts in part.chunks)]) for part in parts]
    ends = list(accumulate(map(len, counts), initial=0))
    return tokens, [(codes[start:end], part) for (start, end), part in zip(pairwise(ends), counts, strict=True)]


def _encode_arrays(arrays: Sequence[pa.Array]) -> tuple[pa.Array, np.ndarray]:
    """Return the distinct tokens of arrays, and the code of each token: its position among the distinct ones.

    An array that occurs several times is hashed once.
    """
    shared = {id(array): array for array in arrays}
    encoded = pa.chunked_array(list(shared.values())).dictionary_encode().chunks
    codes = np.concatenate([np.zeros(0, np.int32), *(chunk.indices.to_numpy() for chunk in encoded)])
    cuts = np.split(codes, np.cumsum([len(array) for array in shared.values()])[:-1])
    by_array = dict(zip(shared, cuts, strict=True))
    return (encoded[0].dictionary if encoded else arrays[0]), np.concatenate([by_array[id(part)] for part in arrays])


def _sum_by_code(codes: np.ndarray, counts: np.ndarray, tokens: int) -> np.ndarray:
    """Return the sum of counts of each code below `tokens`."""
    # Sums of integers are exact in float64 below 2**53, far above any count of tokens.
    return np.bincount(codes, weights=counts, minlength=tokens).astype(np.int64)


def _concat_entries(entries: list[Entries]) -> Entries:
    counts = np.concatenate([counts for _, counts in entries])
    return pa.concat_arrays([tokens for tokens, _ in entries]), counts


def _take_most_frequent(
    tokens: pa.Array, counts: np.ndarray, most_common: int | None, min_frequency: int | None
) -> Entries:
    """Return the entries of the highest ranks, unsorted; ties in count are by token."""
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
