"""Spectral features of audio frames, computed for many clips together, as in python_speech_features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from daskprep.errors import ConfigError
from daskprep.extensions.media.audio import AudioRecipe

Floats = npt.NDArray[np.float32]

FLOOR = 1e-10  # keeps logarithms and quotients of silence finite
BLOCK_BYTES = 8 << 20  # of all temporary arrays, at least one frame; less was slower, and more not faster
_STFT_OPTIONS = {"n_fft", "hop_length", "win_length", "window", "center", "pad_mode"}
_MFCC_OPTIONS = {"n_mfcc", "dct_type", "norm", "lifter"}
WINDOWS = {"bartlett": np.bartlett, "blackman": np.blackman, "hamming": np.hamming, "hann": np.hanning}


class FrameRun(NamedTuple):
    """Consecutive frames of one clip."""

    clip: int
    first: int
    frames: int


def compute_features(waves: Sequence[npt.NDArray[Any]], recipe: AudioRecipe, out: Floats | None = None) -> Floats:
    """Return the features of clips as float32 (clips, max_length, feature_dim).

    `waves` are samples at the rate of the recipe. The features of a clip do not depend on the other clips. Short clips
    are padded with `compute_padding`, long ones are cut; `norm="per_file"` uses only the remaining rows, not padding. A
    clip shorter than a window is one frame.
    """
    out = np.empty((len(waves), *recipe.shape), np.float32) if out is None else out
    cut_waves = [np.asarray(wave, np.float32)[: recipe.needed_samples] for wave in waves]
    if recipe.type == "raw":
        lengths = [len(wave) for wave in cut_waves]
        for row, wave in zip(out, cut_waves, strict=True):
            row[: len(wave), 0] = wave
    else:
        lengths = [recipe.count_frames(len(wave)) for wave in cut_waves]
        if not recipe.is_librosa:
            _write_spectra(cut_waves, lengths, recipe, out)
    for row, wave, length in zip(out, cut_waves, lengths, strict=True):
        if recipe.is_librosa:
            row[:length] = _compute_with_librosa(wave, recipe)[:length]
        if recipe.norm == "per_file" and length:
            _standardize(row[:length])
        row[length:] = compute_padding(recipe)
    return out


@lru_cache(maxsize=64)
def compute_padding(recipe: AudioRecipe) -> Floats | float:
    """Return the padding value of a recipe, or a frame of silence's features."""
    if recipe.padding_value is not None:
        return recipe.padding_value
    return compute_features([np.zeros(recipe.window, np.float32)], replace(recipe, padding_value=0.0))[0, 0]


def _compute_with_librosa(wave: Floats, recipe: AudioRecipe) -> npt.NDArray[Any]:
    """Return librosa's features (frames, feature_dim); ConfigError for its options."""
    import librosa  # noqa: PLC0415 it takes a second

    options = {"hop_length": recipe.librosa_option("hop_length"), **dict(recipe.librosa_options)}
    # librosa warns of clips shorter than n_fft.
    padded = np.pad(wave, (0, max(0, recipe.librosa_option("n_fft") - len(wave))))
    stft_names, mfcc_names = _STFT_OPTIONS & options.keys(), _MFCC_OPTIONS & options.keys()
    try:
        transform = librosa.stft(padded, **{name: options[name] for name in stft_names})
        spectrum = np.abs(transform) ** options.get("power", 2.0)
        features: npt.NDArray[Any] = _make_sparse_filters(recipe) @ spectrum  # not BLAS: see `_compute_block`
        if recipe.type == "mfcc":
            decibels = librosa.power_to_db(features)
            features = librosa.feature.mfcc(S=decibels, **{name: options[name] for name in mfcc_names})
    except (librosa.ParameterError, TypeError, ValueError) as error:
        raise ConfigError(f"librosa_options={dict(recipe.librosa_options)}: {error}") from error
    return features.T


def _make_librosa_filters(recipe: AudioRecipe) -> Any:
    """Return librosa's mel filters (bands, bins) of a recipe."""
    import librosa  # noqa: PLC0415 as above

    options = dict(recipe.librosa_options)
    if recipe.type == "mfcc":
        options["norm"] = options.get("mel_norm", "slaney")
    filters = {name: options[name] for name in {"n_mels", "fmin", "fmax", "htk", "norm"} & options.keys()}
    return librosa.filters.mel(sr=recipe.sampling_rate, n_fft=recipe.librosa_option("n_fft"), **filters)


def make_mel_filters(recipe: AudioRecipe) -> Floats:
    """Return triangular mel filters of HTK (bands, bins)."""
    highest = 2595.0 * np.log10(1.0 + (recipe.sampling_rate // 2) / 700.0)
    hertz = 700.0 * (10.0 ** (np.linspace(0.0, highest, recipe.num_filter_bands + 2) / 2595.0) - 1.0)
    # Rounded before floor, because a rounding error of the power could move an integer corner one bin down.
    corners = np.floor(np.round((recipe.nfft + 1) / recipe.sampling_rate * hertz, 6))
    start, middle, end = (corners[k : k + recipe.num_filter_bands, None] for k in range(3))
    bins = np.arange(recipe.nfft // 2 + 1)
    # Sides without a bin are divided by zero, which `select` ignores.
    with np.errstate(divide="ignore", invalid="ignore"):
        rising, falling = (bins - start) / (middle - start), (end - bins) / (end - middle)
    sides = [(start <= bins) & (bins < middle), (middle <= bins) & (bins < end)]
    return np.select(sides, [rising, falling], 0.0).astype(np.float32)


@lru_cache(maxsize=64)
def _make_sparse_filters(recipe: AudioRecipe) -> Any:
    from scipy.sparse import csr_array  # noqa: PLC0415

    return csr_array(_make_librosa_filters(recipe) if recipe.is_librosa else make_mel_filters(recipe))


def _write_spectra(waves: list[Floats], lengths: list[int], recipe: AudioRecipe, out: Floats) -> None:
    """Write the features of clips into `out`, block by block."""
    width = {"stft_phase": 8, "group_delay": 16}.get(recipe.type, 4)
    frame_bytes = width * (recipe.window + 6 * recipe.nfft) + 4 * recipe.feature_dim
    # In float32, group delays would have errors of 1 % and more where the spectrum in their denominator is near zero.
    dtype = np.float64 if recipe.type == "group_delay" else np.float32
    window = WINDOWS[recipe.window_type](recipe.window).astype(dtype)
    for runs in _group_frames(lengths, max(1, BLOCK_BYTES // frame_bytes)):
        ends = np.cumsum([run.frames for run in runs]).tolist()
        frames = np.zeros((ends[-1], recipe.window), dtype)
        for run, end in zip(runs, ends, strict=True):
            _cut_frames(waves[run.clip], run, recipe, frames[end - run.frames : end])
        features = _compute_block(frames, window, recipe)
        for (clip, first, count), end in zip(runs, ends, strict=True):
            out[clip, first : first + count] = features[end - count : end]


def _group_frames(lengths: list[int], max_frames: int) -> Iterator[list[FrameRun]]:
    """Yield groups of runs of at most `max_frames` frames."""
    group: list[FrameRun] = []
    size = 0
    for clip, length in enumerate(lengths):
        for first in range(0, length, max_frames):
            run = FrameRun(clip, first, min(max_frames, length - first))
            if group and size + run.frames > max_frames:
                yield group
                group, size = [], 0
            group.append(run)
            size += run.frames
    if group:
        yield group


def _cut_frames(wave: Floats, run: FrameRun, recipe: AudioRecipe, frames: npt.NDArray[Any]) -> None:
    """Write the frames of a run to `frames`, after pre-emphasis, with zeros after the wave."""
    start = run.first * recipe.shift
    stop = start + (run.frames - 1) * recipe.shift + recipe.window
    samples = wave[start:stop].astype(np.float64)  # neighboring samples nearly cancel each other
    samples[1:] -= recipe.pre_emphasis * samples[:-1]
    if start and samples.size:
        samples[:1] -= recipe.pre_emphasis * float(wave[start - 1])
    emphasized = np.zeros(stop - start, np.float32)
    emphasized[: len(samples)] = samples
    frames[...] = np.lib.stride_tricks.sliding_window_view(emphasized, recipe.window)[:: recipe.shift]
    last_samples = len(samples) - (run.frames - 1) * recipe.shift
    if recipe.type == "fbank" and 0 < last_samples < recipe.window:
        frames[-1, :last_samples] -= frames[-1, :last_samples].mean()  # the mean without padding


def _compute_block(frames: npt.NDArray[Any], window: npt.NDArray[Any], recipe: AudioRecipe) -> npt.NDArray[Any]:
    """Return the features of frames, which are overwritten."""
    from scipy.fft import rfft  # noqa: PLC0415

    if recipe.type == "fbank":
        frames -= frames.mean(axis=1, keepdims=True)
    frames *= window
    spectrum: npt.NDArray[Any] = rfft(frames, n=recipe.nfft)
    features: npt.NDArray[Any]
    if recipe.type == "stft":
        features = np.abs(spectrum)
    elif recipe.type == "stft_phase":
        features = np.concatenate([np.angle(spectrum), np.abs(spectrum)], axis=1)
    elif recipe.type == "group_delay":
        frames *= np.arange(recipe.window, dtype=frames.dtype)
        slope = rfft(frames, n=recipe.nfft)
        features = (spectrum.real * slope.real + spectrum.imag * slope.imag) / (_compute_power(spectrum) + FLOOR)
    else:
        # A sparse product, because results of BLAS depend on the number of frames, and most filter weights are zeros.
        features = np.ascontiguousarray((_make_sparse_filters(recipe) @ _compute_power(spectrum).T).T)
        features += FLOOR
        np.log(features, out=features)
    return features


def _compute_power(spectrum: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return spectrum.real**2 + spectrum.imag**2


def _standardize(rows: Floats) -> None:
    """Standardize each column in place."""
    rows -= rows.mean(axis=0, dtype=np.float64)
    step = max(1, BLOCK_BYTES // (8 * rows.shape[1]))
    squares = np.zeros(rows.shape[1])
    for start in range(0, len(rows), step):
        squares += np.square(rows[start : start + step], dtype=np.float64).sum(axis=0)
    rows /= np.sqrt(squares / max(1, len(rows) - 1)) + FLOOR
