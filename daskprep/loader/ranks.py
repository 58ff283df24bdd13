"""Ranks of distributed training, and checks of states of loaders and streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed

from daskprep.errors import ConfigError, FormatVersionError
from daskprep.options import check_count


@dataclass(frozen=True)
class Ranks:
    """Rank of this process, and number of ranks.

    Attributes
    ----------
    rank, world_size : int or None
        None: from torch.distributed if it is initialized, otherwise 0 of 1.
    uneven : bool
        Whether shares of a batch may differ by one row.
    """

    rank: int | None = None
    world_size: int | None = None
    uneven: bool = False

    def __post_init__(self) -> None:
        if (self.rank is None) != (self.world_size is None):
            raise ConfigError("pass both rank and world_size, or neither")

    def resolve(self, batch_size: int) -> tuple[int, int]:
        """Return rank and number of ranks, or raise ConfigError if the ranks cannot share a batch."""
        rank, world = self.rank, self.world_size
        if rank is None or world is None:
            distributed = torch.distributed
            rank, world = (distributed.get_rank(), distributed.get_world_size()) if is_distributed() else (0, 1)
        check_count("world_size", world, 1)
        if not isinstance(rank, int) or not 0 <= rank < world:
            raise ConfigError(f"rank={rank!r} of world_size={world}: ranks are 0 to {world - 1}")
        if batch_size < world or (batch_size % world and not self.uneven):
            uneven = ", or uneven=True for shares that differ by one row" if batch_size > world else ""
            raise ConfigError(
                f"batch_size={batch_size} is the total over all ranks, but not divisible by {world} ranks; use "
                f"batch_size={-(-batch_size // world) * world}{uneven}"
            )
        return rank, world

    def freeze(self, batch_size: int) -> Ranks:
        """Return ranks with fixed numbers for a spawned process, in which torch.distributed is not initialized."""
        return Ranks(*self.resolve(batch_size), self.uneven) if is_distributed() else self


def check_rows_left(rows: int, world: int, epoch: int) -> None:
    """Raise ConfigError if an epoch has remaining rows, but less than one for each rank."""
    if 0 < rows < world:
        raise ConfigError(
            f"{rows} rows are left of epoch {epoch}, too few for {world} ranks: some would have none; "
            f"continue with world_size={rows} or less, or with set_epoch({epoch + 1})"
        )


def check_state(state: Any, names: Iterable[str], counts: Iterable[str], newest: int, kind: str = "loader") -> None:
    """Raise an error for an invalid state.

    Parameters
    ----------
    state : mapping
        State of a loader or stream.
    names : iterable of str
        Keys that it must have.
    counts : iterable of str
        Keys of integers of at least 0.
    newest : int
        Newest format that can be read.
    kind : str
        Name of the object in messages.
    """
    if not isinstance(state, Mapping) or not set(names) <= state.keys():
        raise ConfigError(f"not a state of a {kind}: {str(state)[:200]}")
    for name in ("format", *counts):
        check_count(f"state: {name}", "nothing" if state[name] is None else state[name], 0)
    if state["format"] > newest:
        raise FormatVersionError(f"the state has format {state['format']}, and this daskprep reads up to {newest}")


def check_same_options(state: Mapping[str, Any], options: Mapping[str, Any], kind: str = "loader") -> None:
    """Raise ConfigError for the first of `options` with another value in the state."""
    for name, value in options.items():
        if state[name] != value:
            raise ConfigError(
                f"the state was saved with {name}={state[name]!r}, but this {kind} has {value!r}: "
                f"create the {kind} with {name}={state[name]!r}, or restart the epoch with set_epoch"
            )


def is_distributed() -> bool:
    """Return whether torch.distributed is initialized."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()
