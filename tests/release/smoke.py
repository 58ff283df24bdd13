"""Ten lines that an installed daskprep must run: fit, write, load batches, save, and encode one row in a service."""

import platform

import pandas as pd

import daskprep as dp

rows = pd.DataFrame({"price": range(100), "city": ["Rome", "Oslo"] * 50, "text": ["a calm flat", "loud"] * 50})
prep = dp.Preprocessor({"price": "number", "city": "category", "text": "text"}, split=dp.RandomSplit(seed=0))
dataset = prep.fit_write(rows, "rows.dp", progress=False)
assert sum(len(batch["city"]) for batch in dataset["train"].loader(16)) == len(dataset["train"])
dp.Preprocessor.from_dataset("rows.dp").save("state.json")
row = dp.serving.load("state.json").encode(rows.iloc[0].to_dict())
assert row["city"] == prep.fit(rows).encode(rows)["city"][0]
assert not dp.open_dataset("rows.dp").verify()
print(f"daskprep {dp.__version__}, Python {platform.python_version()}, pandas {pd.__version__}: {len(row)} outputs")
