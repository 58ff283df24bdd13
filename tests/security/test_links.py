"""Targets of links in a dataset are not read, written, listed or removed, and pipes do not block."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

import daskprep as dp
from daskprep.errors import CorruptDatasetError, DaskprepError
from daskprep.storage import Folder
from tests.sizes import Sizes

FRAME = pd.DataFrame({"price": [float(i) for i in range(40)], "tags": ["a b", "c"] * 20})
DECOY = {"part-00000.parquet": b"PAR1", "notes.txt": b"mine", "table/part-00000.parquet": b"PAR1", "c.0": b"x" * 9}


@pytest.fixture
def decoy(tmp_path: Path) -> Path:
    folder = tmp_path / "decoy"
    for name, data in DECOY.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def written(tmp_path: Path) -> dp.Dataset:
    return write(tmp_path / "a.dp")


def write(path: Path, **options: object) -> dp.Dataset:
    prep = dp.Preprocessor({"price": "number", "tags": "set"}, split=dp.RandomSplit(shares=(0.7, 0.1, 0.2)))
    return prep.fit_write(FRAME, path, **options)


def photos(folder: Path) -> dp.Dataset:
    """Write a dataset of two images that are decoded in reads."""
    folder.mkdir()
    for i in range(2):
        Image.new("RGB", (4, 4), (i, 0, 0)).save(folder / f"{i}.png")
    frame = pd.DataFrame({"photo": [str(folder / f"{i}.png") for i in range(2)]})
    prep = dp.Preprocessor({"photo": dp.Image(height=4, width=4, num_channels=3, mode="lazy")})
    return prep.fit_write(frame, folder / "photos.dp")


def is_unchanged(decoy: Path) -> bool:
    found = {str(file.relative_to(decoy)): file.read_bytes() for file in decoy.rglob("*") if file.is_file()}
    return found == DECOY


def outcome(action: Callable[[], object]) -> None:
    """Call a function that returns or raises a daskprep error."""
    with contextlib.suppress(DaskprepError):
        action()


def replace_by_link(place: Path, decoy: Path) -> None:
    """Replace a file or folder, or a missing one, by a link to the decoy."""
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(decoy)


PLACES = [
    "", "train", "train/table", "train/arrays.zarr", "train/arrays.zarr/tags", "test", "cache", "receipts", "scratch",
    "vocab", "stray", "metadata.json", "train/table/part-00000.parquet", "cache/0123456789abcdef0123456789abcdef",
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_repair_removes_nothing_behind_a_link(written: dp.Dataset, decoy: Path, place: str) -> None:
    replace_by_link(Path(written.url, written.version, place), decoy)
    outcome(lambda: dp.repair(written.url, FRAME))
    assert is_unchanged(decoy)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("overwrite", [False, True])
def test_write_removes_nothing_behind_a_link(written: dp.Dataset, decoy: Path, place: str, *, overwrite: bool) -> None:
    replace_by_link(Path(written.url, written.version, place), decoy)
    outcome(lambda: write(Path(written.url), overwrite=overwrite))
    assert is_unchanged(decoy)


@pytest.mark.parametrize("place", PLACES)
def test_write_after_a_killed_one_removes_nothing_behind_a_link(
    tmp_path: Path, written: dp.Dataset, decoy: Path, place: str
) -> None:
    FRAME.to_parquet(tmp_path / "rows.parquet")
    prep = dp.Preprocessor({"price": "number"})
    root = tmp_path / "b.dp"
    version = prep.fit_write(str(tmp_path / "rows.parquet"), root).version
    (root / "manifest.json").unlink()
    replace_by_link(root / version / place, decoy)
    outcome(lambda: prep.fit_write(str(tmp_path / "rows.parquet"), root))
    assert is_unchanged(decoy)


def test_link_named_like_a_version_is_removed_without_its_target(written: dp.Dataset, decoy: Path) -> None:
    stray = Path(written.url, "0123456789abcdef")
    replace_by_link(stray, decoy)
    dp.repair(written.url, FRAME)
    assert not stray.is_symlink()
    assert is_unchanged(decoy)


def test_clear_cache_removes_a_link_without_its_target(tmp_path: Path, decoy: Path) -> None:
    dataset = photos(tmp_path / "media")
    cache = Path(dataset.url, "cache")
    replace_by_link(cache, decoy)
    with pytest.raises(CorruptDatasetError, match=r"cache is a link, which could lead anywhere"):
        dataset.cache_media()
    assert is_unchanged(decoy)
    dataset.clear_cache()
    assert not cache.is_symlink()
    assert is_unchanged(decoy)


def test_cache_limit_removes_nothing_behind_a_link(tmp_path: Path, decoy: Path) -> None:
    dataset, cached = photos(tmp_path / "media"), tmp_path / "cached"
    other = decoy / "0123456789abcdef0123456789abcdef" / "photo"
    other.mkdir(parents=True)
    (other / "c.0.0.0.0").write_bytes(b"x" * 100_000)
    cached.mkdir()
    (cached / "fedcba9876543210fedcba9876543210").symlink_to(decoy / "0123456789abcdef0123456789abcdef")
    (cached / "more").symlink_to(decoy)
    dataset.cache_media(cache_dir=cached, cache_limit=10_000)
    assert (other / "c.0.0.0.0").stat().st_size == 100_000


def test_dataset_folder_can_be_a_link(tmp_path: Path, written: dp.Dataset) -> None:
    link = tmp_path / "latest.dp"
    link.symlink_to(written.url)
    next(Path(written.url, written.version).rglob("part-*.parquet")).write_bytes(b"")
    assert dp.repair(link, FRAME).damaged() == []
    write(link, overwrite=True)
    assert link.is_symlink()
    assert dp.open_dataset(link)["train"].read()["price"].size


def test_listing_ignores_circular_links(tmp_path: Path, decoy: Path) -> None:
    (tmp_path / "data" / "inner").mkdir(parents=True)
    (tmp_path / "data" / "inner" / "up").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "self").symlink_to("self")
    (tmp_path / "data" / "out").symlink_to(decoy)
    folder = Folder.open(tmp_path / "data")
    assert folder.sizes() == {"inner/up": -1, "out": -1, "self": -1}
    assert (folder / "out").sizes() == {}
    assert (folder / "out").children() == []
    folder.remove_all()
    assert is_unchanged(decoy)


def test_deeply_nested_folders_are_listed(tmp_path: Path) -> None:
    folders = [tmp_path / "data"]
    for _ in range(1500):
        folders.append(folders[-1] / "d")
    for folder in folders:
        folder.mkdir()
    (folders[-1] / "file").write_bytes(b"12345")
    folder = Folder.open(tmp_path / "data")
    assert list(folder.sizes().values()) == [5]
    with pytest.raises(CorruptDatasetError, match="nested too deeply"):
        folder.remove_all()
    for folder in reversed(folders):  # before pytest, which recurses
        (folder / "file").unlink(missing_ok=True)
        folder.rmdir()


@pytest.mark.parametrize("place", ["", "train", "train/table", "train/table/part-00000.parquet", "metadata.json"])
def test_link_inside_a_dataset_raises(tmp_path: Path, written: dp.Dataset, place: str) -> None:
    inside = Path(written.url, written.version, place)
    inside.rename(tmp_path / "moved")
    inside.symlink_to(tmp_path / "moved")
    with pytest.raises(CorruptDatasetError, match=r"is a link, which could lead anywhere|is a link, a pipe"):
        dp.open_dataset(written.url)["train"].read()


def make_socket(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)  # an address has at most 108 bytes
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)


@pytest.mark.parametrize("what", ["pipe", "socket", "loop"])
@pytest.mark.parametrize(
    "place", ["metadata.json", "train/table/part-00000.parquet", "train/arrays.zarr/tags/c.0.0", "../manifest.json"]
)
def test_special_file_inside_a_dataset_raises(
    written: dp.Dataset, place: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(written.url, written.version, place)
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "socket":
        make_socket(path, monkeypatch)
    else:
        path.symlink_to(path.name)
    with pytest.raises(CorruptDatasetError, match=rf"{path.name} is "):
        dp.open_dataset(written.url)["train"].read()


def test_saved_preprocessor_can_be_a_link_but_not_its_vocabulary(tmp_path: Path, sizes: Sizes) -> None:
    sizes(large_vocabulary=2)
    (tmp_path / "saved").mkdir()
    prep = dp.Preprocessor({"tags": "set"}).fit(FRAME)
    prep.save(tmp_path / "saved" / "prep.json")
    (tmp_path / "prep.json").symlink_to(tmp_path / "saved" / "prep.json")
    (tmp_path / "prep.json.vocab").mkdir()
    for file in (tmp_path / "saved" / "prep.json.vocab").iterdir():
        place = tmp_path / "prep.json.vocab" / file.name
        shutil.copy(file, place)
        assert dp.Preprocessor.load(tmp_path / "prep.json").to_dict() == prep.to_dict()
        place.unlink()
        place.symlink_to(file)
        with pytest.raises(CorruptDatasetError, match="is a link"):
            dp.Preprocessor.load(tmp_path / "prep.json")
