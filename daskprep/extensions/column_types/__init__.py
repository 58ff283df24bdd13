"""Guess a feature for every column from all rows: facts that merge over partitions, and rules on the facts."""

from daskprep.extensions.column_types.inferring import InferredFeatures, infer_features, infer_source

__all__ = ["InferredFeatures", "infer_features", "infer_source"]
