"""Ranks compared call by call. Formats: PyTorch's Flight Recorder (JSON), ncclras (text and JSON), NCCL Inspector."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from busbw.diagnosis import explain
from busbw.readers import find_artefacts

from .told import Case, check, fires, kinds_of, near_miss, told

DATA = Path(__file__).parent.parent / "readers" / "data"
SECOND = 10**9


def call(
    seq: int,
    *,
    marked: bool = False,
    op: str = "all_reduce",
    size: int = 1024,
    state: str = "completed",
    dtype: str = "Float",
    group: str = "0",
    **more: Any,
) -> str:
    """A line of a dump: one entry."""
    entry = {
        "record_id": seq, "process_group": [group, "default_pg" if group == "0" else "tp"], "collective_seq_id": seq, "p2p_seq_id": 0, "is_p2p": False,
        "profiling_name": f"nccl:{op}", "input_sizes": [[size]], "input_dtypes": [dtype], "output_sizes": [[size]], "output_dtypes": [dtype], "state": state,
    } | more  # fmt: skip
    return ("> " if marked else "") + json.dumps(entry)


def p2p(seq: int, what: str, *, done: bool, marked: bool = False) -> str:
    """A line of a dump: a send or receive between ranks of the group."""
    state = "completed" if done else "started"
    return call(seq, op=what, state=state, marked=marked, is_p2p=True, p2p_seq_id=seq)


def dump(*lines: str, members: str = "[0, 1, 2, 3]") -> str:
    """A dump with one entry a line. Marked lines keep their mark at the start."""
    head = (
        '{"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "'
        + members
        + '"}, "1": {"name": "1", "desc": "tp", "ranks": "'
        + members
        + '"}},\n"entries": [\n'
    )
    return head + ",\n".join(lines) + "\n]}\n"


def dumps(ranks: int, lines_of: Callable[[int], Sequence[str]], members: str = "[0, 1, 2, 3]") -> Mapping[str, str]:
    return {f"trace_{rank}": dump(*lines_of(rank), members=members) for rank in range(ranks)}


def created(late_by_ns: Callable[[int, int], int]) -> Mapping[str, str]:
    """Four ranks, twelve calls a second apart; the lateness by rank and call."""
    return dumps(
        4, lambda rank: [call(seq, time_created_ns=seq * SECOND + late_by_ns(rank, seq)) for seq in range(1, 13)]
    )


def inspector(time_us: Callable[[int, int], int], *, ranks: int = 4, coll: str = "AllReduce", marked: Callable[[int, int], bool] = lambda rank, sn: False, host: Callable[[int], str] = lambda rank: f"host{rank}") -> Mapping[str, str]:  # fmt: skip
    """A file a rank, twelve calls each."""

    def line(rank: int, sn: int) -> str:
        record = {
            "header": {"id": "0x1f2e", "comm_name": "dp", "rank": rank, "n_ranks": ranks, "nnodes": ranks},
            "metadata": {"inspector_output_format_version": "v4.0", "hostname": host(rank), "pid": 100 + rank},
            "coll_perf": {"coll": coll, "coll_sn": sn, "coll_msg_size_bytes": 1048576, "coll_exec_time_us": time_us(rank, sn), "coll_timing_source": "kernel_gpu"},
        }  # fmt: skip
        return ("> " if marked(rank, sn) else "") + json.dumps(record) + "\n"

    return {f"host{rank}-pid{100 + rank}.log": "".join(line(rank, sn) for sn in range(1, 13)) for rank in range(ranks)}


def status(counts: Sequence[Mapping[str, int]], missing: str = "", marked: Sequence[int] = ()) -> str:
    """A status of ncclras with one rank a line."""
    ranks = [
        ("> " if i in marked else "")
        + json.dumps({"rank": i, "host": f"10.0.0.{i}", "pid": 100 + i, "cuda_dev": 0, "collective_counts": count})
        for i, count in enumerate(counts)
    ]
    head = '{"nccl_version": "2.28.7", "cuda_runtime_version": 12090,\n"communicators": [\n{"hash": "0x7c41", "size": 4, "ranks": [\n'
    return (
        head + ",\n".join(ranks) + '\n],\n"missing_ranks": [\n' + missing + '\n]}\n],\n"ras": {"timeouts_count": 0}}\n'
    )


LOST = '{"rank": 3, "host": "10.0.0.3", "pid": 103, "status": {"unresponsive": true, "considered_dead": DEAD}}'
COUNTS = [{"AllReduce": 40, "AllGather": 7}] * 4

CASES = (
    fires("calls_differ", "collective-mismatch", dumps(4, lambda rank: [
        call(7), call(8, marked=True, op="all_gather" if rank == 2 else "all_reduce", state="started"),
    ]), severity="fatal", why="operation"),
    fires("calls_differ", "collective-mismatch", dumps(4, lambda rank: [
        call(7), call(8, marked=True, size=512 if rank == 1 else 1024, state="scheduled"),
    ]), why="size"),
    fires("calls_differ", "collective-mismatch", dumps(2, lambda rank: [
        call(8, marked=True, dtype="Half" if rank else "Float", state="started"),
    ]), why="type"),
    near_miss("calls_differ", "ring buffers that begin at different calls", dumps(2, lambda rank: [
        call(seq, op="all_gather" if seq % 2 else "all_reduce") for seq in range(5 + rank, 9 + rank)
    ])),
    near_miss("calls_differ", "all_gather of a list of tensors that differ and fit together", dumps(
        2, lambda rank: [call(3, op="all_gather", input_sizes=[[100 + rank]], output_sizes=[[100], [101]])], members="[0, 1]",
    )),
    near_miss("calls_differ", "all_to_all is uneven by nature", dumps(2, lambda rank: [call(3, op="all_to_all", size=100 + rank)])),
    near_miss("calls_differ", "sequence numbers of different groups", dumps(2, lambda rank: [
        call(3, group=str(rank), op="all_gather" if rank else "all_reduce"),
    ])),
    near_miss("calls_differ", "dumps of two runs in two folders", {
        "monday/trace_0": dump(call(3, op="all_gather")), "monday/trace_1": dump(call(3, op="all_gather")),
        "friday/trace_0": dump(call(3)), "friday/trace_1": dump(call(3)),
    }),
    fires("rank_lacks_next_call", "rank-late-or-stuck", dumps(4, lambda rank: [
        call(7, marked=rank == 2), *([] if rank == 2 else [call(8, marked=True, state="started")]),
    ]), severity="fatal"),
    fires("rank_lacks_next_call", "rank-late-or-stuck", {
        "trace_0": dump(call(7), call(8, state="scheduled", marked=True)),
        "trace_1": dump(call(7), call(4, group="1", op="all_gather", state="scheduled")),
        "trace_2": dump(call(3, group="1", op="all_gather"), call(7, marked=True)),
    }, why="it waits in no other group"),
    fires("rank_lacks_next_call", "rank-late-or-stuck", {
        "trace_0": dump(call(7), call(1, group="1", state="scheduled", marked=True)),
        "trace_1": dump(call(7, marked=True)),
    }, why="it never called anything in this group"),
    near_miss("rank_lacks_next_call", "dumps taken one after the other: somebody has completed it", dumps(3, lambda rank: [
        call(7), *([] if rank == 2 else [call(8, state="completed" if rank else "started")]),
    ])),
    near_miss("rank_lacks_next_call", "the ranks are equally far", dumps(3, lambda rank: [call(7), call(8, state="started")])),
    fires("all_wait_in_one_call", "hang-inside-collective", dumps(4, lambda rank: [
        call(7), call(8, marked=True, state="started"),
    ]), severity="fatal"),
    fires("all_wait_in_one_call", "hang-inside-collective", dumps(4, lambda rank: [
        call(7), call(8, marked=True, state="scheduled"), call(9, state="scheduled"),
    ]), why="without timing NCCL's calls stay scheduled"),
    near_miss("all_wait_in_one_call", "one rank has completed it", dumps(4, lambda rank: [call(7), call(8, state="started" if rank else "completed")])),
    near_miss("all_wait_in_one_call", "one rank lacks it", dumps(4, lambda rank: [call(7), *([call(8, state="started")] if rank else [])])),
    near_miss("all_wait_in_one_call", "gloo retires what it leaves as scheduled", dumps(2, lambda rank: [call(8, op="barrier", state="scheduled", retired=True)])),
    near_miss("all_wait_in_one_call", "one dump shows one rank", dumps(1, lambda rank: [call(8, state="started")])),
    fires("launches_differ", "rank-late-or-stuck", {
        "ras.json": status([*COUNTS[:3], {"AllReduce": 39, "AllGather": 7}], marked=(0, 1, 2, 3)),
    }, severity="fatal"),
    fires("launches_differ", "collective-mismatch", {
        "ras.json": status([*COUNTS[:3], {"AllReduce": 39, "AllGather": 8}], marked=(0, 1, 2, 3)),
    }, why="fewer of one, more of another"),
    near_miss("launches_differ", "equal counts", {"ras.json": status(COUNTS)}),
    near_miss("launches_differ", "a dead member explains what the others launched", {
        "ras.json": status([*COUNTS[:2], {"AllReduce": 39, "AllGather": 7}], missing=LOST.replace("DEAD", "true")),
    }),
    fires("members_lost", "peer-process-died", {"ras.json": status(COUNTS[:3], missing="> " + LOST.replace("DEAD", "true"))}, severity="fatal"),
    fires("members_lost", "peer-process-died", {"ras.json": status(COUNTS[:3], missing="> " + LOST.replace("DEAD", "false"))}, why="no answer"),
    fires("members_lost", "peer-process-died", """
        Errors
        ======

        DEAD
        >   1 job process is considered dead (unreachable via the RAS network)
        >   Process 4242 on node 10.0.0.3 managing GPU 0
    """, why="the section DEAD"),
    fires("members_lost", "peer-process-died", """
        [2026-01-02 03:04:05] PEER_RETRY: process 77 on node 10.0.0.1 managing GPU 0
        > [2026-01-02 03:04:25] PEER_DEAD: process 77 on node 10.0.0.1 managing GPU 0
    """, why="the monitor"),
    fires("members_lost", "peer-process-died", """
        [2026-01-02 03:04:09] PEER_RECOVERED: process 77 on node 10.0.0.1 managing GPU 0 peer responding again
        > [2026-01-02 03:06:25] PEER_TIMEOUT_DEAD: process 77 on node 10.0.0.1 managing GPU 0
    """, why="after it was heard"),
    near_miss("members_lost", "the peer was heard again", """
        [2026-01-02 03:04:05] PEER_UNRESPONSIVE: process 77 on node 10.0.0.1 managing GPU 0 no answer for 20s
        [2026-01-02 03:04:09] PEER_RECOVERED: process 77 on node 10.0.0.1 managing GPU 0 peer responding again
    """),
    near_miss("members_lost", "a connection that is made anew", """
        [2026-01-02 03:04:05] PEER_DISCONNECTED: process 77 on node 10.0.0.1 managing GPU 0 peer closed connection
        [2026-01-02 03:04:06] PEER_RETRY: process 77 on node 10.0.0.1 managing GPU 0
        [2026-01-02 03:04:06] PEER_CONNECTED: process 77 on node 10.0.0.1 managing GPU 0 connection established successfully
    """),
    near_miss("members_lost", "all members are there", {"ras.json": status(COUNTS)}),
    fires("last_to_come", "slow-node", inspector(lambda rank, sn: 900 if rank == 2 else 5000 + sn, marked=lambda rank, sn: rank == 2 and sn > 6), severity="major"),
    fires("last_to_come", "slow-node", inspector(
        lambda rank, sn: 900 + rank if rank > 3 else 5000 + rank, ranks=6, host=lambda rank: f"host{rank // 2}", marked=lambda rank, sn: rank == 5 and sn < 7,
    ), why="both ranks of a host"),
    near_miss("last_to_come", "times within a few per cent", inspector(lambda rank, sn: 5000 + 100 * rank)),
    near_miss("last_to_come", "another rank is last every time", inspector(lambda rank, sn: 900 if rank == sn % 4 else 5000)),
    near_miss("last_to_come", "the root leaves a broadcast early", inspector(lambda rank, sn: 900 if rank == 0 else 5000, coll="Broadcast")),
    near_miss("last_to_come", "a gap of 0.1 ms is jitter", inspector(lambda rank, sn: 50 if rank == 2 else 150)),
    near_miss("last_to_come", "two ranks: who waits for whom is chance", inspector(lambda rank, sn: 900 if rank else 5000, ranks=2)),
    near_miss("last_to_come", "a constant lateness may be the clock", created(lambda rank, seq: 80_000_000 if rank == 1 else 0)),
    near_miss("last_to_come", "a lateness of milliseconds may be the clock", created(lambda rank, seq: 1_000_000 * seq if rank == 1 else 0)),
    fires("transfer_without_partner", "rank-late-or-stuck", {
        "trace_0": dump(p2p(1, "send 0->1", done=False, marked=True), members="[0, 1, 2]"),
        "trace_1": dump(p2p(1, "recv 1<-2", done=True), call(4, marked=True), members="[0, 1, 2]"),
        "trace_2": dump(p2p(1, "send 2->1", done=True), members="[0, 1, 2]"),
    }, severity="fatal"),
    fires("transfer_without_partner", "collective-mismatch", {
        f"trace_{rank}": dump(p2p(1, f"send {rank}->{(rank + 1) % 3}", done=False, marked=True), members="[0, 1, 2]") for rank in range(3)
    }, why="a circle of ranks that all send first"),
    near_miss("transfer_without_partner", "the counterpart is under way", {
        "trace_0": dump(p2p(1, "send 0->1", done=False), members="[0, 1]"),
        "trace_1": dump(p2p(1, "recv 1<-0", done=False), members="[0, 1]"),
    }),
    near_miss("transfer_without_partner", "the peer left no dump", {
        "trace_0": dump(p2p(1, "send 0->1", done=False), members="[0, 1]"),
    }),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)


def test_calls_that_are_created_late_by_varying_times_name_the_rank():
    explanation = told(created(lambda rank, seq: (60 + 10 * seq) * 1_000_000 if rank == 1 else rank * 100_000))
    assert kinds_of(explanation) == ["slow-node"]
    assert "rank 1 makes its call last in 12 of 12 collectives" in explanation.diagnosis.findings[0].summary


def test_the_summary_names_ranks_call_and_difference():
    explanation = told(
        dumps(4, lambda rank: [call(8, op="all_gather" if rank == 2 else "all_reduce", state="started")])
    )
    assert explanation.diagnosis.findings[0].summary == (
        "group default_pg, call 8: rank 2 called all_gather of 1024 elements float, rank 0, rank 1, rank 3 all_reduce of 1024 elements float (operation differs)"
    )


def test_one_rank_with_a_call_too_many_leaves_both_causes_open():
    explanation = told(dumps(4, lambda rank: [call(7), *([call(8, state="started")] if rank == 2 else [])]))
    assert set(kinds_of(explanation)) == {"rank-late-or-stuck", "collective-mismatch"}


def test_a_gpu_that_did_not_start_the_call_is_named():
    explanation = told(dumps(4, lambda rank: [call(7), call(8, state="scheduled" if rank == 3 else "started")]))
    found = {finding.kind: finding.summary for finding in explanation.diagnosis.findings}
    assert "the GPU of rank 3 did not start call 8" in found["rank-late-or-stuck"]
    assert "hang-inside-collective" in found


def test_two_healthy_gloo_ranks_are_healthy():
    """Recorded with PyTorch 2.13; rank 0 was about to leave the last barrier, which rank 1 had left."""
    files = [str(DATA / f"flight-recorder-gloo-{rank}.json") for rank in (0, 1)]
    diagnosis = explain(*find_artefacts(files)).diagnosis
    assert (diagnosis.verdict, diagnosis.findings) == ("healthy", [])
    assert [(c.what, c.result) for c in diagnosis.checks] == [
        ("collectives", "14 calls of 2 ranks in 2 process groups: completed, the same on all ranks")
    ]


def test_pickled_dumps_are_compared_as_well(tmp_path):
    for name, text in dumps(3, lambda rank: [call(7), *([call(8, state="started")] if rank else [])]).items():
        (tmp_path / name).write_bytes(pickle.dumps(json.loads(text), 2))
    diagnosis = explain(*find_artefacts([str(tmp_path)])).diagnosis
    assert diagnosis.findings[0].summary == (
        "group default_pg: rank 0 made no call after 7; rank 1, rank 2 wait in call 8, all_reduce of 1024 elements float; 1 members left no dump"
    )
    assert not diagnosis.losses


def test_one_dump_alone_is_no_proof_of_health():
    explanation = told(dumps(1, lambda rank: [call(8)]))
    assert explanation.diagnosis.verdict == "unknown"
    assert [check.decisive for check in explanation.diagnosis.checks] == [False]


def test_even_times_of_the_inspector_are_healthy():
    explanation = told(inspector(lambda rank, sn: 5000 + rank))
    assert explanation.diagnosis.verdict == "healthy"
    assert "no rank regularly, in 12 collectives of 1 communicators" in [
        check.result for check in explanation.diagnosis.checks
    ]
    assert explanation.facts.curves == []


COMM = "cn3{rank}:{pid}:{pid} [0] NCCL INFO ncclCommInitRankConfig comm 0x55 rank {rank} nranks 4 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xfeed - Init COMPLETE\n"


def _behind(log: str) -> Mapping[str, str]:
    return {
        **dumps(4, lambda rank: [call(7), *([call(8, state="started")] if rank != 2 else [])]),
        "nccl.log": "".join(COMM.format(rank=rank, pid=500 + rank) for rank in range(4)) + log,
    }


def test_a_rank_that_hangs_is_named_as_nccl_knows_it():
    """The dump knows rank 2, NCCL's log knows host, process and GPU: one finding with the lines of both."""
    explanation = told(_behind(""))
    first = explanation.diagnosis.findings[0]
    assert "rank 2 made no call after 7" in first.summary
    assert "to NCCL that is cn32:502 GPU 1b000" in first.summary
    assert {Path(line.path).name for line in first.lines} >= {"trace_2", "nccl.log"}


def test_its_own_last_error_explains_why_it_did_not_come():
    explanation = told(_behind("cn32:502:530 [0] nobody.cc:1 NCCL WARN Nobody knows this message\n"))
    assert "whose log says: Nobody knows this message" in explanation.diagnosis.findings[0].summary


def test_ranks_of_another_communicator_are_not_taken_for_ranks_of_the_job():
    """Two communicators of the same size and other processes: which of them the dumps are about, nobody says."""
    other = "".join(
        COMM.replace("cn3", "cn4").replace("feed", "beef").format(rank=rank, pid=600 + rank) for rank in range(4)
    )
    assert "to NCCL" not in told(_behind(other)).diagnosis.findings[0].summary
