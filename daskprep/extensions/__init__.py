"""Parts that can be taken out of the package: each file or folder here needs the core, and the core needs none.

In: what the core reads, learns and writes. Out: media, inferred types, streams, reports, checks of new rows, growth,
predictions, training, files of other programs, the command line. `daskprep.dataset.methods` opens each of them from a
method of a Dataset or a Preprocessor.
"""
