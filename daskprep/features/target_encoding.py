"""Target, count and frequency encoding: categories as numbers, for linear models and networks."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.parametrized import clone
from daskprep.columns.permutation import Integers
from daskprep.columns.summaries import TokenCounts
from daskprep.columns.summaries.target_sums import DIGIT_BITS, SumTable, ValueSums
from daskprep.columns.vocabulary import SpecialSymbols, Vocabulary
from daskprep.errors import ColumnError
from daskprep.features.base import Loss, SideColumns, Y
from daskprep.features.cells import argsort_values, as_dictionary, as_numbers, one_array, take_by_code
from daskprep.features.feature import Feature, with_parameters
from daskprep.features.tokens import LearnedTokens
from daskprep.features.vector import matrix_to_lists
from daskprep.rows.classes import TargetEncodingParameters, TargetEncodingValues
from daskprep.rows.normalization import MAX_FLOAT32
from daskprep.sources.split import GroupSplit, KFold, Splitter
from daskprep.sources.split.times import TimeSplitter

MAX_CLASSES = 256
_CLASS = "class "  # prefix of the names of sums by class
_MAX_TARGET = 1e150  # the square of larger numbers may overflow a double


@dataclass(frozen=True, kw_only=True)
class LearnedTargetEncoding(TargetEncodingValues, LearnedTokens):
    """Values of training rows and encodings; id 0 is for others."""

    # float32 of shape (1 + folds, values, columns): by all training rows, then by the rows outside each fold.
    encodings: np.ndarray

    def to_state(self) -> dict[str, Any]:
        # As one string, because JSON takes ten times as long for a list of numbers.
        return super().to_state() | {"encodings": base64.b64encode(self.encodings.astype("<f4").tobytes()).decode()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LearnedTargetEncoding:
        """Return the state with a table (1 + folds, values, columns)."""
        encodings = data["encodings"]
        if isinstance(encodings, str):
            encodings = np.frombuffer(base64.b64decode(encodings, validate=True), "<f4").astype(np.float32)
        learned = super().from_dict({**data, "encodings": encodings})
        columns = len(learned.classes) if len(learned.classes) > 2 else 1
        if not len(encodings):
            raise ValueError("encodings are empty")
        return dataclasses.replace(learned, encodings=encodings.reshape(-1, len(learned.vocabulary), columns))

    def redact(self, lost: Mapping[str, Integers]) -> LearnedTargetEncoding:
        """Return the state with lost values encoded like unknown ones."""
        encodings, ids = self.encodings.copy(), lost.get("", np.zeros(0, np.int64))
        encodings[:, ids[ids < len(self.vocabulary)]] = encodings[:, :1]
        return dataclasses.replace(super().redact(lost), encodings=encodings)

    def values_of(self, encoded: np.ndarray, others: int) -> Integers:
        """Return values that may have no training rows but `encoded`.

        Rows are encoded by all training rows, or those outside their fold. Rare values may be returned, too.
        """
        present, counts = np.unique(encoded.reshape(len(encoded), -1)[:, 0], return_counts=True)
        possible = np.sort(self.encodings[..., 0], axis=0)
        positions = np.minimum(np.searchsorted(present, possible), len(present) - 1)
        rows = np.where(present[positions] == possible, counts[positions], 0)
        rows[1:][possible[1:] == possible[:-1]] = 0
        most = rows.sum(axis=0)
        return np.flatnonzero((most > 0) & (self.vocabulary.frequencies <= most + others))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LearnedTargetEncoding) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]


@with_parameters
class TargetEncoding(TargetEncodingParameters, Feature[ValueSums, LearnedTargetEncoding]):
    """Encode a category by the smoothed mean of the target among its rows, or by its frequency.

    In datasets and streams, a training row is encoded by the training rows of other folds only, so that its own target
    does not leak (cross-fitting), as by `fit_transform`. All other rows, and the results of `encode` and `transform`,
    are encoded by all training rows. Values not seen in fit become the mean of the target.

    Parameters
    ----------
    target : str or None
        Column of the target. None: `y` of ``fit(X, y)``. Counts and frequencies need none.
    encoding : {"target", "count", "frequency"}
        "target": the mean of the target among the rows of the value. "count": the number of training rows with the
        value. "frequency": their share. The last two do not depend on the target, and are the same for all rows.
    target_type : {"number", "class"}
        Whether the target is a number (also 0 and 1, or False and True) or a class. With two classes, the result is the
        share of the second in order; with more, a column for each.
    smooth : "auto" or float
        How far the mean of a rare value is moved to the mean of all rows. "auto": empirical Bayes. A number m: as if
        each value had m more rows with the mean of all. The same as in scikit-learn's TargetEncoder.
    folds : int
        Number of folds, 2 to 255. Rows are assigned to folds by row number.
    fold_group : str, False or None
        Column whose groups stay together in a fold. None: the column of a split by groups, if any. False: no column.
    fold_time : str, False or None
        Column of times: folds are in order of time. None: the column of a split by time, if any. False: no column.
    lowercase : bool
        Whether to ignore case.
    null_values : list of str or None
        Texts that mark missing values, such as "?".
    missing_value_strategy : {"fill_with_const", "drop_row"}
        Whether missing values are a separate category, named `fill_value`, or drop the row.
    fill_value : str
        Name of the category of missing values.
    missing_indicator, invalid, column
        As for `Feature`.

    Examples
    --------
    >>> import pandas as pd
    >>> import daskprep as dp
    >>> frame = pd.DataFrame({"city": ["Rome", "Oslo", "Rome", "Oslo", None], "price": [10.0, 20.0, 12.0, 24.0, 9.0]})
    >>> prep = dp.Preprocessor({"city": dp.TargetEncoding(target="price", smooth=0.0, folds=2)}).fit(frame)
    >>> prep.encode(pd.DataFrame({"city": ["Rome", "Oslo", "Bern", None]}))["city"]
    array([11., 22., 15.,  9.], dtype=float32)
    """

    _loss_remedies: ClassVar[Mapping[Loss, str]] = {"unknown": "fit on more rows"}
    kind = "target_encoding"
    semantic_type = "numbers"

    def check(self) -> None:
        if self._cross_fit is not None:
            self._cross_fit.validate()

    def _check_learned(self, learned: LearnedTargetEncoding) -> None:
        """Raise ValueError for another number of folds."""
        learned_folds, folds = len(learned.encodings) - 1, 0 if self._cross_fit is None else self.folds
        if learned_folds != folds:
            raise ValueError(f"the fitted state has {learned_folds} folds, but folds={folds}")

    @property
    def _counts_tokens(self) -> bool:
        return True

    @property
    def _grows(self) -> bool:
        return False

    @property
    def _cross_fit(self) -> KFold | None:
        if self.encoding != "target":
            return None
        group, time = (None if column is False else column for column in (self.fold_group, self.fold_time))
        return KFold(self.folds, group=group, time=time)

    def match_folds_to_split(self, split: Splitter | None) -> tuple[TargetEncoding, str | None]:
        """Return the feature with folds like the split, and a warning."""
        if (folds := self._cross_fit) is None:
            return self, None
        warning = None
        time = split.column if isinstance(split, TimeSplitter) else getattr(split, "time", None)
        group = split.column if isinstance(split, GroupSplit) else getattr(split, "group", None)
        if (time or group) and self.fold_group is None and self.fold_time is None:
            if not isinstance(time, str | None) or getattr(split, "datetime_format", None) is not None:
                warning = (
                    "training rows are cross-fitted in folds at random, although the split is in order of time: set "
                    "fold_time to a column of timestamps, or to False"
                )
            else:
                folds = KFold(self.folds, group=group, time=time)
                parameter = f"fold_{'time' if time else 'group'}"
                warning = (
                    f'training rows are cross-fitted in folds by "{time or group}", like the split; {parameter}=False '
                    "puts them in folds at random"
                )
        folded: TargetEncoding = clone(self)
        folded.fold_group, folded.fold_time = folds.group, folds.time
        return folded, warning

    @property
    def _learning_columns(self) -> list[str]:
        return [] if self._cross_fit is None else [self.target or Y, *self._cross_fit.columns]

    def parse(self, column: pa.Array) -> pa.Array:
        return as_dictionary(column, lowercase=self.lowercase)

    def _add_fold_numbers(self, parsed: pa.Array, folds: np.ndarray) -> pa.Array:
        return pa.StructArray.from_arrays([self._fill_missing(parsed), pa.array(folds)], ["value", "fold"])

    def _fill_missing(self, parsed: pa.DictionaryArray) -> pa.DictionaryArray:
        """Return a column with the fill value for missing cells."""
        if not parsed.null_count:
            return parsed
        values = pa.concat_arrays([parsed.dictionary, self.parse_fill(self.fill_value).dictionary]).dictionary_encode()
        indices = values.indices.take(parsed.indices.fill_null(len(parsed.dictionary)))
        return pa.DictionaryArray.from_arrays(indices, values.dictionary)

    def summarize(self, parsed: pa.Array) -> ValueSums:
        return ValueSums()  # `_summarize_rows` also counts missing cells: a fill value adds nothing

    def _summarize_rows(self, parsed: pa.Array, side_columns: SideColumns) -> ValueSums:
        """Sum rows by value, and its target in each fold."""
        values = self._fill_missing(parsed)
        rows = {"rows": np.ones(len(values))}
        if self.encoding != "target":
            return ValueSums.of(values, np.zeros(len(values), np.uint8), 1, rows)
        assert side_columns.folds is not None
        return ValueSums.of(values, side_columns.folds, self.folds, rows | dict(self._iter_quantities(side_columns)))

    def _iter_quantities(self, side_columns: SideColumns) -> Iterator[tuple[str, np.ndarray]]:
        """Yield quantities to sum by value, such as the target; ColumnError if it is unreadable."""
        column = one_array(side_columns.table[self.target or Y])
        weights = np.ones(len(column)) if side_columns.weights is None else side_columns.weights
        if self.target_type == "class":
            labels = as_dictionary(column)
            yield "n", np.where(labels.is_null().to_numpy(False), np.nan, weights)
            if len(labels.dictionary) > MAX_CLASSES:
                raise ColumnError(self._too_many_classes())
            codes = labels.indices.fill_null(-1).to_numpy()
            for code, label in enumerate(labels.dictionary.to_pylist()):
                yield _CLASS + label, np.where(codes == code, weights, np.nan)
            return
        numbers = as_numbers(column)
        unreadable = pc.and_(column.is_valid(), numbers.is_null())
        if pa.types.is_floating(column.type):  # files may contain NaN for missing numbers
            unreadable = pc.and_(unreadable, pc.is_inf(column))
        target = numbers.to_numpy(zero_copy_only=False)
        if unreadable.true_count or (np.abs(target) > _MAX_TARGET).any():
            shown = column.filter(unreadable)[0] if unreadable.true_count else np.nanmax(np.abs(target))
            raise ColumnError(
                f'target "{self.target or Y}" holds {str(shown)!r}, which cannot be averaged: correct the data, or use '
                'target_type="class"'
            )
        yield "n", np.where(np.isnan(target), np.nan, weights)
        yield "sum", weights * target
        if self.smooth == "auto":
            yield "squares", weights * target * target

    def _too_many_classes(self) -> str:
        return (
            f'target "{self.target or Y}" has more than {MAX_CLASSES} classes, and each adds a column: use '
            'target_type="number"'
        )

    def learn(self, summary: ValueSums) -> LearnedTargetEncoding:
        """Learn means of the target, or counts; ColumnError for too many classes."""
        values, counts, digits = list[pa.Array](), list[np.ndarray](), np.zeros((), np.int64)
        for part in summary.parts():  # all parts together may not fit in memory
            values.append(part.values)
            counts.append(part.sums_by_fold("rows", 0)[:, 0])
            digits = digits + part.digits.sum(axis=0, keepdims=True)
        overall = SumTable(pa.array([""]), part.labels, digits)
        tokens, frequencies = pa.concat_arrays(values), np.concatenate(counts)
        vocabulary = Vocabulary.learn(TokenCounts.of(tokens, frequencies), SpecialSymbols.for_category())
        ids, start = vocabulary.ids(tokens), 0
        if self.encoding != "target":
            table = np.zeros((1, len(vocabulary), 1), np.float32)
            table[0, ids, 0] = frequencies / (frequencies.sum() if self.encoding == "frequency" else 1)
            return LearnedTargetEncoding(vocabulary=vocabulary, encodings=table)
        names = {name.removeprefix(_CLASS) for name, _ in overall.labels if name.startswith(_CLASS)}
        texts = pa.array(sorted(names), pa.string())
        classes = tuple(texts.take(pa.array(argsort_values(texts))).to_pylist())
        if len(classes) > MAX_CLASSES:
            raise ColumnError(self._too_many_classes())
        means = self._encodings(overall, overall, classes)
        table = np.empty((len(means), len(vocabulary), means.shape[2]), np.float32)
        for part in summary.parts():
            stop = start + len(part.values)
            table[:, ids[start:stop]] = self._encodings(part, overall, classes)
            start = stop
        table[:, 0] = means[:, 0]
        return LearnedTargetEncoding(vocabulary=vocabulary, classes=classes, encodings=table)

    def _encodings(self, part: SumTable, overall: SumTable, classes: tuple[str, ...]) -> np.ndarray:
        """Return smoothed means, of shape (1 + folds, values, columns).

        Row 0 is of all training rows, row 1 + f of the rows outside fold f. Columns: one for a number, one for two
        classes (the second), otherwise one per class.
        """
        if self.target_type == "class":
            names = [_CLASS + name for name in (classes[1:] if len(classes) == 2 else classes)] or ["sum"]
            columns = [self._smooth_means(part, overall, name, name, 0, 0) for name in names]
        else:
            unit = max((digit for name, digit in overall.labels if name == "sum"), default=0)
            columns = [self._smooth_means(part, overall, "sum", "squares", unit, 2 * unit)]
        return np.stack(columns, axis=-1).swapaxes(0, 1)

    def _smooth_means(self, part: SumTable, overall: SumTable, *quantity: Any) -> np.ndarray:
        """Return smoothed means of shape (values, 1 + folds)."""
        n, total, mean, deviations = _statistics(part, *quantity)
        all_n, _, all_mean, all_deviations = _statistics(overall, *quantity)
        with np.errstate(invalid="ignore"):
            if self.smooth == "auto":
                prior = all_deviations / all_n * n
                share = prior / (prior + deviations / n)
                encoded = share * mean + (1 - share) * all_mean
            else:
                encoded = (total + self.smooth * all_mean) / (n + self.smooth)
            encoded = np.where(np.isnan(encoded), all_mean, encoded)
            encoded = np.where(np.isnan(encoded), 0.0, encoded)  # where no row has a target
            clipped: np.ndarray = np.clip(np.ldexp(encoded, DIGIT_BITS * quantity[2]), -MAX_FLOAT32, MAX_FLOAT32)
        return clipped.astype(np.float32)

    def encode(self, parsed: pa.Array, learned: LearnedTargetEncoding) -> np.ndarray:
        """Return float32 encodings, by fold if `parsed` has folds."""
        folds: Any = 0
        if pa.types.is_struct(parsed.type):
            folds = parsed.field("fold").to_numpy().astype(np.intp)
            parsed = parsed.field("value")
        ids = take_by_code(parsed, learned.vocabulary.ids(parsed.dictionary), 0)
        encoded: np.ndarray = learned.encodings[folds, ids.astype(np.intp)]
        return encoded if len(learned.classes) > 2 else encoded[:, 0]

    def _configure_as_target(self) -> None:
        """Keep rows with missing values, which have an encoding."""

    def _losses(
        self, parsed: pa.Array, encoded: Mapping[str, np.ndarray], learned: LearnedTargetEncoding
    ) -> Mapping[Loss, np.ndarray]:
        """Return a mask of values without an encoding, if there are any."""
        values = parsed.field("value") if pa.types.is_struct(parsed.type) else parsed
        known = learned.vocabulary.contains(values.dictionary)
        return {} if known.all() else {"unknown": ~take_by_code(values, known, True)}

    def decode(self, encoded: np.ndarray, learned: LearnedTargetEncoding) -> pa.Array:
        return matrix_to_lists(encoded) if encoded.ndim > 1 else pa.array(encoded)

    def tabulated_names(self, name: str, learned: LearnedTargetEncoding) -> list[str]:
        return [f"{name}_{label}" for label in learned.classes] if len(learned.classes) > 2 else [name]


def _statistics(
    part: SumTable, sums: str, squares: str, unit: int, square_unit: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return weights, sums, means and squared deviations by fold."""
    n, total, square = part.sums_by_fold("n", 0), part.sums_by_fold(sums, unit), part.sums_by_fold(squares, square_unit)
    with np.errstate(invalid="ignore"):
        # Where the difference is dominated by rounding, deviations are too small to change a float32 mean.
        return n, total, total / n, np.maximum(square - total * total / n, 0.0)
