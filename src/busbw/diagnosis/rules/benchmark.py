"""A benchmark's table on its own: does it reach what the platform gives, and if not, which path is it on."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from busbw.diagnosis.facts import Curve, Event, Facts, Point, lines_of
from busbw.diagnosis.findings import Check, Finding
from busbw.diagnosis.hypotheses import gpu_of
from busbw.diagnosis.rules.shared import active
from busbw.hardware import (
    ExpectedRange,
    Tier,
    expected_busbw,
    expected_small_message_time,
    find_accelerator,
    matching_tiers,
    tiers,
)
from busbw.units import format_bytes, format_rate, format_time_ns

__all__ = ["RULES", "checks", "expected_of", "plateau"]

LARGE = 2**26
"""64 MiB: from here on a table shows bandwidth rather than latency (measured/README.md)."""


def _short(source: str) -> str:
    """The first of several sources, for a line on a terminal; `busbw hardware` shows all."""
    return source.split(",", maxsplit=1)[0].split(";", maxsplit=1)[0]


def plateau(curve: Curve) -> tuple[float, list[Point]] | None:
    """Best bus bandwidth of the large sizes, bytes per second, and the rows it comes from; None without large rows."""
    rows = [p for p in curve.points if p.size_bytes is not None and p.size_bytes >= LARGE and p.busbw_bytes_per_s]
    if not rows:
        return None
    best = max(rows, key=lambda p: p.busbw_bytes_per_s or 0)
    return best.busbw_bytes_per_s or 0.0, sorted(rows, key=lambda p: -(p.size_bytes or 0))


def _network(facts: Facts) -> tuple[float | None, int | None]:
    """(Gb/s of one NIC, NICs per node) as far as said."""
    rates = [float(e.fields["rate"]) for e in facts.all("rdma.rate") if e.fields.get("rate")]
    return (statistics.median(rates), len(rates)) if rates else (None, None)


def expected_of(facts: Facts, curve: Curve) -> ExpectedRange | None:
    """The healthy range of this table's plateau; None where the description does not suffice to tell."""
    gpu = gpu_of(facts, curve)
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
        near = matching_tiers(rate, tiers(gpu_of(facts, curve)))
        kind = _suspect(near, curve, facts)
        tier = f", as {near[0].name} gives" if near else ""
        yield Finding(
            kind, 0.45, "major",
            f"{curve.collective} reaches {format_rate(rate)} where {format_rate(expected.low_bytes_per_s)} or more is healthy{tier} ({_short(expected.source)})",
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
    """The kind that goes with the tier which is named, so that sentence and kind agree."""
    tier = near[0].kind if near else ""
    if (curve.nodes or 1) > 1:
        return {"socket": "socket-fallback", "nic": "link-rate-degraded"}.get(tier, "gdr-peermem-missing")
    if active(facts, "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"):
        return "env-p2p-level-forced"
    return "pcie-link-degraded" if tier in ("host_memory", "pcie") else "nvlink-down"


def crawling_between_nodes(facts: Facts) -> Iterator[Finding]:
    """Data-centre GPUs of several nodes exchange large messages more slowly than a single 100 Gb/s NIC would.

    Fires when GPUs with an NVLink switch or mesh span nodes and the plateau of at least 128 MiB stays below 8 GB/s: such nodes have at least
    one NIC of 100 Gb/s, so this is TCP, or staging through the host. Needs no knowledge of the NICs. Silent for PCIe cards and small sizes.
    """
    for curve in facts.curves:
        gpu = find_accelerator(gpu_of(facts, curve))
        if gpu is None or (gpu.nvlinks.value or 0) < _NVLINKS_OF_A_SWITCHED_GPU:
            continue
        found = plateau(curve)
        if found is None or (curve.nodes or 1) < 2 or expected_of(facts, curve) is not None:
            continue
        rate, rows = found
        large = [p for p in rows if (p.size_bytes or 0) >= 2**27]
        if not large or rate >= _SLOWEST_SANE_NETWORK:
            continue
        tell = ["NCCL_DEBUG=INFO: 'Using network' and the 'via NET/' lines", "ibstat; lsmod | grep peermem"]
        summary = f"{curve.collective or 'the collective'} between {curve.nodes} nodes reaches {format_rate(rate)}, less than one 100 Gb/s NIC gives"
        yield Finding(
            "socket-fallback",
            0.5,
            "major",
            f"{summary}: probably TCP",
            lines_of(large),
            _REMEDIES["socket-fallback"],
            tell,
        )
        yield Finding(
            "gdr-peermem-missing",
            0.2,
            "major",
            f"{summary}: perhaps staged through the host",
            lines_of(large),
            _REMEDIES["gdr-peermem-missing"],
            tell,
        )


_NVLINKS_OF_A_SWITCHED_GPU = 6
"""V100 SXM and later have at least six NVLinks (hardware catalogue)."""
_SLOWEST_SANE_NETWORK = 8e9
"""Bytes per second: two thirds of one 100 Gb/s NIC."""


def slow_start(facts: Facts) -> Iterator[Finding]:
    """Small messages take many times longer than they should: the latency floor is high.

    Fires when the median of the sizes up to 4 KiB is over five times the slowest healthy value for that number of nodes and ranks. Minor: it
    says that something is in the way (CPU mask, power saving, TCP, debugging output), not what.
    Silent without ranks, nodes and collective.
    """
    for curve in facts.curves:
        small = [p for p in curve.points if p.size_bytes is not None and 0 < p.size_bytes <= 4096 and p.time_ns]
        if (
            len(small) < 3
            or curve.ranks is None
            or curve.nodes is None
            or curve.collective != "all_reduce"
            or curve.ranks < 2
        ):
            continue
        expected = expected_small_message_time(curve.nodes, curve.ranks)
        floor_s = statistics.median((p.time_ns or 0) / 1e9 for p in small)
        if expected is not None and floor_s > 5 * expected.high_s:
            kind = "socket-fallback" if curve.nodes > 1 else "cpu-affinity-pinning"
            yield Finding(
                kind, 0.35, "minor", f"small messages take {format_time_ns(floor_s * 1e9)} where {format_time_ns(expected.high_s * 1e9)} is slow already ({_short(expected.source)})",
                lines_of(small), "Check CPU binding and power saving, that NCCL_DEBUG is not TRACE, and which network is used.",
                ["taskset -p PID of a rank; cpupower frequency-info", "NCCL_DEBUG=INFO: 'Using network'"],
            )  # fmt: skip


def dips(curve: Curve) -> list[Point]:
    """Rows of at least 1 MiB whose bus bandwidth is below half of that of the next smaller and of the next larger size."""
    found = []
    for half in (False, True):
        rows = [p for p in curve.points if p.in_place is half and p.busbw_bytes_per_s and (p.size_bytes or 0) >= 2**20]
        rows.sort(key=lambda p: p.size_bytes or 0)
        for before, here, after in zip(rows, rows[1:], rows[2:], strict=False):
            neighbours = min(before.busbw_bytes_per_s or 0, after.busbw_bytes_per_s or 0)
            if (here.busbw_bytes_per_s or 0) < neighbours / 2:
                found.append(here)
    return found


def outliers(curve: Curve) -> list[tuple[Point, Point]]:
    """Rows of at least 1 MiB whose two halves differ by more than a factor of two: (slow, fast)."""
    by_size: dict[int, list[Point]] = {}
    for p in curve.points:
        if p.busbw_bytes_per_s and (p.size_bytes or 0) >= 2**20:
            by_size.setdefault(p.size_bytes or 0, []).append(p)
    pairs = []
    for same in by_size.values():
        slow, fast = (
            min(same, key=lambda p: p.busbw_bytes_per_s or 0),
            max(same, key=lambda p: p.busbw_bytes_per_s or 0),
        )
        if (slow.busbw_bytes_per_s or 0) * 2 < (fast.busbw_bytes_per_s or 0):
            pairs.append((slow, fast))
    return pairs


def checks(facts: Facts) -> Iterator[Check]:
    """What a table showed: right data, a healthy plateau, a plateau of zero that has to be zero; dips and outliers as remarks."""
    for curve in facts.curves:
        name = curve.collective or f"{curve.tool} table"
        verdicts = [e for e in facts.all("nccl_tests.out_of_bounds") if e.at.artefact == curve.artefact]
        wrong = any(p.wrong for p in curve.points) or any("FAILED" in e.text for e in verdicts)
        if not wrong and any(p.wrong is not None for p in curve.points):
            yield Check(
                "data of the benchmark",
                f"{name}: no wrong values in {len(curve.points)} results",
                lines_of(verdicts or curve.points[-1:]),
                decisive=False,
            )
        yield from _plateau_check(facts, curve, name)
        for here in dips(curve)[:4]:
            yield Check(
                "dip",
                f"{name}: {format_rate(here.busbw_bytes_per_s or 0)} at {format_bytes(here.size_bytes or 0)}, less than half of its neighbours: a change of algorithm or protocol, or a disturbance; run again",
                lines_of([here]),
                decisive=False,
            )
        for slow, fast in outliers(curve)[:4]:
            yield Check(
                "outlier",
                f"{name}: {format_rate(slow.busbw_bytes_per_s or 0)} and {format_rate(fast.busbw_bytes_per_s or 0)} at the same {format_bytes(slow.size_bytes or 0)}: the first row of a sweep carries first-call cost",
                lines_of([slow, fast]),
                decisive=False,
            )
    devices: list[Event] = facts.all("nccl_tests.device")
    if len(devices) == 1 and not any(c.points for c in facts.curves):
        yield Check("one rank", "nothing is communicated, so a bus bandwidth of 0 is right", lines_of(devices))


def _plateau_check(facts: Facts, curve: Curve, name: str) -> Iterator[Check]:
    found = plateau(curve)
    if found is None:
        return
    rate, rows = found
    expected = expected_of(facts, curve)
    size = format_bytes(max(p.size_bytes or 0 for p in rows))
    if curve.ranks == 1:
        yield Check("one rank", "nothing is communicated, so a bus bandwidth of 0 is right", lines_of(rows[:1]))
    elif expected is not None and rate >= expected.low_bytes_per_s:
        healthy = f"healthy from {format_rate(expected.low_bytes_per_s)} ({_short(expected.source)})"
        yield Check("plateau", f"{name}: {format_rate(rate)} up to {size}; {healthy}", lines_of(rows[:2]))
    else:
        near = matching_tiers(rate, tiers())
        like = f", like {near[0].name}" if near else ""
        fast = rate >= _FASTER_THAN_ANY_DETOUR
        reason = (
            "faster than sockets, host memory or one PCIe link"
            if fast
            else "the platform is not known well enough to say what is healthy"
        )
        yield Check(
            "plateau", f"{name}: {format_rate(rate)} up to {size}{like}; {reason}", lines_of(rows[:2]), decisive=fast
        )


_FASTER_THAN_ANY_DETOUR = 60e9
"""Bytes per second: above PCIe Gen5 x16 as NCCL counts it (48 GB/s) and above any path through host memory (hardware tiers)."""


def copies_arrive_wrong(facts: Facts) -> Iterator[Finding]:
    """A test of nvbandwidth found other data at the end of a copy than it had sent.

    Fires on its check of the pattern (memcpy.cpp). Direct traffic over PCIe that the IOMMU or ACS sends elsewhere does it, and memory or links that change bits.
    Silent when every pattern was right.
    """
    wrong = facts.all("nvbandwidth.wrong_data")
    if wrong:
        tell = [
            "cat /proc/cmdline; lspci -vvv | grep -i acsctl",
            "nvidia-smi -q -d ECC",
            "the same test with --disableAffinity, and on other pairs of GPUs",
        ]
        for kind, confidence, remedy in (
            ("iommu-p2p", 0.4, "Boot with iommu=pt or with the IOMMU off; turn ACS off on the bridges above the GPUs."),
            ("gpu-ecc", 0.25, "Run dcgmi diag -r 3; look at the ECC counters of the GPUs."),
        ):
            yield Finding(kind, confidence, "fatal", "copies arrive with wrong data", lines_of(wrong), remedy, tell)


RULES = (copies_arrive_wrong, below_expectation, crawling_between_nodes, slow_start)
