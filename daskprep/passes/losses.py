"""The account of losses: cells whose encoding lacks information of the cell, as a table and as a warning."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.display import format_count, format_share
from daskprep.errors import warn
from daskprep.features.base import Contract, Learned, Loss, drops_missing, keeps_missing, rows_seen
from daskprep.passes.table import LossMasks
from daskprep.storage.manifest import LossCounts, add_losses

MIN_SHARE = 0.01
"""The share of the cells of a feature, above which a warning names a loss."""
LEFT_OUT = "left out"
_MAX_NAMED = 3
_COLUMNS = ["feature", "split", "cause", "cells", "share"]
_MISSING_CATEGORIES = ("<UNK>", "<MISSING>")  # fill values that no cell has
_REMEDIES = {
    "missing": "mark them by missing_indicator=True, or choose missing_value_strategy",
    "unreadable": "correct them",
    LEFT_OUT: "rejects() lists these rows",
}
_PHRASES = {"missing": "missing and imputed", "padded": "windows with padding"}


class LeftOut(NamedTuple):
    """The rows that each column left out, and of all rows."""

    columns: Mapping[str, int]
    total: int


def tabulate_losses(
    features: Mapping[str, Contract],
    learned: Mapping[str, Learned],
    counts: Mapping[str, LossCounts],
    rows: Mapping[str, int],
    left_out: LeftOut,
) -> pd.DataFrame:
    """Return a row for each feature, split and cause with losses; none for causes without cells."""
    # Only the fit opens files of images and audio: a sample of them.
    sampled = {
        name: {str(cause): round(n / learned[name].rows * rows["train"]) for cause, n in causes.items()}
        for name, feature in features.items()
        if feature._samples_files and "train" in rows and (causes := feature._learned_losses(learned[name]))
    }
    counts = {split: add_losses(own, sampled) if split == "train" else own for split, own in counts.items()}
    losses = [(name, split, cause, n, n / rows[split]) for name, split, cause, n in _lossy(features, counts)]
    losses += [(name, "", LEFT_OUT, n, n / left_out.total) for name, n in left_out.columns.items()]
    order: dict[str, int] = {name: number for number, name in enumerate(features)}
    return pd.DataFrame(sorted(losses, key=lambda loss: order.get(str(loss[0]), len(order))), columns=_COLUMNS)


def count_left_out(features: Mapping[str, Contract], rejects: pa.Table, kept: int) -> LeftOut:
    """Return the rows that each column left out, and all rows: these and `kept` ones."""
    filled = [name for name, one in features.items() if one._lists_filled]
    is_medium = pc.is_in(rejects["column"], pa.array(filled, pa.string()))
    is_filled = pc.and_(is_medium, pc.not_equal(rejects["reason"], "missing"))
    left_out = rejects.filter(pc.invert(is_filled))
    ids = [name for name in ("dataset", "row_id") if name in left_out.column_names]
    columns = {one["values"]: one["counts"] for one in left_out["column"].value_counts().to_pylist()}
    return LeftOut(columns, kept + len(left_out.group_by(ids).aggregate([])))


def count_losses(masks: LossMasks, repeats: np.ndarray) -> LossCounts:
    """Return written cells by feature and cause, without zeros."""
    return {
        name: {str(cause): int(repeats[mask].sum()) for cause, mask in sorted(causes.items()) if mask.any()}
        for name, causes in masks.items()
    }


def tabulate_learned_losses(features: Mapping[str, Contract], learned: Mapping[str, Learned]) -> pd.DataFrame:
    """Return the losses of training rows that the fit counted."""
    losses: list[tuple[str, str, str, int, float]] = []
    for name, feature in features.items():
        state = learned[name]
        missing = 0 if feature._drops_windows else state.missing - state.invalid  # such windows are left out
        causes: dict[str, int] = {"missing": missing, "unreadable": state.invalid}
        if drops_missing(feature):
            causes = {LEFT_OUT: state.missing}
        causes |= {str(cause): cells for cause, cells in feature._learned_losses(state).items()}
        seen = max(1, rows_seen(feature, state))
        losses += [
            (name, "" if cause == LEFT_OUT else split, cause, n, n / seen)
            for name, split, cause, n in _lossy(features, {"train": {name: causes}})
        ]
    return pd.DataFrame(losses, columns=_COLUMNS)


def _lossy(features: Mapping[str, Contract], counts: Mapping[str, LossCounts]) -> Iterator[tuple[str, str, str, int]]:
    """Yield feature, split, cause and cells of each loss."""
    for split, own in counts.items():
        for name, causes in own.items():
            feature = features.get(name)
            is_kept = feature is not None and (keeps_missing(feature) or feature.missing_indicator)
            for cause, cells in causes.items():
                if cells and not (is_kept and cause == "missing"):
                    yield name, split, cause, cells


def warn_about_losses(
    losses: pd.DataFrame,
    features: Mapping[str, Contract],
    learned: Mapping[str, Learned],
    targets: Collection[str] = (),
    *,
    fitted: bool,
    compared: bool = True,
    rows: Mapping[str, int] | None = None,
    call: str = "",
) -> None:
    """Warn with one line about the largest losses.

    `rows` is the number of rows by split, and `call` returns the table, if there is one. `fitted`: the fit has seen the
    training rows, and has warned about their unreadable cells. `compared`: unknown values of other rows are compared
    with the fit elsewhere. Hashing is requested, and an unknown value is not lost if another feature of its column has
    few.
    """

    def is_reported(cause: str, split: str) -> bool:
        is_trained_on = fitted and split == "train"
        return is_trained_on if cause == "unreadable" else cause == "unknown" and compared and not is_trained_on

    totals: dict[tuple[str, str], tuple[int, float]] = {}
    for name, split, cause, cells, share in losses.itertuples(index=False, name=None):
        is_category = cause == "missing" and learned[name].fill_value in _MISSING_CATEGORIES
        if not (is_category or is_reported(cause, split) or cause == "hashed"):
            total = sum(count for one, count in (rows or {}).items() if not is_reported(cause, one))
            known, of = totals.get((name, cause), (0, total))
            totals[name, cause] = known + cells, max(of, cells / share)
    large = {key for key, (cells, of) in totals.items() if cells >= MIN_SHARE * of}
    encoded = {one.reads(name)[0] for name, one in features.items() if (name, "unknown") not in large}
    large -= {(name, "unknown") for name, one in features.items() if one.reads(name)[0] in encoded}
    named = []
    for (name, cause), (cells, of) in totals.items():
        is_label = cause == LEFT_OUT and name in targets
        if (name, cause) in large or is_label:
            remedy = _REMEDIES.get(cause) or features[name]._loss_remedies[cast("Loss", cause)]
            what = "without a readable label left out" if is_label else _PHRASES.get(cause, cause)
            count = format_count(cells, "row" if cause == LEFT_OUT else "cell")
            text = f'"{name}": {count} ({format_share(cells, of)}) {what}: {remedy}'
            named.append((not is_label, -cells / of, text))
    if named:
        lines = [text for _, _, text in sorted(named)]
        if len(lines) > _MAX_NAMED:
            lines[_MAX_NAMED:] = [f"and {len(lines) - _MAX_NAMED} more"]
        warn(f"information is lost in {'; '.join(lines)}{f'; {call} lists all' * bool(call)}")
