"""Type inference: one pass over the partitions of a source for facts, then a guess for each column."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from daskprep.column_types.column_facts import column_facts
from daskprep.column_types.guess import Guess, skip, suggest_size
from daskprep.column_types.rules import guess_feature, guess_target
from daskprep.column_types.styles import STYLES, Style, apply_style, find_encoding_target
from daskprep.display.tables import Description, Table
from daskprep.display.words import format_count, truncate
from daskprep.errors import ColumnError, ConfigError, did_you_mean, with_parameter_hints
from daskprep.features import Feature
from daskprep.passes.engine import PartitionReader, Pass, begin_stage, run_pass
from daskprep.passes.table import Parsed, PartitionContext
from daskprep.progress import Progress
from daskprep.sources import Source, as_source
from daskprep.sources.arrow_types import class_column
from daskprep.sources.composed import SPLIT, get_splits
from daskprep.summaries.column_facts import ColumnFacts

_MAX_SHOWN = 5
_merge = functools.partial(functools.reduce, operator.add)
_MAX_NAME_CHARACTERS, _MAX_REASON_CHARACTERS = 40, 200


class InferredFeatures(dict[str, Feature]):
    """A feature for each useful column, in the order of the columns; pass it to a Preprocessor.

    Attributes
    ----------
    reasons : dict of str to str
        Reason for the type of each column.
    skipped : dict of str to str
        Columns that were left out, and why.
    targets : tuple of str
        Names of the targets, the default of a Preprocessor with these features.
    """

    def __init__(
        self,
        features: Mapping[str, Feature],
        reasons: Mapping[str, str],
        skipped: Mapping[str, str],
        targets: Sequence[str] = (),
    ) -> None:
        super().__init__(features)
        self.targets = tuple(targets)
        self.reasons = dict(reasons)
        self.skipped = dict(skipped)

    def __repr__(self) -> str:
        return self._description().text()

    def _repr_html_(self) -> str:
        return self._description().html()

    def _description(self) -> Description:
        """Return a line of counts, and a table of columns with type and reason, skipped ones last."""
        columns = [(name, feature.kind, self.reasons[name]) for name, feature in self.items()]
        columns += [(name, "skipped", reason) for name, reason in self.skipped.items()]
        rows = [
            (truncate(name, _MAX_NAME_CHARACTERS), kind, truncate(why, _MAX_REASON_CHARACTERS))
            for name, kind, why in columns
        ]
        line = f"{format_count(len(self), 'feature')}, {len(self.skipped):,} skipped"
        return Description([line], [Table(("column", "type", "why"), rows, tuple, "column")])


@with_parameter_hints
def infer_features(
    frame: Any, *, targets: str | Iterable[str] | None = None, style: Style | None = None, progress: bool | None = None
) -> InferredFeatures:
    """Guess a feature for every column from all rows.

    Parameters
    ----------
    frame : pandas or Dask DataFrame, Arrow data, path, glob, URL, list of those, or Source
        The data, as for `Preprocessor.fit`. It is read once, partition by partition.
    targets : str or iterable of str, optional
        Columns that a model predicts. Rows with a missing target are dropped, and numeric targets are not normalized.
    style : {"network", "linear", "trees"} or None
        Model that the features are for: proposes normalizations, encodings and missing indicators that suit it. None:
        the defaults of the types.
    progress : bool or None
        Whether to show a progress bar. None: on terminals and in notebooks.

    Returns
    -------
    InferredFeatures
        A mapping of names to features, with `reasons` and the `skipped` columns.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"price": ["1.5", "2", None, "40"], "sold": [True, False, False, True], "shop": "Oslo"})
    >>> infer_features(frame)
    2 features, 1 skipped
    column  type     why
    price   number   numbers from 1.5 to 40, as text: 3 distinct values in 4 rows, 25.0 % missing
    sold    binary   booleans: 2 distinct values in 4 rows
    shop    skipped  constant: 'Oslo' in every row
    """
    target_names = [targets] if isinstance(targets, str) else list(targets or ())
    with Progress(progress) as shown:
        excluded = {SPLIT: "contains the split of each row"} if get_splits(frame) else None
        return infer_source(as_source(frame), target_names, excluded, style, progress=shown)


def infer_source(
    source: Source,
    targets: Sequence[str] = (),
    excluded: Mapping[str, str] | None = None,
    style: Style | None = None,
    *,
    progress: Progress,
) -> InferredFeatures:
    """Guess a feature for every column of a source; `excluded` columns are skipped for the reasons in it."""
    if style is not None and style not in STYLES:
        raise ConfigError(
            f"style must be one of {', '.join(STYLES)} or None, not {style!r}.{did_you_mean(style, STYLES)}"
        )
    source.require(targets)
    skipped = {name: why for name, why in (excluded or {}).items() if name in source.columns}
    skipped |= _find_unreadable(source, [name for name in source.columns if name not in skipped])
    columns = [name for name in source.columns if name not in skipped]
    facts = _collect_facts(source, columns, progress)
    guesses = {name: suggest_size(guess_feature(name, facts[name]), facts[name], source.folders) for name in columns}
    for name in targets:
        guesses[name] = _as_target(name, guess_target(name, facts[name]) if name in facts else skip(skipped[name]))
    if style is not None:
        target = find_encoding_target({name: (guesses[name], facts[name]) for name in targets})
        inputs = [name for name in guesses if name not in targets]
        guesses |= {name: apply_style(guesses[name], facts[name], style, target) for name in inputs}
    features = {name: guess.feature for name, guess in guesses.items() if guess.feature is not None}
    reasons = {name: guesses[name].reason for name in features}
    skipped |= {name: guess.reason for name, guess in guesses.items() if guess.feature is None}
    if not features:
        examples = "; ".join(f'"{name}": {why}' for name, why in list(skipped.items())[:_MAX_SHOWN])
        raise ColumnError(
            f"no usable column ({len(skipped)} skipped{': ' * bool(examples)}{examples}): "
            "name the features yourself, as in Preprocessor({'price': 'number'}), or pass more rows"
        )
    ordered = [name for name in source.columns if name in skipped]
    return InferredFeatures(features, reasons, {name: skipped[name] for name in ordered}, targets)


def _collect_facts(source: Source, columns: Sequence[str], progress: Progress) -> dict[str, ColumnFacts]:
    """Return the facts of columns by name, from all partitions."""
    if not columns:
        return {}
    advance = begin_stage(progress, "guessing types", source)
    work = Pass("types", _partition_facts, columns=columns, merge=_merge, finish=lambda _, parts: _merge(parts))
    facts: dict[str, ColumnFacts] = run_pass(PartitionReader(source), work, advance=advance)
    return facts


def _partition_facts(context: PartitionContext, parsed: Parsed, table: pa.Table) -> tuple[int, dict[str, ColumnFacts]]:
    del context
    return parsed.rows, {name: column_facts(class_column(table, name)) for name in table.column_names}


def _find_unreadable(source: Source, columns: Sequence[str]) -> dict[str, str]:
    """Return the reasons why columns cannot be read, by column."""
    reasons = {}
    for name in columns:
        try:
            source.require([name])
            if source.in_memory:
                source.read(0, [name])
        except ColumnError as error:
            reasons[name] = f"cannot be read: {error}"
    return reasons


def _as_target(name: str, guess: Guess) -> Guess:
    """Return the guess for a target: rows without it are dropped; raise ColumnError if the column was skipped."""
    if guess.feature is None:
        raise ColumnError(
            f'column "{name}" cannot be a target: {guess.reason}; name its feature yourself, or remove it from targets'
        )
    guess.feature.missing_value_strategy = "drop_row"
    if hasattr(guess.feature, "normalization"):
        guess.feature.normalization = None
    return guess._replace(reason=f"target, {guess.reason}")
