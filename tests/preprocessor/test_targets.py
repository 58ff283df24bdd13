"""Targets, which a model predicts: their uses, and new rows, which have no targets and are never dropped."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import daskprep as dp
from daskprep import serving
from daskprep.errors import ColumnError, ConfigError, CorruptDatasetError, MissingColumnError, UnfilledCellError
from daskprep.extensions.cli import program

ROWS = 40


@pytest.fixture
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "price": rng.lognormal(size=ROWS).round(3),
            "city": rng.choice(["Rome", "Oslo", "Lima"], ROWS),
            "review": rng.choice(["Nice one!", "bad", "so so"], ROWS),
            "sold": rng.choice(["yes", "no"], ROWS),
            "days": rng.integers(1, 60, ROWS),
        }
    )


def features() -> dict[str, Any]:
    return {
        "price": dp.Number(missing_value_strategy="drop_row", outlier_strategy="drop_row"),
        "city": dp.Category(missing_value_strategy="ffill"),
        "review": dp.Text(max_sequence_length=4),
        "sold": dp.Binary(missing_value_strategy="drop_row"),
        "days": dp.Number(normalization=None, missing_value_strategy="drop_row"),
    }


def make(targets: Any = ("sold", "days"), **others: Any) -> dp.Preprocessor:
    return dp.Preprocessor(features(), targets=targets, **others)


# -- uses of targets


def test_transform_excludes_targets(table):
    prep = make().fit(table)
    assert prep.targets_ == ("sold", "days")
    assert list(prep.feature_names_in_) == ["price", "city", "review"]
    assert prep.get_feature_names_out()[:2].tolist() == ["price", "city"]
    assert prep.transform(table).shape == (ROWS, len(prep.get_feature_names_out())) == (ROWS, 5)


def test_duplicate_target_column_raises(table):
    prep = make("sold").fit(table)
    twice = pd.concat([table, table[["sold"]]], axis=1)
    for call in (prep.encode, prep.cell_counts, prep.stream):
        with pytest.raises(ColumnError, match='2 columns are named "sold"'):
            call(twice)


def test_pipeline_fits_with_labels_and_predicts_without(table):
    pipeline = make_pipeline(make("sold", split=None), LogisticRegression()).fit(table, table["sold"])
    assert len(pipeline.predict(table.drop(columns="sold"))) == ROWS


@pytest.mark.parametrize("targets", ["sold", ["sold"], ("sold", "days"), {"sold": 1}, None, ()])
def test_targets_survive_clone_pickle_json_and_save(table, tmp_path, targets):
    prep = make(targets).fit(table)
    assert clone(prep).get_params(deep=False)["targets"] == prep.targets
    prep.save(tmp_path / "prep.json")
    state = json.loads((tmp_path / "prep.json").read_text())
    assert state.get("targets", []) == list(prep.targets_)
    assert ("targets" in state) == bool(prep.targets_)
    for again in (pickle.loads(pickle.dumps(prep)), dp.Preprocessor.load(tmp_path / "prep.json")):
        assert again.targets_ == prep.targets_
        assert list(again.feature_names_in_) == list(prep.feature_names_in_)


@pytest.mark.parametrize("targets", ["sald", ["sold", "sald"]])
def test_unknown_target_error_suggests_closest_name(table, targets):
    with pytest.raises(ConfigError, match=r'targets: no feature "sald"\. Did you mean "sold"\? Targets are'):
        make(targets).fit(table)


@pytest.mark.parametrize("targets", [5, [5], [["sold"]], [None]])
def test_targets_that_are_not_names_raise(table, targets):
    with pytest.raises(ConfigError, match="targets must be names of features"):
        make(targets).fit(table)


@pytest.mark.parametrize("targets", ["sold", 5, {"sold": 1}, ["sald"], [["sold"]], [5]])
def test_altered_targets_in_a_state_raise(table, targets):
    state = make().fit(table).to_dict()
    with pytest.raises(CorruptDatasetError, match="targets"):
        dp.Preprocessor.from_dict(state | {"targets": targets})


def test_transform_with_only_targets_raises(table):
    prep = dp.Preprocessor({"sold": "binary"}, targets="sold").fit(table)
    with pytest.raises(ConfigError, match="all features are targets"):
        prep.transform(table)


def test_auto_accepts_any_column_as_a_target(table):
    prep = dp.Preprocessor("auto", targets="days").fit(table.assign(days=range(ROWS)))
    assert prep.targets_ == ("days",)
    assert prep.features_["days"].get_params()["normalization"] is None
    assert prep.features_["days"].missing_value_strategy == "drop_row"


def test_targets_are_output_features_in_configurations(table):
    config = make().to_config()
    assert [one["name"] for one in config["input_features"]] == ["price", "city", "review"]
    assert config["output_features"] == [{"name": "sold", "type": "binary"}, {"name": "days", "type": "number"}]
    again = dp.Preprocessor.from_config(config)
    assert again.targets == ["sold", "days"]
    assert again.to_config() == config
    assert again.fit(table).to_dict() == make().fit(table).to_dict()


def test_output_feature_with_kept_rows_round_trips_through_config():
    median = dp.Number(missing_value_strategy="fill_with_median")
    prep = dp.Preprocessor({"x": "number", "y": median}, targets="y")
    [entry] = prep.to_config()["output_features"]
    assert entry["preprocessing"] == {"missing_value_strategy": "fill_with_median", "normalization": "zscore"}
    assert repr(dp.Preprocessor.from_config(prep.to_config()).features["y"]) == repr(median)


def test_descriptions_reports_and_cli_show_targets(table, tmp_path):
    prep = make()
    dataset = prep.fit_write(table, tmp_path / "a.dp")
    assert dataset.targets == dp.open_dataset(tmp_path / "a.dp").targets == ("sold", "days")
    assert "binary, target" in prep._repr_html_()
    assert "binary, target" in dataset.report().html
    text = CliRunner().invoke(program, ["inspect", str(tmp_path / "a.dp")]).output
    assert "number, target" in text
    inspected = json.loads(CliRunner().invoke(program, ["inspect", str(tmp_path / "a.dp"), "--json"]).output)
    assert inspected["targets"] == ["sold", "days"]


def test_cli_target_option_requires_auto(table, tmp_path):
    table.to_csv(tmp_path / "a.csv", index=False)
    command = ["preprocess", "auto", str(tmp_path / "a.csv"), "-o", str(tmp_path / "a.dp"), "-q"]
    assert CliRunner().invoke(program, [*command, "--target", "sold", "--target", "days"]).exit_code == 0
    assert dp.open_dataset(tmp_path / "a.dp").targets == ("sold", "days")
    (tmp_path / "a.json").write_text(json.dumps(make().to_config()))
    refused = CliRunner().invoke(program, ["preprocess", str(tmp_path / "a.json"), *command[2:], "--target", "sold"])
    assert refused.exit_code == 2
    assert "output_features" in refused.output


# -- loaders and streams


def parts_of(batch: Any) -> tuple[set[str], Any]:
    inputs, targets = batch
    return set(inputs), set(targets) if isinstance(targets, dict) else type(targets).__name__


INPUTS = {"price", "city", "review"}


@pytest.mark.parametrize("way", ["loader", "stream"])
@pytest.mark.parametrize(
    ("of_prep", "given", "expected"),
    [
        (("sold", "days"), {}, (INPUTS, {"sold", "days"})),
        ("sold", {}, (INPUTS | {"days"}, "Tensor")),
        (["sold"], {}, (INPUTS | {"days"}, "Tensor")),
        (("sold", "days"), {"targets": "days"}, (INPUTS | {"sold"}, "Tensor")),
        (("sold", "days"), {"targets": ["days"]}, (INPUTS | {"sold"}, {"days"})),
        (("sold", "days"), {"columns": ["price", "days"]}, ({"price"}, "Tensor")),
        (("sold", "days"), {"columns": ["price"], "targets": "sold"}, ({"price"}, "Tensor")),
    ],
)
def test_batches_return_targets_separately(table, tmp_path, way, of_prep, given, expected):
    prep = make(of_prep).set_params(price="number")
    dataset = prep.fit_write(table, tmp_path / "a.dp")
    batches = dataset["train"].loader(8, **given) if way == "loader" else prep.stream(table, 8, **given)
    assert parts_of(next(iter(batches))) == expected


@pytest.mark.parametrize("way", ["loader", "stream"])
@pytest.mark.parametrize("given", [{"targets": ()}, {"columns": ["price", "city"]}])
def test_batches_without_target_columns_are_inputs(table, tmp_path, way, given):
    prep = make().set_params(price="number")
    dataset = prep.fit_write(table, tmp_path / "a.dp")
    batches = dataset["train"].loader(8, **given) if way == "loader" else prep.stream(table, 8, **given)
    assert set(next(iter(batches))) == set(given.get("columns", features()))


def test_stream_warns_with_the_number_of_dropped_rows(table):
    prep = make().fit(table)
    gaps = table.assign(sold=table["sold"].where(table.index % 4 != 0))
    with pytest.warns(UserWarning, match=r'^1[0-9] of 40 rows are left out, .* of "price", "sold", "days"') as caught:
        stream = prep.stream(gaps, 8)
    assert len(caught) == 1
    assert sum(len(targets["sold"]) for _, targets in stream) == 40 - int(str(caught[0].message)[:2])


def test_stream_warns_about_rows_excluded_by_a_gap():
    frame = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=10), "price": range(10)})
    prep = dp.Preprocessor({"price": "number"}, split=dp.DatetimeSplit("day", (0.5, 0.2, 0.3), gap="2 days")).fit(frame)
    with pytest.warns(
        UserWarning, match="^2 of 10 rows are left out, because they are less than 2 days after the end of"
    ):
        prep.stream(frame, 4)


# -- new rows


def frames(table: pd.DataFrame, folder: Path) -> dict[str, Any]:
    table.to_parquet(folder / "a.parquet")
    table.to_json(folder / "a.jsonl", orient="records", lines=True)
    return {
        "pandas": table,
        **{f"dask-{parts}": dd.from_pandas(table, npartitions=parts, sort=False) for parts in (1, 3, 7)},
        "parquet": folder / "a.parquet",
        "json lines": folder / "a.jsonl",
        "source": dp.read_files(folder / "a.parquet", partition_bytes=1_000),
    }


def add_odd_cells(table: pd.DataFrame) -> pd.DataFrame:
    """Return new rows as in production: with missing, unreadable and unseen cells."""
    prices = table["price"].astype(object).where(table.index % 3 != 0, "$3").where(table.index % 5 != 0, None)
    cities = table["city"].where(table.index % 4 != 0, "Atlantis").where(table.index % 7 != 0, None)
    return table.assign(price=prices.map(str, na_action="ignore"), city=cities)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:encode: ", "ignore:the rows are encoded without .days., .sold.:UserWarning")
@pytest.mark.parametrize("labels", ["without", "empty", "one of two", "there"])
def test_every_new_row_is_encoded(table, tmp_path, labels):
    prep = make().fit(table)
    new = add_odd_cells(table)
    if labels == "without":
        new = new.drop(columns=["sold", "days"])
    elif labels == "one of two":
        new = new.drop(columns="days")
    elif labels == "empty":
        new = new.assign(sold=pd.Series([None] * ROWS, dtype=object), days=np.nan)
    outputs = {"price", "city", "review"} | ({"sold", "days"} if labels == "there" else set())
    expected = prep.encode(new)
    for way, frame in frames(new, tmp_path).items():
        arrays = prep.encode(frame)
        if labels == "empty" and "sold" in arrays:  # lazy arrays cannot leave out a target
            for target in ("sold", "days"):
                with pytest.raises(UnfilledCellError, match="leave out the rows, or the column of a target"):
                    np.asarray(arrays.pop(target))
        assert set(arrays) == outputs
        for output, array in arrays.items():
            assert len(np.asarray(array)) == ROWS
            np.testing.assert_array_equal(np.asarray(array), expected[output], err_msg=f"{way} {output}")
        assert len(np.asarray(prep.transform(frame))) == ROWS


@pytest.mark.filterwarnings("ignore:encode: ")
def test_single_rows_encode_as_in_a_frame(table):
    prep = make().fit(table)
    new = add_odd_cells(table).drop(columns=["sold", "days"]).assign(city="Rome")
    whole = prep.encode(new)
    for row in range(ROWS):
        for output, array in prep.encode(new[row : row + 1]).items():
            np.testing.assert_array_equal(array, whole[output][row : row + 1])


def test_new_rows_without_targets_are_streamed_and_written(table, tmp_path):
    prep = make().set_params(price="number").fit(table)
    new = table.drop(columns="days")
    batches = list(prep.stream(new, 8, shuffle=False))
    assert sum(len(batch["price"]) for batch in batches) == ROWS
    assert all(set(batch) == INPUTS for batch in batches)
    dataset = prep.write(new, tmp_path / "new.dp")
    assert dataset.targets == ()
    assert set(dataset["train"].columns) - {"row_id"} == INPUTS
    assert dp.Preprocessor.from_dataset(dataset).targets_ == ()


@pytest.mark.parametrize("split", [dp.StratifiedSplit("sold"), dp.HashSplit("sold"), dp.FixedSplit("part")])
def test_unlabeled_rows_require_a_split_if_the_split_reads_the_target(table, tmp_path, split):
    prep = make().set_params(price="number", split=split).fit(table.assign(part=0))
    new = table.drop(columns=["sold", "days"])
    for method in (prep.stream, lambda rows: prep.write(rows, tmp_path / "new.dp")):
        with pytest.raises(
            MissingColumnError, match=r'"(sold|part)" is not .* use encode.*write\({"test": rows}, path'
        ):
            method(new)
        with pytest.raises(MissingColumnError, match='"city" is not in the data.*review$'):
            method(new.drop(columns="city"))
    dataset = prep.write({"test": new}, tmp_path / "new.dp")
    assert set(dataset["test"].columns) - {"row_id"} == INPUTS
    [batch] = prep.stream({"test": new}, ROWS, split="test", shuffle=False)
    np.testing.assert_array_equal(batch["city"], dataset["test"].read("city")["city"])


def test_missing_input_column_raises(table):
    prep = make().fit(table)
    for frame in (table.drop(columns="city"), table.drop(columns=["city", "sold", "days"])):
        with pytest.raises(ColumnError, match='"city"'):
            prep.encode(frame)


def test_cell_counts_are_the_same_for_every_source(table, tmp_path):
    prep = make().fit(table)
    new = add_odd_cells(table).drop(columns=["sold", "days"])
    expected = pd.DataFrame(
        {
            "rows": ROWS,
            "missing": [(new["price"].isna() | (new["price"] == "$3")).sum(), new["city"].isna().sum(), 0],
            "unreadable": [(new["price"] == "$3").sum(), 0, 0],
            "unseen": [0, (new["city"] == "Atlantis").sum(), 0],
        },
        pd.Index(["price", "city", "review"], dtype=object),
    )
    for frame in frames(new, tmp_path).values():
        pd.testing.assert_frame_equal(prep.cell_counts(frame), expected, check_dtype=False)
        assert prep.cell_counts(frame).dtypes.unique().tolist() == [np.dtype(np.int64)]
    assert (expected[["missing", "unreadable"]].loc["price"] > 3).all()


@pytest.mark.parametrize(
    ("feature", "seen", "new", "counts"),
    [
        (dp.Category(most_common=1), ["a", "a", "b"], ["a", "b", "<UNK>", None, "c"], [1, 0, 2]),
        (dp.Binary(), ["yes", "no"], ["yes", "maybe", None, "", "no"], [3, 2, 0]),
        (dp.Set(), ["a b", "c"], ["a", "", "d a", "e f", None], [1, 0, 2]),
        (dp.Bag(), ["a b", "c"], ["a", "", "d d", "e f", None], [1, 0, 2]),
        (dp.Sequence(), ["a b", "c"], ["a", "", "d d", "e f", None], [1, 0, 2]),
        (dp.Text(), ["One two", "three"], ["one", "", "two four", "two!", None], [1, 0, 2]),
        (dp.Text(level="both"), ["one two", "three"], ["one", "", "two four", "eno", None], [1, 0, 2]),
        (dp.Text(level="char"), ["one two", "three"], ["one", "", "two four", "eno", None], [1, 0, 1]),
        (dp.Vector(), ["1 2", "3 4"], ["1 2", "x", None, "", "5 6"], [3, 2, 0]),
        (dp.Date(), ["2020-01-01", "2021-02-03"], ["2020-02-02", "soon", None, "", "1999-01-01"], [3, 2, 0]),
        (dp.H3(), ["622236750694711295"] * 2, ["622236750694711295", "x", None, "", "622236750694711295"], [3, 2, 0]),
        (dp.Timeseries(), ["1 2", "3"], ["1 2", "x", None, "", "5 6"], [2, 1, 0]),
        (dp.Number(), ["1", "2"], ["1", "$3", None, "", "5e1"], [3, 2, 0]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, dp.Feature) else "",
)
@pytest.mark.parametrize("strategy", ["drop_row", "fill_with_mode"])
def test_cell_counts_of_every_type(feature, seen, new, counts, strategy):
    feature = clone(feature).set_params(missing_value_strategy=strategy)
    prep = dp.Preprocessor({"x": feature}).fit(pd.DataFrame({"x": pd.Series(seen, dtype=object)}))
    frame = pd.DataFrame({"x": pd.Series(new, dtype=object)})
    assert prep.cell_counts(frame).loc["x"].tolist() == [len(new), *counts]
    assert all(len(rows) == len(new) for rows in prep.encode(frame).values())


def test_cell_counts_ignore_invalid_raise(table):
    prep = make().set_params(price__invalid="raise").fit(table)
    assert prep.cell_counts(add_odd_cells(table)).loc["price", "unreadable"] > 3


def test_imputed_labels_warn():
    frame = pd.DataFrame({"size": [1.0, 2.0, 3.0, 4.0], "sold": ["yes", "no", None, "yes"]})
    features = {"size": "number", "sold": dp.Binary(missing_value_strategy="fill_with_true")}
    message = 'target "sold": 1 of 4 labels are missing, and models are trained as if they were True: .*"drop_row"'
    with pytest.warns(UserWarning, match=message):
        dp.Preprocessor(features, targets="sold").fit(frame)
    dp.Preprocessor(features).fit(frame)


LABELS: dict[str, list[Any]] = {
    "binary": ["yes", "no"],
    "number": [1.5, 2.5],
    "category": ["a", "b"],
    "date": ["2024-01-02", "2024-03-04"],
    "set": ["a b", "b"],
    "bag": ["a b", "b"],
    "text": ["good one", "bad"],
    "sequence": ["a b", "b"],
    "vector": ["1 2", "3 4"],
    "timeseries": ["1 2", "3"],
    "h3": [576495936675512319, 577199624117288959],
}
UNREADABLE = {"binary": "maybe", "number": "much", "date": "soon", "vector": "1 x", "timeseries": "a", "h3": "north"}


@pytest.mark.filterwarnings("ignore:.*(cannot be read|is constant|is neither)")
@pytest.mark.parametrize("way", ["fit_write", "write", "append", "loaded", "stream"])
@pytest.mark.parametrize("kind", LABELS)
def test_labels_are_never_invented(tmp_path, kind, way):
    rows = pd.DataFrame({"x": np.arange(40.0), "y": (LABELS[kind] * 20)}).astype({"y": object})
    bad = rows.copy()
    bad.loc[::7, "y"] = None
    bad.loc[3::11, "y"] = UNREADABLE.get(kind)
    expected = np.flatnonzero(bad["y"].notna() & (bad["y"] != UNREADABLE.get(kind)))
    prep = dp.Preprocessor({"x": dp.Number(normalization=None), "y": kind}, targets="y", split=None)
    splits = {"train": rows, "validation": bad, "test": bad}
    prep.fit(rows)
    if way == "stream":
        with pytest.warns(UserWarning, match="rows"):
            batches = list(prep.stream({"test": bad}, 8, split="test", shuffle=False))
        assert np.concatenate([inputs["x"] for inputs, _ in batches]).tolist() == expected.tolist()
        return
    if way == "append":
        prep.write(rows, tmp_path / "a.dp")
    elif way == "loaded":
        prep.save(tmp_path / "prep.json")
        prep, way = dp.Preprocessor.load(tmp_path / "prep.json"), "write"
    call = getattr(prep, way)
    with pytest.warns(UserWarning, match=r'"y": [0-9]+ rows? \(.*\) without a readable label left out') as caught:
        dataset = call(splits, tmp_path / "a.dp")
    assert len([one for one in caught if "information is lost" in str(one.message)]) == 1
    for split in ("validation", "test"):
        assert sorted(getattr(dataset, "datasets", [dataset])[-1][split].read("x")["x"]) == expected.tolist()
    assert len(dataset.rejects()) == 2 * (len(bad) - len(expected))


def test_targets_of_inferred_features(table):
    inferred = dp.infer_features(table, targets=["sold"], progress=False)
    assert dp.Preprocessor(inferred).fit(table).targets_ == ("sold",)
    assert clone(dp.Preprocessor(inferred)).fit(table).targets_ == ("sold",)
    assert dp.Preprocessor(inferred, targets="days").fit(table).targets_ == ("days",)
    assert dp.Preprocessor(inferred, targets=()).fit(table).targets_ == ()


def test_one_row_as_a_dict_of_cells(table):
    prep = make().fit(table)
    row = table.iloc[3].to_dict()
    few, one = prep.encode(row), prep.encode(table.iloc[[3]])
    assert all(np.array_equal(few[name], one[name]) for name in one)
    assert set(prep.encode({key: row[key] for key in ("price", "city", "review")})) < set(few)
    assert np.array_equal(prep.transform(row), prep.transform(table.iloc[[3]]))
    assert prep.cell_counts(row)["rows"].eq(1).all()


def test_target_with_horizon_warns_if_incomplete_horizons_stay():
    frame = pd.DataFrame({"load": range(6), "complete": [1, 1, 1, 1, 0, 0]})
    features = {"past": dp.Timeseries(column="load", window_size=2), "next": dp.Timeseries(column="load", horizon=2)}
    dp.Preprocessor(features, targets="next").fit(frame)
    features["next"] = dp.Timeseries(column="load", horizon=2, padding_value=0, missing_value_strategy="ffill")
    with pytest.warns(UserWarning, match='"next": the horizon of the last 2 rows .* learn 0.0 as if it were true'):
        dp.Preprocessor(features, targets="next").fit(frame)
    dp.Preprocessor(features, targets="next", weight="complete").fit(frame)
    dp.Preprocessor(features).fit(frame)


@pytest.mark.parametrize("rows", [3, 300])
@pytest.mark.parametrize("kind", ["category", "binary", "number", "set", "date"])
def test_encode_without_a_label_returns_the_inputs(kind, rows):
    labels = {"number": [1.0, 2.0, 1.0], "date": ["2020-01-01", "2020-01-02", "2020-01-01"]}.get(kind, ["a", "b", "a"])
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": labels, "n": [1.0, 2.0, 3.0]})
    features = {"x": "number", "y": dp.Binary(positive="b") if kind == "binary" else kind, "n": "number"}
    prep = dp.Preprocessor(features, targets=["y", "n"], split=None).fit(frame)
    new = pd.concat([frame.assign(y=[labels[0], None, labels[1]])] * (rows // 3), ignore_index=True)
    with pytest.warns(UserWarning, match='encoded without "y": some have no label'):
        encoded = prep.encode(new)
    assert sorted(encoded) == ["n", "x"]
    assert (encoded["x"] == prep.encode(new[["x"]])["x"]).all()
    assert sorted(serving.Encoder(prep.to_dict()).encode(new.to_dict("records"))) == ["n", "x"]
    with pytest.raises(UnfilledCellError, match="cells are missing"):
        dask.compute(dict(prep.encode(dd.from_pandas(new, npartitions=1))))
    assert {"y", "n", "x"} <= set(prep.encode(frame)) == set(prep.encode(frame.iloc[:1]))


def test_encode_replaces_missing_labels_by_another_strategy():
    frame = pd.DataFrame({"x": [1.0, 2.0], "y": [True, False], "n": [1.0, 3.0]})
    features = {
        "x": "number",
        "y": dp.Binary(missing_value_strategy="fill_with_false"),
        "n": dp.Number(missing_value_strategy="fill_with_median", normalization=None),
    }
    prep = dp.Preprocessor(features, targets=["y", "n"], split=None).fit(frame)
    encoded = prep.encode(pd.DataFrame({"x": [1.0], "y": [None], "n": [None]}))
    assert (encoded["y"].tolist(), encoded["n"].tolist()) == ([0], [2.0])


def test_target_with_a_class_for_unknown_values_is_loaded_as_saved():
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": ["a", "b", "a"]})
    prep = dp.Preprocessor({"x": "number", "y": dp.Category(handle_unknown="unk")}, targets="y").fit(frame)
    state = prep.to_dict()
    assert "handle_unknown" not in state["features"]["y"]["params"]  # as before the parameter existed
    again = dp.Preprocessor.from_dict(state)
    assert again.features_["y"].handle_unknown == "unk"
    new = frame.assign(y=["b", "c", "a"])
    assert again.encode(new)["y"].tolist() == prep.encode(new)["y"].tolist()
