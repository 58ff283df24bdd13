"""Conversion of configurations of Ludwig, including older releases, to the keys and values that daskprep reads."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from daskprep.features import FEATURES
from daskprep.features.parameters import annotations_of
from daskprep.rows.parameter_names import PARAMETER_NAMES, REMOVED, from_saved_parameters

FEATURE_KEYS = ("name", "type", "column", "preprocessing")
_MODULE_KEYS = {"input_features": "encoder", "output_features": "decoder"}
_MODEL_KEY = "pretrained_model_name_or_path"
_MAX_DEPTH = 5  # of sections: deeper keys are never renamed, so they are not copied
_MIN_SIMILARITY = 0.8  # an unknown key this similar to a known key is a typo, which raises an error later

# fmt: off
# Keys without effect on preprocessing: at the top, in a feature, in the defaults of a type, and among parameters.
_TOP_LEVEL_MODEL_KEYS = (
    "adapter", "adapters", "backend", "base_model", "combiner", "generation", "generation_config", "hyperopt",
    "is_multimodal", "ludwig_version", "model_name", "model_parameters", "model_type", "preset", "quantization",
    "trainer", "training", "trust_remote_code",
)
_FEATURE_MODEL_KEYS = (
    "active", "calibration", "class_similarities", "clip", "decoder", "default_validation_metric",
    "dependencies", "encoder", "input_size", "loss", "num_classes", "proc_column", "reduce_dependencies",
    "reduce_input", "softmax", "threshold", "threshold_percentile", "tied", "top_k", "vector_size",
)
_DEFAULTS_MODEL_KEYS = ("decoder", "encoder", "loss", "type")
IGNORED_SETTINGS = ("global_max_sequence_length",)
IGNORED_PARAMETERS = (
    "cache_encoder_embeddings", "computed_fill_value", "computed_outlier_fill_value", "encoder", "in_memory",
    "num_processes",
)
# Parameters that are not supported although they change the data, with a note for the warning.
DROPPED_PARAMETERS = {
    "fallback_label": "unseen categories become <UNK>",
    "prompt": "store the finished prompts in a column and use that column",
    "vocab": "ids are ordered by frequency",
}
_FORMER_PARAMETERS = {
    **PARAMETER_NAMES,
    "sequence_length_limit": "max_sequence_length", "word_sequence_length_limit": "max_sequence_length",
    "word_most_common": "most_common", "word_tokenizer": "tokenizer", "word_vocab_file": "vocab_file",
    "char_sequence_length_limit": "max_sequence_length", "char_tokenizer": "tokenizer", "char_vocab_file": "vocab_file",
}
# Parameters about the learned size of images, which have no effect here, and the parameter to set in their place.
_REPLACEMENTS = {
    "infer_image_num_channels": "num_channels", "infer_image_dimensions": "height", "infer_image_max_height": "height",
    "infer_image_max_width": "width", "requires_equal_dimensions": "height",
}
_FORMER_STRATEGIES = {"backfill": "bfill", "pad": "ffill"}
# Text encoders with their own tokenizer, and the model of this tokenizer if the configuration names none.
TEXT_ENCODERS = {
    "albert": "albert-base-v2", "auto_transformer": None, "bert": "bert-base-uncased", "camembert": "camembert-base",
    "ctrl": None, "deberta": "tasksource/deberta-base-long-nli", "distilbert": "distilbert-base-uncased",
    "electra": "google/electra-small-discriminator", "flaubert": None, "gpt": "openai-gpt", "gpt2": "gpt2",
    "longformer": "allenai/longformer-base-4096", "modernbert": "answerdotai/ModernBERT-base",
    "roberta": "roberta-base", "t5": "t5-small", "transformer_xl": None, "xlmroberta": "xlm-roberta-base",
    "xlnet": "xlnet-base-cased",
}
# Image encoders that accept any size; other encoders define the size.
_ANY_SIZE_IMAGE_ENCODERS = ("None", "mlp_mixer", "stacked_cnn", "unet")
# fmt: on

Section = dict[str, Any]


def upgrade_config(config: Mapping[str, Any]) -> tuple[Section, list[str]]:
    """Return a configuration of current keys, and notes.

    The notes name what is ignored or read differently. The functions below change the copy in place.
    """
    new = _copy_nested(config, _MAX_DEPTH)
    for rewrite in (_rewrite_types, _move_defaults, _rename_former_parameters, _rewrite_split):
        rewrite(new)
    notes = [*_drop_augmentation(new), *_move_module_keys(new), *_apply_encoders(new)]
    notes += _replace_removed_parameters(new)
    _apply_language_model(new)
    notes += _drop_unread_parameters(new)
    _drop_model_keys(new)
    return new, notes


def _copy_nested(value: Any, depth: int) -> Any:
    """Return a copy of nested mappings, and of lists of mappings, to a depth."""
    if depth and isinstance(value, Mapping):
        return {key: _copy_nested(item, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        return [_copy_nested(item, depth - 1) for item in value]
    return value


def _subsection(section: Section, *keys: str) -> Section:
    """Return the mapping at keys, added if missing or None; an empty one that is not added for others."""
    for key in keys:
        section[key] = {} if section.get(key) is None else section[key]
        section = section[key] if isinstance(section[key], dict) else {}
    return section


def _iterate_entries(config: Section, *lists: str, kind: str | None = None) -> Iterator[Section]:
    """Yield the entries of features of a type, None: of all."""
    for key in lists or _MODULE_KEYS:
        entries = config.get(key)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and kind in (None, entry.get("type")):
                yield entry


def _iterate_parameters(config: Section) -> Iterator[tuple[str, str, Section]]:
    """Yield owner, type and parameters of each set of parameters."""
    for entry in _iterate_entries(config):
        yield f'"{entry.get("name")}"', str(entry.get("type")), _subsection(entry, "preprocessing")
    for kind in [kind for kind in FEATURES if kind in _subsection(config, "defaults")]:
        yield f"defaults.{kind}", kind, _subsection(config, "defaults", kind, "preprocessing")


def _is_unset(value: Any) -> bool:
    """Return whether a value is false, or a mapping of such."""
    return all(map(_is_unset, value.values())) if isinstance(value, Mapping) else not value


def _is_typo(key: object, names: Collection[str]) -> bool:
    return bool(difflib.get_close_matches(str(key), names, cutoff=_MIN_SIMILARITY))


def _rewrite_types(config: Section) -> None:
    """Replace numerical, anomaly and category_distribution."""
    for entry in _iterate_entries(config, kind="numerical"):
        entry["type"] = "number"
    for entry in _iterate_entries(config, "output_features", kind="anomaly"):
        unlabelled = {"missing_value_strategy": "fill_with_const", "fill_value": -1.0}
        entry |= {"type": "number", "preprocessing": unlabelled | _subsection(entry, "preprocessing")}
    for entry in _iterate_entries(config, "output_features", kind="category_distribution"):
        labels = _subsection(entry, "preprocessing").pop("vocab", None)
        vector_parameters = {"vector_size": len(labels)} if isinstance(labels, list) and labels else {}
        entry |= {"type": "vector", "preprocessing": vector_parameters | _subsection(entry, "preprocessing")}


def _move_defaults(config: Section) -> None:
    """Move ``preprocessing[type]`` to ``defaults[type]["preprocessing"]``."""
    preprocessing = _subsection(config, "preprocessing")
    for key, kind in {**dict.fromkeys(FEATURES), "numerical": "number"}.items():
        if isinstance(preprocessing.get(key), dict):
            former = preprocessing.pop(key)
            params = _subsection(former, "preprocessing") if "preprocessing" in former else former
            _subsection(config, "defaults", kind or key, "preprocessing").update(params)
    if config.get("preset") == "tabular_realmlp":
        _subsection(config, "defaults", "number", "preprocessing").setdefault("normalization", "iq")


def _rename_former_parameters(config: Section) -> None:
    """Rename parameters and strategies of older releases; new names prevail."""
    for _, _, params in _iterate_parameters(config):
        params.update(_subsection(params, "audio_feature"))
        del params["audio_feature"]
        for former in [name for name in _FORMER_PARAMETERS if name in params]:
            params.setdefault(_FORMER_PARAMETERS[former], params.pop(former))
        strategy = params.get("missing_value_strategy")
        if isinstance(strategy, str) and strategy in _FORMER_STRATEGIES:
            params["missing_value_strategy"] = _FORMER_STRATEGIES[strategy]


def _rewrite_split(config: Section) -> None:
    """Replace the former keys for splits by a section "split"."""
    settings = _subsection(config, "preprocessing")
    forced, shares, column = (settings.pop(key, None) for key in ("force_split", "split_probabilities", "stratify"))
    if (forced, shares, column) != (None, None, None):
        kind = {"type": "random"} if column is None else {"type": "stratify", "column": column}
        settings["split"] = kind | ({} if shares is None else {"probabilities": shares})


def _move_module_keys(config: Section) -> Iterator[str]:
    """Move unknown keys to encoder or decoder; yield a note."""
    moved, known = [], {*FEATURE_KEYS, *_FEATURE_MODEL_KEYS}
    for key, module in _MODULE_KEYS.items():
        for entry in _iterate_entries(config, key):
            if isinstance(entry.get(module), str):
                entry[module] = {"type": entry[module]}
            for stray_key in [key for key in entry if key not in known and not _is_typo(key, FEATURE_KEYS)]:
                moved.append(f'{stray_key} ("{entry.get("name")}")')
                _subsection(entry, module)[stray_key] = entry.pop(stray_key)
    if moved:
        yield (
            f"keys next to name and type belong to encoders and decoders, so these are ignored: {', '.join(moved)}; "
            "put parameters of a feature under preprocessing"
        )


def _apply_encoders(config: Section) -> Iterator[str]:
    """Set the parameters that encoders imply: tokenizers, tf_idf.

    A note is for each image whose encoder determines no size and that has no height.
    """
    texts, images = (list(_iterate_entries(config, "input_features", kind=kind)) for kind in ("text", "image"))
    for entry in texts + images:
        default_encoder = _subsection(config, "defaults", entry["type"], "encoder")
        entry_encoder, params = _subsection(entry, "encoder"), _subsection(entry, "preprocessing")
        effective_parameters = _subsection(config, "defaults", entry["type"], "preprocessing") | params
        is_default_type = entry_encoder.get("type") in (None, default_encoder.get("type"))
        encoder = default_encoder | entry_encoder if is_default_type else entry_encoder
        name = str(encoder.get("type"))
        model = effective_parameters.get(_MODEL_KEY) or encoder.get(_MODEL_KEY) or TEXT_ENCODERS.get(name)
        is_sized = name in _ANY_SIZE_IMAGE_ENCODERS or effective_parameters.get("height") is not None
        if entry["type"] == "image" and not is_sized:
            yield (
                f'the encoder {name} of "{entry.get("name")}" does not determine the size of images: set height, '
                "width, num_channels and standardize_image to match it"
            )
        elif name == "tf_idf":
            params["compute_idf"] = True
        elif name in TEXT_ENCODERS and model is not None:
            params |= {"tokenizer": "hf_tokenizer", _MODEL_KEY: model}


def _apply_language_model(config: Section) -> None:
    """Set tokenizer and left padding of texts for an LLM."""
    if config.get("model_type") != "llm" or not isinstance(config.get("base_model"), str):
        return
    _subsection(config, "defaults", "text", "preprocessing").setdefault("max_sequence_length", None)
    for entry in _iterate_entries(config, "output_features", kind="text"):
        _subsection(entry, "preprocessing").setdefault("max_sequence_length", None)
    for entry in _iterate_entries(config, kind="text"):
        params = _subsection(entry, "preprocessing")
        model = params.get(_MODEL_KEY) or config["base_model"]
        params |= {"tokenizer": "hf_tokenizer", "padding": "left", _MODEL_KEY: model}


def _replace_removed_parameters(config: Section) -> Iterator[str]:
    """Replace removed parameters, also of defaults; yield notes on those without a replacement."""
    for kind, removed in REMOVED.items():
        defaults = _subsection(config, "defaults", kind, "preprocessing")
        for key in _MODULE_KEYS:
            for entry in _iterate_entries(config, key, kind=kind):
                params = (defaults if key == "input_features" else {}) | _subsection(entry, "preprocessing")
                if params.keys() & removed:
                    entry["preprocessing"] = new = from_saved_parameters(kind, params)
                    for name, needed in _REPLACEMENTS.items() if kind == "image" else ():
                        if params.get(name, removed[name]) != removed[name] and new.get(needed) is None:
                            yield f'{name} of "{entry.get("name")}" is ignored: set {needed}'
        for name in removed:
            defaults.pop(name, None)


def _drop_unread_parameters(config: Section) -> Iterator[str]:
    """Drop parameters without effect, with notes; likely typos stay, to raise."""
    if not _is_unset(config.pop("prompt", None)):
        yield f"prompt is ignored: {DROPPED_PARAMETERS['prompt']}"
    for owner_name, kind, params in _iterate_parameters(config):
        owner: type | None = FEATURES.get(kind)
        names = params if owner is None else annotations_of(owner)
        known = {*IGNORED_PARAMETERS, *DROPPED_PARAMETERS}
        for key in [key for key in params if key not in names and (key in known or not _is_typo(key, names))]:
            value, reason = params.pop(key), DROPPED_PARAMETERS.get(key)
            if key not in IGNORED_PARAMETERS and not (reason and _is_unset(value)):
                yield f"{key} of {owner_name} is ignored: {reason or f'type {kind} has no such parameter'}"


def _drop_augmentation(config: Section) -> Iterator[str]:
    """Remove augmentations, with a note for each that is set."""
    owners = [(f'"{entry.get("name")}"', entry) for entry in _iterate_entries(config)]
    owners += [(f"defaults.{kind}", section) for kind, section in _subsection(config, "defaults").items()]
    for owner, section in owners:
        if isinstance(section, dict) and not _is_unset(section.pop("augmentation", None)):
            yield f"augmentation of {owner} is ignored: pass augment= to a loader, such as dp.Mirror()"


def _drop_model_keys(config: Section) -> None:
    """Remove the keys that only concern models."""
    defaults = _subsection(config, "defaults")
    for kind in ("anomaly", "category_distribution"):
        defaults.pop(kind, None)
    removals = [(config, _TOP_LEVEL_MODEL_KEYS), (_subsection(config, "preprocessing"), IGNORED_SETTINGS)]
    removals += [(entry, _FEATURE_MODEL_KEYS) for entry in _iterate_entries(config)]
    removals += [(section, _DEFAULTS_MODEL_KEYS) for section in defaults.values() if isinstance(section, dict)]
    for section, keys in removals:
        for key in keys:
            section.pop(key, None)
