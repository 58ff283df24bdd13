"""Rows, a configuration and the dataset of both, and commands run in this process or in a child process."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import daskprep as dp
from daskprep.extensions.cli import main

ROWS = 300

CONFIG = """
input_features:
  - {name: price, type: number, preprocessing: {normalization: zscore, missing_value_strategy: fill_with_mean}}
  - {name: city, type: category}
  - {name: tags, type: set}
  - {name: demand, type: timeseries}
  - {name: listed, type: date}
output_features:
  - {name: sold, type: binary}
"""


class Ended(NamedTuple):
    """Exit status and output of a command."""

    status: int
    out: str
    error: str

    def check_line(self, *parts: str) -> None:
        """Check that standard error is one line that contains some texts."""
        assert re.fullmatch(r"(error|warning|interrupted): [^\n]+\n", self.error), self.error
        for part in parts:
            assert part in self.error


def make_rows(rows: int = ROWS) -> pd.DataFrame:
    """Return rows of several types, with missing cells and with special characters of HTML and files."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "price": pd.Series(rng.integers(1, 999, rows) / 10).mask(rng.random(rows) < 0.1),
            "city": rng.choice(np.array(["Rome", "Oslo", "<b>&", "Lima\tCity"]), rows),
            "tags": [" ".join(rng.choice(list("abcd"), 3)) for _ in range(rows)],
            "demand": [" ".join(map(str, row)) for row in rng.integers(0, 99, (rows, 4)) / 10],
            "listed": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 9999, rows), "h"),
            "sold": rng.choice(["yes", "no"], rows),
        }
    )


@pytest.fixture(scope="session")
def config() -> str:
    return CONFIG


@pytest.fixture(scope="session")
def rows() -> Callable[[int], pd.DataFrame]:
    """Return the first rows of the file, which has 300."""
    return make_rows


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> Path:
    """Return a folder with rows.csv, rows.yaml and rows.dp."""
    folder = tmp_path_factory.mktemp("files")
    make_rows().to_csv(folder / "rows.csv", index=False)
    (folder / "rows.yaml").write_text(CONFIG)
    assert main(["preprocess", f"{folder}/rows.yaml", f"{folder}/rows.csv", "-o", f"{folder}/rows.dp", "-q"]) == 0
    return folder


@pytest.fixture
def photos(tmp_path) -> Path:
    """Return the dataset of a few images that are decoded in the loader."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(6):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")
    frame = pd.DataFrame({"photo": [f"{number}.png" for number in range(6)], "sold": [0, 1] * 3})
    photo = dp.Image(mode="lazy_cached", height=8, width=8, num_channels=3, base_dir=str(folder))
    dp.Preprocessor({"photo": photo, "sold": "binary"}).fit_write(frame, tmp_path / "photos.dp")
    return tmp_path / "photos.dp"


@pytest.fixture
def call(capsys) -> Callable[..., Ended]:
    """Run a command in this process, with text as standard input, and streams such as "stderr" as terminals."""

    def run(*arguments: object, stdin: str | None = None, terminal: str = "") -> Ended:
        with pytest.MonkeyPatch.context() as patch:
            if stdin is not None:
                patch.setattr(sys, "stdin", io.StringIO(stdin))
            if terminal:
                patch.setattr(getattr(sys, terminal), "isatty", lambda: True)
            status = main(list(map(str, arguments)))
        captured = capsys.readouterr()
        return Ended(status, captured.out, captured.err)

    return run


@pytest.fixture
def run_process() -> Callable[..., Ended]:
    """Run a command, or some code, in a child process; `meanwhile` is called with the process."""

    def run(
        *arguments: object,
        code: str | None = None,
        env: Mapping[str, str] | None = None,
        meanwhile: Callable[[subprocess.Popen[str]], None] | None = None,
        **options: Any,
    ) -> Ended:
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
        command = [sys.executable, *(["-m", "daskprep"] if code is None else ["-c", code]), *map(str, arguments)]
        piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, env=environment, **piped, **options)
        if meanwhile is not None:
            meanwhile(process)
        out, error = process.communicate(timeout=280)
        return Ended(process.returncode, out, error)

    return run


@pytest.fixture
def tree() -> Callable[[Path], dict[str, bytes]]:
    """Read every file below a folder."""

    def read(folder: Path) -> dict[str, bytes]:
        return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}

    return read


@pytest.fixture(autouse=True)
def allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the environment that clusters change, since the memory of later processes depends on it."""
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
