"""Count what is missing, unreadable and unseen in rows that were not learned from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from daskprep.features.base import Contract, Learned
from daskprep.features.cells import by_code
from daskprep.features.fitting import located
from daskprep.features.missing import valid_mask
from daskprep.features.sequence import Sequence
from daskprep.features.surroundings import Rows, ask
from daskprep.features.table import Parsed, Surroundings, naming
from daskprep.features.tokens import token_lists
from daskprep.serving.base import KINDS
from daskprep.sources import Source
from daskprep.vocabulary import Vocabulary


def count_cells(features: Mapping[str, Contract], learned: Mapping[str, Any], source: Source) -> pd.DataFrame:
    """Return a row of counts for each feature, in one pass over the partitions of a source."""
    features = located(features, source)
    parts = ask(Rows(source), "cells", functools.partial(_count, features, dict(learned)), features)
    rows = sum(count for count, _ in parts)
    counts = [[rows, *(sum(part[name][i] for _, part in parts) for i in range(3))] for name in features]
    return pd.DataFrame(counts, pd.Index(features, dtype=object), ["rows", *KINDS], dtype=np.int64)


def rows_by_kind(
    features: Mapping[str, Contract], learned: Mapping[str, Any], source: Source
) -> dict[str, dict[str, list[int]]]:
    """Return for each feature the numbers of the rows whose cells are missing, unreadable and unseen."""
    parts = ask(Rows(source), "cells", functools.partial(cell_masks, features, dict(learned)), features)
    joined = {name: map(np.concatenate, zip(*(part[name] for part in parts), strict=True)) for name in features}
    return {
        name: {kind: np.flatnonzero(mask).tolist() for kind, mask in zip(KINDS, masks, strict=True)}
        for name, masks in joined.items()
    }


def _count(
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    told: Surroundings,
    parsed: Parsed,
    table: pa.Table,
) -> tuple[int, dict[str, tuple[int, ...]]]:
    masks = cell_masks(features, learned, told, parsed, table)
    return parsed.rows, {name: tuple(map(np.count_nonzero, one)) for name, one in masks.items()}


def cell_masks(
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    told: Surroundings,
    parsed: Parsed,
    table: pa.Table,
) -> dict[str, tuple[np.ndarray, ...]]:
    """Return for each feature which cells of a partition are missing, unreadable and unseen."""
    del told, table
    found: dict[str, tuple[np.ndarray, ...]] = {}
    for name, feature in features.items():
        column = parsed.columns.pop(name)
        with naming(name):
            known = learned[name].recognize(column)
        present = valid_mask(known)
        unreadable = valid_mask(column) & ~present
        if name in parsed.unreadable:
            unreadable[parsed.unreadable[name].rows] = True
        found[name] = ~present, unreadable, _unseen(feature, known, learned[name]) & present
    return found


def _unseen(feature: Contract, parsed: pa.Array, learned: Learned) -> np.ndarray:
    odd = np.zeros(len(parsed), bool)
    for output in feature.outputs:
        vocabulary = getattr(learned.of_output(output), "vocabulary", None)
        if isinstance(vocabulary, Vocabulary) and getattr(feature, "hash_buckets", None) is None:
            holds = vocabulary.holds
            if isinstance(feature, Sequence):
                holds = functools.partial(feature.knows, learned=learned.of_output(output), output=output)
            odd |= _rows_beyond(holds, parsed.field(output[1:]) if output else parsed)
    return odd


def _rows_beyond(holds: Callable[[pa.Array], np.ndarray], parsed: pa.Array) -> np.ndarray:
    if pa.types.is_dictionary(parsed.type):
        return ~by_code(parsed, holds(parsed.dictionary), True)
    lists = token_lists(parsed)
    before = np.concatenate([[0], np.cumsum(~holds(lists.values)[lists.codes])])
    some: np.ndarray = before[lists.rows[1:]] > before[lists.rows[:-1]]
    return some
