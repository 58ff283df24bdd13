from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import daskprep as dp


def column(*cells) -> pd.DataFrame:
    return pd.DataFrame({"x": list(cells)})


def test_sets_have_unique_tokens_in_order_of_appearance(as_frame):
    frame = as_frame(column("b a b", "a", "", None, "c c c"))
    prep = dp.Preprocessor({"x": "set"}).fit(frame)
    learned = prep.learned_["x"]
    assert learned.vocabulary.to_dict()["str2freq"] == {"<PAD>": 0, "<UNK>": 1, "a": 2, "b": 1, "c": 1}
    assert np.asarray(prep.encode(frame)["x"]).tolist() == [[3, 2], [2, 0], [0, 0], [1, 0], [4, 0]]
    assert learned.max_set_size == 2


def test_transform_is_multi_hot_or_ids():
    frame = column("b a b", "a zzz")
    fitted = dp.Set().fit(frame[:1])
    assert fitted.transform(frame).tolist() == [[0, 0, 1, 1], [0, 1, 1, 0]]
    assert fitted.get_feature_names_out().tolist() == ["x_<PAD>", "x_<UNK>", "x_a", "x_b"]
    ids = dp.Set(expand_to="ids").fit(frame[:1])
    assert ids.transform(frame).tolist() == [[3, 2], [2, 1]]
    assert ids.get_feature_names_out().tolist() == ["x_0", "x_1"]


def test_expanded_batch_equals_transform():
    frame = column("b a b", "a zzz", "")
    for feature in (dp.Set(), dp.Bag()):
        feature.fit(frame[:1])
        learned = feature.learned_["x"]
        encoded = dp.Preprocessor({"x": feature}).fit(frame[:1]).encode(frame)["x"]
        batch = feature.expand(torch.as_tensor(encoded.astype(np.int64)), learned)
        np.testing.assert_array_equal(batch.numpy(), feature.transform(frame))


def test_max_size_keeps_the_first_tokens():
    fitted = dp.Set(max_size=2, expand_to="ids").fit(column("a b c", "a b", "a"))
    assert fitted.learned_["x"].max_set_size == 3
    assert fitted.transform(column("c b a")).tolist() == [[4, 3]]


@pytest.mark.parametrize("size", [3, 200])
def test_bags_count_tokens(size):
    words = " ".join(["b", "a", "b"] + [f"w{i}" for i in range(size)])
    bag = dp.Bag().fit(column(words))
    encoded = dp.Preprocessor({"x": bag}).fit(column(words)).encode(column(words, "a a zz zz zz"))["x"]
    assert encoded.shape == (2, 2, size + 2)
    assert encoded[0, :, :2].tolist() == [[2, 3], [2, 1]]
    assert encoded[1, :, :3].tolist() == [[3, 1, 0], [2, 3, 0]]


def test_lists_of_tokens_need_no_tokenizer(as_object_frame):
    frame = as_object_frame(column(["new york", "rome"], ["rome"], None))
    fitted = dp.Set(expand_to="ids").fit(frame)
    assert np.asarray(fitted.transform(frame)).tolist() == [[3, 2], [2, 0], [1, 0]]


def test_list_with_a_missing_token_is_unreadable(as_object_frame):
    frame = as_object_frame(column(["A", "b"], ["b", None], None, []))
    with pytest.warns(UserWarning, match="1 of 4 cells cannot be read as a set"):
        fitted = dp.Set(expand_to="ids", lowercase=True).fit(frame)
    assert np.asarray(fitted.transform(frame)).tolist() == [[2, 3], [1, 0], [1, 0], [0, 0]]


def test_unreadable_lists_warn_equally_for_every_type():
    cells, learned = [[None, np.nan], [1.5]], []
    for held in (pd.Series(cells, dtype=object), pd.Series(cells, dtype=pd.ArrowDtype(pa.list_(pa.float64())))):
        with pytest.warns(UserWarning, match=r"\[None, None\]"):
            learned.append(dp.Preprocessor({"x": "set"}).fit(pd.DataFrame({"x": held})).to_dict())
    assert learned[0] == learned[1]


def test_decode_returns_tokens():
    frame = column("b a b", "", "a")
    prep = dp.Preprocessor({"x": "set", "y": dp.Bag(column="x")}).fit(frame)
    decoded = prep.decode(prep.encode(frame))
    assert [list(row) for row in decoded["x"]] == [["b", "a"], [], ["a"]]
    assert [list(row) for row in decoded["y"]] == [["b", "b", "a"], [], ["a"]]


def test_most_frequent_set_fills_missing_cells():
    frame = column("b a", None, "b  a", "a b c")
    fitted = dp.Set(missing_value_strategy="fill_with_mode", expand_to="ids").fit(frame)
    assert fitted.learned_["x"].fill_value == ["b", "a"]
    assert fitted.transform(frame)[1].tolist() == fitted.transform(frame)[0].tolist()
