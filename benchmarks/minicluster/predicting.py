"""What a mini cluster should take: start-up and time a byte from one pair of its hosts, all else from the schedule.

The pair sends both ways at once, again and again, as hosts do in most collectives: so a byte carries its share of the frames' heads and of the
acknowledgements that go the other way. With the rate that this gives, the simulator runs each plan on a cluster of one switch, and the closed form adds the
steps of its schedule. Nothing is fitted to what is predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.minicluster.namespaces import MiniCluster
from benchmarks.minicluster.running import Case, run_cases
from busbw.collectives import plan_of
from busbw.collectives.algorithms import LIBRARY
from busbw.collectives.cost import cost
from busbw.collectives.plan import Buffer, Plan, RankBuilder, RankPlan, Span, held_plan
from busbw.collectives.schedule import BoundSchedule
from busbw.hardware import Cluster, find_cluster
from busbw.hardware.fabrics import Fabric, GraphFabric
from busbw.hardware.links import NETWORK, LinkTable
from busbw.simulation import simulate
from busbw.simulation.runtimes import WHOLE

__all__ = ["ALGORITHMS", "PAIR_SIZES", "Line", "Predicted", "calibrated", "cluster_of", "cluster_yaml", "exchanges", "fabric_of", "predicted", "schedules"]  # fmt: skip

_GROUPS = 2
ALGORITHMS = {
    "ring": "ring_all_reduce",
    "tree": "binary_tree_all_reduce",
    "recursive doubling": "recursive_doubling_all_reduce",
    "hierarchical": "hierarchical_all_reduce",
    "all_to_all": "pairwise_all_to_all",
    "all_to_all, at once": "direct_all_to_all",
}
"""What is run, by the library's names. Hierarchical: two groups, or those that there are. All-to-all: one peer after another, and all at once."""
_ROUNDS = 8
"""Messages that follow each other: so many that the first, which finds its link idle, counts little."""
PAIR_SIZES = (128 << 10, 256 << 10, 512 << 10)
"""From which the time a byte is read: what an idle link gives away at once, a burst, is below 1 % of eight of them."""
_SMALL_BYTES = 64


@dataclass(frozen=True, slots=True)
class Line:
    """T = alpha + beta m of a message of m bytes between two hosts, while as much goes the other way. Raises ValueError for what no links take."""

    alpha_s: float
    beta_s_per_byte: float

    def __post_init__(self) -> None:
        if self.alpha_s <= 0 or self.beta_s_per_byte <= 0:
            raise ValueError(f"{self}: both are above 0")

    @property
    def bytes_per_s(self) -> float:
        """Of the user's bytes."""
        return 1 / self.beta_s_per_byte


@dataclass(frozen=True, slots=True)
class Predicted:
    """Both predictions of a case."""

    simulated_s: float
    closed_form_s: float


def schedules(hosts: int, groups: int = _GROUPS) -> Iterator[tuple[str, BoundSchedule]]:
    """The algorithms that so many hosts can run, bound to them; the hierarchical one to equal groups."""
    for name, known_as in ALGORITHMS.items():
        schedule = LIBRARY[known_as]()
        try:
            if len(schedule.axes) == 1:
                yield name, schedule.bind(hosts)
            elif hosts % groups == 0 and hosts > groups:
                yield name, schedule.bind(groups, hosts // groups)
        except ValueError:  # recursive doubling: powers of two
            continue


def exchanges(partners: Sequence[int] = (1, 0), rounds: int = _ROUNDS) -> Plan:
    """Ranks that send their partner their input, `rounds` times, each beginning when it has got the other's; who is its own partner does nothing."""

    def of(rank: int, partner: int) -> RankPlan:
        made = RankBuilder(rank, 1, 1)
        block = made.block()
        if partner != rank:
            out, into = made.send_to(partner), made.receive_from(partner)
            with block.loop(rounds):
                block.send(Span(Buffer.INPUT, 0), out)
                block.receive(into, Span(Buffer.OUTPUT, 0))
        return made.build()

    ranks = [of(rank, partner) for rank, partner in enumerate(partners)]
    return held_plan(ranks, name=f"{rounds} exchanges", collective="custom", chunks=1)


def calibrated(
    cluster: MiniCluster, pair: tuple[int, int] = (0, 1), sizes: Sequence[int] = PAIR_SIZES, repeats: int = 3
) -> Line:
    """Start-up from messages of 64 bytes; time a byte, from what large ones take beyond it, the mean of the sizes."""
    plan = exchanges()
    small, *large = run_cases(cluster, [Case("pair", plan, size, pair, repeats) for size in (_SMALL_BYTES, *sizes)])
    alpha = small.best_s / _ROUNDS
    beta = np.mean([(one.best_s / _ROUNDS - alpha) / one.case.size_bytes for one in large])
    return Line(alpha, float(beta))


def cluster_yaml(hosts: int, line: Line) -> str:
    """The cluster as a file that `busbw design --cluster` and `busbw simulate --cluster` read: a GPU stands for each host's rank."""
    latency_us = line.alpha_s * 1e6 / 4  # two NICs and two cables on each way
    return (
        f"schema: 1\nname: mini-cluster\nnodes: {hosts}\nnode:\n  accelerator: L4-24GB\n"
        f"  nic: {{name: ConnectX-6, rate: {line.bytes_per_s / 1e6:.6f}MB/s}}\n"
        "  pcie:\n    - {gpus: [0], nics: [0], generation: 4, width: 16}\n"
        f"fabric: {{kind: single-switch}}\nset: {{nic.latency: {latency_us:.4f}us, switch.latency: {latency_us:.4f}us}}\n"
        f"hosts: host[0-{hosts - 1}]\n"
    )


def cluster_of(hosts: int, line: Line) -> Cluster:
    """The same as the library has it."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "mini-cluster.yaml"
        file.write_text(cluster_yaml(hosts, line))
        return find_cluster(str(file), None, {})[0]


def fabric_of(cluster: MiniCluster, line: Line) -> Fabric:
    """Groups of hosts on switches of their own, and these on one: what a cluster file's kinds of fabrics don't say."""
    hosts, groups = cluster.hosts, cluster.links.groups
    core = hosts + groups
    cables = [(host, hosts + cluster.group(host), 1.0) for host in range(hosts)]
    cables += [(hosts + g, core, cluster.links.uplink_mbit_per_s / cluster.links.mbit_per_s) for g in range(groups)]
    rows = [
        (*ends, share * line.bytes_per_s, line.alpha_s / 2, NETWORK)
        for a, b, share in cables
        for ends in ((a, b), (b, a))
    ]
    names = (*map(cluster.name, range(hosts)), *(f"leaf{g}" for g in range(groups)), "core")
    return GraphFabric(LinkTable.of(rows), hosts, names)


def predicted(cluster: Cluster | Fabric, line: Line, bound: BoundSchedule, size_bytes: int) -> Predicted:
    """Both predictions: the plan simulated, its messages whole; the steps of the schedule added up."""
    simulated = simulate(plan_of(bound), cluster, size_bytes=size_bytes, runtime=WHOLE)
    return Predicted(simulated.time_s, cost(bound).time_s(size_bytes, line.alpha_s, line.beta_s_per_byte))
