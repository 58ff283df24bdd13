"""Frames that are encoded row by row, with the same result as by column."""

from __future__ import annotations

import datetime as dt
import pickle
import warnings
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.columns import tokenizers
from daskprep.errors import ColumnError, RejectedValueError
from daskprep.features import arrays
from daskprep.sources import as_source
from tests.arrow_columns import encode_columns

FRAME = pd.DataFrame(
    {
        "size": [1.5, None, 2.0],
        "city": ["Rome", "Oslo", None],
        "tags": ["a b", "b", "c a"],
        "seen": pd.to_datetime(["2020-01-02", "2021-03-04", "1969-12-31"]),
        "sold": [True, False, True],
    }
)
FEATURES = {"size": "number", "city": "category", "tags": "set", "seen": "date", "sold": "binary"}


@pytest.fixture(scope="module")
def prep() -> dp.Preprocessor:
    return dp.Preprocessor(FEATURES).fit(FRAME)


def few(prep: dp.Preprocessor, frame: Any) -> dict[str, np.ndarray] | None:
    """Return the result of row encoders for a frame, after checking that `encode` equals encoding by column."""
    encoded, expected = prep.encode(frame), encode_columns(prep, frame)
    assert list(encoded) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(encoded[name], array, strict=True)
    return arrays.encode_small_frame(prep.features_, prep.learned_, as_source(frame))


def one(cell: Any, dtype: Any = object) -> pd.DataFrame:
    return FRAME.iloc[:1].assign(city=pd.Series([cell], dtype=dtype))


def test_few_rows_are_encoded_row_by_row(prep):
    for rows in (FRAME, FRAME.iloc[:1], FRAME.iloc[1:], FRAME.iloc[::-1], FRAME.assign(seen="1/2/20").to_dict("list")):
        assert few(prep, rows)
    for rows in (FRAME.iloc[:0], pd.concat([FRAME] * arrays.MAX_ROWS)):
        assert few(prep, rows) is None


@pytest.mark.parametrize(
    "frame",
    [
        *(one("Rome"), one(None), one(float("nan")), one(7), one(2.5), one(True), one(-(2**63))),
        *(
            one("Rome", "str"),
            one("Rome", "category"),
            one("Rome", "string[python]"),
            one(2, "int8"),
            one(np.float32(0.1), "float32"),
        ),
        one(dt.datetime(2020, 1, 2), "datetime64[s]"),
    ],
    ids=lambda frame: f"{frame['city'].dtype} {frame['city'][0]!r}",
)
def test_plain_cells_are_encoded_row_by_row(prep, frame):
    assert few(prep, frame)


@pytest.mark.parametrize(
    "frame",
    [
        *(one(2**63), one(Decimal("1.5")), one(b"Rome"), one(dt.date(2020, 1, 2)), one(np.str_("Rome")), one(pd.NaT)),
        *(one(2, "category"), one(2, "Int64"), one(2, "uint8"), one(0.5, "float16"), one(pd.NaT, "M8[s]")),
        FRAME.assign(city=pd.Series([1, 1.5, "Rome"], dtype=object)),
        FRAME.assign(city=pd.Series([20_200_101, 2**64, None], dtype=object)),
    ],
    ids=lambda frame: f"{frame['city'].dtype} {frame['city'][0]!r}",
)
def test_other_cells_are_encoded_by_column(prep, frame):
    assert few(prep, frame) is None


def test_lists_of_plain_items_are_encoded_row_by_row():
    prep = dp.Preprocessor({"x": "set"}).fit(pd.DataFrame({"x": [["a", "1"], ["b"]]}))
    for cells in ([["a", "new"], []], [[1, 2], None], [["a", None]]):
        assert few(prep, pd.DataFrame({"x": pd.Series(cells, dtype=object)}))
    for cells in ([["a", 1]], [[Decimal(1)]], [("a",)], [{"a"}], [["a"] * 1_001]):
        assert few(prep, pd.DataFrame({"x": pd.Series(cells, dtype=object)})) is None
    nested = pd.DataFrame({"x": pd.Series([[["a"]]], dtype=object)})
    assert arrays.encode_small_frame(prep.features_, prep.learned_, as_source(nested)) is None


def test_features_without_row_encoder_are_encoded_by_column(monkeypatch, sizes, prep):
    class Shouted(dp.Category):
        def encode(self, parsed, learned):
            return super().encode(parsed, learned) + np.uint8(1)

    frame = pd.DataFrame({"x": ["a b", "b"]})
    for feature in (Shouted(), dp.Set(tokenizer=str.split), dp.Sequence(sequence_length=np.int64(3))):
        assert few(dp.Preprocessor({"x": feature}).fit(frame), frame) is None
    monkeypatch.setitem(tokenizers.TOKENIZERS, "space", tokenizers.Words)
    assert few(dp.Preprocessor({"x": dp.Set(tokenizer="space")}).fit(frame), frame) is None
    sizes(large_vocabulary=3)
    assert few(dp.Preprocessor({"x": "category"}).fit(frame), frame) is None
    assert few(prep, FRAME)  # cached before


def test_errors_equal_errors_of_columns():
    frame = pd.DataFrame({"x": [1.0, 2.0]})
    prep = dp.Preprocessor({"x": dp.Number(invalid="raise")}).fit(frame)
    with pytest.raises(RejectedValueError, match=r"column \"x\": '\$3' cannot be read as a number \(1 such cells in"):
        prep.encode(pd.DataFrame({"x": ["$3"]}))
    with pytest.raises(ColumnError, match='column "x": holds values of type timestamp'):
        prep.encode(pd.DataFrame({"x": pd.to_datetime(["2020-01-01"])}))
    with pytest.raises(ColumnError, match='column "x" is not in the data'):
        prep.encode(pd.DataFrame({"y": [1.0]}))


def test_later_set_params_applies():
    frame = pd.DataFrame({"x": ["A", "a", "a"]})
    prep = dp.Preprocessor({"x": dp.Category()}).fit(frame)
    assert few(prep, frame)["x"].tolist() == [2, 1, 1]
    prep.features_["x"].set_params(lowercase=True)
    assert few(prep, frame)["x"].tolist() == [1, 1, 1]


def test_learned_state_can_be_shared_by_several_columns():
    prep = dp.Preprocessor({"x": "category", "y": "category"}).fit(pd.DataFrame({"x": ["a", "b"], "y": ["a", "b"]}))
    prep.learned_["y"] = prep.learned_["x"]
    rows = pd.DataFrame({"x": ["a"], "y": ["b"]})
    for _ in range(2):
        assert {name: array.tolist() for name, array in few(prep, rows).items()} == {"x": [1], "y": [2]}


def test_targets_and_transform_of_few_rows(prep):
    predicting = dp.Preprocessor(FEATURES, targets="sold").fit(FRAME)
    assert list(few(predicting, FRAME)) == list(FEATURES)
    assert "sold" not in predicting.encode(FRAME.drop(columns="sold"))
    many = pd.concat([FRAME] * arrays.MAX_ROWS, ignore_index=True)
    np.testing.assert_array_equal(prep.transform(FRAME), prep.transform(many)[: len(FRAME)], strict=True)


def test_row_encoders_are_not_pickled_and_do_not_warn(prep):
    assert few(prep, FRAME)
    copied = pickle.dumps(prep)
    assert b"serving" not in copied
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert few(pickle.loads(copied), FRAME)
