"""Make batches from windows: split rows into batches, name, expand and format the tensors for a model."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from daskprep.columns.display import format_count
from daskprep.columns.permutation import Integers
from daskprep.dataset.loader.groups import Group, ReusedArrays, to_device
from daskprep.dataset.loader.lengths import Trimming
from daskprep.dataset.loader.media import copy_rows
from daskprep.dataset.loader.pipeline import RowTally, Window
from daskprep.dataset.options import SharedOptions
from daskprep.dataset.stored import StoredDataset
from daskprep.errors import ColumnError
from daskprep.features import Feature, Key, Learned
from daskprep.features.base import all_outputs, kind_with_article
from daskprep.rows.base import MISSING

if TYPE_CHECKING:
    from daskprep.dataset.loader.augment import Regions, Steps

Batch: TypeAlias = dict[str, torch.Tensor]
Splitter: TypeAlias = Callable[[torch.Tensor, list[int]], Sequence[torch.Tensor] | Sequence[np.ndarray]]
Expander: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

SOURCE_ID = "source_id"
"""The name in batches of the number of each row's dataset, where several are read together."""
_EXPANDED_BYTES = 1 << 21  # maximum bytes of an output that are expanded in one call
_PART_BYTES = 1 << 19  # of a larger batch: fits the cache of a core, and malloc keeps memory of this size


def select_outputs(
    options: SharedOptions,
    all_names: Sequence[str],
    check: Callable[[str], object],
    features: Mapping[str, Feature],
    default_targets: Iterable[str],
) -> tuple[list[str], BatchFormat]:
    """Return the names of the outputs of batches, inputs first, and the form of batches; `check` may raise."""
    loaded = [name for name in all_names if not isinstance(features.get(name), Key)]
    names = _select_names(options.columns, loaded, check)
    if options.targets is None:
        outputs = [name + suffix for name in default_targets for suffix in all_outputs(features[name])]
        targets = [output for output in outputs if output in names]
    else:
        targets = _select_names(options.targets, all_names, check)
        names += [name for name in targets if name not in names]
    is_single = isinstance(options.targets, str) or (options.targets is None and len(targets) == 1)
    weight = next((name for name, feature in features.items() if feature._weighs_rows and name in names), None)
    return names, BatchFormat(tuple(targets), is_single, options.transform, weight, options.to == "numpy")


def _select_names(
    columns: Iterable[str] | str | None, all_names: Sequence[str], check: Callable[[str], object]
) -> list[str]:
    """Return one name or several as a list without duplicates, each passed to `check`; all of `all_names` for None."""
    if columns is None:
        return list(all_names)
    names = [columns] if isinstance(columns, str) else list(dict.fromkeys(columns))
    for name in names:
        check(name)
    return names


def make_expanders(
    features: Mapping[str, Feature], learned: Mapping[str, Learned], names: Iterable[str]
) -> dict[str, Expander]:
    """Return a function by output that expands compact rows to model inputs, if it needs one."""
    selected = set(names)
    expanders: dict[str, Expander] = {
        name + suffix: _bind_expand(name, feature, learned[name])
        for name, feature in features.items()
        if feature._expands
        for suffix in feature.outputs
        if name + suffix in selected
    }
    indicators = {name + MISSING for name, feature in features.items() if feature.missing_indicator}
    return expanders | dict.fromkeys(indicators & selected, torch.Tensor.bool)


@dataclass(frozen=True)
class BatchFormat:
    """The form of batches: a dict, or a tuple with targets."""

    targets: tuple[str, ...]
    one_target: bool  # whether the target is a tensor; otherwise a dict
    transform: Callable[[Any], Any] | None  # applied last
    weight: str | None = None  # output of the weights
    as_numpy: bool = False  # whether tensors become NumPy arrays

    def __call__(self, tensors: Batch) -> Any:
        """Return a batch in this form; targets and weight may be taken out of `tensors`."""
        batch: dict[str, Any] = tensors
        if self.as_numpy:
            batch = {name: part.numpy() if isinstance(part, torch.Tensor) else part for name, part in tensors.items()}
        result: Any = batch
        if self.targets:
            targets = {name: batch.pop(name) for name in self.targets}
            weights = () if self.weight is None else (batch.pop(self.weight),)
            result = (batch, targets[self.targets[0]] if self.one_target else targets, *weights)
        return result if self.transform is None else self.transform(result)


def rows_for_model(dataset: StoredDataset, rows: Mapping[str, np.ndarray]) -> list[Any]:
    """Return encoded arrays as single rows in the form of batches."""
    options = SharedOptions(batch_size=1)
    names, batch_format = select_outputs(options, list(rows), rows.__getitem__, dataset.features, dataset.targets)
    expand = make_expanders(dataset.features, dataset.learned, names)
    batch = {name: torch.from_numpy(rows[name]) for name in names}
    batch |= {name: function(batch[name]) for name, function in expand.items()}
    single_rows = zip(*(batch[name] for name in names), strict=True)
    return [batch_format(dict(zip(names, row, strict=True))) for row in single_rows]


def bind_augment(
    augment: Mapping[Any, Any] | None,
    shapes: Mapping[str, tuple[Any, tuple[int, ...]]],
    learned: Mapping[str, Any],
    regions: Regions,
) -> Steps:
    """Return the steps of the option `augment`; {} for None."""
    if augment is None:
        return {}
    from daskprep.dataset.loader.augment import check_augment  # noqa: PLC0415 batches without images do without it

    return check_augment(augment, shapes, learned, regions)


@dataclass(frozen=True)
class BatchBuilder:
    """Callable that makes the batches of a window."""

    names: Sequence[str]  # outputs
    seed: int  # of the augmentation
    augment: Steps
    expand: Mapping[str, Expander]  # by output
    batch_format: BatchFormat
    trimming: Trimming | None = None
    source_ends: Integers | None = None  # row number at which each of several datasets ends, to add "source_id"
    regions: Collection[str] = ()  # outputs of boxes and keypoints

    def __call__(
        self, window: Window, tensors: Mapping[Group, torch.Tensor], epoch: int, arrays: ReusedArrays
    ) -> Iterator[tuple[Any, RowTally]]:
        """Yield the batches of a window, each with its tally.

        `tensors` are the arrays of the window; large outputs are expanded into `arrays`.
        """
        sizes = list(window.sizes)
        split = _split_as_numpy if self.batch_format.as_numpy and not self.augment else _split_rows
        columns: dict[str, Iterable[Any]] = {}
        # Each torch call releases the GIL and may have to wait for it. A few calls that split a window into columns,
        # and columns into batches, take a fifth of the time of separate calls for every batch.
        for group, tensor in tensors.items():
            unpacked = tensor.unbind(1) if group.is_packed else [tensor]
            for output, column in zip(group.outputs, unpacked, strict=True):
                # Augmented outputs are expanded after their augmentation.
                expand = None if output.name in self._augmented_names else self.expand.get(output.name)
                if self.trimming is not None and output.name in self.trimming.paddings:
                    columns |= self.trimming.split(output.name, column, sizes, expand)
                    continue
                columns[output.name] = (
                    split(column, sizes)
                    if expand is None
                    else _expand_batches(output.name, column, sizes, expand, split, arrays)
                )
        for group, late_rows in window.late_rows.items():
            columns[group.name] = self._copy_batches(group, late_rows, sizes, arrays)
        names = self.names if self.trimming is None else self.trimming.names(self.names)
        if self.source_ends is not None:
            # The row numbers of a mix continue to count in the next epoch of a source.
            ids = np.searchsorted(self.source_ends, window.rows % self.source_ends[-1], side="right")
            columns[SOURCE_ID] = _split_rows(to_device(ids, next(iter(tensors.values())).device), sizes)
            names = [*names, SOURCE_ID]
        ordered = [columns[name] for name in names]
        stops = itertools.accumulate(sizes)
        for tally, size, stop, *parts in zip(window.tallies, sizes, stops, *ordered, strict=True):
            batch = dict(zip(names, parts, strict=True))
            if self.augment:
                from daskprep.dataset.loader.augment import augment_batch  # noqa: PLC0415 as above

                rows = window.rows[stop - size : stop]
                batch = augment_batch(batch, rows, self.seed, epoch, self.augment, self.regions)
                for name in self._augmented_names & self.expand.keys():
                    expand = self.expand[name]
                    batch |= {name: next(_expand_batches(name, batch[name], [size], expand, _split_rows, arrays))}
            yield self.batch_format(batch), tally

    def _copy_batches(
        self, group: Group, rows: list[np.ndarray], sizes: list[int], arrays: ReusedArrays
    ) -> Iterator[Any]:
        """Yield the batches of an output of media, copied from views of rows when they are needed, and expanded.

        A copy takes less than a task of another thread, and two arrays in turn stay in the cache of the processor.
        """
        expand = None if group.name in self._augmented_names else self.expand.get(group.name)
        for stop, size in zip(itertools.accumulate(sizes), sizes, strict=True):
            array = arrays.take(group, size, functools.partial(group.empty, size))[:size]
            copy_rows(rows[stop - size : stop], array)
            batch = torch.from_numpy(array)
            del array
            if expand is not None:
                batch = next(_expand_batches(group.name, batch, [size], expand, _split_rows, arrays))
            yield batch

    @property
    def _augmented_names(self) -> set[str]:
        return set(itertools.chain.from_iterable(self.augment))


def _expand_batches(
    name: str, column: torch.Tensor, sizes: list[int], expand: Expander, split: Splitter, arrays: ReusedArrays
) -> Iterator[Any]:
    """Yield the batches of `sizes` rows of a column, expanded in calls of up to `_EXPANDED_BYTES`.

    A batch that takes more is expanded in parts, to one of `arrays`.
    """
    row = expand(column[:1])
    rows_at_once, part_rows = (max(1, size // max(1, row.nbytes)) for size in (_EXPANDED_BYTES, _PART_BYTES))
    in_parts = row.device.type == "cpu" and row.layout == torch.strided and not _share_memory(row, column)
    count = max(1, rows_at_once // max(sizes))
    for start in range(0, len(sizes), count):
        batch_sizes = sizes[start : start + count]
        rows, column = column[: sum(batch_sizes)], column[sum(batch_sizes) :]
        if len(rows) <= rows_at_once or not in_parts:
            yield from split(expand(rows), batch_sizes)
            continue
        nbytes = row.nbytes * len(rows)
        memory = torch.from_numpy(arrays.take(name, nbytes, functools.partial(np.empty, nbytes, np.uint8))[:nbytes])
        expanded = memory.view(row.dtype).view(len(rows), *row.shape[1:])
        for first in range(0, len(rows), part_rows):
            part = slice(first, first + part_rows)
            expanded[part].copy_(expand(rows[part]))
        yield from split(expanded, batch_sizes)


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _split_rows(column: torch.Tensor, sizes: list[int]) -> Sequence[torch.Tensor]:
    return column.split(sizes)  # type: ignore[no-untyped-call]


def _split_as_numpy(column: torch.Tensor, sizes: list[int]) -> Sequence[np.ndarray]:
    # A view of a window and slices of it cost less than a view of each batch.
    array, stops = column.numpy(), list(itertools.accumulate(sizes))
    return [array[stop - size : stop] for size, stop in zip(sizes, stops, strict=True)]


def _bind_expand(name: str, feature: Feature, learned: Any) -> Expander:
    """Return a function that expands compact rows of the column `name` by its feature and learned state."""

    def expand(rows: torch.Tensor) -> torch.Tensor:
        """Return the expanded rows; raise ColumnError if the feature returns no tensor of as many rows."""
        expanded = feature.expand(rows, learned)
        if not isinstance(expanded, torch.Tensor) or expanded.shape[:1] != rows.shape[:1]:
            rows_of = format_count(len(rows), "row")
            shape = f"shape {tuple(expanded.shape)}" if isinstance(expanded, torch.Tensor) else repr(expanded)[:80]
            raise ColumnError(
                f'column "{name}": expand of {kind_with_article(feature)} returned {shape} for {rows_of}: '
                "expected a tensor with one row for each"
            )
        return expanded

    return expand
