"""Versions are named by what they hold, and nothing but what a write makes is ever removed."""

from __future__ import annotations

import dataclasses

import pytest

import daskprep as dp
from daskprep.errors import ConfigError, CorruptDatasetError, DatasetExistsError, FormatVersionError
from daskprep.state import METADATA
from daskprep.storage import FileEntry, Folder, Layout, Manifest, Output, read_manifest
from daskprep.storage.layout import CACHE_FOLDER
from daskprep.storage.manifest import MANIFEST
from daskprep.storage.tables import REJECTS
from daskprep.writing.versions import (
    RECEIPTS,
    SCRATCH,
    check_committed,
    choose_version,
    clean,
    commit,
    finish_cleaning,
    short_digest,
)

DIGEST = "0123456789abcdef"
OTHER = "fedcba9876543210"
LAYOUT = Layout.choose([Output("x", "uint16", (3,))], {"train": 2}, block_rows=4, compression="lz4")


@pytest.fixture
def root(tmp_path):
    return Folder.open(tmp_path / "data.dp")


def manifest(version=DIGEST):
    return Manifest(version, LAYOUT, {METADATA: FileEntry(4, 1), "train/part": FileEntry(3, 2)}, None, {})


def write_version(root, version=DIGEST):
    (root / version).write(METADATA, b"meta")
    (root / version).write("train/part", b"abc")
    return manifest(version)


def committed(root, version=DIGEST):
    made = write_version(root, version)
    commit(root, made)
    return made


def files(root):
    return sorted(root.sizes())


def choose(root, digest=DIGEST, *, repeatable=True, overwrite=False):
    options = {"repeatable": repeatable, "overwrite": overwrite, "differences": lambda committed: committed.version}
    return choose_version(root, digest, **options)


def test_digests_are_the_ones_that_were_released():
    """A promise: datasets that exist would be written again."""
    assert short_digest({"b": [1, "é"], "a": None}) == short_digest({"a": None, "b": [1, "é"]}) == "a44633ba036df252"
    with pytest.raises(ValueError, match="JSON"):
        short_digest({"a": float("nan")})


def test_a_version_is_named_by_its_digest(root):
    assert choose(root) == (DIGEST, None)
    done = committed(root)
    assert choose(root) == (DIGEST, done)
    assert choose(root, OTHER, overwrite=True) == (OTHER, None)


@pytest.mark.parametrize("options", [{"digest": OTHER}, {"repeatable": False}])
def test_a_finished_dataset_of_other_rows_is_kept(root, options):
    committed(root)
    with pytest.raises(DatasetExistsError, match=f"a dataset that differs: {DIGEST}. Write .* with overwrite=True"):
        choose(root, **options)


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_version_that_is_written_again_has_a_number(root, repeatable):
    options = {"overwrite": True, "repeatable": repeatable}
    committed(root)
    assert choose(root, **options) == (f"{DIGEST}-1", None)
    numbered = committed(root, f"{DIGEST}-9")
    assert choose(root, **options) == (f"{DIGEST}-10", None)
    assert choose(root) == (f"{DIGEST}-9", numbered)


def test_a_damaged_manifest_is_overwritten_if_told_so_alone(root):
    committed(root)
    for text, kind in (
        (b"{}", CorruptDatasetError),
        (manifest().to_bytes().replace(b':1,"l', b':9,"l'), FormatVersionError),
    ):
        root.write(MANIFEST, text)
        with pytest.raises(kind, match="overwrite=True writes the dataset again"):
            choose(root)
        assert choose(root, overwrite=True) == (DIGEST, None)


@pytest.mark.parametrize("version", [DIGEST, f"{DIGEST}-12"])
def test_what_a_killed_write_leaves_is_written_over(root, version):
    for name in (
        METADATA,
        f"{REJECTS}.0a.tmp",
        f"{METADATA}.0a.tmp",
        "train/x",
        f"{RECEIPTS}/1",
        f"{SCRATCH}/1",
        f"{CACHE_FOLDER}/1",
    ):
        (root / version).write(name, b"x")
    (root / version).write("vocab/city.parquet", b"x")
    (root / version).write("probe-1", b"x")
    root.write(f"{MANIFEST}.0a.tmp", b"x")
    assert choose(root) == (DIGEST, None)


@pytest.mark.parametrize(
    "name", ["notes.txt", DIGEST[:-1] + "/x", f"{DIGEST}/notes.txt", f"{DIGEST}-/x", f"x{DIGEST}/x", f"{MANIFEST}.tmp"]
)
def test_a_folder_with_other_files_is_refused(root, name):
    (root / DIGEST).write(METADATA, b"x")
    root.write(name, b"x")
    with pytest.raises(
        ConfigError, match=f'is not a dataset and has other files, such as "{name.partition("/")[0]}": use'
    ):
        choose(root)


def test_the_first_three_other_files_are_named(root):
    for name in "dbca":
        root.write(name, b"x")
    with pytest.raises(ConfigError, match='such as "a", "b", "c": use'):
        choose(root)


def test_a_commit_names_the_dataset_and_removes_the_others(root):
    committed(root, OTHER)
    made = write_version(root)
    for name in (f"{RECEIPTS}/1", f"{SCRATCH}/1", "train/of a part that was written twice", f"{CACHE_FOLDER}/pixels"):
        (root / DIGEST).write(name, b"x")
    root.write(f"{MANIFEST}.0a.tmp", b"x")
    root.write("notes.txt", b"x")
    root.write(f"{OTHER}-1/notes.txt", b"x")
    commit(root, made)
    assert read_manifest(root) == made
    assert set((root / DIGEST).children()) == {METADATA, "train", CACHE_FOLDER}
    kept = [f"{DIGEST}/{CACHE_FOLDER}/pixels", f"{DIGEST}/{METADATA}", f"{DIGEST}/train/part"]
    assert files(root) == sorted([*kept, MANIFEST, "notes.txt", f"{OTHER}-1/notes.txt"])


@pytest.mark.parametrize("change", ["removed", "altered"])
def test_nothing_is_committed_if_files_are_gone(root, change):
    old, made = committed(root, OTHER), write_version(root)
    if change == "removed":
        (root / DIGEST).remove("train/part")
    else:
        (root / DIGEST).write("train/part", b"abcd")
    with pytest.raises(CorruptDatasetError, match="1 files that were just written are gone, such as train/part: did"):
        commit(root, made)
    assert read_manifest(root) == old


def test_another_commit_meanwhile_is_noticed(root):
    made = committed(root)
    check_committed(root, made)
    with pytest.raises(ConfigError, match="was written again meanwhile"):
        check_committed(root, dataclasses.replace(made, settings={"seed": 1}))
    root.remove(MANIFEST)
    with pytest.raises(ConfigError, match="was written again meanwhile"):
        check_committed(root, made)


@pytest.mark.parametrize("left", [RECEIPTS, SCRATCH])
def test_tidying_finishes_a_commit_that_was_killed(root, left):
    made = committed(root)
    whole = files(root)
    for name in (f"{DIGEST}/{left}/1", f"{DIGEST}/train/other", f"{OTHER}/{METADATA}"):
        root.write(name, b"x")
    finish_cleaning(root, made)
    assert files(root) == whole


def test_receipts_stay_until_all_else_is_removed(root, monkeypatch):
    made = committed(root)
    for name in (f"{RECEIPTS}/1", f"{SCRATCH}/1", "train/other"):
        root.write(f"{DIGEST}/{name}", b"x")
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            finish_cleaning(root, made)
    assert f"{DIGEST}/{RECEIPTS}/1" in files(root)
    removed = []
    monkeypatch.setattr(Folder, "remove", lambda folder, *names: removed.extend(names))
    finish_cleaning(root, made)
    assert removed == ["train/other"]
    assert not (root / DIGEST / RECEIPTS).children()


def killed(folder, *names):
    raise KeyboardInterrupt


def test_tidying_a_finished_commit_removes_other_versions_alone(root):
    made = committed(root)
    root.write(f"{DIGEST}/train/other", b"x")
    root.write(f"{OTHER}/{METADATA}", b"x")
    whole = [name for name in files(root) if not name.startswith(OTHER)]
    finish_cleaning(root, made)
    assert files(root) == whole
    clean(root, made)
    assert f"{DIGEST}/train/other" not in files(root)


@pytest.mark.parametrize("inside", ["", "data.dp"])
def test_a_file_is_no_folder_of_a_dataset(tmp_path, inside):
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="cannot be a dataset's folder: it is a file; use another path"):
        dp.Preprocessor({"a": "number"}).fit_write({"a": [1, 2, 3]}, path / inside)
    assert path.read_text() == "mine"
