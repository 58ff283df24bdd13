"""Say what a Preprocessor plans and what it learned: one table for notebooks, one for terminals."""

from __future__ import annotations

import dataclasses
import functools
import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskprep.features import Feature, Learned
from daskprep.features.binary import LearnedBinary
from daskprep.vocabulary import Vocabulary

__all__ = ["describe_html", "describe_text", "facts"]

_MOST_FEATURES_HTML, _MOST_FEATURES_TEXT = 200, 60
_MOST_TOKENS = 5
# What is longer is cut.
_VALUE_CHARACTERS, _NAME_CHARACTERS, _TEXT_CELL_CHARACTERS = 40, 60, 48

_PLANNED = ("feature", "type", "parameters")
_LEARNED = ("rows", "missing", "unreadable", "learned")
_COMMON = frozenset(field.name for field in dataclasses.fields(Learned))
_NAMES = {
    "max_sequence_length": "length",
    "max_sequence_length_99ptile": "99 % are within",
    "max_set_size": "largest set",
    "max_timeseries_length": "length",
    "size": "kept of a row",
}

# A grey that is seen on white and on black; all other colours are those of the page.
_ROW = "background:transparent;border-bottom:1px solid rgba(128,128,128,0.4)"
_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0;overflow-wrap:anywhere"


def describe_html(
    features: Mapping[str, Feature],
    learned: Mapping[str, Learned],
    split: Any = None,
    balance: Any = None,
) -> str:
    """Return a table in HTML with a row for each feature: what is planned and, once learned, what was found.

    It stands for itself: styles are inline, colours are those of the page, and every value is escaped.
    """
    table = _tabulate(features, learned, _MOST_FEATURES_HTML)
    caption = "<br>".join(map(html.escape, _captions(features, learned, split, balance)))
    rows = ["".join(f'<th scope="col" style="{_CELL}">{name}</th>' for name in table.columns)]
    rows += ["".join(f'<td style="{_CELL}">{html.escape(cell)}</td>' for cell in row) for row in table.rows]
    if table.left_out:
        rows.append(f'<td colspan="{len(table.columns)}" style="{_CELL}">{_left_out(table)}</td>')
    return (
        '<table style="border-collapse:collapse;color:inherit">'
        f'<caption style="caption-side:top;text-align:left;color:inherit">{caption}</caption>'
        + "".join(f'<tr style="{_ROW}">{row}</tr>' for row in rows)
        + "</table>"
    )


def describe_text(
    features: Mapping[str, Feature],
    learned: Mapping[str, Learned],
    split: Any = None,
    balance: Any = None,
) -> str:
    """Return the same as plain text, in columns.

    Examples
    --------
    >>> from daskprep.features import Category, Number
    >>> print(describe_text({"price": Number(normalization="iq"), "city": Category()}, {}))
    2 features, not fitted
    no split: all rows are for training
    feature  type      parameters
    price    number    normalization='iq'
    city     category
    """
    table = _tabulate(features, learned, _MOST_FEATURES_TEXT)
    rows = [
        [*(_cut(cell, _TEXT_CELL_CHARACTERS) for cell in row[:-1]), row[-1]] for row in (table.columns, *table.rows)
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = _captions(features, learned, split, balance)
    for row in rows:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(padded).rstrip())
    return "\n".join([*lines, _left_out(table)] if table.left_out else lines)


@functools.singledispatch
def facts(learned: Learned) -> list[str]:
    """Return what was learned in a few words, piece by piece; a type of one's own may register its own."""
    pieces = []
    for field in dataclasses.fields(learned):
        value = getattr(learned, field.name)
        name = _NAMES.get(field.name, field.name.replace("_", " "))
        if isinstance(value, Vocabulary):
            pieces.append(_describe_vocabulary(value))
        elif isinstance(value, Learned):
            pieces.append(f"{name}: {', '.join(facts(value))}")
        elif isinstance(value, int | float | str) and field.name not in _COMMON:
            pieces.append(f"{name} {_number(value) if not isinstance(value, str) else _value(value)}")
    return pieces


@facts.register
def _(learned: LearnedBinary) -> list[str]:
    if learned.above_zero:
        return ["False: 0 and below", "True: above 0"]
    false, true = map(_value, learned.bool2str)
    return [f"False: {false}", f"True: {true}"]


@dataclass(frozen=True)
class _Table:
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    left_out: int


def _tabulate(features: Mapping[str, Feature], learned: Mapping[str, Learned], limit: int) -> _Table:
    rows = []
    for name in list(features)[:limit]:
        row = _plan_cells(name, features[name])
        rows.append(row + _learned_cells(features[name], learned.get(name)) if learned else row)
    return _Table(_PLANNED + _LEARNED if learned else _PLANNED, rows, max(len(features) - limit, 0))


def _left_out(table: _Table) -> str:
    return f"and {table.left_out:,} more features"


def _captions(features: Mapping[str, Feature], learned: Mapping[str, Learned], split: Any, balance: Any) -> list[str]:
    fitted = "not fitted"
    if learned:
        fitted = f"learned from {max(one.rows for one in learned.values()):,} rows"
    lines = [
        f"{len(features):,} feature{'s' * (len(features) != 1)}, {fitted}",
        "no split: all rows are for training" if split is None else f"split: {_call(split)}",
    ]
    return lines if balance is None else [*lines, f"balance: {_call(balance)}"]


def _call(owner: Any) -> str:
    given = ((key, value) for key, value in _parameters(owner).items() if value is not None)
    return f"{type(owner).__name__}({', '.join(f'{key}={_value(value)}' for key, value in given)})"


def _parameters(owner: Any) -> dict[str, Any]:
    return dict(owner.get_params(deep=False))


def _plan_cells(name: str, feature: Feature) -> tuple[str, ...]:
    defaults, given = _parameters(type(feature)()), _parameters(feature)
    column = given.pop("column")
    title = _printable(_cut(name, _NAME_CHARACTERS))
    if column is not None:
        title += f" (column {_value(column)})"
    changed = [f"{key}={_value(value)}" for key, value in given.items() if not _same(value, defaults[key])]
    return title, feature.kind, ", ".join(changed)


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


def _learned_cells(feature: Feature, learned: Learned | None) -> tuple[str, ...]:
    if learned is None:
        return ("",) * len(_LEARNED)
    missing = unreadable = "0"
    if learned.missing:
        share = _share(learned.missing, feature.rows_seen(learned))
        missing = f"{learned.missing:,} ({share}), {_remedy(feature, learned)}"
    if learned.invalid:
        unreadable = f"{learned.invalid:,}: {', '.join(map(_value, learned.invalid_samples))}"
    return f"{learned.rows:,}", missing, unreadable, "; ".join(facts(learned))


def _remedy(feature: Feature, learned: Learned) -> str:
    if learned.fill_value is not None:
        return f"filled with {_value(learned.fill_value)}"
    return "dropped" if feature.drops_rows else f"filled by {feature.missing_value_strategy}"


def _share(part: int, whole: int) -> str:
    share = part / max(whole, 1)
    return "under 0.1 %" if share < 0.001 else f"{100 * share:.1f} %"


def _describe_vocabulary(vocabulary: Vocabulary) -> str:
    ids = _most_frequent(vocabulary)
    # Tokens are taken one by one: a vocabulary may have millions.
    top = [f"{_value(vocabulary.tokens[int(i)].as_py())} {int(vocabulary.frequencies[i]):,}" for i in ids]
    return f"vocabulary of {len(vocabulary):,}" + (f": {', '.join(top)}" if top else "")


def _most_frequent(vocabulary: Vocabulary) -> np.ndarray:
    """Return the ids of the most frequent tokens that are no special symbols, ties by id.

    A vocabulary that came ready, with a tokenizer or from a file, is not in the order of frequency.
    """
    counts = np.array(vocabulary.frequencies, np.int64)
    counts[list(vocabulary.specials.ids)] = 0
    limit = min(_MOST_TOKENS, int(np.count_nonzero(counts)))
    if not limit:
        return np.zeros(0, np.int64)
    least = np.partition(counts, len(counts) - limit)[len(counts) - limit]
    above = np.flatnonzero(counts > least)
    above = above[np.argsort(-counts[above], kind="stable")]
    return np.concatenate([above, np.flatnonzero(counts == least)[: limit - len(above)]])


# -- values as text, of bounded length


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _value(value: Any) -> str:
    if isinstance(value, str):
        return repr(_cut(value, _VALUE_CHARACTERS))
    if callable(value):
        return str(getattr(value, "__name__", type(value).__name__))
    return _printable(_cut(repr(value), _VALUE_CHARACTERS))


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
