"""docs/saved-format.md describes saved files: its schema and its vectors are generated from the code."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from jsonschema import Draft202012Validator

import daskprep as dp
from daskprep import serving
from daskprep.extensions.media.pixels import encode_png
from daskprep.features import FEATURES
from daskprep.features.parameters import annotations_of
from daskprep.rows.parameter_names import REMOVED, SAVED_AS
from tests.arrow_columns import encode_columns

MAKER = runpy.run_path(str(Path(__file__).parents[1] / "saved_format.py"))
PAGE = (MAKER["DOCS"] / "saved-format.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return json.loads(MAKER["SCHEMA"].read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def vectors() -> dict[str, Any]:
    return json.loads(MAKER["VECTORS"].read_text(encoding="utf-8"))


@pytest.mark.parametrize(("file", "make"), [("SCHEMA", "schema"), ("VECTORS", "vectors")])
def test_generated_files_are_current(file, make):
    made = json.loads(json.dumps(MAKER[make]()))
    assert made == json.loads(MAKER[file].read_text(encoding="utf-8")), "run tests/saved_format.py"


def test_schema_is_valid_and_has_every_parameter(schema):
    Draft202012Validator.check_schema(schema)
    for name, feature in FEATURES.items():
        parameters = {SAVED_AS.get(one, one) for one in annotations_of(feature)} | REMOVED.get(name, {}).keys()
        assert schema["$defs"][name]["properties"].keys() == parameters


def test_page_documents_every_type_parameter_and_learned_value(schema):
    for name in FEATURES:
        assert f"## {name}" in PAGE
        for parameter in schema["$defs"][name]["properties"]:
            assert f"`{parameter}`" in PAGE, (name, parameter)
    for kind in (one for one in schema["$defs"] if one.startswith("Learned")):
        for key in schema["$defs"][kind]["properties"]:
            assert f"`{key}`" in PAGE, (kind, key)


def test_vectors_match_the_schema_and_cover_every_type_without_files(schema, vectors):
    Draft202012Validator(schema).validate(vectors["saved"])
    kinds = {feature["type"] for feature in vectors["saved"]["features"].values()}
    assert kinds == FEATURES.keys() - {
        "image",
        "audio",
        "boxes",
        "keypoints",
        "embedding",
        "weight",
        "key",
    }  # new rows have no weights and keys


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("format",), 3),
        (("more",), 1),
        (("split",), {"type": "random"}),
        (("features", "city", "params", "most_common"), 0),
        (("features", "city", "params", "more"), 0),
        (("features", "city", "learned", "idx2str"), ["a", "a"]),
        (("features", "city", "learned", "vocabulary_file"), "x.vocab/a-0123456789abcdef.parquet"),
        (("features", "city", "golden"), None),
        (("features", "text", "params", "level"), "line"),
    ],
)
def test_schema_rejects_invalid_states(schema, vectors, place, value):
    state = json.loads(json.dumps(vectors["saved"]))
    holder = state
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    assert not Draft202012Validator(schema).is_valid(state)


def assert_rows(encoded: dict[str, np.ndarray], arrays: dict[str, Any]) -> None:
    for name, array in encoded.items():
        expected = np.array(arrays[name]["rows"], arrays[name]["dtype"]).reshape(arrays[name]["shape"])
        np.testing.assert_array_equal(array, expected, strict=True, err_msg=name)


def test_preprocessor_reproduces_the_vectors(vectors):
    frame = pd.DataFrame(vectors["rows"])
    encoded = encode_columns(dp.Preprocessor.from_dict(vectors["saved"]), frame)
    assert encoded.keys() == vectors["arrays"].keys()
    assert_rows(encoded, vectors["arrays"])


def test_serving_encoder_reproduces_the_vectors(vectors):
    encoded = serving.Encoder(vectors["saved"]).encode(vectors["rows"])
    assert encoded.keys() == vectors["arrays"].keys()
    assert_rows(encoded, vectors["arrays"])


def test_removed_parameters_are_read_from_older_states():
    steps = dp.Sequence(special_symbols={"padding": "_", "start": "<START>", "stop": "<STOP>", "unknown": "?"})
    photo = dp.Image(height=2, width=2, num_classes="auto", mode="eager", sample_size=9)
    prep = dp.Preprocessor({"steps": steps, "photo": photo}).fit(
        pd.DataFrame({"steps": ["a b", None], "photo": [encode_png(np.eye(2, dtype=np.uint8))] * 2})
    )
    older = prep.to_dict()
    older["features"]["steps"]["params"] |= {"special_symbols": None, "add_start_stop": True}
    older["features"]["steps"]["params"] |= {"padding_symbol": "_", "unknown_symbol": "?"}
    params = older["features"]["photo"]["params"]
    assert params["infer_image_sample_size"] == 9
    assert (params["num_classes"], params["infer_image_num_classes"]) == (None, True)
    params |= {"requires_equal_dimensions": True, "height": 3, "infer_image_max_height": 8}
    again = dp.Preprocessor.from_dict(older).features
    assert again["steps"].special_symbols == steps.special_symbols
    assert {**again["photo"].get_params()} == photo.get_params()
