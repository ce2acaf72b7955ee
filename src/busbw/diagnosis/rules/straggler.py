"""One node among many that is slower."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from busbw.diagnosis.facts import Facts, Pair, lines_of
from busbw.diagnosis.findings import Finding
from busbw.diagnosis.rules.shared import real
from busbw.statistics import end_effects
from busbw.units import format_rate

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["NODE_QUANTITIES", "RULES", "SlowEnd", "fast_elsewhere", "of_nodes", "slow_end"]

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
    for pairs in of_nodes(facts).values():
        if (found := slow_end(pairs)) is None:
            continue
        named, open_pairs = found.name, found.open_pairs
        others = f"; {open_pairs[0].src} or {open_pairs[0].dst} too" if open_pairs else ""
        yield Finding(
            "slow-node", 0.85 if found.is_certain else 0.55, "major",
            f"{named} is slow with every partner: {format_rate(found.pairs[0].value)} where others reach {format_rate(found.fast)}{others}",
            lines_of([*found.pairs, *found.cleared, *open_pairs]),
            f"Take {named} out and check its PCIe link width and speed, ACS, NIC rate and firmware, clocks and memory bandwidth; test the open pairs with other partners.",
            [f"run {named} against three other hosts, and its partners against each other", "lspci -vv | grep LnkSta on the slow host"],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SlowEnd:
    """An end that is slow with every partner."""

    name: str
    is_certain: bool
    """Whether its partners are seen to be fast with others."""
    fast: float
    """What other pairs reach."""
    pairs: tuple[Pair, ...]
    """Its own."""
    cleared: tuple[Pair, ...]
    """Fast ones of its partners."""
    open_pairs: tuple[Pair, ...]
    """Slow ones that it explains nothing of."""


def slow_end(pairs: Sequence[Pair]) -> SlowEnd | None:
    """The one that `slow_in_every_pair` speaks of, if there is one."""
    if len(pairs) < 3:
        return None
    effects = end_effects([(p.src, p.dst, p.value) for p in pairs])
    best = sorted(p.value for p in pairs)[-max(1, len(pairs) // 2) :]
    fast = best[len(best) // 2]
    slow_pairs = [p for p in pairs if p.value < 0.8 * fast]
    if not slow_pairs or len(slow_pairs) == len(pairs):
        return None
    seen: dict[str, int] = defaultdict(int)
    for p in slow_pairs:
        seen[p.src] += 1
        seen[p.dst] += 1
    suspects = [h for h, n in seen.items() if n > 1 and effects[h] < 0.85]
    if not suspects and all(fast_elsewhere(p, pairs, fast) for p in slow_pairs):
        return None  # the hosts are fine, so it is the path between them
    named = min(suspects or seen, key=lambda h: effects[h])
    open_pairs = [p for p in slow_pairs if named not in (p.src, p.dst)]
    with_named = [p for p in slow_pairs if named in (p.src, p.dst)]
    partners = {h for p in with_named for h in (p.src, p.dst)} - {named}
    cleared = [p for p in pairs if p.value >= 0.8 * fast and partners & {p.src, p.dst}]
    return SlowEnd(named, bool(suspects), fast, tuple(with_named), tuple(cleared), tuple(open_pairs))


_PLAIN = 0.8
"""Share of the usual rate below which a pair is plainly slow."""
_LEAST_HOSTS, _LEAST_PAIRS = 8, 28
"""Hosts and pairs from which it can be told what is beyond chance. 28: every pair of 8 hosts, once."""
_SHOWN_LINES = 8


def slow_by_a_little(facts: Facts) -> Iterator[Finding]:
    """A host, a NIC, a rail or one direction of a link is slower than its peers in a table of pairs, by less than the eye sees.

    Fires where at least eight hosts were measured in pairs (N(N-1)/2 of them or more) and the pairs of one suspect are slower together: beyond chance with all suspects
    counted, by at least 5 %, in most of its pairs, and beyond the spread of its peers (`busbw.statistics.culprits`). Both directions of a pair, which are measured
    at once or one after the other, count once, and who was measured fewer than three times is not blamed. Ends named `host:nic`
    tell NICs and rails apart. Silent where `slow_in_every_pair` speaks: a host at below 80 % of the usual.
    """
    from busbw.statistics.culprits import culprits  # noqa: PLC0415 - loads numpy

    for pairs in of_nodes(facts).values():
        hosts = {end.split(":", 1)[0] for p in pairs for end in (p.src, p.dst)}
        if len(hosts) < _LEAST_HOSTS or len(pairs) < _LEAST_PAIRS:
            continue
        suspects, names = _suspects(pairs)
        found = culprits([p.value for p in pairs], suspects, together=_moments(pairs))
        if not found:
            continue
        first = found[0]
        name = names[first.kind][first.suspect]
        mine = set(first.cells.tolist())
        slow = sorted((pairs[i] for i in mine), key=lambda p: p.value)
        rest = [p for i, p in enumerate(pairs) if i not in mine]
        if first.kind == "host" and first.ratio < _PLAIN:
            continue  # slow_in_every_pair
        what, remedy, command = _WORDS[first.kind]
        others = [f"{names[c.kind][c.suspect]} ({(1 - c.ratio) * 100:.0f} %)" for c in found[1:]]
        yield Finding(
            "slow-node" if first.kind == "host" else "link-rate-degraded", 0.8, "major",
            f"{what.format(name)} is {(1 - first.ratio) * 100:.0f} % slower than its peers: {format_rate(statistics.median(p.value for p in slow))} in {len(slow)} pairs, "
            f"{format_rate(statistics.median(p.value for p in rest))} in the {len(rest)} others" + (f"; {', '.join(others)} too" if others else ""),
            lines_of([*slow[:_SHOWN_LINES], *rest[:2]]), remedy.format(name), [command.format(name)],
        )  # fmt: skip


_WORDS = {
    "host": ("{}", "Take {} out and look at its PCIe links, NIC rates, clocks and memory bandwidth.", "lspci -vv | grep LnkSta on {}"),
    "NIC": ("NIC {}", "Look at the port, cable and PCIe link of {}.", "mlxlink and lspci -vv | grep LnkSta for {}"),
    "rail": ("rail {}", "Look at the leaf switch of rail {} and its uplinks.", "ibqueryerrors and iblinkinfo of the switch of rail {}"),
    "sending": ("what {} sends", "Clean or replace the cable of {}; look at errors at the switch's port, which receives from it.", "perfquery of the switch's port of {}"),
    "receiving": ("what {} receives", "Clean or replace the cable of {}; look at errors of its port.", "perfquery of {}"),
    "pair": ("the path {}", "Look at the switches and cables between {}.", "ibtracert between {}"),
}  # fmt: skip
"""Who is slow, what to do, what would tell."""


def _suspects(pairs: Sequence[Pair]) -> tuple[dict[str, list[npt.NDArray[np.int64]]], dict[str, list[str]]]:
    """What each pair involves, by kind, as numbers; and the names that the numbers stand for. Ends are `host` or `host:nic`."""
    import numpy as np  # noqa: PLC0415 - few inputs have tables of pairs

    src, dst = [p.src for p in pairs], [p.dst for p in pairs]
    hosts = [end.split(":", 1)[0] for end in (*src, *dst)]
    named: dict[str, list[list[str]]] = {"host": [hosts[: len(pairs)], hosts[len(pairs) :]]}
    if any(":" in end for end in src):
        named["NIC"] = [src, dst]
        rails = [end.split(":", 1)[1] if ":" in end else "" for end in (*src, *dst)]
        if len(set(rails)) > 1 and rails[: len(pairs)] == rails[len(pairs) :]:
            named["rail"] = [rails[: len(pairs)]]
    both = {(a, b) for a, b in zip(src, dst, strict=True)}
    if sum((b, a) in both for a, b in both) > len(both) / 2:  # each direction was measured
        named["sending"], named["receiving"] = [src], [dst]
    named["pair"] = [[" - ".join(sorted(ends)) for ends in zip(*named["host"], strict=True)]]
    suspects: dict[str, list[npt.NDArray[np.int64]]] = {}
    names: dict[str, list[str]] = {}
    for kind, columns in named.items():
        names[kind], numbers = np.unique([name for column in columns for name in column], return_inverse=True)  # type: ignore[assignment]
        suspects[kind] = np.split(numbers.astype(np.int64), len(columns))
    return suspects, names


def _moments(pairs: Sequence[Pair]) -> list[int]:
    """Numbers that are equal for both directions of a pair."""
    numbers: dict[frozenset[str], int] = {}
    return [numbers.setdefault(frozenset((p.src, p.dst)), len(numbers)) for p in pairs]


def of_nodes(facts: Facts) -> dict[str, list[Pair]]:
    """Rates between nodes, by quantity."""
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in facts.pairs:
        if pair.quantity in NODE_QUANTITIES and pair.src != pair.dst and pair.value > 0:
            groups[pair.quantity].append(pair)
    return groups


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


RULES = (slow_gpu_in_a_matrix, slow_in_every_pair, slow_by_a_little, slow_in_every_round)
