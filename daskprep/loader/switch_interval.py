"""How long a thread may keep the interpreter while another waits for it: shorter while blocks are decoded.

Between two short calls of NumPy a thread takes the interpreter again before one that waits has woken up. Only when the
interval is over does that one get its turn: with the 5 ms of Python, a first batch takes twice as long.
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
    """The interval of the process, which all its threads and loaders share.

    The first that wants it short sets it, and the last to end puts back what was there; unless somebody else has set it
    meanwhile, who then knows better. A forked process inherits interval and count, and ends what it took along.
    """

    def __init__(self) -> None:
        self._users = 0
        self._original = self._short = 0.0
        self.reset_lock()

    def reset_lock(self) -> None:
        """Make a new lock: in a forked process nobody would let go of one that another thread held."""
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
    """Let threads take short turns meanwhile, unless ``DASKPREP_SHORT_TURNS`` is 0 in the environment."""
    if os.environ.get(_VARIABLE) == "0":
        yield
        return
    _interval.shorten()
    try:
        yield
    finally:
        _interval.restore()
