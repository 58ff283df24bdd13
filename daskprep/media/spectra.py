"""Frames of sounds as spectra, many sounds at once; after the signal chain of python_speech_features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from daskprep.errors import ConfigError
from daskprep.media.audio import AudioRecipe

Floats = npt.NDArray[np.float32]

FLOOR = 1e-10  # keeps logarithms and quotients of silence finite
BLOCK_BYTES = 8 << 20  # of all temporary arrays together, unless one frame takes more; less was slower, more no faster
_STFT = {"n_fft", "hop_length", "win_length", "window", "center", "pad_mode"}
_MFCC = {"n_mfcc", "dct_type", "norm", "lifter"}
WINDOWS = {"bartlett": np.bartlett, "blackman": np.blackman, "hamming": np.hamming, "hann": np.hanning}


class FrameRun(NamedTuple):
    """Neighbouring frames of one sound."""

    clip: int
    first: int
    frames: int


def features_of(waves: Sequence[npt.NDArray[Any]], recipe: AudioRecipe, out: Floats | None = None) -> Floats:
    """Return float32 (sounds, max_length, feature_dim) of samples at the rate of the recipe.

    The numbers of a sound do not depend on its company. Shorter sounds are followed by `padding_of`, of longer
    ones the start is used; `norm="per_file"` looks at what is kept. A sound shorter than a window is one frame.
    """
    out = np.empty((len(waves), *recipe.shape), np.float32) if out is None else out
    cut = [np.asarray(wave, np.float32)[: recipe.needed] for wave in waves]
    if recipe.type == "raw":
        lengths = [len(wave) for wave in cut]
        for row, wave in zip(out, cut, strict=True):
            row[: len(wave), 0] = wave
    else:
        lengths = [recipe.frames(len(wave)) for wave in cut]
        if not recipe.is_librosa:
            _write_spectra(cut, lengths, recipe, out)
    for row, wave, length in zip(out, cut, lengths, strict=True):
        if recipe.is_librosa:
            row[:length] = _by_librosa(wave, recipe)[:length]
        if recipe.norm == "per_file" and length:
            _standardize(row[:length])
        row[length:] = padding_of(recipe)
    return out


@lru_cache(maxsize=64)
def padding_of(recipe: AudioRecipe) -> Floats | float:
    """Return the number, or the row of numbers, that stands where there is no sound: by default that of silence."""
    if recipe.padding_value is not None:
        return recipe.padding_value
    silence: Floats = features_of([np.zeros(recipe.window, np.float32)], replace(recipe, padding_value=0.0))[0, 0]
    return silence


def _by_librosa(wave: Floats, recipe: AudioRecipe) -> npt.NDArray[Any]:
    import librosa  # noqa: PLC0415 it takes a second

    given = {"hop_length": recipe.option("hop_length"), **dict(recipe.librosa_options)}
    padded = np.pad(wave, (0, max(0, recipe.option("n_fft") - len(wave))))  # it warns of shorter ones
    frames, cepstrum = _STFT & given.keys(), _MFCC & given.keys()
    try:
        spectrum = np.abs(librosa.stft(padded, **{name: given[name] for name in frames})) ** given.get("power", 2.0)
        found: npt.NDArray[Any] = _sparse_filters(recipe) @ spectrum  # not by BLAS, as below
        if recipe.type == "mfcc":
            found = librosa.feature.mfcc(S=librosa.power_to_db(found), **{name: given[name] for name in cepstrum})
    except (librosa.ParameterError, TypeError, ValueError) as error:
        raise ConfigError(f"librosa_options={dict(recipe.librosa_options)}: {error}") from error
    return found.T


def _librosa_filters(recipe: AudioRecipe) -> Any:
    import librosa  # noqa: PLC0415 as above

    given = dict(recipe.librosa_options)
    if recipe.type == "mfcc":
        given["norm"] = given.get("mel_norm", "slaney")
    filters = {name: given[name] for name in {"n_mels", "fmin", "fmax", "htk", "norm"} & given.keys()}
    return librosa.filters.mel(sr=recipe.sampling_rate, n_fft=recipe.option("n_fft"), **filters)


def mel_filters(recipe: AudioRecipe) -> Floats:
    """Return the triangular filters, float32 (bands, bins): equally wide on the mel scale of HTK."""
    highest = 2595.0 * np.log10(1.0 + (recipe.sampling_rate // 2) / 700.0)
    hertz = 700.0 * (10.0 ** (np.linspace(0.0, highest, recipe.num_filter_bands + 2) / 2595.0) - 1.0)
    # The last corner is a whole number at times, and not to be the one below by a rounding error of the power.
    corners = np.floor(np.round((recipe.nfft + 1) / recipe.sampling_rate * hertz, 6))
    begin, middle, end = (corners[k : k + recipe.num_filter_bands, None] for k in range(3))
    bins = np.arange(recipe.nfft // 2 + 1)
    with np.errstate(divide="ignore", invalid="ignore"):  # sides without a bin, which are not picked
        rising, falling = (bins - begin) / (middle - begin), (end - bins) / (end - middle)
    sides = [(begin <= bins) & (bins < middle), (middle <= bins) & (bins < end)]
    filters: Floats = np.select(sides, [rising, falling], 0.0).astype(np.float32)
    return filters


@lru_cache(maxsize=64)
def _sparse_filters(recipe: AudioRecipe) -> Any:
    from scipy.sparse import csr_array  # noqa: PLC0415

    return csr_array(_librosa_filters(recipe) if recipe.is_librosa else mel_filters(recipe))


def _write_spectra(waves: list[Floats], lengths: list[int], recipe: AudioRecipe, out: Floats) -> None:
    """Write the features of all frames, a block of frames at a time."""
    width = {"stft_phase": 8, "group_delay": 16}.get(recipe.type, 4)
    frame_bytes = width * (recipe.window + 6 * recipe.nfft) + 4 * recipe.feature_dim
    # A group delay is a quotient of what float32 gets wrong by a hundredth and more, where the spectrum is near zero.
    dtype = np.float64 if recipe.type == "group_delay" else np.float32
    window = WINDOWS[recipe.window_type](recipe.window).astype(dtype)
    for pieces in _grouped(lengths, max(1, BLOCK_BYTES // frame_bytes)):
        frames = np.zeros((sum(piece.frames for piece in pieces), recipe.window), dtype)
        row = 0
        for piece in pieces:
            _cut_frames(waves[piece.clip], piece, recipe, frames[row : row + piece.frames])
            row += piece.frames
        features = _features(frames, window, recipe)
        row = 0
        for clip, first, count in pieces:
            out[clip, first : first + count] = features[row : row + count]
            row += count


def _grouped(lengths: list[int], most: int) -> Iterator[list[FrameRun]]:
    """Cut sounds of so many frames into pieces, and gather those into groups of at most `most` frames."""
    group: list[FrameRun] = []
    size = 0
    for clip, length in enumerate(lengths):
        for first in range(0, length, most):
            piece = FrameRun(clip, first, min(most, length - first))
            if group and size + piece.frames > most:
                yield group
                group, size = [], 0
            group.append(piece)
            size += piece.frames
    if group:
        yield group


def _cut_frames(wave: Floats, piece: FrameRun, recipe: AudioRecipe, frames: npt.NDArray[Any]) -> None:
    """Write frames of the emphasized wave into `frames`, which is zeros."""
    start = piece.first * recipe.shift
    stop = start + (piece.frames - 1) * recipe.shift + recipe.window
    heard = wave[start:stop].astype(np.float64)  # as neighbours nearly cancel each other
    heard[1:] -= recipe.pre_emphasis * heard[:-1]
    if start and heard.size:
        heard[:1] -= recipe.pre_emphasis * float(wave[start - 1])
    emphasized = np.zeros(stop - start, np.float32)
    emphasized[: len(heard)] = heard
    frames[...] = np.lib.stride_tricks.sliding_window_view(emphasized, recipe.window)[:: recipe.shift]
    left = len(heard) - (piece.frames - 1) * recipe.shift
    if recipe.type == "fbank" and 0 < left < recipe.window:
        frames[-1, :left] -= frames[-1, :left].mean()  # here, as the padding does not count


def _features(frames: npt.NDArray[Any], window: npt.NDArray[Any], recipe: AudioRecipe) -> npt.NDArray[Any]:
    """Return the features of each frame; `frames` is overwritten."""
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
        features = (spectrum.real * slope.real + spectrum.imag * slope.imag) / (_power(spectrum) + FLOOR)
    else:
        # Not by BLAS, whose sums depend on how many frames there are. Most of the filters is zeros anyway.
        features = np.ascontiguousarray((_sparse_filters(recipe) @ _power(spectrum).T).T)
        features += FLOOR
        np.log(features, out=features)
    return features


def _power(spectrum: npt.NDArray[Any]) -> npt.NDArray[Any]:
    power: npt.NDArray[Any] = spectrum.real**2 + spectrum.imag**2
    return power


def _standardize(rows: Floats) -> None:
    """Subtract each column's mean, divide by its unbiased deviation; a single row becomes zeros."""
    rows -= rows.mean(axis=0, dtype=np.float64)
    step = max(1, BLOCK_BYTES // (8 * rows.shape[1]))
    squares = np.zeros(rows.shape[1])
    for begin in range(0, len(rows), step):
        squares += np.square(rows[begin : begin + step], dtype=np.float64).sum(axis=0)
    rows /= np.sqrt(squares / max(1, len(rows) - 1)) + FLOOR
