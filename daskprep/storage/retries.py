"""Requests to remote file systems: retries, and reasons of failures without URLs and credentials."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from daskprep.errors import ConfigError
from daskprep.storage.local_files import DISK_FULL_ERRNOS

ATTEMPTS = 8
_FIRST_PAUSE, _MAX_PAUSE = 0.1, 5.0  # seconds
# After this time no attempt follows the second. The second always takes place: a connection may hang that long.
_MAX_RETRY_SECONDS = 60.0
_PERMANENT_ERRORS = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
# The libraries of stores raise their own errors, which are not OSErrors.
_NETWORK_MODULES = re.compile(r"(aiohttp|aiobotocore|botocore|gcsfs|google|azure|requests|urllib3|http|ssl)(\.|$)")
RETRY_STATUSES = frozenset({408, 429})  # HTTP: timeout and too many requests
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,60}")
_CREDENTIAL_ERROR = re.compile(r"Token|Access|Signature|Credential|Forbid|Unauthorized|\b40[13]\b")

T = TypeVar("T")


def pop_attempts(options: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return "attempts" of storage options, 8 if absent, and other options; ConfigError below 1."""
    filesystem_options = dict(options)
    attempts = filesystem_options.pop("attempts", ATTEMPTS)
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise ConfigError(f'storage_options: "attempts" must be an integer of at least 1, not {attempts!r}')
    return attempts, filesystem_options


def call_with_retries(call: Callable[[], T], attempts: int) -> T:
    """Return the result of `call`, tried up to `attempts` times after temporary errors."""
    started, pause = time.monotonic(), _FIRST_PAUSE
    for attempt in range(1, attempts + 1):
        try:
            return call()
        except Exception as error:
            is_late = attempt > 1 and time.monotonic() - started > _MAX_RETRY_SECONDS
            if attempt == attempts or is_late or not is_transient(error):
                error.attempts = attempt  # type: ignore[attr-defined]
                raise
        # At random, so that clients that failed at the same time do not retry at the same time.
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 no secret
        pause = min(2 * pause, _MAX_PAUSE)
    raise AssertionError


def disable_botocore_retries(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of s3fs without retries of botocore."""
    # fsspec returns the same file system for the same options; the user agent keeps ours separate from those that other
    # code in the process uses.
    config = {"retries": {"total_max_attempts": 1}, "user_agent_extra": "daskprep"}
    return {**options, "config_kwargs": {**config, **options.get("config_kwargs", {})}}


def disable_s3fs_retries(filesystem: Any) -> None:
    """Disable the retries of s3fs, too."""
    if type(filesystem).__module__.startswith("s3fs"):
        filesystem.retries = 1


def enable_filesystem_retries(filesystem: Any) -> Any:
    """Return a new s3fs file system with 5 attempts of botocore, and any other unchanged."""
    if not type(filesystem).__module__.startswith("s3fs"):
        return filesystem
    options = filesystem.storage_options
    config = {**options.get("config_kwargs", {}), "retries": {"max_attempts": 5}}
    return type(filesystem)(*filesystem.storage_args, **{**options, "config_kwargs": config})


def retry_fetches(file: Any, attempts: int) -> Any:
    """Add retries to an open fsspec file, and return it."""
    cache: Any = getattr(file, "cache", None)
    if (fetch := getattr(cache, "fetcher", None)) is not None:
        cache.fetcher = lambda start, end: call_with_retries(lambda: fetch(start, end), attempts)
    return file


def is_transient(error: BaseException) -> bool:
    """Return whether an error is temporary, such as a timeout."""
    # For web servers, fsspec raises every failure as FileNotFoundError: only the first cause is reliable.
    *_, root_cause = _chain(error)
    for cause in _chain(error):
        if (status := _parse_error(cause)[1]) is not None:
            return status >= 500 or status in RETRY_STATUSES
    if (
        isinstance(root_cause, _PERMANENT_ERRORS)
        or getattr(root_cause, "errno", None) in DISK_FULL_ERRNOS
        or "Credential" in type(root_cause).__name__
    ):
        return False
    return isinstance(root_cause, OSError | EOFError) or bool(_NETWORK_MODULES.match(type(root_cause).__module__))


def reason_of(error: BaseException) -> str:
    """Return class, code and attempts of a failed request."""
    parsed_errors = list(map(_parse_error, _chain(error)))
    codes = (code for kind in zip(*parsed_errors, strict=True) for code in kind if code)
    tries = getattr(error, "attempts", 1)
    *_, root_cause = _chain(error)
    reported = root_cause if isinstance(error, FileNotFoundError) else error
    details = [type(reported).__name__, *(str(code) for code in islice(codes, 1))]
    return ", ".join([*details, *([f"{tries} attempts"] if tries > 1 else [])])


def explain(error: BaseException) -> str:
    """Return reason and remedy of a failed request; raise a MemoryError, which is no fault of the store."""
    if isinstance(error, MemoryError):
        raise error
    reason = reason_of(error)
    if is_transient(error) and getattr(error, "attempts", 1) > 1:
        remedy = 'check the connection, try later, or raise "attempts" in storage_options'
    elif _CREDENTIAL_ERROR.search(reason):
        remedy = "check the credentials in storage_options, and their permissions"
    else:
        remedy = "check the connection, and the credentials in storage_options"
    return f"({reason}); {remedy}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, the first cause last."""
    while error is not None:
        yield error
        error = error.__cause__


def _parse_error(error: BaseException) -> tuple[str | None, int | None, str | None]:
    """Return code, HTTP status and message of an error."""
    response = getattr(error, "response", None)  # set by botocore
    fields: Mapping[str, Any] = response if isinstance(response, Mapping) else {}
    code = str(fields.get("Error", {}).get("Code", ""))
    # The attribute `code` is a status in gcsfs only, not in aiohttp.
    library_status = getattr(error, "code" if type(error).__module__.startswith("gcsfs") else "status", None)
    statuses = (fields.get("ResponseMetadata", {}).get("HTTPStatusCode"), library_status)
    status = next((value for value in statuses if isinstance(value, int) and 400 <= value < 600), None)
    number = error.errno if isinstance(error, OSError) else None
    message = os.strerror(number) if isinstance(number, int) else None
    return code if _CODE.fullmatch(code) else None, status, message
