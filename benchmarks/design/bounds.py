"""D1 and D6: bounds (and, of all_to_all, a schedule) on clusters of 1,024 and 16,384 GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.rows import Benchmark, Measured, Options

if TYPE_CHECKING:
    from busbw.collectives.bounds import CapacityGraph

__all__ = ["BENCHMARKS", "failed_links", "rail_cluster"]

_PER_GB = 10**9


def rail_cluster(nodes: int) -> CapacityGraph:
    """DGX H100 nodes on a rail-optimised fabric of leaves and spines of 64 ports, every switch a vertex."""
    from busbw.collectives.bounds import CapacityGraph
    from busbw.hardware import find_cluster

    return CapacityGraph.of_cluster(find_cluster("dgx-h100", nodes)[0])


def failed_links(graph: CapacityGraph, share: float, seed: int) -> CapacityGraph:
    """The graph with a share of its network cables gone, both directions: NICs to leaves, and leaves to spines."""
    cables = graph.cables()
    scale_up = graph.capacity.max()
    network = cables[graph.capacity[cables[:, 0]] < scale_up]
    gone = np.random.default_rng(seed).choice(len(network), round(share * len(network)), replace=False)
    return graph.without(network[gone].ravel())


def _least_time(work: Callable[[], object], trials: int = 3) -> float:
    took = []
    for _ in range(trials):
        begun = time.perf_counter()
        work()
        took.append(time.perf_counter() - begun)
    return min(took)


def _throughput(options: Options) -> Measured:
    """D1: symmetries are searched for each time; making the graph is not counted."""
    from busbw.collectives.bounds import throughput_bound

    small, large = (16, 64) if options.smoke else (128, 2048)
    whole = rail_cluster(small)
    failed = failed_links(whole, 0.01, seed=1)
    largest = rail_cluster(large)
    for graph, nodes in ((whole, small), (largest, large)):
        wanted = Fraction(nodes - 1, 50 * _PER_GB)  # the cut round one node of 8 NICs of 50 GB/s
        if throughput_bound(graph).inverse_rate != wanted:
            raise ValueError(f"{nodes} nodes: the bound is not {wanted}")
    inverse = throughput_bound(failed).inverse_rate * _PER_GB
    took = [_least_time(lambda graph=graph: throughput_bound(graph)) for graph in (whole, failed, largest)]
    return Measured(took, note=f"exact; 1/x* with failed links {inverse} s/GB")


def _exchange(options: Options) -> Measured:
    """D6. Bound: symmetries, linear program and exact certificate. Schedule, in CPU time: ways of all pairs, their loads, the Schedule."""
    from busbw.collectives.bounds import all_to_all_bound
    from busbw.synthesis import route_exchange

    graph = rail_cluster(16 if options.smoke else 128)
    bound = all_to_all_bound(graph)
    if bound.inverse_rate * _PER_GB != Fraction(graph.gpus - 8, 50) or not bound.is_tight:
        raise ValueError("the bound is not that of the cut round a node")
    took = _least_time(lambda: all_to_all_bound(graph))
    begun = time.process_time()
    made = route_exchange(graph)
    made.schedule()
    note = f"bound exact, certified by prices; schedule at {float(made.quality):.4f} of it"
    return Measured([took, time.process_time() - begun], note=note)


BENCHMARKS = (
    Benchmark("D1", "throughput bound: 1,024 GPUs rail-optimised; with 1 % of network links failed; 16,384 GPUs", "s", ("<=", (0.05, 5.0, 1.0)), _throughput, sized=True),
    Benchmark("D6", "all_to_all at 1,024 GPUs: bound; schedule", "s", ("<=", (0.5, 10.0)), _exchange, sized=True),
)  # fmt: skip
