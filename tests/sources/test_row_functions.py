"""Rows prepared by a function before fitting, writing and streaming."""

from __future__ import annotations

import functools
import json
import os
import sys
import threading

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow.dataset as pds
import pytest
import torch

import daskprep as dp
from daskprep.errors import ColumnError, ConfigError
from daskprep.sources import as_source, frames, read_files
from daskprep.sources.base import content_key

FRAME = pd.DataFrame(
    {"price": np.arange(300) * 3.0, "rooms": np.arange(300) % 4 + 1, "city": ["Rome", "Oslo", "x"] * 100}
)


def with_each(rows):
    return rows.assign(each=rows["price"] / rows["rooms"], city=rows["city"].str.upper())


EXPECTED = with_each(FRAME)
FEATURES = {"each": dp.Number(normalization=None), "city": "category"}


@pytest.fixture(params=["pandas", "dask", "parquet", "csv", "huggingface"])
def frame(request, tmp_path):
    if request.param == "dask":
        return dd.from_pandas(FRAME, npartitions=4)
    if request.param == "parquet":
        FRAME.to_parquet(tmp_path / "rows.parquet", row_group_size=50)
        return dp.read_files(tmp_path / "rows.parquet", partition_bytes=1)
    if request.param == "csv":
        FRAME.to_csv(tmp_path / "rows.csv", index=False)
        return str(tmp_path / "rows.csv")
    if request.param == "huggingface":
        return pytest.importorskip("datasets").Dataset.from_pandas(FRAME)
    return FRAME


def of_text(rows):
    """Cells of CSV are text."""
    return with_each(rows.assign(price=rows["price"].astype(float), rooms=rows["rooms"].astype(float)))


def test_fit_write_and_stream_use_prepared_rows(frame, tmp_path):
    source = dp.prepared(frame, of_text)
    assert source.columns == ["price", "rooms", "city", "each"]
    prep = dp.Preprocessor(FEATURES).fit(source)
    assert prep.to_dict() == dp.Preprocessor(FEATURES).fit(EXPECTED).to_dict()
    expected = prep.encode(EXPECTED)
    written = dp.Preprocessor(FEATURES).fit_write(source, tmp_path / "made.dp")["train"].read()
    streamed = list(prep.stream(frame, 64, prepare=of_text, shuffle=False))
    for name, array in expected.items():
        np.testing.assert_array_equal(written[name], array)
        np.testing.assert_array_equal(torch.cat([batch[name] for batch in streamed]), array)


def test_state_contains_prepare_function(tmp_path):
    FRAME.to_parquet(tmp_path / "rows.parquet", row_group_size=50)
    prep = dp.Preprocessor(FEATURES).fit(EXPECTED)

    def stream(function):
        return prep.stream(tmp_path / "rows.parquet", 64, prepare=function)

    batches, one = iter(stream(with_each)), stream(with_each)
    first = next(iter(one))
    state = json.loads(json.dumps(one.state_dict()))
    assert state["prepare"] == f"{__name__}.with_each"
    again = stream(functools.partial(with_each))
    again.load_state_dict(state)
    rest = torch.cat([first["each"], *(batch["each"] for batch in again)])
    assert torch.equal(rest, torch.cat([batch["each"] for batch in batches]))
    with pytest.raises(
        ConfigError, match=r"the state was saved with prepare='.*with_each', but this stream has '.*of_text'"
    ):
        stream(of_text).load_state_dict(state)
    with pytest.raises(ConfigError, match=r"but this stream has None"):
        prep.stream(EXPECTED, 64).load_state_dict(state)


def failing(rows):
    if 30 in rows["price"].tolist():
        raise KeyError("nothing")
    return rows


def shorter(rows):
    return rows[rows["price"] > 0]


def without_city(rows):
    return rows.drop(columns="city") if len(rows) else rows


@pytest.mark.parametrize("dask", [False, True])
@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (failing, KeyError, "nothing"),
        (shorter, ColumnError, r"shorter returned \d+ rows for partition 0, which has \d+ rows.*drop_row"),
        (lambda rows: [], ColumnError, "lambda> returned a list for a frame without rows"),
    ],
)
def test_errors_name_function_and_partition(function, error, words, dask):
    frame = dd.from_pandas(FRAME, npartitions=2) if dask else FRAME
    with pytest.raises(error, match=words) as caught:
        dp.Preprocessor({"price": "number"}).fit(dp.prepared(frame, function))
    if error is KeyError:
        assert caught.value.__notes__[0] == f"while {__name__}.failing prepared partition 0"


def test_missing_prepared_column_raises():
    with pytest.raises(ColumnError, match=r'without_city returned no column "city" for partition 0'):
        dp.Preprocessor({"city": "category"}).fit(dp.prepared(FRAME, without_city))
    with pytest.raises(ColumnError, match='column "area" is not in the data'):
        dp.Preprocessor({"area": "number"}).fit(dp.prepared(FRAME, with_each))


def test_frame_is_not_modified():
    def change(rows):
        rows["price"] = 0
        return rows

    before = FRAME.copy()
    assert dp.prepared(FRAME, change).read(0, ["price"])["price"].to_pylist() == [0] * 300
    pd.testing.assert_frame_equal(FRAME, before)


def test_unsupported_options_raise(tmp_path):
    with pytest.raises(ConfigError, match="memory= cannot limit"):
        dp.Preprocessor(FEATURES).fit_write(dp.prepared(FRAME, with_each), tmp_path / "a.dp", memory="4GB")
    with pytest.raises(ConfigError, match="prepare=3: expected a function"):
        dp.prepared(FRAME, 3)


def twice(inputs):
    return inputs["each"] * 2


def test_predict_uses_prepared_rows(tmp_path):
    FRAME.to_parquet(tmp_path / "rows.parquet", row_group_size=50)
    features = FEATURES | {"price": dp.Number(normalization=None)}
    prep = dp.Preprocessor(features, targets="price").fit(EXPECTED)
    expected = prep.predict(EXPECTED, twice, ids="city")
    for frame in (FRAME, tmp_path / "rows.parquet"):
        found = prep.predict(dp.prepared(frame, with_each), twice, ids="city")
        found = found.compute() if hasattr(found, "compute") else found
        assert list(found) == list(expected)
        for name in found:
            assert found[name].tolist() == (EXPECTED["city"] if name == "city" else expected[name]).tolist()


def of_both(rows):
    return rows[["price", "rooms", "city"]].assign(each=rows["price"] / rows["rooms"])


@pytest.mark.parametrize("kind", ["pandas", "dask"])
def test_prepared_rows_keep_splits(kind, tmp_path):
    rows = {"test": FRAME[200:], "train": FRAME[:200]}
    apart = rows if kind == "pandas" else {name: dd.from_pandas(one, npartitions=2) for name, one in rows.items()}
    source = dp.prepared(apart, of_both)
    prep = dp.Preprocessor(FEATURES)
    dataset = prep.fit_write(source, tmp_path / "made.dp")
    assert {name: len(split) for name, split in dataset.splits.items()} == {"train": 200, "test": 100}
    expected = dp.Preprocessor(FEATURES).fit(of_both(FRAME[:200]))
    assert prep.learned_ == expected.learned_
    for frame, prepare in ((apart, of_both), (source, None)):
        stream = prep.stream(frame, 64, split="test", shuffle=False, prepare=prepare)
        assert torch.cat([batch["each"] for batch in stream]).tolist() == of_both(FRAME[200:])["each"].tolist()


@pytest.mark.parametrize("frame", [FRAME, dd.from_pandas(FRAME, npartitions=2)])
def test_state_of_sampled_rows_contains_prepare_function(frame):
    prep = dp.Preprocessor({"price": "number"}, sample=0.5).fit(frame)
    state = prep.stream(frame, 64, prepare=with_each).state_dict()
    with pytest.raises(ConfigError, match="saved with prepare=.*with_each.*, but this stream has .*of_both"):
        prep.stream(frame, 64, prepare=of_both).load_state_dict(state)


def test_reordered_rows_raise(frame):
    with pytest.raises(ColumnError, match="changed the order of the rows of partition ."):
        dp.Preprocessor({"city": "category"}).fit(dp.prepared(frame, lambda rows: rows.sort_values("city")))
    relabelled = dp.prepared(frame, lambda rows: rows.set_axis(rows.index + 1_000))
    assert dp.Preprocessor({"city": "category"}).fit(relabelled).learned_["city"].rows == 300


def tens(rows):
    """A stand-in for a function of a script, which is pickled by value."""
    return rows.assign(price=rows["price"] * FACTOR)


FACTOR = 10


def test_content_key_depends_on_globals(monkeypatch):
    here = sys.modules[__name__]
    monkeypatch.setattr(tens, "__module__", "__main__")
    first = content_key(tens)
    assert first == content_key(functools.partial(tens).func) is not None
    monkeypatch.setattr(here, "FACTOR", 11)
    assert content_key(tens) not in (first, None)


@pytest.mark.parametrize("by", [{"a", "b"}, type("Local", (), {"__module__": "__main__"})(), threading.Lock()])
def test_content_key_is_none_for_unstable_pickles(by):
    assert content_key(functools.partial(tens, by=by)) is None


def test_source_identity_depends_on_content(tmp_path):
    path, table = tmp_path / "rows.parquet", pd.DataFrame({"a": range(9)})
    table.to_parquet(path, row_group_size=3)
    source = read_files(path, partition_bytes=1)
    arrow = [as_source(pds.dataset(path), partition_bytes=1).identity() for _ in range(2)]
    assert arrow[0] == arrow[1] is not None
    os.utime(path, (1, 1))
    assert as_source(pds.dataset(path), partition_bytes=1).identity() != arrow[0]
    splits = [as_source({"train": source, "test": source}).identity() for _ in range(2)]
    assert splits[0] == splits[1] is not None
    assert as_source({"train": source, "validation": source}).identity() != splits[0]
    assert as_source(table).identity() is None


def test_content_record_is_computed_lazily(monkeypatch):
    table, made = pd.DataFrame({"a": range(9)}), []
    original = frames.content_record
    monkeypatch.setattr(frames, "content_record", lambda source: made.append(source) or original(source))
    source = as_source({"train": table, "test": table})
    assert dp.Preprocessor({"a": "number"}).fit(source).learned_["a"].rows == 9
    assert made == []
    assert source.record["splits"].keys() == {"train", "test"}
    assert len(made) == 2
