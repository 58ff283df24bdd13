"""Laws of datasets, batches and encodings, and the tally of what a program was refused."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import daskprep as dp
from daskprep.dataset import Dataset, Split
from daskprep.dataset.opening import find_differences
from daskprep.errors import (
    ConfigError,
    ContractError,
    CorruptDatasetError,
    DaskprepError,
    IncompleteDatasetError,
    StorageError,
    WorkerError,
)
from daskprep.storage.manifest import APPENDED, MANIFEST
from tests.laws.tables import KEY, KEYS

Arrays = Mapping[str, np.ndarray]
Content = Mapping[str, Arrays]
"""Encoded rows by split and output."""

REFUSED = object()
# No program damages a file, kills a worker, or brings a custom type.
NO_REASONS = (CorruptDatasetError, IncompleteDatasetError, ContractError, StorageError, WorkerError)
STEP_SECONDS = 30
KILL_SECONDS = 10
COMMITS = (MANIFEST, APPENDED)


@dataclass
class Tally:
    """Number of steps, of checked laws, and of refusals by operation and reason."""

    steps: Counter[str] = field(default_factory=Counter)
    laws: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)
    programs: int = 0
    steps_before: int = 0  # the last program

    def start_program(self) -> None:
        self.programs += 1
        self.steps_before = sum(self.steps.values())

    def attempt(self, operation: str, call: Callable[[], Any]) -> Any:
        """Return the result of a call, or `REFUSED` after an error of the package that names a reason."""
        self.calls[operation] += 1
        try:
            with time_limit(STEP_SECONDS):
                return call()
        except NO_REASONS:
            raise
        except DaskprepError as error:
            message = str(error)
            assert len(message) > 20, "an error names no reason"
            reason = re.sub(r"/\S+|\"[^\"]*\"|'[^']*'|[0-9][0-9,.]*", "_", message)[:90]
            self.refusals[operation, f"{type(error).__name__}: {reason}"] += 1
            return REFUSED

    def share_refused(self, operation: str) -> float:
        refused = sum(count for (name, _), count in self.refusals.items() if name == operation)
        return refused / max(1, self.calls[operation])

    def text(self) -> str:
        lines = [f"{self.programs} programs, {sum(self.steps.values())} steps, {sum(self.laws.values())} laws checked"]
        lines += [f"  {count:7} steps: {name}" for name, count in self.steps.most_common()]
        lines += [f"  {count:7} laws: {name}" for name, count in self.laws.most_common()]
        for operation, calls in self.calls.most_common():
            lines.append(f"  {self.share_refused(operation):7.1%} of {calls} calls refused: {operation}")
            own = {reason: count for (name, reason), count in self.refusals.items() if name == operation}
            lines += [f"      {count:5} {reason}" for reason, count in Counter(own).most_common(6)]
        return "\n".join(lines)


TALLY = Tally()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError if the block takes longer, so that a program that hangs is found."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"a step took longer than {seconds} s")

    handler = signal.signal(signal.SIGALRM, stop)
    remaining, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    started = time.monotonic()
    try:
        yield
    finally:
        # The limit of the test is another alarm.
        signal.setitimer(signal.ITIMER_REAL, max(0.1, remaining - (time.monotonic() - started)) if remaining else 0)
        signal.signal(signal.SIGALRM, handler)


def equal(law: str, found: Any, expected: Any) -> None:
    """Check that arrays, or mappings of arrays, are equal in shape and value; not in the width of integers."""
    TALLY.laws[law] += 1
    if isinstance(expected, Mapping):
        assert found.keys() == expected.keys(), f"{law}: {list(found)} instead of {list(expected)}"
        differing = [name for name, one in expected.items() if not is_same(found[name], one)]
        shown = {name: (np.asarray(found[name]).tolist(), np.asarray(expected[name]).tolist()) for name in differing}
        assert not differing, f"{law}: differs, found and expected: {shown!s:.1500}"
    else:
        assert is_same(found, expected), f"{law}: {found!s:.500} instead of {expected!s:.500}"


def is_same(one: Any, other: Any) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    return one.shape == other.shape and np.array_equal(one, other, equal_nan=one.dtype.kind == other.dtype.kind == "f")


def check(law: str, is_kept: object, message: object = "") -> None:
    TALLY.laws[law] += 1
    assert is_kept, f"{law}: {message!s:.1500}"


def pick(arrays: Arrays, rows: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(array)[rows] for name, array in arrays.items()}


def join(contents: Sequence[Content]) -> dict[str, dict[str, np.ndarray]]:
    """Return the rows of several datasets, one after the other, split by split; splits without rows are left out."""
    splits = [name for name in ("train", "validation", "test") if any(len(one.get(name, ())) for one in contents)]
    joined = {}
    for split in splits:
        pieces = [one[split] for one in contents if split in one]
        joined[split] = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    return {split: arrays for split, arrays in joined.items() if len(arrays[KEY])}


def read(dataset: Dataset) -> dict[str, dict[str, np.ndarray]]:
    return {name: split.read(["row_id", *split.columns]) for name, split in dataset.splits.items()}


def check_content(dataset: Dataset, expected: Content, reader: int = 0) -> None:
    """Check all rows of a dataset, and one of its other readers."""
    found = read(dataset)
    check("splits of a dataset are those with rows", found.keys() == expected.keys(), (list(found), list(expected)))
    for name, split in dataset.splits.items():
        rows = expected[name]
        equal("a dataset has the rows that were written", found[name], rows)
        names, count = split.columns, len(split)
        if reader == 1:
            chosen = np.random.default_rng(count).integers(0, count, 7)
            equal(
                "rows by number are those of the split", split[chosen], pick({one: rows[one] for one in names}, chosen)
            )
            equal("a range of rows is that of the split", split.read(names, 1, 5), {n: rows[n][1:5] for n in names})
        elif reader == 2:
            table = split.table()
            for one in table.column_names:
                equal("a table has the rows of the split", table[one].to_numpy(), rows[one])
        elif reader == 3:
            table = split.to_arrow().read_all()
            for one in table.column_names:
                values = np.array(table[one].to_pylist(), rows[one].dtype)
                equal("an Arrow stream has the rows of the split", values.reshape(rows[one].shape), rows[one])
        elif reader == 4:
            arrays = {one: np.asarray(array) for one, array in split.to_dask().items()}
            equal("Dask arrays have the rows of the split", arrays, {one: rows[one] for one in names})
        elif reader == 5:
            check("rows are decoded", len(split.head(count)) == count)


def check_batches(batches: Sequence[Mapping[str, Any]], rows: Arrays, law: str) -> list[int]:
    """Check that each row of batches has the cells of the row with its key, and return the keys."""
    places = {int(key): place for place, key in enumerate(rows[KEY].tolist())}
    keys: list[int] = []
    for batch in batches:
        own = [int(key) for key in np.asarray(batch[KEY]).tolist()]
        check("batches have only rows of the split", set(own) <= places.keys(), own)
        check("batches have no keys", not batch.keys() & set(KEYS), list(batch))
        names = [name for name in batch if name in rows and name != "row_id"]
        at = [places[key] for key in own]
        equal(law, {name: np.asarray(batch[name]) for name in names}, {name: rows[name][at] for name in names})
        keys += own
    return keys


def check_ranks(ranks: Sequence[Sequence[Mapping[str, Any]]], batch_size: int) -> list[int]:
    """Check the number and the sizes of the batches of ranks; return the sizes of the global batches."""
    counts = {len(batches) for batches in ranks}
    check("ranks have equally many batches", len(counts) == 1, counts)
    sizes = [sum(len(batch[KEY]) for batch in together) for together in zip(*ranks, strict=True)]
    *full, last = sizes or [0]
    # Two batches need two rows of each rank.
    is_joined = batch_size < last < 2 * len(ranks)
    is_kept = max(full, default=0) <= batch_size and (last <= batch_size or is_joined)
    check("no batch is larger than batch_size", is_kept, (sizes, batch_size, len(ranks)))
    return sizes


def keys_of(rows: Arrays) -> list[int]:
    return sorted(int(key) for key in rows[KEY].tolist())


def check_epoch(keys: Sequence[int], rows: Arrays, dropped: int = 0) -> None:
    """Check that an epoch has each row as often as the split, but for `dropped` rows."""
    expected, found = Counter(keys_of(rows)), Counter(keys)
    is_kept = found == expected if not dropped else found <= expected and sum((expected - found).values()) == dropped
    check("an epoch has each row as often as it should", is_kept, (found - expected, expected - found, dropped))


def files_with(folder: Path, words: Sequence[str]) -> list[tuple[str, str]]:
    """Return the files whose bytes contain a word."""
    found = []
    for file in folder.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            found += [(str(file.relative_to(folder)), word) for word in words if word.encode() in data]
    return found


def same_state(law: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Check that two saved states are equal, but for the type of labels, which depends on the form of the rows."""
    check(law, not (differing := list(find_differences(without_type(found), without_type(expected)))), differing)


def without_type(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a state without the type of labels, which depends on the form of the rows."""
    for feature in state["features"].values():
        feature["learned"].pop("cell_type", None)
    return state


def killed(call: Callable[[], Any], step: int, *, after_commit: bool = False) -> bool:
    """Run a call in a process that ends before its change to files of the number `step`; return whether it did.

    With `after_commit`, only changes after one of a manifest or a list of versions count. A process that hangs, as a
    fork of one with threads now and then does, is killed there.
    """
    process = os.fork()
    if not process:
        try:
            _exit_at(step, is_counting=not after_commit)
            call()
        except DaskprepError:
            os._exit(0)
        except BaseException:
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + KILL_SECONDS
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            assert code in (0, 9), f"a process that should be killed raised a raw error ({code})"
            return code == 9
        if time.monotonic() > deadline:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return True
        time.sleep(0.002)


def _exit_at(step: int, *, is_counting: bool) -> None:
    """End this process without any cleanup before a number of calls that change files, counted now or from a commit."""
    left = step

    def counted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **options: Any) -> Any:
            nonlocal left, is_counting
            if is_counting and (name != "open" or arguments[1] & os.O_CREAT):
                left -= 1
                if left < 0:
                    os._exit(9)
            is_counting = is_counting or (name in ("replace", "link") and str(arguments[1]).endswith(COMMITS))
            return None if name == "fsync" else original(*arguments, **options)

        return changed

    for name in ("open", "write", "fsync", "replace", "link", "unlink", "rmdir", "mkdir"):
        setattr(os, name, counted(name, getattr(os, name)))


def is_open(path: Path) -> bool:
    """Return whether a folder has a complete dataset."""
    try:
        dp.open_dataset(path, trusted=True)
    except (ConfigError, IncompleteDatasetError):
        return False
    return True


def train_or_first(dataset: Dataset) -> Split:
    return dataset["train"] if "train" in dataset.splits else next(iter(dataset.splits.values()))
