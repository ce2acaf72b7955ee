"""nvbandwidth: matrices of copies between CPU and GPUs and from GPU to GPU, as text and as JSON (`-j`), versions 0.1 to 0.8.

GB/s is 1e9 bytes/s, latencies are ns. An arrow in the title says which end of a cell is the source: `GPU(row) <- GPU(column)` copies
from the column's GPU. Where both directions run at once (`<->`) one direction is measured, in the test's name; the matrices Read1, Read2,
Write1, Write2 and Total of one test have quantities of their own. `N/A`, and 0 on the diagonal in old versions, is a cell that is not
measured. Multinode builds number processes, not GPUs. "min" of the JSON counts N/A as 0 and is not used.
Source: NVIDIA/nvbandwidth output.cpp, inline_common.h, json_output.cpp at 66746a3 (0.8); outputs in public issues.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from busbw.errors import Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, Template, place
from busbw.readers.text_values import finite
from busbw.units import GB

__all__ = ["JSON_READER", "LARGEST_JSON_BYTES", "READER"]

LARGEST_JSON_BYTES = 64 * 2**20
"""A matrix of 72 GPUs with all 40 tests is 3 MB."""

_SOURCE = "nvbandwidth output.cpp"
TEMPLATES: tuple[Template, ...] = (
    Template("nvbandwidth.version", "^nvbandwidth Version: {version:w}", _SOURCE, "info"),
    Template("nvbandwidth.waived", "^Waiving {test:w}.$", "nvbandwidth nvbandwidth.cpp, to 0.4", "info"),
    Template("nvbandwidth.waived", "^Waived:$", f"{_SOURCE}, since 0.5; names no test", "info"),
    Template("nvbandwidth.wrong_data", "^ Invalid value when checking the pattern at {address:x}", "nvbandwidth memcpy.cpp", "error"),
    Template("nvbandwidth.failed", "^ASSERT in expression {expression:s} in {function:s}() : {location:s}", "nvbandwidth error_handling.h", "error"),
    Template("nvbandwidth.too_many_processes", "^Warning: there are more processes than GPUs on {host:w}.", _SOURCE, "warning"),
)  # fmt: skip

_RUNNING = re.compile(r"Running (\w+)\.\s*")
_SIGNATURE = re.compile(
    r"^nvbandwidth Version: |^Running \w+\.\s*$|^(?:memcpy|multicast|memory latency|Device to Device Latency) .*\((?:GB/s|ns)\)\s*$"
)
_TITLE = re.compile(r"(?:memcpy|multicast|memory latency|Device to Device Latency) .*\((GB/s|ns)\)\s*")
_ARROW = re.compile(
    r"(CPU|GPU|All Gpus|All|Gpus)(?:\((row|column)\))?\s*(<->|->|<-)\s*(CPU|GPU|All Gpus|All)(?:\((row|column)\))?"
)
_PART = re.compile(r"\b(Read1|Read2|Write1|Write2|Total)\b")
_NUMBERS = re.compile(r"\s+\d{1,5}(?:\s+\d{1,5})*\s*")
_SUM = re.compile(r"SUM (\w+) (\S+)\s*")
_PERF = re.compile(r"&&&& PERF (\w+) (\S+) [+-](GB/s|ns)\s*")
_STATUS = re.compile(r"(ERROR|Error): ?(.*)")
_DEVICE = re.compile(r"Device (\d{1,4}): (.{1,120}?)(?: \(([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\))?\s*")
_PROCESS = re.compile(
    r"Process\s+(\d{1,5}) \(([^)\s]{1,255})\): device (\d{1,4}): (.{1,120}?)(?: \(([0-9a-fA-F:]{7,14})\))?\s*"
)
_JSON_DEVICE = re.compile(r"(\d{1,4}): (.{1,120}?) \(([0-9a-fA-F:]{7,14})\): \(([^)]{1,255})\)")
_CELL = re.compile(r"\d{1,12}\.\d{2}|N/A|-?nan|inf", re.ASCII)
_UNIT = {"GB/s": ("bytes/s", GB), "ns": ("s", 1e-9)}


@dataclass(slots=True)
class _Matrix:
    """The matrix whose rows come next. sum: of the cells so far, as printed."""

    test: str
    title: str
    unit: str
    factor: float
    line: int
    columns: tuple[str, ...] = ()
    sum: float = 0.0
    cells: int = 0
    rows: int = 0
    damaged: bool = False

    @property
    def quantity(self) -> str:
        """The test, and the part of it where it prints several matrices."""
        part = _PART.search(self.title)
        return f"{self.test}/{part[1].lower()}" if part else self.test

    def ends(self, row: str, column: str) -> tuple[str, str]:
        """(source, destination) of a cell."""
        who = "rank" if self.test.startswith("multinode_") else "GPU"
        arrow = _ARROW.search(self.title)
        if arrow is None:
            return f"{who}{column}", f"{who}{column}"  # memcpy local GPU(column)

        def name(kind: str, axis: str | None) -> str:
            if kind == "CPU":
                return "CPU"
            return f"{who}{row if axis == 'row' else column}" if axis else "all"

        left, right = name(arrow[1], arrow[2]), name(arrow[4], arrow[5])
        turned = arrow[3] == "<-" or (arrow[3] == "<->" and self.test.startswith(("device_to_host", "all_to_host")))
        return (right, left) if turned else (left, right)


class NvbandwidthReader(Lines):
    """Matrices of nvbandwidth, anywhere in a text."""

    name = "nvbandwidth"
    templates: Sequence[Template] = TEMPLATES
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """One row of `pairs` a measured cell; ends are CPU, GPU0 ... in CUDA's order, all, and rank0 ... in multinode tests."""
        losses = Losses(artefact.path)
        pairs: list[dict[str, Any]] = []
        devices: list[dict[str, Any]] = []
        events: list[dict[str, Any]] = []
        test: str | None = None
        matrix: _Matrix | None = None
        listing, before = False, ""
        for line in lines:
            text = line.text
            if len(text) > 8192:
                continue
            if (running := _RUNNING.fullmatch(text)) is not None:
                _closed(matrix, losses)
                test, matrix, listing = running[1], None, False
            elif line.event == "nvbandwidth.version":
                _closed(matrix, losses)
                test, matrix, listing = None, None, True
            elif (title := _TITLE.fullmatch(text)) is not None:
                _closed(matrix, losses)
                unit, factor = _UNIT[title[1]]
                matrix = _Matrix(test or "unknown", text.strip(), unit, factor, line.number)
            elif matrix is not None and not matrix.columns and _NUMBERS.fullmatch(text):
                matrix.columns = tuple(text.split())
            elif (total := _SUM.fullmatch(text) or _PERF.fullmatch(text)) is not None and test is not None:
                events.append(_total(artefact, line, total, matrix, losses))
                matrix = None
            elif test is not None and (status := _STATUS.match(text)) is not None:
                fields = [("test", test), ("message", status[2].strip())]
                events.append(
                    place(artefact, line)
                    | {"event": "nvbandwidth.failed", "level": "error", "text": text[:512], "fields": fields}
                )
                matrix = None
            elif matrix is not None and matrix.columns and text.strip():
                pairs.extend(_cells(artefact, line, matrix, losses))
            elif listing and (device := _device(text, before)) is not None:
                devices.append(place(artefact, line) | device)
                continue
            before = text.strip() or before
        _closed(matrix, losses)
        for table, rows in (("devices", devices), ("pairs", pairs), ("events", events)):
            if rows:
                yield rows_of(table, rows)
        yield from losses


READER = NvbandwidthReader()


def _device(text: str, before: str) -> dict[str, Any] | None:
    if (device := _DEVICE.fullmatch(text)) is not None:
        host = before if re.fullmatch(r"[A-Za-z0-9][\w.-]{0,254}", before) else None
        return {"kind": "gpu", "host": host, "device": int(device[1]), "name": device[2], "bus_id": device[3]}
    if (process := _PROCESS.fullmatch(text)) is not None:
        gpu = {"kind": "gpu", "host": process[2], "device": int(process[3]), "name": process[4], "bus_id": process[5]}
        return gpu | {"rank": int(process[1])}
    return None


def _closed(matrix: _Matrix | None, losses: Losses) -> None:
    """A matrix that ends without its sum was cut; says so."""
    if matrix is not None and not matrix.damaged:
        detail = f"the matrix of {matrix.test} ends without its SUM line after {matrix.rows} rows; the output is cut: run it again"
        losses.add("truncated-matrix", matrix.line, detail)


def _cells(artefact: Artefact, line: PlainLine, matrix: _Matrix, losses: Losses) -> Iterator[dict[str, Any]]:
    tokens = line.text.split()
    if not tokens[0].isdigit() or len(tokens[0]) > 5:
        return  # a line of another program
    for i, column in enumerate(matrix.columns):
        if i + 1 >= len(tokens) or _CELL.fullmatch(tokens[i + 1]) is None:
            if i == 0 and i + 1 < len(tokens):
                return
            cut = i + 2 >= len(tokens)
            detail = f"row {tokens[0]} of {matrix.test} has {i} whole cells of {len(matrix.columns)}; "
            mend = "the output is cut: run it again" if cut else "another program wrote into it: give it its own file"
            losses.add("truncated-row" if cut else "damaged-row", line.number, detail + mend)
            matrix.damaged = True
            return
        value = finite(tokens[i + 1])
        if value is None:
            continue
        matrix.sum += value
        matrix.cells += 1
        ends = matrix.ends(tokens[0], column)
        if value == 0 and ends[0] == ends[1]:
            continue  # a GPU with itself, to 0.2
        yield place(artefact, line) | _pair(matrix, ends, value)
    matrix.rows += 1


def _pair(matrix: _Matrix, ends: tuple[str, str], value: float) -> dict[str, Any]:
    return {
        "tool": "nvbandwidth",
        "quantity": matrix.quantity,
        "src": ends[0],
        "dst": ends[1],
        "value": value * matrix.factor,
        "unit": matrix.unit,
    }


def _total(
    artefact: Artefact, line: PlainLine, total: re.Match[str], matrix: _Matrix | None, losses: Losses
) -> dict[str, Any]:
    """The sum as an event; it must be that of the cells read."""
    value = finite(total[2])
    # Each cell is rounded to 0.01 and the sum too.
    rounding = 0.005 * ((matrix.cells if matrix is not None else 0) + 1) + 1e-6 * (value or 0)
    if matrix is not None and value is not None and not matrix.damaged and abs(matrix.sum - value) > rounding:
        detail = f"the cells of {total[1]} read here add up to {matrix.sum:.2f}, its SUM line says {total[2]}; lines of it are missing"
        losses.add("inconsistent-sum", line.number, detail)
    fields = [("test", total[1]), ("sum", total[2])]
    return place(artefact, line) | {
        "event": "nvbandwidth.sum",
        "level": "info",
        "text": line.text.strip()[:512],
        "fields": fields,
    }


# --- JSON ----------------------------------------------------------------------------------------------------------------------------

_JSON_HEAD = re.compile(rb'\s*\{\s*"nvbandwidth"\s*:\s*\{')
_DECODER = json.JSONDecoder(strict=False)
_BLANKS = re.compile(r"[ \t\r\n,]*")


class NvbandwidthJsonReader:
    """The document of `nvbandwidth -j`."""

    name = "nvbandwidth-json"

    def sniff(self, head: bytes) -> bool:
        """By its one top-level key."""
        return _JSON_HEAD.match(head) is not None

    def read(self, artefact: Artefact) -> Iterator[Item]:
        """The same rows as from the text; what stands before a cut or damage is read."""
        losses = Losses(artefact.path)
        if artefact.size_bytes > LARGEST_JSON_BYTES:
            losses.add("too-large", None, f"larger than {LARGEST_JSON_BYTES // 2**20} MiB and not read")
            yield from losses
            return
        text = b"".join(artefact.chunks()).decode("latin-1")
        document = _JsonDocument(artefact, text, losses)
        document.read()
        for table, rows in (("devices", document.devices), ("pairs", document.pairs), ("events", document.events)):
            if rows:
                yield rows_of(table, rows)
        yield from losses


JSON_READER = NvbandwidthJsonReader()


@dataclass(slots=True)
class _JsonDocument:
    artefact: Artefact
    text: str
    losses: Losses
    pairs: list[dict[str, Any]] = field(default_factory=list)
    devices: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def read(self) -> None:
        """Member by member, so that a cut costs what comes after it only."""
        position = self.text.index("{", self.text.index('"nvbandwidth"')) + 1
        try:
            while self.text[position : position + 1] != "}":
                position = self.skip(position)
                if self.text[position : position + 1] == "}":
                    break
                start = position
                key, position = self.value(position)
                position = self.skip(position)
                if not isinstance(key, str) or self.text[position : position + 1] != ":":
                    raise ValueError("a key and a colon are due")
                position = self.skip(position + 1)
                if key == "testcases" and self.text[position : position + 1] == "[":
                    position = self.skip(position + 1)
                    while self.text[position : position + 1] != "]":
                        case, end = self.value(position)
                        self.test(case, position, end)
                        position = self.skip(end)
                    position += 1
                else:
                    member, position = self.value(position)
                    self.member(key, member, start, position)
                position = self.skip(position)
        except ValueError:
            line = self.text.count("\n", 0, position) + 1
            if position >= len(self.text.rstrip()) - 1 or not self.text.rstrip().endswith("}"):
                detail = "the file ends in the middle, as when the test was killed; what stands before was read. Run it again"
                self.losses.add("truncated-file", line, detail)
            else:
                self.losses.add("damaged-file", line, "no JSON from here on; what stands before it was read")

    def skip(self, position: int) -> int:
        """Past blanks and commas."""
        found = _BLANKS.match(self.text, position)
        return found.end() if found else position

    def value(self, position: int) -> tuple[Any, int]:
        """The value there and where it ends. Raises ValueError if it is none, or is cut."""
        try:
            return _DECODER.raw_decode(self.text, position)
        except RecursionError:
            raise ValueError("nested too deeply") from None

    def at(self, position: int) -> dict[str, Any]:
        """The columns that say where a row comes from."""
        start = self.text.rfind("\n", 0, position) + 1
        return {"artefact": self.artefact.sha256, "line": self.text.count("\n", 0, position) + 1, "byte_offset": start}

    def member(self, key: str, value: Any, start: int, end: int) -> None:
        """Version, GPUs, and the run's error and warning."""
        if key == "GPU Device list" and isinstance(value, list):
            for entry in value:
                device = _JSON_DEVICE.fullmatch(entry) if isinstance(entry, str) else None
                if device is not None:
                    at = self.text.find(entry, start, end)
                    self.devices.append(self.at(max(at, start)) | {
                        "kind": "gpu", "device": int(device[1]), "name": device[2], "bus_id": device[3], "host": device[4],
                    })  # fmt: skip
                else:
                    self.losses.add("damaged-row", self.at(start)["line"], "a GPU of the list could not be read")
        elif key == "version" and isinstance(value, str):
            self.event("nvbandwidth.version", "info", start, {"version": value[:64]})
        elif key in ("error", "warning") and isinstance(value, str):
            name = "nvbandwidth.failed" if key == "error" else "nvbandwidth.warned"
            self.event(name, "error" if key == "error" else "info", start, {"message": value[:4096]})

    def event(self, name: str, level: str, position: int, fields: Mapping[str, str]) -> None:
        """One event; its text is its line."""
        place = self.at(position)
        line_end = self.text.find("\n", position)
        text = self.text[place["byte_offset"] : line_end if line_end >= 0 else None].strip()
        self.events.append(place | {"event": name, "level": level, "text": text[:512], "fields": list(fields.items())})

    def test(self, case: Any, start: int, end: int) -> None:
        """One test case: its matrix, or why there is none."""
        name = case.get("name") if isinstance(case, dict) else None
        if not isinstance(name, str):
            self.losses.add(
                "damaged-row", self.at(start)["line"], "a test case is no object with a name; it was left out"
            )
            return
        status = case.get("status")
        if status not in ("Passed", "Running"):
            failed = status != "Waived"
            fields = {"test": name[:128], "status": str(status)[:64]}
            if isinstance(case.get("error"), str):
                fields["message"] = case["error"][:4096]
            self.event(
                "nvbandwidth.failed" if failed else "nvbandwidth.waived", "error" if failed else "info", start, fields
            )
        title, rows = case.get("bandwidth_description"), case.get("bandwidth_matrix")
        if rows is None:
            if status in ("Passed", "Running"):
                detail = f"{name} has no matrix though its status is {status}; the run ended within it"
                self.losses.add("truncated-matrix", self.at(start)["line"], detail)
            return
        unit = _TITLE.fullmatch(title) if isinstance(title, str) else None
        if unit is None or not isinstance(rows, list):
            self.losses.add(
                "unknown-unit",
                self.at(start)["line"],
                f"{name} has no title with (GB/s) or (ns); its matrix was left out",
            )
            return
        matrix = _Matrix(name, title, *_UNIT[unit[1]], 0)
        begin = self.text.find("[", self.text.find('"bandwidth_matrix"', start, end), end) + 1
        for i, row in enumerate(rows):
            begin = self.text.find("[", begin, end)
            place = self.at(begin if begin >= 0 else start)
            begin = begin + 1 if begin >= 0 else end
            for j, cell in enumerate(row if isinstance(row, list) else []):
                value = (
                    finite(cell) if isinstance(cell, str) else (float(cell) if isinstance(cell, int | float) else None)
                )
                if value is None or value < 0:
                    if cell != "N/A":
                        self.losses.add(
                            "damaged-cell",
                            place["line"],
                            f"a cell of {name} is {str(cell)[:24]!r}, no figure; it stays unknown",
                        )
                    continue
                ends = matrix.ends(str(i), str(j))
                if not (value == 0 and ends[0] == ends[1]):
                    self.pairs.append(place | _pair(matrix, ends, value))
