"""Versions of packages that fix security holes, required where untrusted data is read.

Older versions work: `pyproject.toml` has the minimum versions that the code needs.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
from typing import NamedTuple

from daskprep.errors import MissingPackageError

OVERRIDE_VARIABLE = "DASKPREP_UNSAFE_VERSIONS"
"""Environment variable with a comma-separated list of packages whose older versions are accepted; "all" for all."""


class _SafeVersion(NamedTuple):
    """The minimum safe version of a package, and the module and its attribute with the installed version."""

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
    """Raise MissingPackageError if the installed version of a package has a known security hole.

    `alternative` is appended to the command for the upgrade in the message.
    """
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
    """Raise MissingPackageError if a package that opens URLs of a protocol has a known security hole."""
    for package in ("fsspec", _PROTOCOL_PACKAGES.get(protocol, "")):
        if package:
            require_safe(package, alternative)


def _version_numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall("[0-9]+", version.partition("+")[0] + ".0.0")[:3]]
