"""TaskGraph: tasks with dependencies, in columns, for work that no loop describes: traces, and graphs that other tools write.

A task begins when all it depends on have ended. Tasks that may run, run: two computations of a rank share nothing, so
put an edge between them where one thread does both.
Legend: T tasks, E edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from busbw.errors import InputError
from busbw.hardware.links import IntArray
from busbw.simulation import _flow
from busbw.simulation.conditions import SLOWNESS_UNIT
from busbw.simulation.expansion import Crossings, Expansion
from busbw.simulation.limits import Watch
from busbw.simulation.network import RATE_UNITS_PER_BYTE, Network, Ways, merged, rate_units
from busbw.simulation.peers import Table
from busbw.simulation.program import Carried, Channel, Stream, TaskProgram
from busbw.simulation.symmetry import Orbits

__all__ = ["COMPUTE", "DELAY", "MULTICAST", "RECEIVE", "REDUCE", "SEND", "TRANSFER", "TaskGraph"]

COMPUTE, TRANSFER, SEND, RECEIVE, DELAY, MULTICAST, REDUCE = range(7)
"""Kinds. compute: takes its time. transfer: ends when its last byte arrives. send: ends when its last byte has left; its receive
ends when it arrives, too, and begins by its own dependencies. delay: takes its time whatever the rank's speed. multicast: from the rank to its members,
copied in switches; ends when the last has it. reduce: the sum of rank and members, added in switches, to the rank."""
_TREES = {MULTICAST: Carried.MULTICAST, REDUCE: Carried.SUM}
_RECEIVE_OP, _SEND_OP, _DRAIN_OP, _DELAY_OP, _COMPUTE_OP, _STOP_OP = (
    1,
    0,
    2,
    3,
    4,
    7,
)  # Op of cpp/include/busbw/sim/program.hpp
_MOST_NAMED = 6
_MOST_RANKS = 1 << 24
"""As `--ranks` takes. A guess at what is asked."""
_MOST_PS = float(1 << 63)
"""Where the clock of the core ends: 106 days."""
_TASK_BYTES = 1000
"""Of memory that a task takes until it runs: 6 instructions of 32 bytes, twice, and columns. A guess."""


@dataclass(frozen=True, slots=True, eq=False)
class TaskGraph:
    """Tasks of `ranks` ranks, and what must end before each begins."""

    ranks: int
    kind: IntArray
    """(T,)."""
    rank: IntArray
    """(T,) who does it; the source of a transfer or send."""
    peer: IntArray
    """(T,) the destination of a transfer or send; else -1."""
    size_bytes: IntArray
    """(T,)."""
    time_ps: IntArray
    """(T,) of computing; else 0."""
    match: IntArray
    """(T,) the send that a receive waits for; else -1."""
    before: IntArray
    """(E,) this task ends ..."""
    after: IntArray
    """(E,) ... before this one begins."""
    names: tuple[str, ...]
    """(T,) as the file calls them."""
    member_begin: IntArray | None = None
    """(T + 1,) where each task's members begin; None: no task has any."""
    members: IntArray | None = None
    """Ranks of multicasts and reductions beside their own."""

    def __len__(self) -> int:
        return len(self.kind)

    def check(self) -> None:
        """Raises InputError for ranks and tasks that are not there, and for tasks that wait for each other in a ring."""
        if not len(self):
            raise InputError("the graph has no tasks, so there is nothing to simulate. Give it some.")
        if not 1 <= self.ranks < _MOST_RANKS:
            raise InputError(f"the graph has {self.ranks:,} ranks; 1 to {_MOST_RANKS - 1:,} are simulated.")
        alone = np.flatnonzero(np.isin(self.kind, (TRANSFER, SEND)) & (self.peer == self.rank))
        if len(alone):
            task = int(alone[0])
            raise InputError(
                f"task {self.names[task]}: rank {self.rank[task]} sends to itself, which crosses no link. Leave it out, or write what the copy "
                "takes as a computation."
            )
        if len(self.before) and (
            min(self.before.min(), self.after.min()) < 0 or max(self.before.max(), self.after.max()) >= len(self)
        ):
            raise InputError(
                "the graph has a dependency on a task that is not there. Give every task that others name."
            )
        for task in np.flatnonzero((self.kind == MULTICAST) | (self.kind == REDUCE)).tolist():
            members = self.members_of(task)
            if not len(members) or len(np.unique(members)) < len(members) or (members == self.rank[task]).any():
                raise InputError(f"task {self.names[task]}: name at least one other rank in to, each once.")
            if members.min() < 0 or members.max() >= self.ranks:
                raise InputError(
                    f"task {self.names[task]}: rank {members.max()} is not there; ranks are 0 to {self.ranks - 1}."
                )
        for what, column in (("rank", self.rank), ("peer", self.peer)):
            wrong = np.flatnonzero(
                (column >= self.ranks)
                | ((column < 0) & ((what == "rank") | (self.kind == TRANSFER) | (self.kind == SEND)))
            )
            if len(wrong):
                name = self.names[int(wrong[0])]
                raise InputError(
                    f"task {name}: {what} {column[wrong[0]]} is not there; ranks are 0 to {self.ranks - 1}."
                )
        ring = _ring(self)
        if ring:
            shown = " -> ".join(self.names[task] for task in (*ring[:_MOST_NAMED], ring[0]))
            more = f" (and {len(ring) - _MOST_NAMED} between)" if len(ring) > _MOST_NAMED else ""
            raise InputError(
                f"the graph has a cycle: {shown}{more}. None of these tasks can begin; remove one dependency."
            )

    def members_of(self, task: int) -> IntArray:
        """The other ranks of a multicast or reduction."""
        if self.member_begin is None or self.members is None:
            return np.empty(0, np.int64)
        return self.members[self.member_begin[task] : self.member_begin[task + 1]]

    def _ways(self, network: Network, carries: IntArray) -> Ways:
        """Of the tasks that carry something, trees with each link once."""
        trees = np.flatnonzero(np.isin(self.kind[carries], list(_TREES)))
        if not len(trees):
            return network.ways(self.rank[carries], self.peer[carries])
        plain = np.flatnonzero(~np.isin(self.kind[carries], list(_TREES)))
        parts = [(plain, network.ways(self.rank[carries[plain]], self.peer[carries[plain]]))]
        for row in trees.tolist():
            task = int(carries[row])
            members = self.members_of(task)[None, :]
            parts.append((np.array([row]), network.trees(self.rank[[task]], members, _TREES[int(self.kind[task])])))
        return merged(parts, len(carries))

    def expand(
        self, network: Network, watch: Watch | None = None, slowness: IntArray | None = None
    ) -> tuple[TaskProgram, Expansion]:
        """The graph for the core: a stream a task. slowness: (N,) as `Conditions.slowness` gives it. Raises ValueError where no way leads."""
        tasks, watch = len(self), watch or Watch()
        watch.look(f"{tasks:,} tasks were laid out", tasks * _TASK_BYTES)
        if self.ranks > network.ranks:
            raise ValueError(f"the graph has {self.ranks:,} ranks, the cluster {network.ranks:,}: take more nodes")
        carries = np.flatnonzero(np.isin(self.kind, (TRANSFER, SEND, MULTICAST, REDUCE)))
        matched = np.flatnonzero(self.match >= 0)
        receiver = carries.copy()
        place = {int(task): number for number, task in enumerate(carries)}
        for task in matched:
            receiver[place[int(self.match[task])]] = task
        order = np.argsort(self.before, kind="stable")
        edges_from, edges_to = self.before[order], self.after[order]
        sources = np.unique(edges_from)
        fan = np.searchsorted(edges_from, sources, "right") - np.searchsorted(edges_from, sources, "left")
        channels, ports = len(carries) + len(sources), len(carries) + len(edges_to)
        port_stream = np.r_[receiver, edges_to]
        watch.look("ways were computed")
        ways = self._ways(network, carries)
        links, dense = np.unique(ways.link, return_inverse=True)
        # Ports of a stream: edges into it and the message it waits for. A transfer waits for its own, after it has sent.
        told = np.isin(self.kind, (TRANSFER, MULTICAST, REDUCE))
        own = told[receiver]
        first = np.r_[np.flatnonzero(~own), len(carries) + np.arange(len(edges_to))]
        table = np.r_[first, np.flatnonzero(own)]
        late = np.r_[np.zeros(len(first), np.int64), np.ones(int(own.sum()), np.int64)]
        at = np.lexsort((late, port_stream[table]))
        table = table[at]
        waits = np.bincount(port_stream[first], minlength=tasks)
        has_channel, has_token = np.zeros(tasks, bool), np.zeros(tasks, bool)
        has_channel[carries], has_token[sources] = True, True
        watch.look("instructions were written")
        code = np.zeros((tasks, 6, 4), np.int64)
        code[:, 0] = np.stack(
            [np.full(tasks, _RECEIVE_OP), np.zeros(tasks, np.int64), waits, np.zeros(tasks, np.int64)], 1
        )
        code[:, 1, 0], code[:, 1, 3] = np.where(self.kind == DELAY, _DELAY_OP, _COMPUTE_OP), self.time_ps
        code[has_channel, 1] = np.stack(
            [np.zeros(len(carries)), np.zeros(len(carries)), np.ones(len(carries)), self.size_bytes[carries]], 1
        )
        code[:, 2, 0] = _DRAIN_OP
        code[self.kind == SEND, 2, 2] = 1
        code[:, 3, 0] = _RECEIVE_OP
        code[told, 3, 1] = waits[told]
        code[told, 3, 2] = 1
        code[:, 4, 0], code[:, 4, 1] = _SEND_OP, has_channel
        code[has_token, 4, 2] = 1
        code[:, 5, 0] = _STOP_OP
        flow = _flow.Program()
        flow.set_code(code.ravel())
        streams_channels = np.r_[0, np.cumsum(has_channel.astype(np.int64) + has_token)]
        channel_of = np.r_[carries, sources]
        channel_numbers = np.argsort(
            channel_of * 2 + np.r_[np.zeros(len(carries)), np.ones(len(sources))], kind="stable"
        )
        stream_ports = np.r_[0, np.cumsum(np.bincount(port_stream, minlength=tasks))]
        nothing32, nothing64 = np.empty(0, np.int32), np.empty(0, np.int64)
        flow.set_streams(
            (np.arange(tasks) * 6).astype(np.int32), streams_channels, channel_numbers.astype(np.int32), stream_ports,
            table.astype(np.int32), slowness[self.rank] if slowness is not None else nothing64, np.empty(0, np.int8),
        )  # fmt: skip
        way = np.r_[np.arange(len(carries)), np.full(len(sources), -1)].astype(np.int32)
        flow.set_channels(
            way,
            nothing64,
            nothing32,
            nothing32,
            nothing32,
            np.r_[np.arange(len(carries) + 1), len(carries) + np.cumsum(fan)],
            nothing64,
            nothing64,
        )
        latency = np.r_[ways.latency_ps, np.zeros(len(edges_to), np.int64)]
        flow.set_ports(port_stream.astype(np.int32), latency)
        flow.set_ways(ways.begin.astype(np.int64), dense.astype(np.int32), ways.share.astype(np.int32))
        capacity = rate_units(network.rates_of(links)[0]) if len(links) else nothing64
        _refuse_long(self, capacity, latency, slowness)
        flow.set_capacity(capacity)
        flow.share_unit = ways.share_unit
        nobody = Table(np.arange(self.ranks), np.empty((self.ranks, 0), np.int64))
        program = TaskProgram(
            self.ranks,
            (Stream("task", ()),),
            (Channel("message", "task", "task", nobody), Channel("dependency", "task", "task", nobody)),
        )
        begin = np.r_[ways.begin, np.full(len(sources), ways.begin[-1])]
        ends = np.r_[np.where(self.peer[carries] >= 0, self.peer[carries], self.rank[carries]), self.rank[sources]]
        columns: dict[str, Any] = {
            "stream_name": np.zeros(tasks, np.int64), "stream_rank": self.rank, "src_rank": np.r_[self.rank[carries], self.rank[sources]],
            "channel_name": np.r_[np.zeros(len(carries), np.int64), np.ones(len(sources), np.int64)], "dst_rank": ends,
            "latency_ps": np.r_[ways.latency_ps, np.zeros(channels - len(carries), np.int64)], "crossings": partial(Crossings, begin, dense.astype(np.int32), ways.share), "share_unit": ways.share_unit, "link": links,
            "capacity": capacity,
        }  # fmt: skip
        assert ports == len(port_stream)
        return program, Expansion(flow, Orbits(network, ()), **columns)


def _refuse_long(graph: TaskGraph, capacity: IntArray, latency: IntArray, slowness: IntArray | None) -> None:
    """Raises ValueError for a graph whose tasks, one after another over the slowest link, could outlast the clock."""
    times = graph.time_ps.astype(np.float64)
    if slowness is not None:
        times *= slowness[graph.rank] / float(SLOWNESS_UNIT)
    slowest = float(capacity[capacity > 0].min(initial=np.iinfo(np.int64).max)) / RATE_UNITS_PER_BYTE
    messages = float(graph.size_bytes.astype(np.float64).sum()) / slowest * 1e12 if len(capacity) else 0.0
    computing, waiting = float(times.sum()), float(latency.astype(np.float64).sum())
    if computing + messages + waiting >= _MOST_PS:
        raise ValueError(
            f"the graph may take too long: its tasks compute {computing * 1e-12:.4g} s and send {messages * 1e-12:.4g} s one after another, "
            f"and the clock ends after {_MOST_PS * 1e-12:.4g} s. Are its times and sizes in the right unit?"
        )


def _ring(graph: TaskGraph) -> list[int]:
    """Tasks that wait for each other, in order; none where all can run. A receive waits for its send."""
    before = np.r_[graph.before, graph.match[graph.match >= 0]]
    after = np.r_[graph.after, np.flatnonzero(graph.match >= 0)]
    order = np.argsort(before, kind="stable")
    to, begin = after[order], np.searchsorted(before[order], np.arange(len(graph) + 1))
    left = np.bincount(after, minlength=len(graph))
    ready = np.flatnonzero(left == 0).tolist()
    done = 0
    while ready:
        task = ready.pop()
        done += 1
        for next_one in to[begin[task] : begin[task + 1]].tolist():
            left[next_one] -= 1
            if left[next_one] == 0:
                ready.append(next_one)
    if done == len(graph):
        return []
    waiting_for = {int(b): int(a) for a, b in zip(before, after, strict=True) if left[a] > 0 and left[b] > 0}
    task, seen = next(iter(waiting_for)), []
    while task not in seen:
        seen.append(task)
        task = waiting_for[task]
    return seen[seen.index(task) :][::-1]
