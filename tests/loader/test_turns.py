"""The interval at which threads take turns is the process's: it is short only while batches are made."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

SHORT = pytest.approx(0.0005)


@pytest.fixture(autouse=True)
def _before(monkeypatch) -> Iterator[None]:
    monkeypatch.delenv("DASKPREP_SHORT_TURNS", raising=False)
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_turns_are_short_while_any_loader_runs(train):
    before, intervals = sys.getswitchinterval(), []
    one, other = iter(train.loader(64, threads=1)), iter(train.loader(64, threads=1))
    for batches in (one, other):
        next(batches)
        intervals.append(sys.getswitchinterval())
    one.close()
    intervals.append(sys.getswitchinterval())
    other.close()
    assert intervals == [SHORT] * 3
    assert sys.getswitchinterval() == before


def test_without_threads_turns_are_left_alone(train):
    before = sys.getswitchinterval()
    batches = iter(train.loader(64, prefetch_size=0))
    next(batches)
    assert sys.getswitchinterval() == before


def test_turns_are_as_before_after_an_epoch(train):
    before = sys.getswitchinterval()
    assert len(list(train.loader(64, threads=1))) > 1
    assert sys.getswitchinterval() == before


def test_turns_are_as_before_after_an_iteration_that_is_left(train):
    before = sys.getswitchinterval()
    for _ in train.loader(64, threads=1):
        assert sys.getswitchinterval() == SHORT
        break
    assert sys.getswitchinterval() == before


def test_turns_are_as_before_after_an_error(train):
    def fail(batch):
        assert sys.getswitchinterval() == SHORT
        raise ValueError("odd batch")

    before = sys.getswitchinterval()
    with pytest.raises(ValueError, match="odd batch"):
        list(train.loader(64, threads=1, transform=fail))
    assert sys.getswitchinterval() == before


def test_turns_that_were_shorter_stay(train):
    sys.setswitchinterval(0.0001)
    next(iter(train.loader(64, threads=1)))
    assert sys.getswitchinterval() == pytest.approx(0.0001, abs=2e-6)  # Python cuts to whole microseconds


def test_what_somebody_else_sets_meanwhile_stays(train):
    batches = iter(train.loader(64, threads=1))
    next(batches)
    sys.setswitchinterval(0.002)
    batches.close()
    assert sys.getswitchinterval() == pytest.approx(0.002)


def test_switched_off_turns_are_left_alone(train, monkeypatch):
    monkeypatch.setenv("DASKPREP_SHORT_TURNS", "0")
    before = sys.getswitchinterval()
    batches = iter(train.loader(64, threads=1))
    next(batches)
    assert sys.getswitchinterval() == before
    monkeypatch.delenv("DASKPREP_SHORT_TURNS")
    batches.close()
    assert sys.getswitchinterval() == before
    batches = iter(train.loader(64, threads=1))
    next(batches)
    assert sys.getswitchinterval() == SHORT
