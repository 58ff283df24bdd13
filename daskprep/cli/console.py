"""Output of commands: errors and warnings as one line each on standard error, tables that fit the terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from daskprep.display import escape_unprintable, format_count

if TYPE_CHECKING:
    from daskprep.dataset import Dataset
    from daskprep.display import Description

_RESUME_NOTE = "finished work is kept: run the same command again to resume"
# Messages of the package mention parameters of functions, which are replaced by options of the command line. Parameters
# of a feature, as in Number(null_values=["?"]), have no option.
_OPTION_NAMES = (
    "names|comment|decimal|thousands|delimiter|quote|format|partitions|memory|weight|style|redundant|skip_rows|partition_bytes|"
    "null_values|targets|storage_options|base_dir|cache_dir|cache_limit|scheduler|workers"
)
_FLAG_REPLACEMENTS = {
    r"read_files\(\.\.\., ([^)]*)\)": r"\1",
    r"\b(partition_bytes|null_values|memory) (?:of|to) (?:read_files|fit_write)": r"--\1",
    r" to read_files\b": "",
    r", or columns= to choose columns": "",
    r"\bheader=None": "--no-header",
    r"\b(overwrite|trusted)=True": r"--\1",
    r"\bquote=None": '--quote ""',
    r"\bprogress=False": "--quiet",
    r'\b(decimal|thousands)=\{"([^"]+)": ("[^"]+")\}': r"--\1 \2=\3",
    r'(?<![\w(?&])encoding=(?!"bins"|"piecewise_linear"|None)': "--encoding ",
    r"\bcredentials in storage_options": "credentials in --storage-option",
    rf"(?<![\w(?&])({_OPTION_NAMES})=": r"--\1 ",
    r"(--[a-z]+)_(?=[a-z])": r"\1-",
    r"(--(?:null-value|target|storage-option))s\b": r"\1",
    # Parameters and functions without an option: the configuration or a command replaces them.
    r'(?<![\w(?&])(invalid|missing_value_strategy)=("[a-z_]+")': r"\1: \2 in the configuration",
    r"split=\w+\([^)]*\), or (split: \{[^}]*\}) in a configuration": r"\1 in the configuration",
    r"split=None, in a configuration (split: null)": r"\1 in the configuration",
    r"(?<![\w.])(?:damaged|verify)\(\)": "daskprep verify",
    r"\bdaskprep\.repair\b": "daskprep repair",
    r"(--[a-z-]+) (?= |$|[,;)])": r"\1",
}
_COLOURS = {"error": "red", "warning": "yellow", "interrupted": "yellow"}


def print_message(kind: str, message: object) -> None:
    """Print a line on standard error, above a progress bar if there is one; in color on a terminal."""
    is_plain = "NO_COLOR" in os.environ or not sys.stderr.isatty()
    shown = kind if is_plain else click.style(kind, fg=_COLOURS.get(kind), bold=True)
    line, tqdm_module = f"{shown}: {format_line(message)}", sys.modules.get("tqdm")
    if tqdm_module is None:
        click.echo(line, err=True)
    else:
        tqdm_module.tqdm.write(line, file=sys.stderr)


def show(*descriptions: Description) -> None:
    """Print lines and tables, no wider than the terminal if there is one."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    click.echo("\n\n".join(one.text(width) for one in descriptions))


def show_write_result(dataset: Dataset) -> None:
    """Print a summary of a written dataset, and whether it was unchanged."""
    if dataset.timings is None:
        click.echo("unchanged: this dataset was written before from the same data and configuration")
    show(dataset.description)
    if left_out := len(dataset.rejects()["row_id"].unique()):
        click.echo(f"{format_count(left_out, 'row')} left out; Dataset.rejects() in Python lists them with the reasons")


def format_line(message: object) -> str:
    """Return a message, with the notes of an error, as one line that any terminal can show."""
    lines = [*str(message).splitlines(), *getattr(message, "__notes__", ())]
    text = escape_unprintable("; ".join(line.strip() for line in lines if line.strip())) or type(message).__name__
    for pattern, replacement in _FLAG_REPLACEMENTS.items():
        text = re.sub(pattern, replacement, text)
    return text


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print each warning as one line, without its position in the source code."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print_message("warning", message)
        yield


@contextmanager
def resumable() -> Iterator[None]:
    """Add a note to an interrupt that the same command resumes the work."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(_RESUME_NOTE)
        raise
