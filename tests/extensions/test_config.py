"""Ludwig configurations: keys that are read, ignored and rejected, and round trips."""

from __future__ import annotations

import ast
import json
import os
import re
import typing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from daskprep.errors import ConfigError
from daskprep.extensions.config import read_config, write_config
from daskprep.extensions.ludwig import (
    DROPPED_PARAMETERS,
    IGNORED_PARAMETERS,
    IGNORED_SETTINGS,
    TEXT_ENCODERS,
)
from daskprep.extensions.media.audio_feature import Audio
from daskprep.extensions.media.image_feature import Image
from daskprep.features import FEATURES, Binary, Category, Date, Number, Sequence, Text, Vector
from daskprep.features.base import validate
from daskprep.features.parameters import annotations_of
from daskprep.preprocessor import Preprocessor
from daskprep.rows.parameter_names import REMOVED, from_saved_parameters
from daskprep.sources.balance import Oversample, Undersample
from daskprep.sources.split import DatetimeSplit, FixedSplit, HashSplit, RandomSplit, StratifiedSplit

CONFIG = {
    "input_features": [
        {"name": "city", "type": "category", "column": "town", "preprocessing": {"most_common": 100}},
        {"name": "review", "type": "text"},
    ],
    "output_features": [{"name": "price", "type": "number"}],
    "preprocessing": {"split": {"type": "hash", "column": "town", "probabilities": [0.8, 0.0, 0.2]}},
}


# Parameters whose default in a configuration is Ludwig's, and differs from the default of the class.
LUDWIGS: dict[str, dict[str, Any]] = {
    "category": {"most_common": 10_000},
    "sequence": {"most_common": 20_000, "max_sequence_length": 256},
    "text": {"lowercase": False, "most_common": 20_000, "max_sequence_length": 256},
    "number": {"missing_value_strategy": "fill_with_const"},
    "binary": {"missing_value_strategy": "fill_with_false"},
    "date": {"missing_value_strategy": "fill_with_const"},
    "timeseries": {"across_splits": True, "padding_value": 0.0, "timeseries_length_limit": 256},
    "image": {"missing_value_strategy": "bfill"},
    "audio": {"missing_value_strategy": "bfill", "padding_value": 0.0, "audio_file_length_limit_in_s": 7.5},
}


def config_of(kind, preprocessing=None, **entry):
    return {"input_features": [{"name": "x", "type": kind, "preprocessing": preprocessing or {}, **entry}]}


def feature_of(kind, preprocessing=None, **entry):
    return read_config(config_of(kind, preprocessing, **entry))["features"]["x"]


def output_of(kind, preprocessing=None, defaults=None, **entry):
    entry |= {"name": "x", "type": kind, "preprocessing": preprocessing or {}}
    return read_config({"output_features": [entry], "defaults": defaults})["features"]["x"]


def message_of(config):
    with pytest.raises(ConfigError) as caught:
        read_config(config)
    return str(caught.value)


def params_of(owner):
    return {key: (type(value), value) for key, value in owner.get_params(deep=False).items()}


# -- sources of configurations


def test_read_config_returns_preprocessor_arguments():
    arguments = read_config(CONFIG)
    assert list(arguments) == ["features", "split", "balance", "targets"]
    assert arguments["targets"] == ["price"]
    assert list(arguments["features"]) == ["city", "review", "price"]
    assert params_of(arguments["features"]["city"]) == params_of(Category(column="town", most_common=100))
    assert params_of(arguments["split"]) == params_of(HashSplit("town", (0.8, 0.0, 0.2)))
    assert arguments["balance"] is None


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".json", ".JSON"])
@pytest.mark.parametrize("as_path", [str, Path])
def test_file_suffix_selects_the_format(tmp_path, suffix, as_path):
    # A tab is valid in JSON, but not in YAML.
    text = json.dumps(CONFIG, indent="\t") if suffix.lower() == ".json" else yaml.safe_dump(CONFIG)
    path = tmp_path / f"model{suffix}"
    path.write_text(text, encoding="utf-8")
    assert repr(read_config(as_path(path))) == repr(read_config(CONFIG))


def test_text_is_read_as_yaml():
    assert repr(read_config(yaml.safe_dump(CONFIG))) == repr(read_config(CONFIG))
    assert repr(read_config(json.dumps(CONFIG))) == repr(read_config(CONFIG))


def test_read_config_does_not_modify_its_argument():
    before = json.dumps(CONFIG)
    read_config(CONFIG)
    assert json.dumps(CONFIG) == before


@pytest.mark.parametrize("path", ["nowhere.yaml", "nowhere.json", Path("nowhere")])
def test_missing_file_error_names_the_path(path):
    assert str(path) in message_of(path)
    assert "no configuration file" in message_of(path)


@pytest.mark.parametrize("text", ["input_features: [", "a: 1\n  b: 2\n", "!!python/object/apply:os.getcwd []"])
def test_text_with_unsafe_yaml_raises(text):
    assert "is not valid YAML" in message_of(text)


def test_invalid_file_error_names_the_file(tmp_path):
    (tmp_path / "a.json").write_text("{", encoding="utf-8")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    assert "a.json is not valid JSON" in message_of(tmp_path / "a.json")
    assert "b.yaml is not UTF-8 text" in message_of(tmp_path / "b.yaml")


@pytest.mark.parametrize("config", ["model", "", "- a\n- b\n", 3, None, ["x"]])
def test_other_types_raise(config):
    assert "configuration is a" in message_of(config)


# -- defaults

# Without types that have required parameters, such as a target encoding, or no configuration.
LUDWIG_KINDS = [
    kind
    for kind in FEATURES
    if kind not in ("target_encoding", "history", "text_components", "boxes", "keypoints", "embedding", "weight", "key")
]


@pytest.mark.parametrize("kind", LUDWIG_KINDS)
def test_input_feature_has_class_defaults(kind):
    assert params_of(feature_of(kind)) == params_of(FEATURES[kind](**LUDWIGS.get(kind, {})))


@pytest.mark.parametrize("kind", LUDWIG_KINDS)
def test_output_feature_drops_rows_and_is_not_normalized(kind):
    changed = {"missing_value_strategy": "drop_row"} | ({"normalization": None} if kind == "number" else {})
    changed = LUDWIGS.get(kind, {}) | changed | ({"handle_unknown": "unk"} if kind == "category" else {})
    assert params_of(output_of(kind)) == params_of(FEATURES[kind](**changed))


def test_output_feature_defaults_can_be_overridden():
    number = output_of("number", {"normalization": "minmax", "missing_value_strategy": "fill_with_mean"})
    assert (number.normalization, number.missing_value_strategy) == ("minmax", "fill_with_mean")


def test_type_defaults_apply_to_input_features_unless_overridden():
    config = {
        "input_features": [
            {"name": "a", "type": "number"},
            {"name": "b", "type": "number", "preprocessing": {"normalization": "iq"}},
        ],
        "output_features": [{"name": "c", "type": "number"}],
        "defaults": {"number": {"preprocessing": {"normalization": "minmax", "fill_value": 7}}},
    }
    features = read_config(config)["features"]
    assert [features[name].normalization for name in "abc"] == ["minmax", "iq", None]
    assert [features[name].fill_value for name in "abc"] == [7, 7, 0.0]


def test_column_equal_to_the_name_is_none():
    assert feature_of("number", column="x").column is None
    assert feature_of("number", column="X").column == "X"


def test_null_is_a_parameter_value():
    assert feature_of("number", {"normalization": None}).normalization is None
    assert feature_of("category", {"most_common": None}).most_common is None


def test_empty_sections_count_as_absent():
    config = yaml.safe_load("input_features:\n- {name: x, type: set, preprocessing: }\ndefaults:\npreprocessing:\n")
    assert repr(read_config(config)) == repr(read_config(config_of("set")))


def test_yaml_dates_are_read_as_text():
    text = "input_features: [{name: x, type: date, preprocessing: {fill_value: 2020-01-31}}]"
    assert read_config(text)["features"]["x"].fill_value == "2020-01-31"


# -- ignored keys


def test_model_keys_are_ignored_in_their_sections():
    model = {"encoder": {"type": "dense"}, "decoder": {}, "loss": {"type": "mse"}}
    entry = {
        "tied": None,
        "active": True,
        "proc_column": "x_a1b2c3",
        "reduce_input": "sum",
        "dependencies": [],
    }
    config = config_of("number", None, **model, **entry) | {
        "model_type": "ecd",
        "combiner": {"type": "concat"},
        "trainer": {"epochs": 3},
        "backend": {"type": "local"},
        "hyperopt": None,
        "ludwig_version": "0.17.8",
        "defaults": {
            "number": {"preprocessing": {}, **model},
            "image": {"preprocessing": {"height": 8}, **model},
        },
    }
    assert repr(read_config(config)) == repr(read_config(config_of("number")))


@pytest.mark.parametrize("key", ["encoder", "combiner", "most_common"])
def test_model_keys_in_other_sections_raise(key):
    assert message_of(config_of("number") | {"preprocessing": {key: 1}}).startswith(f"preprocessing.{key}: ")


@pytest.mark.parametrize("key", IGNORED_PARAMETERS)
def test_parameters_without_effect_are_ignored(key):
    assert params_of(feature_of("number", {key: 1})) == params_of(Number(**LUDWIGS["number"]))


@pytest.mark.parametrize("key", DROPPED_PARAMETERS)
@pytest.mark.parametrize("value", [None, "", [], {"task": None, "retrieval": {"type": None, "k": 0}}])
def test_unset_dropped_parameters_are_accepted(key, value):
    assert params_of(feature_of("text", {key: value})) == params_of(Text(**LUDWIGS["text"]))


@pytest.mark.parametrize("value", [True, [{"type": "random_horizontal_flip"}]])
@pytest.mark.parametrize("entry", ["feature", "defaults"])
def test_augmentation_is_noted(entry, value):
    key = {"augmentation": value}
    config = config_of("image", **key) if entry == "feature" else config_of("image") | {"defaults": {"image": key}}
    arguments, [note] = read_with_notes(config)
    owner = '"x"' if entry == "feature" else "defaults.image"
    assert note == f"augmentation of {owner} is ignored: pass augment= to a loader, such as dp.Mirror()."
    assert params_of(arguments["features"]["x"]) == params_of(Image(**LUDWIGS["image"]))


def test_unset_settings_are_accepted():
    unset = {"sample_ratio": 1.0, "sample_size": None, "oversample_minority": None, "undersample_majority": None}
    assert repr(read_config(config_of("set") | {"preprocessing": unset})) == repr(read_config(config_of("set")))


# -- keys that are noted


def read_with_notes(config):
    """Return the arguments of a configuration, and the notes of its single warning."""
    with pytest.warns(UserWarning, match="Parts of this configuration are ignored or read differently: ") as caught:
        arguments = read_config(config)
    [warning] = caught
    return arguments, re.split(r" ?\(\d\) ", str(warning.message))[1:]


def test_ignored_feature_keys_share_one_note():
    config = config_of("sequence", reduce_output="sum", bidirectional=True, most_common=3)
    config["output_features"] = [{"name": "y", "type": "category", "num_fc_layers": 2}]
    arguments, [note] = read_with_notes(config)
    assert 'reduce_output ("x"), bidirectional ("x"), most_common ("x"), num_fc_layers ("y")' in note
    assert params_of(arguments["features"]["x"]) == params_of(Sequence(**LUDWIGS["sequence"]))


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("text", "prompt", {"template": "Review: {review}", "retrieval": {"type": None}}),
        ("category", "vocab", ["a", "b"]),
        ("category", "fallback_label", "a"),
        ("category", "normalization", "zscore"),
        ("number", "tokenizer", "space"),
    ],
)
def test_ignored_parameter_is_noted(kind, key, value):
    arguments, [note] = read_with_notes(config_of(kind, {key: value}))
    assert note.startswith(f'{key} of "x" is ignored: ')
    assert params_of(arguments["features"]["x"]) == params_of(feature_of(kind))
    _, [of_all] = read_with_notes(config_of(kind) | {"defaults": {kind: {"preprocessing": {key: value}}}})
    assert of_all.startswith(f"{key} of defaults.{kind} is ignored: ")


def test_top_level_prompt_is_ignored_with_a_note():
    _, [note] = read_with_notes(config_of("text") | {"prompt": {"task": "Sum it up"}})
    assert note.startswith("prompt is ignored: store the finished")


# -- names of older releases


def test_numerical_is_an_alias_of_number():
    config = config_of("numerical") | {"preprocessing": {"numerical": {"normalization": "minmax"}}}
    assert params_of(read_config(config)["features"]["x"]) == params_of(
        Number(normalization="minmax", **LUDWIGS["number"])
    )


@pytest.mark.parametrize("nested", [False, True])
def test_type_parameters_under_preprocessing_override_defaults(nested):
    own = {"most_common": 5}
    config = config_of("category") | {
        "preprocessing": {"category": {"preprocessing": own} if nested else own},
        "defaults": {"category": {"type": "category", "preprocessing": {"most_common": 9, "fill_value": "?"}}},
    }
    feature = read_config(config)["features"]["x"]
    assert (feature.most_common, feature.fill_value) == (5, "?")


def test_former_parameter_names_are_accepted():
    text = feature_of("text", {"word_tokenizer": "space", "char_tokenizer": "characters", "word_most_common": 7})
    assert (text.tokenizer, text.most_common) == ("space", 7)
    assert feature_of("text", {"sequence_length_limit": 3, "max_sequence_length": 5}).max_sequence_length == 5
    assert feature_of("audio", {"audio_feature": {"type": "stft"}}).type == "stft"
    assert feature_of("number", {"missing_value_strategy": "backfill"}).missing_value_strategy == "bfill"
    assert feature_of("number", {"missing_value_strategy": "pad"}).missing_value_strategy == "ffill"


@pytest.mark.parametrize(
    ("settings", "split"),
    [
        ({"force_split": True}, RandomSplit()),
        ({"force_split": True, "split_probabilities": [0.5, 0.0, 0.5]}, RandomSplit((0.5, 0.0, 0.5))),
        ({"split_probabilities": (0.5, 0.0, 0.5)}, RandomSplit((0.5, 0.0, 0.5))),
        ({"stratify": "x", "force_split": False}, StratifiedSplit("x")),
        ({"force_split": None, "split": {"type": "fixed"}}, FixedSplit()),
    ],
)
def test_former_split_keys_are_read(settings, split):
    found = read_config(config_of("category") | {"preprocessing": settings})["split"]
    assert (type(found), params_of(found)) == (type(split), params_of(split))


def test_preset_sets_the_normalization():
    assert read_config(config_of("number") | {"preset": "tabular_realmlp"})["features"]["x"].normalization == "iq"
    assert read_config(config_of("number") | {"preset": "best_quality"})["features"]["x"].normalization == "zscore"
    own = config_of("number", {"normalization": None}) | {"preset": "tabular_realmlp"}
    assert read_config(own)["features"]["x"].normalization is None


def test_anomaly_and_distribution_targets_are_read():
    anomaly = output_of("anomaly", threshold=0.9, defaults={"anomaly": {"decoder": {"type": "anomaly"}}})
    unlabelled = {"missing_value_strategy": "fill_with_const", "fill_value": -1.0}
    assert params_of(anomaly) == params_of(Number(normalization=None, **unlabelled))
    shares = output_of("category_distribution", {"vocab": ["a", "b", "c"]})
    assert params_of(shares) == params_of(Vector(vector_size=3, missing_value_strategy="drop_row"))


# -- effects of encoders and models on preprocessing


@pytest.mark.parametrize(
    ("encoder", "model"),
    [
        ("distilbert", "distilbert-base-uncased"),
        ({"type": "bert", "pretrained_model_name_or_path": "bert-large-cased"}, "bert-large-cased"),
        ({"type": "auto_transformer", "pretrained_model_name_or_path": "org/own"}, "org/own"),
    ],
)
def test_text_encoder_sets_the_tokenizer_without_download(encoder, model):
    text = feature_of("text", {"tokenizer": "space"}, encoder=encoder)
    assert (text.tokenizer, text.pretrained_model_name_or_path) == ("hf_tokenizer", model)


def test_explicit_tokenizer_overrides_the_encoder_tokenizer():
    own = {"tokenizer": "hf_tokenizer", "pretrained_model_name_or_path": "org/own"}
    assert feature_of("text", own, encoder="bert").pretrained_model_name_or_path == "org/own"
    config = config_of("text", encoder="bert") | {"defaults": {"text": {"preprocessing": own}}}
    assert read_config(config)["features"]["x"].pretrained_model_name_or_path == "org/own"
    llm = config_of("text", own) | {"model_type": "llm", "base_model": "org/model"}
    assert read_config(llm)["features"]["x"].pretrained_model_name_or_path == "org/own"


@pytest.mark.parametrize("odd", [3, "x", [], [1], {"preprocessing": 3}, {1: 2}])
@pytest.mark.parametrize("kind", ["text", "image", "category_distribution", "anomaly", "audio", None, ["set"]])
def test_invalid_shapes_raise_with_their_path(odd, kind):
    entry = {"name": "x", "type": kind, **(odd if isinstance(odd, dict) else {"preprocessing": odd, "encoder": odd})}
    llm = {"model_type": "llm", "base_model": "org/model"}
    for config, place in (
        ({"input_features": [entry], "defaults": {"text": odd}}, r"defaults\.text"),
        (
            {"output_features": [entry], "preprocessing": {"text": odd, "stratify": odd}},
            r"output_features\[0\]\.(type|preprocessing) \(feature .x.\)|preprocessing\.(text|split)",
        ),
        ({"input_features": odd, "preprocessing": odd, **llm}, "input_features|the configuration has no features"),
    ):
        with pytest.raises(ConfigError, match=f"^({place}).*: "):
            read_config(config)


@pytest.mark.parametrize("kind", ["text", "image", "audio"])
def test_invalid_encoders_of_other_types_are_ignored(kind):
    odd = read_config(config_of(kind, encoder=[1]) | {"defaults": {"text": {"encoder": [1]}}})["features"]["x"]
    assert params_of(odd) == params_of(read_config(config_of(kind))["features"]["x"])


def test_default_encoder_applies_to_features_without_encoder():
    entries = [{"name": "x", "type": "text"}, {"name": "y", "type": "text", "encoder": {"type": "rnn"}}]
    defaults = {"text": {"encoder": {"type": "bert"}, "preprocessing": {"max_sequence_length": 9}}}
    features = read_config({"input_features": entries, "defaults": defaults})["features"]
    assert [one.tokenizer for one in features.values()] == ["hf_tokenizer", "space_punct"]
    assert feature_of("text", encoder={"type": "tf_idf"}).compute_idf


def test_llm_sets_the_tokenizer_and_left_padding():
    config = config_of("text") | {"model_type": "llm", "base_model": "org/model", "adapter": {"type": "lora"}}
    config |= {"output_features": [{"name": "y", "type": "text"}], "preprocessing": {"global_max_sequence_length": 9}}
    for text in read_config(config)["features"].values():
        assert (text.tokenizer, text.pretrained_model_name_or_path) == ("hf_tokenizer", "org/model")
        assert (text.padding, text.max_sequence_length) == ("left", None)


def test_image_encoder_with_fixed_size_is_noted():
    arguments, [note] = read_with_notes(config_of("image", {"height": None}, encoder="resnet"))
    assert note.startswith('the encoder resnet of "x" does not determine the size of images: set height')
    assert params_of(arguments["features"]["x"]) == params_of(Image(**LUDWIGS["image"]))
    assert feature_of("image", {"height": 8, "width": 8}, encoder={"type": "vit"}).height == 8


# -- rejected configurations


@pytest.mark.parametrize(
    ("config", "place", "remedy"),
    [
        ({"input_featurs": []}, "input_featurs: ", 'Did you mean "input_features"?'),
        (
            config_of("set", {"most_comon": 3}),
            'input_features[0].preprocessing.most_comon (feature "x")',
            "most_common",
        ),
        (config_of("set", preprocessin={}), "input_features[0].preprocessin", 'Did you mean "preprocessing"?'),
        (config_of("set", {"column": "y"}), "input_features[0].preprocessing.column", "next to name and type"),
        (config_of("sett"), 'input_features[0].type (feature "x")', 'Did you mean "set"?'),
        (config_of(["set"]), 'input_features[0].type (feature "x")', "Types are: binary, number"),
        (config_of("set") | {"defaults": {"sett": {}}}, "defaults.sett", 'Did you mean "set"?'),
        (
            config_of("set") | {"defaults": {"set": {"most_common": 1}}},
            "defaults.set.most_common",
            "preprocessing",
        ),
        (
            config_of("set") | {"defaults": {"bag": {"preprocessing": {"lowercas": True}}}},
            "defaults.bag.preprocessing.lowercas",
            'Did you mean "lowercase"?',
        ),
        (
            config_of("set") | {"preprocessing": {"splitt": {}}},
            "preprocessing.splitt",
            'Did you mean "split"?',
        ),
        (config_of("set") | {"preprocessing": {"number": 3}}, "preprocessing.number", "Keys are: split"),
        (config_of("set") | {True: 1}, "True: ", "Keys are: input_features"),
    ],
)
def test_unknown_key_error_starts_with_its_path(config, place, remedy):
    message = message_of(config)
    assert message.startswith(place)
    assert remedy in message


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"input_features": {"name": "x"}}, "input_features: must be a list"),
        ({"input_features": ["x"]}, "input_features[0]: must be a mapping"),
        ({"input_features": [{"type": "set"}]}, "input_features[0].name: must be a string, not None"),
        (
            {"input_features": [{"name": 2020, "type": "set"}]},
            "input_features[0].name: must be a string, not 2020",
        ),
        ({"input_features": [{"name": "x"}]}, 'input_features[0].type (feature "x"): no type None'),
        (config_of("set") | {"defaults": []}, "defaults: must be a mapping"),
        (config_of("set") | {"preprocessing": {"split": "random"}}, "preprocessing.split: must be a mapping"),
        ({"model_type": "ecd"}, "the configuration has no features"),
    ],
)
def test_wrong_section_type_error_starts_with_its_path(config, place):
    assert message_of(config).startswith(place)


def test_duplicate_feature_names_raise():
    entry = {"name": "x", "type": "set"}
    assert "earlier feature" in message_of({"input_features": [entry, entry]})
    assert '"x" is an input and an output' in message_of({"input_features": [entry], "output_features": [entry]})


@pytest.mark.parametrize(
    ("kind", "preprocessing", "words"),
    [
        ("category", {"most_common": "3"}, "most_common must be an integer"),
        ("number", {"normalization": "zscor"}, 'Did you mean "zscore"?'),
        ("number", {"outlier_threshold": -1}, "outlier_threshold must be a number of at least 0"),
        ("number", {"fill_value": None}, "needs a fill_value"),
        ("sequence", {"tokenizer": "space_pnct"}, "space_pnct"),
        ("date", {"missing_value_strategy": "fill_with_median"}, "missing_value_strategy must be one of"),
    ],
)
def test_invalid_parameter_error_names_the_feature(kind, preprocessing, words):
    message = message_of(config_of(kind, preprocessing))
    assert message.startswith('input_features[0].preprocessing (feature "x"): ')
    assert words in message


def test_yaml_boolean_error_suggests_quotes():
    text = "input_features: [{name: x, type: binary, preprocessing: {positive: yes}}]"
    assert "put positive in quotes" in message_of(text)
    assert "in quotes" not in message_of(config_of("binary", {"positive": ["1"]}))


# -- split and balance


@pytest.mark.parametrize(
    ("section", "split"),
    [
        ({}, RandomSplit()),
        ({"probabilities": [0.5, 0.5]}, RandomSplit((0.5, 0.5))),
        ({"shares": [0.5, 0.5]}, RandomSplit((0.5, 0.5))),
        ({"type": "random", "seed": 7}, RandomSplit(seed=7)),
        ({"type": "fixed"}, FixedSplit()),
        ({"type": "stratify", "column": "y", "on_small": "train"}, StratifiedSplit("y", on_small="train")),
        ({"type": "datetime", "column": "y", "fill_value": ""}, DatetimeSplit("y")),
        ({"type": "hash", "column": "y", "probabilities": [0.8, 0.1, 0.1]}, HashSplit("y", (0.8, 0.1, 0.1))),
    ],
)
def test_split_section_is_read(section, split):
    read = read_config(config_of("set") | {"preprocessing": {"split": section}})["split"]
    assert type(read) is type(split)
    assert params_of(read) == params_of(split)


def test_default_split_is_random_and_null_is_none():
    assert params_of(read_config(config_of("set"))["split"]) == params_of(RandomSplit())
    assert read_config(config_of("set") | {"preprocessing": {"split": None}})["split"] is None


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"type": "stratfy", "column": "y"}, 'Did you mean "stratify"?'),
        ({"type": "stratify"}, "column"),
        ({"column": "y"}, "no split of type None. The types are random, stratify"),
        ({"type": "random", "column": "y"}, "column"),
        ({"type": "random", "probabilities": [0.5, 0.1, 0.1]}, "shares must be"),
        ({"type": "random", "probability": [0.5, 0.5]}, 'Did you mean "shares"?'),
        ({"type": ["random"]}, "no split of type ['random']. Did you mean"),
    ],
)
def test_invalid_split_raises(section, words):
    message = message_of(config_of("set") | {"preprocessing": {"split": section}})
    assert message.startswith("preprocessing.split: ")
    assert words in message


@pytest.mark.parametrize(("key", "kind"), [("oversample_minority", Oversample), ("undersample_majority", Undersample)])
@pytest.mark.parametrize("target", ["binary", "category"])
def test_balance_applies_to_the_output_with_classes(key, kind, target):
    outputs = [{"name": "x", "type": "number"}, {"name": "y", "type": target, "column": "Y"}]
    balance = read_config({"output_features": outputs, "preprocessing": {key: 0.25}})["balance"]
    assert type(balance) is kind
    assert params_of(balance) == params_of(kind("Y", ratio=0.25))


def test_balance_section_with_column_is_read():
    section = {"type": "undersample", "column": "y", "counts": [["a", 3]], "seed": 1}
    balance = read_config(config_of("category") | {"preprocessing": {"balance": section}})["balance"]
    assert isinstance(balance, Undersample)
    assert balance.to_dict() == Undersample("y", counts={"a": 3}, seed=1).to_dict()


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"oversample_minority": 0.5, "undersample_majority": 0.5}, "contradicts oversample_minority"),
        ({"oversample_minority": 0.5}, "exactly one output feature"),
        ({"balance": {"type": "oversampel", "column": "y"}}, 'Did you mean "oversample"?'),
        ({"balance": {"type": "oversample", "column": "y", "ratio": 2}}, "ratio must be"),
        ({"fit_on": "test"}, 'must be "train" or "all", not \'test\''),
    ],
)
def test_invalid_balance_raises(section, words):
    message = message_of(config_of("binary") | {"preprocessing": section})
    assert message.startswith("preprocessing.")
    assert words in message


def test_fit_on_round_trips():
    arguments = read_config(config_of("set") | {"preprocessing": {"fit_on": "all"}})
    assert arguments["fit_on"] == "all"
    assert read_config(write_config(**arguments))["fit_on"] == "all"


# -- round trips


def test_write_config_omits_defaults():
    features = {
        "city": Category(most_common=100, column="town"),
        "price": Number(normalization=None, missing_value_strategy="fill_with_const"),
        "sold": Binary(),
        "day": Date(missing_value_strategy="fill_with_const"),
    }
    assert write_config(features) == {
        "input_features": [
            {"name": "city", "type": "category", "column": "town", "preprocessing": {"most_common": 100}},
            {"name": "price", "type": "number", "preprocessing": {"normalization": None}},
            {"name": "sold", "type": "binary", "preprocessing": {"missing_value_strategy": "fill_with_mode"}},
            {"name": "day", "type": "date"},
        ],
        "preprocessing": {"split": None},
    }


def test_write_config_converts_values_to_plain_types():
    features = {
        "a": Number(fill_value=np.float64(1.5)),
        "b": Number(fill_value=0),
        "c": Sequence(special_symbols=MappingProxyType({"unknown": "?", "padding": "_"})),
    }
    text = yaml.safe_dump(write_config(features), sort_keys=False)
    back = read_config(text)["features"]
    fills = [back["a"].fill_value, back["b"].fill_value]
    assert (fills, [type(fill) for fill in fills]) == ([1.5, 0], [float, int])
    assert back["c"].special_symbols == {"unknown": "?", "padding": "_"}


def test_write_config_raises_for_functions():
    with pytest.raises(ConfigError, match=r'feature "x": tokenizer=.* is a Python function'):
        write_config({"x": Sequence(tokenizer=str.split)})


def test_write_config_raises_for_unregistered_types():
    class Odd(Number):
        kind = "odd"

    with pytest.raises(ConfigError, match=r'feature "x": configurations do not support the type Odd'):
        write_config({"x": Odd()})


@pytest.mark.parametrize(
    ("split", "balance"),
    [
        (None, None),
        (RandomSplit((0.5, 0.5), seed=3), Oversample("y", ratio=0.5)),
        (FixedSplit("part"), Undersample("y", counts={"a": 3, 1: 4}, seed=9)),
        (StratifiedSplit("y", on_small="train"), None),
        (DatetimeSplit("day", datetime_format="%d/%m/%Y"), None),
        (HashSplit("user", seed=4), None),
    ],
)
def test_split_and_balance_round_trip_through_yaml(split, balance):
    text = yaml.safe_dump(write_config({"x": Number()}, split, balance), sort_keys=False)
    back = read_config(text)
    for old, new in ((split, back["split"]), (balance, back["balance"])):
        assert type(new) is type(old)
        assert old is None or new.to_dict() == old.to_dict()


WORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
SYMBOLS = [
    None,
    "ludwig",
    {"unknown": "?", "padding": "_"},
    {"stop": "e", "padding": "p", "start": "s", "unknown": "u"},
]
BY_NAME = {
    "tokenizer": st.sampled_from(["space", "space_punct", "characters", "comma", "underscore"]),
    "vocab_file": st.none(),
    "pretrained_model_name_or_path": st.none(),
    "special_symbols": st.sampled_from(SYMBOLS),
    "datetime_format": st.sampled_from([None, "%d/%m/%Y", "%Y%m%d"]),
    "formats": st.sampled_from([None, ["PNG"], ["PNG", "JPEG"], ["WAV"]]),
    "audio_file_length_limit_in_s": st.floats(0.1, 10),
    "window_length_in_s": st.floats(0.01, 0.1),
    "window_shift_in_s": st.floats(0.01, 0.1),
    "sampling_rate": st.none() | st.integers(8_000, 48_000),
    "num_fft_points": st.none() | st.integers(4_800, 10_000),
    "max_seconds": st.floats(1, 1e6),
    "num_classes": st.none() | st.integers(1, 128),
}
FILLS = {
    "date": st.sampled_from(["2020-01-31", "1999-12-31 23:59:59", "", None]),
    "h3": st.sampled_from([622236750694711295, "8928308280fffff", None]),
    "vector": st.sampled_from(["", "0.5", -1.5, 3, None]),
    "timeseries": st.sampled_from(["", "0 1 2.5", None]),
    "image": st.sampled_from([0, 0.5, 1.0, None]),
}


def values_of(annotation):
    """Return a strategy for the values that an annotation allows."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return st.sampled_from(parts)
    if origin is typing.Annotated:
        base, bound = parts
        least = bound.bound
        return st.integers(int(least), 10**6) if base is int else st.floats(least, 1e300)
    if parts and origin is not None:
        return st.one_of([values_of(part) for part in parts if part is not Ellipsis])
    plain = {int: st.integers(), float: st.floats(allow_nan=False), bool: st.booleans(), str: WORDS}
    return st.none() if annotation is type(None) else plain.get(annotation, st.nothing())


@st.composite
def features_of(draw, kind):
    strategies = {
        name: FILLS.get(kind, values_of(annotation))
        if name == "fill_value"
        else BY_NAME.get(name, values_of(annotation))
        for name, annotation in annotations_of(FEATURES[kind]).items()
    }
    params = {name: draw(values) for name, values in strategies.items() if draw(st.booleans())}
    feature = FEATURES[kind](**params)
    try:
        validate(feature)
    except ConfigError:
        assume(False)
    return feature


@pytest.mark.parametrize("kind", [kind for kind in FEATURES if kind != "embedding"])  # not in any configuration
@settings(max_examples=25, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(data=st.data())
def test_every_feature_round_trips_through_yaml_and_json(kind, data):
    name, feature = data.draw(WORDS), data.draw(features_of(kind))
    assume(feature.column != name)
    config = write_config({name: feature})
    [(back_name, back)] = read_config(yaml.safe_dump(config, sort_keys=False))["features"].items()
    assert back_name == name
    assert params_of(back) == params_of(feature)
    assert params_of(read_config(json.loads(json.dumps(config)))["features"][name]) == params_of(feature)


def test_media_parameters_without_effect_are_ignored():
    params = {"height": 8, "width": 9, "num_classes": 2, "in_memory": True, "num_processes": 4, "mode": "eager"}
    image = feature_of("image", params, augmentation=False, encoder={"type": "stacked_cnn"})
    assert params_of(image) == params_of(Image(height=8, width=9, num_classes=2, mode="eager", **LUDWIGS["image"]))
    audio = feature_of("audio", {"audio_file_length_limit_in_s": 1.5, "type": "stft", "in_memory": False})
    assert params_of(audio) == params_of(Audio(**LUDWIGS["audio"] | {"audio_file_length_limit_in_s": 1.5}, type="stft"))


@pytest.mark.parametrize(
    ("kind", "params", "feature"),
    [
        ("image", {"infer_image_num_classes": True}, Image(num_classes="auto")),
        ("image", {"infer_image_num_classes": True, "num_classes": 3}, Image(num_classes=3)),
        ("image", {"requires_equal_dimensions": True, "height": 9, "width": 4}, Image(height=4, width=4)),
        ("image", {"infer_image_max_height": 8, "height": 9, "width": 9}, Image(height=9, width=9)),
        ("image", {"infer_image_sample_size": 7, "infer_image_max_width": 256}, Image(sample_size=7)),
        ("sequence", {"padding_symbol": "_"}, Sequence(special_symbols={"padding": "_", "unknown": "<UNK>"})),
        (
            "sequence",
            {"unknown_symbol": "?", "add_start_stop": True},
            Sequence(
                add_start_stop=True,
                special_symbols={"padding": "<PAD>", "start": "<START>", "stop": "<STOP>", "unknown": "?"},
            ),
        ),
        (
            "sequence",
            {"unknown_symbol": "?", "special_symbols": "ludwig"},
            Sequence(special_symbols={"stop": "<EOS>", "start": "<SOS>", "padding": "<PAD>", "unknown": "?"}),
        ),
    ],
)
def test_ludwig_parameters_map_to_feature_parameters(kind, params, feature):
    feature.set_params(**{name: value for name, value in LUDWIGS.get(kind, {}).items() if name not in params})
    assert params_of(feature_of(kind, params)) == params_of(feature)
    defaults = {"defaults": {kind: {"preprocessing": params}}}
    assert params_of(read_config(config_of(kind) | defaults)["features"]["x"]) == params_of(feature)
    assert params_of(output_of(kind, params | {"missing_value_strategy": feature.missing_value_strategy})) == params_of(
        feature
    )


def test_special_symbols_of_type_and_feature_are_merged():
    config = config_of("sequence", {"unknown_symbol": "?"})
    config["defaults"] = {"sequence": {"preprocessing": {"padding_symbol": "_", "most_common": 5}}}
    found = read_config(config)["features"]["x"]
    assert (found.special_symbols, found.most_common) == ({"padding": "_", "unknown": "?"}, 5)


@pytest.mark.parametrize(
    ("params", "needed"),
    [
        ({"infer_image_num_channels": False}, "num_channels"), ({"infer_image_dimensions": False}, "height"),
        ({"infer_image_max_width": 9}, "width"), ({"requires_equal_dimensions": True}, "height"),
    ],
)  # fmt: skip
def test_limits_of_inferred_image_sizes_are_noted(params, needed):
    arguments, notes = read_with_notes(config_of("image", params))
    assert notes == [f'{next(iter(params))} of "x" is ignored: set {needed}.']
    assert params_of(arguments["features"]["x"]) == params_of(Image(**LUDWIGS["image"]))


def test_height_without_width_raises_with_its_path():
    message = message_of(config_of("image", {"height": 8}))
    assert message.startswith('input_features[0].preprocessing (feature "x"): Image: height is set and width is not')


def test_order_of_special_symbols_round_trips():
    symbols = {"unknown": "?", "padding": "_"}
    config = yaml.safe_dump(write_config({"x": Sequence(special_symbols=symbols)}), sort_keys=False)
    assert list(read_config(config)["features"]["x"].special_symbols) == ["unknown", "padding"]


def test_preprocessor_round_trips_through_config():
    config = {
        "input_features": [{"name": "city", "type": "category"}],
        "output_features": [{"name": "sold", "type": "binary"}],
        "preprocessing": {"split": {"type": "random", "probabilities": [0.5, 0.0, 0.5]}},
    }
    prep = Preprocessor.from_config(config)
    again = Preprocessor.from_config(prep.to_config())
    assert again.to_dict() == prep.to_dict()
    frame = pd.DataFrame({"city": ["Rome", "Oslo"] * 4, "sold": ["yes", "no"] * 4})
    assert again.fit(frame).to_dict() == prep.fit(frame).to_dict()
    assert isinstance(prep.features["sold"], Binary)


def test_ludwig_page_lists_every_ignored_key():
    page = (Path(__file__).parents[2] / "docs" / "coming-from" / "ludwig.md").read_text(encoding="utf-8")
    removed = [name for names in REMOVED.values() for name in names]
    for key in [*IGNORED_PARAMETERS, *DROPPED_PARAMETERS, *IGNORED_SETTINGS, *TEXT_ENCODERS, *removed]:
        assert f"`{key}`" in page, key


HOSTILE = {
    # Nine levels of nine aliases each: 387 million values.
    "aliases.yaml": (
        "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)),
        "more than 1,000,000 values",
    ),
    "merges.yaml": (
        "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)),
        "more than 1,000,000 values",
    ),
    "itself.yaml": ("preprocessing: &a {split: *a}\n", "more than 1,000,000 values"),
    "deep.yaml": ("[" * 100_000, "nested too deeply"),
    "deep.json": ("[" * 1_000_000, "nested too deeply"),
    "twice.yaml": ("input_features:\n  - name: a\n    type: number\n    type: text\n", '"type" occurs twice.*line 4'),
    "twice.json": ('{"input_features": [], "input_features": []}', '"input_features" occurs twice'),
    "constant.json": ('{"input_features": NaN}', "NaN is not a JSON number"),
    "integer.json": ("1" * 5000, "not valid JSON"),
    "integer.yaml": ("1" * 5000, "not valid YAML"),
    "tag.yaml": ("!!python/object/apply:os.getcwd []", "could not determine a constructor"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_configuration_error_names_the_file(tmp_path, name):
    text, message = HOSTILE[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=rf"(?s){name} .*{message}"):
        read_config(tmp_path / name)


def test_table_in_place_of_a_configuration_raises(tmp_path):
    (tmp_path / "rows.csv").write_text("city,price\n" + "Rome,3\n" * 1_000)
    with pytest.raises(
        ConfigError, match=r"mapping with input_features, not 'city,price Rome,3 .*; pass a dict"
    ) as caught:
        read_config(tmp_path / "rows.csv")
    assert len(str(caught.value)) < 250


def test_yaml_aliases_and_merge_keys_are_read():
    text = """
    input_features:
      - {name: a, type: number, preprocessing: &own {normalization: zscore, invalid: raise}}
      - {name: b, type: number, preprocessing: {<<: *own, normalization: minmax}}
      - {name: c, type: number, preprocessing: *own}
    """
    features = read_config(text)["features"]
    assert [one.normalization for one in features.values()] == ["zscore", "minmax", "zscore"]
    assert {one.invalid for one in features.values()} == {"raise"}


def test_paths_that_are_not_files_raise(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    for name in ("pipe", "folder", "loop", "zero"):
        with pytest.raises(ConfigError, match=f"no configuration file .*{name}.yaml"):
            read_config(tmp_path / f"{name}.yaml")


def test_oversized_configuration_raises(tmp_path):
    with (tmp_path / "a.yaml").open("wb") as file:
        file.truncate(200_000_000)
    with pytest.raises(ConfigError, match=r"a\.yaml has more than 100,000,000 bytes"):
        read_config(tmp_path / "a.yaml")


# Ludwig's own defaults, for the parameters that daskprep has.
_CELLS = {"missing_value_strategy": "fill_with_const"}
_TOKENS = {**_CELLS, "fill_value": "<UNK>", "most_common": 10_000, "lowercase": False}
_SEQUENCES = {
    **_TOKENS,
    "most_common": 20_000,
    "vocab_file": None,
    "sequence_length": None,
    "max_sequence_length": 256,
    "padding": "right",
    "padding_symbol": "<PAD>",
    "unknown_symbol": "<UNK>",
    "ngram_size": 2,
}
_MEDIA = {
    "missing_value_strategy": "bfill",
    "fill_value": None,
    "mode": "lazy",
    "prefetch_size": None,
    "lazy_cache_dir": None,
}
LUDWIG: dict[str, dict[str, Any]] = {
    "binary": {"missing_value_strategy": "fill_with_false", "positive": None},
    "number": {
        **_CELLS,
        "fill_value": 0.0,
        "normalization": "zscore",
        "outlier_strategy": None,
        "outlier_threshold": 3.0,
    },
    "category": _TOKENS,
    "set": {**_TOKENS, "tokenizer": "space"},
    "bag": {**_TOKENS, "tokenizer": "space"},
    "sequence": {**_SEQUENCES, "tokenizer": "space"},
    "text": {
        **_SEQUENCES,
        "tokenizer": "space_punct",
        "pretrained_model_name_or_path": None,
        "compute_idf": False,
    },
    "timeseries": {
        **_CELLS,
        "tokenizer": "space",
        "timeseries_length_limit": 256,
        "padding_value": 0.0,
        "padding": "right",
        "fill_value": "",
        "window_size": 0,
        "horizon": 0,
    },
    "vector": {**_CELLS, "fill_value": "", "vector_size": None},
    "date": {**_CELLS, "fill_value": "", "datetime_format": None},
    "h3": {**_CELLS, "fill_value": 576495936675512319},
    "image": {
        **_MEDIA,
        "height": None,
        "width": None,
        "num_channels": None,
        "resize_method": "interpolate",
        "infer_image_num_channels": True,
        "infer_image_dimensions": True,
        "infer_image_max_height": 256,
        "infer_image_max_width": 256,
        "infer_image_sample_size": 100,
        "standardize_image": None,
        "requires_equal_dimensions": False,
        "num_classes": None,
        "infer_image_num_classes": False,
    },
    "audio": {
        **_MEDIA,
        "audio_file_length_limit_in_s": 7.5,
        "padding_value": 0.0,
        "norm": None,
        "type": "fbank",
        "window_length_in_s": 0.04,
        "window_shift_in_s": 0.02,
        "num_fft_points": None,
        "window_type": "hamming",
        "num_filter_bands": 80,
    },
}


def _table_of_defaults():
    """Return the rows of the table on the page: type, parameter, and three defaults."""
    page = (Path(__file__).parents[2] / "docs" / "coming-from" / "ludwig.md").read_text(encoding="utf-8")
    table = page.partition("| type | parameter | Ludwig | in a configuration | in Python |")[2].partition("\n\n")[0]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[1:]]
    assert rows
    return {(kind, name): tuple(map(ast.literal_eval, values)) for kind, name, *values in rows}


@pytest.mark.parametrize("kind", LUDWIG_KINDS)
def test_defaults_equal_ludwig_except_for_listed_ones(kind):
    listed = {name: values for (owner, name), values in _table_of_defaults().items() if owner == kind}
    read, made = (one.get_params(deep=False) for one in (feature_of(kind), FEATURES[kind]()))
    for name, default in from_saved_parameters(kind, LUDWIG[kind]).items():
        assert (default, read[name], made[name]) == listed.pop(name, (default,) * 3), name
    assert not listed
