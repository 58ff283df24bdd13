from __future__ import annotations

import io
import json
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import soundfile
import torch
from sklearn.base import clone

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError, MediaError
from daskprep.extensions.media.audio import encode_wav
from daskprep.extensions.media.audio_feature import LearnedAudio
from daskprep.features.checking import empty_arrays

RAW = {"type": "raw", "audio_file_length_limit_in_s": 0.004}  # four samples at 1,000 Hz


def noise(samples: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, samples).astype(np.float32)


def sound(*samples: float, rate: int = 1_000) -> bytes:
    return encode_wav(np.array(samples, np.float32), rate)


def column(*cells) -> pd.DataFrame:
    return pd.DataFrame({"x": list(cells)}, dtype=object)


def fit(feature: dp.Audio, *cells) -> dp.Preprocessor:
    return dp.Preprocessor({"x": feature}, split=None).fit(column(*cells))


def encode(feature: dp.Audio, *cells) -> np.ndarray:
    return np.asarray(fit(feature, *cells).encode(column(*cells))["x"])


def learned(feature: dp.Audio, *cells) -> LearnedAudio:
    found = fit(feature, *cells).learned_["x"]
    assert isinstance(found, LearnedAudio)
    return found


# -- decoding


def test_mel_bands_equal_librosa_except_for_rounded_corners():
    librosa = pytest.importorskip("librosa")
    wave = noise(16_000)
    feature = dp.Audio(audio_file_length_limit_in_s=1.0, num_filter_bands=20, num_fft_points=4096)
    ours = encode(feature, encode_wav(wave, 16_000))[0]
    emphasized = np.append(wave[:1], wave[1:] - np.float32(0.97) * wave[:-1])
    frames = np.lib.stride_tricks.sliding_window_view(emphasized, 640)[::320]
    centred = (frames - frames.mean(axis=1, keepdims=True)) * np.hamming(640)
    filters = librosa.filters.mel(sr=16_000, n_fft=4096, n_mels=20, htk=True, norm=None)
    theirs = np.log(np.abs(np.fft.rfft(centred, 4096)) ** 2 @ filters.T + 1e-10)
    difference = np.abs(ours - theirs)
    assert difference.mean() < 0.01
    assert difference.max() < 0.12


@pytest.mark.parametrize(
    ("type", "shape"),
    [
        ("raw", (24_000, 1)),
        ("stft", (74, 321)),
        ("stft_phase", (74, 642)),
        ("group_delay", (74, 321)),
        ("fbank", (74, 80)),
    ],
)
def test_output_shapes_equal_ludwig(type, shape):
    feature = dp.Audio(type=type, audio_file_length_limit_in_s=1.5)
    found = learned(feature, encode_wav(noise(8_000), 16_000))
    assert (found.max_length, found.feature_dim) == shape
    assert empty_arrays(feature, found)[""].shape == (0, *shape)


def test_default_shape_is_7_5_seconds_of_80_bands():
    encoded = encode(dp.Audio(), encode_wav(noise(4_000), 16_000))
    assert (encoded.shape, encoded.dtype) == ((1, 374, 80), np.float32)


def test_channels_are_averaged_and_short_audio_is_padded():
    stereo = encode_wav(np.array([[0.5, 0.25], [-0.5, -0.25], [1.0, 0.0]], np.float32), 1_000)
    assert encode(dp.Audio(**RAW, padding_value=9.0), stereo).ravel().tolist() == [0.375, -0.375, 0.5, 9.0]


def test_long_audio_is_truncated_at_the_end():
    assert encode(dp.Audio(**RAW), sound(*(np.arange(10) / 10))).ravel().tolist() == pytest.approx([0, 0.1, 0.2, 0.3])


def test_recordings_longer_than_the_largest_learned_limit_warn():
    cells = [sound(*np.zeros(seconds * 1_000)) for seconds in (1, 7, 31)]
    with pytest.warns(UserWarning, match=r'"x": 1 cell \(33.3 %\) cut: raise audio_file_length_limit_in_s'):
        cut = learned(dp.Audio(), *cells)
    assert cut.to_dict()["cut_share"] == pytest.approx(1 / 3)
    assert "cut_share" not in learned(dp.Audio(), *cells[:2]).to_dict()
    learned(dp.Audio(audio_file_length_limit_in_s=2), *cells)


def test_per_file_norm_standardizes_each_recording():
    encoded = encode(dp.Audio(**RAW, norm="per_file"), sound(1, 2, 3, 4), sound(0.1, 0.2, 0.3, 0.4))
    wanted = (np.arange(4) - 1.5) / np.std(np.arange(4), ddof=1)
    np.testing.assert_allclose(encoded[:, :, 0], [wanted, wanted], atol=1e-5)


@pytest.mark.parametrize("format", ["FLAC", "OGG", "AIFF"])
def test_files_of_other_formats_are_decoded(format, tmp_path):
    path = tmp_path / "a.sound"
    soundfile.write(path, noise(16_000), 16_000, format=format)
    feature = dp.Audio(type="raw", audio_file_length_limit_in_s=0.5)
    assert np.isfinite(encode(feature, str(path))).all()
    with pytest.raises(MediaError, match="formats allowed are WAV"):
        encode(clone(feature).set_params(formats=["WAV"], sampling_rate=16_000), str(path))


@pytest.mark.parametrize(
    ("params", "changed"),
    [
        ({"window_length_in_s": 0.08}, (12, 80)),
        ({"window_shift_in_s": 0.01}, (27, 80)),
        ({"num_fft_points": 512, "type": "stft"}, (14, 257)),
        ({"num_filter_bands": 12}, (14, 12)),
        ({"sampling_rate": 4_000}, (14, 80)),
        ({"window_type": "hann"}, (14, 80)),
    ],
)
def test_each_spectrum_parameter_changes_the_output(params, changed):
    cell = encode_wav(noise(3_000), 8_000)
    plain = encode(dp.Audio(audio_file_length_limit_in_s=0.3), cell)
    other = encode(dp.Audio(audio_file_length_limit_in_s=0.3, **params), cell)
    assert other.shape[1:] == changed
    assert plain.shape[1:] == (14, 80)
    assert not np.array_equal(plain, other)


def test_max_seconds_limits_the_duration():
    with pytest.raises(MediaError, match="max_seconds is 2"):
        encode(dp.Audio(**RAW, max_seconds=2), encode_wav(noise(3_000), 1_000))


def test_fit_transform_returns_rows_of_numbers():
    frame = column(sound(1, 2, 3, 4), None)
    feature = dp.Audio(**RAW, missing_value_strategy="ffill")
    assert feature.fit_transform(frame).tolist() == [[1, 2, 3, 4]] * 2
    assert clone(feature).get_params() == feature.get_params()


def test_decode_returns_audio_or_lists_of_frames():
    cell = sound(0.5, -0.5, 0.25, 0)
    prep = fit(dp.Audio(**RAW), cell)
    [data] = prep.decode(prep.encode(column(cell)))["x"]
    samples, rate = soundfile.read(io.BytesIO(data))
    assert (samples.tolist(), rate) == ([0.5, -0.5, 0.25, 0], 1_000)
    feature = dp.Audio(audio_file_length_limit_in_s=0.3)
    cells = [encode_wav(noise(2_000, seed), 8_000) for seed in range(2)]
    encoded = encode(feature, *cells)
    frames = feature.decode(encoded, learned(feature, *cells))
    assert np.array_equal(frames.to_pylist(), encoded)


def test_expand_returns_the_batch_unchanged():
    batch = torch.zeros(1, 4, 1)
    assert dp.Audio().expand(batch, LearnedAudio()) is batch


# -- the sampling rate


def test_sampling_rate_is_the_mode_and_the_largest_of_a_tie():
    slow, fast = sound(1, 1, rate=1_000), sound(1, 2, rate=2_000)
    assert learned(dp.Audio(**RAW), slow, fast, sound(2, 2, rate=1_000)).sampling_rate == 1_000
    assert learned(dp.Audio(**RAW), slow, fast).sampling_rate == 2_000
    assert learned(dp.Audio(**RAW, sampling_rate=3_000), slow).sampling_rate == 3_000


def test_other_sampling_rates_are_resampled():
    time = np.arange(4_000)
    cells = [encode_wav(np.sin(2 * np.pi * 100 * time / rate).astype(np.float32), rate) for rate in (8_000, 4_000)]
    encoded = encode(dp.Audio(type="raw", audio_file_length_limit_in_s=0.4), *cells)[:, :, 0]
    np.testing.assert_allclose(encoded[1, 50:-50], encoded[0, 50:-50], atol=0.01)


@pytest.mark.parametrize("npartitions", [1, 3, 16])
@pytest.mark.parametrize("in_memory", [False, True])
def test_learned_state_does_not_depend_on_partitions(npartitions, in_memory, tmp_path):
    cells = [encode_wav(noise(10 + k, seed=k), 1_000 * (1 + k % 3)) for k in range(20)]
    if not in_memory:
        paths = [tmp_path / f"{k}.wav" for k in range(20)]
        for path, data in zip(paths, cells, strict=True):
            path.write_bytes(data)
        cells = list(map(str, paths))
    feature = dp.Audio(**RAW, pack=True)
    whole = learned(feature, *cells)
    with dask.config.set({"dataframe.convert-string": False}):
        frame = dd.from_pandas(column(*cells), npartitions=npartitions, sort=False)
    again = dp.Preprocessor({"x": feature}, split=None).fit(frame).learned_["x"]
    assert json.dumps(again.to_dict()) == json.dumps(whole.to_dict())
    assert LearnedAudio.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole


def test_files_are_not_opened_with_sampling_rate_set():
    assert learned(dp.Audio(**RAW, sampling_rate=1_000), "/no/such.wav").max_length == 4


def test_sample_without_readable_files_raises():
    with pytest.raises(MediaError, match=r'column "x": none of 1 files.*pass sampling_rate'):
        fit(dp.Audio(), b"no sound")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"norm": "global"}, "norm must be one of 'per_file' or None, not 'global'"),
        ({"audio_file_length_limit_in_s": 0}, "audio_file_length_limit_in_s is 0.0: use at least one sample"),
        ({"window_shift_in_s": -1.0}, "window_shift_in_s is -1.0"),
        ({"sampling_rate": 8_000, "num_fft_points": 100}, "num_fft_points is 100: use at least the 320"),
        ({"num_fft_points": 10}, "num_fft_points is 10: use at least the 40"),
        ({"num_filter_bands": 0}, "num_filter_bands must be an integer of at least 1"),
        ({"max_seconds": 0}, "max_seconds must be more than 0"),
        ({"missing_value_strategy": "fill_with_mode"}, 'use "fill_with_const"'),
        ({"fill_value": float("nan")}, "fill_value must be a finite number"),
        ({"formats": ["wave"]}, "'wave'"),
        ({"type": "mfccs"}, "type must be one of"),
        ({"window_type": "haning"}, 'Did you mean "hann"'),
        ({"mode": "eager", "pack": True}, "pack=True is for lazy modes"),
    ],
)
def test_contradictory_parameters_raise(params, message):
    with pytest.raises(ConfigError, match=message):
        fit(dp.Audio(**params), sound(1, 2))


# -- missing and broken cells


@pytest.mark.parametrize(("strategy", "firsts"), [("bfill", [1, 1, 2, 2]), ("ffill", [1, 1, 1, 2])])
@pytest.mark.parametrize("npartitions", [1, 4])
def test_ffill_and_bfill_work_across_partitions(strategy, firsts, npartitions):
    with dask.config.set({"dataframe.convert-string": False}):
        frame = dd.from_pandas(column(None, sound(1, 1), None, sound(2, 2)), npartitions=npartitions, sort=False)
    prep = dp.Preprocessor({"x": dp.Audio(**RAW, missing_value_strategy=strategy)}, split=None).fit(frame)
    assert np.asarray(prep.encode(frame)["x"])[:, 0, 0].tolist() == firsts


def test_fill_with_const_fills_all_samples():
    feature = dp.Audio(**RAW, missing_value_strategy="fill_with_const", fill_value=-3)
    assert encode(feature, sound(1), None)[1].ravel().tolist() == [-3] * 4


def test_dropped_rows_are_encoded_as_padding():
    feature = dp.Audio(**RAW, missing_value_strategy="drop_row", padding_value=0.5)
    assert encode(feature, sound(1), None)[1].ravel().tolist() == [0.5] * 4


def test_broken_audio_raises_with_its_path_or_becomes_padding():
    cells = [sound(1, 2, 3, 4), "/no/such.wav"]
    with pytest.raises(MediaError, match=r'column "x": row 1 of this partition, /no/such.wav: no such file'):
        encode(dp.Audio(**RAW), *cells)
    filled = encode(dp.Audio(**RAW, on_error="fill", padding_value=0.5), *cells)
    assert filled[:, :, 0].tolist() == [[1, 2, 3, 4], [0.5] * 4]


@pytest.mark.parametrize("options", [{}, {"type": "mfcc"}, {"type": "mel"}, {"type": "stft"}, {"type": "raw"}], ids=str)
@pytest.mark.parametrize("strategy", ["ffill", "drop_row"])
def test_padding_missing_and_broken_audio_are_silence(tmp_path, options, strategy):
    if options.get("type") in ("mfcc", "mel"):
        pytest.importorskip("librosa")
    limit = {"audio_file_length_limit_in_s": 0.2, "sampling_rate": 16_000, **options}
    feature = dp.Audio(**limit, on_error="fill", missing_value_strategy=strategy)
    silence = encode(feature, encode_wav(np.zeros(3_200, np.float32), 16_000))[0]
    cells = None, encode_wav(noise(800), 16_000), b"broken"
    prep = fit(feature, *cells[1:])
    missing, short, broken = [prep.encode(column(cell))["x"][0] for cell in cells]
    length = len(silence) // 2 + 1
    np.testing.assert_array_equal(short[length:], silence[length:])
    assert (short[:2] != silence[:2]).any()
    np.testing.assert_array_equal([broken, missing], [silence, silence])
    loud = encode(dp.Audio(**limit, on_error="fill", padding_value=0.0), *cells[1:])
    assert not loud[1].any()
    lazy = dp.Preprocessor({"x": feature}).fit_write(column(*cells[1:]), tmp_path / "d.dp", progress=False)
    batch = next(iter(lazy["train"].loader(2, shuffle=False)))["x"]
    np.testing.assert_array_equal(batch.numpy(), [short, broken])


def test_padding_of_standardized_audio_is_0():
    feature = dp.Audio(norm="per_file", audio_file_length_limit_in_s=0.2)
    assert not encode(feature, encode_wav(noise(800), 16_000))[0, -3:].any()


@pytest.mark.parametrize("npartitions", [1, 4])
def test_broken_audio_to_drop_is_padding_and_fills_no_gap(npartitions):
    with dask.config.set({"dataframe.convert-string": False}):
        frame = dd.from_pandas(column(None, b"broken", sound(3), sound(4)), npartitions=npartitions, sort=False)
    for strategy, first in (("bfill", 3), ("fill_with_const", 0)):
        feature = dp.Audio(**RAW, on_error="drop", missing_value_strategy=strategy)
        prep = dp.Preprocessor({"x": feature}, split=None).fit(frame)
        assert np.asarray(prep.encode(frame)["x"])[:, 0, 0].tolist() == [first, 0, 3, 4]


def test_missing_audio_is_padding_by_default():
    padded = {**RAW, "padding_value": -1.0}
    assert encode(dp.Audio(**padded), None, sound(3))[0].ravel().tolist() == [-1.0] * 4
    assert encode(dp.Audio(**padded, fill_value=0.5), None, sound(3))[0].ravel().tolist() == [0.5] * 4


def test_structs_of_samples_are_audio():
    cells = pa.array([{"array": [0.5, 0.25], "sampling_rate": 1_000}, {"array": [0.1], "sampling_rate": 1_000}])
    frame = pd.DataFrame({"x": pd.arrays.ArrowExtensionArray(cells)})
    encoded = dp.Preprocessor({"x": dp.Audio(**RAW)}, split=None).fit(frame).encode(frame)["x"]
    assert encoded[0].ravel().tolist() == [0.5, 0.25, 0, 0]


def test_columns_without_audio_raise():
    with pytest.raises(ColumnError, match='column "x".*holds no audio'):
        fit(dp.Audio(), 1, 2)


def test_audio_in_memory_is_written_to_the_cache_once(tmp_path):
    feature = dp.Audio(**RAW, lazy_cache_dir=str(tmp_path))
    cells = [sound(1), sound(2), sound(1)]
    first = encode(feature, *cells)
    files = {path: path.stat().st_mtime_ns for path in Path(tmp_path / "x").iterdir()}
    assert np.array_equal(encode(feature, *cells), first)
    assert {path: path.stat().st_mtime_ns for path in Path(tmp_path / "x").iterdir()} == files
    assert len(files) == 2


def test_arrays_use_the_sampling_rate_of_the_feature():
    cells = [noise(4), noise(4)[None], np.stack([noise(4), noise(4)]), torch.from_numpy(noise(4))]
    frame = pd.DataFrame({"x": cells})
    feature = dp.Audio(**RAW, sampling_rate=1_000)
    whole = dp.Preprocessor({"x": feature}, split=None).fit(frame)
    with dask.config.set({"dataframe.convert-string": False}):
        pieces = dp.Preprocessor({"x": feature}, split=None).fit(dd.from_pandas(frame, npartitions=3))
    assert whole.to_dict() == pieces.to_dict()
    np.testing.assert_array_equal(whole.encode(frame)["x"][:, :, 0], np.stack([noise(4)] * 4))
    with pytest.raises(ColumnError, match=r'column "x": row 0 .*pass the feature\'s sampling_rate'):
        fit(dp.Audio(**RAW), *cells)


def test_librosa_options_are_applied_and_saved(tmp_path):
    librosa = pytest.importorskip("librosa")
    wave = noise(8_000)
    feature = dp.Audio(type="mel", librosa_options={"n_mels": 40}, audio_file_length_limit_in_s=1.0, resampling="soxr")
    prep = dp.Preprocessor({"x": feature}, split=None)
    dataset = prep.fit_write(column(encode_wav(wave, 8_000)), tmp_path / "a.dp")
    theirs = librosa.feature.melspectrogram(y=wave, sr=8_000, n_mels=40).T
    np.testing.assert_allclose(dataset["train"].read("x")["x"][0], theirs, rtol=1e-5, atol=1e-6)
    again = dp.Preprocessor.from_dict(json.loads(json.dumps(prep.to_dict())))
    assert (again.learned_["x"].max_length, again.learned_["x"].feature_dim) == theirs.shape
    with pytest.raises(ConfigError, match='Audio: an option of librosa_options is .*Did you mean "n_mels"'):
        learned(dp.Audio(type="mel", librosa_options={"n_melz": 3}), encode_wav(wave, 8_000))
