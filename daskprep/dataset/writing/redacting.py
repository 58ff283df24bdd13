"""Fitted states without texts of removed rows: tokens that no other row has, and samples of unreadable cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, repeat
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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


class Removal(NamedTuple):
    """Rows that are removed from a dataset, which does not show them any longer."""

    dataset: Dataset
    rows: Positions
    has_rejected: bool  # whether rows without stored encodings are removed as well
    purged: int  # number of rows that earlier calls removed


def find_lost_tokens(removals: Sequence[Removal]) -> LostTokens:
    """Return the tokens of the first dataset that only removed rows have, and no other row of the datasets.

    Datasets with another fitted state of a feature do not count. With rejected rows, all tokens that no row has may be
    theirs. Vocabularies that are not counted from rows, such as those from files, are left out.
    """
    lost: dict[str, dict[str, Integers]] = {}
    current = removals[0].dataset
    for name, feature in current.features.items():
        if not feature._counts_tokens:
            continue
        state = current.learned[name]
        sharing = [one for one in removals if shares_state(feature, one.dataset.learned.get(name), state)]
        for output in feature.outputs:
            learned = state.of_output(output)
            own, *others = [removed_ids(one.dataset.learned[name].of_output(output)) for one in sharing]
            if isinstance(learned, LearnedTargetEncoding):
                ids = np.concatenate([*others, *(_find_values(learned, name, one) for one in sharing)])
            elif isinstance(learned, LearnedTokens):
                ids = _find_ids(learned, name + output, sharing, others)
                ids = np.setdiff1d(ids, _fill_ids(current, name, output))
            else:  # of a custom type
                continue
            if len(ids := np.setdiff1d(ids, [*own, *learned.vocabulary.specials.ids])):
                lost.setdefault(name, {})[output] = ids
    return lost


def removed_ids(learned: Learned) -> Integers:
    """Return the ids of tokens that were removed."""
    if not isinstance(learned, LearnedTokens):
        return _NO_IDS
    tokens = pc.utf8_trim(learned.vocabulary.tokens, "<>")
    names = pc.binary_join_element_wise("REMOVED", pa.array(np.arange(len(tokens))).cast(pa.string()), " ")
    return np.flatnonzero(pc.equal(tokens, names).to_numpy(zero_copy_only=False))


def without_removed(feature: Feature, learned: Learned, others: Learned) -> Learned:
    """Return a state without the texts that were removed from another one."""
    outputs = feature.outputs if feature._counts_tokens else ()
    return feature._redact(learned, {output: removed_ids(others.of_output(output)) for output in outputs})


def extends_state(feature: Feature, longer: Learned, shorter: Learned) -> bool:
    """Return whether a state is the same as a `shorter` one, or has grown from it, but for removed texts."""
    return type(longer) is type(shorter) and without_removed(feature, longer, shorter).extends(
        without_removed(feature, shorter, longer)
    )


def shares_state(feature: Feature, first: Learned | None, second: Learned) -> bool:
    """Return whether two states are the same, or one has grown from the other, but for removed texts."""
    if first is None or first is second:
        return first is second
    return extends_state(feature, first, second) or extends_state(feature, second, first)


def _fill_ids(current: Dataset, name: str, output: str) -> np.ndarray:
    """Return the ids of a fill value that is a parameter: missing cells keep their encoding."""
    feature, learned = current.features[name], current.learned[name]
    if feature.missing_value_strategy != "fill_with_const" or learned.fill_value is None:
        return _NO_IDS
    return encode_fill_value(feature, learned)[output]


def _find_values(learned: LearnedTargetEncoding, column: str, removal: Removal) -> Integers:
    """Return the ids of values that may be of removed training rows alone."""
    is_fitted_on_all = removal.dataset.metadata["fit_on"] == "all"
    rows = list(_read(column, [one for one in removal.rows if one[0].name == "train" or is_fitted_on_all]))
    return learned.values_of(np.concatenate(rows), removal.purged) if rows else _NO_IDS


def _find_ids(
    learned: LearnedTokens, column: str, removals: Sequence[Removal], removed: Sequence[Integers]
) -> Integers:
    """Return the ids that removed rows have, or may have beyond the limit of a row, or `removed`, and no other row."""
    lost = np.full(len(learned.vocabulary), any(one.has_rejected for one in removals))
    for ids in removed:
        lost[ids[ids < len(lost)]] = True
    padding = learned.vocabulary.specials.padding_id
    for rows in _read(column, [rows for one in removals for rows in one.rows]):
        lost[rows[rows < len(lost)]] = True  # buckets of hashes follow
        lost |= rows.ndim > 1 and bool((rows != padding).all(axis=1).any())
    lost[list(learned.vocabulary.specials.ids)] = False
    splits = [split for one in removals for split in one.dataset.splits.values()]
    kept = _read(column, [(split, range(len(split))) for split in splits])
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


def redacted_states(parts: Iterable[Dataset], lost: LostTokens) -> Iterator[dict[str, bytes]]:
    """Yield the result of `redacted_state` for each part; parts in a row with equal states share it."""
    for _, same in groupby(parts, lambda part: part.segments[0].state_entries):
        first, *others = same
        yield from repeat(redacted_state(first, lost), 1 + len(others))


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
