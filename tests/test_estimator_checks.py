"""Every type and a Preprocessor are scikit-learn transformers; the one expected failure has its reason here."""

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


# The same reasons are in docs/scikit-learn.md.
EXPECTED_FAILURES = {
    "check_fit2d_1sample": '"auto" leaves out constant columns, as all columns of one row are; the error names them',
}
PREPROCESSORS = [
    dp.Preprocessor("auto"),
    dp.Preprocessor({"x0": "number"}),
    dp.Preprocessor({"x0": dp.Category(), "x0_bins": dp.Number(column="x0", encoding="bins")}),
]


@parametrize_with_checks(
    PREPROCESSORS, expected_failed_checks=lambda prep: EXPECTED_FAILURES if prep.features == "auto" else {}
)
def test_scikit_learn_contract_of_a_preprocessor(estimator, check):
    check(estimator)
