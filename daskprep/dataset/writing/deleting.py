"""Rows deleted from a dataset: hidden by a list that is written last, and later removed from its files."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from daskprep.columns.permutation import Integers
from daskprep.dataset import Dataset, FoldedDataset
from daskprep.dataset.opening import open_folder
from daskprep.dataset.segments import (
    REJECTED,
    HiddenRows,
    encode_deleted,
    read_deleted,
    sort_distinct,
    visible_cells,
)
from daskprep.dataset.writing.encoded import EncodedOrCells, take
from daskprep.dataset.writing.matching import find_matches
from daskprep.dataset.writing.parts import NewFile, encode_part
from daskprep.dataset.writing.redacting import LostTokens, Removal, find_lost_tokens, kept_fields, redacted_states
from daskprep.dataset.writing.rejects import encode_rejects
from daskprep.dataset.writing.rewriting import StoredPart, read_row_ids, write_next_version
from daskprep.dataset.writing.versions import finish_cleaning, roll_forward
from daskprep.errors import ConfigError
from daskprep.rows.saved import parse_json
from daskprep.storage.arrays import ROW_ID, Output
from daskprep.storage.checksum import byte_view
from daskprep.storage.files import Folder
from daskprep.storage.layout import FOLD_PREFIX
from daskprep.storage.manifest import APPENDED, NEXT, RECEIPT, Manifest, Versions, part_folder, read_versions
from daskprep.storage.reading import read_exact
from daskprep.storage.tables import REJECTS

PURGED_ROW_ID = -1
"""The row id of a row that was removed: its numbers are 0, and it has no media."""
_PART_FOLDER = re.compile(rf"part-[0-9]{{5,}}|{FOLD_PREFIX}[0-9]+")
_MAX_NAMED = 5
_NO_ROWS = np.empty(0, np.int64)


def delete_rows(dataset: Dataset, rows: Any, where: Any, part: int | None, *, warns: bool = True) -> Dataset:
    """Hide rows of the latest version of a dataset in a new one, and return it; `Dataset.delete` has the parameters."""
    root = editable_root(dataset, "delete")
    if (rows is None) == (where is None):
        raise ConfigError("delete: pass either row ids, or where= with values of keys, as in where={'customer': 17}")
    ids = np.unique(np.asarray(() if rows is None else rows))
    if rows is not None and (np.ndim(rows) != 1 or (ids.size and ids.dtype.kind not in "iu")):
        raise ConfigError(
            f"delete: {rows!r:.80} is no list of row ids: pass the numbers of the rows in the source, or "
            "np.flatnonzero(mask) for a boolean mask of its rows"
        )
    with root.lock():
        roll_forward(root)
        current = open_folder(root, dataset.base_dir, trusted=dataset.trusted)
        parts = current._stored.datasets
        if part not in (*range(len(parts)), *([None] if len(parts) == 1 or rows is None else [])):
            raise ConfigError(
                f"delete: part={part!r}: {root.url} has {len(parts)} parts, each with rows from 0: pass part=0 to "
                f"{len(parts) - 1} for the rows of one of them"
            )
        hidden = [dict(one.hidden) for one in current.segments]
        numbers = range(len(parts)) if part is None else [part]
        matches = (
            {number: _find_rows(parts[number], ids, root.url) for number in numbers}
            if where is None
            else find_matches(current, where, numbers, warns=warns)
        )
        before = encode_deleted(hidden)
        for number, positions in matches.items():
            own = hidden[number]
            own |= {
                name: sort_distinct(np.concatenate([own.get(name, _NO_ROWS), now])) for name, now in positions.items()
            }
        name, data = encode_deleted(hidden)
        if (name, data) == before:
            return current
        root.write(name, data)
        versions = listed_versions(root, current)
        states = (*versions.states, (len(parts), name))
        root.write(APPENDED, dataclasses.replace(versions, states=states).to_bytes())
        return open_folder(root, dataset.base_dir, trusted=dataset.trusted)


def editable_root(dataset: Dataset, call: str) -> Folder:
    """Return the folder of a dataset; ConfigError for folds, and for a part or several datasets opened as one."""
    if isinstance(dataset, FoldedDataset):
        change = "with this feature" if call == "add" else "without these rows"
        raise ConfigError(f"{dataset.url} has folds, so {call} is not possible: write it again {change}")
    if dataset.is_joined:
        raise dataset.single_dataset_error(f"{call}()")
    root = dataset.root
    if _PART_FOLDER.fullmatch(root.path.rpartition("/")[2]):
        raise ConfigError(f"{root.url} is a part of a dataset: open the dataset, and call {call} there")
    return root


def listed_versions(root: Folder, dataset: Dataset) -> Versions:
    """Return the versions of a dataset; without a list of them, each part adds a version."""
    versions, digests = read_versions(root), [one.digest for one in dataset.manifests]
    return Versions.of_parts(digests) if versions is None or versions.digests[0] != digests[0] else versions


def remove_unlisted_rows(root: Folder, versions: Versions) -> None:
    """Remove the files of deleted rows that no version has."""
    kept = {state[1] for state in versions.states if state is not None}
    root.remove(*(one for one in root.children() if one.startswith("deleted-") and one not in kept))


def _find_rows(part: Dataset, ids: Integers, url: str) -> dict[str, Integers]:
    """Return the positions of row ids in each split of a part, and rejected ids; ConfigError for unknown ids."""
    rejected = np.intersect1d(part.rejects()[ROW_ID.name].to_numpy(), ids)
    rows, known = {REJECTED: [rejected]} if len(rejected) else {}, [rejected]
    for name, start, stored in read_row_ids(part):
        if len(at := np.flatnonzero(np.isin(stored, ids[ids >= 0]))):
            rows.setdefault(name, []).append(at + start)
            known.append(stored[at])
    if len(unknown := np.setdiff1d(ids, np.concatenate(known))):
        shown = ", ".join(map(str, unknown[:_MAX_NAMED].tolist())) + " ..." * (len(unknown) > _MAX_NAMED)
        raise ConfigError(
            f"delete: {url} has no row {shown}: pass row ids of its splits or rejects that were not purged"
        )
    return {name: np.concatenate(own) for name, own in rows.items()}


def purge_rows(dataset: Dataset, others: Sequence[Dataset] = ()) -> dict[str, Any]:
    """Remove the deleted rows from the files of a dataset, and return the receipt, as `Dataset.purge` documents it.

    The rows of `others` with the same fitted state count as well: tokens of their deleted rows are removed, and tokens
    of their other rows stay.

    The receipt is written twice: before the list of versions, which commits, and at the end. If the work is killed in
    between, the next call completes it, and has the same receipt but for the time. Receipts decide nothing else.
    """
    root = editable_root(dataset, "purge")
    with root.lock():
        roll_forward(root)
        plan = _Purge.of(root, dataset)
        parts, versions = plan.parts, plan.versions
        unfinished = read_unfinished(root, versions)
        has_rows, lost = any(any(map(len, one.values())) for one in plan.rows), None
        if has_rows or others:
            removals = [plan.removal, *(_Purge.of(one.root, one).removal for one in others)]
            lost = find_lost_tokens(removals)
        if lost is not None and (has_rows or any(redacted_states(parts, lost))):
            name = f"purge-{max(receipt_numbers(root), default=0) + 1:05d}.json"
            versions, unfinished[name] = _commit(root, plan, lost, name)
            roll_forward(root)
        remove_unlisted_rows(root, versions)
        current = open_folder(root, dataset.base_dir, trusted=dataset.trusted)
        finish_cleaning(root, current.manifest)  # a killed write may have left rows
        current.clear_cache(unused=True)
        receipt: dict[str, Any] = {
            "row_ids": [[] for _ in parts],
            "files": {},
            "removed_versions": [],
            "finished": None,
        }
        for name, receipt in unfinished.items():
            receipt["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
            root.write(name, to_json(receipt))
        return receipt


def receipt_numbers(root: Folder) -> list[int]:
    """Return the numbers of the receipts of a dataset."""
    return sorted(int(one.partition("-")[2][:-5]) for one in root.children() if RECEIPT.fullmatch(one))


class _Purge(NamedTuple):
    """The rows to remove from the latest version of a dataset."""

    parts: Sequence[Dataset]
    versions: Versions
    rows: Sequence[HiddenRows]  # by part
    removal: Removal

    @classmethod
    def of(cls, root: Folder, dataset: Dataset) -> _Purge:
        """Return the deleted rows that the files of a dataset still have."""
        current = open_folder(root, dataset.base_dir, trusted=dataset.trusted)
        parts, versions = current._stored.datasets, listed_versions(root, current)
        count, deleted = versions.states[-1] or (len(parts), None)
        hidden = read_deleted(root, deleted, count)
        rows = [_still_stored(*one) for one in zip(parts, hidden, strict=True)]
        purged = sum(
            len(own[split]) - len(positions)
            for own, stored in zip(hidden, rows, strict=True)
            for split, positions in stored.items()
            if split != REJECTED
        )
        positions = [
            (part[split], own[split])
            for part, own in zip(parts, rows, strict=True)
            for split in own.keys() & part.splits.keys()
        ]
        has_rejected = any(len(own[REJECTED]) for own in rows)
        return cls(parts, versions, rows, Removal(current, positions, has_rejected, purged))


def read_unfinished(root: Folder, versions: Versions) -> dict[str, dict[str, Any]]:
    """Return the receipts without a time by file name, and remove receipts of a purge that was not committed.

    A file that is no receipt is left alone: only people need it.
    """
    unfinished = {}
    for name in sorted(filter(RECEIPT.fullmatch, root.children())):
        with suppress(OSError, ValueError, KeyError, TypeError):
            receipt = parse_json(root.read(name))
            if receipt["finished"] is not None or not {"row_ids", "files"} <= receipt.keys():
                continue
            removed = [versions.states[number - 1 : number] for number in receipt["removed_versions"]]
            is_listed = bool(receipt["manifests"]) and set(receipt["manifests"]) <= set(versions.digests)
            if all(one == (None,) for one in removed) if removed else is_listed:  # no version, if no row was removed
                unfinished[name] = receipt
            else:
                root.remove(name)
    return unfinished


def to_json(receipt: Mapping[str, Any]) -> bytes:
    """Return the content of the file of a receipt."""
    return (json.dumps(receipt, indent=1, sort_keys=True) + "\n").encode()


def _still_stored(part: Dataset, hidden: HiddenRows) -> HiddenRows:
    """Return the deleted rows that the files of a part still have."""
    stored = {REJECTED: np.intersect1d(part.rejects()[ROW_ID.name].to_numpy(), hidden.get(REJECTED, _NO_ROWS))}
    for name in hidden.keys() & part.manifest.layout.rows.keys():
        ids = part[name]._read(ROW_ID.name, hidden[name])[ROW_ID.name]
        stored[name] = hidden[name][ids != PURGED_ROW_ID]
    return stored


def _commit(root: Folder, plan: _Purge, lost: LostTokens, name: str) -> tuple[Versions, dict[str, Any]]:
    """Write the parts again without rows and lost tokens, then the receipt, and then the list of versions.

    Return the new list and the receipt.
    """
    parts, versions, rows, (current, *_) = plan
    digests, ids, files = list(versions.digests), [], dict[str, Any]()
    changed = [number for number, own in enumerate(rows) if any(map(len, own.values()))]
    for number, (part, own, state) in enumerate(zip(parts, rows, redacted_states(parts, lost), strict=True)):
        splits = [part[split]._read(ROW_ID.name, own[split])[ROW_ID.name] for split in own.keys() & part.splits.keys()]
        ids.append(np.unique(np.concatenate([own[REJECTED], *splits])).tolist())
        if number not in changed and not state:
            continue
        manifest, digests_of_files = _rewrite(part, own, state)
        folder = f"{part_folder(number)}/" if number else ""
        files |= {f"{folder}{manifest.version}/{file}": pair for file, pair in digests_of_files.items()}
        part.root.write(NEXT, manifest.to_bytes())
        digests[number] = manifest.digest
    _, deleted = versions.states[-1] or (0, None)
    first = min(changed, default=len(parts))
    states = [one if one and (one[1] == deleted or one[0] <= first) else None for one in versions.states]
    removed = [number for number, one in enumerate(versions.states, start=1) if one != states[number - 1]]
    learned = current.learned
    receipt = {
        "row_ids": ids,
        "files": files,
        "removed_versions": removed,
        "removed_tokens": {name: sum(map(len, outputs.values())) for name, outputs in lost.items()},
        "removed_samples": {name: len(one.invalid_samples) for name, one in learned.items() if one.invalid_samples},
        "kept": {name: kept_fields(current.features[name], one) for name, one in learned.items()},
        "manifests": sorted(set(digests) - set(versions.digests)),
        "finished": None,
    }
    root.write(name, to_json(receipt))
    new = dataclasses.replace(versions, digests=tuple(digests), states=tuple(states))
    root.write(APPENDED, new.to_bytes())
    return new, receipt


def _rewrite(part: Dataset, rows: HiddenRows, state: Mapping[str, bytes]) -> tuple[Manifest, dict[str, dict[str, str]]]:
    """Write a new version of a part without `rows`, and with other files of the fitted `state` unless it is empty.

    Return its manifest, and by file that differs the SHA-256 "before" (not of new ones) and "after" (not of removed).
    """
    old = part.manifest
    removed = [*part.segments[0].state_entries] if state else []
    digests = {name: {"before": hashlib.sha256(part.files.read(name)).hexdigest()} for name in removed}

    def list_files() -> Iterator[NewFile]:
        for one in chain((NewFile(*file) for file in state.items()), _changed_files(part, rows)):
            own = digests.setdefault(one.name, {})
            if one.name in old.files and one.name not in removed:
                before = read_exact(part.files.folder, one.name, old.files[one.name].bytes)
                own["before"] = hashlib.sha256(before).hexdigest()
            own["after"] = hashlib.sha256(byte_view(one.data)).hexdigest()
            yield one

    missing = None if old.missing_cells is None else visible_cells(old.missing_cells, rows)
    return write_next_version(part, list_files(), removed, missing_cells=missing), digests


def _changed_files(part: Dataset, rows: HiddenRows) -> Iterator[NewFile]:
    """Yield each file of a part that has these rows without them, except its state."""
    if len(rows[REJECTED]):
        table = part.rejects()
        kept = table.filter(pa.array(~np.isin(table[ROW_ID.name].to_numpy(), rows[REJECTED])))
        yield NewFile(REJECTS, encode_rejects([kept]), len(kept))
    layout = part.manifest.layout
    for name in rows.keys() & part.splits.keys():
        numbers = rows[name] // (layout.block_rows * layout.part_blocks)
        for number in np.unique(numbers).tolist():
            positions, stored = rows[name][numbers == number], StoredPart(part[name], number)
            read = functools.partial(_read_without, stored, positions - stored.range.start)
            yield from encode_part(layout, name, number, read, blocks=set((positions // layout.block_rows).tolist()))


def _read_without(part: StoredPart, removed: Integers, output: Output, start: int, stop: int) -> EncodedOrCells:
    """Return rows of an output for `encode_part`, with zeros or no cell for the positions `removed`."""
    rows, own = part.read(output, start, stop), removed[(removed >= start) & (removed < stop)] - start
    if isinstance(rows, np.ndarray):
        rows = rows.copy()
        rows[own] = PURGED_ROW_ID if output is ROW_ID else 0
        return rows
    is_kept = np.ones(len(rows), bool)
    is_kept[own] = False
    return take(rows, pa.array(np.arange(len(rows)), mask=~is_kept))
