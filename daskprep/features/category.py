"""Feature type for categories: one id for each distinct value, the most frequent first."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.display import join_names
from daskprep.columns.kernels import plain_values, valid_mask
from daskprep.columns.permutation import Integers, hash_strings
from daskprep.columns.summaries import ColumnSummary, TokenCounts
from daskprep.columns.summaries.shifts import choose_bins
from daskprep.columns.vocabulary import SpecialSymbols, Vocabulary
from daskprep.errors import ColumnError, ConfigError, RejectedValueError
from daskprep.features.base import (
    Bounds,
    Learned,
    Loss,
    SideColumns,
    Tensor,
    TrainingCounts,
    drops_missing,
    fills_with_one_value,
)
from daskprep.features.cells import argsort_values, as_dictionary, take_by_code
from daskprep.features.checking import memoize, restorable_type
from daskprep.features.feature import Feature, with_parameters
from daskprep.features.tokens import LearnedTokens, rename_texts
from daskprep.rows.base import smallest_uint
from daskprep.rows.classes import (
    BUCKET_KEY,
    MAX_HASH_BUCKETS,
    MISSING_PART,
    SEPARATOR,
    CategoryParameters,
    CategoryValues,
    bucket_names,
)
from daskprep.sources.arrow_types import declared_order
from daskprep.sources.cells import as_text

if TYPE_CHECKING:
    from scipy import sparse

_MAX_SHOWN_LABELS = 5  # labels in an error message
MAX_ONE_HOT_COLUMNS = 1_000  # wider dense tables would be mostly zeros, of a byte each
_SPECIALS = SpecialSymbols.for_category()
_UNKNOWN_CELL = pa.array([_SPECIALS.symbols[0]]).dictionary_encode()


@dataclass(frozen=True, kw_only=True)
class LearnedCategory(CategoryValues, LearnedTokens):
    """Fitted state of a category column: a vocabulary and buckets."""

    @property
    def num_embeddings(self) -> int:
        return len(self.vocabulary) + self.buckets

    def class_counts(self) -> Integers | None:
        """Rows by id, <UNK> included; None with buckets."""
        if self.buckets:
            return None
        counts = self.vocabulary.frequencies.copy()
        if self.has_unknown:
            counts[0] = self.rows - counts[1:].sum()
        return counts

    @property
    def has_unknown(self) -> bool:
        """Whether values not seen in fit have an id, which is 0."""
        return self.vocabulary.specials.unknown_id is not None

    def grow(self, fresh: Self) -> tuple[Self, dict[str, dict[str, int]]]:
        """Return the state with new labels, and their counts; they may become text."""
        grown, counts = super().grow(fresh)
        labels = grown.vocabulary.tokens.slice(grown.has_unknown)
        if grown.cell_type is not None and restorable_type(labels, grown.cell_type) is None:
            grown = replace(grown, cell_type=None)  # decoded labels are text from here on
        return grown, counts

    def redact(self, lost: Mapping[str, Integers]) -> Self:
        """Return the state with labels renamed, which are text then."""
        if not (names := self._new_names(lost)):
            return super().redact(lost)
        # Decoded labels are text from here on, as a removed one is neither a number nor a truth value.
        declared_order = rename_texts(self.declared_order, names)
        return replace(super().redact(lost), cell_type=None, declared_order=declared_order)

    def extends(self, other: Learned) -> bool:
        cell_type = other.cell_type if isinstance(other, LearnedCategory) and self.cell_type is None else self.cell_type
        return LearnedTokens.extends(replace(self, cell_type=cell_type), other)

    def ids(self, dictionary: pa.Array) -> np.ndarray:
        """Return the ids of distinct values: of tokens, buckets or 0."""
        ids = self.vocabulary.ids(dictionary)
        if not self.buckets:
            return ids
        ids = ids.astype(smallest_uint(self.num_embeddings))
        unseen = np.flatnonzero(ids == 0)
        unseen = unseen[pc.not_equal(dictionary.take(pa.array(unseen)), _SPECIALS.symbols[0]).to_numpy(False)]
        hashes = hash_strings(dictionary.take(pa.array(unseen)), BUCKET_KEY)
        ids[unseen] = len(self.vocabulary) + hashes % np.uint64(self.buckets)
        return ids

    def values(self, ids: np.ndarray) -> pa.Array:
        """Return the token or bucket name of each id."""
        distinct, inverse = np.unique(ids, return_inverse=True)
        first_bucket = int(np.searchsorted(distinct, len(self.vocabulary)))
        tokens = self.vocabulary.tokens.take(pa.array(distinct[:first_bucket]))
        buckets = pa.array(bucket_names(distinct[first_bucket:] - len(self.vocabulary)), pa.string())
        return pa.concat_arrays([tokens, buckets]).take(pa.array(inverse))


@with_parameters
class Category(CategoryParameters, Feature[TokenCounts, LearnedCategory]):
    r"""Map categories to integer ids, ranked by frequency; id 0 is ``<UNK>``, for values not seen in fit.

    Ties are ordered by UTF-8 bytes. Values are compared as stripped text, and floats without a fraction as integers:
    ids do not change if missing values turn a column of integers into floats.

    Parameters
    ----------
    most_common : int or None
        Size of the vocabulary; rarer values become ``<UNK>``. None: all values of the training rows.
    min_frequency : int or None
        Values that occur less often become ``<UNK>``.
    lowercase : bool
        Whether to ignore case.
    order : list of str or None
        The values in the order of their ids, for ordinal data; other values become ``<UNK>``, with a warning unless
        `handle_unknown` is set. None: ranked by frequency.
    null_values : list of str or None
        Texts that mark missing values, such as "?".
    missing_value_strategy : str
        Imputation: "fill_with_const" (with `fill_value`), "fill_with_mode", "ffill", "bfill" or "drop_row".
    fill_value : str
        Value that "fill_with_const" imputes for missing values.
    hash_buckets : int or None
        Number of buckets for hashing without a vocabulary: ids 1 to n follow from the value alone, and missing values
        are ``<UNK>``. Different values may share a bucket. None: a vocabulary.
    oov_buckets : int
        Number of ids after the vocabulary that values outside it share by their hash, instead of ``<UNK>``.
    columns : list of str or None
        Columns to cross: a category of the combination of their values, such as ``Oslo|phone``. A missing part is
        ``\-``, and a cell is missing if all parts are. A ``|`` or ``\`` within a part is escaped by a backslash, so
        that different combinations are different values.
    handle_unknown : {"unk", "error", "drop_row"} or None
        Treatment of values not seen in fit. "unk": they become ``<UNK>``, id 0. "error" and "drop_row": no id is
        ``<UNK>``, ids are 0 to `num_classes` - 1, and rows with unknown values raise `RejectedValueError` or are left
        out of datasets and streams. None: "error" for a target of a `Preprocessor`, which also drops rows without a
        label, and "unk" otherwise.
    transform_to : {"ids", "ordinal", "one_hot"}
        Output of `transform`. "ids": the ids. "ordinal": positions of the values, -1 for ``<UNK>``. "one_hot": a column
        for each value, all 0 for ``<UNK>``: at most 1,000 columns, or any number with `sparse_output` of a
        `Preprocessor`. The last two use `order`, or the order of an ordered categorical of pandas or Arrow; otherwise
        values are sorted, as numbers if all are, or else by UTF-8 bytes. `encode`, datasets and batches contain ids.
    missing_indicator, invalid, column
        As for `Feature`.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskprep import Category
    >>> frame = pd.DataFrame({"city": ["Rome", "Oslo", "Rome "]})
    >>> other = pd.DataFrame({"city": ["Oslo", "Bern", None]})
    >>> city = Category().fit(frame)
    >>> city.learned_["city"].vocabulary.to_dict()["idx2str"]
    ['<UNK>', 'Rome', 'Oslo']
    >>> city.transform(other).ravel()
    array([2, 0, 0], dtype=uint8)
    >>> Category(transform_to="ordinal").fit(frame).transform(other).ravel()
    array([ 0, -1, -1], dtype=int8)
    >>> city = Category(transform_to="one_hot").fit(frame).set_output(transform="pandas")
    >>> city.transform(other)
       city_Oslo  city_Rome
    0          1          0
    1          0          0
    2          0          0
    """

    kind = "category"
    _loss_remedies: ClassVar[Mapping[Loss, str]] = {
        "unknown": "keep more by most_common, min_frequency or order",
        "hashed": "use more buckets, or none",
    }
    semantic_type = "classes"
    reads_any_text_as = "class"

    def check(self) -> None:
        """Raise ConfigError for parameters that exclude each other."""
        if self.hash_buckets is not None and (self.order is not None or self.oov_buckets or self.min_frequency):
            raise ConfigError(
                f"Category: hash_buckets={self.hash_buckets} hashes without a vocabulary, so that order, min_frequency "
                "and oov_buckets have no meaning: leave them out, or use oov_buckets alone"
            )
        if (buckets := max(self.hash_buckets or 0, self.oov_buckets)) > MAX_HASH_BUCKETS:
            raise ConfigError(f"Category: {buckets:,} buckets are too many: use at most {MAX_HASH_BUCKETS:,}")
        if self.transform_to == "ordinal" and (self.hash_buckets or self.oov_buckets):
            raise ConfigError('Category: buckets have no order, so transform_to="ordinal" is not for hashed values')
        if self.is_closed and (self.hash_buckets or self.oov_buckets):
            raise ConfigError(
                f'Category: buckets are ids for unknown values, which handle_unknown="{self.handle_unknown}" refuses: '
                "leave one of them out"
            )
        if self.columns is not None and (len(set(self.columns)) < 2 or self.column is not None):
            raise ConfigError(
                f"Category: columns={self.columns} are crossed: pass at least two different ones, and leave out column"
            )

    @property
    def is_closed(self) -> bool:
        """Whether no id is ``<UNK>``."""
        return self.handle_unknown in ("error", "drop_row")

    @property
    def _counts_tokens(self) -> bool:
        return self.order is None and self.hash_buckets is None

    def _is_cut(self, tokens: int) -> bool:
        return self.min_frequency is not None or tokens == self.most_common

    @property
    def _grows(self) -> bool:
        return self._counts_tokens and self.transform_to == "ids" and not self.oov_buckets

    def _redact(self, learned: LearnedCategory, lost: Mapping[str, Integers]) -> LearnedCategory:
        if self.transform_to != "ids" and not learned.declared_order and len(lost.get("", ())):
            # Removed names would be elsewhere in the order of the values, and with them the columns of `transform`.
            values = learned.values(_order_values(self, learned)["ids"])
            learned = replace(learned, declared_order=tuple(values.to_pylist()[: len(values) - learned.buckets]))
        return super()._redact(learned, lost)

    @property
    def row_filter(self) -> Callable[[pa.Array, LearnedCategory], np.ndarray | None] | None:
        return _mask_unknown_labels if self.handle_unknown == "drop_row" else None

    def _configure_as_target(self) -> None:
        """Set "error" for unknown labels and "drop_row"."""
        if self.handle_unknown is None and not (self.hash_buckets or self.oov_buckets):
            self.handle_unknown = "error"
        if self.is_closed:
            super()._configure_as_target()

    def parse(self, column: pa.Array, *others: pa.Array) -> pa.Array:
        parsed = [as_dictionary(one, lowercase=self.lowercase) for one in (column, *others)]
        return _cross_columns(parsed) if others else parsed[0]

    def parse_fill(self, value: object) -> pa.Array:
        if value == _SPECIALS.symbols[0]:
            return _UNKNOWN_CELL
        return super().parse_fill(value)

    def cells(self, parsed: pa.Array) -> None:
        return None

    def learn_fill(self, summary: ColumnSummary[TokenCounts]) -> Any:
        return summary.values.top()

    def _learn_fallback(self, summary: ColumnSummary[TokenCounts]) -> Any:
        return None if self.is_closed and drops_missing(self) else self.learn_fill(summary)

    def summarize(self, parsed: pa.Array) -> TokenCounts:
        """Count labels; nothing if all are hashed."""
        if self.hash_buckets is not None and self.missing_value_strategy == "fill_with_const":
            return TokenCounts(pa.string())
        return TokenCounts.of_cells(parsed)

    def _declared_order(self, column: pa.ChunkedArray) -> str:
        return "" if self.transform_to == "ids" else declared_order(column)

    def _summarize_subsets(
        self, parsed: pa.Array, row_subsets: list[Any], side_columns: list[SideColumns]
    ) -> list[TokenCounts]:
        """Count disjoint subsets by code, which is faster."""
        row_sets = [rows for rows in row_subsets if rows is not None]
        if not row_sets or self.hash_buckets is not None or type(self).summarize is not Category.summarize:
            return super()._summarize_subsets(parsed, row_subsets, side_columns)
        codes, size = parsed.indices.fill_null(len(parsed.dictionary)).to_numpy(), len(parsed.dictionary)
        counts = (np.bincount(codes[rows], minlength=size + 1)[:size] for rows in row_sets)
        return TokenCounts.of_each(parsed.dictionary, counts)

    def learn(self, summary: TokenCounts) -> LearnedCategory:
        """Learn labels; without <UNK>, ColumnError for none, and with handle_unknown="error" for left out ones."""
        buckets = self.hash_buckets or self.oov_buckets
        specials = SpecialSymbols((), (), ()) if self.is_closed else _SPECIALS
        if self.hash_buckets is not None:
            vocabulary = Vocabulary.from_tokens(pa.array([], pa.string()), summary, specials)
        elif self.order is not None:
            ordered_tokens = as_text(self.parse(pa.array(self.order, pa.string())))
            vocabulary = Vocabulary.from_tokens(ordered_tokens, summary, specials)
        else:
            vocabulary = Vocabulary.learn(summary, specials, self.most_common, self.min_frequency)
        if self.is_closed and not len(vocabulary):
            raise ColumnError("has no labels in the training rows: name another target, or pass rows with labels")
        excluded = summary.total - int(vocabulary.frequencies.sum())
        if excluded and self.handle_unknown == "error":
            raise ColumnError(
                f"has {excluded:,} training rows with labels beyond the {len(vocabulary):,} that order, most_common "
                'and min_frequency keep: keep more, or use handle_unknown="drop_row" to leave these rows out, or "unk" '
                "for a class <UNK>"
            )
        return LearnedCategory(vocabulary=vocabulary, buckets=buckets)

    def learn_column(self, summary: ColumnSummary[TokenCounts]) -> LearnedCategory:
        """Learn also the declared order, or the type of labels."""
        learned = super().learn_column(summary)
        if summary.cell_type is None or learned.buckets or self.columns is not None:
            return learned
        if summary.cell_type.name.startswith("["):
            declared = as_text(self.parse(pa.array(json.loads(summary.cell_type.name), pa.string())))
            return replace(learned, declared_order=tuple(declared.unique().to_pylist()))
        kind = restorable_type(learned.vocabulary.tokens.slice(learned.has_unknown), summary.cell_type.name)
        return replace(learned, cell_type=kind)

    def _training_counts(self, learned: LearnedCategory) -> dict[str, TrainingCounts]:
        return {} if self.hash_buckets else {"values": _count_classes(self, learned)["counts"]}

    def _count_by_bin(self, parsed: pa.Array, learned: LearnedCategory) -> dict[str, np.ndarray]:
        classes, ids = _count_classes(self, learned), learned.vocabulary.find_ids(parsed.dictionary)
        cells = np.bincount(plain_values(parsed.indices), minlength=len(ids))
        return {"values": np.bincount(classes["bins"][ids], cells, len(classes["counts"].counts)).astype(np.int64)}

    def _losses(
        self, parsed: pa.Array, encoded: Mapping[str, np.ndarray], learned: LearnedCategory
    ) -> Mapping[Loss, np.ndarray]:
        losses: dict[Loss, np.ndarray] = {"unknown": encoded[""] == 0} if learned.has_unknown else {}
        return losses | ({"hashed": encoded[""] >= len(learned.vocabulary)} if learned.buckets else {})

    def _learned_losses(self, learned: LearnedCategory) -> Mapping[Loss, int]:
        """Return the cells that became <UNK>; none with buckets or without it."""
        if learned.buckets or not learned.has_unknown:
            return {}
        # Cells without a neighbor are not in the vocabulary either.
        unknown = _count_classes(self, learned)["counts"].unknown - learned.missing * (self.imputer is not None)
        return {"unknown": max(unknown, 0)}

    def encode(self, parsed: pa.Array, learned: LearnedCategory) -> np.ndarray:
        """Return ids; RejectedValueError for labels without one."""
        if learned.has_unknown:
            return take_by_code(parsed, learned.ids(parsed.dictionary), 0)
        find_ids = learned.vocabulary.find_ids(parsed.dictionary)
        if (unknown := take_by_code(parsed, find_ids < 0, False)).any():
            labels = parsed.filter(pa.array(unknown)).cast(pa.string()).unique().to_pylist()
            raise RejectedValueError(
                f"{np.count_nonzero(unknown):,} of {len(parsed):,} rows hold labels that no training row has: "
                f"{join_names(labels, _MAX_SHOWN_LABELS)}; correct them, move such rows to the training rows, or use "
                'handle_unknown="drop_row" to leave these rows out, or "unk" for a class <UNK>'
            )
        return take_by_code(parsed, np.maximum(find_ids, 0).astype(learned.vocabulary.dtype), 0)

    def expand(self, batch: Tensor, learned: LearnedCategory) -> Tensor:
        return batch.long()

    def limits(self, learned: LearnedCategory) -> Mapping[str, Bounds]:
        return {"": (0, learned.num_embeddings - 1)}

    def _check_learned(self, learned: LearnedCategory) -> None:
        """Raise ValueError if labels are not of the saved type."""
        labels = learned.vocabulary.tokens.slice(learned.has_unknown)
        if learned.cell_type is not None and restorable_type(labels, learned.cell_type) is None:
            raise ValueError(f"not all labels are of type {learned.cell_type}")

    def decode(self, encoded: np.ndarray, learned: LearnedCategory) -> pa.Array:
        if not learned.buckets:
            return learned.vocabulary.decode(np.asarray(encoded))
        return learned.values(np.asarray(encoded, np.int64).ravel())

    def tabulate(self, encoded: Mapping[str, np.ndarray], learned: LearnedCategory) -> np.ndarray:
        """Return ids, positions or one-hot columns, 2-D; ColumnError if too many."""
        ids = encoded[""]
        if self.transform_to == "ids":
            return ids[:, None]
        positions = _order_values(self, learned)["positions"].take(ids)
        if self.transform_to == "ordinal":
            return positions[:, None]
        if (size := learned.num_embeddings - learned.has_unknown) > MAX_ONE_HOT_COLUMNS:
            raise ColumnError(
                f'has {size:,} values, and transform_to="one_hot" makes a column of each, but at most '
                f'{MAX_ONE_HOT_COLUMNS:,}: keep fewer by most_common or min_frequency, use "ordinal" or "ids", or '
                "Preprocessor(sparse_output=True)"
            )
        one_hot = np.zeros((len(ids), size), np.int8)
        known = np.flatnonzero(positions >= 0)
        one_hot[known, positions[known]] = 1
        return one_hot

    def tabulate_sparse(self, ids: np.ndarray, learned: LearnedCategory) -> sparse.csr_matrix | None:
        """Return one-hot columns as a sparse matrix; None unless `transform_to` is "one_hot"."""
        if self.transform_to != "one_hot":
            return None
        from scipy import sparse  # noqa: PLC0415 SciPy is slow to import

        positions = _order_values(self, learned)["positions"].take(ids)
        is_known = positions >= 0
        starts = np.concatenate([[0], np.cumsum(is_known)])
        ones = np.ones(starts[-1], np.int8)
        return sparse.csr_matrix(
            (ones, positions[is_known], starts), (len(ids), learned.num_embeddings - learned.has_unknown)
        )

    def untabulate(self, table: np.ndarray, learned: LearnedCategory) -> np.ndarray:
        """Return ids, 2-D, of the result of `tabulate`; ColumnError for positions out of range."""
        if self.transform_to == "ids":
            return table
        ids: np.ndarray = np.append(_order_values(self, learned)["ids"], 0)  # the last one is for <UNK>
        if self.transform_to == "one_hot":
            return ids[np.where(table.any(axis=1), table.argmax(axis=1), -1)].reshape(-1, 1)
        positions = np.rint(table).astype(np.int64)
        if positions.size and not -1 <= positions.min() <= positions.max() < len(ids) - 1:
            raise ColumnError(f"positions range from -1 to {len(ids) - 2}, and some are outside")
        taken: np.ndarray = ids.take(positions)
        return taken

    def tabulated_names(self, name: str, learned: LearnedCategory) -> list[str]:
        """Return the name, or for one-hot "name_value" for each value."""
        if self.transform_to != "one_hot":
            return [name]
        values = learned.values(_order_values(self, learned)["ids"])
        return [f"{name}_{value}" for value in values.to_pylist()]


def _mask_unknown_labels(parsed: pa.Array, learned: LearnedCategory) -> np.ndarray | None:
    """Return a mask of cells whose label has no id, None if none."""
    unknown = take_by_code(parsed, ~learned.vocabulary.contains(parsed.dictionary), False)
    return unknown if unknown.any() else None


@memoize
def _count_classes(feature: Any, learned: LearnedCategory) -> dict[str, Any]:
    """Return the bin of each id and of unknown labels as "bins", and their training rows as "counts".

    Frequent classes have a bin each, all others share the last one.
    """
    counts, present = learned.vocabulary.frequencies.copy(), learned.rows
    if fills_with_one_value(feature):
        present -= learned.missing
        fill = learned.vocabulary.find_ids(feature.parse_fill(learned.fill_value).dictionary)
        counts[fill[fill >= 0]] -= learned.missing
    bins = choose_bins(counts, len(counts) + 1)
    labels = learned.vocabulary.tokens.take(pa.array(np.argsort(bins[:-1], kind="stable")[: bins[-1]])).to_pylist()
    unknown = max(int(present - counts.sum()), 0)
    binned = np.bincount(bins, np.append(counts, unknown)).astype(np.int64)
    training = TrainingCounts(binned, labels=labels, unknown=unknown, candidates=len(counts))
    return {"bins": bins, "counts": training}


@memoize
def _order_values(feature: Any, learned: LearnedCategory) -> dict[str, np.ndarray]:
    """Return the "ids" in order, and the "positions" of all ids.

    It is `order`, or else the order that the type of the data declares, or the sorted values; hash buckets follow.
    """
    first = int(learned.has_unknown)
    values = learned.vocabulary.tokens.slice(first)
    if feature.order is not None:
        order = np.arange(len(values))
    elif learned.declared_order:
        order = np.argsort(pc.index_in(values, value_set=pa.array(learned.declared_order)).to_numpy(), kind="stable")
    else:
        order = argsort_values(values)
    order = np.append(order, np.arange(len(values), len(values) + learned.buckets))  # buckets come last
    positions = np.full(len(order) + first, -1, np.min_scalar_type(-len(order) - 1))
    positions[order + first] = np.arange(len(order))
    return {"ids": order + first, "positions": positions}


def _cross_columns(columns: Sequence[pa.DictionaryArray]) -> pa.DictionaryArray:
    """Return the cells of columns joined as text, null where all are missing."""
    missing = np.logical_and.reduce([~valid_mask(column) for column in columns])
    codes = np.zeros(len(missing), np.int64)
    dictionaries, codes_by_column = [], []
    for column in columns:
        parts = pc.replace_substring(column.dictionary, "\\", "\\\\")
        parts = pc.replace_substring(parts, SEPARATOR, "\\" + SEPARATOR)
        dictionaries.append(pa.concat_arrays([parts, pa.array([MISSING_PART])]))
        part = column.indices.fill_null(len(parts)).to_numpy()
        codes_by_column.append(part)
        # Encoding again keeps codes below the number of rows, so that any number of columns fits into 64 bits.
        pairs = pa.array(codes * (len(parts) + 1) + part).dictionary_encode()
        codes = pairs.indices.to_numpy().astype(np.int64)
    first = np.zeros(len(pairs.dictionary), np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    texts = [one.take(pa.array(part[first])) for one, part in zip(dictionaries, codes_by_column, strict=True)]
    joined = pc.binary_join_element_wise(*texts, SEPARATOR)
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32), mask=missing), joined)
