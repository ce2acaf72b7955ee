"""Least time in rounds of one port: what alpha and beta together cost, where the larger of the latency and the bandwidth bound is out of reach.

Model: all ranks work in rounds; in a round a rank sends one message and receives one, and the round takes alpha + beta times its largest message. Then the
two bounds add up: a schedule pays for all its rounds and for all bytes of its busiest rank. L = ceil(log2 p), n bytes, p ranks.

- all_gather, reduce_scatter, gather, scatter: L alpha + n (p - 1)/p beta, which Bruck's and the binomial tree attain.
- all_to_all: a block that takes h of R rounds to its place is sent h times, and by which rounds says where it ends: at most C(R, h) destinations are h messages
  away. So R rounds carry at least (n/p) H(R) bytes, H the sum of the p - 1 least h; min over R of R alpha + (n/p) H(R) beta. Bruck et al., IEEE TPDS 8 (1997), have the two ends of it, R = L and R = p - 1.
- all_reduce: L alpha + 2 n (p - 1)/p beta. No schedule is known to attain both at once between small and large vectors; for p a power of two and R = L rounds, n L bytes are needed.
- broadcast, reduce: min over m of (m - 1 + L)(alpha + n/m beta): for blocks of equal size, m - 1 + L rounds are needed (the last block leaves the root in round m or later, and then
  doubles), and Traeff's circulant graphs attain it. For unequal blocks only L alpha + n beta is proved.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, comb, floor, sqrt

__all__ = ["fewest_moves", "round_bound_s"]


def round_bound_s(collective: str, ranks: int, size_bytes: float, alpha_s: float, beta_s_per_byte: float) -> float:
    """The least time of a collective in rounds of one port, seconds. Raises ValueError for collectives that have no bound here.

    >>> round(round_bound_s("all_gather", 8, 8e6, 1e-6, 1e-9), 9)  # 3 alpha + 7/8 n beta
    0.007003
    """
    if ranks < 2:
        return 0.0
    least = (ranks - 1).bit_length()
    bytes_s = size_bytes * beta_s_per_byte
    share = (ranks - 1) / ranks
    if collective in ("all_gather", "reduce_scatter", "gather", "scatter"):
        return least * alpha_s + share * bytes_s
    if collective == "all_reduce":
        return least * alpha_s + 2 * share * bytes_s
    if collective in ("broadcast", "reduce"):
        return min((m - 1 + least) * (alpha_s + bytes_s / m) for m in _blocks(least, bytes_s, alpha_s))
    if collective == "all_to_all":
        return min(r * alpha_s + fewest_moves(r, ranks) / ranks * bytes_s for r in range(least, ranks))
    raise ValueError(f"no bound in rounds is known here for {collective!r}")


def _blocks(least: int, bytes_s: float, alpha_s: float) -> tuple[int, ...]:
    """The whole numbers round the best number of blocks, sqrt((L - 1) n beta / alpha)."""
    best = sqrt((least - 1) * bytes_s / alpha_s) if alpha_s > 0 else 1e9
    return (max(1, floor(best)), max(1, ceil(best)))


@lru_cache(maxsize=65536)
def fewest_moves(rounds: int, ranks: int) -> int:
    """The least number of messages that the p - 1 blocks of a rank take in all, in this many rounds.

    >>> fewest_moves(10, 1024) / 1024, fewest_moves(1023, 1024)  # Bruck; each block at once
    (5.0, 1023)
    """
    left, total, hops = ranks - 1, 0, 1
    while left > 0 and hops <= rounds:
        some = min(left, comb(rounds, hops))
        total, left, hops = total + some * hops, left - some, hops + 1
    if left:
        raise ValueError(f"{ranks} ranks need {(ranks - 1).bit_length()} rounds; {rounds} are too few")
    return total
