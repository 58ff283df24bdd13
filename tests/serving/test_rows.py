"""Rows encoded one at a time equal `Preprocessor.encode` for any parameters and cells.

A type is one entry of `TYPES`: the parameters that it may have, and cells, of one Python type in each strategy.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import pathlib
import threading
import warnings
import zoneinfo
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, event, given, settings
from hypothesis import strategies as st

import daskprep as dp
from daskprep import serving
from daskprep.dataset.loader.batches import make_expanders
from daskprep.errors import ColumnError, ConfigError, DaskprepError, RejectedValueError
from daskprep.features.cells import as_numbers, one_array
from daskprep.rows.base import CELL_KINDS, json_number
from daskprep.rows.cells import number_of, text_of
from daskprep.rows.tokens import TOKENIZERS
from daskprep.serving import Encoder
from daskprep.sources import table_from_pandas
from daskprep.sources.cells import as_text
from tests.arrow_columns import encode_columns

ROME = zoneinfo.ZoneInfo("Europe/Rome")
BEFORE = dt.timezone(dt.timedelta(hours=-3, minutes=-30))
NEIGHBOURS = ("ffill", "bfill")


@dataclass(frozen=True)
class Type:
    """A type's parameters, and its cells by Python type."""

    make: Callable[..., Any]
    params: st.SearchStrategy[dict[str, Any]]
    cells: Mapping[str, st.SearchStrategy[Any]]


def params(**optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Draw some of the parameters, each with one of its values."""
    chosen = {
        name: one if isinstance(one, st.SearchStrategy) else st.sampled_from(one) for name, one in optional.items()
    }
    return st.fixed_dictionaries({}, optional=chosen)


# -- cells of one Python type

LETTERS = st.sampled_from([*"abAzΣ\u03c3ςİßéÉ. ,_'\t\n\x1c\x85\u2003\u0307\U0001d11e\0\ud800-"])
WORDS = st.sampled_from(
    ["a", "b", "A", "ΟΔΟΣ", "ΑΣ.\u0392", "İ", "Straße", "<UNK>", "<PAD>", "<START>", "<unk>", "can't", "é"]
)
JOINED = st.builds(str.join, st.sampled_from([" ", ",", "_", ", ", "  ", "\u2003", "-"]), st.lists(WORDS, max_size=5))
TEXTS = st.one_of(WORDS, JOINED, st.text(LETTERS, max_size=6), st.sampled_from(["", " ", "1", "1.0", "True", "['a']"]))
JSON = st.one_of(
    JOINED, st.sampled_from(['["a", 1.50, "B"]', "[]", "[1, NaN]", '["\\u00c9"]', "{}", "[[1]]", '["\\ud800"]'])
)
NUMERALS = st.one_of(
    st.floats().map(str),
    st.integers().map(str),
    st.sampled_from(
        ["1_000", "٣", "nan", "-NaN", "inf", "Infinity", "1e400", "-1e400", "1e-400", "0x10", " 7 ", "\u20037",
         "+1", "1.", ".5", "1.e3", "1e", "--1", "", " ", "7\x1c", "1,5", "9" * 400, "\ud800", "\uff17", "-0", "1\0"]
    ),
)  # fmt: skip
WRITTEN = st.sampled_from(
    ["$5", "1,234", "1.234", "1,5", "(1,200)", "\u22125", "5 %", "1.2k", "$3M", "€ 1.299,50", "1\u00a0299 €", "3:45",
     "1h 30m", "PT1H", "2 days 03:00:00", "5 kg", "5 lb"]
)  # fmt: skip
LABELS = st.sampled_from(["yes", "No", " YES", "t", "F", "1", "1.0", "-1", "0", "", " ", "maybe", "a", "b", "2", "nan"])
INTEGERS = st.one_of(st.integers(-9, 9), st.sampled_from([2**31, 2**53 + 1, -(2**63), 2**63 - 1]), st.integers())
HUGE = st.sampled_from([2**63, 2**64 - 1, 2**70, -(2**80), 10**400])
FLOATS = st.one_of(st.floats(), st.sampled_from([1e-7, 1e-6, 1e10, 12345678901.5, 2.0**63, 1e16, 0.1, -0.0, 3.5e38]))
SINGLES = st.floats(width=32).map(np.float32)
MOMENTS = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2099, 1, 1)) | st.sampled_from(
    [dt.datetime(2024, 3, 31, 2, 30), dt.datetime(2024, 10, 27, 2, 30, fold=1), dt.datetime(1970, 1, 1, 0, 0, 0, 500)]
)
SCALARS = {
    "int": INTEGERS,
    "huge int": HUGE,
    "float": FLOATS,
    "bool": st.booleans(),
    "np.float64": FLOATS.map(np.float64),
    "np.float32": SINGLES,
    "np.float16": st.floats(width=16).map(np.float16),
    "np.int8": st.integers(-128, 127).map(np.int8),
    "np.uint64": st.integers(0, 2**63 - 1).map(np.uint64),
    "np.bool": st.booleans().map(np.bool_),
    "np.str": WORDS.map(np.str_),
    "bytes": st.binary(max_size=3) | NUMERALS.map(lambda text: text.encode("utf-8", "surrogatepass")),
    "decimal": st.decimals(-(10**14), 10**14, places=3)
    | st.sampled_from(list(map(Decimal, ["1E-9", "NaN", "1.50", "-0.0"]))),
    "odd decimal": st.sampled_from(list(map(Decimal, ["Infinity", "-Infinity", "sNaN", "1E+3", "1E+400", "-15E-90"]))),
    "date": st.dates(),
    "datetime": MOMENTS,
    "datetime in Rome": MOMENTS.map(lambda moment: moment.replace(tzinfo=ROME)),
    "datetime at an offset": MOMENTS.map(lambda moment: moment.replace(tzinfo=BEFORE)),
    "Timestamp": st.integers(-(2**62), 2**62).map(pd.Timestamp),
    "time": st.times(),
    "time with an offset": st.times(timezones=st.just(BEFORE)),
    "timedelta": st.timedeltas(dt.timedelta(-9), dt.timedelta(9)),
    "UUID": st.uuids(),
    "path": st.sampled_from(["a", "1", "a b"]).map(pathlib.PurePosixPath),
    "dict": st.just({"a": 1}),
}
# Times of nanoseconds are not numbers: they raise in a column of times, and are missing as text in object columns.
WITHOUT_NANOSECONDS = {name: cells for name, cells in SCALARS.items() if name != "Timestamp"}
ITEMS = {
    "lists of text": st.lists(TEXTS, max_size=4),
    "lists of text with gaps": st.lists(st.none() | WORDS, max_size=4),
    "lists of integers": st.lists(INTEGERS, max_size=4),
    "lists of floats": st.lists(st.floats(-9, 9, width=16) | st.just(float("nan")), max_size=4),
    "lists of several": st.lists(WORDS | st.integers(0, 9) | st.booleans(), max_size=4),
    "lists of lists": st.lists(st.lists(WORDS, max_size=2), min_size=1, max_size=2),
    "lists of dates": st.lists(st.dates(), max_size=3),
    "tuples": st.lists(WORDS, max_size=4).map(tuple),
    "sets": st.frozensets(WORDS, max_size=4),
    "arrays of integers": st.lists(st.integers(0, 9), max_size=4).map(lambda cell: np.array(cell, np.int8)),
    "arrays of singles": st.lists(st.floats(-9, 9, width=16), max_size=4).map(lambda cell: np.array(cell, np.float32)),
    "arrays of text": st.lists(WORDS, min_size=1, max_size=4).map(np.array),
    "arrays of two dimensions": st.just(np.zeros((2, 2))),
}  # fmt: skip
MOMENT64 = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2099, 1, 1)).map(np.datetime64)
TIMES64 = {
    "np.datetime64": MOMENT64,
    "np.timedelta64": st.integers(-(10**9), 10**9).map(lambda ms: np.timedelta64(ms, "ms")),
}

# -- types

MISSING = ["fill_with_const", "fill_with_mode", "ffill", "bfill", "drop_row"]
INVALID = ["missing", "missing", "raise"]
FITTED = [None, 1, 2, 10]
TOKENS: dict[str, Any] = {
    "tokenizer": sorted(TOKENIZERS),
    "most_common": FITTED,
    "lowercase": st.booleans(),
    "ngram_size": [1, 2, 3],
    "pattern": st.sampled_from([r"\w+", r"[a-zA-Z]*", r"(\w)\1?", r"\S+"]),
    "missing_value_strategy": MISSING,
    "fill_value": ["<UNK>", "<PAD>", "a b", "", "[\"a\"]"],
    "invalid": INVALID,
}  # fmt: skip
SIZES: dict[str, Any] = {**TOKENS, "max_size": FITTED}
LENGTHS: dict[str, Any] = {
    **TOKENS,
    "sequence_length": [None, 3, 8],
    "max_sequence_length": [None, 3, 256],
    "padding": ["left", "right"],
    "truncation": ["keep_start", "keep_end"],
    "add_start_stop": st.booleans(),
    "special_symbols": [
        None, None, "ludwig", {"unknown": "<UNK>", "padding": "<PAD>"},
        {"stop": ".", "padding": "<PAD>", "unknown": "b"}, {"padding": "_", "unknown": "?"},
    ],
}  # fmt: skip
TOKEN_CELLS = {"str": TEXTS, "JSON": JSON, **SCALARS, **ITEMS, **TIMES64}

TYPES = {
    "number": Type(
        dp.Number,
        params(
            normalization=["zscore", "minmax", "log1p", "iq", None],
            outlier_strategy=[None, "fill_with_mean", *MISSING],
            outlier_threshold=[0, 0.5, 1, 3.0],
            missing_value_strategy=[*MISSING, "fill_with_mean"],
            fill_value=st.sampled_from([0.0, 7, -0.5, -1.0, 1e30, -1.7e308]),
            null_values=[None, None, ["1", "inf", "?", "True"], ["-0", "1.0", "nan"]],
            written=[None, None, None, "1.234,5 €", "$1,234.5k", "1:30"],
            invalid=INVALID,
        ),
        {"str": NUMERALS, "written": WRITTEN | NUMERALS, "only written": WRITTEN, **WITHOUT_NANOSECONDS,
         "small float": st.floats(-3, 9, width=16), "list": st.just([1.0])},
    ),
    "category": Type(
        dp.Category,
        params(
            most_common=FITTED,
            lowercase=st.booleans(),
            missing_value_strategy=MISSING,
            hash_buckets=[None, None, 1, 3, 300],
            fill_value=["<UNK>", "a", " B ", 1, 1.5, "ΑΣ "],
            invalid=INVALID,
        ),
        {"str": TEXTS, **SCALARS, **TIMES64, "list": st.just(["a"])},
    ),
    "binary": Type(
        dp.Binary,
        params(
            positive=[None, None, "a", "yes", "1"],
            missing_value_strategy=["fill_with_false", "fill_with_true", *MISSING],
            fill_value=[True, 0, "no", "a"],
            invalid=INVALID,
        ),
        {"str": LABELS, "texts": TEXTS, "numerals": NUMERALS, "few": st.integers(0, 2),
         "floats": st.sampled_from([0.0, 1.0, -1.0]), **SCALARS},
    ),
    "set": Type(dp.Set, params(**SIZES), TOKEN_CELLS),
    "bag": Type(dp.Bag, params(**SIZES), TOKEN_CELLS),
    "sequence": Type(dp.Sequence, params(**LENGTHS), TOKEN_CELLS),
    "text": Type(
        dp.Text,
        params(
            **LENGTHS, level=["word", "char", "both"], char_most_common=FITTED, char_max_sequence_length=[None, 1, 2, 9]
        ),
        TOKEN_CELLS,
    ),
}  # fmt: skip


def frame_of(cells: list[Any]) -> pd.DataFrame:
    """Return a column with unchanged cells: pandas would convert integers with None to floats."""
    column = np.empty(len(cells), object)
    for i, cell in enumerate(cells):
        column[i] = cell
    return pd.DataFrame({"x": pd.Series(column, dtype=object)})


def natural_frame(cells: list[Any]) -> pd.DataFrame | None:
    """Return a column of the dtype that pandas infers, None if pandas rejects a text or changes integers."""
    if any(cell is None for cell in cells) and any(isinstance(cell, int | np.integer) for cell in cells):
        return None
    try:
        return pd.DataFrame({"x": cells})
    except UnicodeError:
        return None


def rows_of(cells: list[Any]) -> list[dict[str, Any]]:
    return [{"x": cell} for cell in cells]


def fitted(feature: Any, cells: list[Any]) -> dp.Preprocessor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return dp.Preprocessor({"x": feature}).fit(frame_of(cells))
        except DaskprepError:
            assume(False)
            raise


def encoded(encode: Callable[[Any], dict[str, Any]], rows: Any) -> dict[str, Any] | None:
    """Return arrays as type, shape and bytes, None if the rows are rejected."""
    try:
        arrays = encode(rows)
    except DaskprepError:
        return None
    return {output: (array.dtype, array.shape, array.tobytes()) for output, array in arrays.items()}


def encoded_columns(prep: dp.Preprocessor, frame: pd.DataFrame) -> dict[str, Any] | None:
    """Return the expected arrays, encoded by column."""
    return encoded(functools.partial(encode_columns, prep), frame)


def batch_of(prep: dp.Preprocessor, frame: pd.DataFrame) -> dict[str, Any]:
    """Return the batch of a loader for the rows of a frame."""
    arrays = encode_columns(prep, frame)
    changes = make_expanders(prep.features_, prep.learned_, arrays)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {name: changes.get(name, lambda one: one)(tensor).numpy() for name, tensor in tensors.items()}


@st.composite
def fits(draw: st.DrawFn, kind: str, most: int = 8) -> tuple[dp.Preprocessor, list[Any]]:
    """Draw a fitted Preprocessor and cells of one Python type."""
    one = TYPES[kind]
    cells = one.cells[draw(st.sampled_from(sorted(one.cells)))]
    prep = fitted(one.make(**draw(one.params)), draw(st.lists(st.none() | cells, min_size=1, max_size=most)))
    return prep, draw(st.lists(st.none() | cells | cells, max_size=most))


def check_rows(kind: str, data: st.DataObject) -> None:
    prep, cells = data.draw(fits(kind))
    encoder = Encoder(prep.to_dict())
    for some in (cells, *([cell] for cell in cells[:2])):
        expected = encoded_columns(prep, frame_of(some))
        event("refused" if expected is None else "encoded")
        assert encoded(encoder.encode, rows_of(some)) == expected, some
        if expected is not None:
            expanded = encoded(lambda rows: encoder.encode(rows, expand=True), rows_of(some))
            assert expanded == encoded(lambda frame: batch_of(prep, frame), frame_of(some))
    if isinstance(
        next((cell for cell in cells if cell is not None), None), str | float | int | dt.datetime | dt.timedelta
    ):
        frame = natural_frame(cells)
        assert frame is None or encoded(encoder.encode, rows_of(cells)) == encoded_columns(prep, frame), cells


QUICK = settings(suppress_health_check=list(HealthCheck), max_examples=15)
LONG = settings(suppress_health_check=list(HealthCheck), max_examples=100)


@pytest.mark.parametrize("kind", TYPES)
@QUICK
@given(data=st.data())
def test_rows_encode_as_in_a_frame(kind: str, data: st.DataObject) -> None:
    check_rows(kind, data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES)
@LONG
@given(data=st.data())
def test_rows_of_many_cells_encode_as_in_a_frame(kind: str, data: st.DataObject) -> None:
    check_rows(kind, data)


def counted(report: Mapping[str, Mapping[str, Any]], features: Any, rows: int) -> list[list[int]]:
    """Return the `cell_counts` of features from the cells in a report."""
    return [[rows, *(len(report.get(name, {}).get(kind, ())) for kind in CELL_KINDS)] for name in features]


def check_reported_cells(kind: str, data: st.DataObject) -> None:
    prep, cells = data.draw(fits(kind))
    assume(cells)
    try:
        encoder = Encoder(prep.to_dict())
        arrays, report = encoder.encode(rows_of(cells), report=True)
    except DaskprepError:
        assume(False)
        raise
    found = report.get("x", {})
    if "cut" not in found:  # `seen` does not count what is cut
        expected = {kind: len(found.get(kind, ())) for kind in ("missing", "unseen")}
        assert {kind: encoder.seen["x"][kind] for kind in expected} == expected, cells
    assert counted(report, ["x"], len(cells)) == prep.cell_counts(frame_of(cells)).to_numpy().tolist(), cells
    reported = [one for found in report.values() for some in found.values() for one in some.items()]
    assert all(cell is cells[row] or cell == json_number(cells[row]) for row, cell in reported)
    assert arrays.keys() == Encoder(prep.to_dict()).encode(rows_of(cells)).keys()


@pytest.mark.parametrize("kind", TYPES)
@QUICK
@given(data=st.data())
def test_reported_cells_equal_cell_counts(kind: str, data: st.DataObject) -> None:
    check_reported_cells(kind, data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES)
@LONG
@given(data=st.data())
def test_many_reported_cells_equal_cell_counts(kind: str, data: st.DataObject) -> None:
    check_reported_cells(kind, data)


@pytest.mark.parametrize("kind", ["str", *SCALARS])
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_cells_have_the_texts_and_numbers_of_columns(kind: str, data: st.DataObject) -> None:
    cells = {"str": NUMERALS | TEXTS, **SCALARS}[kind]
    cell = data.draw(cells)
    try:
        column = one_array(table_from_pandas(frame_of([cell, None]), ["x"])["x"])
        expected: Any = as_text(column).to_pylist()[0]
    except DaskprepError:
        with pytest.raises(ValueError, match=r"."):
            text_of(cell)
        return
    assert text_of(cell) == expected
    try:
        expected = as_numbers(column).to_pylist()[0]
    except DaskprepError:
        expected = None
    if kind != "Timestamp" and not isinstance(cell, dt.date | dt.time | dt.timedelta):
        assert repr(number_of(cell)) == repr(expected)


def test_encoder_does_not_need_the_vocabulary_file(tmp_path: pathlib.Path) -> None:
    (tmp_path / "tokens.txt").write_text("b\n<UNK>\na 7\n")
    cells = ["a b c", None, ""]
    prep = fitted(dp.Sequence(vocab_file=str(tmp_path / "tokens.txt")), cells)
    expected = encoded_columns(prep, frame_of(cells))
    (tmp_path / "tokens.txt").unlink()
    assert encoded(Encoder(prep.to_dict()).encode, rows_of(cells)) == expected


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", TYPES)
@settings(suppress_health_check=list(HealthCheck), max_examples=100, phases=[Phase.explicit, Phase.generate])
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_many_rows_encode_as_in_a_frame(kind: str, data: st.DataObject, seed: int) -> None:
    prep, cells = data.draw(fits(kind, most=60))
    assume(cells)
    encoder = Encoder(prep.to_dict())
    rng = np.random.default_rng(seed)
    drawn = [cells[i] for i in rng.integers(0, len(cells), 2_000)]
    # One rejected cell would hide the results of the others.
    known = {id(cell): encoded_columns(prep, frame_of([cell])) for cell in cells}
    readable = [cell for cell in drawn if known[id(cell)] is not None]
    expected = encoded_columns(prep, frame_of(readable))
    assert encoded(encoder.encode, rows_of(readable)) == expected
    assert encoded(encoder.encode, rows_of(drawn)) == encoded_columns(prep, frame_of(drawn))
    for cell in cells:
        assert encoded(encoder.encode, {"x": cell}) == known[id(cell)], cell


def test_threads_can_share_an_encoder() -> None:
    rng = np.random.default_rng(0)
    cells = [None if odd else f"{word} {number:g}" for odd, word, number in zip(
        rng.random(400) < 0.1, rng.choice(list("abcdef"), 400), rng.normal(size=400), strict=True
    )]  # fmt: skip
    features = {kind: TYPES[kind].make(column="x") for kind in ("category", "set", "bag", "sequence", "text")}
    prep = dp.Preprocessor(features).fit(frame_of(cells))
    encoder, start = Encoder(prep.to_dict()), threading.Barrier(8)
    alone = [(encoded(encoder.encode, row), encoder.encode(row, report=True)[1]) for row in rows_of(cells)]

    def work(number: int) -> bool:
        start.wait()
        order = np.random.default_rng(number).permutation(len(cells))
        rows = [{"x": cells[i]} for i in order]
        return all(
            (encoded(encoder.encode, row), encoder.encode(row, report=True)[1]) == alone[i]
            for i, row in zip(order, rows, strict=True)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


SALES = pd.DataFrame({
    "city": ["Rome", "Oslo", "Oslo", "Bern"] * 3, "sold": ["yes", "no"] * 6, "size": [70, 80.5, None, 90] * 3,
    "day": ["2021-03-05"] * 12, "since": ["2021-01-05"] * 12, "tags": ["a b", "c"] * 6,
    "note": ["the cat", "a dog"] * 6,
})  # fmt: skip
COLUMNS = {
    "city": "category", "sold": "binary", "size": "number", "tags": "set", "day": dp.Date(since="since"),
    "crossed": dp.Category(columns=["city", "sold"]), "hashed": dp.Category(column="city", hash_buckets=4),
    "buckets": dp.Category(column="city", oov_buckets=2), "parts": dp.Text(column="note", tokenizer="bpe"),
    "share": dp.TargetEncoding(column="city", target="size"), "gone": dp.Category(column="city", null_values=["Oslo"]),
}  # fmt: skip
NEW = [
    {"city": "Paris", "sold": "maybe", "size": "66,5", "day": "soon", "since": "x", "tags": "a z", "note": "Zebra"},
    dict.fromkeys(SALES.columns),
    {"city": "Oslo", "sold": "yes", "size": 80, "day": "2021-03-05", "since": None, "tags": "b", "note": "the dog"},
    {"city": "", "sold": "", "size": "", "day": " ", "since": "", "tags": "", "note": ""},
]


def test_reported_cells_of_many_columns_equal_cell_counts() -> None:
    prep = dp.Preprocessor(COLUMNS).fit(SALES)
    encoder = Encoder(prep.to_dict())
    for rows in (NEW, *([row] for row in NEW)):
        _, report = encoder.encode(rows, report=True)
        counts = prep.cell_counts(pd.DataFrame(rows, dtype=object))
        assert counted(report, counts.index, len(rows)) == counts.to_numpy().tolist()
    assert encoder.encode(NEW[2], report=True)[1] == {"gone": {"missing": {0: "Oslo"}}}


def test_strict_encoder_raises_for_cells_it_would_impute() -> None:
    encoder = Encoder(dp.Preprocessor({name: COLUMNS[name] for name in ("city", "size")}).fit(SALES).to_dict())
    good = {"city": "Rome", "size": None}
    assert encoder.encode(good, strict=True, report=True)[1] == {"size": {"missing": {0: None}}}
    with pytest.raises(RejectedValueError, match=r"column \"size\": '66,5' of row 1 cannot be read.*None.*1 more such"):
        encoder.encode([good, {"city": "Rome", "size": "66,5"}, {"city": "Pisa", "size": 1}], strict=True)
    with pytest.raises(RejectedValueError, match="column \"city\": 'Pisa' of row 0 .* not learned"):
        encoder.encode({"city": "Pisa", "size": 1}, strict=True)


def test_objects_that_are_not_rows_raise() -> None:
    prep = dp.Preprocessor({"x": "number", "y": "binary"}, targets="y").fit(pd.DataFrame({"x": [1, 2], "y": [0, 1]}))
    encoder = Encoder(prep.to_dict())
    for rows, message in (
        (None, "a NoneType is not a row: pass a mapping, or a list"),
        (pd.DataFrame({"x": [1]}), "a DataFrame is not a row"),
        ("x", "row 0 is a str: pass a mapping"),
        ([{"x": 1}, None], "row 1 is a NoneType"),
    ):
        with pytest.raises(ColumnError, match=message):
            encoder.encode(rows)  # type: ignore[arg-type]


def test_missing_columns_of_a_row_share_one_error() -> None:
    prep = dp.Preprocessor({"size": "number", "city": "category"}).fit(pd.DataFrame({"size": [1, 2], "city": "Oslo"}))
    encoder = Encoder(prep.to_dict())
    for rows, message in (
        ({}, 'row 0 has no "size", "city". Pass None for missing cells.'),
        ([{"size": 1, "city": "Oslo"}, {"sizes": 3}], 'row 1 has no "size", "city". Pass None for missing cells. The '),
        ({"size": 1, "cty": "Oslo"}, 'row 0 has no "city". Did you mean "cty"? Pass None for missing cells. The row '),
    ):
        with pytest.raises(ColumnError) as caught:
            encoder.encode(rows)  # type: ignore[arg-type]
        assert str(caught.value).startswith(message)
    assert str(caught.value).endswith(" The row has: size, cty")


def test_cell_of_a_list_raises_with_its_row() -> None:
    encoder = Encoder(dp.Preprocessor({"x": "number"}).fit(pd.DataFrame({"x": [1, 2]})).to_dict())
    with pytest.raises(ColumnError, match=r'column "x", row 2: holds a value of type list, which has no single text'):
        encoder.encode([{"x": 1}, {"x": None}, {"x": [3]}, {"x": [4]}])
    with pytest.raises(ColumnError, match=r'column "x": holds a value of type list'):
        encoder.encode({"x": [3]})


def test_reports_are_valid_json() -> None:
    encoder = Encoder(dp.Preprocessor({"x": "number"}).fit(pd.DataFrame({"x": [1, 2]})).to_dict())
    report = encoder.encode([{"x": 1e400}, {"x": float("nan")}, {"x": None}], report=True)[1]
    assert json.loads(json.dumps(report, allow_nan=False)) == {
        "x": {"missing": {"0": "inf", "1": "nan", "2": None}, "unreadable": {"0": "inf"}}
    }


def test_paths_raise_with_the_function_to_use(tmp_path: pathlib.Path) -> None:
    prep = dp.Preprocessor({"x": "number"})
    prep.fit_write(pd.DataFrame({"x": [1, 2]}), tmp_path / "a.dp")
    with pytest.raises(ConfigError, match=r"Encoder: state='prep.json' is not a mapping: use daskprep.serving.load"):
        Encoder("prep.json")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"a.dp.*; pass the file .*from_dataset\(path\).save\(file\)"):
        serving.load(tmp_path / "a.dp")


def test_unreadable_cell_raises_with_its_row() -> None:
    encoder = Encoder(dp.Preprocessor({"x": dp.Number(invalid="raise")}).fit(pd.DataFrame({"x": [1, 2]})).to_dict())
    with pytest.raises(RejectedValueError, match=r'column "x": \'\$3\' of row 1 cannot be read'):
        encoder.encode([{"x": 1}, {"x": "$3"}])


def test_empty_request_has_no_targets() -> None:
    prep = dp.Preprocessor({"x": "number", "y": "binary"}, targets="y").fit(pd.DataFrame({"x": [1, 2], "y": [0, 1]}))
    assert {name: array.shape for name, array in Encoder(prep.to_dict()).encode([]).items()} == {"x": (0,)}


def test_target_without_a_label_is_left_out():
    frame = pd.DataFrame({"x": [1, 2, 3, 4], "y": ["no", "yes", "no", "yes"], "size": [5, 6, 7, 8]})
    prep = dp.Preprocessor({"x": "number", "y": "category", "size": "number"}, targets=["y", "size"]).fit(frame)
    encoder = Encoder(prep.to_dict())
    rows = [{"x": 1, "y": "no", "size": 5}, {"x": 2, "y": None, "size": 6}]
    arrays, cells = encoder.encode(rows, report=True)
    assert [*arrays] == ["x", "size"]
    assert cells == {"y": {"missing": {1: None}}}
    with pytest.warns(UserWarning, match='without "y"'):
        assert [*prep.encode(pd.DataFrame(rows))] == ["x", "size"]


def test_unseen_label_is_an_error_beside_a_missing_one():
    prep = dp.Preprocessor({"x": "number", "y": "category"}, targets="y")
    prep.fit(pd.DataFrame({"x": [1, 2], "y": ["no", "yes"]}))
    rows = [{"x": 1, "y": None}, {"x": 2, "y": "maybe"}]
    for encode in (lambda: prep.encode(pd.DataFrame(rows)), lambda: Encoder(prep.to_dict()).encode(rows)):
        with pytest.raises(RejectedValueError, match='"y".*label.* that no training row has'):
            encode()


def test_seen_counts_cells_of_all_requests():
    frame = pd.DataFrame(
        {
            "x": [1.0, 2.0, 3.0],
            "c": ["a", "b", "a"],
            "t": ["u v", "v w", "w"],
            "s": ["one two", "two", "three"],
            "b": ["u", "v v", "w"],
            "o": ["a", "b", "c"],
            "h": ["a", "b", "c"],
            "d": pd.to_datetime(["2024-01-01 00:00", "2024-01-02 00:00", "2024-01-03 12:00"]),
            "y": ["no", "yes", "no"],
        }
    )
    features = {"x": "number", "c": "category", "t": "set", "s": dp.Text(level="both"), "b": "bag", "d": "date"}
    features |= {"o": dp.Category(oov_buckets=3), "h": dp.Category(hash_buckets=3), "y": "binary"}
    encoder = Encoder(dp.Preprocessor(features, targets="y").fit(frame).to_dict())
    none = dict.fromkeys(("missing", "unseen", "out_of_range"), 0)
    assert encoder.seen == {name: {"rows": 0, **none} for name in features}
    symbol = {"c": "<UNK>", "t": "u <UNK>", "s": "one <UNK>", "b": ["<UNK>"], "o": "<UNK>", "h": "<UNK>"}
    odd = {"x": 9, "c": "z", "t": "u z", "s": "one zz", "b": "z z", "o": "z", "h": "z", "d": "2023-12-31 23:59:59"}
    edges = {"x": 3, "c": None, "t": None, "s": None, "b": "w", "o": "a", "h": None, "d": "2024-01-03T12:00:00.5"}
    rows = [odd, edges, {**odd, "x": "?", "d": None}, {**edges, **symbol}]
    reported = encoder.encode(rows, report=True)[1]
    encoder.encode({**edges, "y": "yes"})
    for name, counts in encoder.seen.items():
        assert counts["rows"] == (1 if name == "y" else 5)
        cells = reported.get(name, {})
        again = 0 if edges.get(name, "") is not None else 1
        assert counts["missing"] == len(cells.get("missing", {})) + again, name
        assert counts["unseen"] == len(cells.get("unseen", {})), name
    assert {name: counts["out_of_range"] for name, counts in encoder.seen.items() if counts["out_of_range"]} == {
        "x": 1,
        "d": 1,
    }


def test_seen_counts_cells_of_types_that_columns_encode():
    frame = pd.DataFrame({"at": pd.date_range("2024-01-01", periods=3), "item": ["a", "b", "a"]})
    features = {"days": dp.Timeseries(column="at", parts=["day"], window_size=2), "past": dp.History(column="item")}
    encoder = Encoder(dp.Preprocessor(features).fit(frame).to_dict())
    rows = [{"at": "2024-02-01", "item": "z"}, {"at": None, "item": "a"}, {"at": "never", "item": None}]
    reported = encoder.encode(rows, report=True)[1]
    assert {name: {kind: len(cells) for kind, cells in one.items()} for name, one in reported.items()} == {
        "days": {"missing": 2, "unreadable": 1, "padded": 3},
        "past": {"unseen": 1, "padded": 1},
    }
    assert encoder.seen["days"] == {"rows": 3, "missing": 2, "unseen": 0, "out_of_range": 0, "padded": 3}
    assert encoder.seen["past"] == {"rows": 3, "missing": 0, "unseen": 1, "out_of_range": 0, "padded": 1}


def test_seen_counts_cells_of_all_threads():
    encoder = Encoder(dp.Preprocessor({"x": "number"}).fit(pd.DataFrame({"x": [1, 2]})).to_dict())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(encoder.encode, [{"x": 5}] * 2_000))
    assert encoder.seen["x"] == {"rows": 2_000, "missing": 0, "unseen": 0, "out_of_range": 2_000}
