"""What the exact search calls optimal is, and what it calls impossible is; its schedules keep their promise."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.collectives import violations
from busbw.synthesis import RankLinks, exact_frontier, least_exact_steps, search_exactly

RATE = 25e9
DGX_1 = [(0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2), (2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1),
         (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2)]  # fmt: skip
"""Cables of the DGX-1 V100 with NVLinks a cable: six a GPU. Source: NVIDIA DGX-1 white paper, hybrid cube mesh; a labelling with 6 a GPU."""


def both_ways(cables: list[tuple[int, int, int]], ranks: int) -> RankLinks:
    return RankLinks.of(ranks, [(a, b, n * RATE, 1e-6) for x, y, n in cables for a, b in ((x, y), (y, x))])


def ring(ranks: int) -> RankLinks:
    return both_ways([(r, (r + 1) % ranks, 1) for r in range(ranks)], ranks)


def full(ranks: int) -> RankLinks:
    return both_ways([(a, b, 1) for a, b in itertools.combinations(range(ranks), 2)], ranks)


def torus(side: int) -> RankLinks:
    ends = [
        ((x, y), ((x + dx) % side, (y + 1 - dx) % side))
        for x, y, dx in itertools.product(range(side), range(side), (0, 1))
    ]
    return both_ways([(a * side + b, c * side + d, 1) for (a, b), (c, d) in ends], side * side)


@pytest.mark.parametrize("ranks", [3, 4, 5, 6, 7])
def test_all_gather_on_a_ring_goes_both_ways_round(ranks: int):
    """Data from the far side takes n // 2 hops, and one rank receives n - 1 chunks over two links: ceil((n - 1) / 2) rounds, the same number."""
    least = ranks // 2
    assert least_exact_steps("all_gather", ring(ranks)) == least
    found = search_exactly("all_gather", ring(ranks), 1e9, steps=least)
    assert (found.rounds, found.is_proved) == (math.ceil((ranks - 1) / 2), True)
    none = search_exactly("all_gather", ring(ranks), 1e9, steps=least - 1) if least > 1 else None
    assert none is None or (none.rounds is None and none.is_proved)


def test_more_chunks_use_what_a_round_wastes():
    """On a ring of 4 a rank receives 3 chunks over 2 links: 2 rounds with one chunk a rank, 3 rounds with two, which is 3/2 a chunk: the bound.

    That takes a third step: in two, the chunks that come from the far side arrive in the second, and there are 2 of them for each of 2 links.
    """
    frontier = list(exact_frontier("all_gather", ring(4), 1e9, most_steps=3, most_parts=2))
    assert [(found.steps, found.rounds, found.parts) for found in frontier] == [(2, 3, 2)]
    assert all(found.is_proved for found in frontier)


@pytest.mark.parametrize("collective", ["all_gather", "all_to_all", "reduce_scatter"])
def test_with_a_link_to_everyone_one_step_is_enough(collective: str):
    found = search_exactly(collective, full(6), 1e9, steps=1)
    assert (found.rounds, found.is_proved) == (1, True)


@pytest.mark.parametrize(("parts", "rounds"), [(1, 2), (2, 3)])
def test_all_gather_on_dgx_1(parts: int, rounds: int):
    """Seven chunks a part come in over six NVLinks: at least ceil(7 parts / 6) rounds; two steps suffice."""
    found = search_exactly("all_gather", both_ways(DGX_1, 8), 1e9, steps=2, parts=parts)
    assert math.ceil(7 * parts / 6) == rounds
    assert (found.rounds, found.is_proved) == (rounds, True)


def test_all_to_all_on_a_ring_of_four_needs_what_distance_takes():
    """Distances from one rank are 1, 2, 1: 16 hops in all, over 8 links: 2 rounds."""
    found = search_exactly("all_to_all", ring(4), 1e9, steps=2)
    assert (found.rounds, found.is_proved) == (2, True)


def test_a_wide_link_carries_more_chunks_a_round():
    """A link of twice the bandwidth carries both chunks of the root in one round."""
    links = RankLinks.of(3, [(0, 1, 2 * RATE, 0.0), (1, 2, RATE, 0.0), (0, 2, RATE, 0.0)])
    found = search_exactly("broadcast", links, 2e9, steps=2, parts=2)
    assert (found.rounds, found.is_proved) == (2, True)
    assert found.transfers is not None and found.transfers.time_s == pytest.approx(2 * 1e9 / RATE)


@pytest.mark.parametrize(
    "collective",
    ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "scatter", "gather", "all_to_all"],
)
@pytest.mark.parametrize("parts", [1, 2])
def test_what_is_found_keeps_the_promise(collective: str, parts: int):
    """By the reference meaning of a Schedule, which knows nothing of this search."""
    links = both_ways(DGX_1, 8)
    steps = least_exact_steps(collective, links, root=3)
    found = search_exactly(collective, links, 1e9, steps=steps, parts=parts, root=3)
    assert found.transfers is not None
    assert violations(found.transfers.schedule().bind()) == []


def least_rounds_by_trying(ranks: int, links: list[tuple[int, int]], limit: int) -> int | None:
    """Rounds of an all_gather with a step a round, by breadth-first search over who has what."""
    states = {frozenset((r, r) for r in range(ranks))}
    for rounds in range(1, limit + 1):
        after = set()
        for state in states:
            choices = [[None, *(c for c in range(ranks) if (a, c) in state and (b, c) not in state)] for a, b in links]
            for picks in itertools.product(*choices):
                after.add(state | {(b, c) for (_, b), c in zip(links, picks, strict=True) if c is not None})
        states = {s for s in after if not any(s < other for other in after)}
        if any(len(s) == ranks * ranks for s in states):
            return rounds
    return None


@settings(max_examples=25)
@given(
    st.integers(2, 3).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.sampled_from(list(itertools.permutations(range(n), 2)))))
    )
)
def test_the_search_agrees_with_trying_everything(graph):
    """On graphs of two and three ranks, with one round a step."""
    ranks, ends = graph
    links = RankLinks.of(ranks, [(a, b, RATE, 0.0) for a, b in sorted(ends)])
    least = least_rounds_by_trying(ranks, sorted(ends), limit=4)
    for steps in range(1, 5):
        found = search_exactly("all_gather", links, 1e9, steps=steps)
        assert found.is_proved
        assert (found.rounds == steps) == (least is not None and steps >= least)


def test_the_torus_of_sixteen_is_solved_in_its_diameter():
    """15 chunks over four links take ceil(15 / 4) = 4 rounds; the far corner is 4 hops away."""
    found = search_exactly("all_gather", torus(4), 1e9, steps=4, time_limit_s=120)
    assert (found.rounds, found.is_proved) == (4, True)
    assert found.transfers is not None
    assert violations(found.transfers.schedule().bind()) == []


def test_out_of_time_is_not_proved():
    """Nothing is claimed that was not shown: what counts is only that at least as many rounds as steps are needed."""
    found = search_exactly("all_gather", torus(4), 1e9, steps=4, parts=2, time_limit_s=0.01)
    assert not found.is_proved
    assert "not proved" in str(found)
    assert found.least_rounds >= 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"collective": "all_gather", "links": ring(17), "steps": 8},
            "exact search is for 16 ranks at most, not 17; use greedy synthesis",
        ),
        ({"collective": "barrier", "links": ring(3), "steps": 1}, "barrier: exact search knows all_gather"),
        (
            {"collective": "all_reduce", "links": ring(3), "steps": 3},
            "all_reduce has two halves of as many steps; 3 is odd",
        ),
        ({"collective": "all_gather", "links": ring(3), "steps": 0}, "at least one step"),
        ({"collective": "broadcast", "links": ring(3), "steps": 1, "root": 3}, "root 3 is no rank"),
    ],
)
def test_wrong_use_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        search_exactly(size_bytes=1e9, **arguments)
