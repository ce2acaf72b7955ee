"""D2 and D3: forests on 1,024 GPUs, whole and with failed links."""

from __future__ import annotations

import time
from math import log2

from benchmarks.design.bounds import failed_links, rail_cluster
from benchmarks.rows import Benchmark, Measured, Options

__all__ = ["BENCHMARKS"]

_PEERS = {"ForestColl, 64 GPUs: s": 115.0, "its depth": 32.0}
"""Measured; ForestColl 3c13aae8, Python, 8 nodes of 8 GPUs on rails."""


def _whole(options: Options) -> Measured:
    """D2: symmetries, bound, trees and the exact count of loads; making the graph is not counted."""
    from busbw.synthesis import pack_forest

    nodes = 16 if options.smoke else 128
    graph = rail_cluster(nodes)
    begun = time.perf_counter()
    made = pack_forest(graph)
    took = time.perf_counter() - begun
    note = f"{nodes} nodes; {made.trees_per_root} tree a root, {made.peers} peers a GPU; depth less log2(nodes) last"
    return Measured([float(made.quality), took, made.depth - log2(nodes)], _PEERS, note)


def _failed(options: Options) -> Measured:
    """D3: three draws of 1 % of the network's cables; the worst of each part."""
    from busbw.synthesis import pack_forest

    graph = rail_cluster(16 if options.smoke else 128)
    quality, took, depth = [], [], []
    for seed in range(1, 2 if options.smoke else 4):
        damaged = failed_links(graph, 0.01, seed)
        begun = time.perf_counter()
        made = pack_forest(damaged)
        took.append(time.perf_counter() - begun)
        quality.append(float(made.quality))
        depth.append(made.depth)
    return Measured([min(quality), max(took)], _PEERS, f"worst of {len(took)} draws; depth {max(depth)}")


BENCHMARKS = (
    Benchmark("D2", "all_gather at 1,024 GPUs rail-optimised: share of the bound; time; depth beyond log2(nodes)", "share; s; steps", (">=;<=;<=", (0.99, 5.0, 2.0)), _whole, sized=True),
    Benchmark("D3", "the same with 1 % of network links failed: share of the bound; time", "share; s", (">=;<=", (0.99, 60.0)), _failed, sized=True),
)  # fmt: skip
