"""Traces of Nsight Systems as `nsys export --type sqlite` writes them: what each GPU did, NVTX ranges, NCCL's calls, counters of NICs.

Tables exist only where there was data, and columns come and go with versions, so each is looked for. Times are nanoseconds of the session; the moment it
began is in TARGET_INFO_SESSION_START_TIME. A file may hold several processes, each with its GPUs. A span's `line` is the rowid of its row and its
`byte_offset` the number of its table in `TABLES`.

NCCL marks its API calls with NVTX ranges whose payload holds communicator, bytes and, when a communicator is made, rank and number of ranks; the
exporter writes payloads only with `--include-blobs=true` or `--dynamic-tables=all`. A kernel of NCCL belongs to the call, or to the group of calls, in which it was launched.
The number of a call in its communicator (`seq`) is known only where the trace saw the communicator made. A step is an NVTX range named like one (`step 12`).

Sources: NVIDIA's Nsight Systems Analysis Guide, SQLite schema reference (3.28.1, release 2026.4) and examples; exports of releases 2026.1 and 2026.2 (schemas
3.24 and 3.25); NCCL, src/include/nvtx_payload_schemas.h and src/collectives.cc; the head of a payload (domain, schema, size): public readers of these files.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from busbw.collectives import collective_named
from busbw.errors import Losses
from busbw.observations import DATABASE_HEADER, SCHEMAS, Artefact, Rows, rows_of
from busbw.readers.base import Item
from busbw.readers.database import WRONG, Database, Table

__all__ = ["READER", "SOURCE", "TABLES", "NsightSystemsReader", "row_text"]

SOURCE = "nsight-systems"
TABLES = (
    "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "NVTX_EVENTS",
    "NET_NIC_METRIC", "NET_IB_SWITCH_METRIC",
)  # fmt: skip
_KERNEL, _MEMCPY, _MEMSET, _GRAPH, _NVTX, _NIC, _SWITCH = range(7)
MOST_SPANS = 8_000_000
"""Of each table of one file."""
MOST_CALLS = 20_000_000
"""Of the CUDA API, which say when what was launched: 24 bytes each."""
_MOST_NCCL_CALLS = 1_000_000
_MOST_SAMPLES = 2_000_000
_MOST_STRINGS = 1_000_000
_LONGEST_NAME = 400
_LONGEST_PAYLOAD = 4096
_RANGES = (59, 60, 70, 71)
"""Event types of ranges with an end: push/pop and start/end of NVTX, and the same from NVTXT. Source: ENUM_NSYS_EVENT_TYPE of an export."""
_NUMBERED_STEP = re.compile(
    r"(?:ProfilerStep#|(?:train(?:ing)?[ _-]?)?(?:step|iter(?:ation)?)[ _:#=-]*)(\d{1,12})", re.IGNORECASE
)
_PLAIN_STEP = re.compile(r"(?:train(?:ing)?[ _-]?)?(?:step|iteration|iter)", re.IGNORECASE)
_NCCL_KERNEL = re.compile(r"n?r?ccl(?:Dev)?Kernel_?([A-Za-z]+?)(?:_|\(|$)")
_DATA_CALL = re.compile(
    r"nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|Send|Recv|All[Tt]o[Aa]ll|Gather|Scatter)$"
)
_MAKES = re.compile(r"ncclComm(?:Init|Split|Shrink)")
_PER_RANK = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
"""Calls whose message size is that of one rank's part. Source: NCCL, src/collectives.cc."""
_INTEGERS = {5: "<i", 6: "<I", 7: "<q", 8: "<Q", 9: "<q", 10: "<Q", 15: "<i", 16: "<I", 17: "<q", 18: "<Q", 22: "<Q"}
"""Types of payload entries. Source: NVTX, nvToolsExtPayload.h."""
_HEAD = struct.Struct("<QQQQ")
"""Domain, schema, size of the payload, one more; the payload follows."""
_COMM, _RANKS, _RANK, _DEVICE, _PEER = "nccl communicator id", "no. of ranks", "rank", "cuda device", "peer rank"
_SIZES = ("message size [bytes]", "bytes")
_UNKNOWN = np.iinfo(np.int64).min
_ID = 1 << 24
_TIMES = """typeof("start") = 'integer' AND typeof("end") = 'integer' AND "start" <= "end" AND abs("start") < 4611686018427387904 AND abs("end") < 4611686018427387904"""

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Call:
    """A range of NCCL's API on a thread."""

    begin: int
    end: int
    name: str
    op: str | None
    """None: no call that moves data."""
    said: Mapping[str, int]
    seq: int | None = None

    @property
    def size_bytes(self) -> int | None:
        return next((self.said[key] for key in _SIZES if key in self.said), None)


@dataclass(slots=True)
class _Kernel:
    """A kernel of NCCL."""

    row: dict[str, Any]
    thread: int | None
    """On which it was launched."""


@dataclass(slots=True)
class _Process:
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    """(begin, end, number), in order of begin."""
    ranks: dict[int, tuple[int, int]] = field(default_factory=dict)
    """CUDA device: (ranks of the largest communicator made on it, this one's rank in it)."""

    def rank(self, device: int | None) -> int | None:
        if len(self.ranks) == 1:
            return next(iter(self.ranks.values()))[1]
        return self.ranks[device][1] if device in self.ranks else None


class NsightSystemsReader:
    """Exports of Nsight Systems."""

    name = "nsight-systems"

    def sniff(self, head: bytes) -> bool:
        """Any SQLite database: what is in it is told by its tables."""
        return head.startswith(DATABASE_HEADER)

    def read(self, artefact: Artefact) -> Iterator[Item]:
        """Rows of `spans`, `collectives` and `counters`."""
        losses = Losses(artefact.path)
        for ending in ("-wal", "-journal"):
            beside = Path(f"{artefact.file}{ending}")
            if beside.is_file() and beside.stat().st_size:
                losses.add(
                    "unfinished-file",
                    None,
                    f"{beside.name} lies beside it, with rows that are not in the database yet; what it holds is not read. Wait for the export to end, or export again",
                )
        with Database(artefact.file, artefact.size_bytes, losses) as database:
            yield from _Trace(artefact, database, losses).items()
        yield from losses


READER = NsightSystemsReader()


class _Trace:
    """An export, its tables in our terms."""

    def __init__(self, artefact: Artefact, database: Database, losses: Losses) -> None:
        self.artefact, self.database, self.losses = artefact, database, losses
        self.strings: dict[int, str] = {}
        self.processes: dict[int, _Process] = defaultdict(_Process)
        self.calls: dict[int, list[_Call]] = defaultdict(list)
        self.groups: dict[int, dict[int, tuple[int, list[_Call]]]] = {}
        """By thread and place of the range that ends a group: the place of that which begins it, and its calls once they were asked for."""
        self.kernels: list[_Kernel] = []
        self.kept_calls = 0
        self.ranks_of: dict[int, int] = {}
        """Ranks of each communicator whose making was seen."""
        self.base_ns = 0
        self.host: str | None = None

    def items(self) -> Iterator[Item]:
        """Rows; losses are counted on the way."""
        names = self.database.tables()
        if not any(self.database.table(name) for name in TABLES):
            if not len(self.losses):
                what = f"has {', '.join(sorted(names)[:6])}" if names else "has no table"
                self.losses.add(
                    "no-trace",
                    None,
                    f"an SQLite database without a trace of Nsight Systems ({what}); give what `nsys export --type sqlite` writes",
                )
            return
        self._session()
        # Annotations come first: they say which step and which rank a span belongs to.
        yield from self._annotations()
        if self.database.table(TABLES[_KERNEL]) is None and self.database.table(TABLES[_GRAPH]) is None:
            self._missing(TABLES[_KERNEL], "kernels", "profile with --trace=cuda,nvtx")
        self._launches()
        for number, category in ((_KERNEL, "kernel"), (_MEMCPY, "memcpy"), (_MEMSET, "memset"), (_GRAPH, "kernel")):
            yield from self._spans(number, category)
        yield from self._collectives()
        yield from self._metrics(_NIC)
        yield from self._metrics(_SWITCH)

    def _missing(self, table: str, what: str, how: str) -> None:
        self.losses.add("missing-table", None, f"there is no table {table}, so {what} are unknown; {how}")

    def _all(self, name: str, columns: Sequence[str], most: int, **condition: Any) -> Iterator[tuple[Any, ...]]:
        table = self.database.table(name)
        if table is not None:
            for piece in self.database.rows(table, columns, most=most, **condition):
                yield from piece

    def _session(self) -> None:
        for (start,) in self._all("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"], 1):
            if isinstance(start, int) and 0 <= start < 1 << 61:
                self.base_ns = start
        table = self.database.table("TARGET_INFO_SYSTEM_ENV")
        # Only the one name: another holds the whole environment.
        if table is not None and {"name", "value"} <= table.columns:
            for (host,) in self._all(
                "TARGET_INFO_SYSTEM_ENV", ['substr("value", 1, 200)'], 1, where='"name" = ?', values=["Hostname"]
            ):
                self.host = host if isinstance(host, str) and host else None
        for name, version in self._all("META_DATA_EXPORT", ["name", "value"], 1000):
            if name == "EXPORT_SCHEMA_VERSION_MAJOR" and str(version) != "3":
                self.losses.add(
                    "unknown-version",
                    None,
                    f"schema {str(version)[:20]} of the export; versions 3.x are known: what is missing may stand elsewhere",
                )

    def _named(self, ids: npt.NDArray[Any]) -> None:
        """Learns strings by their numbers."""
        table = self.database.table("StringIds")
        wanted = [number for number in np.unique(ids).tolist() if number not in self.strings]
        if table is None or len(self.strings) + len(wanted) > _MOST_STRINGS:
            return
        for first in range(0, len(wanted), 256):
            part = wanted[first : first + 256]
            for number, value in self._all(
                "StringIds",
                ["id", f'substr("value", 1, {_LONGEST_NAME})'],
                len(part),
                where=f'"id" IN ({",".join("?" * len(part))})',
                values=part,
            ):
                if isinstance(number, int) and isinstance(value, str):
                    self.strings[number] = value

    # NVTX

    def _annotations(self) -> Iterator[Item]:
        table = self.database.table(TABLES[_NVTX])
        if table is None or not {"start", "end"} <= table.columns:
            return
        payloads = _Payloads(self.database, self._all, table)
        named: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
        columns = [
            "rowid",
            "start",
            "end",
            "globalTid",
            'substr("text", 1, 400)' if "text" in table.columns else "text",
            "textId",
            "eventId",
        ]
        columns.append(
            f'CASE WHEN length("binaryData") <= {_LONGEST_PAYLOAD} THEN CAST("binaryData" AS BLOB) END'
            if "binaryData" in table.columns
            else "binaryData"
        )
        kept = f'"eventType" IN {_RANGES} AND ' if "eventType" in table.columns else ""
        # Operators that PyTorch annotates (emit_nvtx) are as many as kernels, and no annotation of the user's.
        kept += """("text" IS NULL OR "text" NOT LIKE '%, op_id = %') AND """ if "text" in table.columns else ""
        for piece in self.database.rows(table, columns, where=kept + _TIMES, most=MOST_SPANS):
            self._named(np.array([text_id for *_, text_id, _, _ in piece if isinstance(text_id, int)], np.int64))
            rows: list[dict[str, Any]] = []
            for number, begin, end, thread, text, text_id, event, blob in piece:
                name = (
                    text
                    if isinstance(text, str) and text
                    else self.strings.get(text_id)
                    if isinstance(text_id, int)
                    else None
                )
                owner = thread if isinstance(thread, int) else 0
                if not name:
                    self.losses.add("nameless-range", None, "an NVTX range has no name in the file and was left out")
                    continue
                if name.startswith("nccl"):
                    self._nccl_call(name, begin, end, owner, payloads.of(event, blob))
                elif (step := _NUMBERED_STEP.fullmatch(name)) is not None:
                    self.processes[owner // _ID].steps.append((begin, end, int(step[1])))
                elif _PLAIN_STEP.fullmatch(name):
                    named[owner, name].append((begin, end))
                rows.append({
                    "line": number, "pid": owner // _ID % _ID, "lane": str(owner % _ID), "name": name, "begin_ns": begin + self.base_ns, "end_ns": end + self.base_ns,
                    "artefact": self.artefact.sha256, "byte_offset": _NVTX, "host": self.host, "source": SOURCE, "category": "annotation",
                })  # fmt: skip
            if rows:
                yield rows_of("spans", rows)
        for (thread, _), times in named.items():
            if len(times) > 1 and not self.processes[thread // _ID].steps:
                self.processes[thread // _ID].steps = [
                    (begin, end, number) for number, (begin, end) in enumerate(sorted(times))
                ]
        for process in self.processes.values():
            process.steps.sort()
        for calls in self.calls.values():
            calls.sort(key=lambda call: (call.begin, -call.end))
        self._number_calls()

    def _nccl_call(self, name: str, begin: int, end: int, thread: int, said: Mapping[str, int]) -> None:
        self.kept_calls += 1
        if self.kept_calls > _MOST_NCCL_CALLS:
            self.losses.add(
                "too-large",
                None,
                f"calls of NCCL beyond the first {_MOST_NCCL_CALLS:,} were left out; export a shorter time",
            )
            return
        data = _DATA_CALL.match(name)
        op = (
            None
            if data is None
            else data[1].lower()
            if data[1] in ("Send", "Recv")
            else collective_named(data[1].replace("Bcast", "Broadcast"))
        )
        self.calls[thread].append(_Call(begin, end, name, op, said))
        ranks, rank = said.get(_RANKS), said.get(_RANK)
        if ranks is not None and rank is not None and 0 <= rank < ranks < 1 << 31:
            known, device = self.processes[thread // _ID].ranks, said.get(_DEVICE, 0)
            if device not in known or known[device][0] < ranks:
                known[device] = ranks, rank

    def _number_calls(self) -> None:
        """Numbers of calls in communicators that were made while the trace was taken."""
        made: set[tuple[int, int]] = set()
        of_process: dict[int, list[_Call]] = defaultdict(list)
        for thread, calls in self.calls.items():
            of_process[thread // _ID] += calls
        for process, calls in of_process.items():
            count: dict[int, int] = defaultdict(int)
            for call in sorted(calls, key=lambda each: each.begin):
                comm = call.said.get(_COMM)
                if comm is None:
                    continue
                if _RANKS in call.said:  # also when a communicator is destroyed
                    self.ranks_of[comm] = call.said[_RANKS]
                    if _MAKES.match(call.name):
                        made.add((process, comm))
                elif call.op is not None and call.op not in ("send", "recv") and (process, comm) in made:
                    count[comm] += 1
                    call.seq = count[comm]

    # Spans

    def _launches(self) -> None:
        """The calls of CUDA's API by process and correlation: when, and on which thread."""
        keys: list[Ints] = []
        begins: list[Ints] = []
        threads: list[Ints] = []
        table = self.database.table("CUPTI_ACTIVITY_KIND_RUNTIME")
        if table is not None and {"start", "correlationId", "globalTid"} <= table.columns:
            where = """typeof("start") = 'integer' AND typeof("correlationId") = 'integer' AND typeof("globalTid") = 'integer' AND "correlationId" BETWEEN 1 AND 4294967295"""
            for piece in self.database.rows(
                table, ["globalTid", "correlationId", "start"], where=where, most=MOST_CALLS
            ):
                array = np.array(piece, np.int64)
                keys.append(_key(array[:, 0], array[:, 1]))
                threads.append(array[:, 0])
                begins.append(array[:, 2])
        if not keys and any(self.database.table(TABLES[number]) for number in (_KERNEL, _GRAPH)):
            self._missing("CUPTI_ACTIVITY_KIND_RUNTIME", "times of launches", "profile with --trace=cuda")
        nothing = np.empty(0, np.int64)
        every = np.concatenate([nothing, *keys])
        order = np.argsort(every, kind="stable")
        self.launch_keys = every[order]
        self.launch_begins = np.concatenate([nothing, *begins])[order]
        self.launch_threads = np.concatenate([nothing, *threads])[order]

    def _spans(self, number: int, category: str) -> Iterator[Item]:
        table = self.database.table(TABLES[number])
        if table is None:
            return
        lacking = {"start", "end", "deviceId", "streamId"} - table.columns
        if lacking:
            self.losses.add(
                "missing-column", None, f"{table.name} has no column {', '.join(sorted(lacking))}; it was left out"
            )
            return
        name = next(
            (column for column in ("demangledName", "shortName", "mangledName") if column in table.columns), None
        )
        columns = [
            "rowid",
            "start",
            "end",
            "deviceId",
            "streamId",
            "correlationId",
            "globalPid",
            name or "demangledName",
            "copyKind",
        ]
        numbers = [
            "rowid",
            "start",
            "end",
            *(
                f'CASE typeof("{c}") WHEN \'integer\' THEN "{c}" ELSE -1 END' if c in table.columns else "-1"
                for c in columns[3:]
            ),
        ]
        read = 0
        for piece in self.database.rows(table, numbers, where=_TIMES, most=MOST_SPANS):
            array = np.array(piece, np.int64)
            read += len(array)
            if number == _KERNEL:
                self._named(array[:, 7])
            yield self._batch(number, category, array)
        if number == _GRAPH and read:
            self.losses.add(
                "graphs-as-a-whole", None,
                f"{read:,} launches of CUDA graphs were traced as a whole, and count as computation, collectives in them too; profile with --cuda-graph-trace=node",
            )  # fmt: skip
        self._count_damaged(table)

    def _count_damaged(self, table: Table) -> None:
        for piece in self.database.rows(table, ["rowid"], where=f"NOT ({_TIMES})", most=MOST_SPANS):
            for (number,) in piece:
                self.losses.add(
                    "damaged-row",
                    number,
                    f"a row of {table.name} has no times, or ends before it begins; it was left out",
                )

    def _batch(self, number: int, category: str, array: Ints) -> Rows:
        line, begin, end, device, stream, correlation, pid, name, copy = array.T
        process = pid // _ID
        launched, threads = self._launched(pid, correlation)
        step = np.full(len(array), -1, np.int64)
        rank = np.full(len(array), -1, np.int64)
        for owner in np.unique(process).tolist():
            known = self.processes.get(owner)
            if known is None:
                continue
            mine = np.flatnonzero(process == owner)
            moment = np.where(launched[mine] != _UNKNOWN, launched[mine], begin[mine])
            step[mine] = _step_at(known.steps, moment)
            for one in np.unique(device[mine]).tolist():
                found = known.rank(one)
                if found is not None:
                    rank[mine[device[mine] == one]] = found
        words, places = np.unique(name if number == _KERNEL else copy, return_inverse=True)
        if number == _KERNEL:
            spelled = [self.strings.get(word) or "kernel without a name" for word in words.tolist()]
        elif number == _GRAPH:
            spelled = ["CUDA graph"] * len(words)
        else:
            spelled = [_COPIES.get(word, category) if number == _MEMCPY else category for word in words.tolist()]
        streams, at = np.unique(stream, return_inverse=True)
        count, once = len(array), pa.array(np.zeros(len(array), np.int32))
        made: dict[str, Any] = {
            "artefact": pa.array([self.artefact.sha256]).take(once), "line": line, "byte_offset": np.full(count, number), "host": pa.array([self.host], pa.string()).take(once),
            "pid": pa.array(process % _ID, mask=pid < 0), "device": pa.array(device, mask=(device < 0) | (device >= 1 << 31)), "rank": pa.array(rank, mask=rank < 0),
            "source": pa.array([SOURCE]).take(once), "category": pa.array([category]).take(once), "lane": pa.array([str(word) for word in streams.tolist()]).take(pa.array(at)),
            "name": pa.array(spelled, pa.string()).take(pa.array(places)), "begin_ns": begin + self.base_ns, "end_ns": end + self.base_ns,
            "launched_ns": pa.array(np.where(launched == _UNKNOWN, 0, launched) + self.base_ns, mask=launched == _UNKNOWN), "step": pa.array(step, mask=step < 0),
        }  # fmt: skip
        if number == _KERNEL:
            self._keep_nccl(array, spelled, places, np.column_stack((launched, threads, rank)))
        schema = SCHEMAS["spans"]
        arrays = [pa.array(made[column.name]).cast(column.type) for column in schema]
        return Rows("spans", pa.record_batch(arrays, schema=schema))

    def _launched(self, pid: Ints, correlation: Ints) -> tuple[Ints, Ints]:
        """(spans,) int64 twice: when each was launched, _UNKNOWN where nothing says so; on which thread."""
        launched, threads = np.full(len(pid), _UNKNOWN, np.int64), np.full(len(pid), -1, np.int64)
        if self.launch_keys.size:
            keys = _key(pid, correlation)
            at = np.minimum(np.searchsorted(self.launch_keys, keys), self.launch_keys.size - 1)
            known = (self.launch_keys[at] == keys) & (correlation > 0)
            launched[known], threads[known] = self.launch_begins[at[known]], self.launch_threads[at[known]]
        return launched, threads

    def _keep_nccl(self, array: Ints, spelled: list[str], places: Any, launches: Ints) -> None:
        """launches: (spans, 3) int64, when and on which thread each was launched, and the rank."""
        found = {at: kernel for at, name in enumerate(spelled) if (kernel := _NCCL_KERNEL.match(name))}
        for row in np.flatnonzero(np.isin(places, list(found))).tolist():
            if len(self.kernels) >= _MOST_NCCL_CALLS:
                self.losses.add(
                    "too-large",
                    None,
                    f"kernels of NCCL beyond the first {_MOST_NCCL_CALLS:,} are no rows of collectives; export a shorter time",
                )
                return
            line, begin, end, device, _, _, pid, *_ = array[row].tolist()
            made, thread, rank = launches[row].tolist()
            kernel = found[int(places[row])]
            op = "send_recv" if kernel[1] == "SendRecv" else collective_named(kernel[1]) or kernel[1].lower()
            created = made if made != _UNKNOWN else None
            self.kernels.append(_Kernel({
                "artefact": self.artefact.sha256, "line": line, "byte_offset": _KERNEL, "host": self.host, "pid": pid // _ID % _ID if pid >= 0 else None,
                "device": device if 0 <= device < 1 << 31 else None, "rank": rank if rank >= 0 else None, "source": SOURCE, "op": op,
                "profiling_name": spelled[int(places[row])][:200], "is_p2p": op in ("send_recv", "send", "recv"), "state": "completed", "retired": True,
                "created_ns": created, "started_ns": begin, "completed_ns": end, "duration_ns": end - begin,
            }, thread if thread >= 0 else None))  # fmt: skip

    # Collectives

    def _collectives(self) -> Iterator[Item]:
        together: dict[tuple[int, int], list[_Kernel]] = defaultdict(list)
        members: dict[tuple[int, int], list[_Call]] = {}
        without = 0
        for kernel in self.kernels:
            made = kernel.row["created_ns"]
            at, calls = (
                self._calls_at(kernel.thread, made) if kernel.thread is not None and made is not None else (-1, [])
            )
            if calls and kernel.thread is not None:
                together[kernel.thread, at].append(kernel)
                members[kernel.thread, at] = calls
        for key, kernels in together.items():
            kernels.sort(key=lambda each: (each.row["created_ns"], each.row["started_ns"]))
            for kernel, mine in _shared_out(kernels, members[key]):
                kernel.row |= self._said(mine, kernel.row["op"])
        self._number_by_ends()
        for first in range(0, len(self.kernels), 8192):
            rows = []
            for kernel in self.kernels[first : first + 8192]:
                row = kernel.row
                without += row.get("size_bytes") is None
                rows.append(
                    row
                    | {
                        key: row[key] + self.base_ns
                        for key in ("created_ns", "started_ns", "completed_ns")
                        if row[key] is not None
                    }
                )
            yield rows_of("collectives", rows)
        if without:
            self.losses.add(
                "collective-without-size", None,
                f"{without:,} of {len(self.kernels):,} kernels of NCCL have neither bytes nor communicator in the file; profile with --trace=cuda,nvtx and export with "
                "--include-blobs=true",
            )  # fmt: skip

    def _number_by_ends(self) -> None:
        """Numbers for collectives of communicators that were made before the trace began, where several GPUs of this file take part.

        All ranks leave a blocking collective together, and a file has one clock: what ends nearest in time, and nearer than half the way to the next, is the same call. Numbers
        count from where the trace begins, in the GPU that has most calls.
        """
        lanes: dict[str, dict[tuple[Any, Any], list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
        for kernel in self.kernels:
            row = kernel.row
            if row.get("process_group") and row.get("seq") is None and not row["is_p2p"]:
                lanes[row["process_group"]][row["pid"], row["device"]].append(row)
        for group in lanes.values():
            if len(group) < 2:
                continue
            for rows in group.values():
                rows.sort(key=lambda row: row["completed_ns"])
            reference = max(group.values(), key=len)
            ends = np.array([row["completed_ns"] for row in reference], np.int64)
            gaps = np.diff(ends, prepend=_UNKNOWN // 2, append=-(_UNKNOWN // 2))
            for rows in group.values():
                taken: set[int] = set()
                for row in rows:
                    at = int(np.searchsorted(ends, row["completed_ns"]))
                    place = min(
                        (each for each in (at - 1, at) if 0 <= each < len(ends)),
                        key=lambda each: abs(int(ends[each]) - row["completed_ns"]),
                    )
                    away, other = abs(int(ends[place]) - row["completed_ns"]), reference[place]
                    if (
                        2 * away < min(int(gaps[place]), int(gaps[place + 1]))
                        and place not in taken
                        and (other["op"], other["size_bytes"]) == (row["op"], row["size_bytes"])
                    ):
                        taken.add(place)
                        row["seq"] = place + 1

    def _calls_at(self, thread: int, moment: int) -> tuple[int, list[_Call]]:
        """The calls in which a thread was at this moment: one, or those of a group; and the place of the range that says so."""
        calls = self.calls.get(thread, [])
        at = bisect_right(calls, moment, key=lambda call: call.begin) - 1
        inside = [place for place in range(at, max(at - 64, -1), -1) if calls[place].end >= moment]
        data = next((place for place in reversed(inside) if calls[place].op is not None), None)
        if data is not None:
            return data, [calls[data]]
        end = next((place for place in reversed(inside) if calls[place].name == "ncclGroupEnd"), None)
        return (-1, []) if end is None else (end, self._calls_of_group(thread, end))

    def _calls_of_group(self, thread: int, end: int) -> list[_Call]:
        """The calls of the group that ends with this range; none where its begin was not recorded."""
        if thread not in self.groups:
            begun: list[int] = []
            self.groups[thread] = {}
            for place, call in enumerate(self.calls[thread]):
                if call.name == "ncclGroupStart":
                    begun.append(place)
                elif call.name == "ncclGroupEnd" and begun:
                    self.groups[thread][place] = begun.pop(), []
        begin, found = self.groups[thread].get(end, (end, []))
        if not found:
            found += [call for call in self.calls[thread][begin:end] if call.op is not None]
        return found

    def _said(self, calls: Sequence[_Call], op: str) -> dict[str, Any]:
        """What the calls of one kernel say; of several, bytes add up."""
        comms = {call.said.get(_COMM) for call in calls}
        comm = comms.pop() if len(comms) == 1 else None
        ranks = self.ranks_of.get(comm) if comm is not None else None
        sizes = [call.size_bytes for call in calls if call.op != "recv"] or [call.size_bytes for call in calls]
        size = sum(each for each in sizes if each is not None) if all(each is not None for each in sizes) else None
        peers = {call.said[_PEER] for call in calls if _PEER in call.said}
        if size is not None and op in _PER_RANK:
            size = size * ranks if ranks is not None else None
        return {
            "process_group": f"{comm & (1 << 64) - 1:#018x}" if comm is not None else None, "ranks": ranks, "seq": calls[0].seq,
            "size_bytes": size if size is not None and 0 <= size < 1 << 62 else None, "peer": peers.pop() if len(peers) == 1 else None,
        }  # fmt: skip

    # Counters

    def _metrics(self, number: int) -> Iterator[Item]:
        table = self.database.table(TABLES[number])
        if table is None or not {"start", "metricsListId", "metricsIdx", "value"} <= table.columns:
            return
        names = {
            (listed, index): (str(name)[:200], str(unit)[:40])
            for listed, index, name, unit in self._all(
                "TARGET_INFO_NETWORK_METRICS", ["metricsListId", "metricsIdx", "name", "unit"], 100_000
            )
        }
        if not names and any(True for _ in self._all(table.name, ["rowid"], 1, where="1")):
            self._missing("TARGET_INFO_NETWORK_METRICS", f"names of what {table.name} counts", "export all tables")
        if not names:
            return
        cards = dict(self._all("TARGET_INFO_NIC_INFO", ["nicId", "name"], 100_000))
        devices = {each: cards.get(card) for card, each in self._all("NIC_ID_MAP", ["nicId", "globalId"], 100_000)}
        if number == _SWITCH:
            devices = dict(self._all("NET_IB_DEVICE_INFO", ["guid", "name"], 100_000))
        columns = [
            "rowid",
            "start",
            "end",
            "globalId" if "globalId" in table.columns else "guid",
            "portId",
            "metricsListId",
            "metricsIdx",
            "value",
        ]
        for piece in self.database.rows(table, columns, where="""typeof("start") = 'integer'""", most=_MOST_SAMPLES):
            rows = []
            for line, begin, end, device, port, listed, index, value in piece:
                name = names.get((listed, index))
                if name is None or not isinstance(value, int | float) or abs(begin) >= 1 << 61:
                    self.losses.add(
                        "damaged-row",
                        line,
                        f"a row of {table.name} counts what has no name, or no number; it was left out",
                    )
                    continue
                labels = {"unit": name[1]} | (
                    {"interval_ns": str(end - begin)} if isinstance(end, int) and end > begin else {}
                )
                known = devices.get(device)
                rows.append({
                    "artefact": self.artefact.sha256, "line": line, "byte_offset": number, "host": self.host if number == _NIC else None,
                    "device": str(known)[:200] if known else str(device), "port": port if isinstance(port, int) and 0 <= port < 1 << 31 else None, "name": name[0],
                    "value": float(value), "time_ns": begin + self.base_ns, "labels": list(labels.items()),
                })  # fmt: skip
            if rows:
                yield rows_of("counters", rows)


_COPIES = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 9: "Memcpy HtoH", 10: "Memcpy PtoP"}
"""Kinds of copies. Source: ENUM_CUDA_MEMCPY_OPER of an export."""


def _key(thread_or_pid: Ints, correlation: Ints) -> Ints:
    """One number of a process and a correlation; what is above the VM's id is shifted out, and a file has one machine."""
    return ((thread_or_pid // _ID) << 32) ^ (correlation & 0xFFFFFFFF)


def _step_at(steps: Sequence[tuple[int, int, int]], moments: Ints) -> Ints:
    """(M,) int64: the number of the step that each moment lies in; -1: in none."""
    found = np.full(len(moments), -1, np.int64)
    if steps:
        begin, end, number = (np.array(column, np.int64) for column in zip(*steps, strict=True))
        at = np.searchsorted(begin, moments, side="right") - 1
        inside = (at >= 0) & (moments <= end[np.maximum(at, 0)])
        found[inside] = number[at[inside]]
    return found


def _shared_out(kernels: Sequence[_Kernel], calls: Sequence[_Call]) -> Iterator[tuple[_Kernel, Sequence[_Call]]]:
    """Which calls of a group each of its kernels does. Those that cannot be told apart get none."""

    def fits(kernel: _Kernel, call: _Call) -> bool:
        return call.op == kernel.row["op"] or (kernel.row["op"] == "send_recv" and call.op in ("send", "recv"))

    if len(kernels) == len(calls) and all(fits(kernel, call) for kernel, call in zip(kernels, calls, strict=True)):
        yield from ((kernel, [call]) for kernel, call in zip(kernels, calls, strict=True))
        return
    for kernel in kernels:
        mine = [call for call in calls if fits(kernel, call)]
        rivals = sum(other.row["op"] == kernel.row["op"] for other in kernels)
        if mine and rivals == 1:
            yield kernel, mine


class _Payloads:
    """The binary payloads of NVTX ranges: numbers by the names of their fields, in lower case."""

    def __init__(self, database: Database, rows: Any, events: Table) -> None:
        self._fields: dict[tuple[int, int], dict[str, tuple[int, str]]] = defaultdict(dict)
        self._of_event: dict[int, dict[str, int]] = defaultdict(dict)
        for domain, schema, kind, name, offset in rows(
            "NVTX_PAYLOAD_SCHEMA_ENTRIES", ["domainId", "schemaId", "type", "name", "offset"], 100_000
        ):
            if (
                kind in _INTEGERS
                and isinstance(name, str)
                and (offset is None or (isinstance(offset, int) and 0 <= offset < _LONGEST_PAYLOAD))
            ):
                self._fields[domain, schema][name.lower()] = offset or 0, _INTEGERS[kind]
        if "eventId" in events.columns:
            self._read_dynamic(database, rows)

    def _read_dynamic(self, database: Database, rows: Any) -> None:
        """Payloads that the exporter laid out as tables, a schema each."""
        original = {
            sanitized: name
            for name, sanitized in rows("NVTX_EXPORT_TRANSLATION", ["originalName", "sanitizedName"], 100_000)
        }
        known = {_squeezed(name): name for name in (_COMM, _RANKS, _RANK, _DEVICE, _PEER, *_SIZES)}
        for name in database.tables():
            table = database.table(name)
            if (
                table is None
                or not re.fullmatch(r"DYNAMIC_NVTXPAYLOAD_DATATYPE_\d+_\d+_\d+", name)
                or "eventId" not in table.columns
            ):
                continue
            columns = {
                column: field
                for column in sorted(table.columns)
                if (field := known.get(_squeezed(str(original.get(column, column)))))
            }
            for event, *values in rows(name, ["eventId", *columns], _MOST_NCCL_CALLS):
                if isinstance(event, int):
                    self._of_event[event].update(
                        {
                            field: value
                            for field, value in zip(columns.values(), values, strict=True)
                            if isinstance(value, int)
                        }
                    )

    def of(self, event: Any, blob: Any) -> Mapping[str, int]:
        """The numbers of one range."""
        if isinstance(blob, bytes) and len(blob) > _HEAD.size:
            domain, schema, size, _ = _HEAD.unpack_from(blob)
            fields = self._fields.get((domain, schema)) or self._fields.get(
                (domain & 0xFFFFFFFF, schema & 0xFFFFFFFF), {}
            )
            payload = blob[_HEAD.size : _HEAD.size + size]
            return {
                name: struct.unpack_from(shape, payload, at)[0]
                for name, (at, shape) in fields.items()
                if at + struct.calcsize(shape) <= len(payload)
            }
        return self._of_event.get(event, {}) if isinstance(event, int) else {}


def _squeezed(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def row_text(file: Path, line: int, table: int) -> str:
    """A row of an export for people, by its rowid and the number of its table in `TABLES`; empty where there is none."""
    losses = Losses(str(file))
    try:
        with Database(file, file.stat().st_size, losses) as database:
            found = database.table(TABLES[table]) if 0 <= table < len(TABLES) else None
            if found is None:
                return ""
            columns = [
                c
                for c in (
                    "start",
                    "end",
                    "deviceId",
                    "streamId",
                    "correlationId",
                    "copyKind",
                    "bytes",
                    "portId",
                    "value",
                )
                if c in found.columns
            ]
            name = next((c for c in ("demangledName", "textId") if c in found.columns), None)
            texts = ['substr("text", 1, 400)'] if "text" in found.columns else []
            for piece in database.rows(
                found, [*columns, *([name] if name else []), *texts], where="rowid = ?", values=[line], most=1
            ):
                values = list(piece[0])
                said = " ".join(f"{column}={value}" for column, value in zip(columns, values, strict=False))
                called = values[len(columns) :]
                strings = database.table("StringIds")
                if name and isinstance(called[0], int) and strings is not None:
                    for row in database.rows(
                        strings, ['substr("value", 1, 400)'], where='"id" = ?', values=[called[0]], most=1
                    ):
                        called = [row[0][0]]
                word = next((str(each) for each in reversed(called) if isinstance(each, str)), "")
                return f"{found.name} rowid={line} {said} {word}".rstrip()
    except (OSError, *WRONG):
        return ""
    return ""
