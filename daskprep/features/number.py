"""Feature type for numbers: normalization, binning, outliers and imputation."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.kernels import MIXED, float_values, null_mask, only_where, plain_values
from daskprep.columns.summaries import ColumnSummary, Moments, Quantiles, Range, Summary, TokenCounts, WeightedMoments
from daskprep.columns.summaries.column_summary import MAX_SAMPLES
from daskprep.columns.summaries.target_sums import TargetSums
from daskprep.errors import ColumnError, ConfigError
from daskprep.features.base import (
    VALUE_BINS,
    Bounds,
    Learned,
    Loss,
    SideColumns,
    Tensor,
    Y,
    add_deferred_rejects,
    check_bins,
    fill_advice,
    keeps_missing,
)
from daskprep.features.bins import TargetColumn, bounded_range, learn_edges, sum_target, tree_edges
from daskprep.features.cells import one_array
from daskprep.features.checking import memoize
from daskprep.features.feature import Feature, with_parameters
from daskprep.features.missing import NeighbourImputer, neighbour_strategy
from daskprep.features.notation import (
    NotationCounts,
    as_thousands,
    count_notations,
    guess_notation,
    has_point_thousands,
    make_parsed_cells,
    parse_column_notation,
    parse_notation,
    parse_or_keep_text,
    parse_strict_notation,
)
from daskprep.features.outliers import NumberImputer, mask_outliers
from daskprep.rows.normalization import MAX_FLOAT32, NORMALIZATIONS
from daskprep.rows.numbers import (
    ENCODINGS,
    MAX_EXACT_FLOAT32,
    NumberParameters,
    NumberValues,
    Values,
    derive_notation,
    find_lossy_numbers,
)

_MAX_FLOAT64 = float(np.finfo(np.float64).max)
_MAX_BINS = 65_536
_NUMBER_LIKE = re.compile("[0-9]|inf|nan", re.IGNORECASE)
_NO_SIDE_COLUMNS = SideColumns(pa.table({}))


@dataclass(frozen=True)
class NumberSummary(Summary):
    """Statistics of plain numbers, and texts without a notation yet."""

    moments: Moments | None
    range: Range
    quantiles: Quantiles
    counts: TokenCounts | None
    targets: TargetSums | None = None
    fractions: int = 0  # numbers that are not integers
    beyond: int = 0  # values beyond float32 that are stored without normalization
    rounded: int = 0  # integers that float32 rounds, stored without normalization
    # Texts that may be numbers in another notation than the plain one.
    written: TokenCounts = field(default_factory=lambda: TokenCounts(pa.string()))
    decimals: NumberSummary | None = None  # ambiguous texts such as "1.234", summarized as 1.234 and as 1234
    thousands: NumberSummary | None = None

    @property
    def count(self) -> int:
        return (self.moments or self.quantiles).count

    def mean(self) -> float:
        assert self.moments is not None
        return self.moments.mean()

    def median(self) -> float:
        return self.quantiles.quantile(0.5)

    def mode(self) -> Any:
        assert self.counts is not None
        return self.counts.top()


@dataclass(frozen=True, kw_only=True)
class LearnedNumber(NumberValues, Learned):
    """Fitted state of a number column; unneeded fields are None."""

    @property
    def num_embeddings(self) -> int:
        """Number of bins, 0 without bins."""
        return 0 if self.edges is None else len(self.edges) - 1

    def mask_unlearned(self, parsed: pa.Array) -> pa.Array:
        """Return cells as doubles, texts by the learned notation; null for other text."""
        if not pa.types.is_struct(parsed.type):
            return parsed
        numbers, ambiguous, texts = parsed.flatten()
        if self.written is None:
            return numbers
        notation, cells = derive_notation(self.written), texts.dictionary_encode()
        if has_point_thousands(notation):
            numbers = pc.if_else(ambiguous, as_thousands(numbers), numbers)
        return pc.coalesce(numbers, parse_strict_notation(cells.dictionary, notation).take(cells.indices))


@with_parameters
class Number(NumberParameters, Feature[NumberSummary, LearnedNumber]):
    """Normalize numbers; statistics use double precision, and the result is float32.

    Numbers in text are parsed. Infinities and text that is not a number count as missing and are reported. Notations
    such as "$1,299.50", "1.299,50 €", "12 %" and "1h 30m" are learned from all rows: one unit, one decimal mark and
    one thousands separator per column. Times and durations become seconds.

    Parameters
    ----------
    normalization : str or None
        "zscore": ``(x - mean) / std`` with the sample standard deviation. "minmax": ``(x - min) / (max - min)``.
        "log1p": ``log(1 + x)``. "iq": ``(x - median) / (q3 - q1)``. "robust": the same, then smoothly clipped to -3
        to 3 by ``x / sqrt(1 + (x / 3) ** 2)``. "quantile_uniform": the empirical CDF of x. "quantile_normal": the
        normal score of the CDF. "yeo_johnson" and "box_cox": a power transform, then a z-score. None: the number
        unchanged. A constant column becomes 0. Numbers beyond the fitted range count as its ends in quantile and power
        transforms; other results grow at most linearly.
    clip_quantiles : sequence of two floats or None
        Clip numbers to these quantiles before normalization, such as (0.01, 0.99).
    encoding : {"bins", "piecewise_linear"} or None
        "bins": the id of a bin. "piecewise_linear": a batch has one value per bin: 1 below the number, 0 above it,
        the fraction in its own bin; the normalized number is stored. None: the normalized number.
    bins : int or sequence of float
        Largest number of bins, or the bin edges in ascending order, in the units of the column.
    bin_strategy : {"quantile", "uniform", "target"}
        "quantile": bins with the same number of training rows. "uniform": bins of the same width. "target": the leaves
        of a decision tree that predicts `target` from the number, with at least 64 training rows each.
    target : str or None
        The column of the target, which new rows need not have. None: `y` of ``fit(X, y)``.
    target_type : {"number", "class"}
        Whether the target is a number or a class.
    outlier_strategy : str or None
        Replacement of values that are further than `outlier_threshold` standard deviations from the mean. Mean and
        standard deviation include the outliers of the training rows.
    outlier_threshold : float
        Distance from the mean, in standard deviations.
    missing_value_strategy : str
        Imputation of missing values: "fill_with_mean", "fill_with_median", "fill_with_mode", "fill_with_const" (with
        `fill_value`), "ffill", "bfill" or "drop_row". "keep": they stay NaN, for models such as gradient-boosted trees.
    fill_value : float
        Value that "fill_with_const" imputes for missing values and outliers. It is included in the statistics.
    null_values : list of str or None
        Texts that mark missing values, such as "?" or "-999".
    written : str or None
        An example of the notation, such as "1.234,5 €", for ambiguous columns. None: learned from the data.
    missing_indicator, invalid, column
        As for `Feature`.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskprep import Number
    >>> frame = pd.DataFrame({"price": ["1", "3", None, "5"]})
    >>> Number(normalization="minmax").fit_transform(frame).ravel()
    array([0. , 0.5, 0.5, 1. ], dtype=float32)
    >>> Number(normalization="minmax", missing_value_strategy="keep").fit_transform(frame).ravel()
    array([0. , 0.5, nan, 1. ], dtype=float32)
    """

    _loss_remedies: ClassVar[Mapping[Loss, str]] = {
        "clipped": 'correct them, or fit normalization="yeo_johnson" to rows with such numbers',
        "rounded": 'use normalization="zscore", or the type "category" if they are ids',
    }
    kind = "number"
    semantic_type = "numbers"
    _edge_case_cells = (" -1.5e-1\n", "no number")

    def check(self) -> None:
        """Raise ConfigError for invalid or contradictory parameters."""
        if self.outlier_strategy == "fill_with_const" and self.fill_value is None:
            raise ConfigError('Number: outlier_strategy "fill_with_const" needs a fill_value')
        if self.written is not None:
            derive_notation(self.written)
        clip = (0.0, 1.0) if self.clip_quantiles is None else tuple(self.clip_quantiles)
        if len(clip) != 2 or not 0.0 <= clip[0] < clip[1] <= 1.0:
            raise ConfigError(f"Number: clip_quantiles={self.clip_quantiles!r}: pass two shares, such as (0.01, 0.99)")
        if self.encoding is not None and keeps_missing(self):
            raise ConfigError(
                f'Number: encoding="{self.encoding}" has no NaN for missing values, so missing_value_strategy must not '
                'be "keep": use "fill_with_median" with missing_indicator=True, or encoding=None'
            )
        edges = self.bins if isinstance(self.bins, Sequence) else (0, 1)
        if not isinstance(self.bins, Sequence) and self.bins > _MAX_BINS:
            raise ConfigError(f"Number: bins={self.bins!r} are too many: use at most {_MAX_BINS:,}")
        if len(edges) < 2 or not all(-_MAX_FLOAT64 <= low < high <= _MAX_FLOAT64 for low, high in pairwise(edges)):
            raise ConfigError(f"Number: bins={self.bins!r}: pass at least two finite edges in ascending order")
        if not self._uses_target_bins and (self.target is not None or self.bin_strategy == "target"):
            raise ConfigError(
                'Number: bin_strategy="target" needs a number of bins and an encoding; other strategies take no target'
            )

    def parse(self, column: pa.Array) -> pa.Array:
        """Return doubles, or structs with texts of unknown notation."""
        if self.written is None:
            return parse_or_keep_text(column)
        return parse_column_notation(column, derive_notation(self.written))

    def _mask_null_values(self, column: pa.ChunkedArray, texts: Set[str]) -> pa.Array:
        """Return cells, null where their text is in `texts`."""
        cells = one_array(column, plain=False)
        kind = cells.type
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        if is_number and not any(map(_NUMBER_LIKE.search, texts)):
            return cells
        masked = super()._mask_null_values(column, texts)
        return cells.take(pa.array(np.arange(len(cells)), mask=null_mask(masked))) if masked.null_count else cells

    def _parse_columns(self, names: Sequence[str], *columns: pa.ChunkedArray) -> pa.Array:
        """Parse a column; in a mixed one, only its texts."""
        cells = one_array(columns[0], plain=False)
        if cells.type != MIXED:
            return super()._parse_columns(names, *columns)
        texts, numbers = cells.flatten()
        parsed = self.parse(only_where(numbers.is_null(), texts))
        if not pa.types.is_struct(parsed.type):
            return pc.coalesce(numbers, parsed)
        parsed_numbers, ambiguous, texts = parsed.flatten()
        return make_parsed_cells(pc.coalesce(numbers, parsed_numbers), ambiguous.fill_null(False), texts)

    def summarize(self, parsed: pa.Array) -> NumberSummary:
        return self._summarize_rows(parsed, _NO_SIDE_COLUMNS)

    @property
    def _uses_target_bins(self) -> bool:
        return self.bin_strategy == "target" and self.encoding is not None and isinstance(self.bins, int)

    @property
    def _learning_columns(self) -> list[str]:
        return [self.target or Y] if self._uses_target_bins else []

    def _summarize_rows(self, parsed: pa.Array, side_columns: SideColumns) -> NumberSummary:
        """Summarize plain and ambiguous numbers, and other texts."""
        numbers, ambiguous, texts = parsed, parsed.slice(0, 0), TokenCounts(pa.string())
        ambiguous_rows, ambiguous_columns = np.zeros(0, np.intp), side_columns
        if pa.types.is_struct(parsed.type):
            numbers, is_ambiguous, text_cells = parsed.flatten()
            texts, is_ambiguous = TokenCounts.of_cells(text_cells), is_ambiguous.fill_null(False)
            mask = is_ambiguous.to_numpy(zero_copy_only=False)
            numbers, ambiguous = numbers.filter(pc.invert(is_ambiguous)), numbers.filter(is_ambiguous)
            ambiguous_rows, side_columns = np.flatnonzero(mask), side_columns.take(np.flatnonzero(~mask))
        ambiguous_columns = ambiguous_columns.take(ambiguous_rows)
        if side_columns.weights is not None and self._needs_moments and texts.total:
            raise ColumnError(
                f"contains {texts.top()!r}, and with weights no notation is learned from the data: pass an "
                f"example, as in Number(written={texts.top()!r}), or correct the data"
            )
        decimals = self._summarize(ambiguous, ambiguous_columns)
        thousands = self._summarize(as_thousands(ambiguous), ambiguous_columns) if len(ambiguous) else decimals
        summary = self._summarize(numbers, side_columns)
        return dataclasses.replace(summary, written=texts, decimals=decimals, thousands=thousands)

    def _summarize(self, numbers: pa.Array, side_columns: SideColumns = _NO_SIDE_COLUMNS) -> NumberSummary:
        """Return a summary of doubles, with moments, counts and targets only if parameters need them."""
        present = numbers.drop_null() if numbers.null_count else numbers
        values = plain_values(present, np.float64)
        moments, weights = None, side_columns.weights
        if self._needs_moments and weights is None:
            moments = Moments.of(values)
        elif self._needs_moments and weights is not None:
            moments = WeightedMoments.of_weighted(numbers.to_numpy(zero_copy_only=False), weights)
        counts = None
        if "fill_with_mode" in (self.missing_value_strategy, self.outlier_strategy):
            counts = TokenCounts.of_cells(present)
        targets = TargetSums() if self._uses_target_bins else None
        target = self.target or Y
        if targets is not None and target in side_columns.table.column_names and len(present):
            key = target, self.target_type
            if key not in side_columns.cache:
                side_columns.cache[key] = TargetColumn.of(
                    side_columns.table[target], by_class=self.target_type == "class"
                )
            targets = sum_target(numbers, side_columns.cache[key])
        quantiles = None if targets is None else targets.buckets
        # `targets.buckets` lacks numbers in rows without a target.
        if quantiles is None or quantiles.count < len(values):
            quantiles = Quantiles.of(values)
        is_integral, extent, beyond, rounded = values == np.floor(values), Range.of(values), 0, 0
        is_transformed = self.normalization or self.outlier_strategy or self.clip_quantiles or self.encoding == "bins"
        if not is_transformed and max(extent.max, -extent.min) > MAX_EXACT_FLOAT32:
            is_beyond = np.abs(values) > MAX_FLOAT32
            is_rounded = is_integral & ~is_beyond & (values != np.where(is_beyond, 0, values).astype(np.float32))
            beyond, rounded = int(np.count_nonzero(is_beyond)), int(np.count_nonzero(is_rounded))
        fractions = len(values) - int(np.count_nonzero(is_integral))
        return NumberSummary(moments, extent, quantiles, counts, targets, fractions, beyond, rounded)

    @property
    def _needs_moments(self) -> bool:
        """Return whether mean or deviation is learned or fills."""
        stores_none = self.encoding == "bins" or not NORMALIZATIONS[self.normalization].needs_moments
        fills = self.missing_value_strategy in ("fill_with_const", "fill_with_median", "fill_with_mode", "keep")
        return not (stores_none and fills and self.outlier_strategy is None)

    def cells(self, parsed: pa.Array) -> None:
        return None

    def learn_fill(self, summary: ColumnSummary[NumberSummary]) -> Any:
        """Return mean, median or mode; ColumnError for no mean."""
        if self.missing_value_strategy == "fill_with_median":
            return summary.values.median()
        if self.missing_value_strategy == "fill_with_mode":
            return summary.values.mode()
        if math.isnan(mean := summary.values.mean()):
            raise ColumnError(
                'has no value with a weight above 0, so "fill_with_mean" cannot learn one: use "fill_with_const" '
                "with a fill_value"
            )
        return mean

    def _learn_fallback(self, summary: ColumnSummary[NumberSummary]) -> float:
        return summary.values.mean()

    def learn(self, summary: NumberSummary) -> LearnedNumber:
        """Learn range, moments, normalization and edges; empty without numbers."""
        if summary.range.empty:
            return LearnedNumber()
        extent, quantiles = summary.range, summary.quantiles
        if self.clip_quantiles is not None:
            extent = bounded_range(quantiles, extent, self.clip_quantiles)
        normalizer = NORMALIZATIONS[self.normalization]
        if self.encoding != "bins":  # with an outlier strategy, small numbers may be replaced, but not all numbers
            normalizer.check_domain(np.array([extent.min if self.outlier_strategy is None else extent.max]))
        state: dict[str, Any] = {"min": extent.min, "max": extent.max, "clipped": summary.beyond or None}
        state["rounded"] = summary.rounded or None
        if summary.moments is not None:
            # The deviation overflows for the smallest and the largest double, and JSON has no infinity.
            std = min(summary.moments.std(ddof=1), _MAX_FLOAT64) if summary.moments.count > 1 else 0.0
            state |= {"mean": summary.moments.mean(), "std": std}
        state |= normalizer.learn(quantiles, extent)
        if self.encoding is not None:
            if summary.targets is not None and isinstance(self.bins, int):
                edges = tree_edges(summary.targets, self.bins, extent)
            else:
                edges = learn_edges(self.bins, self.bin_strategy == "uniform", quantiles, extent)
            # Edges that are equal in the stored units and precision are one, but two remain.
            stored = edges if self.encoding == "bins" else normalizer(state).transform(edges)
            edges = edges[np.append(True, stored[1:] > stored[:-1])]
            state["edges"] = tuple((edges if len(edges) > 1 else edges[[0, 0]]).tolist())
        return LearnedNumber(**state)

    def learn_column(self, summary: ColumnSummary[NumberSummary]) -> LearnedNumber:
        """Learn also notation, cell type and outlier fill."""
        summary, written = self._resolve_notation(summary)
        learned, fill = super().learn_column(summary), None
        if self.outlier_strategy == "fill_with_const":
            fill = self.fill_value
        elif self.outlier_strategy in ("fill_with_mean", "fill_with_mode"):
            fill = learned.mean if self.outlier_strategy == "fill_with_mean" else summary.values.mode()
        edges, counts = summary.values.quantiles.bins(VALUE_BINS, summary.values.range)
        raw_type = None if summary.cell_type is None else summary.cell_type.name
        is_integer = not summary.values.fractions and raw_type in ("integer", "text", "untyped")
        return dataclasses.replace(
            learned,
            written=written,
            cell_type="integer" if is_integer else None,
            outlier_fill_value=fill,
            value_edges=edges or None,
            value_counts=counts or None,
        )

    def _resolve_notation(
        self, summary: ColumnSummary[NumberSummary]
    ) -> tuple[ColumnSummary[NumberSummary], str | None]:
        """Return a summary that includes the numbers in texts, and an example of their notation.

        The example is None if no notation fits. Without texts and ambiguous numbers, it is `written`, and the summary
        is unchanged. Unreadable texts count as missing, or raise RejectedValueError with `invalid="raise"`.
        """
        values, decimals, thousands = summary.values, summary.values.decimals, summary.values.thousands
        assert decimals is not None
        assert thousands is not None
        if not values.written.total and not decimals.count:
            return summary, self.written
        plain = values.count if values.range.min or values.range.max else 0
        notation_counts = NotationCounts(Counter(), plain + decimals.count, values.fractions, decimals.fractions)
        for chunk in itertools.chain.from_iterable(values.written.parts()):
            notation_counts = NotationCounts(*map(operator.add, notation_counts, count_notations(*chunk)))
        guess = guess_notation(notation_counts)
        notation = None if guess is None else derive_notation(guess.example)
        values = values + (decimals if notation is None or not has_point_thousands(notation) else thousands)
        unreadable, samples = 0, list[str]()
        for texts, counts in itertools.chain.from_iterable(values.written.parts()):
            numbers = parse_notation(texts, notation)
            is_unreadable = np.array(numbers.is_null(), bool)
            unreadable += int(counts[is_unreadable].sum())
            samples += texts.filter(pa.array(is_unreadable)).sort().slice(0, MAX_SAMPLES).to_pylist()
            if not is_unreadable.all():
                values = values + self._summarize_repeated(numbers.drop_null(), counts[~is_unreadable])
        summary = add_deferred_rejects(self, summary, unreadable, sorted(set(samples)), "cannot be read as a number")
        return dataclasses.replace(summary, values=values), None if guess is None else guess.example

    def _summarize_repeated(self, numbers: pa.Array, counts: np.ndarray) -> NumberSummary:
        """Summarize distinct numbers that occur `counts` times each."""
        order = np.argsort(counts, kind="stable")
        starts = np.flatnonzero(np.diff(counts[order], prepend=0))
        ordered = np.split(numbers.take(pa.array(order)).to_numpy(), starts[1:])
        parts = (
            self._summarize(pa.array(one)) * int(counts[order[start]])
            for one, start in zip(ordered, starts, strict=True)
        )
        return functools.reduce(operator.add, parts)

    def _ordered_values(self, parsed: pa.Array) -> np.ndarray:
        return plain_values(parsed, np.float64)

    def encode(self, parsed: pa.Array, learned: LearnedNumber) -> np.ndarray:
        """Return encoded numbers, after outliers are replaced."""
        values = float_values(learned.mask_unlearned(parsed))
        fill = learned.outlier_fill_value
        outliers = None if fill is None else mask_outliers(self, values, learned)
        if fill is not None and outliers is not None:
            values = np.where(outliers, fill, values)
        return make_encoding(self, learned).encode(values)

    def _losses(
        self, parsed: pa.Array, encoded: Mapping[str, np.ndarray], learned: LearnedNumber
    ) -> Mapping[Loss, np.ndarray]:
        values = float_values(learned.mask_unlearned(parsed))
        return cast("Mapping[Loss, np.ndarray]", find_lossy_numbers(self, vars(learned), values, encoded[""]))

    def _learned_losses(self, learned: LearnedNumber) -> Mapping[Loss, int]:
        return {"clipped": learned.clipped or 0, "rounded": learned.rounded or 0}

    def _remedy(self, learned: LearnedNumber) -> str:
        if self.written:
            return f"{super()._remedy(learned)}, correct the example in written"
        if learned.written:
            return f"{super()._remedy(learned)}, write all numbers like {learned.written!r}"
        return f'{super()._remedy(learned)}, pass an example as in written="$1,234.5"'

    @property
    def _expands(self) -> bool:
        return self.encoding is not None

    def expand(self, batch: Tensor, learned: LearnedNumber) -> Tensor:
        expanded: Tensor = make_encoding(self, learned).expand(batch)
        return expanded

    def tabulated_names(self, name: str, learned: LearnedNumber) -> list[str]:
        """Return the name, or of bins "name_0", "name_1" and on."""
        if self.encoding != "piecewise_linear":
            return [name]
        return [f"{name}_{i}" for i in range(max(learned.num_embeddings, 1))]

    def tabulate(self, encoded: Mapping[str, np.ndarray], learned: LearnedNumber) -> np.ndarray:
        column = encoded[""]
        expands = self.encoding == "piecewise_linear"
        return np.asarray(make_encoding(self, learned).expand(column) if expands else column[:, None])

    def untabulate(self, table: np.ndarray, learned: LearnedNumber) -> np.ndarray:
        """Return the column; ColumnError for piecewise linear bins."""
        if self.encoding == "piecewise_linear":
            raise ColumnError('encoding="piecewise_linear" has no inverse of transform: use decode(prep.encode(rows))')
        return table

    def limits(self, learned: LearnedNumber) -> Mapping[str, Bounds]:
        return {"": (0, max(learned.num_embeddings, 1) - 1)} if self.encoding == "bins" else {}

    def decode(self, encoded: np.ndarray, learned: LearnedNumber) -> pa.Array:
        return pa.array(make_encoding(self, learned).decode(encoded), from_pandas=keeps_missing(self))

    def advice(self, learned: LearnedNumber) -> str | None:
        """Return why numbers become 0 everywhere, or None."""
        if advice := fill_advice(self, learned):
            return advice
        ends = learned.quantiles or (0.0, 1.0)
        if self.encoding is not None or (make_encoding(self, learned).normalizer.scale and ends[0] < ends[-1]):
            return None
        if self.normalization == "iq" and learned.q1 == learned.q3 and learned.min != learned.max:
            return 'has equal quartiles, so "iq" makes it 0 everywhere: "robust" then scales by half of the range'
        return f'is constant, so normalization "{self.normalization}" makes it 0 everywhere'

    @property
    def imputer(self) -> NeighbourImputer | None:
        strategies = self.missing_value_strategy, self.outlier_strategy
        return NumberImputer(self) if any(map(neighbour_strategy, strategies)) else None

    @property
    def row_filter(self) -> Callable[[pa.Array, LearnedNumber], np.ndarray | None] | None:
        return functools.partial(mask_outliers, self) if self.outlier_strategy == "drop_row" else None

    def _check_learned(self, learned: LearnedNumber) -> None:
        """Raise an error if a value that encoding needs is missing."""
        if learned.edges is not None and len(learned.edges) < 2:
            raise ValueError("expected at least two edges")
        check_bins(learned)
        self.decode(self.encode(pa.array([1.0]), learned), learned)  # fails if a field that is needed is None

    def _to_raw_cell(self, value: Any) -> object:
        if not isinstance(value, dict):
            return value
        return f"{value['number']:.3f}" if value["doubtful"] else value["text"] or value["number"]


@memoize
def make_encoding(feature: Any, learned: LearnedNumber) -> Values:
    """Return the encoding of a feature for a fitted state."""
    return ENCODINGS[feature.encoding](feature, vars(learned))
