"""Exports of Nsight Systems: tables by NVIDIA's schema reference, payloads as an export of release 2026.2 has them; damage, hostile files."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.diagnosis.explain import explain
from busbw.errors import Loss
from busbw.observations import Artefact
from busbw.observations.store.keeping import keep_copy
from busbw.readers.nsight_systems import READER, TABLES, row_text

from .nsight_export import ALL_REDUCE, EPOCH_NS, INIT, Export, two_ranks
from .reading import FIXTURES, Found, columns, read_text

FIXTURE = FIXTURES / "nsight" / "two_ranks.sqlite"
WHOLE = FIXTURE.read_bytes()


def read(export: Export) -> Found:
    return read_text(READER, export.bytes())


def statements(text: bytes) -> list[str]:
    connection = sqlite3.connect(":memory:")
    connection.deserialize(text)
    return list(connection.iterdump())


def test_the_fixture_is_what_its_script_makes():
    assert statements(WHOLE) == statements(two_ranks().bytes())


def test_what_gpus_did_is_told_by_process_step_and_rank():
    """The kernel of step 1 on the second process begins 200 + 5 us after the session, and was launched 4 us before."""
    found = read_text(READER, WHOLE)
    rows = [row for row in found.spans if row["name"].startswith("void gemm")]
    begin = EPOCH_NS + 205_000
    wanted = ("node7", 101, 1, 1, "7", begin, begin + 23_000, begin - 4000, 1)
    assert (
        columns(rows, "host", "pid", "device", "rank", "lane", "begin_ns", "end_ns", "launched_ns", "step")[3] == wanted
    )
    assert {row["category"] for row in found.spans} == {"kernel", "memcpy", "memset", "annotation"}
    assert not found.losses


def test_calls_of_nccl_have_bytes_communicator_and_number():
    """size_bytes is the larger buffer: an all-gather of 4 KiB a rank between two ranks fills 8 KiB."""
    rows = [row for row in read_text(READER, WHOLE).collectives if row["rank"] == 1]
    group = "0x0000000000000abc"
    assert columns(rows, "op", "process_group", "ranks", "seq", "size_bytes", "is_p2p", "peer") == [
        ("all_reduce", group, 2, 1, 1 << 20, False, None), ("all_gather", group, 2, 2, 8192, False, None), ("all_reduce", group, 2, 3, 1 << 20, False, None),
        ("all_gather", group, 2, 4, 8192, False, None), ("send_recv", group, 2, None, 2048, True, 0),
    ]  # fmt: skip


def test_payloads_that_the_exporter_laid_out_as_tables_say_the_same():
    """nsys export --dynamic-tables=all: a table a schema, joined by eventId; names of fields are made identifiers."""
    made = two_ranks(blobs=False)
    made.connection.execute("UPDATE NVTX_EVENTS SET eventId = rowid")
    made.row("NVTX_EXPORT_TRANSLATION", originalName="Message size [bytes]", sanitizedName="Message_size__bytes_")
    made.connection.execute(
        "CREATE TABLE DYNAMIC_NVTXPAYLOAD_DATATYPE_1_1_16777218 (eventId INTEGER, NCCL_communicator_ID INTEGER, No__of_ranks INTEGER, Rank INTEGER, CUDA_device INTEGER)"
    )
    made.connection.execute(
        "CREATE TABLE DYNAMIC_NVTXPAYLOAD_DATATYPE_1_1_16777223 (eventId INTEGER, NCCL_communicator_ID INTEGER, Message_size__bytes_ INTEGER)"
    )
    named = "SELECT NVTX_EVENTS.rowid, value FROM NVTX_EVENTS JOIN StringIds ON id = textId"
    for event, name in made.connection.execute(named).fetchall():
        if name == "ncclCommInitRank":
            rank = int(event > 8)
            made.connection.execute(
                "INSERT INTO DYNAMIC_NVTXPAYLOAD_DATATYPE_1_1_16777218 VALUES (?, 2748, 2, ?, 0)", (event, rank)
            )
        elif name == "ncclAllReduce":
            made.connection.execute(
                "INSERT INTO DYNAMIC_NVTXPAYLOAD_DATATYPE_1_1_16777223 VALUES (?, 2748, 1048576)", (event,)
            )
    rows = [row for row in read(made).collectives if row["op"] == "all_reduce"]
    assert columns(rows, "rank", "process_group", "size_bytes", "seq") == [
        (rank, "0x0000000000000abc", 1 << 20, seq) for rank in (0, 1) for seq in (1, 2)
    ]


def test_without_payloads_the_export_that_has_them_is_named():
    found = read(two_ranks(blobs=False))
    assert len(found.collectives) == 10
    loss = next(loss for loss in found.losses if loss.kind == "collective-without-size")
    assert "10 of 10" in loss.detail and "--include-blobs=true" in loss.detail


def test_several_calls_of_a_group_in_one_kernel_add_up_and_two_kernels_share_them_in_order():
    """NCCL fuses calls between ncclGroupStart and ncclGroupEnd where it can."""
    made = Export()
    for at, kernels in ((1000, 1), (10_000, 2)):
        made.range("ncclGroupStart", at, at + 10)
        for call in range(2):
            made.range(
                "ncclAllReduce", at + 20 + 20 * call, at + 30 + 20 * call, schema=ALL_REDUCE, said=(5, 100 << call)
            )
        made.range("ncclGroupEnd", at + 100, at + 200)
        for number in range(kernels):
            made.kernel(
                "ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(x)",
                at + 300 + 100 * number,
                at + 390 + 100 * number,
                launched=at + 110 + 10 * number,
            )
    assert columns(read(made).collectives, "op", "size_bytes") == [
        ("all_reduce", 300),
        ("all_reduce", 100),
        ("all_reduce", 200),
    ]


def test_calls_are_numbered_only_in_communicators_whose_making_was_seen():
    made = Export()
    made.range("ncclAllReduce", 0, 10, schema=ALL_REDUCE, said=(5, 100))
    made.kernel("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(x)", 20, 30, launched=5)
    made.range("ncclCommInitRankConfig", 100, 110, schema=INIT, said=(6, 4, 3, 0))
    made.range("ncclAllReduce", 200, 210, schema=ALL_REDUCE, said=(6, 100))
    made.kernel("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(x)", 220, 230, launched=205)
    assert columns(read(made).collectives, "seq", "ranks", "rank") == [(None, None, 3), (1, 4, 3)]


def test_calls_of_older_communicators_are_matched_within_a_file_by_when_they_end():
    """Three GPUs, a capture that began behind ncclCommInitRank; one of them recorded the end of one call more. Nobody says how many ranks there are."""
    made = Export()
    for device in range(3):
        for call in range(4):
            if device != 1 and call == 0:
                continue
            at = 10_000 * call + 100
            made.range("ncclAllReduce", at, at + 10, pid=100 + device, schema=ALL_REDUCE, said=(5, 64))
            made.kernel(
                "ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(x)",
                at + 100 + 1000 * device,
                at + 5000 + 7 * device,
                pid=100 + device,
                device=device,
                launched=at + 5,
            )
    found = read(made).collectives
    assert sorted(columns(found, "pid", "seq", "ranks"), key=str) == [(100, n, None) for n in (2, 3, 4)] + [
        (101, n, None) for n in (1, 2, 3, 4)
    ] + [(102, n, None) for n in (2, 3, 4)]


def test_ranges_named_like_a_step_without_a_number_are_counted():
    made = Export()
    for at in (0, 1000, 2000):
        made.range("train_step", at, at + 900)
        made.range("aten::add, op_id = 7", at, at + 5)
        made.kernel("k", at + 10, at + 20, launched=at + 5)
    found = read(made)
    assert [row["step"] for row in found.spans if row["category"] == "kernel"] == [0, 1, 2]
    assert sum(row["category"] == "annotation" for row in found.spans) == 3


def test_counters_of_nics_have_names_ports_and_moments():
    rows = columns(read_text(READER, WHOLE).counters, "host", "device", "port", "name", "value", "time_ns")
    at = EPOCH_NS + 100_000
    assert rows == [
        ("node7", "mlx5_0", 1, "IB: Bytes sent", 1000.0, at),
        ("node7", "mlx5_0", 1, "IB: Bytes received", 1001.0, at),
    ]


def test_a_cuda_graph_traced_as_a_whole_is_computation_and_said():
    made = Export()
    made.row("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=5, end=9, graphId=1)
    found = read(made)
    assert columns(found.spans, "category", "name") == [("kernel", "CUDA graph")]
    assert "--cuda-graph-trace=node" in next(loss.detail for loss in found.losses if loss.kind == "graphs-as-a-whole")


@pytest.mark.parametrize(("without", "kind"), [
    (["CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"], "missing-table"), (["CUPTI_ACTIVITY_KIND_RUNTIME"], "missing-table"),
    (["TARGET_INFO_NETWORK_METRICS"], "missing-table"), (list(TABLES), "no-trace"),
])  # fmt: skip
def test_a_table_that_is_not_there_is_named(without: list[str], kind: str):
    found = read(two_ranks(*without))
    loss = next(loss for loss in found.losses if loss.kind == kind)
    assert kind == "no-trace" or without[0] in loss.detail


@pytest.mark.parametrize(
    "table",
    [
        "StringIds",
        "NVTX_EVENTS",
        "NVTX_PAYLOAD_SCHEMA_ENTRIES",
        "TARGET_INFO_SESSION_START_TIME",
        "TARGET_INFO_SYSTEM_ENV",
        "META_DATA_EXPORT",
    ],
)
def test_any_other_table_may_be_absent(table: str):
    assert sum(row["category"] == "kernel" for row in read(two_ranks(table)).spans) == 14


def test_a_row_without_times_costs_itself():
    made = two_ranks()
    made.connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon' WHERE rowid = 1")
    made.connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 1 WHERE rowid = 2")
    found = read(made)
    assert sum(row["category"] == "kernel" for row in found.spans) == 12
    assert found.loss_counts["damaged-row"] == 2


HOSTILE = {
    "a view that never ends": "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start, i AS end, 0 AS deviceId, 0 AS streamId FROM n",
    "a column that computes": "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER AS (length(zeroblob(900000000))), deviceId INTEGER, streamId INTEGER)",
    "a virtual table": "CREATE VIRTUAL TABLE CUPTI_ACTIVITY_KIND_KERNEL USING fts5(start, deviceId)",
}


@pytest.mark.parametrize("statement", HOSTILE.values(), ids=HOSTILE)
def test_nothing_that_a_file_would_compute_is_computed(statement: str):
    made = Export("CUPTI_ACTIVITY_KIND_KERNEL")
    made.range("mine", 0, 5)
    made.connection.execute(statement)
    found = read(made)
    assert columns(found.spans, "name") == [("mine",)]
    assert found.losses


def test_the_environment_in_the_file_is_not_read():
    assert b"not-to-be-read" in WHOLE
    assert "not-to-be-read" not in repr(read_text(READER, WHOLE).tables)


@pytest.mark.parametrize("size", [16, 100, 600, len(WHOLE) // 2])
def test_a_file_that_was_cut_keeps_what_can_be_read(size: int):
    assert read_text(READER, WHOLE[:size]).losses


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_no_damage_makes_the_reader_fail(data: st.DataObject):
    text = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(text) - 1))
        piece = data.draw(st.binary(min_size=1, max_size=6))
        text[at : at + len(piece)] = piece
    read_text(READER, bytes(text))


def test_a_store_keeps_no_copy_of_a_database_whose_secrets_it_cannot_blank(tmp_path: Path):
    copy = tmp_path / "copy"
    loss = keep_copy(Artefact.of(FIXTURE, "two_ranks.sqlite"), copy, tmp_path, lambda: None)
    assert loss is not None and loss.kind == "database-not-kept"
    assert not copy.exists()


def test_a_row_is_shown_as_evidence_by_its_rowid(tmp_path: Path):
    assert (
        row_text(FIXTURE, 1, 0)
        == "CUPTI_ACTIVITY_KIND_KERNEL rowid=1 start=105000 end=125000 deviceId=0 streamId=7 correlationId=1 void gemm<float>(float*)"
    )
    assert row_text(FIXTURE, 999, 0) == row_text(FIXTURE, 1, 99) == row_text(tmp_path / "none", 1, 0) == ""


def explained(export: Export, tmp_path: Path) -> list[dict[str, Any]]:
    file = tmp_path / "trace.sqlite"
    file.write_bytes(export.bytes())
    found = explain([Artefact.of(file, "trace.sqlite")]).diagnosis.findings
    return [{"kind": finding.kind, "summary": finding.summary, "text": finding.evidence[0].text} for finding in found]


def test_the_rules_about_steps_read_exports_too(tmp_path: Path):
    """Four GPUs of four processes; the third computes 30 ms where the others take 20, in each of eight steps, and the others wait in the all-reduce."""
    made = Export()
    for rank in range(4):
        pid = 200 + rank
        made.range("ncclCommInitRank", 0, 900, pid=pid, schema=INIT, said=(0xABC, 4, rank, rank))
        for step in range(8):
            at = 50_000_000 * (step + 1)
            took = 30_000_000 if rank == 2 else 20_000_000
            made.range(f"iteration {step}", at, at + 45_000_000, pid=pid)
            made.kernel("gemm", at + 1000, at + 1000 + took, pid=pid, device=rank, launched=at)
            made.range("ncclAllReduce", at + 2000, at + 4000, pid=pid, schema=ALL_REDUCE, said=(0xABC, 1 << 20))
            made.kernel(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
                at + 1000 + took,
                at + 32_000_000,
                pid=pid,
                device=rank,
                stream=20,
                launched=at + 3000,
            )
    found = explained(made, tmp_path)
    slow = next(finding for finding in found if finding["kind"] == "slow-node")
    assert "rank 2 (node7)" in slow["summary"]
    assert slow["text"].startswith("CUPTI_ACTIVITY_KIND_KERNEL rowid=")


def test_who_comes_last_is_told_without_ranks_by_gpu_and_process(tmp_path: Path):
    """Four GPUs, twelve calls; GPU 2 comes 4 ms after the others in each, and the trace did not see the communicator made."""
    made = Export()
    for device in range(4):
        for call in range(12):
            at, late = 10_000_000 * call + 100, 4_000_000 * (device == 2)
            made.range("ncclAllReduce", at, at + 10, pid=100 + device, schema=ALL_REDUCE, said=(5, 1 << 20))
            made.kernel(
                "ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(x)",
                at + 1000 + late,
                at + 5_000_000,
                pid=100 + device,
                device=device,
                launched=at + 5,
            )
    slow = next(finding for finding in explained(made, tmp_path) if finding["kind"] == "slow-node")
    assert "GPU 2 of process 102 (node7) spends the shortest time in 12 of 12 collectives" in slow["summary"]


def test_a_log_beside_the_database_is_told(tmp_path):
    """A database in SQLite's WAL mode that a program still writes, or that was copied without it closing: rows are in the -wal file, which is not read."""
    file = tmp_path / "live.sqlite"
    with closing(sqlite3.connect(file)) as writer:
        writer.execute("PRAGMA journal_mode=wal")
        writer.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER)"
        )
        writer.commit()
        losses = {loss.kind: loss for loss in READER.read(Artefact.of(file, file.name)) if isinstance(loss, Loss)}
    assert "live.sqlite-wal" in losses["unfinished-file"].detail


def test_a_database_with_annotations_alone_says_that_kernels_are_missing():
    """Without kernels it does not matter when they were launched."""
    made = Export("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUPTI_ACTIVITY_KIND_RUNTIME")
    (loss,) = (loss for loss in read(made).losses if loss.kind == "missing-table")
    assert "CUPTI_ACTIVITY_KIND_KERNEL" in loss.detail and loss.count == 1


def test_a_group_whose_begin_was_not_recorded_takes_no_calls_of_others():
    """A call of its own, then the end of a group that began before the trace did, or whose begin the profiler left out."""
    made = Export()
    made.range("ncclAllReduce", 0, 10, schema=ALL_REDUCE, said=(5, 100))
    made.kernel("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(x)", 20, 30, launched=5)
    made.range("ncclGroupEnd", 100, 200)
    made.kernel("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(x)", 220, 230, launched=150)
    assert columns(read(made).collectives, "size_bytes") == [(100,), (None,)]


def test_groups_within_groups_end_with_the_outermost():
    """What two inner groups call is launched when the outer one ends."""
    made = Export()
    made.range("ncclGroupStart", 0, 5)
    for call in range(2):
        at = 10 + 100 * call
        made.range("ncclGroupStart", at, at + 5)
        made.range("ncclAllReduce", at + 10, at + 20, schema=ALL_REDUCE, said=(5, 100 << call))
        made.range("ncclGroupEnd", at + 30, at + 35)
    made.range("ncclGroupEnd", 300, 400)
    made.kernel("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(x)", 420, 430, launched=350)
    assert columns(read(made).collectives, "size_bytes") == [(300,)]
