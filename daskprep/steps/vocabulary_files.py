"""Vocabularies too large for JSON, which lie in Parquet files beside it."""

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
_MAX_EXPANSION = 100


def load_vocabularies(
    value: Any, where: str, read: Callable[[str], bytes], to_learned: Callable[[str, bytes], Mapping[str, Any]]
) -> Any:
    """Return a state with the vocabularies that it names.

    `read` returns the bytes of a file, and ``to_learned(name, content)`` what stands in the place of its name.
    """
    if not isinstance(value, Mapping) or isinstance(value.get("idx2str"), list):
        return value
    name = value.get(FILE_KEY)
    if not isinstance(name, str):
        return {key: load_vocabularies(one, where, read, to_learned) for key, one in value.items()}
    others = {key: one for key, one in value.items() if key != FILE_KEY}
    return {**others, **to_learned(name, _read_checked(name, where, read))}


def _read_checked(name: str, where: str, read: Callable[[str], bytes]) -> bytes:
    """Return the content of a vocabulary's file, whose name ends in the digest of it."""
    if not _FILE_NAME.fullmatch(name):
        raise CorruptDatasetError(f"{where} names a vocabulary file outside its folder: {name!r}")
    try:
        content = read(name)
    except FileNotFoundError as error:
        raise CorruptDatasetError(f"{where} names the vocabulary file {name}, which is not there") from error
    if not name.endswith(f"-{hashlib.sha256(content).hexdigest()[:16]}.parquet"):
        raise CorruptDatasetError(f"the vocabulary file {name} is not the one that {where} was saved with: restore it")
    return content


def read_unless_link(path: Path) -> bytes:
    """Return the bytes of a vocabulary's file; CorruptDatasetError for a link."""
    if path.is_symlink() or path.parent.is_symlink():
        raise CorruptDatasetError(f"{path} is a link, and a vocabulary is none: put the file in its place")
    return path.read_bytes()


def parse_vocabulary_file(name: str, content: bytes) -> dict[str, Any]:
    """Return tokens by id, and special symbols by role, of a file of daskprep."""
    try:
        import pyarrow as pa  # noqa: PLC0415 large vocabularies alone need it
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"the vocabulary {name} lies in Parquet, as do those of more than 100,000 tokens: pip install pyarrow to "
            "serve it, or fit with a smaller most_common"
        ) from error
    try:
        with pq.ParquetFile(io.BytesIO(content), page_checksum_verification=True) as file:
            footer = file.metadata
            groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
            # Written plainly, tokens take in memory what the footer says: a dictionary could make any amount of them.
            plain = not any(group.column(0).has_dictionary_page for group in groups)
            size = max(footer.num_rows * 8, sum(group.total_byte_size for group in groups))
            if not plain or size > _MAX_EXPANSION * len(content):
                raise CorruptDatasetError(f"the vocabulary {name} is not as daskprep writes it: restore it")
            tokens, roles = (file.read([column])[column].to_pylist() for column in ("token", "roles"))
    except (pa.ArrowException, KeyError, OSError) as error:
        raise CorruptDatasetError(f"{name} holds no vocabulary ({error}): restore it, or fit again") from error
    symbols = {
        role: token for token, role_names in zip(tokens, roles, strict=True) for role in (role_names or "").split(",")
    }
    symbols.pop("", None)
    # No row depends on frequencies.
    return {"idx2str": tokens, "special_symbols": symbols, "frequencies": {"values": [0], "tokens": [len(tokens)]}}
