"""The site: pages, notebooks and a reference; `make docs` builds it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.locale import admonitionlabels
from sphinx.util.inspect import signature, stringify_signature

import daskprep

HERE = Path(__file__).parent
NOTEBOOKS = HERE.parent / "notebooks"
NOTEBOOK_LINK = re.compile(r"\]\((?:\.\./)+(?=notebooks/)")

project = "daskprep"
author = "The daskprep developers"
version = release = daskprep.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["templates"]
templates_path = ["templates"]

# Links to a heading, as on GitHub: datasets.md#verify-and-repair.
myst_heading_anchors = 3
# Boxes as on GitHub: > [!WARNING]
myst_enable_extensions = ["alert"]
admonitionlabels["warning"] = "Watch out"
# Notebooks are stored with their outputs, which the tests compare.
nb_execution_mode = "off"

copybutton_exclude = ".linenos, .gp"  # the "$" before commands

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
    "logo": {"text": f"{project} {version}"},
    "show_toc_level": 2,
}

# Links to the repository and its pages, if this checkout was cloned from GitHub.
origin = subprocess.run(
    ["git", "config", "remote.origin.url"],  # noqa: S607 any git will do
    cwd=HERE,
    capture_output=True,
    text=True,
    check=False,
).stdout.strip()
github = re.search(r"github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?$", origin)
if github is not None:
    url = f"https://github.com/{github[1]}"
    html_theme_options |= {"github_url": url, "use_edit_page_button": True}
    html_context["edit_page_url_template"] = (
        f"{url}/blob/main/"
        "{% if not file_name.startswith('notebooks/') %}docs/{% endif %}{{ file_name }}"
    )


def copy_notebooks() -> None:
    """Copy the notebooks below this folder, with their links changed to its pages."""
    copies = HERE / "notebooks"
    copies.mkdir(exist_ok=True)
    for page in [*NOTEBOOKS.glob("*.ipynb"), NOTEBOOKS / "README.md"]:
        text = page.read_text(encoding="utf-8").replace("](../docs/", "](../")
        if page.suffix == ".md":
            text += "\n```{toctree}\n:hidden:\n:glob:\n\n[0-9]*\n```\n"
        name = "index.md" if page.suffix == ".md" else page.name
        (copies / name).write_text(text, encoding="utf-8")


def change_links(_app: object, page: str, source: list[str]) -> None:
    """Lead links to the notebooks of the repository to their copies."""
    up = "../" * page.count("/")
    source[0] = NOTEBOOK_LINK.sub(f"]({up}", source[0]).replace(
        "notebooks/README.md", "notebooks/index.md"
    )


def show_parameters(
    _app: object,
    kind: str,
    _name: str,
    shown: Any,
    _options: object,
    text: str | None,
    returned: str | None,
) -> tuple[str, str | None] | None:
    """Return the parameters of an estimator, which autodoc takes from `__new__`."""
    if kind != "class" or text != "(*args, **parameters)":
        return None
    return stringify_signature(signature(shown), show_annotation=False), returned


def write_llms_txt(app: Any, error: Exception | None) -> None:
    """Write the list of pages, with the first paragraph of each, as llms.txt."""
    if error is not None or app.builder.name != "html":
        return
    pages = ["index", *app.env.toctree_includes["index"], *sorted(app.env.found_docs)]
    lines = [f"# {project} {version}", ""]
    for page in dict.fromkeys(pages):
        paragraph = next(app.env.get_doctree(page).findall(nodes.paragraph), None)
        about = "" if paragraph is None else " ".join(paragraph.astext().split())
        lines.append(f"- [{app.env.titles[page].astext()}]({page}.html): {about}")
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")


def setup(app: Any) -> None:
    """Connect the functions above to the build."""
    copy_notebooks()
    app.connect("source-read", change_links)
    app.connect("autodoc-process-signature", show_parameters)
    app.connect("build-finished", write_llms_txt)
