"""Rows of a person erased from datasets, their fitted states, and saved Preprocessors and models, with one receipt."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from daskprep.columns.display import format_count, join_names
from daskprep.dataset import Dataset, open_dataset
from daskprep.dataset.opening import open_folder
from daskprep.dataset.options import Options, WriteOptions, list_options
from daskprep.dataset.writing.deleting import delete_rows, editable_root, purge_rows, receipt_numbers, to_json
from daskprep.dataset.writing.erased import ErasedKeys, digest_keys
from daskprep.dataset.writing.matching import read_values, to_keys
from daskprep.dataset.writing.redacting import extends_state, kept_fields, shares_state, without_removed
from daskprep.dataset.writing.rewriting import stored_options
from daskprep.errors import ConfigError, check_names, warn
from daskprep.features.base import all_outputs
from daskprep.passes.state import open_parent_folder
from daskprep.preprocessor import Preprocessor
from daskprep.storage.checksum import json_sha256
from daskprep.storage.security import path_text

if TYPE_CHECKING:
    from daskprep.dataset.methods import Where
    from daskprep.features import Feature, Learned
    from daskprep.sources import Rows

Path = str | os.PathLike[str]


@list_options(WriteOptions, Options)
def erase(
    datasets: Path | Dataset | Iterable[Path | Dataset],
    where: Where,
    *,
    files: Iterable[Path] = (),
    refit: Rows | Sequence[Rows] | None = None,
    trusted: bool = False,
    **options: Unpack[WriteOptions],
) -> dict[str, Any]:
    """Erase the rows of a person from datasets and fitted states, and return one receipt.

    Rows are deleted and purged in all parts and versions, with the tokens that no other row of these datasets has, and
    caches. Digests of the keys are stored, so that later writes to the same paths refuse the rows. Killed at any
    moment, the same call continues.

    Parameters
    ----------
    datasets : path, Dataset, or iterable of these
        All datasets that may have the rows.
    where : dict of str to value or list, or callable
        The rows, as for `Dataset.delete`. With a function, later writes cannot recognize the rows.
    files : iterable of paths
        Files of `Preprocessor.save` and `Preprocessor.to_onnx` with the fitted state of one of the datasets. They are
        written again.
    refit : rows, sequence of rows, or None
        The rows without the erased ones, to learn all states again and write each dataset again: for an iterable of
        datasets, a sequence in their order. Ids and scales change, so models must be trained again. None: statistics
        such as means and extremes stay as fitted. A warning and the receipt list them.
    trusted : bool
        As for `open_dataset`.
    **options
        Options of the writes of `refit`, such as `workers`, and `storage_options` of all paths. Layout options default
        to the layout of each dataset.

    Returns
    -------
    dict
        The receipt, which is also stored in the folder of each dataset, as "erased-<number>.json". For each dataset,
        "rows" and "removed_tokens" are numbers, and so is "rejects": rows without stored keys, which are not compared.
        "kept" lists by feature the fields of the fitted state that were computed with the rows. "purges" has the
        SHA-256 of the receipts of `purge`, and "refused" the digests of the keys. "files" have their SHA-256 before and
        after. "sha256" is the digest of all other entries.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> import daskprep as dp
    >>> path = tempfile.mkdtemp() + "/sales.dp"
    >>> frame = pd.DataFrame({"city": ["Rome", "Oslo", "Rome"], "customer": [16, 17, 18]})
    >>> prep = dp.Preprocessor({"city": "category"}, keys=["customer"], split=None)
    >>> dataset = prep.fit_write(frame, path)
    >>> receipt = dp.erase(path, {"customer": 17}, refit=frame[frame["customer"] != 17])
    >>> [one["rows"] for one in receipt["datasets"].values()]
    [1]
    >>> dp.open_dataset(path).vocabulary("city").tokens.to_pylist()
    ['<UNK>', 'Rome']
    """
    check_names("erase", options, WriteOptions.__annotations__)
    if wrong := {"overwrite", "allow_erased"} & options.keys():
        raise ConfigError(f"erase: leave out {join_names(sorted(wrong), 2)}: refit replaces the datasets")
    is_single = isinstance(datasets, str | os.PathLike | Dataset)
    passed: Any = [datasets] if is_single else datasets
    opened = [
        one
        if isinstance(one, Dataset)
        else open_dataset(one, storage_options=options.get("storage_options"), trusted=trusted)
        for one in passed
    ]
    sources: Any = [refit] if is_single and refit is not None else refit
    if sources is not None and (not isinstance(sources, list | tuple) or len(sources) != len(opened)):
        raise ConfigError(f"erase: refit needs a list with the rows of each of the {len(opened)} datasets")
    if not opened or len({one.url for one in opened}) < len(opened):
        raise ConfigError("erase: pass one dataset, or several different ones")
    erasure = _Erasure(opened, where, [path_text(one, "file") for one in files], trusted=trusted)
    for dataset in opened:
        delete_rows(dataset, None, where, None, warns=False)
    for dataset in opened:
        purge_rows(dataset, [one for one in opened if one is not dataset])
    for number, source in enumerate(sources or ()):
        dataset, leader = erasure.latest(number), erasure.leaders[number]
        prep = Preprocessor.from_dataset(erasure.latest(leader))
        write = prep.fit_write if leader == number else prep.write
        changed: Any = {**stored_options(dataset), **options, "overwrite": True}
        written = write(source, dataset.url, **changed)
        left, rows = (sum(map(len, one.splits.values())) for one in (dataset, written))
        if rows < left:
            warn(
                f"erase: {dataset.url} has {rows:,} rows after refit=, and had {left:,} without the erased ones: pass "
                "all rows that are left, and those that were appended"
            )
    return erasure.finish(is_refitted=sources is not None)


class _Erasure:
    """A call of `erase`, and its record in each dataset, which the same call finds again after a kill."""

    def __init__(self, datasets: Sequence[Dataset], where: Where, files: Sequence[str], *, trusted: bool) -> None:
        self.datasets, self.trusted = datasets, trusted
        roots = [editable_root(dataset, "erase") for dataset in datasets]
        keys = [self._read_keys(number, where) for number in range(len(datasets))]
        with ExitStack() as locks:
            for root in roots:
                locks.enter_context(root.lock())
            self.erased = list(map(ErasedKeys.read, roots))
            self.own: list[dict[str, Any]] = [
                {
                    "columns": list(own),
                    "digests": [f"{one:016x}" for one in sorted(digest_keys(erased.salt, own))] if own else [],
                    "purges": max(receipt_numbers(erased.root), default=0),
                }
                for erased, own in zip(self.erased, keys, strict=True)
            ]
            call, first = secrets.token_hex(8), dict[str, Any](files={}, leaders=self._find_leaders())
            for other, one in self.erased[0].records.items():
                if "files" in one and all(one[name] == self.own[0][name] for name in ("columns", "digests")):
                    call, first = other, {"files": one["files"], "leaders": one["leaders"]}  # was killed
            # Other files that the record names are not touched: its author may be somebody else.
            self.files = {path: first["files"].get(path) or self._match(path) for path in files}
            self.call, self.leaders = call, first["leaders"]
            for number, erased in enumerate(self.erased):
                self.own[number]["purges"] = erased.records.get(call, self.own[number])["purges"]
                erased.write(call, self.own[number] | ({} if number else {**first, "files": self.files}))

    def latest(self, number: int) -> Dataset:
        """Return the latest version of a dataset."""
        dataset = self.datasets[number]
        return open_folder(dataset.root, dataset.base_dir, trusted=dataset.trusted)

    def _read_keys(self, number: int, where: Where) -> dict[str, Any]:
        """Return all combinations of keys, by column of the source; ConfigError if the dataset has no such key."""
        dataset = self.latest(number)
        values = {} if callable(where) else read_values(dataset, where)
        columns = [dataset.features[name].reads(name)[0] for name in values]
        combinations = list(product(*(to_keys(name, cells).tolist() for name, cells in values.items())))
        table = np.array(combinations, np.int64).reshape(len(combinations), len(columns))
        return dict(zip(columns, table.T, strict=True))

    def _find_leaders(self) -> list[int]:
        """Return for each dataset the first one with the same fitted state."""
        latest = list(map(self.latest, range(len(self.datasets))))
        return [
            next(number for number, one in enumerate(latest) if one is dataset or _share_states(one, dataset))
            for dataset in latest
        ]

    def _match(self, path: str) -> dict[str, Any]:
        """Return the dataset of a file, and the features of a model; ConfigError for another fitted state."""
        folder, name = open_parent_folder(path, follow_links=True)
        if folder.size(name) is None:
            raise ConfigError(f"erase: there is no file {path}: check files")
        content = folder.read(name)
        match = partial(_match_model, content) if name.endswith(".onnx") else partial(_match_saved, self._load(path))
        for number in range(len(self.datasets)):
            if columns := match(self.latest(number)):
                return {"dataset": number, "columns": columns, "before": hashlib.sha256(content).hexdigest()}
        raise ConfigError(
            f"erase: {path} has another fitted state than the datasets, or tokens that none of them has: leave it out, "
            "and remove it or fit again"
        )

    def _load(self, path: str) -> Preprocessor:
        return Preprocessor.load(path, trusted=self.trusted)

    def _write_file(self, path: str, number: int, columns: Sequence[str], *, is_refitted: bool) -> str:
        """Write a file again with the fitted state of a dataset, and return its SHA-256."""
        dataset = self.latest(number)
        prep = Preprocessor.from_dataset(dataset)
        if path.endswith(".onnx"):
            prep.to_onnx(path, columns=columns)
        elif is_refitted:
            prep.save(path)
        else:
            prep = self._load(path)  # of an earlier state than the dataset, or with another split
            states = prep.learned_.items()
            redacted = {name: without_removed(prep.features_[name], one, dataset.learned[name]) for name, one in states}
            prep._set_learned(prep.features_, redacted)
            prep.save(path)
        folder, name = open_parent_folder(path, follow_links=True)
        return hashlib.sha256(folder.read(name)).hexdigest()

    def finish(self, *, is_refitted: bool) -> dict[str, Any]:
        """Write the files again, then the receipt, and return it."""
        files = {
            path: {
                "before": one["before"],
                "after": self._write_file(path, one["dataset"], one["columns"], is_refitted=is_refitted),
            }
            for path, one in self.files.items()
        }
        described = {
            dataset.url: self._describe(number, is_refitted=is_refitted) for number, dataset in enumerate(self.datasets)
        }
        finished = datetime.now(UTC).isoformat(timespec="seconds")
        content: dict[str, Any] = {"datasets": described, "files": files, "finished": finished}
        receipt = {**content, "sha256": json_sha256(content)}
        for erased in self.erased:
            erased.root.write(f"erased-{self.call}.json", to_json(receipt))
        root = self.erased[0].root
        with root.lock():
            ErasedKeys.read(root).write(self.call, self.own[0])
        kept = list(dict.fromkeys(f'"{name}"' for one in described.values() for name in one["kept"]))
        if rejects := sum(one["rejects"] for one in described.values()):
            kept.append(format_count(rejects, "reject"))
        if kept and not is_refitted:
            warn(
                f"erase: the erased rows were used for statistics or cells that stay, of {join_names(kept, 5)}: the "
                "receipt lists them. Pass refit= to learn from the other rows and write them again"
            )
        return receipt

    def _describe(self, number: int, *, is_refitted: bool) -> dict[str, Any]:
        """Return the entry of a dataset in the receipt."""
        dataset, own = self.latest(number), self.own[number]
        names = [f"purge-{one:05d}.json" for one in receipt_numbers(dataset.root) if one > own["purges"]]
        contents = {name: dataset.root.read(name) for name in names}
        purges = list(map(json.loads, contents.values()))
        kept = {name: _kept_statistics(dataset.features[name], one) for name, one in dataset.learned.items()}
        same = [one for one, leader in zip(self.datasets, self.leaders, strict=True) if leader == self.leaders[number]]
        had_rows = any(receipt_numbers(one.root) for one in same)
        return {
            "version": dataset.version,
            "digest": dataset.digest,
            "rows": sum(len(rows) for one in purges for rows in one["row_ids"]),
            "rejects": dataset.rejects().num_rows,
            "removed_tokens": dict(sum((Counter(one["removed_tokens"]) for one in purges), Counter())),
            "kept": {name: one for name, one in kept.items() if one and had_rows and not is_refitted},
            "purges": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
            "refused": {"salt": self.erased[number].salt, **{name: own[name] for name in ("columns", "digests")}},
        }


def _kept_statistics(feature: Feature, learned: Learned) -> list[str]:
    """Return the fields of a fitted state that a purge keeps, without numbers of cells and a parameter.

    With "cells of other rows" if values of an erased row may have filled them, or are in their windows.
    """
    ignored = {"rows", "missing", "invalid", "seen"}
    if feature.missing_value_strategy == "fill_with_const":
        ignored.add("fill_value")
    kept = [name for name in kept_fields(feature, learned) if name not in ignored]
    return [*kept, "cells of other rows"] if feature.imputer is not None else kept


def _share_states(first: Dataset, second: Dataset) -> bool:
    """Return whether two datasets have the same fitted state of all features."""
    return first.features.keys() == second.features.keys() and all(
        shares_state(feature, first.learned[name], second.learned[name]) for name, feature in first.features.items()
    )


def _match_saved(prep: Preprocessor, dataset: Dataset) -> list[str] | None:
    """Return the features of a Preprocessor if a dataset has its state, which may have grown; else None."""
    is_same = prep.features_.keys() == dataset.features.keys() and all(
        extends_state(feature, dataset.learned[name], prep.learned_[name]) for name, feature in prep.features_.items()
    )
    return list(prep.features_) if is_same else None


def _match_model(content: bytes, dataset: Dataset) -> list[str] | None:
    """Return the features of an ONNX model if a dataset has its state; else None."""
    from daskprep.extensions.onnx import export, read_outputs  # noqa: PLC0415 all else works without this extension

    owners = {name + output: name for name, one in dataset.features.items() for output in all_outputs(one)}
    columns = list(dict.fromkeys(owners.get(one, "") for one in read_outputs(content)))
    if not columns or "" in columns:
        return None
    return columns if export(Preprocessor.from_dataset(dataset).to_dict(), columns) == content else None
