"""The program `daskprep`: its commands and its exit status."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import click
from click.shell_completion import get_completion_class

from daskprep import __version__
from daskprep.errors import DaskprepError
from daskprep.extensions.cli.console import messages_as_lines, print_message
from daskprep.extensions.cli.demo import demo
from daskprep.extensions.cli.inspecting import check, decode, inspect, predict, report
from daskprep.extensions.cli.preprocessing import infer, preprocess
from daskprep.extensions.cli.upkeep import cache, repair, verify

FAILED, MISUSED, INTERRUPTED = 1, 2, 130

_COMPLETION_VARIABLE = "_DASKPREP_COMPLETE"
_SUGGESTED_COMMANDS = {"write": "preprocess", "encode": "preprocess", "fit": "preprocess", "show": "inspect"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    0: success. 1: a problem with the data, the configuration, the dataset or the disk; from `check`, a finding. 2: a
    command or option does not exist or was used wrongly; from `check`, any error. 130: interrupted.
    """
    command_line = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    with messages_as_lines(command_line):
        try:
            status = program.main(
                command_line, prog_name="daskprep", complete_var=_COMPLETION_VARIABLE, standalone_mode=False
            )
        except click.Abort as abort:
            if sys.stderr.isatty():
                click.echo(err=True)  # the terminal has put ^C at the end of a line
            print_message("interrupted", "; ".join(getattr(abort.__cause__, "__notes__", ())) or "stopped by Ctrl-C")
            return INTERRUPTED
        except click.UsageError as error:
            path = "daskprep" if error.ctx is None else error.ctx.command_path
            if isinstance(error, click.NoSuchOption) and error.possibilities:
                closest = get_close_matches(error.option_name, error.possibilities, 1, 0)
                error = click.NoSuchOption(error.option_name, possibilities=closest)
            message = error.format_message().replace("?.", "?").rstrip(".")
            print_message("error", f"{message}{'' if message.endswith('?') else '.'} See: {path} --help")
            return MISUSED
        except (DaskprepError, OSError, ImportError) as error:
            print_message("error", error)
            return MISUSED if command_line[0] == "check" else FAILED
    return status if isinstance(status, int) else 0


def _print_completion(context: click.Context, option: click.Parameter, shell: str | None) -> None:
    """Print the completion script of a shell and exit."""
    del option
    if shell is None or context.resilient_parsing:
        return
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(program, {}, "daskprep", _COMPLETION_VARIABLE).source())
    context.exit()


class _Program(click.Group):
    """Command group in the order of use, which suggests names."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.commands)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] in _SUGGESTED_COMMANDS:
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {_SUGGESTED_COMMANDS[args[0]]!r}?", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise click.Abort from interrupt  # Click would print an empty line


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.option(
    "--completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    metavar="SHELL",
    expose_value=False,
    is_eager=True,
    callback=_print_completion,
    help="Print the script for tab completion in bash, zsh or fish.",
)
def program() -> None:
    """Preprocess mixed tables into datasets for machine learning.

    \b
    From a file to a dataset:
      daskprep infer listings.csv > listings.yaml
      daskprep preprocess listings.yaml listings.csv -o listings.dp
      daskprep inspect listings.dp

    \b
    Without data:
      daskprep demo

    Tab completion in bash: eval "$(daskprep --completion bash)"
    """


for _command in (infer, preprocess, inspect, report, check, predict, decode, verify, repair, cache, demo):
    program.add_command(_command)
