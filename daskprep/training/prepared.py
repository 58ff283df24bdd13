"""Results of the functions that write, find or stream the data of managers."""

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
    """Calls each function that writes or finds data once, for all managers that share it, on the first rank only.

    Each call writes a frame in memory again, and the new dataset would replace the one that other ranks have open.
    """

    def __init__(self) -> None:
        # Keeping the function prevents another one from getting its id. None replaces a stream, because each manager
        # of each rank needs a separate one, and a torch dataset on several ranks, because it may not be picklable.
        self._results: dict[tuple[int, int], tuple[Any, Any]] = {}

    def call(self, all_data: Iterable[Any]) -> None:
        """Call the functions among the data of managers on this rank, except functions of a rank."""
        for data in all_data:
            if _is_function(data) and not _rank_parameters(data):
                self._call_once(data)

    def result(self, data: Any, ranks: Ranks) -> Any:
        """Return the data of a manager: the result of a function, or the data itself."""
        if not _is_function(data):
            return data
        rank_parameters = _rank_parameters(data)
        if rank_parameters:
            result = _check_result(data, data(**{name: getattr(ranks, name) for name in rank_parameters}))
            if not is_encoded(result):
                raise ConfigError(
                    f"data: {data!r} takes {rank_parameters[0]} and returned examples, which ranks share: return all "
                    f"of them, without {rank_parameters[0]}"
                )
            return result
        result = run_on_first_rank(lambda: self._call_once(data))
        return _check_result(data, data()) if result is None else result

    def _call_once(self, function: Callable[[], Any]) -> Any:
        """Return the result of a function, calling it only if it was not called before."""
        # Each access to a bound method creates a new object, with another id.
        key = id(getattr(function, "__self__", None)), id(getattr(function, "__func__", function))
        if key not in self._results:
            result = _check_result(function, function())
            is_per_rank = is_stream(result) or (isinstance(result, TorchDataset) and is_distributed())
            self._results[key] = function, None if is_per_rank else result
        return self._results[key][1]

    def __getstate__(self) -> dict[str, Any]:
        # Ids are valid in one process only.
        return {"_results": {}}


def run_on_first_rank(make: Callable[[], Any]) -> Any:
    """Call a function on the first rank and return its result on all ranks; its error is raised on all of them, too."""
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
        # Also after an error, because other ranks wait for the broadcast.
        torch.distributed.broadcast_object_list(sent, src=0)
    if sent[1] is not None:
        raise DaskprepError(f"rank 0 failed to prepare the data: {sent[1]}")
    return sent[0]


def _is_function(data: Any) -> bool:
    return callable(data) and not is_encoded(data)


def _rank_parameters(function: Callable[..., Any]) -> list[str]:
    """Return the parameters `rank` and `world_size` that a function has: then its result is for one rank."""
    parameters = inspect.signature(function).parameters
    return [name for name in ("rank", "world_size") if name in parameters]


def _check_result(function: Callable[..., Any], result: Any) -> Any:
    if not is_encoded(result):
        check_examples(result, f"data: {function!r} returned ")
    return result
