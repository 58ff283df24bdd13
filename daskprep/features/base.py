"""The contract of a feature type: parse, summarize, learn, encode, expand, decode."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
import pyarrow as pa

from daskprep.errors import ColumnError, ConfigError
from daskprep.features.cells import one_array
from daskprep.features.checking import check_arrow, checked_outputs, empty_arrays, noun_of
from daskprep.features.missing import Neighbours, drops_missing, neighbour_strategy, valid_mask
from daskprep.features.parameters import check_parameters
from daskprep.summaries import ColumnSummary, Summary

__all__ = ["Contract", "Encoded", "Invalid", "Learned", "MediaContract", "rows_seen"]

Encoded = np.ndarray | Mapping[str, np.ndarray]
Invalid = Literal["missing", "raise"]


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What a feature learned from one column; its fields are its JSON.

    Attributes
    ----------
    rows, missing, invalid : int
        Rows that were learned from, how many of their cells were missing, and how many of those could not be read.
        With "drop_row" the rows that were dropped are counted as missing, and not among `rows`.
    seen : int
        Rows among which missing cells were counted, if these are not `rows`; else 0. A row that is dropped belongs to
        no split, so that with "drop_row" these are all rows.
    invalid_samples : tuple of str
        The first few distinct cells that could not be read.
    fill_value : object
        What a missing cell becomes; None where the strategy has no such value.
    """

    rows: int = 0
    missing: int = 0
    invalid: int = 0
    invalid_samples: tuple[str, ...] = ()
    fill_value: Any = None
    seen: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return self.to_state()

    def to_state(self) -> dict[str, Any]:
        """Return what `to_dict` gives, but vocabularies, which may have millions of tokens, as they are."""
        state = {field.name: _to_json(getattr(self, field.name)) for field in dataclasses.fields(self)}
        if not self.seen:
            del state["seen"]
        return state

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from what `to_dict` or `to_state` gave."""
        names = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in data.items() if name in names}
        values["invalid_samples"] = tuple(values.get("invalid_samples", ()))
        return cls(**values)


def _to_json(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return value.item() if isinstance(value, np.generic) else value


class Contract:
    """What is asked of every type, and what all types share; `Feature` makes an estimator of it."""

    kind: ClassVar[str]
    learned_type: ClassVar[type[Learned]] = Learned
    is_media: ClassVar[bool] = False
    any_length: ClassVar[bool] = False  # rows to decode may be longer or shorter than those that `encode` gives
    missing_value_strategy: str
    fill_value: Any
    invalid: Invalid
    column: str | None

    @property
    def outputs(self) -> tuple[str, ...]:
        """Suffixes of the arrays that one column becomes: "" alone, or such as "_word" and "_char"."""
        return ("",)

    # -- what a type defines

    @abstractmethod
    def parse(self, column: pa.Array) -> pa.Array:
        """Turn raw cells into typed ones; what cannot be read becomes null."""

    @abstractmethod
    def summarize(self, parsed: pa.Array) -> Summary:
        """Summarize the present cells of a parsed column."""

    @abstractmethod
    def learn(self, summary: Any) -> Learned:
        """Learn from the summary of all training rows."""

    @abstractmethod
    def encode(self, parsed: pa.Array, learned: Any) -> Encoded:
        """Turn parsed cells into compact arrays with one row for each cell."""

    @abstractmethod
    def decode(self, encoded: Any, learned: Any) -> pa.Array:
        """Turn encoded rows back into values a person reads."""

    def expand(self, batch: Any, learned: Any) -> Any:
        """Turn a batch of encoded rows (a torch tensor) into what a model reads."""
        return batch

    def tabulate(self, encoded: Mapping[str, np.ndarray], learned: Any) -> np.ndarray:
        """Turn the outputs of one column into a 2-D table, one column for each name of `tabulated_names`."""
        flat = [array.reshape(len(array), int(np.prod(array.shape[1:]))) for array in encoded.values()]
        return flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1)

    def tabulated_names(self, name: str, learned: Any) -> list[str]:
        """Return the names of the columns of `tabulate`."""
        names = []
        for output, array in empty_arrays(self, learned).items():
            width = int(np.prod(array.shape[1:]))
            names += [name + output] if array.ndim == 1 else [f"{name}{output}_{i}" for i in range(width)]
        return names

    def check(self) -> None:
        """Raise ConfigError where parameters contradict each other."""

    def fingerprint(self) -> str:
        """Return a digest of what the result depends on besides rows and parameters, such as files; "" of nothing."""
        return ""

    def advice(self, learned: Any) -> str | None:
        """Return what a user should know of a column that was learned, if anything."""
        return None

    # -- what all types share

    def check_parameters(self) -> None:
        """Raise ConfigError for a parameter of the wrong type or outside its choices."""
        check_parameters(self)
        if self.missing_value_strategy == "fill_with_const" and self.fill_value is None:
            raise ConfigError(
                f'{type(self).__name__}: missing_value_strategy "fill_with_const" needs a fill_value; '
                'give one, or use "drop_row"'
            )
        self.check()

    def reads(self, name: str) -> list[str]:
        """Return the columns that a feature called `name` reads, its own first."""
        return [self.column or name]

    def read(self, table: pa.Table, name: str) -> pa.Array:
        """Parse the cells of the feature called `name`."""
        return self.parse(one_array(table[self.reads(name)[0]]))

    @property
    def may_drop_rows(self) -> bool:
        """Whether encoding may leave rows out."""
        return drops_missing(self)

    @property
    def counts_cells(self) -> bool:
        """Whether equal cells are counted, to know the most frequent one."""
        return self.missing_value_strategy == "fill_with_mode"

    @property
    def around(self) -> Neighbours | None:
        """What completes a column with the rows around, of other partitions too; None where each row stands alone."""
        strategy = neighbour_strategy(self.missing_value_strategy)
        return None if strategy is None else Neighbours(strategy)

    def recognize(self, parsed: pa.Array, learned: Any) -> pa.Array:
        """Turn cells that only what was learned shows to be unreadable into missing ones."""
        return parsed

    def parse_fill(self, value: Any) -> pa.Array:
        """Return the parsed column of one cell that holds the fill value."""
        parsed = self.parse(pa.array([value]))
        check_arrow(self, "parse", parsed, 1)
        if parsed.null_count:
            raise ConfigError(f"{type(self).__name__}: fill_value {value!r} cannot be read as {noun_of(self)}")
        return parsed

    def cells(self, parsed: pa.Array) -> pa.Array:
        """Return one plain value for each cell, by which equal cells can be counted."""
        return parsed

    def fill_from_cell(self, cell: Any) -> Any:
        """Return the fill value for a value that `cells` gave."""
        return cell

    def mean(self, summary: Any) -> float:
        raise ConfigError(f'{type(self).__name__} has no mean: "fill_with_mean" is for numbers')

    def _most_frequent(self, summary: Any) -> Any:
        """Return the most frequent of the values that `cells` gave."""
        return summary.cells.top()

    def learn_column(self, summary: ColumnSummary) -> Learned:
        """Learn from a column's summary: first what fills the gaps, then the rest, gaps counted as filled."""
        fill = self._resolve_fill(summary)
        values = summary.values
        if fill is not None:
            values = values + self.summarize(self.parse_fill(fill)) * summary.missing
        return dataclasses.replace(
            self.learn(values),
            rows=summary.rows,
            missing=summary.missing,
            invalid=summary.rejects.count,
            invalid_samples=summary.rejects.texts,
            fill_value=fill,
            seen=0 if summary.seen == summary.rows else summary.seen,
        )

    def dropped(self, parsed: pa.Array, learned: Any) -> np.ndarray | None:
        """Return which rows are left out (None: none)."""
        return ~valid_mask(parsed) if drops_missing(self) and parsed.null_count else None

    def _resolve_fill(self, summary: ColumnSummary) -> Any:
        strategy = self.missing_value_strategy
        if strategy == "fill_with_const":
            return self.fill_value
        if strategy not in ("fill_with_mean", "fill_with_mode"):
            return None
        if summary.rows == summary.missing:
            raise ColumnError(
                f'has no value at all, so "{strategy}" has nothing to learn: use "fill_with_const" with a fill_value'
            )
        if strategy == "fill_with_mean":
            return self.mean(summary.values)
        return self.fill_from_cell(self._most_frequent(summary))

    def limits(self, learned: Any) -> Mapping[str, Any]:
        """Return the least and the greatest number by output, where not all that its type holds can be decoded."""
        return {}

    def encoded_fill(self, learned: Any) -> dict[str, Any]:
        """Return the row, by output, that stands for a missing cell."""
        encoded = checked_outputs(self, self.encode(self.parse_fill(learned.fill_value), learned), 1)
        return {output: array[0] for output, array in encoded.items()}


def rows_seen(feature: Contract, learned: Learned) -> int:
    """Return among how many rows the missing cells of a column were counted."""
    # Older states do not say it: without a split or other features that drop rows, this is the same.
    return learned.seen or learned.rows + learned.missing * drops_missing(feature)


class MediaContract(Protocol):
    """What is asked of the types of images and sounds besides, which are those where `is_media`."""

    def beside(self, folders: tuple[str, ...]) -> Any: ...

    def carry_column(self, parsed: pa.Array, learned: Any) -> dict[str, pa.Array]: ...
