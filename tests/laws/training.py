"""Laws of batches: of loaders, mixtures, streams, joined datasets and folds, on any number of ranks."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st
from sklearn.base import clone

import daskprep as dp
from daskprep.dataset import Dataset
from daskprep.features.base import cross_fit_folds, may_drop_rows
from daskprep.storage.layout import SPLITS
from tests.laws.laws import (
    REFUSED,
    TALLY,
    Arrays,
    Content,
    check,
    check_batches,
    check_content,
    check_epoch,
    check_ranks,
    join,
    keys_of,
)
from tests.laws.stored import Stored, as_arrays, check_written, outputs_of, sample_of, within_splits
from tests.laws.tables import KEY

MIXED = 6  # batches of a mixture
BATCHES = {"expand": False, "targets": (), "uneven": True}


def shares(data: st.DataObject, rows: int) -> tuple[int, int, dict[str, Any]]:
    """Draw a batch size, a number of ranks, and options of batches."""
    world = data.draw(st.integers(1, min(4, rows)), "ranks")
    batch_size = data.draw(st.sampled_from([8, 1, 4, 7, 16, 24, 37]), "batch size")
    options: dict[str, Any] = {**BATCHES, "seed": data.draw(st.integers(0, 3), "seed")}
    options["shuffle"] = data.draw(st.booleans(), "shuffle")
    return max(batch_size, world), world, options


def check_loader(dataset: Dataset, expected: Content, data: st.DataObject) -> None:
    """Check two epochs of a split, and that a run which resumes on other ranks yields what is left."""
    if not expected:
        return
    name = data.draw(st.sampled_from(sorted(expected)), "split")
    rows = expected[name]
    count = len(rows["row_id"])
    batch_size, world, options = shares(data, count)
    options["drop_last"] = data.draw(st.booleans(), "drop last")
    if options["shuffle"]:
        options["streams"] = data.draw(st.sampled_from([None, 1, 2, 5]), "streams")
    split = dataset[name]

    def run(world: int, state: Any = None, batches: int | None = None) -> tuple[list[list[Any]], Any]:
        ranks, states = [], []
        for rank in range(world):
            loader = split.loader(batch_size, rank=rank, world_size=world, **options)
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            ranks.append(list(itertools.islice(iter(loader), batches)))
            states.append(loader.state_dict())
            loader.audit()
        check("ranks have the same state", all(one == states[0] for one in states))
        return ranks, states[0]

    done = TALLY.attempt("loader", lambda: run(world))
    if done is REFUSED:
        return
    ranks, _ = done
    sizes = check_ranks(ranks, batch_size)
    keys = [key for batches in ranks for key in check_batches(batches, rows, "batches have the rows of the split")]
    check_epoch(keys, rows, count % batch_size if options["drop_last"] else 0)
    stop = data.draw(st.integers(0, len(sizes)), "stop after")
    other = data.draw(st.integers(1, 4), "other ranks")
    if stop == len(sizes):
        return
    _, state = run(world, batches=stop)
    resumed = TALLY.attempt("resume", lambda: run(other, state))
    if resumed is not REFUSED:
        left = [keys_together(ranks, number) for number in range(stop, len(sizes))]
        found = [keys_together(resumed[0], number) for number in range(len(resumed[0][0]))]
        # The last rows are shared by ranks: with more ranks, they may be in the batch before.
        same = max(0, min(len(found), len(left)) - 2)
        rests = [sorted(itertools.chain.from_iterable(one[same:])) for one in (found, left)]
        is_same = found[:same] == left[:same] and rests[0] == rests[1]
        check("a resumed run is an undisturbed one", is_same, (found, left))
        for batches in resumed[0]:
            check_batches(batches, rows, "a resumed run has the rows of the split")


def keys_together(ranks: Sequence[Sequence[Any]], number: int) -> list[int]:
    return sorted(int(key) for batches in ranks for key in np.asarray(batches[number][KEY]).tolist())


def check_joined(chosen: Sequence[Stored], data: st.DataObject) -> None:
    """Check that several datasets opened as one are their rows, one dataset after the other."""
    dataset = TALLY.attempt("join", lambda: dp.open_dataset([one.path for one in chosen], trusted=True))
    if dataset is REFUSED:
        return
    expected = join([one.expected() for one in chosen])
    check_content(dataset, expected, data.draw(st.integers(0, 5), "reader"))
    if len({id(one) for one in chosen}) == len(chosen):
        keys = [key for rows in expected.values() for key in set(keys_of(rows))]
        if len(set(keys)) == len(keys):
            check_unique_loader(dataset, expected, data)


def check_unique_loader(dataset: Dataset, expected: Content, data: st.DataObject) -> None:
    if all(len(set(keys_of(rows))) == len(rows["row_id"]) for rows in expected.values()):
        check_loader(dataset, expected, data)


def check_mix(chosen: Sequence[Stored], data: st.DataObject) -> None:
    """Check that a mixture has rows of its sources within one row of their shares, each epoch after epoch."""
    sources, rows = _sources(chosen)
    if not sources:
        return
    weights = {name: data.draw(st.sampled_from([1, 2, 0.5, 7]), "weight") for name in sources}
    batch_size, world, options = shares(data, 4)
    until = data.draw(st.sampled_from([None, "first", "all"]), "until")

    def run() -> list[list[Any]]:
        mixes = [
            dp.Mix(sources, batch_size, weights=weights, until=until, rank=rank, world_size=world, **options)
            for rank in range(world)
        ]
        return [list(itertools.islice(iter(mix), MIXED)) for mix in mixes]

    ranks = TALLY.attempt("mix", run)
    if ranks is not REFUSED:
        sizes = check_ranks(ranks, batch_size)
        check("a batch of a mixture is full", set(sizes) <= {batch_size}, (sizes, batch_size))
        _check_shares(ranks, rows, weights, batch_size)


def _sources(chosen: Sequence[Stored]) -> tuple[dict[str, Any], dict[str, Arrays]]:
    """Return the training rows of datasets that have no row in common, by name."""
    sources, rows = {}, {}
    for number, stored in enumerate(chosen):
        expected = stored.expected()
        keys = {key for one in rows.values() for key in keys_of(one)}
        if "train" in expected and not keys & set(keys_of(expected["train"])):
            sources[f"s{number}"], rows[f"s{number}"] = stored.open()["train"], expected["train"]
    return sources, rows


def _check_shares(
    ranks: Sequence[Sequence[Any]], rows: Mapping[str, Arrays], weights: Mapping[str, float], batch_size: int
) -> None:
    found: dict[str, list[int]] = {name: [] for name in rows}
    total = sum(map(Fraction, weights.values()))
    owner = {key: name for name, one in rows.items() for key in keys_of(one)}
    for number in range(len(ranks[0])):
        for key in keys_together(ranks, number):
            found[owner[key]].append(key)
        for name, keys in found.items():
            exact = Fraction(weights[name]) / total * batch_size * (number + 1)
            check("shares of a mixture are within one row", abs(len(keys) - exact) < 1, (name, len(keys), float(exact)))
    for name, one in rows.items():
        count = len(one[KEY])
        check_epochs(found[name], count, one)
        own = [{n: np.asarray(a)[m] for n, a in batch.items()} for batch, m in owned(ranks, owner, name)]
        check_batches(own, one, "a mixture has the rows of its sources")


def check_epochs(keys: Sequence[int], count: int, rows: Arrays) -> None:
    """Check the number of times that a source of a mixture yielded each row, after some epochs and a part of one."""
    whole, expected, found = len(keys) // count, Counter(keys_of(rows)), Counter(keys)
    is_kept = all(whole * times <= found[key] <= (whole + 1) * times for key, times in expected.items())
    check("a mixture repeats no row before all others", is_kept and found.keys() <= expected.keys(), (found, whole))


def owned(ranks: Sequence[Sequence[Any]], owner: dict[int, str], name: str) -> Any:
    for batches in ranks:
        for batch in batches:
            yield batch, np.array([owner[int(key)] == name for key in np.asarray(batch[KEY]).tolist()], bool)


def check_stream(prep: dp.Preprocessor, frame: pd.DataFrame, carried: Any, data: st.DataObject) -> None:
    """Check that a stream has the rows of a split, as often as a dataset, with the cells that encode returns."""
    assigned = prep.assign(frame)
    present = [name for number, name in enumerate(SPLITS) if (assigned["split"] == number).any()]
    if not present:
        return
    name = data.draw(st.sampled_from(present), "split")
    own = np.flatnonzero(assigned["split"] == SPLITS.index(name))
    own = np.repeat(own, assigned["repeats"][own])
    batch_size, world, options = shares(data, max(1, len(own)))

    def run() -> list[list[Any]]:
        return [
            list(
                prep.stream(carried, batch_size, split=name, rank=rank, world_size=world, workers="threads", **options)
            )
            for rank in range(world)
        ]

    ranks = TALLY.attempt("stream", run)
    if ranks is REFUSED:
        return
    check_ranks(ranks, batch_size)
    is_sampled = sample_of(prep, frame)
    encoded = TALLY.attempt("encode", lambda: as_arrays(prep.encode(frame[is_sampled])))
    if encoded is REFUSED:
        return
    own = np.searchsorted(np.flatnonzero(is_sampled), own)
    features = prep.features_
    unlike = {*cross_fit_folds(features), *within_splits(features)}
    names = outputs_of({n: one for n, one in features.items() if n not in unlike})
    rows = {n: encoded[n][own] for n in names if n in encoded}
    keys = [key for batches in ranks for key in check_batches(batches, rows, "a stream has what encode returns")]
    if not any(map(may_drop_rows, features.values())):
        check_epoch(keys, rows)


def check_folds(prep: dp.Preprocessor, frame: pd.DataFrame, carried: Any, path: Path, data: st.DataObject) -> None:
    """Check that each row is in the validation split of one fold, and for training in the others."""
    split = data.draw(
        st.sampled_from([dp.KFold(2), dp.KFold(3, group="group"), dp.KFold(2, stratify="group")]), "folds"
    )
    own = clone(prep).set_params(split=split, balance=None, fit_on="train")
    options = {"progress": False, "workers": "threads", "block_rows": 8}
    dataset = TALLY.attempt("fit_write of folds", lambda: own.fit_write(carried, path, **options))
    if dataset is REFUSED:
        return
    seen: list[int] = []
    for number, fold in enumerate(dataset):
        fitted = own.fold(number)
        part = check_written(fitted, frame, fold)
        loaded = dp.Preprocessor.from_dataset(fold)
        check("a fold has the state without its rows", loaded.to_dict() == fitted.to_dict())
        held = part.content["validation"]["row_id"].tolist() if "validation" in part.content else []
        check("a row is held out once", not set(held) & set(seen), held)
        seen += held
    if not any(map(may_drop_rows, own.features_.values())):
        check("each row is held out", sorted(seen) == list(range(sample_of(own, frame).sum())), seen)
