"""What the InfiniBand fabric says of its links: iblinkinfo (-l too), ibnetdiscover (-p too), ibhosts, ibswitches, ibnodes; ibportstate, smpquery.

    Switch: 0x08c0eb0300f6fc26 MF0;sw1:MQM8700/U1:
              4   21[  ] ==( 4X      25.78125 Gbps Active/  LinkUp)==>      40    1[  ] "node3 mlx5_0" ( Could be 53.125 Gbps)
              4   22[  ] ==(                Down/ Polling)==>             [  ] "" ( )

One row of `ports` for each end that is listed, so that a cable has two; one row of `devices` for each node of ibhosts and its like. `device` and
`peer` are the nodes' descriptions as printed, so that they join with each other; `guid`, the port's of an adapter and the node's of a switch, joins
with ibstat. `host` is the first word of an adapter's description (`node3 mlx5_0`, as rdma-ndd sets it), not the host that ran the tool.
`possible_*` is what iblinkinfo says the link could be; where it says nothing else of a link that is up, width and rate are the best that both
ends can do. Rates: hardware/link_speeds.py. A port without a partner has no rate: what ibnetdiscover -p prints there is left from before
(InfiniBand Architecture Specification C14-24.2.1). ibnetdiscover prints no states: a port in it has a partner, and no more is known.
ibportstate and `smpquery portinfo` know a port by the LID of its node and not by name.
Formats: rdma-core infiniband-diags/iblinkinfo.c (print_port), ibdiag_common.c (get_max_msg), ibnetdiscover.c, scripts/ibhosts. Lines of
ibnetdiscover are read by hardware/formats/ibnetdiscover.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from busbw.errors import Losses
from busbw.hardware.formats.ibnetdiscover import begins_as_port, device_of_line, ends_device, port_of_line
from busbw.hardware.link_speeds import lane_bytes_per_s, speed_name
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, Template, place_and_host
from busbw.readers.link_states import physical_state, port_state
from busbw.readers.tool_output import ToolLine, guid, tool_lines

__all__ = ["READER"]

_NODE = re.compile(
    r"(?:[<>] )?(?P<kind>Switch|CA|Router): (?:0x(?P<guid>[0-9a-f]{1,16}) )?(?P<name>.{0,256}?):?\s*+", re.ASCII
)
"""iblinkinfo's line in front of a node's ports. It ends with a colon; grep -v may have cut it."""
_LINK = re.compile(
    r"(?:[<>] )?\s*+(?:Link info:)?\s*+(?:0x(?P<guid>[0-9a-f]{1,16}) )?(?:\"(?P<name>[^\"]{0,256})\" )?"
    r"\s*+(?P<lid>\d{1,5})\s+(?P<port>\d{1,4})\[[^\]]{0,8}\] ==\((?P<link>.{0,200})\)==>\s*(?P<partner>.*)",
    re.ASCII,
)
"""iblinkinfo, and the same in ibqueryerrors."""
_LINK_LINE = re.compile(r"\] ==\(|==\(.*/.*\)==>|\)==>\s+[\[\d]")
"""What the line of a link has, damaged or not."""
_LINK_STATE = re.compile(
    r"\s*+(?P<speed>.{0,80}?)\s*+(?P<state>[A-Z][A-Za-z]{2,15})/\s*(?P<physical>[A-Z][A-Za-z]{2,30})", re.ASCII
)
_PARTNER = re.compile(
    r"(?:0x(?P<guid>[0-9a-f]{1,16})\s+)?(?P<lid>\d{1,5})\s+(?P<port>\d{1,4})\[[^\]]{0,8}\] \"(?P<name>[^\"]{0,256})\" \((?P<could>.{0,200})\)\s*",
    re.ASCII,
)
_NO_PARTNER = re.compile(r'(?:\[\s*\] "" \( \)|"Port not available")\s*')
_SPEED = re.compile(r"(?P<width>\d{1,2})X\s+(?P<lane>\d{1,4}(?:\.\d{1,5})?) Gbps(?P<fdr10> \(FDR10\))?", re.ASCII)
_COULD_WIDTH = re.compile(r"Could be (?P<width>\d{1,2})X", re.ASCII)
_COULD_SPEED = re.compile(r"Could be (?:(?P<lane>\d{1,4}(?:\.\d{1,5})?) Gbps|(?P<fdr10>FDR10))", re.ASCII)

_NODE_ENDS = re.compile(r"(?:Switch|CA|Router): ")
"""Heads of nodes of iblinkinfo, damaged or not: the ports below belong to no node before them."""
_PORT_LIST = re.compile(
    r"(?P<kind>CA|SW|RT)\s+(?P<lid>\d{1,5})\s+(?P<port>\d{1,4}) 0x(?P<guid>[0-9a-f]{16}) (?P<width>\d{1,2}|\?+)x (?P<speed>[\w?]{1,8})\s*"
    r"(?:- (?:CA|SW|RT)\s+\d{1,5}\s+(?P<peer_port>\d{1,4}) 0x[0-9a-f]{16} \( '(?P<name>.{0,256}?)' - '(?P<peer>.{0,256})' \)|'(?P<alone>.{0,256})')\s*",
    re.ASCII,
)
_PORT_LIST_LINE = re.compile(r"(?:CA|SW|RT)\s+\S{1,12}\s+\S{1,12} \S{6,24} \S{1,4}x \S{1,8} .*'.*'")
_LISTED_NODE = re.compile(
    r'(?P<kind>Ca|Switch|Router)\s*: 0x(?P<guid>[0-9a-f]{1,16}) ports (?P<ports>\d{1,4}) "(?P<name>[^"]{0,256})"(?:.* lid (?P<lid>\d{1,5}) lmc.*)?.*',
    re.ASCII,
)
_LISTED_NODE_LINE = re.compile(r'(?:Ca|Switch|Router)\s*: \S{3,24} ports .*"')
_SIGNATURE = re.compile(
    r'^(?:.*==[(>]|.*"[SHR]-[0-9a-f]|(?:[A-Za-z0-9][\w.-]*: ?)?(?:(?:CA|SW|RT)\s+\S{1,12}\s+\S{1,12} 0x|(?:Ca|Switch|Router)\s*: \S{3,24} ports |# Port info: ))'
)
"""All begin at the start of a line: a search there costs a tenth."""
_PORT_INFO = re.compile(r"# Port info: (?:Lid (?P<lid>\d{1,5})|.{1,120}?) port (?P<port>\d{1,4})\s*", re.ASCII)
"""ibportstate, smpquery portinfo. Of a directed route, as in `Lid 1 DR path slid 2; ...`, the LID is that of its start."""
_PORT_INFO_ROW = re.compile(
    r"(?P<key>LinkState|PhysLinkState|LinkWidthActive|LinkSpeedActive|LinkSpeedExtActive|NeighborMTU|Lid):\.{2,}(?P<value>(?:.*\S)?)\s*",
    re.ASCII,
)
_HOST_AND_DEVICE = re.compile(r"(?P<host>\S+) (?:HCA-\d+|[a-z]\w*\d\w*)")
"""Node descriptions of adapters: rdma-ndd writes `%h %d`, older drivers `HOST HCA-1` (rdma-core rdma-ndd.8)."""

_KINDS = {"switch": "switch", "sw": "switch", "ca": "ca", "router": "router", "rt": "router"}


@dataclass(slots=True)
class _Node:
    """The node whose ports are being listed."""

    kind: str
    name: str | None
    guid: str | None
    lid: int | None = None
    last_port: int = 0


class FabricReader(Lines):
    """Links of a fabric as the subnet's own tools list them."""

    name = "ib-fabric"
    templates: Sequence[Template] = ()
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """Rows of `ports` and of `devices` in the order of their lines, and lines of links that are damaged."""
        reading = _Reading(artefact)
        for line in tool_lines(lines, _is_known):
            reading.line(line)
        if reading.devices:
            yield rows_of("devices", reading.devices)
        if reading.ports:
            yield rows_of("ports", reading.ports)
        yield from reading.losses


READER = FabricReader()


def _is_known(text: str) -> bool:
    begins = text.lstrip()[:1]
    if begins == "[":
        return begins_as_port(text)
    if "==(" in text:
        return _LINK.fullmatch(text) is not None
    if device_of_line(text) is not None:
        return True
    return any(shape.match(text) is not None for shape in (_NODE, _PORT_LIST_LINE, _LISTED_NODE_LINE))


class _Reading:
    def __init__(self, artefact: Artefact) -> None:
        self.artefact = artefact
        self.losses = Losses(artefact.path)
        self.nodes: dict[tuple[str | None, int | None], _Node] = {}
        self.ports: list[dict[str, Any]] = []
        self.info: dict[tuple[str | None, int | None], dict[str, Any]] = {}
        """The row that lines of ibportstate go on to fill."""
        self.devices: list[dict[str, Any]] = []

    def line(self, tool: ToolLine) -> None:
        text = tool.text
        if "==" in text and _LINK_LINE.search(text) is not None:
            self.link(tool)
        elif text[:1] == "[":
            if begins_as_port(text):
                self.discovered_link(tool)
        elif _PORT_LIST_LINE.match(text) is not None:
            self.listed_port(tool)
        elif _LISTED_NODE_LINE.match(text) is not None:
            self.listed_node(tool)
        elif (device := device_of_line(text)) is not None:
            self.nodes[tool.writer] = _Node(device.kind, device.name or None, guid(device.guid), device.lid)
        elif (node := _NODE.fullmatch(text)) is not None:
            self.nodes[tool.writer] = _Node(
                _KINDS[node["kind"].lower()], node["name"] or None, guid(node["guid"] or "")
            )
        elif (info := _PORT_INFO.fullmatch(text)) is not None:
            lid = int(info["lid"]) if info["lid"] is not None else None
            self.port(tool.line, None, None, {"port": int(info["port"]), "lid": lid})
            self.info[tool.writer] = self.ports[-1]
        elif ":.." in text and tool.writer in self.info:
            if (row := _PORT_INFO_ROW.fullmatch(text)) is not None:
                self.port_info(self.info[tool.writer], tool.line, row["key"], row["value"])
        elif tool.is_command or ends_device(text) or _NODE_ENDS.match(text) is not None:
            self.nodes.pop(tool.writer, None)
            self.info.pop(tool.writer, None)

    def damaged(self, line: PlainLine, what: str) -> None:
        self.losses.add(
            "damaged-row",
            line.number,
            f"{what} that cannot be read, and was left out: {line.text.strip()[:60]!r}. Run the tool again",
        )

    def port(self, line: PlainLine, kind: str | None, name: str | None, columns: dict[str, Any]) -> None:
        host = _HOST_AND_DEVICE.fullmatch(name) if name is not None and kind != "switch" else None
        self.ports.append({
            **place_and_host(self.artefact, line, host["host"] if host is not None else None), "device": name, "node_kind": kind, "link_layer": "InfiniBand",
            **columns,
        })  # fmt: skip

    def link(self, tool: ToolLine) -> None:
        """A port of iblinkinfo."""
        found = _LINK.fullmatch(tool.text)
        state = _LINK_STATE.fullmatch(found["link"].split(") (HOQ", 1)[0]) if found is not None else None
        partner = _PARTNER.fullmatch(found["partner"]) if found is not None else None
        words = (port_state(state["state"]), physical_state(state["physical"])) if state is not None else (None, None)
        if (
            found is None
            or state is None
            or None in words
            or (partner is None and _NO_PARTNER.fullmatch(found["partner"]) is None)
        ):
            self.damaged(tool.line, "a link of iblinkinfo")
            return
        lid = int(found["lid"])
        node = self.node_of(tool, found["guid"], found["name"], lid, int(found["port"]))
        columns: dict[str, Any] = {
            "port": int(found["port"]), "guid": guid(found["guid"] or "") or node.guid, "lid": lid, "state": words[0],
            "physical_state": words[1],
        }  # fmt: skip
        if partner is not None:
            columns.update(peer=partner["name"].strip() or None, peer_port=int(partner["port"]))
        if columns["state"] != "down":
            columns.update(_speeds(state["speed"], partner["could"] if partner is not None else None))
        self.port(tool.line, node.kind or None, node.name, columns)

    def node_of(self, tool: ToolLine, own_guid: str | None, own_name: str | None, lid: int, port: int) -> _Node:
        """The node of a port's line. With -l it says so itself; else it is that of the last head, unless that cannot be: then a head was lost.

        Ports of a node come in ascending order; a switch has one LID for all, and only adapters have their GUID in each line.
        """
        if own_name is not None:
            return _Node("", own_name.strip() or None, None)
        node = self.nodes.get(tool.writer)
        is_switch = own_guid is None
        if (
            node is not None
            and (node.kind == "switch") == is_switch
            and port > node.last_port
            and (not is_switch or node.lid in (None, lid))
        ):
            node.lid, node.last_port = lid, port
            return node
        if node is None and is_switch:  # picked out by grep
            return _Node("", None, None)
        return _Node("switch" if is_switch else "ca", None, None)

    def discovered_link(self, tool: ToolLine) -> None:
        """A port of ibnetdiscover, below its node."""
        port = port_of_line(tool.text)
        if port is None or port.bytes_per_s is None:
            self.damaged(tool.line, "a link of ibnetdiscover")
            return
        node = self.nodes.get(tool.writer) or _Node("", None, None)
        is_switch = port.guid is None
        if node.kind and is_switch != (node.kind == "switch"):  # the header of this node was lost
            node = _Node("switch" if is_switch else "ca", None, None)
        columns = {
            "port": port.port, "guid": guid(port.guid or "") or node.guid, "lid": port.lid or node.lid, "width": port.width,
            "rate_bytes_per_s": port.bytes_per_s, "peer": port.peer or None, "peer_port": port.peer_port,
        }  # fmt: skip
        self.port(tool.line, node.kind or None, node.name, columns)

    def listed_port(self, tool: ToolLine) -> None:
        """A line of ibnetdiscover -p."""
        found = _PORT_LIST.fullmatch(tool.text)
        if found is None:
            self.damaged(tool.line, "a port of ibnetdiscover -p")
            return
        columns: dict[str, Any] = {"port": int(found["port"]), "guid": guid(found["guid"]), "lid": int(found["lid"])}
        if found["peer_port"] is not None:
            lane = lane_bytes_per_s(found["speed"])
            width = int(found["width"]) if found["width"].isdigit() else None
            columns.update(
                width=width, rate_bytes_per_s=width * lane if width is not None and lane is not None else None,
                peer=found["peer"] or None, peer_port=int(found["peer_port"]),
            )  # fmt: skip
        name = found["name"] if found["alone"] is None else found["alone"]
        self.port(tool.line, _KINDS[found["kind"].lower()], name or None, columns)

    def port_info(self, row: dict[str, Any], line: PlainLine, key: str, value: str) -> None:
        """A line of ibportstate or smpquery portinfo. LinkSpeedExtActive comes behind LinkSpeedActive and, from FDR on, replaces it."""
        known = True
        match key:
            case "LinkState":
                row["state"] = port_state(value)
                known = row["state"] is not None
            case "PhysLinkState":
                row["physical_state"] = physical_state(value)
                known = row["physical_state"] is not None
            case "NeighborMTU":
                row["mtu_bytes"] = int(value) if re.fullmatch(r"\d{3,5}", value) else None
            case "LinkWidthActive":
                lanes = re.fullmatch(r"(\d{1,2})X", value)
                row["width"], known = (int(lanes[1]), True) if lanes is not None else (None, False)
            case "LinkSpeedActive" | "LinkSpeedExtActive":
                speed = re.match(r"(\d{1,4}(?:\.\d{1,5})?) Gbps", value)
                lane = lane_bytes_per_s(speed_name(float(speed[1]))) if speed is not None else None
                width = row.get("width")
                if lane is not None and width is not None:
                    row["rate_bytes_per_s"] = width * lane
                known = lane is not None or value.lower() in ("extended speed", "no extended speed")
        if not known:
            self.losses.add(
                "damaged-value", line.number, f"{key}: {value[:40]!r} is not known here; it is left unknown"
            )
        if row.get("state") == "down":
            row.update(width=None, rate_bytes_per_s=None)

    def listed_node(self, tool: ToolLine) -> None:
        """A line of ibhosts, ibswitches, ibnodes."""
        found = _LISTED_NODE.fullmatch(tool.text)
        if found is None:
            self.damaged(tool.line, "a node of ibhosts or ibswitches")
            return
        kind, name = _KINDS[found["kind"].lower()], found["name"]
        host = _HOST_AND_DEVICE.fullmatch(name) if kind == "ca" else None
        attributes = {"guid": guid(found["guid"]), "ports": found["ports"], "lid": found["lid"]}
        self.devices.append({
            **place_and_host(self.artefact, tool.line, host["host"] if host is not None else None), "kind": kind, "name": name,
            "attributes": {key: value for key, value in attributes.items() if value is not None},
        })  # fmt: skip


def _speeds(printed: str, could: str | None) -> dict[str, Any]:
    """Width and rate of a link that is up, and what it could be; unknown where the tool itself knew no name for its speed."""
    speed = _SPEED.fullmatch(printed)
    if speed is None:
        lanes = re.match(r"(\d{1,2})X\s", printed)
        return {"width": int(lanes[1])} if lanes is not None else {}
    width = int(speed["width"])
    lane = lane_bytes_per_s(speed_name(float(speed["lane"]), fdr10=speed["fdr10"] is not None))
    out: dict[str, Any] = {"width": width, "rate_bytes_per_s": width * lane if lane is not None else None}
    if could is None or lane is None:
        return out
    wider, faster = _COULD_WIDTH.search(could), _COULD_SPEED.search(could)
    best: float | None = lane
    if faster is not None:
        name = "FDR10" if faster["fdr10"] is not None else speed_name(float(faster["lane"]))
        best = lane_bytes_per_s(name)
    out["possible_width"] = int(wider["width"]) if wider is not None else width
    out["possible_rate_bytes_per_s"] = out["possible_width"] * best if best is not None else None
    return out
