"""Feature type for columns of two labels, such as yes and no in many spellings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from daskprep.columns.display import join_names
from daskprep.columns.kernels import plain_values
from daskprep.columns.permutation import Integers
from daskprep.columns.summaries import ColumnSummary, TokenCounts
from daskprep.columns.summaries.column_summary import MAX_SAMPLES
from daskprep.errors import ColumnError, ConfigError, did_you_mean
from daskprep.features.base import (
    Bounds,
    Learned,
    Tensor,
    TrainingCounts,
    add_counts,
    add_deferred_rejects,
    fill_advice,
    fills_with_one_value,
)
from daskprep.features.cells import as_dictionary, as_numbers, mask_texts, take_by_code
from daskprep.features.checking import restorable_type
from daskprep.features.feature import Feature, with_parameters
from daskprep.features.missing import neighbour_strategy
from daskprep.rows.classes import CONVENTIONAL_LABELS, BinaryParameters, BinaryValues, are_conventional

_OPPOSITES = {"yes": "no", "y": "n", "true": "false", "t": "f", "1": "0", "1.0": "0.0"}
_OPPOSITES |= {false: true for true, false in _OPPOSITES.items()} | {"-1": "1", "-1.0": "1.0"}
_MAX_LABELS = 1000  # a column with more distinct labels must consist of numbers
_UNKNOWN = 2


@dataclass(frozen=True, kw_only=True)
class LearnedBinary(BinaryValues, Learned):
    """Fitted state of a binary column."""

    def class_counts(self) -> Integers | None:
        return None if self.counts is None else np.array(self.counts)

    def _sample_texts(self) -> list[str]:
        labels = list(self.str2bool)[:2]
        return [*labels, *(label.upper() for label in labels)]

    def mask_unlearned(self, parsed: pa.Array) -> pa.Array:
        unknown = _map_to_truth(parsed.dictionary, self) == _UNKNOWN
        return mask_texts(parsed, parsed.dictionary.filter(pa.array(unknown))) if unknown.any() else parsed


@with_parameters
class Binary(BinaryParameters, Feature[TokenCounts, LearnedBinary]):
    """Map two labels to False and True, with the same mapping in fit and in transform.

    Conventional spellings are recognized in any case: yes/no, y/n, true/false, t/f, 1/0, 1/-1. For two other labels,
    `positive` is True. If it is None, the true label is the larger number, the opposite of a conventional label, or the
    last label by UTF-8 bytes, and a warning names it. Values with other labels count as missing and are reported.

    Parameters
    ----------
    positive : str, int, float or None
        The label that means True, such as "fraud"; all other labels are False.
    null_values : list of str or None
        Texts that mark missing values, such as "?", in addition to empty text.
    missing_value_strategy : str
        Imputation of missing values: "fill_with_false", "fill_with_true", "fill_with_mode", "fill_with_const" (with
        `fill_value`), "ffill", "bfill" or "drop_row".
    fill_value : bool, number, str or None
        Value that "fill_with_const" imputes for missing values.
    missing_indicator, invalid, column
        As for `Feature`.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskprep import Binary
    >>> frame = pd.DataFrame({"author": ["bot", "human", None, "bot"]})
    >>> Binary(positive="human").fit_transform(frame).ravel()
    array([0, 1, 0, 0], dtype=uint8)
    """

    kind = "binary"
    semantic_type = "classes"
    _edge_case_cells = ("", " 1", "no label")

    def check(self) -> None:
        if isinstance(self.positive, bool):
            raise ConfigError(f'Binary: positive={self.positive} is not a label: pass its text, such as "true"')

    def parse(self, column: pa.Array) -> pa.Array:
        return mask_texts(as_dictionary(column), [""])

    def parse_fill(self, value: object) -> pa.Array:
        return pa.nulls(1, pa.string()).dictionary_encode()  # missing cells are filled with a truth value, not a label

    def cells(self, parsed: pa.Array) -> None:
        return None

    def summarize(self, parsed: pa.Array) -> TokenCounts:
        return TokenCounts.of_cells(parsed)

    def learn(self, summary: TokenCounts) -> LearnedBinary:
        """Learn which of two labels is True, of more numbers each above 0; ColumnError for more labels."""
        tokens, _ = summary.rank()
        if len(tokens) > _MAX_LABELS:
            return self._learn_numbers(tokens)
        labels = tokens.to_pylist()
        conventional = {
            label: CONVENTIONAL_LABELS[label.lower()] for label in labels if label.lower() in CONVENTIONAL_LABELS
        }
        if self.positive is None:
            if len(conventional) < len(labels) and not as_numbers(tokens).null_count:
                return self._learn_numbers(tokens)
            if len(conventional) == len(labels) or len(set(conventional.values())) == 2:
                return _learn_conventional(conventional)
        return self._learn_labels(sorted(labels, key=str.encode), conventional)

    def _learn_numbers(self, tokens: pa.Array) -> LearnedBinary:
        """Return the state: True above 0, or the larger of two; ColumnError for text."""
        numbers = as_numbers(tokens)
        if numbers.null_count:
            raise ColumnError(_describe_too_many_labels(tokens.slice(0, 4).to_pylist(), len(tokens)))
        if len(tokens) > 2:
            return LearnedBinary(bool2str=("0", "1"), above_zero=True)
        low, high = (tokens[int(i)].as_py() for i in (np.argmin(numbers), np.argmax(numbers)))
        if low == high:
            return LearnedBinary(str2bool={low: numbers[0].as_py() > 0}, bool2str=("0", low))
        return LearnedBinary(str2bool={low: False, high: True}, bool2str=(low, high), fallback_true_label=high)

    def _learn_labels(self, labels: list[str], conventional: Mapping[str, bool]) -> LearnedBinary:
        """Return the state with one true label.

        Raise ColumnError for more than two labels without `positive`, and if `positive` is only similar to one.
        """
        true = None if self.positive is None else self.parse(pa.array([self.positive])).dictionary[0].as_py()
        if true is None:
            if len(labels) > 2:
                raise ColumnError(_describe_too_many_labels(labels, len(labels)))
            true = labels[-1]
            if conventional:  # the other label means the opposite of a conventional one
                [(label, is_true)] = conventional.items()
                true = label if is_true else next(candidate for candidate in labels if candidate != label)
        elif true not in labels and (hint := did_you_mean(true, labels)):
            raise ColumnError(
                f'has no label "{true}", the value of positive.{hint} Its labels are: {join_names(labels, 10)}'
            )
        false = [label for label in labels if label != true]
        meaning = {**dict.fromkeys(false, False), true: True}
        return LearnedBinary(
            str2bool=meaning, bool2str=(false[0] if false else "False", true), fallback_true_label=true
        )

    def learn_column(self, summary: ColumnSummary[TokenCounts]) -> LearnedBinary:
        """Learn also fill value, class counts and cell type."""
        learned = self.learn(summary.values)
        tokens, counts = summary.values.rank()
        truth = _map_to_truth(tokens, learned)
        unknown = np.flatnonzero(truth == _UNKNOWN)
        samples = tokens.take(pa.array(unknown[:MAX_SAMPLES])).to_pylist()
        reason = f"is neither {learned.bool2str[0]!r} nor {learned.bool2str[1]!r}"
        summary = add_deferred_rejects(self, summary, int(counts[unknown].sum()), samples, reason)
        truth_counts = np.bincount(truth, counts, 3)
        if self.missing_value_strategy == "fill_with_const":
            fill = self._parse_fill_truth(learned)
        else:
            by_strategy = {"fill_with_false": False, "fill_with_true": True}
            # If only True occurs, as in a column of "yes", a missing cell means False.
            fill = by_strategy.get(self.missing_value_strategy, bool(truth_counts[1] > truth_counts[0] > 0))
        counts = truth_counts[:2].astype(np.int64)
        if fills_with_one_value(self):
            counts[int(fill)] += summary.rows - counts.sum()
        final_counts = None if neighbour_strategy(self.missing_value_strategy) else tuple(counts.tolist())
        type_name = "" if summary.cell_type is None else summary.cell_type.name
        kind = restorable_type(pa.array(learned.bool2str), type_name)
        return add_counts(dataclasses.replace(learned, counts=final_counts, cell_type=kind), summary, fill)

    def _parse_fill_truth(self, learned: LearnedBinary) -> bool:
        """Return the truth of `fill_value`; ConfigError for others."""
        truth = _map_to_truth(self.parse(pa.array([self.fill_value])).dictionary, learned)
        if len(truth) and truth[0] != _UNKNOWN:
            return bool(truth[0])
        meaning = CONVENTIONAL_LABELS.get(str(self.fill_value).lower())
        if meaning is None:
            raise ConfigError(
                f"Binary: fill_value {self.fill_value!r} is neither {learned.bool2str[0]!r} nor {learned.bool2str[1]!r}"
            )
        return meaning

    def _check_learned(self, learned: LearnedBinary) -> None:
        if learned.cell_type is not None and restorable_type(pa.array(learned.bool2str), learned.cell_type) is None:
            raise ValueError(f"the labels {list(learned.bool2str)} are not of type {learned.cell_type}")

    def _training_counts(self, learned: LearnedBinary) -> dict[str, TrainingCounts]:
        """Return the rows of False and True, without imputed cells."""
        if learned.counts is None:
            return {}
        counts = np.array(learned.counts)
        if fills_with_one_value(self):
            counts[int(learned.fill_value or 0)] -= learned.missing
        return {"values": TrainingCounts(counts, labels=learned.bool2str)}

    def _count_by_bin(self, parsed: pa.Array, learned: LearnedBinary) -> dict[str, np.ndarray]:
        truth = _map_to_truth(parsed.dictionary, learned)
        return {"values": np.bincount(truth[plain_values(parsed.indices)], minlength=2)[:2]}

    def encode(self, parsed: pa.Array, learned: LearnedBinary) -> np.ndarray:
        truth = _map_to_truth(parsed.dictionary, learned)
        return take_by_code(parsed, np.where(truth == _UNKNOWN, np.uint8(0), truth), learned.fill_value or 0)

    def expand(self, batch: Tensor, learned: LearnedBinary) -> Tensor:
        return batch.bool()

    def limits(self, learned: LearnedBinary) -> Mapping[str, Bounds]:
        return {"": (0, 1)}

    def decode(self, encoded: np.ndarray, learned: LearnedBinary) -> pa.Array:
        return pa.array(learned.bool2str).take(pa.array(np.asarray(encoded).astype(np.int64)))

    def advice(self, learned: LearnedBinary) -> str | None:
        """Return why another label may be True, or None."""
        if advice := fill_advice(self, learned):
            return advice
        if self.positive is not None and learned.counts is not None and not learned.counts[1]:
            return f"has no label {learned.bool2str[1]!r}, the value of positive, in its training rows: all are False"
        if learned.above_zero:
            return "holds more than two distinct numbers, so numbers above 0 are True and all other numbers False"
        if self.positive is None and learned.fallback_true_label is not None:
            false, true = learned.bool2str
            return (
                f"has labels that do not show which one is True: {true!r} is used as True, and {false!r} as False; "
                f"set the right one, as in Binary(positive={true!r})"
            )
        return None


def _learn_conventional(conventional: Mapping[str, bool]) -> LearnedBinary:
    """Return the state for conventional labels and their meaning."""
    false = next((label for label, meaning in conventional.items() if not meaning), None)
    true = next((label for label, meaning in conventional.items() if meaning), None)
    pair = (false or _opposite(true or "True"), true or _opposite(false or "False"))
    return LearnedBinary(str2bool=dict(conventional), bool2str=pair)


def _opposite(label: str) -> str:
    opposite = _OPPOSITES[label.lower()]
    return opposite.title() if label.istitle() else opposite.upper() if label.isupper() else opposite


def _map_to_truth(labels: pa.Array, learned: LearnedBinary) -> np.ndarray:
    """Return 0, 1 or _UNKNOWN for each distinct label, as uint8."""
    if learned.above_zero:
        numbers = as_numbers(labels).to_numpy(zero_copy_only=False)
        return np.where(np.isnan(numbers), _UNKNOWN, numbers > 0).astype(np.uint8)
    meaning = CONVENTIONAL_LABELS if learned.fallback_true_label is None and are_conventional(learned.str2bool) else {}
    # A Python loop is fast enough for the distinct labels of a partition: columns with many are refused or numbers.
    truth = (learned.str2bool.get(label, meaning.get(label.lower(), _UNKNOWN)) for label in labels.to_pylist())
    return np.fromiter(truth, np.uint8, len(labels))


def _describe_too_many_labels(labels: list[str], count: int) -> str:
    """Return the message for `count` distinct labels."""
    shown = ", ".join(map(repr, labels[:4])) + f", and {count - 4:,} more" * (count > 4)
    return (
        f"has {count:,} distinct labels ({shown}) where a Binary has two: "
        "use Category, or set positive= to the label that is True"
    )
