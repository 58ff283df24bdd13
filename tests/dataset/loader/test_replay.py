"""Runs with resumes: the first use of a row, any batch again, and certificates equal what the iterations yielded."""

from __future__ import annotations

import json
import random
from itertools import islice

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.columns.permutation import make_key, permute
from daskprep.errors import ConfigError

ROWS = 700


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "city": rng.choice(["Rome", "Oslo", "Bern"], ROWS, p=[0.7, 0.2, 0.1]),
            "review": [" ".join(["word"] * length) for length in rng.integers(1, 30, ROWS)],
        }
    )
    features = {"city": "category", "review": dp.Text(level="word")}
    prep = dp.Preprocessor(features, split=dp.RandomSplit((0.8, 0.2, 0.0)))
    return prep.fit_write(frame, tmp_path_factory.mktemp("replay") / "a.dp", block_rows=32)["train"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay")
    prep = dp.Preprocessor({"n": dp.Number(normalization=None)}, split=None)
    sizes = {"web": 211, "books": 64, "code": 37, "late": 90}
    tables = {name: pd.DataFrame({"n": np.arange(rows)}) for name, rows in sizes.items()}
    prep.fit(tables["web"])
    return {
        name: prep.write(table, folder / name, block_rows=7 + index, shuffle=index == 1)["train"]
        for index, (name, table) in enumerate(tables.items())
    }


def random_options(chosen, split):
    """Return options of a loader that decide the order, and whether resumes may change the batch size."""
    kind = chosen.choice(["plain", "plain", "balance", "weights", "lengths", "tokens"])
    options = {"streams": chosen.choice([1, 2, 4, 8]), "seed": chosen.randrange(9)}
    options |= {"shuffle": chosen.random() < 0.8, "drop_last": chosen.random() < 0.5}
    if kind == "balance":
        options["balance"] = chosen.choice([dp.Oversample("city", ratio=0.6), dp.Undersample("city", ratio=1.0)])
    if kind == "weights":
        options["weights"] = {"city": {"Bern": 2.5, "Oslo": chosen.choice([0, 0.3])}}
    if kind in {"lengths", "tokens"}:
        options |= {"group_by_length": "review", "shuffle": True}
    if kind == "tokens":
        options |= {"trim": True, "batch_tokens": 2000}
    return options, kind not in {"lengths", "tokens"}


def run_with_resumes(make, chosen, stops, change):
    """Return the loader after a run on random ranks; the rows, the epoch and the sources of each step; the options."""
    state, kept, steps = None, 0, []
    for _ in range(stops):
        world, options = chosen.choice([1, 2, 4, 8]), change()
        loaders = [make(rank=rank, world_size=world, row_ids=True, prefetch_size=0, **options) for rank in range(world)]
        del steps[kept:]  # they are lost in a crash after the last checkpoint
        for loader in loaders if state is not None else ():
            loader.load_state_dict(json.loads(json.dumps(state)))
        names = list(getattr(loaders[0], "sources", ()))
        for _ in range(chosen.choice([1, 1, 3])):
            count = chosen.choice([1, 3, 9, 10_000 if loaders[0]._rows < 10**6 else 5])
            ranks = [list(islice(iter(loader), count)) for loader in loaders]
            epoch = loaders[0].epoch
            rows = [np.concatenate([codes(part, names) for part in parts]) for parts in zip(*ranks, strict=True)]
            steps += [(np.sort(one), epoch, names) for one in rows]
            if chosen.random() < 0.7:
                state, kept = loaders[-1].state_dict(), len(steps)
    loader = make(row_ids=True, **options)
    if state is not None:
        loader.load_state_dict(state)
    return loader, steps[:kept]


CODES = {"web": 0, "books": 1000, "code": 2000, "late": 3000}


def codes(batch, names):
    """Return a number for each row of a batch, which tells rows of different sources apart."""
    rows = batch["row_id"].numpy()
    return rows + np.array([CODES[name] for name in names])[batch["source_id"]] if names and len(names) > 1 else rows


def check_run(loader, steps, ids, source=None):
    """Compare first uses and batches with the steps of a run, and with its continuation."""
    code, names, first = CODES.get(source, 0), list(getattr(loader, "sources", ())), {}
    for step, (rows, epoch, names_then) in enumerate(steps):
        if step % 9 == 0 or step == len(steps) - 1:
            np.testing.assert_array_equal(np.sort(codes(loader.batch(step), names_then)), rows)
        for row in rows.tolist():
            first.setdefault(row, (epoch, step))
    table = loader.first_use(ids, source)
    assert table["row_id"].tolist() == ids.tolist()
    for row, *found in table.itertuples(index=False):
        if row + code in first:
            assert tuple(found) == first[row + code]
        elif found[0] is not pd.NA:
            assert found[1] >= len(steps)
            assert row % 7 or row + code in codes(loader.batch(found[1]), names).tolist()


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 20))])
def test_first_use_and_batches_equal_those_of_runs(split, seed):
    chosen = random.Random(seed)
    options, resizes = random_options(chosen, split)
    sizes = [8, 16, 40] if resizes else [chosen.choice([16, 40])]

    def make(**more):
        return split.loader(batch_size=more.pop("size"), **{**options, **more})

    loader, steps = run_with_resumes(make, chosen, 6, lambda: {"size": chosen.choice(sizes)})
    check_run(loader, steps, np.arange(ROWS + 5))
    certificate = json.loads(json.dumps(loader.certificate()))
    assert len(json.dumps(certificate)) < 10_000
    assert certificate["steps"] == len(steps)
    rebuilt = make(size=loader.batch_size, row_ids=True)
    rebuilt.verify(certificate)
    pd.testing.assert_frame_equal(rebuilt.first_use(np.arange(ROWS)), loader.first_use(np.arange(ROWS)))
    for step in (0, len(steps)):
        np.testing.assert_array_equal(rebuilt.batch(step)["row_id"], loader.batch(step)["row_id"])


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))])
def test_first_use_and_batches_equal_those_of_mixes(sources, seed):
    chosen = random.Random(seed)
    until, names = chosen.choice([None, "first", "all"]), ["web", "books", "code"]
    options = {"seed": seed, "streams": chosen.choice([1, 3]), "shuffle": chosen.random() < 0.8, "until": until}
    current = {"weights": {"web": 3, "books": 2, "code": 1}, "size": 24}

    def change():
        if chosen.random() < 0.3:
            if "late" not in names and chosen.random() < 0.5:
                names.insert(chosen.randrange(4), "late")
            chosen.shuffle(names)
            weights = {name: chosen.choice([0, 1, 2.5, 0.013]) for name in names} | {"web": 1}
            current.update(weights={name: weights[name] for name in names}, size=chosen.choice([8, 16, 48]))
        return dict(current)

    def make(**more):
        weights = more.pop("weights")
        picked = {name: sources[name] for name in weights}
        return dp.Mix(picked, more.pop("size"), weights=weights, uneven=True, **{**options, **more})

    loader, steps = run_with_resumes(make, chosen, 6, change)
    for name in loader.sources:
        check_run(loader, steps, np.arange(len(sources[name])), name)
    certificate = json.loads(json.dumps(loader.certificate(), sort_keys=True))
    assert len(json.dumps(certificate)) < 10_000
    assert certificate["steps"] == len(steps)
    rebuilt = make(**current)
    rebuilt.verify(certificate)
    pd.testing.assert_frame_equal(rebuilt.first_use([3, 30], "web"), loader.first_use([3, 30], "web"))


@pytest.mark.parametrize("bits", range(1, 40, 3))
def test_inverse_of_permutation_returns_numbers(bits):
    rng = np.random.default_rng(bits)
    sizes = np.maximum(1, rng.integers(2 ** (bits - 1), 2**bits, 50))
    numbers, keys = rng.integers(0, sizes), np.array([make_key(one) for one in range(50)], np.uint64)
    positions = permute(numbers, sizes, keys)
    np.testing.assert_array_equal(permute(positions, sizes, keys, inverse=True), numbers)
    np.testing.assert_array_equal(permute(positions[:1], int(sizes[0]), int(keys[0]), inverse=True), numbers[:1])


def test_first_batches_of_a_resumed_mix_are_those_of_its_schedule(sources):
    chosen = random.Random(0)
    for seed in range(30):
        weights = {name: chosen.choice([1, 2.5, 0.3]) for name in sources}
        mix = dp.Mix(sources, 8, weights=weights, seed=seed, prefetch_size=0)
        for _ in islice(mix, chosen.randrange(1, 9)):
            pass
        later = dp.Mix(sources, 24, weights=weights | {"web": 1}, seed=seed)
        later.load_state_dict(mix.state_dict())
        schedule, count = later._make_schedule(), 60
        first = np.full(len(later.split), count)
        for batches, sizes, rows in schedule.row_numbers(range(count), count):
            np.minimum.at(first, rows % len(first), np.repeat(batches, sizes))
        np.testing.assert_array_equal(np.minimum(schedule.first_batches(np.arange(len(first))), count), first)


def test_deleted_rows_and_rows_of_several_datasets(tmp_path):
    frame = pd.DataFrame({"n": np.arange(60)})
    prep = dp.Preprocessor({"n": dp.Number(normalization=None)}, split=None)
    dataset = prep.fit_write(frame, tmp_path / "a.dp", block_rows=8)
    before = dataset["train"].loader(6).first_use([17, 18, 17, 99])
    assert before["step"].isna().tolist() == [False, False, False, True]
    assert before["step"][0] == before["step"][2]
    dataset.delete([17])
    prep.append(frame + 1, tmp_path / "a.dp")
    later = dp.open_dataset(tmp_path / "a.dp")["train"].loader(6, row_ids=True)
    with pytest.raises(ConfigError, match="source=None: expected one of 0, 1"):
        later.first_use([17])
    assert later.first_use([17], 0)["epoch"].isna().all()
    [(epoch, step)] = later.first_use([17], 1)[["epoch", "step"]].to_numpy().tolist()
    batch = later.batch(step)
    assert epoch == 0
    assert ((batch["row_id"] == 17) & (batch["source_id"] == 1)).any()


def test_certificate_is_refused_if_altered_or_of_another_dataset(split, sources):
    loader = split.loader(16)
    next(iter(loader))
    certificate = loader.certificate()
    with pytest.raises(ConfigError, match="altered"):
        split.loader(16).verify({**certificate, "steps": 2})
    with pytest.raises(ConfigError, match="open the version that the run used"):
        sources["web"].loader(16).verify(certificate)
    with pytest.raises(ConfigError, match="seed=0"):
        split.loader(16, seed=1).verify(certificate)


def test_run_that_is_not_recorded_is_refused(split):
    loader = split.loader(16)
    state = {name: value for name, value in loader.state_dict().items() if name != "run"}
    loader.load_state_dict(state)
    assert "run" not in loader.state_dict()
    for other in (loader, split.loader(16, overfit_batches=2)):
        for ask in (lambda one=other: one.first_use([1]), lambda one=other: one.batch(0), other.certificate):
            with pytest.raises(ConfigError, match="not recorded"):
                ask()


@pytest.mark.parametrize("ids", ["17", [1.5], [[1]], 3])
def test_row_ids_and_steps_are_checked(split, ids):
    with pytest.raises(ConfigError, match="row numbers"):
        split.loader(16).first_use(ids)
    with pytest.raises(ConfigError, match="expected an integer from 0"):
        split.loader(16).batch(-1)
    with pytest.raises(ConfigError, match="run ends after 0 steps"):
        split.loader(1000, drop_last=True).batch(0)
