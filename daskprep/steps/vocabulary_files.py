"""Reader of vocabularies too large for JSON, which are stored in Parquet files next to it."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from daskprep.errors import ConfigError, CorruptDatasetError

FILE_KEY = "vocabulary_file"
_FILE_NAME = re.compile(r"(?:[^/\\]+\.)?vocab/[^/\\]+\.parquet")
_MAX_EXPANSION = 100  # ratio of the size in memory to the file size, beyond which a file was not written by daskprep


def load_vocabularies(
    value: Any, where: str, read: Callable[[str], bytes], to_learned: Callable[[str, bytes], Mapping[str, Any]]
) -> Any:
    """Return a state in which the contents of vocabulary files replace their names, at any depth.

    Parameters
    ----------
    value : any
        The state, or a part of it.
    where : str
        Name of the state in error messages.
    read : callable
        Returns the bytes of the file of a name.
    to_learned : callable
        ``to_learned(name, content)`` returns the learned values that replace the name.
    """
    if not isinstance(value, Mapping) or isinstance(value.get("idx2str"), list):
        return value
    name = value.get(FILE_KEY)
    if not isinstance(name, str):
        return {key: load_vocabularies(item, where, read, to_learned) for key, item in value.items()}
    others = {key: item for key, item in value.items() if key != FILE_KEY}
    return {**others, **to_learned(name, _read_checked(name, where, read))}


def _read_checked(name: str, where: str, read: Callable[[str], bytes]) -> bytes:
    """Return the content of a vocabulary file; raise CorruptDatasetError unless its name ends in its digest."""
    if not _FILE_NAME.fullmatch(name):
        raise CorruptDatasetError(f"{where} names a vocabulary file outside its folder: {name!r}")
    try:
        content = read(name)
    except FileNotFoundError as error:
        raise CorruptDatasetError(f"{where} names the vocabulary file {name}, which does not exist") from error
    if not name.endswith(f"-{hashlib.sha256(content).hexdigest()[:16]}.parquet"):
        raise CorruptDatasetError(f"the vocabulary file {name} is not the one that {where} was saved with: restore it")
    return content


def read_unless_link(path: Path) -> bytes:
    """Return the bytes of a vocabulary file; raise CorruptDatasetError if it or its folder is a symbolic link."""
    if path.is_symlink() or path.parent.is_symlink():
        raise CorruptDatasetError(f"{path} is a link, but a vocabulary must be a file: replace the link by the file")
    return path.read_bytes()


def parse_vocabulary_file(name: str, content: bytes) -> dict[str, Any]:
    """Return the learned values of a vocabulary file: tokens in the order of ids, and special symbols by role."""
    try:
        import pyarrow as pa  # noqa: PLC0415 only large vocabularies need it
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"the vocabulary {name} is stored in Parquet, since it has more than 100,000 tokens: pip install pyarrow "
            "to serve it, or fit with a smaller most_common"
        ) from error
    try:
        with pq.ParquetFile(io.BytesIO(content), page_checksum_verification=True) as file:
            footer = file.metadata
            groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
            # Without a dictionary, the footer states the size in memory; with one, a small file could fill any memory.
            plain = not any(group.column(0).has_dictionary_page for group in groups)
            size = max(footer.num_rows * 8, sum(group.total_byte_size for group in groups))
            if not plain or size > _MAX_EXPANSION * len(content):
                raise CorruptDatasetError(f"the vocabulary {name} was not written by daskprep: restore it")
            tokens, roles = (file.read([column])[column].to_pylist() for column in ("token", "roles"))
    except (pa.ArrowException, KeyError, OSError) as error:
        raise CorruptDatasetError(f"{name} holds no vocabulary ({error}): restore it, or fit again") from error
    symbols = {
        role: token for token, role_names in zip(tokens, roles, strict=True) for role in (role_names or "").split(",")
    }
    symbols.pop("", None)
    # Encoded rows do not depend on frequencies.
    return {"idx2str": tokens, "special_symbols": symbols, "frequencies": {"values": [0], "tokens": [len(tokens)]}}
