"""`python -m benchmarks.unseen FOLDER [--round N]`: lets `busbw explain` answer on public reports and keeps the answers.

FOLDER holds reports in the layout of tests/diagnosis/cases; their texts stay there. docs/cases.json keeps source, label and answers: the
first answer of a report is written once, with --round, and never changed; the answer now is renewed by every run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.explain import triage
from busbw.statistics import brier_score

__all__ = ["RECORDS", "Answers", "brier", "load_records", "stated", "tally"]

RECORDS = Path(__file__).parents[1] / "docs" / "cases.json"

Record = Mapping[str, Any]


class Answers:
    """How a set of reports was answered, `first` or `now`."""

    def __init__(self, records: Sequence[Record], when: str) -> None:
        faulty = [r for r in records if r["kind"] != "healthy" and r[when]["right"] is not None]
        healthy = [r for r in records if r["kind"] == "healthy"]
        self.faulty = len(faulty)
        self.right = sum(r[when]["right"] for r in faulty)
        self.wrong = sum(r[when]["answered"] and not r[when]["right"] for r in faulty)
        self.left_open = sum(r["kind"] != "healthy" and r[when]["right"] is None for r in records)
        self.healthy = len(healthy)
        self.alarms = sum(not r[when]["right"] for r in healthy)


def load_records() -> list[dict[str, Any]]:
    """Every report met, in the order met."""
    records: list[dict[str, Any]] = json.loads(RECORDS.read_text(encoding="utf-8"))
    return records


def tally(records: Sequence[Record], when: str) -> dict[int, Answers]:
    """Answers per round."""
    rounds = sorted({r["round"] for r in records})
    return {n: Answers([r for r in records if r["round"] == n], when) for n in rounds}


def stated(records: Sequence[Record]) -> tuple[list[float], list[bool]]:
    """Confidence of the first finding and whether it was right, for all first answers whose confidence was kept."""
    kept = [
        r["first"]
        for r in records
        if r["kind"] != "healthy" and r["first"]["right"] is not None and r["first"]["confidence"] is not None
    ]
    return [first["confidence"] for first in kept], [first["right"] for first in kept]


def brier(records: Sequence[Record]) -> float:
    """Brier score of the first answers. Silence states no probability and does not count."""
    return brier_score(*stated(records))


def main(arguments: Sequence[str] | None = None) -> int:
    """Answers all reports of a folder; the exit status."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unseen", description=__doc__.split("\n\n")[1])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--round", type=int, help="number of the round, for reports not met before")
    given = parser.parse_args(arguments)
    records = load_records()
    known = {(r["source"], r["id"]): r for r in records}
    cases = triage.load_cases(given.folder)
    answers = triage.explained(cases)
    for case in cases:
        described = json.loads((case.files[0].parent / "case.json").read_text(encoding="utf-8"))
        answer = _answer(case, answers)
        key = (described["source"], case.id)
        if key not in known:
            if given.round is None:
                parser.error(f"{case.id} was not met before: name its round with --round")
            known[key] = {
                "round": given.round, "id": case.id, "source": described["source"], "kind": described["kind"],
                "accepted": list(case.accepted), "label": described["confirmed_by"], "first": answer,
            }  # fmt: skip
            records.append(known[key])
        known[key]["now"] = answer
    RECORDS.write_text("[\n" + ",\n".join(json.dumps(r) for r in records) + "\n]\n", encoding="utf-8")
    met = [known[json.loads((c.files[0].parent / "case.json").read_text())["source"], c.id] for c in cases]
    for when in ("first", "now"):
        all_of = Answers(met, when)
        print(
            f"{when}: {all_of.right} of {all_of.faulty} right, {all_of.wrong} wrong, {all_of.left_open} left open; "
            f"{all_of.alarms} false alarms on {all_of.healthy} healthy"
        )
    for record in met:
        if record["now"]["right"] is False:
            print(f"  {record['id']} ({', '.join(record['accepted'])}): {record['now']['kind'] or 'silent'}")
    return 0


def _answer(case: triage.Case, answers: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any]:
    answer = answers[case.id]
    findings = answer["findings"] if answer is not None else []
    scored = triage.score([case], answers)
    right = None if scored.undecidable else not (scored.missed or scored.false_alarms or scored.broken)
    blamed = findings[:1] if not case.healthy or scored.false_alarms else []
    return {
        "answered": bool(blamed),
        "kind": blamed[0]["kind"] if blamed else None,
        "confidence": blamed[0]["confidence"] if blamed else None,
        "right": right,
    }


if __name__ == "__main__":
    sys.exit(main())
