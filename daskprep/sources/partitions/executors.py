"""Executors that run a function over partitions requested one by one, on threads or a cluster, as futures."""

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
from daskprep.sources import Source
from daskprep.sources.partitions.dask_internals import (
    CPU_COUNT,
    DataNode,
    Task,
    TaskRef,
    avoid_tokenizing,
    find_upstream_tasks,
    optimize_frame,
)
from daskprep.sources.partitions.graphs import Layer, Work, run_on_fragment, run_on_frame, unique_name
from daskprep.sources.partitions.schedulers import active_client, worker_error

# Concurrent transfers of results from workers; more would only share the same network.
_FETCHING_THREADS = 4
_UNLIMITED_BYTES = 1 << 60
# Annotations for the placement and the retries of tasks.
_ANNOTATIONS = frozenset({"workers", "allow_other_workers", "resources", "retries"})


@dataclass(frozen=True)
class Job:
    """The work on partitions of a source."""

    # The function, called for each requested partition, and its source; `Work.shared` is sent to workers once.
    work: Work
    then: Callable[[Any, Any], Any]  # called as ``then(result, argument)`` for requests with `then`
    # Digest of the work, the same in every process. Clients of a scheduler share the tasks of jobs with equal digests.
    # None: the source cannot be identified, and no tasks are shared.
    digest: str | None


class PartitionRequest(NamedTuple):
    """One partition of a job, with the arguments of its functions."""

    number: int
    argument: Any  # second argument of `Work.function`
    then: Any  # second argument of `Job.then`; None: `Job.then` is not called
    epoch: int  # distinguishes repeated requests for the same partition
    sequence_number: int  # order of the requests: lower numbers have priority


class PartitionExecutor(ABC):
    """Base class of executors of requested partitions."""

    is_distributed = False
    _pool: ThreadPoolExecutor

    def is_shut_down(self) -> bool:
        """Return whether no more results will come, as Python waits for its threads first."""
        try:
            self._pool.submit(int)
        except RuntimeError:
            return True
        return False

    @abstractmethod
    def concurrency(self) -> int:
        """Return the number of partitions that run at a time."""

    @abstractmethod
    def submit(self, request: PartitionRequest) -> Future[Any]:
        """Start a request, and return the future of its result."""

    def release(self, request: PartitionRequest) -> None:  # noqa: B027 threads keep no results
        """Release the result of a request on the workers."""

    @abstractmethod
    def close(self) -> None:
        """Cancel pending requests, and wait for running ones."""


def open_executor(
    job: Job, client: Any = None, threads: int | None = None, annotations: Mapping[str, Any] = MappingProxyType({})
) -> PartitionExecutor:
    """Return an executor on a cluster or on threads."""
    client = None if job.work.source.in_memory else client or active_client()
    return ThreadExecutor(job, threads or CPU_COUNT) if client is None else ClusterExecutor(job, client, annotations)


def current_annotations() -> Mapping[str, Any]:
    """Return the active annotations of ``dask.annotate``."""
    return dask.get_annotations()


class ThreadExecutor(PartitionExecutor):
    """An executor on threads of this process."""

    def __init__(self, job: Job, threads: int) -> None:
        self.job = job
        self._threads = threads
        self._graph = _FrameGraph(job.work) if job.work.source.is_dask else None
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="daskprep-stream")

    def concurrency(self) -> int:
        return self._threads

    def submit(self, request: PartitionRequest) -> Future[Any]:
        return self._pool.submit(self._run, request)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _run(self, request: PartitionRequest) -> Any:
        """Return the result of a request, which this thread reads and computes."""
        job, work = self.job, self.job.work
        if self._graph is None:
            table = work.source._read(request.number, work.columns)
            result = work.function(work.shared, request.argument, table)
        else:
            layer, key = self._graph.partition_graph(request.number)
            frame = dask.get(layer, key)
            result = run_on_frame(work.function, work.shared, request.argument, frame, list(work.columns))
        return result if request.then is None else job.then(result, request.then)


class ClusterExecutor(PartitionExecutor):
    """An executor on the workers of a cluster.

    `Work.shared` is sent once. A partition that several clients request is encoded once while one of them has a future
    of it. So the future of a request with `then` is kept until `release`.
    """

    is_distributed = True

    def __init__(self, job: Job, client: Any, annotations: Mapping[str, Any]) -> None:
        self.job = job
        self._annotations = {name: value for name, value in annotations.items() if name in _ANNOTATIONS}
        self._client = client
        self._graph = _FrameGraph(job.work) if job.work.source.is_dask else None
        self._lock = threading.Lock()
        self._closed = False
        self._futures: dict[Any, list[Any]] = {}
        self._pool = ThreadPoolExecutor(_FETCHING_THREADS, thread_name_prefix="daskprep-fetch")
        self._result_prefix = unique_name("stream") if job.digest is None else f"stream-{job.digest}"
        self._own_prefix = unique_name("own")
        shared = self._result_prefix.replace("stream", "stream-shared", 1)
        # A node of a graph, since the scheduler can send it again if its worker is lost. Dask would warn of a large
        # node, although it is sent once, not with each partition.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": _UNLIMITED_BYTES}):
            (self._shared,) = self._get({shared: DataNode(shared, job.work.shared)}, [shared])

    def _get(self, layer: Layer, keys: list[Any], **options: Any) -> list[Any]:
        """Send a graph to the scheduler; return futures of `keys`."""
        # The annotations of the thread that created the executor: other threads, which submit, have none.
        annotations = {name: value(keys[0]) if callable(value) else value for name, value in self._annotations.items()}
        futures: list[Any] = self._client.get(avoid_tokenizing(layer), keys, sync=False, **annotations, **options)
        return futures

    def concurrency(self) -> int:
        threads: dict[str, int] = self._client.nthreads()
        return max(1, sum(threads.values()))

    def submit(self, request: PartitionRequest) -> Future[Any]:
        """Submit a partition; return a future of its result here."""
        outer: Future[Any] = Future()
        keys, layer = self._layer(request)
        futures = self._get(layer, keys, priority=-request.sequence_number)
        with self._lock:
            self._futures[self._key(request)] = futures
        futures[-1].add_done_callback(functools.partial(self._fetch_soon, request, outer))
        return outer

    def _layer(self, request: PartitionRequest) -> tuple[list[Any], Layer]:
        """Return keys of futures to keep, and a partition's graph."""
        job, work, key = self.job, self.job.work, self._key(request)
        layer: Layer = {}
        run: Callable[..., Any] = run_on_fragment
        partition_input: Any
        if self._graph is None:
            partition_input = work.source.fragments[request.number]
        else:
            layer, partition_key = self._graph.partition_graph(request.number)
            run, partition_input = run_on_frame, TaskRef(partition_key)
        layer[key] = Task(
            key, run, work.function, TaskRef(self._shared.key), request.argument, partition_input, list(work.columns)
        )
        if request.then is None:
            return [key], layer
        then = (self._own_prefix, request.epoch, request.number)  # a key that no other client requests
        layer[then] = Task(then, job.then, TaskRef(key), request.then)
        return [key, then], layer

    def _key(self, request: PartitionRequest) -> tuple[str, int, int]:
        return self._result_prefix, request.epoch, request.number

    def _fetch_soon(self, request: PartitionRequest, outer: Future[Any], future: Any) -> None:
        """Pass the result of `future` to `outer`, on a thread that does not block the client's; not once closed."""
        try:
            with self._lock:
                if not self._closed:
                    self._pool.submit(self._fetch, request, outer, future)
        except RuntimeError as error:  # Python is shutting down
            outer.set_exception(error)

    def _fetch(self, request: PartitionRequest, outer: Future[Any], future: Any) -> None:
        """Copy the result or the error of `future` to the `outer` one."""
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
        """Cancel fetches, and release all futures."""
        with self._lock:
            self._closed = True
            futures = [future for kept_futures in self._futures.values() for future in kept_futures]
            self._futures.clear()
        self._pool.shutdown(cancel_futures=True)
        for future in [*futures, self._shared]:
            future.release()


def check_independent_partitions(source: Source, columns: Sequence[str]) -> None:
    """Raise ConfigError if partitions share tasks.

    One by one, these tasks would run several times, and a join or a shuffle returns rows in another order each time.
    """
    frame = optimize_frame(source.frame[list(columns)])
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
    """The optimized graph of a Dask frame, by partition."""

    def __init__(self, work: Work) -> None:
        frame = optimize_frame(work.source.frame[list(work.columns)])
        self._graph = dict(frame.__dask_graph__())
        self._keys = frame.__dask_keys__()

    def partition_graph(self, number: int) -> tuple[Layer, Any]:
        """Return the graph of a partition, and the key of its frame."""
        key = self._keys[number]
        layer, _ = cull(self._graph, [key])
        return dict(layer), key
