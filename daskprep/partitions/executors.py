"""Run a function over partitions that are chosen one by one, and hand each result over as soon as it is there."""

from __future__ import annotations

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import dask
from dask.optimization import cull

from daskprep.errors import ConfigError
from daskprep.partitions.dask_internals import (
    CPU_COUNT,
    DataNode,
    Task,
    TaskRef,
    avoid_tokenizing,
    find_upstream_tasks,
    reference_future,
)
from daskprep.partitions.graphs import Layer, PartitionFunction, run_on_fragment, run_on_frame, unique_name
from daskprep.partitions.schedulers import active_client, worker_error
from daskprep.sources import Source

# Results that travel from workers at a time; more would only share the same network.
_FETCHING_THREADS = 4
_UNLIMITED_BYTES = 1 << 60
# Annotations that say where tasks run, and how often.
_ANNOTATIONS = frozenset({"workers", "allow_other_workers", "resources", "retries"})


@dataclass(frozen=True)
class Job:
    """What is done with partitions: ``function(shared, argument, table)``, and then maybe ``then(result, argument)``.

    `digest` is the same for the same source, function and `shared` in any process: clients that ask a scheduler for the
    same share its tasks. None: nothing identifies the source in other processes, and no tasks are shared.
    """

    source: Source
    columns: Sequence[str]
    function: PartitionFunction
    shared: Any
    then: Callable[[Any, Any], Any]
    digest: str | None


class PartitionRequest(NamedTuple):
    """One partition of a job: the arguments of its functions.

    `then` is None where nothing is to be done with the result. `epoch` tells apart the same partition asked for again,
    `sequence_number` says which partitions are wanted first.
    """

    number: int
    argument: Any
    then: Any
    epoch: int
    sequence_number: int


class PartitionExecutor(ABC):
    """Does a job for one partition after the other."""

    is_distributed = False
    _pool: ThreadPoolExecutor

    def is_shut_down(self) -> bool:
        """Whether nothing will come any more: it is closed, or Python ends, which waits for threads before it tells."""
        try:
            self._pool.submit(int)
        except RuntimeError:
            return True
        return False

    @abstractmethod
    def concurrency(self) -> int:
        """Return how many partitions are worked on at a time, as things are now."""

    @abstractmethod
    def submit(self, request: PartitionRequest) -> Future[Any]:
        """Put a partition to work."""

    def release(self, request: PartitionRequest) -> None:  # noqa: B027 threads hold nothing
        """Let go of a partition: nobody else will ask for it."""

    @abstractmethod
    def close(self) -> None:
        """Stop; what is being worked on in this process is waited for."""


def open_executor(
    job: Job, client: Any = None, threads: int | None = None, annotations: Mapping[str, Any] = MappingProxyType({})
) -> PartitionExecutor:
    """Return a feed of a cluster, if its client is given or active, or else of threads of this process."""
    client = None if job.source.in_memory else client or active_client()
    return ThreadExecutor(job, threads or CPU_COUNT) if client is None else ClusterExecutor(job, client, annotations)


def current_annotations() -> Mapping[str, Any]:
    """Return what ``dask.annotate`` says here of tasks."""
    dask_annotations: Mapping[str, Any] = dask.get_annotations()
    return dask_annotations


class ThreadExecutor(PartitionExecutor):
    """Works on threads of this process; of a Dask frame a thread computes all that a partition is made of."""

    def __init__(self, job: Job, threads: int) -> None:
        self.job = job
        self._threads = threads
        self._graph = _FrameGraph(job) if job.source.is_dask else None
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="daskprep-stream")

    def concurrency(self) -> int:
        return self._threads

    def submit(self, request: PartitionRequest) -> Future[Any]:
        return self._pool.submit(self._run, request)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _run(self, request: PartitionRequest) -> Any:
        job = self.job
        if self._graph is None:
            table = job.source._read(request.number, job.columns)
            result = job.function(job.shared, request.argument, table)
        else:
            layer, key = self._graph.partition_graph(request.number)
            result = run_on_frame(job.function, job.shared, request.argument, dask.get(layer, key), list(job.columns))
        return result if request.then is None else job.then(result, request.then)


class ClusterExecutor(PartitionExecutor):
    """Works on the workers of a cluster, and fetches results from them without a detour.

    What `shared` holds travels once. A partition that another client asked for too is encoded once, as long as one of
    them still holds it: hence one with `then` is held until it is forgotten.
    """

    is_distributed = True

    def __init__(self, job: Job, client: Any, annotations: Mapping[str, Any]) -> None:
        self.job = job
        self._annotations = {name: value for name, value in annotations.items() if name in _ANNOTATIONS}
        self._client = client
        self._graph = _FrameGraph(job) if job.source.is_dask else None
        self._lock = threading.Lock()
        self._closed = False
        self._futures: dict[Any, list[Any]] = {}
        self._pool = ThreadPoolExecutor(_FETCHING_THREADS, thread_name_prefix="daskprep-fetch")
        self._result_prefix = unique_name("stream") if job.digest is None else f"stream-{job.digest}"
        self._own_prefix = unique_name("own")
        shared = self._result_prefix.replace("stream", "stream-shared", 1)
        # A node of a graph, which the scheduler can send again if the worker that has it is lost. Dask would warn of a
        # large one, as if it were sent with each partition.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": _UNLIMITED_BYTES}):
            (self._shared,) = self._get({shared: DataNode(shared, job.shared)}, [shared])

    def _get(self, layer: Layer, keys: list[Any], **options: Any) -> list[Any]:
        """Send a graph, and return futures of these keys."""
        # Of the thread that began the stream; a thread that sends has none.
        chosen_annotations = {
            name: value(keys[0]) if callable(value) else value for name, value in self._annotations.items()
        }
        futures: list[Any] = self._client.get(
            avoid_tokenizing(layer), keys, sync=False, **chosen_annotations, **options
        )
        return futures

    def concurrency(self) -> int:
        threads: dict[str, int] = self._client.nthreads()
        return max(1, sum(threads.values()))

    def submit(self, request: PartitionRequest) -> Future[Any]:
        outer: Future[Any] = Future()
        keys, layer = self._layer(request)
        futures = self._get(layer, keys, priority=-request.sequence_number)
        with self._lock:
            self._futures[self._key(request)] = futures
        futures[-1].add_done_callback(functools.partial(self._fetch_soon, request, outer))
        return outer

    def _layer(self, request: PartitionRequest) -> tuple[list[Any], Layer]:
        """Return the graph of one partition, and the keys of what is to be held, the result last."""
        job, key = self.job, self._key(request)
        layer: Layer = {}
        run: Callable[..., Any] = run_on_fragment
        partition_input: Any
        if self._graph is None:
            partition_input = job.source.fragments[request.number]
        else:
            layer, partition_key = self._graph.partition_graph(request.number)
            run, partition_input = run_on_frame, TaskRef(partition_key)
        layer[key] = Task(
            key, run, job.function, reference_future(self._shared), request.argument, partition_input, list(job.columns)
        )
        if request.then is None:
            return [key], layer
        # Only this feed asks for it.
        then = (self._own_prefix, request.epoch, request.number)
        layer[then] = Task(then, job.then, TaskRef(key), request.then)
        return [key, then], layer

    def _key(self, request: PartitionRequest) -> tuple[str, int, int]:
        return self._result_prefix, request.epoch, request.number

    def _fetch_soon(self, request: PartitionRequest, outer: Future[Any], future: Any) -> None:
        try:
            with self._lock:
                if not self._closed:
                    self._pool.submit(self._fetch, request, outer, future)
        except RuntimeError as error:  # Python ends
            outer.set_exception(error)

    def _fetch(self, request: PartitionRequest, outer: Future[Any], future: Any) -> None:
        try:
            result = self._client.gather(future, direct=True)
        except BaseException as error:
            outer.set_exception(worker_error(error) or error)
            return
        with self._lock:
            kept_futures = self._futures.get(self._key(request), [])
            if kept_futures:
                kept_futures.pop().release()
        outer.set_result(result)

    def release(self, request: PartitionRequest) -> None:
        with self._lock:
            kept_futures = self._futures.pop(self._key(request), [])
        for future in kept_futures:
            future.release()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            futures = [one for kept_futures in self._futures.values() for one in kept_futures]
            self._futures.clear()
        self._pool.shutdown(cancel_futures=True)
        for future in [*futures, self._shared]:
            future.release()


def check_independent_partitions(source: Source, columns: Sequence[str]) -> None:
    """Raise ConfigError if partitions of a Dask frame are computed from one another.

    One by one they would be computed several times, and a join or a shuffle gives rows in another order each time.
    """
    frame = source.frame[list(columns)].optimize()
    graph, seen_tasks = dict(frame.__dask_graph__()), set[Any]()
    for key in frame.__dask_keys__():
        tasks = find_upstream_tasks(graph, key)
        if not seen_tasks.isdisjoint(tasks):
            raise ConfigError(
                "the partitions of this Dask frame are computed from one another, as after a join or a shuffle: "
                "call persist() on it, or write it to files, and stream that"
            )
        seen_tasks |= tasks


class _FrameGraph:
    """The graph of a Dask frame, cut to what one partition is made of."""

    def __init__(self, job: Job) -> None:
        frame = job.source.frame[list(job.columns)].optimize()
        self._graph = dict(frame.__dask_graph__())
        self._keys = frame.__dask_keys__()

    def partition_graph(self, number: int) -> tuple[Layer, Any]:
        """Return the graph of a partition, and its key."""
        key = self._keys[number]
        layer, _ = cull(self._graph, [key])
        return dict(layer), key
