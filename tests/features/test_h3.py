from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskprep.errors import ColumnError, ConfigError
from daskprep.features.base import Learned, validate
from daskprep.features.h3 import H3

LEARNED = Learned()
GOLDEN = {
    0: [0, 0, 0, 0] + [7] * 15,
    576495936675512319: [1, 0, 0, 0] + [7] * 15,
    622236750694711295: [1, 0, 10, 21, 0, 2, 0, 3, 4, 5, 3, 2, 6, 3, 7, 7, 7, 7, 7],
}
CELL, OTHER = 622236750694711295, 617700169958293503


@st.composite
def cells(draw) -> int:
    """Draw a cell as the format describes it: digits beyond the resolution are 7."""
    resolution = draw(st.integers(0, 15))
    cell = draw(st.integers(0, 15)) << 59 | draw(st.integers(0, 7)) << 56 | resolution << 52
    cell |= draw(st.integers(0, 127)) << 45
    for position in range(1, 16):
        cell |= (draw(st.integers(0, 6)) if position <= resolution else 7) << (45 - 3 * position)
    return cell


def read(*values, kind: pa.DataType | None = None) -> list[int | None]:
    return H3().parse(pa.array(values, kind)).to_pylist()


@pytest.mark.parametrize("cell", GOLDEN)
def test_cells_encode_as_expected(cell):
    for column in (pa.array([cell]), pa.array([str(cell)]), pa.array([f"{cell:x}x"[:-1]])):
        encoded = H3().encode(H3().parse(column), LEARNED)
        assert encoded.tolist() == [GOLDEN[cell]]
        assert encoded.dtype == np.uint8


@pytest.mark.parametrize(
    "text",
    [
        *("8a2a1072b59ffff", "8A2A1072B59FFFF", "0x8a2a1072b59ffff", "0X8A2A1072B59FFFF", "08a2a1072b59ffff"),
        *(" 8a2a1072b59ffff\n", "622236750694711295", "000622236750694711295"),
    ],
)
def test_hexadecimal_and_decimal_text_are_read_exactly(text):
    assert read(text) == [CELL]
    assert read(text, "no cell", None) == [CELL, None, None]


@pytest.mark.parametrize(
    "text",
    ["", "0x", "x", "-1", "+1", "1.0", "1e3", "8a2a1072b59ffffff", "9223372036854775808", "ffffffffffffffff"],
)
def test_text_that_is_not_a_cell_is_missing(text):
    assert read(text) == [None]


@given(st.lists(cells(), min_size=1))
def test_every_notation_of_a_cell_is_read_equally(drawn):
    assert read(*drawn, kind=pa.uint64()) == drawn
    assert read(*drawn, kind=pa.int64()) == drawn
    assert read(*map(str, drawn)) == drawn
    assert read(*(f"0x{cell:x}" for cell in drawn)) == drawn
    assert read(*(f"{cell:015x}" for cell in drawn if cell >> 59)) == [cell for cell in drawn if cell >> 59]


@given(st.lists(cells(), min_size=1))
def test_decode_returns_cells(drawn):
    encoded = H3().encode(pa.array(drawn, pa.uint64()), LEARNED)
    assert H3().decode(encoded, LEARNED).to_pylist() == drawn
    assert H3().decode(encoded.astype(np.int64), LEARNED).type == pa.uint64()


def test_integers_outside_63_bits_are_missing():
    assert read(-1, 2**63 - 1, kind=pa.int64()) == [None, 2**63 - 1]
    assert read(2**63, 2**64 - 1, 5, kind=pa.uint64()) == [None, None, 5]


def test_floats_are_read_only_if_exact():
    assert read(5.0, 5.5, -1.0, float(2**53 - 1), float(2**53), float(CELL), np.nan, np.inf) == [
        *(5, None, None),
        2**53 - 1,
        *(None,) * 4,
    ]


def test_dictionaries_slices_and_nulls_are_read():
    column = pa.array(["junk", "8a2a1072b59ffff", None, "8a2a1072b59ffff"])
    assert H3().parse(column[1:]).to_pylist() == [CELL, None, CELL]
    assert H3().parse(column.dictionary_encode()[1:]).to_pylist() == [CELL, None, CELL]
    assert H3().parse(pa.nulls(2)).to_pylist() == [None, None]
    assert H3().encode(H3().parse(pa.nulls(0)), LEARNED).shape == (0, 19)


def test_more_rows_than_a_block_are_encoded():
    drawn = np.arange(20_000, dtype=np.uint64) * np.uint64(2**49 + 977)
    encoded = H3().encode(pa.array(drawn), LEARNED)
    np.testing.assert_array_equal(encoded[:, 3], drawn >> np.uint64(45) & np.uint64(127))


@pytest.mark.parametrize("column", [pa.array([True]), pa.array([[1]]), pa.array([0], pa.timestamp("s"))])
def test_other_types_raise(column):
    with pytest.raises(ColumnError, match=r"bool|list|timestamp"):
        H3().parse(column)


def test_batch_is_expanded_to_int64():
    class Tensor:
        def long(self) -> str:
            return "int64"

    assert H3().expand(Tensor(), LEARNED) == "int64"


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, 576495936675512319),
        ({"fill_value": "8a2a1072b59ffff"}, CELL),
        ({"missing_value_strategy": "fill_with_mode"}, OTHER),
        ({"missing_value_strategy": "ffill"}, CELL),
    ],
)
def test_missing_cells_are_filled(as_frame, parameters, expected):
    frame = as_frame(pd.DataFrame({"x": pd.array([CELL, None, OTHER, OTHER], "Int64")}))
    feature = H3(**parameters).fit(frame)
    learned = feature.learned_["x"]
    encoded = np.asarray(feature.transform(frame))
    assert feature.decode(encoded, learned).to_pylist()[1] == expected
    assert Learned.from_dict(json.loads(json.dumps(learned.to_dict()))) == learned


def test_output_columns_are_named():
    feature = H3().fit(pd.DataFrame({"x": [CELL]}))
    names = [*("mode", "edge", "resolution", "base_cell"), *(f"digit_{i}" for i in range(1, 16))]
    assert feature.get_feature_names_out().tolist() == [f"x_{name}" for name in names]


def test_integers_converted_to_floats_warn(as_frame):
    frame = as_frame(pd.DataFrame({"x": [CELL, None]}))
    with (
        pytest.warns(UserWarning, match="cannot be read"),
        pytest.warns(UserWarning, match=r'floating.*"Int64"'),
    ):
        H3().fit(frame)


def test_invalid_fill_value_raises():
    with pytest.raises(ConfigError, match="nowhere"):
        validate(H3(fill_value="nowhere"))


@pytest.mark.parametrize("kind", [pa.decimal128(19, 0), pa.decimal128(38, 4), pa.decimal256(50, 0)])
def test_decimal_cells_keep_all_digits(kind):
    cells = [0x8928308280FFFFF, 576495936675512319]
    assert H3().parse(pa.array(cells).cast(kind)).to_pylist() == cells


def test_white_space_is_stripped_independently_of_neighbors():
    for cell in (" 123 ", "\u2003123\n", " 0x7b"):
        assert H3().parse(pa.array([cell])).to_pylist() == [123]
        assert H3().parse(pa.array([cell, "no cell at all"])).to_pylist() == [123, None]
