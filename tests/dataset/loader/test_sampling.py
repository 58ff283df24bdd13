"""Exact numbers of rows by class in every epoch; rows differ by epoch."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.dataset.loader.sampling import Sampling
from daskprep.errors import ConfigError


def count_rows(loader):
    """Return how often each row was yielded."""
    found = np.concatenate([batch["row_id"].numpy() for batch in loader])
    loader.audit()
    return np.bincount(found, minlength=1003)


def counts(table, column, times):
    return {str(name): int(times[table[column] == name].sum()) for name in table[column].unique()}


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"rank": 0, "world_size": 1, "prefetch_size": 0}])
def test_balance_gives_exact_counts(train, table, options):
    sizes = table["city"].value_counts()
    over = count_rows(train.loader(48, row_ids=True, balance=dp.Oversample("city", ratio=0.5), **options))
    expected = {name: max(size, sizes.max() // 2) for name, size in sizes.items()}
    assert counts(table, "city", over) == expected
    assert (over >= 1).all()
    under = count_rows(train.loader(48, row_ids=True, balance=dp.Undersample("city", ratio=1.0), **options))
    assert counts(table, "city", under) == dict.fromkeys(sizes.index, sizes.min())
    assert under.max() == 1


def test_fractional_weight_repeats_rows(train, table):
    times = count_rows(train.loader(48, row_ids=True, weights={"city": {"Bern": 2.5}}))
    bern = times[table["city"] == "Bern"]
    assert bern.sum() == round(2.5 * len(bern))
    assert set(bern.tolist()) <= {1, 2, 3, 4}
    assert (times[table["city"] != "Bern"] == 1).all()


def test_weight_zero_excludes_class(train, table):
    for yes, no in ((True, False), ("True", "False")):
        times = count_rows(train.loader(48, row_ids=True, weights={"sold": {yes: 3, no: 0}}))
        np.testing.assert_array_equal(times, 3 * table["sold"])


@pytest.mark.parametrize("counts", [{True: 300}, [("True", 300)]])
def test_counts_of_binary_output_by_bool(train, table, counts):
    times = count_rows(train.loader(48, row_ids=True, balance=dp.Oversample("sold", counts=counts)))
    assert times[table["sold"]].sum() == 300


def test_weights_of_numeric_classes(tmp_path):
    table = pd.DataFrame({"year": np.arange(300) + 0.0})
    features = {"year": dp.Number(normalization=None)}
    dp.Preprocessor(features, split=dp.RandomSplit((1.0, 0.0, 0.0))).fit_write(table, tmp_path / "years.dp")
    loader = dp.open_dataset(tmp_path / "years.dp")["train"].loader(
        48, row_ids=True, weights={"year": {0.0: 3, 299.0: 0, 256: 2}}
    )
    times = count_rows(loader)
    expected = np.ones(300, dtype=int)
    expected[[0, 256, 299]] = 3, 2, 0
    np.testing.assert_array_equal(times[:300], expected)


def test_sampled_rows_match_released_version():
    """Runs that resume after an upgrade depend on this order."""
    sampling = Sampling(np.array([0, 0, 0, 0, 0, 1, 1, 0, 1], np.uint8), np.array([4, 7]), np.array([0, 5, 9]), seed=3)
    assert sampling.sizes.tolist() == [3, 8]
    assert [sampling.rows(block, 2).tolist() for block in range(2)] == [[0, 1, 2], [0, 0, 1, 1, 1, 2, 3, 3]]


def test_sampling_class_of_one_or_zero_rows():
    sampling = Sampling(np.array([0, 0, 2], np.uint8), np.array([2, 0, 5]), np.array([0, 2, 3]), seed=0)
    assert sampling.sizes.tolist() == [2, 5]
    assert sampling.rows(1, 0).tolist() == [0] * 5


def test_sampling_digest_depends_on_codes_and_targets():
    codes, targets, starts = np.array([0, 1, 1], np.uint8), np.array([2, 4]), np.array([0, 2, 3])
    digests = [Sampling(one, targets, starts, 0).digest for one in (codes, codes[::-1].copy())]
    digests.append(Sampling(codes, targets + 1, starts, 0).digest)
    assert len(set(digests)) == 3
    assert all(len(digest) == 8 for digest in digests)


def test_undersampling_differs_by_epoch(train, table):
    loader = train.loader(48, row_ids=True, balance=dp.Undersample("sold", ratio=1.0))
    epochs = [count_rows(loader) for _ in range(3)]
    negatives = [times[~table["sold"]] for times in epochs]
    assert not np.array_equal(negatives[0], negatives[1])
    assert len({tuple(counts(table, "sold", times).items()) for times in epochs}) == 1
    loader.set_epoch(0)
    np.testing.assert_array_equal(count_rows(loader), epochs[0])


@pytest.mark.parametrize("world", [2, 8])
def test_ranks_share_sampled_rows(train, world):
    options = {"batch_size": 48, "row_ids": True, "weights": {"city": {"Rome": 0.3, "Oslo": 2.2}}}
    shares = [train.loader(rank=rank, world_size=world, **options) for rank in range(world)]
    assert len({len(share) for share in shares}) == 1
    np.testing.assert_array_equal(sum(count_rows(share) for share in shares), count_rows(train.loader(**options)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"balance": "city"}, "expected Oversample"),
        ({"balance": dp.Oversample("city", ratio=0.5), "weights": {"city": {}}}, "not both"),
        ({"balance": dp.Oversample("town", ratio=0.5)}, '"town" is not.*are: price, area, city, sold'),
        ({"balance": dp.Oversample("tags", ratio=0.5)}, '"tags" is not'),
        ({"weights": {"city": {"Rom": 2}}}, "no class 'Rom'. Did you mean \"Rome\""),
        ({"weights": {"city": {"Rome": -1}}}, "expected a number from 0"),
        ({"weights": {"city": {"Rome": float("nan")}}}, "expected a number from 0"),
        ({"weights": {"city": {"Rome": 0, "Oslo": 0, "Bern": 0}}}, 'every class of "city" has a weight of 0'),
        ({"weights": {"city": {"Rome": float("inf")}}}, "expected a number from 0"),
        ({"weights": {"city": {"Rome": "2"}}}, "expected a number from 0"),
        ({"weights": {"city": {"Rome": True}}}, "expected a number from 0"),
        ({"weights": {"city": {}, "sold": {}}}, "expected classes of one output"),
        ({"weights": ["city"]}, "expected classes of one output"),
        ({"weights": {"city": 2.0}}, "expected classes of one output"),
        ({"weights": {}}, "expected classes of one output"),
        (
            {"weights": {"city": {"Rome": 0, "Oslo": 0, "Bern": 0.02}}, "batch_size": 8, "rank": 0, "world_size": 8},
            "2 rows are too few for 8 ranks",
        ),
    ],
)
def test_invalid_sampling_raises(train, options, words):
    with pytest.raises(ConfigError, match=words):
        train.loader(**options)


def test_too_many_classes_raise(train, sizes):
    sizes(sampled_counts=1000)
    with pytest.raises(ConfigError, match='"price" has 1,003 classes'):
        train.loader(weights={"price": {0.0: 2}})
