"""TaskProgram: what every rank does, written once for all of them, so that 131,072 ranks take no more room than two.

Streams run instructions; channels carry messages between streams. Who talks to whom is a rule on rank numbers (`Peers`),
and loops stay loops. Nothing here knows an algorithm by name: plans, workloads and traces all become one of these.
Legend: N ranks, R ranks that run a stream, k channels of one name that each of them sends on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from busbw.hardware.links import FloatArray, IntArray

__all__ = [
    "Channel", "Compute", "Delay", "Drain", "Instruction", "Loop", "Others", "Peers", "Receive", "Send", "Shift",
    "Stream", "Table", "TaskProgram",
]  # fmt: skip


@runtime_checkable
class Peers(Protocol):
    """A rule that says whom each rank sends to."""

    @property
    def fan(self) -> int:
        """k: channels of each sender."""
        ...

    def of(self, ranks: IntArray) -> IntArray:
        """(R, k): the ranks that these send to, column by column."""
        ...

    def senders(self, ranks: IntArray) -> tuple[IntArray, IntArray]:
        """(R, k) each: who sends to these ranks, and on which column of theirs."""
        ...

    def column(self, sender: IntArray, receiver: IntArray) -> IntArray:
        """The column on which a rank sends to another, given that it does."""
        ...

    def survives(self, moved: IntArray) -> bool:
        """Whether renumbering ranks (r becomes moved[r]) leaves the rule as it is, columns in any order."""
        ...


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


@dataclass(frozen=True, slots=True)
class Shift:
    """Each rank sends to the one that is `by` further along each axis, round and round.

    Ranks are numbered row by row in `shape`.

    >>> Shift((4,), (1,)).of(np.arange(4)).ravel().tolist()
    [1, 2, 3, 0]
    """

    shape: tuple[int, ...]
    by: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.by) or min(self.shape, default=0) < 1:
            raise ValueError(f"a shift of {self.by} in {self.shape}: both need one number an axis, sizes from 1")

    @property
    def fan(self) -> int:
        """One."""
        return 1

    def _moved(self, ranks: IntArray, sign: int) -> IntArray:
        out = np.array(ranks, np.int64)
        for size, stride, by in zip(self.shape, _strides(self.shape), self.by, strict=True):
            if by % size:
                digit = out // stride % size
                out += ((digit + sign * by) % size - digit) * stride
        return out

    def of(self, ranks: IntArray) -> IntArray:
        """(R, 1)."""
        return self._moved(ranks, 1)[:, None]

    def senders(self, ranks: IntArray) -> tuple[IntArray, IntArray]:
        """(R, 1) each."""
        return self._moved(ranks, -1)[:, None], np.zeros((len(ranks), 1), np.int64)

    def column(self, sender: IntArray, receiver: IntArray) -> IntArray:
        """Always 0."""
        return np.zeros(np.broadcast_shapes(np.shape(sender), np.shape(receiver)), np.int64)

    def survives(self, moved: IntArray) -> bool:
        """Asks every rank."""
        return np.array_equal(self._moved(moved, 1), moved[self._moved(np.arange(len(moved)), 1)])


@dataclass(frozen=True, slots=True)
class Others:
    """Each rank sends to all others along one axis of `shape`: first the next one, last the one before it.

    >>> Others((4,), 0).of(np.array([2])).tolist()
    [[3, 0, 1]]
    """

    shape: tuple[int, ...]
    axis: int

    def __post_init__(self) -> None:
        if not 0 <= self.axis < len(self.shape) or min(self.shape) < 1:
            raise ValueError(f"axis {self.axis} of {self.shape} is not there")

    @property
    def fan(self) -> int:
        """All but one."""
        return self.shape[self.axis] - 1

    def _along(self, ranks: IntArray, by: IntArray) -> IntArray:
        size, stride = self.shape[self.axis], math.prod(self.shape[self.axis + 1 :])
        ranks = np.asarray(ranks, np.int64)[:, None]
        digit, by = ranks // stride % size, by % size
        out = np.asarray(ranks + by * stride, np.int64)
        np.subtract(out, size * stride, out=out, where=by >= size - digit)
        return out

    def of(self, ranks: IntArray) -> IntArray:
        """(R, k)."""
        return self._along(ranks, np.arange(1, self.fan + 1))

    def senders(self, ranks: IntArray) -> tuple[IntArray, IntArray]:
        """(R, k) each."""
        columns = np.arange(self.fan)
        return self._along(ranks, -1 - columns), np.broadcast_to(columns, (len(ranks), self.fan))

    def column(self, sender: IntArray, receiver: IntArray) -> IntArray:
        """How much further the receiver is, less 1."""
        size, stride = self.shape[self.axis], math.prod(self.shape[self.axis + 1 :])
        return np.asarray((receiver // stride - sender // stride) % size - 1, np.int64)

    def survives(self, moved: IntArray) -> bool:
        """Whether ranks of one group stay together."""
        size, stride = self.shape[self.axis], math.prod(self.shape[self.axis + 1 :])

        def group(rank: IntArray) -> IntArray:
            return np.asarray(rank // (stride * size) * stride + rank % stride, np.int64)

        became = np.full(len(moved), -1, np.int64)
        before, after = group(np.arange(len(moved))), group(moved)
        became[before] = after
        return np.array_equal(became[before], after)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Who sends to whom, written out: row i are the receivers of the i-th sender, all different; -1 is nobody.

    Ranks that run the sending stream and have no row send to nobody.
    """

    ranks: IntArray
    """(R,) the senders, ascending."""
    receivers: IntArray
    """(R, k)."""

    @property
    def fan(self) -> int:
        """Columns."""
        return int(self.receivers.shape[1])

    def of(self, ranks: IntArray) -> IntArray:
        """(R, k)."""
        if np.array_equal(ranks, self.ranks):
            return np.asarray(self.receivers, np.int64)
        row = np.minimum(np.searchsorted(self.ranks, ranks), len(self.ranks) - 1)
        return np.where((self.ranks[row] == ranks)[:, None], self.receivers[row], -1).astype(np.int64)

    def senders(self, ranks: IntArray) -> tuple[IntArray, IntArray]:
        """(R, k) each, as many columns as the rank with most senders has; -1 where a rank has fewer."""
        rows, columns = np.nonzero(self.receivers >= 0)
        to = self.receivers[rows, columns]
        order = np.argsort(to, kind="stable")
        to, source, column = to[order], self.ranks[rows[order]], columns[order]
        first, last = np.searchsorted(to, ranks, "left"), np.searchsorted(to, ranks, "right")
        most = int((last - first).max(initial=0))
        at = first[:, None] + np.arange(most)
        there = at < last[:, None]
        at = np.where(there, at, 0)
        return np.where(there, source[at], -1), np.where(there, column[at], -1)

    def column(self, sender: IntArray, receiver: IntArray) -> IntArray:
        """Looked up."""
        rows = self.receivers[np.searchsorted(self.ranks, sender)]
        return np.asarray((rows == np.asarray(receiver)[..., None]).argmax(-1), np.int64)

    def survives(self, moved: IntArray) -> bool:
        """Asks every sender."""
        if not np.array_equal(np.sort(moved[self.ranks]), self.ranks):
            return False
        renumbered = np.where(self.receivers >= 0, moved[np.maximum(self.receivers, 0)], -1)
        return np.array_equal(np.sort(self.of(moved[self.ranks]), 1), np.sort(renumbered, 1))


@dataclass(frozen=True, slots=True)
class Send:
    """A message on each of the stream's channels of this name; posted, not waited for."""

    channel: str
    size_bytes: int | None = None
    """None: the channel's own sizes."""


@dataclass(frozen=True, slots=True)
class Receive:
    """Waits for one message on each channel of this name that leads here."""

    channel: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Waits until all that was posted on the channels of this name has left."""

    channel: str


@dataclass(frozen=True, slots=True)
class Delay:
    """Waits this long."""

    time_s: float


@dataclass(frozen=True, slots=True)
class Compute:
    """Computes this long at full speed, longer on a slow rank."""

    time_s: float


@dataclass(frozen=True, slots=True)
class Loop:
    """The body, several times."""

    times: int
    body: tuple[Instruction, ...]


Instruction: TypeAlias = Send | Receive | Drain | Delay | Compute | Loop


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """What one thread of each rank does, in order."""

    name: str
    body: tuple[Instruction, ...]
    ranks: IntArray | None = None
    """(R,) who runs it, ascending; None: all."""
    background: bool = False
    """Nobody waits for it to end."""
    start_s: FloatArray | None = None
    """(R,) when each begins; None: at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Channel:
    """Connections of one kind: from every rank that runs `source` to its peers, which run `target`."""

    name: str
    source: str
    target: str
    peers: Peers
    size_bytes: IntArray | None = None
    """(R, k) sizes of messages that leave theirs open."""
    slots: int = 0
    """Messages posted and not yet received, at most; 0: any number."""
    weight: int = 1
    """Share of a link beside others' flows."""
    rate_bytes_per_s: float | None = None
    """What one connection carries at most, whatever its links could; None: no limit of its own."""
    token: bool = False
    """Carries no bytes and takes no time: order between streams of one place."""


@dataclass(frozen=True, slots=True, eq=False)
class TaskProgram:
    """Streams and channels of `ranks` ranks. Raises ValueError for names that are not there or given twice."""

    ranks: int
    streams: tuple[Stream, ...]
    channels: tuple[Channel, ...]
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ValueError(f"a program has at least one rank, not {self.ranks}")
        streams, channels = {s.name for s in self.streams}, {c.name: c for c in self.channels}
        if len(streams) != len(self.streams) or len(channels) != len(self.channels):
            raise ValueError("two streams or two channels have one name")
        for channel in self.channels:
            for end in (channel.source, channel.target):
                if end not in streams:
                    raise ValueError(f"channel {channel.name}: no stream {end}; there is {', '.join(sorted(streams))}")
        for stream in self.streams:
            for name, sends in _channels_used(stream.body):
                used = channels.get(name)
                if used is None:
                    raise ValueError(f"stream {stream.name}: no channel {name}; there is {', '.join(sorted(channels))}")
                if stream.name != (used.source if sends else used.target):
                    way = "sends on" if sends else "receives from"
                    raise ValueError(
                        f"stream {stream.name} {way} channel {name}, which leads from {used.source} to {used.target}"
                    )


def _channels_used(body: tuple[Instruction, ...]) -> Iterator[tuple[str, bool]]:
    for step in body:
        if isinstance(step, Loop):
            yield from _channels_used(step.body)
        elif isinstance(step, (Send, Receive, Drain)):
            yield step.channel, not isinstance(step, Receive)
