"""The order is a pure function: neither data nor torch are needed to test it."""

from __future__ import annotations

import dataclasses
import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from daskprep.columns.permutation import make_key, permute
from daskprep.dataset.loader.by_length import LengthSchedule
from daskprep.dataset.loader.order import EpochBlocks, Schedule, count_dealt, default_streams

# Rows, rows of a block, of a batch, and streams.
CASES = [(1000, 32, 48, 24), (403, 7, 24, 24), (403, 4096, 96, 48), (203, 1, 72, 24), (71, 32, 48, 24), (25, 5, 48, 24)]


def make_schedule(rows, block_rows, batch_size, streams, *, rank=0, world=1, given=0, drop_last=False, **options):
    """Create a schedule as a loader does: unshuffled rows come from one stream."""
    sizes = np.full(-(-rows // block_rows), block_rows)
    sizes[-1] = rows - block_rows * (len(sizes) - 1)
    shuffle = options.get("shuffle", True)
    blocks = make_blocks(sizes, block_rows, seed=options.get("seed", 0), epoch=options.get("epoch", 0), shuffle=shuffle)
    return Schedule(blocks, batch_size, streams if shuffle else 1, rank, world, drop_last, given)


def make_blocks(sizes, block_rows, **options):
    sizes = np.array(sizes)
    return EpochBlocks(sizes, block_rows, **{"firsts": np.cumsum(sizes) - sizes, "shuffle": True, **options})


def batches_of(schedule, batches=None):
    """Return the rows of each batch of a rank."""
    batches = range(len(schedule)) if batches is None else batches
    if not batches:
        return []
    plan = schedule.window(batches)
    rows = np.full(plan.sizes.sum(), -1)
    for position, within, targets in plan.by_block():
        rows[targets] = schedule.blocks.row_numbers(position)[within]
    return np.split(rows, np.cumsum(plan.sizes)[:-1])


def global_batches(*case, world=1, **options):
    """Return the rows of each batch of all ranks together, sorted."""
    ranks = [batches_of(make_schedule(*case, rank=rank, world=world, **options)) for rank in range(world)]
    return [np.sort(np.concatenate(parts)) for parts in zip(*ranks, strict=True)]


def join_short(batches, world, count=None):
    """Return batches with the last two as one if the last has fewer rows than ranks, or down to `count` batches."""
    is_short = len(batches) > 1 and len(batches[-1]) < world if count is None else len(batches) > count
    return [*batches[:-2], np.sort(np.concatenate(batches[-2:]))] if is_short else batches


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shuffle", [True, False])
def test_epoch_contains_every_row_once(case, shuffle):
    rows = np.concatenate(batches_of(make_schedule(*case, shuffle=shuffle)))
    np.testing.assert_array_equal(np.sort(rows), np.arange(case[0]))
    assert np.array_equal(rows, np.arange(case[0])) is not shuffle


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("world", [2, 3, 4, 6, 8, 24])
def test_global_batches_do_not_depend_on_ranks(case, drop_last, world):
    expected = join_short(global_batches(*case, drop_last=drop_last), world)
    assert_equal(join_short(global_batches(*case, world=world, drop_last=drop_last), world, len(expected)), expected)


def test_order_matches_released_version():
    first = batches_of(make_schedule(1003, 32, 48, 24, seed=5, epoch=3))[0]
    assert first.tolist()[:8] == [677, 680, 741, 743, 810, 821, 843, 854]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("first", "step"), [(0, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize("size", [1, 3])
def test_batches_do_not_depend_on_windows(case, first, step, size):
    schedule = make_schedule(*case, rank=1, world=2)
    expected = batches_of(schedule)[first::step]
    batches = range(first, len(schedule), step)
    windows = [batches[start : start + size] for start in range(0, len(batches), size)]
    assert_equal([one for window in windows for one in batches_of(schedule, window)], expected)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("world", [1, 4, 24])
def test_ranks_have_equal_batch_counts_for_any_remainder(shuffle, world):
    for rows in range(24, 121, 3 if world == 24 else 1):
        shares = [make_schedule(rows, 10, 48, 24, rank=rank, world=world, shuffle=shuffle) for rank in range(world)]
        sizes = np.array([schedule.window(range(len(schedule))).sizes for schedule in shares])
        assert sizes.sum() == rows
        assert sizes.min() >= 1
        assert (sizes[:, :-2] == 48 // world).all()
        assert sizes.sum(axis=0).max() <= 48
        assert np.ptp(sizes, axis=0).max() <= 1
        assert sizes.shape[1] == -(-rows // 48)


@pytest.mark.parametrize("shuffle", [True, False])
def test_drop_last_yields_only_full_batches(shuffle):
    for rows in (24, 47, 48, 95, 96, 143, 144):
        schedule = make_schedule(rows, 10, 48, 24, drop_last=True, shuffle=shuffle)
        assert [len(batch) for batch in batches_of(schedule)] == [48] * (rows // 48)
        assert schedule.rows_yielded(len(schedule)) == rows


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("world", [8])
def test_resumed_schedule_yields_remaining_batches(case, world):
    whole = make_schedule(*case)
    before = batches_of(whole)
    for stop in range(len(whole)):
        left = global_batches(*case, world=world, given=whole.rows_yielded(stop))
        assert_equal(left, [np.sort(batch) for batch in before[stop:]])


@pytest.mark.parametrize("batch_size", [24, 72, 96])
def test_resume_with_other_batch_size_yields_remaining_rows(batch_size):
    whole = make_schedule(1003, 32, 48, 24)
    before = batches_of(whole)
    for stop in range(len(whole)):
        left = batches_of(make_schedule(1003, 32, batch_size, 24, given=whole.rows_yielded(stop)))
        np.testing.assert_array_equal(np.sort(np.concatenate(before[:stop] + left)), np.arange(1003))


def test_orders_differ_by_seed_and_epoch():
    orders = [
        np.concatenate(batches_of(make_schedule(1003, 32, 48, 24, seed=seed, epoch=epoch)))
        for seed, epoch in itertools.product((0, 1), (0, 1))
    ]
    for one, other in itertools.combinations(orders, 2):
        assert np.mean(one == other) < 0.02


def test_batches_contain_one_block_per_stream():
    for batch in batches_of(make_schedule(10_000, 100, 64, 16))[:-1]:
        assert len(np.unique(batch // 100)) >= 16


def test_ranks_share_at_most_one_block():
    blocks = [
        set((np.concatenate(batches_of(make_schedule(9_600, 100, 48, 24, rank=rank, world=4))[:-1]) // 100).tolist())
        for rank in range(4)
    ]
    assert all(len(one & other) <= 1 for one, other in itertools.combinations(blocks, 2))


def random_schedules():
    """Yield small schedules of every kind, and some batches of each."""
    rng = np.random.default_rng(0)
    while True:
        streams, world = (int(number) for number in rng.choice([1, 2, 3, 4, 6, 12], 2))
        batch_size, block_rows = 12 * int(rng.integers(1, 4)), int(rng.choice([1, 2, 3, 5, 7, 30]))
        options = {"shuffle": streams > 1, "drop_last": bool(rng.integers(2)), "rank": int(rng.integers(world))}
        schedule = make_schedule(int(rng.integers(12, 130)), block_rows, batch_size, streams, world=world, **options)
        if len(schedule):
            batches = range(int(rng.integers(len(schedule))), len(schedule), int(rng.integers(1, 4)))
            yield schedule, batches[: int(rng.integers(1, 5))]


def test_runs_are_rows_of_batches_in_order():
    for schedule, batches in itertools.islice(random_schedules(), 600):
        plan = schedule.window(batches)
        expected = [
            schedule.blocks.row_numbers(block)[first : first + count]
            for block, first, count in zip(plan.blocks, plan.firsts, plan.counts, strict=True)
        ]
        np.testing.assert_array_equal(np.concatenate(batches_of(schedule, batches)), np.concatenate(expected))
        assert plan.counts.min() > 0
        assert plan.block_positions == sorted({part.block_position for part in plan.by_block()})
        assert {*plan.block_positions} <= {*schedule.block_positions(batches)}


@pytest.mark.parametrize("by_length", [False, True])
def test_first_batches_are_those_of_all_ranks(by_length):
    rng = np.random.default_rng(1)
    for _ in range(150):
        world, rows, batch_size = int(rng.choice([1, 2, 3, 4, 6, 12])), int(rng.integers(12, 130)), 12
        case = (rows, int(rng.choice([1, 3, 7, 30])), batch_size, int(rng.choice([2, 3, 4, 6])))
        options = {"drop_last": bool(rng.integers(2)), "given": batch_size * int(rng.integers(0, rows // batch_size))}
        schedules = [make_schedule(*case, rank=rank, world=world, **options) for rank in range(world)]
        if by_length:
            lengths = rng.integers(1, 9, rows)
            kept = [{field.name: getattr(one, field.name) for field in dataclasses.fields(one)} for one in schedules]
            schedules = [LengthSchedule(**fields, lengths=lengths) for fields in kept]
        batches = [np.concatenate(parts) for parts in zip(*map(batches_of, schedules), strict=True)]
        expected = np.full(rows, len(batches))
        for number, members in enumerate(batches):
            expected[members] = number
        alone = dataclasses.replace(schedules[0], rank=0, world_size=1, sharers=world)
        np.testing.assert_array_equal(alone.first_batches(np.arange(rows)), expected)


def test_unread_blocks_are_those_of_later_batches():
    for schedule, batches in itertools.islice(random_schedules(), 600):
        batch = batches[0]
        mask = schedule.mask_unread(np.arange(len(schedule.blocks.order)), batch)
        left = schedule.window(range(batch, len(schedule))).block_positions
        assert mask[left].all()
        # Blocks count as unread that have rows of other ranks, dropped rows, or rows of the last round of streams.
        is_exact = schedule.world_size == 1 and not schedule.drop_last
        if is_exact and schedule.blocks.rows - schedule.rows_yielded(batch) >= schedule.streams:
            assert np.flatnonzero(mask).tolist() == left


def test_block_positions_are_blocks_of_consecutive_batches():
    for schedule, batches in itertools.islice(random_schedules(), 600):
        if schedule.world_size == batches.step == 1:
            assert schedule.block_positions(batches) == schedule.window(batches).block_positions


def test_open_blocks_are_streams_with_rows_of_rank():
    for schedule, _ in itertools.islice(random_schedules(), 300):
        if not schedule.full_batches:
            continue
        borders = count_dealt(schedule.blocks.rows, schedule.streams)
        plan = schedule.window(range(schedule.full_batches))
        first = schedule.blocks.starts[plan.blocks] + plan.firsts
        assert schedule.open_blocks == len(np.unique(np.searchsorted(borders, first, side="right")))


@pytest.mark.parametrize(
    ("rows", "streams", "sizes"),
    [(9, 2, (4, 4, 1)), (10, 2, (4, 4, 2)), (1, 2, (1,)), (8, 2, (4, 4)), (9, 1, (4, 4, 1)), (11, 4, (4, 4, 3))],
)
def test_remainder_is_a_smaller_batch(rows, streams, sizes):
    schedule = make_schedule(rows, 10, 4, streams)
    assert len(schedule) == len(sizes)
    assert tuple(schedule.window(range(len(sizes))).sizes) == sizes


def test_finished_epoch_has_no_batches():
    assert len(make_schedule(48, 10, 24, 12, given=48)) == 0


def test_batch_of_a_billion_rows_is_located_without_ordering_rows(monkeypatch):
    schedule = make_schedule(10**9, 32_768, 1024, 16, given=512_000 * 1024)
    monkeypatch.setattr(EpochBlocks, "row_order", lambda self, block: pytest.fail("the rows of a block were ordered"))
    plan = schedule.window(range(1000, 1001))
    assert plan.sizes.tolist() == [1024]
    assert len(plan.blocks) <= 32


@pytest.mark.parametrize(
    ("batch_size", "streams"),
    [
        (1024, 16),
        (1, 1),
        (7, 7),
        (48, 16),
        (20, 20),
        (100, 20),
        (63, 21),
        (34, 17),
        (65, 13),
        (131, 131),
        (134, 67),
        (30, 30),
        (60, 20),
        (67 * 8, 8),
        (71 * 7, 71),
        (128, 16),
        (194, 97),
        (251, 251),
        (257, 16),
        (499, 16),
        (1018, 16),
        (1285, 16),
        (4106, 16),
    ],
)
def test_default_streams_for_batch_size(batch_size, streams):
    assert default_streams(batch_size) == streams


def test_default_streams_are_at_least_8():
    streams = {size: default_streams(size) for size in range(1, 4097)}
    assert all(min(size, 8) <= found <= 256 for size, found in streams.items())
    # Nothing from 8 to 256 divides the batches that 16 streams give unequal numbers of rows.
    unequal = [size for size, found in streams.items() if size % found]
    assert unequal[:2] == [257, 263]
    assert all(size % divisor for size in unequal for divisor in range(8, 257))
    assert {streams[size] for size in unequal} == {16}
    assert max(found for size, found in streams.items() if size % 16 == 0) == 16


@pytest.mark.parametrize("batch_size", [499, 997, 1018, 1024])
def test_batches_mix_blocks_for_any_batch_size(batch_size):
    batches = batches_of(make_schedule(50_000, 100, batch_size, default_streams(batch_size)))
    counts = np.array([np.bincount(batch // 100).max() for batch in batches[:-1]])
    assert min(len(np.unique(batch // 100)) for batch in batches[:-1]) >= 16
    assert counts.max() <= 100


def released_batch(rows, block_rows, batch_size, streams, batch):
    """Return the rows of a full batch in the order of versions in which streams divided ranks and batches."""
    blocks = make_schedule(rows, block_rows, batch_size, streams).blocks
    sequence = np.concatenate([blocks.row_numbers(position) for position in range(len(blocks.order))])
    short, longer = divmod(rows, streams)
    numbers, each = np.arange(streams), batch_size // streams
    starts = numbers * short + np.minimum(numbers, longer) + batch * each
    return sequence[(starts[:, None] + np.arange(each)).ravel()]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_ranks_dividing_streams_keep_released_order(case):
    for world in (world for world in range(1, 25) if case[3] % world == 0):
        for rank in range(world):
            schedule = make_schedule(*case, rank=rank, world=world)
            own = case[2] // world
            for batch, rows in enumerate(batches_of(schedule)[: schedule.full_batches]):
                expected = released_batch(*case, batch)[rank * own : (rank + 1) * own]
                np.testing.assert_array_equal(rows[:own], expected)


@pytest.mark.slow
@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
    world=st.integers(1, 12),
    batch_size=st.integers(1, 4096),
    rows=st.integers(1, 20_000),
    streams=st.sampled_from([None, 1, 5, 16, 60]),
    given=st.integers(0, 3),
    step=st.integers(1, 3),
)
def test_any_number_of_ranks_share_batches_of_any_size(world, batch_size, rows, streams, given, step):
    hypothesis.assume(world <= batch_size and rows - given * batch_size >= world)
    streams = default_streams(batch_size) if streams is None else streams
    case, given = (rows, 100, batch_size, streams), given * batch_size
    ranks = [make_schedule(*case, rank=rank, world=world, given=given) for rank in range(world)]
    shares = [batches_of(schedule, range(0, len(schedule), step)) for schedule in ranks]
    joined = [np.sort(np.concatenate(parts)) for parts in zip(*shares, strict=True)]
    sizes = np.array([[len(part) for part in parts] for parts in shares])
    assert sizes.min() >= 1
    assert np.ptp(sizes, axis=0).max() <= 1
    assert max(map(len, joined)) <= batch_size or batch_size < 2 * world  # ranks with one row cannot share more batches
    alone = [np.sort(batch) for batch in batches_of(make_schedule(*case, given=given))]
    if len(alone) > 1 and len(alone[-1]) < world:  # what is left are fewer rows than ranks
        assert batch_size < 2 * world or ranks[0].last_sizes == (len(alone[-1]) + batch_size - world, world)
        alone, joined = (batches[: len(alone) - 2 : step] for batches in (alone, joined)) if step == 1 else ([], [])
    assert_equal(joined, alone[::step])
    if step == 1 and not given:
        found = np.sort(np.concatenate([part for parts in shares for part in parts]))
        np.testing.assert_array_equal(found, np.arange(rows))


def test_small_blocks_are_ordered_as_if_permuted_separately():
    sizes = np.array([7, 7, 7, 7, 7, 3])
    together = make_blocks(sizes, 7, seed=5, epoch=2)
    for block, size in enumerate(sizes):
        alone = permute(np.arange(size), int(size), make_key(5, "rows", 2, block))
        np.testing.assert_array_equal(together.row_order(block), alone)


@pytest.mark.parametrize("sizes", [[4, 4, 1], [4, 1, 4]])
def test_row_numbers_start_at_first_row_of_block(sizes):
    blocks = make_blocks(sizes, 4, seed=1, epoch=0)
    expected = np.split(np.arange(9), np.cumsum(sizes)[:-1])
    for place, block in enumerate(blocks.order.tolist()):
        assert sorted(blocks.row_numbers(place).tolist()) == expected[block].tolist()


class EveryRowTwice:
    def rows(self, block, epoch):
        return np.repeat(np.arange(3) + 10 * epoch, 2)


@pytest.mark.parametrize("shuffle", [True, False])
def test_sampling_selects_rows_of_block(shuffle):
    blocks = make_blocks([6, 6], 3, seed=1, epoch=2, shuffle=shuffle, sampling=EveryRowTwice())
    found = blocks.row_order(1).tolist()
    assert sorted(found) == [20, 20, 21, 21, 22, 22]
    assert (found == sorted(found)) is not shuffle


def test_orders_of_large_blocks_are_not_cached():
    blocks = make_blocks([10_000] * 5, 10_000, seed=1, epoch=0)
    for block in range(5):
        alone = permute(np.arange(10_000), 10_000, make_key(1, "rows", 0, block))
        np.testing.assert_array_equal(blocks.row_order(block), alone)
        assert blocks.row_order(block) is not blocks.row_order(block)
    small = make_blocks([10] * 5, 10, seed=1, epoch=0)
    assert small.row_order(3) is small.row_order(3)
