"""Rows of a dataset that match values of keys, or a function of decoded rows; both are read block by block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from daskprep.columns.display import join_names
from daskprep.columns.permutation import Integers
from daskprep.dataset import Dataset
from daskprep.dataset.split import Split
from daskprep.errors import ConfigError, did_you_mean, warn
from daskprep.features import Key
from daskprep.features.arrays import decode_column
from daskprep.features.base import all_outputs
from daskprep.features.key import MISSING_KEY
from daskprep.features.media import MediaFeature
from daskprep.sources.frames import frame_of_columns, is_cell, table_from_pandas

_UNKNOWN = Key().parse(pa.array(["<UNK>"])).to_numpy()


def find_matches(
    dataset: Dataset, where: Any, parts: Iterable[int], *, warns: bool = True
) -> dict[int, dict[str, Integers]]:
    """Return the positions in each split of these parts, as stored, of the rows that match.

    Values are compared as `Key` stores them. ConfigError for a `where` that cannot be compared, and with `warns` a
    warning about values without a row.
    """
    values = {"where": [where]} if callable(where) else read_values(dataset, where)
    keys = {} if callable(where) else {name: to_keys(name, cells) for name, cells in values.items()}
    matched = {name: np.zeros(len(own), bool) for name, own in values.items()}
    unknown = dict.fromkeys(values, 0)
    matches: dict[int, dict[str, Integers]] = {}
    for number in parts:
        for split_name, split in dataset.datasets[number].splits.items():
            positions = []
            for block in range(split.layout.blocks(split_name)):
                rows = split.layout.block_range(split_name, block)
                cells = {name: _read_keys(split, name, rows) for name in keys}
                mask = _call(where, split, rows) if callable(where) else np.ones(len(rows), bool)
                for name, own in cells.items():
                    mask &= np.isin(own, keys[name])
                    unknown[name] += int(np.count_nonzero(own == _UNKNOWN))
                for name in values:
                    matched[name] |= np.isin(keys[name], cells[name][mask]) if keys else mask.any()
                positions.append(np.flatnonzero(mask) + rows.start)
            if any(map(len, positions)):
                stored = split._find_stored(np.concatenate(positions))
                matches.setdefault(number, {})[split_name] = np.asarray(stored)
    for name, passed in values.items() if warns else ():
        if absent := [repr(value) for value, is_matched in zip(passed, matched[name], strict=True) if not is_matched]:
            others = f", or some of the {unknown[name]:,} rows whose value has no id" if unknown[name] else ""
            warn(f"delete: {name!r}: no row matches {join_names(absent, 5)}{others}")
    return matches


def read_values(dataset: Dataset, where: Any) -> dict[str, list[Any]]:
    """Return the values of each key as lists; ConfigError for unknown keys, and images and audio."""
    if not isinstance(where, Mapping) or not where:
        raise ConfigError(f"delete: where={where!r:.80}: expected values by key, as in {{'customer': 17}}")
    for name in where:
        if isinstance(dataset.features.get(name), MediaFeature | None):
            raise ConfigError(
                f"delete: {dataset.url} has no key {name!r}.{did_you_mean(name, dataset.features)} Use one of "
                f"{join_names(list(dataset.features), 10)}, or row ids, or write the rows with "
                f"Preprocessor(keys=[{name!r}])"
            )
    return {name: [cells] if is_cell(cells) else list(cells) for name, cells in where.items()}


def to_keys(name: str, values: list[Any]) -> Integers:
    """Return values as keys; ConfigError for a missing one."""
    table = table_from_pandas(frame_of_columns({name: values}), [name])
    keys: Integers = Key()._parse_columns([name], table[name]).to_numpy()
    if (keys == MISSING_KEY).any():
        raise ConfigError(f"delete: where: {name!r} has a missing value: pass the row ids of rows without one")
    return keys


def _read_keys(split: Split, name: str, rows: range) -> Integers:
    """Return a key, or the decoded values of another feature as keys."""
    feature = split.dataset.features[name]
    arrays = {output: split._read(name + output, rows)[name + output] for output in all_outputs(feature)}
    if isinstance(feature, Key):
        return arrays[""]
    decoded = decode_column(feature, arrays, split.dataset.learned[name])
    keys: Integers = Key()._parse_columns([name], pa.chunked_array([decoded])).to_numpy()
    return keys


def _call(function: Any, split: Split, rows: range) -> np.ndarray:
    """Return the mask of a function of decoded rows; ConfigError for others than booleans."""
    columns = [output.name for output in split.layout.outputs if not output.stores_cells]
    mask = np.array(function(split.dataset.decode(split._read(columns, rows))))
    if mask.shape != (len(rows),) or mask.dtype != bool:
        raise ConfigError(
            f"delete: the function returned {mask.dtype} of shape {mask.shape} for {len(rows):,} rows: it must return "
            "True or False for each row"
        )
    return mask
