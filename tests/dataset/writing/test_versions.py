"""Versions are named by a digest, and only files of writes are removed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.dataset.writing.job import WriteJob
from daskprep.dataset.writing.versions import (
    RECEIPTS,
    SCRATCH,
    check_committed,
    choose_version,
    clean,
    commit,
    finish_cleaning,
    short_digest,
)
from daskprep.errors import ConfigError, CorruptDatasetError, DatasetExistsError, FormatVersionError
from daskprep.passes.state import METADATA
from daskprep.storage import FileEntry, Folder, Layout, Manifest, Output, read_manifest
from daskprep.storage.layout import CACHE_FOLDER
from daskprep.storage.manifest import MANIFEST
from daskprep.storage.tables import REJECTS

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


def test_digests_match_released_version():
    """Other digests would rewrite existing datasets."""
    assert short_digest({"b": [1, "é"], "a": None}) == short_digest({"a": None, "b": [1, "é"]}) == "a44633ba036df252"
    with pytest.raises(ValueError, match="JSON"):
        short_digest({"a": float("nan")})


def test_version_is_named_by_digest(root):
    assert choose(root) == (DIGEST, None)
    done = committed(root)
    assert choose(root) == (DIGEST, done)
    assert choose(root, OTHER, overwrite=True) == (OTHER, None)


@pytest.mark.parametrize("options", [{"digest": OTHER}, {"repeatable": False}])
def test_finished_dataset_of_other_rows_raises(root, options):
    committed(root)
    with pytest.raises(DatasetExistsError, match=f"a dataset that differs: {DIGEST}. Write .* with overwrite=True"):
        choose(root, **options)


@pytest.mark.parametrize("repeatable", [True, False])
def test_overwritten_version_has_number(root, repeatable):
    options = {"overwrite": True, "repeatable": repeatable}
    committed(root)
    assert choose(root, **options) == (f"{DIGEST}-1", None)
    numbered = committed(root, f"{DIGEST}-9")
    assert choose(root, **options) == (f"{DIGEST}-10", None)
    assert choose(root) == (f"{DIGEST}-9", numbered)


def test_damaged_manifest_needs_overwrite(root):
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
def test_leftovers_of_killed_write_are_reused(root, version):
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
def test_folder_with_other_files_raises(root, name):
    (root / DIGEST).write(METADATA, b"x")
    root.write(name, b"x")
    with pytest.raises(
        ConfigError, match=f'is not a dataset and has other files, such as "{name.partition("/")[0]}": use'
    ):
        choose(root)


def test_error_names_first_three_other_files(root):
    for name in "dbca":
        root.write(name, b"x")
    with pytest.raises(ConfigError, match='such as "a", "b", "c": use'):
        choose(root)


def test_commit_writes_manifest_and_removes_other_versions(root):
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
def test_commit_raises_if_files_are_missing(root, change):
    old, made = committed(root, OTHER), write_version(root)
    if change == "removed":
        (root / DIGEST).remove("train/part")
    else:
        (root / DIGEST).write("train/part", b"abcd")
    with pytest.raises(CorruptDatasetError, match="1 files that were just written are gone, such as train/part: did"):
        commit(root, made)
    assert read_manifest(root) == old


def test_check_committed_detects_other_commit(root):
    made = committed(root)
    check_committed(root, made)
    with pytest.raises(ConfigError, match="was written again meanwhile"):
        check_committed(root, dataclasses.replace(made, settings={"seed": 1}))
    root.remove(MANIFEST)
    with pytest.raises(ConfigError, match="was written again meanwhile"):
        check_committed(root, made)


@pytest.mark.parametrize("left", [RECEIPTS, SCRATCH])
def test_cleaning_finishes_killed_commit(root, left):
    made = committed(root)
    whole = files(root)
    for name in (f"{DIGEST}/{left}/1", f"{DIGEST}/train/other", f"{OTHER}/{METADATA}"):
        root.write(name, b"x")
    finish_cleaning(root, made)
    assert files(root) == whole


def test_receipts_are_removed_last(root, monkeypatch):
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


def test_cleaning_finished_commit_removes_only_other_versions(root):
    made = committed(root)
    root.write(f"{DIGEST}/train/other", b"x")
    root.write(f"{OTHER}/{METADATA}", b"x")
    whole = [name for name in files(root) if not name.startswith(OTHER)]
    finish_cleaning(root, made)
    assert files(root) == whole
    clean(root, made)
    assert f"{DIGEST}/train/other" not in files(root)


@pytest.mark.parametrize("inside", ["", "data.dp"])
def test_path_of_file_raises(tmp_path, inside):
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="cannot be a dataset's folder: it is a file; use another path"):
        dp.Preprocessor({"a": "number"}).fit_write({"a": [1, 2, 3]}, path / inside)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("scratch", [None, "scratch"])
def test_files_that_another_writer_removes_raise_a_clear_error(tmp_path, monkeypatch, scratch):
    """Without locks, a writer may remove the files of another."""
    rows = pd.DataFrame({"x": np.arange(40.0), "c": list("abcd") * 10})
    prep = dp.Preprocessor({"x": "number", "c": "category"}, scratch=scratch and str(tmp_path / scratch))
    run = WriteJob._write

    def write_after_removal(job, *args):
        job.scratch_root.remove_all()
        return run(job, *args)

    monkeypatch.setattr(WriteJob, "_write", write_after_removal)
    with pytest.raises(CorruptDatasetError, match=r"are gone, such as .*parsed-.*without locks.*; write again"):
        prep.fit_write(rows, tmp_path / "a.dp", progress=False)
    monkeypatch.setattr(WriteJob, "_write", run)
    assert len(prep.fit_write(rows, tmp_path / "a.dp", progress=False)["train"]) == 40
