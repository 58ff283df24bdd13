"""Faults that `Preprocessor.check` finds, its false alarms among unchanged rows, and its cost.

    python -m benchmarks.own.check                 # all figures: about ten minutes on two cores
    python -m benchmarks.own.check 50 20000        # fewer samples, of at most so many rows

Rows are drawn from distributions that stay the same: skewed and even numbers, few and very many categories, dates
with a daily cycle, tags, text, missing values.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dask
import numpy as np
import pandas as pd

import daskprep as dp
from daskprep.passes.engine import PartitionReader, Pass, run_pass
from daskprep.serving import Encoder
from daskprep.sources import as_source

CITIES = ["Rome", "Oslo", "Bern", "Paris", "Lima", "Quito"]
USERS = np.array([f"user {number}" for number in range(20_000)])
FEATURES = {
    "price": "number",
    "area": dp.Number(normalization="quantile_uniform"),
    "rooms": "number",
    "balance": "number",
    "city": "category",
    "user": "category",
    "tags": "set",
    "sold": "binary",
    "day": "date",
    "review": "text",
}


def draw(rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return rows of the same distributions for every generator."""
    seconds = rng.integers(0, 365, rows) * 86_400 + (rng.beta(2, 3, rows) * 86_399).astype(np.int64)
    users = np.minimum(rng.zipf(1.4, rows), len(USERS)) - 1
    pairs = np.array([f"{one} {other}" for one in "abcdefgh" for other in "abcdefgh"])
    return pd.DataFrame(
        {
            "price": rng.lognormal(3, 1, rows).round(2),
            "area": rng.uniform(20, 200, rows),
            "rooms": rng.binomial(8, 0.3, rows),
            "balance": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(5, 50, rows)),
            "city": pd.Categorical.from_codes(rng.choice(6, rows, p=[0.4, 0.3, 0.15, 0.1, 0.04, 0.01]), CITIES),
            "user": pd.Categorical.from_codes(users, USERS),
            "tags": pd.Categorical.from_codes(rng.integers(0, len(pairs), rows), pairs),
            "sold": rng.random(rows) < 0.3,
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(seconds, "s"),
            "review": pd.Categorical.from_codes(rng.integers(0, len(pairs), rows), pairs),
        }
    )


def swap(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.rename(columns={"price": "area", "area": "price"})


FAULTS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "units": lambda rows: rows.assign(price=rows["price"] * 100),
    "spelling": lambda rows: rows.assign(city=rows["city"].astype(str).str.upper()),
    "dates": lambda rows: rows.assign(day=rows["day"] + pd.DateOffset(years=55)),
    "nulls": lambda rows: rows.assign(area=rows["area"].where(np.arange(len(rows)) % 3 > 0)),
    "swapped columns": swap,
    "kind": lambda rows: rows.assign(rooms=rows["day"]),
    "sign": lambda rows: rows.assign(balance=rows["balance"].abs()),
    "truncation": lambda rows: rows.assign(user=rows["user"].astype(str).str[:6]),
    "time zone": lambda rows: rows.assign(day=rows["day"] + pd.Timedelta(hours=9)),
    "repeated rows": lambda rows: rows.iloc[np.repeat(np.arange(len(rows) // 20), 20)],
}


def find_faults(prep: dp.Preprocessor, rows: int, rng: np.random.Generator) -> dict[str, list[str]]:
    """Return the kinds of findings for each planted fault."""
    new = draw(rows, rng)
    return {
        name: [f"{one.kind} {one.feature}" for one in prep.check(plant(new.copy())).findings]
        for name, plant in FAULTS.items()
    }


def false_alarms(samples: int, max_rows: int, rng: np.random.Generator) -> Iterator[str]:
    """Yield a line for each unchanged sample with a finding; every 20 samples, a new fit on 1,000 to 100,000 rows."""
    for sample in range(samples):
        if sample % 20 == 0:
            size = int(10 ** rng.uniform(3, min(5, np.log10(max_rows))))
            prep = dp.Preprocessor(FEATURES).fit(draw(size, rng))
        rows = int(10 ** rng.uniform(2, np.log10(max_rows)))
        if (result := prep.check(draw(rows, rng))).findings:
            yield f"fit on {size:,} rows: {result}"


def seconds(run: Callable[[], object], times: int = 5) -> float:
    """Return the median time of some runs."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))


def main() -> None:
    """Print faults, false alarms and times."""
    samples, max_rows = (int(one) for one in (*sys.argv[1:], 1_000, 1_000_000)[:2])
    if len(sys.argv) > 2:
        samples, max_rows = map(int, sys.argv[1:3])
    rng = np.random.default_rng(0)
    prep = dp.Preprocessor(FEATURES).fit(draw(20_000, rng))
    for rows in (1_000, 20_000):
        found = find_faults(prep, rows, rng)
        print(f"{sum(map(bool, found.values()))} of {len(found)} faults found in {rows:,} rows")
        for name, kinds in found.items():
            print(f"  {name}: {', '.join(kinds)}")
    start = time.perf_counter()
    alarms = list(false_alarms(samples, max_rows, rng))
    print(
        f"{len(alarms)} false alarms in {samples:,} unchanged samples of 100 to {max_rows:,} rows", *alarms, sep="\n  "
    )
    print(f"  {time.perf_counter() - start:.0f} s")
    new = draw(min(max_rows, 300_000), rng)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new.csv"
        new.to_csv(path, index=False)
        for name, rows in (("frame", new), ("CSV", dp.read_files(str(path)))):
            print(f"{name}: {compare_times(prep, rows)}")
    encoder, records = Encoder(prep.to_dict()), new[:2_000].to_dict("records")
    print(f"serving: {seconds(lambda: [encoder.encode(one) for one in records]) / len(records) * 1e6:.2f} us a row")


def compare_times(prep: dp.Preprocessor, rows: object) -> str:
    """Return the times of `check`, of `encode`, and of the reading and parsing that both need."""
    parse = Pass("parse", lambda context, parsed, table: table.num_rows, prep.features_)
    parsed = seconds(lambda: run_pass(PartitionReader(as_source(rows, columns=list(FEATURES))), parse))
    checked = seconds(lambda: prep.check(rows))
    encoded = seconds(lambda: dask.compute(*prep.encode(rows).values()))
    added = (checked - parsed) / encoded
    return f"check {checked:.3f} s, encode {encoded:.3f} s, parsing {parsed:.3f} s: check adds {added:.0%} of encode"


if __name__ == "__main__":
    main()
