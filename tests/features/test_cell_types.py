"""Labels are decoded in the type of their column."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.columns.summaries import CellType
from daskprep.serving import Encoder

COLUMNS: dict[str, Any] = {
    "integers": np.array([1, 2, 2, 7] * 5),
    "booleans": np.array([True, False, True, True] * 5),
    "floats": np.array([1.0, 2.5, 2.5, 7.0] * 5),
    "float32s": np.array([0.1, 2.5, 2.5, 7.0] * 5, np.float32),
    "decimals": [Decimal("1.50"), Decimal(2), Decimal(2), Decimal(7)] * 5,
    "texts": ["1", "x", "x", "07"] * 5,
}


@pytest.mark.parametrize("name", COLUMNS)
def test_decoded_categories_equal_the_column(name):
    frame = pd.DataFrame({"y": COLUMNS[name]})
    prep = dp.Preprocessor({"y": "category"}).fit(frame)
    decoded = prep.decode(prep.encode(frame))
    assert (decoded["y"] == frame["y"]).all()
    assert type(decoded["y"].tolist()[0]) is type(frame["y"].tolist()[0])


@pytest.mark.parametrize("name", ["integers", "booleans", "floats", "texts"])
def test_predicted_labels_equal_the_column(name):
    frame = pd.DataFrame({"x": np.arange(20.0), "y": COLUMNS[name]})
    prep = dp.Preprocessor({"x": "number", "y": "category"}, targets="y").fit(frame)
    scores = np.eye(5)[prep.encode(frame)["y"]][:, : prep.learned_["y"].num_embeddings]
    assert (prep.predictions(scores)["y_predictions"] == frame["y"]).all()
    served = Encoder(prep.to_dict()).predictions(scores)["y_predictions"].tolist()
    assert served == frame["y"].tolist()
    assert set(map(type, served)) == set(map(type, frame["y"].tolist()))


@pytest.mark.parametrize("labels", [[0, 1, 1, 0], [False, True, True, False], [3, 8, 8, 3], ["no", "yes", "yes", "no"]])
def test_binary_labels_equal_the_column(labels):
    frame = pd.DataFrame({"x": np.arange(4.0), "y": labels})
    true = {3: "8"}.get(labels[0]) if labels[0] == 3 else None
    prep = dp.Preprocessor({"x": "number", "y": dp.Binary(positive=true)}, targets="y").fit(frame)
    predicted = prep.predictions(np.array([-1.0, 1, 1, -1]))["y_predictions"]
    assert (predicted == frame["y"]).all()
    assert predicted.dtype == frame["y"].dtype
    assert prep.decode(prep.encode(frame))["y"].tolist() == labels


def test_unknown_integer_categories_decode_as_missing():
    prep = dp.Preprocessor({"y": "category"}).fit(pd.DataFrame({"y": [5, 6]}))
    assert prep.decode(prep.encode(pd.DataFrame({"y": [5, 9]})))["y"].tolist() == [5, None]


def test_integer_numbers_decode_as_integers(tmp_path):
    frame = pd.DataFrame({"year": [2010, 1999, 2024], "size": [1.5, 2.0, 3.0], "float": [1.0, 2.0, 3.0]})
    frame.to_csv(tmp_path / "cars.csv", index=False)
    for source in (frame, tmp_path / "cars.csv"):
        prep = dp.Preprocessor(dict.fromkeys(frame, "number")).fit(source)
        decoded = prep.decode(prep.encode(frame))
        assert decoded["year"].tolist() == [2010, 1999, 2024]
        assert decoded["year"].dtype == np.int64
        assert decoded["size"].tolist() == [1.5, 2.0, 3.0]


def test_cell_types_do_not_depend_on_partitions(tmp_path):
    frame = pd.DataFrame({"y": [1, 2, 2, 7] * 5, "z": list("abcd") * 5})
    features = {"y": "category", "z": "category"}
    split = dp.StratifiedSplit("z", (0.5, 0.25, 0.25))
    one = dp.Preprocessor(features, split=split).fit_write(frame, tmp_path / "one.dp")
    parts = dp.Preprocessor(features, split=split).fit_write(dd.from_pandas(frame, 3), tmp_path / "parts.dp")
    assert one["train"].head(3)["y"].dtype == np.int64
    states = [dp.Preprocessor.from_dataset(each).to_dict() for each in (one, parts)]
    assert states[0] == states[1]
    assert states[0]["features"]["y"]["learned"]["cell_type"] == "integer"


def test_states_without_cell_types_decode_as_text():
    frame = pd.DataFrame({"y": [1, 2, 2]})
    state = dp.Preprocessor({"y": "category"}).fit(frame).to_dict()
    del state["features"]["y"]["learned"]["cell_type"]
    prep = dp.Preprocessor.from_dict(state)
    assert prep.decode(prep.encode(frame))["y"].tolist() == ["1", "2", "2"]


def test_cell_types_merge_in_any_order():
    names = ["", "integer", "boolean", "float", "float32", "decimal", "text"]
    kinds = [CellType(name) for name in names]
    assert all(a + (b + c) == (a + b) + c and a + b == b + a for a in kinds for b in kinds for c in kinds)
    assert CellType("integer") + CellType("float") == CellType("float")
    assert CellType("integer") + CellType("boolean") == CellType("text")
