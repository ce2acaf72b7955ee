"""What one fact is: a message, a setting, a connection, a figure, a device, a collective, each with the line that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from busbw.diagnosis.findings import LineRef

__all__ = [
    "Collective",
    "Counter",
    "Curve",
    "Device",
    "Event",
    "Growth",
    "LinkGroup",
    "Pair",
    "Point",
    "Port",
    "Process",
    "Progress",
    "Setting",
    "UnnumberedCalls",
]


@dataclass(frozen=True, slots=True)
class Event:
    """One message with its meaning. `fields` are the template's."""

    name: str
    at: LineRef
    text: str
    level: str | None = None
    time_ns: int | None = None
    host: str | None = None
    pid: int | None = None
    device: int | None = None
    rank: int | None = None
    location: str | None = None
    function: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)

    def number(self, name: str) -> int | None:
        """A field as an integer; None if it is missing or no number."""
        try:
            return int(self.fields[name], 10)
        except (KeyError, ValueError):
            return None

    @property
    def file(self) -> str:
        """Source file of the message without folder, such as `net_ib.cc`; empty if the line names none."""
        return (self.location or "").rsplit("/", 1)[-1].split(":", 1)[0]


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable that is set, for one process or for the job."""

    name: str
    value: str
    origin: str
    at: LineRef
    host: str | None = None
    pid: int | None = None
    rank: int | None = None


@dataclass(slots=True)
class LinkGroup:
    """Connections of one process that are alike: same device, direction and `via`."""

    host: str | None
    pid: int | None
    device: int | None
    direction: str | None
    via: str
    at: LineRef
    count: int
    src_rank: int | None
    dst_rank: int | None

    @property
    def transport(self) -> str:
        """P2P, SHM, NET, COLLNET."""
        return self.via.split("/", 1)[0]

    @property
    def network(self) -> str | None:
        """IB, Socket, Libfabric ... of a NET connection."""
        parts = self.via.split("/")
        return parts[1] if parts[0] == "NET" and len(parts) > 1 else None

    @property
    def gpudirect(self) -> bool:
        """Whether the NIC reads or writes GPU memory itself. NCCL appends /GDRDMA (src/transport/net.cc)."""
        return "GDRDMA" in self.via


@dataclass(slots=True)
class Process:
    """What one process (host and pid) said of itself."""

    host: str | None
    pid: int | None
    ranks: set[int] = field(default_factory=set)
    devices: set[int] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)

    @property
    def name(self) -> str:
        """For people: rank if known, else host and pid."""
        if len(self.ranks) == 1:
            return f"rank {next(iter(self.ranks))}"
        return f"{self.host or 'a host'}:{self.pid}" if self.pid is not None else (self.host or "a process")

    def first(self, name: str) -> Event | None:
        """First event of that name."""
        return next((e for e in self.events if e.name == name), None)


@dataclass(frozen=True, slots=True)
class Point:
    """One row of a benchmark, one half."""

    size_bytes: int | None
    time_ns: int | None
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    wrong: float | None
    in_place: bool | None
    at: LineRef


@dataclass(slots=True)
class Curve:
    """One table of a benchmark: points in the order of the file."""

    tool: str
    artefact: str
    table_index: int
    collective: str | None
    ranks: int | None
    nodes: int | None
    points: list[Point] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Pair:
    """A figure between two ends."""

    tool: str
    quantity: str
    src: str
    dst: str
    value: float
    unit: str
    at: LineRef


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter or gauge at one moment: of those of one series the last one read."""

    host: str | None
    device: str | None
    name: str
    value: float
    at: LineRef
    port: int | None = None
    time_ns: int | None = None
    labels: tuple[tuple[str, str], ...] = ()
    """What else tells this series from others, sorted by key."""

    @property
    def place(self) -> str:
        """Where it was counted: the host, else the file."""
        return self.host or self.at.path

    def label(self, name: str) -> str | None:
        """The value of a label; None without it."""
        return next((value for key, value in self.labels if key == name), None)


@dataclass(frozen=True, slots=True)
class Growth:
    """How much a counter grew between the first and the last time it was read."""

    first: Counter
    last: Counter

    @property
    def by(self) -> float:
        """Never negative: a counter that was reset has not grown."""
        return max(0.0, self.last.value - self.first.value)

    @property
    def at(self) -> LineRef:
        """The line of the later reading."""
        return self.last.at


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a NIC or of a switch, and what is at the other end of its cable."""

    host: str | None
    device: str | None
    node_kind: str | None
    port: int | None
    guid: str | None
    link_layer: str | None
    state: str | None
    physical_state: str | None
    width: int | None
    rate_bytes_per_s: float | None
    possible_width: int | None
    possible_rate_bytes_per_s: float | None
    mtu_bytes: int | None
    peer: str | None
    peer_port: int | None
    at: LineRef

    @property
    def place(self) -> str:
        """The host, else the file."""
        return self.host or self.at.path

    @property
    def name(self) -> str:
        """For people: host, device and port."""
        device = self.device or "a device"
        port = f" port {self.port}" if self.port is not None else ""
        return f"{self.host} {device}{port}" if self.host and not device.startswith(self.host) else f"{device}{port}"

    @property
    def active(self) -> bool:
        """Whether data can pass."""
        return (self.state or "").lower().endswith("active")

    @property
    def on_switch(self) -> bool:
        """Whether it is a switch's."""
        return (self.node_kind or "").lower().startswith("switch")


@dataclass(frozen=True, slots=True)
class Device:
    """A device as a tool described it."""

    host: str | None
    kind: str
    bus_id: str | None
    name: str | None
    attributes: Mapping[str, str]
    at: LineRef

    @property
    def place(self) -> str:
        """The host, else the file."""
        return self.host or self.at.path

    def number(self, name: str) -> float | None:
        """An attribute as a number; None if it is missing or none."""
        try:
            return float(self.attributes[name])
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective as one rank saw it. `seq` counts within the group."""

    source: str
    group: str | None
    desc: str | None
    members: tuple[int, ...]
    ranks: int | None
    rank: int | None
    host: str | None
    seq: int
    op: str | None
    name: str
    is_p2p: bool
    size_bytes: int | None
    input_numel: int | None
    output_numel: int | None
    dtype: str | None
    state: str | None
    retired: bool
    created_ns: int | None
    completed_ns: int | None
    duration_ns: int | None
    at: LineRef
    peer: int | None = None
    """The other rank of a send or receive, by its number in the group."""
    pid: int | None = None
    device: int | None = None

    @property
    def place(self) -> tuple[int | None, int | None]:
        """Process and GPU, where the rank is not known: a file may hold several."""
        return (self.pid, self.device) if self.rank is None else (None, None)

    @property
    def done(self) -> bool:
        """Whether it completed; gloo never says so in `state`, but retires it."""
        return self.state == "completed" or self.retired


@dataclass(slots=True)
class UnnumberedCalls:
    """Calls of one rank with one collective, size and group, of a tool that does not number them: they cannot be matched between ranks, only counted."""

    source: str
    group: str | None
    desc: str | None
    members: tuple[int, ...]
    ranks: int
    rank: int | None
    host: str | None
    op: str
    size_bytes: int
    calls: int
    shortest_ns: int
    spent_ns: int
    at: LineRef
    """The shortest."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one rank is in a group or communicator, in all operations or in one."""

    source: str
    group: str | None
    op: str | None
    ranks: int | None
    rank: int | None
    host: str | None
    pid: int | None
    last_enqueued: int | None
    last_completed: int | None
    at: LineRef
