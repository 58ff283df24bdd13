"""What lies between a source of batches and the one who asks for them: processors, and the place to go on from."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

from daskprep.errors import ConfigError

# A trainer holds the batch that it works on, and one ahead if it cannot ask how many there are.
_MAX_SNAPSHOTS = 3


@runtime_checkable
class _Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@runtime_checkable
class BatchSource(_Stateful, Protocol):
    """What a loader is to those who iterate over it: one iteration is one epoch, the next one after the last."""

    epoch: int

    def __iter__(self) -> Iterator[Any]: ...

    def set_epoch(self, epoch: int) -> None: ...


class _Snapshot(NamedTuple):
    """Where things stood when a batch was given: `worked_count` is what the trainer had worked on by then."""

    state: dict[str, Any]
    worked_count: int


class Batches:
    """Batches of a source, each through the processors, then over all groups, then collated.

    An iteration begins with its first batch, not with `iter`: trainers make iterators that they ask for nothing.

    Parameters
    ----------
    source : BatchSource
        What gives batches: a loader, or a stream.
    processors : sequence of callable
        Each from a batch to a batch.
    groups : sequence of callable
        Each from an iterator of batches to an iterator of batches.
    collate : callable or None
        From a batch to what is given.
    epoch : int or None
        The epoch of the source that each iteration gives; None: one after the other.
    limit : int or None
        Batches of an iteration.
    keep_groups : bool
        Whether the states of groups are part of a state.
    counter : callable or None
        Tells how many batches a trainer has worked on so far; None: all that were given.
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
        self._stateful_groups: list[Any] = [one for one in groups if keep_groups and isinstance(one, _Stateful)]
        self._collate = collate
        self._epoch = epoch
        self._limit = limit
        self._counter = counter
        self._begin(0)

    def _begin(self, yielded: int) -> None:
        # Batches given of this iteration: in all, and since it began or went on.
        self._yielded, self._yielded_since_resume = yielded, 0
        self._is_over = False
        self._snapshots: deque[_Snapshot] = deque(maxlen=_MAX_SNAPSHOTS)

    @property
    def epoch(self) -> int:
        """The epoch of the source that is given, or comes next."""
        return self.source.epoch

    def __len__(self) -> int:
        """Return the number of batches of an epoch; a TypeError if it is not known."""
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
            # Lightning may fetch a batch to see that there is one, and begin again without a use of it.
            self.load_state_dict(self._snapshots[0].state)
        elif self._yielded_since_resume:
            self._begin(0)
        if self._epoch is not None:
            self.source.set_epoch(self._epoch)
        batches = self._apply_processors(iter(self.source))
        snapshots = self._snapshots
        snapshots.append(self._take_snapshot())
        for batch in islice(batches, None if self._limit is None else self._limit - self._yielded):
            # An iteration that was left for another one says no more where things stand.
            if snapshots is self._snapshots:
                self._yielded, self._yielded_since_resume = self._yielded + 1, self._yielded_since_resume + 1
                snapshots.append(self._take_snapshot())
            yield batch if self._collate is None else self._collate(batch)
        if snapshots is self._snapshots:
            # Groups may have left out what came last.
            self._is_over = True

    def _apply_processors(self, batches: Iterator[Any]) -> Iterator[Any]:
        for processor in self._processors:
            batches = _apply_each(processor, batches)
        for group in self._groups:
            batches = iter(group(batches))
        return batches

    def _take_snapshot(self) -> _Snapshot:
        state: dict[str, Any] = {"source": self.source.state_dict()}
        if self._limit is not None:
            state["given"] = self._yielded
        if self._stateful_groups:
            # What they hold changes, and an earlier state may be asked for.
            state["groups"] = [copy.deepcopy(group.state_dict()) for group in self._stateful_groups]
        return _Snapshot(state, 0 if self._counter is None else self._counter())

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration give this epoch: from its beginning, or from where a state was loaded in it."""
        if epoch != self.epoch or self._yielded_since_resume:
            self._begin(0)
        self.source.set_epoch(epoch)

    def state_dict(self, *, ended: bool = False, ahead: int = 0) -> dict[str, Any]:
        """Return what to go on from: behind the last batch that was worked on, not behind those that were fetched.

        Parameters
        ----------
        ended : bool
            Whether a trainer takes no more of this iteration: then the next epoch follows, if all was worked on.
        ahead : int
            Batches that a trainer fetches ahead of the one that it works on.
        """
        if not self._yielded_since_resume:
            return self._take_snapshot().state
        pending = self._count_pending(ahead)
        state = self._snapshots[-1 - pending].state
        ended = ended or self._is_over
        return {**state, "next_epoch": self.epoch + 1} if ended and not pending else state

    def _count_pending(self, ahead: int) -> int:
        """Return how many of the batches that were given a trainer has not worked on.

        Lightning's own count goes on from that of a checkpoint, which may be loaded after it has fetched a batch; so it
        is asked when a batch is given, and only what was added since then is used.
        """
        if self._counter is None:
            return 0
        pending = min(self._yielded_since_resume, 1 + ahead) - (self._counter() - self._snapshots[-1].worked_count)
        return max(0, min(pending, len(self._snapshots) - 1))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken."""
        if not isinstance(state, Mapping) or "source" not in state:
            raise ConfigError(f"not a state of a Manager's batches: {str(state)[:200]}")
        states = state.get("groups", [])
        if len(states) != len(self._stateful_groups):
            raise ConfigError(
                f"the state was saved with {len(states)} stateful group processors, but there are {len(self._stateful_groups)}: "
                "use the same group_processors on one rank, or restart the epoch"
            )
        self.source.load_state_dict(state["source"])
        yielded = state.get("given", 0) if self._limit is not None else 0
        is_over = self._limit is not None and yielded >= self._limit
        next_epoch = self.epoch + 1 if is_over else state.get("next_epoch")
        if next_epoch is not None:
            self.source.set_epoch(next_epoch)
            self._begin(0)
            return
        for group, one in zip(self._stateful_groups, states, strict=True):
            group.load_state_dict(one)
        self._begin(yielded)


def _apply_each(processor: Callable[[Any], Any], batches: Iterator[Any]) -> Iterator[Any]:
    # Not map: a StopIteration of a processor would end the epoch, and no one would know.
    for batch in batches:
        yield processor(batch)
