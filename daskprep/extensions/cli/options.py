"""Arguments and options that are shared by commands."""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast

import click

import daskprep as dp
from daskprep.errors import FILE_SIMILARITY, ConfigError, did_you_mean

_CONNECT_SECONDS = 10
_SPLITS = ("train", "validation", "test")
SPLIT_NAMES = {"training": "train", "val": "validation", "valid": "validation", "dev": "validation", "testing": "test"}
# Options that are passed to `read_files` unchanged.
_READ_OPTIONS = (
    "format", "encoding", "delimiter", "names", "skip_rows", "comment", "null_values", "decimal", "thousands",
    "partition_bytes", "partitions",
)  # fmt: skip
_FORMATS = ["parquet", "csv", "tsv", "jsonl", "feather", "orc", "tar"]

_Command = TypeVar("_Command", bound=Callable[..., Any])
OnWorkers: TypeAlias = Callable[..., AbstractContextManager[None]]


def _read_storage_options(
    context: click.Context, option: click.Parameter, pairs: Sequence[str]
) -> dict[str, Any] | None:
    """Return pairs of KEY=VALUE as a dict, None without pairs; BadParameter without key or "="."""
    del context, option
    options = {}
    for pair in pairs:
        key, mark, value = pair.partition("=")
        if not key or not mark:
            # The value may be a secret, so it is not repeated.
            raise click.BadParameter("expected KEY=VALUE, such as anon=true")
        options[key] = _parse_value(key, value)
    return options or None


def _parse_value(key: str, text: str) -> Any:
    """Parse true, false, null and JSON objects and lists.

    Other text is returned, also numbers. BadParameter for a text that starts with a bracket and is no JSON.
    """
    if text not in ("true", "false", "null") and not text.startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"the value of {key} starts like JSON but is not valid: {error}") from error


def _suggest_path(path: str) -> str:
    """Return a hint that names similar files of the folder, or ""."""
    try:
        return did_you_mean(Path(path).name, [one.name for one in Path(path).parent.iterdir()], FILE_SIMILARITY)
    except OSError:
        return ""


storage = click.option(
    "--storage-option", "storage_options", multiple=True, metavar="KEY=VALUE", callback=_read_storage_options,
    help="Option for fsspec to open URLs, such as anon=true. Repeatable.",
)  # fmt: skip
trusted = click.option(
    "--trusted", is_flag=True, help="Trust the dataset: read files and URLs outside its folder that it names."
)
fold = click.option("--fold", type=click.IntRange(min=0), metavar="N", help="Fold to open, of a dataset with folds.")
# Values of the parameter `progress` of functions: False, or None.
quiet = click.option(
    "-q", "--quiet", "progress", flag_value=False, default=None, help="Print no progress bars and no summary."
)
targets = click.option(
    "--target", "targets", multiple=True, metavar="COLUMN", help="Column that a model predicts. Repeatable."
)
style = click.option(
    "--style", type=click.Choice(["network", "linear", "trees"]), help="Kind of model: propose encodings that suit it."
)
redundant = click.option(
    "--redundant", type=click.Choice(["skip", "keep"]), default="skip", show_default=True,
    help="Whether to leave out columns that repeat a target or another column.",
)  # fmt: skip
dataset = click.argument("dataset", metavar="DATASET", type=click.Path())


def _parse_by_column(context: click.Context, option: click.Parameter, option_values: Sequence[str]) -> Any:
    """Return a text for all columns, or a dict for COLUMN=TEXT.

    None without values. Texts of null_values are lists. BadParameter for values of both forms.
    """
    del context
    texts_by_column: dict[str, Any] = {}
    for column, _, text in (one.rpartition("=") for one in option_values):
        texts_by_column[column] = [*texts_by_column.get(column, []), text] if option.name == "null_values" else text
    if "" in texts_by_column and len(texts_by_column) > 1:
        raise click.BadParameter("use it for all columns, or as COLUMN=TEXT each time")
    return texts_by_column.get("", texts_by_column) or None


class Bytes(click.ParamType):  # type: ignore[type-arg] # not generic in click 8.1
    """A number of bytes, such as "2GB"."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from daskprep.columns.display import parse_bytes

        try:
            return parse_bytes(value)
        except ConfigError as error:
            raise click.BadParameter(f'expected bytes such as "2GB" or "500MB", not {value!r}') from error


def files(command: _Command) -> _Command:
    """Add the options of `read_files`; `read_options` are those that are set."""
    character: dict[str, Any] = {"metavar": "CHARACTER", "callback": lambda *args: {r"\t": "\t"}.get(args[2], args[2])}
    by_column: dict[str, Any] = {"multiple": True, "callback": _parse_by_column}
    null_value_help = "Text that marks a missing value in CSV. Repeatable."
    options = [
        click.option("--format", type=click.Choice(_FORMATS), help="Format of the files."),
        click.option("--encoding", help="Encoding of CSV and JSON, such as latin-1."),
        click.option("--delimiter", **character, help="Separator of CSV values. [detected]"),
        click.option("--quote", **character, help='Quote character of CSV; "" if quotes have no meaning.'),
        click.option("--no-header", is_flag=True, is_eager=True, help="The first line of CSV is a row, not the names."),
        click.option("--names", metavar="NAME,...", help="Column names, with --no-header."),
        click.option("--skip-rows", type=click.IntRange(min=0), metavar="N", help="Skip the first N lines of CSV."),
        click.option("--comment", **character, help="Skip lines of CSV that start with it."),
        click.option("--null-value", "null_values", **by_column, metavar="[COLUMN=]TEXT", help=null_value_help),
        click.option("--decimal", **by_column, metavar="[COLUMN=]CHARACTER", help="Decimal mark in CSV."),
        click.option("--thousands", **by_column, metavar="[COLUMN=]CHARACTER", help="Thousands separator in CSV."),
        click.option("--partition-bytes", type=Bytes(), help='Maximum size of a partition, such as "16MB".'),
        click.option("--partitions", type=click.IntRange(min=1), metavar="N", help="Read at least N partitions."),
    ]

    @functools.wraps(command)
    def run(*, no_header: bool, quote: str | None, **parameters: Any) -> Any:
        read_options = {name: value for name in _READ_OPTIONS if (value := parameters.pop(name)) is not None}
        if "names" in read_options:
            read_options["names"] = [name.strip() for name in read_options["names"].split(",")]
        read_options |= {"header": None} if no_header else {}
        read_options |= {} if quote is None else {"quote": quote or None}
        return command(read_options=read_options, **parameters)

    return cast("_Command", functools.reduce(lambda decorated, option: option(decorated), reversed(options), run))


class _WorkerCount(click.ParamType):  # type: ignore[type-arg]
    """A number of processes, or "threads"."""

    name = "N|threads"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "threads" else click.IntRange(min=1).convert(value, param, ctx)


def workers(command: _Command) -> _Command:
    """Add options for where tasks run, as a context manager ``on_workers(frame, memory, **options)``."""
    workers_help = "Run on N processes, or on threads of this one. [processes if the job is long enough]"
    scheduler_help = "Run on the workers of a Dask scheduler, such as tcp://10.0.0.1:8786."

    @click.option("--workers", type=_WorkerCount(), help=workers_help)
    @click.option("--scheduler", metavar="ADDRESS", help=scheduler_help)
    @functools.wraps(command)
    def run(*, scheduler: str | None, workers: int | Literal["threads"] | None, **parameters: Any) -> Any:
        return command(on_workers=functools.partial(_on_workers, scheduler, workers), **parameters)

    return cast("_Command", run)


@contextmanager
def _on_workers(
    scheduler: str | None,
    workers: int | Literal["threads"] | None,
    frame: Any,
    memory: int | None = None,
    **options: Any,
) -> Iterator[None]:
    """Run the block on a scheduler, processes or threads."""
    if scheduler is not None and workers is not None:
        raise click.UsageError("--scheduler has its own workers: leave out --workers")
    # Messages about the end of a cluster are of no use on the command line. After an early Ctrl-C, distributed 2026.8
    # cancels a task that does not exist yet: tornado logs a traceback.
    logging.getLogger("distributed").setLevel(logging.ERROR)
    logging.getLogger("tornado.application").setLevel(logging.CRITICAL)
    if scheduler is None:
        from daskprep.dataset.writing import on_workers

        with on_workers(frame, workers, memory, **options):
            yield
        return
    from distributed import Client

    try:
        client = Client(scheduler, timeout=_CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no Dask scheduler answers at {scheduler}: {error}; check the address, or start one: dask scheduler"
        ) from error
    with client:
        yield


def rows(command: _Command) -> _Command:
    """Add DATA, and options for the files of each split, as `rows`: paths, or a dict by split."""

    @click.argument("data", nargs=-1, type=click.Path())
    @functools.wraps(command)
    def run(*, data: Sequence[str], **parameters: Any) -> Any:
        files_by_split = {name: one_or_list(paths) for name in _SPLITS if (paths := parameters.pop(name))}
        if data and files_by_split:
            raise click.UsageError(f"use either DATA or --{next(iter(files_by_split))}, not both")
        return command(rows=one_or_list(data) if data else files_by_split or None, **parameters)

    for name in reversed(_SPLITS):
        text = f"Files of the {name} split, instead of DATA. Repeatable."
        run = click.option(f"--{name}", multiple=True, metavar="FILE", type=click.Path(), help=text)(run)
    return cast("_Command", run)


def open_dataset(path: str, *, fold: int | None = None, allow_folded: bool = True, **options: Any) -> dp.Dataset:
    """Open a dataset, or a fold of one with folds.

    ConfigError for a missing path or a file; UsageError if it has folds and none is chosen but must be, or the reverse.
    """
    check_paths(path, "dataset")
    if "://" not in path and Path(path).is_file():
        raise ConfigError(f"{path} is a file, not a dataset: see daskprep infer {path}, and daskprep preprocess")
    dataset = dp.open_dataset(path, **options)
    if isinstance(dataset, dp.FoldedDataset):
        if fold is not None:
            return dataset.fold(fold)
        if not allow_folded:
            raise click.UsageError(f"{path} has {dataset.folds} folds: choose one, as in --fold 0")
    elif fold is not None:
        raise click.UsageError(f"{path} has no folds: leave --fold out")
    return dataset


def check_paths(paths: Any, noun: str = "file or folder") -> None:
    """Raise ConfigError for a missing path, before slow imports; URLs and globs pass."""
    for group in paths.values() if isinstance(paths, dict) else [paths]:
        for path in [group] if isinstance(group, str) else group or ():
            if not ("://" in path or set(path) & set("*?[") or os.path.lexists(path)):
                raise ConfigError(f'no {noun} "{path}": check the path.{_suggest_path(path)}')


def one_or_list(paths: Sequence[str]) -> str | list[str]:
    """Return one path unchanged, and several as a list."""
    return paths[0] if len(paths) == 1 else list(paths)
