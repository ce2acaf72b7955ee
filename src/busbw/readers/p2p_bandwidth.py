"""p2pBandwidthLatencyTest of the CUDA samples: bandwidth, latency and peer access between the GPUs of a host.

Bandwidths are GB/s (1e9), latencies us; the diagonal is a GPU with itself. "P2P=Disabled" goes through host memory. The
order of the GPUs is CUDA's, which nvidia-smi may not share. Source: cuda-samples, p2pBandwidthLatencyTest.cu.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from busbw.errors import Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, PlainLine, Template
from busbw.units import GB

__all__ = ["READER"]

_SOURCE = "cuda-samples p2pBandwidthLatencyTest.cu: main"
_TEMPLATES = (
    Template(
        "p2p_bandwidth.device",
        "Device: {device:d}, {name:s}, pciBusID: {bus:x}, pciDeviceID: {slot:x}, pciDomainID:{domain:x}",
        _SOURCE,
        "info",
    ),
    Template("p2p_bandwidth.peer_access", "Device={src:d} {can:w} Access Peer Device={dst:d}", _SOURCE, "info"),
)

_TITLE = re.compile(
    r"\s*(?:(?P<access>P2P Connectivity Matrix)"
    r"|(?P<way>Unidirectional|Bidirectional) P2P=(?P<on>Enabled|Disabled) Bandwidth .*\(GB/s\)"
    r"|P2P=(?P<latency_on>Enabled|Disabled) Latency .*\(us\))"
)
_SIGNATURE = re.compile(r"P\dP=(?:En|Dis)abled (?:Bandwidth|Latency)|P\dP Connectivity Matrix|Access Peer Device=")
_CORNER = re.compile(r"\s*(D\\?D|GPU|CPU)((?:\s+\d+)+)\s*$")
_ACCESS_LINE = re.compile(r"\s*Device=(\d{1,4}) (CAN|CANNOT) Access Peer Device=(\d{1,4})\b")
_CELL = re.compile(r"\d{1,12}\.\d{2}", re.ASCII)
_FLAG = re.compile(r"[01]", re.ASCII)


@dataclass(slots=True)
class _Matrix:
    """The matrix whose rows come next. unit_value: what a printed 1 is in `unit`."""

    quantity: str
    unit: str
    unit_value: float
    columns: tuple[str, ...] = ()


class P2pBandwidthReader:
    """Output of p2pBandwidthLatencyTest, anywhere in a text."""

    name = "p2p-bandwidth"
    templates: Sequence[Template] = _TEMPLATES
    signature: re.Pattern[str] | None = _SIGNATURE

    def derive(self, events: pa.RecordBatch) -> Iterator[Item]:
        """The GPUs that the test lists, bus_id as domain:bus:device."""
        rows = []
        for event in events.select(["artefact", "line", "byte_offset", "event", "fields"]).to_pylist():
            if event.pop("event") != "p2p_bandwidth.device":
                continue
            fields = dict(event.pop("fields"))
            bus, slot, domain = (
                int(fields[name][:8].removeprefix("0x") or "0", 16) for name in ("bus", "slot", "domain")
            )
            device = int(fields["device"][:6])
            kind = {
                "kind": "gpu",
                "device": device,
                "bus_id": f"{domain:04x}:{bus:02x}:{slot:02x}",
                "name": fields["name"],
            }
            rows.append(event | kind)
        if rows:
            yield rows_of("devices", rows)

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """One row of `pairs` a cell. Ends are GPU0, GPU1 ... in CUDA's order.

        Quantities: peer_access (1 or 0, unit "1"); {unidirectional,bidirectional}_p2p_{enabled,disabled} (bytes/s);
        latency_p2p_{enabled,disabled} on the GPU's clock and cpu_latency_p2p_{enabled,disabled} on the CPU's (s).
        """
        losses = Losses(artefact.path)
        rows: list[dict[str, Any]] = []
        lone_access: list[dict[str, Any]] = []
        matrix: _Matrix | None = None
        for line in lines:
            text = line.text
            if "P2P" in text and (title := _TITLE.match(text)) is not None:
                matrix = _matrix(title)
            elif "Access Peer" in text and (access := _ACCESS_LINE.match(text)) is not None:
                known = _Matrix("peer_access", "1", 1.0)
                value = "1" if access[2] == "CAN" else "0"
                lone_access.append(_pair(artefact, line, known, (access[1], access[3]), value))
            elif matrix is not None:
                if (corner := _CORNER.match(text)) is not None:
                    matrix.columns = tuple(corner[2].split())
                    if matrix.unit == "s" and corner[1] != "D\\D":
                        base = matrix.quantity.removeprefix("cpu_")
                        matrix.quantity = f"cpu_{base}" if corner[1] == "CPU" else base
                elif matrix.columns:
                    rows.extend(_cells(artefact, line, matrix, losses))
        if not any(row["quantity"] == "peer_access" for row in rows):
            rows = lone_access + rows
        if rows:
            yield rows_of("pairs", rows)
        yield from losses


READER = P2pBandwidthReader()


def _matrix(title: re.Match[str]) -> _Matrix:
    if title["access"]:
        return _Matrix("peer_access", "1", 1.0)
    if title["way"]:
        return _Matrix(f"{title['way'].lower()}_p2p_{title['on'].lower()}", "bytes/s", GB)
    return _Matrix(f"latency_p2p_{title['latency_on'].lower()}", "s", 1e-6)


def _cells(artefact: Artefact, line: PlainLine, matrix: _Matrix, losses: Losses) -> Iterator[dict[str, Any]]:
    """The cells of one row, up to where it is cut."""
    tokens = line.text.split()
    if not tokens or tokens[0] not in matrix.columns:
        return
    shape = _FLAG if matrix.unit == "1" else _CELL
    for i, column in enumerate(matrix.columns):
        if i + 1 == len(tokens) or not shape.fullmatch(tokens[i + 1]):
            cut = i + 2 >= len(tokens)
            detail = f"row {tokens[0]} of the matrix has {i} whole cells, its header has {len(matrix.columns)}"
            mend = (
                "the output is cut; run the test again"
                if cut
                else "another program wrote into it; give it its own file"
            )
            losses.add("truncated-row" if cut else "damaged-row", line.number, f"{detail}; {mend}")
            return
        yield _pair(artefact, line, matrix, (tokens[0], column), tokens[i + 1])


def _pair(artefact: Artefact, line: PlainLine, matrix: _Matrix, ends: tuple[str, str], value: str) -> dict[str, Any]:
    return {
        "artefact": artefact.sha256,
        "line": line.number,
        "byte_offset": line.byte_offset,
        "tool": "p2pBandwidthLatencyTest",
        "quantity": matrix.quantity,
        "src": f"GPU{ends[0]}",
        "dst": f"GPU{ends[1]}",
        "value": float(value) * matrix.unit_value,
        "unit": matrix.unit,
    }
