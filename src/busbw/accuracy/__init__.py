"""The model against measurements: measured/1 tables read, scored, and calibrations made of them.

`score` compares; `measured` and `curves` read. Imports prediction and what lies under it.
"""

from busbw.accuracy.curves import curves_of_table, kernel_curves, read_all
from busbw.accuracy.measured import REFUSALS, MeasuredRow, MeasuredTable, Refusal, read_measured, shipped_reports
from busbw.accuracy.score import Score, ScoredRow, ScoredTable, calibrate, score, score_left_out

__all__ = [
    "REFUSALS",
    "MeasuredRow",
    "MeasuredTable",
    "Refusal",
    "Score",
    "ScoredRow",
    "ScoredTable",
    "calibrate",
    "curves_of_table",
    "kernel_curves",
    "read_all",
    "read_measured",
    "score",
    "score_left_out",
    "shipped_reports",
]
