"""What a schedule leaves behind, and which rules a wrong one breaks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.collectives import Region, Schedule, violations
from busbw.collectives.algorithms import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from busbw.collectives.builder import Axis, chunks, scratch, steps
from busbw.collectives.builder import schedule as record
from busbw.collectives.provenance import run


@given(ranks=st.integers(1, 64))
def test_a_ring_leaves_what_the_collective_promises(ranks: int):
    for algorithm in (ring_all_gather, ring_reduce_scatter, ring_all_reduce):
        assert violations(algorithm().bind(ranks)) == []


@given(ranks=st.integers(1, 20))
def test_after_a_ring_all_gather_every_rank_has_every_block_of_its_owner(ranks: int):
    state, _ = run(ring_all_gather().bind(ranks))
    for rank in range(ranks):
        for chunk in range(ranks):
            assert state.at(rank, Region.DATA, chunk) == (chunk, frozenset({chunk}))


def broken(name: str) -> Schedule:
    """Rings with one fault each."""

    @record("all_gather")
    def one_step_short(r: Axis) -> None:
        data = chunks(r.size)
        for t in steps(r.size - 2):
            r.send(data[r - t], to=r + 1)

    @record("all_gather")
    def passes_on_what_it_lacks(r: Axis) -> None:
        data = chunks(r.size)
        for t in steps(r.size - 1):
            r.send(data[r - t - 1], to=r + 1)

    @record("reduce_scatter")
    def one_step_too_many(r: Axis) -> None:
        data = chunks(r.size)
        for t in steps(r.size):
            r.send(data[r - t - 1], to=r + 1, reduce=True)

    @record("all_reduce")
    def everyone_writes_one_rank(r: Axis) -> None:
        data, other = chunks(1), scratch(1)
        r.send(data[0], to=1, into=other[0])

    @record("all_reduce")
    def adds_another_chunk(r: Axis) -> None:
        data = chunks(2)
        r.send(data[0], to=r + 1, into=data[1], reduce=True)

    return {s.name: s for s in (one_step_short, passes_on_what_it_lacks, one_step_too_many, everyone_writes_one_rank, adds_another_chunk)}[name]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("one_step_short", "missing"),
        ("passes_on_what_it_lacks", "read-before-write"),
        ("one_step_too_many", "counted-twice"),
        ("everyone_writes_one_rank", "two-writers"),
        ("adds_another_chunk", "mixed-chunks"),
    ],
)
def test_a_fault_is_named_with_the_line_that_has_it(name: str, kind: str):
    found = violations(broken(name).bind(4))
    assert kind in {violation.kind for violation in found}
    assert all(v.where.startswith("test_provenance.py:") for v in found if v.step >= 0)


def test_the_sentence_says_rank_class_step_and_chunk():
    """Every rank sends block r - 1 first; only the owner, rank r - 1, has it."""
    first = violations(broken("passes_on_what_it_lacks").bind(4))[0]
    assert first.text == (
        "passes_on_what_it_lacks with r=4: data[3] of every rank is read at step 0 before it is written"
    )
