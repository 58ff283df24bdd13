"""Inference skips columns that repeat another column or a target, and keeps all others."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import daskprep as dp
from daskprep.errors import ConfigError
from daskprep.sources import Source, TableSource, as_source

ROWS = 600
RNG = np.random.default_rng(0)
CITIES = np.array(["Rome", "Oslo", "Bern", "Lima", "Kyiv"])
CITY = RNG.integers(0, 5, ROWS)
PLAIN = {"city": CITIES[CITY], "age": RNG.integers(18, 60, ROWS), "sold": RNG.integers(0, 2, ROWS)}
PLAIN["price"] = RNG.lognormal(3, 1, ROWS)


def skipped(columns, **options):
    """Return the names that the reasons of skipped columns mention."""
    found = dp.infer_features(pd.DataFrame(columns), **options).skipped
    return {name: why.split('"')[1] for name, why in found.items() if why.startswith("repeats")}


def test_unrelated_columns_are_kept():
    assert skipped(PLAIN) == {}


@pytest.mark.parametrize(
    ("column", "other"),
    [
        (10 + CITY, "city"),  # whole numbers without gaps
        (np.array(["IT", "NO", "CH", "PE", "UA"])[CITY], "city"),
        (CITIES[CITY] + "  ", "city"),
        (np.where(PLAIN["sold"], "yes", "no"), "sold"),
        (PLAIN["price"].copy(), "price"),
        (PLAIN["price"].astype(str), "price"),
        (PLAIN["age"].astype(float), "age"),
    ],
)
def test_column_that_repeats_another_is_skipped(column, other):
    assert skipped(PLAIN | {"more": column}) == {"more": other}
    assert skipped(PLAIN | {"more": column}, redundant="keep") == {}
    one_changed = pd.Series(column)
    one_changed[0] = one_changed[np.argmax(one_changed != one_changed[0])]
    assert skipped(PLAIN | {"more": one_changed}) == {}


@pytest.mark.parametrize(
    "column",
    [
        PLAIN["price"] * 2.5,  # one value for each, because nearly all are distinct
        np.where(CITY > 0, CITIES[CITY], None),  # missing in other rows
        np.array([3.5, 120.25, 8, 77, 0.5])[CITY],  # measures of a city, such as its area
        np.array([10, 2_000, 35, 900, 4])[CITY],
        CITY > 1,
        "same",
        np.arange(ROWS),
    ],
)
def test_other_relations_are_kept(column):
    assert skipped(PLAIN | {"more": column}) == {}


def test_few_or_repeated_rows_relate_no_columns():
    few = pd.DataFrame({"a": list("xyxyyx"), "b": [1, 0, 1, 0, 0, 1], "c": [2.5, 1, 2.5, 1, 1, 2.5]})
    assert skipped(few) == {}
    numbers = pd.DataFrame(RNG.lognormal(0, 1, (300, 4)).round(6), columns=list("abcd"))
    assert skipped(pd.concat([numbers, numbers.iloc[:40]])) == {}
    rare = np.zeros((1_000, 2), int)
    rare[7] = 1  # a single row may be a coincidence
    assert skipped(pd.DataFrame(rare, columns=["a", "b"])) == {}


def test_text_is_kept_before_its_code_and_targets_are_always_kept():
    code = 1 + CITY
    assert skipped({"code": code, **PLAIN}) == {"code": "city"}
    assert skipped({"code": code, **PLAIN}, targets="code") == {"city": "code"}
    both = dp.infer_features(pd.DataFrame({"code": code, **PLAIN}), targets=["code", "city"])
    assert not both.skipped
    leak = dp.infer_features(pd.DataFrame(PLAIN | {"label": PLAIN["sold"] + 1}), targets="sold")
    assert leak.skipped["label"].startswith('repeats the target "sold": values correspond one to one; to keep it')


def test_redundant_columns_do_not_depend_on_partitions():
    columns = PLAIN | {
        "code": pd.Series(CITY).astype("category"),
        "copy": PLAIN["price"],
        "near": PLAIN["price"].copy(),
    }
    columns["near"][17] += 1
    table = as_source(pd.DataFrame(columns)).read(0, list(columns))
    whole = dp.infer_features(TableSource([table]))
    parts = dp.infer_features(TableSource([table.slice(start, 37) for start in range(0, ROWS, 37)]))
    assert whole.skipped == parts.skipped
    assert set(whole.skipped) == {"code", "copy"}


def test_values_beyond_a_summary_are_compared_by_row():
    value = RNG.lognormal(0, 1, 40_000)
    swapped = value.copy()
    swapped[[3, 900]] = swapped[[900, 3]]
    assert skipped({"value": value, "swapped": swapped, "copy": value}) == {"copy": "value"}


def test_many_values_that_repeat_another_column_are_found_in_any_type():
    single = RNG.permutation(np.arange(40_000) / 10 + 0.05).astype(np.float32)
    words = pd.Series([f"a text of word {number} and more" for number in RNG.permutation(40_000)])
    times = pd.Timestamp("2020-01-01") + pd.to_timedelta(RNG.permutation(40_000), unit="min")
    columns = {"single": single, "text": single.astype(str), "word": words, "spaced": "  " + words, "seen": times}
    columns |= {"written": times.astype(str), "other": words[::-1].to_numpy(), "double": single.astype(float) * 2}
    assert skipped(columns) == {"text": "single", "spaced": "word", "written": "seen"}


class CountingSource(Source):
    """A table that records the columns of each read."""

    in_memory = True

    def __init__(self, table):
        self.table, self.columns, self.row_counts = table, table.column_names, [len(table)]
        self.reads = []

    def read_rows(self, partition, columns):
        self.reads.append(columns)
        return self.table.select(columns)


@pytest.mark.parametrize("column", [RNG.lognormal(0, 1, 40_000), [f"v{number}x" for number in range(40_000)]])
def test_columns_of_other_ranges_or_hashes_are_read_once(column):
    table = pa.table({"one": RNG.lognormal(0, 1, 40_000), "two": [f"w{number}x" for number in range(40_000)]})
    source = CountingSource(table.append_column("more", pa.array(column)))
    dp.infer_features(source, targets=["two", "more"], progress=False)
    assert [columns for columns in source.reads if len(columns) > 1] == [["one", "two", "more"]]


def test_redundant_option_requires_auto():
    frame = pd.DataFrame(PLAIN | {"code": CITY})
    assert "code" in dp.Preprocessor("auto").fit(frame).inferred_.skipped
    assert "code" in dp.Preprocessor("auto", redundant="keep").fit(frame).features_
    with pytest.raises(ConfigError, match=r'redundant=.keep. is for features="auto"'):
        dp.Preprocessor({"city": "category"}, redundant="keep").fit(frame)
    with pytest.raises(ConfigError, match="redundant must be one of skip, keep"):
        dp.infer_features(frame, redundant="drop")
