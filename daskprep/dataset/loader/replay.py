"""Runs of a loader: the first batch with a row, any batch again, and a certificate, computed from the order of rows."""

from __future__ import annotations

import copy
import hashlib
import json
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from torch.utils.data import get_worker_info

from daskprep.columns.parametrized import is_integer
from daskprep.columns.permutation import Integers
from daskprep.dataset import Split
from daskprep.dataset.loader.batch_iterator import BatchIterator, Ranks
from daskprep.dataset.loader.order import Schedule
from daskprep.errors import ConfigError
from daskprep.storage.arrays import ROW_ID

Part = dict[str, Any]
"""JSON values: the "epochs" of a part of a run, the "rows" yielded in each, and options that determine the batches."""

_MAX_EPOCHS = 100
_POSITION = ("epochs", "rows", "positions")


class RecordedIterator(BatchIterator):
    """Base class of loaders, which records the parts of a run: its epochs, interruptions and numbers of ranks."""

    split: Split
    _run: list[Part] | None  # the parts before the current one; None: not recorded
    _start: Part  # of the current part

    def first_use(self, row_ids: Any, source: int | str | None = None) -> pd.DataFrame:
        """Return the epoch and step that use each row first, in this run and as it continues, without reading batches.

        A step is a batch over all ranks, counted from 0 over all epochs and resumes of the run: a checkpoint after at
        most as many steps as "step" never saw the row. With `group_by_length`, the lengths of all rows are read.

        Parameters
        ----------
        row_ids : array of int
            Numbers of rows in the source, as "row_id" of batches. If several rows have it, the first of them counts.
        source : int, str or None
            Number of the dataset among several read as one, or name of a source of a mix. None: the only one.

        Returns
        -------
        DataFrame
            "row_id", "epoch" and "step", <NA> for rows that are not used in this epoch and the next 100.
        """
        ids, sources = np.asarray(row_ids), self._sources
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise ConfigError(f"first_use: row_ids={row_ids!r:.80}: expected a list or an array of row numbers")
        if source is None and len(sources) == 1:
            [source] = sources
        if source not in sources:
            raise ConfigError(f"first_use: source={source!r}: expected one of {', '.join(map(repr, sources))}")
        wanted, inverse = np.unique(ids.astype(np.int64), return_inverse=True)
        rows, index = find_rows(sources[source], wanted)
        unused, before = sys.maxsize, 0
        epochs, steps = np.full((2, len(wanted)), unused)
        for loader, schedule, count in self._schedules(_MAX_EPOCHS):
            if not len(rows):
                break
            if source in (names := list(loader._sources)):
                offset = sum(len(loader._sources[name]) for name in names[: names.index(source)])
                batches = schedule.first_batches(rows + offset)
                used = index[batches < count]
                np.minimum.at(steps, used, before + batches[batches < count])
                epochs[used] = loader.epoch
                rows, index = (one[epochs[index] == unused] for one in (rows, index))
            before += count
        table = pd.DataFrame({"row_id": wanted, "epoch": epochs, "step": steps}).astype(
            {"epoch": "Int64", "step": "Int64"}
        )
        table.loc[epochs == unused, ["epoch", "step"]] = pd.NA
        return table.iloc[inverse].reset_index(drop=True)

    def batch(self, step: int) -> Any:
        """Return the batch of a step of the run, or as it continues, with the rows of all ranks.

        On one rank, it equals the batch that was yielded. The position of the loader stays.
        """
        if not is_integer(step) or step < 0:
            raise ConfigError(f"step={step!r}: expected an integer from 0")
        before = 0
        for loader, schedule, count in self._schedules(sys.maxsize):
            if step < before + count:
                [batch] = loader._iterate_batches(schedule, range(step - before, step - before + 1))
                return batch
            before += count
        raise ConfigError(f"step={step}: the run ends after {before} steps")

    def certificate(self) -> dict[str, Any]:
        """Return JSON values that identify the rows of all steps of the run until now, for `verify`.

        They are the digest of the dataset, the number of steps, and the state, with options that determine the order.
        It has the parts of the run: their epochs, batch sizes, and numbers of ranks or weights. "sha256" is the digest
        of these values.
        """
        steps = sum(count for _, _, count in self._schedules(None))
        content = {"digest": self.split.dataset.digest, "steps": steps, "state": self.state_dict()}
        return {**content, "sha256": _digest(content)}

    def verify(self, certificate: Mapping[str, Any]) -> None:
        """Move to the end of the run of a certificate, for `first_use` and `batch`.

        ConfigError if the certificate was altered, or if this loader has another dataset or order.
        """
        content = {name: certificate.get(name) for name in ("digest", "steps", "state")}
        if certificate != {**content, "sha256": _digest(content)}:
            raise ConfigError(f"not a certificate, or an altered one: {str(certificate)[:200]}")
        if content["digest"] != (digest := self.split.dataset.digest):
            raise ConfigError(
                f"the certificate is for the dataset with the digest {content['digest']}, but this loader reads "
                f"{digest}: open the version that the run used, with open_dataset(path, version=...)"
            )
        self.load_state_dict(certificate["state"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._run, self._start = state.get("run"), self._start_part()

    @property
    def _sources(self) -> Mapping[Any, Split]:
        """The splits by number or name, each with separate row ids."""
        return dict(enumerate(self.split.joined))

    def _start_part(self) -> Part:
        return {"epochs": [self.epoch, self.epoch + 1], "rows": [self._rows_yielded, None]}

    @property
    def _part_options(self) -> Part:
        """The options of a part besides those that a state must have."""
        world_size = self._ranks.resolve(self.batch_size)[1]
        return {"batch_size": self.batch_size, "world_size": world_size, "drop_last": self.drop_last}

    @property
    def _run_state(self) -> dict[str, Any]:
        """The run for `state_dict`, if it is recorded."""
        return {} if (run := self._recorded_run()) is None else {"run": run}

    def _recorded_run(self) -> list[Part] | None:
        """Return the parts of the run; None if not recorded."""
        first, stop = self._start["rows"][0], self._rows_yielded
        if self._run is None or get_worker_info() is not None:
            return None
        part = {**self._start, "rows": [first, stop], **self._part_options}
        return _append(self._run, part) if stop > first else self._run

    def _schedules(self, max_epochs: int | None) -> Iterator[tuple[Any, Schedule, int]]:
        """Yield a loader of one rank, its schedule and its number of batches for each epoch of the run, or part of one.

        After the recorded ones are the rest of this epoch, and up to `max_epochs` epochs; None: recorded ones only.
        ConfigError if the run is not recorded.
        """
        if (parts := self._recorded_run()) is None:
            raise ConfigError(
                "the run is not recorded: the loader packs rows, repeats overfit_batches, or resumed from a state of a "
                "worker process or an older version. Create a loader with the same options, which starts at epoch 0"
            )
        if max_epochs is not None:
            epochs = [self.epoch + 1, self.epoch + 1 + max_epochs]
            starts = [self._start_part(), {"epochs": epochs, "rows": [0, None]}]
            parts = [*parts, *({**one, **self._part_options} for one in starts)]
        for part in parts:
            loader, (first, stop) = self._replicate(part), part["rows"]
            for loader.epoch in range(*part["epochs"]):
                if not loader._rows:  # a mix at its end
                    continue
                schedule = replace(loader._make_schedule(first), sharers=part.get("world_size"))
                count = len(schedule)
                if stop is not None:
                    count = bisect_left(range(count + 1), stop, key=schedule.rows_yielded)
                elif not count and not first:
                    return  # no epoch has a batch
                yield loader, schedule, count

    def _replicate(self, part: Part) -> Any:
        """Return a loader with the options of a part, which reads without threads."""
        original: Any = self
        _ = original._lengths  # read once for all copies
        loader = copy.copy(original)
        loader.batch_size = loader._read_batch_size = part["batch_size"]
        loader.drop_last, loader._ranks, loader.prefetch_size = part.get("drop_last", True), Ranks(0, 1), 0
        return loader


def find_rows(split: Split, ids: Integers) -> tuple[Integers, Integers]:
    """Return the position of each row with one of `ids` in a split, and the index of its id.

    `ids` ascend. If the write did not shuffle rows, the split's row ids do, too, and few blocks are read.
    """
    name, layout, blocks = ROW_ID.name, split.layout, range(split.layout.blocks(split.name))

    @cache
    def first_id(block: int) -> int:
        start = layout.block_range(split.name, block).start
        return int(split._read(name, range(start, start + 1))[name][0])

    chosen = set(blocks)
    if len(split.joined) == 1 and split.joined[0].dataset.manifest.settings.get("shuffle_seed") is None:
        first, stop = (
            [find(blocks, one, key=first_id) for one in ids.tolist()] for find in (bisect_left, bisect_right)
        )
        chosen = {block for one, other in zip(first, stop, strict=True) for block in range(max(0, one - 1), other)}
    rows, index = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for block in sorted(chosen):
        positions = layout.block_range(split.name, block)
        values = split._read(name, positions)[name]
        matches = np.flatnonzero(np.isin(values, ids))
        rows.append(matches + positions.start)
        index.append(np.searchsorted(ids, values[matches]))
    return np.concatenate(rows), np.concatenate(index)


def _append(run: list[Part], part: Part) -> list[Part]:
    """Return the parts of a run with another one, joined with the last if it continues it or repeats it in an epoch."""
    if not run or any(run[-1][name] != part[name] for name in part.keys() - _POSITION):
        return [*run, part]
    *earlier, last = run
    if last["epochs"] == part["epochs"] and last["rows"][1] == part["rows"][0]:
        return _append(earlier, {**last, "rows": [last["rows"][0], part["rows"][1]]})
    same = last["rows"] == part["rows"] and last.get("positions") == part.get("positions")
    if same and last["epochs"][1] == part["epochs"][0]:
        return [*earlier, {**last, "epochs": [last["epochs"][0], part["epochs"][1]]}]
    return [*run, part]


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
