"""Equal values have equal text in all container types."""

from __future__ import annotations

import datetime as dt
import math
import pathlib
import uuid
import zoneinfo
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import daskprep as dp
from daskprep.errors import ColumnError
from daskprep.rows.cells import text_of
from daskprep.sources.cells import as_text, cell_texts, local_clock

ROME = zoneinfo.ZoneInfo("Europe/Rome")
NOON = dt.datetime(2020, 7, 1, 12)
HALF = NOON.replace(microsecond=500_000)
SECOND = dt.timedelta(seconds=1)


def stamps(moment: dt.datetime, zone: str | None = None) -> list[Any]:
    """Return a moment in all that may hold it; what has a fraction fits no seconds."""
    units = ["ms", "us", "ns"] if moment.microsecond else ["s", "ms", "us", "ns"]
    clock = moment if zone is None else moment.replace(tzinfo=zoneinfo.ZoneInfo(zone))
    return [clock, pd.Timestamp(clock), *(pa.scalar(clock, pa.timestamp(unit, zone)) for unit in units)]


@pytest.mark.parametrize(
    ("text", "holders"),
    [
        ("x", ["x", np.str_("x"), b"x", bytearray(b"x"), pathlib.PurePosixPath("x"), pa.scalar(b"x")]),
        ("True", [True, np.True_, pa.scalar(True)]),
        ("1", [1, 1.0, np.uint8(1), np.float32(1), Decimal(1), Decimal("1.00"), pa.scalar(1.0, pa.float32())]),
        ("100", [100, 100.0, Decimal("1E+2"), pa.scalar(Decimal("100.00")), pa.scalar(100, pa.uint64())]),
        ("1.5", [1.5, np.float32(1.5), Decimal("1.5"), Decimal("1.500"), pa.scalar(np.float16(1.5), pa.float16())]),
        ("1.5", [pa.scalar(Decimal("1.5"), kind) for kind in (pa.decimal128(9, 4), pa.decimal256(60, 30))]),
        ("-0.1", [-0.1, Decimal("-0.10"), pa.scalar(-0.1, pa.float32()), pa.scalar(-0.1)]),
        ("0", [0, -0.0, Decimal("-0.00"), Decimal("0E-12"), pa.scalar(Decimal("0E-12")), Decimal("0E+3")]),
        ("0.1", [np.float32(0.1), pa.scalar(0.1, pa.float32())]),
        ("0.099975586", [np.float16(0.1), pa.scalar(np.float16(0.1), pa.float16())]),
        ("1.5e-7", [1.5e-7, Decimal("1.5E-7"), pa.scalar(Decimal("0.000000150"))]),
        ("0.00000123", [1.23e-6, Decimal("1.230E-6"), pa.scalar(Decimal("0.0000012300"))]),
        ("1.23456789012e+10", [12345678901.2, Decimal("12345678901.20"), pa.scalar(Decimal("12345678901.2"))]),
        ("12345678901.123456789", [Decimal("12345678901.1234567890"), pa.scalar(Decimal("12345678901.123456789"))]),
        (str(10**19), [10**19, Decimal(10**19), np.uint64(10**19), pa.scalar(10**19, pa.uint64())]),
        ("inf", [math.inf, np.float32("inf"), Decimal("Infinity"), pa.scalar(math.inf)]),
        ("2020-07-01", [NOON.date(), np.datetime64("2020-07-01"), np.datetime64("2020-07"), pa.scalar(NOON.date())]),
        ("2020-07-01", [pa.scalar(NOON.date(), pa.date64())]),
        ("2020-07-01 12:00:00", [*stamps(NOON), np.datetime64(NOON), np.datetime64(NOON, "h")]),
        ("2020-07-01 12:00:00.5", [*stamps(HALF), np.datetime64(HALF), np.datetime64(HALF, "ms")]),
        ("2020-07-01 12:00:00+00:00", [*stamps(NOON, "UTC"), NOON.replace(tzinfo=dt.UTC)]),
        ("2020-07-01 12:00:00.5+00:00", stamps(HALF, "UTC")),
        ("2020-07-01 12:00:00+02:00", [*stamps(NOON, "Europe/Rome"), *stamps(NOON, "Africa/Cairo")]),
        ("2020-07-01 12:00:00+02:00", [NOON.replace(tzinfo=dt.timezone(dt.timedelta(hours=2)))]),
        ("2020-07-01 12:00:00.5+02:00", stamps(HALF, "Europe/Rome")),
        ("2020-07-01 12:00:00-02:30", stamps(NOON, "America/St_Johns")),
        ("1800-07-01 12:00:00+00:49", stamps(NOON.replace(year=1800), "Europe/Rome")),
        ("1800-07-01 12:00:00-04:56", stamps(NOON.replace(year=1800), "America/New_York")),
        ("1970-01-01 00:00:00.000000001", [pd.Timestamp(1), np.datetime64(1, "ns"), pa.scalar(1, pa.timestamp("ns"))]),
        ("12:00:00", [NOON.time(), *(pa.scalar(NOON.time(), pa.time32(unit)) for unit in ("s", "ms"))]),
        ("12:00:00", [pa.scalar(NOON.time(), pa.time64(unit)) for unit in ("us", "ns")]),
        ("12:00:00.5", [HALF.time(), pa.scalar(HALF.time(), pa.time32("ms")), pa.scalar(HALF.time())]),
        ("0 days 00:00:01", [SECOND, pd.Timedelta(SECOND), np.timedelta64(1, "s"), np.timedelta64(10**9, "ns")]),
        ("0 days 00:00:01", [pa.scalar(SECOND, pa.duration(unit)) for unit in ("s", "ms", "us", "ns")]),
        ("-1 days +23:59:59.5", [-SECOND / 2, pd.Timedelta(-SECOND / 2), pa.scalar(-SECOND / 2, pa.duration("ms"))]),
        ("2 days 00:00:00", [2 * 86_400 * SECOND, np.timedelta64(2, "D"), np.timedelta64(48, "h")]),
        ("0 days 00:00:00.000000001", [pd.Timedelta(1), np.timedelta64(1, "ns"), pa.scalar(1, pa.duration("ns"))]),
        (str(uuid.UUID(int=7)), [uuid.UUID(int=7), str(uuid.UUID(int=7))]),
    ],
)  # fmt: skip
def test_equal_values_have_equal_text(text: str, holders: list[Any]) -> None:
    columns = [holder for holder in holders if isinstance(holder, pa.Scalar)]
    cells = [holder for holder in holders if not isinstance(holder, pa.Scalar)]
    assert cell_texts(cells) == [text] * len(cells)
    for scalar in columns:
        assert as_text(pa.array([scalar, None], scalar.type)).to_pylist() == [text, None], scalar.type


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**14), max_value=10**14), st.integers(0, 9))
def test_decimal_text_equals_float_text(value: Decimal, zeros: int) -> None:
    [text] = cell_texts([value])
    assert Decimal(text or "") == value
    if Decimal(repr(float(value))) == value:
        assert cell_texts([float(value)]) == [text]
    digits = Decimal(
        (value.as_tuple().sign, (*value.as_tuple().digits, *[0] * zeros), value.as_tuple().exponent - zeros)
    )
    assert cell_texts([digits]) == [text]


@given(st.timedeltas(dt.timedelta(-90_000), dt.timedelta(90_000)))
def test_duration_text_round_trips(value: dt.timedelta) -> None:
    [text] = cell_texts([value])
    assert as_text(pa.array([value])).to_pylist() == [text]
    assert pd.Timedelta(text) == value


def test_duration_text_beyond_arrow_range() -> None:
    assert cell_texts([dt.timedelta.max]) == ["999999999 days 23:59:59.999999"]


@pytest.mark.parametrize("column", [pa.array([(1, 2, 3)], pa.month_day_nano_interval())])
def test_types_without_text_raise(column: pa.Array) -> None:
    with pytest.raises(ColumnError, match="month_day_nano_interval, which have no text: convert them first"):
        as_text(column)


def test_month_durations_raise() -> None:
    with pytest.raises(ColumnError, match="has no fixed length"):
        cell_texts([np.timedelta64(1, "M")])


@pytest.mark.parametrize("zone", ["Europe/Rome", "America/New_York", "Asia/Kolkata", "UTC"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("year", [1999, 2036, 2037, 2038, 2100, 2261])
def test_local_clock_equals_python_zoneinfo(zone: str, unit: str, year: int) -> None:
    moments = [dt.datetime(year, month, 3, 12, tzinfo=zoneinfo.ZoneInfo(zone)) for month in (1, 4, 7, 11)]
    column = pa.array([*moments, None], pa.timestamp(unit, zone))
    assert as_text(column).to_pylist() == [*map(str, moments), None]
    assert [moment and moment.hour for moment in local_clock(column).to_pylist()] == [12, 12, 12, 12, None]


@given(st.integers(-(10**30), 10**30).map(float))
def test_large_float_text_equals_integer_text(value):
    texts = {
        as_text(pa.array([value]))[0].as_py(),
        as_text(pa.array([Decimal(int(value))], pa.decimal256(60, 2)))[0].as_py(),
        text_of(value),
        text_of(int(value)),
    }
    assert texts == {str(int(value))}


def test_category_of_uint64_matches_equal_floats():
    city = dp.Category().fit(pd.DataFrame({"id": np.array([10**19, 3], np.uint64)}))
    assert city.transform(pd.DataFrame({"id": [1e19]})).item() > 0
