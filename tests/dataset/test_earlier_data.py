"""A dataset and states of an earlier commit are read, encoded and decoded unchanged.

    .venv/bin/python -m tests.dataset.test_earlier_data FOLDER

writes such a dataset with the code at hand and what is read from it, as a zip file and a JSON file.
"""

from __future__ import annotations

import json
import sys
import warnings
import zipfile
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep import serving
from tests.arrow_columns import encode_columns

EARLIER = Path(__file__).parents[1] / "earlier"
RANKS = [(16, 1), (64, 1), (16, 2), (8, 4), (32, 8)]


def frame(rows: int = 120) -> pd.DataFrame:
    """Return rows with every type except images and audio, with missing, unreadable and rare cells."""
    rng = np.random.default_rng(1)
    number = np.arange(rows)
    cells: dict[str, Any] = {
        "age": np.where(number % 7 == 0, np.nan, rng.normal(40, 9, rows).round(2)),
        "year": 2001 + number % 11,
        "price": [f"${one:,.2f}" if one % 3 else None for one in range(1000, 1000 + rows)],
        "code": [f"A{one % 9}" for one in number],
        "city": [["Rome", "Oslo", "Bern", None][one % 4] for one in number],
        "size": pd.Categorical([["S", "M", "L"][one % 3] for one in number], ["S", "M", "L"], ordered=True),
        "sold": [["yes", "no", None, "no"][one % 4] for one in number],
        "tags": [" ".join("abc"[: one % 4]) for one in number],
        "text": [f"Row {one} of {rows}, don't stop" for one in number],
        "series": [" ".join(str(x / 2) for x in range(one % 5)) or None for one in number],
        "point": [f"{one} {one / 8}" if one % 6 else None for one in number],
        "seen": [f"2021-{1 + one % 12:02d}-{1 + one % 28:02d}" if one % 5 else None for one in number],
        "place": ["8928308280fffff" if one % 3 else None for one in number],
        "label": [["7", "3", "7", "5", "7"][one % 5] for one in number],
        "grade": number % 3,
        "flag": number % 4 == 0,
        "amount": rng.gamma(2, 3, rows).round(3),
    }
    return pd.DataFrame(cells)


def features() -> dict[str, Any]:
    return {
        "age": "number",
        "year": dp.Number(normalization="minmax"),
        "price": "number",
        "code": dp.Number(normalization=None),
        "age_bins": dp.Number(encoding="bins", bins=4, column="age"),
        "age_pieces": dp.Number(encoding="piecewise_linear", bins=4, column="age"),
        "age_robust": dp.Number(normalization="robust", missing_indicator=True, column="age"),
        "city": "category",
        "size": dp.Category(transform_to="ordinal"),
        "sold": "binary",
        "tags": "set",
        "bag": dp.Bag(column="tags"),
        "steps": dp.Sequence(column="text"),
        "text": "text",
        "series": "timeseries",
        "window": dp.Timeseries(window_size=3, column="year"),
        "point": dp.Vector(vector_size=2),
        "seen": "date",
        "place": "h3",
        "city_mean": dp.TargetEncoding(target="amount", folds=3, column="city"),
        "label": "category",
        "grade": "category",
        "flag": "binary",
        "amount": "number",
    }


def plain(value: Any) -> Any:
    """Return arrays, frames and rows as JSON values."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if hasattr(value, "to_dict"):
        return plain(value.to_dict("list"))
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.name, "values": plain(value.tolist())}
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def rounded(table: pd.DataFrame) -> Any:
    """Return decoded values to five digits and four decimal places: later versions may show fewer or more."""
    return json.loads(json.dumps(plain(table)), parse_float=lambda text: float(f"{round(float(text), 4):.5g}"))


def recorded(dataset: dp.Dataset) -> dict[str, Any]:
    """Return the arrays and tables read from a dataset, and the encoding of rows with its state."""
    prep = dp.Preprocessor.from_dataset(dataset)
    rows = frame(40)
    few = rows.astype(object).where(rows.notna(), None).to_dict("records")
    record: dict[str, Any] = {}
    for name in dataset:
        split = dataset[name]
        record[f"{name} arrays"] = {output: split.read(output) for output in split.columns}
        record[f"{name} decoded"] = rounded(prep.decode(split.read()))
    for batch_size, ranks in RANKS:
        record[f"order {batch_size} {ranks}"] = [
            [inputs["row_id"].tolist() for inputs, _ in rank_of(dataset, batch_size, rank, ranks)]
            for rank in range(ranks)
        ]
    record["batch"] = next(iter(dataset["train"].loader(8, seed=2)))
    record["encoded"] = encode_columns(prep, rows)
    record["served"] = serving.Encoder(prep.to_dict()).encode(few)
    logits = {"label": np.eye(4)[[0, 1, 2, 3]], "grade": np.eye(4)[[3, 2, 1, 0]], "flag": np.array([-1.0, 2, 0, 1])}
    record["predictions"] = rounded(prep.predictions({**logits, "amount": np.array([0.0, 1, -1, 2])}))
    return plain(record)


def rank_of(dataset: dp.Dataset, batch_size: int, rank: int, ranks: int) -> Any:
    return dataset["train"].loader(batch_size, seed=5, rank=rank, world_size=ranks, row_ids=True, drop_last=ranks > 1)


def written(path: Path) -> dp.Dataset:
    split = dp.RandomSplit(seed=3)
    prep = dp.Preprocessor(features(), targets=["label", "grade", "flag", "amount"], split=split)
    return prep.fit_write(frame(), path)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> dp.Dataset:
    folder = tmp_path_factory.mktemp("earlier")
    with zipfile.ZipFile(EARLIER / "dataset.zip") as archive:
        archive.extractall(folder)
    return dp.open_dataset(folder / "dataset.dp")


def test_earlier_dataset_is_read_unchanged(dataset):
    dataset.verify()
    expected = json.loads((EARLIER / "dataset.json").read_text(encoding="utf-8"))
    found = json.loads(json.dumps(recorded(dataset)))
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        if name.startswith("order"):  # rows that did not fill a batch joined the last one
            assert [list(chain(*rank)) for rank in found[name]] == [list(chain(*rank)) for rank in values], name
            continue
        if not name.endswith("decoded"):
            assert found[name] == values, name
            continue
        # Decoded numbers had the rounding of float32: 0 was -9.1e-07.
        assert found[name].keys() == values.keys()
        for column, cells in values.items():
            is_number = all(isinstance(one, float | int | None) for one in cells)
            assert found[name][column] == (
                pytest.approx(cells, rel=1e-5, abs=1e-4, nan_ok=True) if is_number else cells
            ), column


def test_earlier_state_encodes_unchanged(tmp_path):
    vectors = json.loads((EARLIER / "saved-format-vectors.json").read_text(encoding="utf-8"))
    path = tmp_path / "prep.json"
    path.write_text(json.dumps(vectors["saved"]), encoding="utf-8")
    encoded = encode_columns(dp.Preprocessor.load(path), pd.DataFrame(vectors["rows"]))
    served = serving.load(path).encode(vectors["rows"])
    assert encoded.keys() == served.keys() == vectors["arrays"].keys()
    for name, array in vectors["arrays"].items():
        expected = np.array(array["rows"], array["dtype"]).reshape(array["shape"])
        np.testing.assert_array_equal(encoded[name], expected, strict=True, err_msg=name)
        np.testing.assert_array_equal(served[name], expected, strict=True, err_msg=name)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = written(folder / "dataset.dp")
        text = json.dumps(recorded(made), ensure_ascii=False, separators=(",", ":"))
    (folder / "dataset.json").write_text(text + "\n", encoding="utf-8")
    with zipfile.ZipFile(folder / "dataset.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((folder / "dataset.dp").rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(folder))
