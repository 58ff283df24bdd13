"""Readers and writers of configurations in Ludwig's layout."""

from __future__ import annotations

import datetime as dt
import math
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import yaml

from daskprep.columns.display import quote
from daskprep.columns.parametrized import to_json_value
from daskprep.errors import ConfigError, did_you_mean, warn
from daskprep.extensions.ludwig import FEATURE_KEYS, upgrade_config
from daskprep.features import FEATURES, USER_KINDS, Feature
from daskprep.features.base import validate
from daskprep.features.embedding import Embedding
from daskprep.features.parameters import annotations_of
from daskprep.rows.saved import parse_json
from daskprep.sources.balance import Balance, balance_from_dict
from daskprep.sources.split import RandomSplit, Splitter, split_from_dict
from daskprep.storage.security import UntrustedPath, open_filesystem, redact_url

_SUFFIXES = (".yaml", ".yml", ".json")
_MAX_BYTES = 100_000_000
_MAX_DEPTH = 50  # levels; Ludwig's configurations have fewer than 10
_MAX_VALUES = 1_000_000  # with each alias expanded

_TOP_LEVEL_KEYS = ("input_features", "output_features", "defaults", "preprocessing")
_SAMPLE_KEYS = ("sample_ratio", "sample_size", "sample_seed")
_PREPROCESSING_KEYS = (
    "split", "oversample_minority", "undersample_majority", "balance", *_SAMPLE_KEYS, "fit_on", "weight", "keys",
)  # fmt: skip

# Defaults of output features, in addition to dropping rows with missing values.
_OUTPUT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "number": {"normalization": None},
    "category": {"handle_unknown": "unk"},
}
# Ludwig's defaults that differ from the defaults of the feature types.
_LUDWIG_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "number": {"missing_value_strategy": "fill_with_const"}, "date": {"missing_value_strategy": "fill_with_const"},
    "binary": {"missing_value_strategy": "fill_with_false"},
    "category": {"most_common": 10_000}, "sequence": {"most_common": 20_000, "max_sequence_length": 256},
    "text": {"lowercase": False, "most_common": 20_000, "max_sequence_length": 256},
    "timeseries": {"across_splits": True, "padding_value": 0.0, "timeseries_length_limit": 256},
    "image": {"missing_value_strategy": "bfill"},
    "audio": {"missing_value_strategy": "bfill", "padding_value": 0.0, "audio_file_length_limit_in_s": 7.5},
}  # fmt: skip


def read_config(config: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, Any]:
    """Return the arguments of a Preprocessor for a configuration.

    "features" maps names to features, inputs first; "targets" names the output features. Without a `split`, Ludwig's
    default applies, `RandomSplit()`; ``split: null`` trains on all rows. ConfigError for unknown keys, equal names, and
    no features.
    """
    loaded = load_config(config)
    if not isinstance(loaded, Mapping):
        raise ConfigError(
            f"a configuration is a mapping with input_features, not {quote(str(loaded), 60)}; "
            f"pass a dict, YAML text, or the path of a file that ends in {', '.join(_SUFFIXES)}"
        )
    values, notes = upgrade_config(loaded)
    root = _Section(values)
    root.check_keys(_TOP_LEVEL_KEYS)
    defaults = _read_defaults(root.section("defaults"))
    inputs = dict(_read_features(root, "input_features", defaults))
    outputs = dict(_read_features(root, "output_features", None))
    if duplicates := inputs.keys() & outputs.keys():
        raise ConfigError(f'"{min(duplicates)}" is an input and an output feature: use a separate name for each')
    if not inputs and not outputs:
        raise ConfigError("the configuration has no features: list them under input_features and output_features")
    preprocessing = root.section("preprocessing")
    preprocessing.check_keys(_PREPROCESSING_KEYS)
    weight, fit_on = preprocessing.values.get("weight"), preprocessing.values.get("fit_on")
    if fit_on not in (None, "train", "all"):
        raise preprocessing.error("fit_on", f'must be "train" or "all", not {fit_on!r}')
    settings = {**_read_sample(preprocessing), "targets": list(outputs) or None, "weight": weight, "fit_on": fit_on}
    settings["keys"] = preprocessing.values.get("keys")
    arguments = {
        "features": inputs | outputs,
        "split": _read_split(preprocessing),
        "balance": _read_balance(preprocessing, outputs),
        **_drop_none(settings),
    }
    if notes:
        numbered_notes = " ".join(f"({number}) {note}." for number, note in enumerate(notes, 1))
        warn(f"Parts of this configuration are ignored or read differently: {numbered_notes}")
    return arguments


def write_config(
    features: Mapping[str, Feature],
    split: Splitter | None = None,
    balance: Balance | None = None,
    fit_on: Literal["train", "all"] = "train",
    targets: Collection[str] = (),
    sample: float | None = None,
    sample_seed: int = 42,
    weight: str | None = None,
    keys: Collection[str] = (),
) -> dict[str, Any]:
    """Return a configuration for `read_config`, with parameters that differ; the order of keys matters."""
    settings = {
        "balance": None if balance is None else balance.to_dict(),
        "sample_size" if isinstance(sample, int) else "sample_ratio": sample,
        "sample_seed": None if sample is None else sample_seed,
        "fit_on": None if fit_on == "train" else fit_on,
        "weight": weight,
        "keys": list(keys) or None,
    }
    divides = {"divide_times": True} if getattr(split, "divide_times", False) else {}
    preprocessing = {"split": None if split is None else split.to_dict() | divides, **_drop_none(settings)}
    inputs = [_write_feature(name, feature) for name, feature in features.items() if name not in targets]
    outputs = [_write_feature(name, features[name], _output_defaults(features[name].kind)) for name in targets]
    config = {"input_features": inputs, "output_features": outputs or None, "preprocessing": preprocessing}
    return _drop_none(config)


def _drop_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True)
class _Section:
    """A mapping in the configuration, with its location."""

    values: Mapping[str, Any]
    path: str = ""  # keys from the top, joined by dots
    feature: str | None = None  # name of the feature that it belongs to

    def error(self, key: object, message: str) -> ConfigError:
        """Return an error that names the full key and the feature."""
        full_key = ".".join(part for part in (self.path, str(key)) if part)
        feature_hint = "" if self.feature is None else f' (feature "{self.feature}")'
        return ConfigError(f"{full_key}{feature_hint}: {message}")

    @contextmanager
    def error_context(self, key: str, hint: str = "") -> Iterator[None]:
        """Name the key in ConfigErrors, and add a hint."""
        try:
            yield
        except ConfigError as error:
            raise self.error(key, f"{error}{hint}") from error

    def section(self, key: str) -> _Section:
        """Return a key's section, or an empty one; or ConfigError."""
        values = self.values.get(key)
        if not isinstance(values, Mapping | None):
            raise self.error(key, f"must be a mapping of keys to values, not {values!r}")
        return _Section(values or {}, f"{self.path}.{key}" if self.path else key, self.feature)

    def entries(self, key: str) -> Iterator[_Section]:
        """Yield the features listed at `key`; ConfigError if they are no mappings."""
        values = self.values.get(key)
        if not isinstance(values, list | tuple | None):
            raise self.error(key, f"must be a list of features, not {values!r}")
        for number, entry in enumerate(values or ()):
            path = f"{key}[{number}]"
            if not isinstance(entry, Mapping):
                raise self.error(path, f"must be a mapping with name and type, not {entry!r}")
            yield _Section(entry, path, entry["name"] if isinstance(entry.get("name"), str) else None)

    def check_keys(self, known_keys: Collection[str], misplaced: Mapping[str, str] | None = None) -> None:
        """Raise ConfigError for the first unknown key."""
        for key in self.values:
            if key not in known_keys:
                remedy = (misplaced or {}).get(key)
                hint = f": {remedy}." if remedy else f".{did_you_mean(key, known_keys)}"
                raise self.error(key, f"unknown key{hint} Keys are: {', '.join(known_keys)}")


def load_config(config: Any) -> Any:
    """Return the content of a mapping, YAML text, or a file.

    A one-line text that ends in .yaml, .yml or .json is a path. ConfigError for other types, files that cannot be read
    or parsed, and more than 50 levels.
    """
    loaded = _load(config)
    inner = {0: loaded}
    for _ in range(_MAX_DEPTH):
        levels = (list(value.values()) if isinstance(value, Mapping) else value for value in inner.values())
        inner = {id(part): part for level in levels if isinstance(level, list | tuple) for part in level}
    if inner:
        raise ConfigError(f"the configuration is nested more than {_MAX_DEPTH} levels deep: check its indentation")
    return loaded


def _load(config: Any) -> Any:
    """Return the content as `load_config`, of any depth."""
    if isinstance(config, Mapping):
        return config
    text = config if isinstance(config, str) else ""
    if isinstance(config, os.PathLike) or (text.lower().endswith(_SUFFIXES) and "\n" not in text):
        return _load_file(os.fspath(config))
    if not isinstance(config, str):
        raise ConfigError(f"a configuration is a dict, YAML text or a path, not {config!r}")
    return _parse(config, "YAML", "the configuration")


def _load_file(path: str) -> Any:
    """Return the parsed file of a path or URL, or ConfigError."""
    name = redact_url(path)
    files, base = open_filesystem(path, {})
    try:
        if not files.isfile(base):
            raise ConfigError(f"no configuration file {name}: check the path")
        data = files.cat_file(base, 0, _MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror or type(error).__name__}") from error
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{name} has more than {_MAX_BYTES:,} bytes, too many for a configuration")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8 text: {error}") from error
    return _parse(text, "JSON" if path.lower().endswith(".json") else "YAML", name)


def _parse(text: str, kind: str, source_name: str) -> Any:
    """Parse JSON or YAML; ConfigError with the line if invalid."""
    try:
        return parse_json(text) if kind == "JSON" else yaml.load(text, _Loader)  # noqa: S506 it is a safe one
    except RecursionError as error:
        raise ConfigError(f"{source_name} is nested too deeply for a configuration: check its indentation") from error
    except (ValueError, yaml.YAMLError) as error:
        reason = str(error)
        if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark) is not None:
            location = f"line {mark.line + 1}, column {mark.column + 1}"
            reason = f"{location}: {error.problem}; correct this line or the one above"
        raise ConfigError(f"{source_name} is not valid {kind}: {reason}") from error


class _Loader(yaml.SafeLoader):
    """A safe YAML loader: no duplicate keys, limited aliases."""

    def get_single_node(self) -> yaml.Node | None:
        """Return the tree; ValueError if aliases make it too large."""
        node: yaml.Node | None = super().get_single_node()
        if node is not None and _count_expanded_values(node, {}) > _MAX_VALUES:
            raise ValueError(f"with its aliases expanded, it has more than {_MAX_VALUES:,} values")
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Return the node of a mapping; ValueError for repeated keys."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                raise ValueError(f'the key "{key.value}" occurs twice in one mapping,{key.start_mark}')
            seen.add((key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key))
        return node


def _count_expanded_values(node: yaml.Node, counts: dict[yaml.Node, float]) -> float:
    """Count nodes with aliases expanded; infinite for cycles."""
    if node not in counts:
        counts[node] = math.inf
        parts = node.value if isinstance(node, yaml.CollectionNode) else ()
        children = (child for part in parts for child in (part if isinstance(part, tuple) else (part,)))
        counts[node] = 1 + sum(_count_expanded_values(child, counts) for child in children)
    return counts[node]


def _read_defaults(section: _Section) -> dict[str, dict[str, Any]]:
    """Return the parameters for each type: Ludwig's, replaced by the section's."""
    section.check_keys(tuple(FEATURES))
    defaults = {}
    for kind in FEATURES:
        type_section = section.section(kind)
        type_section.check_keys(("preprocessing",))
        params = _read_parameters(type_section.section("preprocessing"), kind)
        defaults[kind] = {**_LUDWIG_DEFAULTS.get(kind, {}), **params}
    return defaults


def _read_features(
    root: _Section, key: str, defaults: Mapping[str, Mapping[str, Any]] | None
) -> Iterator[tuple[str, Feature]]:
    """Yield name and feature of each entry at `key`, None `defaults`: of outputs; ConfigError for equal names."""
    seen = set()
    for entry in root.entries(key):
        if entry.feature is None:
            raise entry.error("name", f"must be a string, not {entry.values.get('name')!r}; put it in quotes")
        if entry.feature in seen:
            raise entry.error("name", "an earlier feature has the same name: use a separate name for each")
        seen.add(entry.feature)
        kind = _read_type(entry)
        type_defaults = _output_defaults(kind) if defaults is None else defaults[kind]
        yield entry.feature, _read_feature(entry, kind, type_defaults)


def _output_defaults(kind: str) -> dict[str, Any]:
    drop = {"missing_value_strategy": "drop_row"}
    return {**_LUDWIG_DEFAULTS.get(kind, {}), **drop, **_OUTPUT_DEFAULTS.get(kind, {})}


def _read_type(entry: _Section) -> str:
    """Return the type of a feature; ConfigError for unknown types."""
    kind = entry.values.get("type")
    if isinstance(kind, str) and kind in FEATURES:
        return kind
    hint = did_you_mean(kind, USER_KINDS)
    raise entry.error("type", f"no type {kind!r}.{hint} Types are: {', '.join(USER_KINDS)}")


def _read_feature(entry: _Section, kind: str, defaults: Mapping[str, Any]) -> Feature:
    """Return an entry's valid feature; ConfigError with its place."""
    entry.check_keys(FEATURE_KEYS)
    params = {**defaults, **_read_parameters(entry.section("preprocessing"), kind)}
    column = entry.values.get("column")
    params["column"] = None if column == entry.feature else column
    feature_type: Any = FEATURES[kind]
    feature: Feature = feature_type(**params)
    with entry.error_context("preprocessing", _hint(params, annotations_of(feature_type))):
        validate(feature)
    return feature


def _read_parameters(section: _Section, kind: str) -> dict[str, Any]:
    """Return the parameters of a section, dates as text; ConfigError for unknown ones."""
    feature_type: Any = FEATURES[kind]
    names = [name for name in annotations_of(feature_type) if name != "column"]
    section.check_keys(names, {"column": "put it next to name and type"})
    # YAML reads an unquoted 2020-01-31 as a date.
    values = {name: str(value) if isinstance(value, dt.date) else value for name, value in section.values.items()}
    if kind == Embedding.kind and isinstance(values.get("function"), str):
        values["function"] = UntrustedPath(values["function"])  # which is never imported
    return values


def _hint(params: Mapping[str, Any], annotations: Mapping[str, Any]) -> str:
    """Return a hint to quote a text that is a boolean in YAML, or ""."""
    for name, value in params.items():
        if isinstance(value, bool) and bool not in (annotations[name], *get_args(annotations[name])):
            return f" (YAML reads yes, no, on and off as True and False: put {name} in quotes)"
    return ""


def _write_feature(name: str, feature: Feature, type_defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the entry of a feature.

    It has the parameters that differ from the defaults. `type_defaults` replace Ludwig's. ConfigError for types that
    are not in FEATURES.
    """
    if FEATURES.get(feature.kind) is not type(feature):
        raise ConfigError(
            f'feature "{name}": configurations do not support the type {type(feature).__name__}: add it to FEATURES'
        )
    ludwig_defaults = _LUDWIG_DEFAULTS.get(feature.kind, {}) if type_defaults is None else type_defaults
    defaults = {**type(feature)().get_params(deep=False), **ludwig_defaults}
    params = {
        key: to_json_value(value, f'feature "{name}": {key}')
        for key, value in feature.get_params(deep=False).items()
        if type(value) is not type(defaults[key]) or value != defaults[key]
    }
    column = params.pop("column", None)
    entry = {"name": name, "type": feature.kind, "column": column, "preprocessing": params}
    return {key: value for key, value in entry.items() if value not in (None, {})}


def _read_split(preprocessing: _Section) -> Splitter | None:
    """Return the split: RandomSplit() if missing, None if null."""
    if "split" not in preprocessing.values:
        return RandomSplit()
    values = dict(preprocessing.section("split").values)
    if preprocessing.values["split"] is None:
        return None
    kind = values.setdefault("type", "random" if "column" not in values else None)
    for name in ("shares", "probabilities"):
        if isinstance(values.get(name), list):
            values[name] = tuple(values[name])
    if kind == "datetime":
        values.pop("fill_value", None)  # Ludwig accepts this key but ignores it; a missing time raises an error here
    if kind in ("datetime", "time_series") or values.get("time"):
        values.setdefault("divide_times", False)
    with preprocessing.error_context("split"):
        return split_from_dict(values)


def _read_balance(preprocessing: _Section, outputs: Mapping[str, Feature]) -> Balance | None:
    """Return the balance, also of Ludwig's keys; None without, ConfigError for several or no classes."""
    kinds = {"oversample_minority": "oversample", "undersample_majority": "undersample", "balance": None}
    used_keys = [key for key in kinds if preprocessing.values.get(key) is not None]
    if not used_keys:
        return None
    key, *others = used_keys
    if others:
        raise preprocessing.error(others[0], f"contradicts {key}: use one of them")
    balance_parameters = preprocessing.section("balance").values
    with preprocessing.error_context(key):
        if kinds[key] is not None:
            column, ratio = _find_class_column(outputs), preprocessing.values[key]
            balance_parameters = {"type": kinds[key], "column": column, "ratio": ratio}
        return balance_from_dict(balance_parameters)


def _read_sample(preprocessing: _Section) -> dict[str, Any]:
    """Return sample and sample_seed; None for all rows, ConfigError for both keys."""
    ratio, size, seed = (preprocessing.values.get(key) for key in _SAMPLE_KEYS)
    ratio, size = None if ratio == 1 else ratio, size or None  # a ratio of 1 or a size of 0 means all rows
    if None not in (ratio, size):
        raise preprocessing.error("sample_size", "contradicts sample_ratio: use one of them")
    for key, value, kind, maximum in (("sample_ratio", ratio, float, 1), ("sample_size", size, int, math.inf)):
        if value is not None and not (type(value) is kind and 0 < value <= maximum):
            raise preprocessing.error(key, f"must be above 0, a ratio at most 1 and a size an integer, not {value!r}")
    return {"sample": size if ratio is None else ratio, "sample_seed": seed}


def _find_class_column(outputs: Mapping[str, Feature]) -> str:
    """Return the column of the only output of classes, or raise ConfigError."""
    columns = [feature.reads(name)[0] for name, feature in outputs.items() if feature.semantic_type == "classes"]
    if len(columns) != 1:
        raise ConfigError(
            f"needs exactly one output feature of type binary or category, not {len(columns)}: "
            "name the column with balance: {type: oversample, column: ..., ratio: ...}"
        )
    return columns[0]
