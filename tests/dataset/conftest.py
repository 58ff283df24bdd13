"""Small datasets made by hand, without the code that writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import daskprep as dp
from daskprep.dataset import Dataset, open_dataset
from daskprep.passes.state import state_files
from daskprep.storage import FileEntry, Folder, Layout, Manifest, Output
from daskprep.storage.arrays import chunk_name, encode_chunk
from daskprep.storage.manifest import MANIFEST
from daskprep.storage.tables import encode_table

ROWS = {"train": 70, "validation": 10, "test": 20}
FEATURES: dict[str, Any] = {
    "price": dp.Number(),
    "city": "category",
    "tags": "set",
    "bag": dp.Bag(column="tags"),
    "review": dp.Text(level="both"),
    "vector": "vector",
    "sold": "binary",
}

Write = Callable[..., Manifest]


@pytest.fixture(scope="session")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "price": rng.lognormal(size=100),
            "city": rng.choice(["Rome", "Oslo", "Bern"], 100),
            "tags": rng.choice(["a b", "b", "c d e"], 100),
            "review": rng.choice(["Nice one!", "bad", "so so"], 100),
            "vector": [" ".join(map(str, row)) for row in rng.integers(0, 9, (100, 3))],
            "sold": rng.choice([True, False], 100),
        }
    )


@pytest.fixture(scope="session")
def prep(table: pd.DataFrame) -> dp.Preprocessor:
    return dp.Preprocessor(FEATURES).fit(table)


@pytest.fixture(scope="session")
def encoded(prep: dp.Preprocessor, table: pd.DataFrame) -> dict[str, np.ndarray]:
    """All 100 rows: 0-69 are for training, 70-79 for validation, 80-99 for test."""
    return prep.encode(table)


@pytest.fixture(scope="session")
def write(prep: dp.Preprocessor, encoded: dict[str, np.ndarray]) -> Write:
    """Write a dataset whose splits are the rows one after the other, with the row ids 1000, 1001, ..."""

    def write_dataset(
        path: Any,
        arrays: Mapping[str, np.ndarray] = encoded,
        prep: dp.Preprocessor = prep,
        *,
        rows: Mapping[str, int] = ROWS,
        block_rows: int = 8,
        part_blocks: int = 3,
        compression: Any = "lz4",
        version: str = "3f2a9c1b",
        rejects: Mapping[str, Any] | None = None,
    ) -> Manifest:
        outputs = tuple(Output(name, array.dtype.name, array.shape[1:]) for name, array in arrays.items())
        layout = Layout(outputs, dict(rows), block_rows, part_blocks, compression)
        files: dict[str, Any] = state_files({**prep.to_state(), "rows": dict(rows)})
        first = 0
        for split, count in rows.items():
            sliced = {name: array[first : first + count] for name, array in arrays.items()}
            files |= split_files(layout, split, {"row_id": np.arange(count) + first + 1000, **sliced})
            first += count
        if rejects is not None:
            files["rejects.parquet"] = encode_table([{name: pa.array(one) for name, one in rejects.items()}], 10)
        for name, data in files.items():
            Folder.open(path).write(f"{version}/{name}", data, durable=False)
        entries = {name: FileEntry.from_data(name, data) for name, data in files.items()}
        manifest = Manifest(version, layout, entries, {"path": "made.csv"}, {})
        Folder.open(path).write(MANIFEST, manifest.to_bytes(), durable=False)
        return manifest

    return write_dataset


def split_files(layout: Layout, split: str, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    files: dict[str, Any] = dict(layout.metadata_files(split))
    for part in range(layout.parts(split)):
        rows = layout.part_range(split, part)
        scalars = {name: arrays[name][rows.start : rows.stop] for name in ["row_id", *(o.name for o in layout.scalars)]}
        files[f"{split}/table/part-{part:05d}.parquet"] = encode_table([scalars], layout.block_rows)
    for output in layout.matrices:
        for block in range(layout.blocks(split)):
            rows = layout.block_range(split, block)
            chunk = encode_chunk(arrays[output.name][rows.start : rows.stop], layout.block_rows, layout.compression)
            files[f"{split}/arrays.zarr/{chunk_name(output, block)}"] = chunk
    return files


@pytest.fixture
def path(write: Write, tmp_path: Path) -> Path:
    write(tmp_path / "made.dp")
    return tmp_path / "made.dp"


@pytest.fixture
def dataset(path: Path) -> Dataset:
    return open_dataset(path)
