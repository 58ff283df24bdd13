"""The loaders of a training run by name, opened for each stage, and the state of the one that trains."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

from daskprep.config import load_config
from daskprep.errors import ConfigError, did_you_mean
from daskprep.loader.standing import Ranks, check_count
from daskprep.training.batches import Batches, BatchSource
from daskprep.training.configured import configured, resolve
from daskprep.training.examples import Examples, each_example
from daskprep.training.manager import Manager
from daskprep.training.prepared import Prepared, from_first_rank
from daskprep.training.stages import ROLES, ROLES_IN, STAGES, STAGES_OF, Names, role_of, stage_of


class DataModule:
    """The loaders of a training run: one for training, and any number by name to validate, test and predict.

    Use it in your own training loop; `daskprep.lightning.DataModule` is the same for Lightning's Trainer.

    Attributes
    ----------
    managers : dict of str to dict of str to Manager
        The managers by role, and by name.

    Parameters
    ----------
    managers : mapping
        ``{"train": {"lm": manager}, "val": {"lm": ..., "other": ...}, "test": ..., "predict": ...}``: a `Manager`, a
        dict of its parameters, or only its data.
    allowed : str or iterable of str
        Functions that may be given by name: dotted names, or prefixes that end with a dot, ``"mypackage."``. Nothing
        else is imported.
    overfit_batches : int or None
        Yield only this many batches in each epoch, unshuffled, in training and validation, to check that a model can
        overfit them.
    rank, world_size : int or None
        Share of each batch for this process (DDP). None: taken from torch.distributed if it runs, otherwise 0 of 1.

    Examples
    --------
    >>> import tempfile, pandas as pd
    >>> import daskprep as dp
    >>> frame = pd.DataFrame({"price": [float(i) for i in range(10)]})
    >>> prep = dp.Preprocessor({"price": "number"}, split=dp.RandomSplit((0.8, 0.2, 0.0)))
    >>> path = tempfile.mkdtemp() + "/listings.dp"
    >>> data = dp.DataModule({"train": {"price": lambda: prep.fit_write(frame, path)}, "val": {"price": path}})
    >>> data.prepare_data()
    >>> data.setup("fit")
    >>> [len(batch["price"]) for batch in data.train_dataloader()]
    [8]
    >>> data.dataloader_names["val"]
    ['price']
    """

    def __init__(
        self,
        managers: Mapping[str, Mapping[str, Any]],
        *,
        allowed: str | Iterable[str] = (),
        overfit_batches: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__()
        self.allowed = (allowed,) if isinstance(allowed, str) else tuple(allowed)
        self.overfit_batches = overfit_batches
        self.managers = _managers(managers)
        self._given_ranks = Ranks(rank, world_size)
        check_count("overfit_batches", overfit_batches, 1)
        for place, name, manager in self._all():
            with _naming(place, name):
                if place == "train" and manager.stages not in (None, ("fit",)):
                    raise ConfigError(
                        f'stages={manager.stages!r}: a Manager of "train" runs in stage "fit" only; to evaluate on its '
                        'rows, add another to "val"'
                    )
                manager.check(place, self.allowed)
                self._check_shared(place, manager)
        for stage in STAGES:
            self._in_stage(stage)
        self._prepared = Prepared()
        self._opened: dict[str, dict[str, Batches]] = {}
        self._stage_of: dict[str, str] = {}
        self._state: dict[str, Any] | None = None

    @classmethod
    def from_config(
        cls,
        config: Any,
        *,
        allowed: str | Iterable[str] = (),
        folder: str | os.PathLike[str] | None = None,
        **ranks: Any,
    ) -> Self:
        """Create a DataModule from a configuration of managers by role and name, and optionally `overfit_batches`.

        Parameters
        ----------
        config : mapping, str or path
            The configuration, YAML text, or the path of a YAML or JSON file.
        allowed : str or iterable of str
            Functions that it may name; nothing else is imported, and nothing is evaluated.
        folder : str, path or None
            Folder where datasets are written for the files and Hugging Face datasets that it names.
        **ranks
            `rank` and `world_size`.
        """
        given = load_config(config)
        if not isinstance(given, Mapping):
            raise ConfigError(f"the configuration must be a mapping of managers by role and name, not {given!r}")
        managers = {place: named for place, named in given.items() if place != "overfit_batches"}
        names = (allowed,) if isinstance(allowed, str) else tuple(allowed)
        overfit = given.get("overfit_batches")
        return cls(configured(managers, names, folder), allowed=names, overfit_batches=overfit, **ranks)

    def _check_shared(self, place: str, manager: Manager) -> None:
        trained = next(iter(self.managers["train"].values())).data
        if place != "train" and isinstance(trained, BatchSource) and manager.data is trained:
            raise ConfigError(
                f"{trained!r} is also used for training, which evaluation would interrupt: pass a function that "
                "creates a separate one"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({ {place: list(named) for place, named in self.managers.items()} })"

    def _all(self) -> Iterator[tuple[str, str, Manager]]:
        for place, named in self.managers.items():
            for name, manager in named.items():
                yield place, name, manager

    def _by_name(self, role: str) -> dict[str, Manager]:
        """Return what the loaders of a role are made of, in the stage that it was set up for."""
        return (
            self.managers["train"] if role == "train" else self._in_stage(self._stage_of.get(role, STAGES_OF[role][0]))
        )

    def _in_stage(self, stage: str) -> dict[str, Manager]:
        """Return what is not for training, and opened in a stage, wherever it stands."""
        found: dict[str, Manager] = {}
        for place, name, manager in self._all():
            if place == "train" or stage not in (manager.stages or STAGES_OF[place]):
                continue
            if name in found:
                raise ConfigError(f'stage "{stage}" has two managers named "{name}": rename one, or change its stages')
            found[name] = manager
        return found

    @property
    def dataloader_names(self) -> Names:
        """Names of the loaders by role, in order: ``dataloader_names["val"][dataloader_idx]``."""
        return Names({role: list(self._by_name(role)) for role in ROLES})

    def prepare_data(self) -> None:
        """Call the functions that write or find datasets, on the first rank only; the others wait."""
        from_first_rank(self._prepare)

    def _prepare(self) -> None:
        self._prepared.call(manager.data for _, _, manager in self._all())

    def setup(self, stage: str = "fit") -> None:
        """Open the datasets of a stage on this rank, and create its loaders.

        Parameters
        ----------
        stage : str
            "fit", "validate", "test" or "predict".
        """
        stage = stage_of(stage)
        for role in ROLES_IN[stage]:
            self._stage_of[role] = stage
            self._opened[role] = {
                name: self._open(role, name, manager) for name, manager in self._by_name(role).items()
            }
        if "train" in ROLES_IN[stage] and self._state is not None:
            self._train.load_state_dict(self._state)
            self._state = None

    def _open(self, role: str, name: str, manager: Manager) -> Batches:
        overfit = role in {"train", "val"} and self._is_overfitting()
        ranks = self._ranks()
        with _naming(role, name):
            source, left = manager.open(role, self._prepared, ranks, overfit=overfit)
            each = [resolve("example_processors", one, self.allowed) for one in manager.example_processors]
            processors = [resolve("processors", one, self.allowed) for one in manager.processors]
            if each or isinstance(source, Examples):
                as_list = isinstance(source, Examples) and manager.collate is not None
                processors.insert(0, partial(each_example, each, as_list=as_list))
            groups = [resolve("group_processors", one, self.allowed) for one in manager.grouping]
            collate = None if manager.collate is None else resolve("collate", manager.collate, self.allowed)
            world_size = getattr(source, "world_size", ranks.world_size)
        return Batches(
            source,
            [partial(_without, left), *processors] if left else processors,
            groups,
            collate,
            epoch=None if role == "train" and not overfit else 0,
            limit=self.overfit_batches if overfit else None,
            # What a group of one rank holds is of no use to the others.
            keep_groups=world_size in {None, 1},
            counter=self._counter() if role == "train" else None,
        )

    def teardown(self, stage: str = "fit") -> None:
        """Release the loaders of a stage; the state of the training loader is kept, so that it can resume."""
        stage = stage_of(stage)
        if stage == "fit" and "train" in self._opened:
            self._state = self._train.state_dict(**self._progress())
        for role in [role for role in self._opened if self._stage_of[role] == stage]:
            del self._opened[role]

    def _ranks(self) -> Ranks:
        return self._given_ranks

    def _is_overfitting(self) -> bool:
        return self.overfit_batches is not None

    def _counter(self) -> Callable[[], int] | None:
        return None

    def _progress(self) -> dict[str, Any]:
        return {}

    @property
    def _train(self) -> Batches:
        return next(iter(self._of("train").values()))

    def _of(self, role: str) -> dict[str, Batches]:
        if role not in self._opened:
            stages = " or ".join(f'setup("{stage}")' for stage in STAGES_OF[role])
            raise ConfigError(f'the loaders of "{role}" are not open: call {stages} first')
        return self._opened[role]

    def train_dataloader(self) -> Any:
        """Return the training loader."""
        return self._train

    def val_dataloader(self) -> list[Any]:
        """Return the validation loaders, in the order of their names."""
        return list(self._of("val").values())

    def test_dataloader(self) -> list[Any]:
        """Return the test loaders, in the order of their names."""
        return list(self._of("test").values())

    def predict_dataloader(self) -> list[Any]:
        """Return the prediction loaders, in the order of their names."""
        return list(self._of("predict").values())

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the training loader; the state of one rank is valid for any number of ranks."""
        state = self._train.state_dict(**self._progress()) if "train" in self._opened else self._state
        return {} if state is None else {"train": {next(iter(self.managers["train"])): state}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume the training loader from a state, now or when it is opened."""
        train = state_dict.get("train", {})
        name = next(iter(self.managers["train"]))
        if name not in train:
            raise ConfigError(
                f'the state has no training manager "{name}", only {", ".join(train) or "none"}: name the manager as '
                "in the run that saved the state"
            )
        if "train" in self._opened:
            self._train.load_state_dict(train[name])
        else:
            self._state = train[name]


def _without(names: tuple[str, ...], batch: Any) -> Any:
    """Take columns out of a batch that are not known by name before there is one."""
    if isinstance(batch, tuple):
        return (_without(names, batch[0]), *batch[1:])
    for name in names:
        if name not in batch:
            raise ConfigError(f'columns_to_remove: batches have no output "{name}".{did_you_mean(name, batch)}')
    return {name: value for name, value in batch.items() if name not in names}


def _managers(given: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Manager]]:
    found: dict[str, dict[str, Manager]] = {role: {} for role in ROLES}
    if not isinstance(given, Mapping):
        raise ConfigError(f'managers={given!r}: expected {{"train": {{"lm": Manager(...)}}, "val": ...}}')
    for spelled, named in given.items():
        place = role_of(spelled)
        if not isinstance(named, Mapping):
            raise ConfigError(
                f'"{spelled}": {named!r}: expected managers by name, as in {{"{spelled}": {{"lm": ...}}}}'
            )
        if found[place]:
            raise ConfigError(f'"{spelled}" means "{place}", which is already given: merge their managers')
        for name, one in named.items():
            with _naming(place, name):
                found[place][name] = Manager.of(one)
    if len(found["train"]) != 1:
        names = ", ".join(found["train"]) or "none"
        raise ConfigError(f'"train" has {len(found["train"])} managers ({names}): give exactly one')
    return found


@contextmanager
def _naming(place: str, name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f'in manager "{name}" of "{place}"')
        raise
