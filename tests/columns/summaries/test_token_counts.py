from __future__ import annotations

import collections
import datetime as dt
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskprep.columns.summaries import TokenCounts, token_counts
from tests.columns.summaries import many_tokens
from tests.sizes import Sizes

tokens_strategy = st.lists(st.text(alphabet="aé\x00z😀", max_size=3) | st.text(max_size=20), max_size=40)

TIME = dt.datetime(1969, 1, 1)


def counted(tokens: list[str]) -> TokenCounts:
    encoded = pa.array(tokens, pa.string()).dictionary_encode()
    return TokenCounts.of(encoded.dictionary, np.bincount(encoded.indices, minlength=len(encoded.dictionary)))


def reference(tokens: list[str]) -> list[tuple[str, int]]:
    counts = collections.Counter(tokens)
    return sorted(counts.items(), key=lambda entry: (-entry[1], entry[0].encode()))


def as_pairs(ranked: tuple[pa.Array, np.ndarray]) -> list[tuple[str, int]]:
    assert ranked[1].dtype == np.int64
    return list(zip(ranked[0].to_pylist(), ranked[1].tolist(), strict=True))


@pytest.fixture
def spill_at_3(sizes: Sizes) -> None:
    sizes(spill_entries=3, spill_group_entries=5)


@given(tokens_strategy, st.none() | st.integers(0, 10), st.none() | st.integers(0, 4))
def test_rank_is_by_count_then_bytes(tokens: list[str], most_common: int | None, least: int | None) -> None:
    expected = [entry for entry in reference(tokens) if entry[1] >= (least or 1)][:most_common]
    summary = counted(tokens)
    assert as_pairs(summary.rank(most_common, least)) == expected
    assert summary.total == len(tokens)
    assert summary.top() == (reference(tokens)[0][0] if tokens else None)


@pytest.mark.usefixtures("spill_at_3")
@pytest.mark.parametrize("most_common", [None, 0, 1, 6, 100])
def test_rank_is_the_same_from_files(tmp_path: Path, most_common: int | None) -> None:
    rng = np.random.default_rng(0)
    words = [f"word {number}" for number in rng.zipf(1.3, 600) if number < 10**9]
    summary = TokenCounts(pa.string())
    for start in range(0, len(words), 60):
        summary = (summary + counted(words[start : start + 60])).limit_memory(str(tmp_path))
    summary += counted(["in memory", "word 1"])
    assert len(summary.spilled) > 3
    assert summary.entries == 2
    restored = pickle.loads(pickle.dumps(summary))
    expected = reference([*words, "in memory", "word 1"])
    assert as_pairs(restored.rank(most_common)) == expected[:most_common]
    assert as_pairs(restored.rank(most_common, 2)) == [entry for entry in expected if entry[1] > 1][:most_common]
    assert restored.top() == expected[0][0]
    assert restored.total == len(words) + 2


@pytest.mark.usefixtures("spill_at_3")
def test_frequencies_are_looked_up_in_memory_and_in_files(tmp_path: Path) -> None:
    summary = counted(list("aabcde")).limit_memory(str(tmp_path)) + counted(["a", "f"])
    assert summary.spilled
    assert summary.frequencies(pa.array(["f", "zz", "a", "c"])).tolist() == [1, 0, 3, 1]
    assert (summary * 2).frequencies(pa.array(["a"])).tolist() == [6]
    assert TokenCounts(pa.string()).frequencies(pa.array(["a"])).tolist() == [0]


@pytest.mark.usefixtures("spill_at_3")
def test_limit_memory_without_a_folder_does_not_spill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    summary = (counted(list("abcdef")) + counted(list("abcdefg"))).limit_memory(None)
    assert not summary.spilled
    assert summary.entries == 7
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("spill_at_3")
def test_compact_counts_are_added_to_spilled_ones(tmp_path: Path) -> None:
    spilled = counted(list("abcdef")).limit_memory(str(tmp_path))
    compact = (counted(["a", "b"]) + counted(["a"])).compact()
    for both in (spilled + compact, compact + spilled):
        assert both.spilled
        assert as_pairs(both.rank()) == reference([*"abcdef", "a", "b", "a"])


def test_counts_of_small_dtypes_do_not_overflow() -> None:
    for kind in (np.int32, np.uint8, np.float32):
        summary = TokenCounts.of(pa.array(["a"]), np.array([64], kind)) * 2**30
        assert (summary + summary).frequencies(pa.array(["a"])).tolist() == [2**37]


def test_frequencies_accept_strings_of_any_type() -> None:
    tokens = pa.array(["b", "x", "a"])
    for other in (tokens.cast(pa.large_string()), tokens.dictionary_encode()):
        assert counted(["a", "b", "b"]).frequencies(other).tolist() == [2, 0, 1]


def test_small_counts_do_not_spill(tmp_path: Path) -> None:
    summary = counted(list("abcdef")).limit_memory(str(tmp_path / "folder"))
    assert not summary.spilled
    assert not (tmp_path / "folder").exists()


def test_many_bytes_spill_like_many_tokens(tmp_path: Path, sizes: Sizes) -> None:
    sizes(spill_bytes=1000)
    summary = counted(["x" * 2000, "y"]).limit_memory(str(tmp_path))
    assert summary.spilled
    assert as_pairs(summary.rank()) == [("x" * 2000, 1), ("y", 1)]


@pytest.mark.usefixtures("spill_at_3")
def test_tokens_with_a_long_shared_prefix_are_distinguished(tmp_path: Path) -> None:
    words = ["p" * length + end for length in (0, 7, 8, 500, 505, 511, 512, 513, 2000) for end in "ab\x00"]
    words += ["p" * 2000 + "ab", "p" * 2000 + "a"]
    summary = (counted(words) + counted(words[::2])).limit_memory(str(tmp_path))
    assert summary.spilled
    assert as_pairs(summary.rank()) == reference(words + words[::2])


@pytest.mark.parametrize(
    ("values", "first"),
    [
        (pa.array([3, -5, 2**62], pa.int64()), -5),
        (pa.array([3.5, -5.5, 0.0]), -5.5),
        (pa.array([3, 2, 2**63], pa.uint64()), 2),
        (pa.array([dt.datetime(2024, 5, 1), dt.datetime(1969, 1, 1), dt.datetime(2030, 1, 1)]), TIME),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
@pytest.mark.usefixtures("spill_at_3")
def test_numbers_and_times_rank_by_value(tmp_path: Path, values: pa.Array, first: object) -> None:
    summary = TokenCounts.of(values, np.array([1, 1, 1]))
    assert summary.top() == first
    spilled = (summary + summary + TokenCounts.of(values[:1], np.array([5])).limit_memory(None)).limit_memory(
        str(tmp_path)
    )
    assert (spilled + TokenCounts.of(values[:1], np.array([4]))).rank(1)[1].tolist() == [11]
    assert spilled.rank()[0].to_pylist() == [values[0].as_py(), *sorted(values[1:].to_pylist())]


def test_negative_zero_counts_as_zero() -> None:
    tokens, counts = TokenCounts.of(pa.array([0.0, -0.0]), np.array([1, 2])).rank()
    assert (str(tokens[0]), counts.tolist()) == ("0.0", [3])


def test_tokens_with_count_0_are_dropped() -> None:
    summary = TokenCounts.of(pa.array(["a", "b", "c"]), np.array([0, 2, 0]))
    assert summary.entries == 1
    assert as_pairs(summary.rank()) == [("b", 2)]


def test_missing_cells_are_not_counted() -> None:
    cells = pa.array(["a", None, "b", "a", "later"])
    for some in (cells[:4], cells.dictionary_encode()[:4]):
        assert as_pairs(TokenCounts.of_cells(some).rank()) == [("a", 2), ("b", 1)]


def test_merging_compacts_after_entries_doubled(sizes: Sizes) -> None:
    sizes(compact_entries=3)
    summary = counted(list("abcd"))
    entries = []
    for _ in range(6):
        summary += counted(list("abcd"))
        entries.append(summary.entries)
    assert entries == [4, 8, 4, 8, 4, 8]


def test_many_small_summaries_are_compacted(sizes: Sizes) -> None:
    sizes(compact_chunks=5)
    summary = counted(list("abcdefgh"))  # each added summary is small compared to these
    for _ in range(100):
        summary += counted(["b"])
        assert len(summary.chunks) <= 5
    assert as_pairs(summary.rank())[:2] == [("b", 101), ("a", 1)]


def test_slice_of_a_large_dictionary_pickles_small() -> None:
    words = pa.array([f"word {number}" for number in range(10_000)])
    assert len(pickle.dumps(TokenCounts.of(words.slice(5, 10), np.ones(10)))) < 5_000


def check_many_tokens(report: dict[str, Any], tokens: int) -> None:
    repeated = range(tokens - 2000, 0, -2000)
    ordinary = [number for number in range(30_000) if number == 0 or number % 2000]
    names = [*repeated, *ordinary][: many_tokens.MOST_COMMON]
    assert report["tokens"] == [f"token-{number:08d}" for number in names]
    assert report["frequencies"] == [number + 1 if number % 2000 == 0 else 1 for number in names]
    assert report["total"] == tokens + sum(repeated)


def test_many_tokens_are_ranked_from_files(tmp_path: Path, sizes: Sizes) -> None:
    sizes(spill_entries=10_000)
    report = many_tokens.report(160_000, str(tmp_path))
    check_many_tokens(report, 160_000)
    assert report["files"] == 10


@pytest.mark.slow
def test_20_million_distinct_tokens_are_counted_within_1_gb(tmp_path: Path) -> None:
    tokens = 20_000_000
    paths = os.pathsep.join([str(Path(token_counts.__file__).parents[3]), *filter(None, sys.path)])
    command = [sys.executable, many_tokens.__file__, str(tokens), str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, check=True)
    report = json.loads(done.stdout)
    check_many_tokens(report, tokens)
    # Each of the ten merges adds 2 million tokens, the limit in memory, so every second one fills a file.
    assert report["files"] == tokens // (2 * token_counts.SPILL_ENTRIES) == 5
    assert report["peak_kib"] * 1024 < 1e9
