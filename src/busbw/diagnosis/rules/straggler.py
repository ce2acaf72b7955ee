"""One node among many that is slower."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from busbw.diagnosis.facts import Facts, Pair, lines_of
from busbw.diagnosis.findings import Finding
from busbw.diagnosis.rules.shared import real
from busbw.statistics import end_effects
from busbw.units import format_rate

__all__ = ["NODE_QUANTITIES", "RULES", "fast_elsewhere"]

NODE_QUANTITIES = ("busbw", "algbw", "bandwidth")


def fast_elsewhere(slow: Pair, pairs: Sequence[Pair], fast: float) -> bool:
    """Whether both ends of a slow pair are fast with two other partners or more, and slow with none."""
    for end in (slow.src, slow.dst):
        others = [p for p in pairs if end in (p.src, p.dst) and {p.src, p.dst} != {slow.src, slow.dst}]
        if len(others) < 2 or any(p.value < 0.8 * fast for p in others):
            return False
    return True


def slow_in_every_pair(facts: Facts) -> Iterator[Finding]:
    """A host is slow with every partner, while its partners are fast with others.

    Fires when the pairs of hosts fall into fast and slow ones (below 80 % of the median of the fast half) and one host explains the slow
    pairs it is in (multiplicative end effects by median polish, Tukey 1977, "Exploratory Data Analysis"). A slow pair whose two hosts
    appear nowhere else is named as open. Silent when all pairs are alike, and when both hosts of a slow pair are fast with all their other partners.
    """
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in facts.pairs:
        if pair.quantity in NODE_QUANTITIES and pair.src != pair.dst and pair.value > 0:
            groups[pair.quantity].append(pair)
    for pairs in groups.values():
        if len(pairs) < 3:
            continue
        effects = end_effects([(p.src, p.dst, p.value) for p in pairs])
        best = sorted(p.value for p in pairs)[-max(1, len(pairs) // 2) :]
        fast = best[len(best) // 2]
        slow_pairs = [p for p in pairs if p.value < 0.8 * fast]
        if not slow_pairs or len(slow_pairs) == len(pairs):
            continue
        seen: dict[str, int] = defaultdict(int)
        for p in slow_pairs:
            seen[p.src] += 1
            seen[p.dst] += 1
        suspects = [h for h, n in seen.items() if n > 1 and effects[h] < 0.85]
        if not suspects and all(fast_elsewhere(p, pairs, fast) for p in slow_pairs):
            continue  # the hosts are fine, so it is the path between them
        named = min(suspects or seen, key=lambda h: effects[h])
        open_pairs = [p for p in slow_pairs if named not in (p.src, p.dst)]
        with_named = [p for p in slow_pairs if named in (p.src, p.dst)]
        partners = {h for p in with_named for h in (p.src, p.dst)} - {named}
        cleared = [p for p in pairs if p.value >= 0.8 * fast and partners & {p.src, p.dst}]
        others = f"; {open_pairs[0].src} or {open_pairs[0].dst} too" if open_pairs else ""
        yield Finding(
            "slow-node", 0.85 if suspects else 0.55, "major",
            f"{named} is slow with every partner: {format_rate(with_named[0].value)} where others reach {format_rate(fast)}{others}",
            lines_of([*with_named, *cleared, *open_pairs]),
            f"Take {named} out and check its PCIe link width and speed, ACS, NIC rate and firmware, clocks and memory bandwidth; test the open pairs with other partners.",
            [f"run {named} against three other hosts, and its partners against each other", "lspci -vv | grep LnkSta on the slow host"],
        )  # fmt: skip


def slow_in_every_round(facts: Facts) -> Iterator[Finding]:
    """A node takes much longer in a check of all nodes, whoever its partner is.

    Fires on per-node times of a node check (DLRover): the node whose fastest round is over twice the median of all nodes' fastest rounds.
    Silent on a node that is fast in one round: its partner was slow.
    """
    best: dict[str, float] = {}
    events = facts.all("straggler.elapsed")
    for event in events:
        for node, seconds in re.findall(r"(\w+):\s*([\d.]+)", event.fields.get("values", "")):
            taken = real(seconds)
            if taken is not None:
                best[node] = min(best.get(node, math.inf), taken)
    if len(best) < 3:
        return
    usual = statistics.median(best.values())
    slow = sorted((node for node, seconds in best.items() if seconds > 2 * usual), key=lambda node: -best[node])
    if slow:
        yield Finding(
            "slow-node", 0.85, "major", f"node {slow[0]} takes {best[slow[0]]:.0f} s where {usual:.0f} s is usual, in every round", lines_of(events),
            f"Take node {slow[0]} out and check GPU clocks, PCIe links, NICs and CPU load.", ["dcgmi diag -r 3 on that node", "nccl-tests on that node alone"],
        )  # fmt: skip


_FASTER_THAN_PCIE = 60e9
"""Bytes per second: above PCIe Gen5 x16, so it is NVLink."""


def slow_gpu_in_a_matrix(facts: Facts) -> Iterator[Finding]:
    """One GPU of a node is slow with every other GPU, in a matrix of copies between all of them.

    Fires on matrices of at least four GPUs (p2pBandwidthLatencyTest, nvbandwidth) where the pairs of one GPU are below 75 % of the usual and every
    other GPU is within 10 % (end effects by median polish, as for hosts). Silent where pairs fall into groups: that is the topology, not a fault.
    """
    groups: dict[tuple[str, str, str], list[Pair]] = defaultdict(list)
    for pair in facts.pairs:
        if (
            pair.quantity not in NODE_QUANTITIES and pair.src != pair.dst and pair.value > 0
            and pair.unit.endswith("/s") and "latency" not in pair.quantity and "disabled" not in pair.quantity
        ):  # fmt: skip
            groups[pair.at.artefact, pair.tool, pair.quantity].append(pair)
    for pairs in groups.values():
        if len({end for p in pairs for end in (p.src, p.dst)}) < 4 or len(pairs) < 6:
            continue
        effects = end_effects([(p.src, p.dst, p.value) for p in pairs])
        slow = [end for end, effect in effects.items() if effect < 0.75]
        if len(slow) != 1 or any(effect < 0.9 for end, effect in effects.items() if end != slow[0]):
            continue
        mine = [p for p in pairs if slow[0] in (p.src, p.dst)]
        rest = [p for p in pairs if slow[0] not in (p.src, p.dst)]
        usual = statistics.median(p.value for p in rest)
        if any(p.value > 0.8 * usual for p in mine):
            continue
        nvlink = usual > _FASTER_THAN_PCIE
        name = slow[0] if not slow[0].isdigit() else f"GPU {slow[0]}"
        yield Finding(
            "nvlink-down" if nvlink else "pcie-link-degraded", 0.6, "major",
            f"{name} reaches {format_rate(statistics.median(p.value for p in mine))} with every other GPU, the others {format_rate(usual)} among themselves",
            lines_of([*mine[:8], *rest[:2]]),
            "Look at the NVLinks of that GPU (nvidia-smi nvlink -s, -e), then reset or service it." if nvlink else "Look at the PCIe link of that GPU under load (lspci -vv | grep LnkSta), its slot and riser.",
            ["nvidia-smi nvlink -s -i GPU" if nvlink else "nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv under load"],
        )  # fmt: skip
        return


RULES = (slow_gpu_in_a_matrix, slow_in_every_pair, slow_in_every_round)
