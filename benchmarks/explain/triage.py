"""`busbw explain` on cases with a known cause: how often the first finding names it, and how often a healthy one is blamed.

A folder of cases holds a folder each, with the output of tools as a user hands it over and `case.json` (id, kind, input_files, evidence:
lines that show the cause), and `acceptable.json`: per case the kinds that its inputs support as an answer. `healthy` beside a fault in that
list says that the inputs can't decide; such cases are left out. `red_herrings.json`, if there is one: per case the lines that mislead.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.rows import NotMeasurableError, Options

__all__ = ["CASES", "Case", "Score", "explained", "load_cases", "score", "scored"]

CASES = Path(__file__).parents[2] / "tests" / "diagnosis" / "cases"
_SMOKE_CASES = 10
"""Every tenth case with --smoke."""

_LONGEST_S = 120.0
_ALARMING = ("fatal", "major")
_TELLING = 10
"""Characters."""


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs and the answers that count as right."""

    id: str
    files: tuple[Path, ...]
    accepted: tuple[str, ...]
    healthy: bool
    evidence: tuple[str, ...] = ()
    """Parts of lines that show the cause, of at least `_TELLING` characters: shorter ones are found anywhere."""
    red_herrings: tuple[str, ...] = ()
    """Parts of lines that mislead."""

    @property
    def undecidable(self) -> bool:
        """Whether the inputs support a fault and none."""
        return not self.healthy and "healthy" in self.accepted


@dataclass(frozen=True, slots=True)
class Score:
    """What came out. Each case of a fault is in exactly one of right, missed, undecidable."""

    right: tuple[str, ...]
    missed: tuple[str, ...]
    undecidable: tuple[str, ...]
    healthy: tuple[str, ...]
    false_alarms: tuple[str, ...]
    broken: tuple[str, ...]
    """Cases whose run gave no JSON."""
    in_three: tuple[str, ...] = ()
    """Cases of a fault with a right kind among the first three findings."""
    cited: int = 0
    citable: int = 0
    """Lines of evidence that the first finding shows, of those that the decided cases name."""
    misled: tuple[str, ...] = ()
    """Cases whose first finding shows a line that misleads."""

    @property
    def decided(self) -> int:
        """Cases of a fault that inputs can decide."""
        return len(self.right) + len(self.missed)


def load_cases(folder: Path) -> list[Case]:
    """The cases of a folder, by name. Raises FileNotFoundError if it holds none."""
    accepted: Mapping[str, list[str]] = json.loads((folder / "acceptable.json").read_text(encoding="utf-8"))
    misleading = folder / "red_herrings.json"
    herrings = json.loads(misleading.read_text(encoding="utf-8")) if misleading.exists() else {}
    cases = []
    for file in sorted(folder.glob("*/case.json")):
        case = json.loads(file.read_text(encoding="utf-8"))
        kinds = tuple(accepted.get(case["id"], [case["kind"]]))
        inputs = tuple(file.parent / name for name in case["input_files"])
        shown = tuple(m for line in case.get("evidence", []) if len(m := line["match"].strip()) >= _TELLING)
        cases.append(
            Case(case["id"], inputs, kinds, case["kind"] == "healthy", shown, tuple(herrings.get(case["id"], ())))
        )
    if not cases:
        raise FileNotFoundError(f"{folder}: holds no folder with a case.json")
    return cases


def score(cases: Sequence[Case], answers: Mapping[str, Mapping[str, Any] | None]) -> Score:
    """Compares answers (the JSON of `busbw explain`, None if there was none) with cases, by id."""
    right, missed, undecidable, healthy, alarms, broken = [], [], [], [], [], []
    in_three, misled = [], []
    cited = citable = 0
    for case in cases:
        answer = answers[case.id]
        if answer is None:
            broken.append(case.id)
        findings = answer["findings"] if answer is not None else []
        kinds = [finding["kind"] for finding in findings]
        told = " ".join(line["text"] for finding in findings[:1] for line in finding["evidence"])
        if any(herring in told for herring in case.red_herrings):
            misled.append(case.id)
        if case.healthy:
            healthy.append(case.id)
            blamed = [f["kind"] for f in findings if f["severity"] in _ALARMING and f["kind"] not in case.accepted]
            faulty = answer is not None and answer["verdict"] == "faulty" and not set(kinds) & set(case.accepted)
            if blamed or faulty:
                alarms.append(case.id)
        elif case.undecidable:
            undecidable.append(case.id)
        else:
            (right if kinds and kinds[0] in case.accepted else missed).append(case.id)
            if set(kinds[:3]) & set(case.accepted):
                in_three.append(case.id)
            citable += len(case.evidence)
            cited += sum(line in told for line in case.evidence)
    return Score(
        tuple(right),
        tuple(missed),
        tuple(undecidable),
        tuple(healthy),
        tuple(alarms),
        tuple(broken),
        tuple(in_three),
        cited,
        citable,
        tuple(misled),
    )


def explained(cases: Sequence[Case]) -> dict[str, dict[str, Any] | None]:
    """What `busbw explain --json` says of each case, two at a time. It sees the input files alone, in a folder without a telling name."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip([case.id for case in cases], pool.map(_explain, cases), strict=True))


def _explain(case: Case) -> dict[str, Any] | None:
    with tempfile.TemporaryDirectory() as folder:
        for file in case.files:
            shutil.copy(file, folder)
        command = [sys.executable, "-m", "busbw", "explain", folder, "--json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S, check=False)
            answer = json.loads(done.stdout)
        except (subprocess.TimeoutExpired, json.JSONDecodeError):
            return None
    return answer if isinstance(answer, dict) and done.returncode in (0, 1) else None


def scored(options: Options) -> Score:
    """The score on the folder that the options name, or on the cases of the tests; computed once. Raises NotMeasurableError without cases."""
    folder = options.cases or CASES
    if not (folder / "acceptable.json").exists():
        raise NotMeasurableError(
            f"{folder}: no triage cases there (acceptable.json is missing); name a folder with --cases"
        )
    score = _score(folder, _SMOKE_CASES if options.smoke else 1)
    if not score.decided:
        raise NotMeasurableError("no case of a fault among the cases")
    return score


@functools.cache
def _score(folder: Path, every: int) -> Score:
    cases = load_cases(folder)[::every]
    return score(cases, explained(cases))
