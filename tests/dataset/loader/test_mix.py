"""A mix has exact counts of each source, and resumes anywhere: on other ranks, with other weights and more sources."""

from __future__ import annotations

import json
import math
import pickle
import random
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import islice
from math import gcd
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import daskprep as dp
from daskprep.dataset import Split
from daskprep.dataset.loader.mixing import Quotas
from daskprep.errors import ConfigError

ROWS = {"web": 211, "books": 64, "code": 37, "chat": 19, "late": 90}
WEIGHTS = {"web": 0.5, "books": 0.2, "code": 0.15, "chat": 0.15}


def write_sources(folder: Path) -> dict[str, Split]:
    """Return splits of different sizes and blocks, whose values are the source and the row."""
    prep = dp.Preprocessor({"n": dp.Number(normalization=None)}).fit(pd.DataFrame({"n": [0.0, 1.0]}))
    splits = {}
    for index, (name, rows) in enumerate(ROWS.items()):
        frame = pd.DataFrame({"n": np.arange(rows) + 1000.0 * index})
        splits[name] = prep.write(frame, folder / f"{name}.dp", block_rows=8 + 3 * index)["train"]
    return splits


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Split]:
    return write_sources(tmp_path_factory.mktemp("mix"))


@pytest.fixture(scope="module")
def four(sources) -> dict[str, Split]:
    return {name: sources[name] for name in WEIGHTS}


def rows_by_source(batches: Sequence[Mapping[str, torch.Tensor]], names: Sequence[str]) -> dict[str, list[int]]:
    """Return the rows of each source in batches, with the values of the rows compared with their numbers."""
    ids, rows, values = (torch.cat([batch[key] for batch in batches]) for key in ("source_id", "row_id", "n"))
    codes = torch.tensor([list(ROWS).index(name) for name in names])
    assert torch.equal(values.long(), codes[ids] * 1000 + rows)
    return {name: rows[ids == index].tolist() for index, name in enumerate(names)}


def assert_epochs(rows: Sequence[int], size: int) -> None:
    """Fail unless rows are permutations of all rows of a source, one after the other, and the start of one."""
    for start in range(0, len(rows), size):
        epoch = rows[start : start + size]
        assert len(set(epoch)) == len(epoch)
        assert max(epoch) < size


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=8).filter(any),
    st.integers(1, 50),
    st.integers(0, 900),
)
@settings(max_examples=30, deadline=None)
def test_source_counts_are_within_one_row_of_weights(weights, batch_size, batch):
    weights = [weight // gcd(*weights) for weight in weights]
    quotas = Quotas.of(weights, batch_size)
    counts = quotas.rows_at(range(600))
    assert (np.diff(counts, axis=0).sum(axis=1) == batch_size).all()
    assert (np.diff(counts, axis=0) >= 0).all()
    for source, weight in enumerate(weights):
        exact = [Fraction(weight * batch_size * number, sum(weights)) for number in range(600)]
        assert all(abs(count - one) < 1 for count, one in zip(counts[:, source].tolist(), exact, strict=True))
    later = quotas.after(batch)
    np.testing.assert_array_equal(later.rows_at(range(5, 50, 3)), quotas.rows_at(range(batch + 5, batch + 50, 3)))


def stop_at_random(sources: Mapping[str, Split], seed: int, stops: int) -> None:
    """Resume at random with other ranks, weights, batch sizes or one more source; check all rows."""
    chosen = random.Random(seed)
    names, state, found = list(WEIGHTS), None, {name: [] for name in ROWS}
    weights, batch_size = WEIGHTS, 24
    counted, batches = dict.fromkeys(ROWS, 0), 0  # since the weights were set
    mixes: dict[tuple[int, int], dp.Mix] = {}
    for stop in range(stops):
        world = chosen.randint(1, 4)
        if state is not None and chosen.random() < 0.2:
            if chosen.random() < 0.3 and "late" not in names:
                names.insert(chosen.randrange(len(names)), "late")
            weights = {name: chosen.choice([0, 1, 2.5, 7, 0.013, 1 / 3]) for name in names} | {"web": 1}
            batch_size = chosen.choice([4, 24, 53])
            counted, batches, mixes = dict.fromkeys(ROWS, 0), 0, {}
        number, parts = chosen.randint(1, 12), []
        for rank in range(world):
            if (rank, world) not in mixes:
                picked = {name: sources[name] for name in names}
                options = {
                    "seed": seed,
                    "streams": 5,
                    "row_ids": True,
                    "uneven": True,
                    "prefetch_size": None if stop % 50 == 0 else stop % 2,
                }
                mixes[rank, world] = dp.Mix(picked, batch_size, weights=weights, rank=rank, world_size=world, **options)
            mix = mixes[rank, world]
            if state is not None:
                mix.load_state_dict(json.loads(json.dumps(state)))
            parts.append(list(islice(iter(mix), number)))
            assert len(json.dumps({**mix.state_dict(), "run": []})) < 1000
            assert stop % 4 or mix.audit()["batches"] == number
        state = mixes[0, world].state_dict()
        assert all(mixes[rank, world].state_dict() == state for rank in range(world))
        for step in range(number):
            together = [part[step] for part in parts]
            sizes = [len(part["n"]) for part in together]
            assert sum(sizes) == batch_size
            assert max(sizes) - min(sizes) <= 1
            batches += 1
            for name, rows in rows_by_source(together, names).items():
                found[name] += rows
                counted[name] += len(rows)
                share = Fraction(repr(float(weights[name]))) / sum(
                    Fraction(repr(float(one))) for one in weights.values()
                )
                assert abs(counted[name] - share * batch_size * batches) < 1
    for name, rows in found.items():
        assert_epochs(rows, ROWS[name])
    assert {name: len(rows) for name, rows in found.items() if name in names} == {
        name: source["rows"] for name, source in state["sources"].items()
    }


def test_random_resumes_neither_lose_nor_repeat_rows(sources):
    stop_at_random(sources, seed=0, stops=6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_many_random_resumes_neither_lose_nor_repeat_rows(sources, seed):
    stop_at_random(sources, seed, stops=60)


def take(mix: dp.Mix, count: int | None = None) -> list[dict[str, torch.Tensor]]:
    return list(islice(iter(mix), len(mix) if count is None else count))


def test_ranks_share_batches_with_rows_of_every_source(four):
    options = {"weights": WEIGHTS, "row_ids": True, "seed": 3}
    alone = take(dp.Mix(four, 48, **options), 9)
    ranks = [take(dp.Mix(four, 48, **options, rank=rank, world_size=4), 9) for rank in range(4)]
    for batch, *parts in zip(alone, *ranks, strict=True):
        assert [len(part["n"]) for part in parts] == [12] * 4
        together = torch.cat([part["n"] for part in parts])
        torch.testing.assert_close(together.sort().values, batch["n"].sort().values)
        for part in parts:
            counts = torch.bincount(part["source_id"], minlength=4)
            expected = 12 * torch.tensor([*WEIGHTS.values()])
            assert ((counts - expected).abs() < 2).all()


def test_epoch_length_for_until_first_and_all(four):
    first = dp.Mix(four, 20, weights=WEIGHTS, until="first", row_ids=True)
    assert len(first) == 6  # "chat" has 19 rows, 3 in each batch
    seen = rows_by_source(take(first), list(four))
    assert {name: len(rows) for name, rows in seen.items()} == {"web": 60, "books": 24, "code": 18, "chat": 18}
    assert [len(take(first)), first.epoch] == [6, 1]
    assert first.audit() == {"rows": 120, "batches": 6}

    last = dp.Mix(four, 20, weights=WEIGHTS, until="all", row_ids=True)
    seen = rows_by_source(take(last), list(four))
    assert all(len(set(rows)) == ROWS[name] for name, rows in seen.items())
    assert len(last) == 22  # "web" has 211 rows, 10 in each batch
    again = rows_by_source(take(last), list(four))
    assert {name: len(rows) for name, rows in again.items()} == {name: len(rows) for name, rows in seen.items()}
    assert again["web"] != seen["web"]


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 500)), min_size=1, max_size=5),
    st.integers(1, 40),
    st.integers(0, 20),
)
@settings(max_examples=60, deadline=None)
def test_number_of_batches_is_that_of_the_shares(sources, batch_size, passed):
    sizes, weights = zip(*sources, strict=True)
    weights = [weight // gcd(*weights) for weight in weights]
    quotas = Quotas.of(weights, batch_size)
    shares = [Fraction(size * sum(weights), weight * batch_size) for size, weight in zip(sizes, weights, strict=True)]
    first, last = quotas.count(sizes, "first"), quotas.count(sizes, "all")
    assert (first, last) == (math.floor(min(shares)), math.ceil(max(shares)))
    if last < 5_000:  # before a source would repeat a row, and after all sources have yielded theirs
        assert (quotas.rows_at(range(first, first + 1))[0] <= sizes).all()
        assert (quotas.rows_at(range(last, last + 1))[0] >= sizes).all()
    if passed <= first:
        later = quotas.after(passed)
        assert (later.count(sizes, "first"), later.count(sizes, "all")) == (first - passed, last - passed)


def test_number_of_batches_of_a_tiny_weight_is_computed_at_once():
    assert Quotas.of((1, 10**9), 64).count((1_000, 100_000), "all") == -(-1_000 * (10**9 + 1) // 64)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("rows", "block_rows"), [(1, 8), (2, 1), (30, 8)])
def test_blocks_of_small_sources_are_read_once_for_many_epochs(sources, tmp_path, rows, block_rows, shuffle):
    prep = dp.Preprocessor({"n": dp.Number(normalization=None)}).fit(pd.DataFrame({"n": [0.0, 1.0]}))
    small = prep.write(pd.DataFrame({"n": np.arange(rows) * 1.0}), tmp_path / "small.dp", block_rows=block_rows)[
        "train"
    ]
    options = {"weights": {"small": 1, "web": 1}, "row_ids": True, "shuffle": shuffle, "uneven": True}
    splits = {"small": small, "web": sources["web"]}
    mix = dp.Mix(splits, 32, **options)
    batches = take(mix, 60)
    found = torch.cat([batch["row_id"][batch["source_id"] == 0] for batch in batches])
    epochs = found[: len(found) // rows * rows].reshape(-1, rows)
    assert (epochs.sort(dim=1).values == torch.arange(rows)).all() or 32 % rows  # an epoch may be sorted by stream
    counts = torch.bincount(found, minlength=rows)
    assert counts.max() - counts.min() <= 1
    assert mix.audit()["batches"] == 60
    web_blocks = 2 * 27 * (60 * 16 // 211 + 2)
    assert mix.stats()["blocks"] <= web_blocks + 2 * small.layout.blocks("train")
    ranks = [take(dp.Mix(splits, 32, rank=rank, world_size=3, **options), 8) for rank in range(3)]
    for whole, *parts in zip(batches, *ranks, strict=False):
        assert sorted(torch.cat([part["n"] for part in parts]).tolist()) == sorted(whole["n"].tolist())
    later = dp.Mix(splits, 32, **options)
    next(iter(later))
    again = dp.Mix(splits, 32, **options)
    again.load_state_dict(json.loads(json.dumps(later.state_dict())))
    assert torch.equal(take(again, 5)[4]["n"], batches[5]["n"])


def count_calls(batches, count):
    """Return the number of Python functions that are called until `count` batches are yielded."""
    calls = [0]

    def add(frame, event, argument):
        calls[0] += event == "call"

    sys.setprofile(add)
    try:
        for _ in islice(batches, count):
            pass
    finally:
        sys.setprofile(None)
    return calls[0]


def test_batches_of_tiny_sources_take_no_more_calls(tmp_path):
    prep = dp.Preprocessor({"n": dp.Number(normalization=None)}, split=None).fit(pd.DataFrame({"n": [0.0, 1.0]}))

    def write(rows):
        frame = pd.DataFrame({"n": np.arange(float(rows))})
        return prep.write(frame, tmp_path / f"{rows}.dp", block_rows=1_024)["train"]

    large, calls = write(20_000), {}
    for rows in (1, 3, 10, 1_000):
        mix = dp.Mix({"small": write(rows), "large": large}, 64, weights={"small": 1, "large": 1}, prefetch_size=0)
        batches = iter(mix)
        count_calls(batches, 100)
        calls[rows] = count_calls(batches, 1_000)
    assert max(calls.values()) <= 1.1 * calls[1_000], calls


@pytest.mark.parametrize("world", [1, 3])
def test_unread_blocks_of_mix_are_those_of_later_batches(four, world):
    mix = dp.Mix(four, 24, weights=WEIGHTS, rank=world - 1, world_size=world)
    schedule = mix._make_schedule()
    windows = [set(schedule.window(range(batch, batch + 1)).block_positions) for batch in range(60)]
    positions = np.array(sorted(set().union(*windows)))
    for batch in range(60):
        unread = set(positions[schedule.mask_unread(positions, batch)].tolist())
        assert set().union(*windows[batch:]) <= unread
    assert len(unread) < len(positions)


def test_resume_at_any_batch_continues_into_next_epoch(four):
    mix = dp.Mix(four, 20, weights=WEIGHTS, until="first", row_ids=True)
    whole = [batch["n"] for batch in [*take(mix), *take(mix)]]
    mix.set_epoch(0)
    for stop, _ in enumerate(mix, start=1):
        other = dp.Mix(four, 20, weights=WEIGHTS, until="first", row_ids=True)
        other.load_state_dict(mix.state_dict())
        found = [batch["n"] for batch in [*take(other), *(take(other) if stop < 6 else [])]]
        torch.testing.assert_close(torch.cat(found), torch.cat(whole[stop:]))


def test_infinite_iteration_continues_after_last_batch(four):
    mix, other = (dp.Mix(four, 20, weights=WEIGHTS) for _ in range(2))
    parts = torch.cat([batch["n"] for _ in range(4) for batch in take(mix, 3)])
    torch.testing.assert_close(parts, torch.cat([batch["n"] for batch in take(other, 12)]))
    copy = pickle.loads(pickle.dumps(mix))
    torch.testing.assert_close(take(copy, 1)[0]["n"], take(mix, 1)[0]["n"])
    with pytest.raises(TypeError, match='until=None has no end: pass until="first" or "all"'):
        len(mix)


def test_default_weights_are_row_counts_and_floats_are_decimal(four):
    mix = dp.Mix(four, 331, until="first")
    assert [len(mix), len(take(mix)[0]["n"])] == [1, 331]
    assert str(dp.Mix(four, 10, weights=dict.fromkeys(four, 0.1))).startswith("Mix(web: 25.000%, books: 25.000%")
    assert [one["weight"] for one in dp.Mix(four, 10, weights=WEIGHTS).state_dict()["sources"].values()] == [
        10,
        4,
        3,
        3,
    ]


def test_sources_with_same_rows_have_different_orders(sources):
    mix = dp.Mix({"one": sources["web"], "two": sources["web"]}, 20, row_ids=True)
    [batch] = take(mix, 1)
    assert set(batch["row_id"][:10].tolist()) != set(batch["row_id"][10:].tolist())


def test_worker_processes_yield_the_same_batches(four):
    options = {"weights": WEIGHTS, "until": "all"}
    expected = [batch["n"] for batch in dp.Mix(four, 20, **options)]
    loader = DataLoader(dp.Mix(four, 20, **options), batch_size=None, num_workers=2)
    torch.testing.assert_close(torch.cat([batch["n"] for batch in loader]), torch.cat(expected))


def test_data_module_trains_on_mix_and_resumes(four):
    def data() -> dp.DataModule:
        mix = lambda rank, world_size: dp.Mix(four, 20, weights=WEIGHTS, rank=rank, world_size=world_size)  # noqa: E731
        module = dp.DataModule({"train": {"text": mix}}, rank=0, world_size=1)
        module.setup("fit")
        return module

    one, other = data(), data()
    started = list(islice(iter(one.train_dataloader()), 5))
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    found = [batch["n"] for batch in [*started, *islice(iter(other.train_dataloader()), 5)]]
    expected = [batch["n"] for batch in take(dp.Mix(four, 20, weights=WEIGHTS), 10)]
    torch.testing.assert_close(torch.cat(found), torch.cat(expected))


@pytest.fixture(scope="module")
def different(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Split]:
    """Return splits with outputs that only one of them has, or that are encoded differently."""
    folder = tmp_path_factory.mktemp("different")
    one = pd.DataFrame({"price": [1.0, 2.0, 3.0], "city": list("aab"), "sold": [True, False, True], "a": [1.0, 2, 3]})
    other = pd.DataFrame({"price": [3.0, 1.0, 2.0], "city": list("bca"), "sold": [True, True, False]})
    features = {"price": dp.Number(normalization="minmax"), "city": "category", "sold": "binary"}
    return {
        "one": dp.Preprocessor({**features, "a": "number"}, targets="sold").fit_write(one, folder / "one")["train"],
        "other": dp.Preprocessor(features).fit_write(other, folder / "other")["train"],
    }


def test_outputs_encoded_identically_are_batched_together(different):
    [(inputs, sold)] = take(dp.Mix(different, 6, columns=["price"], targets="sold"), 1)
    assert (list(inputs), sold.dtype, len(sold)) == (["price"], torch.bool, 6)
    torch.testing.assert_close(inputs["price"].sort().values, torch.tensor([0, 0, 0.5, 0.5, 1, 1]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r'output "city" is encoded differently in the sources "one" and "other" \(.*with one fitted Preprocessor'),
        ({"columns": ["price", "a"]}, 'no output "a" in source other'),
        (
            {"columns": ["price", "sold"]},
            r"sources have other targets, \{'one': \['sold'\], 'other': \[\]\}: select them with targets=",
        ),
    ],
)
def test_different_outputs_raise(different, options, message):
    with pytest.raises(ConfigError, match=message):
        dp.Mix(different, 6, **options)


def test_outputs_missing_in_a_source_warn_once(tmp_path):
    frame = pd.DataFrame({"a": [0.0, 1.0], "b": [1.0, 2.0]})
    sources = {
        name: dp.Preprocessor(dict.fromkeys(name, "number")).fit_write(frame, tmp_path / f"{name}.dp")["train"]
        for name in ("a", "ab")
    }
    with pytest.warns(UserWarning, match="a mix leaves out b, which not all sources have: .*columns="):
        assert [list(batch) for batch in take(dp.Mix(sources, 2), 1)] == [["a"]]
    take(dp.Mix(sources, 2, columns="a"), 1)  # without a warning


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": {"web": 1}}, "expected a weight for each of the sources web, books, code, chat"),
        ({"weights": WEIGHTS | {"web": -1}}, '"web": -1: expected a number from 0'),
        ({"weights": WEIGHTS | {"web": float("nan")}}, "expected a number from 0"),
        ({"weights": dict.fromkeys(WEIGHTS, 0)}, "weights are all 0"),
        ({"until": "last"}, 'until=\'last\': expected "first", "all" or None'),
        ({"batch_size": 0}, "batch_size=0: expected an integer from 1"),
        ({"world_size": 3, "rank": 0}, "not divisible by 3 ranks"),
    ],
)
def test_invalid_options_raise(four, options, message):
    with pytest.raises(ConfigError, match=message):
        dp.Mix(four, **{"batch_size": 20, **options})


def test_sources_must_be_splits():
    with pytest.raises(ConfigError, match='expected a name and a split, dataset\\["train"\\]'):
        dp.Mix({"web": "web.dp"})


def test_state_of_other_rows_or_order_raises(four, sources):
    state = dp.Mix(four, 20, weights=WEIGHTS).state_dict()
    with pytest.raises(ConfigError, match='the state has a source "chat", and this mix has .* set its weight to 0'):
        dp.Mix({name: four[name] for name in ("web", "books", "code")}, 20).load_state_dict(state)
    with pytest.raises(ConfigError, match='source "chat": the state belongs to split "train" of the dataset'):
        dp.Mix({**four, "chat": sources["late"]}, 20).load_state_dict(state)
    with pytest.raises(ConfigError, match="the state was saved with seed=0, but this mix has 1"):
        dp.Mix(four, 20, seed=1).load_state_dict(state)
    with pytest.raises(ConfigError, match="not a state of a mix"):
        dp.Mix(four, 20).load_state_dict({**state, "sources": {"web": {"rows": 3}}})


def test_row_ids_of_datasets_opened_together_include_source_id(sources, tmp_path):
    paths = [sources[name].dataset.url for name in ("code", "web")]
    loader = dp.open_dataset(paths)["train"].loader(16, row_ids=True)
    assert rows_by_source(list(loader), ["code", "web"]).keys() == {"code", "web"}
    assert "source_id" not in next(iter(sources["web"].loader(16, row_ids=True)))
    frame = pd.DataFrame({"source_id": [1.0, 2.0]})
    prep = dp.Preprocessor({"source_id": "number"}).fit(frame)
    datasets = [prep.write(frame, tmp_path / name) for name in "ab"]
    train = dp.open_dataset([dataset.url for dataset in datasets])["train"]
    with pytest.raises(ConfigError, match='batches already have an output "source_id"'):
        train.loader(4, row_ids=True)
