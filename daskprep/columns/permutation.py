"""The random choices of daskprep: a keyed permutation and a keyed hash.

A choice is a pure function of a key and a row number, without the state of a random number generator. So it needs no
shuffle, yields exact counts, and is the same for 1 partition or 1,000, on threads or on a cluster.

The values of `make_key`, `permute` and `hash_strings` must never change, because existing datasets, splits and loader
orders depend on them. Tests compare them with golden values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Uint64Array = NDArray[np.uint64]
_AnyUintArray = NDArray[Any]


_ROUNDS = 8
_BLOCK_ROWS = 65_536
_BLOCK_BYTES = 524_288  # a block and its scratch stay in the caches of a core
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LENGTH_MULTIPLIER = np.uint64(0xD1342543DE82EF95)


def make_key(seed: int, *parts: str | int) -> int:
    """Return a 64-bit key from the SHA-256 of seed and parts."""
    numbers_and_names = [part if isinstance(part, str) else int(part) for part in (seed, *parts)]
    text = json.dumps(numbers_and_names, ensure_ascii=True, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode("ascii")).digest()[:8], "little")


def make_keys(seed: int, name: str, numbers: Iterable[int], *parts: int) -> Uint64Array:
    """Return ``make_key(seed, name, number, *parts)`` for each of `numbers`, several times as fast."""
    start, end = f'[{seed},"{name}",', "".join(f",{part}" for part in parts) + "]"
    digests = [hashlib.sha256(f"{start}{number}{end}".encode()).digest()[:8] for number in numbers]
    return np.frombuffer(b"".join(digests), np.dtype("<u8")).astype(np.uint64)


def hash_strings(strings: pa.Array, key: int) -> Uint64Array:
    """Return the 64-bit hash of each string for a key.

    A string is cut into 8-byte little-endian words, the last one padded with zeros. Each word is mixed with its
    position, the results are added, and the sum is mixed with the length (-1 for a null).
    """
    sums = np.zeros(len(strings), dtype=np.uint64)
    if not sums.size:
        return sums
    text = strings.cast(pa.large_binary())
    _, offsets, data = text.buffers()
    edges = np.frombuffer(offsets, dtype=np.int64)[text.offset : text.offset + len(text) + 1]
    cells = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8)
    present = np.asarray(text.is_valid())
    lengths = np.where(present, np.diff(edges), 0)
    for block in _word_blocks(lengths):
        sums[block] = _sum_words(cells, edges[block], lengths[block], np.uint64(key))
    lengths = np.where(present, lengths, -1)
    return mix((sums ^ np.uint64(key)) + lengths.view(np.uint64) * _LENGTH_MULTIPLIER)


def _word_blocks(lengths: Integers) -> Iterator[slice]:
    """Yield blocks of strings with about `_BLOCK_ROWS` words each."""
    ends = np.cumsum((lengths + 7) >> 3)
    start, words = 0, 0
    while start < lengths.size:
        # The second bound limits blocks of empty strings, which have no words.
        stop = min(int(np.searchsorted(ends, words + _BLOCK_ROWS, side="right")), start + _BLOCK_ROWS)
        stop = max(stop, start + 1)
        yield slice(start, stop)
        start, words = stop, int(ends[stop - 1])


def _sum_words(cells: NDArray[np.uint8], starts: Integers, lengths: Integers, key: np.uint64) -> Uint64Array:
    """Return the sum of the mixed words of each string in `cells`."""
    words = (lengths + 7) >> 3
    ends = np.cumsum(words)
    string_index = np.repeat(np.arange(lengths.size), words)
    word_index = np.arange(string_index.size) - (ends - words)[string_index]
    first, last = int(starts[0]), int(starts[-1] + lengths[-1])
    padded = np.zeros(((last - first) >> 3) + 2, dtype="<u8")
    padded.view(np.uint8)[: last - first] = cells[first:last]
    aligned = padded.astype(np.uint64, copy=False)
    byte = (starts - first)[string_index] + 8 * word_index
    bit = ((byte & 7) << 3).astype(np.uint64)
    # A shift by 64 is undefined in C: shift by 63 - bit and once more.
    word = (aligned[byte >> 3] >> bit) | ((aligned[(byte >> 3) + 1] << (np.uint64(63) - bit)) << np.uint64(1))
    bytes_left = np.minimum(lengths[string_index] - 8 * word_index, 8).astype(np.uint64)
    word &= np.uint64(2**64 - 1) >> (np.uint64(64) - (bytes_left << np.uint64(3)))
    word ^= (word_index + 1).astype(np.uint64) * _GOLDEN + key
    cumulative = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(mix(word))])
    sums: Uint64Array = cumulative[ends] - cumulative[ends - words]
    return sums


def mix(words: Uint64Array) -> Uint64Array:
    """Scramble each word in place by the finalizer of splitmix64."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


class _Domain(NamedTuple):
    """Sizes and keys of permutations, one for all rows or for each row."""

    size: _AnyUintArray  # numbers of members
    mask: _AnyUintArray  # 2**b - 1, for b bits of size - 1
    shift: _AnyUintArray  # half of b, rounded up
    key: Uint64Array

    def as_words(self, dtype: np.dtype[Any]) -> _Domain:
        return _Domain(self.size.astype(dtype), self.mask.astype(dtype), self.shift.astype(dtype), self.key)

    def rows(self, rows: slice | Integers) -> _Domain:
        return _Domain(*(field if field.size == 1 else field[rows] for field in self))


def permute(
    index: NDArray[np.integer], n: int | Integers, key: int | Uint64Array, *, inverse: bool = False
) -> Integers:
    """Return the positions of numbers under the permutation of [0, n) for a key; `inverse`: the numbers at positions.

    `n`, 0 to 2**62, and `key`, as from `make_key`, are single values or arrays with a value per number. Eight rounds
    permute [0, 2**b), for b bits of n - 1: add, multiply by ``2 * m + 1``, and fold the high half onto the low half.
    Results outside [0, n) are permuted again (cycle walking), less than once per number on average.
    """
    domain = _domain(n, key)
    # Sums and products modulo a power of two do not depend on higher bits: shorter words are exact, and faster.
    values = index.astype(np.min_scalar_type(int(domain.size.max(initial=0))))
    domain = domain.as_words(values.dtype)
    _permute_in_blocks(values, domain, inverse=inverse)
    outside = np.flatnonzero(values >= domain.size)
    while outside.size:
        subdomain = domain.rows(outside)
        moved = values[outside]
        _permute_in_blocks(moved, subdomain, inverse=inverse)
        values[outside] = moved
        outside = outside[moved >= subdomain.size]
    return values.astype(np.int64)


def _domain(n: int | Integers, key: int | Uint64Array) -> _Domain:
    """Return the domains of sizes and keys, single or by row."""
    size = np.atleast_1d(np.asarray(n, np.uint64))
    bits = bit_lengths(np.maximum(size, np.uint64(1)) - np.uint64(1))
    mask = (np.uint64(1) << bits) - np.uint64(1)
    return _Domain(size, mask, (bits + np.uint64(1)) >> np.uint64(1), np.atleast_1d(np.asarray(key, np.uint64)))


def bit_lengths(numbers: Uint64Array) -> Uint64Array:
    """Return the number of bits that each number needs; 0 for 0."""
    exponent = np.frexp(numbers.astype(np.float64))[1].astype(np.uint64)
    # Above 2**53 the float may have been rounded up to the next power of two.
    rounded_up = (exponent > 0) & ((numbers >> (np.maximum(exponent, np.uint64(1)) - np.uint64(1))) == 0)
    bits: Uint64Array = exponent - rounded_up
    return bits


def _permute_in_blocks(values: _AnyUintArray, domain: _Domain, *, inverse: bool) -> None:
    """Permute values in place, block by block."""
    rows = _BLOCK_BYTES // values.itemsize
    for start in range(0, values.size, rows):
        block = slice(start, start + rows)
        _permute_block(values[block], domain.rows(block), inverse=inverse)


def _permute_block(values: _AnyUintArray, domain: _Domain, *, inverse: bool) -> None:
    """Permute values in place by eight rounds, within [0, 2**b), or by their inverses in reverse order."""
    rounds = np.arange(1, _ROUNDS + 1, dtype=np.uint64)[:, None] * _GOLDEN
    keys = mix(domain.key[None, :] + rounds)
    addends, multipliers = (keys >> np.uint64(32)).astype(values.dtype), (keys | np.uint64(1)).astype(values.dtype)
    high = np.empty_like(values)
    if inverse:
        for addend, multiplier in zip(addends[::-1], _reciprocals(multipliers)[::-1], strict=True):
            # A fold is its own inverse, as it shifts by at least half of the bits.
            np.right_shift(values, domain.shift, out=high)
            values ^= high
            values *= multiplier
            values -= addend
            values &= domain.mask
        return
    for addend, multiplier in zip(addends, multipliers, strict=True):
        values += addend
        values *= multiplier
        values &= domain.mask
        np.right_shift(values, domain.shift, out=high)
        values ^= high


def _reciprocals(factors: _AnyUintArray) -> _AnyUintArray:
    """Return the multiplicative inverses of factors, which must not be even, modulo the power of two of their type."""
    inverses = factors.copy()  # correct in 3 bits; each step of Newton's method doubles them
    for _ in range(5):
        inverses *= factors.dtype.type(2) - factors * inverses
    return inverses
