"""`ibnetdiscover`: the switches, adapters and cables of an InfiniBand fabric, as a graph.

Blocks of one device each: `Switch 36 "S-<guid>" # "name" ... lid n`, then a line a port:
`[1] "S-<guid>"[36] # "peer" lid n 4xNDR`. Source: output of infiniband-diags on ibsim.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from busbw.errors import InputError, Loss
from busbw.hardware.fabrics import GraphFabric
from busbw.hardware.formats.hostlist import natural_order
from busbw.hardware.formats.read_nodes import count_losses, latency_s
from busbw.hardware.links import NETWORK, LinkTable

__all__ = ["IbCable", "IbDevice", "IbFabric", "fabric_from_ibnetdiscover", "read_ibnetdiscover"]

MAX_BYTES = 256 * 1024 * 1024
"""Largest text read; 648 hosts take 260 KB."""
_HEAD = re.compile(r'(Switch|Ca|Rt)\s+(\d{1,4})\s+"([^"]{1,64})"\s*#\s*"([^"]*)"(?:.*?\blid (\d{1,6}))?')
_PORT = re.compile(r'\[(\d{1,4})\](?:\([^)]*\))?\s+"([^"]{1,64})"\[(\d{1,4})\](?:.*?(\d{1,2})x([A-Z]+\d*))?')
_LANE_GBPS = {
    **{"SDR": 2.0, "DDR": 4.0, "QDR": 8.0, "FDR10": 10.0, "FDR": 13.64, "EDR": 25.0, "HDR": 50.0, "NDR": 100.0},
    "XDR": 200.0,
}
"""Data rate of a lane, Gb/s, after line coding. Source: InfiniBand Architecture Specification, from memory."""
_GBIT = 1e9 / 8


@dataclass(frozen=True, slots=True)
class IbDevice:
    """A switch or adapter."""

    kind: str
    """Switch, Ca or Rt."""
    guid: str
    name: str
    ports: int
    lid: int | None
    line: int = field(compare=False)


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
    """All devices by GUID and all cables, each once."""

    path: str
    devices: dict[str, IbDevice]
    cables: tuple[IbCable, ...]


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
        if not line:
            at = None
        elif head := _HEAD.match(line):
            kind, ports, guid, name, lid = head.groups()
            at = devices.setdefault(guid, IbDevice(kind, guid, name, int(ports), int(lid) if lid else None, number))
        elif line.startswith("["):
            port = _PORT.match(line)
            if port is None or at is None:
                losses.append(Loss("fabric-bad-line", path, number, f"{line[:60]!r} is no port of a device; left out"))
                continue
            own, peer, peer_port, width, speed = port.groups()
            lane = _LANE_GBPS.get(speed or "")
            rate = lane * int(width) * _GBIT if lane and width else None
            if rate is None:
                detail = "a port without a known width and speed; its cable takes the rate of the others"
                losses.append(Loss("fabric-unknown-rate", path, number, detail))
            seen[at.guid, int(own)] = IbCable(at.guid, int(own), peer, int(peer_port), rate), number
    if not devices:
        raise InputError(f"{path}: no switch and no adapter found. Pass what ibnetdiscover printed.")
    cables = []
    for (guid, end), (cable, number) in seen.items():
        if cable.b not in devices:
            detail = f"port {end} of {devices[guid].name} leads to {cable.b}, which has no block; the cable is left out"
            losses.append(Loss("fabric-unknown-peer", path, number, detail))
        elif (cable.b, cable.b_port) not in seen or (guid, end) < (cable.b, cable.b_port):
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
        if device.kind == "Ca":
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
        (device for device in fabric.devices.values() if device.kind == "Switch"),
        key=lambda device: natural_order(device.name),
    )
    at = {device.guid: vertex for vertex, device in enumerate([*adapters, *switches])}
    known = [cable.bytes_per_s for cable in fabric.cables if cable.bytes_per_s]
    usual = max(set(known), key=known.count, default=_GBIT)
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
