"""`nvidia-smi`: its table, `-q`, `--query-gpu ... --format=csv`, and `nvlink -s` and `-e`.

    | NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4 |
    |   0  NVIDIA H100 80GB HBM3      On  |   00000000:1B:00.0 Off |        0 |
    | N/A   33C    P0        72W /  700W  |   1MiB /  81559MiB |  0%  Default |

    GPU 00000000:1B:00.0
        Product Name                          : NVIDIA H100 80GB HBM3

    index, pci.bus_id, pcie.link.gen.current, memory.used [MiB]
    0, 00000000:1B:00.0, 5, 1 MiB

    GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-...)
             Link 0: 26.562 GB/s
             Link 0: CRC FLIT Error(s): 0

Forms of drivers 440 to 590. Devices have their address in `bus_id` (dddd:bb:dd.f); figures that have one unit in all of these
forms have it in their name, others are kept as printed. Times of csv are local and have no zone; they are taken as UTC.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from busbw.errors import Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, Template, place_and_host
from busbw.readers.plain_rows import bus_id_of, by_writer, event_row
from busbw.units import GB

__all__ = ["READER"]

_BUS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
_FIELDS = (
    "index", "name", "gpu_name", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "driver_version", "timestamp", "pstate", "count",
    "gpu_serial", "serial",
)  # fmt: skip
"""Columns by `nvidia-smi --help-query-gpu`; a header of these alone is one, though other tools have such words too."""
_OWN_COLUMN = re.compile(
    r"(?:gpu_|driver_version|vbios_version|pstate|clocks?[._]|temperature\.|utilization\.|memory\.|power\.|pcie\.|pci\.|ecc\.|fabric\."
    r"|retired_pages\.|mig\.mode|fan\.speed|compute_cap|enforced\.power|remapped_rows)"
)
"""How columns begin that only nvidia-smi has: one of them makes a list of words its header."""
_COLUMN = r"[a-z][a-z0-9_.]{1,80}(?: \[[A-Za-z%/ ]{1,12}\])?"
_SIGNATURE = re.compile(
    rf"^\| NVIDIA-SMI |^=+NVSMI LOG=+|^GPU {_BUS}\s*$|^GPU \d{{1,3}}: .{{1,100}}\(UUID: "
    rf"|^{_COLUMN}(?:, ?{_COLUMN})+\s*$"
)
_BANNER = re.compile(r"\| NVIDIA-SMI (\S+)\s+(?:Driver Version: (\S+))?(?:\s+CUDA Version: (\S+|N/A))?")
_GPU_ROW = re.compile(
    rf"\|\s+(?P<index>\d{{1,3}})\s+(?P<name>\S.*?)\s+(?P<persistence>On|Off|N/A)\s*\|\s*(?P<bus>{_BUS})\s+(?P<display>On|Off|N/A)\s*\|\s*(?P<ecc>\S+(?: \S+)*)\s*\|"
)
_STATE_ROW = re.compile(
    r"\|\s*(?P<fan>\S+)\s+(?P<temperature>\S+?)C?\s+(?P<state>P\d{1,2}|N/A|\S+!)\s+(?P<power>\S+(?: \S+)*?)\s*/\s*(?P<limit>\S+(?: \S+)*?)\s*"
    r"\|\s*(?P<used>\S{1,40})\s*/\s*(?P<total>\S{1,40})\s*\|\s*(?P<load>\S{1,40})\s+(?P<mode>\S.{0,40}?)\s*\|"
)
_MIG_ROW = re.compile(r"\|\s+\|\s+\|\s+(?P<mig>Enabled|Disabled|N/A)\*?\s*\|")
_PROCESS_ROW = re.compile(
    r"\|\s+(?P<gpu>\d{1,3})(?:\s+(?:N/A|\d+)\s+(?:N/A|\d+))?\s+(?P<pid>\d{1,10})\s+(?P<kind>[CGM](?:\+[CGM])*)\s+(?P<name>\S.*?)\s+(?P<memory>\d+MiB|N/A)\s*\|"
)
_QUERY_GPU = re.compile(rf"GPU ({_BUS})\s*")
_QUERY_LEAF = re.compile(r"(?P<indent>\s+)(?P<key>\S.{0,120}?)\s*:(?: (?P<value>.*))?")
_QUERY_SECTION = re.compile(r"(?P<indent>\s+)(?P<key>[A-Z][\w ./()-]{1,60}?)\s*")
_QUERY_TOP = re.compile(r"(Timestamp|Driver Version|CUDA Version|Attached GPUs)\s+: (.*)")
_LEAVES_A_GPU = 1000
"""More lines than any driver prints for one GPU (about 250); a guess."""
_LINK_GPU = re.compile(r"\s*GPU (?P<gpu>\d{1,3}): (?P<name>.*?) \(UUID: (?P<uuid>[^)\s]+)\)?")
_LINK = re.compile(r"\s+Link (?P<link>\d{1,3}): (?P<rest>.*)")
_LINK_RATE = re.compile(r"(\d{1,6}(?:\.\d+)?) GB/s")
_LINK_COUNT = re.compile(r"(?P<name>[A-Za-z][A-Za-z ()-]{2,60}?)\s*: (?P<value>\d{1,20}|N/A|\[?Not Supported\]?)")
_NO_VALUE = re.compile(r"\[?(?:N/A|Not Supported|Unknown Error|Insufficient Permissions|Requested functionality.*)\]?")
_NUMBER = re.compile(r"(-?\d{1,18}(?:\.\d{1,9})?)(?: ?(MiB|W|C|MHz|%|ms|us|KB/s))?")
_STAMP = re.compile(r"(\d{4})/(\d{2})/(\d{2}) (\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,9}))?")
_COUNTED = re.compile(r"ecc_errors|retired_pages|remapped_rows|replays|replay_number|counters")
"""Sections of -q whose numbers are counts of events: they become counters."""


TEMPLATES: tuple[Template, ...] = (
    Template("nvlink.link_up", "^ Link {link:d}: {rate:f} GB/s", "nvidia-smi nvlink -s", "info"),
)
"""A line with a rate looks like a note of a measurement too, so it is claimed here; its GPU stands in `counters`."""


class NvidiaSmiReader(Lines):
    """GPUs, links and processes as nvidia-smi prints them."""

    name = "nvidia-smi"
    templates: Sequence[Template] = TEMPLATES
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """Rows of `devices` (gpu) and `counters`; events gpu.driver, gpu.process, gpu.fabric_state, nvlink.gpu, .link_up, .link_down."""
        for written in by_writer(lines):
            report = _Report(artefact)
            for line in written:
                report.take(line)
            yield from report.items()


READER = NvidiaSmiReader()


class _Report:
    """What one writer's lines add up to; each form keeps its own place in the text."""

    def __init__(self, artefact: Artefact) -> None:
        self.artefact = artefact
        self.losses = Losses(artefact.path)
        self.events: list[dict[str, Any]] = []
        self.devices: list[dict[str, Any]] = []
        self.counters: list[dict[str, Any]] = []
        self._table_gpu: dict[str, Any] | None = None
        self._query_gpu: dict[str, Any] | None = None
        self._sections: list[tuple[int, str]] = []
        self._process: dict[str, str] = {}
        self._columns: list[str] = []
        self._link_gpu: dict[str, str] = {}
        self._csv_seen: set[str] = set()
        self._fabric: tuple[PlainLine, dict[str, str]] | None = None

    def items(self) -> Iterator[Item]:
        """Everything, once all lines were taken."""
        self._end_of_gpu()
        for table, rows in (("events", self.events), ("devices", self.devices), ("counters", self.counters)):
            if rows:
                yield rows_of(table, rows)
        yield from self.losses

    def take(self, line: PlainLine) -> None:
        """One line, whatever it is."""
        text = line.text
        if text.startswith("|"):
            self._table(line)
        elif (gpu := _QUERY_GPU.fullmatch(text)) is not None:
            self._end_of_gpu()
            self._query_gpu = self._device(line, bus_id_of(gpu[1]), None, {})
            self._sections = []
        elif (top := _QUERY_TOP.match(text)) is not None:
            if top[1] == "Driver Version":
                self.events.append(event_row(self.artefact, line, "gpu.driver", {"driver": top[2].strip()}))
        elif (link_gpu := _LINK_GPU.match(text)) is not None:
            self._link_gpu = {"gpu": link_gpu["gpu"], "uuid": link_gpu["uuid"]}
            self.events.append(event_row(self.artefact, line, "nvlink.gpu", link_gpu.groupdict()))
        elif (link := _LINK.match(text)) is not None:
            self._link(line, link)
        elif text[:1].isspace():
            self._query(line)
        elif "," in text:
            self._csv(line)

    def _device(
        self, line: PlainLine, bus_id: str | None, name: str | None, attributes: dict[str, str]
    ) -> dict[str, Any]:
        row = {
            **place_and_host(self.artefact, line, line.host),
            "rank": line.rank,
            "kind": "gpu",
            "bus_id": bus_id,
            "name": name,
            "attributes": attributes,
        }
        self.devices.append(row)
        return row

    def _counter(self, line: PlainLine, device: str | None, name: str, value: float, **columns: Any) -> None:
        self.counters.append(
            {
                **place_and_host(self.artefact, line, line.host),
                "device": device,
                "name": name,
                "value": value,
                **columns,
            }
        )

    def _table(self, line: PlainLine) -> None:
        text = line.text
        if (banner := _BANNER.match(text)) is not None:
            fields = {"driver": banner[2], "cuda": banner[3]}
            self.events.append(event_row(self.artefact, line, "gpu.driver", fields))
        elif (gpu := _GPU_ROW.match(text)) is not None:
            attributes = {
                "persistence_mode": gpu["persistence"],
                "ecc_uncorrected_volatile": gpu["ecc"],
                "display_active": gpu["display"],
            }
            self._table_gpu = self._device(line, bus_id_of(gpu["bus"]), gpu["name"], attributes)
            self._table_gpu["device"] = int(gpu["index"])
        elif (process := _PROCESS_ROW.match(text)) is not None:
            self.events.append(event_row(self.artefact, line, "gpu.process", process.groupdict()))
        elif self._table_gpu is not None and (state := _STATE_ROW.match(text)) is not None:
            self._table_gpu["attributes"].update({
                "fan": state["fan"], "temperature_c": state["temperature"], "performance_state": state["state"],
                "power_w": state["power"].rstrip("W"), "power_limit_w": state["limit"].rstrip("W"),
                "memory_used_mib": state["used"].removesuffix("MiB"), "memory_total_mib": state["total"].removesuffix("MiB"),
                "utilisation_pct": state["load"].rstrip("%"), "compute_mode": state["mode"],
            })  # fmt: skip
        elif self._table_gpu is not None and (mig := _MIG_ROW.match(text)) is not None:
            self._table_gpu["attributes"]["mig_mode"] = mig["mig"]
        elif re.search(_BUS, text) is not None and text.count("|") > 2:
            self.losses.add("damaged-row", line.number, f"a GPU's row that cannot be read: {text[:60]!r}")

    def _query(self, line: PlainLine) -> None:
        """A leaf or a section of -q, by its indentation."""
        if self._query_gpu is None:
            return
        leaf = _QUERY_LEAF.fullmatch(line.text)
        found = leaf or _QUERY_SECTION.fullmatch(line.text)
        if found is None:
            self.losses.add(
                "damaged-row", line.number, f"neither `key : value` nor a section: {line.text.strip()[:60]!r}"
            )
            return
        depth = len(found["indent"].expandtabs(8))
        while self._sections and self._sections[-1][0] >= depth:
            self._sections.pop()
        key = _snake(found["key"])
        if leaf is None:
            if len(self._sections) < 8:
                self._sections.append((depth, key))
            return
        value = (leaf["value"] or "").strip()
        path = ".".join([*(name for _, name in self._sections), key])
        if not value:  # a section that this driver closes with a colon
            self._sections.append((depth, key))
            return
        gpu = self._query_gpu
        if path.startswith("processes."):
            self._query_process(line, key, value)
            return
        if key == "product_name":
            gpu["name"] = value
        if len(gpu["attributes"]) < _LEAVES_A_GPU:
            gpu["attributes"].setdefault(path, value)
        if path in ("fabric.state", "fabric.status"):
            at, said = self._fabric or (line, {})
            self._fabric = (at, {**said, key: value})
        number = _NUMBER.fullmatch(value)
        if number is not None and _COUNTED.search(path) is not None:
            self._counter(line, gpu["bus_id"], path, float(number[1]))

    def _query_process(self, line: PlainLine, key: str, value: str) -> None:
        if key == "process_id":
            self._process = {"pid": value}
        elif self._process:
            self._process[key] = value
        if key == "used_gpu_memory" and "pid" in self._process and self._query_gpu is not None:
            fields = {
                "pid": self._process["pid"], "kind": self._process.get("type"), "name": self._process.get("name"),
                "memory": value, "bus_id": self._query_gpu["bus_id"],
            }  # fmt: skip
            self.events.append(event_row(self.artefact, line, "gpu.process", fields))
            self._process = {}

    def _end_of_gpu(self) -> None:
        """Says how the GPU's registration with the NVLink fabric went, where -q tells."""
        if self._fabric is not None and self._query_gpu is not None:
            line, said = self._fabric
            state, status = said.get("state", ""), said.get("status", "")
            if _NO_VALUE.fullmatch(state) is None:
                fields = {"bus_id": self._query_gpu["bus_id"], "state": state, "status": status}
                registered = state == "Completed" and status in ("Success", "")
                self.events.append(
                    event_row(self.artefact, line, "gpu.fabric_state", fields, "info" if registered else "warning")
                )
        self._fabric = None
        self._process = {}

    def _link(self, line: PlainLine, link: re.Match[str]) -> None:
        rest = link["rest"].strip()
        device = f"GPU {self._link_gpu['gpu']}" if self._link_gpu else None
        port = int(link["link"])
        labels = [("uuid", self._link_gpu["uuid"])] if self._link_gpu else []
        fields = {"link": link["link"], **self._link_gpu}
        if (rate := _LINK_RATE.fullmatch(rest)) is not None:
            self._counter(line, device, "nvlink_bytes_per_s", float(rate[1]) * GB, port=port, labels=labels)
        elif rest in ("<inactive>", "inactive"):
            self.events.append(event_row(self.artefact, line, "nvlink.link_down", fields, "warning"))
            self._counter(line, device, "nvlink_bytes_per_s", 0.0, port=port, labels=labels)
        elif (count := _LINK_COUNT.fullmatch(rest)) is not None:
            if count["value"].isdigit():
                name = f"nvlink_{_snake(count['name'].replace('(s)', 's'))}"
                self._counter(line, device, name, float(count["value"]), port=port, labels=labels)
        elif ":" not in rest:
            self.losses.add("damaged-value", line.number, f"link {port} is neither a rate nor inactive: {rest[:40]!r}")

    def _csv(self, line: PlainLine) -> None:
        cells = [cell.strip() for cell in line.text.split(",")]
        names = [cell.split(" [")[0] for cell in cells]
        known = any(map(_OWN_COLUMN.match, names)) or set(names) <= set(_FIELDS)
        if known and len(cells) > 1 and all(re.fullmatch(_COLUMN, cell) for cell in cells):
            self._columns = cells
            return
        if not self._columns:
            return
        if len(cells) != len(self._columns):
            if any(bus_id_of(cell) for cell in cells) or _STAMP.fullmatch(cells[0]) is not None:
                self.losses.add(
                    "damaged-row", line.number, f"{len(cells)} cells under a header of {len(self._columns)}"
                )
            else:
                self._columns = []  # other text
            return
        row = {_csv_name(column): cell for column, cell in zip(self._columns, cells, strict=True)}
        bus_id = bus_id_of(row.get("pci.bus_id") or row.get("gpu_bus_id") or "")
        index = row.get("index", "")
        device = bus_id or row.get("uuid") or row.get("gpu_uuid") or (f"GPU {index}" if index.isdigit() else None)
        key = device or ""
        if key not in self._csv_seen or device is None:
            self._csv_seen.add(key)
            made = self._device(line, bus_id, row.get("name") or row.get("gpu_name"), row)
            if re.fullmatch(r"\d{1,3}", index):
                made["device"] = int(index)
        moment = _time_ns(row.get("timestamp", ""))
        for column, cell in row.items():
            number = _NUMBER.fullmatch(cell)
            if number is not None and column not in ("index", "count", "driver_version", "serial"):
                self._counter(line, device, column, float(number[1]), time_ns=moment)


def _snake(words: str) -> str:
    """`SRAM Uncorrectable SEC-DED` -> sram_uncorrectable_sec_ded."""
    return re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")


def _csv_name(column: str) -> str:
    """`memory.used [MiB]` -> memory.used_mib: the unit goes into the name."""
    name, _, unit = column.partition(" [")
    return f"{name}_{_snake(unit.replace('%', 'pct').replace('/', '_per_'))}" if unit else name


def _time_ns(text: str) -> int | None:
    """`2026/01/02 03:04:05.678`, taken as UTC, since the epoch."""
    found = _STAMP.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    try:
        time.strptime(text[:19], "%Y/%m/%d %H:%M:%S")
    except ValueError:
        return None
    seconds = calendar.timegm((year, month, day, hour, minute, second, 0, 0, 0))
    return seconds * 1_000_000_000 + int((found[7] or "0").ljust(9, "0"))
