"""Links between README, pages and notebooks resolve to existing files and headings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^(`{3,}).*?^\1`*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def documents() -> list[Path]:
    docs = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name not in {"reference", "notebooks"}]
    notebooks = [page for page in (ROOT / "notebooks").iterdir() if page.suffix in {".md", ".ipynb"}]
    return sorted([*ROOT.glob("*.md"), *docs, *notebooks])


def prose(page: Path) -> str:
    """Return the Markdown of a page or notebook without code blocks."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    return FENCE.sub("", text)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings as GitHub and the site generate them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(prose(page))}


def broken(page: Path) -> Iterator[str]:
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        if ":" in path:
            continue
        target = page.parent / path if path else page
        if not target.exists():
            yield f"{page.name}: {link}: no such file"
        elif anchor and anchor not in anchors(target):
            yield f"{page.name}: {link}: no such heading"


@pytest.mark.parametrize("page", documents(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    assert list(broken(page)) == []


@pytest.mark.parametrize("index", ["docs/how-to/index.md", "docs/coming-from/index.md", "notebooks/README.md"])
def test_index_links_every_page_of_its_folder(index: str) -> None:
    page = ROOT / index
    pages = {one.name for one in page.parent.iterdir() if one.suffix in {".md", ".ipynb"}} - {page.name}
    assert pages <= set(LINK.findall(prose(page)))


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `title`, here\n\n[a](#a-title-here) [b](#b) [c](none.md) [d](https://d.example/#x)\n")
    assert list(broken(page)) == ["page.md: #b: no such heading", "page.md: none.md: no such file"]


def test_notebooks_link_to_pages() -> None:
    notebooks = [page for page in documents() if page.suffix == ".ipynb"]
    assert notebooks
    assert all(LINK.findall(prose(page)) for page in notebooks)
