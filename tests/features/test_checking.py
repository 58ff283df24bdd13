"""Results of a custom type are checked against its contract, and decoded arrays against the learned state."""

from __future__ import annotations

import operator
import pickle
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import hypothesis
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import strategies as st

import daskprep as dp
from daskprep.columns.summaries import Range
from daskprep.errors import ColumnError, ConfigError
from daskprep.features import FEATURES, Learned

FRAME = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": [1.0, 2.0, 3.0]})


class Given(dp.Feature):
    """Numbers, unchanged; `wrong` replaces the result of a method for any rows."""

    kind = "given"
    wrong: dict[str, Any] = {}  # noqa: RUF012

    def __init__(
        self,
        *,
        missing_value_strategy: str = "fill_with_const",
        fill_value: float | None = 0.0,
        invalid: str = "missing",
        column: str | None = None,
    ) -> None:
        self.missing_value_strategy = missing_value_strategy
        self.fill_value = fill_value
        self.invalid = invalid
        self.column = column

    def _give(self, function, value):
        return self.wrong[function](value) if len(value) and function in self.wrong else value

    def parse(self, column):
        return self._give("parse", column.cast(pa.float64()))

    def summarize(self, parsed):
        return Range.of(parsed.drop_null().to_numpy())

    def learn(self, summary):
        return Learned()

    def encode(self, parsed, learned):
        return self._give("encode", parsed.to_numpy(zero_copy_only=False).astype(np.float32))

    def expand(self, batch, learned):
        return self._give("expand", batch)

    def decode(self, encoded, learned):
        return self._give("decode", pa.array(encoded))


@pytest.fixture
def given(monkeypatch):
    """Return a function that makes a Preprocessor of a type with a wrong method, or other attributes."""

    def make(attributes=None, **wrong):
        made = type("Given", (Given,), {"wrong": wrong, **(attributes or {})})
        monkeypatch.setitem(FEATURES, "given", made)
        return dp.Preprocessor({"x": made(), "y": "number"})

    return make


ENCODED = [
    (lambda x: x[:-1], r"returned float32 of shape \(2,\) for 3 cells"),
    (lambda x: np.append(x, x), r"returned float32 of shape \(6,\) for 3 cells"),
    (lambda x: x.tolist(), "returned list for 3 cells"),
    (lambda x: x.astype(object), "returned object of shape"),
    (lambda x: x.astype(str), "returned <U32 of shape"),
    (lambda x: x.astype(complex), "returned complex128 of shape"),
    (lambda x: x.astype("M8[s]"), r"returned datetime64\[s\] of shape"),
    (lambda x: x.astype(">f4"), ">f4 of shape"),
    (lambda x: x.sum(), "returned float32 for 3 cells"),
    (lambda x: {"_a": x}, r"returned the outputs \['_a'\]"),
    (lambda x: x.astype(np.float64), r"returned float64 of shape \(3,\), and for no cells float32 of shape \(rows,\)"),
    (lambda x: x.astype(np.int32), "returned int32"),
    (lambda x: x[:, None], r"shape \(3, 1\), and for no cells"),
]


@pytest.mark.parametrize(("wrong", "words"), ENCODED)
def test_encode_with_wrong_rows_dtype_or_shape_raises(given, tmp_path, wrong, words):
    prep = given(encode=wrong)
    for use in (lambda: prep.fit(FRAME).encode(FRAME), lambda: prep.fit_write(FRAME, tmp_path / "d")):
        with pytest.raises(ColumnError, match=f'column "x": encode of a given.*{words}'):
            use()
    assert not (tmp_path / "d" / "manifest.json").exists()


def test_encode_of_missing_cells_with_wrong_dtype_raises(given):
    frame = FRAME.assign(x=[1.0, None, 3.0])
    prep = given(encode=lambda x: x if len(x) == 3 else x.astype(np.int8)).fit(frame)
    with pytest.raises(ColumnError, match='column "x": encode of a given returned int8'):
        prep.encode(frame)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (
            {"": (0, [3, 4, 5])},
            r"encode of a given returned float32 of shape \(rows,\): expected shape \(rows, 3\), as its limits",
        ),
        ({"_x": (0, 3)}, r"limits of a given names the output '_x': expected one of \[''\]"),
    ],
)
def test_encode_outside_declared_limits_raises(given, tmp_path, limits, words):
    prep = given({"limits": lambda self, learned: limits})
    for use in (
        lambda: prep.fit_write(FRAME, tmp_path / "d"),
        lambda: next(iter(prep.fit(FRAME).stream(FRAME, 2))),
    ):
        with pytest.raises(ColumnError, match=f'column "x": {words}'):
            use()


def test_missing_outputs_of_encode_raise(given, tmp_path):
    prep = given({"outputs": ("_a", "_b")})
    for use in (
        lambda: prep.fit_write(FRAME, tmp_path / "d"),
        lambda: next(iter(prep.fit(FRAME).stream(FRAME, 2))),
    ):
        with pytest.raises(ColumnError, match=r'column "x": encode of a given returned the outputs'):
            use()


@pytest.mark.parametrize("wrong", [lambda x: x[1:], lambda x: x.to_numpy(), lambda x: pa.concat_arrays([x, x])])
def test_parse_with_wrong_result_raises(given, tmp_path, wrong):
    for use in (lambda: given(parse=wrong).fit(FRAME), lambda: given(parse=wrong).fit_write(FRAME, tmp_path / "d")):
        with pytest.raises(
            ColumnError, match='column "x": parse of a given returned .*expected an Arrow array of 3 rows'
        ):
            use()


@pytest.mark.parametrize("wrong", [lambda x: x[1:], lambda x: x.numpy(), lambda x: x.sum()])
def test_expand_with_wrong_rows_raises(given, tmp_path, wrong):
    train = given(expand=wrong).fit_write(FRAME, tmp_path / "d")["train"]
    with pytest.raises(ColumnError, match='column "x": expand of a given returned .* for 1 row:'):
        next(iter(train.loader(3)))
    assert next(iter(train.loader(3, expand=False)))["x"].shape == (3,)


@pytest.mark.parametrize("wrong", [lambda x: x[1:], lambda x: x.to_pylist()])
def test_decode_with_wrong_result_raises(given, wrong):
    prep = given(decode=wrong).fit(FRAME)
    with pytest.raises(ColumnError, match='column "x": decode of a given returned .*expected an Arrow array of 3 rows'):
        prep.decode(prep.encode(FRAME))


# -- decode

FEATURES_BY_NAME: dict[str, Any] = {
    "price": "number",
    "city": "category",
    "tags": "set",
    "words": "bag",
    "steps": "sequence",
    "review": dp.Text(level="both"),
    "curve": "timeseries",
    "point": "vector",
    "day": "date",
    "cell": "h3",
    "sold": "binary",
    "photo": dp.Image(height=2, width=2, num_channels=3),
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "price": rng.normal(size=16),
            "city": rng.choice(["Rome", "Oslo", "Bern"], 16),
            "tags": rng.choice(["a b", "b", "c"], 16),
            "words": rng.choice(["x x y", "y"], 16),
            "steps": rng.choice(["go on", "stop"], 16),
            "review": rng.choice(["Good one", "bad"], 16),
            "curve": rng.choice(["1 2 3", "4 5 6"], 16),
            "point": rng.choice(["1 2", "3 4"], 16),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 999, 16), unit="D"),
            "cell": 622236750694711295,
            "sold": rng.choice([True, False], 16),
            "photo": list(rng.integers(0, 256, (16, 2, 2, 3), np.uint8)),
        }
    )
    return dp.Preprocessor(FEATURES_BY_NAME).fit_write(frame, tmp_path_factory.mktemp("checking") / "d")


def test_loader_batches_decode_to_the_rows_or_raise(dataset):
    train = dataset["train"]
    rows = train.head(16)
    for options, refused in (({}, {"tags", "words", "photo"}), ({"expand": False}, set())):
        [batch] = train.loader(16, shuffle=False, **options)
        for name, feature in dataset.features.items():
            outputs = {name + suffix: batch[name + suffix] for suffix in feature.outputs}
            if name in refused:
                with pytest.raises(ColumnError, match=f'column "{name}": cannot decode'):
                    dataset.decode(outputs)
                continue
            for one, other in zip(dataset.decode(outputs)[name], rows[name], strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        (
            "city",
            np.zeros((2, 5), np.float32),
            r"float32 of shape \(2, 5\).*category are uint8 of shape \(rows,\).*argmax",
        ),
        ("city", [1.0, 2.7], "float64 of shape"),
        ("city", [1, -1], "-1 in row 1: expected integers from 0 to 3"),
        ("city", torch.tensor([1, 2, 4]), "4 in row 2"),
        ("city", [[1], [2]], r"int64 of shape \(2, 1\)"),
        ("city", [True, False], "bool of shape"),
        ("city", ["Rome"], "<U4 of shape"),
        ("city", 1, r"int64 of shape \(\)"),
        ("sold", [0.2, 0.9], "float64 of shape"),
        ("sold", [2, 0], "2 in row 0: expected integers from 0 to 1"),
        ("price", [[1.0]], r"float64 of shape \(1, 1\)"),
        ("price", [True], "bool of shape"),
        ("steps", [[1], [2, 3]], "inhomogeneous"),
        ("steps", [[1, 99]], "99 in row 0"),
        ("tags", [[1, 5]], "5 in row 0"),
        ("words", [[[1, 9], [1, 1]]], "9 in row 0"),
        ("words", [[[1, 1], [1, 70_000]]], "70000 in row 0.* from 0 to 65535"),
        ("curve", np.zeros((2, 4)), r"\(rows, 3\)"),
        ("point", np.zeros((2, 5)), r"\(rows, 2\)"),
        ("day", [[2020, 13, 1, 0, 1, 0, 0, 0, 0]], "13 in row 0: expected integers from 1 to 12"),
        ("cell", np.full((1, 19), 200), "200 in row 0"),
        ("photo", np.zeros((1, 3, 2, 2)), r"rows of an image are uint8 of shape \(rows, 3, 2, 2\)"),
        ("photo", np.zeros((1, 2, 2, 3), np.uint8), r"uint8 of shape \(1, 2, 2, 3\)"),
        ("photo", np.full((1, 3, 2, 2), 256), "256 in row 0"),
    ],
)
def test_decode_of_invalid_arrays_raises(dataset, name, given, words):
    with pytest.raises(ColumnError, match=f'column "{name}": cannot decode .*{words}'):
        dataset.decode({name: given})


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("city", torch.tensor([1, 2]), 2),
        ("city", [], 0),
        ("sold", torch.tensor([True, False]), 2),
        ("price", [1, 2], 2),
        ("price", torch.tensor([1.0, 2.0], dtype=torch.bfloat16), 2),
        ("price", torch.tensor([1.0, 2.0], requires_grad=True), 2),
        ("steps", [[1, 2, 3, 2, 1]], 1),
        ("photo", np.full((1, 3, 2, 2), 255), 1),
    ],
)
def test_decode_accepts_equivalent_dtypes(dataset, name, given, expected):
    assert len(dataset.decode({name: given})) == expected


def test_decode_requires_a_dict_with_equal_rows(dataset):
    with pytest.raises(ConfigError, match=r"different numbers of rows: \{'price': 1, 'city': 2\}"):
        dataset.decode({"city": [1, 2], "price": [1.0]})
    with pytest.raises(ColumnError, match=r"different numbers of rows: \{'_word': 1, '_char': 2\}"):
        dataset.decode({"review_word": [[1]], "review_char": [[1], [1]]})
    with pytest.raises(ConfigError, match="a dict of arrays by output, .* not a tuple; decode"):
        dataset.decode(({"city": [1]}, [1]))


def test_negative_learned_integers_are_saved_and_loaded(given, tmp_path):
    @dataclass(frozen=True, kw_only=True)
    class Shifted(Learned):
        shift: int = 0

    prep = given({"learned_type": Shifted, "learn": lambda self, summary: Shifted(shift=-3)})
    prep.fit(FRAME).save(tmp_path / "prep.json")
    assert dp.Preprocessor.load(tmp_path / "prep.json").learned_["x"].shift == -3


# -- cached values


def test_cached_values_follow_parameters_and_learned_state():
    frame = pd.DataFrame({"x": ["b", "b", "b", None]})
    feature = dp.Category(fill_value="B").fit(frame)
    assert feature.transform(frame).ravel().tolist() == [1, 1, 1, 2]
    feature.set_params(lowercase=True)
    assert feature.transform(frame).ravel().tolist() == [1, 1, 1, 1]
    series = dp.Sequence(sequence_length=2).fit(frame)
    assert series.transform(frame).shape == (4, 2)
    assert series.set_params(sequence_length=3).fit(frame).transform(frame).shape == (4, 3)


def test_cached_values_are_not_pickled_or_saved():
    frame = pd.DataFrame({"x": ["a b", None]})
    prep = dp.Preprocessor({"x": dp.Text(tokenizer=lambda text: text.split())}).fit(frame)
    before, state = pickle.dumps(prep.learned_), prep.learned_["x"].to_dict()
    prep.encode(frame)
    assert len(pickle.dumps(prep.learned_)) < len(before) + 100
    assert prep.learned_["x"].to_dict() == state
    assert pickle.loads(before) == prep.learned_


def test_fill_value_is_encoded_once(given):
    rows = []

    def encode(self, parsed, learned):
        rows.append(len(parsed))
        return np.zeros(len(parsed))

    prep = given({"encode": encode}).fit(FRAME)
    rows.clear()
    for _ in range(3):
        prep.encode(pd.DataFrame({"x": [1.0, None], "y": 0.0}))
    assert rows == [2, 0, 1, 2, 2]


@hypothesis.given(
    st.lists(st.decimals(-(10**6), 10**6, places=3), min_size=2, max_size=30, unique=True),
    st.sampled_from([1e-9, 1e-3, 1.0, 1e6]),
    st.sampled_from([None, "zscore", "minmax", "iq"]),
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_decoded_numbers_have_few_digits_and_encode_equally(decimals, unit, normalization):
    frame = pd.DataFrame({"x": [float(one) * unit for one in decimals]})
    prep = dp.Preprocessor({"x": dp.Number(normalization=normalization)}).fit(frame)
    encoded = prep.encode(frame)
    decoded = prep.decode(encoded)
    np.testing.assert_array_equal(prep.encode(decoded)["x"], encoded["x"])
    raw = prep.features_["x"].decode(encoded["x"], prep.learned_["x"]).to_pylist()
    digits = [[len(Decimal(repr(one)).normalize().as_tuple().digits) for one in ones] for ones in (decoded["x"], raw)]
    assert all(map(operator.le, *digits))


@pytest.mark.parametrize("normalization", [None, "zscore", "minmax", "log1p", "robust"])
def test_prices_and_years_round_trip_through_decode(normalization):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"price": rng.lognormal(4, 0.5, 500).round(2), "year": rng.integers(1950, 2024, 500)})
    frame["tiny"] = (frame["price"] * 1e-9).round(11)
    prep = dp.Preprocessor({name: dp.Number(normalization=normalization) for name in frame}).fit(frame)
    decoded = prep.decode(prep.encode(frame)).astype(float)
    pd.testing.assert_frame_equal(decoded, frame.astype(float), check_exact=True)


def test_non_finite_numbers_decode_unchanged():
    prep = dp.Preprocessor({"x": dp.Number(normalization="zscore")}).fit(pd.DataFrame({"x": [0.1, 0.2, 0.4]}))
    found = prep.decode({"x": np.array([np.nan, np.inf, 0], np.float32)})["x"].tolist()
    assert np.isnan(found[0])
    assert found[1] == np.inf
    assert found[2] == pytest.approx(0.7 / 3)
