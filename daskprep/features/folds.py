"""Folds of rows, by which a feature encodes training rows from others: each row of a source is in one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from daskprep.features.base import Contract
from daskprep.features.surroundings import Rows, ask, planned, told_ahead
from daskprep.features.table import Surroundings, naming, take_census
from daskprep.split import Splitter
from daskprep.split.folds import KFold


def fold_columns(features: Mapping[str, Contract]) -> list[str]:
    """Return the columns that say in which fold a row is, each once."""
    return list(dict.fromkeys(column for folds in _folds_of(features).values() for column in folds.columns))


def tell_folds(rows: Rows, features: Mapping[str, Contract], told: Sequence[Surroundings]) -> list[Surroundings]:
    """Tell every partition the folds of its rows, for each feature that cross-fits.

    Which fold a row is in does not depend on its split, nor on features that drop rows: all rows of the source are in
    one. Where the numbers of rows are known and no column decides, nothing is read.
    """
    plans: dict[str, Any] = {}
    for name, folds in _folds_of(features).items():
        key = str(folds.to_dict())
        if key not in plans:
            with naming(name):
                plans[key] = _planned(rows, folds)
    if not plans:
        return list(told)
    by_feature = {name: plans[str(folds.to_dict())] for name, folds in _folds_of(features).items()}
    return [
        dataclasses.replace(one, cross_fit={name: plan[place] for name, plan in by_feature.items()})
        for place, one in enumerate(told)
    ]


def told_unread(rows: Rows, features: Mapping[str, Contract], split: Splitter | None) -> list[Surroundings] | None:
    """Return what each partition must know before learning if nothing need be read for it, else None."""
    told = told_ahead(rows.source, features, split)
    if _folds_of(features) and (rows.source.row_counts is None or fold_columns(features)):
        return None
    return told and tell_folds(rows, features, told)


def put_in_folds(
    features: Mapping[str, Contract],
    told: Surroundings,
    table: pa.Table,
    columns: dict[str, pa.Array],
    training: np.ndarray,
) -> None:
    """Let completed columns say the fold of each training row, from 1 on, and 0 for rows that are not for training."""
    for name, assignment in told.cross_fit.items():
        if name in columns:
            folds = np.where(training, assignment.assign(table, None).astype(np.int16) + 1, 0)
            columns[name] = features[name]._put_in_folds(columns[name], folds)


def _folds_of(features: Mapping[str, Contract]) -> dict[str, KFold]:
    return {name: folds for name, feature in features.items() if (folds := feature._cross_fit) is not None}


def _planned(rows: Rows, folds: KFold) -> Sequence[Any]:
    census = ask(rows, "folds", functools.partial(take_census, {}, folds), {}, folds.columns)
    return planned(rows, folds, {}, census, "folds")
