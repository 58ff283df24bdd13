"""Security of paths, URLs, functions and packages: checks of untrusted data, URLs without secrets, safe versions.

Safe versions of packages fix security holes, and are required where untrusted data is read. Older versions work:
`pyproject.toml` has the minimum versions that the code needs.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import fsspec
from fsspec.core import url_to_fs

from daskprep.errors import ConfigError, MissingPackageError, did_you_mean
from daskprep.storage.retries import disable_botocore_retries, disable_s3fs_retries

OVERRIDE_VARIABLE = "DASKPREP_UNSAFE_VERSIONS"
"""Environment variable with a comma-separated list of packages whose older versions are accepted; "all" for all."""


class _SafeVersion(NamedTuple):
    """The minimum safe version, and where the installed one is."""

    module: str
    min_version: str
    vulnerability: str
    attribute: str = "__version__"


SAFE_VERSIONS = {
    "fsspec": _SafeVersion("fsspec", "2026.6", "URLs that lead to other targets"),
    "s3fs": _SafeVersion("s3fs", "2026.6", "URLs that lead to other targets"),
    "gcsfs": _SafeVersion("gcsfs", "2026.6", "URLs that lead to other targets"),
    "pillow": _SafeVersion("PIL", "13.0", "JPEG files and animations, CVE-2026-96639"),
    "opencv-python-headless": _SafeVersion("cv2", "4.12", "JPEG files, CVE-2025-53644"),
    "libsndfile": _SafeVersion("soundfile", "1.2.2", "malformed audio files", "__libsndfile_version__"),
    "pyarrow": _SafeVersion("pyarrow", "23.0.1", "Arrow IPC files, CVE-2026-25087"),
    "sentencepiece": _SafeVersion("sentencepiece", "0.2.1", "model files"),
    "transformers": _SafeVersion("transformers", "4.53", "models that run code, CVE-2024-11393"),
}
_INSTALLED_BY = {"libsndfile": "soundfile>=0.13"}
_PROTOCOL_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}


@functools.cache
def require_safe(package: str, alternative: str = "") -> None:
    """Raise MissingPackageError for a known security hole, ImportError without the package."""
    accepted = os.environ.get(OVERRIDE_VARIABLE, "").replace(" ", "").split(",")
    if package in accepted or "all" in accepted:
        return
    safe = SAFE_VERSIONS[package]
    installed = str(getattr(importlib.import_module(safe.module), safe.attribute, ""))
    if not installed or _version_numbers(installed) >= _version_numbers(safe.min_version):
        return
    raise MissingPackageError(
        f"{package} {installed} has a known security hole ({safe.vulnerability}), which untrusted data could exploit. "
        f'Upgrade it: pip install "{_INSTALLED_BY.get(package, f"{package}>={safe.min_version}")}"{alternative}. '
        f"To accept the risk, set {OVERRIDE_VARIABLE}={package} in the environment"
    )


def require_safe_url(protocol: str, alternative: str = "") -> None:
    """Raise MissingPackageError if a package for URLs is unsafe."""
    for package in ("fsspec", _PROTOCOL_PACKAGES.get(protocol, "")):
        if package:
            require_safe(package, alternative)


def _version_numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall("[0-9]+", version.partition("+")[0] + ".0.0")[:3]]


_PACKAGES = {
    **_PROTOCOL_PACKAGES, **dict.fromkeys(("http", "https"), "aiohttp"),
    **dict.fromkeys(("abfs", "abfss", "az", "adl"), "adlfs"),
}  # fmt: skip

PROTOCOLS = frozenset(
    {"file", "local", "http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "memory", "hf"}
)
"""The protocols of URLs that data may contain. Other protocols of fsspec run commands (ssh), read the state of a
program, or contain other URLs (reference, zip, simplecache)."""

_LOCAL_PROTOCOLS = frozenset({"file", "local", "memory"})
# In these protocols, "?" may be part of a file name.
_PROTOCOLS_WITHOUT_QUERY = frozenset({"s3", "s3a", "gs", "gcs", "memory", "file", "local"})
# A user name alone is not secret: in abfs it is the container. Digits after the colon are a port; else it is a
# password, which may contain "/".
_USER_AND_PASSWORD = re.compile(r"^[^/:@]*:(?![0-9]+(/|$)).*@")

_MAX_NAME_BYTES = 255  # of a folder or file, on all file systems


class UntrustedPath(str):
    """A path, URL or name from a dataset that was opened without ``trusted=True``; it is never opened."""

    __slots__ = ()


class UntrustedModelName(str):
    """The name of an untrusted model: it is never downloaded."""

    __slots__ = ()


def path_text(path: Any, noun: str, hint: str = "") -> str:
    """Return a path or URL as text, else ConfigError with the `noun` and the `hint`."""
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
    """Raise ConfigError if an untrusted dataset names the path."""
    if isinstance(path, UntrustedPath):
        raise ConfigError(
            f'{noun} "{redact_url(path)}" is named by a dataset that is not trusted, and is not used: if you trust '
            "the source of the dataset, open it with trusted=True"
        )


def check_function_name(option: str, name: str | None) -> str:
    """Return a valid and trusted dotted name, else ConfigError."""
    if isinstance(name, UntrustedPath):
        raise ConfigError(
            f'{option}: "{name}" is named by a dataset, saved Preprocessor or configuration that is not trusted, and '
            "is not imported: if you trust its source, pass trusted=True to the call that opens it. In place of a "
            "configuration, create the feature in Python"
        )
    if name is None or not all(part.isidentifier() for part in name.split(".")) or "." not in name:
        raise ConfigError(f'{option}: "{name}" is not the dotted name of a function, such as "mypackage.steps.lower"')
    return name


def import_function(option: str, name: str) -> Callable[..., Any]:
    """Return the function with a dotted name; ConfigError if it cannot be imported."""
    module, _, attribute = name.rpartition(".")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ConfigError(f'{option}: cannot import "{name}": {error}') from error
    if not callable(function):
        raise ConfigError(f'{option}: "{name}" is {function!r}, which is not callable')
    return function


def check_protocol(url: str) -> None:
    """Raise ConfigError if data may not contain a URL."""
    protocol, separator, rest = url.partition("://")
    if not separator or "/" in protocol:
        return
    if protocol in PROTOCOLS and "::" not in rest:
        if protocol not in _LOCAL_PROTOCOLS:
            require_safe_url(protocol)
        return
    raise ConfigError(
        f'"{redact_url(url)}" is not a URL that data may contain: it must start with one of '
        f'{", ".join(sorted(PROTOCOLS))}, each with "://", and must not contain "::"'
    )


def open_filesystem(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path; ConfigError if it cannot be opened."""
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
            raise ConfigError(f'"{redact_url(url)}" cannot be opened: check its spelling') from error
        suggestion = did_you_mean(protocol, fsspec.available_protocols())
        raise ConfigError(f'"{redact_url(url)}" cannot be opened: {error}.{suggestion}') from error
    disable_s3fs_retries(filesystem)
    return filesystem, path


def redact_url(url: str) -> str:
    """Return a URL without credentials, with a digest as query."""
    return "::".join(_remove_credentials(part) for part in url.split("::"))


def _remove_credentials(url: str) -> str:
    """Return a URL without password; a digest replaces the query."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    query = ""
    if "?" in rest and scheme not in _PROTOCOLS_WITHOUT_QUERY:
        rest, _, secret = rest.partition("?")
        query = f"?{hashlib.sha256(secret.encode()).hexdigest()[:8]}"
    return f"{scheme}://{_USER_AND_PASSWORD.sub('', rest)}{query}"
