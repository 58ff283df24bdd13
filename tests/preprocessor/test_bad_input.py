"""Bad input raises a clear daskprep error or has the documented result, never a traceback of pandas or Arrow."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import daskprep as dp
from daskprep import serving
from daskprep.errors import (
    ColumnError,
    ConfigError,
    CorruptDatasetError,
    DaskprepError,
    RejectedValueError,
    StorageError,
)


@pytest.fixture
def table() -> pd.DataFrame:
    return pd.DataFrame({"price": [1.0, 2.0, 3.0, 4.0], "city": ["a", "b", "a", None]})


@pytest.fixture
def prep() -> dp.Preprocessor:
    return dp.Preprocessor({"price": "number", "city": "category"})


def test_missing_column_error_suggests_closest_name(as_frame, table):
    with pytest.raises(ColumnError, match=r'"prize".*Did you mean "price"\?'):
        dp.Preprocessor({"prize": "number"}).fit(as_frame(table))


def test_column_missing_in_transform_raises(as_frame, table, prep):
    prep.fit(table)
    with pytest.raises(ColumnError, match='"city"'):
        prep.transform(as_frame(table[["price"]]))


def test_preprocessor_transform_ignores_column_order(as_frame, table, prep):
    prep.fit(table)
    reordered = np.asarray(prep.transform(as_frame(table[["city", "price"]])))
    np.testing.assert_array_equal(reordered, prep.transform(table))


def test_feature_transform_raises_for_reordered_columns(as_frame, table):
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
def test_wrong_column_type_error_names_column(as_object_frame, kind, cells):
    with pytest.raises(DaskprepError, match='column "x"'):
        dp.Preprocessor({"x": kind}).fit(as_object_frame(pd.DataFrame({"x": cells})))


@pytest.mark.filterwarnings("ignore:column .x. is constant", "ignore:column .x. has no values")
@pytest.mark.parametrize("kind", ["binary", "number", "category", "set", "bag", "sequence", "text", "timeseries"])
def test_all_null_column_encodes_as_fill_value(as_frame, kind):
    frame = as_frame(pd.DataFrame({"x": [None] * 4}, dtype=object))
    prep = dp.Preprocessor({"x": kind}).fit(frame)
    encoded = np.asarray(prep.encode(frame)["x"])
    assert len(encoded) == 4
    assert (encoded == encoded[0]).all()
    assert prep.learned_["x"].missing == 4


@pytest.mark.parametrize("strategy", ["fill_with_mode", "fill_with_median"])
def test_all_null_column_raises_for_mode_and_median(as_frame, strategy):
    frame = as_frame(pd.DataFrame({"x": [None] * 4}, dtype=object))
    with pytest.raises(ColumnError, match=f'"x".*no value.*{strategy}.*fill_with_const'):
        dp.Preprocessor({"x": dp.Number(missing_value_strategy=strategy)}).fit(frame)


@pytest.mark.parametrize("strategy", ["ffill", "bfill"])
def test_all_null_column_raises_for_ffill_and_bfill(as_frame, strategy):
    frame = as_frame(pd.DataFrame({"x": [None] * 4}, dtype=object))
    prep = dp.Preprocessor({"x": dp.Category(missing_value_strategy=strategy)}).fit(frame)
    with pytest.raises(RejectedValueError, match='"x".*4 cells are missing'):
        np.asarray(prep.encode(pd.DataFrame({"x": [None] * 4}, dtype=object))["x"])


def test_fit_raises_if_drop_row_drops_every_row(as_frame):
    frame = as_frame(pd.DataFrame({"x": [None] * 4}, dtype=object))
    with pytest.raises(ColumnError, match='"x".*no training rows to fit on'):
        dp.Preprocessor({"x": dp.Number(missing_value_strategy="drop_row")}).fit(frame)


def test_fit_raises_without_rows(as_frame, table, prep):
    with pytest.raises(ColumnError, match="no training rows"):
        prep.fit(as_frame(table.iloc[:0]))


def test_transform_without_rows_returns_empty_table(as_frame, table, prep):
    prep.fit(table)
    assert np.asarray(prep.transform(as_frame(table.iloc[:0]))).shape == (0, 2)


def test_mixed_cells_equal_their_text(as_object_frame):
    mixed = pd.DataFrame({"x": [1, "1", 1.0, "a", True, None, 2.5]}, dtype=object)
    learned = dp.Preprocessor({"x": "category"}).fit(as_object_frame(mixed)).learned_["x"]
    assert learned.vocabulary.to_dict()["str2freq"] == {"<UNK>": 1, "1": 3, "2.5": 1, "True": 1, "a": 1}


def test_unreadable_numbers_count_as_missing_and_warn_once(as_frame):
    frame = as_frame(pd.DataFrame({"x": ["1", "2", "n/a", "3", "?", "n/a"]}))
    with pytest.warns(UserWarning, match=r'column "x": 3 of 6 cells.*\'n/a\', \'\?\'') as caught:
        prep = dp.Preprocessor({"x": dp.Number(normalization=None)}).fit(frame)
    assert len(caught) == 1
    assert np.asarray(prep.encode(frame)["x"]).tolist() == [1, 2, 2, 3, 2, 2]


def test_unreadable_numbers_raise_with_invalid_raise(as_frame):
    frame = as_frame(pd.DataFrame({"x": ["1", "2", "n/a"]}))
    with pytest.raises(RejectedValueError, match="\"x\".*'n/a'"):
        dp.Preprocessor({"x": dp.Number(invalid="raise")}).fit(frame)


@pytest.mark.parametrize("as_text", [False, True])
def test_infinities_count_as_missing_and_warn(as_frame, as_text):
    values = pd.Series([1.0, np.inf, -np.inf, 3.0])
    frame = as_frame(pd.DataFrame({"x": values.astype(str) if as_text else values}))
    with pytest.warns(UserWarning, match="2 of 4 cells"):
        prep = dp.Preprocessor({"x": dp.Number(missing_value_strategy="fill_with_mean", normalization=None)}).fit(frame)
    assert np.asarray(prep.encode(frame)["x"]).tolist() == [1, 2, 2, 3]


def test_nan_in_file_counts_as_missing(tmp_path):
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


def test_invalid_utf8_error_names_file_and_column(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_bytes(b"x,y\n1,ok\n2,caf\xe9\n")
    with pytest.raises(DaskprepError, match=r'bad\.csv.*"y"'):
        dp.Preprocessor({"y": "category"}).fit(str(path))


def test_vectors_of_unequal_length_raise(as_frame):
    frame = as_frame(pd.DataFrame({"x": ["1 2 3", "1 2", "4 5 6"]}))
    with pytest.raises(DaskprepError, match='"x".*vector_size'):
        dp.Preprocessor({"x": "vector"}).fit(frame)


def refuse_beta(text: str) -> list[str]:
    if "beta" in text:
        raise KeyError("beta")
    return text.split()


def test_tokenizer_exception_names_column_and_value(as_frame):
    frame = as_frame(pd.DataFrame({"x": ["alpha", "beta gamma"]}))
    with pytest.raises(RejectedValueError, match="\"x\".*'beta gamma'"):
        dp.Preprocessor({"x": dp.Sequence(tokenizer=refuse_beta)}).fit(frame)


def test_unseen_categories_are_unknown(as_frame, table, prep):
    prep.fit(table)
    frame = as_frame(pd.DataFrame({"price": [1.0, 2.0], "city": ["zzz", "a"]}))
    assert np.asarray(prep.encode(frame)["city"]).tolist() == [0, 1]


def test_unseen_labels_are_missing(as_frame):
    prep = dp.Preprocessor({"x": dp.Binary(positive="human", missing_value_strategy="fill_with_true")})
    prep.fit(pd.DataFrame({"x": ["bot", "human"]}))
    frame = as_frame(pd.DataFrame({"x": ["bot", "cat", "human"]}))
    assert np.asarray(prep.encode(frame)["x"]).tolist() == [0, 1, 1]


def test_duplicate_column_names_raise(as_frame, table):
    table.columns = ["price", "price"]
    with pytest.raises((ColumnError, ValueError), match="price"):
        dp.Preprocessor({"price": "number"}).fit(as_frame(table))


def test_column_names_must_be_strings_or_integers(as_frame, table):
    with pytest.raises(ColumnError, match="astype\\(str\\)"):
        dp.Preprocessor({"5.5": "category"}).fit(as_frame(table.rename(columns={"city": 5.5})))
    with pytest.raises(ColumnError, match="astype\\(str\\)"):
        dp.Category().fit(as_frame(table.rename(columns={"city": 5.5})))
    by_number = dp.Preprocessor({"5": "category"}).fit(as_frame(table.rename(columns={"city": 5})))
    assert by_number.learned_["5"] == dp.Preprocessor({"city": "category"}).fit(as_frame(table)).learned_["city"]


def test_unknown_type_error_suggests_closest_name(table):
    with pytest.raises(ConfigError, match='Did you mean "number"'):
        dp.Preprocessor({"price": "numbr"}).fit(table)


def test_invalid_parameter_error_names_feature_and_suggests_choice(table):
    with pytest.raises(ConfigError, match=r'"price".*normalization.*Did you mean "zscore"'):
        dp.Preprocessor({"price": dp.Number(normalization="z-score")}).fit(table)


@pytest.mark.parametrize("normalization", ["zscore", "minmax", "iq"])
def test_constant_column_is_0_with_warning(as_frame, normalization):
    frame = as_frame(pd.DataFrame({"x": [5.0, 5.0, 5.0]}))
    with pytest.warns(UserWarning, match='"x" is constant'):
        prep = dp.Preprocessor({"x": dp.Number(normalization=normalization)}).fit(frame)
    assert np.asarray(prep.encode(frame)["x"]).tolist() == [0, 0, 0]


def test_log1p_error_names_value_without_logarithm(as_frame):
    frame = as_frame(pd.DataFrame({"x": [1.0, -1.5, 3.0]}))
    with pytest.raises(RejectedValueError, match='"x".*-1.5'):
        dp.Preprocessor({"x": dp.Number(normalization="log1p")}).fit(frame)


def test_features_of_the_same_column_are_independent(as_frame):
    table = pd.DataFrame({"x": [1, 2, None, 2]})
    frame = as_frame(table)
    prep = dp.Preprocessor(
        {
            "as_number": dp.Number(
                column="x", normalization=None, missing_value_strategy="fill_with_const", fill_value=7
            ),
            "as_category": dp.Category(column="x", fill_value="none"),
            "dropped": dp.Number(column="x", normalization=None, missing_value_strategy="ffill"),
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "information is lost in")
        encoded = {name: np.asarray(array).tolist() for name, array in prep.fit(frame).encode(frame).items()}
    assert encoded == {"as_number": [1, 2, 7, 2], "as_category": [2, 1, 3, 1], "dropped": [1, 2, 2, 2]}
    assert isinstance(frame, dd.DataFrame) or frame.equals(table)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, which has a folder and a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    return tmp_path


NO_PATHS = {
    "a\0b": "NUL character", "x\ud800": "half of a surrogate pair", "a" * 300: "300 bytes", "": "not ''",
    None: "not None", 3: "not (a )?int", b"a": "not (b'a'|int)",
}  # fmt: skip
ONES = pd.DataFrame({"x": [1.0, 2.0]})
USES: dict[str, Callable[[Any], Any]] = {
    "save": lambda path: dp.Preprocessor({"x": "number"}).fit(ONES).save(path),
    "load": dp.Preprocessor.load,
    "serving": serving.load,
    "report": lambda path: dp.Preprocessor({"x": "number"}).fit_write(ONES, "x.dp").report().save(path),
    "open": dp.open_dataset,
    "write": lambda path: dp.Preprocessor({"x": "number"}).fit_write(ONES, path),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("path", NO_PATHS, ids=repr)
def test_invalid_paths_raise(folder: Path, use: str, path: Any) -> None:
    message = "no saved Preprocessor can be read at" if use == "serving" else NO_PATHS[path]
    with pytest.raises(ConfigError, match=message):
        USES[use](path)


@pytest.mark.parametrize("use", ["save", "report"])
@pytest.mark.parametrize(
    ("path", "message"),
    [("folder", "it is a folder, so add a name"), ("file/x", "part of the path is a file")],
)
def test_unwritable_path_error_names_path(folder: Path, use: str, path: str, message: str) -> None:
    with pytest.raises(StorageError, match=f'"{folder / path}" cannot be written .*{message}'):
        USES[use](path)


@pytest.mark.parametrize("use", ["save", "load", "report", "open", "write"])
def test_refused_connection_raises_storage_error(folder: Path, use: str) -> None:
    with pytest.raises(StorageError, match=r"http://127\.0\.0\.1:9/x\.json.* check the connection"):
        USES[use]("http://127.0.0.1:9/x.json")


@pytest.mark.parametrize("path", ["file/x", "a\0b", "file"])
def test_scratch_that_cannot_be_a_folder_raises(folder: Path, path: str) -> None:
    with pytest.raises(StorageError, match="scratch=.* cannot be a folder"):
        dp.Preprocessor({"x": "number"}, scratch=path).fit(ONES)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1"])
@pytest.mark.parametrize("tokenizer", ["hf_tokenizer", "sentencepiece"])
def test_invalid_tokenizer_file_error_names_file(folder: Path, tokenizer: str, content: bytes) -> None:
    (folder / "some.json").write_bytes(content)
    text = dp.Text(tokenizer=tokenizer, pretrained_model_name_or_path="some.json")
    with pytest.raises(ConfigError, match="some.json"):
        dp.Preprocessor({"x": text}).fit(pd.DataFrame({"x": ["a"]}))


HALF = "x\ud800"


@pytest.mark.parametrize(
    "feature",
    [
        dp.Category(order=[HALF, "a"]), dp.Category(null_values=[HALF]), dp.Category(fill_value=HALF),
        dp.Sequence(fill_value=HALF), dp.Sequence(special_symbols={"unknown": HALF}),
        dp.Set(tokenizer="regex", pattern=HALF), dp.Category(column=HALF),
    ],
)  # fmt: skip
def test_lone_surrogate_in_parameter_raises(feature: Any) -> None:
    with pytest.raises(ConfigError, match="has half of a surrogate pair"):
        dp.Preprocessor({"x": feature}).fit(pd.DataFrame({"x": ["a", "b"]}))


def test_lone_surrogate_in_data_and_options_raises(folder: Path) -> None:
    named = pd.DataFrame([["a"]], columns=pd.Index([HALF], dtype=object))
    Path("a.csv").write_text("a,b\n1,2\n")
    for call in (
        lambda: dp.Preprocessor({HALF: "category"}).fit(named),
        lambda: dp.infer_features(named),
        lambda: dp.Preprocessor({"x": "category"}).fit({"x": np.array([HALF], object)}),
        lambda: dp.read_files("a.csv", header=None, names=[HALF, "b"]),
        lambda: dp.read_files("a.csv", null_values=[HALF]),
        lambda: dp.read_files("a.csv", encoding=HALF),
    ):
        with pytest.raises((ColumnError, ConfigError), match="surrogate|encoding="):
            call()


@pytest.mark.parametrize("levels", [60, 300, 450, 100_000])
@pytest.mark.parametrize(("before", "after"), [("[", "]"), ('{"a": ', "}")])
def test_deeply_nested_configuration_or_state_raises(folder: Path, levels: int, before: str, after: str) -> None:
    nested: Any = 1
    for _ in range(levels):
        nested = [nested] if before == "[" else {"a": nested}
    text = before * levels + "1" + after * levels
    feature = f'{{"name": "c", "type": "category", "preprocessing": {{"fill_value": {text}}}}}'
    (folder / "a.json").write_text(f'{{"input_features": [{feature}]}}')
    known = {"name": "c", "type": "category", "preprocessing": {"fill_value": nested}}
    for config in ("a.json", f"input_features:\n- {feature}", {"input_features": [known]}, {"model": nested}):
        with pytest.raises(ConfigError, match="nested"):
            dp.Preprocessor.from_config(config)
    (folder / "b.json").write_text(f'{{"format": 1, "features": {{"a": {{"type": "set", "params": {text}}}}}}}')
    for load in (dp.Preprocessor.load, serving.load):
        with pytest.raises(DaskprepError):
            load("b.json")


def test_deeply_nested_serving_cell_raises() -> None:
    cell: Any = 1
    for _ in range(3000):
        cell = [cell]
    for feature, known in (("set", "a"), ("vector", "1 2")):
        encoder = serving.Encoder(dp.Preprocessor({"x": feature}).fit(pd.DataFrame({"x": [known, known]})).to_dict())
        with pytest.raises(DaskprepError, match='column "x"'):
            encoder.encode({"x": cell})


def test_dataset_and_saved_preprocessor_in_place_of_each_other_raise(folder: Path) -> None:
    prep = dp.Preprocessor({"x": "number"})
    prep.fit_write(ONES, "x.dp")
    with pytest.raises(ConfigError, match="it is a dataset: use Preprocessor.from_dataset"):
        dp.Preprocessor.load("x.dp")
    assert dp.Preprocessor.from_dataset("x.dp").to_dict() == prep.to_dict()
    (folder / "x.csv").write_text("x\n1\n")
    with pytest.raises(CorruptDatasetError, match="pass the file that Preprocessor.save wrote.*not valid JSON"):
        dp.Preprocessor.load("x.csv")


def test_similar_columns_share_one_warning(as_frame):
    cells = pd.Series(["1", "2", "?", "n/a"], dtype=object)
    frame = pd.DataFrame({f"x{number}": cells for number in range(7)} | {"y": 1.0, "z": 2.0})
    prep = dp.Preprocessor(dict.fromkeys(frame.columns, "number"))
    with pytest.warns(UserWarning, match="cells cannot be read|constant") as caught:
        prep.fit(as_frame(frame))
    constant, unreadable = sorted((str(one.message) for one in caught), key=lambda text: "cannot be read" in text)
    assert constant.startswith('each of the columns "y", "z" is constant')
    assert unreadable.startswith("column \"x0\": 2 of 4 cells cannot be read as a number, such as '?'; column ")
    assert "; and 2 more columns, and counted as missing; " in unreadable
    assert unreadable.endswith('or use invalid="raise" to stop at the first')
