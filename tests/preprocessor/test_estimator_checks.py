"""Every type and a Preprocessor are scikit-learn transformers; expected failures have their reasons here."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import daskprep as dp
from daskprep.features import FEATURES, Key, Weight
from daskprep.features.base import cross_fit_folds, learners_from_y
from daskprep.features.media import MediaFeature

# Random numbers are unusual columns for some types, which warn.
pytestmark = pytest.mark.filterwarnings(
    "ignore:(column|each of the columns) .* (cannot be read|is constant|has all its dates on|holds more than two)"
)


# Media are omitted: the checks fit numbers and short words, which are neither media nor paths of them.
# Weights, keys, boxes and keypoints are of a Preprocessor. Embeddings need a function.
NO_TRANSFORMERS = (MediaFeature, Weight, Key, dp.Boxes, dp.Keypoints, dp.Embedding)
TRANSFORMERS = [one for one in FEATURES.values() if not issubclass(one, NO_TRANSFORMERS)]
FEATURES_OF_Y = {"x0": dp.TargetEncoding(), "bins": dp.Number(column="x0", encoding="bins", bin_strategy="target")}
PREPROCESSORS = [
    dp.Preprocessor("auto"),
    dp.Preprocessor({"x0": "number"}),
    dp.Preprocessor({"x0": dp.Category(), "bins": dp.Number(column="x0", encoding="bins")}),
    dp.Preprocessor(FEATURES_OF_Y),
]
SMALL = {dp.TextComponents: {"size": 3}}  # 30 components of random words take seconds
ESTIMATORS = [one(**SMALL.get(one, {})) for one in TRANSFORMERS]
ESTIMATORS += [dp.TargetEncoding(encoding="count"), *PREPROCESSORS]


def expected_failed_checks(estimator):
    """Return the reason why a check fails by its name, as docs/scikit-learn.md lists them too."""
    features = getattr(estimator, "features", {"": estimator})
    if features == "auto":
        return {
            "check_fit2d_1sample": "all columns of one row are constant, which the error names: auto leaves them out"
        }
    if isinstance(estimator, dp.History):
        reason = "the history of a row depends on the rows before it"
        return dict.fromkeys(("check_methods_sample_order_invariance", "check_methods_subset_invariance"), reason)
    if learners_from_y(features) and cross_fit_folds(features):
        return {"check_fit2d_1sample": "one row is too few for folds, which the error names"}
    return {}


QUICK = (dp.Number, dp.Category, dp.Text, dp.Date, dp.Preprocessor)


@parametrize_with_checks(
    [one for one in ESTIMATORS if isinstance(one, QUICK)], expected_failed_checks=expected_failed_checks
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [one for one in ESTIMATORS if not isinstance(one, QUICK)], expected_failed_checks=expected_failed_checks
)
def test_scikit_learn_contract_of_other_types(estimator, check):
    check(estimator)
