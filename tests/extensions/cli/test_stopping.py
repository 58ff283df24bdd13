"""Commands that are interrupted or run out of disk space."""

from __future__ import annotations

import functools
import gzip
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# Sends Ctrl-C to itself in the middle of a command, at an audit event of Python.
INTERRUPTED = """
import os, signal, sys
from daskprep.extensions.cli import main

MOMENTS = {
    "reading": lambda event, about: event == "open" and str(about[0]).endswith(".parquet"),
    "writing": lambda event, about: event == "open" and str(about[0]).endswith(".tmp") and about[2] & os.O_CREAT,
    "learning": lambda event, about: event == "tempfile.mkdtemp",
    "printing": lambda event, about: event == "import" and about[0] == "yaml",
}

def interrupt(event, about):
    global moment
    if moment and MOMENTS[moment](event, about):
        moment = ""
        os.kill(os.getpid(), signal.SIGINT)

moment, *arguments = sys.argv[1:]
sys.addaudithook(interrupt)
sys.exit(main(arguments))
"""
INSPECT, DECODE = ["inspect", "rows.dp", "--html", "new.html"], ["decode", "rows.dp", "-o", "new.json"]
REPAIR, CACHE, DEMO = ["repair", "damaged.dp", "rows.csv"], ["cache", "photos.dp", "--trusted"], ["demo", "new"]
WRITE = ["preprocess", "rows.yaml", "rows.csv", "-o", "new.dp"]


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Let child processes receive Ctrl-C, which tests in the background ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def many_files(tmp_path_factory, rows) -> Path:
    """Return a folder of files that are a partition each, so that a write has many steps."""
    folder = tmp_path_factory.mktemp("many")
    text = rows(40).to_csv(index=False)
    for number in range(150):
        (folder / f"{number:03}.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    return folder


def interrupt(path: Path, process: subprocess.Popen[str]) -> None:
    """Send Ctrl-C to all processes, as a terminal does, after rows of a few partitions are stored."""
    while process.poll() is None and len(list(path.glob("*/scratch/*/parsed-*"))) < 3:
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGINT)


@pytest.mark.parametrize("where", [[], pytest.param(["--workers", 2], marks=[pytest.mark.cluster, pytest.mark.slow])])
def test_interrupted_write_is_resumed_by_the_same_command(call, run_process, files, many_files, tree, tmp_path, where):
    command, path = ["preprocess", files / "rows.yaml", many_files], tmp_path / "a.dp"
    assert call(*command, "-o", tmp_path / "undisturbed.dp").status == 0
    ended = run_process(
        *command, "-o", path, *where, meanwhile=functools.partial(interrupt, path), start_new_session=True
    )
    assert ended.status == 130, ended.error
    ended.check_line("run the same command again")
    assert not [name for name in tree(path) if name == "manifest.json" or name.endswith(".tmp")]
    call("inspect", path).check_line("never finished")
    assert call(*command, "-o", path).status == 0
    assert tree(path) == tree(tmp_path / "undisturbed.dp")


@pytest.mark.slow
def test_write_on_a_full_disk_fails_and_is_resumed(run_process, call, files, tree, tmp_path):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, 3_000))

    command = ["preprocess", files / "rows.yaml", files / "rows.csv", "-o", tmp_path / "a.dp", "-q"]
    ended = run_process(*command, preexec_fn=limit)
    assert ended.status == 1
    ended.check_line("error: ", "no room", "run it again to resume")
    assert call(*command) == (0, "", "")
    assert tree(tmp_path / "a.dp") == tree(files / "rows.dp")


@pytest.fixture
def folder(files, photos, tmp_path) -> Path:
    """Return a folder with rows.csv, rows.yaml, rows.dp, damaged.dp, which lacks a file, and photos.dp."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    shutil.copytree(files / "rows.dp", tmp_path / "damaged.dp")
    next((tmp_path / "damaged.dp").glob("*/train/table/*.parquet")).unlink()
    return tmp_path


def check_clean(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """Check that nothing has changed, and that all new files are complete files within datasets."""
    new = after.keys() - before.keys()
    assert before.items() <= after.items()
    assert not [name for name in new if ".dp/" not in name or name.endswith(("manifest.json", ".tmp"))]


@pytest.mark.parametrize(
    ("moment", "command"),
    [
        ("printing", ["infer", "rows.csv"]),
        ("writing", WRITE),
        pytest.param("learning", ["preprocess", "auto", "rows.csv", "--skip-save"], marks=pytest.mark.slow),
        pytest.param("reading", ["verify", "rows.dp"], marks=pytest.mark.slow),
        *(
            pytest.param("writing", command, marks=pytest.mark.slow)
            for command in (INSPECT, DECODE, REPAIR, CACHE, DEMO)
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_interrupted_commands_leave_no_partial_files(run_process, call, folder, tree, monkeypatch, moment, command):
    before = tree(folder)
    ended = run_process(moment, *command, code=INTERRUPTED, cwd=folder)
    assert ended.status == 130, ended.error
    kept = {"preprocess": "-o" in command, "repair": True, "cache": True}.get(command[0], False)
    ended.check_line("interrupted: ", "run the same command again" if kept else "stopped by Ctrl-C")
    check_clean(before, tree(folder))
    monkeypatch.chdir(folder)
    assert call(*command).status == 0


@pytest.mark.parametrize(
    "command",
    [DECODE, *(pytest.param(command, marks=pytest.mark.slow) for command in (INSPECT, REPAIR, CACHE, DEMO))],
    ids=lambda command: command[0],
)
def test_commands_on_a_full_disk_leave_no_partial_files(run_process, call, folder, tree, monkeypatch, command):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))

    before = tree(folder)
    ended = run_process(*command, preexec_fn=limit, cwd=folder)
    assert ended.status == 1
    ended.check_line("error: ", "no room")
    check_clean(before, tree(folder))
    monkeypatch.chdir(folder)
    assert call(*command).status == 0


@pytest.mark.slow
def test_closed_pipe_is_not_an_error(run_process, files):
    ended = run_process("decode", files / "rows.dp", meanwhile=lambda process: process.stdout.close())
    assert "Traceback" not in ended.error
