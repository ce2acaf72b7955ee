"""Hierarchical all_reduce at scale, healthy and with two faults, against times derived from the same figures without the simulator."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np

from benchmarks.rows import Measured, NotMeasurableError, Options

__all__ = ["faulty_1024", "hierarchical_16384"]

_GIB = 1 << 30
_GPUS = 8
_NVLINK, _NIC = 450e9, 50e9  # the catalogue's, one direction
_INSIDE_S = 0.6e-6  # GPU to NVSwitch to GPU
_NEAR_S, _UP_S = 2.61e-6, 0.31e-6  # over one leaf; a level more


def _exchange_s(part: float = 1.0) -> float:
    """7 messages of an eighth out of one GPU, at a part of its NVLink rate."""
    return 7 * (_GIB / _GPUS) / (_NVLINK * part) + _INSIDE_S


_LARGE = """
import re, time
from pathlib import Path
from busbw.collectives.algorithms import LIBRARY
from busbw.hardware import find_cluster
from busbw.simulation import simulate
nodes = int({nodes})
cluster, _ = find_cluster("dgx-h100", nodes, {{"switch.ports": "128"}})
cluster.fabric
begun = time.process_time()
bound = LIBRARY["hierarchical_all_reduce"]().bind(nodes, 8)
run = simulate(bound, cluster, size_bytes=1 << 30, record=False)
took = time.process_time() - begun
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1e3
print(run.time_s, took, peak, run.folded, run.messages_run, *cluster.fabric.down)
"""


def hierarchical_16384(options: Options) -> Measured:
    """S6: 128-port switches, leaves of 64 nodes on 8 rails, pods of 8 leaves a rail."""
    nodes = 1024 if options.smoke else 16_384
    ran = subprocess.run(
        [sys.executable, "-c", _LARGE.format(nodes=nodes)], capture_output=True, text=True, check=False, timeout=300
    )
    if ran.returncode:
        raise NotMeasurableError(ran.stderr.strip().splitlines()[-1])
    time_s, took, peak, folded, messages, *down = map(float, ran.stdout.split())
    leaf = int(down[0])
    pod = leaf * int(down[1]) // _GPUS
    hops = np.full(nodes, _NEAR_S)
    node = np.arange(nodes)
    hops[(node + 1) % leaf == 0] += _UP_S
    hops[(node + 1) % pod == 0] += _UP_S if len(down) > 2 else 0.0
    # The slowest rank's 2 (N - 1) hops are twice round the ring but for the two shortest.
    ring = 2 * (nodes - 1) * (_GIB // _GPUS // nodes) / _NIC + 2 * hops.sum() - 2 * hops.min()
    derived = 2 * _exchange_s() + ring
    note = f"{time_s * 1e3:.3f} ms, derived {derived * 1e3:.3f}; one rank stands for {folded:.0f}, {messages:.0f} messages run"
    return Measured([abs(time_s / derived - 1), took, peak], note=note)


_SLOW_RANK, _SPEED = 4802, 0.8
_DOWN, _AT_S, _REROUTE_S = "leaf2 -> spine0.0", 4e-3, 2e-3


def faulty_1024(options: Options) -> Measured:
    """S7: rail 2 has both the slow GPU and the leaf's uplink; the derived time is a recurrence over nodes and steps."""
    from busbw.collectives.algorithms import LIBRARY
    from busbw.hardware import find_cluster
    from busbw.simulation import Conditions, LinkFailure, causes, simulate

    nodes = 1024
    cluster, _ = find_cluster("dgx-h100", nodes)
    _ = cluster.fabric
    bound = LIBRARY["hierarchical_all_reduce"]().bind(nodes, _GPUS)
    conditions = Conditions({_SLOW_RANK: _SPEED}, failed_links=(LinkFailure(_DOWN, _AT_S, _REROUTE_S),))
    given = {"size_bytes": _GIB, "record": False}
    begun = time.process_time()
    run = simulate(bound, cluster, conditions=conditions, **given)
    took = time.process_time() - begun
    found = causes(bound, cluster, conditions, run, size_bytes=_GIB)
    whole = time.process_time() - begun
    derived = _derived_1024(nodes)
    named = {cause.name for cause in found if cause.saves_s > 0}
    both = named == {f"rank {_SLOW_RANK} (node600 gpu2) at {_SPEED} of its speed", f"{_DOWN} down"}
    note = (
        f"{run.time_s * 1e3:.4f} ms, derived {derived * 1e3:.4f}; {run.messages_run} messages; with both causes named {whole:.1f} s; "
        + "; ".join(f"{cause.name}: {cause.saves_s * 1e3:.3f} ms" for cause in found)
    )
    return Measured([abs(run.time_s / derived - 1), float(both), took], note=note)


def _derived_1024(nodes: int) -> float:
    """A message leaves when the one before has left and the one from behind has come; leaves of 32 nodes, one hop a leaf goes up."""
    chunk_s = _GIB // _GPUS // nodes / _NIC
    slow_node = _SLOW_RANK // _GPUS
    node = np.arange(nodes)
    hop = np.full(nodes, _NEAR_S)
    hop[(node + 1) % 32 == 0] += _UP_S
    hop[(node + 1) % 128 == 0] += _UP_S  # pods of 32 leaves, 8 rails: 4 groups of 32 nodes
    start = np.full(nodes, _exchange_s())
    start[slow_node] = _exchange_s(_SPEED)
    hit = [
        31,
        nodes - 1,
    ]  # the cable joins leaf 2 to the spine that both ways between nodes 31, 32 and 1023, 0 take on rail 2
    begin, end = _AT_S, _AT_S + _REROUTE_S
    for _ in range(2 * (nodes - 1)):
        left = start + chunk_s
        for one in hit:
            if start[one] < begin < left[one]:
                left[one] += _REROUTE_S
            elif begin <= start[one] < end:
                left[one] = end + chunk_s
        arrived = left + hop
        start = np.maximum(left, np.roll(arrived, 1))
    last = start + _exchange_s()
    # Who waits for the slow GPU's shards, or it for theirs; its own links carry 0.8.
    last[slow_node] = start[slow_node] + _exchange_s(_SPEED)
    return float(last.max())
