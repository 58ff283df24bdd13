"""Metadata of features with the keys of Ludwig."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.errors import ConfigError
from daskprep.extensions.media.pixels import encode_png


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    frame = pd.DataFrame(
        {
            "price": [1.0, 2.0, None, 500.0] * 5,
            "city": ["Rome", "Oslo", "Rome", None] * 5,
            "tags": ["a b", "b", "c", "a"] * 5,
            "review": ["so so", "bad", "good one", "bad"] * 5,
            "sold": ["yes", "no", "no", "yes"] * 5,
            "demand": ["1 2", "3", "4 5 6", "7"] * 5,
            "place": ["1 2", "3 4", "5 6", "7 8"] * 5,
            "photo": [encode_png(np.zeros((4, 6), np.uint8))] * 20,
        }
    )
    features = {
        "price": dp.Number(
            missing_value_strategy="fill_with_const", outlier_strategy="fill_with_const", fill_value=1.5
        ),
        "city": "category",
        "tags": "set",
        "review": dp.Text(level="both"),
        "plain": dp.Text(column="review", compute_idf=True),
        "sold": "binary",
        "demand": "timeseries",
        "place": "vector",
        "photo": "image",
    }
    return dp.Preprocessor(features).fit_write(frame, tmp_path_factory.mktemp("metadata") / "a.dp")


def test_vocabulary_as_lists_and_dicts(dataset):
    city = dataset.metadata["city"]
    assert city["idx2str"] == ["<UNK>", "Rome", "Oslo"]
    assert city["str2idx"] == {"<UNK>": 0, "Rome": 1, "Oslo": 2}
    assert city["str2freq"] == {"<UNK>": 5, "Rome": 10, "Oslo": 5}
    assert city["vocab_size"] == len(city["idx2str"])
    assert city["preprocessing"]["most_common"] is None
    assert city["preprocessing"]["computed_fill_value"] == "<UNK>"


def test_each_type_has_ludwig_keys(dataset):
    by_feature = {name: dataset.metadata[name] for name in dataset.features if name != "review"}
    assert {"mean", "std"} <= by_feature["price"].keys()
    assert by_feature["price"]["preprocessing"]["computed_fill_value"] == 1.5
    assert by_feature["tags"]["max_set_size"] == 2
    assert by_feature["plain"]["max_sequence_length"] == 2
    assert by_feature["plain"]["pad_idx"] == 0
    assert (by_feature["plain"]["padding_symbol"], by_feature["plain"]["unknown_symbol"]) == ("<PAD>", "<UNK>")
    assert by_feature["plain"]["str2idf"].keys() == by_feature["plain"]["str2idx"].keys()
    assert by_feature["sold"]["bool2str"] == ["no", "yes"]
    assert by_feature["sold"]["str2bool"] == {"no": False, "yes": True}
    assert by_feature["demand"]["max_timeseries_length"] == 3
    assert by_feature["place"]["vector_size"] == 2
    assert by_feature["photo"]["reshape"] == [1, 4, 6]
    assert by_feature["photo"]["preprocessing"]["height"] == 4


def test_text_levels_by_output_name(dataset):
    assert "bad" in dataset.metadata["review_word"]["str2idx"]
    assert "b" in dataset.metadata["review_char"]["str2idx"]


def test_large_vocabulary_as_lists_and_dicts(dataset, tmp_path, sizes):
    sizes(large_vocabulary=2)
    frame = pd.DataFrame({"city": ["Rome", "Oslo", "Rome", "Bern"] * 5})
    large = dp.Preprocessor({"city": "category"}).fit_write(frame, tmp_path / "a.dp")
    assert "vocabulary_file" in large.metadata["features"]["city"]["learned"]
    city = large.metadata["city"]
    assert city["str2idx"] is city["str2idx"]
    assert list(city["str2idx"]) == city["idx2str"] == ["<UNK>", "Rome", "Bern", "Oslo"]


def test_file_keys_are_unchanged(dataset):
    metadata = dataset.metadata
    assert "city" not in metadata
    before = json.dumps(metadata)
    assert pickle.loads(pickle.dumps(metadata))["city"] == metadata["city"]
    metadata["city"]["idx2str"]
    assert json.dumps(metadata) == before
    assert metadata["features"]["city"]["learned"]["vocab_size"] == 3
    with pytest.raises(ConfigError, match='no output "citty".*Did you mean "city"'):
        metadata["citty"]
