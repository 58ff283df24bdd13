"""Parse columns of formatted numbers such as "$1,299.50" and "1h 30m", and guess the notation of a column."""

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

from daskprep.columns.kernels import BLOCK_SPANS, null_mask, only_where, string_buffers
from daskprep.features.cells import as_dictionary, as_numbers, is_text, parse_numbers_and_strip
from daskprep.rows import numbers as rules
from daskprep.rows.numbers import Notation, derive_notation, parse_number
from daskprep.sources.cells import as_text

# Up to one cell in twenty may contradict the notation of a column.
_MIN_MAJORITY_RATIO = 19
_DIGIT_PATTERNS = rules.digits_pattern("[.]", "[,' ]"), rules.digits_pattern("[,]", "[.' ]")
_POINT_OR_COMMA = (True, False), (False, True)  # with a decimal point only, and with a decimal comma only
_DURATION_EXAMPLE = "1:30"  # its notation matches all forms of durations
_FORM_TABLE = bytes.maketrans(b"0123456789\0", b"22222222220")
_PARSED_TYPE = pa.struct([("number", pa.float64()), ("doubtful", pa.bool_()), ("text", pa.string())])


# Codes of ISO 4217, and other names of currencies that are common next to numbers.
_CURRENCIES = frozenset(
    """
    AED ARS AUD BDT BGN BHD BRL BTC CAD CHF CLP CNY COP CZK DKK DZD EGP ETB ETH EUR GBP GHS HKD HRK HUF IDR ILS INR
    IQD IRR ISK JOD JPY KES KRW KWD KZT LBP LKR MAD MXN MYR NGN NOK NPR NZD OMR PEN PHP PKR PLN QAR RON RSD RUB SAR
    SEK SGD THB TND TRY TWD TZS UAH UGX USD UYU UZS VND XAF XOF ZAR ZMW RS KR FT LEI RMB SFR DM DOLLAR DOLLARS
    EURO EUROS POUND POUNDS CENT CENTS RUPEE RUPEES YEN YUAN WON FRANC FRANCS KRONER KRONOR ZL K\u010c Z\u0141 TL
    """.split()  # noqa: SIM905
)
# Only letters that rarely occur in codes such as "24A" are units; others need `written`. "5K" is 5,000, not kelvin.
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


class NotationGuess(NamedTuple):
    """Example of a column's notation, and whether it is ambiguous."""

    example: str
    is_ambiguous: bool = False


def parse_or_keep_text(column: pa.Array) -> pa.Array:
    """Return cells as doubles, or as structs until a notation is learned.

    The structs have the number, whether it is ambiguous, and the text of cells that are no plain numbers but may be
    numbers in another notation. Other text becomes null.
    """
    if pa.types.is_dictionary(column.type):
        return parse_or_keep_text(column.dictionary).take(column.indices)
    if not is_text(column.type):
        return as_numbers(column)
    numbers, texts = parse_numbers_and_strip(as_text(column))
    ambiguous, notation_texts = mask_ambiguous(texts, numbers), pa.nulls(0, pa.string())
    if numbers.null_count > texts.null_count:
        cells = as_dictionary(only_where(numbers.is_null(), texts))
        notation_texts = only_where(_mask_readable(cells.dictionary), cells.dictionary).take(cells.indices)
    if notation_texts.null_count == len(notation_texts) and not ambiguous.any():
        return numbers
    return make_parsed_cells(numbers, pa.array(ambiguous), notation_texts if len(notation_texts) else None)


def make_parsed_cells(
    numbers: pa.Array, ambiguous: pa.Array | None = None, texts: pa.Array | None = None
) -> pa.StructArray:
    """Return cells whose notation is not learned yet, as structs.

    `numbers` are plain numbers as doubles, `ambiguous` masks those such as "1.234" that may be thousands, and `texts`
    are the texts that are numbers in another notation; each is null elsewhere.
    """
    flags = pa.array(np.zeros(len(numbers), bool)) if ambiguous is None else ambiguous
    texts = pa.nulls(len(numbers), pa.string()) if texts is None else texts
    missing = pc.and_(numbers.is_null(), texts.is_null()) if numbers.null_count else None
    return pa.StructArray.from_arrays([numbers, flags, texts], fields=list(_PARSED_TYPE), mask=missing)


def mask_ambiguous(texts: pa.Array, numbers: pa.Array) -> np.ndarray:
    """Return a mask of texts such as "1.234", which may be 1234; from `parse_numbers_and_strip`."""
    offsets, data = string_buffers(texts)
    ambiguous = np.zeros(len(texts), bool)
    for first in range(0, len(texts) if len(data) else 0, BLOCK_SPANS):
        block_offsets = offsets[first : first + BLOCK_SPANS + 1]
        start, point = block_offsets[:-1], block_offsets[1:] - 4
        rows = np.flatnonzero((data.take(point, mode="clip") == ord(".")) & (point > start))
        start, point = start[rows], point[rows]
        start = start + (data[start] < ord("0"))  # after the sign
        no_exponent = (data[point + 1] | data[point + 2]) < ord("A")
        ambiguous[first + rows] = (data[start] >= ord("1")) & (point - start <= 3) & no_exponent
    return ambiguous & ~null_mask(numbers) if numbers.null_count else ambiguous


def as_thousands(numbers: pa.Array) -> pa.Array:
    """Return ambiguous numbers read with a decimal comma."""
    return pc.floor(pc.add(pc.multiply(numbers, 1000.0), 0.5))


def has_point_thousands(notation: Notation) -> bool:
    """Return whether "1.234" is 1234 in a notation."""
    return (notation.decimal, notation.thousands) == (",", ".")


def parse_column_notation(column: pa.Array, notation: Notation) -> pa.Array:
    """Return cells as doubles, in a notation."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not is_text(kind):
        return as_numbers(column)
    cells = as_dictionary(column)
    parse = parse_strict_notation if notation.decimal == "," else parse_notation
    return parse(cells.dictionary, notation).take(cells.indices)


def parse_notation(texts: pa.Array, notation: Notation | None) -> pa.Array:
    """Return texts as doubles: plain, and in a notation."""
    if notation is None:
        return as_numbers(texts)
    numbers = parse_strict_notation(texts, notation)
    if notation.decimal == ",":
        plain = as_numbers(texts)
        return pc.coalesce(only_where(pa.array(mask_ambiguous(texts, plain)), numbers), plain, numbers)
    # With a decimal point, texts that are plain numbers too have the same value in both readings.
    return numbers if numbers.null_count == texts.null_count else pc.coalesce(as_numbers(texts), numbers)


def _normalize_texts(texts: pa.Array) -> pa.Array:
    """Replace variants of spaces, signs and exponents by one form, too long text by null."""
    texts = pc.utf8_trim_whitespace(texts)
    texts = only_where(pc.less_equal(pc.utf8_length(texts), rules.MAX_CHARACTERS), texts)
    is_ascii = pc.all(pc.string_is_ascii(texts), min_count=0).as_py()
    replacements = rules.REPLACEMENTS[rules.NON_ASCII_REPLACEMENTS :] if is_ascii else rules.REPLACEMENTS
    replaceable = pc.fill_null(
        pc.match_substring_regex(texts, "|".join(pattern for pattern, _ in replacements)), fill_value=False
    )
    if not replaceable.true_count:
        return texts
    changed = texts.filter(replaceable)
    for pattern, replacement in replacements:
        changed = pc.replace_substring_regex(changed, pattern, replacement)
    return pc.replace_with_mask(texts, replaceable, changed)


def _mask_readable(texts: pa.Array) -> pa.Array:
    """Return a mask of texts that are numbers in some notation."""
    texts = _normalize_texts(texts)
    is_readable = pc.match_substring_regex(texts, f"^(?:{rules.AMOUNT})$")
    if not pc.all(is_readable, min_count=0).as_py():
        spans = [pc.match_substring_regex(texts, f"^(?:{shape})$") for shape in (*rules.DURATION_PATTERNS, rules.HOURS)]
        # Each part of a duration is optional in the patterns, so they match an empty duration too.
        is_duration = pc.and_(functools.reduce(pc.or_, spans), pc.match_substring_regex(texts, "[0-9]"))
        is_readable = pc.or_(is_readable, is_duration)
    return pc.fill_null(is_readable, fill_value=False)


def parse_strict_notation(texts: pa.Array, notation: Notation) -> pa.Array:
    """Return texts in a notation as doubles, plain ones as null."""
    texts = _normalize_texts(texts)
    if notation.is_duration:
        return _parse_durations(texts, notation)
    pattern = f"^(?:{notation.patterns[0]})$"
    if notation.affix_characters is None:
        parts = pc.extract_regex(texts, pattern)
        digits = pc.binary_join_element_wise(pc.struct_field(parts, "number"), pc.struct_field(parts, "times"), "")
    else:
        matching = only_where(pc.match_substring_regex(texts, pattern), texts)
        digits = pc.utf8_trim(matching, notation.affix_characters)
    digits = pc.replace_substring(digits, notation.thousands, "")
    if notation.decimal != ".":
        digits = pc.replace_substring(digits, notation.decimal, ".")
    for letter, power in rules.POWERS.items() if "[kKMB]" in pattern else ():
        digits = pc.replace_substring(digits, letter, power)
    numbers = as_numbers(digits)
    return pc.if_else(pc.starts_with(texts, "-"), pc.negate(numbers), numbers)


def _parse_durations(texts: pa.Array, notation: Notation) -> pa.Array:
    """Return durations in seconds, null for other text."""
    texts = only_where(pc.match_substring_regex(texts, "[0-9]"), texts)
    numbers = pa.nulls(len(texts), pa.float64())
    for pattern in notation.patterns:
        parts = pc.extract_regex(texts, f"^(?:{pattern})$")
        weeks, days, hours, minutes, seconds = (_part_seconds(parts, key, unit) for key, unit in rules.SECONDS.items())
        clock, weeks_and_days = pc.add(pc.add(hours, minutes), seconds), pc.add(weeks, days)
        negated = pc.negate(clock)
        if parts.type.get_field_index("plus") >= 0:
            negated = pc.if_else(pc.equal(pc.struct_field(parts, "plus"), "+"), clock, negated)
        is_negative = pc.equal(pc.struct_field(parts, "sign"), "-")
        span_seconds = pc.if_else(is_negative, pc.subtract(negated, weeks_and_days), pc.add(weeks_and_days, clock))
        numbers = pc.coalesce(numbers, span_seconds)
    return numbers


def _part_seconds(parts: pa.StructArray, name: str, seconds: float) -> pa.Array | pa.Scalar:
    """Return a part as seconds, 0 if it is empty or absent."""
    if parts.type.get_field_index(name) < 0:
        return pa.scalar(0.0)
    text = pc.struct_field(parts, name)
    return pc.multiply(pc.if_else(pc.equal(text, ""), "0", text).cast(pa.float64()), seconds)


def guess_and_parse(texts: pa.Array, counts: np.ndarray) -> tuple[NotationGuess | None, pa.Array]:
    """Return counted texts' guessed notation, and numbers."""
    texts = pc.utf8_trim_whitespace(texts)
    guess = guess_notation(count_notations(texts, counts))
    return guess, parse_notation(texts, None if guess is None else derive_notation(guess.example))


class NotationCounts(NamedTuple):
    """Counts of texts that a notation is guessed from."""

    forms: Counter[str]  # from `count_forms`, of texts that are no plain numbers
    plain: int  # plain numbers; 0 if they are all 0
    points: int  # plain numbers with a certain decimal point
    ambiguous: int  # plain numbers such as 1.234, which may be 1234


def count_notations(texts: pa.Array, counts: np.ndarray) -> NotationCounts:
    """Count plain numbers and forms among distinct texts."""
    plain_numbers = as_numbers(texts)
    numbers, ambiguous_mask = plain_numbers.to_numpy(zero_copy_only=False), mask_ambiguous(texts, plain_numbers)
    not_plain, has_fraction = np.isnan(numbers), numbers % 1 > 0
    plain = int(counts[~not_plain].sum()) if numbers[~not_plain].any() else 0
    points, ambiguous = (int(counts[has_fraction & mask].sum()) for mask in (~ambiguous_mask, ambiguous_mask))
    return NotationCounts(count_forms(texts.filter(pa.array(not_plain)), counts[not_plain]), plain, points, ambiguous)


def count_forms(texts: pa.Array, counts: np.ndarray) -> Counter[str]:
    """Count texts by form: each digit but a leading zero is 2."""
    forms = pc.replace_substring_regex(_normalize_texts(texts).fill_null(""), "^([^0-9]*)0", "\\1\0")
    _, offsets, data = forms.buffers()
    data = pa.py_buffer((b"" if data is None else data.to_pybytes()).translate(_FORM_TABLE))
    forms = pa.StringArray.from_buffers(len(forms), offsets, data, offset=forms.offset)
    grouped = pa.table([forms, pa.array(counts)], ["form", "count"]).group_by("form").aggregate([("count", "sum")])
    return Counter(dict(zip(grouped["form"].to_pylist(), grouped["count_sum"].to_pylist(), strict=True)))


def guess_notation(notation_counts: NotationCounts) -> NotationGuess | None:
    """Return the notation of almost all texts, or None."""
    forms, plain = notation_counts.forms, notation_counts.plain
    amounts = {form: amount for form in forms if (amount := rules.parse_amount(form)) is not None}
    spans = {form for form in forms if parse_number(form, derive_notation(_DURATION_EXAMPLE)) is not None}
    only_spans, only_amounts = (
        sum(forms[form] for form in selected) for selected in (spans - amounts.keys(), amounts.keys() - spans)
    )
    if only_spans and not plain and only_spans >= _MIN_MAJORITY_RATIO * only_amounts:
        colons = {form.count(":") for form in spans}
        return NotationGuess("1:30" if 1 in colons and 2 not in colons else "1:30:00")
    return _guess_amount_notation([(amount, forms[form]) for form, amount in amounts.items()], notation_counts)


def _guess_amount_notation(amounts: Amounts, notation_counts: NotationCounts) -> NotationGuess | None:
    """Return the notation of numbers with or without a unit."""
    _, plain, points, ambiguous = notation_counts
    total = sum(n for _, n in amounts)
    # "007 kg" is a code.
    units = _sum_counts(
        (parts["unit"], n)
        for parts, n in amounts
        if _is_known_unit(parts) and not rules.full_match("0[0-9].*", parts["number"])
    )
    unit = _most_frequent({one: n for one, n in units.items() if one and (_is_sign(one) or 2 * n > plain + total)})
    fitting = [(parts, n) for parts, n in amounts if parts["unit"] in ("", unit)]
    n_unfitting = total - sum(n for _, n in fitting)
    # "12B" in a column with "12A" is a code, not 12 billion.
    uses_powers = sum(n for parts, n in fitting if parts["times"]) >= max(_MIN_MAJORITY_RATIO * n_unfitting, 1)
    # Whether each number is readable with a decimal point, and with a decimal comma.
    readings = [
        (parts, n, tuple(rules.full_match(digits, parts["number"]) is not None for digits in _DIGIT_PATTERNS))
        for parts, n in fitting
        if uses_powers or not parts["times"]
    ]
    point, comma = (sum(n for _, n, reading in readings if reading == one) for one in _POINT_OR_COMMA)
    # "1.234" is 1234 where other cells have both marks, such as "1.234,5".
    both_marks = sum(n for parts, n, reading in readings if reading == _POINT_OR_COMMA[1] and "." in parts["number"])
    # Points of plain numbers are decimal points, unless most cells have a comma: then plain numbers are read too.
    comma_decides = not (point or ambiguous) and comma > points
    comma_decides = comma_decides or comma >= max(_MIN_MAJORITY_RATIO * (point + points + ambiguous), 1)
    has_point = not comma_decides and (points > 0 or ambiguous > _MIN_MAJORITY_RATIO * both_marks)
    contradicting, supporting = (comma, point + plain) if has_point else (min(point, comma), max(point, comma))
    if _MIN_MAJORITY_RATIO * contradicting > supporting:
        return None
    decimal = "," if comma > point and not has_point else "."
    readable = [(parts, n) for parts, n, reading in readings if reading[decimal == ","]]
    if not readable:
        return None
    marks = _sum_counts((mark, n) for parts, n in readable for mark in set(parts["number"]) & set(",.' ") - {decimal})
    affixes = _sum_counts((f"{one['before']}\t{one['behind']}", n) for one, n in readable if one["unit"] == unit)
    before, _, behind = _most_frequent(affixes).partition("\t")
    number = f"1{_most_frequent(marks) or '.,'[decimal == '.']}234{decimal}5{'k' * uses_powers}"
    is_ambiguous = not (point or comma or has_point) and bool(marks.keys() & {",", "."})
    return NotationGuess(f"{before}{' ' * before[-1:].isalpha()}{number}{' ' * bool(behind)}{behind}", is_ambiguous)


def _sum_counts(pairs: Iterable[tuple[str, int]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for key, count in pairs:
        sums[key] += count
    return sums


def _most_frequent(counts: dict[str, int]) -> str:
    return max(counts, key=lambda one: (counts[one], one), default="")


def _is_sign(unit: str) -> bool:
    """Return whether a unit consists of signs such as "€" and "%"."""
    return all(character in "%\u2030\u00b0" or unicodedata.category(character) == "Sc" for character in unit)


def _is_known_unit(amount: dict[str, str]) -> bool:
    """Return whether letters are a currency or a unit, not a code."""
    unit = amount["unit"].rstrip(".")
    if not unit or _is_sign(unit) or _is_currency(unit):
        return True
    if amount["before"]:
        return False
    parts = re.split(r"[ /*^\u00b7]|(?<=[a-z])\.(?=[a-z])", unit)
    return all(_is_unit_word(word) for part in parts if (word := part.rstrip(".\u00b2\u00b3")))


def _is_unit_word(word: str) -> bool:
    """Return whether a word is a unit, sign or currency."""
    if word[0] in "\u00b0+\"'" or _is_sign(word) or _is_currency(word):
        return True
    # Single letters are case-sensitive: "24D" is a seat, not 24 days.
    return any(one in _UNITS for one in (word, f"{word}s", *([word.lower(), f"{word.lower()}s"] * (len(word) > 1))))


def _is_currency(unit: str) -> bool:
    letters = "".join(character for character in unit if unicodedata.category(character) != "Sc").rstrip(".")
    return letters.upper() in _CURRENCIES or (letters != unit and len(letters) <= 3 and letters.isupper())
