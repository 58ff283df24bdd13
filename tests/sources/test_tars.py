"""Tars of WebDataset: members of one key are a row, for any size of partitions."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError
from daskprep.sources import read_files

NAMES = st.text("ab/x", min_size=1, max_size=110).filter(lambda name: name.rpartition("/")[2])
MEMBERS = st.dictionaries(st.sampled_from(["jpg", "txt", "seg.png", "cls"]), st.binary(max_size=600), min_size=1)


def write_tar(path: Path, rows: list[tuple[str, dict[str, bytes]]]) -> None:
    """Write rows of a key and members by suffix, with a folder before them."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        folder = tarfile.TarInfo("folder.d")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for key, members in rows:
            for suffix, data in members.items():
                member = tarfile.TarInfo(f"{key}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


@settings(max_examples=60, deadline=None)
@given(
    keys=st.lists(NAMES, min_size=1, max_size=12, unique=True),
    members=st.lists(MEMBERS, min_size=12, max_size=12),
    cut=st.integers(0, 12),
    partition_bytes=st.integers(1, 3_000),
)
def test_rows_do_not_depend_on_tars_and_partitions(tmp_path_factory, keys, members, cut, partition_bytes):
    folder = tmp_path_factory.mktemp("tars")
    rows = [(f"k{key}", dict(cells)) for key, cells in zip(keys, members, strict=False)]
    for _, cells in rows:
        cells.update({name: b"\xc3\xa9" * (len(data) % 9) for name, data in cells.items() if name in ("txt", "cls")})
    for number, part in enumerate((rows[:cut], rows[cut:])):
        write_tar(folder / f"{number}.tar", part)
    source = read_files(folder, partition_bytes=partition_bytes)
    suffixes = {name for _, cells in rows for name in cells}
    assert set(source.columns) == {"__key__", *suffixes}
    found = [row for number in range(source.npartitions) for row in source.read(number, source.columns).to_pylist()]
    assert [row.pop("__key__") for row in found] == [key for key, _ in rows]
    for row, (_, cells) in zip(found, rows, strict=True):
        expected = {name: data.decode() if name in ("txt", "cls") else data for name, data in cells.items()}
        assert {name: cell for name, cell in row.items() if cell is not None} == expected
    assert sum(len(source.read(number, [])) for number in range(source.npartitions)) == len(rows)


def test_images_and_captions_become_batches(tmp_path):
    rows = []
    for number in range(6):
        file = io.BytesIO()
        Image.fromarray(np.full((8, 8, 3), number * 40, np.uint8)).save(file, "PNG")
        rows.append(
            (f"{number:03}", {"png": file.getvalue(), "txt": f"gray {number}".encode(), "cls": b"%d" % (number % 2)})
        )
    write_tar(tmp_path / "a.tar", rows[:4])
    write_tar(tmp_path / "b.tar", rows[4:])
    image = dp.Image(height=8, width=8, num_channels=3)
    prep = dp.Preprocessor({"png": image, "txt": "text", "cls": "category"}, targets="cls")
    dataset = prep.fit_write(str(tmp_path / "*.tar"), tmp_path / "rows.dp", progress=False)
    ((inputs, labels),) = dataset["train"].loader(6, shuffle=False, to="numpy")
    assert (inputs["png"][:, 0, 0, 0] * 255).round().tolist() == [0, 40, 80, 120, 160, 200]
    assert len(set(labels[::2])) == len(set(labels[1::2])) == 1
    assert prep.fit_write(str(tmp_path / "*.tar"), tmp_path / "rows.dp", progress=False).version == dataset.version


def test_tars_behind_urls_are_read(tmp_path):
    write_tar(tmp_path / "a.tar", [("x", {"txt": b"one"}), ("y", {"txt": b"two"})])
    fsspec.filesystem("memory").pipe("/tars/a.tar", (tmp_path / "a.tar").read_bytes())
    source = read_files("memory://tars/a.tar", partition_bytes=1)
    assert [source.read(number, ["txt"])["txt"].to_pylist() for number in range(2)] == [["one"], ["two"]]


def test_members_of_one_suffix_raise(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("x.txt", "x.TXT"):
            archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(ConfigError, match=r'a\.tar: .*two members of "x" have one suffix'):
        read_files(tmp_path / "a.tar")


def test_members_without_a_suffix_are_named(tmp_path):
    write_tar(tmp_path / "a.tar", [("x", {"txt": b"one"})])
    with tarfile.open(tmp_path / "a.tar", "a") as archive:
        archive.addfile(tarfile.TarInfo("folder/README"))
    with pytest.warns(UserWarning, match=r'a\.tar: 1 file without a suffix, or links.*"folder/README"'):
        assert read_files(tmp_path / "a.tar").row_counts == [1]


def test_damaged_tars_raise(tmp_path):
    path = tmp_path / "a.tar"
    write_tar(path, [("x", {"txt": b"\xff\xfe"}), ("y", {"bin": bytes(5_000)})])
    with pytest.raises(ColumnError, match=r'a\.tar: a member "\.txt" is not text in UTF-8'):
        read_files(path).read(0, ["txt"])
    data = bytearray(path.read_bytes())
    start = data.index(b"y.bin")
    path.write_bytes(data[:4_000])
    with pytest.raises((ColumnError, ConfigError), match=r"a\.tar"):
        read_files(path).read(0, ["bin"])
    data[start] = 0  # a header whose checksum is wrong: Python's reader stops there without an error
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"a\.tar: cannot be read as a tar: damaged at byte"):
        read_files(path)
    path.write_bytes(b"no tar at all" * 100)
    with pytest.raises((ColumnError, ConfigError), match=r"a\.tar"):
        read_files(path)
