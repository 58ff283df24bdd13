"""Features as they are given, by name or as they are, made ready for use."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sklearn.base import clone

from daskprep.errors import ConfigError, did_you_mean
from daskprep.features import FEATURES, Feature
from daskprep.features.base import all_outputs, validate
from daskprep.features.table import naming


def made_features(given: Mapping[str, Any], targets: Collection[str]) -> dict[str, Feature]:
    """Return fresh features that were checked; ConfigError where one, an output or a target makes no sense."""
    features = {name: make_feature(name, feature) for name, feature in given.items()}
    outputs: dict[str, str] = {}
    for name, feature in features.items():
        with naming(name):
            validate(feature)
        for output in all_outputs(feature):
            if name + output in outputs:
                raise ConfigError(f'features "{outputs[name + output]}" and "{name}" both give "{name + output}"')
            outputs[name + output] = name
    for name in targets:
        if name not in features:
            raise ConfigError(
                f'Preprocessor: targets: there is no feature "{name}".{did_you_mean(name, features)} Targets '
                "are features too: add it to features"
            )
    return features


def make_feature(name: str, feature: Any) -> Feature:
    """Return a fresh feature for a feature, a feature type or the name of one."""
    if not isinstance(name, str):
        raise ConfigError(f"Preprocessor: features are named by strings, not {name!r}: use {str(name)!r}")
    if isinstance(feature, str):
        if feature not in FEATURES:
            raise ConfigError(
                f'feature "{name}": there is no type "{feature}".{did_you_mean(feature, FEATURES)} '
                f"Types are: {', '.join(FEATURES)}"
            )
        return FEATURES[feature]()
    if isinstance(feature, type) and issubclass(feature, Feature):
        return feature()
    if isinstance(feature, Feature):
        copy: Feature = clone(feature)
        return copy
    raise ConfigError(f'feature "{name}" must be a feature such as Number() or the name of a type, not {feature!r}')
