"""The replacements of Ludwig's commands, functions and metadata in docs/coming-from/ludwig.md work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.extensions.cli import main

CONFIG = """
input_features:
  - {name: city, type: category}
  - {name: price, type: number}
output_features:
  - {name: sold, type: binary}
preprocessing:
  split: {type: random, seed: 7}
"""


@pytest.fixture
def frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """Return rows that are also in a.csv of the current folder, next to the configuration a.yaml."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = {"city": rng.choice(["Oslo", "Rome"], 200), "price": rng.normal(80, 9, 200)}
    frame = pd.DataFrame({**rows, "sold": rng.choice(["yes", "no"], 200)})
    frame.to_csv("a.csv", index=False)
    Path("a.yaml").write_text(CONFIG)
    return frame


@pytest.mark.slow
@pytest.mark.usefixtures("frame")
def test_commands_replace_ludwig_commands() -> None:
    assert main(["infer", "a.csv", "--target", "sold"]) == 0
    assert main(["preprocess", "a.yaml", "a.csv"]) == 0
    assert main(["preprocess", "a.yaml", "a.csv", "-o", "results/a.dp", "--workers", "1"]) == 0
    assert main(["preprocess", "a.yaml", "a.csv", "--skip-save"]) == 0
    assert dp.open_dataset("a.dp").version == dp.open_dataset("results/a.dp").version


def test_functions_and_metadata_replace_ludwig_functions(frame: pd.DataFrame) -> None:
    prep = dp.Preprocessor.from_config("a.yaml")
    assert prep.to_config()["preprocessing"]["split"]["seed"] == 7
    dataset = prep.fit_write("a.csv", "a.dp")
    assert prep.fit(frame).encode(frame)["city"].shape == (200,)

    assert [len(dataset[name]) for name in ("train", "validation", "test")] == [140, 20, 40]
    city, price = dataset.metadata["city"], dataset.metadata["price"]
    assert city["str2idx"].keys() == {"<UNK>", "Oslo", "Rome"}
    assert price["mean"] == dataset.learned["price"].mean
    assert city["preprocessing"]["computed_fill_value"] == "<UNK>"
    assert len(dataset["train"].read("city")["city"]) == 140
    inputs, targets = next(iter(dataset["train"].loader(batch_size=32)))
    assert inputs["price"].shape == targets.shape == (32,)

    prep = dp.Preprocessor.from_dataset(dataset)
    rows = frame.head(2).drop(columns="sold")
    prep.save("prep.json")
    assert (dp.Preprocessor.load("prep.json").encode(rows)["city"] == prep.encode(rows)["city"]).all()
    assert prep.predictions({"sold": np.array([2.0, -2.0])})["sold_predictions"].tolist() == ["yes", "no"]
