from __future__ import annotations

import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from daskprep.errors import ColumnError, ConfigError, RejectedValueError
from daskprep.features.base import find_dropped_rows, validate
from daskprep.features.vector import LearnedVector, Vector, any_in_row

FINITE = st.floats(-(2.0**100), 2.0**100, width=32)


def read(*cells, **parameters) -> list[list[float] | None]:
    return Vector(**parameters).parse(pa.array(cells)).to_pylist()


@pytest.mark.parametrize(
    "text",
    [
        "1 2.5",
        " 1\t 2.5\n",
        "+1 25e-1",
        "[1, 2.5]",
        "[1 2.5]",
        "(1,2.5)",
        "1,2.5",
        "[ 1.0 , 2.50 ]",
        "[[1, 2.5]]",
    ],
)
def test_text_is_read_as_numbers(text):
    assert read(text) == [[1.0, 2.5]]
    assert read("7 8", text, None) == [[7.0, 8.0], [1.0, 2.5], None]


@pytest.mark.parametrize(
    "text",
    ["", " ", "[]", "a b", "1 b", "1,,2", "[1, 2,]", ",1", "1 2, 3", "nan 1", "1 inf", "1 1e39", "1;2"],
)
def test_invalid_text_is_missing(text):
    assert read(text) == [None]
    assert read("[1, 2]", text) == [[1.0, 2.0], None]


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.float64()), pa.list_(pa.int8()), pa.large_list(pa.float32()), pa.list_(pa.float16(), 2)],
)
def test_lists_of_any_type_are_read(kind):
    column = pa.array([[9, 9], [1, 2], None, [3, 4]], kind)
    assert Vector().parse(column[1:]).to_pylist() == [[1.0, 2.0], None, [3.0, 4.0]]


def test_lists_with_non_finite_numbers_are_missing():
    assert read([1.0, None], [np.nan, 1.0], [np.inf], [], None, [1.0]) == [None] * 5 + [[1.0]]
    assert read(["1", "2"], ["1", "b"], None) == [[1.0, 2.0], None, None]
    assert read([True, False]) == [[1.0, 0.0]]


def test_numbers_are_vectors_of_size_one():
    assert read(1.5, None, np.nan, np.inf, -2.0) == [[1.5], None, None, None, [-2.0]]
    assert read(1, None) == [[1.0], None]


def test_dictionaries_and_nulls_are_read():
    column = pa.array(["junk", "[1, 2]", None, "[1, 2]"])
    assert Vector().parse(column.dictionary_encode()[1:]).to_pylist() == [[1.0, 2.0], None, [1.0, 2.0]]
    assert Vector().parse(pa.nulls(2)).to_pylist() == [None, None]


def test_nested_lists_raise():
    with pytest.raises(ColumnError, match=r"list.*flatten"):
        Vector().parse(pa.array([[[1.0]]]))


@given(arrays(np.float32, array_shapes(min_dims=2, max_dims=2), elements=FINITE))
def test_vectors_round_trip_through_every_notation(matrix):
    rows, learned = matrix.tolist(), LearnedVector(vector_size=matrix.shape[1])
    texts = [" ".join(map(repr, row)) for row in rows]
    for column in (pa.array(rows), pa.array(texts), pa.array([str(row) for row in rows])):
        encoded = Vector().encode(Vector().parse(column), learned)
        np.testing.assert_array_equal(encoded, matrix)
        assert encoded.dtype == np.float32
        assert Vector().decode(encoded, learned).to_pylist() == rows


def test_encode_does_not_modify_its_input():
    parsed = Vector().parse(pa.array([[1.0, 2.0]], pa.list_(pa.float32())))
    Vector().encode(parsed, LearnedVector(vector_size=2))[:] = 5
    assert parsed.to_pylist() == [[1.0, 2.0]]


# -- sizes


def test_vector_size_is_learned(as_frame):
    feature = Vector().fit(as_frame(pd.DataFrame({"x": ["1 2 3", None, "4 5 6"]})))
    learned = feature.learned_["x"]
    assert (learned.vector_size, learned.missing, list(learned.fill_value)) == (3, 1, [0.0, 0.0, 0.0])
    assert LearnedVector.from_dict(json.loads(json.dumps(learned.to_dict()))) == learned
    assert feature.get_feature_names_out().tolist() == ["x_0", "x_1", "x_2"]


def test_different_lengths_raise_with_their_counts(as_frame):
    frame = as_frame(pd.DataFrame({"x": ["1 2 3", "1 2", "4 5 6", "1", "7 8"] + ["1 2 3"] * 5}))
    with pytest.raises(RejectedValueError, match=r'column "x".* 7 have 3 numbers, 2 have 2.* 1 other .* vector_size=3'):
        Vector().fit(frame)


def test_other_lengths_are_missing_with_vector_size_set(as_frame):
    frame = as_frame(pd.DataFrame({"x": ["1 2 3", "1 2", "4 5 6"]}))
    feature = Vector(vector_size=3, fill_value=7)
    with pytest.warns(UserWarning, match=r"1 .*cannot be read as a vector.*'1 2'"):
        feature.fit(frame)
    assert np.asarray(feature.transform(frame)).tolist() == [[1, 2, 3], [7, 7, 7], [4, 5, 6]]


def test_unexpected_length_in_transform_raises(as_frame):
    feature = Vector().fit(pd.DataFrame({"x": ["1 2"]}))
    with pytest.raises(RejectedValueError, match=r'column "x".* 3 numbers, not 2.*vector_size=2'):
        np.asarray(feature.transform(as_frame(pd.DataFrame({"x": ["1 2", "1 2 3"]}))))


# -- missing vectors


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, [0, 0]),
        ({"fill_value": ""}, [0, 0]),
        ({"fill_value": 1.5}, [1.5, 1.5]),
        ({"fill_value": "[1, 2]"}, [1, 2]),
        ({"fill_value": "3", "vector_size": 2}, [3, 3]),
        ({"missing_value_strategy": "fill_with_mode"}, [0.1, 6]),
        ({"missing_value_strategy": "ffill"}, [3, 4]),
        ({"missing_value_strategy": "bfill"}, [0.1, 6]),
    ],
)
def test_missing_vectors_are_filled(as_frame, parameters, expected):
    frame = as_frame(pd.DataFrame({"x": ["3 4", None, "0.1 6", ".1 6."]}))
    encoded = np.asarray(Vector(**parameters).fit(frame).transform(frame))
    np.testing.assert_array_equal(encoded[1], np.float32(expected))


def test_column_of_missing_vectors_has_the_size_of_the_fill_value(as_object_frame):
    frame = as_object_frame(pd.DataFrame({"x": [None, None]}, dtype=object))
    assert np.asarray(Vector().fit(frame).transform(frame)).tolist() == [[0], [0]]
    assert np.asarray(Vector(vector_size=2).fit(frame).transform(frame)).tolist() == [[0, 0]] * 2
    assert np.asarray(Vector(fill_value="1 2").fit(frame).transform(frame)).tolist() == [[1, 2]] * 2


def test_rows_are_dropped(as_frame):
    parsed = Vector().parse(pa.array(["1 2", None]))
    feature = Vector(missing_value_strategy="drop_row")
    assert find_dropped_rows(feature, parsed, LearnedVector(vector_size=2)).tolist() == [False, True]


@pytest.mark.parametrize("fill_value", ["x", "nan", "1,,2"])
def test_invalid_fill_value_raises(fill_value):
    with pytest.raises(ConfigError, match="fill_value"):
        validate(Vector(fill_value=fill_value))


def test_fill_value_of_another_size_raises(as_frame):
    with pytest.raises(ConfigError, match="2 numbers, but a vector has 3"):
        validate(Vector(vector_size=3, fill_value="1 2"))
    with pytest.raises(ConfigError, match=r'column "x".*2 numbers, but a vector has 3'):
        Vector(fill_value="1 2").fit(as_frame(pd.DataFrame({"x": ["1 2 3"]})))


def test_arrays_in_cells_are_read(as_object_frame):
    frame = as_object_frame(pd.DataFrame({"x": [np.array([1.0, 2.0]), [3, 4], None]}))
    assert np.asarray(Vector().fit(frame).transform(frame)).tolist() == [[1, 2], [3, 4], [0, 0]]


@given(st.lists(st.decimals(-(10**9), 10**9, places=4), min_size=1, max_size=5))
def test_decimals_in_lists_become_the_nearest_float32(cells):
    column = pa.array([cells], pa.list_(pa.decimal128(20, 4)))
    written = pa.array([" ".join(map(str, cells))])
    assert Vector().parse(column).to_pylist() == Vector().parse(written).to_pylist()
    assert Vector().parse(pa.array([[Decimal("1.71")]])).flatten().to_numpy() == np.float32(1.71)


@given(st.lists(st.none() | st.lists(st.sampled_from([1.0, np.nan]), max_size=3)), st.integers(0, 3))
def test_rows_with_a_missing_number_are_found_among_empty_lists(rows, start):
    found = any_in_row(pa.array(rows, pa.list_(pa.float32()))[start:], np.isnan)
    assert found.tolist() == [any(map(np.isnan, row or ())) for row in rows[start:]]
