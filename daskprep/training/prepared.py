"""What the functions return that find, write or stream the rows of managers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch.distributed
from torch.utils.data import Dataset as TorchDataset

from daskprep.errors import ConfigError, DaskprepError
from daskprep.loader.ranks import Ranks, is_distributed
from daskprep.training.examples import check_examples, is_encoded, is_stream


class PreparedData:
    """Calls each function that writes or finds rows once, however many managers share it, on the first rank alone.

    A frame in memory is written anew by each call, and a dataset that is written anew takes the place of the one that
    other ranks have open.
    """

    def __init__(self) -> None:
        # The function is kept, so that no other one gets its id. None instead of a stream: each manager of each rank
        # goes through one of its own. So do ranks with a dataset of torch, which may not be sent to other processes.
        self._results: dict[tuple[int, int], tuple[Any, Any]] = {}

    def call(self, all_data: Iterable[Any]) -> None:
        """Call the functions among the data of managers, on whichever rank this is."""
        for data in all_data:
            if _is_function(data) and not _rank_parameters(data):
                self._call_once(data)

    def result(self, data: Any, ranks: Ranks) -> Any:
        """Return what a manager's data stands for: what it returns, if it is a function, or itself."""
        if not _is_function(data):
            return data
        rank_parameters = _rank_parameters(data)
        if rank_parameters:
            result = _check_result(data, data(**{name: getattr(ranks, name) for name in rank_parameters}))
            if not is_encoded(result):
                raise ConfigError(
                    f"data: {data!r} takes {rank_parameters[0]} and returned examples, which ranks share: return all of them, "
                    f"without {rank_parameters[0]}"
                )
            return result
        result = run_on_first_rank(lambda: self._call_once(data))
        return _check_result(data, data()) if result is None else result

    def _call_once(self, function: Callable[[], Any]) -> Any:
        # Each look at a method of an object makes another one.
        key = id(getattr(function, "__self__", None)), id(getattr(function, "__func__", function))
        if key not in self._results:
            result = _check_result(function, function())
            is_per_rank = is_stream(result) or (isinstance(result, TorchDataset) and is_distributed())
            self._results[key] = function, None if is_per_rank else result
        return self._results[key][1]

    def __getstate__(self) -> dict[str, Any]:
        # Another process has other ids.
        return {"_results": {}}


def run_on_first_rank(make: Callable[[], Any]) -> Any:
    """Return what the first rank makes, on all of them if torch.distributed runs; an error there is one everywhere."""
    if not is_distributed():
        return make()
    sent: list[Any] = [None, None]
    try:
        if torch.distributed.get_rank() == 0:
            sent[0] = make()
    except BaseException as error:
        sent[1] = f"{type(error).__name__}: {error}"
        raise
    finally:
        # Those who wait are told, rather than left waiting.
        torch.distributed.broadcast_object_list(sent, src=0)
    if sent[1] is not None:
        raise DaskprepError(f"rank 0 failed to prepare the data: {sent[1]}")
    return sent[0]


def _is_function(data: Any) -> bool:
    return callable(data) and not is_encoded(data)


def _rank_parameters(function: Callable[..., Any]) -> list[str]:
    """Return which of rank and world_size a function asks for: then what it makes is for one rank."""
    parameters = inspect.signature(function).parameters
    return [name for name in ("rank", "world_size") if name in parameters]


def _check_result(function: Callable[..., Any], result: Any) -> Any:
    if not is_encoded(result):
        check_examples(result, f"data: {function!r} returned ")
    return result
