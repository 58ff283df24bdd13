"""What a command says of errors and warnings: one line each, on standard error."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import click

from daskprep.display.words import printable

_RESUME = "what is finished is kept: run the same again, and it goes on from there"


def say(kind: str, message: object) -> None:
    """Print a line on standard error, above a progress bar if there is one."""
    line, bars = f"{kind}: {line_of(message)}", sys.modules.get("tqdm")
    if bars is None:
        click.echo(line, err=True)
    else:
        bars.tqdm.write(line, file=sys.stderr)


def line_of(message: object) -> str:
    """Return a message, with the notes of an error, as one line that any terminal can show."""
    lines = [*str(message).splitlines(), *getattr(message, "__notes__", ())]
    return printable("; ".join(line.strip() for line in lines if line.strip())) or type(message).__name__


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Show warnings without the place in the code, which says nothing to who gave a command."""

    def show(message: Warning | str, *where: object, **more: object) -> None:
        del where, more
        say("warning", message)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextmanager
def resumable() -> Iterator[None]:
    """Tell who interrupts that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(_RESUME)
        raise
