"""Reads of byte ranges from S3 with obstore and the settings of s3fs, in about half the processor time of s3fs."""

from __future__ import annotations

import os
import re
import threading
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from fsspec.asyn import sync

# With other options of s3fs, s3fs itself reads.
_SUPPORTED_OPTIONS = {
    "anon",
    "endpoint_url",
    "key",
    "profile",
    "secret",
    "skip_instance_cache",
    "token",
    "use_listings_cache",
}
_SUPPORTED_CLIENT_OPTIONS = {"endpoint_url", "region_name", "retries", "user_agent_extra"}
_TIMEOUTS = {"connect_timeout": "60s", "read_timeout": "60s", "timeout": "1h"}  # as in s3fs; `timeout` is the total
_CREDENTIAL_LIFETIME = timedelta(minutes=10)  # until credentials are read again: s3fs may have renewed them
_ERROR_PATTERN = re.compile(r"status code: (\d{3})(?:.*?<Code>([^<]*)</Code>)?", re.DOTALL)
# The first process that read with obstore: its forks do not inherit the threads of obstore and would wait forever.
_obstore_process: list[int] = []
_store_lock = threading.Lock()


def read_range(filesystem: Any, path: str, start: int, stop: int, stores: dict[str, Any]) -> memoryview:
    """Return the bytes of a file from `start` to `stop`, fewer if it is shorter.

    `stores` is a cache, filled here, of the obstore store of each bucket; None where s3fs reads.
    """
    bucket, _, key = path.partition("/")
    store = None
    if type(filesystem).__module__.startswith("s3fs"):
        _obstore_process[:1] = _obstore_process[:1] or [os.getpid()]
        if _obstore_process[0] == os.getpid():
            with _store_lock:
                store = (
                    stores[bucket] if bucket in stores else stores.setdefault(bucket, _open_store(filesystem, bucket))
                )
    if store is None:
        return memoryview(filesystem.cat_file(path, start=start, end=stop))
    from obstore import exceptions, get_range  # noqa: PLC0415 optional, only for S3

    try:
        return memoryview(get_range(store, key, start=start, end=stop))
    except (OSError, exceptions.BaseError) as error:
        if "status code: 416" in str(error):
            return memoryview(b"")
        raise _translate_error(error) from None


def _open_store(filesystem: Any, bucket: str) -> Any:
    """Return the obstore store of a bucket with the settings of s3fs; None if it is not installed or supports fewer."""
    options, client_settings = dict(filesystem.storage_options), dict[str, Any]()
    for kind in ("client_kwargs", "config_kwargs"):
        client_settings |= options.pop(kind, None) or {}
    if (
        find_spec("obstore") is None
        or options.keys() - _SUPPORTED_OPTIONS
        or client_settings.keys() - _SUPPORTED_CLIENT_OPTIONS
    ):
        return None
    # s3fs determines the host, and whether the bucket is part of its name.
    url, region = urlsplit(filesystem.url(f"{bucket}/any")), filesystem.s3.meta.region_name
    if url.scheme == "https" and filesystem.session.get_config_variable("ca_bundle"):
        return None
    from obstore.store import S3Store  # noqa: PLC0415 as above

    client_limits: Any = {"allow_http": url.scheme == "http", **_TIMEOUTS}
    return S3Store(
        bucket,
        endpoint=f"{url.scheme}://{url.netloc}",
        virtual_hosted_style_request=not url.path.startswith(f"/{bucket}/"),
        region="us-east-1" if region in {None, "aws-global"} else region,
        skip_signature=bool(filesystem.anon),
        credential_provider=lambda: sync(filesystem.loop, _read_credentials, filesystem),
        client_options=client_limits,
        retry_config={"max_retries": 0},
    )


async def _read_credentials(filesystem: Any) -> dict[str, Any]:
    """Return the current credentials of an s3fs file system, in the format of obstore."""
    credentials = filesystem.key, filesystem.secret, filesystem.token
    if not filesystem.key:
        credentials = await (await filesystem.session.get_credentials()).get_frozen_credentials()
    names = ("access_key_id", "secret_access_key", "token")
    return {**dict(zip(names, credentials, strict=False)), "expires_at": datetime.now(UTC) + _CREDENTIAL_LIFETIME}


def _translate_error(error: Exception) -> Exception:
    """Return an error of obstore with HTTP status and code in botocore's format, without its text."""
    kind = TimeoutError if "kind: Timeout" in str(error) else ConnectionError
    translated: Any = (FileNotFoundError if isinstance(error, FileNotFoundError) else kind)()
    if match := _ERROR_PATTERN.search(str(error)):
        translated.response = {"ResponseMetadata": {"HTTPStatusCode": int(match[1])}, "Error": {"Code": match[2] or ""}}
    return translated  # type: ignore[no-any-return]
