"""What files hold, as their names tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from daskprep.errors import ConfigError
from daskprep.sources.locations import File

Format = Literal["parquet", "csv", "tsv", "jsonl", "feather"]

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
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


def _suffixes(name: str) -> tuple[str, str]:
    """Return the suffix that tells the format, and that of a compression or an empty string."""
    base = name.partition("?")[0].rpartition("/")[2] if "://" in name else name.rpartition("/")[2]
    stem, dot, last = base.rpartition(".")
    last = f"{dot}{last.lower()}"
    if last not in _COMPRESSIONS:
        return last, ""
    return "." + stem.rpartition(".")[2].lower(), last


def compression_of(name: str) -> str | None:
    """Return what Arrow calls the compression that a name tells of, if any."""
    return _COMPRESSIONS.get(_suffixes(name)[1])


def is_known(name: str) -> bool:
    """Tell whether a name ends as that of a file that can be read."""
    return _format_of(name) is not None


def _format_of(name: str) -> Format | None:
    suffix, compression = _suffixes(name)
    found = _FORMATS.get(suffix)
    return None if compression and found in {"parquet", "feather"} else found


def common_format(files: Sequence[File]) -> Format:
    """Return the format that all files are of."""
    found: Counter[Format] = Counter()
    for file in files:
        kind = _format_of(file.name)
        if kind is None:
            raise ConfigError(
                f"{file.name}: its name does not show its format; known are {', '.join(_FORMATS)}, and those of "
                f"text with {', '.join(_COMPRESSIONS)} after them; otherwise use read_files(..., format=)"
            )
        found[kind] += 1
    if len(found) > 1:
        kinds = " and ".join(f"{count} of {kind}" for kind, count in found.items())
        raise ConfigError(f"files of different formats cannot be one source: {kinds}; give one format, by a glob")
    return next(iter(found))
