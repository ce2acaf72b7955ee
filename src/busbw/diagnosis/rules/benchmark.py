"""A benchmark's table on its own: does it reach what the platform gives, and if not, which path is it on."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from busbw.diagnosis.facts import Curve, Event, Facts, Point, lines_of
from busbw.diagnosis.findings import Check, Finding
from busbw.diagnosis.rules.environment import wrong_results
from busbw.diagnosis.rules.shared import active
from busbw.hardware import ExpectedRange, Tier, expected_busbw, find_accelerator, matching_tiers, tiers
from busbw.units import format_bytes, format_rate

__all__ = ["RULES", "checks", "expected_of", "plateau"]

LARGE = 2**26
"""64 MiB: from here on a table shows bandwidth rather than latency (measured/README.md)."""


def plateau(curve: Curve) -> tuple[float, list[Point]] | None:
    """Best bus bandwidth of the large sizes, bytes per second, and the rows it comes from; None without large rows."""
    rows = [p for p in curve.points if p.size_bytes is not None and p.size_bytes >= LARGE and p.busbw_bytes_per_s]
    if not rows:
        return None
    best = max(rows, key=lambda p: p.busbw_bytes_per_s or 0)
    return best.busbw_bytes_per_s or 0.0, sorted(rows, key=lambda p: -(p.size_bytes or 0))


def _gpu(facts: Facts) -> str | None:
    names = {name for _, name, _ in facts.devices if name and find_accelerator(name) is not None}
    return names.pop() if len(names) == 1 else None


def _network(facts: Facts) -> tuple[float | None, int | None]:
    """(Gb/s of one NIC, NICs per node) as far as said."""
    rates = [float(e.fields["rate"]) for e in facts.all("rdma.rate") if e.fields.get("rate")]
    return (statistics.median(rates), len(rates)) if rates else (None, None)


def expected_of(facts: Facts, curve: Curve) -> ExpectedRange | None:
    """The healthy range of this table's plateau; None where the description does not suffice to tell."""
    gpu = _gpu(facts)
    if (
        gpu is None
        or curve.ranks is None
        or curve.nodes is None
        or curve.collective is None
        or curve.ranks < curve.nodes
        or curve.nodes < 1
    ):
        return None
    rate, count = _network(facts)
    sockets = any(e.fields.get("network", "").startswith("Socket") for e in facts.all("nccl.network")) or any(
        link.network == "Socket" for link in facts.links
    )
    return expected_busbw(
        gpu,
        curve.nodes,
        curve.ranks,
        curve.collective,
        rate,
        count,
        transport="socket" if sockets and curve.nodes > 1 else None,
    )


def below_expectation(facts: Facts) -> Iterator[Finding]:
    """The plateau of a table lies well below what the platform gives, and equals that of a slower path.

    Fires when GPU, number of ranks and nodes are known and the best row of at least the size where the plateau is reached is below the
    healthy range (busbw.hardware.expected, a source a row). The tier it equals names the suspect: sockets, one NIC, PCIe, shared memory.
    Silent when the platform is not known: then the tier is only mentioned.
    """
    for curve in facts.curves:
        found = plateau(curve)
        expected = expected_of(facts, curve)
        if found is None or expected is None:
            continue
        rate, rows = found
        judged = [p for p in rows if (p.size_bytes or 0) >= expected.reached_at_bytes]
        if not judged or rate >= expected.low_bytes_per_s:
            continue
        near = matching_tiers(rate, tiers(_gpu(facts)))
        kind = _suspect(near, curve, facts)
        tier = f", as {near[0].name} gives" if near else ""
        yield Finding(
            kind, 0.45, "major",
            f"{curve.collective} reaches {format_rate(rate)} where {format_rate(expected.low_bytes_per_s)} or more is healthy{tier} ({expected.source})",
            lines_of(judged), _REMEDIES[kind], ["NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH in the same run, then busbw explain on both"],
        )  # fmt: skip


_REMEDIES = {
    "socket-fallback": "See whether NCCL uses sockets: 'Using network' in its log; libibverbs and devices in the container.",
    "gdr-peermem-missing": "Check GPUDirect RDMA (lsmod | grep peermem) and that all NICs are used.",
    "link-rate-degraded": "Check that all NICs are used and run at their rate (ibstat).",
    "nvlink-down": "Check nvidia-smi nvlink -s and topo -m: traffic does not use all NVLinks.",
    "pcie-link-degraded": "Check PCIe link speed and width under load, ACS and the IOMMU.",
    "env-p2p-level-forced": "See whether NCCL_P2P_DISABLE, NCCL_P2P_LEVEL or the IOMMU keeps GPUs from talking directly.",
}


def _suspect(near: tuple[Tier, ...], curve: Curve, facts: Facts) -> str:
    kinds = [t.kind for t in near]
    if (curve.nodes or 1) > 1:
        if "socket" in kinds:
            return "socket-fallback"
        return "link-rate-degraded" if "nic" in kinds else "gdr-peermem-missing"
    if active(facts, "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"):
        return "env-p2p-level-forced"
    if "host_memory" in kinds or "pcie" in kinds:
        return "pcie-link-degraded"
    return "nvlink-down"


def checks(facts: Facts) -> Iterator[Check]:
    """What a table showed to be right: data, plateau, a plateau of zero that has to be zero."""
    for curve in facts.curves:
        found = plateau(curve)
        expected = expected_of(facts, curve)
        name = curve.collective or f"{curve.tool} table"
        if curve.points and not wrong_results(facts) and any(p.wrong is not None for p in curve.points):
            yield Check(
                "data of the benchmark",
                f"{name}: no wrong values in {len(curve.points)} results",
                lines_of(facts.all("nccl_tests.out_of_bounds") or curve.points[-1:]),
            )
        if found is None:
            continue
        rate, rows = found
        size = format_bytes(max(p.size_bytes or 0 for p in rows))
        if curve.ranks == 1:
            yield Check("one rank", "nothing is communicated, so a bus bandwidth of 0 is right", lines_of(rows[:1]))
        elif expected is not None and rate >= expected.low_bytes_per_s:
            yield Check(
                "plateau",
                f"{name}: {format_rate(rate)} up to {size}; healthy from {format_rate(expected.low_bytes_per_s)} ({expected.source})",
                lines_of(rows[:2]),
            )
        else:
            near = matching_tiers(rate, tiers())
            like = f", like {near[0].name}" if near else ""
            yield Check(
                "plateau",
                f"{name}: {format_rate(rate)} up to {size}{like}; the platform is not named, so nothing to compare with",
                lines_of(rows[:2]),
            )
    devices: list[Event] = facts.all("nccl_tests.device")
    if len(devices) == 1 and not any(c.points for c in facts.curves):
        yield Check("one rank", "nothing is communicated, so a bus bandwidth of 0 is right", lines_of(devices))


RULES = (below_expectation,)
