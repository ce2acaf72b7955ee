"""What a host says of its RDMA ports: ibstat, ibstatus, ibv_devinfo (-v too), rdma link, show_gids, and port files of sysfs.

    CA 'mlx5_0'                      hca_id: mlx5_0                 Infiniband device 'mlx5_0' port 1 status:
        CA type: MT4129                  fw_ver: 28.36.1010             state:       4: ACTIVE
        Port 1:                          port:   1                      rate:        400 Gb/sec (4X NDR)
            State: Active                    state: PORT_ACTIVE (4)     link_layer:  InfiniBand
            Rate: 400                        active_mtu: 4096 (5)

    link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens1f0

One row of `ports` a port, one of `devices` a device, and an event for each line that rules read. Words of state are ours in every row:
active, down, init, armed; link_up, polling, disabled, training, sleep, link_error_recovery, phy_test. A port that is down has no rate and no width:
what it prints is left from before or from the factory (InfiniBand Architecture Specification C14-24.2.1), and only its events keep it.
Rates: hardware/link_speeds.py. Formats: rdma-core infiniband-diags/ibstat.c, scripts/ibstatus, libibverbs/examples/devinfo.c; iproute2 rdma/link.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from busbw.errors import Losses
from busbw.hardware.link_speeds import lane_bytes_per_s, port_bytes_per_s, speed_name
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, Template, place_and_host
from busbw.readers.link_states import physical_state, port_state
from busbw.readers.tool_output import SYSFS_PORT, ToolLine, guid, host_of_path, tool_lines

__all__ = ["READER"]

TEMPLATES: tuple[Template, ...] = (
    Template("rdma.gid", "GID[ {index:d}]: {gid:w}, {type:s}", "ibv_devinfo -v", "info"),
    Template("rdma.gid", "GID[{index:d}]: {gid:w}, {type:s}", "ibv_devinfo -v", "info"),
    Template("rdma.device", "hca_id: {device:w}", "ibv_devinfo", "info"),
    Template("rdma.device", "^CA '{device:w}'", "ibstat", "info"),
    Template("rdma.device", "^Infiniband device '{device:w}' port {port:d} status:", "ibstatus", "info"),
    Template("rdma.port_state", "^ state: {state:s}", "ibv_devinfo, ibstatus", "info"),
    Template("rdma.port_state", "^ State: {state:w}$", "ibstat", "info"),
    Template("rdma.physical_state", "phys_state: {state:s}", "ibv_devinfo", "info"),
    Template("rdma.physical_state", "^ phys state: {state:s}", "ibstatus", "info"),
    Template("rdma.physical_state", "Physical state: {state:w}", "ibstat", "info"),
    Template("rdma.link", "^link {device:w} {rest:s}state {state:w} physical_state {physical:w}", "rdma link", "info"),
    Template(
        "rdma.link",
        "^{_index:w} {device:w}: state {state:w} physical_state {physical:w}",
        "rdma link of iproute2 before 5.0",
        "info",
    ),
    Template("rdma.rate", "^ Rate: {rate:f}$", "ibstat", "info"),
    Template("rdma.rate", "^ Rate: {rate:f} (FDR10)$", "ibstat", "info"),
    Template("rdma.rate", "^ rate: {rate:f} Gb/sec ({width:w} {speed:w})", "ibstatus", "info"),
    Template("rdma.mtu", "active_mtu: {mtu:d}", "ibv_devinfo", "info"),
    Template("rdma.link_layer", "~link_layer: {layer:w}", "ibv_devinfo, ibstatus", "info"),
    Template("rdma.link_layer", "~link layer: {layer:w}", "ibstat", "info"),
    Template("rdma.max_mtu", "max_mtu: {mtu:d}", "ibv_devinfo", "info"),
    Template("rdma.netdev", "^{device:w} port {port:d} ==> {netdev:w} ({state:w})", "ibdev2netdev", "info"),
)

_DEVICE = re.compile(
    r"\s*(?:(?P<kind>CA|Switch|Router|iWARP RNIC):? '(?P<ibstat>[^']{1,64})'|hca_id:\s*(?P<devinfo>\S{1,64})"
    r"|Infiniband device '(?P<ibstatus>[^']{1,64})' port (?P<port>\d{1,4}) status:)\s*",
    re.ASCII,
)
_PORT = re.compile(r"\s*(?:Port (?P<ibstat>\d{1,4}):|port:\s*(?P<devinfo>\d{1,4}))\s*", re.ASCII)
_KEY = re.compile(r"\s*(?P<key>[A-Za-z][A-Za-z_ ]{0,40}?):\s*(?P<value>(?:.*\S)?)\s*", re.ASCII)
_FLAG = re.compile(r"[A-Z][A-Z0-9_ -]{1,60}", re.ASCII)
"""A capability in `ibv_devinfo -v`, where a paste lost its indentation."""
_GID = re.compile(r"\s*GID\[\s*\d{1,5}\]:\s*\S+.*", re.ASCII)
_RDMA_LINK = re.compile(
    r"\s*(?:\d{1,5}/\d{1,4}: |link )(?P<device>[\w.-]{1,64})/(?P<port>\d{1,4}):?\s(?P<rest>.*)", re.ASCII
)
_RDMA_PAIR = re.compile(r"(?:^|\s)(?P<key>state|physical_state|lid|netdev) (?P<value>\S+)")
_GID_ROW = re.compile(
    r"\s*(?P<device>\S{1,64})\s+(?P<port>\d{1,4})\s+(?P<index>\d{1,5})\s+(?P<gid>(?:[0-9a-fA-F]{4}:){7}[0-9a-fA-F]{4})(?:\s+|$)(?:(?P<ipv4>[\d.]+)(?:\s+|$))?"
    r"(?:(?P<version>v[12])\b(?:\s+(?P<netdev>\S+))?.*)?",
    re.ASCII,
)
"""show_gids: DEV PORT INDEX GID [IPv4] [VER DEV]; where the kernel tells no type of a GID, the last two are missing."""
_SYSFS = re.compile(rf"\S*{SYSFS_PORT.pattern}\s*[:=]\s*(?P<value>(?:.*\S)?)\s*", re.ASCII)

_SIGNATURE = re.compile(
    r"^(?:(?:[A-Za-z0-9][\w.-]*: ?)?\s*(?:(?:CA|Switch|Router|iWARP RNIC):? '|hca_id:|Infiniband device '|link \S+/\d+:? |\d+/\d+: \S+/\d+: "
    r"|\S+\s+\d+\s+\d+\s+(?:[0-9a-fA-F]{4}:){7})"
    r"|.*infiniband/[^/\s:]+/ports/\d+/(?:state|phys_state|rate|link_layer|lid)\b"
    r"|\s*(?:\d: )?(?:ACTIVE|DOWN|INIT|ARMED|LinkUp|Polling|Disabled|Training|InfiniBand|Ethernet|[\d.]+ Gb/sec.*|0x[0-9a-f]{1,4})\s*$)"
)
"""The last line: what files of sysfs hold, each of them alone. All begin at the start of a line: a search there costs a tenth."""

_LAYERS = {"infiniband": "InfiniBand", "ib": "InfiniBand", "ethernet": "Ethernet", "unspecified": None, "unknown": None}
_DEVICE_KEYS = {
    "ca type": "type",
    "firmware version": "firmware",
    "fw ver": "firmware",
    "hardware version": "hardware",
    "hw ver": "hardware",
    "node guid": "node_guid",
    "system image guid": "system_guid",
    "sys image guid": "system_guid",
    "number of ports": "ports",
    "phys port cnt": "ports",
    "board id": "board",
    "vendor part id": "part",
    "transport": "transport",
}
_REACH = 12
"""Lines of others, not indented, after which a device's report is over: its own lines are indented or known."""
_DOWN = ("down", "nop")


class _UnreadableError(ValueError):
    """A value that its tool does not print."""


@dataclass(slots=True)
class _Port:
    """What one port's lines say."""

    line: PlainLine
    host: str | None
    device: str | None
    port: int | None
    kind: str | None = "ca"
    columns: dict[str, Any] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    """Keys that were met; one that comes again belongs to another port."""
    printed: str | None = None
    """The sum of all lanes, as it stands there."""
    lane: str | None = None
    """One lane, as it stands there."""

    def row(self, artefact: Artefact) -> dict[str, Any]:
        columns = dict(self.columns)
        columns.update(self._speed())
        if columns.get("state") in _DOWN:
            columns.update(width=None, rate_bytes_per_s=None)
        return {
            **place_and_host(artefact, self.line, self.host),
            "device": self.device,
            "port": self.port,
            "node_kind": self.kind,
            **columns,
        }

    def _speed(self) -> dict[str, Any]:
        ethernet = self.columns.get("link_layer") == "Ethernet"
        width = self.columns.get("width")
        if self.printed is not None:
            total, _, words = self.printed.partition(" ")
            lanes = re.search(r"\((\d{1,2})X(?: (\w+))?\)", words, re.I)
            fdr10 = "FDR10" in words.upper()
            return {
                "rate_bytes_per_s": port_bytes_per_s(float(total), ethernet=ethernet, fdr10=fdr10),
                "width": int(lanes[1]) if lanes is not None else width,
            }
        if self.lane is not None and width is not None:
            lane = re.match(r"[\d.]+", self.lane)
            figure = float(lane[0]) if lane is not None else 0.0
            fdr10 = self.lane.endswith("(8)")  # the number of the speed in PortInfo; QDR is 4
            data = (
                lane_bytes_per_s(speed_name(figure, fdr10=fdr10))
                if not ethernet
                else port_bytes_per_s(figure, ethernet=True)
            )
            return {"rate_bytes_per_s": data * width if data is not None else None}
        return {}


@dataclass(slots=True)
class _Report:
    """What is open of one writer's output."""

    device: str | None = None
    kind: str | None = None
    line: PlainLine | None = None
    host: str | None = None
    attributes: dict[str, str] = field(default_factory=dict)
    port: _Port | None = None
    foreign: int = 0


class RdmaPortReader(Lines):
    """Ports and GIDs as their own host reports them."""

    name = "rdma-ports"
    templates: Sequence[Template] = TEMPLATES
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """One row of `ports` a port in the order of their first lines, `devices`, events of show_gids, damage."""
        reading = _Reading(artefact)
        for line in tool_lines(lines, _is_known):
            reading.line(line)
        yield from reading.finish(lines)


READER = RdmaPortReader()


def _is_known(text: str) -> bool:
    if _DEVICE.match(text) or _PORT.fullmatch(text) or _RDMA_LINK.fullmatch(text) or _GID_ROW.fullmatch(text):
        return True
    if _GID.fullmatch(text) or "infiniband/" in text:
        return True
    key = _KEY.fullmatch(text)
    return key is not None and (_name(key["key"]) in _PORT_KEYS or _name(key["key"]) in _DEVICE_KEYS)


def _name(key: str) -> str:
    return key.lower().replace("_", " ").strip()


class _Reading:
    def __init__(self, artefact: Artefact) -> None:
        self.artefact = artefact
        self.losses = Losses(artefact.path)
        self.reports: dict[tuple[str | None, int | None], _Report] = {}
        self.ports: list[_Port] = []
        self.devices: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.sysfs: dict[tuple[str | None, str, int], _Port] = {}

    def line(self, tool: ToolLine) -> None:
        text = tool.text
        report = self.reports.setdefault(tool.writer, _Report())
        if tool.is_command:
            self.close(report)
        elif (device := _DEVICE.fullmatch(text)) is not None:
            self.close(report)
            self.open(report, tool, device)
        elif "/ports/" in text and (found := _SYSFS.fullmatch(text)) is not None:
            self.sysfs_value(tool.line, tool.host, found)
        elif (link := _RDMA_LINK.fullmatch(text)) is not None:
            self.rdma_link(tool, link)
        elif (row := _GID_ROW.fullmatch(text)) is not None:
            self.gid(tool, row)
        elif report.device is not None:
            self.inside(report, tool)

    def open(self, report: _Report, tool: ToolLine, found: re.Match[str]) -> None:
        report.device = found["ibstat"] or found["devinfo"] or found["ibstatus"]
        report.kind = "ca" if found["kind"] is None else found["kind"].split()[0].lower().replace("iwarp", "ca")
        report.line, report.host = tool.line, tool.host
        if found["port"] is not None:
            report.port = _Port(tool.line, tool.host, report.device, int(found["port"]), report.kind)

    def inside(self, report: _Report, tool: ToolLine) -> None:
        """A line while a device's report is open."""
        text = tool.text
        if (port := _PORT.fullmatch(text)) is not None:
            self.close_port(report)
            number = int(port["ibstat"] or port["devinfo"])
            report.port = _Port(tool.line, tool.host, report.device, number, report.kind)
            report.foreign = 0
            return
        found = _KEY.fullmatch(text)
        key = _name(found["key"]) if found is not None else ""
        if found is not None and key in _PORT_KEYS:
            report.foreign = 0
            if report.port is None or key in report.port.seen:
                # lines that grep picked out: the port's own line is not among them
                self.close_port(report)
                report.port = _Port(tool.line, tool.host, report.device, None, report.kind)
            self.value(report.port, key, found["value"], tool.line)
        elif found is not None and report.port is None and key in _DEVICE_KEYS:
            report.foreign = 0
            name = _DEVICE_KEYS[key]
            value = guid(found["value"]) or found["value"] if name.endswith("_guid") else found["value"]
            report.attributes.setdefault(name, value)
        elif text[:1] in (" ", "\t") or found is not None or _FLAG.fullmatch(text) is not None:
            report.foreign = 0
        else:
            report.foreign += 1
            if report.foreign > _REACH:
                self.close(report)

    def value(self, port: _Port, key: str, value: str, line: PlainLine) -> None:
        port.seen.add(key)
        try:
            _PORT_KEYS[key](port, value)
        except _UnreadableError as error:
            self.losses.add(
                "damaged-value",
                line.number,
                f"{key}: {value[:40]!r} is {error}; it is left unknown. Run the tool again",
            )

    def rdma_link(self, tool: ToolLine, found: re.Match[str]) -> None:
        port = _Port(tool.line, tool.host, found["device"], int(found["port"]))
        pairs = {pair["key"]: pair["value"] for pair in _RDMA_PAIR.finditer(found["rest"])}
        if "state" not in pairs and "physical_state" not in pairs:
            return
        for key, value in pairs.items():
            if (name := {"state": "state", "physical_state": "phys state", "lid": "port lid"}.get(key)) is not None:
                self.value(port, name, value, tool.line)
        if "netdev" in pairs:
            port.columns["link_layer"] = "Ethernet"  # only those ports name one: RoCE and iWARP
        self.ports.append(port)

    def gid(self, tool: ToolLine, found: re.Match[str]) -> None:
        fields = {
            "index": found["index"], "gid": found["gid"], "type": f"RoCE {found['version']}" if found["version"] else None, "device": found["device"], "port": found["port"],
            "ipv4": found["ipv4"], "netdev": found["netdev"],
        }  # fmt: skip
        self.events.append({
            **place_and_host(self.artefact, tool.line, tool.host), "event": "rdma.gid", "level": "info", "rank": tool.line.rank, "text": tool.line.text,
            "fields": {name: value for name, value in fields.items() if value is not None},
        })  # fmt: skip

    def sysfs_value(self, line: PlainLine, host: str | None, found: re.Match[str]) -> None:
        """`/sys/class/infiniband/mlx5_0/ports/1/rate:400 Gb/sec (4X NDR)`; the files of one port make one row, a second reading another."""
        key = _SYSFS_FILES.get(found["file"])
        if key is None:
            return
        host = host_of_path(found[0]) or host
        where = (host, found["device"], int(found["port"]))
        port = self.sysfs.get(where)
        if port is None or key in port.seen:
            port = self.sysfs[where] = _Port(line, host, found["device"], int(found["port"]))
            self.ports.append(port)
        self.value(port, key, found["value"], line)

    def close_port(self, report: _Report) -> None:
        if report.port is not None:
            self.ports.append(report.port)
            report.port = None

    def close(self, report: _Report) -> None:
        self.close_port(report)
        if report.line is not None and report.attributes:
            self.devices.append({
                **place_and_host(self.artefact, report.line, report.host), "kind": "rdma", "name": report.device, "attributes": report.attributes,
            })  # fmt: skip
        report.device, report.line, report.attributes, report.foreign = None, None, {}, 0

    def finish(self, lines: Sequence[PlainLine]) -> Iterator[Item]:
        for report in self.reports.values():
            self.close(report)
        self.whole_file(lines)
        if self.events:
            yield rows_of("events", self.events)
        if self.devices:
            yield rows_of("devices", sorted(self.devices, key=lambda row: int(row["line"])))
        if self.ports:
            ordered = sorted(self.ports, key=lambda port: port.line.number)
            yield rows_of("ports", [port.row(self.artefact) for port in ordered])
        yield from self.losses

    def whole_file(self, lines: Sequence[PlainLine]) -> None:
        """A file of a copied sysfs tree: its path says what it is, its one line what it holds."""
        path = SYSFS_PORT.search(self.artefact.path)
        filled = [line for line in lines if line.text.strip()]
        if path is None or len(filled) != 1 or not self.artefact.path.endswith(path[0]):
            return
        key = _SYSFS_FILES.get(path["file"])
        if key is not None:
            port = _Port(filled[0], host_of_path(self.artefact.path), path["device"], int(path["port"]))
            self.value(port, key, filled[0].text.strip(), filled[0])
            self.ports.append(port)


def _word(value: str, what: str) -> str:
    """The word in `4: ACTIVE` and `PORT_ACTIVE (4)`."""
    found = re.fullmatch(r"(?:\d{1,2}: )?(?P<word>[A-Za-z_ ]{1,40}?)(?: \(\d{1,3}\))?", value)
    if found is None:
        raise _UnreadableError(f"no {what}")
    return found["word"]


def _state(port: _Port, value: str) -> None:
    port.columns["state"] = port_state(_word(value, "state of a port"))
    if port.columns["state"] is None:
        raise _UnreadableError("no state of a port")


def _physical(port: _Port, value: str) -> None:
    port.columns["physical_state"] = physical_state(_word(value, "physical state of a port"))
    if port.columns["physical_state"] is None:
        raise _UnreadableError("no physical state of a port")


def _rate(port: _Port, value: str) -> None:
    if re.fullmatch(r"\d{1,6}(?:\.\d{1,4})?(?: Gb/sec)?(?: \([\w ]{1,20}\))?", value, re.ASCII) is None:
        raise _UnreadableError("no rate in Gb/s")
    port.printed = value


def _lid(port: _Port, value: str) -> None:
    port.columns["lid"] = _integer(value, "LID")


def _integer(value: str, what: str) -> int:
    if re.fullmatch(r"0x[0-9a-fA-F]{1,8}|\d{1,9}", value) is None:
        raise _UnreadableError(f"no {what}")
    return int(value, 0) if value.startswith("0x") else int(value)


def _layer(port: _Port, value: str) -> None:
    if value.lower() not in _LAYERS:
        raise _UnreadableError("no link layer")
    port.columns["link_layer"] = _LAYERS[value.lower()]


def _guid(port: _Port, value: str) -> None:
    known = guid(value)
    if known is None:
        raise _UnreadableError("no GUID")
    port.columns["guid"] = known


def _default_gid(port: _Port, value: str) -> None:
    """The lower half of a port's first GID is its GUID (IBA, volume 1, 4.1.1); on Ethernet it is made of an address."""
    groups = value.split(":")
    known = guid(":".join(groups[4:])) if len(groups) == 8 else None
    if known is None:
        raise _UnreadableError("no GID")
    port.columns["guid"] = known


def _mtu(port: _Port, value: str) -> None:
    if not value.startswith("invalid"):
        port.columns["mtu_bytes"] = _integer(re.sub(r" \(\d{1,2}\)$", "", value), "MTU")


def _width(port: _Port, value: str) -> None:
    found = re.fullmatch(r"(\d{1,2})X \(\d{1,3}\)", value)
    if found is None:
        if value.startswith("invalid"):  # a port that is down
            return
        raise _UnreadableError("no width")
    port.columns["width"] = int(found[1])


def _lane(port: _Port, value: str) -> None:
    if re.fullmatch(r"\d{1,4}(?:\.\d{1,5})? Gbps \(\d{1,4}\)", value) is None:
        if value.startswith("invalid"):
            return
        raise _UnreadableError("no speed of a lane")
    port.lane = value


_PORT_KEYS = {
    "state": _state,
    "physical state": _physical,
    "phys state": _physical,
    "rate": _rate,
    "base lid": _lid,
    "port lid": _lid,
    "link layer": _layer,
    "port guid": _guid,
    "default gid": _default_gid,
    "active mtu": _mtu,
    "active width": _width,
    "active speed": _lane,
}
_SYSFS_FILES = {
    "state": "state",
    "phys_state": "phys state",
    "rate": "rate",
    "link_layer": "link layer",
    "lid": "base lid",
}
