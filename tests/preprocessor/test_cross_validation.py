"""The state without each fold, learned in one pass, equals a fit on the other rows."""

from __future__ import annotations

import json

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.errors import ConfigError
from tests.preprocessor.test_invariance import FRAMES, for_every_frame, preprocessor, table  # noqa: F401 a fixture

K = 4
FOLDS = {
    "rows": dp.KFold(K, seed=1),
    "classes": dp.KFold(K, stratify="city"),
    "groups": dp.KFold(K, group="code"),
    "time": dp.KFold(K, time="when"),
}


def states(prep) -> list[str]:
    """Return the learned state of all rows, and without each fold."""
    return [json.dumps(one.to_dict()["features"]) for one in (prep, *map(prep.fold, range(K)))]


def with_split(frame, folds, fold):
    return frame.assign(split=np.where(folds == fold, "validation", "train"))


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDS)
def test_fold_state_equals_fit_on_the_other_rows(table, fitted, name):  # noqa: F811
    folds, prep = FOLDS[name], fitted[name]
    whole, *without = states(prep)
    assert whole == json.dumps(preprocessor().fit(table).to_dict()["features"])
    assert len(set(without)) == K
    assigned = prep.assign(table)["split"]
    for fold, state in enumerate(without):
        alone = preprocessor(split=dp.FixedSplit()).fit(with_split(table, assigned, fold))
        assert state == json.dumps(alone.to_dict()["features"])
        one = preprocessor(split=folds.__class__(**{**folds.get_params(), "fold": fold})).fit(table)
        assert one.to_dict() == prep.fold(fold).to_dict()
        expected = np.select([assigned == 255, assigned == fold], [255, 1], 0)
        np.testing.assert_array_equal(prep.fold(fold).assign(table)["split"], expected)


@pytest.fixture(scope="module")
def fitted(table) -> dict[str, dp.Preprocessor]:  # noqa: F811
    return {name: preprocessor(split=folds).fit(table) for name, folds in FOLDS.items()}


@pytest.mark.slow
@for_every_frame
def test_states_do_not_depend_on_partitions(table, fitted, frame):  # noqa: F811
    for name, expected in fitted.items():
        prep = preprocessor(split=FOLDS[name]).fit(FRAMES[frame](table))
        assert states(prep) == states(expected)
        found = dask.compute(prep.assign(FRAMES[frame](table)))[0]
        np.testing.assert_array_equal(found["split"], expected.assign(table)["split"])


@pytest.mark.parametrize("scheduler", ["sync", pytest.param("processes", marks=pytest.mark.slow)])
def test_states_do_not_depend_on_the_scheduler(table, fitted, scheduler):  # noqa: F811
    expected = states(fitted["classes"])
    with dask.config.set(scheduler=scheduler):
        assert states(preprocessor(split=FOLDS["classes"]).fit(dd.from_pandas(table, npartitions=5))) == expected


@pytest.mark.slow
@pytest.mark.cluster
def test_states_are_the_same_on_a_cluster(cluster, table, fitted):  # noqa: F811
    frame = dd.from_pandas(table, npartitions=5)
    for name, expected in fitted.items():
        assert states(preprocessor(split=FOLDS[name]).fit(frame)) == states(expected)


@pytest.mark.slow
def test_spilled_counts_do_not_change_states(table, fitted, tmp_path, sizes):  # noqa: F811
    expected = states(fitted["rows"])
    sizes(spill_entries=3)
    prep = preprocessor(split=FOLDS["rows"], scratch=str(tmp_path)).fit(dd.from_pandas(table, npartitions=12))
    assert states(prep) == expected
    assert list(tmp_path.iterdir()) == []


def test_out_of_fold_states_exclude_the_rows_of_the_fold():
    frame = pd.DataFrame({"price": [1.0, 2.0, 3.0, 100.0]})
    prep = dp.Preprocessor({"price": "number"}, split=dp.KFold(2, time="day")).fit(
        frame.assign(day=pd.date_range("2024-01-01", periods=4))
    )
    assert [prep.fold(fold).learned_["price"].mean for fold in (0, 1)] == [51.5, 1.5]
    assert prep.learned_["price"].mean == 26.5
    assert prep.fold(1).encode(frame)["price"].shape == (4,)


def test_missing_fold_state_raises():
    frame = pd.DataFrame({"price": [1.0, 2.0, 3.0]})
    with pytest.raises(ConfigError, match=r"no state without fold 0: use split=KFold\(5\)"):
        dp.Preprocessor({"price": "number"}).fit(frame).fold(0)
    prep = dp.Preprocessor({"price": "number"}, split=dp.KFold(3)).fit(frame)
    for number in (3, -1):
        with pytest.raises(ConfigError, match=f"no state without fold {number}: the folds are 0 to 2"):
            prep.fold(number)
    with pytest.raises(ConfigError, match='fit_on="train": use that, or pass it fold=0'):
        dp.Preprocessor({"price": "number"}, split=dp.KFold(3), fit_on="all").fit(frame)
