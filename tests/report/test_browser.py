"""The page as a browser shows it; left out where there is no Chromium."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import daskprep as dp

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = os.environ.get("CHROME") or next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: install one, or name it in CHROME")

OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
DARK = "--blink-settings=preferredColorScheme=0"
PHONE = 390  # pixels


def browse(page: Path, *options: str) -> tuple[str, str]:
    """Open a file and return what the browser prints and logs."""
    assert BROWSER is not None
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [BROWSER, *OPTIONS, profile, "--enable-logging=stderr", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


def screenshot(page: Path, *options: str) -> np.ndarray:
    target = page.with_suffix(".png")
    _, log = browse(page, "--window-size=1200,1600", f"--screenshot={target}", *options)
    assert "CONSOLE" not in log
    return np.asarray(Image.open(target).convert("L"))


@pytest.fixture(scope="module")
def page(path, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("browser") / "report.html"
    dp.open_dataset(path).report(file)
    return file


def test_a_page_is_light_or_dark_and_says_nothing_on_the_console(page):
    light, dark = screenshot(page), screenshot(page, DARK)
    assert light.shape == dark.shape == (1600, 1200)
    assert np.median(light) > 230
    assert np.median(dark) < 50
    for picture in (light, dark):
        assert np.ptp(picture) > 150  # there is text


def test_a_phone_need_not_scroll_sideways(page, tmp_path):
    outer = tmp_path / "outer.html"
    frame = f'<iframe id="f" width="{PHONE}" height="800" srcdoc="{html.escape(page.read_text("utf-8"))}"></iframe>'
    measure = "document.body.id = 'w' + f.contentDocument.documentElement.scrollWidth"
    outer.write_text(f"<body>{frame}<script>window.onload = () => {{ {measure} }}</script>", "utf-8")
    printed, _ = browse(outer, "--dump-dom")
    [width] = re.findall(r'<body id="w(\d+)"', printed)
    assert 300 < int(width) <= PHONE


def test_what_scripts_would_do_is_seen_on_the_console(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<script>console.error('odd')</script>", "utf-8")
    _, log = browse(page, "--dump-dom")
    assert re.search(r"CONSOLE.*odd", log)
