"""No batch has more than `batch_size` rows, on any ranks and in any order of rows."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.dataset import Split

LENGTHS = {"trim": True, "group_by_length": "review"}
ORDERS: list[dict[str, Any]] = [
    {},
    {"shuffle": False},
    {"streams": 2},
    LENGTHS,
    LENGTHS | {"batch_tokens": 10_000},
    {"balance": dp.Oversample("sold", ratio=1.0)},
    {"prefetch_size": 0},
]


@pytest.fixture(scope="module")
def prep() -> dp.Preprocessor:
    return dp.Preprocessor({"n": dp.Number(normalization=None), "review": "text", "sold": "binary"}, split=None)


def table(rows: int) -> pd.DataFrame:
    numbers = np.arange(rows)
    return pd.DataFrame(
        {"n": numbers, "review": ["a b c"[: 1 + 2 * (n % 3)] for n in numbers], "sold": numbers % 4 == 0}
    )


@pytest.fixture(scope="module", params=[(37, 24), (22, 16), (103, 100)], ids=str)
def case(prep: dp.Preprocessor, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    rows, batch_size = request.param
    path: Path = tmp_path_factory.mktemp("last") / "rows.dp"
    return prep.fit_write(table(rows), path, block_rows=10, progress=False)["train"], batch_size


def flat(*batches: list[list[float]]) -> list[float]:
    return sorted(itertools.chain.from_iterable(itertools.chain.from_iterable(batches)))


def shares(split: Split, batch_size: int, world: int, state: Any = None, **options: Any) -> list[list[list[float]]]:
    """Return the rows of each batch of each rank."""
    loaders = [split.loader(batch_size, rank=rank, world_size=world, uneven=True, **options) for rank in range(world)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    found = [[batch["n"].tolist() for batch in loader] for loader in loaders]
    assert {loader.audit()["batches"] for loader in loaders} == {len(found[0])}
    return found


@pytest.mark.parametrize("options", ORDERS, ids=str)
def test_rest_of_an_epoch_is_a_smaller_batch(case: tuple[Split, int], options: dict[str, Any]) -> None:
    split, batch_size = case
    [alone] = shares(split, batch_size, 1, **options)
    rows = flat(alone)
    full, rest = divmod(len(rows), batch_size)
    if "batch_tokens" not in options:
        assert list(map(len, alone)) == [batch_size] * full + [rest] * (rest > 0)
    for world in (2, 5, 8):
        ranks = shares(split, batch_size, world, **options)
        sizes = np.array([[len(batch) for batch in rank] for rank in ranks])
        assert sizes.min() >= 1
        assert sizes.sum(axis=0).max() <= batch_size or "batch_tokens" in options
        assert np.ptp(sizes, axis=0).max() <= 1
        assert flat(*ranks) == rows


@pytest.mark.parametrize("options", ORDERS[:5], ids=str)
def test_states_within_an_epoch_resume_on_other_ranks(case: tuple[Split, int], options: dict[str, Any]) -> None:
    split, batch_size = case
    for world, stop in ((5, 1), (1, 1), (5, 0)):
        loader = split.loader(batch_size, rank=0, world_size=world, uneven=True, **options)
        batches, [before] = iter(loader), shares(split, batch_size, 1, **options)
        for _ in range(stop):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        if 0 < state["rows_given"] < len(split):
            [left] = shares(split, batch_size, 1, state, **options)
            done = shares(split, batch_size, world, **options)
            assert flat(left, [rank[0] for rank in done]) == flat(before)


def test_last_batch_of_ranks_with_one_row_takes_the_rest(case: tuple[Split, int]) -> None:
    split, _ = case
    sizes = [[len(batch) for batch in rank] for rank in shares(split, 8, 8)]
    assert {len(rank) for rank in sizes} == {len(split) // 8}
    assert sum(map(sum, sizes)) == len(split)


def test_last_batches_of_streams(prep: dp.Preprocessor, case: tuple[Split, int]) -> None:
    split, batch_size = case
    for world in (1, 5):
        ranks = [
            [batch["n"].tolist() for batch in prep.stream(table(len(split)), batch_size, workers="threads", rank=rank,
                                                          world_size=world, uneven=True)]
            for rank in range(world)
        ]  # fmt: skip
        sizes = np.array([[len(batch) for batch in rank] for rank in ranks])
        assert sizes.sum(axis=0).max() <= batch_size
        assert sizes.min() >= 1
        assert flat(*ranks) == list(range(len(split)))
