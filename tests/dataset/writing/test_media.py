"""Images and audio are written decoded, as paths, or packed, and read the same from each."""

from __future__ import annotations

import io
import itertools
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from PIL import Image as PillowImage

import daskprep as dp
from daskprep.dataset.writing import parts
from daskprep.dataset.writing.encoded import cells_from_varlen, concatenate, take, varlen_buffers
from daskprep.errors import ConfigError, MediaError
from daskprep.extensions.media.audio import encode_wav
from daskprep.extensions.media.pixels import encode_png

ROWS = 60
IMAGE = {"height": 6, "width": 8, "num_channels": 3}
MODES = [{"mode": "eager"}, {"mode": "lazy"}, {"mode": "lazy", "pack": True}, {"mode": "lazy_cached"}]
BROKEN = (7, 31)


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    folder, rng = tmp_path_factory.mktemp("media"), np.random.default_rng(0)
    for row in range(ROWS):
        (folder / f"{row}.png").write_bytes(encode_png(rng.integers(0, 256, (9, 7 + row % 3, 3), dtype=np.uint8)))
        samples = rng.normal(size=900 + row).astype(np.float32) / 8
        (folder / f"{row}.wav").write_bytes(encode_wav(samples, 8_000))
    names = [str(folder / str(row)) for row in range(ROWS)]
    return pd.DataFrame(
        {
            "photo": [f"{name}.png" for name in names],
            "noise": [f"{name}.wav" for name in names],
            "sold": rng.choice(["yes", "no"], ROWS, p=[0.2, 0.8]),
        }
    )


@pytest.fixture
def broken(frame: pd.DataFrame, tmp_path: Path) -> pd.DataFrame:
    (tmp_path / "cut.png").write_bytes(Path(frame["photo"][0]).read_bytes()[:60])
    frame = frame.copy()
    frame.loc[BROKEN[0], "photo"] = str(tmp_path / "cut.png")
    frame.loc[BROKEN[1], "photo"] = str(tmp_path / "none.png")
    return frame


def prep(how: dict[str, Any], **options: Any) -> dp.Preprocessor:
    sound = dp.Audio(audio_file_length_limit_in_s=0.1, num_filter_bands=6, **how)
    return dp.Preprocessor({"photo": dp.Image(**IMAGE, **how), "noise": sound, "sold": "category"}, **options)


def photos(how: dict[str, Any], **options: Any) -> dp.Preprocessor:
    return dp.Preprocessor({"photo": dp.Image(**IMAGE, **how)}, **options)


def by_row(dataset: dp.Dataset) -> dict[str, np.ndarray]:
    """Read every output of the training rows, in the order of the source."""
    arrays = dataset["train"].read(["row_id", "photo", "noise"])
    order = np.argsort(arrays["row_id"], kind="stable")
    return {name: array[order] for name, array in arrays.items()}


@pytest.mark.parametrize("how", MODES, ids=["eager", "lazy", "packed", "cached"])
@pytest.mark.parametrize("shuffle", [False, True], ids=["ordered", "shuffled"])
def test_all_modes_equal_encode(frame, tmp_path, how, shuffle):
    fitted = prep(how).fit(frame)
    dataset = fitted.write(frame, tmp_path / "a.dp", shuffle=shuffle, block_rows=7)
    dataset.verify()
    expected, found = fitted.encode(frame), by_row(dataset)
    np.testing.assert_array_equal(found["photo"], expected["photo"])
    np.testing.assert_array_equal(found["noise"], expected["noise"])


def content(dataset: dp.Dataset) -> dict[str, bytes]:
    folder = Path(dataset.url) / dataset.version
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("how", [MODES[0], MODES[2]], ids=["eager", "packed"])
@pytest.mark.parametrize("shuffle", [False, True], ids=["ordered", "shuffled"])
def test_bytes_do_not_depend_on_partitions(frame, tmp_path, how, shuffle):
    def written(rows: Any, name: str) -> dict[str, bytes]:
        return content(prep(how).fit_write(rows, tmp_path / name, shuffle=shuffle, block_rows=7))

    expected = written(frame, "pandas")
    for partitions in (1, 4):
        assert written(dd.from_pandas(frame, npartitions=partitions), f"{partitions}") == expected


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("how", [MODES[0], MODES[2]], ids=["eager", "packed"])
@pytest.mark.parametrize("shuffle", [False, True], ids=["ordered", "shuffled"])
def test_workers_write_same_files(request, frame, tmp_path, how, shuffle):
    expected = content(prep(how).fit_write(frame, tmp_path / "here", block_rows=7, shuffle=shuffle))
    request.getfixturevalue("cluster")
    # Several processes exchange cells in files between passes.
    rows = dd.from_pandas(frame, npartitions=5)
    assert content(prep(how).fit_write(rows, tmp_path / "there", block_rows=7, shuffle=shuffle)) == expected


def test_packed_files_are_readable_by_polars_and_duckdb(frame, tmp_path):
    dataset = photos({"pack": True}).fit_write(frame, tmp_path / "a.dp")
    [file] = (Path(dataset.url) / dataset.version).glob("train/table/*")
    originals = [Path(path).read_bytes() for path in frame["photo"]]
    assert [row["bytes"] for row in pl.read_parquet(file)["photo"]] == originals
    found = duckdb.sql(f"select photo.bytes from '{file}' order by row_id").fetchall()
    assert [row for (row,) in found] == originals


def test_paths_below_base_dir_are_unchanged(frame, tmp_path):
    folder = Path(frame["photo"][0]).parent
    names = frame.assign(photo=[Path(path).name for path in frame["photo"]])
    dataset = photos({"base_dir": str(folder)}).fit_write(names, tmp_path / "a.dp")
    assert dataset["train"].table("photo")["photo"][3].as_py() == {"bytes": None, "path": "3.png"}
    moved = tmp_path / "moved"
    folder.rename(moved)
    try:
        with pytest.raises(MediaError, match="no such file"):
            dataset["train"].read("photo")
        assert dp.open_dataset(tmp_path / "a.dp", base_dir=moved)["train"].read("photo")["photo"].any()
    finally:
        moved.rename(folder)


def test_media_in_memory_are_stored_in_dataset(frame, tmp_path):
    pixels = [np.asarray(PillowImage.open(path)) for path in frame["photo"]]
    cells = [pixels[0], PillowImage.fromarray(pixels[1]), Path(frame["photo"][2]).read_bytes(), frame["photo"][3], None]
    dataset = photos({}).fit_write(pd.DataFrame({"photo": cells}), tmp_path / "a.dp")
    expected = photos({}).fit(frame).encode(frame.head(4))["photo"]
    found = dataset["train"].read("photo")["photo"]
    np.testing.assert_array_equal(found[:4], expected)
    assert not found[4].any()


@pytest.mark.parametrize("how", [MODES[0], MODES[2]], ids=["eager", "packed"])
def test_broken_file_error_names_row_and_path(broken, tmp_path, how):
    expected = "none.png" if "pack" in how else "cut.png"
    row = BROKEN[1] if "pack" in how else BROKEN[0]
    with pytest.raises(MediaError, match=rf'column "photo", row {row}: .*{expected}: .*; correct it, or use on_error='):
        photos(how).fit_write(broken, tmp_path / "a.dp")
    with pytest.raises(dp.errors.IncompleteDatasetError, match="was never finished"):
        dp.open_dataset(tmp_path / "a.dp")


def test_lazy_media_are_not_opened_by_write(broken, tmp_path):
    dataset = photos({}).fit_write(broken, tmp_path / "a.dp", block_rows=10)
    assert dataset["train"].read("photo", 10, 20)["photo"].shape == (10, 3, 6, 8)
    with pytest.raises(MediaError, match=f"row {BROKEN[0]}: .*cut.png"):
        dataset["train"].read("photo", 0, 10)


@pytest.mark.filterwarnings("ignore:.* cannot be decoded")
@pytest.mark.parametrize("shuffle", [False, True], ids=["ordered", "shuffled"])
def test_filled_media_are_in_rejects(broken, tmp_path, shuffle):
    how = {"mode": "eager", "on_error": "fill"}
    dataset = photos(how).fit_write(broken, tmp_path / "a.dp", shuffle=shuffle, block_rows=7)
    listed = dataset.rejects().to_pylist()
    assert [(one["row_id"], one["column"]) for one in listed] == [(row, "photo") for row in BROKEN]
    assert "cut.png: " in listed[0]["reason"]
    assert "none.png: no such file" in listed[1]["reason"]
    arrays = dataset["train"].read(["row_id", "photo"])
    mean = dataset.learned["photo"].mean_colour
    for row in BROKEN:
        [found] = arrays["photo"][arrays["row_id"] == row]
        assert (found == np.array(mean)[:, None, None]).all()


@pytest.mark.filterwarnings("ignore:.* cannot be decoded")
@pytest.mark.parametrize("how", MODES, ids=["eager", "lazy", "packed", "cached"])
def test_dropped_rows_of_broken_files_are_in_rejects(broken, tmp_path, how):
    dataset = photos({**how, "on_error": "drop"}).fit_write(broken, tmp_path / "a.dp", block_rows=7)
    assert [one["row_id"] for one in dataset.rejects().to_pylist()] == list(BROKEN)
    assert "none.png: no such file" in dataset.rejects()["reason"][1].as_py()
    arrays = dataset["train"].read(["row_id", "photo"])
    assert arrays["row_id"].tolist() == [row for row in range(ROWS) if row not in BROKEN]


@pytest.mark.filterwarnings("ignore:.* cannot be decoded")
@pytest.mark.parametrize("done", [1, 4])
def test_resumed_write_lists_all_filled_media(broken, tmp_path, monkeypatch, sizes, done):
    sizes(part_bytes=2_000)
    how = {"mode": "eager", "on_error": "fill"}

    def write(name: str) -> dp.Dataset:
        return photos(how).fit_write(broken, tmp_path / name, block_rows=7, version="1")

    expected = content(write("whole"))
    counter, call = itertools.count(), parts.PartWriter.__call__

    def stop(self: parts.PartWriter, *args: Any) -> Any:
        if next(counter) >= done:
            raise KeyboardInterrupt
        return call(self, *args)

    with monkeypatch.context() as patch, dask.config.set(scheduler="sync"):
        patch.setattr(parts.PartWriter, "__call__", stop)
        with pytest.raises(KeyboardInterrupt):
            write("stopped")
    assert content(write("stopped")) == expected


@pytest.mark.filterwarnings("ignore:.* cannot be decoded")
@pytest.mark.parametrize("damaged", ["train/arrays.zarr/photo/c.2.0.0.0", "rejects.parquet"])
def test_repair_decoded_media(broken, tmp_path, damaged):
    dataset = photos({"mode": "eager", "on_error": "fill"}).fit_write(broken, tmp_path / "a.dp", block_rows=7)
    before = content(dataset)
    (Path(dataset.url) / dataset.version / damaged).write_bytes(b"")
    assert content(dp.repair(dataset.url, broken)) == before


def test_oversampled_rows_are_packed_repeatedly(frame, tmp_path):
    balance = dp.Oversample("sold", ratio=1.0)
    dataset = prep(MODES[2], balance=balance).fit_write(frame, tmp_path / "a.dp", block_rows=7, shuffle=True)
    arrays = dataset["train"].read(["row_id", "photo"])
    assert len(arrays["row_id"]) > ROWS
    expected = prep(MODES[2]).fit(frame).encode(frame)["photo"]
    np.testing.assert_array_equal(arrays["photo"], expected[arrays["row_id"]])


def test_dask_arrays_decode_by_block(frame, tmp_path):
    fitted = prep({}).fit(frame)
    train = fitted.write(frame, tmp_path / "a.dp", block_rows=7)["train"]
    photo = train.to_dask("photo")["photo"]
    assert photo.chunks[0] == (7,) * 8 + (4,)
    np.testing.assert_array_equal(photo[20:30].compute(), fitted.encode(frame)["photo"][20:30])
    assert train.to_xarray()["photo"].shape == (ROWS, 3, 6, 8)


@pytest.mark.parametrize("how", MODES[:3], ids=["eager", "lazy", "packed"])
def test_partition_is_not_decoded_at_once(tmp_path, how):
    rng = np.random.default_rng(0)
    (tmp_path / "a.png").write_bytes(encode_png(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)))
    frame = pd.DataFrame({"photo": [str(tmp_path / "a.png")] * 3_000})
    feature = dp.Image(height=64, width=64, num_channels=3, **how)
    fitted = dp.Preprocessor({"photo": feature}).fit(frame)
    fitted.write(frame.head(10), tmp_path / "warm.dp")
    tracemalloc.start()
    try:
        fitted.write(frame, tmp_path / "a.dp")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Decoded, the images are 37 MB.
    assert peak < 16_000_000


def some_cells() -> list[pa.StructArray]:
    kind = pa.struct([("bytes", pa.large_binary()), ("path", pa.string())])
    rows = [{"bytes": b"GIF89", "path": None}, None, {"bytes": None, "path": "ä.png"}, {"bytes": b"\0\0", "path": None}]
    return [pa.array(rows, kind), pa.array(rows * 3, kind).slice(2, 7), pa.array([], kind), pa.nulls(3, kind)]


@pytest.mark.parametrize("cells", some_cells(), ids=["all", "sliced", "none", "missing"])
def test_cells_round_trip_as_buffers(cells):
    heaps = [(starts + 100, np.frombuffer(data, np.uint8)) for starts, data in varlen_buffers(cells)]
    assert cells_from_varlen(heaps).to_pylist() == cells.to_pylist()
    order = np.arange(len(cells))[::-1]
    again: Callable[[Any], Any] = take
    assert again(concatenate([cells, cells]), order).to_pylist() == cells.to_pylist()[::-1]


@pytest.mark.parametrize(
    ("mode", "suffix", "options", "expected"),
    [
        ("RGB", "jpg", {"pack_size": 16}, ("JPEG", (16, 24))),
        ("RGB", "png", {"pack_size": 16}, ("PNG", (16, 24))),
        ("RGB", "png", {"pack_size": 16, "pack_quality": 80}, ("JPEG", (16, 24))),
        ("RGB", "png", {"pack_quality": 50}, ("JPEG", (40, 60))),
        ("RGBA", "png", {"pack_size": 16, "pack_quality": 80}, ("PNG", (16, 24))),
        ("L", "jpg", {"pack_size": 99}, ("JPEG", (40, 60))),
        ("L", "png", {"pack_size": 20, "num_classes": "auto"}, ("PNG", (20, 30))),
    ],
)
def test_pack_size_and_quality_shrink_images(tmp_path, mode, suffix, options, expected):
    coarse = np.random.default_rng(0).integers(0, 256, (3, 2, 4), np.uint8)
    picture = PillowImage.fromarray(coarse, "RGBA").resize((40, 60), PillowImage.Resampling.NEAREST).convert(mode)
    picture.save(tmp_path / f"a.{suffix}")
    feature = dp.Image(pack=True, **options)
    written = dp.Preprocessor({"x": feature}).fit_write(
        pd.DataFrame({"x": [str(tmp_path / f"a.{suffix}")]}), tmp_path / "a.dp"
    )
    cell = written["train"].table("x")["x"][0]["bytes"].as_py()
    found = PillowImage.open(io.BytesIO(cell))
    assert (found.format, found.size) == expected
    if expected[1] == picture.size and "pack_quality" not in options:
        assert cell == (tmp_path / f"a.{suffix}").read_bytes()
    close = np.asarray(found.convert("RGB").resize((2, 3), PillowImage.Resampling.BOX)).astype(int)
    assert np.abs(close - np.asarray(picture.convert("RGB").resize((2, 3), PillowImage.Resampling.BOX))).mean() < 12
    if "num_classes" in options:
        assert set(np.unique(np.asarray(found))) <= set(np.unique(np.asarray(picture)))


@pytest.mark.parametrize("options", [{"pack_size": 9}, {"pack": True, "pack_quality": 101},
                                     {"pack": True, "pack_quality": 9, "num_classes": 2}])  # fmt: skip
def test_invalid_pack_options_raise(options):
    with pytest.raises(ConfigError, match="pack_"):
        dp.Preprocessor({"x": dp.Image(**options)}).fit(pd.DataFrame({"x": [b"x"]}))
