"""What a timeline says: the critical path and what it is made of, communication that computing does not hide, links over time.

Each needs the tasks of the run (record=True). Periods that fast-forward counted are written out here. Legend: T tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from busbw.errors import InputError
from busbw.hardware.links import FloatArray, IntArray
from busbw.simulation.timeline import Tasks, Timeline

__all__ = ["CriticalPath", "Exposure", "critical_path", "exposure", "link_load", "written_out"]

_PS = 1e-12
_MOST_ROWS = 5_000_000
"""Tasks written out: some 400 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """The chain of tasks that the end waited for, from the start on."""

    rows: IntArray
    """Of the tasks as written out."""
    shares_s: dict[str, float]
    """Seconds by what they were spent on: a link's name, latency, computing of a rank, waiting. They add up to the time."""

    @property
    def longest(self) -> str:
        """What most of the time was spent on."""
        return max(self.shares_s, key=lambda name: self.shares_s[name], default="nothing")


@dataclass(frozen=True, slots=True, eq=False)
class Exposure:
    """By rank that was simulated, seconds, (R,) each."""

    rank: IntArray
    computing_s: FloatArray
    """Something computes."""
    communicating_s: FloatArray
    """A message leaves, or one is awaited that has begun to come."""
    exposed_s: FloatArray
    """Communicating while nothing computes."""


def written_out(timeline: Timeline) -> Tasks:
    """The tasks with counted periods written out. Raises InputError where none were recorded, or there are too many."""
    tasks, repeats = timeline.tasks, timeline.repeats
    if not timeline.complete or (not len(tasks) and timeline.messages):
        raise InputError("the run recorded no tasks, or not all. Run it with record=True and a higher limit of rows.")
    if not repeats:
        return tasks
    total = len(tasks) + sum((r.last - r.first) * r.times for r in repeats)
    if total > _MOST_ROWS:
        raise InputError(
            f"{total} tasks are too many to write out; at most {_MOST_ROWS}. Simulate fewer ranks or a smaller size."
        )
    rows, shift, turn = [], [], []
    first_at = np.zeros(len(tasks) + 1, np.int64)
    inside = np.full(len(tasks), -1, np.int64)
    done, at = 0, 0
    for number, repeat in enumerate(repeats):
        first_at[done : repeat.last] = at + np.arange(repeat.last - done)
        inside[repeat.first : repeat.last] = number
        length = repeat.last - repeat.first
        rows += [np.arange(done, repeat.first), np.tile(np.arange(repeat.first, repeat.last), repeat.times + 1)]
        turns = np.repeat(np.arange(repeat.times + 1), length)
        turn += [np.zeros(repeat.first - done, np.int64), turns]
        shift += [np.zeros(repeat.first - done, np.int64), turns * repeat.period_ps]
        at += repeat.last - done + length * repeat.times
        done = repeat.last
    first_at[done:-1] = at + np.arange(len(tasks) - done)
    rest = np.arange(done, len(tasks))
    row = np.concatenate([*rows, rest])
    moved = np.concatenate([*shift, np.zeros(len(rest), np.int64)])
    again = np.concatenate([*turn, np.zeros(len(rest), np.int64)])
    lengths = np.array([r.last - r.first for r in repeats])
    starts = np.array([r.first for r in repeats])
    times = np.array([r.times for r in repeats])
    cause, mine = tasks.cause[row].astype(np.int64), inside[row]
    known = np.maximum(cause, 0)
    of = inside[known]
    # A cause in the same period is of the same turn; one before the period is, after the first turn, its like one turn earlier;
    # from elsewhere it is the last turn that counts.
    before = (mine >= 0) & (known < starts[mine]) & (again > 0)
    like = np.minimum(np.where(before, known + lengths[mine], known), len(tasks) - 1)
    which = np.where(mine == inside[like], np.where(before, again - 1, again), np.where(of >= 0, times[of], 0))
    offset = np.where(inside[like] >= 0, which * lengths[inside[like]], 0)
    new_cause = np.where(cause >= 0, first_at[like] + offset, -1)
    columns = {field.name: getattr(tasks, field.name)[row] for field in fields(Tasks)}
    for name in ("posted_ps", "begin_ps", "end_ps"):
        columns[name] = np.where(columns[name] >= 0, columns[name] + moved, -1)
    return Tasks(**{**columns, "cause": new_cause})


def critical_path(timeline: Timeline) -> CriticalPath:
    """The tasks that the last end waited for, one after another, and what their time was spent on.

    A message's time goes to the link that set its rate at its end, and to latency; time between tasks is waiting.
    Raises InputError where tasks were not recorded.
    """
    tasks, expansion = written_out(timeline), timeline.expansion
    waited = np.array([not s.background for s in timeline.program.streams], bool)[expansion.stream_name]
    ends = np.where(waited, timeline.ends_ps, -1)
    last = int(ends.argmax()) if len(ends) else -1
    recorded = int(timeline.causes[last]) if last >= 0 else -1
    row = _last_instance(timeline, recorded)
    rows: list[int] = []
    shares: dict[str, int] = {}
    now = int(ends[last]) if last >= 0 else 0

    def spend(name: str, until: int) -> None:
        nonlocal now
        if now > until:
            shares[name] = shares.get(name, 0) + now - until
            now = until

    while row >= 0:
        rows.append(row)
        end, begin, posted = (int(column[row]) for column in (tasks.end_ps, tasks.begin_ps, tasks.posted_ps))
        channel = int(tasks.channel[row])
        if channel < 0:
            spend("waiting", end)
            spend(f"{timeline.network.rank_name(int(expansion.stream_rank[tasks.stream[row]]))} computing", begin)
        else:
            spend("waiting", end + int(expansion.latency_ps[channel]))
            spend("latency", end)
            spend(_bottleneck_name(timeline, int(tasks.bottleneck[row])), begin)
            spend("waiting to send", posted)
        row = int(tasks.cause[row])
    spend("waiting", 0)
    ordered = sorted(shares.items(), key=lambda share: (-share[1], share[0]))
    return CriticalPath(np.array(rows[::-1], np.int64), {name: ps * _PS for name, ps in ordered})


def _last_instance(timeline: Timeline, recorded: int) -> int:
    """Where the last happening of a recorded row stands among tasks written out."""
    if recorded < 0:
        return -1
    at = recorded
    for repeat in timeline.repeats:
        if recorded >= repeat.first:
            at += (repeat.last - repeat.first) * repeat.times
    return at


def _bottleneck_name(timeline: Timeline, link: int) -> str:
    if link < 0:
        return "sending"
    number = int(timeline.expansion.link[link])
    return timeline.network.link_name(number) if number >= 0 else "limit of a channel"


def exposure(timeline: Timeline) -> Exposure:
    """How long each simulated rank computes and communicates, and how long it communicates without computing.

    Raises InputError where tasks were not recorded.
    """
    tasks, expansion = written_out(timeline), timeline.expansion
    done = (tasks.begin_ps >= 0) & (tasks.end_ps >= 0)
    computing = done & (tasks.channel < 0)
    message = np.flatnonzero(done & (tasks.channel >= 0))
    channel = tasks.channel[message]
    ranks = np.unique(expansion.stream_rank)
    orbits = expansion.orbits
    src, dst = expansion.src_rank[channel], orbits.canonical(expansion.dst_rank[channel])
    begin, end = tasks.begin_ps[message], tasks.end_ps[message]
    arrival = end + expansion.latency_ps[channel]
    apart = src != dst
    who = np.concatenate([src, dst[apart]])
    first, last = np.concatenate([begin, begin[apart]]), np.concatenate([end, arrival[apart]])
    compute = _by_rank(
        ranks, expansion.stream_rank[tasks.stream[computing]], tasks.begin_ps[computing], tasks.end_ps[computing]
    )
    communicate = _by_rank(ranks, who, first, last)
    both = [
        _length(_merged(np.concatenate([c[0], d[0]]), np.concatenate([c[1], d[1]])))
        for c, d in zip(compute, communicate, strict=True)
    ]
    computed = np.array([_length(part) for part in compute])
    return Exposure(
        ranks,
        computed * _PS,
        np.array([_length(part) for part in communicate]) * _PS,
        (np.array(both) - computed) * _PS,
    )


Spans = tuple[IntArray, IntArray]


def _by_rank(ranks: IntArray, who: IntArray, begin: IntArray, end: IntArray) -> list[Spans]:
    order = np.argsort(who, kind="stable")
    at = np.searchsorted(who[order], ranks), np.searchsorted(who[order], ranks, "right")
    return [_merged(begin[order[a:b]], end[order[a:b]]) for a, b in zip(*at, strict=True)]


def _merged(begin: IntArray, end: IntArray) -> Spans:
    """Spans without overlap that cover the same."""
    if not len(begin):
        return begin, end
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    first = np.r_[True, begin[1:] > end[:-1]]
    return begin[first], end[np.r_[np.flatnonzero(first)[1:] - 1, len(end) - 1]]


def _length(spans: Spans) -> int:
    return int((spans[1] - spans[0]).sum())


def link_load(timeline: Timeline, bins: int = 100) -> tuple[IntArray, FloatArray]:
    """Links used, and what part of their rate they carried in each of `bins` equal parts of the time: (L,), (L, bins).

    A message's bytes count as spread evenly from its first byte to its last. Raises InputError without recorded tasks.
    """
    tasks, expansion = written_out(timeline), timeline.expansion
    if bins < 1:
        raise ValueError("at least one bin is needed")
    sent = np.flatnonzero((tasks.channel >= 0) & (tasks.end_ps > tasks.begin_ps) & (tasks.begin_ps >= 0))
    channel = tasks.channel[sent]
    hops = np.diff(expansion.ways.begin)[channel]
    row = np.repeat(np.arange(len(sent)), hops)
    at = np.arange(len(row)) - np.repeat(np.cumsum(hops) - hops, hops) + np.repeat(expansion.ways.begin[channel], hops)
    link = expansion.ways.link[at].astype(np.int64)
    share = np.asarray(expansion.ways.share[at] / expansion.share_unit, np.float64)
    scale = bins / max(timeline.end_ps, 1)
    begin, end = (np.asarray(column[sent] * scale, np.float64) for column in (tasks.begin_ps, tasks.end_ps))
    rate = (tasks.size_bytes[sent] / (end - begin))[row] * share
    carried = _integral(link, begin[row], rate, len(expansion.link), bins) - _integral(
        link, end[row], rate, len(expansion.link), bins
    )
    used = np.flatnonzero((expansion.link >= 0) & (carried.sum(1) > 0))
    full = timeline.network.rates_of(expansion.link[used])[0] * timeline.time_s / bins
    return expansion.link[used], carried[used] / full[:, None]


def _integral(link: IntArray, since: FloatArray, rate: FloatArray, links: int, bins: int) -> FloatArray:
    """What begins at a time and never ends carries in each bin."""
    place = np.clip(since.astype(np.int64), 0, bins - 1)
    part: FloatArray = np.zeros((links, bins))
    whole: FloatArray = np.zeros((links, bins + 1))
    np.add.at(part, (link, place), rate * (place + 1 - since))
    np.add.at(whole, (link, place + 1), rate)
    return np.asarray(part + np.cumsum(whole, 1)[:, :bins], np.float64)
