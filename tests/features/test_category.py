from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import daskprep as dp


def column(*cells) -> pd.DataFrame:
    return pd.DataFrame({"x": list(cells)})


def vocabulary(feature) -> list[str]:
    return feature.learned_["x"].vocabulary.to_dict()["idx2str"]


def test_ids_go_by_frequency_then_by_utf8_bytes(as_frame):
    frame = as_frame(column("b", "a", "é", "z", "a", "c"))
    assert vocabulary(dp.Category().fit(frame)) == ["<UNK>", "a", "b", "c", "z", "é"]


def test_surrounding_white_space_does_not_count():
    category = dp.Category().fit(column(" a", "a ", "b", "b", "c"))
    assert vocabulary(category) == ["<UNK>", "a", "b", "c"]
    assert category.transform(column("b  ")).tolist() == [[2]]


def test_the_rarer_values_become_unknown(as_frame):
    frame = as_frame(column("a", "a", "b", "b", "c"))
    assert vocabulary(dp.Category(most_common=1).fit(frame)) == ["<UNK>", "a"]
    assert vocabulary(dp.Category(min_frequency=2).fit(frame)) == ["<UNK>", "a", "b"]


def test_lowercase_means_it_in_fit_and_in_transform():
    category = dp.Category(lowercase=True).fit(column("A", "a", "B"))
    assert vocabulary(category) == ["<UNK>", "a", "b"]
    assert category.transform(column("a", "b", "A")).ravel().tolist() == [1, 2, 1]


def test_a_missing_cell_is_unknown_or_a_value_of_its_own():
    assert vocabulary(dp.Category().fit(column("a", None))) == ["<UNK>", "a"]
    own = dp.Category(fill_value="none").fit(column("a", None, None))
    assert vocabulary(own) == ["<UNK>", "none", "a"]
    assert own.transform(column(None, "zzz", "a")).ravel().tolist() == [1, 0, 2]


def test_the_literal_unknown_symbol_is_that_symbol():
    category = dp.Category().fit(column("<UNK>", "a"))
    assert vocabulary(category) == ["<UNK>", "a"]
    assert category.learned_["x"].vocabulary.to_dict()["str2freq"] == {"<UNK>": 1, "a": 1}


def test_numbers_and_dictionaries_read_as_their_text():
    category = dp.Category().fit(column(1.0, 2.0, None, 2.0))
    assert vocabulary(category) == ["<UNK>", "2", "1"]
    assert category.transform(column(1, 2)).ravel().tolist() == [2, 1]
    assert category.transform(pd.DataFrame({"x": pd.Categorical(["2", "1"])})).ravel().tolist() == [1, 2]


@pytest.mark.parametrize("size", [255, 256, 65_535, 65_536])
def test_ids_have_the_smallest_type_that_holds_them(size):
    frame = pd.DataFrame({"x": np.arange(size).astype(str)})
    encoded = dp.Category(most_common=None).fit_transform(frame)
    expected = np.uint8 if size < 256 else np.uint16 if size < 65_536 else np.uint32
    assert encoded.dtype == expected
    assert encoded.max() == size


def test_decode_gives_the_values_back():
    category = dp.Category().fit(column("a", "b", "b"))
    assert category.decode(np.array([1, 2, 0]), category.learned_["x"]).to_pylist() == ["b", "a", "<UNK>"]


def test_the_text_of_a_cell_does_not_depend_on_how_it_is_stored():
    times = pd.to_datetime(["2020-01-01", "2020-01-01 10:00:00.5"], format="ISO8601")
    narrow = pd.DataFrame({"x": np.array([0.1, 2.0], np.float32)})
    assert vocabulary(dp.Category().fit(narrow)) == ["<UNK>", "0.1", "2"]
    category = dp.Category().fit(pd.DataFrame({"x": times.as_unit("ns")}))
    assert category.transform(pd.DataFrame({"x": times.as_unit("us")})).ravel().tolist() == [1, 2]
