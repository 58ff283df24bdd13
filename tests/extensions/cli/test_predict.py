"""Model outputs as labels and units."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq

import daskprep as dp


def test_predict_accepts_one_array_or_arrays_by_target(call, files, tmp_path):
    scores = np.array([-2.0, 2.0])
    np.save(tmp_path / "a.npy", scores)
    np.savez(tmp_path / "a.npz", sold=scores)
    ended = call("predict", files / "rows.dp", tmp_path / "a.npy")
    assert ended.out.splitlines()[0] == "sold_predictions,sold_probability_yes"
    assert [line.split(",")[0] for line in ended.out.splitlines()[1:]] == ["no", "yes"]
    dp.Preprocessor.from_dataset(files / "rows.dp").save(tmp_path / "prep.json")
    assert call("predict", tmp_path / "prep.json", tmp_path / "a.npz") == ended
    options = ("--no-logits", "--threshold", 3, "-o", tmp_path / "a.parquet")
    np.save(tmp_path / "a.npy", np.array([0.2, 0.8]))
    assert (
        call("predict", files / "rows.dp", tmp_path / "a.npy", "--probabilities", "-o", tmp_path / "a.parquet")[0] == 0
    )
    assert "sold_probability_no" in pq.read_table(tmp_path / "a.parquet").column_names
    call("predict", files / "rows.dp", tmp_path / "a.npy", *options).check_line("threshold")


def test_predict_error_names_invalid_files(call, files, tmp_path):
    (tmp_path / "a.npy").write_text("1,2")
    call("predict", files / "rows.dp", tmp_path / "a.npy").check_line("a.npy has no arrays of numpy.save")
    call("predict", files / "rows.dp", tmp_path / "none.npy").check_line("check the path")


def test_predict_prints_with_a_dash(call, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.array([2.0]))
    assert call("predict", files / "rows.dp", "a.npy", "-o", "-") == call("predict", files / "rows.dp", "a.npy")


def test_predict_accepts_a_single_unnamed_array(call, files, tmp_path):
    np.save(tmp_path / "a.npy", np.array([-2.0, 2.0]))
    np.savez(tmp_path / "a.npz", np.array([-2.0, 2.0]))
    ended = call("predict", files / "rows.dp", tmp_path / "a.npz")
    assert ended == call("predict", files / "rows.dp", tmp_path / "a.npy")
    assert ended.status == 0
    ended = call("predict", files / "rows.dp", tmp_path / "a.npz", "--no-logits")
    ended.check_line("leave out --no-logits for raw scores")
    assert "batch" not in ended.error
