"""What small system tools say of devices: lspci links and ACS, ibv_devinfo and ibstat, show_gids, nvidia-smi nvlink, counters.

Lines only; a tool's whole report has, or will have, a reader of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, Template

__all__ = ["READER", "DeviceReader"]

TEMPLATES: tuple[Template, ...] = (
    Template("pci.acs", "ACSCtl: {flags:s}", "lspci -vv", "info"),
    *(
        Template("pci.device", f"^{{bus_id:w}} {kind}: {{name:s}}", "lspci", "info")
        for kind in (
            "3D controller",
            "VGA compatible controller",
            "Display controller",
            "Processing accelerators",
            "Infiniband controller",
            "Ethernet controller",
            "PCI bridge",
            "USB controller",
            "Non-Volatile memory controller",
            "SATA controller",
            "Audio device",
            "System peripheral",
            "Bridge",
            "Serial controller",
            "Co-processor",
            "Encryption controller",
            "RAID bus controller",
        )
    ),
    Template("pci.link_capability", "LnkCap: {port:s}Speed {speed:f}GT/s, Width x{width:d}", "lspci -vv", "info"),
    Template("pci.link_capability", "LnkCap: {port:s}Speed {speed:f} GT/s, Width x{width:d}", "lspci -vv", "info"),
    Template("pci.link_status", "LnkSta: Speed {speed:f}GT/s{speed_note:s}, Width x{width:d}", "lspci -vv", "info"),
    Template("pci.link_status", "LnkSta: Speed {speed:f} GT/s{speed_note:s}, Width x{width:d}", "lspci -vv", "info"),
    Template("nvlink.link_down", "^ Link {link:d}: <inactive>", "nvidia-smi nvlink -s", "warning"),
    Template("nvlink.link_down", "^ Link {link:d}: inactive", "nvidia-smi nvlink -s", "warning"),
    Template("nvlink.link_up", "^ Link {link:d}: {rate:f} GB/s", "nvidia-smi nvlink -s", "info"),
    Template("nvlink.gpu", "^GPU {gpu:d}: {name:s} (UUID: {uuid:w}", "nvidia-smi nvlink -s", "info"),
    Template("rdma.gid", "GID[ {index:d}]: {gid:w}, {type:s}", "ibv_devinfo -v", "info"),
    Template("rdma.gid", "GID[{index:d}]: {gid:w}, {type:s}", "ibv_devinfo -v", "info"),
    Template("rdma.device", "hca_id: {device:w}", "ibv_devinfo", "info"),
    Template("rdma.device", "^CA '{device:w}'", "ibstat", "info"),
    Template("rdma.port_state", "^ state: {state:s}", "ibv_devinfo", "info"),
    Template("rdma.port_state", "^ State: {state:w}$", "ibstat", "info"),
    Template("rdma.physical_state", "phys_state: {state:s}", "ibv_devinfo, ibstatus", "info"),
    Template("rdma.physical_state", "Physical state: {state:w}", "ibstat", "info"),
    Template("rdma.link", "^link {device:w} {rest:s}state {state:w} physical_state {physical:w}", "rdma link", "info"),
    Template("rdma.rate", "^ Rate: {rate:f}$", "ibstat", "info"),
    Template("rdma.rate", "^ rate: {rate:f} Gb/sec ({width:w} {speed:w})", "ibstatus", "info"),
    Template("rdma.mtu", "active_mtu: {mtu:d}", "ibv_devinfo", "info"),
    Template("rdma.link_layer", "~link_layer: {layer:w}", "ibv_devinfo, ibstatus", "info"),
    Template("rdma.link_layer", "~link layer: {layer:w}", "ibstat", "info"),
    Template("rdma.max_mtu", "max_mtu: {mtu:d}", "ibv_devinfo", "info"),
    Template("net.interface", "^{interface:w} Link encap:{kind:w}", "ifconfig", "info"),
    Template("net.address", "inet addr:{address:w}", "ifconfig", "info"),
    Template("net.interface", "^{interface:w}: flags={flags:s} mtu {mtu:d}", "ifconfig", "info"),
)

_COUNTER = re.compile(
    r"(?:/sys/class/infiniband/(?P<device>[^/\s]+)/ports/(?P<port>\d+)/(?:hw_)?counters/)?(?P<name>[a-z][a-z0-9_]{2,63})\s*[:=]\s*(?P<value>-?\d+)\s*"
)
_COUNTER_NAMES = re.compile(
    r"counters/|_prio\d|^\s*(?:rx|tx)_[a-z0-9_]+\s*:|rnr_nak|ack_timeout|out_of_(?:buffer|sequence)|cnp_|ecn_marked|symbol_error|link_downed|port_rcv|port_xmit"
)
_GID_ROW = re.compile(
    r"^\s*(?P<device>\S+)\s+\d+\s+(?P<index>\d+)\s+(?P<gid>(?:[0-9a-fA-F]{4}:){7}[0-9a-fA-F]{4})\s+(?:\S+\s+)?(?P<version>v[12])\b"
)
"""show_gids: DEV PORT INDEX GID [IPv4] VER DEV."""
_ETHTOOL = re.compile(r"ethtool\s+-S\s+(\S+)")


class DeviceReader(Lines):
    """Lines of system tools, and blocks of counters."""

    name = "devices"
    templates: Sequence[Template] = TEMPLATES
    signature: re.Pattern[str] | None = re.compile(rf"{_COUNTER_NAMES.pattern}|(?:[0-9a-fA-F]{{4}}:){{7}}")

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """Counters of sysfs (`path/name:value`, as grep prints them) and of ethtool -S; rows of show_gids."""
        gids = [(line, match) for line in lines if (match := _GID_ROW.search(line.text)) is not None]
        if gids:
            yield rows_of(
                "events",
                [
                    {
                        "artefact": artefact.sha256, "line": line.number, "byte_offset": line.byte_offset, "event": "rdma.gid", "level": "info",
                        "host": line.host, "text": line.text,
                        "fields": {"index": match["index"], "gid": match["gid"], "type": f"RoCE {match['version']}", "device": match["device"]},
                    }
                    for line, match in gids
                ],
            )  # fmt: skip
        rows = []
        device: str | None = None
        for line in lines:
            if (named := _ETHTOOL.search(line.text)) is not None:
                device = named[1]
                continue
            if _COUNTER_NAMES.search(line.text) is None:
                continue
            match = _COUNTER.fullmatch(line.text.strip())
            if match is None:
                continue
            rows.append({
                "artefact": artefact.sha256, "line": line.number, "byte_offset": line.byte_offset, "host": line.host,
                "device": match["device"] or device, "port": int(match["port"]) if match["port"] else None, "name": match["name"],
                "value": float(match["value"]),
            })  # fmt: skip
        if rows:
            yield rows_of("counters", rows)


READER = DeviceReader()
