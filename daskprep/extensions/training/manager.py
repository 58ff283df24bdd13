"""The definition of one loader of a training run; the names of stages and of the roles of loaders in them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Unpack

from daskprep.columns.display import join_names
from daskprep.dataset import Dataset, Split, open_dataset
from daskprep.dataset.loader.batch_iterator import Ranks
from daskprep.dataset.loader.packing import Packing
from daskprep.dataset.options import LoaderOptions, SharedOptions, list_options
from daskprep.errors import ConfigError, did_you_mean
from daskprep.extensions.training.batches import BatchSource
from daskprep.extensions.training.configured import check_callables
from daskprep.extensions.training.examples import (
    Examples,
    PreparedData,
    check_examples,
    is_encoded,
    is_indexable,
    is_stream,
)

# The default split of each role; prediction has none.
_SPLIT_BY_ROLE = {"train": "train", "val": "validation", "test": "test"}
_OPTIONS_OF_MODULE = ("rank", "world_size", "overfit_batches")
_MAX_NAMES = 5

ROLES = ("train", "val", "test", "predict")
STAGES = ("fit", "validate", "test", "predict")

# Lightning has a hook `val_dataloader`, with the stage "validate", and "sanity_check" for its run before training.
_ROLE_SPELLINGS = {"fit": "train", "validate": "val", "validation": "val", "sanity_check": "val"}
_STAGE_SPELLINGS = {"train": "fit", "val": "validate", "validation": "validate", "sanity_check": "validate"}
# The stages that a manager is opened for, by its role.
STAGES_BY_ROLE = {"train": ("fit",), "val": ("fit", "validate"), "test": ("test",), "predict": ("predict",)}


def parse_role(name: str) -> str:
    """Return the role of a name of a role or stage."""
    return _normalize(name, _ROLE_SPELLINGS, ROLES, "role")


def parse_stage(name: str) -> str:
    """Return the stage of a name of a stage or role."""
    return _normalize(name, _STAGE_SPELLINGS, STAGES, "stage")


def _normalize(name: object, spellings: Mapping[str, str], options: tuple[str, ...], kind: str) -> str:
    """Return our name of a role or stage; ConfigError for others."""
    text = str(getattr(name, "value", name))  # stages of Lightning are enum members
    name_in_package = spellings.get(text, text)
    if name_in_package not in options:
        raise ConfigError(
            f'no {kind} "{text}".{did_you_mean(text, options)} Each {kind} is one of: {", ".join(options)}'
        )
    return name_in_package


class Manager:
    """The definition of one loader: its data and its processing.

    A batch passes through `example_processors`, `processors`, `group_processors` and `collate`, in this order.

    Parameters
    ----------
    data : Split, Dataset, str, path, callable, stream, dataset of torch or iterable
        The data: a split, or a dataset, its path or URL, with `split`. A function without arguments that writes or
        finds a dataset and returns it or its path. A stream, or a function that creates one and receives `rank` and
        `world_size` if it has these parameters; any object with the methods of a loader is a stream. An iterable of
        examples, such as a list of prompts, or a torch dataset.
    batch_size : int or None
        Rows of a batch over all ranks together. None: 1024.
    split : str or None
        Split of a dataset. None: "train", "validation" or "test", according to the role of the manager; for prediction,
        the only split of the dataset.
    stages : str, iterable of str or None
        Stages in which it is opened: "fit", "validate", "test", "predict". None: by role; "val": the first two.
    columns_to_remove : iterable of str
        Outputs to remove from batches, which never hold the columns of the source. Removed outputs are not read.
    example_processors : iterable of callable or str
        Functions from one example, a dict of its values, to an example that torch collates.
    processors : iterable of callable or str
        Functions from a batch to a batch, or dotted names that the DataModule allows.
    group_processors : iterable of Packing, callable or str
        Functions from an iterator of batches to an iterator of batches. `Packing` works on documents, and comes first.
    collate : callable, str or None
        Function from a finished batch to the input of a model. For an iterable, it receives a list of examples. None:
        torch's `default_collate` for examples.
    **options : LoaderOptions
        Options of a loader, such as `seed`, `targets`, `device`, `prefetch_size`, `balance` and `augment`.

    Examples
    --------
    >>> import daskprep as dp
    >>> dp.Manager("listings.dp", batch_size=256, split="validation", columns_to_remove=["review"], seed=1)
    Manager('listings.dp', batch_size=256, split='validation', columns_to_remove=('review',), seed=1)
    """

    @list_options(LoaderOptions, SharedOptions)
    def __init__(
        self,
        data: Any,
        batch_size: int | None = None,
        *,
        split: str | None = None,
        stages: str | Iterable[str] | None = None,
        columns_to_remove: str | Iterable[str] = (),
        example_processors: Iterable[Callable[[Any], Any] | str] = (),
        processors: Iterable[Callable[[Any], Any] | str] = (),
        group_processors: Iterable[Packing | Callable[..., Any] | str] = (),
        collate: Callable[[Any], Any] | str | None = None,
        **options: Unpack[LoaderOptions],
    ) -> None:
        self.data = data
        self.batch_size = batch_size
        self.split = split
        names = [stages] if isinstance(stages, str) else stages
        self.stages = None if names is None else tuple(dict.fromkeys(map(parse_stage, names)))
        self.columns_to_remove = _as_tuple(columns_to_remove)
        self.example_processors = _as_tuple(example_processors)
        self.processors = _as_tuple(processors)
        self.group_processors = _as_tuple(group_processors)
        self.collate = collate
        self.options: dict[str, Any] = {**options}
        if not (is_encoded(data) or callable(data)):
            check_examples(data)
        for name in options:
            if name in _OPTIONS_OF_MODULE:
                raise ConfigError(f"{name} is not an option of a Manager: pass it to the DataModule, for all loaders")
            if name not in LoaderOptions.__annotations__:
                hint = did_you_mean(name, [*LoaderOptions.__annotations__, *_PARAMETERS])
                raise ConfigError(f'loaders have no option "{name}".{hint}')
        self._packing, self.grouping = self._split_packing()

    @classmethod
    def of(cls, value: Any) -> Manager:
        """Return a manager from itself, parameters, or data; ConfigError without data."""
        if isinstance(value, Manager):
            return value
        if not isinstance(value, Mapping):
            return cls(value)
        if "data" not in value:
            raise ConfigError(f'{dict(value)!r} lacks "data"; parameters of a Manager are: {", ".join(_PARAMETERS)}')
        return cls(**value)

    def __repr__(self) -> str:
        own = {name: getattr(self, name) for name in _PARAMETERS[1:] if getattr(self, name) not in (None, ())}
        options = own | self.options
        return f"Manager({', '.join([repr(self.data), *(f'{name}={value!r}' for name, value in options.items())])})"

    def check(self, role: str, allowed: Collection[str]) -> None:
        """Raise ConfigError for options that do not suit a role."""
        if role != "train" and self.options.get("shuffle"):
            raise ConfigError("shuffle=True is for training only: remove it")
        check_callables("example_processors", self.example_processors, allowed)
        check_callables("processors", self.processors, allowed)
        check_callables("group_processors", self.grouping, allowed)
        if self.collate is not None:
            check_callables("collate", self.collate, allowed)

    def _split_packing(self) -> tuple[Packing | None, tuple[Any, ...]]:
        """Return the Packing, if any, and other group processors; ConfigError for two."""
        first, rest = self.group_processors[:1], self.group_processors[1:]
        if any(isinstance(processor, Packing) for processor in rest):
            raise ConfigError("group_processors: Packing works on documents: use it once, before all others")
        if not first or not isinstance(first[0], Packing):
            return None, self.group_processors
        if self.options.get("pack") is not None:
            raise ConfigError("pack and a Packing in group_processors exclude each other: remove one")
        return first[0], rest

    def open(
        self, role: str, prepared: PreparedData, ranks: Ranks, *, overfit: bool
    ) -> tuple[BatchSource, tuple[str, ...]]:
        """Return the source, and the columns to remove from batches."""
        data = prepared.result(self.data, ranks)
        if not is_encoded(data):
            return self._make_examples(data, role, ranks, overfit=overfit), ()
        if is_stream(data):
            self._check_stream(data, role, ranks.world_size)
            return data, self.columns_to_remove
        return self._make_loader(self._select_split(role, data), role, ranks, overfit=overfit)

    def _make_examples(self, data: Any, role: str, ranks: Ranks, *, overfit: bool) -> Examples:
        """Return Examples; ConfigError for options of datasets."""
        options = dict(self.options)
        seed, shuffle = options.pop("seed", 0), options.pop("shuffle", role == "train" and is_indexable(data))
        # Only training needs equal shares of ranks: its gradients are averaged with equal weights.
        uneven = options.pop("uneven", False) or role != "train"
        rejected = {"split": self.split, "columns_to_remove": self.columns_to_remove or None, **options}
        self._refuse(rejected, "is for datasets only", data)
        size = 1024 if self.batch_size is None else self.batch_size
        ranks = dataclasses.replace(ranks, uneven=uneven)
        return Examples(data, size, ranks, seed=seed, shuffle=shuffle and not overfit)

    def _select_split(self, role: str, data: Any) -> Split:
        """Return the split of the data, by default its role's or the only one; ConfigError if it does not exist."""
        if isinstance(data, Split):
            if self.split not in (None, data.name):
                raise ConfigError(
                    f'split="{self.split}" contradicts data, which is the split "{data.name}": remove split'
                )
            return data
        dataset = data if isinstance(data, Dataset) else open_dataset(data)
        name = self.split or _SPLIT_BY_ROLE.get(role)
        if name is None and len(dataset.splits) == 1:
            name = next(iter(dataset.splits))
        if name not in dataset.splits:
            names = ", ".join(dataset.splits)
            reason = "split is needed" if name is None else f'no split "{name}"'
            raise ConfigError(
                f"{reason}: {dataset.url} has {names}.{did_you_mean(name, dataset.splits)} Pass split=..."
            )
        return dataset.splits[name]

    def _make_loader(
        self, split: Split, role: str, ranks: Ranks, *, overfit: bool
    ) -> tuple[BatchSource, tuple[str, ...]]:
        """Return the loader, and columns that only packing reads."""
        options = dict(self.options)
        options.setdefault("shuffle", role == "train")
        options["shuffle"] = options["shuffle"] and not overfit
        if self._packing is not None:
            options["pack"] = self._packing
        removed = dict.fromkeys(self.columns_to_remove)
        if removed and options.get("pack") is None:
            options["columns"] = self._select_columns(split, removed)
        elif removed:
            self._check_left(split, removed, options["pack"].columns)
        if self.batch_size is not None:
            options["batch_size"] = self.batch_size
        loader = split.loader(**options, rank=ranks.rank, world_size=ranks.world_size)
        if (packing := options.get("pack")) is None:
            return loader, ()
        # Packing itself leaves out all outputs but the documents.
        present = _as_tuple(packing.columns)
        return loader, tuple(name for name in removed if name in present or name not in split.columns)

    def _select_columns(self, split: Split, removed: Mapping[str, None]) -> list[str]:
        """Return the columns to read, without the removed ones; ConfigError for an unknown one."""
        if self.options.get("columns") is not None:
            raise ConfigError("columns and columns_to_remove exclude each other: remove one")
        targets = _as_tuple(self.options.get("targets") or ())  # targets of the dataset may be removed
        for name in removed:
            if name not in split.columns:
                raise ConfigError(
                    f'columns_to_remove: no output "{name}" in {split.dataset.url}.{did_you_mean(name, split.columns)}'
                )
            if name in targets:
                raise ConfigError(f'columns_to_remove: "{name}" is also in targets: remove it from one of them')
        self._check_left(split, removed, split.columns)
        return [name for name in split.columns if name not in removed]

    def _check_left(self, split: Split, removed: Mapping[str, None], columns: str | Iterable[str]) -> None:
        """Raise ConfigError if all columns are removed."""
        if removed.keys() >= set(_as_tuple(columns)) and not self.options.get("row_ids"):
            names = join_names(list(removed), _MAX_NAMES)
            raise ConfigError(
                f"columns_to_remove names all outputs of {split.dataset.url} ({names}), so nothing is left in a batch. "
                "They are encoded, and batches never hold columns of the source: leave columns_to_remove out"
            )

    def _refuse(self, options: Mapping[str, Any], reason: str, data: Any) -> None:
        """Raise ConfigError, with a reason, for an option set."""
        set_options = [name for name, value in {**options, "Packing": self._packing}.items() if value is not None]
        if set_options:
            raise ConfigError(f"{set_options[0]} {reason}: data={data!r:.200}")

    def _check_stream(self, stream: BatchSource, role: str, world_size: int | None) -> None:
        """Raise ConfigError for options of the stream itself."""
        rejected = {"batch_size": self.batch_size, "split": self.split, **self.options}
        self._refuse(rejected, "must be set when the stream is created, not on its Manager", stream)
        if role != "train" and getattr(stream, "shuffle", False):
            raise ConfigError(f"{stream!r} is shuffled, which is for training only: create it with shuffle=False")
        actual = getattr(stream, "world_size", world_size)
        if world_size is not None and actual != world_size:
            raise ConfigError(
                f"{stream!r} has world_size={actual}, but there are {world_size} ranks: pass a function of both"
            )


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, str) or callable(value) or isinstance(value, Packing) else tuple(value)


_PARAMETERS = [name for name in inspect.signature(Manager).parameters if name not in LoaderOptions.__annotations__]
