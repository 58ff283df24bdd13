"""Streamed images and audio equal those of a loader, wherever they are decoded."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
import torch

import daskprep as dp
from daskprep.errors import ConfigError, MediaError
from daskprep.extensions.media.audio import encode_wav
from daskprep.extensions.media.pixels import encode_png
from daskprep.sources import read_files

ROWS = 60


@pytest.fixture(scope="module")
def frame(tmp_path_factory):
    """Images in files and audio as bytes, with missing cells."""
    folder = tmp_path_factory.mktemp("media")
    rng = np.random.default_rng(0)
    photos, sounds = [], []
    for i in range(ROWS):
        path = folder / f"{i}.png"
        path.write_bytes(encode_png(rng.integers(0, 255, (8, 8, 3), np.uint8)))
        photos.append(None if i % 13 == 5 else str(path))
        sounds.append(None if i % 11 == 3 else encode_wav(rng.uniform(-1, 1, 200), 100))
    return pd.DataFrame({"photo": photos, "sound": sounds, "n": range(ROWS)})


def preprocessor(**options):
    photo = dp.Image(height=8, width=8, num_channels=3, missing_value_strategy="bfill", **options)
    sound = dp.Audio(type="raw", sampling_rate=100, audio_file_length_limit_in_s=1.0, missing_value_strategy="ffill")
    return dp.Preprocessor({"photo": photo, "sound": sound, "n": "number"}, split=dp.RandomSplit((0.8, 0.2)))


@pytest.mark.parametrize("decode_on", ["trainer", "workers"])
@pytest.mark.parametrize("mode", ["lazy", "eager"])
def test_media_equal_media_of_loader(frame, tmp_path, joined, mode, decode_on):
    prep = preprocessor(mode=mode)
    train = prep.fit_write(frame, tmp_path / "media.dp")["train"]
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=9)
    source = read_files(tmp_path / "rows.parquet", partition_bytes=1)
    stream = prep.stream(source, 7, row_ids=True, decode_on=decode_on, window="1MB")
    found, expected = joined(stream), joined(train.loader(7, row_ids=True))
    for name, column in expected.items():
        assert torch.equal(found[name], column), name
    assert stream.stats()["decoded"] == (2 * len(train) if decode_on == "trainer" else 0)


def test_ranks_share_decoding(frame, tmp_path, joined):
    prep = preprocessor().fit(frame)
    whole = joined(prep.stream(frame, 8, row_ids=True, window="1MB"))
    # A rank has no rows in some partitions.
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=3)
    source = read_files(tmp_path / "rows.parquet", partition_bytes=1)
    streams = [prep.stream(source, 8, row_ids=True, window="1MB", rank=rank, world_size=4) for rank in range(4)]
    ranks = joined([batch for stream in streams for batch in stream])
    assert all(torch.equal(ranks[name], column) for name, column in whole.items())
    assert sum(stream.stats()["decoded"] for stream in streams) == 2 * len(whole["n"])


@pytest.mark.parametrize("decode_on", ["trainer", "workers"])
@pytest.mark.parametrize("on_error", ["raise", "fill", "drop"])
def test_on_error_of_undecodable_files(frame, tmp_path, decode_on, on_error):
    broken = frame.copy()
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    broken.loc[20, "photo"] = str(bad)
    prep = preprocessor(on_error=on_error).fit(frame)
    prep.split = None
    with pytest.warns(UserWarning, match='1 of 60 rows .* "photo"') if on_error == "drop" else nullcontext():
        stream = prep.stream(broken, 8, row_ids=True, decode_on=decode_on, window="1MB")
    if on_error == "raise":
        with pytest.raises(MediaError, match=r'column "photo", row 20: .*bad.png'):
            list(stream)
        return
    yielded = np.concatenate([batch["row_id"].numpy() for batch in stream])
    assert (20 in yielded) == (on_error == "fill")
    assert stream.stats()["filled"] == (on_error == "fill" and decode_on == "trainer")


def test_cells_much_larger_than_fitted_raise(tmp_path):
    small = pd.DataFrame({"photo": [encode_png(np.zeros((8, 8, 3), np.uint8))] * 40})
    rng = np.random.default_rng(0)
    large = pd.DataFrame({"photo": [encode_png(rng.integers(0, 255, (200, 200, 3), np.uint8)) for _ in range(40)]})
    prep = dp.Preprocessor({"photo": dp.Image(height=8, width=8, num_channels=3)}).fit(small)
    assert sum(len(batch["photo"]) for batch in prep.stream(large, 8, window="20MB")) == 40
    with pytest.raises(ConfigError, match=r'a window takes .* bytes, more than window=500,000.*decode_on="workers"'):
        list(prep.stream(large, 8, window=500_000))
    assert len(list(prep.stream(large, 8, window=500_000, decode_on="workers"))) == 5
