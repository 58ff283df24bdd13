"""Lightning integration: `daskprep.DataModule` as a LightningDataModule for the Trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import Any

from daskprep.dataset.loader.batch_iterator import Ranks
from daskprep.errors import ConfigError
from daskprep.extensions import training
from daskprep.extensions.training.manager import ROLES, STAGES_BY_ROLE

try:
    from lightning.pytorch import LightningDataModule, Trainer
    from lightning.pytorch.trainer.states import TrainerFn
except ImportError as error:
    raise ImportError("daskprep.lightning needs Lightning: pip install lightning") from error


@dataclass(frozen=True, eq=False)
class _TrainLoader:
    """The training loader for Lightning.

    The DataModule saves its state. Lightning would also save a loader's state, but it would count a prefetched batch,
    which was not trained on. Nor would it load this state at the end of an epoch or after a read of
    `estimated_stepping_batches`. Without the methods, Lightning warns that the loader cannot resume.
    """

    batches: training.Batches
    module: DataModule

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # Called when a run resumes within an epoch. Lightning finds the state of a DataModule by its class name.
        if not self.module._has_loaded_state:
            raise ConfigError(
                f"the checkpoint has no state of {type(self.module).__qualname__}, so training would restart the "
                "epoch: use the DataModule class that the checkpoint was saved with"
            )


class DataModule(training.DataModule, LightningDataModule):
    """`daskprep.DataModule` for Lightning's Trainer.

    The Trainer's checkpoints include the state of the training loader, so that training resumes after the last trained
    batch. Ranks and `overfit_batches` are read from the Trainer.

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

    _state_trainer: Trainer | None = None  # the Trainer of the loader state that is kept between fits
    _has_loaded_state = False  # whether a state was loaded since the loaders were opened
    _batch_size: int | None = None  # of the training loader; None: unknown, or not opened yet

    def _hide_unused_loaders(self) -> None:
        for role in ROLES:
            if role != "train" and not any(self._evaluation_managers(stage) for stage in STAGES_BY_ROLE[role]):
                # Lightning skips a stage if the method is inherited from LightningDataModule.
                name = f"{role}_dataloader"
                setattr(self, name, MethodType(getattr(LightningDataModule, name), self))

    def prepare_data(self) -> None:
        self._prepare()  # Lightning calls this only on the ranks that must prepare data, while the other ranks wait

    def setup(self, stage: str = "fit") -> None:
        """Open the loaders of a stage; forget the state of another Trainer."""
        if self._state_trainer is not None and self._state_trainer is not self.trainer:
            # A Trainer continues the epoch count of its last fit, but a new Trainer starts at 0.
            self._state = self._state_trainer = None
        self._has_loaded_state = False
        super().setup(stage)
        if "train" in self._opened:
            self._batch_size = getattr(self._train_batches.source, "batch_size", None)

    def teardown(self, stage: str = "fit") -> None:
        if "train" in self._opened:
            self._state_trainer = self.trainer
        super().teardown(stage)

    def train_dataloader(self) -> Any:
        return _TrainLoader(self._train_batches, self)

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return {**state, "batch_size": self._batch_size} if state else state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume training from the state in a checkpoint."""
        # Testing also loads checkpoints, for their weights; it must not change where training resumes.
        if self.trainer is None or self.trainer.state.fn == TrainerFn.FITTING:
            self._state_trainer = None
            self._has_loaded_state = True
            super().load_state_dict(state_dict)
            saved = state_dict.get("batch_size")  # Lightning resumes at a number of batches
            [state] = state_dict["train"].values()
            is_within = "next_epoch" not in state and bool(state["source"].get("rows_given"))
            if is_within and None not in (saved, self._batch_size) and saved != self._batch_size:
                raise ConfigError(
                    f"the checkpoint is within an epoch of batches of {saved} rows, and batch_size is now "
                    f"{self._batch_size}: resume with batch_size={saved}, or from a checkpoint at the end of an epoch"
                )

    def _ranks(self) -> Ranks:
        """Return the ranks that were passed, or else the Trainer's."""
        if self.trainer is None or self._explicit_ranks != Ranks():
            return super()._ranks()
        # Processes of model parallelism share one model.
        share = self.trainer.distributed_sampler_kwargs
        return Ranks(0, 1) if share is None else Ranks(share["rank"], share["num_replicas"])

    def _is_overfitting(self) -> bool:
        # The Trainer itself limits the number of batches. getattr, because mypy does not find its attribute.
        return super()._is_overfitting() or bool(getattr(self.trainer, "overfit_batches", 0))

    def _counter(self) -> Callable[[], int] | None:
        return None if self.trainer is None else self._count_trained_batches

    def _count_trained_batches(self) -> int:
        assert self.trainer is not None
        progress: Any = self.trainer.fit_loop.epoch_loop.batch_progress
        return int(progress.total.processed)

    def _progress(self) -> dict[str, Any]:
        """Return whether the epoch ended, and batches prefetched."""
        if self.trainer is None:
            return {}
        progress, batches = self.trainer.fit_loop.epoch_loop.batch_progress, self.trainer.num_training_batches
        # If the number of batches is unknown, Lightning prefetches a batch to detect the last one.
        return {"ended": progress.is_last_batch, "ahead": int(batches == float("inf"))}
