"""Readers of a dataset that is overwritten see the old rows, or an error."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.dataset import Dataset, segments
from daskprep.errors import ConfigError, CorruptDatasetError

ROWS = 40


def write(path: Path, shift: float, **options: Any) -> Dataset:
    table = pd.DataFrame({"x": np.arange(ROWS) + shift, "v": ["1 2"] * ROWS, "c": list("ab") * (ROWS // 2)})
    prep = dp.Preprocessor({"x": dp.Number(normalization=None), "v": "vector", "c": "category"})
    return prep.fit_write(table, path, block_rows=8, overwrite=True, **options)


ACCESSES: dict[str, Callable[[Dataset], Any]] = {
    "read": lambda one: one["train"].read(["x", "v"]),
    "head": lambda one: one["train"].head(),
    "table": lambda one: one["train"].table(),
    "arrays": lambda one: one["train"].arrays["v"][:],
    "to_dask": lambda one: dask.compute(one["train"].to_dask(["x", "v"])),
    "loader": lambda one: list(one["train"].loader(8)),
    "report": lambda one: one.report(),
    "plot": lambda one: one.plot("x"),
    "vocabulary": lambda one: one.vocabulary("c"),
    "decode": lambda one: one.decode({"c": np.array([1])}),
    "rejects": lambda one: one.rejects(),
}


@pytest.mark.parametrize("is_partly_removed", [False, True])
@pytest.mark.parametrize("access", ACCESSES)
def test_reading_overwritten_dataset_raises(access, is_partly_removed, tmp_path):
    write(tmp_path / "a.dp", 0)
    found = dp.open_dataset(tmp_path / "a.dp")
    files = {name: (tmp_path / "a.dp" / found.version / name).read_bytes() for name in found.manifest.files}
    write(tmp_path / "a.dp", 100)
    assert not (tmp_path / "a.dp" / found.version).exists()
    if is_partly_removed:  # as if the overwrite removed other files first
        for name in files:
            if name.endswith("zarr.json"):
                (tmp_path / "a.dp" / found.version / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / "a.dp" / found.version / name).write_bytes(files[name])
    with pytest.raises(CorruptDatasetError, match="written again or removed; open it again"):
        ACCESSES[access](found)


def test_unpickling_overwritten_dataset_raises(tmp_path):
    pickled = pickle.dumps(write(tmp_path / "a.dp", 0))
    write(tmp_path / "a.dp", 100)
    with pytest.raises(ConfigError, match="open it again"):
        pickle.loads(pickled)


def test_running_epoch_yields_old_rows_or_raises(tmp_path):
    write(tmp_path / "a.dp", 0)
    batches = iter(dp.open_dataset(tmp_path / "a.dp")["train"].loader(4, prefetch_size=1, prefetch_bytes=1))
    seen = next(batches)["x"].tolist()
    write(tmp_path / "a.dp", 1_000)
    try:
        for batch in batches:
            seen += batch["x"].tolist()
    except CorruptDatasetError as error:
        assert "open it again" in str(error)  # noqa: PT017 all batches may be prefetched
    assert max(seen) < ROWS


def test_opening_during_overwrite_returns_new_version(tmp_path, monkeypatch):
    write(tmp_path / "a.dp", 0)
    read, writes = segments.read_manifest, [200.0, 100.0]

    def read_manifest(root: Any) -> Any:
        found = read(root)
        if writes:
            write(tmp_path / "a.dp", writes.pop())
        return found

    monkeypatch.setattr(segments, "read_manifest", read_manifest)
    found = dp.open_dataset(tmp_path / "a.dp")
    assert not writes
    assert found["train"].read("x")["x"][0] == 200
