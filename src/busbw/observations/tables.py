"""The tables: what an observation may say. Arrow schemas with the unit in the column name; NULL is unknown, never 0.

Every row keeps where it came from: `artefact` (SHA-256 of the file), `line` (from 1) and `byte_offset` of that line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

__all__ = ["SCHEMAS", "SCHEMA_VERSION", "Rows", "rows_of"]

SCHEMA_VERSION = 2
"""Raised when columns change; a store names the version it was written with. Columns that an earlier version had not are NULL in its rows.

1: until 0.1. 2: tables samples, cells and spans; measurements has backend, algorithm and p50_ns.
"""

_WHERE: list[tuple[str, pa.DataType]] = [("artefact", pa.string()), ("line", pa.int64()), ("byte_offset", pa.int64())]
_PROCESS: list[tuple[str, pa.DataType]] = [
    ("host", pa.string()),
    ("pid", pa.int64()),
    ("device", pa.int32()),
    ("rank", pa.int32()),
]
_CELL: list[tuple[str, pa.DataType]] = [
    ("cell", pa.int64()),
    ("collective", pa.string()),
    ("size_bytes", pa.int64()),
    ("dtype", pa.string()),
    ("redop", pa.string()),
    ("ranks", pa.int32()),
    ("nodes", pa.int32()),
    ("in_place", pa.bool_()),
    ("backend", pa.string()),
    ("algorithm", pa.string()),
    ("variant", pa.string()),
]
_WORDS = pa.map_(pa.string(), pa.string())

SCHEMAS: dict[str, pa.Schema] = {
    # One message of a log. `event` names what it means, `fields` holds what it says; NULL: a warning nobody knows.
    "events": pa.schema([
        *_WHERE, ("event", pa.string()), ("level", pa.string()), ("time_ns", pa.int64()), *_PROCESS, ("tid", pa.int64()),
        ("location", pa.string()), ("function", pa.string()), ("text", pa.string()), ("fields", _WORDS),
    ]),
    # One row of a benchmark's table, one of its halves. size_bytes: the larger of a rank's send and receive buffers.
    "measurements": pa.schema([
        *_WHERE, ("tool", pa.string()), ("tool_version", pa.string()), ("table_index", pa.int32()), ("collective", pa.string()),
        ("size_bytes", pa.int64()), ("count", pa.int64()), ("dtype", pa.string()), ("redop", pa.string()), ("root", pa.int32()),
        ("ranks", pa.int32()), ("nodes", pa.int32()), ("in_place", pa.bool_()), ("time_ns", pa.int64()), ("time_is_cpu", pa.bool_()),
        ("algbw_bytes_per_s", pa.float64()), ("busbw_bytes_per_s", pa.float64()), ("wrong", pa.float64()),
        ("iterations", pa.int64()), ("min_ns", pa.int64()), ("max_ns", pa.int64()), ("p99_ns", pa.int64()), ("cv_pct", pa.float64()),
        ("backend", pa.string()), ("algorithm", pa.string()), ("p50_ns", pa.int64()),
    ]),
    # One timed call of a collective on one rank, or the mean of `calls` calls timed together. cell: equal where all of collective ... variant
    # are (`MeasuredCell`). variant: what else was chosen, such as cuda_graph. iteration: counts from 0 within cell and rank. peer: of point to
    # point. start_ns: since the epoch, by the rank's clock. arrival_ns: how long after the first rank of this iteration this one came.
    "samples": pa.schema([*_WHERE, ("run_id", pa.string()), *_CELL, ("host", pa.string()), ("rank", pa.int32()), ("peer", pa.int32()),
                          ("iteration", pa.int64()), ("calls", pa.int32()), ("time_ns", pa.int64()), ("start_ns", pa.int64()),
                          ("arrival_ns", pa.int64())]),
    # A cell of samples that a run holds, and how many.
    "cells": pa.schema([("run_id", pa.string()), *_CELL, ("samples", pa.int64())]),
    # One cell of a matrix or list of pairs: a figure between two named ends.
    "pairs": pa.schema([
        *_WHERE, ("tool", pa.string()), ("quantity", pa.string()), ("src", pa.string()), ("dst", pa.string()), ("value", pa.float64()),
        ("unit", pa.string()),
    ]),
    # One connection that NCCL opened on one channel.
    "links": pa.schema([
        *_WHERE, *_PROCESS, ("channel", pa.int32()), ("src_rank", pa.int32()), ("dst_rank", pa.int32()), ("direction", pa.string()),
        ("transport", pa.string()), ("via", pa.string()),
    ]),
    # One API call as NCCL logged it (COLL, CALL).
    "calls": pa.schema([
        *_WHERE, *_PROCESS, ("collective", pa.string()), ("comm", pa.string()), ("op_count", pa.int64()), ("count", pa.int64()),
        ("dtype", pa.string()), ("redop", pa.string()), ("root", pa.int32()), ("ranks", pa.int32()),
    ]),
    # What NCCL chose for one call (TUNING). size_bytes as everywhere, also where the log prints the share of a rank.
    "choices": pa.schema([
        *_WHERE, *_PROCESS, ("collective", pa.string()), ("printed_bytes", pa.int64()), ("algorithm", pa.string()),
        ("protocol", pa.string()), ("channel_low", pa.int32()), ("channel_high", pa.int32()), ("time_ns", pa.int64()),
    ]),
    # A variable that is set. origin: environment, configuration file, command line, benchmark report.
    "settings": pa.schema([*_WHERE, *_PROCESS, ("name", pa.string()), ("value", pa.string()), ("origin", pa.string())]),
    # A device as a tool named it.
    "devices": pa.schema([
        *_WHERE, *_PROCESS, ("kind", pa.string()), ("bus_id", pa.string()), ("name", pa.string()), ("attributes", _WORDS),
    ]),
    # A counter or gauge at one moment. time_ns: since the epoch, where the tool prints it. labels: what else tells this series from others.
    "counters": pa.schema([*_WHERE, ("host", pa.string()), ("device", pa.string()), ("port", pa.int32()), ("name", pa.string()),
                           ("value", pa.float64()), ("time_ns", pa.int64()), ("labels", _WORDS)]),
    # A port of a NIC or of a switch (ibstat, ibv_devinfo, iblinkinfo, ibnetdiscover, ethtool). rate: data of all lanes, one direction, line
    # code taken off (4X QDR: 32 Gb/s; hardware/link_speeds.py); NULL where the port is down. possible_*: what both ends could do. peer: name
    # of the node at the other end of the cable, as its own row has it in device. node_kind: ca, switch, router, netdev. state: active, down,
    # init, armed; physical_state: link_up, polling, disabled, training ... A tool may know only some columns.
    "ports": pa.schema([*_WHERE, ("host", pa.string()), ("device", pa.string()), ("node_kind", pa.string()), ("port", pa.int32()),
                        ("guid", pa.string()), ("lid", pa.int32()), ("link_layer", pa.string()), ("state", pa.string()),
                        ("physical_state", pa.string()), ("width", pa.int32()), ("rate_bytes_per_s", pa.float64()),
                        ("possible_width", pa.int32()), ("possible_rate_bytes_per_s", pa.float64()), ("mtu_bytes", pa.int32()),
                        ("peer", pa.string()), ("peer_port", pa.int32())]),
    # What connects two devices of a node (nvidia-smi topo -m, NCCL's topology).
    "paths": pa.schema([*_WHERE, ("host", pa.string()), ("src", pa.string()), ("dst", pa.string()), ("path", pa.string())]),
    # One collective as one rank saw it (PyTorch's Flight Recorder, NCCL's Inspector). `seq` counts within the process group or communicator:
    # at equal (process_group, seq) all ranks must do the same. rank: in the job for the Flight Recorder, in the communicator for NCCL's
    # tools; `members`: ranks of the job in the group. state: scheduled, started, completed. size_bytes as everywhere.
    "collectives": pa.schema([
        *_WHERE, *_PROCESS, ("source", pa.string()), ("process_group", pa.string()), ("group_desc", pa.string()), ("ranks", pa.int32()),
        ("members", pa.list_(pa.int32())), ("seq", pa.int64()), ("op", pa.string()), ("profiling_name", pa.string()), ("is_p2p", pa.bool_()),
        ("peer", pa.int32()), ("size_bytes", pa.int64()), ("input_numel", pa.int64()), ("output_numel", pa.int64()), ("dtype", pa.string()),
        ("state", pa.string()), ("retired", pa.bool_()), ("created_ns", pa.int64()), ("started_ns", pa.int64()),
        ("completed_ns", pa.int64()), ("duration_ns", pa.int64()), ("timeout_ns", pa.int64()),
    ]),
    # How far a rank is in a process group or communicator: sequence numbers of the Flight Recorder, or calls counted by NCCL's RAS.
    # op: NULL where all operations count together.
    "collective_progress": pa.schema([
        *_WHERE, *_PROCESS, ("source", pa.string()), ("process_group", pa.string()), ("group_desc", pa.string()), ("ranks", pa.int32()),
        ("op", pa.string()), ("last_enqueued", pa.int64()), ("last_started", pa.int64()), ("last_completed", pa.int64()),
    ]),
    # What a lane (a stream of a GPU, a thread, a block of a kernel) did from one moment to another, since the epoch where the tool knows it
    # (source busbw: by the machine's steady clock; busbw run: since the epoch, on rank 0's).
    # category: kernel, memcpy, memset, annotation, primitive. launched_ns: when the host called for it. step: of the training, as the profiler
    # counts. A collective is a row of `collectives` too.
    "spans": pa.schema([
        *_WHERE, *_PROCESS, ("source", pa.string()), ("category", pa.string()), ("lane", pa.string()), ("name", pa.string()),
        ("begin_ns", pa.int64()), ("end_ns", pa.int64()), ("launched_ns", pa.int64()), ("step", pa.int64()),
    ]),
    # A step of training as the program that trains logs it: Megatron-LM, DeepSpeed, torchtitan. time_ns: of one step, where it is printed, an
    # average since the line before. samples: sequences. memory_bytes: the most that was allocated on the GPU that logs.
    "steps": pa.schema([
        *_WHERE, ("host", pa.string()), ("rank", pa.int32()), ("tool", pa.string()), ("step", pa.int64()), ("steps", pa.int64()),
        ("time_ns", pa.int64()), ("global_batch", pa.int64()), ("samples_per_s", pa.float64()), ("tokens_per_s_per_gpu", pa.float64()),
        ("flops_per_s_per_gpu", pa.float64()), ("mfu", pa.float64()), ("memory_bytes", pa.int64()), ("loss", pa.float64()),
    ]),
    # A kernel as a profiler of kernels measured it alone (Nsight Compute). Shares are of what the GPU could sustain while it ran: of its SMs, of memory
    # with caches, of DRAM, of tensor cores; occupancy: of its warps. flops: operations that it did, where they were counted.
    "kernels": pa.schema([
        *_WHERE, ("host", pa.string()), ("pid", pa.int64()), ("device", pa.int32()), ("tool", pa.string()), ("kernel", pa.int64()), ("name", pa.string()),
        ("lane", pa.string()), ("grid", pa.string()), ("block", pa.string()), ("compute_capability", pa.string()), ("time_ns", pa.int64()),
        ("sm_share", pa.float64()), ("memory_share", pa.float64()), ("dram_share", pa.float64()), ("tensor_share", pa.float64()), ("occupancy", pa.float64()),
        ("dram_bytes", pa.int64()), ("dram_bytes_per_s", pa.float64()), ("flops", pa.float64()), ("sm_hz", pa.float64()),
    ]),
    # What could not be read.
    "losses": pa.schema([("artefact", pa.string()), ("path", pa.string()), ("line", pa.int64()), ("kind", pa.string()),
                         ("detail", pa.string()), ("count", pa.int64())]),
    # What was read.
    "artefacts": pa.schema([("artefact", pa.string()), ("path", pa.string()), ("size_bytes", pa.int64()),
                            ("formats", pa.list_(pa.string()))]),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table, in its schema."""

    table: str
    batch: pa.RecordBatch


def rows_of(table: str, rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Rows from dictionaries; a missing key is NULL, and so is an integer that its column cannot hold: it was damage.

    Raises KeyError for a key that the table does not have.
    """
    schema = SCHEMAS[table]
    listed = list(rows)
    known = set(schema.names)
    for row in listed:
        if not known.issuperset(row):
            raise KeyError(f"table {table} has no column {sorted(set(row) - known)}")
    columns = [
        pa.array(_fitting([row.get(field.name) for row in listed], field.type), type=field.type) for field in schema
    ]
    return Rows(table, pa.RecordBatch.from_arrays(columns, schema=schema))


def _fitting(values: list[Any], dtype: pa.DataType) -> list[Any]:
    if not pa.types.is_integer(dtype):
        return values
    limit = 1 << (dtype.bit_width - 1)
    return [v if v is None or -limit <= v < limit else None for v in values]
