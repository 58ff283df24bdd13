"""Windows of rows as batches of tensors: cut, named, expanded, and put in the form that a model reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from daskprep.loader.audit import Tally
from daskprep.loader.augment import Step, augmented
from daskprep.loader.blocks import Group
from daskprep.loader.pipeline import Window
from daskprep.permutation import Integers

if TYPE_CHECKING:
    from daskprep.features import Feature, Learned

__all__ = ["Expander", "Finish", "Form", "chosen_names", "cut"]

Batch = dict[str, torch.Tensor]


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


def cut(
    window: Window, tensors: Mapping[Group, torch.Tensor], names: Sequence[str]
) -> Iterator[tuple[Batch, Tally, Integers]]:
    """Give the batches of a window as slices, without a copy, each with the tally and the numbers of its rows."""
    sizes = list(window.share.sizes)
    columns: dict[str, Sequence[torch.Tensor]] = {}
    # Each call of torch lets go of the interpreter, and may have to wait for it: a few that cut a whole window into
    # columns, and these into batches, take a fifth of the time of some for every batch.
    for group, tensor in tensors.items():
        apart = tensor.unbind(1) if group.is_packed else [tensor]
        for output, column in zip(group.outputs, apart, strict=True):
            columns[output.name] = column.split(sizes)  # type: ignore[no-untyped-call]
    ordered = [columns[name] for name in names]
    stops = itertools.accumulate(sizes)
    for tally, size, stop, *parts in zip(window.tallies, sizes, stops, *ordered, strict=True):
        yield dict(zip(names, parts, strict=True)), tally, window.rows[stop - size : stop]


@dataclass(frozen=True)
class Expander:
    """Turns compact rows into what a model reads, output by output."""

    by_output: Mapping[str, Callable[[torch.Tensor], torch.Tensor]]

    @classmethod
    def of(cls, features: Mapping[str, Feature], learned: Mapping[str, Learned], names: Iterable[str]) -> Expander:
        """Return what expands the outputs of these names."""
        wanted = set(names)
        return cls(
            {
                name + suffix: _bound(feature.expand, learned[name])
                for name, feature in features.items()
                for suffix in feature.outputs
                if name + suffix in wanted
            }
        )

    def __call__(self, batch: Batch) -> Batch:
        return {
            name: self.by_output[name](tensor) if name in self.by_output else tensor for name, tensor in batch.items()
        }


@dataclass(frozen=True)
class Form:
    """What a batch is given as: a dict, or inputs and targets, after a function of the user's."""

    targets: tuple[str, ...]
    one_target: bool
    transform: Callable[[Any], Any] | None

    def __call__(self, batch: Batch) -> Any:
        given: Any = batch
        if self.targets:
            chosen = {name: batch.pop(name) for name in self.targets}
            given = (batch, chosen[self.targets[0]] if self.one_target else chosen)
        return given if self.transform is None else self.transform(given)


@dataclass(frozen=True)
class Finish:
    """What is done to a batch that was cut, of rows by their numbers: augmented, expanded, put in form."""

    seed: int
    augment: Mapping[str, Sequence[Step]]
    expander: Expander
    form: Form

    def __call__(self, batch: Batch, rows: Integers, epoch: int) -> Any:
        return self.form(self.expander(augmented(batch, rows, self.seed, epoch, self.augment)))


def _bound(expand: Callable[[Any, Any], Any], learned: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: expand(tensor, learned)
