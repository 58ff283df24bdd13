"""Loaders in accelerate yield each row once on any number of ranks, or raise."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import accelerate
import numpy as np
import pytest
import torch
import torch.distributed
from torch.utils.data import DataLoader
from torchdata.nodes import IterableWrapper
from torchdata.nodes import Loader as NodesLoader

import daskprep as dp
from daskprep.errors import ConfigError

CONFIGURATIONS: list[dict[str, Any]] = [
    {},
    {"dispatch_batches": False},
    {"dispatch_batches": True},
    {"split_batches": True},
    {"use_stateful_dataloader": True},
]
# Of accelerate itself, which cannot split a DataLoader without a batch_size; in use it names the option.
REFUSED = {"ConfigError", "ValueError: In order to use `split_batches==True`"}

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


def prepared(batches: Any, configuration: dict[str, Any]) -> Any:
    options = accelerate.DataLoaderConfiguration(**configuration)
    return accelerate.Accelerator(cpu=True, dataloader_config=options).prepare(batches)


def collect_rows(make: Any) -> Any:
    """Return the row ids that a prepared loader yields, or the error."""
    try:
        batches = make()
        return len(batches), [batch["row_id"].tolist() for batch in batches]
    except ValueError as error:
        kind = type(error).__name__
        return kind if kind == "ConfigError" else f"{kind}: {str(error)[:37]}"


def take_part(rank: int, path: Path, folder: Path, world: int) -> None:
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "ACCELERATE_USE_CPU": 1, "OMP_NUM_THREADS": 1}
    ranks |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}  # unused: the process group exists already
    os.environ |= {name: str(value) for name, value in ranks.items()}
    store = torch.distributed.FileStore(str(folder / "store"), world)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    try:
        train = dp.open_dataset(path)["train"]

        def loader():
            return train.loader(48, row_ids=True)

        found = {
            "bare": [collect_rows(lambda c=c: prepared(loader(), c)) for c in CONFIGURATIONS],
            "wrapped": [
                collect_rows(lambda c=c: prepared(DataLoader(loader(), batch_size=None), c)) for c in CONFIGURATIONS
            ],
            "stream": collect_rows(lambda: prepared(DataLoader(stream_of(train), batch_size=None), {})),
            "torch": collect_rows(lambda: DataLoader(loader(), batch_size=None)),
            "nodes": [batch["row_id"].tolist() for batch in NodesLoader(IterableWrapper(loader()))],
        }
        (folder / f"{rank}.json").write_text(json.dumps(found))
    finally:
        torch.distributed.destroy_process_group()


def stream_of(train):
    frame = train.table(["row_id"]).to_pandas()
    prep = dp.Preprocessor({"number": dp.Number(column="row_id")}, split=None).fit(frame)
    return prep.stream(frame, 48, row_ids=True)


@pytest.fixture(scope="module", params=[1, 2, 3])
def ranks(path, tmp_path_factory, request) -> list[dict[str, Any]]:
    """Return the results of all ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=take_part, args=(rank, path, folder, request.param)) for rank in range(request.param)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        process.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(request.param)]


def assert_once(parts, train):
    """Check that ranks together have every row once, in as many batches as `len` returns."""
    ids = train.read("row_id")["row_id"]
    lengths, batches = zip(*parts, strict=True)
    assert {len(one) for one in batches} == {*lengths} == {-(-len(train) // 48)}
    rows = [row for one in batches for batch in one for row in batch]
    assert sorted(rows) == sorted(ids.tolist())


def test_accelerate_yields_each_row_of_a_loader_once(ranks, train):
    for number in range(len(CONFIGURATIONS)):
        assert_once([found["bare"][number] for found in ranks], train)
    assert_once([found["torch"] for found in ranks], train)
    assert_once([(len(found["nodes"]), found["nodes"]) for found in ranks], train)


def test_accelerate_wrapped_loader_yields_each_row_once_or_raises(ranks, train):
    for number, configuration in enumerate(CONFIGURATIONS):
        parts = [found["wrapped"][number] for found in ranks]
        if len(ranks) == 1 and "split_batches" not in configuration:
            assert_once(parts, train)
        else:
            # On all ranks, so that none waits for another.
            assert set(parts) <= REFUSED
    assert all((found["stream"] == "ConfigError") is (len(ranks) > 1) for found in ranks)


def test_accelerate_checkpoint_resumes_loader(train, rows, tmp_path):
    loader = train.loader(48, row_ids=True)
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.register_for_checkpointing(loader)
    batches = iter(accelerator.prepare(loader))
    before = rows(next(batches) for _ in range(5))
    accelerator.save_state(str(tmp_path / "state"))
    resumed = train.loader(48, row_ids=True)
    again = accelerate.Accelerator(cpu=True)
    again.register_for_checkpointing(resumed)
    again.load_state(str(tmp_path / "state"))
    np.testing.assert_array_equal(
        np.sort(np.concatenate(before + rows(resumed))), np.sort(train.read("row_id")["row_id"])
    )


def test_wrapping_loader_in_data_loader_raises(train):
    loader = train.loader(48)
    with pytest.raises(ConfigError, match=r"iterate over the loader.*load_state_dict\(\) instead of skip_first"):
        next(iter(accelerate.skip_first_batches(loader, 2)))
    with pytest.raises(ConfigError, match="chooses its rows itself"):
        next(iter(accelerate.Accelerator(cpu=True).prepare_data_loader(loader)))
    with pytest.raises(ConfigError, match=r"get_train_dataloader\(\)"):
        next(iter(DataLoader(loader)))


def test_loader_has_data_loader_attributes(train):
    loader = train.loader(48, drop_last=True)
    torch_s = DataLoader(train, batch_size=48)
    public = {name for name in vars(torch_s) if not name.startswith("_")}
    assert {name for name in public if not hasattr(loader, name)} == set()
    same = public - {"dataset", "batch_size", "sampler", "batch_sampler", "drop_last", "collate_fn"}
    assert {name: getattr(loader, name) for name in same} == {name: getattr(torch_s, name) for name in same}
    assert (loader.dataset, loader.batch_size, loader.drop_last, len(loader.sampler)) == (train, 48, True, len(train))
