from __future__ import annotations

import importlib.util
import io
import os
import select
import struct
import subprocess
import sys
from types import SimpleNamespace

import pytest
from tqdm import tqdm

from daskprep.errors import ConfigError
from daskprep.sources.partitions.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def work(enabled: bool | None) -> None:
    with Progress(enabled) as shown:
        for stage in ("reading", "writing"):
            advance = shown.stage(stage, total=2, unit="partitions")
            advance(rows=1000)
            advance(rows=500)


def test_bar_shows_tasks_and_rows_and_the_last_bar_stays(capsys):
    work(True)
    out, err = capsys.readouterr()
    last = err.rstrip("\n").split("\r")[-1]
    assert out == ""
    assert "reading" in err
    assert "writing" in last
    assert "2/2" in last
    assert "1,500 rows" in last
    assert "rows/s" in last


def test_bars_are_only_shown_on_terminals_by_default(capsys, monkeypatch):
    work(None)
    work(False)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    work(None)
    assert "2/2" in terminal.getvalue()


def test_tqdm_is_not_imported_without_bars():
    code = """if True:
        import sys
        from daskprep.sources.partitions.progress import Progress
        with Progress() as progress:
            progress.stage("reading", total=1, unit="partitions")(rows=1)
        assert "tqdm" not in sys.modules
    """
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert answer.stdout + answer.stderr == b""


@pytest.fixture
def notebook(monkeypatch):
    """Return a function that enters a notebook in which a package can be imported."""

    def enter(package=None):
        fake = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1))
        monkeypatch.setitem(sys.modules, "IPython", fake)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == package or None)

    return enter


def test_notebook_without_widgets_shows_plain_bars_without_warning(notebook, sizes, capsys):
    notebook()
    sizes(seconds_without_bar=0.0)
    work(None)
    out, err = capsys.readouterr()
    assert "2/2" in out
    assert err == ""


def test_short_job_shows_no_bar_in_a_notebook(notebook, sizes, capsys):
    notebook()
    sizes(seconds_without_bar=3600.0)
    work(None)
    assert capsys.readouterr() == ("", "")


def test_notebook_with_widgets_uses_them(notebook, monkeypatch, sizes, capsys):
    shown = io.StringIO()

    class Widget(tqdm):
        def __init__(self, **options):
            super().__init__(**options | {"file": shown})

    monkeypatch.setitem(sys.modules, "tqdm.notebook", SimpleNamespace(tqdm_notebook=Widget))
    notebook("ipywidgets")
    sizes(seconds_without_bar=0.0)
    work(None)
    assert "2/2" in shown.getvalue()
    assert capsys.readouterr() == ("", "")


def test_interrupted_stage_keeps_its_count(capsys):
    with Progress(True) as shown:
        shown.stage("reading", total=4)(rows=1)
    assert "1/4" in capsys.readouterr().err.split("\r")[-1]


def test_invalid_enabled_raises():
    with pytest.raises(ConfigError, match="'yes'"):
        Progress("yes")


def test_stage_seconds_are_recorded_without_progress_bars(monkeypatch):
    clock = iter([1.0, 3.0, 3.0, 4.0, 4.0, 9.0])
    monkeypatch.setattr("daskprep.sources.partitions.progress.time.monotonic", lambda: next(clock))
    with Progress(enabled=False) as progress:
        for name in ("reading", "writing", "reading"):
            progress.stage(name, total=1)
    assert progress.seconds == {"reading": 7.0, "writing": 1.0}


def test_bars_are_shown_on_a_terminal_of_no_size():
    pty, termios = pytest.importorskip("pty"), pytest.importorskip("termios")
    fcntl = pytest.importorskip("fcntl")
    main, terminal = pty.openpty()
    fcntl.ioctl(main, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
    shown = b""
    with os.fdopen(terminal, "w") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", file)
        work(None)
        # A read returns what the terminal has passed on so far.
        while b"2/2" not in shown and select.select([main], [], [], 10)[0]:
            shown += os.read(main, 1 << 16)
    assert b"2/2" in shown
    os.close(main)
