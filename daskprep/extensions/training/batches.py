"""Batches of a source after processors, with a checkpoint that matches the batches that the trainer has consumed."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

from daskprep.errors import ConfigError

_MAX_SNAPSHOTS = 3  # a trainer holds the batch it works on, and prefetches one if the number of batches is unknown


@runtime_checkable
class _Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@runtime_checkable
class BatchSource(_Stateful, Protocol):
    """A loader or stream: each iteration is the next epoch."""

    epoch: int

    def __iter__(self) -> Iterator[Any]: ...

    def set_epoch(self, epoch: int) -> None: ...


class _Snapshot(NamedTuple):
    """State at a batch, and the batches consumed by then."""

    state: dict[str, Any]
    worked_count: int


class Batches:
    """Batches of a source after processors, group processors and `collate`.

    An iteration starts with its first batch and not with `iter`, because trainers create iterators that they never use.
    Every iteration yields `epoch`, or the next one if it is None, up to `limit` batches. `counter` returns the number
    of batches that a trainer has consumed; without it, all yielded batches count.
    """

    def __init__(
        self,
        source: BatchSource,
        processors: Sequence[Callable[[Any], Any]] = (),
        groups: Sequence[Callable[[Iterator[Any]], Iterable[Any]]] = (),
        collate: Callable[[Any], Any] | None = None,
        *,
        epoch: int | None = None,
        limit: int | None = None,
        keep_groups: bool = True,
        counter: Callable[[], int] | None = None,
    ) -> None:
        self.source = source
        self._processors = tuple(processors)
        self._groups = tuple(groups)
        self._stateful_groups: list[Any] = [group for group in groups if keep_groups and isinstance(group, _Stateful)]
        self._collate = collate
        self._epoch = epoch
        self._limit = limit
        self._counter = counter
        self._begin(0)

    def _begin(self, yielded: int) -> None:
        """Start to count after `yielded` batches; drop snapshots."""
        # Batches that this iteration has yielded: in all, and since it started or resumed.
        self._yielded, self._yielded_since_resume = yielded, 0
        self._is_over = False
        self._snapshots: deque[_Snapshot] = deque(maxlen=_MAX_SNAPSHOTS)

    @property
    def epoch(self) -> int:
        """The current epoch of the source, or the next one."""
        return self.source.epoch

    def __len__(self) -> int:
        if self._groups:
            raise TypeError("the number of batches is not known in advance, because group processors may change it")
        length = len(self.source)  # type: ignore[arg-type]
        return length if self._limit is None else min(length, self._limit)

    def __iter__(self) -> Iterator[Any]:
        if (
            self._yielded_since_resume == 1
            and self._counter is not None
            and self._counter() == self._snapshots[-1].worked_count
        ):
            # Lightning may fetch a batch to check that there is one, and restart without having used it.
            self.load_state_dict(self._snapshots[0].state)
        elif self._yielded_since_resume:
            self._begin(0)
        if self._epoch is not None:
            self.source.set_epoch(self._epoch)
        batches: Iterator[Any] = iter(self.source)
        for processor in self._processors:
            batches = _apply_each(processor, batches)
        for group in self._groups:
            batches = iter(group(batches))
        snapshots = self._snapshots
        snapshots.append(self._take_snapshot())
        for batch in islice(batches, None if self._limit is None else self._limit - self._yielded):
            # An abandoned iteration must not change the state of the one that replaced it.
            if snapshots is self._snapshots:
                self._yielded, self._yielded_since_resume = self._yielded + 1, self._yielded_since_resume + 1
                snapshots.append(self._take_snapshot())
            yield batch if self._collate is None else self._collate(batch)
        if snapshots is self._snapshots:
            self._is_over = True  # group processors may drop the last batches, so that `_yielded` does not show the end

    def _take_snapshot(self) -> _Snapshot:
        """Return a copy of the state, and batches consumed by now."""
        state: dict[str, Any] = {"source": self.source.state_dict()}
        if self._limit is not None:
            state["given"] = self._yielded
        if self._stateful_groups:
            # Group processors change their state in place, and an earlier one may be requested.
            state["groups"] = [copy.deepcopy(group.state_dict()) for group in self._stateful_groups]
        return _Snapshot(state, 0 if self._counter is None else self._counter())

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        if epoch != self.epoch or self._yielded_since_resume:
            self._begin(0)
        self.source.set_epoch(epoch)

    def state_dict(self, *, ended: bool = False, ahead: int = 0) -> dict[str, Any]:
        """Return the state after the last batch a trainer consumed.

        If it `ended` the iteration and consumed all batches, the next epoch follows; it prefetches `ahead` batches.
        """
        if not self._yielded_since_resume:
            return self._take_snapshot().state
        pending = self._count_pending(ahead)
        state = self._snapshots[-1 - pending].state
        ended = ended or self._is_over
        return {**state, "next_epoch": self.epoch + 1} if ended and not pending else state

    def _count_pending(self, ahead: int) -> int:
        """Return the number of batches the trainer has not consumed.

        Lightning's counter continues from a checkpoint, which may be loaded after a batch was fetched. So it is read
        when a batch is yielded, and only the increase since then is used.
        """
        if self._counter is None:
            return 0
        pending = min(self._yielded_since_resume, 1 + ahead) - (self._counter() - self._snapshots[-1].worked_count)
        return max(0, min(pending, len(self._snapshots) - 1))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state; raise ConfigError for one of other group processors."""
        if not isinstance(state, Mapping) or "source" not in state:
            raise ConfigError(f"not a state of a Manager's batches: {str(state)[:200]}")
        states = state.get("groups", [])
        if len(states) != len(self._stateful_groups):
            raise ConfigError(
                f"the state has {len(states)} stateful group processors, not {len(self._stateful_groups)}: use the same"
            )
        self.source.load_state_dict(state["source"])
        yielded = state.get("given", 0) if self._limit is not None else 0
        is_over = self._limit is not None and yielded >= self._limit
        next_epoch = self.epoch + 1 if is_over else state.get("next_epoch")
        if next_epoch is not None:
            self.source.set_epoch(next_epoch)
            self._begin(0)
            return
        for group, group_state in zip(self._stateful_groups, states, strict=True):
            group.load_state_dict(group_state)
        self._begin(yielded)


def _apply_each(processor: Callable[[Any], Any], batches: Iterator[Any]) -> Iterator[Any]:
    # Not `map`: a StopIteration in a processor would end the epoch silently.
    for batch in batches:
        yield processor(batch)
