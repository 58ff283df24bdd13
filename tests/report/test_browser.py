"""Reports and notebook views as a browser shows them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import daskprep as dp
from benchmarks.report_page import cards
from tests.browser import Browser

DESKTOP, PHONE = 1280, 390  # pixels
# Words that stand on two lines; what is cut by an ellipsis or scrolled away stands on one.
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


def test_a_report_is_light_or_dark_and_says_nothing_on_the_console(browser, page, tmp_path):
    for dark in (False, True):
        browser.open(page.as_uri(), DESKTOP, dark=dark)
        shown = brightness(browser, tmp_path / "page.png")
        assert (np.median(shown) < 50) == dark
        assert np.ptp(shown) > 150  # of text
        assert browser.errors == []


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_a_report_fits_the_screen_and_breaks_no_word(browser, page, width):
    browser.open(page.as_uri(), width)
    assert browser.evaluate("document.querySelectorAll('section').length") > 10
    assert browser.evaluate(OVERFLOW) <= 0
    # The name of 80 letters has no place where it could be scrolled to.
    assert {word for word in browser.evaluate(BROKEN) if not word.startswith("long")} == set()


def test_words_that_are_broken_are_found(browser, tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text("<p style='width:30px;overflow-wrap:anywhere'>unbreakable</p>")
    browser.open(broken.as_uri())
    assert browser.evaluate(BROKEN) == ["unbreakable"]


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("dark", [False, True])
def test_notebook_views_break_no_word_and_scroll_within(browser, path, tmp_path, width, dark):
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


def test_all_columns_of_a_card_are_seen_at_the_width_of_a_notebook(browser, tmp_path):
    frame = pd.DataFrame({"City Name": [None, "Rome", "Oslo"] * 20, "price": [None, 1.5, 2.25] * 20})
    features = {
        "City Name": dp.Category(missing_value_strategy="fill_with_mode", min_frequency=2),
        "price": dp.Number(normalization="minmax", missing_value_strategy="fill_with_mean"),
    }
    file = tmp_path / "cards.html"
    cards(file, [dp.Preprocessor(features).fit(frame)])
    for width in (750, 900):
        browser.open(file.as_uri(), width)
        assert browser.evaluate("(card => card.scrollWidth - card.clientWidth)(document.querySelector('div>div'))") <= 0
        assert browser.evaluate(BROKEN) == []
