"""Rows of Vector, Timeseries, Date and H3 equal `Preprocessor.encode` for any parameters and cells."""

from __future__ import annotations

import datetime as dt
import functools
import json
import sys
import uuid
import warnings
import zoneinfo
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import dateutil.tz
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, assume, event, given, settings
from hypothesis import strategies as st

import daskprep as dp
from daskprep.errors import ColumnError, DaskprepError, RejectedValueError
from daskprep.rows.base import CELL_KINDS
from daskprep.serving import Encoder
from tests.arrow_columns import encode_columns

MISSING = st.sampled_from(["fill_with_const", "fill_with_mode", "ffill", "bfill", "drop_row"])
INVALID = st.sampled_from(["missing", "missing", "missing", "raise"])
ROME, UTC = zoneinfo.ZoneInfo("Europe/Rome"), dt.UTC
BEFORE = dt.timezone(dt.timedelta(hours=-3, minutes=-30))
KOLKATA, NEW_YORK = zoneinfo.ZoneInfo("Asia/Kolkata"), zoneinfo.ZoneInfo("America/New_York")
ROUGH = dt.timezone(dt.timedelta(hours=1, seconds=3))
FOREIGN = dateutil.tz.gettz("Europe/Rome")


@dataclass(frozen=True)
class Type:
    """A type's parameters, its cells by Python type, and cells that it can always be fitted to."""

    make: Callable[..., Any]
    params: st.SearchStrategy[dict[str, Any]]
    cells: Mapping[str, st.SearchStrategy[Any]]
    plain: tuple[Any, ...]


def params(**optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=dict(optional, missing_value_strategy=MISSING, invalid=INVALID))


def as_bytes(texts: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    return texts.map(lambda text: text.encode("utf-8", "surrogatepass"))


def between_singles(number: np.float32, step: int) -> str:
    """Return numbers halfway to the next float32, or too close to it for a double to represent."""
    with np.errstate(over="ignore", under="ignore"):
        following = np.nextafter(number, np.float32(np.inf))
    middle = (Decimal(float(number)) + Decimal(min(float(following), 2.0**128))) / 2
    return f"{middle + step * abs(middle) * Decimal('1e-20'):.60e}"


# -- cells of one Python type

INTEGERS = st.integers(-9, 9) | st.integers() | st.sampled_from([2**53 + 1, 2**60 + 2**36 + 1, 2**63 - 1, -(2**63)])
FLOATS = st.floats() | st.floats(-9, 9, width=16) | st.sampled_from([3.4028235e38, 3.5e38, 1e-46, 2.0**-150, -0.0])
DECIMALS = st.decimals(-(10**14), 10**14, places=3) | st.sampled_from(
    [*map(Decimal, ["NaN", "sNaN", "1.50", "-0.0", "1E-9", "1E+3"])]
)
SINGLES = st.floats(width=32).map(np.float32)
MOMENTS = (
    st.datetimes()
    | st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2099, 1, 1))
    | st.sampled_from([dt.datetime(2024, 3, 31, 2, 30), dt.datetime(2024, 10, 27, 2, 30, fold=1)])
)
OTHERS = {
    "int": INTEGERS,
    "float": FLOATS,
    "bool": st.booleans(),
    "np.float64": FLOATS.map(np.float64),
    "np.float32": SINGLES,
    "np.float16": st.floats(width=16).map(np.float16),
    "np.int8": st.integers(-128, 127).map(np.int8),
    "np.uint64": st.integers(0, 2**63 - 1).map(np.uint64),
    "np.bool": st.booleans().map(np.bool_),
    "huge int": st.sampled_from([2**63, 2**64 - 1, -(2**63) - 1, 10**30]),
    "decimal": DECIMALS,
    "infinite decimal": st.just(Decimal("-Infinity")),
    "date": st.dates(),
    "datetime": MOMENTS,
    "datetime in Rome": MOMENTS.map(lambda moment: moment.replace(tzinfo=ROME)),
    "datetime in UTC": MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
    "datetime at an offset": MOMENTS.map(lambda moment: moment.replace(tzinfo=BEFORE)),
    "time": st.times(),
    "time with an offset": st.times(timezones=st.just(UTC)),
    "timedelta": st.timedeltas(dt.timedelta(-9), dt.timedelta(9)),
    "UUID": st.builds(uuid.UUID, int=st.integers(0, 2**128 - 1)),
    "dict": st.just({"a": 1}),
}
JUNK = st.text(st.sampled_from([*"0123456789eE+-. ,_'[]()\t\x1c\x85\u2003\u0663\0\ud800nainf"]), max_size=8)
NUMERALS = st.one_of(
    st.floats(-9, 9, width=16).map(str),
    st.floats().map(str),
    st.builds(between_singles, SINGLES.filter(np.isfinite), st.sampled_from([-1, 0, 1])),
    st.sampled_from(
        ["nan", "-NaN", "nan(a_1)", "inf", "1e39", "1e400", "1e-46", "1_0", "٣", "+1", "1.", ".5", "", "0x1"]
    ),
    JUNK,
)
SEPARATED = st.builds(
    lambda separator, numerals: separator.join(numerals),
    st.sampled_from([" ", " ", ",", ", ", "_", "  ", "\u2003", ",,"]),
    st.lists(NUMERALS, max_size=4) | st.lists(st.integers(-9, 9).map(str), min_size=2, max_size=2),
)
SERIES_TEXTS = st.one_of(SEPARATED, SEPARATED.map("[{}]".format), SEPARATED.map(" ({})\n".format))
SMALL = st.floats(-9, 9, width=16)
LISTS = {
    "lists of floats": st.lists(SMALL, min_size=2, max_size=2) | st.lists(st.none() | FLOATS, max_size=4),
    "lists of integers": st.lists(st.none() | INTEGERS, max_size=4),
    "lists of numbers": st.lists(st.none() | st.integers(-9, 9) | SMALL | st.just(float("nan")), max_size=4),
    "lists of text": st.lists(st.none() | NUMERALS, max_size=4),
    "lists of bytes": st.lists(st.sampled_from([b"1", b"2"]), min_size=1, max_size=2),
    "lists of decimals": st.lists(st.none() | st.decimals(-99, 99, places=4), max_size=3),
    "lists of booleans": st.lists(st.none() | st.booleans(), max_size=3),
    "lists of lists": st.lists(st.lists(SMALL, min_size=1, max_size=2), min_size=1, max_size=2),
    "lists of dates": st.lists(st.dates(), max_size=2),
    "lists of singles": st.lists(SINGLES, max_size=4),
    "tuples": st.tuples(SMALL, SMALL),
    "sets": st.frozensets(st.integers(-99, 99), max_size=3),
    "arrays of doubles": st.lists(FLOATS, max_size=4).map(lambda cell: np.array(cell, np.float64)),
    "arrays of singles": st.lists(SMALL, min_size=2, max_size=2).map(lambda cell: np.array(cell, np.float32)),
    "arrays of integers": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4).map(
        lambda cell: np.array(cell, np.int64)
    ),
    "arrays of booleans": st.lists(st.booleans(), max_size=4).map(lambda cell: np.array(cell, bool)),
    "arrays of text": st.lists(SMALL.map(str), min_size=1, max_size=4).map(np.array),
    "arrays of two dimensions": st.just(np.zeros((2, 2))),
}
DATE_FORMATS = st.sampled_from(
    [
        *("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S +05:30"),
        *("%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y %I:%M %p", "%Y.%m.%d", "%Y%m%d", "%Y%m%d%H%M%S", "%Y%m%dT%H%M%SZ", "%Y"),
        *("%Y-%m", "%d %b %Y", "%A, %d %B %Y %H:%M", "%H:%M", "%b %d", " %Y-%m-%d\n", "%s", "%Y-%m-%d %H:%M UTC", "%j"),
    ]
)
CLOCK = r"[0-9]{1,2}(:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?)?"
DIGITS = st.text("0123456789", min_size=1, max_size=21)
DATE_TEXTS = st.one_of(
    st.builds(lambda moment, form: moment.strftime(form), st.datetimes(dt.datetime(1000, 1, 1)), DATE_FORMATS),
    st.builds(str.__add__, st.sampled_from(["", "-", "19", "20", "21"]), DIGITS),
    st.text(st.sampled_from([*"00112259-/.:T Zap"]), max_size=12),
    st.from_regex(rf"[0-9]{{1,4}}([-/.])[0-9]{{1,2}}\1[0-9]{{1,4}}([T ]{CLOCK})?", fullmatch=True),
    NUMERALS,
    st.sampled_from(
        [
            *(
                "",
                " ",
                "\u2003 2021-05-06\x1c",
                "\u0662\u0660\u0662\u0661-01-01",
                "2021-02-30",
                "0000-01-01",
                "2021年01月02日",
            ),
            *("2021-01-01 24:00:00", "2021-01-01t10:11:12z", "1/2/03 0:30 PM", "1/2/03 12:30 am", "20210230", "1.5"),
            *("2021-01-01" + "0" * 60, "9" * 19, "1e9", "é"),
        ]
    ),
)
PLACES = st.integers(0, 2**64 - 1) | st.sampled_from([0x8928308280FFFFF, 0, 2**63 - 1, 2**63]) | st.integers(0, 99)
PLACE_TEXTS = st.one_of(
    st.builds(
        lambda form, number: form.format(number),
        st.sampled_from(
            [
                *("{:x}", "{:X}", "{}", "0x{:x}", "0X{:X}", " {} ", "\u2003{:x}\x1c", " 0x{:x}"),
                *("{:030}", "{:016x}", "{}.0", "x{:x}"),
            ]
        ),
        PLACES,
    ),
    NUMERALS,
)

# -- types

FILLS = ["0", "", "1 2", "[3, 4]", 1.5, -7, "0.1"]
PADDED = {
    "padding_value": st.floats(-9, 9, width=16) | st.sampled_from([float("nan"), float("-inf"), 0.1]),
    "padding": st.sampled_from(["right", "left"]),
    "truncation": st.sampled_from(["keep_start", "keep_end"]),
}
TYPES = {
    "vector": Type(
        dp.Vector,
        params(vector_size=st.sampled_from([None, 1, 2, 3]), fill_value=st.sampled_from(FILLS)),
        {"str": SERIES_TEXTS, "bytes": as_bytes(SERIES_TEXTS), **OTHERS, **LISTS},
        ("1 2", [3.0, 4.0]),
    ),
    "timeseries": Type(
        dp.Timeseries,
        params(
            tokenizer=st.sampled_from(["space", "comma", "underscore"]),
            timeseries_length_limit=st.sampled_from([1, 2, 3, 256]),
            fill_value=st.sampled_from([*FILLS, "1 nan"]),
            **PADDED,
        ),
        {"str": SERIES_TEXTS, "bytes": as_bytes(SERIES_TEXTS), **OTHERS, **LISTS},
        ("1", [3.0, 4.0]),
    ),
    "windows": Type(
        dp.Timeseries,
        st.builds(
            lambda size, given: {**size, **given},
            st.sampled_from([{"window_size": 1}, {"window_size": 3}, {"horizon": 1}, {"horizon": 2}]),
            st.fixed_dictionaries(
                {},
                optional={
                    "missing_value_strategy": st.sampled_from(["fill_with_const", "ffill", "bfill", "drop_row"]),
                    "invalid": INVALID,
                    "fill_value": st.sampled_from(["", "7", 1.5]),
                    "group_by": st.just("group"),
                    **PADDED,
                },
            ),
        ),
        {"str": NUMERALS, "few": st.integers(0, 3), **OTHERS, "list": st.just([1.0])},
        (1.0,),
    ),
    "date": Type(
        dp.Date,
        params(
            datetime_format=st.sampled_from(
                [*[None] * 4, "%d/%m/%Y", "%Y%m%d", "%Y", "%d.%m.%Y %H:%M", "%b %d %Y", " %Y-%d-%m\n", "%Y年%m月%d日",
                 "%Y-%m-%dT%H:%M:%S%z"]
            ),
            fill_value=st.sampled_from(["2020-02-29 01:02:03", "", "1999-12-31"]),
        ),
        {
            "str": DATE_TEXTS,
            "bytes": as_bytes(DATE_TEXTS),
            **OTHERS,
            "epochs": st.integers(-(2**63), 2**63 - 1) | st.integers(-(10**11), 10**11),
            "seconds": st.floats(-1e19, 1e19) | st.floats(-1e10, 1e10),
            "Timestamp": st.integers(-(2**62), 2**62).map(pd.Timestamp),
            "np.datetime64": st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2099, 1, 1)).map(np.datetime64),
            "list": st.just(["2020-01-01"]),
        },
        ("2020-01-01", dt.datetime(2020, 1, 1)),
    ),
    "h3": Type(
        dp.H3,
        params(fill_value=st.sampled_from([5, "8928308280fffff", 2**63 - 1])),
        {
            "str": PLACE_TEXTS,
            "bytes": as_bytes(PLACE_TEXTS),
            **OTHERS,
            "places": st.integers(0, 2**63 - 1),
            "whole floats": st.integers(0, 2**55).map(float),
            "list": st.just([5]),
        },
        ("8928308280fffff", 5),
    ),
}  # fmt: skip


def frame_of(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return columns with unchanged cells: pandas would convert integers with None to floats."""
    columns = {name: np.empty(len(rows), object) for name in ("x", "group")}
    for i, row in enumerate(rows):
        for name, cell in row.items():
            columns[name][i] = cell
    return pd.DataFrame(columns, dtype=object)


def rows_of(cells: list[Any], groups: str = "aab") -> list[dict[str, Any]]:
    return [{"x": cell, "group": groups[i % len(groups)]} for i, cell in enumerate(cells)]


def fitted(feature: Any, *candidates: list[Any]) -> dp.Preprocessor:
    """Fit to the first cells that can be fitted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cells in candidates:
            try:
                return dp.Preprocessor({"x": feature}).fit(frame_of(rows_of(cells)))
            except DaskprepError:
                continue
    assume(False)
    raise AssertionError


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


@st.composite
def fits(draw: st.DrawFn, kind: str, most: int) -> tuple[dp.Preprocessor, Encoder, list[Any]]:
    """Draw a Preprocessor, its Encoder, and cells of one Python type."""
    one = TYPES[kind]
    cells = one.cells[draw(st.sampled_from(sorted(one.cells)))]
    seen = draw(st.lists(st.none() | cells, min_size=1, max_size=8))
    prep = fitted(one.make(**draw(one.params)), seen, [*one.plain[:1]], [one.plain[-1]])
    return (
        prep,
        Encoder(json.loads(json.dumps(prep.to_dict()))),
        draw(st.lists(st.none() | cells | cells, max_size=most)),
    )


def check_rows(kind: str, data: st.DataObject) -> None:
    prep, encoder, cells = data.draw(fits(kind, 8))
    for some in (cells, *([cell] for cell in cells[:3])):
        expected = encoded_columns(prep, frame_of(rows_of(some)))
        event("refused" if expected is None else "encoded")
        assert encoded(encoder.encode, rows_of(some)) == expected, some
        if some and expected is not None:
            _, report = encoder.encode(rows_of(some), report=True)
            counts = [len(some), *(len(report.get("x", {}).get(kind, ())) for kind in CELL_KINDS)]
            assert prep.cell_counts(frame_of(rows_of(some))).loc["x"].tolist() == counts, some


@pytest.mark.parametrize("kind", TYPES)
@settings(suppress_health_check=list(HealthCheck), max_examples=25)
@given(data=st.data())
def test_rows_encode_as_in_a_frame(kind: str, data: st.DataObject) -> None:
    check_rows(kind, data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES)
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_rows_of_many_cells_encode_as_in_a_frame(kind: str, data: st.DataObject) -> None:
    check_rows(kind, data)


TINY = np.float32(3e-45)
ODD_CELLS = [
    (dp.Vector(), [between_singles(number, step) for number in np.float32([1, -1, 0.1, 1e30]) for step in (-1, 0, 1)]),
    (dp.Vector(), [between_singles(number, step) for number in (TINY, -TINY, np.float32(0)) for step in (-1, 0, 1)]),
    (dp.Vector(), [between_singles(np.finfo(np.float32).max, step) for step in (-1, 0, 1)]),
    (dp.Vector(), [[2**60 + 2**36 + odd] for odd in (-1, 0, 1)]),
    (dp.Vector(), [[Decimal(between_singles(np.float32(1), step)[:30])] for step in (-1, 0, 1)]),
    (dp.Vector(), [[Decimal("-0.0")], [Decimal("1.71")]]),
    (dp.Vector(), [Decimal("-0.0"), Decimal("1.71")]),
    (dp.Vector(), [[2**63], [2**64, 1]]),
    (dp.Timeseries(), [[2**63, None]]),
    (dp.Timeseries(), [[2**53 + 1, 0.5, None]]),
    (dp.Timeseries(), [[float("nan"), 3.5e38], [float("nan"), -1e308]]),
    (dp.Timeseries(tokenizer="comma"), ["1,nan(a_1),,1_0", "1,nan(a_1), ,\u20032", "1,\u0663"]),
    (dp.Timeseries(tokenizer="underscore"), ["1_0", "1__-nan", "_"]),
    (dp.Date(), [dt.datetime(2024, 3, 31, 2, 30, tzinfo=ROME), dt.datetime(1, 1, 1, tzinfo=ROME)]),
    (dp.Date(), [dt.datetime(9999, 12, 31, 22, tzinfo=BEFORE), dt.datetime(2024, 3, 31, 2, 30, tzinfo=BEFORE)]),
    (dp.Date(), [dt.datetime(2024, 7, 1, tzinfo=zone) for zone in (ROME, None, UTC, BEFORE, ROUGH, FOREIGN)]),
    (dp.Date(), [dt.datetime(2024, 3, 31, 2, 30, tzinfo=zone) for zone in (FOREIGN, ROME, UTC)]),
    (dp.Date(), [dt.datetime(1, 1, 1, 1, tzinfo=zone) for zone in (KOLKATA, ROUGH, UTC, BEFORE)]),
    (dp.Date(), [dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=zone) for zone in (BEFORE, UTC, KOLKATA, NEW_YORK)]),
    (dp.Date(), [pd.Timestamp("2024-10-27 00:30", tz="UTC").tz_convert(zone) for zone in (ROME, UTC, KOLKATA)]),
    (
        dp.Date(),
        [
            *(f"2024-01-01T00:00:00{zone}" for zone in ("+02:00", "Z", "", "-0330", "+02", " UTC", "+02:00:30", "+2")),
            "2024-01-01T00:00:00.999999-11:00",
            "20240101T000000Z",
            "9999-12-31T23:59:59-05:00",
            "Mon, 01 Jan 2024 00:00:00 +0200",
        ],
    ),
    (
        dp.Date(datetime_format="%d/%b/%Y:%H:%M:%S %z"),
        ["10/Oct/2000:13:55:36 -0700", "10/oct/2000:13:55:36 +0530", "2000-10-10T13:55:36Z", "10/Oct/2000:13:55:36"],
    ),
    (dp.Date(), [2**63 - 1, -(2**63), 10**10, -(10**10), 10**13, 10**16, 10**10 - 1]),
    (dp.Date(), [2.0**63, -(2.0**63), 1e10, 0.5000005, -0.5, 1e16 + 2, 999.9999999]),
    (
        dp.Date(),
        [
            "2021-01-01 10:11:12." + "0" * 40,
            "13/05/2021 10:11:12." + "0" * 30,
            " " * 40 + "3/4/21",
            "20210305240000",
            "20211305",
            "9" * 19,
            "8" * 19,
        ],
    ),
    (dp.Date(datetime_format=" %Y-%d-%m"), [" 2021-05-03", "2021-05-03", "2021-05-03 "]),
    (dp.H3(), ["0" * 5000 + "7", "9" * 19, "0X1f", "1f", "1" * 15 + "f", "1" * 16, "0x" + "f" * 16]),
    (dp.H3(), [2.0**53, 2.0**53 - 1, -0.0, 0.5, float("inf")]),
]


@pytest.mark.parametrize(("feature", "cells"), ODD_CELLS)
def test_unusual_cells_encode_as_in_a_frame(feature, cells):
    kind = next(one for one in TYPES.values() if isinstance(feature, one.make))
    prep = fitted(feature, cells[:1], [kind.plain[-1]])
    encoder = Encoder(prep.to_dict())
    for cell in cells:
        assert encoded(encoder.encode, rows_of([cell])) == encoded_columns(prep, frame_of(rows_of([cell]))), cell
    assert encoded(encoder.encode, rows_of(cells)) == encoded_columns(prep, frame_of(rows_of(cells)))


def test_last_day_of_the_calendar_is_read_in_any_time_zone():
    last = [dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=zone) for zone in (BEFORE, NEW_YORK, KOLKATA, UTC, None)]
    date = dp.Date(missing_value_strategy="drop_row").fit(pd.DataFrame({"x": last[:1]}))
    for cells in ([one] for one in last):
        assert date.transform(pd.DataFrame({"x": cells}))[0, :3].tolist() == [9999, 12, 31]


@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(
    st.sampled_from([{"window_size": 2}, {"window_size": 4}, {"horizon": 3}]),
    st.sampled_from(["fill_with_const", "ffill", "bfill", "drop_row"]),
    st.lists(
        st.fixed_dictionaries(
            {"x": st.none() | st.integers(0, 9), "group": st.none() | st.sampled_from([1, 1.5, 2.0, "b", True])}
        ),
        max_size=12,
    ),
)
def test_windows_stay_within_their_groups(size, strategy, rows):
    feature = dp.Timeseries(**size, missing_value_strategy=strategy, fill_value="5", padding_value=-1, group_by="group")
    prep = fitted(feature, [1, 2])
    assert encoded(Encoder(prep.to_dict()).encode, rows) == encoded_columns(prep, frame_of(rows))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", TYPES)
@settings(
    suppress_health_check=list(HealthCheck), deadline=None, max_examples=80, phases=[Phase.explicit, Phase.generate]
)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_many_rows_encode_as_in_a_frame(kind: str, data: st.DataObject, seed: int) -> None:
    prep, encoder, cells = data.draw(fits(kind, 60))
    assume(cells)
    # One rejected cell would hide the results of the others.
    alone = [encoded_columns(prep, frame_of(rows_of([cell]))) for cell in cells]
    for cell, expected in zip(cells, alone, strict=True):
        assert encoded(encoder.encode, rows_of([cell])) == expected, cell
    readable = [cell for cell, expected in zip(cells, alone, strict=True) if expected is not None]
    chosen = np.random.default_rng(seed).integers(0, max(len(readable), 1), 1_000 if readable else 0)
    rows = rows_of([readable[i] for i in chosen])
    assert encoded(encoder.encode, rows) == encoded_columns(prep, frame_of(rows))


# -- cells outside of columns


def encoder_of(feature: Any, *cells: Any) -> Encoder:
    return Encoder(fitted(feature, list(cells)).to_dict())


@pytest.mark.parametrize(
    "text", ["2021-03-05", "3/5/21 12:00 am", "20210305", "1614902400", "5 March 2021", "1,2", "x"]
)
def test_dates_are_parsed_equally_without_dateutil(monkeypatch, text):
    prep = fitted(dp.Date(), ["2020-01-01"])
    before = encoded_columns(prep, frame_of(rows_of([text])))
    for module in ("dateutil", "dateutil.parser"):
        monkeypatch.setitem(sys.modules, module, None)
    assert encoded_columns(prep, frame_of(rows_of([text]))) == before
    assert encoded(Encoder(prep.to_dict()).encode, rows_of([text])) == before


def test_date_in_a_column_of_numbers_raises():
    for feature, plain in ((dp.Vector(), "1"), (dp.Timeseries(), "1"), (dp.H3(), 5)):
        with pytest.raises(ColumnError, match='column "x": .*is of type date, which is no'):
            encoder_of(feature, plain).encode({"x": dt.date(2020, 1, 1)})


def test_vector_of_another_length_raises():
    with pytest.raises(RejectedValueError, match='column "x": a vector has 1 numbers, not 2 as learned'):
        encoder_of(dp.Vector(), "1 2").encode({"x": "1"})
