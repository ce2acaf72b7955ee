"""What `busbw explain` makes of texts that stand in a test, and the cases that the tests of all rules are written as."""

from __future__ import annotations

import re
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from busbw.diagnosis import Explanation, Facts, Finding, explain
from busbw.diagnosis.facts import FactsBuilder
from busbw.diagnosis.rules import RULES
from busbw.hardware import find_cluster
from busbw.observations import Artefact, rows_of
from busbw.readers import Reading, find_artefacts, read_artefact

Texts = str | Mapping[str, str]
"""One file, or several by name."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row that some reader gives, one line of its file."""

    table: str
    columns: Mapping[str, Any]
    shown: bool = False
    """Whether the finding has to show it."""


Rows = Mapping[str, Sequence[Row]]
"""Rows by the file they come from."""

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
    rows: Rows = field(default_factory=dict)
    """Rows beside the texts, for facts of which this test does not care how they are read."""
    cluster: str = ""
    """What the user says the job ran on; empty: nothing."""

    def __str__(self) -> str:
        return f"{self.rule}: {self.kind or 'silent'}" + (f", {self.why}" if self.why else "")


def fires(rule: str, kind: str, texts: Texts, *, severity: str | None = None, why: str = "") -> Case:
    """The rule names `kind` before any other."""
    return Case(rule, kind, _files(texts), severity, why)


def near_miss(rule: str, why: str, texts: Texts) -> Case:
    """A text one step away from one that fires the rule. It says nothing."""
    return Case(rule, None, _files(texts), None, why)


def row(table: str, **columns: Any) -> Row:
    """A row that the finding leaves out."""
    return Row(table, columns)


def shown(table: str, **columns: Any) -> Row:
    """A row that the finding has to show."""
    return Row(table, columns, True)


def fires_on(
    rule: str,
    kind: str,
    rows: Rows,
    texts: Texts = "",
    *,
    severity: str | None = None,
    why: str = "",
    cluster: str = "",
) -> Case:
    """The rule names `kind` before any other, from rows and perhaps texts beside them."""
    return Case(rule, kind, _files(texts) if texts else {}, severity, why, rows, cluster)


def near_miss_on(rule: str, why: str, rows: Rows, texts: Texts = "", *, cluster: str = "") -> Case:
    """Rows one step away from those that fire the rule. It says nothing."""
    return Case(rule, None, _files(texts) if texts else {}, None, why, rows, cluster)


def facts_of(files: Mapping[str, str], rows: Rows = {}) -> Facts:  # noqa: B006  never changed
    """The facts of these files as they are, and of these rows."""
    builder = FactsBuilder()
    with tempfile.TemporaryDirectory() as folder:
        _write(folder, files)
        for artefact in find_artefacts([folder])[0] if files else ():
            builder.announce(artefact)
            for item in read_artefact(artefact, Reading(artefact)):
                builder.add(item)
        _write(folder, {name: "".join(f"{one.columns}\n" for one in listed) for name, listed in rows.items()})
        for name, listed in rows.items():
            artefact = Artefact.of(Path(folder) / name, name)
            builder.announce(artefact)
            for number, one in enumerate(listed, start=1):
                place = {"artefact": artefact.sha256, "line": number, "byte_offset": number}
                builder.add(rows_of(one.table, [{**place, **one.columns}]))
    return builder.build()


def check(case: Case) -> None:
    """Fails if the rule makes something else of the case's texts and rows."""
    facts = facts_of({name: _bare(text) for name, text in case.files.items()}, case.rows)
    facts.cluster = find_cluster(case.cluster)[0] if case.cluster else None
    found = list(RULE[case.rule](facts))
    if case.kind is None:
        said = [(finding.kind, finding.summary) for finding in found]
        assert not found, f"the rule says {said}"
        return
    assert found, "the rule is silent"
    first = max(found, key=lambda finding: finding.confidence)
    assert first.kind == case.kind, f"{first.kind}, not {case.kind}: {first.summary}"
    assert case.severity in (None, first.severity), f"{first.severity}: {first.summary}"
    given = {(Path(line.path).name, line.line) for line in first.lines}
    marked = set(_marked(case))
    assert given == marked, f"left out: {_texts(case, marked - given)}; too many: {_texts(case, given - marked)}"


def told(texts: Texts) -> Explanation:
    """The explanation of these texts, their common indentation taken off, each in a file of its own in one folder."""
    return told_exactly(_files(texts))


def told_exactly(files: Mapping[str, str]) -> Explanation:
    """The explanation of these files as they are."""
    with tempfile.TemporaryDirectory() as folder:
        _write(folder, files)
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


def _write(folder: str, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        file = Path(folder) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode("utf-8", "surrogateescape"))


def _marked(case: Case) -> Iterator[tuple[str, int]]:
    for name, text in case.files.items():
        for number, line in enumerate(text.split("\n"), start=1):
            if line.startswith(_MARK):
                yield Path(name).name, number
    for name, listed in case.rows.items():
        for number, one in enumerate(listed, start=1):
            if one.shown:
                yield Path(name).name, number


def _texts(case: Case, places: set[tuple[str, int]]) -> list[str]:
    lines = {Path(name).name: _bare(text).split("\n") for name, text in case.files.items()}
    lines |= {Path(name).name: [str(dict(one.columns)) for one in listed] for name, listed in case.rows.items()}
    return [f"{name}:{line}: {lines[name][line - 1]}" for name, line in sorted(places)]
