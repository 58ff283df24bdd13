"""Windows, lags, statistics and horizons equal plain Python and pandas, for any groups, gaps, ties and partitions."""

from __future__ import annotations

import math
import warnings

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError
from daskprep.features.windows import WindowImputer
from daskprep.serving import Encoder
from tests.sizes import sized

STATISTICS = ["mean", "min", "max", "count", "last", "since"]
DAY = pd.Timedelta("1D")


def make_rows(seed: int, rows: int, groups: int = 3) -> pd.DataFrame:
    """Return rows of series in order of time, with gaps, repeated times, and missing numbers and groups."""
    rng = np.random.default_rng(seed)
    hours = rng.choice([0, 0, 7, 17, 24, 24, 24, 41, 72], rows).cumsum()
    frame = pd.DataFrame({"at": pd.Timestamp("2024-03-01", tz="Europe/Rome") + pd.to_timedelta(hours, "h")})
    frame["shop"] = rng.choice([*(f"s{one}" for one in range(groups)), None], rows)
    frame["load"] = pd.Series(rng.normal(10, 3, rows).astype(np.float32)).mask(rng.random(rows) < 0.15)
    points = [f"{one} {rng.integers(0, 9)}" for one in rng.integers(0, 9, rows)]
    frame["point"] = pd.Series(points, dtype=object).mask(rng.random(rows) < 0.15)
    frame["seen"] = (frame["at"] + pd.to_timedelta(rng.integers(0, 99, rows), "h")).mask(rng.random(rows) < 0.15)
    return frame


def components(frame: pd.DataFrame, column: str) -> list[pd.Series]:
    """Return the numbers of vectors or dates, NaN for other values."""
    if column == "seen":
        return [frame["seen"].dt.hour, frame["seen"].dt.day_of_week]
    points = frame["point"].str.split()
    return [points.str[one].astype(np.float32) for one in (0, 1)]


def steps_by_hand(at: list[int], row: int, alike: list[int], step: str | None, visible) -> dict[int, int]:
    """Return the row of each step before (from 0) or after (below 0) a row; `alike` are the rows of its group."""
    here = alike.index(row)
    if step is None:
        return {here - other: alike[other] for other in range(len(alike))}
    rows, width = {}, pd.Timedelta(step).value
    for other in alike:
        if visible(other):
            number = (2 * abs(at[row] - at[other]) + width) // (2 * width)
            is_before = alike.index(other) <= here
            if is_before or number > 0:
                rows[number if is_before else -number] = other
    return rows


def by_hand(frame: pd.DataFrame, feature: dp.Timeseries, visible=lambda row, other: True) -> np.ndarray:
    """Return all rows of a feature, computed row by row, and of vectors and dates component by component."""
    if feature.column != "load":
        plain = dp.Timeseries(**feature.get_params() | {"column": "load", "vector_size": None, "parts": None})
        columns = components(frame, feature.column)
        return np.stack([by_hand(frame.assign(load=one), plain, visible) for one in columns], axis=-1)
    found, nanoseconds, load = [], [one.value for one in frame["at"]], frame["load"].tolist()
    groups = frame["shop"].map(str) if feature.group_by else pd.Series("", frame.index)
    for row in frame.index:
        alike = frame.index[groups == groups[row]].tolist()
        sees = lambda other, row=row: visible(row, other)  # noqa: E731
        at = steps_by_hand(nanoseconds, row, alike, feature.step, sees)
        number = lambda one, at=at, sees=sees: load[at[one]] if one in at and sees(at[one]) else math.nan  # noqa: E731
        if feature.horizon:
            found.append([number(-one) for one in range(1, feature.horizon + 1)])
            continue

        values = [number(lag) for lag in feature.lags or ()]
        if isinstance(feature.window_size, int):
            window = list(range(feature.window_size))[::-1]
            window = [one + feature.shift for one in window]
            numbers, rows = [number(one) for one in window], [at.get(one) for one in window]
            if feature.step:
                ages = [one * pd.Timedelta(feature.step).total_seconds() for one in window]
            elif feature.time:
                ages = [math.nan if one is None else (nanoseconds[row] - nanoseconds[one]) / 1e9 for one in rows]
            else:
                ages = window
        else:
            rows = [other for other in alike if other <= row]
            rows = rows[: len(rows) - feature.shift]
            start = nanoseconds[row] - pd.Timedelta(feature.window_size).value
            rows = [one for one in rows if nanoseconds[one] > start]
            numbers = [load[one] if sees(one) else math.nan for one in rows]
            ages = [(nanoseconds[row] - nanoseconds[one]) / 1e9 for one in rows]
        if not feature.statistics:
            found.append(values if feature.lags else numbers)
            continue
        present = [(float(one), age) for one, age in zip(numbers, ages, strict=True) if not np.isnan(one)]
        only = [one for one, _ in present]
        results = dict.fromkeys(STATISTICS, math.nan) | {"count": len(only)}
        if only:
            total = 0.0
            for one in only:
                total += one
            results |= {"mean": total / len(only), "min": min(only), "max": max(only)}
            results |= {"last": only[-1], "since": present[-1][1]}
        found.append([*values, *(results[name] for name in feature.statistics)])
    return np.array(found, np.float32)


WINDOWS = st.one_of(
    st.fixed_dictionaries({"window_size": st.integers(1, 6)}),
    st.fixed_dictionaries({"window_size": st.integers(1, 6), "shift": st.integers(0, 3)}),
    st.fixed_dictionaries({"lags": st.lists(st.integers(0, 6), min_size=1, max_size=3)}),
    st.fixed_dictionaries(
        {
            "window_size": st.integers(1, 6),
            "statistics": st.permutations(STATISTICS),
            "shift": st.integers(0, 2),
            "lags": st.sampled_from([None, [1, 3]]),
        }
    ),
    st.fixed_dictionaries({"horizon": st.integers(1, 4)}),
)
SPANS = st.fixed_dictionaries(
    {
        "window_size": st.sampled_from(["1D", "36h", "10D"]),
        "statistics": st.permutations(STATISTICS),
        "shift": st.integers(0, 2),
        "time": st.just("at"),
    }
)
COLUMNS = st.sampled_from(
    [
        {"column": "load"}, {"column": "point", "vector_size": 2},
        {"column": "seen", "parts": ["hour", "weekday"]},
    ]
)  # fmt: skip
TIMES = st.sampled_from([{}, {"time": "at"}, {"time": "at", "step": "1D"}, {"time": "at", "step": "17h"}])


@st.composite
def features(draw) -> dp.Timeseries:
    options = draw(st.one_of(SPANS, st.tuples(WINDOWS, TIMES).map(lambda both: both[0] | both[1])))
    return dp.Timeseries(group_by=draw(st.sampled_from(["shop", None])), **draw(COLUMNS), **options)


@pytest.mark.slow
@settings(max_examples=60)
@given(seed=st.integers(0, 999), rows=st.integers(1, 40), partitions=st.sampled_from([1, 2, 5, 64]), feature=features())
def test_windows_equal_plain_python_for_any_partitions(seed, rows, partitions, feature):
    frame = make_rows(seed, rows)
    prep = dp.Preprocessor({"w": feature}).fit(frame)
    source = dd.from_pandas(frame, npartitions=partitions) if partitions > 1 else frame
    np.testing.assert_array_equal(np.asarray(prep.encode(source)["w"]), by_hand(frame, feature))


SPLITS = [dp.DatetimeSplit("at", (0.5, 0.2, 0.3)), dp.RandomSplit(), dp.TimeSeriesSplit("at", 2, fold=1)]


@pytest.mark.filterwarnings("ignore:information is lost", "ignore:the times of", "ignore:no rows are left")
@settings(max_examples=15)
@given(
    seed=st.integers(0, 999), partitions=st.sampled_from([1, 7]), feature=features(), split=st.sampled_from(SPLITS),
    across=st.sampled_from(["auto", True, False]), share_rows=st.sampled_from([8, 1_000]),
)  # fmt: skip
def test_windows_see_the_splits_that_they_may(tmp_path_factory, seed, partitions, feature, split, across, share_rows):
    frame = make_rows(seed, 50)
    feature.set_params(across_splits=across)
    prep = dp.Preprocessor({"w": feature}, split=split)
    path = tmp_path_factory.mktemp("windows") / "d.dp"
    with sized(border_rows=share_rows, border_bytes=0):
        dataset = prep.fit_write(dd.from_pandas(frame, npartitions=partitions), path, progress=False)
    codes = prep.assign(frame)["split"].astype(int)
    visible = {
        True: lambda row, other: True,
        False: lambda row, other: codes[other] == codes[row] or codes[other] == 3,
        "auto": lambda row, other: codes[other] <= codes[row] or codes[other] == 3,
    }["auto" if across == "auto" and not feature.horizon else across is True]
    expected = by_hand(frame, feature, visible)
    for name in dataset:
        stored = dataset[name].read(["row_id", "w"])
        np.testing.assert_array_equal(stored["w"], expected[stored["row_id"]])


@pytest.mark.filterwarnings("ignore:information is lost")
def test_the_exchange_of_borders_holds_a_share_of_the_groups(tmp_path, monkeypatch, sizes):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"shop": rng.integers(0, 400, 4_000), "load": rng.random(4_000), "item": rng.choice(["a", "b"], 4_000)}
    )
    features = {
        "w": dp.Timeseries(column="load", group_by="shop", window_size=3),
        "h": dp.History(column="item", by="shop", last=20),
        "next": dp.Timeseries(column="load", group_by="shop", horizon=2, missing_value_strategy="drop_row"),
    }
    held, outer_rows = [], WindowImputer.outer_rows

    def record(imputer, borders, skip):
        held.append(sum(len(border.codes) for border in borders))
        for rows in outer_rows(imputer, borders, skip):
            held.append(len(rows.codes))
            yield rows

    monkeypatch.setattr(WindowImputer, "outer_rows", record)
    for split in (None, dp.RandomSplit()):
        stored = []
        for share_rows in (1 << 20, 500):
            sizes(border_rows=share_rows, border_bytes=0)
            held.clear()
            path = tmp_path / f"{share_rows}-{split}.dp"
            prep = dp.Preprocessor(features, split=split)
            prep.fit_write(dd.from_pandas(frame, npartitions=8), path, progress=False)
            files = (file for file in path.rglob("*") if file.is_file() and "arrays.zarr" in file.parts)
            stored.append({file.relative_to(path): file.read_bytes() for file in files})
            assert max(held) > 2_000 if share_rows > 4_000 else max(held) < 1_000
        assert stored[0] == stored[1]
        assert stored[0]


def test_statistics_equal_those_of_pandas():
    frame = make_rows(3, 400).dropna(subset="shop").reset_index(drop=True)
    names = ["mean", "min", "max", "count"]
    feature = dp.Timeseries(column="load", window_size="5D", time="at", group_by="shop", statistics=names)
    ours = dp.Preprocessor({"w": feature}).fit(frame).encode(frame)["w"]
    double = frame.assign(load=frame["load"].astype(float)).set_index("at").groupby("shop")["load"]
    for column, name in enumerate(names):
        theirs = getattr(double.rolling("5D", min_periods=1), name)()
        theirs = np.concatenate([theirs[shop].to_numpy() for shop in frame["shop"].unique()])
        rows = np.concatenate([np.flatnonzero(frame["shop"] == shop) for shop in frame["shop"].unique()])
        # Rolling sums of pandas round otherwise.
        np.testing.assert_allclose(ours[rows, column], theirs.astype(np.float32), rtol=1e-6)


def test_days_without_a_row_are_missing_steps():
    days = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=90), "load": np.arange(90.0)})
    gap = days[(days["day"] < "2024-02-01") | (days["day"] >= "2024-03-01")]
    prep = dp.Preprocessor({"past": dp.Timeseries(column="load", window_size=5, time="day", step="1D")}).fit(gap)
    first = prep.encode(gap)["past"][33]
    np.testing.assert_array_equal(first, np.float32([np.nan, np.nan, 60, 61, 62]))


def test_normalized_windows_decode_and_predict_in_units():
    frame = make_rows(5, 60)
    for normalization in ("zscore", "minmax", "log1p"):
        feature = dp.Timeseries(column="load", horizon=2, normalization=normalization)
        plain = dp.Preprocessor({"w": dp.Timeseries(column="load", horizon=2)}).fit(frame).encode(frame)["w"]
        prep = dp.Preprocessor({"w": feature}, targets="w").fit(frame)
        ours = prep.encode(frame)["w"]
        number = dp.Preprocessor({"load": dp.Number(normalization=normalization, missing_value_strategy="keep")})
        single = number.fit(frame).encode(frame)["load"]
        np.testing.assert_array_equal(ours[:-1, 0], single[1:])
        np.testing.assert_allclose(np.stack(prep.decode({"w": ours})["w"]), plain, rtol=1e-5)
        decoded = prep.predictions(ours, logits=False)["w_predictions"]
        np.testing.assert_allclose(np.array(decoded.tolist()), plain, rtol=1e-5)
        again = dp.Preprocessor.from_dict(prep.to_dict())
        np.testing.assert_array_equal(again.encode(frame)["w"], ours)


@pytest.mark.parametrize(
    "parameters", [{"column": "point", "vector_size": 2}, {"column": "seen", "parts": ["hour", "weekday"]}], ids=str
)
def test_each_component_of_vectors_and_dates_has_its_scale(parameters):
    frame = make_rows(5, 60)
    options = {"horizon": 3, "missing_value_strategy": "fill_with_const"}
    for normalization in ("zscore", "minmax", "log1p"):
        feature = dp.Timeseries(normalization=normalization, **parameters, **options)
        prep = dp.Preprocessor({"w": feature}, targets="w").fit(frame)
        ours = prep.encode(frame)["w"]
        for number, column in enumerate(components(frame, feature.column)):
            alone = frame.assign(load=column)
            plain = dp.Preprocessor({"w": dp.Timeseries(column="load", normalization=normalization, **options)})
            np.testing.assert_array_equal(ours[..., number], plain.fit(alone).encode(alone)["w"])
        expected = by_hand(frame, feature)
        decoded = np.array([[*map(list, row)] for row in prep.decode({"w": ours})["w"]])
        np.testing.assert_allclose(decoded, expected, rtol=1e-5, atol=1e-5)
        for outputs in (ours, ours.reshape(60, 6)):
            for decoder in (prep, Encoder(prep.to_dict())):
                predicted = np.array(list(decoder.predictions(outputs, logits=False)["w_predictions"]))
                np.testing.assert_allclose(predicted, expected, rtol=1e-5, atol=1e-5)
        with pytest.raises(ColumnError, match=r"shape \(rows, 3, 2\) or \(rows, 6\)"):
            prep.predictions(ours[:, 0], logits=False)


@pytest.mark.parametrize(
    "parameters",
    [{"parts": ["year", "weekend"]}, {"cyclic": ["month"]}, {"parts": ["day"], "cyclic": {"hour": 3}}],
    ids=str,
)
def test_windows_of_dates_have_the_numbers_of_a_date(parameters):
    frame = make_rows(8, 80)
    frame["seen"] = frame["seen"].dt.strftime("%d %B %Y %H:%M")
    single = dp.Preprocessor({"seen": dp.Date(**parameters)}).fit(frame)
    expected = single.transform(frame)
    expected[frame["seen"].isna()] = np.nan
    prep = dp.Preprocessor({"w": dp.Timeseries(column="seen", window_size=2, **parameters)}).fit(frame)
    found = prep.encode(frame)["w"]
    np.testing.assert_array_equal(found[:, 1], expected)
    np.testing.assert_array_equal(found[1:, 0], expected[:-1])
    names = [one.removeprefix("seen_") for one in single.get_feature_names_out()]
    assert list(prep.get_feature_names_out()) == [f"w_{step}_{name}" for step in (0, 1) for name in names]


@pytest.mark.parametrize("fill_value", ["0", 1.5, "3 4"])
def test_missing_vectors_are_filled(fill_value):
    frame = make_rows(9, 40)
    feature = dp.Timeseries(column="point", vector_size=2, window_size=2, fill_value=fill_value)
    other_lengths = frame.assign(point=frame["point"].fillna("1 2 3"))
    with pytest.warns(UserWarning, match="cannot be read"):
        found = dp.Preprocessor({"w": feature}).fit(other_lengths).encode(other_lengths)["w"]
    numbers = np.broadcast_to(np.array(str(fill_value).split(), float), (40, 2))
    expected = np.where(np.isnan(columns := np.stack(components(frame, "point"), axis=1)), numbers, columns)
    np.testing.assert_array_equal(found[:, 1], expected.astype(np.float32))


def test_columns_of_tables_have_the_names_of_lags_and_statistics():
    frame = make_rows(6, 20)
    feature = dp.Timeseries(column="load", lags=[1, 7], window_size=3, statistics=["mean", "since"])
    prep = dp.Preprocessor({"w": feature}).fit(frame)
    assert list(prep.get_feature_names_out()) == ["w_lag_1", "w_lag_7", "w_mean", "w_since"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"window_size": "28D"}, "needs a column in time, and statistics"),
        ({"window_size": "28", "time": "at", "statistics": ["mean"]}, "no duration"),
        ({"window_size": 3, "time": "at", "step": "-1D"}, "no duration"),
        ({"window_size": 3, "step": "1D"}, "step='1D' needs a column in time"),
        ({"horizon": 3, "lags": [1]}, r"lags=\[1\] needs"),
        ({"horizon": 3, "shift": 1}, "shift=1 needs"),
        ({"time": "at"}, "time='at' needs"),
        ({"normalization": "zscore"}, "needs a window_size"),
        ({"window_size": 3, "statistics": ["median"]}, "statistics must be"),
        ({"vector_size": 3}, "vector_size=3 needs a window_size"),
        ({"window_size": 3, "parts": ["hours"]}, 'parts has no .hours.. Did you mean "hour"'),
        ({"window_size": 3, "parts": ["hour"], "vector_size": 2}, "vector_size=2 needs vectors"),
        ({"window_size": 3, "vector_size": 2, "fill_value": "1 2 3"}, "fill_value '1 2 3' has 3 numbers"),
    ],
    ids=str,
)  # fmt: skip
def test_contradictory_windows_raise(parameters, message):
    with pytest.raises(ConfigError, match=message):
        dp.Preprocessor({"w": dp.Timeseries(column="load", **parameters)}).fit(make_rows(0, 9))


def test_rows_out_of_time_order_are_refused():
    frame = make_rows(1, 30)[::-1]
    prep = dp.Preprocessor({"w": dp.Timeseries(column="load", window_size=3, time="at", group_by="shop")}).fit(frame)
    with pytest.raises(ColumnError, match="go back at .* rows within a group"):
        prep.encode(frame)


def records(frame: pd.DataFrame) -> list[dict]:
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


@settings(max_examples=20)
@given(seed=st.integers(0, 999), feature=features(), calls=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_services_that_keep_rows_encode_as_a_frame(seed, feature, calls):
    frame = make_rows(seed, 30)
    frame["item"] = np.random.default_rng(seed).choice(["a", "b", None], 30)
    history = dp.History(column="item", by="shop", time="at", last=3)
    prep = dp.Preprocessor({"w": feature, "h": history}).fit(frame)
    expected, ends = prep.encode(frame), np.cumsum([0, *calls])
    encoder = Encoder(prep.to_dict(), history=1_000)
    start = min(int(ends[1]), 30)
    with sized(trimmed_rows=2):
        encoder.remember(records(frame[:start]))
        for begin, end in zip(ends[1:], [*ends[2:], 30], strict=True):
            rows = records(frame[begin:end])
            arrays, report = encoder.encode(rows, report=True)
            np.testing.assert_array_equal(arrays["h"], expected["h"][begin:end])
            if not feature.horizon:
                np.testing.assert_array_equal(arrays["w"], expected["w"][begin:end])
                lacks = np.isnan(expected["w"][begin:end])
                padded = np.flatnonzero(lacks.any(axis=tuple(range(1, lacks.ndim)))).tolist()
                assert list(report.get("w", {}).get("padded", {})) == padded
            empty = np.flatnonzero((expected["h"][begin:end] == 0).all(axis=1)).tolist()
            assert list(report.get("h", {}).get("padded", {})) == empty


@pytest.mark.parametrize(
    ("parameters", "kept"),
    [
        ({"window_size": 3, "time": "at", "step": "1D"}, 100),
        ({"window_size": "2D", "time": "at", "statistics": ["mean"]}, 100),
        ({"window_size": 3, "missing_value_strategy": "ffill"}, 64),
        ({"window_size": 3, "missing_value_strategy": "ffill", "shift": 1}, 64),
    ],
    ids=str,
)  # fmt: skip
def test_services_keep_the_rows_of_a_group_that_windows_need(parameters, kept):
    hours = pd.date_range("2024-01-01", periods=600, freq="h")
    frame = pd.DataFrame({"at": hours, "load": np.arange(600.0)})
    frame.loc[100:300, "load"] = None
    prep = dp.Preprocessor({"w": dp.Timeseries(column="load", **parameters)}).fit(frame)
    encoder, expected = Encoder(prep.to_dict(), history=1_000_000), prep.encode(frame)["w"]
    for start in range(0, 600, 50):
        found = encoder.encode(records(frame[start : start + 50]))["w"]
        np.testing.assert_array_equal(found, expected[start : start + 50])
        assert encoder._past["w"]._rows <= 2 * kept


def test_services_keep_a_limited_number_of_rows():
    frame = pd.DataFrame({"shop": ["a", "b", "a", "a", "c", "b"], "load": np.arange(6.0)})
    prep = dp.Preprocessor({"w": dp.Timeseries(column="load", group_by="shop", window_size=3)}).fit(frame)
    encoder = Encoder(prep.to_dict(), history=3)
    encoder.remember(records(frame))
    assert encoder.encode({"shop": "b", "load": 9.0})["w"].tolist()[0][1:] == [5.0, 9.0]
    assert np.isnan(encoder.encode({"shop": "a", "load": 9.0})["w"][0, 0])
    assert encoder.seen["w"] == {"rows": 2, "missing": 0, "unseen": 0, "out_of_range": 0, "padded": 2}
    assert Encoder(prep.to_dict()).encode(records(frame)[-1])["w"].tolist()[0][2] == 5.0
    with pytest.raises(ConfigError, match="history=-1 is no number of rows"):
        Encoder(prep.to_dict(), history=-1)


@pytest.mark.filterwarnings("ignore:information is lost", "ignore:append splits", "ignore:.*check", "ignore:new rows")
@settings(max_examples=15)
@given(seed=st.integers(0, 999), feature=features(), cut=st.integers(1, 39), partitions=st.sampled_from([1, 5]))
def test_new_rows_have_the_past_that_they_are_given(tmp_path_factory, seed, feature, cut, partitions):
    frame = make_rows(seed, 40)
    frame["item"] = np.random.default_rng(seed).choice(["a", "b", None], 40)
    history = dp.History(column="item", by="shop", time="at", last=3)
    prep = dp.Preprocessor({"w": feature, "h": history}).fit(frame)
    whole, new = prep.encode(frame), frame[cut:].reset_index(drop=True)
    after = prep.with_history(dd.from_pandas(frame[: cut // 2 + 1], npartitions=partitions))
    after = after.with_history(frame[cut // 2 + 1 : cut])
    for rows in (new, dd.from_pandas(new, npartitions=3)):
        ours = after.encode(rows)
        for output in whole:
            np.testing.assert_array_equal(np.asarray(ours[output]), whole[output][cut:])
    path = tmp_path_factory.mktemp("append") / "d.dp"
    prep.set_params(split=None).write(frame[:cut], path, progress=False)
    with sized(border_rows=5, border_bytes=0):
        rows = dd.from_pandas(new, npartitions=3)
        dataset = after.set_params(split=None).append(rows, path, progress=False, on_findings="ignore")
    if not feature.horizon:
        np.testing.assert_array_equal(dataset["train"].read()["w"], whole["w"])
    np.testing.assert_array_equal(dataset["train"].read()["h"], whole["h"])


@pytest.mark.parametrize("parameters", [{"time": "at", "step": "1D"}, {"missing_value_strategy": "ffill"}], ids=str)
def test_rows_of_the_past_are_kept_as_windows_need_them(parameters):
    frame = make_rows(2, 400, groups=2)
    frame["item"] = "a"
    features = {
        "w": dp.Timeseries(column="load", group_by="shop", window_size=3, **parameters),
        "h": dp.History(column="item", by="shop", last=4),
    }
    prep = after = dp.Preprocessor(features).fit(frame)
    whole = prep.encode(frame)
    for start in range(0, 400, 40):
        part = frame[start : start + 40]
        for output, array in after.encode(part).items() if start else ():
            np.testing.assert_array_equal(array, whole[output][start : start + 40])
        after = after.with_history(dd.from_pandas(part, npartitions=3))
        for feature in after.features_.values():
            assert len(feature._before) == 1
            assert len(feature._before[0].codes) <= 3 * 12


def test_history_without_windows_is_refused():
    prep = dp.Preprocessor({"load": "number"}).fit(make_rows(0, 9))
    with pytest.raises(ConfigError, match="no feature has windows"):
        prep.with_history(make_rows(0, 9))


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize(
    ("frame", "faults"),
    [
        ({"day": pd.date_range("2024-01-01", periods=30)}, ""),
        ({"day": pd.date_range("2024-01-01", periods=30).delete([3, 9, 10, 11])}, "lack 4 steps of 1D"),
        ({"day": pd.date_range("2024-01-01", periods=15).repeat(2)}, "repeat at 15 rows of a series"),
        (
            {"day": pd.date_range("2024-01-01", periods=30, freq="h").delete(7)[::-1]},
            "go back at 28 rows within a series",
        ),
    ],
    ids=["regular", "gaps", "repeated", "reversed"],
)
@pytest.mark.parametrize("split", [dp.DatetimeSplit("day"), dp.TimeSeriesSplit("day", 2)], ids=["shares", "folds"])
def test_splits_by_time_name_irregular_times_once(partitions, frame, faults, split):
    frame = pd.DataFrame(frame).assign(load=1.0)
    rows = dd.from_pandas(frame, npartitions=partitions, sort=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dp.Preprocessor({"w": dp.Timeseries(column="load", window_size=3)}, split=split).fit(rows)
        once = [str(one.message) for one in caught if "the times of" in str(one.message)]
        caught.clear()
        steps = dp.Timeseries(column="load", window_size=3, time="day", step="1D")
        dp.Preprocessor({"w": steps}, split=split).fit(rows)
        of_steps = [str(one.message) for one in caught if "the times of" in str(one.message)]
    assert [one.removeprefix('the times of "day" ').partition(":")[0] for one in once] == [faults] * bool(faults)
    assert len(of_steps) == ("back" in faults)


def test_a_horizon_without_a_gap_is_hinted_once():
    frame = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=30), "load": np.arange(30.0)})
    steps = {"time": "day", "step": "1D"}
    cases = [(None, {}, 1), ("2 days", {}, 0), (None, steps, 1), ("1 day", steps, 1), ("2 days", steps, 0)]
    for gap, parameters, count in cases:
        split, feature = dp.DatetimeSplit("day", gap=gap), dp.Timeseries(column="load", horizon=2, **parameters)
        prep = dp.Preprocessor({"next": feature}, targets="next", split=split)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            prep.fit(frame)
        assert sum("DatetimeSplit(gap=...)" in str(one.message) for one in caught) == count


def test_missing_labels_of_folds_are_not_counted_as_imputed(tmp_path):
    frame = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=40), "load": np.arange(40.0)})
    frame.loc[10, "load"] = None
    split = dp.TimeSeriesSplit("day", 2, gap="2 days")
    prep = dp.Preprocessor({"next": dp.Timeseries(column="load", horizon=2)}, targets="next", split=split)
    folds = prep.fit_write(frame, tmp_path / "folds.dp", progress=False)
    assert prep.losses_.empty
    assert set(folds.fold(1).losses()["cause"]) == {"left out"}


@settings(max_examples=10)
@given(seed=st.integers(0, 999), partitions=st.sampled_from([1, 5]))
def test_windows_of_times_have_the_seconds_to_other_rows(seed, partitions):
    frame = make_rows(seed, 30).dropna(subset="shop").reset_index(drop=True)
    rows = dd.from_pandas(frame, npartitions=partitions)
    options = {"column": "at", "time": "at", "group_by": "shop"}
    for feature, lags in (
        (dp.Timeseries(window_size=3, shift=1, **options), (3, 2, 1)),
        (dp.Timeseries(horizon=2, missing_value_strategy="fill_with_const", **options), (-1, -2)),
    ):
        found = np.asarray(dp.Preprocessor({"w": feature}).fit(frame).encode(rows)["w"])
        others = [frame["at"] - frame.groupby("shop")["at"].shift(lag) for lag in lags]
        expected = np.stack([one.dt.total_seconds().abs() for one in others], axis=1)
        np.testing.assert_array_equal(found, expected.astype(np.float32))
    daily = dp.Timeseries(window_size=2, step="1D", **options)
    found = np.asarray(dp.Preprocessor({"w": daily}).fit(frame).encode(rows)["w"])
    assert (found[:, 1] == 0).all()


@pytest.mark.filterwarnings("ignore:information is lost", "ignore:the times of")
def test_a_planted_future_number_is_in_no_earlier_row(tmp_path):
    frame = make_rows(4, 400).dropna().reset_index(drop=True)
    is_planted = frame.index == 120
    planted = frame.assign(load=frame["load"].mask(is_planted, 1e6), point=frame["point"].mask(is_planted, "1e6 1e6"))
    planted["seen"] += pd.to_timedelta(is_planted * 13, "h")
    series = {"column": "load", "time": "at", "group_by": "shop"}
    features = {
        "rows": dp.Timeseries(window_size=8, **series),
        "days": dp.Timeseries(window_size=8, step="1D", **series),
        "span": dp.Timeseries(window_size="9D", statistics=STATISTICS, **series),
        "lags": dp.Timeseries(lags=[0, 2], window_size=4, shift=1, statistics=STATISTICS, **series),
        "points": dp.Timeseries(window_size=8, vector_size=2, **series | {"column": "point"}),
        "dates": dp.Timeseries(window_size=8, step="1D", cyclic=["hour"], **series | {"column": "seen"}),
    }
    prep = dp.Preprocessor(features, split=dp.DatetimeSplit("at", (0.4, 0.2, 0.4))).fit(planted, progress=False)
    stored = []
    for name, rows in {"plain": frame, "planted": planted}.items():
        dataset = prep.write(dd.from_pandas(rows, npartitions=3), tmp_path / f"{name}.dp", progress=False)
        stored.append([dataset[split].read(["row_id", *features]) for split in dataset])
    changed = {name: set() for name in features}
    for one, other in zip(*stored, strict=True):
        for name in features:
            same = (one[name] == other[name]) | (np.isnan(one[name]) & np.isnan(other[name]))
            differs = ~same.reshape(len(same), -1).all(axis=1)
            changed[name] |= set(one["row_id"][differs].tolist())
    assert all(changed.values())
    assert min(map(min, changed.values())) == 120


@pytest.mark.parametrize("padding_value", [None, 0, 1, -1])
@pytest.mark.parametrize("parameters", [{}, {"shift": 2}, {"lags": [0, 3]}, {"step": "1D"}])
def test_numbers_equal_to_the_padding_are_not_counted_as_padding(padding_value, parameters):
    frame = pd.DataFrame({"at": pd.date_range("2024-01-01", periods=40), "load": [0.0, 1, 2, 0] * 10})
    size = {} if "lags" in parameters else {"window_size": 3}
    feature = dp.Timeseries(time="at", padding_value=padding_value, **size, **parameters)
    prep = dp.Preprocessor({"load": feature}, split=None).fit(frame)
    first = 3 if "lags" in parameters else 2 + parameters.get("shift", 0)  # rows without all numbers
    encoder = Encoder(prep.to_dict(), history=1_000)
    reports = [encoder.encode(row, report=True)[1] for row in frame.to_dict("records")]
    assert encoder.seen["load"]["padded"] == first
    assert [bool(report.get("load", {}).get("padded")) for report in reports] == [True] * first + [False] * (40 - first)
    arrays = [Encoder(prep.to_dict()).encode(frame.to_dict("records")), prep.encode(frame)]
    np.testing.assert_array_equal(arrays[0]["load"], arrays[1]["load"])


@pytest.mark.parametrize("seed", range(6))
def test_a_sample_of_rows_has_the_splits_of_its_write(seed, tmp_path):
    """Windows that drop rows are cut between the rows of the sample, in `assign` as in a write."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"a": rng.choice([1.0, 2.0, np.nan], 60, p=[0.6, 0.35, 0.05]), "x": range(60)})
    table["label"] = rng.choice(["yes", "no"], 60)
    features = {"w": dp.Timeseries(column="a", window_size=2, missing_value_strategy="drop_row"), "label": "binary"}
    balance = dp.Oversample("label", ratio=0.8)
    prep = dp.Preprocessor(features, targets="label", split=dp.RandomSplit(seed=0), balance=balance, sample=0.7)
    dataset = prep.fit_write(table, tmp_path / "rows.dp", progress=False)
    assigned = prep.fit(table).assign(table)
    written = {
        code: len(dataset[name]) if name in dataset else 0 for code, name in enumerate(("train", "validation", "test"))
    }
    assert written == {code: int(assigned["repeats"][assigned["split"] == code].sum()) for code in range(3)}
