"""Type inference: one pass over the partitions for facts, a guess for each column, encodings for a kind of model."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.display import Description, Table, format_count, format_share, truncate
from daskprep.columns.summaries.column_facts import ColumnFacts
from daskprep.columns.summaries.quantiles import MAX_BUCKETS
from daskprep.dataset.options import Redundant, Style
from daskprep.errors import ColumnError, ConfigError, did_you_mean
from daskprep.extensions.column_types.column_facts import column_facts
from daskprep.extensions.column_types.guess import CODE_PATTERN, Guess, mostly_match, skip, suggest_size
from daskprep.extensions.column_types.redundant import REDUNDANT, find_redundant
from daskprep.extensions.column_types.rules import guess_feature, guess_target
from daskprep.features import Binary, Category, Date, Feature, Number, TargetEncoding, Text, TextComponents
from daskprep.features.notation import guess_and_parse
from daskprep.features.target_encoding import MAX_CLASSES
from daskprep.passes.engine import PartitionReader, Pass, begin_stage, run_pass
from daskprep.passes.table import Parsed, PartitionContext
from daskprep.rows.numbers import Normalization
from daskprep.sources import Rows, Source, as_source
from daskprep.sources.arrow_types import class_column
from daskprep.sources.opening import SPLIT, get_splits
from daskprep.sources.partitions import Workers, on_workers
from daskprep.sources.partitions.progress import Progress

STYLES: dict[Style, str] = {"network": "networks", "linear": "linear models", "trees": "trees"}

# Distinct numbers, from which on bins resolve finer differences than a network does without them.
_MANY_VALUES = 100
# Rows, from which on a network has examples of each bin.
_MANY_ROWS = 5_000
# Pieces of a number that a linear model may follow in raw or transformed units.
_BINS_LINEAR = 8
# Labels, up to which one-hot columns, or splits of a tree, are feasible.
_FEW_LABELS = 50
# Labels, from which on a split by their means separates more than a split by their ids.
_MIN_LABELS = 3
# Rows of a value, below which its mean says more than an embedding.
_RARE = 20
# Rows for each direction of texts; trees overfit more directions.
_ROWS_PER_DIRECTION, _MIN_DIRECTIONS = 50, 4
# Codes rarely have four letters in a row.
_WORD = r"\p{L}{4}"
# Asymmetry of quantiles: 0 for uniform and normal distributions, 0.56 for exponential ones.
_SKEWED = 0.4
# Distance from the median in units of the 5 % to 95 % range; a million normal numbers reach 1.5.
_FAR = 3.0
_FREQUENT = 0.01  # share of all cells with one value
# Share of all cells with one value, from which on a quantile transform would spread that value over several quantiles.
_SPIKE = 0.05
_CURVES = ("yeo_johnson", "quantile_normal", "log1p")
_IMPUTING_STRATEGIES = ("fill_with_mean", "fill_with_median", "fill_with_mode", "ffill", "bfill")
_DIRECTIONS = "leading directions of n-grams of characters"


class EncodingTarget(NamedTuple):
    """A target whose means can encode categories, and its type."""

    column: str
    target_type: Literal["number", "class"]


def find_encoding_target(targets: Mapping[str, tuple[Guess, ColumnFacts]]) -> EncodingTarget | None:
    """Return the first target that has a mean, a plain number or a class; None if there is none."""
    for name, (guess, facts) in targets.items():
        if isinstance(guess.feature, Number) and facts.numbers == facts.usable and not facts.null_texts:
            return EncodingTarget(name, "number")
        are_few = facts.distinct.count <= MAX_CLASSES
        if isinstance(guess.feature, Binary | Category) and are_few and not facts.null_texts:
            return EncodingTarget(name, "class")
    return None


def apply_style(guess: Guess, facts: ColumnFacts, style: Style, target: EncodingTarget | None) -> Guess:
    """Return the guess with normalization, encoding and missing indicator for a style of model, and the reason."""
    feature, notes = guess.feature, [guess.reason]
    if type(feature) is Number:
        notes.append(f"for {STYLES[style]}: {_encode_number(feature, facts, style, has_missing=guess.has_missing)}")
    elif type(feature) is Category:
        feature, why = _encode_category(feature, facts, style, target)
        notes.append(f"for {STYLES[style]}: {why}")
    elif type(feature) is Text:
        feature = TextComponents(size=_count_directions(facts))
        notes.append(f"for {STYLES[style]}: {_DIRECTIONS}")
    elif type(feature) is Date and style != "trees":
        notes.append(f"for {STYLES[style]}: {_encode_date(feature, facts, style)}")
    is_imputed = guess.has_missing and getattr(feature, "missing_value_strategy", None) in _IMPUTING_STRATEGIES
    if feature is not None and is_imputed and style != "trees":
        feature.missing_indicator = True
        notes.append("an indicator marks missing values")
    return guess._replace(feature=feature, reason="; ".join(notes))


def _encode_number(feature: Number, facts: ColumnFacts, style: Style, *, has_missing: bool) -> str:
    """Set the parameters of a number; return the reason."""
    if style == "trees":
        feature.normalization = None
        feature.missing_value_strategy = "keep"
        return "unscaled, since only the order of numbers matters; missing values stay NaN"
    shape = _classify_shape(facts)
    feature.normalization = shape.network if style == "network" else shape.linear
    if shape is not _EVEN and has_missing:
        feature.missing_value_strategy = "fill_with_median"
    if feature.normalization in ("zscore", "log1p"):  # others bound numbers beyond the fitted range
        feature.clip_quantiles = [0.0, 1.0]
    reason = shape.reason
    suits = facts.rows >= _MANY_ROWS if style == "network" else shape.linear not in ("zscore", "robust")
    if suits and facts.distinct.count >= _MANY_VALUES:
        feature.encoding = "piecewise_linear"
        feature.bins = feature.bins if style == "network" else _BINS_LINEAR
        reason += ", piecewise linear, since it has many values"
    if (sentinels := facts.sentinels) and (other := _classify_shape(facts, sentinels)) is not shape:
        without = other.network if style == "network" else other.linear
        marks = " and ".join(f"{number:.0f}" for number in sentinels)
        reason += f', or normalization="{without}" once null_values lists {marks}'
    return reason


def _encode_date(feature: Date, facts: ColumnFacts, style: Style) -> str:
    """Set the parts of a date that are of the scale of z-scores, from its sampled values; return the reason."""
    dates = feature.parse(pa.array(facts.distinct.texts)).drop_null()
    years = np.sort(pc.year(dates).to_numpy()) if len(dates) else np.array([2000])
    low, middle, high = years[[len(years) // 20, len(years) // 2, -1 - len(years) // 20]]
    has_times = pc.any(pc.not_equal(pc.floor_temporal(dates, unit="day"), dates)).as_py()
    # Three harmonics of the weekday are worth a column for each day; a network bends the circle itself.
    feature.cyclic = {"weekday": 3 if style == "linear" else 1, "day_of_year": 2, **({"hour": 3} if has_times else {})}
    waves = f"sines and cosines of {', '.join(feature.cyclic)}"
    if max(years[-1] - middle, middle - years[0]) > _FAR * (high - low + 1):
        outlier = years[-1] if years[-1] - middle > middle - years[0] else years[0]
        return f"{waves}; no years since a date, because the year {outlier:04} is far from all others"
    feature.since, feature.since_unit = f"{middle:04}-01-01", "years"
    return f"{waves}, and years since {feature.since}, near the middle"


class _Shape(NamedTuple):
    """Normalizations for a shape of distribution, and the reason."""

    network: Normalization
    linear: Normalization
    reason: str


_NORMAL = "normalized to a normal shape, since"
_EVEN = _Shape("zscore", "zscore", "z-scores, since the tails are short")
_ONE_VALUE = _Shape("zscore", "zscore", "z-scores, since half of the rows or more have one value")
_EVENTS = _Shape(
    "quantile_normal", "quantile_normal", f"{_NORMAL} half of the rows or more have one value and tails are long"
)
_COUNTS = _Shape("log1p", "log1p", "logarithms, since half of the rows or more have one value")
_LOPSIDED = _Shape("quantile_normal", "yeo_johnson", f"{_NORMAL} it is skewed")
_SPIKED = _Shape("yeo_johnson", "yeo_johnson", "a power transform, since it is skewed and one value is frequent")
_TAILED = _Shape("robust", "robust", "scaled by quartiles and smoothly clipped, since tails are long")


def _classify_shape(facts: ColumnFacts, sentinels: Sequence[float] = ()) -> _Shape:
    """Return the shape of the distribution of sampled numbers, without `sentinels`."""
    texts, total = facts.distinct.texts, facts.distinct.total
    counts, span = facts.distinct.counts[: len(texts)], facts.range
    numbers = guess_and_parse(texts, counts)[1].to_numpy(zero_copy_only=False)
    if sentinels:
        numbers, span = np.where(np.isin(numbers, sentinels), np.nan, numbers), facts.range_without_sentinels
        total -= sum(facts.sentinel_counts[number] for number in sentinels)
        counts = np.where(np.isnan(numbers), 0, counts)
    order = np.argsort(numbers, kind="stable")[: int(np.isfinite(numbers).sum())]
    if not len(order):
        return _EVEN
    # A sampled rare value represents all rare values; a frequent value represents itself, or was not sampled.
    weights = np.where(counts > _FREQUENT * total, 1.0, facts.distinct.count / len(texts))
    unsampled = total - float((counts * weights).sum())
    mostly_one = 2 * max(counts.max(), unsampled) >= total
    if mostly_one and min(numbers[order[0]], span.min) >= 0:
        return _COUNTS
    if mostly_one and unsampled < counts.max() and len(order) > 1:
        weights[counts.argmax()] = 0.0  # the other values decide
    spiked = facts.distinct.count > MAX_BUCKETS and max(counts[numbers != 0].max(), unsampled) > _SPIKE * total
    numbers, below = numbers[order], np.cumsum((counts * weights)[order])
    low, middle, high = (float(numbers[np.searchsorted(below, quantile * below[-1])]) for quantile in (0.05, 0.5, 0.95))
    longest = max(max(numbers[-1], span.max) - middle, middle - min(numbers[0], span.min))
    is_far = longest > _FAR * (high - low)
    if mostly_one:
        return _EVENTS if is_far else _ONE_VALUE
    if abs((high - middle) - (middle - low)) > _SKEWED * (high - low):
        return _SPIKED if spiked else _LOPSIDED
    return _TAILED if is_far else _EVEN


def _encode_category(
    feature: Category, facts: ColumnFacts, style: Style, target: EncodingTarget | None
) -> tuple[Category | TargetEncoding, str]:
    """Return ids, ordinals, one-hot columns or a TargetEncoding for a category in a style, and the reason."""
    values = facts.distinct.count
    if style == "network" and (values <= _FEW_LABELS or feature.order or not target or _have_many_rows(facts)):
        return feature, "ids for an embedding"
    if style == "linear" and values <= _FEW_LABELS:
        feature.transform_to = "one_hot"
        return feature, "a column for each value"
    if values <= _FEW_LABELS or feature.order is not None:
        feature.transform_to = "ordinal"
        return feature, "positions in order"
    if target is not None:
        encoding = _encode_means(target, null_values=feature.null_values)
        return encoding, f'the mean of "{target.column}" for each value, since it has many'
    if style == "trees":
        encoding = TargetEncoding(encoding="count", null_values=feature.null_values)
        return encoding, "how often each value occurs, since it has many; name targets to encode by their means"
    feature.transform_to, feature.most_common = "one_hot", _FEW_LABELS
    covered = format_share(int(np.sort(facts.distinct.counts)[-_FEW_LABELS:].sum()), facts.usable)
    why = f"columns for the {_FEW_LABELS} most frequent values, {covered} of cells"
    return feature, f"{why}; name targets to encode by their means"


def _encode_means(target: EncodingTarget, **options: Any) -> TargetEncoding:
    return TargetEncoding(target=target.column, target_type=target.target_type, **options)


def _have_many_rows(facts: ColumnFacts) -> bool:
    """Return whether values have rows for an embedding each."""
    return facts.usable >= _RARE * facts.distinct.count


def _count_directions(facts: ColumnFacts) -> int:
    """Return the directions of texts that rows suffice for."""
    return max(_MIN_DIRECTIONS, min(facts.usable // _ROWS_PER_DIRECTION, TextComponents().size))


def propose_second(
    name: str, guess: Guess, styled: Guess, facts: ColumnFacts, style: Style, target: EncodingTarget | None
) -> dict[str, Guess]:
    """Return a second feature by name: z-scores of a number, or means, components or frequent ids of a category."""
    feature, network, values = guess.feature, style == "network", facts.distinct.count
    options: dict[str, Any]
    if style == "linear" and type(styled.feature) is Number and styled.feature.normalization in _CURVES:
        options = {"column": name, "normalization": "zscore", "clip_quantiles": [0.0, 1.0]}
        plain = {"encoding": None, "bins": Number().bins, "missing_indicator": False}
        scaled = Number(**styled.feature.get_params() | options | plain)
        return {f"{name}_scaled": Guess(scaled, "z-scores, by which a linear model also follows straight lines")}
    if type(feature) is not Category or feature.order:
        return {}
    options = {"column": name, "null_values": feature.null_values}
    if style == "trees" and target is not None and _MIN_LABELS <= values <= _FEW_LABELS:
        reason = f'the mean of "{target.column}" for each value, by which one split separates several'
        return {f"{name}_mean": Guess(_encode_means(target, **options), reason)}
    if values <= _FEW_LABELS or (network and _have_many_rows(facts)):
        return {}
    if mostly_match(facts, _WORD, 0.5) and not mostly_match(facts, CODE_PATTERN):
        reason = f"{_DIRECTIONS}, which spellings and names share"
        return {f"{name}_components": Guess(TextComponents(size=_count_directions(facts), **options), reason)}
    if not isinstance(styled.feature, TargetEncoding) or facts.distinct.counts.max() < _RARE:
        return {}
    options |= {"min_frequency": _RARE}
    if not network:
        options |= {"most_common": _FEW_LABELS, "transform_to": "one_hot" if style == "linear" else "ordinal"}
    reason = f"values of {_RARE} rows or more, which differ in more than their means"
    return {f"{name}_frequent": Guess(Category(**options), reason)}


def _free_name(name: str, taken: Container[str]) -> str:
    """Return the name, or the first free one of name_2, name_3."""
    names = (f"{name}_{number}" for number in itertools.count(2))
    return next(one for one in itertools.chain([name], names) if one not in taken)


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


def infer_features(
    frame: Rows,
    *,
    targets: str | Iterable[str] | None = None,
    style: Style | None = None,
    redundant: Redundant = "skip",
    workers: Workers = None,
    progress: bool | None = None,
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
    redundant : {"skip", "keep"}
        Whether to leave out columns that repeat a target or another column: equal values in every row, or as with
        "education" and "education_num", one label for each label of the other.
    workers : int, "threads" or None
        Number of processes of this machine that are started for the call; "threads" of this process. None: one process
        per core if the call then ends sooner. A Dask client or scheduler that is set is used instead.
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
    price   number   numbers from 1.5 to 40 (read from text): 3 distinct values in 4 rows, 25.0 % missing
    sold    binary   booleans: 2 distinct values in 4 rows
    shop    skipped  constant: 'Oslo' in every row
    """
    target_names = [targets] if isinstance(targets, str) else list(targets or ())
    with on_workers(workers, frame), Progress(progress) as shown:
        excluded = {SPLIT: "contains the split of each row"} if get_splits(frame) else None
        return infer_source(as_source(frame), target_names, excluded, style, redundant, progress=shown)


def infer_source(
    source: Source,
    targets: Sequence[str] = (),
    excluded: Mapping[str, str] | None = None,
    style: Style | None = None,
    redundant: Redundant = "skip",
    *,
    progress: Progress,
) -> InferredFeatures:
    """Guess a feature for every column of a source.

    Columns `excluded` are skipped for the reasons in it. ConfigError for unknown options; ColumnError for missing or
    skipped targets, or without a usable column.
    """
    if style is not None and style not in STYLES:
        raise ConfigError(
            f"style must be one of {', '.join(STYLES)} or None, not {style!r}.{did_you_mean(style, STYLES)}"
        )
    if redundant not in REDUNDANT:
        raise ConfigError(f"redundant must be one of {', '.join(REDUNDANT)}, not {redundant!r}")
    source.require(targets)
    skipped = {name: why for name, why in (excluded or {}).items() if name in source.columns}
    skipped |= _find_unreadable(source, [name for name in source.columns if name not in skipped])
    columns = [name for name in source.columns if name not in skipped]
    facts = _collect_facts(source, columns, progress)
    guesses = {name: suggest_size(guess_feature(name, facts[name]), facts[name], source.folders) for name in columns}
    for name in targets:
        guesses[name] = _as_target(name, guess_target(name, facts[name]) if name in facts else skip(skipped[name]))
    if redundant == "skip":
        start = functools.partial(begin_stage, progress, "comparing columns", source)
        guesses |= find_redundant(guesses, facts, targets, source, start)
    if style is not None:
        target = find_encoding_target({name: (guesses[name], facts[name]) for name in targets})
        inputs = [name for name in guesses if name not in targets]
        for name in inputs:
            styled = apply_style(guesses[name], facts[name], style, target)
            second = propose_second(name, guesses[name], styled, facts[name], style, target)
            guesses[name] = styled
            guesses |= {_free_name(other, {*source.columns, *guesses}): guess for other, guess in second.items()}
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
    """Return the facts of columns from one pass over all rows."""
    if not columns:
        return {}
    advance = begin_stage(progress, "guessing types", source)
    work = Pass("types", _partition_facts, columns=columns, merge=_merge, finish=lambda _, parts: _merge(parts))
    facts: dict[str, ColumnFacts]
    _, facts = run_pass(PartitionReader(source), work, advance=advance)
    return facts


def _partition_facts(context: PartitionContext, parsed: Parsed, table: pa.Table) -> tuple[int, dict[str, ColumnFacts]]:
    del context
    return parsed.rows, {name: column_facts(class_column(table, name)) for name in table.column_names}


def _find_unreadable(source: Source, columns: Sequence[str]) -> dict[str, str]:
    """Return by column the reason why it cannot be read; columns that can be read are left out."""
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
    """Return the guess for a target, changed to drop rows without it and not to normalize; or ColumnError."""
    if guess.feature is None:
        raise ColumnError(
            f'column "{name}" cannot be a target: {guess.reason}; name its feature yourself, or remove it from targets'
        )
    guess.feature.missing_value_strategy = "drop_row"
    if hasattr(guess.feature, "normalization"):
        guess.feature.normalization = None
    return guess._replace(reason=f"target, {guess.reason}")
