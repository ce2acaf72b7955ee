"""The rules, one family a file. A rule is a pure function from facts to findings; its docstring is what the user reads about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from busbw.diagnosis.facts import Facts
from busbw.diagnosis.findings import Finding
from busbw.diagnosis.rules import (
    affinity,
    benchmark,
    bootstrap,
    counters,
    curve_shape,
    desync,
    environment,
    expected_calls,
    fabric_path,
    first_failure,
    gpu,
    gpudirect,
    hangs,
    host_stalls,
    ibgda,
    in_network,
    interface,
    latecomers,
    library_version,
    network_fallback,
    nic_resources,
    nvlink,
    nvshmem,
    path_to_peer,
    pcie,
    peer_to_peer,
    ports,
    ras,
    shared_memory,
    simulated,
    steps,
    straggler,
    topology,
)  # fmt: skip

__all__ = ["RULES", "Rule"]

Rule = Callable[[Facts], Iterator[Finding]]

_FAMILIES = (
    desync, first_failure, hangs, ras, latecomers, straggler, simulated, fabric_path, gpudirect, ports, counters,  # ranks that differ from each other
    gpu, nvlink, host_stalls, shared_memory, interface, bootstrap, nic_resources, path_to_peer, peer_to_peer, ibgda, nvshmem, network_fallback, library_version, in_network,
    environment, pcie, affinity, topology, benchmark, curve_shape, expected_calls, steps,  # absolute expectations
)  # fmt: skip

RULES: tuple[Rule, ...] = tuple(rule for family in _FAMILIES for rule in family.RULES)
"""In order of trust: differences between ranks, then failures, then absolute expectations."""
