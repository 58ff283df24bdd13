"""Snapshots of Delta Lake, Lance and Iceberg are identified, and new files of a table are appended alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import deltalake
import lance
import numpy as np
import pyarrow as pa
import pytest

import daskprep as dp
from daskprep.errors import ConfigError, DatasetExistsError

pytestmark = pytest.mark.filterwarnings("ignore:append. the new rows differ:UserWarning")


class Lake(NamedTuple):
    """A table: functions that open it, add rows, and delete those with small numbers."""

    open: Callable[[], Any]
    add: Callable[[pa.Table], object]
    delete: Callable[[], object]


def table(start: int, stop: int) -> pa.Table:
    return pa.table({"x": np.arange(start, stop, dtype=np.float64), "c": pa.array([*"abcde"] * ((stop - start) // 5))})


def delta(folder: Path) -> Lake:
    """Return a table of Delta Lake."""
    path = str(folder / "delta")
    deltalake.write_deltalake(path, table(0, 100))
    return Lake(
        lambda: deltalake.DeltaTable(path),
        lambda rows: deltalake.write_deltalake(path, rows, mode="append"),
        lambda: deltalake.DeltaTable(path).delete("x < 5"),
    )


def lance_table(folder: Path) -> Lake:
    """Return a table of Lance."""
    path = str(folder / "rows.lance")
    lance.write_dataset(table(0, 100), path)
    return Lake(
        lambda: lance.dataset(path),
        lambda rows: lance.write_dataset(rows, path, mode="append"),
        lambda: lance.dataset(path).delete("x < 5"),
    )


def iceberg(folder: Path) -> Lake:
    """Return a table of Iceberg."""
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    catalog = sql.SqlCatalog("demo", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace("shop")
    catalog.create_table("shop.sales", schema=table(0, 5).schema).append(table(0, 100))
    return Lake(
        lambda: catalog.load_table("shop.sales"),
        lambda rows: catalog.load_table("shop.sales").append(rows),
        lambda: catalog.load_table("shop.sales").delete("x < 5"),
    )


@pytest.fixture(params=[delta, lance_table, iceberg])
def lake(request, tmp_path):
    """Return a table of each kind with 100 rows."""
    return request.param(tmp_path)


def numbers(dataset: dp.Dataset) -> list[float]:
    """Return the numbers of the training rows."""
    return sorted(dataset["train"].read("x")["x"].tolist())


def prep() -> dp.Preprocessor:
    return dp.Preprocessor({"x": dp.Number(normalization=None), "c": "category"}, split=None)


def test_new_files_alone_are_appended(lake, tmp_path):
    path = tmp_path / "rows.dp"
    first = prep().fit_write(lake.open(), path, progress=False)
    assert prep().fit_write(lake.open(), path, progress=False).version == first.version
    lake.add(table(100, 150))
    with pytest.raises(DatasetExistsError, match=r"1 file added .*append\(the table, path\) adds their rows"):
        prep().fit_write(lake.open(), path, progress=False)
    fitted = dp.Preprocessor.from_dataset(path)
    assert numbers(fitted.append(lake.open(), path, progress=False)) == list(range(150))
    with pytest.warns(UserWarning, match="has these rows already"):
        assert len(fitted.append(lake.open(), path, progress=False)["train"]) == 150
    lake.add(table(150, 160))
    lake.add(table(160, 170))
    assert numbers(fitted.append(lake.open(), path, progress=False)) == list(range(170))


def test_deleted_rows_are_named_and_nothing_is_written(lake, tmp_path):
    path = tmp_path / "rows.dp"
    prep().fit_write(lake.open(), path, progress=False)
    lake.delete()
    lake.add(table(100, 150))
    with pytest.raises(ConfigError, match=r"were deleted or rewritten since they were written .*overwrite=True"):
        dp.Preprocessor.from_dataset(path).append(lake.open(), path, progress=False)
    assert numbers(dp.open_dataset(path)) == list(range(100))
    assert numbers(prep().fit_write(lake.open(), path, overwrite=True, progress=False)) == list(range(5, 150))


def test_scans_of_iceberg_are_filtered_snapshots(tmp_path):
    lake = iceberg(tmp_path)
    scan = lake.open().scan(row_filter="x >= 90", selected_fields=("x",))
    features = dp.Preprocessor({"x": dp.Number(normalization=None)}, split=None)
    first = features.fit_write(scan, tmp_path / "rows.dp", progress=False)
    assert numbers(first) == list(range(90, 100))
    assert features.fit_write(scan, tmp_path / "rows.dp", progress=False).version == first.version
    with pytest.warns(UserWarning, match="has these rows already"):
        features.append(scan, tmp_path / "rows.dp", progress=False)
    lake.add(table(100, 150))
    later = lake.open().scan(row_filter="x >= 90", selected_fields=("x",))
    with pytest.raises(ConfigError, match=r"already, and not all of its files can be read alone.*version="):
        features.append(later, tmp_path / "rows.dp", progress=False)
    assert len(dp.open_dataset(tmp_path / "rows.dp")["train"]) == 10
    other = lake.open().scan(row_filter="x >= 95")
    with pytest.raises(DatasetExistsError, match="the table"):
        features.fit_write(other, tmp_path / "rows.dp", progress=False)
