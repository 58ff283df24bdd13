"""Checks for extensions of daskprep."""

from daskprep.testing.features import check_feature

__all__ = ["check_feature"]
