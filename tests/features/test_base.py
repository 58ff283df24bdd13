"""What the base of all types holds a type to when its class is made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import pyarrow.compute as pc
import pytest
from sklearn.base import BaseEstimator, TransformerMixin

import daskprep as dp
from daskprep.errors import ConfigError
from daskprep.features import Learned
from daskprep.features.media import MediaFeature
from daskprep.summaries import Range


def made(base, name, **attributes):
    """Make a type that takes one parameter of a given name."""
    space = {}
    exec(f"def __init__(self, *, {name}=None):\n    self.{name} = {name}", space)
    return type("Mine", (base,), {"__init__": space["__init__"], **attributes})


@pytest.mark.parametrize("name", ["cells", "decode", "learn", "outputs", "kind", "fit", "get_params"])
def test_a_parameter_hides_nothing_that_the_package_uses(name):
    with pytest.raises(TypeError, match=rf'Mine: the parameter "{name}" of __init__ hides \w+\.{name},'):
        made(dp.Feature, name)


def test_a_parameter_hides_nothing_of_its_family_or_itself():
    with pytest.raises(TypeError, match='"decoder" of __init__ hides MediaFeature.decoder'):
        made(MediaFeature, "decoder")
    for hook in (property, cached_property, staticmethod):
        with pytest.raises(TypeError, match='"shift" of __init__ hides Mine.shift'):
            made(dp.Feature, "shift", shift=hook(lambda self: 0))


def test_other_names_are_free_and_so_are_defaults_of_a_family():
    assert made(dp.Feature, "mode")(mode=3).mode == 3
    family = made(dp.Feature, "other", shift=2)
    assert made(family, "shift")(shift=3).shift == 3


# -- names of the release before


def old_type():
    class Old(dp.Number):
        kind = "old"

        def mean(self, summary):
            return 7.0

        @property
        def may_drop_rows(self):
            return True

        def dropped(self, parsed, learned):
            return pc.fill_null(pc.equal(parsed, 5), False).to_numpy(zero_copy_only=False)

    return Old


def test_hooks_by_their_former_names_go_on_with_a_warning():
    with pytest.warns(
        DeprecationWarning, match=r"Old\.(mean: define learn_fill|(dropped|may_drop_rows): define drops)"
    ):
        old = old_type()(normalization=None, missing_value_strategy="fill_with_mean")
    frame = pd.DataFrame({"x": [1.0, None, 5.0]})
    prep = dp.Preprocessor({"x": old}, split=None).fit(frame)
    assert prep.encode(frame)["x"].tolist() == [1.0, 7.0, 5.0]
    assert prep.assign(frame)["split"].tolist() == [0, 0, 255]


def test_a_fill_by_its_former_name_goes_on_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"Shouting\.fill_from_cell: define learn_fill"):

        class Shouting(dp.Category):
            def fill_from_cell(self, cell):
                return cell.upper()

    learned = Shouting(missing_value_strategy="fill_with_mode").fit(pd.DataFrame({"x": ["a", None]})).learned_["x"]
    assert learned.fill_value == "A"


def test_what_was_a_method_can_be_called_with_a_warning():
    with pytest.warns(DeprecationWarning, match="check_parameters"), pytest.raises(ConfigError, match="outlier"):
        dp.Number(outlier_threshold=-1).check_parameters()
    with pytest.warns(DeprecationWarning, match="may_drop_rows"):
        assert dp.Number(missing_value_strategy="drop_row").may_drop_rows
    with pytest.raises(AttributeError, match="Number has no attribute 'encodes'"):
        dp.Number().encodes  # noqa: B018


def test_the_contract_is_small():
    mixins = {name for base in (TransformerMixin, BaseEstimator) for name in dir(base)}
    estimator = {"fit", "transform", "get_feature_names_out"}
    names = {name for name in dir(dp.Feature) if not name.startswith("_")} - mixins - estimator
    assert len(names) <= 20


def test_what_a_type_learns_follows_from_its_parameters():
    @dataclass(frozen=True, kw_only=True)
    class LearnedLength(Learned):
        longest: int = 0

    class Length(dp.Feature[Range, LearnedLength]):
        kind = "length"

    class Wide(Length):
        pass

    assert Length.learned_type is Wide.learned_type is LearnedLength
    assert dp.Feature.learned_type is Learned
