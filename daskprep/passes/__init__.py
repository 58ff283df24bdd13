"""Passes over the partitions of a source.

In: a source, features and a split. Out: learned states, assigned splits and encoded partitions. `contexts` holds what
a task needs from other partitions, `engine` runs the passes, and `state` has the fitted state as JSON.
"""
