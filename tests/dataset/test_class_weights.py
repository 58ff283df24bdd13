from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

import daskprep as dp
from daskprep.errors import ConfigError

FRAME = pd.DataFrame(
    {
        "kind": ["a"] * 60 + ["b"] * 25 + ["c"] * 10 + ["d"] * 4 + [None],
        "sold": ["no"] * 90 + ["yes"] * 10,
        "price": np.arange(100.0),
    }
)


def theirs(column: str) -> np.ndarray:
    cells = FRAME[column].fillna("<UNK>")
    return compute_class_weight("balanced", classes=np.array(cells.unique(), object), y=cells)


@pytest.fixture
def fitted(tmp_path):
    prep = dp.Preprocessor(
        {"kind": dp.Category(handle_unknown="unk"), "sold": "binary", "price": "number"}, targets=["kind", "sold"]
    )
    with pytest.warns(UserWarning, match="labels are missing"):
        return prep, prep.fit_write(FRAME, tmp_path / "d", progress=False)


def test_class_weights_equal_scikit_learn(fitted):
    prep, dataset = fitted
    *kinds, unknown = theirs("kind").astype(np.float32)
    assert dataset.class_weights("kind").tolist() == [unknown, *kinds]
    assert prep.class_weights("kind").tolist() == [unknown, *kinds]
    sold = dataset.class_weights("sold")
    assert sold.tolist() == theirs("sold").astype(np.float32).tolist() == prep.class_weights("sold").tolist()
    assert sold[1] / sold[0] == pytest.approx(9.0)  # pos_weight


def test_cross_entropy_loss_accepts_class_weights(fitted):
    _, dataset = fitted
    weights = torch.from_numpy(dataset.class_weights("kind"))
    ids = dataset["train"].read("kind")["kind"].astype(np.int64)
    loss = torch.nn.CrossEntropyLoss(weight=weights, reduction="none")(torch.zeros(100, 5), torch.from_numpy(ids))
    by_class = np.bincount(ids, loss.numpy(), 5)
    np.testing.assert_allclose(by_class, by_class[0], rtol=1e-5)


def test_classes_without_rows_have_weight_0():
    prep = dp.Preprocessor({"kind": dp.Category(order=["a", "b", "z"])}).fit(FRAME[["kind"]][:80])
    assert prep.class_weights("kind").tolist() == [0.0, np.float32(80 / 120), 2.0, 0.0]


def test_rare_values_count_as_unknown():
    prep = dp.Preprocessor({"kind": dp.Category(most_common=1)}).fit(FRAME)
    assert prep.class_weights("kind").tolist() == pytest.approx([100 / 80, 100 / 120])


def test_features_without_classes_raise(fitted):
    prep, dataset = fitted
    with pytest.raises(ConfigError, match='"price" is a number'):
        dataset.class_weights("price")
    for name in ("price", "other"):
        with pytest.raises(ConfigError, match="class_weights of a dataset"):
            prep.class_weights(name)


@pytest.mark.filterwarnings("ignore:column .sold.")
@pytest.mark.parametrize(
    "strategy", ["fill_with_false", "fill_with_true", "fill_with_mode", "fill_with_const", "drop_row"]
)
@pytest.mark.parametrize("cells", [["no", "yes", None, "maybe"], ["-1", "0.5", "", "7"], ["yes", None]])
def test_fit_counts_the_labels_of_the_dataset(strategy, cells, tmp_path):
    labels = np.random.default_rng(0).choice(np.array(cells, object), 500)
    true = "yes" if "yes" in cells else None
    fill = "yes" if strategy == "fill_with_const" else None
    sold = dp.Binary(positive=true, missing_value_strategy=strategy, fill_value=fill)
    prep = dp.Preprocessor({"sold": sold}, split=dp.RandomSplit(seed=1))
    dataset = prep.fit_write(pd.DataFrame({"sold": labels}), tmp_path / "d", progress=False)
    for fitted in (prep, dp.Preprocessor.from_dict(prep.to_dict())):
        assert fitted.class_weights("sold").tolist() == dataset.class_weights("sold").tolist()


def test_ffilled_labels_are_counted_only_in_a_dataset(tmp_path):
    prep = dp.Preprocessor({"sold": dp.Binary(missing_value_strategy="ffill")})
    dataset = prep.fit_write(pd.DataFrame({"sold": ["yes", None, "no"]}), tmp_path / "d", progress=False)
    assert dataset.class_weights("sold").tolist() == [1.5, 0.75]
    with pytest.raises(ConfigError, match="not filled by neighbours"):
        prep.class_weights("sold")
