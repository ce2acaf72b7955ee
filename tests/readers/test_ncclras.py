"""ncclras: texts and JSON as NVIDIA/nccl 2.30 src/ras/client_support.cc prints them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.readers.ncclras import JSON_READER, READER

from .reading import DATA, columns, read_text

STATUS = (DATA / "ncclras-status.json").read_bytes()
TEXT = """\
NCCL version 2.28.7 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.010s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32     ABORT  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 4250 on node 10.0.0.4 managing GPU 1

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 4242 on node 10.0.0.3 managing GPU 0

#0-0 (7c41d2e8a03b55f1) INCOMPLETE
  Missing communicator data from 2 ranks
  Rank 16 -- GPU 0 managed by process 4242 on node 10.0.0.3
  Rank 25 -- [process information not found]

#0-0 (7c41d2e8a03b55f1) ERROR
  Asynchronous error on 1 rank
  Rank 3 reported ncclSystemError -- GPU 3 managed by process 4245 on node 10.0.0.1

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (7c41d2e8a03b55f1) MISMATCH
  Communicator ranks have different AllReduce operation counts
  28 ranks have launched up to operation 17
  2 ranks have not launched any operations
  Rank 4 has not launched any operations -- GPU 4 managed by process 81 on node 10.0.0.1
"""


def test_a_process_under_dead_is_dead_and_one_under_incomplete_is_missing():
    found = read_text(READER, TEXT)
    assert found.events_named("ras.peer_dead") == [{"pid": "4242", "node": "10.0.0.3", "gpus": "0"}]
    assert found.events_named("ras.peer_missing") == [{"pid": "4250", "node": "10.0.0.4", "gpus": "1"}]
    assert found.events_named("ras.dead") == [{"count": "1"}]
    assert found.events_named("ras.incomplete") == [
        {"count": "1", "what": "job process"},
        {"count": "2", "what": "ranks"},
    ]


def test_ranks_of_a_communicator_that_are_missing():
    found = read_text(READER, TEXT)
    assert found.events_named("ras.rank_missing") == [
        {"rank": "16", "pid": "4242", "node": "10.0.0.3", "comm": "7c41d2e8a03b55f1"},
        {"rank": "25", "comm": "7c41d2e8a03b55f1"},
    ]


def test_ranks_are_at_their_last_operation_and_those_without_any_at_0():
    found = read_text(READER, TEXT)
    assert found.events_named("ras.rank_at") == [{"rank": "4", "operation": "0"}]
    assert found.events_named("ras.ranks_at") == [
        {"ranks": "28", "operation": "17"},
        {"ranks": "2", "operation": "0"},
    ]


def test_lines_that_stand_for_themselves():
    found = read_text(READER, TEXT)
    assert found.events_named("ras.timeout") == [{"count": "2"}]
    assert found.events_named("ras.counts_differ") == [{"op": "AllReduce"}]
    assert [fields["error"] for fields in found.events_named("ras.rank_error")] == ["ncclSystemError"]
    assert found.events_named("ras.group_not_running")[0]["errors"] == "INCOMPLETE"


def test_the_gpu_has_two_numbers_where_cuda_and_nvml_disagree():
    found = read_text(READER, "  Rank 3 -- GPU 0 (NVML 5) managed by process 77 on node 10.0.0.1\n")
    assert found.events_named("ras.rank") == [{"rank": "3", "gpu": "0", "nvml": "5", "pid": "77", "node": "10.0.0.1"}]


def test_monitored_events_as_text():
    found = read_text(
        READER,
        "[2026-01-02 03:04:05] PEER_DEAD: process 77 on node 10.0.0.1 managing GPU 0\n[2026-01-02 03:04:06] PEER_RETRY: process 78 on node 10.0.0.1 x\n",
    )
    assert found.events_named("ras.peer_dead") == [{"peer": "process 77 on node 10.0.0.1 managing GPU 0"}]
    assert [row["level"] for row in found.events] == ["error", "info"]


def test_the_status_as_json():
    found = read_text(JSON_READER, STATUS)
    assert columns(
        found.collective_progress, "rank", "host", "pid", "process_group", "ranks", "op", "last_enqueued"
    ) == [
        (rank, f"10.0.0.{rank + 1}", 4242 + rank, "7c41d2e8a03b55f1", 3, op, count)
        for rank in (0, 1)
        for op, count in (("broadcast", 2), ("all_gather", 0), ("all_reduce", 4410))
    ]
    assert found.events_named("ras.peer_dead") == [
        {"rank": "2", "comm": "7c41d2e8a03b55f1", "node": "10.0.0.3", "pid": "4244", "gpu": "0"}
    ]
    assert found.events_named("ras.comm") == [{"comm": "7c41d2e8a03b55f1", "errors": "INCOMPLETE", "size": "3"}]
    assert [fields["error"] for fields in found.events_named("ras.rank_error")] == ["async_error 6"]
    assert [fields["rank"] for fields in found.events_named("ras.rank_aborted")] == ["1"]
    assert found.events_named("ras.timeout") == [{"count": "1"}]
    assert not found.losses


def test_a_missing_rank_that_is_not_dead_is_missing():
    found = read_text(JSON_READER, STATUS.replace(b'"considered_dead": true', b'"considered_dead": false'))
    assert [fields["rank"] for fields in found.events_named("ras.rank_missing")] == ["2"]


def test_rows_stand_where_the_rank_stands():
    lines = STATUS.split(b"\n")
    for row in read_text(JSON_READER, STATUS).collective_progress:
        assert lines[row["line"]].strip() == b'"rank": %d,' % row["rank"]  # the line after that of the brace
        assert STATUS[row["byte_offset"] : row["byte_offset"] + 1] == b"{"


def test_a_cut_status_gives_the_ranks_before_the_cut():
    found = read_text(JSON_READER, STATUS[: STATUS.index(b'"rank": 1') + 40])
    assert {row["rank"] for row in found.collective_progress} == {0}
    assert found.loss_counts == {"truncated-file": 1}


def test_monitored_events_as_json():
    event = '{{\n  "timestamp": "2026-01-02 03:04:05",\n  "group": "LIFECYCLE",\n  "event": "{}",\n  "peer": {},\n  "details": "{}"\n}}\n'
    text = event.format(
        "PEER_UNRESPONSIVE",
        '{"host": "10.0.0.1", "pid": 5, "cuda_devs": [0,1], "nvml_devs": [0,1]}',
        "no answer for 20s",
    )
    text += event.format("PEER_DEAD", '{"addr": "10.0.0.1<4711>"}', "")
    found = read_text(JSON_READER, text)
    assert [(row["event"], row["line"]) for row in found.events] == [("ras.peer_unresponsive", 1), ("ras.peer_dead", 8)]
    assert found.events_named("ras.peer_unresponsive")[0] == {
        "what": "PEER_UNRESPONSIVE", "time": "2026-01-02 03:04:05", "node": "10.0.0.1", "pid": "5", "gpus": "0,1", "details": "no answer for 20s",
    }  # fmt: skip
    assert found.events_named("ras.peer_dead")[0]["node"] == "10.0.0.1<4711>"


@pytest.mark.parametrize(("head", "known"), [
    (STATUS, True), (b'{\n  "timestamp": "x",\n  "group": "TRACE",\n  "event": "PEER_RETRY",', True), (b'{"timestamp": 1, "event": "login"}', False), (b"{}", False), (TEXT.encode(), False),
], ids=["status", "event", "other", "empty", "text"])  # fmt: skip
def test_json_is_told_by_its_first_keys(head, known):
    assert JSON_READER.sniff(head) is known


@given(st.binary(max_size=300))
def test_random_bytes_never_raise(data):
    read_text(READER, TEXT.encode()[:700] + data)
    read_text(JSON_READER, STATUS[:120] + data)
    read_text(JSON_READER, data)


@given(st.data())
def test_changed_bytes_never_raise(data):
    for whole, reader in ((bytearray(STATUS), JSON_READER), (bytearray(TEXT.encode()), READER)):
        for _ in range(data.draw(st.integers(1, 12))):
            whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
        read_text(reader, bytes(whole))
