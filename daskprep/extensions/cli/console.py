"""Output of commands: errors and warnings as one line each on standard error, tables that fit the terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from daskprep.columns.display import escape_unprintable, format_count

if TYPE_CHECKING:
    from daskprep.columns.display import Description
    from daskprep.dataset import Dataset

_RESUME_NOTE = "finished work is kept: run the same command again to resume"
# Messages of the package mention parameters of functions, which are replaced by options of the command line. Parameters
# of a feature, as in Number(null_values=["?"]), have no option.
_OPTION_NAMES = (
    "names|comment|decimal|thousands|delimiter|quote|format|partitions|memory|weight|style|redundant|skip_rows|partition_bytes|"
    "null_values|targets|storage_options|base_dir|cache_dir|cache_limit|scheduler|workers"
)
_FLAG_REPLACEMENTS = {
    r"read_files\(\.\.\., ([^)]*)\)": r"\1",
    r" to read_files\b": "",
    r", or columns= to choose columns": "",
    r"\bheader=None": "--no-header",
    r"\b(overwrite|trusted)=True": r"--\1",
    r"\bquote=None": '--quote ""',
    r"\bprogress=False": "--quiet",
    r'(?<![\w(?&])encoding=(?!"bins"|"piecewise_linear"|None)': "--encoding ",
    r"\bcredentials in storage_options": "credentials in --storage-option",
    rf"(?<![\w(?&])({_OPTION_NAMES})=": r"--\1 ",
    r"(--[a-z]+)_(?=[a-z])": r"\1-",
    r"(?<!')(--(?:null-value|target|storage-option))s\b": r"\1",
    # Parameters and functions without an option: the configuration or a command replaces them.
    r'(?<![\w(?&])(invalid|missing_value_strategy)=("[a-z_]+")': r"\1: \2 in the configuration",
    r"(?<![\w.])(?:damaged|verify)\(\)": "daskprep verify",
    r"\bdaskprep\.repair\b": "daskprep repair",
    r"\bRaise memory, use fewer threads \([^,]*\), or": "Raise --memory, or",
    r"\bpass the rows as frame, or": "pass DATA, or",
    r"\buse logits=True for": "leave out --no-logits for",
    r"\bor use logits=False": "or pass --no-logits",
    r"(--[a-z-]+) (?= |$|[,;)])": r"\1",
}
# What the user typed, by absolute path. Threads print warnings too, so this is no context variable.
_typed_paths: dict[str, str] = {}
_COLOURS = {"error": "red", "warning": "yellow", "interrupted": "yellow"}


def print_message(kind: str, message: object) -> None:
    """Print a line on standard error, above a progress bar."""
    is_plain = "NO_COLOR" in os.environ or not sys.stderr.isatty()
    shown = kind if is_plain else click.style(kind, fg=_COLOURS.get(kind), bold=True)
    line, tqdm_module = f"{shown}: {format_line(message)}", sys.modules.get("tqdm")
    if tqdm_module is None:
        click.echo(line, err=True)
    else:
        tqdm_module.tqdm.write(line, file=sys.stderr)


def show(*descriptions: Description) -> None:
    """Print lines and tables, on a terminal no wider than it."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    click.echo(paths_as_typed("\n\n".join(one.text(width) for one in descriptions)))


def show_write_result(dataset: Dataset) -> None:
    """Print a dataset after a write, and the rows left out."""
    with ignore_closed_output():
        if dataset.timings is None:
            click.echo("unchanged: this dataset was written before from the same data and configuration")
        show(dataset.description)
        if left_out := len(dataset.rejects()["row_id"].unique()):
            rows = format_count(left_out, "row")
            click.echo(f"{rows} left out; Dataset.rejects() in Python lists them with the reasons")


@contextmanager
def ignore_closed_output() -> Iterator[None]:
    """Ignore that nobody reads the output, as after ``| head -1``."""
    try:
        yield
    except BrokenPipeError:
        # Python flushes the rest when it exits.
        with Path(os.devnull).open("wb") as unread:
            os.dup2(unread.fileno(), sys.stdout.fileno())


def format_line(message: object) -> str:
    """Return a message with its notes as one line, parameters as options; if empty, the name of its type."""
    lines = [*str(message).splitlines(), *getattr(message, "__notes__", ())]
    text = escape_unprintable("; ".join(line.strip() for line in lines if line.strip())) or type(message).__name__
    for pattern, replacement in _FLAG_REPLACEMENTS.items():
        text = re.sub(pattern, replacement, text)
    return paths_as_typed(text)


def paths_as_typed(text: str) -> str:
    """Return a text with paths as the user typed them."""
    if not _typed_paths:
        return text
    known = "|".join(map(re.escape, sorted(_typed_paths, key=len, reverse=True)))

    def as_typed(match: re.Match[str]) -> str:
        typed = _typed_paths[match[1]]
        return os.path.join(typed, "") if match[2] else typed or "."  # noqa: PTH118 "" is the current folder

    return re.sub(rf"(?<![\w./-])({known})(/|(?![\w-]|\.\w))", as_typed, text)


@contextmanager
def messages_as_lines(arguments: Sequence[str]) -> Iterator[None]:
    """Print warnings as one line each, with paths as typed."""
    _typed_paths.clear()
    for argument in arguments:
        typed = (argument.partition("=")[2] if argument.startswith("-") else argument).rstrip("/")
        if typed and "://" not in typed:
            folders = [typed.rpartition("/")[0]] if os.path.lexists(typed) else []
            for path in (*folders, typed):
                _typed_paths.update({str(Path(path).resolve()): path, str(Path(path).absolute()): path})
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print_message("warning", message)
        yield


@contextmanager
def resumable() -> Iterator[None]:
    """Add a note to a KeyboardInterrupt that the same command resumes."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(_RESUME_NOTE)
        raise
