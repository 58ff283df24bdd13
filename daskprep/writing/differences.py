"""How a finished dataset differs from the one that a write would put in its place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from daskprep.display.words import count
from daskprep.state import METADATA, state_files
from daskprep.storage import Folder
from daskprep.storage.manifest import FileEntry, Manifest
from daskprep.writing.recipe import Options, Recipe

_LISTED = 3
_CHARACTERS = 60


def differences(
    root: Folder, committed: Manifest, recipe: Recipe, source: Mapping[str, Any] | None, options: Options
) -> str:
    """Return what differs between a finished dataset and a write: rows, features, parameters, options."""
    stored: dict[str, Any] = {}
    with suppress(FileNotFoundError, ValueError):  # a damaged file is reported by whoever reads it
        stored = json.loads((root / committed.version).read(METADATA))
    wanted = json.loads(json.dumps(recipe.describe(None)))
    found = [
        *_of_sources(committed.source, source),
        *_of_features(stored.get("features", {}), wanted["features"]),
        *_of_parameters(stored, wanted, ("split", "balance", "targets", "weight", "sample", "sample_seed", "fit_on")),
        *_of_parameters(committed.settings, options.settings, options.settings.keys()),
    ]
    if not found and recipe.learned is not None:
        fitted = state_files(recipe.describe(recipe.learned))[METADATA]
        if committed.files.get(METADATA) != FileEntry.of(METADATA, fitted):
            found = ["its fitted state differs"]
    return "; ".join(found) or "another version of daskprep wrote it, or its features read other files"


def _of_sources(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> Iterator[str]:
    if now is None:
        yield "the rows cannot be compared with its rows (version=... names them)"
    elif before == now:
        return
    elif before is None or rows_of(before) != rows_of(now):
        known = "rows that were not recorded" if before is None else rows_of(before)
        yield f"it was written from {known}, not from {rows_of(now)}"
    elif "files" in now:
        stamps = {name: rest for name, *rest in before["files"]}
        changed = [name for name, *rest in now["files"] if stamps.get(name) != rest]
        yield (
            f"{_listed(changed)} changed since it was written" if changed else "its files were read with other options"
        )
    else:
        yield f"it was written from {rows_of(before)} with other cells or columns"


def rows_of(record: Mapping[str, Any]) -> str:
    """Return a name for the rows that a record identifies."""
    if "splits" in record:
        return ", ".join(f"{rows_of(one)} ({name})" for name, one in record["splits"].items())
    if "files" in record:
        return _listed([name for name, *_ in record["files"]])
    if "version" in record:
        return f'version="{record["version"]}"'
    if "fingerprint" in record:
        return "a Hugging Face dataset"
    return f"{count(record['rows'], 'row')} in memory" if "rows" in record else f"rows of {record!s:.100}"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f'"{name}"' for name in names[:_LISTED])
    return f"{shown} and {len(names) - _LISTED:,} more" if len(names) > _LISTED else shown


def _of_features(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for names, verb in (
        ([name for name in before if name not in now], "has"),
        ([name for name in now if name not in before], "lacks"),
    ):
        if names:
            yield f"it {verb} {'feature' if len(names) == 1 else 'features'} {_listed(names)}"
    changed = []
    for name in (name for name in now if name in before):
        if before[name]["type"] != now[name]["type"]:
            changed.append(f'feature "{name}" is a {before[name]["type"]}, not a {now[name]["type"]}')
        else:
            old, new = before[name]["params"], now[name]["params"]
            changed += [f'feature "{name}": {one}' for one in _of_parameters(old, new, {**old, **new})]
    yield from changed[:_LISTED]
    if len(changed) > _LISTED:
        yield f"{count(len(changed) - _LISTED, 'more difference')} of features"
    if not changed and [name for name in before if name in now] != [name for name in now if name in before]:
        yield "its features have another order"


def _of_parameters(before: Mapping[str, Any], now: Mapping[str, Any], names: Any) -> Iterator[str]:
    for name in names:
        if before.get(name) != now.get(name):
            old, new = (_short(one.get(name)) for one in (before, now))
            yield f"{name} is {old}, not {new}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}..."
