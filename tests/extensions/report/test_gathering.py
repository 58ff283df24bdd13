from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.io import wavfile

import daskprep as dp
from daskprep.columns.summaries import Quantiles
from daskprep.dataset.split import Split
from daskprep.extensions.report import reporters
from daskprep.extensions.report.findings import compute_deviation, measure_positions
from daskprep.extensions.report.reporters import (
    REPORTERS,
    _draw_wave,
    _encode_clip,
    _sort_naturally,
    _strip_padding,
    choose_reporter,
    count_source_rows,
    gather,
    list_columns,
    sample_audio,
    split_windows,
)
from daskprep.features import FEATURES


def columns(dataset, *names):
    return [column for column in list_columns(dataset) if column.output.name in names]


def test_every_type_has_a_reporter():
    # "others" are the coordinates of Boxes and Keypoints.
    assert {feature.semantic_type for feature in FEATURES.values()} == REPORTERS.keys()


def test_columns_have_the_vocabulary_of_each_text_level(dataset):
    word, char = columns(dataset, "review_word", "review_char")
    assert (word.name, char.name) == ("review", "review")
    assert word.vocabulary == dataset.vocabulary("review_word")
    assert char.vocabulary == dataset.vocabulary("review_char")


def test_classes_and_lengths_equal_those_of_all_rows(dataset):
    found = gather([dataset["train"], dataset["test"]], columns(dataset, "city", "steps"))
    for split in ("train", "test"):
        rows = dataset[split].read(["city", "steps"])
        assert found["city"][split].counts.tolist() == np.bincount(rows["city"], minlength=4).tolist()
        assert (
            found["steps"][split].lengths.tolist()
            == np.bincount((rows["steps"] != 0).sum(axis=1), minlength=4).tolist()
        )


def test_padding_is_not_counted_as_a_token(dataset):
    counts = gather([dataset["train"]], columns(dataset, "steps"))["steps"]["train"].counts
    ids = dataset["train"].read("steps")["steps"]
    assert counts.tolist() == np.bincount(ids[ids != 0], minlength=len(counts)).tolist()


def test_positions_of_two_pieces_equal_those_of_all_rows():
    rows = np.array([[1.0, -5.0], [2.0, 7.0], [9.0, 0.5]])
    for cut in (1, 2):
        both = measure_positions(None, rows[:cut]) + measure_positions(None, rows[cut:])
        assert (both.rows, both.range.min, both.range.max) == (3, -5.0, 9.0)
        np.testing.assert_allclose(both.means, rows.mean(axis=0))
        np.testing.assert_allclose(both.deviations, rows.std(axis=0))


def test_classes_beyond_the_most_frequent_are_summed(tmp_path):
    frame = pd.DataFrame({"x": [f"c{i}" for i in range(30) for _ in range(30 - i)]})
    dataset = dp.Preprocessor({"x": "category"}).fit_write(frame, tmp_path / "d")
    [column] = list_columns(dataset)
    [bars] = REPORTERS["classes"].charts(column, gather([dataset["train"]], [column])["x"])
    assert bars.labels[0] == "c0"
    assert bars.labels[-1] == "18 other classes"
    assert bars.counts["train"][-1] == sum(range(1, 19))
    assert sum(bars.counts["train"]) == bars.totals["train"] == len(frame)


def test_repeated_tokens_of_a_bag_are_counted(dataset):
    [bag] = columns(dataset, "bag")
    counts = gather([dataset["train"]], [bag])["bag"]["train"].counts
    tokens = dataset.decode(dataset["train"].read("bag"))["bag"].explode().value_counts()
    for token, count in tokens.items():
        assert counts[dataset.vocabulary("bag").tokens.index(token).as_py()] == count


def test_quantiles_of_numbers_equal_the_source(dataset, frame):
    [rooms] = columns(dataset, "rooms")
    ids = dataset["test"].read("row_id")["row_id"]
    found = gather([dataset["test"]], [rooms])["rooms"]["test"]
    assert found.quantile(0.25) == pytest.approx(frame["rooms"].iloc[ids].quantile(0.25))


def test_small_numbers_among_large_ones_keep_their_digits(tmp_path):
    values = np.random.default_rng(0).lognormal(0, 2.5, 20_000)
    dataset = dp.Preprocessor({"x": dp.Number(normalization=None)}).fit_write(
        pd.DataFrame({"x": values}), tmp_path / "d"
    )
    found = gather([dataset["train"]], list_columns(dataset))["x"]["train"]
    for fraction in (0.0, 0.01, 0.25, 0.5, 1.0):
        assert found.quantile(fraction) == pytest.approx(np.quantile(values, fraction), rel=0.02)


def test_means_by_position_equal_the_rows(dataset):
    found = gather([dataset["train"]], columns(dataset, "curve"))["curve"]["train"]
    rows = dataset["train"].read("curve")["curve"]
    np.testing.assert_allclose(found.means, rows.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(found.deviations, rows.std(axis=0), atol=1e-6)
    assert (found.range.min, found.range.max) == (rows.min(), rows.max())


def test_results_do_not_depend_on_the_window_size(dataset, sizes):
    measured = columns(dataset, "price", "city", "tags", "listed", "curve")
    whole = gather([dataset["train"]], measured)
    sizes(report_bytes=1)
    pieces = gather([dataset["train"]], measured)
    assert pieces["price"]["train"] == whole["price"]["train"]
    assert pieces["listed"]["train"].days == whole["listed"]["train"].days
    assert pieces["tags"]["train"].counts.tolist() == whole["tags"]["train"].counts.tolist()
    np.testing.assert_allclose(pieces["curve"]["train"].sums, whole["curve"]["train"].sums)


def test_windows_are_whole_blocks_of_limited_bytes(dataset):
    split = dataset["train"]
    for row_bytes in (1, 1_000, 60_000, 10**9):
        pieces = list(split_windows(split, row_bytes))
        assert [start for start, _ in pieces[1:]] == [stop for _, stop in pieces[:-1]]
        assert pieces[-1][1] == len(split)
        for start, stop in pieces:
            assert start % 16 == 0
            assert stop - start <= 16 or (stop - start) * row_bytes <= reporters._WINDOW_BYTES


def test_reads_do_not_exceed_a_window(dataset, monkeypatch, sizes):
    read, seen = Split.read, []

    def counting(self, *arguments):
        arrays = read(self, *arguments)
        seen.append(sum(array.nbytes for array in arrays.values()))
        return arrays

    monkeypatch.setattr(Split, "read", counting)
    sizes(report_bytes=500)
    gather([dataset["train"]], columns(dataset, "price", "rooms", "city", "steps", "point"))
    assert len(seen) > 10
    assert max(seen) <= 500


def test_media_are_read_only_for_samples(dataset, monkeypatch):
    monkeypatch.setattr(Split, "table", None)
    media = columns(dataset, "photo", "noise", "thumb", "bands")
    found = gather(list(dataset.splits.values()), media)
    shown = {one.output.name: choose_reporter(one).charts(one, found[one.output.name])[0] for one in media}
    assert [len(shown[name].pictures) for name in ("photo", "thumb")] == [8, 8]
    assert len(shown["noise"].pictures) == len(shown["bands"].pictures) == 4
    assert all(list(one) == ["train"] for one in found.values())


def test_oversampled_rows_are_counted_once(dataset):
    train = dataset["train"]
    distinct, before = count_source_rows(train, columns(dataset, "sold"))
    rows = pd.DataFrame(train.read(["row_id", "sold"]))
    assert distinct == rows["row_id"].nunique() < len(rows)
    once = rows.drop_duplicates("row_id")["sold"].value_counts()
    assert before["sold"].counts.tolist() == [once[0], once[1]]


def test_oversampled_rows_are_counted_once_over_windows(dataset, sizes):
    whole = count_source_rows(dataset["train"], columns(dataset, "sold"))
    sizes(report_bytes=1)
    pieces = count_source_rows(dataset["train"], columns(dataset, "sold"))
    assert pieces[0] == whole[0]
    assert pieces[1]["sold"].counts.tolist() == whole[1]["sold"].counts.tolist()


def test_custom_type_is_shown_by_its_numbers(frame, tmp_path):
    dataset = dp.Preprocessor({"rooms": "number", "point": "vector"}).fit_write(frame, tmp_path / "d")
    for column in list_columns(dataset):
        other = REPORTERS["others"]
        assert other.measure is not None
        rows = dataset["train"].read(column.output.name)[column.output.name]
        charts = other.charts(column, {"train": other.measure(column, rows)})
        assert charts[0].title in {"Values", "Mean by position"}


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["10", "9", "1,000", "-1"], ["-1", "9", "10", "1,000"]),
        (["65+", "18-25", "26-64"], ["18-25", "26-64", "65+"]),
        (["Sunday", "Monday"], ["Monday", "Sunday"]),
        (["Dec", "Feb", "Jan"], ["Jan", "Feb", "Dec"]),
        (["High", "Low"], ["Low", "High"]),
        (["b", "a", "1"], ["b", "a", "1"]),
    ],
)
def test_classes_are_sorted_naturally(names, order):
    assert [names[place] for place in _sort_naturally(names)] == order


def test_waveform_fills_its_height_and_silence_is_a_line():
    loud, silent = (np.asarray(Image.open(io.BytesIO(_draw_wave(np.array(one))))) for one in ([0.5, -0.25], [0.0, 0.0]))
    assert loud.shape == silent.shape == (101, 2, 4)
    assert [np.flatnonzero(column)[[0, -1]].tolist() for column in loud[..., 3].T] == [[0, 0], [75, 75]]
    assert np.flatnonzero(silent[:, 0, 3]).tolist() == [50]
    many = np.asarray(Image.open(io.BytesIO(_draw_wave(np.tile([1.0, -1.0], 5_000)))))
    assert many.shape == (101, 480, 4)
    assert many[..., 3].all()


def test_padding_and_trailing_silence_of_audio_are_not_drawn():
    sound = np.array([[0.0], [0.5], [0.0], [0.1], [0.0], [0.0]])
    assert _strip_padding(sound).ravel().tolist() == [0.0, 0.5, 0.0, 0.1]
    assert len(_strip_padding(np.zeros((3, 2)))) == 3


@pytest.mark.parametrize(("rate", "factor"), [(8_000, 1), (16_000, 1), (44_100, 3)])
def test_embedded_audio_is_short_and_downsampled(rate, factor):
    wave = np.sin(np.arange(10 * rate, dtype=np.float32) * 0.01) * 4
    found, samples = wavfile.read(io.BytesIO(_encode_clip(wave, rate)))
    assert found == rate // factor
    assert samples.dtype == np.int16
    assert len(samples) == 3 * rate // factor
    assert np.abs(samples).max() == 32767  # samples beyond 1 are scaled, not clipped
    assert len(_encode_clip(wave, rate)) < 97_000
    assert np.corrcoef(samples, wave[: 3 * rate : factor])[0, 1] > 0.99


def test_audio_axes_are_seconds_and_hertz_or_bands(dataset):
    noise, bands = columns(dataset, "noise", "bands")
    [raw], [spectra] = (sample_audio(one, {"train": dataset["train"]}) for one in (noise, bands))
    assert raw.seconds == pytest.approx([0.1] * 4, rel=0.01)
    assert len(raw.audio) == 4
    assert raw.vertical is None
    assert all(0.1 < seconds <= 0.2 for seconds in spectra.seconds)
    assert spectra.vertical == ("8", "mel bands", "1")
    assert spectra.audio == []


def test_number_summary_has_std_and_zeros(tmp_path):
    numbers = np.r_[np.zeros(30), np.random.default_rng(0).lognormal(4, 1, 70)]
    for normalization in (None, "zscore"):
        prep = dp.Preprocessor({"x": dp.Number(normalization=normalization)})
        dataset = prep.fit_write(pd.DataFrame({"x": numbers}), tmp_path / str(normalization))
        [column] = list_columns(dataset)
        by_split = gather([dataset["train"]], [column])["x"]
        assert compute_deviation(by_split["train"]) == pytest.approx(numbers.std(), rel=1e-5)
        summary = REPORTERS["numbers"].charts(column, by_split)[1]
        assert ["zeros", "30 (30.0 %)"] in summary.rows
    huge = Quantiles.of(np.array([-1.7e308, 1.7e308]))
    assert compute_deviation(huge) == pytest.approx(1.7e308, rel=1e-3)
    assert compute_deviation(Quantiles.of(np.array([7.0, 7.0]))) == 0
