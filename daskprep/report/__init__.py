"""Reports on a dataset: an HTML page, and matplotlib figures."""

from __future__ import annotations

from daskprep.report.page import Report, make_report
from daskprep.report.plots import make_plot

__all__ = ["Report", "make_plot", "make_report"]
