"""Passes over the partitions of a source: contexts from other partitions, and the engine that runs them."""
