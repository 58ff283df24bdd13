"""Work on one column that all above share.

In: arrays of cells. Out: kernels, counts and summaries that merge, vocabularies, tokens, and cells that stay files.
No feature, frame or dataset is known here.
"""
