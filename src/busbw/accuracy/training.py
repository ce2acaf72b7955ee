"""Calibrations of training steps from workload files, and steps scored with the source that they come from left out.

`python -m busbw.accuracy FOLDER` fits the calibration that ships and writes it over `workloads/training/calibration.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from busbw.accuracy.workloads import TrainingRow, read_rows
from busbw.workloads.training.calibration import TrainingCalibration, load_training_calibration
from busbw.workloads.training.fitting import MeasuredSteps, left_out, measured_steps
from busbw.workloads.training.network import GroupTimes
from busbw.workloads.training.predict import predict_steps
from busbw.workloads.training.step import parts_of

__all__ = ["ScoredStep", "left_out_steps", "read_folder", "score_steps", "steps_of"]

ScoredStep = tuple[int | str, float, float, float, float]
"""Row, measured, predicted, low, high; seconds."""


class _Links:
    """Times of groups, kept for rows of one cluster."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str, int], GroupTimes] = {}

    def of(self, row: TrainingRow) -> GroupTimes:
        cluster = row.job.cluster
        return self.kept.setdefault((cluster.name, row.job.gpu, cluster.nodes), GroupTimes(cluster))


def steps_of(rows: Sequence[TrainingRow]) -> MeasuredSteps:
    """Rows with what their steps are made of."""
    links = _Links()
    parts = [parts_of(row.job, row.columns, links.of(row)) for row in rows]
    return measured_steps(
        [row.job for row in rows], parts, [row.measured_s for row in rows], [row.source for row in rows]
    )


def score_steps(
    rows: Iterable[TrainingRow], calibrations: Mapping[str, TrainingCalibration] | None = None
) -> list[ScoredStep]:
    """Rows beside their predictions: by the calibration of each row's source, or by the one that ships."""
    links, found = _Links(), []
    for row in rows:
        calibration = calibrations[row.source] if calibrations is not None else load_training_calibration()
        steps = predict_steps(row.job, row.columns, links.of(row), calibration)
        best = int(np.argmin(steps.total_s))
        found.append(
            (row.row, row.measured_s, float(steps.total_s[best]), float(steps.low_s[best]), float(steps.high_s[best]))
        )
    return found


def left_out_steps(rows: Sequence[TrainingRow]) -> tuple[TrainingCalibration, dict[str, TrainingCalibration]]:
    """The calibration of all rows, and by source one fitted to all others. Rows that a defect of software slowed are scored, not fitted."""
    return left_out(steps_of([row for row in rows if not row.is_regression]))


def read_folder(folder: Path) -> list[TrainingRow]:
    """The training rows of all workload files of a folder."""
    rows: list[TrainingRow] = []
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_bytes())
        if isinstance(document, dict) and document.get("kind") == "training":
            rows += read_rows(document)[0]
    return rows
