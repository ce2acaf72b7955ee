"""From rows to facts. Memory is bounded: messages that come once a call are counted, connections are grouped per process."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from sys import getsizeof
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from busbw.diagnosis.facts.growth import Series, growths, series_key
from busbw.diagnosis.facts.known import Facts
from busbw.diagnosis.facts.records import (
    Collective,
    Counter,
    Curve,
    Device,
    Event,
    LinkGroup,
    Pair,
    Point,
    Port,
    Process,
    Progress,
    Setting,
    UnnumberedCalls,
)
from busbw.diagnosis.facts.room import FACT_BYTES, FIELD_BYTES, Room
from busbw.diagnosis.facts.traces import TraceSpans
from busbw.diagnosis.findings import LineRef
from busbw.errors import Loss
from busbw.hardware.formats import NcclGraphs, NcclTopology, TopologyMatrix
from busbw.observations import Artefact, Rows
from busbw.observations.secrets import redact_batch
from busbw.readers import Item

__all__ = ["FactsBuilder"]

MAX_EVENTS_A_NAME = 50_000
"""Events of one name that are kept; of the rest only the number."""
MAX_LIKE_SETTINGS = 1_000
"""Settings with the same name, value and origin that are kept of one host."""
MAX_PROCESSES = 40_000
"""Processes that are told from one another."""
_SLICE_ROWS = 4096
"""Rows that are turned into Python objects at a time."""
MAX_COLLECTIVES_A_GROUP = 250
"""The last collectives of one rank in one process group that are kept."""
FEWEST_COLLECTIVES_A_GROUP = 8
"""So many are kept of every rank in every group, however many there are."""
MAX_COLLECTIVES = 160_000
"""Collectives that are kept; where there are more, of every rank only the last. About 500 bytes each, an estimate."""
MAX_RANKS_IN_GROUPS = MAX_COLLECTIVES // FEWEST_COLLECTIVES_A_GROUP
"""Ranks times their process groups of which collectives are kept; those read later are left out as a whole."""
MAX_UNNUMBERED = 20_000
"""Kinds of calls without a number that are counted, by rank, group, collective and size."""
MAX_PROGRESS = 200_000
"""Rows of progress that are kept."""
MAX_SHARED_VALUES = 100_000
"""Names and lists of members that are kept once, however many rows say them."""
_ROWS_WITH_MEMBERS = 256
"""Rows with lists of members that are turned into Python objects at a time: each list may name every rank of the job."""
_UNNAMED_KINDS = frozenset({"pci_device", "pci_tree", "ucx_transport", "libfabric_provider"})
"""Kinds of devices whose names say nothing of the GPUs of the job."""


class FactsBuilder:
    """Takes items of readers one by one and keeps what rules may ask for."""

    def __init__(self) -> None:
        self.facts = Facts()
        self._room = Room()
        self._like: dict[tuple[Any, ...], int] = defaultdict(int)
        self._links: dict[tuple[Any, ...], LinkGroup] = {}
        self._curves: dict[tuple[str, str | None, int], Curve] = {}
        self._series: dict[tuple[Any, ...], Series] = {}
        self._spans = TraceSpans()
        self._collectives: dict[tuple[Any, ...], deque[Collective]] = {}
        self._unnumbered: dict[tuple[Any, ...], UnnumberedCalls] = {}
        self._left_out: set[tuple[Any, ...]] = set()
        self._most_collectives = MAX_COLLECTIVES_A_GROUP
        self._collectives_kept = 0
        self._shared: dict[Any, Any] = {}

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
                rows = _ROWS_WITH_MEMBERS if item.table == "collectives" else _SLICE_ROWS
                for first in range(0, batch.num_rows, rows):
                    handler(batch.slice(first, rows))
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
        self.facts.counters = [series.last for series in self._series.values()]
        self.facts.steps = list(self._spans.steps(self.facts.paths))
        self.facts.growths = growths(self._series.values())
        self.facts.unnumbered = list(self._unnumbered.values())
        self.facts.ranks_left_out = len(self._left_out)
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
        size = FACT_BYTES + getsizeof(row["text"]) + sum(FIELD_BYTES + getsizeof(value) for _, value in fields or ())
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

    def _add_spans(self, batch: pa.RecordBatch) -> None:
        self._spans.add(batch)

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
            if not self._room.takes("connections", at, FACT_BYTES, row["via"] and row["via"].split("/", 1)[0]):
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
        if not self._room.takes("settings", at, FACT_BYTES + getsizeof(value), name):
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
            if not self._room.takes("rows of benchmarks", at, FACT_BYTES, row["collective"]):
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
            if row["value"] is not None and self._room.takes("pairs", at, FACT_BYTES, row["quantity"]):
                made = Pair(row["tool"], row["quantity"], row["src"], row["dst"], row["value"], row["unit"], at)
                self.facts.pairs.append(made)

    def _add_counters(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            if row["value"] is None or row["name"] is None:
                continue
            at = self._ref(row)
            labels = tuple(sorted((key, value or "") for key, value in row["labels"] or ()))
            made = Counter(
                row["host"], row["device"], row["name"], row["value"], at, row["port"], row["time_ns"], self._once(labels)
            )  # fmt: skip
            key = series_key(made)
            known = self._series.get(key)
            if known is not None:
                known.take(made)
            elif self._room.takes("counters", at, 2 * FACT_BYTES, row["name"]):
                self._series[key] = Series(made, made)

    def _add_ports(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            at = self._ref(row)
            if self._room.takes("ports", at, FACT_BYTES, row["node_kind"]):
                self.facts.ports.append(
                    Port(
                        row["host"], row["device"], row["node_kind"], row["port"], row["guid"], row["link_layer"], row["state"],
                        row["physical_state"], row["width"], row["rate_bytes_per_s"], row["possible_width"],
                        row["possible_rate_bytes_per_s"], row["mtu_bytes"], row["peer"], row["peer_port"], at,
                    )
                )  # fmt: skip

    def _add_devices(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            at, attributes = self._ref(row), dict(row["attributes"] or ())
            size = FACT_BYTES + sum(FIELD_BYTES + getsizeof(value) for value in attributes.values())
            if not self._room.takes("devices", at, size, row["name"]):
                continue
            kind = row["kind"] or ""
            self.facts.hardware.append(Device(row["host"], kind, row["bus_id"], row["name"], attributes, at))
            if kind not in _UNNAMED_KINDS:
                self.facts.devices.append((row["host"], row["name"], at))

    def _once(self, value: Any) -> Any:
        """An equal value that is kept already, else this one."""
        if len(self._shared) < MAX_SHARED_VALUES:
            return self._shared.setdefault(value, value)
        return self._shared.get(value, value)

    def _add_collectives(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            if row["seq"] is None:
                self._add_unnumbered(row)
                continue
            at = self._ref(row)
            place = (row["pid"], row["device"]) if row["rank"] is None else None
            key = (row["artefact"], row["rank"], place, row["process_group"], row["group_desc"], row["is_p2p"])
            kept = self._collectives.get(key)
            if kept is None:
                if len(self._collectives) >= MAX_RANKS_IN_GROUPS:
                    if len(self._left_out) < MAX_PROCESSES:
                        self._left_out.add(key)
                    self._room.leave_out(
                        "collectives of further ranks", at, f"{MAX_RANKS_IN_GROUPS:,} ranks in groups are compared"
                    )
                    continue
                kept = self._collectives[key] = deque()
            once = self._once
            kept.append(
                Collective(
                    once(row["source"] or ""), once(row["process_group"]), once(row["group_desc"]), once(tuple(row["members"] or ())), row["ranks"],
                    row["rank"], once(row["host"]), row["seq"], once(row["op"]), once(row["profiling_name"] or ""), bool(row["is_p2p"]),
                    row["size_bytes"], row["input_numel"], row["output_numel"], once(row["dtype"]), once(row["state"]), bool(row["retired"]),
                    row["created_ns"], row["completed_ns"], row["duration_ns"], at, row["peer"], row["pid"], row["device"],
                )
            )  # fmt: skip
            self._collectives_kept += 1
            self._forget_old(kept)
            if self._collectives_kept > MAX_COLLECTIVES and self._most_collectives > FEWEST_COLLECTIVES_A_GROUP:
                self._most_collectives = max(FEWEST_COLLECTIVES_A_GROUP, self._most_collectives // 2)
                for lane in self._collectives.values():
                    self._forget_old(lane)

    def _add_unnumbered(self, row: Mapping[str, Any]) -> None:
        """Calls that no number tells apart, counted by kind."""
        if row["op"] is None or row["is_p2p"] or not row["size_bytes"] or (row["ranks"] or 0) < 2:
            return
        took = row["duration_ns"]
        if took is None or took < 0 or (row["profiling_name"] or "").startswith("gloo:"):  # on CPUs
            return
        at, once = self._ref(row), self._once
        members = once(tuple(row["members"] or ()))
        key = (
            row["source"],
            row["artefact"],
            row["rank"],
            row["pid"],
            row["process_group"],
            row["group_desc"],
            row["op"],
            row["size_bytes"],
            row["ranks"],
        )
        known = self._unnumbered.get(key)
        if known is None:
            if len(self._unnumbered) >= MAX_UNNUMBERED:
                self._room.leave_out("further kinds of calls", at, f"{MAX_UNNUMBERED:,} kinds are counted")
                return
            self._unnumbered[key] = UnnumberedCalls(
                once(row["source"] or ""), once(row["process_group"]), once(row["group_desc"]), members, row["ranks"], row["rank"], once(row["host"]),
                once(row["op"]), row["size_bytes"], 1, took, took, at,
            )  # fmt: skip
            return
        known.calls += 1
        known.spent_ns += took
        if took < known.shortest_ns:
            known.shortest_ns, known.at = took, at

    def _forget_old(self, kept: deque[Collective]) -> None:
        while len(kept) > self._most_collectives:
            forgotten = kept.popleft()
            self._collectives_kept -= 1
            self._room.leave_out(
                "earlier collectives", forgotten.at, "only the last ones of a rank in a group are compared"
            )

    def _add_collective_progress(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            at = self._ref(row)
            if len(self.facts.progress) >= MAX_PROGRESS:
                self._room.leave_out("progress of further ranks", at, f"{MAX_PROGRESS:,} rows are compared")
                continue
            once = self._once
            made = Progress(
                once(row["source"] or ""), once(row["process_group"]), once(row["op"]), row["ranks"], row["rank"], once(row["host"]), row["pid"],
                row["last_enqueued"], row["last_completed"], at,
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
