from __future__ import annotations

import os
import runpy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.dataset import Dataset, open_dataset
from daskprep.errors import CorruptDatasetError, DaskprepError, FormatVersionError, IncompleteDatasetError
from daskprep.storage import FileEntry, Manifest
from daskprep.storage.manifest import MANIFEST
from tests.amount import one_in
from tests.sizes import sized

WRITER = runpy.run_path(str(Path(__file__).with_name("writer_process.py")))
content = WRITER["content"]
ROWS = 40


def table() -> pd.DataFrame:
    numbers = np.arange(ROWS)
    return pd.DataFrame(
        {
            "price": np.where(numbers % 13 == 5, np.nan, numbers * 1.5),
            "city": np.take(["Rome", "Oslo", "Bern"], numbers % 3),
            "tags": [f"a{number % 7} b" for number in numbers],
            "series": [f"{number} 2 3" for number in numbers],
            "sold": numbers % 2 == 0,
        }
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Write a dataset with files of every kind, small enough to damage each byte."""
    path = tmp_path_factory.mktemp("damage") / "made.dp"
    features = {
        "price": dp.Number(missing_value_strategy="drop_row"),
        "city": "category",
        "tags": "set",
        "series": "timeseries",
        "sold": "binary",
    }
    with sized(large_vocabulary=8, part_bytes=500):
        prep = dp.Preprocessor(features, split=dp.RandomSplit((0.7, 0.1, 0.2)))
        prep.fit_write(table(), path, block_rows=16, progress=False)
    return path


@pytest.fixture
def path(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Threads take longer to start than these files to read.
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    shutil.copytree(made, tmp_path / "a.dp")
    return tmp_path / "a.dp"


def read(path: Path) -> tuple[Dataset, dict[str, np.ndarray]]:
    """Open a dataset and read all rows, rejects and fitted state."""
    dataset, arrays = open_dataset(path), {}
    for name, split in dataset.splits.items():
        arrays |= {f"{name}/{output}": array for output, array in split.read(["row_id", *split.columns]).items()}
        _ = split.arrays
    arrays["rejects"] = dataset.rejects().to_pandas().to_numpy()
    _ = dataset.learned
    return dataset, arrays


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].dtype == array.dtype and np.array_equal(found[name], array) for name, array in expected.items()
    )


def all_files(path: Path) -> list[Path]:
    return sorted(file.relative_to(path) for file in path.rglob("*") if file.is_file())


def flips(data: bytes) -> Iterator[bytes]:
    """Yield the bytes with all bits of each byte flipped in turn, and with one bit of each."""
    for place, byte in enumerate(data):
        for bits in (0xFF, 1 << place % 8):
            yield data[:place] + bytes([byte ^ bits]) + data[place + 1 :]


def check_every(path: Path, damages: Callable[[bytes], Iterator[bytes]]) -> int:
    """Check that each damage to each file is detected and named, and that reads return the same values or raise."""
    open_dataset(path).verify()
    count = 0
    for name in all_files(path):
        file, whole = path / name, (path / name).read_bytes()
        for damaged in damages(whole):
            count += 1
            file.write_bytes(damaged)
            with pytest.raises(CorruptDatasetError, match=str(name)):
                open_dataset(path).verify()
        file.write_bytes(whole)
    open_dataset(path).verify()
    return count


def check_reads(path: Path, damages: Callable[[bytes], Iterator[bytes]]) -> None:
    """Check that reads after each damage to each file raise with its name or return the same values."""
    _, expected = read(path)
    for name in all_files(path):
        file, whole = path / name, (path / name).read_bytes()
        for damaged in damages(whole):
            file.write_bytes(damaged)
            try:
                _, found = read(path)
            except (CorruptDatasetError, FormatVersionError) as error:
                assert str(name) in str(error)  # noqa: PT017 which error it is depends on the byte
            else:
                # Some bytes of a table, such as those of statistics, do not affect values.
                assert name.suffix == ".parquet"
                assert same(found, expected)
        file.write_bytes(whole)


def some(damages: Callable[[bytes], Iterator[bytes]], step: int) -> Callable[[bytes], Iterator[bytes]]:
    """Skip most damages, different ones for each file."""
    return lambda data: (one for number, one in enumerate(damages(data)) if (number + len(data)) % step == 0)


def test_dataset_has_files_of_every_kind(made):
    names = [str(name) for name in all_files(made)]
    for kind in (
        "manifest.json",
        "metadata.json",
        "vocab/",
        "rejects.parquet",
        "part-00001",
        "zarr.json",
        "test/table",
    ):
        assert any(kind in name for name in names), kind
    assert sum(len(data) for data in content(made).values() if data) < 40_000
    assert len(open_dataset(made).rejects()) == 3


@pytest.mark.slow
def test_flipped_bytes_are_detected_and_named(path):
    assert check_every(path, some(flips, 61)) > 500


@pytest.mark.slow
def test_flipped_bytes_are_never_read_as_values(path):
    check_reads(path, some(flips, 71))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_flipped_byte_is_detected_and_named(path):
    count = 2 * sum(len(data) for data in content(path).values() if data) // one_in(11)
    assert abs(check_every(path, some(flips, one_in(11))) - count) < 100


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_flipped_byte_is_read_as_a_value(path):
    check_reads(path, some(flips, 2 * one_in(8) + 1))


def lengths(data: bytes) -> Iterator[bytes]:
    """Yield truncated bytes, at every length for a tiny file, and longer ones."""
    step = 1 if len(data) < 200 else len(data) // 20
    yield from (data[:length] for length in range(0, len(data), step))
    yield from (data + b"\0", data + data)


@pytest.mark.slow
def test_other_lengths_are_detected_and_named(path):
    assert check_every(path, lengths) > 500


@pytest.mark.slow
def test_other_lengths_are_never_read_as_values(path):
    check_reads(path, some(lengths, 3))


def test_missing_files_are_detected_and_named(path):
    dataset = open_dataset(path)
    for name in all_files(path):
        data = (path / name).read_bytes()
        (path / name).unlink()
        assert [one.file for one in dataset.damaged()] == [str(name)]
        error = IncompleteDatasetError if name.name == MANIFEST else CorruptDatasetError
        with pytest.raises(error, match="manifest" if name.name == MANIFEST else str(name)):
            read(path)
        (path / name).write_bytes(data)
    dataset.verify()


def test_swapped_files_of_same_length_are_detected(path):
    dataset = open_dataset(path)
    files = {name: (path / name).read_bytes() for name in all_files(path)}
    pairs = [(a, b) for a in files for b in files if a < b and len(files[a]) == len(files[b]) and files[a] != files[b]]
    assert any("/c" in str(a) for a, _ in pairs)
    for first, second in pairs:
        (path / first).write_bytes(files[second])
        (path / second).write_bytes(files[first])
        assert {one.file for one in dataset.damaged()} == {str(first), str(second)}
        with pytest.raises(CorruptDatasetError, match=f"{first}|{second}"):
            read(path)
        (path / first).write_bytes(files[first])
        (path / second).write_bytes(files[second])
    dataset.verify()


@pytest.mark.parametrize("name", ["extra", "train/table/part-00099.parquet", "train/arrays.zarr/tags/c.9.0", "vocab/a"])
def test_extra_files_are_detected_and_named(path, name):
    dataset, expected = read(path)
    (path / dataset.version / name).write_bytes(b"x")
    with pytest.raises(CorruptDatasetError, match=f"{name} is not part of the dataset"):
        dataset.verify()
    assert same(read(path)[1], expected)


def test_folder_or_link_in_place_of_file_is_detected(path):
    dataset = open_dataset(path)
    for name in all_files(path):
        file, data = path / name, (path / name).read_bytes()
        file.unlink()
        file.mkdir()
        assert [one.file for one in dataset.damaged()] == [str(name)]
        with pytest.raises(DaskprepError):
            read(path)
        file.rmdir()
        file.symlink_to("nowhere")
        assert [one.file for one in dataset.damaged()] == [str(name)]
        with pytest.raises(DaskprepError):
            read(path)
        file.unlink()
        file.write_bytes(data)
    dataset.verify()


def test_intact_manifest_of_other_dataset_is_detected(path):
    old = open_dataset(path).manifest
    for name, entry in old.files.items():
        other = FileEntry(entry.bytes, entry.crc32c ^ 1, entry.rows)
        files = {**old.files, name: other}
        manifest = Manifest(old.version, old.layout, files, old.source, old.settings)
        (path / MANIFEST).write_bytes(manifest.to_bytes())
        with pytest.raises(CorruptDatasetError, match=name):
            open_dataset(path).verify()


def test_damaged_dataset_is_overwritten(path, made):
    features = {"sold": "binary"}
    for name in all_files(path):
        if name.name == MANIFEST:
            continue
        data = (path / name).read_bytes()
        (path / name).write_bytes(data[:-1])
        with pytest.raises(CorruptDatasetError):
            open_dataset(path).verify()
        (path / name).write_bytes(data)
    (path / MANIFEST).write_bytes(b"{}")
    with pytest.raises(CorruptDatasetError, match="overwrite=True"):
        dp.Preprocessor(features).fit_write(table(), path, progress=False)
    dp.Preprocessor(features).fit_write(table(), path, progress=False, overwrite=True).verify()
    assert len(list(path.iterdir())) == 2


def test_damaged_footer_is_not_cached(tmp_path):
    frame = pd.DataFrame({"price_of_all": np.arange(100.0)})
    path = dp.Preprocessor({"price_of_all": dp.Number(normalization=None)}).fit_write(frame, tmp_path / "a.dp").url
    (table,) = Path(path).glob("*/train/table/*.parquet")
    whole = table.read_bytes()
    table.write_bytes(whole.replace(b"price_of_all", b"price_of_one"))
    with pytest.raises(CorruptDatasetError):
        dp.open_dataset(path)["train"].read("price_of_all")
    table.write_bytes(whole)
    assert dp.open_dataset(path)["train"].read("price_of_all")["price_of_all"].tolist() == list(range(100))
