"""A type checker reports the typos of a user's script, and infers the types of results."""

from __future__ import annotations

import re
import subprocess
import sys
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
prep.predict(frame, score, batchsize=8)
prep.predict(frame, score).heads()
score({"price": 3})
"""
SCRIPT = """
from collections.abc import MutableMapping
from typing import Any, assert_type

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

import daskprep as dp
from daskprep.dataset.loader import Batch
from daskprep.sources import Rows


def score(batch: Batch) -> torch.Tensor:
    return batch["price"][:, None].repeat(1, 3)


class Lazy:  # as a Dask frame, which has no annotations
    def compute(self, **kwargs: object) -> pd.DataFrame:
        return pd.DataFrame()


def load() -> Rows:
    return "a.csv"


frame = pd.DataFrame({"price": [1.0, 2.0], "city": ["a", "b"]})
prep = dp.Preprocessor({"price": dp.Number(), "city": "category"}, targets="city", split=dp.RandomSplit((0.8, 0.2)))
dataset = prep.fit_write(frame, "a.dp")
train = dataset["train"]
for inputs, target in train.loader(2, shuffle=True):
    print(inputs["price"], target)
prep.fit("a.csv"), prep.fit([{"price": 1}]), prep.fit(np.zeros((2, 2))), prep.fit({"price": [1]}), prep.fit(["a.csv"])
prep.encode("a.csv")["price"].compute()
rows = [{"price": 1.0, "city": "a"}]
assert_type(prep.encode(frame), MutableMapping[str, NDArray[Any]])
assert_type(prep.encode(rows), MutableMapping[str, NDArray[Any]])
assert_type(prep.encode({"price": 1.0, "city": "a"}), MutableMapping[str, NDArray[Any]])
assert_type(prep.encode(Lazy()), MutableMapping[str, Any])
assert_type(prep.encode(load()), MutableMapping[str, Any])
assert_type(prep.assign(frame), dict[str, NDArray[Any]])
assert_type(prep.predict(frame, score, batch_size=8, top_k=2), pd.DataFrame)
assert_type(prep.predict(rows, score, ids="city"), pd.DataFrame)
assert_type(prep.predict(Lazy(), score), Any)
assert_type(prep.predict(["a.csv"], score), Any)
assert_type(prep.predictions([[1.0, 2.0, 3.0]]), pd.DataFrame)
assert_type(prep.decode(prep.encode(frame)), pd.DataFrame)
assert_type(prep.inverse_transform(prep.transform(frame)), pd.DataFrame)
assert_type(train.read("price"), dict[str, NDArray[Any]])
prep.set_output(transform="pandas").set_params(city__most_common=3).transform(frame).head()
"""


@pytest.mark.slow
def test_mypy_reports_each_typo_and_no_other_line(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    script = tmp_path / "user.py"
    script.write_text(SCRIPT + TYPOS.lstrip())
    output, _, _ = api.run([str(script), "--config-file", "", "--cache-dir", str(tmp_path / "cache")])
    first = SCRIPT.count("\n") + 1
    marked = {int(line) for line in re.findall(r"user\.py:([0-9]+): error", output)}
    assert marked == set(range(first, first + len(TYPOS.strip().splitlines()))), output


def test_public_names_equal_dir() -> None:
    code = """
import daskprep as dp
modules = {"errors", "lightning", "nn", "serving", "testing"}
assert set(dir(dp)) == {*dp.__all__, *modules, "__version__"}
for module in (dp.nn, dp.serving, dp.testing):
    assert dir(module) == module.__all__, module
"""
    subprocess.run([sys.executable, "-c", code], check=True)
