"""Worker processes of this machine, started for one call. Imported only when they start: distributed takes a second.

It uses ``distributed.deploy.subprocess``, which distributed calls experimental: its worker process, not its cluster.
``tests/sources/test_processes.py`` fails with a release that changes it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from contextlib import ExitStack, suppress

from distributed import Client, Scheduler, SpecCluster
from distributed.deploy.subprocess import SubprocessWorker

from daskprep.errors import WorkerError, warn

_START_TIMEOUT, _STOP_TIMEOUT, _POLL_SECONDS = 60.0, 5.0, 0.5
_LOCAL = {"host": "127.0.0.1", "dashboard": False}
# `memory=` limits memory by the size of partitions. Without a limit, workers do not pause, spill or restart.
_WORKER_OPTIONS = {**_LOCAL, "nthreads": 1, "memory_limit": 0, "silence_logs": "CRITICAL"}


class _CommandWorker(SubprocessWorker):
    """A worker started as a command: a new process would run an unguarded script again."""

    async def _start(self) -> None:
        spec = json.dumps({"cls": self.worker_class, "opts": self.worker_kwargs})
        # The command `dask` would also import the commands of other packages.
        command = [sys.executable, "-m", "distributed.cli.dask_spec", self.scheduler, "--spec", spec]
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "DASK_LOGGING__DISTRIBUTED": "critical",  # errors of tasks are raised
            # Without a dashboard, nobody sees the profile, which takes a tenth of the CPU time.
            "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "false",
        }
        self.process = await asyncio.create_subprocess_exec(
            *command, env=os.environ | environment, start_new_session=True
        )

    async def close(self) -> None:
        """Terminate the process, wait up to five seconds, and close the connection."""
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), _STOP_TIMEOUT)
        await super().close()


class LocalWorkers:
    """A context manager of a Client of `count` new processes, with one thread each.

    If they cannot be started, it raises WorkerError if they are `required`, else it warns and yields None. A class, as
    a generator that is still open when Python exits would stop the processes too late.
    """

    def __init__(self, count: int, *, required: bool) -> None:
        self._count = count
        self._required = required
        self._cleanup = ExitStack()

    def __enter__(self) -> Client | None:
        """Start processes, return their Client, and hide log messages."""
        try:
            with ExitStack() as starting:
                # Messages about the end of a cluster are of no use: errors of tasks are raised.
                for handler in logging.getLogger("distributed").handlers:
                    handler.addFilter(self)
                    starting.callback(handler.removeFilter, self)
                worker = {"cls": _CommandWorker, "options": {"worker_kwargs": _WORKER_OPTIONS}}
                scheduler = {"cls": Scheduler, "options": {**_LOCAL, "port": 0, "dashboard_address": ":0"}}
                cluster = SpecCluster(
                    dict.fromkeys(range(self._count), worker), scheduler=scheduler, silence_logs=False
                )
                client: Client = starting.enter_context(Client(starting.enter_context(cluster), set_as_default=False))
                self._wait(client, cluster)
                self._cleanup = starting.pop_all()
                return client
        except (OSError, RuntimeError, TimeoutError) as error:
            problem = f"{self._count} processes could not be started on this machine ({error})"
            if self._required:
                raise WorkerError(f'{problem}: use workers="threads", or a Client') from error
            warn(f'{problem}, so threads are used; workers="threads" does that without this warning')
            return None

    def _wait(self, client: Client, cluster: SpecCluster) -> None:
        """Wait for all processes, at most a minute or until one ends."""
        deadline = time.monotonic() + _START_TIMEOUT
        while True:
            codes = [one.process.returncode for one in cluster.workers.values() if one.process is not None]
            if ended := [code for code in codes if code is not None]:
                raise RuntimeError(f"one ended with status {ended[0]} as it started")
            try:
                return client.wait_for_workers(self._count, timeout=_POLL_SECONDS)
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise

    def __exit__(self, *error: object) -> None:
        self._cleanup.close()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a handler writes a record."""
        return record.levelno >= logging.CRITICAL
