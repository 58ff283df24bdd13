"""Vectors of values in a SQLite file, computed once: processes may share it, and a killed one leaves it intact."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from daskprep.errors import StorageError

Value = str | bytes
_BATCH_VALUES = 512  # of a call and a transaction; SQLite before 3.32 allows 999 parameters
_MAX_WAIT_S = 600.0  # for the transaction of another process
_lock = threading.RLock()  # models are rarely thread-safe, and no other thread computes the same values meanwhile


def cached_vectors(
    path: Path, values: Sequence[Value], size: int, compute: Callable[[list[Value]], np.ndarray]
) -> np.ndarray:
    """Return a row of `size` float32 for each value, in order, from the file at `path`.

    ``compute(values)`` returns the rows of at most 512 values that it lacks; they are stored. StorageError for a file
    that cannot be used.
    """
    out = np.empty((len(values), size), np.float32)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock, closing(sqlite3.connect(path, _MAX_WAIT_S)) as database:
            database.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB)")
            for start in range(0, len(values), _BATCH_VALUES):
                batch = values[start : start + _BATCH_VALUES]
                out[start : start + len(batch)] = _batch_vectors(database, batch, size, compute).reshape(-1, size)
    except (OSError, sqlite3.Error) as error:
        raise StorageError(
            f"{path}, the cache of embeddings, cannot be used: {error}; remove the file, or set cache_dir"
        ) from error
    return out


def _batch_vectors(
    database: sqlite3.Connection, values: Sequence[Value], size: int, compute: Callable[[list[Value]], np.ndarray]
) -> np.ndarray:
    """Return the joined float32 vectors of values, computed and stored if missing."""
    keys = [_key(value) for value in values]
    marks = ",".join("?" * len(keys))
    vectors = dict(database.execute(f"SELECT key, vector FROM vectors WHERE key IN ({marks})", keys))  # noqa: S608
    if missing := {key: value for key, value in zip(keys, values, strict=True) if key not in vectors}:
        rows = compute(list(missing.values())).astype("<f4")
        computed = dict(zip(missing, map(bytes, rows), strict=True))
        with database:
            database.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?)", computed.items())
        vectors |= computed
    if any(len(vectors[key]) != 4 * size for key in keys):
        raise sqlite3.DataError(f"a vector in it does not have {size:,} numbers")
    return np.frombuffer(b"".join(map(vectors.__getitem__, keys)), "<f4")


def _key(value: Value) -> bytes:
    """Return a digest of a value; text and bytes have different ones."""
    person, data = (b"text", value.encode()) if isinstance(value, str) else (b"bytes", value)
    return hashlib.blake2b(data, digest_size=16, person=person).digest()
