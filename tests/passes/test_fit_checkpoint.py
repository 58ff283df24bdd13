"""A killed fit resumes from the results of finished tasks."""

from __future__ import annotations

import pickle
from contextlib import suppress
from dataclasses import dataclass

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import daskprep as dp
from daskprep.columns.summaries import TokenCounts
from daskprep.dataset.writing.plan import SavedLearned
from daskprep.errors import ColumnError
from daskprep.features import Learned
from daskprep.passes.scratch import ScratchFragment
from daskprep.sources import as_source
from daskprep.sources.delimited import DelimitedFragment
from daskprep.sources.partitions import passes
from daskprep.storage import Folder
from daskprep.storage.checkpoint import Checkpoint, deserialize, serialize

pytestmark = pytest.mark.filterwarnings("ignore:column")

ROWS = 480


class Killed(BaseException):
    """Ends work as a signal does."""


@pytest.fixture
def file(tmp_path):
    rng = np.random.default_rng(3)
    table = pd.DataFrame(
        {
            "x": pd.Series(rng.lognormal(size=ROWS)).mask(rng.random(ROWS) < 0.2),
            "c": rng.choice(["a", "b", "c"], ROWS),
            "text": [" ".join(rng.choice(["alpha", "Beta", "gamma,"], 3)) for _ in range(ROWS)],
            "day": "2024-02-03",
            "tags": "one two",
            "series": "1 2 3",
            "flag": rng.random(ROWS) < 0.5,
        }
    )
    table.loc[5, "x"] = np.inf
    path = tmp_path / "rows.parquet"
    table.to_parquet(path, row_group_size=10)
    return path


def preprocessor(scratch=None, split=None) -> dp.Preprocessor:
    features = {
        "x": dp.Number(normalization="iq", missing_value_strategy="fill_with_mode"),
        "c": "category",
        "text": "text",
        "day": "date",
        "tags": "set",
        "series": "timeseries",
        "flag": "binary",
    }
    return dp.Preprocessor(features, split=split, scratch=scratch)


def source_of(file):
    return as_source(str(file), partition_bytes=1)


@pytest.fixture
def reads(file, monkeypatch):
    """Record which partitions are read, and end the work before the one of that number."""
    kind, found = type(source_of(file).fragments[0]), {"read": [], "until": None}
    original = kind.read_stored

    def read(fragment, columns):
        if found["until"] is not None and len(found["read"]) >= found["until"]:
            raise Killed
        found["read"].append(1)
        return original(fragment, columns)

    monkeypatch.setattr(kind, "read_stored", read)
    return found


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.mark.parametrize("split", [None, dp.RandomSplit()])
@pytest.mark.parametrize("threads", [1, 3])
def test_killed_fit_resumes_from_finished_tasks(file, reads, tmp_path, split, threads, monkeypatch):
    expected = preprocessor(split=split).fit(source_of(file)).to_dict()
    assert len(reads["read"]) == 48
    scratch = tmp_path / "scratch"
    reads.update(read=[], until=20)
    with pytest.raises(Killed):
        preprocessor(str(scratch), split).fit(source_of(file))
    # One thread has eight tasks of six partitions, of which three are done. More threads have the same tasks.
    monkeypatch.setattr(passes, "worker_threads", lambda: (1, threads))
    reads.update(read=[], until=None)
    assert preprocessor(str(scratch), split).fit(source_of(file)).to_dict() == expected
    assert len(reads["read"]) == 48 - 18
    assert not list(scratch.iterdir())


def test_killed_fit_of_text_resumes_from_parsed_rows(file, tmp_path, monkeypatch):
    pd.read_parquet(file).to_csv(tmp_path / "rows.csv", index=False)
    split, scratch = dp.StratifiedSplit("c"), tmp_path / "scratch"

    def source():
        return as_source(str(tmp_path / "rows.csv"), partition_bytes=600)

    expected = preprocessor(split=split).fit(source()).to_dict()
    whole = source().npartitions
    assert whole > 40

    def fit_until(kind, name, until):
        """Return the number of reads; the work ends before the read of that number."""
        original, found = getattr(kind, name), []

        def read(fragment, columns):
            if until is not None and len(found) >= until:
                raise Killed
            found.append(1)
            return original(fragment, columns)

        with monkeypatch.context() as patch, suppress(Killed):
            patch.setattr(kind, name, read)
            assert preprocessor(str(scratch), split).fit(source()).to_dict() == expected
        return len(found)

    each = whole // 8  # eight tasks, and maybe one more of the rest
    assert fit_until(DelimitedFragment, "read_stored", 20) == 20
    assert fit_until(ScratchFragment, "read", 3 * each) == 3 * each
    assert not list(scratch.rglob("*.tmp"))
    first = max(scratch.rglob("parsed-*.scratch"))
    first.unlink()
    assert 0 < fit_until(DelimitedFragment, "read_stored", None) <= each
    assert not list(scratch.iterdir())


def test_other_fit_does_not_use_the_checkpoint(file, reads, tmp_path):
    reads["until"] = 20
    with pytest.raises(Killed):
        preprocessor(str(tmp_path / "scratch")).fit(source_of(file))
    reads.update(read=[], until=None)
    preprocessor(str(tmp_path / "scratch"), dp.RandomSplit()).fit(source_of(file))
    assert len(reads["read"]) == 48


def test_damaged_checkpoint_is_recomputed(file, reads, tmp_path):
    expected = preprocessor().fit(source_of(file)).to_dict()
    reads.update(read=[], until=20)
    with pytest.raises(Killed):
        preprocessor(str(tmp_path / "scratch")).fit(source_of(file))
    kept = sorted((tmp_path / "scratch").rglob("*.kept"))
    data = bytearray(kept[0].read_bytes())
    data[len(data) // 2] ^= 1
    kept[0].write_bytes(data)
    reads.update(read=[], until=None)
    assert preprocessor(str(tmp_path / "scratch")).fit(source_of(file)).to_dict() == expected
    assert (len(kept), len(reads["read"])) == (3, 48 - 12)


@pytest.mark.parametrize("split", [None, dp.StratifiedSplit("c")])
def test_killed_write_resumes_from_finished_tasks_of_the_first_pass(file, reads, tmp_path, split):
    preprocessor(split=split).fit_write(source_of(file), tmp_path / "a.dp", progress=False)
    reads.update(read=[], until=20)
    with pytest.raises(Killed):
        preprocessor(split=split).fit_write(source_of(file), tmp_path / "b.dp", progress=False)
    # A result is recomputed if the parsed rows of one of its partitions are missing.
    parsed = max((tmp_path / "b.dp").rglob("parsed-*.scratch"))
    parsed.unlink()
    reads.update(read=[], until=None)
    preprocessor(split=split).fit_write(source_of(file), tmp_path / "b.dp", progress=False)
    assert len(reads["read"]) == 48 - 12
    assert (tmp_path / "a.dp/manifest.json").read_bytes() == (tmp_path / "b.dp/manifest.json").read_bytes()


def test_data_error_leaves_no_checkpoint(file, tmp_path):
    prep = dp.Preprocessor({"x": dp.Number(), "c": dp.Number(invalid="raise")}, scratch=str(tmp_path / "scratch"))
    with pytest.raises(dp.errors.RejectedValueError, match="column \"c\": 'a' cannot be read"):
        prep.fit(source_of(file))
    assert not list((tmp_path / "scratch").iterdir())


def test_frames_are_not_checkpointed(tmp_path):
    frame = dd.from_pandas(pd.DataFrame({"x": [1.0, 2.0]}), npartitions=2)
    dp.Preprocessor({"x": "number"}, scratch=str(tmp_path / "scratch")).fit(frame)
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.parametrize(
    "value",
    [
        None,
        [True, -(2**2000), 0.1, float("inf"), "a\ud800", (1, [2])],
        {("a", 1): {2: None}},
        TokenCounts.of(pa.array(["b", "a"]), np.array([2, 1])),
    ],
)
def test_values_round_trip_through_serialize(value):
    data = b"".join(bytes(memoryview(buffer)) for buffer in serialize(value))
    back = deserialize(data)
    assert type(back) is type(value)
    if isinstance(value, TokenCounts):
        assert back.rank()[0].equals(value.rank()[0])
        assert back.rank()[1].tolist() == value.rank()[1].tolist()
    else:
        assert back == value


def test_arrays_round_trip_through_serialize():
    values = [np.arange(6, dtype=np.int16).reshape(2, 3), pa.array(["a", None]), pa.timestamp("us"), np.zeros(0)]
    array, column, kind, nothing = deserialize(b"".join(bytes(memoryview(buffer)) for buffer in serialize(values)))
    assert (array.dtype, array.tolist()) == (np.int16, [[0, 1, 2], [3, 4, 5]])
    assert array.flags.writeable
    assert (column, kind) == (values[1], values[2])
    assert (nothing.dtype, nothing.shape) == (np.float64, (0,))


def saved_learned(tmp_path, learned) -> SavedLearned:
    types = {name: type(one) for name, one in learned.items()}
    return SavedLearned(Folder.open(tmp_path / "version"), Folder.open(tmp_path / "scratch"), types, learned=learned)


def test_learned_state_is_loaded_from_scratch(file, tmp_path):
    features = {**preprocessor().features, "c": dp.TargetEncoding(target="flag"), "series": "vector"}
    learned = dp.Preprocessor(features).fit(source_of(file)).learned_
    saved = saved_learned(tmp_path, learned)
    assert saved.save_checkpoint()
    # The folder of the version is still empty.
    found = dict(pickle.loads(pickle.dumps(saved)))
    assert {name: (type(one), one.to_dict()) for name, one in found.items()} == {
        name: (type(one), one.to_dict()) for name, one in learned.items()
    }


@dataclass(frozen=True, kw_only=True)
class OwnLearned(Learned):
    """Learned state of a custom type."""


def test_learned_state_with_a_custom_class_is_not_saved(tmp_path):
    assert not saved_learned(tmp_path, {"a": dp.Date.learned_type(rows=1), "b": OwnLearned(rows=1)}).save_checkpoint()
    assert not list((tmp_path / "scratch").iterdir())


def test_values_of_unknown_classes_are_not_saved(tmp_path):
    kept, made = Checkpoint(Folder.open(tmp_path), "scan"), []

    def make():
        made.append(1)
        return [ColumnError("a")]

    assert str(kept.get_or_compute(range(2), make)[0]) == str(kept.get_or_compute(range(2), make)[0]) == "a"
    assert len(made) == 2
    assert not list(tmp_path.iterdir())
