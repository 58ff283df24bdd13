"""Measure a report of 200 features in Chromium, and take the screenshots of reports and notebook views in the docs.

python -m benchmarks.own.report_page            # prints size and first paint
python -m benchmarks.own.report_page docs/images
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

import daskprep as dp
from daskprep.extensions.media.audio import encode_wav
from daskprep.extensions.media.pixels import encode_png
from tests.browser import Browser

ROWS = 4_000
# Table style of notebook outputs: one width for all columns, right-aligned words.
NOTEBOOK_WIDTH = 860  # pixels, as usual
NOTEBOOK = """
body{margin:16px;font:13px/1.4 system-ui,sans-serif;background:#fff;color:#1a1a1a}
body.dark{background:#111;color:#ddd}
table{table-layout:fixed;margin:0 auto;font-size:12px;border-collapse:collapse}
td,th{text-align:right;padding:.5em;white-space:normal;vertical-align:middle}
tbody tr:nth-child(odd){background:#f5f5f5}
"""


def homes(rows: int = ROWS) -> pd.DataFrame:
    """Return homes for sale with typical findings of reports: skew, a leak, a constant, drift, and missing values."""
    rng = np.random.default_rng(7)
    area = rng.lognormal(4.4, 0.4, rows).round(1)
    city = rng.choice(["Oslo", "Rome", "Lima", "Bern"], rows, p=[0.5, 0.3, 0.15, 0.05])
    year = 2024 - rng.gamma(2, 14, rows).astype(int)
    price = (area * (2_000 + 9 * (year - 1900)) * rng.lognormal(0, 0.9, rows)).round(-2)
    sold = rng.random(rows) < 1 / (1 + np.exp((np.log(price) - 12) * 2))
    listed = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.sort(rng.integers(0, 300 * 24, rows)), unit="h")
    waves = [np.sin(np.arange(800 + 400 * (i % 7)) * (0.02 + i % 5 / 20)).astype(np.float32) / 2 for i in range(rows)]
    return pd.DataFrame(
        {
            "city": city,
            "area": pd.Series(area).mask(rng.random(rows) < 0.08),
            "built": year,
            "price": price,
            "rooms": np.clip((area / 25).round(), 1, 9).astype(int),
            "floor": rng.choice(["1", "2", "3", "10"], rows, p=[0.3, 0.3, 0.25, 0.15]),
            "garden": pd.Series(rng.lognormal(5, 1.2, rows)).mask(rng.random(rows) < 0.55),
            "status": np.where(sold, "closed", "open"),
            "country": "known",
            "review": rng.choice(["Calm and lovely", "Too loud!", "Lovely garden", "Close to the station"], rows),
            "listed": listed,
            "photo": [encode_png(np.full((24, 32, 3), 40 + i % 180, np.uint8)) for i in range(rows)],
            "street": [encode_wav(one, 8_000) for one in waves],
            "sold": np.where(sold, "yes", "no"),
        }
    )


def preprocessor() -> dp.Preprocessor:
    """Return the Preprocessor of the homes."""
    features: dict[str, Any] = {
        "city": "category",
        "area": dp.Number(missing_value_strategy="fill_with_mean"),
        "built": "number",
        "price": dp.Number(normalization="log1p"),
        "rooms": "number",
        "floor": "category",
        "garden": "number",
        "status": "category",
        "country": "category",
        "review": "text",
        "listed": "date",
        "photo": dp.Image(height=24, width=32, num_channels=3),
        "street": dp.Audio(type="raw", audio_file_length_limit_in_s=0.5),
        "sold": "binary",
    }
    return dp.Preprocessor(features, split=dp.DatetimeSplit("listed"), targets="sold")


def wide(rows: int = 20_000, features: int = 200) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return a table of many numbers and categories, and their types."""
    rng = np.random.default_rng(0)
    numbers = {f"number_{i}": rng.lognormal(i % 7, 1, rows) for i in range(features // 2)}
    labels = {f"label_{i}": rng.integers(0, 2 + i % 30, rows).astype(str) for i in range(features - features // 2)}
    return pd.DataFrame(numbers | labels), dict.fromkeys(numbers, "number") | dict.fromkeys(labels, "category")


def cards(path: Path, objects: list[Any], *, dark: bool = False) -> None:
    """Write a page that shows objects like a notebook."""
    shown = "".join(f"<div style='margin:0 0 12px'>{one._repr_html_()}</div>" for one in objects)
    head = f"<meta charset=utf-8><style>{NOTEBOOK}</style>"
    path.write_text(f"<!doctype html>{head}<body class='{'dark' * dark}'>{shown}", "utf-8")


def screenshots(folder: Path, into: Path) -> None:
    """Write the images of the docs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the constant country is intended
        prep = preprocessor()
        dataset = prep.fit_write(homes(), folder / "homes.dp")
    dataset.report(folder / "report.html")
    views = {"preprocessor": prep, "dataset": dataset, "loader": dataset["train"].loader(batch_size=64)}
    for name, one in views.items():
        cards(folder / f"{name}.html", [one], dark=name == "dataset")
    with Browser() as browser:
        for name, width, height, dark in (
            ("report", 1280, 1500, False), ("report-phone", 390, 1200, False), ("report-dark", 1280, 1500, True)
        ):  # fmt: skip
            browser.open((folder / "report.html").as_uri(), width, height, dark=dark)
            shoot(browser, into / f"{name}.png")
        for name in views:
            browser.open((folder / f"{name}.html").as_uri(), NOTEBOOK_WIDTH)
            height = int(browser.evaluate("document.documentElement.getBoundingClientRect().height"))
            browser.open((folder / f"{name}.html").as_uri(), NOTEBOOK_WIDTH, height + 16)
            shoot(browser, into / f"notebook-{name}.png")


def shoot(browser: Browser, path: Path) -> None:
    """Store a screenshot with few colors."""
    browser.screenshot(path)
    with Image.open(path) as image:
        image.convert("RGB").quantize(128).save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size / 1e3:.0f} KB")


def measure(folder: Path) -> None:
    """Print the size of a wide report and the time to first paint."""
    frame, features = wide()
    page = folder / "wide.html"
    dp.Preprocessor(features, split=dp.RandomSplit()).fit_write(frame, folder / "wide.dp").report(page)
    print(f"report of {len(features)} features: {page.stat().st_size / 1e6:.2f} MB")
    with Browser() as browser:
        for width in (1280, 390):
            times = []
            for _ in range(3):
                browser.open(page.as_uri(), width)
                paint = "performance.getEntriesByName('first-contentful-paint').map(one => one.startTime)"
                times += browser.evaluate(f"new Promise(done => setTimeout(() => done({paint}), 1500))")
            print(f"{width} pixels: first contentful paint after {', '.join(f'{one:.0f}' for one in times)} ms")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        if len(sys.argv) > 1:
            screenshots(Path(scratch), Path(sys.argv[1]))
        else:
            measure(Path(scratch))
