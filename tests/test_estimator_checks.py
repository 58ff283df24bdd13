"""Every type is a scikit-learn transformer, with no expected failures."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import daskprep as dp
from daskprep.features import FEATURES, Weight
from daskprep.features.media import MediaFeature

# Random numbers make odd columns for some types, and these say so.
pytestmark = pytest.mark.filterwarnings(
    "ignore:(column|each of the columns) .* (cannot be read|is constant|has all its dates on|holds more than two)"
)


# Media are left out: the checks fit numbers and short words, which are no media and no paths of any.
# A target encoding needs the column of its target, which a transformer is not given; weights are of a Preprocessor.
TRANSFORMERS = [one for one in FEATURES.values() if not issubclass(one, (MediaFeature, dp.TargetEncoding, Weight))]


@parametrize_with_checks([feature() for feature in TRANSFORMERS] + [dp.TargetEncoding(encoding="count")])
def test_scikit_learn_contract(estimator, check):
    check(estimator)
