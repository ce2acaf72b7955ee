"""A run beside its own simulation: slower than its schedule takes on the cluster as described, and why."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from busbw.diagnosis.facts import Facts, Point, lines_of
from busbw.diagnosis.findings import Finding
from busbw.diagnosis.rules.straggler import SlowEnd, of_nodes, slow_end
from busbw.units import format_bytes, format_rate, format_time_ns

__all__ = ["RULES"]

_SIMULATED = "busbw simulate"
"""busbw.simulation.observed, TOOL."""
_SLOWER = 1.25
"""Times the simulated time from which a run counts as slow: simulated plans were within 5 % of runs on healthy hosts (`python -m benchmarks measure --only M4`),
and what a runtime adds to its links may be as much again. A guess beyond that."""
_EXPLAINS = 1.3
"""A run waits for its slowest link, so it is at most as many times slower as that link is; up to so many times more is taken for noise."""
_SHOWN_PAIRS = 6

_Cell = tuple[str, int, int]
"""Collective, ranks, bytes."""


def slower_than_simulated(facts: Facts) -> Iterator[Finding]:
    """A collective takes longer than it was simulated to, and the table of pairs says whose link it waits for.

    Fires where measured rows and rows of `busbw simulate` (both read into one store, say) are of the same collective, ranks and size, and the measured
    time, the least of a size, is a quarter longer at the median size. If one end is slow with every partner in a table of pairs, and slow enough to account for
    it, that end is named; otherwise nothing is known but that it is slow, which is told as minor. Silent where times agree, and where a cell was simulated
    several times with different results (several algorithms or clusters: which of them ran is not known).
    """
    simulated, measured = _cells(facts)
    common = sorted(cell for cell in measured if cell in simulated)
    ratios = {cell: (measured[cell].time_ns or 0) / (simulated[cell].time_ns or 1) for cell in common}
    for collective, ranks in sorted({(kind, n) for kind, n, _ in common}):
        cells = [cell for cell in common if cell[:2] == (collective, ranks)]
        ratio = statistics.median(ratios[cell] for cell in cells)
        if ratio < _SLOWER:
            continue
        shown = max(cells, key=lambda cell: cell[2])
        rows = [row for cell in cells[-3:] for row in (measured[cell], simulated[cell])]
        took = (
            f"{collective} of {format_bytes(shown[2])} takes {format_time_ns(measured[shown].time_ns or 0)} on {ranks} ranks, "
            f"{ratio:.2g} times what was simulated ({format_time_ns(simulated[shown].time_ns or 0)})"
        )
        yield _explained(took, ratio, rows, _slow_end(facts))


def _explained(took: str, ratio: float, rows: Sequence[Point], end: SlowEnd | None) -> Finding:
    slower = 0.0 if end is None else end.fast / statistics.median(p.value for p in end.pairs)
    if end is None or not end.is_certain or ratio > _EXPLAINS * slower:
        return Finding(
            "link-rate-degraded", 0.3, "minor", f"{took}: a link or host is slower than the cluster that was simulated, or another algorithm ran",
            lines_of(rows), "Measure all pairs of hosts, and see that the simulated cluster and algorithm are those that ran.",
            ["`busbw run pairs`, and `busbw explain` on its table", "`busbw simulate collective` with --straggler or --degrade-link for each suspect"],
        )  # fmt: skip
    a_nic = ":" in end.name
    what = f"the link of {end.name}" if a_nic else end.name
    return Finding(
        "link-rate-degraded" if a_nic else "slow-node", 0.9, "major",
        f"{took}: it waits for {what}, which reaches {format_rate(end.pairs[0].value)} with every partner where others reach {format_rate(end.fast)}",
        lines_of([*rows, *end.pairs[:_SHOWN_PAIRS], *end.cleared[:2]]),
        f"Look at the port, cable and switch port of {end.name}, and at the rate that they agreed on; until then run without {end.name.split(':')[0]}.",
        [f"run {end.name} against three other hosts", f"`ethtool` or `mlxlink` on {end.name.split(':')[0]}: the rate of the link, and its errors"],
    )  # fmt: skip


def _cells(facts: Facts) -> tuple[Mapping[_Cell, Point], Mapping[_Cell, Point]]:
    """What was simulated, and the fastest of what was measured, by cell."""
    simulated: dict[_Cell, list[Point]] = defaultdict(list)
    measured: dict[_Cell, list[Point]] = defaultdict(list)
    for curve in facts.curves:
        if curve.collective is None or curve.ranks is None:
            continue
        kept = simulated if curve.tool == _SIMULATED else measured
        for point in curve.points:
            if point.size_bytes and point.time_ns:
                kept[curve.collective, curve.ranks, point.size_bytes].append(point)
    agreed = {
        cell: points[0]
        for cell, points in simulated.items()
        if all(math.isclose(p.time_ns or 0, points[0].time_ns or 0, rel_tol=0.02) for p in points)
    }
    return agreed, {cell: min(points, key=lambda p: p.time_ns or 0) for cell, points in measured.items()}


def _slow_end(facts: Facts) -> SlowEnd | None:
    return next((end for pairs in of_nodes(facts).values() if (end := slow_end(pairs)) is not None), None)


RULES = (slower_than_simulated,)
