"""Bring configurations of Ludwig, of its older releases too, to the words and keys that are read here."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from daskprep.features import FEATURES
from daskprep.features.parameters import annotations_of

FEATURE_KEYS = ("name", "type", "column", "preprocessing")
_MODULES = {"input_features": "encoder", "output_features": "decoder"}
_MODEL = "pretrained_model_name_or_path"
_DEPTH = 5  # of sections: below it nothing is renamed, and so nothing copied
_CLOSE = 0.8  # so similar to a key that is read, another one is a slip of the pen

# fmt: off
# What says nothing of preprocessing: at the top, in a feature, in the defaults of a type, and among parameters.
_TOP_OF_MODELS = (
    "adapter", "adapters", "backend", "base_model", "combiner", "generation", "generation_config", "hyperopt",
    "is_multimodal", "ludwig_version", "model_name", "model_parameters", "model_type", "preset", "quantization",
    "trainer", "training", "trust_remote_code",
)
_FEATURE_OF_MODELS = (
    "active", "augmentation", "calibration", "class_similarities", "clip", "decoder", "default_validation_metric",
    "dependencies", "encoder", "input_size", "loss", "num_classes", "proc_column", "reduce_dependencies",
    "reduce_input", "softmax", "threshold", "threshold_percentile", "tied", "top_k", "vector_size",
)
_DEFAULTS_OF_MODELS = ("decoder", "encoder", "loss", "type")
IGNORED_SETTINGS = ("global_max_sequence_length",)
IGNORED_PARAMETERS = (
    "cache_encoder_embeddings", "computed_fill_value", "computed_outlier_fill_value", "encoder", "in_memory",
    "num_processes",
)
# What is told of parameters that data would differ by.
DROPPED_PARAMETERS = {
    "fallback_label": "unseen categories become <UNK>",
    "prompt": "store the finished prompts in a column and use that column",
    "vocab": "ids are ordered by frequency",
}
_FORMER_PARAMETERS = {
    "fallback_true_label": "positive",
    "sequence_length_limit": "max_sequence_length", "word_sequence_length_limit": "max_sequence_length",
    "word_most_common": "most_common", "word_tokenizer": "tokenizer", "word_vocab_file": "vocab_file",
    "char_sequence_length_limit": "max_sequence_length", "char_tokenizer": "tokenizer", "char_vocab_file": "vocab_file",
}
_FORMER_STRATEGIES = {"backfill": "bfill", "pad": "ffill"}
# Encoders of text that bring a tokenizer, with the model whose tokenizer it is where they name none.
ENCODERS_OF_TEXT = {
    "albert": "albert-base-v2", "auto_transformer": None, "bert": "bert-base-uncased", "camembert": "camembert-base",
    "ctrl": None, "deberta": "tasksource/deberta-base-long-nli", "distilbert": "distilbert-base-uncased",
    "electra": "google/electra-small-discriminator", "flaubert": None, "gpt": "openai-gpt", "gpt2": "gpt2",
    "longformer": "allenai/longformer-base-4096", "modernbert": "answerdotai/ModernBERT-base",
    "roberta": "roberta-base", "t5": "t5-small", "transformer_xl": None, "xlmroberta": "xlm-roberta-base",
    "xlnet": "xlnet-base-cased",
}
# Encoders of images of any size; others have one of their own.
_ENCODERS_OF_ANY_SIZE = ("None", "mlp_mixer", "stacked_cnn", "unet")
# fmt: on

Section = dict[str, Any]


def upgraded(config: Mapping[str, Any]) -> tuple[Section, list[str]]:
    """Return a configuration without what is for models, in the words of today, and what is to be told of it.

    What is no mapping where there should be one is left as it is.
    """
    new = _copied(config, _DEPTH)
    for reword in (_types, _defaults, _former_parameters, _split):
        reword(new)
    notes = [*_modules(new), *_encoders(new)]
    _language_model(new)
    notes += _unread(new)
    _models(new)
    return new, notes


def _copied(value: Any, depth: int) -> Any:
    if depth and isinstance(value, Mapping):
        return {key: _copied(one, depth - 1) for key, one in value.items()}
    if depth and isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value):
        return [_copied(one, depth - 1) for one in value]
    return value


def _below(section: Section, *keys: str) -> Section:
    """Return the mapping below some keys, made where there is none."""
    for key in keys:
        section[key] = {} if section.get(key) is None else section[key]
        section = section[key] if isinstance(section[key], dict) else {}
    return section


def _entries(config: Section, *lists: str, kind: str | None = None) -> Iterator[Section]:
    for key in lists or _MODULES:
        entries = config.get(key)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and kind in (None, entry.get("type")):
                yield entry


def _parameters(config: Section) -> Iterator[tuple[str, str, Section]]:
    """Give the parameters of features and of types: whose they are, of which type, and the parameters."""
    for entry in _entries(config):
        yield f'"{entry.get("name")}"', str(entry.get("type")), _below(entry, "preprocessing")
    for kind in [one for one in FEATURES if one in _below(config, "defaults")]:
        yield f"defaults.{kind}", kind, _below(config, "defaults", kind, "preprocessing")


def _is_unset(value: Any) -> bool:
    return all(map(_is_unset, value.values())) if isinstance(value, Mapping) else not value


def _is_slip(key: object, names: Collection[str]) -> bool:
    return bool(difflib.get_close_matches(str(key), names, cutoff=_CLOSE))


def _types(config: Section) -> None:
    for entry in _entries(config, kind="numerical"):
        entry["type"] = "number"
    for entry in _entries(config, "output_features", kind="anomaly"):
        unlabelled = {"missing_value_strategy": "fill_with_const", "fill_value": -1.0}
        entry |= {"type": "number", "preprocessing": unlabelled | _below(entry, "preprocessing")}
    for entry in _entries(config, "output_features", kind="category_distribution"):
        labels = _below(entry, "preprocessing").pop("vocab", None)
        own = {"vector_size": len(labels)} if isinstance(labels, list) and labels else {}
        entry |= {"type": "vector", "preprocessing": own | _below(entry, "preprocessing")}


def _defaults(config: Section) -> None:
    """Move the parameters of types from `preprocessing` to `defaults`."""
    preprocessing = _below(config, "preprocessing")
    for key, kind in {**dict.fromkeys(FEATURES), "numerical": "number"}.items():
        if isinstance(preprocessing.get(key), dict):
            former = preprocessing.pop(key)
            params = _below(former, "preprocessing") if "preprocessing" in former else former
            _below(config, "defaults", kind or key, "preprocessing").update(params)
    if config.get("preset") == "tabular_realmlp":
        _below(config, "defaults", "number", "preprocessing").setdefault("normalization", "iq")


def _former_parameters(config: Section) -> None:
    for _, _, params in _parameters(config):
        params.update(_below(params, "audio_feature"))
        del params["audio_feature"]
        for former in [one for one in _FORMER_PARAMETERS if one in params]:
            params.setdefault(_FORMER_PARAMETERS[former], params.pop(former))
        strategy = params.get("missing_value_strategy")
        if isinstance(strategy, str) and strategy in _FORMER_STRATEGIES:
            params["missing_value_strategy"] = _FORMER_STRATEGIES[strategy]


def _split(config: Section) -> None:
    settings = _below(config, "preprocessing")
    forced, shares, column = (settings.pop(key, None) for key in ("force_split", "split_probabilities", "stratify"))
    if (forced, shares, column) != (None, None, None):
        kind = {"type": "random"} if column is None else {"type": "stratify", "column": column}
        settings["split"] = kind | ({} if shares is None else {"probabilities": shares})


def _modules(config: Section) -> Iterator[str]:
    """Move what stands beside name and type to the encoder or decoder, where Ludwig reads it."""
    moved, known = [], {*FEATURE_KEYS, *_FEATURE_OF_MODELS}
    for key, module in _MODULES.items():
        for entry in _entries(config, key):
            if isinstance(entry.get(module), str):
                entry[module] = {"type": entry[module]}
            for flat in [one for one in entry if one not in known and not _is_slip(one, FEATURE_KEYS)]:
                moved.append(f'{flat} ("{entry.get("name")}")')
                _below(entry, module)[flat] = entry.pop(flat)
    if moved:
        yield (
            f"keys next to name and type belong to encoders and decoders, so these are ignored: {', '.join(moved)}; "
            "put parameters of a feature under preprocessing"
        )


def _encoders(config: Section) -> Iterator[str]:
    for entry in [*_entries(config, "input_features", kind="text"), *_entries(config, "input_features", kind="image")]:
        general = _below(config, "defaults", entry["type"], "encoder")
        own, params = _below(entry, "encoder"), _below(entry, "preprocessing")
        given = _below(config, "defaults", entry["type"], "preprocessing") | params
        encoder = general | own if own.get("type") in (None, general.get("type")) else own
        name = str(encoder.get("type"))
        model = given.get(_MODEL) or encoder.get(_MODEL) or ENCODERS_OF_TEXT.get(name)
        if entry["type"] == "image" and name not in _ENCODERS_OF_ANY_SIZE and given.get("height") is None:
            yield (
                f'the encoder {name} of "{entry.get("name")}" does not determine the size of images: set height, '
                "width, num_channels and standardize_image to match it"
            )
        elif name == "tf_idf":
            params["compute_idf"] = True
        elif name in ENCODERS_OF_TEXT and model is not None:
            params |= {"tokenizer": "hf_tokenizer", _MODEL: model}


def _language_model(config: Section) -> None:
    if config.get("model_type") != "llm" or not isinstance(config.get("base_model"), str):
        return
    _below(config, "defaults", "text", "preprocessing").setdefault("max_sequence_length", None)
    for entry in _entries(config, "output_features", kind="text"):
        _below(entry, "preprocessing").setdefault("max_sequence_length", None)
    for entry in _entries(config, kind="text"):
        params = _below(entry, "preprocessing")
        params |= {"tokenizer": "hf_tokenizer", "padding": "left", _MODEL: params.get(_MODEL) or config["base_model"]}


def _unread(config: Section) -> Iterator[str]:
    """Leave out parameters that have no effect here, and tell of those that had one in Ludwig, or in no type."""
    if not _is_unset(config.pop("prompt", None)):
        yield f"prompt is ignored: {DROPPED_PARAMETERS['prompt']}"
    for whose, kind, params in _parameters(config):
        owner: type | None = FEATURES.get(kind)
        names = params if owner is None else annotations_of(owner)
        known = {*IGNORED_PARAMETERS, *DROPPED_PARAMETERS}
        for key in [one for one in params if one not in names and (one in known or not _is_slip(one, names))]:
            value, told = params.pop(key), DROPPED_PARAMETERS.get(key)
            if key not in IGNORED_PARAMETERS and not (told and _is_unset(value)):
                yield f"{key} of {whose} is ignored: {told or f'type {kind} has no such parameter'}"


def _models(config: Section) -> None:
    defaults = _below(config, "defaults")
    for kind in ("anomaly", "category_distribution"):
        defaults.pop(kind, None)
    without = [(config, _TOP_OF_MODELS), (_below(config, "preprocessing"), IGNORED_SETTINGS)]
    without += [(entry, _FEATURE_OF_MODELS) for entry in _entries(config)]
    without += [(one, _DEFAULTS_OF_MODELS) for one in defaults.values() if isinstance(one, dict)]
    for section, keys in without:
        for key in keys:
            section.pop(key, None)
