"""Worker processes return the same results as threads, even if a worker dies."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, get_worker

import daskprep as dp

pytestmark = pytest.mark.cluster

ROWS = 400


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    words = np.array(["alpha", "Beta", "gamma,", "delta"])
    return pd.DataFrame(
        {
            "x": pd.Series(rng.lognormal(size=ROWS)).mask(rng.random(ROWS) < 0.2),
            "c": rng.choice(["a", "b", "c"], ROWS),
            "text": [" ".join(rng.choice(words, rng.integers(0, 9))) for _ in range(ROWS)],
        }
    )


def preprocessor() -> dp.Preprocessor:
    features = {"x": dp.Number(missing_value_strategy="ffill"), "c": "category", "text": "text"}
    return dp.Preprocessor(features, split=dp.StratifiedSplit("c"))


@pytest.fixture(scope="module")
def expected(table) -> str:
    return json.dumps(preprocessor().fit(table).to_dict())


@pytest.mark.slow
def test_cluster_fit_and_encode_equal_local(cluster, table, expected, tmp_path):
    table.to_parquet(tmp_path / "part.parquet", row_group_size=50)
    encoded = preprocessor().fit(table).encode(table)
    for frame in (dd.from_pandas(table, npartitions=7), str(tmp_path / "part.parquet")):
        prep = preprocessor().fit(frame)
        assert json.dumps(prep.to_dict()) == expected
        for name, array in dask.compute(prep.encode(frame))[0].items():
            np.testing.assert_array_equal(array, encoded[name])


def killing_frame(table: pd.DataFrame, flag: str) -> dd.DataFrame:
    """Return a frame that kills the worker that reads its fifth partition, once."""

    def read(piece: int) -> pd.DataFrame:
        if piece == 4 and get_worker():
            try:
                os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return table.iloc[piece * 50 : (piece + 1) * 50]

    return dd.from_map(read, range(ROWS // 50), meta=table.iloc[:0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_killed_worker_does_not_change_the_state(table, expected, tmp_path):
    flag = str(tmp_path / "killed")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as workers,
        Client(workers) as client,
    ):
        before = {worker["pid"] for worker in client.run(lambda: {"pid": os.getpid()}).values()}
        prep = preprocessor().fit(killing_frame(table, flag))
        after = {worker["pid"] for worker in client.run(lambda: {"pid": os.getpid()}).values()}
    assert Path(flag).exists()
    assert before != after
    assert json.dumps(prep.to_dict()) == expected
