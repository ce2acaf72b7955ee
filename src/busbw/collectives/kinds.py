"""The collectives by name, and the factor between algorithm and bus bandwidth."""

from __future__ import annotations

import re

__all__ = ["COLLECTIVES", "bus_factor", "collective_named"]

COLLECTIVES = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "broadcast", "reduce", "gather", "scatter", "send_recv",
    "barrier",
)  # fmt: skip

_SQUEEZED = {name.replace("_", ""): name for name in COLLECTIVES}


def collective_named(name: str | None) -> str | None:
    """Our spelling of a collective as any tool writes it; None for what is no collective.

    >>> collective_named("AllReduce"), collective_named("alltoall_perf"), collective_named("all-gather"), collective_named("GEMM")
    ('all_reduce', 'all_to_all', 'all_gather', None)
    """
    if name is None:
        return None
    word = re.sub(r"_perf(_mpi)?$", "", name.strip().rsplit("/", 1)[-1].lower())
    return _SQUEEZED.get(re.sub(r"[^a-z]", "", word))


def bus_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth. Source: nccl-tests, doc/PERFORMANCE.md.

    all_reduce 2(n-1)/n; all_gather, reduce_scatter, all_to_all(_v), gather, scatter (n-1)/n; broadcast, reduce, send_recv 1.
    Raises ValueError for barrier (moves nothing), unknown names and ranks < 1.

    >>> bus_factor("all_reduce", 8), bus_factor("all_gather", 8), bus_factor("broadcast", 8)
    (1.75, 0.875, 1.0)
    """
    if ranks < 1:
        raise ValueError(f"a communicator has at least one rank, not {ranks}")
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "gather", "scatter"):
        return (ranks - 1) / ranks
    if collective in ("broadcast", "reduce", "send_recv"):
        return 1.0
    raise ValueError(f"{collective!r} has no bus bandwidth; collectives are {', '.join(COLLECTIVES)}")
