"""Checks of the base class when a type is defined."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cached_property

import pandas as pd
import pytest
from sklearn.base import BaseEstimator, TransformerMixin

import daskprep as dp
from daskprep.columns.summaries import Range
from daskprep.errors import ConfigError, DaskprepError
from daskprep.features import Learned
from daskprep.features.media import MediaFeature


def made(base, name, **attributes):
    """Return a type with one parameter of a given name."""
    space = {}
    exec(f"def __init__(self, *, {name}=None):\n    self.{name} = {name}", space)
    return type("Mine", (base,), {"__init__": space["__init__"], **attributes})


@pytest.mark.parametrize("name", ["cells", "decode", "learn", "outputs", "kind", "fit", "get_params"])
def test_parameter_hiding_a_feature_attribute_raises(name):
    with pytest.raises(TypeError, match=rf'Mine: the parameter "{name}" of __init__ hides \w+\.{name},'):
        made(dp.Feature, name)


def test_parameter_hiding_a_base_or_own_attribute_raises():
    with pytest.raises(TypeError, match='"decoder" of __init__ hides MediaFeature.decoder'):
        made(MediaFeature, "decoder")
    for hook in (property, cached_property, staticmethod):
        with pytest.raises(TypeError, match='"shift" of __init__ hides Mine.shift'):
            made(dp.Feature, "shift", shift=hook(lambda self: 0))


def test_other_parameter_names_are_allowed():
    assert made(dp.Feature, "mode")(mode=3).mode == 3
    family = made(dp.Feature, "other", shift=2)
    assert made(family, "shift")(shift=3).shift == 3


def test_feature_has_at_most_20_public_attributes():
    mixins = {name for base in (TransformerMixin, BaseEstimator) for name in dir(base)}
    estimator = {"fit", "transform", "inverse_transform", "get_feature_names_out"}
    names = {name for name in dir(dp.Feature) if not name.startswith("_")} - mixins - estimator
    names -= {field.name for field in fields(dp.Feature)}
    assert len(names) <= 20


def test_learned_type_is_inferred_from_type_arguments():
    @dataclass(frozen=True, kw_only=True)
    class LearnedLength(Learned):
        longest: int = 0

    class Length(dp.Feature[Range, LearnedLength]):
        kind = "length"

    class Wide(Length):
        pass

    assert Length.learned_type is Wide.learned_type is LearnedLength
    assert dp.Feature.learned_type is Learned


@dataclass(kw_only=True, eq=False, repr=False)
class Shouted(dp.Text):
    """A dataclass whose base is defined in another module, so that its annotations cannot be resolved here."""

    loud: bool = True


@pytest.mark.parametrize(("given", "named"), [({"most_common": 0}, "at least 1"), ({"loud": 1}, "True or False")])
def test_dataclass_and_base_parameters_are_validated(given, named):
    with pytest.raises(ConfigError, match=named):
        Shouted(**given).fit(pd.DataFrame({"a": ["b c"]}))


@pytest.mark.parametrize(
    ("feature", "fill_value", "why"),
    [
        (dp.Number, 10**400, "A 64-bit float cannot hold it"),
        (dp.Vector, 10**400, "A 64-bit float cannot hold it"),
        (dp.Category, "\ud800", "has half of a surrogate pair"),
    ],
)
def test_invalid_fill_value_raises(feature, fill_value, why):
    frame = pd.DataFrame({"a": ["1", "2", None]})
    with pytest.raises(ConfigError, match=f"fill_value.{{,200}}{why}"):
        feature(fill_value=fill_value).fit(frame)


def test_altered_learned_fill_value_raises(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0, None]})
    state = dp.Preprocessor({"a": dp.Number(missing_value_strategy="fill_with_mean")}).fit(frame).to_dict()
    state["features"]["a"]["learned"]["fill_value"] = 10**400
    (tmp_path / "saved.json").write_text(json.dumps(state))
    with pytest.raises(DaskprepError, match='"a".*too large'):
        dp.Preprocessor.load(tmp_path / "saved.json").encode(frame)


def test_altered_learned_fill_value_of_both_levels_raises(tmp_path):
    frame = pd.DataFrame({"a": ["b c", None]})
    state = dp.Preprocessor({"a": dp.Text(level="both", missing_value_strategy="fill_with_mode")}).fit(frame).to_dict()
    state["features"]["a"]["learned"]["fill_value"] = {"char": "a"}
    (tmp_path / "saved.json").write_text(json.dumps(state))
    with pytest.raises(DaskprepError, match='"a".*must be one text, or have word and char'):
        dp.Preprocessor.load(tmp_path / "saved.json").encode(frame)
