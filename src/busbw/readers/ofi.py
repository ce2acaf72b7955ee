"""OpenFabrics Interfaces (libfabric): `fi_info`, short and -v, and the library's log.

    provider: efa
        fabric: EFA-fe80::1
        domain: efa_0-rdm

    libfabric:23671:1753871169::core:core:fi_getinfo_():1385<info> fi_getinfo: provider efa returned -61 (No data available)

Layout: util/info.c, src/fi_tostr.c, src/log.c of ofiwg/libfabric. aws-ofi-nccl prints through NCCL: nccl_log.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from busbw.errors import Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, Template, place_and_host
from busbw.readers.plain_rows import by_writer, event_row

__all__ = ["READER"]

TEMPLATES: tuple[Template, ...] = (
    Template(
        "libfabric.provider_empty",
        "fi_getinfo: provider {provider:w} returned -{code:d} ({error:s})",
        "libfabric src/fabric.c, fi_getinfo_",
        "info",
    ),
    Template(
        "libfabric.fabric_opened", "Opened fabric: {fabric:s}", "libfabric src/fabric.c, fi_fabric_, 1.20", "info"
    ),
    Template(
        "libfabric.warning",
        "libfabric:{process:d}:{seconds:d}:{where:w}<warn> {message:s}",
        "libfabric src/log.c, 1.14",
        "warning",
    ),
    Template(
        "libfabric.warning", "libfabric:{process:d}:{where:w}<warn> {message:s}", "libfabric src/log.c", "warning"
    ),
)
_SIGNATURE = re.compile(r"^provider: \S|^fi_info:\s*$|^fi_info: -?\d|^fi_getinfo: -?\d|^libfabric: \d")
_SHORT = re.compile(r"\s+(fabric|domain|version|type|protocol): (.*)")
_LEAF = re.compile(r"(?P<indent>\s+)(?P<key>[A-Za-z][\w ]{0,40}):(?: (?P<value>.*))?")
_REACH = 12
"""Lines of others in a row after which an entry is over."""
_MOST_ATTRIBUTES = 300
_BROKEN = re.compile(r"\s+[A-Za-z_]{2,30}\s*$")


class OfiReader(Lines):
    """Providers as fi_info lists them, and what libfabric warns about."""

    name = "ofi"
    fallback = True
    templates: Sequence[Template] = TEMPLATES
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """A row of `devices` (libfabric_provider) an entry; event libfabric.library for the version that fi_info prints."""
        losses = Losses(artefact.path)
        for written in by_writer(lines):
            yield from _read(artefact, written, losses)
        yield from losses


READER = OfiReader()


def _read(artefact: Artefact, lines: Sequence[PlainLine], losses: Losses) -> Iterator[Item]:
    devices: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    short: dict[str, Any] | None = None
    long: dict[str, Any] | None = None
    sections: list[tuple[int, str]] = []
    foreign = 0
    for line in lines:
        text = line.text.rstrip()
        if text.startswith("provider: "):
            short, long = _device(artefact, line, text[10:].strip()), None
            devices.append(short)
        elif text == "fi_info:":
            short, long, sections = None, _device(artefact, line, None), []
            devices.append(long)
        elif (version := re.fullmatch(r"libfabric: (\d[\w.-]*)", text)) is not None:
            events.append(event_row(artefact, line, "libfabric.library", {"version": version[1]}))
        elif short is not None and (field := _SHORT.fullmatch(text)) is not None:
            short["attributes"].setdefault(field[1], field[2].strip())
        elif long is not None and (leaf := _LEAF.fullmatch(text)) is not None:
            depth = len(leaf["indent"].expandtabs(8))
            while sections and sections[-1][0] >= depth:
                sections.pop()
            key = leaf["key"].strip().replace(" ", "_")
            if leaf["value"] is None:
                sections.append((depth, key))
                continue
            path = ".".join([*(name.removeprefix("fi_") for _, name in sections), key])
            value = leaf["value"].strip()
            if path == "fabric_attr.prov_name":
                long["name"] = value
            if len(long["attributes"]) < _MOST_ATTRIBUTES:
                long["attributes"].setdefault(path, value)
        elif (short is not None or long is not None) and _BROKEN.fullmatch(text) is not None:
            losses.add("damaged-row", line.number, f"neither `key: value` nor a section: {text.strip()[:60]!r}")
        elif text == "---":
            short = long = None
        elif not text[:1].isspace():
            foreign += 1
            if foreign > _REACH:
                short = long = None
            continue
        foreign = 0
    if events:
        yield rows_of("events", events)
    if devices:
        yield rows_of("devices", devices)


def _device(artefact: Artefact, line: PlainLine, name: str | None) -> dict[str, Any]:
    return {
        **place_and_host(artefact, line, line.host),
        "rank": line.rank,
        "kind": "libfabric_provider",
        "name": name,
        "attributes": {},
    }
