"""Messages on the command line name options as remedies."""

from __future__ import annotations

import inspect
import re
from typing import get_args

import pytest

import daskprep as dp
from daskprep.extensions.cli import program
from daskprep.extensions.cli.console import format_line
from daskprep.sources.file_source import Format

OPTIONS = {name for command in program.commands.values() for one in command.params for name in one.opts}


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (
            "read_files(..., header=None), with names= for names; to replace the names, add skip_rows=1",
            "--no-header, with --names for names; to replace the names, add --skip-rows 1",
        ),
        ("or pass the right delimiter= to read_files", "or pass the right --delimiter"),
        ("pass the right encoding: read_files(..., encoding=)", "pass the right encoding: --encoding"),
        ("use read_files(..., quote=None) if quotes mean", 'use --quote "" if quotes mean'),
        ("but decimal=','; pass thousands=\".\" if", "but --decimal ','; pass --thousands \".\" if"),
        ("smaller partitions: read_files(..., partition_bytes=...)", "smaller partitions: --partition-bytes ..."),
        ("memory='1MB' is not enough", "--memory '1MB' is not enough"),
        ("open it with trusted=True if you", "open it with --trusted if you"),
        ("or pass overwrite=True", "or pass --overwrite"),
        ("check the credentials in storage_options, and", "check the credentials in --storage-option, and"),
        ("pass targets= to Preprocessor", "pass --target to Preprocessor"),
        ("open it with base_dir=, the folder", "open it with --base-dir, the folder"),
        ("cache_dir=3: expected a folder", "--cache-dir 3: expected a folder"),
        ("pass header=None too, or columns= to choose columns", "pass --no-header too"),
        ('or use invalid="raise" to stop', 'or use invalid: "raise" in the configuration to stop'),
        ("verify() lists all damaged files", "daskprep verify lists all damaged files"),
        ("Raise memory, use fewer threads (dask.config.set(num_workers=1)), or", "Raise --memory, or"),
        ("pass the rows as frame, or trusted=True if", "pass DATA, or --trusted if"),
        ('Number: encoding="bins" has no NaN', 'Number: encoding="bins" has no NaN'),
        ('use Number(null_values=["?"]) or written=', 'use Number(null_values=["?"]) or written='),
    ],
)
def test_remedies_name_command_line_options(message, line):
    assert format_line(ValueError(message)) == line
    assert set(re.findall(r"--[a-z-]+", line)) <= OPTIONS


FUNCTIONS = [dp.read_files, dp.open_dataset, dp.Preprocessor, dp.Preprocessor.fit_write, dp.repair]
OTHERS = {"columns", "split", "shuffle", "seed"}  # which have another meaning there, or in a split
SHARED = {
    one.name: one.opts[-1]
    for command in program.commands.values()
    for one in command.params
    if any(one.name in inspect.signature(function).parameters for function in FUNCTIONS)
}
VALUES = {"overwrite": "True", "trusted": "True", "progress": "False"}


@pytest.mark.parametrize("name", sorted(SHARED.keys() - OTHERS))
def test_parameter_is_named_as_its_option(name):
    assert re.match(f"use {SHARED[name]}[ ,]", format_line(f"use {name}={VALUES.get(name, '1')}, or another"))


def test_formats_equal_read_files():
    choices = {tuple(one.type.choices) for one in program.commands["preprocess"].params if one.name == "format"}
    assert choices == {get_args(Format)}


@pytest.mark.filterwarnings("always")
def test_header_that_resembles_a_row_is_shown_in_whole_cells(call, tmp_path):
    cells = [f"{number}.123456789012" for number in range(12)]
    rows = [cells, *([str(float(cell) + row) for cell in cells] for row in range(1, 40))]
    (tmp_path / "rows.csv").write_text("\n".join(map(",".join, rows)))
    error = call("infer", str(tmp_path / "rows.csv")).error
    assert f"looks like a row: {', '.join(map(repr, cells[:5]))}, and 7 more are numbers" in error
    assert "if it is a row, use --no-header" in error


@pytest.mark.filterwarnings("always")
def test_row_with_too_many_cells_is_shown_in_whole_cells(call, tmp_path):
    cells = [f"{number}.123456789012" for number in range(12)]
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n" + ",".join(cells) + "\n")
    error = call("infer", str(tmp_path / "rows.csv")).error
    assert f"12 cells for 2 columns: '{','.join(cells[:5])},...'" in error


def test_names_and_tab_delimiter_are_read_as_typed_in_a_shell(call, tmp_path):
    (tmp_path / "rows.tsv.txt").write_text("1\tx\n2\ty\n")
    typed = ("--format", "csv", "--delimiter", r"\t", "--names", "size, sort", "--no-header")
    ended = call("infer", tmp_path / "rows.tsv.txt", *typed)
    assert re.findall(r"name: (.*)", ended.out) == ["size", "sort"]
