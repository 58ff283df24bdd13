"""Guess a feature for every column from all rows.

In: a source. Out: features with a reason for each, and the columns left out. Facts about columns merge over
partitions, and rules on the facts choose the types.
"""

from daskprep.extensions.column_types.inferring import InferredFeatures, infer_features, infer_source

__all__ = ["InferredFeatures", "infer_features", "infer_source"]
