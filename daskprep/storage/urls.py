"""What URLs may show, and the file systems behind them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import fsspec
from fsspec.core import url_to_fs

from daskprep.errors import ConfigError, did_you_mean

__all__ = ["filesystem_of", "public_name"]

_PACKAGES = {
    "s3": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "http": "aiohttp",
    "https": "aiohttp",
    "abfs": "adlfs",
}


# What is a name in these may hold "?".
_WITHOUT_QUERY = frozenset({"s3", "s3a", "gs", "gcs", "memory", "file", "local"})
# A name alone is no secret: abfs has the container there. Behind a port there is no password, and one may hold "/".
_USER_AND_PASSWORD = re.compile(r"^[^/:@]*:(?![0-9]+(/|$)).*@")


def filesystem_of(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the file system that a path or URL names, and the path there."""
    protocol = url.partition("://")[0] if "://" in url else ""
    try:
        filesystem, path = url_to_fs(url, **(options if protocol not in {"", "file", "local"} else {}))
    except ImportError as error:
        package = _PACKAGES.get(protocol)
        remedy = f"pip install {package}" if package else str(error)
        raise ConfigError(
            f'"{public_name(url)}": writing and reading "{protocol}" needs a package: {remedy}'
        ) from error
    except ValueError as error:
        if protocol in fsspec.available_protocols():
            raise ConfigError(f'"{public_name(url)}" cannot be opened: check how it is spelled') from error
        known = did_you_mean(protocol, fsspec.available_protocols())
        raise ConfigError(f'"{public_name(url)}" cannot be opened: {error}.{known}') from error
    return filesystem, path


def public_name(url: str) -> str:
    """Return a URL without user, password and query; a few digits of its digest stand for the query."""
    return "::".join(_without_credentials(part) for part in url.split("::"))


def _without_credentials(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    if not mark:
        return url
    query = ""
    if "?" in rest and scheme not in _WITHOUT_QUERY:
        rest, _, secret = rest.partition("?")
        query = f"?{hashlib.sha256(secret.encode()).hexdigest()[:8]}"
    return f"{scheme}://{_USER_AND_PASSWORD.sub('', rest)}{query}"
