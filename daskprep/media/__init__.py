"""Bytes of images and sounds as arrays: no frames, no features, no torch."""
