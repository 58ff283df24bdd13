"""Boundaries and reasons of each rule: one column at a time, without a frame."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import daskprep as dp
from daskprep.columns.summaries.column_facts import ColumnFacts, TextFacts
from daskprep.extensions.column_types.column_facts import column_facts
from daskprep.extensions.column_types.guess import Guess, is_identifier_text, mostly_match, plain_name
from daskprep.extensions.column_types.rules import guess_feature, guess_target
from daskprep.extensions.media.pixels import encode_png

SKIPPED = "skipped"


def facts_of(*columns: Any) -> ColumnFacts:
    """Return the facts of a column with one partition per argument."""
    return sum((column_facts(pa.array(cells)) for cells in columns), ColumnFacts())


def guess(cells: Any, name: str = "column") -> Guess:
    return guess_feature(name, facts_of(cells))


def kind(guess: Guess) -> str:
    return SKIPPED if guess.feature is None else guess.feature.kind


def kind_of(cells: Any, name: str = "column") -> str:
    return kind(guess(cells, name))


def codes(values: int, each: int, first: int = 0) -> list[int]:
    """Return consecutive integers, equally often."""
    return list(range(first, first + values)) * each


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        (pa.array([], pa.string()), "no rows"),
        ([None, " ", None], "no values: all 3 rows are missing"),
        (["?", None, "n/a"], "no values: all 3 rows only have markers of missing values"),
        (["up"] * 3, "constant: 'up' in every row"),
        ([7] * 3, "constant: '7' in every row"),
        (["no", "no", "no", None], "constant: 'no' in every row or missing (25.0 %)"),
        (["no", "no", "?", None], "constant: 'no' in every row or missing (50.0 %)"),
        ([[], []], "empty lists in all of 2 rows"),
        ([["a", None], ["b"]], "1 lists of text have missing items: fill them first"),
    ],
)
def test_unusable_columns_are_skipped_with_a_reason(cells, reason):
    assert guess(cells)[:2] == (None, reason)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        (["a", "b", "b"], "two values, 'a', the rarer one, is True and 'b' is False: 2 distinct values in 3 rows"),
        (["yes", "n"], "spellings of yes and no, 'yes' is True and 'n' is False: 2 distinct values in 2 rows"),
        ([True, None, False], "booleans: 2 distinct values in 3 rows, 33.3 % missing"),
        (["yes", None], "'yes' or missing: 1 distinct value in 2 rows, 50.0 % missing"),
        ([0.5, 1.25], "numbers from 0.5 to 1.25: 2 distinct values in 2 rows"),
        ([2.0, 3.5], "numbers from 2 to 3.5: 2 distinct values in 2 rows"),
        (["4.5", "1000"], "numbers from 4.5 to 1,000 (read from text): 2 distinct values in 2 rows"),
        ([4, 12_345_678, 4], "integers from 4 to 12,345,678: 2 distinct values in 3 rows"),
        (codes(3, 20), "codes from 0 to 2, none of them rare: 3 distinct values in 60 rows"),
        ([[1, 2], [3, 4]], "2 numbers in every cell of 2 rows"),
        ([[1, 2], [3]], "1 to 2 numbers in a cell of 2 rows"),
        ([[1, None], [3, 4]], "2 to 2 numbers in a cell of 2 rows, some of them missing"),
        ([["a", "b"], ["b"]], "2 distinct tokens in lists in 2 rows, 1.5 in a cell, none twice in a cell"),
        (["a.png", "b.png", None], "paths of images in 100 % of 3 rows, 33.3 % missing"),
    ],
)
def test_reasons_describe_the_column(cells, reason):
    assert guess(cells).reason == reason


@pytest.mark.parametrize(
    ("cells", "has_note"),
    [
        (["4.733", "1.234", "12.500", "99.999", "7.123", "326", "88"], True),
        (["4.733", "1.234", "12.500", "99.999", "7.123", "326", "1000"], False),
        (["4.733", "1.234", "12.500", "99.999", "7.123", "0.326", "88"], False),
        (["4.733", "1.234", "12.500", "99.999", "7.123", "8.001"], False),  # decimals of a fixed length
        (["4.733", "1.234", "12.500", "99.999", "326", "88"], False),
        ([4.733, 1.234, 12.5, 99.999, 7.123, 8.001, 326.0], False),
    ],
)
def test_possible_thousands_separators_are_noted(cells, has_note):
    note = '; "99.999" is read as 99.999: if points separate thousands, use Number(written="99.999,5")'
    assert guess(cells * 5).reason.endswith(note) == has_note
    assert ("thousands" in guess(cells * 5).reason) == has_note


def test_cells_contradicting_decimal_commas_are_noted():
    cells = [f"{i % 25},{i % 4}5" for i in range(200)]
    assert "correct" not in guess(cells).reason
    note = "; for numbers with decimal commas, correct cells such as '1,234.50', and infer again"
    for found, others in (("vector", ["1,234.50"] * 8), ("set", ["1,234.50", "2.5"] * 4)):
        feature, reason, _ = guess([*cells, *others])
        assert (feature.kind, reason.endswith(note)) == (found, True)


def test_booleans_next_to_numbers_are_noted():
    feature, reason, _ = guess([f"{i}.5" for i in range(100)] + ["true", "false"] * 3)
    assert isinstance(feature, dp.Number)
    assert reason.endswith("; true and false are unreadable next to numbers: replace them by 1 and 0")


def test_unsupported_cell_types_are_named():
    facts = ColumnFacts(5, unsupported=Counter({"map": 2, "duration": 3}))
    reason = "holds values of type duration and map, which no feature reads: convert the column first"
    assert guess_feature("column", facts)[:2] == (None, reason)


# -- names


@pytest.mark.parametrize(
    "name",
    [
        "id",
        "customer_id",
        "customerId",
        "Customer ID",
        "customer-id",
        "CUSTOMER-ID",
        "order2Id",
        "ids",
        "uuid",
        "id_of_row",
        "ID",
        "userId",
        "PassengerId",
        "PassengerID",
        "passengerid",
        "UID",
        "patient_nbr",
        "Invoice No.",
        "S.No",
        "IDNumber",
    ],
)
def test_integers_with_an_identifier_name_are_codes(name):
    found = guess([1, 5, 9, 9], name)
    assert kind(found) == "category"
    assert found.reason == "integers named like codes: 3 distinct values in 4 rows"
    assert kind_of([1, 5, 9], name) == SKIPPED


@pytest.mark.parametrize("name", ["paid", "identity", "idea", "video", "valid", "xindex", "narrow", "total_number"])
def test_names_that_only_contain_identifier_letters_are_ignored(name):
    assert kind_of([1, 5, 9, 9], name) == kind_of([1, 5, 9], name) == "number"


@pytest.mark.parametrize("name", ["zip", "zipCode", "Postal Code", "plz", "country-code"])
def test_integers_named_as_codes_are_categories_unless_row_numbers(name):
    assert kind_of([1, 5, 9], name) == "category"
    assert kind_of([1.5, 5, 9], name) == "number"


@pytest.mark.parametrize("name", ["index", "rowIndex", "key", "Unnamed: 0", "line", "#", "serial"])
def test_unique_row_numbers_are_skipped(name):
    assert guess([1, 5, 9], name)[:2] == (
        None,
        "unique in every row, so this looks like an identifier (integers from 1 to 9, 3 rows)",
    )
    assert kind_of([1, 5, 9, 9], name) == "number"


@pytest.mark.parametrize("name", ["price", "sqft_living", "Population", "year", "totalCost"])
def test_measures_are_numbers_even_if_unique(name):
    assert kind_of([*range(100_001, 999_999, 1_487)], name) == "number"
    assert kind_of([*range(1_900, 2_000)], name) == "number"
    assert kind_of([*range(100_001, 999_999, 1_487)]) == SKIPPED


def test_almost_unique_identifiers_are_skipped():
    numbers = [*range(1_000_025, 1_000_225, 7), 1_000_025]
    reason = "almost unique (29 distinct values in 30 rows), so this looks like an identifier (integers from"
    assert guess(numbers, "sample_id").reason.startswith(reason)
    assert kind_of(numbers) == "number"
    assert kind_of([*numbers, *numbers[:4]], "sample_id") == "category"
    assert kind_of([*numbers, None], "sample_id") == SKIPPED
    assert "may mark" not in guess([*numbers, -999, -999], "sample_id").reason
    hashes = [f"{i * 7919:08x}" for i in range(120)]
    assert kind_of([*hashes, hashes[0]]) == kind_of([*hashes[:30], hashes[0]], "user_id") == SKIPPED
    assert kind_of([*hashes[:30], hashes[0]]) == "category"


# -- media


@pytest.mark.parametrize(("suffix", "medium"), [("png", "image"), ("wav", "audio")])
def test_up_to_5_percent_of_media_cells_can_differ(suffix, medium):
    paths = [f"{i}.{suffix}" for i in range(19)]
    assert kind_of([*paths, "odd"]) == medium
    assert kind_of([*paths[:18], "odd", "even"]) != medium


def test_media_reason_names_the_majority_form():
    def reason(stored: int, paths: int) -> str:
        text = TextFacts(cells=paths, images=paths)
        return guess_feature("column", ColumnFacts(stored + paths, images=stored, text=text)).reason

    assert reason(1, 1) == "bytes or structs of images in 100 % of 2 rows"
    assert reason(1, 2) == "paths of images in 100 % of 3 rows"
    assert (
        guess_feature("column", ColumnFacts(2, audio=2)).reason == "bytes or structs of audio files in 100 % of 2 rows"
    )


# -- lists


def test_lists_of_text_are_sequences_if_over_1_percent_repeat_items():
    assert kind_of([["a", "a"], *[["a", "b"]] * 99]) == "set"
    assert kind_of([*[["a", "a"]] * 2, *[["a", "b"]] * 98]) == "sequence"
    assert guess([["a", "a"], ["b"]]).reason.endswith("1.5 in a cell, repeated in 50.0 % of them")


@pytest.mark.parametrize(("length", "found"), [(20, "set"), (21, "sequence")])
def test_long_lists_of_text_are_sequences(length, found):
    assert kind_of([[f"{i}" for i in range(length)]] * 3) == found


@pytest.mark.parametrize(("items", "found"), [(10_000, "set"), (10_001, "sequence")])
def test_lists_of_many_distinct_items_are_sequences(items, found):
    assert kind_of([[f"{i}"] for i in range(items)]) == found


def test_lists_of_numbers_and_of_text_do_not_mix():
    reason = "holds lists of numbers and lists of text: make all of them text"
    assert guess_feature("column", facts_of([[1, 2]], [["a"]]))[:2] == (None, reason)
    assert kind(guess_feature("column", facts_of([["a", "b"]], ["cell"], [["b"]]))) == "set"


def test_lists_of_numbers_among_other_cells_are_not_lists():
    assert kind(guess_feature("column", facts_of([[1, 2]], [True, False] * 19))) == "binary"
    assert kind(guess_feature("column", facts_of([[1, 2]], [encode_png(np.zeros((2, 2), np.uint8))]))) != "vector"
    assert kind(guess_feature("column", facts_of([[1, 2]], [[], []]))) == "timeseries"
    assert kind(guess_feature("column", facts_of([["a"]], [[], []]))) == "set"


def test_numbers_among_media_are_not_parsed_in_notations():
    pixels = encode_png(np.zeros((2, 2), np.uint8))
    assert kind(guess_feature("column", facts_of([i + 0.5 for i in range(40)], [pixels] * 20))) == "category"


def test_lists_of_one_length_are_vectors_unless_numbers_are_missing():
    assert kind_of([[1.0, 2.0], [3.0, 4.0]]) == "vector"
    assert kind_of([[1.0, 2.0], [3.0]]) == "timeseries"
    assert kind_of([[1.0, 2.0], [3.0, None]]) == "timeseries"


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["['sauna', 'new pool']", "['sauna']", "[]"], ["sauna", "new pool"]),
        (["[\"it's\", 'lift']", "['lift']", "['lift', \"it's\"]"], ["lift", "it's"]),
        (['["sauna", "a, b"]', '["sauna"]', '["caf\\u00e9", "sauna"]'], ["sauna", "a, b", "café"]),
        (["[sauna, new pool]", "[sauna]", "[sauna, lift]"], ["sauna", "lift", "new pool"]),
    ],
)
def test_text_lists_written_as_text_are_sets(texts, found):
    feature, reason, _ = guess(texts * 10)
    assert isinstance(feature, dp.Set)
    assert f"{len(found)} distinct tokens in lists written as text in 30 rows" in reason
    tokens = dp.Preprocessor({"tags": feature}).fit({"tags": texts}).learned_["tags"].vocabulary.tokens.to_pylist()
    assert sorted(tokens[2:]) == sorted(found)


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["[1.5, 2]", "[3]", "[0, 1, 2]"], "timeseries"),
        (["[1.5, 2]", "[]", "[3]"], "timeseries"),
        ([f"[{', '.join('5' * length)}]" for length in (6, 7, 8)], "timeseries"),
        (["(1, 2)", "(1, 2, 3)", "(4, 5, 6)"], "timeseries"),
        (["[1.5]", "[2.5]", "[4]"], "vector"),
    ],
)
def test_number_lists_written_as_text_are_read_as_lists(texts, found):
    assert kind(guess(texts * 10)) == found
    feature = guess(texts * 10).feature
    assert dp.Preprocessor({"x": feature}).fit({"x": texts}).learned_["x"].invalid == 0


def test_contradictory_decimal_marks_are_numbers_with_a_reason():
    cells = [f"{one}{',.'[one % 2]}{one}" for one in range(10, 60)]
    feature, reason, _ = guess(cells)
    assert isinstance(feature, dp.Number)
    assert feature.missing_value_strategy == "fill_with_mean"
    assert reason == (
        "numbers with a decimal point, 50.0 % unreadable: 50 distinct values in 50 rows; '42,42' is unreadable next to "
        "decimal points: write all numbers with one decimal mark"
    )
    assert kind_of([cell.replace(".", ",") for cell in cells]) == "number"
    lists = [f"{i},{i + 1}" for i in range(50)]
    assert kind_of([*lists, "1.5", "2.5", "3.5"]) == "number"


def test_few_numbers_with_another_decimal_mark_are_unreadable():
    comma = [f"€{i},{i:02d}" for i in range(97)]
    for cells in (comma, [cell.removeprefix("€") for cell in comma]):
        assert guess([*cells, "12.50"]).reason == (
            f"numbers written as '{cells[0][:-4]}1.234,5': 98 distinct values in 98 rows"
        )


def test_example_of_day_first_dates_is_day_first():
    days = [f"{1 + i % 28:02d}/{1 + i % 12:02d}/2021" for i in range(20)]
    assert "day first, such as '" in guess(days).reason
    assert "/2021'" in guess([*days, *(f"2022-09-{1 + i % 28:02d}" for i in range(300))]).reason


def test_numbers_with_a_frequent_label_have_an_unreadable_share():
    feature, reason, _ = guess([*(f"{k}.50" for k in range(90)), *["on request"] * 10])
    assert feature.missing_value_strategy == "fill_with_mean"
    assert reason == "numbers with a decimal point, 10.0 % unreadable: 91 distinct values in 100 rows"


def test_unchecked_frequent_values_are_noted():
    cells = [f"€{1 + i % 3}.{i % 1000:03d},{i * 31 % 100:02d}" if i % 10 >= 3 else "on request" for i in range(2000)]
    feature, reason, _ = guess(cells)
    assert feature.missing_value_strategy == "fill_with_mean"
    assert reason == (
        "numbers written as '€1.234,5', 29.9 % of frequent values that were not checked: "
        "1,401 distinct values in 2,000 rows"
    )


@pytest.mark.parametrize("mark", [".", "/", "-", " "])
def test_dates_with_month_names_can_have_any_separator(mark):
    cells = [mark.join((f"{day:02d}", "Oct", "2018")) for day in range(1, 29)]
    assert kind_of(cells) == "date"


# -- one value, two values


@pytest.mark.parametrize(
    ("cells", "found", "label"),
    [
        (["yes", None], "binary", None),
        (["yes", "?"], "binary", None),
        ([True, True], SKIPPED, None),
        ([True, False], "binary", None),
        (["up", None], "binary", "up"),
        (["up", "?"], "binary", "up"),
        (["up", "unknown"], "category", None),
        (["no", None], SKIPPED, None),
        (["up", "up"], SKIPPED, None),
        (["up", "up", "down"], "binary", "down"),
        (["down", "down", "up"], "binary", "up"),
        (["up", "up", "down", "down"], "binary", "up"),
        (["up", "up", "yes"], "binary", "yes"),
        (["up", "up", "no"], "binary", "up"),
        (["yes", "y", "no"], "binary", None),
        (["up", "up", "down", "?"], "binary", "down"),
        (["up", "up", "down", "Unknown"], "category", None),
        (["up", "down"], "category", None),
        (["up", "up", "down", "left"], "category", None),
    ],
)
def test_two_values_are_binary(cells, found, label):
    feature = guess(cells).feature
    assert ("skipped" if feature is None else feature.kind) == found
    assert getattr(feature, "positive", None) == label


def test_two_numbers_are_binary_from_20_rows():
    assert kind_of([3, 8] * 10) == "binary"
    assert kind_of(([3, 8] * 10)[:19]) == "number"
    assert kind_of([3, 8, 9] * 10) == "number"
    assert kind_of([0, 1, 1]) == "binary"


def test_two_dates_stay_dates():
    assert kind_of(pa.array([0, 1, 1], pa.timestamp("s"))) == "date"


def test_yes_and_no_with_other_labels_are_a_category():
    assert kind_of(["0", "1", "2", "3+"] * 9) == kind_of(["yes", "no", "perhaps"] * 9) == "category"
    assert kind_of([*["yes", "no"] * 19, "perhaps", "odd"]) == "binary"
    assert kind_of([*["yes", "no"] * 18, "perhaps", "odd"]) == "category"


def test_yes_and_no_are_detected_among_20_distinct_values():
    def spelled(letters: int) -> list[str]:
        forms = [f"{a}{b}{c}{d}{e}" for a in "fF" for b in "aA" for c in "lL" for d in "sS" for e in "eE"]
        return forms[:letters] * 2

    assert kind_of(["yes", *spelled(19)]) == "binary"
    assert kind_of(["yes", *spelled(20)]) != "binary"


# -- H3 cells

CELLS = ["8928308280fffff", "8928308280bffff", "89283082807ffff", "8a2a1072b59ffff"]


def h3(*, mode: int = 1, resolution: int = 9, base: int = 20, digits: str = "062102044") -> int:
    """Return a cell with the given fields."""
    places = [int(digit) for digit in digits.ljust(15, "7")]
    head = mode << 59 | resolution << 52 | base << 45
    return head | sum(digit << 3 * (14 - place) for place, digit in enumerate(places))


def test_h3_cells_are_inferred_from_text_and_numbers():
    found = guess(CELLS)
    assert found.reason == "H3 cells of resolution 9 to 10: 4 distinct values in 4 rows"
    assert kind(found) == kind_of([int(cell, 16) for cell in CELLS]) == "h3"
    assert f"{h3(digits='060405003'):x}" == CELLS[0]


def test_up_to_5_percent_of_h3_cells_can_differ():
    cells = [f"{h3(base=base):x}" for base in range(19)]
    assert kind_of([*cells, "odd"]) == kind_of([*cells, "?"]) == "h3"
    assert kind_of([*cells[1:], "odd", "even"]) == SKIPPED
    assert kind_of([*cells, f"{h3(base=122):x}"]) == "h3"
    assert kind_of([*cells[1:], f"{h3(base=122):x}", f"{h3(base=123):x}"]) == SKIPPED
    assert kind_of([*cells[1:], f"{h3(base=19):x}", f"{h3(digits='072102044'):x}"]) == "h3"
    assert kind_of([*cells, f"{h3(base=19):x}", *["odd"] * 20]) != "h3"
    edges = [f"{h3(mode=2, base=base):x}" for base in range(3)]
    assert kind_of([*[cells[0]] * 90, *edges]) == "category"


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, "h3"),
        ({"base": 121}, "h3"),
        ({"base": 122}, "number"),
        ({"mode": 2}, "number"),
        ({"resolution": 10}, "number"),
        ({"digits": "072102044"}, "number"),
        ({"resolution": 0, "digits": "", "base": 0}, "h3"),
        ({"resolution": 15, "digits": "012345601234560"}, "h3"),
        ({"resolution": 15, "digits": "012345601234567"}, "number"),
    ],
)
def test_numbers_are_h3_cells_if_every_field_is_valid(fields, found):
    assert kind_of([h3(**fields), h3(**{**fields, "base": 19})]) == found


# -- lists of numbers in text


def test_commas_of_numbers_are_distinguished_from_lists():
    decimal, thousands = [f"{i},5" for i in range(25)], [f"{i},234,567" for i in range(1, 26)]
    for cells, written in ((decimal, "'1.234,5'"), (thousands, "'1,234.5'")):
        assert guess([*cells, "7"]).reason == f"numbers written as {written}: 26 distinct values in 26 rows"
        found = guess([*cells, "odd"])
        assert kind(found) == "number"
        assert found.reason.startswith(f"numbers written as {written}, 3.8 % unreadable")
        assert kind_of([*cells, "odd", "even"]) != "number"
    assert kind_of(["1,5", "2"]) == kind_of(["1,234", "2"]) == "number"
    assert kind_of(["1,234", "1,2,3"]) == kind_of(["1,5", "1,2,3"]) == "timeseries"
    assert kind_of([*thousands, "1,2,3"]) == kind_of([f"{i} 345" for i in range(1, 9)]) == "vector"


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        (
            ["1,234", "2,345"],
            "numbers written as '1,234.5', read as in English, since thousands look like decimals: 2",
        ),
        (
            [*(f"{i}.5" for i in range(38)), "$5", "$6"],
            "numbers from 0.5 to 37.5 (read from text, 5.0 % unreadable): 40",
        ),
        (["1,234", "2,345", "0.5"], "numbers written as '1,234.5': 3"),
        (["$1,299.00", "$5", "12", "$3M"], "numbers written as '$1,234.5k': 4"),
        (["1 299,00 €", "5,50 €"], "numbers written as '1 234,5 €': 2"),
        (["EUR 5", "EUR 7.50"], "numbers written as 'EUR 1,234.5': 2"),
        (["12 %", "5%", "7 %"], "numbers written as '1,234.5 %': 3"),
        ([f"{i}h {i}m" for i in range(25)], "times or durations, as seconds: 25"),
    ],
)
def test_numbers_in_notations_are_numbers(cells, reason):
    found = guess(cells)
    assert kind(found) == "number"
    assert found.reason.startswith(reason)


def test_numbers_with_words_are_labels_or_identifiers():
    for form in ("Room {}", "ID{}", "1.0.{}", "{}/5", "{0}-{0}", "#{}", "89283082{}fffff", "{} Main Street 5"):
        assert kind_of([form.format(i) for i in range(30)]) != "number", form
    assert kind_of(["36 months", "60 months"] * 30) == "binary"
    assert kind_of(["1st", "2nd", "3rd"] * 30) == kind_of([f"{hour}:00" for hour in range(24)] * 3) == "category"
    assert kind_of(["$5", "$6", "n"] * 30) == kind_of(["5 kg", "5 lb", "7 kg"] * 30) == "category"
    assert kind_of([f"{i} kg" for i in range(9)], "box_id") != "number"


def test_columns_of_lists_have_at_least_half_lists():
    assert guess(["1 2", "3"]).reason == "1 to 2 numbers in a cell of 2 rows"
    assert guess(["1 2", "3 4", "5", "6"]).reason == "1 to 2 numbers in a cell of 4 rows"
    assert kind_of(["1 2", "3", "4"]) != "timeseries"
    many = [f"{i} {i + 0.5}" for i in range(38)]
    assert kind_of([*many, "odd", "even"]) == "vector"
    assert kind_of([*many[1:], "odd", "even", "queer"]) != "vector"


@pytest.mark.parametrize(
    ("cells", "tokenizer"),
    [(["1 2", "3 4 5"], None), (["1, 2", "3, 4, 5"], "comma"), (["1,2", "3 4 5"], None)],
)
def test_lists_of_numbers_use_their_common_separator(cells, tokenizer):
    feature = guess(cells).feature
    assert feature is not None
    assert (feature.kind, feature.tokenizer) == ("timeseries", tokenizer or dp.Timeseries().tokenizer)


def test_short_lists_of_few_numbers_are_sets_of_codes():
    few = ["1 2", "2", "1 3", "3", "3 2", "1"]
    assert kind_of([*few, "1 2 3"]) == kind_of([*few, "1 2 3 4 5", "4 5", "4", "5"]) == "set"
    assert kind_of([*few, "1 2 3 3 2 1"]) == "timeseries"
    assert kind_of(["1 2", "2 1", "1 3", "3 1"]) == "vector"
    assert kind_of([f"{i}.5 {i}" if i % 2 else f"{i}.5" for i in range(1, 60)]) == "timeseries"


# -- numbers


def test_up_to_5_percent_of_number_cells_can_be_unreadable():
    numbers = [f"{i / 8}" for i in range(38)]
    assert guess([*numbers, "odd", "even"]).reason == (
        "numbers from 0 to 4.625 (read from text, 5.0 % unreadable): 40 distinct values in 40 rows"
    )
    assert kind_of([*numbers[1:], "odd", "even", "queer"]) != "number"


def test_few_numbers_with_few_other_labels_are_a_category():
    few = [f"{i / 8}" for i in range(19)] * 2
    found = guess([*few, "odd"])
    assert kind(found) == "category"
    assert found.reason == "numbers and other labels, few of either: 20 distinct values in 39 rows"
    assert kind_of([*few, "0.3", "odd"]) == "number"
    assert kind_of(few) == "number"


def test_numbers_with_leading_zeros_are_labels():
    assert kind_of(["02139", "10001", "94103", "10001"]) == "category"
    assert kind_of(["2139", "10001", "94103", "10001"]) == "number"


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        (range(20), SKIPPED),
        (range(19), "number"),
        ([*range(19), 19.5], "number"),
        ([*range(19), 20], "number"),
        ([*range(20), 19], "number"),
        (range(-1, 30), "number"),
        (range(5, 30), SKIPPED),
        (range(0, 60, 2), "number"),
        (range(10_001, 99_999, 4_003), SKIPPED),
        (range(10_000, 99_999, 4_000), "number"),
        (range(1_000, 9_999, 400), "number"),
        (range(1_001, 9_999, 401), "number"),
        (range(90_000, 110_000, 1_000), "number"),
        (range(-10_000, -99_999, -4_000), "number"),
        (range(0, 3_000, 3), SKIPPED),
        (range(0, 2_997, 3), SKIPPED),
        (range(0, 60_000, 61), "number"),
    ],
)
def test_integers_that_resemble_row_numbers_are_skipped(numbers, found):
    assert kind_of(list(numbers)) == found


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        (codes(3, 20), "category"),
        (codes(3, 20)[1:], "number"),
        (codes(12, 20), "category"),
        (codes(13, 20), "number"),
        (codes(4, 20, first=1), "category"),
        (codes(4, 20, first=2), "number"),
        ([0, 1, 3] * 20, "number"),
        ([0] * 10 + [1] * 55 + [2] * 55, "category"),
        ([0] * 9 + [1] * 55 + [2] * 56, "number"),
        ([0.5, 1.0, 2.0] * 20, "number"),
        (["1", "2"] * 20 + ["?"], "binary"),
        ([*codes(3, 20), -9, -9], "category"),
        ([*codes(2, 20), *[-999] * 3], "category"),
        ([*codes(3, 20), -999], "number"),
    ],
)
def test_few_frequent_integers_from_0_or_1_are_codes(numbers, found):
    assert kind_of(numbers) == found


# -- text


def phrases(values: int, words: int, rows: int | None = None) -> list[str]:
    """Return distinct cells of some words, repeated to fill the rows."""
    different = [" ".join([f"w{value}", *["word"] * (words - 1)]) for value in range(values)]
    return [different[row % values] for row in range(rows or values)]


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        (phrases(20, 3, rows=40), "category"),
        (phrases(20, 5, rows=40), "category"),
        (phrases(20, 3, rows=39), "text"),
        (phrases(20, 2, rows=39), "category"),
        (phrases(21, 3, rows=42), "category"),
        (phrases(21, 2, rows=41), "text"),
        (phrases(21, 1, rows=41), "category"),
        ([*["solo", "duet"] * 10, *(chr(97 + i) * 3 for i in range(21))], "text"),
        (phrases(30, 5, rows=300), "category"),
        (phrases(30, 5, rows=299), "text"),
        (phrases(30, 4, rows=60), "category"),
        (phrases(30, 4, rows=59), "text"),
        (phrases(29, 5, rows=59) + phrases(1, 4), "category"),
        (phrases(1000, 5, rows=11_000), "category"),
        (phrases(1001, 5, rows=11_011), "text"),
    ],
)
def test_long_or_rarely_repeated_cells_are_text(cells, found):
    assert kind_of(cells) == found


def test_text_unique_in_every_row_is_an_identifier():
    one_word = phrases(20, 1)
    assert guess(one_word).reason.startswith(
        "unique in every row, so this looks like an identifier (20 rows, such as 'w"
    )
    assert kind_of(one_word) == SKIPPED
    assert kind_of(one_word[1:]) == "category"
    assert kind_of(one_word[1:], "rowId") == kind_of(one_word[1:], "key") == SKIPPED
    assert kind_of([*one_word, "w1"]) == "category"
    assert kind_of(phrases(30, 2)) == "text"
    towns = [f"{chr(97 + i)}ton" for i in range(18)]
    assert kind_of([*towns, "bath", "new york"]) == SKIPPED
    assert kind_of([*towns, "east bath", "new york"]) == "category"


def test_codes_with_spaces_are_identifiers_but_prose_is_text():
    plates = [f"AB {i} X{i % 7}" for i in range(40)]
    assert kind_of(plates) == SKIPPED
    assert kind_of([f"{i} Main Street" for i in range(40)]) == "text"
    assert kind_of([f"这是一个很好的产品{chr(0x4E00 + i)}我喜欢" for i in range(40)]) == "text"
    assert kind_of([f"这是一个很好的产品{chr(0x4E00 + i)}我喜欢" for i in range(30)] * 3) == "text"
    assert kind_of([f"李{chr(0x4E00 + i)}" for i in range(40)]) == SKIPPED


def drawn(rows: int) -> dict[str, list[str]]:
    """Return columns of codes, most of them unique, and of identifiers."""
    rng = np.random.default_rng(rows)
    letters = np.array(list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))

    def made(form: str, *most: int) -> list[str]:
        return [form.format(*row, letters[row[0] % 26]) for row in rng.integers(0, most, (rows, len(most))).tolist()]

    return {
        "diagnosis": made("{3}{1:02}.{2}", 26, 100, 10),
        "drg": made("{1:03}", 1, 1_000),
        "pressure": [f"{90 + int(a)}/{50 + int(b)}" for a, b in rng.integers(0, (90, 60), (rows, 2))],
        "region": made("{0:05}", 100_000),
        "county": [f"{1 + int(a):02}{1 + 2 * int(b):03}" for a, b in rng.integers(0, (56, 200), (rows, 2))],
        "uuid": made("{0:08x}-{1:04x}", 2**32, 2**16),
        "token": made("{0:010x}", 2**40),
        "phone": made("0{0:09}", 10**9),
        "parcel": [f"{i:06}" for i in range(rows)],
        "entry": [f"ORD-{i:05}" for i in rng.permutation(rows)],
        "shipment": [f"K{i % (rows - rows // 30)}" for i in range(rows)],
        "sent": [f"{1 + i % 28:02}/Oct/2000:13:{i // 28 % 60:02}:{i % 60:02} -0700" for i in range(rows)],
    }


@pytest.mark.parametrize("rows", [30, 300, 5_000])
def test_codes_are_distinguished_from_identifiers_by_collisions(rows):
    found = {name: kind_of(cells, name) for name, cells in drawn(rows).items()}
    codes = dict.fromkeys(["diagnosis", "drg", "pressure", "region", "county"], "category")
    others = dict.fromkeys(["uuid", "token", "phone", "parcel", "entry", "shipment"], SKIPPED)
    if rows < 100:  # among few rows, one repetition means that they are not row numbers
        others["shipment"] = "category"
    assert found == codes | others | {"sent": "date"}


@pytest.mark.parametrize("rows", [30, 300, 5_000])
def test_web_server_times_are_dates_with_a_format(rows):
    for zone, cells in ((" %z", drawn(rows)["sent"]), ("", [cell[:-6] for cell in drawn(rows)["sent"]])):
        feature = guess(cells).feature
        assert isinstance(feature, dp.Date)
        assert feature.datetime_format == f"%d/%b/%Y:%H:%M:%S{zone}"
        assert not feature.parse(pa.array(cells)).null_count


def test_unique_numbers_named_as_place_codes_are_categories():
    fips = list(range(1_001, 99_000, 331))
    assert kind_of(fips) == "number"
    assert kind_of(fips, "county_fips") == kind_of(range(10_001, 99_000, 331), "zip") == "category"
    assert kind_of(range(10_001, 99_000, 331)) == kind_of(range(1, 300), "zip") == SKIPPED
    assert kind(guess_target("zip", facts_of([f"{n:05}" for n in fips]))) == "category"


def test_reasons_explain_how_to_keep_an_identifier():
    assert guess(drawn(30)["token"]).reason.endswith('; to keep it, add it to the features as a "category"')
    assert guess(drawn(30)["diagnosis"]).reason.endswith("distinct values in 30 rows, codes that rarely repeat")


def test_words_are_counted_if_there_are_several():
    assert guess(["up", "down there", "left", "up"]).reason == "3 distinct values in 4 rows"
    assert guess(["down there", "up", "left", "right or left"]).reason.endswith("in 4 rows, 1.8 words in a cell")
    assert guess(["down there", "up", "x", "x y"]).reason.endswith("in 4 rows, 1.5 words in a cell")


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        ([f"${i}.50" for i in range(1_100)], "number"),
        ([*[f"${i}.50" for i in range(38)], "odd", "even"], "number"),
        ([*[f"${i}.50" for i in range(37)], "odd", "even"], SKIPPED),
        ([*[f"${i}.50" for i in range(38)], "3 apples"], "number"),
        ([*[f"${i}.50" for i in range(38)], "1.2.3.4", "odd"], SKIPPED),
        ([*[f"${i}" for i in range(20)] * 4, "odd"], "number"),
        ([*[f"${i}" for i in range(19)] * 4, "odd"], "category"),
        (["$5", "$6"] * 10, "binary"),
        (["$5", *["$6"] * 18], "number"),
        (["$5", "$6", "$7"] * 10, "number"),
        (["1,5", "2,7"] * 10, "number"),
    ],
)
def test_few_values_with_other_cells_and_notations_are_labels(cells, found):
    assert kind_of(cells) == found


# -- markers of missing values


@pytest.mark.parametrize(
    ("cells", "remark"),
    [
        (["red", "blue", "green"] * 9, "missing"),
        (phrases(30, 5), "a separate text"),
        (["a b", "b", "a", "c a", "a b c", "c", "b c"] * 9, "a separate token"),
        (["a b a", "b", "a", "c a c", "a b c", "c", "b c"] * 9, "a separate token"),
        ([f"{i / 7}" for i in range(30)], "missing"),
        (["yes", "no"], "missing"),
    ],
)
def test_treatment_of_missing_markers_is_noted(cells, remark):
    note = "; '?' is treated as"
    assert guess([*cells, "?"]).reason.endswith(f"{note} {remark}")
    assert note not in guess(cells).reason
    assert note not in guess([*cells, None]).reason


def test_media_and_skipped_columns_have_no_missing_marker_note():
    assert (
        guess([*[f"{i}.png" for i in range(30)], "?"]).reason == "paths of images in 96.8 % of 31 rows, 3.2 % missing"
    )
    assert guess(["no", "no", "?"]).reason == "constant: 'no' in every row or missing (33.3 %)"


def test_symbols_are_missing_and_words_stay_classes():
    found = guess([*["red", "blue", "green"] * 9, "?", " - ", "Unknown", "n/a"])
    assert found.feature.get_params()["null_values"] == ["-", "?", "n/a"]
    assert found.reason.endswith("; 'Unknown' is treated as a separate class; '-' and others are treated as missing")
    assert guess([*["yes", "no"] * 9, "?", "unknown"]).feature.null_values == ["?", "unknown"]
    assert guess([*["red", "blue", "green"] * 9, "Unknown"]).feature.null_values is None
    assert guess([*["red", "blue", "green"] * 9, "unknown", "nil"]).reason.count("as a separate") == 1
    assert kind_of(["yes", "yes", "unknown"]) == "binary"
    assert kind_of(["up", "up", "unknown"]) == "category"
    assert kind_of([*["0", "2"] * 20, "unknown"]) == kind_of([*["1", "2"] * 20, "unknown"]) == "number"


# -- imputation of missing cells


@pytest.mark.parametrize(
    ("cells", "strategy"),
    [
        ([0.5, 1.25, None], "fill_with_mean"),
        ([*[f"{i / 7}" for i in range(30)], "?"], "fill_with_mean"),
        ([*[f"{i / 7}" for i in range(40)], "odd"], "fill_with_mean"),
        ([*[f"{i / 7}" for i in range(38)], "odd", "even"], "fill_with_mean"),
        ([*["0", "1"] * 19, "odd", "even"], "fill_with_mode"),
        ([*[f"2021-05-{day:02}" for day in range(1, 31)], "0000-00-00"], "fill_with_mean"),
        ([0.5, 1.25], "fill_with_mean"),
        (["yes", "no", None], "fill_with_mode"),
        (["yes", "no"], "fill_with_mode"),
        (["2021-05-06", "2021-05-07", None], "fill_with_mean"),
        (["red", "blue", "green", None], "fill_with_const"),
    ],
)
def test_inferred_strategy_keeps_the_statistics(cells, strategy):
    assert guess(cells).feature.missing_value_strategy == strategy


def test_reason_of_codes_shows_a_decimal_point():
    assert ', written as "' in guess(["1.0", "2.0", "3.0"] * 50).reason
    assert "written" not in guess(["1", "2", "3"] * 50).reason


def test_reasons_have_the_unreadable_share():
    assert ", 5.0 % unreadable: " in guess([*["yes", "no"] * 19, "odd", "even"]).reason
    assert ", 3.2 % unreadable: " in guess([*[f"2021-05-{day:02}" for day in range(1, 31)], "unbekannt"]).reason


def test_possible_missing_sentinels_are_noted_but_stay_numbers():
    note = (
        "; -999 in 5.0 % of rows, far from all others, may mark missing values, but count as numbers: if so, "
        "list them in null_values of read_files"
    )
    cells = [i / 8 for i in range(190)]
    found = guess([*cells, *[-999.0] * 10])
    assert (kind(found), found.reason.endswith(note)) == ("number", True)
    assert guess([f"{cell}" for cell in [*cells, *[-999] * 10]]).reason.endswith(note)
    for alone in ([99, 999] * 9, [*cells, -999.0], [*cells, *[30.0] * 9], [i * 9.0 for i in range(120)] * 2):
        assert "may mark" not in guess(alone).reason
    assert "-999 and 9999 in" in guess([*cells, *[-999.0, 9999.0] * 2]).reason
    assert "but count as a separate class: if so" in guess([*codes(3, 20), *[-9] * 3]).reason


# -- values with an order declared by the frame


def in_order(*texts: str, order: tuple[str, ...], ordered: bool = True) -> pa.DictionaryArray:
    places = pa.array([order.index(text) for text in texts], pa.int32())
    return pa.DictionaryArray.from_arrays(places, pa.array(order), ordered=ordered)


def test_declared_orders_are_kept():
    low_to_high = ("low", "mid", "high", "top")
    found = guess(in_order("mid", "low", "high", order=low_to_high))
    assert found.feature.order == list(low_to_high)
    assert found.reason == ("in the order that the frame declares, from 'low' to 'top': 3 distinct values in 3 rows")
    assert guess(in_order("mid", "low", "high", order=low_to_high, ordered=False)).feature.order is None
    assert guess(in_order("b", "a", "b", order=("b", "a"))).feature.positive == "a"
    assert guess(in_order("yes", "no", order=("yes", "no"))).feature.positive is None
    assert guess(in_order("yes", "true", "yes", order=("yes", "true"))).feature.positive is None
    assert guess(in_order("low", "?", "mid", order=(*low_to_high, "?"))).feature.null_values is None


def test_different_or_incomplete_orders_are_ignored():
    one, other = (in_order("b", "a", "c", order=order) for order in (("a", "b", "c"), ("c", "b", "a")))
    assert guess_feature("column", facts_of(one, one)).feature.order == ["a", "b", "c"]
    assert guess_feature("column", facts_of(one, other)).feature.order is None
    assert guess_feature("column", facts_of(one, ["a", "b"])).feature.order is None
    assert guess(in_order("a", "b", "c", order=("a", "b", "c", "a "))).feature.order is None
    assert guess(in_order("a", "b", "c", order=("a", "b", "c", ""))).feature.order is None


# -- targets


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        ([1, 2, 3, 5, 6, 7] * 9, "category"),
        ([0] * 40 + [1, 2], "category"),
        ([3, 4, 5, 6, 7, 8] * 9, "number"),
        ([1, 50, 3] * 9, "number"),
        ([1, 2, 3], "number"),
        ([1.5, 2.0, 1.0] * 9, "number"),
        (range(40), "number"),
        ([*["good", "bad"] * 3, *(chr(97 + i) * 3 for i in range(21))], "category"),
        (["a b", "b", "a", "c a", "a b c", "c", "b c"] * 9, "category"),
        (["a;b", "b", "a", "c;a", "a;b;c", "c", "b;c"] * 9, "set"),
        (["yes", "no", "?"], "binary"),
        (phrases(30, 6), "text"),
        (phrases(20, 6), "category"),
        (phrases(21, 2), "text"),
        ([["a", "b"], ["b"]] * 9, "set"),
        (["up"] * 9, SKIPPED),
        (["[]", "[ ]"] * 9, SKIPPED),
        ([7] * 9, SKIPPED),
        (codes(2, 20), "binary"),
        (codes(3, 20), "category"),
        (codes(13, 9), "number"),
        ([*range(11), 12] * 9, "category"),
        ([*["0", "2"] * 20, "unknown"], "category"),
        ([*[0, 1, 3] * 6, 0, 1], "category"),
        ([*[0, 1, 3] * 6, 0], "number"),
        ([0, 1, 5] * 9, "category"),
        ([0, 1, 6] * 9, "number"),
    ],
)
def test_targets_are_inferred_as_labels_and_measures(cells, found):
    assert kind(guess_target("grade", facts_of(list(cells)))) == found


def test_targets_are_never_identifiers():
    def kind_of_target(cells: Any) -> str:
        assert kind_of(list(cells), "sample_id") == SKIPPED
        return kind(guess_target("sample_id", facts_of(list(cells))))

    assert kind_of_target(range(40)) == kind_of_target([5, 9]) == "number"
    assert kind_of_target([*range(1_000_025, 1_000_225, 7), 1_000_025]) == "number"
    assert kind_of_target([f"u{i:04}" for i in range(30)]) == "category"
    assert kind_of_target([*map(str, range(38)), "a", "b"]) == "number"
    assert kind_of_target([*map(str, range(37)), "a", "b", "c"]) == "category"


def test_unsupported_targets_stay_skipped():
    facts = facts_of([f"u{i:04}" for i in range(30)]) + ColumnFacts(2, unsupported=Counter({"map": 2}))
    reason = "holds values of type map, which no feature reads: convert the column first"
    assert guess_target("sample_id", facts)[:2] == (None, reason)


def test_almost_unique_requires_20_rows_and_90_percent():
    for rows, distinct, expected in ((20, 18, True), (20, 17, False), (19, 18, False)):
        facts = facts_of([f"k{i % distinct}" for i in range(rows)])
        assert is_identifier_text("id", facts) is expected
        assert is_identifier_text("town", facts) is False


def test_codes_without_identifier_name_require_100_rows():
    for rows, cells, expected in ((100, "k{}", True), (99, "k{}", False), (100, "k{} and so on", False)):
        texts = [cells.format(min(i, rows - 5)) for i in range(rows)]
        assert is_identifier_text("town", facts_of(texts)) is expected
        words = [text.translate(str.maketrans("0123456789", "abcdefghij")) for text in texts]
        assert is_identifier_text("town", facts_of(words)) is False


def test_mostly_match_includes_the_exact_share():
    assert mostly_match(facts_of(["a1", "b1", "c", "d"]), r"\d", 0.5)
    assert not mostly_match(facts_of(["a1", "b", "c", "d"]), r"\d", 0.5)
    assert mostly_match(facts_of(["a1"]), r"\d")
    assert not mostly_match(facts_of(pa.array([], pa.string())), r"\d")


@pytest.mark.parametrize(("name", "plain"), [("CustomerID", "customer_id"), ("_Row No._", "row_no"), ("a--b", "a_b")])
def test_plain_name_splits_words(name, plain):
    assert plain_name(name) == plain
