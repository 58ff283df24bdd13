from __future__ import annotations

import dataclasses
import itertools
import json
import pickle

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError
from daskprep.features.base import find_dropped_rows, validate
from daskprep.features.timeseries import LearnedTimeseries, Timeseries
from daskprep.passes.encoding import encode_source
from daskprep.passes.scanning import ScanPlan, scan_source
from daskprep.passes.table import parse_columns
from daskprep.sources import as_source

nan = np.nan


def column(*cells) -> pd.DataFrame:
    return pd.DataFrame({"x": list(cells)})


def read(*cells, **parameters) -> list[list[float] | None]:
    parsed = Timeseries(**parameters).parse(pa.array(cells)).to_pylist()
    return [cell and [None if np.isnan(number) else number for number in cell] for cell in parsed]


def encoded(feature: Timeseries, frame) -> list[list[float]]:
    return none_for_nan(feature.fit(frame).transform(frame))


def none_for_nan(rows) -> list[list[float | None]]:
    return [[None if np.isnan(number) else number for number in row] for row in np.asarray(rows).tolist()]


# -- a series in every cell


def test_series_encode_as_expected(as_frame):
    assert encoded(Timeseries(), as_frame(column("1 2 3", None, "6"))) == [[1, 2, 3], [0, 0, 0], [6, 0, 0]]


def test_nan_becomes_the_padding_value(as_frame):
    frame = as_frame(column("1.53 2.3 NaN 6.4 3", "1"))
    expected = np.float32([[1.53, 2.3, 42, 6.4, 3], [1, 42, 42, 42, 42]]).tolist()
    assert encoded(Timeseries(padding_value=42), frame) == expected


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"padding": "left"}, [[0, 1, 2], [3, 4, 5]]),
        ({"timeseries_length_limit": 2}, [[1, 2], [3, 4]]),
        ({"timeseries_length_limit": 2, "padding": "left"}, [[1, 2], [3, 4]]),
        ({"timeseries_length_limit": 2, "truncation": "keep_end"}, [[1, 2], [4, 5]]),
        ({"timeseries_length_limit": 1, "truncation": "keep_end", "padding": "left"}, [[2], [5]]),
        ({"timeseries_length_limit": 9}, [[1, 2, 0], [3, 4, 5]]),
    ],
)
def test_series_are_truncated_and_padded(as_frame, parameters, expected):
    assert encoded(Timeseries(**parameters), as_frame(column("1 2", "3 4 5"))) == expected


@pytest.mark.parametrize(
    ("tokenizer", "text", "expected"),
    [
        ("space", " 1\t2.5  -3e1\n", [1, 2.5, -30]),
        ("space", "1 nan 3", [1, None, 3]),
        ("comma", "1, 2.5,-3e1", [1, 2.5, -30]),
        ("comma", "1,,3", [1, None, 3]),
        ("underscore", "1_2.5_-3e1", [1, 2.5, -30]),
        ("comma", "1 2", None),
        ("space", "[1.0, 2.5, nan]", [1, 2.5, None]),
        ("space", "[1,, 2]", None),
        ("underscore", "[1_2]", None),
        ("space", "1 b", None),
        ("space", "1 inf", None),
        ("space", "1 1e39", None),
        ("space", "", []),
        ("comma", " ", []),
    ],
)
def test_text_is_split_by_the_tokenizer(tokenizer, text, expected):
    assert read(text, None, tokenizer=tokenizer) == [expected, None]
    assert read("7", text, tokenizer=tokenizer) == [[7], expected]


def test_null_in_a_list_does_not_depend_on_neighboring_cells():
    prep = dp.Preprocessor({"x": dp.Timeseries()}).fit(pd.DataFrame({"x": [[1.0, 2.0], [3.0]]}))
    alone = prep.encode(pd.DataFrame({"x": [[1, None]]}))["x"]
    assert alone.tolist() == [[1.0, 0.0]]
    for other in ([2], [2**63], ["2"]):
        np.testing.assert_array_equal(prep.encode(pd.DataFrame({"x": [[1, None], other]}))["x"][:1], alone)


def test_lists_and_numbers_are_read():
    assert read([1, 2.5], [None, nan], [], None, [np.inf]) == [[1, 2.5], [None, None], [], None, None]
    assert read(1.5, None, nan, -np.inf) == [[1.5], None, None, None]
    assert Timeseries().parse(pa.array(["1", "x", "2 3"]).dictionary_encode()[1:]).to_pylist() == [
        None,
        [2, 3],
    ]


def test_non_finite_padding_value_raises():
    for value in (1e300, float("inf")):
        with pytest.raises(ConfigError, match="is not a finite float32"):
            Timeseries(padding_value=value).fit(pd.DataFrame({"x": ["1 2"]}))


def test_missing_series_have_length_one(as_object_frame):
    frame = as_object_frame(pd.DataFrame({"x": [None, None]}, dtype=object))
    assert encoded(Timeseries(padding_value=5), frame) == [[5], [5]]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, [0, 0]),
        ({"fill_value": "5 6"}, [5, 6]),
        ({"fill_value": 5}, [5, 0]),
        ({"fill_value": "5,6", "tokenizer": "comma"}, [5, 6]),
        ({"missing_value_strategy": "fill_with_mode"}, [3, 0]),
        ({"missing_value_strategy": "fill_with_mode", "tokenizer": "underscore"}, [3, 0]),
        ({"missing_value_strategy": "ffill"}, [1, 2]),
        ({"missing_value_strategy": "bfill"}, [3, 0]),
    ],
)
def test_missing_series_are_filled(as_frame, parameters, expected):
    separator = {"comma": ",", "underscore": "_"}.get(parameters.get("tokenizer"), " ")
    frame = as_frame(column(f"1{separator}2", None, "3", "3.0"))
    assert encoded(Timeseries(**parameters), frame)[1] == expected


def test_learned_state_round_trips_through_json(as_frame):
    frame = as_frame(column("1 2", None, "3 4 5", "junk"))
    feature = Timeseries(fill_value="1 2 3 4")
    with pytest.warns(UserWarning, match="'junk'"):
        learned = feature.fit(frame).learned_["x"]
    assert (learned.max_timeseries_length, learned.missing, learned.invalid) == (4, 2, 1)
    assert LearnedTimeseries.from_dict(json.loads(json.dumps(learned.to_dict()))) == learned
    assert feature.get_feature_names_out().tolist() == ["x_0", "x_1", "x_2", "x_3"]


def test_decode_returns_rows():
    feature, learned = Timeseries(), LearnedTimeseries(max_timeseries_length=3)
    rows = feature.encode(feature.parse(pa.array(["1 2", "3 4 5"])), learned)
    assert feature.decode(rows, learned).to_pylist() == [[1, 2, 0], [3, 4, 5]]


# -- windows


def test_windows_encode_as_expected(as_frame):
    frame = as_frame(column(1, 2, 3, 4, 5))
    windows = [[None, None, 1], [None, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert encoded(Timeseries(window_size=3), frame) == windows
    assert encoded(Timeseries(horizon=2), frame) == [[2, 3], [3, 4], [4, 5], [5, None], [None, None]]


def test_windows_span_many_partitions():
    frame = column(*range(1, 8))
    for cut in range(8):
        feature = Timeseries(window_size=7)
        pieces = [frame.iloc[:cut], frame.iloc[cut:cut], *(frame.iloc[i : i + 1] for i in range(cut, 7))]
        assert across(feature, pieces)[-1] == [1, 2, 3, 4, 5, 6, 7]


def test_window_of_one_is_the_number(as_frame):
    assert encoded(Timeseries(window_size=1), as_frame(column("1", "2", "3"))) == [[1], [2], [3]]


def test_windows_pad_missing_numbers(as_frame):
    frame = as_frame(column(1.0, nan, 3.0))
    assert encoded(Timeseries(window_size=2, padding_value=-1), frame) == [[-1, 1], [1, -1], [-1, 3]]
    assert encoded(Timeseries(window_size=2, padding_value=-1, fill_value="9"), frame) == [
        [-1, 1],
        [1, 9],
        [9, 3],
    ]


def test_windows_stay_in_their_group(as_frame):
    frame = as_frame(pd.DataFrame({"x": [1, 2, 3, 4, 5], "who": ["a", "b", "a", None, "b"]}))
    feature = Timeseries(window_size=2, group_by="who")
    assert feature.reads("x") == ["x", "who"]
    assert with_group(feature, frame) == [[None, 1], [None, 2], [1, 3], [None, 4], [2, 5]]
    assert with_group(Timeseries(horizon=1, group_by="who"), frame) == [[3], [5], [None], [None], [None]]


def test_groups_do_not_depend_on_the_type():
    first = pd.DataFrame({"x": [1.0, 2.0], "who": [1, 2]})
    second = pd.DataFrame({"x": [3.0, 4.0], "who": [2.0, nan]})
    assert across(Timeseries(window_size=2, group_by="who"), [first, second]) == [
        [None, 1],
        [None, 2],
        [2, 3],
        [None, 4],
    ]


def test_rows_with_an_incomplete_window_are_dropped():
    feature = Timeseries(window_size=2, missing_value_strategy="drop_row")
    learned = LearnedTimeseries(max_timeseries_length=2)
    parsed = feature.parse(pa.array([1.0, None, 3.0]))
    windows = feature.imputer.complete(parsed, None, learned)
    assert find_dropped_rows(feature, windows, learned).tolist() == [True, True, True]
    assert none_for_nan(feature.encode(windows, learned)) == [[None, 1], [1, None], [None, 3]]
    complete = feature.imputer.complete(feature.parse(pa.array([1.0, 2.0])), None, learned)
    assert find_dropped_rows(feature, complete, learned).tolist() == [True, False]


def test_windows_do_not_change_the_learned_state(as_frame):
    learned = Timeseries(window_size=4).fit(as_frame(column(1.0, nan, 3.0))).learned_["x"]
    assert (learned.rows, learned.missing, learned.max_timeseries_length) == (3, 1, 4)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"window_size": 2, "horizon": 2}, "window_size=2 .*horizon=2"),
        ({"group_by": "who"}, "group_by='who' needs"),
        ({"window_size": 2, "missing_value_strategy": "fill_with_mode"}, "fill_with_mode"),
        ({"window_size": -1}, "window_size must be"),
        ({"fill_value": "x"}, "'x' cannot be read"),
        ({"fill_value": "1 2", "window_size": 2}, "'1 2' cannot be read"),
        ({"tokenizer": "spaces"}, 'Did you mean "space"'),
    ],
)
def test_invalid_parameters_raise(parameters, message):
    with pytest.raises(ConfigError, match=message):
        validate(Timeseries(**parameters))


def test_windows_accept_only_numbers():
    with pytest.raises(ColumnError, match="list"):
        Timeseries(window_size=2).parse(pa.array([[1.0]]))


def with_group(feature: Timeseries, frame) -> list[list[float]]:
    source, features = as_source(frame), {"x": feature}
    return none_for_nan(encode_source(features, scan_source(ScanPlan(features), source).states[0], source)["x"])


def across(feature: Timeseries, pieces) -> list[list[float]]:
    """Encode pieces of a frame as partitions, which exchange only their edges."""
    tables = [pa.Table.from_pandas(piece, preserve_index=False) for piece in pieces]
    constant = feature.missing_value_strategy == "fill_with_const"
    learned = dataclasses.replace(feature.learn(feature.summarize(feature.parse_fill(""))), rows=1)
    learned = dataclasses.replace(learned, fill_value=feature.fill_value if constant else None)
    parsed = [parse_columns({"x": feature}, table).columns["x"] for table in tables]
    borders = [pickle.loads(pickle.dumps(feature.imputer.find_border(one, learned))) for one in parsed]
    windows = [
        feature.encode(feature.imputer.complete(one, border_value, learned), learned)
        for one, border_value in zip(parsed, feature.imputer.compute_border_values(borders), strict=True)
    ]
    return none_for_nan(np.concatenate(windows))


def by_hand(feature: Timeseries, numbers: list[float], groups: list[str | None]) -> list[list[float]]:
    """Compute every window row by row."""
    rows = []
    for i, group in enumerate(groups):
        alike = [j for j, other in enumerate(groups) if other == group]
        line = pd.Series([numbers[j] for j in alike], dtype=float)
        if feature.missing_value_strategy == "ffill":
            line = line.ffill().bfill()
        elif feature.missing_value_strategy == "bfill":
            line = line.bfill().ffill()
        here = alike.index(i)
        places = range(here + 1, here + 1 + feature.horizon)
        if feature.window_size:
            places = range(here - feature.window_size + 1, here + 1)
        window = [line[place] if 0 <= place < len(line) else nan for place in places]
        rows.append([-1.0 if np.isnan(number) else number for number in window])
    return rows


@given(
    rows=st.lists(
        st.tuples(st.sampled_from([nan, *map(float, range(5))]), st.sampled_from(["a", "b", None])),
        min_size=1,
    ),
    cuts=st.lists(st.integers(0, 30), max_size=5),
    look=st.tuples(st.sampled_from(["window_size", "horizon"]), st.integers(1, 6)),
    group_by=st.sampled_from([None, "who"]),
    strategy=st.sampled_from(["fill_with_const", "ffill", "bfill"]),
)
def test_windows_do_not_depend_on_partitions(rows, cuts, look, group_by, strategy):
    options = {"group_by": group_by, "missing_value_strategy": strategy, "padding_value": -1}
    feature = Timeseries(**dict([look]), **options)
    numbers, names = zip(*rows, strict=True)
    table = pa.table({"x": pa.array(numbers, from_pandas=True), "who": pa.array(names, pa.string())})
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    pieces = [table.slice(begin, end - begin).to_pandas() for begin, end in itertools.pairwise(edges)]
    groups = list(names) if group_by else [""] * len(rows)
    assert across(feature, pieces) == by_hand(feature, list(numbers), groups)


@pytest.mark.filterwarnings("ignore:.* are left out", "ignore:.* whose windows are incomplete")
@pytest.mark.parametrize("look", [{"window_size": 4}, {"horizon": 3}])
@pytest.mark.parametrize("strategy", ["fill_with_const", "ffill", "drop_row"])
@pytest.mark.parametrize("partitions", [1, 7])
def test_windows_do_not_cross_splits(tmp_path, look, strategy, partitions):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"x": np.arange(1.0, 61), "split": rng.choice(["train", "validation", "test"], 60), "g": rng.integers(0, 2, 60)}
    )
    frame["split"] = np.where(frame.index < 30, frame["split"], np.where(frame.index < 45, "train", "test"))
    frame["kept"] = pd.Series(np.arange(60.0)).mask(rng.random(60) < 0.1)
    options = {"group_by": "g", "missing_value_strategy": strategy, "fill_value": 7, "padding_value": -1}
    options["across_splits"] = False
    features = {"x": Timeseries(**look, **options), "kept": dp.Number(missing_value_strategy="drop_row")}
    prep = dp.Preprocessor(features, split=dp.FixedSplit("split"))
    rows = dd.from_pandas(frame, npartitions=partitions)
    dataset = prep.fit_write(rows, tmp_path / "d.dp", progress=False)
    crossing = prep.encode(frame)["x"]
    number_of = dict(zip(frame["x"], frame.index, strict=True))
    for split in dataset:
        inside = set(frame.index[(frame["split"] == split) | frame["kept"].isna()])
        stored = dataset[split].read(["row_id", "x"])
        ids, found = stored["row_id"], stored["x"]
        expected = [[one if number_of.get(one) in inside else -1.0 for one in row] for row in crossing[ids].tolist()]
        assert found.tolist() == expected
        if strategy == "drop_row":
            own = [one for one in inside if frame["kept"][one] >= 0 and frame["split"][one] == split]
            every = [[one if number_of.get(one) in inside else -1.0 for one in row] for row in crossing[own].tolist()]
            assert ids.tolist() == [one for one, row in zip(own, every, strict=True) if -1.0 not in row]
            continue
        assert found.tolist() != crossing[ids].tolist()
        batches = list(prep.stream(rows, 16, split=split, shuffle=False))
        np.testing.assert_array_equal(np.concatenate([batch["x"] for batch in batches]), found)


def test_windows_cross_splits_with_across_splits_and_in_old_states(tmp_path):
    frame = pd.DataFrame({"x": np.arange(20.0)})
    prep = dp.Preprocessor({"x": Timeseries(window_size=3, across_splits=True)}, split=dp.RandomSplit())
    dataset = prep.fit_write(frame, tmp_path / "a.dp", progress=False)
    np.testing.assert_array_equal(
        dataset["test"].read()["x"], prep.encode(frame)["x"][dataset["test"].read("row_id")["row_id"]]
    )
    state = prep.to_dict()
    assert "across_splits" not in state["features"]["x"]["params"]
    assert dp.Preprocessor.from_dict(state).features_["x"].across_splits is True
    for chosen in (False, "auto"):
        apart = dp.Preprocessor({"x": Timeseries(window_size=3, across_splits=chosen)}).fit(frame)
        assert dp.Preprocessor.from_dict(apart.to_dict()).features_["x"].across_splits == chosen


@pytest.mark.filterwarnings("ignore:information is lost")
@pytest.mark.parametrize("partitions", [1, 7])
def test_windows_have_rows_of_earlier_splits_and_never_of_later_ones(tmp_path, partitions):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x": np.arange(1.0, 81), "g": rng.integers(0, 3, 80)})
    splits = np.array(["train", "validation", "test"])
    frame["split"] = np.where(frame.index < 40, splits[rng.integers(0, 3, 80)], splits[frame.index.to_numpy() // 30])
    prep = dp.Preprocessor({"x": Timeseries(window_size=4, group_by="g")}, split=dp.FixedSplit("split"))
    dataset = prep.fit_write(dd.from_pandas(frame, npartitions=partitions), tmp_path / "d.dp", progress=False)
    for number, split in enumerate(splits):
        seen = frame["x"].where(frame["split"].isin(splits[: number + 1]))
        lags = [seen.groupby(frame["g"]).shift(lag).to_numpy() for lag in (3, 2, 1, 0)]
        stored = dataset[split].read(["row_id", "x"])
        np.testing.assert_array_equal(stored["x"], np.stack(lags, axis=1)[stored["row_id"]])


@pytest.mark.filterwarnings("ignore:information is lost", "ignore:.* are left out", "ignore:target")
@pytest.mark.parametrize("partitions", [1, 7])
@pytest.mark.parametrize("balance", [None, dp.Undersample("kind", ratio=0.9)])
def test_targets_with_an_incomplete_horizon_are_left_out_and_listed(tmp_path, partitions, balance):
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=120).repeat(2), "shop": ["a", "b"] * 120})
    frame["load"] = pd.Series(np.arange(1.0, 241)).mask(rng.random(240) < 0.04)
    frame["kind"] = rng.choice(["x", "y"], 240, p=[0.7, 0.3])
    features = {
        "past": dp.Timeseries(column="load", window_size=5, group_by="shop"),
        "next": dp.Timeseries(column="load", horizon=3, group_by="shop"),
        "kind": "category",
    }
    prep = dp.Preprocessor(features, targets="next", split=dp.DatetimeSplit("day", (0.6, 0.2, 0.2)), balance=balance)
    rows = dd.from_pandas(frame, npartitions=partitions)
    dataset = prep.fit_write(rows, tmp_path / "d.dp", progress=False)
    by_shop = frame.groupby("shop")["load"]
    after = np.stack([by_shop.shift(-lag).to_numpy() for lag in (1, 2, 3)], axis=1)
    before = np.stack([by_shop.shift(lag).to_numpy() for lag in (4, 3, 2, 1, 0)], axis=1)
    days = frame["day"].rank(method="dense").to_numpy()
    split = np.digitize(days, [72.5, 96.5])
    later = np.stack([pd.Series(split).groupby(frame["shop"]).shift(-lag).to_numpy() for lag in (1, 2, 3)], axis=1)
    complete = ~np.isnan(np.where(later == split[:, None], after, np.nan)).any(axis=1)
    rejects = dataset.rejects().to_pandas()
    kept = rejects["row_id"][rejects["column"] == "next"]
    assert sorted(kept) == np.flatnonzero(~complete).tolist()
    assert rejects["reason"].str.fullmatch(r"[123] of 3 numbers of the horizon are missing").all()
    for number, name in enumerate(("train", "validation", "test")):
        stored = dataset[name].read(["row_id", "next", "past"])
        own = np.flatnonzero(complete & (split == number))
        if balance is None or name != "train":
            assert stored["row_id"].tolist() == own.tolist()
        assert set(stored["row_id"]) <= set(own)
        np.testing.assert_array_equal(stored["next"], after[stored["row_id"]])
        np.testing.assert_array_equal(stored["past"], before[stored["row_id"]])
        batches = list(prep.stream(rows, 16, split=name, shuffle=False))
        for side, output in enumerate(("past", "next")):
            found = np.concatenate([(inputs["past"], target)[side] for inputs, target in batches])
            np.testing.assert_array_equal(found, stored[output])


@pytest.mark.parametrize("partitions", [1, 5])
@pytest.mark.parametrize(
    ("order", "group_by", "rows"),
    [(["day"], None, []), (["g", "day"], None, ["1 row"]), (["g", "day"], "g", []), (["n"], "g", ["18 rows"])],
)
def test_time_split_warns_about_rows_out_of_time_order(tmp_path, recwarn, partitions, order, group_by, rows):
    frame = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=20), "g": ["a", None] * 10, "x": np.arange(20.0)})
    frame["n"] = -frame["x"]
    frame = dd.from_pandas(frame.sort_values(order, ignore_index=True), npartitions=partitions)
    feature = dp.Timeseries(column="x", window_size=2, group_by=group_by)
    dp.Preprocessor({"x": feature}, split=dp.DatetimeSplit("day")).fit_write(frame, tmp_path / "x.dp")
    start, found = 'the times of "day" go back at ', [str(one.message) for one in recwarn]
    assert [one.removeprefix(start).partition(" within")[0] for one in found if one.startswith(start)] == rows


def test_fit_of_files_reads_the_groups_of_windows_with_a_split_by_time(tmp_path):
    frame = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=20), "g": ["a", "b"] * 10, "x": np.arange(20.0)})
    frame.to_csv(tmp_path / "x.csv", index=False)
    prep = dp.Preprocessor({"x": dp.Timeseries(window_size=2, group_by="g")}, split=dp.DatetimeSplit("day"))
    assert prep.fit(tmp_path / "x.csv").to_dict() == prep.fit(frame).to_dict()
