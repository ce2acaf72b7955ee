"""The reports of tests/diagnosis/cases: public reports with a known cause, their input files and what may be named first."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from busbw.diagnosis import Explanation

from .told import told_exactly

FOLDER = Path(__file__).parent / "cases"


@dataclass(frozen=True, slots=True)
class Report:
    """One report. Equal by its name."""

    name: str
    kind: str
    acceptable: tuple[str, ...]
    """Kinds that the inputs support, the labelled one first."""
    files: tuple[tuple[str, str], ...]
    matches: tuple[str, ...]
    """Texts that the explanation should show."""

    def __str__(self) -> str:
        return self.name

    @property
    def healthy(self) -> bool:
        """Nothing is wrong in it."""
        return self.kind == "healthy"


def _report(folder: Path, acceptable: dict[str, list[str]]) -> Report:
    case = json.loads((folder / "case.json").read_text("utf-8"))
    files = tuple(
        (name, (folder / name).read_bytes().decode("utf-8", "surrogateescape")) for name in case["input_files"]
    )
    matches = tuple(line["match"].strip() for line in case["evidence"])
    return Report(folder.name, case["kind"], tuple(acceptable.get(folder.name, [case["kind"]])), files, matches)


@functools.cache
def reports() -> tuple[Report, ...]:
    """All of them, by name."""
    acceptable = json.loads((FOLDER / "acceptable.json").read_text("utf-8"))
    return tuple(_report(file.parent, acceptable) for file in sorted(FOLDER.glob("*/case.json")))


@functools.cache
def explained(report: Report) -> Explanation:
    """What busbw says of it."""
    return told_exactly(dict(report.files))
