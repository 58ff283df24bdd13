from __future__ import annotations

import _strptime
import functools
import json
import os
import shutil
import subprocess
import sys
import warnings
import zoneinfo
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dateutil.parser import parser, parserinfo
from hypothesis import given, settings
from hypothesis import strategies as st

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError, RejectedValueError
from daskprep.features.base import validate
from daskprep.features.date import Date, LearnedDate
from daskprep.rows.dates import CYCLES, PARTS, parse_datetime, parse_format, parse_words
from daskprep.serving import Encoder, load

LEARNED = LearnedDate()
GOLDEN = {
    "2022-06-25 09:30:59": [2022, 6, 25, 5, 176, 9, 30, 59, 34259],
    "2012-02-26T13:51:50.417-07:00": [2012, 2, 26, 6, 57, 13, 51, 50, 49910],
    "2022-06-25": [2022, 6, 25, 5, 176, 0, 0, 0, 0],
}
MOMENT = datetime(2023, 8, 9, 17, 9, 13)
EPOCHS = {"s": 1691600953, "ms": 1691600953000, "us": 1691600953000000, "ns": 1691600953000000000}


def read(*cells, **parameters) -> list[datetime | None]:
    return Date(**parameters).parse(pa.array(cells)).to_pylist()


def fields(moment: datetime) -> list[int]:
    day = moment.timetuple()
    seconds = moment.hour * 3600 + moment.minute * 60 + moment.second
    return [*day[:3], day.tm_wday, day.tm_yday, *day[3:6], seconds]


# -- text


@pytest.mark.parametrize("text", GOLDEN)
def test_dates_encode_as_expected(text):
    encoded = Date().encode(Date().parse(pa.array([text])), LEARNED)
    assert encoded.tolist() == [GOLDEN[text]]
    assert encoded.dtype == np.int32


@pytest.mark.parametrize(
    "text",
    [
        "2023-08-09 17:09:13",
        "2023-08-09T17:09:13",
        "2023-08-09t17:09:13.0000000001",
        "2023-08-09T17:09:13Z",
        "2023-08-09 17:09:13 UTC",
        "2023-08-09 17:09:13+05:30",
        "2023-08-09 17:09:13 -0800",
        "2023-08-09T17:09:13,000+02",
        "20230809T170913Z",
        "20230809170913",
        "2023/08/09 17:09:13",
        "2023.8.9 17:09:13",
        "08/09/2023 17:09:13",
        "8/9/2023 05:09:13 PM",
        "8-9-23 5:09:13pm",
        "  2023-08-09 17:09:13\t",
        "Aug 9, 2023 17:09:13",
        "Wed, 09 Aug 2023 17:09:13 GMT",
        "9 August 2023 5:09:13 pm",
    ],
)
def test_common_formats_are_read_without_offsets(text):
    assert read(text) == [MOMENT]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2021", datetime(2021, 1, 1)),
        ("2021-05", datetime(2021, 5, 1)),
        ("May 2021", datetime(2021, 5, 1)),
        ("20210305", datetime(2021, 3, 5)),
        ("2021-03-05T07", datetime(2021, 3, 5, 7)),
        ("2021-03-05 07:08", datetime(2021, 3, 5, 7, 8)),
        ("2021-03-05 12:08 AM", datetime(2021, 3, 5, 0, 8)),
        ("2021-03-05 07:08:09.123456789", datetime(2021, 3, 5, 7, 8, 9, 123456)),
        ("3/5/69", datetime(1969, 3, 5)),
        ("3/5/68", datetime(2068, 3, 5)),
        ("5 Mar 69", datetime(1969, 3, 5)),
        ("5 Mar 68", datetime(2068, 3, 5)),
        ("0001-01-01", datetime(1, 1, 1)),
        ("9999-12-31 23:59:59.999999Z", datetime.max),
        ("2000-02-29", datetime(2000, 2, 29)),
    ],
)
def test_missing_parts_do_not_default_to_today(text, expected):
    assert read(text) == [expected]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "foo",
            "",
            " ",
            "é" * 10,
            "nan",
            "inf",
            "1e300",
            "10:30",
            "March 5",
            "Monday",
            "2021-01-01 and more",
        ),
        *("2021-02-29", "1900-02-29", "2021-13-01", "2021-00-10", "2021-01-00", "0000-01-01", "99999-01-01"),
        *("2021-01-01 24:00", "2021-01-01 10:60", "2021-01-01 10:11:60", "2021-01-01 13:00 PM", "13/05/2021"),
        "2021-01-01" + "0" * 60,
    ],
)
def test_invalid_dates_are_missing(text):
    assert read(text) == [None]


def test_invalid_date_is_missing_among_many_cell_shapes():
    shapes = [f"{number:010b}".replace("1", "x") for number in range(200)]
    assert read(*shapes, "13/05/2021", "05/13/2021")[-2:] == [None, datetime(2021, 5, 13)]


FORMS = st.sampled_from(
    [
        "%Y-%m-%d",
        "%Y-%m-%dT%H:%M:%S.%f",
        "%m/%d/%Y",
        "%d %b %Y",
        "%Y",
        "%Y%m%d",
        "%H:%M",
        "%d/%m/%Y",
        "junk",
        "",
    ]
)


@given(st.lists(st.tuples(st.datetimes(), FORMS), max_size=12))
def test_cells_are_parsed_independently_of_neighbors(cells):
    texts = [moment.strftime(form) for moment, form in cells]
    together = Date().parse(pa.array(texts, pa.string()))
    assert together.to_pylist() == [one for text in texts for one in read(text)]


@given(st.lists(st.datetimes(), min_size=1))
def test_iso_text_round_trips(moments):
    for separator in (" ", "T"):
        assert read(*[moment.isoformat(separator) for moment in moments]) == moments


def test_many_shapes_and_lengths_in_one_column():
    cells = [("x" * (i % 50)) + "2021-03-05" * (i % 2) for i in range(500)]
    expected = [datetime(2021, 3, 5) if text == "2021-03-05" else None for text in cells]
    cells[7], expected[7] = "2021-03-05", datetime(2021, 3, 5)
    assert read(*cells) == expected


# -- a given format


@pytest.mark.parametrize(
    ("text", "datetime_format", "expected"),
    [
        ("09/08/2023 17:09:13", "%d/%m/%Y %H:%M:%S", MOMENT),
        ("9/8/2023 17:9:13", "%d/%m/%Y %H:%M:%S", MOMENT),
        ("09Aug2023:17:09:13 +0200", "%d%b%Y:%H:%M:%S %z", MOMENT),
        ("2023-08-09T17:09:13.000+02:00", "%Y-%m-%dT%H:%M:%S.%f%z", MOMENT),
        ("09.08.23", "%d.%m.%y", datetime(2023, 8, 9)),
        ("day 09, 08 of 2023", "day %d, %m of %Y", datetime(2023, 8, 9)),
        ("2023-08-09 17:09:13", "%d/%m/%Y", MOMENT),
        ("31/02/2023", "%d/%m/%Y", None),
        ("08/30/2023", "%d/%m/%Y", None),
        ("9 August 2023", "%d/%m/%Y", None),
        ("1691600953", "%d/%m/%Y", None),
        ("1230809", "1%y%m%d", datetime(2023, 8, 9)),
    ],
)
def test_format_accepts_only_the_format_and_iso(text, datetime_format, expected):
    assert read(text, datetime_format=datetime_format) == [expected]


@given(
    st.datetimes(min_value=datetime(1000, 1, 1)),
    st.sampled_from(["%d.%m.%Y %H:%M:%S", "%Y%m%d%H%M%S", "%f/%m/%d/%Y"]),
)
def test_format_equals_strptime(moment, datetime_format):
    text = moment.strftime(datetime_format)
    assert read(text, datetime_format=datetime_format) == [datetime.strptime(text, datetime_format)]


CODES = [
    "%a %d %b %Y",
    "%A, %B %d, %Y",
    "%d/%b/%Y:%H:%M:%S %z",
    "%b %d %Y %I:%M %p",
    "%c",
    "%x %X",
    "%d%b%y",
    "%j %Y %Z",
]


@given(st.datetimes(datetime(1970, 1, 1), datetime(2068, 1, 1)), st.sampled_from(CODES), st.booleans())
def test_format_with_names_equals_strptime_in_the_c_locale(moment, datetime_format, upper):
    text = moment.replace(tzinfo=UTC).strftime(datetime_format)
    text = text.upper() if upper else text
    expected = datetime.strptime(text, datetime_format).replace(tzinfo=None)
    assert parse_format(text, datetime_format).replace(tzinfo=None) == expected
    assert read(text, datetime_format=datetime_format) == [expected]


@pytest.mark.parametrize("text", ["Feb 30, 2021", "Mrz 05, 2021", "March 05, 2021", "Mar 05, 2021 x", "Mar  5, 21"])
def test_text_that_does_not_match_a_format_with_names_is_unreadable(text):
    assert read(text, datetime_format="%b %d, %Y") == [None]


IN_GERMAN = """
import locale, sys, pandas as pd, daskprep as dp
from daskprep import serving
form = "%a %b %d, %Y %I:%M %p"
cells = ["Fri Mar 05, 2021 01:30 PM", "Thu May 06, 2021 12:00 AM", "Fri Dec 24, 2021 01:00 AM"]
frame = pd.DataFrame({"d": cells, "x": range(3)})
prep = dp.Preprocessor(
    {"d": dp.Date(datetime_format=form)}, split=dp.DatetimeSplit("d", (0.6, 0.4), datetime_format=form)
)
if len(sys.argv) > 1:
    locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
    assert pd.Timestamp("2021-03-05").strftime("%b") != "Mar"
served = [serving.Encoder(prep.fit(frame).to_dict()).encode(row)["d"].tolist() for row in frame.to_dict("records")]
print(prep.encode(frame)["d"].tolist(), served, prep.assign(frame)["split"].tolist())
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("localedef") is None, reason="localedef makes the locale")
def test_month_names_are_english_in_another_locale(tmp_path):
    made = subprocess.run(
        ["localedef", "-i", "de_DE", "-f", "UTF-8", str(tmp_path / "de_DE.UTF-8")], check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip("localedef has no German locale")
    run = functools.partial(
        subprocess.run, check=True, capture_output=True, env={**os.environ, "LOCPATH": str(tmp_path)}
    )
    english, german = (run([sys.executable, "-c", IN_GERMAN, *args]).stdout for args in ([], ["de"]))
    assert english == german
    assert b"[2021, 3, 5, 4, 64, 13, 30, 0, 48600]" in english


def test_month_names_are_english_with_patched_strptime(monkeypatch):
    names = _strptime.LocaleTime()
    names.a_month = ["", *(f"m{month}" for month in range(1, 13))]
    monkeypatch.setattr(_strptime, "_TimeRE_cache", _strptime.TimeRE(names))
    monkeypatch.setattr(_strptime, "_regex_cache", {})
    with pytest.raises(ValueError, match="does not match"):
        datetime.strptime("Mar 05, 2021", "%b %d, %Y")
    assert read("Mar 05, 2021", datetime_format="%b %d, %Y") == [datetime(2021, 3, 5)]


def test_format_ignores_time_zone_names():
    assert read("2021-03-05 EST", "2021-03-05 NZDT", datetime_format="%Y-%m-%d %Z") == [datetime(2021, 3, 5)] * 2


@pytest.mark.parametrize("datetime_format", ["%Y%Y-%m-%d", "%b %b %Y"])
def test_format_with_a_repeated_field_raises(datetime_format):
    with pytest.raises(ConfigError, match=r"not a format of datetime\.strptime"):
        validate(Date(datetime_format=datetime_format))


@pytest.mark.parametrize("cells", [[20230809, None], [20230809.0, None], ["20230809", None]])
def test_format_accepts_numbers_as_text(cells):
    assert read(*cells, datetime_format="%Y%m%d") == [datetime(2023, 8, 9), None]


def test_invalid_format_raises():
    with pytest.raises(ConfigError, match="%Q"):
        validate(Date(datetime_format="%Q"))


# -- numbers


@pytest.mark.parametrize("unit", EPOCHS)
@pytest.mark.parametrize("turn", [int, float, str, Decimal, np.uint64], ids=lambda turn: turn.__name__)
def test_unit_of_epoch_numbers_follows_their_magnitude(unit, turn):
    assert read(turn(EPOCHS[unit]), None) == [MOMENT, None]


@pytest.mark.parametrize(("digits", "seconds"), [(10, 1), (13, 1000), (16, 1_000_000)])
def test_one_more_digit_is_the_next_epoch_unit(digits, seconds):
    expected = datetime(1970, 1, 1) + timedelta(seconds=(10**digits - 1) // seconds)
    smaller, larger = read(10**digits - 1, 10**digits)
    assert smaller.replace(microsecond=0) == expected
    assert larger == datetime(1970, 1, 1) + timedelta(seconds=10**7)
    assert read(1 - 10**digits, -(10**digits))[1] == datetime(1970, 1, 1) - timedelta(seconds=10**7)


def test_fractions_and_negative_numbers_are_read():
    assert read(1691600953.25) == read("1691600953.25") == [MOMENT + timedelta(milliseconds=250)]
    assert read(-1, -0.5) == [datetime(1969, 12, 31, 23, 59, 59), datetime(1969, 12, 31, 23, 59, 59, 500000)]
    assert read("-1", "+1") == [datetime(1969, 12, 31, 23, 59, 59), datetime(1970, 1, 1, 0, 0, 1)]


def test_nanoseconds_of_text_do_not_round_to_the_next_second():
    assert read("1691600953999999999") == [MOMENT.replace(microsecond=999999)]


def test_numbers_without_a_date_are_missing():
    assert read(np.nan, np.inf, 1e300) == [None] * 3
    assert Date().parse(pa.array([2**64 - 1], pa.uint64())).to_pylist() == [None]


# -- timestamps and dates


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("moment", [MOMENT, datetime(1955, 11, 5, 6, 15)])
def test_timestamps_of_any_unit_are_read(unit, moment):
    column = pa.array([moment, None, moment], pa.timestamp(unit))
    assert Date().parse(column[1:]).to_pylist() == [None, moment]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "+05:30", "-08:00"])
def test_timestamps_keep_local_time(zone):
    column = pa.array(pd.Series(pd.to_datetime([MOMENT, None])).dt.tz_localize(zone))
    assert Date().parse(column).to_pylist() == [MOMENT, None]


def test_arrow_dates_are_read():
    day = date(2023, 8, 9)
    for kind in (pa.date32(), pa.date64()):
        assert Date().parse(pa.array([day, None], kind)).to_pylist() == [datetime(2023, 8, 9), None]


def test_timestamps_outside_the_calendar_are_missing():
    bounds = [-62_135_596_801, -62_135_596_800, 253_402_300_799, 253_402_300_800, 2**62, -(2**62)]
    expected = [None, datetime.min, datetime(9999, 12, 31, 23, 59, 59), None, None, None]
    assert Date().parse(pa.array(bounds, pa.timestamp("s"))).to_pylist() == expected
    assert Date().parse(pa.array([253_402_300_799], pa.timestamp("s", "Asia/Tokyo"))).to_pylist() == [None]


def test_dictionaries_slices_and_nulls_are_read():
    column = pa.array(["2021", "2022", None, "2021"])
    expected = [datetime(2022, 1, 1), None, datetime(2021, 1, 1)]
    assert Date().parse(column[1:]).to_pylist() == expected
    assert Date().parse(column.dictionary_encode()[1:]).to_pylist() == expected
    assert Date().parse(pa.nulls(2)).to_pylist() == [None, None]
    assert Date().parse(pa.array([], pa.string())).type == pa.timestamp("us")


@pytest.mark.parametrize("column", [pa.array([True]), pa.array([[1]]), pa.array([timedelta(1)])])
def test_other_types_raise(column):
    with pytest.raises(ColumnError, match=r"bool|list|duration"):
        Date().parse(column)


# -- encode and decode


@given(st.lists(st.datetimes(), min_size=1))
def test_encode_returns_calendar_fields(moments):
    encoded = Date().encode(pa.array(moments, pa.timestamp("us")), LEARNED)
    assert encoded.tolist() == [fields(moment) for moment in moments]
    decoded = Date().decode(encoded, LEARNED)
    assert decoded.to_pylist() == [moment.replace(microsecond=0) for moment in moments]


def test_every_day_of_four_centuries_is_encoded():
    days = np.arange("1800-01-01", "2205-01-01", dtype="datetime64[D]")
    encoded = Date().encode(Date().parse(pa.array(days)), LEARNED)
    calendar = pd.DatetimeIndex(days)
    expected = [calendar.year, calendar.month, calendar.day, calendar.day_of_week, calendar.day_of_year]
    np.testing.assert_array_equal(encoded[:, :5], np.stack(expected, axis=1))
    assert Date().decode(encoded, LEARNED).cast(pa.date32()).equals(pa.array(days))


def test_batch_is_expanded_to_int64():
    class Tensor:
        def long(self) -> str:
            return "int64"

    assert Date().expand(Tensor(), LEARNED) == "int64"


# -- with frames


def test_fit_transform_and_feature_names(as_frame):
    frame = as_frame(pd.DataFrame({"seen": ["2022-06-25 09:30:59", None, "2012-02-26"]}))
    feature = Date(missing_value_strategy="ffill").fit(frame)
    assert np.asarray(feature.transform(frame))[:, 0].tolist() == [2022, 2022, 2012]
    learned = feature.learned_["seen"]
    assert (learned.first, learned.last, learned.missing) == ("2012-02-26 00:00:00", "2022-06-25 09:30:59", 1)
    assert LearnedDate.from_dict(json.loads(json.dumps(learned.to_dict()))) == learned
    names = ["year", "month", "day", "weekday", "day_of_year", "hour", "minute", "second", "second_of_day"]
    assert feature.get_feature_names_out().tolist() == [f"seen_{name}" for name in names]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, [2020, 7, 2]),  # between the other four
        ({"missing_value_strategy": "fill_with_const"}, [1970, 1, 1]),
        ({"missing_value_strategy": "fill_with_const", "fill_value": ""}, [1970, 1, 1]),
        ({"missing_value_strategy": "fill_with_const", "fill_value": "2001-02-03"}, [2001, 2, 3]),
        (
            {"missing_value_strategy": "fill_with_const", "fill_value": "3.2.2001", "datetime_format": "%d.%m.%Y"},
            [2001, 2, 3],
        ),
        ({"missing_value_strategy": "fill_with_mode"}, [2020, 1, 2]),
        ({"missing_value_strategy": "bfill"}, [2021, 1, 1]),
    ],
)
def test_missing_dates_are_filled(as_frame, parameters, expected):
    frame = as_frame(pd.DataFrame({"x": ["2020-01-02", "2020-01-02", None, "2021-01-01", "2021-01-01"]}))
    encoded = np.asarray(Date(**parameters).fit(frame).transform(frame))
    assert encoded[2, :3].tolist() == expected


def test_invalid_fill_value_raises():
    with pytest.raises(ConfigError, match="tomorrow"):
        validate(Date(fill_value="tomorrow"))


def test_day_first_dates_warn_with_a_format(as_frame):
    frame = as_frame(pd.DataFrame({"x": ["13/05/2021", "01/05/2021"]}))
    with (
        pytest.warns(UserWarning, match="1 of 2 cells cannot be read.* set datetime_format"),
        pytest.warns(UserWarning, match='month first.*"%d/%m/%Y"'),
    ):
        Date().fit(frame)


def test_years_as_numbers_warn_with_a_format(as_frame):
    frame = as_frame(pd.DataFrame({"x": [2020, 2021]}))
    with pytest.warns(UserWarning, match='1970-01-01.*"%Y"'):
        Date().fit(frame)
    assert np.asarray(Date(datetime_format="%Y").fit(frame).transform(frame))[:, 0].tolist() == [2020, 2021]


def test_python_datetimes_with_zones_are_read(as_frame):
    frame = as_frame(pd.DataFrame({"x": [MOMENT.replace(tzinfo=UTC), None]}))
    assert np.asarray(Date().fit(frame).transform(frame))[0].tolist() == fields(MOMENT)


def test_local_times_of_objects_do_not_depend_on_partitions():
    zones = [UTC, UTC, zoneinfo.ZoneInfo("Europe/Rome"), timezone(timedelta(hours=-3))]
    frame = pd.DataFrame({"x": pd.Series([datetime(2020, 7, 1, 12, tzinfo=zone) for zone in zones], dtype=object)})
    date = Date().fit(frame)
    assert date.transform(frame)[:, 5].tolist() == [12] * 4
    with dask.config.set({"dataframe.convert-string": False}):
        for npartitions in (2, 4):
            assert np.asarray(date.transform(dd.from_pandas(frame, npartitions=npartitions)))[:, 5].tolist() == [12] * 4


def test_daylight_saving_time_is_applied_after_2037():
    zone = zoneinfo.ZoneInfo("Europe/Rome")
    moments = [datetime(year, 7, 1, 12, tzinfo=zone) for year in (2036, 2037, 2038, 2100, 9999)]
    column = pa.array(moments, pa.timestamp("us", "Europe/Rome"))
    encoded = Date().encode(Date().parse(column), LEARNED)
    assert encoded[:, 5].tolist() == [12] * 5


# -- columns for networks and linear models

PAIRS = pd.DataFrame(
    {
        "x": [
            "2022-06-25 09:30:59",
            "2012-02-26T13:51:50.417-07:00",
            "2021",
            None,
            "0001-01-01",
            "9999-12-31 23:59:59",
        ],
        "start": ["2022-06-24", None, "?", "2020-01-01", "9999-12-31 23:59:59", "0001-01-01"],
    }
)
CHOICES = [
    {"parts": ["year", "weekend", "second_of_day"], "cyclic": ["month", "day", "hour"], "since": "start"},
    {"since": "2020-01-01 12:00", "since_unit": "years"},
    {"cyclic": ["weekday", "day_of_year", "minute", "second", "second_of_day"], "missing_value_strategy": "ffill"},
    {"parts": [*PARTS, "weekend"]},
    {"cyclic": {"hour": 3, "weekday": 3, "day_of_year": 12}, "since": "2020-01-01"},
    {"since": "start", "since_unit": "seconds", "missing_value_strategy": "fill_with_mode"},
    {"since": "start", "since_unit": "hours", "missing_value_strategy": "bfill"},
]


def prepared(frame=PAIRS, **parameters):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return dp.Preprocessor({"x": Date(**{"missing_value_strategy": "fill_with_const", **parameters})}).fit(frame)


@pytest.mark.slow
@given(st.lists(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)), min_size=1, max_size=20))
def test_parts_and_cyclic_parts_equal_the_calendar(moments):
    frame = pd.DataFrame({"x": pd.Series([moment.isoformat() for moment in moments])})
    numbers = prepared(frame, parts=[*PARTS, "weekend"]).transform(frame)
    expected = [[*fields(moment), moment.weekday() > 4] for moment in moments]
    assert numbers.dtype == np.float32
    assert numbers.tolist() == expected
    circles = prepared(frame, cyclic=list(CYCLES)).transform(frame)
    for place, part in enumerate(CYCLES):
        first, period = CYCLES[part]
        angle = 2 * np.pi * (numbers[:, PARTS.index(part)].astype(float) - first) / period
        np.testing.assert_allclose(circles[:, 2 * place], np.sin(angle), atol=1e-7)
        np.testing.assert_allclose(circles[:, 2 * place + 1], np.cos(angle), atol=1e-7)


def test_harmonics_are_sines_and_cosines_of_multiples_of_the_angle():
    frame = pd.DataFrame({"x": pd.date_range("2024-01-01", periods=500, freq="5h").astype(str)})
    prep = prepared(frame, cyclic={"weekday": 3, "hour": 2})
    table, days = prep.transform(frame), pd.to_datetime(frame["x"]).dt
    turns = [k * days.day_of_week / 7 for k in (1, 2, 3)] + [k * days.hour / 24 for k in (1, 2)]
    expected = [function(2 * np.pi * turn) for turn in turns for function in (np.sin, np.cos)]
    np.testing.assert_allclose(table, np.transpose(expected), atol=1e-6)
    names = ["x_hour_sin", "x_hour_cos", "x_hour_sin_2", "x_hour_cos_2"]
    assert prep.get_feature_names_out()[6:].tolist() == names
    assert np.linalg.matrix_rank(np.column_stack([table[:, :6], np.ones(500)]), tol=1e-3) == 7  # as a column per day
    np.testing.assert_array_equal(table[:, :2], prepared(frame, cyclic=["weekday"]).transform(frame))
    np.testing.assert_array_equal(table[:, :2], prepared(frame, cyclic={"weekday": 1}).transform(frame))


@pytest.mark.parametrize(
    ("unit", "seconds"),
    [("seconds", 1), ("minutes", 60), ("hours", 3600), ("days", 86400), ("weeks", 604800), ("years", 31556952)],
)
def test_since_accepts_a_date_or_a_column(unit, seconds):
    frame = pd.DataFrame({"x": ["2024-03-01 06:00", "2019-12-31"], "start": ["2024-02-28", "2020-01-01 00:00:01"]})
    passed = [((2 * 24 + 6) * 3600) / seconds, -86401 / seconds]
    counted = prepared(frame, since="start", since_unit=unit).transform(frame)[:, 0]
    np.testing.assert_allclose(counted, passed, rtol=1e-6, atol=1e-7)
    fixed = prepared(frame, since="2019-12-31 12:00:00", since_unit=unit).transform(frame)[:, 0]
    np.testing.assert_allclose(fixed, [(1521 * 86400 + 64800) / seconds, -43200 / seconds], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("parameters", CHOICES)
def test_serving_and_batches_compute_the_same_columns(parameters, tmp_path):
    prep = prepared(**parameters)
    encoded = prep.encode(PAIRS)["x"]
    assert encoded.dtype == np.int32
    assert encoded.shape[1] == (4 if parameters.get("since") == "start" else 2)
    rows = PAIRS.astype(object).where(PAIRS.notna(), None).to_dict("records")
    prep.save(tmp_path / "prep.json")
    encoder = load(tmp_path / "prep.json")
    assert dp.Preprocessor.load(tmp_path / "prep.json").to_dict() == prep.to_dict()
    np.testing.assert_array_equal(encoder.encode(rows)["x"], encoded)
    [batch] = prep.write(PAIRS, tmp_path / "x.dp")["train"].loader(batch_size=6, shuffle=False)
    table = prep.transform(PAIRS)
    assert len(prep.get_feature_names_out()) == table.shape[1]
    assert batch["x"].numpy().tobytes() == encoder.encode(rows, expand=True)["x"].tobytes() == table.tobytes()
    lazy = dask.compute(prep.encode(dd.from_pandas(PAIRS, npartitions=3)))[0]
    np.testing.assert_array_equal(lazy["x"], encoded)
    assert prepared(dd.from_pandas(PAIRS, npartitions=3), **parameters).to_dict() == prep.to_dict()


def test_output_columns_are_named_and_dates_decode():
    prep = prepared(**CHOICES[0])
    assert prep.get_feature_names_out().tolist() == [
        *["x_year", "x_weekend", "x_second_of_day", "x_month_sin", "x_month_cos", "x_day_sin", "x_day_cos"],
        *["x_hour_sin", "x_hour_cos", "x_since"],
    ]
    assert prep.feature_names_in_.tolist() == ["x", "start"]
    decoded = prep.decode(prep.encode(PAIRS))["x"].astype(str).tolist()
    assert decoded[:4] == ["2022-06-25 09:30:59", "2012-02-26 13:51:50", "2021-01-01 00:00:00", "1970-01-01 00:00:00"]
    limits = prep.features_["x"].limits(prep.learned_["x"])
    assert limits == {"": ((-719162, 0, -719162, 0), (2932896, 86399, 2932896, 86399))}
    encoded = prep.encode(PAIRS)["x"]
    assert encoded.min(axis=0)[0] == -719162
    assert encoded.max(axis=0)[0] == 2932896
    assert Date(cyclic=["hour"]).limits(LEARNED) == {"": ((-719162, 0), (2932896, 86399))}


def test_since_a_missing_date_is_0_and_an_unreadable_one_can_raise():
    assert prepared(since="start").transform(PAIRS)[1:4, 0].tolist() == [0, 0, 0]
    with pytest.raises(RejectedValueError, match=r"column \"x\": '\?' of column \"start\" cannot be read as a date"):
        prepared(since="start", invalid="raise")
    prep = prepared(PAIRS[:2], since="start", invalid="raise")
    rows = [{"x": "2021", "start": "?"}, {"x": None, "start": None}, {"x": "2021", "start": None}]
    with pytest.raises(RejectedValueError, match="'\\?' of column"):
        Encoder(prep.to_dict()).encode(rows[:1])
    assert Encoder(prep.to_dict()).encode(rows[1:])["x"].tolist() == [[0, 0, 0, 0], [18628, 0, 18628, 0]]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"parts": ["hours"]}, r"parts has no 'hours'. Did you mean \"hour\""),
        ({"cyclic": ["year"]}, "cyclic has no 'year'"),
        ({"cyclic": ["weekend"]}, "cyclic has no 'weekend'"),
        ({"cyclic": {"hours": 1}}, r"cyclic has no 'hours'. Did you mean \"hour\""),
        ({"cyclic": {"weekday": 4}}, r'cyclic\["weekday"\]=4: pass a number of harmonics from 1 to 3'),
        ({"cyclic": {"second_of_day": 13}}, "from 1 to 12"),
        ({"cyclic": {"hour": "2"}}, r"cyclic must be a list of strings or a dict"),
        ({"cyclic": {}}, "leaves nothing to read"),
        ({"parts": [], "cyclic": []}, "leaves nothing to read"),
        ({"since_unit": "months"}, "since_unit must be one of"),
    ],
)
def test_invalid_column_parameters_raise(parameters, message):
    with pytest.raises(ConfigError, match=message):
        validate(Date(**parameters))


def test_unset_new_parameters_are_not_saved():
    params = prepared(datetime_format="%Y").to_dict()["features"]["x"]["params"]
    assert not {"parts", "cyclic", "since", "since_unit"} & params.keys()


# -- formats with month names, as dateutil reads them

DAYS = [
    "{d:%d} {m} {d:%Y}", "{d.day}{o} of {m}, {d:%Y}", "{m} {d.day}, {d:%Y}", "{w}, {d:%d} {m} {d:%Y}",
    "{d:%d}-{m}-{d:%y}", "{d:%Y} {m} {d:%d}", "{m} {d:%Y}", "{d:%m/%d/%Y},", "{d:%Y %m %d}", "{w} {d:%Y-%m-%d}",
    "{d:%m/%Y}", "{d:%Y%m%d}", "{d:%d}{m}{d:%Y}", "{m}. {d.day} {d:%y}",
]  # fmt: skip
CLOCKS = [
    "{t:%H:%M}",
    "{t:%H:%M:%S}",
    "{t:%I:%M %p}",
    "{t:%I%p}",
    "{t:%H:%M:%S.%f} +0100 (CET)",
    "{t:%H:%M} EST",
    "{t:%Hh%M}",
]


@st.composite
def written_dates(draw):
    moment = draw(st.datetimes(datetime(1970, 1, 1), datetime(2068, 1, 1)))
    names = {
        "m": draw(st.sampled_from([f"{moment:%b}", f"{moment:%B}"])),
        "w": draw(st.sampled_from(["Fri", "Monday"])),
    }
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(moment.day % 10 if moment.day // 10 != 1 else 0, "th")
    day = draw(st.sampled_from(DAYS)).format(d=moment, o=suffix, **names)
    clock = draw(st.sampled_from(CLOCKS)).format(t=moment)
    return draw(st.sampled_from([str, str.upper]))(
        draw(st.sampled_from(["{0}", "{0} {1}", "{1} {0}"])).format(day, clock)
    )


class FixedCentury(parserinfo):
    def convertyear(self, year, century_specified=False):
        return year if year >= 100 or century_specified else year + (2000 if year < 69 else 1900)


def read_by_dateutil(text: str) -> datetime | None:
    try:
        moment = parser(FixedCentury()).parse(text, default=datetime(1, 1, 1), ignoretz=True)
    except (ValueError, OverflowError):
        return None
    return moment if moment.year > 1 else None


@given(written_dates())
def test_formats_with_names_equal_dateutil(text):
    assert parse_words(text) is not None
    assert parse_datetime(text, None) == read_by_dateutil(text)


@given(st.text("0123456789 ,.:/-aMprJunT+Z", max_size=14))
@settings(max_examples=500)
def test_text_is_never_read_differently_than_dateutil(text):
    if parse_words(text) is not None:
        assert read_by_dateutil(text) in (None, parse_datetime(text, None))


@pytest.mark.parametrize(
    "text", ["1,2", "1.2.3", "1 2 3", "12/99", "105/74", "Friday March 2021", "March 21", "10:30", "2021 3"]
)
def test_numbers_that_are_not_dates_are_unreadable(text):
    assert read(text) == [None]


@pytest.mark.slow
@pytest.mark.parametrize("npartitions", [1, 8])
@pytest.mark.parametrize("split", [dp.RandomSplit(), dp.StratifiedSplit("y")])
def test_random_split_of_time_ordered_rows_warns(tmp_path, split, npartitions):
    frame = pd.DataFrame({"at": pd.date_range("2024-01-01", periods=400, freq="3h"), "y": [0, 1] * 200})
    frame.loc[[100, 200], "at"] = pd.Timestamp("2024-01-02")  # nearly sorted
    frame["day"] = frame["at"].dt.strftime("%Y-%m-%d")
    rows = dd.from_pandas(frame, npartitions=npartitions)
    for some, column in ((rows, "at"), (rows, "day"), (frame[::-1], "at")):
        prep = dp.Preprocessor({"when": dp.Date(column=column), "y": "binary"}, split=split)
        found = f'ordered by time in column "{column}", .* split=DatetimeSplit."{column}".'
        with pytest.warns(UserWarning, match=found) as caught:
            state = prep.fit(some).to_dict()
        assert len(caught) == 1
        with pytest.warns(UserWarning, match=found):
            prep.fit_write(some, tmp_path / "d.dp", overwrite=True, progress=False)
        assert prep.to_dict() == state
    dp.Preprocessor(prep.features, split=dp.DatetimeSplit("at")).fit(rows)
    dp.Preprocessor(prep.features).fit(rows)
    for other in (frame.sample(frac=1, random_state=0), frame.assign(at="2024-01-01"), frame[:20]):
        dp.Preprocessor(prep.features, split=split).fit(other)


@pytest.mark.parametrize("number", [-(2**63) - 1025, -(2**63) - 1024, -(2**63) - 1, -(2**63)])
def test_narrow_integers_encode_in_rows_as_in_columns(number, tmp_path):
    prep = dp.Preprocessor({"x": dp.Date(missing_value_strategy="fill_with_const", fill_value="2000-01-01")})
    prep.fit(pd.DataFrame({"x": ["2001-02-03"]}))
    prep.save(tmp_path / "prep.json")
    row = load(tmp_path / "prep.json").encode({"x": number})["x"]
    np.testing.assert_array_equal(row, prep.encode(pd.DataFrame({"x": pd.Series([number], dtype=object)}))["x"])
