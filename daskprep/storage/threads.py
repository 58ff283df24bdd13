"""Calls on several threads, and calls in forked processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_REMOTE_THREADS = 16

T = TypeVar("T")
R = TypeVar("R")


def map_in_threads(function: Callable[[T], R], items: Iterable[T], *, local: bool) -> list[R]:
    """Call a function on every item, on threads, and return the results in order; files that it reads are `local`."""
    items = list(items)
    threads = min((os.cpu_count() or 1) if local else _REMOTE_THREADS, len(items))
    if threads <= 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads, thread_name_prefix="daskprep-read") as pool:
        return list(pool.map(function, items))


def call_after_fork(function: Callable[[], object]) -> None:
    """Call a function in every process forked from this one; Windows forks none."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
