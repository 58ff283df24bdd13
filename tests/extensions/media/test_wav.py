"""The fast path for plain WAV files equals libsndfile, which decodes all other files."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import soundfile

from daskprep.errors import MediaError
from daskprep.extensions.media import audio
from daskprep.extensions.media.audio import AudioRecipe, decode_audio, read_plain_wav

SAMPLES = np.random.default_rng(0).uniform(-1, 1, (501, 2))
RAW = AudioRecipe("raw", 8_000, length_limit_in_s=0.05)


def saved(subtype: str, channels: int = 2, format: str = "WAV") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, SAMPLES[:, :channels], 8_000, format=format, subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize("subtype", ["PCM_16", "FLOAT"])
@pytest.mark.parametrize("channels", [1, 2])
def test_plain_wav_equals_libsndfile(subtype, channels, monkeypatch):
    data = saved(subtype, channels)
    assert read_plain_wav(memoryview(data)) is not None
    found = decode_audio(data, RAW)
    monkeypatch.setattr(audio, "read_plain_wav", lambda data: None)
    np.testing.assert_array_equal(found, decode_audio(data, RAW))


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_24", "PCM_32", "DOUBLE", "ULAW"])
def test_other_subtypes_use_libsndfile(subtype):
    data = saved(subtype)
    assert read_plain_wav(memoryview(data)) is None
    assert len(decode_audio(data, RAW)) == 400


def test_truncated_wav_uses_libsndfile():
    data = saved("PCM_16")
    for end in (*range(60), 333, len(data) - 1):
        assert read_plain_wav(memoryview(data[:end])) is None
    assert len(decode_audio(data[:444], RAW)) == 100


def test_inconsistent_header_uses_libsndfile():
    data = saved("PCM_16")
    at = data.index(b"fmt ") + 8
    for channels, frame_bytes in ((0, 0), (1, 4), (3, 4)):
        form = struct.pack("<HHIIHH", 1, channels, 8_000, 32_000, frame_bytes, 16)
        assert read_plain_wav(memoryview(data[:at] + form + data[at + 16 :])) is None


def test_chunks_of_odd_size_are_skipped():
    data = saved("PCM_16")
    at = data.index(b"data")
    between = data[:at] + b"note" + struct.pack("<I", 3) + b"abc\0" + data[at:]
    found, expected = read_plain_wav(memoryview(between)), read_plain_wav(memoryview(data))
    assert found is not None
    assert expected is not None
    np.testing.assert_array_equal(found[0], expected[0])


def test_plain_wav_too_long_or_not_allowed_raises():
    with pytest.raises(MediaError, match="max_seconds"):
        decode_audio(saved("PCM_16"), AudioRecipe("raw", 8_000, length_limit_in_s=0.01, max_seconds=0.05))
    with pytest.raises(MediaError, match="WAV"):
        decode_audio(saved("PCM_16"), AudioRecipe("raw", 8_000, formats=("FLAC",)))
