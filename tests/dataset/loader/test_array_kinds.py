"""Batches of NumPy arrays."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import daskprep as dp
from daskprep.errors import ConfigError

ROWS = 100


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    names = {"price": rng.random(ROWS), "area": rng.random(ROWS), "city": rng.choice(["Rome", "Oslo"], ROWS)}
    return pd.DataFrame(names).assign(words="a b", sold=rng.choice([True, False], ROWS), weight=1.0)


@pytest.fixture(scope="module")
def prep(frame) -> dp.Preprocessor:
    features = {
        "price": dp.Number(missing_indicator=True),
        "area": "number",
        "city": "category",
        "words": "sequence",
        "sold": "binary",
    }
    return dp.Preprocessor(features, targets="sold", weight="weight").fit(frame)


@pytest.fixture(scope="module")
def train(prep, frame, tmp_path_factory) -> Any:
    return prep.write(frame, tmp_path_factory.mktemp("data") / "a.dp", block_rows=32)["train"]


def assert_same_batches(batches: Any, expected: Any) -> None:
    """Assert that batches hold the tensors that are expected, as NumPy arrays."""
    for (inputs, *others), (tensors, *other_tensors) in zip(batches, expected, strict=True):
        assert list(inputs) == list(tensors)
        for array, tensor in zip([*inputs.values(), *others], [*tensors.values(), *other_tensors], strict=True):
            assert isinstance(array, np.ndarray)
            np.testing.assert_array_equal(np.asarray(array), tensor.numpy())


@pytest.mark.parametrize("options", [{}, {"trim": True}, {"expand": False}, {"shuffle": False, "targets": ["sold"]}])
def test_to_numpy_batches_equal_torch_batches(train, options):
    def flat(batches: Any) -> Any:
        for batch in batches:
            targets = batch[1] if isinstance(batch[1], dict) else {"sold": batch[1]}
            yield batch[0], *targets.values(), batch[2]

    loaders = [train.loader(16, row_ids=True, **options, to=kind) for kind in ("numpy", "torch")]
    assert_same_batches(*map(flat, loaders))
    assert loaders[0].audit()["rows"] == ROWS
    inputs, *_ = next(iter(pickle.loads(pickle.dumps(loaders[0]))))
    assert inputs["row_id"].dtype == np.int64


def test_to_numpy_shares_tensor_memory(monkeypatch, train):
    seen = {}

    def as_numpy(tensor: torch.Tensor) -> np.ndarray:
        array = convert(tensor)
        seen[tensor.data_ptr()] = array.ctypes.data
        return array

    convert = torch.Tensor.numpy
    monkeypatch.setattr(torch.Tensor, "numpy", as_numpy)
    assert len(list(train.loader(16, to="numpy", expand=False))) > 1
    assert seen
    assert all(before == after for before, after in seen.items())


def test_to_numpy_in_stream_and_packing(prep, frame, train):
    options = {"row_ids": True, "seed": 3}
    assert_same_batches(prep.stream(frame, 16, to="numpy", **options), prep.stream(frame, 16, **options))
    packing = dp.Packing(block_size=4, columns=["words"])
    batch = next(iter(train.loader(8, pack=packing, to="numpy")))
    assert {type(array) for array in batch.values()} == {np.ndarray}


def test_transform_receives_numpy_arrays(train):
    loader = train.loader(16, to="numpy", transform=lambda batch: {"x": np.square(batch[0]["price"])})
    assert next(iter(loader))["x"].dtype == np.float32


def test_to_invalid_value_raises(train):
    with pytest.raises(ConfigError, match="to='jax': expected .torch. or .numpy."):
        train.loader(16, to="jax")
    with pytest.raises(ConfigError, match='to="numpy" is for main memory, and device=.cuda. is not'):
        train.loader(16, to="numpy", device="cuda")
