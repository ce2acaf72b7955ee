"""Ranks compared by the times of their calls: who comes last, so that the others wait."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from busbw.diagnosis.call_groups import DUMPS, INSPECTOR, NSIGHT, TRACES, CallGroup, Lane, call_groups, comparable
from busbw.diagnosis.facts import Collective, Facts, lines_of
from busbw.diagnosis.findings import Check, Finding
from busbw.units import format_time_ns

__all__ = ["RULES", "checks"]

_FEWEST_CALLS = 10
"""Calls that must be comparable before a rank is called slow. A guess: fewer are easily a chance."""
_MOST_OF_THEM = 0.7
_LEAST_GAP_NS = 200_000
"""Ten times the time of a small all-reduce between nodes; below it jitter decides who comes last."""
_LEAST_LATENESS_NS = 50_000_000
"""Well above what NTP leaves between the clocks of hosts."""


def last_to_come(facts: Facts) -> Iterator[Finding]:
    """One rank comes last to most collectives, and the others wait for it.

    Fires on three ranks or more with at least ten comparable collectives. A rank that is late spends the shortest time in a blocking collective:
    below half of the others' median and 0.2 ms less, in 70 % of the calls (NCCL Inspector, profilers' traces, Flight Recorder with timing); all ranks of a host count
    as one if no single rank stands out. Or its calls are created 50 ms or more after the others' (Flight Recorder); a lateness that never changes
    may be the host's clock. Silent about broadcast and reduce, where ranks leave early.
    """
    for source in (INSPECTOR, TRACES, NSIGHT, DUMPS):
        for group in call_groups(facts, source):
            slow = _shortest(group, lambda lane: lane.name) or _shortest(group, lambda lane: lane.host)
            if slow is not None:
                yield _slow(group, slow, "spends the shortest time in", "so it comes last and they wait")
            elif source == DUMPS and (slow := _created_last(group)) is not None:
                yield _slow(group, slow, "makes its call last in", "as the times of creation say")


@dataclass(slots=True)
class _Slow:
    who: str
    times: int
    of: int
    gap_ns: float
    calls: list[Collective]


def _slow(group: CallGroup, slow: _Slow, what: str, why: str) -> Finding:
    return Finding(
        "slow-node", 0.7, "major", f"{group.name}: {slow.who} {what} {slow.times} of {slow.of} collectives, by {format_time_ns(slow.gap_ns)} in the median, {why}",
        lines_of(slow.calls), f"Compare {slow.who} with the others before the collective: GPU clocks and throttling, data loading, CPU binding, a busy host.",
        ["nvidia-smi -q -d PERFORMANCE,CLOCK on that host", "a profile of that rank and of one other over the same step"],
    )  # fmt: skip


def _shortest(group: CallGroup, place_of: Callable[[Lane], str | None]) -> _Slow | None:
    """The place whose ranks spend far less time than the others in most calls."""
    places = [place_of(lane) for lane in group.lanes]
    if None in places or len(set(places)) < 3:
        return None
    wins: dict[str, list[tuple[float, Collective]]] = defaultdict(list)
    total = 0
    for calls in comparable(group):
        longest: dict[str, tuple[int, Collective]] = {}
        for i, call in calls.items():
            place = places[i]
            if call.duration_ns is None or place is None:
                break
            if place not in longest or call.duration_ns > longest[place][0]:
                longest[place] = (call.duration_ns, call)
        else:
            total += 1
            place, (duration, call) = min(longest.items(), key=lambda item: item[1][0])
            usual = statistics.median(d for name, (d, _) in longest.items() if name != place)
            runner_up = min(d for name, (d, _) in longest.items() if name != place)
            if duration < usual / 2 <= runner_up and usual - duration >= _LEAST_GAP_NS:
                wins[place].append((usual - duration, call))
    return _winner(wins, total)


def _created_last(group: CallGroup) -> _Slow | None:
    if len(group.lanes) < 3:
        return None
    dated = [calls for calls in comparable(group) if all(c.created_ns is not None for c in calls.values())]
    offsets = _clock_offsets(group, dated)
    wins: dict[str, list[tuple[float, Collective]]] = defaultdict(list)
    for calls in dated:
        created = {i: (call.created_ns or 0) - offsets.get(i, 0) for i, call in calls.items()}
        order = sorted(created, key=lambda i: created[i])
        last, others = order[-1], order[:-1]
        usual = statistics.median(created[i] for i in others)
        late = created[last] - usual
        if late >= _LEAST_LATENESS_NS and created[others[-1]] - usual <= late / 2:
            wins[group.lanes[last].name].append((late, calls[last]))
    slow = _winner(wins, len(dated))
    if slow is None or offsets:
        return slow
    gaps = sorted(gap for gap, _ in wins[slow.who])
    spread = gaps[len(gaps) * 9 // 10] - gaps[len(gaps) // 10]
    return slow if spread > slow.gap_ns / 10 else None


def _clock_offsets(group: CallGroup, dated: Sequence[Mapping[int, Collective]]) -> dict[int, float]:
    """How much each rank's clock is ahead, from the ends of collectives, which all ranks reach together; empty if they are not known."""
    ended = [calls for calls in dated if all(c.completed_ns is not None for c in calls.values())]
    if len(ended) < _FEWEST_CALLS:
        return {}
    middle = [statistics.median(c.completed_ns or 0 for c in calls.values()) for calls in ended]
    return {
        i: statistics.median((calls[i].completed_ns or 0) - m for calls, m in zip(ended, middle, strict=True))
        for i in range(len(group.lanes))
    }


def _winner(wins: Mapping[str, list[tuple[float, Collective]]], total: int) -> _Slow | None:
    if total < _FEWEST_CALLS or not wins:
        return None
    who, won = max(wins.items(), key=lambda item: len(item[1]))
    if len(won) < _MOST_OF_THEM * total:
        return None
    won = sorted(won, key=lambda pair: -pair[0])
    return _Slow(who, len(won), total, statistics.median(gap for gap, _ in won), [call for _, call in won[:6]])


def checks(facts: Facts) -> Iterator[Check]:
    """Whether nobody regularly comes last, by the times of the Inspector and of traces."""
    timed = [
        group
        for source in (INSPECTOR, TRACES, NSIGHT)
        for group in call_groups(facts, source)
        if len(group.lanes) > 2 and len(comparable(group)) >= _FEWEST_CALLS
    ]
    if timed and not list(last_to_come(facts)):
        lines = lines_of((lane.calls[lane.last][0] for lane in timed[0].lanes), most=3)
        yield Check(
            "who comes last",
            f"no rank regularly, in {sum(len(comparable(g)) for g in timed)} collectives of {len(timed)} communicators",
            lines,
        )


RULES = (last_to_come,)
