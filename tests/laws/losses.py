"""The account of losses, against a count by hand for the types whose losses a cell alone decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

import daskprep as dp
from daskprep.dataset import Dataset
from daskprep.features.base import keeps_missing
from tests.laws.laws import Content, check

CAUSES = ("missing", "unknown", "cut", "clipped", "left out")
_SPECIAL = ("<UNK>", "<PAD>")


def check_losses(prep: dp.Preprocessor, frame: pd.DataFrame, dataset: Dataset, content: Content) -> None:
    """Check the losses of a dataset with a single part, which was written from a frame."""
    losses = dataset.losses()
    assert losses is not None
    found = {
        (name, split, cause): cells
        for name, split, cause, cells, _ in losses.itertuples(index=False, name=None)
        if cause in CAUSES
    }
    for name, feature in prep.features_.items():
        if name in prep.targets_ or not _is_counted(frame, name, feature):
            continue  # the ids of a target have none for unknown classes
        expected = _count(name, feature, prep.learned_[name], frame, content)
        own = {key: cells for key, cells in found.items() if key[0] == name and key[2] != "left out"}
        check("losses are those that a count by hand has", own == expected, (name, own, expected))
    left_out = sum(cells for (_, _, cause), cells in found.items() if cause == "left out")
    check("losses have the rejected cells", left_out == len(dataset.rejects()), (left_out, len(dataset.rejects())))


def _is_counted(frame: pd.DataFrame, name: str, feature: dp.Feature) -> bool:
    """Return whether a cell alone decides what is lost."""
    cells = frame[feature.column or name]
    if isinstance(feature, dp.Category):
        is_plain = feature.hash_buckets is None and not feature.oov_buckets and feature.columns is None
        return is_plain and all(cell is None or (isinstance(cell, str) and cell not in _SPECIAL) for cell in cells)
    if isinstance(feature, dp.Timeseries):
        return not feature.is_windowed
    if isinstance(feature, dp.Sequence):
        is_plain = feature.tokenizer == "space" and getattr(feature, "level", "word") == "word"
        return is_plain and all(cell is None or cell != "" for cell in cells)
    is_plain = isinstance(feature, dp.Number) and feature.encoding != "bins" and feature.outlier_strategy is None
    return (
        is_plain
        and all(cell is None or isinstance(cell, float) for cell in cells)
        and not np.isinf(cells.astype(float)).any()
    )


def _count(
    name: str, feature: dp.Feature, learned: Any, frame: pd.DataFrame, content: Content
) -> dict[tuple[str, str, str], int]:
    counts: Counter[tuple[str, str, str]] = Counter()
    for split, arrays in content.items():
        cells = frame[feature.column or name].iloc[arrays["row_id"]].tolist()
        for cell, encoded in zip(cells, arrays[name].tolist(), strict=True):
            if not isinstance(cell, list) and pd.isna(cell):
                if not feature.missing_indicator and not keeps_missing(feature):
                    counts[name, split, "missing"] += 1
                continue
            for cause in _causes(feature, learned, cell, encoded):
                counts[name, split, cause] += 1
    return dict(counts)


def _causes(feature: dp.Feature, learned: Any, cell: Any, encoded: Any) -> Iterator[str]:
    """Yield the causes why the encoding of a cell has not all of its information."""
    if isinstance(feature, dp.Category) and encoded == 0:
        yield "unknown"
    elif isinstance(feature, dp.Timeseries) and len(cell) > learned.max_timeseries_length:
        yield "cut"
    elif isinstance(feature, dp.Sequence):
        tokens = (cell.lower() if feature.lowercase else cell).split()
        if not set(tokens) <= set(learned.vocabulary.tokens.to_pylist()):
            yield "unknown"
        if len(tokens) + 2 * feature.add_start_stop > learned.max_sequence_length:
            yield "cut"
    elif isinstance(feature, dp.Number):
        ends = learned.quantiles or (learned.min, learned.max)
        is_clipped = feature.clip_quantiles is not None or learned.quantiles
        is_outside = is_clipped and not ends[0] <= cell <= ends[-1]
        if is_outside or np.max(np.abs(encoded)) >= np.finfo(np.float32).max:
            yield "clipped"
