"""Mixture of experts: tokens go to the ranks of their experts, and what these make of them is summed at home.

Two-level dispatch, without duplicates: a token goes to each node that wants it once, to the rank of its home's local number, which passes it on to the ranks of
its node that want it. 2 steps; a rank sends tokens * (nodes wanted) * bytes between nodes instead of tokens * (ranks wanted) * bytes.
Direct dispatch (low latency): one message a token and rank, 1 step. combine is the reverse of either; partial sums are formed in the node.

A chunk is a token. Who wants which token is known only at run time: the schedule is made from a Routing, and its tables are the only part that depends on it.

Source: DeepEP (deepseek-ai/DeepEP, README: normal and low-latency kernels).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from busbw.collectives.builder import Axis, Chunks, build, chunks, fixed_size, parallel, table_of, together, transfer
from busbw.collectives.collective import Routing
from busbw.collectives.expressions import Expr, IntArray
from busbw.collectives.passes import reverse
from busbw.collectives.schedule import Schedule

__all__ = ["direct_moe_combine", "direct_moe_dispatch", "two_level_moe_combine", "two_level_moe_dispatch"]


def direct_moe_dispatch(routing: Routing) -> Schedule:
    """Dispatch in which each token goes straight to every rank that wants it."""
    token, wanting = _sent(routing)

    def direct(r: Axis) -> None:
        data, home_of = _tokens(routing)
        fixed_size(r, routing.wanted.array.shape[1])
        token_of, to = table_of("token", token), table_of("to", wanting)
        for i in parallel(len(token)):
            transfer(data[token_of(i)], frm={r: home_of(token_of(i))}, to={r: to(i)})

    return build("moe_dispatch", "direct_moe_dispatch", ("r",), direct)


def direct_moe_combine(routing: Routing) -> Schedule:
    """Combine in which each rank sends what it made of a token straight to the token's home."""
    return reverse(direct_moe_dispatch(routing))


def two_level_moe_dispatch(routing: Routing, gpus: int) -> Schedule:
    """Dispatch over nodes of `gpus` ranks: between nodes along rails, then inside.

    Raises ValueError if the ranks can't be dealt out to such nodes.
    """
    ranks = routing.wanted.array.shape[1]
    if gpus < 1 or ranks % gpus:
        raise ValueError(f"{ranks} ranks are not a number of nodes of {gpus}")
    token, wanting = _sent(routing)
    home = routing.home.array[token]
    crossing = np.unique(token * (ranks // gpus) + wanting // gpus)  # (token, node), each once
    over_token, over_node = np.divmod(crossing, ranks // gpus)
    leaves = over_node != routing.home.array[over_token] // gpus
    over_token, over_node = over_token[leaves], over_node[leaves]
    bridge = (wanting // gpus) * gpus + home % gpus  # the rank of the home's rail in the node of who wants it
    inner = np.flatnonzero(bridge != wanting)

    def levels(node: Axis, gpu: Axis) -> None:
        data, home_of = _tokens(routing)
        fixed_size(node, ranks // gpus)
        fixed_size(gpu, gpus)
        if len(over_token):
            rail_token, rail_node = table_of("rail_token", over_token), table_of("rail_node", over_node)
            for i in parallel(len(over_token)):
                home = home_of(rail_token(i))
                transfer(
                    data[rail_token(i)],
                    frm={node: home // gpu.size, gpu: home % gpu.size},
                    to={node: rail_node(i), gpu: home % gpu.size},
                )
        if len(inner):
            token_of, to = table_of("token", token[inner]), table_of("to", wanting[inner])
            with together():
                for i in parallel(len(inner)):
                    here = to(i) // gpu.size
                    transfer(
                        data[token_of(i)],
                        frm={node: here, gpu: home_of(token_of(i)) % gpu.size},
                        to={node: here, gpu: to(i) % gpu.size},
                    )

    return build("moe_dispatch", "two_level_moe_dispatch", ("node", "gpu"), levels)


def two_level_moe_combine(routing: Routing, gpus: int) -> Schedule:
    """Combine that sums inside each node first, and sends one partial sum a token and node home."""
    return reverse(two_level_moe_dispatch(routing, gpus))


def _sent(routing: Routing) -> tuple[IntArray, IntArray]:
    """(token, rank) for every rank that wants a token and is not its home, ordered by how far the rank is from the home, so that ranks begin with different ones."""
    token, wanting = np.nonzero(routing.wanted.array)
    away = (wanting - routing.home.array[token]) % routing.wanted.array.shape[1]
    order = np.lexsort((token, away))
    kept = order[away[order] != 0]
    return token[kept].astype(np.int64), wanting[kept].astype(np.int64)


def _tokens(routing: Routing) -> tuple[Chunks, Callable[[Expr], Expr]]:
    """The tokens as chunks, and their homes as a table."""
    data = chunks(len(routing.home.array))
    home_of = table_of("home", routing.home.array)
    table_of("wanted", routing.wanted.array)
    return data, home_of
