"""Collectives of traces beside the model. An all-reduce of 256 MiB between the 8 GPUs of a DGX H100 moves 7/4 of it over 450 GB/s: 1.04 ms at the least, and 1.1 to 1.2 in nccl-tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from busbw.diagnosis.beside_model import calls_beside_model
from busbw.diagnosis.rules.expected_calls import checks, slower_than_expected
from busbw.diagnosis.rules.steps import checks as step_checks
from busbw.hardware import find_cluster

from .told import Case, Rows, check, facts_of, fires_on, near_miss_on, row, shown

MS = 1_000_000


def calls(took_ms: Callable[[int, int], float], *, numbered: bool = True, name: str = "ncclDevKernel_AllReduce", ranks: int = 8, traced: int = 8, count: int = 6, size: int = 1 << 28, members: bool = True, per_host: int = 8, marked: Callable[[int, int], bool] = lambda rank, seq: False) -> Rows:  # fmt: skip
    """A trace a rank of one group, all calls alike."""

    def one(rank: int, seq: int):
        return (shown if marked(rank, seq) else row)(
            "collectives", source="kineto", rank=rank, host=f"node{rank // per_host}", process_group="1", group_desc="dp", ranks=ranks,
            members=list(range(ranks)) if members else None, seq=seq if numbered else None, profiling_name=name, op="all_reduce", is_p2p=False, size_bytes=size, state="completed", retired=True,
            duration_ns=round(took_ms(rank, seq) * MS),
        )  # fmt: skip

    return {f"rank{rank}.json": [one(rank, seq) for seq in range(1, count + 1)] for rank in range(traced)}


SLOW, RULE, KIND = lambda rank, seq: 4.0 + rank, "slower_than_expected", "collective-slower-than-expected"
CASES = (
    fires_on(RULE, KIND, calls(SLOW, marked=lambda rank, seq: rank == 0), severity="major", cluster="dgx-h100"),
    fires_on(RULE, KIND, calls(lambda rank, seq: 4.0 + seq, traced=1, marked=lambda rank, seq: True), why="one trace, and no call is fast", cluster="dgx-h100"),
    near_miss_on(RULE, "no cluster is named", calls(SLOW)),
    near_miss_on(RULE, "as expected", calls(lambda rank, seq: 1.15), cluster="dgx-h100"),
    near_miss_on(RULE, "all but the last to come wait", calls(lambda rank, seq: 1.15 if rank == 3 else 40.0), cluster="dgx-h100"),
    near_miss_on(RULE, "one trace, and one call is fast: the others wait for ranks without a trace", calls(lambda rank, seq: 1.15 if seq == 4 else 40.0, traced=1), cluster="dgx-h100"),
    fires_on(RULE, KIND, calls(lambda rank, seq: 4.0 + seq + rank, traced=2, numbered=False, marked=lambda rank, seq: seq == 1), why="calls without a number, none fast", cluster="dgx-h100"),
    near_miss_on(RULE, "calls without a number, one of them fast", calls(lambda rank, seq: 1.15 if rank == seq == 1 else 9.0, traced=2, numbered=False), cluster="dgx-h100"),
    near_miss_on(RULE, "gloo's collectives, which run on CPUs", calls(SLOW, numbered=False, name="gloo:all_reduce"), cluster="dgx-h100"),
    near_miss_on(RULE, "two calls of one rank", calls(SLOW, traced=1, count=2), cluster="dgx-h100"),
    near_miss_on(RULE, "32 KiB: what is small varies from site to site", calls(SLOW, size=1 << 15), cluster="dgx-h100"),
    near_miss_on(RULE, "calls without a size", calls(SLOW, size=0), cluster="dgx-h100"),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)


@pytest.mark.parametrize(("members", "per_host", "inside"), [(True, 8, 8), (False, 8, 8), (False, 1, 1), (False, 2, 2)])
def test_how_many_share_nvlink_follows_from_ranks_of_the_job_or_hosts(members: bool, per_host: int, inside: int):
    """8 ranks in one node, or one or two on each of several."""
    facts = facts_of({}, calls(SLOW, members=members, per_host=per_host))
    facts.cluster = find_cluster("dgx-h100", 8)[0]
    assert calls_beside_model(facts)[0].inside == inside


@pytest.mark.parametrize("ranks", [2, 3, 5, 7])
def test_groups_of_any_number_have_an_expected_time(ranks: int):
    facts = facts_of({}, calls(SLOW, ranks=ranks, traced=ranks))
    facts.cluster = find_cluster("dgx-h100")[0]
    assert 0.5 < (calls_beside_model(facts)[0].expected_ns or 0) / MS < 3


def test_the_transfer_is_what_the_last_to_come_spends_and_the_rest_is_waiting():
    """Rank 3 spends 1 ms, the seven others 3: 14 of 22 ms of a call are waiting."""
    facts = facts_of({}, calls(lambda rank, seq: 1.0 if rank == 3 else 3.0, count=12))
    kind = calls_beside_model(facts)[0]
    assert (kind.took_ns, kind.spent_ns, kind.waited_ns) == (MS, 12 * 22 * MS, 12 * 14 * MS)
    assert [check.result for check in checks(facts)] == [
        "64 % of the time that ranks spend in collectives is waiting for the last one to come, most in all_reduce of 256 MiB between 8 ranks (group dp)"
    ]


def test_collectives_as_fast_as_expected_are_a_check():
    facts = facts_of({}, calls(lambda rank, seq: 1.15))
    facts.cluster = find_cluster("dgx-h100")[0]
    assert [check.what for check in checks(facts)] == ["collectives beside the model"]


def test_ranks_that_compute_unevenly_are_told_where_no_single_one_is_slow():
    """Two pipeline stages: ranks 0 and 1 compute 10 ms a step, 2 and 3 14."""
    rows = {
        f"rank{rank}.json": [
            row("spans", source="kineto", rank=rank, category="kernel", lane="7", name="gemm", begin_ns=step * 20 * MS, end_ns=step * 20 * MS + (10 + rank // 2 * 4) * MS, step=step)
            for step in range(4)
        ]
        for rank in range(4)
    }  # fmt: skip
    assert [check.result.split(";")[0] for check in step_checks(facts_of({}, rows))] == [
        "ranks compute between 10 ms (rank 0) and 14 ms (rank 2) a step"
    ]


def test_collectives_faster_than_the_cluster_can_be_speak_against_the_cluster_named_and_clear_nothing():
    """1.75 x 256 MiB over 450 GB/s take 1.04 ms; 0.2 ms are no collective of this size on this cluster."""
    facts = facts_of({}, calls(lambda rank, seq: 0.2))
    facts.cluster = find_cluster("dgx-h100")[0]
    (found,) = checks(facts)
    assert not found.decisive
    assert "faster than dgx-h100 can be" in found.result


@pytest.mark.parametrize(
    ("traced", "said"),
    [(8, "waiting for late ranks is not in it"), (1, "waiting for a rank without a trace may be in it")],
)
def test_waiting_is_left_out_only_where_every_rank_has_a_trace(traced: int, said: str):
    facts = facts_of({}, calls(SLOW, traced=traced))
    facts.cluster = find_cluster("dgx-h100")[0]
    (found,) = slower_than_expected(facts)
    assert said in found.summary
