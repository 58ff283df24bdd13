"""Expected column types of tables like common public data sets.

The types were chosen from the tables alone, independently of the rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.extensions.column_types import InferredFeatures

ROWS = 600
Column = tuple[str, Any]
Table = dict[str, Column]
Draw = Callable[..., Any]


def draws(rng: np.random.Generator) -> Draw:
    """Return a function that draws a cell for each row."""
    return lambda values, p=None: rng.choice(np.array(values, object), ROWS, p=p)


def some(cells: Any, mark: Any, share: float, seed: int = 9) -> np.ndarray:
    """Return cells with a share of missing markers."""
    marked = np.random.default_rng(seed).random(ROWS) < share
    return np.where(marked, np.array([mark], object), np.array(cells, object))


def fixed(cells: Any, digits: int) -> list[str]:
    return [f"{cell:.{digits}f}" for cell in cells]


def words(rng: np.random.Generator, least: int, most: int, vocabulary: int = 900) -> list[str]:
    syllables = ["ka", "lo", "mi", "re", "tu", "san", "ber", "dol", "vin", "pra"]
    known = ["".join(rng.choice(syllables, rng.integers(2, 5))) for _ in range(vocabulary)]
    return [" ".join(rng.choice(known, rng.integers(least, most + 1))) for _ in range(ROWS)]


def iris(rng: np.random.Generator, draw: Draw) -> Table:
    return {
        "sepal length": ("number", fixed(rng.normal(5.8, 0.8, ROWS), 1)),
        "petal width": ("number", fixed(rng.normal(1.2, 0.3, ROWS), 1)),
        "species": ("category", draw(["Iris-setosa", "Iris-versicolor", "Iris-virginica"])),
    }


def wine(rng: np.random.Generator, draw: Draw) -> Table:
    return {
        "class": ("category", draw([1, 2, 3], [0.33, 0.4, 0.27])),
        "alcohol": ("number", fixed(rng.normal(13, 0.8, ROWS), 2)),
        "magnesium": ("number", rng.normal(100, 14, ROWS).astype(int)),
        "proline": ("number", rng.lognormal(6.5, 0.4, ROWS).astype(int)),
    }


def census(rng: np.random.Generator, draw: Draw) -> Table:
    return {
        "age": ("number", rng.integers(17, 90, ROWS)),
        "workclass": ("category", some(draw([" Private", " State-gov", " Self-emp"]), " ?", 0.06)),
        "fnlwgt": ("number", rng.lognormal(12, 0.5, ROWS).astype(int)),
        "education": ("category", draw([" HS-grad", " Bachelors", " Masters", " 11th"])),
        "education_num": ("number", rng.binomial(16, 0.6, ROWS)),
        "capital_gain": ("number", np.where(rng.random(ROWS) < 0.9, 0, rng.integers(100, 99_999, ROWS))),
        "income": ("binary", draw([" <=50K", " >50K"], [0.76, 0.24])),
    }


def mushrooms(rng: np.random.Generator, draw: Draw) -> Table:
    return {
        "class": ("binary", draw(["e", "p"])),
        "cap": ("category", draw(list("bcxfks"))),
        "bruises": ("binary", draw(["t", "f"])),
        "stalk": ("category", some(draw(list("bcer")), "?", 0.3)),
        "veil": ("skipped", ["p"] * ROWS),
        "ring": ("category", draw(list("not"), [0.1, 0.8, 0.1])),
    }


def tumours(rng: np.random.Generator, draw: Draw) -> Table:
    numbers = rng.permutation(np.arange(1_000_025, 1_400_025))[:ROWS]
    numbers[:20] = numbers[20:40]
    return {
        "Sample code number": ("skipped", numbers),
        "Clump thickness": ("number", np.minimum(rng.geometric(0.35, ROWS), 10)),
        "Bare nuclei": ("number", some(np.minimum(rng.geometric(0.3, ROWS), 10), "?", 0.02)),
        "Class": ("binary", draw([2, 4], [0.65, 0.35])),
    }


def bank(rng: np.random.Generator, draw: Draw) -> Table:
    return {
        "age": ("number", rng.integers(18, 90, ROWS)),
        "job": ("category", draw(["admin.", "blue-collar", "technician", "services", "unknown"])),
        "default": ("category", draw(["no", "yes", "unknown"], [0.7, 0.1, 0.2])),
        "balance": ("number", rng.normal(1000, 900, ROWS).astype(int)),
        "day": ("number", rng.integers(1, 32, ROWS)),
        "month": ("category", draw(["jan", "feb", "mar", "may", "jun", "nov"])),
        "duration": ("number", rng.lognormal(5, 1, ROWS).astype(int)),
        "pdays": ("number", np.where(rng.random(ROWS) < 0.8, 999, rng.integers(0, 28, ROWS))),
        "y": ("binary", draw(["no", "yes"], [0.88, 0.12])),
    }


def hearts(rng: np.random.Generator, draw: Draw) -> Table:
    return {
        "age": ("number", fixed(rng.integers(29, 78, ROWS), 1)),
        "sex": ("binary", fixed(rng.integers(0, 2, ROWS), 1)),
        "pain": ("category", fixed(rng.choice([1, 2, 3, 4], ROWS, p=[0.1, 0.2, 0.3, 0.4]), 1)),
        "chol": ("number", rng.normal(246, 50, ROWS).astype(int)),
        "oldpeak": ("number", fixed(rng.exponential(1, ROWS), 1)),
        "vessels": ("category", some(fixed(rng.choice([0, 1, 2, 3], ROWS, p=[0.5, 0.2, 0.2, 0.1]), 1), "?", 0.02)),
        "thal": ("category", some(draw(["3.0", "6.0", "7.0"], [0.5, 0.1, 0.4]), "?", 0.01)),
    }


def cars(rng: np.random.Generator, draw: Draw) -> Table:
    models = [f"{a} {b}" for a in ("ford", "audi", "fiat", "mazda") for b in words(rng, 1, 2)[:140]]
    return {
        "mpg": ("number", fixed(rng.normal(23, 7, ROWS), 1)),
        "cylinders": ("number", draw([3, 4, 5, 6, 8], [0.02, 0.5, 0.02, 0.2, 0.26])),
        "horsepower": ("number", some(rng.integers(46, 230, ROWS), "?", 0.03)),
        "model_year": ("number", rng.integers(70, 83, ROWS)),
        "origin": ("category", draw([1, 2, 3], [0.6, 0.2, 0.2])),
        "car_name": ("text", draw(models)),
        "doors": ("binary", some(draw(["four", "two"]), "?", 0.01)),
        "symboling": ("number", draw([-2, -1, 0, 1, 2, 3])),
    }


def hospital(rng: np.random.Generator, draw: Draw) -> Table:
    return {
        "encounter_id": ("skipped", rng.permutation(np.arange(2_278_392, 9_278_392, 11_111))[:ROWS]),
        "patient_nbr": ("category", rng.integers(100_000, 100_150, ROWS)),
        "race": ("category", some(draw(["Caucasian", "Asian", "Other"]), "?", 0.05)),
        "age": ("category", draw([f"[{a}-{a + 10})" for a in range(0, 100, 10)])),
        "result": ("category", draw(["None", "Norm", ">7", ">8"], [0.7, 0.1, 0.1, 0.1])),
        "time_in_hospital": ("number", rng.poisson(3, ROWS) + 1),
        "diag": ("category", draw(["250.83", "276", "V27", "648", "E909", "8", "197"])),
        "readmitted": ("category", draw(["NO", ">30", "<30"])),
    }


def invoices(rng: np.random.Generator, draw: Draw) -> Table:
    days = pd.Timestamp("2010-12-01 08:26") + pd.to_timedelta(rng.integers(0, 500_000, ROWS), "min")
    items = [text.upper() for text in words(rng, 3, 4)[:60]]
    stock = [f"{code}{letter}" for code in rng.integers(10_000, 90_000, 30) for letter in ("", "A")]
    return {
        "InvoiceNo": ("category", some(rng.integers(536_000, 536_060, ROWS), "C536379", 0.02)),
        "StockCode": ("category", draw(stock)),
        "Description": ("category", draw(items)),
        "Quantity": ("number", rng.poisson(4, ROWS) * 3 - 2),
        "InvoiceDate": ("date", [f"{d.month}/{d.day}/{d.year} {d.hour}:{d.minute:02}" for d in days]),
        "UnitPrice": ("number", fixed(rng.lognormal(1, 0.8, ROWS), 2)),
        "CustomerID": ("category", some(fixed(rng.integers(12_346, 12_446, ROWS), 1), "", 0.2)),
        "Country": ("category", draw(["United Kingdom", "France", "Spain"], [0.8, 0.1, 0.1])),
    }


def houses(rng: np.random.Generator, draw: Draw) -> Table:
    return {
        "id": ("skipped", rng.integers(10**9, 10**10, ROWS)),
        "date": ("date", draw([f"201{4 + m % 2}{m:02}{d:02}T000000" for m in range(1, 13) for d in (3, 9, 21)])),
        "price": ("number", rng.permutation(np.arange(100_001, 999_999, 1_487))[:ROWS]),
        "sqft": ("number", rng.permutation(np.arange(10_011, 90_000, 131))[:ROWS]),
        "yr_built": ("number", rng.integers(1900, 2016, ROWS)),
        "waterfront": ("binary", draw([0, 1], [0.95, 0.05])),
        "zipcode": ("category", rng.integers(98_001, 98_070, ROWS)),
        "lat": ("number", fixed(rng.uniform(47, 48, ROWS), 6)),
        "grade": ("number", np.clip(rng.normal(7, 1.3, ROWS).astype(int), 3, 13)),
    }


def weather(rng: np.random.Generator, draw: Draw) -> Table:
    days = pd.date_range("2015-01-01", periods=ROWS)
    return {
        "day": ("date", days.strftime("%d/%m/%Y")),
        "temperature": ("number", some(fixed(rng.normal(11, 8, ROWS), 1), "-999.0", 0.05)),
        "gauge": ("number", some(rng.integers(0, 30, ROWS), -9999, 0.02)),
        "clouds": ("category", some(draw([0, 1, 2, 3, 4]), -999, 0.05)),
        "wind": ("category", some(draw(["N", "NE", "E", "S", "W"]), "-", 0.1)),
        "rain": ("binary", some(draw(["Yes", "No"], [0.3, 0.7]), "NA", 0.02)),
        "pressure": ("number", some(fixed(rng.normal(1013, 8, ROWS), 1), "--", 0.04)),
        "station": ("skipped", ["Uppsala"] * ROWS),
    }


def survey(rng: np.random.Generator, draw: Draw) -> Table:
    hobbies = ["reading", "chess", "running", "music", "cooking", "travel"]
    several = [";".join(rng.choice(hobbies, rng.integers(1, 4), replace=False)) for _ in range(ROWS)]
    return {
        "respondent": ("skipped", [f"R-{i:04}" for i in rng.permutation(ROWS)]),
        "q1": ("category", draw(["Strongly agree", "Agree", "Neither agree nor disagree", "Disagree"])),
        "satisfaction": ("category", draw(["low", "medium", "high"])),
        "group": ("category", draw(["18-24", "25-34", "35-49", "50+"])),
        "hobbies": ("set", several),
        "comment": ("text", some(words(rng, 6, 20), "n/a", 0.2)),
        "consent": ("binary", draw(["Y", "N"], [0.9, 0.1])),
    }


def loans(rng: np.random.Generator, draw: Draw) -> Table:
    months = [f"{m}-{y}" for y in (2014, 2015) for m in ("Jan", "Mar", "Jul", "Aug", "Dec")]
    return {
        "member_id": ("skipped", rng.permutation(10**7)[:ROWS]),
        "loan_amnt": ("number", rng.integers(40, 1400, ROWS) * 25),
        "annual_inc": ("number", (rng.permutation(np.arange(20_000, 200_000, 250))[:ROWS])),
        "term": ("binary", draw([" 36 months", " 60 months"])),
        "grade": ("category", draw(list("ABCDEFG"))),
        "emp_length": ("category", some(draw(["< 1 year", "1 year", "5 years", "10+ years"]), "n/a", 0.05)),
        "issue_d": ("date", draw(months)),
        "desc": ("text", some(words(rng, 5, 30), "", 0.4)),
        "addr_state": ("category", draw(["CA", "NY", "TX", "FL", "NJ"])),
    }


def films(rng: np.random.Generator, draw: Draw) -> Table:
    kinds = ["Action", "Drama", "Comedy", "Horror", "Sci-Fi", "War"]
    days = pd.Timestamp("1950-01-01") + pd.to_timedelta(rng.integers(0, 20_000, ROWS), "D")
    return {
        "title": ("text", words(rng, 1, 4)),
        "imdb": ("skipped", [f"tt{number:07}" for number in rng.permutation(10**6)[:ROWS]]),
        "genres": ("set", ["|".join(rng.choice(kinds, rng.integers(1, 4), replace=False)) for _ in range(ROWS)]),
        "released": ("date", [f"{d.day} {d.month_name()} {d.year}" for d in days]),
        "rating": ("number", fixed(rng.normal(6.5, 1, ROWS), 1)),
        "num_votes": ("number", rng.lognormal(8, 2, ROWS).astype(int)),
        "colour": ("binary", some(draw(["Color", "Black and White"], [0.9, 0.1]), "", 0.02)),
    }


def households(rng: np.random.Generator, draw: Draw) -> Table:
    return {
        "SERIAL": ("skipped", np.arange(1, ROWS + 1) * 100 + rng.integers(0, 50, ROWS)),
        "state_code": ("category", rng.integers(1, 57, ROWS)),
        "SEX": ("binary", draw([1, 2])),
        "MARST": ("category", draw([1, 2, 3, 4, 5, 6], [0.4, 0.1, 0.1, 0.1, 0.1, 0.2])),
        "INCTOT": ("number", some((rng.lognormal(10, 0.6, ROWS)).astype(int), 9_999_999, 0.1)),
        "persons": ("number", rng.poisson(1.5, ROWS) + 1),
        "zip": ("category", draw(["02139", "10001", "94103", "60601"])),
        "tenure": ("category", draw(["own", "rent", "other"])),
    }


def sensors(rng: np.random.Generator, draw: Draw) -> Table:
    times = pd.date_range("2021-03-01", periods=ROWS, freq="17s")
    return {
        "Unnamed: 0": ("skipped", np.arange(ROWS)),
        "timestamp": ("date", times.strftime("%Y-%m-%dT%H:%M:%S")),
        "device": ("category", draw([f"dev-{i:02}" for i in range(12)])),
        "x": ("number", rng.normal(size=ROWS)),
        "counter": ("number", np.cumsum(rng.poisson(900, ROWS) ** 2)),
        "status": ("binary", draw(["OK", "FAIL"], [0.97, 0.03])),
        "digest": ("skipped", [hashlib.md5(bytes([i % 251, i // 251])).hexdigest() for i in range(ROWS)]),
        "activity": ("category", draw([1, 2, 3, 4])),
        "session": ("category", draw([hashlib.md5(bytes([i])).hexdigest() for i in range(40)])),
    }


def students(rng: np.random.Generator, draw: Draw) -> Table:
    return {
        "ID": ("skipped", rng.permutation(np.arange(4_000, 4_000 + 3 * ROWS, 3))),
        "school": ("binary", draw(["GP", "MS"], [0.9, 0.1])),
        "age": ("number", np.minimum(15 + rng.poisson(1.7, ROWS), 22)),
        "Medu": ("category", draw([0, 1, 2, 3, 4], [0.07, 0.15, 0.26, 0.26, 0.26])),
        "guardian": ("category", draw(["mother", "father", "other"])),
        "studytime": ("category", draw([1, 2, 3, 4], [0.27, 0.45, 0.18, 0.1])),
        "paid": ("binary", draw(["yes", "no"])),
        "absences": ("number", rng.poisson(5, ROWS)),
        "G3": ("number", rng.binomial(20, 0.55, ROWS)),
    }


def churn(rng: np.random.Generator, draw: Draw) -> Table:
    letters = list("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    keys = [f"{number:04}-{''.join(rng.choice(letters, 5))}" for number in rng.permutation(9999)[:ROWS]]
    return {
        "customerID": ("skipped", keys),
        "gender": ("binary", draw(["Female", "Male"])),
        "SeniorCitizen": ("binary", draw([0, 1])),
        "tenure": ("number", rng.integers(0, 73, ROWS)),
        "MultipleLines": ("category", draw(["Yes", "No", "No phone service"], [0.4, 0.5, 0.1])),
        "TotalCharges": ("number", some(fixed(rng.lognormal(7, 1, ROWS), 2), " ", 0.01)),
        "PaymentMethod": ("category", draw(["Electronic check", "Mailed check", "Bank transfer (automatic)"])),
        "Churn": ("binary", draw(["Yes", "No"], [0.27, 0.73])),
    }


def reviews(rng: np.random.Generator, draw: Draw) -> Table:
    signs = list("好不很大小人天书读看喜欢的了是我他")
    users = [str(hashlib.md5(bytes([i, 7])).hexdigest()) for i in range(250)] * 3
    return {
        "userId": ("category", rng.permutation(users)[:ROWS]),
        "review_id": ("skipped", [hashlib.sha1(bytes([i % 250, i // 250])).hexdigest() for i in range(ROWS)]),
        "text": ("text", ["".join(rng.choice(signs, rng.integers(8, 40))) for _ in range(ROWS)]),
        "stars": ("category", draw([1, 2, 3, 4, 5], [0.1, 0.1, 0.2, 0.3, 0.3])),
        "helpful": ("number", rng.poisson(0.4, ROWS)),
        "verified": ("binary", draw(["TRUE", "FALSE"])),
        "plate": ("skipped", [f"{a}{b} {n:04}" for a in "ABCDE" for b in "KLMNOP" for n in rng.permutation(9999)[:20]]),
    }


def countries(rng: np.random.Generator, draw: Draw) -> Table:
    return {
        "row": ("skipped", np.arange(ROWS, 0, -1)),
        "population": ("number", rng.lognormal(15, 2, ROWS).astype(np.int64)),
        "gdp": ("number", rng.permutation(np.arange(10_000, 99_999, 97))[:ROWS]),
        "year": ("number", rng.permutation(np.arange(1400, 1400 + ROWS))),
        "rank": ("skipped", rng.permutation(np.arange(1, ROWS + 1))),
        "region": ("category", some(draw(["Asia", "Europe", "Africa"]), "..", 0.03)),
        "literacy": ("number", some(fixed(rng.uniform(40, 100, ROWS), 1), "..", 0.1)),
        "iso": ("category", draw(["SWE", "NOR", "KEN", "PER"])),
        "landlocked": ("binary", draw(["yes", "no"])),
    }


TABLES = (
    *(iris, wine, census, mushrooms, tumours, bank, hearts, cars, hospital, invoices, houses, weather, survey),
    *(loans, films, households, sensors, students, churn, reviews, countries),
)
# Codes with gaps look like doses and sizes; only a domain expert knows whether "unknown" is an answer.
AMBIGUOUS = {("hearts", "thal"): "number", ("bank", "default"): "binary"}


def make_table(table: Callable[[np.random.Generator, Draw], Table]) -> tuple[pd.DataFrame, dict[str, str]]:
    rng = np.random.default_rng(0)
    columns = table(rng, draws(rng))
    frame = pd.DataFrame({name: np.asarray(cells, object) for name, (_, cells) in columns.items()})
    expected = {name: AMBIGUOUS.get((table.__name__, name), kind) for name, (kind, _) in columns.items()}
    return frame, expected


def kinds(inferred: InferredFeatures) -> dict[str, str]:
    return {name: feature.kind for name, feature in inferred.items()} | dict.fromkeys(inferred.skipped, "skipped")


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_every_column_of_a_table_has_the_expected_type(table, tmp_path):
    frame, expected = make_table(table)
    frame.to_csv(tmp_path / "table.csv", index=False, sep=";")
    inferred, parts = (
        dp.infer_features(dp.read_files(tmp_path / "table.csv", delimiter=";", partition_bytes=size))
        for size in (10**8, 5_000)
    )
    assert (parts.reasons, parts.skipped) == (inferred.reasons, inferred.skipped)
    assert repr(dict(parts)) == repr(dict(inferred))
    found = kinds(inferred)
    why = inferred.reasons | inferred.skipped
    assert not {name: (found[name], why[name]) for name in frame if found[name] != expected[name]}
