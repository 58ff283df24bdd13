"""Rows that are encoded, predicted, written or appended, compared with the rows of the fit in the same pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from daskprep.columns.display import join_names
from daskprep.columns.summaries import Range
from daskprep.errors import CheckError, UnfilledCellError, warn
from daskprep.features.arrays import MIN_CELLS, encode_small_frame
from daskprep.features.base import Contract, Learned, drops_missing
from daskprep.features.checking import memoize
from daskprep.passes.checking import KINDS, CellTally, Finding, compare_tallies, merge_tallies, tally_parsed
from daskprep.passes.encoding import encode_source
from daskprep.passes.engine import MapPartition, PartitionReader, Pass, run_pass
from daskprep.passes.fitting import bind_features
from daskprep.passes.table import Parsed, PartitionCensus, PartitionContext
from daskprep.rows.base import CELL_KINDS
from daskprep.sources import Source

OnFindings = Literal["warn", "raise", "ignore"]


class CountedCells:
    """Counts of cells in memory, which a pass makes besides its results."""

    def __init__(self, features: Mapping[str, Contract], learned: Mapping[str, Any], source: Source) -> None:
        self.features, self.learned, self._counts = features, learned, source.in_memory
        self._parts: list[Mapping[str, CellTally]] = []

    def wrap(self, map_partition: MapPartition) -> MapPartition:
        """Return a function of a partition that also counts its cells."""
        if not self._counts:
            return map_partition

        def call(context: PartitionContext, parsed: Parsed, table: pa.Table) -> Any:
            # Partitions run on several threads, and appending to a list is atomic.
            self._parts.append(tally_parsed(self.features, self.learned, parsed, None))
            return map_partition(context, parsed, table)

        return call

    def warn(self, caller: str) -> None:
        """Warn once about cells that are rarer in the fit."""
        if self._parts:
            warn_about_cells(caller, self.features, self.learned, merge_tallies(self._parts))


def encode_new_rows(
    features: Mapping[str, Contract], learned: Mapping[str, Any], source: Source, inputs: Mapping[str, Contract]
) -> dict[str, Any]:
    """Return the arrays of all features, without targets of an absent label; a lazy target raises when it is computed.

    These are named in a warning. A target with "drop_row" has no replacement, since a write would leave the row out.
    """
    learned = {
        name: state if name in inputs else require_labels(features[name], state)
        for name, state in learned.items()
        if name in features
    }

    def encode(chosen: Mapping[str, Contract]) -> dict[str, Any]:
        if (arrays := encode_small_frame(chosen, learned, source)) is None:
            if not source.in_memory:  # labels are read when the arrays are computed
                defer: Any = partial(partial, targets=chosen.keys() - inputs.keys())
                return encode_source(chosen, learned, source, defer)
            counted = CountedCells(chosen, learned, source)
            arrays = encode_source(chosen, learned, source, counted.wrap)
            counted.warn("encode")
        return arrays

    try:
        return encode(features)
    except UnfilledCellError:
        if features.keys() == inputs.keys():
            raise
    arrays, unlabeled = encode(inputs), []
    for name in features.keys() - inputs.keys():
        try:
            arrays |= encode({name: features[name]})
        except UnfilledCellError:
            unlabeled.append(name)
    names = join_names([f'"{name}"' for name in sorted(unlabeled)], 5)
    warn(
        f"the rows are encoded without {names}: some have no label, and no value replaces it; encode the labeled rows "
        "alone to get their labels"
    )
    return arrays


@memoize
def require_labels(feature: Contract, learned: Learned) -> Learned:
    """Return the state of a target without a fill value."""
    return replace(learned, fill_value=None) if drops_missing(feature) else learned


def warn_about_cells(
    caller: str, features: Mapping[str, Contract], learned: Mapping[str, Any], tallies: Mapping[str, CellTally | str]
) -> None:
    """Warn about columns with many more missing, unreadable or unseen cells than the fit."""
    frequent = {
        name: one
        for name, one in features.items()
        if name in tallies and any(getattr(tallies[name], kind) >= MIN_CELLS for kind in CELL_KINDS)
    }
    described = [
        _describe(features, one)
        for one in compare_tallies(frequent, learned, 0, tallies, ignore=set(KINDS).difference(CELL_KINDS)).findings
        if one.severity == "error" and (one.share or 0) > (one.expected or 0)
        if getattr(tallies[one.feature], one.kind) >= MIN_CELLS
    ]
    if messages := list(dict.fromkeys(described)):  # once if several features read the column
        warn(
            f'{caller}: {"; ".join(messages)}. If columns were read in another way than for the fit, such as "01067" '
            "as 1067, pass their types, as in pandas.read_csv(path, dtype=str); check(rows) shows all differences"
        )


def with_tallies(
    census: Pass, features: Mapping[str, Contract], learned: Mapping[str, Any], on_findings: OnFindings | None
) -> Pass:
    """Return a census with the counts that `review_rows` needs."""

    def take(context: PartitionContext, parsed: Parsed, table: pa.Table) -> PartitionCensus:
        tallies = tally_parsed(features, learned, parsed, None if on_findings is None else "sample")
        taken: PartitionCensus = census.map(context, parsed, table)
        return replace(taken, tallies=tallies)

    return replace(census, map=take)


def review_rows(
    on_findings: OnFindings | None,
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    census: Sequence[PartitionCensus],
) -> dict[str, Any]:
    """Report differences of written rows; return the states.

    None: warn as `encode` does. Otherwise rows are appended: report all findings, and move the ranges of the states.
    CheckError with on_findings="raise".
    """
    tallies = merge_tallies([one.tallies for one in census])
    if on_findings is None:
        kept = {name: feature for name, feature in features.items() if not drops_missing(feature)}
        warn_about_cells("write", kept, learned, tallies)
        return dict(learned)
    inputs = {name: one for name, one in features.items() if name in tallies}
    result = compare_tallies(inputs, learned, sum(one.rows for one in census), tallies)
    if result.findings and on_findings == "raise":
        raise CheckError(f"no rows are appended, since they differ from the rows of the fit: {result}")
    # The account of losses names rows that are left out.
    left_out = [name for name, feature in features.items() if drops_missing(feature)]
    messages = [
        _describe(features, one)
        for one in result.findings
        if one.feature not in left_out or one.kind not in ("missing", "unreadable")
    ]
    if messages and on_findings == "warn":
        warn(
            f"append: the new rows differ from the rows of the fit: {'; '.join(messages)}. Correct the rows; "
            'on_findings="raise" refuses such rows, and on_findings="ignore" ends this warning'
        )
    return _move_ranges(learned, tallies)


def _describe(features: Mapping[str, Contract], finding: Finding) -> str:
    return f'column "{features[finding.feature].reads(finding.feature)[0]}": {finding.text}'


def find_ranges(features: Mapping[str, Contract], learned: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """Return fitted states whose ranges include a source."""
    features = bind_features(features, source)

    def tally(context: PartitionContext, parsed: Parsed, table: pa.Table) -> dict[str, CellTally]:
        return tally_parsed(features, learned, parsed, "sample")

    parts = run_pass(PartitionReader(source), Pass("ranges", tally, features)) if features else [{}]
    return _move_ranges(learned, merge_tallies(parts))


def join_ranges(learned: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return states whose ranges include ranges of other states."""
    edges = {name: getattr(other, "value_edges", None) for name, other in others.items()}
    return _extend(learned, {name: Range(ends[0], ends[-1]) for name, ends in edges.items() if ends})


def _move_ranges(learned: Mapping[str, Any], tallies: Mapping[str, CellTally | str]) -> dict[str, Any]:
    return _extend(learned, {name: one.range for name, one in tallies.items() if isinstance(one, CellTally)})


def _extend(learned: Mapping[str, Any], ranges: Mapping[str, Range]) -> dict[str, Any]:
    """Return states whose first and last edges enclose ranges."""
    moved = dict(learned)
    for name, extent in ranges.items():
        if edges := getattr(learned[name], "value_edges", None):
            ends = min(edges[0], extent.min), max(edges[-1], extent.max)
            if ends != (edges[0], edges[-1]):
                moved[name] = replace(learned[name], value_edges=(ends[0], *edges[1:-1], ends[1]))
    return moved
