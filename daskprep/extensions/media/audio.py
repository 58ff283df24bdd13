"""Audio as samples: recipe, decoding of files, and reading and writing of WAV."""

from __future__ import annotations

import io
import math
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from daskprep.errors import ConfigError, MediaError
from daskprep.extensions.media.pixels import Encoded, check_choice
from daskprep.storage.checksum import json_sha256
from daskprep.storage.security import require_safe

_PCM, _IEEE_FLOAT = 1, 3
_DTYPES: dict[tuple[int, int], np.dtype[Any]] = {(_PCM, 16): np.dtype("<i2"), (_IEEE_FLOAT, 32): np.dtype("<f4")}
_FORMAT_STRUCT = struct.Struct("<HHIIHH")


def read_plain_wav(data: memoryview) -> tuple[npt.NDArray[Any], int] | None:
    """Return a view of samples (frames, channels) and the rate; None unless WAV of int16 or float32."""
    if bytes(data[:4]) != b"RIFF" or bytes(data[8:12]) != b"WAVE":
        return None
    format_fields: tuple[int, ...] | None = None
    for name, content in _iterate_chunks(data):
        if name == b"fmt " and len(content) >= _FORMAT_STRUCT.size:
            format_fields = _FORMAT_STRUCT.unpack_from(content)
        elif name == b"data" and format_fields is not None:
            format_tag, channels, rate, _, frame_bytes, bits = format_fields
            dtype = _DTYPES.get((format_tag, bits))
            # The header of a file that was never closed states no samples, although the file may have some.
            if (
                dtype is None
                or not content.nbytes
                or not channels
                or frame_bytes != channels * dtype.itemsize
                or len(content) % frame_bytes
            ):
                return None
            return np.frombuffer(content, dtype).reshape(-1, channels), rate
    return None


def _iterate_chunks(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield name and content of the chunks of a RIFF file, up to one cut short."""
    offset = 12
    while offset + 8 <= len(data):
        size = int.from_bytes(data[offset + 4 : offset + 8], "little")
        content = data[offset + 8 : offset + 8 + size]
        if len(content) < size:
            return
        yield bytes(data[offset : offset + 4]), content
        offset += 8 + size + size % 2


AudioType = Literal["raw", "stft", "stft_phase", "group_delay", "fbank", "mel", "mfcc"]
WindowType = Literal["bartlett", "blackman", "hamming", "hann"]
Norm = Literal["per_file"]

# The format is checked before libsndfile opens a file, so that its readers of two dozen rare formats never run.
SIGNATURES = {
    "WAV": rb"(RIFF|RIFX|RF64)....WAVE",
    "FLAC": rb"fLaC",
    "OGG": rb"OggS",
    "MP3": rb"ID3|\xff[\xe0-\xff]",
    "AIFF": rb"FORM....AIF[FC]",
}
FORMATS = tuple(SIGNATURES)
VARIANTS = {"WAVEX": "WAV", "RF64": "WAV"}
RECIPE_VERSION = 1  # raised when the result of the same recipe changes
PRE_EMPHASIS = 0.97
BLOCK_SAMPLES = 1 << 18  # of all channels, decoded per call
MAX_SAMPLING_RATE = 768_000  # twice what recorders reach
# Of the ratio of two sampling rates, because the resampling filter grows with its terms. A ratio with larger terms is
# approximated with a relative error of at most 1e-5, which is less than the error of the clocks of recorders.
MAX_RATIO_TERM = 100_000
LIBROSA_DEFAULTS = {"n_fft": 2048, "hop_length": 512, "n_mels": 128}  # its defaults
_SOXR_LOOKAHEAD = 1_000
_OTHER_LIBROSA_OPTIONS = "win_length window center pad_mode power fmin fmax htk norm n_mfcc mel_norm dct_type lifter"
_MAX_WAV_BYTES = 0xFFFF_0000
MAX_AMPLITUDE = 2.0**32  # unscaled 32-bit samples; the power spectrum of louder ones overflows float32


@dataclass(frozen=True)
class AudioRecipe:
    """Parameters that turn audio into an array, as in `Audio`."""

    type: AudioType
    sampling_rate: int
    length_limit_in_s: float = 7.5
    window_length_in_s: float = 0.04
    window_shift_in_s: float = 0.02
    num_fft_points: int | None = None
    window_type: WindowType = "hamming"
    num_filter_bands: int = 80
    padding_value: float | None = 0.0  # None: the features of silence
    norm: Norm | None = None
    max_seconds: float = 3600.0
    formats: tuple[str, ...] = FORMATS
    librosa_options: tuple[tuple[str, Any], ...] = ()
    resampling: Literal["polyphase", "soxr"] = "polyphase"
    pre_emphasis: float = PRE_EMPHASIS

    def __post_init__(self) -> None:
        """Raise ConfigError for the first parameter out of range."""
        for option, value in self.librosa_options:
            known = [*LIBROSA_DEFAULTS, *_OTHER_LIBROSA_OPTIONS.split()][: None if self.type == "mfcc" else -4]
            check_choice("an option of librosa_options", option, known)
            if option in (*LIBROSA_DEFAULTS, "n_mfcc") and not (isinstance(value, int) and value >= 1):
                raise ConfigError(f"{option} in librosa_options is {value!r}: use an integer of at least 1.")
        if self.librosa_options and not self.is_librosa:
            raise ConfigError(f'librosa_options are for the types "mel" and "mfcc", not "{self.type}": leave them out.')
        for name in self.formats:
            check_choice("formats", name, FORMATS)
        if not 1 <= self.sampling_rate <= MAX_SAMPLING_RATE:
            raise ConfigError(
                f"sampling_rate is {self.sampling_rate}: use 1 to {MAX_SAMPLING_RATE:,} samples per second."
            )
        for name in ("length_limit_in_s", "window_length_in_s", "window_shift_in_s"):
            if not (seconds := getattr(self, name)) < math.inf or self._count_samples(seconds) < 1:
                raise ConfigError(f"{name} is {seconds}: use at least one sample, 1/{self.sampling_rate} s.")
        if not 0 <= self.pre_emphasis <= 1:
            raise ConfigError(f"pre_emphasis is {self.pre_emphasis}: use 0 to 1; 0 disables it.")
        if self.nfft < self.window:
            raise ConfigError(f"num_fft_points is {self.nfft}: use at least the {self.window} samples of the window.")

    def _count_samples(self, seconds: float) -> int:
        # 0.29 s at 100 Hz are 28.999999999999996 samples, but must count as 29.
        return int(round(seconds * self.sampling_rate, 6))

    @property
    def window(self) -> int:
        """Number of samples of a frame."""
        return self._count_samples(self.window_length_in_s)

    @property
    def shift(self) -> int:
        """Number of samples between the starts of neighboring frames."""
        return self._count_samples(self.window_shift_in_s)

    @property
    def limit(self) -> int:
        """Number of samples to which audio is cut or padded."""
        return self._count_samples(self.length_limit_in_s)

    @property
    def is_librosa(self) -> bool:
        return self.type in {"mel", "mfcc"}

    def librosa_option(self, name: str) -> Any:
        """Return an option of librosa, or librosa's default."""
        return dict(self.librosa_options).get(name, LIBROSA_DEFAULTS.get(name, True))

    @property
    def nfft(self) -> int:
        """Number of points of the Fourier transform."""
        return self.window if self.num_fft_points is None else self.num_fft_points

    @property
    def max_length(self) -> int:
        """Number of rows of the result: samples if "raw", else frames."""
        return self.limit if self.type == "raw" else self.count_frames(self.limit)

    @property
    def feature_dim(self) -> int:
        """Number of columns of the result."""
        bins = self.nfft // 2 + 1
        if self.is_librosa:
            bands = dict(self.librosa_options).get("n_mfcc", 20)
            return int(self.librosa_option("n_mels") if self.type == "mel" else bands)
        return {"raw": 1, "stft_phase": 2 * bins, "fbank": self.num_filter_bands}.get(self.type, bins)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns of the result."""
        return self.max_length, self.feature_dim

    @cached_property
    def needed_samples(self) -> int:
        """Number of first samples that the result depends on."""
        return self.limit if self.type == "raw" or self.is_librosa else (self.max_length - 1) * self.shift + self.window

    def count_frames(self, samples: int) -> int:
        """Return the number of frames of samples, at least one."""
        if self.is_librosa:
            covered = samples if self.librosa_option("center") else max(0, samples - self.librosa_option("n_fft"))
            return int(1 + covered // self.librosa_option("hop_length"))
        return max(1, -((self.window - samples) // self.shift) + 1)

    def digest(self) -> str:
        """Return the SHA-256 of all parameters of the result."""
        parameters = asdict(self)
        if self.pre_emphasis == PRE_EMPHASIS:  # keeps the digests of versions without this parameter
            del parameters["pre_emphasis"]
        return json_sha256({"decoder": "soundfile", "version": RECIPE_VERSION, **parameters})


def decode_audio(source: Encoded, recipe: AudioRecipe) -> npt.NDArray[np.float32]:
    """Return the mean of all channels at the rate of the recipe.

    Integers are scaled to [-1, 1). A truncated WAV, AIFF or MP3 file returns the samples it has. Audio at another rate
    is resampled by `scipy.signal.resample_poly`, which is deterministic. The result differs from librosa's (soxr) by
    about 0.1 % below half of the lower rate, and by more close to it. MediaError for no samples, NaN and broken files.
    """
    plain_wav = read_plain_wav(memoryview(source)) if "WAV" in recipe.formats else None
    if plain_wav is not None:
        stored_samples, rate = plain_wav
        _check_length(len(stored_samples), rate, recipe)
        samples = _average_channels(_convert_to_floats(stored_samples[: _count_source_frames(recipe, rate)]))
        is_bounded = stored_samples.dtype.kind != "f"
    else:
        with _open_audio(source, recipe.formats) as (file, frames):
            rate = int(file.samplerate)
            _check_length(frames, rate, recipe)
            samples = _read_samples(file, _count_source_frames(recipe, rate))
            is_bounded = False
    if not samples.size:
        raise MediaError("holds no samples")
    if not (is_bounded or (samples.min() >= -MAX_AMPLITUDE and samples.max() <= MAX_AMPLITUDE)):  # also true for NaN
        raise MediaError("has samples that are NaN, infinite, or beyond 32 bits")
    if recipe.resampling == "soxr" and rate != recipe.sampling_rate:
        import librosa  # noqa: PLC0415 it takes a second

        resampled = librosa.resample(samples, orig_sr=rate, target_sr=recipe.sampling_rate)
        return np.asarray(resampled[: recipe.needed_samples], np.float32)
    return _resample(samples, rate, recipe.sampling_rate)[: recipe.needed_samples]


def _check_length(frames: int | None, rate: int, recipe: AudioRecipe) -> None:
    """Raise MediaError beyond `max_seconds`, or for a bad rate."""
    _check_rate(rate, recipe.sampling_rate)
    if frames is not None and frames > recipe.max_seconds * rate:
        seconds, limit = (f"{one:,.0f}" if one >= 10 else f"{one:.3g}" for one in (frames / rate, recipe.max_seconds))
        raise MediaError(f"lasts {seconds} s, and max_seconds is {limit}")


def read_audio_info(source: Encoded, formats: tuple[str, ...] = FORMATS) -> tuple[int | None, int, int]:
    """Return frames, rate and channels from a file's header."""
    with _open_audio(source, formats) as (file, frames):
        _check_rate(int(file.samplerate))
        return frames, int(file.samplerate), int(file.channels)


def encode_wav(samples: npt.NDArray[Any], rate: int) -> bytes:
    """Return samples as WAV of int16 or float32, the shorter axis as channels; MediaError for others, and over 4 GB."""
    from scipy.io import wavfile  # noqa: PLC0415 libsndfile would write the current time into files of floats

    _check_rate(rate)
    if samples.ndim == 1:
        samples = samples[:, None]
    elif samples.ndim != 2 or not samples.size:
        raise MediaError(f"has the shape {samples.shape}: expected (samples,), (channels, samples) or its transpose")
    elif samples.shape[0] < samples.shape[1]:
        samples = samples.T
    samples = samples if samples.dtype == np.int16 else _convert_to_floats(samples)
    if samples.nbytes > _MAX_WAV_BYTES:
        raise MediaError(f"takes {samples.nbytes:,} bytes, and a WAV file holds 4 GB at most")
    file = io.BytesIO()
    wavfile.write(file, rate, samples.astype(samples.dtype.newbyteorder("<"), copy=False))
    return file.getvalue()


def matches_wav_file(path: str, wav: bytes) -> bool:
    """Return whether a file has the rate and samples of a WAV."""
    import soundfile  # noqa: PLC0415 columns of other types do without it

    require_safe("libsndfile")
    wav_samples, rate = soundfile.read(io.BytesIO(wav), dtype="float32")
    try:
        file_info = soundfile.info(path)
        if (file_info.samplerate, file_info.frames) != (rate, len(wav_samples)):
            return False
        return np.array_equal(soundfile.read(path, dtype="float32")[0], wav_samples)
    except soundfile.SoundFileError:
        return False


class _ForgivingFile(io.BytesIO):
    """File in memory that clips negative offsets of libsndfile."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = super().seek(0, whence) if whence else 0
        return super().seek(max(0, start + offset))


@contextmanager
def _open_audio(source: Encoded, formats: tuple[str, ...]) -> Iterator[tuple[Any, int | None]]:
    """Open an audio file; yield a SoundFile and its frames.

    Frames that the header does not state are None. MediaError for other formats than `formats`, and for broken files.
    """
    import soundfile  # noqa: PLC0415 as above

    require_safe("libsndfile")
    head = bytes(memoryview(source)[:12])
    name = next((name for name, signature in SIGNATURES.items() if re.match(signature, head, re.DOTALL)), None)
    if name is None:
        raise MediaError(f"is none of {', '.join(SIGNATURES)}: starts with {head!r}" if head else "is empty")
    _check_format(name, formats)
    try:
        with soundfile.SoundFile(_ForgivingFile(source)) as file:
            _check_format(VARIANTS.get(file.format, file.format), formats)
            yield file, int(file.frames) if 0 <= file.frames < 1 << 62 else None
    except soundfile.SoundFileError as error:
        raise MediaError(f"cannot be decoded as {name}: {getattr(error, 'error_string', error)}") from error


def _check_format(name: str, formats: tuple[str, ...]) -> None:
    """Raise MediaError for a format that is not allowed."""
    if name not in formats:
        raise MediaError(f"is {name}, and the formats allowed are {', '.join(formats)}")


def _check_rate(rate: int, target_rate: int = MAX_RATIO_TERM) -> None:
    """Raise MediaError for a rate that cannot be resampled."""
    lowest, highest = -(-target_rate // MAX_RATIO_TERM), min(MAX_SAMPLING_RATE, target_rate * MAX_RATIO_TERM)
    if not lowest <= rate <= highest:
        raise MediaError(f"has a sampling rate of {rate:,} per second: expected {lowest:,} to {highest:,}")


def _count_source_frames(recipe: AudioRecipe, rate: int) -> int:
    """Return the frames to decode, with resampling lookahead."""
    if rate == recipe.sampling_rate:
        return recipe.needed_samples
    lookahead = (10 if recipe.resampling == "polyphase" else _SOXR_LOOKAHEAD) * max(1.0, rate / recipe.sampling_rate)
    return math.ceil(recipe.needed_samples * rate / recipe.sampling_rate + lookahead) + 1


def _read_samples(file: Any, left_frames: int) -> npt.NDArray[np.float32]:
    """Return up to `left_frames` samples, averaged over channels."""
    # Block by block, because a header can state any number of frames, and there may be many channels.
    block_frames = max(1, BLOCK_SAMPLES // file.channels)
    blocks = [np.empty(0, np.float32)]
    while left_frames > 0:
        block = file.read(min(left_frames, block_frames), dtype="float32", always_2d=True)
        if not len(block):
            break
        blocks.append(_average_channels(block))
        left_frames -= len(block)
    return np.concatenate(blocks)


def _convert_to_floats(samples: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return samples as float32, integers scaled to [-1, 1).

    Unsigned ones are centered first. MediaError for other types, and integers of 64 bits.
    """
    if samples.dtype.kind == "f":
        with np.errstate(over="ignore"):  # infinities are refused later
            return samples.astype(np.float32)
    if samples.dtype.kind not in "iu" or samples.dtype.itemsize > 4:
        raise MediaError(f"has samples of {samples.dtype}: expected floats, or integers of up to 32 bits")
    half_range = 2.0 ** (8 * samples.dtype.itemsize - 1)
    # float32 represents integers of up to 16 bits exactly, but not of 32 bits.
    floats: npt.NDArray[Any] = samples.astype(np.float32 if samples.dtype.itemsize <= 2 else np.float64)
    if samples.dtype.kind == "u":
        floats -= half_range
    floats *= 1 / half_range
    return floats.astype(np.float32, copy=False)


def _average_channels(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the mean of the columns; a view of a single one."""
    if samples.shape[1] == 1:
        return samples[:, 0]
    # Channel by channel, which is many times as fast as a reduction along a short axis.
    total = samples[:, 0].copy()
    for channel in range(1, samples.shape[1]):
        total += samples[:, channel]
    total /= samples.shape[1]
    return total


def _resample(samples: npt.NDArray[np.float32], rate: int, target_rate: int) -> npt.NDArray[np.float32]:
    """Return samples at `target_rate` by polyphase filtering; as is if equal."""
    if rate == target_rate:
        return samples
    from scipy.signal import resample_poly  # noqa: PLC0415

    ratio = Fraction(min(rate, target_rate), max(rate, target_rate))
    ratio = ratio.limit_denominator(MAX_RATIO_TERM) or ratio
    up, down = (ratio.denominator, ratio.numerator) if target_rate > rate else (ratio.numerator, ratio.denominator)
    return resample_poly(samples, up, down)
