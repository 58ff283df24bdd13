"""Packages with known vulnerabilities do not read untrusted data, unless an environment variable accepts them."""

from __future__ import annotations

import io
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import fsspec
import numpy as np
import pandas as pd
import PIL
import pyarrow as pa
import pytest
import s3fs
import sentencepiece
import soundfile
from PIL import Image

import daskprep as dp
from daskprep.columns.deferred.reader import MediaReader
from daskprep.errors import MissingPackageError
from daskprep.extensions.media import images
from daskprep.storage import security
from daskprep.storage.security import OVERRIDE_VARIABLE, SAFE_VERSIONS, check_protocol, require_safe

INSTALLED = {
    "pillow": (PIL, "12.9.1"), "opencv-python-headless": (cv2, "4.11.0"), "libsndfile": (soundfile, "1.2.0"),
    "pyarrow": (pa, "23.0.0"), "fsspec": (fsspec, "2026.5.0"), "s3fs": (s3fs, "2026.5.9"),
    "sentencepiece": (sentencepiece, "0.2.0"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for cached in (require_safe, images._pillow_class):
        cached.cache_clear()
    yield
    require_safe.cache_clear()


def make_old(package: str, monkeypatch: pytest.MonkeyPatch) -> str:
    module, version = INSTALLED[package]
    monkeypatch.setattr(module, SAFE_VERSIONS[package].attribute, version)
    return version


def picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "JPEG")
    return file.getvalue()


def sound() -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(400), 8000, format="FLAC")
    return file.getvalue()


def encode(feature: Any, *cells: Any) -> Any:
    return dp.Preprocessor({"x": feature}).fit(pd.DataFrame({"x": pd.Series(cells, dtype=object)}))


def image(**options: Any) -> dp.Image:
    return dp.Image(height=4, width=4, num_channels=3, mode="eager", **options)


def written() -> None:
    dp.Preprocessor({"x": "number"}).fit_write(pd.DataFrame({"x": [1.0, 2.0]}), "x.dp")


def feather() -> Any:
    pd.DataFrame({"x": [1.0, 2.0]}).to_feather("x.feather")
    return dp.Preprocessor({"x": "number"}).fit("x.feather")


ENTRIES: dict[str, tuple[str, Callable[[], Any]]] = {
    "image": ("pillow", lambda: dp.Preprocessor({"x": image()}).fit_write(pd.DataFrame({"x": [picture()]}), "i.dp")),
    "image that may be filled": (
        "pillow",
        lambda: dp.Preprocessor({"x": image(on_error="fill")}).fit_write(pd.DataFrame({"x": [picture()]}), "i.dp"),
    ),
    "image by OpenCV": (
        "opencv-python-headless",
        lambda: dp.Preprocessor({"x": image(jpeg_decoder="opencv")}).fit_write(
            pd.DataFrame({"x": [picture()]}), "i.dp"
        ),
    ),
    "sound": ("libsndfile", lambda: encode(dp.Audio(), sound())),
    "file of Arrow": ("pyarrow", feather),
    "dataset": ("pyarrow", lambda: (written(), dp.open_dataset("x.dp"))),
    "URL in data": ("fsspec", lambda: MediaReader().read("http://127.0.0.1:9/x.png")),
    "URL of S3 in data": ("s3fs", lambda: check_protocol("s3://bucket/x.png")),
    "model": (
        "sentencepiece",
        lambda: (
            Path("x.model").write_bytes(b"x"),
            encode(dp.Text(tokenizer="sentencepiece", pretrained_model_name_or_path="x.model"), "a"),
        ),
    ),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_untrusted_data_requires_safe_packages(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, enter = ENTRIES[entry]
    version = make_old(package, monkeypatch)
    message = (
        f"{re.escape(f'{package} {version} has a known security hole')}.*pip install .*{OVERRIDE_VARIABLE}={package}"
    )
    with pytest.raises(MissingPackageError, match=message):
        enter()


@pytest.mark.parametrize(
    "entry", ["image", "image by OpenCV", "sound", "file of Arrow", "dataset", "URL of S3 in data"]
)
@pytest.mark.parametrize("accepted", ["all", "s3fs, {}"])
def test_environment_variable_accepts_old_packages(entry: str, accepted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, enter = ENTRIES[entry]
    make_old(package, monkeypatch)
    monkeypatch.setenv(OVERRIDE_VARIABLE, accepted.format(package))
    enter()


def test_trusted_dataset_is_read_with_an_old_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    make_old("pyarrow", monkeypatch)
    written()
    with pytest.raises(MissingPackageError, match="or open the dataset with trusted=True"):
        dp.open_dataset("x.dp")
    assert len(dp.open_dataset("x.dp", trusted=True)["train"]) == 2


@pytest.mark.parametrize(
    ("least", "found", "is_safe"),
    [
        ("13.0", "13.0.0", True), ("13.0", "12.99.9", False), ("13.0", "13", True), ("2026.6", "2026.6.0.dev1", True),
        ("2026.6", "2025.12.0", False), ("1.2.2", "1.2.2", True), ("4.53", "4.9.2", False), ("4.53", "5.0.0rc1", True),
        ("23.0.1", "23.0.1+local.9", True), ("1.0", "", True),
    ],
)  # fmt: skip
def test_versions_are_compared_by_number(
    least: str, found: str, is_safe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "some_package", types.SimpleNamespace(__version__=found))
    monkeypatch.setitem(
        security.SAFE_VERSIONS, "some", SAFE_VERSIONS["fsspec"]._replace(module="some_package", min_version=least)
    )
    try:
        require_safe("some")
    except MissingPackageError:
        assert not is_safe
    else:
        assert is_safe


def test_pages_list_the_safe_versions() -> None:
    root = Path(__file__).parents[2]
    pages = [(root / name).read_text(encoding="utf-8") for name in ("docs/security.md", "CONTRIBUTING.md")]
    for package, safe in SAFE_VERSIONS.items():
        assert re.search(rf"\| {package} \| {re.escape(safe.min_version)} \|", pages[0]), package
    assert all(OVERRIDE_VARIABLE in page for page in pages)
