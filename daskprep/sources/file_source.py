"""Files as a source: formats by name, one schema over all files, pieces of about the same size."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, Literal, cast, get_args

import pyarrow as pa

from daskprep.errors import ConfigError, did_you_mean, hints_parameters, warn
from daskprep.kernels import plain_table
from daskprep.sources.arrow_types import TEXT_CODES
from daskprep.sources.base import JoinedPiece, Piece, PieceSource, grouped, require_columns
from daskprep.sources.columnar import Schemas
from daskprep.sources.delimited import DelimitedPiece, plan_delimited, row_for_names
from daskprep.sources.dialect import DEFAULT_NULLS, Dialect
from daskprep.sources.feather import BatchPiece, FeatherPiece, plan_batches
from daskprep.sources.json_lines import JsonPiece, plan_json, typed
from daskprep.sources.locations import File, find_files, for_each_file
from daskprep.sources.orc import OrcPiece
from daskprep.sources.parquet import plan_parquet
from daskprep.sources.spool import Spool, has_room
from daskprep.sources.text import TextFile, codec_name

PARTITION_BYTES = 64_000_000

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_SHOWN_FILES = 3
# Each holds a piece and its table.
_SURVEY_THREADS = 8

Format = Literal["parquet", "csv", "tsv", "jsonl", "feather", "orc"]
_FORMATS: dict[str, Format] = {
    ".parquet": "parquet",
    ".parq": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".feather": "feather",
    ".arrow": "feather",
    ".orc": "orc",
}
_BATCHES: dict[str, type[BatchPiece]] = {"feather": FeatherPiece, "orc": OrcPiece}
# Files that other programs write, and what of pandas reads them.
_OTHERS = {
    "read_excel": (".xls", ".xlsx", ".xlsm", ".xlsb", ".ods"),
    "read_stata": (".dta",),
    "read_spss": (".sav", ".zsav"),
    "read_sas": (".sas7bdat", ".xpt"),
    "read_html": (".html", ".htm"),
    "read_hdf": (".h5", ".hdf5", ".hdf"),
    "read_pickle": (".pkl", ".pickle"),
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


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
            raise ConfigError(f"{files[0].name}: it has no columns; check that it holds rows")
        self.format = format
        self.reads_all = format in ("csv", "tsv")
        self.files = tuple(files)
        self.settings = dict(settings)
        self.columns = list(types)
        self._problems = schemas.problems | _incomplete(folders, files)
        wanted = self.columns if columns is None else columns
        self.require(wanted)
        super().__init__(pa.schema([(name, types[name]) for name in wanted]), pieces)

    @property
    def record(self) -> Mapping[str, Any] | None:  # type: ignore[override]
        if not all(file.stamp for file in self.files):
            return None  # a file system that does not tell when a file was changed
        files = [list(file) for file in self.fingerprint()]
        return {"files": files, "format": self.format, "settings": self.settings}

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


@hints_parameters
def read_files(
    paths: Paths,
    *,
    columns: Iterable[str] | None = None,
    format: Format | None = None,
    delimiter: str | None = None,
    quote: str | None = '"',
    encoding: str = "utf-8",
    null_values: Iterable[str] | Mapping[str, Iterable[str]] = DEFAULT_NULLS,
    header: Literal[0] | None = 0,
    names: Sequence[str] | None = None,
    skip_rows: int = 0,
    comment: str | None = None,
    decimal: str | Mapping[str, str] = ".",
    thousands: str | Mapping[str, str] | None = None,
    partition_bytes: int = PARTITION_BYTES,
    partitions: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    scratch: str | os.PathLike[str] | None = None,
) -> FileSource:
    r"""Read files as a source of rows: Parquet, CSV, TSV, JSON, Feather, Arrow IPC or ORC.

    Footers and CSV headers are read at once, and so are the quotes in CSV if files must be partitioned. JSON is
    read completely, since only that shows the types of its columns. Rows are read later, partition by partition.

    Parameters
    ----------
    paths : str, path or iterable of these
        Files, folders, globs or URLs of any file system that fsspec knows. Folders named ``key=value`` inside a folder
        or glob give columns.
    columns : iterable of str, optional
        Columns to read. The others are not checked, and do not count towards `partition_bytes`.
    format : {"parquet", "csv", "tsv", "jsonl", "feather", "orc"}, optional
        Format of the files, if their names do not show it.
    delimiter : str, optional
        Separator of CSV values. By default it is detected among comma, tab, semicolon and "|".
    quote : str or None
        Quote character around CSV values that hold delimiters or newlines. None: quotes have no meaning.
    encoding : str
        Encoding of CSV and JSON lines. Files in encodings such as UTF-16 are one partition each, like compressed ones.
    null_values : iterable of str, or mapping from columns to these
        Texts that mark missing values in CSV, also with a space before or after them. By default, and for columns that
        a mapping lacks: empty values and those that pandas treats as missing.
    header : 0 or None
        0: the first line of CSV holds the column names. None: it is a row already.
    names : sequence of str, optional
        Column names, with ``header=None``; "column_0" and so on by default.
    skip_rows : int
        Number of lines to skip at the start of CSV.
    comment : str, optional
        Skip lines of CSV that start with this character.
    decimal, thousands : str, or mapping from columns to these
        Decimal mark and thousands separator of numbers in CSV, for all columns or for those of a mapping. Values that
        are such numbers as a whole are converted to numbers with a decimal point.
    partition_bytes : int
        Maximum size of a partition in memory, unless a single row group or record is larger.
    partitions : int, optional
        Number of partitions to read: more if `partition_bytes` requires it, fewer if files cannot be divided that
        often.
    storage_options : mapping, optional
        Options for fsspec to open URLs, such as credentials.
    scratch : str or path, optional
        Local folder for the rows of JSON that needs several partitions, so that they are parsed once, not for each
        pass. None: the system's temporary folder.

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
    _check_options(format, partition_bytes, partitions)
    for option, value in (("columns", columns), ("names", names)):
        if isinstance(value, str):
            raise ConfigError(f"{option}={value!r}: expected a list of names, such as [{value!r}]")
    wanted = None if columns is None else list(dict.fromkeys(columns))
    files = find_files(_listed(paths), storage_options, (lambda _: True) if format else is_known)
    found = format or common_format(files)
    given = delimiter or ("\t" if found == "tsv" else "")
    called = () if names is None else tuple(names)
    dialect = Dialect(given, quote, _nulls(null_values), header, called, skip_rows, comment, decimal, thousands)
    dialect.check()
    if found not in ("csv", "tsv") and dialect.unusual:
        raise ConfigError(f"{next(iter(dialect.unusual))}= is for CSV, and {files[0].name} is read as {found}")
    settings: dict[str, Any] = {"format": found}
    if found == "parquet":
        schemas, pieces = plan_parquet(files, wanted, partition_bytes, partitions)
    elif found in _BATCHES:
        schemas, pieces = plan_batches(_BATCHES[found], files, wanted, partition_bytes, partitions)
    else:
        texts = [TextFile(file, codec_name(encoding), compression_of(file.name)) for file in files]
        settings["encoding"] = texts[0].encoding
        share = min(partition_bytes, max(1, sum(file.size or 0 for file in files) // (partitions or 1)))
        parts: list[Any]
        if found == "jsonl":
            schemas, parts = _plan_json(texts, share, partition_bytes, scratch)
        else:
            settings |= {"delimiter": delimiter, "quote": quote, "null_values": dialect.null_values, **dialect.unusual}
            schemas, parts = _plan_delimited(texts, dialect, share)
        pieces = grouped(
            parts, partition_bytes, JoinedPiece.of, alone=lambda piece: not piece.text.can_cut, partitions=partitions
        )
    return FileSource(found, files, schemas, pieces, settings=settings, columns=wanted)


def _plan_delimited(texts: Sequence[TextFile], dialect: Dialect, share: int) -> tuple[Schemas, list[DelimitedPiece]]:
    planned = for_each_file(lambda text: plan_delimited(text, dialect, share), texts)
    if dialect.header is not None and (problem := row_for_names(texts[0], planned[0][0].dialect)):
        warn(
            f"{texts[0].file.name}: its first line is taken for the names of the columns, and {problem}; give "
            "read_files(..., header=None) if it is a row, with names= for names; skip_rows=1 besides replaces names"
        )
    schemas = [pa.schema([(name, pa.string()) for name in pieces[0].dialect.names]) for pieces in planned]
    found = Schemas([text.file for text in texts], schemas)
    require_columns(dialect.named_columns, list(found.types))
    return found, list(chain.from_iterable(planned))


def _plan_json(
    texts: Sequence[TextFile], share: int, keep_bytes: int, scratch: str | os.PathLike[str] | None
) -> tuple[Schemas, list[JsonPiece]]:
    untyped = list(chain.from_iterable(for_each_file(lambda text: plan_json(text, share), texts)))
    nbytes = sum(piece.nbytes for piece in untyped)
    keep: Spool | bool = nbytes <= keep_bytes
    if not keep:
        spool = Spool(None if scratch is None or "://" in os.fspath(scratch) else scratch)
        keep = has_room(spool.path, nbytes) and spool
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _SURVEY_THREADS), "daskprep-json") as pool:
        pieces = typed(untyped, list(pool.map(lambda piece: piece.survey(keep), untyped)))
    # A column that some files lack is missing in their rows, as it may be in any row.
    return Schemas([pieces[0].file], [plain_table(pieces[0].schema.empty_table()).schema]), pieces


def _nulls(given: Iterable[str] | Mapping[str, Iterable[str]]) -> list[str] | dict[str, list[str]]:
    if isinstance(given, Mapping):
        return {name: cast("list[str]", _nulls(cells)) for name, cells in given.items()}
    if isinstance(given, str):
        raise ConfigError(f"null_values={given!r}: expected a list of texts, such as [{given!r}]")
    cells = list(given)
    if not all(isinstance(cell, str) for cell in cells):
        raise ConfigError(f"null_values={cells!r}: cells of CSV are text, so give texts, such as {[str(cells[0])]!r}")
    return cells


def _check_options(format: str | None, partition_bytes: int, partitions: int | None) -> None:
    if format is not None and format not in get_args(Format):
        accepted = ", ".join(map(repr, get_args(Format)))
        raise ConfigError(
            f"format={format!r} is unknown; use one of {accepted}.{did_you_mean(format, get_args(Format))}"
        )
    for name, value in (("partition_bytes", partition_bytes), ("partitions", partitions)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ConfigError(f"{name}={value!r}: expected a whole number above 0")


def _listed(paths: Paths) -> list[str]:
    given = list(paths) if isinstance(paths, Iterable) and not isinstance(paths, str) else [paths]
    for path in given:
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"expected a path or a list of paths, not a {type(path).__name__}: {path!r:.80}")
    if not given:
        raise ConfigError("the list of paths is empty; give at least one file, folder, glob or URL")
    return [os.fsdecode(path) for path in given]


def _suffixes(name: str) -> tuple[str, str]:
    """Return the suffix that tells the format, and that of a compression or an empty string."""
    path = PurePosixPath((name.partition("?")[0] if "://" in name else name).lower())
    path = path.with_name(f"_{path.name}")  # a file may have no name but its suffix
    return (path.with_suffix("").suffix, path.suffix) if path.suffix in _COMPRESSIONS else (path.suffix, "")


def compression_of(name: str) -> str | None:
    """Return what Arrow calls the compression that a name tells of, if any."""
    return _COMPRESSIONS.get(_suffixes(name)[1])


def is_known(name: str) -> bool:
    """Tell whether a name ends as that of a file that can be read."""
    return _format_of(name) is not None


def _format_of(name: str) -> Format | None:
    suffix, compression = _suffixes(name)
    found = _FORMATS.get(suffix)
    return None if compression and found in {"parquet", *_BATCHES} else found


def common_format(files: Sequence[File]) -> Format:
    """Return the format that all files are of."""
    found: Counter[Format] = Counter()
    for file in files:
        if (kind := _format_of(file.name)) is None:
            suffix = _suffixes(file.name)[0]
            if reader := next((reader for reader, suffixes in _OTHERS.items() if suffix in suffixes), None):
                why = ", as opening one may run any code; if you trust it," if reader == "read_pickle" else ";"
                raise ConfigError(
                    f"{file.name}: {suffix} files are not read{why} read it by pandas.{reader}, and pass the frame or "
                    "write it as Parquet"
                )
            raise ConfigError(
                f"{file.name}: its name does not show its format; known are {', '.join(_FORMATS)}, and those of "
                f"text with {', '.join(_COMPRESSIONS)} after them; otherwise use read_files(..., format=)"
            )
        found[kind] += 1
    if len(found) > 1:
        kinds = " and ".join(f"{count} of {kind}" for kind, count in found.items())
        raise ConfigError(f"files of different formats cannot be one source: {kinds}; give one format, by a glob")
    return next(iter(found))
