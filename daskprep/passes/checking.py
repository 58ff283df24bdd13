"""Compare new rows with the rows of the fit in one pass: counts by feature, and findings."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from daskprep.columns.display import align_columns, format_count, format_number, format_share
from daskprep.columns.kernels import only_where, plain_values
from daskprep.columns.summaries import Range, Summary
from daskprep.columns.summaries.shifts import LARGE_SHIFT, Shift, compare_counts
from daskprep.columns.vocabulary import Vocabulary
from daskprep.errors import CheckError, ColumnError
from daskprep.features.base import Contract, Learned, TrainingCounts, drops_missing, kind_with_article, rows_seen
from daskprep.features.checking import column_error_context
from daskprep.passes.encoding import mask_cells
from daskprep.passes.engine import PartitionReader, Pass, run_pass
from daskprep.passes.fitting import bind_features
from daskprep.passes.table import Parsed, PartitionContext, UnreadableCells, kept_rows, parse_columns, source_columns
from daskprep.rows.base import CELL_KINDS
from daskprep.sources import Source
from daskprep.storage.checkpoint import checkpointable

FORMAT, FORMAT_VERSION = "daskprep-check", 1
Severity = Literal["error", "warning"]
ByBin = Literal["all", "sample"] | None
_MIN_SAMPLE = 1_024
_RARE = 2  # training rows of a value that another sample may well lack
KINDS = ("column", "type", *CELL_KINDS, "range", "values", "hours", "rows")  # of findings
_MONTH, _DECADE = 31 * 86_400, 3_653 * 86_400  # seconds


@dataclass(frozen=True)
class Finding:
    """Difference between new rows and the rows of the fit.

    Attributes
    ----------
    severity : {"error", "warning"}
        "error": it is large, with a population stability index above 0.2. "warning": it is small, but no chance.
    kind : str
        "column", "type", "missing", "unreadable", "unseen", "range", "values" or "hours"; "rows": there are none.
    feature : str
        Name of the feature; "" for the kind "rows".
    text : str
        What differs.
    share : float or None
        Share of the new rows that the text is about; None if a column is missing or of another type.
    expected : float or None
        Their share in the fit.
    psi : float or None
        Population stability index.
    p_value : float or None
        Upper bound of the probability of such a difference between two samples of the same rows.
    """

    severity: Severity
    kind: str
    feature: str
    text: str
    share: float | None = None
    expected: float | None = None
    psi: float | None = None
    p_value: float | None = None


class Unchecked(NamedTuple):
    """Kind of finding that a fitted state does not allow."""

    kind: str
    feature: str


@dataclass(frozen=True)
class CheckResult:
    """Result of `Preprocessor.check`.

    Attributes
    ----------
    rows : int
        Number of new rows.
    findings : tuple of Finding
        Differences from the rows of the fit, errors first, in the order of features.
    unchecked : tuple of Unchecked
        Pairs of a kind of finding and the feature for which it cannot be made.
    """

    rows: int
    findings: tuple[Finding, ...]
    unchecked: tuple[Unchecked, ...]

    def __str__(self) -> str:
        lines = [f"{format_count(len(self.findings), 'finding')} in {format_count(self.rows, 'row')}"]
        lines += align_columns([(one.severity, one.feature, one.text) for one in self.findings])
        if self.unchecked:
            lines.append(f"not checked: {', '.join(f'{kind} of {feature}' for kind, feature in self.unchecked)}")
        return "\n".join(lines)

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values with the schema docs/check.schema.json."""
        unchecked = [one._asdict() for one in self.unchecked]
        findings = [asdict(one) for one in self.findings]
        head = {"format": FORMAT, "format_version": FORMAT_VERSION, "rows": self.rows}
        return {**head, "findings": findings, "unchecked": unchecked}

    def has(self, severity: Severity) -> bool:
        return any(severity in ("warning", one.severity) for one in self.findings)

    def raise_for(self, severity: Severity) -> None:
        """Raise CheckError for a finding of this severity, or of a higher one."""
        if self.has(severity):
            raise CheckError(f"the new rows differ from the rows of the fit: {self}")


@checkpointable
@dataclass(frozen=True)
class CellTally(Summary):
    """Counts of the cells of a feature, by kind and by bin."""

    rows: int
    missing: int
    unreadable: int
    unseen: int
    bins: np.ndarray | None  # of all `_training_counts`, concatenated; None if there are none
    range: Range  # of values outside the range of the fit


def compare_tallies(
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    rows: int,
    tallies: Mapping[str, CellTally | str],
    absent: Mapping[str, str] = MappingProxyType({}),
    ignore: Collection[str] = (),
) -> CheckResult:
    """Return findings about rows, errors first; for a tally that is text, or absent, a finding of its feature."""
    findings: list[Finding] = []
    compared: list[tuple[Finding, Shift]] = []
    unchecked: list[Unchecked] = []
    for name, feature in features.items():
        tally = tallies.get(name)
        if isinstance(tally, CellTally):
            compared += (pair for pair in _compare(name, feature, learned[name], tally) if pair[0].kind not in ignore)
            unchecked += (Unchecked(kind, name) for kind in _find_unlearned(feature, learned[name]))
        elif name in absent:
            findings.append(Finding("error", "column", name, f'column "{absent[name]}" is missing'))
        else:
            findings.append(Finding("error", "type", name, str(tally)))
    findings += (finding for finding, shift in compared if shift.exceeds_chance(len(compared)))
    order = list(features)
    findings.sort(key=lambda one: (one.severity, order.index(one.feature)))
    if not rows:
        findings.insert(0, Finding("error", "rows", "", "the new data has no rows"))
    unchecked = [one for one in unchecked if one.kind not in ignore]
    return CheckResult(rows, tuple(one for one in findings if one.kind not in ignore), tuple(unchecked))


def tally_source(
    features: Mapping[str, Contract], learned: Mapping[str, Any], source: Source, *, all_rows: bool = False
) -> tuple[int, dict[str, CellTally | str]]:
    """Return the number of rows, and counts or errors by feature.

    With `all_rows`, the error is raised, and rows that a missing value drops are counted.
    """
    features, states = bind_features(features, source), {name: learned[name] for name in features}
    if all_rows:
        features = {name: one._with_errors() for name, one in features.items()}

    def tally(context: PartitionContext, parsed: Parsed, table: pa.Table) -> tuple[int, dict[str, CellTally | str]]:
        columns, faults = Parsed(table.num_rows, {}, {}), {}
        for name, feature in features.items():
            try:
                one = parse_columns({name: feature}, table)
            except ColumnError as error:
                if all_rows:
                    raise
                faults[name] = str(error)
            else:
                columns.columns.update(one.columns)
                columns.unreadable.update(one.unreadable)
                cells = columns.columns[name]
                if all_rows and (decodable := feature._find_decodable(cells)) is not None:
                    columns.columns[name] = only_where(pa.array(decodable), cells)
                    broken = np.flatnonzero(~decodable)
                    columns.unreadable[name] = UnreadableCells(broken, pa.nulls(len(broken), pa.string()))
        readable = {name: feature for name, feature in features.items() if name not in faults}
        tallies = tally_parsed(readable, states, columns, None if all_rows else "all", encodes=all_rows)
        return table.num_rows, {**tallies, **faults}

    parts = run_pass(PartitionReader(source), Pass("check", tally, columns=source_columns(features)))
    return sum(rows for rows, _ in parts), merge_tallies([part for _, part in parts])


def tally_parsed(
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    parsed: Parsed,
    by_bin: ByBin,
    *,
    encodes: bool = False,
) -> dict[str, CellTally]:
    """Return the counts of each feature in a parsed partition.

    With `by_bin`, all cells or a sample are also counted in bins; weights, keys and rows that a missing value drops are
    left out. `encodes` is as for `mask_cells`.
    """
    keep, columns = kept_rows(features, parsed.columns) if by_bin else None, replace(parsed, columns={**parsed.columns})
    return {
        name: _tally_column(name, one, learned[name], columns, keep, by_bin, encodes=encodes)
        for name, one in features.items()
        if by_bin is None or one._is_input
    }


def merge_tallies(parts: Sequence[Mapping[str, CellTally | str]]) -> dict[str, CellTally | str]:
    """Return the sum of counts by feature, or the first error."""
    by_name = {name: [part[name] for part in parts] for name in parts[0]}
    return {
        name: next((one for one in own if isinstance(one, str)), None) or functools.reduce(operator.add, own)
        for name, own in by_name.items()
    }


def _tally_column(
    name: str,
    feature: Contract,
    learned: Learned,
    parsed: Parsed,
    keep: np.ndarray | None,
    by_bin: ByBin,
    *,
    encodes: bool,
) -> CellTally:
    """Return the counts of the rows in `keep`; of all rows for missing cells that drop them."""
    readable, *masks = mask_cells(name, feature, learned, parsed, encodes=encodes)
    if keep is not None:
        if not drops_missing(
            feature
        ):  # the fit counts missing cells in all rows, because dropped rows belong to no split
            masks = [mask & keep for mask in masks]
        readable = readable.filter(pa.array(keep))
    rows = len(readable) if keep is None or not drops_missing(feature) else len(keep)
    missing, unreadable, unseen = (int(np.count_nonzero(mask)) for mask in masks)
    bins, extent = None, Range()
    if by_bin and (training := feature._training_counts(learned)):
        with column_error_context(name):
            counts = feature._count_by_bin(_sample(readable, by_bin).drop_null(), learned)
            bins = np.concatenate([counts[kind] for kind in training])
            if training["values"].ordered:
                extent = _find_range(feature, readable)
    return CellTally(rows, missing, unreadable, unseen, bins, extent)


def _sample(column: pa.Array, by_bin: ByBin) -> pa.Array:
    """Return a column or a random sample, which takes less time."""
    size = max(_MIN_SAMPLE, len(column) // 64)
    if by_bin == "all" or len(column) <= size:
        return column
    step = len(column) // size
    # A fixed step would select the same cell of each period, such as an hour.
    return column.take(pa.array(np.arange(size) * step + np.random.default_rng(0).integers(step, size=size)))


def _find_range(feature: Contract, column: pa.Array) -> Range:
    """Return the range of a column's values as ordered numbers."""
    present = column.drop_null() if column.null_count else column
    if len(present) and not pa.types.is_list(column.type):
        numbers = plain_values(present.view(pa.int64()) if pa.types.is_timestamp(column.type) else present)
        ends = feature._ordered_values(present.take(pa.array([numbers.argmin(), numbers.argmax()])))
        if np.isfinite(ends).all():
            return Range.of(ends)
    return Range.of(feature._ordered_values(present))


def _compare(name: str, feature: Contract, learned: Learned, tally: CellTally) -> Iterator[tuple[Finding, Shift]]:
    """Yield the difference of each kind, as a finding and a shift."""
    seen, unseen = rows_seen(feature, learned), _count_rare(feature, learned)
    for kind, count, old, text in (
        ("missing", tally.missing - tally.unreadable, learned.missing - learned.invalid, "is missing"),
        ("unreadable", tally.unreadable, learned.invalid, f"cannot be read as {kind_with_article(feature)}"),
        ("unseen", tally.unseen, unseen, "has a category or token that the fit lacks"),
    ):
        if old is not None:
            pair = np.array([old, seen - old]), np.array([count, tally.rows - count])
            shift = compare_counts(*pair, only_more=kind != "missing")
            yield _describe(kind, name, shift, text), shift
    if tally.bins is None:
        return
    training = feature._training_counts(learned)
    parts = np.split(tally.bins, np.cumsum([len(one.counts) for one in training.values()])[:-1])
    for (kind, known), counts in zip(training.items(), parts, strict=True):
        pair = known.counts, counts
        if known.ordered:
            yield _compare_range(name, feature, known, counts, tally.range)
            if feature._follows_time:  # rows of a day or a month are always distributed differently
                continue
            pair = _join_ends(known.counts), _join_ends(counts)
        shift = compare_counts(*pair, ordered=known.ordered, candidates=known.candidates)
        yield _describe(kind, name, shift, _name_bins(feature, known, shift.event)), shift


def _join_ends(counts: np.ndarray) -> np.ndarray:
    """Return counts with values beyond the edges in the end bins."""
    inner = counts[1:-1].copy()
    inner[0] += counts[0]
    inner[-1] += counts[-1]
    return inner


def _compare_range(
    name: str, feature: Contract, known: TrainingCounts, counts: np.ndarray, extent: Range
) -> tuple[Finding, Shift]:
    """Return the share of values outside the range of the fit.

    Later dates are no difference if they follow on the range: the time between is at most its width, or a month. They
    are an error only if one is more than ten years further away.
    """
    low, high = known.edges[0], known.edges[-1]
    above, far_above, width = counts[-1], high, high - low
    if feature._follows_time:
        far_above += _DECADE
        is_apart = counts[-1] == counts.sum() and extent.min - high > max(width, _MONTH)
        above = above if is_apart or extent.max - far_above > width else 0
    outside = np.array([counts[0], above, counts[1:].sum() - above])
    shift = compare_counts(np.array([0, 0, known.counts.sum()]), outside, only_more=True)
    is_far = max(low - extent.min, extent.max - far_above) > width
    edge, furthest, side = ((low, extent.min, "below"), (high, extent.max, "above"))[shift.event]
    text = f"is {side} {_format(feature, edge)}"
    if shift.share:
        text = f"{text}, at {'least' if side == 'below' else 'most'} {_format(feature, furthest)}"
    return replace(_describe("range", name, shift, text), severity="error" if is_far else "warning"), shift


def _describe(kind: str, name: str, shift: Shift, text: str) -> Finding:
    """Return a finding about a shift; `text` is true of the values."""
    share, expected = format_share(shift.share, 1), format_share(shift.expected, 1)
    severity: Severity = "error" if shift.psi > LARGE_SHIFT else "warning"
    text = f"{share} {text}; {expected} in the fit"
    return Finding(severity, kind, name, text, shift.share, shift.expected, shift.psi, shift.p_value)


def _name_bins(feature: Contract, known: TrainingCounts, event: int) -> str:
    """Return a phrase for the values in the bins of `Shift.event`."""
    if not known.ordered:
        return f"is {known.labels[event] if event < len(known.labels) else 'another value'}"
    bins, edges = len(known.edges) - 1, [_format(feature, edge) for edge in known.edges]
    if event == bins - 1:  # with the values beyond the last edge
        return f"is above {edges[event]}"
    if event == 0 or event >= bins:
        return f"is at most {edges[event % bins + 1]}"
    return f"is from {edges[event]} to {edges[event + 1]}"


def _format(feature: Contract, value: float) -> str:
    """Return a number, or a date in seconds since 1970, as text."""
    if not feature._follows_time:
        return format_number(value)
    return str(np.datetime64(int(value), "s")).replace("T", " ").removesuffix(" 00:00:00")


def _count_rare(feature: Contract, learned: Learned) -> int | None:
    """Return rows whose value a sample may lack, or None.

    These are the values outside the vocabulary and the values of one or two training rows. Of tokens, it is a maximum.
    """
    states = [getattr(learned.of_output(output), "vocabulary", None) for output in feature.outputs]
    vocabularies = [one for one in states if isinstance(one, Vocabulary)]
    counts = [one.frequencies[len(one.specials) :] for one in vocabularies]
    rare = sum(int(part[part <= _RARE].sum()) for part in counts)
    if vocabularies and (known := feature._training_counts(learned)):
        return rare + known["values"].unknown
    is_cut = not counts or any(feature._is_cut(len(part)) or not part.any() for part in counts)
    return None if is_cut else min(rare, learned.rows)


def _find_unlearned(feature: Contract, learned: Learned) -> Iterator[str]:
    """Yield the kinds of findings that the state does not allow."""
    if not feature._training_counts(learned):
        yield "values"
    if isinstance(getattr(learned.of_output(feature.outputs[0]), "vocabulary", None), Vocabulary) and (
        _count_rare(feature, learned) is None
    ):
        yield "unseen"
