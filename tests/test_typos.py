"""A type checker marks the typos of a user's script: options, parameters, values, methods and names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TYPOS = """
dp.Number(normalisation="zscore")
dp.Number(normalization="zscor")
dp.RandomSplit(probability=(0.8, 0.2))
dp.KFold(n_splits=5)
dp.infer_features(frame, target="city")
dp.Numbr()
prep.fit(3)
prep.transfrom(frame)
prep.fit_write(frame, "a.dp", over_write=True)
prep.stream(frame, 2, windw="1GB")
prep.encode(frame)["price"].tolst()
dataset.clas_weights("city")
train.loader(batchsize=2)
train.loader(2, device=3)
train.loader(2).state_dct()
"""
SCRIPT = """
import numpy as np
import pandas as pd

import daskprep as dp

frame = pd.DataFrame({"price": [1.0, 2.0], "city": ["a", "b"]})
prep = dp.Preprocessor({"price": dp.Number(), "city": "category"}, targets="city", split=dp.RandomSplit((0.8, 0.2)))
dataset = prep.fit_write(frame, "a.dp")
train = dataset["train"]
for inputs, target in train.loader(2, shuffle=True):
    print(inputs["price"], target)
prep.fit("a.csv"), prep.fit([{"price": 1}]), prep.fit(np.zeros((2, 2))), prep.fit({"price": [1]}), prep.fit(["a.csv"])
prep.encode("a.csv")["price"].compute()
prep.set_output(transform="pandas").set_params(city__most_common=3).transform(frame).head()
"""


@pytest.mark.slow
def test_mypy_marks_each_typo_and_no_other_line(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    script = tmp_path / "user.py"
    script.write_text(SCRIPT + TYPOS.lstrip())
    output, _, _ = api.run([str(script), "--config-file", "", "--cache-dir", str(tmp_path / "cache")])
    first = SCRIPT.count("\n") + 1
    marked = {int(line) for line in re.findall(r"user\.py:([0-9]+): error", output)}
    assert marked == set(range(first, first + len(TYPOS.strip().splitlines()))), output


def test_public_names_are_those_of_the_reference() -> None:
    import daskprep as dp

    assert set(dir(dp)) == {*dp.__all__, "__version__"}
