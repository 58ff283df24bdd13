"""Processors over a source of batches: what they change, and where they go on."""

from __future__ import annotations

import json

import pytest

import daskprep as dp
from daskprep.errors import ConfigError
from daskprep.training import Batches


class Numbers:
    """Be a stream: an epoch of numbers, which differ from epoch to epoch."""

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
    """Join batches by twos, and keep one that is waiting for another."""

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


def taken(batches, count):
    iterator = iter(batches)
    return [next(iterator) for _ in range(count)]


def test_batches_go_through_processors_groups_and_collate_in_this_order():
    said = []

    def note(name):
        return lambda batch: said.append((name, batch)) or batch

    def doubling(batches):
        for batch in batches:
            yield note("group")(batch)

    batches = Batches(Numbers(1), [note("first"), note("second")], [doubling], note("collate"))

    assert list(batches) == [0]
    assert [name for name, _ in said] == ["first", "second", "group", "collate"]


@pytest.mark.parametrize("at", [0, 1, 5, 6, 7])
def test_a_state_goes_on_with_the_rest(at):
    def both(batches):
        return list(batches) + list(batches)

    whole = both(Batches(Numbers(), [str]))
    batches = Batches(Numbers(), [str])
    first = list(batches) + taken(batches, at - 6) if at >= 6 else taken(batches, at)
    other = Batches(Numbers(), [str])
    other.load_state_dict(json.loads(json.dumps(batches.state_dict())))

    assert first + both(other)[: 12 - at] == whole


def test_iterators_that_are_asked_for_nothing_begin_no_epoch():
    batches = Batches(Numbers())
    for _ in range(3):
        iter(batches)

    assert list(batches) == list(range(6))


def test_an_iteration_that_was_left_says_no_more_where_things_stand():
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


def test_set_epoch_begins_an_epoch_or_leaves_a_loaded_state_alone():
    batches = Batches(Numbers(), limit=4)
    taken(batches, 2)
    other = Batches(Numbers(), limit=4)
    other.load_state_dict(batches.state_dict())
    other.set_epoch(0)
    assert list(other) == [2, 3]
    other.set_epoch(5)

    assert list(other) == [500, 501, 502, 503]


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_limit_gives_the_same_batches_again_and_goes_on(at):
    batches = Batches(Numbers(), epoch=0, limit=3)
    assert len(batches) == 3
    assert list(batches) + list(batches) == [0, 1, 2, 0, 1, 2]
    given = taken(batches, at)
    other = Batches(Numbers(), epoch=0, limit=3)
    other.load_state_dict(batches.state_dict())

    rest = [0, 1, 2] if at in {0, 3} else [0, 1, 2][at:]
    assert given + list(other) + list(other) == [0, 1, 2][:at] + rest + [0, 1, 2]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_group_processors_that_have_a_state_go_on_with_what_they_hold(at):
    def odd(batches):
        """Take one batch more than it gives."""
        held = []
        for batch in batches:
            held.append(batch)
            if len(held) > 1:
                yield held.pop(0)

    whole = list(Batches(Numbers(), groups=[Pairs()]))
    batches = Batches(Numbers(), groups=[Pairs()])
    first = taken(batches, at)
    other = Batches(Numbers(), groups=[Pairs()])
    other.load_state_dict(batches.state_dict())

    assert first + list(other) == whole == [(0, 1), (2, 3), (4, 5)]
    lost = Batches(Numbers(), groups=[odd])
    first = taken(lost, at)
    other = Batches(Numbers(), groups=[odd])
    other.load_state_dict(lost.state_dict())
    assert first + list(other) == [0, 1, 2, 3, 4][:at] + [[0, 1, 2, 3, 4], [2, 3, 4], [3, 4]][at]


def test_an_earlier_state_of_a_group_is_not_changed_by_what_it_takes():
    worked = [0]
    batches = Batches(Numbers(), groups=[Pairs()], counter=lambda: worked[0])
    iterator = iter(batches)
    next(iterator)
    worked[0] = 1
    next(iterator)
    other = Batches(Numbers(), groups=[Pairs()])
    other.load_state_dict(batches.state_dict())

    assert list(other) == [(2, 3), (4, 5)]


def test_a_new_epoch_begins_without_what_groups_held():
    batches = Batches(Numbers(5), groups=[Pairs()])
    taken(batches, 2)
    other = Batches(Numbers(5), groups=[Pairs()])
    other.load_state_dict(batches.state_dict(ended=True))

    assert list(other) == [(100, 101), (102, 103)]


def test_a_processor_cannot_end_an_epoch():
    def stopping(batch):
        return next(iter([]))

    for options in ({"processors": [stopping]}, {"collate": stopping}):
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(Batches(Numbers(), **options))


def test_a_state_of_other_groups_is_refused():
    batches = Batches(Numbers(), groups=[Pairs()])
    taken(batches, 1)

    with pytest.raises(ConfigError, match="with 1 stateful group processors, but there are 0"):
        Batches(Numbers()).load_state_dict(batches.state_dict())
    with pytest.raises(ConfigError, match="not a state of a Manager's batches"):
        Batches(Numbers()).load_state_dict({"epoch": 3})


def test_batches_of_groups_have_no_length():
    assert len(Batches(Numbers())) == 6
    with pytest.raises(TypeError, match="is not known in advance"):
        len(Batches(Numbers(), groups=[Pairs()]))


def test_what_a_trainer_has_not_worked_on_is_given_again():
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


def test_a_batch_that_was_fetched_ahead_is_given_again():
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


def test_a_loader_is_a_source(dataset, rows):
    loader = dataset["train"].loader(16, row_ids=True)
    whole = rows(loader)
    batches = Batches(dataset["train"].loader(16, row_ids=True))
    first = rows(taken(batches, 4))
    other = Batches(dataset["train"].loader(16, row_ids=True))
    other.load_state_dict(batches.state_dict())

    assert first + rows(other) == whole
    assert isinstance(dp.Manager(loader).data, type(loader))


def test_a_state_of_the_end_does_not_go_on_with_what_a_group_left_out():
    def by_twos(batches):
        yield from zip(batches, batches, strict=False)

    whole = Batches(Numbers(5), groups=[by_twos])
    first, second = list(whole), list(whole)
    batches = Batches(Numbers(5), groups=[by_twos])
    assert list(batches) == first
    again = Batches(Numbers(5), groups=[by_twos])
    again.load_state_dict(batches.state_dict())
    assert list(again) == second
