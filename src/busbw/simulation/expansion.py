"""A TaskProgram on a network becomes columns for the C++ core: of one rank an orbit where folded, of all otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from busbw.hardware.fabrics import FatTree
from busbw.hardware.links import IntArray
from busbw.simulation import _flow
from busbw.simulation.limits import Watch
from busbw.simulation.network import Network, Ways, merged, picoseconds, rate_units
from busbw.simulation.peers import Table
from busbw.simulation.program import (
    Carried,
    Channel,
    Compute,
    Delay,
    Drain,
    Free,
    Instruction,
    Loop,
    Put,
    Receive,
    Send,
    Stream,
    Take,
    TaskProgram,
)
from busbw.simulation.symmetry import Orbits

__all__ = ["Expansion", "Outage", "UnfoldableError", "expand"]

_OPS = {Send: 0, Receive: 1, Drain: 2, Delay: 3, Compute: 4, Loop: 5, Put: 8, Take: 9, Free: 10}
"""Op of cpp/include/busbw/sim/program.hpp."""
_END, _STOP = 6, 7
_NO_I32, _NO_I64, _NO_I8 = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int8)
_MOST_SHARE = 2**31 - 1
_MOST_CONNECTIONS = 20_000_000
"""64 million took 18 GB and more."""
_CONNECTION_BYTES = 300
"""Of memory that a connection takes until it runs. Measured: all_to_all of 1,024 ranks."""


@dataclass(frozen=True, slots=True, eq=False)
class Crossings:
    """The links of each channel's way, one after another."""

    begin: IntArray
    """(C + 1,)."""
    link: NDArray[np.int32]
    """(crossings,) the core's numbers of links."""
    share: IntArray
    """(crossings,) flows of the channel's orbit that cross one link of the class, in parts of share_unit."""


@dataclass(frozen=True, eq=False)
class Expansion:
    """What the core runs, and what its numbers mean. S streams, C channels, L links or classes of them."""

    program: Any
    """_flow.Program; empty once a run has taken it."""
    orbits: Orbits
    stream_name: IntArray
    """(S,) index into the program's streams."""
    stream_rank: IntArray
    """(S,) the rank, or the one that stands for its orbit."""
    channel_name: IntArray
    """(C,) index into the program's channels."""
    src_rank: IntArray
    """(C,)."""
    dst_rank: IntArray
    """(C,)."""
    latency_ps: IntArray
    """(C,)."""
    crossings: Callable[[], Crossings]
    """The ways; made when asked for, because the core has its own and there may be millions."""
    share_unit: int
    link: IntArray
    """(L,) the cluster's number of each link, of one of its class where folded; -1 - c: what channel c itself is allowed."""
    capacity: IntArray
    """(L,) units of 1/1024 byte per second."""

    @cached_property
    def ways(self) -> Crossings:
        """The links of each channel's way."""
        return self.crossings()


class UnfoldableError(Exception):
    """Ways round a link that is down break the symmetry; the run must not be folded."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Links that go down while the program runs."""

    links: tuple[int, ...]
    at_s: float
    reroute_s: float | None
    """After how long routes go round them; None: never."""
    until_s: float | None
    """None: for good."""


def expand(
    program: TaskProgram,
    network: Network,
    orbits: Orbits,
    slowness: IntArray | None = None,
    outages: tuple[Outage, ...] = (),
    *,
    watch: Watch | None = None,
) -> Expansion:
    """The columns. slowness: (N,) time of computing over full speed, in parts of 2^20; None: full speed.

    Raises ValueError where a way has no end, and for more ranks than the network has room for.
    """
    if program.ranks > network.ranks:
        raise ValueError(f"the program has {program.ranks} ranks, the cluster room for {network.ranks}")
    ranks = orbits.representatives()
    ranks = ranks[ranks < program.ranks]
    runners = [_members(stream, ranks, orbits) for stream in program.streams]
    first_stream = np.concatenate(([0], np.cumsum([len(r) for r in runners])))
    stream_index = {stream.name: i for i, stream in enumerate(program.streams)}
    senders = [(channel, runners[stream_index[channel.source]]) for channel in program.channels]
    pairs = sum(len(source) * channel.peers.fan for channel, source in senders if len(source))
    if pairs > _MOST_CONNECTIONS:
        raise ValueError(
            f"{pairs:,} pairs of ranks would send to each other, and {_MOST_CONNECTIONS:,} are simulated at most. Take fewer ranks"
            f"{'' if orbits.digits else ', or as many nodes as let symmetry make ranks equal (a power of two)'}."
        )
    watch = watch or Watch()
    watch.look(f"{pairs:,} channels were laid out", pairs * _CONNECTION_BYTES)
    made: list[_Connections] = []
    base = port_base = 0
    into_streams: dict[str, list[tuple[Channel, _Connections]]] = {stream.name: [] for stream in program.streams}
    out_of_streams: dict[str, list[tuple[Channel, _Connections]]] = {stream.name: [] for stream in program.streams}
    for channel in program.channels:
        watch.look(f"channel {channel.name} was laid out")
        one = _connections(channel, runners[stream_index[channel.source]], base, port_base)
        made.append(one)
        base, port_base = base + one.count, port_base + len(one.port_rank)
        into_streams[channel.target].append((channel, one))
        out_of_streams[channel.source].append((channel, one))
    code: list[list[int]] = []
    entries: list[IntArray] = []
    tables_out: list[NDArray[Any]] = []
    tables_in: list[NDArray[Any]] = []
    counts_out: list[IntArray] = []
    counts_in: list[IntArray] = []
    for at, stream in enumerate(program.streams):
        watch.look(f"stream {stream.name} was laid out")
        ports = {c.name: _incoming(c, m, runners[at], orbits) for c, m in into_streams[stream.name]}
        sends = {c.name: m.ids for c, m in out_of_streams[stream.name]}
        out, n_out = _table(list(sends.values()), len(runners[at]))
        into, n_in = _table(list(ports.values()), len(runners[at]))
        tables_out.append(out)
        tables_in.append(into)
        counts_out.append(n_out)
        counts_in.append(n_in)
        entries.append(_emit(stream, sends, ports, len(runners[at]), code))
    own = _joined([np.asarray(r, np.int64) for r in runners])
    flow = _flow.Program()
    flow.set_code(np.array(code, np.int64).ravel())
    start, into_start = (np.concatenate(([0], np.cumsum(np.concatenate(c)))) for c in (counts_out, counts_in))
    slow = slowness[own] if slowness is not None else _NO_I64
    background = np.repeat([int(s.background) for s in program.streams], [len(r) for r in runners]).astype(np.int8)
    flow.set_streams(
        np.concatenate(entries).astype(np.int32), start.astype(np.int64), np.concatenate(tables_out).astype(np.int32),
        into_start.astype(np.int64), np.concatenate(tables_in).astype(np.int32), slow,
        background if background.any() else _NO_I8,
    )  # fmt: skip
    sized = any(c.size_bytes is not None for c in program.channels)
    sizes = [m.sizes(c) for c, m in zip(program.channels, made, strict=True)] if sized else []
    to_stream = [
        first_stream[stream_index[c.target]]
        + _rows_of(
            runners[stream_index[c.target]], orbits.canonical(m.port_rank) if not orbits.trivial else m.port_rank
        )
        for c, m in zip(program.channels, made, strict=True)
    ]
    whole: dict[str, Any] = {
        "stream_name": np.repeat(np.arange(len(runners)), [len(r) for r in runners]),
        "stream_rank": own,
        "channel_name": _joined([np.broadcast_to(np.int64(n), (m.count,)) for n, m in enumerate(made)]),
        "src_rank": _joined([m.src for m in made]),
        "dst_rank": _joined([m.dst for m in made]),
    }
    watch.look("ways were computed")
    ways = _lay_ways(flow, list(zip(program.channels, made, strict=True)), whole, orbits, outages)
    counts = [m.count for m in made]
    weights, slots = [
        np.array(v, np.int32) for v in zip(*((c.weight, c.slots) for c in program.channels), strict=True)
    ] or [_NO_I32, _NO_I32]
    injector, gaps = _injectors(program.channels, made)
    latency, port_latency, port_begin = ways["latency_ps"], ways["latency_ps"], _NO_I64
    if any(channel.kind not in (Carried.MESSAGE, Carried.PULL) for channel in program.channels):
        ports_each = _joined([m.ports_each for m in made])
        port_begin, port_latency = np.concatenate(([0], np.cumsum(ports_each))), np.repeat(latency, ports_each)
    credit = overhead = _NO_I64
    if any(channel.credit for channel in program.channels):
        credit = np.where(np.repeat([c.credit for c in program.channels], counts), latency, 0)
    if any(channel.overhead_s for channel in program.channels):
        overhead = np.repeat(picoseconds(np.array([c.overhead_s for c in program.channels])), counts)
    flow.set_channels(
        np.arange(base, dtype=np.int32),
        _joined(sizes),
        np.repeat(weights, counts) if (weights != 1).any() else _NO_I32,
        np.repeat(slots, counts) if slots.any() else _NO_I32,
        injector,
        port_begin,
        credit,
        overhead,
    )
    if len(gaps):
        flow.set_injectors(gaps)
    flow.set_ports(_joined(to_stream).astype(np.int32), port_latency)
    return Expansion(flow, orbits, **whole, **ways)


def _joined(parts: list[IntArray]) -> IntArray:
    """One column of several; the only one as it is."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else _NO_I64


@dataclass(frozen=True, slots=True, eq=False)
class _Connections:
    """Channels of one name, and the ports at which their messages are told of."""

    base: int
    source: IntArray
    """(R,) ranks that send."""
    src: IntArray
    """(C,)."""
    dst: IntArray
    """(C,) of a tree the first peer."""
    ids: IntArray
    """(R, k) number of each, -1 where a sender has fewer."""
    port_base: int
    port_ids: IntArray
    """(R, k) ports at the peers, as the peers are listed, -1 where nobody is told."""
    own_ports: IntArray
    """(R, k) ports at the senders themselves; (R, 0) where they are not told."""
    port_rank: IntArray
    """(P,) who is told, port by port."""
    ports_each: IntArray
    """(C,) how many ports each channel has."""
    peers: IntArray | None = None
    """(R, k) of trees."""

    @property
    def count(self) -> int:
        return len(self.src)

    def sizes(self, channel: Channel) -> IntArray:
        """(C,) bytes of messages whose instruction leaves them open."""
        if channel.size_bytes is None:
            return np.zeros(self.count, np.int64)
        table = channel.size_bytes
        if len(table) != len(self.source):
            every = channel.peers.ranks if isinstance(channel.peers, Table) else np.arange(len(table))
            table = table[np.minimum(np.searchsorted(every, self.source), len(table) - 1)]
        return np.asarray(table[self.ids >= 0], np.int64)


def _members(stream: Stream, ranks: IntArray, orbits: Orbits) -> IntArray:
    if stream.ranks is None:
        return ranks
    return np.intersect1d(ranks, stream.ranks) if not orbits.trivial else np.asarray(stream.ranks, np.int64)


def _connections(channel: Channel, source: IntArray, base: int, port_base: int) -> _Connections:
    to = channel.peers.of(source)
    if channel.kind not in (Carried.MESSAGE, Carried.PULL):
        return _tree(channel, source, to, base, port_base)
    nobody = np.empty((len(source), 0), np.int64)
    if _full(to):
        src, dst = np.repeat(source, to.shape[1]), to.ravel()
        ids = np.arange(base, base + to.size).reshape(to.shape)
        ports = ids if base == port_base else ids - base + port_base
    else:
        there = to >= 0
        ids = np.where(there, base + np.cumsum(there).reshape(there.shape) - 1, -1)
        ports = ids if base == port_base else np.where(there, ids - base + port_base, -1)
        rows, columns = np.nonzero(there)
        src, dst = source[rows], to[rows, columns]
    each = np.broadcast_to(np.int64(1), (len(src),))
    if channel.kind is Carried.PULL:
        return _Connections(base, source, src, dst, ids, port_base, nobody, ports, src, each)
    return _Connections(base, source, src, dst, ids, port_base, ports, nobody, dst, each)


def _tree(channel: Channel, source: IntArray, to: IntArray, base: int, port_base: int) -> _Connections:
    """One channel for each rank that has peers; its ports are those of the peers who are told, then the poster's own."""
    there = to >= 0
    posts = np.asarray(there.any(1), bool)
    rows = np.flatnonzero(posts)
    ids = np.where(posts, base + np.cumsum(posts) - 1, -1)[:, None]
    own = channel.kind is not Carried.MULTICAST
    told = there if channel.kind in (Carried.MULTICAST, Carried.SUM_TO_ALL) else np.zeros_like(there)
    every = np.concatenate([told, (posts & own)[:, None]], axis=1)
    numbers = np.where(every, port_base + np.cumsum(every).reshape(every.shape) - 1, -1)
    who = np.concatenate([to, source[:, None]], axis=1)[every]
    first = np.where(there, to, np.iinfo(np.int64).max).min(1, initial=np.iinfo(np.int64).max)
    return _Connections(
        base, source, source[rows], first[rows], ids, port_base, numbers[:, :-1], numbers[:, -1:] if own else numbers[:, :0],
        who, every[rows].sum(1), to[rows],
    )  # fmt: skip


def _injectors(channels: tuple[Channel, ...], made: list[_Connections]) -> tuple[NDArray[np.int32], IntArray]:
    """(C,) what limits each channel's rate of messages, and the least time between two of each of them; empty where nothing does."""
    if not any(channel.gap_s for channel in channels):
        return _NO_I32, _NO_I64
    numbers: list[IntArray] = []
    gaps: list[IntArray] = []
    known: dict[str, tuple[int, IntArray, float]] = {}
    count = 0
    for channel, one in zip(channels, made, strict=True):
        if not channel.gap_s:
            numbers.append(np.full(one.count, -1, np.int64))
            continue
        name = channel.injector or f"channel {channel.name}"
        if name not in known:
            ranks = np.unique(
                np.concatenate(
                    [m.src for c, m in zip(channels, made, strict=True) if (c.injector or f"channel {c.name}") == name]
                )
            )
            known[name] = (count, ranks, channel.gap_s)
            gaps.append(np.full(len(ranks), picoseconds(channel.gap_s)))
            count += len(ranks)
        first, ranks, gap_s = known[name]
        if gap_s != channel.gap_s:
            raise ValueError(
                f"injector {name} has gaps of {gap_s} s and {channel.gap_s} s; one thing has one rate of messages"
            )
        numbers.append(first + np.searchsorted(ranks, one.src))
    return np.concatenate(numbers).astype(np.int32), np.concatenate(gaps)


def _rows_of(ranks: IntArray, which: IntArray) -> IntArray:
    """The row of each rank in an ascending column; of one beyond its end, a row that is not there."""
    if np.array_equal(ranks, np.arange(len(ranks))):
        return which
    return np.asarray(np.searchsorted(ranks, which), np.int64)


def _full(table: IntArray) -> bool:
    """Whether no row has fewer columns than the table."""
    return int(table.min(initial=0)) >= 0


def _incoming(channel: Channel, made: _Connections, receivers: IntArray, orbits: Orbits) -> IntArray:
    """(R, k) ports at which ranks are told; -1 where a rank has fewer."""
    if not made.port_ids.shape[1] or channel.kind in (Carried.SUM, Carried.SUM_AND_STORE):
        return made.own_ports
    found = _told_peers(channel, made, receivers, orbits)
    return np.concatenate([found, made.own_ports], axis=1) if made.own_ports.shape[1] else found


def _told_peers(channel: Channel, made: _Connections, receivers: IntArray, orbits: Orbits) -> IntArray:
    sender, column = channel.peers.senders(receivers)
    there, every = sender >= 0, _full(sender)
    if not orbits.trivial:
        source = orbits.canonical(sender)
        column = channel.peers.column(source, orbits.aligned(sender, receivers[:, None]))
    else:
        source = sender
    row = _rows_of(made.source, source)
    if row is not source:
        row = np.minimum(row, max(len(made.source) - 1, 0))
    table = made.port_ids
    # Where every sender has all its ports, their numbers need no table.
    if every and table.size == len(made.port_rank) and int(row.max(initial=0)) < len(made.source):
        found = np.asarray(made.port_base + row * table.shape[1] + column, np.int64)
    elif every:
        found = table[row, column]
    else:
        found = np.where(there, table[np.where(there, row, 0), np.where(there, column, 0)], -1)
    if orbits.cycle and found.shape[1] > 1:
        # A rank that stays hears once from the one sender that stands for several.
        order = np.argsort(found, axis=1, kind="stable")
        ranked = np.take_along_axis(found, order, 1)
        again = np.zeros(found.shape, bool)
        np.put_along_axis(again, order[:, 1:], ranked[:, 1:] == ranked[:, :-1], 1)
        found = np.where(again, -1, found)
    return found


def _table(parts: list[IntArray], rows: int) -> tuple[NDArray[Any], IntArray]:
    """Channels or ports of each stream one after another, and how many each has."""
    if not parts:
        return _NO_I64, np.zeros(rows, np.int64)
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    if len(whole) and _full(whole):
        return whole.ravel(), np.full(rows, whole.shape[1], np.int64)
    return whole[whole >= 0], np.asarray((whole >= 0).sum(1), np.int64)


def _emit(
    stream: Stream, sends: dict[str, IntArray], ports: dict[str, IntArray], rows: int, code: list[list[int]]
) -> IntArray:
    """(R,) where each rank's instructions begin; ranks with equally many channels share them."""
    tables = [*sends.values(), *ports.values()]
    starts = picoseconds(stream.start_s) if stream.start_s is not None else np.zeros(rows, np.int64)
    if all(_full(table) for table in tables) and not starts.any():
        counts = np.array([[table.shape[1] for table in tables] + [0]], np.int64)
        kind = np.zeros(rows, np.int64)
    else:
        columns = [(table >= 0).sum(1) for table in tables]
        counts, kind = np.unique(np.column_stack([*columns, starts]), axis=0, return_inverse=True)
    begins = []
    for row in counts.tolist():
        begins.append(len(code))
        widths = dict(zip([("out", n) for n in sends] + [("in", n) for n in ports], row, strict=False))
        first: dict[tuple[str, str], int] = {}
        for way, names in (("out", sends), ("in", ports)):
            at = 0
            for name in names:
                first[way, name] = at
                at += widths[way, name]
        if row[-1]:
            code.append([_OPS[Delay], 0, 0, row[-1]])
        _write(stream.body, first, widths, code)
        code.append([_STOP, 0, 0, 0])
    return np.array(begins, np.int64)[np.ravel(kind)]


def _write(
    body: tuple[Instruction, ...],
    first: dict[tuple[str, str], int],
    widths: dict[tuple[str, str], int],
    code: list[list[int]],
) -> None:
    for step in body:
        if isinstance(step, Loop):
            at = len(code)
            code.append([_OPS[Loop], 0, 0, step.times])
            _write(step.body, first, widths, code)
            code.append([_END, at, 0, 0])
        elif isinstance(step, (Delay, Compute)):
            code.append([_OPS[type(step)], 0, 0, int(picoseconds(step.time_s))])
        else:
            key = ("in" if isinstance(step, (Receive, Take, Free)) else "out", step.channel)
            size = -1 if isinstance(step, (Send, Put)) and step.size_bytes is None else getattr(step, "size_bytes", 0)
            code.append([_OPS[type(step)], first[key], widths[key], size])


def _lay_ways(
    flow: Any,
    made: list[tuple[Channel, _Connections]],
    whole: dict[str, Any],
    orbits: Orbits,
    outages: tuple[Outage, ...],
) -> dict[str, Any]:
    """Gives the core the ways of all channels and the capacity of their links; what the columns of an Expansion say."""
    src, dst, network = whole["src_rank"], whole["dst_rank"], orbits.network
    special = bool(outages) or any(
        c.token or c.rate_bytes_per_s is not None or c.kind is not Carried.MESSAGE for c, _ in made
    )
    tree = network.place
    if (
        isinstance(tree, FatTree)
        and orbits.trivial
        and not special
        and not network.dead
        and network.routing in ("d-mod-k", "ecmp")
    ):
        return _tree_ways(flow, tree, src, dst, network)
    token = np.repeat(np.array([c.token for c, _ in made], bool), np.array([m.count for _, m in made], np.int64))
    carried = np.flatnonzero(~token)
    ways = _ways_of(network, made, carried, src, dst)
    latency = np.zeros(len(src), np.int64)
    latency[carried] = ways.latency_ps
    row = np.repeat(carried, np.diff(ways.begin))
    link, stands_for = orbits.links(ways.link)
    share = ways.share * (orbits.flows(src[row]) * orbits.unit // stands_for)
    detours = _detours(network, (src, dst), (row, link), outages)
    of = np.repeat(np.arange(len(made)), [m.count for _, m in made])
    for detour in detours:
        for channel in (made[at][0] for at in np.unique(of[detour.channels])):
            if channel.kind is not Carried.MESSAGE:
                raise ValueError(
                    f"a link goes down in the middle of a {channel.kind.replace('_', ' ')} through switches or from a peer; only messages take "
                    "other ways while they run. Fail the link from the start, or without a re-route."
                )
    row, link = np.r_[row, *(d.row for d in detours)], np.r_[link, *(d.link for d in detours)]
    if orbits.cycle and any(np.isin((src[d.channels], dst[d.channels]), orbits.cycle_ranks()).any() for d in detours):
        raise UnfoldableError
    share = np.r_[share, *(np.full(len(d.row), orbits.unit, np.int64) for d in detours)]
    count = len(src) + sum(len(d.channels) for d in detours)
    links, dense = np.unique(link, return_inverse=True)
    capacity = rate_units(network.rates_of(links)[0]) if len(links) else _NO_I64
    capped = np.flatnonzero(np.repeat([c.rate_bytes_per_s is not None for c, _ in made], [m.count for _, m in made]))
    if len(capped):
        limits = np.repeat([c.rate_bytes_per_s or 0.0 for c, _ in made], [m.count for _, m in made])[capped]
        row, dense = np.r_[row, capped], np.r_[dense, len(links) + np.arange(len(capped))]
        share = np.r_[share, np.full(len(capped), ways.share_unit * orbits.unit)]
        links, capacity = np.r_[links, -1 - capped], np.r_[capacity, rate_units(limits)]
    # Crossings of one link by one flow become one.
    order = np.lexsort((dense, row))
    row, dense, share = row[order], dense[order], share[order]
    if len(row):
        first = np.flatnonzero(np.r_[True, (np.diff(row) != 0) | (np.diff(dense) != 0)])
        row, dense, share = row[first], dense[first], np.add.reduceat(share, first)
    whole_flow = ways.share_unit * orbits.unit
    unit = int(np.gcd.reduce(np.r_[share, whole_flow]))
    share, share_unit = share // unit, whole_flow // unit
    if len(share) and share.max() > _MOST_SHARE:
        raise ValueError("too many links and parts of flows to fold; pass fold=False")
    begin = np.searchsorted(row, np.arange(count + 1))
    flow.set_ways(begin.astype(np.int64), dense.astype(np.int32), share.astype(np.int32))
    flow.set_capacity(capacity)
    flow.share_unit = share_unit
    _set_changes(flow, outages, detours, links, capacity)
    begin = begin[: len(src) + 1]
    dense, share = dense[: begin[-1]], share[: begin[-1]]
    return {
        "latency_ps": latency,
        "crossings": partial(Crossings, begin, dense.astype(np.int32), share),
        "share_unit": share_unit,
        "link": links,
        "capacity": capacity,
    }


def _ways_of(
    network: Network, made: list[tuple[Channel, _Connections]], carried: IntArray, src: IntArray, dst: IntArray
) -> Ways:
    """The ways of the channels that carry something: pulls from peer to poster, trees each link once."""
    kinds = [channel.kind for channel, _ in made]
    if all(kind is Carried.MESSAGE for kind in kinds):
        return network.ways(src[carried], dst[carried])
    kind_of = np.repeat(np.arange(len(made)), [m.count for _, m in made])[carried]
    pulls = np.isin(kind_of, [at for at, kind in enumerate(kinds) if kind is Carried.PULL])
    trees = [at for at, kind in enumerate(kinds) if kind not in (Carried.MESSAGE, Carried.PULL)]
    plain = np.flatnonzero(~np.isin(kind_of, trees))
    one, other = src[carried], dst[carried]
    ways = network.ways(np.where(pulls, other, one)[plain], np.where(pulls, one, other)[plain])
    parts = [(plain, replace(ways, latency_ps=ways.latency_ps * np.where(pulls[plain], 2, 1)))]
    for at in trees:
        channel, connections = made[at]
        if connections.count and connections.peers is not None:
            tree = network.trees(connections.src, connections.peers, channel.kind)
            parts.append((np.flatnonzero(kind_of == at), tree))
    return merged(parts, len(carried))


@dataclass(frozen=True, slots=True, eq=False)
class _Detour:
    """Other ways that channels take from a time on."""

    at_s: float
    channels: IntArray
    """(D,) which."""
    first: int
    """Number of the first's way; the others follow."""
    row: IntArray
    """(crossings,) ways."""
    link: IntArray
    """(crossings,)."""


def _detours(
    network: Network,
    pairs: tuple[IntArray, IntArray],
    crossings: tuple[IntArray, IntArray],
    outages: tuple[Outage, ...],
) -> list[_Detour]:
    """The ways round links that are down, for the channels that crossed them, in order of time.

    A way's latency stays what it was: detours have as many hops in a tree. Raises ValueError where no way is left.
    """
    made: list[_Detour] = []
    (src, dst), (current_row, current_link) = pairs, crossings
    timed = sorted((o for o in outages if o.reroute_s is not None), key=lambda o: o.at_s + (o.reroute_s or 0.0))
    for outage in timed:
        at = outage.at_s + (outage.reroute_s or 0.0)
        if outage.until_s is not None and outage.until_s <= at:
            continue  # up again before anybody notices
        down = {n for o in outages if o.at_s <= at and (o.until_s is None or o.until_s > at) for n in o.links}
        hit = np.unique(current_row[np.isin(current_link, np.array(sorted(down), np.int64))])
        if not len(hit):
            continue
        ways = replace(network, dead=network.dead | down).ways(src[hit], dst[hit])
        first = len(src) + sum(len(d.channels) for d in made)
        hops = np.diff(ways.begin)
        made.append(_Detour(at, hit, first, np.repeat(first + np.arange(len(hit)), hops), ways.link))
        kept = ~np.isin(current_row, hit)
        current_row = np.r_[current_row[kept], np.repeat(hit, hops)]
        current_link = np.r_[current_link[kept], ways.link]
    return made


def _set_changes(
    flow: Any, outages: tuple[Outage, ...], detours: list[_Detour], links: IntArray, capacity: IntArray
) -> None:
    changes: list[tuple[int, int, int, int, int]] = []
    for outage in outages:
        for number in outage.links:
            at = np.flatnonzero(links == number)
            if not len(at):
                continue
            dense = int(at[0])
            changes.append((int(picoseconds(outage.at_s)), dense, 0, -1, -1))
            if outage.until_s is not None:
                changes.append((int(picoseconds(outage.until_s)), dense, int(capacity[dense]), -1, -1))
    for detour in detours:
        at_ps = int(picoseconds(detour.at_s))
        changes += [(at_ps, -1, 0, int(c), detour.first + i) for i, c in enumerate(detour.channels)]
    changes.sort(key=lambda change: change[0])
    if changes:
        time_ps, link, units, channel, way = (np.array(column, np.int64) for column in zip(*changes, strict=True))
        flow.set_changes(time_ps, link.astype(np.int32), units, channel.astype(np.int32), way.astype(np.int32))


def _tree_ways(flow: Any, tree: FatTree, src: IntArray, dst: IntArray, network: Network) -> dict[str, Any]:
    """The same for a bare tree and all ranks: by the core's own tables, because there may be millions."""
    arguments = network.tree_arguments(tree, src, dst)
    hops_of = flow.set_tree_ways(*arguments)
    links = np.arange(tree.links)
    rate, latency = network.rates_of(links)
    latency_ps = picoseconds(latency)
    nic = latency_ps[0] if len(latency_ps) else 0
    # All links of a level are alike: 2 at NICs, the others between switches.
    inner = latency_ps[-1] if len(tree.down) > 1 else nic
    hops = np.arange(2 * len(tree.down) + 1)
    total = np.where(hops > 0, 2 * nic + np.maximum(hops - 2, 0) * inner, 0)
    capacity = rate_units(rate)
    flow.set_capacity(capacity)
    flow.share_unit = 1
    return {
        "latency_ps": total.astype(np.int64)[hops_of],
        "crossings": partial(_tree_crossings, arguments),
        "share_unit": 1,
        "link": links,
        "capacity": capacity,
    }


def _tree_crossings(arguments: tuple[Any, ...]) -> Crossings:
    begin, link = _flow.tree_ways(*arguments)
    return Crossings(begin, link, np.broadcast_to(1, len(link)))
