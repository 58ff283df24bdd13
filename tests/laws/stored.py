"""What a program knows of a dataset on disk: the rows of each part, and which of them are deleted in each version."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import daskprep as dp
from daskprep.dataset import Dataset
from daskprep.features.base import all_outputs, cross_fit_folds, may_drop_rows
from daskprep.sources.split import DROPPED
from daskprep.storage.layout import SPLITS
from tests.laws.laws import REFUSED, TALLY, Arrays, Content, check, equal, join, pick, read
from tests.laws.losses import check_losses
from tests.laws.tables import KEY

Deleted = tuple[frozenset[int], ...]
"""Deleted row ids of each part."""


@dataclass(frozen=True)
class Part:
    """Rows that one write encoded, and what the dataset has of them."""

    frame: pd.DataFrame
    content: Content
    rejected: tuple[int, ...]

    def without(self, rows: frozenset[int]) -> dict[str, Arrays]:
        keep = {name: ~np.isin(arrays["row_id"], list(rows)) for name, arrays in self.content.items()}
        return {name: pick(arrays, keep[name]) for name, arrays in self.content.items()}

    @property
    def row_ids(self) -> list[int]:
        return sorted({*self.rejected, *(int(row) for arrays in self.content.values() for row in arrays["row_id"])})


@dataclass
class Stored:
    """A dataset on disk."""

    path: Path
    prep: dp.Preprocessor
    parts: list[Part]
    is_fitted_here: bool  # by `fit_write` of all of its rows
    compression: str = "lz4"
    is_changed: bool = False  # so that only its own Preprocessor appends to it
    deleted: list[set[int]] = field(default_factory=list)
    versions: dict[int, tuple[int, Deleted] | None] = field(default_factory=dict)
    unpurged: set[str] = field(default_factory=set)  # ids of deleted rows whose bytes may be stored
    older_receipts: set[str] = field(default_factory=set)  # of purges before parts were merged

    def __post_init__(self) -> None:
        self.deleted = [set() for _ in self.parts]
        self.add_version()

    def add_version(self) -> None:
        self.versions[len(self.versions) + 1] = len(self.parts), tuple(map(frozenset, self.deleted))

    def add_part(self, part: Part) -> None:
        self.parts.append(part)
        self.deleted.append(set())
        self.add_version()

    def merge_parts(self, stored_ids: Sequence[set[int]]) -> None:
        """Merge the parts, which have these rows on disk: their row ids follow those of the parts before."""
        first, frames, contents, rejected, deleted = 0, [], list[dict[str, Arrays]](), list[int](), set[int]()
        for part, own, ids in zip(self.parts, self.deleted, stored_ids, strict=True):
            count = max(ids, default=-1) + 1
            content = part.without(frozenset(set(part.row_ids) - ids))
            contents.append({split: {**one, "row_id": one["row_id"] + first} for split, one in content.items()})
            frames.append(part.frame.iloc[:count].set_axis(range(first, first + count)))
            rejected += [row + first for row in part.rejected if row in ids]
            deleted |= {row + first for row in own & ids}
            first += count
        self.parts = [Part(pd.concat(frames), join(contents), tuple(rejected))]
        self.deleted, self.versions = [deleted], dict.fromkeys(self.versions)
        self.add_version()
        self.older_receipts = {file.name for file in self.path.glob("purge-*.json")}

    def expected(self, version: int | None = None) -> dict[str, dict[str, np.ndarray]]:
        """Return the rows of a version; None: of the last one."""
        state = self.versions[version or len(self.versions)]
        assert state is not None
        count, deleted = state
        return join([part.without(rows) for part, rows in zip(self.parts[:count], deleted, strict=False)])

    def open(self, version: int | None = None) -> Dataset:
        return dp.open_dataset(self.path, version=version, trusted=True)

    def own_prep(self) -> dp.Preprocessor:
        return dp.Preprocessor.from_dataset(self.open()) if self.is_changed else self.prep


def as_arrays(encoded: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(array) for name, array in encoded.items()}


def outputs_of(features: Mapping[str, dp.Feature]) -> list[str]:
    return [name + suffix for name, feature in features.items() for suffix in all_outputs(feature)]


def depending_on_others(features: Mapping[str, dp.Feature]) -> dict[str, dp.Feature]:
    """Return the features that encode a row by other rows: they impute from neighbors, or have windows."""
    strategies = ("ffill", "bfill")
    return {
        name: one
        for name, one in features.items()
        if one.missing_value_strategy in strategies or (isinstance(one, dp.Timeseries) and one.is_windowed)
    }


def sample_of(prep: dp.Preprocessor, frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which rows are in the sample."""
    if prep.sample is None:
        return np.ones(len(frame), bool)
    alone = dp.Preprocessor({KEY: "number"}, sample=prep.sample, sample_seed=prep.sample_seed).fit(frame)
    is_sampled: NDArray[np.bool_] = alone.assign(frame)["split"] != DROPPED
    count = min(prep.sample, len(frame)) if prep.sample > 1 else prep.sample * len(frame)
    check("a sample has its share of the rows", abs(is_sampled.sum() - count) < 1, (is_sampled.sum(), count))
    return is_sampled


def check_written(prep: dp.Preprocessor, frame: pd.DataFrame, dataset: Dataset, given: str | None = None) -> Part:
    """Check the rows of a dataset with a single part against the frame that it was written from.

    `given` is the split of all rows, if the write set one.
    """
    content, is_sampled = read(dataset), sample_of(prep, frame)
    assigned = {name: array[is_sampled] for name, array in prep.assign(frame).items()} if given is None else {}
    frame = frame[is_sampled].reset_index(drop=True)
    rejected = [int(row) for row in dataset.rejects()["row_id"].to_pylist()]
    keys = frame[KEY].to_numpy()
    stored = [int(row) for arrays in content.values() for row in arrays["row_id"]]
    for name, arrays in content.items():
        equal("a row has its own number", keys[arrays["row_id"]], arrays[KEY].astype(np.int64))
        others = [set(one["row_id"].tolist()) for other, one in content.items() if other != name]
        check("splits have no row in common", not set(arrays["row_id"].tolist()) & set().union(*others), name)
    check("a row is stored or rejected", not set(stored) & set(rejected), (stored, rejected))
    if not isinstance(prep.balance, dp.Undersample):
        check("no row is lost", sorted({*stored, *rejected}) == list(range(len(frame))), (stored, rejected))
        if not isinstance(prep.balance, dp.Oversample):
            check("no row is repeated", len(set(stored)) == len(stored), stored)
    for name, arrays in itertools.product(prep.targets_, content.values()):
        labels = prep.decode({name: arrays[name]})[name].tolist()
        check("no label is invented", labels == frame[name].iloc[arrays["row_id"]].tolist(), labels)
    for name, arrays in itertools.product(prep.keys, content.values()):
        pairs = {*zip(arrays[name].tolist(), frame[name].iloc[arrays["row_id"]], strict=True)}
        both = [set(one) for one in zip(*pairs, strict=True)]
        check("values have a key each", all(len(one) == len(pairs) for one in both), pairs)
    if rejected:
        check("rows are only rejected for a reason", any(map(may_drop_rows, prep.features_.values())), rejected)
    if given is not None:
        check("rows are in the split that was given", list(content) in ([], [given]), list(content))
    elif not any(map(may_drop_rows, prep.features_.values())):
        _check_assigned(assigned, content)
    _check_encoded(prep, frame, content)
    check_losses(prep, frame, dataset, content)
    return Part(frame, content, tuple(rejected))


def _check_assigned(assigned: Mapping[str, np.ndarray], content: Content) -> None:
    for number, name in enumerate(SPLITS):
        own = np.flatnonzero(assigned["split"] == number)
        rows = np.repeat(own, assigned["repeats"][own])
        found = np.sort(content[name]["row_id"]) if name in content else np.array([], np.int64)
        equal("a dataset has the rows that assign tells", found, rows)
    check("assign knows the splits", set(assigned["split"].tolist()) <= {0, 1, 2, DROPPED})


def _check_encoded(prep: dp.Preprocessor, frame: pd.DataFrame, content: Content) -> None:
    encoded = TALLY.attempt("encode", lambda: as_arrays(prep.encode(frame)))
    if encoded is REFUSED:
        return
    features, apart = prep.features_, within_splits(prep.features_)
    drops = any(map(may_drop_rows, features.values()))
    for split, arrays in content.items():
        trained = cross_fit_folds(features) if split == "train" else ()
        names = outputs_of({name: one for name, one in features.items() if name not in {*trained, *apart}})
        expected = {name: encoded[name][arrays["row_id"]] for name in names if name in encoded}
        equal("a dataset has what encode returns", {name: arrays[name] for name in expected}, expected)
        for name, feature in apart.items() if prep.balance is None and not drops else ():
            if feature.missing_value_strategy == "fill_with_const":
                column = feature.column or name
                seen = [split] if feature.horizon else SPLITS[: SPLITS.index(split) + 1]
                rows = np.concatenate([content[one]["row_id"] for one in seen if one in content])
                is_seen = pd.Series(np.isin(np.arange(len(frame)), rows))
                masked = frame.assign(**{column: frame[column].where(is_seen, None)})
                own = np.asarray(prep.encode(masked)[name])[arrays["row_id"]]
                equal("windows have no rows of later splits, and horizons of no other", arrays[name], own)


def within_splits(features: Mapping[str, dp.Feature]) -> dict[str, dp.Feature]:
    """Return the features whose windows have no rows of some other splits."""
    windowed = {n: one for n, one in features.items() if isinstance(one, dp.Timeseries) and one.is_windowed}
    return {name: one for name, one in windowed.items() if one.across_splits is not True}


def same_rows(law: str, one: Content, other: Content, *, ids: bool = True) -> None:
    """Check that two datasets have equal rows in equal order, with equal row ids if they matter."""
    check(law, one.keys() == other.keys(), (list(one), list(other)))
    for split, arrays in other.items():
        names = [name for name in arrays if ids or name != "row_id"]
        equal(law, {name: one[split][name] for name in names if name in one[split]}, {n: arrays[n] for n in names})


def merged(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([frame.astype(object) for frame in frames], ignore_index=True).astype(frames[0].dtypes.to_dict())
