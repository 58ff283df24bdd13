"""Report of a dataset, shown in notebooks and saved as one HTML file."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from daskprep.dataset import Dataset
from daskprep.display.markup import element
from daskprep.display.words import format_bytes
from daskprep.errors import ConfigError, with_attribute_hints
from daskprep.report.page import SEARCH, page
from daskprep.storage import Folder
from daskprep.storage.urls import path_text

_NOTEBOOK_HEIGHT = 640  # pixels


@with_attribute_hints(show="save(path), and open the file in a browser; notebooks display a report automatically")
@dataclass(frozen=True, repr=False)
class Report:
    """HTML page that needs no other file and no network, and works without scripts.

    Attributes
    ----------
    html : str
        The page.
    """

    html: str
    _findings: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return overview, alerts, associations and drift as JSON values, which docs/report.schema.json describes."""
        return copy.deepcopy(dict(self._findings))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file atomically; an existing file is replaced."""
        folder, slash, name = path_text(path, "file").rpartition("/")
        if not name:
            raise ConfigError(f"{os.fspath(path)!r} is not a file name: add one, such as report.html")
        Folder.open(folder or slash or ".").write(name, self.html.encode())

    def __repr__(self) -> str:
        return f"Report of {format_bytes(len(self.html.encode()))}: save(path) writes it, to be opened in a browser"

    def _repr_html_(self) -> str:
        # A frame separates the styles of the page and of the notebook.
        style = f"width:100%;height:{_NOTEBOOK_HEIGHT}px;border:1px solid rgba(128,128,128,0.4);border-radius:6px"
        shown = self.html.replace(SEARCH, "")  # the sandbox would log an error for the script
        return element("iframe", srcdoc=shown, style=style, sandbox="", title="Report")


def make_report(dataset: Dataset, path: str | os.PathLike[str] | None = None) -> Report:
    """Return the report of a dataset, and write it to `path` unless None."""
    report = Report(*page(dataset))
    if path is not None:
        report.save(path)
    return report
