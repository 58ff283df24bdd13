"""Columns of predictions: probabilities rank rows by the positive label, and labels have the type of their column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sklearn.metrics import roc_auc_score

import daskprep as dp
from daskprep.extensions.cli import main
from daskprep.serving import Encoder


def predict_everywhere(prep: dp.Preprocessor, frame: pd.DataFrame, model: Any, folder: Path) -> list[pd.DataFrame]:
    """Return the predictions of `predict` for a frame and a file, `predictions`, a service, and the command line."""
    frame.to_parquet(folder / "rows.parquet")
    prep.save(folder / "prep.json")
    outputs = model({"x": torch.from_numpy(prep.encode(frame[["x"]].assign(y=prep.decode({"y": [0]})["y"][0]))["x"])})
    np.save(folder / "outputs.npy", outputs.numpy())
    names = [str(folder / name) for name in ("prep.json", "outputs.npy", "found.parquet")]
    assert main(["predict", *names[:2], "-o", names[2]]) == 0
    return [
        prep.predict(frame, model),
        prep.predict(folder / "rows.parquet", model).compute(),
        prep.predictions(outputs),
        pd.DataFrame(Encoder(prep.to_dict()).predictions(outputs)),
        pd.read_parquet(folder / "found.parquet"),
    ]


# The positive label is the second one.
LABELS: list[tuple[Any, Any]] = [
    ("no", "yes"), ("No", "Yes"), ("other", "yes"), ("0", "1"), (0, 1), (2, 10), (False, True), (0.5, 2.5), ("a", "b"),
]  # fmt: skip


@pytest.mark.parametrize("share", [0.2, 0.8], ids=["rare", "frequent"])
@pytest.mark.parametrize("kind", ["binary", "category"])
@pytest.mark.parametrize("pair", LABELS, ids=str)
@pytest.mark.filterwarnings('ignore:column "y" has labels that do not show')
def test_probabilities_rank_by_the_positive_label(pair, kind, share, tmp_path):
    rng = np.random.default_rng(0)
    noise = rng.normal(size=60)
    true = noise >= np.quantile(noise, 1 - share)
    frame = pd.DataFrame({"x": noise + rng.normal(size=60) / 4, "y": np.array(pair)[true.astype(int)]})
    prep = dp.Preprocessor({"x": dp.Number(normalization=None), "y": kind}, targets="y").fit(frame)
    sign = 1 if kind == "binary" or str(prep.decode({"y": [1]})["y"][0]) == str(pair[1]) else -1

    def model(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        score = sign * batch["x"]
        return score if kind == "binary" else torch.stack([-score, score], 1)

    first, *others = predict_everywhere(prep, frame, model, tmp_path)
    for found in (first, *others):
        np.testing.assert_allclose(found.iloc[:, 1], first.iloc[:, 1], rtol=1e-6)
        assert found["y_predictions"].tolist() == first["y_predictions"].tolist()
        assert found.columns.tolist() == ["y_predictions", f"y_probability_{pair[1]}"]
        assert roc_auc_score(true, found.iloc[:, 1]) > 0.9
        agrees = (found["y_predictions"].astype(str) == str(pair[1])) == (found.iloc[:, 1] >= 0.5)
        assert agrees.all()


def test_classes_have_one_column_each():
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": ["top_k", "predictions", "x"]})
    prep = dp.Preprocessor({"x": "number", "y": "category"}, targets="y").fit(frame)
    found = prep.predictions([[0, 1, 2], [2, 1, 0]], probabilities=True, top_k=2)
    classes = prep.decode({"y": [0, 1, 2]})["y"].tolist()
    names = ["y_predictions", "y_probability", *(f"y_probability_{name}" for name in classes)]
    assert found.columns.tolist() == [*names, "y_predictions_top_k", "y_probabilities_top_k"]
    np.testing.assert_allclose(found["y_probability"], found[names[2:]].max(axis=1))


CARRIED = {
    "integers": [1, 2, 2, 7],
    "negative": [-1, 1, 1, -1],
    "booleans": [True, False, True, True],
    "floats": [1.5, 2.5, 2.5, 7.25],
    "texts": ["x", "07", "07", "x"],
    "mixed": ["1", "x", "x", "1"],
}


@pytest.mark.parametrize("carrier", ["frame", "csv", "tsv.gz", "json", "parquet", "arrow", "dask", "files"])
@pytest.mark.parametrize("name", CARRIED)
def test_labels_have_the_type_that_pandas_reads(name, carrier, tmp_path):
    frame = pd.DataFrame({"x": np.arange(20.0), "y": CARRIED[name] * 5})
    rows, read = _carry(frame, carrier, tmp_path)
    count = frame["y"].nunique()
    for kind in ["category", "binary"][: 2 if count == 2 and name != "mixed" else 1]:
        feature = dp.Binary(positive=str(CARRIED[name][0])) if kind == "binary" else "category"
        prep = dp.Preprocessor({"x": "number", "y": feature}, targets="y", split=None)
        dataset = prep.fit_write(rows, tmp_path / f"{kind}.dp")
        scores = np.eye(count)[dataset["train"].read("y")["y"]]
        loaded = dp.Preprocessor.from_dict(prep.to_dict())
        found = {
            "predictions": prep.predictions(scores)["y_predictions"],
            "loaded": loaded.predictions(scores)["y_predictions"],
            "decode": loaded.decode(prep.encode(read))["y"],
            "head": dataset["train"].head(20)["y"],
            "served": pd.Series(Encoder(prep.to_dict()).predictions(scores)["y_predictions"]),
        }
        for way, labels in found.items():
            assert labels.tolist() == read["y"].tolist(), way
            assert labels.dtype == read["y"].dtype, way


def _carry(frame: pd.DataFrame, carrier: str, folder: Path) -> tuple[Any, pd.DataFrame]:
    """Return rows as a carrier, and the frame that pandas reads from it."""
    path = folder / f"rows.{carrier}"
    if carrier in ("csv", "tsv.gz"):
        mark = "," if carrier == "csv" else "\t"
        frame.to_csv(path, index=False, sep=mark)
        return path, pd.read_csv(path, sep=mark, dtype=str if frame["y"].eq("07").any() else None)
    if carrier == "files":
        for number in range(2):
            frame[number * 10 : number * 10 + 10].to_csv(folder / f"part{number}.csv", index=False)
        frame[:0].to_csv(folder / "part2.csv", index=False)
        parts = [folder / f"part{number}.csv" for number in range(3)]
        return parts, pd.concat([pd.read_csv(part) for part in parts[:2]], ignore_index=True)
    if carrier == "json":
        frame.to_json(folder / "rows.jsonl", orient="records", lines=True)
        return folder / "rows.jsonl", frame
    if carrier == "parquet":
        frame.to_parquet(path)
        return path, pd.read_parquet(path)
    carriers: dict[str, Any] = {"frame": frame, "arrow": pa.Table.from_pandas(frame), "dask": dd.from_pandas(frame, 3)}
    return carriers[carrier], frame
