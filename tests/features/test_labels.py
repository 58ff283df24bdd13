"""Labels of targets: ids without <UNK>, unknown and missing ones, the positive one, and declared names."""

from __future__ import annotations

import dask.dataframe as dd
import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import daskprep as dp
from daskprep import serving
from daskprep.errors import ColumnError, ConfigError, RejectedValueError, UnfilledCellError

FRAME = pd.DataFrame({"x": np.arange(6.0), "kind": ["b", "a", "b", "c", "b", "a"]})


def prep_of(kind: object = "category", split: object = None) -> dp.Preprocessor:
    return dp.Preprocessor({"x": "number", "kind": kind}, targets="kind", split=split)


@settings(max_examples=40, deadline=None)
@given(labels=st.lists(st.sampled_from(["a", "b", "", "<UNK>", "é", "1", "-2"]), min_size=1, max_size=30))
def test_target_classes_are_numbered_from_0_and_decode(labels):
    frame = pd.DataFrame({"x": 0.0, "kind": pd.Series(labels)})
    prep = dp.Preprocessor({"kind": dp.Category()}, targets="kind").fit(frame)
    ids = prep.encode(frame)["kind"]
    count = len(set(labels))
    assert prep.num_classes("kind") == count
    assert sorted(set(ids.tolist())) == list(range(count))
    assert prep.decode({"kind": ids})["kind"].tolist() == labels
    encoder = serving.Encoder(prep.to_dict())
    assert encoder.encode([{"kind": label} for label in labels])["kind"].tolist() == ids.tolist()


def test_input_keeps_the_id_of_unknown_values():
    prep = dp.Preprocessor({"kind": "category"}).fit(FRAME)
    assert prep.encode({"kind": "z"})["kind"].tolist() == [0]
    assert prep.num_classes("kind") == 4


def test_unknown_labels_raise_with_their_count(as_frame):
    prep = prep_of().fit(as_frame(FRAME))
    other = pd.DataFrame({"x": np.zeros(4), "kind": ["a", "q", "z", "q"]})
    with pytest.raises(RejectedValueError, match=r'"kind": 3 of 4 rows hold labels that no training row has: q, z'):
        prep.encode(other)
    with pytest.raises(RejectedValueError, match="'q' is a label that no training row has"):
        serving.Encoder(prep.to_dict()).encode({"x": 1.0, "kind": "q"})


def test_unknown_labels_are_dropped_with_drop_row(tmp_path):
    prep = prep_of(dp.Category(handle_unknown="drop_row")).fit(FRAME)
    other = pd.DataFrame({"x": np.zeros(3), "kind": ["a", "q", "b"]})
    dataset = prep.write(other, tmp_path / "d", progress=False)
    assert dataset["train"].read("kind")["kind"].tolist() == [1, 0]
    assert dataset.rejects().to_pylist()[0]["row_id"] == 1
    with pytest.warns(UserWarning, match='1 of 3 rows are left out, because a cell of "kind" is missing or unusable'):
        assert [len(batch[1]) for batch in prep.stream(other, 2)] == [2]
    with pytest.raises(RejectedValueError, match="1 of 3 rows"):
        prep.encode(other)


def test_unknown_validation_label_raises_and_writes_no_dataset(tmp_path):
    rows = {"train": FRAME, "validation": FRAME.assign(kind="new")}
    with pytest.raises(RejectedValueError, match="6 of 6 rows hold labels that no training row has: new"):
        prep_of().fit_write(rows, tmp_path / "d", progress=False)
    assert not (tmp_path / "d" / "manifest.json").exists()


def test_training_labels_beyond_the_vocabulary_raise():
    with pytest.raises(ColumnError, match="has 3 training rows with labels beyond the 1 that order, most_common"):
        prep_of(dp.Category(most_common=1)).fit(FRAME)


def test_rows_without_label_are_dropped_with_a_warning(tmp_path):
    frame = FRAME.assign(kind=[None, "a", "b", "c", "b", "a"])
    with pytest.warns(
        UserWarning, match=r'"kind": 1 row \(16.7 %\) without a readable label left out: rejects\(\) lists these rows'
    ):
        dataset = prep_of().fit_write(frame, tmp_path / "d", progress=False)
    assert len(dataset["train"]) == 5
    assert dataset.num_classes("kind") == dataset["train"].num_classes("kind") == 3
    with pytest.warns(UserWarning, match='the rows are encoded without "kind": some have no label'):
        assert "kind" not in dp.Preprocessor.from_dataset(dataset).encode(frame)


def test_lazy_inputs_do_not_depend_on_missing_labels():
    frame = FRAME.assign(kind=[None, "a", "b", "c", "b", "a"])
    prep = prep_of().fit(FRAME)
    arrays = prep.encode(dd.from_pandas(frame, npartitions=2))
    np.testing.assert_array_equal(np.asarray(arrays["x"]), prep.encode(FRAME)["x"])
    with pytest.raises(UnfilledCellError, match="1 cells are missing"):
        arrays["kind"].compute()
    np.testing.assert_array_equal(arrays["kind"].blocks[1].compute(), prep.encode(FRAME)["kind"][3:])


def test_handle_unknown_unk_keeps_a_class_for_unknown_labels():
    prep = prep_of(dp.Category(handle_unknown="unk")).fit(FRAME)
    assert prep.encode({"x": 1.0, "kind": "q"})["kind"].tolist() == [0]
    config = {"input_features": [{"name": "x", "type": "number"}]}
    config["output_features"] = [{"name": "kind", "type": "category"}]
    read = dp.Preprocessor.from_config(config | {"preprocessing": {"split": None}}).fit(FRAME)
    assert read.num_classes("kind") == 4
    assert dp.Preprocessor.from_config(prep_of().to_config()).features["kind"].handle_unknown == "error"


def test_states_without_handle_unknown_keep_the_unknown_class():
    prep = prep_of(dp.Category(handle_unknown="unk")).fit(FRAME)
    state = prep.to_dict()
    assert "handle_unknown" not in state["features"]["kind"]["params"]
    loaded = dp.Preprocessor.from_dict(state)
    assert loaded.encode({"x": 1.0, "kind": "q"})["kind"].tolist() == [0]
    assert loaded.to_dict() == state


def test_hash_buckets_with_handle_unknown_error_raise():
    with pytest.raises(ConfigError, match='buckets are ids for unknown values, which handle_unknown="error" refuses'):
        dp.Preprocessor({"kind": dp.Category(hash_buckets=4, handle_unknown="error")}).fit(FRAME)
    assert prep_of(dp.Category(hash_buckets=4)).fit(FRAME).num_classes("kind") == 5


def test_num_classes_raises_for_other_features():
    prep = prep_of().fit(FRAME)
    with pytest.raises(ConfigError, match='"x" is a number, which has no classes'):
        prep.num_classes("x")
    with pytest.raises(ConfigError, match='no feature "kin".*Did you mean "kind"'):
        prep.num_classes("kin")


def test_rarer_label_is_inferred_as_positive_with_one_warning():
    frame = pd.DataFrame({"x": np.arange(20.0), "kind": ["fraud", "ok"] + ["ok"] * 18})
    features = dp.infer_features(frame, targets="kind")
    assert features["kind"].positive == "fraud"
    assert "'fraud', the rarer one, is True" in features.reasons["kind"]
    with pytest.warns(UserWarning, match="'fraud' is taken as the positive label") as caught:
        dp.Preprocessor("auto", targets="kind").fit(frame)
    assert len(caught) == 1


def test_positive_sets_the_true_label():
    prep = prep_of(dp.Binary(positive="ok")).fit(FRAME.assign(kind=["ok", "fraud"] * 3))
    assert prep.encode({"x": 1.0, "kind": "ok"})["kind"].tolist() == [1]
    numbers = prep_of(dp.Binary(positive=1)).fit(FRAME.assign(kind=[1, 2] * 3))
    assert numbers.encode({"x": 1.0, "kind": 1})["kind"].tolist() == [1]
    assert prep.to_dict()["features"]["kind"]["params"]["fallback_true_label"] == "ok"
    assert dp.Preprocessor.from_dict(prep.to_dict()).features_["kind"].positive == "ok"


def of_classes(labels: list[int], names: list[str] | None) -> datasets.Dataset:
    kind = datasets.ClassLabel(names=names) if names else datasets.ClassLabel(num_classes=3)
    features = datasets.Features({"x": datasets.Value("float64"), "kind": kind})
    return datasets.Dataset.from_dict({"x": [0.0] * len(labels), "kind": labels}, features=features)


@pytest.mark.parametrize("streamed", [False, True])
def test_class_labels_keep_the_order_of_their_numbers(streamed):
    labels = [0, 1, 1, 2, 2, 2]
    rows = of_classes(labels, ["zebra", "ant", "cow"])
    features = dp.infer_features(rows, targets="kind")
    prep = dp.Preprocessor(dict(features) | {"x": "number"}, targets="kind")
    with pytest.warns(UserWarning, match="constant"):
        prep.fit(rows.to_iterable_dataset() if streamed else rows)
    encoded = prep.encode(rows)["kind"]
    assert encoded.tolist() == labels
    assert prep.decode({"kind": encoded})["kind"].tolist() == [["zebra", "ant", "cow"][label] for label in labels]


def test_unnamed_class_labels_are_missing_and_numbers_stay_numbers():
    rows = of_classes([0, -1, 1, 1], ["no", "yes"])
    prep = dp.Preprocessor({"number": dp.Number(column="kind"), "kind": "category"}).fit(rows)
    assert prep.learned_["number"].min == -1.0
    assert prep.learned_["kind"].missing == 1
    assert prep.learned_["kind"].vocabulary.tokens.to_pylist() == ["<UNK>", "yes", "no"]
    plain = dp.Preprocessor({"kind": "category"}).fit(of_classes([0, 1, 1], None))
    assert plain.decode(plain.encode(of_classes([0, 1, 1], None)))["kind"].tolist() == [0, 1, 1]


SIZES = pd.DataFrame({"size": pd.Categorical(list("LMSMLL"), categories=["S", "M", "L"], ordered=True)})


@pytest.mark.parametrize("make", [lambda frame: frame, pa.Table.from_pandas])
def test_ordinal_ranks_follow_the_declared_order(as_frame, make):
    frame = as_frame(SIZES) if make.__name__ == "<lambda>" else make(SIZES)
    size = dp.Category(transform_to="ordinal").fit(frame)
    assert np.asarray(size.transform(frame)).ravel().tolist() == [2, 1, 0, 1, 2, 2]
    prep = dp.Preprocessor({"size": dp.Category(transform_to="one_hot")}).fit(frame)
    loaded = dp.Preprocessor.from_dict(prep.to_dict())
    assert loaded.get_feature_names_out().tolist() == ["size_S", "size_M", "size_L"]
    assert np.asarray(prep.encode(frame)["size"]).tolist() == dp.Category().fit_transform(SIZES).ravel().tolist()


def test_partitions_with_different_orders_have_no_declared_order():
    parts = [SIZES, SIZES.assign(size=SIZES["size"].cat.reorder_categories(["L", "M", "S"]))]
    rows = {"train": parts[0], "validation": parts[1]}
    size = dp.Preprocessor({"size": dp.Category(transform_to="ordinal")}, fit_on="all").fit(rows)
    assert size.learned_["size"].declared_order == ()
