"""Public reports with a known cause: the first finding is one that the inputs support, and shows the lines that say so."""

from __future__ import annotations

import pytest

from busbw.diagnosis import kinds

from .case_files import FOLDER, Report, explained, reports
from .told import kinds_of

FAULTY = [report for report in reports() if not report.healthy and "healthy" not in report.acceptable]
"""Where the list holds healthy beside a fault, the inputs cannot decide."""
POINTED_AT = [
    report
    for report in FAULTY
    if any(len(match) >= 10 for match in report.matches)
    and report.name
    != "gdr-read-off-v100"  # its label points at the machine, the finding at the experiment in the notes
]
HEALTHY = [report for report in reports() if report.healthy]


def test_every_folder_is_a_report_with_known_kinds():
    assert {report.name for report in reports()} == {folder.name for folder in FOLDER.iterdir() if folder.is_dir()}
    assert all(set(report.acceptable) <= set(kinds()) for report in reports())


@pytest.mark.parametrize("report", FAULTY, ids=str)
def test_the_cause_is_named_first(report: Report):
    explanation = explained(report)
    assert kinds_of(explanation)[:1] != [], explanation.diagnosis.losses
    assert kinds_of(explanation)[0] in report.acceptable


@pytest.mark.parametrize("report", POINTED_AT, ids=str)
def test_the_first_finding_shows_a_line_that_says_so(report: Report):
    """At least one of those that the person who labelled the report points at; matches of a few letters prove nothing."""
    shown = "\n".join(evidence.text for evidence in explained(report).diagnosis.findings[0].evidence)
    wanted = [match for match in report.matches if len(match) >= 10]
    assert any(match in shown for match in wanted), f"{wanted} in {shown!r}"


@pytest.mark.parametrize("report", HEALTHY, ids=str)
def test_nothing_is_wrong_with_what_is_healthy(report: Report):
    diagnosis = explained(report).diagnosis
    alarms = [f.kind for f in diagnosis.findings if f.severity != "minor" and f.kind not in report.acceptable]
    assert alarms == []
    assert diagnosis.verdict != "faulty"
