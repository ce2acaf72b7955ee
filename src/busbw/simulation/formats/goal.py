"""GOAL text, the schedule format of LogGOPSim and ATLAHS: read as a graph, written of a program.

`num_ranks N`, then per rank a block of labelled operations and dependencies: `rank 0 {`, `l1: calc 100`, `l2: send 8b to 1 tag 5`,
`l3: recv 8b from 1 tag 6`, `l2 requires l1`, `}`. Times are nanoseconds. `cpu N` and `nic N` behind an operation are
read and not used; `irequires` (begins after the other has begun) is taken as `requires`. Source: spcl/LogGOPSim, README and goal grammar.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from busbw.errors import InputError
from busbw.simulation.graph import COMPUTE, RECEIVE, SEND, TaskGraph
from busbw.simulation.program import (
    Channel,
    Compute,
    Delay,
    Drain,
    Instruction,
    Loop,
    Receive,
    Send,
    Stream,
    TaskProgram,
)

__all__ = ["read_goal", "write_goal"]

_RANKS = re.compile(r"num_ranks\s+(\d{1,9})")
_RANK = re.compile(r"rank\s+(\d{1,9})\s*\{")
_CALC = re.compile(r"(\w+)\s*:\s*calc\s+(\d{1,18})(?:\s+cpu\s+\d+)?")
_MESSAGE = re.compile(
    r"(\w+)\s*:\s*(send|recv)\s+(\d{1,18})b\s+(?:to|from)\s+(\d{1,9})((?:\s+(?:tag|cpu|nic)\s+\d{1,18})*)"
)
_REQUIRES = re.compile(r"(\w+)\s+i?requires\s+(\w+)")
_TAG = re.compile(r"tag\s+(\d+)")
_PS_PER_NS = 1000


def read_goal(text: str, path: str) -> TaskGraph:
    """The graph, not yet checked for cycles. Raises InputError with the line that is wrong, or with a message that has no other end, or one of another size."""
    rows: list[tuple[int, int, int, int, int]] = []
    names: list[str] = []
    lines: list[int] = []
    labels: dict[str, int] = {}
    edges: list[tuple[str, str, int]] = []
    before: list[int] = []
    after: list[int] = []
    sent: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
    awaited: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
    ranks, rank = 0, -1

    def close() -> None:
        for later, earlier, line in edges:
            for label in (later, earlier):
                if label not in labels:
                    raise InputError(f"{path}:{line}: no operation {label} in rank {rank}.")
            before.append(labels[earlier])
            after.append(labels[later])
        labels.clear()
        edges.clear()

    for number, line in enumerate(text.splitlines(), 1):
        said = line.split("//")[0].split("#")[0].strip().rstrip(";")
        if not said:
            continue
        if (found := _RANKS.fullmatch(said)) is not None:
            ranks = int(found[1])
        elif (found := _RANK.fullmatch(said)) is not None:
            rank = int(found[1])
        elif said == "}":
            close()
            rank = -1
        elif rank < 0:
            raise InputError(
                f"{path}:{number}: {said[:60]!r} stands outside of a rank. This is no GOAL text, or a block is missing."
            )
        elif (found := _REQUIRES.fullmatch(said)) is not None:
            edges.append((found[1], found[2], number))
        else:
            calc, message = _CALC.fullmatch(said), _MESSAGE.fullmatch(said)
            label = calc[1] if calc else message[1] if message else ""
            if not label or labels.setdefault(label, len(rows)) != len(rows):
                what = f"{label} is given twice" if label else f"{said[:60]!r} is no operation"
                raise InputError(
                    f"{path}:{number}: {what}; operations are calc, send and recv, each with a label of its own."
                )
            if calc:
                rows.append((COMPUTE, rank, -1, 0, int(calc[2]) * _PS_PER_NS))
            elif message:
                tag = _TAG.search(message[5])
                other, mark = int(message[4]), int(tag[1]) if tag else 0
                sends = message[2] == "send"
                (sent[rank, other, mark] if sends else awaited[other, rank, mark]).append(len(rows))
                rows.append((SEND if sends else RECEIVE, rank, other if sends else -1, int(message[3]), 0))
            names.append(f"rank {rank} {label}")
            lines.append(number)
    if rank >= 0:
        raise InputError(f"{path}: rank {rank} has no end. The file looks cut.")
    if not ranks:
        raise InputError(f"{path}:1: no `num_ranks N`. This is no GOAL text.")
    match = np.full(len(rows), -1, np.int64)
    for ends, receives in awaited.items():
        for task in receives:
            if not sent[ends]:
                raise InputError(
                    f"{path}: {names[task]} waits for a message from rank {ends[0]} with tag {ends[2]} that is never sent."
                )
            match[task] = sent[ends].popleft()
            posted, wanted = rows[match[task]][3], rows[task][3]
            if posted != wanted:
                raise InputError(
                    f"{path}:{lines[task]}: {names[task]} waits for {wanted} bytes from rank {ends[0]} with tag {ends[2]}, but the message that meets it, "
                    f"{path}:{lines[match[task]]}: {names[match[task]]}, has {posted}. Give them one size, or tags that tell messages apart."
                )
    for left in sent.values():
        if left:
            raise InputError(f"{path}: {names[left[0]]} sends a message that nobody receives.")
    kind, who, peer, size, time = (
        np.array(column, np.int64) for column in (zip(*rows, strict=True) if rows else ((),) * 5)
    )
    return TaskGraph(
        ranks, kind, who, peer, size, time, match, np.array(before, np.int64), np.array(after, np.int64), tuple(names)
    )


# Writing


def write_goal(program: TaskProgram) -> Iterator[str]:
    """Lines of a file whose graph takes as long as the program.

    What a stream waits for becomes `requires`; what is posted stands behind what the stream has waited for, and nothing waits for it but a Drain.
    The number of a channel is the tag. Raises ValueError for what GOAL has no word for: sizes given apart from their channel, limits of a
    channel, streams that begin late.
    """
    for channel in program.channels:
        if channel.slots or channel.weight != 1 or channel.rate_bytes_per_s is not None:
            raise ValueError(f"channel {channel.name} has slots, a weight or a rate, which GOAL does not say")
    for stream in program.streams:
        if stream.start_s is not None or stream.background:
            raise ValueError(f"stream {stream.name} begins late or is not waited for, which GOAL does not say")
        if name := _sized_apart(stream.body, {channel.name for channel in program.channels if not channel.token}):
            raise ValueError(
                f"stream {stream.name} sends on channel {name} with a size of its own, which GOAL does not say"
            )
    return _goal_lines(program)


def _sized_apart(body: tuple[Instruction, ...], channels: set[str]) -> str:
    """A channel on which a message with a size of its own is sent; empty if there is none."""
    for step in body:
        if isinstance(step, Loop):
            if name := _sized_apart(step.body, channels):
                return name
        elif isinstance(step, Send) and step.size_bytes is not None and step.channel in channels:
            return step.channel
    return ""


def _goal_lines(program: TaskProgram) -> Iterator[str]:
    everyone = np.arange(program.ranks)
    senders: dict[str, list[list[int]]] = {}
    receivers: dict[str, list[list[tuple[int, int]]]] = {}
    for channel in program.channels:
        froms: list[list[int]] = [[] for _ in everyone]
        tos: list[list[tuple[int, int]]] = [[] for _ in everyone]
        peers = channel.peers.of(everyone)
        sizes = np.zeros_like(peers) if channel.size_bytes is None else _sizes_of(channel, peers)
        for source, column in zip(*np.nonzero(peers >= 0), strict=True):
            tos[source].append((int(peers[source, column]), int(sizes[source, column])))
            froms[int(peers[source, column])].append(int(source))
        senders[channel.name], receivers[channel.name] = froms, tos
    tags = {channel.name: tag for tag, channel in enumerate(program.channels)}
    tokens = {channel.name for channel in program.channels if channel.token}
    yield f"num_ranks {program.ranks}"
    for rank in range(program.ranks):
        yield f"rank {rank} {{"
        writer = _RankWriter(rank, senders, receivers, tags, tokens)
        for place, stream in enumerate(program.streams):
            if stream.ranks is None or rank in stream.ranks:
                yield from writer.stream(stream, place)
        yield from writer.joins()
        yield "}"


def _sizes_of(channel: Channel, peers: np.ndarray) -> np.ndarray:
    """Sizes by sender; a rule over some ranks lists those only."""
    sizes = np.asarray(channel.size_bytes)
    if len(sizes) == len(peers):
        return sizes
    full = np.zeros_like(peers)
    full[(peers >= 0).any(axis=1)] = sizes
    return full


@dataclass(slots=True)
class _RankWriter:
    """Writes the streams of one rank."""

    rank: int
    senders: dict[str, list[list[int]]]
    receivers: dict[str, list[list[tuple[int, int]]]]
    tags: dict[str, int]
    tokens: set[str]
    labels: int = 0
    posted: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Tokens that were sent, by channel, in order."""
    awaited: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def stream(self, stream: Stream, cpu: int) -> Iterator[str]:
        """The lines of a stream."""
        before: list[str] = []
        """What the next operation waits for."""
        leaving: dict[str, list[str]] = defaultdict(list)

        def one(text: str) -> Iterator[str]:
            self.labels += 1
            yield f"l{self.labels}: {text} cpu {cpu}"
            yield from (f"l{self.labels} requires {label}" for label in before)

        def joined() -> Iterator[str]:
            if len(before) > 1:
                yield from one("calc 0")
                before[:] = [f"l{self.labels}"]

        def run(body: tuple[Instruction, ...]) -> Iterator[str]:
            for step in body:
                if isinstance(step, Loop):
                    for _ in range(step.times):
                        yield from run(step.body)
                elif isinstance(step, Compute | Delay):
                    yield from one(f"calc {round(step.time_s * 1e9)}")
                    before[:] = [f"l{self.labels}"]
                elif isinstance(step, Drain):
                    before.extend(leaving.pop(step.channel, []))
                elif step.channel in self.tokens:
                    yield from one("calc 0")
                    (self.posted if isinstance(step, Send) else self.awaited)[step.channel].append(f"l{self.labels}")
                    if isinstance(step, Receive):
                        before[:] = [f"l{self.labels}"]
                elif isinstance(step, Send):
                    to = self.receivers[step.channel][self.rank]
                    if to:
                        yield from joined()
                    for peer, size in to:
                        yield from one(f"send {size}b to {peer} tag {self.tags[step.channel]}")
                        leaving[step.channel].append(f"l{self.labels}")
                else:
                    yield from joined()
                    arrived = []
                    for peer in self.senders[step.channel][self.rank]:
                        size = next(size for to, size in self.receivers[step.channel][peer] if to == self.rank)
                        yield from one(f"recv {size}b from {peer} tag {self.tags[step.channel]}")
                        arrived.append(f"l{self.labels}")
                    before[:] = arrived or before

        yield from run(stream.body)

    def joins(self) -> Iterator[str]:
        """What waits for tokens of other streams."""
        for channel, labels in self.awaited.items():
            yield from (f"{one} requires {other}" for one, other in zip(labels, self.posted[channel], strict=True))
