from __future__ import annotations

import base64
import hashlib
import io
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import daskprep as dp
from daskprep.columns.display import truncate
from daskprep.errors import ConfigError
from daskprep.extensions.media.pixels import encode_png
from daskprep.extensions.report.page import STYLE

VOID = {"meta", "link", "img", "input", "wbr"}


class Page(HTMLParser):
    """Elements of a page with their attributes, and text; raises if elements are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}


@pytest.fixture(scope="module")
def html(path) -> str:
    return dp.open_dataset(path).report().html


@pytest.fixture(scope="module")
def page(html) -> Page:
    return Page(html)


def write(frame, features, path, **options):
    return dp.Preprocessor(features, **options).fit_write(frame, path)


def test_page_has_a_section_per_feature(dataset, page):
    assert set(map(truncate, dataset.features)) <= set(page.text)
    ids = [attributes.get("id") for tag, attributes in page.elements if tag == "section"]
    assert ids == [f"feature-{place}" for place in range(len(dataset.features))]


def test_every_link_has_a_target_on_the_page(dataset, page):
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    links = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
    assert [link for link in links if links.count(link) == 1]
    assert {link.removeprefix("#") for link in links} == ids
    assert len(ids) == len(dataset.features)


def test_html_in_values_is_escaped(page, html):
    assert not {"iframe", "object"} & page.tags()
    assert sum(tag == "script" for tag, _ in page.elements) == 1
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    text = "".join(page.text)
    assert all(
        token in text for token in ["<script>alert(1)</script>", '<img src=x onerror="alert(2)">', "a&b", "</style>"]
    )
    assert html.count("</style>") == 1


def test_page_has_no_external_references(page, html):
    referring = ("src", "href", "srcset", "action", "data", "poster", "xlink:href")
    found = [value for _, attributes in page.elements for name, value in attributes.items() if name in referring]
    assert {value[:1] for value in found if not value.startswith("data:")} == {"#"}
    assert not re.search(r"url\(|@import|https?:", STYLE)
    policy = next(one["content"] for _, one in page.elements if one.get("http-equiv") == "Content-Security-Policy")
    [script] = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sources = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"
    assert policy == f"{sources}; script-src 'sha256-{allowed}'"
    assert "//" not in re.sub(r"base64,[^\"]*", "", html).replace(STYLE, "")


def test_page_supports_phones_and_dark_mode(page):
    viewport = next(one for _, one in page.elements if one.get("name") == "viewport")
    assert viewport["content"] == "width=device-width, initial-scale=1"
    assert "prefers-color-scheme:dark" in STYLE


def test_page_is_small(dataset, html):
    assert len(html) < 30_000 * len(dataset.features)


def test_report_is_deterministic(dataset, html):
    assert dataset.report().html == html


def test_counts_on_the_page_equal_the_rows(dataset, page):
    counts = np.bincount(dataset["train"].read("city")["city"])
    assert all(f"{count:,}" in page.text for count in counts[1:])
    assert f"{len(dataset['train']):,}" in page.text


def test_classes_are_shown_before_and_after_balancing(dataset, page):
    rows = dataset["train"].read(["row_id", "sold"])
    before = pd.DataFrame(rows).drop_duplicates("row_id")["sold"].value_counts()
    after = pd.DataFrame(rows)["sold"].value_counts()
    start = page.text.index("Classes before and after balancing")
    section = page.text[start : page.text.index("Features")]
    first = section[section.index("Training rows of sold") :][:16]
    assert "before" in first
    counts = [before[0], after[0], before[1], after[1]]
    assert [int(one) for one in first if one.isdigit()] == counts


def test_page_without_balance_has_no_balancing_section(frame, tmp_path):
    text = write(frame, {"city": "category"}, tmp_path / "d").report().html
    assert "balancing" not in text


def test_missing_and_unreadable_cells_are_shown(tmp_path):
    frame = pd.DataFrame({"price": ["1", "2", "<b>", None]})
    with pytest.warns(UserWarning, match="cannot be read"):
        dataset = write(frame, {"price": "number"}, tmp_path / "d")
    text = "".join(Page(dataset.report().html).text)
    assert "missing 2 (50.0 %), filled with 1.5" in text
    assert "unreadable 1: '<b>'" in text


def test_dropped_rows_are_a_share_of_all_rows(tmp_path):
    frame = pd.DataFrame({"price": [1.0, None, 3.0, None]})
    dataset = write(frame, {"price": dp.Number(missing_value_strategy="drop_row")}, tmp_path / "d")
    text = "".join(Page(dataset.report().html).text)
    assert "missing 2 (50.0 %), dropped" in text
    assert "2 rows of the source could not be used" in text


def test_undersampling_notes_that_dropped_rows_are_unknown(frame, tmp_path):
    dataset = write(frame, {"sold": "binary"}, tmp_path / "d", balance=dp.Undersample("sold", ratio=1.0))
    assert "left out are not in the dataset" in dataset.report().html


@pytest.mark.filterwarnings("ignore:column .* (is constant|has no values)")
@pytest.mark.parametrize("kind", ["number", "category", "set", "bag", "sequence", "text", "timeseries", "date", "h3"])
def test_column_without_values_has_a_section(kind, tmp_path):
    frame = pd.DataFrame({"x": pd.Series([None, None], dtype=object), "y": [1, 2]})
    dataset = write(frame, {"x": kind, "y": "number"}, tmp_path / "d")
    assert "missing 2 (100 %)" in "".join(Page(dataset.report().html).text)


@pytest.mark.filterwarnings("ignore:.* is constant")
def test_single_row_has_a_report(frame, dataset, tmp_path):
    dataset = write(frame.iloc[:1], dataset.features, tmp_path / "d")
    assert Page(dataset.report().html).tags() >= {"svg", "img", "table"}


def test_undecodable_images_are_named(tmp_path):
    frame = pd.DataFrame({"photo": ["gone.png", "gone too.png"]})
    photo = dp.Image(height=2, width=2, num_channels=3, base_dir=str(tmp_path))
    text = "".join(Page(write(frame, {"photo": photo}, tmp_path / "d").report().html).text)
    assert re.search(r"Row 0 cannot be decoded: gone\.png: .*gone\.png: no such file or directory\.", text)
    assert "0 images of train" in text


def test_report_is_written_to_a_file(dataset, html, tmp_path):
    report = dataset.report(tmp_path / "reports" / "report.html")
    assert (tmp_path / "reports" / "report.html").read_text("utf-8") == html == report.html
    assert "save(path)" in repr(report)
    with pytest.raises(ConfigError, match=r"not a file name: add one, such as report\.html"):
        report.save(f"{tmp_path}/")


def test_report_is_written_to_the_current_folder(dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dataset.report("report.html")
    assert (tmp_path / "report.html").exists()


def test_notebook_shows_the_report_in_a_sandboxed_iframe(dataset, html):
    [(tag, attributes)] = Page(dataset.report()._repr_html_()).elements
    assert (tag, attributes["sandbox"]) == ("iframe", "")
    assert attributes["srcdoc"] == re.sub("<script>.*?</script>", "", html, flags=re.DOTALL)


def test_features_beyond_the_limit_are_counted(tmp_path):
    frame = pd.DataFrame({f"c{i}": [1.0, 2.0] for i in range(205)})
    page = Page(write(frame, dict.fromkeys(frame, "number"), tmp_path / "d").report().html)
    assert sum(tag == "section" for tag, _ in page.elements) == 200
    assert "5 more features are not shown." in page.text


def test_mask_is_shown_by_its_classes(tmp_path):
    masks = [encode_png(np.array([[0, 255], [255, 255]], np.uint8))] * 3
    photo = dp.Image(height=2, width=2, num_channels=1, num_classes=2)
    dataset = write(pd.DataFrame({"mask": masks}), {"mask": photo}, tmp_path / "d")
    html = dataset.report().html
    assert "class 0\ntrain 3 pixels (25.0 %)" in html
    assert "class 1\ntrain 9 pixels (75.0 %)" in html


def test_large_images_are_downscaled(tmp_path):
    big = [encode_png(np.full((300, 500, 3), 40, np.uint8))]
    photo = dp.Image(height=300, width=500, num_channels=3)
    dataset = write(pd.DataFrame({"photo": big}), {"photo": photo}, tmp_path / "d")
    [source] = re.findall(r'src="data:image/png;base64,([^"]*)"', dataset.report().html)
    with Image.open(io.BytesIO(base64.b64decode(source))) as image:
        assert image.size == (125, 75)
        assert image.getpixel((7, 7)) == (40, 40, 40)


def test_page_of_a_just_written_dataset_shows_timings(frame, tmp_path):
    written = dp.Preprocessor({"price": "number"}).fit_write(frame[["price"]], tmp_path / "a.dp")
    assert list(written.timings)
    page = written.report().html
    assert "Time of the write" in page
    assert all(stage in page for stage in written.timings)
    assert "Time of the write" not in dp.open_dataset(tmp_path / "a.dp").report().html
