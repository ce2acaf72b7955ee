"""How each algorithm moves the data: steps, bytes on the links of a GPU, bytes on the network of a domain.

Own derivations from the algorithms; where NCCL's order matters, after NVIDIA/nccl 2.30.7 (facts named beside each).
S is `size_bytes` (the larger of a rank's buffers), N ranks, D domains of n ranks each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from busbw.prediction.situation import Situation

__all__ = ["ALGORITHMS", "PROTOCOLS", "Movement", "movements"]

ALGORITHMS = ("Ring", "Tree", "NVLS", "NVLSTree", "CollNetChain", "PAT", "P2P", "AllPairs")
"""Those of NCCL; sends; and of RCCL the kernels in which every GPU of a node sends its parts straight to every other."""
PROTOCOLS = ("LL", "LL128", "Simple")
_P2P_PROTOCOLS = ("LL", "Simple")


@dataclass(frozen=True, slots=True)
class Movement:
    """One way to do a collective. Wire figures are multiples of size_bytes, on the busiest resource of the kind."""

    algorithm: str
    protocol: str
    intra_steps: float
    """Dependent hops inside a domain."""
    inter_steps: float
    """Dependent hops between domains."""
    intra_wire: float
    """Bytes through the links of the busiest GPU, one direction, over S."""
    inter_wire: float
    """Bytes through all NICs of a domain, one direction, over S."""
    intra_rate: str
    """Which efficiency the links reach: ring, nvls or p2p."""
    links: float = 1.0
    """Share of the links that the pattern can keep busy."""
    copied: float = 0.0
    """Bytes that a GPU copies or reduces at home besides, over S."""
    messages: float = 0.0
    """Sends, or receives, that the busiest GPU begins one after another; 0 where kernels pass data on from rank to rank."""


def movements(collective: str, where: Situation) -> list[Movement]:
    """What can do a collective there; empty for what is not modelled. One rank moves nothing: a copy, at p2p rate."""
    ranks, domains, inside = where.ranks, where.domains, where.domain_ranks
    if collective == "all_reduce":
        found = _all_reduce(where)
    elif collective in ("all_gather", "reduce_scatter"):
        found = _gather(where)
    elif collective in ("broadcast", "reduce"):
        # A chain through all ranks, pipelined: every link carries the whole once.
        found = [
            Movement("Ring", protocol, ranks - domains, domains - 1, 1.0, 1.0 if domains > 1 else 0.0, "ring", _ring_links(where))
            for protocol in PROTOCOLS
        ]  # fmt: skip
    elif collective in ("all_to_all", "all_to_all_v"):
        # Every GPU sends 1/N of S to each other rank; a domain sends what its n GPUs have for ranks elsewhere.
        away = inside * (ranks - inside) / ranks
        found = [
            Movement(
                "P2P",
                protocol,
                1.0,
                float(domains > 1),
                (inside - 1) / ranks,
                away,
                "p2p",
                copied=1 / ranks,
                messages=ranks - 1.0,
            )
            for protocol in _P2P_PROTOCOLS
        ]
    elif collective == "send_recv":
        # nccl-tests' ring of sends: one GPU of a domain sends to the next domain, over one NIC.
        across = float(max(1, min(where.nics, inside))) if domains > 1 else 0.0
        found = [
            Movement(
                "P2P",
                protocol,
                1.0,
                float(domains > 1),
                float(inside > 1),
                across,
                "p2p",
                _pair_links(where),
                messages=1.0,
            )
            for protocol in _P2P_PROTOCOLS
        ]
    elif collective in ("gather", "scatter"):
        # The root's links carry everything but its own part; of it, what comes from elsewhere passes its domain's NICs.
        away = (ranks - inside) / ranks
        found = [
            Movement("P2P", protocol, 1.0, float(domains > 1), (ranks - 1) / ranks, away, "p2p", messages=ranks - 1.0)
            for protocol in _P2P_PROTOCOLS
        ]
    else:
        return []
    return found


def _crossings(where: Situation) -> float:
    """How often a part that goes round a ring passes from domain to domain.

    It takes N-1 of N hops, so all D crossings where the hop that it spares may be inside a domain.
    """
    return 0.0 if where.domains == 1 else where.domains - (where.domain_ranks == 1)


def _ring_links(where: Situation) -> float:
    """Share of a mesh's links that rings use: n-1 of n paths through n GPUs in one domain, all where a path may end.

    A complete directed graph of n vertices has n(n-1) arcs. Rings that close use each GPU's n-1 links; open paths, which
    leave through a NIC, number n: each GPU is n times passed through, over n-1 links out of n. Relative to the links
    of a GPU the rate of n paths is n/(n-1) times that of n-1 rings.
    """
    if where.shape != "mesh" or where.domain_ranks < 3:
        return 1.0
    return where.domain_ranks / (where.domain_ranks - 1) if where.domains > 1 else 1.0


def _pair_links(where: Situation) -> float:
    """In a mesh two GPUs share one link of the n-1."""
    return 1.0 / 7.0 if where.shape == "mesh" and where.domain_ranks > 1 else 1.0


def _all_reduce(where: Situation) -> list[Movement]:
    ranks, domains, inside = where.ranks, where.domains, where.domain_ranks
    several = domains > 1
    depth = math.floor(math.log2(domains)) if several else 0
    ring = 2 * (ranks - 1) / ranks
    hops = 2.0 * (ranks - 1)
    crossings = 2.0 * _crossings(where)
    # Double trees: in two domains each is the root of half the data, so S passes each way; deeper, an inner domain of one
    # tree takes two children's halves and passes one up and two down: 2 S (nccl-formats.md, section 1).
    tree_wire = 0.0 if not several else 1.0 if domains == 2 else 2.0
    # Up and down a chain of n GPUs that begins at another GPU in each channel: 2 S but for the n-th part at the ends.
    chain = 2 * (inside - 1) / inside
    # Each GPU reads its n-th part of the sum, for which all send S, and multicasts it (simulation.md, section 3.1).
    multicast = 1 + 1 / inside
    found = []
    for protocol in PROTOCOLS:
        found.append(
            Movement(
                "Ring",
                protocol,
                hops - crossings,
                crossings,
                ring,
                ring if several else 0.0,
                "ring",
                _ring_links(where),
                1 / ranks,
            )
        )
        found.append(
            Movement(
                "Tree",
                protocol,
                2.0 * (inside - 1),
                2.0 * depth,
                chain,
                tree_wire,
                "ring",
                _ring_links(where),
                1 / inside,
            )
        )
    if where.library == "RCCL" and where.shape == "mesh" and not several and inside > 2:
        # Its part of every other's data to each GPU, then the sum to all: each link carries an n-th of S twice.
        found.append(Movement("AllPairs", "LL", 2.0, 0.0, chain, 0.0, "ring", 1.0, 1 / inside))
    if where.nvls and not several:
        found.append(Movement("NVLS", "Simple", 1.0, 0.0, multicast, 0.0, "nvls"))
    if where.nvls and several:
        found.append(Movement("NVLSTree", "Simple", 1.0, 2.0 * depth, multicast, tree_wire, "nvls"))
    if where.sharp and several:
        # Chains of GPUs up to a head and down again; the network's switches reduce, so each NIC sees its part once.
        found.append(Movement("CollNetChain", "Simple", 2.0 * (inside - 1), 2.0, chain, 1.0, "ring", 1.0, 1 / inside))
    return found


def _gather(where: Situation) -> list[Movement]:
    ranks, domains = where.ranks, where.domains
    wire = (ranks - 1) / ranks
    across = wire if domains > 1 else 0.0
    found = [
        Movement(
            "Ring",
            protocol,
            ranks - 1.0 - _crossings(where),
            _crossings(where),
            wire,
            across,
            "ring",
            _ring_links(where),
            1 / ranks,
        )
        for protocol in PROTOCOLS
    ]
    if where.nvls and domains == 1:
        # Gathering by multicast loads the receiving side as a ring does.
        found.append(Movement("NVLS", "Simple", 1.0, 0.0, wire, 0.0, "ring"))
    if where.domain_ranks == 1 and domains > 1:
        found.append(Movement("PAT", "Simple", 0.0, float(math.ceil(math.log2(domains))), 0.0, across, "ring"))
    return found
