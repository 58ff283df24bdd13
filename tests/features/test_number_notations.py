"""Numbers in notations such as "$1,234.5": one notation per column, learned from all of its rows."""

from __future__ import annotations

import functools
import itertools
import json
import warnings
from decimal import Decimal
from typing import Any

import dask.dataframe
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

import daskprep as dp
from daskprep.errors import ConfigError, RejectedValueError
from daskprep.features.cells import parse_numbers_and_strip
from daskprep.features.notation import as_thousands, mask_ambiguous, parse_strict_notation
from daskprep.rows.cells import NUMBER_PATTERN
from daskprep.rows.numbers import AMBIGUOUS, derive_notation, full_match, parse_number
from daskprep.serving import Encoder
from daskprep.sources import TableSource
from tests.arrow_columns import encode_columns

DAY, HOUR, FILL = 86_400.0, 3_600.0, -99.0
CONSTANT = {"normalization": None, "missing_value_strategy": "fill_with_const", "fill_value": FILL}


def fit(*cells: Any, **params: Any) -> dp.Preprocessor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "column .* cannot be read")
        return dp.Preprocessor({"x": dp.Number(**{**CONSTANT, **params})}).fit(frame_of(*cells))


def frame_of(*cells: Any) -> pd.DataFrame:
    return pd.DataFrame({"x": list(cells)})


def encode(prep: dp.Preprocessor, *cells: Any) -> list[float]:
    encoded = encode_columns(prep, frame_of(*cells))["x"]
    rows = Encoder(prep.to_dict()).encode([{"x": cell} for cell in cells])["x"]
    assert rows.tobytes() == encoded.tobytes()
    return encoded.tolist()


def written(prep: dp.Preprocessor) -> str | None:
    return prep.learned_["x"].written


@pytest.mark.parametrize(
    ("cells", "style", "numbers"),
    [
        (["$1,299.00", "$5", "-$5", "$-5", "($7.5)", "US", "12"], "$1,234.5", [1299, 5, -5, -5, -7.5, None, 12]),
        (["1 299,00 €", "5,5 €", "€ 7"], "1 234,5 €", [1299, 5.5, 7]),
        (["1\u00a0299,5", "1\u202f000,25"], "1 234,5", [1299.5, 1000.25]),
        (["12 %", "5%", "0.5 %"], "1,234.5 %", [12, 5, 0.5]),
        (["(1,200)", "7", "2,345.5"], "1,234.5", [-1200, 7, 2345.5]),
        (["5.3 kg", "4 kgs", "1,200 kg", "5 lb"], "1,234.5 kg", [5.300000190734863, 4, 1200, None]),
        (["36 months", "1 month"], "1,234.5 months", [36, 1]),
        (["1.2k", "3M", "500", "-2K"], "1,234.5k", [1200, 3e6, 500, -2000]),
        (["$3M", "$1.5k", "$2B"], "$1,234.5k", [3e6, 1500, 2e9]),
        (["1'000", "1\u20192345", "1'234.5"], "1'234.5", [1000, None, 1234.5]),
        (["\u22125", "3", "-4"], "1,234.5", [-5, 3, -4]),
        (["₹1,23,456.50", "₹5"], "₹1,234.5", [123456.5, 5]),
        (["5 m2", "7 m\u00b2"], "1,234.5 m\u00b2", [5, 7]),
        (["1.299,50", "2.000,00", "7"], "1.234,5", [1299.5, 2000, 7]),
        (["CHF 5.50", "7 CHF"], "CHF 1,234.5", [5.5, 7]),
        (["1e3 kg", ".5 kg"], "1,234.5 kg", [1000, 0.5]),
        (["Rs2", "Rs3", "Rs5", "Rs 12"], "Rs 1,234.5", [2, 3, 5, 12]),  # no squares and cubes
        (["$1e2", "$1e3", "$1e4"], "$1,234.5", [100, 1000, 10_000]),
        (["5 mile2", "7 mile\u00b2"], "1,234.5 mile\u00b2", [5, 7]),
        (["5 K", "7 K"], "1,234.5 K", [5, 7]),
        (["12:34:56", "1:00:00.5", "-0:00:01"], "1:30:00", [45296, 3600.5, -1]),
        (["3:45", "12:30"], "1:30", [13500, 45000]),
        (["59:30", "1:02:15"], "1:30:00", [None, 3735]),
        (["1h 30m", "45m", "2 hours", "90 s", "1h30m10.5s", "0"], "1:30:00", [5400, 2700, 7200, 90, 5410.5, 0]),
        (["2 days 03:00:00", "-1 days +23:59:59", "-1 day, 1:00:00"], "1:30:00", [183600, -1, -90000]),
        (["PT1H", "P1DT2H", "-PT0.5S", "P2W", "P1Y"], "1:30:00", [HOUR, DAY + 2 * HOUR, -0.5, 14 * DAY, None]),
        (["45 min", "50 min"], "1,234.5 min", [45, 50]),
    ],
)
def test_numbers_are_read_in_the_notation_of_their_column(cells, style, numbers):
    prep = fit(*cells)
    assert written(prep) == style
    assert encode(prep, *cells) == [FILL if number is None else number for number in numbers]
    assert prep.learned_["x"].invalid == numbers.count(None)
    assert written(fit(style, style)) == style  # a notation is an example of itself


@pytest.mark.parametrize(
    ("cells", "style", "numbers"),
    [
        (["1,234", "2,345"], "1,234.5", [1234, 2345]),  # as in English
        (["1,234", "2,5"], "1.234,5", [1.234, 2.5]),  # cell with a single reading
        (["1,234", "2,345.5"], "1,234.5", [1234, 2345.5]),
        (["1,234", "0.5"], "1,234.5", [1234, 0.5]),
        (["1,234", "0,123"], "1.234,5", [1.234, 0.123]),
        (["1.234 €", "2.345.678 €"], "1.234,5 €", [1234, 2345678]),
        (["1,5", "1.5 kg", "2.5 kg"], None, [None, None, None]),
        (["1,5 kg", "1.5 kg"], None, [None, None]),  # equally many of both
        (["1,5", "1.5"], None, [None, 1.5]),  # plain numbers are unchanged
        (["1,5", "2,5", "12.50"], "1.234,5", [1.5, 2.5, 12.5]),  # also in the most frequent notation
        (["€1,5", "€2,5", "12.50", "7"], "€1.234,5", [1.5, 2.5, 12.5, 7]),
        (["1,5", "2.5", "3.5"], None, [None, 2.5, 3.5]),
        (["1,5", "2,5", "$12.50"], None, [None, None, None]),  # a certain decimal point excludes thousands
        ([*["1,5"] * 19, "1.234"], "1.234,5", [*[1.5] * 19, 1234]),
        ([*["1,5"] * 18, "1.234"], None, [*[None] * 18, 1.234]),
        (["1.234", "1.234.567"], "1.234,5", [1234, 1234567]),
        (["1.234", "2.345", "1.234.567,5", "7"], "1.234,5", [1234, 2345, 1234567.5, 7]),
        ([*["1.234"] * 20, "1.234,5"], None, [*[1.234] * 20, None]),  # one among many may be a typing error
        (["1.234", "0.5", "1.234,5"], None, [1.234, 0.5, None]),
        (["5.000", "2,5"], "1.234,5", [5000, 2.5]),
        (["1.265", "416,945", "-736,4"], None, [1.265, None, None]),  # no thousands with a decimal comma
        (["1h 30m", "45"], None, [None, 45]),  # of minutes or seconds
        (["12", "12A", "14B", "15"], None, [12, None, None, 15]),
        (["$5", "$6", "€7"], "$1,234.5", [5, 6, None]),
        (["$5", "7 dollars"], "$1,234.5", [5, None]),
        (["1½", "½", "2"], None, [None, None, 2]),
    ],
)
def test_ambiguity_is_resolved_by_the_column_or_cells_stay_unreadable(cells, style, numbers):
    prep = fit(*cells)
    assert written(prep) == style
    assert encode(prep, *cells) == np.array([FILL if one is None else one for one in numbers], np.float32).tolist()


@pytest.mark.parametrize(
    "cell", ["€5", "5 lb", "$5 kg", "1,23", "$", "5 $ $", "1h 30m", "3:45", "1_000", "0x10", "5-7"]
)
def test_new_cells_in_another_notation_are_unreadable(cell):
    prep = fit("$1,299.00", "$5")
    assert encode(prep, cell, "$7", "8") == [FILL, 7, 8]
    counts = prep.cell_counts(frame_of(cell, "$7"))
    assert counts.loc["x"].tolist() == [2, 1, 1, 0]


def test_point_is_a_thousands_separator_with_a_decimal_comma(tmp_path):
    prep = fit("1.234,50 EUR", "2.500,00 EUR", "12 EUR", "7")
    assert encode(prep, "1.234", " -1.500\n", "5.000", "1.234 EUR") == [1234, -1500, 5000, 1234]
    assert encode(prep, "1.234", "0.5") == [1234, 0.5]  # independent of the rest of the partition
    assert encode(prep, "1.5", "1234.5", "1.2345", "1.125e2") == [1.5, 1234.5, np.float32(1.2345), 112.5]
    assert encode(prep, 1.125, 5.0) == [1.125, 5]  # not text
    prep.save(str(tmp_path / "prep.json"))
    assert encode(dp.Preprocessor.load(str(tmp_path / "prep.json")), "1.234") == [1234]
    assert encode(fit("1 234,50 EUR", "7,5 EUR"), "1.125") == [1.125]  # spaces separate thousands there
    assert encode(fit("1,234.50 EUR", "7.5 EUR"), "1.125") == [1.125]


PLAIN = st.from_regex(NUMBER_PATTERN, fullmatch=True) | st.from_regex("[+-]?0?[0-9]{0,4}[.][0-9e]{3}", fullmatch=True)
SPACED = st.builds(
    "{}{}{}".format, st.sampled_from(["", "", " ", "\t", "\u00a0"]), PLAIN, st.sampled_from(["", "", "\n"])
)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(PLAIN | SPACED | st.none() | st.sampled_from(["", "n/a", "a.234", "é.123"]), max_size=20))
def test_mask_ambiguous_equals_a_regular_expression(cells):
    cells = [None if cell is None else "".join(c for c in cell if c.isascii() or c in "\u00a0é") for cell in cells]
    numbers, texts = parse_numbers_and_strip(pa.array(["x.234", *cells, "1.234"], pa.string())[1:-1])
    assert mask_ambiguous(texts, numbers).tolist() == [
        cell is not None and full_match(AMBIGUOUS, cell.strip()) is not None for cell in cells
    ]


def test_all_ambiguous_numbers_are_read_as_exact_thousands():
    thousands = np.arange(1_000, 1_000_000)
    texts = pa.array([f"{one // 1000}.{one % 1000:03}" for one in thousands.tolist()])
    numbers, _ = parse_numbers_and_strip(texts)
    assert mask_ambiguous(texts, numbers).all()
    assert as_thousands(numbers).to_numpy().tolist() == thousands.tolist()
    assert as_thousands(pa.array(-numbers.to_numpy())).to_numpy().tolist() == (-thousands).tolist()


def test_plain_columns_save_no_notation_and_read_no_other():
    prep = fit("1", "2.5")
    assert "written" not in prep.to_dict()["features"]["x"]["learned"]
    assert "written" not in prep.to_dict()["features"]["x"]["params"]
    assert encode(prep, "$5", "\u22125", "1,234") == [FILL, FILL, FILL]


def test_explicit_notation_resolves_ambiguity(tmp_path):
    prep = fit("1.234", "12", "2,5", "1.5", written="1.234,5 €")
    assert encode(prep, "1.234", "12", "2,5", "1.5", "7 €", "7 $") == [1234, 12, 2.5, FILL, 7, FILL]
    assert encode(prep, 1.5, 1234.0) == [1.5, 1234]  # numbers are not parsed as text
    prep.save(str(tmp_path / "prep.json"))
    assert encode(dp.Preprocessor.load(str(tmp_path / "prep.json")), "1.234") == [1234]
    assert encode(fit("3:45", "90", written="1:30"), "3:45", "90") == [13500, 90]
    with pytest.raises(ConfigError, match="'a lot' is not a number, so it cannot show the notation"):
        fit("1", written="a lot")


def test_cells_in_another_notation_raise_with_invalid_raise():
    with pytest.raises(RejectedValueError, match=r"'5 lb' cannot be read as a number \(2 such cells\)"):
        fit("5 kg", "6 kg", "7 kg", "5 lb", "5 lb", invalid="raise")
    with pytest.raises(RejectedValueError, match="'5 lb' cannot be read"):
        fit("5 kg", "6 kg", invalid="raise").encode(frame_of("5 lb"))


def test_statistics_equal_statistics_of_numbers():
    cells = [f"${i:,}.50" for i in (1, 2, 2, 2000, 3)]
    params = {"missing_value_strategy": "fill_with_mode", "outlier_strategy": "fill_with_mean"}
    for normalization in ("zscore", "iq"):
        number = dp.Number(normalization=normalization, **params)
        as_text = dp.Preprocessor({"x": number}).fit(frame_of(*cells, None)).learned_["x"].to_dict()
        values = frame_of(*(float(cell[1:].replace(",", "")) for cell in cells), None)
        assert as_text.pop("written") == "$1,234.5"
        assert as_text == dp.Preprocessor({"x": number}).fit(values).learned_["x"].to_dict()


def test_cells_in_another_notation_are_dropped_and_listed(tmp_path):
    frame = frame_of("5 kg", "6 kg", "5 lb", None, "7 kg")
    number = dp.Number(normalization=None, missing_value_strategy="drop_row")
    with pytest.warns(UserWarning, match="1 of 5 cells cannot be read as a number, such as '5 lb', .*write all"):
        dataset = dp.Preprocessor({"x": number}).fit_write(frame, tmp_path / "data")
    learned = dataset.learned["x"]
    assert (learned.rows, learned.missing, learned.invalid, learned.mean) == (3, 2, 1, 6.0)
    assert dataset["train"].read()["x"].tolist() == [5, 6, 7]
    assert [(one["row_id"], one["reason"]) for one in dataset.rejects().to_pylist()] == [
        (2, "'5 lb' is excluded by the fitted state"),
        (3, "missing"),
    ]


def test_dropped_outliers_are_listed_in_their_notation(tmp_path):
    cells = ["$5"] * 20 + ["$9,000", "7"]
    number = dp.Number(normalization=None, outlier_strategy="drop_row")
    dataset = dp.Preprocessor({"x": number}).fit_write(frame_of(*cells), tmp_path / "data")
    assert [one["reason"] for one in dataset.rejects().to_pylist()] == ["'$9,000' is excluded by the fitted state"]


@pytest.mark.parametrize(
    ("cells", "notation", "mean"),
    [
        (["2.5", "2.5", "1,5"] * 20, None, 2.5),  # too many commas among decimal points
        (["2.5", *["1.234"] * 30, *["1,5"] * 700], "1.234,5", (2.5 + 1234 * 30 + 1.5 * 700) / 731),
        (["2.5", "3.25", *["1.234"] * 6], None, (2.5 + 3.25 + 1.234 * 6) / 8),
    ],
)
@pytest.mark.parametrize("npartitions", [1, 5, 20])
@pytest.mark.filterwarnings("ignore:column .* (cannot be read|is constant)")
def test_notation_does_not_depend_on_partitions(cells, notation, mean, npartitions):
    frame = dask.dataframe.from_pandas(frame_of(*cells), npartitions=npartitions)
    learned = dp.Preprocessor({"x": dp.Number()}).fit(frame).learned_["x"]
    assert (learned.written, learned.mean) == (notation, pytest.approx(mean))


@pytest.mark.parametrize("strategy", ["ffill", "bfill"])
def test_fills_span_partitions_of_plain_and_other_notations(strategy, tmp_path):
    cells = ["1", None, "$2,000", None, None, "3.125", None, "(4)", None]
    number = dp.Number(normalization=None, missing_value_strategy=strategy, outlier_strategy=strategy)
    written = []
    for partitions in (1, 3, 9):
        frame = dask.dataframe.from_pandas(frame_of(*cells), npartitions=partitions)
        dataset = dp.Preprocessor({"x": number}).fit_write(frame, tmp_path / str(partitions))
        written.append((dataset.learned["x"], dataset["train"].read()["x"].tolist()))
    assert written[0] == written[1] == written[2]
    filled = {"ffill": [1, 1, 2000, 2000, 2000, 3.125, 3.125, -4, -4]}
    filled["bfill"] = [1, 2000, 2000, 3.125, 3.125, 3.125, -4, -4, -4]
    assert written[0][1] == filled[strategy]
    assert written[0][0].mean == np.mean(filled[strategy])


AMOUNTS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "", "-", "$", "$-", "(", "€ ", "Rs.", "\u2212"]),
    st.sampled_from(["5", "1,234", "1.234", "1,5", "0.25", "1 234", "1'000", "1.234,5", "12,345.75", "1,23,456", ".5"]),
    st.sampled_from(["", "", "k", "M", "k €"]),
    st.sampled_from(["", "", " €", "%", " kg", " kgs", ")", " m2"]),
)
SPANS = st.sampled_from(["3:45", "1:02:03", "1h 30m", "45m", "PT1H", "2 days 03:00:00", "-1 days +23:59:59", "90 s"])
OTHERS = st.none() | st.sampled_from(["1", "2.5", "1.234", "0", "n/a", "", "1e400", "½", "x" * 70, "5 " + "kg" * 40])
CELLS = st.lists(AMOUNTS | OTHERS, min_size=1, max_size=12) | st.lists(SPANS | SPANS | OTHERS, min_size=1, max_size=8)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:column .* (cannot be read|is constant|has no values)")
@settings(deadline=None)
@given(
    CELLS,
    CELLS,
    st.data(),
    st.sampled_from(["fill_with_const", "fill_with_mean", "ffill", "bfill", "drop_row"]),
    st.sampled_from([None, None, None, "1.234,5 €", "$1,234.5k", "1:30"]),
)
def test_results_do_not_depend_on_partitions_and_equal_single_rows(cells, new, data, strategy, style):
    number = dp.Number(normalization="minmax", missing_value_strategy=strategy, written=style)

    def pieces(column):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(column)), max_size=4)))
        bounds = zip([0, *cuts], [*cuts, len(column)], strict=True)
        return TableSource([pa.table({"x": pa.array(column[low:high], pa.string())}) for low, high in bounds])

    def tried(work):
        try:
            return work()
        except ValueError:
            return "refused"

    prep = dp.Preprocessor({"x": number})
    whole, cut = (
        tried(functools.partial(clone(prep).fit, rows))
        for rows in (frame_of(*cells).astype("string[pyarrow]"), pieces(cells))
    )
    if "refused" in (whole, cut):
        assert whole == cut
        return
    assert whole.to_dict() == cut.to_dict()
    expected = tried(lambda: np.asarray(encode_columns(whole, frame_of(*new).astype("string[pyarrow]"))["x"]).tobytes())
    rows, encoder = [{"x": cell} for cell in new], Encoder(whole.to_dict())
    for encode_new in (lambda: whole.encode(pieces(new)), lambda: encoder.encode(rows)):
        assert tried(lambda encode=encode_new: np.asarray(encode()["x"]).tobytes()) == expected


@pytest.mark.slow
@given(st.text(st.sampled_from("0123456789.,' -+()$€%kMBhmsdPT:\u00a0\u2212²²a/"), max_size=14), CELLS)
def test_columns_and_rows_parse_the_same_numbers(text, cells):
    for example in ("$1,234.5", "1.234,5 €", "1 234,5k", "1'234.5 kg", "1:30", "1:30:00", "-1,234.5 %"):
        number = dp.Number(normalization=None, written=example)
        parsed = number.parse(pa.array([text, *cells], pa.string())).to_pylist()
        style = derive_notation(example)
        for cell, value in zip([text, *cells], parsed, strict=True):
            alone = None if cell is None else parse_number(cell, style)
            assert alone is None or repr(alone) == repr(value), (cell, example)


PARTS = st.sampled_from(["", "0", "1", "0.123456789", "7.77777", "12.35", "007", "59", "90071992547409.93"])
SHAPES = (
    "{}w {}d {}h {}m {}s|{} days {} hours, {} mins|P{}W{}DT{}H{}M{}S|{} days {}:{}:{}|PT{}M{}S|{}h{}s|"
    "{} days +0{}:5{}:1{}|{}d 0{}:5{}|1{}:2{}:3{}|{}:2{}|{}h|{}"
)
SUMS = [f"{h}h {m}m {s}s" for h, m, s in itertools.product(["0.1", "0.123456789", "7.77777", "12.35"], repeat=3)]
DURATIONS = st.builds(
    lambda sign, shape, parts: sign + shape.format(*parts),
    st.sampled_from(["", "-", "+", "\u2212"]),
    st.sampled_from(SHAPES.split("|")),
    st.lists(PARTS, min_size=5, max_size=5),
)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(DURATIONS | SPANS | AMOUNTS, min_size=1, max_size=30), st.sampled_from(["1:30", "1:30:00"]))
def test_duration_columns_equal_single_texts_bit_for_bit(texts, example):
    texts += SUMS
    column = parse_strict_notation(pa.array([*texts, None], pa.string()), derive_notation(example)).to_pylist()
    alone = [parse_number(text, derive_notation(example)) for text in texts]
    assert [repr(number) for number in column] == [repr(number) for number in [*alone, None]]


@given(st.lists(AMOUNTS | DURATIONS, min_size=1, max_size=30))
def test_amount_columns_equal_single_texts_bit_for_bit(texts):
    for example in (
        "$1,234.5",
        "1.234,5 \u20ac",
        "1 234,5k \u20ac",
        "1'234.5 kg",
        "Rs. 1,234.5",
        "5.5k kg",
        "1,234.5 %",
        "5 e",
    ):
        column = parse_strict_notation(pa.array(texts, pa.string()), derive_notation(example)).to_pylist()
        assert list(map(repr, column)) == [repr(parse_number(text, derive_notation(example))) for text in texts]


MARKED = st.sampled_from(["1.299,50 \u20ac", "12,5 \u20ac", "7 \u20ac", "1.234", "-3,25", "other", ""])
ALONE = st.one_of(
    st.floats(-1e6, 1e6),
    st.floats(width=32).map(np.float32),
    st.integers(),
    st.booleans(),
    st.decimals(-(10**9), 10**9, places=3),
    st.sampled_from([1.234, -12.345, 1e30, 1.5e-89, Decimal("1.5E-89"), 2**70, float("nan")]),
)


@pytest.mark.slow
@given(st.lists(ALONE, min_size=1, max_size=9), st.lists(MARKED, min_size=1, max_size=9), st.booleans())
def test_numbers_do_not_depend_on_text_in_the_column(numbers, texts, is_given):
    frame = pd.DataFrame({"price": ["1.299,50 \u20ac", "12,5 \u20ac", "7 \u20ac"]})
    feature = dp.Number(normalization=None, written="1.234,5 \u20ac" if is_given else None)
    prep = dp.Preprocessor({"price": feature}).fit(frame)
    cells = [*numbers, *texts] * (200 // (len(numbers) + len(texts)))  # more than row encoders accept
    together = encode_columns(prep, pd.DataFrame({"price": pd.Series(cells, dtype=object)}))["price"]
    alone = Encoder(prep.to_dict()).encode([{"price": cell} for cell in cells])["price"]
    assert together.tobytes() == alone.tobytes()


def test_notation_is_learned_from_texts_among_numbers():
    texts = ["1.299,50 \u20ac", "12,5 \u20ac", "7 \u20ac"] * 20
    cells = [*texts, 1.234, 7]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prep = dp.Preprocessor({"price": dp.Number(normalization=None, written="1.234,5 \u20ac")})
        encoded = encode_columns(prep.fit(pd.DataFrame({"price": cells})), pd.DataFrame({"price": cells}))["price"]
    assert encoded.tolist() == np.float32([1299.5, 12.5, 7] * 20 + [1.234, 7]).tolist()


def test_numbers_among_text_in_json_stay_numbers(tmp_path):
    cells = [1.234, "1.299,5 \u20ac", True, [1]]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"price": cell}) + "\n" for cell in cells))
    feature = dp.Number(normalization=None, written="1.234,5 \u20ac")
    for partition_bytes in (1, 1000):
        source = dp.read_files(tmp_path / "a.jsonl", partition_bytes=partition_bytes)
        assert source.read(source.npartitions - 1, ["price"])["price"].to_pylist()[-1] == "[1]"
        with pytest.warns(UserWarning, match=r"\[1\]"):
            prep = dp.Preprocessor({"price": feature}).fit(source)
        encoded = encode_columns(prep, source)["price"].compute()
        assert encoded[:3].tolist() == np.float32([1.234, 1299.5, 1]).tolist()


CODES = [
    "A{}",
    "SKU{:04}",
    "LH{}",
    "EU {}",
    "Zone {}",
    "{}A",
    "{}D",
    "{}-B",
    "D-{}",
    "G{}",
    "kg {:03}",
    "USD {:05}",
    "{} qx",
]


@pytest.mark.parametrize("code", CODES)
def test_letters_of_codes_are_not_units(code):
    frame = pd.DataFrame({"x": [code.format(number) for number in range(11, 36)] * 2})
    with pytest.warns(UserWarning, match="50 of 50 cells cannot be read as a number, such as .*another type"):
        prep = dp.Preprocessor({"x": dp.Number(missing_value_strategy="fill_with_const")}).fit(frame)
    assert prep.learned_["x"].invalid == 50
    found = dp.infer_features(frame)
    assert found["x"].kind == "category"


@given(
    st.sampled_from(
        ["kg", "km/h", "kWh/m²", "hours", "USD", "EUR/kg", "kr.", "°C", "sq. ft.", "%", "K", "mm", "lbs", "CHF", "L"]
    ),
    st.lists(st.integers(1, 999), min_size=2, max_size=30),
    st.sampled_from(["", " "]),
)
@settings(deadline=None, max_examples=60)
def test_known_units_are_learned(unit, numbers, blank):
    blank = blank or " " * (unit == "K")  # "5K" is in thousands
    prep = dp.Preprocessor({"x": dp.Number(normalization=None)})
    prep.fit(pd.DataFrame({"x": [f"{number}{blank}{unit}" for number in numbers]}))
    assert prep.encode(pd.DataFrame({"x": [f"7{blank}{unit}", "8"]}))["x"].tolist() == [7, 8]


@pytest.mark.parametrize("sign", ["$", "€", "US$", "R$", "CHF ", "Rs. ", "kr "])
def test_currencies_before_numbers_are_learned(sign):
    prep = dp.Preprocessor({"x": dp.Number(normalization=None)}).fit(pd.DataFrame({"x": [f"{sign}5", f"{sign}7.5"]}))
    assert prep.encode(pd.DataFrame({"x": [f"{sign}9"]}))["x"].tolist() == [9]


def test_unit_of_a_code_is_read_if_specified_or_previously_learned():
    frame = pd.DataFrame({"x": ["A11", "A410"]})
    prep = dp.Preprocessor({"x": dp.Number(normalization=None, written="A11")}).fit(frame)
    assert prep.encode(frame)["x"].tolist() == [11, 410]
    state = dp.Preprocessor({"x": dp.Number(normalization=None)}).fit(pd.DataFrame({"x": ["5 kg", "7 kg"]})).to_dict()
    state["features"]["x"]["learned"]["written"] = "A 1,234.5"
    assert dp.Preprocessor.from_dict(state).encode(frame)["x"].tolist() == [11, 410]
