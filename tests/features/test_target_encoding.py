from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Iterable

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import PredefinedSplit
from sklearn.preprocessing import TargetEncoder

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError, CorruptDatasetError
from daskprep.serving import Encoder
from daskprep.sources.split.folds import KFold

ROWS = 2_000
TYPES = {"price": "continuous", "sold": "binary", "kind": "multiclass", "label": "binary"}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "city": rng.integers(0, 150, ROWS).astype(str),
            "price": rng.normal(1e4, 10, ROWS),
            "sold": rng.integers(0, 2, ROWS),
            "kind": rng.choice(["x", "y", "z"], ROWS),
            "label": rng.choice(["no", "yes"], ROWS),
            "shop": rng.integers(0, 60, ROWS),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.permutation(ROWS), unit="h"),
        }
    )
    return frame.assign(city=frame["city"].mask(rng.random(ROWS) < 0.03))


def encoding(target="price", **params) -> dp.TargetEncoding:
    is_class = TYPES.get(target) == "multiclass" or target == "label"
    return dp.TargetEncoding(column="city", target=target, target_type="class" if is_class else "number", **params)


def folds_of(folds: KFold, table: pd.DataFrame) -> np.ndarray:
    whole = pa.Table.from_pandas(table)
    return folds.plan([folds.census(whole)])[0].assign(whole, None)


def written(prep, table, path) -> dict[str, dict[str, np.ndarray]]:
    dataset = prep.fit_write(table, path, progress=False)
    return {split: dataset[split].read() for split in dataset}


# -- values


@pytest.mark.parametrize("smooth", ["auto", 0.0, 7.5])
@pytest.mark.parametrize("target", TYPES)
def test_values_equal_scikit_learn_with_the_same_folds(table, tmp_path, target, smooth):
    prep = dp.Preprocessor({"x": encoding(target, smooth=smooth)})
    cross_fitted = written(prep, table, tmp_path / "d")["train"]["x"]
    theirs = TargetEncoder(smooth=smooth, cv=PredefinedSplit(folds_of(KFold(5), table)), target_type=TYPES[target])
    cities = table[["city"]].fillna("<MISSING>")
    expected = theirs.fit_transform(cities, table[target])
    assert cross_fitted.dtype == np.float32
    np.testing.assert_allclose(cross_fitted.reshape(expected.shape), expected, rtol=2e-7)
    np.testing.assert_allclose(prep.encode(table)["x"].reshape(expected.shape), theirs.transform(cities), rtol=2e-7)


def test_counts_and_frequencies_use_all_training_rows(table, tmp_path):
    prep = dp.Preprocessor({one: dp.TargetEncoding(encoding=one, column="city") for one in ("count", "frequency")})
    train = written(prep, table, tmp_path / "d")["train"]
    counts = table["city"].fillna("").map(table["city"].fillna("").value_counts())
    assert train["count"].tolist() == counts.tolist()
    np.testing.assert_array_equal(train["frequency"], (counts / ROWS).astype(np.float32))
    new = prep.encode(pd.DataFrame({"city": ["never", None]}))
    assert new["count"].tolist() == [0, table["city"].isna().sum()]
    unused = dp.TargetEncoding(target="nowhere", encoding="count", column="city")
    assert dp.Preprocessor({"x": unused}).fit(table).encode(table)["x"].tolist() == counts.tolist()


def test_unknown_values_are_the_mean_and_missing_is_a_value():
    frame = pd.DataFrame({"city": ["a", "a", "b", None], "y": [1.0, 3.0, 5.0, 9.0]})
    prep = dp.Preprocessor({"city": dp.TargetEncoding(target="y", smooth=0.0, folds=2)}).fit(frame)
    new = pd.DataFrame({"city": ["a", "b", None, "z", "<MISSING>", "<UNK>"]})
    assert prep.encode(new)["city"].tolist() == [2.0, 5.0, 9.0, 4.5, 9.0, 4.5]
    assert prep.learned_["city"].missing == 1
    assert prep.cell_counts(new).loc["city"].tolist() == [6, 1, 0, 1]


def test_rows_without_target_are_ignored():
    frame = pd.DataFrame({"city": list("aabbc"), "y": [1.0, None, 2.0, 4.0, None]})
    prep = dp.Preprocessor({"city": dp.TargetEncoding(target="y", smooth=0.0, folds=2)}).fit(frame)
    mean = np.float32(7 / 3)
    assert encoded(prep, "abc") == [1.0, 3.0, mean]
    by_class = fitted(list("aabbc"), ["y", None, "x", "y", None], target_type="class", smooth=0.0)
    assert encoded(by_class, "abc") == [1.0, 0.5, np.float32(2 / 3)]


def fitted(city, target, weight=None, **params) -> dp.Preprocessor:
    columns = {"city": city, "y": target} | ({} if weight is None else {"weight": weight})
    feature = dp.TargetEncoding(target="y", folds=2, **params)
    return dp.Preprocessor({"city": feature}, weight=weight and "weight").fit(pa.table(columns))


def encoded(prep: dp.Preprocessor, cities: Iterable[str | None]) -> list:
    return prep.encode(pd.DataFrame({"city": list(cities)}))["city"].tolist()


@pytest.mark.parametrize("smooth", ["auto", 3.0])
@pytest.mark.parametrize(("target", "kind"), [
    ([5.0, 1.0, None, 2.0, 8.0, 3.0], "number"), (list("xyxzyx"), "class"), ([*"xy", None, *"xyx"], "class"),
])  # fmt: skip
def test_weights_equal_repeated_rows(target, kind, smooth):
    cities, weight = list("aababc"), [1, 3, 2, 2, 0, 1]
    weighted = fitted(cities, target, weight, target_type=kind, smooth=smooth)
    repeated = [np.repeat(np.array(column, object), weight).tolist() for column in (cities, target)]
    plain = fitted(*repeated, target_type=kind, smooth=smooth)
    np.testing.assert_allclose(encoded(weighted, "abcd"), encoded(plain, "abcd"), rtol=1e-6)


@pytest.mark.parametrize("smooth", ["auto", 0.0, 2.0])
def test_largest_targets_have_means_and_larger_ones_raise(smooth):
    largest = np.finfo(np.float32).max
    found = fitted(["a", "b", "a", "c"], [1e150, -1e150, 1e150, None], smooth=smooth)
    assert encoded(found, "ab") == [largest, -largest]
    for target, shown in (([1.0, -2e150], "2e+150"), ([math.inf, None], "inf"), (["1", "x"], "x"), (["?", "x"], "[?]")):
        with pytest.raises(
            ColumnError, match=f"target \"y\" holds '{shown}', which cannot be averaged".replace("+", "[+]")
        ):
            fitted(["a", "b"], target, smooth=smooth)


def test_means_and_deviations_scale_with_the_target():
    cities, target, weight = list("aababbc"), np.array([5.0, 1.0, 4.0, 2.0, 8.0, 3.0, 7.0]), [1, 3, 2, 2, 1, 5, 1]
    near = encoded(fitted(cities, target, weight), "abcd")
    assert encoded(fitted(cities, target * 2.0**60, weight), "abcd") == [one * 2.0**60 for one in near]
    largest = np.finfo(np.float32).max
    assert encoded(fitted(list("abab"), [1e100, -1e100] * 2, [1e38] * 4), "ab") == [largest, -largest]


def test_missing_values_with_drop_row_encode_as_unknown():
    prep = fitted(["a", "b", None, "a"], [1.0, 2.0, 3.0, 6.0], smooth=0.0, missing_value_strategy="drop_row")
    assert encoded(prep, ["a", "b", None, "c"]) == [3.5, 2.0, 3.0, 3.0]
    feature = prep.features["city"]
    alone = feature.encode(feature.parse(pa.array(["b", None])), prep.learned_["city"])
    assert alone.tolist() == [2.0, 3.0]


def test_lowercase_ignores_case():
    assert encoded(fitted(["a", "A", "b"], [1.0, 3.0, 5.0], smooth=0.0, lowercase=True), "aAB") == [2.0, 2.0, 5.0]
    assert encoded(fitted(["a", "A", "b"], [1.0, 3.0, 5.0], smooth=0.0), "aAB") == [1.0, 3.0, 3.0]


def test_targets_can_be_missing_or_of_one_class():
    none, nan = pa.nulls(3, pa.string()), pa.array([math.nan, 1.0, 3.0])
    for smooth in ("auto", 0.0, 2.0):
        assert encoded(fitted(["a", "b", "a"], none, smooth=smooth), "abc") == [0.0] * 3
        assert encoded(fitted(["a", "b", "a"], none, smooth=smooth, target_type="class"), "abc") == [0.0] * 3
        assert encoded(fitted(["a", "b", "a"], ["x"] * 3, smooth=smooth, target_type="class"), "abc") == [1.0] * 3
    assert encoded(fitted(["a", "b", "a"], nan, smooth=0.0), "abc") == [3.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("target", "names"), [("xx", ["city"]), ("yx", ["city"]), ("zxy", ["city_x", "city_y", "city_z"])]
)
def test_more_than_two_classes_have_a_column_each(target, names):
    prep = fitted(list("abc"[: len(target)]), list(target), target_type="class", smooth=0.0)
    assert prep.get_feature_names_out().tolist() == names
    found = prep.encode(pd.DataFrame({"city": list("abc")}))["city"]
    assert found.shape == ((3, 3) if len(names) > 1 else (3,))
    decoded = prep.features["city"].decode(found, prep.learned_["city"])
    assert decoded.to_pylist() == found.tolist()
    if target != "xx":
        assert encoded(prep, "ab") == ([[0, 0, 1], [1, 0, 0]] if len(names) > 1 else [1.0, 0.0])


def test_numeric_classes_are_ordered_as_numbers():
    assert fitted(list("abc"), [10, 9, 100], target_type="class").learned_["city"].classes == ("9", "10", "100")


def test_max_classes_is_enforced_across_partitions(sizes):
    sizes(encoded_classes=3)
    frame = pd.DataFrame({"city": list("abcd"), "y": list("wxyz")})
    prep = dp.Preprocessor({"city": dp.TargetEncoding(target="y", target_type="class", folds=2)})
    for partitions in (1, 2):
        assert len(prep.fit(dd.from_pandas(frame[:3], npartitions=partitions)).learned_["city"].classes) == 3
        with pytest.raises(ColumnError, match="more than 3 classes"):
            prep.fit(dd.from_pandas(frame, npartitions=partitions))


# -- folds


def test_training_rows_exclude_their_own_target(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"city": rng.integers(0, 5_000, 20_000).astype(str), "y": rng.integers(0, 2, 20_000)})
    prep = dp.Preprocessor({"city": dp.TargetEncoding(target="y")})
    train = written(prep, frame, tmp_path / "d")["train"]["city"]
    naive = prep.encode(frame)["city"]
    found = {}
    for name, column in (("cross-fitted", train), ("naive", naive)):
        inputs = ((column - column.mean()) / column.std())[:, None]
        found[name] = roc_auc_score(
            frame["y"], LogisticRegression().fit(inputs, frame["y"]).predict_proba(inputs)[:, 1]
        )
    assert abs(found["cross-fitted"] - 0.5) < 0.02
    assert found["naive"] > 0.7


def test_other_splits_are_encoded_with_all_training_rows(table, tmp_path):
    prep = dp.Preprocessor({"x": encoding(), "day": "date"}, split=dp.RandomSplit(seed=1))
    splits = written(prep, table, tmp_path / "d")
    assigned = prep.assign(table)["split"]
    new = prep.encode(table)["x"]
    np.testing.assert_array_equal(splits["test"]["x"], new[assigned == 2])
    assert (splits["train"]["x"] != new[assigned == 0]).mean() > 0.9


@pytest.mark.parametrize("by", [{"fold_group": "shop"}, {"fold_time": "day"}])
def test_folds_by_group_or_time(table, tmp_path, by):
    prep = dp.Preprocessor({"x": encoding(smooth=2.0, folds=4, **by)})
    folds = folds_of(KFold(4, group=by.get("fold_group"), time=by.get("fold_time")), table)
    theirs = TargetEncoder(smooth=2.0, cv=PredefinedSplit(folds), target_type="continuous")
    expected = theirs.fit_transform(table[["city"]].fillna("<MISSING>"), table["price"])[:, 0]
    np.testing.assert_allclose(written(prep, table, tmp_path / "d")["train"]["x"], expected, rtol=2e-7)
    new = table.drop(columns=["price", "shop", "day"])
    assert prep.encode(new)["x"].shape == (ROWS,)


@pytest.mark.parametrize(("split", "parameter"), [
    (dp.DatetimeSplit("day"), "fold_time"), (dp.TimeSeriesSplit("day", fold=3), "fold_time"),
    (dp.KFold(3, time="day", fold=0), "fold_time"), (dp.GroupSplit("shop"), "fold_group"),
    (dp.KFold(3, group="shop", fold=0), "fold_group"),
])  # fmt: skip
def test_folds_follow_a_split_by_time_or_group_by_default(table, tmp_path, split, parameter):
    column = "day" if parameter == "fold_time" else "shop"

    def train(place, **by):
        prep = dp.Preprocessor({"x": encoding(**by)}, split=split)
        found = written(prep, table, tmp_path / place)["train"]["x"]
        reloaded = dp.Preprocessor.from_dict(prep.to_dict())
        again = reloaded.write(table, tmp_path / f"{place}-again", progress=False)["train"].read()["x"]
        np.testing.assert_array_equal(again, found)
        return prep.to_dict()["features"]["x"]["params"], found

    with pytest.warns(UserWarning, match=f'folds by "{column}", like the split; {parameter}=False puts') as caught:
        params, found = train("default")
    assert len(caught) == 1
    assert params[parameter] == column
    np.testing.assert_array_equal(train("named", **{parameter: column})[1], found)
    params, at_random = train("random", **{parameter: False})
    assert params["fold_time"] is params["fold_group"] is None
    assert (at_random != found).mean() > 0.5


@pytest.mark.parametrize(
    "split",
    [dp.DatetimeSplit(["year", "month"], divide_times=True), dp.DatetimeSplit("text", datetime_format="%d.%m.%Y %H")],
)
def test_random_folds_with_a_time_split_warn(table, split):
    day = table["day"]
    frame = table.assign(year=day.dt.year, month=day.dt.month, text=day.dt.strftime("%d.%m.%Y %H"))
    with pytest.warns(UserWarning, match="at random, although the split is in order of time: set fold_time"):
        prep = dp.Preprocessor({"x": encoding()}, split=split).fit(frame)
    assert prep.features_["x"].fold_time is None
    both = {"x": encoding(), "y": encoding()}
    with pytest.warns(UserWarning, match='^features "x", "y": training rows are cross-fitted in folds') as caught:
        dp.Preprocessor(both, split=split).fit(frame)
    assert len(caught) == 1
    dp.Preprocessor({"x": encoding(fold_time="day")}, split=split).fit(frame)


def test_fit_transform_cross_fits_and_transform_does_not(table, tmp_path):
    features = {"x": encoding("kind"), "price": dp.Number(outlier_strategy="drop_row", outlier_threshold=2.0)}
    prep = dp.Preprocessor(features, targets="price", split=dp.RandomSplit())
    splits = written(prep, table, tmp_path / "d")
    kept = prep.assign(table)["split"]
    for frame in (table, dd.from_pandas(table, npartitions=4)):
        found = np.asarray(
            dask.compute(dp.Preprocessor(features, targets="price", split=dp.RandomSplit()).fit_transform(frame))[0]
        )
        for code, split in enumerate(["train", "validation", "test"]):
            np.testing.assert_array_equal(found[kept == code], splits[split]["x"])
    assert prep.get_feature_names_out().tolist() == ["x_x", "x_y", "x_z"]
    np.testing.assert_array_equal(prep.transform(table), prep.encode(table)["x"])


def test_fit_transform_cross_fits_rows_of_all_folds(table):
    def fitted(split):
        return dp.Preprocessor(
            {"x": encoding(fold_group=False), "sold": "binary"}, targets="sold", split=split
        ).fit_transform(table)

    np.testing.assert_array_equal(fitted(dp.KFold(4, group="shop")), fitted(None))


def test_writing_rows_outside_the_fit_warns(table, tmp_path):
    dropping = dp.Number(outlier_strategy="drop_row", outlier_threshold=2.0)
    prep = dp.Preprocessor({"x": encoding("kind"), "price": dropping}, targets="price", split=dp.RandomSplit())
    prep.fit(table).write(table, tmp_path / "same", progress=False)
    prep.write({"test": table[:50]}, tmp_path / "test", progress=False)
    for rows in (table[: ROWS // 2], pd.concat([table, table])):
        with pytest.warns(UserWarning, match=r'feature "x": .* training rows were in the fit, and .* fit_write'):
            prep.write(rows, tmp_path / "others", overwrite=True, progress=False)


def test_streams_and_writes_of_a_fitted_preprocessor_cross_fit_equally(table, tmp_path):
    prep = dp.Preprocessor({"x": encoding(fold_group="shop"), "sold": "binary"}, targets="sold", split=dp.RandomSplit())
    expected = written(prep, table, tmp_path / "d")
    frame = dd.from_pandas(table, npartitions=5)
    again = prep.write(frame, tmp_path / "again", progress=False)
    for split, rows in expected.items():
        np.testing.assert_array_equal(again[split].read()["x"], rows["x"])
        batches = [inputs["x"].numpy() for inputs, _ in prep.stream(frame, 100, split=split, shuffle=False)]
        np.testing.assert_array_equal(np.concatenate(batches), rows["x"])


# -- out of core


@pytest.mark.slow
@pytest.mark.parametrize("spill_bytes", [1 << 26, 1 << 10])
@pytest.mark.parametrize("npartitions", [1, 3, 16, 64])
def test_partitions_and_spilling_do_not_change_bytes(table, tmp_path, sizes, npartitions, spill_bytes):
    sizes(sum_spill_bytes=spill_bytes, sum_group_bytes=64 * spill_bytes)

    def make():
        return dp.Preprocessor({"x": encoding(), "k": encoding("kind", fold_time="day")}, split=dp.RandomSplit())

    expected = make().fit(table)
    prep = make()
    rows = written(prep, dd.from_pandas(table, npartitions=npartitions), tmp_path / "d")
    assert prep.to_dict() == expected.to_dict()
    whole = written(make(), table, tmp_path / "whole")
    for split, arrays in whole.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(rows[split][name], array)


def test_csv_rows_are_counted_before_fold_assignment(table, tmp_path):
    table.to_csv(tmp_path / "rows.csv", index=False)
    source = dp.read_files(str(tmp_path / "rows.csv"), partition_bytes=20_000)
    prep = dp.Preprocessor({"x": encoding()})
    rows = written(prep, source, tmp_path / "d")["train"]["x"]
    np.testing.assert_array_equal(
        rows, written(dp.Preprocessor({"x": encoding()}), table, tmp_path / "e")["train"]["x"]
    )
    assert dp.Preprocessor({"x": encoding()}).fit(source).to_dict() == prep.to_dict()


# -- serving, and errors


@pytest.mark.filterwarnings("ignore:target")
def test_target_cross_fitted_by_group_is_written_and_streamed(table, tmp_path):
    by_shop = encoding(fold_group="shop")
    prep = dp.Preprocessor({"city": "category", "y": by_shop}, targets="y").fit(table)
    assert len(prep.write(table, tmp_path / "a.dp")["train"]) == ROWS
    assert sum(len(y) for _, y in prep.stream(table, 64)) == ROWS


@pytest.mark.parametrize("target", TYPES)
def test_serving_encodes_new_rows_equally(table, tmp_path, target):
    prep = dp.Preprocessor({"x": encoding(target, lowercase=True, null_values=["7"])}).fit(table)
    prep.save(tmp_path / "prep.json")
    new = pd.DataFrame({"city": ["3", " 7", None, "never", 12, "<MISSING>"]}, dtype=object)
    expected = dp.Preprocessor.load(tmp_path / "prep.json").encode(new)["x"]
    np.testing.assert_array_equal(prep.encode(new)["x"], expected)
    found = Encoder(prep.to_dict()).encode(new.to_dict("records"))["x"]
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype == np.float32


def test_invalid_targets_raise(table):
    with pytest.raises(ColumnError, match=r'target "kind" holds .*target_type="class"'):
        dp.Preprocessor({"x": dp.TargetEncoding(target="kind", column="city")}).fit(table)
    with pytest.raises(ColumnError, match="more than 256 classes"):
        dp.Preprocessor({"x": dp.TargetEncoding(target="price", target_type="class", column="city")}).fit(table)


def test_invalid_cross_fitting_parameters_raise(table):
    with pytest.raises(ConfigError, match='"city" requires y to be passed, .* set target= .*target_type="class"'):
        dp.Preprocessor({"city": "target_encoding"}).fit(table)
    with pytest.raises(ConfigError, match='use fit_on="train"'):
        dp.Preprocessor({"x": encoding()}, split=dp.RandomSplit(), fit_on="all").fit(table)
    with pytest.raises(ConfigError, match="use it in a Preprocessor"):
        dp.TargetEncoding(target="price").fit(table[["city"]])
    with pytest.raises(ColumnError, match='column "prize" is not in the data'):
        dp.Preprocessor({"x": encoding("prize")}).fit(table)
    with pytest.raises(ConfigError, match="leave out time"):
        encoding(fold_group="shop", fold_time="day").check()


@pytest.mark.parametrize("parameters", [
    {"target": "price"}, {"target": "two", "target_type": "class"}, {"target": "three", "target_type": "class"},
    {"encoding": "count"},
])  # fmt: skip
def test_learned_state_round_trips_through_json(parameters):
    frame = pd.DataFrame({"city": list("abcabdabca"), "price": np.arange(10.0), "two": list("xy") * 5})
    frame["three"] = list("xyzxyzxyzx")
    prep = dp.Preprocessor({"city": dp.TargetEncoding(folds=2, **parameters)}).fit(frame)
    table = prep.learned_["city"].encodings
    columns = 3 if parameters.get("target") == "three" else 1
    assert table.shape == (1 if "encoding" in parameters else 3, 5, columns)
    found = dp.Preprocessor.from_dict(json.loads(json.dumps(prep.to_dict()))).learned_["city"]
    assert found == prep.learned_["city"]
    np.testing.assert_array_equal(found.encodings, table)
    assert found.classes == prep.learned_["city"].classes
    assert found != found.to_dict()
    assert found != dataclasses.replace(found, encodings=table + 1)


def test_altered_encodings_raise():
    state = fitted(list("aab"), [1.0, 2.0, 3.0]).to_dict()
    learned = state["features"]["city"]["learned"]
    good = learned["encodings"]
    more = base64.b64encode(base64.b64decode(good) * 2).decode()
    for encodings, message in (("", "encodings are empty"), (more, "5 folds, but folds=2"), (f"?{good}", "base64")):
        learned["encodings"] = encodings
        with pytest.raises(CorruptDatasetError, match=message):
            dp.Preprocessor.from_dict(state)
