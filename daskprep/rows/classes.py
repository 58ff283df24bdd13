"""Row encoders of `Category`, `TargetEncoding` and `Binary`, and the stable hash of a text into buckets.

`permutation.hash_strings` is the same hash for columns.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from operator import itemgetter
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from daskprep.errors import RejectedValueError
from daskprep.rows.base import Arrays, Parameters, RowEncoder, Strategy, VocabularyValues, smallest_uint
from daskprep.rows.cells import number_of, text_of
from daskprep.rows.typed import AtLeast, CellKind, Count, NonNegative, later

BUCKET_KEY = 0
MAX_HASH_BUCKETS = 1 << 24  # an embedding has a row for each
SEPARATOR = "|"  # between the parts of a cross
MISSING_PART = "\\-"  # no other part can equal it, since backslashes of parts are doubled

_WORD_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_LENGTH_FACTOR = 0xD1342543DE82EF95


def bucket_of(text: str, buckets: int) -> int:
    """Return the bucket of a text, below `buckets`, the same on every machine."""
    data = text.encode()
    total = 0
    for word_number, start in enumerate(range(0, len(data), 8), 1):
        word = int.from_bytes(data[start : start + 8], "little")
        total += _mix(word ^ (word_number * _GOLDEN + BUCKET_KEY & _WORD_MASK))
    return _mix((total & _WORD_MASK ^ BUCKET_KEY) + len(data) * _LENGTH_FACTOR & _WORD_MASK) % buckets


def bucket_names(numbers: Iterable[int]) -> list[str]:
    """Return labels of bucket numbers, such as "<BUCKET 3>"."""
    return [f"<BUCKET {number}>" for number in numbers]


def join_parts(parts: Sequence[str | None]) -> str | None:
    """Join the parts of a cross; None if all are missing."""
    if all(part is None for part in parts):
        return None
    return SEPARATOR.join(MISSING_PART if part is None else _escape(part) for part in parts)


def _escape(part: str) -> str:
    return part.replace("\\", "\\\\").replace(SEPARATOR, "\\" + SEPARATOR)


def _mix(word: int) -> int:
    """Return a word scrambled by the finalizer of splitmix64."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD_MASK
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD_MASK
    return word ^ word >> 31


CONVENTIONAL_LABELS = {
    **dict.fromkeys(("yes", "y", "true", "t", "1", "1.0"), True),
    **dict.fromkeys(("no", "n", "false", "f", "0", "0.0", "-1", "-1.0"), False),
}


_BOOLEANS = {"true": True, "false": False}
_READERS: Mapping[str, Callable[[str], Any]] = {
    "integer": int,
    "boolean": lambda text: _BOOLEANS[text.lower()],
    "float": float,
    "float32": float,
    "decimal": Decimal,
}


def convert_labels(texts: Sequence[str], cell_type: str | None) -> list[Any]:
    """Convert texts of labels to the type of their column."""
    if cell_type is None:
        return list(texts)
    read = _READERS[cell_type]
    return [text if text == "<UNK>" else read(text) for text in texts]


@dataclass(frozen=True, kw_only=True)
class CategoryValues:
    """Learned values of `Category` in addition to its vocabulary."""

    buckets: Annotated[int, AtLeast(0, MAX_HASH_BUCKETS)] = later(0)  # their ids follow the vocabulary
    cell_type: CellKind | None = later(None)  # None: text
    declared_order: tuple[str, ...] = later(())  # all values of an ordered categorical column, for `transform`


@dataclass(kw_only=True, eq=False, repr=False)
class CategoryParameters(Parameters):
    """Parameters of `Category`."""

    most_common: Count | None = None
    min_frequency: Count | None = None
    lowercase: bool = False
    order: list[str] | None = later(None, rows=True)
    hash_buckets: Count | None = later(None, rows=True)
    oov_buckets: Annotated[int, AtLeast(0)] = later(0, rows=True)
    columns: list[str] | None = later(None, rows=True)
    null_values: list[str] | None = later(None, rows=True)
    missing_value_strategy: Strategy = "fill_with_const"
    fill_value: str | int | float | None = "<UNK>"
    handle_unknown: Literal["unk", "error", "drop_row"] | None = later(None, rows=True)
    transform_to: Literal["ids", "ordinal", "one_hot"] = later("ids", rows=True)

    def reads(self, name: str) -> list[str]:
        return super().reads(name) if self.columns is None else list(self.columns)


class CategoryRowEncoder(RowEncoder):
    """Row encoder of `Category`."""

    values: ClassVar[tuple[type[Any], ...]] = (VocabularyValues, CategoryValues)

    has_vocabulary = True

    def prepare(self) -> None:
        tokens = self.learned["idx2str"]
        self.ids = {token: number for number, token in enumerate(tokens)}
        self.has_unknown = "unknown" in self.learned["special_symbols"]
        self.buckets: int = self.learned.get("buckets", 0)
        self.dtype = smallest_uint(len(tokens) + self.buckets)
        self.lowercase = self.params.lowercase
        if len(self.columns) > 1:  # null values apply to the parts of a cross, not to the joined text
            parts = itemgetter(*self.columns)
            nulls, self.nulls, lowercase = self.nulls, frozenset[str](), self.lowercase
            self.cell_of = lambda row: join_parts([_clean_part(cell, nulls, lowercase) for cell in parts(row)])

    def read(self, cell: Any) -> int | None:
        """Return the id of a label, of its hash bucket or of <UNK>; None if missing.

        Raise RejectedValueError for a label outside a vocabulary that has no <UNK>.
        """
        text = cell if type(cell) is str else text_of(cell)
        if text is None:
            return None
        token_id = self.ids.get((text.lower() if self.lowercase else text).strip())
        if token_id is not None:
            return token_id
        text = _clean(cell, self.lowercase) or ""  # an error if it is not UTF-8
        if not self.has_unknown:
            raise RejectedValueError(f"{text!r:.80} is a label that no training row has: correct or drop it")
        return len(self.ids) + bucket_of(text, self.buckets) if self.buckets else 0

    def is_unknown(self, value: int) -> bool:
        return value >= len(self.ids) if self.buckets else value == 0 and self.has_unknown

    def is_unseen(self, cell: Any) -> bool:
        return getattr(self.params, "hash_buckets", None) is None and _clean(cell, self.lowercase) not in self.ids

    def read_fill(self, fill: Any) -> int | None:
        return 0 if fill == "<UNK>" and self.has_unknown else self.read(fill)

    def to_arrays(self, values: Sequence[int]) -> Arrays:
        return {self.name: np.array(values, self.dtype)}


def _clean(cell: Any, lowercase: bool) -> str | None:
    text = text_of(cell)
    return None if text is None else (text.lower() if lowercase else text).strip()


def _clean_part(cell: Any, nulls: frozenset[str], lowercase: bool) -> str | None:
    return None if (text_of(cell) or "").strip() in nulls else _clean(cell, lowercase)


@dataclass(frozen=True, kw_only=True)
class TargetEncodingValues:
    """Learned values of `TargetEncoding` next to its vocabulary."""

    classes: tuple[str, ...] = ()  # in order; two have one column, for the second class


@dataclass(kw_only=True, eq=False, repr=False)
class TargetEncodingParameters(Parameters):
    """Parameters of `TargetEncoding`."""

    target: str | None = later(None, rows=True)
    encoding: Literal["target", "count", "frequency"] = "target"
    target_type: Literal["number", "class"] = later("number", rows=True)
    smooth: Literal["auto"] | NonNegative = "auto"
    folds: Annotated[int, AtLeast(2)] = 5
    fold_group: str | Literal[False] | None = None
    fold_time: str | Literal[False] | None = None
    lowercase: bool = False
    null_values: list[str] | None = later(None, rows=True)
    missing_value_strategy: Literal["fill_with_const", "drop_row"] = "fill_with_const"
    fill_value: str | None = "<MISSING>"


class TargetEncodingRowEncoder(CategoryRowEncoder):
    """Row encoder of `TargetEncoding`, by all training rows."""

    values = (VocabularyValues, TargetEncodingValues)

    def prepare(self) -> None:
        """Read ids, and the encodings by all training rows."""
        super().prepare()
        columns = len(self.learned["classes"]) if len(self.learned["classes"]) > 2 else 1
        encodings = np.frombuffer(base64.b64decode(self.learned["encodings"], validate=True), "<f4")
        self.table = encodings[: len(self.ids) * columns].reshape(len(self.ids), columns).astype(np.float32)

    def to_arrays(self, values: Sequence[int]) -> Arrays:
        encoded = self.table[np.array(values, np.intp)]
        return {self.name: encoded if encoded.shape[1] > 1 else encoded[:, 0]}


@dataclass(frozen=True, kw_only=True)
class BinaryValues:
    """Learned values of `Binary`."""

    fill_value: bool | None = None
    # If all labels are conventional, other conventional spellings can be read too.
    str2bool: Mapping[str, bool] = field(default_factory=dict)
    bool2str: tuple[str, str] = ("False", "True")  # decoded labels
    fallback_true_label: str | None = None  # the true label if labels are not conventional
    above_zero: bool = False  # numbers above 0 are True: there are more than two
    counts: tuple[int, int] | None = later(None)  # rows of False and of True; None if neighbors fill missing cells
    cell_type: CellKind | None = later(None)  # None: text


@dataclass(kw_only=True, eq=False, repr=False)
class BinaryParameters(Parameters):
    """Parameters of `Binary`."""

    positive: str | int | float | None = None
    null_values: list[str] | None = later(None, rows=True)
    missing_value_strategy: Literal["fill_with_false", "fill_with_true", Strategy] = "fill_with_mode"
    fill_value: bool | int | float | str | None = None


class BinaryRowEncoder(RowEncoder):
    """Row encoder of `Binary`."""

    values = (BinaryValues,)

    def prepare(self) -> None:
        self.labels = self.learned["str2bool"]
        self.above_zero = self.learned["above_zero"]
        is_conventional = self.learned["fallback_true_label"] is None and are_conventional(self.labels)
        self.fallback_labels = CONVENTIONAL_LABELS if is_conventional else {}

    def read(self, cell: Any) -> bool | None:
        """Return the truth of a label; None if missing or unreadable."""
        text = cell if type(cell) is str else text_of(cell)
        text = None if text is None else text.strip()
        if not text:
            return None
        if self.above_zero:
            number = number_of(text)
            return None if number is None else number > 0
        truth: bool | None = self.labels.get(text)
        if truth is None:
            text_of(cell)  # an error if it is not UTF-8
            return self.fallback_labels.get(text.lower())
        return truth

    def read_fill(self, fill: Any) -> bool:
        return bool(fill)  # the learned fill value is a boolean, not a label

    def to_arrays(self, values: Sequence[bool]) -> Arrays:
        return {self.name: np.array(values, np.uint8)}

    def expand(self, encoded: np.ndarray) -> np.ndarray:
        return encoded.astype(np.bool_)


def class_labels(learned: Mapping[str, Any]) -> list[str]:
    """Return the label of each id of a category, buckets last."""
    return [*learned["idx2str"], *bucket_names(range(learned.get("buckets", 0)))]


def are_conventional(labels: Iterable[str]) -> bool:
    """Return whether all labels are conventional, such as "yes"."""
    return all(label.lower() in CONVENTIONAL_LABELS for label in labels)
