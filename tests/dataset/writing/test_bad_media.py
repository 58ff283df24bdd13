"""Odd and broken image and audio files, each with its documented result."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image as PillowImage

import daskprep as dp
from daskprep.errors import MediaError
from daskprep.extensions.media.audio import encode_wav
from daskprep.extensions.media.pixels import encode_png

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
SAMPLES = np.sin(np.arange(4_000, dtype=np.float32) / 9) / 2
PNG, WAV = encode_png(PIXELS), encode_wav(SAMPLES, 8_000)


def saved(image: PillowImage.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def animated() -> bytes:
    frames = [PillowImage.fromarray(PIXELS), PillowImage.fromarray(255 - PIXELS)]
    return saved(frames[0], "GIF", save_all=True, append_images=frames[1:])


def png_header(width: int, height: int) -> bytes:
    """Return a PNG file whose header declares more data than it has."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    start = struct.pack(">I", 1_000) + b"IDAT" + bytes(50)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)) + start


def endless_wav() -> bytes:
    """Return a WAV file whose header declares days of audio."""
    whole = encode_wav((SAMPLES * 32767).astype(np.int16), 8_000)
    return whole[:40] + struct.pack("<I", 0xFFFF_FF00) + whole[44:]


JPEG = saved(PillowImage.fromarray(PIXELS), "JPEG")
READABLE_IMAGES: dict[str, tuple[str, bytes]] = {
    "another extension": ("photo.jpg", PNG),
    "cmyk": ("photo.jpg", saved(PillowImage.fromarray(PIXELS).convert("CMYK"), "JPEG")),
    "animated": ("photo.gif", animated()),
    "one pixel": ("photo.png", encode_png(PIXELS[:1, :1])),
    "palette": ("photo.png", saved(PillowImage.fromarray(PIXELS).convert("P"), "PNG")),
    "16 bits": ("photo.png", encode_png(PIXELS[..., 0].astype(np.uint16) * 257)),
    "alpha": ("photo.png", saved(PillowImage.fromarray(PIXELS).convert("RGBA"), "PNG")),
}
BROKEN_IMAGES: dict[str, tuple[str, bytes | None, str]] = {
    "cut short": ("photo.png", PNG[: len(PNG) // 2], "broken or cut short"),
    "jpeg cut short": ("photo.jpg", JPEG[: len(JPEG) // 2], "broken or cut short"),
    "zero bytes": ("photo.png", b"", "it is empty"),
    "text": ("photo.png", b"this is no image", "it is not an image"),
    "wide header": ("photo.png", png_header(30_000, 30_000), "30000 x 30000 pixels"),
    "wide and flat header": ("photo.png", png_header(30_000, 10), "broken or cut short"),
    "missing": ("photo.png", None, "no such file"),
}
BROKEN_SOUNDS: dict[str, tuple[str, bytes | None, str]] = {
    "header": ("sound.wav", WAV[:20], "cannot be decoded"),
    "no format": ("sound.wav", WAV[:12] + b"junk" + WAV[16:], "cannot be decoded"),
    "no samples": ("sound.wav", encode_wav(SAMPLES[:0], 8_000), "no samples"),
    "zero bytes": ("sound.wav", b"", "is empty"),
    "text": ("sound.wav", b"this is no sound", "is none of WAV"),
    "flac cut short": ("sound.flac", b"fLaC\0\0\0", "cannot be decoded"),
    "missing": ("sound.wav", None, "no such file"),
}


def column(tmp_path: Path, good: bytes, name: str, content: bytes | None) -> pd.DataFrame:
    """Return four rows, of which the third is the tested file."""
    paths = [tmp_path / f"good{row}" for row in range(4)]
    for path in paths:
        path.write_bytes(good)
    paths[2] = tmp_path / name
    if content is not None:
        paths[2].write_bytes(content)
    return pd.DataFrame({"media": list(map(str, paths))})


def image(**options: object) -> dp.Image:
    return dp.Image(height=6, width=8, num_channels=3, **options)


def sound(**options: object) -> dp.Audio:
    return dp.Audio(audio_file_length_limit_in_s=0.2, sampling_rate=8_000, num_filter_bands=4, **options)


@pytest.mark.parametrize("name", READABLE_IMAGES)
def test_odd_image_is_decoded(tmp_path, name):
    frame = column(tmp_path, PNG, *READABLE_IMAGES[name])
    dataset = dp.Preprocessor({"media": image(mode="eager", on_error="drop")}).fit_write(frame, tmp_path / "a.dp")
    assert len(dataset["train"]) == 4
    decoded = dataset["train"].read("media")["media"]
    if name in {"another extension", "alpha"}:
        np.testing.assert_array_equal(decoded[2], decoded[0])
    elif name == "one pixel":
        assert (decoded[2] == PIXELS[0, 0][:, None, None]).all()
    else:
        grey = name == "16 bits"
        near = decoded[0] if not grey else np.broadcast_to(decoded[0][:1], (3, 6, 8))
        assert np.abs(decoded[2].astype(int) - near).mean() < 40


CASES = [(image, PNG, *case) for case in BROKEN_IMAGES.values()]
CASES += [(sound, WAV, *case) for case in BROKEN_SOUNDS.values()]
NAMES = [f"image {name}" for name in BROKEN_IMAGES] + [f"sound {name}" for name in BROKEN_SOUNDS]


@pytest.mark.parametrize(("make", "good", "name", "content", "reason"), CASES, ids=NAMES)
def test_broken_file_raises_on_decoding(
    tmp_path: Path, make: Callable[..., Any], good: bytes, name: str, content: bytes | None, reason: str
) -> None:
    frame = column(tmp_path, good, name, content)
    expected = rf'column "media", row 2: .*{name}: .*{reason}'
    with pytest.raises(MediaError, match=expected):
        dp.Preprocessor({"media": make(mode="eager")}).fit_write(frame, tmp_path / "eager.dp")
    lazy = dp.Preprocessor({"media": make()}).fit_write(frame, tmp_path / "lazy.dp")
    with pytest.raises(MediaError, match=expected):
        list(lazy["train"].loader(2, shuffle=False))


@pytest.mark.parametrize(("make", "good", "name", "content", "reason"), CASES, ids=NAMES)
@pytest.mark.parametrize("mode", ["eager", "lazy", "lazy_cached"])
def test_broken_file_is_filled_or_dropped(
    tmp_path: Path,
    mode: str,
    make: Callable[..., Any],
    good: bytes,
    name: str,
    content: bytes | None,
    reason: str,
) -> None:
    frame = column(tmp_path, good, name, content)
    prep = dp.Preprocessor({"media": make(mode=mode, on_error="fill")})
    message = f'"media": 1 (image|audio) file cannot be decoded: replaced by a fill value, .*{reason}'
    with pytest.warns(UserWarning, match=message) if mode == "eager" else contextlib.nullcontext():
        filled = prep.fit_write(frame, tmp_path / "filled.dp")
    [batch] = filled["train"].loader(4, shuffle=False, expand=False)
    assert len(batch["media"].reshape(4, -1).unique(dim=0)) == 2
    prep = dp.Preprocessor({"media": make(mode=mode, on_error="drop")})
    message = f'"media": 1 (image|audio) file cannot be decoded: rows left out, .*{reason}'
    with pytest.warns(UserWarning, match=message):
        dropped = prep.fit_write(frame, tmp_path / "dropped.dp")
    assert prep.cell_counts(frame).loc["media"].tolist() == [4, 1, 1, 0]
    assert dropped["train"].read("row_id")["row_id"].tolist() == [0, 1, 3]
    [rejected] = dropped.rejects().to_pylist()
    assert rejected["row_id"] == 2
    assert reason in rejected["reason"]


@pytest.mark.parametrize("mode", ["lazy", "eager"])
@pytest.mark.parametrize("split", [None, dp.RandomSplit((0.5, 0.5)), dp.KFold(2)], ids=repr)
def test_rows_left_out_are_not_in_the_statistics(tmp_path: Path, split: Any, mode: str) -> None:
    files = [b"broken" if row % 5 == 0 else PNG for row in range(40)]
    frame = pd.DataFrame({"media": files, "price": np.arange(40.0) ** 2, "kind": list("abcde") * 8})
    features = {"media": image(mode=mode, on_error="drop"), "price": dp.Number(), "kind": dp.Category()}
    prep = dp.Preprocessor(features, split=split)
    with pytest.warns(UserWarning, match="8 image files cannot be decoded: rows left out"):
        written = prep.fit_write(frame, tmp_path / "a.dp")
    for number in range(2 if isinstance(split, dp.KFold) else 1):
        fold = written.fold(number) if isinstance(split, dp.KFold) else written
        rows = frame.iloc[fold["train"].read("row_id")["row_id"]]
        assert set(rows["kind"]) == set("bcde")
        assert fold.learned["price"].mean == pytest.approx(rows["price"].mean())
        assert "a" not in fold.learned["kind"].vocabulary.tokens.to_pylist()
        assert fold.learned["price"].rows == len(rows)


def test_audio_with_too_long_header_has_length_of_file(tmp_path):
    frame = column(tmp_path, WAV, "sound.wav", endless_wav())
    dataset = dp.Preprocessor({"media": sound(mode="eager")}).fit_write(frame, tmp_path / "a.dp")
    decoded = dataset["train"].read("media")["media"]
    assert np.abs(decoded[2] - decoded[0]).max() < 0.1


def test_audio_longer_than_max_seconds_raises(tmp_path):
    frame = column(tmp_path, encode_wav(SAMPLES[:80], 8_000), "sound.wav", WAV)
    with pytest.raises(MediaError, match="lasts .* and max_seconds is"):
        dp.Preprocessor({"media": sound(mode="eager", max_seconds=0.25)}).fit_write(frame, tmp_path / "a.dp")


def test_file_without_read_permission_raises(tmp_path, monkeypatch):
    frame = column(tmp_path, PNG, "photo.png", PNG)
    opened = os.open

    def refuse(path: object, *arguments: object, **options: object) -> int:
        if str(path).endswith("photo.png"):
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(MediaError, match=r"row 2: .*photo\.png: permission denied"):
        dp.Preprocessor({"media": image(mode="eager")}).fit_write(frame, tmp_path / "a.dp")
