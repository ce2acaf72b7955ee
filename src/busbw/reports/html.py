"""The report: one HTML file that needs nothing else and asks nobody for anything."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from busbw.diagnosis.facts import Curve, Facts
from busbw.diagnosis.findings import Diagnosis, Evidence, Finding, LineRef
from busbw.diagnosis.rules.benchmark import expected_of
from busbw.errors import InputError
from busbw.observations import Artefact
from busbw.reports.excerpts import excerpts, visible
from busbw.reports.figures import HEAT_STEPS, curve_svg, pair_matrices, pair_svg
from busbw.reports.ranks import rank_table
from busbw.units import format_bytes, format_rate

if TYPE_CHECKING:
    from busbw.diagnosis.explain import Explanation

__all__ = ["GENERATOR", "render_report", "write_report"]

GENERATOR = '<meta name="generator" content="busbw report">'
"""Stands near the top of every report, so that a report is known when it is met again among the files of a job."""
MAX_CHARTS = 6
MAX_ROWS = 500
"""Rows of the lists of files and of losses."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_VERDICTS = {
    "faulty": "something is wrong",
    "healthy": "nothing wrong was found",
    "unknown": "these files do not show a cause",
}


def write_report(explanation: Explanation, path: Path, artefacts: Sequence[Artefact] = ()) -> None:
    """Writes the report under a temporary name beside `path`, then renames it.

    artefacts: where the bytes are that evidence lines are shown in the context of; without them the lines stand alone.
    Raises InputError if `path` is there and no file, or cannot be written.
    """
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name the file of the report, such as {path / 'report.html'}.")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is a device or a pipe; a report replaces a file. Give another --report.")
    page = render_report(explanation, artefacts)
    target = path.resolve()
    temporary: str | None = None
    try:
        with tempfile.NamedTemporaryFile("wb", dir=target.parent, prefix=".busbw-report-", delete=False) as out:
            temporary = out.name
            out.write(page.encode("utf-8", "backslashreplace"))
            os.fchmod(out.fileno(), _mode(target))
            out.flush()
            os.fsync(out.fileno())
        Path(temporary).replace(target)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise InputError(f"{path}: the report cannot be written: {error.strerror}. Give another --report.") from error


def render_report(explanation: Explanation, artefacts: Sequence[Artefact] = ()) -> str:
    """The page. The same explanation gives the same bytes."""
    diagnosis, facts = explanation.diagnosis, explanation.facts
    places = {artefact.sha256: artefact.file for artefact in artefacts}
    parts = [
        _verdict(diagnosis),
        _findings(diagnosis, places),
        _curves(diagnosis, facts),
        _pairs(facts),
        _ranks(facts),
        _cleared(diagnosis, places),
        _checks(diagnosis, places, decisive=True),
        _checks(diagnosis, places, decisive=False),
        _read(diagnosis),
        _losses(diagnosis),
    ]
    body = "\n".join(part for part in parts if part)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{GENERATOR}
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>busbw: {diagnosis.verdict}{_title_end(diagnosis)}</title>
<style>
{_css()}</style>
</head>
<body>
<main>
{body}
<footer>busbw explain. Confidence is the probability that a cause is the root cause, given these files.</footer>
</main>
</body>
</html>
"""


@functools.cache
def _css() -> str:
    return files("busbw.reports").joinpath("report.css").read_text("utf-8")


def _mode(path: Path) -> int:
    """Permissions of the file that is replaced, else what the user's umask gives a new file."""
    with contextlib.suppress(OSError):
        return path.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def _text(text: str) -> str:
    return escape(visible(text))


def _class(name: str, applies: bool) -> str:
    return f' class="{name}"' if applies else ""


def _title_end(diagnosis: Diagnosis) -> str:
    return f", {_text(diagnosis.findings[0].kind)}" if diagnosis.findings else ""


def _section(title: str, content: str) -> str:
    return f"<section>\n<h2>{title}</h2>\n{content}\n</section>" if content else ""


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _verdict(diagnosis: Diagnosis) -> str:
    size = sum(size for _, size, _ in diagnosis.artefacts)
    told = [
        _counted(len(diagnosis.findings), "cause", "causes"),
        _counted(sum(check.decisive for check in diagnosis.checks), "check came out right", "checks came out right"),
        f"{_counted(len(diagnosis.artefacts), 'file', 'files')}, {format_bytes(size)} read",
    ]
    lost = sum(loss.count for loss in diagnosis.losses)
    if lost:
        told.append(f"{_counted(lost, 'loss', 'losses')} while reading")
    facts = "".join(f"<span>{item}</span>" for item in told)
    return (
        f'<header class="verdict {diagnosis.verdict}">\n'
        f"<h1><strong>{diagnosis.verdict}</strong>: {_VERDICTS[diagnosis.verdict]}</h1>\n"
        f'<p class="facts">{facts}</p>\n</header>'
    )


def _findings(diagnosis: Diagnosis, places: Mapping[str, Path]) -> str:
    items = (_finding(number, finding, places) for number, finding in enumerate(diagnosis.findings, 1))
    return _section("Findings, most likely first", "\n".join(items))


def _finding(number: int, finding: Finding, places: Mapping[str, Path]) -> str:
    facts = [f"{finding.confidence:.0%}", finding.severity, f"layer: {finding.layer}", f"family: {finding.family}"]
    told = "".join(f"<span>{_text(item)}</span>" for item in facts)
    advice = [f"<dt>fix</dt><dd>{_text(finding.remedy)}</dd>"] if finding.remedy else []
    if finding.distinguish:
        commands = "".join(f"<code>{_text(command)}</code>" for command in finding.distinguish)
        advice.append(f"<dt>to tell it apart</dt><dd>{commands}</dd>")
    return (
        f'<article class="finding">\n<h3>{number}. {_text(finding.kind)}</h3>\n<p class="facts">{told}</p>\n'
        f"<p>{_text(finding.summary)}</p>\n{_lines(finding.evidence, finding.lines, places)}\n"
        f"<dl>{''.join(advice)}</dl>\n</article>"
    )


def _lines(
    evidence: Sequence[Evidence], lines: Sequence[LineRef], places: Mapping[str, Path], *, context: bool = True
) -> str:
    """Evidence in its context, a figure an excerpt."""
    return "\n".join(
        f"<figure>\n<figcaption>{_text(excerpt.path)}:{excerpt.first_evidence}</figcaption>\n"
        f'<pre class="lines" tabindex="0">'
        + "".join(
            f"<span{_class('evidence', line.is_evidence)}><i>{line.number}</i>{escape(line.text)}</span>"
            for line in excerpt.lines
        )
        + "</pre>\n</figure>"
        for excerpt in excerpts(evidence, lines, places, context=context)
    )


def _curves(diagnosis: Diagnosis, facts: Facts) -> str:
    """Tables that a finding names come first, then in the order of reading."""
    named = {(ref.path, ref.line) for finding in diagnosis.findings for ref in finding.lines}
    order = sorted(facts.curves, key=lambda curve: not any((p.at.path, p.at.line) in named for p in curve.points))
    drawn: list[str] = []
    more = 0
    for curve in order:
        if len(drawn) == MAX_CHARTS:
            more += 1
            continue
        expected = expected_of(facts, curve)
        svg = curve_svg(curve, expected, named, prefix=f"c{len(drawn)}")
        if svg is None:
            continue
        caption = _curve_title(curve)
        if expected is not None:
            low, high = format_rate(expected.low_bytes_per_s), format_rate(expected.high_bytes_per_s)
            start = format_bytes(expected.reached_at_bytes)
            caption += f"<br>expected {low} to {high} from {start} on, limited by {_text(expected.limited_by)}"
        drawn.append(f"<figure>{svg}<figcaption>{caption}</figcaption></figure>")
    if not drawn:
        return ""
    note = f'<p class="note">{_counted(more, "more table is", "more tables are")} not drawn.</p>' if more else ""
    return _section("Measured", f'<div class="charts">{"".join(drawn)}</div>{note}')


def _curve_title(curve: Curve) -> str:
    told = [curve.collective or "", curve.tool]
    if curve.ranks:
        told.append(_counted(curve.ranks, "rank", "ranks"))
    if curve.nodes:
        told.append(_counted(curve.nodes, "node", "nodes"))
    at = curve.points[0].at
    return f"{_text(', '.join(word for word in told if word))} ({_text(at.path)}:{at.line})"


def _pairs(facts: Facts) -> str:
    drawn = []
    for number, matrix in enumerate(pair_matrices(facts.pairs)):
        caption = _text(f"{matrix.title}, {matrix.unit}" if matrix.unit else matrix.title)
        if matrix.left_out:
            caption += f"; {matrix.left_out} more ends are not drawn"
        drawn.append(f"<figure>{pair_svg(matrix, f'p{number}')}<figcaption>{caption}</figcaption></figure>")
    if not drawn:
        return ""
    shades = "".join(f'<b style="background:var(--heat-{step})"></b>' for step in range(HEAT_STEPS))
    legend = f'<p class="legend">as the median pair&nbsp;{shades}&nbsp;4 times worse, or more</p>'
    return _section("Between pairs", f'<div class="charts">{"".join(drawn)}</div>{legend}')


def _ranks(facts: Facts) -> str:
    table = rank_table(facts)
    if len(table.rows) < 2:
        return ""
    head = "".join(f"<th>{_text(name)}</th>" for name in table.columns)
    rows = "\n".join(
        "<tr>" + "".join(f"<td{_class('differs', c.differs)}>{_text(c.text)}</td>" for c in row) + "</tr>"
        for row in table.rows
    )
    note = "Marked: differs from what most processes have. Empty: the files do not say."
    if table.left_out:
        note += f" {_counted(table.left_out, 'process is', 'processes are')} not shown; those that differ come first."
    return _section(
        "Ranks side by side",
        f'<p class="note">{note}</p>\n<div class="scroll ranks" tabindex="0"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>",
    )


def _cleared(diagnosis: Diagnosis, places: Mapping[str, Path]) -> str:
    items = (
        f"<li><p><b>{_text(item.what)}</b>: {_text(item.why)}</p>\n"
        f"{_lines(item.evidence, item.lines, places, context=False)}</li>"
        for item in diagnosis.cleared
    )
    return _section("Looked at, not the cause", _list(items))


def _checks(diagnosis: Diagnosis, places: Mapping[str, Path], *, decisive: bool) -> str:
    items = (
        f"<li><p><b>{_text(item.what)}</b>: {_text(item.result)}</p>\n"
        f"{_lines(item.evidence, item.lines, places, context=False)}</li>"
        for item in diagnosis.checks
        if item.decisive is decisive
    )
    return _section("Checked, and right" if decisive else "Noted", _list(items))


def _list(items: Iterable[str]) -> str:
    content = "\n".join(items)
    return f'<ul class="plain">\n{content}\n</ul>' if content else ""


def _read(diagnosis: Diagnosis) -> str:
    rows = (
        f'<tr><td class="path">{_text(path)}</td><td class="n">{format_bytes(size)}</td>'
        f"<td>{_text(', '.join(formats)) or 'not recognised'}</td></tr>"
        for path, size, formats in diagnosis.artefacts
    )
    return _section("Read", _table('<th>file</th><th class="n">size</th><th>formats</th>', rows))


def _losses(diagnosis: Diagnosis) -> str:
    rows = (
        f'<tr><td class="path">{_text(loss.path)}{f":{loss.line}" if loss.line is not None else ""}</td>'
        f'<td>{_text(loss.kind)}</td><td class="n">{loss.count}</td><td>{_text(loss.detail)}</td></tr>'
        for loss in diagnosis.losses
    )
    return _section(
        "Not read", _table('<th>where first</th><th>kind</th><th class="n">times</th><th>what was lost</th>', rows)
    )


def _table(head: str, rows: Iterator[str]) -> str:
    listed = list(rows)
    if not listed:
        return ""
    note = f'<p class="note">{len(listed) - MAX_ROWS} more are not shown.</p>' if len(listed) > MAX_ROWS else ""
    shown = "\n".join(listed[:MAX_ROWS])
    return (
        f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{shown}\n</tbody></table></div>{note}'
    )
