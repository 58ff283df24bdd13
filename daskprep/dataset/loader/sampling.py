"""Oversample and undersample classes in the loader, without rewriting the dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.display import join_names
from daskprep.columns.parametrized import clone
from daskprep.columns.permutation import Integers, make_key, permute
from daskprep.dataset import Split
from daskprep.errors import ConfigError, did_you_mean
from daskprep.rows.base import smallest_uint
from daskprep.sources.balance import Balance
from daskprep.sources.classes import ClassCounts, class_names
from daskprep.storage.checksum import crc32c

_MAX_COUNTS = 2**26  # classes times blocks; each count takes 8 bytes


@dataclass(frozen=True)
class Sampling:
    """Exact numbers of rows of each class in every epoch."""

    codes: np.ndarray  # class of each row, from 0, usually one or two bytes
    targets: Integers  # rows of each class in an epoch
    starts: Integers  # first row of each block, and the end of the last block
    seed: int  # of the choice of rows

    @cached_property
    def _counts(self) -> Integers:
        """Rows on disk by block and class."""
        blocks = np.split(self.codes, self.starts[1:-1])
        return np.array([np.bincount(block, minlength=len(self.targets)) for block in blocks], np.int64)

    @cached_property
    def _quotas(self) -> Integers:
        """Rows yielded by block and class."""
        ends = np.cumsum(self._counts, axis=0)
        # Differences of rounded cumulative shares, so that the quotas of a class add up to its target.
        borders = ends * self.targets // np.maximum(ends[-1], 1)
        return np.diff(borders, axis=0, prepend=0)

    @property
    def sizes(self) -> Integers:
        """Rows that each block yields in an epoch."""
        return self._quotas.sum(axis=1)

    @property
    def digest(self) -> str:
        """Digest of a sampling, for states of a loader."""
        return f"{crc32c(self.codes, self.targets):08x}"

    def rows(self, block: int, epoch: int) -> Integers:
        """Return the ascending indices of the rows of a block to yield in an epoch; some may be repeated."""
        codes = self.codes[self.starts[block] : self.starts[block + 1]]
        repeats = np.zeros(len(codes), np.int64)
        for code in np.flatnonzero(self._counts[block]).tolist():
            members = np.flatnonzero(codes == code)
            each, more = divmod(int(self._quotas[block, code]), len(members))
            key = make_key(self.seed, "sampling", epoch, block, code)
            repeats[members] = each + (permute(np.arange(len(members)), len(members), key) < more)
        return np.repeat(np.arange(len(codes)), repeats)


def make_sampling(
    split: Split, balance: Any, weights: Mapping[str, Mapping[Any, float]] | None, seed: int
) -> Sampling | None:
    """Return the sampling for `balance` or `weights`, by classes; None for neither, ConfigError for both."""
    if balance is None and weights is None:
        return None
    if balance is not None and weights is not None:
        raise ConfigError("pass balance or weights, not both: each of them sets how often rows of a class are yielded")
    if balance is not None:
        if not isinstance(balance, Balance):
            raise ConfigError(f"balance={balance!r}: expected Oversample(...) or Undersample(...)")
        balance.validate()
        column = balance.column
    else:
        column = _parse_weighted_column(weights)
    if column not in split.columns or split.shape(column):
        scalars = [name for name in split.columns if not split.shape(name)]
        raise ConfigError(
            f'rows can be sampled only by the classes of an output with one value per row, which "{column}" is not.'
            f"{did_you_mean(column, scalars)} Outputs with one value are: {', '.join(scalars)}"
        )
    ids, codes, sizes = np.unique(split.read([column])[column], return_inverse=True, return_counts=True)
    if len(ids) * split.layout.blocks(split.name) > _MAX_COUNTS:
        raise ConfigError(
            f'"{column}" has {len(ids):,} classes, too many to count in each block: balance outputs with few values'
        )
    decoded = split.dataset.decode({column: ids})[column].pipe(pa.array, from_pandas=True)
    if pa.types.is_boolean(decoded.type):
        decoded = pc.if_else(decoded, "True", "False")
    labels = class_names(decoded)
    totals = ClassCounts(labels, sizes)
    if balance is None:
        targets = _weight_counts(totals, column, (weights or {})[column])
    else:
        counts = balance.to_dict()["counts"]
        counts = counts and [(_format_label(value), rows) for value, rows in counts]
        targets = clone(balance).set_params(counts=counts).targets(totals)
    if not targets.sum():
        raise ConfigError(f'no row would be yielded: every class of "{column}" has a weight of 0')
    return Sampling(codes.astype(smallest_uint(len(ids))), targets, split.layout.starts(split.name), seed)


def _format_label(value: Any) -> Any:
    """Return a label in its decoded form: booleans become text."""
    return str(value) if isinstance(value, bool | np.bool_) else value


def _parse_weighted_column(weights: Any) -> str:
    """Return the one output in `weights`, else ConfigError."""
    if not isinstance(weights, Mapping) or len(weights) != 1 or not isinstance(next(iter(weights.values())), Mapping):
        raise ConfigError(f'weights={weights!r}: expected classes of one output, such as {{"sold": {{"yes": 3.0}}}}')
    return str(next(iter(weights)))


def _weight_counts(totals: ClassCounts, column: str, weights: Mapping[Any, float]) -> Integers:
    """Return the rows of each class: its count times its weight, by default 1; ConfigError for no class."""
    known = totals.classes.to_pylist()
    targets = totals.counts.copy()
    for value, weight in weights.items():
        name = class_names(pa.array([_format_label(value)]))[0].as_py()
        if name not in known:
            hint = did_you_mean(name, known) or f" Classes are: {join_names(known, 20)}"
            raise ConfigError(f'weights: "{column}" has no class {value!r}.{hint}')
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < float("inf"):
            raise ConfigError(f"weights: {value!r} has the weight {weight!r}: expected a number from 0")
        class_index = known.index(name)
        targets[class_index] = round(totals.counts[class_index] * weight)
    return targets
