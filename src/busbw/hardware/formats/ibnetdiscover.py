"""`ibnetdiscover`: the switches, adapters and cables of an InfiniBand fabric, as a graph.

    Switch  36 "S-08c0eb0300f6fc26"        # "MF0;sw1:MQM8700/U1" enhanced port 0 lid 4 lmc 0
    [21]    "H-e8ebd303003a3a60"[1](e8ebd303003a3a60)      # "node3 mlx5_0" lid 40 4xEDR

Blocks of one device each, then a line a port. `device_of_line` and `port_of_line` read one line, wherever it stands; a
text of nothing else is read by `read_ibnetdiscover`. Format: rdma-core infiniband-diags/ibnetdiscover.c (out_switch,
out_ca, out_switch_port, out_ca_port).
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace

from busbw.errors import InputError, Loss, count_losses
from busbw.hardware.fabrics import GraphFabric
from busbw.hardware.formats.hostlist import natural_order
from busbw.hardware.formats.read_nodes import latency_s
from busbw.hardware.link_speeds import lane_bytes_per_s
from busbw.hardware.links import NETWORK, LinkTable
from busbw.units import GBIT

__all__ = [
    "IbCable",
    "IbDevice",
    "IbFabric",
    "IbPort",
    "begins_as_port",
    "device_of_line",
    "ends_device",
    "fabric_from_ibnetdiscover",
    "port_of_line",
    "read_ibnetdiscover",
]

MAX_BYTES = 256 * 1024 * 1024
"""Largest text read; 648 hosts take 260 KB."""
_DEVICE = re.compile(
    r'(?P<kind>Switch|Ca|Rt)\s+(?P<ports>\d{1,4})\s+"(?P<id>[SHR]-(?P<guid>[0-9a-f]{1,16}))"\s*# "(?P<name>[^"]{0,256})"'
    r"(?: (?:base|enhanced) port 0 lid (?P<lid>\d{1,5}) lmc \d+)?.*",
    re.ASCII,
)
_PORT = re.compile(
    r'\[(?P<port>\d{1,4})\](?:\[ext \d+\])?(?:\((?P<guid>[0-9a-f]{1,16})\))?\s*"(?P<peer_id>[SHR]-[0-9a-f]{1,16})"\[(?P<peer_port>\d{1,4})\]'
    r"(?:\[ext \d+\])?(?:\([0-9a-f]{1,16}\))?(?P<rest>.*)",
    re.ASCII,
)
_REST = re.compile(
    r'\s*# (?:lid (?P<lid>\d{1,5}) lmc \d+ )?"(?P<peer>[^"]{0,256})" lid \d{1,5} (?P<width>\d{1,2})x(?P<speed>\w{1,8})\b.*',
    re.ASCII,
)
_PORT_BEGINS = re.compile(r'\[[^\]"]{0,24}\]?[^"]{0,40}"[SHR]-[0-9a-f].*# ')
_DEVICE_ENDS = re.compile(r'(?:vendid|devid|sysimgguid|switchguid|caguid|rtguid)=|(?:Switch|Ca|Rt)\s+\d+ "')
_KINDS = {"Switch": "switch", "Ca": "ca", "Rt": "router"}


@dataclass(frozen=True, slots=True)
class IbDevice:
    """A switch, adapter or router."""

    kind: str
    """switch, ca or router."""
    id: str
    """As lines of ports name it: S-, H- or R- and the GUID."""
    guid: str
    """Hexadecimal digits, as printed."""
    name: str
    """The node's description; may be empty."""
    ports: int
    lid: int | None
    """A switch's; adapters have one a port."""
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class IbPort:
    """A port with a partner, as the line of its device tells it."""

    port: int
    guid: str | None
    """The port's, hexadecimal digits; None of a switch, whose ports have none."""
    lid: int | None
    """The port's own; None of a switch."""
    peer_id: str
    peer_port: int
    peer: str | None
    """The partner's description; None, like all below, where the rest of the line is damaged."""
    width: int | None
    bytes_per_s: float | None
    """All lanes, one direction; None too where the speed has no known name."""


@dataclass(frozen=True, slots=True)
class IbCable:
    """A cable, told from one of its ends: device and port at both, and the rate it runs at."""

    a: str
    a_port: int
    b: str
    b_port: int
    bytes_per_s: float | None
    """One direction; None where the file does not say."""


@dataclass(frozen=True, slots=True)
class IbFabric:
    """All devices by id and all cables, each once."""

    path: str
    devices: dict[str, IbDevice]
    cables: tuple[IbCable, ...]


def device_of_line(text: str) -> IbDevice | None:
    """The device whose block begins with this line; None where it is no such line, or a damaged one."""
    found = _DEVICE.fullmatch(text)
    if found is None:
        return None
    lid = int(found["lid"]) if found["lid"] else None
    return IbDevice(_KINDS[found["kind"]], found["id"], found["guid"], found["name"], int(found["ports"]), lid)


def port_of_line(text: str) -> IbPort | None:
    """The port a line tells of; None where it is no such line, or damaged before the partner's port."""
    found = _PORT.fullmatch(text)
    if found is None:
        return None
    rest = _REST.fullmatch(found["rest"])
    lane = lane_bytes_per_s(rest["speed"]) if rest is not None else None
    width = int(rest["width"]) if rest is not None else None
    return IbPort(
        port=int(found["port"]),
        guid=found["guid"],
        lid=int(rest["lid"]) if rest is not None and rest["lid"] else None,
        peer_id=found["peer_id"],
        peer_port=int(found["peer_port"]),
        peer=rest["peer"] if rest is not None else None,
        width=width,
        bytes_per_s=lane * width if lane is not None and width is not None else None,
    )


def begins_as_port(text: str) -> bool:
    """Whether a line begins as that of a port does, damaged or not."""
    return _PORT_BEGINS.match(text) is not None


def ends_device(text: str) -> bool:
    """Whether ports below this line belong to no device above it: what stands before a device, or a damaged head of one."""
    return _DEVICE_ENDS.match(text) is not None


def read_ibnetdiscover(data: bytes | str, path: str) -> tuple[IbFabric, list[Loss]]:
    """The fabric in a text, and what was lost.

    Losses: `fabric-unknown-peer` (a port leads to a device without a block), `fabric-bad-line` (a port line that is
    none), `fabric-unknown-rate`. Raises InputError where no device is found.
    """
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES} bytes. This is no fabric; pass the right file.")
    text = data.decode("utf-8", errors="replace") if isinstance(data, bytes) else data
    devices: dict[str, IbDevice] = {}
    seen: dict[tuple[str, int], tuple[IbCable, int]] = {}
    losses: list[Loss] = []
    at: IbDevice | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if (head := device_of_line(line)) is not None:
            at = devices.setdefault(head.id, replace(head, line=number))
        elif line.startswith("["):
            port = port_of_line(line)
            if port is None or at is None:
                losses.append(Loss("fabric-bad-line", path, number, f"{line[:60]!r} is no port of a device; left out"))
                continue
            if port.bytes_per_s is None:
                detail = "a port without a known width and speed; its cable takes the rate of the others"
                losses.append(Loss("fabric-unknown-rate", path, number, detail))
            cable = IbCable(at.id, port.port, port.peer_id, port.peer_port, port.bytes_per_s)
            seen[at.id, port.port] = cable, number
        elif not line or ends_device(line):
            at = None
    if not devices:
        raise InputError(f"{path}: no switch and no adapter found. Pass what ibnetdiscover printed.")
    cables = []
    for (own, end), (cable, number) in seen.items():
        if cable.b not in devices:
            detail = f"port {end} of {devices[own].name} leads to {cable.b}, which has no block; the cable is left out"
            losses.append(Loss("fabric-unknown-peer", path, number, detail))
        elif (cable.b, cable.b_port) not in seen or (own, end) < (cable.b, cable.b_port):
            cables.append(cable)
    return IbFabric(path, devices, tuple(cables)), count_losses(losses)


def fabric_from_ibnetdiscover(fabric: IbFabric, nics: int) -> tuple[GraphFabric, tuple[str, ...], list[Loss]]:
    """The graph between the NICs of hosts, the hosts' names in the order of nodes, and what was left out.

    A host is the first word of its adapters' names ("host3 HCA-1"); hosts are ordered n2 before n10. A host with
    another number of adapters than `nics` (a subnet manager, a storage server) is left out: `fabric-host-left-out`.
    Raises InputError where no host is left.
    """
    by_host: dict[str, list[IbDevice]] = defaultdict(list)
    for device in fabric.devices.values():
        if device.kind == "ca":
            by_host[(device.name.split() or [device.guid])[0]].append(device)
    losses = []
    hosts = []
    for host in sorted(by_host, key=natural_order):
        if len(by_host[host]) == nics:
            hosts.append(host)
        else:
            line = by_host[host][0].line
            detail = f"{host} has {len(by_host[host])} adapters, a node {nics}; left out"
            losses.append(Loss("fabric-host-left-out", fabric.path, line, detail))
    if not hosts:
        have = sorted({len(devices) for devices in by_host.values()})
        raise InputError(
            f"{fabric.path}: no host with {nics} adapters; hosts have {have}. Choose a node that has as many NICs."
        )
    adapters = [a for host in hosts for a in sorted(by_host[host], key=lambda device: natural_order(device.name))]
    switches = sorted(
        (device for device in fabric.devices.values() if device.kind == "switch"),
        key=lambda device: natural_order(device.name),
    )
    at = {device.id: vertex for vertex, device in enumerate([*adapters, *switches])}
    known = [cable.bytes_per_s for cable in fabric.cables if cable.bytes_per_s]
    usual = max(set(known), key=known.count, default=GBIT)
    rows: list[tuple[int, int, float, float, int]] = []
    # In the order of the ports of each device, so that choices come in the order of ports.
    for cable in sorted(fabric.cables, key=lambda c: (at.get(c.a, -1), c.a_port)):
        if cable.a in at and cable.b in at:
            a, b, rate = at[cable.a], at[cable.b], cable.bytes_per_s or usual
            hop = latency_s("cable") + latency_s("infiniband_switch")
            hop += latency_s("nic") if min(a, b) < len(adapters) else 0.0
            rows += [(a, b, rate, hop, NETWORK), (b, a, rate, hop, NETWORK)]
    names = tuple(device.name or device.guid for device in [*adapters, *switches])
    return GraphFabric(LinkTable.of(rows), len(adapters), names), tuple(hosts), count_losses(losses)
