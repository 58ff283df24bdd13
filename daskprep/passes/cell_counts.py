"""Count missing, unreadable and unseen cells of new rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from daskprep.features.base import Contract, Learned
from daskprep.features.cells import take_by_code
from daskprep.features.checking import column_error_context
from daskprep.features.missing import valid_mask
from daskprep.features.sequence import Sequence
from daskprep.features.tokens import token_lists
from daskprep.passes.engine import PartitionReader, Pass, run_pass
from daskprep.passes.fitting import bind_features
from daskprep.passes.table import Parsed, PartitionContext
from daskprep.sources import Source
from daskprep.steps.base import CELL_KINDS
from daskprep.vocabulary import Vocabulary


def count_cells(features: Mapping[str, Contract], learned: Mapping[str, Any], source: Source) -> pd.DataFrame:
    """Return a frame with a row of counts for each feature, in one pass over the partitions of a source."""
    features, learned = bind_features(features, source), dict(learned)

    def count(context: PartitionContext, parsed: Parsed, table: pa.Table) -> dict[str, list[Any]]:
        masks = find_cell_masks(features, learned, context, parsed, table)
        return {name: [parsed.rows, *map(np.count_nonzero, kinds)] for name, kinds in masks.items()}

    parts = run_pass(PartitionReader(source), Pass("cells", count, features))
    counts = [np.sum([part[name] for part in parts], axis=0) for name in features]
    return pd.DataFrame(counts, pd.Index(features, dtype=object), ["rows", *CELL_KINDS], dtype=np.int64)


def rows_by_kind(
    features: Mapping[str, Contract], learned: Mapping[str, Any], source: Source
) -> dict[str, dict[str, list[int]]]:
    """Return the row numbers with missing, unreadable and unseen cells of each feature, by kind."""
    work = Pass("cells", functools.partial(find_cell_masks, features, dict(learned)), features)
    parts = run_pass(PartitionReader(source), work)
    joined = {name: map(np.concatenate, zip(*(part[name] for part in parts), strict=True)) for name in features}
    return {
        name: {kind: np.flatnonzero(mask).tolist() for kind, mask in zip(CELL_KINDS, masks, strict=True)}
        for name, masks in joined.items()
    }


def find_cell_masks(
    features: Mapping[str, Contract],
    learned: Mapping[str, Any],
    context: PartitionContext,
    parsed: Parsed,
    table: pa.Table,
) -> dict[str, tuple[np.ndarray, ...]]:
    """Return for each feature the masks of missing, unreadable and unseen cells of a partition."""
    del context, table
    masks: dict[str, tuple[np.ndarray, ...]] = {}
    for name, feature in features.items():
        column = parsed.columns.pop(name)
        with column_error_context(name):
            readable = learned[name].mask_unlearned(column)
        present = valid_mask(readable)
        unreadable = valid_mask(column) & ~present
        if name in parsed.unreadable:
            unreadable[parsed.unreadable[name].rows] = True
        masks[name] = ~present, unreadable, _mask_unseen(feature, readable, learned[name]) & present
    return masks


def _mask_unseen(feature: Contract, parsed: pa.Array, learned: Learned) -> np.ndarray:
    """Return a mask of the cells with a value or token that the vocabulary lacks; none with hashing."""
    unseen = np.zeros(len(parsed), bool)
    for output in feature.outputs:
        vocabulary = getattr(learned.of_output(output), "vocabulary", None)
        if isinstance(vocabulary, Vocabulary) and getattr(feature, "hash_buckets", None) is None:
            contains = vocabulary.contains
            if isinstance(feature, Sequence):
                contains = functools.partial(feature.mask_known_words, learned=learned.of_output(output), output=output)
            unseen |= _rows_with_unseen(contains, parsed.field(output[1:]) if output else parsed)
    return unseen


def _rows_with_unseen(contains: Callable[[pa.Array], np.ndarray], parsed: pa.Array) -> np.ndarray:
    """Return a mask of the cells with a token for which `contains` is False."""
    if pa.types.is_dictionary(parsed.type):
        return ~take_by_code(parsed, contains(parsed.dictionary), True)
    lists = token_lists(parsed)
    counts_before = np.concatenate([[0], np.cumsum(~contains(lists.values)[lists.codes])])
    has_unseen: np.ndarray = counts_before[lists.rows[1:]] > counts_before[lists.rows[:-1]]
    return has_unseen
