"""What URLs may show, and the file systems behind them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any

import fsspec
from fsspec.core import url_to_fs

from daskprep.errors import ConfigError, did_you_mean
from daskprep.storage.retries import disable_botocore_retries, disable_s3fs_retries
from daskprep.storage.safe_versions import require_safe_url

_PACKAGES = {
    "s3": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "http": "aiohttp",
    "https": "aiohttp",
    "abfs": "adlfs",
}


PROTOCOLS = frozenset(
    {"file", "local", "http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "memory", "hf"}
)
"""What URLs in data may begin with. Others of fsspec run what they are told to (ssh), read a program's state, or take
their target apart (reference, zip, simplecache), so that one URL leads to any other."""

_LOCAL_PROTOCOLS = frozenset({"file", "local", "memory"})
# What is a name in these may hold "?".
_PROTOCOLS_WITHOUT_QUERY = frozenset({"s3", "s3a", "gs", "gcs", "memory", "file", "local"})
# A name alone is no secret: abfs has the container there. Behind a port there is no password, and one may hold "/".
_USER_AND_PASSWORD = re.compile(r"^[^/:@]*:(?![0-9]+(/|$)).*@")


_MAX_NAME_BYTES = 255  # of a name, on the file systems of all operating systems


class UntrustedPath(str):
    """A path, a URL or a name that came with a dataset that nobody said to trust."""

    __slots__ = ()


class UntrustedModelName(str):
    """The name of a model in a saved Preprocessor that is not trusted: it is not looked up on a network."""

    __slots__ = ()


def path_text(path: Any, noun: str, hint: str = "") -> str:
    """Return a path or URL as text; ConfigError for one that no file can have."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(text, str) or not text:
        shown = repr(text) if isinstance(text, str | bytes | None) else f"a {type(text).__name__}"
        raise ConfigError(f"expected the path or URL of a {noun}, not {shown}{hint}")
    fault = "" if "\0" not in text else "it has a NUL character"
    try:
        longest = max(map(len, os.fsencode(text).split(b"/")))
    except UnicodeEncodeError:
        fault = "it has half of a surrogate pair"
    else:
        if longest > _MAX_NAME_BYTES and "://" not in text:
            fault = f"a name in it has {longest:,} bytes, more than {_MAX_NAME_BYTES}"
    if fault:
        raise ConfigError(f"{text[:_MAX_NAME_BYTES]!r} cannot be the path of a {noun}: {fault}; correct it")
    return text


def check_trusted_path(path: str | None, noun: str) -> None:
    """Raise ConfigError if a path came with a dataset that is not trusted; `noun` it is of."""
    if isinstance(path, UntrustedPath):
        raise ConfigError(
            f'{noun} "{redact_url(path)}" is named by a dataset that is not trusted, and is not used: if you trust '
            "who made the dataset, open it with trusted=True"
        )


def check_protocol(url: str) -> None:
    """Raise ConfigError for a URL that data may not name, MissingPackageError if an old package would open it."""
    protocol, separator, rest = url.partition("://")
    if not separator or "/" in protocol:
        return
    if protocol in PROTOCOLS and "::" not in rest:
        if protocol not in _LOCAL_PROTOCOLS:
            require_safe_url(protocol)
        return
    raise ConfigError(
        f'"{redact_url(url)}" is no URL that data may name: it must begin with one of '
        f'{", ".join(sorted(PROTOCOLS))}, each with "://", and lead to a file without "::"'
    )


def open_filesystem(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the file system that a path or URL names, and the path there."""
    protocol = url.partition("://")[0] if "://" in url else ""
    if protocol in {"s3", "s3a"}:
        options = disable_botocore_retries(options)
    try:
        filesystem, path = url_to_fs(url, **(options if protocol not in {"", "file", "local"} else {}))
    except ImportError as error:
        package = _PACKAGES.get(protocol)
        remedy = f"pip install {package}" if package else str(error)
        raise ConfigError(f'"{redact_url(url)}": writing and reading "{protocol}" needs a package: {remedy}') from error
    except ValueError as error:
        if protocol in fsspec.available_protocols():
            raise ConfigError(f'"{redact_url(url)}" cannot be opened: check how it is spelled') from error
        suggestion = did_you_mean(protocol, fsspec.available_protocols())
        raise ConfigError(f'"{redact_url(url)}" cannot be opened: {error}.{suggestion}') from error
    disable_s3fs_retries(filesystem)
    return filesystem, path


def redact_url(url: str) -> str:
    """Return a URL without user, password and query; a few digits of its digest stand for the query."""
    return "::".join(_remove_credentials(part) for part in url.split("::"))


def _remove_credentials(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    query = ""
    if "?" in rest and scheme not in _PROTOCOLS_WITHOUT_QUERY:
        rest, _, secret = rest.partition("?")
        query = f"?{hashlib.sha256(secret.encode()).hexdigest()[:8]}"
    return f"{scheme}://{_USER_AND_PASSWORD.sub('', rest)}{query}"
