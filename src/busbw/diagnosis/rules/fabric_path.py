"""The path between two hosts that are both well: flows that share a link."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from busbw.diagnosis.facts import Curve, Facts, Pair, Point, lines_of
from busbw.diagnosis.findings import Finding
from busbw.diagnosis.rules.benchmark import plateau
from busbw.diagnosis.rules.straggler import NODE_QUANTITIES, fast_elsewhere
from busbw.units import format_rate

__all__ = ["RULES"]

_REMEDY = "Spread the flows: NCCL_IB_QPS_PER_CONNECTION=4 with NCCL_IB_SPLIT_DATA_ON_QPS=0, adaptive routing, or another hash on the switches."
_TELL = [
    "the same pair again, and with NCCL_IB_QPS_PER_CONNECTION=4",
    "port counters of the switches between them during the run",
]


def pair_slow_though_its_ends_are_fast(facts: Facts) -> Iterator[Finding]:
    """Two hosts are slow with each other, and both are fast with everybody else.

    Fires when a pair of hosts stays below 80 % of the median of the fast half, and each of the two has at least two other partners, all of them fast: so it is
    the path between them, such as flows that a hash put on one link. Silent when a host is slow with a second partner, and when too few pairs were measured.
    """
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in facts.pairs:
        if pair.quantity in NODE_QUANTITIES and pair.src != pair.dst and pair.value > 0:
            groups[pair.quantity].append(pair)
    for pairs in groups.values():
        if len(pairs) < 5:
            continue
        best = sorted(p.value for p in pairs)[-max(1, len(pairs) // 2) :]
        fast = best[len(best) // 2]
        slow = [p for p in pairs if p.value < 0.8 * fast and fast_elsewhere(p, pairs, fast)]
        if not slow or len(slow) * 4 > len(pairs):
            continue
        ends = {end for p in slow for end in (p.src, p.dst)}
        elsewhere = [p for p in pairs if p not in slow and ends & {p.src, p.dst}]
        yield Finding(
            "ecmp-collision", 0.5, "major", f"{slow[0].src} and {slow[0].dst} reach {format_rate(slow[0].value)} with each other and {format_rate(fast)} with all others" + (f"; {len(slow)} such pairs" if len(slow) > 1 else ""),
            lines_of([*slow[:6], *elsewhere[:4]]), _REMEDY, _TELL,
        )  # fmt: skip


def bandwidth_alternates(facts: Facts) -> Iterator[Finding]:
    """The same measurement gives one of two results: a good one, or a much lower one.

    Fires when at least five tables of one file measure the same collective on the same ranks of several nodes, and their plateaus fall into two levels,
    one below 70 % of the other, each met twice and with nothing between: every run hashes its flows anew. Silent when results spread evenly, and on one node.
    """
    groups: dict[tuple[str, str, str | None, int | None], list[tuple[float, Point]]] = defaultdict(list)
    for curve in facts.curves:
        found = plateau(curve)
        if found is not None and (curve.nodes or 1) > 1:
            groups[_same_measurement(curve)].append((found[0], found[1][0]))
    for runs in groups.values():
        levels = _two_levels([rate for rate, _ in runs])
        if levels is not None:
            low, high = levels
            yield Finding(
                "ecmp-collision", 0.4, "major", f"{len(runs)} equal measurements reach either about {format_rate(high)} or about {format_rate(low)}", lines_of(point for _, point in runs),
                _REMEDY, _TELL,
            )  # fmt: skip


def _same_measurement(curve: Curve) -> tuple[str, str, str | None, int | None]:
    return curve.artefact, curve.tool, curve.collective, curve.ranks


def _two_levels(rates: Sequence[float]) -> tuple[float, float] | None:
    """The two levels that these rates fall into, if they do."""
    if len(rates) < 5:
        return None
    ordered = sorted(rates)
    cut = max(range(1, len(ordered)), key=lambda i: ordered[i] / ordered[i - 1])
    low, high = ordered[:cut], ordered[cut:]
    apart = statistics.median(low) < 0.7 * statistics.median(high)
    tight = all(max(level) < 1.15 * min(level) for level in (low, high))
    return (
        (statistics.median(low), statistics.median(high))
        if apart and tight and len(low) > 1 and len(high) > 1
        else None
    )


RULES = (pair_slow_though_its_ends_are_fast, bandwidth_alternates)
