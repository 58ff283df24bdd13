"""The site: pages, notebooks and a reference; `make docs` builds it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import daskprep

HERE = Path(__file__).parent
NOTEBOOKS = HERE.parent / "notebooks"
REPOSITORY_LINK = re.compile(r"\]\((?:\.\./)+(?=notebooks/)")

project = "daskprep"
author = "The daskprep developers"
version = release = daskprep.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_design",
]
exclude_patterns = ["templates"]
templates_path = ["templates"]

# Links to a heading, as on GitHub: datasets.md#verify-and-repair.
myst_heading_anchors = 3
# Notebooks are stored with their outputs, which the tests compare.
nb_execution_mode = "off"

# Blocks without a language are figures and folders.
highlight_language = "none"

# A name in backticks is a link if the reference knows it, and code if not.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings say types in fewer words than signatures
numpydoc_show_class_members = False
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = project
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(HERE / "static" / "scorer.js")
html_sidebars = {"**": ["sidebar-pages"]}
# Light or dark as the reader has it; without a mode, the console reports an error.
html_context = {"default_mode": "auto"}
html_theme_options = {
    "navbar_center": [],
    "navigation_with_keys": False,
    "show_prev_next": False,
    "show_toc_level": 2,
}


def copy_notebooks() -> None:
    """Copy the notebooks below this folder, with their links changed to its pages."""
    copies = HERE / "notebooks"
    copies.mkdir(exist_ok=True)
    for page in [*NOTEBOOKS.glob("*.ipynb"), NOTEBOOKS / "README.md"]:
        text = page.read_text(encoding="utf-8").replace("](../docs/", "](../")
        if page.suffix == ".md":
            text += "\n```{toctree}\n:hidden:\n:glob:\n\n0*\n```\n"
        name = "index.md" if page.suffix == ".md" else page.name
        (copies / name).write_text(text, encoding="utf-8")


def change_links(_app: object, page: str, source: list[str]) -> None:
    """Lead links to the notebooks of the repository to their copies."""
    up = "../" * page.count("/")
    source[0] = REPOSITORY_LINK.sub(f"]({up}", source[0]).replace(
        "notebooks/README.md", "notebooks/index.md"
    )


def setup(app: Any) -> None:
    """Connect the functions above to the build."""
    copy_notebooks()
    app.connect("source-read", change_links)
