"""The contract of a feature type: parse, summarize, learn, encode, expand, decode."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import pyarrow as pa
from typing_extensions import TypeVar

from daskprep.columns.kernels import valid_mask
from daskprep.columns.permutation import Integers
from daskprep.columns.summaries import ColumnSummary, Rejects
from daskprep.columns.summaries.base import SummaryT
from daskprep.columns.summaries.column_summary import MAX_SAMPLE_CHARACTERS, MAX_SAMPLES
from daskprep.columns.summaries.shifts import count_bins
from daskprep.columns.vocabulary import Vocabulary
from daskprep.errors import ColumnError, ConfigError, RejectedValueError
from daskprep.features.cells import any_in_list, as_dictionary, mask_texts, one_array, take_by_code, token_lists
from daskprep.features.missing import NeighbourImputer
from daskprep.features.padding import Padding
from daskprep.features.parameters import check_parameters, default_of
from daskprep.rows.base import MISSING, NEIGHBOUR_STRATEGIES, Parameters
from daskprep.rows.base import Invalid as Invalid  # noqa: PLC0414 custom types import it from here
from daskprep.rows.typed import PLAIN_TYPES, earlier_values, later, read_fields
from daskprep.sources.arrow_types import class_column
from daskprep.sources.cells import format_cell
from daskprep.sources.split.folds import KFold
from daskprep.storage.checkpoint import checkpointable, field_names

Y: Final = "y of fit"  # name of the column of `y` in ``fit(X, y)``
Encoded = np.ndarray | Mapping[str, np.ndarray]
# Kind of values in the cells: reports choose counts and plots by it.
SemanticType = Literal[
    "numbers", "classes", "tokens", "sets", "bags", "series", "dates", "places", "images", "sounds", "others"
]

MAX_SHOWN = 80  # characters of a cell in messages
VALUE_BINS = 32  # of numbers and dates, whose training rows a fitted state counts

# One number, or an array of numbers that broadcasts to a row.
Bound: TypeAlias = int | Sequence[int] | Sequence[Sequence[int]]


class Limits(NamedTuple):
    """Smallest and largest integers, inclusive, that `decode` accepts."""

    low: Bound
    high: Bound
    any_length: bool = False  # whether rows to decode may be shorter or longer than encoded rows


Bounds: TypeAlias = tuple[Bound, Bound] | Limits

Loss = Literal["missing", "unreadable", "unknown", "hashed", "cut", "clipped", "rounded", "padded"]
"""A cause why the encoding of a cell lacks information of the cell."""


@dataclass(frozen=True)
class SideColumns:
    """Columns, folds and weights for features that learn from them."""

    table: pa.Table  # columns of `Contract._learning_columns`, such as a target
    folds: np.ndarray | None = None  # fold of each row, from 0
    weights: np.ndarray | None = None  # None: 1 for all rows
    cache: dict[Any, Any] = field(default_factory=dict)  # results from `table` that features share

    def take(self, rows: np.ndarray) -> SideColumns:
        """Return the side columns of these row numbers."""
        # A table without columns would lose its rows.
        table = self.table.take(pa.array(rows)) if self.table.num_columns else self.table
        folds, weights = (None if column is None else column[rows] for column in (self.folds, self.weights))
        return SideColumns(table, folds, weights)


class TrainingCounts(NamedTuple):
    """Counts of training rows by bin, to compare with new rows."""

    counts: np.ndarray
    ordered: bool = False  # whether bins are in order, between `edges`; the first and the last bin are outside them
    edges: tuple[float, ...] = ()
    labels: Sequence[str] = ()  # of bins
    unknown: int = 0  # rows whose value has no id; they are in the last bin
    candidates: int = 0  # classes among which the bins with the highest counts were chosen


def learners_from_y(features: Mapping[str, object]) -> list[str]:
    """Return the names of the features that learn from `y`."""
    return [name for name, one in features.items() if isinstance(one, Contract) and Y in one._learning_columns]


def cross_fit_folds(features: Mapping[str, Contract]) -> dict[str, KFold]:
    """Return the folds of the features that cross-fit."""
    return {name: folds for name, feature in features.items() if (folds := feature._cross_fit) is not None}


@dataclass(frozen=True, kw_only=True)
class Learned:
    """Fitted state of a feature for one column; its fields become its JSON."""

    rows: int = 0  # training rows, without dropped rows
    missing: int = 0  # missing cells, including unreadable ones and those in dropped rows
    invalid: int = 0  # unreadable cells
    invalid_samples: tuple[str, ...] = ()  # first distinct unreadable cells
    # Value that replaces missing cells. With "drop_row", "ffill" and "bfill": the fallback for new rows, which are
    # never dropped, and for cells without a neighbor. None if there was nothing to learn it from.
    fill_value: Any = None
    # Rows among which missing cells were counted if their number differs from `rows`, otherwise 0. With "drop_row", all
    # rows, because dropped rows belong to no split.
    seen: int = later(0)

    def __init_subclass__(cls) -> None:
        if cls.__module__.startswith("daskprep."):  # a class of a script has another module name in another process
            checkpointable(cls)

    def __getstate__(self) -> dict[str, Any]:
        # `memoize` stores results in underscored attributes; they refer to parameters, which may not be picklable.
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON values, vocabularies included."""
        return self.to_state()

    def mask_unlearned(self, parsed: pa.Array) -> pa.Array:
        """Return parsed cells without those unreadable by this state."""
        return parsed

    def class_counts(self) -> Integers | None:
        """Return the training rows by class id, or None."""
        return None

    def of_output(self, output: str) -> Learned:
        """Return the state of one output of several, or `self`."""
        return self

    def grow(self, fresh: Self) -> tuple[Self, dict[str, dict[str, int]]]:
        """Return this state with new tokens of `fresh` and counts.

        `fresh` was learned from new rows. New tokens have ids behind the old ones, and all else stays. States without a
        vocabulary are returned unchanged.
        """
        del fresh
        return self, {}

    def redact(self, lost: Mapping[str, Integers]) -> Self:
        """Return this state without texts of removed rows.

        `lost` has the ids of tokens by output. Each becomes "<REMOVED id>", so that all ids stay.
        """
        del lost
        return dataclasses.replace(self, invalid_samples=())

    def extends(self, other: Learned) -> bool:
        """Return whether `grow` may have made this state of `other`."""
        own, others = ({**one.to_state(), "value_edges": None} for one in (self, other))  # appended rows move the ends
        return type(self) is type(other) and own == others

    def to_state(self) -> dict[str, Any]:
        """Return the result of `to_dict` with `Vocabulary` objects."""
        values = {name: getattr(self, name) for name in field_names(type(self))}
        before = earlier_values(type(self))
        return {name: _to_json(value) for name, value in values.items() if name not in before or value != before[name]}

    def _sample_texts(self) -> list[str]:
        """Return the type's own numbers and texts as text."""
        own_names = [field.name for field in dataclasses.fields(self) if field.name not in Learned.__dataclass_fields__]
        values = [getattr(self, name) for name in own_names]
        return [str(value) for value in values if isinstance(value, str | int | float)]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a state from `to_dict` or `to_state`; TypeError for a value unlike its annotation."""
        return cls(**read_fields(cls, data))


def _to_json(value: object) -> object:
    """Return tuples as lists, and NumPy numbers as Python's."""
    if isinstance(value, tuple):
        return [item if type(item) in PLAIN_TYPES else _to_json(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


if TYPE_CHECKING:
    from torch import Tensor  # other modules of features import it from here: one file imports torch
else:
    Tensor = Any  # features are created and fitted without torch
LearnedT = TypeVar("LearnedT", bound=Learned, default=Any)


class Contract(Parameters, Generic[SummaryT, LearnedT]):
    """Methods and properties that every feature type has.

    Learned state is passed to each method that needs it, so that one feature serves many columns.
    """

    kind: ClassVar[str]
    semantic_type: ClassVar[SemanticType] = "others"
    learned_type: ClassVar[type[Learned]] = Learned
    # By cause, the remedy for losses that `_losses` may return in addition to missing and unreadable cells.
    _loss_remedies: ClassVar[Mapping[Loss, str]] = {}
    missing_value_strategy: Any
    fill_value: Any
    _weighs_rows: ClassVar[bool] = False  # whether values are the weights of rows
    _is_input: ClassVar[bool] = True  # whether models may read the values
    # Whether ordered values are seconds since 1970, so that later rows follow on the range of the fit.
    _follows_time: ClassVar[bool] = False
    _is_in_images: ClassVar[bool] = False  # whether cells are positions in other images
    _samples_files: ClassVar[bool] = False  # whether the fit opens a sample of the files, so that losses are estimates
    # Unusual and unreadable texts, on which parsers would differ; golden rows include them.
    _has_default_fill: ClassVar[bool] = False  # whether "fill_with_const" needs no `fill_value`
    _before: Sequence[Any] = ()  # borders of rows that come before all others, for windows
    _edge_case_cells: ClassVar[tuple[str, ...]] = ("", "no such cell")

    # -- from cells to encoded rows, and back

    @abstractmethod
    def parse(self, column: pa.Array) -> pa.Array:
        """Convert raw cells to typed ones, unreadable ones to null."""

    @abstractmethod
    def summarize(self, parsed: pa.Array) -> SummaryT:
        """Summarize the non-null cells of a parsed column."""

    @abstractmethod
    def learn(self, summary: SummaryT) -> LearnedT:
        """Learn the state from the summary of all training rows."""

    @abstractmethod
    def encode(self, parsed: pa.Array, learned: LearnedT) -> Encoded:
        """Encode parsed cells as compact arrays with one row per cell."""

    def expand(self, batch: Tensor, learned: LearnedT) -> Tensor:
        """Expand a batch of encoded rows to the input of a model."""
        return batch

    def _paddings(self, learned: LearnedT, *, expand: bool) -> Mapping[str, Padding]:
        """Return the padding of padded outputs; with `expand`, not of vectors of counts."""
        return {}

    @abstractmethod
    def decode(self, encoded: np.ndarray, learned: LearnedT) -> pa.Array:
        """Decode encoded rows, by output if there are several."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Suffixes of a column's arrays: "", or such as "_word", "_char"."""
        return ("",)

    def limits(self, learned: LearnedT) -> Mapping[str, Bounds]:
        """Return the limits by output where some integers are invalid."""
        return {}

    # -- optional methods of a type

    def check(self) -> None:
        """Raise ConfigError where parameters contradict each other."""

    def fingerprint(self) -> str:
        """Return a digest of other inputs, such as files, or ""."""
        return hashlib.sha256(pickle.dumps(self._before)).hexdigest() if self._before else ""

    def advice(self, learned: LearnedT) -> str | None:
        """Return a warning about the fitted column, or None."""
        return None

    def _losses(
        self, parsed: pa.Array, encoded: Mapping[str, np.ndarray], learned: LearnedT
    ) -> Mapping[Loss, np.ndarray]:
        """Return masks of cells that lose information, by cause.

        `encoded` are the arrays of `encode` by output. The causes are the keys of `_loss_remedies`.
        """
        return {}

    def _mask_padded(self, encoded: np.ndarray, losses: Mapping[Loss, np.ndarray], learned: LearnedT) -> np.ndarray:
        """Return a mask of the rows whose window lacks rows, for a feature with windows and the result of `_losses`."""
        return losses["padded"]

    def _learned_losses(self, learned: LearnedT) -> Mapping[Loss, int]:
        """Return by cause the number of training cells, if counted."""
        return {}

    def _configure_as_target(self) -> None:
        """Set "drop_row" for a target, unless a strategy is set."""
        names = ("missing_value_strategy", "fill_value")
        if all(getattr(self, name, None) == default_of(type(self), name) for name in names):
            self.missing_value_strategy = "drop_row"

    @property
    def row_filter(self) -> Callable[[pa.Array, LearnedT], np.ndarray | None] | None:
        """Function of cells and state that masks rows to drop, or None."""
        return None

    @property
    def imputer(self) -> NeighbourImputer | None:
        """Imputer of missing cells from neighboring rows, or None."""
        return NeighbourImputer.of(self.missing_value_strategy)

    def _remedy(self, learned: LearnedT) -> str:
        """Return how to fix unreadable cells, as the end of a warning."""
        return "correct the data"

    @property
    def _counts_tokens(self) -> bool:
        """Whether a vocabulary has tokens of the rows, to rename."""
        return False

    def _is_cut(self, tokens: int) -> bool:
        """Return whether a vocabulary with this number of tokens may lack tokens of the training rows."""
        return False

    @property
    def _lists_filled(self) -> bool:
        """Whether cells that are filled are among the rejects."""
        return False

    @property
    def _grows(self) -> bool:
        """Whether new rows may add tokens, at the end of a vocabulary."""
        return self._counts_tokens

    def _redact(self, learned: LearnedT, lost: Mapping[str, Integers]) -> LearnedT:
        """Return the fitted state as `Learned.redact`."""
        return learned.redact(lost)

    @property
    def _expands(self) -> bool:
        """Whether `expand` changes batches."""
        return type(self).expand is not Contract.expand

    def _sample_cells(self, learned: LearnedT) -> list[str | None]:
        """Return sample cells for golden rows; none opens a file."""
        return [None, *learned._sample_texts()[:5], *self._edge_case_cells]

    # -- methods of built-in types only: raw forms of cells, other columns, and summaries of subsets

    def _with_base_folders(self, folders: tuple[str, ...]) -> Self:
        """Return the feature for relative paths in these folders."""
        return self

    def _bind(self, features: Mapping[str, Any]) -> Self:
        """Return the feature for rows with other `features`."""
        return self

    def _with_errors(self) -> Self:
        """Return the feature, whose parsed files have their errors."""
        return self

    @property
    def _reports_unreadable(self) -> bool:
        """Whether unreadable cells of a column are listed."""
        return True

    @property
    def _window_groups(self) -> list[str | None]:
        """Group columns of windows; None in it: without groups."""
        return []

    @property
    def _counts_steps(self) -> bool:
        """Whether windows take each row as a step of time."""
        return False

    @property
    def _past(self) -> tuple[str | None, int, bool] | None:
        """Column of groups, number of rows before a row, and whether rows without a group are one; None: no window."""
        return None

    @property
    def _window_numbers(self) -> int:
        """Number of numbers, or ids, in the window of a row."""
        return 0

    @property
    def _drops_windows(self) -> bool:
        """Whether rows with an incomplete window are left out."""
        return False

    @property
    def _learning_columns(self) -> list[str]:
        """Columns to learn from that new rows need not have; `Y` is the `y` of ``fit(X, y)``."""
        return []

    @property
    def _cross_fit(self) -> KFold | None:
        """Folds of training rows, encoded by other rows, or None."""
        return None

    def _add_fold_numbers(self, parsed: pa.Array, folds: np.ndarray) -> pa.Array:
        """Return a column with folds, from 1; 0 is for other rows."""
        return parsed

    def _read_column(self, table: pa.Table, name: str) -> pa.ChunkedArray:
        """Return a column, with the names of classes if it has any."""
        return class_column(table, name) if self.semantic_type == "classes" else table[name]

    def _declared_order(self, column: pa.ChunkedArray) -> str:
        """Return the order of values in the column's type, or ""."""
        return ""

    def _mask_null_values(self, column: pa.ChunkedArray, texts: Set[str]) -> pa.Array:
        """Return cells as text, null where they are one of `texts`."""
        return mask_texts(as_dictionary(one_array(column)), texts)

    def _parse_columns(self, names: Sequence[str], *columns: pa.ChunkedArray) -> pa.Array:
        """Parse columns whose cells may have several Python types."""
        return self.parse(*map(one_array, columns))

    def _find_decodable(self, parsed: pa.Array) -> np.ndarray | None:
        """Return a mask of rows with decodable files; None: all."""
        return None

    def _summarize_rows(self, parsed: pa.Array, side_columns: SideColumns) -> SummaryT:
        """Summarize a parsed column with its side columns."""
        return self.summarize(parsed)

    def _summarize_subsets(
        self, parsed: pa.Array, row_subsets: list[np.ndarray | None], side_columns: list[SideColumns]
    ) -> list[SummaryT]:
        """Summarize subsets of rows, by row numbers; None: all."""
        parts = (parsed if rows is None else parsed.take(pa.array(rows)) for rows in row_subsets)
        return [self._summarize_rows(part, own) for part, own in zip(parts, side_columns, strict=True)]

    def _stored_cells(self, parsed: pa.Array, learned: LearnedT) -> Mapping[str, pa.Array] | None:
        """Return by output cells to decode later, or None."""
        return None

    def _mask_unseen(self, parsed: pa.Array, learned: LearnedT, *, encodes: bool = True) -> np.ndarray:
        """Return a mask of cells with a token outside the vocabulary.

        `encodes` False saves the time to encode a column whose unseen cells only its encoding shows.
        """
        unseen = np.zeros(len(parsed), bool)
        for output in self.outputs:
            state = learned.of_output(output)
            if isinstance(getattr(state, "vocabulary", None), Vocabulary) and not getattr(self, "hash_buckets", None):
                cells = parsed.field(output[1:]) if output else parsed
                if pa.types.is_dictionary(cells.type):
                    unseen |= ~take_by_code(cells, self._mask_known(cells.dictionary, state, output), True)
                else:
                    lists = token_lists(cells)
                    unseen |= any_in_list(lists, ~self._mask_known(lists.values, state, output))
        unseen &= valid_mask(parsed)
        return unseen

    def _mask_known(self, tokens: pa.Array, learned: Any, output: str) -> np.ndarray:
        """Return a mask of tokens in the vocabulary of an output."""
        known: np.ndarray = learned.vocabulary.contains(tokens)
        return known

    def _training_counts(self, learned: LearnedT) -> dict[str, TrainingCounts]:
        """Return the learned counts of training cells by bin."""
        return count_in_order(learned)

    def _ordered_values(self, parsed: pa.Array) -> np.ndarray:
        """Return present cells in the units of `TrainingCounts.edges`."""
        raise NotImplementedError

    def _count_by_bin(self, parsed: pa.Array, learned: LearnedT) -> dict[str, np.ndarray]:
        """Return the counts of present cells in the learned bins."""
        edges = np.array(getattr(learned, "value_edges", ()))
        return {"values": count_bins(self._ordered_values(parsed), edges)}

    def _check_learned(self, learned: LearnedT) -> None:
        """Raise ValueError if a state does not match the parameters."""

    def _to_raw_cell(self, value: Any) -> object:
        """Return the raw form of a parsed Python value, to show it."""
        return value

    def _explain_drop(self, value: Any) -> str:
        """Return why `row_filter` drops a parsed Python value."""
        return f"{format_cell(self._to_raw_cell(value), MAX_SHOWN)} is excluded by the fitted state"

    # -- imputation

    def parse_fill(self, value: object) -> pa.Array:
        """Return the fill value as a parsed column of one cell; ConfigError if unreadable."""
        parsed = self.parse(pa.array([value]))
        check_arrow(self, "parse", parsed, 1)
        if parsed.null_count:
            raise ConfigError(
                f"{type(self).__name__}: fill_value {value!r} cannot be read as {kind_with_article(self)}"
            )
        return parsed

    def cells(self, parsed: pa.Array) -> pa.Array | None:
        """Return a scalar per cell to count, or None if `summarize` counts."""
        return parsed

    def learn_fill(self, summary: ColumnSummary[SummaryT]) -> Any:
        """Return the most frequent cell, for `parse_fill`; ConfigError for a mean."""
        if summary.cells is None:
            raise ConfigError(f'{type(self).__name__} has no mean: "fill_with_mean" is for numbers')
        return summary.cells.top()

    def learn_column(self, summary: ColumnSummary[SummaryT]) -> LearnedT:
        """Learn the fill value, then the state of the filled column."""
        fill = self._resolve_fill(summary)
        values = summary.values
        if fill is not None:
            fill_column = self.parse_fill(fill)
            values = values + self.summarize(fill_column) * summary.missing if summary.missing else values
        elif not keeps_missing(self) and (drops_missing(self) or summary.rows > summary.missing):
            fill = self._learn_fallback(summary)
        return add_counts(self.learn(values), summary, fill)

    def _learn_fallback(self, summary: ColumnSummary[SummaryT]) -> Any:
        """Return the fill of new rows and of cells without neighbors."""
        return default_of(type(self), "fill_value")

    def _resolve_fill(self, summary: ColumnSummary[SummaryT]) -> Any:
        """Return the value that fills all missing cells, or None; ColumnError if there is none to learn."""
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


def check_bins(learned: Any) -> None:
    """Raise ValueError unless edges ascend and have counts."""
    edges, counts = learned.value_edges or (), learned.value_counts or ()
    if len(edges) != len(counts) + bool(counts) or list(edges) != sorted(edges) or min(counts, default=0) < 0:
        raise ValueError("value_edges and value_counts are no bins")


def count_in_order(learned: Any) -> dict[str, TrainingCounts]:
    """Return the learned counts by quantile bin, if there are any."""
    if not getattr(learned, "value_counts", None):
        return {}
    counts = np.array([0, *learned.value_counts, 0])
    return {"values": TrainingCounts(counts, ordered=True, edges=learned.value_edges)}


def add_counts(learned: LearnedT, summary: ColumnSummary, fill: Any) -> LearnedT:
    """Return a state with counts of its column and fill value."""
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
    """Add cells to a summary that only a full pass finds unreadable.

    `n_unreadable` is the number of cells, `samples` are some of their texts, and `why` is the reason for the message.
    RejectedValueError with invalid="raise".
    """
    shown = [sample[:MAX_SAMPLE_CHARACTERS] for sample in samples[:MAX_SAMPLES]]
    if n_unreadable and feature.invalid == "raise":
        raise RejectedValueError(
            f'{shown[0]!r} {why} ({n_unreadable} such cells); correct the data, or use invalid="missing"'
        )
    rejects = summary.rejects + Rejects(n_unreadable, tuple(enumerate(shown, 1 << 62)))  # after those with a row
    rows = summary.rows - n_unreadable * drops_missing(feature)
    return dataclasses.replace(summary, rows=rows, missing=summary.missing + n_unreadable, rejects=rejects)


def kind_with_article(feature: Contract) -> str:
    """Return a type with its article, such as "an image"."""
    if feature.kind.endswith("s"):
        return feature.kind
    return f"{'an' if feature.kind[0] in 'aeiou' else 'a'} {feature.kind}"


def all_outputs(feature: Contract) -> tuple[str, ...]:
    """Return outputs of a feature and of its missing indicator."""
    return (*feature.outputs, MISSING) if feature.missing_indicator else feature.outputs


def check_arrow(feature: Contract, function: str, result: object, rows: int) -> None:
    """Raise ColumnError unless a result has `rows` rows of Arrow."""
    if not isinstance(result, (pa.Array, pa.ChunkedArray)) or len(result) != rows:
        raise ColumnError(
            f"{function} of {kind_with_article(feature)} returned {describe_result(result)}: "
            f"expected an Arrow array of {rows:,} rows"
        )


def describe_result(result: object) -> str:
    """Return type and shape of a function's result, for messages."""
    if isinstance(result, pa.Array | pa.ChunkedArray):
        return f"{len(result):,} rows of {result.type}"
    return f"{result.dtype} of shape {result.shape}" if isinstance(result, np.ndarray) else f"{type(result).__name__}"


def validate(feature: Contract) -> None:
    """Raise ConfigError for parameters wrong alone or together."""
    check_parameters(feature)
    needs_fill = feature.missing_value_strategy == "fill_with_const" and not feature._has_default_fill
    if needs_fill and feature.fill_value is None:
        raise ConfigError(
            f'{type(feature).__name__}: missing_value_strategy "fill_with_const" needs a fill_value; '
            'set one, or use "drop_row"'
        )
    feature.check()


def drops_missing(feature: Contract) -> bool:
    """Return whether rows with a missing cell are dropped."""
    return bool(feature.missing_value_strategy == "drop_row" and not feature._drops_windows)


def keeps_missing(feature: Contract) -> bool:
    """Return whether missing cells stay missing, as NaN."""
    return bool(feature.missing_value_strategy == "keep")


def fills_with_one_value(feature: Contract) -> bool:
    """Return whether one value fills every missing cell."""
    return feature.missing_value_strategy not in ("drop_row", "keep", *NEIGHBOUR_STRATEGIES)


def fill_advice(feature: Contract, learned: Learned) -> str | None:
    """Return a warning if all is missing or the fill value unused, or None."""
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
    """Return whether this feature may make a write drop rows."""
    return drops_missing(feature) or feature.row_filter is not None


def find_dropped_rows(feature: Contract, parsed: pa.Array, learned: Any) -> np.ndarray | None:
    """Return a mask of the rows to drop; None: no row."""
    missing = ~valid_mask(parsed) if drops_missing(feature) and parsed.null_count else None
    filtered = None if feature.row_filter is None else feature.row_filter(parsed, learned)
    return filtered if missing is None else missing if filtered is None else missing | filtered


def class_count(name: str, feature: Contract, learned: Learned) -> int:
    """Return the number of class ids; ConfigError without classes."""
    if feature.semantic_type != "classes":
        raise ConfigError(
            f'"{name}" is {kind_with_article(feature)}, which has no classes: name a Category or a Binary'
        )
    count: int = getattr(learned, "num_embeddings", 2)
    return count


def rows_seen(feature: Contract, learned: Learned) -> int:
    """Return the rows in which missing cells were counted."""
    # States saved by older versions lack `seen`; without a split or other dropping features, the sum is equal to it.
    return learned.seen or learned.rows + learned.missing * drops_missing(feature)
