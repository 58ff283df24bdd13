"""Sizes of images and lengths of audio, proposed from a sample of the files."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc

from daskprep.column_types.guess import Guess
from daskprep.display.words import format_share
from daskprep.errors import ConfigError
from daskprep.features import Audio, Image
from daskprep.summaries.column_facts import ColumnFacts

_MAX_SIDE = 256
_MIN_FITTING_SHARE = 0.95
_MAX_AUDIO_S = 30.0


def suggest_size(guess: Guess, facts: ColumnFacts, folders: tuple[str, ...]) -> Guess:
    """Set the size of an image or audio feature to suit most files that can be read, in memory or on this machine."""
    if not isinstance(guess.feature, Image | Audio):
        return guess
    feature = guess.feature.with_base_folders(folders)
    texts = facts.distinct.texts
    try:
        paths = feature.parse(texts.filter(pc.invert(pc.match_substring(texts, "://"))))
        stored = facts.image_sample if isinstance(feature, Image) else facts.audio_sample
        readable_facts = [file.facts for file in feature.sample(stored + feature.summarize(paths)) if not file.error]
    except (ConfigError, OSError):  # relative paths are ambiguous, or storage fails: a fit raises the error
        return guess
    if isinstance(guess.feature, Image):
        return (
            _suggest_image_size(guess, guess.feature, [image.size[:2] for image in readable_facts])
            if readable_facts
            else guess
        )
    seconds = sorted(audio.seconds for audio in readable_facts if audio.seconds is not None)
    return _suggest_audio_length(guess, guess.feature, seconds) if seconds else guess


def _suggest_image_size(guess: Guess, feature: Image, sizes: Sequence[tuple[int, int]]) -> Guess:
    """Set the median size, scaled down in proportion if a side is too long."""
    low, high, median = (np.quantile(sizes, quantile, axis=0).tolist() for quantile in (0, 1, 0.5))
    scale = min(1.0, _MAX_SIDE / max(median))
    height, width = (max(1, round(side * scale)) for side in median)
    if low == high == [height, width]:
        return guess
    feature.height, feature.width = height, width
    note = "the median" + (f", with no side above {_MAX_SIDE}" if scale < 1 else "")
    summary = (
        f"{low[0]:.0f} x {low[1]:.0f} to {high[0]:.0f} x {high[1]:.0f} pixels, resized to {height} x {width}, {note}"
    )
    return guess._replace(reason=f"{guess.reason}; {summary}")


def _suggest_audio_length(guess: Guess, feature: Audio, seconds: Sequence[float]) -> Guess:
    """Set a length limit that most files do not exceed, without much padding for a few long ones."""
    common_length, longest = seconds[math.ceil(_MIN_FITTING_SHARE * len(seconds)) - 1], seconds[-1]
    proposed = longest if longest <= 1.25 * common_length else common_length
    limit = min(max(math.ceil(proposed * 10 - 1e-6), 1) / 10, _MAX_AUDIO_S)
    feature.audio_file_length_limit_in_s = limit
    fitting_share = format_share(sum(length <= limit for length in seconds), len(seconds))
    summary = f"{seconds[0]:.3g} to {longest:.3g} s, cut at {limit:g} s, enough for {fitting_share} of them"
    return guess._replace(reason=f"{guess.reason}; {summary}")
