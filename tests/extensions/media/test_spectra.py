import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import daskprep as dp
from daskprep.errors import ConfigError
from daskprep.extensions.media import spectra
from daskprep.extensions.media.audio import AudioRecipe
from daskprep.extensions.media.spectra import compute_features, make_mel_filters

pytest.importorskip("scipy")

TYPES = ["stft", "stft_phase", "group_delay", "fbank"]
LENGTHS = [160, 320, 321, 640, 641, 961, 5_000, 24_000, 24_001, 30_000]


def noise(samples, seed=0):
    return np.random.default_rng(seed).normal(0, 0.1, samples).astype(np.float32)


def slow_filters(recipe):
    highest = 2595 * np.log10(1 + int(recipe.sampling_rate / 2) / 700)
    mels = np.linspace(0, highest, recipe.num_filter_bands + 2)
    corners = [int((recipe.nfft + 1) * (700 * (10 ** (mel / 2595) - 1)) / recipe.sampling_rate + 1e-9) for mel in mels]
    filters = np.zeros((recipe.num_filter_bands, recipe.nfft // 2 + 1))
    for band in range(recipe.num_filter_bands):
        begin, middle, end = corners[band : band + 3]
        for k in range(begin, middle):
            filters[band, k] = (k - begin) / (middle - begin)
        for k in range(middle, end):
            filters[band, k] = (end - k) / (end - middle)
    return filters


def slow_frames(wave, recipe):
    emphasized = [float(wave[0])]
    emphasized += [float(wave[k]) - 0.97 * float(wave[k - 1]) for k in range(1, len(wave))]
    emphasized = np.array(emphasized, np.float32).astype(np.float64)
    n = np.arange(recipe.window)
    window = {
        "hamming": 0.54 - 0.46 * np.cos(2 * np.pi * n / (recipe.window - 1)),
        "hann": 0.5 - 0.5 * np.cos(2 * np.pi * n / (recipe.window - 1)),
        "bartlett": 1 - np.abs(2 * n / (recipe.window - 1) - 1),
        "blackman": np.blackman(recipe.window),
    }[recipe.window_type]
    for number in range(max(1, int(np.ceil((len(wave) - recipe.window) / recipe.shift + 1)))):
        piece = emphasized[number * recipe.shift :][: recipe.window]
        if recipe.type == "fbank" and len(piece):
            piece = piece - piece.mean()
        yield np.append(piece, np.zeros(recipe.window - len(piece))) * window


def slow_features(wave, recipe):
    rows = []
    for frame in slow_frames(wave, recipe):
        padded = np.append(frame, np.zeros(recipe.nfft - recipe.window))
        spectrum = np.fft.fft(padded)[: recipe.nfft // 2 + 1]
        slope = np.fft.fft(padded * np.arange(recipe.nfft))[: recipe.nfft // 2 + 1]
        if recipe.type == "stft":
            rows.append(abs(spectrum))
        elif recipe.type == "stft_phase":
            rows.append([*np.angle(spectrum), *abs(spectrum)])
        elif recipe.type == "group_delay":
            product = spectrum.real * slope.real + spectrum.imag * slope.imag
            rows.append(product / (abs(spectrum) ** 2 + 1e-10))
        else:
            rows.append(np.log(slow_filters(recipe) @ abs(spectrum) ** 2 + 1e-10))
    rows = np.array(rows)[: recipe.max_length]
    result = np.full(recipe.shape, recipe.padding_value)
    result[: len(rows)] = rows
    return result


def conditioned(features, recipe):
    """Undo logarithms near zero and phases without magnitude, which amplify rounding errors."""
    bins = recipe.nfft // 2 + 1
    if recipe.type == "stft_phase":
        return features[..., bins:] * np.exp(1j * features[..., :bins])
    return np.exp(features) if recipe.type == "fbank" else features


def assert_like_slow(waves, recipe):
    expected = np.array([slow_features(wave, recipe) for wave in waves])
    result = compute_features(waves, recipe)
    assert result.dtype == np.float32
    scale = 1e-3 if recipe.type == "group_delay" else 1e-6
    np.testing.assert_allclose(conditioned(result, recipe), conditioned(expected, recipe), rtol=1e-4, atol=scale)


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
def test_shapes_match_reference(type, shape):
    recipe = AudioRecipe(type, 16_000, length_limit_in_s=1.5)
    assert recipe.shape == shape
    assert compute_features([noise(24_000), noise(7)], recipe).shape == (2, *shape)
    assert compute_features([], recipe).shape == (0, *shape)


def test_frame_counts_match_reference():
    recipe = AudioRecipe("stft", 16_000)
    counts = {160: 1, 320: 1, 321: 1, 640: 1, 641: 2, 961: 3, 8_000: 24, 120_000: 374}
    assert {samples: recipe.count_frames(samples) for samples in counts} == counts
    for samples, count in counts.items():
        rows = compute_features([noise(samples)], recipe)[0]
        assert np.flatnonzero(rows.any(axis=1)).tolist() == list(range(count))


@pytest.mark.parametrize("type", TYPES)
def test_features_equal_plain_loops(type):
    recipe = AudioRecipe(type, 16_000, length_limit_in_s=1.5, padding_value=-7.0)
    assert_like_slow([noise(length)[: recipe.needed_samples] for length in LENGTHS], recipe)


@pytest.mark.parametrize("type", TYPES)
def test_per_file_norm_standardizes_kept_frames(type):
    recipe = AudioRecipe(type, 16_000, length_limit_in_s=1.5, padding_value=-7.0)
    waves = [noise(length) for length in LENGTHS]
    normed = compute_features(waves, replace(recipe, norm="per_file"))
    for wave, plain, result in zip(waves, compute_features(waves, recipe), normed, strict=True):
        kept = min(recipe.count_frames(len(wave)), recipe.max_length)
        rows = plain[:kept].astype(np.float64)
        deviation = rows.std(axis=0, ddof=1) if kept > 1 else 0.0
        np.testing.assert_allclose(result[:kept], (rows - rows.mean(axis=0)) / (deviation + 1e-10), atol=1e-4)
        assert (result[kept:] == -7).all()


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("window_type", ["bartlett", "blackman", "hamming", "hann"])
def test_window_types_and_fft_points(type, window_type):
    recipe = AudioRecipe(
        type, 8_000, 0.3, 0.025, 0.01, num_fft_points=256, window_type=window_type, num_filter_bands=23
    )
    assert recipe.shape == (29, {"stft_phase": 258, "fbank": 23}.get(type, 129))
    assert_like_slow([noise(2_400), noise(555)], recipe)


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("block_bytes", [1, spectra.BLOCK_BYTES])
def test_gaps_between_frames_and_odd_fft_points(type, block_bytes, sizes):
    sizes(spectra_bytes=block_bytes)
    recipe = AudioRecipe(type, 8_000, 0.3, 0.010, 0.025, num_fft_points=101, num_filter_bands=10)
    assert_like_slow([noise(2_400), noise(90), noise(281), noise(300)], recipe)


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("block_bytes", [1, 100_000])
def test_features_do_not_depend_on_batch_or_blocks(type, block_bytes, sizes):
    recipe = AudioRecipe(type, 16_000, length_limit_in_s=1.5)
    waves = [noise(length, seed) for seed, length in enumerate(LENGTHS)]
    together = compute_features(waves, recipe)
    for wave, rows in zip(waves, together, strict=True):
        np.testing.assert_array_equal(compute_features([wave], recipe)[0], rows)
    sizes(spectra_bytes=block_bytes)
    np.testing.assert_array_equal(compute_features(waves, recipe), together)


@pytest.mark.parametrize("type", ["raw", *TYPES])
def test_samples_beyond_limit_are_ignored(type):
    recipe = AudioRecipe(type, 16_000, length_limit_in_s=0.5, norm="per_file")
    long = noise(16_000)
    np.testing.assert_array_equal(
        compute_features([long], recipe), compute_features([long[: recipe.needed_samples]], recipe)
    )


def test_raw_samples_are_truncated_and_padded():
    recipe = AudioRecipe("raw", 10, length_limit_in_s=0.4, window_length_in_s=1, window_shift_in_s=1, padding_value=9)
    result = compute_features([np.array([1.0, 2.0]), np.arange(7.0)], recipe)
    assert result[:, :, 0].tolist() == [[1, 2, 9, 9], [0, 1, 2, 3]]
    normed = compute_features([np.array([1.0, 2.0, 3.0])], AudioRecipe("raw", 10, 0.4, 1, 1, norm="per_file"))
    np.testing.assert_allclose(normed[0, :, 0], [-1, 0, 1, 0], atol=1e-6)


@pytest.mark.parametrize("type", ["raw", *TYPES])
@pytest.mark.parametrize("norm", [None, "per_file"])
def test_silence_and_single_samples_are_finite(type, norm):
    recipe = AudioRecipe(type, 16_000, length_limit_in_s=0.5, norm=norm)
    result = compute_features([np.zeros(8_000), np.zeros(1), np.full(9_000, 2.0**32), np.ones(1)], recipe)
    assert np.isfinite(result).all()


def test_result_is_written_into_out():
    recipe = AudioRecipe("fbank", 16_000, length_limit_in_s=0.5)
    out = np.full((2, *recipe.shape), np.nan, np.float32)
    assert compute_features([noise(8_000), noise(99)], recipe, out) is out
    np.testing.assert_array_equal(out, compute_features([noise(8_000), noise(99)], recipe))


def test_waves_are_not_modified():
    wave = noise(8_000)
    compute_features([wave], AudioRecipe("fbank", 16_000, norm="per_file"))
    np.testing.assert_array_equal(wave, noise(8_000))


@pytest.mark.parametrize(("rate", "points", "bands"), [(16_000, None, 80), (22_050, 1_024, 40), (8_000, 321, 300)])
def test_mel_filters_equal_plain_loops(rate, points, bands):
    recipe = AudioRecipe("fbank", rate, num_fft_points=points, num_filter_bands=bands)
    np.testing.assert_allclose(make_mel_filters(recipe), slow_filters(recipe), atol=1e-7)


def test_magnitudes_equal_librosa():
    librosa = pytest.importorskip("librosa")
    recipe = AudioRecipe("stft", 16_000, length_limit_in_s=1)
    wave = noise(16_000)
    emphasized = np.append(wave[:1], wave[1:] - np.float32(0.97) * wave[:-1])
    theirs = librosa.stft(emphasized, n_fft=640, hop_length=320, window=np.hamming(640), center=False)
    decibels = np.abs(20 * np.log10(compute_features([wave], recipe)[0] / np.abs(theirs.T)))
    assert decibels[np.abs(theirs.T) > 1e-3 * np.abs(theirs).max()].max() < 0.001


@pytest.mark.parametrize("type", TYPES)
def test_temporary_memory_is_small(type):
    recipe = AudioRecipe(type, 16_000, length_limit_in_s=300, norm="per_file")
    waves, out = [noise(4_800_000)], np.empty((1, *recipe.shape), np.float32)
    tracemalloc.start()
    compute_features(waves, recipe, out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32e6


def test_compute_features_in_threads():
    recipe = AudioRecipe("fbank", 16_000, length_limit_in_s=1.5)
    waves = [noise(20_000, seed) for seed in range(16)]
    with ThreadPoolExecutor(8) as pool:
        threaded = list(pool.map(lambda wave: compute_features([wave], recipe)[0], waves))
    np.testing.assert_array_equal(threaded, compute_features(waves, recipe))


@pytest.mark.parametrize(
    ("type", "options"),
    [
        ("mel", {}),
        ("mfcc", {}),
        ("mel", {"n_fft": 512, "hop_length": 160, "n_mels": 40, "power": 1.0, "htk": True, "fmax": 4_000}),
        ("mel", {"n_fft": 400, "hop_length": 160, "n_mels": 20, "center": False, "window": "hamming"}),
        ("mfcc", {"n_mfcc": 13, "n_mels": 64, "hop_length": 256, "lifter": 22}),
    ],
)
def test_mel_and_mfcc_equal_librosa(type, options):
    librosa = pytest.importorskip("librosa")
    recipe = AudioRecipe(
        type, 16_000, length_limit_in_s=1.0, padding_value=-7.0, librosa_options=tuple(options.items())
    )
    function = getattr(librosa.feature, {"mel": "melspectrogram", "mfcc": "mfcc"}[type])
    waves = [noise(16_000), noise(9_000, 1), noise(20_000, 2)]
    found = compute_features(waves, recipe)
    assert found.shape == (3, *recipe.shape)
    for row, wave in zip(found, waves, strict=True):
        theirs = function(y=wave[:16_000], sr=16_000, **options).T
        np.testing.assert_allclose(row[: len(theirs)], theirs, rtol=1e-5, atol=1e-5)
        assert (row[len(theirs) :] == -7).all()
    assert np.isfinite(compute_features([noise(7)], recipe)[0, 0]).all()
    np.testing.assert_array_equal(compute_features(waves[1:2], recipe)[0], found[1])


@pytest.mark.parametrize(
    ("type", "options", "message"),
    [
        ("mel", {"n_mel": 3}, 'Did you mean "n_mels"'),
        ("mfcc", {"hop_length": 0}, "hop_length in librosa_options is 0"),
        ("fbank", {"n_mels": 3}, "leave them out"),
    ],
)
def test_unknown_librosa_options_raise(type, options, message):
    with pytest.raises(ConfigError, match=message):
        AudioRecipe(type, 16_000, librosa_options=tuple(options.items()))


def test_librosa_error_names_options():
    recipe = AudioRecipe("mel", 16_000, librosa_options=(("window", "no such window"),))
    with pytest.raises(ConfigError, match=r"librosa_options=.*no such window"):
        compute_features([noise(3_000)], recipe)


@pytest.mark.parametrize("type", ["mel", "mfcc"])
def test_features_do_not_depend_on_blas_threads(type):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    pytest.importorskip("librosa")
    recipe = AudioRecipe(type, 22_050, length_limit_in_s=2.0)
    found = []
    for threads in (1, 2, 4):
        with threadpoolctl.threadpool_limits(threads):
            found.append(compute_features([noise(44_100)], recipe).tobytes())
    assert len(set(found)) == 1


def test_pre_emphasis_and_digest_of_default():
    recipe = AudioRecipe("stft", 16_000, length_limit_in_s=0.1)
    assert recipe.digest() == "ea9090bf34bdc33a5b1124ae906e892f685153160e6834dc337a645b6e094a0b"
    assert replace(recipe, pre_emphasis=0.5).digest() != recipe.digest()
    wave = noise(1_600)
    by_hand = np.append(wave[:1], wave[1:] - np.float64(0.5) * wave[:-1]).astype(np.float32)
    np.testing.assert_array_equal(
        compute_features([wave], replace(recipe, pre_emphasis=0.5)),
        compute_features([by_hand], replace(recipe, pre_emphasis=0.0)),
    )
    feature = dp.Audio(type="stft", sampling_rate=16_000, pre_emphasis=0.5)
    prep = dp.Preprocessor.from_dict(dp.Preprocessor({"x": feature}).to_dict())
    assert prep.features["x"].pre_emphasis == 0.5
    assert "pre_emphasis" not in dp.Preprocessor({"x": "audio"}).to_dict()["features"]["x"]["params"]
    with pytest.raises(ConfigError, match="pre_emphasis is 1.5: use 0 to 1"):
        dp.Preprocessor({"x": dp.Audio(pre_emphasis=1.5)}).to_dict()
