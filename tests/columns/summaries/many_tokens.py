"""Count many distinct tokens, within memory.

As a program, ``many_tokens.py tokens folder``, it says what came out, and its peak memory, as JSON.

Token i is ``token-<i as eight digits>``. Every one occurs once, and every 2,000th i more times.
"""

from __future__ import annotations

import functools
import json
import operator
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.summaries import TokenCounts

PIECES = 80
FANOUT = 8
MOST_COMMON = 20_000


def tokens_of(numbers: np.ndarray) -> pa.Array:
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 8, "0")
    return pc.binary_join_element_wise("token-", digits, "")


def piece(first: int, stop: int) -> TokenCounts:
    numbers = np.arange(first, stop)
    half = TokenCounts.of(tokens_of(numbers[::2000]), numbers[::2000])
    return TokenCounts.of(tokens_of(numbers), np.ones(stop - first, np.int64)) + half


def peak_kib() -> int:
    # Not ru_maxrss, which starts with the peak of the parent process.
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def report(tokens: int, folder: str) -> dict[str, Any]:
    """Count the tokens from 80 pieces, eight at a time, and return the counts."""
    size = tokens // PIECES
    level: list[TokenCounts] = []
    counts: TokenCounts | None = None
    for first in range(0, tokens, size):
        level.append(piece(first, first + size))
        if len(level) == FANOUT or first + size >= tokens:
            merged = functools.reduce(operator.add, level).limit_memory(folder)
            counts = merged if counts is None else (counts + merged).limit_memory(folder)
            level = []
    rank, frequencies = counts.rank(most_common=MOST_COMMON)
    return {
        "total": counts.total,
        "files": len(counts.spilled),
        "tokens": rank.to_pylist(),
        "frequencies": frequencies.tolist(),
    }


if __name__ == "__main__":
    json.dump(report(int(sys.argv[1]), sys.argv[2]) | {"peak_kib": peak_kib()}, sys.stdout)
