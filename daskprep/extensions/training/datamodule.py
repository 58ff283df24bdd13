"""The loaders of a training run by name, opened for each stage, and the state of the training loader."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

from daskprep.dataset.loader.batch_iterator import Ranks
from daskprep.dataset.options import check_count
from daskprep.errors import ConfigError, did_you_mean
from daskprep.extensions.config import load_config
from daskprep.extensions.training.batches import Batches, BatchSource
from daskprep.extensions.training.configured import configure_managers, resolve
from daskprep.extensions.training.examples import Examples, PreparedData, process_examples, run_on_first_rank
from daskprep.extensions.training.manager import ROLES, STAGES, STAGES_BY_ROLE, Manager, parse_role, parse_stage

# The roles of the loaders that a stage needs.
_ROLES_BY_STAGE = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("predict",)}


class LoaderNames(dict[str, list[str]]):
    """Names of loaders by role; stages are also accepted as keys."""

    def __missing__(self, name: str) -> list[str]:
        return self[parse_role(name)]


class DataModule:
    """The loaders of a training run, by role and name.

    One loader is for training, and any number are to validate, test and predict. Use it in your own training loop;
    `daskprep.lightning.DataModule` is the same for Lightning's Trainer.


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
        Functions that may be specified by name: dotted names, or prefixes that end with a dot, ``"mypackage."``.
        Nothing else is imported.
    overfit_batches : int or None
        Yield only this many batches per epoch, unshuffled, in training and validation, to check that a model overfits.
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
        self.managers = _parse_managers(managers)
        self._explicit_ranks = Ranks(rank, world_size)
        check_count("overfit_batches", overfit_batches, 1)
        for role, name, manager in self._iterate_managers():
            with _add_error_note(role, name):
                if role == "train" and manager.stages not in (None, ("fit",)):
                    raise ConfigError(
                        f'stages={manager.stages!r}: a Manager of "train" runs in stage "fit" only; add one to "val"'
                    )
                manager.check(role, self.allowed)
                self._check_shared(role, manager)
        for stage in STAGES:
            self._evaluation_managers(stage)
        self._hide_unused_loaders()
        self._prepared = PreparedData()
        self._opened: dict[str, dict[str, Batches]] = {}
        self._stage_by_role: dict[str, str] = {}
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
        """Create a DataModule from a configuration, and open no data.

        Parameters
        ----------
        config : mapping, str or path
            Managers by role and name, and optionally `overfit_batches`; YAML text, or the path of a YAML or JSON file.
        allowed : str or iterable of str
            Functions that the configuration may name; nothing else is imported, and nothing is evaluated.
        folder : str, path or None
            Folder for the datasets written from files and Hugging Face datasets in the configuration.
        **ranks
            `rank` and `world_size`.
        """
        loaded = load_config(config)
        if not isinstance(loaded, Mapping):
            raise ConfigError(f"the configuration must be a mapping of managers by role and name, not {loaded!r}")
        managers = {role: by_name for role, by_name in loaded.items() if role != "overfit_batches"}
        names = (allowed,) if isinstance(allowed, str) else tuple(allowed)
        overfit = loaded.get("overfit_batches")
        return cls(configure_managers(managers, names, folder), allowed=names, overfit_batches=overfit, **ranks)

    def _hide_unused_loaders(self) -> None:
        """Hide unused loaders from a trainer, in subclasses."""

    def _check_shared(self, role: str, manager: Manager) -> None:
        """Raise ConfigError if evaluation shares the stream."""
        training_data = next((one.data for one in self.managers["train"].values()), None)
        if role != "train" and isinstance(training_data, BatchSource) and manager.data is training_data:
            raise ConfigError(
                f"{training_data!r} is also used for training: pass a function that creates a separate one"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({ {role: list(by_name) for role, by_name in self.managers.items()} })"

    def _iterate_managers(self) -> Iterator[tuple[str, str, Manager]]:
        for role, by_name in self.managers.items():
            for name, manager in by_name.items():
                yield role, name, manager

    def _managers_of(self, role: str) -> dict[str, Manager]:
        """Return the managers of a role, for the stage last set up."""
        if role == "train":
            return self.managers["train"]
        return self._evaluation_managers(self._stage_by_role.get(role, STAGES_BY_ROLE[role][0]))

    def _evaluation_managers(self, stage: str) -> dict[str, Manager]:
        """Return the managers of a stage but training's; ConfigError for a name twice."""
        managers: dict[str, Manager] = {}
        for role, name, manager in self._iterate_managers():
            if role == "train" or stage not in (manager.stages or STAGES_BY_ROLE[role]):
                continue
            if name in managers:
                raise ConfigError(f'stage "{stage}" has two managers named "{name}": rename one, or change its stages')
            managers[name] = manager
        return managers

    @property
    def dataloader_names(self) -> LoaderNames:
        """Names of the loaders by role, in order."""
        return LoaderNames({role: list(self._managers_of(role)) for role in ROLES})

    def prepare_data(self) -> None:
        """Call the functions that write datasets, on the first rank."""
        run_on_first_rank(self._prepare)

    def _prepare(self) -> None:
        self._prepared.call(manager.data for _, _, manager in self._iterate_managers())

    def setup(self, stage: str = "fit") -> None:
        """Open the datasets of a stage on this rank.

        Parameters
        ----------
        stage : str
            "fit", "validate", "test" or "predict".
        """
        stage = parse_stage(stage)
        if stage == "fit" and not self.managers["train"]:
            raise ConfigError('"train" has no manager, which fit needs: pass {"train": {"lm": Manager(...)}}')
        for role in _ROLES_BY_STAGE[stage]:
            self._stage_by_role[role] = stage
            self._opened[role] = {
                name: self._open(role, name, manager) for name, manager in self._managers_of(role).items()
            }
        if "train" in _ROLES_BY_STAGE[stage] and self._state is not None:
            self._train_batches.load_state_dict(self._state)
            self._state = None

    def _open(self, role: str, name: str, manager: Manager) -> Batches:
        """Return a manager's batches; errors have a note on it."""
        overfit = role in {"train", "val"} and self._is_overfitting()
        ranks = self._ranks()
        with _add_error_note(role, name):
            source, to_remove = manager.open(role, self._prepared, ranks, overfit=overfit)
            example_processors = [
                resolve("example_processors", processor, self.allowed) for processor in manager.example_processors
            ]
            processors = [resolve("processors", processor, self.allowed) for processor in manager.processors]
            if example_processors or isinstance(source, Examples):
                as_list = isinstance(source, Examples) and manager.collate is not None
                processors.insert(0, partial(process_examples, example_processors, as_list=as_list))
            groups = [resolve("group_processors", processor, self.allowed) for processor in manager.grouping]
            collate = None if manager.collate is None else resolve("collate", manager.collate, self.allowed)
            world_size = getattr(source, "world_size", ranks.world_size)
        return Batches(
            source,
            [partial(_remove_columns, to_remove), *processors] if to_remove else processors,
            groups,
            collate,
            epoch=None if role == "train" and not overfit else 0,
            limit=self.overfit_batches if overfit else None,
            # The state of a group processor is of no use on another rank.
            keep_groups=world_size in {None, 1},
            counter=self._counter() if role == "train" else None,
        )

    def teardown(self, stage: str = "fit") -> None:
        """Release the loaders of a stage; the training state is kept."""
        stage = parse_stage(stage)
        if stage == "fit" and "train" in self._opened:
            self._state = self._train_batches.state_dict(**self._progress())
        for role in [role for role in self._opened if self._stage_by_role[role] == stage]:
            del self._opened[role]

    def _ranks(self) -> Ranks:
        return self._explicit_ranks

    def _is_overfitting(self) -> bool:
        return self.overfit_batches is not None

    def _counter(self) -> Callable[[], int] | None:
        """Return a counter of consumed batches; here None."""
        return None

    def _progress(self) -> dict[str, Any]:
        """Return the arguments of `Batches.state_dict`; here none."""
        return {}

    @property
    def _train_batches(self) -> Batches:
        return next(iter(self._opened_batches("train").values()))

    def _opened_batches(self, role: str) -> dict[str, Batches]:
        """Return a role's batches by name; ConfigError before `setup`."""
        if role not in self._opened:
            stages = " or ".join(f'setup("{stage}")' for stage in STAGES_BY_ROLE[role])
            raise ConfigError(f'the loaders of "{role}" are not open: call {stages} first')
        return self._opened[role]

    def train_dataloader(self) -> Any:
        """Return the training loader."""
        return self._train_batches

    def val_dataloader(self) -> list[Any]:
        """Return the validation loaders."""
        return list(self._opened_batches("val").values())

    def test_dataloader(self) -> list[Any]:
        """Return the test loaders."""
        return list(self._opened_batches("test").values())

    def predict_dataloader(self) -> list[Any]:
        """Return the prediction loaders."""
        return list(self._opened_batches("predict").values())

    def state_dict(self) -> dict[str, Any]:
        """Return the position of training, for any number of ranks."""
        state = self._train_batches.state_dict(**self._progress()) if "train" in self._opened else self._state
        return {} if state is None else {"train": {next(iter(self.managers["train"])): state}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume training, now or once its loader opens; ConfigError for a state of other managers."""
        train = state_dict.get("train", {})
        name = next(iter(self.managers["train"]), None)
        if name not in train:
            raise ConfigError(
                f'the state has no training manager "{name}", only {", ".join(train) or "none"}: use the same name'
            )
        if "train" in self._opened:
            self._train_batches.load_state_dict(train[name])
        else:
            self._state = train[name]


def _remove_columns(names: tuple[str, ...], batch: Any) -> Any:
    """Return a batch without columns; ConfigError if absent."""
    if isinstance(batch, tuple):
        return (_remove_columns(names, batch[0]), *batch[1:])
    for name in names:
        if name not in batch:
            raise ConfigError(f'columns_to_remove: batches have no output "{name}".{did_you_mean(name, batch)}')
    return {name: value for name, value in batch.items() if name not in names}


def _parse_managers(managers: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Manager]]:
    """Return managers by name of all roles; ConfigError for none, unknown roles, and two for training."""
    parsed: dict[str, dict[str, Manager]] = {role: {} for role in ROLES}
    if not isinstance(managers, Mapping):
        raise ConfigError(
            f'a {type(managers).__name__} is not a mapping of managers by role, {{"train": {{"main": Manager(...)}}}}'
        )
    for role_name, by_name in managers.items():
        role = parse_role(role_name)
        if not isinstance(by_name, Mapping):
            raise ConfigError(
                f'"{role_name}": {by_name!r}: expected managers by name, as in {{"{role_name}": {{"lm": ...}}}}'
            )
        if parsed[role]:
            raise ConfigError(f'"{role_name}" means "{role}", which is already used: merge their managers')
        for name, options in by_name.items():
            with _add_error_note(role, name):
                parsed[role][name] = Manager.of(options)
    if len(parsed["train"]) > 1:
        names = ", ".join(parsed["train"])
        raise ConfigError(f'"train" has {len(parsed["train"])} managers ({names}): use one')
    if not any(parsed.values()):
        raise ConfigError('no managers: pass {"train": {"lm": Manager(...)}}, and others for "val", "test", "predict"')
    return parsed


@contextmanager
def _add_error_note(role: str, name: str) -> Iterator[None]:
    """Name the manager in a note on any error."""
    try:
        yield
    except Exception as error:
        error.add_note(f'in manager "{name}" of "{role}"')
        raise
