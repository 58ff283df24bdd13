"""A process with only NumPy loads and encodes, and names the missing package if that is not enough."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import daskprep as dp
from daskprep.columns import tokenizers
from daskprep.features import FEATURES, Category
from daskprep.serving import Encoder, load
from tests.arrow_columns import encode_columns

ABSENT = ["pandas", "pyarrow", "dask", "distributed", "sklearn", "torch", "zarr", "scipy", "PIL", "fsspec", "dateutil"]
ROWS = [
    {"n": 1.5, "c": "Rome", "b": "yes", "s": "new red", "j": '["a", 1.50]', "t": "Good, really good!"}
    | {"v": "0.5 1", "w": 1, "d": "3/5/2021 4:00 PM", "h": "8928308280fffff"},
    {
        "n": None,
        "c": "Bern",
        "b": "no",
        "s": None,
        "j": "[]",
        "t": "BAD",
        "v": None,
        "w": 2,
        "d": "1600000000",
        "h": None,
    },
]
PROCESS = f"""
import json, pickle, sys
sys.modules.update(dict.fromkeys({ABSENT!r}))
from daskprep.errors import DaskprepError
from daskprep.serving import load
try:
    result, report = load(sys.argv[1]).encode(json.loads(sys.argv[2]), report=True)
except DaskprepError as error:
    result = type(error).__name__, str(error)
assert not [name for name in {ABSENT!r} if sys.modules[name] is not None]
sys.stdout.buffer.write(pickle.dumps(result))
"""


def encode_elsewhere(path: Path, rows: str) -> Any:
    """Return the rows, as JSON, encoded in a process without most packages."""
    done = subprocess.run([sys.executable, "-c", PROCESS, str(path), rows], capture_output=True, check=False)
    assert not done.returncode, done.stderr.decode()
    return pickle.loads(done.stdout)


def test_process_with_only_numpy_encodes(tmp_path: Path) -> None:
    frame = pd.DataFrame(ROWS)
    kinds = {
        "n": dp.Number(missing_value_strategy="fill_with_const"),
        "c": "category",
        "b": "binary",
        "s": "set",
        "t": dp.Text(level="both"),
    }
    kinds |= {"v": "vector", "w": dp.Timeseries(window_size=2, group_by="c"), "d": "date", "h": "h3"}
    features = {**kinds, "bag": dp.Bag(column="s"), "steps": dp.Sequence(column="j", tokenizer="json")}
    prep = dp.Preprocessor(features).fit(frame)
    prep.save(tmp_path / "prep.json")
    found = encode_elsewhere(tmp_path / "prep.json", frame.to_json(orient="records"))
    expected = encode_columns(prep, frame)
    assert list(found) == list(expected)
    for output, array in expected.items():
        np.testing.assert_array_equal(found[output], array, strict=True)


def test_process_with_only_numpy_raises_for_images(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4), "red").save(tmp_path / "red.png")
    frame = pd.DataFrame({"photo": [str(tmp_path / "red.png")]})
    dp.Preprocessor({"photo": dp.Image(height=2, width=2)}).fit(frame).save(tmp_path / "prep.json")
    name, message = encode_elsewhere(tmp_path / "prep.json", "[]")
    assert name == "MissingPackageError"
    assert message.startswith('feature "photo" (image) cannot be encoded without the package')
    assert message.endswith("without --no-deps")


def test_images_are_encoded_by_their_feature(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4), "red").save(tmp_path / "red.png")
    frame = pd.DataFrame({"photo": [str(tmp_path / "red.png"), None]})
    prep = dp.Preprocessor({"photo": dp.Image(height=2, width=2)}).fit(frame)
    prep.save(tmp_path / "prep.json")
    arrays = load(tmp_path / "prep.json").encode(frame.to_dict("records"))
    np.testing.assert_array_equal(arrays["photo"], prep.encode(frame)["photo"], strict=True)


def test_custom_types_and_tokenizers_are_encoded_by_their_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    class Code(Category):
        kind = "code"

    monkeypatch.setitem(FEATURES, "code", Code)
    monkeypatch.setitem(tokenizers.TOKENIZERS, "halves", tokenizers.Spaced)
    frame = pd.DataFrame({"a": ["x", "y", None], "b": ["1 2", None, "2"]})
    prep = dp.Preprocessor({"code": Code(column="a"), "steps": dp.Sequence(column="b", tokenizer="halves")}).fit(frame)
    encoder = Encoder(prep.to_dict())
    for row, cells in enumerate(frame.astype(object).where(frame.notna(), None).to_dict("records")):
        found, expected = encoder.encode(cells), prep.encode(frame)
        assert list(found) == list(expected) == ["code", "steps"]
        for output, array in found.items():
            np.testing.assert_array_equal(array, expected[output][[row]], strict=True)
