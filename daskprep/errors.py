"""Errors and warnings of daskprep. A message has the column, the value, the expected value and a remedy."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

MAX_MESSAGE_CHARACTERS = 2_000
_ELLIPSIS = " [...] "
_MAX_COMPARED_CHARACTERS = 100
FILE_SIMILARITY = 0.75  # of names of files for `did_you_mean`: any two with one suffix are a little similar

P = ParamSpec("P")
T = TypeVar("T")


class DaskprepError(Exception):
    """Base class of all errors that daskprep raises on purpose. Messages have at most 2,000 characters."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*(_shorten(value) if isinstance(value, str) else value for value in args), **kwargs)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning of at most 2,000 characters, located at the line that called daskprep or scikit-learn."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("daskprep.", "sklearn.")):
        frame, level = frame.f_back, level + 1
    warnings.warn(_shorten(message), category, stacklevel=level)


def _shorten(message: str) -> str:
    """Return a message, without its middle if it is too long: it starts with the problem and ends with the remedy."""
    if not is_valid_utf8(message):  # of a name, which files and consoles refuse
        message = message.encode(errors="backslashreplace").decode()
    half = (MAX_MESSAGE_CHARACTERS - len(_ELLIPSIS)) // 2
    return message if len(message) <= MAX_MESSAGE_CHARACTERS else f"{message[:half]}{_ELLIPSIS}{message[-half:]}"


class ConfigError(DaskprepError, ValueError):
    """Error for an invalid parameter, or an invalid combination of parameters."""


class DatasetExistsError(ConfigError):
    """Error for writing to the folder of a dataset with other rows or parameters without ``overwrite=True``."""


class ColumnError(DaskprepError, ValueError):
    """Error for a column that is missing, ambiguous, or of a type that the feature cannot read."""


class MissingColumnError(ColumnError):
    """Error for a column that is missing from the data."""


class ContractError(DaskprepError, AssertionError):
    """Error for a custom feature type that breaks the contract of feature types."""


class RejectedValueError(DaskprepError, ValueError):
    """Error for an unusable value, if ``invalid="raise"`` or a split does not allow it."""


class UnfilledCellError(RejectedValueError):
    """Error for a missing value for which the fit learned no replacement, such as a label."""


class CheckError(DaskprepError, ValueError):
    """Error for new rows that differ from the rows of the fit, if `Preprocessor.check` is to raise it."""


class MediaError(DaskprepError, ValueError):
    """Error for an image or audio file that cannot, or must not, be decoded."""


class CorruptDatasetError(DaskprepError):
    """Error for a file of a dataset that is missing, or differs from its entry in the manifest."""


class IncompleteDatasetError(DaskprepError):
    """Error for a dataset that was never finished: it has no manifest."""


class FormatVersionError(DaskprepError):
    """Error for a file of an incompatible, usually newer, version of daskprep."""


class StorageError(DaskprepError, OSError):
    """Error for a file that cannot be read or written, because of its path, its permissions or the connection."""


class StorageFullError(StorageError):
    """Error for a full disk; files written before it are kept, so that a write can resume."""


class MissingPackageError(DaskprepError, ImportError):
    """Error for an optional package that is not installed, or a package too old to read untrusted data safely."""


class WorkerError(DaskprepError, RuntimeError):
    """Error for a worker of a cluster that died, does not answer, or lacks a package or a file."""


def is_valid_utf8(value: object) -> bool:
    """Return whether a string, or every string in a list or dict, has no half of a surrogate pair, invalid in UTF-8."""
    if isinstance(value, str):
        return value.isascii() or value.encode(errors="ignore").decode() == value
    if isinstance(value, Mapping):
        return is_valid_utf8(list(value)) and is_valid_utf8(list(value.values()))
    return not isinstance(value, list | tuple) or all(map(is_valid_utf8, value))


# Other names of parameters, which the next release no longer accepts.
_ALIASES = {"probabilities": "shares", "vocabulary_size": "most_common"}
# Terms of pandas, scikit-learn, PyTorch, Keras and Hugging Face, and the equivalent options here.
_SYNONYMS = {
    word: tuple(meanings.split())
    for words, meanings in (
        ("int int32 int64 integer float float32 float64 double numeric decimal", "number"),
        ("str string object", "category text"), ("factor label ordinal", "category"),
        ("bool boolean logical", "binary"), ("tokenizer", "text"),
        ("datetime datetime64 timestamp time", "date"), ("list tokens ids", "sequence"),
        ("embedding array ndarray", "vector"), ("waveform sound speech", "audio"), ("img picture photo", "image"),
        ("val valid dev eval", "validation"), ("training", "train"), ("testing holdout", "test"),
        ("num_workers n_jobs workers", "threads"), ("pin_memory gpu", "device cuda"), ("num_replicas", "world_size"),
        ("prefetch_factor", "prefetch_size"), ("collate_fn map_fn", "transform"), ("drop_remainder", "drop_last"),
        ("batch_sampler", "group_by_length weights"), ("shuffle_buffer buffer_size shuffle_buffer_size", "window"),
        ("sampling_strategy", "ratio"), ("chunk_size chunks row_group_size", "block_rows"), ("return_tensors", "to"),
        ("sampler", "shuffle weights rank"),
        ("test_size train_size val_size sizes fractions probability", "shares"), ("n_splits folds", "k"),
        ("random_state random_seed", "seed"), ("sep separator", "delimiter"), ("usecols", "columns"),
        ("na_values", "null_values"), ("skiprows", "skip_rows"), ("chunksize", "partitions"),
        ("vocab_size vocabulary_size top_k max_features max_tokens num_words max_categories", "most_common"),
        ("min_df min_count", "min_frequency"), ("vocabulary categories classes", "order vocab_file"),
        ("max_length max_len maxlen seq_len", "max_sequence_length timeseries_length_limit"), ("lower", "lowercase"),
        ("size resize image_size", "height width vector_size"), ("dim", "vector_size"),
        ("root root_dir image_dir folder", "base_dir"), ("model model_name", "tokenizer"),
        ("n_mels", "num_filter_bands"), ("n_fft", "num_fft_points"), ("hop_length", "window_shift_in_s"),
        ("duration max_duration", "audio_file_length_limit_in_s"), ("unit", "since_unit"),
        ("clip winsorize", "clip_quantiles"), ("log", "normalization"),
        ("ignore", "unk"), ("true", "zscore one_hot"), ("spacy", "english_tokenize"),
        ("word words whitespace", "space space_punct"),
        ("scaler scaling scale normalize", "normalization"), ("impute imputer strategy", "missing_value_strategy"),
        ("threads", "workers"), ("fillna fill fill_with", "missing_value_strategy"),
        ("mean average", "fill_with_mean"), ("median", "fill_with_median"),
        ("mode most_frequent", "fill_with_mode"), ("constant const zero 0", "fill_with_const"),
        ("drop", "drop_row"), ("standard standardize z-score", "zscore"), ("min-max min_max", "minmax"),
        ("format date_format", "datetime_format"), ("encoding onehot one_hot one-hot", "transform_to one_hot"),
        ("win_length", "window_length_in_s"), ("sr", "sampling_rate"),
        ("true_label pos_label positive_label", "positive"),
        ("load load_dataset load_from_disk dataloader loader", "open_dataset"),
        ("read_csv read_parquet read_json read_table", "read_files"), ("pipeline columntransformer", "preprocessor"),
        ("stratifiedgroupkfold stratifiedkfold groupkfold", "kfold"),
        ("train_test_split traintestsplit", "randomsplit"), ("split", "randomsplit space"),
        ("p", "probability"), ("randomhorizontalflip horizontalflip", "mirror"),
        ("standardscaler minmaxscaler robustscaler simpleimputer", "number"),
        ("onehotencoder ordinalencoder labelencoder", "category"),
    )
    for word in words.split()
}  # fmt: skip


def did_you_mean(name: object, options: Iterable[object], cutoff: float = 0.6) -> str:
    """Return ``' Did you mean "x"?'`` for the options that mean `name`, or else the closest one; "" if there is none.

    `cutoff` is the least similarity of the closest option.
    """
    if len(str(name)) > _MAX_COMPARED_CHARACTERS:
        return ""
    known = [str(option) for option in options]
    close = [option for word in _SYNONYMS.get(str(name).lower(), ()) for option in known if option.lower() == word]
    close = close or difflib.get_close_matches(str(name), known, n=1, cutoff=cutoff)
    shown = " or ".join(f'"{word}"' for word in close)
    return f" Did you mean {shown}?" if close else ""


# Names of the classes of a target in other libraries.
CLASS_NAMES = ("classes", "classes_", "categories_", "class_names")


def with_attribute_hints(**replacements: str) -> Callable[[type[T]], type[T]]:
    """Return a class decorator that adds replacements of other libraries' attributes to the AttributeError."""

    def decorate(cls: type[T]) -> type[T]:
        """Add a `__getattr__` that names the replacement of an attribute to a class, and return the class."""

        def get_attribute(self: Any, name: str) -> Any:
            replacement = replacements.get(name)
            # Not for errors in properties, which `columns` may use, and not before `__init__` has run.
            if replacement is None and "dataset" in vars(self) and not hasattr(cls, name) and name in self.columns:
                replacement = f'read("{name}")'
            if replacement is not None:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}: use {replacement}")
            return object.__getattribute__(self, name)  # raises the original error, including errors in properties

        cls.__getattr__ = get_attribute  # type: ignore[attr-defined] # else type checkers would accept any attribute
        return cls

    return decorate


def _describe_parameter(owner: object, name: str) -> str:
    """Return the type and the first sentence of a parameter in a docstring, after a space; "" if it has none."""
    entry = re.search(rf"^{name} : (.*)\n((?: {{4}}.*\n?)+)", inspect.getdoc(owner) or "", re.MULTILINE)
    if entry is None:
        return ""
    sentence = " ".join(entry[2].split()).partition(". ")[0].removesuffix(".")
    return f" {name}: {entry[1]}. {sentence}.".replace("`", "")


def full_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function or class, with the keys of a TypedDict for ``**options: Unpack[...]``."""
    function = function.__init__ if inspect.isclass(function) else function
    signature = inspect.signature(function)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if unpacked := re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation)):
            options = inspect.unwrap(function).__globals__[unpacked[1]].__annotations__
            parameters += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in options]
        else:
            parameters.append(parameter)
    return signature.replace(parameters=parameters)


def with_parameter_hints(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function to add a hint to the TypeError of a call with wrong arguments.

    It is the closest parameter, or all, after the documentation of a missing one. A parameter of `_ALIASES` is passed
    under its name, with a FutureWarning.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function; add a hint to a TypeError that its arguments cause, not to others."""
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            signature = full_signature(call)
            try:
                signature.bind(*args, **kwargs)
            except TypeError:
                known = [name for name in signature.parameters if name != "self"]
            else:
                raise  # from within the function
            unknown = next((name for name in kwargs if name not in known), "")
            owner: Any = type(args[0]) if function.__name__ == "__init__" else function
            is_method = bool(args) and "self" in signature.parameters  # of a mixin: named by the class of the object
            title = f"{type(args[0]).__qualname__}.{function.__name__}" if is_method else owner.__qualname__
            if (name := _ALIASES.get(unknown)) in known and name not in kwargs:
                replaced: Any = {name if key == unknown else key: value for key, value in kwargs.items()}
                label = owner.__qualname__
                warn(f"{label}: {unknown}= is another name of {name}=, and ends with 0.3: use {name}=", FutureWarning)
                return call(*args, **replaced)
            absent = next((name for name in known if f"'{name}'" in str(error)), None)
            documented = "" if absent is None else _describe_parameter(owner, absent)
            hint = did_you_mean(unknown, known) or f"{documented} Parameters are: {', '.join(known)}"
            # Python 3.13 and decorated functions within this one add hints, too.
            message = str(error).partition(". ")[0].partition("()")[2]
            raise TypeError(f"{title}(){message}.{hint}") from None

    return call
