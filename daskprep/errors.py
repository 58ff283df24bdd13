"""Errors that daskprep raises. Each message names the column, the value, what was expected and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DaskprepError(Exception):
    """Root of every error that daskprep raises on purpose."""


class ConfigError(DaskprepError, ValueError):
    """A parameter, or a combination of parameters, makes no sense."""


class ColumnError(DaskprepError, ValueError):
    """A column is missing, ambiguous, or of a type that the feature cannot read."""


class MissingColumnError(ColumnError):
    """A column is not among those of the data."""


class ContractError(DaskprepError, AssertionError):
    """A feature type does not keep to its contract."""


class RejectedValueError(DaskprepError, ValueError):
    """A cell cannot be used and the feature was told to be strict about it."""


class MediaError(DaskprepError, ValueError):
    """An image or a sound cannot be decoded, or must not be."""


class CorruptDatasetError(DaskprepError):
    """A file of a dataset is missing or differs from what its manifest lists."""


class IncompleteDatasetError(DaskprepError):
    """A dataset was never finished: there is no manifest."""


class FormatVersionError(DaskprepError):
    """Something on disk was written by a newer version of daskprep."""


class StorageFullError(DaskprepError, OSError):
    """There is no room for a file; what was written before it is kept."""


class MissingPackageError(DaskprepError, ImportError):
    """An optional package that a feature needs is not installed."""


class WorkerError(DaskprepError, RuntimeError):
    """A worker of a cluster lacks something, does not answer, or died."""


def did_you_mean(name: object, options: Iterable[object]) -> str:
    """Return ``' Did you mean "x"?'`` for the option closest to `name`, or an empty string."""
    close = difflib.get_close_matches(str(name), [str(option) for option in options], n=1)
    return f' Did you mean "{close[0]}"?' if close else ""
