"""Commands that are interrupted or run out of room."""

from __future__ import annotations

import functools
import gzip
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def many_files(tmp_path_factory, rows) -> Path:
    """Give a folder of files that are a partition each, so that a write has many steps."""
    folder = tmp_path_factory.mktemp("many")
    text = rows(40).to_csv(index=False)
    for number in range(150):
        (folder / f"{number:03}.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    return folder


def interrupt(path: Path, process: subprocess.Popen[str]) -> None:
    """Send Ctrl-C once rows of a few partitions are put aside, to all processes as a terminal does."""
    while process.poll() is None and len(list(path.glob("*/scratch/*/parsed-*"))) < 3:
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGINT)


@pytest.mark.parametrize("where", [[], pytest.param(["--workers", 2], marks=pytest.mark.cluster)])
def test_ctrl_c_in_a_write_leaves_what_the_same_command_goes_on_from(
    call, run_process, files, many_files, tree, tmp_path, where
):
    command, path = ["preprocess", files / "rows.yaml", many_files], tmp_path / "a.dp"
    assert call(*command, "-o", tmp_path / "undisturbed.dp").status == 0
    ended = run_process(
        *command, "-o", path, *where, meanwhile=functools.partial(interrupt, path), start_new_session=True
    )
    assert ended.status == 130, ended.error
    ended.check_line("run the same again")
    assert not [name for name in tree(path) if name == "manifest.json" or name.endswith(".tmp")]
    call("inspect", path).check_line("never finished")
    assert call(*command, "-o", path).status == 0
    assert tree(path) == tree(tmp_path / "undisturbed.dp")


def test_a_full_disk_is_one_line_and_the_write_goes_on_when_there_is_room(run_process, call, files, tree, tmp_path):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, 3_000))

    command = ["preprocess", files / "rows.yaml", files / "rows.csv", "-o", tmp_path / "a.dp", "-q"]
    ended = run_process(*command, preexec_fn=limit)
    assert ended.status == 1
    ended.check_line("error: ", "no room", "run the same again")
    assert call(*command) == (0, "", "")
    assert tree(tmp_path / "a.dp") == tree(files / "rows.dp")


def test_a_reader_that_goes_away_is_no_error(run_process, files):
    ended = run_process("decode", files / "rows.dp", meanwhile=lambda process: process.stdout.close())
    assert "Traceback" not in ended.error
