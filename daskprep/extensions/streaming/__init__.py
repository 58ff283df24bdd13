"""Batches for torch directly from partitions, encoded while a model trains, without a dataset on disk.

Tasks on Dask workers import only `encoding`. This file imports no module, so that workers do not need torch.
"""
