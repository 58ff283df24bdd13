from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError, RejectedValueError
from daskprep.serving import Encoder
from daskprep.testing import check_feature
from tests.arrow_columns import encode_columns


def column(*cells) -> pd.DataFrame:
    return pd.DataFrame({"x": list(cells)})


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([True, False], [1, 0]),
        ([1, 0], [1, 0]),
        ([1.0, 0.0], [1, 0]),
        ([-1, 1], [0, 1]),
        (["yes", "no"], [1, 0]),
        (["Y", "n"], [1, 0]),
        (["TRUE", "false"], [1, 0]),
        (["t", "f"], [1, 0]),
        (["1.0", "-1"], [1, 0]),
    ],
)
def test_conventional_labels_are_recognized(as_frame, cells, expected):
    frame = as_frame(column(*cells))
    binary = dp.Binary().fit(frame)
    assert np.asarray(binary.transform(frame)).ravel().tolist() == expected


@pytest.mark.parametrize(
    ("cells", "false", "true"),
    [
        (["human", "bot"], "bot", "human"),
        (["a", "b"], "a", "b"),
        ([2, 10], "2", "10"),
        ([1.5, 0.5], "0.5", "1.5"),
        (["cat", "no"], "no", "cat"),
        (["cat", "yes"], "cat", "yes"),
        (["F", "M"], "F", "M"),
    ],
)
def test_one_of_two_other_labels_is_chosen_with_one_warning(as_frame, cells, false, true):
    frame = as_frame(column(*cells))
    with pytest.warns(UserWarning, match="do not show which one is True") as caught:
        binary = dp.Binary().fit(frame)
    [message] = [str(warning.message) for warning in caught]
    assert message == (
        f"column \"x\" has labels that do not show which one is True: '{true}' is used as True, and '{false}' as "
        f"False; set the right one, as in Binary(positive='{true}')"
    )
    assert np.asarray(binary.transform(frame)).ravel().tolist() == [int(str(cell) == true) for cell in cells]
    named = dp.Binary(positive=false).fit(frame)
    assert np.asarray(named.transform(frame)).ravel().tolist() == [int(str(cell) == false) for cell in cells]


NOON = datetime(2020, 7, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("cells", "kinds"),
    [
        ([True, False], [pa.bool_(), pa.bool8(), pa.float32(), pa.int8(), pa.decimal128(5, 2)]),
        ([Decimal("1.5"), Decimal("2.5")], [pa.decimal128(5, 2), pa.float16(), pa.float64()]),
        ([NOON, NOON.replace(hour=13)], [pa.timestamp(unit, "UTC") for unit in ("s", "ms", "us", "ns")]),
        ([timedelta(1), timedelta(2)], [pa.duration(unit) for unit in ("s", "ms", "us", "ns")]),
        (["yes", "no"], [pa.string(), pa.large_string(), pa.string_view(), pa.binary()]),
    ],
)
@pytest.mark.filterwarnings("ignore:column .x. has labels that do not show")
def test_labels_do_not_depend_on_the_type(tmp_path, cells, kinds):
    frame = pd.DataFrame({"x": pd.Series(cells, dtype=object)})
    prep = dp.Preprocessor({"x": "binary"}).fit(frame)
    expected = prep.encode(frame)["x"].tolist()
    for kind in kinds:
        plain = [float(cell) if pa.types.is_floating(kind) else cell for cell in cells]
        plain = [int(cell) if cells[0] is True and not pa.types.is_boolean(kind) else cell for cell in plain]
        stored = pa.array(plain, kind.storage_type if kind == pa.bool8() else kind)
        column = pa.ExtensionArray.from_storage(kind, stored) if kind == pa.bool8() else stored
        pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet")
        assert np.asarray(prep.encode(str(tmp_path / "x.parquet"))["x"]).tolist() == expected, kind
        again = dp.Preprocessor({"x": "binary"}).fit(str(tmp_path / "x.parquet"))
        assert again.encode(frame)["x"].tolist() == expected, kind
    if not isinstance(cells[0], timedelta):  # written by to_csv as "1 day, 0:00:00" or "1 days", depending on the dtype
        frame.to_csv(tmp_path / "x.csv", index=False)
        assert np.asarray(prep.encode(str(tmp_path / "x.csv"))["x"]).tolist() == expected


def test_decode_returns_labels():
    binary = dp.Binary(positive="human").fit(column("human", "bot"))
    assert binary.decode(np.array([0, 1, 1]), binary.learned_["x"]).to_pylist() == ["bot", "human", "human"]


def test_positive_label_is_true():
    binary = dp.Binary(positive="human").fit(column("bot", "human"))
    assert binary.transform(column("bot", "human")).ravel().tolist() == [0, 1]
    assert binary.learned_["x"].str2bool == {"bot": False, "human": True}


def test_integers_and_floats_with_missing_cells_are_equal():
    binary = dp.Binary().fit(column(0, 1, 1))
    assert binary.transform(column(1.0, None, 0.0)).ravel().tolist() == [1, 1, 0]


def test_unseen_conventional_label_is_recognized():
    binary = dp.Binary().fit(column("Yes", "Yes"))
    assert binary.learned_["x"].bool2str == ("No", "Yes")
    assert binary.transform(column("no", "YES")).ravel().tolist() == [0, 1]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("fill_with_false", [1, 0, 0, 1]),
        ("fill_with_true", [1, 1, 0, 1]),
        ("fill_with_mode", [1, 1, 0, 1]),
        ("ffill", [1, 1, 0, 1]),
        ("bfill", [1, 0, 0, 1]),
    ],
)
def test_strategies_fill_missing_cells(as_frame, strategy, expected):
    frame = as_frame(column("yes", None, "no", "yes"))
    binary = dp.Binary(missing_value_strategy=strategy).fit(frame)
    assert np.asarray(binary.transform(frame)).ravel().tolist() == expected


@pytest.mark.parametrize("value", ["cat", True, 1])
def test_constant_fills_missing_cells(value):
    binary = dp.Binary(positive="cat", missing_value_strategy="fill_with_const", fill_value=value)
    assert binary.fit_transform(column("cat", None, "bat")).ravel().tolist() == [1, 1, 0]


def test_constant_that_is_not_a_label_raises():
    binary = dp.Binary(positive="cat", missing_value_strategy="fill_with_const", fill_value="dog")
    with pytest.raises(ConfigError, match="'dog' is neither 'bat' nor 'cat'"):
        binary.fit(column("cat", None, "bat"))


def test_third_label_with_conventional_labels_is_missing(as_frame):
    frame = as_frame(column("yes", "no", "?", "yes", "?"))
    with pytest.warns(UserWarning, match=r"2 of 5 cells.*'\?'"):
        binary = dp.Binary(missing_value_strategy="fill_with_true").fit(frame)
    assert np.asarray(binary.transform(frame)).ravel().tolist() == [1, 0, 1, 1, 1]
    with pytest.raises(RejectedValueError, match=r"'\?' is neither 'no' nor 'yes'"):
        dp.Binary(invalid="raise").fit(frame)


def test_long_unknown_label_is_truncated():
    with pytest.warns(UserWarning, match="1 of 3 cells"):
        binary = dp.Binary().fit(column("yes", "no", "x" * 1_000))
    assert binary.learned_["x"].invalid_samples == ("x" * 200,)


def test_three_arbitrary_labels_raise(as_frame):
    with pytest.raises(ColumnError, match="'a', 'b', 'c'.*Category.*positive"):
        dp.Binary().fit(as_frame(column("a", "b", "c")))


def test_three_labels_are_accepted_with_positive():
    encoded = dp.Binary(positive="b").fit_transform(column("a", "b", "c"))
    assert encoded.ravel().tolist() == [0, 1, 0]


def test_many_numbers_are_true_above_zero_with_a_warning():
    with pytest.warns(UserWarning, match="more than two distinct numbers"):
        encoded = dp.Binary().fit_transform(column(-2.0, 0.0, 0.5, 3.0))
    assert encoded.ravel().tolist() == [0, 0, 1, 1]


def test_positive_label_that_never_occurs_raises():
    with pytest.raises(ColumnError, match='no label "humans".*Did you mean "human"'):
        dp.Binary(positive="humans").fit(column("human", "bot"))


@pytest.mark.parametrize(
    "split", [dp.KFold(4, time="x"), dp.TimeSeriesSplit("x", 3), dp.DatetimeSplit("x", (0.8, 0.2)), None], ids=repr
)
def test_training_rows_without_the_positive_label_warn(tmp_path, split):
    last = "no" if split is None else "yes"
    frame = pd.DataFrame({"x": np.arange(40.0), "y": ["no", "maybe"] * 19 + ["no", last]})
    prep = dp.Preprocessor({"x": "number", "y": dp.Binary(positive="yes")}, targets=["y"], split=split)
    with pytest.warns(UserWarning, match="no label 'yes', the value of positive, in its training rows: all are False"):
        prep.fit_write(frame, tmp_path / "a.dp")


def test_unknown_label_raises_with_invalid_raise():
    binary = dp.Binary(invalid="raise").fit(column("yes", "no"))
    with pytest.raises(RejectedValueError, match="\"x\": 'maybe'"):
        binary.transform(column("maybe"))


def test_null_values_are_missing(as_frame):
    frame = as_frame(column("cat", "dog", "?", "dog", None, " -"))
    given = {"positive": "cat", "null_values": ["?", "-"], "invalid": "raise"}
    binary = dp.Binary(missing_value_strategy="fill_with_true", **given).fit(frame)
    assert np.asarray(binary.transform(frame)).ravel().tolist() == [1, 0, 1, 0, 1, 1]
    assert (binary.learned_["x"].bool2str, binary.learned_["x"].missing) == (("dog", "cat"), 3)
    prep = dp.Preprocessor({"x": binary}).fit(frame)
    rows = column("cat", "?", " - ", None, "dog")
    assert (
        Encoder(prep.to_dict()).encode(rows.to_dict("records"))["x"].tolist()
        == encode_columns(prep, rows)["x"].tolist()
    )
    check_feature(dp.Binary(**given | {"positive": None}))


def test_missing_flags_are_the_mode_unless_only_true_occurs():
    for cells, expected in (
        (["yes", "yes", "no", None], True),
        (["no", "no", "yes", None], False),
        (["yes", None], False),
    ):
        frame = pd.DataFrame({"x": cells})
        assert bool(dp.Binary().fit_transform(frame)[-1, 0]) is expected
