"""A file with flipped bytes yields values, or an error that names it: the process never crashes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("flipping_process.py")
KINDS = ["feather", "stream", "parquet", "wav", "chunk"]


def outcomes(kind: str, first: int, last: int, folder: Path) -> list[str]:
    """Read files made with these seeds, and return each outcome."""
    command = [sys.executable, PROGRAM, kind, str(first), str(last), folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"died of seed {done.stdout.splitlines()[-1]}: {done.stderr[-500:]}"
    lines = done.stdout.splitlines()
    assert len(lines) == last - first
    return lines


def check(lines: list[str]) -> None:
    found = [line.partition(" ")[2] for line in lines]
    assert [line for line, one in zip(lines, found, strict=True) if one not in {"named", "values"}] == []
    # Bytes without effect, and bytes with an effect.
    assert {"named", "values"} == set(found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bytes_do_not_crash_the_process(tmp_path: Path, kind: str) -> None:
    check(outcomes(kind, 0, 40, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), [("feather", 4210), ("stream", 3610)])
def test_unsupported_types_raise(tmp_path: Path, kind: str, seed: int) -> None:
    # A list of -1946157053 items, and a struct with two fields of one name.
    assert outcomes(kind, seed, seed + 1, tmp_path) == [f"{seed} named"]


@pytest.mark.slow
def test_footer_with_a_column_missing_in_the_schema_raises(tmp_path: Path) -> None:
    lines = outcomes("parquet", 162, 163, tmp_path)
    assert lines == ["162 named"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_many_flipped_bytes_do_not_crash_the_process(tmp_path: Path, kind: str) -> None:
    check(outcomes(kind, 40, 3000, tmp_path))
