"""The score: predicted beside measured times, row by row, table by table, and over all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from busbw.accuracy.curves import curves_of_table, movements_of, pick_of
from busbw.accuracy.measured import MeasuredRow, MeasuredTable, Refusal, curves_of, shipped_reports
from busbw.accuracy.training import left_out_steps, score_steps
from busbw.errors import InputError
from busbw.notebooks import html_table
from busbw.prediction import (
    Calibration,
    Curve,
    Errors,
    cross_validated,
    fit,
    load_calibration,
    predicted_parts,
    size_class,
    with_deviations,
)
from busbw.prediction.calibration import SIZE_CLASSES, wire_share
from busbw.workloads.training.calibration import TrainingCalibration

__all__ = [
    "Score",
    "ScoredRow",
    "ScoredTable",
    "calibrate",
    "left_out_calibrations",
    "left_out_errors",
    "score",
    "score_left_out",
]

SCHEMA = 1
_FEWEST_CAMPAIGNS = 2
_REPORT = 0.25
"""What a row of a shipped report counts beside one of a given table: who calibrates wants to see his own machines. A guess."""


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """One row of a table beside its prediction."""

    row: int | str
    size_bytes: int | None
    """None of a training step."""
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float
    is_peak: bool = False
    """Compared at PEAK_BYTES; the table states no size."""

    @property
    def error(self) -> float:
        """abs(predicted / measured - 1)."""
        return abs(self.predicted_s / self.measured_s - 1)

    @property
    def is_covered(self) -> bool:
        """Whether the measured time lies in the interval."""
        return self.low_s <= self.measured_s <= self.high_s


@dataclass(frozen=True, slots=True)
class ScoredTable:
    """A table beside its predictions."""

    table: MeasuredTable
    rows: tuple[ScoredRow, ...]
    rows_in_place: tuple[ScoredRow, ...]
    refused: tuple[Refusal, ...]

    @property
    def median_error(self) -> float | None:
        """Median over rows; None without rows."""
        return float(np.median([row.error for row in self.rows])) if self.rows else None

    def median_error_of(self, sizes: str) -> float | None:
        """The median over rows of a size class: small, middle, large."""
        found = [row.error for row in self.rows if row.size_bytes and size_class(row.size_bytes) == sizes]
        return float(np.median(found)) if found else None


@dataclass(frozen=True, slots=True)
class Score:
    """All tables beside their predictions."""

    tables: tuple[ScoredTable, ...]

    @property
    def rows(self) -> list[ScoredRow]:
        """The rows of all tables."""
        return [row for table in self.tables for row in table.rows]

    @property
    def refused(self) -> int:
        """Rows without a prediction."""
        return sum(len(table.refused) for table in self.tables)

    def median_of_tables(self, sizes: str | None = None) -> float | None:
        """The median over tables of their median error."""
        found = [table.median_error if sizes is None else table.median_error_of(sizes) for table in self.tables]
        known = [error for error in found if error is not None]
        return float(np.median(known)) if known else None

    def _repr_html_(self) -> str:
        """A table for notebooks: errors in percent."""

        def percent(error: float | None) -> str:
            return "-" if error is None else f"{error * 100:.1f}"

        columns = ["table", "rows", "error %", *(f"{name} %" for name in SIZE_CLASSES), "refused"]
        rows = [
            [
                table.table.id,
                str(len(table.rows)),
                percent(table.median_error),
                *(percent(table.median_error_of(name)) for name in SIZE_CLASSES),
                str(len(table.refused)),
            ]
            for table in self.tables
        ]
        return html_table(columns, rows, f"median over tables {percent(self.median_of_tables())} %")

    def to_json(self) -> dict[str, Any]:
        """The shape that `busbw score --json` prints, schema 1. Errors in percent, times in seconds."""
        groups: dict[str, list[ScoredTable]] = {}
        for table in self.tables:
            groups.setdefault(table.table.group, []).append(table)
        return {
            "schema": SCHEMA,
            "overall": summary(self.tables),
            "groups": [{"name": name, **summary(found)} for name, found in sorted(groups.items())],
            "sources": [
                {
                    "id": table.table.id,
                    "rows": [
                        {
                            "size_bytes": None if row.is_peak else row.size_bytes,
                            "row": row.row,
                            "measured": row.measured_s,
                            "predicted": row.predicted_s,
                            "low": row.low_s,
                            "high": row.high_s,
                            "unit": "s",
                        }
                        for row in table.rows
                    ],
                    "refused": [{"row": r.row, "kind": r.kind, "reason": r.reason} for r in table.refused],
                }
                for table in self.tables
            ],
        }


def summary(tables: Sequence[ScoredTable]) -> dict[str, Any]:
    """Rows, median and 90th percentile of the error in percent, rows refused; null where there are no rows."""
    errors = [row.error * 100 for table in tables for row in table.rows]
    return {
        "rows": len(errors),
        "median_abs_pct": round(float(np.median(errors)), 3) if errors else None,
        "p90_abs_pct": round(float(np.quantile(errors, 0.9)), 3) if errors else None,
        "refused": sum(len(table.refused) for table in tables),
    }


def score(
    tables: Iterable[MeasuredTable],
    calibration: Calibration | Mapping[str, Calibration] | None = None,
    training: Mapping[str, TrainingCalibration] | None = None,
) -> Score:
    """Tables beside what a calibration predicts; with a mapping each campaign has its own. None: the shipped one.

    training: of workload files, by their id; None: the shipped one.
    """
    given = calibration or load_calibration()
    found = []
    for table in tables:
        if table.training:
            steps = tuple(
                ScoredRow(row, None, measured, predicted, low, high)
                for row, measured, predicted, low, high in score_steps(table.training, training)
            )
            found.append(ScoredTable(table, steps, (), table.refused))
            continue
        mine = given[table.campaign] if isinstance(given, Mapping) else given
        rows, refused = _scored(table.rows, table, mine)
        in_place, _ = _scored(table.rows_in_place, table, mine)
        found.append(ScoredTable(table, rows, in_place, (*table.refused, *refused)))
    return Score(tuple(found))


def score_left_out(tables: Sequence[MeasuredTable], others: Sequence[Curve] = ()) -> Score:
    """Each campaign beside what a calibration predicts that was fitted to all other campaigns, and to `others`.

    The intervals of a campaign come from the errors of the other campaigns, each left out of its own fit.
    """
    steps = [row for table in tables for row in table.training]
    training = left_out_steps(steps)[1] if len({row.source for row in steps}) > 1 else None
    collectives = [table for table in tables if not table.training]
    if not any(table.rows for table in collectives):
        if training is None:
            raise InputError("leaving a source out leaves nothing to fit to: pass tables of two sources or more.")
        return score(tables, None, training)
    return score(tables, left_out_calibrations(collectives, others), training)


def left_out_calibrations(tables: Sequence[MeasuredTable], others: Sequence[Curve] = ()) -> dict[str, Calibration]:
    """By campaign the calibration fitted to all other campaigns, with intervals from theirs."""
    campaigns = sorted({table.campaign for table in tables})
    if len({*campaigns, *(curve.campaign for curve in others)}) < _FEWEST_CAMPAIGNS:
        raise InputError("leaving a campaign out leaves nothing to fit to: pass tables of two campaigns or more.")
    curves = _with_reports(tables, others)
    judged = [curve for curve in curves if curve.judged]
    fitted = cross_validated(curves, sorted({*campaigns, *(curve.campaign for curve in judged)}))
    errors = left_out_errors(judged, fitted)
    return {
        campaign: with_deviations(fitted[campaign], [found for found in errors if found.campaign != campaign])
        for campaign in campaigns
    }


def calibrate(tables: Sequence[MeasuredTable], others: Sequence[Curve] = ()) -> Calibration:
    """The calibration of tables and other curves, with intervals from leaving each campaign of `tables` out once."""
    curves = _with_reports(tables, others)
    everything = fit(curves)
    healthy = [table for table in tables if table.is_scored]
    if not healthy or len({curve.campaign for curve in curves}) < _FEWEST_CAMPAIGNS:
        return everything  # with the priors' interval: nothing can be left out
    judged = [curve for curve in curves if curve.judged]
    fitted = cross_validated(curves, sorted({curve.campaign for curve in judged}))
    return with_deviations(everything, left_out_errors(judged, fitted))


def _with_reports(tables: Iterable[MeasuredTable], others: Iterable[Curve]) -> list[Curve]:
    """The curves of tables, others, and shipped reports; a report whose campaign is given is not taken twice."""
    given = [*(curve for table in tables for curve in curves_of_table(table)), *others]
    known = {curve.campaign for curve in given}
    reports = (curve for table in shipped_reports() for curve in curves_of_table(table))
    return [*given, *(replace(curve, weight=_REPORT) for curve in reports if curve.campaign not in known)]


def left_out_errors(curves: Iterable[Curve], fitted: Mapping[str, Calibration]) -> list[Errors]:
    """What each campaign's calibration errs by on the campaign that it was not fitted to."""
    found = []
    for curve in curves:
        mine, where = fitted[curve.campaign], curve.where
        parts = predicted_parts(curve, mine)
        found.append(
            Errors(
                curve.campaign,
                wire_share(parts),
                np.log(curve.time_s / parts.total_s),
                mine.of_parameters(where, parts),
                mine.shares(where, parts, where.library == "NCCL"),
                mine.has_seen(where.gpu, where.network if where.domains > 1 else None),
            )
        )
    return found


def _scored(
    rows: tuple[MeasuredRow, ...], table: MeasuredTable, calibration: Calibration
) -> tuple[tuple[ScoredRow, ...], list[Refusal]]:
    found: list[ScoredRow] = []
    refused: list[Refusal] = []
    for group in curves_of(rows):
        first = group[0]
        moves = movements_of(first)
        if not moves or first.where.ranks < 2:
            why = "one rank" if moves else f"{first.collective} has no time model"
            refused += [Refusal(row.row, "unsupported", why) for row in group]
            continue
        sizes = np.array([row.size_bytes for row in group], np.float64)
        times = np.array([row.time_s for row in group], np.float64)
        pick = pick_of(first.where, moves, first.collective, sizes)
        curve = Curve(table.id, table.campaign, first.where, first.collective, sizes, times, moves, pick=pick)
        parts = predicted_parts(curve, calibration)
        known = first.where.library == "NCCL"
        low, high = calibration.factors(first.where, parts, known)
        for place, row in enumerate(group):
            time_s = float(parts.total_s[place])
            found.append(
                ScoredRow(
                    row.row,
                    row.size_bytes,
                    row.time_s,
                    time_s,
                    time_s * float(low[place]),
                    time_s * float(high[place]),
                    row.is_peak,
                )
            )
    return tuple(sorted(found, key=lambda row: int(row.row))), refused
