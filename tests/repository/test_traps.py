"""Each warning box of the documentation names a trap, which a test here shows."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import PIL.Image
import pytest

import daskprep as dp
from daskprep.errors import ConfigError
from daskprep.extensions.media.audio import encode_wav
from daskprep.extensions.media.pixels import encode_png

DOCS = Path(__file__).parents[2] / "docs"
BOX = re.compile(r"^<!-- trap: ([a-z-]+) -->\n> \[!WARNING\]\n> \S", re.MULTILINE)


def boxes() -> dict[str, list[str]]:
    pages = [page for page in DOCS.rglob("*.md") if page.parent.name not in {"reference", "notebooks"}]
    return {str(page.relative_to(DOCS)): BOX.findall(page.read_text(encoding="utf-8")) for page in pages}


def test_every_box_has_a_test_and_every_test_a_box():
    named = sorted(name for names in boxes().values() for name in names)
    shown = sorted(name[10:].replace("_", "-") for name in globals() if name.startswith("test_trap_"))
    assert named == shown
    assert len(named) > 10


def test_a_page_has_at_most_one_box_and_each_is_named():
    for page, names in boxes().items():
        assert (DOCS / page).read_text(encoding="utf-8").count("[!WARNING]") == len(names) <= 1, page


def photo(orientation: int | None) -> bytes:
    """Return a JPEG file of 30 x 20 pixels, dark on its left, on its side if an orientation is passed."""
    pixels = np.full((20, 30, 3), 255, np.uint8)
    pixels[:, :10] = 0
    exif = PIL.Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "jpeg", exif=exif)
    return file.getvalue()


def least_memory(make) -> float:
    with pytest.raises(ConfigError, match="is not enough") as caught:
        make("1MB")
    return float(re.search(r"at least ([\d.]+) MB", str(caught.value))[1])


def test_trap_loader_memory(tmp_path):
    frame = pd.DataFrame({"x": list(np.zeros((3_000, 1_000), np.float32))})
    prep = dp.Preprocessor({"x": "vector"}, split=None).fit(frame)
    trains = {name: prep.write(frame, tmp_path / name, memory="8GB")["train"] for name in "abcd"}
    one = least_memory(lambda limit: trains["a"].loader(64, memory=limit))
    mixed = least_memory(lambda limit: dp.Mix(trains, 64, memory=limit))
    assert one > 1
    assert mixed > one


def test_trap_orientation():
    mask = np.zeros((20, 30), np.uint8)
    mask[:, :10] = 255
    frame = pd.DataFrame({"photo": [photo(6)], "mask": [encode_png(mask)]})
    features = {"photo": dp.Image(), "mask": dp.Image(num_classes="auto")}
    with pytest.warns(UserWarning, match="EXIF"):
        turned = dp.Preprocessor(features).fit(frame).encode(frame)
    assert (turned["photo"].shape[-2:], turned["mask"].shape[-2:]) == ((30, 20), (20, 30))
    for feature in features.values():
        feature.set_params(orientation="stored")
    stored = dp.Preprocessor(features).fit(frame).encode(frame)
    assert np.array_equal(stored["photo"][0, 0] < 128, stored["mask"][0] == 1)


def test_trap_cut_lengths(tmp_path):
    frame = pd.DataFrame({"review": [" ".join(map(str, range(length))) for length in (5, 300, 400)]})
    with pytest.warns(UserWarning, match="review"):
        prep = dp.Preprocessor({"review": dp.Text(max_sequence_length=256)}, split=None).fit(frame)
    assert prep.encode(frame)["review"].shape == (3, 256)
    with pytest.warns(UserWarning, match="information is lost"):
        losses = prep.write(frame, tmp_path / "reviews.dp").losses()
    assert losses[losses["cause"] == "cut"]["cells"].tolist() == [2]
    clips = pd.DataFrame({"clip": [encode_wav(np.ones(16_000, np.float32) / 8, 8_000)] * 2})
    with pytest.warns(UserWarning, match="raise audio_file_length_limit_in_s"):
        dp.Preprocessor({"clip": dp.Audio(audio_file_length_limit_in_s=1)}).fit(clips)


def test_trap_window_borders(tmp_path):
    days = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=20), "load": np.arange(20.0)})
    found = {}
    for across in ("default", False, True):
        options = {} if across == "default" else {"across_splits": across}
        features = {
            "past": dp.Timeseries(column="load", window_size=5, **options),
            "next": dp.Timeseries(column="load", horizon=2, **options),
        }
        split = dp.DatetimeSplit("day", (0.5, 0.0, 0.5))
        prep = dp.Preprocessor(features, targets="next", split=split)
        with warnings.catch_warnings(action="ignore"):
            dataset = prep.fit_write(days, tmp_path / f"{across}.dp")
        found[across] = dataset["test"].read("past")["past"][0], dataset["train"].read("next")["next"].max()
    assert found["default"][0].tolist() == [6, 7, 8, 9, 10]
    assert np.isnan(found[False][0]).sum() == 2
    assert (found["default"][1], found[False][1], found[True][1]) == (9, 9, 11)


@pytest.fixture
def noise() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame({"id": rng.integers(0, 500, 2_000), "label": rng.integers(0, 2, 2_000)})


def leak(encoded: np.ndarray, label: pd.Series) -> float:
    return np.corrcoef(encoded.ravel(), label)[0, 1]


def test_trap_target_encoding_rows(noise, tmp_path):
    prep = dp.Preprocessor({"id": dp.TargetEncoding(target="label")}, split=None).fit(noise)
    assert abs(leak(prep.write(noise, tmp_path / "same.dp")["train"].read("id")["id"], noise["label"])) < 0.1
    other = noise.iloc[::-1].reset_index(drop=True)
    assert leak(prep.write(other, tmp_path / "other.dp")["train"].read("id")["id"], other["label"]) > 0.2
    with pytest.warns(UserWarning, match="cross-fitted for other rows"):
        prep.write(noise[:1_000], tmp_path / "few.dp")


def test_trap_folds_target_encoding(noise, tmp_path):
    prep = dp.Preprocessor({"id": dp.TargetEncoding(target="label")}, split=dp.KFold(2))
    fitted = prep.fit_write(noise, tmp_path / "folds.dp").fold(0)["train"].read(["row_id", "id"])
    assert abs(leak(fitted["id"], noise["label"][fitted["row_id"]])) < 0.15
    prep.fit(noise)
    training = prep.assign(noise)["split"] != 0
    assert leak(prep.fold(0).transform(noise)[training], noise["label"][training]) > 0.3


def test_trap_left_out(tmp_path):
    frame = pd.DataFrame({"x": np.arange(20.0), "sold": ["yes", None, "no", "no"] * 5})
    prep = dp.Preprocessor({"x": "number", "sold": "binary"}, targets="sold", split=None)
    with pytest.warns(UserWarning, match="5 "):
        dataset = prep.fit_write(frame, tmp_path / "a.dp")
    assert (len(dataset["train"]), dataset.rejects().num_rows) == (15, 5)
    kept = dp.Binary(missing_value_strategy="fill_with_false")
    prep = dp.Preprocessor({"x": "number", "sold": kept}, targets="sold", split=None)
    with warnings.catch_warnings(action="ignore"):
        assert len(prep.fit_write(frame, tmp_path / "b.dp")["train"]) == 20


def test_trap_csv_frames(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("zip,code\n01067,NA\n01099,b\n")
    prep = dp.Preprocessor({"zip": "category", "code": "category"}).fit(path)
    assert prep.encode(dp.read_files(path))["zip"].compute().min() == 1
    assert prep.encode(pd.read_csv(path))["zip"].tolist() == [0, 0]
    assert prep.cell_counts(pd.DataFrame({"zip": ["01067"], "code": ["NA"]})).loc["code"].tolist() == [1, 0, 0, 1]


def test_trap_probability():
    frame = pd.DataFrame({"x": range(6), "sold": ["yes", "no"] * 3, "size": ["s", "m", "l"] * 2})
    features = {"x": "number", "sold": "binary", "size": "category"}
    prep = dp.Preprocessor(features, targets=["sold", "size"]).fit(frame)
    scores = {"sold": np.array([-2.0, 1.0]), "size": np.array([[3.0, 0.0, 0.0], [0.0, 0.0, 3.0]])}
    found = prep.predictions(scores)
    assert found["sold_probability_yes"].round(2).tolist() == [0.12, 0.73]
    assert found["size_predictions"].nunique() == 2
    assert np.ptp(found["size_probability"]) < 1e-6


def test_trap_silent_encode():
    prep = dp.Preprocessor({"price": dp.Number(normalization=None)})
    with pytest.warns(UserWarning, match="price"):
        prep.fit(pd.DataFrame({"price": ["1", "3", "n/a"]}))
    with warnings.catch_warnings(action="error"):
        assert prep.encode(pd.DataFrame({"price": ["n/a"]}))["price"].tolist() == [2]
    strict = dp.Preprocessor({"price": dp.Number(invalid="raise")}).fit(pd.DataFrame({"price": ["1", "3"]}))
    with pytest.raises(ValueError, match="n/a"):
        strict.encode(pd.DataFrame({"price": ["n/a"]}))


def test_trap_exif_boxes():
    frame = pd.DataFrame({"photo": [photo(6)], "boxes": [[[0, 0, 10, 20]]]})
    dark = {}
    for orientation in (None, "stored"):
        image = dp.Image(height=30, width=30, orientation=orientation)
        prep = dp.Preprocessor({"photo": image, "boxes": dp.Boxes(image="photo")})
        with warnings.catch_warnings(record=True, action="always") as caught:
            encoded = prep.fit(frame).encode(frame)
        assert any("orientation" in str(one.message) for one in caught) == (orientation is None)
        left, top, right, bottom = encoded["boxes"][0, 0].astype(int)
        dark[orientation] = encoded["photo"][0, :, top + 1 : bottom - 1, left + 1 : right - 1].mean()
    assert dark["stored"] < 20
    assert dark[None] > 60


def test_trap_dates_move_on():
    def days(start: str, periods: int) -> pd.DataFrame:
        return pd.DataFrame({"day": pd.date_range(start, periods=periods)})

    prep = dp.Preprocessor({"day": "date"}).fit(days("2024-01-01", 365))
    assert not prep.check(days("2025-01-01", 30)).findings
    later = days("2037-01-01", 30)
    assert prep.check(later).findings
    prep.grow(later)
    assert not [one for one in prep.check(later).findings if one.kind == "range"]


def test_trap_windows_new_rows():
    frame = pd.DataFrame({"load": np.arange(10.0)})
    prep = dp.Preprocessor({"past": dp.Timeseries(column="load", window_size=3)}).fit(frame)
    new = pd.DataFrame({"load": [10.0]})
    assert np.isnan(prep.encode(new)["past"]).tolist() == [[True, True, False]]
    assert prep.with_history(frame).encode(new)["past"].tolist() == [[8, 9, 10]]
    _, report = dp.serving.Encoder(prep.to_dict()).encode({"load": 10.0}, report=True)
    assert "padded" in report["past"]


def test_trap_append_splits(tmp_path):
    frame = pd.DataFrame({"user": np.arange(200) % 40, "x": np.arange(200.0)})
    prep = dp.Preprocessor({"user": "category", "x": "number"}, split=dp.GroupSplit("user"))
    prep.fit_write(frame, tmp_path / "a.dp")
    with pytest.warns(UserWarning, match="split"):
        dataset = prep.append(frame[frame["user"] < 20].assign(x=0.0), tmp_path / "a.dp", on_findings="ignore")
    found = [set(dataset[name].read("user")["user"].tolist()) for name in ("train", "test")]
    assert found[0] & found[1]
