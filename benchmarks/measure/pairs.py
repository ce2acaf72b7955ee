"""M2: tables of node pairs with one planted fault, as text, through reading and diagnosis."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.rows import Measured, Options

__all__ = ["culprits_named"]

_NODES, _NODES_SMOKE, _RAILS, _NOISE, _LEFT = 64, 16, 4, 0.03, 0.9
_FAULTS = ("host", "NIC", "rail", "cable", "path")
"""A cable hurts what one NIC sends; a path all pairs of two hosts."""


def culprits_named(options: Options) -> Measured:
    """Share of faults whose culprit is in the first finding; share of clean tables with a finding."""
    trials = 1 if options.smoke else 8
    clean = 1 if options.smoke else 20
    nodes = _NODES_SMOKE if options.smoke else _NODES
    named = [_first(fault, trial, nodes) for fault in _FAULTS for trial in range(trials)]
    alarms = [bool(_findings("", 1000 + trial, nodes)[0]) for trial in range(clean)]
    return Measured([float(np.mean(named)), float(np.mean(alarms))], note=f"{len(named)} faults, {clean} clean tables")


def _first(fault: str, seed: int, nodes: int) -> bool:
    summaries, words = _findings(fault, seed, nodes)
    return bool(summaries) and summaries[0].startswith(words)


def _findings(fault: str, seed: int, nodes: int) -> tuple[list[str], str]:
    """What `busbw explain` finds, best first, and how the right finding begins."""
    from busbw.diagnosis import explain
    from busbw.readers import find_artefacts

    random = np.random.default_rng(seed)
    host, rail = int(random.integers(nodes)), int(random.integers(_RAILS))
    other = (host + 1 + int(random.integers(nodes - 1))) % nodes
    hurt = {
        "host": lambda a, b, r: host in (a, b),
        "NIC": lambda a, b, r: host in (a, b) and r == rail,
        "rail": lambda a, b, r: r == rail,
        "cable": lambda a, b, r: a == host and r == rail,
        "path": lambda a, b, r: {a, b} == {host, other},
        "": lambda a, b, r: False,
    }[fault]
    lines = [
        f"node{a:02d}:mlx5_{r} node{b:02d}:mlx5_{r} {48 * np.exp(_NOISE * random.standard_normal()) * (_LEFT if hurt(a, b, r) else 1):.2f}"
        for r in range(_RAILS)
        for a in range(nodes)
        for b in range(nodes)
        if a != b
    ]
    words = {
        "host": f"node{host:02d} is",
        "NIC": f"NIC node{host:02d}:mlx5_{rail} is",
        "rail": f"rail mlx5_{rail} is",
        "cable": f"what node{host:02d}:mlx5_{rail} sends is",
        "path": f"the path node{min(host, other):02d} - node{max(host, other):02d} is",
        "": "",
    }[fault]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pairs.txt").write_text("\n".join(lines) + "\n")
        artefacts, _ = find_artefacts([folder])
        return [finding.summary for finding in explain(artefacts).diagnosis.findings], words
