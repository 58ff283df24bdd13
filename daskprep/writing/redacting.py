"""Fitted states without texts of removed rows: tokens that no other row has, and samples of unreadable cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from daskprep.dataset import Dataset
from daskprep.dataset.filtered import HiddenRows
from daskprep.permutation import Integers
from daskprep.state import METADATA, state_files, state_from_files
from daskprep.vocabulary import Vocabulary

_READ_ROWS = 1 << 18

LostTokens = Mapping[str, list[tuple[pa.StringArray, Integers]]]
"""By feature, the tokens of the vocabulary of each output, and the ids of those that no row has any longer."""


def find_lost_tokens(current: Dataset, parts: Sequence[Dataset], rows: Sequence[HiddenRows]) -> LostTokens:
    """Return the tokens that only some stored `rows` of the parts have, and no row of the dataset `current`.

    Vocabularies that do not grow, such as those from files, are left out.
    """
    lost: dict[str, list[tuple[pa.StringArray, Integers]]] = {}
    for name, feature in current.features.items():
        for output in [name + suffix for suffix in feature.outputs] if feature._grows else ():
            vocabulary, ids = current.vocabulary(output), np.empty(0, np.int64)
            for part, own in zip(parts, rows, strict=True):
                for split in own.keys() & part.splits.keys():
                    ids = np.union1d(ids, _token_ids(part[split]._read(output, own[split])[output]))
            ids = np.setdiff1d(ids, vocabulary.specials.ids)
            for one in current.splits.values():
                for start in range(0, len(one), _READ_ROWS) if len(ids) else ():
                    ids = np.setdiff1d(ids, _token_ids(one.read(output, start, start + _READ_ROWS)[output]))
            lost.setdefault(name, []).append((vocabulary.tokens, ids))
    return lost


def _token_ids(rows: np.ndarray) -> np.ndarray:
    """Return the distinct ids in rows of an output; the second half of a bag are counts."""
    return np.unique(rows[:, 0] if rows.ndim > 2 else rows)


def redacted_state(part: Dataset, lost: LostTokens) -> dict[str, bytes]:
    """Return the files of the fitted state of a part, without lost tokens and samples; an empty dict if it has none.

    A lost token becomes "<REMOVED id>", so that all ids stay.
    """
    state = state_from_files(part.files.read)
    features = {name: _redact(one, lost.get(name, []), {}) for name, one in state["features"].items()}
    files = state_files({**state, "features": features})
    return {} if files[METADATA] == part.files.read(METADATA) else files


def _redact(value: Any, lost: Sequence[tuple[pa.StringArray, Integers]], names: Mapping[str, str]) -> Any:
    """Return a part of a state with renamed texts; `names` has the new ones of the vocabulary that it belongs to."""
    if isinstance(value, Mapping):
        listed = value.get("vocabulary", value.get("idx2str"))
        if listed is not None:
            tokens = listed.tokens if isinstance(listed, Vocabulary) else pa.array(listed, pa.string())
            for known, ids in lost:
                if known.slice(0, len(tokens)).equals(tokens):
                    own_ids = ids[ids < len(tokens)]
                    names = {tokens[one].as_py(): f"<REMOVED {one}>" for one in own_ids.tolist()}
        return {
            names.get(key, key): [] if key == "invalid_samples" else _redact(one, lost, names)
            for key, one in value.items()
        }
    if isinstance(value, Vocabulary) and names:
        return Vocabulary(
            pa.array([names.get(one, one) for one in value.tokens.to_pylist()]), value.frequencies, value.specials
        )
    if isinstance(value, list):
        return [_redact(one, lost, names) for one in value]
    return names.get(value, value) if isinstance(value, str) else value
