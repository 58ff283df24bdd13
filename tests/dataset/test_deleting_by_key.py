"""Rows deleted by values of keys, compared with pandas."""

from __future__ import annotations

import tempfile
import warnings

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import daskprep as dp
from daskprep.errors import ConfigError, MissingColumnError
from daskprep.features import Key

NAMES = ["a@b.c", "", "17", "007", "x" * 40, None]
NUMBERS = [0, 1, 17, 10**18 - 1, 10**18, 2**62, -1, -17]
FRAME = pd.DataFrame({"city": ["Rome", "Oslo", "Rome", "Bern"], "customer": [17, 18, 17, 20], "price": [1.0, 2, 3, 4]})


def make(**options):
    return dp.Preprocessor({"city": "category", "price": dp.Number(normalization=None)}, keys=["customer"], **options)


@st.composite
def tables(draw):
    rows = draw(st.integers(4, 40))
    pick = lambda values: draw(st.lists(st.sampled_from(values), min_size=rows, max_size=rows))  # noqa: E731
    return pd.DataFrame({
        "customer": pick(NUMBERS),
        "mail": pd.Series(pick(NAMES), dtype=object),
        "city": pick(["Rome", "Oslo", "Bern"]),
        "price": pick([0.5, 17.0, 3.25]),
        "number": np.arange(rows),
    })  # fmt: skip


CONDITIONS = {
    "customer": st.lists(st.sampled_from(NUMBERS), max_size=3),
    "mail": st.lists(st.sampled_from(NAMES[:-1]), max_size=3),
    "city": st.lists(st.sampled_from(["Rome", "Oslo"]), max_size=3),
    "price": st.lists(st.sampled_from([0.5, 17]), max_size=3),
}


@settings(max_examples=25, deadline=None)
@given(st.lists(tables(), min_size=1, max_size=3), st.sets(st.integers(0, 3)), st.data())
def test_rows_with_the_values_are_deleted_as_in_pandas(frames, deleted, data):
    features = {"city": "category", "price": "number", "number": dp.Number(normalization=None)}
    split = data.draw(st.sampled_from([None, dp.HashSplit("customer"), dp.RandomSplit()]))
    prep = dp.Preprocessor(features, keys=["customer", "mail"], split=split)
    names = data.draw(st.sets(st.sampled_from(sorted(CONDITIONS)), min_size=1, max_size=2))
    where = {name: data.draw(CONDITIONS[name]) for name in names}
    part = data.draw(st.sampled_from([None, len(frames) - 1]))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = dd.from_pandas(frames[0], npartitions=data.draw(st.integers(1, 4)))
        dataset = prep.fit_write(rows, folder + "/a.dp", block_rows=4, workers="threads")
        for number, frame in enumerate(frames[1:]):
            prep.grow(frame)  # rows of a value without an id are not found
            dataset = prep.append(frame, folder + "/a.dp", version=str(number), on_findings="ignore")
        dataset = dataset.delete(sorted(deleted), part=0)
        if data.draw(st.booleans()):
            dataset.purge()
            dataset = dp.open_dataset(folder + "/a.dp")
        found = dataset.delete(where=where, part=part)
        for number, frame in enumerate(frames):
            keep = ~frame.index.isin(deleted) if number == 0 else np.ones(len(frame), bool)
            if part in (None, number):
                keep &= ~np.logical_and.reduce([frame[name].isin(values) for name, values in where.items()])
            rows = [one.read("row_id")["row_id"] for one in found.datasets[number].splits.values()]
            ids = np.concatenate([np.empty(0, int), *rows])
            assert sorted(ids.tolist()) == np.flatnonzero(keep).tolist()


@given(
    st.lists(st.sampled_from([*NUMBERS, 2**63 - 1, -(2**63), None])),
    st.sampled_from([pa.int64(), pa.int32(), pa.uint64()]),
)
def test_integers_are_keys_as_their_text_is(numbers, kind):
    limits = np.iinfo(kind.to_pandas_dtype())
    cells = pa.array([one for one in numbers if one is None or limits.min <= one <= limits.max], kind)
    assert Key().parse(cells).equals(Key().parse(cells.cast(pa.string())))


def test_functions_get_decoded_rows_and_keys_of_each_block(tmp_path):
    dataset = make().fit_write(FRAME, tmp_path / "a.dp", block_rows=2)
    columns = []

    def is_deleted(rows):
        columns.append((list(rows), len(rows)))
        return (rows["customer"] == 17) & (rows["price"] > 1)

    deleted = dataset.delete(where=is_deleted)
    assert columns == [(["city", "price", "customer"], 2)] * 2
    assert deleted["train"].read(["row_id", "customer"])["customer"].tolist() == [17, 18, 20]


def test_keys_are_no_inputs(tmp_path):
    prep = make(targets="price", split=None)
    dataset = prep.fit_write(FRAME, tmp_path / "a.dp")
    train = dataset["train"]
    assert train.read("customer")["customer"].tolist() == [17, 18, 17, 20]
    assert next(iter(train.loader(2)))[0].keys() == {"city"}
    assert next(iter(prep.stream(FRAME, 2)))[0].keys() == {"city"}
    assert train.__getitems__([0])[0][0].keys() == {"city"}
    assert next(iter(train.loader(4, columns="customer", shuffle=False)))["customer"].tolist() == [17, 18, 17, 20]
    assert list(prep.get_feature_names_out()) == ["city"]
    assert list(dp.nn.Inputs(dataset).names) == ["city"]
    assert "customer" not in dp.serving.Encoder(prep.to_dict()).encode({"city": "Rome"})
    without = FRAME.drop(columns="customer")
    assert prep.encode(without).keys() == {"city", "price"}
    assert prep.encode(without[["city"]]).keys() == {"city"}
    assert next(iter(prep.stream(without, 2)))[0].keys() == {"city"}
    for rows in (without, without[["city"]]):
        with pytest.raises(MissingColumnError, match="customer"):
            prep.write(rows, tmp_path / "b.dp")
    assert prep.write(FRAME.drop(columns="price"), tmp_path / "b.dp")["train"].columns == ["city", "customer"]
    assert not prep.check(without).findings


def test_keys_are_saved_inferred_and_in_configurations(tmp_path):
    prep = make().fit(FRAME)
    prep.save(tmp_path / "prep.json")
    for other in (
        dp.Preprocessor.load(tmp_path / "prep.json"),
        dp.Preprocessor.from_config(prep.to_config()),
        dp.Preprocessor("auto", keys=["customer"]).fit(FRAME),
    ):
        assert list(other.keys) == ["customer"]
        assert "customer" not in other._feature_specs
    assert "customer" in dp.Preprocessor("auto", keys=["customer"]).fit(FRAME).inferred_.skipped


@pytest.mark.filterwarnings("error")
def test_appended_rows_have_keys_and_are_not_compared(tmp_path):
    prep = make(split=None)
    prep.fit_write(FRAME, tmp_path / "a.dp")
    dataset = prep.append(FRAME.assign(customer=[None, "17", 17.0, "Ann"]), tmp_path / "a.dp")
    assert dataset.delete(where={"customer": 17})["train"].read("row_id")["row_id"].tolist() == [1, 3, 0, 3]


def test_values_without_rows_are_named(tmp_path):
    prep = dp.Preprocessor({"city": dp.Category(most_common=1)}, split=None)
    dataset = prep.fit_write(FRAME, tmp_path / "a.dp")
    with pytest.warns(
        UserWarning, match=r"'city': no row matches 'Oslo', 'Kyiv', or some of the 2 rows whose value has no id"
    ):
        dataset = dataset.delete(where={"city": ["Rome", "Oslo", "Kyiv"]})
    assert len(dataset["train"]) == 2
    with pytest.warns(UserWarning, match="no row matches <function"):
        dataset.delete(where=lambda rows: rows["city"] == "Rome")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": {"customar": 1}}, r'no key \'customar\'. Did you mean "customer".*keys=\[\'customar\'\]'),
        ({"where": {"customer": None}}, "missing value: pass the row ids"),
        ({"where": {}}, "expected values by key"),
        ({"where": 17}, "expected values by key"),
        ({"where": lambda rows: rows["customer"]}, "returned int64 of shape"),
        ({"where": {"customer": 17}, "rows": [1]}, "either row ids, or where="),
        ({}, "either row ids, or where="),
        ({"where": {"customer": 17}, "part": 1}, "has 1 parts"),
    ],
)
def test_other_conditions_are_refused(tmp_path, options, message):
    dataset = make().fit_write(FRAME, tmp_path / "a.dp")
    with pytest.raises(ConfigError, match=message):
        dataset.delete(**options)


@pytest.mark.parametrize(("keys", "message"), [("city", "list of names"), (["city"], "is a feature"), ([1], "list of")])
def test_keys_that_are_no_further_columns_are_refused(keys, message):
    with pytest.raises(ConfigError, match=message):
        dp.Preprocessor({"city": "category"}, keys=keys).fit(FRAME)
