"""Relative paths in files are relative to the file, those in frames to the current folder."""

from __future__ import annotations

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import daskprep as dp
from daskprep.errors import ConfigError, MediaError
from daskprep.extensions.cli.program import main
from daskprep.extensions.media.pixels import encode_png

LEVELS = [10, 20, 30]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Return a folder with tables and images; the current folder has other images of the same names."""
    frame = pd.DataFrame({"photo": [f"photos/{level}.png" for level in LEVELS], "price": [1.0, 2.0, 3.0]})
    for folder, factor in (("data", 1), ("elsewhere", 5)):
        (tmp_path / folder / "photos").mkdir(parents=True)
        for level in LEVELS:
            pixels = np.full((2, 2, 3), level * factor, np.uint8)
            (tmp_path / folder / "photos" / f"{level}.png").write_bytes(encode_png(pixels))
    frame.to_csv(tmp_path / "data" / "table.csv", index=False)
    frame.to_parquet(tmp_path / "data" / "table.parquet")
    (tmp_path / "data" / "config.yaml").write_text(
        "input_features: [{name: photo, type: image}, {name: price, type: number}]\npreprocessing: {split: null}\n"
    )
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "data"


def levels(photos):
    return np.asarray(photos)[:, 0, 0, 0].tolist()


def make(**params):
    return dp.Preprocessor({"photo": dp.Image(**params)})


@pytest.mark.parametrize("name", ["table.csv", "table.parquet", "../data/table.csv"])
@pytest.mark.parametrize("params", [{}, {"mode": "eager"}, {"pack": True}, {"on_error": "drop"}])
def test_paths_in_file_are_relative_to_file(data, tmp_path, name, params):
    prep = make(**params)
    written = prep.fit_write(data / name, tmp_path / "a.dp")
    assert levels(written["train"].read("photo")["photo"]) == LEVELS
    assert levels(prep.write(data / name, tmp_path / "b.dp")["train"].read("photo")["photo"]) == LEVELS
    fitted = make(**params).fit(data / name)
    assert levels(fitted.encode(data / name)["photo"].compute()) == LEVELS
    assert fitted.assign(data / name)["split"].compute().tolist() == [0, 0, 0]
    [batch] = fitted.stream(data / name, 3, shuffle=False, expand=False)
    assert levels(batch["photo"]) == LEVELS


def test_command_line_paths_are_relative_to_file(data, tmp_path):
    out = tmp_path / "c.dp"
    assert main(["preprocess", str(data / "config.yaml"), str(data / "table.csv"), "-o", str(out)]) == 0
    assert levels(dp.open_dataset(out, trusted=True)["train"].read("photo")["photo"]) == LEVELS


@pytest.mark.parametrize("frames", [lambda frame: frame, lambda frame: dd.from_pandas(frame, npartitions=2)])
def test_paths_in_frame_are_relative_to_current_folder(data, tmp_path, frames):
    frame = frames(pd.read_csv(data / "table.csv"))
    assert levels(make().fit_write(frame, tmp_path / "d.dp")["train"].read("photo")["photo"]) == [50, 100, 150]


def test_base_dir_takes_precedence(data, tmp_path):
    written = make(base_dir=".").fit_write(data / "table.csv", tmp_path / "e.dp")
    assert levels(written["train"].read("photo")["photo"]) == [50, 100, 150]


def test_version_does_not_depend_on_current_folder(data, tmp_path, monkeypatch):
    before = make().fit_write(data / "table.csv", tmp_path / "f.dp").version
    monkeypatch.chdir(data)
    assert make().fit_write("table.csv", tmp_path / "f.dp").version == before


def test_relative_paths_with_files_in_several_folders_raise(data, tmp_path):
    for day, levels_of_day in (("1", LEVELS[:1]), ("2", LEVELS[1:])):
        (data / f"day={day}").mkdir()
        frame = pd.DataFrame({"photo": [f"photos/{level}.png" for level in levels_of_day]})
        frame.to_csv(data / f"day={day}" / "part.csv", index=False)
    paths = [data / "day=1" / "part.csv", data / "day=2" / "part.csv"]
    with pytest.raises(ConfigError, match='"photos/10.png" is a relative path, and .* 2 folders, such as .*base_dir'):
        make().fit_write(paths, tmp_path / "g.dp")
    written = make(base_dir=str(data)).fit_write(paths, tmp_path / "g.dp")
    assert levels(written["train"].read("photo")["photo"]) == LEVELS


def test_missing_file_error_names_path_relative_to_data(data, tmp_path):
    pd.DataFrame({"photo": ["10.png"]}).to_csv(data / "table.csv", index=False)
    (tmp_path / "elsewhere" / "10.png").write_bytes(encode_png(np.zeros((2, 2, 3), np.uint8)))
    with pytest.raises(MediaError, match=f"{data}/10.png"):
        make().fit_write(data / "table.csv", tmp_path / "h.dp")


def test_repair_paths_are_relative_to_file(data, tmp_path):
    written = make(pack=True).fit_write(data / "table.csv", tmp_path / "i.dp")
    damaged = next((tmp_path / "i.dp").rglob("part-00000.parquet"))
    damaged.write_bytes(b"")
    repaired = dp.repair(written.url, trusted=True)
    assert levels(repaired["train"].read("photo")["photo"]) == LEVELS
