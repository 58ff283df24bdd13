"""Fixtures for all tests: frames on each backend, and a cluster of processes."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import dask
import dask.dataframe as dd
import fsspec
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import Phase, settings
from jsonschema import Draft202012Validator, ValidationError

from daskprep.passes import state
from daskprep.rows.saved import FORMAT
from tests.browser import CHROMIUM, Browser
from tests.sizes import Sizes, sized

# Examples run on shared machines: a deadline would fail at random.
settings.register_profile("daskprep", deadline=None, print_blob=True)
unshrunk = [Phase.explicit, Phase.reuse, Phase.generate]
settings.register_profile("no-shrink", settings.get_profile("daskprep"), phases=unshrunk)
settings.load_profile("daskprep")

AsFrame = Callable[[pd.DataFrame], "pd.DataFrame | dd.DataFrame"]


def with_empty_partitions(table: pd.DataFrame) -> dd.DataFrame:
    """Return a Dask frame whose first, middle and last partitions have no rows."""
    middle, none = len(table) // 2, table.iloc[:0]
    pieces = [none, table.iloc[:middle], none, table.iloc[middle:], none]
    return dd.from_map(lambda piece: piece, pieces, meta=none)


BACKENDS: dict[str, AsFrame] = {
    "pandas": lambda table: table,
    "dask-1-partition": lambda table: dd.from_pandas(table, npartitions=1),
    "dask-many-partitions": lambda table: dd.from_pandas(table, npartitions=5, sort=False),
    "dask-empty-partitions": with_empty_partitions,
}


@pytest.fixture(params=BACKENDS)
def as_frame(request: pytest.FixtureRequest) -> AsFrame:
    """Turn a pandas frame into the same rows on each backend; the test runs once per backend."""
    return BACKENDS[request.param]


@pytest.fixture
def as_object_frame(as_frame: AsFrame) -> Iterator[AsFrame]:
    """As `as_frame`, but Dask keeps object columns, which it converts to text by default."""
    with dask.config.set({"dataframe.convert-string": False}):
        yield as_frame


@pytest.fixture(scope="module")
def _workers() -> Iterator[Client]:
    # On a busy machine a worker may take longer to connect than Dask waits, and is then not started again.
    patience = dict.fromkeys(("distributed.comm.timeouts.connect", "distributed.comm.timeouts.tcp"), "300s")
    with (
        dask.config.set(patience),
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as workers,
        Client(workers) as client,
    ):
        yield client


@pytest.fixture
def cluster(_workers: Client) -> Client:
    """Start two worker processes, shared by all tests of a module; mark these with ``pytest.mark.cluster``."""
    # A worker that the previous test killed may still be starting.
    _workers.wait_for_workers(2)
    return _workers


@pytest.fixture
def sizes() -> Iterator[Sizes]:
    """Set sizes of the package until the test ends, such as ``sizes(part_bytes=500)``."""
    with contextlib.ExitStack() as stack:
        yield lambda **values: stack.enter_context(sized(**values))


class WatchedMemory(MemoryFileSystem):
    """The files of memory://, whose reads a test counts, slows down or changes."""

    requests: ClassVar[list[str]]
    answer: ClassVar[Callable[[str, bytes], bytes]]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        self.requests.append(path)
        return self.answer(path, super().cat_file(path, start, end, **options))


@pytest.fixture
def memory() -> Iterator[type[WatchedMemory]]:
    """Return the class that opens memory:// during the test; `requests` has the paths of all reads."""

    class Memory(WatchedMemory):
        requests: ClassVar[list[str]] = []
        answer = staticmethod(lambda path, data: data)

    fsspec.register_implementation("memory", Memory, clobber=True)
    yield Memory
    fsspec.register_implementation("memory", MemoryFileSystem, clobber=True)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which temporary folders are made during the test."""
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(autouse=True, scope="session")
def _without_pauses() -> Iterator[None]:
    """Retry storage without pauses; processes that a test starts keep them."""
    with sized(first_retry_pause=0.001, largest_retry_pause=0.01):
        yield


@pytest.fixture(autouse=True, scope="session")
def _validate_saved_files() -> Iterator[None]:
    """Validate every Preprocessor that a test saves against the schema that docs/saved-format.md links to."""
    schema = Path(__file__).parents[1] / "docs" / "saved-format.schema.json"
    validator, to_bytes = Draft202012Validator(json.loads(schema.read_text(encoding="utf-8"))), state._to_bytes

    def checked(saved: Mapping[str, Any]) -> bytes:
        data = to_bytes(saved)
        if saved["format"] == FORMAT:
            try:
                validator.validate(json.loads(data))
            except ValidationError as error:
                error.add_note("after a new parameter or learned value: python tests/saved_format.py")
                raise
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "_to_bytes", checked)
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start one browser for all tests that need it; they are skipped where Chromium is not installed."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with Browser() as browser:
        yield browser


class Store(NamedTuple):
    """A location that a test can write to, and the options to open it."""

    url: str
    storage_options: dict[str, Any]


@pytest.fixture(scope="session")
def s3() -> Iterator[Store]:
    """Serve an S3 bucket from this process; each test writes to a separate folder."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    # A secret: tests search written files and messages for it.
    options = {"key": "AKIAOPENSESAME", "secret": "hunter2/hunter2+hunter2"}
    options["client_kwargs"] = {"endpoint_url": f"http://{host}:{port}"}
    fsspec.filesystem("s3", **options).mkdir("bucket")
    yield Store("s3://bucket", options)
    server.stop()
