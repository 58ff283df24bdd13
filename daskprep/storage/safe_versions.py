"""Versions of packages that close security holes, required where data from strangers enters.

Older versions work: `pyproject.toml` has the lowest ones that the code needs.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
from typing import NamedTuple

from daskprep.errors import MissingPackageError

SWITCH = "DASKPREP_UNSAFE_VERSIONS"
"""Environment variable with the packages, separated by commas, whose older versions are accepted; "all" for all."""


class _Safe(NamedTuple):
    module: str
    least: str
    hole: str
    attribute: str = "__version__"


SAFE = {
    "fsspec": _Safe("fsspec", "2026.6", "URLs that lead to other targets"),
    "s3fs": _Safe("s3fs", "2026.6", "URLs that lead to other targets"),
    "gcsfs": _Safe("gcsfs", "2026.6", "URLs that lead to other targets"),
    "pillow": _Safe("PIL", "13.0", "JPEG files and animations, CVE-2026-96639"),
    "opencv-python-headless": _Safe("cv2", "4.12", "JPEG files, CVE-2025-53644"),
    "libsndfile": _Safe("soundfile", "1.2.2", "malformed audio files", "__libsndfile_version__"),
    "pyarrow": _Safe("pyarrow", "23.0.1", "Arrow IPC files, CVE-2026-25087"),
    "sentencepiece": _Safe("sentencepiece", "0.2.1", "model files"),
    "transformers": _Safe("transformers", "4.53", "models that run code, CVE-2024-11393"),
}
_INSTALLED_BY = {"libsndfile": "soundfile>=0.13"}
_OF_PROTOCOL = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}


@functools.cache
def require_safe(package: str, otherwise: str = "") -> None:
    """Raise MissingPackageError if the installed version of a package has a known hole; `otherwise` is a remedy."""
    accepted = os.environ.get(SWITCH, "").replace(" ", "").split(",")
    if package in accepted or "all" in accepted:
        return
    safe = SAFE[package]
    found = str(getattr(importlib.import_module(safe.module), safe.attribute, ""))
    if not found or _numbers(found) >= _numbers(safe.least):
        return
    raise MissingPackageError(
        f"{package} {found} has a known security hole ({safe.hole}), which data from a stranger could use. Upgrade it: "
        f'pip install "{_INSTALLED_BY.get(package, f"{package}>={safe.least}")}"{otherwise}. To accept the risk, set '
        f"{SWITCH}={package} in the environment"
    )


def require_safe_url(protocol: str, otherwise: str = "") -> None:
    """Require safe versions of the packages that open URLs of a protocol."""
    for package in ("fsspec", _OF_PROTOCOL.get(protocol, "")):
        if package:
            require_safe(package, otherwise)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall("[0-9]+", version.partition("+")[0] + ".0.0")[:3]]
