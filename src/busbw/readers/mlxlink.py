"""mlxlink (mstlink too): state, speed and width of a port, its bit error rates and errors.

    Operational Info                          Physical Counters and BER Info
    ----------------                          ------------------------------
    State                 : Active            Effective Physical Errors       : 0
    Physical state        : LinkUp            Effective Physical BER          : 15E-255
    Speed                 : IB-HDR            Raw Physical Errors Per Lane    : 3183333,242074
    Width                 : 2x                Raw Physical BER                : 1E-8

One row of `ports` a report: `possible_rate_bytes_per_s` is the fastest speed that is both enabled and supported by the cable, at the same width. One
row of `counters` a figure: symbol_errors, symbol_ber, effective_physical_errors, effective_physical_ber, raw_physical_errors (label lane), raw_physical_ber,
link_down_counter, link_error_recovery_counter, time_since_last_clear_min; they count since the last clear. 15E-255 is the tool's word for no error
yet, and stays as printed. N/A is unknown. The device is that of the command (`mlxlink -d mlx5_0`) or of a line of a loop (`=== mlx5_0 ===`).
Format: Mellanox/mstflint mlxlink/modules/mlxlink_commander.cpp (prepareBerInfo, operatingInfoPage); reports of MFT 4.22 to 4.30.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from busbw.errors import Losses
from busbw.hardware.link_speeds import lane_bytes_per_s
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, Template, place_and_host
from busbw.readers.link_states import physical_state, port_state
from busbw.readers.tool_output import ToolLine, tool_lines
from busbw.units import GBIT

__all__ = ["READER"]

_LINE = re.compile(r"\s*(?P<key>[A-Z][A-Za-z][\w .()/\[\]-]{0,60}?)\s*: (?P<value>(?:.*\S)?)\s*", re.ASCII)
_COMMAND = re.compile(r"(?:mlxlink|mstlink)\s(?:.*\s)?(?:-d|--device)[ =](?P<device>\S{1,64})", re.ASCII)
_BANNER = re.compile(r"(?:={2,}|#{2,}|\*{2,}|-{3,})\s*(?:Device:? )?(?P<device>\w[\w.:/-]{1,63}).*", re.ASCII)
_COUNTERS = {
    "Time Since Last Clear [Min]": "time_since_last_clear_min",
    "Symbol Errors": "symbol_errors",
    "Symbol BER": "symbol_ber",
    "Effective Physical Errors": "effective_physical_errors",
    "Effective Physical BER": "effective_physical_ber",
    "Raw Physical Errors Per Lane": "raw_physical_errors",
    "Raw Physical BER Per Lane": "raw_physical_ber_of_lane",
    "Raw Physical BER": "raw_physical_ber",
    "Link Down Counter": "link_down_counter",
    "Link Error Recovery Counter": "link_error_recovery_counter",
}
_PER_LANE = ("raw_physical_errors", "raw_physical_ber_of_lane")
_PORT_KEYS = ("State", "Physical state", "Speed", "Width")
_LINK_KEYS = ("Enabled Link Speed", "Supported Cable Speed")
_FIGURE = re.compile(r"\d{1,20}(?:\.\d{1,6})?(?:E[+-]?\d{1,3})?", re.ASCII | re.I)
_SIGNATURE = re.compile(
    r"^\s*(?:[\w.-]+: ?)?(?:Operational Info\s*$|Physical Counters and BER Info|(?:Raw|Effective) Physical (?:BER|Errors)[\w ]*: |Link Down Counter\s+: )"
)


@dataclass(slots=True)
class _Report:
    device: str | None = None
    line: PlainLine | None = None
    host: str | None = None
    values: dict[str, tuple[str, PlainLine]] = field(default_factory=dict)


class MlxlinkReader(Lines):
    """Reports of mlxlink."""

    name = "mlxlink"
    templates: Sequence[Template] = ()
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """One row of `ports` a report that has a state or a speed, rows of `counters`, figures that are damaged."""
        reading = _Reading(artefact)
        for line in tool_lines(lines, _is_known):
            reading.line(line)
        for report in reading.reports.values():
            reading.close(report)
        if reading.ports:
            yield rows_of("ports", sorted(reading.ports, key=lambda row: int(row["line"])))
        if reading.counters:
            yield rows_of("counters", reading.counters)
        yield from reading.losses


READER = MlxlinkReader()


def _is_known(text: str) -> bool:
    found = _LINE.fullmatch(text)
    return text.strip() == "Operational Info" or (
        found is not None
        and (found["key"] in _COUNTERS or found["key"] in _PORT_KEYS or found["key"].startswith(_LINK_KEYS))
    )


class _Reading:
    def __init__(self, artefact: Artefact) -> None:
        self.artefact = artefact
        self.losses = Losses(artefact.path)
        self.reports: dict[tuple[str | None, int | None], _Report] = {}
        self.ports: list[dict[str, Any]] = []
        self.counters: list[dict[str, Any]] = []

    def line(self, tool: ToolLine) -> None:
        text = tool.text
        report = self.reports.setdefault(tool.writer, _Report())
        if (command := _COMMAND.search(text)) is not None:
            self.close(report)
            report.device = _device(command["device"])
        elif tool.is_command:
            self.close(report)
            report.device = None
        elif text.strip() == "Operational Info":
            self.close(report)
            report.line, report.host = tool.line, tool.host
        elif (banner := _BANNER.fullmatch(text)) is not None:
            self.close(report)
            report.device = _device(banner["device"])
        elif (found := _LINE.fullmatch(text)) is not None:
            key, value = found["key"], found["value"]
            if key in _COUNTERS:
                self.counter(report, tool, _COUNTERS[key], value)
            elif report.line is not None and (key in _PORT_KEYS or key.startswith(_LINK_KEYS)):
                report.values.setdefault(key, (value, tool.line))

    def counter(self, report: _Report, tool: ToolLine, name: str, value: str) -> None:
        if value in ("N/A", ""):
            return
        cells = value.split(",") if name in _PER_LANE else [value]
        for lane, cell in enumerate(cells):
            if _FIGURE.fullmatch(cell) is None or not math.isfinite(float(cell)):
                self.losses.add(
                    "damaged-value",
                    tool.line.number,
                    f"{name}: {cell[:40]!r} is no figure; it was left out. Run mlxlink again",
                )
                continue
            self.counters.append({
                **place_and_host(self.artefact, tool.line, tool.host), "device": report.device, "name": name, "value": float(cell),
                "labels": {"lane": str(lane)} if name in _PER_LANE else None,
            })  # fmt: skip

    def close(self, report: _Report) -> None:
        if report.line is not None and report.values:
            self.ports.append({
                **place_and_host(self.artefact, report.line, report.host), "device": report.device, "node_kind": "ca", **self.columns(report.values),
            })  # fmt: skip
        report.line, report.host, report.values = None, None, {}

    def columns(self, values: dict[str, tuple[str, PlainLine]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        state, physical = values.get("State"), values.get("Physical state")
        if state is not None:
            out["state"] = self.word(*state, port_state, "state")
        if physical is not None:
            out["physical_state"] = self.word(*physical, physical_state, "physical state")
        width: int | None = None
        if "Width" in values and values["Width"][0] not in ("N/A", ""):
            text, line = values["Width"]
            found = re.fullmatch(r"(\d{1,2})x", text)
            width = int(found[1]) if found is not None else None
            if width is None:
                self.losses.add(
                    "damaged-value",
                    line.number,
                    f"width: {text[:40]!r} is no width; it is left unknown. Run mlxlink again",
                )
        speed = values["Speed"][0] if "Speed" in values else ""
        infiniband = speed.startswith("IB-")
        if infiniband or re.match(r"\d+G", speed):
            out["link_layer"] = "InfiniBand" if infiniband else "Ethernet"
        out["width"] = width
        out["rate_bytes_per_s"] = _rate(speed, width)
        if _rate(speed, 1) is None and speed not in ("N/A", ""):
            self.losses.add(
                "damaged-value",
                values["Speed"][1].number,
                f"speed: {speed[:40]!r} is no speed known here; it is left unknown",
            )
        enabled = _speeds(values, "Enabled Link Speed")
        cable = _speeds(values, "Supported Cable Speed")
        possible = [rate for name in enabled & cable if (rate := _rate(name, width)) is not None]
        out["possible_rate_bytes_per_s"] = max(possible, default=None)
        if out.get("state") == "down":
            out.update(width=None, rate_bytes_per_s=None)
        return out

    def word(self, text: str, line: PlainLine, known: Callable[[str], str | None], what: str) -> str | None:
        found = known(text)
        if found is None and text not in ("N/A", ""):
            self.losses.add(
                "unknown-value", line.number, f"{what}: {text[:40]!r} is no {what} known here; it is left unknown"
            )
        return found


def _device(text: str) -> str:
    """/dev/mst/mt4129_pciconf0 as mt4129_pciconf0; names and bus addresses as they are."""
    return text.rsplit("/", 1)[-1]


def _speeds(values: dict[str, tuple[str, PlainLine]], key: str) -> set[str]:
    """The names in `0x00000075 (HDR,EDR,FDR,QDR,SDR)`."""
    for name, (text, _) in values.items():
        if name.startswith(key):
            found = re.search(r"\(([\w,]{1,400})\)", text)
            return set(found[1].split(",")) if found is not None else set()
    return set()


def _rate(speed: str, width: int | None) -> float | None:
    """Data of all lanes: `IB-HDR` or `HDR` times the width; `100G`, `100G_4X` and `100GbE` are sums already."""
    lane = lane_bytes_per_s(speed.removeprefix("IB-")) if speed else None
    if lane is not None:
        return lane * width if width is not None else None
    found = re.fullmatch(r"(\d{1,4})(?:G|GbE)(?:_\d{1,2}X)?|(\d{1,4})Gbps?", speed)
    return float(found[1] or found[2]) * GBIT if found is not None else None
