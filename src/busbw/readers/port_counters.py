"""Counters of ports: perfquery, ibqueryerrors, counters/ and hw_counters/ of sysfs, ethtool -S; and ethtool IFACE, mlnx_qos.

    # Port counters: Lid 3 port 5 (CapMask: 0x1300)        /sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence:12
    SymbolErrorCounter:..............1200                  NIC statistics:
    PortXmitData:....................1080                       rx_prio3_pause: 41927

One row of `counters` a figure, with its name and value as printed, in the order of the file: of two rows that agree in host, device, port, name and
labels the later is the later snapshot. Units are the counter's own. PortXmitData, PortRcvData, port_xmit_data and port_rcv_data count words of
4 bytes (InfiniBand Architecture Specification, volume 1, PortCounters; linux Documentation/ABI/stable/sysfs-class-infiniband), all lanes
together. perfquery's plain counters stop at their largest value (4294967295, or 65535, 255, 15 for errors); those of perfquery -x do not, and carry the
label `set=extended`.

device: of perfquery `lid 3`, of ibqueryerrors the GUID, of sysfs and ethtool their name; a device that nobody names is unknown. ethtool prints no
name either: it is taken from the command (`ethtool -S eth0`) or from the file's name (`ethtool_-S_eth0`, as sosreport writes it).
ethtool IFACE becomes a row of `ports`, kind netdev. mlnx_qos becomes counters `pfc_enabled`, label `priority`, 1 or 0.
Formats: rdma-core infiniband-diags/perfquery.c and ibqueryerrors.c, libibmad/dump.c; ethtool; mlnx-tools mlnx_qos.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from busbw.errors import Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, Template, place_and_host
from busbw.readers.tool_output import SYSFS_PORT, ToolLine, guid, host_of_path, tool_lines
from busbw.units import GBIT

__all__ = ["READER"]

TEMPLATES: tuple[Template, ...] = (
    Template("net.priority_trust", "^Priority trust state: {trust:w}", "mlnx_qos -i IFACE", "info"),
)

_VALUE = re.compile(r"-?\d{1,20}", re.ASCII)
"""64 bits have 20 digits. float64 holds those above 2**53 to 16 digits."""
_PERFQUERY_HEAD = re.compile(r"# (?P<what>[A-Z][\w ]{0,60}?): (?P<who>.{1,120}?) port (?P<port>\d{1,4})\b.*", re.ASCII)
_PERFQUERY = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9]{1,63}):\.+(?P<value>(?:.*\S)?)\s*", re.ASCII)
_SELECTORS = re.compile(
    r"PortSelect|CounterSelect\d*|SamplesOnlyOptionMask|Tag|Opcode|Tick|CounterWidth\d*|SampleMechanisms"
)
_ERRORS_OF_NODE = re.compile(r'Errors for (?:0x(?P<guid>[0-9a-f]{1,16}) )?"(?P<name>[^"]{0,256})"\s*', re.ASCII)
_ERRORS_OF_PORT = re.compile(r"\s*GUID 0x(?P<guid>[0-9a-f]{1,16}) port (?P<port>\d{1,4}|ALL):(?P<items>.*)", re.ASCII)
_ERROR = re.compile(r"\[(?P<name>[A-Za-z][A-Za-z0-9]{1,63}) == (?P<value>[^\]\s]{1,40})[^\]]{0,40}\]", re.ASCII)
_SYSFS = re.compile(
    rf"\S*{SYSFS_PORT.pattern}(?:\s*+[:=]|\s)\s*+(?P<value>\S(?:.*\S)?)\s*|(?P<set>\S{{0,96}}?(?:hw_)?counters)/(?P<name>[a-zA-Z]\w{{2,63}})(?:\s*+[:=]|\s)\s*+(?P<bare>\S(?:.*\S)?)\s*",
    re.ASCII,
)
_COUNTER_FILE = re.compile(r"(?:hw_)?counters/(?P<name>\w{2,64})", re.ASCII)
_FOLDER = re.compile(
    r".*infiniband/(?P<device>[^/\s:]{1,64})/ports/(?P<port>\d{1,4})/(?:hw_)?counters/?(?=[\s;&'\"*]|$).*", re.ASCII
)
"""A line that names a folder of counters, such as the command that goes there: what follows are its files."""
_FILE_OF_FOLDER = re.compile(
    r"\s*(?:\./)?(?P<name>[A-Za-z]\w{2,63})(?:\s*[:=]\s*|\s+)(?P<value>-?\d{1,20})\s*", re.ASCII
)
_HEAD_OF_FILE = re.compile(r"==> (?P<path>\S{1,400}) <==\s*", re.ASCII)
_BARE = re.compile(r"\s*(?P<name>[a-z][a-z0-9_]{2,63})\s*[:=]\s*(?P<value>-?\d{1,20})\s*", re.ASCII)
_BARE_NAMES = re.compile(
    r"_prio\d|rnr_nak|ack_timeout|out_of_(?:buffer|sequence)|cnp_|ecn_marked|symbol_error|link_downed|port_rcv|port_xmit"
)
"""Names that stand alone, as grep leaves them, are believed only if they are these."""
_STATISTICS = re.compile(r"\s*NIC statistics:\s*")
_STATISTIC = re.compile(
    r"\s+(?:\[(?P<queue>\d{1,5})\]: )?(?P<name>[^\s:][^:]{0,79}?)\s*: (?P<value>\S(?:.*\S)?)\s*", re.ASCII
)
_COMMAND = re.compile(
    r"(?:^|[\s;|&(/])(?P<tool>ethtool|mlnx_qos)\s+(?:--\S+\s+|-[A-Za-z]\s+)?(?P<device>[A-Za-z][\w.@-]{0,31})(?=\s|$|[;|&)])",
    re.ASCII,
)
_STATISTICS_FILE = re.compile(r"ethtool_-S_(?P<device>[\w.@-]{1,32}?)(?:\.txt|\.log)?$", re.ASCII)
_SETTINGS = re.compile(r"\s*Settings for (?P<device>[\w.@-]{1,32}):\s*", re.ASCII)
_SETTING = re.compile(
    r"\s+(?P<key>Speed|Link detected|Supported link modes|Link partner advertised link modes):\s*(?P<value>(?:.*\S)?)\s*",
    re.ASCII,
)
_OTHER_SETTING = re.compile(r"\s+[A-Z][\w/ -]{1,60}:.*", re.ASCII)
_SPEED = re.compile(r"(?P<mbit>\d{1,9})Mb/s", re.ASCII)
_MODE = re.compile(r"(?P<mbit>\d{1,7})base\w+(?:/(?:Full|Half))?", re.ASCII)
_PFC = re.compile(r"\s*PFC configuration:\s*")
_PFC_ROW = re.compile(r"\s*(?P<what>priority|enabled)((?:\s+\d{1,3}){1,16})\s*", re.ASCII)
_REACH = 12
"""Lines of others after which a block is over."""
_SIGNATURE = re.compile(
    r"^(?:\s*-?\d{1,20}\s*$|.*counters(?:[/;&'\"*\s]|$)|.*:\.{3}"
    r"|(?:[A-Za-z0-9][\w.-]*: ?)?\s*(?:GUID 0x[0-9a-f]+ port \w+:|NIC statistics:|Settings for \S+:|PFC configuration:"
    rf"|(?=(?:rx|tx)_|\w*(?:{_BARE_NAMES.pattern}))[a-z][a-z0-9_]{{2,63}}\s*[:=]\s*-?\d))"
)
"""A number alone is what a file of sysfs holds. All begin at the start of a line: a search there costs a tenth."""


@dataclass(slots=True)
class _Open:
    """The block that is open of one writer's output."""

    kind: str = ""
    device: str | None = None
    port: int | None = None
    labels: dict[str, str] | None = None
    line: PlainLine | None = None
    host: str | None = None
    foreign: int = 0
    command_device: str | None = None
    """Of the last ethtool or mlnx_qos that was typed."""
    priorities: tuple[str, ...] = ()
    modes: dict[str, set[int]] = field(default_factory=dict)
    key: str | None = None
    """The setting that the next line may continue."""
    columns: dict[str, Any] = field(default_factory=dict)


class PortCounterReader(Lines):
    """Counters of RDMA ports and of network interfaces."""

    name = "port-counters"
    templates: Sequence[Template] = TEMPLATES
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """Rows of `counters` and `ports` in the order of their lines, and figures that are damaged."""
        reading = _Reading(artefact)
        if not reading.whole_file(lines):
            for line in tool_lines(lines, _is_known):
                reading.line(line)
            reading.finish()
        if reading.ports:
            yield rows_of("ports", reading.ports)
        if reading.counters:
            yield rows_of("counters", reading.counters)
        yield from reading.losses


READER = PortCounterReader()


def _is_known(text: str) -> bool:
    return any(
        shape.fullmatch(text) is not None
        for shape in (_BARE, _PERFQUERY, _PERFQUERY_HEAD, _ERRORS_OF_PORT, _ERRORS_OF_NODE, _STATISTICS, _STATISTIC, _SETTINGS, _SETTING, _OTHER_SETTING, _PFC)
    ) or ("counters/" in text and _SYSFS.fullmatch(text) is not None)  # fmt: skip


class _Reading:
    def __init__(self, artefact: Artefact) -> None:
        self.artefact = artefact
        self.losses = Losses(artefact.path)
        self.open: dict[tuple[str | None, int | None], _Open] = {}
        self.counters: list[dict[str, Any]] = []
        self.ports: list[dict[str, Any]] = []
        file = _STATISTICS_FILE.search(artefact.path)
        self.device_of_file = file["device"] if file is not None else None

    def counter(
        self, line: PlainLine, host: str | None, name: str, value: str, *, device: str | None = None, port: int | None = None,
        labels: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        if _VALUE.fullmatch(value) is None:
            self.losses.add(
                "damaged-value",
                line.number,
                f"{name}: {value[:40]!r} is no count; it was left out. Take the snapshot again",
            )
            return
        self.counters.append({
            **place_and_host(self.artefact, line, host), "device": device, "port": port, "name": name, "value": float(int(value)), "labels": labels or None,
        })  # fmt: skip

    def line(self, tool: ToolLine) -> None:
        text = tool.text
        block = self.open.setdefault(tool.writer, _Open())
        if "ethtool" in text or "mlnx_qos" in text:
            named = _COMMAND.search(text)
            if named is not None:
                self.close(block)
                block.command_device = named["device"]
                return
        if "counters" in text and (folder := _FOLDER.fullmatch(text)) is not None:
            self.close(block)
            block.kind, block.device, block.port = "folder", folder["device"], int(folder["port"])
        elif tool.is_command:
            if block.kind != "folder":  # cd, then the loop over its files
                self.close(block)
            block.command_device = None
        elif "counters/" in text or (block.kind == "file" and text.strip()):
            self.of_sysfs(block, tool)
        elif self.head(block, tool):
            pass
        elif ":." in text and (found := _PERFQUERY.fullmatch(text)) is not None:
            self.of_perfquery(block, tool, found)
        elif "GUID 0x" in text and (errors := _ERRORS_OF_PORT.fullmatch(text)) is not None:
            self.errors(block, tool, errors)
        elif block.kind and self.inside(block, tool):
            block.foreign = 0
        elif (bare := _BARE.fullmatch(text)) is not None and _is_counter(text, bare["name"]):
            self.counter(tool.line, tool.host, bare["name"], bare["value"], device=block.command_device)
        elif block.kind:
            block.foreign += 1
            if block.foreign > _REACH:
                self.close(block)

    def head(self, block: _Open, tool: ToolLine) -> bool:
        """Whether a line begins a block."""
        text = tool.text
        kind, device, port, labels = "", None, None, None
        if text[:2] == "# " and (found := _PERFQUERY_HEAD.fullmatch(text)) is not None:
            what = found["what"].lower()
            if what.endswith("counters"):
                lid = re.fullmatch(r"Lid (\d{1,5})", found["who"])
                kind, device, port = (
                    "perfquery",
                    f"lid {lid[1]}" if lid is not None else found["who"],
                    int(found["port"]),
                )
                labels = {"set": "extended"} if "extended" in what else None
            else:  # smpquery prints other things in the same form
                kind = "other"
        elif _STATISTICS.fullmatch(text) is not None:
            kind, device = "statistics", block.command_device or self.device_of_file
        elif (found := _SETTINGS.fullmatch(text)) is not None:
            kind, device = "settings", found["device"]
        elif _PFC.fullmatch(text) is not None:
            kind, device = "pfc", block.command_device
        if not kind:
            return False
        self.close(block)
        block.kind, block.device, block.port, block.labels, block.line, block.host = (
            kind,
            device,
            port,
            labels,
            tool.line,
            tool.host,
        )
        return True

    def inside(self, block: _Open, tool: ToolLine) -> bool:
        """Whether a line belongs to the open block."""
        text = tool.text
        if block.kind == "statistics" and (found := _STATISTIC.fullmatch(text)) is not None:
            labels = {"queue": found["queue"]} if found["queue"] is not None else None
            self.counter(tool.line, tool.host, found["name"], found["value"], device=block.device, labels=labels)
            return True
        if block.kind == "folder" and (found := _FILE_OF_FOLDER.fullmatch(text)) is not None:
            self.counter(tool.line, tool.host, found["name"], found["value"], device=block.device, port=block.port)
            return True
        if block.kind == "settings":
            return self.setting(block, tool)
        if block.kind == "pfc" and (found := _PFC_ROW.fullmatch(text)) is not None:
            cells = tuple(found[2].split())
            if found["what"] == "priority":
                block.priorities = cells
            elif len(cells) == len(block.priorities):
                for priority, cell in zip(block.priorities, cells, strict=True):
                    self.counter(
                        tool.line, tool.host, "pfc_enabled", cell, device=block.device, labels={"priority": priority}
                    )
            else:
                detail = "the row of priorities with flow control has other columns than its header; it was left out"
                self.losses.add("damaged-row", tool.line.number, detail)
            return True
        return False

    def of_perfquery(self, block: _Open, tool: ToolLine, found: re.Match[str]) -> None:
        name, value = found["name"], found["value"]
        if block.kind == "other" or _SELECTORS.fullmatch(name) is not None:
            block.foreign = 0
            return
        if block.kind == "perfquery":
            block.foreign = 0
            self.counter(tool.line, tool.host, name, value, device=block.device, port=block.port, labels=block.labels)
        elif _VALUE.fullmatch(value) is not None and re.match(r"Port|Symbol|Link|Local|Excessive|QP1|VL15", name):
            self.counter(tool.line, tool.host, name, value)  # picked out by grep, without its head

    def errors(self, block: _Open, tool: ToolLine, found: re.Match[str]) -> None:
        """A line of ibqueryerrors. The sum over all ports of a switch is port 255, as perfquery counts."""
        port = 255 if found["port"] == "ALL" else int(found["port"])
        items = list(_ERROR.finditer(found["items"]))
        if len(items) != found["items"].count("["):
            self.losses.add(
                "damaged-row",
                tool.line.number,
                "counters of ibqueryerrors that cannot be read were left out. Run the tool again",
            )
        for item in items:
            self.counter(tool.line, None, item["name"], item["value"], device=guid(found["guid"]), port=port)
        block.foreign = 0

    def of_sysfs(self, block: _Open, tool: ToolLine) -> None:
        """`path:value` as grep prints it, `path value`, and the two lines that head prints."""
        text = tool.text
        if (head := _HEAD_OF_FILE.fullmatch(text)) is not None:
            self.close(block)
            path = SYSFS_PORT.search(head["path"])
            name = _COUNTER_FILE.search(head["path"])
            if name is not None:
                block.kind, block.line, block.host = "file", tool.line, host_of_path(head["path"]) or tool.host
                block.device, block.port = (path["device"], int(path["port"])) if path is not None else (None, None)
                block.key = name["name"]
            return
        if block.kind == "file" and "counters/" not in text:
            if block.key is not None:
                self.counter(tool.line, block.host, block.key, text.strip(), device=block.device, port=block.port)
            self.close(block)
            return
        found = _SYSFS.fullmatch(text)
        if found is None:
            return
        if found["file"] is None:
            self.counter(tool.line, tool.host, found["name"], found["bare"])
        elif (counter := _COUNTER_FILE.fullmatch(found["file"])) is not None:
            host = host_of_path(text) or tool.host
            self.counter(
                tool.line, host, counter["name"], found["value"], device=found["device"], port=int(found["port"])
            )

    def setting(self, block: _Open, tool: ToolLine) -> bool:
        """A line of ethtool IFACE; lists of modes go on in lines without a key."""
        text = tool.text
        found = _SETTING.fullmatch(text)
        if found is None:
            if _OTHER_SETTING.fullmatch(text) is not None:
                block.key = None
                return True
            if block.key is not None and text[:1] in " \t" and _MODE.search(text) is not None:
                block.modes[block.key].update(_modes(text))
                return True
            return False
        block.key, value = None, found["value"]
        match found["key"]:
            case "Speed":
                speed = _SPEED.fullmatch(value)
                if speed is not None and int(speed["mbit"]) < 2**32 - 1:  # drivers print -1 for unknown
                    block.columns["rate_bytes_per_s"] = int(speed["mbit"]) * 1e6 / 8
                elif speed is None and value != "Unknown!":
                    self.losses.add(
                        "damaged-value",
                        tool.line.number,
                        f"Speed: {value[:40]!r} is no speed; it is left unknown. Run ethtool again",
                    )
            case "Link detected":
                state = {"yes": "active", "no": "down"}.get(value.split(" ", 1)[0])
                if state is None:
                    self.losses.add(
                        "damaged-value",
                        tool.line.number,
                        f"Link detected: {value[:40]!r} is neither yes nor no. Run ethtool again",
                    )
                block.columns["state"] = state
            case key:
                block.key = key
                block.modes[key] = set(_modes(value))
        return True

    def close(self, block: _Open) -> None:
        if block.kind == "settings" and block.line is not None:
            columns = dict(block.columns)
            if columns.get("state") == "down":
                columns["rate_bytes_per_s"] = None
            both = block.modes.get("Supported link modes", set()) & block.modes.get(
                "Link partner advertised link modes", set()
            )
            if both:
                columns["possible_rate_bytes_per_s"] = max(both) * GBIT / 1000
            self.ports.append({
                **place_and_host(self.artefact, block.line, block.host), "device": block.device, "node_kind": "netdev", **columns,
            })  # fmt: skip
        block.kind, block.device, block.port, block.labels, block.line, block.host = "", None, None, None, None, None
        block.foreign, block.priorities, block.key = 0, (), None
        block.modes, block.columns = {}, {}

    def finish(self) -> None:
        for block in self.open.values():
            self.close(block)
        self.ports.sort(key=lambda row: int(row["line"]))

    def whole_file(self, lines: Sequence[PlainLine]) -> bool:
        """Whether the file is one of a copied sysfs tree: its path says what it is, its one line what it holds."""
        path = SYSFS_PORT.search(self.artefact.path)
        counter = _COUNTER_FILE.fullmatch(path["file"]) if path is not None else None
        filled = [line for line in lines if line.text.strip()]
        if path is None or counter is None or len(filled) != 1 or not self.artefact.path.endswith(path[0]):
            return False
        host = host_of_path(self.artefact.path)
        self.counter(
            filled[0], host, counter["name"], filled[0].text.strip(), device=path["device"], port=int(path["port"])
        )
        return True


def _is_counter(text: str, name: str) -> bool:
    """Whether a name that stands alone is believed; `rx_` and `tx_` only in the form of ethtool, with a colon."""
    if name.endswith("_ctx_cnt"):  # an attribute of fi_info -v
        return False
    return _BARE_NAMES.search(name) is not None or (name.startswith(("rx_", "tx_")) and ":" in text)


def _modes(text: str) -> Iterator[int]:
    """Speeds of a list of link modes, in Mb/s."""
    return (int(found["mbit"]) for found in _MODE.finditer(text))
