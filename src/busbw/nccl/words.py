"""NCCL's names of functions, algorithms, protocols: the order of its tables, and how users write them."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Algorithm", "Function", "Protocol", "function_of"]


class Function(IntEnum):
    """The collectives that have rows in the cost table, as NCCL prints them."""

    Broadcast = 0
    Reduce = 1
    AllGather = 2
    ReduceScatter = 3
    AllReduce = 4


class Algorithm(IntEnum):
    """The algorithms, as NCCL prints them in its table."""

    Tree = 0
    Ring = 1
    CollNetDirect = 2
    CollNetChain = 3
    NVLS = 4
    NVLSTree = 5
    PAT = 6


class Protocol(IntEnum):
    """The protocols, as NCCL prints them in its table."""

    LL = 0
    LL128 = 1
    Simple = 2


_COLLECTIVES = {
    "broadcast": Function.Broadcast,
    "reduce": Function.Reduce,
    "all_gather": Function.AllGather,
    "reduce_scatter": Function.ReduceScatter,
    "all_reduce": Function.AllReduce,
}


def function_of(collective: str) -> Function | None:
    """The row of a collective, in our spelling, in NCCL's table; None for those that are made of sends.

    >>> function_of("all_reduce").name, function_of("all_to_all")
    ('AllReduce', None)
    """
    return _COLLECTIVES.get(collective)
