"""`ucx_info -d` (transports and devices) and `-v` (version, configure line).

    # Memory domain: mlx5_0
    #     Component: ib
    #      Transport: rc_mlx5
    #         Device: mlx5_0:1
    #            bandwidth: 47176.93/ppn + 0.00 MB/sec

Layout: tools/info/tl_info.c, version_info.c. `-c` prints assignments, which the reader of settings takes.
MB is 2^20 bytes there; figures are kept as printed, with their unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from busbw.errors import Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, place_and_host
from busbw.readers.plain_rows import by_writer, event_row

__all__ = ["READER"]

_LINE = re.compile(r"#\s+(?P<key>[A-Za-z][\w /]{1,40}?):\s?(?P<value>.*)")
_FAILED = re.compile(r"#\s+< (?P<what>.*) >")
_SIGNATURE = re.compile(r"^#\s+(?:Memory domain|Component|Transport|Library version|Version|Git branch|UCT version)\b")
_VERSION = re.compile(r"# (?:Library version: |Version |UCT version=)(\S+)")
_MOST_ATTRIBUTES = 100


class UcxInfoReader(Lines):
    """Transports as ucx_info lists them."""

    name = "ucx-info"
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """A row of `devices` (ucx_transport) a transport and device; events ucx.version and ucx.transport_failed."""
        losses = Losses(artefact.path)
        for written in by_writer(lines):
            yield from _read(artefact, written, losses)
        yield from losses


READER = UcxInfoReader()


def _read(artefact: Artefact, lines: Sequence[PlainLine], losses: Losses) -> Iterator[Item]:
    events: list[dict[str, Any]] = []
    devices: list[dict[str, Any]] = []
    domain: dict[str, str] = {}
    attributes: dict[str, str] | None = None
    in_domain = False
    for line in lines:
        text = line.text.strip()
        if text[:1] != "#":
            continue
        if (version := _VERSION.match(text)) is not None:
            events.append(event_row(artefact, line, "ucx.version", {"version": version[1]}))
            continue
        if (failed := _FAILED.fullmatch(text)) is not None:
            if in_domain:
                owner = {} if "connection manager" in failed["what"] else domain
                events.append(event_row(artefact, line, "ucx.transport_failed", {"what": failed["what"], **owner}))
            continue
        found = _LINE.fullmatch(text)
        if found is None:
            if in_domain and text.strip("# ") and ":" not in text and attributes is not None:
                losses.add("damaged-row", line.number, f"neither `key: value` nor a heading: {text[:60]!r}")
            continue
        key, value = found["key"].strip().lower(), found["value"].strip()
        if key == "memory domain":
            domain, attributes, in_domain = {"memory_domain": value}, None, True
        elif key == "connection manager":
            domain, attributes, in_domain = {"connection_manager": value}, None, True
        elif not in_domain:
            continue
        elif key == "component":
            domain["component"] = value
        elif key == "transport":
            attributes = {**domain, "transport": value}
            devices.append({
                **place_and_host(artefact, line, line.host), "rank": line.rank, "kind": "ucx_transport", "name": value, "attributes": attributes,
            })  # fmt: skip
        elif attributes is not None:
            if key == "device":
                devices[-1]["name"] = f"{attributes['transport']}/{value}"
            if value and len(attributes) < _MOST_ATTRIBUTES:
                attributes.setdefault(key.replace(" ", "_"), value)
    if events:
        yield rows_of("events", events)
    if devices:
        yield rows_of("devices", devices)
