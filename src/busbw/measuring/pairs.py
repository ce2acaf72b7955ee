"""All pairs of nodes, in rounds of disjoint pairs, rails side by side; what to do when a job fails; ladders of groups and scale."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from busbw.errors import InputError
from busbw.measuring.backends import WINDOW, Backend
from busbw.measuring.elements import encoded, item_bytes
from busbw.measuring.measure import Place, time_calls
from busbw.measuring.request import Request
from busbw.measuring.truth import given

__all__ = [
    "ends_of", "failing_part", "groups_of", "matching_rounds", "measure_round", "pair_rows", "rail_devices", "scales",
]  # fmt: skip

Item = TypeVar("Item")


def matching_rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """Every pair of nodes once, in n - 1 rounds of n/2 disjoint pairs; n rounds for an odd n, in each of which one node rests.

    The circle method: one node stays, the others turn around it (Kirkman, 1847).

    >>> matching_rounds(4)
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    """
    if nodes < 2:
        raise InputError(f"{nodes} nodes have no pair; two are needed.")
    even = nodes + nodes % 2
    others = list(range(1, even))
    rounds = []
    for _ in range(even - 1):
        circle = [0, *others]
        met = (tuple(sorted((circle[i], circle[even - 1 - i]))) for i in range(even // 2))
        rounds.append(sorted((a, b) for a, b in met if b < nodes))
        others = [others[-1], *others[:-1]]
    return rounds


def measure_round(
    backend: Backend, request: Request, size_bytes: int, pairs: Sequence[tuple[int, int]], *, rails: int
) -> list[tuple[int, int, float, int]]:
    """Source rank, target rank, bytes per second, wrong elements of one round, on rank 0; nothing on the others. All ranks call.

    Rank r is rail r mod rails of node r div rails; rails of a pair of nodes send side by side, first one way, then the other.
    """
    node, rail = divmod(backend.rank, rails)
    mine = next((pair for pair in pairs if node in pair), None)
    count = max(1, size_bytes // item_bytes(request.dtype))
    source, target = backend.empty(count, request.dtype), backend.empty(count, request.dtype)
    told = backend.empty(1, "uint8")
    found: list[tuple[int, int, float, int]] = []
    for forward in (True, False):
        to: int | None = None
        origin: int | None = None
        if mine is not None:
            first, second = mine if forward else mine[::-1]
            to, origin = (second * rails + rail, None) if node == first else (None, first * rails + rail)

        def call(calls: int, to: int | None = to, origin: int | None = origin) -> None:
            if to is None and origin is None:
                return
            for _ in range(calls):
                backend.window(source, to, target, origin, WINDOW)
                backend.window(told, origin, told, to, 1)

        backend.write(source, given(request, backend.rank, count))
        backend.write(target, encoded(np.full(count, 7), request.dtype))
        backend.barrier()
        call(1)
        wrong = 0
        if origin is not None:
            wrong = int(np.count_nonzero(backend.read(target) != given(request, origin, count)))
        stamps, calls = time_calls(backend, call, request.precision, takes_part=mine is not None)
        took_ns = float(np.median((stamps[:, 1] - stamps[:, 0]) / calls))
        rate = count * item_bytes(request.dtype) * WINDOW / max(took_ns, 1.0)  # bytes a nanosecond
        line = np.array([-1 if to is None else to, round(rate * 1e6), wrong], np.int64)
        every = backend.gathered(line)
        if every is not None:
            received = {int(every[rank, 0]): rank for rank in range(backend.ranks) if every[rank, 0] >= 0}
            found += [
                (sender, receiver, int(every[sender, 1]) * 1e3, int(every[receiver, 2]))
                for receiver, sender in received.items()
            ]
    return sorted(found)


def ends_of(places: Sequence[Place], rails: int, devices: Sequence[str] = ()) -> list[str]:
    """Names of the ends, rank by rank: host, and the NIC or rail where there are several. Nodes that share a host are told apart by number."""
    hosts = [place.host.split(".")[0] for place in places]
    of_node = [hosts[node * rails] for node in range(len(hosts) // rails)]
    shared = {host for host in of_node if of_node.count(host) > 1}
    named = []
    for rank, host in enumerate(hosts):
        node, rail = divmod(rank, rails)
        name = f"{host}-{node}" if host in shared else host
        named.append(name if rails == 1 else f"{name}:{devices[rail] if rail < len(devices) else f'rail{rail}'}")
    return named


def rail_devices(environment: dict[str, str] | None = None) -> list[str]:
    """NICs that the environment names, in order: NCCL_IB_HCA, or UCX_NET_DEVICES, without ports and signs."""
    told = environment if environment is not None else dict(os.environ)
    text = told.get("NCCL_IB_HCA") or told.get("UCX_NET_DEVICES") or ""
    return [word.split(":")[0] for word in text.lstrip("=^").split(",") if word and word != "all"]


def pair_rows(
    backend: str, ends: Sequence[str], found: Sequence[tuple[int, int, float, int]]
) -> Iterator[dict[str, Any]]:
    """Rows of `pairs`."""
    for sender, receiver, rate, _ in found:
        yield {
            "tool": f"busbw {backend}", "quantity": "bandwidth", "src": ends[sender], "dst": ends[receiver], "value": rate, "unit": "bytes/s",
        }  # fmt: skip


def failing_part(items: Sequence[Item], fails: Callable[[Sequence[Item]], bool], *, least: int = 1) -> list[Item]:
    """A part of the items that fails and of which no half or quarter ... that was tried does: one bad host, or a pair that fails together.

    Halves first, then smaller parts and what remains without each (delta debugging; Zeller and Hildebrandt, 2002). least: items in a job.
    All items together must fail.

    >>> failing_part(range(8), lambda part: 5 in part)
    [5]
    >>> failing_part(range(8), lambda part: {2, 6} <= set(part))
    [2, 6]
    """
    left = list(items)
    parts = 2
    while len(left) > least:
        size = -(-len(left) // parts)
        cut = [left[i : i + size] for i in range(0, len(left), size)]
        if found := next((part for part in cut if len(part) >= least and fails(part)), None):
            left, parts = found, 2
            continue
        rest = [[item for item in left if item not in part] for part in cut] if parts > 2 else []
        if smaller := next((part for part in rest if len(part) >= least and fails(part)), None):
            left, parts = smaller, max(parts - 1, 2)
            continue
        if parts >= len(left):
            break
        parts = min(len(left), 2 * parts)
    return left


def scales(nodes: int) -> list[int]:
    """Nodes of a ladder: 2, 4, 8 ... and all.

    >>> scales(12)
    [2, 4, 8, 12]
    """
    if nodes < 2:
        raise InputError(f"{nodes} nodes: a ladder begins with two.")
    found = [2]
    while found[-1] * 2 < nodes:
        found.append(found[-1] * 2)
    return found if found[-1] == nodes else [*found, nodes]


def groups_of(nodes: int, leaf: int) -> list[range]:
    """Groups of a ladder of leaves: the nodes of each leaf, then of two leaves, four ... from the first, and all.

    >>> groups_of(8, 4)
    [range(0, 4), range(4, 8), range(0, 8)]
    """
    if not 1 <= leaf <= nodes:
        raise InputError(f"{leaf} nodes a leaf of {nodes} nodes: write 1 to {nodes}.")
    leaves = [range(first, min(first + leaf, nodes)) for first in range(0, nodes, leaf)]
    wider = [range(0, min(count * leaf, nodes)) for count in scales(len(leaves))] if len(leaves) > 1 else []
    return [*leaves, *wider]
