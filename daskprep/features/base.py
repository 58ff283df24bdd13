"""The contract of a feature type: parse, summarize, learn, encode, expand, decode."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import pyarrow as pa
from typing_extensions import TypeVar

from daskprep.errors import ColumnError, ConfigError, RejectedValueError
from daskprep.features.cells import as_dictionary, mask_texts, one_array
from daskprep.features.missing import NeighbourImputer, neighbour_strategy, valid_mask
from daskprep.features.parameters import check_parameters, default_of
from daskprep.permutation import Integers
from daskprep.serving.base import MISSING
from daskprep.split.folds import KFold
from daskprep.storage.checkpoint import checkpointable
from daskprep.summaries import ColumnSummary, Rejects
from daskprep.summaries.base import SummaryT
from daskprep.summaries.rejects import MAX_SAMPLE_CHARACTERS, MAX_SAMPLES

Encoded = np.ndarray | Mapping[str, np.ndarray]
Invalid = Literal["missing", "raise"]
# What cells hold, by which reports choose what they count and draw.
SemanticType = Literal[
    "numbers", "classes", "tokens", "sets", "bags", "series", "dates", "places", "images", "sounds", "others"
]


Bound: TypeAlias = int | Sequence[int] | Sequence[Sequence[int]]


class Limits(NamedTuple):
    """The least and the greatest number of rows to decode, and whether these may be longer or shorter than encoded."""

    low: Bound
    high: Bound
    any_length: bool = False


Bounds: TypeAlias = tuple[Bound, Bound] | Limits


@dataclass(frozen=True)
class SideColumns:
    """What is known of the rows of a parsed column besides its cells."""

    table: pa.Table  # the columns of the source that are learned from besides
    folds: np.ndarray | None = None  # the fold of each row, from 0 on, for a feature that cross-fits
    weights: np.ndarray | None = None  # the weight of each row; None: 1
    cache: dict[Any, Any] = field(default_factory=dict)  # what features made of the table for others, too

    def take(self, rows: np.ndarray) -> SideColumns:
        """Return what is known of some of the rows, given by their numbers."""
        # A table without columns would lose its rows.
        table = self.table.take(pa.array(rows)) if self.table.num_columns else self.table
        folds, weights = (None if one is None else one[rows] for one in (self.folds, self.weights))
        return SideColumns(table, folds, weights)


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What a feature learned from one column; its fields are its JSON."""

    added_fields: ClassVar[
        tuple[str, ...]
    ] = ()  # fields that older states lack: left out where they have their default

    # Rows that were learned from, how many of their cells were missing, and how many of those could not be read. With
    # "drop_row" the rows that were dropped are counted as missing, and not among `rows`.
    rows: int = 0
    missing: int = 0
    invalid: int = 0
    # The first few distinct cells that could not be read.
    invalid_samples: tuple[str, ...] = ()
    # What a missing cell becomes. With "drop_row", "ffill" and "bfill" the fallback: what it becomes in new rows, of
    # which none is dropped, and where there is no neighbour. None if there was nothing to learn it from.
    fill_value: Any = None
    # Rows among which missing cells were counted, if these are not `rows`; else 0. A row that is dropped belongs to no
    # split, so that with "drop_row" these are all rows.
    seen: int = 0

    def __init_subclass__(cls) -> None:
        if cls.__module__.startswith("daskprep."):  # others may have another name in another process
            checkpointable(cls)

    def __getstate__(self) -> dict[str, Any]:
        # Not what is kept beside the fields: it knows parameters, which may be functions.
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return self.to_state()

    def mask_unlearned(self, parsed: pa.Array) -> pa.Array:
        """Turn cells that only what was learned shows to be unreadable into missing ones."""
        return parsed

    def class_counts(self) -> Integers | None:
        """Return how many rows of the fit each class has, by its id; None without classes, or counts of them."""
        return None

    def of_output(self, output: str) -> Learned:
        """Return what was learned of one of several outputs, if that is a part of its own."""
        return self

    def to_state(self) -> dict[str, Any]:
        """Return what `to_dict` gives, but vocabularies, which may have millions of tokens, as they are."""
        names = [field.name for field in dataclasses.fields(self)]
        left_out = [one for one in ("seen", *self.added_fields) if getattr(self, one) == getattr(type(self), one)]
        return {name: _to_json(getattr(self, name)) for name in names if name not in left_out}

    def _sample_texts(self) -> list[str]:
        own = [field.name for field in dataclasses.fields(self) if field.name not in Learned.__dataclass_fields__]
        values = [getattr(self, name) for name in own]
        return [str(value) for value in values if isinstance(value, str | int | float)]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from what `to_dict` or `to_state` gave."""
        fields = {field.name: str(field.type) for field in dataclasses.fields(cls)}
        values = {name: value for name, value in data.items() if name in fields}
        for name, value in values.items():
            if isinstance(value, list) and fields[name].startswith("tuple["):
                values[name] = tuple(value)
        return cls(**values)


def _to_json(value: object) -> object:
    if isinstance(value, tuple):
        return [_to_json(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


if TYPE_CHECKING:
    from torch import Tensor  # features import it from here, as imports of torch are few
else:
    Tensor = Any  # features are made and fitted without torch
LearnedT = TypeVar("LearnedT", bound=Learned, default=Any)


class Contract(Generic[SummaryT, LearnedT]):
    """What is asked of every type, and what all types share; `Feature` makes an estimator of it."""

    kind: ClassVar[str]
    semantic_type: ClassVar[SemanticType] = "others"
    learned_type: ClassVar[type[Learned]] = Learned
    missing_value_strategy: str
    missing_indicator: bool
    fill_value: Any
    invalid: Invalid
    column: str | None
    # Cells that tell readers of text apart: odd forms, and what cannot be read.
    _edge_case_cells: ClassVar[tuple[str, ...]] = ("", "no such cell")

    # -- from cells to rows, and back

    def reads(self, name: str) -> list[str]:
        """Return the columns that a feature called `name` reads, its own first; `parse` is given all of them."""
        return [self.column or name]

    @abstractmethod
    def parse(self, column: pa.Array) -> pa.Array:
        """Turn raw cells into typed ones; what cannot be read becomes null."""

    @abstractmethod
    def summarize(self, parsed: pa.Array) -> SummaryT:
        """Summarize the present cells of a parsed column."""

    @abstractmethod
    def learn(self, summary: SummaryT) -> LearnedT:
        """Learn from the summary of all training rows."""

    @abstractmethod
    def encode(self, parsed: pa.Array, learned: LearnedT) -> Encoded:
        """Turn parsed cells into compact arrays with one row for each cell."""

    def expand(self, batch: Tensor, learned: LearnedT) -> Tensor:
        """Turn a batch of encoded rows into what a model reads."""
        return batch

    @abstractmethod
    def decode(self, encoded: np.ndarray, learned: LearnedT) -> pa.Array:
        """Turn encoded rows, by output if there are several, back into human-readable values."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Suffixes of the arrays that one column becomes: "" alone, or such as "_word" and "_char"."""
        return ("",)

    def limits(self, learned: LearnedT) -> Mapping[str, Bounds]:
        """Return the least and the greatest number by output, where not all that its type holds can be decoded."""
        return {}

    # -- what else a type may say

    def check(self) -> None:
        """Raise ConfigError where parameters contradict each other."""

    def fingerprint(self) -> str:
        """Return a digest of what the result depends on besides rows and parameters, such as files; "" of nothing."""
        return ""

    def advice(self, learned: LearnedT) -> str | None:
        """Return what a user should know of a column that was learned, if anything."""
        return None

    @property
    def row_filter(self) -> Callable[[pa.Array, LearnedT], np.ndarray | None] | None:
        """What tells, of a parsed column and what was learned, which rows are left out though their cell is there."""
        return None

    @property
    def imputer(self) -> NeighbourImputer | None:
        """What completes a column with the rows around, of other partitions too; None where each row stands alone."""
        return NeighbourImputer.of(self.missing_value_strategy)

    def _remedy(self, learned: LearnedT) -> str:
        """What a user can do about cells that cannot be read."""
        return "correct the data"

    @property
    def _expands(self) -> bool:
        """Whether `expand` changes batches."""
        return type(self).expand is not Contract.expand

    def _sample_cells(self, learned: LearnedT) -> list[str | None]:
        """Return some cells, by which who reads a saved file sees whether it encodes alike; none opens a file."""
        return [None, *learned._sample_texts()[:5], *self._edge_case_cells]

    # -- what only built-in types say: what they learn besides, from a target and by folds, and what a cell was

    def _mask_null_values(self, column: pa.ChunkedArray, texts: Set[str]) -> pa.Array:
        """Return cells without those of some texts, which mark missing ones."""
        return mask_texts(as_dictionary(one_array(column)), texts)

    def _parse_columns(self, *columns: pa.ChunkedArray) -> pa.Array:
        """Parse columns that may hold cells of several kinds, which `parse` is given as text."""
        return self.parse(*map(one_array, columns))

    def _summarize_rows(self, parsed: pa.Array, side_columns: SideColumns) -> SummaryT:
        """Summarize a parsed column by what is known of its rows besides, if that matters to a type."""
        return self.summarize(parsed)

    def _summarize_subsets(
        self, parsed: pa.Array, side_columns: list[SideColumns], row_subsets: list[np.ndarray | None]
    ) -> list[SummaryT]:
        """Summarize cuts of the rows of a parsed column, each apart; None is all rows."""
        parts = (parsed if rows is None else parsed.take(pa.array(rows)) for rows in row_subsets)
        return [self._summarize_rows(part, columns) for part, columns in zip(parts, side_columns, strict=True)]

    @property
    def _learning_columns(self) -> list[str]:
        """The columns of the source that are learned from besides those of `reads`; new rows need not have them."""
        return []

    @property
    def _cross_fit(self) -> KFold | None:
        """The folds by which training rows are encoded from the others; None if all rows are encoded alike."""
        return None

    def _add_fold_numbers(self, parsed: pa.Array, folds: np.ndarray) -> pa.Array:
        """Return a parsed column for `encode` that says the fold of each training row, from 1 on, and 0 of others."""
        return parsed

    def _check_learned(self, learned: LearnedT) -> None:
        """Raise ValueError where what was learned, or comes from a file, does not go with the parameters."""

    def _to_raw_cell(self, value: Any) -> object:
        """Return what a parsed cell, given as a Python value, was, for who reads about it."""
        return value

    # -- what fills gaps

    def parse_fill(self, value: object) -> pa.Array:
        """Return the parsed column of one cell that holds the fill value."""
        parsed = self.parse(self._fill_cell(value))
        check_arrow(self, "parse", parsed, 1)
        if parsed.null_count:
            raise ConfigError(
                f"{type(self).__name__}: fill_value {value!r} cannot be read as {kind_with_article(self)}"
            )
        return parsed

    def _fill_cell(self, value: object) -> pa.Array:
        """Return a raw cell that holds the fill value."""
        try:
            return pa.array([value])
        except (pa.ArrowException, OverflowError, UnicodeError) as error:
            name = type(self).__name__
            raise ConfigError(
                f"{name}: fill_value {value!r:.80} cannot be read as {kind_with_article(self)}: {error}"
            ) from error

    def cells(self, parsed: pa.Array) -> pa.Array | None:
        """Return one plain value for each cell, by which equal cells are counted; None if `summarize` does it."""
        return parsed

    def learn_fill(self, summary: ColumnSummary[SummaryT]) -> Any:
        """Return what fills gaps, as `parse_fill` reads it: the most frequent of the values that `cells` gave."""
        if summary.cells is None:
            raise ConfigError(f'{type(self).__name__} has no mean: "fill_with_mean" is for numbers')
        return summary.cells.top()

    def learn_column(self, summary: ColumnSummary[SummaryT]) -> LearnedT:
        """Learn from a column's summary: first what fills the gaps, then the rest, gaps counted as filled."""
        fill = self._resolve_fill(summary)
        values = summary.values
        if fill is not None:
            filled = self.parse_fill(fill)
            values = values + self.summarize(filled) * summary.missing if summary.missing else values
        elif not keeps_missing(self) and (drops_missing(self) or summary.rows > summary.missing):
            fill = self._learn_fallback(summary)
        return add_counts(self.learn(values), summary, fill)

    def _learn_fallback(self, summary: ColumnSummary[SummaryT]) -> Any:
        """Return what fills the gaps that the strategy leaves, in new rows and where there are no neighbours."""
        return default_of(type(self), "fill_value")

    def _resolve_fill(self, summary: ColumnSummary[SummaryT]) -> Any:
        strategy = self.missing_value_strategy
        if strategy == "fill_with_const":
            return self.fill_value
        if strategy not in ("fill_with_mean", "fill_with_median", "fill_with_mode"):
            return None
        if summary.rows == summary.missing:
            if strategy == default_of(type(self), "missing_value_strategy"):
                return self.fill_value  # `fill_advice` warns
            raise ColumnError(
                f'has no values, so "{strategy}" cannot learn one: use "fill_with_const" with a fill_value'
            )
        return self.learn_fill(summary)


def add_counts(learned: LearnedT, summary: ColumnSummary, fill: Any) -> LearnedT:
    """Return what was learned of a column with its counts, and what fills its gaps."""
    return dataclasses.replace(
        learned,
        rows=summary.rows,
        missing=summary.missing,
        invalid=summary.rejects.count,
        invalid_samples=summary.rejects.texts,
        fill_value=fill,
        seen=0 if summary.seen == summary.rows else summary.seen,
    )


def add_deferred_rejects(
    feature: Contract, summary: ColumnSummary[SummaryT], n_unreadable: int, samples: Sequence[str], why: str
) -> ColumnSummary[SummaryT]:
    """Count so many cells as unreadable that only all rows show to be so; RejectedValueError if these are refused."""
    shown = [sample[:MAX_SAMPLE_CHARACTERS] for sample in samples[:MAX_SAMPLES]]
    if n_unreadable and feature.invalid == "raise":
        raise RejectedValueError(
            f'{shown[0]!r} {why} ({n_unreadable} such cells); correct the data, or use invalid="missing"'
        )
    rejects = summary.rejects + Rejects(n_unreadable, tuple(enumerate(shown, 1 << 62)))  # behind those with a row
    rows = summary.rows - n_unreadable * drops_missing(feature)
    return dataclasses.replace(summary, rows=rows, missing=summary.missing + n_unreadable, rejects=rejects)


def kind_with_article(feature: Contract) -> str:
    """Return the type with its article, as messages say it."""
    return f"{'an' if feature.kind[0] in 'aeiou' else 'a'} {feature.kind}"


def all_outputs(feature: Contract) -> tuple[str, ...]:
    """Return the outputs of a type, and "_missing" if missing cells are marked."""
    return (*feature.outputs, MISSING) if feature.missing_indicator else feature.outputs


def check_arrow(feature: Contract, function: str, result: object, rows: int) -> None:
    """Raise ColumnError unless a function of a type gave an Arrow array of so many rows."""
    if not isinstance(result, (pa.Array, pa.ChunkedArray)) or len(result) != rows:
        raise ColumnError(
            f"{function} of {kind_with_article(feature)} gave {describe_result(result)}: expected an Arrow array of {rows:,} rows"
        )


def describe_result(result: object) -> str:
    """Return what a function gave, as messages say it."""
    if isinstance(result, pa.Array | pa.ChunkedArray):
        return f"{len(result):,} rows of {result.type}"
    return f"{result.dtype} of shape {result.shape}" if isinstance(result, np.ndarray) else f"{type(result).__name__}"


def validate(feature: Contract) -> None:
    """Raise ConfigError for a parameter of the wrong type, outside its choices, or at odds with others."""
    check_parameters(feature)
    if feature.missing_value_strategy == "fill_with_const" and feature.fill_value is None:
        raise ConfigError(
            f'{type(feature).__name__}: missing_value_strategy "fill_with_const" needs a fill_value; '
            'give one, or use "drop_row"'
        )
    feature.check()


def drops_missing(feature: Contract) -> bool:
    """Tell whether a row is left out when its cell is missing."""
    return feature.missing_value_strategy == "drop_row"


def keeps_missing(feature: Contract) -> bool:
    """Return whether missing cells stay missing: NaN in the output."""
    return feature.missing_value_strategy == "keep"


def fills_with_one_value(feature: Contract) -> bool:
    """Tell whether one value takes the place of every missing cell, and counts in the statistics."""
    strategy = feature.missing_value_strategy
    return not (drops_missing(feature) or keeps_missing(feature)) and neighbour_strategy(strategy) is None


def fill_advice(feature: Contract, learned: Learned) -> str | None:
    """Return a warning where the default strategy could learn nothing, or leaves a given `fill_value` unused."""
    strategy, constant = (default_of(type(feature), name) for name in ("missing_value_strategy", "fill_value"))
    if feature.missing_value_strategy != strategy:
        return None
    if learned.rows and learned.missing == learned.rows:
        return f"has no values: all become {learned.fill_value!r}; leave the feature out"
    if feature.fill_value != constant and getattr(feature, "outlier_strategy", None) != "fill_with_const":
        return (
            f"has fill_value={feature.fill_value!r}, which {strategy!r} does not use: add "
            'missing_value_strategy="fill_with_const"'
        )
    return None


def may_drop_rows(feature: Contract) -> bool:
    """Tell whether encoding may leave rows out."""
    return drops_missing(feature) or feature.row_filter is not None


def find_dropped_rows(feature: Contract, parsed: pa.Array, learned: Any) -> np.ndarray | None:
    """Return which rows are left out (None: none)."""
    missing = ~valid_mask(parsed) if drops_missing(feature) and parsed.null_count else None
    filtered = None if feature.row_filter is None else feature.row_filter(parsed, learned)
    return filtered if missing is None else missing if filtered is None else missing | filtered


def class_count(name: str, feature: Contract, learned: Learned) -> int:
    """Return the number of classes of a feature, or raise ConfigError if it has none."""
    if feature.semantic_type != "classes":
        raise ConfigError(
            f'"{name}" is {kind_with_article(feature)}, which has no classes: name a Category or a Binary'
        )
    count: int = getattr(learned, "num_embeddings", 2)
    return count


def rows_seen(feature: Contract, learned: Learned) -> int:
    """Return among how many rows the missing cells of a column were counted."""
    # Older states do not say it: without a split or other features that drop rows, this is the same.
    return learned.seen or learned.rows + learned.missing * drops_missing(feature)


class MediaContract:
    """What is asked of images and sounds besides."""

    @abstractmethod
    def with_base_folders(self, folders: tuple[str, ...]) -> Self:
        """Return the feature for data in some folders, where relative paths in its cells may start."""

    @abstractmethod
    def read_cells(self, column: pa.ChunkedArray, name: str) -> pa.Array:
        """Parse the cells of a column of some name."""

    @abstractmethod
    def to_stored_cells(self, parsed: pa.Array, learned: Any) -> dict[str, pa.Array]:
        """Return what a write carries to its parts: cells as they are."""
