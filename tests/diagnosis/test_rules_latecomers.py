"""Ranks compared by the times of their calls. Formats: NCCL Inspector, PyTorch's Flight Recorder (JSON)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pytest

from .dumps import created
from .told import Case, check, fires, kinds_of, near_miss, told


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


CASES = (
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
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)


def test_calls_that_are_created_late_by_varying_times_name_the_rank():
    explanation = told(created(lambda rank, seq: (60 + 10 * seq) * 1_000_000 if rank == 1 else rank * 100_000))
    assert kinds_of(explanation) == ["slow-node"]
    assert "rank 1 makes its call last in 12 of 12 collectives" in explanation.diagnosis.findings[0].summary


def test_even_times_of_the_inspector_are_healthy():
    explanation = told(inspector(lambda rank, sn: 5000 + rank))
    assert explanation.diagnosis.verdict == "healthy"
    assert "no rank regularly, in 12 collectives of 1 communicators" in [
        check.result for check in explanation.diagnosis.checks
    ]
    assert explanation.facts.curves == []
