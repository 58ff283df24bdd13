"""Files as a source: formats by name, one schema over all files, pieces of about the same size."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, get_args

import pyarrow as pa

from daskprep.errors import ColumnError, ConfigError, did_you_mean
from daskprep.sources.arrow_types import TEXT_CODES
from daskprep.sources.base import JoinedPiece, Piece, PieceSource
from daskprep.sources.columnar import Schemas
from daskprep.sources.delimited import DEFAULT_NULLS, DELIMITERS, DelimitedPiece, plan_delimited
from daskprep.sources.feather import plan_feather
from daskprep.sources.formats import Format, common_format, compression_of, is_known
from daskprep.sources.joining import grouped
from daskprep.sources.json_lines import JsonPiece, plan_json, typed
from daskprep.sources.locations import File, find_files, for_each_file
from daskprep.sources.parquet import plan_parquet
from daskprep.sources.text import TextFile, codec_name

PARTITION_BYTES = 64_000_000

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_SHOWN_FILES = 3
# Each holds a piece and its table.
_SURVEY_THREADS = 8


class FileSource(PieceSource):
    """Files of one format, as partitions of about the same size.

    Made by `read_files`. `schema` gives the type in which each column arrives.
    """

    def __init__(
        self,
        format: Format,
        files: Sequence[File],
        schemas: Schemas,
        pieces: Sequence[Piece],
        *,
        settings: Mapping[str, Any],
        columns: list[str] | None,
    ) -> None:
        folders = {name: TEXT_CODES for file in files for name, _ in file.folders}
        types = schemas.types | folders
        if not types:
            raise ConfigError(f"{files[0].name}: no column is in it; check that it holds rows")
        self.format = format
        self.files = tuple(files)
        self.settings = dict(settings)
        self.columns = list(types)
        self._problems = schemas.problems | _incomplete(folders, files)
        self.require(types if columns is None else columns)
        super().__init__(pa.schema([(name, types[name]) for name in (types if columns is None else columns)]), pieces)

    def require(self, columns: Iterable[str]) -> None:
        columns = list(columns)
        for name in columns:
            if name in self._problems:
                raise ColumnError(self._problems[name])
        super().require(columns)

    @property
    def folders(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(file.name.rpartition("/")[0] for file in self.files))

    def fingerprint(self) -> list[tuple[str, int | None, str]]:
        """Return path, size and time of change (or version mark) of every file; no credentials are in it."""
        return [(file.name, file.size, file.stamp) for file in self.files]

    def __repr__(self) -> str:
        shown = ", ".join(f'"{file.name}"' for file in self.files[:_SHOWN_FILES])
        more = f" and {len(self.files) - _SHOWN_FILES} more" if len(self.files) > _SHOWN_FILES else ""
        size = f"{self.npartitions} partitions, {len(self.columns)} columns"
        return f"<FileSource: {size} of {self.format}: {shown}{more}>"


def _incomplete(names: Iterable[str], files: Sequence[File]) -> dict[str, str]:
    problems = {}
    for name in names:
        for file in files:
            if name not in dict(file.folders):
                problems[name] = (
                    f'column "{name}" comes from folders named "{name}=...", but {file.name} is in none; '
                    "put all files in such folders or none"
                )
    return problems


def read_files(
    paths: Paths,
    *,
    columns: Iterable[str] | None = None,
    format: Format | None = None,
    delimiter: str | None = None,
    quote: str | None = '"',
    encoding: str = "utf-8",
    null_values: Iterable[str] = DEFAULT_NULLS,
    partition_bytes: int = PARTITION_BYTES,
    storage_options: Mapping[str, Any] | None = None,
) -> FileSource:
    r"""Make a source of files: Parquet, CSV, TSV, JSON lines, Feather or Arrow IPC.

    Parquet footers, CSV headers and, where files must be cut, the quotes in CSV are read at once; JSON lines
    are read through, since only that tells the types of their columns. Rows are read later, partition by
    partition.

    Parameters
    ----------
    paths : str, path or iterable of these
        Files, folders, globs or URLs of any file system that fsspec knows. Folders named ``key=value`` inside
        a folder or glob give columns.
    columns : iterable of str, optional
        The columns that will be read. The others are not checked, and do not count towards `partition_bytes`.
    format : {"parquet", "csv", "tsv", "jsonl", "feather"}, optional
        What the files hold, where their names do not tell.
    delimiter : str, optional
        What parts the cells of CSV; found among comma, tab, semicolon and "|" by default.
    quote : str or None
        What cells that hold delimiters or newlines are put in; None if quotes mean nothing.
    encoding : str
        Of CSV and JSON lines. Files in encodings such as UTF-16 are one partition each, like compressed ones.
    null_values : iterable of str
        Cells of CSV that are missing; by default those that pandas takes for missing, and empty cells.
    partition_bytes : int
        Bytes of rows in memory that a partition holds at most, unless one row group or record holds more.
    storage_options : mapping, optional
        What fsspec needs to open URLs, such as credentials.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.csv").write_text('city;note\nRome;"two\nlines"\nNA;x\n')
    >>> source = read_files(folder)
    >>> source.columns
    ['city', 'note']
    >>> source.read(0, ["note", "city"]).to_pylist()
    [{'note': 'two\nlines', 'city': 'Rome'}, {'note': 'x', 'city': None}]
    """
    _check_options(format, delimiter, quote, partition_bytes)
    wanted = None if columns is None else list(dict.fromkeys(columns))
    files = find_files(_listed(paths), storage_options, (lambda _: True) if format else is_known)
    found = format or common_format(files)
    settings: dict[str, Any] = {"format": found}
    if found == "parquet":
        schemas, pieces = plan_parquet(files, wanted, partition_bytes)
    elif found == "feather":
        schemas, pieces = plan_feather(files, wanted, partition_bytes)
    else:
        texts = [TextFile(file, codec_name(encoding), compression_of(file.name)) for file in files]
        settings["encoding"] = texts[0].encoding
        if found == "jsonl":
            schemas, pieces = _plan_json(texts, partition_bytes)
        else:
            settings |= {"delimiter": delimiter, "quote": quote, "null_values": list(null_values)}
            given = delimiter or ("\t" if found == "tsv" else None)
            schemas, pieces = _plan_delimited(texts, given, quote, settings["null_values"], partition_bytes)
    return FileSource(found, files, schemas, pieces, settings=settings, columns=wanted)


def _plan_delimited(
    texts: Sequence[TextFile], delimiter: str | None, quote: str | None, nulls: Sequence[str], partition_bytes: int
) -> tuple[Schemas, list[Piece]]:
    planned = for_each_file(lambda text: plan_delimited(text, delimiter, quote, nulls, partition_bytes), texts)
    schemas = [pa.schema([(name, pa.string()) for name in pieces[0].dialect.names]) for pieces in planned]
    return Schemas([text.file for text in texts], schemas), _grouped(chain.from_iterable(planned), partition_bytes)


def _plan_json(texts: Sequence[TextFile], partition_bytes: int) -> tuple[Schemas, list[Piece]]:
    planned = for_each_file(lambda text: plan_json(text, partition_bytes), texts)
    untyped = list(chain.from_iterable(planned))
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _SURVEY_THREADS), "daskprep-json") as pool:
        pieces = typed(untyped, list(pool.map(JsonPiece.survey, untyped)))
    # A column that some files lack is missing in their rows, as it may be in any row.
    return Schemas([pieces[0].file], [pieces[0].schema]), _grouped(pieces, partition_bytes)


def _grouped(pieces: Iterable[DelimitedPiece | JsonPiece], partition_bytes: int) -> list[Piece]:
    return grouped(list(pieces), partition_bytes, JoinedPiece.of, alone=lambda piece: not piece.text.can_cut)


def _check_options(format: str | None, delimiter: str | None, quote: str | None, partition_bytes: int) -> None:
    if format is not None and format not in get_args(Format):
        accepted = ", ".join(map(repr, get_args(Format)))
        raise ConfigError(
            f"format={format!r} is unknown; use one of {accepted}.{did_you_mean(format, get_args(Format))}"
        )
    for name, value in (("delimiter", delimiter), ("quote", quote)):
        if value is not None and (len(value) != 1 or not value.isascii() or value in "\r\n"):
            raise ConfigError(f"{name}={value!r}: one ASCII character is needed, such as {DELIMITERS[0]!r}")
    if delimiter is not None and delimiter == quote:
        raise ConfigError(f"delimiter and quote are both {quote!r}; they must differ")
    if isinstance(partition_bytes, bool) or not isinstance(partition_bytes, int) or partition_bytes < 1:
        raise ConfigError(f"partition_bytes={partition_bytes!r}: a whole number of bytes above 0 is needed")


def _listed(paths: Paths) -> list[str]:
    if not isinstance(paths, str | os.PathLike | Iterable):
        raise ConfigError(f"paths must be a path or a list of paths, not a {type(paths).__name__}")
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    for path in given:
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"a path is needed, not a {type(path).__name__}: {path!r:.80}")
    if not given:
        raise ConfigError("the list of paths is empty; give at least one file, folder, glob or URL")
    return [os.fsdecode(path) for path in given]
