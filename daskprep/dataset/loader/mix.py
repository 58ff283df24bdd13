"""A mix of several sources by weights: a loader whose batches contain rows of each, exact, elastic and resumable."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from numbers import Rational, Real
from typing import Any, Literal, Unpack

import numpy as np
from torch.utils.data import get_worker_info

from daskprep.columns.permutation import Integers
from daskprep.dataset import Dataset, Split
from daskprep.dataset.loader.batch_iterator import check_state
from daskprep.dataset.loader.loader import Loader
from daskprep.dataset.loader.mixing import MixBlocks, MixSchedule, Quotas, count_round_epochs
from daskprep.dataset.loader.order import Schedule
from daskprep.dataset.loader.replay import Part
from daskprep.dataset.opening import find_differences
from daskprep.dataset.options import BatchOptions, SharedOptions, check_count, list_options
from daskprep.errors import ConfigError, check_names, did_you_mean, warn
from daskprep.features.base import all_outputs
from daskprep.storage import Layout
from daskprep.storage.layout import join_starts

_DIGEST_DIGITS = 16
_STREAMS = 8  # fewer than for a loader, because all sources together have several times as many


class MixSplit(Split):
    """The splits of all sources of a mix, read as one, with the outputs that they have in common."""

    def __init__(self, sources: Mapping[str, Split], names: Sequence[str]) -> None:
        """Concatenate the splits of `sources`; `names` are the outputs, which are encoded alike."""
        self.sources = dict(sources)
        self.names = tuple(names)
        datasets = [one.dataset for one in self.sources.values()]
        super().__init__(Dataset([segment for one in datasets for segment in one.segments], datasets[0]._state), "mix")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return MixSplit, (self.sources, self.names)

    @cached_property
    def joined(self) -> tuple[Split, ...]:
        return tuple(one for split in self.sources.values() for one in split.joined)

    @cached_property
    def layout(self) -> Layout:
        """The outputs, and the concatenated blocks of all sources."""
        layouts = [one.layout for one in self.joined]
        outputs = tuple(next(iter(self.sources.values())).output(name) for name in self.names)
        rows, block_rows = {self.name: sum(map(len, self.joined))}, max(one.block_rows for one in layouts)
        starts = join_starts([one.layout.starts(one.name) for one in self.joined])
        return Layout(outputs, rows, block_rows, 1, layouts[0].compression, block_starts={self.name: starts})


class Mix(Loader):
    """Batches with rows of several sources in exact shares, which can be changed when training resumes.

    A batch contains the rows of one source after the other. After any number of batches, the number of rows of each
    source differs from its share of all rows by less than one. Each source yields its rows epoch after epoch, each time
    in a new order. The batches are the same for any number of ranks and threads.

    Without an end (`until`), an iteration continues after the last batch of the one before.

    Parameters
    ----------
    sources : mapping of str to Split
        The splits by name. Batches have the outputs that all of them have; a warning names further outputs.
    batch_size : int
        Rows of a batch over all ranks together; each rank has an equal share of it, with rows of every source.
    weights : mapping of str to float or None
        Share of each source in the rows, up to a common factor. 0: no rows, but the state keeps its position. None:
        the numbers of rows of the sources.
    until : "first", "all" or None
        When an epoch of the mix ends: before the share of a source exceeds its rows, so that none is repeated, or once
        the share of each source contains all of its rows. The next epoch starts new epochs of all sources. None: never.
    streams : int or None
        Number of streams of shuffled rows of each source; each has a block in memory. None: 8, or fewer by `memory`.
    prefetch_size, prefetch_bytes, cache, cache_dir, cache_limit
        As for `Loader`; for all sources together.
    **options
        Options that all loaders share, from `shuffle` to `memory`: see `Loader`.

    Examples
    --------
    >>> import tempfile, pandas as pd
    >>> import daskprep as dp
    >>> prep = dp.Preprocessor({"n": dp.Number(normalization=None)}).fit(pd.DataFrame({"n": range(6)}))
    >>> folder = tempfile.mkdtemp()
    >>> small = prep.write(pd.DataFrame({"n": [1, 2]}), f"{folder}/small.dp")["train"]
    >>> large = prep.write(pd.DataFrame({"n": [10, 20, 30, 40, 50]}), f"{folder}/large.dp")["train"]
    >>> weights = {"small": 1, "large": 3}
    >>> mix = dp.Mix({"small": small, "large": large}, 4, weights=weights, until="first", shuffle=False)
    >>> for batch in mix:
    ...     print(batch["n"].tolist())
    [1.0, 10.0, 20.0, 30.0]
    """

    split: MixSplit
    _kind = "mix"
    _state_counts = ("epoch", "first_batch")

    @list_options(BatchOptions, SharedOptions)
    def __init__(
        self,
        sources: Mapping[str, Split],
        batch_size: int = 1024,
        *,
        weights: Mapping[str, float] | None = None,
        until: Literal["first", "all"] | None = None,
        streams: int | None = None,
        prefetch_size: int | None = None,
        prefetch_bytes: int | None = None,
        cache: bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_limit: int | None = None,
        **options: Unpack[BatchOptions],
    ) -> None:
        """Check the sources, weights and options, and start at the first row of each source; no thread starts."""
        _check_sources(sources)
        check_names("Mix", options, BatchOptions.__annotations__)
        check_count("batch_size", batch_size, 1)
        if until not in ("first", "all", None):
            raise ConfigError(f'until={until!r}: expected "first", "all" or None')
        self.until = until
        self.sources = dict(sources)
        self._shares = _parse_weights(self.sources, weights)
        self._start_from(Quotas.of(tuple(self._shares.values()), batch_size))
        columns, targets = options.get("columns"), options.get("targets")
        if columns is not None:
            options["columns"] = columns = [columns] if isinstance(columns, str) else list(columns)
        if targets is not None and not isinstance(targets, str):
            options["targets"] = targets = list(targets)
        split = MixSplit(self.sources, _find_common(self.sources, columns, targets))
        super().__init__(
            split,
            batch_size,
            streams=streams,
            prefetch_size=prefetch_size,
            prefetch_bytes=prefetch_bytes,
            cache=cache,
            cache_dir=cache_dir,
            cache_limit=cache_limit,
            **options,
        )
        self.drop_last = True  # every batch has all its rows

    @property
    def _blocks_per_stream(self) -> int:  # type: ignore[override]
        return 2 * len(self.sources)

    def _stream_choices(self) -> list[int]:
        return list(range(_STREAMS, 0, -1))

    def _start_from(self, quotas: Quotas) -> None:
        """Set the quotas of the remaining batches of the epoch."""
        self._quotas, self._stop = quotas, 0  # `_stop` batches of these quotas were yielded
        self._batch_count = quotas.count([len(one) for one in self.sources.values()], self.until)

    @property
    def _position(self) -> Quotas:
        """The quotas of the batches after those yielded."""
        return self._quotas.after(self._stop) if self._stop else self._quotas

    def _start_part(self) -> Part:
        position, part = self._position, super()._start_part()
        positions = [list(one) for one in zip(position.rows, position.due, strict=True)]
        return {**part, "positions": positions} if any(position.rows) else part

    @property
    def _part_options(self) -> Part:
        # No batch depends on the number of ranks.
        weights = [list(one) for one in self._shares.items()]
        return {"batch_size": self.batch_size, "until": self.until, "weights": weights}

    def _replicate(self, part: Part) -> Mix:
        loader: Mix = super()._replicate(part)
        weights, start = dict(part["weights"]), part.get("positions") or [[0, 0]] * len(part["weights"])
        loader.until, loader.sources = part["until"], {name: self.sources[name] for name in weights}
        if list(loader.sources) != list(self.sources):
            loader.split = loader.dataset = MixSplit(loader.sources, self.split.names)
            vars(loader).pop("_starts", None)
        rows, due = map(tuple, zip(*start, strict=True))
        loader._start_from(Quotas(tuple(weights.values()), part["batch_size"], rows, due))
        return loader

    @property
    def _sources(self) -> dict[str, Split]:
        return self.sources

    def _go_to(self, epoch: int, rows_yielded: int = 0, first_batch: int = 0, quotas: Quotas | None = None) -> None:
        """Move to an epoch, to the start of `quotas`; None: to the first row of each source."""
        start = quotas or Quotas.of(self._quotas.weights, self.batch_size)
        self._start_from(start)
        super()._go_to(epoch, rows_yielded or sum(start.rows), first_batch)

    @property
    def _rows(self) -> int:
        return self._batch_count * self.batch_size

    @property
    def _source_ends(self) -> Integers:
        return np.cumsum([len(one) for one in self.sources.values()])

    def _make_schedule(self, rows_before: int = 0) -> Schedule:
        """Return the schedule of this rank from `_quotas` on."""
        rank, world = self._resolve_ranks()
        counts = [sum(one.layout.blocks(one.name) for one in split.joined) for split in self.sources.values()]
        borders = tuple(np.cumsum([0, *counts]).tolist())
        blocks = MixBlocks(
            np.diff(self._starts),
            self.split.layout.block_rows,
            self.seed,
            self.epoch,
            self.shuffle,
            self._starts[:-1],
            period=len(self.split),
            names=tuple(self.sources),
            block_borders=borders,
            round_epochs=tuple(map(count_round_epochs, map(len, self.sources.values()), counts)),
        )
        return MixSchedule(
            blocks,
            self.batch_size,
            self.streams,
            rank,
            world,
            drop_last=True,
            rows_before=rows_before,
            quotas=self._quotas,
            batch_count=self._batch_count,
        )

    def _count_batches(self) -> int:
        """Return the batches of the whole mix, whatever the position; TypeError if it has no end."""
        if self.until is None:
            raise TypeError('a mix with until=None has no end: pass until="first" or "all", or count the batches')
        quotas = Quotas.of(self._quotas.weights, self.batch_size)
        return quotas.count([len(one) for one in self.sources.values()], self.until)

    def _begin_iteration(self) -> None:
        """Start the next iteration where the last one stopped."""
        if self.until is not None:
            super()._begin_iteration()
        self._start_from(self._position)

    def _advance(self, schedule: Schedule, stop: int) -> None:
        """Set the position after batches below `stop`; in a worker process, only their number."""
        if get_worker_info() is not None:
            self._first_batch = stop
        else:
            self._stop, self._rows_yielded = stop, schedule.rows_yielded(stop)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of each source as JSON values; it counts batches yielded, not batches prefetched."""
        quotas = self._position
        positions = zip(self.sources.items(), quotas.weights, quotas.rows, quotas.due, strict=True)
        names = ("epoch", "batch_size", "streams", "seed", "shuffle")
        return {
            "format": self._state_format,
            "first_batch": self._first_batch,
            **{name: getattr(self, name) for name in names},
            "sources": {
                name: {"digest": _digest(split), "split": split.name, "weight": weight, "rows": rows, "due": due}
                for (name, split), weight, rows, due in positions
            },
            **self._run_state,
        }

    def _resume(self, state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Go to a saved position; ConfigError for a worker's with other weights."""
        saved = {name: state["sources"].get(name) for name in self.sources}
        rows = tuple(0 if one is None else one["rows"] for one in saved.values())
        before = {name: one["weight"] for name, one in state["sources"].items() if one["weight"]}
        now = {name: weight for name, weight in self._shares.items() if weight}
        is_same = before == now and state["batch_size"] == self.batch_size
        if state["first_batch"] and not is_same:
            raise ConfigError(
                "a worker process saved the state with other weights, sources or batch_size: use the same ones"
            )
        due = tuple(0 if one is None or not is_same else one["due"] for one in saved.values())
        quotas = dataclasses.replace(self._quotas, rows=rows, due=due)
        self._go_to(state["epoch"], first_batch=state["first_batch"], quotas=quotas)
        if self._first_batch >= self._batch_count:
            self._go_to(self.epoch + 1)

    def _check_origin(self, state: Mapping[str, Any]) -> None:
        """Raise ConfigError for a state of other sources."""
        for name, saved in state["sources"].items():
            if name not in self.sources:
                raise ConfigError(
                    f'the state has a source "{name}", and this mix has {", ".join(self.sources)}.'
                    f"{did_you_mean(name, self.sources)} To use no more rows of a source, set its weight to 0"
                )
            check_state({"format": 0, **saved}, ("digest", "split", "weight", "due"), ("rows",), 0, self._kind)
            split = self.sources[name]
            if (saved["digest"], saved["split"]) != (_digest(split), split.name):
                raise ConfigError(
                    f'source "{name}": the state belongs to split "{saved["split"]}" of the dataset with digest '
                    f'{saved["digest"]}, but this is "{split.name}" of {split.dataset.url} with digest '
                    f"{_digest(split)}. Rows would be skipped or repeated: open the dataset that the state was saved "
                    "for, or add this one under another name and set the weight of the earlier one to 0"
                )

    def __repr__(self) -> str:
        total = sum(self._shares.values())
        shares = ", ".join(f"{name}: {weight / total:.3%}" for name, weight in self._shares.items())
        return f"Mix({shares}, batch_size={self.batch_size}, epoch={self.epoch})"


def _digest(split: Split) -> str:
    return split.dataset.digest[:_DIGEST_DIGITS]


def _check_sources(sources: object) -> None:
    """Raise ConfigError unless `sources` are splits by name."""
    if not isinstance(sources, Mapping) or not sources:
        raise ConfigError(f'sources={sources!r:.200}: expected splits by name, as in {{"web": dataset["train"], ...}}')
    for name, split in sources.items():
        if not isinstance(name, str) or not isinstance(split, Split):
            raise ConfigError(f'sources: {name!r}: {split!r:.200}: expected a name and a split, dataset["train"]')


def _parse_weights(sources: Mapping[str, Split], weights: Mapping[str, float] | None) -> dict[str, int]:
    """Return weights as integers without common divisor; None: the numbers of rows; ConfigError for others."""
    if weights is None:
        weights = {name: len(split) for name, split in sources.items()}
    if not isinstance(weights, Mapping) or weights.keys() != sources.keys():
        raise ConfigError(f"weights={weights!r:.200}: expected a weight for each of the sources {', '.join(sources)}")
    exact: dict[str, Fraction] = {}
    for name in sources:
        weight = weights[name]
        if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 <= weight < math.inf:
            raise ConfigError(f'weights: "{name}": {weight!r}: expected a number from 0')
        exact[name] = Fraction(weight) if isinstance(weight, Rational) else Fraction(repr(float(weight)))
    if not any(exact.values()):
        raise ConfigError("weights are all 0: at least one source needs a positive weight")
    scale = math.lcm(*(weight.denominator for weight in exact.values()))
    integers = {name: int(weight * scale) for name, weight in exact.items()}
    divisor = math.gcd(*integers.values())
    return {name: weight // divisor for name, weight in integers.items()}


# Entries of a fitted state that do not change how a row is encoded.
_COUNTS = (
    *("rows", "missing", "invalid", "invalid_samples", "str2freq", "clipped", "rounded", "cut_rows", "turned"),
    *("value_edges", "value_counts", "hour_counts"),
)
# Parameters that do not change how a cell is encoded; the value for missing cells is in the learned state.
_SOURCE_PARAMETERS = ("column", "missing_value_strategy")


def _describe_outputs(split: Split) -> dict[str, dict[str, Any]]:
    """Return the encoding of each output of a split by name, as JSON values that are equal for equal encodings."""
    dataset, encodings = split.dataset, {}
    for name, feature in dataset.features.items():
        state = dataset.metadata["features"][name]
        learned = {key: value for key, value in state["learned"].items() if key not in _COUNTS}
        params = {key: value for key, value in state["params"].items() if key not in _SOURCE_PARAMETERS}
        for suffix in all_outputs(feature):
            output = split.output(name + suffix)
            stored = {"dtype": output.dtype, "shape": output.shape, "stores_cells": output.stores_cells}
            encodings[output.name] = {"type": state["type"], **params, **stored, "learned": learned}
    return encodings


def _find_common(
    sources: Mapping[str, Split], columns: Sequence[str] | None, targets: str | Sequence[str] | None
) -> list[str]:
    """Return the outputs that all sources have, or selected ones; ConfigError if encodings differ."""
    (first, expected), *others = [(name, _describe_outputs(split)) for name, split in sources.items()]
    selected = dict.fromkeys([*(columns or ()), *([targets] if isinstance(targets, str) else targets or ())])
    for name in selected:
        if lacking := [source for source, outputs in ((first, expected), *others) if name not in outputs]:
            raise ConfigError(
                f'no output "{name}" in source {", ".join(lacking)}.{did_you_mean(name, expected)} Select others'
            )
    common = [name for name in expected if all(name in outputs for _, outputs in others)]
    names = [name for name in common if columns is None or name in selected]
    for name, (other, outputs) in itertools.product(names, others):
        if difference := next(find_differences(expected[name], outputs[name]), None):
            raise ConfigError(
                f'output "{name}" is encoded differently in the sources "{first}" and "{other}" ({difference}): '
                "write all sources with one fitted Preprocessor, or leave the output out with columns="
            )
    if not names:
        raise ConfigError(
            f"the sources {', '.join(sources)} have no output in common: write them with one fitted Preprocessor"
        )
    if targets is None:
        _check_targets(sources, set(names))
    outputs = dict.fromkeys([*expected, *(name for _, outputs in others for name in outputs)])
    left_out = [name for name in outputs if name not in common] if columns is None else []
    if left_out:
        warn(f"a mix leaves out {', '.join(left_out)}, which not all sources have: select outputs with columns=")
    return names


def _check_targets(sources: Mapping[str, Split], common: set[str]) -> None:
    """Raise ConfigError if sources have different targets among the outputs that they have in common."""
    targets = {name: [one for one in split.dataset.targets if one in common] for name, split in sources.items()}
    if len(set(map(tuple, targets.values()))) > 1:
        raise ConfigError(f"sources have other targets, {targets}: select them with targets=, or targets=() for none")
