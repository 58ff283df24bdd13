"""A browser for tests: opens a page, lists its errors, evaluates JavaScript in it, and takes screenshots."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Pages of this repository load nothing from other hosts: no host name resolves.
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--allow-file-access-from-files",
    "--remote-debugging-pipe",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


class Browser:
    """One tab of Chromium, driven through a pipe; `errors` lists what the console reports about the open page.

    >>> with Browser() as browser:  # doctest: +SKIP
    ...     browser.open("file:///tmp/report.html", width=390, dark=True)
    ...     browser.evaluate("document.documentElement.scrollWidth")
    ...     browser.screenshot(Path("report.png"))
    """

    def __init__(self) -> None:
        assert CHROMIUM, "Chromium is not installed"
        self.errors: list[str] = []
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4.
        pipes = f'exec "$0" "$@" 3<&{reads} 4>&{writes}'
        command = ["bash", "-c", pipes, CHROMIUM, *FLAGS, f"--user-data-dir={self._profile.name}"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, pass_fds=(reads, writes), stdin=quiet, stdout=quiet, stderr=quiet)
        os.close(reads)
        os.close(writes)
        self._unread, self._calls, self._session = b"", 0, ""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._session = ""
        self._call("Browser.close")
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def open(
        self, url: str, width: int = 1280, height: int = 800, *, dark: bool = False, media: str = "screen"
    ) -> None:
        """Load a page in a window of this size, and wait until its resources and fonts are loaded.|"""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.errors.clear()
        failed = self._call("Page.navigate", url=url).get("errorText")
        assert not failed, f"{url}: {failed}"
        while self._receive().get("method") != "Page.loadEventFired":
            pass
        self.evaluate("document.fonts.ready.then(() => true)")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; promises are awaited."""
        answer = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def type(self, text: str) -> None:
        """Replace the selected text of the focused field."""
        self._call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        """Save a screenshot of the window as a PNG file."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._calls:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _receive(self) -> Any:
        """Return the next answer or event; events that report errors are also appended to `errors`."""
        while b"\0" not in self._unread:
            read = os.read(self._from, 1 << 16)
            assert read, "Chromium has stopped"
            self._unread += read
        line, self._unread = self._unread.split(b"\0", 1)
        message = json.loads(line)
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(str(params["exceptionDetails"].get("exception", {}).get("description")))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.errors.append(" ".join(str(one.get("value", one)) for one in params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        return message
