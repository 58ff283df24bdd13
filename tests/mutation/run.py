"""Change the package in small ways, one at a time, and see whether the nearest tests notice.

    .venv/bin/python tests/mutation/run.py [daskprep/columns/permutation.py ...] [--jobs 2] [--every 5]

Prints every change that no test noticed, and the share that was noticed. Changes that make no difference to what
the package does are listed, with reasons, in ``accepted.toml``; the share leaves them out.

A module and its tests are imported once. Each change is made in a process forked from there: the code of one
function is compiled anew and put in its place, and the tests that reach the changed lines run, the quickest first.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import gc
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest
from changes import Change, find_changes

ROOT = Path(__file__).parents[2]
ACCEPTED = Path(__file__).with_name("accepted.toml")
RESULTS = ROOT / "build" / "mutation"
WANTED_PERCENT = 90
# Of Linux: see prctl(2), capset(2) and capabilities(7).
_KEEP_CAPABILITIES, _CAPABILITIES_VERSION, _READ_ALL, _AMBIENT, _RAISE = 8, 0x20080522, 2, 47, 2

MERGING = "tests/columns/summaries/test_merging.py"
TOKEN_COUNTS = "tests/columns/summaries/test_token_counts.py"
NEAREST_TESTS = {
    "daskprep/columns/permutation.py": ["tests/columns/test_permutation.py"],
    "daskprep/sources/classes.py": ["tests/sources/test_classes.py"],
    "daskprep/columns/parametrized.py": ["tests/sources/test_split.py", "tests/sources/test_balance.py"],
    "daskprep/sources/split/__init__.py": ["tests/sources/test_split.py"],
    "daskprep/sources/split/base.py": ["tests/sources/test_split.py"],
    "daskprep/sources/split/folds.py": ["tests/sources/test_folds.py"],
    "daskprep/sources/split/groups.py": ["tests/sources/test_folds.py"],
    "daskprep/sources/split/rows.py": [
        "tests/sources/test_split.py",
        "tests/sources/test_folds.py",
        "tests/sources/test_sample.py",
    ],
    "daskprep/sources/split/times.py": ["tests/sources/test_split.py", "tests/sources/test_folds.py"],
    "daskprep/sources/balance.py": ["tests/sources/test_balance.py"],
    "daskprep/columns/vocabulary.py": ["tests/columns/test_vocabulary.py"],
    "daskprep/columns/summaries/base.py": [MERGING],
    "daskprep/columns/summaries/samples.py": [
        "tests/columns/summaries/test_distinct_values.py",
        "tests/columns/summaries/test_file_sample.py",
        MERGING,
    ],
    "daskprep/columns/summaries/column_summary.py": [
        "tests/columns/summaries/test_frame.py",
        "tests/columns/summaries/test_rejects.py",
        MERGING,
    ],
    "daskprep/columns/summaries/moments.py": [
        "tests/columns/summaries/test_moments.py",
        MERGING,
        "tests/columns/summaries/test_value_sums.py",
    ],
    "daskprep/columns/summaries/quantiles.py": [
        "tests/columns/summaries/test_quantiles.py",
        MERGING,
        "tests/columns/summaries/test_multiset.py",
    ],
    "daskprep/columns/summaries/target_sums.py": [
        "tests/columns/summaries/test_target_sums.py",
        MERGING,
        "tests/features/test_bins.py",
        "tests/columns/summaries/test_value_sums.py",
        "tests/features/test_target_encoding.py",
    ],
    "daskprep/columns/summaries/token_counts.py": [
        TOKEN_COUNTS,
        MERGING,
        "tests/columns/summaries/test_frame.py",
        "tests/columns/summaries/test_token_bytes.py",
        "tests/columns/summaries/test_spill.py",
    ],
    "daskprep/features/bins.py": ["tests/features/test_bins.py"],
    "daskprep/features/directions.py": ["tests/features/test_text_components.py"],
    "daskprep/features/text_components.py": ["tests/features/test_text_components.py"],
    "daskprep/features/target_encoding.py": ["tests/features/test_target_encoding.py"],
    "daskprep/sources/partitions/passes.py": ["tests/sources/test_partitions.py"],
    "daskprep/dataset/loader/order.py": ["tests/dataset/loader/test_order.py", "tests/dataset/loader/test_state.py"],
    "daskprep/dataset/loader/sampling.py": ["tests/dataset/loader/test_sampling.py"],
    "daskprep/storage/manifest.py": ["tests/storage/test_manifest.py"],
    "daskprep/dataset/writing/versions.py": ["tests/dataset/writing/test_versions.py"],
    "daskprep/dataset/writing/plan.py": ["tests/dataset/writing/test_placement.py"],
    "daskprep/extensions/column_types/guess.py": ["tests/extensions/column_types/test_rules.py"],
    "daskprep/extensions/column_types/rules.py": ["tests/extensions/column_types/test_rules.py"],
}


class Reach(NamedTuple):
    """How long a test takes, in seconds, and the lines of the module that it runs."""

    item: pytest.Item
    seconds: float
    lines: set[int]


class Trial(NamedTuple):
    """A process that runs the tests of one change."""

    change: Change
    folder: str


class Trials:
    """A plugin that runs no tests in this process, but in one for each change."""

    def __init__(self, path: str, jobs: int, only: set[str] | None, every: int) -> None:
        self.path, self.jobs, self.only, self.every = ROOT / path, jobs, only, every
        self.module = importlib.import_module(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        self.tree = ast.parse(self.path.read_text())
        self.missed: list[Change] = []
        self.count = 0
        self._in_child = False
        self._running: dict[int, Trial] = {}

    def pytest_sessionstart(self) -> None:
        import hypothesis  # pytest wants to import it first

        # The same examples each time, and no search for smaller ones: that a test fails is all that counts.
        hypothesis.settings.register_profile(
            "mutation",
            deadline=None,
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
            derandomize=True,
            max_examples=50,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        hypothesis.settings.load_profile("mutation")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        reaches = self._reaches(session)
        gc.freeze()
        for number, change in enumerate(find_changes(self.tree)):
            if number % self.every:
                continue
            self.count += 1
            if self.only is not None and change.describe() not in self.only:
                continue
            reached = [reach for reach in reaches if change.function is None or reach.lines & set(change.lines)]
            if not reached:
                self.missed.append(change)
                continue
            while len(self._running) >= self.jobs:
                self._wait()
            self._start(change, sorted(reached, key=lambda reach: reach.seconds))
        while self._running:
            self._wait()
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        # One failure is enough, and a report of it would take longer than most tests.
        if self._in_child and call.excinfo and not call.excinfo.errisinstance(pytest.skip.Exception):
            os._exit(1)

    def _reaches(self, session: pytest.Session) -> list[Reach]:
        with tempfile.TemporaryDirectory() as folder:
            _give_away(folder)
            child = os.fork()
            if not child:
                self._trace(session, folder)
            os.waitpid(child, 0)
            reaches = json.loads(Path(folder, "reaches").read_text())
        for item, (*_, passed) in zip(session.items, reaches, strict=True):
            if not passed:
                print(f"    left out, since it fails without a change: {item.nodeid}", file=sys.stderr)
        return [
            Reach(item, seconds, set(lines))
            for item, (seconds, lines, passed) in zip(session.items, reaches, strict=True)
            if passed
        ]

    def _trace(self, session: pytest.Session, folder: str) -> None:
        _enter(folder)
        lines: set[int] = set()
        file = self.module.__file__

        def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
            if frame.f_code.co_filename != file:
                return None
            lines.add(frame.f_lineno)
            return trace

        sys.settrace(trace)
        threading.settrace(trace)
        reaches = []
        for item, next_item in _pairs(session.items):
            lines.clear()
            start, failed = time.perf_counter(), session.testsfailed
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
            reaches.append((time.perf_counter() - start, sorted(lines), session.testsfailed == failed))
        Path("reaches").write_text(json.dumps(reaches))
        os._exit(0)

    def _start(self, change: Change, reached: list[Reach]) -> None:
        folder = tempfile.mkdtemp()
        _give_away(folder)
        child = os.fork()
        if not child:
            _enter(folder)
            self._install(change)
            self._in_child = True
            for reach, (item, next_item) in zip(reached, _pairs([reach.item for reach in reached]), strict=True):
                # The signals end the process. One that waits for itself uses no processor.
                signal.setitimer(signal.ITIMER_PROF, limit := 6 + 3 * reach.seconds)
                signal.setitimer(signal.ITIMER_REAL, 6 * limit)
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
            os._exit(0)
        self._running[child] = Trial(change, folder)

    def _install(self, change: Change) -> None:
        change.make()
        if change.function is None:
            self._set_constant(change.statement)
            return
        code = _find_code(compile(self.tree, self.module.__file__, "exec"), change.function)
        _find_function(self.module, change.function).__code__ = code

    def _set_constant(self, statement: ast.stmt) -> None:
        names = dict(vars(self.module))
        exec(compile(ast.Module([statement], []), str(self.path), "exec"), names)
        for name in [node.id for node in ast.walk(statement) if isinstance(getattr(node, "ctx", None), ast.Store)]:
            before = vars(self.module)[name]
            # Modules that imported it have it too.
            for module in [module for key, module in sys.modules.items() if key.startswith("daskprep")]:
                if vars(module).get(name) is before:
                    setattr(module, name, names[name])

    def _wait(self) -> None:
        child, status = os.wait()
        trial = self._running.pop(child)
        shutil.rmtree(trial.folder, ignore_errors=True)
        if not status:
            self.missed.append(trial.change)


def _pairs(items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    yield from zip(items, [*items[1:], None], strict=True)


def _give_away(folder: str) -> None:
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)


def _enter(folder: str) -> None:
    """Work in `folder` alone: changed code may write and delete where it should not, and root may everywhere."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None)
        libc.prctl(_KEEP_CAPABILITIES, 1, 0, 0, 0)
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        # Modules are read when they are first used, also by processes of tests, of a Python that root alone may read.
        sets = (ctypes.c_uint32 * 6)(*[1 << _READ_ALL] * 3)
        libc.capset((ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0), sets)
        libc.prctl(_AMBIENT, _RAISE, _READ_ALL, 0, 0)
    os.chdir(folder)
    os.environ["HOME"] = os.environ["TMPDIR"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = folder
    handle = os.open(os.devnull, os.O_WRONLY)
    os.dup2(handle, 1)
    os.dup2(handle, 2)


def _find_code(code: CodeType, name: str) -> CodeType:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == name:
                return constant
            if name.startswith(f"{constant.co_qualname}."):
                return _find_code(constant, name)
    raise LookupError(name)


def _find_function(module: ModuleType, name: str) -> FunctionType:
    value: Any = module
    for part in name.split("."):
        value = vars(value)[part]
    while not isinstance(value, FunctionType):
        match value:
            case property():
                value = value.fget
            case cached_property():
                value = value.func
            case _:  # class methods, static methods, functools.cache
                value = value.__wrapped__
    while hasattr(value, "__wrapped__"):  # context managers
        value = value.__wrapped__
    return value


def try_module(path: str, jobs: int, again: bool, every: int) -> None:
    """Try the changes of a module, or again those that were missed; write what was missed below `RESULTS`."""
    file = _results(path)
    before = json.loads(file.read_text()) if again else None
    trials = Trials(path, jobs, before and {text for _, text in before["missed"]}, every)
    options = [
        "-q",
        "-m",
        "not cluster",  # each change would start one
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:faulthandler",
        "--assert=plain",
        f"--rootdir={ROOT}",
    ]
    if code := pytest.main([*options, *(str(ROOT / tests) for tests in NEAREST_TESTS[path])], plugins=[trials]):
        sys.exit(int(code))
    file.parent.mkdir(parents=True, exist_ok=True)
    missed = sorted((change.lines.start, change.describe()) for change in trials.missed)
    file.write_text(json.dumps({"count": trials.count, "missed": missed}))


def _results(path: str) -> Path:
    return RESULTS / f"{path.removesuffix('.py').replace('/', '.')}.json"


def report(path: str, accepted: set[str]) -> tuple[int, int]:
    """Print what was missed; return how many changes there are, without accepted ones, and how many were noticed."""
    result = json.loads(_results(path).read_text())
    missed = [(line, text) for line, text in result["missed"] if text not in accepted]
    harmless = len(result["missed"]) - len(missed)
    count = result["count"] - harmless
    print(f"{path}: {count - len(missed)} of {count} noticed, {harmless} more make no difference", flush=True)
    for text in sorted(accepted - {text for _, text in result["missed"]}):
        print(f"    accepted, but noticed or gone: {text}")
    for line, text in missed:
        print(f"    {line}: {text}", flush=True)
    return count, count - len(missed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help="files of the package (default: all that have tests of their own)")
    parser.add_argument("--jobs", type=int, default=2, help="changes tried at a time (default: 2)")
    parser.add_argument("--every", type=int, default=1, help="try one of so many changes alone (default: all)")
    parser.add_argument("--again", action="store_true", help="try only what the last run missed")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        try_module(chosen.modules[0], chosen.jobs, chosen.again, chosen.every)
        return
    reasons = tomllib.loads(ACCEPTED.read_text())
    count = noticed = 0
    for path in chosen.modules or NEAREST_TESTS:
        command = [
            sys.executable,
            __file__,
            path,
            "--one",
            f"--jobs={chosen.jobs}",
            f"--every={chosen.every}",
            *["--again"] * chosen.again,
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        accepted = {text for changes in reasons.get(path, {}).values() for text in changes}
        count, noticed = (a + b for a, b in zip((count, noticed), report(path, accepted), strict=True))
    percent = 100 * noticed / count
    print(f"{noticed} of {count} noticed: {percent:.1f} %")
    if percent < WANTED_PERCENT:
        sys.exit(f"Less than {WANTED_PERCENT} %: add tests that notice more.")


if __name__ == "__main__":
    main()
