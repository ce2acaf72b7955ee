"""What `busbw explain` makes of texts that stand in a test, and the cases that the tests of all rules are written as."""

from __future__ import annotations

import re
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from busbw.diagnosis import Explanation, Facts, Finding, explain
from busbw.diagnosis.rules import RULES
from busbw.readers import find_artefacts

Texts = str | Mapping[str, str]
"""One file, or several by name."""

RULE = {rule.__name__: rule for rule in RULES}
_MARK = "> "


@dataclass(frozen=True, slots=True)
class Case:
    """A text and what one rule must make of it. Lines that begin with `> ` are those that the finding has to show, and no others."""

    rule: str
    kind: str | None
    """None: the rule stays silent."""
    files: Mapping[str, str]
    severity: str | None = None
    why: str = ""

    def __str__(self) -> str:
        return f"{self.rule}: {self.kind or 'silent'}" + (f", {self.why}" if self.why else "")


def fires(rule: str, kind: str, texts: Texts, *, severity: str | None = None, why: str = "") -> Case:
    """The rule names `kind` before any other."""
    return Case(rule, kind, _files(texts), severity, why)


def near_miss(rule: str, why: str, texts: Texts) -> Case:
    """A text one step away from one that fires the rule. It says nothing."""
    return Case(rule, None, _files(texts), None, why)


def check(case: Case) -> None:
    """Fails if the rule makes something else of the case's texts."""
    found = list(RULE[case.rule](told_exactly({name: _bare(text) for name, text in case.files.items()}).facts))
    if case.kind is None:
        said = [(finding.kind, finding.summary) for finding in found]
        assert not found, f"the rule says {said}"
        return
    assert found, "the rule is silent"
    first = max(found, key=lambda finding: finding.confidence)
    assert first.kind == case.kind, f"{first.kind}, not {case.kind}: {first.summary}"
    assert case.severity in (None, first.severity), f"{first.severity}: {first.summary}"
    shown = {(Path(line.path).name, line.line) for line in first.lines}
    marked = set(_marked(case.files))
    assert shown == marked, (
        f"left out: {_texts(case.files, marked - shown)}; too many: {_texts(case.files, shown - marked)}"
    )


def told(texts: Texts) -> Explanation:
    """The explanation of these texts, their common indentation taken off, each in a file of its own in one folder."""
    return told_exactly(_files(texts))


def told_exactly(files: Mapping[str, str]) -> Explanation:
    """The explanation of these files as they are."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            file = Path(folder) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode("utf-8", "surrogateescape"))
        return explain(*find_artefacts([folder]))


def kinds_of(explanation: Explanation) -> list[str]:
    """The kinds of its findings, best first."""
    return [finding.kind for finding in explanation.diagnosis.findings]


def rule_findings(rule: Callable[[Facts], Iterator[Finding]], texts: Texts) -> list[Finding]:
    """What this rule alone finds."""
    return list(rule(told(texts).facts))


def _files(texts: Texts) -> Mapping[str, str]:
    named = {"input.txt": texts} if isinstance(texts, str) else texts
    return {name: textwrap.dedent(text).lstrip("\n") for name, text in named.items()}


def _bare(text: str) -> str:
    return re.sub(f"^{_MARK}", "", text, flags=re.MULTILINE)


def _marked(files: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    for name, text in files.items():
        for number, line in enumerate(text.split("\n"), start=1):
            if line.startswith(_MARK):
                yield name, number


def _texts(files: Mapping[str, str], places: set[tuple[str, int]]) -> list[str]:
    return [f"{name}:{line}: {_bare(files[name].split(chr(10))[line - 1])}" for name, line in sorted(places)]
