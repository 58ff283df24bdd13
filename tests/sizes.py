"""Sizes, times and other constants of the package that tests make small, by what they mean.

A test takes the fixture `sizes`, and calls `sizes(part_bytes=500)`. Where a fixture cannot be taken, as for each
example of Hypothesis, it is `with sized(part_bytes=500)`. A constant that moves is changed here alone.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

Sizes = Callable[..., None]

CONSTANTS = {
    # Summaries
    "compact_entries": "columns.summaries.token_counts.COMPACT_ENTRIES",
    "compact_chunks": "columns.summaries.token_counts.COMPACT_CHUNKS",
    "spill_entries": "columns.summaries.token_counts.SPILL_ENTRIES",
    "spill_bytes": "columns.summaries.token_counts.SPILL_BYTES",
    "spill_group_entries": "columns.summaries.token_counts.GROUP_ENTRIES",
    "ranked_bytes": "columns.summaries.token_counts.MAX_RANKED_BYTES",
    "sum_spill_bytes": "columns.summaries.target_sums.SPILL_BYTES",
    "sum_group_bytes": "columns.summaries.target_sums.GROUP_BYTES",
    "quantile_buckets": "columns.summaries.quantiles.MAX_BUCKETS",
    "quantile_sample": "columns.summaries.quantiles._SAMPLE_SIZE",
    "sampled_text_bytes": "columns.summaries.samples.MAX_TEXT_BYTES",
    # Columns
    "kernel_bytes": "columns.kernels.BLOCK_BYTES",
    "kernel_spans": "columns.kernels.BLOCK_SPANS",
    "kernel_rows": "columns.kernels.BLOCK_ROWS",
    "kernel_slot_bits": "columns.kernels.MAX_SLOT_BITS",
    "indexed_tokens": "columns.vocabulary.MIN_INDEXED_TOKENS",
    "large_vocabulary": "passes.state.LARGE_VOCABULARY features.arrays.LARGE_VOCABULARY",
    # Sources
    "text_block_bytes": "sources.text.BLOCK_BYTES sources.json_lines.BLOCK_BYTES",
    "delimited_block_bytes": "sources.delimited._PARSED_BYTES",
    "frame_slice_rows": "sources.frames._SLICE_ROWS",
    "text_offset": "sources.arrow_types._MAX_OFFSET",
    "class_buckets": "sources.classes.MAX_BUCKETS",
    "class_count": "sources.classes.MAX_CLASSES",
    "class_rows_per_call": "sources.classes._MIN_ROWS_PER_CALL",
    # Tasks and workers
    "cores": "sources.partitions.schedulers.CPU_COUNT sources.partitions.passes.CPU_COUNT",
    "tasks_per_thread": "sources.partitions.passes._TASKS_PER_THREAD",
    "seconds_per_byte": "sources.partitions.schedulers._SECONDS_PER_BYTE",
    "worker_start_seconds": "sources.partitions.processes._START_TIMEOUT",
    "worker_answer_seconds": "sources.partitions.schedulers._TIMEOUT_SECONDS",
    "worker_removal_pause": "sources.partitions.schedulers._REMOVAL_PAUSE_SECONDS",
    "worker_watch_seconds": "sources.partitions.schedulers._WATCH_SECONDS",
    "connect_seconds": "extensions.cli.options._CONNECT_SECONDS",
    "seconds_without_bar": "sources.partitions.progress._SECONDS_WITHOUT_BAR",
    # Storage
    "part_bytes": "storage.layout._PART_BYTES",
    "request_bytes": "storage.reading._REQUEST_BYTES",
    "manifest_bytes": "storage.manifest._MAX_MANIFEST_BYTES",
    "first_retry_pause": "storage.retries._FIRST_PAUSE",
    "largest_retry_pause": "storage.retries._MAX_PAUSE",
    "open_files": "storage.local_files._OPEN_FILES",
    "lock_warning_seconds": "storage.local_files._LOCK_WARNING_SECONDS",
    "remote_timeouts": "storage.remote_files._TIMEOUTS",
    # Datasets
    "cached_row_bytes": "dataset.cache._MIN_ROW_BYTES",
    "mapped_bytes": "dataset.cache._MAX_MAPPED_BYTES",
    "mapped_chunks": "dataset.cache._MAX_MAPPED_CHUNKS",
    "table_row_bytes": "dataset.split._MAX_ROW_BYTES",
    "shown_block_bytes": "dataset.describing._MAX_BLOCK_BYTES",
    "duplicate_rows": "dataset.writing.duplicates._GROUP_ROWS",
    "duplicate_bytes": "dataset.writing.duplicates._BUFFER_BYTES",
    # Loaders
    "expanded_bytes": "dataset.loader.batches._EXPANDED_BYTES dataset.loader.batches._PART_BYTES",
    "window_batches": "dataset.loader.pipeline._MAX_BATCHES",
    "window_bytes": "dataset.loader.pipeline.SMALL_BYTES",
    "decoded_windows": "dataset.loader.pipeline._DECODED_AHEAD",
    "resident_bytes": "dataset.loader.source._SMALL_BYTES",
    "sampled_counts": "dataset.loader.sampling._MAX_COUNTS",
    # Features
    "leaf_rows": "features.bins.MIN_LEAF_ROWS",
    "encoded_classes": "features.target_encoding.MAX_CLASSES",
    "subword_words": "features.subwords._MAX_TRAINING_WORDS",
    "subword_training_characters": "features.subwords._MAX_TRAINING_CHARACTERS",
    "subword_characters": "features.subwords._MAX_CHARACTERS",
    "border_rows": "passes.borders.SHARE_ROWS",
    "border_bytes": "passes.borders.MEMORY_BYTES",
    "trimmed_rows": "serving._MIN_TRIMMED",
    "prediction_values": "rows.predictions._BATCH_VALUES",
    # Media and reports
    "gpu_bytes": "extensions.media.gpu._MAX_BYTES",
    "gpu_pixels": "extensions.media.gpu._MAX_PIXELS",
    "spectra_bytes": "extensions.media.spectra.BLOCK_BYTES",
    "spectra_samples": "extensions.media.decoders._GROUP_SAMPLES",
    "report_bytes": "extensions.report.reporters._WINDOW_BYTES",
    "report_rows": "extensions.report.findings.SAMPLE_ROWS",
}
"""For each size, the constants that hold it."""


@contextlib.contextmanager
def sized(**values: Any) -> Iterator[None]:
    """Set sizes within the block; a name or a constant that does not exist raises."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            for constant in CONSTANTS[name].split():
                module, _, attribute = constant.rpartition(".")
                patch.setattr(importlib.import_module(f"daskprep.{module}"), attribute, value)
        yield
