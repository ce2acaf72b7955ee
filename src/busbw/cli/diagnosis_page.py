"""A diagnosis as text: the verdict first, causes by likelihood, each with the lines that show it and what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from busbw.cli.console import Page
from busbw.diagnosis.beside_model import ExpectedStep, KindOfCall, StepPart
from busbw.diagnosis.findings import Check, Cleared, Diagnosis, Evidence, Finding, LineRef
from busbw.errors import Loss
from busbw.observations import Artefact
from busbw.reports import Excerpt, excerpts, visible
from busbw.units import format_bytes

__all__ = ["print_calls", "print_diagnosis", "print_step"]

IN_FULL = 3
"""Findings that are shown in full whatever their confidence."""
LOW_CONFIDENCE = 0.5
"""Below it, a finding after the first three is one line."""
MAX_LINES = 6
"""Evidence lines of a finding; what was looked at and cleared gets two."""
MAX_LISTED = 12
"""Files read, losses, checks."""

_VERDICT_STYLES = {"faulty": "bold red", "healthy": "bold green", "unknown": "bold yellow"}
_SEVERITY_STYLES = {"fatal": "red", "major": "yellow", "minor": ""}
_MORE_TO_READ = (
    "To see more, add what is missing: the log of every rank with NCCL_DEBUG=INFO and "
    "NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,ENV,TUNING, the output of nccl-tests, nvidia-smi topo -m, and dmesg of each node."
)


def print_diagnosis(page: Page, diagnosis: Diagnosis, artefacts: Sequence[Artefact], show_all: bool = False) -> None:
    """Prints everything a diagnosis says; without show_all, long lists end with how much was left out."""
    places = {artefact.sha256: artefact.file for artefact in artefacts}
    printer = _Printer(page, places, show_all)
    printer.verdict(diagnosis)
    for number, finding in enumerate(diagnosis.findings, 1):
        short = number > IN_FULL and finding.confidence < LOW_CONFIDENCE and not show_all
        printer.finding(number, finding, short)
    if diagnosis.verdict == "unknown" and not diagnosis.findings:
        page.line()
        page.prose(_MORE_TO_READ)
    printer.cleared(diagnosis.cleared)
    printer.checks("checked, and right", [check for check in diagnosis.checks if check.decisive])
    printer.checks("noted", [check for check in diagnosis.checks if not check.decisive])
    printer.read(diagnosis.artefacts)
    printer.losses(diagnosis.losses)


def print_calls(page: Page, kinds: Sequence[KindOfCall], cluster: str, show_all: bool = False) -> None:
    """Prints what collectives took beside what is expected, those first that lose most."""
    page.line()
    if not kinds:
        page.prose(
            "No collective here says process group, ranks and bytes, or several files say that they are the same rank, so none can be laid beside the model."
        )
        return
    page.line(("   collectives beside the model", "bold"), f" ({cluster}; us, the last rank's to come)")
    columns = [
        ("collective", False), ("size", True), ("ranks", True), ("of a domain", True), ("calls", True), ("took", True), ("expected", True), ("up to", True), ("times", True),
        ("waiting", True), ("group", False),
    ]  # fmt: skip
    shown = kinds if show_all else kinds[:MAX_LISTED]
    page.table(
        columns,
        (
            [
                visible(kind.collective.replace("_", "-")), format_bytes(kind.size_bytes), str(kind.ranks), str(kind.inside), str(kind.calls),
                ("" if kind.matched else "<= ") + f"{kind.took_ns / 1e3:.0f}", "-" if kind.expected_ns is None else f"{kind.expected_ns / 1e3:.0f}",
                "-" if kind.high_ns is None else f"{kind.high_ns / 1e3:.0f}", "-" if kind.ratio is None else f"{kind.ratio:.2f}",
                f"{kind.waited_ns / kind.spent_ns:.0%}" if kind.matched and kind.spent_ns else "-", visible(kind.group),
            ]
            for kind in shown
        ),
    )  # fmt: skip
    if len(shown) < len(kinds):
        page.line((f"   {len(kinds) - len(shown)} more kinds of calls: --all", "dim"))


def print_step(page: Page, parts: Sequence[StepPart], expected: ExpectedStep) -> None:
    """Prints the step of the traces beside the expected one, part by part."""
    page.line()
    if not parts:
        page.prose("No trace of a GPU here has steps that could be laid beside the expected one.")
        return
    page.line(
        ("   the step beside the model", "bold"),
        f" ({visible(expected.model)}, {visible(expected.layout)}; ms, median over ranks; a healthy step: {expected.low_s * 1e3:.4g} to {expected.high_s * 1e3:.4g})",
    )
    page.table(
        [("part", False), ("took", True), ("expected", True), ("more by", True)],
        (
            [part.name, f"{part.measured_s * 1e3:.4g}", f"{part.expected_s * 1e3:.4g}", f"{(part.measured_s - part.expected_s) * 1e3:+.4g}"]
            for part in parts
        ),
    )  # fmt: skip


_Item = TypeVar("_Item")


class _Printer:
    """One diagnosis on one page."""

    def __init__(self, page: Page, places: Mapping[str, Path], show_all: bool) -> None:
        self.page = page
        self.places = places
        self.show_all = show_all

    def verdict(self, diagnosis: Diagnosis) -> None:
        causes = len(diagnosis.findings)
        told = {
            "faulty": f"{causes} {'cause' if causes == 1 else 'possible causes'}",
            "healthy": "nothing wrong was found"
            if not causes
            else f"{causes} minor {'thing' if causes == 1 else 'things'}",
            "unknown": "these files do not show a cause" if not causes else "nothing here is certain",
        }[diagnosis.verdict]
        files = len(diagnosis.artefacts)
        size = format_bytes(sum(size for _, size, _ in diagnosis.artefacts))
        style = _VERDICT_STYLES[diagnosis.verdict]
        self.page.line((diagnosis.verdict, style), f": {told} ", (f"({files} {_plural('file', files)}, {size})", "dim"))

    def finding(self, number: int, finding: Finding, short: bool) -> None:
        page = self.page
        page.line()
        page.line(
            (f"{number}. ", "dim"), (finding.kind, "bold"), f"  {finding.confidence:.0%}  ",
            (finding.severity, _SEVERITY_STYLES[finding.severity]), (f"  {finding.layer}", "dim"),
        )  # fmt: skip
        page.prose(visible(finding.summary), "   ")
        if short:
            count = len(finding.lines)
            page.line((f"   {count} {_plural('line', count)} and what to change: --all", "dim"))
            return
        self._lines(finding.evidence, finding.lines, MAX_LINES)
        if finding.remedy:
            page.prose(visible(finding.remedy), "   " + " " * 5, first="   fix: ")
        if finding.distinguish:
            page.line(("   to tell it apart:", "dim"))
            for command in finding.distinguish:
                page.quote(visible(command), "     ", "       ")

    def cleared(self, items: Sequence[Cleared]) -> None:
        if items:
            self._heading("looked at, not the cause")
        for item in items:
            self.page.prose(f"{visible(item.what)}: {visible(item.why)}", "     ", first="   - ")
            self._lines(item.evidence, item.lines, 2, context=False)

    def checks(self, heading: str, items: Sequence[Check]) -> None:
        if items:
            self._heading(heading)
        for item in self._most(items):
            where = f" ({visible(item.lines[0].path)}:{item.lines[0].line})" if item.lines else ""
            self.page.prose(f"{visible(item.what)}: {visible(item.result)}{where}", "     ", first="   - ")
        self._rest(items)

    def read(self, items: Sequence[tuple[str, int, Sequence[str]]]) -> None:
        if items:
            self._heading("read")
        shown = self._most(items)
        width = max((len(visible(path)) for path, _, _ in shown), default=0)
        for path, size, formats in shown:
            told = (
                f"{visible(path):{min(width, 60)}}  {format_bytes(size):>10}  {', '.join(formats) or 'not recognised'}"
            )
            self.page.line("   ", told)
        self._rest(items)

    def losses(self, items: Sequence[Loss]) -> None:
        if items:
            self._heading("not read")
        for loss in self._most(items):
            self.page.prose(visible(str(loss)), "     ", first="   - ")
        self._rest(items)

    def _heading(self, title: str) -> None:
        self.page.line()
        self.page.line((title, "bold"))

    def _lines(
        self, evidence: Sequence[Evidence], lines: Sequence[LineRef], most: int, *, context: bool = True
    ) -> None:
        chosen = evidence if self.show_all else evidence[:most]
        for excerpt in excerpts(chosen, lines, self.places, context=context):
            self._excerpt(excerpt)
        left = len(evidence) - len(chosen)
        if left:
            self.page.line((f"     {left} more {_plural('line', left)}: --all", "dim"))

    def _excerpt(self, excerpt: Excerpt) -> None:
        self.page.line((f"   {visible(excerpt.path)}:{excerpt.first_evidence}", "cyan"))
        digits = len(str(excerpt.lines[-1].number))
        for line in excerpt.lines:
            first = f"   {'>' if line.is_evidence else ' '} {line.number:{digits}} | "
            indent = " " * (len(first) - 2) + "| "
            self.page.quote(line.text, first, indent, "" if line.is_evidence else "dim")

    def _most(self, items: Sequence[_Item]) -> Sequence[_Item]:
        return items if self.show_all else items[:MAX_LISTED]

    def _rest(self, items: Sequence[object]) -> None:
        if not self.show_all and len(items) > MAX_LISTED:
            self.page.line((f"   and {len(items) - MAX_LISTED} more: --all", "dim"))


def _plural(word: str, number: int) -> str:
    return word if number == 1 else word + "s"
