"""Bad input gives a clear error of ours, or the documented result; never a traceback from inside pandas or Arrow."""

from __future__ import annotations

import warnings

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError, DaskprepError, RejectedValueError


@pytest.fixture
def table() -> pd.DataFrame:
    return pd.DataFrame({"price": [1.0, 2.0, 3.0, 4.0], "city": ["a", "b", "a", None]})


@pytest.fixture
def prep() -> dp.Preprocessor:
    return dp.Preprocessor({"price": "number", "city": "category"})


def test_a_missing_column_is_named_with_the_closest_one(as_frame, table):
    with pytest.raises(ColumnError, match=r'"prize".*Did you mean "price"\?'):
        dp.Preprocessor({"prize": "number"}).fit(as_frame(table))


def test_a_column_missing_from_transform_is_named(as_frame, table, prep):
    prep.fit(table)
    with pytest.raises(ColumnError, match='"city"'):
        prep.transform(as_frame(table[["price"]]))


def test_reordered_columns_mean_the_same_to_a_preprocessor(as_frame, table, prep):
    prep.fit(table)
    reordered = np.asarray(prep.transform(as_frame(table[["city", "price"]])))
    np.testing.assert_array_equal(reordered, prep.transform(table))


def test_reordered_columns_are_refused_by_a_feature(as_frame, table):
    number = dp.Number().fit(table.assign(cost=table["price"] ** 2)[["price", "cost"]])
    with pytest.raises(ColumnError, match="same order"):
        number.transform(as_frame(table.assign(cost=table["price"] ** 2)[["cost", "price"]]))


@pytest.mark.parametrize(
    ("kind", "cells"),
    [
        ("number", pd.to_datetime(["2024-01-01", "2024-01-02"])),
        ("number", [[1.0], [2.0]]),
        ("category", [[1.0], [2.0]]),
        ("binary", [{"a": 1}, {"a": 2}]),
        ("text", [{"a": 1}, {"a": 2}]),
        ("h3", pd.to_datetime(["2024-01-01", "2024-01-02"])),
    ],
)
def test_a_column_of_the_wrong_type_is_named(as_object_frame, kind, cells):
    with pytest.raises(DaskprepError, match='column "x"'):
        dp.Preprocessor({"x": kind}).fit(as_object_frame(pd.DataFrame({"x": cells})))


@pytest.mark.filterwarnings("ignore:column .x. is constant")
@pytest.mark.parametrize("kind", ["binary", "number", "category", "set", "bag", "sequence", "text", "timeseries"])
def test_an_all_null_column_is_all_fill_value(as_frame, kind):
    frame = as_frame(pd.DataFrame({"x": [None] * 4}, dtype=object))
    prep = dp.Preprocessor({"x": kind}).fit(frame)
    encoded = np.asarray(prep.encode(frame)["x"])
    assert len(encoded) == 4
    assert (encoded == encoded[0]).all()
    assert prep.learned_["x"].missing == 4


@pytest.mark.parametrize("strategy", ["fill_with_mode", "fill_with_mean"])
def test_an_all_null_column_has_no_mode_or_mean(as_frame, strategy):
    frame = as_frame(pd.DataFrame({"x": [None] * 4}, dtype=object))
    with pytest.raises(ColumnError, match=f'"x".*no value.*{strategy}.*fill_with_const'):
        dp.Preprocessor({"x": dp.Number(missing_value_strategy=strategy)}).fit(frame)


@pytest.mark.parametrize("strategy", ["ffill", "bfill"])
def test_an_all_null_column_has_no_neighbours(as_frame, strategy):
    frame = as_frame(pd.DataFrame({"x": [None] * 4}, dtype=object))
    prep = dp.Preprocessor({"x": dp.Category(missing_value_strategy=strategy)}).fit(frame)
    with pytest.raises(RejectedValueError, match='"x".*4 missing'):
        np.asarray(prep.encode(pd.DataFrame({"x": [None] * 4}, dtype=object))["x"])


def test_dropping_every_row_leaves_none_to_learn_from(as_frame):
    frame = as_frame(pd.DataFrame({"x": [None] * 4}, dtype=object))
    with pytest.raises(ColumnError, match='"x".*no training rows to fit on'):
        dp.Preprocessor({"x": dp.Number(missing_value_strategy="drop_row")}).fit(frame)


def test_fit_on_no_rows_is_an_error(as_frame, table, prep):
    with pytest.raises(ColumnError, match="no training rows"):
        prep.fit(as_frame(table.iloc[:0]))


def test_transform_of_no_rows_is_an_empty_table(as_frame, table, prep):
    prep.fit(table)
    assert np.asarray(prep.transform(as_frame(table.iloc[:0]))).shape == (0, 2)


def test_mixed_cells_read_the_same_as_their_text(as_object_frame):
    mixed = pd.DataFrame({"x": [1, "1", 1.0, "a", True, None, 2.5]}, dtype=object)
    learned = dp.Preprocessor({"x": "category"}).fit(as_object_frame(mixed)).learned_["x"]
    assert learned.vocabulary.to_dict()["str2freq"] == {"<UNK>": 1, "1": 3, "2.5": 1, "True": 1, "a": 1}


def test_junk_among_numbers_counts_as_missing_and_is_named_once(as_frame):
    frame = as_frame(pd.DataFrame({"x": ["1", "2", "n/a", "3", "?", "n/a"]}))
    with pytest.warns(UserWarning, match=r'column "x": 3 of 6 cells.*\'n/a\', \'\?\'') as caught:
        prep = dp.Preprocessor({"x": dp.Number(normalization=None)}).fit(frame)
    assert len(caught) == 1
    assert np.asarray(prep.encode(frame)["x"]).tolist() == [1, 2, 0, 3, 0, 0]


def test_junk_among_numbers_can_be_an_error(as_frame):
    frame = as_frame(pd.DataFrame({"x": ["1", "2", "n/a"]}))
    with pytest.raises(RejectedValueError, match="\"x\".*'n/a'"):
        dp.Preprocessor({"x": dp.Number(invalid="raise")}).fit(frame)


@pytest.mark.parametrize("as_text", [False, True])
def test_infinities_count_as_missing_and_are_reported(as_frame, as_text):
    values = pd.Series([1.0, np.inf, -np.inf, 3.0])
    frame = as_frame(pd.DataFrame({"x": values.astype(str) if as_text else values}))
    with pytest.warns(UserWarning, match="2 of 4 cells"):
        prep = dp.Preprocessor({"x": dp.Number(missing_value_strategy="fill_with_mean", normalization=None)}).fit(frame)
    assert np.asarray(prep.encode(frame)["x"]).tolist() == [1, 2, 2, 3]


def test_nan_in_a_file_is_a_missing_number(tmp_path):
    pq.write_table(pa.table({"x": [1.0, float("nan"), None, 4.0]}), tmp_path / "nan.parquet")
    prep = dp.Preprocessor({"x": dp.Number(normalization=None), "c": dp.Category(column="x")})
    learned = prep.fit(str(tmp_path / "nan.parquet")).learned_
    assert (learned["x"].missing, learned["x"].invalid, learned["c"].missing, learned["c"].invalid) == (2, 0, 2, 0)


def test_dates_out_of_range_count_as_missing(as_frame):
    frame = as_frame(pd.DataFrame({"x": ["2024-02-30", "2024-02-29", "99999-01-01"]}))
    with pytest.warns(UserWarning, match="2 of 3 cells"):
        prep = dp.Preprocessor({"x": dp.Date(missing_value_strategy="drop_row")}).fit(frame)
    assert np.asarray(prep.encode(frame)["x"])[:, :3].tolist() == [[1970, 1, 1], [2024, 2, 29], [1970, 1, 1]]
    assert np.asarray(prep.assign(frame)["split"]).tolist() == [255, 0, 255]


def test_bytes_that_are_not_utf8_name_file_and_column(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_bytes(b"x,y\n1,ok\n2,caf\xe9\n")
    with pytest.raises(DaskprepError, match=r'bad\.csv.*"y"'):
        dp.Preprocessor({"y": "category"}).fit(str(path))


def test_vectors_of_unequal_length_name_both_lengths(as_frame):
    frame = as_frame(pd.DataFrame({"x": ["1 2 3", "1 2", "4 5 6"]}))
    with pytest.raises(DaskprepError, match='"x".*vector_size'):
        dp.Preprocessor({"x": "vector"}).fit(frame)


def refuse_beta(text: str) -> list[str]:
    if "beta" in text:
        raise KeyError("beta")
    return text.split()


def test_a_tokenizer_that_raises_names_column_and_value(as_frame):
    frame = as_frame(pd.DataFrame({"x": ["alpha", "beta gamma"]}))
    with pytest.raises(RejectedValueError, match="\"x\".*'beta gamma'"):
        dp.Preprocessor({"x": dp.Sequence(tokenizer=refuse_beta)}).fit(frame)


def test_categories_not_seen_in_fit_are_unknown(as_frame, table, prep):
    prep.fit(table)
    frame = as_frame(pd.DataFrame({"price": [1.0, 2.0], "city": ["zzz", "a"]}))
    assert np.asarray(prep.encode(frame)["city"]).tolist() == [0, 1]


def test_labels_not_seen_in_fit_are_missing(as_frame):
    prep = dp.Preprocessor({"x": dp.Binary(fallback_true_label="human", missing_value_strategy="fill_with_true")})
    prep.fit(pd.DataFrame({"x": ["bot", "human"]}))
    frame = as_frame(pd.DataFrame({"x": ["bot", "cat", "human"]}))
    assert np.asarray(prep.encode(frame)["x"]).tolist() == [0, 1, 1]


def test_duplicate_column_names_are_an_error(as_frame, table):
    table.columns = ["price", "price"]
    with pytest.raises((ColumnError, ValueError), match="price"):
        dp.Preprocessor({"price": "number"}).fit(as_frame(table))


def test_column_names_that_are_not_strings_are_an_error(as_frame, table):
    with pytest.raises(ColumnError, match="astype\\(str\\)"):
        dp.Preprocessor({"5": "category"}).fit(as_frame(table.rename(columns={"city": 5})))
    with pytest.raises(ColumnError, match="astype\\(str\\)"):
        dp.Category().fit(as_frame(table.rename(columns={"city": 5})))


def test_an_unknown_type_is_named_with_the_closest_one(table):
    with pytest.raises(ConfigError, match='Did you mean "number"'):
        dp.Preprocessor({"price": "numbr"}).fit(table)


def test_a_wrong_parameter_names_feature_choices_and_the_closest_one(table):
    with pytest.raises(ConfigError, match=r'"price".*normalization.*Did you mean "zscore"'):
        dp.Preprocessor({"price": dp.Number(normalization="z-score")}).fit(table)


@pytest.mark.parametrize("normalization", ["zscore", "minmax", "iq"])
def test_a_constant_column_becomes_0_with_a_warning(as_frame, normalization):
    frame = as_frame(pd.DataFrame({"x": [5.0, 5.0, 5.0]}))
    with pytest.warns(UserWarning, match='"x" is constant'):
        prep = dp.Preprocessor({"x": dp.Number(normalization=normalization)}).fit(frame)
    assert np.asarray(prep.encode(frame)["x"]).tolist() == [0, 0, 0]


def test_log1p_names_a_value_without_logarithm(as_frame):
    frame = as_frame(pd.DataFrame({"x": [1.0, -1.5, 3.0]}))
    with pytest.raises(RejectedValueError, match='"x".*-1.5'):
        dp.Preprocessor({"x": dp.Number(normalization="log1p")}).fit(frame)


def test_two_features_read_one_column_without_disturbing_each_other(as_frame):
    table = pd.DataFrame({"x": [1, 2, None, 2]})
    frame = as_frame(table)
    prep = dp.Preprocessor(
        {
            "as_number": dp.Number(column="x", normalization=None, fill_value=7),
            "as_category": dp.Category(column="x", fill_value="none"),
            "dropped": dp.Number(column="x", normalization=None, missing_value_strategy="ffill"),
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoded = {name: np.asarray(array).tolist() for name, array in prep.fit(frame).encode(frame).items()}
    assert encoded == {"as_number": [1, 2, 7, 2], "as_category": [2, 1, 3, 1], "dropped": [1, 2, 2, 2]}
    assert isinstance(frame, dd.DataFrame) or frame.equals(table)
