"""Summary of a Preprocessor for notebooks: its features and parameters, and the learned state after a fit."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from daskprep.columns.display import (
    Description,
    Markup,
    Row,
    Table,
    bar_chart,
    format_count,
    format_share,
    format_value,
    quote,
    range_chart,
    truncate,
)
from daskprep.columns.parametrized import to_json_value
from daskprep.columns.vocabulary import Vocabulary
from daskprep.errors import DaskprepError
from daskprep.features import Feature, Learned
from daskprep.features.base import drops_missing, fills_with_one_value, keeps_missing, rows_seen
from daskprep.features.binary import LearnedBinary
from daskprep.passes.assignment import check_row_parameters
from daskprep.rows.typed import earlier_values

_MAX_TOKENS, _MAX_BARS = 5, 16
_MAX_VALUE_CHARACTERS = 40

_PLANNED_COLUMNS = ("feature", "type", "parameters")
_LEARNED_COLUMNS = ("rows", "missing", "unreadable", "learned")
_COMMON_FIELDS = frozenset(field.name for field in dataclasses.fields(Learned))
_INTERNAL_FIELDS = _COMMON_FIELDS | {"file_bytes"}  # an estimate for plans, of the path if files are not packed
_FIELD_LABELS = {
    "max_sequence_length": "length", "max_sequence_length_99ptile": "99 % are within", "max_set_size": "largest set",
    "max_timeseries_length": "length", "size": "kept of a row",
}  # fmt: skip


def describe_preprocessor(prep: Any) -> Description:
    """Return the summary of a Preprocessor, or its error."""
    unknown = prep._is_auto and not hasattr(prep, "features_")
    try:
        check_row_parameters(prep.split, prep.balance, prep.fit_on, prep.sample, prep.sample_seed)
        features = {} if unknown else prep._validate_features()
        targets = prep._select_targets(features)
    except DaskprepError as error:  # notebooks would print it with two tracebacks
        return Description(["Preprocessor", str(error)], [])
    learned = getattr(prep, "learned_", {})
    return describe(features, learned, prep.split, prep.balance, targets, to_json_value(prep.sample))


def describe(
    features: Mapping[str, Feature],
    learned: Mapping[str, Learned],
    split: Any = None,
    balance: Any = None,
    targets: Collection[str] = (),
    sample: float | None = None,
) -> Description:
    """Return a summary with a row per feature."""
    states = list(learned.values())
    # Columns with the same cell in each row are left out: the line above has it.
    varies = (
        len({state.rows for state in states}) > 1,
        any(one.missing for one in states),
        any(one.invalid for one in states),
    )
    shown = [number for number, is_shown in enumerate((*varies, bool(learned))) if is_shown]

    def row(name: str) -> Row:
        cells: Row = ("",) * len(_LEARNED_COLUMNS)
        if name in learned:
            text = "; ".join(describe_learned(learned[name]))
            cells = (*make_learned_cells(features[name], learned[name]), text)
        return *_make_plan_cells(name, features[name], is_target=name in targets), *(cells[i] for i in shown)

    head = (*_PLANNED_COLUMNS, *(_LEARNED_COLUMNS[i] for i in shown))
    table = Table(head, features, row, "feature", lambda name: _draw_chart(learned.get(name)))
    return Description(_make_captions(features, learned, split, balance, sample), [table])


def _draw_chart(learned: Learned | None) -> Markup:
    """Return a chart of tokens or of a range, if any."""
    if isinstance(vocabulary := getattr(learned, "vocabulary", None), Vocabulary):
        return bar_chart([int(vocabulary.frequencies[i]) for i in _most_frequent(vocabulary, _MAX_BARS)])
    statistics = [getattr(learned, name, None) for name in ("min", "mean", "max", "std")]
    numbers = [value for value in statistics if isinstance(value, float)]
    return range_chart(*numbers) if len(numbers) == len(statistics) else Markup()


@functools.singledispatch
def describe_learned(learned: Learned) -> list[str]:
    """Return a state as phrases; custom types may register."""
    lines, later = [], earlier_values(type(learned))
    for field in dataclasses.fields(learned):
        value = getattr(learned, field.name)
        name = _FIELD_LABELS.get(field.name, field.name.replace("_", " "))
        if isinstance(value, Vocabulary):
            lines.append(_describe_vocabulary(value))
        elif isinstance(value, Learned):
            lines.append(f"{name}: {', '.join(describe_learned(value))}")
        elif field.name in later and not value:
            continue
        elif isinstance(value, int | float | str) and field.name not in _INTERNAL_FIELDS:
            lines.append(f"{name} {_format_number(value)}")
    return lines


@describe_learned.register
def _(learned: LearnedBinary) -> list[str]:
    if learned.above_zero:
        return ["False: 0 and below", "True: above 0"]
    false, true = map(_format_value, learned.bool2str)
    return [f"False: {false}", f"True: {true}"]


def _make_captions(
    features: Mapping[str, Feature], learned: Mapping[str, Learned], split: Any, balance: Any, sample: float | None
) -> list[str]:
    """Return lines on features, fit, split, balance and sample."""
    fitted = "not fitted"
    if learned:
        fitted = f"learned from {max(state.rows for state in learned.values()):,} rows"
        if not any(state.missing or state.invalid for state in learned.values()):
            fitted += " without missing values"
    lines = [
        f"{format_count(len(features), 'feature')}, {fitted}",
        "no split: all rows are for training" if split is None else f"split: {_format_call(split)}",
    ]
    if balance is not None:
        lines.append(f"balance: {_format_call(balance)}")
    if sample is not None:
        lines.append(f"sample: {f'{sample:,} rows at most' if isinstance(sample, int) else f'{sample:g} of the rows'}")
    return lines


def _format_call(owner: Any) -> str:
    parameters = ((key, value) for key, value in owner.get_params(deep=False).items() if value is not None)
    return f"{type(owner).__name__}({', '.join(f'{key}={_format_value(value)}' for key, value in parameters)})"


def _make_plan_cells(name: str, feature: Feature, *, is_target: bool) -> Row:
    """Return name, type and parameters that differ from defaults."""
    defaults, parameters = type(feature)().get_params(deep=False), feature.get_params(deep=False)
    column = parameters.pop("column")
    title = truncate(name)
    if column is not None:
        title += f" (column {_format_value(column)})"
    changed = [
        f"{key}={_format_value(value)}"
        for key, value in parameters.items()
        if value is not defaults[key] and (type(value) is not type(defaults[key]) or value != defaults[key])
    ]
    return title, feature.kind + ", target" * is_target, ", ".join(changed)


def make_learned_cells(feature: Feature, learned: Learned) -> Row:
    """Return the cells "rows", "missing" and "unreadable"."""
    missing = unreadable = "0"
    if learned.missing:
        percentage = format_share(learned.missing, rows_seen(feature, learned))
        missing = f"{learned.missing:,} ({percentage}), {_describe_missing(feature, learned)}"
    if learned.invalid:
        unreadable = f"{learned.invalid:,}: {', '.join(map(_format_value, learned.invalid_samples))}"
    return f"{learned.rows:,}", missing, unreadable


def _describe_missing(feature: Feature, learned: Learned) -> str:
    """Return the handling of missing values, such as "dropped"."""
    if fills_with_one_value(feature):
        return f"filled with {_format_number(learned.fill_value)}"
    if keeps_missing(feature):
        return "kept as NaN"
    return "dropped" if drops_missing(feature) else f"filled by {feature.missing_value_strategy}"


def _describe_vocabulary(vocabulary: Vocabulary) -> str:
    """Return the size, and frequent tokens with their counts."""
    ids = _most_frequent(vocabulary, _MAX_TOKENS)
    # Tokens are converted one by one, because a vocabulary may have millions.
    top = [f"{_format_value(vocabulary.tokens[int(i)].as_py())} {int(vocabulary.frequencies[i]):,}" for i in ids]
    return f"vocabulary of {len(vocabulary):,}" + (f": {', '.join(top)}" if top else "")


def _most_frequent(vocabulary: Vocabulary, limit: int) -> np.ndarray:
    """Return the ids of the most frequent tokens."""
    counts = np.array(vocabulary.frequencies, np.int64)
    counts[list(vocabulary.specials.ids)] = 0
    ids = np.argsort(-counts, kind="stable")[:limit]
    return ids[counts[ids] > 0]


def _format_number(value: Any) -> str:
    """Return a number with separators, or another value as text."""
    if type(value) not in (int, float):
        return _format_value(value)
    return f"{value:,}" if isinstance(value, int) else format_value(value, _MAX_VALUE_CHARACTERS)


def _format_value(value: Any) -> str:
    """Return a function's name, or a cut literal of a value."""
    if isinstance(value, str):
        return quote(value, _MAX_VALUE_CHARACTERS)
    if callable(value):
        return str(getattr(value, "__name__", type(value).__name__))
    return truncate(repr(value), _MAX_VALUE_CHARACTERS)
