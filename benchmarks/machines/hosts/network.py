"""Hosts on one machine: network namespaces on a switch, each with a folder that the others do not see.

    with Network(["store", "one", "two"]) as network:
        network.start("one", [sys.executable, "-m", "http.server"])

Nothing of it leaves the machine: the switch has no way out. Root and Debian's iproute2 and util-linux are needed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

TOOLS = ("ip", "nsenter", "unshare", "mount")


class Network:
    """Named hosts; `folder` has one path and other content on each of them.

    Parameters
    ----------
    names : sequence of str
        Short names of the hosts. Each gets the address ``10.77.0.n``, from 1 in this order.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.logs = Path(tempfile.mkdtemp(prefix="daskprep-hosts-"))
        self.folder = self.logs / "private"
        self._prefix = f"dp{os.getpid() % 100_000}"
        self._keepers: dict[str, subprocess.Popen[bytes]] = {}
        self._started: list[subprocess.Popen[bytes]] = []

    def address(self, name: str) -> str:
        """Return the address of a host."""
        return f"10.77.0.{self.names.index(name) + 1}"

    def __enter__(self) -> Self:
        self.folder.mkdir()
        try:
            switch = self._namespace("switch")
            _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
            _ip("-n", switch, "link", "set", "bridge", "up")
            for name in self.names:
                self._add(name, switch)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(
        self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command on a host, in its folder; what it prints is in `log` of the host."""
        keeper = str(self._keepers[name].pid)
        inside = [
            "nsenter",
            f"--target={keeper}",
            "--net",
            "--mount",
            "env",
            f"--chdir={self.folder}",
            *map(str, command),
        ]
        given = {**os.environ, "TMPDIR": str(self.folder), **(environment or {})}
        with self._open_log(name) as log:
            started = subprocess.Popen(
                inside, env=given, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._started.append(started)
        return started

    def run(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> str:
        """Run a command on a host, and return what it printed; an error shows the whole log of the host."""
        before = self._log(name).stat().st_size if self._log(name).exists() else 0
        code = self.start(name, command, environment).wait(timeout=900)
        printed = self._log(name).read_bytes()[before:].decode(errors="replace")
        if code:
            raise RuntimeError(f"{command} on {name} ended with {code}:\n{printed}")
        return printed

    def cut_off(self, name: str) -> None:
        """Take the cable of a host out."""
        _ip("-n", self._full("switch"), "link", "set", f"to-{name}", "down")

    def log(self, name: str) -> str:
        """Return what the commands of a host printed."""
        return self._log(name).read_text(errors="replace")

    def close(self) -> None:
        """End what runs on the hosts, and remove them."""
        for process in [*self._started, *self._keepers.values()]:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for keeper in self._keepers.values():
            assert keeper.stdout is not None
            keeper.stdout.close()
        for name in ("switch", *self.names):
            subprocess.run(["ip", "netns", "delete", self._full(name)], check=False, capture_output=True)
        # The hosts' folders were mounted in their own namespaces, which ended with them: here it is empty.
        shutil.rmtree(self.logs)

    def _add(self, name: str, switch: str) -> None:
        host, address = self._namespace(name), self.address(name)
        _ip("-n", host, "link", "add", "cable", "type", "veth", "peer", "name", f"to-{name}", "netns", switch)
        _ip("-n", switch, "link", "set", f"to-{name}", "master", "bridge", "up")
        _ip("-n", host, "address", "add", f"{address}/24", "dev", "cable")
        for link in ("cable", "lo"):
            _ip("-n", host, "link", "set", link, "up")
        hold = f"mount -t tmpfs tmpfs {self.folder} && echo ready && exec sleep infinity"
        keeper = subprocess.Popen(
            ["ip", "netns", "exec", host, "unshare", "--mount", "--propagation=private", "sh", "-c", hold],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._keepers[name] = keeper
        assert keeper.stdout is not None
        if keeper.stdout.readline() != b"ready\n":
            raise RuntimeError(f"no folder could be mounted on {name}")

    def _namespace(self, name: str) -> str:
        _ip("netns", "add", self._full(name))
        return self._full(name)

    def _full(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def _open_log(self, name: str) -> IO[Any]:
        return self._log(name).open("ab")


def obstacle() -> str | None:
    """Return why this machine can make no hosts, None if it can."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"{', '.join(missing)} not installed: apt-get install iproute2 util-linux mount"
    try:
        with Network(["one"]) as network:
            network.run("one", ["true"])
    except (subprocess.CalledProcessError, RuntimeError) as error:
        return f"network namespaces are not allowed here: {error}"
    return None


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
