"""The data of a training run for Lightning's Trainer: `daskprep.DataModule` as a LightningDataModule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MethodType
from typing import Any

from daskprep import training
from daskprep.errors import ConfigError
from daskprep.loader.ranks import Ranks
from daskprep.training.stages import ROLES, STAGES_BY_ROLE

try:
    from lightning.pytorch import LightningDataModule, Trainer
    from lightning.pytorch.trainer.states import TrainerFn
except ImportError as error:
    raise ImportError('daskprep.lightning needs Lightning: pip install "daskprep[lightning]"') from error


class _TrainLoader:
    """The loader that trains, as Lightning sees it.

    Lightning keeps the states of loaders too, but with the batch that a model has not yet seen, and loads them neither
    behind the end of an epoch, nor if `estimated_stepping_batches` was asked for. The DataModule's state is right, so
    there is none here. The methods are, or else Lightning warns that the loader cannot go on.
    """

    def __init__(self, batches: training.Batches, module: DataModule) -> None:
        self.batches = batches
        self.module = module

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # Called when a run goes on within an epoch. Lightning looks for the state of a DataModule by its class.
        if not self.module._has_loaded_state:
            raise ConfigError(
                f"the checkpoint has no state of {type(self.module).__qualname__}, so training would restart the "
                "epoch: use the DataModule class that the checkpoint was saved with"
            )


class DataModule(training.DataModule, LightningDataModule):
    """The same as `daskprep.DataModule`, for Lightning's Trainer.

    Its checkpoints hold the state of the training loader, so that training resumes after the last batch that the model
    was trained on. Ranks and `overfit_batches` come from the Trainer.

    Parameters
    ----------
    managers, allowed, overfit_batches, rank, world_size
        As for `daskprep.DataModule`.

    Examples
    --------
    >>> from daskprep.lightning import DataModule
    >>> data = DataModule({"train": {"lm": "listings.dp"}, "val": {"lm": "listings.dp"}})
    >>> trainer.fit(model, data)  # doctest: +SKIP
    """

    # The Trainer that the kept state is of.
    _state_trainer: Trainer | None = None
    # Whether a state was loaded since the loaders were opened.
    _has_loaded_state = False

    def __init__(
        self,
        managers: Mapping[str, Mapping[str, Any]],
        *,
        allowed: str | Iterable[str] = (),
        overfit_batches: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__(managers, allowed=allowed, overfit_batches=overfit_batches, rank=rank, world_size=world_size)
        for role in ROLES:
            if role != "train" and not any(self._evaluation_managers(stage) for stage in STAGES_BY_ROLE[role]):
                # Lightning asks whether the method is its own, and knows what to do then.
                name = f"{role}_dataloader"
                setattr(self, name, MethodType(getattr(LightningDataModule, name), self))

    def prepare_data(self) -> None:
        # Lightning calls this where it is to be called, and waits elsewhere.
        self._prepare()

    def setup(self, stage: str = "fit") -> None:
        if self._state_trainer is not None and self._state_trainer is not self.trainer:
            # A Trainer counts epochs from where its last fit ended, a new one from the start.
            self._state = self._state_trainer = None
        self._has_loaded_state = False
        super().setup(stage)

    def teardown(self, stage: str = "fit") -> None:
        if "train" in self._opened:
            self._state_trainer = self.trainer
        super().teardown(stage)

    def train_dataloader(self) -> Any:
        return _TrainLoader(self._train_batches, self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        # Weights of a checkpoint are tested, too, which says nothing of where training goes on.
        if self.trainer is None or self.trainer.state.fn == TrainerFn.FITTING:
            self._state_trainer = None
            self._has_loaded_state = True
            super().load_state_dict(state_dict)

    def _ranks(self) -> Ranks:
        if self.trainer is None or self._explicit_ranks != Ranks():
            return super()._ranks()
        # Processes that share a model in parts are one rank here.
        share = self.trainer.distributed_sampler_kwargs
        return Ranks(0, 1) if share is None else Ranks(share["rank"], share["num_replicas"])

    def _is_overfitting(self) -> bool:
        # The Trainer itself takes no more than so many batches. It sets the attribute where mypy does not see it.
        return super()._is_overfitting() or bool(getattr(self.trainer, "overfit_batches", 0))

    def _counter(self) -> Callable[[], int] | None:
        return None if self.trainer is None else self._count_trained_batches

    def _count_trained_batches(self) -> int:
        assert self.trainer is not None
        progress: Any = self.trainer.fit_loop.epoch_loop.batch_progress
        return int(progress.total.processed)

    def _progress(self) -> dict[str, Any]:
        if self.trainer is None:
            return {}
        progress, batches = self.trainer.fit_loop.epoch_loop.batch_progress, self.trainer.num_training_batches
        # To see which batch is the last of an unknown number, one is fetched ahead.
        return {"ended": progress.is_last_batch, "ahead": int(batches == float("inf"))}
