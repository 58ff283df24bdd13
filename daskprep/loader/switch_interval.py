"""A shorter switch interval of Python threads while blocks are loaded.

Between two short NumPy calls, a thread reacquires the GIL before a waiting thread has woken up. The waiting thread runs
only after the switch interval: with Python's default of 5 ms, a first batch takes twice as long.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from daskprep.storage.threads import call_after_fork

_VARIABLE = "DASKPREP_SHORT_TURNS"
_SHORT_SECONDS = 0.0005


class _SwitchInterval:
    """The switch interval of the process, which all threads and loaders share.

    The first user shortens it, and the last one restores the original, unless other code has changed it meanwhile. A
    forked process inherits the interval and the number of users.
    """

    def __init__(self) -> None:
        self._users = 0
        self._original = self._short = 0.0
        self.reset_lock()

    def reset_lock(self) -> None:
        """Create a new lock: in a forked process, a lock that another thread held would never be released."""
        self._lock = threading.Lock()

    def shorten(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._original = sys.getswitchinterval()
                sys.setswitchinterval(min(self._original, _SHORT_SECONDS))
                self._short = sys.getswitchinterval()

    def restore(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and sys.getswitchinterval() == self._short:
                sys.setswitchinterval(self._original)


_interval = _SwitchInterval()
call_after_fork(_interval.reset_lock)


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Shorten the switch interval in this context, unless the environment variable ``DASKPREP_SHORT_TURNS`` is 0."""
    if os.environ.get(_VARIABLE) == "0":
        yield
        return
    _interval.shorten()
    try:
        yield
    finally:
        _interval.restore()
