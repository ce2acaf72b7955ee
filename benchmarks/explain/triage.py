"""`busbw explain` on cases with a known cause: how often the first finding names it, and how often a healthy one is blamed.

A folder of cases holds a folder each, with the output of tools as a user hands it over and `case.json` (id, kind, input_files), and
`acceptable.json`: per case the kinds that its inputs support as an answer. `healthy` beside a fault in that list says that the inputs
can't decide; such cases are left out.
"""

from __future__ import annotations

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

__all__ = ["Case", "Score", "explained", "load_cases", "score"]

_LONGEST_S = 120.0
_ALARMING = ("fatal", "major")


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs and the answers that count as right."""

    id: str
    files: tuple[Path, ...]
    accepted: tuple[str, ...]
    healthy: bool

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

    @property
    def decided(self) -> int:
        """Cases of a fault that inputs can decide."""
        return len(self.right) + len(self.missed)


def load_cases(folder: Path) -> list[Case]:
    """The cases of a folder, by name. Raises FileNotFoundError if it holds none."""
    accepted: Mapping[str, list[str]] = json.loads((folder / "acceptable.json").read_text(encoding="utf-8"))
    cases = []
    for file in sorted(folder.glob("*/case.json")):
        case = json.loads(file.read_text(encoding="utf-8"))
        kinds = tuple(accepted.get(case["id"], [case["kind"]]))
        inputs = tuple(file.parent / name for name in case["input_files"])
        cases.append(Case(case["id"], inputs, kinds, case["kind"] == "healthy"))
    if not cases:
        raise FileNotFoundError(f"{folder}: holds no folder with a case.json")
    return cases


def score(cases: Sequence[Case], answers: Mapping[str, Mapping[str, Any] | None]) -> Score:
    """Compares answers (the JSON of `busbw explain`, None if there was none) with cases, by id."""
    right, missed, undecidable, healthy, alarms, broken = [], [], [], [], [], []
    for case in cases:
        answer = answers[case.id]
        if answer is None:
            broken.append(case.id)
        findings = answer["findings"] if answer is not None else []
        kinds = [finding["kind"] for finding in findings]
        if case.healthy:
            healthy.append(case.id)
            blamed = [f["kind"] for f in findings if f["severity"] in _ALARMING and f["kind"] not in case.accepted]
            faulty = answer is not None and answer["verdict"] == "faulty" and not set(kinds) & set(case.accepted)
            if blamed or faulty:
                alarms.append(case.id)
        elif case.undecidable:
            undecidable.append(case.id)
        elif kinds and kinds[0] in case.accepted:
            right.append(case.id)
        else:
            missed.append(case.id)
    return Score(tuple(right), tuple(missed), tuple(undecidable), tuple(healthy), tuple(alarms), tuple(broken))


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
