"""A simulation as a page: what its critical path is made of, links over time, communication that computing hides, what ranks did when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from busbw.reports.excerpts import visible
from busbw.reports.page import Section, contents, page_of, section, write_page
from busbw.reports.svg import FIRST, GRID, HEAT_STEPS, INK, MUTED, SECOND, drawing, heat_colour, printable, to_svg
from busbw.units import format_bytes, format_rate

if TYPE_CHECKING:
    from busbw.simulation import CriticalPath, Tasks, Timeline

__all__ = ["render_simulation", "write_simulation"]

_BINS = 120
_MOST_LINKS = 40
"""The busiest ones are drawn."""
_MOST_RANKS = 32
_MOST_BARS = 4000
"""Of the drawing of ranks over time: more are no picture, and megabytes."""
_MOST_SHARES = 12
_MOST_STEPS = 60
"""Of the list of the critical path: the longest."""


def write_simulation(
    path: Path, timeline: Timeline, title: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str] = ()
) -> None:
    """Writes the page of a run in one piece. Raises InputError where its tasks were not recorded, or the file cannot be written."""
    write_page(path, lambda: render_simulation(timeline, title, rows, names))


def render_simulation(
    timeline: Timeline, title: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str] = ()
) -> str:
    """The page of a run. The same run gives the same bytes.

    rows: those of `busbw simulate --json`, the first of which the run is of. names: of a graph's tasks, stream by stream.
    Raises InputError where tasks were not recorded.
    """
    from busbw.simulation import critical_path, written_out  # noqa: PLC0415 - loads the compiled simulator

    tasks, path = written_out(timeline), critical_path(timeline)
    sections = [
        section("path", "What the time is spent on", _shares(timeline, path)),
        section("faults", "What each fault costs", _causes(rows)),
        section("links", "Links over time", _links(timeline)),
        section("hidden", "Communication that computing hides", _exposed(timeline)),
        section("ranks", "What ranks did when", _ranks(timeline, tasks, path)),
        section("steps", "Longest steps of the critical path", _steps(timeline, tasks, path, names)),
        section("points", "All that was simulated", _rows(rows)),
    ]
    shown: list[Section] = [one for one in sections if one is not None]
    body = "\n".join([_head(timeline, title, rows), contents(shown), *(one.html for one in shown)])
    footer = (
        "busbw simulate. Times are of a model: messages at max-min fair rates over this cluster's links. This page holds all it shows and asks no "
        "network for anything."
    )
    return page_of(f"busbw: {_text(title)}", body, footer)


def _text(text: str) -> str:
    return escape(visible(text))


def _time(seconds: float) -> str:
    """Three digits, in the unit that shows them before the point."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns" if seconds else "0"


def _axis(timeline: Timeline) -> tuple[str, float]:
    """The unit of an axis of time, and how many of it a second has."""
    return next(
        ((unit, scale) for unit, scale in (("s", 1.0), ("ms", 1e3)) if timeline.time_s * scale >= 10), ("us", 1e6)
    )


def _head(timeline: Timeline, title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    told = [f"{timeline.messages:,} messages simulated"]
    first = rows[0] if rows else {}
    if first.get("size_bytes"):
        told.insert(0, format_bytes(first["size_bytes"]))
    if first.get("busbw_bytes_per_s"):
        told.insert(1, f"busbw {format_rate(first['busbw_bytes_per_s'])}")
    if timeline.folded > 1:
        told.append(f"each rank stands for {timeline.folded:,} alike")
    if timeline.stopped:
        told.append(f"stopped early: {_text(timeline.stopped)}")
    facts = "".join(f"<span>{item}</span>" for item in told)
    return (
        f'<header class="verdict{" unknown" if timeline.stopped else ""}">\n<h1><strong>{_time(timeline.time_s)}</strong>: {_text(title)}</h1>\n'
        f'<p class="facts">{facts}</p>\n</header>'
    )


def _table(columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML."""
    number = [' class="n"' if is_number else "" for _, is_number in columns]
    head = "".join(f'<th scope="col"{kind}>{name}</th>' for (name, _), kind in zip(columns, number, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{cell}</td>' for cell, kind in zip(row, number, strict=True))}</tr>" for row in rows
    )
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _figure(svg: str, caption: str) -> str:
    return f'<figure class="drawing"><div class="scroll-x" tabindex="0">{svg}</div><figcaption>{caption}</figcaption></figure>'


def _shares(timeline: Timeline, path: CriticalPath) -> str:
    """A bar of shares, and the table of them."""
    shares = list(path.shares_s.items())
    if not shares:
        return ""
    shown = shares[:_MOST_SHARES]
    rest = sum(part for _, part in shares[_MOST_SHARES:])
    if rest:
        shown.append((f"{len(shares) - _MOST_SHARES} more", rest))
    total = max(timeline.time_s, 1e-300)
    rows = [
        [
            f'<meter min="0" max="1" value="{part / total:.4f}" aria-label="share"></meter>',
            f"{part / total:.1%}",
            _time(part),
            _text(name),
        ]
        for name, part in shown
    ]
    note = '<p class="note">The chain of messages, waits and computing that the end waited for, by what each part of its time went to.</p>'
    return note + _table([("", False), ("share", True), ("time", True), ("spent on", False)], rows)


def _causes(rows: Sequence[Mapping[str, Any]]) -> str:
    causes = rows[0].get("causes", []) if rows else []
    if not causes:
        return ""
    cells = [[_time(abs(cause["saves_s"])), _text(cause["name"])] for cause in causes]
    note = '<p class="note">The same run without each fault takes so much less.</p>'
    return note + _table([("time", True), ("fault", False)], cells)


def _links(timeline: Timeline) -> str:
    """The busiest links, a row each, darker the fuller."""
    from busbw.simulation import link_load  # noqa: PLC0415

    if not timeline.end_ps:
        return ""
    links, load = link_load(timeline, _BINS)
    if not len(links):
        return ""
    order = np.argsort(-load.sum(1), kind="stable")[:_MOST_LINKS]
    names = [timeline.network.link_name(int(link)) for link in links[order]]
    height, (unit, scale) = 0.55 + 0.2 * len(order), _axis(timeline)
    with drawing(8.6, height + 0.4) as (figure, axes):
        width = timeline.time_s / _BINS * scale
        steps = np.minimum(HEAT_STEPS - 1, (load[order] * HEAT_STEPS).astype(np.int64))
        for step in range(HEAT_STEPS):
            for row in range(len(order)):
                spans = _runs((steps[row] == step) & (load[order[row]] > 0.005))
                if spans:
                    bars = [(begin * width, (end - begin) * width) for begin, end in spans]
                    axes.broken_barh(bars, (row - 0.42, 0.84), color=heat_colour(step), linewidth=0)
        axes.set_ylim(len(order) - 0.5, -0.5)
        axes.set_xlim(0, timeline.time_s * scale)
        axes.set_yticks(range(len(order)), [printable(name, 34) for name in names], fontsize=7.5)
        axes.set_xlabel(unit)
        axes.tick_params(axis="y", length=0)
        busiest = f"{names[0]} carried {load[order[0]].mean():.2%} of what it could on average."
        svg = to_svg(figure, "links", "How full links were over time", busiest)
    legend = "".join(f'<b style="background:var(--heat-{step})"></b>' for step in range(HEAT_STEPS))
    more = f" The busiest {len(order)} of {len(links)}." if len(links) > len(order) else ""
    alike = f" Each stands for {timeline.folded:,} alike." if timeline.folded > 1 else ""
    caption = f'<span class="legend">empty {legend} full</span>{_text(busiest)}{more}{alike}'
    return _figure(svg, caption)


def _runs(mask: Any) -> list[tuple[int, int]]:
    """Where a row of flags is set: begins and ends."""
    edges = np.flatnonzero(np.diff(np.r_[False, mask, False].astype(np.int8)))
    return [(int(begin), int(end)) for begin, end in edges.reshape(-1, 2)]


def _exposed(timeline: Timeline) -> str:
    """A table of ranks; nothing where nothing computes."""
    from busbw.simulation import exposure  # noqa: PLC0415

    found = exposure(timeline)
    if not found.computing_s.any():
        return ""
    order = np.argsort(-found.exposed_s, kind="stable")[:_MOST_RANKS]
    rows = [
        [
            _text(timeline.network.rank_name(int(found.rank[at]))),
            _time(float(found.computing_s[at])),
            _time(float(found.communicating_s[at])),
            _time(float(found.exposed_s[at])),
            f"{1 - found.exposed_s[at] / max(found.communicating_s[at], 1e-300):.0%}",
        ]
        for at in order
    ]
    note = f'<p class="note">Exposed: communicating while nothing computes.{_of(len(order), len(found.rank), "ranks, those with most of it first")}</p>'
    names = [("rank", False), ("computing", True), ("communicating", True), ("exposed", True), ("hidden", True)]
    return note + _table(names, rows)


def _of(shown: int, total: int, what: str) -> str:
    return f" {shown} of {total:,} {what}." if shown < total else ""


def _ranks(timeline: Timeline, tasks: Tasks, path: CriticalPath) -> str:
    """Ranks over time: computing, sending, and what of it is on the critical path."""
    expansion = timeline.expansion
    done = np.flatnonzero((tasks.begin_ps >= 0) & (tasks.end_ps > tasks.begin_ps))
    if not len(done):
        return ""
    channel = tasks.channel[done]
    who = np.where(channel >= 0, expansion.src_rank[np.maximum(channel, 0)], expansion.stream_rank[tasks.stream[done]])
    last = path.rows[path.rows >= 0]
    on_path = np.isin(done, last)
    # Ranks of the critical path first, then the others.
    ranks = list(dict.fromkeys([*who[on_path].tolist(), *sorted(set(who.tolist()))]))[:_MOST_RANKS]
    place = {rank: at for at, rank in enumerate(sorted(ranks))}
    kept = np.array([rank in place for rank in who.tolist()], bool)
    if kept.sum() > _MOST_BARS:
        # The longest are seen; those of the path always.
        length = np.where(kept, tasks.end_ps[done] - tasks.begin_ps[done], 0) + np.where(
            on_path & kept, timeline.end_ps, 0
        )
        chosen = np.zeros(len(done), bool)
        chosen[np.argsort(-length, kind="stable")[:_MOST_BARS]] = True
        kept &= chosen
    unit, scale = _axis(timeline)
    with drawing(8.6, 0.95 + 0.24 * len(place)) as (figure, axes):
        for colour, mask, low, tall in (
            (SECOND, kept & (channel < 0), -0.42, 0.4),
            (FIRST, kept & (channel >= 0), 0.02, 0.4),
            (INK, kept & on_path, -0.02, 0.08),
        ):
            for rank, at in place.items():
                mine = np.flatnonzero(mask & (who == rank))
                if len(mine):
                    begin = tasks.begin_ps[done[mine]] * (1e-12 * scale)
                    long = (tasks.end_ps[done[mine]] - tasks.begin_ps[done[mine]]) * (1e-12 * scale)
                    bars = list(zip(begin.tolist(), long.tolist(), strict=True))
                    axes.broken_barh(bars, (at + low, tall), color=colour, linewidth=0)
        for at in range(1, len(place)):
            axes.axhline(at - 0.5, color=GRID, linewidth=0.5)
        axes.set_ylim(len(place) - 0.5, -0.5)
        axes.set_xlim(0, timeline.time_s * scale)
        names = [timeline.network.rank_name(rank) for rank in sorted(ranks)]
        axes.set_yticks(range(len(place)), [printable(name, 28) for name in names], fontsize=7.5)
        axes.set_xlabel(unit)
        axes.tick_params(axis="y", length=0, colors=MUTED, labelcolor=INK)
        said = f"{len(place)} ranks, {int(kept.sum())} messages and computations."
        svg = to_svg(figure, "ranks", "What ranks did over time", said)
    legend = (
        '<span class="legend"><b style="background:var(--second)"></b> computing <b style="background:var(--first)"></b> sending '
        '<b style="background:var(--ink)"></b> on the critical path</span>'
    )
    caption = f"{legend}{said}{_of(int(kept.sum()), len(done), 'are drawn')}{_of(len(place), len(set(who.tolist())), 'ranks')}"
    return _figure(svg, caption)


def _steps(timeline: Timeline, tasks: Tasks, path: CriticalPath, names: Sequence[str]) -> str:
    """The longest tasks of the critical path, in the order in which they ran."""
    rows = path.rows[tasks.end_ps[path.rows] > tasks.begin_ps[path.rows]]
    if not len(rows):
        return ""
    spans = tasks.end_ps[rows] - tasks.begin_ps[rows]
    longest = np.sort(rows[np.argsort(-spans, kind="stable")[:_MOST_STEPS]])
    expansion, cells = timeline.expansion, []
    for row in longest.tolist():
        channel, begin, end = int(tasks.channel[row]), int(tasks.begin_ps[row]), int(tasks.end_ps[row])
        if channel < 0:
            who = timeline.network.rank_name(int(expansion.stream_rank[tasks.stream[row]]))
            stream = int(tasks.stream[row])
            what, size, limit = names[stream] if stream < len(names) else "computes", "", ""
        else:
            who = timeline.network.rank_name(int(expansion.src_rank[channel]))
            what = f"sends to {timeline.network.rank_name(int(expansion.dst_rank[channel]))}"
            size = format_bytes(int(tasks.size_bytes[row]))
            bottleneck = int(tasks.bottleneck[row])
            number = int(expansion.link[bottleneck]) if bottleneck >= 0 else -1
            limit = timeline.network.link_name(number) if number >= 0 else ""
        cells.append(
            [
                _time(begin * 1e-12) if begin else "0",
                _time((end - begin) * 1e-12),
                _text(who),
                _text(what),
                size,
                _text(limit),
            ]
        )
    note = f'<p class="note">In the order in which they ran.{_of(len(longest), len(rows), "steps, the longest")}</p>'
    columns = [
        ("begins", True),
        ("takes", True),
        ("rank", False),
        ("what", False),
        ("bytes", True),
        ("limited by", False),
    ]
    return note + _table(columns, cells)


def _rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Every size and number of nodes; nothing where there is one."""
    if len(rows) < 2:
        return ""
    cells = [
        [
            str(row.get("nodes", "")),
            format_bytes(row["size_bytes"]) if row.get("size_bytes") is not None else "-",
            _time(row["time_s"]),
            _time(row["p99_s"]) if row.get("seeds", 1) > 1 else "-",
            format_rate(row["busbw_bytes_per_s"]) if row.get("busbw_bytes_per_s") else "-",
            _text(next(iter(row.get("critical_path_s", {})), "-")),
        ]
        for row in rows
    ]
    names = [("nodes", True), ("size", True), ("time", True), ("p99", True), ("busbw", True), ("most of it", False)]
    return _table(names, cells)
