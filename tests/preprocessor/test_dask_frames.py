"""A Dask frame gives what its rows give in pandas, whatever computes it: Dask's optimizer must not move partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import daskprep as dp

FEATURES = {
    "x": dp.Number(normalization="zscore"),
    "double": dp.Number(normalization="minmax"),
    "c": "category",
    "t": "text",
    "past": dp.Timeseries(column="x", window_size=3),
}
STEPS = {
    "assign": lambda frame: frame.assign(double=frame.x * 2),
    "filter": lambda frame: frame[frame.x > -1],
    "map": lambda frame: frame.map_partitions(lambda part: part),
    "repartition": lambda frame: frame.repartition(npartitions=5),
    "select": lambda frame: frame[list(frame.columns)],
}


def apply(frame: Any, steps: list[str]) -> Any:
    """Return the frame after steps; those on partitions leave a frame of pandas as it is."""
    for step in ["assign", *steps]:
        if isinstance(frame, dd.DataFrame) or step not in {"map", "repartition"}:
            frame = STEPS[step](frame)
    return frame


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(FEATURES)), min_size=1, unique=True),
    steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=3),
    split=st.sampled_from([None, dp.RandomSplit(seed=0), dp.KFold(2, seed=0)]),
)
def test_frames_of_many_small_files_equal_pandas(tmp_path_factory, names, steps, split):
    folder: Path = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    for number in range(8):
        rows = {"x": rng.normal(size=50), "c": rng.choice([*"abc"], 50), "t": rng.choice(["a b", "c"], 50)}
        pd.DataFrame(rows).to_parquet(folder / f"{number}.parquet")
    lazy = apply(dd.read_parquet(folder), steps)
    eager = apply(pd.read_parquet(folder), steps).reset_index(drop=True)
    prep = dp.Preprocessor({name: FEATURES[name] for name in names}, split=split)
    digests = set()
    for frame in (lazy, eager):
        dataset = prep.fit_write(frame, folder / "rows.dp", overwrite=True, progress=False)
        root = Path(dataset.url) / dataset.version
        files = [file for file in sorted(root.rglob("*")) if file.is_file() and file.name != "manifest.json"]
        digests.add(tuple((file.name, file.read_bytes()) for file in files))
    assert len(digests) == 1
    fitted = prep.fit(lazy)
    expected = fitted.encode(eager)
    for name, array in fitted.encode(lazy).items():
        np.testing.assert_array_equal(array.compute(), expected[name])
    if split is None and "past" not in names:
        streamed = sum(len(batch[names[0]]) for batch in fitted.stream(lazy, batch_size=64))
        assert streamed == len(eager)


def test_partitions_of_a_frame_do_not_depend_on_its_columns(tmp_path):
    for number in range(8):
        pd.DataFrame({"x": range(50), "a": 1, "b": 2, "c": 3}).to_parquet(tmp_path / f"{number}.parquet")
    lazy = dd.read_parquet(tmp_path).assign(double=lambda frame: frame.x * 2)
    assert lazy[["double"]].optimize().npartitions < 8  # Dask would join them
    encoded = dp.Preprocessor({"double": dp.Number(normalization=None)}).fit(lazy).encode(lazy)["double"]
    np.testing.assert_array_equal(encoded.compute(), np.tile(np.arange(50) * 2, 8))
