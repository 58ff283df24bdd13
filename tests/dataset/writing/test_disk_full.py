from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daskprep.dataset import open_dataset
from daskprep.errors import IncompleteDatasetError

WRITER = runpy.run_path(str(Path(__file__).with_name("writer_process.py")))
content = WRITER["content"]
MESSAGE = r"{}/\S+: no room for this file of [\d,]+ bytes or more"


@pytest.fixture(scope="module")
def undisturbed_writes(tmp_path_factory) -> Iterator[Any]:
    with WRITER["undisturbed_writes"](tmp_path_factory.mktemp("undisturbed")) as write:
        yield write


@pytest.fixture
def undisturbed(request, undisturbed_writes) -> Any:
    return undisturbed_writes(getattr(request, "param", "ordered"))


def receipted(path: Path) -> dict[Path, tuple[int, int]]:
    """Return the files of finished parts with their inode and modification time."""
    found = {}
    for receipt in path.glob("*/receipts/*.json"):
        for name in json.loads(receipt.read_bytes())["receipt"]["files"]:
            status = (receipt.parents[1] / name).stat()
            found[receipt.parents[1] / name] = (status.st_ino, status.st_mtime_ns)
    return found


def check_full(result: Any, path: Path, seen: Path, before: dict[str, bytes | None]) -> dict[Path, tuple[int, int]]:
    """Check the error, that no partial files remain, and that the old dataset is unchanged; return finished files."""
    assert (result.returncode, result.error) == (1, "StorageFullError"), result.message
    assert re.match(MESSAGE.format(re.escape(str(path))), result.message), result.message
    assert re.search(r"ulimit -f|No space left on device\); [\d,]+ bytes are free there", result.message)
    after = content(seen)
    assert not [name for name in after if name.endswith(".tmp")]
    assert before.items() <= after.items()
    if before:
        open_dataset(seen).verify()
    return receipted(seen)


def check_rerun(writer: Any, path: Path, undisturbed: Any, finished: dict[Path, tuple[int, int]]) -> None:
    result = writer.write(path, undisturbed.source)
    assert result.error is None, result.message
    assert content(path) == undisturbed.files
    assert {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in finished} == finished


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
@pytest.mark.parametrize("limit", [1_000, 50_000])
def test_file_size_limit_stops_write_and_rerun_completes(undisturbed, tmp_path, limit, scheduler):
    path = tmp_path / "a.dp"
    undisturbed.prepare(path, "older")
    result = undisturbed.writer.write(path, undisturbed.source, limit_at=0, limit_bytes=limit, scheduler=scheduler)
    assert check_full(result, path, path, content(undisturbed.older)) == {}
    check_rerun(undisturbed.writer, path, undisturbed, {})


# The name of a file, and how many of them are written before the disk is full.
FILES = [
    ("scratch/.*parsed", 2),
    ("scratch/.*placed", 0),
    ("scratch/.*checkpoint", 0),
    ("vocab/", 0),
    ("metadata.json", 0),
    ("rejects.parquet", 0),
    ("zarr.json", 3),
    (r"arrays\.zarr/\w+/c\.", 20),
    ("table/", 5),
    ("receipts/", 0),
    ("receipts/", 6),
    ("/manifest.json", 0),
]


@pytest.mark.parametrize(
    ("undisturbed", "name", "before"),
    [
        pytest.param("shuffled", "scratch/.*outputs", 1, marks=pytest.mark.slow),
        *(("ordered", *file) for file in FILES),
    ],
    indirect=["undisturbed"],
)
def test_full_disk_at_any_file_keeps_finished_parts(undisturbed, tmp_path, name, before):
    path, steps = tmp_path / "a.dp", undisturbed.steps["older"]
    written = [number for number, step in enumerate(steps) if step.startswith("write") and re.search(name, step)]
    undisturbed.prepare(path, "older")
    result = undisturbed.writer.write(path, undisturbed.source, limit_at=written[before])
    assert re.search(name, result.message)
    finished = check_full(result, path, path, content(undisturbed.older))
    receipts = [step for step in steps[: written[before]] if step.startswith("replace") and "/receipts/" in step]
    assert len(finished) >= len(receipts)
    assert bool(finished) == bool(receipts)
    check_rerun(undisturbed.writer, path, undisturbed, finished)


def test_first_write_on_full_disk_is_unfinished(undisturbed, tmp_path):
    path = tmp_path / "a.dp"
    result = undisturbed.writer.write(path, undisturbed.source, limit_at=600)
    finished = check_full(result, path, path, {})
    with pytest.raises(IncompleteDatasetError, match="run the write again"):
        open_dataset(path)
    check_rerun(undisturbed.writer, path, undisturbed, finished)


def in_namespace(*command: str) -> list[str]:
    return ["unshare", "--user", "--map-root-user", "--mount", *command]


def cannot_mount(folder: Path) -> str:
    """Return why a file system in memory cannot be mounted here, or nothing if it can."""
    if shutil.which("unshare") is None:
        return "there is no unshare"
    command = in_namespace("mount", "-t", "tmpfs", "tmpfs", str(folder))
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory) -> Iterator[tuple[Any, Path, Path]]:
    """Yield a writer, its private disk of 4 MB and 700 files, and the path of the disk in this process."""
    folder = tmp_path_factory.mktemp("disk")
    if reason := cannot_mount(folder):
        pytest.skip(f"no file system can be mounted: {reason}")
    mount = f"mount -t tmpfs -o size=4m,nr_inodes=700 tmpfs {folder}"
    with WRITER["writer_process"](in_namespace("sh", "-c", f'{mount} && exec "$0" "$@"')) as writer:
        assert writer.write(folder / "probe", [], limit_at=0).returncode == 1
        seen = Path(f"/proc/{writer.process.pid}/root{folder}")
        if not os.path.ismount(seen):
            pytest.skip("the mount of another process cannot be seen")
        yield writer, folder, seen


@pytest.fixture
def small_folder(small_disk, undisturbed) -> Iterator[tuple[Any, Path, Path]]:
    """Yield a writer, the path of the older dataset on its disk, and its path in this process."""
    writer, folder, seen = small_disk
    undisturbed.prepare(seen / "a.dp", "older")
    yield writer, folder / "a.dp", seen / "a.dp"
    for entry in seen.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("free_bytes", [40_000, 300_000, 600_000])
def test_full_disk_stops_write_and_rerun_completes(small_folder, undisturbed, free_bytes):
    writer, path, seen = small_folder
    room, ballast = os.statvfs(seen), seen.with_name("ballast")
    ballast.write_bytes(bytes(room.f_bavail * room.f_frsize - free_bytes))
    finished = check_full(writer.write(path, undisturbed.source), path, seen, content(undisturbed.older))
    ballast.unlink()
    assert writer.write(path, undisturbed.source).error is None
    assert content(seen) == undisturbed.files
    assert {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in finished} == finished


@pytest.mark.slow
@pytest.mark.parametrize("left", [1, 100])
def test_disk_without_inodes_stops_write(small_folder, undisturbed, left):
    writer, path, seen = small_folder
    many = seen.with_name("many")
    many.mkdir()
    for number in range(os.statvfs(seen).f_ffree - left):
        (many / str(number)).touch()
    check_full(writer.write(path, undisturbed.source), path, seen, content(undisturbed.older))
    shutil.rmtree(many)
    assert writer.write(path, undisturbed.source).error is None
    assert content(seen) == undisturbed.files
