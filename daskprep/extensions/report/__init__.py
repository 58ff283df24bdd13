"""Reports on a dataset: an HTML page, and matplotlib figures.

In: a dataset. Out: findings with their severity, charts as SVG, and a page without other scripts. Types have reporters.
"""

from __future__ import annotations

from daskprep.extensions.report.page import Report, make_report
from daskprep.extensions.report.plots import make_plot

__all__ = ["Report", "make_plot", "make_report"]
