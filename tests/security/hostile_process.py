"""Call every entry point on hostile datasets, under a hook that records accesses outside their folder.

Arguments: the folder of the datasets, a file of the rows to repair and write with, and whether all is called.
It prints the outcome of each dataset and entry point as a line of JSON.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

os.environ["MPLBACKEND"] = "Agg"
import pandas as pd

import daskprep as dp
from daskprep.errors import DaskprepError
from daskprep.extensions.cli import main

_HANGS_SECONDS = 120
_LIBRARIES = tuple(
    os.path.realpath(path)
    for path in [*sys.path[1:], sys.prefix, sys.base_prefix, "/usr", "/lib", "/lib64", "/etc", "/proc", "/sys", "/dev"]
    if path
)
_REMOVING = {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
_NEVER = re.compile(
    r"socket\.(connect|bind|getaddrinfo|gethostbyname|sendto|sendmsg)|subprocess\.Popen|os\.(system|exec|posix_spawn|fork)"
    r"|ctypes\.dlopen|pickle\.find_class|webbrowser\.open|urllib\.Request|marshal\.loads?|code\.__new__"
)


class Guard:
    """Records accesses outside a folder, from Python's audit events."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        folder = self.folder
        if folder is None:
            return
        if event == "open":
            path, mode, flags = arguments
            writes = bool((flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)) or "w" in str(mode or "")
            if isinstance(path, str | bytes) and not self._is_inside(path, folder, reads=not writes, follows=True):
                self._note(event, arguments)
        elif event in _REMOVING:
            paths = [one for one in arguments[:2] if isinstance(one, str | bytes)]
            if not all(self._is_inside(one, folder, reads=False) for one in paths):
                self._note(event, arguments)
        elif (_NEVER.fullmatch(event) or event in {"exec", "compile"}) and not _importing():
            self._note(event, arguments)

    def _is_inside(self, path: str | bytes, folder: str, *, reads: bool, follows: bool = False) -> bool:
        text = os.fsdecode(path)
        if not text.startswith("/"):
            # A path relative to an open folder, as in the events of rmtree.
            return True
        # Removing or replacing a link does not change its target.
        parent, _, name = text.rstrip("/").rpartition("/")
        found = os.path.realpath(text) if reads or follows else f"{os.path.realpath(parent or '/')}/{name}"
        places = (folder, *_LIBRARIES) if reads else (folder, "/proc/self/", "/dev/null")
        return any(found == place or found.startswith(f"{place.rstrip('/')}/") for place in places)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        folder, self.folder = self.folder, None
        self.seen.append(f"{event}{arguments!r}"[:300])
        self.folder = folder


def _importing() -> bool:
    """Return whether Python imports a module, or Dask names a task."""
    frame = sys._getframe()
    while frame is not None:
        # Dask names tasks by pickling its own classes.
        if "importlib" in frame.f_code.co_filename or "/site-packages/dask/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def entries(frame: pd.DataFrame, *, everything: bool) -> dict[str, Callable[[str], object]]:
    """Return the calls for each dataset, by name; those that change it are last."""

    def opened(path: str) -> dp.Dataset:
        return dp.open_dataset(path)

    def each_split(call: Callable[[Any], object]) -> Callable[[str], object]:
        return lambda path: [call(split) for split in opened(path).splits.values()]

    def decoded(path: str) -> object:
        return [opened(path).decode(split.read()) for split in opened(path).splits.values()]

    def numbers(split: Any) -> list[str]:
        return [output.name for output in split.layout.outputs if not output.stores_cells]

    calls: dict[str, Callable[[str], object]] = {
        "open": lambda path: repr(opened(path)),
        "metadata": lambda path: (opened(path).metadata, opened(path).features, opened(path).rejects()),
        "vocabulary": lambda path: [
            opened(path).vocabulary(name).tokens.to_pylist() for name in ("city", "tags", "review_word")
        ],
        "from_dataset": lambda path: dp.Preprocessor.from_dataset(opened(path)).encode(frame),
        "verify": lambda path: opened(path).verify(),
        "damaged": lambda path: opened(path).damaged(),
        "read": each_split(lambda split: split.read(numbers(split))),
        "read media": each_split(lambda split: split.read()),
        "table": each_split(lambda split: split.table()),
        "arrays": each_split(lambda split: [array.shape for _, array in split.arrays.arrays()]),
        "head": each_split(lambda split: split.head()),
        "decode": decoded,
        "loader": each_split(lambda split: list(split.loader(16, columns=numbers(split)))),
        "loader media": each_split(lambda split: list(split.loader(16))),
        "inspect": lambda path: main(["inspect", path, "--json"]),
        "inspect text": lambda path: main(["inspect", path]),
        "verify command": lambda path: main(["verify", path]),
        "decode command": lambda path: main(["decode", path]),
        "cache_media": lambda path: opened(path).cache_media(),
        "clear_cache": lambda path: opened(path).clear_cache(),
    }
    if not everything:
        return calls
    calls["to_dask"] = each_split(lambda split: [one.compute() for one in split.to_dask(numbers(split)).values()])
    calls["report"] = lambda path: opened(path).report().html
    calls["plot"] = lambda path: opened(path).plot("price")
    calls["repair"] = lambda path: dp.repair(path, frame)
    calls["write"] = lambda path: dp.Preprocessor({"price": "number"}).fit_write(frame, path, overwrite=True)
    return calls


def outcome(call: Callable[[str], object], path: str) -> str:
    try:
        call(path)
    except DaskprepError as error:
        return f"{type(error).__name__}: {error}"[:300]
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        ours = [one for one in traceback.extract_tb(error.__traceback__) if "daskprep" in one.filename][-1:]
        return f"RAW {type(error).__name__}: {error} at {place.filename}:{place.lineno} {ours}"[:600]
    return "done"


def peak_bytes() -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.findall(r"VmHWM:\s+(\d+)", text)[0]) * 1024


def run(folder: Path, frame: pd.DataFrame, *, everything: bool, results: TextIO) -> None:
    calls = entries(frame, everything=everything)
    # Lazy imports happen before the hook is installed.
    for call in calls.values():
        outcome(call, str(folder / "sound.dp"))
    guard = Guard()
    refs = os.open("/proc/self/clear_refs", os.O_WRONLY)
    for path in sorted(folder.glob("*/a.dp")):
        os.write(refs, b"5")
        before = peak_bytes()
        for name, call in calls.items():
            guard.seen = []
            faulthandler.dump_traceback_later(_HANGS_SECONDS, exit=True)
            began = time.perf_counter()
            guard.folder = str(path.parent)
            result = outcome(call, str(path))
            guard.folder = None
            seconds = time.perf_counter() - began
            faulthandler.cancel_dump_traceback_later()
            one = {"dataset": path.parent.name, "entry": name, "outcome": result, "outside": guard.seen}
            print(json.dumps({**one, "seconds": seconds, "bytes": peak_bytes() - before}), file=results, flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    rows = pd.read_parquet(sys.argv[2])
    stdout, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115, PTH123 until the end
    run(Path(sys.argv[1]), rows, everything=sys.argv[3] == "all", results=stdout)
