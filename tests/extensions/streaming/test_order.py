"""Windows are a pure function of sizes, seed and epoch, which ranks share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskprep.dataset.loader.order import Schedule
from daskprep.errors import ConfigError
from daskprep.extensions.streaming.windows import StreamOrder, check_window, compute_rank_share


def windows_of(sizes, rows, epoch=1, *, shuffle=True):
    return StreamOrder(np.array(sizes), rows, 0, shuffle).epoch(epoch)


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=30).filter(any),
    st.integers(1, 100),
    st.integers(0, 3),
    st.booleans(),
)
def test_windows_contain_every_row_once(sizes, rows, epoch, shuffle):
    windows = windows_of(sizes, rows, epoch, shuffle=shuffle)
    row_numbers = np.concatenate([windows.row_numbers(place) for place in range(len(windows.sizes))])
    np.testing.assert_array_equal(np.sort(row_numbers), np.arange(sum(sizes)))
    assert all(
        size <= rows or len(list(windows.window_partitions(place))) == 1 for place, size in enumerate(windows.sizes)
    )
    if not shuffle:
        np.testing.assert_array_equal(row_numbers, np.arange(sum(sizes)))


def test_first_windows_grow_from_one_partition():
    counts = [len(list(windows_of([10] * 20, 1000, 0).window_partitions(place))) for place in range(5)]
    assert counts == [1, 2, 4, 8, 5]
    assert len(windows_of([10] * 20, 1000, 1).sizes) == 1


def test_epochs_differ_across_and_within_windows():
    one, other = windows_of([10] * 20, 50, 1), windows_of([10] * 20, 50, 2)
    assert not np.array_equal(one.partitions, other.partitions)
    assert not np.array_equal(one.row_numbers(0) % 10, other.row_numbers(0) % 10)


@given(st.integers(1, 200), st.integers(4, 48), st.sampled_from([1, 2, 3, 4]), st.integers(0, 3), st.booleans())
def test_rank_shares_match_schedule(rows, batch_size, world, before, drop_last):
    windows = windows_of([rows], rows)
    given_rows = min(rows, before * batch_size)
    schedules = [Schedule(windows, batch_size, 1, rank, world, drop_last, given_rows) for rank in range(world)]
    positions = np.arange(rows)
    owners = np.zeros(rows, np.int64)
    for schedule in schedules:
        share = compute_rank_share(schedule)
        rank_positions = share.rank_positions(positions)
        owned = positions[rank_positions >= 0]
        owners[owned] += 1
        expected = schedule.window(range(len(schedule))).sizes if len(schedule) else ()
        np.testing.assert_array_equal(np.sort(rank_positions[owned]), np.arange(sum(expected)))
        assert [share.count_before(position) for position in range(rows + 1)] == [
            (owned < p).sum() for p in range(rows + 1)
        ]
    # Fewer remaining rows than ranks without a batch before them form no batch.
    last = schedules[0].rows_before + schedules[0].full_batches * batch_size if drop_last else rows
    np.testing.assert_array_equal(owners, (positions >= given_rows) & (positions < last))


def test_partition_larger_than_window_raises():
    with pytest.raises(ConfigError, match=r'window="1KB".*partition 1 has 200 rows.*2,000 bytes'.replace('"', "'")):
        check_window(np.array([10, 200, 3]), 10, 1000, "1KB")
    assert check_window(np.array([10, 100, 3]), 10, 1000, "1KB") == 50
