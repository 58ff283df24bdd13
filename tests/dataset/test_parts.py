"""All readers agree on datasets with parts: appended to, deleted from, joined and mixed in any order."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
import torch

import daskprep as dp
from daskprep.dataset import Split
from daskprep.features import FEATURES

TYPES: dict[str, Any] = {
    "n": dp.Number(normalization=None),
    "bins": dp.Number(encoding="bins", column="n"),
    "vector": "vector",
    "series": dp.Timeseries(column="vector"),
    "city": "category",
    "sold": "binary",
    "day": "date",
    "tags": "set",
    "ids": dp.Set(column="tags", expand_to="ids"),
    "bag": dp.Bag(column="tags"),
    "steps": dp.Sequence(column="tags"),
    "review": dp.Text(level="both", column="tags"),
    "past": dp.History(column="tags", last=3),
    "cell": "h3",
    "photo": dp.Image(height=4, width=4, num_channels=1, pack=True),
}
SOURCES = ("old", "grown", "deleted", "new")
JOINS = [("grown",), ("deleted",), ("old", "grown"), ("grown", "deleted"), ("new", "deleted", "old", "grown")]


def table(rows: int, first: int, words: Sequence[str]) -> pd.DataFrame:
    """Return rows whose cells determine each other, so that outputs of different rows are found."""
    n = np.arange(first, first + rows)
    return pd.DataFrame(
        {
            "n": n * 1.0,
            "vector": [[one, -one] for one in n],
            "city": [words[one % len(words)] for one in n],
            "sold": n % 3 == 0,
            "day": pd.to_datetime("2024-01-01") + pd.to_timedelta(n % 100, unit="D"),
            "tags": [f"{words[one % len(words)]} {words[one * one % len(words)]}" for one in n],
            "cell": ["85283473fffffff", "8928308280fffff"] * (rows // 2),
            "photo": list(np.broadcast_to((n % 251).astype(np.uint8)[:, None, None, None], (rows, 4, 4, 1))),
        }
    )


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Datasets of one Preprocessor, before and after it has grown; two with parts, one of them without some rows."""
    folder, few, many = tmp_path_factory.mktemp("parts"), ["a", "b"], [f"w{number}" for number in range(300)]
    paths = {name: folder / f"{name}.dp" for name in SOURCES}
    prep = dp.Preprocessor(TYPES, split=None).fit(table(90, 0, few))
    for number, name in enumerate(SOURCES[:3]):
        prep.write(table(90, 1_000 * number, few), paths[name], progress=False, block_rows=32)
    prep.grow(table(300, 5_000, many))
    for number, name in enumerate(SOURCES[1:3]):
        rows = table(300, 5_000 + 1_000 * number, many)
        with pytest.warns(UserWarning, match='windows of "past" do not reach'):
            prep.append(rows, paths[name], progress=False, block_rows=50, on_findings="ignore")
    deleted = dp.open_dataset(paths["deleted"]).delete([0, *range(20, 60)], part=0)
    deleted.delete([*range(50, 100), 299], part=1)
    prep.write(table(50, 9_000, many), paths["new"], progress=False, block_rows=64)
    return paths


def loaded(loader: Any, batches: int | None = None) -> dict[str, np.ndarray]:
    found = list(itertools.islice(loader, batches))
    return {name: torch.cat([batch[name] for batch in found]).numpy() for name in found[0]}


def assert_equal(found: Mapping[str, Any], expected: Mapping[str, np.ndarray]) -> None:
    for name, values in found.items():
        np.testing.assert_array_equal(np.asarray(values), expected[name], err_msg=name)


def check_readers(split: Split, expected: Mapping[str, np.ndarray]) -> None:
    rows = np.random.default_rng(0).permutation(len(split))[:200]
    assert len(split) == len(expected["n"])
    assert_equal(split.read(["row_id", *split.columns]), expected)
    assert_equal(split.read(start=70, stop=300), {name: values[70:300] for name, values in expected.items()})
    assert_equal(split[rows], {name: values[rows] for name, values in expected.items()})
    assert_equal(dict(zip(lazy := split.to_dask(), dask.compute(*lazy.values()), strict=True)), expected)
    plain = [name for name in split.columns if split.output(name).shape == () or split.output(name).dtype != "uint8"]
    arrow = split.to_arrow(["row_id", *plain]).read_all()
    assert_equal({name: np.array(arrow[name].to_pylist()) for name in ("row_id", *plain)}, expected)
    scalars = ["row_id", *(name for name in plain if not split.shape(name))]
    arrays = split.table(scalars)
    assert_equal({name: arrays[name].to_numpy() for name in scalars}, expected)
    options: dict[str, Any] = {"expand": False, "row_ids": True, "columns": plain, "targets": ()}
    assert_equal(loaded(split.loader(32, shuffle=False, **options)), expected)
    for more in ({}, {"trim": True, "group_by_length": "steps", "streams": 8}):
        batches = loaded(split.loader(32, expand=False, row_ids=True, columns=["n", "vector", "steps"], **more))
        assert_equal({"n": np.sort(batches["n"])}, {"n": np.sort(expected["n"])})
        np.testing.assert_array_equal(batches["vector"], np.stack([batches["n"], -batches["n"]], axis=1))


def test_types_that_expand_are_tested(paths: dict[str, Path]) -> None:
    tested = set(map(type, dp.open_dataset(paths["old"]).features.values()))
    assert {kind for kind in FEATURES.values() if kind.expand is not dp.Feature.expand} <= tested


@pytest.mark.slow
@pytest.mark.parametrize("names", JOINS)
def test_readers_agree_on_joined_datasets(paths: dict[str, Path], names: tuple[str, ...]) -> None:
    parts = [part for name in names for part in dp.open_dataset(paths[name])["train"].joined]
    dataset = dp.open_dataset([paths[name] for name in names])
    every = [part.read(["row_id", *part.columns]) for part in parts]
    expected = {name: np.concatenate([one[name] for one in every]) for name in every[0]}
    expected["source_id"] = np.repeat(np.arange(len(parts)), list(map(len, parts)))
    assert [len(one["train"]) for one in getattr(dataset, "datasets", [dataset])] == list(map(len, parts))
    check_readers(dataset["train"], expected)
    assert_equal(pickle.loads(pickle.dumps(dataset))["train"].read(), expected)
    assert dataset.damaged() == []
    assert len(dataset.manifests) == len(parts)


@pytest.mark.parametrize("names", [("grown",), ("deleted", "new"), ("new", "grown")])
def test_mixes_expand_like_loaders(paths: dict[str, Path], names: tuple[str, ...]) -> None:
    splits = {name: dp.open_dataset(paths[name])["train"] for name in names}
    found = loaded(dp.Mix(splits, 16, until="first", shuffle=False, row_ids=True))
    for number, split in enumerate(splits.values()):
        rows = found["source_id"] == number
        alone = loaded(split.loader(16, shuffle=False))
        assert_equal(
            {name: found[name][rows] for name in alone}, {name: one[: rows.sum()] for name, one in alone.items()}
        )
