"""Repair rewrites damaged files with the same bytes, and no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.dataset import Damage
from daskprep.errors import ConfigError, CorruptDatasetError
from tests.sizes import Sizes

pytestmark = pytest.mark.filterwarnings("ignore:column .* cells cannot be read:UserWarning")
OPTIONS = {"split": dp.StratifiedSplit("sold"), "balance": dp.Oversample("sold", ratio=0.8)}


@pytest.fixture(params=[False, True], ids=["ordered", "shuffled"])
def written(
    request: pytest.FixtureRequest,
    table: pd.DataFrame,
    prep: Callable[..., dp.Preprocessor],
    tmp_path: Path,
    sizes: Sizes,
) -> dp.Dataset:
    sizes(part_bytes=10_000)
    table = table.assign(price=pd.to_numeric(table["price"], errors="coerce"))
    table.to_parquet(tmp_path / "data.parquet", row_group_size=100)
    return prep(**OPTIONS).fit_write(
        str(tmp_path / "data.parquet"), tmp_path / "a", shuffle=request.param, block_rows=32
    )


def contents(dataset: dp.Dataset) -> dict[str, tuple[bytes, int]]:
    """Return bytes and inode of every file of a version."""
    folder = Path(dataset.url) / dataset.version
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: (path.read_bytes(), path.stat().st_ino) for name, path in files.items()}


@pytest.mark.parametrize(
    "damaged",
    [
        "train/table/part-00001.parquet",
        "train/arrays.zarr/tags/c.0.0",
        "test/arrays.zarr/zarr.json",
        "rejects.parquet",
    ],
)
def test_repair_rewrites_damaged_file(written: dp.Dataset, damaged: str) -> None:
    before = contents(written)
    path = Path(written.url) / written.version / damaged
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    repaired = dp.repair(written.url, trusted=True)
    after = contents(repaired)
    assert {name: data for name, (data, _) in after.items()} == {name: data for name, (data, _) in before.items()}
    rewritten = {name for name in after if after[name][1] != before[name][1]}
    assert damaged in rewritten
    assert not any(name.startswith("validation/table") for name in rewritten)


def test_repair_restores_missing_and_removes_extra_files(written: dp.Dataset) -> None:
    before = contents(written)
    folder = Path(written.url) / written.version
    for path in (folder / "train" / "arrays.zarr").rglob("c.*"):
        path.unlink()
    (folder / "train" / "notes.txt").write_text("mine")
    dp.repair(written.url, trusted=True)
    assert {name: data for name, (data, _) in contents(written).items()} == {n: data for n, (data, _) in before.items()}


def test_repair_of_intact_dataset_changes_nothing(written: dp.Dataset) -> None:
    before = contents(written)
    dp.repair(written.url, trusted=True)
    assert contents(written) == before


def test_repair_from_other_rows_raises(written: dp.Dataset, table: pd.DataFrame) -> None:
    path = Path(written.url) / written.version / "train" / "arrays.zarr" / "walk" / "c.0.0"
    path.unlink()
    other = table.assign(walk=np.arange(len(table)), price=pd.to_numeric(table["price"], errors="coerce"))
    with pytest.raises(CorruptDatasetError, match="cannot be repaired: the source, or other versions"):
        dp.repair(written.url, other)
    with pytest.raises(CorruptDatasetError, match="the source has other rows"):
        dp.repair(written.url, other.iloc[:500])
    assert not path.exists()


def test_repair_from_changed_files_raises(written: dp.Dataset, tmp_path: Path) -> None:
    (Path(written.url) / written.version / "train" / "arrays.zarr" / "tags" / "c.0.0").unlink()
    (tmp_path / "data.parquet").touch()
    with pytest.raises(CorruptDatasetError, match=r"data.parquet has changed since the dataset was written"):
        dp.repair(written.url, trusted=True)


def test_repair_without_frame_raises(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0]})
    dataset = dp.Preprocessor({"x": "number"}).fit_write(frame, tmp_path / "a")
    (Path(dataset.url) / dataset.version / "train" / "table" / "part-00000.parquet").unlink()
    with pytest.raises(ConfigError, match="pass the frame to repair it from"):
        dp.repair(tmp_path / "a", trusted=True)
    dp.repair(tmp_path / "a", frame).verify()


def test_repair_keeps_version_committed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0]})
    dataset = dp.Preprocessor({"x": "number"}).fit_write(frame, tmp_path / "a")
    next(Path(dataset.url).rglob("part-*.parquet")).write_bytes(b"")
    find_damage = dp.Dataset.damaged

    def late(damaged: dp.Dataset) -> list[Damage]:
        damages = find_damage(damaged)
        dp.Preprocessor({"x": "category"}).fit_write(frame, tmp_path / "a", overwrite=True)
        return damages

    monkeypatch.setattr(dp.Dataset, "damaged", late)
    with pytest.raises(ConfigError, match="was written again meanwhile"):
        dp.repair(tmp_path / "a", frame)
    assert dp.open_dataset(tmp_path / "a")["train"].num_embeddings("x") == 3
