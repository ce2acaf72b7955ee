"""Proof of schedules that move everything through one switch: sums formed in it, and multicasts, over all ranks.

A chunk is raw (every rank has its own contribution), or whole at one rank, or whole at all. A sum in the network takes it from raw to whole at its receiver,
or at all; a multicast from whole at its sender to whole at all. So all ranks are decided in time that grows with the chunks, not with ranks times chunks.
"""

from __future__ import annotations

import numpy as np

from busbw.collectives.expressions import Environment, Expr, IntArray, evaluate, free_names
from busbw.collectives.schedule import BoundSchedule, Mode, Node, Region, Seq, Transfer

__all__ = ["messages_through_one_switch"]

_RAW, _EVERYWHERE = -1, -2
"""Instead of the rank at which a chunk is whole."""
_MOST_CHUNKS = 1 << 24
"""16 bytes each. A guess at what a user's machine spares."""


def messages_through_one_switch(bound: BoundSchedule) -> int | None:
    """How many messages keep the promise; None if the schedule does more than pass through one switch, or that is not enough to tell."""
    transfers = _in_order(bound.schedule.body)
    axes = bound.schedule.axes
    if (
        transfers is None
        or not transfers
        or bound.chunks > _MOST_CHUNKS
        or any(set(t.group) != set(axes) for t in transfers)
    ):
        return None
    at = _before(bound)
    if at is None:
        return None
    messages = 0
    for transfer in transfers:
        many = _carried(bound, transfer, at)
        if many is None:
            return None
        messages += many
    return messages if _kept(bound, at) else None


def _in_order(body: Node) -> list[Transfer] | None:
    """Transfers one after the other; None if there is more to it."""
    if isinstance(body, Transfer):
        return [body]
    if not isinstance(body, Seq):
        return None
    found: list[Transfer] = []
    for child in body.children:
        inner = _in_order(child)
        if inner is None:
            return None
        found += inner
    return found


def _owner(bound: BoundSchedule) -> IntArray | None:
    each, rest = divmod(bound.chunks, bound.ranks)
    return None if rest or not each else np.arange(bound.chunks, dtype=np.int64) // each


def _before(bound: BoundSchedule) -> IntArray | None:
    """Where each chunk is whole at first, (chunks,)."""
    kind = bound.schedule.kind
    if kind in ("all_reduce", "reduce_scatter", "reduce"):
        return np.full(bound.chunks, _RAW, np.int64)
    if kind == "all_gather":
        owner = _owner(bound)
        return None if owner is None else owner.copy()
    return np.full(bound.chunks, bound.root, np.int64) if kind == "broadcast" else None


def _carried(bound: BoundSchedule, transfer: Transfer, at: IntArray) -> int | None:
    """Takes all messages of a transfer; how many there are, None if one asks for what is not there or two are for one chunk."""
    axes = bound.schedule.axes
    domain = transfer.domain(axes)
    if domain and set(domain) != set(axes):
        return None
    ranks = np.arange(bound.ranks if domain else 1, dtype=np.int64)
    coordinates = bound.coordinates(ranks) if domain else {}
    env = Environment(dict(coordinates), dict(bound.sizes), dict(bound.params), bound.environment.tables)

    def column(expr: Expr) -> IntArray:
        return np.broadcast_to(np.asarray(evaluate(expr, env), np.int64), ranks.shape)

    source, target = transfer.source, transfer.target
    named = [transfer.guard, *(expr for place in (source, target) for expr in (place.index, place.count, place.stride))]
    if frozenset[str]().union(*(free_names(expr) for expr in named)) - set(domain):
        return None
    if source.region is not Region.DATA or target.region is not Region.DATA:
        return None
    admitted = np.flatnonzero(column(transfer.guard))
    count, index = column(source.count)[admitted], column(source.index)[admitted] % max(bound.chunks, 1)
    same = (column(target.index)[admitted] % max(bound.chunks, 1) == index).all() and (
        column(target.count)[admitted] == count
    ).all()
    alike = all((column(place.stride)[admitted][count > 1] == 1).all() for place in (source, target))
    if not same or not alike or (count < 1).any() or (index + count > bound.chunks).any():
        return None
    end = transfer.src if transfer.mode is Mode.MULTICAST else transfer.dst
    extents = [extent for _, extent in bound.sizes]
    flat = [column(expr)[admitted] % extent for expr, extent in zip(end, extents, strict=True)]
    rank = np.ravel_multi_index(flat, extents).astype(np.int64)
    if int(count.sum()) > bound.chunks:
        return None
    item = np.repeat(np.arange(len(count)), count)
    chunk = index[item] + np.arange(len(item)) - (np.cumsum(count) - count)[item]
    if len(np.unique(chunk)) != len(chunk):
        return None
    if transfer.mode is Mode.MULTICAST:
        if ((at[chunk] != rank[item]) & (at[chunk] != _EVERYWHERE)).any():
            return None
        at[chunk] = _EVERYWHERE
    elif transfer.mode in (Mode.NETWORK_REDUCE, Mode.NETWORK_ALL_REDUCE):
        if (at[chunk] != _RAW).any():
            return None
        at[chunk] = rank[item] if transfer.mode is Mode.NETWORK_REDUCE else _EVERYWHERE
    else:
        return None
    return len(admitted)


def _kept(bound: BoundSchedule, at: IntArray) -> bool:
    """Whether every chunk is whole where the collective promises it."""
    kind, everywhere = bound.schedule.kind, at == _EVERYWHERE
    if kind == "reduce_scatter":
        owner = _owner(bound)
        return owner is not None and bool((everywhere | (at == owner)).all())
    if kind == "reduce":
        return bool((everywhere | (at == bound.root)).all())
    return bool(everywhere.all())
