"""TaskProgram: what every rank does, written once for all of them, so that 131,072 ranks take no more room than two.

Streams run instructions; channels carry messages between streams. Who talks to whom is a rule on rank numbers (`Peers`),
and loops stay loops. Nothing here knows an algorithm by name: plans, workloads and traces all become one of these.
Legend: R ranks that run a stream, k channels of one name that each of them sends on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from busbw.hardware.links import FloatArray, IntArray
from busbw.simulation.peers import Peers

__all__ = [
    "Carried", "Channel", "Compute", "Delay", "Drain", "Free", "Instruction", "Loop", "Put", "Receive", "Send", "Stream",
    "Take", "TaskProgram",
]  # fmt: skip


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
class Put:
    """Like Send, but nobody is told when it arrives; a later message of the same channel tells of it."""

    channel: str
    size_bytes: int | None = None
    """None: the channel's own sizes."""


@dataclass(frozen=True, slots=True)
class Take:
    """Like Receive, but the messages' slots stay taken until Free."""

    channel: str


@dataclass(frozen=True, slots=True)
class Free:
    """Gives one slot back on each channel of this name that leads here."""

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


Instruction: TypeAlias = Send | Put | Receive | Take | Free | Drain | Delay | Compute | Loop


class Carried(StrEnum):
    """What a channel's messages are: from whom, to whom, and over which links. The poster is the rank that runs `source`."""

    MESSAGE = "message"
    """From the poster to one peer; a rank has one channel a peer."""
    PULL = "pull"
    """From one peer to the poster, who is told after the way there and back: a load, an RDMA read."""
    MULTICAST = "multicast"
    """From the poster to all peers, copied in switches: a tree, each link once."""
    SUM = "sum"
    """From all peers and the poster, added in switches, to the poster, who is told."""
    SUM_TO_ALL = "sum_to_all"
    """The same, and the sum to all peers, who are told, too."""
    SUM_AND_STORE = "sum_and_store"
    """The same, but only the poster is told."""


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
    kind: Carried = Carried.MESSAGE
    """Beside MESSAGE and PULL a rank has one channel for all its peers."""
    credit: bool = False
    """A slot that is given back is known to the sender only after the latency of the way back; else at once."""
    overhead_s: float = 0.0
    """From when a message's turn comes on the channel to its first byte."""
    gap_s: float = 0.0
    """Least time from one message's begin to the next, of one rank over all channels of the same `injector`: 1 / message rate."""
    injector: str = ""
    """What limits the rate of messages, such as a NIC. The channel itself where this is empty."""


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
        for channel in self.channels:
            if channel.kind in _TOLD_POSTER and channel.source != channel.target:
                raise ValueError(
                    f"channel {channel.name}: {channel.kind} comes back to {channel.source}, not to {channel.target}"
                )
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


_TOLD_POSTER = (Carried.PULL, Carried.SUM, Carried.SUM_TO_ALL, Carried.SUM_AND_STORE)


def _channels_used(body: tuple[Instruction, ...]) -> Iterator[tuple[str, bool]]:
    for step in body:
        if isinstance(step, Loop):
            yield from _channels_used(step.body)
        elif isinstance(step, (Send, Put, Receive, Take, Free, Drain)):
            yield step.channel, not isinstance(step, (Receive, Take, Free))
