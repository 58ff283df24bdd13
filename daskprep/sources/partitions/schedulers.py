"""Schedulers: run tasks on threads of this process, on Dask's local schedulers, or on a cluster."""

from __future__ import annotations

import functools
import importlib.metadata
import multiprocessing.pool
import pickle
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any, Literal

import cloudpickle
import dask
import dask.multiprocessing
import dask.threaded
from dask.callbacks import Callback

from daskprep.columns.display import format_bytes
from daskprep.errors import ConfigError, DaskprepError, WorkerError, warn
from daskprep.sources import estimate_bytes
from daskprep.sources.partitions.dask_internals import (
    CPU_COUNT,
    DataNode,
    Scheduler,
    Task,
    avoid_tokenizing,
    call_workers,
    chosen_scheduler,
    find_executor,
    secede_while_waiting,
)
from daskprep.sources.partitions.graphs import identity
from daskprep.sources.partitions.progress import show_processes

# A healthy worker responds immediately; a worker that swaps may take long.
_TIMEOUT_SECONDS = 120.0
_WATCH_SECONDS = 5.0
_TARGET_SHARE = 0.6  # of the limit, above which Dask moves results of a worker to its disk; it pauses at 0.8
_known_paused: set[str] = set()  # addresses of workers that a warning named
_REMOVAL_ATTEMPTS, _REMOVAL_PAUSE_SECONDS = 20, 0.25
_IMPORT_ERRORS = re.compile(r"\b(ModuleNotFoundError|ImportError|AttributeError)\b")
_PICKLE_ERRORS = re.compile(r"[Pp]ickle|[Ss]erialize")
_SAME_VERSIONS_HINT = (
    "workers need the packages of this process, in the same versions; install them there and start it again"
)

# Measured: n threads share Python's lock and do the work of n / (1 + 0.22 (n - 1)), 3.7 on 16 cores. Processes take 1.4
# times the CPU time of threads, and seconds to start and to import the package: `processes.py` of the benchmarks.
_LOCK_SHARE, _PROCESS_EFFICIENCY, _START_SECONDS = 0.22, 0.7, 5.0
# CPU seconds per byte of partitions in memory, of the write of a table with every type but media.
_SECONDS_PER_BYTE = 1.5e-8
_MIN_GAIN = 1.1  # these are estimates

Advance = Callable[[Any], object]
Workers = int | Literal["threads"] | None

# The client that `use_client` set. dask.config would change the scheduler of all threads.
_client_in_use: ContextVar[Any] = ContextVar("client", default=None)


def _scheduler() -> Scheduler:
    client = _client_in_use.get()
    return chosen_scheduler() if client is None else client.get


def active_client() -> Any:
    """Return the ``distributed.Client`` that is set; None for other schedulers."""
    return _client(_scheduler())


@contextmanager
def use_client(client: Any) -> Iterator[None]:
    """Run the block with the workers of `client`."""
    token = _client_in_use.set(client or _client_in_use.get())
    try:
        yield
    finally:
        _client_in_use.reset(token)


@contextmanager
def on_workers(
    workers: Workers, frame: Any, max_workers: int | None = None, sent: object = None, **options: Any
) -> Iterator[None]:
    """Run the block on processes of this machine if `local_workers` starts them."""
    with (
        local_workers(workers, frame, max_workers, sent, **options) as client,
        use_client(client),
        show_processes(0 if client is None else len(client.nthreads())),
    ):
        yield


def local_workers(
    workers: Workers, frame: Any, max_workers: int | None = None, sent: object = None, **options: Any
) -> AbstractContextManager[Any]:
    """Return a context of a Client of new processes, or of None.

    None as `workers` chooses up to `max_workers` by the number of cores and the size of a frame's partitions. It
    chooses threads if the frame or `sent`, what tasks use besides rows, cannot be pickled. `options` are passed to
    `as_source` for paths. No processes are started for rows in memory, if a scheduler was chosen, such as an active
    Client, or within a process that was itself started to share work. ConfigError for others.
    """
    is_count = isinstance(workers, int) and not isinstance(workers, bool) and workers > 0
    if not (is_count or workers is None or workers == "threads"):
        raise ConfigError(f'workers={workers!r}: expected a number of processes, "threads", or None to choose')
    if workers == "threads" or _has_scheduler() or not (workers or CPU_COUNT > 2):
        return nullcontext()
    nbytes = estimate_bytes(frame, **options)
    count = 0 if nbytes == 0 else workers or choose_workers(nbytes, CPU_COUNT, max_workers)
    if not count or not (workers or _is_picklable((frame, sent))):
        return nullcontext()
    from daskprep.sources.partitions.processes import LocalWorkers  # noqa: PLC0415 distributed takes long to import

    return LocalWorkers(count, required=workers is not None)


def _has_scheduler() -> bool:
    """Return whether a scheduler is chosen, or this is a worker or another child process."""
    is_chosen = any(dask.config.get(name, None) is not None for name in ("scheduler", "pool", "num_workers"))
    if is_chosen or active_client() is not None or multiprocessing.current_process().name != "MainProcess":
        return True
    if "distributed" in sys.modules:
        with suppress(ValueError):  # not in a task
            sys.modules["distributed"].get_worker()
            return True
    return False


def _is_picklable(value: object) -> bool:
    with suppress(Exception):
        return bool(cloudpickle.dumps(value))
    return False


def choose_workers(nbytes: int | None, cores: int, max_workers: int | None = None) -> int:
    """Return the number of processes for a pass; 0, also if `nbytes` is unknown: threads.

    Processes are chosen if they are estimated to be clearly faster.
    """
    count = cores if max_workers is None else min(cores, max_workers)
    seconds = (nbytes or 0) * _SECONDS_PER_BYTE
    on_threads = seconds * (1 + _LOCK_SHARE * (cores - 1)) / cores
    on_processes = _START_SECONDS + seconds / (_PROCESS_EFFICIENCY * max(count, 1))
    return count if on_threads > _MIN_GAIN * on_processes else 0


def is_distributed() -> bool:
    """Return whether a ``distributed.Client`` runs the tasks."""
    return active_client() is not None


def run_on_every_worker(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return the results of a function on every worker."""
    get = _scheduler()
    if (client := _client(get)) is not None:
        return _call_all_workers(client, function, *arguments)
    processes, _ = worker_threads()
    keys = [("every", i) for i in range(processes)]
    return _compute(get, {key: Task(key, function, *arguments) for key in keys}, keys)


def _call_all_workers(client: Any, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return the results of a function on all workers that do not end meanwhile.

    Errors of daskprep are raised unchanged; WorkerError for others, and without an answer of all in time.
    """
    try:
        results = call_workers(
            client, _call_if_same_version, _version(), function, *arguments, seconds=_TIMEOUT_SECONDS
        )
    except TimeoutError as error:
        raise WorkerError(
            f"the workers of {client.scheduler.address} did not all answer within {_TIMEOUT_SECONDS:.0f} seconds: look "
            "on the dashboard for one that is paused or cannot be reached, close it, and run the same again"
        ) from error
    for address, result in list(results.items()):
        if isinstance(result, DaskprepError):
            raise result
        if isinstance(result, OSError) and len(results) > 1 and _is_removed(client, address):
            del results[address]
        elif isinstance(result, Exception):
            raise worker_error(result, address) or WorkerError(
                f"worker {address} did not answer ({type(result).__name__}: {result}): it died or cannot be reached; "
                "its log says why. Run the same again once it is gone or there is another"
            ) from result
    return list(results.values())


def _is_removed(client: Any, address: str) -> bool:
    """Return whether the scheduler notices that a worker ended."""
    for _ in range(_REMOVAL_ATTEMPTS):
        if address not in client.nthreads():
            return True
        time.sleep(_REMOVAL_PAUSE_SECONDS)
    return False


def _call_if_same_version(version: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function; WorkerError if this worker has another version of daskprep."""
    if version != _version():
        raise WorkerError(
            f"daskprep is {_version()} on {socket.gethostname()}, and {version} here: {_SAME_VERSIONS_HINT}"
        )
    return function(*arguments)


@functools.cache
def _version() -> str:
    return importlib.metadata.version("daskprep")


def worker_error(error: BaseException, address: str | None = None) -> WorkerError | None:
    """Return a WorkerError for a lost worker, code or data not sent; else None."""
    worker = f"worker {address}" if address else "a worker"
    if type(error).__name__ in ("KilledWorker", "BrokenProcessPool"):
        explanation = WorkerError(
            f"{error} Workers are usually killed for lack of memory: start fewer, or with more memory or fewer "
            "threads, or use smaller partitions (partition_bytes of read_files, memory of fit_write). Finished work is "
            "kept: run the write again to resume"
        )
    elif isinstance(error, TypeError | pickle.PicklingError) and _PICKLE_ERRORS.search(str(error)):
        explanation = WorkerError(
            f"a function, feature or source cannot be sent to other processes ({error}): open locks, connections and "
            'files where they are used, or run with workers="threads"'
        )
    elif str(error).startswith("Missing dependency") or (
        type(error).__name__.endswith("CancelledError") and type(error).__module__.startswith("distributed")
    ):
        explanation = WorkerError(
            f"the cluster lost rows or tasks ({error}): a client was closed or restarted, and the partitions of a "
            "persisted frame ended with it. Open a client, persist the frame again or pass it as it was before "
            "persist, and run the same again"
        )
    elif isinstance(error, ImportError) or (_IMPORT_ERRORS.search(str(error)) and address):
        explanation = WorkerError(f"{worker} cannot import the code of a task ({error}): {_SAME_VERSIONS_HINT}")
    else:
        return None
    explanation.__cause__ = error
    return explanation


@contextmanager
def explain_worker_errors(kinds: tuple[type[Exception], ...] = (Exception,)) -> Iterator[None]:
    """Raise a WorkerError that explains errors of workers, of some `kinds`."""
    try:
        yield
    except kinds as error:
        if (explanation := worker_error(error)) is None:
            raise
        raise explanation from error


def is_in_process() -> bool:
    """Return whether threads of this process run the tasks."""
    get = _scheduler()
    return _client(get) is None and get is not dask.multiprocessing.get and worker_threads()[0] == 1


def worker_threads() -> tuple[int, int]:
    """Return the numbers of processes and threads for tasks."""
    get = _scheduler()
    if (client := _client(get)) is not None:
        threads = client.nthreads()
        return len(threads), sum(threads.values())
    if get is dask.get:
        return 1, 1
    if _is_of_ray(get):  # a process for each task
        ray = sys.modules["ray"]
        count = int(ray.cluster_resources().get("CPU", 1)) if ray.is_initialized() else CPU_COUNT
        return count, count
    if (executor_and_size := find_executor(get)) is not None:
        executor, size = executor_and_size
        return (size if isinstance(executor, ProcessPoolExecutor) else 1), size
    size = _pool_size(dask.config.get("pool", None)) or dask.config.get("num_workers", None) or CPU_COUNT
    return (size if get is dask.multiprocessing.get else 1), size


def run_on_threads(call: Callable[[int], Any], count: int, advance: Advance | None = None) -> list[Any]:
    """Return the results of ``call(i)`` for i below `count`.

    After an error, pending calls are canceled and running calls finish. Then the error of the smallest i is raised,
    regardless of the order in time.
    """
    report = advance or (lambda _: None)
    threads = min(CPU_COUNT, count)
    if threads <= 1:
        results = []
        for i in range(count):
            results.append(call(i))
            report(results[-1])
        return results
    with ThreadPoolExecutor(threads, thread_name_prefix="daskprep") as pool:
        futures = [pool.submit(call, i) for i in range(count)]
        try:
            for future in as_completed(futures):
                if future.exception() is not None:
                    break
                report(future.result())
        finally:
            pool.shutdown(cancel_futures=True)
    # Calls start in order: all canceled calls come after the failed ones.
    return [future.result() for future in futures]


def compute(
    layer: dict[Any, Any], keys: Sequence[Any], *, watched: Sequence[Any] = (), advance: Advance | None = None
) -> list[Any]:
    """Return the results of `keys`; `advance` is called once for each of `watched`."""
    get = _scheduler()
    if advance is None:
        return _compute(get, layer, keys)
    waiting = set(watched)

    def advance_once(key: Any, result: Any) -> None:
        if key in waiting:
            waiting.discard(key)
            advance(result)

    if (client := _client(get)) is not None:
        with explain_worker_errors():
            return _gather_as_completed(client, layer, keys, advance_once)

    def advance_if_here(key: Any, result: Any, *_: Any) -> None:
        if not _is_of_ray(type(result)):  # Ray calls callbacks with references to results
            advance_once(key, result)

    with Callback(posttask=advance_if_here):
        results = _compute(get, layer, keys)
    # Dask's callbacks are global: the graph of another thread may have replaced ours, and a custom scheduler may call
    # none.
    for key, result in zip(keys, results, strict=True):
        advance_once(key, result)
    return results


def _compute(get: Scheduler, layer: dict[Any, Any], keys: Sequence[Any]) -> list[Any]:
    """Return results of `keys`; on threads, tasks have ended even after an error."""
    if (client := _client(get)) is not None:
        with explain_worker_errors():
            return _gather_as_completed(client, layer, keys)
    if _is_of_ray(get):  # it takes values apart, and fails at some: tasks return them instead
        nodes = {key: node for key, node in layer.items() if isinstance(node, DataNode)}
        layer = {**layer, **{key: Task(key, identity, node.value) for key, node in nodes.items()}}
    with explain_worker_errors((ValueError, BrokenProcessPool)):
        if get is not dask.threaded.get or dask.config.get("pool", None) is not None:
            return list(get(layer, list(keys)))
        # After an error Dask does not wait for running tasks. The exit of this pool waits for them, so that no task
        # writes to a folder that the caller removes.
        with ThreadPoolExecutor(worker_threads()[1], thread_name_prefix="daskprep") as pool:
            return list(get(layer, list(keys), pool=pool))


def _gather_as_completed(
    client: Any, layer: dict[Any, Any], keys: Sequence[Any], advance: Callable[[Any, Any], None] | None = None
) -> list[Any]:
    """Return the results of `keys` in order; ``advance(key, result)`` is called as each finishes."""
    distributed = sys.modules["distributed"]
    futures = client.get(avoid_tokenizing(layer), list(keys), sync=False)
    results = {}
    try:
        with secede_while_waiting(), _warn_of_paused_workers(client):
            # Not `client.gather(futures)`: Ctrl-C while it waits prints a traceback for each pending future.
            for batch in distributed.as_completed(futures, loop=client.loop).batches():
                for future, result in zip(batch, client.gather(batch), strict=True):
                    results[future.key] = result
                    future.release()
                    if advance is not None:
                        advance(future.key, result)
    finally:
        for future in futures:
            future.release()
    return [results[key] for key in keys]


@contextmanager
def _warn_of_paused_workers(client: Any) -> Iterator[None]:
    """Warn about workers that are paused for memory."""
    done = threading.Event()

    def watch() -> None:
        earlier: set[str] = set()  # a worker that is paused for a moment deserves no warning
        while not done.wait(_WATCH_SECONDS):
            with suppress(OSError, RuntimeError, TimeoutError):  # the client was closed, or the scheduler is busy
                workers = client.scheduler_info(n_workers=-1)["workers"]
                paused = {address for address, one in workers.items() if one["status"] == "paused"}
                for address in sorted((paused & earlier) - _known_paused):
                    limit, used = workers[address]["memory_limit"], workers[address]["metrics"]["memory"]
                    warn(
                        f"Dask paused worker {address}, which holds {format_bytes(used)} of its memory_limit of "
                        f"{format_bytes(limit)}: it takes no tasks until memory is free, so this call may wait for "
                        f"ever. Start workers with at least {format_bytes(used / _TARGET_SHARE)}, or fewer threads "
                        "each, or use smaller partitions"
                    )
                _known_paused.update(paused & earlier)
                earlier = paused

    thread = threading.Thread(target=watch, name="daskprep-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()


def _client(get: Scheduler) -> Any:
    owner, distributed = getattr(get, "__self__", None), sys.modules.get("distributed")
    return owner if distributed is not None and isinstance(owner, distributed.Client) else None


def _is_of_ray(function_or_type: Any) -> bool:
    return getattr(function_or_type, "__module__", "").partition(".")[0] == "ray"


def _pool_size(pool: Any) -> int | None:
    """Return the workers of a pool, None if unknown."""
    if isinstance(pool, multiprocessing.pool.Pool):
        return len(pool._pool)  # type: ignore[attr-defined]
    return getattr(pool, "_max_workers", None)
