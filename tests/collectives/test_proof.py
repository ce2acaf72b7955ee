"""Proofs at numbers of ranks that nobody executes in full."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.design.wrong_schedules import judgements

from busbw.collectives import Schedule, violations
from busbw.collectives.algorithms import LIBRARY, ring_all_reduce
from busbw.collectives.builder import Axis, chunks, parallel, parameter, scratch, steps, together, transfer
from busbw.collectives.builder import schedule as record
from busbw.collectives.expressions import ceil_log, minimum, power, select
from busbw.collectives.legality import SCHEDULE_RULES, verify_plan, verify_schedule
from busbw.collectives.lowering import plan_of
from busbw.collectives.proof import NotProvedError, prove
from busbw.collectives.schedule import Mode


@pytest.mark.parametrize("name", LIBRARY)
def test_what_is_proved_is_what_execution_finds(name: str):
    """At 12 and 16 ranks both can be done; a proof never contradicts, and decides every schedule of the library."""
    for ranks in (12, 16):
        for bound in list(LIBRARY[name]().bindings(ranks))[:2][-1:]:
            assert prove(bound).holds == (violations(bound) == [])


@pytest.mark.parametrize("ranks", [131_072, 100_003])
def test_a_ring_over_any_number_of_ranks_is_proved_by_form(ranks: int):
    """A power of two and a prime; one rank's moves stand for all."""
    proof = prove(ring_all_reduce().bind(ranks))
    assert proof.holds
    assert proof.symmetry == "by form"
    assert proof.moves == 2 * (ranks - 1)


@pytest.mark.parametrize(
    "name", ["bruck_all_gather", "pat_reduce_scatter", "double_binary_tree_all_reduce", "binomial_broadcast"]
)
def test_trees_and_bruck_over_many_ranks(name: str):
    proof = prove(LIBRARY[name]().bind(65_537))
    assert proof.holds


def faulty(name: str) -> Schedule:
    @record("all_reduce")
    def short(r: Axis) -> None:
        data = chunks(r.size)
        for t in steps(r.size - 1):
            r.send(data[r - t - 1], to=r + 1, reduce=True)
        for t in steps(r.size - 2):
            r.send(data[r - t], to=r + 1)

    @record("all_reduce")
    def twice(r: Axis) -> None:
        data = chunks(r.size)
        for t in steps(r.size):
            r.send(data[r - t - 1], to=r + 1, reduce=True)

    @record("all_gather")
    def one_rank_differs(r: Axis) -> None:
        data = chunks(r.size)
        for t in steps(r.size - 1):
            r.send(data[select(r < 1, r - t - 1, r - t)], to=r + 1)

    @record("all_gather")
    def too_few(r: Axis) -> None:
        data = chunks(r.size)
        for t in steps(ceil_log(2, r.size)):
            r.send(data[r, minimum(power(2, t), r.size // 2)], to=r - power(2, t), when=r >= 0)

    @record("broadcast")
    def forgotten(r: Axis) -> None:
        root = parameter("root", 0)
        data = chunks(1)
        for i in parallel(r.size - 2):
            transfer(data[0], frm={r: root}, to={r: root + i + 1})

    return {s.name: s for s in (short, twice, one_rank_differs, too_few, forgotten)}[name]


@pytest.mark.parametrize("name", ["short", "twice", "one_rank_differs", "forgotten"])
def test_a_fault_is_not_proved_away(name: str):
    """Either it is found, or the schedule is not decided; 11 ranks, where execution finds it, too."""
    bound = faulty(name).bind(11)
    assert violations(bound) != []
    try:
        assert not prove(bound).holds
    except NotProvedError as undecided:
        assert "is not decided" in str(undecided)


@pytest.mark.parametrize("name", ["nvls_all_gather", "nvls_reduce_scatter", "nvls_all_reduce", "sharp_all_reduce"])
def test_what_moves_through_one_switch_is_proved_chunk_by_chunk(name: str):
    """p messages for p ranks; written out they are p^2 moves, which nobody holds at 131,072."""
    proof = prove(LIBRARY[name]().bind(131_072))
    assert proof.holds
    assert proof.method == "chunks through one switch"


def test_a_switch_that_is_asked_for_another_chunk_is_not_proved():
    """Everyone multicasts its neighbour's chunk, which it does not hold; or only all but one do; or the sum is formed twice."""

    @record("all_gather")
    def neighbours(r: Axis) -> None:
        r.multicast(chunks(r.size)[r + 1])

    @record("all_gather")
    def all_but_one(r: Axis) -> None:
        r.multicast(chunks(r.size)[r], when=r > 0)

    @record("all_reduce")
    def twice(r: Axis) -> None:
        data = chunks(1)
        for _ in steps(2):
            transfer(data[0], frm={r: 0}, to={r: 0}, mode=Mode.NETWORK_ALL_REDUCE, over=(r,))

    for made in (neighbours, all_but_one, twice):
        bound = made.bind(7)
        assert violations(bound) != []
        try:
            assert not prove(bound).holds
        except NotProvedError as undecided:
            assert "is not decided" in str(undecided)


def test_what_cannot_be_decided_says_why():
    """Sums in scratch that differ from rank to rank: neither all ranks do the same, nor is scratch followed on all ranks."""

    @record("all_reduce")
    def by_hand(r: Axis) -> None:
        data = chunks(1)
        kept = scratch(1)
        transfer(data[0], frm={r: 1}, to={r: 0}, into=kept[0])
        transfer(kept[0], frm={r: 0}, to={r: 0}, into=data[0], reduce=True)
        transfer(data[0], frm={r: 0}, to={r: 1})

    assert violations(by_hand.bind(2)) == []
    with pytest.raises(NotProvedError, match="2 ranks hold 1 chunks each, and scratch"):
        prove(by_hand.bind(2))


@pytest.mark.parametrize(
    "name",
    ["torus_all_gather", "three_level_all_to_all", "hierarchical_all_reduce_trees", "hierarchical_all_reduce_sharp", "swing_all_gather", "census_all_reduce",
     "pairwise_exchange_all_to_all", "scatter_gather_reduce", "chain_broadcast"],
)  # fmt: skip
def test_no_wrong_schedule_is_proved(name: str):
    """One thing is changed in a right one, drawn by lot: an index, a rank, a guard, a mode, the turns or order of a loop. Executing all ranks says whether it is wrong."""
    bound = list(LIBRARY[name]().bindings(8))[:2][-1]
    found = [judgement for judgement, _ in judgements(bound, 10, np.random.default_rng(list(name.encode())))]
    assert set(found) <= {"found", "undecided", "right"}
    assert found


@pytest.mark.parametrize("name", ["torus_all_reduce_3d", "three_level_all_to_all", "hierarchical_all_reduce_sharp", "swing_all_gather", "census_all_reduce", "chain_reduce"])  # fmt: skip
def test_a_proof_by_form_or_by_stages_looks_at_no_other_ranks(name: str):
    """Tori, hierarchies, mirrored and chained schedules over some thousand ranks: nothing is drawn by lot, so `symmetry` never says "on 27 ranks"."""
    shape = {1: (4096,), 2: (1024, 4), 3: (64, 8, 8)}
    schedule = LIBRARY[name]()
    proof = prove(schedule.bind(*shape[len(schedule.axes)]))
    assert proof.holds
    assert proof.symmetry in ("", "by form")


def test_two_copies_into_one_place_in_one_step_are_not_proved():
    """Which of them is left is not said, even if both are the same chunk; nor may a copy go where a sum goes."""

    @record("all_reduce")
    def twice(r: Axis) -> None:
        data = chunks(1)
        for t in steps(ceil_log(2, r.size)):
            r.send(data[0], to=r + power(2, t), reduce=True)
        with together():
            r.send(data[0], to=r + 1)
            r.send(data[0], to=r + 1)

    bound = twice.bind(8)
    assert {fault.kind for fault in violations(bound)} == {"two-writers"}
    assert {fault.kind for fault in prove(bound).faults} == {"two-writers"}


def test_a_sum_into_an_empty_place_is_not_proved():
    """A broadcast that reduces where it should copy: the place holds nothing to be summed with."""

    @record("broadcast")
    def sums(r: Axis) -> None:
        root = parameter("root", 0)
        transfer(chunks(1)[0], frm={r: root}, to={r: root + 1}, reduce=True)

    assert [fault.kind for fault in violations(sums.bind(2))] == ["read-before-write"]
    assert [fault.kind for fault in prove(sums.bind(2)).faults] == ["read-before-write"]


def test_rules_of_schedules_are_quoted_by_name():
    found = verify_schedule(faulty("short").bind(5))
    assert {v.rule for v in found} <= {rule.name for rule in SCHEDULE_RULES}
    assert found


@pytest.mark.parametrize("name", LIBRARY)
def test_the_plans_of_the_library_are_legal(name: str):
    """By the rules of plans: deadlock, races, relaunch, leftovers, result."""
    for ranks in (3, 4, 6):
        for bound in list(LIBRARY[name]().bindings(ranks))[-1:]:
            assert verify_plan(plan_of(bound)).violations == ()


def test_more_ranks_than_fit_memory_are_not_tried():
    with pytest.raises(NotProvedError, match="2147483648 ranks are more than 4194304"):
        prove(LIBRARY["ring_all_reduce"]().bind(1 << 31))


@pytest.mark.parametrize("size", [4.5, "4", None])
def test_a_size_is_a_whole_number(size):
    with pytest.raises(ValueError, match="whole numbers, not"):
        LIBRARY["ring_all_reduce"]().bind(size)
