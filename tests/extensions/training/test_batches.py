"""Processors over a source of batches, and how they resume."""

from __future__ import annotations

import json

import pytest

import daskprep as dp
from daskprep.errors import ConfigError
from daskprep.extensions.training import Batches


class Numbers:
    """A stream of numbers that differ by epoch."""

    def __init__(self, count=6):
        self.count, self.epoch, self.given, self.begun = count, 0, 0, False

    def __iter__(self):
        if self.begun:
            self.epoch, self.given, self.begun = self.epoch + 1, 0, False
        for number in range(self.given, self.count):
            self.begun, self.given = True, number + 1
            yield self.epoch * 100 + number

    def __len__(self):
        return self.count

    def set_epoch(self, epoch):
        if epoch != self.epoch or self.begun:
            self.epoch, self.given, self.begun = epoch, 0, False

    def state_dict(self):
        return {"epoch": self.epoch, "given": self.given}

    def load_state_dict(self, state):
        ended = state["given"] == self.count
        self.epoch, self.given = state["epoch"] + ended, 0 if ended else state["given"]
        self.begun = False


class Pairs:
    """Join batches in pairs, and keep one that waits for another."""

    def __init__(self):
        self.waiting, self.loaded = [], False

    def __call__(self, batches):
        if not self.loaded:
            self.waiting = []
        self.loaded = False
        for batch in batches:
            self.waiting.append(batch)
            if len(self.waiting) == 2:
                pair, self.waiting = tuple(self.waiting), []
                yield pair

    def state_dict(self):
        return {"waiting": self.waiting}

    def load_state_dict(self, state):
        self.waiting, self.loaded = list(state["waiting"]), True


def take(batches, count):
    iterator = iter(batches)
    return [next(iterator) for _ in range(count)]


def test_order_is_processors_groups_collate():
    calls = []

    def note(name):
        return lambda batch: calls.append((name, batch)) or batch

    def doubling(batches):
        for batch in batches:
            yield note("group")(batch)

    batches = Batches(Numbers(1), [note("first"), note("second")], [doubling], note("collate"))

    assert list(batches) == [0]
    assert [name for name, _ in calls] == ["first", "second", "group", "collate"]


@pytest.mark.parametrize("at", [0, 1, 5, 6, 7])
def test_resume_yields_remaining_batches(at):
    def both(batches):
        return list(batches) + list(batches)

    whole = both(Batches(Numbers(), [str]))
    batches = Batches(Numbers(), [str])
    first = list(batches) + take(batches, at - 6) if at >= 6 else take(batches, at)
    other = Batches(Numbers(), [str])
    other.load_state_dict(json.loads(json.dumps(batches.state_dict())))

    assert first + both(other)[: 12 - at] == whole


def test_unused_iterators_do_not_start_an_epoch():
    batches = Batches(Numbers())
    for _ in range(3):
        iter(batches)

    assert list(batches) == list(range(6))


def test_abandoned_iterator_does_not_change_state():
    batches = Batches(Numbers(), limit=5)
    old = iter(batches)
    next(old)
    new = iter(batches)
    assert [next(new), next(new)] == [100, 101]
    before = batches.state_dict()
    next(old)
    assert batches.state_dict() == before
    next(new)

    assert batches.state_dict()["given"] == 3


def test_set_epoch_keeps_loaded_state_of_same_epoch():
    batches = Batches(Numbers(), limit=4)
    take(batches, 2)
    other = Batches(Numbers(), limit=4)
    other.load_state_dict(batches.state_dict())
    other.set_epoch(0)
    assert list(other) == [2, 3]
    other.set_epoch(5)

    assert list(other) == [500, 501, 502, 503]


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_limit_repeats_same_batches_and_resumes(at):
    batches = Batches(Numbers(), epoch=0, limit=3)
    assert len(batches) == 3
    assert list(batches) + list(batches) == [0, 1, 2, 0, 1, 2]
    first = take(batches, at)
    other = Batches(Numbers(), epoch=0, limit=3)
    other.load_state_dict(batches.state_dict())

    rest = [0, 1, 2] if at in {0, 3} else [0, 1, 2][at:]
    assert first + list(other) + list(other) == [0, 1, 2][:at] + rest + [0, 1, 2]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_stateful_group_processors_resume_with_buffered_batches(at):
    def odd(batches):
        """Read one batch ahead."""
        held = []
        for batch in batches:
            held.append(batch)
            if len(held) > 1:
                yield held.pop(0)

    whole = list(Batches(Numbers(), groups=[Pairs()]))
    batches = Batches(Numbers(), groups=[Pairs()])
    first = take(batches, at)
    other = Batches(Numbers(), groups=[Pairs()])
    other.load_state_dict(batches.state_dict())

    assert first + list(other) == whole == [(0, 1), (2, 3), (4, 5)]
    lost = Batches(Numbers(), groups=[odd])
    first = take(lost, at)
    other = Batches(Numbers(), groups=[odd])
    other.load_state_dict(lost.state_dict())
    assert first + list(other) == [0, 1, 2, 3, 4][:at] + [[0, 1, 2, 3, 4], [2, 3, 4], [3, 4]][at]


def test_saved_group_state_is_not_modified_later():
    worked = [0]
    batches = Batches(Numbers(), groups=[Pairs()], counter=lambda: worked[0])
    iterator = iter(batches)
    next(iterator)
    worked[0] = 1
    next(iterator)
    other = Batches(Numbers(), groups=[Pairs()])
    other.load_state_dict(batches.state_dict())

    assert list(other) == [(2, 3), (4, 5)]


def test_new_epoch_clears_group_state():
    batches = Batches(Numbers(5), groups=[Pairs()])
    take(batches, 2)
    other = Batches(Numbers(5), groups=[Pairs()])
    other.load_state_dict(batches.state_dict(ended=True))

    assert list(other) == [(100, 101), (102, 103)]


def test_stop_iteration_in_processor_raises():
    def stopping(batch):
        return next(iter([]))

    for options in ({"processors": [stopping]}, {"collate": stopping}):
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(Batches(Numbers(), **options))


def test_state_with_other_groups_raises():
    batches = Batches(Numbers(), groups=[Pairs()])
    take(batches, 1)

    with pytest.raises(ConfigError, match="has 1 stateful group processors, not 0"):
        Batches(Numbers()).load_state_dict(batches.state_dict())
    with pytest.raises(ConfigError, match="not a state of a Manager's batches"):
        Batches(Numbers()).load_state_dict({"epoch": 3})


def test_len_with_groups_raises():
    assert len(Batches(Numbers())) == 6
    with pytest.raises(TypeError, match="is not known in advance"):
        len(Batches(Numbers(), groups=[Pairs()]))


def test_state_excludes_unprocessed_batches():
    worked = [0]
    batches = Batches(Numbers(), counter=lambda: worked[0])
    iterator = iter(batches)
    states = []
    for done in range(1, 4):
        next(iterator)
        states.append(batches.state_dict()["source"]["given"])
        worked[0] = done
        states.append(batches.state_dict()["source"]["given"])

    assert states == [0, 1, 1, 2, 2, 3]


def test_state_excludes_batch_fetched_ahead():
    worked = [41]  # As of a checkpoint.
    batches = Batches(Numbers(), counter=lambda: worked[0])
    iterator = iter(batches)
    next(iterator)
    states = []
    for done in range(42, 45):
        next(iterator)
        states.append(batches.state_dict(ahead=1)["source"]["given"])
        worked[0] = done
        states.append(batches.state_dict(ahead=1)["source"]["given"])

    assert states == [0, 1, 1, 2, 2, 3]


def test_loader_as_source_resumes(dataset, rows):
    loader = dataset["train"].loader(16, row_ids=True)
    whole = rows(loader)
    batches = Batches(dataset["train"].loader(16, row_ids=True))
    first = rows(take(batches, 4))
    other = Batches(dataset["train"].loader(16, row_ids=True))
    other.load_state_dict(batches.state_dict())

    assert first + rows(other) == whole
    assert isinstance(dp.Manager(loader).data, type(loader))


def test_state_at_end_skips_batches_dropped_by_group():
    def by_twos(batches):
        yield from zip(batches, batches, strict=False)

    whole = Batches(Numbers(5), groups=[by_twos])
    first, second = list(whole), list(whole)
    batches = Batches(Numbers(5), groups=[by_twos])
    assert list(batches) == first
    again = Batches(Numbers(5), groups=[by_twos])
    again.load_state_dict(batches.state_dict())
    assert list(again) == second
