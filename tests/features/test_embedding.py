"""Embeddings: a function is called once per distinct value, and never for a dataset or state without trust."""

import shutil
import sqlite3
import sys
from contextlib import closing

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep import serving
from daskprep.errors import ColumnError, ConfigError, StorageError
from daskprep.storage.vectors import cached_vectors
from daskprep.testing import check_feature

MODULE = """
from pathlib import Path

import numpy as np

def embed(values):
    with (Path(__file__).parent / "calls.txt").open("a") as file:
        file.write("".join(f"{value!r}\\n" for value in values))
    return [[len(value), sum(value if isinstance(value, bytes) else value.encode()), 1] for value in values]

def short(values):
    return np.zeros((len(values), 2))

def broken(values):
    raise RuntimeError("no memory")

constant = 5
"""
TEXTS = ["b", "a", None, "b", "ab", "a"] * 5
VECTORS = {"a": [1, 97, 1], "b": [1, 98, 1], "ab": [2, 195, 1], None: [0, 0, 0]}


@pytest.fixture
def model(tmp_path, monkeypatch):
    """Return a function that returns the values embedded since the last call."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "some_model.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield lambda: take_lines(folder / "calls.txt")
    sys.modules.pop("some_model", None)


def take_lines(path):
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return sorted(lines)


def embedding(**parameters):
    return dp.Embedding(**{"function": "some_model.embed", "size": 3, **parameters})


def test_each_distinct_value_is_embedded_once(model):
    frame = pd.DataFrame({"text": TEXTS})
    prep = dp.Preprocessor({"text": embedding()}).fit(frame)
    assert model() == []  # not called in fit
    encoded = prep.encode(frame)["text"]
    assert encoded.dtype == np.float32
    assert encoded.tolist() == [VECTORS[text] for text in TEXTS]
    assert model() == ["'a'", "'ab'", "'b'"]
    assert prep.encode(pd.DataFrame({"text": ["new", "a"]}))["text"].tolist() == [[3, 330, 1], [1, 97, 1]]
    assert model() == ["'new'"]


def test_other_writes_splits_and_folds_reuse_embeddings(model, tmp_path):
    frame = pd.DataFrame({"text": TEXTS, "y": range(30)})
    features = {"text": embedding(cache_dir=str(tmp_path / "vectors")), "y": "number"}
    first = dp.Preprocessor(features, split=dp.RandomSplit(seed=1)).fit_write(frame, tmp_path / "a.dp")
    assert len(model()) == 3
    assert first["train"].read("text")["text"].shape[1] == 3
    dp.Preprocessor(features, split=dp.RandomSplit(seed=2)).fit_write(frame, tmp_path / "b.dp")
    dp.Preprocessor(features, split=dp.KFold(3)).fit_write(frame, tmp_path / "c.dp")
    dp.Preprocessor({**features, "other": embedding(column="text", cache_dir=str(tmp_path / "vectors"))}).fit_write(
        frame, tmp_path / "d.dp"
    )
    assert model() == []


def test_embeddings_before_an_interruption_are_kept(model, monkeypatch):
    texts = [f"text {number}" for number in range(1_200)]
    feature = embedding(version="1")
    prep = dp.Preprocessor({"text": feature}).fit(pd.DataFrame({"text": texts}))
    import some_model

    embed, calls = some_model.embed, []

    def stop_at_third(values):
        calls.append(len(values))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return embed(values)

    monkeypatch.setattr(some_model, "embed", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        prep.encode(pd.DataFrame({"text": texts}))
    assert calls == [512, 512, 176]
    assert len(model()) == 1_024
    prep.encode(pd.DataFrame({"text": texts}))
    assert len(model()) == 176


def test_bytes_and_text_are_different_values(model):
    assert embedding().fit_transform(pd.DataFrame({"x": [b"a", b"\xff", None]})).tolist() == [
        [1, 97, 1],
        [1, 255, 1],
        [0, 0, 0],
    ]
    embedding().fit_transform(pd.DataFrame({"x": ["a"]}))
    assert model() == ["'a'", "b'\\xff'", "b'a'"]


def test_version_or_source_change_recomputes_vectors(model, tmp_path):
    frame = pd.DataFrame({"text": ["a"]})
    for version, called in (("1", 1), ("1", 0), ("2", 1), (None, 1), (None, 0)):
        embedding(version=version).fit_transform(frame)
        assert len(model()) == called
    source = tmp_path / "code" / "some_model.py"
    source.write_text(source.read_text() + "# changed\n")
    assert embedding().fingerprint() != embedding(version="1").fingerprint()
    embedding().fit_transform(frame)
    assert len(model()) == 1


def test_missing_values_are_imputed(model):
    column = pd.DataFrame({"text": [None, "a", "b", "b"]})
    assert embedding(fill_value="ab").fit_transform(column)[0].tolist() == VECTORS["ab"]
    assert embedding(missing_value_strategy="fill_with_mode").fit_transform(column)[0].tolist() == VECTORS["b"]
    assert embedding(missing_value_strategy="bfill").fit_transform(column)[0].tolist() == VECTORS["a"]


def test_embedding_passes_check_feature(model, tmp_path):
    check_feature(embedding(), ["x", "y", "x", "z", "long"] * 4)
    frame = pd.DataFrame({"text": TEXTS})
    prep = dp.Preprocessor({"text": embedding()}).fit(frame)
    prep.save(tmp_path / "prep.json")
    loaded = dp.Preprocessor.load(tmp_path / "prep.json", trusted=True)
    np.testing.assert_array_equal(loaded.encode(frame)["text"], prep.encode(frame)["text"])
    served = serving.load(tmp_path / "prep.json", trusted=True).encode([{"text": "ab"}, {"text": None}])
    assert served["text"].tolist() == [VECTORS["ab"], VECTORS[None]]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"function": None}, "needs a function and the size"),
        ({"function": "embed"}, "not the dotted name"),
        ({"function": "no_model.embed"}, "cannot import"),
        ({"function": "some_model.constant"}, "not callable"),
        ({"fill_value": 1.5}, "must be 0"),
    ],
)
def test_invalid_parameters_raise(model, parameters, message):
    with pytest.raises(ConfigError, match=message):
        embedding(**parameters).fit(pd.DataFrame({"text": ["a"]}))


def test_invalid_results_raise_with_function_and_value(model):
    frame = pd.DataFrame({"text": ["a", "b"]})
    with pytest.raises(ColumnError, match=r"text.*some_model.short returned an array of shape \(2, 2\).*'a'"):
        embedding(function="some_model.short").fit_transform(frame)
    with pytest.raises(ColumnError, match=r"text.*some_model.broken failed on 2 values.*no memory"):
        embedding(function="some_model.broken").fit_transform(frame)


def test_damaged_cache_raises(model, tmp_path):
    feature, frame = embedding(cache_dir=str(tmp_path / "vectors")), pd.DataFrame({"text": ["a"]})
    feature.fit_transform(frame)
    [file] = (tmp_path / "vectors").iterdir()
    file.write_bytes(b"no database " * 100)
    with pytest.raises(StorageError, match=r"some_model.*remove the file"):
        feature.fit_transform(frame)


def test_function_is_never_imported_without_trust(model, tmp_path):
    frame = pd.DataFrame({"text": ["a", "b"]})
    prep = dp.Preprocessor({"text": embedding()})
    prep.fit_write(frame, tmp_path / "a.dp")
    prep.save(tmp_path / "prep.json")
    config = prep.to_config()
    encoder = serving.load(tmp_path / "prep.json")
    sys.modules.pop("some_model")
    received = dp.Preprocessor.from_dataset(dp.open_dataset(tmp_path / "a.dp"))
    loaded = dp.Preprocessor.load(tmp_path / "prep.json")
    for untrusted in (received, loaded):
        for action in (untrusted.encode, untrusted.fit, lambda rows, one=untrusted: one.write(rows, tmp_path / "b.dp")):
            with pytest.raises(ConfigError, match=r'"some_model.embed" is named by .* not trusted'):
                action(frame)
        with pytest.raises(ConfigError, match="not trusted"):
            untrusted.save(tmp_path / "other.json")
    with pytest.raises(ConfigError, match="not trusted"):
        encoder.encode({"text": "a"})
    with pytest.raises(ConfigError, match="create the feature in Python"):
        dp.Preprocessor.from_config(config)
    damaged = shutil.copytree(tmp_path / "a.dp", tmp_path / "damaged.dp")
    next(damaged.rglob("text/c.0.0")).unlink()
    with pytest.raises(ConfigError, match="not trusted"):
        dp.repair(damaged, frame)
    assert "some_model" not in sys.modules
    trusted = dp.Preprocessor.from_dataset(dp.open_dataset(tmp_path / "a.dp", trusted=True))
    assert trusted.encode(frame)["text"].tolist() == [VECTORS["a"], VECTORS["b"]]


def test_cached_vector_of_another_size_raises(tmp_path):
    path = tmp_path / "vectors.sqlite"
    cached_vectors(path, ["a", "b"], 2, lambda values: np.zeros((len(values), 2)))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE vectors SET vector = x'00000000'")
    with pytest.raises(StorageError, match="does not have 2 numbers; remove the file"):
        cached_vectors(path, ["a", "b"], 2, lambda values: np.zeros((len(values), 2)))
