"""Conditions: what is not as it should be while a program runs. Slow ranks, links degraded or down, others' traffic, noise.

All are input: the same conditions and seed give the same times. Noise comes from a counter-based generator (Philox), so a
rank's share of it does not depend on how many ranks there are before it is drawn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from busbw.hardware.cluster import Cluster
from busbw.hardware.fabrics.rail_optimised import RailOptimised
from busbw.hardware.links import FloatArray, IntArray
from busbw.simulation.network import Network
from busbw.simulation.peers import Table
from busbw.simulation.program import Channel, Delay, Send, Stream, TaskProgram

__all__ = ["SLOWNESS_UNIT", "Background", "Conditions", "LinkFailure", "find_links"]

SLOWNESS_UNIT = 1 << 20
"""Of cpp/include/busbw/sim/program.hpp."""
_MOST_S = 9.2e6
"""106 days: where the core's clock of picoseconds ends."""
_MOST_SPEED = 1e5
"""Times full speed, and its inverse the least: beyond, speeds in parts of 2^20 are no longer near what was asked."""


@dataclass(frozen=True, slots=True)
class LinkFailure:
    """A cable that is down, in both directions. Raises ValueError for times out of order."""

    link: str | int
    """Its name, such as leaf0 -> spine2, or the number of one of its directions."""
    at_s: float = 0.0
    reroute_s: float | None = 0.0
    """How long after that routes go round it; None: they never do. Subnet managers and BGP take milliseconds to seconds."""
    until_s: float | None = None
    """When it is up again, for a flap; routes that went round it stay."""

    def __post_init__(self) -> None:
        times = (self.at_s, self.reroute_s or 0.0, self.until_s or 0.0)
        if not all(0 <= time_s <= _MOST_S for time_s in times):
            raise ValueError(f"link {self.link}: down at {self.at_s} s: times are 0 to {_MOST_S:g} s")
        if self.until_s is not None and self.until_s <= self.at_s:
            raise ValueError(f"link {self.link}: down at {self.at_s} s, up at {self.until_s} s: times must follow")


@dataclass(frozen=True, slots=True)
class Background:
    """Traffic of others between two ranks' places: as much as its links leave it, up to a rate. Nobody waits for it."""

    src: int
    dst: int
    rate_bytes_per_s: float
    begin_s: float = 0.0
    end_s: float = 3600.0

    def __post_init__(self) -> None:
        if self.rate_bytes_per_s <= 0 or not 0 <= self.begin_s < self.end_s:
            raise ValueError("background traffic needs a rate and an end after its begin")


@dataclass(frozen=True, slots=True)
class Conditions:
    """All that differs from a healthy, quiet cluster."""

    slow_ranks: Mapping[int, float] = field(default_factory=dict)
    """Speed over full speed, by rank: it computes so much slower, and links that begin or end at it carry so much less."""
    degraded_links: Mapping[str | int, float] = field(default_factory=dict)
    """Rate over full rate, by name or number of a cable; both directions."""
    failed_links: tuple[LinkFailure, ...] = ()
    background: tuple[Background, ...] = ()
    speed_spread: float = 0.0
    """Standard deviation of ranks' speeds around 1, drawn once a run, with what slow_ranks do, but no link above its rate: 0.09 is what was seen at 64k GPUs (arXiv 2510.15596)."""
    start_spread_s: float = 0.0
    """Standard deviation of how late ranks come; none comes early."""
    seed: int = 0

    def __post_init__(self) -> None:
        for what, parts in (("rank", self.slow_ranks), ("link", self.degraded_links)):
            for name, part in parts.items():
                if not 0 < part < math.inf:
                    raise ValueError(f"{what} {name}: {part} of its speed; write a number above 0, or fail the link")
                if not 1 / _MOST_SPEED <= part <= _MOST_SPEED:
                    raise ValueError(
                        f"{what} {name}: {part} of its speed; {1 / _MOST_SPEED:g} to {_MOST_SPEED:g} are simulated"
                    )
        if not (0 <= self.speed_spread < math.inf and 0 <= self.start_spread_s < math.inf):
            raise ValueError(f"spreads of {self.speed_spread} and {self.start_spread_s} s: write numbers from 0 on")

    @property
    def none(self) -> bool:
        """Whether all is well."""
        return self == Conditions(seed=self.seed)

    def without(self, part: str, name: object) -> Conditions:
        """The same but for one slow rank, degraded link, failed link, or flow of background traffic."""
        kept: dict[str, Any] = {}
        if part in ("slow_ranks", "degraded_links"):
            kept[part] = {key: value for key, value in getattr(self, part).items() if key != name}
        else:
            kept[part] = tuple(one for one in getattr(self, part) if one is not name)
        return replace(self, **kept)

    def slowness(self, ranks: int) -> IntArray | None:
        """(N,) time of computing over that at full speed, in parts of 2^20; None where nothing is slow."""
        if not self.slow_ranks and not self.speed_spread:
            return None
        speed = self.drawn(ranks)
        for rank, part in self.slow_ranks.items():
            if not 0 <= rank < ranks:
                raise ValueError(f"rank {rank} is slow, but there are only {ranks} ranks")
            speed[rank] *= part
        return np.rint(SLOWNESS_UNIT / speed).astype(np.int64)

    def drawn(self, ranks: int) -> FloatArray:
        """(N,) speeds over full speed that this seed draws; 1 where speeds have no spread."""
        if not self.speed_spread:
            return np.ones(ranks)
        return np.maximum(0.05, 1 + self.speed_spread * _noise(self.seed, 0, ranks))

    def applied_to(self, network: Network) -> Network:
        """The network from the start on: slow links, and routes round links that are down from the start and stay so."""
        slow: dict[int, float] = {}
        for name, part in self.degraded_links.items():
            for link in find_links(network, name):
                slow[link] = slow.get(link, 1.0) * part
        for rank, part in self.slow_ranks.items():
            for link in _links_at(network, rank):
                slow[link] = slow.get(link, 1.0) * part
        drawn = self.drawn(network.ranks)
        for rank in np.flatnonzero(drawn < 1).tolist():  # a link carries no more than its rate
            for link in _links_at(network, rank):
                slow[link] = slow.get(link, 1.0) * float(drawn[rank])
        dead = {
            link for failure in self.failed_links if _from_start(failure) for link in find_links(network, failure.link)
        }
        return replace(network, slow=slow, dead=frozenset(dead))

    def faulty_gpus(self, network: Network) -> frozenset[int] | None:
        """Places of GPUs in their nodes that a fault touches anywhere, rails of links included; none where all is well.

        None: noise, others' traffic, or a fault on a link that serves several rails, or inside a node.
        """
        if self.none:
            return frozenset()
        place, tree = network.place, network.tree
        if self.speed_spread or self.start_spread_s or self.background or not isinstance(place, Cluster):
            return None
        found = {rank % place.node.gpus for rank in self.slow_ranks}
        names = [*self.degraded_links, *(failure.link for failure in self.failed_links)]
        for name in names:
            link = find_links(network, name)[0] - network.first_fabric_link
            if link < 0 or tree is None or not isinstance(tree, RailOptimised) or tree.levels < 2:
                return None
            low = min(int(end[0]) for end in tree.link_ends(np.array([link])))
            level = int(tree.level(np.array([low]))[0])
            if level > 1:
                return None
            slot_or_leaf = low // tree.down[0] if level == 0 else low - tree.slots
            found.add(slot_or_leaf % place.node.gpus)
        return frozenset(found)

    def later(self) -> tuple[LinkFailure, ...]:
        """Failures that come while the program runs."""
        return tuple(failure for failure in self.failed_links if not _from_start(failure))

    def added_to(self, program: TaskProgram) -> TaskProgram:
        """The program with late starts and the traffic of others."""
        streams, channels = list(program.streams), list(program.channels)
        if self.start_spread_s:
            late = np.abs(self.start_spread_s * _noise(self.seed, 1, program.ranks))
            streams = [
                replace(s, start_s=late if s.ranks is None else late[s.ranks]) if s.start_s is None else s
                for s in streams
            ]
        for number, flow in enumerate(self.background):
            for rank in (flow.src, flow.dst):
                if not 0 <= rank < program.ranks:
                    raise ValueError(f"background traffic of rank {rank}, but there are only {program.ranks} ranks")
            name = f"background{number}"
            size = round(flow.rate_bytes_per_s * (flow.end_s - flow.begin_s))
            at = np.array([flow.src])
            streams.append(Stream(name, (Delay(flow.begin_s), Send(name, size)), at, background=True))
            streams.append(Stream(f"{name}.sink", (), np.array([flow.dst]), background=True))
            channels.append(
                Channel(
                    name,
                    name,
                    f"{name}.sink",
                    Table(at, np.array([[flow.dst]])),
                    rate_bytes_per_s=flow.rate_bytes_per_s,
                )
            )
        return replace(program, streams=tuple(streams), channels=tuple(channels))


def _from_start(failure: LinkFailure) -> bool:
    return failure.at_s == 0 and failure.until_s is None and failure.reroute_s == 0


def _noise(seed: int, what: int, ranks: int) -> np.typing.NDArray[np.float64]:
    """(N,) standard normal."""
    return np.random.Generator(np.random.Philox(key=[seed, what])).standard_normal(ranks)


def _links_at(network: Network, rank: int) -> list[int]:
    """Links inside a node that begin or end at a rank's GPU; on a bare fabric those of its NIC port."""
    place = network.place
    if isinstance(place, Cluster):
        node, gpu = divmod(rank, place.node.gpus)
        graph = place.node.graph
        vertex = graph.vertex("gpu", gpu)
        local = np.flatnonzero((graph.links.src == vertex) | (graph.links.dst == vertex))
        return [int(link) + node * len(graph.links) for link in local]
    slot = int(place.slot(np.array([rank]))[0])
    links = np.arange(place.links)
    one, other = place.link_ends(links)
    return [int(link) for link in links[(one == slot) | (other == slot)]]


def find_links(network: Network, link: str | int) -> tuple[int, int]:
    """Both directions of a cable of the fabric, by the number of one, or a name: leaf0 -> spine2, leaf0-spine2.

    Raises ValueError for what is not there, with names that are.
    """
    if isinstance(link, int) or re.fullmatch(r"\d+", link):
        number = int(link)
        if not 0 <= number < network.links:
            raise ValueError(f"link {number} is not there; links are numbered from 0 to {network.links - 1}")
        first = network.first_fabric_link
        if number < first:
            return (number, number ^ 1)
        return (number, first + ((number - first) ^ 1))
    fabric = network.fabric
    if fabric is None:
        raise ValueError(f"link {link!r}: there is no fabric; give the number of a link")
    ends = re.fullmatch(r"\s*([\w.]+)\s*(?:->|-|<->|:)\s*([\w.]+)\s*", link)
    if ends is None:
        raise ValueError(f"link {link!r}: write two ends, such as leaf0 -> spine2")
    wanted = dict.fromkeys(ends.groups(), -1)
    for vertex in range(fabric.vertices - 1, -1, -1):
        name = fabric.vertex_name(vertex)
        if name in wanted:
            wanted[name] = vertex
            if min(wanted.values()) >= 0:
                break
    links = np.arange(fabric.links)
    one, other = fabric.link_ends(links)
    for name, vertex in wanted.items():
        if vertex < 0:
            example = network.link_name(network.links - 1)
            raise ValueError(f"link {link!r}: no {name} in this fabric; a link is called {example}, for example")
    a, b = (wanted[name] for name in ends.groups())
    found = links[(one == a) & (other == b)]
    if not len(found):
        near = links[one == a][:4]
        names = ", ".join(network.link_name(int(n) + network.first_fabric_link) for n in near)
        raise ValueError(f"link {link!r} is not there; {ends.group(1)} has {names}")
    first = int(found[0])
    return network.first_fabric_link + first, network.first_fabric_link + (first ^ 1)
