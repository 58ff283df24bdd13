"""Columns that repeat another one: equal values in every row, or one label for each label of the other."""

from __future__ import annotations

import functools
import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.permutation import Uint64Array, mix
from daskprep.columns.summaries.column_facts import ColumnFacts
from daskprep.columns.summaries.quantiles import sum_by_key
from daskprep.columns.summaries.token_counts import STEP, token_hashes
from daskprep.dataset.options import Redundant
from daskprep.extensions.column_types.guess import Guess, skip
from daskprep.features import Binary, Category, Number
from daskprep.features.cells import one_array
from daskprep.passes.engine import PartitionReader, Pass, run_pass
from daskprep.passes.table import Parsed, PartitionContext
from daskprep.sources import Source
from daskprep.sources.arrow_types import class_column
from daskprep.sources.cells import as_text
from daskprep.storage.checkpoint import checkpointable

REDUNDANT: tuple[Redundant, ...] = ("skip", "keep")

# Rows of a label, on average. With fewer, repeated rows, or several rows of one person, may relate any two columns.
_MIN_ROWS_PER_LABEL = 10
# Columns are related if rows in random order would be with probability e**-20 or less.
_CHANCE = 20.0
_MISSING = np.uint64(0)
_merge = functools.partial(functools.reduce, operator.add)


@checkpointable
@dataclass(frozen=True, eq=False)
class ValueRows:
    """Hashes of the distinct values of a column, ascending, and the sum of the hashes of the rows of each."""

    values: np.ndarray
    rows: np.ndarray

    def __add__(self, other: ValueRows) -> ValueRows:
        values = np.concatenate([self.values, other.values])
        return ValueRows(*sum_by_key(values, np.concatenate([self.rows, other.rows])))


def find_redundant(
    guesses: Mapping[str, Guess],
    facts: Mapping[str, ColumnFacts],
    targets: Sequence[str],
    source: Source,
    advance: Callable[[], Callable[[Any], None] | None],
) -> dict[str, Guess]:
    """Return skips for the columns that repeat a target or a more useful column.

    Only columns whose values occur equally often, and have the same range or hashes if they are many, are read once
    more and compared. `advance` starts a stage of the progress bar, and returns the `advance` of the pass.
    """
    by_counts: dict[tuple[bytes, bytes], list[str]] = defaultdict(list)
    for name, guess in guesses.items():
        if guess.feature is not None and name in facts and facts[name].distinct.total == facts[name].usable:
            by_counts[_key(facts[name])].append(name)
    names = [
        name for same in by_counts.values() if len(same) > 1 for name in same if _log_chance(facts[name])[0] < -_CHANCE
    ]
    if not names:
        return {}
    are_exact = {name: facts[name].distinct.is_exact for name in names}
    one_partition = functools.partial(_partition_values, are_exact)
    work = Pass("redundant", one_partition, columns=names, merge=_merge, finish=lambda _, parts: _merge(parts))
    value_rows: dict[str, ValueRows]
    _, value_rows = run_pass(PartitionReader(source), work, advance=advance())
    labels = [name for name in names if are_exact[name] and _are_labels(guesses[name], facts[name])]
    skips: dict[str, Guess] = {}
    equal = _group(names, lambda name: (value_rows[name].values.tobytes(), value_rows[name].rows.tobytes()))
    related = _group(labels, lambda name: np.sort(value_rows[name].rows).tobytes())
    for groups, relation in ((equal, "the same values in every row"), (related, "values correspond one to one")):
        for group in groups:
            texts = [one for one in group if isinstance(guesses[one].feature, Category) and not facts[one].numbers]
            kept = min(group, key=lambda name: (name not in targets, name not in texts))
            why = f'repeats {"the target " * (kept in targets)}"{kept}": {relation}'
            left_out = [name for name in group if name not in (kept, *targets, *skips)]
            skips |= {name: skip(f'{why}; to keep it, use redundant="keep"') for name in left_out}
    return skips


def _key(facts: ColumnFacts) -> tuple[bytes, bytes]:
    """Return the counts of values, and what equal columns of any type have in common if the values are many."""
    counts = np.sort(facts.distinct.counts).tobytes()
    if facts.distinct.is_exact:
        return counts, b""
    if facts.text.cells == facts.usable and not facts.numbers + facts.text.dates:
        return counts, facts.distinct.hashes.tobytes()
    # Text of a float32 has the digits of a float32.
    return counts, np.array([facts.range.min, facts.range.max], np.float32).tobytes()


def _group(names: Iterable[str], key: Callable[[str], Any]) -> Iterator[list[str]]:
    """Yield the lists of several names with equal keys."""
    groups: dict[Any, list[str]] = defaultdict(list)
    for name in names:
        groups[key(name)].append(name)
    return (group for group in groups.values() if len(group) > 1)


def _log_chance(facts: ColumnFacts) -> tuple[float, float]:
    """Return log probabilities that rows in random order equal the column, or map to it one to one."""
    counts = np.append(facts.distinct.counts, facts.rows - facts.usable)
    sizes, occurrences = (numbers.tolist() for numbers in np.unique(counts, return_counts=True))
    orders = sum(times * math.lgamma(size + 1) for size, times in zip(sizes, occurrences, strict=True))
    equal = orders - math.lgamma(sum(map(operator.mul, sizes, occurrences)) + 1)
    return equal, equal + sum(math.lgamma(times + 1) for times in occurrences)


def _are_labels(guess: Guess, facts: ColumnFacts) -> bool:
    """Return whether values are labels or dense integers, and occur often enough to be compared."""
    values = facts.distinct.count
    are_codes = (
        isinstance(guess.feature, Number)
        and facts.integers == facts.usable
        and facts.range.max - facts.range.min < 2 * values
    )
    is_frequent = facts.usable >= _MIN_ROWS_PER_LABEL * values and _log_chance(facts)[1] < -_CHANCE
    return is_frequent and (are_codes or isinstance(guess.feature, Binary | Category))


def _partition_values(
    are_exact: Mapping[str, bool], context: PartitionContext, parsed: Parsed, table: pa.Table
) -> tuple[int, dict[str, ValueRows]]:
    """Return rows and `ValueRows` by column; columns with very many values have a single sum of hashes."""
    first: Uint64Array = np.array([context.number], np.uint64) + STEP
    numbers: Uint64Array = np.arange(parsed.rows).astype(np.uint64) + mix(first)
    rows = mix(numbers)
    value_rows = {}
    for name, is_exact in are_exact.items():
        values, codes = _hash_values(one_array(class_column(table, name)))
        if is_exact:
            sums = np.zeros(len(values), np.uint64)
            np.add.at(sums, codes, rows)
            occurs = sums != 0  # a dictionary may have values that do not
            value_rows[name] = ValueRows(*sum_by_key(values[occurs], sums[occurs]))
        else:
            total = mix(values[codes] + rows).sum(dtype=np.uint64, keepdims=True)
            value_rows[name] = ValueRows(np.zeros(1, np.uint64), total)
    return parsed.rows, value_rows


def _hash_values(cells: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes of distinct values, the last for missing ones, and the position of each cell's value."""
    encoded = cells if pa.types.is_dictionary(cells.type) else cells.dictionary_encode()
    texts = pc.utf8_trim_whitespace(pc.fill_null(as_text(encoded.dictionary), ""))
    hashes = np.where(pc.equal(texts, "").to_numpy(zero_copy_only=False), _MISSING, token_hashes(texts))
    codes = pc.fill_null(encoded.indices.cast(pa.int64()), len(texts)).to_numpy()
    return np.append(hashes, _MISSING), codes
