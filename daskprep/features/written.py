"""Columns of numbers as people write them: which style they keep to, and what they are in it."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.features.cells import as_dictionary, as_numbers, is_text, numbers_and_texts
from daskprep.kernels import BLOCK_PIECES, null_mask, only_where, string_views
from daskprep.serving import written as rules
from daskprep.serving.written import Style, number_written, style_of
from daskprep.sources.cell_text import as_text

# Cells of another style do not change what a column is: up to one in twenty.
_MOST = 19
_DIGITS = rules.digits_of("[.]", "[,' ]"), rules.digits_of("[,]", "[.' ]")
_EITHER = (True, False), (False, True)  # read with a decimal point alone, and with a decimal comma alone
_SPANS = style_of("1:30")  # of all forms
_FORMS = bytes.maketrans(b"0123456789\0", b"22222222220")
_CELLS = pa.struct([("number", pa.float64()), ("doubtful", pa.bool_()), ("text", pa.string())])


# Codes of ISO 4217, and how people write these and other currencies beside a number.
_CURRENCIES = frozenset(
    """
    AED ARS AUD BDT BGN BHD BRL BTC CAD CHF CLP CNY COP CZK DKK DZD EGP ETB ETH EUR GBP GHS HKD HRK HUF IDR ILS INR
    IQD IRR ISK JOD JPY KES KRW KWD KZT LBP LKR MAD MXN MYR NGN NOK NPR NZD OMR PEN PHP PKR PLN QAR RON RSD RUB SAR
    SEK SGD THB TND TRY TWD TZS UAH UGX USD UYU UZS VND XAF XOF ZAR ZMW RS KR FT LEI RMB SFR DM DOLLAR DOLLARS
    EURO EUROS POUND POUNDS CENT CENTS RUPEE RUPEES YEN YUAN WON FRANC FRANCS KRONER KRONOR ZL K\u010c Z\u0141 TL
    """.split()  # noqa: SIM905
)
# Of one letter only those that hardly stand in codes such as "24A": others need `written`. "5K" are thousands.
_UNITS = frozenset(
    """
    m g s h d l L K V W t pc pcs pt px ct cc ea doz nm um \xb5m \u03bcm mm cm dm km in ft yd mi nmi inch inches foot
    feet yard yards mile miles meter meters metre metres ng ug \xb5g \u03bcg mcg mg kg lb lbs oz st ton tons tonne
    tonnes gram grams kilogram kilograms kilo kilos ns us \xb5s \u03bcs ms sec secs second seconds min mins minute
    minutes hr hrs hour hours day days wk wks week weeks mo mos mon mth mths month months quarter quarters yr yrs
    year years decade decades ul \xb5l \u03bcl ml mL cl dl dL hl liter liters litre litres gal gallon gallons qt
    pint pints bbl cbm cup cups sqft sqm sq ft2 m2 m3 ha ac acre acres hectare hectares km2 cm2 cm3 mph kph kmh kmph
    km/h knot knots kn rpm fps bpm mpg kmpl hz Hz kHz MHz GHz mV kV mA Ah mAh kW MW GW Wh kWh MWh GWh kVA VA hp bhp
    PS kPa hPa MPa Pa psi bar mbar atm mmHg Nm kN kNm J kJ MJ cal kcal kcals kCal eV keV BTU lm lx dB dBm dBi mol
    mmol umol \xb5mol nmol mEq IU U/L iu ppm ppb b bit bits kbit kbps Mbps Gbps bps byte bytes KB kB MB GB TB PB KiB
    MiB GiB TiB MP mp deg degree degrees rad celsius fahrenheit kelvin percent pct point points x times piece pieces
    item items unit units person persons people
    """.split()  # noqa: SIM905
)

Amounts = list[tuple[dict[str, str], int]]


class Found(NamedTuple):
    """A number in the style of a column, and whether nothing in the column tells its decimal mark."""

    example: str
    in_doubt: bool = False


def numbers_or_texts(column: pa.Array) -> pa.Array:
    """Return cells as doubles; if the style of the column decides what some are, as `as_cells` has them."""
    if pa.types.is_dictionary(column.type):
        return numbers_or_texts(column.dictionary).take(column.indices)
    if not is_text(column.type):
        return as_numbers(column)
    numbers, texts = numbers_and_texts(as_text(column))
    doubtful, odd = in_doubt(texts, numbers), pa.nulls(0, pa.string())
    if numbers.null_count > texts.null_count:
        cells = as_dictionary(only_where(numbers.is_null(), texts))
        odd = only_where(_may_be_read(cells.dictionary), cells.dictionary).take(cells.indices)
    if odd.null_count == len(odd) and not doubtful.any():
        return numbers
    return as_cells(numbers, doubtful, odd if len(odd) else None)


def as_cells(numbers: pa.Array, doubtful: np.ndarray | None = None, texts: pa.Array | None = None) -> pa.StructArray:
    """Return doubles beside marks of those that thousands may be, and texts that are numbers in some style."""
    marks = pa.array(np.zeros(len(numbers), bool) if doubtful is None else doubtful)
    texts = pa.nulls(len(numbers), pa.string()) if texts is None else texts
    missing = pc.and_(numbers.is_null(), texts.is_null()) if numbers.null_count else None
    return pa.StructArray.from_arrays([numbers, marks, texts], fields=list(_CELLS), mask=missing)


def in_doubt(texts: pa.Array, numbers: pa.Array) -> np.ndarray:
    """Tell which texts are such as "1.234", thousands beside a decimal comma, of what `numbers_and_texts` returns."""
    offsets, data = string_views(texts)
    found = np.zeros(len(texts), bool)
    for begin in range(0, len(texts) if len(data) else 0, BLOCK_PIECES):
        edges = offsets[begin : begin + BLOCK_PIECES + 1]
        start, point = edges[:-1], edges[1:] - 4
        rows = np.flatnonzero((data.take(point, mode="clip") == ord(".")) & (point > start))
        start, point = start[rows], point[rows]
        start = start + (data[start] < ord("0"))  # behind the sign
        no_exponent = (data[point + 1] | data[point + 2]) < ord("A")
        found[begin + rows] = (data[start] >= ord("1")) & (point - start <= 3) & no_exponent
    return found & ~null_mask(numbers) if numbers.null_count else found


def as_thousands(numbers: pa.Array) -> pa.Array:
    """Return 1234 for 1.234, exactly."""
    return pc.floor(pc.add(pc.multiply(numbers, 1000.0), 0.5))


def thousands_have_points(style: Style) -> bool:
    """Tell whether "1.234" is 1234 in a style."""
    return (style.decimal, style.thousands) == (",", ".")


def numbers_in_style(column: pa.Array, style: Style) -> pa.Array:
    """Return cells as doubles; with a decimal comma, text only as it is written in that style."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not is_text(kind):
        return as_numbers(column)
    cells = as_dictionary(column)
    read = written_numbers if style.decimal == "," else numbers_stated
    return read(cells.dictionary, style).take(cells.indices)


def numbers_stated(texts: pa.Array, style: Style | None) -> pa.Array:
    """Return the plain numbers among distinct, stripped texts, and those in a style; what is neither becomes null."""
    if style is None:
        return as_numbers(texts)
    numbers = written_numbers(texts, style)
    if style.decimal == ",":
        plain = as_numbers(texts)
        return pc.coalesce(only_where(pa.array(in_doubt(texts, plain)), numbers), plain, numbers)
    # With a decimal point, what is a plain number too is the same one.
    return numbers if numbers.null_count == texts.null_count else pc.coalesce(as_numbers(texts), numbers)


def _tidied(texts: pa.Array) -> pa.Array:
    texts = pc.utf8_trim_whitespace(texts)
    texts = only_where(pc.less_equal(pc.utf8_length(texts), rules.LONGEST), texts)
    is_ascii = pc.all(pc.string_is_ascii(texts), min_count=0).as_py()
    alike = rules.ALIKE[rules.FOREIGN :] if is_ascii else rules.ALIKE
    odd = pc.fill_null(pc.match_substring_regex(texts, "|".join(pattern for pattern, _ in alike)), fill_value=False)
    if not odd.true_count:
        return texts
    changed = texts.filter(odd)
    for pattern, other in alike:
        changed = pc.replace_substring_regex(changed, pattern, other)
    return pc.replace_with_mask(texts, odd, changed)


def _may_be_read(texts: pa.Array) -> pa.Array:
    """Tell which texts are numbers in some style."""
    texts = _tidied(texts)
    found = pc.match_substring_regex(texts, f"^(?:{rules.AMOUNT})$")
    if not pc.all(found, min_count=0).as_py():
        spans = [pc.match_substring_regex(texts, f"^(?:{shape})$") for shape in (*rules.SPANS, rules.HOURS)]
        # Each part of a duration may be left out, but not all of them.
        spanned = pc.and_(functools.reduce(pc.or_, spans), pc.match_substring_regex(texts, "[0-9]"))
        found = pc.or_(found, spanned)
    return pc.fill_null(found, fill_value=False)


def written_numbers(texts: pa.Array, style: Style) -> pa.Array:
    """Return the numbers that distinct texts state in a style; what states none becomes null."""
    texts = _tidied(texts)
    if style.is_span:
        return _seconds(texts, style)
    pattern = f"^(?:{style.patterns[0]})$"
    if style.around is None:
        parts = pc.extract_regex(texts, pattern)
        digits = pc.binary_join_element_wise(pc.struct_field(parts, "number"), pc.struct_field(parts, "times"), "")
    else:
        found = only_where(pc.match_substring_regex(texts, pattern), texts)
        digits = pc.utf8_trim(found, style.around)
    digits = pc.replace_substring(digits, style.thousands, "")
    if style.decimal != ".":
        digits = pc.replace_substring(digits, style.decimal, ".")
    for letter, power in rules.POWERS.items() if "[kKMB]" in pattern else ():
        digits = pc.replace_substring(digits, letter, power)
    numbers = as_numbers(digits)
    return pc.if_else(pc.starts_with(texts, "-"), pc.negate(numbers), numbers)


def _seconds(texts: pa.Array, style: Style) -> pa.Array:
    texts = only_where(pc.match_substring_regex(texts, "[0-9]"), texts)
    numbers = pa.nulls(len(texts), pa.float64())
    for pattern in style.patterns:
        parts = pc.extract_regex(texts, f"^(?:{pattern})$")
        weeks, days, hours, minutes, seconds = (_times(parts, one, unit) for one, unit in rules.SECONDS.items())
        clock, before = pc.add(pc.add(hours, minutes), seconds), pc.add(weeks, days)
        turned = pc.negate(clock)
        if parts.type.get_field_index("plus") >= 0:
            turned = pc.if_else(pc.equal(pc.struct_field(parts, "plus"), "+"), clock, turned)
        is_less = pc.equal(pc.struct_field(parts, "sign"), "-")
        found = pc.if_else(is_less, pc.subtract(turned, before), pc.add(before, clock))
        numbers = pc.coalesce(numbers, found)
    return numbers


def _times(parts: pa.StructArray, name: str, seconds: float) -> pa.Array | pa.Scalar:
    if parts.type.get_field_index(name) < 0:
        return pa.scalar(0.0)
    text = pc.struct_field(parts, name)
    return pc.multiply(pc.if_else(pc.equal(text, ""), "0", text).cast(pa.float64()), seconds)


# -- which style a column keeps to


def read_alike(texts: pa.Array, counts: np.ndarray) -> tuple[Found | None, pa.Array]:
    """Return the style of texts that occur so often, and the numbers that they are, plain or in that style."""
    texts = pc.utf8_trim_whitespace(texts)
    found = learn_style(tally(texts, counts))
    return found, numbers_stated(texts, None if found is None else style_of(found.example))


class Tally(NamedTuple):
    """What tells the style of a column.

    `forms` are those of what is no plain number, and how often each occurs. `plain` is how many plain numbers there are
    besides, 0 if these are all 0, and `points` of how many the decimal point is sure. `doubtful` are such as 1.234.
    """

    forms: Counter[str]
    plain: int
    points: int
    doubtful: int


def tally(texts: pa.Array, counts: np.ndarray) -> Tally:
    """Look at texts that occur so often."""
    plain_numbers = as_numbers(texts)
    numbers, unsure = plain_numbers.to_numpy(zero_copy_only=False), in_doubt(texts, plain_numbers)
    odd, parts = np.isnan(numbers), numbers % 1 > 0
    plain = int(counts[~odd].sum()) if numbers[~odd].any() else 0
    points, doubtful = (int(counts[parts & one].sum()) for one in (~unsure, unsure))
    return Tally(forms_of(texts.filter(pa.array(odd)), counts[odd]), plain, points, doubtful)


def forms_of(texts: pa.Array, counts: np.ndarray) -> Counter[str]:
    """Count texts by their form: all digits are 2, but a zero that comes first."""
    forms = pc.replace_substring_regex(_tidied(texts).fill_null(""), "^([^0-9]*)0", "\\1\0")
    _, offsets, data = forms.buffers()
    data = pa.py_buffer((b"" if data is None else data.to_pybytes()).translate(_FORMS))
    forms = pa.StringArray.from_buffers(len(forms), offsets, data, offset=forms.offset)
    grouped = pa.table([forms, pa.array(counts)], ["form", "count"]).group_by("form").aggregate([("count", "sum")])
    return Counter(dict(zip(grouped["form"].to_pylist(), grouped["count_sum"].to_pylist(), strict=True)))


def learn_style(told: Tally) -> Found | None:
    """Return a number in the style of most texts, None if they keep to none."""
    forms, plain = told.forms, told.plain
    amounts = {form: amount for form in forms if (amount := rules.amount_of(form)) is not None}
    spans = {form for form in forms if number_written(form, _SPANS) is not None}
    alone, others = (sum(forms[form] for form in some) for some in (spans - amounts.keys(), amounts.keys() - spans))
    if alone and not plain and alone >= _MOST * others:
        colons = {form.count(":") for form in spans}
        return Found("1:30" if 1 in colons and 2 not in colons else "1:30:00")
    return _learn_amounts([(amount, forms[form]) for form, amount in amounts.items()], told)


def _learn_amounts(amounts: Amounts, told: Tally) -> Found | None:
    plain = told.plain
    total = sum(n for _, n in amounts)
    # "007 kg" is a code.
    units = _sums(
        (one["unit"], n) for one, n in amounts if _is_known(one) and not rules.match("0[0-9].*", one["number"])
    )
    unit = _top({one: n for one, n in units.items() if one and (_is_sign(one) or 2 * n > plain + total)})
    fitting = [(one, n) for one, n in amounts if one["unit"] in ("", unit)]
    others = total - sum(n for _, n in fitting)
    # "12B" beside "12A" is no number of thousands of millions.
    powers = sum(n for one, n in fitting if one["times"]) >= max(_MOST * others, 1)
    fitting = [(one, n) for one, n in fitting if powers or not one["times"]]
    reads = [tuple(rules.match(digits, one["number"]) is not None for digits in _DIGITS) for one, _ in fitting]
    point, comma = (sum(n for (_, n), read in zip(fitting, reads, strict=True) if read == one) for one in _EITHER)
    # "1.234" are thousands where others have both marks, such as "1.234,5".
    both = sum(n for (one, n), read in zip(fitting, reads, strict=True) if read == _EITHER[1] and "." in one["number"])
    # Plain numbers with a point stay what they are, unless most have a comma: in that style, these are read too.
    telling = not (point or told.doubtful) and comma > told.points
    telling = telling or comma >= max(_MOST * (point + told.points + told.doubtful), 1)
    has_point = not telling and (told.points > 0 or told.doubtful > _MOST * both)
    against, least = (comma, point + plain) if has_point else (min(point, comma), max(point, comma))
    if _MOST * against > least:
        return None
    decimal = "," if comma > point and not has_point else "."
    readable = [pair for pair, read in zip(fitting, reads, strict=True) if read[decimal == ","]]
    if not readable:
        return None
    marks = _sums((mark, n) for one, n in readable for mark in set(one["number"]) & set(",.' ") - {decimal})
    sides = _sums((f"{one['before']}\t{one['behind']}", n) for one, n in readable if one["unit"] == unit)
    before, _, behind = _top(sides).partition("\t")
    number = f"1{_top(marks) or '.,'[decimal == '.']}234{decimal}5{'k' * powers}"
    in_doubt = not (point or comma or has_point) and bool(marks.keys() & {",", "."})
    return Found(f"{before}{' ' * before[-1:].isalpha()}{number}{' ' * bool(behind)}{behind}", in_doubt)


def _sums(pairs: Iterable[tuple[str, int]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for one, count in pairs:
        found[one] += count
    return found


def _top(counts: dict[str, int]) -> str:
    return max(counts, key=lambda one: (counts[one], one), default="")


def _is_sign(unit: str) -> bool:
    """Tell whether a unit is one for sure, such as "€" and "%"."""
    return all(one in "%\u2030\u00b0" or unicodedata.category(one) == "Sc" for one in unit)


def _is_known(amount: dict[str, str]) -> bool:
    """Tell whether letters beside a number are a currency or a unit, and not the letters of a code such as "A11"."""
    unit = amount["unit"].rstrip(".")
    if not unit or _is_sign(unit) or _is_currency(unit):
        return True
    if amount["before"]:
        return False
    parts = re.split(r"[ /*^\u00b7]|(?<=[a-z])\.(?=[a-z])", unit)
    return all(_is_word(word) for part in parts if (word := part.rstrip(".\u00b2\u00b3")))


def _is_word(word: str) -> bool:
    if word[0] in "\u00b0+\"'" or _is_sign(word) or _is_currency(word):
        return True
    # One letter counts as it is written: "24D" is a seat.
    return any(one in _UNITS for one in (word, f"{word}s", *([word.lower(), f"{word.lower()}s"] * (len(word) > 1))))


def _is_currency(unit: str) -> bool:
    letters = "".join(one for one in unit if unicodedata.category(one) != "Sc").rstrip(".")
    return letters.upper() in _CURRENCIES or (letters != unit and len(letters) <= 3 and letters.isupper())
