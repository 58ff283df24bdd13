"""What a command prints: errors and warnings as one line each on standard error, tables that fit the terminal."""

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

from daskprep.display.words import count, printable

if TYPE_CHECKING:
    from daskprep.dataset import Dataset
    from daskprep.display.tables import Description

_RESUME = "finished work is kept: run the same command again to resume"
# Remedies in messages of the package, and the options that do the same on the command line; not parameters of a
# feature, as in Number(null_values=["?"]).
_FLAGS = {
    r"read_files\(\.\.\., ([^)]*)\)": r"\1",
    r"null_values of read_files": "--null-value",
    r" to read_files\b": "",
    r"\bheader=None": "--no-header",
    r"\b(overwrite|trusted)=True": r"--\1",
    r"\bquote=None": '--quote ""',
    r'\b(decimal|thousands)=\{"([^"]+)": ("[^"]+")\}': r"--\1 \2=\3",
    r"(?<![\w(?&])(names|comment|decimal|thousands|delimiter|quote|encoding|format|partitions|memory)=": r"--\1 ",
    r"(?<![\w(?&])skip_rows=": "--skip-rows ",
    r"(?<![\w(?&])partition_bytes=": "--partition-bytes ",
    r"(?<![\w(?&])null_values=": "--null-value ",
    r"(--[a-z-]+) (?= |$|[,;])": r"\1",
}
_COLOURS = {"error": "red", "warning": "yellow", "interrupted": "yellow"}


def say(kind: str, message: object) -> None:
    """Print a line on standard error, above a progress bar if there is one; in colour on a terminal."""
    is_plain = "NO_COLOR" in os.environ or not sys.stderr.isatty()
    shown = kind if is_plain else click.style(kind, fg=_COLOURS.get(kind), bold=True)
    line, bars = f"{shown}: {line_of(message)}", sys.modules.get("tqdm")
    if bars is None:
        click.echo(line, err=True)
    else:
        bars.tqdm.write(line, file=sys.stderr)


def show(*descriptions: Description) -> None:
    """Print lines and tables, no wider than the terminal if there is one."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    click.echo("\n\n".join(one.text(width) for one in descriptions))


def show_written(dataset: Dataset) -> None:
    """Print what a write wrote, or that it had nothing to do."""
    if dataset.timings is None:
        click.echo("unchanged: this dataset was written before from the same data and configuration")
    show(dataset.description)
    if left_out := len(dataset.rejects()["row_id"].unique()):
        click.echo(f"{count(left_out, 'row')} left out; Dataset.rejects() in Python lists them with the reasons")


def line_of(message: object) -> str:
    """Return a message, with the notes of an error, as one line that any terminal can show."""
    lines = [*str(message).splitlines(), *getattr(message, "__notes__", ())]
    text = printable("; ".join(line.strip() for line in lines if line.strip())) or type(message).__name__
    for python, flag in _FLAGS.items():
        text = re.sub(python, flag, text)
    return text


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Show warnings without their place in the code, which means nothing on the command line."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: say("warning", message)
        yield


@contextmanager
def resumable() -> Iterator[None]:
    """Say on an interrupt that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(_RESUME)
        raise
