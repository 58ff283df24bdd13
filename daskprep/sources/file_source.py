"""Files as a source: formats by file name, one schema for all files, partitions of similar size."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, Literal, get_args

import pyarrow as pa

from daskprep.columns.display import parse_bytes
from daskprep.columns.kernels import unwrap_mixed_table
from daskprep.errors import ConfigError, did_you_mean, warn
from daskprep.sources.arrow_types import TEXT_CODES
from daskprep.sources.base import Fragment, FragmentListSource, group_fragments, require_columns
from daskprep.sources.columnar import (
    BatchFragment,
    CommonSchema,
    FeatherFragment,
    OrcFragment,
    plan_batches,
    plan_parquet,
)
from daskprep.sources.delimited import (
    DEFAULT_NULLS,
    DelimitedFragment,
    Dialect,
    describe_suspicious_header,
    plan_delimited,
)
from daskprep.sources.json_lines import JsonFragment, assign_types, plan_json
from daskprep.sources.locations import File, Spool, find_files, for_each_file, has_room
from daskprep.sources.tars import plan_tars
from daskprep.sources.text import TextFile, codec_name

PARTITION_BYTES = 64_000_000
_MEMORY_RATIO = 2.3  # bytes in memory for each byte of a file: of Parquet with every type but media, measured

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_SHOWN_FILES = 3
_SURVEY_THREADS = 8  # each thread keeps the bytes and the table of one fragment in memory

Format = Literal["parquet", "csv", "tsv", "jsonl", "feather", "orc", "tar"]
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
    ".tar": "tar",
}
_BATCH_FORMATS: dict[str, type[BatchFragment]] = {"feather": FeatherFragment, "orc": OrcFragment}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


class FileSource(FragmentListSource):
    """Files of one format, as partitions of about the same size.

    Created by `read_files`. `columns` are all columns of the files, `schema` has the chosen ones. `settings` are the
    options of `read_files` that determine how the files are parsed.
    """

    def __init__(
        self,
        format: Format,
        files: Sequence[File],
        common_schema: CommonSchema,
        fragments: Sequence[Fragment],
        *,
        settings: Mapping[str, Any],
        columns: list[str] | None,
    ) -> None:
        folders = {name: TEXT_CODES for file in files for name, _ in file.folders}
        types = common_schema.types | folders
        if not types:
            raise ConfigError(f"{files[0].name}: the file has no columns; check that it contains rows")
        self.format = format
        self.reads_all = format in ("csv", "tsv")
        self.files = tuple(files)
        self.settings = dict(settings)
        self.columns = list(types)
        self._problems = common_schema.problems | {
            name: f'column "{name}" is in the names of folders ("{name}=..."), but {file.name} is not in such a '
            "folder; put all files in such folders or none"
            for name in folders
            for file in files
            if name not in dict(file.folders)
        }
        wanted = self.columns if columns is None else columns
        self.require(wanted)
        super().__init__(pa.schema([(name, types[name]) for name in wanted]), fragments)

    @property
    def record(self) -> Mapping[str, Any] | None:  # type: ignore[override]
        """Files and settings as JSON values; None if files have no times."""
        if not all(file.stamp for file in self.files):
            return None  # the file system has no modification times
        return {"files": [*map(list, self.fingerprint())], "format": self.format, "settings": self.settings}

    def fingerprint(self) -> list[tuple[str, int | None, str]]:
        """Return path, size, and time or version of every file."""
        return [(file.name, file.size, file.stamp) for file in self.files]

    def __repr__(self) -> str:
        shown = ", ".join(f'"{file.name}"' for file in self.files[:_SHOWN_FILES])
        more = f" and {len(self.files) - _SHOWN_FILES} more" if len(self.files) > _SHOWN_FILES else ""
        size = f"{self.npartitions} partitions, {len(self.columns)} columns"
        return f"<FileSource: {size} of {self.format}: {shown}{more}>"


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
    partition_bytes: str | int = PARTITION_BYTES,
    partitions: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    scratch: str | os.PathLike[str] | None = None,
) -> FileSource:
    r"""Return a source that reads Parquet, CSV, TSV, JSON, Feather, Arrow IPC or ORC files.

    This call reads footers and CSV headers, and scans CSV for quotes if files must be partitioned. It reads JSON
    completely, since only that shows the types of its columns. Rows are read later, partition by partition.

    Parameters
    ----------
    paths : str, path or iterable of these
        Files, folders, globs or URLs of any file system that fsspec supports. Folders named ``key=value`` inside a
        folder or glob become columns.
    columns : iterable of str, optional
        Columns to read. Other columns are not checked, and do not count towards `partition_bytes`.
    format : {"parquet", "csv", "tsv", "jsonl", "feather", "orc", "tar"}, optional
        Format of the files, if their names do not show it.
    delimiter : str, optional
        Separator of CSV values. By default it is detected among comma, tab, semicolon and "|".
    quote : str or None
        Quote character around CSV values that contain delimiters or newlines. None: quotes have no meaning.
    encoding : str
        Encoding of CSV and JSON lines. Files in encodings such as UTF-16 are one partition each, like compressed ones.
    null_values : iterable of str, or mapping from columns to these
        Texts that mark missing values in CSV, also with a space before or after them. By default, and for columns
        absent from a mapping: empty values and the texts that pandas treats as missing.
    header : 0 or None
        0: the first line of CSV contains the column names. None: the first line is a row.
    names : sequence of str, optional
        Column names, with ``header=None``; "column_0", "column_1", ... by default.
    skip_rows : int
        Number of lines to skip at the start of CSV.
    comment : str, optional
        Skip lines of CSV that start with this character.
    decimal, thousands : str, or mapping from columns to these
        Decimal mark and thousands separator of numbers in CSV, for all columns or for the columns in a mapping. A value
        is converted to a decimal point only if all of it is one number.
    partition_bytes : str or int
        Maximum size of a partition in memory, such as "100MB", unless a single row group or record is larger.
    partitions : int, optional
        Number of partitions: more if `partition_bytes` requires it, fewer if files cannot be split that often.
    storage_options : mapping, optional
        Options for fsspec to open URLs, such as credentials.
    scratch : str or path, optional
        Local folder for the parsed rows of JSON, so that later passes do not parse them again.
        None: the system's temporary folder.

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
    partition_bytes = parse_bytes(partition_bytes, "partition_bytes")
    _check_options(format, partitions, columns=columns, names=names, null_values=null_values)
    wanted = None if columns is None else list(dict.fromkeys(columns))
    files = find_files(_list_paths(paths), storage_options, (lambda _: True) if format else has_known_format)
    file_format = format or common_format(files)
    known_delimiter = delimiter or ("\t" if file_format == "tsv" else "")
    labels = () if names is None else tuple(names)
    by_column = null_values if isinstance(null_values, Mapping) else {"": null_values}
    nulls = {name: list(texts) for name, texts in by_column.items()}
    if not all(isinstance(text, str) for texts in nulls.values() for text in texts):
        raise ConfigError(f"null_values={null_values!r:.80}: CSV cells are text, so pass texts, such as '-999'")
    marks = nulls if isinstance(null_values, Mapping) else nulls[""]
    dialect = Dialect(known_delimiter, quote, marks, header, labels, skip_rows, comment, decimal, thousands)
    dialect.check()
    if file_format not in ("csv", "tsv") and dialect.non_default_options:
        raise ConfigError(
            f"{next(iter(dialect.non_default_options))}= is for CSV, but {files[0].name} is read as {file_format}"
        )
    settings: dict[str, Any] = {"format": file_format}
    if file_format == "parquet":
        common_schema, fragments = plan_parquet(files, wanted, partition_bytes, partitions)
    elif file_format in _BATCH_FORMATS:
        common_schema, fragments = plan_batches(_BATCH_FORMATS[file_format], files, wanted, partition_bytes, partitions)
    elif file_format == "tar":
        common_schema, fragments = plan_tars(files, partition_bytes, partitions)
    else:
        codec = codec_name(encoding)
        texts = [TextFile(file, codec, _COMPRESSIONS.get(_split_suffixes(file.name)[1])) for file in files]
        settings["encoding"] = codec
        fragment_bytes = min(partition_bytes, max(1, sum(file.size or 0 for file in files) // (partitions or 1)))
        text_fragments: list[Any]
        if file_format == "jsonl":
            common_schema, text_fragments = _plan_json(texts, fragment_bytes, scratch)
        else:
            settings |= {"delimiter": delimiter, "quote": quote, "null_values": dialect.null_values}
            settings |= dialect.non_default_options
            common_schema, text_fragments = _plan_delimited(texts, dialect, fragment_bytes)
        fragments = group_fragments(
            text_fragments, partition_bytes, keep_separate=lambda one: not one.text.can_split, partitions=partitions
        )
    return FileSource(file_format, files, common_schema, fragments, settings=settings, columns=wanted)


def _plan_delimited(
    texts: Sequence[TextFile], dialect: Dialect, fragment_bytes: int
) -> tuple[CommonSchema, list[DelimitedFragment]]:
    """Return common schema and fragments; warn if the first line looks like a row."""
    fragments_by_file = for_each_file(lambda text: plan_delimited(text, dialect, fragment_bytes), texts)
    if dialect.header is not None and (
        problem := describe_suspicious_header(texts[0], fragments_by_file[0][0].dialect)
    ):
        warn(
            f"{texts[0].file.name}: its first line is used as column names, but {problem}; if it is a row, use "
            "read_files(..., header=None), with names= for names; to replace the names, add skip_rows=1"
        )
    schemas = [
        pa.schema([(name, pa.string()) for name in fragments[0].dialect.names]) for fragments in fragments_by_file
    ]
    common_schema = CommonSchema([text.file for text in texts], schemas)
    require_columns(dialect.named_columns, list(common_schema.types))
    return common_schema, list(chain.from_iterable(fragments_by_file))


def _plan_json(
    texts: Sequence[TextFile], fragment_bytes: int, scratch: str | os.PathLike[str] | None
) -> tuple[CommonSchema, list[JsonFragment]]:
    """Return common schema and fragments; parsed rows are kept in `scratch` if they fit."""
    untyped = list(chain.from_iterable(for_each_file(lambda text: plan_json(text, fragment_bytes), texts)))
    spool = Spool(None if scratch is None or "://" in os.fspath(scratch) else scratch)
    keep = spool if has_room(spool.path, sum(fragment.nbytes for fragment in untyped)) else None
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _SURVEY_THREADS), "daskprep-json") as pool:
        surveys = list(pool.map(lambda fragment: fragment.survey(keep), untyped))
    fragments = assign_types(untyped, surveys, spool)
    # No check for columns absent from some files: in JSON, any object may lack a key, which then is a missing value.
    return CommonSchema([fragments[0].file], [unwrap_mixed_table(fragments[0].schema.empty_table()).schema]), fragments


def _check_options(format: str | None, partitions: int | None, **lists: object) -> None:
    """Raise ConfigError for an unknown format, a number below 1, or text where a list is needed."""
    if format is not None and format not in (formats := get_args(Format)):
        raise ConfigError(f"format={format!r}: expected one of {', '.join(formats)}.{did_you_mean(format, formats)}")
    if partitions is not None and (not isinstance(partitions, int) or partitions < 1):
        raise ConfigError(f"partitions={partitions!r}: expected an integer above 0")
    for option, value in lists.items():
        if isinstance(value, str):
            raise ConfigError(f"{option}={value!r}: expected a list, such as [{value!r}]")


def _list_paths(paths: Paths) -> list[str]:
    """Return one path, or several, as a list of text; ConfigError for an empty list, and for frames."""
    if hasattr(paths, "columns"):
        raise ConfigError(f"read_files is for paths, not for a {type(paths).__name__}: pass it without read_files")
    path_list = list(paths) if isinstance(paths, Iterable) and not isinstance(paths, str) else [paths]
    for path in path_list:
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"expected a path or a list of paths, not a {type(path).__name__}: {path!r:.80}")
    if not path_list:
        raise ConfigError("the list of paths is empty; pass at least one file, folder, glob or URL")
    return [os.fsdecode(path) for path in path_list]


def estimate_file_bytes(paths: Paths, storage_options: Mapping[str, Any] | None, format: str | None) -> int | None:
    """Return the estimated bytes of files in memory, or None if a size is unknown."""
    files = find_files(_list_paths(paths), storage_options, (lambda _: True) if format else has_known_format)
    sizes = [file.size for file in files]
    return None if None in sizes else int(_MEMORY_RATIO * sum(filter(None, sizes)))


def _split_suffixes(name: str) -> tuple[str, str]:
    """Return the suffixes of format and compression in lower case: (".csv", ".gz") or (".csv", "")."""
    path = PurePosixPath((name.partition("?")[0] if "://" in name else name).lower())
    path = path.with_name(f"_{path.name}")  # a file may have no name but its suffix
    return (path.with_suffix("").suffix, path.suffix) if path.suffix in _COMPRESSIONS else (path.suffix, "")


def has_known_format(name: str) -> bool:
    """Return whether a file name's suffix is of a known format."""
    return _find_format(name) is not None


def _find_format(name: str) -> Format | None:
    """Return the format of a file by its name; None if unknown, or compressed and binary."""
    suffix, compression = _split_suffixes(name)
    file_format = _FORMATS.get(suffix)
    return None if compression and file_format in {"parquet", "tar", *_BATCH_FORMATS} else file_format


def common_format(files: Sequence[File]) -> Format:
    """Return the format of all files by their names; ConfigError if they differ, or for an unknown one."""
    format_counts: Counter[Format] = Counter()
    for file in files:
        if (file_format := _find_format(file.name)) is None:
            raise ConfigError(
                f"{file.name}: its name does not show its format: use read_files(..., format=), or one of the suffixes "
                f"{', '.join(_FORMATS)}, to which text formats may add {', '.join(_COMPRESSIONS)}. Read other formats "
                "with pandas, such as by pandas.read_excel, and pass the frame"
            )
        format_counts[file_format] += 1
    if len(format_counts) > 1:
        kinds = " and ".join(f"{count} of {file_format}" for file_format, count in format_counts.items())
        raise ConfigError(
            f"files of different formats cannot be one source: {kinds}; choose one format with a glob, and append "
            "files of another format after the write, or convert them"
        )
    return next(iter(format_counts))
