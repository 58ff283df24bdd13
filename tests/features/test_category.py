from __future__ import annotations

import datetime as dt
import zoneinfo
from decimal import Decimal

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder
from sklearn.utils.estimator_checks import parametrize_with_checks

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError
from daskprep.serving import Encoder
from daskprep.testing import check_feature
from tests.arrow_columns import encode_columns

WAYS = ["ids", "ordinal", "one_hot"]


def column(*cells) -> pd.DataFrame:
    return pd.DataFrame({"x": list(cells)})


def vocabulary(feature) -> list[str]:
    return feature.learned_["x"].vocabulary.to_dict()["idx2str"]


def test_ids_are_ordered_by_frequency_then_utf8_bytes(as_frame):
    frame = as_frame(column("b", "a", "é", "z", "a", "c"))
    assert vocabulary(dp.Category().fit(frame)) == ["<UNK>", "a", "b", "c", "z", "é"]


def test_surrounding_white_space_is_stripped():
    category = dp.Category().fit(column(" a", "a ", "b", "b", "c"))
    assert vocabulary(category) == ["<UNK>", "a", "b", "c"]
    assert category.transform(column("b  ")).tolist() == [[2]]


def test_rare_values_are_unknown(as_frame):
    frame = as_frame(column("a", "a", "b", "b", "c"))
    assert vocabulary(dp.Category(most_common=1).fit(frame)) == ["<UNK>", "a"]
    assert vocabulary(dp.Category(min_frequency=2).fit(frame)) == ["<UNK>", "a", "b"]


def test_lowercase_applies_to_fit_and_transform():
    category = dp.Category(lowercase=True).fit(column("A", "a", "B"))
    assert vocabulary(category) == ["<UNK>", "a", "b"]
    assert category.transform(column("a", "b", "A")).ravel().tolist() == [1, 2, 1]


def test_missing_cell_is_unknown_or_the_fill_value():
    assert vocabulary(dp.Category().fit(column("a", None))) == ["<UNK>", "a"]
    own = dp.Category(fill_value="none").fit(column("a", None, None))
    assert vocabulary(own) == ["<UNK>", "none", "a"]
    assert own.transform(column(None, "zzz", "a")).ravel().tolist() == [1, 0, 2]


def test_literal_unknown_symbol_is_the_unknown_symbol():
    category = dp.Category().fit(column("<UNK>", "a"))
    assert vocabulary(category) == ["<UNK>", "a"]
    assert category.learned_["x"].vocabulary.to_dict()["str2freq"] == {"<UNK>": 1, "a": 1}


def test_numbers_and_dictionaries_equal_their_text():
    category = dp.Category().fit(column(1.0, 2.0, None, 2.0))
    assert vocabulary(category) == ["<UNK>", "2", "1"]
    assert category.transform(column(1, 2)).ravel().tolist() == [2, 1]
    assert category.transform(pd.DataFrame({"x": pd.Categorical(["2", "1"])})).ravel().tolist() == [1, 2]


@pytest.mark.parametrize("size", [255, 256, 65_535, 65_536])
def test_ids_have_the_smallest_dtype(size):
    frame = pd.DataFrame({"x": np.arange(size).astype(str)})
    encoded = dp.Category(most_common=None).fit_transform(frame)
    expected = np.uint8 if size < 256 else np.uint16 if size < 65_536 else np.uint32
    assert encoded.dtype == expected
    assert encoded.max() == size


def test_decode_returns_values():
    category = dp.Category().fit(column("a", "b", "b"))
    assert category.decode(np.array([1, 2, 0]), category.learned_["x"]).to_pylist() == ["b", "a", "<UNK>"]


def test_cell_text_does_not_depend_on_storage_type():
    times = pd.to_datetime(["2020-01-01", "2020-01-01 10:00:00.5"], format="ISO8601")
    narrow = pd.DataFrame({"x": np.array([0.1, 2.0], np.float32)})
    assert vocabulary(dp.Category().fit(narrow)) == ["<UNK>", "0.1", "2"]
    category = dp.Category().fit(pd.DataFrame({"x": times.as_unit("ns")}))
    assert category.transform(pd.DataFrame({"x": times.as_unit("us")})).ravel().tolist() == [1, 2]


NOON = dt.datetime(2020, 7, 1, 12)
ROME = zoneinfo.ZoneInfo("Europe/Rome")


def arrow(kind, cells) -> pd.Series:
    return pd.Series(cells, dtype=pd.ArrowDtype(kind))


def held(cells, kinds) -> list[pd.Series]:
    return [arrow(kind, cells) for kind in kinds]


HOLDERS = {
    "decimals": (
        [Decimal("1.50"), Decimal(2)],
        [
            pd.Series([1.5, 2.0]),
            pd.Series([Decimal("1.500"), 2.0], dtype=object),
            *held([Decimal("1.5"), Decimal(2)], [pa.decimal128(9, 4), pa.decimal256(50, 20)]),
        ],
    ),
    "zoned times": (
        [NOON.replace(tzinfo=ROME), NOON.replace(tzinfo=ROME, month=1)],
        [
            pd.Series([NOON, NOON.replace(month=1)]).dt.tz_localize("Europe/Rome").dt.as_unit("s"),
            pd.Series(["2020-07-01 12:00:00+02:00", "2020-01-01 12:00:00+01:00"]),
            *held(
                [NOON.replace(tzinfo=ROME), NOON.replace(tzinfo=ROME, month=1)],
                [pa.timestamp(unit, "Europe/Rome") for unit in ("s", "ms", "us", "ns")],
            ),
        ],
    ),
    "times of day": (
        [dt.time(12), dt.time(1)],
        held([dt.time(12), dt.time(1)], [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]),
    ),
    "durations": (
        [dt.timedelta(1), dt.timedelta(0, 1)],
        [
            pd.Series([dt.timedelta(1), dt.timedelta(0, 1)]).dt.as_unit("s"),
            pd.Series([np.timedelta64(1, "D"), pd.Timedelta("1s")], dtype=object),
            *held([dt.timedelta(1), dt.timedelta(0, 1)], [pa.duration(unit) for unit in ("s", "ms", "us", "ns")]),
        ],
    ),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_category_of_a_value_does_not_depend_on_its_type(tmp_path, kind):
    cells, columns = HOLDERS[kind]
    prep = dp.Preprocessor({"x": "category"})
    prep.fit(pd.DataFrame({"x": pd.Series([*cells, cells[1]], dtype=object)}))
    expected = [2, 1]
    for number, series in enumerate(columns):
        frame = pd.DataFrame({"x": series})
        assert prep.encode(frame)["x"].tolist() == expected, series.dtype
        assert prep.encode(pd.DataFrame({"x": series.astype("category")}))["x"].tolist() == expected, series.dtype
        if isinstance(series.dtype, pd.ArrowDtype):
            path = tmp_path / f"{number}.parquet"
            pq.write_table(pa.table({"x": pa.array(series)}), path)
            assert np.asarray(prep.encode(str(path))["x"]).tolist() == expected, series.dtype


@pytest.mark.parametrize("kind", HOLDERS)
def test_object_categories_do_not_depend_on_partitions(kind):
    cells, _ = HOLDERS[kind]
    frame = pd.DataFrame({"x": pd.Series([*cells, "x", cells[0], NOON, NOON.replace(tzinfo=dt.UTC)], dtype=object)})
    whole = dp.Category().fit(frame)
    with dask.config.set({"dataframe.convert-string": False}):
        for npartitions in (1, 2, 3, 6):
            cut = dd.from_pandas(frame, npartitions=npartitions)
            assert dp.Category().fit(cut).learned_["x"].to_dict() == whole.learned_["x"].to_dict()
            assert np.array_equal(np.asarray(whole.transform(cut)), whole.transform(frame))


# -- transform


def scikit_learn(encoder, training: pd.DataFrame, rows: pd.DataFrame) -> tuple[np.ndarray, list[str]]:
    fitted = encoder.fit(training)
    return fitted.transform(rows), fitted.get_feature_names_out().tolist()


@pytest.mark.parametrize("cells", [["b", "a", "é", "Z", "a", "zz"], [10, 2, 33, 2, -1], [2.5, 10.0, 1e-3], ["a"]])
def test_transform_equals_scikit_learn_encoders(cells, as_frame):
    training, rows = column(*cells), column(*cells, "new" if isinstance(cells[0], str) else 77)
    ordinal = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    for way, encoder in (("ordinal", ordinal), ("one_hot", one_hot)):
        category = dp.Category(transform_to=way).fit(as_frame(training))
        expected, names = scikit_learn(encoder, training, rows)
        assert np.array_equal(category.transform(rows), expected)
        assert np.array_equal(np.asarray(category.transform(as_frame(rows))), expected)
        assert category.get_feature_names_out().tolist() == [name.removesuffix(".0") for name in names]


def test_ordinal_values_are_sorted_for_many_values():
    cells = [f"{i:x}" * (1 + i % 3) for i in range(3_000)]
    category = dp.Category(transform_to="ordinal").fit(column(*cells))
    places = category.transform(column(*sorted(set(cells), key=str.encode), None)).ravel()
    assert places.tolist() == [*range(len(set(cells))), -1]
    assert places.dtype == np.int16


def test_unknown_values_are_minus_one_or_zeros():
    training, rows = column("b", "b", "a", None), column(None, "a", "<UNK>")
    ordinal = dp.Category(transform_to="ordinal", most_common=1).fit(training)
    assert ordinal.transform(rows).ravel().tolist() == [-1, -1, -1]
    own = dp.Category(transform_to="one_hot", fill_value="none").fit(training)
    assert own.get_feature_names_out().tolist() == ["x_a", "x_b", "x_none"]
    assert own.transform(rows).tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0]]
    assert own.transform(rows).dtype == np.int8
    empty = dp.Category(transform_to="one_hot").fit(column(None, None))
    assert empty.transform(rows).shape == (3, 0)


def test_one_hot_with_too_many_values_raises():
    many = column(*range(1_001))
    with pytest.raises(ColumnError, match='column "x": has 1,001 values.*at most 1,000.*most_common'):
        dp.Category(transform_to="one_hot").fit_transform(many)
    assert dp.Category(transform_to="one_hot", most_common=1_000).fit_transform(many).shape == (1_001, 1_000)
    with pytest.raises(ColumnError, match='column "x": has 1,001 values'):
        dp.Category().fit(many).set_params(transform_to="one_hot").transform(many)


def test_encode_returns_ids_for_every_transform_to():
    frame = column("b", "a", "b")
    arrays = [dp.Preprocessor({"x": dp.Category(transform_to=way)}).fit(frame).encode(frame)["x"] for way in WAYS]
    assert [array.tolist() for array in arrays] == [[1, 2, 1]] * 3


@pytest.mark.parametrize("way", WAYS)
def test_state_keeps_transform_to(way):
    frame = column("b", "a", "b")
    prep = dp.Preprocessor({"x": dp.Category(transform_to=way)}).fit(frame)
    state = prep.to_dict()
    assert ("transform_to" in state["features"]["x"]["params"]) == (way != "ids")
    assert np.array_equal(dp.Preprocessor.from_dict(state).transform(frame), prep.transform(frame))
    assert dp.Preprocessor.from_config(prep.to_config()).features["x"].transform_to == way


@pytest.mark.parametrize("way", WAYS)
def test_every_transform_to_passes_check_feature(way):
    check_feature(dp.Category(transform_to=way))


@parametrize_with_checks([dp.Category(transform_to="ordinal"), dp.Category(transform_to="one_hot")])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


# -- missing values and order


def test_null_values_are_missing_without_a_warning(as_frame):
    frame = as_frame(column("a", " ?", "?", "b", "a", None, "N/A"))
    category = dp.Category(null_values=["?", "n/a "], invalid="raise").fit(frame)
    learned = category.learned_["x"]
    assert vocabulary(category) == ["<UNK>", "a", "N/A", "b"]
    assert (learned.missing, learned.invalid) == (3, 0)
    assert np.asarray(category.transform(as_frame(column("?", "b")))).ravel().tolist() == [0, 3]
    ffill = dp.Category(null_values=["?"], missing_value_strategy="ffill").fit(frame)
    assert np.asarray(ffill.transform(as_frame(column("a", "?", "b")))).ravel().tolist() == [1, 1, 3]
    lower = dp.Category(null_values=["N/A"], lowercase=True).fit(frame)
    assert vocabulary(lower) == ["<UNK>", "?", "a", "b"]


@pytest.mark.parametrize("strategy", ["fill_with_mode", "fill_with_const", "ffill"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_serving_encoder_applies_null_values(strategy, lowercase):
    given = {"null_values": ["?"], "missing_value_strategy": strategy, "invalid": "raise", "lowercase": lowercase}
    prep = dp.Preprocessor({"x": dp.Category(**given)}).fit(column("a", "?", "B", "B", None))
    rows = column("B", " ?", "a", None, "new")
    expected = encode_columns(prep, rows)["x"]
    assert Encoder(prep.to_dict()).encode(rows.to_dict("records"))["x"].tolist() == expected.tolist()


@pytest.mark.filterwarnings("ignore:column .* values that order lacks")
def test_ids_follow_the_order_parameter(as_frame):
    frame = as_frame(column("high", "low", "high", "odd", None))
    category = dp.Category(order=["low", "mid", "high"]).fit(frame)
    assert vocabulary(category) == ["<UNK>", "low", "mid", "high"]
    assert np.asarray(category.transform(frame)).ravel().tolist() == [3, 1, 3, 0, 0]
    category.set_params(transform_to="ordinal")
    assert np.asarray(category.transform(frame)).ravel().tolist() == [2, 0, 2, -1, -1]
    assert dp.Category(order=["10", "9"], transform_to="one_hot").fit(frame).get_feature_names_out().tolist() == [
        "x_10",
        "x_9",
    ]
    assert vocabulary(dp.Category(order=["LOW", "High"], lowercase=True).fit(frame)) == ["<UNK>", "low", "high"]


def test_values_missing_from_order_warn():
    frame = column("Good", "Very Good", "Very Good", None)
    with pytest.warns(
        UserWarning, match=r"2 cells \(50.0 %\) unknown: keep more by most_common, min_frequency or order"
    ):
        dp.Category(order=["Good", "Very good"]).fit(frame)
    with pytest.warns(UserWarning, match=r"2 cells \(50.0 %\) unknown"):
        dp.Category(order=["Good"], missing_value_strategy="drop_row").fit(frame)


@pytest.mark.parametrize(
    ("order", "options"),
    [
        (["Good"], {"handle_unknown": "unk"}),
        (["Good"], {"oov_buckets": 3}),
        (["Very Good", "Good", "Bad"], {}),
        (["Very Good", "Good"], {"missing_value_strategy": "bfill"}),
        (["Very Good", "Good"], {"missing_value_strategy": "fill_with_const", "fill_value": "none"}),
        (["Very Good", "Good"], {"missing_value_strategy": "fill_with_mode"}),
    ],
)
def test_complete_orders_and_intended_unknowns_do_not_warn(order, options):
    dp.Category(order=order, **options).fit(column("Good", None, "Very Good", None))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"order": "abc"}, "order must be a list of strings or None"),
        ({"order": [1, 2]}, "order must be a list of strings or None"),
        ({"order": ["a", "a "]}, "The vocabulary lists .a. more than once"),
        ({"null_values": "?"}, "null_values must be a list of strings or None"),
    ],
)
def test_invalid_order_and_null_values_raise(given, message):
    with pytest.raises(ConfigError, match=message):
        dp.Category(**given).fit(column("a", "b", None))


def test_unset_new_parameters_are_not_saved():
    frame = column("b", "a", "?")
    params = dp.Preprocessor({"x": "category"}).fit(frame).to_dict()["features"]["x"]["params"]
    assert not {"order", "null_values"} & params.keys()
    prep = dp.Preprocessor({"x": dp.Category(order=["a", "b"], null_values=["?"])}).fit(frame)
    assert np.array_equal(dp.Preprocessor.from_dict(prep.to_dict()).transform(frame), prep.transform(frame))
    assert repr(dp.Preprocessor.from_config(prep.to_config()).features["x"]) == repr(prep.features["x"])


@pytest.mark.parametrize("given", [{"order": ["b", "a"]}, {"null_values": ["?"]}])
def test_order_and_null_values_pass_check_feature(given):
    check_feature(dp.Category(**given))


# -- hashing

GOLDEN = {"Rome": 224, "Oslo": 66, "7": 343}


def test_hashed_ids_depend_only_on_the_value(as_frame):
    cells = column("Rome", " Oslo", "Rome ", 7, None)
    few = dp.Category(hash_buckets=1_000).fit(as_frame(column("x")))
    many = dp.Category(hash_buckets=1_000).fit(as_frame(cells))
    ids = many.transform(cells).ravel()
    # Fixed: trained models depend on them.
    assert ids.tolist() == [GOLDEN["Rome"], GOLDEN["Oslo"], GOLDEN["Rome"], GOLDEN["7"], 0]
    assert few.transform(cells).ravel().tolist() == ids.tolist()
    assert many.learned_["x"].num_embeddings == 1_001
    assert many.transform(cells).dtype == np.uint16


def test_values_outside_the_vocabulary_share_oov_buckets():
    category = dp.Category(oov_buckets=4, most_common=2).fit(column("a", "a", "b", "b", "c", None))
    ids = category.transform(column("a", "b", "c", None, "<UNK>", "z")).ravel().tolist()
    assert ids[:2] + ids[3:5] == [1, 2, 0, 0]
    assert {ids[2], ids[5]} <= {3, 4, 5, 6}
    assert category.learned_["x"].num_embeddings == 7


def test_buckets_decode_to_bucket_names():
    category = dp.Category(hash_buckets=2**24).fit(column("x"))
    rows = category.transform(column("Rome", "Oslo", None, "Rome"))
    rome, oslo, *others = dp.Preprocessor({"x": category}).fit(column("x")).decode({"x": rows.ravel()})["x"]
    assert (rome, oslo) == (f"<BUCKET {rows[0, 0] - 1}>", f"<BUCKET {rows[1, 0] - 1}>")
    assert others == ["<UNK>", rome]


@pytest.mark.parametrize("name", ["hash_buckets", "oov_buckets"])
def test_too_many_buckets_raise(name):
    with pytest.raises(ConfigError, match="16,777,217 buckets are too many: use at most 16,777,216"):
        dp.Category(**{name: 2**24 + 1}).fit(column("x"))


def test_buckets_are_filled_evenly():
    ids = dp.Category(hash_buckets=64).fit_transform(pd.DataFrame({"x": np.arange(64_000)})).ravel()
    counts = np.bincount(ids, minlength=65)
    assert counts[0] == 0
    assert 800 < counts[1:].min() < counts.max() < 1_200  # of 1,000, deviation 31


def test_one_hot_has_a_column_per_bucket():
    category = dp.Category(hash_buckets=3, transform_to="one_hot").fit(column("a", "b"))
    assert category.get_feature_names_out().tolist() == ["x_<BUCKET 0>", "x_<BUCKET 1>", "x_<BUCKET 2>"]
    hot = category.transform(column("a", None))
    assert hot.sum(axis=1).tolist() == [1, 0]
    ids = dp.Category(hash_buckets=3).fit(column("a")).transform(column("a"))
    assert hot[0].argmax() == ids[0, 0] - 1


def test_hashed_classes_are_predicted_by_bucket():
    frame = pd.DataFrame({"n": [1.0, 2.0], "x": ["a", "b"]})
    prep = dp.Preprocessor({"n": "number", "x": dp.Category(oov_buckets=1)}, targets="x").fit(frame)
    found = prep.predictions(np.eye(4))
    assert found["x_predictions"].tolist() == ["<UNK>", "a", "b", "<BUCKET 0>"]
    assert prep.decode({"x": np.arange(4)})["x"].tolist() == ["<UNK>", "a", "b", "<BUCKET 0>"]


@pytest.mark.parametrize(
    "params", [{"order": ["a"]}, {"oov_buckets": 2}, {"min_frequency": 2}, {"transform_to": "ordinal"}]
)
def test_hashing_with_vocabulary_parameters_raises(params):
    with pytest.raises(ConfigError, match="hash"):
        dp.Category(hash_buckets=3, **params).fit(column("a"))


# -- crosses


def cross(frame, **params) -> dp.Preprocessor:
    return dp.Preprocessor({"x": dp.Category(columns=["a", "b"], **params)}).fit(frame)


PARTS = ["a", "b", "|", "\\", "-", "\\-", "", " ", "a|", "|a", None]


def test_different_combinations_are_different_values(as_frame):
    frame = pd.DataFrame([(one, two) for one in PARTS for two in PARTS], columns=["a", "b"], dtype=object)
    prep = cross(as_frame(frame))
    ids = np.asarray(encode_columns(prep, frame)["x"])
    clean = [tuple(part if part is None else part.strip() for part in row) for row in frame.to_numpy().tolist()]
    by_combination = dict(zip(clean, ids.tolist(), strict=True))
    assert len(set(by_combination.values())) == len(by_combination) == 100
    assert [by_combination[one] for one in clean] == ids.tolist()
    assert by_combination[None, None] == 0
    rows = frame.to_dict("records")
    np.testing.assert_array_equal(Encoder(prep.to_dict()).encode(rows)["x"], ids)


def test_combinations_are_ranked_by_frequency():
    frame = pd.DataFrame({"a": ["x", "y", "y", None], "b": [1, 2.0, 2.0, None]})
    prep = cross(frame)
    assert prep.learned_["x"].vocabulary.tokens.to_pylist() == ["<UNK>", "y|2", "x|1"]
    assert prep.learned_["x"].missing == 1


def test_crossed_cells_are_cleaned_separately():
    frame = pd.DataFrame({"a": [" X ", "?"], "b": ["?", " ?"]})
    prep = cross(frame, lowercase=True, null_values=["?"])
    assert prep.learned_["x"].vocabulary.tokens.to_pylist() == ["<UNK>", "x|\\-"]
    encoded = Encoder(prep.to_dict()).encode(frame.to_dict("records"))["x"]
    assert encoded.tolist() == encode_columns(prep, frame)["x"].tolist() == [1, 0]


def test_cross_of_three_columns_is_hashed_equally_in_serving():
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({name: rng.choice(["p", "q", "r|", None], 300) for name in "abc"})
    prep = dp.Preprocessor({"x": dp.Category(columns=["a", "b", "c"], hash_buckets=50)}).fit(frame)
    ids = prep.encode(frame)["x"]
    assert len(np.unique(ids)) > 25
    np.testing.assert_array_equal(Encoder(prep.to_dict()).encode(frame.to_dict("records"))["x"], ids)


def test_invalid_crosses_raise():
    with pytest.raises(ConfigError, match="two different ones"):
        cross(pd.DataFrame({"a": ["x"]}), column="a")
    with pytest.raises(ConfigError, match="features of a Preprocessor"):
        dp.Category(columns=["a", "b"]).fit(pd.DataFrame({"a": ["x"], "b": ["y"]}))
    with pytest.raises(ColumnError, match='"b"'):
        cross(pd.DataFrame({"a": ["x"]}))
