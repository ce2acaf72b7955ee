"""The model against measurements: measured/1 tables and output of benchmarks read, scored, and calibrations made of them.

`score` compares; `measured`, `observed`, `curves` and `files` read. Imports prediction and what lies under it.
"""

from busbw.accuracy.beside import BesideRow, beside
from busbw.accuracy.curves import curves_of_table, kernel_curves, read_all
from busbw.accuracy.files import Scorable, read_scorable
from busbw.accuracy.measured import REFUSALS, MeasuredRow, MeasuredTable, Refusal, read_measured, shipped_reports
from busbw.accuracy.observed import Observed, ObservedRow, as_measured, observed_tables, situation_said
from busbw.accuracy.score import (
    Score,
    ScoredRow,
    ScoredTable,
    calibrate,
    left_out_calibrations,
    score,
    score_left_out,
)

__all__ = [
    "REFUSALS",
    "BesideRow",
    "MeasuredRow",
    "MeasuredTable",
    "Observed",
    "ObservedRow",
    "Refusal",
    "Scorable",
    "Score",
    "ScoredRow",
    "ScoredTable",
    "as_measured",
    "beside",
    "calibrate",
    "curves_of_table",
    "kernel_curves",
    "left_out_calibrations",
    "observed_tables",
    "read_all",
    "read_measured",
    "read_scorable",
    "score",
    "score_left_out",
    "shipped_reports",
    "situation_said",
]
