"""Random programs without datasets: rows in several forms, and a Preprocessor that grows, encodes and is saved."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import pandas as pd
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from sklearn.base import clone

import daskprep as dp
from tests.laws import encoding
from tests.laws.laws import REFUSED, TALLY, check, killed, same_state, time_limit
from tests.laws.stored import Stored
from tests.laws.tables import CARRIERS, KEY, Table, carry, features_of, options_of, tables

CUTS = st.lists(st.integers(0, 60), max_size=4)


class FittingPrograms(RuleBasedStateMachine):
    """A table, a Preprocessor that is fitted to it, and a folder."""

    folder: Path
    table: Table
    prep: dp.Preprocessor
    fitted: pd.DataFrame
    stored: list[Stored]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="laws-"))
        self.stored, self.next_key, self.paths = [], 1, 0
        self.is_grown = False
        self.settings = dask.config.set({"dataframe.convert-string": False, "scheduler": "sync"})
        self.settings.__enter__()
        self.fsync, os.fsync = os.fsync, lambda descriptor: None  # no program loses power
        self.warnings = warnings.catch_warnings()
        self.warnings.__enter__()
        warnings.simplefilter("ignore")
        TALLY.start_program()

    def teardown(self) -> None:
        self.warnings.__exit__(None, None, None)
        self.settings.__exit__(None, None, None)
        os.fsync = self.fsync
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- rows and calls

    def rows(self, data: st.DataObject, most: int = 40, *, is_new: bool = True) -> pd.DataFrame:
        count = data.draw(st.integers(1 if is_new else 5, most), "rows")
        self.next_key += count
        return self.table.rows(count, self.next_key - count, is_new=is_new)

    def carried(self, data: st.DataObject, frame: pd.DataFrame) -> Any:
        folder = self.folder / f"source{self.paths}"
        folder.mkdir(exist_ok=True)
        self.paths += 1
        return carry(frame, data.draw(st.sampled_from(CARRIERS), "carrier"), folder, data.draw(CUTS, "cuts"))

    def new_path(self) -> Path:
        self.paths += 1
        return self.folder / f"{self.paths}.dp"

    def write_options(self, data: st.DataObject) -> dict[str, Any]:
        compression = data.draw(st.sampled_from(["none", "none", "lz4", "zstd"]), "compression")
        options = {"block_rows": data.draw(st.sampled_from([8, 3, 1, 64]), "block rows"), "compression": compression}
        options |= {"shards": data.draw(st.booleans(), "shards"), "shuffle": data.draw(st.booleans(), "shuffle")}
        return {**options, "progress": False, "workers": "threads"}

    def step(self, name: str) -> None:
        TALLY.steps[name] += 1

    # -- the Preprocessor

    @initialize(data=st.data(), table=tables())
    def start(self, data: st.DataObject, table: Table) -> None:
        self.table = table
        options, targets = data.draw(options_of(), "options")
        features = {**data.draw(features_of(table), "features"), **targets}
        self.fitted = self.rows(data, 60, is_new=False)
        prep = dp.Preprocessor(features, **options)
        if TALLY.attempt("fit", lambda: prep.fit(self.fitted)) is REFUSED:
            kept = {name: features[name] for name in features if name in (KEY, *targets)}
            prep = dp.Preprocessor({**kept, "id": dp.Category()}, **{**options, "split": None, "balance": None})
            prep.fit(self.fitted)
        again = clone(prep).fit(self.carried(data, self.fitted))
        same_state("a fitted state is the same for each form of rows", again.to_dict(), prep.to_dict())
        self.prep = prep
        self.step("fit")
        self.start_writing(data)

    def start_writing(self, data: st.DataObject) -> None:
        """Write the first dataset."""

    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        frame = self.rows(data)
        before = dp.Preprocessor.from_dict(self.prep.to_dict(), trusted=True)
        if TALLY.attempt("grow", lambda: self.prep.grow(self.carried(data, frame))) is not REFUSED:
            encoding.check_grown(before, self.prep, self.fitted)
            self.is_grown = True
        self.step("grow")

    @rule(data=st.data())
    def save_and_load(self, data: st.DataObject) -> None:
        path = self.folder / "prep.json"
        self.prep.save(path)
        loaded = dp.Preprocessor.load(path, trusted=True)
        check("a loaded state is the saved one", loaded.to_dict() == self.prep.to_dict())
        for stored in self.stored:
            if not stored.is_changed:
                continue
            state = stored.own_prep().to_dict()
            again = dp.Preprocessor.from_dict(state, trusted=True)
            check("a dataset's state can be saved", again.to_dict() == state)
        self.prep = loaded
        for stored in self.stored:
            stored.prep = loaded
        self.step("save and load")

    @rule(data=st.data())
    def encode(self, data: st.DataObject) -> None:
        frame = self.rows(data, is_new=data.draw(st.booleans(), "new"))
        encoding.check_encoded(self.prep, frame, self.carried(data, frame))
        self.step("encode")

    @rule(data=st.data())
    def export(self, data: st.DataObject) -> None:
        frame = self.rows(data)
        encoding.check_onnx(self.prep, frame, self.folder / "prep.onnx")
        self.step("export")

    def kill(self, data: st.DataObject, call: Callable[[], Any]) -> None:
        after_commit = data.draw(st.booleans(), "killed after the commit")
        number = data.draw(st.integers(0, 8 if after_commit else 90), "killed at change of files")
        with time_limit(60):
            done = killed(call, number, after_commit=after_commit)
        self.step("kill" if done else "kill after the end")
