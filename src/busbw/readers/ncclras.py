"""What NCCL's RAS subsystem says through `ncclras`: status as text or JSON (2.28.7 and later), monitored events (2.29 and later).

Lines that stand for themselves are templates; those that mean something only below a heading (a process under DEAD, a
rank under INCOMPLETE) are read as blocks. JSON is walked token by token, so that a cut file gives what it has. Source:
NVIDIA/nccl src/ras/client_support.cc (rasClientRunConns, rasClientRunComms, jsonWriteRankData), rasnet.cc, peers.cc.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from busbw.errors import Loss, Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, PlainLine, Template

__all__ = ["JSON_READER", "LARGEST_FILE_BYTES", "READER"]

LARGEST_FILE_BYTES = 256 * 2**20
"""A status is read as a whole; 16 000 ranks in 100 communicators each are 1 GB, far more than anybody asks for twice."""
_SOURCE = "src/ras/client_support.cc"
_MONITORED = {
    "PEER_DEAD": ("ras.peer_dead", "error"),
    "PEER_TIMEOUT_DEAD": ("ras.peer_dead", "error"),
    "PEER_UNRESPONSIVE": ("ras.peer_unresponsive", "warning"),
    "PEER_SEND_STUCK": ("ras.peer_unresponsive", "warning"),
    "PEER_KEEPALIVE_TIMEOUT": ("ras.peer_unresponsive", "warning"),
    "PEER_INIT_TIMEOUT": ("ras.peer_unresponsive", "warning"),
    "PEER_RECOVERED": ("ras.peer_recovered", "info"),
    "PEER_DISCONNECTED": ("ras.peer_disconnected", "info"),
    "PEER_RETRY": ("ras.peer_retry", "info"),
    "PEER_NEW": ("ras.peer_new", "info"),
    "PEER_CONNECTING": ("ras.peer_connecting", "info"),
    "PEER_CONNECTED": ("ras.peer_connected", "info"),
}
"""Event and level of what the monitor reports (rasnet.cc, peers.cc, ras.cc)."""
_OPS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "allgatherv": "all_gather", "reducescatter": "reduce_scatter",
    "broadcast": "broadcast", "reduce": "reduce", "sendrecv": "send_recv", "send": "send", "recv": "recv",
    "alltoall": "all_to_all", "all2all": "all_to_all", "gather": "gather", "scatter": "scatter",
}  # fmt: skip
_IN_PROGRESS = 7
"""ncclInProgress (src/nccl.h.in): a communicator that is still being made."""
_LARGEST = 2**62
_SMALL = 2**31
_DECODER = json.JSONDecoder(strict=False)

TEMPLATES: tuple[Template, ...] = (
    Template("ras.dead", "^{count:d} job processes are considered dead", _SOURCE, "error"),
    Template("ras.dead", "^{count:d} job process is considered dead", _SOURCE, "error"),
    Template("ras.incomplete", "^ Missing communicator data from {count:d} {what:s}", _SOURCE, "warning"),
    Template("ras.incomplete", "^ Warning: missing data from {count:d} process{rest:s}", _SOURCE, "warning"),
    Template("ras.status_mismatch", "^ Communicator ranks have different status", _SOURCE, "warning"),
    Template("ras.counts_differ", "^ Communicator ranks have different {op:w} operation counts", _SOURCE, "warning"),
    Template("ras.timeout", "^ Encountered {count:d} communication timeout", _SOURCE, "warning"),
    Template(
        "ras.rank", "^ Rank {rank:d} -- GPU {gpu:d} (NVML {nvml:d}) managed by process {pid:d} on node {node:w}", _SOURCE, "warning"
    ),
    Template("ras.rank_error", "^ Rank {rank:d} reported {error:s} -- {process:s}", _SOURCE, "warning"),
    *(
        Template("ras.group_not_running", f"^ {{group:d}} {{comms:d}} {{nodes:w}} {{per_node:w}} {{per_comm:w}} {{ranks:w}} {status} {{errors:w}}", _SOURCE, "info")
        for status in ("NOCOMM", "INIT", "FINALIZE", "ABORT")
    ),
    *(
        Template(event, f"^{name}: {{peer:s}}", "src/ras/rasnet.cc, peers.cc; ncclras -m", level)
        for name, (event, level) in _MONITORED.items()
    ),
    Template("ras.rank_at", "Rank {rank:d} has launched up to operation {operation:d}", "ncclras", "warning"),
    Template(
        "ras.group",
        "^ {group:d} {comms:d} {nodes:w} {per_node:w} {per_comm:w} {ranks:w} RUNNING {errors:w}",
        "ncclras, Communicators table",
        "info",
    ),
    Template("ras.comm", "^comm {comm:x} {status:w} {errors:w}", "ncclras", "info"),
    Template("ras.comm", "^#{group:d}-{index:d} ({comm:x}) {errors:w}", "ncclras, Errors and Warnings", "warning"),
    Template("ras.ranks_at", "{ranks:d} ranks have launched up to operation {operation:d}", "ncclras", "warning"),
    Template("ras.ranks_at", "{ranks:d} rank has launched up to operation {operation:d}", "ncclras", "warning"),
    Template(
        "ras.rank", "^ Rank {rank:d} -- GPU {gpu:w} managed by process {pid:d} on node {node:w}", "ncclras", "warning"
    ),
)  # fmt: skip

_SIGNATURE = re.compile(
    r"^\s*(?:DEAD|INCOMPLETE|#\d+-\d+ \([0-9a-f]{1,16}\) [A-Z,]+)\s*$|has not launched any op|have not launched any op"
    r"|The missing process"
)
_COMM = re.compile(r"#(\d{1,9})-(\d{1,9}) \(([0-9a-f]{1,16})\) ([A-Z,]{1,40})$")
_PROCESS = re.compile(r"Process (\d{1,10}) on node (\S{1,255}) managing GPUs? (.{1,200})")
_RANK = re.compile(
    r"Rank (\d{1,9}) -- (?:GPU (\d{1,9}).{0,40} managed by process (\d{1,10}) on node (\S{1,255})|\[process)"
)
_IDLE_RANK = re.compile(r"Rank (\d{1,9}) has not launched any operations")
_IDLE_RANKS = re.compile(r"(\d{1,9}) ranks have not launched any operations")
_ENDS = re.compile(r"(?:Errors|Warnings|TIMEOUT|Job summary|Communicators\.\.\..*|=+)$")


class RasReader:
    """Text of ncclras."""

    name = "ncclras"
    templates: Sequence[Template] = TEMPLATES
    signature: re.Pattern[str] | None = _SIGNATURE

    def derive(self, events: pa.RecordBatch) -> Iterator[Item]:
        """Nothing: blocks are read as lines."""
        return iter(())

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """Events for processes under DEAD, ranks and processes under INCOMPLETE, and ranks that have launched nothing."""
        rows: list[dict[str, Any]] = []

        def say(line: PlainLine, event: str, level: str, **words: str | None) -> None:
            rows.append(
                _event((artefact.sha256, line.number, line.byte_offset), event, level, line.text.strip(), words)
            )

        heading, comm = "", None
        for line in lines:
            text = line.text.strip()
            if text in ("DEAD", "INCOMPLETE"):
                heading, comm = text, None
            elif text.startswith("The missing process"):
                heading, comm = "INCOMPLETE", None
            elif (found := _COMM.match(text)) is not None:
                comm, heading = found[3], found[4]
            elif _ENDS.match(text):
                heading, comm = "", None
            elif (found := _IDLE_RANK.match(text)) is not None:
                say(line, "ras.rank_at", "warning", rank=found[1], operation="0")
            elif (found := _IDLE_RANKS.match(text)) is not None:
                say(line, "ras.ranks_at", "warning", ranks=found[1], operation="0")
            elif heading == "DEAD" and (found := _PROCESS.match(text)) is not None:
                say(line, "ras.peer_dead", "error", pid=found[1], node=found[2], gpus=found[3])
            elif heading == "INCOMPLETE" and (found := _PROCESS.match(text)) is not None:
                say(line, "ras.peer_missing", "warning", pid=found[1], node=found[2], gpus=found[3])
            elif heading == "INCOMPLETE" and comm and (found := _RANK.match(text)) is not None:
                say(line, "ras.rank_missing", "warning", rank=found[1], pid=found[3], node=found[4], comm=comm)
        if rows:
            yield rows_of("events", rows)


READER = RasReader()

_STATUS_HEAD = re.compile(rb'\s*\{\s*"nccl_version"\s*:\s*"[^"]*"\s*,\s*"cuda_runtime_version"\s*:')
_EVENT_HEAD = re.compile(rb'\s*\{\s*"timestamp"\s*:\s*"[^"]*"\s*,\s*"group"\s*:\s*"[A-Z]+"\s*,\s*"event"\s*:\s*"PEER_')
_TOKEN = re.compile(
    r'"hash"\s*:\s*"(?P<hash>[0-9a-fxA-F]{1,20})"|"size"\s*:\s*(?P<size>\d{1,9})|(?P<missing>"missing_ranks"\s*:\s*\[)'
    r'|(?P<rank>\{\s*"rank"\s*:)|(?P<ranks>"ranks"\s*:\s*\[)|"timeouts_count"\s*:\s*(?P<timeouts>\d{1,9})'
    r'|"nccl_version"\s*:\s*"(?P<version>[^"]{0,40})"'
)
_OBJECT = re.compile(r'\{\s*"timestamp"\s*:')


class RasJsonReader:
    """JSON of ncclras: a status, or monitored events one after the other."""

    name = "ncclras-json"

    def sniff(self, head: bytes) -> bool:
        """By the first keys, which RAS writes in a fixed order."""
        return _STATUS_HEAD.match(head) is not None or _EVENT_HEAD.match(head) is not None

    def read(self, artefact: Artefact) -> Iterator[Item]:
        """Events `ras.*` and rows of `collective_progress`, how many calls of each kind a rank has launched."""
        if artefact.size_bytes > LARGEST_FILE_BYTES:
            detail = f"larger than {LARGEST_FILE_BYTES // 2**20} MiB and not read; ask for one status at a time"
            yield Loss("too-large", artefact.path, None, detail)
            return
        text = b"".join(artefact.chunks()).decode("latin-1")
        document = _Document(artefact, text, Losses(artefact.path))
        if _STATUS_HEAD.match(text[:4096].encode("latin-1")):
            _status(document)
        else:
            _monitored(document)
        if document.events:
            yield rows_of("events", document.events)
        if document.progress:
            yield rows_of("collective_progress", document.progress)
        yield from document.losses


JSON_READER = RasJsonReader()


@dataclass(slots=True)
class _Document:
    artefact: Artefact
    text: str
    """One character a byte."""
    losses: Losses
    events: list[dict[str, Any]] = field(default_factory=list)
    progress: list[dict[str, Any]] = field(default_factory=list)
    line: int = 1
    counted_to: int = 0

    def where(self, position: int) -> tuple[str, int, int]:
        """(artefact, line, byte offset of the place); positions must not go back."""
        if position > self.counted_to:
            self.line += self.text.count("\n", self.counted_to, position)
            self.counted_to = position
        return self.artefact.sha256, self.line, position

    def lose(self, kind: str, position: int, detail: str) -> None:
        """Counts one loss."""
        self.losses.add(kind, self.where(position)[1], detail)

    def object_at(self, position: int) -> tuple[dict[str, Any] | None, int]:
        """The object there and where it ends; None if it is damaged, and that is noted."""
        try:
            value, end = _DECODER.raw_decode(self.text, position)
        except (ValueError, RecursionError):
            whole = self.text.rstrip().endswith("}")
            if whole:
                self.lose("damaged-row", position, "an object is no JSON and was left out; the rest was read")
            else:
                self.lose("truncated-file", position, "the file ends in the middle; what stands before it was read")
            return None, position + 1
        return (value if isinstance(value, dict) else None), end

    def say(self, place: tuple[str, int, int], event: str, level: str, words: Mapping[str, str | None]) -> None:
        """One event."""
        text = " ".join(f"{name} {value}" for name, value in words.items() if value is not None)
        self.events.append(_event(place, event, level, text, words))


@dataclass(slots=True)
class _Comm:
    """A communicator of a status while its ranks are read."""

    comm: str
    place: tuple[str, int, int]
    size: int | None = None
    missing: int = 0
    counts: dict[str, set[int]] = field(default_factory=dict)


def _status(document: _Document) -> None:
    comm: _Comm | None = None
    among_missing = False
    position = 0
    while (token := _TOKEN.search(document.text, position)) is not None:
        position = token.end()
        place = document.where(token.start())
        if token["version"] is not None:
            document.say(place, "nccl.version", "info", {"version": token["version"]})
        elif token["hash"] is not None:
            _summary(document, comm)
            comm, among_missing = _Comm(token["hash"].removeprefix("0x"), place), False
        elif token["size"] is not None and comm is not None:
            comm.size = int(token["size"])
        elif token["missing"] is not None or token["ranks"] is not None:
            among_missing = token["missing"] is not None
        elif token["timeouts"] is not None and int(token["timeouts"]):
            document.say(place, "ras.timeout", "warning", {"count": token["timeouts"]})
        elif token["rank"] is not None:
            entry, position = document.object_at(token.start())
            if entry is None or comm is None:
                continue
            if among_missing:
                comm.missing += 1
                _missing(document, place, comm, entry)
            else:
                _present(document, place, comm, entry)
    _summary(document, comm)
    if not document.losses and not document.text.rstrip().endswith("}"):
        document.lose(
            "truncated-file", len(document.text), "the file ends in the middle; what stands before it was read"
        )


def _summary(document: _Document, comm: _Comm | None) -> None:
    """The state of a communicator in the words of the text output."""
    if comm is None:
        return
    differ = any(len(counts) > 1 for counts in comm.counts.values())
    errors = ",".join(word for word, met in (("INCOMPLETE", comm.missing), ("MISMATCH", differ)) if met) or "OK"
    words = {"comm": comm.comm, "errors": errors, "size": None if comm.size is None else str(comm.size)}
    document.say(comm.place, "ras.comm", "info", words)


def _who(comm: _Comm, entry: Mapping[str, Any]) -> dict[str, str | None]:
    return {
        "rank": _digits(entry.get("rank")),
        "comm": comm.comm,
        "node": _text(entry.get("host")),
        "pid": _digits(entry.get("pid")),
        "gpu": _digits(entry.get("cuda_dev")),
    }


def _missing(document: _Document, place: tuple[str, int, int], comm: _Comm, entry: Mapping[str, Any]) -> None:
    status = entry.get("status")
    dead = isinstance(status, dict) and status.get("considered_dead") is True
    event, level = ("ras.peer_dead", "error") if dead else ("ras.rank_missing", "warning")
    document.say(place, event, level, _who(comm, entry))


def _present(document: _Document, place: tuple[str, int, int], comm: _Comm, entry: Mapping[str, Any]) -> None:
    status = entry.get("status")
    for name in ("init_state", "async_error"):
        code = _integer(status.get(name)) if isinstance(status, dict) else None
        if code not in (None, 0, _IN_PROGRESS):
            document.say(place, "ras.rank_error", "warning", _who(comm, entry) | {"error": f"{name} {code}"})
    if isinstance(status, dict) and status.get("abort_flag") is True:
        document.say(place, "ras.rank_aborted", "warning", _who(comm, entry))
    counts = entry.get("collective_counts")
    sha256, line, offset = place
    for name, value in counts.items() if isinstance(counts, dict) else ():
        count = _integer(value)
        if count is None or count < 0:
            continue
        op = _OPS.get(name.replace("_", "").lower())
        comm.counts.setdefault(name, set()).add(count)
        document.progress.append(
            {
                "artefact": sha256,
                "line": line,
                "byte_offset": offset,
                "host": _text(entry.get("host")),
                "pid": _integer(entry.get("pid")),
                "device": _small(entry.get("cuda_dev")),
                "rank": _small(entry.get("rank")),
                "source": "ncclras",
                "process_group": comm.comm,
                "ranks": comm.size,
                "op": op or _text(name),
                "last_enqueued": count,
            }
        )


def _monitored(document: _Document) -> None:
    position = 0
    while (found := _OBJECT.search(document.text, position)) is not None:
        place = document.where(found.start())
        entry, position = document.object_at(found.start())
        if entry is None:
            continue
        name = _text(entry.get("event")) or ""
        if not name.startswith("PEER_"):
            continue
        event, level = _MONITORED.get(name, ("ras.monitored", "info"))
        peer = entry.get("peer")
        peer = peer if isinstance(peer, dict) else {}
        devices = peer.get("cuda_devs")
        words = {
            "what": name,
            "time": _text(entry.get("timestamp")),
            "node": _text(peer.get("host")) or _text(peer.get("addr")),
            "pid": _digits(peer.get("pid")),
            "gpus": ",".join(d for device in devices[:64] if (d := _digits(device)))
            if isinstance(devices, list)
            else None,
            "details": _text(entry.get("details")),
        }
        document.say(place, event, level, words)


def _event(
    place: tuple[str, int, int], event: str, level: str, text: str, words: Mapping[str, str | None]
) -> dict[str, Any]:
    sha256, line, offset = place
    return {
        "artefact": sha256,
        "line": line,
        "byte_offset": offset,
        "event": event,
        "level": level,
        "text": text,
        "fields": [(name, value) for name, value in words.items() if value is not None],
    }


def _text(value: Any) -> str | None:
    """Text read a byte a character, with its UTF-8 put together."""
    if not isinstance(value, str) or not value:
        return None
    try:
        return value.encode("latin-1").decode("utf-8", "replace")[:400]
    except UnicodeEncodeError:
        return value.encode("utf-8", "replace").decode("utf-8")[:400]


def _integer(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -_LARGEST < value < _LARGEST else None


def _small(value: Any) -> int | None:
    number = _integer(value)
    return number if number is not None and -_SMALL < number < _SMALL else None


def _digits(value: Any) -> str | None:
    number = _integer(value)
    return None if number is None else str(number)
