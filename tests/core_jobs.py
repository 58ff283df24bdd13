"""Jobs that need the core of the package alone: python tests/core_jobs.py [CALL ...].

Each `CALL` is an expression of `prep`, a fitted Preprocessor, `dataset`, its dataset, `frame` and `folder`. The name of
the module that it lacks is printed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import daskprep as dp
from daskprep import serving

ROWS = 60
rng = np.random.default_rng(0)
frame = pd.DataFrame(
    {
        "city": rng.choice(["Rome", "Oslo"], ROWS),
        "price": rng.random(ROWS),
        "sold": rng.choice(["yes", "no"], ROWS),
        "day": pd.date_range("2024-01-01", periods=ROWS, freq="h").astype(str),
        "note": ["a b c"] * ROWS,
        "tags": ["x y"] * ROWS,
        "size": ["1 2 3"] * ROWS,
    }
)
FEATURES = {
    "city": "category",
    "price": dp.Number(normalization="zscore"),
    "sold": "binary",
    "day": "date",
    "note": "text",
    "tags": "set",
    "size": "vector",
    "city_price": dp.TargetEncoding(column="city", target="price"),
}

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    frame.to_csv(folder / "rows.csv", index=False)
    frame.to_parquet(folder / "rows.parquet")
    prep = dp.Preprocessor(FEATURES, targets="sold", split=dp.StratifiedSplit("sold"))
    dataset = prep.fit_write(folder / "rows.csv", folder / "a.dp", progress=False)
    loader = dataset["train"].loader(16)
    assert sum(len(labels) for _, labels in loader) == len(dataset["train"])
    loader.load_state_dict(loader.state_dict())
    prep.write(folder / "rows.parquet", folder / "b.dp", progress=False)
    prep.fit(frame).transform(frame.drop(columns=["sold"]))
    prep.save(folder / "prep.json")
    encoded = dp.Preprocessor.load(folder / "prep.json").encode(frame.head(3))
    row = serving.load(folder / "prep.json").encode(frame.iloc[0].to_dict())
    assert all(np.array_equal(encoded[one][:1], row[one]) for one in row)
    opened = dp.open_dataset(folder / "a.dp")
    opened.verify()
    assert repr(opened)
    assert opened["train"].head(2).shape == (2, 8)
    for call in sys.argv[1:]:
        try:
            eval(call)
        except ModuleNotFoundError as error:
            print(error.name)
print("passed")
