"""What results look like on paper: the HTML report, its figures, and evidence lines in their context.

Imports diagnosis and everything under it; only the command line imports it.
"""

from busbw.reports.excerpts import Excerpt, Line, excerpts, visible
from busbw.reports.html import GENERATOR, render_report, write_report

__all__ = ["GENERATOR", "Excerpt", "Line", "excerpts", "render_report", "visible", "write_report"]
