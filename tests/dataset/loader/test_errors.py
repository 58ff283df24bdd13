"""Errors of loaders are raised at once and name their cause."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.errors import ConfigError, CorruptDatasetError

CHUNK = "train/arrays.zarr/review_word/c.7.0"


@pytest.fixture
def copied(path, tmp_path):
    """Copy the dataset, and return the folder of its version."""
    shutil.copytree(path, tmp_path / "copy.dp")
    version = dp.open_dataset(path).version
    return tmp_path / "copy.dp" / version


def loader_of(folder, **options):
    return dp.open_dataset(folder.parent)["train"].loader(48, **options)


@pytest.mark.parametrize("prefetch_size", [0, 1, None])
def test_corrupt_chunk_error_names_file_and_rows(copied, prefetch_size):
    loader = loader_of(copied, prefetch_size=prefetch_size)
    file = copied / CHUNK
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptDatasetError, match=f"{CHUNK} was altered") as caught:
        list(loader)
    assert 'while rows 224 to 255 of "train" were read' in caught.value.__notes__


@pytest.mark.parametrize("prefetch_size", [0, 1, None])
@pytest.mark.parametrize("file", [CHUNK, "train/table/part-00000.parquet"])
def test_missing_file_error_names_file(copied, prefetch_size, file):
    loader = loader_of(copied, prefetch_size=prefetch_size)
    (copied / file).unlink()
    with pytest.raises(CorruptDatasetError, match=f"{file} is missing"):
        list(loader)


def test_loader_resumes_after_corrupt_chunk_is_repaired(copied, rows):
    loader = loader_of(copied, shuffle=False, row_ids=True)
    data = (copied / CHUNK).read_bytes()
    (copied / CHUNK).write_bytes(data[:-1])
    seen = []
    with pytest.raises(CorruptDatasetError):
        seen.extend(batch["row_id"].tolist() for batch in loader)
    assert 0 < len(seen) < len(loader)
    (copied / CHUNK).write_bytes(data)
    loader.load_state_dict(loader.state_dict())
    seen += [batch.tolist() for batch in rows(loader)]
    assert [row for batch in seen for row in batch] == list(range(1003))


def test_overwritten_dataset_raises_for_old_loader_and_state(tmp_path, table):
    folder = tmp_path / "listings.dp"
    prep = dp.Preprocessor({"price": "number", "city": "category"})
    old = prep.fit_write(table, folder, block_rows=32)["train"].loader(48)
    batches = iter(old)
    next(batches)
    state = old.state_dict()
    batches.close()
    new = prep.fit_write(pd.concat([table, table]), folder, block_rows=32, overwrite=True)["train"].loader(48)
    with pytest.raises(ConfigError, match='belongs to split "train" of version'):
        new.load_state_dict(state)
    with pytest.raises(CorruptDatasetError, match="is gone: the dataset was written again or removed; open it again"):
        list(old)


@pytest.mark.parametrize("names", [{"columns": ["prise"]}, {"targets": "prise"}, {"targets": ["price", "prise"]}])
def test_unknown_output_raises(train, names):
    with pytest.raises(ConfigError, match='no output "prise".*Did you mean "price"'):
        train.loader(48, **names)


@pytest.mark.parametrize("epoch", [-1, "2", 1.0, True])
def test_set_epoch_invalid_value_raises(train, epoch):
    with pytest.raises(ConfigError, match="epoch=.*expected an integer from 0"):
        train.loader(48).set_epoch(epoch)


def test_transform_error_propagates(train):
    with pytest.raises(ZeroDivisionError):
        next(iter(train.loader(48, transform=lambda batch: 1 / 0)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 48, "rank": 0, "world_size": 5}, "by 5 ranks; use batch_size=50, or uneven=True"),
        ({"batch_size": 2, "rank": 0, "world_size": 5, "uneven": True}, "by 5 ranks; use batch_size=5$"),
        ({"uneven": 2}, "uneven=2: expected True or False"),
        ({"batch_size": 2048, "rank": 0, "world_size": 2048, "streams": 2048}, "1003 rows are too few for 2048 ranks"),
        ({"rank": 4, "world_size": 4}, "rank=4 of world_size=4: ranks are 0 to 3"),
        ({"rank": -1, "world_size": 4}, "rank=-1 of world_size=4"),
        ({"rank": 0, "world_size": 0}, "world_size=0: expected an integer from 1"),
        ({"rank": 0}, "pass both rank and world_size"),
        ({"world_size": 2}, "pass both rank and world_size"),
        ({"batch_size": 0}, "batch_size=0: expected an integer from 1"),
        ({"streams": 0}, "streams=0"),
        ({"batch_size": 1.5}, "batch_size=1.5"),
        ({"shuffle": "no"}, "shuffle='no': expected True or False"),
        ({"shuffle": np.array([1, 0])}, r"shuffle=array\(\[1, 0\]\): expected True or False"),
        ({"drop_last": "no"}, "drop_last='no'"),
        ({"expand": None}, "expand=None"),
        ({"seed": 1.9}, "seed=1.9: expected an integer"),
        ({"seed": "7"}, "seed='7'"),
    ],
)
def test_incompatible_sizes_raise(train, options, words):
    with pytest.raises(ConfigError, match=words):
        train.loader(**options)
