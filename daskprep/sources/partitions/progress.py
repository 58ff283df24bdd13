"""Progress bars for passes over many partitions."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Protocol, Self

from daskprep.errors import ConfigError

_SECONDS_WITHOUT_BAR = 2.0
_processes: ContextVar[int] = ContextVar("processes", default=0)


@contextmanager
def show_processes(count: int) -> Iterator[None]:
    """Show in bars the `count` processes of tasks; 0: threads."""
    token = _processes.set(count)
    try:
        yield
    finally:
        _processes.reset(token)


class Advance(Protocol):
    """A function that counts a finished task and its rows."""

    def __call__(self, rows: int = 0) -> None: ...


class Progress:
    """A progress bar per stage: finished tasks, rows, rows per second.

    If `enabled` is None, bars are shown on terminals and in notebooks only, there after two seconds.
    """

    def __init__(self, enabled: bool | None = None) -> None:
        if not isinstance(enabled, bool | None):
            raise ConfigError(f"progress must be True, False or None (bars on terminals only), not {enabled!r}")
        self.enabled = sys.stderr is not None and (_is_interactive() if enabled is None else enabled)
        self.prefix = ""  # shown before names of stages, to distinguish repeated ones
        self.seconds: dict[str, float] = {}  # total by name of stage, also without bars
        self._stage: tuple[str, float] | None = None
        self._bar: Any = None
        self._shown_from = time.monotonic() + _SECONDS_WITHOUT_BAR if _in_notebook() else 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end_stage()
        self._close(leave=True)

    def stage(self, name: str, *, total: int, unit: str = "tasks") -> Advance:
        """Start a stage, and return its `advance`, which one thread at a time may call."""
        self._end_stage()
        self._stage = name, time.monotonic()
        if not self.enabled:
            return lambda rows=0: None
        self._close(leave=False)
        count = _processes.get()
        where = f" on {count} process{'es' * (count > 1)}" if count else ""
        file = sys.stdout if _in_notebook() else sys.stderr  # notebooks mark standard error as an error
        bar = self._bar = _bar_class()(
            total=total,
            desc=f"{self.prefix}{name}{where}",
            unit=f" {unit}",
            miniters=1,
            delay=max(0.0, self._shown_from - time.monotonic()),
            file=file,
            **_size_options(file),
        )
        started, rows_done = time.monotonic(), 0

        def advance(rows: int = 0) -> None:
            nonlocal rows_done
            rows_done += rows
            if rows_done:
                rate = rows_done / max(time.monotonic() - started, 1e-9)
                bar.set_postfix_str(f"{rows_done:,} rows, {rate:,.0f} rows/s", refresh=False)
            bar.update()

        return advance

    def _end_stage(self) -> None:
        """Add the seconds of the stage, if one runs."""
        if self._stage is not None:
            name, started = self._stage
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started
            self._stage = None

    def _close(self, *, leave: bool) -> None:
        """Close the bar, if any; `leave`: it stays visible."""
        if self._bar is not None:
            self._bar.leave = leave
            self._bar.close()
            self._bar = None


def _is_interactive() -> bool:
    return sys.stderr.isatty() or _in_notebook()


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def _size_options(file: Any) -> dict[str, Any]:
    """Return tqdm's options for a terminal, which may say 0."""
    with suppress(OSError, ValueError, AttributeError):  # no terminal
        if 0 in os.get_terminal_size(file.fileno()):
            return {"ncols": 80, "nrows": 24}
    return {"dynamic_ncols": True}


def _bar_class() -> Any:
    """Return tqdm's class of bars; with widgets in a notebook that has them."""
    # tqdm.auto would warn if ipywidgets is missing.
    if _in_notebook() and importlib.util.find_spec("ipywidgets") is not None:
        bar = importlib.import_module("tqdm.notebook").tqdm_notebook
    else:
        bar = importlib.import_module("tqdm").tqdm

    class Bar(bar):  # type: ignore[misc, valid-type]
        # tqdm's monitor is a thread that outlives the bar, and warns if it cannot start.
        monitor_interval = 0

    return Bar
