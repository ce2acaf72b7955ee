"""From rows to facts: what each process did and saw, what was measured, what is set, each fact with the lines that say so.

Rules read facts only. Memory is bounded: messages that come once a call are counted, connections are grouped per process.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from sys import getsizeof
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from busbw.diagnosis.findings import UNKNOWN_OFFSET, LineRef
from busbw.errors import Loss
from busbw.hardware.formats import NcclGraphs, NcclTopology, TopologyMatrix
from busbw.observations import Artefact, Rows
from busbw.observations.secrets import redact_batch
from busbw.readers import Item

__all__ = [
    "Collective",
    "Counter",
    "Curve",
    "Event",
    "Facts",
    "FactsBuilder",
    "LinkGroup",
    "Pair",
    "Point",
    "Process",
    "Progress",
    "Setting",
    "lines_of",
]

MAX_EVENTS_A_NAME = 50_000
"""Events of one name that are kept; of the rest only the number."""
MAX_LIKE_SETTINGS = 1_000
"""Settings with the same name, value and origin that are kept of one host."""
MAX_PROCESSES = 40_000
"""Processes that are told from one another."""
MAX_FACTS_BYTES = 128 * 2**20
"""Estimated bytes of all messages, settings, connections, points, pairs, counters and devices that are kept."""
ALWAYS_KEPT = 50
"""Facts of one name that are kept also when there is no more room: what comes late may be the cause."""
MAX_ALWAYS_KEPT = 20_000
"""Such facts of all names together: names may be anything."""
_FACT_BYTES, _FIELD_BYTES = 700, 130
"""A fact with its line and numbers; one field more, each without its text. Estimates; benchmark E4 measures what comes of them."""
_SLICE_ROWS = 4096
"""Rows that are turned into Python objects at a time."""
MAX_COLLECTIVES_A_GROUP = 250
"""The last collectives of one rank in one process group that are kept."""
MAX_RANKS_IN_GROUPS = 4_000
"""Ranks times their process groups of which collectives are kept; those read later are left out as a whole."""
MAX_PROGRESS = 500_000
"""Rows of progress that are kept."""


@dataclass(frozen=True, slots=True)
class Event:
    """One message with its meaning. `fields` are the template's."""

    name: str
    at: LineRef
    text: str
    level: str | None = None
    time_ns: int | None = None
    host: str | None = None
    pid: int | None = None
    device: int | None = None
    rank: int | None = None
    location: str | None = None
    function: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)

    def number(self, name: str) -> int | None:
        """A field as an integer; None if it is missing or no number."""
        try:
            return int(self.fields[name], 10)
        except (KeyError, ValueError):
            return None

    @property
    def file(self) -> str:
        """Source file of the message without folder, such as `net_ib.cc`; empty if the line names none."""
        return (self.location or "").rsplit("/", 1)[-1].split(":", 1)[0]


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable that is set, for one process or for the job."""

    name: str
    value: str
    origin: str
    at: LineRef
    host: str | None = None
    pid: int | None = None
    rank: int | None = None


@dataclass(slots=True)
class LinkGroup:
    """Connections of one process that are alike: same device, direction and `via`."""

    host: str | None
    pid: int | None
    device: int | None
    direction: str | None
    via: str
    at: LineRef
    count: int
    src_rank: int | None
    dst_rank: int | None

    @property
    def transport(self) -> str:
        """P2P, SHM, NET, COLLNET."""
        return self.via.split("/", 1)[0]

    @property
    def network(self) -> str | None:
        """IB, Socket, Libfabric ... of a NET connection."""
        parts = self.via.split("/")
        return parts[1] if parts[0] == "NET" and len(parts) > 1 else None

    @property
    def gpudirect(self) -> bool:
        """Whether the NIC reads or writes GPU memory itself. NCCL appends /GDRDMA (src/transport/net.cc)."""
        return "GDRDMA" in self.via


@dataclass(slots=True)
class Process:
    """What one process (host and pid) said of itself."""

    host: str | None
    pid: int | None
    ranks: set[int] = field(default_factory=set)
    devices: set[int] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)

    @property
    def name(self) -> str:
        """For people: rank if known, else host and pid."""
        if len(self.ranks) == 1:
            return f"rank {next(iter(self.ranks))}"
        return f"{self.host or 'a host'}:{self.pid}" if self.pid is not None else (self.host or "a process")

    def first(self, name: str) -> Event | None:
        """First event of that name."""
        return next((e for e in self.events if e.name == name), None)


@dataclass(frozen=True, slots=True)
class Point:
    """One row of a benchmark, one half."""

    size_bytes: int | None
    time_ns: int | None
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    wrong: float | None
    in_place: bool | None
    at: LineRef


@dataclass(slots=True)
class Curve:
    """One table of a benchmark: points in the order of the file."""

    tool: str
    artefact: str
    table_index: int
    collective: str | None
    ranks: int | None
    nodes: int | None
    points: list[Point] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Pair:
    """A figure between two ends."""

    tool: str
    quantity: str
    src: str
    dst: str
    value: float
    unit: str
    at: LineRef


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter at one moment."""

    host: str | None
    device: str | None
    name: str
    value: float
    at: LineRef


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective as one rank saw it. `seq` counts within the group."""

    source: str
    group: str | None
    desc: str | None
    members: tuple[int, ...]
    ranks: int | None
    rank: int | None
    host: str | None
    seq: int
    op: str | None
    name: str
    is_p2p: bool
    size_bytes: int | None
    input_numel: int | None
    output_numel: int | None
    dtype: str | None
    state: str | None
    retired: bool
    created_ns: int | None
    completed_ns: int | None
    duration_ns: int | None
    at: LineRef

    @property
    def done(self) -> bool:
        """Whether it completed; gloo never says so in `state`, but retires it."""
        return self.state == "completed" or self.retired


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one rank is in a group or communicator, in all operations or in one."""

    source: str
    group: str | None
    op: str | None
    ranks: int | None
    rank: int | None
    host: str | None
    pid: int | None
    last_enqueued: int | None
    last_completed: int | None
    at: LineRef


class Facts:
    """Everything known, indexed. Empty collections mean that nobody said anything."""

    def __init__(self) -> None:
        self.events: dict[str, list[Event]] = defaultdict(list)
        self.event_counts: dict[str, int] = defaultdict(int)
        self.unknown_warnings: list[Event] = []
        self.settings: list[Setting] = []
        self.links: list[LinkGroup] = []
        self.curves: list[Curve] = []
        self.pairs: list[Pair] = []
        self.counters: list[Counter] = []
        self.collectives: list[Collective] = []
        """By artefact, rank and group, there in the order of the file."""
        self.progress: list[Progress] = []
        self.devices: list[tuple[str | None, str | None, LineRef]] = []
        """(host, name, line) of every device a tool named."""
        self.topologies: list[tuple[str, TopologyMatrix | NcclTopology | NcclGraphs]] = []
        self.processes: dict[tuple[str | None, int | None], Process] = {}
        self.paths: dict[str, str] = {}
        """Path by artefact."""

    def all(self, *names: str) -> list[Event]:
        """Events of these names, in order of file and line."""
        found = [e for name in names for e in self.events.get(name, ())]
        return sorted(found, key=lambda e: e.at) if len(names) > 1 else found

    def any(self, *names: str) -> Event | None:
        """The first event of these names."""
        return next(iter(self.all(*names)), None)

    def setting(self, *names: str) -> list[Setting]:
        """Every occurrence of these variables."""
        wanted = set(names)
        return [s for s in self.settings if s.name in wanted]

    @property
    def hosts(self) -> set[str]:
        """Host names met in heads of lines and in connections."""
        return {host for host, _ in self.processes if host}

    def line_of(self, path: str, line: int | None) -> LineRef | None:
        """A line of a file that was read, known by its number only; None without a number."""
        artefact = next((sha256 for sha256, known in self.paths.items() if known == path), None)
        return LineRef(path, line, UNKNOWN_OFFSET, artefact) if line is not None and artefact is not None else None

    def nccl_versions(self) -> list[tuple[tuple[int, ...], Event]]:
        """NCCL versions printed, as tuples of integers, with their lines. RCCL's are by its own number."""
        found = []
        for event in self.all("nccl.version"):
            numbers = re.match(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?", event.fields.get("version", ""))
            if numbers is not None:
                found.append((tuple(int(n) for n in numbers.groups() if n is not None), event))
        return found

    def cuda_errors(self) -> Iterator[tuple[str, Event]]:
        """(text in lower case, event) of everything that reports a CUDA or HIP error."""
        for event in self.all(
            "nccl.cuda_failure", "cuda.error", "nccl_tests.failure", "nccl.nvls_bind_failed", "nccl.ipc_open_failed"
        ):
            text = event.fields.get("error") or event.fields.get("message") or event.fields.get("what") or event.text
            yield text.lower(), event

    def failures(self) -> list[Event]:
        """Warnings and errors, in order of file and line."""
        found = [e for events in self.events.values() for e in events if e.level in ("warning", "error")]
        return sorted(found + self.unknown_warnings, key=lambda e: e.at)


def lines_of(
    items: Iterable[Event | Setting | LinkGroup | Point | Pair | Counter | Collective | Progress], most: int = 12
) -> list[LineRef]:
    """The lines of these facts without repeats, at most `most`, in order of file and line."""
    seen: dict[tuple[str, int], LineRef] = {}
    for item in items:
        seen.setdefault((item.at.path, item.at.line), item.at)
        if len(seen) >= most:
            break
    return sorted(seen.values())


class _Room:
    """How much more is kept, and what was left out for want of room."""

    def __init__(self) -> None:
        self._used_bytes = self._always = 0
        self._kept: dict[tuple[str, str | None], int] = defaultdict(int)
        self.losses: dict[tuple[str, str], Loss] = {}

    def takes(self, what: str, at: LineRef, size_bytes: int, name: str | None = None, most: int | None = None) -> bool:
        """Whether one more fact is kept. Of each name at most `most`; when memory is full still the first few."""
        key = (what, name)
        kept = self._kept.get(key, 0)
        if most is not None and kept >= most:
            return self.leave_out(what, at, f"only the first {most:,} of a name are looked at")
        if self._used_bytes + size_bytes > MAX_FACTS_BYTES:
            if kept >= ALWAYS_KEPT or self._always >= MAX_ALWAYS_KEPT or size_bytes > 8 * _FACT_BYTES:
                return self.leave_out(what, at, "too many to keep them all; explain the files of fewer hosts at a time")
            self._always += 1
        self._used_bytes += size_bytes
        if kept < ALWAYS_KEPT or most is not None:
            self._kept[key] = kept + 1
        return True

    def leave_out(self, what: str, at: LineRef, why: str) -> bool:
        """Counts a fact that is not kept. False, always."""
        known = self.losses.get((what, why))
        self.losses[what, why] = (
            Loss("summarised", at.path, at.line, f"{what} were counted, no more: {why}")
            if known is None
            else replace(known, count=known.count + 1)
        )
        return False


class FactsBuilder:
    """Takes items of readers one by one and keeps what rules may ask for."""

    def __init__(self) -> None:
        self.facts = Facts()
        self._room = _Room()
        self._like: dict[tuple[Any, ...], int] = defaultdict(int)
        self._links: dict[tuple[Any, ...], LinkGroup] = {}
        self._curves: dict[tuple[str, str | None, int], Curve] = {}
        self._collectives: dict[tuple[Any, ...], deque[Collective]] = {}

    def announce(self, artefact: Artefact) -> None:
        """Call before the items of an artefact."""
        self.facts.paths[artefact.sha256] = artefact.path
        self._path = artefact.path

    def add(self, item: Item) -> None:
        """One item of the artefact announced last."""
        if isinstance(item, Rows):
            handler = getattr(self, f"_add_{item.table}", None)
            if handler is not None:
                batch = redact_batch(item.batch)
                for first in range(0, batch.num_rows, _SLICE_ROWS):
                    handler(batch.slice(first, _SLICE_ROWS))
        elif isinstance(item, TopologyMatrix | NcclTopology | NcclGraphs):
            self.facts.topologies.append((self._path, item))

    @property
    def losses(self) -> list[Loss]:
        """What was counted, no more, for want of room."""
        return list(self._room.losses.values())

    def build(self) -> Facts:
        """The facts, once every item was added."""
        self.facts.links = list(self._links.values())
        self.facts.curves = list(self._curves.values())
        self.facts.collectives = [collective for kept in self._collectives.values() for collective in kept]
        self._learn_ranks()
        return self.facts

    def _ref(self, row: Mapping[str, Any]) -> LineRef:
        return LineRef(self.facts.paths[row["artefact"]], row["line"], row["byte_offset"], row["artefact"])

    def _process(self, host: str | None, pid: int | None, at: LineRef) -> Process | None:
        """None if too many are known."""
        known = self.facts.processes.get((host, pid))
        if known is None:
            if len(self.facts.processes) >= MAX_PROCESSES:
                self._room.leave_out(
                    "lines of further processes", at, f"{MAX_PROCESSES:,} processes are told from one another"
                )
                return None
            known = self.facts.processes[host, pid] = Process(host, pid)
        return known

    def _add_events(self, batch: pa.RecordBatch) -> None:
        event = batch.column("event")
        for entry in pc.value_counts(event).to_pylist():
            if entry["values"] is not None:
                self.facts.event_counts[entry["values"]] += entry["counts"]
        for row in batch.to_pylist():
            self._add_event(row)

    def _add_event(self, row: Mapping[str, Any]) -> None:
        name, fields = row["event"], row["fields"]
        at = self._ref(row)
        size = _FACT_BYTES + getsizeof(row["text"]) + sum(_FIELD_BYTES + getsizeof(value) for _, value in fields or ())
        if not self._room.takes("messages", at, size, name, MAX_EVENTS_A_NAME):
            return
        made = Event(
            name or "", at, row["text"], row["level"], row["time_ns"], row["host"], row["pid"], row["device"], row["rank"],
            row["location"], row["function"], dict(fields),
        )  # fmt: skip
        if name is None:
            self.facts.unknown_warnings.append(made)
        else:
            self.facts.events[name].append(made)
        if made.host is not None or made.pid is not None or made.rank is not None:
            process = self._process(made.host, made.pid, at)
            if process is None:
                return
            process.events.append(made)
            if made.device is not None:
                process.devices.add(made.device)
            if made.rank is not None:
                process.ranks.add(made.rank)

    def _add_calls(self, batch: pa.RecordBatch) -> None:
        self.facts.event_counts["nccl.call"] += batch.num_rows

    def _add_choices(self, batch: pa.RecordBatch) -> None:
        self.facts.event_counts["nccl.choice"] += batch.num_rows

    def _add_links(self, batch: pa.RecordBatch) -> None:
        self.facts.event_counts["nccl.link"] += batch.num_rows
        keys = ["artefact", "host", "pid", "device", "direction", "via"]
        table = pa.Table.from_batches([batch])
        grouped = table.group_by(keys, use_threads=False).aggregate([
            ("line", "first"), ("byte_offset", "first"), ("src_rank", "first"), ("dst_rank", "first"), ("line", "count"),
        ])  # fmt: skip
        for row in grouped.to_pylist():
            key = tuple(row[k] for k in keys)
            if key in self._links:
                self._links[key].count += row["line_count"]
                continue
            at = LineRef(
                self.facts.paths[row["artefact"]], row["line_first"], row["byte_offset_first"], row["artefact"]
            )
            if not self._room.takes("connections", at, _FACT_BYTES, row["via"] and row["via"].split("/", 1)[0]):
                continue
            self._links[key] = LinkGroup(
                row["host"], row["pid"], row["device"], row["direction"], row["via"] or "", at, row["line_count"], row["src_rank_first"],
                row["dst_rank_first"],
            )  # fmt: skip
            self._process(row["host"], row["pid"], at)

    def _add_settings(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            if row["name"] is not None and row["value"] is not None:
                self._add_setting(row)

    def _add_setting(self, row: Mapping[str, Any]) -> None:
        name, value, origin, at = row["name"], row["value"], row["origin"] or "", self._ref(row)
        place = row["host"] if row["host"] is not None else row["rank"]
        alike = (row["artefact"], place, name, value, origin)
        if self._like.get(alike, 0) >= MAX_LIKE_SETTINGS:
            self._room.leave_out("settings", at, f"more than {MAX_LIKE_SETTINGS:,} lines of a host say the same")
            return
        if not self._room.takes("settings", at, _FACT_BYTES + getsizeof(value), name):
            return
        self._like[alike] += 1
        self.facts.settings.append(Setting(name, value, origin, at, row["host"], row["pid"], row["rank"]))
        if row["pid"] is not None:
            process = self._process(row["host"], row["pid"], at)
            if process is not None:
                process.ranks.update(r for r in (row["rank"],) if r is not None)
                process.devices.update(d for d in (row["device"],) if d is not None)

    def _add_measurements(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            if row["tool"] == "nccl-inspector":
                continue  # single calls of a job are no sweep; rules read them as collectives
            at = self._ref(row)
            if not self._room.takes("rows of benchmarks", at, _FACT_BYTES, row["collective"]):
                continue
            key = (row["artefact"], row["tool"], row["table_index"] or 0)  # each reader counts its own tables
            curve = self._curves.get(key)
            if curve is None:
                curve = Curve(
                    row["tool"] or "",
                    row["artefact"],
                    row["table_index"] or 0,
                    row["collective"],
                    row["ranks"],
                    row["nodes"],
                )
                self._curves[key] = curve
            curve.points.append(
                Point(
                    row["size_bytes"],
                    row["time_ns"],
                    row["algbw_bytes_per_s"],
                    row["busbw_bytes_per_s"],
                    row["wrong"],
                    row["in_place"],
                    at,
                )
            )

    def _add_pairs(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            at = self._ref(row)
            if row["value"] is not None and self._room.takes("pairs", at, _FACT_BYTES, row["quantity"]):
                made = Pair(row["tool"], row["quantity"], row["src"], row["dst"], row["value"], row["unit"], at)
                self.facts.pairs.append(made)

    def _add_counters(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            at = self._ref(row)
            if row["value"] is not None and self._room.takes("counters", at, _FACT_BYTES, row["name"]):
                self.facts.counters.append(Counter(row["host"], row["device"], row["name"], row["value"], at))

    def _add_devices(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            at = self._ref(row)
            if self._room.takes("devices", at, _FACT_BYTES, row["name"]):
                self.facts.devices.append((row["host"], row["name"], at))

    def _add_collectives(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            if row["seq"] is None:
                continue
            key = (row["artefact"], row["rank"], row["process_group"], row["group_desc"], row["is_p2p"])
            kept = self._collectives.get(key)
            if kept is None:
                if len(self._collectives) >= MAX_RANKS_IN_GROUPS:
                    continue
                kept = self._collectives[key] = deque(maxlen=MAX_COLLECTIVES_A_GROUP)
            kept.append(
                Collective(
                    row["source"] or "", row["process_group"], row["group_desc"], tuple(row["members"] or ()), row["ranks"], row["rank"], row["host"],
                    row["seq"], row["op"], row["profiling_name"] or "", bool(row["is_p2p"]), row["size_bytes"], row["input_numel"],
                    row["output_numel"], row["dtype"], row["state"], bool(row["retired"]), row["created_ns"], row["completed_ns"],
                    row["duration_ns"], self._ref(row),
                )
            )  # fmt: skip

    def _add_collective_progress(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            if len(self.facts.progress) < MAX_PROGRESS:
                made = Progress(
                    row["source"] or "", row["process_group"], row["op"], row["ranks"], row["rank"], row["host"], row["pid"],
                    row["last_enqueued"], row["last_completed"], self._ref(row),
                )  # fmt: skip
                self.facts.progress.append(made)

    def _learn_ranks(self) -> None:
        """NCCL's own rank numbers, from the lines of communicator set-up, are better than the launcher's."""
        for name in ("nccl.comm", "nccl.comm_nodes", "nccl.comm_old"):
            for event in self.facts.events.get(name, ()):
                process = self.facts.processes.get((event.host, event.pid))
                rank = event.number("rank")
                if process is not None and rank is not None:
                    process.ranks.add(rank)
