"""Time of a collective from how its data moves: launch, steps, wire, and what filling the pipeline adds.

    T = launch + A + W + fill
    A = steps inside x step + steps between x network step, each times a factor of the protocol
    W = (Wi^8 + Wn^8)^(1/8); Wi = bytes over what links reach, Wn = bytes over what NICs reach; the slower one counts

What filling adds, by how the algorithm cuts its data:
- NVLS: rounds of r bytes, one chunk a channel and head: S/r x round more inside, and fill = depth x W r/S.
- Trees: (1 / (2 f sqrt(A W)) + 1 / (m A))^-1; rings and sends the same with B, 8 steps (a channel's slots), for A.
- LL adds nothing, but its step takes longer the fuller a channel is.

A pipeline of A seconds depth and W seconds of wire takes (sqrt(A) + sqrt(W))^2 = A + W + 2 sqrt(A W) with chunks of the
best size (collective-theory.md, section 3). Chunks do not grow for ever, so what filling adds ends at m A.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from busbw.prediction.movement import ALGORITHMS, PROTOCOLS, Movement
from busbw.prediction.situation import Situation

__all__ = ["Moves", "Parts", "moves_of", "parts"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_RATES = ("ring", "nvls", "p2p")
_SHARPNESS = 8
"""How abruptly the slower of links and NICs takes over: a guess; within 9 % of the slower one where both are equal."""
_SLOTS = 8
"""Chunks of a channel that may be under way. Source: NVIDIA/nccl, src/include/device.h (NCCL_STEPS)."""
_FULL_BYTES = 4096
"""Data of a channel in LL at which NCCL opens the next: 512 threads of 8 bytes. Source: nccl-formats.md, section 1.7."""
_P2P_LL_BYTES = 32768
"""To a peer in LL at most: 2 channels of NCCL_P2P_LL_THRESHOLD, 16384 bytes. Source: nccl-formats.md, section 1.7."""
_NVLS_CHUNKS = ((64, 131072), (8, 65536), (2, 32768), (0, 16384))
_NVLS_TREE_CHUNKS = ((4, 131072), (1, 65536), (0, 32768))
"""A chunk is used from so many rounds of it on. Source: nccl-formats.md, section 1.7."""
_MOST_HEADS = 32
"""GPUs that head an NVLS channel. Source: NVIDIA/nccl 2.30.7, src/include/device.h (NCCL_MAX_NVLS_ARITY)."""
_SOCKETS_BYTES_PER_S = 4e9
"""What TCP of a node carries, however fast its NICs: the CPU copies. Source: NVIDIA/nccl#450,
4 to 6 GB/s at 100 Gb/s with streams and threads tuned; the lower end without."""
_UNDER_A_SWITCH = 2
"""GPUs that share a PCIe switch in most servers; what more of them send each other passes CPUs."""
_REFERENCE_DOMAIN = 8
"""GPUs of the domain that nvls_depth is said of: an HGX board."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Movements at sizes, column by column; E entries, each a movement at a size in a situation."""

    size_bytes: FloatArray  # (E,)
    algorithm: IntArray  # (E,) place in ALGORITHMS
    protocol: IntArray  # (E,) place in PROTOCOLS
    rate: IntArray  # (E,) place in _RATES
    intra_steps: FloatArray  # (E,)
    inter_steps: FloatArray  # (E,)
    intra_line_s: FloatArray  # (E,) at line rate
    inter_line_s: FloatArray  # (E,) at line rate
    ranks: FloatArray  # (E,)
    domains: FloatArray  # (E,)
    copied_line_s: FloatArray  # (E,) of what stays at home, as if it took a link
    fullness: FloatArray  # (E,) of a channel in LL, 0 to 1
    through_host: FloatArray  # (E,) 1 where PCIe between more than two GPUs carries the data, else 0
    round_bytes: FloatArray  # (E,) that NVLS moves at once
    messages: FloatArray  # (E,) of the busiest GPU, one after another

    def __len__(self) -> int:
        return len(self.size_bytes)

    def at(self, entries: IntArray) -> Moves:
        """Only the entries at these places."""
        return Moves(**{column.name: getattr(self, column.name)[entries] for column in fields(self)})


@dataclass(frozen=True, slots=True)
class Parts:
    """What times are made of, seconds, (E,)."""

    launch_s: FloatArray
    latency_s: FloatArray
    network_s: FloatArray
    """Of the latency, what the network takes."""
    intra_s: FloatArray
    inter_s: FloatArray
    fill_s: FloatArray
    total_s: FloatArray


def moves_of(found: Sequence[Movement], where: Situation, sizes_bytes: FloatArray) -> Moves:
    """Each movement at each size: entries run over sizes, within a size over movements."""
    count, sizes = len(found), len(sizes_bytes)

    def column(values: Sequence[float]) -> FloatArray:
        return np.tile(np.asarray(values, np.float64), sizes)

    def places(values: Sequence[int]) -> IntArray:
        return np.tile(np.asarray(values, np.int64), sizes)

    size = np.repeat(sizes_bytes.astype(np.float64), count)
    network = where.network_bytes_per_s or 1.0
    if where.network == "sockets":
        network = min(network, _SOCKETS_BYTES_PER_S)
    return Moves(
        size_bytes=size,
        algorithm=places([ALGORITHMS.index(move.algorithm) for move in found]),
        protocol=places([PROTOCOLS.index(move.protocol) for move in found]),
        rate=places([_RATES.index(move.intra_rate) for move in found]),
        intra_steps=column([move.intra_steps for move in found]),
        inter_steps=column([move.inter_steps for move in found]),
        intra_line_s=size * column([move.intra_wire / (where.intra_bytes_per_s * move.links) for move in found]),
        inter_line_s=size * column([move.inter_wire / network for move in found]),
        ranks=np.full(len(size), float(where.ranks)),
        domains=np.full(len(size), float(where.domains)),
        copied_line_s=size * column([move.copied / (where.intra_bytes_per_s * move.links) for move in found]),
        through_host=np.full(len(size), float(where.shape == "none" and where.domain_ranks > _UNDER_A_SWITCH)),
        fullness=_fullness(found, where, sizes_bytes),
        round_bytes=np.repeat(_round_bytes(where, sizes_bytes), count),
        messages=column([move.messages for move in found]),
    )


def _fullness(found: Sequence[Movement], where: Situation, sizes_bytes: FloatArray) -> FloatArray:
    """How full a channel is: in rings, which cut the data in a part a rank, and in sends, later than in trees."""
    parts_of = [1.0 if move.algorithm == "Tree" else float(where.ranks) for move in found]
    filled: FloatArray = np.minimum(1.0, sizes_bytes[:, None] / (_FULL_BYTES * np.array(parts_of))).ravel()
    return filled


def _round_bytes(where: Situation, sizes_bytes: FloatArray) -> FloatArray:
    """What NVLS moves at once, (S,): channels x heads x the chunk that NCCL takes for the size."""
    channels = 16 if where.gpu == "hopper" else 24 if where.domains == 1 else 32
    at_once = channels * min(where.domain_ranks, _MOST_HEADS)
    rules = _NVLS_CHUNKS if where.domains == 1 else _NVLS_TREE_CHUNKS
    chunk = np.full(len(sizes_bytes), float(rules[-1][1]))
    for rounds, size in reversed(rules):
        chunk = np.where(sizes_bytes >= rounds * at_once * size, float(size), chunk)
    return at_once * chunk


def sent_in_ll(sizes_bytes: FloatArray, peers: int) -> npt.NDArray[np.bool_]:
    """Whether sends go by LL, (S,): what one of `peers` gets is small."""
    small: npt.NDArray[np.bool_] = sizes_bytes / peers <= _P2P_LL_BYTES
    return small


def parts(moves: Moves, figures: Mapping[str, float | FloatArray]) -> Parts:
    """The times of entries. figures: each parameter of the calibration, one number or (E,)."""
    algorithm, protocol = moves.algorithm, moves.protocol
    is_nvls = (algorithm == ALGORITHMS.index("NVLS")) | (algorithm == ALGORITHMS.index("NVLSTree"))
    is_tree = algorithm == ALGORITHMS.index("Tree")
    is_p2p = algorithm == ALGORITHMS.index("P2P")
    crosses = moves.inter_steps > 0
    launch = figures["launch_s"]

    inside = moves.ranks / moves.domains
    step = figures["step_s"] * _choose(protocol, 1.0, figures["step_ll128_factor"], figures["step_simple_factor"])
    step = step + np.where(protocol == PROTOCOLS.index("LL"), figures["step_full_s"] * moves.fullness, 0.0)
    step = np.where(is_nvls, figures["nvls_step_s"], step)
    step = np.where(is_p2p & (protocol == PROTOCOLS.index("Simple")), figures["p2p_simple_s"], step)
    between = figures["network_step_s"] * _choose(
        protocol, 1.0, figures["network_ll128_factor"], figures["network_simple_factor"]
    )
    full = np.where(protocol == PROTOCOLS.index("LL"), figures["network_full_s"] * moves.fullness, 0.0)
    network = np.where(crosses, figures["network_launch_s"], 0.0) + moves.inter_steps * (between + full)
    latency = moves.intra_steps * step + network + moves.messages * figures["message_s"]

    share = _choose(moves.rate, figures["ring_share"], figures["nvls_share"], figures["p2p_share"])
    payload = _choose(protocol, figures["ll_factor"], figures["ll128_factor"], 1.0)
    share = share * payload * np.where(is_tree, figures["tree_factor"], 1.0)
    share = share * np.where(algorithm == ALGORITHMS.index("NVLSTree"), figures["nvls_tree_factor"], 1.0)
    share = share * np.where(is_nvls & (inside > _REFERENCE_DOMAIN), figures["nvls_rack_factor"], 1.0)
    share = share * np.where(moves.through_host > 0, figures["pcie_factor"], 1.0)
    carried = figures["network_share"] * _choose(
        protocol, figures["network_ll_factor"], figures["network_ll128_share"], 1.0
    )
    carried = carried * np.where(algorithm == ALGORITHMS.index("CollNetChain"), figures["sharp_factor"], 1.0)
    # Of two domains each has one peer; the more there are, the more senders meet at a receiver. A neighbour has one sender.
    meeting = np.where(moves.domains > 2, 1 - 2 / moves.domains, 0.0)
    carried = carried * np.where(moves.messages > 1, 1 - np.minimum(figures["congestion"], 0.9) * meeting, 1.0)
    home = np.where(is_p2p, figures["p2p_copy_factor"], figures["copy_factor"])
    intra, inter = (moves.intra_line_s + home * moves.copied_line_s) / share, moves.inter_line_s / carried
    # Each round of NVLS ends in a barrier, while the network goes on.
    rounds = np.maximum(1.0, moves.size_bytes / moves.round_bytes)
    intra = intra + np.where(is_nvls, rounds * figures["nvls_round_s"], 0.0)
    slower, faster = np.maximum(intra, inter), np.minimum(intra, inter)
    ratio = np.divide(faster, slower, out=np.zeros_like(slower), where=slower > 0)
    wire = slower * (1 + ratio**_SHARPNESS) ** (1 / _SHARPNESS)

    # Rings and sends are busy everywhere at once, however long: what they lose to filling is a channel's slots.
    slots = _SLOTS * figures["step_s"] * figures["step_simple_factor"] + np.where(crosses, 2 * between, 0.0)
    depth = np.where(is_tree, latency, slots)
    fills = np.where(is_tree, figures["fill_tree"], np.where(is_p2p, figures["fill_p2p"], figures["fill_ring"]))
    best = 2 * fills * np.sqrt(depth * wire)
    most = (
        np.where(
            is_tree,
            figures["fill_most"],
            np.where(is_p2p, figures["fill_p2p_most"], figures["fill_ring_most"]),
        )
        * depth
    )
    fill = np.divide(best * most, best + most, out=np.zeros_like(best), where=best + most > 0)
    depth_of_rounds = figures["nvls_depth"] * (inside / _REFERENCE_DOMAIN) ** figures["nvls_growth"]
    fill = np.where(is_nvls, depth_of_rounds * wire / rounds, fill)
    fill = np.where(protocol == PROTOCOLS.index("Simple"), fill, 0.0)
    launch = np.broadcast_to(launch, latency.shape)
    return Parts(launch, latency, network, intra, inter, fill, launch + latency + wire + fill)


def _choose(
    places: IntArray, first: float | FloatArray, second: float | FloatArray, third: float | FloatArray
) -> FloatArray:
    """The first, second or third figure of each entry."""
    return np.where(places == 0, first, np.where(places == 1, second, third)).astype(np.float64)
