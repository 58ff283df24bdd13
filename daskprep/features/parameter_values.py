"""Turn features as users specify them, by name, type or object, into checked copies."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, Self

from daskprep.columns.display import escape_unprintable, join_names
from daskprep.columns.parametrized import OUTPUT, Estimator, clone
from daskprep.errors import ConfigError, did_you_mean, is_valid_utf8, warn
from daskprep.features import FEATURES, USER_KINDS, Feature, Key, TargetEncoding, Weight
from daskprep.features.base import all_outputs, cross_fit_folds, keeps_missing, validate
from daskprep.features.checking import column_error_context
from daskprep.features.feature import FrameOutput
from daskprep.sources.split import Splitter
from daskprep.storage.arrays import ROW_ID


def make_features(
    feature_specs: Any, targets: Collection[str], weight: str | None = None, keys: Collection[str] = ()
) -> dict[str, Feature]:
    """Return checked copies of features by name, with the weight and the keys.

    Raise ConfigError for invalid features, outputs, targets or weights. `feature_specs` are objects, types or names.
    """
    if not isinstance(feature_specs, Mapping) or not feature_specs:
        is_frame = hasattr(feature_specs, "columns")
        passed = f"a {type(feature_specs).__name__}; pass the rows to fit" if is_frame else repr(feature_specs)
        raise ConfigError(
            'Preprocessor: features must be a dict of features by name, such as {"price": "number"}, or "auto", '
            f"not {passed}"
        )
    features = {name: make_feature(name, feature) for name, feature in feature_specs.items()}
    if weight is not None:
        if not isinstance(weight, str):
            raise ConfigError(f"Preprocessor: weight={weight!r}: expected the name of a column of numbers")
        if weight in features:
            raise ConfigError(
                f"Preprocessor: weight={weight!r} must name a column of numbers that is not a feature: rename the "
                f'feature, for example to "{weight}_feature" with column={weight!r}'
            )
        features[weight] = Weight()
    if isinstance(keys, str) or not all(isinstance(name, str) for name in keys):
        raise ConfigError(f"Preprocessor: keys={keys!r}: expected a list of names of columns")
    for name in keys:
        if name in features:
            raise ConfigError(
                f'Preprocessor: keys: "{name}" is a feature or the weight: rename the feature, for example to '
                f'"{name}_feature" with column="{name}"'
            )
        features[name] = Key()
    for target in filter(features.__contains__, targets):
        features[target]._configure_as_target()
    for name, feature in features.items():
        with column_error_context(name):
            validate(feature)
    check_outputs(features)
    _check_targets(targets, features)
    return features


def check_outputs(features: Mapping[str, Feature]) -> None:
    """Raise ConfigError for two features with one output, or an invalid name."""
    outputs: dict[str, str] = {}
    for name, feature in features.items():
        if not is_valid_utf8(name):
            raise ConfigError(f"the name of a feature, {name!r}, has half of a surrogate pair: pass another name")
        for suffix in all_outputs(feature):
            output = name + suffix
            if output in outputs:
                raise ConfigError(
                    f'features "{outputs[output]}" and "{name}" both return "{output}": pass one of them under another '
                    f'name, such as "{name}_2" with column="{name}"'
                )
            if output == ROW_ID.name or output.startswith("\0"):  # as internal columns
                raise ConfigError(
                    f'a feature is called "{escape_unprintable(output)}", the name of a column that writes add: pass '
                    "it under another name, with column= for its column"
                )
            outputs[output] = name


def match_folds_to_split(
    features: Mapping[str, Feature], split: Splitter | None, fit_on: str = "train"
) -> dict[str, Feature]:
    """Return all features, with the folds of target encodings matched to the split, and warn of each change.

    Raise ConfigError if a feature cross-fits, there is a split, and fit_on="all".
    """
    cross_fitted = list(cross_fit_folds(features))
    if cross_fitted and fit_on == "all" and split is not None:
        raise ConfigError(
            f'feature "{cross_fitted[0]}" would encode validation rows by their own targets: use fit_on="train"'
        )
    folded, names_by_warning = dict(features), dict[str, list[str]]()
    for name, feature in features.items():
        if isinstance(feature, TargetEncoding):
            folded[name], warning = feature.match_folds_to_split(split)
            if warning is not None:
                names_by_warning.setdefault(warning, []).append(f'"{name}"')
    for warning, names in names_by_warning.items():
        warn(f"feature{'s' * (len(names) > 1)} {join_names(names, 5)}: {warning}")
    return folded


def _check_targets(targets: Collection[str], features: Mapping[str, Feature]) -> None:
    """Raise ConfigError for targets that are no features or may have missing labels."""
    for name in targets:
        if name not in features:
            raise ConfigError(
                f'Preprocessor: targets: no feature "{name}".{did_you_mean(name, features)} Targets '
                "are features too: add it to features, or in a pipeline of scikit-learn, where the model receives y, "
                "leave out targets"
            )
        if keeps_missing(features[name]):
            raise ConfigError(
                f'target "{name}": missing_value_strategy="keep" would train on missing labels: use "drop_row"'
            )


def make_feature(name: str, feature: Any) -> Feature:
    """Return a new feature from an object, a type or a name; ConfigError for others."""
    if not isinstance(name, str):
        raise ConfigError(f"Preprocessor: features are named by strings, not {name!r}: use {str(name)!r}")
    if isinstance(feature, str):
        if feature not in FEATURES:
            raise ConfigError(
                f'feature "{name}": no type "{feature}".{did_you_mean(feature, USER_KINDS)} '
                f"Types are: {', '.join(USER_KINDS)}"
            )
        return FEATURES[feature]()
    if isinstance(feature, type) and issubclass(feature, Feature):
        return feature()
    if isinstance(feature, Feature):
        copy: Feature = clone(feature)
        return copy
    raise ConfigError(
        f'feature "{name}" must be a feature such as Number() or the name of a type, not {feature!r}.'
        f"{did_you_mean(getattr(feature, '__name__', ''), USER_KINDS)}"
    )


class FeatureParams(FrameOutput):
    """Parameters of a Preprocessor and of its features."""

    features: Mapping[str, Any] | Literal["auto"]
    split: Any
    balance: Any

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return parameters, with `deep` also parameters of features."""
        params: dict[str, Any] = super().get_params(deep=False)
        if deep:
            nested = {**self._feature_specs, "split": self.split, "balance": self.balance}
            for name, owner in nested.items():
                if isinstance(owner, Estimator):
                    params[name] = owner
                    params |= {f"{name}__{key}": value for key, value in owner.get_params(deep=True).items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters; ``city__most_common`` is one of "city"; ConfigError for unknown ones."""
        for key, value in params.items():
            owner, _, nested = key.rpartition("__")
            feature_specs = self._feature_specs
            if isinstance(feature_specs.get(owner), str):
                # A type specified by name has parameters only after it is turned into a feature.
                self.features = {**feature_specs, owner: make_feature(owner, feature_specs[owner])}
            parameters = self.get_params(deep=True)
            if key not in parameters and key not in feature_specs:
                made = {name: make_feature(name, one) for name, one in feature_specs.items() if isinstance(one, str)}
                nested_names = [f"{name}__{one}" for name, feature in made.items() for one in feature.get_params()]
                hint = did_you_mean(key, [*parameters, *nested_names])
                if nested and self.features == "auto" and owner not in parameters:
                    hint = ' features="auto" has no features to set: pass Preprocessor(dict(infer_features(frame)))'
                raise ConfigError(f'Preprocessor has no parameter "{key}".{hint}')
            if key in super().get_params(deep=False):
                setattr(self, key, value)
            elif key in feature_specs:
                self.features = {**feature_specs, key: value}
            else:
                parameters[owner].set_params(**{nested: value})
        return self

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy, with cloned features."""
        features: Any = self.features
        if isinstance(features, Mapping):
            features = {name: clone(value) if isinstance(value, Feature) else value for name, value in features.items()}
        parameters = {name: clone(value) for name, value in self.get_params(deep=False).items()}
        del parameters["features"]
        copy = type(self)(features, **parameters)
        return copy.set_output(**getattr(self, OUTPUT, {}))

    @property
    def _feature_specs(self) -> dict[str, Any]:
        """The features as specified by name; empty for "auto"."""
        return dict(self.features) if isinstance(self.features, Mapping) else {}
