"""What a dataset looks like: a page for browsers, and figures of matplotlib."""

from __future__ import annotations

from daskprep.report.document import Report, make_report
from daskprep.report.plots import make_plot

__all__ = ["Report", "make_plot", "make_report"]
