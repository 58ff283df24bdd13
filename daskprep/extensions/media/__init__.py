"""Decoding of image and audio files to arrays, independent of frames, features and torch."""

import daskprep.features  # the types of media, which it lists, import it
