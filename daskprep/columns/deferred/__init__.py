"""Cells that stay files until a batch is made.

In: paths, bytes and objects of images or audio in a column. Out: cells of one Arrow type, the bytes of their files,
and arrays from a decoder, whose base class is here. `daskprep.extensions.media` has the decoders of images and audio.
"""
