"""Random programs: a table, features, and operations on datasets, with laws that are checked after each."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from sklearn.base import clone

import daskprep as dp
from daskprep.errors import ConfigError
from daskprep.features.base import cross_fit_folds
from tests.laws import training
from tests.laws.fitting import FittingPrograms
from tests.laws.laws import REFUSED, TALLY, check, check_content, files_with, is_open, read, same_state
from tests.laws.stored import Part, Stored, check_written, depending_on_others, merged, outputs_of, same_rows
from tests.laws.tables import KEY, KINDS, feature_of

DATASETS = 4
QUIET: dict[str, Any] = {"progress": False, "workers": "threads"}


def has_datasets(self: Programs) -> bool:
    return bool(self.stored)


class Programs(FittingPrograms):
    """A fitted Preprocessor, and up to four datasets."""

    def choose(self, data: st.DataObject) -> Stored:
        return data.draw(st.sampled_from(self.stored), "dataset")

    def keep(self, stored: Stored) -> None:
        self.stored = [*self.stored[-DATASETS + 1 :], stored]

    # -- writes

    @rule(data=st.data())
    def fit_and_write(self, data: st.DataObject) -> None:
        path, other, options = self.new_path(), self.new_path(), self.write_options(data)
        own = clone(self.prep)
        dataset = TALLY.attempt("fit_write", lambda: own.fit_write(self.carried(data, self.fitted), path, **options))
        self.step("fit_write")
        if dataset is REFUSED:
            return
        part = check_written(own, self.fitted, dataset)
        loaded = dp.Preprocessor.from_dataset(dataset)
        check("a dataset has the state of its Preprocessor", loaded.to_dict() == own.to_dict())
        if not self.is_grown:
            same_state("fit_write fits as fit", own.to_dict(), self.prep.to_dict())
            written = self.prep.write(self.carried(data, self.fitted), other, **options)
            same_rows("fit_write is fit and write", read(written), part.content)
        self.keep(Stored(path, own, [part], True, options["compression"]))
        if data.draw(st.booleans(), "add"):
            self.add_to(self.stored[-1], data)

    def start_writing(self, data: st.DataObject) -> None:
        if data.draw(st.booleans(), "fitted before"):
            self.write(data)
        else:
            self.fit_and_write(data)

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        is_cross_fitted = bool(cross_fit_folds(self.prep.features_))
        frame = self.fitted if is_cross_fitted or data.draw(st.booleans(), "fitted rows") else self.rows(data)
        path, options = self.new_path(), self.write_options(data)
        source, version = self.carried(data, frame), {}
        if data.draw(st.integers(0, 2), "kill") == 2:
            version = {"version": "v"}
            self.kill(data, lambda: self.prep.write(source, path, **options, **version))
            if is_open(path):
                check_written(self.prep, frame, dp.open_dataset(path, trusted=True))
        dataset = TALLY.attempt("write", lambda: self.prep.write(source, path, **options, **version))
        self.step("write")
        if dataset is not REFUSED:
            part = check_written(self.prep, frame, dataset)
            self.keep(Stored(path, self.prep, [part], False, options["compression"]))

    @precondition(has_datasets)
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        stored = self.choose(data)
        prep = stored.own_prep()
        frames = [self.rows(data, 20) for _ in range(data.draw(st.integers(1, 3), "pieces"))]
        given = data.draw(st.sampled_from([None, "train", "validation"]), "split")
        if cross_fit_folds(prep.features_):
            given = "test"
        whole, copy = merged(frames), self.new_path()
        shutil.copytree(stored.path, copy)
        before = len(stored.parts)
        for number, frame in enumerate(frames):
            rows = self.carried(data, frame)
            rows = rows if given is None else {given: rows}
            options = dict(QUIET)
            if data.draw(st.integers(0, 5), "kill") == 5:
                options["version"] = f"v{number}-{self.paths}"
                content = stored.expected()
                self.kill(data, lambda rows=rows, options=options: prep.append(rows, stored.path, **options))
                found = read(stored.open())
                if sum(len(one[KEY]) for one in found.values()) == sum(len(one[KEY]) for one in content.values()):
                    check_content(stored.open(), content)
            dataset = TALLY.attempt("append", lambda rows=rows, o=options: prep.append(rows, stored.path, **o))
            if dataset is REFUSED:
                break
            if len(dataset.datasets) == len(stored.parts):
                check("rows are appended", False, "an append added nothing")
            self.is_grown = True  # ranges move
            stored.add_part(check_written(prep, frame, dataset.datasets[-1], given))
            check_content(dataset, stored.expected(), data.draw(st.integers(0, 5), "reader"))
        else:
            self.compare_append(prep, stored, before, copy, whole, given)
        self.step("append")
        after = data.draw(st.sampled_from([None, self.join_with, self.delete_matching]), "after the append")
        if after is not None:
            after(stored, data)

    def compare_append(self, prep: Any, stored: Stored, before: int, copy: Path, whole: Any, given: Any) -> None:
        """Check that rows appended in parts are those appended at once, where neither depends on other rows."""
        is_alone = given is not None or prep.split is None or isinstance(prep.split, dp.HashSplit | dp.FixedSplit)
        if not is_alone or prep.balance is not None or prep.sample is not None or depending_on_others(prep.features_):
            return
        rows = whole if given is None else {given: whole}
        done = TALLY.attempt("append", lambda: prep.append(rows, copy, **QUIET))
        if done is not REFUSED:
            found = read(dp.open_dataset(copy, trusted=True))
            same_rows("rows appended in parts are those appended at once", found, stored.expected(), ids=False)

    @precondition(has_datasets)
    @rule(data=st.data())
    def append_twice(self, data: st.DataObject) -> None:
        """Append a file under two spellings of its path: its rows are added once."""
        stored = self.choose(data)
        prep, frame = stored.own_prep(), self.rows(data, 9)
        folder = self.new_path()
        folder.mkdir()
        frame.to_parquet(folder / "rows.parquet")
        given = "test" if cross_fit_folds(prep.features_) else "train"
        for name in ("rows.parquet", f"../{folder.name}/rows.parquet"):
            rows = {given: str(folder / name)}
            dataset = TALLY.attempt("append", lambda rows=rows: prep.append(rows, stored.path, **QUIET))
            if dataset is REFUSED:
                break
            if name == "rows.parquet":
                self.is_grown = True
                stored.add_part(check_written(prep, frame, dataset.datasets[-1], given))
        check_content(stored.open(), stored.expected())
        self.step("append twice")

    @precondition(has_datasets)
    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        self.add_to(self.choose(data), data)

    def add_to(self, stored: Stored, data: st.DataObject) -> None:
        [part, *_] = stored.parts
        column = data.draw(st.sampled_from(["goal", *sorted(self.table.kinds)]), "column")
        kind = KINDS[self.table.kinds.get(column, "number")]
        feature = data.draw(st.composite(feature_of)(data.draw(st.sampled_from(kind.features)), column), "feature")
        name = f"added{self.paths}"
        rows = self.carried(data, part.frame)
        options = dict(QUIET)
        if data.draw(st.integers(0, 3), "kill") == 3:
            self.kill(data, lambda: stored.open().add(name, feature, rows, **options))
        if name not in stored.open().features:
            check_content(stored.open(), stored.expected())
            dataset = TALLY.attempt("add", lambda: stored.open().add(name, feature, rows, **options))
            if dataset is REFUSED:
                check_content(stored.open(), stored.expected())
                self.step("add")
                return
        dataset = stored.open()
        stored.is_changed = True
        prep = stored.own_prep()
        old, new = stored.expected(), read(dataset)
        same_rows("add changes no other output", {s: {n: a[n] for n in old[s]} for s, a in new.items()}, old)
        stored.parts = [self.with_outputs(stored, part, outputs_of({name: feature}))]
        if stored.is_fitted_here and not any(stored.deleted):
            self.compare_added(prep, stored, {name: feature}, part)
        self.step("add")

    def with_outputs(self, stored: Stored, part: Part, names: list[str]) -> Part:
        """Return the part with further outputs, read from the version that has all of its rows."""
        first = [version for version, state in stored.versions.items() if state and not any(state[1])]
        content = read(stored.open(first[0] if first else None))
        if not first:
            return replace(part, content=content)
        full = {split: {**arrays, **{n: content[split][n] for n in names}} for split, arrays in part.content.items()}
        return replace(part, content=full)

    def compare_added(self, prep: dp.Preprocessor, stored: Stored, added: dict[str, Any], part: Part) -> None:
        own = clone(stored.prep)
        features = {
            **stored.prep.features,
            **{n: f for n, f in prep.features_.items() if n not in ("weight", *prep.keys, *stored.prep.features)},
        }
        own.set_params(features={**features, **added})
        written = TALLY.attempt(
            "write with an added feature",
            lambda: own.fit_write(part.frame, self.new_path(), **QUIET),
        )
        if written is REFUSED:
            return
        names = ["row_id", *outputs_of(added)]
        found = {split: sort_rows({n: a[n] for n in names}) for split, a in stored.expected().items()}
        expected = {split: sort_rows({n: a[n] for n in names}) for split, a in read(written).items()}
        same_rows("add is a write with the feature", found, expected)

    # -- deletions and versions

    @precondition(has_datasets)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        stored = self.choose(data)
        self.delete_rows(stored, data)
        if any(stored.deleted) and data.draw(st.booleans(), "purge"):
            self.purge_rows(stored, data)

    def delete_rows(self, stored: Stored, data: st.DataObject) -> None:
        """Delete rows of all parts, mostly those with one cell, so that a token disappears with them; or some rows."""
        left = {
            number: [row for row in part.row_ids if row not in stored.deleted[number]]
            for number, part in enumerate(stored.parts)
        }
        first = data.draw(st.sampled_from([number for number, rows in left.items() if rows] or [None]), "part")
        if first is None:
            return
        column = data.draw(st.sampled_from(["", "id", *self.table.kinds, *self.table.kinds]), "column")
        if not column:
            rows = data.draw(st.lists(st.sampled_from(left[first]), min_size=1, max_size=6, unique=True), "row ids")
            self.delete_of_part(stored, first, rows, data)
            return
        cell = repr(stored.parts[first].frame[column][data.draw(st.sampled_from(left[first]), "row id")])
        for number, own in left.items():
            cells = stored.parts[number].frame[column]
            if rows := [row for row in own if repr(cells[row]) == cell]:
                self.delete_of_part(stored, number, rows, data)

    def delete_of_part(self, stored: Stored, number: int, rows: list[int], data: st.DataObject) -> None:
        self.hide(stored, {number: set(rows)}, {"rows": rows, "part": number}, data)

    @precondition(has_datasets)
    @rule(data=st.data())
    def delete_where(self, data: st.DataObject) -> None:
        self.delete_matching(self.choose(data), data)

    def delete_matching(self, stored: Stored, data: st.DataObject) -> None:
        """Delete the rows of all parts or one that have cells of random rows, as keys or by a function."""
        left = rows_left(stored)
        present = [(number, row) for number, rows in left.items() for row in sorted(rows)]
        if not present:
            return
        chosen = data.draw(st.lists(st.sampled_from(present), min_size=1, max_size=6, unique=True), "rows")
        names = data.draw(st.lists(st.sampled_from([*stored.own_prep().keys, KEY]), min_size=1, unique=True), "keys")
        where: Any = {name: [stored.parts[number].frame[name][row] for number, row in chosen] for name in names}
        part = data.draw(st.sampled_from([None, None, chosen[0][0]]), "part")
        rows = {
            number: {row for row in own if all(stored.parts[number].frame[name][row] in where[name] for name in names)}
            for number, own in left.items()
            if part in (None, number)
        }
        if names == [KEY] and data.draw(st.booleans(), "function"):
            cells = where[KEY]
            where = lambda frame: frame[KEY].isin(cells)  # noqa: E731
        self.hide(stored, rows, {"where": where, "part": part}, data)

    def hide(self, stored: Stored, rows: dict[int, set[int]], options: dict[str, Any], data: st.DataObject) -> None:
        """Call `delete` with options that are for these rows by part, and check what is left."""
        before = stored.expected()
        if data.draw(st.integers(0, 3), "kill") == 3:
            self.kill(data, lambda: stored.open().delete(**options))
            found = stored.open()
            if sum(map(len, found.splits.values())) == sum(len(one[KEY]) for one in before.values()):
                check_content(found, before)
        name = "delete where" if "where" in options else "delete"
        dataset = TALLY.attempt(name, lambda: stored.open().delete(**options))
        self.step(name)
        if dataset is REFUSED:
            return
        for number, own in rows.items():
            stored.deleted[number] |= own
            stored.unpurged |= {stored.parts[number].frame["id"][row] for row in own}
        stored.add_version()
        check_content(dataset, stored.expected(), data.draw(st.integers(0, 5), "reader"))
        check_content(stored.open(), stored.expected())

    @precondition(has_datasets)
    @rule(data=st.data())
    def purge(self, data: st.DataObject) -> None:
        self.purge_rows(self.choose(data), data)

    def purge_rows(self, stored: Stored, data: st.DataObject) -> None:
        if data.draw(st.booleans(), "kill"):
            self.kill(data, lambda: stored.open().purge())
            stored.is_changed = True
            check_content(stored.open(), stored.expected())
            self.forget_purged(stored)
            after = data.draw(st.sampled_from(["delete more", "purge again", "leave unfinished"]), "after the kill")
            if after == "leave unfinished":
                self.step("killed purge")
                return
            if after == "delete more":
                self.delete_rows(stored, data)
        receipt = TALLY.attempt("purge", lambda: stored.open().purge())
        self.step("purge")
        if receipt is not REFUSED:
            self.check_purged(stored, data)

    def check_purged(self, stored: Stored, data: st.DataObject) -> None:
        """Check the rows, receipts and bytes of a dataset after a purge."""
        expected = stored.expected()
        stored.is_changed = True
        self.forget_purged(stored)
        dataset = stored.open()
        dataset.verify()
        check_content(dataset, expected, data.draw(st.integers(0, 5), "reader"))
        _ = stored.own_prep(), [split.head(3) for split in dataset.splits.values()]
        listed = receipted_rows(stored)
        check("receipts list the purged rows", listed == stored.deleted, (listed, stored.deleted))
        if stored.compression == "none":
            left = files_with(stored.path, sorted(stored.unpurged))
            check("purged rows are in no file", not left, left)
        stored.unpurged = set()

    @precondition(has_datasets)
    @rule(data=st.data())
    def erase(self, data: st.DataObject) -> None:
        """Erase the rows of several datasets that have cells of random rows of the first one."""
        chosen = data.draw(st.lists(st.sampled_from(self.stored), min_size=1, max_size=3, unique_by=id), "datasets")
        left = [rows_left(one) for one in chosen]
        present = sorted({chosen[0].parts[number].frame[KEY][row] for number, rows in left[0].items() for row in rows})
        if not present:
            return
        cells = data.draw(st.lists(st.sampled_from(present), min_size=1, max_size=6, unique=True), "cells")
        call = lambda: dp.erase([one.open() for one in chosen], {KEY: cells})  # noqa: E731
        if is_killed := data.draw(st.booleans(), "kill"):
            self.kill(data, call)
        receipt = TALLY.attempt("erase", call)
        self.step("erase")
        check("an erasure is complete", receipt is not REFUSED)
        for stored, own, entry in zip(chosen, left, receipt["datasets"].values(), strict=True):
            rows = {
                number: {row for row in rows if stored.parts[number].frame[KEY][row] in cells}
                for number, rows in own.items()
            }
            for number, erased in rows.items():
                stored.deleted[number] |= erased
                stored.unpurged |= {stored.parts[number].frame["id"][row] for row in erased}
            if any(rows.values()):
                stored.add_version()
            # A call that was killed after its last change has returned no receipt, but stored it.
            check("an erasure counts its rows", is_killed or entry["rows"] >= sum(map(len, rows.values())))
            self.check_purged(stored, data)

    @precondition(has_datasets)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        stored = self.choose(data)
        expected = stored.expected()
        parts = [
            {int(row) for one in (*read(part).values(), part.rejects().to_pydict()) for row in one["row_id"]} - {-1}
            for part in stored.open()._stored.datasets
        ]
        if data.draw(st.booleans(), "kill"):
            self.kill(data, lambda: stored.open().compact())
            same_rows("a killed compaction changes no row", read(stored.open()), expected, ids=False)
        dataset = TALLY.attempt("compact", lambda: stored.open().compact())
        self.step("compact")
        if dataset is REFUSED:
            return
        dataset.verify()
        if len(parts) > 1:
            stored.merge_parts(parts)
            stored.is_fitted_here = False
        same_rows("compaction changes no row", read(dataset), expected, ids=False)
        check_content(dataset, stored.expected(), data.draw(st.integers(0, 5), "reader"))

    def forget_purged(self, stored: Stored) -> None:
        """Drop the versions that a purge removed, which are none but those with purged rows."""
        for version, state in stored.versions.items():
            if state is not None and version != len(stored.versions):
                try:
                    stored.open(version)
                except ConfigError:
                    stored.versions[version] = None

    @precondition(has_datasets)
    @rule(data=st.data())
    def open_versions(self, data: st.DataObject) -> None:
        stored = self.choose(data)
        for version, state in stored.versions.items():
            if state is not None:
                check_content(stored.open(version), stored.expected(version))
        self.step("open versions")

    # -- several datasets, folds and batches

    @precondition(has_datasets)
    @rule(data=st.data())
    def join_datasets(self, data: st.DataObject) -> None:
        self.join_with(self.choose(data), data)

    def join_with(self, stored: Stored, data: st.DataObject) -> None:
        others = data.draw(st.lists(st.sampled_from(self.stored), min_size=1, max_size=2), "others")
        self.step("join")
        training.check_joined(data.draw(st.permutations([stored, *others]), "datasets"), data)

    @precondition(has_datasets)
    @rule(data=st.data())
    def mix(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.stored), min_size=1, max_size=3, unique_by=id), "datasets")
        self.step("mix")
        training.check_mix(chosen, data)

    @precondition(has_datasets)
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        stored = self.choose(data)
        self.step("load")
        training.check_loader(stored.open(), stored.expected(), data)

    @rule(data=st.data())
    def stream(self, data: st.DataObject) -> None:
        self.step("stream")
        training.check_stream(self.prep, self.fitted, self.carried(data, self.fitted), data)

    @rule(data=st.data())
    def fold(self, data: st.DataObject) -> None:
        self.step("fold")
        training.check_folds(self.prep, self.fitted, self.carried(data, self.fitted), self.new_path(), data)


def rows_left(stored: Stored) -> dict[int, set[int]]:
    """Return the ids of the rows of all splits by part."""
    return {
        number: {int(row) for arrays in part.without(frozenset(own)).values() for row in arrays["row_id"]}
        for number, (part, own) in enumerate(zip(stored.parts, stored.deleted, strict=True))
    }


def receipted_rows(stored: Stored) -> list[set[int]]:
    """Return the row ids that all receipts of purges list, by part."""
    rows: list[set[int]] = [set() for _ in stored.parts]
    for file in stored.path.glob("purge-*.json"):
        if file.name in stored.older_receipts:
            continue
        for number, own in enumerate(json.loads(file.read_text())["row_ids"]):
            rows[number] |= set(own)
    return rows


def sort_rows(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    order = np.argsort(arrays["row_id"], kind="stable")
    return {name: array[order] for name, array in arrays.items()}
