from __future__ import annotations

import json

import dask
import pytest

from daskprep.dataset import Damage, open_dataset
from daskprep.errors import ConfigError, CorruptDatasetError, FormatVersionError, IncompleteDatasetError
from daskprep.storage import Manifest
from daskprep.storage.manifest import MANIFEST

VERSION = "3f2a9c1b"
TABLE = "train/table/part-00001.parquet"
CHUNK = "train/arrays.zarr/vector/c.3.0"
ARRAY = "train/arrays.zarr/vector/zarr.json"


def remove(file):
    file.unlink()


def cut(file):
    file.write_bytes(file.read_bytes()[:-1])


def lengthen(file):
    file.write_bytes(file.read_bytes() + b"\0")


def empty(file):
    file.write_bytes(b"")


def flip(file, place=0.1):
    data = bytearray(file.read_bytes())
    data[int(len(data) * place)] ^= 1
    file.write_bytes(data)


DAMAGES = [remove, cut, lengthen, empty, flip]


def read_all(dataset):
    train = dataset["train"]
    _ = train.read(["row_id", *train.columns]), dataset.learned
    return train.arrays


def test_intact_dataset_has_no_damage(dataset):
    assert dataset.damaged() == []
    dataset.verify()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [TABLE, CHUNK, ARRAY, "metadata.json"])
def test_damaged_file_is_detected_and_named(path, dataset, damage, name):
    damage(path / VERSION / name)
    assert [one.file for one in dataset.damaged()] == [f"{VERSION}/{name}"]
    with pytest.raises(CorruptDatasetError, match=rf"1 damaged file: {VERSION}/{name} .*overwrite=True"):
        dataset.verify()
    with pytest.raises(CorruptDatasetError, match=rf"{VERSION}/{name}.*verify\(\).*overwrite=True"):
        read_all(open_dataset(path))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [TABLE, CHUNK])
def test_lazy_arrays_detect_damage(path, dataset, damage, name):
    lazy = dataset["train"].to_dask()
    damage(path / VERSION / name)
    with pytest.raises(CorruptDatasetError, match=name):
        dask.compute(lazy)


@pytest.mark.parametrize("damage", DAMAGES)
def test_opening_detects_damaged_metadata(path, damage):
    damage(path / VERSION / "metadata.json")
    with pytest.raises(CorruptDatasetError, match=r"metadata\.json"):
        open_dataset(path)


def test_flipped_bytes_of_table_raise_or_do_not_affect_values(path, dataset, encoded):
    file = path / VERSION / TABLE
    whole, unnoticed = file.read_bytes(), 0
    places = range(0, len(whole), 7)
    for place in places:
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            found = dataset["train"].read(["price", "city", "sold"])
        except CorruptDatasetError:
            continue
        # Some bytes, such as those of statistics, do not affect values.
        assert list(found) == ["price", "city", "sold"]
        assert all((array == encoded[name][:70]).all() for name, array in found.items())
        unnoticed += 1
    assert 0 < unnoticed < len(places)


def test_missing_chunk_is_not_read_as_zeros(path, dataset):
    remove(path / VERSION / CHUNK)
    with pytest.raises(CorruptDatasetError, match=rf"{CHUNK} is missing"):
        _ = dataset["train"].arrays


def test_extra_files_are_damage_but_other_versions_are_not(path, dataset):
    (path / VERSION / "train" / "arrays.zarr" / "vector" / "c.99.0").write_bytes(b"x")
    (path / "deadbeef").mkdir()
    (path / "deadbeef" / "old").write_bytes(b"x")
    name = f"{VERSION}/train/arrays.zarr/vector/c.99.0"
    assert dataset.damaged() == [Damage(name, "is not part of the dataset")]


def test_swapped_chunks_are_detected(path, dataset):
    one, other = path / VERSION / CHUNK, path / VERSION / CHUNK.replace("c.3", "c.4")
    first, second = one.read_bytes(), other.read_bytes()
    assert len(first) == len(second)
    one.write_bytes(second)
    other.write_bytes(first)
    assert len(dataset.damaged()) == 2
    with pytest.raises(CorruptDatasetError, match=r"vector/c.3.0 was altered"):
        dataset["train"].read("vector")


def test_damage_error_counts_files_and_names_a_few(path, dataset):
    for name in dataset.manifest.files:
        if name.startswith("train/arrays.zarr/") and "/c." in name:
            remove(path / VERSION / name)
    with pytest.raises(CorruptDatasetError, match=r"45 damaged files: .* is missing; and 40 more\. damaged\(\)"):
        dataset.verify()


def test_missing_folder_is_damaged(path, dataset):
    path.rename(path.with_name("moved.dp"))
    damage = dataset.damaged()
    assert damage[0] == Damage("manifest.json", "is missing")
    assert len(damage) == 1 + len(dataset.manifest.files)
    open_dataset(path.with_name("moved.dp")).verify()


@pytest.mark.parametrize("place", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_flipped_byte_of_manifest_is_detected(path, dataset, place):
    flip(path / MANIFEST, place)
    with pytest.raises(CorruptDatasetError, match=r"manifest\.json"):
        open_dataset(path)
    assert [one.file for one in dataset.damaged()] == [MANIFEST]


def test_replaced_manifest_is_damage(write, path, dataset):
    write(path, version="ffffffff")
    assert dataset.damaged() == [Damage(MANIFEST, "was replaced since the dataset was opened: open it again")]


def test_newer_format_raises(path):
    body = json.loads((path / MANIFEST).read_bytes())
    body["manifest"]["format"] = 99
    (path / MANIFEST).write_text(json.dumps(body))
    with pytest.raises(FormatVersionError, match="99.*upgrade"):
        open_dataset(path)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "train/../../secret", "."])
def test_manifest_with_files_outside_folder_raises(path, dataset, name):
    old = dataset.manifest
    entry = old.files["metadata.json"]
    manifest = Manifest(old.version, old.layout, {**old.files, name: entry}, old.source, old.settings)
    (path / MANIFEST).write_bytes(manifest.to_bytes())
    with pytest.raises(CorruptDatasetError, match="leads out of the folder"):
        open_dataset(path)


@pytest.mark.parametrize("name", ["metadata.json", TABLE, CHUNK])
def test_manifest_with_missing_entries_raises(path, dataset, name):
    old = dataset.manifest
    files = {key: entry for key, entry in old.files.items() if key != name}
    (path / MANIFEST).write_bytes(Manifest(old.version, old.layout, files, old.source, old.settings).to_bytes())
    with pytest.raises(CorruptDatasetError, match=rf"{name} is needed and the manifest does not list it"):
        read_all(open_dataset(path))


def test_opening_missing_dataset_raises(tmp_path):
    for path in (tmp_path / "gone.dp", tmp_path, "memory://nowhere/at/all"):
        with pytest.raises(ConfigError, match="no dataset at"):
            open_dataset(path)
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"x")
    with pytest.raises(ConfigError, match="no dataset at"):
        open_dataset(tmp_path)
    with pytest.raises(ConfigError, match="is a file, not a dataset"):
        open_dataset(tmp_path / "notes.txt")


@pytest.mark.parametrize("name", ["metadata.json", "receipts/train-00000.json", "scratch/0.arrow"])
def test_opening_unfinished_dataset_raises(tmp_path, name):
    file = tmp_path / VERSION / name
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    with pytest.raises(IncompleteDatasetError, match=rf"never finished.*only {VERSION}.*run the write again"):
        open_dataset(tmp_path)
