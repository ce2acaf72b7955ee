"""`lspci`: devices of a node with their links, access control (ACS), NUMA node and driver (-v to -vvv), and the tree of buses (-t).

    41:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)
            LnkCap: Port #0, Speed 32GT/s, Width x16, ASPM not supported
            LnkSta: Speed 2.5GT/s (downgraded), Width x16
    -[0000:40]-+-01.1-[41]----00.0  NVIDIA Corporation GH100

Layout: pciutils lspci.c, ls-caps.c, ls-tree.c. Ids of a bus become `dddd:bb:dd.f`, the domain 0000 where lspci leaves it
out. Speeds and widths are kept as printed: an idle GPU lowers its speed to save power and never its width.
Lines cut out by grep are read too; then nothing but the header above them says of which device they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from busbw.errors import Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, place_and_host
from busbw.readers.plain_rows import by_writer, event_row

__all__ = ["READER"]

_ID = r"(?:(?P<domain>[0-9a-fA-F]{4,8}):)?(?P<bus>[0-9a-fA-F]{2}):(?P<slot>[0-9a-fA-F]{2}\.[0-7])"
_DEVICE = re.compile(rf"\s*{_ID} (?P<kind>[A-Z0-9][^:]{{2,80}}?)(?: \[[0-9a-f]{{4}}\])?: (?P<name>.*)")
_ROOT = re.compile(r"[ |+\\-]{0,200}-\[(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}(?:-[0-9a-f]{2})?\]-")
_SIGNATURE = re.compile(
    rf"^\s*{_ID.replace('?P<domain>', '?:').replace('?P<bus>', '?:').replace('?P<slot>', '?:')} [A-Z0-9]|^{_ROOT.pattern}"
    r"|Lnk(?:Cap|Sta):|ACSCtl:"
)
_KEY = re.compile(r"(LnkCap|LnkSta|ACSCtl|NUMA node|IOMMU group|Kernel driver in use|Kernel modules):\s*(.*)")
_CAPABILITY = re.compile(r"(?P<port>.*?)Speed (?P<speed>\d{1,4}(?:\.\d+)?) ?GT/s, Width x(?P<width>\d{1,3})\b")
_STATUS = re.compile(
    r"Speed (?P<speed>\d{1,4}(?:\.\d+)?) ?GT/s(?P<speed_note>[^,]{0,40}), Width x(?P<width>\d{1,3})(?P<width_note> \([a-z]+\))?"
)
_UNKNOWN_SPEED = re.compile(r"(?:.*?)Speed (?:unknown|<unknown>)[^,]*, Width x(?P<width>\d{1,3})")
_FLAGS = re.compile(r"(?:\w+[+-]\s*)+|0x[0-9a-f]+")
_COMMAND = re.compile(r"(?:^|[\s$#])lspci(?:\s|$)")
_SIMPLE = {"NUMA node": "numa_node", "IOMMU group": "iommu_group", "Kernel driver in use": "driver"}
_REACH = 12
"""Foreign lines after which a tree is over."""
_BRANCH = re.compile(r"[ |+\\-]*")
_BUS = re.compile(r"\[(?:([0-9a-f]{4,8}):)?([0-9a-f]{2})(?:-[0-9a-f]{2})?\](?=-|$)")
_SLOT = re.compile(r"([0-9a-f]{2}\.[0-7])(?=-|  |$)")


@dataclass(slots=True)
class _Device:
    """A device while its block is read."""

    line: PlainLine
    bus_id: str
    kind: str
    name: str
    attributes: dict[str, str] = field(default_factory=dict)


class LspciReader(Lines):
    """Devices, links and access control as lspci prints them."""

    name = "lspci"
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """A row of `devices` (pci_device) a device, and events pci.device, pci.link_capability, pci.link_status, pci.acs.

        Events of links and of access control carry bus_id and device_class of the device they stand under, if there is one.
        A tree gives rows pci_tree: attribute `parent` is the bus_id of the bridge above.
        """
        losses = Losses(artefact.path)
        for written in by_writer(lines):
            devices, events = _devices(artefact, written, losses)
            tree = _tree(artefact, written)
            if events:
                yield rows_of("events", events)
            if devices or tree:
                yield rows_of("devices", [_row(artefact, device) for device in devices] + tree)
        yield from losses


READER = LspciReader()


def _devices(
    artefact: Artefact, lines: Sequence[PlainLine], losses: Losses
) -> tuple[list[_Device], list[dict[str, Any]]]:
    """The devices and the events of one writer."""
    devices: list[_Device] = []
    events: list[dict[str, Any]] = []
    device: _Device | None = None
    for line in lines:
        head = _DEVICE.match(line.text)
        if head is not None:
            bus_id = f"{head['domain'] or '0000'}:{head['bus']}:{head['slot']}".lower()
            device = _Device(line, bus_id, head["kind"], head["name"].strip())
            devices.append(device)
            events.append(
                event_row(artefact, line, "pci.device", {"bus_id": bus_id, "class": head["kind"], "name": head["name"]})
            )
        elif _COMMAND.search(line.text) is not None:
            device = None  # what comes now is of another call
        elif (found := _KEY.search(line.text)) is not None:
            event = _property(losses, line, device, found[1], found[2].strip())
            if event is not None:
                events.append(event_row(artefact, line, *event))
    return devices, events


def _property(
    losses: Losses, line: PlainLine, device: _Device | None, key: str, value: str
) -> tuple[str, dict[str, str | None]] | None:
    """Notes one line of a device; the event that it is, if any."""
    attributes = device.attributes if device is not None else {}
    if key in _SIMPLE:
        if value:
            attributes.setdefault(_SIMPLE[key], value)
        return None
    if key == "Kernel modules":
        return None
    owner = {"bus_id": device.bus_id, "device_class": device.kind} if device is not None else {}
    if key == "ACSCtl":
        if _FLAGS.match(value) is None:
            losses.add("damaged-value", line.number, f"ACSCtl holds no flags: {value[:40]!r}")
            return None
        attributes.setdefault("acs", value)
        return "pci.acs", {"flags": value, **owner}
    pattern, prefix = (_CAPABILITY, "max_") if key == "LnkCap" else (_STATUS, "")
    found = pattern.match(value)
    if found is None:
        unknown = _UNKNOWN_SPEED.match(value)  # a slot without a card, or a speed newer than this lspci
        if unknown is not None:
            attributes.setdefault("max_width" if prefix else "link_width", unknown["width"])
        else:
            losses.add("damaged-value", line.number, f"{key} without speed and width: {value[:60]!r}")
        return None
    attributes.setdefault("max_speed_gts" if prefix else "link_speed_gts", found["speed"])
    attributes.setdefault("max_width" if prefix else "link_width", found["width"])
    event = "pci.link_capability" if prefix else "pci.link_status"
    return event, {**found.groupdict(), **owner}


def _row(artefact: Artefact, device: _Device) -> dict[str, Any]:
    return {
        **place_and_host(artefact, device.line, device.line.host),
        "rank": device.line.rank,
        "kind": "pci_device",
        "bus_id": device.bus_id,
        "name": device.name,
        "attributes": {"class": device.kind, **device.attributes},
    }


def _tree(artefact: Artefact, lines: Sequence[PlainLine]) -> list[dict[str, Any]]:
    """Rows of `lspci -t`: the bus of a device is the nearest bracket to its left that is still open."""
    rows: list[dict[str, Any]] = []
    buses: list[tuple[int, str, str, str | None]] = []
    """Open brackets from left to right: column, domain, bus, the bridge that leads there."""
    foreign = 0
    for line in lines:
        text = line.text
        if _ROOT.match(text) is None and not (buses and text.lstrip(" |")[:2] in ("+-", "\\-")):
            foreign += 1
            if foreign > _REACH:
                buses = []
            continue
        foreign = 0
        at = _BRANCH.match(text).end()  # type: ignore[union-attr]  # may be empty, always matches
        buses = [bus for bus in buses if bus[0] < at]
        bridge: str | None = None
        while at < len(text):
            if (bracket := _BUS.match(text, at)) is not None:
                if bracket[1] is not None or not buses:
                    buses = []  # another root
                domain = bracket[1] or (buses[-1][1] if buses else "0000")
                buses.append((at, domain, bracket[2], bridge))
                at = bracket.end()
            elif (slot := _SLOT.match(text, at)) is not None and buses:
                _, domain, bus, parent = buses[-1]
                bridge = f"{domain}:{bus}:{slot[1]}"
                rest = text[slot.end() :]
                rows.append({
                    **place_and_host(artefact, line, line.host), "rank": line.rank, "kind": "pci_tree", "bus_id": bridge,
                    "name": rest.strip() if rest[:2] == "  " else None,
                    "attributes": {"parent": parent} if parent is not None else {},
                })  # fmt: skip
                at = slot.end()
            else:
                break
            at = _BRANCH.match(text, at).end()  # type: ignore[union-attr]
    return rows
