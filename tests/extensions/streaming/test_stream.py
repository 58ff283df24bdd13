"""Streams yield the rows of a loader over the written dataset, in a fixed order."""

from __future__ import annotations

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader

import daskprep as dp

pytestmark = pytest.mark.filterwarnings("ignore:.* are left out:UserWarning")

SOURCES = ["pandas", "dask", "parquet"]
WINDOW = 60_000


@pytest.fixture(scope="module")
def dataset(prep, path, tmp_path_factory):
    return prep.write(str(path), tmp_path_factory.mktemp("written") / "rows.dp")


@pytest.fixture
def source(request, table, parts):
    """The same rows in different partitions."""
    return {
        "pandas": lambda: table,
        "dask": lambda: dd.from_pandas(table, npartitions=7, sort=False),
        "parquet": lambda: parts,
    }[request.param]()


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        torch.testing.assert_close(found[name], column, rtol=0, atol=0, equal_nan=True, msg=name)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("source", SOURCES, indirect=True)
def test_every_epoch_equals_loader_rows_and_values(prep, dataset, source, split, joined):
    stream = prep.stream(source, 48, split=split, row_ids=True, window="1MB", epochs=2)
    batches = list(stream)
    expected = joined(dataset[split].loader(48, row_ids=True))
    assert len(batches) == len(stream) == 2 * len(dataset[split].loader(48))
    for epoch in (batches[: len(batches) // 2], batches[len(batches) // 2 :]):
        same(joined(epoch), expected)


@pytest.mark.parametrize("options", [{"expand": False}, {"columns": ["review_word", "price"]}, {"columns": "sold"}])
def test_batch_options_equal_loader(prep, dataset, parts, joined, options):
    stream = prep.stream(parts, 48, row_ids=True, window=WINDOW, **options)
    same(joined(stream), joined(dataset["train"].loader(48, row_ids=True, **options)))


def test_targets_and_transform_equal_loader(prep, dataset, parts):
    options = {"shuffle": False, "targets": ["sold", "city"], "transform": lambda pair: [pair[0]["price"], pair[1]]}
    pairs = zip(prep.stream(parts, 48, window=WINDOW, **options), dataset["train"].loader(48, **options), strict=True)
    for (prices, targets), (prices_expected, targets_expected) in pairs:
        assert torch.equal(prices, prices_expected)
        same(targets, targets_expected)


def test_shuffle_false_preserves_source_order(prep, dataset, parts, numbers):
    stream = prep.stream(parts, 48, shuffle=False, row_ids=True, window=WINDOW)
    expected = dataset["train"].read("row_id")["row_id"]
    np.testing.assert_array_equal(np.concatenate(numbers(stream)), expected)


def test_known_row_counts_need_no_read(simple, gated):
    stream = simple.stream(gated, 48)
    assert gated.read_partitions == []
    assert len(stream) == 21


@pytest.mark.parametrize(("columns", "passes"), [(["price"], 0), (["price", "area"], 1)])
def test_counting_pass_only_for_selected_columns_with_fill(table, gated, columns, passes):
    features = {"price": "number", "area": dp.Number(missing_value_strategy="bfill")}
    dp.Preprocessor(features).fit(table).stream(gated, 48, columns=columns)
    assert len(gated.read_partitions) == passes * gated.npartitions


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"threads": 1}, {"threads": 5}, {"device": "cpu"}, {"expand": False}, {"transform": lambda batch: batch}],
)
def test_order_depends_only_on_seed_and_window(prep, parts, numbers, options):
    first = numbers(prep.stream(parts, 48, row_ids=True, window=WINDOW, threads=2))
    again = numbers(prep.stream(parts, 48, row_ids=True, window=WINDOW, **options))
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_order_does_not_depend_on_scheduler(prep, table, numbers):
    frame = dd.from_pandas(table, npartitions=7, sort=False)
    found = []
    for scheduler in ("sync", "threads"):
        with dask.config.set(scheduler=scheduler):
            found.append(np.concatenate(numbers(prep.stream(frame, 48, row_ids=True, window=WINDOW))))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("changed", [{"seed": 1}, {"window": 90_000}])
def test_order_differs_by_seed_and_window(prep, parts, numbers, changed):
    options = {"row_ids": True, "window": WINDOW}
    one = np.concatenate(numbers(prep.stream(parts, 48, **options)))
    other = np.concatenate(numbers(prep.stream(parts, 48, **{**options, **changed})))
    assert not np.array_equal(one, other)
    np.testing.assert_array_equal(np.sort(one), np.sort(other))


@pytest.mark.slow
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [12, 60, 984])
def test_global_batches_do_not_depend_on_ranks(simple, parts, numbers, batch_size, drop_last):
    options = {"row_ids": True, "window": WINDOW, "drop_last": drop_last, "epochs": 2, "uneven": True}
    alone = numbers(simple.stream(parts, batch_size, **options))
    for world in (2, 3, 7):
        streams = [simple.stream(parts, batch_size, rank=rank, world_size=world, **options) for rank in range(world)]
        ranks = [numbers(stream) for stream in streams]
        assert {len(rank) for rank in ranks} == {len(alone)} == {len(streams[0])}
        for whole, *shares in zip(alone, *ranks, strict=True):
            np.testing.assert_array_equal(np.concatenate(shares), whole)
        assert sum(stream.audit()["rows"] for stream in streams) == sum(map(len, alone)) // 2


def test_fewer_rows_than_ranks_share_last_two_batches(simple, gated, numbers):
    ranks = [numbers(simple.stream(gated, 1000, row_ids=True, rank=rank, world_size=4)) for rank in range(4)]
    assert [[len(batch) for batch in rank] for rank in ranks] == [[249, 1], [250, 1], [250, 1], [250, 1]]


def test_next_iteration_continues_with_next_epoch(simple, parts, numbers):
    options = {"row_ids": True, "window": WINDOW}
    expected = numbers(simple.stream(parts, 48, epochs=4, **options))
    stream = simple.stream(parts, 48, epochs=2, **options)
    found = numbers(stream) + numbers(stream)
    assert stream.epoch == 3
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(expected))


def test_set_epoch_selects_epoch(simple, parts, numbers):
    stream = simple.stream(parts, 48, epochs=3, row_ids=True, window=WINDOW)
    expected = numbers(stream)[2 * 21 :]
    stream.set_epoch(2)
    np.testing.assert_array_equal(np.concatenate(numbers(stream)[:21]), np.concatenate(expected))


def test_endless_stream_has_no_length(simple, parts):
    stream = simple.stream(parts, 500, epochs=None, window=WINDOW)
    for number, _ in enumerate(stream):
        if number == 20:
            break
    assert stream.epoch == 6
    with pytest.raises(TypeError, match="endless"):
        len(stream)


def test_rows_of_a_window_are_mixed(simple, parts, numbers):
    stream = simple.stream(parts, 100, row_ids=True, window="1MB")
    stream.set_epoch(1)
    for batch in numbers(stream)[:10]:
        assert len(np.unique(batch // 100)) > 5


def test_augmentation_equals_loader(tmp_path):
    frame = pd.DataFrame({"photo": [np.full((6, 6), i, np.uint8) for i in range(40)], "n": range(40)})
    photo = dp.Image(mode="eager", height=6, width=6, num_channels=1)
    prep = dp.Preprocessor({"photo": photo, "n": "number"}, split=dp.RandomSplit((0.5, 0.5)))
    train = prep.fit_write(frame, tmp_path / "photos.dp")["train"]
    options = {"augment": {"photo": dp.RandomCrop(6, 6, padding=3)}, "row_ids": True}
    found = torch.cat([batch["photo"][batch["row_id"].argsort()] for batch in prep.stream(frame, 20, **options)])
    expected = torch.cat([batch["photo"][batch["row_id"].argsort()] for batch in train.loader(20, **options)])
    assert torch.equal(found, expected)


def test_data_loader_without_workers(simple, parts):
    batches = list(DataLoader(simple.stream(parts, 48), batch_size=None))
    assert sum(len(batch["price"]) for batch in batches) == 1003


def test_stats_and_repr(simple, parts):
    stream = simple.stream(parts, 48, window=WINDOW)
    list(stream)
    stats = stream.stats()
    assert (stats["partitions"], stats["decoded"]) == (11, 0)
    assert 0 < stats["peak_bytes"] <= WINDOW
    assert "1,003 rows" in stream._repr_html_()
    assert "epoch=0" in repr(stream)
