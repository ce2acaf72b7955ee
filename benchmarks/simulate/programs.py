"""The jobs of the figures as task programs, written out, so that they measure the simulator and nothing else."""

from __future__ import annotations

from busbw.hardware.fabrics import FatTree, LinkRates, SingleSwitch
from busbw.simulation import Channel, Loop, Others, Receive, Send, Shift, Stream, TaskProgram

__all__ = ["direct_all_to_all", "leaf_and_spine", "ring_all_reduce", "star"]

RATE = 50e9
LATENCY_S = 1e-6
"""Of a link. A rank's way to another crosses two of a star: what the recorded peers simulated, simulation.md 2.1."""


def star(ranks: int) -> SingleSwitch:
    """One switch: 50 GB/s and 1 us a link."""
    return SingleSwitch(ranks, LinkRates(RATE, RATE, 0.0, LATENCY_S))


def leaf_and_spine(leaves: int) -> FatTree:
    """As many leaves as ranks below each, and as many spines: full bisection; 50 GB/s and 1 us a link."""
    return FatTree(leaves * leaves, (leaves, leaves), (1, leaves), (1, 1), LinkRates(RATE, RATE, 0.0, LATENCY_S))


def ring_all_reduce(ranks: int, size_bytes: int) -> TaskProgram:
    """2 (n - 1) steps; in each a rank sends an n-th to the next and waits for the one before."""
    body = (Loop(2 * (ranks - 1), (Send("next", -(-size_bytes // ranks)), Receive("next"))),)
    return TaskProgram(ranks, (Stream("rank", body),), (Channel("next", "rank", "rank", Shift((ranks,), (1,))),))


def direct_all_to_all(ranks: int, pair_bytes: int) -> TaskProgram:
    """Each rank sends to all others at once."""
    body = (Send("all", pair_bytes), Receive("all"))
    return TaskProgram(ranks, (Stream("rank", body),), (Channel("all", "rank", "rank", Others((ranks,), 0)),))
