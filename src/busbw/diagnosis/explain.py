"""The answer: read everything, gather facts, run the rules, rank what they found, clear what is harmless, give a verdict."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from busbw.diagnosis.cleared import cleared_lines, positive_checks, unexplained
from busbw.diagnosis.evidence import EvidenceTexts
from busbw.diagnosis.facts import Facts, FactsBuilder, lines_of
from busbw.diagnosis.findings import Check, Diagnosis, Finding, Verdict
from busbw.diagnosis.joining import of_ranks, with_jobs
from busbw.diagnosis.rules import RULES
from busbw.diagnosis.rules.desync import DEATHS, EFFECTS
from busbw.errors import Loss
from busbw.hardware import Cluster
from busbw.observations import Artefact
from busbw.readers import Reading, read_artefact

__all__ = ["Explanation", "diagnose", "explain"]

_WEIGHT = {"fatal": 1.0, "major": 0.9, "minor": 0.6}
"""How much a finding's confidence counts in the order: what ends a job comes before what slows it."""
_WEIGHT_BESIDE_AN_END = 0.3
"""A minor finding in a job that something fatal ended is a remark."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The diagnosis and the facts it rests on, for reports."""

    diagnosis: Diagnosis
    facts: Facts


def explain(
    artefacts: Sequence[Artefact],
    losses: Sequence[Loss] = (),
    progress: Callable[[int], None] | None = None,
    *,
    cluster: Cluster | None = None,
) -> Explanation:
    """What is wrong with the system that these files come from. `losses`: what could not even be opened. cluster: what the job ran on, for times to expect."""
    builder = FactsBuilder()
    readings = []
    for artefact in artefacts:
        builder.announce(artefact)
        reading = Reading(artefact)
        for item in read_artefact(artefact, reading, progress):
            builder.add(item)
        readings.append(reading)
    facts = builder.build()
    facts.cluster = cluster
    every_loss = [*losses, *(loss for reading in readings for loss in reading.losses), *builder.losses]
    read = [(r.artefact.path, r.artefact.size_bytes, tuple(r.formats)) for r in readings]
    diagnosis = diagnose(facts, every_loss, read)
    texts = EvidenceTexts(artefacts)
    return Explanation(
        dataclasses.replace(
            diagnosis,
            findings=[dataclasses.replace(f, evidence=texts.of(f.lines)) for f in diagnosis.findings],
            cleared=[dataclasses.replace(c, evidence=texts.of(c.lines)) for c in diagnosis.cleared],
            checks=[dataclasses.replace(c, evidence=texts.of(c.lines)) for c in diagnosis.checks],
        ),
        facts,
    )


def diagnose(
    facts: Facts, losses: Sequence[Loss] = (), read: Sequence[tuple[str, int, Sequence[str]]] = ()
) -> Diagnosis:
    """Runs every rule on the facts. Evidence texts are left empty."""
    found = [dataclasses.replace(finding, rule=rule.__name__) for rule in RULES for finding in rule(facts)]
    findings = with_jobs(_ranked(_merged(of_ranks(found, facts)), facts), facts)
    checks = list(positive_checks(facts))
    cleared = list(cleared_lines(facts, findings))
    open_errors = unexplained(facts, findings)
    if open_errors:
        checks.append(
            Check(
                "unexplained",
                f"{len(open_errors)} warnings or errors that no rule accounts for",
                lines_of(open_errors, most=8),
                decisive=False,
            )
        )
    return Diagnosis(_verdict(findings, checks, bool(open_errors)), findings, cleared, checks, list(losses), list(read))


_WORTH_A_VERDICT = 0.3
"""A fatal or major finding at least this sure is not hidden by a surer minor one of the same kind."""


def _merged(found: Sequence[Finding]) -> list[Finding]:
    """One finding a kind: the most confident one, with the lines of all. Independent rules that agree strengthen each other."""
    by_kind: dict[str, list[Finding]] = defaultdict(list)
    for finding in found:
        by_kind[finding.kind].append(finding)
    merged = []
    for same in by_kind.values():
        same.sort(
            key=lambda f: (
                f.severity == "minor" or f.confidence < _WORTH_A_VERDICT,
                -f.confidence * _WEIGHT[f.severity],
            )
        )
        best = same[0]
        doubt = 1 - best.confidence
        for other in same[1:]:
            doubt *= 1 - other.confidence / 2
        lines = {(line.path, line.line): line for f in same for line in f.lines}
        tell = tuple(dict.fromkeys(t for f in same for t in f.distinguish))
        merged.append(
            dataclasses.replace(
                best, confidence=min(0.97, 1 - doubt), lines=sorted(lines.values())[:24], distinguish=tell
            )
        )
    return merged


def _ranked(findings: Sequence[Finding], facts: Facts) -> list[Finding]:
    """Best first: confidence times weight of the severity. A peer that died explains nothing that has a cause of its own."""
    causes = [f for f in findings if f.kind != "peer-process-died" and f.severity != "minor"]
    failing = {(e.at.path, e.at.line) for e in facts.failures()}
    ended = any(
        f.severity == "fatal" and f.confidence >= 0.25 and any((line.path, line.line) in failing for line in f.lines)
        for f in findings
    )
    strongest = max((f.confidence for f in causes), default=0.0)
    adjusted = []
    for finding in findings:
        confidence = finding.confidence
        if finding.kind == "peer-process-died" and strongest >= 0.5:
            confidence *= 1 - strongest
        elif finding.kind == "peer-process-died" and strongest > 0 and not facts.any(*DEATHS):
            confidence = min(confidence, strongest / 2)  # closed connections alone outrank no cause, however unsure
        if (
            ended
            and finding.severity == "major"
            and not any((line.path, line.line) in failing for line in finding.lines)
        ):
            confidence *= 0.7  # it slows the job; something else ended it
        adjusted.append(dataclasses.replace(finding, confidence=max(0.01, confidence)))
    first = _first_failure_line(facts)

    def key(finding: Finding) -> tuple[float, str]:
        weight = _WEIGHT_BESIDE_AN_END if ended and finding.severity == "minor" else _WEIGHT[finding.severity]
        early = first is not None and first in {(line.path, line.line) for line in finding.lines}
        return -(finding.confidence * weight * (1.05 if early else 1.0)), finding.kind

    return sorted(adjusted, key=key)


def _first_failure_line(facts: Facts) -> tuple[str, int] | None:
    """The first error in time: by clock where lines have one, else by their order in the only file that has errors."""
    causes = [e for e in facts.failures() if e.name not in EFFECTS]
    timed = [e for e in causes if e.time_ns is not None]
    if timed:
        first = min(timed, key=lambda e: e.time_ns or 0)
    elif causes and len({e.at.path for e in causes}) == 1:
        first = causes[0]
    else:
        return None
    return first.at.path, first.at.line


def _verdict(findings: Sequence[Finding], checks: Sequence[Check], errors_left: bool) -> Verdict:
    """Faulty: something fatal or major was found. Healthy: nothing was, something was checked, and no error is left. Else unknown."""
    if any(f.severity in ("fatal", "major") for f in findings):
        return "faulty"
    return "healthy" if any(check.decisive for check in checks) and not errors_left else "unknown"
