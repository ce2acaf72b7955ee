"""Who failed first: the first failure of every rank or file in the order of their clocks, as rows and as a drawing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from busbw.diagnosis.cleared import is_harmless
from busbw.diagnosis.facts import Collective, Event, Facts, Process
from busbw.diagnosis.findings import Finding, LineRef
from busbw.diagnosis.rules.desync import EFFECTS
from busbw.reports.svg import ALARM, FIRST, INK, MUTED, PAPER, drawing, printable, to_svg

__all__ = ["MAX_ROWS", "Failure", "Timeline", "first_failures", "span", "timeline_svg"]

MAX_ROWS = 24
"""Rows of the drawing and of its table: the earliest."""
CLOSE_NS = 1_000_000_000
"""How far clocks of hosts may differ unnoticed: NTP keeps milliseconds, a host without it drifts by about a second a day.
A guess; the page says that it depends on it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The first failure of one rank, process or file."""

    who: str
    host: str
    """Whose clock; empty where no line says."""
    time_ns: int | None
    kind: str
    """cause, effect (follows from a failure elsewhere), or stuck (a collective that never completed)."""
    text: str
    at: LineRef
    more: int
    """Further failures of the same row."""
    finding: int | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """The failures by time, those without a time after them in the order of files and lines."""

    rows: tuple[Failure, ...]
    left_out: int
    caution: str
    """What the order rests on; empty with one clock."""

    @property
    def timed(self) -> tuple[Failure, ...]:
        """Rows with a time."""
        return tuple(row for row in self.rows if row.time_ns is not None)

    @property
    def first(self) -> Failure | None:
        """The first of all that does not follow from others, by its time; where all follow, the first of these."""
        return self.timed[_first(self.timed)] if self.timed else None


def first_failures(facts: Facts, findings: Sequence[Finding] = (), most: int = MAX_ROWS) -> Timeline:
    """The first failure of each. What is harmless is left out; what follows from others counts only where there is nothing else."""
    number_of = {(ref.path, ref.line): n for n, f in reversed([*enumerate(findings, 1)]) for ref in f.lines}
    grouped: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in facts.failures():
        if not is_harmless(event):
            process = facts.processes.get((event.host, event.pid))
            grouped[_who(event, process), event.host or ""].append(event)
    rows = []
    for (who, host), events in grouped.items():
        causes = [e for e in events if e.name not in EFFECTS]
        first = min(causes or events, key=lambda e: (e.time_ns is None, e.time_ns or 0, e.at))
        number = number_of.get((first.at.path, first.at.line))
        kind = "cause" if causes else "effect"
        rows.append(Failure(who, host, first.time_ns, kind, first.text, first.at, len(events) - 1, number))
    known = {row.who for row in rows}
    rows += [row for row in _stuck(facts, number_of) if row.who not in known]
    rows.sort(key=_by_time)
    causes_first = sorted(
        rows, key=lambda row: row.kind == "effect"
    )  # the many that follow must not hide the few that lead
    return Timeline(tuple(sorted(causes_first[:most], key=_by_time)), max(0, len(rows) - most), _caution(rows))


def _by_time(row: Failure) -> tuple[bool, int, LineRef]:
    return row.time_ns is None, row.time_ns or 0, row.at


def _first(timed: Sequence[Failure]) -> int:
    """The place of the first of all: the first that does not follow from others, if there is one."""
    return next((k for k, row in enumerate(timed) if row.kind != "effect"), 0)


def _who(event: Event, process: Process | None) -> str:
    ranks = sorted(process.ranks) if process is not None else []
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if event.rank is not None:
        return f"rank {event.rank}"
    if event.pid is not None:
        return f"pid {event.pid}"
    return event.host or event.at.path.rsplit("/", 1)[-1]


def _stuck(facts: Facts, number_of: dict[tuple[str, int], int]) -> list[Failure]:
    """The oldest collective of each rank that never completed, by when it was issued."""
    oldest: dict[int, Collective] = {}
    for collective in facts.collectives:
        if collective.done or collective.created_ns is None or collective.rank is None:
            continue
        known = oldest.get(collective.rank)
        if known is None or collective.created_ns < (known.created_ns or 0):
            oldest[collective.rank] = collective
    return [
        Failure(
            f"rank {rank}", c.host or "", c.created_ns, "stuck", f"{c.name or c.op or 'a collective'}, number {c.seq}, issued and never completed ({c.state or 'no state'})",
            c.at, 0, number_of.get((c.at.path, c.at.line)),
        )
        for rank, c in oldest.items()
    ]  # fmt: skip


def _caution(rows: Sequence[Failure]) -> str:
    """Says so where the order is one between clocks. What follows from other failures is no rival for the first place."""
    timed = [row for row in rows if row.time_ns is not None]
    clocks = {row.host or row.at.path for row in timed}
    if len(clocks) < 2:
        return ""
    first = timed[_first(timed)]
    told = f"The order rests on the clocks of {len(clocks)} hosts or files, which may differ, and on their time zones."
    if timed[0] is not first:
        told += f" {timed[0].who} reports a consequence before the first cause in these files: clocks differ, or the cause is elsewhere."
    rival = next(
        (r for r in timed if r.kind != "effect" and (r.host or r.at.path) != (first.host or first.at.path)), None
    )
    if rival is None:
        return told
    apart = (rival.time_ns or 0) - (first.time_ns or 0)
    if apart < CLOSE_NS:
        return f"{told} {first.who} leads {rival.who} by {span(apart)} only: too little to be sure that it was first."
    return f"{told} {first.who} leads {rival.who}, the next on another clock that does not follow from others, by {span(apart)}."


def span(time_ns: int) -> str:
    """A duration for people: 300 us, 250 ms, 12.0 s, 10 min 12 s, 3 h 5 min, 2 d 3 h, with its sign.

    >>> span(612_000_000_000)
    '10 min 12 s'
    """
    if time_ns < 0:
        return f"-{span(-time_ns)}"
    seconds = time_ns / 1e9
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us" if time_ns else "0"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def clock(time_ns: int | None) -> str:
    """The time as a log prints it, to the microsecond; empty for none. Years no clock shows are empty too."""
    if time_ns is None:
        return ""
    try:
        return (
            datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
            + f".{time_ns // 1000 % 1_000_000:06d}"
        )
    except (OverflowError, ValueError, OSError):
        return ""


_TICKS = (
    (0.0, "0"),
    (1, "1 s"),
    (10, "10 s"),
    (60, "1 min"),
    (600, "10 min"),
    (3600, "1 h"),
    (36000, "10 h"),
    (864000, "10 d"),
)


def timeline_svg(timeline: Timeline, prefix: str = "t") -> str | None:
    """One row each, from its first failure on; the first of all is a filled star. None with less than two times.

    The axis is linear up to a minute, else logarithmic from one second on, for failures follow one another within
    milliseconds and the watchdogs' reports after minutes.
    """
    rows = timeline.timed
    if len(rows) < 2:
        return None
    lead = _first(rows)
    start = rows[lead].time_ns or 0
    offsets = [((row.time_ns or 0) - start) / 1e9 for row in rows]
    longest = max(offsets[-1], -offsets[0])
    with drawing(4.8, 0.75 + 0.24 * len(rows)) as (figure, axes):
        if longest > 60:
            axes.set_xscale("symlog", linthresh=1.0)
            ticks = [(at, label) for at, label in _TICKS if at <= longest * 1.5]
            axes.set_xticks([at for at, _ in ticks], [label for _, label in ticks])
            axes.minorticks_off()
            axes.set_xlim(-0.4 + 1.5 * offsets[0], longest * 4)
        else:
            width = max(offsets[-1] - offsets[0], 1e-6)
            axes.set_xlim(offsets[0] - 0.03 * width, offsets[-1] + 0.24 * width)
        axes.grid(True, axis="x")
        axes.set_axisbelow(True)
        for k, (row, offset) in enumerate(zip(rows, offsets, strict=True)):
            end = axes.get_xlim()[1]
            axes.plot([offset, end], [k, k], color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)), zorder=2)
            colour = ALARM if k == lead else INK if row.kind == "cause" else FIRST if row.kind == "stuck" else MUTED
            marker = "*" if k == lead else {"cause": "o", "stuck": "s"}.get(row.kind, "D")
            size = 11 if k == lead else 5.5
            fill = colour if row.kind == "cause" or k == lead else PAPER
            axes.plot(
                [offset], [k], marker=marker, markersize=size, color=colour, markerfacecolor=fill, linestyle="none", zorder=4
            )  # fmt: skip
            label = "first" if k == lead else f"{'+' if offset >= 0 else ''}{span(round(offset * 1e9))}"
            axes.annotate(
                label, (offset, k), xytext=(8, 0), textcoords="offset points", va="center", fontsize=7.5, color=colour if k == lead else INK,
                bbox={"boxstyle": "round,pad=0.1", "facecolor": PAPER, "edgecolor": "none"}, zorder=3,
            )  # fmt: skip
        axes.set_yticks(range(len(rows)), [_label(row) for row in rows])
        axes.get_yticklabels()[lead].set_color(ALARM)
        axes.get_yticklabels()[lead].set_fontweight("bold")
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0, labelsize=8)
        axes.tick_params(axis="x", labelsize=8)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("after the first failure" if longest > 60 else "seconds after the first failure", fontsize=8)
        told = f"The first is {rows[lead].who}{' on ' + rows[lead].host if rows[lead].host else ''}; the last of these comes {span(round(offsets[-1] * 1e9))} later."
        return to_svg(figure, prefix, f"first failures of {len(rows)} ranks or files over time", told)


def _label(row: Failure) -> str:
    return printable(row.who, 16) + (f"  {printable(row.host, 14)}" if row.host and row.host != row.who else "")
