"""docs/cases.json: reports nobody tuned to, with their first answers."""

from __future__ import annotations

import pytest
from benchmarks.unseen import Answers, brier, load_records, stated, tally

from busbw.diagnosis.findings import kinds


def record(kind="shm-too-small", right=True, confidence=0.9, **more):
    answer = {"answered": confidence is not None, "kind": kind, "confidence": confidence, "right": right}
    return {
        "round": 1,
        "id": "a",
        "source": "s",
        "kind": kind,
        "accepted": [kind],
        "label": "reporter",
        "first": answer,
        "now": answer,
        **more,
    }


def test_silence_is_no_answer_and_not_wrong():
    told = Answers([record(), record(right=False), record(right=False, confidence=None), record(right=None)], "first")
    assert (told.faulty, told.right, told.wrong, told.left_open) == (3, 1, 1, 1)


def test_only_stated_confidence_is_scored():
    """0.9 and right: 0.01; 0.6 and wrong: 0.36; silence: nothing. Mean 0.185."""
    records = [record(), record(right=False, confidence=0.6), record(right=False, confidence=None)]
    assert stated(records) == ([0.9, 0.6], [True, False])
    assert brier(records) == pytest.approx(0.185)


def test_a_healthy_report_counts_for_alarms_alone():
    told = Answers([record(kind="healthy", right=False), record(kind="healthy")], "first")
    assert (told.faulty, told.healthy, told.alarms) == (0, 2, 1)


def test_every_report_has_a_label_and_answers_of_kinds_that_exist():
    known = set(kinds()) | {"healthy"}
    for met in load_records():
        assert {met["kind"], *met["accepted"]} <= known, met["id"]
        assert met["label"] in ("maintainer", "reporter", "inferred"), met["id"]
        assert {met[when]["kind"] for when in ("first", "now")} <= known | {None}, met["id"]
    assert len({(met["round"], met["id"]) for met in load_records()}) == len(load_records())
    assert sorted(tally(load_records(), "first")) == list(range(1, 1 + len(tally(load_records(), "first"))))
