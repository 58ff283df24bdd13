"""What lies between a source of batches and the one who asks for them: processors, and the place to go on from."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

from daskprep.errors import ConfigError

# A trainer holds the batch that it works on, and one ahead if it cannot ask how many there are.
_MARKS = 3


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


class _Mark(NamedTuple):
    """Where things stood when a batch was given: `counted` is what the trainer had worked on by then."""

    state: dict[str, Any]
    counted: int


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
        self._kept: list[Any] = [one for one in groups if keep_groups and isinstance(one, _Stateful)]
        self._collate = collate
        self._epoch = epoch
        self._limit = limit
        self._counter = counter
        self._begin(0)

    def _begin(self, given: int) -> None:
        # Batches given of this iteration: in all, and since it began or went on.
        self._given, self._fresh = given, 0
        self._is_over = False
        self._marks: deque[_Mark] = deque(maxlen=_MARKS)

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
        if self._fresh == 1 and self._counter is not None and self._counter() == self._marks[-1].counted:
            # Lightning may fetch a batch to see that there is one, and begin again without a use of it.
            self.load_state_dict(self._marks[0].state)
        elif self._fresh:
            self._begin(0)
        if self._epoch is not None:
            self.source.set_epoch(self._epoch)
        batches = self._changed(iter(self.source))
        marks = self._marks
        marks.append(self._mark())
        for batch in islice(batches, None if self._limit is None else self._limit - self._given):
            # An iteration that was left for another one says no more where things stand.
            if marks is self._marks:
                self._given, self._fresh = self._given + 1, self._fresh + 1
                marks.append(self._mark())
            yield batch if self._collate is None else self._collate(batch)
        if marks is self._marks:
            # Groups may have left out what came last.
            self._is_over = True

    def _changed(self, batches: Iterator[Any]) -> Iterator[Any]:
        for processor in self._processors:
            batches = _each(processor, batches)
        for group in self._groups:
            batches = iter(group(batches))
        return batches

    def _mark(self) -> _Mark:
        state: dict[str, Any] = {"source": self.source.state_dict()}
        if self._limit is not None:
            state["given"] = self._given
        if self._kept:
            # What they hold changes, and an earlier state may be asked for.
            state["groups"] = [copy.deepcopy(group.state_dict()) for group in self._kept]
        return _Mark(state, 0 if self._counter is None else self._counter())

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration give this epoch: from its beginning, or from where a state was loaded in it."""
        if epoch != self.epoch or self._fresh:
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
        if not self._fresh:
            return self._mark().state
        left = self._not_worked_on(ahead)
        state = self._marks[-1 - left].state
        ended = ended or self._is_over
        return {**state, "next_epoch": self.epoch + 1} if ended and not left else state

    def _not_worked_on(self, ahead: int) -> int:
        """Return how many of the batches that were given a trainer has not worked on.

        Lightning's own count goes on from that of a checkpoint, which may be loaded after it has fetched a batch; so it
        is asked when a batch is given, and only what was added since then is used.
        """
        if self._counter is None:
            return 0
        left = min(self._fresh, 1 + ahead) - (self._counter() - self._marks[-1].counted)
        return max(0, min(left, len(self._marks) - 1))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken."""
        if not isinstance(state, Mapping) or "source" not in state:
            raise ConfigError(f"not a state of a Manager's batches: {str(state)[:200]}")
        states = state.get("groups", [])
        if len(states) != len(self._kept):
            raise ConfigError(
                f"the state was saved with {len(states)} stateful group processors, but there are {len(self._kept)}: "
                "use the same group_processors on one rank, or restart the epoch"
            )
        self.source.load_state_dict(state["source"])
        given = state.get("given", 0) if self._limit is not None else 0
        is_over = self._limit is not None and given >= self._limit
        next_epoch = self.epoch + 1 if is_over else state.get("next_epoch")
        if next_epoch is not None:
            self.source.set_epoch(next_epoch)
            self._begin(0)
            return
        for group, one in zip(self._kept, states, strict=True):
            group.load_state_dict(one)
        self._begin(given)


def _each(processor: Callable[[Any], Any], batches: Iterator[Any]) -> Iterator[Any]:
    # Not map: a StopIteration of a processor would end the epoch, and no one would know.
    for batch in batches:
        yield processor(batch)
