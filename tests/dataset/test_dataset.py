from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.dataset import open_dataset
from daskprep.errors import ConfigError, CorruptDatasetError
from daskprep.passes.state import restore, state_files, state_from_files


def test_splits_and_lengths(dataset, path):
    assert {name: len(split) for name, split in dataset.splits.items()} == {"train": 70, "validation": 10, "test": 20}
    assert list(dataset) == ["train", "validation", "test"]
    assert "train" in dataset
    assert "tune" not in dataset
    assert (dataset.url, dataset.version) == (str(path), "3f2a9c1b")
    with pytest.raises(ConfigError, match=r"no split 'tran'\. Did you mean \"train\""):
        dataset["tran"]


def test_split_without_rows_raises(write, tmp_path):
    write(tmp_path, rows={"train": 100})
    with pytest.raises(ConfigError, match='"test".*has no rows; those with rows: train'):
        open_dataset(tmp_path)["test"]


def test_learned_state_round_trips(dataset, prep, table):
    assert list(dataset.features) == list(prep.features_)
    assert {name: one.to_dict() for name, one in dataset.learned.items()} == {
        name: one.to_dict() for name, one in prep.learned_.items()
    }
    assert dataset.metadata["rows"] == {"train": 70, "validation": 10, "test": 20}
    assert dataset.metadata["features"] == json.loads(json.dumps(prep.to_dict()["features"]))


def test_decode_returns_original_values(dataset, table):
    decoded = dataset.decode(dataset["validation"].read(["city", "sold"]))
    assert decoded["city"].tolist() == table["city"].iloc[70:80].tolist()
    with pytest.raises(ConfigError, match='"citi".*Did you mean "city"'):
        dataset.decode({"citi": np.array([1])})


def test_vocabulary_by_feature_and_output(dataset, prep):
    assert dataset.vocabulary("city") == prep.learned_["city"].vocabulary
    assert dataset.vocabulary("review_char") == prep.learned_["review"].char.vocabulary
    with pytest.raises(ConfigError, match="Its outputs are: review_word, review_char"):
        dataset.vocabulary("review")
    with pytest.raises(ConfigError, match='Did you mean "city"'):
        dataset.vocabulary("citi")
    with pytest.raises(ConfigError, match='"sold" is a binary, which has no vocabulary'):
        dataset.vocabulary("sold")


def test_rejects_are_a_table(write, tmp_path, dataset):
    assert dataset.rejects().to_pydict() == {"row_id": [], "column": [], "reason": []}
    rejects = {"row_id": [4], "column": ["price"], "reason": ["cannot be read"]}
    write(tmp_path, rejects=rejects)
    assert open_dataset(tmp_path).rejects().to_pydict() == rejects


def test_large_vocabularies_are_files_read_on_demand(write, prep, tmp_path, monkeypatch, sizes):
    sizes(large_vocabulary=3)
    write(tmp_path)
    monkeypatch.setattr("daskprep.columns.vocabulary.Vocabulary.read_parquet", None)
    dataset = open_dataset(tmp_path)
    names = sorted(name for name in dataset.manifest.files if name.startswith("vocab/"))
    assert [name.rsplit("-", 1)[0] for name in names] == [
        "vocab/bag",
        "vocab/city",
        "vocab/review-char",
        "vocab/review-word",
        "vocab/tags",
    ]
    assert dataset.metadata["features"]["city"]["learned"]["vocabulary_file"] == names[1]
    dataset["train"].read()
    monkeypatch.undo()
    assert dataset.vocabulary("city") == prep.learned_["city"].vocabulary
    dataset.verify()


def test_damaged_vocabulary_raises_on_opening(write, tmp_path, sizes):
    sizes(large_vocabulary=3)
    write(tmp_path)
    file = next((tmp_path / "3f2a9c1b" / "vocab").glob("city-*"))
    data = file.read_bytes()
    for damaged in (data[:-1], data[:50] + bytes([data[50] ^ 1]) + data[51:]):
        file.write_bytes(damaged)
        with pytest.raises(CorruptDatasetError, match=r"vocab/city-\w+\.parquet"):
            open_dataset(tmp_path)


def test_state_files_are_deterministic(prep, table, sizes):
    sizes(large_vocabulary=3)
    first = state_files(prep.to_state())
    assert first == state_files(dp.Preprocessor(prep.features).fit(table).to_state())
    features, learned = restore(state_from_files(first.__getitem__))
    assert list(features) == list(prep.features_)
    assert learned["review"].to_dict() == prep.learned_["review"].to_dict()


def test_vocabulary_file_of_long_column_name(tmp_path, write, sizes):
    sizes(large_vocabulary=1)
    frame = pd.DataFrame({"ä/" * 200: ["a", "b"]})
    prep = dp.Preprocessor({"ä/" * 200: "category"}).fit(frame)
    write(tmp_path, prep.encode(frame), prep, rows={"train": 2})
    assert open_dataset(tmp_path)["train"].head()["ä/" * 200].tolist() == ["a", "b"]


def test_repr_shows_splits_outputs_and_size(dataset):
    lines = repr(dataset).splitlines()
    files = [file for file in Path(dataset.url, dataset.version).rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    assert lines[0] == f"Dataset at {dataset.url}: 100 rows, {size / 1000:.1f} KB in {len(files)} files"
    assert "train       70    9" in lines
    assert "bag          uint16   2 x 3" in lines
    assert "city         uint8" in lines
    assert repr(dataset["train"]) == f"Split('train': 70 rows of {dataset.url})"


def test_repr_html_escapes_names(write, tmp_path):
    frame = pd.DataFrame({"<script>": [1.0, 2.0]})
    prep = dp.Preprocessor({"<script>": "number"}).fit(frame)
    write(tmp_path / "<b>", prep.encode(frame), prep, rows={"train": 2})
    html = open_dataset(tmp_path / "<b>")._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "<b>" not in html
    assert "float32" in html


def test_completion_shows_what_the_documentation_uses(dataset):
    """Attributes of readers and reports exist, apart from those for users."""
    for opened, hidden in ((dataset, {"manifests", "layout", "loss_counts"}), (dataset["train"], {"block", "layout"})):
        assert all(hasattr(opened, name) for name in hidden)
        assert hidden.isdisjoint(dir(opened))
    assert {"report", "losses", "append", "delete", "datasets"} - set(dir(dataset)) == {"append"}
    assert {"loader", "read", "head"} <= set(dir(dataset["train"]))
