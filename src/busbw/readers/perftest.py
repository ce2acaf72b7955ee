"""perftest: `ib_write_bw`, `ib_read_lat`, `ib_send_bw` and their sisters; their tables, and the file of `--out_json`.

The unit stands in the header of the table: MiB/sec, MB/sec in older versions, which is 2^20 bytes/s too, or Gb/sec. A latency is half
of a round trip for send and write, a whole one for read and atomic. BW peak, message rate, CPU load, t_typical and t_stdev have no column
and are not kept; t_max is the second largest sample. A bidirectional test prints the sum of both directions. In duration mode and
with -N the peak is printed as 0.

The JSON has no unit: it is derived from message rate times size, or stays unknown. It is often not JSON: keys and words without quotes
(up to 2023), `sl:`, a comma before a brace. Sources: linux-rdma/perftest src/perftest_parameters.c and .h at 00b55b6, of 4.5 to 6.x;
outputs in public issues.
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
from busbw.readers.json_values import integer
from busbw.readers.losses import add_broken_row
from busbw.readers.text_values import finite, nanoseconds
from busbw.units import GBIT

__all__ = ["JSON_READER", "LARGEST_JSON_BYTES", "READER"]

LARGEST_JSON_BYTES = 4 * 2**20
"""perftest writes one result of 1 KB and overwrites it for the next size; many may have been put together."""
_MIB = float(2**20)
_UNITS = {"mb/sec": _MIB, "mib/sec": _MIB, "gb/sec": GBIT}
"""Bytes/s of a printed 1. format_factor in print_report_bw is 0x100000 or 125000000 in all versions, whatever the header calls it."""

_SOURCE = "perftest src/perftest_resources.c, perftest_communication.c"
TEMPLATES: tuple[Template, ...] = (
    Template("perftest.completion_failed", "^ Failed status {status:d}: wr_id {wr_id:d} syndrom {syndrome:x}", _SOURCE, "error"),
    Template("perftest.connect_failed", "^Couldn't connect to {peer:w}:{port:d}", _SOURCE, "error"),
    Template("perftest.connect_failed", "^ Unable to init the socket connection", _SOURCE, "error"),
    Template("perftest.exchange_failed", "^ Failed to exchange data between server and client", _SOURCE, "error"),
    Template("perftest.exchange_failed", "^ethernet_read_keys: Couldn't read remote address", _SOURCE, "error"),
    Template("perftest.qp_refused", "^ Unable to {what:s}connect the QPs", "perftest src/*_bw.c, *_lat.c", "error"),
    Template("perftest.qp_refused", "^Failed to modify QP {rest:s}to {state:w}", _SOURCE, "error"),
    Template("perftest.no_device", "^ Unable to find the Infiniband/RoCE device", "perftest src/*_bw.c, *_lat.c", "error"),
    Template("perftest.no_device", "^IB device {device:w} not found", _SOURCE, "error"),
    Template("perftest.no_device", "^ Did not detect devices", _SOURCE, "error"),
    Template("perftest.registration_failed", "^Couldn't allocate MR with error={code:d}", _SOURCE, "error"),
    Template("perftest.registration_failed", "^Couldn't allocate MR", _SOURCE, "error"),
    Template("perftest.no_dmabuf", "^OFED stack does not support DMA-BUF", _SOURCE, "error"),
    Template("perftest.gpu_buffer", "cuMemAlloc() of a {bytes:d} bytes GPU buffer", "perftest src/cuda_memory.c", "info"),
    Template("perftest.gpu_buffer", "^initializing CUDA", "perftest src/cuda_memory.c", "info"),
    Template("perftest.port_down", "^ Port number {port:d} state is {state:w}", "perftest src/perftest_parameters.c", "error"),
    Template("perftest.below_limit", "^Error: BW result is below bw limit", "perftest src/*_bw.c, --limit_bw", "error"),
    Template("perftest.below_limit", "^Error: Msg rate is below msg_rate limit", "perftest src/*_bw.c, --limit_msgrate", "error"),
    Template(
        "perftest.cpu_frequency",
        "^Conflicting CPU frequency values detected: {nominal:f} != {actual:f}",
        "perftest src/get_clock.c",
        "info",
    ),
    Template("perftest.relaxed_ordering", "^ WARNING: CPU is not PCIe relaxed ordering compliant", "perftest src/perftest_parameters.c", "info"),
)  # fmt: skip

_TITLE = re.compile(
    r"\s*(?P<verb>Send|Send_imm|RDMA_Write|RDMA_Write_imm|RDMA_Read|Atomic)\s+(?:(?:CMP_AND_SWAP|FETCH_AND_ADD)\s+)?"
    r"(?P<both>Bidirectional\s+)?(?:Post List\s+)?(?P<what>BW|Latency)\s+(?:forwarding\s+)?(?:Multicast\s+)?Test\s*"
)
_JSON_TEST = re.compile(
    r"(?P<verb>Send_imm|Send|RDMA_Write_imm|RDMA_Write|RDMA_Read|Atomic)_(?:(?:CMP_AND_SWAP|FETCH_AND_ADD)_)?"
    r"(?P<both>Bidirectional_)?(?:Post_List_)?(?P<what>BW|Latency)_(?:\w+_)?Test"
)
_COMMAND = re.compile(
    r"(?<![\w-])(?:ib|raw_ethernet)_(?P<verb>send|write|read|atomic)(?:_burst)?_(?P<what>bw|lat)(?=\s|$)(?P<options>.*)"
)
_FIELD = re.compile(
    r"(Device|Number of qps|Transport type|Connection type|Mtu|Link type|GID index|TX depth|rdma_cm QPs|PCIe relax order)\s*:\s*([^\s\[]+)"
)
_FIELD_NAMES = {
    "Device": "device", "Number of qps": "qps", "Transport type": "transport", "Connection type": "connection", "Mtu": "mtu_bytes",
    "Link type": "link_layer", "GID index": "gid_index", "TX depth": "tx_depth", "rdma_cm QPs": "rdma_cm", "PCIe relax order": "relaxed_ordering",
}  # fmt: skip
_JSON_FIELD_NAMES = {
    "Device": "device", "Number_of_qps": "qps", "Transport_type": "transport", "Connection_type": "connection", "Mtu": "mtu_bytes",
    "Link_type": "link_layer", "GID_index": "gid_index", "TX_depth": "tx_depth", "rdma_cm_QPs": "rdma_cm", "PCIe_relax_order": "relaxed_ordering",
}  # fmt: skip
_SIGNATURE = re.compile(
    r"#?bytes\s+(?:#?sl\s+)?#?iterations\s.*(?:BW average\[|t_avg\[|t_min\[)|^\s*(?:Send|RDMA_|Atomic).*Test\s*$"
)
_HEADER = re.compile(r"\s*#?bytes\s+(?:#?sl\s+)?#?iterations\s.*(?:BW average\[|t_avg\[|t_min\[|t_typical\[)")
_COLUMN = re.compile(
    r"#?(?P<plain>bytes|iterations|sl)(?=\s|$)"
    r"|BW (?P<bw>\w+)\[(?P<unit>[^\]]*)\]|MsgRate(?: Port\d)?\[[^\]]*\]"
    r"|(?P<t>t_min|t_max|t_typical|t_avg|t_stdev)\[(?P<t_unit>[^\]]*)\]"
    r"|(?P<p>99|99\.9)% percentile\[(?P<p_unit>[^\]]*)\]|tps average|CPU_Util\[%+\]|\S+"
)
_COUNT = re.compile(r"\d{1,18}", re.ASCII)
_TWO_OR_SIX = re.compile(r"-?\d{1,15}\.(?:\d{2}|\d{6})|[-+]?(?:nan|inf)", re.ASCII)
"""Every figure of a table: %.2f, and %.6f for the message rate and where a bandwidth is below 0.1 Gb/s."""
_COLLECTIVE = {"send": "send_recv"}
_ROUND_TRIPS = {"send": "half", "write": "half", "read": "whole", "atomic": "whole"}
"""rtt_factor in print_report_lat."""


@dataclass(slots=True)
class _Test:
    """What the lines before a table say of it."""

    verb: str | None = None
    measures: str | None = None
    bidirectional: bool | None = None
    cycles: bool = False
    """-C: figures of a latency are cycles, though the header says usec."""
    fields: dict[str, str] = field(default_factory=dict)
    device_at: dict[str, int] | None = None

    @property
    def program(self) -> str | None:
        """The program that prints this."""
        return f"ib_{self.verb}_{self.measures}" if self.verb and self.measures else None


@dataclass(slots=True)
class _Table:
    """An open table. columns: by position, what they are and their unit."""

    test: _Test
    index: int
    columns: tuple[tuple[str, str | None], ...]


class PerftestReader(Lines):
    """Tables of perftest, anywhere in a log."""

    name = "perftest"
    templates: Sequence[Template] = TEMPLATES
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """One row of `measurements` a row; an event `perftest.test` a table, with all its header says; the NIC in `devices`."""
        losses = Losses(artefact.path)
        rows: list[dict[str, Any]] = []
        events: list[dict[str, Any]] = []
        devices: list[dict[str, Any]] = []
        command, test, table, tables = _Test(), _Test(), None, 0
        for line in lines:
            text = line.text
            if len(text) > 1024:
                continue
            start = text.lstrip(" \t")[:1]
            if "0" <= start <= "9":
                if table is not None and (row := _row(table, line, losses)) is not None:
                    rows.append(place(artefact, line) | row)
                continue
            if "Test" in text and (title := _TITLE.fullmatch(text)) is not None:
                devices.extend(_device(test))
                test, table = _named(title, command), None
                command = _Test()
            elif "bytes" in text and _HEADER.match(text) is not None:
                known = test if test.measures or test.fields else command
                table = _Table(known, tables, _columns(text))
                events.append(place(artefact, line) | _event(known, tables, text, _unit_of(table.columns)))
                tables += 1
            elif ":" in text and (found := _FIELD.findall(text)):
                for name, value in found:
                    test.fields[_FIELD_NAMES[name]] = value[:128]
                    if name == "Device":
                        test.device_at = place(artefact, line)
            elif ("_bw" in text or "_lat" in text) and (typed := _COMMAND.search(text)) is not None:
                command = _Test(
                    typed["verb"], typed["what"], bool(re.search(r"\s(?:-b|--bidirectional)\b", typed["options"])),
                    bool(re.search(r"\s(?:-C|--report-cycles)\b", typed["options"])),
                )  # fmt: skip
        devices.extend(_device(test))
        yield from _items(rows, events, devices)
        yield from losses


READER = PerftestReader()


def _items(rows: list[dict[str, Any]], events: list[dict[str, Any]], devices: list[dict[str, Any]]) -> Iterator[Item]:
    for table, found in (("devices", devices), ("measurements", rows), ("events", events)):
        if found:
            yield rows_of(table, found)


def _named(title: re.Match[str], command: _Test) -> _Test:
    verb = title["verb"].removeprefix("RDMA_").split("_", maxsplit=1)[0].lower()
    measures = "bw" if title["what"] == "BW" else "lat"
    cycles = command.cycles and command.verb == verb and command.measures == measures
    return _Test(verb, measures, title["both"] is not None if measures == "bw" else None, cycles)


def _device(test: _Test) -> Iterator[dict[str, Any]]:
    """The NIC of a test, with what the test used of it."""
    if test.device_at is not None:
        attributes = [(name, value) for name, value in test.fields.items() if name != "device"]
        yield dict(test.device_at) | {"kind": "nic", "name": test.fields["device"], "attributes": attributes}


def _event(test: _Test, index: int, text: str, unit: str | None) -> dict[str, Any]:
    fields = {"table_index": str(index), **test.fields}
    if test.program is not None:
        fields["program"] = test.program
    if test.bidirectional is not None:
        fields["bidirectional"] = str(test.bidirectional).lower()
    if test.measures == "lat" or unit == "usec":
        fields["round_trip"] = _ROUND_TRIPS.get(test.verb or "", "unknown")
    if unit is not None:
        fields["unit"] = unit
    return {"event": "perftest.test", "level": "info", "text": text.strip()[:512], "fields": list(fields.items())}


def _columns(text: str) -> tuple[tuple[str, str | None], ...]:
    columns: list[tuple[str, str | None]] = []
    for match in _COLUMN.finditer(text):
        if match["plain"]:
            columns.append((match["plain"], None))
        elif match["bw"]:
            columns.append((f"bw {match['bw']}", match["unit"]))
        elif match["t"]:
            columns.append((match["t"], match["t_unit"]))
        elif match["p"]:
            columns.append((f"p{match['p']}", match["p_unit"]))
        else:
            columns.append((match[0], None))
    return tuple(columns)


def _unit_of(columns: Sequence[tuple[str, str | None]]) -> str | None:
    return next((unit for name, unit in columns if name in ("bw average", "t_avg", "t_typical", "t_min")), None)


def _row(table: _Table, line: PlainLine, losses: Losses) -> dict[str, Any] | None:
    """A row of the table; None for the lines of others and for damage, which is counted."""
    tokens = line.text.split()
    values: dict[str, str] = {}
    for i, (name, _) in enumerate(table.columns):
        is_count = name in ("bytes", "iterations", "sl")
        shape = _COUNT if is_count else _TWO_OR_SIX
        if i == len(tokens) or shape.fullmatch(tokens[i]) is None:
            if i < 2 and i < len(tokens):
                return None  # a line of another program that begins with a number
            add_broken_row(losses, line.number, i + 1, len(table.columns), name, cut=i >= len(tokens) - 1)
            return None
        values[name] = tokens[i]
    if len(tokens) > len(table.columns) and _TWO_OR_SIX.fullmatch(tokens[len(table.columns)]):
        detail = f"the row has {len(tokens)} columns, its header {len(table.columns)}; two rows may have run together"
        losses.add("damaged-row", line.number, detail)
        return None
    return _measurement(table, values, line.number, losses)


def _measurement(table: _Table, values: Mapping[str, str], line: int, losses: Losses) -> dict[str, Any]:
    units = dict(table.columns)
    times = {name: _time(table, name, values, line, losses) for name in ("t_avg", "t_min", "t_max", "p99")}
    if "t_avg" not in values:
        times["t_avg"] = _time(table, "t_typical", values, line, losses)
    return {
        "tool": "perftest",
        "table_index": table.index,
        "collective": _COLLECTIVE.get(table.test.verb or ""),
        "size_bytes": int(values["bytes"]) if "bytes" in values else None,
        "ranks": 2,
        "time_ns": times["t_avg"],
        "algbw_bytes_per_s": _rate(values.get("bw average"), units.get("bw average"), line, losses),
        "iterations": int(values["iterations"]) if "iterations" in values else None,
        "min_ns": times["t_min"],
        "max_ns": times["t_max"],
        "p99_ns": times["p99"],
    }


def _time(table: _Table, name: str, values: Mapping[str, str], line: int, losses: Losses) -> int | None:
    token = values.get(name)
    if token is None:
        return None
    if table.test.cycles or dict(table.columns).get(name) != "usec":
        detail = "a latency is printed in cycles (-C) or in a unit that is not known; it stays unknown. Run without -C"
        losses.add("unknown-unit", line, detail)
        return None
    time_ns = nanoseconds(token)
    if time_ns is None:
        _impossible(token, line, losses)
    return time_ns


def _rate(token: str | None, unit: str | None, line: int, losses: Losses) -> float | None:
    if token is None:
        return None
    factor = _UNITS.get((unit or "").lower())
    if factor is None:
        losses.add("unknown-unit", line, f"a bandwidth is in {unit!r}, which is not known here; it stays unknown")
        return None
    value = finite(token)
    if value is None or value < 0:
        _impossible(token, line, losses)
        return None
    return value * factor


def _impossible(token: str, line: int, losses: Losses) -> None:
    detail = f"{token} is no possible result (counters that overflowed in a long -D run print such); it stays unknown"
    losses.add("impossible-value", line, detail)


# --- the file of --out_json ----------------------------------------------------------------------------------------------------------

_JSON_HEAD = re.compile(rb'\s*\{\s*"?test_info"?\s*:\s*\{\s*"?test"?\s*:')
_DOCUMENT = re.compile(r'"?test_info"?\s*:\s*\{')
_PAIR = re.compile(r'"?(?P<key>[A-Za-z_][\w.]*)"?\s*:\s*(?:"(?P<text>[^"\n]*)"|(?P<word>[^\s",{}]+))(?=\s*[,}\n])')
_RESULTS = re.compile(r'"?results(?P<side>_local|_remote)?"?\s*:\s*\{')
_DECIMALS = re.compile(r"-?\d+\.(\d+)")


class PerftestJsonReader:
    """Files of --out_json, one result or several one after the other."""

    name = "perftest-json"

    def sniff(self, head: bytes) -> bool:
        """By its first keys, with quotes or without."""
        return _JSON_HEAD.match(head) is not None

    def read(self, artefact: Artefact) -> Iterator[Item]:
        """The same rows as from the table, each document a table of its own."""
        losses = Losses(artefact.path)
        if artefact.size_bytes > LARGEST_JSON_BYTES:
            detail = f"larger than {LARGEST_JSON_BYTES // 2**20} MiB and not read; perftest writes one result a file"
            losses.add("too-large", None, detail)
            yield from losses
            return
        text = b"".join(artefact.chunks()).decode("latin-1")
        starts = [match.start() for match in _DOCUMENT.finditer(text)]
        ends = [*starts[1:], len(text)]
        rows: list[dict[str, Any]] = []
        events: list[dict[str, Any]] = []
        devices: list[dict[str, Any]] = []
        line, counted = 1, 0
        for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
            line += text.count("\n", counted, start)
            counted = start
            document = _JsonDocument(artefact, text, start, end, line, index)
            document.read(rows, events, devices, losses)
        if len(starts) == 1:
            _note_form(text, losses)
        yield from _items(rows, events, devices)
        yield from losses


JSON_READER = PerftestJsonReader()


def _note_form(text: str, losses: Losses) -> None:
    """Whether the file is JSON, and if not, that it was read all the same."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        if not text.rstrip().endswith("}") or text.count("{") > text.count("}"):
            losses.add("truncated-file", text.count("\n") + 1, "the file ends in the middle; run the test again")
        else:
            losses.add("repaired", 1, "the file is not JSON (a known fault of perftest); key by key all of it was read")


@dataclass(slots=True)
class _JsonDocument:
    artefact: Artefact
    text: str
    start: int
    end: int
    line: int
    index: int

    def read(
        self,
        rows: list[dict[str, Any]],
        events: list[dict[str, Any]],
        devices: list[dict[str, Any]],
        losses: Losses,
    ) -> None:
        results = list(_RESULTS.finditer(self.text, self.start, self.end))
        info_end = results[0].start() if results else self.end
        info = {m["key"]: m["text"] or m["word"] or "" for m in _PAIR.finditer(self.text, self.start, info_end)}
        named = _JSON_TEST.fullmatch(info.get("test", ""))
        test = _named(named, _Test()) if named is not None else _Test()
        test.fields = {ours: info[theirs][:128] for theirs, ours in _JSON_FIELD_NAMES.items() if info.get(theirs)}
        if "device" in test.fields:
            test.device_at = self.at(self.text.find("Device", self.start))
        devices.extend(_device(test))
        for i, result in enumerate(results):
            stop = results[i + 1].start() if i + 1 < len(results) else self.end
            pairs = {m["key"]: m["text"] or m["word"] or "" for m in _PAIR.finditer(self.text, result.end(), stop)}
            place = self.at(result.start())
            row, unit = self.row(test, pairs, place["line"], losses)
            if row is not None and result["side"] is None:
                rows.append(place | row)
            events.append(place | _event(test, self.index, f"results{result['side'] or ''}", unit))

    def at(self, position: int) -> dict[str, Any]:
        """The columns that say where a row comes from."""
        line = self.line + self.text.count("\n", self.start, position)
        return {"artefact": self.artefact.sha256, "line": line, "byte_offset": position}

    def row(
        self, test: _Test, pairs: Mapping[str, str], line: int, losses: Losses
    ) -> tuple[dict[str, Any] | None, str | None]:
        """The row of one result, and the unit of its bandwidth as far as it follows from the figures."""
        size = integer(pairs.get("MsgSize"))
        rate, unit = None, None
        if "BW_average" in pairs:
            rate, unit = _derived_rate(pairs["BW_average"], pairs.get("MsgRate"), size)
        elif "bw_avg" in pairs:  # --output=bandwidth
            unit = None
        if rate is None and ("BW_average" in pairs or "bw_avg" in pairs):
            detail = "the file has no unit, and message rate times size do not tell it; the bandwidth stays unknown. Keep the printed table"
            losses.add("unknown-unit", line, detail)
        # --output=latency writes avg_lat only.
        times = {
            ours: nanoseconds(pairs.get(theirs))
            for ours, theirs in (
                ("time_ns", "t_avg"),
                ("min_ns", "t_min"),
                ("max_ns", "t_max"),
                ("p99_ns", "percentile_99"),
            )
        }
        if times["time_ns"] is None and "avg_lat" in pairs:
            times["time_ns"] = nanoseconds(pairs["avg_lat"])
        if size is None and rate is None and times["time_ns"] is None:
            if "bw_avg" not in pairs:
                losses.add("damaged-row", line, "a result without size, bandwidth and latency; it was left out")
            return None, unit
        row = {
            "tool": "perftest",
            "table_index": self.index,
            "collective": _COLLECTIVE.get(test.verb or ""),
            "size_bytes": size,
            "ranks": 2,
            "algbw_bytes_per_s": rate,
            "iterations": integer(pairs.get("n_iterations")),
            **times,
        }
        return row, "usec" if times["time_ns"] is not None else unit


def _derived_rate(average: str, message_rate: str | None, size: int | None) -> tuple[float | None, str | None]:
    """(bytes/s, unit) of a bandwidth without unit: that unit in which it equals message rate times size, within what rounding allows.

    The units differ by a factor of 119, so at most one fits unless the figures are rounded to nothing.
    """
    value, messages = finite(average), finite(message_rate)
    if value is None or messages is None or size is None or value <= 0 or messages <= 0:
        return None, None
    decimals = _DECIMALS.fullmatch(average)
    rounding = 0.5 * 10.0 ** -(len(decimals[1]) if decimals else 0)
    moved, uncertain = messages * 1e6 * size, 0.5 * size  # a message rate has six decimals of a million
    fits = [
        (value * factor, name)
        for name, factor in (("MiB/sec", _MIB), ("Gb/sec", GBIT))
        if abs(value * factor - moved) <= (rounding * factor + uncertain) * 1.02
    ]
    return fits[0] if len(fits) == 1 else (None, None)
