"""Reports and notebook views in a browser."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import daskprep as dp
from benchmarks.own.report_page import cards
from tests.browser import Browser

DESKTOP, PHONE = 1280, 390  # pixels
# Words that wrap over two lines; truncated or scrollable text has one line.
BROKEN = r"""(() => {
  const broken = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = new Range();
  while (walker.nextNode()) {
    const node = walker.currentNode;
    for (const word of node.data.matchAll(/[\p{L}\p{N}_]+/gu)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const tops = new Set([...range.getClientRects()].map(one => Math.round(one.top)));
      if (tops.size > 1) broken.push(word[0]);
    }
  }
  return broken;
})()"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def page(path, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("browser") / "report.html"
    dp.open_dataset(path).report(file)
    return file


def brightness(browser: Browser, path: Path) -> np.ndarray:
    browser.screenshot(path)
    return np.asarray(Image.open(path).convert("L"))


def test_report_follows_the_color_scheme_without_console_errors(browser, page, tmp_path):
    for dark in (False, True):
        browser.open(page.as_uri(), DESKTOP, dark=dark)
        shown = brightness(browser, tmp_path / "page.png")
        assert (np.median(shown) < 50) == dark
        assert np.ptp(shown) > 150  # of text
        assert browser.errors == []


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_report_fits_the_screen_and_breaks_no_word(browser, page, width):
    browser.open(page.as_uri(), width)
    assert browser.evaluate("document.querySelectorAll('section').length") > 10
    assert browser.evaluate(OVERFLOW) <= 0
    # The name of 80 letters cannot scroll.
    assert {word for word in browser.evaluate(BROKEN) if not word.startswith("long")} == set()


def test_scrollable_table_rows_have_one_line_on_a_phone(browser, page):
    browser.open(page.as_uri(), PHONE)
    heights = browser.evaluate("[...document.querySelectorAll('.scroll td')].map(cell => cell.offsetHeight)")
    assert max(heights) < 40


def test_search_filters_the_overview(browser, page):
    browser.open(page.as_uri(), DESKTOP)
    shown = "[...document.querySelectorAll('.overview tr')].filter(row => row.offsetHeight).length - 1"
    every = browser.evaluate(shown)
    for text, rows in (("PRICE", 1), ("script>", 1), ("no such feature", 0), (" number ", 4), ("", every)):
        browser.evaluate("document.querySelector('.search').select()")
        browser.type(text)
        assert browser.evaluate(shown) == rows, text
    assert browser.errors == []


def test_injected_scripts_do_not_run(browser, page, tmp_path):
    injected = tmp_path / "injected.html"
    hostile = "<script>document.title='ran'</script><img src='data:,' onerror=\"document.title='ran'\">"
    injected.write_text(page.read_text().replace("</main>", f"{hostile}</main>"))
    browser.open(injected.as_uri())
    assert browser.evaluate("document.title") == "made.dp: report"
    assert sum("Content Security Policy" in error for error in browser.errors) == 2
    assert not browser.evaluate("document.querySelector('.search').hidden")


def test_search_field_is_hidden_in_print_and_without_script(browser, page, tmp_path):
    browser.open(page.as_uri(), media="print")
    height = "document.querySelector('.search').offsetHeight"
    assert browser.evaluate(height) == 0
    still = tmp_path / "still.html"
    still.write_text(re.sub("<script>.*?</script>", "", page.read_text(), flags=re.DOTALL))
    browser.open(still.as_uri())
    assert browser.evaluate(height) == 0


def test_broken_words_are_detected(browser, tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text("<p style='width:30px;overflow-wrap:anywhere'>unbreakable</p>")
    browser.open(broken.as_uri())
    assert browser.evaluate(BROKEN) == ["unbreakable"]


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("dark", [False, True])
def test_notebook_views_break_no_word_and_scroll(browser, path, tmp_path, width, dark):
    dataset = dp.open_dataset(path, trusted=True)
    prep = dp.Preprocessor.from_dataset(dataset)
    file = tmp_path / "cards.html"
    objects = [prep, dataset, dataset["train"], dataset["train"].loader(batch_size=32), dp.Number(), dp.RandomSplit()]
    cards(file, objects, dark=dark)
    browser.open(file.as_uri(), width, dark=dark)
    assert browser.errors == []
    assert browser.evaluate(OVERFLOW) <= 0
    assert browser.evaluate(BROKEN) == []
    assert (np.median(brightness(browser, tmp_path / "cards.png")) < 50) == dark
    heights = "[...document.querySelectorAll('svg')].map(one => one.getBoundingClientRect().height)"
    assert set(browser.evaluate(heights)) == {18}


def test_all_columns_are_visible_at_notebook_width(browser, tmp_path):
    frame = pd.DataFrame({"City Name": [None, "Rome", "Oslo"] * 20, "price": [None, 1.5, 2.25] * 20})
    frame["sold"] = ["yes", "no"] * 30
    features = {
        "City Name": dp.Category(missing_value_strategy="fill_with_mode", min_frequency=2),
        "price": dp.Number(normalization="minmax", missing_value_strategy="fill_with_mean"),
        "sold": "binary",
        "words": dp.Text(column="City Name"),
    }
    file = tmp_path / "cards.html"
    cards(file, [dp.Preprocessor(features, targets="sold").fit(frame)])
    for width in (700, 750, 900):
        browser.open(file.as_uri(), width)
        assert browser.evaluate("(card => card.scrollWidth - card.clientWidth)(document.querySelector('div>div'))") <= 0
        assert browser.evaluate(BROKEN) == []
