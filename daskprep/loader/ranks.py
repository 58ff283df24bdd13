"""Where a process stands: its rank among others, and the state that says what it was given."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed

from daskprep.errors import ConfigError, FormatVersionError


def check_count(name: str, value: object, minimum: int) -> None:
    """Raise ConfigError for what is neither None nor a whole number from `minimum`."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < minimum):
        raise ConfigError(f"{name}={value!r}: expected a whole number from {minimum}")


def check_flags(**flags: object) -> None:
    """Raise ConfigError for the first that is neither True nor False; other values, such as "no", would be true."""
    for name, value in flags.items():
        if np.ndim(value) or value not in (True, False):  # type: ignore[arg-type]
            raise ConfigError(f"{name}={value!r}: expected True or False")


def check_seed(seed: object) -> int:
    """Return a seed as a plain integer, or raise ConfigError for what is no whole number."""
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise ConfigError(f"seed={seed!r}: expected a whole number")
    return int(seed)


@dataclass(frozen=True)
class Ranks:
    """Which of how many ranks this process is: as it was told, or as torch.distributed says where it runs.

    If `uneven`, they may share a batch that they do not divide.
    """

    rank: int | None = None
    world_size: int | None = None
    uneven: bool = False

    def __post_init__(self) -> None:
        if (self.rank is None) != (self.world_size is None):
            raise ConfigError("give both rank and world_size, or neither")

    def resolve(self, batch_size: int) -> tuple[int, int]:
        """Return rank and number of ranks, which share a batch, or raise ConfigError."""
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
                f"batch_size={batch_size} is the total over all ranks, but not divisible by {world} ranks; give "
                f"batch_size={-(-batch_size // world) * world}{uneven}"
            )
        return rank, world

    def freeze(self, batch_size: int) -> Ranks:
        """Return ranks that also a spawned process has, which knows nothing of torch.distributed."""
        return Ranks(*self.resolve(batch_size), self.uneven) if is_distributed() else self


def check_rows_left(rows: int, world: int, epoch: int) -> None:
    """Raise ConfigError if too few rows are left of an epoch."""
    if 0 < rows < world:
        raise ConfigError(
            f"{rows} rows are left of epoch {epoch}, too few for {world} ranks: some would have none; "
            f"continue with world_size={rows} or less, or with set_epoch({epoch + 1})"
        )


def check_state(state: Any, names: Iterable[str], counts: Iterable[str], newest: int, kind: str = "loader") -> None:
    """Raise unless a state has these names, whole numbers where it counts, and a format that can be read."""
    if not isinstance(state, Mapping) or not set(names) <= state.keys():
        raise ConfigError(f"not a state of a {kind}: {str(state)[:200]}")
    for name in ("format", *counts):
        check_count(f"state: {name}", "nothing" if state[name] is None else state[name], 0)
    if state["format"] > newest:
        raise FormatVersionError(f"the state has format {state['format']}, and this daskprep reads up to {newest}")


def check_same_options(state: Mapping[str, Any], options: Mapping[str, Any], kind: str = "loader") -> None:
    """Raise ConfigError for the first option that a state was taken with another value of."""
    for name, value in options.items():
        if state[name] != value:
            raise ConfigError(
                f"the state was saved with {name}={state[name]!r}, but this {kind} has {value!r}: "
                f"create the {kind} with {name}={state[name]!r}, or restart the epoch with set_epoch"
            )


def is_distributed() -> bool:
    """Tell whether torch.distributed runs."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()
