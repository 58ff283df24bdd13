"""Epochs from a store that is slow and faulty lose nothing, in few requests: `machines/remote.py`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from benchmarks.machines.slow_store import SlowStore
from daskprep.dataset.loader.pipeline import Pipeline
from tests.sizes import Sizes

ROWS, BLOCK_ROWS = 2_000, 100


@pytest.fixture
def slow(s3: Any) -> Iterator[tuple[SlowStore, dict[str, Any]]]:
    """Start a slow proxy of the bucket, and yield it with its storage options."""
    port = urlsplit(s3.storage_options["client_kwargs"]["endpoint_url"]).port
    store = SlowStore(port, latency=0.005, bytes_per_second=50e6, faults=0.0, stalls=0.0)
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(store.serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield store, {**s3.storage_options, "client_kwargs": {"endpoint_url": url}, "skip_instance_cache": True}

    async def stop() -> None:
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(stop(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
    loop.close()


def epoch(dataset: dp.Dataset, **options: Any) -> dict[str, np.ndarray]:
    batches = list(dataset["train"].loader(100, row_ids=True, **options))
    return {name: np.concatenate([batch[name].numpy() for batch in batches]) for name in batches[0]}


def reading_threads(dataset: dp.Dataset, **options: Any) -> int:
    """Return the number of reading threads after the first batch."""
    batches = iter(dataset["train"].loader(100, **options))
    next(batches)
    count = sum(thread.name.startswith("daskprep-load") for thread in threading.enumerate())
    batches.close()
    return count


@pytest.mark.slow
def test_remote_epoch_yields_every_row_in_few_requests(s3: Any, slow: Any, tmp_path: Path, sizes: Sizes) -> None:
    store, options = slow
    sizes(request_bytes=1_000, resident_bytes=0)
    rng = np.random.default_rng(0)
    vectors = [" ".join(map(str, row)) for row in rng.integers(0, 99, (ROWS, 20))]
    frame = pd.DataFrame({"price": rng.normal(size=ROWS), "vector": vectors})
    prep = dp.Preprocessor({"price": "number", "vector": "vector"})
    url = f"{s3.url}/{tmp_path.name}.dp"
    prep.fit_write(frame, url, storage_options=s3.storage_options, block_rows=BLOCK_ROWS)
    expected = epoch(prep.write(frame, tmp_path / "local.dp", block_rows=BLOCK_ROWS))
    distant = dp.open_dataset(url, storage_options=options)
    before = store.requests
    found = epoch(distant, threads=2)
    # Of each block a chunk and the numbers; before these, each thread may look where they are, and connections break.
    assert 2 * ROWS / BLOCK_ROWS <= store.requests - before <= 2 * ROWS / BLOCK_ROWS + 12
    store._share = 0.3
    faulty = epoch(distant, cache=True, cache_dir=tmp_path / "copies")
    assert store.faults > 0
    store._share, before = 0.0, store.requests
    copied = epoch(distant, cache=True, cache_dir=tmp_path / "copies")
    assert store.requests == before
    assert reading_threads(distant) > 4
    assert reading_threads(distant, cache=True, cache_dir=tmp_path / "copies") <= 4
    for rows in (found, faulty, copied):
        assert np.array_equal(np.sort(rows["row_id"]), np.arange(ROWS))
        for name in expected:
            np.testing.assert_array_equal(rows[name], expected[name])


@pytest.mark.parametrize("place", ["local", "distant"])
def test_first_batch_is_read_without_prefetch(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{tmp_path.name}.dp" if place == "distant" else str(tmp_path / "local.dp")
    prep = dp.Preprocessor({"price": "number"})
    dataset = prep.fit_write(pd.DataFrame({"price": range(ROWS)}), url, block_rows=10)
    resident: list[int] = []
    waited = Pipeline._wait_for

    def note(pipeline: Pipeline, coming: Any) -> Any:
        resident.append(len(pipeline._resident._blocks))
        return waited(pipeline, coming)

    monkeypatch.setattr(Pipeline, "_wait_for", note)
    loader = dataset["train"].loader(16, seed=0)
    assert sum(len(batch["price"]) for batch in loader) == ROWS
    # The first window has one batch, a row of each of 16 streams.
    assert resident[0] <= 16
    assert max(resident) > 2 * 16
