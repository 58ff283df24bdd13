"""Fitted states without texts of removed rows: tokens that no other row has, and samples of unreadable cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from daskprep.columns.permutation import Integers
from daskprep.dataset import Dataset
from daskprep.dataset.split import Split
from daskprep.features import Feature, Learned
from daskprep.features.checking import encode_fill_value
from daskprep.features.target_encoding import LearnedTargetEncoding
from daskprep.features.tokens import LearnedTokens
from daskprep.passes.state import mark_received_paths, restore, state_files, state_from_files

_READ_ROWS = 1 << 16
_NO_IDS = np.empty(0, np.int64)

LostTokens = Mapping[str, Mapping[str, Integers]]
"""By feature and output, the ids of tokens that no row has any longer."""
Positions = Sequence[tuple[Split, Integers | range]]
"""Positions of rows in splits."""


def find_lost_tokens(current: Dataset, removed: Positions, purged: int, *, has_rejected: bool) -> LostTokens:
    """Return the tokens that only `removed` rows have, and no row of the dataset `current`.

    With `has_rejected`, rows without stored encodings are removed as well: all tokens that no row has may be theirs.
    Vocabularies that are not counted from rows, such as those from files, are left out. `purged` is the number of rows
    that earlier calls removed.
    """
    lost: dict[str, dict[str, Integers]] = {}
    for name, feature in current.features.items():
        for output in feature.outputs if feature._counts_tokens else ():
            learned = current.learned[name].of_output(output)
            if isinstance(learned, LearnedTargetEncoding):
                fitted = [one for one in removed if one[0].name == "train" or current.metadata["fit_on"] == "all"]
                ids = _find_values(learned, name, fitted, purged)
            elif isinstance(learned, LearnedTokens):
                ids = np.setdiff1d(
                    _find_ids(current, learned, name + output, removed, has_rejected),
                    _fill_ids(current, name, output),
                )
            else:  # of a custom type
                continue
            if len(ids := np.setdiff1d(ids, learned.vocabulary.specials.ids)):
                lost.setdefault(name, {})[output] = ids
    return lost


def _fill_ids(current: Dataset, name: str, output: str) -> np.ndarray:
    """Return the ids of a fill value that is a parameter: missing cells keep their encoding."""
    feature, learned = current.features[name], current.learned[name]
    if feature.missing_value_strategy != "fill_with_const" or learned.fill_value is None:
        return _NO_IDS
    return encode_fill_value(feature, learned)[output]


def _find_values(learned: LearnedTargetEncoding, column: str, removed: Positions, purged: int) -> Integers:
    """Return the ids of values that may be of `removed` rows alone, without those that were removed before."""
    if not (rows := list(_read(column, removed))):
        return _NO_IDS
    ids = learned.values_of(np.concatenate(rows), purged)
    names = learned.vocabulary.tokens.take(pa.array(ids)).to_pylist()
    return ids[[name != f"<REMOVED {number}>" for number, name in zip(ids.tolist(), names, strict=True)]]


def _find_ids(
    current: Dataset, learned: LearnedTokens, column: str, removed: Positions, has_rejected: bool
) -> Integers:
    """Return the ids of tokens that `removed` rows have, or may have beyond the limit of a row, and no other row."""
    lost, padding = np.full(len(learned.vocabulary), has_rejected), learned.vocabulary.specials.padding_id
    for rows in _read(column, removed):
        lost[rows[rows < len(lost)]] = True  # buckets of hashes follow
        lost |= rows.ndim > 1 and bool((rows != padding).all(axis=1).any())
    lost[list(learned.vocabulary.specials.ids)] = False
    kept = _read(column, [(split, range(len(split))) for split in current.splits.values()])
    for rows in kept if lost.any() else ():
        lost[rows[rows < len(lost)]] = False
        if not lost.any():
            break
    return np.flatnonzero(lost)


def _read(column: str, positions: Positions) -> Iterator[np.ndarray]:
    """Yield an output of rows, in pieces; without the second half of a bag, which are counts."""
    for split, rows in positions:
        for start in range(0, len(rows), _READ_ROWS):
            values = split._read(column, rows[start : start + _READ_ROWS])[column]
            yield values[:, 0] if values.ndim > 2 else values


def redacted_state(part: Dataset, lost: LostTokens) -> dict[str, bytes]:
    """Return the files of the fitted state of a part, without lost tokens and samples; an empty dict if it has none.

    Raise CorruptDatasetError if they cannot be restored.
    """
    state, changed = state_from_files(part.files.read), {}
    for name, section in state["features"].items():
        feature = part.features[name]
        learned = feature.learned_type.from_dict(section["learned"])
        if (redacted := feature._redact(learned, lost.get(name, {}))) != learned:
            changed[name] = {**section, "learned": redacted.to_state()}
    if not changed:
        return {}
    files = state_files({**state, "features": {**state["features"], **changed}})
    restore(mark_received_paths(state_from_files(files.__getitem__)))
    return files


def kept_fields(feature: Feature, learned: Learned) -> list[str]:
    """Return the fields of a fitted state that were computed with the rows, and that a redaction keeps."""
    redacted = {"invalid_samples", *(["vocabulary"] if feature._counts_tokens else [])}
    values = learned.to_state().items()
    return [name for name, value in values if value not in (None, [], {}) and name not in redacted]
