"""Feature type for audio: samples, or spectral features of short frames."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from daskprep.columns.kernels import make_list_array
from daskprep.columns.summaries import ColumnSummary, FileSample
from daskprep.errors import ConfigError
from daskprep.extensions.media.audio import (
    FORMATS,
    MAX_SAMPLING_RATE,
    PRE_EMPHASIS,
    AudioRecipe,
    decode_audio,
    encode_wav,
    read_audio_info,
)
from daskprep.extensions.media.decoders import AudioDecoder
from daskprep.extensions.media.spectra import compute_padding
from daskprep.features.base import Loss
from daskprep.features.feature import with_parameters
from daskprep.features.media import LearnedMedia, MediaFeature
from daskprep.features.padding import Padding
from daskprep.rows.typed import Count, later

_SAMPLE_SIZE = 100
_MIN_LEARNED_LIMIT_S, _MAX_LEARNED_LIMIT_S = 7.5, 30.0
# A check reads as far into a file as decoding will: the length limit, the rest of the last frame, and this margin for
# the filter of the resampler.
_RESAMPLING_MARGIN_S = 0.1
_TEST_RATE = 8_000


class _AudioFacts(NamedTuple):
    """Samples per second of a recording, and its length in seconds if the header of the file contains it."""

    rate: int
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class LearnedAudio(LearnedMedia):
    """Fitted state of an audio column: rate, and shape (max_length, feature_dim) of decoded recordings."""

    sampling_rate: int = 1  # samples per second
    max_length: int = 1
    feature_dim: int = 1
    cut_share: float = later(0.0)  # share of the sampled recordings that are longer than the length limit
    length_limit_in_s: float | None = later(None)  # None: the parameter


@with_parameters
class Audio(MediaFeature[LearnedAudio]):
    """Decode audio to float32 arrays or spectrograms (length, features), when writing or when loading.

    A value is a path or URL, the bytes of a file, a struct of `bytes` and `path` or of `array` and `sampling_rate`, or
    an array of samples if `sampling_rate` is set. Channels are averaged. Audio is padded or cut at the end.

    Parameters
    ----------
    audio_file_length_limit_in_s : float or None
        Maximum length in seconds; the rest of a recording is not decoded. None: the longest one in a sample of 100
        recordings, at least 7.5 and at most 30 seconds.
    padding_value : float or None
        Padding at the end of short recordings. None: silence, which is about -23 for "fbank", a row of coefficients for
        "mfcc", and 0 for other types and with `norm`.
    norm : {"per_file"} or None
        Whether to standardize the columns of a recording over its frames.
    type : {"fbank", "raw", "stft", "stft_phase", "group_delay", "mel", "mfcc"}
        "fbank": log energies of mel bands. "raw": samples. "stft": magnitudes. "stft_phase": phases and magnitudes.
        "group_delay": group delays. "mel" and "mfcc": frames of `librosa.feature.melspectrogram` and `mfcc`.
    window_length_in_s, window_shift_in_s : float
        Length of a frame, and the distance between the starts of neighboring frames.
    num_fft_points : int or None
        Length of the Fourier transform, at least the samples of a frame. None: the samples of a frame.
    window_type : {"bartlett", "blackman", "hamming", "hann"}
        Window function of frames.
    num_filter_bands : int
        Number of mel bands of "fbank".
    pre_emphasis : float
        Share of each sample that is subtracted from the next one before spectra are computed, 0 to 1; not for "raw",
        "mel" and "mfcc". It raises high frequencies. 0: none.
    librosa_options : mapping or None
        Options of the librosa functions for "mel" and "mfcc", such as ``{"n_mels": 64, "hop_length": 160}``. They
        replace the parameters of windows and bands above.
    resampling : {"polyphase", "soxr"}
        Resampling method: scipy's `resample_poly`, or librosa's default.
    sampling_rate : int or None
        Samples per second that all audio is resampled to. None: the most frequent rate, in a tie the largest one, in a
        sample of 100 recordings: the ones with the smallest hashes of their paths or bytes.
    max_seconds : float
        Longer recordings cannot be decoded.
    mode, pack, prefetch_size, lazy_cache_dir, base_dir
        As for `Image`.
    on_error : {"raise", "fill", "drop"}
        Whether audio that cannot be decoded raises `MediaError`, becomes padding, or drops its row. To drop
        rows, all audio is decoded whenever it is read.
    formats : sequence of str or None
        Formats that may be decoded, out of "WAV", "FLAC", "OGG", "MP3" and "AIFF". None: all.
    missing_value_strategy : str
        Imputation of missing values: "fill_with_const" (with `fill_value`), "drop_row", "ffill" or "bfill".
    fill_value : float or None
        Number that fills the array of missing audio with "fill_with_const". None: the padding.
    missing_indicator, invalid, column
        As for `Image`.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from daskprep import Audio
    >>> from daskprep.extensions.media.audio import encode_wav
    >>> frame = pd.DataFrame({"word": [encode_wav(np.array([0.5, -0.5, 0.25]), 100), None]})
    >>> short = Audio(type="raw", audio_file_length_limit_in_s=0.04, missing_value_strategy="ffill")
    >>> short.fit_transform(frame)
    array([[ 0.5 , -0.5 ,  0.25,  0.  ],
           [ 0.5 , -0.5 ,  0.25,  0.  ]], dtype=float32)
    """

    _loss_remedies: ClassVar[Mapping[Loss, str]] = {"cut": "raise audio_file_length_limit_in_s"}
    kind = "audio"
    semantic_type = "sounds"
    media = "audio"
    known_formats = FORMATS
    untrusted_limits: ClassVar[Mapping[str, float]] = {"max_seconds": AudioRecipe.max_seconds}

    audio_file_length_limit_in_s: float | None = None
    padding_value: float | None = None
    norm: Literal["per_file"] | None = None
    type: Literal["fbank", "raw", "stft", "stft_phase", "group_delay", "mel", "mfcc"] = "fbank"
    window_length_in_s: float = 0.04
    window_shift_in_s: float = 0.02
    num_fft_points: Count | None = None
    window_type: Literal["bartlett", "blackman", "hamming", "hann"] = "hamming"
    num_filter_bands: Count = 80
    pre_emphasis: float = later(PRE_EMPHASIS)
    librosa_options: Mapping[str, Any] | None = later(None)
    resampling: Literal["polyphase", "soxr"] = later("polyphase")
    sampling_rate: Count | None = None
    max_seconds: float = 3600.0
    fill_value: float | None = None

    def check(self) -> None:
        """Raise ConfigError for invalid parameters; `learn` checks those that depend on an unknown rate."""
        super().check()
        # While the rate is unknown, `learn` checks the parameters that depend on it.
        self._make_recipe(self.sampling_rate or MAX_SAMPLING_RATE, self.num_fft_points if self.sampling_rate else None)
        if not self.max_seconds > 0:
            raise ConfigError(f"Audio: max_seconds must be more than 0, not {self.max_seconds}")
        if self.fill_value is not None and not np.isfinite(self.fill_value):
            raise ConfigError(f"Audio: fill_value must be a finite number, not {self.fill_value}")

    def _make_recipe(self, rate: int, num_fft_points: int | None, **overrides: Any) -> AudioRecipe:
        """Return the decoding recipe at a rate, with `overrides` of its fields; raise ConfigError if it is invalid."""
        limit = self.audio_file_length_limit_in_s
        parameters: dict[str, Any] = {
            "type": self.type,
            "sampling_rate": int(rate),
            "length_limit_in_s": _MAX_LEARNED_LIMIT_S if limit is None else float(limit),
            "window_length_in_s": float(self.window_length_in_s),
            "window_shift_in_s": float(self.window_shift_in_s),
            "num_fft_points": None if num_fft_points is None else int(num_fft_points),
            "window_type": self.window_type,
            "num_filter_bands": int(self.num_filter_bands),
            "pre_emphasis": float(self.pre_emphasis),
            "librosa_options": tuple(sorted((self.librosa_options or {}).items())),
            "resampling": self.resampling,
            "padding_value": self._padding,
            "norm": self.norm,
            "max_seconds": float(self.max_seconds),
            "formats": self.allowed_formats,
        }
        try:
            return AudioRecipe(**{**parameters, **overrides})
        except ConfigError as error:
            prefix = "audio_file_" if str(error).startswith("length_limit_in_s") else ""
            raise ConfigError(f"Audio: {prefix}{error}") from error

    @property
    def sampled_files(self) -> int:
        is_sampled = self.pack or None in (self.sampling_rate, self.audio_file_length_limit_in_s)
        return _SAMPLE_SIZE if is_sampled else 0

    def check_decodable(self, content: pa.Buffer | bytes) -> None:
        limit = self.audio_file_length_limit_in_s or _MAX_LEARNED_LIMIT_S
        seconds = limit + self.window_length_in_s + _RESAMPLING_MARGIN_S
        rate = self.sampling_rate or _TEST_RATE
        decode_audio(content, self._make_recipe(rate, None, type="raw", length_limit_in_s=seconds, librosa_options=()))

    def read_facts(self, content: pa.Buffer | bytes) -> _AudioFacts:
        frames, rate, _ = read_audio_info(content, self.allowed_formats)
        return _AudioFacts(rate, None if frames is None else frames / rate)

    @property
    def _padding(self) -> float | None:
        """Number for padding; None for silence that is not 0."""
        if self.padding_value is not None:
            return float(self.padding_value)
        return None if self.type in ("fbank", "mfcc") and self.norm is None else 0.0

    def _learn_fallback(self, summary: ColumnSummary[FileSample]) -> float:
        return self._padding or 0.0  # if it is None, the decoder computes the padding

    def learn(self, summary: FileSample) -> LearnedAudio:
        """Learn rate, shape of decoded audio and mean cell bytes; raise MediaError if no file shows the rate."""
        sample = self.sample(summary)
        rate = self.sampling_rate
        if rate is None:
            rates = Counter(file.facts.rate for file in self.require_decodable(sample, "sampling_rate"))
            rate = max(rates, key=lambda candidate: (rates[candidate], candidate))
        lengths = [file.facts.seconds for file in sample if not file.error and file.facts.seconds is not None]
        learned_limit = None
        if (limit := self.audio_file_length_limit_in_s) is None:
            longest = math.ceil(10 * max(lengths, default=0.0)) / 10
            learned_limit = limit = min(max(longest, _MIN_LEARNED_LIMIT_S), _MAX_LEARNED_LIMIT_S)
        recipe = self._make_recipe(rate, self.num_fft_points, length_limit_in_s=float(limit))
        are_cut = [seconds > limit for seconds in lengths]
        return LearnedAudio(
            sampling_rate=recipe.sampling_rate,
            max_length=recipe.max_length,
            feature_dim=recipe.feature_dim,
            cut_share=float(np.mean(are_cut)) if are_cut else 0.0,
            length_limit_in_s=learned_limit,
            file_bytes=self.estimate_cell_bytes(summary, sample),
            base_dir=self.absolute_base_dir,
        )

    def _learned_losses(self, learned: LearnedAudio) -> Mapping[Loss, int]:
        return {"cut": round(learned.cut_share * (learned.rows - learned.missing))}

    def length_limit(self, learned: LearnedAudio) -> float:
        """Return the maximum length of recordings in seconds."""
        return self.audio_file_length_limit_in_s or learned.length_limit_in_s or _MIN_LEARNED_LIMIT_S

    def decoder(self, learned: LearnedAudio, base_dir: str | None = None) -> AudioDecoder:
        """Return a decoder; missing audio is the fill value or padding, broken audio padding if on_error="fill"."""
        is_constant = self.missing_value_strategy == "fill_with_const"
        has_fixed_fill = self.fill_value is not None if is_constant else self._padding is not None
        fill = learned.fill_value if has_fixed_fill else None
        return AudioDecoder(
            self.reader(base_dir or learned.base_dir),
            "fill" if self.on_error == "fill" else "raise",
            self._make_recipe(
                learned.sampling_rate, self.num_fft_points, length_limit_in_s=float(self.length_limit(learned))
            ),
            missing=self._padding if fill is None else float(fill),
            broken=self._padding,
        )

    def _paddings(self, learned: LearnedAudio, *, expand: bool) -> dict[str, Padding]:
        return {"": Padding(compute_padding(self._make_recipe(learned.sampling_rate, self.num_fft_points)))}

    def decode(self, encoded: np.ndarray, learned: LearnedAudio) -> pa.Array:
        """Return WAV files of "raw" rows as bytes; rows of other types as lists of frames, each a list of float32."""
        numbers = np.ascontiguousarray(encoded, np.float32)
        if self.type == "raw":
            return pa.array([encode_wav(recording[:, 0], learned.sampling_rate) for recording in numbers], pa.binary())
        recordings, frames, width = numbers.shape
        rows = make_list_array(np.arange(recordings * frames + 1) * width, pa.array(numbers.reshape(-1)))
        return make_list_array(np.arange(recordings + 1) * frames, rows)
