"""What results look like on paper: the HTML report, its figures, evidence lines in their context, machines drawn.

Imports diagnosis and everything under it; only the command line imports it.
"""

from busbw.reports.excerpts import Excerpt, Line, excerpts, visible
from busbw.reports.histories import history_svg
from busbw.reports.html import GENERATOR, render_report, write_report
from busbw.reports.machines import cluster_svg, fabric_lines, node_lines, node_svg
from busbw.reports.predictions import MeasuredPoint, prediction_svg
from busbw.reports.schedules import schedule_svg
from busbw.reports.steps import parts_svg, trace_parts
from busbw.reports.svg import standalone

__all__ = [
    "GENERATOR",
    "Excerpt",
    "Line",
    "MeasuredPoint",
    "cluster_svg",
    "excerpts",
    "fabric_lines",
    "history_svg",
    "node_lines",
    "node_svg",
    "parts_svg",
    "prediction_svg",
    "render_report",
    "schedule_svg",
    "standalone",
    "trace_parts",
    "visible",
    "write_report",
]
