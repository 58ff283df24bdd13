"""Batches for torch directly from partitions, encoded while a model trains, without a dataset on disk.

In: a source and a fitted state. Out: batches and states, as from a loader. Tasks on Dask workers import only
`encoding`, and this file imports no module, so that workers do not need torch.
"""
