"""Calls on several threads, on no other thread, and in forked processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

_REMOTE_THREADS = 16

T = TypeVar("T")
R = TypeVar("R")


def map_in_threads(function: Callable[[T], R], items: Iterable[T], *, local: bool) -> list[R]:
    """Return the results of a function in order, computed on threads: with `local` files, one per core."""
    items = list(items)
    threads = min((os.cpu_count() or 1) if local else _REMOTE_THREADS, len(items))
    if threads <= 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads, thread_name_prefix="daskprep-read") as pool:
        return list(pool.map(function, items))


class InlineExecutor(Executor):
    """An executor that runs each function on the calling thread."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Run a function now; return a future of its result or error."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **named))
        except Exception as error:
            future.set_exception(error)  # raised by future.result()
        return future


def call_after_fork(function: Callable[[], object]) -> None:
    """Register a function to be called in every forked process."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
