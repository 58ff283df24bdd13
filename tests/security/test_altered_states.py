"""A saved Preprocessor that was altered loads, or raises with a reason."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.errors import CorruptDatasetError, DaskprepError
from tests.amount import one_in

ODD = [
    None, True, -1, 0, 1.5, 1e308, 10**400, 2**63, "", "x", "\ud800", "zscore", "a" * 1000,
    [], [1], ["a"], [None], [[[]]], {}, {"a": 1},
]  # fmt: skip
Place = tuple[Any, ...]


@pytest.fixture(scope="module")
def state() -> dict[str, Any]:
    rows = 60
    frame = pd.DataFrame(
        {
            "number": np.arange(rows) * 1.5,
            "binary": ["yes", "no"] * (rows // 2),
            "category": list("abcdef") * 10,
            "set": ["a b c", "b"] * (rows // 2),
            "text": ["some text here", "more"] * (rows // 2),
            "timeseries": ["1 2 3", "4 5 6"] * (rows // 2),
            "vector": ["1 2 3"] * rows,
            "date": ["2020-01-31"] * rows,
            "sequence": ["x y", "z"] * (rows // 2),
        }
    )
    features = {**dict(zip(frame, frame, strict=True)), "number": dp.Number(normalization="zscore")}
    features |= {kind: dp.Text(tokenizer=kind, most_common=12, column="text") for kind in ("bpe", "unigram")}
    return dp.Preprocessor(features, split=dp.RandomSplit()).fit(frame).to_dict()


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    if place:
        yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value[:5]) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*place, key))


def altered(state: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Replace, remove or add a value."""
    state = copy.deepcopy(state)
    *outer, last = chance.choice(list(places(state)))
    holder: Any = state
    for key in outer:
        holder = holder[key]
    how = chance.random()
    if how < 0.2:
        del holder[last]
    elif how < 0.3 and isinstance(holder, dict):
        holder[chance.choice(["more", "type", "params", "learned", "vocabulary", "vocabulary_file"])] = chance.choice(
            ODD
        )
    elif how < 0.4 and isinstance(holder[last], list):
        holder[last].append(chance.choice(ODD))
    else:
        holder[last] = chance.choice(ODD)
    return state


def check(state: dict[str, Any], file: Path, seeds: range) -> None:
    found: Counter[str] = Counter()
    for seed in seeds:
        file.write_text(json.dumps(altered(state, random.Random(seed))))
        try:
            loaded = dp.Preprocessor.load(file)
        except DaskprepError as error:
            found[type(error).__name__] += 1
        else:
            found["loaded"] += 1
            assert dp.Preprocessor.from_dict(loaded.to_dict()).to_dict() == loaded.to_dict(), seed
    assert found["loaded"] > len(seeds) // 4
    assert found["CorruptDatasetError"] > len(seeds) // 10


def test_altered_state_loads_or_raises(state: dict[str, Any], tmp_path: Path) -> None:
    check(state, tmp_path / "saved.json", range(60))


@pytest.mark.slow
def test_many_altered_states_load_or_raise(state: dict[str, Any], tmp_path: Path) -> None:
    check(state, tmp_path / "saved.json", range(60, 3000, one_in(3)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": 1, "format": 1}', 'the key "format" occurs twice'),
        ('{"format": NaN, "features": {}}', "NaN is not a JSON number"),
        ("[" * 1_000_000, "nested too deeply"),
        ('{"format": "1", "features": {}}', "its format is 1"),
        ('{"format": 1, "features": [1]}', "are not features by name"),
        ('{"format": 1, "features": {"a": 1}}', "are not features by name"),
        ('{"format": 1, "features": {}}', "cannot be restored .*split"),
    ],
)
def test_json_of_other_programs_raises(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "saved.json").write_text(text)
    with pytest.raises(CorruptDatasetError, match=message):
        dp.Preprocessor.load(tmp_path / "saved.json")


def test_learned_value_of_wrong_type_raises(state: dict[str, Any], tmp_path: Path) -> None:
    state = copy.deepcopy(state)
    state["features"]["number"]["learned"]["mean"] = "high"
    (tmp_path / "saved.json").write_text(json.dumps(state))
    with pytest.raises(CorruptDatasetError, match='feature "number": LearnedNumber: mean must be a number or None'):
        dp.Preprocessor.load(tmp_path / "saved.json")
