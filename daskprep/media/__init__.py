"""Decoding of image and audio files to arrays, independent of frames, features and torch."""
