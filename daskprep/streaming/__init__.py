"""Batches of torch straight from partitions, encoded while a model trains; nothing is written.

Tasks of workers import `encoding` alone, so that they need no torch: hence nothing is imported here.
"""
