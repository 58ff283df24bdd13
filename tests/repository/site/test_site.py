"""The built site in a browser: search finds the expected pages, code is not cut off, and all resources load.

`make docs` builds the site and runs these tests on it; elsewhere they are skipped.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.browser import Browser

SITE = Path(os.environ.get("DASKPREP_SITE", "build/none"))
pytestmark = pytest.mark.skipif(not SITE.is_dir(), reason="no site in DASKPREP_SITE: run make docs")

FOLDERS = ("", "types", "how-to", "coming-from", "notebooks")
PAGES = sorted(str(page.relative_to(SITE)) for folder in FOLDERS for page in (SITE / folder).glob("*.html"))
SEARCHED = {
    "ColumnTransformer": ["coming-from/index"],
    "accelerate": ["training"],
    "audio spectrogram": ["media", "types/media"],
    "checkpoint": ["how-to/resume-training"],
    "class names": ["predicting"],
    "csv without header": ["files"],
    "cuda gpu": ["training", "install"],
    "data augmentation": ["media"],
    "disable progress bar": ["datasets", "command-line"],
    "docker": ["how-to/serve-a-model", "clusters"],
    "embedding size": ["how-to/train-a-model"],
    "excel": ["files"],
    "feature names": ["scikit-learn"],
    "forecasting window": ["types/dates-and-places"],
    "hugging face": ["coming-from/index"],
    "imbalanced classes": ["how-to/handle-class-imbalance"],
    "imputation": ["missing-values"],
    "incremental new rows": ["how-to/grow-a-dataset"],
    "install": ["install"],
    "kubernetes": ["clusters", "how-to/serve-a-model"],
    "leakage": ["how-to/cross-validate", "splits"],
    "mixed precision": ["training"],
    "multi gpu": ["training"],
    "notebook": ["notebooks/index"],
    "num_workers": ["loading", "training"],
    "one hot": ["types/categories"],
    "out of memory": ["memory"],
    "predict new data": ["predicting"],
    "pyspark": ["files"],
    "resume": ["how-to/resume-training"],
    "s3": ["object-stores"],
    "save load": ["start"],
    "serve model": ["how-to/serve-a-model"],
    "sklearn pipeline": ["scikit-learn", "notebooks/07_scikit_learn_pipelines"],
    "standard scaler": ["types/numbers"],
    "stratified split": ["splits"],
    "tokenizer": ["types/text"],
    "version upgrade": ["troubleshooting"],
    "vocabulary": ["types/text"],
    "windows": ["install"],
}
FOUND = """new Promise((resolve) => {
    const ready = () => document.querySelector("#search-results .search-summary")?.textContent.match(/found|did not/)
        && document.querySelector("#search-results ul.search");
    const wait = () => ready()
        ? resolve([...document.querySelectorAll("#search-results ul.search > li > a")].map((link) => link.pathname))
        : setTimeout(wait, 20);
    wait();
})"""
# Names of elements wider than their box: code that is cut off or scrolls, and pages that scroll sideways.
CUT_OFF = """[
    ...[...document.querySelectorAll("article div[class^=highlight-] pre")]
        .filter((block) => block.scrollWidth > block.clientWidth)
        .map((block) => block.textContent.split("\\n").sort((a, b) => b.length - a.length)[0]),
    ...(document.documentElement.scrollWidth > innerWidth ? ["the page"] : []),
]"""

# Of a phone: titles that are cut off, tables of up to three columns that scroll, and pages that scroll sideways.
CUT_ON_PHONES = """[
    ...[...document.querySelectorAll("article :is(h1, h2, h3)")].filter((one) => one.scrollWidth > one.clientWidth + 1),
    ...[...document.querySelectorAll("article .pst-scrollable-table-container table")]
        .filter((one) => one.rows[0].cells.length <= 3 && one.clientWidth > one.parentElement.clientWidth),
    ...(document.documentElement.scrollWidth > innerWidth ? [document.documentElement] : []),
].map((one) => one.textContent.slice(0, 80))"""

PARAMETERS = "document.querySelector('dt.sig').innerText.split(/[^a-z_]+/)"
CUT_NAMES = """[...document.querySelectorAll(".bd-sidebar-secondary code")]
    .filter((one) => one.getBoundingClientRect().right > innerWidth).map((one) => one.textContent)"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Serve the site from this process: search fetches pages, which file URLs do not support."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(SITE))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("query", "pages"), SEARCHED.items(), ids=SEARCHED)
def test_search_finds_the_expected_page(browser: Browser, url: str, query: str, pages: list[str]) -> None:
    browser.open(f"{url}/search.html?q={query.replace(' ', '+')}")
    first = [found.strip("/").removesuffix(".html") for found in browser.evaluate(FOUND)[:2]]
    assert set(first) & set(pages), first


@pytest.mark.parametrize("page", PAGES)
def test_page_shows_all_code_without_errors(browser: Browser, url: str, page: str) -> None:
    browser.open(f"{url}/{page}")
    assert browser.errors == []
    assert browser.evaluate(CUT_OFF) == []


@pytest.mark.parametrize(("name", "parameters"), [("Preprocessor", ["features", "keys"]), ("Number", ["bins"])])
def test_reference_shows_parameters_and_names(browser: Browser, url: str, name: str, parameters: list[str]) -> None:
    browser.open(f"{url}/reference/daskprep.{name}.html")
    assert set(parameters) <= set(browser.evaluate(PARAMETERS))
    assert browser.evaluate(CUT_NAMES) == []


@pytest.mark.parametrize("page", PAGES)
def test_page_fits_a_phone(browser: Browser, url: str, page: str) -> None:
    browser.open(f"{url}/{page}", width=390, dark=True)
    assert browser.evaluate(CUT_ON_PHONES) == []
