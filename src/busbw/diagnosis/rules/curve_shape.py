"""The whole curve of a benchmark beside the time model: healthy, and with one thing broken at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator

from busbw.diagnosis.facts import Curve, Facts, lines_of
from busbw.diagnosis.findings import Finding
from busbw.diagnosis.hypotheses import Fit, Platform, fits, named, platform_of, points_of
from busbw.units import format_bytes, format_time_ns

__all__ = ["RULES"]

_MOST_CURVES, _MOST_PLATFORMS = 64, 4
"""Tables that are judged, and different numbers of ranks among them: each costs a channel search."""
_FEWEST_ROWS, _MOST_ROWS = 3, 1000
_SUREST = 0.6
"""Confidence of a fault that explains the curve best: two faults that leave the same bytes a second look alike."""
_SHOWN_FROM = 2**26


def curve_of_a_fault(facts: Facts) -> Iterator[Finding]:
    """The curve of a table is that of the same platform with one thing broken: one NIC, PCIe Gen3 x8, no GPUDirect, sockets, no NVLS, a late rank.

    The time model is run again with each fault planted. Fires only if the rows below 64 KiB or from 64 MiB on take clearly longer than
    the healthy interval allows, and one kind of fault fits all size classes and is three times as probable as healthy and all others together.
    Silent where GPU, ranks and nodes are not known, and on several nodes without the rate and number of NICs (ibstat of a node).
    Rings instead of NVLS and a late rank are minor: some sites run so on purpose.
    """
    if _settings_limit(facts):
        return
    met: set[str] = set()
    for curve in facts.curves[:_MOST_CURVES]:
        platform = platform_of(facts, curve)
        points = points_of(curve)[:_MOST_ROWS]
        if platform is None or len(points) < _FEWEST_ROWS or not (platform.name in met or len(met) < _MOST_PLATFORMS):
            continue
        met.add(platform.name)
        sizes = [p.size_bytes or 0 for p in points]
        times = [(p.time_ns or 0) / 1e9 for p in points]
        found = fits(platform.where, curve.collective or "", sizes, times, excluded=_ruled_out(facts))
        best = named(found)
        if best is not None:
            yield _finding(curve, platform, best, found)


def _settings_limit(facts: Facts) -> bool:
    """Whether variables decide what runs, about which other rules speak."""
    return bool(facts.setting("NCCL_ALGO", "NCCL_PROTO", "NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"))


def _ruled_out(facts: Facts) -> set[str]:
    """Faults that lines of the log contradict."""
    out = set()
    crossing = [link for link in facts.links if link.transport == "NET"]
    if any(link.network not in (None, "Socket") for link in crossing) or facts.all("nccl.ib_devices"):
        out.add("TCP sockets instead of RDMA")
    if crossing and all(link.gpudirect for link in crossing):
        out.add("no GPUDirect RDMA")
    inside = [link for link in facts.links if link.transport in ("P2P", "SHM")]
    if inside and not any(link.transport == "SHM" for link in inside):
        out.add("copies through host memory")
    return out


def _finding(curve: Curve, platform: Platform, best: Fit, found: list[Fit]) -> Finding:
    points = points_of(curve)
    large = [p for p in points if (p.size_bytes or 0) >= _SHOWN_FROM] or points
    last = max(large, key=lambda p: p.size_bytes or 0)
    healthy = next(fit for fit in found if fit.hypothesis.kind == "healthy")
    slow = max(healthy.levels, key=lambda name: healthy.levels[name])
    times = math.exp(healthy.levels[slow])
    rivals = [fit.hypothesis.name for fit in found[1:3] if fit.posterior >= 0.02 and fit.hypothesis.kind != "healthy"]
    beside = f"; next best: {', '.join(rivals)}" if rivals else ""
    shown = sorted(large, key=lambda p: -(p.size_bytes or 0)) if slow == "large" else points
    return Finding(
        best.hypothesis.kind,
        _SUREST * best.posterior,
        best.hypothesis.severity,
        f"{curve.collective} takes {format_time_ns(last.time_ns or 0)} at {format_bytes(last.size_bytes or 0)}, {slow} sizes {times:.2g} times as long as "
        f"healthy {platform.name}; the model with {best.hypothesis.name} ({best.detail}) fits best{beside}",
        lines_of(shown),
        best.hypothesis.remedy,
        list(best.hypothesis.distinguish),
    )


RULES = (curve_of_a_fault,)
