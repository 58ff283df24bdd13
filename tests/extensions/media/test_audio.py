import io
import pickle
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from daskprep.errors import ConfigError, MediaError
from daskprep.extensions.media.audio import AudioRecipe, decode_audio, encode_wav, read_audio_info

soundfile = pytest.importorskip("soundfile")

RAW = AudioRecipe("raw", 16_000)


def tone(seconds=1.0, rate=16_000, hertz=440.0):
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def encoded(samples, rate=16_000, format="WAV", subtype=None):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=format, subtype=subtype)
    return file.getvalue()


def reason(source, recipe=RAW):
    with pytest.raises(MediaError) as caught:
        decode_audio(source, recipe)
    return str(caught.value)


@pytest.mark.parametrize(
    ("format", "subtype", "tolerance"),
    [
        ("WAV", "PCM_U8", 2**-7),
        ("WAV", "PCM_16", 2**-15),
        ("WAV", "PCM_24", 2**-23),
        ("WAV", "FLOAT", 0),
        ("WAV", "DOUBLE", 0),
        ("WAVEX", "PCM_16", 2**-15),
        ("RF64", "PCM_16", 2**-15),
        ("FLAC", "PCM_16", 2**-15),
        ("AIFF", "PCM_16", 2**-15),
        ("OGG", "VORBIS", 0.05),
        ("MP3", "MPEG_LAYER_III", 0.05),
    ],
)
def test_decode_audio_formats(format, subtype, tolerance):
    samples = decode_audio(encoded(tone(), format=format, subtype=subtype), RAW)
    assert samples.dtype == np.float32
    assert samples.shape == (16_000,)
    np.testing.assert_allclose(samples, tone(), rtol=0, atol=tolerance)


def test_decode_audio_source_types():
    content = encoded(tone(), format="FLAC")
    expected = decode_audio(content, RAW)
    for source in (bytearray(content), memoryview(content), pa.py_buffer(content)):
        np.testing.assert_array_equal(decode_audio(source, RAW), expected)


def test_channels_are_averaged():
    stereo = np.stack([tone(), -0.5 * tone()], axis=1)
    np.testing.assert_allclose(decode_audio(encoded(stereo, subtype="FLOAT"), RAW), 0.25 * tone(), atol=1e-7)


def test_integer_samples_are_scaled_to_unit_range():
    for dtype, lowest, middle in [
        (np.int8, -128, 0),
        (np.uint8, 0, 128),
        (np.int16, -32768, 0),
        (np.int32, -(2**31), 0),
    ]:
        content = encode_wav(np.array([lowest, middle], dtype), 16_000)
        np.testing.assert_array_equal(decode_audio(content, RAW), [-1, 0])


@pytest.mark.parametrize("dtype", [np.int16, np.uint16])
def test_int16_samples_are_exact(dtype):
    steps = np.arange(np.iinfo(dtype).min, np.iinfo(dtype).max + 1).astype(dtype)
    recipe = AudioRecipe("raw", sampling_rate=16_000)
    expected = (steps.astype(np.float64) - (32_768 if dtype == np.uint16 else 0)) / 32_768
    np.testing.assert_array_equal(decode_audio(encode_wav(steps, 16_000), recipe), expected)


def test_decoded_audio_is_not_a_view():
    content = bytearray(encode_wav(tone(), 16_000))
    decode_audio(content, RAW)[:] = 0
    np.testing.assert_array_equal(decode_audio(content, RAW), tone())


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 44_101, 48_000, 96_001])
def test_audio_is_resampled_to_rate_of_recipe(rate):
    samples = decode_audio(encoded(tone(rate=rate), rate, subtype="FLOAT"), RAW)
    assert abs(len(samples) - 16_000) <= 1
    np.testing.assert_allclose(samples[300:15_700], tone()[300:15_700], rtol=0, atol=0.002)


@pytest.mark.slow
def test_resampled_tone_equals_librosa():
    librosa = pytest.importorskip("librosa")
    ours = decode_audio(encode_wav(tone(rate=44_100), 44_100), RAW)
    theirs = librosa.resample(tone(rate=44_100), orig_sr=44_100, target_sr=16_000)
    np.testing.assert_allclose(ours[300:-300], theirs[300:-300], rtol=0, atol=0.002)


@pytest.mark.parametrize("rate", [16_000, 8_000, 44_100])
def test_truncated_audio_equals_start_of_full_audio(rate):
    noise = np.random.default_rng(0).uniform(-1, 1, 3 * rate).astype(np.float32)
    content = encode_wav(noise, rate)
    cut = decode_audio(content, AudioRecipe("stft", 16_000, length_limit_in_s=1.33))
    whole = decode_audio(content, RAW)
    assert len(cut) == 21_440  # 66 frames, the last of which reaches beyond the limit of 21,280
    np.testing.assert_array_equal(cut, whole[:21_440])


def broken_files():
    wave, flac = encoded(tone()), encoded(tone(), format="FLAC")
    not_a_number = tone()
    not_a_number[7] = np.nan
    return {
        "is empty": b"",
        "is none of WAV, FLAC, OGG, MP3, AIFF: starts with b'name,price\\n1": b"name,price\n1,2\n",
        "is none of": bytes(1000),
        "is none of WAV": encoded(tone(), format="CAF"),
        "Error in WAV file": wave[:30],
        "no samples": encoded(tone(0)),
        "holds no samples": wave[:44],
        "holds no": encoded(tone(0), format="OGG"),
        "flac decoder lost sync": flac[: len(flac) // 2],
        "cannot be decoded as FLAC": flac[:30],
        "cannot be decoded as OGG": encoded(tone(), format="OGG")[:1000],
        "cannot be decoded as MP3: ": encoded(tone(), format="MP3")[:30],
        "cannot be decoded as MP3": b"ID3" + bytes(300),
        "cannot be decoded as AIFF": encoded(tone(), format="AIFF")[:30],
        "sampling rate of 2,147,483,647": wave[:24] + (2**31 - 1).to_bytes(4, "little") + wave[28:],
        "sampling rate of 0 per second": wave[:24] + bytes(4) + wave[28:],
        "Channel count is zero": wave[:22] + bytes(2) + wave[24:],
        "NaN": encoded(not_a_number, subtype="FLOAT"),
        "beyond 32 bits": encoded(tone() * 1e38, subtype="FLOAT"),
        "lasts 4,294,967 s, and max_seconds is 3,600": flac[:21] + bytes([flac[21] | 15]) + b"\xff" * 4 + flac[26:],
    }


@pytest.mark.parametrize("expected", broken_files())
def test_broken_file_raises_with_reason(expected):
    assert expected in reason(broken_files()[expected])


def test_implausible_sampling_rate_raises():
    content = encoded(tone())
    with pytest.raises(MediaError, match="sampling rate of 2,147,483,647"):
        read_audio_info(content[:24] + (2**31 - 1).to_bytes(4, "little") + content[28:])


@pytest.mark.parametrize(("rate", "wanted"), [(700_000, 1), (1, 700_000)])
def test_extreme_resampling_ratio_raises(rate, wanted):
    recipe = AudioRecipe("raw", sampling_rate=wanted, window_length_in_s=1, window_shift_in_s=1)
    with pytest.raises(MediaError, match=rf"sampling rate of {rate:,} per second: expected"):
        decode_audio(encode_wav(tone(rate=1000), rate), recipe)


def test_truncated_and_streamed_wav_files_are_decoded():
    content = encoded(tone(), subtype="PCM_16")
    streamed = content[:4] + b"\xff" * 4 + content[8:40] + b"\xff" * 4 + content[44:]
    np.testing.assert_array_equal(decode_audio(streamed, RAW), decode_audio(content, RAW))
    np.testing.assert_array_equal(decode_audio(content[:1044], RAW), decode_audio(content, RAW)[:500])


def test_flac_of_unknown_length_is_decoded():
    flac = encoded(tone(9), format="FLAC")
    unknown = flac[:21] + bytes([flac[21] & 0xF0]) + bytes(4) + flac[26:]
    assert read_audio_info(unknown) == (None, 16_000, 1)
    np.testing.assert_array_equal(decode_audio(unknown, RAW), decode_audio(flac, RAW))


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (np.zeros((2, 3, 4)), "shape (2, 3, 4)"),
        (np.array(1.0), "shape ()"),
        (np.zeros(9, bool), "samples of bool"),
        (np.zeros(9, np.int64), "samples of int64"),
        (np.zeros(9, object), "samples of object"),
        (np.array([0, np.inf]), "infinite"),
        (np.array([0, 1e300]), "infinite"),
    ],
)
def test_encode_wav_invalid_array_raises(samples, expected):
    with pytest.raises(MediaError, match=re.escape(expected)):
        decode_audio(encode_wav(samples, 16_000), RAW)


def test_only_allowed_formats_are_decoded():
    recipe = AudioRecipe("raw", 16_000, formats=("WAV", "FLAC"))
    assert reason(encoded(tone(), format="OGG"), recipe) == "is OGG, and the formats allowed are WAV, FLAC"
    tagged = b"ID3\x03\0\0" + bytes([0, 0, 0, 10]) + bytes(10) + encoded(tone())
    assert reason(tagged, AudioRecipe("raw", 16_000, formats=("MP3",))) == "is WAV, and the formats allowed are MP3"


def test_audio_info_reads_the_header():
    assert read_audio_info(encoded(np.zeros((800, 2)), 44_100)) == (800, 44_100, 2)
    with pytest.raises(MediaError, match="is empty"):
        read_audio_info(b"")


@pytest.mark.parametrize("dtype", [np.int16, np.float32])
@pytest.mark.parametrize("channels", [1, 2])
def test_encode_wav_round_trips(dtype, channels):
    samples = np.random.default_rng(0).normal(size=(700, channels))
    samples = (samples * 5000).astype(dtype) if dtype is np.int16 else samples.astype(dtype)
    content = encode_wav(samples.T if channels == 2 else samples[:, 0], 22_050)
    read, rate = soundfile.read(io.BytesIO(content), dtype=np.dtype(dtype).name, always_2d=True)
    assert rate == 22_050
    np.testing.assert_array_equal(read, samples)
    assert len(content) == 44 + samples.nbytes + (14 if dtype is np.float32 else 0)


def test_encode_wav_int32_and_float64_round_trip():
    np.testing.assert_array_equal(decode_audio(encode_wav(np.array([-(2**31), 0], np.int32), 16_000), RAW), [-1, 0])
    np.testing.assert_array_equal(decode_audio(encode_wav(tone().astype(np.float64), 16_000), RAW), tone())
    with pytest.raises(MediaError, match="sampling rate of 0"):
        encode_wav(tone(), 0)


def test_recipe_pickles_and_digest_depends_on_settings():
    recipe = AudioRecipe("fbank", 8_000, norm="per_file", formats=("WAV",))
    assert recipe == pickle.loads(pickle.dumps(recipe))
    others = [recipe, AudioRecipe("fbank", 8_000), AudioRecipe("stft", 8_000), AudioRecipe("stft", 8_001)]
    assert len({other.digest() for other in others}) == 4


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"formats": ("WMA",)}, "formats is 'WMA'"),
        ({"sampling_rate": 0}, "sampling_rate is 0"),
        ({"length_limit_in_s": 0}, "length_limit_in_s is 0"),
        ({"length_limit_in_s": float("nan")}, "length_limit_in_s is nan"),
        ({"window_length_in_s": float("inf")}, "window_length_in_s is inf"),
        ({"window_shift_in_s": 1e-5}, "at least one sample, 1/16000 s"),
        ({"num_fft_points": 639}, "at least the 640 samples"),
    ],
)
def test_invalid_recipe_raises(parameters, expected):
    with pytest.raises(ConfigError) as caught:
        AudioRecipe(**{"type": "stft", "sampling_rate": 16_000, **parameters})
    assert expected in str(caught.value)


def test_seconds_to_samples_without_float_error():
    recipe = AudioRecipe("stft", 100, length_limit_in_s=0.57, window_length_in_s=0.29, window_shift_in_s=0.019)
    assert (recipe.limit, recipe.window, recipe.shift) == (57, 29, 1)


def test_decode_audio_in_threads():
    files = [encoded(tone(hertz=100 * k, rate=22_050), 22_050, "FLAC") for k in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        threaded = list(pool.map(lambda file: decode_audio(file, RAW), files * 4))
    for file, samples in zip(files * 4, threaded, strict=True):
        np.testing.assert_array_equal(samples, decode_audio(file, RAW))


def test_importing_needs_no_decoder():
    code = "import daskprep.extensions.media.spectra, sys; print({'soundfile', 'librosa'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"set()\n"


@pytest.mark.parametrize("rate", [8_000, 44_100])
def test_soxr_equals_librosa(rate):
    librosa = pytest.importorskip("librosa")
    wave = np.random.default_rng(0).normal(0, 0.1, 2 * rate).astype(np.float32)
    theirs = librosa.resample(wave, orig_sr=rate, target_sr=16_000)
    for seconds in (0.5, 2.0):
        recipe = AudioRecipe("raw", 16_000, length_limit_in_s=seconds, resampling="soxr")
        found = decode_audio(encode_wav(wave, rate), recipe)
        np.testing.assert_allclose(found, theirs[: len(found)], atol=1e-5)
        assert len(found) == seconds * 16_000
