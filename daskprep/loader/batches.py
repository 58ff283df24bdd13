"""Windows of rows as batches of tensors: cut, named, expanded, and put in the form that a model reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from daskprep.dataset.stored import StoredDataset
from daskprep.errors import ColumnError
from daskprep.features import Feature, Learned
from daskprep.features.base import all_outputs, noun_of
from daskprep.loader.audit import GivenRows
from daskprep.loader.augment import Steps, augmented
from daskprep.loader.groups import Group
from daskprep.loader.pipeline import Window
from daskprep.permutation import Integers
from daskprep.serving.base import MISSING

Batch: TypeAlias = dict[str, torch.Tensor]
Expand: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

_EXPANDED_BYTES = 1 << 21  # that batches are expanded to at a time


def chosen_names(
    columns: Iterable[str] | str | None, every: Sequence[str], check: Callable[[str], object]
) -> list[str]:
    """Return the names of the outputs asked for, each once; `check` raises for one that is not there."""
    if columns is None:
        return list(every)
    names = [columns] if isinstance(columns, str) else list(dict.fromkeys(columns))
    for name in names:
        check(name)
    return names


def target_outputs(targets: Iterable[str], features: Mapping[str, Feature], columns: Collection[str]) -> list[str]:
    """Return the outputs of the features that are targets, if they are among the columns."""
    outputs = [name + suffix for name in targets for suffix in all_outputs(features[name])]
    return [output for output in outputs if output in columns]


def weight_output(features: Mapping[str, Feature], columns: Collection[str]) -> str | None:
    """Return the output of the weights, if it is among the columns."""
    return next((name for name, one in features.items() if one.kind == "weight" and name in columns), None)


def is_one(targets: str | Iterable[str] | None, outputs: Sequence[str]) -> bool:
    """Tell whether the target comes as a tensor: it was named by itself, or is the only one of a Preprocessor."""
    return isinstance(targets, str) or (targets is None and len(outputs) == 1)


def expansions(
    features: Mapping[str, Feature], learned: Mapping[str, Learned], names: Iterable[str]
) -> dict[str, Expand]:
    """Return what turns compact rows into what a model reads, for those of the outputs that it changes."""
    wanted = set(names)
    found: dict[str, Expand] = {
        name + suffix: _bound(name, feature, learned[name])
        for name, feature in features.items()
        if feature._expands
        for suffix in feature.outputs
        if name + suffix in wanted
    }
    marks = {name + MISSING for name, feature in features.items() if feature.missing_indicator}
    return found | dict.fromkeys(marks & wanted, torch.Tensor.bool)


@dataclass(frozen=True)
class Form:
    """What a batch is given as: a dict, or inputs and targets, after a function of the user's."""

    targets: tuple[str, ...]
    one_target: bool
    transform: Callable[[Any], Any] | None
    weight: str | None = None  # what comes third, beside targets

    def __call__(self, batch: Batch) -> Any:
        given: Any = batch
        if self.targets:
            chosen = {name: batch.pop(name) for name in self.targets}
            weights = () if self.weight is None else (batch.pop(self.weight),)
            given = (batch, chosen[self.targets[0]] if self.one_target else chosen, *weights)
        return given if self.transform is None else self.transform(given)


def rows_for_model(dataset: StoredDataset, rows: Mapping[str, np.ndarray], *, each: bool) -> Any:
    """Return encoded rows in the form of a loader's batches, for a DataLoader of torch: a list of `each`, or all."""
    names = list(rows)
    expand = expansions(dataset.features, dataset.learned, names)
    batch = {name: torch.from_numpy(array) for name, array in rows.items()}
    batch |= {name: function(batch[name]) for name, function in expand.items()}
    targets = target_outputs(dataset.targets, dataset.features, names)
    form = Form(tuple(targets), is_one(None, targets), None, weight_output(dataset.features, names))
    if not each:
        return form(batch)
    return [form(dict(zip(names, row, strict=True))) for row in zip(*(batch[name] for name in names), strict=True)]


@dataclass(frozen=True)
class Finish:
    """Makes batches of the rows of a window: cut, augmented, expanded, put in form."""

    names: Sequence[str]
    seed: int
    augment: Steps
    expand: Mapping[str, Expand]
    form: Form

    def __call__(
        self, window: Window, tensors: Mapping[Group, torch.Tensor], epoch: int
    ) -> Iterator[tuple[Any, GivenRows]]:
        """Give the batches of a window, each with the tally of its rows."""
        sizes = list(window.sizes)
        columns: dict[str, Iterable[torch.Tensor]] = {}
        # Each call of torch lets go of the interpreter, and may have to wait for it: a few that cut a whole window into
        # columns, and these into batches, take a fifth of the time of some for every batch.
        for group, tensor in tensors.items():
            apart = tensor.unbind(1) if group.is_packed else [tensor]
            for output, column in zip(group.outputs, apart, strict=True):
                columns[output.name] = self._batches(output.name, column, sizes)
        ordered = [columns[name] for name in self.names]
        stops = itertools.accumulate(sizes)
        for tally, size, stop, *parts in zip(window.tallies, sizes, stops, *ordered, strict=True):
            batch = dict(zip(self.names, parts, strict=True))
            if self.augment:
                batch = self._augmented(batch, window.rows[stop - size : stop], epoch)
            yield self.form(batch), tally

    def _batches(self, name: str, column: torch.Tensor, sizes: list[int]) -> Iterable[torch.Tensor]:
        if name in self.expand and name not in self._augmented_names:
            return _expanded(column, sizes, self.expand[name])
        return _split(column, sizes)

    def _augmented(self, batch: Batch, rows: Integers, epoch: int) -> Batch:
        batch = augmented(batch, rows, self.seed, epoch, self.augment)
        return batch | {name: self.expand[name](batch[name]) for name in self._augmented_names if name in self.expand}

    @property
    def _augmented_names(self) -> set[str]:
        return set(itertools.chain.from_iterable(self.augment))


def _expanded(column: torch.Tensor, sizes: list[int], expand: Expand) -> Iterator[torch.Tensor]:
    """Give expanded batches, several made at a time as long as that is little memory."""
    count = 1
    while sizes:
        now, sizes = sizes[:count], sizes[count:]
        rows = sum(now)
        expanded, column = expand(column[:rows]), column[rows:]
        count = max(1, _EXPANDED_BYTES * len(now) // max(1, expanded.nbytes))
        yield from _split(expanded, now)


def _split(column: torch.Tensor, sizes: list[int]) -> Sequence[torch.Tensor]:
    return column.split(sizes)  # type: ignore[no-any-return, no-untyped-call]


def _bound(name: str, feature: Feature, learned: Any) -> Expand:
    def expand(rows: torch.Tensor) -> torch.Tensor:
        expanded = feature.expand(rows, learned)
        if not isinstance(expanded, torch.Tensor) or expanded.shape[:1] != rows.shape[:1]:
            found = f"shape {tuple(expanded.shape)}" if isinstance(expanded, torch.Tensor) else repr(expanded)[:80]
            raise ColumnError(
                f'column "{name}": expand of {noun_of(feature)} gave {found} for {len(rows):,} rows: expected a tensor '
                "with one row for each"
            )
        return expanded

    return expand
