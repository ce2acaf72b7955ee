"""Fault hypotheses for a measured curve: the closed-form model with one thing broken, and which of them fits best.

`platform_of` says what a benchmark's table ran on as far as the facts tell, `fits` lays healthy and every fault beside the
curve, `named` decides. The model errs by a common factor a machine and size class more than from row to row, so a fit
is judged by the level of each size class and by the shape within it.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from busbw.diagnosis.facts import Curve, Facts, Point
from busbw.diagnosis.findings import Severity
from busbw.errors import InputError
from busbw.hardware import cluster_alike, find_accelerator, pcie_bytes_per_s

if TYPE_CHECKING:
    from busbw.prediction import Predictions, Situation

__all__ = ["HEALTHY", "HYPOTHESES", "Fit", "Hypothesis", "Platform", "fits", "gpu_of", "healthy_of", "named", "network_of", "platform_of", "points_of"]  # fmt: skip

_TOOLS = ("nccl-tests", "rccl-tests", "all_reduce_bench.py")
_GIGA, _GBIT = 1e9, 1e9 / 8
_USUAL_SOCKETS_GB_PER_S = 2.5
"""25 Gb/s Ethernet, and about what IPoIB reaches: between the rates of `sockets` in expected.json."""
_MOST_RANKS, _MOST_SIZES = 1 << 20, 1000
"""Of what a file claims more is damage."""
_LEVEL_SPREAD = {"small": (0.25, 0.30), "middle": (0.25, 0.30), "large": (0.06, 0.12)}
"""Least and most standard deviation of the logarithm of measured over predicted; between them what the calibration's interval
says; small sizes differ by site, and in the middle the choice of the algorithm is uncertain too. Beyond the most its tails are other causes, which healthy may have and a fault that is to be named may not."""
_INTERVAL_IN_SPREADS = 2.56
"""80 % of a normal distribution lie within 1.28 spreads of its middle."""
_SHAPE_SPREAD = 0.12
"""The same from row to row of one table within a size class; beyond three of it a row counts as an outlier."""
_SHAPE_WEIGHT = 3.0
"""Rows of one class are not independent: together they count as so many."""
_WORST_LEVEL = 5.0
"""Spreads beyond which a level is simply wrong; more does not count."""
_MISFIT = 1.15
"""How far beyond the interval's upper end the median of a size class must lie before healthy is doubted."""
_FEWEST_ROWS = 3
_FAR_MISFIT, _FEWEST_FAR_ROWS = 3.0, 2
"""So far beyond fewer rows are enough."""
_FEWEST_CAMPAIGNS = 3
"""Of a network that fewer measured it is not known what is healthy: two of EFA's first generation lie 1.8 times apart, both called good."""
_GOOD_LEVEL = 2.0
"""Spreads within which the level of each class must lie for a fault to be named."""
_CLEARLY = 0.75
"""Posterior that a kind needs to be named."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A hypothesis with its unknown figure set."""

    where: Situation
    delay_s: float = 0.0
    detail: str = ""
    chooses_in: Situation | None = None
    """What NCCL believes in when it chooses: the healthy machine where it does not see the fault. None: the fastest is taken."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One thing broken."""

    name: str
    kind: str
    severity: Severity
    prior: float
    """Before the curve was seen; a guess by what public reports were about."""
    variants: Callable[[Situation], list[Variant]]
    remedy: str
    distinguish: tuple[str, ...]
    roughness: float = 1.0
    """How much farther its curves lie from the model than others."""


@dataclass(frozen=True, slots=True)
class Platform:
    """What a table ran on."""

    name: str
    where: Situation


@dataclass(frozen=True, slots=True)
class Fit:
    """A hypothesis laid beside a curve."""

    hypothesis: Hypothesis
    detail: str
    log_likelihood: float
    levels: dict[str, float]
    """By size class the median of ln(measured / modelled)."""
    worst_level: float
    """The largest of them in spreads."""
    scatter: float
    """Median of the rows' distance from the level of their class."""
    posterior: float = 0.0
    is_doubted: bool = False
    """Of healthy: whether a class of sizes with enough rows lies clearly above its interval."""


def _steps(low: float, high: float) -> list[float]:
    """Values from low to high, each a ninth more than the one before: what lies between fits as well."""
    return [low * 1.12**step for step in range(int(math.log(high / low) / math.log(1.12)) + 1)]


def _healthy(where: Situation) -> list[Variant]:
    return [Variant(where, chooses_in=where)]


def _sockets(where: Situation) -> list[Variant]:
    """TCP reaches the same few GB/s a node whatever the NICs could: rates of `sockets` in expected.json."""
    if where.domains < 2:
        return []
    share = _figure("network_share", "sockets")

    def over_tcp(rate: float) -> Situation:
        return replace(where, network="sockets", network_bytes_per_s=rate * _GIGA / share, nics=1)

    usual = over_tcp(_USUAL_SOCKETS_GB_PER_S)  # one choice for all: a search costs more than a curve
    return [
        Variant(over_tcp(rate), 0.0, f"about {rate:.2g} GB/s a node", usual)
        for rate in _steps(0.8, 6.5)
        if rate * _GIGA < where.network_bytes_per_s / 2
    ]


def _one_nic(where: Situation) -> list[Variant]:
    if where.domains < 2 or where.nics < 2:
        return []
    each = where.network_bytes_per_s / where.nics
    alone = replace(where, network_bytes_per_s=each, nics=1)
    return [Variant(alone, 0.0, f"1 of {where.nics} NICs", alone)]


def _narrow_pcie(where: Situation) -> list[Variant]:
    """Gen3 x8 is what a slot trains down to that lost half its lanes on a Gen3 riser, or is bifurcated."""
    narrow = pcie_bytes_per_s(3, 8)
    if where.domains < 2:
        if where.shape != "none" or where.intra_bytes_per_s <= narrow * 1.5:
            return []
        return [Variant(replace(where, intra_bytes_per_s=narrow), 0.0, "GPUs on PCIe Gen3 x8")]
    if where.network_bytes_per_s / max(1, where.nics) <= narrow * 1.5:
        return []
    return [Variant(replace(where, network_bytes_per_s=narrow * where.nics), 0.0, "NICs on PCIe Gen3 x8", where)]


def _no_gpudirect(where: Situation) -> list[Variant]:
    """Each byte crosses PCIe twice and the memory of the host twice; how much that leaves differs by host. The shares are guesses."""
    if where.domains < 2:
        return []
    return [
        Variant(
            replace(where, network_bytes_per_s=where.network_bytes_per_s * share),
            0.0,
            f"{share:.0%} of the network's rate",
            where,
        )
        for share in _steps(0.3, 0.6)
    ]


def _no_nvls(where: Situation) -> list[Variant]:
    return [Variant(replace(where, nvls=False), 0.0, "rings and trees")] if where.nvls else []


def _through_host(where: Situation) -> list[Variant]:
    """Direct access between GPUs is off, so copies go through shared memory: rates of `host_memory` in expected.json."""
    if where.domains > 1 or where.intra_bytes_per_s < 40 * _GIGA:
        return []
    share = _figure("ring_share", where.gpu)
    return [
        Variant(
            replace(where, intra_bytes_per_s=rate * _GIGA / share, shape="none", nvls=False),
            0.0,
            f"about {rate:.2g} GB/s between GPUs",
        )
        for rate in _steps(3.0, 14.0)
    ]


def _half_nvlinks(where: Situation) -> list[Variant]:
    if where.domains > 1 or where.shape == "none":
        return []
    return [Variant(replace(where, intra_bytes_per_s=where.intra_bytes_per_s / 2), 0.0, "half of the links", where)]


def _slow_rank(where: Situation) -> list[Variant]:
    """One rank enters each call late by the same time, and all wait for it. Less than half a millisecond differs between healthy sites."""
    return [
        Variant(where, late_us * 1e-6, f"{late_us:g} us late")
        for late_us in (500, 700, 1000, 1400, 2000, 3000, 5000, 8000, 15000)
    ]


HEALTHY = Hypothesis("healthy", "healthy", "minor", 0.80, _healthy, "", ())
HYPOTHESES = (
    HEALTHY,
    Hypothesis(
        "TCP sockets instead of RDMA", "socket-fallback", "major", 0.05, _sockets,
        "See whether NCCL uses sockets: 'Using network' in its log; libibverbs and devices in the container.",
        ("NCCL_DEBUG=INFO in the same run: 'Using network'", "`ibv_devinfo` inside the container"),
        roughness=1.75,  # measured: azure-ndv4-2n-allreduce-ipoib, cscs-gh200-2n-allreduce-nohook
    ),
    Hypothesis(
        "no GPUDirect RDMA", "gdr-peermem-missing", "major", 0.05, _no_gpudirect,
        "Load nvidia_peermem, or use a kernel and driver with DMA-BUF; check NCCL_NET_GDR_LEVEL and ACS.",
        ("`lsmod | grep peermem`", "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET in the same run: lines 'via NET/' end in GDRDMA"),
    ),
    Hypothesis(
        "one NIC of a node", "link-rate-degraded", "major", 0.03, _one_nic,
        "Check NCCL_IB_HCA, that every NIC has an active port, and the topology that NCCL sees (NCCL_TOPO_FILE in virtual machines).",
        ("NCCL_DEBUG=INFO in the same run: 'NET/IB : Using' lists the NICs", "`ibstat`"),
    ),
    Hypothesis(
        "PCIe Gen3 x8", "pcie-link-degraded", "major", 0.02, _narrow_pcie,
        "Check speed and width of the PCIe links under load; reseat cards and risers, look at the BIOS.",
        ("`lspci -vv`: LnkSta beside LnkCap", "`nvidia-smi -q`: PCI, link width and generation"),
    ),
    Hypothesis(
        "rings and trees instead of NVLS", "fabric-manager-state", "minor", 0.04, _no_nvls,
        "See whether NVLS is on: NCCL_NVLS_ENABLE, the state of Fabric Manager and of multicast, and what a virtual machine passes on.",
        ("NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING in the same run: NVLS channels", "`nvidia-smi -q`: Fabric state"),
    ),
    Hypothesis(
        "copies through host memory", "env-p2p-level-forced", "major", 0.03, _through_host,
        "See whether NCCL_P2P_DISABLE, NCCL_P2P_LEVEL or the IOMMU keeps GPUs from talking directly.",
        ("NCCL_DEBUG=INFO in the same run: 'via SHM' or 'via P2P'", "`env | grep NCCL_P2P`"),
    ),
    Hypothesis(
        "half of the links between GPUs", "nvlink-down", "major", 0.01, _half_nvlinks,
        "Check that all links are up; reset the GPU or replace it.",
        ("`nvidia-smi nvlink -s`", "`nvidia-smi nvlink -e`"),
    ),
    Hypothesis(
        "one slow rank", "slow-node", "minor", 0.02, _slow_rank,
        "Run the benchmark on halves of the nodes to find the rank that is late; look at its clocks, its CPU mask and what else runs there.",
        ("the same benchmark on each node alone", "`nvidia-smi -q -d PERFORMANCE,CLOCK` on every node"),
    ),
)  # fmt: skip
"""Healthy first, the rival of all."""


def gpu_of(facts: Facts, curve: Curve) -> str | None:
    """The one kind of GPU that the table's own file names; if it names none, that all files together name."""
    listed = {(name, at.artefact) for _, name, at in facts.devices if name}
    known = {(name, artefact) for name, artefact in listed if _is_accelerator(name)}
    names = {name for name, artefact in known if artefact == curve.artefact} or {name for name, _ in known}
    return names.pop() if len(names) == 1 else None


@lru_cache(maxsize=4096)
def _is_accelerator(name: str) -> bool:
    return find_accelerator(name) is not None


def network_of(facts: Facts) -> tuple[float | None, int | None]:
    """Gb/s of one NIC and NICs a node, where hosts that said so agree; None where nobody did."""
    by_place: dict[str, list[float]] = defaultdict(list)
    for port in facts.ports:
        if port.node_kind == "ca" and not port.on_switch and port.rate_bytes_per_s and port.active:
            by_place[port.place].append(port.rate_bytes_per_s / _GBIT)
    counts = {len(rates) for rates in by_place.values()}
    rates = {rate for listed in by_place.values() for rate in listed}
    if len(counts) == 1 and rates and max(rates) < 1.1 * min(rates):
        return statistics.median(rates), counts.pop()
    return None, None


def points_of(curve: Curve) -> list[Point]:
    """The rows out of place that have a size and a time; of a table without such, those in place."""
    known = [p for p in curve.points if (p.size_bytes or 0) > 0 and (p.time_ns or 0) > 0]
    return [p for p in known if p.in_place is not True] or known


def platform_of(facts: Facts, curve: Curve) -> Platform | None:
    """What a table of NCCL or RCCL ran on; None where the facts do not suffice, or the network is of a kind with its own rules."""
    if curve.tool not in _TOOLS or curve.collective is None or curve.nodes is None:
        return None
    if not 2 <= (curve.ranks or 0) <= _MOST_RANKS:
        return None
    from busbw.prediction import PREDICTED, situation_of  # noqa: PLC0415 - only where a table is known well enough

    if curve.collective not in PREDICTED:
        return None
    rate, count = network_of(facts)
    try:
        cluster = cluster_alike(gpu_of(facts, curve), curve.ranks or 0, curve.nodes, rate, count)
        if cluster.nodes > 1 and (cluster.node.nvlink_domain_nodes > 1 or _other_network(facts)):
            return None  # whether trays share NVLink is not said
        where = situation_of(cluster, curve.ranks)
    except InputError:
        return None
    gpus = "" if where.ranks == cluster.gpus else f", {where.ranks} GPUs"
    return Platform(f"{cluster.nodes} x {cluster.name}{gpus}", where)


def _other_network(facts: Facts) -> bool:
    """Whether NCCL named a network that is no InfiniBand or RoCE of its own."""
    said = [e.fields.get("network", "").split()[:1] for e in facts.all("nccl.network")]
    return any(words and not words[0].startswith("IB") for words in said)


def healthy_of(facts: Facts, curve: Curve) -> Predictions | None:
    """What the healthy model gives at the sizes of a table; None where its platform is not known."""
    platform = platform_of(facts, curve)
    sizes = sorted({p.size_bytes for p in curve.points if p.size_bytes and 0 < p.size_bytes < 1 << 60})[:_MOST_SIZES]
    if platform is None or not sizes:
        return None
    from busbw.prediction import model_in, predict_in  # noqa: PLC0415 - as above

    return predict_in(platform.where, curve.collective or "", sizes, model=model_in(platform.where))


def fits(
    where: Situation,
    collective: str,
    sizes_bytes: Sequence[int],
    times_s: Sequence[float],
    *,
    excluded: Collection[str] = (),
) -> list[Fit]:
    """Every hypothesis with its best variant, posteriors summing to 1, the most probable first.

    excluded: names of those that other facts rule out. Empty without a row that has a size and a time.
    """
    from busbw.prediction import load_calibration, model_in, predict_in, size_class  # noqa: PLC0415 - as above

    known = [
        (size, time_s) for size, time_s in zip(sizes_bytes, times_s, strict=True) if 0 < size < 1 << 60 and time_s > 0
    ]
    sizes, times = [size for size, _ in known], np.array([time_s for _, time_s in known])
    if not sizes:
        return []
    classes = [size_class(size) for size in sizes]
    model = model_in(where)
    healthy = predict_in(where, collective, sizes, model=model)
    widths = {
        name: (float(low), float(high))
        for name, low, high in zip(
            classes, healthy.low_s / healthy.time_s, healthy.high_s / healthy.time_s, strict=True
        )
    }
    found = []
    for hypothesis in HYPOTHESES:
        if hypothesis.name in excluded:
            continue
        best: Fit | None = None
        variants = hypothesis.variants(where)
        for variant in variants:
            runs = None if variant.chooses_in is None else model_in(variant.chooses_in)
            modelled = predict_in(variant.where, collective, sizes, model=runs).time_s + variant.delay_s
            residual = np.log(times / modelled)
            spreads = {}
            for name, (low, high) in widths.items():
                least, most = _LEVEL_SPREAD[name]
                spread = max(least, math.log(high / low) / _INTERVAL_IN_SPREADS)
                spreads[name] = spread if hypothesis is HEALTHY else min(spread, most) * hypothesis.roughness
            fit = _fit(hypothesis, variant.detail, classes, residual, spreads)
            # A figure that was chosen to fit says less.
            fit = replace(fit, log_likelihood=fit.log_likelihood - math.log(len(variants)))
            if hypothesis is HEALTHY:
                few = where.domains > 1 and load_calibration().campaigns_over(where.network) < _FEWEST_CAMPAIGNS
                slow = any(_is_slow(fit, name, classes, high, only_far=few) for name, (_, high) in widths.items())
                fit = replace(fit, is_doubted=slow)
            if best is None or fit.log_likelihood > best.log_likelihood:
                best = fit
        if best is not None:
            found.append(best)
    weights = [fit.hypothesis.prior * math.exp(fit.log_likelihood - found[0].log_likelihood) for fit in found]
    total = sum(weights)
    ranked = [replace(fit, posterior=weight / total) for fit, weight in zip(found, weights, strict=True)]
    return sorted(ranked, key=lambda fit: -fit.posterior)


def _fit(
    hypothesis: Hypothesis,
    detail: str,
    classes: Sequence[str],
    residual: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    spreads: dict[str, float],
) -> Fit:
    levels: dict[str, float] = {}
    total = worst = 0.0
    shape: list[float] = []
    for name in dict.fromkeys(classes):
        here = residual[[each == name for each in classes]]
        level = float(np.median(here))
        levels[name] = level
        off = abs(level) / spreads[name]
        worst = max(worst, off)
        total -= min(off, _WORST_LEVEL) ** 2 / 2 + math.log(spreads[name])
        shape += np.minimum(np.abs(here - level) / _SHAPE_SPREAD, 3.0).tolist()
    total -= _SHAPE_WEIGHT * float(np.mean(np.square(shape))) / 2
    scatter = float(np.median(shape)) * _SHAPE_SPREAD
    return Fit(hypothesis, detail, total, levels, worst, scatter)


def _is_slow(fit: Fit, name: str, classes: Sequence[str], high: float, *, only_far: bool) -> bool:
    """Whether a class lies clearly above its interval; in the middle, where algorithms change, and if only_far, far above."""
    rows, beyond = classes.count(name), fit.levels[name] - math.log(high)
    if rows >= _FEWEST_ROWS and name != "middle" and not only_far:
        return beyond > math.log(_MISFIT)
    return rows >= _FEWEST_FAR_ROWS and beyond > math.log(_FAR_MISFIT)


def named(found: Sequence[Fit]) -> Fit | None:
    """The fault that the curve shows; None unless healthy does not fit and one kind of fault fits, clearly better than all others."""
    healthy = next((fit for fit in found if fit.hypothesis is HEALTHY), None)
    if healthy is None or not healthy.is_doubted:
        return None
    best = found[0]
    alike = sum(fit.posterior for fit in found if fit.hypothesis.kind == best.hypothesis.kind)
    return best if best is not healthy and alike >= _CLEARLY and best.worst_level <= _GOOD_LEVEL else None


@cache
def _figure(name: str, of: str) -> float:
    """A parameter of the shipped calibration for a class of GPU or network."""
    from busbw.prediction import load_calibration  # noqa: PLC0415 - as above

    return load_calibration().parameters[name].of(of, of)
