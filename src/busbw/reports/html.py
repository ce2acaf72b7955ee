"""The report: one HTML file that needs nothing else and asks nobody for anything."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from busbw.diagnosis.facts import Curve, Facts
from busbw.diagnosis.findings import Diagnosis, Evidence, Finding, LineRef, kinds
from busbw.diagnosis.hypotheses import gpu_of, healthy_of
from busbw.diagnosis.rules.benchmark import expected_of
from busbw.observations import Artefact
from busbw.reports.commands import parts
from busbw.reports.excerpts import Excerpt, excerpts, visible
from busbw.reports.figures import curve_svg, odd_ends, pair_matrices, pair_svg
from busbw.reports.node_figure import node_svg
from busbw.reports.nodes import NodeMap, node_maps
from busbw.reports.page import GENERATOR, Section, contents, page_of, section, write_page
from busbw.reports.ranks import RankTable, host_table, rank_table
from busbw.reports.svg import HEAT_STEPS
from busbw.reports.timeline import Failure, Timeline, clock, first_failures, span, timeline_svg
from busbw.units import format_bytes, format_rate

if TYPE_CHECKING:
    from busbw.diagnosis.explain import Explanation

__all__ = ["GENERATOR", "render_report", "write_report"]

MAX_CHARTS = 6
MAX_GLANCE = 4
"""Causes at the head of the page."""
OPEN_EXCERPTS = 4
"""Places of evidence of a finding that are open from the start."""
MAX_TEXT = 300
"""Characters of a message in the table of failures."""
SHORT = 12
"""Rows up to which a table is not parted between sheets."""
WIDE = 15
"""Columns up to which a table of ranks fits a sheet of paper without breaking words."""
MAX_MARKS = 40
"""Marks of a node that are listed."""
MAX_ROWS = 500
"""Rows of the lists of files and of losses."""

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
    write_page(path, lambda: render_report(explanation, artefacts))


def render_report(explanation: Explanation, artefacts: Sequence[Artefact] = ()) -> str:
    """The page. The same explanation gives the same bytes."""
    diagnosis, facts = explanation.diagnosis, explanation.facts
    places = {artefact.sha256: artefact.file for artefact in artefacts}
    failures = first_failures(facts, diagnosis.findings)
    sections = [
        _findings(diagnosis, places),
        _decide(diagnosis),
        _failures(failures) if diagnosis.verdict != "healthy" else None,
        _nodes(facts, diagnosis),
        _hosts(facts, failures),
        _curves(diagnosis, facts),
        _pairs(facts),
        _ranks(facts),
        _cleared(diagnosis, places),
        _checks(diagnosis, places, decisive=True),
        _checks(diagnosis, places, decisive=False),
        _losses(diagnosis),
        _read(diagnosis),
    ]
    shown = [section for section in sections if section is not None]
    body = "\n".join([_verdict(diagnosis), contents(shown), *(section.html for section in shown)])
    return page_of(
        f"busbw: {diagnosis.verdict}{_title_end(diagnosis)}",
        body,
        "busbw explain. Confidence is the probability that a cause is the root cause, given these files. This page holds all it shows and asks no network for anything.",
    )


def _text(text: str) -> str:
    return escape(visible(text))


def _class(name: str, applies: bool) -> str:
    return f' class="{name}"' if applies else ""


def _title_end(diagnosis: Diagnosis) -> str:
    return f", {_text(diagnosis.findings[0].kind)}" if diagnosis.findings else ""


def _counted(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _verdict(diagnosis: Diagnosis) -> str:
    size = sum(size for _, size, _ in diagnosis.artefacts)
    told = [
        _counted(len(diagnosis.findings), "possible cause", "possible causes"),
        _counted(sum(check.decisive for check in diagnosis.checks), "check came out right", "checks came out right"),
        f"{_counted(len(diagnosis.artefacts), 'file', 'files')}, {format_bytes(size)} read",
    ]
    lost = sum(loss.count for loss in diagnosis.losses)
    if lost:
        told.append(f'<a href="#not-read">{_counted(lost, "loss", "losses")} while reading</a>')
    facts = "".join(f"<span>{item}</span>" for item in told)
    return (
        f'<header class="verdict {diagnosis.verdict}">\n'
        f"<h1><strong>{diagnosis.verdict}</strong>: {_VERDICTS[diagnosis.verdict]}</h1>\n"
        f'<p class="facts">{facts}</p>\n{_glance(diagnosis)}</header>'
    )


def _glance(diagnosis: Diagnosis) -> str:
    """The causes on one screen: number, cause, how sure; what it is and what to change for the first."""
    rows = []
    for number, finding in enumerate(diagnosis.findings[:MAX_GLANCE], 1):
        percent = f"{finding.confidence:.0%}"
        rows.append(
            f'<li class="{finding.severity}"><a href="#finding-{number}"><b>{_text(finding.kind)}</b></a>'
            f'<span class="sure"><meter min="0" max="1" value="{finding.confidence:.2f}" aria-label="confidence"></meter>'
            f"{percent}, {finding.severity}</span><p>{_text(finding.summary)}</p></li>"
        )
    if not rows:
        return ""
    more = len(diagnosis.findings) - len(rows)
    note = f'<p class="note">and {_counted(more, "less likely cause", "less likely causes")} below</p>' if more else ""
    return f'<ol class="glance">{"".join(rows)}</ol>{note}\n'


def _findings(diagnosis: Diagnosis, places: Mapping[str, Path]) -> Section | None:
    shared = _shared(diagnosis.findings)
    shown: dict[tuple[str, tuple[int, ...]], int] = {}
    items = [_finding(number, finding, places, shared, shown) for number, finding in enumerate(diagnosis.findings, 1)]
    return section("findings", "Findings, most likely first", "\n".join(items))


def _finding(
    number: int,
    finding: Finding,
    places: Mapping[str, Path],
    shared: Mapping[str, Sequence[int]],
    shown: dict[tuple[str, tuple[int, ...]], int],
) -> str:
    """One finding. Lines that an earlier one shows, and commands that tell several apart, are named, not repeated."""
    facts = [f"{finding.confidence:.0%}", finding.severity, f"layer: {finding.layer}", f"family: {finding.family}"]
    told = "".join(f"<span>{_text(item)}</span>" for item in facts)
    advice = [f'<div class="fix"><h4>Fix</h4><p>{_advice(finding.remedy)}</p></div>'] if finding.remedy else []
    own = [command for command in finding.distinguish if len(shared[command]) == 1]
    if own:
        advice.append(f"<h4>To be sure</h4>{_commands(own)}")
    others = sorted({n for command in finding.distinguish for n in shared[command]} - {number})
    if others:
        rivals = ", ".join(f'<a href="#finding-{n}">{n}</a>' for n in others)
        advice.append(
            f'<p class="note">What tells it from {rivals} stands under <a href="#decide">To decide between them</a>.</p>'
        )
    new, old = [], []
    for excerpt in excerpts(finding.evidence, finding.lines, places):
        key = (excerpt.path, tuple(line.number for line in excerpt.lines if line.is_evidence))
        if shown.setdefault(key, number) == number:
            new.append(_excerpt(excerpt))
        else:
            old.append(f'<a href="#finding-{shown[key]}">{_text(excerpt.path)}:{excerpt.first_evidence}</a>')
    again = f'<p class="note">Also shown above: {", ".join(old)}</p>' if old else ""
    meaning = kinds()[finding.kind].meaning
    return (
        f'<article class="finding {finding.severity}" aria-labelledby="finding-{number}">\n'
        f'<h3 id="finding-{number}">{number}. {_text(finding.kind)}</h3>\n<p class="facts">{told}</p>\n'
        f'<p class="summary">{_text(finding.summary)}</p>\n<p class="note">{_text(meaning)}</p>\n'
        f"{''.join(advice)}\n{_folded(new, 'evidence')}{again}</article>"
    )


def _folded(excerpted: Sequence[str], what: str) -> str:
    """The first OPEN_EXCERPTS open, the rest behind a summary; printed pages show them all."""
    open_ones = "\n".join(excerpted[:OPEN_EXCERPTS])
    rest = excerpted[OPEN_EXCERPTS:]
    if not rest:
        return open_ones
    more = f"{len(rest)} more {'place' if len(rest) == 1 else 'places'} of {what}"
    return f"{open_ones}\n<details><summary>{more}</summary>\n{chr(10).join(rest)}</details>"


def _shared(findings: Sequence[Finding]) -> dict[str, list[int]]:
    """Numbers of the findings that each command helps to decide."""
    found: dict[str, list[int]] = {}
    for number, finding in enumerate(findings, 1):
        for command in dict.fromkeys(finding.distinguish):
            found.setdefault(command, []).append(number)
    return found


def _decide(diagnosis: Diagnosis) -> Section | None:
    """Commands that tell findings from one another, each once."""
    together: dict[tuple[int, ...], list[str]] = {}
    for command, numbers in _shared(diagnosis.findings).items():
        if len(numbers) > 1:
            together.setdefault(tuple(numbers), []).append(command)
    blocks = []
    for deciding, commands in together.items():
        names = ", ".join(f'<a href="#finding-{n}">{n}. {_text(diagnosis.findings[n - 1].kind)}</a>' for n in deciding)
        blocks.append(f'<div class="rivals"><p>{names}</p>\n{_commands(commands)}</div>')
    return section("decide", "To decide between them", "\n".join(blocks))


def _advice(text: str, *, whole: bool = False) -> str:
    """The advice with what can be typed as `code.command`; the script of the page puts a button behind each."""
    return "".join(
        f'<code class="command">{_text(part.text)}</code>' if part.is_command else _text(part.text)
        for part in parts(text, whole=whole)
    )


def _commands(commands: Iterable[str]) -> str:
    return f'<ul class="commands">{"".join(f"<li>{_advice(c, whole=True)}</li>" for c in commands)}</ul>'


def _excerpt(excerpt: Excerpt) -> str:
    """Lines of prose are wrapped; columns of a table keep their places and scroll."""
    name = f"{_text(excerpt.path)}:{excerpt.first_evidence}"
    rows = "".join(
        f"<span{_class('evidence', line.is_evidence)}><i>{line.number}</i>{escape(line.text)}</span>"
        for line in excerpt.lines
    )
    columns = any(len(re.findall(r"\S {2,}(?=\S)", line.text)) >= 3 for line in excerpt.lines if line.is_evidence)
    box = f' tabindex="0" role="group" aria-label="lines of {name}"' if columns else ""
    return (
        f'<figure class="excerpt">\n<figcaption>{name}</figcaption>\n'
        f'<pre class="lines{" columns" if columns else ""}"{box}>{rows}</pre>\n</figure>'
    )


def _figure(svg: str, caption: str, label: str) -> str:
    """A drawing in a box that scrolls where it would become too small to read."""
    return (
        f'<figure class="drawing"><div class="scroll-x" tabindex="0" role="group" aria-label="{label}">{svg}</div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _failures(failures: Timeline) -> Section | None:
    if not failures.timed and len(failures.rows) < 2:
        return None
    svg = timeline_svg(failures)
    drawn = ""
    if svg is not None:
        key = "star: first of all; disc: a cause; square: a collective that never completed; diamond: follows from a failure elsewhere"
        drawn = _figure(svg, key, "Timeline of first failures")
    start = failures.first.time_ns if failures.first is not None else None
    hosts, times = any(row.host for row in failures.rows), bool(failures.timed)
    rows = (
        _failure_row(number, row, start, first=row is failures.first, hosts=hosts, times=times)
        for number, row in enumerate(failures.rows, 1)
    )
    columns = ['<th class="n">order</th><th>who</th>']
    columns += ['<th class="n">after the first</th>'] if times else []
    columns += ["<th>what</th>", "<th>host</th>" if hosts else "", "<th>time</th>" if times else "", "<th>where</th>"]
    head = "".join(columns)
    caution = f'<p class="caution">{_text(failures.caution)}</p>' if failures.caution else ""
    order = (
        "" if failures.timed else '<p class="note">No line carries a time: the order is that of files and lines.</p>'
    )
    more = f'<p class="note">{failures.left_out:,} more are not shown.</p>' if failures.left_out else ""
    return section(
        "failures", "Who failed first", f"{caution}{order}{drawn}{_table('First failures', head, rows)}{more}"
    )


def _failure_row(number: int, row: Failure, start: int | None, *, first: bool, hosts: bool, times: bool) -> str:
    after = span(row.time_ns - start) if row.time_ns is not None and start is not None else ""
    kind = {"cause": "", "effect": "follows from a failure elsewhere: ", "stuck": ""}[row.kind]
    more = f" and {row.more:,} more" if row.more else ""
    text = visible(row.text)
    text = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + " ..."
    finding = f' <a href="#finding-{row.finding}">finding {row.finding}</a>' if row.finding else ""
    cells = [f'<td class="n">{number}{" <b>first</b>" if first else ""}</td><td class="who">{_text(row.who)}</td>']
    cells += [f'<td class="n">{after}</td>'] if times else []
    cells.append(f'<td class="message">{kind}{escape(text)}{more}{finding}</td>')
    cells += [f'<td class="who">{_text(row.host)}</td>'] if hosts else []
    cells += [f'<td class="when">{clock(row.time_ns)}</td>'] if times else []
    cells.append(f'<td class="path">{_text(row.at.path)}:{row.at.line}</td>')
    return f"<tr{_class('first', first)}>{''.join(cells)}</tr>"


def _nodes(facts: Facts, diagnosis: Diagnosis) -> Section | None:
    drawn = [_node(number, node) for number, node in enumerate(node_maps(facts, diagnosis.findings))]
    if len(drawn) == 1:
        return section("nodes", "Inside the node", drawn[0])
    return section("nodes", "Inside the nodes", f'<div class="charts">{"".join(drawn)}</div>' if drawn else "")


def _node(number: int, node: NodeMap) -> str:
    marks = "".join(
        f"<li>{_text(mark.text)}"
        + (f' (<a href="#finding-{mark.finding}">finding {mark.finding}</a>)' if mark.finding else "")
        + "</li>"
        for mark in node.marks[:MAX_MARKS]
    )
    caption = _text(node.paths[0])
    known, nodes = len(set(node.paths)), len(node.paths)
    if known > 1:
        caption += f" and {_counted(known - 1, 'other file says', 'other files say')} the same"
    elif nodes > 1:
        caption += f"; {nodes} hosts in it look like this"
    if node.left_out:
        caption += f"; {_counted(node.left_out, 'more device is', 'more devices are')} not drawn"
    listed = f'<ol class="marks">{marks}</ol>' if marks else '<p class="note">Nothing in it is marked.</p>'
    return f"<div>{_figure(node_svg(node, f'n{number}'), caption, f'Drawing of a node, {caption}')}{listed}</div>"


def _hosts(facts: Facts, failures: Timeline) -> Section | None:
    table = host_table(facts, failures)
    return (
        None
        if table.of < 2 or len(table.columns) < 2
        else section("hosts", "Hosts and their links", _side_by_side(table, "host", "hosts"))
    )


def _curves(diagnosis: Diagnosis, facts: Facts) -> Section | None:
    """Tables that a finding names come first, then in the order of reading."""
    named = {(ref.path, ref.line) for finding in diagnosis.findings for ref in finding.lines}
    order = sorted(facts.curves, key=lambda curve: not any((p.at.path, p.at.line) in named for p in curve.points))
    drawn: list[str] = []
    more = 0
    for curve in order:
        if len(drawn) == MAX_CHARTS:
            more += 1
            continue
        expected, healthy = expected_of(facts, curve), healthy_of(facts, curve)
        svg = curve_svg(curve, expected, named, prefix=f"c{len(drawn)}", healthy=healthy)
        if svg is None:
            continue
        caption = _curve_title(curve)
        if healthy is not None:
            caption += f"<br>beside what the time model gives for {healthy.where.ranks} healthy {_text(gpu_of(facts, curve) or '')}"
        if expected is not None:
            low, high = format_rate(expected.low_bytes_per_s), format_rate(expected.high_bytes_per_s)
            start = format_bytes(expected.reached_at_bytes)
            caption += f"<br>expected {low} to {high} from {start} on, limited by {_text(expected.limited_by)}"
        drawn.append(_figure(svg, caption, f"Curve of {_curve_title(curve)}"))
    note = f'<p class="note">{_counted(more, "more table is", "more tables are")} not drawn.</p>' if more else ""
    return section("measured", "Measured", f'<div class="charts">{"".join(drawn)}</div>{note}' if drawn else "")


def _curve_title(curve: Curve) -> str:
    told = [curve.collective or "", curve.tool]
    if curve.ranks:
        told.append(_counted(curve.ranks, "rank", "ranks"))
    if curve.nodes:
        told.append(_counted(curve.nodes, "node", "nodes"))
    at = curve.points[0].at
    return f"{_text(', '.join(word for word in told if word))} ({_text(at.path)}:{at.line})"


def _pairs(facts: Facts) -> Section | None:
    drawn = []
    for number, matrix in enumerate(pair_matrices(facts.pairs)):
        caption = _text(f"{matrix.title}, {matrix.unit}" if matrix.unit else matrix.title)
        if matrix.left_out:
            caption += f"; {matrix.left_out} more ends are not drawn"
        odd_rows, odd_columns = odd_ends(matrix)
        ends = [f"from {matrix.src[i]}" for i in sorted(odd_rows)] + [
            f"to {matrix.dst[j]}" for j in sorted(odd_columns)
        ]
        if ends:
            caption += f". Framed, worse than the others as a whole: {_text(', '.join(ends[:12]))}"
        drawn.append(_figure(pair_svg(matrix, f"p{number}"), caption, f"Matrix {number + 1}: {_text(matrix.title)}"))
    if not drawn:
        return None
    shades = "".join(f'<b style="background:var(--heat-{step})"></b>' for step in range(HEAT_STEPS))
    legend = f'<p class="legend">as the median pair&nbsp;{shades}&nbsp;4 times worse, or more</p>'
    return section("pairs", "Between pairs", f'<div class="charts">{"".join(drawn)}</div>{legend}')


def _ranks(facts: Facts) -> Section | None:
    table = rank_table(facts)
    return (
        None if table.of < 2 else section("ranks", "Ranks side by side", _side_by_side(table, "process", "processes"))
    )


def _side_by_side(table: RankTable, one: str, many: str) -> str:
    odd = sum(cell.differs for row in table.rows for cell in row)
    note = (
        f"Marked with \u2260: differs from what most {many} have ({_counted(odd, 'cell', 'cells')})."
        if odd
        else f"All {many} agree in what can be compared."
    )
    note += " Empty: the files do not say."
    if any(column.startswith("progress") for column in table.columns):
        note += " Progress: collectives enqueued / completed."
    if any(column.startswith("NIC") for column in table.columns):
        note += " GDR: the NIC reads and writes GPU memory itself (GPUDirect RDMA)."
    if table.grouped:
        note += f" {table.of:,} {many}; those with the same values are one row, those that differ come first."
    if table.left_out:
        note += f" {_counted(table.left_out, f'{one} is', f'{many} are')} not shown."
    head = "".join(f"<th>{_text(name)}</th>" for name in table.columns)
    rows = (
        "<tr>"
        + "".join(
            f'<td class="differs"><b title="differs from most">\u2260</b> {_text(c.text)}</td>'
            if c.differs
            else f"<td>{_text(c.text)}</td>"
            for c in row
        )
        + "</tr>"
        for row in table.rows
    )
    return f'<p class="note">{note}</p>\n<div class="ranks{" wide" if len(table.columns) > WIDE else ""}">{_table(f"Table of {many}", head, rows)}</div>'


def _cleared(diagnosis: Diagnosis, places: Mapping[str, Path]) -> Section | None:
    items = (
        f"<li><p><b>{_text(item.what)}</b>: {_text(item.why)}</p>\n{_behind(item.evidence, item.lines, places)}</li>"
        for item in diagnosis.cleared
    )
    return section("cleared", "Looked at, not the cause", _list(items))


def _checks(diagnosis: Diagnosis, places: Mapping[str, Path], *, decisive: bool) -> Section | None:
    items = (
        f"<li><p><b>{_text(item.what)}</b>: {_text(item.result)}</p>\n{_behind(item.evidence, item.lines, places)}</li>"
        for item in diagnosis.checks
        if item.decisive is decisive
    )
    if decisive:
        return section("checked", "Checked, and right", _list(items))
    return section("noted", "Noted", _list(items))


def _behind(evidence: Sequence[Evidence], lines: Sequence[LineRef], places: Mapping[str, Path]) -> str:
    """Lines behind a summary that says where they are."""
    shown = excerpts(evidence, lines, places, context=False)
    if not shown:
        return ""
    first = f"{_text(shown[0].path)}:{shown[0].first_evidence}"
    where = first if len(shown) == 1 else f"{first} and {_counted(len(shown) - 1, 'more place', 'more places')}"
    return f"<details><summary>{where}</summary>\n{chr(10).join(_excerpt(excerpt) for excerpt in shown)}</details>"


def _list(items: Iterable[str]) -> str:
    content = "\n".join(items)
    return f'<ul class="plain">\n{content}\n</ul>' if content else ""


def _read(diagnosis: Diagnosis) -> Section | None:
    rows = (
        f'<tr><td class="path">{_text(path)}</td><td class="n">{format_bytes(size)}</td>'
        f"<td>{_text(', '.join(formats)) or '<b>not recognised</b>'}</td></tr>"
        for path, size, formats in diagnosis.artefacts
    )
    return section("read", "Read", _table("Files", '<th>file</th><th class="n">size</th><th>formats</th>', rows))


def _losses(diagnosis: Diagnosis) -> Section | None:
    rows = (
        f'<tr><td class="path">{_text(loss.path)}{f":{loss.line}" if loss.line is not None else ""}</td>'
        f'<td>{_text(loss.kind)}</td><td class="n">{loss.count}</td><td>{_text(loss.detail)}</td></tr>'
        for loss in diagnosis.losses
    )
    return section(
        "not-read",
        "Not read",
        _table("Losses", '<th>where first</th><th>kind</th><th class="n">times</th><th>what was lost</th>', rows),
    )


def _table(label: str, head: str, rows: Iterable[str]) -> str:
    listed = list(rows)
    if not listed:
        return ""
    note = f'<p class="note">{len(listed) - MAX_ROWS} more are not shown.</p>' if len(listed) > MAX_ROWS else ""
    shown = "\n".join(listed[:MAX_ROWS])
    return f'<div class="scroll{" short" if len(listed) <= SHORT else ""}" tabindex="0" role="group" aria-label="{label}"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{shown}\n</tbody></table></div>{note}'
