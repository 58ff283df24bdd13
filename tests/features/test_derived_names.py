"""Names that daskprep adds: a column of the data with such a name is a feature like others, or is refused."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError

CELLS = {
    "number": [5.0, 6.0, None, 8.0] * 5,
    "binary": ["yes", "no", "no", "yes"] * 5,
    "category": ["a", "b", "c", "a"] * 5,
    "text": ["x y", "z", "x", "y y"] * 5,
    "set": ["x y", "z", "x", "y y"] * 5,
    "timeseries": ["1 2", "3", "4 5", "6"] * 5,
    "vector": ["1 2", "3 4", "5 6", "7 8"] * 5,
    "date": ["2024-01-01", "2024-01-02", "2024-02-01", "2024-03-01"] * 5,
}
DERIVED = ["missing", "size", "word", "char", "length", "probability", "predictions", "lengths"]
FIRST = {
    "plain": dp.Number(),
    "filled": dp.Number(missing_value_strategy="ffill"),
    "both": dp.Text(level="both"),
    "marked": dp.Category(missing_indicator=True),
}


def check_column_with_derived_name(folder, first, suffix, kind, order):
    """Check that a column is encoded as alone, by encode, writes and streams; or that fit refuses it."""
    name = f"x_{suffix}"
    frame = pd.DataFrame({"x": CELLS["category" if first in ("both", "marked") else "number"], name: CELLS[kind]})
    prep = dp.Preprocessor(dict([("x", FIRST[first]), (name, kind)][::order]), split=None)
    if (first, suffix) in {("marked", "missing"), ("both", "word"), ("both", "char")}:
        with pytest.raises(ConfigError, match=f'both return "{name}": pass one of them under another name'):
            prep.fit(frame)
        return
    encoded = dict(prep.fit(frame).encode(frame))
    alone = dp.Preprocessor({name: kind}, split=None).fit(frame).encode(frame)
    written = prep.fit_write(frame, folder / "x.dp", overwrite=True)["train"].read()
    streamed = next(iter(prep.stream(frame, 20, shuffle=False)))
    assert set(alone) < set(encoded) == set(written) == set(streamed)
    for output, values in encoded.items():
        np.testing.assert_array_equal(written[output], values)
        np.testing.assert_array_equal(alone.get(output, values), values)


@pytest.mark.parametrize("kind", ["number", "category", "text"])
@pytest.mark.parametrize("first", ["plain", "marked"])
def test_column_with_name_of_indicator_is_encoded_or_refused(tmp_path, first, kind):
    check_column_with_derived_name(tmp_path, first, "missing", kind, 1)


@pytest.mark.slow
@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("suffix", DERIVED)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_column_with_derived_name_is_encoded_or_refused(tmp_path, first, suffix):
    for kind in CELLS:
        for order in (1, -1):
            check_column_with_derived_name(tmp_path, first, suffix, kind, order)


@pytest.mark.parametrize("name", ["row_id", "\0missing", "\0anything"])
@pytest.mark.parametrize("call", ["fit", "write", "stream", "add"])
def test_feature_with_internal_name_is_refused(tmp_path, name, call):
    frame = pd.DataFrame({"x": [1.0, 2.0]})
    dataset = dp.Preprocessor({"x": "number"}).fit_write(frame, tmp_path / "x.dp")
    feature = dp.Number(column="x")
    state = dp.Preprocessor({"renamed": feature}).fit(frame).to_dict()
    prep = dp.Preprocessor.from_dict(json.loads(json.dumps(state).replace('"renamed"', json.dumps(name))))
    calls = {
        "fit": lambda: dp.Preprocessor({name: feature}).fit(frame),
        "write": lambda: prep.write(frame, tmp_path / "y.dp"),
        "stream": lambda: prep.stream(frame, 2),
        "add": lambda: dataset.add(name, feature, frame),
    }
    with pytest.raises(ConfigError, match=r"a feature is called .*the name of a column that writes add"):
        calls[call]()


def test_column_split_of_rows_by_split_is_refused(tmp_path):
    frame = pd.DataFrame({"split": ["a", "b"], "x": [1.0, 2.0]})
    rows = {"train": frame, "test": frame}
    assert len(dp.Preprocessor({"x": "number"}).fit_write(rows, tmp_path / "x.dp")["test"]) == 2
    with pytest.raises(ConfigError, match='reads column "split", the name of the column with the split'):
        dp.Preprocessor({"split": "category"}).fit(rows)
    prep = dp.Preprocessor({"split": "category"}).fit(frame)
    with pytest.raises(ConfigError, match='reads column "split", the name of the column with the split'):
        prep.write(rows, tmp_path / "y.dp")
    own = dp.Preprocessor({"split": "category"}, split=dp.FixedSplit("split")).fit(
        frame.assign(split=["train", "test"])
    )
    assert own.encode(pd.DataFrame({"split": ["train"]}))["split"].tolist() == [1]


def test_column_with_name_of_y_is_refused():
    frame = pd.DataFrame({"y of fit": [1.0, 2.0] * 5, "c": ["a", "b"] * 5})
    with pytest.raises(ColumnError, match='"y of fit" has the name of the column for y'):
        dp.Preprocessor({"c": dp.TargetEncoding()}).fit(frame, np.arange(10.0))


@pytest.mark.parametrize("name", ["position_ids", "document_ids"])
def test_packing_refuses_to_replace_output(tmp_path, name):
    frame = pd.DataFrame({"review": ["a b c", "a"] * 5, name: [5, 6] * 5})
    split = dp.Preprocessor({"review": "text", name: "number"}).fit_write(frame, tmp_path / "x.dp")["train"]
    with pytest.raises(ConfigError, match=f'"{name}" of documents would replace an output'):
        split.loader(2, pack=dp.Packing(block_size=4, columns=["review"]))
    features = {"review": "text", "other": dp.Number(column=name, normalization=None)}
    split = dp.Preprocessor(features).fit_write(frame, tmp_path / "y.dp")["train"]
    batch = next(iter(split.loader(2, pack=dp.Packing(block_size=4, columns=["review"]), shuffle=False)))
    assert torch.equal(batch["position_ids"][0], torch.tensor([0, 1, 2, 0]))


@pytest.mark.parametrize(
    ("feature", "name"),
    [
        ("text", "x_0"),
        (dp.Category(transform_to="one_hot"), "x_a"),
        (dp.Category(missing_indicator=True), "x_missing_2"),
    ],
)
def test_names_of_table_columns_are_unique_or_refused(feature, name):
    frame = pd.DataFrame({"x": ["a", "b"] * 5, name: [1.0, 2.0] * 5})
    prep = dp.Preprocessor({"x": feature, name: "number"}).fit(frame)
    assert prep.transform(frame).shape[0] == 10
    if name == "x_missing_2":
        assert list(prep.get_feature_names_out()) == ["x", "x_missing", name]
        return
    with pytest.raises(ConfigError, match=f'features "x" and "{name}" both return the column "{name}"'):
        prep.set_output(transform="pandas").transform(frame)


def test_name_that_is_not_utf8_is_refused(tmp_path):
    name, frame = "a\ud800", pd.DataFrame({"x": [1.0, 2.0]})
    calls = [
        lambda: dp.Preprocessor({name: dp.Number(column="x")}).fit(frame),
        lambda: dp.Preprocessor({name: dp.Number(column="x")}).fit_write(frame, tmp_path / "a.dp"),
        lambda: dp.Preprocessor({"x": dp.Number(column=name)}).fit(frame),
        lambda: dp.Preprocessor({"x": "number"}, weight=name).fit(frame),
        lambda: dp.Preprocessor({"x": "number"}, targets=name).fit(frame),
        lambda: dp.Preprocessor({"x": "number"}, split=dp.HashSplit(name)).fit(frame),
        lambda: dp.Preprocessor({"x": "number"}, balance=dp.Oversample(name, 0.5)).fit(frame),
        lambda: dp.Preprocessor({name: "number"}).fit({name: [1.0, 2.0]}),
        lambda: dp.Preprocessor({"x": "number"}).fit_write(frame, tmp_path / "b.dp").add(name, "number", frame),
    ]
    for call in calls:
        with pytest.raises((ConfigError, ColumnError)) as caught:
            call()
        assert str(caught.value).encode()
