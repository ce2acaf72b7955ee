"""Which condition costs how much: the same run without each of them, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from busbw.collectives.plan import Plan
from busbw.collectives.schedule import BoundSchedule
from busbw.hardware.cluster import Cluster
from busbw.hardware.fabrics import Fabric
from busbw.simulation.conditions import Conditions, find_links
from busbw.simulation.network import Network
from busbw.simulation.program import TaskProgram
from busbw.simulation.simulate import simulate
from busbw.simulation.timeline import Timeline

__all__ = ["Cause", "causes"]


@dataclass(frozen=True, slots=True)
class Cause:
    """A condition, and what the run gains without it."""

    kind: str
    """slow_rank, degraded_link, failed_link, background."""
    name: str
    """The rank or link for people."""
    saves_s: float
    """Time of the run less its time without this condition; what two cost together counts for neither."""


def causes(
    program: TaskProgram | Plan | BoundSchedule,
    cluster: Cluster | Fabric,
    conditions: Conditions,
    timeline: Timeline,
    **given: Any,
) -> list[Cause]:
    """The conditions of a run, the costliest first. given: what `simulate` was given beside them."""
    network = Network.of(cluster, given.get("routing"), given.get("seed", 0))
    found = []
    for part, key, kind, name in _each(conditions, network):
        without = simulate(program, cluster, conditions=conditions.without(part, key), **{**given, "record": False})
        found.append(Cause(kind, name, timeline.time_s - without.time_s))
    return sorted(found, key=lambda cause: -cause.saves_s)


def _each(conditions: Conditions, network: Network) -> Iterator[tuple[str, Any, str, str]]:
    for rank, speed in conditions.slow_ranks.items():
        yield "slow_ranks", rank, "slow_rank", f"{network.rank_name(rank)} at {speed:g} of its speed"
    for link, part in conditions.degraded_links.items():
        name = network.link_name(find_links(network, link)[0])
        yield "degraded_links", link, "degraded_link", f"{name} at {part:g} of its rate"
    for failure in conditions.failed_links:
        name = network.link_name(find_links(network, failure.link)[0])
        yield "failed_links", failure, "failed_link", f"{name} down"
    for flow in conditions.background:
        name = f"traffic from {network.rank_name(flow.src)} to {network.rank_name(flow.dst)}"
        yield "background", flow, "background", name
