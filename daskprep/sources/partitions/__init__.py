"""Dask graphs: functions run over all partitions of a source, and merged results.

In: functions and partitions. Out: their results, arrays and frames. No other package builds graphs. Dask is imported
with the first name that is used, since datasets are opened and loaded without it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daskprep.sources.partitions.executors import (
        Job,
        PartitionExecutor,
        PartitionRequest,
        check_independent_partitions,
        current_annotations,
        open_executor,
    )
    from daskprep.sources.partitions.graphs import (
        Arguments,
        Work,
        build_chunked_array,
        concatenate_arrays,
        prepend_columns,
    )
    from daskprep.sources.partitions.passes import (
        build_arrays,
        build_frame,
        exchange_results,
        map_partitions,
        map_reduce,
        run_tasks,
        run_two_stages,
    )
    from daskprep.sources.partitions.schedulers import (
        Workers,
        is_distributed,
        is_in_process,
        local_workers,
        on_workers,
        run_on_every_worker,
        use_client,
        worker_threads,
    )

_MODULES = "executors", "graphs", "passes", "schedulers"


def __getattr__(name: str) -> Any:
    """Return a name of the modules above; raise AttributeError for others."""
    for module in () if name.startswith("_") else _MODULES:
        home = importlib.import_module(f"{__name__}.{module}")
        if name == module or hasattr(home, name):
            globals()[name] = value = home if name == module else getattr(home, name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
