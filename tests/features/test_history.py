"""Histories equal plain Python, for any partitions, splits and services."""

from __future__ import annotations

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError
from daskprep.serving import Encoder

SPLITS = ("train", "validation", "test")


def events(rows: int, users: int = 6, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"user": rng.integers(0, users, rows), "item": rng.choice(list("abcdefg"), rows)})
    frame["user"] = ("u" + frame["user"].astype(str)).mask(rng.random(rows) < 0.1)
    frame["item"] = frame["item"].mask(rng.random(rows) < 0.1)
    frame["at"] = pd.Timestamp("2024-01-01", tz="Europe/Rome") + pd.to_timedelta(rng.integers(0, 3, rows).cumsum(), "h")
    return frame


def past_of(frame: pd.DataFrame, last: int, seen=None) -> list[list[str]]:
    """Return the history of each row; `seen(row, before)` is whether a row may see a row before it."""
    known: dict[str, list[tuple[int, str]]] = {}
    rows = []
    for number, (user, item) in enumerate(zip(frame["user"], frame["item"], strict=True)):
        before = [one for one in known.get(user, []) if seen is None or seen(number, one[0])]
        rows.append([] if pd.isna(user) else [item for _, item in before][-last:])
        if not (pd.isna(user) or pd.isna(item)):
            known.setdefault(user, []).append((number, item))
    return rows


def decoded(prep: dp.Preprocessor, ids) -> list[list[str]]:
    return [list(tokens) for tokens in prep.decode({"past": np.asarray(ids)})["past"]]


@pytest.mark.slow
@given(
    rows=st.integers(1, 60), last=st.integers(1, 5), partitions=st.integers(1, 64), users=st.integers(1, 9),
    seed=st.integers(0, 99), time=st.sampled_from([None, "at"]),
)  # fmt: skip
def test_histories_equal_plain_python_for_any_partitions(rows, last, partitions, users, seed, time):
    frame = events(rows, users, seed)
    frame.loc[0, "item"] = "a"
    prep = dp.Preprocessor({"past": dp.History(column="item", by="user", time=time, last=last)}).fit(frame)
    source = dd.from_pandas(frame, npartitions=partitions) if partitions > 1 else frame
    ids = np.asarray(prep.encode(source)["past"])
    assert ids.shape == (rows, last)
    assert decoded(prep, ids) == past_of(frame, last)


@pytest.mark.filterwarnings("ignore:information is lost")
@pytest.mark.parametrize("partitions", [1, 9])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("split", [dp.DatetimeSplit("at", (0.5, 0.2, 0.3)), dp.RandomSplit()], ids=["time", "random"])
def test_histories_have_rows_of_earlier_splits_and_never_of_later_ones(tmp_path, partitions, shuffle, split):
    frame = events(300)
    prep = dp.Preprocessor({"past": dp.History(column="item", by="user", time="at", last=4)}, split=split)
    rows = dd.from_pandas(frame, npartitions=partitions)
    dataset = prep.fit_write(rows, tmp_path / "d.dp", progress=False, shuffle=shuffle)
    codes = prep.assign(frame)["split"]
    expected = past_of(frame, 4, lambda row, before: codes[before] <= codes[row])
    for number, name in enumerate(SPLITS):
        stored = dataset[name].read(["row_id", "past"])
        assert decoded(prep, stored["past"]) == [expected[row] for row in stored["row_id"]]
        assert sorted(stored["row_id"]) == np.flatnonzero(codes == number).tolist()
    batches = prep.stream(rows, 32, split="test", shuffle=False)
    ids = np.concatenate([np.asarray(batch["past"]) for batch in batches])
    assert decoded(prep, ids) == [expected[row] for row in np.flatnonzero(codes == 2)]


def test_a_planted_future_item_is_in_no_earlier_row(tmp_path):
    frame = events(200)
    frame["item"] = frame["item"].fillna("a")
    planted = frame.assign(item=frame["item"].where(frame.index != 150, "planted"))
    features = {"past": dp.History(column="item", by="user", time="at", last=8)}
    prep = dp.Preprocessor(features, split=dp.DatetimeSplit("at", (0.4, 0.2, 0.4))).fit(planted, progress=False)
    prep.learned_["past"] = dp.Preprocessor(features).fit(planted).learned_["past"]
    found = {}
    for name, rows in {"plain": frame, "planted": planted}.items():
        dataset = prep.write(rows, tmp_path / f"{name}.dp", progress=False)
        found[name] = {split: dataset[split].read(["row_id", "past"]) for split in SPLITS}
    changed = set()
    for split in SPLITS:
        one, other = (found[name][split] for name in found)
        changed |= set(one["row_id"][(one["past"] != other["past"]).any(axis=1)].tolist())
    assert changed
    assert min(changed) > 150


def test_tokens_of_baskets_are_joined_and_the_newest_kept():
    frame = pd.DataFrame({"user": list("aaa"), "items": [["x", "y", "z"], ["y"], ["x"]]})
    feature = dp.History(column="items", by="user", last=3, padding="left")
    prep = dp.Preprocessor({"past": feature}).fit(frame)
    assert decoded(prep, prep.encode(frame)["past"]) == [[], ["x", "y", "z"], ["y", "z", "y"]]
    assert prep.encode(frame)["past"][0].tolist() == [0, 0, 0]


def test_rows_out_of_time_order_are_refused_for_any_partitions():
    frame = events(50).sample(frac=1, random_state=0)
    prep = dp.Preprocessor({"past": dp.History(column="item", by="user", time="at")}).fit(frame)
    messages = set()
    for partitions in (1, 7):
        with pytest.raises(ColumnError, match="go back at .* rows within a group") as error:
            np.asarray(prep.encode(dd.from_pandas(frame, npartitions=partitions, sort=False))["past"])
        messages.add(str(error.value))
    assert len(messages) == 1
    with pytest.raises(ColumnError, match='"at": 1 row without a readable time'):
        prep.fit(frame.assign(at=frame["at"].where(frame["at"] != frame["at"].iloc[0]))[:1])


def test_services_and_saved_states_give_the_same_histories(tmp_path):
    frame = events(80)
    prep = dp.Preprocessor({"past": dp.History(column="item", by="user", time="at", last=5)}).fit(frame)
    prep.save(tmp_path / "prep.json")
    again = dp.Preprocessor.load(tmp_path / "prep.json")
    ids = prep.encode(frame)["past"]
    np.testing.assert_array_equal(again.encode(frame)["past"], ids)
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    np.testing.assert_array_equal(Encoder(prep.to_dict()).encode(rows)["past"], ids)


def test_batches_have_lengths_and_become_jagged(tmp_path):
    frame = events(120)
    prep = dp.Preprocessor({"past": dp.History(column="item", by="user", last=9)}, split=None)
    dataset = prep.fit_write(frame, tmp_path / "d.dp", progress=False)
    expected = past_of(frame, 9)
    lengths = []
    for batch in dataset["train"].loader(16, shuffle=False, trim=True):
        lengths += batch["past_length"].tolist()
        nested = dp.jagged(batch["past"], batch["past_length"])
        assert nested.offsets().diff().tolist() == batch["past_length"].tolist()
    assert lengths == list(map(len, expected))


def test_invalid_parameters_raise():
    with pytest.raises(ConfigError, match="last must be"):
        dp.Preprocessor({"x": dp.History(by="user", last=0)}).fit(pd.DataFrame({"x": ["a"], "user": ["b"]}))


@pytest.mark.parametrize(
    "unused",
    [{"sequence_length": 3}, {"max_sequence_length": None}, {"fill_value": "pen"}, {"missing_indicator": True}],
    ids=str,
)
def test_parameters_without_effect_raise(unused):
    [name] = unused
    with pytest.raises(ConfigError, match=f"{name}=.*leave it out"):
        dp.Preprocessor({"x": dp.History(by="user", **unused)}).fit(pd.DataFrame({"x": ["a"], "user": ["b"]}))
