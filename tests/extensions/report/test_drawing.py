from __future__ import annotations

import base64
import re
from dataclasses import replace

import numpy as np
import pytest

from daskprep.extensions.report.charts import Band, Bars, Histogram, Pictures, TableChart, draw


def attributes(html, element, name):
    return [float(one) for one in re.findall(rf'<{element} [^>]*?\b{name}="([0-9.-]+)"', html)]


@pytest.fixture
def histogram():
    return Histogram(
        title="Values",
        edges=np.array([0.0, 1.0, 3.0, 4.0]),
        counts={"train": np.array([2, 8, 0]), "test": np.array([1, 0, 1])},
        totals={"train": 20, "test": 10},
        ticks=[(0.0, "0"), (2.0, "<2>")],
        names=["0 to 1", "1 to 3", "3 to 4"],
    )


def test_histogram_bar_heights_are_shares(histogram):
    bars = re.findall(r'<rect (?![^>]*hover)[^>]*height="([0-9.]+)"', draw(histogram))
    assert [float(one) for one in bars] == [25.0, 100.0, 0.0]
    assert "highest bar 40.0 %" in draw(histogram)


def test_histogram_hover_widths_are_bin_widths(histogram):
    assert [float(one) for one in re.findall(r'width="([0-9.]+)"[^>]*class="hover"', draw(histogram))] == [
        100,
        200,
        100,
    ]


def test_other_splits_are_drawn_as_lines(histogram):
    assert 'd="M0 100H0V75H100V100H300V75H400V100"' in draw(histogram)


def test_hover_text_has_the_rows(histogram):
    assert "1 to 3\ntrain 8 rows (40.0 %)\ntest 0 rows (0 %)" in draw(histogram)


def test_axis_labels_are_escaped_and_positioned(histogram):
    assert '<span class="middle" style="left:50%">&lt;2&gt;</span>' in draw(histogram)
    assert '<span class="start" style="left:0%">0</span>' in draw(histogram)


def test_bar_lengths_are_shares():
    chart = Bars(
        title="Classes", labels=["a", "b"], counts={"train": [30, 15], "test": [1, 0]}, totals={"train": 60, "test": 4}
    )
    html = draw(chart)
    assert attributes(html, "rect", "width") == [400.0, 200.0, 200.0, 0.0]
    assert "<b>50.0 %</b><span>30</span>" in html


def test_band_surrounds_the_mean():
    one = np.array([0.0, 2.0])
    html = draw(Band(title="Mean", positions=2, means={"train": one}, low=one - 1, high=one + 1))
    assert 'd="M0 50L400 0L400 50L0 100Z"' in html
    assert 'd="M0 75L400 25"' in html
    assert "from -1 to 3" in html


def test_pictures_are_embedded():
    html = draw(Pictures(title="Samples", pictures=[(b"PNG", "row 7")]))
    assert f'src="data:image/png;base64,{base64.b64encode(b"PNG").decode()}"' in html
    assert 'class="pictures"' in html
    assert 'class="sounds"' in draw(Pictures(title="Samples", pictures=[(b"PNG", "row 7")], is_audio=True))


def test_audio_has_axes_and_a_player():
    pictures = [(b"PNG", "row 7")]
    chart = Pictures(title="Samples", pictures=pictures, is_audio=True, seconds=[1.5], audio=[b"WAV"])
    html = draw(chart)
    assert f'<audio src="data:audio/wav;base64,{base64.b64encode(b"WAV").decode()}" controls' in html
    ticks = [("0", "0"), ("33.3", "0.5"), ("66.7", "1"), ("100", "1.5 s")]
    assert re.findall(r'style="left:([\d.]+)%">([^<]+)', html) == ticks
    spectra = draw(replace(chart, vertical=("4,000", "Hz", "0"), audio=[]))
    assert "<span>4,000</span><span>Hz</span><span>0</span>" in spectra
    assert "<audio" not in spectra


def test_table_cells_are_escaped():
    assert "<td>&lt;b&gt;</td>" in draw(TableChart(title="Summary", rows=[["", "train"], ["mean", "<b>"]]))
