"""Sizes of images and lengths of sounds, proposed from some of the files themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc

from daskprep.column_types.guess import Guess
from daskprep.display.words import share
from daskprep.errors import ConfigError
from daskprep.features import Audio, Image
from daskprep.summaries.column_facts import ColumnFacts

_LONGEST_SIDE = 256
_MOST = 0.95
_LONGEST_SOUND_S = 30.0


def with_size(guess: Guess, facts: ColumnFacts, folders: tuple[str, ...]) -> Guess:
    """Give an image or a sound the size that suits most of the files that can be read, in memory or on this machine."""
    if not isinstance(guess.feature, Image | Audio):
        return guess
    feature = guess.feature.beside(folders)
    texts = facts.distinct.texts
    try:
        paths = feature.parse(texts.filter(pc.invert(pc.match_substring(texts, "://"))))
        stored = facts.images_in if isinstance(feature, Image) else facts.sounds_in
        found = [file.facts for file in feature.sample(stored + feature.summarize(paths)) if not file.error]
    except (ConfigError, OSError):  # where relative paths begin is not certain, or storage fails: a fit will tell
        return guess
    if isinstance(guess.feature, Image):
        return _image(guess, guess.feature, [one.size[:2] for one in found]) if found else guess
    seconds = sorted(one.seconds for one in found if one.seconds is not None)
    return _sound(guess, guess.feature, seconds) if seconds else guess


def _image(guess: Guess, feature: Image, sizes: Sequence[tuple[int, int]]) -> Guess:
    """Propose the median size, made smaller as a whole if a side is too long."""
    low, high, median = (np.quantile(sizes, place, axis=0).tolist() for place in (0, 1, 0.5))
    scale = min(1.0, _LONGEST_SIDE / max(median))
    height, width = (max(1, round(side * scale)) for side in median)
    if low == high == [height, width]:
        return guess
    feature.height, feature.width = height, width
    how = "the median" + (f", with no side above {_LONGEST_SIDE}" if scale < 1 else "")
    seen = f"{low[0]:.0f} x {low[1]:.0f} to {high[0]:.0f} x {high[1]:.0f} pixels, brought to {height} x {width}, {how}"
    return guess._replace(reason=f"{guess.reason}; {seen}")


def _sound(guess: Guess, feature: Audio, seconds: Sequence[float]) -> Guess:
    """Propose a length in which most sounds fit, without much padding of all for the sake of a few."""
    most, longest = seconds[math.ceil(_MOST * len(seconds)) - 1], seconds[-1]
    wanted = longest if longest <= 1.25 * most else most
    limit = min(max(math.ceil(wanted * 10 - 1e-6), 1) / 10, _LONGEST_SOUND_S)
    feature.audio_file_length_limit_in_s = limit
    whole = share(sum(one <= limit for one in seconds), len(seconds))
    seen = f"{seconds[0]:.3g} to {longest:.3g} s, cut at {limit:g} s, within which {whole} of them are"
    return guess._replace(reason=f"{guess.reason}; {seen}")
