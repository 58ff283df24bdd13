from __future__ import annotations

import operator

import pyarrow as pa
import pytest

from daskprep.summaries import FileSample, Rejects

PATHS = pa.array(["a.png", None, "b.png", None])
DATA = pa.array([None, b"xy", None, None], pa.large_binary())


def test_paths_and_bytes_are_counted_and_sampled() -> None:
    sample = FileSample.of(PATHS, DATA, 4, lambda content: content.to_pybytes())
    assert (sample.limit, sample.cells, sample.bytes) == (4, 4, 12)
    assert sorted((file.path, file.facts) for file in sample.files) == [("", b"xy"), ("a.png", None), ("b.png", None)]


def test_without_a_limit_nothing_is_sampled() -> None:
    sample = FileSample.of(PATHS, DATA, 0, lambda content: pytest.fail("a file was looked at"))
    assert (sample.cells, sample.bytes, sample.files) == (4, 12, ())


def test_the_larger_limit_holds() -> None:
    one, none = (FileSample.of(PATHS[:1], DATA[:1], limit, bytes) for limit in (1, 0))
    both = one + FileSample.of(PATHS[2:], DATA[2:], 2, bytes)
    assert (both.limit, len(both.files)) == (2, 2)
    assert (one + none).files == (none + one).files == one.files


def test_another_summary_cannot_be_added() -> None:
    with pytest.raises(TypeError):
        operator.add(FileSample(), Rejects())
