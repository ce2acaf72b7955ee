"""What NCCL's Inspector plugin writes: one JSON object a line, one finished collective or message of one rank.

The time is that of the kernel on this rank, which waits for the last one to come: the late rank has the shortest.
`coll_msg_size_bytes` is one rank's share; size_bytes here is the larger buffer, so times n for all_gather and
reduce_scatter, as the plugin's own algbw counts. Source: NVIDIA/nccl plugins/profiler/inspector (inspector_json.cc,
inspectorComputeOpBw in inspector.cc), output format v4.0 to v4.2.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from busbw.errors import Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item
from busbw.readers.json_values import integer, small_integer
from busbw.units import GB

__all__ = ["READER"]

_TOOL = "nccl-inspector"
_OPS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "allgatherv": "all_gather", "reducescatter": "reduce_scatter",
    "broadcast": "broadcast", "reduce": "reduce", "all2all": "all_to_all", "alltoall": "all_to_all", "gather": "gather",
    "scatter": "scatter", "sendrecv": "send_recv", "send": "send", "recv": "recv",
}  # fmt: skip
_TIMES_RANKS = frozenset({"all_gather", "reduce_scatter"})
_HEAD = re.compile(rb'\s*\{\s*"(?:header|metadata|coll_perf|p2p_perf|dump_stats)"\s*:\s*\{')
_MARK = b'"inspector_output_format_version"'
LONGEST_LINE = 4 * 2**20
"""A verbose line has some 100 bytes a channel."""
BATCH_ROWS = 20_000
_LARGEST = 2**62
_SMALL = 2**31


class InspectorReader:
    """Lines of NCCL's Inspector."""

    name = "nccl-inspector"

    def sniff(self, head: bytes) -> bool:
        """By the first key of a line and the name of the format's version; the first line may be damaged."""
        lines = head.split(b"\n", 8)[:8]
        return any(_HEAD.match(line) is not None for line in lines) and _MARK in head

    def read(self, artefact: Artefact) -> Iterator[Item]:
        """`measurements`, and the same as rows of `collectives` that say which rank and which call."""
        losses = Losses(artefact.path)
        tables: dict[tuple[Any, ...], int] = {}
        measured: list[dict[str, Any]] = []
        seen: list[dict[str, Any]] = []
        for number, offset, raw in _lines(artefact):
            kind, record = _record(raw)
            if record is None:
                if kind is not None:
                    losses.add(kind, number, _DETAILS[kind])
                continue
            where = {"artefact": artefact.sha256, "line": number, "byte_offset": offset}
            measurement, collective = _rows(record, tables)
            measured.append(where | measurement)
            seen.append(where | collective)
            if len(seen) >= BATCH_ROWS:
                yield rows_of("measurements", measured)
                yield rows_of("collectives", seen)
                measured, seen = [], []
        if seen:
            yield rows_of("measurements", measured)
            yield rows_of("collectives", seen)
        yield from losses


READER = InspectorReader()

_DETAILS = {
    "truncated-file": "the last line is cut, as when the job was killed; what stands before it was read",
    "damaged-row": "a line is no JSON object of the Inspector and was left out",
    "long-line": f"a line longer than {LONGEST_LINE // 2**20} MiB was left out",
}


def _lines(artefact: Artefact) -> Iterator[tuple[int, int, bytes]]:
    """(number, byte offset, bytes) of every line, of a longer one its beginning."""
    with artefact.file.open("rb") as stream:
        number, offset = 1, 0
        while raw := stream.readline(LONGEST_LINE):
            length = len(raw)
            ended = raw.endswith(b"\n")
            while not ended and (rest := stream.readline(LONGEST_LINE)):
                length += len(rest)
                ended = rest.endswith(b"\n")
            yield number, offset, raw
            number, offset = number + 1, offset + length


def _record(raw: bytes) -> tuple[str | None, Mapping[str, Any] | None]:
    """(kind of loss, record); neither for a blank line and for the plugin's own statistics."""
    if not raw.strip():
        return None, None
    if len(raw) >= LONGEST_LINE:
        return "long-line", None
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):
        return ("damaged-row" if raw.endswith(b"\n") else "truncated-file"), None
    if not isinstance(record, dict):
        return "damaged-row", None
    if isinstance(record.get("coll_perf"), dict) or isinstance(record.get("p2p_perf"), dict):
        return None, record
    return (None if "dump_stats" in record else "damaged-row"), None


def _rows(record: Mapping[str, Any], tables: dict[tuple[Any, ...], int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns of `measurements` and of `collectives`."""
    is_p2p = not isinstance(record.get("coll_perf"), dict)
    prefix = "p2p" if is_p2p else "coll"
    perf: Mapping[str, Any] = record["p2p_perf"] if is_p2p else record["coll_perf"]
    header = record.get("header")
    header = header if isinstance(header, dict) else {}
    metadata = record.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name = _text(perf.get(prefix))
    op = _OPS.get((name or "").replace("_", "").lower())
    ranks, rank = small_integer(header.get("n_ranks")), small_integer(header.get("rank"))
    comm, comm_name = _text(header.get("id")), _text(header.get("comm_name"))
    share = integer(perf.get(f"{prefix}_msg_size_bytes"))
    size = share * ranks if share is not None and op in _TIMES_RANKS and ranks is not None else share
    if op in _TIMES_RANKS and ranks is None:
        size = None
    time_us = integer(perf.get(f"{prefix}_exec_time_us"))
    time_ns = time_us * 1000 if time_us is not None and 0 < time_us < _LARGEST // 1000 else None
    source = _text(perf.get(f"{prefix}_timing_source"))
    version = _text(metadata.get("inspector_output_format_version"))
    measurement = {
        "tool": _TOOL,
        "tool_version": version,
        "table_index": tables.setdefault((comm, rank, op), len(tables)),
        "collective": op,
        "size_bytes": size,
        "ranks": ranks,
        "nodes": small_integer(header.get("nnodes")),
        "time_ns": time_ns,
        "time_is_cpu": source.endswith("_cpu") if source else None,
        "algbw_bytes_per_s": _rate(perf.get(f"{prefix}_algobw_gbs")),
        "busbw_bytes_per_s": _rate(perf.get(f"{prefix}_busbw_gbs")),
        "iterations": 1,
    }
    trace = perf.get("event_trace_ts")
    trace = trace if isinstance(trace, dict) else {}
    collective = {
        "host": _text(metadata.get("hostname")),
        "pid": integer(metadata.get("pid")),
        "rank": rank,
        "source": _TOOL,
        "process_group": comm,
        "group_desc": None if comm_name == "unknown" else comm_name,
        "ranks": ranks,
        "seq": integer(perf.get(f"{prefix}_sn")),
        "op": op,
        "profiling_name": name,
        "is_p2p": is_p2p,
        "peer": small_integer(perf.get("p2p_peer")),
        "size_bytes": size,
        "state": "completed",
        "started_ns": _microseconds(trace.get(f"{prefix}_start_ts")),
        "completed_ns": _microseconds(trace.get(f"{prefix}_stop_ts")),
        "duration_ns": time_ns,
    }
    return measurement, collective


def _text(value: Any) -> str | None:
    return value.encode("utf-8", "replace").decode("utf-8")[:200] if isinstance(value, str) and value else None


def _microseconds(value: Any) -> int | None:
    """Microseconds since 1970 (inspectorGetTime) as nanoseconds; 0 is unknown."""
    number = integer(value)
    return number * 1000 if number is not None and 0 < number < _LARGEST // 1000 else None


def _rate(value: Any) -> float | None:
    """GB/s as bytes per second; 0 is what the plugin writes for an operation or a time it does not know."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value) * GB
    except OverflowError:
        return None
    return number if math.isfinite(number) and number > 0 else None
