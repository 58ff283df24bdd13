"""Errors and warnings of daskprep. A message has the column, the value, the expected value and a remedy."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

MAX_MESSAGE_CHARACTERS = 2_000
_ELLIPSIS = " [...] "
_MAX_COMPARED_CHARACTERS = 100
FILE_SIMILARITY = 0.75  # of names of files for `did_you_mean`: any two with one suffix are a little similar


class DaskprepError(Exception):
    """Base class of all errors of daskprep, of at most 2,000 characters."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*(_shorten(value) if isinstance(value, str) else value for value in args), **kwargs)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning, located at the line that called daskprep."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("daskprep.", "sklearn.")):
        frame, level = frame.f_back, level + 1
    warnings.warn(_shorten(message), category, stacklevel=level)


def _shorten(message: str) -> str:
    """Return a message without its middle if it is too long."""
    if not is_valid_utf8(message):  # of a name, which files and consoles refuse
        message = message.encode(errors="backslashreplace").decode()
    half = (MAX_MESSAGE_CHARACTERS - len(_ELLIPSIS)) // 2
    return message if len(message) <= MAX_MESSAGE_CHARACTERS else f"{message[:half]}{_ELLIPSIS}{message[-half:]}"


class ConfigError(DaskprepError, ValueError):
    """Error for an invalid parameter or combination of parameters."""


class DatasetExistsError(ConfigError):
    """Error for a folder that has a dataset of other rows or parameters."""


class ColumnError(DaskprepError, ValueError):
    """Error for a column that is missing, ambiguous or of a wrong type."""


class MissingColumnError(ColumnError):
    """Error for a column that is missing from the data; `column` is its name."""

    def __init__(self, message: str, column: str = "") -> None:
        super().__init__(message)
        self.column = column


class ContractError(DaskprepError, AssertionError):
    """Error for a custom type that breaks the contract of types."""


class RejectedValueError(DaskprepError, ValueError):
    """Error for an unusable value, as with ``invalid="raise"``."""


class UnfilledCellError(RejectedValueError):
    """Error for a missing value without a learned replacement."""


class CheckError(DaskprepError, ValueError):
    """Error for new rows that differ from the rows of the fit."""


class MediaError(DaskprepError, ValueError):
    """Error for an image or audio that cannot, or must not, be decoded."""


class CorruptDatasetError(DaskprepError):
    """Error for a file that is missing or differs from the manifest."""


class IncompleteDatasetError(DaskprepError):
    """Error for a dataset without a manifest, never finished."""


class FormatVersionError(DaskprepError):
    """Error for a file of an incompatible version of daskprep."""


class StorageError(DaskprepError, OSError):
    """Error for a file that cannot be read or written."""


class StorageFullError(StorageError):
    """Error for a full disk; a write can resume."""


class MissingPackageError(DaskprepError, ImportError):
    """Error for an optional package that is missing or unsafe."""


class WorkerError(DaskprepError, RuntimeError):
    """Error for a worker that died or lacks a package or a file."""


def is_valid_utf8(value: object) -> bool:
    """Return whether all strings in a value are valid UTF-8."""
    if isinstance(value, str):
        return value.isascii() or value.encode(errors="ignore").decode() == value
    if isinstance(value, Mapping):
        return is_valid_utf8(list(value)) and is_valid_utf8(list(value.values()))
    return not isinstance(value, list | tuple) or all(map(is_valid_utf8, value))


# Terms of pandas, scikit-learn, PyTorch, Keras and Hugging Face, and the equivalent options here.
_SYNONYMS = {
    word: tuple(meanings.split())
    for words, meanings in (
        ("int int32 int64 integer float float32 float64 double numeric decimal standardscaler minmaxscaler", "number"),
        ("str string object", "category text"), ("factor label ordinal onehotencoder ordinalencoder", "category"),
        ("bool boolean logical", "binary"), ("datetime datetime64 timestamp time", "date"),
        ("list tokens ids", "sequence"), ("embedding array ndarray", "vector"), ("waveform sound speech", "audio"),
        ("img picture photo", "image"), ("val valid dev eval", "validation"), ("training", "train"),
        ("testing holdout", "test"), ("mean average", "fill_with_mean"), ("median", "fill_with_median"),
        ("mode most_frequent", "fill_with_mode"), ("constant const zero 0", "fill_with_const"), ("drop", "drop_row"),
        ("standard standardize z-score true", "zscore"), ("min-max min_max", "minmax"),
        ("gpu", "cuda"), ("probability test_size train_size", "shares"), ("n_splits", "k"),
        ("vocab_size", "most_common"), ("max_length max_len", "max_sequence_length"), ("to_pandas to_polars", "head"),
        ("ignore", "unk"), ("word words whitespace", "space space_punct"), ("spacy", "english_tokenize"),
        ("load load_dataset load_from_disk dataloader", "open_dataset"), ("columntransformer", "preprocessor"),
        ("read_csv read_parquet read_json read_table", "read_files"), ("train_test_split", "randomsplit"),
        ("num_workers", "threads"), ("prefetch_factor", "prefetch_size"), ("collate_fn", "transform"),
        ("stratifiedgroupkfold stratifiedkfold groupkfold", "kfold"), ("randomhorizontalflip", "mirror"),
    )
    for word in words.split()
}  # fmt: skip


def did_you_mean(name: object, options: Iterable[object], cutoff: float = 0.6) -> str:
    """Return ``' Did you mean "x"?'`` for a name, or ""; `cutoff` is the least similarity."""
    if len(str(name)) > _MAX_COMPARED_CHARACTERS:
        return ""
    known = [str(option) for option in options]
    close = [option for word in _SYNONYMS.get(str(name).lower(), ()) for option in known if option.lower() == word]
    close = close or difflib.get_close_matches(str(name), known, n=1, cutoff=cutoff)
    shown = " or ".join(f'"{word}"' for word in close)
    return f" Did you mean {shown}?" if close else ""


def check_names(function: str, arguments: Iterable[str], known: Iterable[str]) -> None:
    """Raise TypeError for a keyword argument that is not `known`."""
    names = list(known)
    for name in set(arguments).difference(names):
        hint = did_you_mean(name, names) or f" Options are: {', '.join(names)}"
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}.{hint}")
