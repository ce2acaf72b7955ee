"""Ranks compared call by call. Format: PyTorch's Flight Recorder (JSON and pickle)."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path

import pytest

from busbw.diagnosis import explain
from busbw.readers import find_artefacts

from .dumps import call, dump, dumps, p2p
from .told import Case, check, fires, kinds_of, near_miss, told

DATA = Path(__file__).parent.parent / "readers" / "data"

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
