"""One pass over a dataset that computes the measures of all columns, with memory independent of the number of rows."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from daskprep.dataset import Dataset, Split
from daskprep.features.binary import Binary, LearnedBinary
from daskprep.report.associations import RowSample
from daskprep.report.measures import Column
from daskprep.report.reporters import REPORTERS, ColumnReporter
from daskprep.steps.base import MISSING
from daskprep.storage.arrays import ROW_ID

_WINDOW_BYTES = 4_000_000
_MAX_THREADS = 4

T = TypeVar("T")
R = TypeVar("R")
_Task = tuple[Split, Sequence[Column], int, int]  # columns, and start and stop of rows, that are read together


def choose_reporter(column: Column) -> ColumnReporter:
    """Return the charts and the measure for a column."""
    semantic_type = column.feature.semantic_type
    return REPORTERS["series" if semantic_type == "numbers" and not column.output.is_scalar else semantic_type]


def list_columns(dataset: Dataset) -> list[Column]:
    """Return all outputs of a dataset with their features and learned states, missing indicators included."""
    outputs = {output.name: output for output in dataset.layout.outputs}
    columns = []
    for name, feature in dataset.features.items():
        for suffix in feature.outputs:
            learned = dataset.learned[name].of_output(suffix)
            columns.append(Column(name, outputs[name + suffix], feature, learned))
        if feature.missing_indicator:
            columns.append(
                Column(name, outputs[name + MISSING], Binary(), LearnedBinary(bool2str=("present", "missing")))
            )
    return columns


def gather(
    splits: Sequence[Split], columns: Sequence[Column], sample: RowSample | None = None
) -> dict[str, dict[str, Any]]:
    """Return the results of the measures over all rows, by output and split.

    Images and audio have no measure: their result is the first split itself. Rows of the first split are added to
    `sample`, unless None.
    """
    measured = [column for column in columns if choose_reporter(column).measure is not None]
    summaries: dict[str, dict[str, Any]] = {column.output.name: {splits[0].name: splits[0]} for column in columns}
    summaries |= {column.output.name: {} for column in measured}

    def measure(task: _Task) -> tuple[dict[str, Any], Any]:
        split, columns, start, stop = task
        rows = split.read([column.output.name for column in columns], start, stop)
        is_sampled = sample is not None and split is splits[0] and columns[0].output.is_scalar
        return dict(_measure_columns(columns, rows)), sample.sample_window(
            rows, start, stop
        ) if sample and is_sampled else None

    tasks = [task for split in splits for task in _make_tasks(split, measured)]
    for (split, *_), (results, sample_part) in zip(tasks, _map_in_order(measure, tasks), strict=True):
        if sample and sample_part:
            sample.add(sample_part)
        for name, result in results.items():
            by_split = summaries[name]
            by_split[split.name] = by_split[split.name] + result if split.name in by_split else result
    return summaries


def _measure_columns(columns: Sequence[Column], rows: Mapping[str, Any], index: Any = ...) -> Iterator[tuple[str, Any]]:
    """Yield name and measure of each column for the rows at `index`; `rows` are arrays by output."""
    for column in columns:
        measure = choose_reporter(column).measure
        assert measure is not None
        yield column.output.name, measure(column, rows[column.output.name][index])


def _make_tasks(split: Split, columns: Sequence[Column]) -> Iterator[_Task]:
    """Yield the tasks of a split: scalars together, because they are stored in one table, other outputs one by one."""
    groups = [[column for column in columns if column.output.is_scalar]]
    groups += [[column] for column in columns if not column.output.is_scalar]
    for group in filter(None, groups):
        for start, stop in split_windows(split, sum(column.output.row_bytes for column in group)):
            yield split, group, start, stop


def split_windows(split: Split, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield start and stop of windows of complete blocks, each of a few megabytes or one block."""
    block_rows = split.layout.block_rows
    step = max(1, _WINDOW_BYTES // max(1, row_bytes * block_rows)) * block_rows
    for start in range(0, len(split), step):
        yield start, min(start + step, len(split))


def _map_in_order(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield the results in order, computed on threads, with few pending results because each takes memory."""
    threads = min(_MAX_THREADS, os.cpu_count() or 1)
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="daskprep-report") as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


# -- balancing


def count_source_rows(split: Split, columns: Sequence[Column]) -> tuple[int, dict[str, Any]]:
    """Return the number of distinct source rows in a split, and the measures over these rows, by output.

    Each row that balancing repeated is counted once. Memory is one bit per row of the source.
    """
    seen = np.zeros(0, np.uint8)
    distinct = 0
    before: dict[str, Any] = {}
    names = [column.output.name for column in columns]
    for start, stop in split_windows(split, sum(column.output.row_bytes for column in columns) + ROW_ID.row_bytes):
        rows = split.read([ROW_ID.name, *names], start, stop)
        ids, first = np.unique(rows[ROW_ID.name], return_index=True)
        if ids[-1] >> 3 >= len(seen):
            seen = np.concatenate([seen, np.zeros(int(ids[-1] >> 3) + 1, np.uint8)])
        byte_indices, bits = ids >> 3, np.left_shift(1, ids & 7).astype(np.uint8)
        new = seen[byte_indices] & bits == 0
        np.bitwise_or.at(seen, byte_indices[new], bits[new])
        distinct += int(np.count_nonzero(new))
        for name, result in _measure_columns(columns, rows, first[new]):
            before[name] = before[name] + result if name in before else result
    return distinct, before
