from __future__ import annotations

import dataclasses
import json
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import daskprep as dp
from daskprep.errors import ConfigError, CorruptDatasetError, FormatVersionError, RejectedValueError
from daskprep.rows.saved import add_digest, compute_digests


@pytest.fixture
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "price": rng.lognormal(size=60),
            "city": rng.choice(["Rome", "Oslo", None], 60),
            "tags": rng.choice(["a b", "b", ""], 60),
            "review": rng.choice(["Nice one!", "bad", None], 60),
            "series": "1 2 3",
            "vector": "0.5 1",
            "when": "2024-05-06",
            "cell": 622236750694711295,
            "sold": rng.choice([True, False], 60),
        }
    )


FEATURES = {
    "price": dp.Number(),
    "city": dp.Category(most_common=10),
    "tags": "set",
    "bag": dp.Bag(column="tags"),
    "steps": dp.Sequence(column="tags"),
    "review": dp.Text(level="both", compute_idf=True),
    "series": "timeseries",
    "vector": "vector",
    "when": "date",
    "cell": "h3",
    "sold": "binary",
}


@pytest.fixture
def prep(table) -> dp.Preprocessor:
    return dp.Preprocessor(
        {name: clone(f) if isinstance(f, dp.Feature) else f for name, f in FEATURES.items()},
        split=dp.StratifiedSplit("sold", seed=1),
        balance=dp.Undersample("sold", ratio=1.0),
    ).fit(table)


def assert_same(left: dp.Preprocessor, right: dp.Preprocessor, table: pd.DataFrame) -> None:
    assert json.dumps(left.to_dict()) == json.dumps(right.to_dict())
    for name, array in left.encode(table).items():
        np.testing.assert_array_equal(right.encode(table)[name], array)
    np.testing.assert_array_equal(left.assign(table)["repeats"], right.assign(table)["repeats"])


def test_save_and_load_round_trip(prep, table, tmp_path):
    prep.save(tmp_path / "deep" / "prep.json")
    assert_same(prep, dp.Preprocessor.load(tmp_path / "deep" / "prep.json"), table)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["prep.json"]


def test_save_and_load_round_trip_with_a_url(prep, table):
    prep.save("memory://states/prep.json")
    assert_same(prep, dp.Preprocessor.load("memory://states/prep.json"), table)


def test_large_vocabularies_are_saved_as_parquet(table, tmp_path, sizes):
    sizes(large_vocabulary=3)
    prep = dp.Preprocessor({"review": dp.Text(level="both"), "city": "category"}).fit(table)
    prep.save(tmp_path / "prep.json")
    state = json.loads((tmp_path / "prep.json").read_text())
    assert "idx2str" in state["features"]["city"]["learned"]
    names = [state["features"]["review"]["learned"][level]["vocabulary_file"] for level in ("word", "char")]
    assert all((tmp_path / name).is_file() for name in names)
    assert_same(prep, dp.Preprocessor.load(tmp_path / "prep.json"), table)
    (tmp_path / names[0]).unlink()
    with pytest.raises(CorruptDatasetError, match=r"review.*\.parquet"):
        dp.Preprocessor.load(tmp_path / "prep.json")


@pytest.mark.parametrize("name", ["../../secret.vocab/x.parquet", "/etc/x.vocab/y.parquet"])
def test_vocabulary_file_outside_the_folder_raises(prep, tmp_path, name):
    prep.save(tmp_path / "prep.json")
    state = json.loads((tmp_path / "prep.json").read_text())
    learned = {"vocabulary_file": name}
    state["features"]["city"] |= {"learned": learned, "digests": compute_digests(learned)}
    (tmp_path / "prep.json").write_text(json.dumps(add_digest(state)))
    with pytest.raises(CorruptDatasetError, match="outside"):
        dp.Preprocessor.load(tmp_path / "prep.json")


def test_newer_format_and_other_files_raise(prep, tmp_path):
    state = prep.to_dict() | {"format": 99}
    with pytest.raises(FormatVersionError, match="99.*upgrade"):
        dp.Preprocessor.from_dict(state)
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(CorruptDatasetError, match="not a saved Preprocessor"):
        dp.Preprocessor.load(tmp_path / "other.json")
    (tmp_path / "other.json").write_text("{")
    with pytest.raises(CorruptDatasetError, match="not valid JSON"):
        dp.Preprocessor.load(tmp_path / "other.json")
    with pytest.raises(ConfigError, match=r"no saved Preprocessor at .*gone\.json"):
        dp.Preprocessor.load(tmp_path / "gone.json")


def test_pickle_round_trip(prep, table):
    assert_same(prep, pickle.loads(pickle.dumps(prep)), table)


def test_clone_copies_parameters_without_learned_state(prep):
    copy = clone(prep)
    assert copy.to_config() == prep.to_config()
    assert not hasattr(copy, "learned_")
    assert copy.features["price"] is not prep.features["price"]


def test_set_params_replaces_features_by_name():
    prep = dp.Preprocessor({"city": "category"}).set_params(city=dp.Set(most_common=2))
    assert isinstance(prep.features["city"], dp.Set)
    assert prep.set_params(city="number").features == {"city": "number"}
    assert dp.Preprocessor({"a__b": "number"}).set_params(a__b="date").features == {"a__b": "date"}


def test_nested_parameters_can_be_read_and_set(prep):
    assert prep.get_params()["city__most_common"] == 10
    assert prep.get_params()["split__seed"] == 1
    copy = clone(prep).set_params(city__most_common=1, tags__max_size=1, split__seed=2)
    assert copy.get_params()["city__most_common"] == 1
    assert copy.get_params()["tags__max_size"] == 1
    assert copy.split.seed == 2
    assert prep.features["city"].most_common == 10
    with pytest.raises(ConfigError, match='"city__most_comon".*Did you mean "city__most_common"'):
        copy.set_params(city__most_comon=1)


def test_set_params_after_fit_applies_to_the_next_fit(prep, table):
    before = prep.encode(table)["city"]
    prep.set_params(city__most_common=1)
    np.testing.assert_array_equal(prep.encode(table)["city"], before)
    assert prep.fit(table).encode(table)["city"].max() == 1


def test_transform_has_one_column_per_feature_name(prep, table, as_frame):
    expected = prep.transform(table)
    names = prep.get_feature_names_out()
    assert expected.shape == (60, len(names))
    assert names[:2].tolist() == ["price", "city"]
    assert {"tags_a", "review_word_0", "when_year"} <= set(names)
    np.testing.assert_array_equal(np.asarray(prep.transform(as_frame(table))), expected)


def test_decode_returns_readable_values(prep, table):
    decoded = prep.decode(prep.encode(table))
    np.testing.assert_allclose(decoded["price"], table["price"], rtol=1e-5)
    assert decoded["city"].tolist() == table["city"].fillna("<UNK>").tolist()
    assert decoded["cell"].iloc[0] == 622236750694711295
    assert str(decoded["when"].iloc[0]) == "2024-05-06 00:00:00"
    assert list(prep.decode({"city": np.array([1])}).columns) == ["city"]
    with pytest.raises(ConfigError, match='"citi".*Did you mean "city"'):
        prep.decode({"citi": np.array([1])})


def test_preprocessor_works_in_a_pipeline(table):
    prep = dp.Preprocessor({"price": "number", "city": "category", "tags": "set"})
    model = make_pipeline(prep, LogisticRegression()).fit(table, table["sold"])
    assert model.predict(table).shape == (60,)
    assert clone(model).fit(table, table["sold"]).score(table, table["sold"]) > 0.4


def test_features_work_in_a_column_transformer(table):
    columns = make_column_transformer((dp.Number(), ["price"]), (dp.Set(), ["tags"]), (dp.Category(), ["city"]))
    assert columns.fit_transform(table).shape == (60, 1 + 4 + 1)
    assert columns.get_feature_names_out().tolist() == [
        "number__price",
        "set__tags_<PAD>",
        "set__tags_<UNK>",
        "set__tags_b",
        "set__tags_a",
        "category__city",
    ]


def test_all_file_formats_are_equal(table, tmp_path):
    features = {name: FEATURES[name] for name in ("price", "city", "review", "sold")}
    slim = table[list(features)]
    slim.to_parquet(tmp_path / "data.parquet", row_group_size=17)
    slim.to_csv(tmp_path / "data.csv", index=False)
    slim.to_csv(tmp_path / "data.tsv", index=False, sep="\t")
    slim.to_json(tmp_path / "data.jsonl", orient="records", lines=True)
    slim.to_feather(tmp_path / "data.feather")
    expected = dp.Preprocessor(features).fit(slim)
    for path in sorted(tmp_path.iterdir()):
        prep = dp.Preprocessor(features).fit(str(path))
        encoded = prep.encode(str(path))
        for name, array in expected.encode(slim).items():
            np.testing.assert_allclose(np.asarray(encoded[name]), array, rtol=1e-6, atol=1e-7, err_msg=f"{path} {name}")


def test_globs_and_lists_of_files_are_one_frame(table, tmp_path):
    table.iloc[:20].to_parquet(tmp_path / "a.parquet")
    table.iloc[20:].to_parquet(tmp_path / "b.parquet")
    expected = dp.Preprocessor({"city": "category"}).fit(table).to_dict()
    for frame in (
        str(tmp_path / "*.parquet"),
        [tmp_path / "a.parquet", tmp_path / "b.parquet"],
        str(tmp_path),
    ):
        assert dp.Preprocessor({"city": "category"}).fit(frame).to_dict() == expected


def test_duplicate_output_names_raise(table):
    with pytest.raises(ConfigError, match='"review_word"'):
        dp.Preprocessor({"review": dp.Text(level="both"), "review_word": dp.Text(column="review")}).fit(table)


def test_fit_on_all_uses_all_rows(table):
    split = dp.RandomSplit((0.5, 0.5))
    assert dp.Preprocessor({"price": "number"}, split=split).fit(table).learned_["price"].rows == 30
    assert dp.Preprocessor({"price": "number"}, split=split, fit_on="all").fit(table).learned_["price"].rows == 60


def test_html_shows_the_learned_state(prep):
    assert "Rome" in prep._repr_html_()
    assert prep._repr_mimebundle_()["text/html"] == prep._repr_html_()
    assert "price" in clone(prep)._repr_html_()


def test_dropped_rows_are_assigned_to_no_split_but_encoded():
    frame = pd.DataFrame({"x": ["yes", "no", "q", "yes"], "y": [1.0, 2.0, 1.0, 99.0]})
    features = {
        "x": dp.Binary(missing_value_strategy="drop_row"),
        "y": dp.Number(outlier_strategy="drop_row", outlier_threshold=1.4),
    }
    with pytest.warns(UserWarning, match="'q'"):
        prep = dp.Preprocessor(features).fit(frame)
    assert prep.assign(frame)["split"].tolist() == [0, 0, 255, 255]
    assert prep.encode(frame)["x"].tolist() == [1, 0, 1, 1]
    assert prep.decode(prep.encode(frame))["y"].tolist() == pytest.approx([1, 2, 1, 99])


def test_training_rows_are_never_assigned_to_test():
    values = np.random.default_rng(0).standard_t(2, 1000)
    frame = pd.DataFrame({"x": values})
    prep = dp.Preprocessor({"x": dp.Number(outlier_strategy="drop_row")}, split=dp.RandomSplit(seed=3))
    before = prep.assign(frame)["split"]
    after = prep.fit(frame).assign(frame)["split"]
    assert (after == 255).sum() > 3
    np.testing.assert_array_equal(after[after < 255], before[after < 255])
    assert prep.learned_["x"].mean == pytest.approx(values[before == 0].mean())


@pytest.mark.parametrize("token", ["idx2str", "vocabulary_file", "str2idx"])
def test_token_named_like_a_file_key_is_saved(tmp_path, token):
    frame = pd.DataFrame({"x": [token, "b"]})
    dp.Preprocessor({"x": "category"}).fit(frame).save(tmp_path / "prep.json")
    assert dp.Preprocessor.load(tmp_path / "prep.json").encode(frame)["x"].tolist() == [2, 1]


def test_rows_dropped_by_one_feature_are_ignored_by_others():
    frame = pd.DataFrame({"a": [1.0, 2.0, -5.0], "c": ["x", "y", None]})
    features = {"a": dp.Number(normalization="log1p"), "c": dp.Category(missing_value_strategy="drop_row")}
    prep = dp.Preprocessor(features).fit(frame)
    np.testing.assert_allclose(prep.encode(frame[:2])["a"], np.log1p([1, 2]), rtol=1e-6)
    with pytest.raises(RejectedValueError, match="-5 has no log1p"):
        prep.encode(frame)


def test_unused_columns_can_have_any_type(tmp_path):
    pd.DataFrame({"x": [1.0], "note": ["a"]}).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame({"x": [2.0], "note": [[1]]}).to_parquet(tmp_path / "b.parquet")
    prep = dp.Preprocessor({"x": dp.Number(normalization=None)}).fit(str(tmp_path))
    assert prep.encode(str(tmp_path))["x"].compute().tolist() == [1, 2]


def test_numpy_scalar_parameters_are_saved(tmp_path):
    frame = pd.DataFrame({"x": ["a", "b", "b"]})
    prep = dp.Preprocessor({"x": dp.Category(most_common=np.int64(1))}).fit(frame)
    prep.save(tmp_path / "prep.json")
    assert dp.Preprocessor.load(tmp_path / "prep.json").features["x"].most_common == 1


def test_save_removes_old_vocabulary_files(tmp_path, sizes):
    sizes(large_vocabulary=1)
    for cells in (["a", "b"], ["c", "d"]):
        dp.Preprocessor({"x": "category"}).fit(pd.DataFrame({"x": cells})).save(tmp_path / "prep.json")
    assert len(list((tmp_path / "prep.json.vocab").iterdir())) == 1
    assert dp.Preprocessor.load(tmp_path / "prep.json").encode(pd.DataFrame({"x": ["d"]}))["x"].tolist() == [2]


def test_unknown_type_in_a_saved_state_raises(prep):
    state = prep.to_dict()
    state["features"]["city"]["type"] = "mine"
    with pytest.raises(ConfigError, match='"city".*"mine".*FEATURES'):
        dp.Preprocessor.from_dict(state)


def test_balance_without_ratio_raises_in_fit(table):
    with pytest.raises(ConfigError, match="ratio"):
        dp.Preprocessor({"price": "number"}, balance=dp.Oversample("sold")).fit(table)


def test_name_that_is_not_a_string_raises(table):
    with pytest.raises(ConfigError, match="named by strings"):
        dp.Preprocessor({1: "number"}).fit(table)


def test_scratch_folder_is_created_and_emptied(table, tmp_path):
    dp.Preprocessor({"city": "category"}, scratch=str(tmp_path / "new")).fit(table)
    assert list((tmp_path / "new").iterdir()) == []


FALLBACKS = {
    "number": (dp.Number(normalization=None), [1.0, 2.0, 6.0], 3.0),
    "category": (dp.Category(), ["a", "b", "b"], "b"),
    "binary": (dp.Binary(), ["no", "yes", "yes"], "yes"),
    "set": (dp.Set(), ["a b", "b", "b"], ["<UNK>"]),
    "text": (dp.Text(), ["one two", "two", "two"], "<UNK>"),
    "text_both": (dp.Text(level="both"), ["one two", "two", "two"], "<UNK>"),
    "date": (dp.Date(), ["2020-02-01", "2021-03-04", "2021-03-04"], pd.Timestamp("1970-01-01")),
    "h3": (dp.H3(), [595278777979797503] * 3, 576495936675512319),
    "timeseries": (dp.Timeseries(padding_value=-1), ["1 2", "3 4", "5 6"], [-1.0, -1.0]),
    "window": (dp.Timeseries(window_size=2, padding_value=-1), [1.0, 2.0, 3.0], [-1.0, -1.0]),
    "vector": (dp.Vector(), ["1 2", "3 4", "5 6"], [0.0, 0.0]),
}


@pytest.mark.parametrize("strategy", ["drop_row", "ffill", "bfill"])
@pytest.mark.parametrize("kind", FALLBACKS)
def test_row_without_neighbors_uses_a_fallback_excluded_from_statistics(kind, strategy):
    feature, cells, fallback = FALLBACKS[kind]
    feature = clone(feature).set_params(missing_value_strategy=strategy)
    whole = pd.DataFrame({"x": pd.Series(cells, dtype=object)})
    gaps = pd.DataFrame({"x": pd.Series([*cells, None], dtype=object)})
    prep = dp.Preprocessor({"x": feature}, split=None).fit(whole)
    [given] = prep.decode(prep.encode(gaps[3:]))["x"].tolist()
    assert (given.tolist() if isinstance(given, np.ndarray) else given) == fallback
    again = dp.Preprocessor.from_dict(json.loads(json.dumps(prep.to_dict())))
    for output, rows in prep.encode(gaps[3:]).items():
        np.testing.assert_array_equal(again.encode(gaps[3:])[output], rows)
    if strategy == "drop_row" and kind != "window":  # which drops rows by their windows, after the fit
        counted = dp.Preprocessor({"x": feature}, split=None).fit(gaps).learned_["x"]
        assert dataclasses.replace(counted, missing=0, seen=0) == prep.learned_["x"]


@pytest.mark.parametrize("shuffled", [False, True])
def test_split_of_single_rows_in_order_of_time_warns(shuffled):
    frame = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=60), "shop": list("abcdef") * 10})
    frame = frame.sample(frac=1, random_state=0) if shuffled else frame
    splits = [dp.GroupSplit("shop"), dp.DatetimeSplit("day"), dp.HashSplit("shop"), dp.KFold(2), None]
    for split in (dp.RandomSplit(), dp.StratifiedSplit("shop"), *splits):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dp.Preprocessor({"day": "date", "shop": "category"}, split=split).fit(frame)
        leaks = split not in splits and not shuffled
        messages = [str(one.message) for one in caught]
        assert [text for text in messages if "rows look ordered by time" in text] == messages[: int(leaks)], split
        assert not leaks or 'use split=DatetimeSplit("day")' in messages[0]
