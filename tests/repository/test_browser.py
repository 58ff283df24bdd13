"""The browser of other tests reports errors of pages."""

from __future__ import annotations

from pathlib import Path

from tests.browser import Browser

PAGE = """<style>body { background: white; } @media (prefers-color-scheme: dark) { body { background: black; } }</style>
<script>console.error("bad")</script><script>missing()</script><img src="https://example.com/image.png">"""
LOOK = "[innerWidth, getComputedStyle(document.body).backgroundColor]"


def test_page_opens_in_requested_size_and_color_scheme(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(PAGE)

    browser.open(page.as_uri(), width=390, dark=True)
    assert browser.evaluate(LOOK) == [390, "rgb(0, 0, 0)"]
    browser.open(page.as_uri())
    assert browser.evaluate(LOOK) == [1280, "rgb(255, 255, 255)"]


def test_page_errors_are_listed_and_reset_by_next_page(browser: Browser, tmp_path: Path) -> None:
    page, empty = tmp_path / "page.html", tmp_path / "empty.html"
    page.write_text(PAGE)
    empty.write_text("")

    browser.open(page.as_uri())
    errors = "; ".join(browser.errors)
    assert "bad" in errors
    assert "missing is not defined" in errors
    assert "https://example.com/image.png" in errors
    browser.open(empty.as_uri())
    assert not browser.errors


def test_screenshot_has_the_window_size(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(PAGE)
    browser.open((tmp_path / "page.html").as_uri(), width=200, height=100)
    browser.screenshot(tmp_path / "page.png")

    header = (tmp_path / "page.png").read_bytes()[:24]
    assert header[:4] == b"\x89PNG"
    assert (int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")) == (200, 100)
