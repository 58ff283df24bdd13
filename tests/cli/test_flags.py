"""Remedies in messages are options on the command line, where there is one."""

from __future__ import annotations

import re

import pytest

from daskprep.cli import program
from daskprep.cli.console import line_of

OPTIONS = {name for command in program.commands.values() for one in command.params for name in one.opts}


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (
            "read_files(..., header=None) if it is a row, with names= for names; skip_rows=1 besides replaces names",
            "--no-header if it is a row, with --names for names; --skip-rows 1 besides replaces names",
        ),
        ("or give the right delimiter= to read_files", "or give the right --delimiter"),
        ("give the right encoding by read_files(..., encoding=)", "give the right encoding by --encoding"),
        ("use read_files(..., quote=None) if quotes mean", 'use --quote "" if quotes mean'),
        ('which columns: decimal={"price": ","}', 'which columns: --decimal price=","'),
        ("and decimal=','; give thousands=\".\" if", "and --decimal ','; give --thousands \".\" if"),
        ("smaller partitions: read_files(..., partition_bytes=...)", "smaller partitions: --partition-bytes ..."),
        ("memory='1MB' is not enough", "--memory '1MB' is not enough"),
        ("open it with trusted=True if you", "open it with --trusted if you"),
        ("or pass overwrite=True", "or pass --overwrite"),
        ("if so, list them in null_values of read_files", "if so, list them in --null-value"),
        ('use Number(null_values=["?"]) or written=', 'use Number(null_values=["?"]) or written='),
    ],
)
def test_remedies_are_options_on_the_command_line(message, line):
    assert line_of(ValueError(message)) == line
    assert set(re.findall(r"--[a-z-]+", line)) <= OPTIONS


@pytest.mark.filterwarnings("always")
def test_a_header_that_looks_like_a_row_is_shown_in_whole_cells(call, tmp_path):
    cells = [f"{number}.123456789012" for number in range(12)]
    rows = [cells, *([str(float(cell) + row) for cell in cells] for row in range(1, 40))]
    (tmp_path / "rows.csv").write_text("\n".join(map(",".join, rows)))
    error = call("infer", str(tmp_path / "rows.csv")).error
    assert f"looks like a row: {', '.join(map(repr, cells[:5]))}, and 7 more are numbers" in error
    assert "give --no-header if it is a row, with --names for names" in error
