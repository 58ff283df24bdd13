"""Differences between a finished dataset and the write that would replace it, for messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from daskprep.display import format_count
from daskprep.state import METADATA, state_files
from daskprep.storage import Folder
from daskprep.storage.manifest import FileEntry, Manifest
from daskprep.writing.recipe import Options, Recipe

_MAX_LISTED = 3
_MAX_CHARACTERS = 60


def differences(
    root: Folder, committed: Manifest, recipe: Recipe, source: Mapping[str, Any] | None, options: Options
) -> str:
    """Return the differences between a finished dataset and a write as text: rows, features, parameters, options."""
    stored: dict[str, Any] = {}
    with suppress(FileNotFoundError, ValueError):  # a damaged file is reported when the dataset is read
        stored = json.loads((root / committed.version).read(METADATA))
    requested = json.loads(json.dumps(recipe.describe(None)))
    messages = [
        *_compare_sources(committed.source, source),
        *_compare_features(stored.get("features", {}), requested["features"]),
        *_compare_parameters(
            stored, requested, ("split", "balance", "targets", "weight", "sample", "sample_seed", "fit_on")
        ),
        *_compare_parameters(committed.settings, options.settings, options.settings.keys()),
    ]
    if not messages and recipe.learned is not None:
        fitted = state_files(recipe.describe(recipe.learned))[METADATA]
        if committed.files.get(METADATA) != FileEntry.from_data(METADATA, fitted):
            messages = ["its fitted state differs"]
    return "; ".join(messages) or "another version of daskprep wrote it, or its features read other files"


def _compare_sources(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the differences between the records of two sources as text."""
    if now is None:
        yield "the rows cannot be compared with its rows (version=... names them)"
    elif before == now:
        return
    elif before is None or describe_source(before) != describe_source(now):
        old_source = "rows that were not recorded" if before is None else describe_source(before)
        yield f"it was written from {old_source}, not from {describe_source(now)}"
    elif "files" in now:
        stamps = {name: rest for name, *rest in before["files"]}
        changed = [name for name, *rest in now["files"] if stamps.get(name) != rest]
        yield (
            f"{_join_names(changed)} changed since it was written"
            if changed
            else "its files were read with other options"
        )
    else:
        yield f"it was written from {describe_source(before)} with other cells or columns"


def describe_source(record: Mapping[str, Any]) -> str:
    """Return a description of the rows that the record of a source identifies."""
    if "splits" in record:
        return ", ".join(f"{describe_source(one)} ({name})" for name, one in record["splits"].items())
    if "files" in record:
        return _join_names([name for name, *_ in record["files"]])
    if "version" in record:
        return f'version="{record["version"]}"'
    if "fingerprint" in record:
        return "a Hugging Face dataset"
    return f"{format_count(record['rows'], 'row')} in memory" if "rows" in record else f"rows of {record!s:.100}"


def _join_names(names: Sequence[str]) -> str:
    shown = ", ".join(f'"{name}"' for name in names[:_MAX_LISTED])
    return f"{shown} and {len(names) - _MAX_LISTED:,} more" if len(names) > _MAX_LISTED else shown


def _compare_features(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences between the saved features of a dataset and new ones as text."""
    for names, verb in (
        ([name for name in before if name not in now], "has"),
        ([name for name in now if name not in before], "lacks"),
    ):
        if names:
            yield f"it {verb} {'feature' if len(names) == 1 else 'features'} {_join_names(names)}"
    changed = []
    for name in (name for name in now if name in before):
        if before[name]["type"] != now[name]["type"]:
            changed.append(f'feature "{name}" is a {before[name]["type"]}, not a {now[name]["type"]}')
        else:
            old, new = before[name]["params"], now[name]["params"]
            changed += [f'feature "{name}": {text}' for text in _compare_parameters(old, new, {**old, **new})]
    yield from changed[:_MAX_LISTED]
    if len(changed) > _MAX_LISTED:
        yield f"{format_count(len(changed) - _MAX_LISTED, 'more difference')} of features"
    if not changed and [name for name in before if name in now] != [name for name in now if name in before]:
        yield "its features have another order"


def _compare_parameters(before: Mapping[str, Any], now: Mapping[str, Any], names: Any) -> Iterator[str]:
    """Yield the parameters among `names` with different values, as text."""
    for name in names:
        if before.get(name) != now.get(name):
            old, new = (_shorten(values.get(name)) for values in (before, now))
            yield f"{name} is {old}, not {new}"


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."
