"""Chakra execution traces (.et): a file a rank, messages of protobuf behind their lengths, maybe gzipped.

First GlobalMetadata{version 1, attr 2}, then Node{id 1, name 2, type 3, ctrl_deps 4, data_deps 5, start_time_micros 6, duration_micros 7, attr 10}.
Attributes: comm_type, comm_size (bytes), comm_src, comm_dst, comm_tag, pg_name, num_ops. A node comes after its data dependencies; those of control name
who called it, and Chakra's feeder does not wait for them. The k-th collective of a process group is the same on all ranks that have the group's name in their trace; nodes without one are of all ranks.
Nodes of computing without a duration take num_ops over the rate that is given, else no time, and are counted.
Source: mlcommons/chakra 21585d8, schema/protobuf/et_def.proto; attributes as its feeder and ASTRA-sim read them.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from busbw.errors import InputError, Losses
from busbw.simulation.formats.building import GraphBuilder
from busbw.simulation.formats.protobuf import DamagedError, Value, fields, packed_varints, signed, split
from busbw.simulation.graph import TaskGraph

__all__ = ["is_chakra", "read_chakra"]

_MEM_LOAD, _MEM_STORE, _COMP, _SEND, _RECV, _COLL = range(2, 8)  # NodeType
_COLLECTIVES = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter", "reduce_scatter", "barrier",
)  # fmt: skip
"""CollectiveCommType, in its order."""
_PS_PER_US = 1_000_000
_MOST_ATTRIBUTES = 256
_LONGEST_NAME = 120


@dataclass(slots=True)
class _Node:
    id: int = 0
    name: str = ""
    type: int = 0
    after: list[int] = field(default_factory=list)
    duration_us: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    group: str = ""


def is_chakra(head: bytes) -> bool:
    """Whether a file begins as one: a message that holds a version or attributes, and nothing else."""
    try:
        _, first = next(split(head[: 1 << 20]), (0, b""))
        found = list(fields(first))
    except DamagedError:
        return False
    return bool(found) and all(number in (1, 2) and isinstance(value, bytes) for number, value in found)


def read_chakra(
    files: Mapping[int, tuple[str, bytes]],
    losses: Losses,
    *,
    ranks: int | None = None,
    flops_per_s: float | None = None,
) -> TaskGraph:
    """The graph of the traces of some ranks. ranks: of the job; others than given do as the first of their group (None: those given are all).

    Raises InputError for a file that is cut or is none, with where.
    """
    count = ranks if ranks is not None else max(files) + 1
    if max(files) >= count:
        raise InputError(f"{files[max(files)][0]}: a trace of rank {max(files)}, but there are {count} ranks.")
    builder = GraphBuilder(count, next(iter(files.values()))[0])
    work = _Work(builder, losses, flops_per_s)
    for rank in sorted(files):
        path, data = files[rank]
        work.rank(rank, path, data)
    work.match_messages()
    work.join_collectives(count)
    return builder.graph()


@dataclass(slots=True)
class _Work:
    builder: GraphBuilder
    losses: Losses
    flops_per_s: float | None
    sent: dict[tuple[int, int, int], deque[int]] = field(default_factory=lambda: defaultdict(deque))
    awaited: dict[tuple[int, int, int], deque[int]] = field(default_factory=lambda: defaultdict(deque))
    groups: dict[str, dict[int, list[tuple[str, int, str, int, int]]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """By group and rank: kind, bytes, name, task of coming, task of going."""

    def rank(self, rank: int, path: str, data: bytes) -> None:
        """Takes in one rank's trace."""
        nodes: list[_Node] = []
        try:
            for number, (offset, message) in enumerate(split(data)):
                if number:
                    try:
                        nodes.append(_node(message))
                    except DamagedError as error:
                        raise DamagedError(str(error), offset + error.offset) from None
        except DamagedError as error:
            raise InputError(
                f"{path}: byte {error.offset}: {error}. This is no Chakra trace, or it is cut; {len(nodes)} nodes stand before."
            ) from None
        ends: dict[int, int] = {}
        begins: dict[int, int] = {}
        for node in nodes:
            if node.id in ends:
                self.losses.add(
                    "duplicate-node", None, f"{path}: two nodes have the id {node.id}; the second was left out"
                )
                continue
            begins[node.id], ends[node.id] = self.node(rank, path, node)
        for node in nodes:
            known = [ends[earlier] for earlier in node.after if earlier in ends]
            missing = len(node.after) - len(known)
            if missing:
                self.losses.add(
                    "unknown-dependency",
                    None,
                    f"{path}: node {node.id} comes after nodes that are not there; it does not wait for them",
                )
            self.builder.comes_after(begins[node.id], [task for task in known if task != ends[node.id]])

    def node(self, rank: int, path: str, node: _Node) -> tuple[int, int]:
        """The tasks that stand for its begin and its end."""
        builder, name = self.builder, f"rank {rank} {node.name[:_LONGEST_NAME]}"
        size = max(0, node.numbers.get("comm_size", 0))
        if node.type in (_SEND, _RECV):
            sends = node.type == _SEND
            other = node.numbers.get("comm_dst" if sends else "comm_src", -1)
            tag = node.numbers.get("comm_tag", 0)
            if not 0 <= other < builder.ranks:
                self.losses.add(
                    "unknown-peer",
                    None,
                    f"{path}: {node.name[:40]} is with rank {other}, which has no trace; it takes no time",
                )
            elif sends:
                task = builder.send(rank, name, other, size)
                self.sent[rank, other, tag].append(task)
                return task, task
            else:
                task = builder.receive(rank, name, size)
                self.awaited[other, rank, tag].append(task)
                return task, task
        elif node.type == _COLL:
            kind = node.numbers.get("comm_type", -1)
            if 0 <= kind < len(_COLLECTIVES):
                come, go = builder.compute(rank, name, 0), builder.compute(rank, name, 0)
                self.groups[node.group].setdefault(rank, []).append(
                    (_COLLECTIVES[kind], size, node.name[:_LONGEST_NAME], come, go)
                )
                return come, go
            if kind != -1:  # without one it is the host's side of a call, which takes its time
                self.losses.add(
                    "unknown-collective",
                    None,
                    f"{path}: {node.name[:40]} has the comm_type {kind}; it takes its duration",
                )
        task = builder.compute(rank, name, self.time_ps(path, node))
        return task, task

    def time_ps(self, path: str, node: _Node) -> int:
        """Of computing, of memory, and of calls that are no collective; 0 for metadata and messages."""
        if node.type not in (_COMP, _MEM_LOAD, _MEM_STORE, _COLL):
            return 0
        if node.duration_us or node.type == _COLL:
            return min(node.duration_us, 1 << 40) * _PS_PER_US
        operations = node.numbers.get("num_ops", 0)
        if operations > 0 and self.flops_per_s is not None:
            return round(operations / self.flops_per_s * 1e12)
        if operations > 0 or node.type != _COMP:
            what = "says how many operations" if operations > 0 else "moves memory"
            self.losses.add(
                "no-duration",
                None,
                f"{path}: {node.name[:40]} {what}, and not how long that takes: it takes no time; give --flops",
            )
        return 0

    def match_messages(self) -> None:
        """Sends and receives of one pair and tag meet in their order."""
        for ends, receives in self.awaited.items():
            sends = self.sent[ends]
            while receives and sends:
                self.builder.matched(receives.popleft(), sends.popleft())
        for waiting in (*self.sent.values(), *self.awaited.values()):
            for task in waiting:
                self.builder.unmatched(task)
                self.losses.add(
                    "unmatched-message",
                    None,
                    f"{self.builder.path}: {self.builder.names[task][:60]} has no other end; it takes no time",
                )

    def join_collectives(self, ranks: int) -> None:
        """The k-th of a group on each of its ranks is one collective."""
        for group, by_rank in self.groups.items():
            # Ranks of the job without a trace are members of the group that all are in.
            members = list(range(ranks)) if not group or len(by_rank) == 1 else sorted(by_rank)
            for number in range(max(map(len, by_rank.values()))):
                here = {rank: calls[number] for rank, calls in by_rank.items() if number < len(calls)}
                kinds = {(kind, size) for kind, size, *_ in here.values()}
                kind, size, name, *_ = next(iter(here.values()))
                entered = {rank: call[3] for rank, call in here.items()}
                left = {rank: call[4] for rank, call in here.items()}
                if len(kinds) > 1 or (len(here) < len(by_rank)):
                    what = "differs between ranks" if len(kinds) > 1 else "is missing on some ranks"
                    self.losses.add(
                        "mismatched-collective", None,
                        f"{self.builder.path}: collective {number} of group {group or 'of all'} ({name[:40]}) {what}; it takes no time",
                    )  # fmt: skip
                    for rank, task in left.items():
                        self.builder.comes_after(task, [entered[rank]])
                else:
                    self.builder.collective(kind, members, size, name=name, entered=entered, left=left)


def _node(message: bytes) -> _Node:
    node = _Node()
    attributes = 0
    for number, value in fields(message):
        if number == 1 and isinstance(value, int):
            node.id = value
        elif number == 2 and isinstance(value, bytes):
            node.name = value.decode("utf-8", "replace")
        elif number == 3 and isinstance(value, int):
            node.type = value
        elif number == 5:
            node.after += packed_varints(value)
        elif number == 7 and isinstance(value, int):
            node.duration_us = value
        elif number == 10 and isinstance(value, bytes) and attributes < _MOST_ATTRIBUTES:
            attributes += 1
            _attribute(node, value)
    return node


_READ = frozenset({"comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "num_ops"})


def _attribute(node: _Node, data: bytes) -> None:
    """Name 1, and of the values the whole numbers (7, 9, 11, 13 and zigzag 15, 17, fixed 19 to 25) and texts (29)."""
    name, found = "", []
    for number, value in fields(data):
        if number == 1 and isinstance(value, bytes):
            name = value.decode("utf-8", "replace")
        elif number > 2:
            found.append((number, value))
    for number, value in found[:1]:
        if name in _READ and number in (7, 9, 11, 13, 15, 17, 19, 21, 23, 25):
            whole = _whole(number, value)
            if whole is not None and -(1 << 62) < whole < 1 << 62:
                node.numbers[name] = whole
        elif name in _READ and number in (3, 5) and isinstance(value, bytes):
            node.numbers[name] = _rounded(value)
        elif name == "pg_name" and number == 29 and isinstance(value, bytes):
            node.group = value.decode("utf-8", "replace")


def _whole(number: int, value: Value) -> int | None:
    if number in (15, 17) and isinstance(value, int):
        return (value >> 1) ^ -(value & 1)
    return signed(value)


def _rounded(value: bytes) -> int:
    """The nearest whole number to a double or float; 0 for what is none."""
    import struct  # noqa: PLC0415 - attributes written as floats are rare

    if len(value) not in (4, 8):
        return 0
    number = struct.unpack("<f" if len(value) == 4 else "<d", value)[0]
    return round(number) if math.isfinite(number) and abs(number) < 1 << 62 else 0
