"""Make the tables that benchmarks read: 17 mixed columns in Parquet files, or the same columns encoded, for loaders.

    python -m benchmarks.peers.gen --rows 1000000 --data data/1m
    python -m benchmarks.peers.gen --rows 2000000 --data bench-data/tab --encoded

Each file depends on the seed and its first row alone, not on the number of processes.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.peers.common import ENCODED, SERIES_LENGTH

MISSING = {"f0": 0.02, "f1": 0.1, "f2": 0.25, "f3": 0.45}
SIZES = {"c10": 10, "c1k": 1_000, "c100k": 100_000, "c2m": 2_000_000}
TAGS, WORDS, GROUP_ROWS, FILE_ROWS = 5_000, 200_000, 125_000, 500_000
YEAR_START, YEAR_END = np.datetime64("2023-01-01", "us"), np.datetime64("2024-01-01", "us")


@cache
def zipf(count: int, exponent: float = 1.0) -> np.ndarray:
    """Return cumulative probabilities that fall as a power of the rank."""
    total = np.cumsum((np.arange(count) + 2.7) ** -exponent)
    return total / total[-1]


def draw(rng: np.random.Generator, probabilities: np.ndarray, count: int) -> np.ndarray:
    """Return ranks drawn by their cumulative probabilities."""
    return np.searchsorted(probabilities, rng.random(count)).clip(max=len(probabilities) - 1)


@cache
def written_words() -> pa.Array:
    """Return each word in lower case, capitalized and in capitals, with each of six endings: 18 forms of a word."""
    syllables = [consonant + vowel for consonant in "tnshrdlcmfwgpbvkjqxz" for vowel in "eaoiu"]
    forms = []
    for rank in range(WORDS):
        number, word = rank, ""
        while number or not word:
            number, syllable = divmod(number, len(syllables))
            word += syllables[syllable]
        word += "é" if rank % 100 == 37 else ""
        forms += [case + end for case in (word, word.capitalize(), word.upper()) for end in ("", *",.!?;")]
    return pa.array(forms)


def joined(values: pa.Array, lengths: np.ndarray) -> pa.Array:
    """Return a string per row: so many of the values, with spaces between them."""
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(ends), values), " ")


def category(name: str, ranks: np.ndarray) -> pa.Array:
    """Return the strings of a category: of the largest, hexadecimal numbers that are no order of the ranks."""
    if name == "c2m":
        values, places = np.unique(ranks, return_inverse=True)
        return pa.array([f"{value * 2_654_435_761 % 2**32:08x}" for value in values.tolist()]).take(pa.array(places))
    return pa.array([f"{name}-{rank:06d}" for rank in range(SIZES[name])]).take(pa.array(ranks))


def some_rows(seed: int, start: int, rows: int) -> pa.Table:
    """Return rows of the table."""
    rng = np.random.default_rng([seed, start])
    columns: dict[str, pa.Array] = {"row_id": pa.array(np.arange(start, start + rows))}
    for i in range(6):
        values, share = rng.lognormal(0.5 * i, 0.5 + 0.25 * i, rows).round(4), MISSING.get(f"f{i}", 0.0)
        columns[f"f{i}"] = pa.array(values, mask=rng.random(rows) < share)
    columns["i0"] = pa.array(rng.geometric(0.08, rows))
    columns["i1"] = pa.array(rng.integers(0, 1 << 40, rows))
    columns["label"] = pa.array(rng.random(rows) < 0.05)
    for name, size in SIZES.items():
        columns[name] = category(name, draw(rng, zipf(size, 0.85 if name in {"c10", "c2m"} else 1.05), rows))
    columns["c1k"] = pc.if_else(pa.array(rng.random(rows) < 0.02), None, columns["c1k"])
    lengths = rng.integers(0, 9, rows)
    tags = pa.array([f"tag{i}" for i in range(TAGS)])
    columns["tags"] = joined(tags.take(pa.array(draw(rng, zipf(TAGS), lengths.sum()))), lengths)
    lengths = rng.poisson(rng.gamma(4.0, 5.0, rows)).clip(1, 200)
    count = lengths.sum()
    case = rng.choice([0, 1, 2], count, p=[0.9, 0.08, 0.02])
    end = np.where(rng.random(count) < 0.15, rng.integers(1, 6, count), 0)
    forms = 18 * draw(rng, zipf(WORDS), count) + 6 * case + end
    text = joined(written_words().take(pa.array(forms)), lengths)
    columns["text"] = pc.if_else(pa.array(rng.random(rows) < 0.005), None, text)
    series = rng.normal(size=(rows, SERIES_LENGTH)).cumsum(axis=1).round(3)
    columns["ts"] = joined(pa.array(series.ravel()).cast(pa.string()), np.full(rows, SERIES_LENGTH))
    columns["time"] = pa.array(YEAR_START + rng.integers(0, (YEAR_END - YEAR_START).astype(int), rows))
    return pa.table(columns)


def write_file(start: int, *, folder: Path, seed: int, rows: int, file_rows: int) -> None:
    """Write one file of the table."""
    table = some_rows(seed, start, min(file_rows, rows - start))
    path = folder / f"part-{start // file_rows:05d}.parquet"
    pq.write_table(table, path, compression="zstd", row_group_size=GROUP_ROWS)


def write_encoded(folder: Path, rows: int, seed: int) -> None:
    """Write columns as .npy files, and the same rows as one array of records."""
    rng = np.random.default_rng(seed)
    packed = np.zeros(rows, [(name, *kind) for name, kind in ENCODED.items()])
    for name, (dtype, shape) in ENCODED.items():
        if dtype == "int32":
            size = 30_000 if shape else 10 ** (1 + int(name[1:]))
            packed[name] = draw(rng, zipf(size), rows * int(np.prod(shape))).reshape(rows, *shape)
        else:
            packed[name] = (
                rng.standard_normal((rows, *shape), dtype="float32") > 0
                if dtype == "bool"
                else (rng.standard_normal((rows, *shape), dtype="float32"))
            )
    packed["text"][np.arange(packed["text"].shape[1]) >= rng.integers(8, 65, (rows, 1))] = 0
    packed["f0"] = np.arange(rows)
    for part in ("npy", "packed"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for name in ENCODED:
        np.save(folder / "npy" / f"{name}.npy", packed[name])
    np.save(folder / "packed" / "rows.npy", packed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--encoded", action="store_true", help="the encoded columns that loaders read")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    arguments.data.mkdir(parents=True, exist_ok=True)
    rows = arguments.rows
    if arguments.encoded:
        write_encoded(arguments.data, rows, arguments.seed)
        return
    file_rows = min(FILE_ROWS, -(-rows // 4))
    write = partial(write_file, folder=arguments.data, seed=arguments.seed, rows=rows, file_rows=file_rows)
    with ProcessPoolExecutor(arguments.workers) as pool:
        list(pool.map(write, range(0, rows, file_rows)))


if __name__ == "__main__":
    main()
