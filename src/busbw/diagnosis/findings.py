"""What a diagnosis says: findings with their lines, what was looked at and cleared, what was checked, the verdict."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

from busbw.errors import Loss
from busbw.notebooks import html_table

__all__ = [
    "SCHEMA",
    "UNKNOWN_OFFSET",
    "Check",
    "Cleared",
    "Diagnosis",
    "Evidence",
    "Finding",
    "Kind",
    "LineRef",
    "Severity",
    "Verdict",
    "kinds",
    "to_json",
]

SCHEMA = 1
"""Number of the JSON shape of `busbw explain --json`."""

UNKNOWN_OFFSET = -1
"""Byte offset of a line that is known by its number only."""

Severity = Literal["fatal", "major", "minor"]
Verdict = Literal["healthy", "faulty", "unknown"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One root cause of the taxonomy (kinds.json)."""

    kind: str
    family: str
    layer: str
    meaning: str


@functools.cache
def kinds() -> dict[str, Kind]:
    """The taxonomy by slug."""
    text = files("busbw.diagnosis").joinpath("kinds.json").read_text("utf-8")
    return {entry["kind"]: Kind(**entry) for entry in json.loads(text)["kinds"]}


@dataclass(frozen=True, slots=True, order=True)
class LineRef:
    """A line of an artefact, by where its bytes are; its text is fetched when somebody wants to see it."""

    path: str
    line: int
    byte_offset: int
    artefact: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line as the user would find it in the file: escape sequences and secrets taken out, cut to a bounded length."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause. Never without lines that show it."""

    kind: str
    confidence: float
    """Probability that this is the root cause, given what was read; candidates for one symptom share it."""
    severity: Severity
    summary: str
    """One sentence with the figures that matter."""
    lines: Sequence[LineRef]
    remedy: str
    """What to change."""
    distinguish: Sequence[str] = ()
    """Commands that would tell this cause from its rivals."""
    rule: str = ""
    """Name of the rule that fired, for its documentation."""
    evidence: Sequence[Evidence] = ()
    """Filled in from `lines`."""

    def __post_init__(self) -> None:
        """Raises ValueError for a kind outside the taxonomy, a confidence outside (0, 1] and missing lines: mistakes of a rule."""
        if self.kind not in kinds():
            raise ValueError(f"rule {self.rule or '?'}: {self.kind!r} is no kind of kinds.json")
        if not 0 < self.confidence <= 1:
            raise ValueError(f"rule {self.rule or '?'}: confidence {self.confidence} is not in (0, 1]")
        if not self.lines:
            raise ValueError(f"rule {self.rule or '?'}: a finding without evidence lines does not exist")

    @property
    def family(self) -> str:
        """Family of the kind, from the taxonomy."""
        return kinds()[self.kind].family

    @property
    def layer(self) -> str:
        """Where the cause lies, from the taxonomy."""
        return kinds()[self.kind].layer


@dataclass(frozen=True, slots=True)
class Cleared:
    """Something that looks alarming, and why it is not the cause."""

    what: str
    why: str
    lines: Sequence[LineRef]
    evidence: Sequence[Evidence] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """Something that was compared with what it should be, and came out right."""

    what: str
    result: str
    lines: Sequence[LineRef] = ()
    evidence: Sequence[Evidence] = ()
    decisive: bool = True
    """Whether it speaks for a healthy system; a remark does not."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer to `busbw explain`."""

    verdict: Verdict
    findings: Sequence[Finding]
    cleared: Sequence[Cleared]
    checks: Sequence[Check]
    losses: Sequence[Loss]
    artefacts: Sequence[tuple[str, int, Sequence[str]]]
    """(path, bytes, formats) of everything that was read."""

    def _repr_html_(self) -> str:
        """A table of the findings for notebooks, best first; the report of `busbw explain` shows their lines."""
        rows = [[f.kind, f"{f.confidence:.0%}", f.severity, f.summary, f.remedy] for f in self.findings]
        return html_table(["kind", "confidence", "severity", "what", "remedy"], rows, f"verdict: {self.verdict}")


def _evidence(lines: Sequence[Evidence]) -> list[dict[str, Any]]:
    return [{"path": e.path, "line": e.line, "text": e.text} for e in lines]


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The stable JSON shape (`schema` 1)."""
    return {
        "schema": SCHEMA,
        "verdict": diagnosis.verdict,
        "findings": [
            {
                "kind": f.kind,
                "family": f.family,
                "confidence": round(f.confidence, 3),
                "severity": f.severity,
                "layer": f.layer,
                "summary": f.summary,
                "evidence": _evidence(f.evidence),
                "remedy": f.remedy,
                "distinguish": list(f.distinguish),
            }
            for f in diagnosis.findings
        ],
        "cleared": [{"what": c.what, "why": c.why, "evidence": _evidence(c.evidence)} for c in diagnosis.cleared],
        "checks": [
            {"what": c.what, "result": c.result, "decisive": c.decisive, "evidence": _evidence(c.evidence)}
            for c in diagnosis.checks
        ],
        "losses": [
            {"kind": loss.kind, "path": loss.path, "line": loss.line, "detail": loss.detail, "count": loss.count}
            for loss in diagnosis.losses
        ],
        "read": [
            {"path": path, "size_bytes": size, "formats": list(formats)} for path, size, formats in diagnosis.artefacts
        ],
    }
