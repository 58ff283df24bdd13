"""Errors that daskprep raises. Each message names the column, the value, what was expected and what to do."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

MAX_MESSAGE_CHARACTERS = 2_000
_ELLIPSIS = " [...] "
_MAX_COMPARED_CHARACTERS = 100

P = ParamSpec("P")
T = TypeVar("T")


class DaskprepError(Exception):
    """Root of every error that daskprep raises on purpose. Its message has at most 2,000 characters."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*(_shorten(one) if isinstance(one, str) else one for one in args), **kwargs)


def warn(message: str) -> None:
    """Issue a UserWarning of at most 2,000 characters, at the line that called the package, also by scikit-learn."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("daskprep.", "sklearn.")):
        frame, level = frame.f_back, level + 1
    warnings.warn(_shorten(message), UserWarning, stacklevel=level)


def _shorten(message: str) -> str:
    """Return a message without its middle if it is too long: its start says what is wrong, its end what to do."""
    half = (MAX_MESSAGE_CHARACTERS - len(_ELLIPSIS)) // 2
    return message if len(message) <= MAX_MESSAGE_CHARACTERS else f"{message[:half]}{_ELLIPSIS}{message[-half:]}"


class ConfigError(DaskprepError, ValueError):
    """A parameter, or a combination of parameters, is not valid."""


class DatasetExistsError(ConfigError):
    """A finished dataset of other rows or parameters is in the folder, and ``overwrite=True`` was not passed."""


class ColumnError(DaskprepError, ValueError):
    """A column is missing, ambiguous, or of a type that the feature cannot read."""


class MissingColumnError(ColumnError):
    """The data lacks a column."""


class ContractError(DaskprepError, AssertionError):
    """A feature type breaks its contract."""


class RejectedValueError(DaskprepError, ValueError):
    """A value cannot be used, and ``invalid="raise"`` or a split does not allow it."""


class MediaError(DaskprepError, ValueError):
    """An image or audio file cannot be decoded, or must not be."""


class CorruptDatasetError(DaskprepError):
    """A file of a dataset is missing, or differs from its entry in the manifest."""


class IncompleteDatasetError(DaskprepError):
    """A dataset was never finished: it has no manifest."""


class FormatVersionError(DaskprepError):
    """A newer version of daskprep wrote this file."""


class StorageError(DaskprepError, OSError):
    """A file cannot be read or written: its path, its permissions or the connection do not allow it."""


class StorageFullError(StorageError):
    """The disk is full; what was written before is kept, so that a write can resume."""


class MissingPackageError(DaskprepError, ImportError):
    """An optional package is not installed, or a package is too old to read data from strangers."""


class WorkerError(DaskprepError, RuntimeError):
    """A worker of a cluster lacks something, does not answer, or died."""


def is_valid_utf8(value: object) -> bool:
    """Tell whether a string, and those in a list or dict, can be written: UTF-8 has no half of a surrogate pair."""
    if isinstance(value, str):
        return value.isascii() or value.encode(errors="ignore").decode() == value
    if isinstance(value, Mapping):
        return is_valid_utf8(list(value)) and is_valid_utf8(list(value.values()))
    return not isinstance(value, list | tuple) or all(map(is_valid_utf8, value))


# Words of pandas, scikit-learn, PyTorch, Keras and Hugging Face, and the options that they may mean here.
_SYNONYMS = {
    word: tuple(meanings.split())
    for words, meanings in (
        ("int int32 int64 integer float float32 float64 double numeric decimal", "number"),
        ("str string object factor label", "category"), ("bool boolean logical", "binary"),
        ("datetime datetime64 timestamp time", "date"), ("list tokens ids", "sequence"),
        ("embedding array ndarray", "vector"), ("waveform sound speech", "audio"), ("img picture photo", "image"),
        ("val valid dev eval", "validation"), ("training", "train"), ("testing holdout", "test"),
        ("num_workers n_jobs workers", "threads"), ("pin_memory gpu", "device cuda"), ("num_replicas", "world_size"),
        ("test_size train_size val_size sizes fractions", "probabilities"), ("n_splits folds", "k"),
        ("random_state random_seed", "seed"), ("sep separator", "delimiter"), ("usecols", "columns"),
        ("na_values", "null_values"), ("skiprows", "skip_rows"), ("chunksize", "partition_bytes"),
        ("vocab_size vocabulary_size top_k max_features max_tokens num_words max_categories", "most_common"),
        ("min_df min_count", "min_frequency"), ("vocabulary categories classes", "order vocab_file"),
        ("max_length max_len maxlen", "max_sequence_length"), ("size", "height"), ("lower", "lowercase"),
        ("scaler scaling scale normalize", "normalization"), ("impute imputer strategy", "missing_value_strategy"),
        ("fillna fill", "fill_value"), ("mean average", "fill_with_mean"), ("median", "fill_with_median"),
        ("mode most_frequent", "fill_with_mode"), ("constant const zero", "fill_with_const"),
        ("drop", "drop_row"), ("standard standardize z-score", "zscore"), ("min-max min_max", "minmax"),
        ("format date_format", "datetime_format"), ("encoding onehot one_hot one-hot", "transform_to one_hot"),
        ("n_fft win_length", "window_length_in_s"), ("sr", "sampling_rate"),
    )
    for word in words.split()
}  # fmt: skip


def did_you_mean(name: object, options: Iterable[object]) -> str:
    """Return ``' Did you mean "x"?'`` for the option closest to `name`, or an empty string."""
    if len(str(name)) > _MAX_COMPARED_CHARACTERS:
        return ""
    known = [str(option) for option in options]
    close = [word for word in _SYNONYMS.get(str(name).lower(), ()) if word in known]
    close += difflib.get_close_matches(str(name), known, n=1)
    return f' Did you mean "{close[0]}"?' if close else ""


def with_attribute_hints(**replacements: str) -> Callable[[type[T]], type[T]]:
    """Let the AttributeError of names that other libraries have say what to use here."""

    def decorate(cls: type[T]) -> type[T]:
        def get_attribute(self: Any, name: str) -> Any:
            if name in replacements:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}: use {replacements[name]}")
            return object.__getattribute__(self, name)  # the error as it was, also that of a property

        cls.__getattr__ = get_attribute  # type: ignore[attr-defined] # type checkers are not to see it
        return cls

    return decorate


def with_parameter_hints(function: Callable[P, T]) -> Callable[P, T]:
    """Let the TypeError of a call that does not fit a function name the parameter that was meant."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:  # from within the function
                raise
            known = [name for name in inspect.signature(function).parameters if name != "self"]
            unknown = next((name for name in kwargs if name not in known), "")
            parameter_list = ", ".join(known)
            # Python 3.13 makes a suggestion of its own.
            message = str(error).partition(". Did you mean")[0]
            raise TypeError(
                f"{message}.{did_you_mean(unknown, known) or f' Parameters are: {parameter_list}'}"
            ) from None

    return call
